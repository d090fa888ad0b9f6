"""Sparse matrices: most elements are zero, and only the others are stored and multiplied.

Two rooms: `pmpp.kernels.sparse.ladder` multiplies a matrix by compressed rows by a vector, and
`pmpp.kernels.sparse.spmm` by a dense matrix. Their chapter is notebooks/44_sparse.ipynb. The functions to
use are `multiply` and `multiply_matrix`. `pmpp.kernels.sparse.formats` has other formats, and makes each of compressed
rows and compressed rows of each; how the product in tiles works is in `pmpp.kernels.sparse.propagation_blocking`.
"""

from pmpp.kernels.sparse import spmm
from pmpp.kernels.sparse.ladder import *
from pmpp.kernels.sparse.ladder import merged

multiply = merged
multiply_matrix = spmm.balanced
