"""Answers to the exercises of chapter 41: wrong ones with their mistakes, and other right ones."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- co_rank


@right("merge/co_rank")
@cuda.jit
def co_rank_from_the_other_side(a, b, out):
    """Searches for the last i whose a[i - 1] is among the first k."""
    k = cuda.grid(1)
    if k < out.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high + 1) // 2
            if a[i - 1] <= b[k - i]:
                low = i
            else:
                high = i - 1
        out[k] = low


@wrong("merge/co_rank", "equal elements exchanged")
@cuda.jit
def co_rank_b_first(a, b, out):
    k = cuda.grid(1)
    if k < out.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] <= a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


@wrong("merge/co_rank", "index out of bounds")
@cuda.jit
def co_rank_without_guard(a, b, out):
    k = cuda.grid(1)
    low, high = max(0, min(k, a.size + b.size) - b.size), min(k, a.size)
    while low < high:
        i = (low + high) // 2
        if b[min(k, a.size + b.size) - 1 - i] < a[i]:
            high = i
        else:
            low = i + 1
    out[k] = low


@wrong("merge/co_rank", "wrong result")
@cuda.jit
def co_rank_of_b(a, b, out):
    k = cuda.grid(1)
    if k < out.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = k - low


@wrong("merge/co_rank", "wrong result")
@cuda.jit
def co_rank_of_the_place_before(a, b, out):
    """How many of the outputs before the last one of k come from a."""
    k = cuda.grid(1)
    if k < out.size:
        before = max(0, k - 1)
        low, high = max(0, before - b.size), min(before, a.size)
        while low < high:
            i = (low + high) // 2
            if b[before - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


@wrong("merge/co_rank", "output not written")
@cuda.jit
def co_rank_without_the_last(a, b, out):
    k = cuda.grid(1)
    if k < a.size + b.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


@wrong("merge/co_rank", "missing guard")
@cuda.jit
def co_rank_of_the_whole_range(a, b, out):
    """Searches all of a, whatever k is."""
    k = cuda.grid(1)
    if k < out.size:
        low, high = 0, a.size
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


# -- ranks


@cuda.jit(device=True)
def less(x, value):
    """How many elements of x are less."""
    low, high = 0, x.size
    while low < high:
        middle = (low + high) // 2
        if x[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@cuda.jit(device=True)
def at_most(x, value):
    """How many elements of x are less or equal."""
    low, high = 0, x.size
    while low < high:
        middle = (low + high) // 2
        if x[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@right("merge/ranks")
@cuda.jit
def ranks_by_functions(a, b, out):
    t = cuda.grid(1)
    if t < a.size:
        out[t + less(b, a[t])] = a[t]
    elif t < out.size:
        out[t - a.size + at_most(a, b[t - a.size])] = b[t - a.size]


@right("merge/ranks")
@cuda.jit
def ranks_b_first(a, b, out):
    """Of equal integers nobody sees which of them comes first."""
    t = cuda.grid(1)
    if t < a.size:
        out[t + at_most(b, a[t])] = a[t]
    elif t < out.size:
        out[t - a.size + less(a, b[t - a.size])] = b[t - a.size]


@wrong("merge/ranks", "output not written")
@cuda.jit
def ranks_by_at_most_alone(a, b, out):
    """Equal elements of a and b leave places free, and others take places of their neighbours."""
    t = cuda.grid(1)
    if t < a.size:
        out[min(t + at_most(b, a[t]), out.size - 1)] = a[t]
    elif t < out.size:
        out[min(t - a.size + at_most(a, b[t - a.size]), out.size - 1)] = b[t - a.size]


@wrong("merge/ranks", "output not written")
@cuda.jit
def ranks_of_a_alone(a, b, out):
    t = cuda.grid(1)
    if t < a.size:
        out[t + less(b, a[t])] = a[t]


@wrong("merge/ranks", "missing guard")
@cuda.jit
def ranks_without_guard(a, b, out):
    t = cuda.grid(1)
    if t < a.size:
        out[t + less(b, a[t])] = a[t]
    else:
        out[t - a.size + at_most(a, b[t - a.size])] = b[t - a.size]


@wrong("merge/ranks", "race")
@cuda.jit
def ranks_in_the_other_alone(a, b, out):
    """The place in the other vector, without the own index."""
    t = cuda.grid(1)
    if t < a.size:
        out[less(b, a[t])] = a[t]
    elif t < out.size:
        out[at_most(a, b[t - a.size])] = b[t - a.size]


@wrong("merge/ranks", "wrong result")
@cuda.jit
def ranks_one_after_another(a, b, out):
    """Both vectors, b behind a."""
    t = cuda.grid(1)
    if t < a.size:
        out[t] = a[t]
    elif t < out.size:
        out[t] = b[t - a.size]
