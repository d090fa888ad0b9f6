"""The exercises of chapter 24: answers that must pass, and wrong ones that must be found out, each for its reason."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.convolution.exercises import BLOCK, EXERCISES, HALO, REACH, STRIP, WINDOW
from pmpp.lab.teach.exercise import check
from tests.support.answers import own_answers_run_once  # noqa: F401

RIGHT: list[tuple[str, object]] = [(one.name, one.answer) for one in EXERCISES]
WRONG: list[tuple[str, str, object]] = []
f0, f2 = np.float32(0), np.float32(2)
EDGE = 18  # a block of 16 x 16 with its neighbours


def wrong(name, mistake):
    """The decorated kernel is a wrong answer to ``name``, and ``check`` must say ``mistake``."""
    return lambda kernel: WRONG.append((name, mistake, kernel)) or kernel


def right(name):
    return lambda kernel: RIGHT.append((name, kernel)) or kernel


# -- halo


def halo_with(start=-REACH, end=HALO, guard=True, low=0, barrier=True, step=1, store_guard=True):
    @cuda.jit
    def halo(x, mask, out):
        tile = cuda.shared.array(HALO, np.float32)
        thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
        for k in range(thread, end, BLOCK):
            i = first + k + start
            tile[k] = x[i] if not guard or (i >= low and i < x.size) else f0
        if barrier:
            cuda.syncthreads()
        if not store_guard or first + thread < x.size:
            total = f0
            for s in range(2 * REACH + 1):
                total += mask[s if step > 0 else 2 * REACH - s] * tile[thread + s]
            out[first + thread] = total

    return halo


@wrong("convolution/halo", "halo missing")
@cuda.jit
def halo_of_zeros(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if thread < REACH:
        tile[thread] = f0
        tile[REACH + BLOCK + thread] = f0
    tile[REACH + thread] = x[i] if i < x.size else f0
    cuda.syncthreads()
    if i < x.size:
        total = f0
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[i] = total


@wrong("convolution/halo", "divergent barrier")
@cuda.jit
def halo_barrier_in_a_branch(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
    for k in range(thread, HALO, BLOCK):
        i = first + k - REACH
        tile[k] = x[i] if i >= 0 and i < x.size else f0
    if first + thread < x.size:
        cuda.syncthreads()
        total = f0
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[first + thread] = total


@wrong("convolution/halo", "divergent barrier")
@cuda.jit
def halo_leaves_early(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
    if first + thread >= x.size:
        return
    for k in range(thread, HALO, BLOCK):
        i = first + k - REACH
        tile[k] = x[i] if i >= 0 and i < x.size else f0
    cuda.syncthreads()
    total = f0
    for s in range(2 * REACH + 1):
        total += mask[s] * tile[thread + s]
    out[first + thread] = total


@wrong("convolution/halo", "clamped border")
@cuda.jit
def halo_clamped(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
    for k in range(thread, HALO, BLOCK):
        tile[k] = x[min(max(first + k - REACH, 0), x.size - 1)]
    cuda.syncthreads()
    if first + thread < x.size:
        total = f0
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[first + thread] = total


@wrong("convolution/halo", "too much traffic")
@cuda.jit
def halo_without_a_tile(x, mask, out):
    i = cuda.grid(1)
    if i < x.size:
        total = f0
        for s in range(2 * REACH + 1):
            if i + s >= REACH and i + s - REACH < x.size:
                total += mask[s] * x[i + s - REACH]
        out[i] = total


WRONG += [
    ("convolution/halo", "uninitialised memory", halo_with(end=BLOCK)),
    ("convolution/halo", "index out of bounds", halo_with(guard=False)),
    ("convolution/halo", "wrong result", halo_with(low=1)),
    ("convolution/halo", "missing barrier", halo_with(barrier=False)),
    ("convolution/halo", "mask turned over", halo_with(step=-1)),
    ("convolution/halo", "centre in the wrong place", halo_with(start=0)),
    ("convolution/halo", "missing guard", halo_with(store_guard=False)),
]


@right("convolution/halo")
@cuda.jit
def halo_in_three_parts(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    tile[REACH + thread] = x[i] if i < x.size else f0
    if thread < REACH:
        tile[thread] = x[i - REACH] if i >= REACH else f0
    elif thread >= BLOCK - REACH:
        tile[2 * REACH + thread] = x[i + REACH] if i + REACH < x.size else f0
    cuda.syncthreads()
    if i < x.size:
        total = f0
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[i] = total


@wrong("convolution/halo", "negative index")
@cuda.jit
def halo_from_the_other_end(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    tile[REACH + thread] = x[i] if i < x.size else f0
    if thread < REACH:
        tile[thread] = x[i - REACH]
    elif thread >= BLOCK - REACH:
        tile[2 * REACH + thread] = x[i + REACH] if i + REACH < x.size else f0
    cuda.syncthreads()
    if i < x.size:
        total = f0
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[i] = total


# -- edges


@right("convolution/edges")
@cuda.jit
def edges_in_a_tile(x, out):  # a warp is two rows of 16, which meet in a few banks
    tile = cuda.shared.array((EDGE, EDGE), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for i in range(ty, EDGE, 16):
        for j in range(tx, EDGE, 16):
            tile[i, j] = clamped(x, cuda.blockIdx.y * 16 + i - 1, cuda.blockIdx.x * 16 + j - 1)
    cuda.syncthreads()
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        across, down = f0, f0
        for k in range(3):
            weight = f2 if k == 1 else np.float32(1)
            across += weight * (tile[ty + k, tx + 2] - tile[ty + k, tx])
            down += weight * (tile[ty + 2, tx + k] - tile[ty, tx + k])
        out[row, column] = abs(across) + abs(down)


@cuda.jit(device=True)
def clamped(x, row, column):
    return x[min(max(row, 0), x.shape[0] - 1), min(max(column, 0), x.shape[1] - 1)]


@cuda.jit(device=True)
def or_zero(x, row, column):
    return x[row, column] if row >= 0 and row < x.shape[0] and column >= 0 and column < x.shape[1] else f0


@cuda.jit(device=True)
def unguarded(x, row, column):
    return x[row, column]


@cuda.jit(device=True)
def sum_of_sizes(across, down):
    return abs(across) + abs(down)


@cuda.jit(device=True)
def sum_with_signs(across, down):
    return across + down


@cuda.jit(device=True)
def first_only(across, down):
    return abs(across)


@cuda.jit(device=True)
def length(across, down):
    return math.sqrt(across * across + down * down)


@cuda.jit(device=True)
def larger(across, down):
    return max(abs(across), abs(down))


def edges_with(at=clamped, middle=f2, join=sum_of_sizes, guard=True, columns=True):
    @cuda.jit
    def edges(x, out):
        column, row = cuda.grid(2)
        if not columns:
            column, row = row, column
        if not guard or (row < x.shape[0] and column < x.shape[1]):
            across, down = f0, f0
            for k in range(-1, 2):
                weight = middle if k == 0 else np.float32(1)
                across += weight * (at(x, row + k, column + 1) - at(x, row + k, column - 1))
                down += weight * (at(x, row + 1, column + k) - at(x, row - 1, column + k))
            out[row, column] = join(across, down)

    return edges


@wrong("convolution/edges", "accidental float64")
@cuda.jit
def edges_in_float64(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        across, down = 0.0, 0.0
        for k in range(-1, 2):
            weight = 2 - abs(k)
            across += weight * (clamped(x, row + k, column + 1) - clamped(x, row + k, column - 1))
            down += weight * (clamped(x, row + 1, column + k) - clamped(x, row - 1, column + k))
        out[row, column] = abs(across) + abs(down)


RIGHT.append(("convolution/edges", edges_with()))
WRONG += [
    ("convolution/edges", "zero border", edges_with(at=or_zero)),
    ("convolution/edges", "negative index", edges_with(at=unguarded)),
    ("convolution/edges", "not weighted", edges_with(middle=np.float32(1))),
    ("convolution/edges", "sign kept", edges_with(join=sum_with_signs)),
    ("convolution/edges", "length of the slope", edges_with(join=length)),
    ("convolution/edges", "one direction only", edges_with(join=first_only)),
    ("convolution/edges", "wrong result", edges_with(join=larger)),
    ("convolution/edges", "missing guard", edges_with(guard=False)),
    ("convolution/edges", "wrong axis order", edges_with(columns=False)),
]


# -- strip


def strip_with(
    low=0, high=0, row_guard=True, store_guard=True, exchanged=False, first_is=STRIP, centre=1, clear=True, turned=0
):
    @cuda.jit
    def strip(x, mask, out):
        thread, row = cuda.grid(2)
        first = first_is * thread
        if row < x.shape[0] and first < x.shape[1]:
            totals = cuda.local.array(STRIP, np.float32)
            window = cuda.local.array(WINDOW, np.float32)
            if clear:
                for j in range(STRIP):
                    totals[j] = 0
            for r in range(3):
                y = row + r - centre
                if not row_guard or (y >= 0 and y < x.shape[0]):
                    for k in range(WINDOW):
                        z = first + k - centre
                        window[k] = x[y, z] if z >= low and z < x.shape[1] + high else f0
                    for s in range(3):
                        for j in range(STRIP):
                            totals[j] += (mask[s, r] if exchanged else mask[abs(turned - r), abs(turned - s)]) * window[
                                j + s
                            ]
            for j in range(STRIP):
                if not store_guard or first + j < x.shape[1]:
                    out[row, first + j] = totals[j]

    return strip


@wrong("convolution/strip", "too much traffic")
@cuda.jit
def strip_one_by_one(x, mask, out):
    thread, row = cuda.grid(2)
    for column in range(STRIP * thread, min(STRIP * thread + STRIP, x.shape[1])):
        if row < x.shape[0]:
            total = f0
            for r in range(max(0, 1 - row), min(3, x.shape[0] + 1 - row)):
                for s in range(max(0, 1 - column), min(3, x.shape[1] + 1 - column)):
                    total += mask[r, s] * x[row + r - 1, column + s - 1]
            out[row, column] = total


@wrong("convolution/strip", "output not written")
@cuda.jit
def strip_whole_strips_only(x, mask, out):
    thread, row = cuda.grid(2)
    first = STRIP * thread
    if row < x.shape[0] and first + STRIP <= x.shape[1]:
        totals = cuda.local.array(STRIP, np.float32)
        for j in range(STRIP):
            totals[j] = 0
        for r in range(3):
            y = row + r - 1
            if y >= 0 and y < x.shape[0]:
                for s in range(3):
                    for j in range(STRIP):
                        z = first + j + s - 1
                        totals[j] += mask[r, s] * (x[y, z] if z >= 0 and z < x.shape[1] else f0)
        for j in range(STRIP):
            out[row, first + j] = totals[j]


WRONG += [
    ("convolution/strip", "negative index", strip_with(low=-1)),
    ("convolution/strip", "index out of bounds", strip_with(high=1)),
    ("convolution/strip", "missing guard", strip_with(store_guard=False)),
    ("convolution/strip", "negative index", strip_with(row_guard=False)),
    ("convolution/strip", "mask turned over", strip_with(turned=2)),
    ("convolution/strip", "mask transposed", strip_with(exchanged=True)),
    ("convolution/strip", "wrong result", strip_with(centre=0)),
    ("convolution/strip", "uninitialised memory", strip_with(clear=False)),
    ("convolution/strip", "output not written", strip_with(first_is=1)),
]


@wrong("convolution/strip", "clamped border")
@cuda.jit
def strip_clamped(x, mask, out):
    thread, row = cuda.grid(2)
    first = STRIP * thread
    if row < x.shape[0] and first < x.shape[1]:
        totals, window = cuda.local.array(STRIP, np.float32), cuda.local.array(WINDOW, np.float32)
        for j in range(STRIP):
            totals[j] = 0
        for r in range(3):
            for k in range(WINDOW):
                window[k] = clamped(x, row + r - 1, first + k - 1)
            for s in range(3):
                for j in range(STRIP):
                    totals[j] += mask[r, s] * window[j + s]
        for j in range(STRIP):
            if first + j < x.shape[1]:
                out[row, first + j] = totals[j]


@right("convolution/strip")
@cuda.jit
def strip_in_variables(x, mask, out):
    thread, row = cuda.grid(2)
    first, width = STRIP * thread, x.shape[1]
    if row >= x.shape[0] or first >= width:
        return
    t0, t1, t2, t3 = f0, f0, f0, f0
    for r in range(3):
        y = row + r - 1
        if 0 <= y < x.shape[0]:
            a, b = x[y, first - 1] if first > 0 else f0, x[y, first]
            c, d = or_zero(x, y, first + 1), or_zero(x, y, first + 2)
            e, f = or_zero(x, y, first + 3), or_zero(x, y, first + 4)
            left, middle, right = mask[r, 0], mask[r, 1], mask[r, 2]
            t0 += left * a + middle * b + right * c
            t1 += left * b + middle * c + right * d
            t2 += left * c + middle * d + right * e
            t3 += left * d + middle * e + right * f
    out[row, first] = t0
    if first + 1 < width:
        out[row, first + 1] = t1
    if first + 2 < width:
        out[row, first + 2] = t2
    if first + 3 < width:
        out[row, first + 3] = t3


# -- wrap


@cuda.jit(device=True)
def wrapped(x, row, column):
    return x[row % x.shape[0], column % x.shape[1]]


@cuda.jit(device=True)
def wrapped_by_tests(x, row, column):
    h, w = x.shape
    row = row + h if row < 0 else row - h if row >= h else row
    column = column + w if column < 0 else column - w if column >= w else column
    return x[row, column]


@cuda.jit(device=True)
def wrapped_rows(x, row, column):
    return x[row % x.shape[0], column] if column >= 0 and column < x.shape[1] else f0


@cuda.jit(device=True)
def wrapped_behind_only(x, row, column):
    """Before the first row and the first column, -1 is the last one, as in Python."""
    h, w = x.shape
    return x[row if row < h else row - h, column if column < w else column - w]


def wrap_with(at=wrapped, centre=1, guard=True, turned=0, zero=f0):
    @cuda.jit
    def wrap(x, mask, out):
        column, row = cuda.grid(2)
        if not guard or (row < x.shape[0] and column < x.shape[1]):
            total = zero
            for r in range(3):
                for s in range(3):
                    total += mask[abs(turned - r), abs(turned - s)] * at(x, row + r - centre, column + s - centre)
            out[row, column] = total

    return wrap


@wrong("convolution/wrap", "uncoalesced")
@cuda.jit
def wrap_with_rows_and_columns_exchanged(x, mask, out):
    """The loop makes up for columns that then have no thread."""
    column, row = cuda.grid(2)
    step = cuda.gridDim.y * cuda.blockDim.y
    if column < x.shape[0]:
        for i in range(row, x.shape[1], step):
            total = f0
            for r in range(3):
                for s in range(3):
                    total += mask[r, s] * wrapped(x, column + r - 1, i + s - 1)
            out[column, i] = total


@wrong("convolution/wrap", "mask transposed")
@cuda.jit
def wrap_with_the_mask_transposed(x, mask, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        total = f0
        for r in range(3):
            for s in range(3):
                total += mask[s, r] * wrapped(x, row + r - 1, column + s - 1)
        out[row, column] = total


@wrong("convolution/halo", "guard off by one")
@cuda.jit
def halo_with_one_element_too_many(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
    for k in range(thread, HALO, BLOCK):
        i = first + k - 2
        tile[k] = x[i] if i >= 0 and i <= x.size else f0
    cuda.syncthreads()
    if first + thread < x.size:
        total = f0
        for s in range(5):
            total += mask[s] * tile[thread + s]
        out[first + thread] = total


RIGHT += [("convolution/wrap", wrap_with(at=at)) for at in (wrapped, wrapped_by_tests, wrapped_behind_only)]
WRONG += [
    ("convolution/wrap", "zero border", wrap_with(at=or_zero)),
    ("convolution/wrap", "clamped border", wrap_with(at=clamped)),
    ("convolution/wrap", "one direction only", wrap_with(at=wrapped_rows)),
    ("convolution/wrap", "mask turned over", wrap_with(turned=2)),
    ("convolution/wrap", "centre in the wrong place", wrap_with(centre=0)),
    ("convolution/wrap", "negative index", wrap_with(at=unguarded)),
    ("convolution/wrap", "missing guard", wrap_with(guard=False)),
    ("convolution/wrap", "accidental float64", wrap_with(zero=0.0)),
]


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize(("name", "mistake", "kernel"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_answer_is_found_out_for_its_reason(name, mistake, kernel):
    verdict = check(name, kernel)
    assert not verdict
    assert verdict.mistake == mistake, verdict.message


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes(name, kernel):
    verdict = check(name, kernel)
    assert verdict, verdict.message


@pytest.mark.parametrize("one", EXERCISES, ids=[one.name for one in EXERCISES])
def test_each_exercise_has_at_least_five_wrong_answers_and_each_trap_springs(one):
    mistakes = [mistake for name, mistake, _ in WRONG if name == one.name]
    assert len(mistakes) >= 5
    assert {trap.mistake for trap in one.traps} <= set(mistakes)
