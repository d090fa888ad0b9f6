"""Exercises of notebooks/95_inside_other_libraries.ipynb: an operator's backward, a loan, and the bytes of a view."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads a block
EPS = 1e-6


# ----------------------------------------------------------------------------------------------------- interop/backward


def _rms(x, weight) -> np.ndarray:
    """The forward pass in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * weight


def _gradient(
    dy, x, weight, inverse, out=None, *, weighted=True, through_root=True, mean=True
) -> dict[int, np.ndarray]:
    dy, x, inverse = (one.astype(np.float64) for one in (dy, x, inverse[:, None]))
    g = dy * weight if weighted else dy
    common = (g * x).mean(axis=1, keepdims=True) if mean else (g * x).sum(axis=1, keepdims=True)
    return {4: inverse * (g - through_root * x * inverse**2 * common)}


def _backward_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for m, n in ((1, 2), (3, 5), (BLOCK, 7), (BLOCK + 1, 16), (2 * BLOCK, 9)):
        dy, x = rng.standard_normal((2, m, n), dtype=np.float32)
        weight = rng.uniform(0.5, 2, n).astype(np.float32)
        inverse = (1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1) + EPS)).astype(np.float32)
        args = dy, x, weight, inverse, unwritten((m, n), np.float32)
        # Two products and a sum of n terms, each rounded; a few more products.
        terms = inverse[:, None] * np.abs(dy * weight)
        sums = np.abs(dy * weight * x).mean(axis=1, keepdims=True) * np.abs(x) * inverse[:, None] ** 3
        cases.append(
            Case(
                f"{m} x {n}", args, blocks(m, BLOCK), BLOCK, _gradient(*args), {4: 2.0**-24 * (n + 8) * (terms + sums)}
            )
        )
    return cases


@cuda.jit
def backward_answer(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += dy[row, j] * weight[j] * x[row, j]
        r = inverse[row]
        common = total / np.float32(x.shape[1]) * r * r
        for j in range(x.shape[1]):
            out[row, j] = r * (dy[row, j] * weight[j] - x[row, j] * common)


# ------------------------------------------------------------------------------------------------------- interop/borrow

KINDS = {0: "i", 1: "u", 2: "f"}  # DLPack's codes


def borrow_answer(memory, byte_offset, shape, strides, code, bits):
    """The array that a lender describes as DLPack does."""
    size = bits // 8
    steps = [size * step for step in strides]
    if not steps:
        for extent in reversed(shape):
            steps.insert(0, size)
            size *= int(extent)
    kind = np.dtype(f"{KINDS[code]}{bits // 8}")
    return np.ndarray(tuple(shape), kind, memory.data, byte_offset, tuple(int(step) for step in steps))


def _borrow_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for dtype, whole, cut in (
        ("u1", (7,), np.s_[:]),
        ("i2", (4, 6), np.s_[1:, ::2]),
        ("f4", (5, 8), np.s_[2:]),
        ("u2", (3, 4, 5), np.s_[:, 1:3, ::3]),
        ("f8", (9, 4), np.s_[::2, 1]),
    ):
        kind = np.dtype(dtype)
        values = rng.integers(0, 2**kind.itemsize * 64, whole) if kind.kind != "f" else rng.standard_normal(whole)
        if kind.kind == "u":
            values = values + 2 ** (8 * kind.itemsize - 1)  # negative, if they are taken for signed ones
        base = (values % 2 ** (8 * kind.itemsize) if kind.kind == "u" else values).astype(kind)
        view = base[cut]
        offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        given = [] if view.flags.c_contiguous else [step // kind.itemsize for step in view.strides]
        memory = np.frombuffer(base.tobytes(), np.uint8)
        code = {letter: code for code, letter in KINDS.items()}[kind.kind]
        shape, strides = np.array(view.shape, np.int64), np.array(given, np.int64)
        args = memory, int(offset), shape, strides, code, 8 * kind.itemsize
        cases.append(Case(f"{kind} of shape {view.shape}", args, None, None, {0: view.copy()}))
    return cases


def _read(memory, byte_offset, shape, strides, code, bits, *, bytewise=False, packed=False, signed=False) -> dict:
    if signed and code == 1:
        code = 0
    strides = [] if packed else strides
    if bytewise and len(strides):
        kind = np.dtype(f"{KINDS[code]}{bits // 8}")
        return {
            0: np.ndarray(tuple(shape), kind, memory.data, byte_offset, tuple(int(step) for step in strides)).copy()
        }
    return {0: borrow_answer(memory, byte_offset, shape, strides, code, bits).copy()}


def _from_the_start(memory, byte_offset, *rest) -> dict:
    return _read(memory, 0, *rest)


# ------------------------------------------------------------------------------------------------------- interop/extent


def extent_answer(address, shape, strides, itemsize):
    """The first byte of a view, and the one behind its last."""
    if 0 in shape:
        return np.array([address, address])
    reach = [(int(extent) - 1) * int(step) for extent, step in zip(shape, strides, strict=True)]
    first = address + sum(min(step, 0) for step in reach)
    return np.array([first, address + sum(max(step, 0) for step in reach) + itemsize])


def _extent_cases(rng: np.random.Generator) -> list[Case]:
    a, b, c = rng.choice(np.arange(2, 9), 3, replace=False)
    views = {  # strides in elements
        "one element": ((1,), (1,)),
        "a vector": ((a,), (1,)),
        "every third, backwards": ((b,), (-3,)),
        "a matrix, transposed": ((a, b), (1, a)),
        "a cut of a matrix": ((b, c), (2 * c + 1, 2)),
        "one row, repeated": ((c, a), (0, 1)),
        "rows from the last on": ((a, b, c), (-b * c, c, 1)),
        "nothing": ((b, 0), (1, 1)),
    }
    cases = []
    for name, (shape, strides) in views.items():
        address, itemsize = 4096 * int(rng.integers(1, 100)), int(rng.choice([2, 4, 8]))
        args = address, np.array(shape, np.int64), itemsize * np.array(strides, np.int64), itemsize
        cases.append(Case(name, args, None, None, {0: extent_answer(*args)}))
    return cases


def _packed(address, shape, strides, itemsize) -> dict[int, np.ndarray]:
    return {0: np.array([address, address + math.prod(map(int, shape)) * itemsize])}


def _upwards(address, shape, strides, itemsize) -> dict[int, np.ndarray]:
    reach = sum((int(extent) - 1) * int(step) for extent, step in zip(shape, strides, strict=True))
    return {0: np.array([address, address + (reach + itemsize if 0 not in shape else 0)])}


def _without_the_last(address, shape, strides, itemsize) -> dict[int, np.ndarray]:
    first, last = extent_answer(address, shape, strides, itemsize)
    return {0: np.array([first, last - (itemsize if 0 not in shape else 0)])}


def _stored(case: Case) -> dict[str, tuple[float, str]]:
    """A row is the work of a thread, so each store of a lane has a sector of its own; the two parts may be stored."""
    return {
        "global_store_sectors": (2 * case.args[4].size, "Each element of out has two parts: store it twice at most.")
    }


EXERCISES = (
    Exercise(
        "interop/backward",
        task="RMS normalisation is y[i, j] = x[i, j] * inverse[i] * weight[j], where inverse[i] is 1 / sqrt(the mean "
        "of the squares of row i + eps). Given dy, the gradient of y, write the gradient of x to out, in float32. "
        "inverse was saved by the forward pass. Mind that it depends on every element of its row. "
        f"The launch has {BLOCK} threads a block, one for each row.",
        parameters="dy, x, weight, inverse, out",
        cases=_backward_cases,
        budget=_stored,
        answer=backward_answer,
        hints=(
            "Let g = dy * weight. One part of the gradient is g * inverse: it would be all if inverse were a constant.",
            "The derivative of (mean + eps) ** -0.5 with respect to x[i, k] is -inverse ** 3 * x[i, k] / n.",
        ),
        traps=(
            Trap(
                "inverse taken for a constant",
                "A change of one element changes the root of its row, and with it all others.",
                lambda *args: _gradient(*args, through_root=False),
            ),
            Trap(
                "weight left out",
                "dy is the gradient behind the weight: the product has one before it.",
                lambda *args: _gradient(*args, weighted=False),
            ),
            Trap(
                "a sum for a mean",
                "The root is that of a mean: its derivative has a factor 1 / n.",
                lambda *args: _gradient(*args, mean=False),
            ),
        ),
    ),
    Exercise(
        "interop/borrow",
        task="A lender describes an array as DLPack does: `memory`, bytes as a NumPy array of uint8; `byte_offset` "
        "from its beginning to the first element; `shape`; `strides`, counted in elements, or empty for C order; "
        "`code`, 0 for int, 1 for uint, 2 for float; and `bits`. Return the array, best as a view. Write nothing.",
        parameters="memory, byte_offset, shape, strides, code, bits",
        cases=_borrow_cases,
        answer=borrow_answer,
        hints=(
            "np.ndarray(shape, dtype, buffer, offset, strides) makes a view of a buffer. Its strides count bytes.",
            "In C order the last stride is one element, and each other one is the next stride times the next extent.",
        ),
        traps=(
            Trap(
                "strides in bytes",
                "DLPack counts elements, NumPy counts bytes.",
                lambda *args: _read(*args, bytewise=True),
            ),
            Trap("strides left out", "Only without strides is it C order.", lambda *args: _read(*args, packed=True)),
            Trap("offset left out", "The first element lies byte_offset bytes into the memory.", _from_the_start),
            Trap("signed for unsigned", "Code 1 is an unsigned integer.", lambda *args: _read(*args, signed=True)),
        ),
    ),
    Exercise(
        "interop/extent",
        task="An array whose first element lies at `address` has `shape`, `strides` in bytes, which may be negative "
        "or 0, and elements of `itemsize` bytes. Return the address of its first byte and of the byte behind its last, "
        "as an array of two integers. Of an array without elements both are `address`.",
        parameters="address, shape, strides, itemsize",
        cases=_extent_cases,
        answer=extent_answer,
        hints=(
            "Along each dimension the last element lies (extent - 1) strides from the first.",
            "A negative stride moves the first byte, a positive one the last.",
        ),
        traps=(
            Trap("taken for packed", "A view has gaps, or shows an element twice: go by its strides.", _packed),
            Trap("only upwards", "A negative stride leads below the address.", _upwards),
            Trap("last element left out", "The last element has bytes, too.", _without_the_last),
        ),
    ),
)
