"""PyTorch's tensors of NumPy arrays and back, bfloat16 included, which PyTorch does not exchange with NumPy."""

import numpy as np

from pmpp.runtime.dtypes import BFLOAT16


def tensor_of(torch, x):
    """A copy of a NumPy array on the GPU."""
    if BFLOAT16 is not None and x.dtype == BFLOAT16:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(x).cuda()


def array_of(torch, tensor):
    """A copy of a tensor as a NumPy array."""
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().contiguous().view(torch.int16).numpy().view(BFLOAT16)
    return tensor.cpu().numpy()
