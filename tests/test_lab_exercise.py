"""The exercise check, tested on wrong kernels: each is rejected, and for what is wrong with it."""

import builtins
import re

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.lab import device, exercise
from pmpp.lab.diagnosis import ADVICE, judge
from pmpp.lab.exercise import Case, Exercise, Trap, Verdict, unwritten

BLOCK = 64
TILE, PITCH = 32, 33


def blocks(n, block=BLOCK):
    return -(-n // block)


# --------------------------------------------------------------------------------------- exercises to be wrong about
#
# add: an element a thread. total: one number from many blocks. turn: shared memory and a barrier. transpose: 2-D, with
# coalescing and banks to get wrong.


def add_cases(rng):
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 900):
        x, y = rng.integers(1, 1000, (2, n)).astype(np.float32)  # sums are exact
        cases.append(Case(f"n = {n}", (x, y, unwritten(n, np.float32)), blocks(n), BLOCK, {2: x + y}))
    return cases


@cuda.jit
def add_answer(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def subtracted(x, y, out):
    return {2: x - y}


ADD = Exercise(
    "toy/add",
    task="Add.",
    parameters="x, y, out",
    cases=add_cases,
    answer=add_answer,
    traps=(Trap("wrong sign", "this is x - y", subtracted),),
)


def total_cases(rng):
    cases = []
    for n in (1, BLOCK, BLOCK + 1, 2000):
        x = rng.integers(1, 100, n).astype(np.int64)
        cases.append(Case(f"n = {n}", (x, np.zeros(1, np.int64)), blocks(n), BLOCK, {1: x.sum(keepdims=True)}))
    return cases


@cuda.jit
def total_answer(x, out):
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


TOTAL = Exercise("toy/total", task="Sum up.", parameters="x, out", cases=total_cases, answer=total_answer)


def turn_cases(rng):
    cases = []
    for n in (BLOCK, 3 * BLOCK, 10 * BLOCK):
        x = rng.permutation(n).astype(np.int32)
        expected = x.reshape(-1, BLOCK)[:, ::-1].reshape(-1)
        cases.append(Case(f"n = {n}", (x, unwritten(n, np.int32)), n // BLOCK, BLOCK, {1: expected}))
    return cases


@cuda.jit
def turn_answer(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    cuda.syncthreads()
    out[i] = values[BLOCK - 1 - thread]


TURN = Exercise("toy/turn", task="Turn each block round.", parameters="x, out", cases=turn_cases, answer=turn_answer)


def transpose_cases(rng):
    cases = []
    for h, w in ((1, 1), (32, 32), (33, 20), (70, 100)):
        x = rng.standard_normal((h, w), dtype=np.float32)
        grid = blocks(w, TILE), blocks(h, TILE)
        cases.append(Case(f"{h} x {w}", (x, unwritten((w, h), np.float32)), grid, (TILE, TILE), {1: x.T}))
    return cases


@cuda.jit
def transpose_answer(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


TRANSPOSE = Exercise(
    "toy/transpose", task="Transpose.", parameters="x, out", cases=transpose_cases, answer=transpose_answer
)


def mean_cases(rng):
    cases = []
    for n in (1, 2, 100):
        x = rng.standard_normal(n)
        # NumPy adds in pairs, the answer in order: n - 1 roundings of sum |x| at most.
        cases.append(Case(f"n = {n}", (x,), None, None, {0: x.mean()}, {0: 2**-52 * np.abs(x).sum()}))
    return cases


MEAN = Exercise("toy/mean", task="The mean.", parameters="x", cases=mean_cases, answer=lambda x: sum(x) / len(x))


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


@rejected(ADD, "hard-coded size", r"Line \d+ says 900", "if i < 900")
@cuda.jit
def for_900(x, y, out):
    i = cuda.grid(1)
    if i < 900:
        out[i] = x[i] + y[i]


@rejected(
    ADD, "index out of bounds", r"with n = 65, thread 0 of block 1 reads x\[65\], but the last element is x\[64\]"
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


# ----------------------------------------------------------------------------------------------------- budgets, detail


def test_a_hazard_in_a_function_of_another_file_is_told_of_the_line_that_calls_it():
    from pmpp.reduction import warp_combine

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            value = warp_combine(0, x[i])
            if cuda.laneid == 0:
                cuda.atomic.add(out, 0, value)

    verdict = judge(TOTAL, kernel)
    assert verdict.mistake == "inactive lanes"
    assert verdict.code == "value = warp_combine(0, x[i])"


def with_budget(toy, **limits):
    budget = {counter: (limit, "that is enough") for counter, limit in limits.items()}
    return Exercise(toy.name, toy.task, toy.parameters, toy.cases, lambda case: budget, answer=toy.answer)


@pytest.mark.parametrize(
    "counter, mistake, said",
    [
        ("barriers", "too many barriers", "blocks pass 224 barriers where 223 will do, most on line"),
        ("divergent_branches", "too much divergence", "branches diverge"),
        ("shared_load_requests", "too much traffic", "warps load from shared memory"),
        ("thread_instructions", "too much work", "thread instructions are"),
    ],
)
def test_a_budget_of_the_exercise(counter, mistake, said):
    x, out = TOTAL.inputs[-1].args
    used = simt.profile(total_answer, TOTAL.inputs[-1].grid, BLOCK, (x, out.copy()), level="count").counters[counter]
    assert judge(with_budget(TOTAL, **{counter: used}), total_answer)
    verdict = judge(with_budget(TOTAL, **{counter: used - 1}), total_answer)
    assert verdict.mistake == mistake
    assert said in verdict.message
    assert verdict.message.endswith("That is enough.")


def test_a_result_that_is_nearly_right():
    def cases(rng):
        x = rng.random(200, dtype=np.float32) + 1
        exact = np.sqrt(x.astype(np.float64))
        return [Case("n = 200", (x, unwritten(200, np.float32)), 4, BLOCK, {1: exact}, {1: 2**-23 * exact})]

    toy = Exercise("toy/root", "The root.", "x, out", cases)
    verdict = judge(toy, nearly)
    assert verdict.mistake == "inaccurate"
    assert judge(toy, root)


@cuda.jit
def root(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] ** np.float32(0.5)


@cuda.jit
def nearly(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] ** np.float32(0.5) * np.float32(1.00001)


@pytest.mark.parametrize("given", [None, ...])
def test_no_answer_yet(given):
    assert judge(ADD, given).mistake == "not started"


@pytest.mark.parametrize("given", [3, "toy/add", np.zeros(3), add_answer[1, 1]], ids=["int", "str", "array", "launch"])
def test_something_else_than_a_kernel(given):
    verdict = judge(ADD, given)
    assert verdict.mistake == "not a kernel"
    assert 'check("toy/add", my_kernel)' in verdict.message


def test_a_plain_function_is_as_good_as_a_kernel():
    assert judge(ADD, add_answer.py_func)


def test_a_kernel_without_source():
    namespace = {"cuda": cuda}
    builtins.exec("def kernel(x, y, out):\n    out[0] = x[0]\n", namespace)
    verdict = judge(ADD, namespace["kernel"])
    assert not verdict
    assert verdict.mistake in ("not a GPU kernel", "does not run")


def test_a_kernel_jitted_by_numba():
    numba_cuda = pytest.importorskip("numba.cuda")

    @numba_cuda.jit(device=True)
    def plus(a, b):
        return a + b

    @numba_cuda.jit
    def kernel(x, y, out):
        values = numba_cuda.shared.array(BLOCK, numba_cuda.types.float32)
        i, thread = numba_cuda.grid(1), numba_cuda.threadIdx.x
        values[thread] = plus(x[i], y[i]) if i < out.size else np.float32(0)
        numba_cuda.syncthreads()
        if i < out.size:
            out[i] = values[thread]

    assert judge(ADD, kernel)


def test_a_function_that_launches_is_checked_too():
    if device.on_gpu():
        pytest.skip("a launch on the GPU is not recorded")

    def add(x, y):
        out = device.empty(x.size, np.float32)
        no_guard[blocks(x.size), BLOCK](device.to_device(x), device.to_device(y), out)
        return out

    def cases(rng):
        made = [rng.integers(0, 9, (2, n)).astype(np.float32) for n in (64, 65)]
        return [Case(f"n = {x.size}", (x, y), None, None, {0: x + y}) for x, y in made]

    toy = Exercise("toy/launch", "Add.", "x, y", cases)
    verdict = judge(toy, add)
    assert (verdict.mistake, verdict.case) == ("missing guard", "n = 65")


def test_the_cases_are_left_as_they_were():
    before = [np.copy(argument) for case in ADD.inputs for argument in case.args]
    judge(ADD, in_place)
    after = [argument for case in ADD.inputs for argument in case.args]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_unwritten_shows():
    assert np.isnan(unwritten((2, 3), np.float64)).all()
    assert (unwritten(4, np.uint8) == 0x5A).all()
    assert (unwritten((2, 2), np.int32) == 0x5A5A5A5A).all()


@pytest.mark.parametrize(
    "expected, tolerance, words",
    [
        ({0: np.zeros(3)}, {}, r"expected\[0\] must have the shape of the array args\[0\]"),
        ({1: np.zeros(2)}, {}, r"expected\[1\] must have the shape"),
        ({0: np.zeros(2)}, {1: 0.5}, r"there is a tolerance for \[1\], but nothing expected there"),
    ],
)
def test_a_case_that_cannot_be(expected, tolerance, words):
    with pytest.raises(ValueError, match=words):
        Case("n = 2", (np.zeros(2), 3), 1, 32, expected, tolerance)


# ----------------------------------------------------------------------------------------------------- check() itself


@pytest.fixture
def catalogue(monkeypatch):
    monkeypatch.setattr(exercise, "exercises", lambda: {toy.name: toy for toy in (ADD, TOTAL)})


@pytest.mark.usefixtures("catalogue")
def test_check_prints_its_verdict(capsys):
    verdict = exercise.check("toy/add", no_guard)
    assert isinstance(verdict, Verdict)
    assert capsys.readouterr().out == f"{verdict}\n"
    assert str(verdict).startswith("toy/add: missing guard: with n = 65,")


@pytest.mark.usefixtures("catalogue")
def test_in_a_notebook_the_verdict_shows_itself(capsys, monkeypatch):
    monkeypatch.setattr(exercise, "_in_notebook", lambda: True)
    verdict = exercise.check("toy/add", one_too_many)
    assert capsys.readouterr().out == ""
    shown = verdict._repr_html_()
    assert "guard off by one" in shown
    assert "test with &lt;, not &lt;=" in shown
    assert f"<code>{verdict.line} | out[i] = x[i] + y[i]</code>" in shown


@pytest.mark.usefixtures("catalogue")
def test_an_exercise_that_is_not_there():
    with pytest.raises(ValueError, match="there is no exercise 'toy/ad'; there is 'toy/add'"):
        exercise.check("toy/ad", no_guard)


def test_an_exercise_shows_its_task_and_hides_its_hints():
    toy = Exercise("toy/add", "Add <two> vectors.", "x, y", add_cases, hints=("Think.",))
    assert str(toy) == "toy/add(x, y): Add <two> vectors."
    assert "Add &lt;two&gt; vectors." in toy._repr_html_()
    assert "<details><summary>Hint 1</summary>Think.</details>" in toy._repr_html_()
