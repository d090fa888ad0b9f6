"""Filter: the elements of a vector that are above a threshold, or that any other condition holds for.

The room is `pmpp.kernels.filter.ladder`, and its chapter notebooks/35_filter.ipynb.
`compact` is the function to use. It waits for the GPU, since the length of its result depends on the values.
"""

from pmpp.kernels.filter.ladder import *
from pmpp.kernels.filter.ladder import arguments, single_pass


def compact(x, threshold=0, keep=None, *, stream=0):
    """The elements of a vector that are kept, in their order.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32 or int32.
        threshold: a number of x's dtype.
        keep: a device function ``keep(value, threshold)`` that is true for what is kept, or None: what is above the
            threshold. Its kernels are compiled once.
        stream: the stream to work on.

    Returns a device array of x's dtype: a view of the first elements of one of x's length, which it keeps alive. Its
    length depends on the values, so this waits for the GPU. `single_pass` does not, and returns the count beside it.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> compact(np.int32([3, -1, 0, 5])).copy_to_host()
    array([3, 5], dtype=int32)
    """
    p = arguments(x, threshold, stream=stream)
    if keep is not None:
        if not callable(keep) or not hasattr(keep, "py_func"):
            raise TypeError(f"keep must be a device function, under @cuda.jit(device=True), or None, was {keep!r}")
        p.keep = keep
    single_pass.run(p)
    if p.stream:
        p.stream.synchronize()
    return p.result.trimmed()
