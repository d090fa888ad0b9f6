"""Idioms of CUDA-Python code, each as a small kernel: what Numba makes of them is what the interpreter must make.

A kernel takes what its parameters name (`given`) and is launched with two blocks of four threads.  What numba-cuda's own
code leaves in its arrays (tests/support/launched.py), or that it refuses the kernel, stands in `idioms.json`:

    python -m tests.simt.test_idioms    asks Numba about those that have changed; --all asks about every one
"""


# They are written as strangers write them.
# ruff: noqa: B007, B009, B905, C409, E501, E711, E731, F821, F841, NPY002, PLE0704, PLR1711, PLR1730, PLW0603
# ruff: noqa: RET501, RET503, RET505, RUF005, RUF059, UP031

import collections
import enum
import math
import operator
from typing import NamedTuple

import numpy as np

from pmpp.simt import cuda

BLOCKS, THREADS = 2, 4


def given():
    """Fresh arguments by name."""
    records = np.zeros(8, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
    records["a"], records["b"] = np.arange(8), np.arange(8) * 0.5
    return {
        "x": np.array([0.1, 1.5, -2.25, 3.0, 4.7, -5.5, 6.125, 7.9], np.float32),
        "y": np.arange(8, dtype=np.float32) * np.float32(0.3) + 1,
        "d": np.linspace(-2, 3, 8),
        "m": np.arange(32, dtype=np.float32).reshape(8, 4) * np.float32(0.7),
        "c": np.arange(64, dtype=np.int32).reshape(8, 4, 2),
        "k": np.array([3, -1, 4, 1, -5, 9, 2, 6], np.int32),
        "w": np.array([3, -1, 4, 1, -5, 9, 2, 6], np.int64),
        "u": np.array([3, 1, 4, 1, 5, 9, 250, 6], np.uint8),
        "z": (np.arange(8) + 1j * np.arange(8)[::-1]).astype(np.complex64),
        "b": np.array([1, 0, 0, 1, 1, 0, 1, 0], np.bool_),
        "r": records,
        "n": 5,
        "s": 2.5,
        "f": np.float32(1.1),
        "pair": (3, 2.5),
        "point": Point(1.5, 4),
        "arrays": (np.arange(8.0), np.arange(8.0) * 2),
        "out": np.zeros((8, 8)),
        "whole": np.zeros((8, 8), np.int64),
        "short": np.zeros((8, 8), np.float32),
        "complexes": np.zeros((8, 4), np.complex128),
    }


KERNELS = []


def idiom(function):
    """A kernel of the table."""
    kernel = cuda.jit(function)
    KERNELS.append(kernel)
    return kernel


class Point(NamedTuple):
    px: float
    py: int


Shade = collections.namedtuple("Shade", ["r", "g"])


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Color(enum.IntEnum):
    RED = 1
    GREEN = 5


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Config:
    RADIUS = 3
    SCALE = 0.5


OFFSETS = ((0, 1), (1, 0), (0, -1), (-1, 0))
MIXED = ((1, 2.5), (3, 4.5))
UNEVEN = ((1, 2), (3, 4, 5))
TAPS = (0.25, 0.5, 0.25)
NESTED = (((1, 2), (3, 4)), ((5, 6), (7, 8)))
NUMBERS = [1, 2, 3]
PAIRS = [(1, 2), (3, 4)]
SHADES = (Shade(1, 2), Shade(3, 4))
SHADE = Shade(7, 8)
MODE = "fast"
OTHER = "slow"
N = 4
WEIGHT = np.float32(0.3)
HALF = np.float16(0.5)
BYTE = np.uint8(200)
WORD = np.int32(7)
IMAGINARY = 2.5j
NOTHING = None
FLAG = True
TABLE = np.array([1.5, 2.5, 3.5, 4.5], np.float32)
TABLE2 = np.arange(12, dtype=np.int32).reshape(3, 4)
RECORDS = np.array([(1, 2.0), (3, 4.0)], np.dtype([("p", np.int32), ("q", np.float64)], align=True))
BIG = 2**63
TOO_BIG = 2**70
TYPE = np.float32
PI = math.pi
SETTINGS = {"n": 3}
STRINGS = ("a", "b")


@cuda.jit(device=True)
def affine(v, scale=2, shift=0.5):
    return v * scale + shift


@cuda.jit(device=True)
def swapped(a, b):
    return b, a


@cuda.jit(device=True)
def add_to(row, value):
    row[0] += value


@cuda.jit(device=True)
def first_of(row):
    return row[0]


@cuda.jit(device=True)
def either(flag, p, q):
    if flag:
        return p
    return q


@cuda.jit(device=True)
def nothing(v):
    v + 1


@cuda.jit(device=True)
def maybe(v):
    if v > 0:
        return v
    return None


@cuda.jit(device=True)
def apply(function, v):
    return function(v)


@cuda.jit(device=True)
def called(mode, v):
    if mode == "double":
        return v * 2
    return v


@cuda.jit(device=True, inline=True)
def inlined(v):
    return v + 1


@cuda.jit(device=True, inline="always", fastmath=True)
def inlined_always(v):
    return v + 1


@cuda.jit(device=True)
def star(*values):
    return values[0] + values[1]


@cuda.jit(device=True)
def only_named(v, *, scale):
    return v * scale


# ------------------------------------------------------------------------------------------------ loops over constants


@idiom
def loop_over_a_global_tuple_of_tuples(k, whole):
    i = cuda.grid(1)
    for dx, dy in OFFSETS:
        whole[i, 0] += dx * 3 + dy + k[i]


@idiom
def loop_over_a_global_tuple_of_tuples_as_one(k, whole):
    i = cuda.grid(1)
    for offset in OFFSETS:
        whole[i, 0] += offset[0] * 3 + offset[1]


@idiom
def loop_over_a_global_tuple_of_mixed_tuples(out):
    i = cuda.grid(1)
    for a, b in MIXED:
        out[i, 0] += a * b


@idiom
def loop_over_uneven_tuples(out):
    i = cuda.grid(1)
    for part in UNEVEN:
        out[i, 0] += part[0]


@idiom
def index_of_a_global_tuple_of_tuples(whole):
    i = cuda.grid(1)
    whole[i, 0] = OFFSETS[1][0]
    whole[i, 1] = OFFSETS[i % 4][1]


@idiom
def index_of_uneven_tuples(whole):
    i = cuda.grid(1)
    whole[i, 0] = UNEVEN[1][2] + len(UNEVEN[0])


@idiom
def loop_over_nested_tuples(whole):
    i = cuda.grid(1)
    for p, q in NESTED:
        for e in p:
            whole[i, 0] += e
        whole[i, 1] += q[0] * q[1]


@idiom
def loop_over_indices_of_a_tuple_of_tuples(whole):
    i = cuda.grid(1)
    for t in range(len(OFFSETS)):
        whole[i, 0] += OFFSETS[t][0] * (t + 1)
        dx, dy = OFFSETS[t]
        whole[i, 1] += dy * (t + 1)


@idiom
def loop_over_a_global_tuple(x, short):
    i = cuda.grid(1)
    for tap in TAPS:
        short[i, 0] += x[i] * tap


@idiom
def loop_over_a_global_tuple_with_enumerate(x, out):
    i = cuda.grid(1)
    for j, tap in enumerate(TAPS):
        out[i, 0] += x[(i + j) % 8] * tap


@idiom
def loop_over_enumerate_of_tuples(whole):
    i = cuda.grid(1)
    for j, (dx, dy) in enumerate(OFFSETS):
        whole[i, 0] += j * dx - dy


@idiom
def loop_over_zip_of_tuples(out):
    i = cuda.grid(1)
    for a, (b, c) in zip(TAPS, OFFSETS):
        out[i, 0] += a * b + c


@idiom
def loop_over_a_literal_list(k, whole):
    i = cuda.grid(1)
    for j in [1, 2, 5]:
        whole[i, 0] += j * k[i]


@idiom
def loop_over_a_literal_list_of_floats(x, out):
    i = cuda.grid(1)
    for j in [0.5, 1.5]:
        out[i, 0] += j * x[i]


@idiom
def loop_over_a_literal_list_of_tuples(whole):
    i = cuda.grid(1)
    for dx, dy in [(0, 1), (1, 0)]:
        whole[i, 0] += dx * 3 + dy


@idiom
def loop_over_a_literal_list_of_mixed_numbers(out):
    i = cuda.grid(1)
    for v in [1, 2.5]:
        out[i, 0] += v


@idiom
def loop_over_a_literal_tuple_of_mixed_numbers(out):
    i = cuda.grid(1)
    for v in (1, 2.5):
        out[i, 0] += v


@idiom
def loop_over_a_literal_list_with_enumerate(whole):
    i = cuda.grid(1)
    for j, v in enumerate([4, 5]):
        whole[i, 0] += j * v


@idiom
def loop_over_an_empty_list(whole):
    i = cuda.grid(1)
    for j in []:
        whole[i, 0] += j


@idiom
def loop_over_a_list_of_variables(x, y, out):
    i = cuda.grid(1)
    for v in [x[i], y[i]]:
        out[i, 0] += v


@idiom
def loop_over_a_list_of_arrays(x, y, out):
    i = cuda.grid(1)
    for a in [x, y]:
        out[i, 0] += a[i]


@idiom
def loop_over_a_tuple_of_arrays(x, y, out):
    i = cuda.grid(1)
    for a in (x, y):
        out[i, 0] += a[i]


@idiom
def loop_over_a_global_list(whole):
    i = cuda.grid(1)
    for j in NUMBERS:
        whole[i, 0] += j


@idiom
def loop_over_a_global_list_of_pairs(whole):
    i = cuda.grid(1)
    for a, b in PAIRS:
        whole[i, 0] += a * b


@idiom
def index_of_a_global_list(whole):
    i = cuda.grid(1)
    whole[i, 0] = NUMBERS[1] + len(NUMBERS)


@idiom
def list_in_a_variable(whole):
    i = cuda.grid(1)
    values = [3, 1, 2]
    whole[i, 0] = values[i % 3] + len(values)


@idiom
def append_to_a_list(whole):
    i = cuda.grid(1)
    values = []
    values.append(i)
    whole[i, 0] = values[0]


@idiom
def list_comprehension(whole):
    i = cuda.grid(1)
    values = [j * j for j in range(4)]
    whole[i, 0] = values[2]


@idiom
def membership_of_a_list(k, whole):
    i = cuda.grid(1)
    if k[i] in [1, 3, 9]:
        whole[i, 0] = 1


@idiom
def membership_of_a_tuple(k, whole):
    i = cuda.grid(1)
    if k[i] in (1, 3, 9):
        whole[i, 0] = 1
    if k[i] not in TAPS:
        whole[i, 1] = 1


@idiom
def membership_of_a_set(k, whole):
    i = cuda.grid(1)
    if k[i] in {1, 3, 9}:
        whole[i, 0] = 1


@idiom
def loop_over_a_string(whole):
    i = cuda.grid(1)
    for letter in "abc":
        whole[i, 0] += 1


@idiom
def loop_over_global_named_tuples(whole):
    i = cuda.grid(1)
    for shade in SHADES:
        whole[i, 0] += shade.r * shade.g


@idiom
def global_named_tuple(whole):
    i = cuda.grid(1)
    whole[i, 0] = SHADE.r + SHADE[1]


@idiom
def loop_backwards(k, whole):
    i = cuda.grid(1)
    for j in range(7, -1, -1):
        whole[i, 0] = whole[i, 0] * 2 + k[j]


@idiom
def loop_with_a_negative_step_that_varies(k, whole):
    i = cuda.grid(1)
    for j in range(10, i, -2):
        whole[i, 0] += j


@idiom
def loop_over_reversed_range(whole):
    i = cuda.grid(1)
    for j in reversed(range(4)):
        whole[i, 0] = whole[i, 0] * 10 + j


@idiom
def loop_over_reversed_tuple(whole):
    i = cuda.grid(1)
    for j in reversed((1, 2, 3)):
        whole[i, 0] = whole[i, 0] * 10 + j


@idiom
def loop_over_ndindex(m, out):
    i = cuda.grid(1)
    for p, q in np.ndindex(2, 3):
        out[i, 0] += m[p, q] * (p + 1)


@idiom
def loop_over_ndindex_of_a_shape(c, whole):
    i = cuda.grid(1)
    for index in np.ndindex(c.shape):
        whole[i, 0] += c[index] * (index[0] + 1)


@idiom
def loop_over_ndindex_unpacked(c, whole):
    i = cuda.grid(1)
    for a, b, e in np.ndindex(*c.shape):
        whole[i, 0] += c[a, b, e] * e


@idiom
def loop_over_ndindex_of_one(x, out):
    i = cuda.grid(1)
    for (j,) in np.ndindex(8):
        out[i, 0] += x[j]


@idiom
def loop_over_ndenumerate(m, out):
    i = cuda.grid(1)
    for (p, q), v in np.ndenumerate(m):
        out[i, 0] += v * (p + q)


@idiom
def loop_over_ndenumerate_of_one_axis(x, out):
    i = cuda.grid(1)
    for index, v in np.ndenumerate(x):
        out[i, 0] += v * index[0]


@idiom
def loop_over_nditer(x, out):
    i = cuda.grid(1)
    for v in np.nditer(x):
        out[i, 0] += v.item()


@idiom
def loop_over_an_array(x, out):
    i = cuda.grid(1)
    for v in x:
        out[i, 0] += v


@idiom
def loop_over_rows(m, out):
    i = cuda.grid(1)
    for row in m:
        out[i, 0] += row[i % 4]


@idiom
def loop_over_flat(m, out):
    i = cuda.grid(1)
    for v in m.flat:
        out[i, 0] += v


@idiom
def loop_over_zip_of_arrays(x, y, out):
    i = cuda.grid(1)
    for a, b in zip(x, y):
        out[i, 0] += a * b


@idiom
def loop_over_enumerate_from(x, out):
    i = cuda.grid(1)
    for j, v in enumerate(x, 3):
        out[i, 0] += j * v


@idiom
def loop_over_zip_of_three(x, y, k, out):
    i = cuda.grid(1)
    for a, b, e in zip(x, y, range(5)):
        out[i, 0] += a * b + e


@idiom
def loop_over_varying_range_in_enumerate(whole):
    i = cuda.grid(1)
    for j, v in enumerate(range(i)):
        whole[i, 0] += j * v


@idiom
def loop_over_a_local_array(whole):
    i = cuda.grid(1)
    local = cuda.local.array(3, np.int32)
    for j in range(3):
        local[j] = j + i
    for v in local:
        whole[i, 0] += v


@idiom
def loop_over_map(whole):
    i = cuda.grid(1)
    for v in map(abs, (-1, 2)):
        whole[i, 0] += v


@idiom
def loop_else(k, whole):
    i = cuda.grid(1)
    for j in range(8):
        if k[j] == k[i] + 1:
            whole[i, 0] = j
            break
    else:
        whole[i, 0] = -1


@idiom
def while_else(k, whole):
    i = cuda.grid(1)
    j = 0
    while j < k[i]:
        j += 1
        if j == 4:
            break
    else:
        whole[i, 0] = -1
    whole[i, 1] = j


@idiom
def while_true(k, whole):
    i = cuda.grid(1)
    j = 0
    while True:
        j += 1
        if j > k[i]:
            break
        if j % 2:
            continue
        whole[i, 0] += j


@idiom
def while_one(whole):
    i = cuda.grid(1)
    j = 0
    while 1:
        j += 1
        if j > i:
            break
    whole[i, 0] = j


@idiom
def the_variable_after_a_loop(whole):
    i = cuda.grid(1)
    for j in range(4):
        pass
    whole[i, 0] = j


@idiom
def changes_the_variable_of_a_loop(whole):
    i = cuda.grid(1)
    for j in range(4):
        j *= 2
        whole[i, 0] += j


@idiom
def range_in_a_variable(whole):
    i = cuda.grid(1)
    steps = range(1, 6, 2)
    for j in steps:
        whole[i, 0] += j
    whole[i, 1] = len(steps)


# ----------------------------------------------------------------------------------------------- names of the hardware


@idiom
def thread_index_in_a_variable(whole):
    t = cuda.threadIdx
    b, d = cuda.blockIdx, cuda.blockDim
    i = t.x + b.x * d.x
    whole[i, 0] = i + 1


@idiom
def namespace_in_a_variable(whole):
    atomic = cuda.atomic
    i = cuda.grid(1)
    whole[i, 0] = i


@idiom
def function_in_a_variable(x, out):
    root = math.sqrt
    i = cuda.grid(1)
    out[i, 0] = root(abs(x[i]))


@idiom
def device_function_in_a_variable(x, out):
    i = cuda.grid(1)
    function = affine
    out[i, 0] = function(x[i], 3)


@idiom
def grid_in_two_axes(whole):
    i, j = cuda.grid(2)
    whole[i, 0] = j + 1


@idiom
def grid_as_a_tuple(whole):
    where = cuda.grid(2)
    whole[where[0], 0] = where[1] + len(where)


@idiom
def grid_size(whole):
    i = cuda.grid(1)
    for j in range(i, 8, cuda.gridsize(1)):
        whole[j, 0] = j


@idiom
def type_in_a_variable(x, out):
    i = cuda.grid(1)
    kind = np.float32
    out[i, 0] = kind(0.1) * x[i]


@idiom
def global_type(x, out):
    i = cuda.grid(1)
    out[i, 0] = TYPE(0.1) * x[i]


@idiom
def type_of_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = x.dtype.type(0.1) * x[i]


@idiom
def local_array_of_the_arrays_type(x, out):
    i = cuda.grid(1)
    local = cuda.local.array(2, x.dtype)
    local[0] = x[i]
    out[i, 0] = local[0]


# ------------------------------------------------------------------------------------------------------ chosen arrays


@idiom
def array_chosen_per_block(x, y, out):
    i = cuda.grid(1)
    a = x if cuda.blockIdx.x else y
    out[i, 0] = a[i]


@idiom
def array_chosen_per_thread(x, y, out):
    i = cuda.grid(1)
    a = x if i % 2 else y
    out[i, 0] = a[i] + a.size


@idiom
def array_chosen_by_if(x, y, out):
    i = cuda.grid(1)
    if cuda.blockIdx.x == 0:
        a = x
    else:
        a = y
    a[i] += 1
    out[i, 0] = a[i]


@idiom
def arrays_swapped_in_a_loop(x, y, out):
    i = cuda.grid(1)
    a, b = x, y
    for j in range(3):
        b[i] = a[i] + 1
        a, b = b, a
    out[i, 0] = a[i]


@idiom
def arrays_swapped_by_threads(x, y, out):
    i = cuda.grid(1)
    a, b = x, y
    for j in range(i):
        a, b = b, a
    out[i, 0] = a[i]
    out[i, 1] = b[i]


@idiom
def array_of_another_type_chosen(x, d, out):
    i = cuda.grid(1)
    a = x if cuda.blockIdx.x else d
    out[i, 0] = a[i]


@idiom
def view_chosen_per_block(m, out):
    i = cuda.grid(1)
    a = m[i] if cuda.blockIdx.x else m[0]
    out[i, 0] = a[1]


@idiom
def views_of_two_matrices_chosen(m, x, out):
    i = cuda.grid(1)
    a = m[i] if i % 2 else x[1:5]
    out[i, 0] = a[1]
    out[i, 1] = a.shape[0]


@idiom
def array_chosen_by_a_function(x, y, out):
    i = cuda.grid(1)
    a = either(i % 3 == 0, x, y)
    out[i, 0] = a[i]


@idiom
def chosen_array_passed_on(x, y, out):
    i = cuda.grid(1)
    a = x if i % 3 == 0 else y
    add_to(a[i:], 1)
    out[i, 0] = first_of(a[i:])


@idiom
def array_of_a_tuple_argument(arrays, out):
    i = cuda.grid(1)
    out[i, 0] = arrays[1][i]
    out[i, 1] = arrays[i % 2][i]


@idiom
def loop_over_a_tuple_argument_of_arrays(arrays, out):
    i = cuda.grid(1)
    for a in arrays:
        out[i, 0] += a[i]


@idiom
def function_chosen_per_thread(x, out):
    i = cuda.grid(1)
    function = math.sin if i % 2 else math.cos
    out[i, 0] = function(x[i])


# ------------------------------------------------------------------------------------------------------------ strings


@idiom
def global_string_compared(whole):
    i = cuda.grid(1)
    if MODE == "fast":
        whole[i, 0] = 1
    if MODE != OTHER:
        whole[i, 1] = 1


@idiom
def global_string_in_a_tuple(whole):
    i = cuda.grid(1)
    if MODE in ("fast", "quick"):
        whole[i, 0] = 1


@idiom
def global_string_in_a_variable(whole):
    i = cuda.grid(1)
    mode = MODE
    if mode == "fast":
        whole[i, 0] = 1
    else:
        whole[i, 0] = 2


@idiom
def string_as_an_argument(x, out):
    i = cuda.grid(1)
    out[i, 0] = called("double", x[i])


@idiom
def string_chosen_per_thread(whole):
    i = cuda.grid(1)
    mode = "a" if i % 2 else "b"
    if mode == "a":
        whole[i, 0] = 1


@idiom
def length_of_a_string(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(MODE)


@idiom
def string_indexed(whole):
    i = cuda.grid(1)
    if MODE[0] == "f":
        whole[i, 0] = 1


@idiom
def string_method(whole):
    i = cuda.grid(1)
    if MODE.startswith("f"):
        whole[i, 0] = 1


@idiom
def string_in_a_string(whole):
    i = cuda.grid(1)
    if "a" in MODE:
        whole[i, 0] = 1


@idiom
def strings_added(whole):
    i = cuda.grid(1)
    if MODE + "er" == "faster":
        whole[i, 0] = 1


@idiom
def f_string(whole):
    i = cuda.grid(1)
    name = f"{i}"
    whole[i, 0] = len(name)


@idiom
def percent_format(whole):
    i = cuda.grid(1)
    name = "%d" % i
    whole[i, 0] = 1


@idiom
def str_of_a_number(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(str(i))


@idiom
def string_as_a_condition(whole):
    i = cuda.grid(1)
    if MODE:
        whole[i, 0] = 1


@idiom
def ord_of_a_letter(whole):
    i = cuda.grid(1)
    whole[i, 0] = ord("a")


# ----------------------------------------------------------------------------------------------------------- indexing


@idiom
def ellipsis_before(m, out):
    i = cuda.grid(1)
    out[i, 0] = m[..., 1][i]
    out[i, 1] = m[i, ...][2]


@idiom
def ellipsis_between(c, whole):
    i = cuda.grid(1)
    whole[i, 0] = c[i, ..., 1][2]
    whole[i, 1] = c[...][i, 1, 1]


@idiom
def ellipsis_assigned(x, out):
    i = cuda.grid(1)
    out[i, ...] = x[i]


@idiom
def ellipsis_and_all_indices(m, out):
    i = cuda.grid(1)
    out[i, 0] = m[i, 1, ...][()]


@idiom
def ellipsis_beside_a_full_index(x, out):
    i = cuda.grid(1)
    a = x[..., i]
    out[i, 0] = a[()]


@idiom
def new_axis_before(x, out):
    i = cuda.grid(1)
    a = x[None, :]
    out[i, 0] = a[0, i] + a.ndim


@idiom
def new_axis_behind(x, out):
    i = cuda.grid(1)
    a = x[:, np.newaxis]
    out[i, 0] = a[i, 0] + a.shape[1]


@idiom
def new_axis_and_ellipsis(m, out):
    i = cuda.grid(1)
    a = m[..., None]
    out[i, 0] = a[i, 1, 0]


@idiom
def new_axis_of_a_number(x, out):
    i = cuda.grid(1)
    a = x[i, None]
    out[i, 0] = a[0]


@idiom
def index_none(x, out):
    i = cuda.grid(1)
    a = x[None]
    out[i, 0] = a[0, i]


@idiom
def whole_array(x, out):
    i = cuda.grid(1)
    a = x[:]
    out[i, 0] = a[i]


@idiom
def index_by_a_tuple(m, out):
    i = cuda.grid(1)
    where = (i, 1)
    out[where] = m[where]


@idiom
def index_by_grid(m, out):
    out[cuda.grid(2)] = 7


@idiom
def index_by_a_bool(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i > 3]


@idiom
def index_by_a_float(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i / 1]


@idiom
def index_by_an_array(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = x[k][0]


@idiom
def index_by_a_list(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[[0, 1]][0]


@idiom
def index_by_a_mask(x, b, out):
    i = cuda.grid(1)
    out[i, 0] = x[b][0]


@idiom
def index_by_uint(x, u, out):
    i = cuda.grid(1)
    out[i, 0] = x[u[i] % 8]


@idiom
def negative_index(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[-1]
    out[i, 1] = x[-8]


@idiom
def negative_index_of_a_matrix(m, out):
    i = cuda.grid(1)
    out[i, 0] = m[-1, -2]
    out[i, 1] = m[i][-1]


@idiom
def slice_object(x, out):
    i = cuda.grid(1)
    s = slice(1, 5)
    out[i, 0] = x[s][i % 4]


@idiom
def slice_object_with_a_step(x, out):
    i = cuda.grid(1)
    a = x[slice(None, None, 2)]
    out[i, 0] = a[i % 4] + a.size


@idiom
def slice_object_has_parts(whole):
    i = cuda.grid(1)
    s = slice(1, 5, 2)
    whole[i, 0] = s.start + s.stop * 10 + s.step * 100


@idiom
def slice_object_has_indices(whole):
    i = cuda.grid(1)
    a, b, e = slice(1, -1, 2).indices(8)
    whole[i, 0] = a + b * 10 + e * 100


@idiom
def slice_with_a_negative_step(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[::-1][i]


@idiom
def slice_with_negative_bounds(x, out):
    i = cuda.grid(1)
    a = x[-4:-1]
    out[i, 0] = a[i % 3] + a.shape[0]


@idiom
def slice_assigned(out):
    i = cuda.grid(1)
    out[i, 1:4] = i


@idiom
def slice_assigned_from_a_slice(m, out):
    i = cuda.grid(1)
    out[i, :4] = m[i]


@idiom
def slice_assigned_from_a_tuple(out):
    i = cuda.grid(1)
    out[i, :2] = (1, 2)


@idiom
def slice_assigned_broadcast(m, out):
    i = cuda.grid(1)
    if i == 0:
        out[:, :4] = m[0]


@idiom
def slice_incremented(out):
    i = cuda.grid(1)
    out[i, 1:4] += 1


@idiom
def slice_multiplied_by_a_slice(m, out):
    i = cuda.grid(1)
    out[i, :4] *= m[i]


@idiom
def row_incremented(out):
    i = cuda.grid(1)
    row = out[i]
    row += 1


@idiom
def rows_added(m, out):
    i = cuda.grid(1)
    total = m[i] + m[0]
    out[i, 0] = total[0]


@idiom
def array_times_a_number(x, out):
    i = cuda.grid(1)
    y = x * 2
    out[i, 0] = y[i]


@idiom
def array_compared(x, y, out):
    i = cuda.grid(1)
    if x == y:
        out[i, 0] = 1


@idiom
def array_is_an_array(x, y, out):
    i = cuda.grid(1)
    if x is y:
        out[i, 0] = 1


@idiom
def array_is_none(x, out):
    i = cuda.grid(1)
    if x is None:
        out[i, 0] = 1
    if x is not None:
        out[i, 1] = 1


@idiom
def number_is_none(n, out):
    i = cuda.grid(1)
    out[i, 0] = 1 if n is None else 2


@idiom
def number_equals_none(n, out):
    i = cuda.grid(1)
    out[i, 0] = 1 if n == None else 2


@idiom
def array_as_a_condition(x, out):
    i = cuda.grid(1)
    if x:
        out[i, 0] = 1


@idiom
def number_times_a_row_in_place(out, m):
    i = cuda.grid(1)
    a = m[i]
    a *= 2
    out[i, 0] = a[1]


@idiom
def element_as_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i].item() if False else x[i]


@idiom
def two_subscripts(m, out):
    i = cuda.grid(1)
    out[i][1] = m[i][2]


@idiom
def two_subscripts_incremented(m, out):
    i = cuda.grid(1)
    out[i][1] += m[i][2]


@idiom
def slice_of_a_slice(c, whole):
    i = cuda.grid(1)
    whole[i, 0] = c[i:, 1:][0][1, 1]


@idiom
def slice_length(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = len(x[i:])
    whole[i, 1] = x[i : i + 2].size


@idiom
def swap_two_elements(out):
    i = cuda.grid(1)
    out[i, 0], out[i, 1] = 5, 6
    out[i, 0], out[i, 1] = out[i, 1], out[i, 0]


@idiom
def chained_assignment(out):
    i = cuda.grid(1)
    a = b = out[i, 0] = i
    out[i, 1] = a + b


# -------------------------------------------------------------------------------------------- attributes of an array


@idiom
def attributes_of_an_array(m, whole):
    i = cuda.grid(1)
    whole[i, 0], whole[i, 1] = m.shape
    whole[i, 2] = m.size
    whole[i, 3] = m.ndim
    whole[i, 4], whole[i, 5] = m.strides
    whole[i, 6] = len(m)
    whole[i, 7] = m.itemsize + m.nbytes


@idiom
def shape_compared(m, out, whole):
    i = cuda.grid(1)
    if m.shape == (8, 4):
        whole[i, 0] = 1
    if m.shape[0] == out.shape[0]:
        whole[i, 1] = 1
    if m.shape != out.shape:
        whole[i, 2] = 1


@idiom
def shape_unpacked_in_part(c, whole):
    i = cuda.grid(1)
    a, b = c.shape[:2]
    whole[i, 0] = a * 10 + b
    whole[i, 1] = c.shape[-1]


@idiom
def shape_starred(c, whole):
    i = cuda.grid(1)
    a, *rest = c.shape
    whole[i, 0] = a


@idiom
def transposed(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.T[1, i]
    out[i, 1] = m.transpose()[1, i]


@idiom
def flattened(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.flatten()[i]


@idiom
def raveled(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.ravel()[i]


@idiom
def reshaped(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.reshape(4, 8)[1, i]
    out[i, 1] = m.reshape((2, 4, 4))[1, 1, 1]
    out[i, 2] = m.reshape(32)[i]


@idiom
def reshaped_with_a_free_axis(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.reshape(-1)[i]


@idiom
def reshaped_by_numpy(m, out):
    i = cuda.grid(1)
    out[i, 0] = np.reshape(m, (4, 8))[1, i]


@idiom
def transposed_by_numpy(m, out):
    i = cuda.grid(1)
    out[i, 0] = np.transpose(m)[1, i]


@idiom
def flat_item(m, out):
    i = cuda.grid(1)
    out[i, 0] = m.flat[i]


@idiom
def sum_method(x, out):
    i = cuda.grid(1)
    out[i, 0] = x.sum()


@idiom
def max_of_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = max(x)


@idiom
def sum_of_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = sum(x)


@idiom
def np_sum_of_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.sum(x)


@idiom
def np_dot(x, y, out):
    i = cuda.grid(1)
    out[i, 0] = np.dot(x, y)


@idiom
def fill_method(out):
    i = cuda.grid(1)
    out[i].fill(3)


@idiom
def copy_method(x, out):
    i = cuda.grid(1)
    out[i, 0] = x.copy()[i]


@idiom
def astype_method(x, out):
    i = cuda.grid(1)
    out[i, 0] = x.astype(np.int32)[i]


@idiom
def astype_of_a_number(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i].astype(np.int32)


@idiom
def view_of_an_array(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = x.view(np.int32)[i]


@idiom
def view_of_a_number(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = x[i].view(np.int32)


@idiom
def item_method(x, out):
    i = cuda.grid(1)
    out[i, 0] = x.item(i)


@idiom
def np_zeros(x, out):
    i = cuda.grid(1)
    a = np.zeros(3)
    out[i, 0] = a[0]


@idiom
def np_empty(x, out):
    i = cuda.grid(1)
    a = np.empty(3)
    a[0] = i
    out[i, 0] = a[0]


@idiom
def np_array(x, out):
    i = cuda.grid(1)
    a = np.array([1.0, 2.0])
    out[i, 0] = a[0]


@idiom
def np_arange(x, out):
    i = cuda.grid(1)
    for v in np.arange(3):
        out[i, 0] += v


@idiom
def np_shape(m, out):
    i = cuda.grid(1)
    out[i, 0] = np.shape(m)[1]


@idiom
def np_size(m, out):
    i = cuda.grid(1)
    out[i, 0] = np.size(m)


@idiom
def shared_array_of_a_shape_attribute(m, out):
    i = cuda.grid(1)
    local = cuda.local.array(m.shape[1], np.float32)
    local[0] = 1
    out[i, 0] = local[0]


@idiom
def real_of_an_array(z, out):
    i = cuda.grid(1)
    out[i, 0] = z.real[i] + z.imag[i]
    out[i, 1] = z[i].real - z[i].imag


@idiom
def const_array_like(whole):
    i = cuda.grid(1)
    table = cuda.const.array_like(TABLE2)
    whole[i, 0] = table[i % 3, 1]


@idiom
def global_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = TABLE[i % 4] * x[i]


@idiom
def global_array_in_a_loop(out):
    i = cuda.grid(1)
    for v in TABLE:
        out[i, 0] += v


@idiom
def global_array_with_shape(whole):
    i = cuda.grid(1)
    whole[i, 0] = TABLE2.shape[1] + len(TABLE2) + TABLE2[2, 3]


@idiom
def global_records(out):
    i = cuda.grid(1)
    out[i, 0] = RECORDS[i % 2].p + RECORDS[1]["q"]


# ------------------------------------------------------------------------------------------------------------- tuples


@idiom
def tuples_compared(k, whole):
    i = cuda.grid(1)
    a, b = (k[i], i), (k[0], 2)
    whole[i, 0] = a == b
    whole[i, 1] = a != b
    whole[i, 2] = a < b
    whole[i, 3] = a <= b
    whole[i, 4] = a > b
    whole[i, 5] = a >= b


@idiom
def tuples_of_other_lengths_compared(k, whole):
    i = cuda.grid(1)
    a, b = (k[i], i), (k[i], i, 3)
    whole[i, 0] = a == b
    whole[i, 1] = a < b
    whole[i, 2] = a != b
    whole[i, 3] = b > a


@idiom
def tuples_of_mixed_types_compared(x, k, whole):
    i = cuda.grid(1)
    a, b = (k[i], x[i]), (2, 1.5)
    whole[i, 0] = a < b
    whole[i, 1] = a == b


@idiom
def tuples_compared_in_a_condition(k, whole):
    i = cuda.grid(1)
    if (k[i], i) == (4, 2):
        whole[i, 0] = 1
    if (k[i], -i) < (k[(i + 1) % 8], -1):
        whole[i, 1] = 1


@idiom
def least_of_tuples(k, whole):
    i = cuda.grid(1)
    best = (k[0], 0)
    for j in range(1, 8):
        if (k[j], j) < best:
            best = (k[j], j)
    whole[i, 0] = best[0]
    whole[i, 1] = best[1]


@idiom
def min_of_tuples(k, whole):
    i = cuda.grid(1)
    best = min((k[i], i), (k[0], 0))
    whole[i, 0] = best[1]


@idiom
def tuples_added(k, whole):
    i = cuda.grid(1)
    a = (k[i], 2) + (3,)
    whole[i, 0] = a[0] * 100 + a[1] * 10 + a[2] + len(a)


@idiom
def tuples_added_in_place(k, whole):
    i = cuda.grid(1)
    a = (k[i],)
    a += (2,)
    whole[i, 0] = a[0] * 100 + a[1]


@idiom
def tuple_times_a_number(whole):
    i = cuda.grid(1)
    a = (1, 2) * 3
    whole[i, 0] = len(a) + a[3]


@idiom
def tuple_as_a_condition(whole):
    i = cuda.grid(1)
    a = (1, 2)
    if a:
        whole[i, 0] = 1
    if not ():
        whole[i, 1] = 1


@idiom
def tuple_indexed(whole):
    i = cuda.grid(1)
    a = (3, 5, 7)
    whole[i, 0] = a[i % 3]
    whole[i, 1] = a[-1]
    whole[i, 2] = a[1:][0]


@idiom
def tuple_of_mixed_types_indexed(whole):
    i = cuda.grid(1)
    a = (3, 5.5)
    whole[i, 0] = a[i % 2]


@idiom
def tuple_indexed_negatively_by_a_variable(whole):
    i = cuda.grid(1)
    a = (3, 5, 7)
    whole[i, 0] = a[-1 - i % 3]


@idiom
def tuple_unpacked_in_nests(whole):
    i = cuda.grid(1)
    (a, b), c = (1, 2), 3
    whole[i, 0] = a * 100 + b * 10 + c


@idiom
def list_as_a_target(whole):
    i = cuda.grid(1)
    [a, b] = (1, 2)
    whole[i, 0] = a * 10 + b


@idiom
def tuple_with_a_star(whole):
    i = cuda.grid(1)
    rest = (2, 3)
    a = (1, *rest)
    whole[i, 0] = a[0] * 100 + a[1] * 10 + a[2]


@idiom
def call_with_a_star(x, out):
    i = cuda.grid(1)
    args = (x[i], 3)
    out[i, 0] = affine(*args)


@idiom
def tuple_of_a_generator(whole):
    i = cuda.grid(1)
    a = tuple(j for j in range(3))
    whole[i, 0] = a[1]


@idiom
def tuple_of_a_list(whole):
    i = cuda.grid(1)
    a = tuple([1, 2])
    whole[i, 0] = a[1]


@idiom
def tuple_of_a_tuple(whole):
    i = cuda.grid(1)
    a = tuple((1, 2))
    whole[i, 0] = a[1]


@idiom
def sum_of_a_tuple(x, out):
    i = cuda.grid(1)
    out[i, 0] = sum((x[i], 2.5))


@idiom
def any_and_all_of_a_tuple(b, whole):
    i = cuda.grid(1)
    whole[i, 0] = any((b[i], b[0]))
    whole[i, 1] = all((b[i], b[0]))


@idiom
def any_of_a_generator(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = any(k[j] > 8 for j in range(8))


@idiom
def named_tuple_argument(point, out):
    i = cuda.grid(1)
    out[i, 0] = point.px * point.py + point[0]
    a, b = point
    out[i, 1] = a - b


@idiom
def named_tuple_made_in_a_kernel(x, out):
    i = cuda.grid(1)
    p = Point(x[i], 4)
    out[i, 0] = p.px * p.py


@idiom
def named_tuple_made_with_names(x, out):
    i = cuda.grid(1)
    p = Point(py=4, px=x[i])
    out[i, 0] = p.px * p.py


@idiom
def named_tuple_replaced(point, out):
    i = cuda.grid(1)
    p = point._replace(px=2)
    out[i, 0] = p.px


@idiom
def tuple_argument(pair, out):
    i = cuda.grid(1)
    out[i, 0] = pair[0] * pair[1]
    a, b = pair
    out[i, 1] = a - b


@idiom
def tuple_of_constants_in_a_variable(out):
    i = cuda.grid(1)
    weights = (0.25, 0.5, 0.25)
    for j in range(3):
        out[i, 0] += weights[j] * j


@idiom
def tuple_changed_per_thread(k, whole):
    i = cuda.grid(1)
    a = (1, 2)
    if k[i] > 2:
        a = (3, 4)
    whole[i, 0] = a[0] + a[1]


@idiom
def tuples_of_two_lengths_in_one_variable(k, whole):
    i = cuda.grid(1)
    a = (1, 2)
    if k[i] > 2:
        a = (3, 4, 5)
    whole[i, 0] = a[0]


@idiom
def empty_tuple(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(())


@idiom
def index_of_a_tuple_method(whole):
    i = cuda.grid(1)
    whole[i, 0] = (1, 2, 3).index(2)


@idiom
def tuple_swapped_by_a_function(x, y, out):
    i = cuda.grid(1)
    out[i, 0], out[i, 1] = swapped(x[i], y[i])


@idiom
def tuple_hashed(whole):
    i = cuda.grid(1)
    whole[i, 0] = hash((1, 2))


# --------------------------------------------------------------------------------------------- statements, functions


@idiom
def match_on_numbers(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case 1:
            whole[i, 0] = 10
        case 3 | 4:
            whole[i, 0] = 20
        case _:
            whole[i, 0] = 30


@idiom
def match_with_a_guard(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case v if v < 0:
            whole[i, 0] = -v
        case 4:
            whole[i, 0] = 40
        case v:
            whole[i, 0] = v + 100


@idiom
def match_on_a_constant_name(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case Config.RADIUS:
            whole[i, 0] = 10
        case _:
            whole[i, 0] = 30


@idiom
def match_on_a_tuple(k, whole):
    i = cuda.grid(1)
    match (k[i], i):
        case (3, j):
            whole[i, 0] = j
        case (v, 1):
            whole[i, 0] = v


@idiom
def match_on_a_string(whole):
    i = cuda.grid(1)
    match MODE:
        case "fast":
            whole[i, 0] = 1
        case _:
            whole[i, 0] = 2


@idiom
def walrus(k, whole):
    i = cuda.grid(1)
    if (v := k[i]) > 2:
        whole[i, 0] = v
    whole[i, 1] = v


@idiom
def walrus_in_a_loop(k, whole):
    i = cuda.grid(1)
    j = 0
    while (v := k[j]) != 9:
        j += 1
        whole[i, 0] += v


@idiom
def chained_comparison(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = 0 < k[i] < 5
    if 1 <= k[i] <= i <= 7:
        whole[i, 1] = 1
    whole[i, 2] = 0 < k[i] != 3


@idiom
def chained_comparison_with_effects(k, whole):
    i = cuda.grid(1)
    if 0 <= i - 1 < 8 and k[i - 1] > 0:
        whole[i, 0] = 1


@idiom
def nested_function(x, out):
    def square(v):
        return v * v

    i = cuda.grid(1)
    out[i, 0] = square(x[i])


@idiom
def nested_function_that_sees_variables(x, out):
    i = cuda.grid(1)
    scale = x[i]

    def scaled(v):
        return v * scale

    out[i, 0] = scaled(3)


@idiom
def nested_function_with_a_default(x, out):
    def scaled(v, scale=3):
        return v * scale

    i = cuda.grid(1)
    out[i, 0] = scaled(x[i])


@idiom
def lambda_in_a_kernel(x, out):
    square = lambda v: v * v
    i = cuda.grid(1)
    out[i, 0] = square(x[i])


@idiom
def lambda_as_an_argument(x, out):
    i = cuda.grid(1)
    out[i, 0] = apply(lambda v: v + 1, x[i])


@idiom
def function_as_an_argument(x, out):
    i = cuda.grid(1)
    out[i, 0] = apply(math.sqrt, abs(x[i]))
    out[i, 1] = apply(affine, x[i])


@idiom
def default_arguments(x, out):
    i = cuda.grid(1)
    out[i, 0] = affine(x[i])
    out[i, 1] = affine(x[i], 3)


@idiom
def keyword_arguments(x, out):
    i = cuda.grid(1)
    out[i, 0] = affine(x[i], shift=1)
    out[i, 1] = affine(shift=x[i], v=2)


@idiom
def function_with_starred_parameters(x, out):
    i = cuda.grid(1)
    out[i, 0] = star(x[i], 3)


@idiom
def function_with_named_only_parameters(x, out):
    i = cuda.grid(1)
    out[i, 0] = only_named(x[i], scale=3)


@idiom
def function_that_returns_nothing(x, out):
    i = cuda.grid(1)
    if nothing(x[i]) is None:
        out[i, 0] = 1


@idiom
def function_that_returns_none_or_a_number(x, out):
    i = cuda.grid(1)
    v = maybe(x[i])
    if v is not None:
        out[i, 0] = v


@idiom
def functions_that_are_inlined(x, out):
    i = cuda.grid(1)
    out[i, 0] = inlined(x[i]) + inlined_always(x[i])


@idiom
def early_return(x, out):
    i = cuda.grid(1)
    if i >= 6:
        return
    out[i, 0] = x[i]


@idiom
def return_of_none(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i]
    return None


@idiom
def return_of_a_value(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i]
    return i


@idiom
def assertion(x, out):
    i = cuda.grid(1)
    assert i < 8, "too many threads"
    out[i, 0] = x[i]


@idiom
def raises_never(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise ValueError("too many", i)
    out[i, 0] = x[i]


@idiom
def raises_a_class(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise ValueError
    out[i, 0] = x[i]


@idiom
def prints(x, out):
    i = cuda.grid(1)
    if i > 100:
        print("value", x[i], i, True)
    out[i, 0] = x[i]


@idiom
def prints_with_a_separator(x, out):
    i = cuda.grid(1)
    if i > 100:
        print(x[i], end="")
    out[i, 0] = x[i]


@idiom
def prints_an_f_string(x, out):
    i = cuda.grid(1)
    if i > 100:
        print(f"value {x[i]}")
    out[i, 0] = x[i]


@idiom
def try_and_except(x, out):
    i = cuda.grid(1)
    try:
        out[i, 0] = x[i]
    except Exception:
        out[i, 0] = 0


@idiom
def deletes_a_variable(x, out):
    i = cuda.grid(1)
    a = x[i]
    del a
    out[i, 0] = 1


@idiom
def annotated_variable(x, out):
    i: int = cuda.grid(1)
    v: float = x[i]
    out[i, 0] = v


@idiom
def docstring(x, out):
    """What it does."""
    i = cuda.grid(1)
    out[i, 0] = x[i]
    """And more words."""


@idiom
def conditional_expressions(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] if x[i] > 0 else -x[i] if i % 2 else 0
    out[i, 1] = (1, 2)[x[i] > 0]


@idiom
def and_or_values(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = k[i] and 7
    whole[i, 1] = (k[i] > 2) or i
    whole[i, 2] = not k[i]


@idiom
def bools_as_numbers(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = (k[i] > 0) + (k[i] > 3)
    whole[i, 1] = int(k[i] > 0) * 5
    whole[i, 2] += k[i] > 1


@idiom
def dictionary(whole):
    i = cuda.grid(1)
    whole[i, 0] = {1: 2}[1]


@idiom
def global_dictionary(whole):
    i = cuda.grid(1)
    whole[i, 0] = SETTINGS["n"]


@idiom
def global_statement(whole):
    global N
    i = cuda.grid(1)
    N = 3
    whole[i, 0] = N


@idiom
def variable_of_two_kinds(x, k, whole):
    i = cuda.grid(1)
    v = 1
    if i % 2:
        v = x[i]
    whole[i, 0] = v


@idiom
def variable_of_two_unlike_kinds(x, whole):
    i = cuda.grid(1)
    v = 1
    if i % 2:
        v = x
    whole[i, 0] = 1


@idiom
def variable_that_is_none_at_first(x, out):
    i = cuda.grid(1)
    best = None
    for j in range(8):
        if best is None or x[j] > best:
            best = x[j]
    out[i, 0] = best


@idiom
def condition_on_a_global(whole):
    i = cuda.grid(1)
    if FLAG:
        whole[i, 0] = 1
    else:
        whole[i, 0] = undefined_name


@idiom
def global_none(whole):
    i = cuda.grid(1)
    if NOTHING is None:
        whole[i, 0] = 1


# ---------------------------------------------------------------------------------------------------------- constants


@idiom
def constant_of_63_bits(whole):
    i = cuda.grid(1)
    whole[i, 0] = 2**62 + i


@idiom
def constant_of_64_bits(whole):
    i = cuda.grid(1)
    whole[i, 0] = (2**63 + i) >> 1


@idiom
def constant_of_70_bits(out):
    i = cuda.grid(1)
    out[i, 0] = 2**70


@idiom
def constant_of_70_bits_as_a_float(out):
    i = cuda.grid(1)
    out[i, 0] = 2.0**70


@idiom
def global_of_64_bits(whole):
    i = cuda.grid(1)
    whole[i, 0] = BIG >> 3


@idiom
def global_of_70_bits(out):
    i = cuda.grid(1)
    out[i, 0] = TOO_BIG


@idiom
def power_of_a_global(whole):
    i = cuda.grid(1)
    whole[i, 0] = N**i


@idiom
def power_that_overflows(w, whole):
    i = cuda.grid(1)
    whole[i, 0] = 2 ** (i * 10)
    whole[i, 1] = 2 ** (62 + i)


@idiom
def int_enum(k, whole):
    i = cuda.grid(1)
    if k[i] == Color.RED:
        whole[i, 0] = 1
    whole[i, 1] = Color.GREEN + k[i]
    whole[i, 2] = Color.GREEN


@idiom
def int_enum_times_a_float(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * Color.GREEN


@idiom
def int_enum_value(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * Color.GREEN.value


@idiom
def int_enum_as_an_index(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[Color.GREEN]


@idiom
def int_enum_converted(x, out):
    i = cuda.grid(1)
    out[i, 0] = int(Color.GREEN) * x[i]


@idiom
def int_enum_of_a_number(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = Color(5) == Color.GREEN


@idiom
def int_flag(k, whole):
    i = cuda.grid(1)
    if k[i] & Bits.TWO:
        whole[i, 0] = 1


@idiom
def enumeration(whole):
    i = cuda.grid(1)
    side = Side.LEFT
    if side == Side.LEFT:
        whole[i, 0] = 1
    if side is Side.RIGHT:
        whole[i, 1] = 1
    whole[i, 2] = side.value


@idiom
def enumeration_chosen_per_thread(whole):
    i = cuda.grid(1)
    side = Side.LEFT if i % 2 else Side.RIGHT
    if side == Side.LEFT:
        whole[i, 0] = 1


@idiom
def class_attribute(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * Config.SCALE


@idiom
def class_attribute_as_a_bound(whole):
    i = cuda.grid(1)
    for j in range(Config.RADIUS):
        whole[i, 0] += j


@idiom
def numpy_constants(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.pi
    out[i, 1] = np.inf
    out[i, 2] = math.e + math.tau
    out[i, 3] = -np.inf
    out[i, 4] = math.inf
    out[i, 5] = np.e


@idiom
def numpy_scalar_globals(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * WEIGHT
    out[i, 1] = BYTE + k[i]
    out[i, 2] = WORD * x[i]
    out[i, 3] = BYTE * BYTE


@idiom
def numpy_limits(whole):
    i = cuda.grid(1)
    whole[i, 0] = np.iinfo(np.int32).max


@idiom
def numpy_float_limits(out):
    i = cuda.grid(1)
    out[i, 0] = np.finfo(np.float32).max
    out[i, 1] = np.finfo(np.float32).eps


@idiom
def numpy_scalars(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = np.float32(1) / np.float32(3)
    out[i, 1] = np.int8(k[i] * 60)
    out[i, 2] = np.uint8(k[i])
    out[i, 3] = np.int64(x[i])
    out[i, 4] = np.uint16(70000 + i)
    out[i, 5] = np.bool_(k[i] - 1)
    out[i, 6] = np.float64(x[i]) + np.intp(3)


@idiom
def numpy_type_names(k, out):
    i = cuda.grid(1)
    out[i, 0] = np.double(0.1)
    out[i, 1] = np.single(0.1)
    out[i, 2] = np.intc(k[i])
    out[i, 3] = np.uintp(3)
    out[i, 4] = np.longlong(k[i])


@idiom
def numba_type_names(k, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.float32(0.1) if False else np.float32(0.1)


@idiom
def conversions(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = int(x[i])
    out[i, 1] = float(k[i]) / 3
    out[i, 2] = bool(k[i] > 2)
    out[i, 3] = int(2.9)
    out[i, 4] = int(True)


@idiom
def int_of_a_string(whole):
    i = cuda.grid(1)
    whole[i, 0] = int("3")


@idiom
def complex_numbers(z, complexes):
    i = cuda.grid(1)
    complexes[i, 0] = z[i] * 2j + IMAGINARY
    complexes[i, 1] = complex(1, i)
    complexes[i, 2] = z[i].conjugate()
    complexes[i, 3] = np.complex64(z[i] + 0.1)


@idiom
def floating_constants(x, out):
    i = cuda.grid(1)
    out[i, 0] = 1e-3 * x[i]
    out[i, 1] = 0.5
    out[i, 2] = 1_000_000
    out[i, 3] = 0xFF + 0b11 + 0o7
    out[i, 4] = -0.0


# --------------------------------------------------------------------------------------------------------- arithmetic


@idiom
def bit_operations(k, u, whole):
    i = cuda.grid(1)
    whole[i, 0] = k[i] & 3 | 8 ^ k[0]
    whole[i, 1] = ~k[i] << 2
    whole[i, 2] = k[i] >> 1
    whole[i, 3] = u[i] << 4
    whole[i, 4] = -u[i]
    whole[i, 5] = 1 << i
    whole[i, 6] = k[i].bit_count()


@idiom
def augmented_bit_operations(whole):
    i = cuda.grid(1)
    v = 13
    v <<= 2
    v |= 3
    v &= 0x3F
    v ^= i
    v >>= 1
    v //= 2
    v **= 2
    v %= 97
    whole[i, 0] = v


@idiom
def divisions(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = k[i] // 3
    out[i, 1] = k[i] % 3
    out[i, 2] = k[i] / 3
    out[i, 3] = x[i] // 2
    out[i, 4] = x[i] % 2
    out[i, 5] = -7 // 2 + i
    out[i, 6], out[i, 7] = divmod(k[i], 4)


@idiom
def division_by_zero(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] / (x[i] - x[i])
    out[i, 1] = 1.0 / np.float32(i * 0)


@idiom
def rounding(x, d, out):
    i = cuda.grid(1)
    out[i, 0] = round(x[i])
    out[i, 1] = round(d[i], 1)
    out[i, 2] = math.floor(x[i])
    out[i, 3] = math.ceil(x[i])
    out[i, 4] = math.trunc(x[i])
    out[i, 5] = abs(k_of(x[i]))


@cuda.jit(device=True)
def k_of(v):
    return int(v)


@idiom
def least_and_greatest(x, y, k, out):
    i = cuda.grid(1)
    out[i, 0] = min(x[i], y[i])
    out[i, 1] = max(x[i], y[i], 2)
    out[i, 2] = min(k[i], 3, x[i])
    out[i, 3] = max(k[i], 0)
    out[i, 4] = max((k[i], i, 2))
    out[i, 5] = min(max(k[i], -1), 3)


@idiom
def least_with_a_key(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = min(k[i], 3, key=abs)


@idiom
def power_with_a_modulus(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = pow(3, 4, 5)


@idiom
def powers(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] ** 2
    out[i, 1] = abs(x[i]) ** 0.5
    out[i, 2] = pow(x[i], 3)
    out[i, 3] = k[i] ** 2
    out[i, 4] = 2.0 ** k[i]


@idiom
def operator_functions(x, y, out):
    i = cuda.grid(1)
    out[i, 0] = operator.add(x[i], y[i])
    out[i, 1] = operator.mul(x[i], y[i])
    out[i, 2] = operator.neg(x[i])


@idiom
def exact_math(x, d, out):
    i = cuda.grid(1)
    out[i, 0] = math.fabs(x[i])
    out[i, 1] = math.copysign(1.0, x[i])
    out[i, 2] = math.fmod(d[i], 0.75)
    out[i, 3] = math.isnan(x[i]) + math.isinf(x[i]) * 2 + math.isfinite(x[i]) * 4
    out[i, 4] = math.sqrt(abs(d[i]))
    out[i, 5], out[i, 6] = math.modf(d[i])


@idiom
def frexp_and_ldexp(d, out):
    i = cuda.grid(1)
    a, b = math.frexp(d[i])
    out[i, 0] = a
    out[i, 1] = b
    out[i, 2] = math.ldexp(d[i], 3)


@idiom
def numpy_functions(x, y, out):
    i = cuda.grid(1)
    out[i, 0] = np.maximum(x[i], y[i])
    out[i, 1] = np.minimum(x[i], y[i])
    out[i, 2] = np.isnan(x[i])
    out[i, 3] = np.logical_and(x[i], y[i])


@idiom
def np_sqrt(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.sqrt(abs(x[i]))


@idiom
def np_abs(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.abs(x[i])


@idiom
def np_add(x, y, out):
    i = cuda.grid(1)
    out[i, 0] = np.add(x[i], y[i])


@idiom
def np_floor(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.floor(x[i])


@idiom
def np_exp(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.exp(x[i])


@idiom
def np_where(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.where(x[i] > 0, 1.0, 2.0)


@idiom
def np_sign(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.sign(x[i])


@idiom
def np_clip(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.clip(x[i], 0, 1)


@idiom
def np_isfinite(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.isfinite(x[i])


@idiom
def np_square(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.square(x[i])


@idiom
def np_argmax(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.argmax(x)


@idiom
def np_random(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.random.rand()


@idiom
def math_prod(out):
    i = cuda.grid(1)
    out[i, 0] = math.prod((1, 2))


@idiom
def math_comb(out):
    i = cuda.grid(1)
    out[i, 0] = math.comb(4, 2)


@idiom
def math_factorial(out):
    i = cuda.grid(1)
    out[i, 0] = math.factorial(4)


@idiom
def math_gcd(k, out):
    i = cuda.grid(1)
    out[i, 0] = math.gcd(k[i], 6)


@idiom
def math_isclose(x, out):
    i = cuda.grid(1)
    out[i, 0] = math.isclose(x[i], 1.5)


@idiom
def math_isqrt(out):
    i = cuda.grid(1)
    out[i, 0] = math.isqrt(17)


@idiom
def math_dist(out):
    i = cuda.grid(1)
    out[i, 0] = math.dist((0, 1), (2, 3))


@idiom
def math_fsum(out):
    i = cuda.grid(1)
    out[i, 0] = math.fsum((0.1, 0.2))


@idiom
def math_cbrt(out):
    i = cuda.grid(1)
    out[i, 0] = math.cbrt(8.0)


@idiom
def math_exp2(out):
    i = cuda.grid(1)
    out[i, 0] = math.exp2(8.0)


@idiom
def math_nextafter(out):
    i = cuda.grid(1)
    out[i, 0] = math.nextafter(8.0, 9.0)


@idiom
def math_remainder(out):
    i = cuda.grid(1)
    out[i, 0] = math.remainder(8.0, 3.0)


@idiom
def math_ulp(out):
    i = cuda.grid(1)
    out[i, 0] = math.ulp(8.0)


@idiom
def math_log_with_a_base(out):
    i = cuda.grid(1)
    out[i, 0] = math.log(8.0, 2.0)


@idiom
def math_of_integers(k, out):
    i = cuda.grid(1)
    out[i, 0] = math.sqrt(4)
    out[i, 1] = math.fabs(k[i])
    out[i, 2] = math.floor(k[i])


# -------------------------------------------------------------------------------------------------- records and others


@idiom
def fields_of_records(r, out):
    i = cuda.grid(1)
    out[i, 0] = r[i].a + r[i]["b"]
    out[i, 1] = r["a"][i]
    out[i, 2] = r.b[i]


@idiom
def record_in_a_variable(r, out):
    i = cuda.grid(1)
    one = r[i]
    one.a += 2
    out[i, 0] = one.a


@idiom
def field_by_a_global_name(r, out):
    i = cuda.grid(1)
    out[i, 0] = r[i][FIELD]


FIELD = "b"


@idiom
def loop_over_records(r, out):
    i = cuda.grid(1)
    for one in r:
        out[i, 0] += one.a * one.b


@idiom
def record_as_a_tuple(r, out):
    i = cuda.grid(1)
    a, b = r[i]
    out[i, 0] = a


@idiom
def getattr_of_a_record(r, out):
    i = cuda.grid(1)
    out[i, 0] = getattr(r[i], "a")


@idiom
def isinstance_of_a_number(x, out):
    i = cuda.grid(1)
    if isinstance(x[i], float):
        out[i, 0] = 1


@idiom
def type_of_a_number(x, out):
    i = cuda.grid(1)
    out[i, 0] = type(x[i])(0.1)


@idiom
def sorted_tuple(out):
    i = cuda.grid(1)
    out[i, 0] = sorted((2, 1))[0]


@idiom
def all_kinds_of_loops_at_once(x, whole):
    i = cuda.grid(1)
    for p, (dx, dy) in enumerate(zip((1, 2), (3, 4))):
        whole[i, 0] += p * dx + dy


@idiom
def nested_loops_over_tuples(whole):
    i = cuda.grid(1)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            if dx == 0 and dy == 0:
                continue
            whole[i, 0] += dx * 3 + dy * 5 + 1


@idiom
def negative_index_that_varies(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[-1 - i]


# ---------------------------------------------------------------------------------------------------- closer questions


@idiom
def slice_assigned_from_an_array_of_its_type(m, short):
    i = cuda.grid(1)
    short[i, :4] = m[i]


@idiom
def row_assigned_from_an_array(out, d):
    i = cuda.grid(1)
    out[i] = d


@idiom
def local_array_assigned_from_a_slice(m, out):
    i = cuda.grid(1)
    local = cuda.local.array(4, np.float32)
    local[:] = m[i]
    out[i, 0] = local[1]


@idiom
def local_array_filled_by_a_slice(out):
    i = cuda.grid(1)
    local = cuda.local.array(4, np.float32)
    local[:] = 3
    local[1:3] = i
    out[i, 0] = local[1] + local[0]


@idiom
def match_with_a_guard_alone(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case 3 if i == 0:
            whole[i, 0] = 10
        case _ if k[i] < 0:
            whole[i, 0] = 20
        case _:
            whole[i, 0] = 30


@idiom
def match_without_a_default(k, whole):
    i = cuda.grid(1)
    match k[i] % 3:
        case 0:
            whole[i, 0] = 10
        case 1:
            return
    whole[i, 1] = 5


@idiom
def match_on_none_and_bools(b, n, whole):
    i = cuda.grid(1)
    match n:
        case None:
            whole[i, 0] = 1
        case _:
            whole[i, 0] = 2


@idiom
def match_on_a_float(x, whole):
    i = cuda.grid(1)
    match x[i]:
        case 1.5 | -2.25:
            whole[i, 0] = 1
        case math.pi:
            whole[i, 0] = 2


@idiom
def match_on_an_enumeration(whole):
    i = cuda.grid(1)
    match i:
        case Color.RED:
            whole[i, 0] = 1
        case Color.GREEN:
            whole[i, 0] = 2


@idiom
def match_on_a_capture(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case 3:
            whole[i, 0] = 1
        case v:
            whole[i, 0] = v


@idiom
def match_on_as(k, whole):
    i = cuda.grid(1)
    match k[i]:
        case 3 | 4 as v:
            whole[i, 0] = v


@idiom
def match_in_a_loop(k, whole):
    i = cuda.grid(1)
    for j in range(8):
        match k[j]:
            case 9:
                break
            case -1:
                continue
            case _:
                whole[i, 0] += k[j]


@idiom
def int_enum_stored_as_a_float(out):
    i = cuda.grid(1)
    out[i, 0] = Color.GREEN


@idiom
def int_enums_together(whole):
    i = cuda.grid(1)
    whole[i, 0] = Color.RED + Color.GREEN
    whole[i, 1] = Color.RED | Color.GREEN
    whole[i, 2] = Color.GREEN // 2


@idiom
def int_enum_shifts(whole):
    i = cuda.grid(1)
    whole[i, 0] = 1 << Color.GREEN


@idiom
def int_enum_negated(whole):
    i = cuda.grid(1)
    whole[i, 0] = -Color.GREEN


@idiom
def int_enum_divided(out):
    i = cuda.grid(1)
    out[i, 0] = i / Color.GREEN


@idiom
def int_enum_compared_with_a_float(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = x[i] < Color.GREEN


@idiom
def int_enum_compared(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = k[i] < Color.GREEN
    whole[i, 1] = Color.RED != Color.GREEN
    whole[i, 2] = Color.RED < Color.GREEN


@idiom
def int_enum_as_a_condition(whole):
    i = cuda.grid(1)
    if Color.RED:
        whole[i, 0] = 1


@idiom
def int_enum_as_a_bound(whole):
    i = cuda.grid(1)
    for j in range(Color.GREEN):
        whole[i, 0] += j


@idiom
def int_enum_as_a_shape(whole):
    i = cuda.grid(1)
    local = cuda.local.array(Color.GREEN, np.int32)
    local[0] = i
    whole[i, 0] = local[0]


@idiom
def int_enum_cast_by_numpy(out):
    i = cuda.grid(1)
    out[i, 0] = np.float32(Color.GREEN)


@idiom
def int_enum_as_a_float(out):
    i = cuda.grid(1)
    out[i, 0] = float(Color.GREEN)


@idiom
def int_enum_in_min(k, out):
    i = cuda.grid(1)
    out[i, 0] = min(k[i], Color.GREEN)


@idiom
def int_enum_chosen(k, whole):
    i = cuda.grid(1)
    c = Color.RED if k[i] > 2 else Color.GREEN
    whole[i, 0] = c


@idiom
def int_enum_in_an_argument(whole):
    i = cuda.grid(1)
    whole[i, 0] = inlined(Color.RED)


@idiom
def int_enum_indexes_a_tuple(whole):
    i = cuda.grid(1)
    whole[i, 0] = (1, 2, 3)[Color.RED]


@idiom
def attribute_of_an_object(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * CONFIG.scale


@idiom
def attribute_of_a_module(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * math.pi + operator.index(3) * 0


@idiom
def attribute_of_a_named_tuple(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * SHADE.r


@idiom
def array_and_its_transpose_chosen(c, k, whole):
    i = cuda.grid(1)
    a = c[:, :, 0] if i % 2 else c[0].T
    whole[i, 0] = a[1, 0]
    whole[i, 1] = a.shape[0]


@idiom
def contiguous_and_strided_arrays_chosen(x, m, out):
    i = cuda.grid(1)
    a = x if i % 2 else m[:, 1]
    out[i, 0] = a[i]


@idiom
def local_and_global_array_chosen(x, out):
    i = cuda.grid(1)
    local = cuda.local.array(8, np.float32)
    for j in range(8):
        local[j] = j
    a = x if i % 2 else local
    out[i, 0] = a[i]


@idiom
def two_local_arrays_swapped(out):
    i = cuda.grid(1)
    a = cuda.local.array(2, np.float32)
    b = cuda.local.array(2, np.float32)
    a[0], b[0] = 1, 2
    for j in range(i):
        a, b = b, a
    out[i, 0] = a[0]


@idiom
def records_chosen(r, out):
    i = cuda.grid(1)
    one = r[i] if i % 2 else r[0]
    out[i, 0] = one.a


@idiom
def chosen_array_in_a_loop(x, y, out):
    i = cuda.grid(1)
    a = x if i % 2 else y
    for v in a:
        out[i, 0] += v
    for j, v in enumerate(a):
        out[i, 1] += j * v
    out[i, 2] = len(a)


@idiom
def chosen_array_written(x, y, out):
    i = cuda.grid(1)
    a = x if i % 2 else y
    a[i] = 7
    a[i] += 1
    out[i, 0] = x[i]
    out[i, 1] = y[i]


@idiom
def chosen_array_sliced(x, y, out):
    i = cuda.grid(1)
    a = x if i % 2 else y
    part = a[2:]
    if i < 6:
        out[i, 0] = part[i] + part.size
        part[i] = 3


@idiom
def chosen_array_atomically(x, y, out):
    i = cuda.grid(1)
    a = x if cuda.blockIdx.x else y
    cuda.atomic.add(a, i, 1)


@idiom
def chosen_row_of_a_matrix(m, out):
    i = cuda.grid(1)
    row = m[i] if i % 2 else m[7 - i]
    out[i, 0] = row[2]


@idiom
def string_compared_with_a_number(whole):
    i = cuda.grid(1)
    if MODE == 3:
        whole[i, 0] = 1


@idiom
def global_tuple_of_strings(whole):
    i = cuda.grid(1)
    if "a" in STRINGS:
        whole[i, 0] = 1
    if STRINGS[1] == "b":
        whole[i, 1] = 1
    for name in STRINGS:
        whole[i, 2] += name == "b"


@idiom
def strings_ordered(whole):
    i = cuda.grid(1)
    if MODE < OTHER:
        whole[i, 0] = 1


@idiom
def string_not_in_a_tuple(whole):
    i = cuda.grid(1)
    if MODE not in ("slow", "slower"):
        whole[i, 0] = 1


@idiom
def none_in_a_variable(whole):
    i = cuda.grid(1)
    v = None
    if v is None:
        whole[i, 0] = 1


@idiom
def tuple_of_one_repeated(whole):
    i = cuda.grid(1)
    a = (0,) * 4
    whole[i, 0] = a[i % 4] + len(a)


@idiom
def tuple_repeated_by_a_global(whole):
    i = cuda.grid(1)
    a = (1,) * N
    whole[i, 0] = len(a)


@idiom
def tuple_of_arrays_added(x, y, out):
    i = cuda.grid(1)
    a = (x,) + (y,)
    out[i, 0] = a[0][i] + a[1][i]


@idiom
def named_tuple_compared(point, whole):
    i = cuda.grid(1)
    whole[i, 0] = point == point
    whole[i, 1] = point == (1.5, 4)


@idiom
def named_tuple_added(point, whole):
    i = cuda.grid(1)
    whole[i, 0] = len(point + (1,))


@idiom
def tuples_of_strings_compared(whole):
    i = cuda.grid(1)
    whole[i, 0] = ("a", 1) == ("a", 1)


@idiom
def tuple_compared_with_a_number(whole):
    i = cuda.grid(1)
    whole[i, 0] = (1, 2) == 1


@idiom
def tuples_nested_compared(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = ((k[i], 1), 2) < ((3, 0), 4)
    whole[i, 1] = ((k[i], 1), 2) == ((3, 1), 2)


@idiom
def tuple_in_a_tuple_of_tuples(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = (k[i], i) in ((3, 0), (4, 2))
    whole[i, 1] = (1, 0) in OFFSETS


@idiom
def count_of_a_tuple(whole):
    i = cuda.grid(1)
    whole[i, 0] = (1, 2, 1).count(1)


@idiom
def tuple_sliced(whole):
    i = cuda.grid(1)
    a = (1, 2, 3, 4)
    whole[i, 0] = a[::-1][0] + len(a[1:3]) + a[-2:][0]


@idiom
def tuple_sliced_by_a_variable(whole):
    i = cuda.grid(1)
    a = (1, 2, 3, 4)
    whole[i, 0] = len(a[:i])


@idiom
def tuple_indexed_out_of_it(whole):
    i = cuda.grid(1)
    a = (1, 2)
    whole[i, 0] = a[2]


@idiom
def shapes_added(m, x, whole):
    i = cuda.grid(1)
    shape = m.shape + x.shape
    whole[i, 0] = len(shape) * 100 + shape[2]


@idiom
def min_of_a_shape(m, whole):
    i = cuda.grid(1)
    whole[i, 0] = min(m.shape)
    whole[i, 1] = max(m.shape[0], m.shape[1])


@idiom
def product_of_a_shape(c, whole):
    i = cuda.grid(1)
    size = 1
    for n in c.shape:
        size *= n
    whole[i, 0] = size


@idiom
def index_by_a_shape(x, m, out):
    i = cuda.grid(1)
    out[i, 0] = x[m.shape[1]]


@idiom
def ndindex_in_a_variable(out):
    i = cuda.grid(1)
    places = np.ndindex(2, 2)
    for p, q in places:
        out[i, 0] += p * 2 + q


@idiom
def ndindex_of_variables(k, out):
    i = cuda.grid(1)
    for p, q in np.ndindex(i, 2):
        out[i, 0] += p * 2 + q


@idiom
def ndindex_of_a_tuple(out):
    i = cuda.grid(1)
    for p, q in np.ndindex((2, 3)):
        out[i, 0] += p * 2 + q


@idiom
def enumerate_of_ndindex(out):
    i = cuda.grid(1)
    for j, (p, q) in enumerate(np.ndindex(2, 3)):
        out[i, 0] += p * 2 + q * j


@idiom
def ndenumerate_of_a_view(m, out):
    i = cuda.grid(1)
    for (p,), v in np.ndenumerate(m[i]):
        out[i, 0] += v * p


@idiom
def flat_assigned(out):
    i = cuda.grid(1)
    out.flat[i * 8] = i


@idiom
def flat_length(m, out):
    i = cuda.grid(1)
    out[i, 0] = len(m.flat)


@idiom
def ellipsis_assigned_whole(x, out):
    i = cuda.grid(1)
    out[i, ..., 1] = x[i]


@idiom
def ellipsis_alone_assigned(out):
    i = cuda.grid(1)
    if i == 0:
        out[...] = 2


@idiom
def ellipsis_incremented(out):
    i = cuda.grid(1)
    out[i, ...] += 2


@idiom
def two_ellipses(c, whole):
    i = cuda.grid(1)
    whole[i, 0] = c[..., 1, ...][0, 0]


@idiom
def ellipsis_of_everything(c, whole):
    i = cuda.grid(1)
    whole[i, 0] = c[i, 1, 1, ...]


@idiom
def ellipsis_behind_slices(c, whole):
    i = cuda.grid(1)
    whole[i, 0] = c[1:, ..., 0][i % 7, 2]
    whole[i, 1] = c[..., 1:, 1][i, 2]


@idiom
def new_axis_twice(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[None, :, None][0, i, 0]


@idiom
def new_axis_assigned(out):
    i = cuda.grid(1)
    out[i, None] = 3


@idiom
def new_axis_and_an_index(m, out):
    i = cuda.grid(1)
    a = m[None, i]
    out[i, 0] = a[0, 1] + a.ndim


@idiom
def slice_object_between(m, out):
    i = cuda.grid(1)
    s = slice(1, 3)
    out[i, 0] = m[i, s][1]
    out[i, s] = 5


@idiom
def slice_object_of_one_bound(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[slice(3)][i % 3]


@idiom
def slice_object_passed_on(x, out):
    i = cuda.grid(1)
    out[i, 0] = taken(x, slice(i, i + 1))


@cuda.jit(device=True)
def taken(a, s):
    return a[s][0]


@idiom
def slice_that_varies_with_a_step(x, out):
    i = cuda.grid(1)
    a = x[i::2]
    out[i, 0] = a[0] + a.size


@idiom
def slice_of_varying_length_assigned(out):
    i = cuda.grid(1)
    out[i, :i] = 1


@idiom
def power_of_two_constants(out):
    i = cuda.grid(1)
    out[i, 0] = 2**31 + 2**32
    out[i, 1] = 10**18


@idiom
def constant_beyond_64_bits_written_out(out):
    i = cuda.grid(1)
    out[i, 0] = 18446744073709551616


@idiom
def unsigned_constant(whole):
    i = cuda.grid(1)
    whole[i, 0] = 0xFFFFFFFFFFFFFFFF >> 60


@idiom
def hexadecimal_mask(w, whole):
    i = cuda.grid(1)
    whole[i, 0] = w[i] & 0xFFFFFFFF


@idiom
def raises_with_a_constant(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise ValueError("too many", 3)
    out[i, 0] = x[i]


@idiom
def raises_with_an_f_string(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise ValueError(f"too many {i}")
    out[i, 0] = x[i]


@idiom
def raises_from(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise ValueError("x") from None
    out[i, 0] = x[i]


@idiom
def raises_again(x, out):
    i = cuda.grid(1)
    if i > 100:
        raise
    out[i, 0] = x[i]


@idiom
def asserts_with_an_f_string(x, out):
    i = cuda.grid(1)
    assert i < 8, f"too many {i}"
    out[i, 0] = x[i]


@idiom
def multiplies_matrices(m, out):
    i = cuda.grid(1)
    a = m @ m
    out[i, 0] = a[0]


@idiom
def inverts_a_bool(b, whole):
    i = cuda.grid(1)
    whole[i, 0] = ~b[i]
    whole[i, 1] = not b[i]
    whole[i, 2] = b[i] ^ True


@idiom
def subtracts_bools(b, whole):
    i = cuda.grid(1)
    whole[i, 0] = b[i] - b[0]
    whole[i, 1] = b[i] & b[0]


@idiom
def isinstance_of_others(x, k, z, whole):
    i = cuda.grid(1)
    whole[i, 0] = isinstance(k[i], int)
    whole[i, 1] = isinstance(x[i], (int, float))
    whole[i, 2] = isinstance(z[i], complex)
    whole[i, 3] = isinstance((1, 2), tuple)
    whole[i, 4] = isinstance(x[i], np.float32)


@idiom
def isinstance_of_64_bits(d, w, b, z, whole):
    i = cuda.grid(1)
    whole[i, 0] = isinstance(d[i], float)
    whole[i, 1] = isinstance(w[i], int)
    whole[i, 2] = isinstance(b[i], bool)
    whole[i, 3] = isinstance(d[i], np.float64)
    whole[i, 4] = isinstance(w[i], (float, np.int64))
    whole[i, 5] = isinstance(w[i], float)
    whole[i, 6] = isinstance(b[i], int)


@idiom
def isinstance_of_numpys(x, k, whole):
    i = cuda.grid(1)
    whole[i, 0] = isinstance(x[i], np.float32)
    whole[i, 1] = isinstance(k[i], np.int32)
    whole[i, 2] = isinstance(k[i], np.integer)


@idiom
def hasattr_of_an_array(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = hasattr(x, "shape")


@idiom
def callable_of_a_function(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = callable(affine)


@idiom
def id_of_an_array(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = id(x) * 0


@idiom
def next_of_an_iterator(x, out):
    i = cuda.grid(1)
    out[i, 0] = next(iter(x))


@idiom
def iter_in_a_loop(x, out):
    i = cuda.grid(1)
    for v in iter(x):
        out[i, 0] += v


@idiom
def chr_of_a_number(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(chr(65))


@idiom
def bin_of_a_number(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(bin(i))


@idiom
def exponent_of_zero(k, out):
    i = cuda.grid(1)
    out[i, 0] = k[i] ** 0
    out[i, 1] = 0**i
    out[i, 2] = k[i] ** -1


@idiom
def float_methods(x, d, out):
    i = cuda.grid(1)
    out[i, 0] = d[i].is_integer()


@idiom
def bit_length_of_a_number(k, out):
    i = cuda.grid(1)
    out[i, 0] = k[i].bit_length()


@idiom
def real_of_a_number(x, k, out):
    i = cuda.grid(1)
    out[i, 0] = x[i].real + k[i].imag


@idiom
def sums_and_extremes_of_an_array(x, k, u, out):
    i = cuda.grid(1)
    out[i, 0] = x.sum()
    out[i, 1] = np.sum(k)
    out[i, 2] = x.prod()
    out[i, 3] = x.argmin()
    out[i, 4] = np.argmax(k)
    out[i, 5] = x.mean()
    out[i, 6] = u.sum()
    out[i, 7] = np.prod(u)


@idiom
def spread_of_an_array(x, k, b, out):
    i = cuda.grid(1)
    out[i, 0] = x.var()
    out[i, 1] = np.std(k)
    out[i, 2] = np.any(b)
    out[i, 3] = b.all()
    out[i, 4] = np.count_nonzero(k)
    out[i, 5] = np.mean(k)
    out[i, 6] = x.any()


@idiom
def sum_of_a_row(m, out):
    i = cuda.grid(1)
    out[i, 0] = m[i].sum()
    out[i, 1] = np.sum(m)
    out[i, 2] = m[i, 1:].max() if False else max(m[i])


@idiom
def sum_over_an_axis(m, out):
    i = cuda.grid(1)
    out[i, 0] = np.sum(m, 0)[i]


@idiom
def min_of_an_array(x, k, b, out):
    i = cuda.grid(1)
    out[i, 0] = min(x)
    out[i, 1] = max(k)
    out[i, 2] = sum(k)
    out[i, 3] = sum(x, 2)


@idiom
def np_min_of_an_array(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.min(x)


@idiom
def np_searchsorted(d, out):
    i = cuda.grid(1)
    out[i, 0] = np.searchsorted(d, 0.5 * i)


@idiom
def np_of_numbers(x, z, k, out):
    i = cuda.grid(1)
    out[i, 0] = np.real(z[i]) + np.imag(z[i])
    out[i, 1] = np.conj(z[i]).imag
    out[i, 2] = np.round(x[i])
    out[i, 3] = np.around(x[i], 1)
    out[i, 4] = np.true_divide(k[i], 2)
    out[i, 5] = np.bitwise_not(k[i])


@idiom
def fill_of_a_local_array(out):
    i = cuda.grid(1)
    local = cuda.local.array(4, np.float32)
    local.fill(0.1)
    out[i, 0] = local[3]


@idiom
def keyword_grid(out):
    i = cuda.grid(ndim=1)
    out[i, 0] = 1


@idiom
def keyword_shape(out):
    i = cuda.grid(1)
    local = cuda.local.array(shape=3, dtype=np.float32)
    local[0] = i
    out[i, 0] = local[0]


@idiom
def closure_factory(x, out):
    i = cuda.grid(1)
    out[i, 0] = scaled_by_three(x[i])


def scaler(factor):
    @cuda.jit(device=True)
    def scale(v):
        return v * factor

    return scale


scaled_by_three = scaler(3)


class Settings:
    def __init__(self):
        self.scale = 0.5


CONFIG = Settings()


# ----------------------------------------------------------------------------------------- different things per thread


@cuda.jit(device=True)
def positive_or_none(v):
    if v > 0:
        return v


@cuda.jit(device=True)
def first_above(a, limit):
    for j in range(a.size):
        if a[j] > limit:
            return j
    return None


@cuda.jit(device=True)
def mode_of(i):
    if i % 3 == 0:
        return "a"
    elif i % 3 == 1:
        return "b"
    return "c"


@cuda.jit(device=True)
def row_of(m, i, flag):
    if flag:
        return m[i]
    return m[0]


@cuda.jit(device=True)
def pair_or_other(i):
    if i % 2:
        return i, 1
    return 0, 2


@idiom
def optional_numbers(x, out):
    i = cuda.grid(1)
    v = positive_or_none(x[i])
    if v is None:
        out[i, 0] = -1
    else:
        out[i, 0] = v + 1


@idiom
def optional_numbers_of_a_loop(x, out):
    i = cuda.grid(1)
    j = first_above(x, np.float32(i))
    if j is not None:
        out[i, 0] = j
    else:
        out[i, 0] = -1


@idiom
def optional_numbers_in_a_loop(x, out):
    i = cuda.grid(1)
    for j in range(8):
        v = positive_or_none(x[j] - i)
        if v is not None:
            out[i, 0] += v
        out[i, 1] += v is None


@idiom
def optional_numbers_by_an_expression(x, out):
    i = cuda.grid(1)
    v = x[i] if i % 2 else None
    if v is not None:
        out[i, 0] = v


@idiom
def optional_numbers_compared(x, out):
    i = cuda.grid(1)
    v = x[i] if i % 2 else None
    out[i, 0] = v == None


@idiom
def optional_variable(x, out):
    i = cuda.grid(1)
    v = None
    if x[i] > 0:
        v = x[i]
    if v is not None:
        out[i, 0] = v


@idiom
def strings_of_a_function(whole):
    i = cuda.grid(1)
    mode = mode_of(i)
    if mode == "a":
        whole[i, 0] = 1
    elif mode == "b":
        whole[i, 0] = 2
    else:
        whole[i, 0] = 3
    whole[i, 1] = mode in ("a", "c")
    whole[i, 2] = mode != "c"


@idiom
def strings_that_change_in_a_loop(whole):
    i = cuda.grid(1)
    state = "start"
    for j in range(4):
        if state == "start" and j == i % 4:
            state = "found"
        elif state == "found":
            whole[i, 0] += 1


@idiom
def strings_of_two_variables_compared(whole):
    i = cuda.grid(1)
    a = "p" if i % 2 else "q"
    b = "p" if i % 3 else "q"
    whole[i, 0] = a == b
    whole[i, 1] = a != b


@idiom
def strings_matched_per_thread(whole):
    i = cuda.grid(1)
    match mode_of(i):
        case "a":
            whole[i, 0] = 1
        case "b" | "c" if i > 3:
            whole[i, 0] = 2
        case _:
            whole[i, 0] = 3


@idiom
def length_of_a_string_per_thread(whole):
    i = cuda.grid(1)
    a = "p" if i % 2 else "long"
    whole[i, 0] = len(a)


@idiom
def enumerations_per_thread(whole):
    i = cuda.grid(1)
    side = Side.LEFT
    if i % 3 == 0:
        side = Side.RIGHT
    whole[i, 0] = side == Side.RIGHT
    whole[i, 1] = side is Side.LEFT
    whole[i, 2] = side != Side.LEFT


@idiom
def value_of_an_enumeration_per_thread(whole):
    i = cuda.grid(1)
    side = Side.LEFT if i % 2 else Side.RIGHT
    whole[i, 0] = side.value


@idiom
def int_enumerations_per_thread(whole):
    i = cuda.grid(1)
    c = Color.RED
    if i % 3 == 0:
        c = Color.GREEN
    whole[i, 0] = c + 1
    whole[i, 1] = c == Color.GREEN


@idiom
def rows_of_a_function(m, out):
    i = cuda.grid(1)
    row = row_of(m, i, i % 2)
    out[i, 0] = row[1] + row.size


@idiom
def tuples_of_a_function(whole):
    i = cuda.grid(1)
    a, b = pair_or_other(i)
    whole[i, 0] = a * 10 + b
    whole[i, 1] = pair_or_other(i) == (0, 2)


@idiom
def arrays_of_three(x, y, d, m, out):
    i = cuda.grid(1)
    a = x if i % 3 == 0 else y if i % 3 == 1 else m[:, 2]
    out[i, 0] = a[i]
    out[i, 1] = a[-1]
    out[i, 2] = a[1:][0]


@idiom
def arrays_chosen_in_a_loop(x, y, out):
    i = cuda.grid(1)
    for j in range(4):
        a = x if (i + j) % 2 else y
        out[i, 0] += a[j]


@idiom
def matrices_chosen(m, out):
    i = cuda.grid(1)
    a = m if i % 2 else m[::-1]
    out[i, 0] = a[i, 1]
    out[i, 1] = a[0][3]
    out[i, 2] = a.T[2, i]
    out[i, 3] = a.shape[0] * 10 + a.ndim


@idiom
def arrays_of_other_lengths_chosen(x, out):
    i = cuda.grid(1)
    a = x[:3] if i % 2 else x[2:7]
    out[i, 0] = a.size
    for v in a:
        out[i, 1] += v
    for j in range(len(a)):
        out[i, 2] += a[j]
    out[i, 3] = a[-1]


@idiom
def arrays_in_a_chosen_tuple(x, y, out):
    i = cuda.grid(1)
    a, b = (x, y) if i % 2 else (y, x)
    out[i, 0] = a[i] - b[i]


@idiom
def array_or_a_part_of_it(x, out):
    i = cuda.grid(1)
    a = x
    if i > 3:
        a = x[4:]
    out[i, 0] = a[0]
    out[i, 1] = a.shape[0]


@idiom
def array_of_a_while_loop(x, y, out):
    i = cuda.grid(1)
    source, target = x, y
    step = 1
    while step <= i:
        target[i] = source[i] * 2
        source, target = target, source
        step *= 2
    out[i, 0] = source[i]


@idiom
def shared_arrays_swapped(x, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    first = cuda.local.array(4, np.float32)
    second = cuda.local.array(4, np.float32)
    for j in range(4):
        first[j] = x[j]
    for j in range(3):
        for e in range(4):
            second[e] = first[(e + 1) % 4] + 1
        first, second = second, first
    out[i, 0] = first[t]


@idiom
def tuples_compared_per_thread(x, k, whole):
    i = cuda.grid(1)
    best, at = (x[0], k[0]), 0
    for j in range(1, 8):
        now = (x[j] - i, k[j])
        if now < best or (now == best and j < at):
            best, at = now, j
    whole[i, 0] = at


@idiom
def tuples_of_unsigned_and_signed_compared(u, k, whole):
    i = cuda.grid(1)
    whole[i, 0] = (u[i], k[i]) < (k[i], 3)
    whole[i, 1] = (u[i],) == (k[i],)
    whole[i, 2] = (u[i], 1.5) >= (4, k[i])


@idiom
def tuple_of_nan_compared(x, whole):
    i = cuda.grid(1)
    nan = np.float32(math.nan)
    whole[i, 0] = (nan, 1) < (nan, 2)
    whole[i, 1] = (nan, 1) == (nan, 1)
    whole[i, 2] = (nan, 1) >= (1.0, 1)


@idiom
def table_of_tuples_per_thread(whole):
    i = cuda.grid(1)
    dx, dy = OFFSETS[i % 4]
    whole[i, 0] = dx * 10 + dy
    whole[i, 1] = NESTED[i % 2][1][i % 2]


@idiom
def table_of_named_tuples_per_thread(whole):
    i = cuda.grid(1)
    shade = SHADES[i % 2]
    whole[i, 0] = shade.r * 10 + shade.g


@idiom
def table_of_mixed_tuples_per_thread(out):
    i = cuda.grid(1)
    a, b = MIXED[i % 2]
    out[i, 0] = a * b


@idiom
def table_of_strings_per_thread(whole):
    i = cuda.grid(1)
    whole[i, 0] = STRINGS[i % 2] == "b"


@idiom
def sizes_of_slices_per_thread(x, whole):
    i = cuda.grid(1)
    whole[i, 0] = x[i:].size
    whole[i, 1] = x[:-i].size
    whole[i, 2] = x[i::3].size
    whole[i, 3] = x[i::-1].size
    whole[i, 4] = x[: i - 4 : -1].size
    whole[i, 5] = x[-i:].size
    whole[i, 6] = x[i : i - 2].size
    whole[i, 7] = x[i:100].size


@idiom
def elements_of_slices_per_thread(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i::-1][0]
    out[i, 1] = x[::-1][i]
    out[i, 2] = x[i::3][0]
    out[i, 3] = x[i:][-1]
    a = x[7 - i :: -2]
    for j in range(a.size):
        out[i, 4] += a[j]


@idiom
def slices_of_slices_per_thread(m, out):
    i = cuda.grid(1)
    part = m[i // 2 :, i % 2 :]
    out[i, 0] = part[0, 0] + part.shape[0] + part.shape[1]
    out[i, 1] = part[1:, ::2][0, 0] if part.shape[0] > 1 else 0


@idiom
def assigned_slices_per_thread(out):
    i = cuda.grid(1)
    out[i, i:] = 2
    out[i, : i // 2] = 1
    out[i, ::3] = 5


@idiom
def ndindex_per_thread_with_break(whole):
    i = cuda.grid(1)
    for p, q in np.ndindex(i, i):
        if p * q == 6:
            break
        whole[i, 0] += p * 3 + q
    else:
        whole[i, 1] = 1


@idiom
def ndindex_of_nothing(whole):
    i = cuda.grid(1)
    for p, q in np.ndindex(0, 3):
        whole[i, 0] += 1
    for p, q in np.ndindex(i, 0):
        whole[i, 1] += 1


@idiom
def enumerate_per_thread_with_continue(k, whole):
    i = cuda.grid(1)
    for j, v in enumerate(range(i, 12, 3), 2):
        if v % 2:
            continue
        whole[i, 0] += j * v


@idiom
def ends_of_loops_per_thread(k, whole):
    i = cuda.grid(1)
    for j, (dx, dy) in enumerate(OFFSETS):
        if dx * dy + j == i:
            whole[i, 0] = j
            break
    else:
        whole[i, 0] = 9
    whole[i, 1] = j


@idiom
def matches_in_functions(k, whole):
    i = cuda.grid(1)
    whole[i, 0] = kind(k[i])


@cuda.jit(device=True)
def kind(v):
    match v:
        case 1 | 2 | 3:
            return 10
        case 9:
            return 20
        case other:
            return other


@idiom
def matches_in_matches(k, whole):
    i = cuda.grid(1)
    match k[i] % 2:
        case 0:
            match i:
                case 2:
                    whole[i, 0] = 1
                case _:
                    whole[i, 0] = 2
        case 1:
            whole[i, 0] = 3


@idiom
def starred_calls_per_thread(x, out):
    i = cuda.grid(1)
    pair = (x[i], 3) if i % 2 else (x[0], 5)
    out[i, 0] = affine(*pair)
    out[i, 1] = star(*pair)
    out[i, 2] = affine(*pair, 1)
    out[i, 3] = max(*pair)


@idiom
def named_tuples_made_per_thread(x, out):
    i = cuda.grid(1)
    p = Point(x[i], 4)
    if i % 2:
        p = Point(x[0], 5)
    out[i, 0] = p.px * p.py


@idiom
def names_of_fields_in_a_loop(point, out):
    i = cuda.grid(1)
    for j in range(2):
        out[i, 0] += point[0] * j + point.py


@idiom
def defaults_of_functions_inside(x, out):
    def scaled(v, scale=3, shift=0.5):
        return v * scale + shift

    i = cuda.grid(1)
    out[i, 0] = scaled(x[i])
    out[i, 1] = scaled(x[i], 2, 1)


@idiom
def defaults_of_functions_inside_in_part(x, out):
    def scaled(v, scale=3, shift=0.5):
        return v * scale + shift

    i = cuda.grid(1)
    out[i, 1] = scaled(x[i], 2)


@idiom
def defaults_of_functions_inside_by_name(x, out):
    def scaled(v, scale=3, shift=0.5):
        return v * scale + shift

    i = cuda.grid(1)
    out[i, 1] = scaled(x[i], shift=1)


@idiom
def functions_inside_by_name(x, out):
    def scaled(v, scale, shift):
        return v * scale + shift

    i = cuda.grid(1)
    out[i, 1] = scaled(x[i], shift=1, scale=2)


@idiom
def not_of_a_tuple(x, whole):
    i = cuda.grid(1)
    a = (i,)
    whole[i, 0] = not a


@idiom
def not_of_a_string(whole):
    i = cuda.grid(1)
    mode = MODE
    whole[i, 0] = not mode
    whole[i, 1] = 1 if mode and i else 0


@idiom
def not_of_none(whole):
    i = cuda.grid(1)
    v = None
    whole[i, 0] = not v


@idiom
def none_as_a_condition(whole):
    i = cuda.grid(1)
    v = None
    if v:
        whole[i, 0] = 1
    else:
        whole[i, 0] = 2


@idiom
def optional_number_as_a_condition(x, out):
    i = cuda.grid(1)
    v = positive_or_none(x[i])
    if v:
        out[i, 0] = v


@idiom
def optional_number_used(x, out):
    i = cuda.grid(1)
    v = positive_or_none(abs(x[i]))
    out[i, 0] = v + 1


@idiom
def view_of_a_function(m, out):
    i = cuda.grid(1)
    out[i, 0] = row_alone(m, i)[1]


@cuda.jit(device=True)
def row_alone(m, i):
    return m[i]


@idiom
def part_of_a_function(x, out):
    i = cuda.grid(1)
    out[i, 0] = part_alone(x, i)[0]


@cuda.jit(device=True)
def part_alone(a, i):
    return a[i:]


@idiom
def array_back_from_a_function(x, out):
    i = cuda.grid(1)
    out[i, 0] = same(x)[i]


@cuda.jit(device=True)
def same(a):
    return a


@idiom
def local_array_of_a_function(x, out):
    i = cuda.grid(1)
    out[i, 0] = fresh(i)[0]


@cuda.jit(device=True)
def fresh(i):
    a = cuda.local.array(2, np.float32)
    a[0] = i
    return a


@idiom
def tuple_of_arrays_of_a_function(x, y, out):
    i = cuda.grid(1)
    a, b = swapped(x, y)
    out[i, 0] = a[i]


@idiom
def view_of_a_function_inside(m, out):
    def row(j):
        return m[j]

    i = cuda.grid(1)
    out[i, 0] = row(i)[1]


@idiom
def truth_of_tuples_and_strings(whole):
    i = cuda.grid(1)
    a = (i,)
    whole[i, 0] = 1 if a else 2
    whole[i, 1] = 1 if () else 2


@idiom
def length_of_ranges(whole):
    i = cuda.grid(1)
    whole[i, 0] = len(range(i))
    whole[i, 1] = len(range(i, 10, 3))
    whole[i, 2] = len(range(10, i, -4))
    whole[i, 3] = len(range(5, i))


@idiom
def sums_of_chosen_arrays(x, y, out):
    i = cuda.grid(1)
    a = x if i % 2 else y
    out[i, 0] = a.sum()
    out[i, 1] = a.mean()
    out[i, 2] = sum(a)


@idiom
def sums_of_matrices(m, c, out):
    i = cuda.grid(1)
    out[i, 0] = m.T.sum()
    out[i, 1] = m[:, 1].sum()
    out[i, 2] = c[:, 0].sum()
    out[i, 3] = m.T.argmax()
    out[i, 4] = np.argmin(c)


@idiom
def sums_of_bools_and_complex(b, z, out, complexes):
    i = cuda.grid(1)
    out[i, 0] = b.sum()
    complexes[i, 0] = z.sum()
    out[i, 1] = np.mean(b)
    complexes[i, 1] = z.mean()


@idiom
def extremes_with_nan(d, out):
    i = cuda.grid(1)
    local = cuda.local.array(4, np.float64)
    for j in range(4):
        local[j] = d[j]
    local[i % 4] = math.nan
    out[i, 0] = local.argmax()
    out[i, 1] = local.argmin()
    out[i, 2] = max(local)
    out[i, 3] = local.sum()


# ---------------------------------------------------------------------------------------------------- globals in nests

ARRAYS = (TABLE, TABLE2)
SINGLES = (np.float32(0.1), np.float32(0.3))
NAMED = {"a": 1}
FUNCTIONS = (math.sin, math.cos)
MANY = (("a", (1, 2.5)), ("b", (3, 4.5)))


@idiom
def global_tuple_of_arrays(out):
    i = cuda.grid(1)
    out[i, 0] = ARRAYS[0][i % 4] + ARRAYS[1][1, 2]


@idiom
def global_tuple_of_singles(x, out):
    i = cuda.grid(1)
    for w in SINGLES:
        out[i, 0] += w * x[i]


@idiom
def method_of_a_global_list(whole):
    i = cuda.grid(1)
    NUMBERS.append(i)
    whole[i, 0] = 1


@idiom
def method_of_a_global_dictionary(whole):
    i = cuda.grid(1)
    whole[i, 0] = NAMED.get("a")


@idiom
def global_tuple_of_functions(x, out):
    i = cuda.grid(1)
    out[i, 0] = FUNCTIONS[1](x[i] * 0)


@idiom
def global_tuple_of_strings_and_tuples(whole):
    i = cuda.grid(1)
    for name, pair in MANY:
        if name == "b":
            whole[i, 0] = pair[0] + 10 * pair[1]


@idiom
def tuple_of_closures(x, out):
    i = cuda.grid(1)
    pair = (affine, inlined)
    out[i, 0] = pair[1](x[i])
