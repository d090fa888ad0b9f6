"""Products with 2:4 sparsity: of each four neighbours in a row of a matrix two are stored and multiplied.

The room is `pmpp.kernels.sparsity.ladder`, and its chapter notebooks/79_sparsity.ipynb. `prune` keeps the two largest
of each four numbers, `decompress` makes the dense matrix of them, and `multiply` is the rung to use.
"""

from pmpp.kernels.sparsity.compressed import Pruned, decompress, prune
from pmpp.kernels.sparsity.ladder import *
from pmpp.kernels.sparsity.ladder import fed

multiply = fed

__all__ = ["Pruned", "decompress", "multiply", "prune"]
