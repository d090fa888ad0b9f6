"""Matrix multiplication: C = A @ B in float32.

The ladder goes from one thread an element of C to tiles in shared memory and in registers.
The room is `pmpp.kernels.matmul.ladder`, and its chapter notebooks/12_matmul.ipynb. A matrix times a vector is the room
`pmpp.kernels.matmul.matvec`, of notebooks/32_matrix_vector.ipynb. `pmpp.kernels.matmul.fitted` is the room of
notebooks/36_products_of_any_shape.ipynb: a tile for each shape, and long sums that several blocks share.
`pmpp.kernels.matmul.fused` is the room of notebooks/39_fused_and_batched_products.ipynb: many products at once, of any
strides, with a bias, a residual and an activation. `pmpp.kernels.matmul.tensor_cores` is the room of
notebooks/40_tensor_cores.ipynb: products of float16. `pmpp.kernels.matmul.warpgroups` is the room of
notebooks/43_warpgroups.ipynb: the same by instructions that only a Hopper GPU has. `pmpp.kernels.matmul.batched`
multiplies many matrices at once, for convolutions that become such products.
`matmul` takes the room that fits the shape, and its last rung.
"""

from pmpp.kernels.matmul import fitted, matvec
from pmpp.kernels.matmul.ladder import *
from pmpp.kernels.matmul.ladder import arguments, prefetched
from pmpp.runtime.rung import Problem
from pmpp.runtime.views import strided


def matmul(a, b, *, out=None, stream=0):
    """The product of two matrices of any shape; arguments, result and errors as in `tiled`.

    The same call gives the same bits on the same GPU.

    >>> import numpy as np
    >>> matmul(np.float32([[1, 2]]), np.float32([[3], [4]])).copy_to_host()
    array([[11.]], dtype=float32)
    """
    p = arguments(a, b, out=out, stream=stream)
    p.a_c, p.b_c = (x.strides[1] == x.dtype.itemsize for x in (p.a, p.b))  # which is what `fitted` asks besides
    if 1 in p.result.shape and p.a.size and p.b.size:
        return _with_a_vector(p)
    fits = max(p.a.size, p.b.size) <= fitted.MOST_ELEMENTS
    return (fitted.split_k if fits else prefetched).run(p)


def _with_a_vector(p):
    """The product if one operand is a vector. A row times B is B, transposed, times the row: nothing is copied."""
    row_first = p.result.shape[1] > 1
    matrix, vector, by_rows = (p.b, p.a, not p.b_c) if row_first else (p.a, p.b, p.a_c)
    m, n = matrix.shape[::-1] if row_first else matrix.shape
    a = strided(matvec.memory(matrix), (m, n), (n, 1) if by_rows else (1, m))
    y = p.result.reshape(-1)
    matvec.split.run(Problem(y, stream=p.stream, a=a, x=matvec.memory(vector), by_rows=by_rows or n == 1))
    return p.result
