"""Products with 2:4 sparsity: of each four neighbours in a row of a matrix two are stored and multiplied.

The room is `pmpp.kernels.sparsity.ladder`, and its chapter notebooks/79_sparsity.ipynb. `prune` keeps the two largest
of each four numbers, `decompress` makes the dense matrix of them, and `multiply` is the function to use.
"""

from pmpp.kernels.sparsity.compressed import Pruned, decompress, prune
from pmpp.kernels.sparsity.ladder import *
from pmpp.kernels.sparsity.ladder import arguments, shared_k, warpgroups

FEW = 16  # columns of x, up to which memory is the bound


def multiply(values, metadata, x, *, out=None, stream=0):
    """y = w @ x, where w has 2:4 sparsity, by the rung for so many columns of x. The arguments are those of each rung.

    >>> import numpy as np
    >>> values, metadata = prune(np.float16([[3, 0, 0, 1], [0.5, 2, -1, 1]]))
    >>> multiply(values, metadata, np.float16([[1], [10], [100], [1000]])).copy_to_host()
    array([[1003.],
           [ -80.]], dtype=float32)
    """
    p = arguments(values, metadata, x, out=out, stream=stream)
    if p.result.size:
        (shared_k if p.result.shape[1] <= FEW else warpgroups).launch(p)
    return p.result


__all__ = ["Pruned", "decompress", "multiply", "prune"]
