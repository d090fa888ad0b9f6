"""The reader's own network for digits, looked at and trained for a moment: the last exercise of chapter 89.

from pmpp.nn.examples.yours import check_network
check_network(MyNet)
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import TensorDataset

MOST = 1000  # parameters
EXAMPLES, EPOCHS, BATCH = 256, 4, 32
AT_LEAST = 0.8  # of the validation digits


@dataclass(frozen=True, repr=False)
class Finding:
    """What `check_network` found. True if the network passed. ``mistake`` is its name, or ""."""

    passed: bool
    mistake: str
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{self.mistake}: {self.message}" if self.mistake else self.message


def check_network(kind: Callable[[], nn.Module] | None) -> Finding:
    """Judge a network for digits of 8 x 8: its scores, its parameters, and what it learns from a few digits.

    Args:
        kind: a class derived from `nn.Module`, or a function that makes one; called without arguments.
            Not a network that is made already: its parameters are drawn here.

    It must give scores (N, 10) for images (N, 1, 8, 8), have a convolution, and at most `MOST` parameters, all of which
    the loss depends on. It is trained on `EXAMPLES` digits, `EPOCHS` times, and must then know `AT_LEAST` of others.
    These come from the digits to train on: the held-out ones are kept for your last word.

    Returns a `Finding` that names the first mistake. Errors of the network's own code are raised as they are.
    """
    if kind is None:
        return Finding(False, "not started", "write a class with __init__ and forward, as digits.Net.")
    if isinstance(kind, nn.Module):
        name = type(kind).__name__
        return Finding(False, "not a class", f"it takes the class and makes the network: {name}, not {name}().")
    nn.manual_seed(0)
    net = kind()
    if not isinstance(net, nn.Module):
        return Finding(False, "not a network", f"it must make an nn.Module, and made {type(net).__name__}.")
    training, validation = digits.datasets(validate=True)
    few = TensorDataset(*training[:EXAMPLES])
    fault = _form(net, few)
    return _result(net, few, validation) if fault is None else fault


def _form(net: nn.Module, few: TensorDataset) -> Finding | None:
    """What is wrong before any training, or None."""
    images, labels = few[:3]
    scores = net(Tensor(images))
    if not isinstance(scores, Tensor):
        said = f"forward must return the scores as a Tensor, and returned {type(scores).__name__}."
        return Finding(False, "no scores", said)
    if scores.shape != (3, 10):
        return Finding(False, "wrong shape", f"three images must have scores (3, 10), had {tuple(scores.shape)}.")
    if scores.node is None:
        return Finding(False, "nothing to train", "its scores depend on no parameter.")
    if lists := _with_lost_modules(net):
        said = f"the layers in {', '.join(lists)} are not found: write them into an nn.Sequential or into attributes."
        return Finding(False, "not found", said)
    values = scores.detach().numpy()
    if np.allclose(values.sum(axis=1), 1, atol=1e-4) and (values >= 0).all():
        said = "its scores are shares already. The loss takes scores, and makes the shares: leave the softmax out."
        return Finding(False, "softmax twice", said)
    F.cross_entropy(scores, Tensor(labels)).backward()
    parameters = dict(net.named_parameters())
    if idle := [name for name, one in parameters.items() if one.grad is None]:
        return Finding(False, "not used", f"the loss does not depend on {', '.join(idle)}: forward leaves it out.")
    net.zero_grad()
    if not any(isinstance(module, nn.Conv2d) for module in net.modules()):
        said = "it has no nn.Conv2d. A linear layer alone learns something from few digits, and then no more."
        return Finding(False, "no convolution", said)
    count = sum(one.size for one in parameters.values())
    if count > MOST:
        return Finding(False, "too many parameters", f"it has {count:,}, and {MOST:,} are allowed: look at nn.summary.")
    return None


def _with_lost_modules(net: nn.Module) -> list[str]:
    """The attributes whose lists, tuples or dictionaries hold a module that `nn.Module.modules` does not find."""
    found, lost = set(net.modules()), []
    for module in net.modules():
        for name, value in vars(module).items():
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if any(isinstance(one, nn.Module) and one not in found for one in inside):
                lost.append(name)
    return lost


def _result(net: nn.Module, few: TensorDataset, validation: TensorDataset) -> Finding:
    """What it knows after a short training."""
    losses: list[typing.Any] = [loss for _, loss in digits.train(net, few, EPOCHS, batch=BATCH)]
    if not np.isfinite(losses).all():
        return Finding(False, "diverged", f"the loss was {losses[-1]} in the end: look for what makes it so large.")
    known = digits.accuracy(net, validation)
    if known < AT_LEAST:
        said = f"it knows {known:.1%} of {len(validation)} others, and must know {AT_LEAST:.0%}; its losses were "
        said += f"{', '.join(f'{loss:.2f}' for loss in losses)}. Chance is 10 %. Can each layer see what it needs?"
        return Finding(False, "learns too little", said)
    count = sum(one.size for one in net.parameters())
    return Finding(True, "", f"right: {count:,} parameters know {known:.1%} of {len(validation)} others.")
