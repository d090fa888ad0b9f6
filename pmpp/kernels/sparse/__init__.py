"""Sparse matrices: most elements are zero, and only the others are stored and multiplied.

The room is `pmpp.kernels.sparse.ladder`, and its chapter notebooks/44_sparse.ipynb.
`multiply` is the function to use: a matrix by compressed rows, times a vector.
"""

from pmpp.kernels.sparse.ladder import *
from pmpp.kernels.sparse.ladder import merged

multiply = merged
