"""Filter: the elements of a vector that are above a threshold, or that any other condition holds for; and its kin.

The rooms are `pmpp.kernels.filter.ladder`, which keeps elements; `pmpp.kernels.filter.partition`, which puts them
first; `pmpp.kernels.filter.runs`, of equal neighbours the first one and how many they are; and
`pmpp.kernels.filter.repeat`, which undoes that. Their chapter is notebooks/35_filter.ipynb.
`compact`, `parted`, `unique`, `run_lengths` and `repeated` are the functions to use. All but the last one wait for the
GPU, since the length of their result depends on the values.
"""

import inspect

from pmpp.kernels.filter import partition, repeat, runs
from pmpp.kernels.filter.ladder import *
from pmpp.kernels.filter.ladder import arguments, single_pass


def compact(x, threshold=0, keep=None, *, stream=0):
    """The elements of a vector that are kept, in their order.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32 or int32.
        threshold: a number of x's dtype.
        keep: a device function ``keep(value, threshold)`` that returns a bool, or an integer that is not 0 for what is
            kept; or None: what is above the threshold. Its kernels are compiled once.
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
        takes = inspect.signature(keep.py_func).parameters
        if len(takes) != 2:
            raise TypeError(f"keep must take two arguments, a value and the threshold, was {keep!r} of {len(takes)}")
        p.keep = keep
    single_pass.run(p)
    if p.stream:
        p.stream.synchronize()
    return p.result.trimmed()


repeated = repeat.by_tiles


def parted(x, threshold=0, *, stream=0):
    """The elements of a vector that are above a threshold, and all others, both in their order.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32 or int32.
        threshold: a number of x's dtype.
        stream: the stream to work on.

    Returns two device arrays of x's dtype, which have n elements together: neighbours in one array, which they keep
    alive. It waits for the GPU. `partition.single_pass` does not, and returns the count beside the array.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> above, others = parted(np.int32([3, -1, 0, 5]))
    >>> above.copy_to_host(), others.copy_to_host()
    (array([3, 5], dtype=int32), array([-1,  0], dtype=int32))
    """
    p = partition.arguments(x, threshold, stream=stream)
    partition.single_pass.run(p)
    if p.stream:
        p.stream.synchronize()
    values, count = p.result
    kept = int(count.copy_to_host()[0])
    return values[:kept], values[kept:]


def unique(x, *, stream=0):
    """Of equal neighbours the first one: of a sorted vector all different values.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of float32 or int32.
        stream: the stream to work on.

    Returns a device array of x's dtype. It waits for the GPU. `runs.single_pass` does not, and returns the count. As
    numbers compare, -0 equals 0, and a NaN equals nothing.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> unique(np.int32([1, 1, 4, 7, 7])).copy_to_host()
    array([1, 4, 7], dtype=int32)
    """
    return _runs_of(x, False, stream)[0]


def run_lengths(x, *, stream=0):
    """The runs of a vector: the value of each stretch of equal neighbours, and how long it is.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of float32 or int32.
        stream: the stream to work on.

    Returns two device arrays of equal length: values of x's dtype, and lengths of int32. It waits for the GPU.
    `repeated` makes the vector of them again. As numbers compare, -0 equals 0, and a NaN equals nothing.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> values, lengths = run_lengths(np.int32([5, 5, 2, 5]))
    >>> values.copy_to_host(), lengths.copy_to_host()
    (array([5, 2, 5], dtype=int32), array([2, 1, 1], dtype=int32))
    """
    return _runs_of(x, True, stream)


def _runs_of(x, lengths, stream):
    p = runs.arguments(x, lengths, stream=stream)
    runs.single_pass.run(p)
    if p.stream:
        p.stream.synchronize()
    return p.result.trimmed()
