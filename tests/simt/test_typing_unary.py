"""The interpreter's types, second half: unary operators, casts, builtins, math, names, scalars, range.

The method is the one of test_typing.py.
"""

import math
import operator

import numpy as np
import pytest

from pmpp.simt import cuda
from tests.support.seen_types import (
    FLOATS,
    REFUSED,
    TYPES,
    UNSIGNED,
    look,
    look_bits,
    numba_context,
    numba_result,
    observe,
    value,
    visible,
)


def floating(a):
    return "float32" if a == "float32" else "float64"


def widened(a):
    """The type of +a: arithmetic is done in 64-bit integers, or in the float type itself."""
    return a if a in FLOATS else "uint64" if a in UNSIGNED else "int64"


def signed(a):
    """The type of a with an int64."""
    return "float64" if a in FLOATS else "int64"


def device(function):
    return cuda.jit(device=True)(function)


@device
def neg(a):
    return -a


@device
def pos(a):
    return +a


@device
def invert(a):
    return ~a


@device
def not_(a):
    return not a


@device
def abs_(a):
    return abs(a)


@device
def round_(a):
    return round(a)


@device
def int_(a):
    return int(a)


@device
def float_(a):
    return float(a)


@device
def sqrt(a):
    return math.sqrt(a)


@device
def floor(a):
    return math.floor(a)


@device
def ceil(a):
    return math.ceil(a)


@device
def exp(a):
    return math.exp(a)


@device
def fabs(a):
    return math.fabs(a)


@device
def isnan(a):
    return math.isnan(a)


@device
def to_float32(a):
    return cuda.float32(a)


@device
def to_uint8(a):
    return np.uint8(a)


@device
def to_int64(a):
    return cuda.int64(a)


@device
def to_uint64(a):
    return cuda.uint64(a)


@device
def to_bool(a):
    return bool(a)


@device
def plus_one(a):
    return a + 1


@device
def doubled(a):
    return a * 2.0


@device
def squared(a):
    return a**2


@device
def one_shifted(a):
    return 1 << a


@device
def min_one(a):
    return min(a, 1)


@device
def summed_from_int(a):
    s = 0
    for _ in range(3):
        s += a
    return s


@device
def summed_from_float32(a):
    s = np.float32(0)
    for _ in range(3):
        s += a * a
    return s


UNARY = [
    (neg, operator.neg, widened),
    (pos, operator.pos, widened),
    (invert, operator.invert, lambda a: REFUSED if a in FLOATS else "bool" if a == "bool" else widened(a)),
    (not_, operator.not_, lambda a: "bool"),
    (abs_, abs, lambda a: "int8" if a == "bool" else a),
    (round_, round, lambda a: "int64"),
    (int_, int, lambda a: "int64" if a in FLOATS | {"bool"} else a),
    (float_, float, lambda a: REFUSED if a == "bool" else floating(a)),
    (sqrt, math.sqrt, floating),
    (exp, math.exp, floating),
    (fabs, math.fabs, floating),
    (floor, math.floor, floating),
    (ceil, math.ceil, floating),
    (isnan, math.isnan, lambda a: "bool"),
    (to_float32, None, lambda a: "float32"),
    (to_uint8, None, lambda a: "uint8"),
    (to_int64, None, lambda a: "int64"),
    (to_uint64, None, lambda a: "uint64"),
    (to_bool, bool, lambda a: "bool"),
    (plus_one, None, signed),
    (doubled, None, lambda a: "float64"),
    (squared, None, lambda a: a if a in FLOATS else "int64"),
    (one_shifted, None, lambda a: REFUSED if a in FLOATS else "int64"),
    (min_one, None, lambda a: REFUSED if a == "bool" else np.result_type(a, "int64").name),
    (summed_from_int, None, signed),
    (summed_from_float32, None, floating),
]
UNARY_IDS = [entry[0].py_func.__name__ for entry in UNARY]


def unary_kernel(function):
    @cuda.jit
    def kernel(a, seen):
        look(function(a[0]), seen)

    return kernel


def unary_bits_kernel(function):
    @cuda.jit
    def kernel(a, seen):
        look_bits(function(a[0]), seen)

    return kernel


@pytest.mark.parametrize("function, python, rule", UNARY, ids=UNARY_IDS)
def test_unary_result_type_of_every_type(function, python, rule):
    wrong = {}
    for a in TYPES:
        what = observe(unary_kernel, unary_bits_kernel, function, rule(a), value(a, 1))
        if what:
            wrong[a] = what
    assert wrong == {}


def test_the_rules_of_this_file_are_numbas():
    context, types = numba_context()
    wrong = {}
    for function, python, rule in UNARY:
        for a in TYPES if python else ():
            got = numba_result(context, python, (types[a],))
            if got != rule(a):
                wrong[function.py_func.__name__, a] = (got, rule(a))
    assert wrong == {}


@cuda.jit
def names_kernel(x, seen):
    look(cuda.threadIdx.x + 1, seen[0])
    look(cuda.blockDim.x, seen[1])
    look(cuda.laneid + 1, seen[2])
    look(cuda.warpsize, seen[3])
    look(cuda.grid(1) + 1, seen[4])
    look(cuda.gridsize(1), seen[5])
    look(len(x), seen[6])
    look(x.shape[0], seen[7])
    look(x.size, seen[8])
    look(cuda.popc(x[0]), seen[9])
    look(cuda.ffs(x[0]), seen[10])
    look(cuda.brev(x[0]), seen[11])
    look(cuda.activemask(), seen[12])
    look(cuda.lanemask_lt(), seen[13])
    look(cuda.ballot_sync(0xFFFFFFFF, x[0] > 0), seen[14])
    look(cuda.atomic.add(x, 0, 0), seen[15])
    look(cuda.shfl_sync(0xFFFFFFFF, x[0], 0), seen[16])
    look(cuda.selp(x[0] > 0, x[0], x[0]), seen[17])
    look(cuda.match_any_sync(0xFFFFFFFF, x[0]), seen[18])
    look(cuda.syncthreads_count(x[0]), seen[19])


def test_types_of_cuda_names_and_intrinsics():
    seen = np.zeros((20, 3))
    names_kernel[1, 1](np.array([5], np.int32), seen)
    unsigned = {10, 11, 12, 13}  # ffs, brev, activemask, lanemask_lt; ballot and match_any are int32
    wrong = {
        k: tuple(row) for k, row in enumerate(seen) if tuple(row) != visible("uint64" if k in unsigned else "int64")
    }
    assert wrong == {}


@cuda.jit
def scalar_kernel(x, seen):
    look(x, seen)


@pytest.mark.parametrize(
    "scalar, name",
    [
        (3, "int64"),
        (3.0, "float64"),
        (True, "int64"),
        (np.float32(3), "float32"),
        (np.uint8(3), "uint64"),
        (np.int16(3), "int64"),
        (np.uint64(3), "uint64"),
        (np.float64(3), "float64"),
    ],
    ids=repr,
)
def test_scalar_arguments_have_the_type_numba_gives_them(scalar, name):
    seen = np.zeros(3)
    scalar_kernel[1, 1](scalar, seen)
    assert tuple(seen) == visible(name)


@cuda.jit
def induction_kernel(n, seen):
    for i in range(n):
        look(i, seen[0])
    for i in range(0, n):  # noqa: PIE808
        look(i, seen[1])


@pytest.mark.parametrize("name", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_range_variable_is_unsigned_only_for_an_unsigned_stop(name):
    seen = np.zeros((2, 3))
    induction_kernel[1, 1](np.dtype(name).type(2), seen)
    assert tuple(seen[0]) == visible("uint64" if name in UNSIGNED else "int64")
    assert tuple(seen[1]) == visible("int64")  # the literal 0 is int64 and decides


def width_kernel(function):
    @cuda.jit
    def kernel(a, seen):
        seen[0] = cuda.clz(function(a[0]))

    return kernel


@pytest.mark.parametrize(
    "function", [abs_, int_, round_, to_uint8, to_int64, plus_one], ids=lambda f: f.py_func.__name__
)
def test_width_of_integer_results(function):
    rule = next(entry[2] for entry in UNARY if entry[0] is function)
    wrong = {}
    for a in TYPES:
        if rule(a) not in FLOATS:
            seen = np.zeros(1, np.int64)
            width_kernel(function)[1, 1](value(a, 1), seen)
            if seen[0] != np.dtype(rule(a)).itemsize * 8 - (2 if function is plus_one else 1):
                wrong[a] = (int(seen[0]), rule(a))
    assert wrong == {}
