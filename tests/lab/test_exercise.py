"""The exercise check, tested on wrong kernels: each is rejected, and for what is wrong with it."""

import dataclasses
import re
from fractions import Fraction

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.teach.diagnosis import ADVICE, _allowed, _show, judge
from pmpp.lab.teach.exercise import Case, Exercise, unwritten
from tests.support.toys import (
    ADD,
    BLOCK,
    MEAN,
    NEGATE,
    PAIR,
    PITCH,
    TILE,
    TOTAL,
    TRANSPOSE,
    TURN,
    total_answer,
    turn_cases,
)


@pytest.mark.parametrize("toy", [ADD, TOTAL, TURN, TRANSPOSE, NEGATE, PAIR, MEAN], ids=lambda toy: toy.name)
def test_the_right_answer_passes(toy):
    verdict = judge(toy, toy.answer)
    assert verdict
    assert verdict.passed
    assert verdict.mistake == ""
    assert verdict.message.startswith(f"passed: right on {len(toy.inputs)} inputs, from {toy.inputs[0].name} to")


# ----------------------------------------------------------------------------------------------------- wrong kernels

WRONG = []


def rejected(toy, mistake, said, code=None):
    """The kernel is an answer to ``toy`` with that mistake. The message matches ``said``, and quotes ``code``."""

    def remember(kernel):
        WRONG.append(pytest.param(toy, kernel, mistake, said, code, id=f"{toy.name}: {kernel.__name__}"))
        return kernel

    return remember


@rejected(ADD, "not started", r"write a kernel of \(x, y, out\)\. Add\.")
@cuda.jit
def empty(x, y, out):
    """To be written."""


@rejected(ADD, "not started", "writes to none of its arguments")
@cuda.jit
def only_an_index(x, y, out):
    i = cuda.grid(1)  # noqa: F841


@rejected(ADD, "wrong parameters", r"are \(x, y, out\), in this order; yours are \(x, out\)")
@cuda.jit
def too_few_parameters(x, out):
    out[0] = x[0]


@rejected(ADD, "wrong parameters", r"are \(x, y, out\), in this order; yours are \(out, x, y\)")
@cuda.jit
def other_order(out, x, y):
    out[0] = x[0] + y[0]


@rejected(ADD, "not a GPU kernel", r"a list.* on the device: .*\(line \d+\)", "out[i] = [x[i] + y[i] for")
@cuda.jit
def a_list(x, y, out):
    i = cuda.grid(1)
    out[i] = [x[i] + y[i] for _ in range(1)][0]  # noqa: RUF015


@rejected(ADD, "not a GPU kernel", r"the name 'z' is not defined \(line \d+\)", "out[cuda.grid(1)] = z[0]")
@cuda.jit
def an_unknown_name(x, y, out):
    out[cuda.grid(1)] = z[0]  # noqa: F821


@rejected(ADD, "endless loop", r"with n = 1, this loop has run .* times and looks endless \(line \d+\)", "while")
@cuda.jit
def no_end(x, y, out):
    i = cuda.grid(1)
    while i < out.size:
        out[i] = x[i] + y[i]


@rejected(
    ADD,
    "missing guard",
    r"missing guard: with n = 65, thread 1 of block 1 reads x\[65\], but the last element is x\[64\] \(line \d+\)\. "
    "The last block is only partly needed: test the index first.",
    "out[i] = x[i] + y[i]",
)
@cuda.jit
def no_guard(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


@rejected(ADD, "missing guard", "There is a test, but it lets this index through")
@cuda.jit
def a_guard_of_something_else(x, y, out):
    i = cuda.grid(1)
    if x.size > 0:
        out[i] = x[i] + y[i]


@rejected(ADD, "missing guard", r"writes out\[65\]")
@cuda.jit
def no_guard_on_the_store(x, y, out):
    i = cuda.grid(1)
    value = np.float32(0)
    if i < x.size:
        value = x[i] + y[i]
    out[i] = value


@rejected(ADD, "guard off by one", "test with <, not <=")
@cuda.jit
def one_too_many(x, y, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = x[i] + y[i]


@rejected(ADD, "guard off by one", r"reads x\[65\], but the last element is x\[64\]")
@cuda.jit
def one_too_many_go_on(x, y, out):
    i = cuda.grid(1)
    if i > out.size:
        return
    out[i] = x[i] + y[i]


@rejected(ADD, "guard off by one", "test with <, not <=")
@cuda.jit
def one_too_many_by_not(x, y, out):
    i = cuda.grid(1)
    if not (i <= out.size):
        return
    out[i] = x[i] + y[i]


@rejected(ADD, "guard off by one", "test with <, not <=")
@cuda.jit
def one_too_many_by_not_beyond(x, y, out):
    i = cuda.grid(1)
    if out.size > 0 and not i > out.size:
        out[i] = x[i] + y[i]


@rejected(ADD, "hard-coded size", r"Line \d+ says 900", "if i < 900")
@cuda.jit
def for_900(x, y, out):
    i = cuda.grid(1)
    if i < 900:
        out[i] = x[i] + y[i]


@rejected(
    ADD,
    "index out of bounds",
    r"with n = 65, thread 0 of block 1 reads x\[65\], but the last element is x\[64\].* either this index needs a test",
)
@cuda.jit
def the_neighbour(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i + 1] + y[i]


@rejected(ADD, "negative index", r"thread 0 of block 0 reads x\[-1\]")
@cuda.jit
def the_neighbour_before(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i - 1] + y[i]


@rejected(ADD, "input changed", "the kernel writes to y, which is an input")
@cuda.jit
def in_place(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        y[i] += x[i]
        out[i] = y[i]


@rejected(ADD, "argument ignored", "The kernel never uses y")
@cuda.jit
def without_y(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + x[i]


@rejected(
    ADD, "only right for one block", r"with n = 65, 1 of the 65 .* the first is out\[64\]\. It is right with n = 1,"
)
@cuda.jit
def one_block(x, y, out):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = x[i] + y[i]


@rejected(ADD, "output not written", r"with n = 1, out\[0\] is never written")
@cuda.jit
def not_the_last(x, y, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = x[i] + y[i]


@rejected(ADD, "output not written", r"32 of the 63 elements of out are never written, the first is out\[0\]")
@cuda.jit
def every_other(x, y, out):
    i = cuda.grid(1)
    if i < out.size and (i % 2 == 1 or out.size == 1):
        out[i] = x[i] + y[i]


@rejected(ADD, "only right for whole blocks", "with n = 1, .*It is right with n = 64.")
@cuda.jit
def whole_blocks(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i] if out.size % BLOCK == 0 else x[i]


@rejected(ADD, "uninitialised memory", "out comes out as NaN, because the kernel reads it, and it holds nothing yet")
@cuda.jit
def adds_to_nothing(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] += x[i] + y[i]


@rejected(ADD, "uninitialised memory", "out comes out as NaN, because the kernel reads it")
@cuda.jit
def adds_atomically_to_nothing(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        cuda.atomic.add(out, i, x[i] + y[i])


@rejected(ADD, "wrong sign", r"and should be .*\. This is x - y\.$")
@cuda.jit
def minus(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] - y[i]


@rejected(ADD, "wrong result", r"with n = 1, out\[0\] is \d+, and should be \d+\.")
@cuda.jit
def times(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i]


@rejected(ADD, "accidental float64", "with n = 900, .* operations are in float64 where 0 will do", "x[i] + 1.0 * y[i]")
@cuda.jit
def in_float64(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 1.0 * y[i]


@rejected(ADD, "uncoalesced", r"line \d+ moves \d+(\.\d)? sectors a request where \d do; loads move", "x[i] + y[i]")
@cuda.jit
def pieces(x, y, out):
    each = -(-out.size // cuda.gridsize(1)) + 7
    first = cuda.grid(1) * each
    for i in range(first, min(first + each, out.size)):
        out[i] = x[i] + y[i]


@rejected(ADD, "idle threads", "only 1 of the 32 threads of a warp work at a time; loads move", "x[i] + y[i]")
@cuda.jit
def one_for_all(x, y, out):
    if cuda.grid(1) == 0:
        for i in range(out.size):
            out[i] = x[i] + y[i]


@rejected(ADD, "too much traffic", "loads move .* sectors where .* will do, most on line")
@cuda.jit
def again_and_again(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0
        for _ in range(3):
            out[i] = (out[i] + x[i] + y[i]) / np.float32(2)
        out[i] = x[i] + y[i]


@rejected(ADD, "too much traffic", r"; for y alone it is \d+ where 113 will do, most on line", "* y[(i + k) % y.size]")
@cuda.jit
def one_array_too_often(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i] + y[i]
        for k in range(6):
            value += np.float32(0) * y[(i + k) % y.size]
        out[i] = value


@rejected(
    ADD, "repeated work", "stores write .* bytes where 3,600 will do, .* several threads write the same", "x[i] + y[i]"
)
@cuda.jit
def the_stride_of_a_block(x, y, out):
    for i in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        out[i] = x[i] + y[i]


@rejected(ADD, "idle blocks", "with n = 900, only 1 of the 15 blocks of the launch does any work")
@cuda.jit
def the_first_block_alone(x, y, out):
    if cuda.blockIdx.x == 0:
        for i in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
            out[i] = x[i] + y[i]


@rejected(
    ADD, "accidental float64", r"max\(float32, float64 literal 0\.0\) gives float64: write np\.float32\(0\.0\)", "0.0"
)
@cuda.jit
def a_maximum_in_float64(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i] + y[i], 0.0)


@rejected(
    ADD,
    "index out of bounds",
    "thread 0 of block 1 reads x.*Either this index needs a test",
    "x[cuda.blockIdx.x * 100]",
)
@cuda.jit
def a_wrong_place_for_each_block(x, y, out):
    i = cuda.grid(1)
    first = x[cuda.blockIdx.x * 100]
    if i < out.size:
        out[i] = x[i] + y[i] + first - first


@rejected(TOTAL, "missing atomic", r"use cuda\.atomic\.$", "out[0] += sums[0]")
@cuda.jit
def no_atomic(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[0] += sums[0]


@rejected(TOTAL, "missing atomic", "with n = ", "out[0] += x[i]")
@cuda.jit
def everyone_adds(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0] += x[i]


@rejected(TOTAL, "missing barrier", "with no barrier in between", "sums[thread] += sums[thread + stride]")
@cuda.jit
def no_barrier_between_rounds(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, sums[0])


@rejected(TOTAL, "divergent barrier", "does not reach the syncthreads", "cuda.syncthreads()")
@cuda.jit
def a_barrier_for_some(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
            cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, sums[0])


@rejected(TOTAL, "inactive lanes", r"named in the member mask of shfl_down_sync\(\) but does not reach it", "shfl_down")
@cuda.jit
def a_shuffle_for_some(x, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        for distance in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        if cuda.laneid == 0:
            cuda.atomic.add(out, 0, value)


@rejected(
    TOTAL,
    "divergent barrier",
    r"with n = 1, thread 1 returns on line \d+, and others of its block wait on line \d+; then thread 0 of block 0 "
    r"reads an element of sums that nothing has written\. A thread that has left does nothing for its block",
    "return",
)
@cuda.jit
def leaves_before_the_barrier(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    if i >= x.size:
        return
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, sums[0])


@rejected(
    TOTAL, "idle threads", r"instructions for one or two of their 32 threads, most on line \d+, where .* are enough"
)
@cuda.jit
def thread_0_adds_them_all(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    if thread == 0:
        total = 0
        for k in range(BLOCK):
            total += sums[k] * (k + 1) - sums[k] * k
        cuda.atomic.add(out, 0, total)


@rejected(TOTAL, "uninitialised memory", "reads an element of sums that nothing has written")
@cuda.jit
def leftovers(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    if i < x.size:
        sums[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, sums[0])


@rejected(TOTAL, "too many atomics", "warps execute 63 atomics where 32 will do", "cuda.atomic.add(out, 0, x[i])")
@cuda.jit
def an_atomic_each(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i])


@rejected(TOTAL, "race between blocks", r"thread 0 of block 0 .*let each write its own elements", "out[0] = sums[0]")
@cuda.jit
def the_last_block_wins(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[0] = sums[0]


@rejected(TOTAL, "only right for one block", "with n = 65, .* Ask what the second block does")
@cuda.jit
def the_first_block(x, out):
    i = cuda.grid(1)
    if i < x.size and cuda.blockIdx.x == 0:
        cuda.atomic.add(out, 0, x[i])


@rejected(TURN, "missing barrier", r"with n = 64, .* with no barrier in between", "out[i] = values[")
@cuda.jit
def hidden_by_lockstep(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    out[i] = values[BLOCK - 1 - thread]


@rejected(
    TURN, "index out of bounds", r"reads values\[64\], but the last element is values\[63\].* Compare with the shape"
)
@cuda.jit
def beyond_shared_memory(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    cuda.syncthreads()
    out[i] = values[BLOCK - thread]


@rejected(TURN, "does not run", "with n = 64, .*shared")
@cuda.jit
def too_much_shared_memory(x, out):
    values = cuda.shared.array((1024, 1024), np.int32)
    values[0, 0] = x[0]
    out[0] = values[0, 0]


@rejected(TRANSPOSE, "missing guard", r"with 33 x 20, thread \(20, 0\) of block \(0, 0\) .*x\[:, 20\], .* x\[:, 19\]")
@cuda.jit
def a_guard_on_one_axis(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0]:
        out[column, row] = x[row, column]


@rejected(TRANSPOSE, "missing guard", "There is a test, but it lets this index through")
@cuda.jit
def a_guard_by_not_on_one_axis(x, out):
    column, row = cuda.grid(2)
    if not (row < x.shape[0]):
        return
    out[column, row] = x[row, column]


@rejected(
    TRANSPOSE,
    "divergent barrier",
    r"thread \(20, 0\) returns .*; then \d+ of the 660 elements of out are never written",
)
@cuda.jit
def leaves_before_it_could_store(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + ty >= x.shape[0] or left + tx >= x.shape[1]:
        return
    tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@rejected(TRANSPOSE, "uncoalesced", r"moves \d+(\.\d)? sectors a request where \d do; stores move", "out[column, row]")
@cuda.jit
def without_a_tile(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


@rejected(
    TRANSPOSE, "bank conflicts", r"takes \d+(\.\d)? wavefronts a request where 1 does; .*pad the rows", "tile[tx, ty]"
)
@cuda.jit
def without_padding(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@rejected(TRANSPOSE, "axes exchanged", r"with 32 x 32, out\[i, j\] holds what belongs into out\[j, i\]")
@cuda.jit
def not_transposed(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        flat = row * x.shape[1] + column
        out[flat // out.shape[1], flat % out.shape[1]] = x[row, column]


@rejected(NEGATE, "wrong axis order", r"with 5 x 40, 120 of the 200 elements of out are never written.*x first")
@cuda.jit
def rows_along_x(x, out):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@rejected(NEGATE, "axes exchanged", r"with 16 x 16, out\[i, j\] holds what belongs into out\[j, i\]")
@cuda.jit
def stored_down_the_columns(x, out):
    i, j = cuda.grid(2)
    if j < x.shape[0] and i < x.shape[1]:
        out[i, j] = -x[j, i]


@rejected(NEGATE, "wrong axis order", "with 16 x 16, .* x first", "row, column = cuda.grid(2)")
@cuda.jit
def rows_along_x_by_name(x, out):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column] * np.float32(row - column - 1)


@rejected(PAIR, "outputs exchanged", "with n = 1, less holds what belongs into times, and times what belongs into less")
@cuda.jit
def outputs_exchanged(x, y, less, times):
    i = cuda.grid(1)
    if i < x.size:
        less[i], times[i] = x[i] * y[i], x[i] - y[i]


@rejected(PAIR, "inputs exchanged", r"with n = 1, less\[0\] is .*It is what comes out with x and y exchanged")
@cuda.jit
def inputs_exchanged(x, y, less, times):
    i = cuda.grid(1)
    if i < x.size:
        less[i], times[i] = y[i] - x[i], x[i] * y[i]


@rejected(PAIR, "deliberate float64", r"line \d+ asks for float64\. The arrays are float32", "np.float64)")
@cuda.jit
def in_a_local_array_of_float64(x, y, less, times):
    i = cuda.grid(1)
    if i < x.size:
        both = cuda.local.array(2, np.float64)
        both[0], both[1] = x[i] - y[i], x[i] * y[i]
        less[i], times[i] = both[0], both[1]


@rejected(MEAN, "output not written", "with n = 1, the function returns nothing. Return it.")
def forgets_to_return(x):
    sum(x) / len(x)


@rejected(MEAN, "input changed", "with n = 2, the function writes to x, which is an input")
def in_the_readers_array(x):
    x[1:] += x[:-1].sum()
    return x[-1] / len(x)


@rejected(MEAN, "wrong result", "with n = 2, it returns .*, not .*. It is right with n = 1.")
def not_divided(x):
    return sum(x)


@rejected(MEAN, "does not run", "with n = 1, ZeroDivisionError: ")
def divided_by_zero(x):
    return 1 / (len(x) - 1)


@rejected(MEAN, "wrong result", "with n = 1, it returns 'much', not")
def a_word(x):
    return "much"


@rejected(MEAN, "not started", r"write a function of \(x\)")
def nothing(x):
    raise NotImplementedError


@pytest.mark.parametrize("toy, kernel, mistake, said, code", WRONG)
def test_a_wrong_answer_is_rejected_for_its_reason(toy, kernel, mistake, said, code):
    verdict = judge(toy, kernel)
    assert not verdict
    assert verdict.mistake == mistake, verdict
    assert verdict.message.startswith(f"{mistake}: ")
    assert re.search(said, verdict.message), verdict
    if verdict.case:
        assert f"with {verdict.case}, " in verdict.message
    if code is not None:
        assert code in verdict.code
        assert str(verdict).endswith(f"\n    {verdict.line} | {verdict.code}")


def test_every_mistake_is_tried():
    tried = {parameters.values[2] for parameters in WRONG}
    elsewhere = {"not a kernel", "inaccurate", "race", "too much divergence", "too many barriers", "too much work"}
    assert set(ADVICE) <= tried | elsewhere | {"too much shared memory"}


@cuda.jit
def several_threads_write(x, y, out):
    out[0] = x[cuda.threadIdx.x % x.size]


def test_a_race_inside_one_statement():
    assert judge(ADD, several_threads_write).mistake == "race"


@cuda.jit
def neighbours_write_one_element(x, y, out):
    i = cuda.grid(1)
    if i + 1 < out.size:
        out[i] = x[i]
        out[i + 1] = y[i]


def test_no_barrier_is_advised_where_two_threads_write_the_same_result():
    verdict = judge(ADD, neighbours_write_one_element)
    assert verdict.mistake == "race"
    assert "no barrier mends: look at the index" in verdict.message


# ------------------------------------------------------------------------------------------ right in another way

RIGHT = []


def accepted(toy):
    return lambda kernel: RIGHT.append(pytest.param(toy, kernel, id=f"{toy.name}: {kernel.__name__}")) or kernel


@accepted(ADD)
@cuda.jit
def loads_that_a_compiler_keeps(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + x[i] + x[i] + y[i] + y[i] + y[i] - x[i] - x[i] - y[i] - y[i]


@accepted(ADD)
@cuda.jit
def a_choice_that_a_compiler_makes_in_float32(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i] if x[i] > 0 else 0.0


@accepted(ADD)
@cuda.jit
def a_number_that_a_compiler_computes(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * np.float32(3 / 4 + 1 / 4) + y[i]


@accepted(ADD)
@cuda.jit
def each_branch_for_itself(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        if i * 7 % 3 == 0:
            out[i] = x[i] + y[i]
        else:
            out[i] = y[i] + x[i]


@accepted(TURN)
@cuda.jit
def counted_from_the_end(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    cuda.syncthreads()
    out[i] = values[-1 - thread]


@accepted(TRANSPOSE)
@cuda.jit
def two_lanes_in_a_bank(x, out):
    tile = cuda.shared.array((TILE, 34), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@accepted(MEAN)
def a_fraction(x):
    return sum(map(Fraction, x.tolist())) / len(x)


@pytest.mark.parametrize("toy, kernel", RIGHT)
def test_a_right_answer_that_is_written_in_another_way_passes(toy, kernel):
    verdict = judge(toy, kernel)
    assert verdict, verdict


# ------------------------------------------------------------------------------------------------ no wrong accusation


def ten_cases(rng):
    """An input of 10 elements, and of 30."""
    made = [(n, rng.integers(-9, 10, n)) for n in (10, 30)]
    return [Case(f"n = {n}", (x, unwritten(n, np.int64)), 1, BLOCK, {1: np.minimum(x, x[0])}) for n, x in made]


@cuda.jit
def no_more_than_the_first(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = min(x[i], x[0])


TENS = Exercise(
    "toy/tens", "Write the smaller of each and the first.", "x, out", ten_cases, None, (), no_more_than_the_first
)


@cuda.jit
def with_a_large_number(x, out):
    i = cuda.grid(1)
    least = 10**9
    if i < x.size:
        for k in range(0, i + 1, max(i, 1)):
            least = min(least, x[k])
        out[i] = least


@cuda.jit
def with_a_large_number_shifted(x, out):
    i = cuda.grid(1)
    least = 1 << 30
    if i < x.size:
        for k in range(0, i + 1, max(i, 1)):
            least = min(least, x[k])
        out[i] = least


@cuda.jit
def up_to_thirty(x, out):
    i = cuda.grid(1)
    if i < min(x.size, 30):
        out[i] = min(x[i], x[0])


@cuda.jit
def up_to_a_power(x, out):
    i = cuda.grid(1)
    if i < min(x.size, 2**10):
        out[i] = min(x[i], x[0])


def test_a_power_is_no_size_because_its_base_or_exponent_is_one():
    """An input of 10 elements, and 10**9 in the code."""
    assert judge(TENS, with_a_large_number)
    assert judge(TENS, with_a_large_number_shifted)
    assert judge(TENS, up_to_a_power)
    assert judge(TENS, up_to_thirty).mistake == "hard-coded size"


def test_a_power_that_is_a_size_is_hard_coded():
    def cases(rng):
        made = [(n, np.arange(n)) for n in (10, 2187)]
        return [Case(f"n = {n}", (x, unwritten(n, np.int64)), 35, BLOCK, {1: np.zeros(n, np.int64)}) for n, x in made]

    @cuda.jit
    def zeros(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = 0 * x[i]

    @cuda.jit
    def zeros_up_to_a_power(x, out):
        i = cuda.grid(1)
        if i < min(x.size, 3**7):
            out[i] = 0 * x[i]

    toy = Exercise("toy/zeros", "Write zeros.", "x, out", cases, None, (), zeros)
    verdict = judge(toy, zeros_up_to_a_power)
    assert verdict.mistake == "hard-coded size"
    assert "says 2187" in verdict.message


def test_shared_memory_that_the_kernel_takes_beside_the_launch_has_a_budget():
    def cases(rng):
        return [dataclasses.replace(case, sharedmem=4 * BLOCK) for case in turn_cases(rng)]

    toy = Exercise("toy/turn", "Turn.", "x, out", cases, lambda case: {"declared_shared_bytes": (4 * BLOCK, "no more")})
    verdict = judge(toy, turn_in_two_arrays)
    assert verdict.mistake == "too much shared memory"
    assert "the kernel takes 512 bytes of shared memory itself where 256 will do. No more." in verdict.message
    assert verdict.code == "turned = cuda.shared.array(BLOCK, np.int32)"
    assert judge(toy, TURN.answer)


@cuda.jit
def turn_in_two_arrays(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    turned = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    cuda.syncthreads()
    turned[thread] = values[BLOCK - 1 - thread]
    out[i] = turned[thread]


@cuda.jit(device=True)
def add_to(sums, value):
    sums[0] += value


@cuda.jit
def a_missing_atomic_in_a_function(x, out):
    i = cuda.grid(1)
    if i < x.size:
        add_to(out, x[i])


def test_a_function_in_the_same_file_is_read_like_the_kernel():
    verdict = judge(TOTAL, a_missing_atomic_in_a_function)
    assert (verdict.mistake, verdict.code) == ("missing atomic", "sums[0] += value")


def halves_cases(rng):
    """Both cases with one block are right for an answer that is wrong in another way."""
    cases = []
    for n, half in ((1, 0), (BLOCK, 0), (BLOCK + 1, 1), (3 * BLOCK, 1)):
        x = rng.integers(1, 100, n).astype(np.int64)
        args = x, half, unwritten(n, np.int64)
        cases.append(Case(f"n = {n}, half = {half}", args, -(-n // BLOCK), BLOCK, {2: x + half}))
    return cases


@cuda.jit
def ignores_half(x, half, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 0 * half


def test_a_result_that_is_wrong_in_the_first_block_is_not_only_right_for_one_block():
    toy = Exercise("toy/halves", "Add.", "x, half, out", halves_cases)
    assert judge(toy, ignores_half).mistake == "wrong result"


@cuda.jit
def an_index_that_is_wrong_without_a_last_block(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i + 1 - i % 2 - i % 2] if i < BLOCK else x[i + BLOCK]


def test_no_guard_is_missing_where_every_thread_has_an_element():
    verdict = judge(TURN, an_index_that_is_wrong_without_a_last_block)
    assert verdict.mistake == "index out of bounds"


def test_a_foreseen_result_is_told_before_an_access_that_comes_of_it():
    verdict = judge(ADD, minus_and_beyond)
    assert (verdict.mistake, verdict.case) == ("wrong sign", "n = 1")


@cuda.jit
def minus_and_beyond(x, y, out):
    i = cuda.grid(1)
    if i < out.size or i == BLOCK + 3:
        out[i] = x[i] - y[i]


# ------------------------------------------------------------------------------------------------- the failing input


@pytest.mark.filterwarnings("ignore:.*Host array used in CUDA kernel")
def test_the_failing_input_can_be_run():
    verdict = judge(ADD, not_the_last)
    assert verdict.case == "n = 1"
    x, y, out = verdict.inputs
    assert verdict.inputs.x is x
    assert np.isnan(out).all()
    ADD.answer[verdict.launch](*verdict.inputs)
    np.testing.assert_array_equal(out, x + y)


def test_the_failing_input_is_a_copy():
    first, second = judge(ADD, not_the_last), judge(ADD, not_the_last)
    first.inputs.x[:] = 0
    np.testing.assert_array_equal(second.inputs.x, ADD.inputs[0].args[0])


def test_the_failing_input_of_a_function():
    verdict = judge(MEAN, not_divided)
    assert verdict.launch == ()
    assert not_divided(*verdict.inputs) == sum(verdict.inputs.x)


def test_without_a_failing_case_there_is_no_input():
    for answer in (total_answer, None):
        verdict = judge(TOTAL, answer)
        assert (verdict.inputs, verdict.launch) == ((), ())


@pytest.mark.parametrize(
    ("expected", "tolerance", "said"),
    [
        ([1000.0, 4.0], 1e-6, None),  # no more than rounding is allowed
        ([10.0, 4.0], [2.0, 0.0], "[8 to 12, 4]"),
        (3.0, 2.0, None),  # a single number
    ],
)
def test_what_an_element_may_be(expected, tolerance, said):
    expected = np.asarray(expected)
    assert _allowed(expected, tolerance) == (said or _show(expected))
