"""The interpreter's arithmetic types are Numba's, not NumPy's.

`BINARY` states Numba's result types. One test asks the installed numba-cuda whether the rules are right (no GPU is
needed for that), another asks the interpreter. A type is seen from inside a kernel by what arithmetic does to it:
unsigned values wrap at zero, integers wrap at 2**64, float32 has a short 1/3.
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
)

PAIRS = [(a, b) for a in TYPES for b in TYPES]
EXACT_IN_FLOAT32 = {"bool", "int8", "int16", "uint8"}  # the ints that leave a float32 expression float32; not uint16


def arithmetic(a, b):
    if "float64" in (a, b):
        return "float64"
    if "float32" in (a, b):
        return "float32" if {a, b} - {"float32"} <= EXACT_IN_FLOAT32 else "float64"
    return "uint64" if {a, b} <= UNSIGNED else "int64"


def true_division(a, b):
    return arithmetic(a, b) if FLOATS & {a, b} else "float64"


def power(a, b):
    if (a, b) == ("bool", "int32"):
        return "float32"  # an accident of Numba's overload resolution
    return "float32" if a == "float32" and b != "float64" else arithmetic(a, b)


def bits(a, b):
    if FLOATS & {a, b}:
        return REFUSED
    return "bool" if a == b == "bool" else arithmetic(a, b)


def shift(a, b):
    return REFUSED if FLOATS & {a, b} else arithmetic(a, a)


def unify(a, b):
    """The type of a variable that is `a` on one path and `b` on another."""
    return np.result_type(a, b).name


def smallest(a, b):
    return REFUSED if a != b and "bool" in (a, b) else unify(a, b)


def math_pow(a, b):
    if a in EXACT_IN_FLOAT32 | {"float32"}:
        narrow = EXACT_IN_FLOAT32 | {"float32", "int32"} | ({"uint16"} if a == "float32" else set())
        return "float32" if b in narrow else "float64"
    return "float64"


def narrow_math(a, b):
    return "float32" if {a, b} <= EXACT_IN_FLOAT32 | {"float32"} else "float64"


def wide_math(a, b):
    return narrow_math(a, b) if "float32" in (a, b) else "float64"


def comparison(a, b):
    return "bool"


def device(function):
    return cuda.jit(device=True)(function)


@device
def add(a, b):
    return a + b


@device
def sub(a, b):
    return a - b


@device
def mul(a, b):
    return a * b


@device
def truediv(a, b):
    return a / b


@device
def floordiv(a, b):
    return a // b


@device
def mod(a, b):
    return a % b


@device
def pow_(a, b):
    return a**b


@device
def and_(a, b):
    return a & b


@device
def or_(a, b):
    return a | b


@device
def xor(a, b):
    return a ^ b


@device
def lshift(a, b):
    return a << b


@device
def rshift(a, b):
    return a >> b


@device
def lt(a, b):
    return a < b


@device
def ne(a, b):
    return a != b


@device
def smaller(a, b):
    return min(a, b)


@device
def larger(a, b):
    return max(a, b)


@device
def math_power(a, b):
    return math.pow(a, b)


@device
def fmod(a, b):
    return math.fmod(a, b)


@device
def copysign(a, b):
    return math.copysign(a, b)


@device
def atan2(a, b):
    return math.atan2(a, b)


@device
def hypot(a, b):
    return math.hypot(a, b)


@device
def conditional(a, b):
    return a if b else b


@device
def branches(a, b):
    if a < b:
        r = a
    else:
        r = b
    return r


@device
def two_returns(a, b):
    if b:
        return b
    return a


@device
def logical_and(a, b):
    return a and b


@device
def logical_or(a, b):
    return a or b


# device function, what it is in Python, rule
BINARY = [
    (add, operator.add, arithmetic),
    (sub, operator.sub, arithmetic),
    (mul, operator.mul, arithmetic),
    (truediv, operator.truediv, true_division),
    (floordiv, operator.floordiv, arithmetic),
    (mod, operator.mod, arithmetic),
    (pow_, operator.pow, power),
    (and_, operator.and_, bits),
    (or_, operator.or_, bits),
    (xor, operator.xor, bits),
    (lshift, operator.lshift, shift),
    (rshift, operator.rshift, shift),
    (lt, operator.lt, comparison),
    (ne, operator.ne, comparison),
    (smaller, min, smallest),
    (larger, max, smallest),
    (math_power, math.pow, math_pow),
    (fmod, math.fmod, narrow_math),
    (copysign, math.copysign, narrow_math),
    (atan2, math.atan2, wide_math),
    (hypot, math.hypot, wide_math),
    (conditional, None, unify),
    (branches, None, unify),
    (two_returns, None, unify),
    (logical_and, None, unify),
    (logical_or, None, unify),
]
BINARY_IDS = [entry[0].py_func.__name__ for entry in BINARY]


def binary_kernel(function):
    @cuda.jit
    def kernel(a, b, seen):
        look(function(a[0], b[0]), seen)

    return kernel


def binary_bits_kernel(function):
    @cuda.jit
    def kernel(a, b, seen):
        look_bits(function(a[0], b[0]), seen)

    return kernel


@pytest.mark.parametrize("function, python, rule", BINARY, ids=BINARY_IDS)
def test_binary_result_type_of_every_pair(function, python, rule):
    wrong = {}
    for a, b in PAIRS:
        what = observe(binary_kernel, binary_bits_kernel, function, rule(a, b), value(a, 3), value(b, 2))
        if what:
            wrong[a, b] = what
    assert wrong == {}


def test_the_rules_of_this_file_are_numbas():
    context, types = numba_context()
    wrong = {}
    for function, python, rule in BINARY:
        for a, b in PAIRS if python else ():
            if rule is smallest and a != b and "bool" in (a, b):
                continue  # typed, then refused when it is lowered
            got = numba_result(context, python, (types[a], types[b]))
            if got != rule(a, b):
                wrong[function.py_func.__name__, a, b] = (got, rule(a, b))
    assert wrong == {}


def test_unify_is_numbas():
    context, types = numba_context()
    got = {(a, b): str(context.unify_types(types[a], types[b])) for a, b in PAIRS}
    assert {pair: name for pair, name in got.items() if name != unify(*pair)} == {}


def width_kernel(function):
    @cuda.jit
    def kernel(a, b, seen):
        seen[0] = cuda.clz(function(a[0], b[0]))

    return kernel


NARROW = [entry for entry in BINARY if entry[2] in (smallest, unify)]


@pytest.mark.parametrize("function, python, rule", NARROW, ids=[entry[0].py_func.__name__ for entry in NARROW])
def test_width_of_results_that_are_narrower_than_64_bits(function, python, rule):
    wrong = {}
    for a, b in PAIRS:
        expected = rule(a, b)
        if expected is REFUSED or expected == "bool" or expected in FLOATS:
            continue
        seen = np.zeros(1, np.int64)
        width_kernel(function)[1, 1](value(a, 3), value(b, 2), seen)
        width = np.dtype(expected).itemsize * 8
        if seen[0] not in (width - 2, width - 1):  # the value is 1, 2 or 3
            wrong[a, b] = (int(seen[0]), expected)
    assert wrong == {}
