"""Sort: the keys of a vector in order.

The room is `pmpp.kernels.sort.ladder`, and its chapter notebooks/42_sorting.ipynb.
`sort` is the function to use.
"""

from pmpp.kernels.sort.digits import turn_of
from pmpp.kernels.sort.ladder import *
from pmpp.kernels.sort.ladder import arguments, one_sweep
from pmpp.runtime.check import as_flag


def sort(x, descending=False, *, out=None, stream=0):
    """The keys of a vector in ascending order, or in descending order.

    Args:
        x: a contiguous vector (n,), n >= 0, of int32, uint32 or float32.
        descending: True for the greatest key first.
        out: a contiguous device array (n,) of that dtype for the result, apart from ``x`` in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns a device array (n,) of ``x``'s dtype, without waiting for the work to be done. -0 and 0 are equal, and so
    are all NaNs. These come last, and descending they come first, as in PyTorch. Equal keys keep their order, both
    ways.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> sort(np.float32([2, -1, 7])).copy_to_host()
    array([-1.,  2.,  7.], dtype=float32)
    >>> sort(np.float32([2, -1, 7]), descending=True).copy_to_host()
    array([ 7.,  2., -1.], dtype=float32)
    """
    p = arguments(x, out=out, stream=stream)
    p.turn = turn_of(p.x.dtype, as_flag("descending", descending))
    return one_sweep.run(p)
