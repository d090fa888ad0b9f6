"""Sort: the keys of a vector in order, alone or with a value beside each.

The rooms are `pmpp.kernels.sort.ladder`, keys; `pmpp.kernels.sort.pairs`, values in the order of their keys;
`pmpp.kernels.sort.selection`, the greatest keys; and `pmpp.kernels.sort.segments`, many short vectors. Their chapter is
notebooks/42_sorting.ipynb. `sort`, `argsort`, `sort_pairs`, `top_k` and `sort_segments` are the functions to use.
"""

from pmpp.kernels.sort import pairs, segments, selection
from pmpp.kernels.sort.digits import turn_of
from pmpp.kernels.sort.ladder import *
from pmpp.kernels.sort.ladder import arguments, one_sweep
from pmpp.runtime.check import as_flag


def sort(x, descending=False, *, out=None, stream=0):
    """The keys of a vector in ascending order, or in descending order.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^32, of int32, uint32 or float32.
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


def sort_pairs(keys, values, descending=False, *, stream=0):
    """The keys of a vector in order, and a value moved with each of them.

    Args:
        keys: a contiguous vector (n,), 0 <= n < 2^32, of int32, uint32 or float32.
        values: another one of one of these dtypes, one for each key.
        descending: True for the greatest key first.
        stream: the stream to work on.

    Returns ``keys, values``, two new device arrays (n,), without waiting for the work to be done. Equal keys keep their
    order, both ways. NaNs come last, and descending they come first.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> keys, values = sort_pairs(np.int32([3, 1, 3]), np.float32([0.5, 0.25, 0.75]), descending=True)
    >>> keys.copy_to_host(), values.copy_to_host()
    (array([3, 3, 1], dtype=int32), array([0.5 , 0.75, 0.25], dtype=float32))
    """
    p = pairs.arguments(keys, values, stream=stream)
    p.turn = turn_of(p.x.dtype, as_flag("descending", descending))
    p.finish = pairs.return_both
    return pairs.one_sweep.run(p) if p.x.size else pairs.Pairs(p.keys_out, p.result)


def argsort(x, descending=False, *, stream=0):
    """The order of a vector's keys: ``x[argsort(x)]`` is sorted.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of int32, uint32 or float32.
        descending: True for the greatest key first.
        stream: the stream to work on.

    Returns a new device array (n,) of int32, without waiting for the work to be done. Equal keys keep their order, both
    ways. NaNs come last, and descending they come first.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> argsort(np.float32([0.5, -2, 0.5, 1])).copy_to_host()
    array([1, 0, 2, 3], dtype=int32)
    """
    p = pairs.numbered(x, stream=stream)
    p.turn = turn_of(p.x.dtype, as_flag("descending", descending))
    return pairs.one_sweep.run(p)


def top_k(x, k, *, stream=0):
    """The k greatest keys of a vector, and where they are.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of int32, uint32 or float32.
        k: how many keys to choose, from 0 to n.
        stream: the stream to work on.

    Returns ``keys, values``, two new device arrays (k,), without waiting for the work to be done: the greatest key
    first, and as its value its number in ``x``, an int32. Of equal keys the first one comes first. NaN is greater than
    all others, as in PyTorch.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> keys, values = top_k(np.float32([0.5, 9, -2, 9, 1]), 3)
    >>> keys.copy_to_host(), values.copy_to_host()
    (array([9., 9., 1.], dtype=float32), array([1, 3, 4], dtype=int32))
    """
    p = selection.arguments(x, k, stream=stream)
    p.finish = pairs.return_both
    return selection.by_digits.run(p) if p.k else pairs.Pairs(p.keys_out, p.result)


def sort_segments(x, starts, values=None, descending=False, longest=None, *, stream=0):
    """Each segment of a vector in order by itself, alone or with a value beside each key.

    Args:
        x: the keys, a contiguous vector (n,), 0 <= n < 2^31, of int32, uint32 or float32.
        starts: a contiguous vector (s + 1,), s >= 0, of int32 or int64. Segment k is x[starts[k]:starts[k + 1]]. The
            first one is 0, the last one n, and none less than the one before. That is checked of a NumPy array. Of what
            is on the device it is not, as the check would wait for the GPU.
        values: a contiguous vector (n,) of int32, uint32 or float32 that is moved with the keys, or None.
        descending: True for the greatest key of each segment first.
        longest: the length of the longest segment, or more, from 0 to n; None to find it out, which waits for the GPU.
            It is checked if ``starts`` is. If it is not, and a segment is longer, that one may keep the order that it
            has.
        stream: the stream to work on.

    Returns a new device array (n,), or two, ``keys, values``, without waiting for the sort to be done. Equal keys keep
    their order, both ways. NaNs come last, and descending they come first. It is fast if no segment has more than 2,048
    keys; otherwise all keys are sorted twice.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> sort_segments(np.int32([5, -1, 4, 9, 3]), np.int32([0, 3, 5]), descending=True).copy_to_host()
    array([ 5,  4, -1,  9,  3], dtype=int32)
    """
    p = segments.arguments(x, starts, values, descending, longest, stream=stream)
    if longest is None and p.x.size > segments.LONGEST:
        p.longest = segments.length_of_longest(p)
    return segments.in_warps.run(p)
