"""Elementwise: one operation on every element of one or two arrays, of any strides and with broadcasting.

Chapter: notebooks/88_a_tape.ipynb.  PMPP 4e ch. 3 and 6.

It is what a tensor library needs under everything: sums, products, powers, exponentials, comparisons, copies. The work
is one operation for up to 12 bytes, so memory is the bound. What can cost more than memory is finding the elements. An
array is a pointer, a shape, and strides: how far apart neighbours along each dimension lie. A transposed array, a slice
and an array that is repeated along a dimension (its stride there is 0) are views: the same memory, other strides. To
turn a thread's number into an index of each dimension takes divisions, and the rungs differ in how many remain. Arrays
of 16 bits are half as many bytes: they are computed with in float32, and each result is rounded once.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.dtypes import held, known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width_of
from pmpp.runtime.views import span

DTYPES = ("float32", "float16", "bfloat16")
SHORT = DTYPES[1:]

# The operations by name, and the number by which the kernels know each. The first take one operand, the others two.
UNARY = ("copy", "negative", "absolute", "exp", "log", "sqrt", "reciprocal", "square", "sign")
BINARY = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "equal", "greater", "greater_equal")
OPERATIONS = {name: number for number, name in enumerate(UNARY + BINARY)}
(COPY, NEGATIVE, ABSOLUTE, EXP, LOG, SQRT, RECIPROCAL, SQUARE, SIGN) = range(len(UNARY))
(ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER, MAXIMUM, MINIMUM, EQUAL, GREATER, GREATER_EQUAL) = range(
    len(UNARY), len(OPERATIONS)
)
BLOCK = 256  # threads a block
DIMENSIONS = 4  # that a kernel can tell apart
ITEMSIZE = 4  # bytes of a float32
ANY = tuple(range(33))  # ranks that are accepted: NumPy has up to 32 dimensions, and 0 of them for one number


def reference(a: np.ndarray, b: typing.Any = None, op: str = "add") -> np.ndarray:
    """``op`` of ``a``, or of ``a`` and ``b``, an array or a number, in float64; broadcast as in NumPy."""
    functions = {
        "copy": lambda x, y: x,
        "negative": lambda x, y: -x,
        "absolute": lambda x, y: abs(x),
        "exp": lambda x, y: np.exp(x),
        "log": lambda x, y: np.log(x),
        "sqrt": lambda x, y: np.sqrt(x),
        "reciprocal": lambda x, y: 1 / x,
        "square": lambda x, y: x * x,
        "sign": lambda x, y: np.sign(x),
        "add": lambda x, y: x + y,
        "subtract": lambda x, y: x - y,
        "multiply": lambda x, y: x * y,
        "divide": lambda x, y: x / y,
        "power": np.power,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "equal": lambda x, y: (x == y) * 1.0,
        "greater": lambda x, y: (x > y) * 1.0,
        "greater_equal": lambda x, y: (x >= y) * 1.0,
    }
    with np.errstate(all="ignore"):
        first = a.astype(np.float64)
        second = None if b is None else np.asarray(np.float32(b)).astype(np.float64)
        result = np.asarray(functions[op](first, second), np.float64)
        return held(result, a.dtype) if a.dtype.name in SHORT else held(result, np.float32)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(a, b, op)``."""
    rng = np.random.default_rng(19) if rng is None else rng

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    made: dict[str, tuple] = {name: (normal(7, 41), None, name) for name in UNARY}
    made["log"] = made["sqrt"] = (abs(normal(7, 41)), None, "log")
    made["sqrt"] = (made["log"][0], None, "sqrt")
    made |= {name: (normal(5, 30), normal(5, 30), name) for name in BINARY}
    made["power"] = (abs(normal(5, 30)), normal(5, 30), "power")
    made["equal"] = (np.round(normal(9, 9)), np.round(normal(9, 9)), "equal")
    for n in (0, 1, 3, 4, 5, BLOCK - 1, BLOCK + 1, 4 * BLOCK + 1):
        made[f"n = {n}"] = normal(n), normal(n), "add"
    made["a number"] = (normal(3, 50), 0.1, "multiply")
    made["a power of a number"] = (normal(33), 3, "power")
    made["a bias"] = (normal(6, 12), normal(12), "add")
    made["a bias of channels"] = (normal(3, 5, 4, 4), normal(5, 1, 1), "add")
    made["a column"] = (normal(9, 8), normal(9, 1), "subtract")
    made["an outer product"] = (normal(13, 1), normal(1, 20), "multiply")
    made["both repeated"] = (normal(3, 1, 4), normal(1, 5, 1), "add")
    made["ranks that differ"] = (normal(4), normal(2, 3, 4), "divide")
    made["a scalar array"] = (normal(2, 3), normal(1), "maximum")
    made["no rows"] = (normal(0, 4), normal(4), "add")
    extremes = np.float32([0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan, 1])
    pairs = [each.reshape(-1).copy() for each in np.meshgrid(extremes, extremes)]
    made |= {f"non-finite, {op}": (*pairs, op) for op in ("add", "multiply", "divide", "maximum", "minimum", "greater")}
    made |= {f"non-finite, {op}": (extremes, None, op) for op in ("exp", "sign", "absolute", "sqrt", "reciprocal")}
    for dtype in known(SHORT):
        short = {name: (abs(normal(7, 41)).astype(dtype), None, name) for name in UNARY}
        short |= {name: (abs(normal(5, 30)).astype(dtype), normal(5, 30).astype(dtype), name) for name in BINARY}
        short["n = 2049"] = normal(2049).astype(dtype), normal(2049).astype(dtype), "add"
        short["a number"] = normal(3, 48).astype(dtype), 0.1, "multiply"
        short["a bias"] = normal(6, 24).astype(dtype), normal(24).astype(dtype), "add"
        short["a bias of channels"] = normal(3, 5, 4, 4).astype(dtype), normal(5, 1, 1).astype(dtype), "add"
        short["a column"] = normal(9, 16).astype(dtype), normal(9, 1).astype(dtype), "subtract"
        with np.errstate(over="ignore"):
            short["non-finite"] = *(each.astype(dtype) for each in pairs), "multiply"
        made |= {f"{dtype}, {name}": case for name, case in short.items()}
    return made


def tolerance(a: np.ndarray, b: typing.Any = None, op: str = "add") -> typing.Any:
    """How far from `reference` a right result may be, element by element.

    Copies, signs, comparisons, maxima and minima are exact. Sums, products, quotients and roots are rounded once: half
    an ulp, which is at most 2^-24 of the result; below 2^-126 they may be off by a spacing. exp and log are good to 2
    ulp, and a power to 4 (CUDA C++ programming guide, "Mathematical functions"). A result of 16 bits is rounded once
    more.
    """
    if op in ("copy", "negative", "absolute", "sign", "maximum", "minimum", "equal", "greater", "greater_equal"):
        return 0.0
    half_ulps = {"exp": 4, "log": 4, "power": 8, "divide": 2, "reciprocal": 2}.get(op, 1)
    with np.errstate(all="ignore"):
        size = np.abs(reference(a, b, op))
    size = np.where(np.isfinite(size), size, 0)
    allowed = half_ulps * 2.0**-24 * size + 2.0**-148
    return allowed + rounding(size + allowed, a.dtype) if a.dtype.name in SHORT else allowed


def cost(n: int, operands: int = 2, itemsize: int = 4) -> Cost:
    """n operations; each operand read once, the result written once. What is repeated is read once altogether."""
    return Cost(flops=n, bytes=(operands + 1) * n * itemsize)


def arguments(a, b=None, op="add", *, out=None, stream=0) -> Problem:
    """One operation on every element of ``a``, or of ``a`` and ``b``.

    Args:
        a: an array of float32, float16 or bfloat16. A device array may be a view of any strides that
            are not negative: transposed, sliced.
        b: another of that dtype, or a number; None for an operation on one operand. Shapes that differ are broadcast as
            in NumPy: from the last dimension on, extents are equal, or one of them is 1 and is repeated. What remains
            after neighbouring dimensions are joined must have at most 4 dimensions.
        op: on one operand "copy", "negative", "absolute", "exp", "log", "sqrt", "reciprocal", "square" or "sign"; on
            two "add", "subtract", "multiply", "divide", "power", "maximum", "minimum" (NaN if one is NaN), "equal",
            "greater" or "greater_equal" (1.0 where it is so, 0.0 elsewhere).
        out: a device array of the result's shape and the dtype of ``a`` in C order, or None to allocate one. It may be
            ``a`` or ``b``, where these have its shape and are in C order, and is otherwise apart from them in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Numbers of 16 bits are computed with in float32, and the
    result is rounded to the nearest.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: NumPy's rules of broadcasting.

    >>> from pmpp.kernels import elementwise
    >>> elementwise.tiled(np.float32([[1, 2]]), 0.5, "add").copy_to_host()
    array([[1.5, 2.5]], dtype=float32)
    >>> elementwise.tiled(np.float32([[1], [2]]), np.float32([10, 20]), "add").copy_to_host()
    array([[11., 21.],
           [12., 22.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=ANY, layout="any", stream=stream)
    if not isinstance(op, str) or op not in OPERATIONS:
        raise ValueError(f"op must be one of {', '.join(OPERATIONS)}, was {op!r}")
    number = np.float32(0)
    if op in UNARY:
        if b is not None:
            raise ValueError(f"b must be None, since {op} takes one operand, was {_described(b)}")
        second = None
    elif isinstance(b, int | float | np.integer | np.floating):
        second, number = None, as_number("b", b)
    elif b is None:
        raise ValueError(f"b must be an array or a number, since {op} takes two operands, was None")
    else:
        second = device.as_input("b", b, dtypes=a.dtype, ndim=ANY, layout="any", stream=stream)
    shapes = (a.shape,) if second is None else (a.shape, second.shape)
    shape = broadcast(*shapes)
    may_be = tuple(
        name for name, x in (("a", a), ("b", second)) if x is not None and x.shape == shape and x.is_c_contiguous()
    )
    out = device.as_output(
        "out", out, shape=shape, dtype=a.dtype, apart={"a": a, "b": second}, may_be=may_be, stream=stream
    )
    return problem(OPERATIONS[op], a, second, number, out, stream)


def _described(b: typing.Any) -> str:
    return f"an array of shape {b.shape}" if hasattr(b, "shape") else repr(b)


@functools.lru_cache(1024)
def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result. Raises ValueError, with both shapes, if they do not fit.

    >>> broadcast((4, 1, 3), (2, 1))
    (4, 2, 3)
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        words = " and ".join(map(str, shapes))
        raise ValueError(f"a and b must have extents that are equal or 1, from the last on, had {words}") from None


# --------------------------------------------------------------------------------------------------- shapes and strides


class Extents(typing.NamedTuple):
    """The shape of the result as four dimensions, the last one fastest; those that are missing are 1."""

    d0: int
    d1: int
    d2: int
    d3: int

    @property
    def size(self) -> int:
        """How many elements there are."""
        return self.d0 * self.d1 * self.d2 * self.d3


class Steps(typing.NamedTuple):
    """How many elements apart an array's neighbours along each dimension lie; 0 where it is repeated."""

    d0: int
    d1: int
    d2: int
    d3: int


class Plan(typing.NamedTuple):
    """Where the elements of a result, its operands and itself lie."""

    extents: Extents
    first: Steps
    second: Steps
    out: Steps
    dimensions: int  # those that are not 1


def problem(number_of_op: int, a: typing.Any, b: typing.Any, number: typing.Any, out: typing.Any, stream: typing.Any):
    """A problem whose arrays are checked. ``out`` may have any strides but 0."""
    return Problem(
        out,
        stream=stream,
        op=number_of_op,
        a=span(a),
        b=span(a if b is None else b),
        number=number,
        is_number=b is None,
        out=span(out),
        layouts=tuple(map(layout_of, (a, a if b is None else b, out))),
    )


def layout_of(x: typing.Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides; the strides as if every element had 4 bytes."""
    size = x.dtype.itemsize
    return x.shape, x.strides if size == ITEMSIZE else tuple(stride // size * ITEMSIZE for stride in x.strides)


@functools.lru_cache(4096)
def plan_of(a: tuple, b: tuple, out: tuple, join: bool = True) -> Plan:
    """The plan of arrays that are given as pairs of shape and strides; with ``join``, of as few dimensions as possible.

    Neighbouring dimensions become one where every array steps through both as through one: the outer stride is the
    inner stride times the inner extent. Raises ValueError where more than four are left.

    >>> plan_of(((6, 1, 4), (16, 16, 4)), ((1,), (4,)), ((6, 5, 4), (80, 16, 4))).extents
    Extents(d0=1, d1=6, d2=5, d3=4)
    """
    shape = out[0]
    found = [[*shape], *(_steps(one, shape) for one in (a, b, out))]
    columns = [column for column in zip(*found, strict=True) if column[0] != 1]
    joined: list[tuple] = []
    for column in columns:
        extent, *steps = column
        if join and joined and all(outer == inner * extent for outer, inner in zip(joined[-1][1:], steps, strict=True)):
            joined[-1] = (joined[-1][0] * extent, *steps)
        else:
            joined.append(column)
    if len(joined) > DIMENSIONS:
        if not join:
            return plan_of(a, b, out)
        raise ValueError(
            f"a and b must leave at most {DIMENSIONS} dimensions after neighbours are joined, left {len(joined)} of a "
            f"result of shape {shape}: copy one of them first"
        )
    missing = [(1, 0, 0, 0)] * (DIMENSIONS - len(joined))
    extents, *steps = zip(*missing, *joined, strict=True)
    return Plan(Extents(*extents), *(Steps(*each) for each in steps), len(joined))


def _steps(array: tuple, shape: tuple[int, ...]) -> list[int]:
    """Strides in elements along the dimensions of ``shape``."""
    extents, strides = array
    missing = len(shape) - len(extents)
    own = [0 if extent == 1 else stride // ITEMSIZE for extent, stride in zip(extents, strides, strict=True)]
    return [0] * missing + own


# ------------------------------------------------------------------------------------------------------ the operations


@cuda.jit(device=True)
def apply_unary(op, x):
    """The operation on one operand. All threads take the same branch: it is one operation a launch."""
    if op == COPY:
        return x
    if op == NEGATIVE:
        return -x
    if op == ABSOLUTE:
        return abs(x)
    if op == EXP:
        return math.exp(x)
    if op == LOG:
        return math.log(x)
    if op == SQRT:
        return math.sqrt(x)
    if op == RECIPROCAL:
        return np.float32(1) / x
    if op == SQUARE:
        return x * x
    zero, one = np.float32(0), np.float32(1)
    return one if x > zero else -one if x < zero else x  # a zero keeps its sign, a NaN stays NaN


@cuda.jit(device=True)
def apply_binary(op, x, y):
    """The operation on two operands."""
    zero, one = np.float32(0), np.float32(1)
    if op == ADD:
        return x + y
    if op == SUBTRACT:
        return x - y
    if op == MULTIPLY:
        return x * y
    if op == DIVIDE:
        return x / y
    if op == POWER:
        return math.pow(x, y)
    if op == MAXIMUM:
        return x if x > y or x != x else y  # of a NaN nothing is true but that it differs from itself
    if op == MINIMUM:
        return x if x < y or x != x else y
    if op == EQUAL:
        return one if x == y else zero
    if op == GREATER:
        return one if x > y else zero
    return one if x >= y else zero


# ----------------------------------------------------------------------------------------------- an index and divisions


@cuda.jit(device=True)
def element(op, a, at_a, b, at_b, number, is_number):
    """One element of the result, from the places of its operands."""
    if op < ADD:
        return apply_unary(op, widened(a[at_a]))
    return apply_binary(op, widened(a[at_a]), number if is_number else widened(b[at_b]))


@cuda.jit(device=True)
def place(steps, i0, i1, i2, i3):
    """Where the element of this index lies."""
    return i0 * steps.d0 + i1 * steps.d1 + i2 * steps.d2 + i3 * steps.d3


@cuda.jit
def indexed_kernel(op, a, b, number, is_number, out, plan):
    i, extents = cuda.grid(1), plan.extents
    if i < extents.d0 * extents.d1 * extents.d2 * extents.d3:
        i3, i = i % extents.d3, i // extents.d3
        i2, i = i % extents.d2, i // extents.d2
        i1, i0 = i % extents.d1, i // extents.d1
        at_a, at_b = place(plan.first, i0, i1, i2, i3), place(plan.second, i0, i1, i2, i3)
        out[place(plan.out, i0, i1, i2, i3)] = element(op, a, at_a, b, at_b, number, is_number)


@rung(indexed_kernel)
def indexed(p):
    """A thread for each element: its number becomes four indices, and these a place in each array.

    Leaves: six divisions of 64 bits for one operation, even where all arrays lie one element after the other.
    """
    plan = plan_of(*p.layouts, join=False)
    indexed_kernel[blocks(plan.extents.size, BLOCK), BLOCK, p.stream](
        p.op, p.a, p.b, p.number, p.is_number, p.out, plan
    )


# -------------------------------------------------------------------------------------------------------- fewer of them

SMALL = 2**31  # below this, numbers of elements fit into 32 bits, and a division takes a fraction of the time


@cuda.jit
def straight_kernel(op, a, b, number, is_number, out, plan):
    i = np.int64(cuda.grid(1))
    if i < plan.extents.d3:
        at_a, at_b = i * plan.first.d3, i * plan.second.d3
        out[i * plan.out.d3] = element(op, a, at_a, b, at_b, number, is_number)


@cuda.jit(device=True)
def index_of(i, extents):
    """The index of element i of fewer than 2^31, by divisions of 32 bits."""
    left = np.uint32(i)
    i3, left = left % np.uint32(extents.d3), left // np.uint32(extents.d3)
    i2, left = left % np.uint32(extents.d2), left // np.uint32(extents.d2)
    i1, i0 = left % np.uint32(extents.d1), left // np.uint32(extents.d1)
    return np.int32(i0), np.int32(i1), np.int32(i2), np.int32(i3)


@cuda.jit
def small_kernel(op, a, b, number, is_number, out, plan, size):
    i = cuda.grid(1)
    if i < size:
        i0, i1, i2, i3 = index_of(i, plan.extents)
        at_a, at_b = place(plan.first, i0, i1, i2, i3), place(plan.second, i0, i1, i2, i3)
        out[place(plan.out, i0, i1, i2, i3)] = element(op, a, at_a, b, at_b, number, is_number)


@functools.lru_cache(4096)
def in_32_bits(plan: Plan) -> Plan | None:
    """The plan in numbers of 32 bits, of which two multiply in one instruction; None where one of them is too great."""
    extents, *steps = plan[:4]
    if extents.size >= SMALL or max(map(max, steps)) >= SMALL:
        return None
    steps = (Steps(*map(np.int32, each)) for each in steps)
    return Plan(Extents(*map(np.int32, extents)), *steps, plan.dimensions)


@rung(straight_kernel, small_kernel, indexed_kernel)
def joined(p):
    """Neighbouring dimensions that lie together become one. What is left of the divisions takes 32 bits.

    Arrays that all lie one element after the other have one dimension left, and no division.

    Leaves: a thread asks for 4 bytes of each operand, and each element needs an index of its own.
    """
    plan = plan_of(*p.layouts)
    size, small = plan.extents.size, in_32_bits(plan)
    if plan.dimensions <= 1:
        kernel, more = straight_kernel, (plan,)
    else:
        kernel, more = (indexed_kernel, (plan,)) if small is None else (small_kernel, (small, size))
    kernel[blocks(size, BLOCK), BLOCK, p.stream](p.op, p.a, p.b, p.number, p.is_number, p.out, *more)


# ----------------------------------------------------------------------------------------------------- four neighbours

# How a thread comes by four neighbours of an operand: one load each, one number that is repeated, or one 128-bit load.
# Of 16 bits it takes eight neighbours.
EACH, SAME, VECTOR = range(3)
FOUR, EIGHT = (np.float32(0),) * 4, (np.float32(0),) * 8  # they tell a function how many, when it is compiled


@cuda.jit(device=True)
def after(index, extents):
    """The index of the next element: as an odometer counts."""
    i0, i1, i2, i3 = index
    i3 += 1
    if i3 == extents.d3:
        i3, i2 = 0, i2 + 1
        if i2 == extents.d2:
            i2, i1 = 0, i1 + 1
            if i1 == extents.d1:
                i1, i0 = 0, i0 + 1
    return np.int32(i0), np.int32(i1), np.int32(i2), np.int32(i3)


@cuda.jit(device=True)
def each_of_four(x, steps, first, extents):
    """Four neighbours of an operand by four loads, from the index ``first`` on; and the index of the last."""
    second = after(first, extents)
    third = after(second, extents)
    fourth = after(third, extents)
    return (
        widened(x[place(steps, first[0], first[1], first[2], first[3])]),
        widened(x[place(steps, second[0], second[1], second[2], second[3])]),
        widened(x[place(steps, third[0], third[1], third[2], third[3])]),
        widened(x[place(steps, fourth[0], fourth[1], fourth[2], fourth[3])]),
    ), fourth


@cuda.jit(device=True)
def neighbours(x, steps, way, first, extents, many):
    """As many neighbours of an operand as ``many`` has numbers, from the index ``first`` on."""
    at = place(steps, first[0], first[1], first[2], first[3])
    if way == VECTOR:
        return widened(load128(x, at))
    if way == SAME:
        return repeated(widened(x[at]), many)
    return one_by_one(x, steps, first, extents, many)


@cuda.jit(device=True)
def one_by_one(x, steps, first, extents, many):
    found, last = each_of_four(x, steps, first, extents)
    if len(many) == 8:
        more, _ = each_of_four(x, steps, after(last, extents), extents)
        return found + more
    return found


@cuda.jit(device=True)
def repeated(same, many):
    """One number as often as ``many`` has numbers."""
    if len(many) == 8:
        return same, same, same, same, same, same, same, same
    return same, same, same, same


@cuda.jit(device=True)
def apply_all(op, x, y):
    """The operation on four or eight pairs of operands."""
    if len(x) == 8:
        return apply_four(op, x[:4], y[:4]) + apply_four(op, x[4:], y[4:])
    return apply_four(op, x, y)


@cuda.jit(device=True)
def apply_four(op, x, y):
    """The operation on four pairs of operands."""
    if op < ADD:
        return apply_unary(op, x[0]), apply_unary(op, x[1]), apply_unary(op, x[2]), apply_unary(op, x[3])
    return (
        apply_binary(op, x[0], y[0]),
        apply_binary(op, x[1], y[1]),
        apply_binary(op, x[2], y[2]),
        apply_binary(op, x[3], y[3]),
    )


@cuda.jit(device=True)
def straight_neighbours(x, i, way, many):
    """Neighbours from x[i] on of an operand that lies one element after the other, or has only one."""
    if way == VECTOR:
        return widened(load128(x, i))
    return repeated(widened(x[0]), many)


@cuda.jit(device=True)
def straight_second(b, i, way, number, is_number, many):
    if is_number:
        return repeated(number, many)
    return straight_neighbours(b, i, way, many)


@cuda.jit(device=True)
def straight_vectors(op, a, b, number, is_number, out, plan, way_a, way_b, many):
    width = len(many)
    i, size = width * np.int64(cuda.grid(1)), plan.extents.d3
    if i + width <= size:
        y = straight_second(b, i, way_b, number, is_number, many)
        store128(out, i, apply_all(op, straight_neighbours(a, i, way_a, many), y))
    elif i < size:
        for last in range(i, size):
            at_a, at_b = last * plan.first.d3, last * plan.second.d3
            out[last] = element(op, a, at_a, b, at_b, number, is_number)


@cuda.jit
def straight_vectors_kernel(op, a, b, number, is_number, out, plan, way_a, way_b):
    straight_vectors(op, a, b, number, is_number, out, plan, way_a, way_b, FOUR)


@cuda.jit
def straight_octets_kernel(op, a, b, number, is_number, out, plan, way_a, way_b):
    straight_vectors(op, a, b, number, is_number, out, plan, way_a, way_b, EIGHT)


@cuda.jit(device=True)
def second(b, steps, way, first, extents, number, is_number, many):
    if is_number:
        return repeated(number, many)
    return neighbours(b, steps, way, first, extents, many)


@cuda.jit(device=True)
def vectors(op, a, b, number, is_number, out, plan, way_a, way_b, size, many):
    width = len(many)
    i = width * cuda.grid(1)
    if i + width <= size:
        index = index_of(i, plan.extents)
        x = neighbours(a, plan.first, way_a, index, plan.extents, many)
        y = second(b, plan.second, way_b, index, plan.extents, number, is_number, many)
        store128(out, i, apply_all(op, x, y))
    elif i < size:
        for last in range(i, size):
            i0, i1, i2, i3 = index_of(last, plan.extents)
            at_a, at_b = place(plan.first, i0, i1, i2, i3), place(plan.second, i0, i1, i2, i3)
            out[last] = element(op, a, at_a, b, at_b, number, is_number)


@cuda.jit
def vectors_kernel(op, a, b, number, is_number, out, plan, way_a, way_b, size):
    vectors(op, a, b, number, is_number, out, plan, way_a, way_b, size, FOUR)


@cuda.jit
def octets_kernel(op, a, b, number, is_number, out, plan, way_a, way_b, size):
    vectors(op, a, b, number, is_number, out, plan, way_a, way_b, size, EIGHT)


@functools.lru_cache(4096)
def ways_of(plan: Plan, addresses: tuple[int, int, int], width: int = 4) -> tuple[int, int] | None:
    """The ways to ``width`` neighbours of a and b; None where the result is not written one vector after the other.

    ``addresses``: of a, b and the result, modulo 16.
    """
    extents = plan.extents
    flat = Steps(extents.d1 * extents.d2 * extents.d3, extents.d2 * extents.d3, extents.d3, 1)

    def lies_flat(steps: Steps) -> bool:
        return all(step == own or extent == 1 for step, own, extent in zip(steps, flat, extents, strict=True))

    def way_to(steps: Steps, address: int) -> int:
        if steps.d3 == 0 and (extents.d3 % width == 0 or plan.dimensions <= 1):
            return SAME
        in_vectors = steps.d3 == 1 and extents.d3 % width == 0 and all(step % width == 0 for step in steps[:3])
        return VECTOR if address == 0 and (in_vectors or lies_flat(steps)) else EACH

    if addresses[2] or not lies_flat(plan.out):
        return None
    ways = way_to(plan.first, addresses[0]), way_to(plan.second, addresses[1])
    return None if plan.dimensions <= 1 and EACH in ways else ways


@rung(
    straight_vectors_kernel,
    vectors_kernel,
    straight_octets_kernel,
    octets_kernel,
    straight_kernel,
    small_kernel,
    indexed_kernel,
)
def vectorised(p):
    """A thread takes four neighbours: one index for four elements, 128-bit loads where they lie so, a 128-bit store.

    Of 16 bits it takes eight.
    Where the result is not written one vector after the other, `joined` does the work.

    Leaves: the threads of a warp read a transposed operand far apart, and use 4 bytes of each sector of 32.
    """
    plan = plan_of(*p.layouts)
    width = width_of(p.out.dtype)
    ways = ways_of(plan, (device.address(p.a) % 16, device.address(p.b) % 16, device.address(p.out) % 16), width)
    size, small = plan.extents.size, in_32_bits(plan)
    if ways is None or (small is None and plan.dimensions > 1):
        return joined.launch(p)
    kernel, more = (straight_vectors_kernel if width == 4 else straight_octets_kernel, (plan, *ways))
    if plan.dimensions > 1:
        kernel, more = (vectors_kernel if width == 4 else octets_kernel, (small, *ways, size))
    kernel[blocks(blocks(size, width), BLOCK), BLOCK, p.stream](p.op, p.a, p.b, p.number, p.is_number, p.out, *more)
    return None


# ------------------------------------------------------------------------------------------- a tile in shared memory

TILE, ROWS = 32, 8  # a block of TILE x ROWS threads works on a square of TILE x TILE elements
PITCH = TILE + 1  # the columns of a tile lie in different banks (chapter 16)
TURNS = TILE // ROWS  # elements a thread
WORTH = 8  # a dimension that is shorter would leave most of a tile empty


@cuda.jit(device=True)
def turned(x, tile, corner, steps, top, left, extents):
    """Fill a tile from an operand whose neighbours lie along d2: there the threads of a warp read them."""
    values = cuda.local.array(TURNS, np.float32)
    # In place of an element beyond an edge, one at the edge is read: no branch, so all loads are under way together.
    at = corner + min(top + cuda.threadIdx.x, extents.d2 - 1) * steps.d2
    for k in range(TURNS):
        values[k] = widened(x[at + min(left + cuda.threadIdx.y + k * ROWS, extents.d3 - 1) * steps.d3])
    for k in range(TURNS):
        tile[cuda.threadIdx.y + k * ROWS, cuda.threadIdx.x] = values[k]


@cuda.jit
def tiles_kernel(op, a, b, number, is_number, out, plan, turn_a, turn_b, down, along):
    """A block for each tile of d2 x d3: it is read along d2 where an operand is turned, and written along d3."""
    tile_a = cuda.shared.array((TILE, PITCH), np.float32)
    tile_b = cuda.shared.array((TILE, PITCH), np.float32)
    above, extents = np.int64(cuda.blockIdx.x) // along, plan.extents
    left, top, image = cuda.blockIdx.x % along * TILE, above % down * TILE, above // down
    i0, i1 = image // extents.d1, image % extents.d1
    corner_a, corner_b = place(plan.first, i0, i1, 0, 0), place(plan.second, i0, i1, 0, 0)
    if turn_a:
        turned(a, tile_a, corner_a, plan.first, top, left, extents)
    if turn_b:
        turned(b, tile_b, corner_b, plan.second, top, left, extents)
    cuda.syncthreads()
    column = left + cuda.threadIdx.x
    for k in range(TURNS):
        down_tile = cuda.threadIdx.y + k * ROWS
        row = top + down_tile
        if row < extents.d2 and column < extents.d3:
            at_a = corner_a + row * plan.first.d2 + column * plan.first.d3
            at_b = corner_b + row * plan.second.d2 + column * plan.second.d3
            x = tile_a[cuda.threadIdx.x, down_tile] if turn_a else widened(a[at_a])
            y = number if is_number else tile_b[cuda.threadIdx.x, down_tile] if turn_b else widened(b[at_b])
            result = apply_unary(op, x) if op < ADD else apply_binary(op, x, y)
            out[place(plan.out, i0, i1, row, column)] = result


class Turn(typing.NamedTuple):
    """A plan whose last two dimensions are worked on in tiles, and which operands are read along d2."""

    plan: Plan
    a: bool
    b: bool
    down: int  # tiles along d2
    along: int  # tiles along d3


@functools.lru_cache(4096)
def turn_of(plan: Plan) -> Turn | None:
    """The tiles for operands whose neighbours lie along another dimension than the result's; None if there are none."""

    def neighbours(steps: Steps) -> int | None:
        return next((d for d in range(3) if steps.d3 > 1 and steps[d] == 1 and plan.extents[d] >= WORTH), None)

    first, second = neighbours(plan.first), neighbours(plan.second)
    across = second if first is None else first
    if across is None or plan.out.d3 != 1 or plan.extents.d3 < WORTH:
        return None
    order = [*(d for d in range(3) if d != across), across, 3]
    extents, *steps = (tuple(each[d] for d in order) for each in plan[:4])
    plan = Plan(Extents(*extents), *(Steps(*each) for each in steps), plan.dimensions)
    return Turn(plan, first == across, second == across, blocks(plan.extents.d2, TILE), blocks(plan.extents.d3, TILE))


@rung(
    tiles_kernel,
    straight_vectors_kernel,
    vectors_kernel,
    straight_octets_kernel,
    octets_kernel,
    straight_kernel,
    small_kernel,
    indexed_kernel,
)
def tiled(p):
    """A transposed operand goes through a tile in shared memory: it is read along its rows, and written along others.

    Where no operand is transposed, `vectorised` does the work. The tile is of float32, also for operands of 16 bits.

    Source: chapter 16; PMPP 4e section 6.1 (corner turning).
    """
    turn = turn_of(plan_of(*p.layouts))
    if turn is None:
        return vectorised.launch(p)
    extents = turn.plan.extents
    grid = turn.down * turn.along * extents.d0 * extents.d1
    more = turn.plan, turn.a, turn.b and not p.is_number, turn.down, turn.along
    tiles_kernel[grid, (TILE, ROWS), p.stream](p.op, p.a, p.b, p.number, p.is_number, p.out, *more)
    return None


@cuda.jit
def fill_kernel(out, value):
    i = 4 * np.int64(cuda.grid(1))
    if i + 4 <= out.size:
        store128(out, i, (value, value, value, value))
    else:
        for last in range(i, out.size):
            out[last] = value


LADDER = (indexed, joined, vectorised, tiled)
