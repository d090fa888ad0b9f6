"""Clusters of blocks: blocks that run at the same time, and use one another's shared memory.

Their room is layer normalisation of long rows: a row is kept by a cluster, and read from memory once. It is
`pmpp.kernels.clusters.ladder`, and its chapter notebooks/56_clusters.ipynb. The instructions are in
`pmpp.runtime.clusters`.
`layer_norm` takes the rung to use for rows of any length.
"""

from pmpp.kernels.clusters.ladder import *
from pmpp.kernels.clusters.ladder import arguments, in_registers, pipelined, read_twice


def layer_norm(x, weight, bias, eps=1e-5, *, return_moments=False, out=None, stream=0):
    """Normalise every row of a matrix; arguments, result and errors as in `pmpp.kernels.normalisation.layernorm`.

    A row of float32 is kept by a cluster of blocks where that was faster on an H200: if it has more than 32,768
    elements, and at most 131,072, or 262,144 if there are at most 128 rows. All others, and all on a GPU without
    clusters, are normalised by `layernorm.vectorised`.

    >>> import numpy as np
    >>> layer_norm(np.float32([[1, 3]]), np.float32([1, 2]), np.float32([0, 5]), eps=0).copy_to_host()
    array([[-1.,  7.]], dtype=float32)
    """
    p = arguments(x, weight, bias, eps, return_moments=return_moments, out=out, stream=stream)
    if p.x.dtype != "float32" or p.columns <= 2**15:
        return read_twice.run(p)
    if p.rows <= 128 and p.columns <= 2**18:
        return in_registers.run(p)
    return (pipelined if p.columns <= 2**17 else read_twice).run(p)
