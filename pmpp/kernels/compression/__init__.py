"""Compression: what a layer keeps for its backward pass in 8, 4 or 2 bits a number, and ReLU's in one.

The room is `pmpp.kernels.compression.ladder`, and its chapter notebooks/85_compressed_activations.ipynb. `compress` is
its rung to use, and `decompress` goes the way back. `signs` keeps a bit for each number, which is all that the gradient
of ReLU needs, and `masked` is that gradient.
"""

from pmpp.kernels.compression.ladder import *
from pmpp.kernels.compression.ladder import paired
from pmpp.kernels.compression.restore import decompress, masked, signs

compress = paired

__all__ = ["compress", "decompress", "masked", "signs"]
