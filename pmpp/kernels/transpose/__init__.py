"""Transpose: the columns of a matrix become its rows.

No arithmetic at all: the subject is coalesced access to device memory, and the banks of shared memory.
The room is `pmpp.kernels.transpose.ladder`, and its chapter notebooks/16_transpose.ipynb.
"""

from pmpp.kernels.transpose.ladder import *
