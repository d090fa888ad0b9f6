"""Reduction: the sum, the maximum or the minimum of a vector.

The threads of a block and the blocks of a grid agree on one number: trees, warp shuffles, atomics, and a result that is
the same in every run.
The room is `pmpp.kernels.reduction.ladder`, and its chapter notebooks/30_reduction.ipynb.
"""

from pmpp.kernels.reduction.ladder import *
