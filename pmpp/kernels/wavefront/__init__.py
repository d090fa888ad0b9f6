"""Wavefronts: tables in which each cell waits for its neighbours, and paths that grow by one vertex after another.

The rooms are `pmpp.kernels.wavefront.alignment` and `pmpp.kernels.wavefront.shortest_paths`, and their chapter is
notebooks/47_wavefronts.ipynb. `score` and `distances` are the functions to use. `align` also says which letters stand
side by side.
"""

from pmpp.kernels.wavefront import alignment, shortest_paths, traceback

score = alignment.many_pairs
align = traceback.align

FEW = 512  # vertices up to which the large tiles of `by_fours` are too few for a GPU, if they are more than one


def distances(weights, *, out=None, stream=0):
    """The distances from every vertex of a graph to every other: arguments, result and errors of `shortest_paths`.

    A step is as slow as a block with its tile. So a graph that fits into one tile is done by the rung whose tile is
    just large enough, one of a few tiles by the rung with small tiles, and a large one by `by_fours`.

    >>> import numpy as np
    >>> distances(np.float32([[0, 1, 9], [np.inf, 0, 2], [np.inf, np.inf, 0]])).copy_to_host()[0]
    array([0., 1., 3.], dtype=float32)
    """
    p = shortest_paths.arguments(weights, out=out, stream=stream)
    n = p.result.shape[0]
    if n <= shortest_paths.SIDE or shortest_paths.WIDE < n <= FEW:
        return shortest_paths.blocked.run(p)
    return (shortest_paths.in_pieces if n <= shortest_paths.STEP else shortest_paths.by_fours).run(p)
