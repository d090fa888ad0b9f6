"""Potential: what all charges together do at the points of a grid.

The rooms are `pmpp.kernels.potential.ladder`, for all pairs, and `pmpp.kernels.potential.cutoff`, for those within a
cutoff. Their chapter is notebooks/48_electrostatic_potential.ipynb.
`of_charges` is the function to use for all pairs, and `cutoff.by_box` the one with a cutoff.
"""

from pmpp.kernels.potential.ladder import *
from pmpp.kernels.potential.ladder import arguments, in_tiles, on_both_units
from pmpp.runtime.device import limits

FEW = 1024  # points for each multiprocessor: with fewer, threads with several points are too few


def of_charges(atoms, shape, spacing=1.0, softening=1e-6, *, out=None, stream=0):
    """The potential of all charges at all points; arguments, result and errors as in `on_both_units`.

    With few points a thread takes one of them, and with many a thread takes several.

    >>> import numpy as np
    >>> of_charges(np.float32([[0, 0, 0, 2]]), (1, 1, 3), spacing=2.0, softening=1.0).copy_to_host().round(4)
    array([[[2.    , 0.8944, 0.4851]]], dtype=float32)
    """
    p = arguments(atoms, shape, spacing, softening, out=out, stream=stream)
    few = p.result.size < FEW * limits()["multiprocessors"]
    return (in_tiles if few else on_both_units).run(p)
