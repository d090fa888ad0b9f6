"""`cuda.reduce` combines in Numba's order: `in_numbas_order` says it again, one element after another."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

THREADS, WARP = 128, 32


def tree(values, combine):
    values, width = list(values), len(values) // 2
    while width:
        for lane in range(width):
            values[lane] = combine(values[lane], values[lane + width])
        width //= 2
    return values[0]


def of_a_short_block(values, combine):
    found = []
    for start in range(0, len(values), WARP):
        part = values[start : start + WARP]
        if start + WARP < len(values):
            found.append(tree(part, combine))
        else:
            total = part[0]
            for value in part[1:]:
                total = combine(total, value)
            found.append(total)
    total = found[0]
    for value in found[1:]:
        total = combine(total, value)
    return total


def in_numbas_order(x, combine, init):
    whole = len(x) // THREADS * THREADS
    blocks = min(whole // THREADS, 64)
    partial = []
    for b in range(blocks):
        values = []
        for t in range(THREADS):
            mine = x[:whole][b * THREADS + t :: THREADS * blocks]
            total = mine[0]
            for value in mine[1:]:
                total = combine(total, value)
            values.append(total)
        warps = [tree(values[w : w + WARP], combine) for w in range(0, THREADS, WARP)]
        partial.append(combine(combine(warps[0], warps[2]), combine(warps[1], warps[3])))
    if whole < len(x):
        partial.append(of_a_short_block(list(x[whole:]), combine))
    partial[0] = combine(partial[0], init)
    return partial[0] if len(partial) == 1 else of_a_short_block(partial, combine)


add = cuda.reduce(lambda a, b: a + b)


@cuda.reduce
def larger(a, b):
    return max(a, b)


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 127, 128, 129, 200, 256, 1000, 128 * 65 + 7])
def test_sums_are_rounded_as_numbas(n, rng):
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(np.float32)
    found = add(x, init=2)
    assert found.dtype == np.float32
    assert found == in_numbas_order(x, lambda a, b: np.float32(a + b), np.float32(2))


@pytest.mark.parametrize("n", [1, 40, 128, 300])
def test_it_takes_any_function_and_arrays_of_the_device(n, rng):
    x = rng.integers(-1000, 1000, n)
    assert larger(cuda.to_device(x), init=-5000) == x.max()
    assert add(x, size=n // 2 + 1) == x[: n // 2 + 1].sum()
    res = cuda.to_device(np.zeros(2, x.dtype))
    assert add(x, res=res, init=3) is None
    assert res.copy_to_host().tolist() == [x.sum() + 3, 0]


def test_what_it_refuses():
    assert add(np.zeros(0), init=4) == 4
    with pytest.raises(TypeError, match="1D"):
        add(np.zeros((2, 2)))
    with pytest.raises(simt.ArgumentError, match="arr is list"):
        add([1, 2])
    with pytest.raises(simt.UnsupportedError, match="write the kernel that it stands for, one thread an element"):
        cuda.vectorize(["float32(float32)"])
