"""This workbook's kernels inside other libraries, and their arrays here. A library is imported when it is used.

- `dlpack`: the protocol by which arrays are lent, written out; `lend` lends a device array to any library.
- `operators`: kernels as operators of PyTorch, with gradients, for `torch.compile`.
- `jax_functions`: a kernel within JAX.

Chapter: notebooks/95_inside_other_libraries.ipynb.
"""

import os

from pmpp.nn.interop.dlpack import Look, lend, look

__all__ = ["Look", "lend", "look"]

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of a GPU's memory at its first call
