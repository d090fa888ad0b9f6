"""The exercise check, tested on wrong kernels: each is rejected, and for what is wrong with it."""

import re

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.teach.diagnosis import ADVICE, judge
from tests.support.toys import ADD, BLOCK, MEAN, TILE, TOTAL, TRANSPOSE, TURN


@pytest.mark.parametrize("toy", [ADD, TOTAL, TURN, TRANSPOSE, MEAN], ids=lambda toy: toy.name)
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


@rejected(ADD, "not a GPU kernel", r"a list.* does not exist on the device \(line \d+\)", "out[i] = [x[i] + y[i] for")
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
        out[i] = x[i] + x[i] + x[i] + y[i] + y[i] + y[i] - x[i] - x[i] - y[i] - y[i]


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


@rejected(TRANSPOSE, "wrong result", r"with 32 x 32, out\[0, 1\] is .* It is right with 1 x 1")
@cuda.jit
def not_transposed(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        flat = row * x.shape[1] + column
        out[flat // out.shape[1], flat % out.shape[1]] = x[row, column]


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
    assert set(ADVICE) <= tried | elsewhere


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
