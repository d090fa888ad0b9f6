"""Scan: the running sum, or the running maximum, of a vector.

Each result needs all elements before it. `pmpp.kernels.scan.segmented` scans many vectors of unequal length at once.
The room is `pmpp.kernels.scan.ladder`, and its chapter notebooks/34_scan.ipynb.
`cumsum` and `cummax` call `vectorised`, the last rung. `segmented_scan` starts a new scan at each segment.
"""

from pmpp.kernels.scan import segmented
from pmpp.kernels.scan.ladder import *
from pmpp.kernels.scan.ladder import vectorised

segmented_scan = segmented.segmented_scan


def cumsum(x, *, exclusive=False, stream=0):
    """The running sum of a vector, in its own dtype; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> cumsum(np.int32([3, 1, 4])).copy_to_host()
    array([3, 4, 8], dtype=int32)
    """
    return vectorised(x, "sum", exclusive=exclusive, stream=stream)


def cummax(x, *, exclusive=False, stream=0):
    """The running maximum of a vector; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> cummax(np.int32([3, 1, 4])).copy_to_host()
    array([3, 3, 4], dtype=int32)
    """
    return vectorised(x, "max", exclusive=exclusive, stream=stream)
