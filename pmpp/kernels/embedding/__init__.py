"""Embedding: a row of a table for each index, and the table's gradient.

Forward it is a copy of scattered rows. Backward the rows of a frequent token are added to one another.
The rooms are `pmpp.kernels.embedding.ladder` and `pmpp.kernels.embedding.embedding_backward`, and their chapter is
notebooks/86_gradients_of_softmax.ipynb. `embedding` and `backward` take the rung to use; `check_indices` finds an index
that is no row.
"""

from pmpp.kernels.embedding import embedding_backward
from pmpp.kernels.embedding.ladder import *
from pmpp.kernels.embedding.ladder import vectorised
from pmpp.runtime.check import as_flag


def embedding(table, indices, *, out=None, stream=0):
    """The rows of ``table`` that ``indices`` name; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> embedding(np.float32([[1, 2], [3, 4]]), np.int64([1])).copy_to_host()
    array([[3., 4.]], dtype=float32)
    """
    return vectorised(table, indices, out=out, stream=stream)


def backward(dy, indices, rows, padding_idx=None, *, deterministic=True, out=None, stream=0):
    """The gradient of a table of ``rows``; arguments, result and errors as in `embedding_backward.grouped`.

    With ``deterministic`` (True or False) the same input gives the same bits. Without it float32 sums are by atomic
    additions, `embedding_backward.atomic`.

    >>> import numpy as np
    >>> backward(np.float32([[1, 2], [10, 20]]), np.int64([1, 1]), 2).copy_to_host()
    array([[ 0.,  0.],
           [11., 22.]], dtype=float32)
    """
    rung = embedding_backward.grouped if as_flag("deterministic", deterministic) else embedding_backward.atomic
    return rung(dy, indices, rows, padding_idx, out=out, stream=stream)
