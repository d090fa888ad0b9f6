"""Neural networks: tensors with gradients, layers, losses, optimisers, made of the kernels of this workbook.

Names, layouts and defaults are PyTorch's, so that one ``state_dict`` loads into both::

    from pmpp import nn
    from pmpp.nn import functional as F

    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10))
    optimizer = nn.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for images, labels in nn.utils.data.DataLoader(dataset, 64, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()

The tape stands in `pmpp.nn.tape`, arithmetic with its gradients in `arithmetic`, layers as functions in `functional`.
Mixed precision, as `torch.amp` has it, is `amp`.
"""

from pmpp.nn import amp, arithmetic, functional, init, lr_scheduler, optim, utils
from pmpp.nn.capture import capture
from pmpp.nn.init import manual_seed
from pmpp.nn.modules import (
    GELU,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool2d,
    Module,
    MSELoss,
    Parameter,
    ReLU,
    Sequential,
    Tanh,
)
from pmpp.nn.optim import clip_grad_norm_
from pmpp.nn.summary import memory, summary
from pmpp.nn.tape import Function, Tensor, detect_anomaly, no_grad
from pmpp.nn.utils import checkpoint, data
from pmpp.nn.utils.compressed import compressed_activations
from pmpp.nn.utils.files import load, save

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Function",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Tanh",
    "Tensor",
    "amp",
    "arithmetic",
    "capture",
    "checkpoint",
    "clip_grad_norm_",
    "compressed_activations",
    "data",
    "detect_anomaly",
    "functional",
    "init",
    "load",
    "lr_scheduler",
    "manual_seed",
    "memory",
    "no_grad",
    "optim",
    "save",
    "summary",
    "utils",
]
