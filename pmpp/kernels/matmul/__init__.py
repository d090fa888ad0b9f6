"""Matrix multiplication: C = A @ B in float32.

The ladder goes from one thread an element of C to tiles in shared memory and in registers.
The room is `pmpp.kernels.matmul.ladder`, and its chapter notebooks/12_matmul.ipynb. A matrix times a vector is the room
`pmpp.kernels.matmul.matvec`, of notebooks/32_matrix_vector.ipynb. `pmpp.kernels.matmul.fitted` is the room of
notebooks/36_products_of_any_shape.ipynb: a tile for each shape, and long sums that several blocks share.
`pmpp.kernels.matmul.batched` multiplies many matrices at once, for convolutions that become such products.
`matmul` takes the rung to use.
"""

from pmpp.kernels.common import blocks
from pmpp.kernels.matmul.ladder import *
from pmpp.kernels.matmul.ladder import TILE, arguments, coarsened, prefetched, tiled
from pmpp.runtime import device


def matmul(a, b, *, out=None, stream=0):
    """The product of two matrices; arguments, result and errors as in `prefetched`.

    >>> import numpy as np
    >>> matmul(np.float32([[1, 2]]), np.float32([[3], [4]])).copy_to_host()
    array([[11.]], dtype=float32)
    """
    p = arguments(a, b, out=out, stream=stream)
    return _rung_for(*p.result.shape, device.limits()["multiprocessors"]).run(p)


def _rung_for(m, n, multiprocessors):
    """The fastest rung for a product of M x N on a GPU of so many multiprocessors.

    Large tiles are fast, but a small product has too few of them. The limits lie halfway, by ratio, between the sizes
    at which the record of an H200 (`pmpp.recorded`) has one rung ahead and then the next.

    >>> [_rung_for(n, n, multiprocessors=132).name for n in (256, 512, 1024)]
    ['tiled', 'coarsened', 'prefetched']
    """
    tiles = blocks(m, TILE) * blocks(n, TILE)
    if tiles <= multiprocessors:
        return tiled
    return coarsened if tiles <= 4 * multiprocessors else prefetched
