"""The exercise check: budgets, what it accepts as an answer, and how it shows what it found."""

import builtins
import math

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.lab.teach import exercise
from pmpp.lab.teach.diagnosis import judge
from pmpp.lab.teach.exercise import Case, Exercise, Verdict, unwritten
from pmpp.runtime import device
from tests.support.toys import ADD, BLOCK, TOTAL, add_answer, add_cases, blocks, total_answer


@cuda.jit
def no_guard(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


@cuda.jit
def one_too_many(x, y, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def in_place(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        y[i] += x[i]
        out[i] = y[i]


# ----------------------------------------------------------------------------------------------------- budgets, detail


def test_a_hazard_in_a_function_of_another_file_is_told_of_the_line_that_calls_it():
    from pmpp.kernels.reduction import warp_combine

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


def test_one_barrier_too_many_is_told_of_its_own_line():
    from pmpp.kernels.softmax.exercises import BLOCK, LOWEST, ZERO, row_max, row_sum

    @cuda.jit
    def with_a_barrier(x, out):
        row, best, total = cuda.blockIdx.x, LOWEST, ZERO
        for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            best = max(best, x[row, i])
        best = row_max(best)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            total += math.exp(x[row, i] - best)
        total = math.log(row_sum(total))
        for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            out[row, i] = x[row, i] - best - total

    verdict = judge(exercise.exercise("softmax/log"), with_a_barrier)
    assert verdict.mistake == "too many barriers"
    assert verdict.code == "cuda.syncthreads()"


def test_advice_of_the_exercise():
    toy = Exercise("toy/add", "Add.", "x, y, out", add_cases, advice={"missing guard": "ask the size"})
    assert judge(toy, no_guard).message.endswith(" Ask the size.")
    assert judge(toy, one_too_many).message.endswith("test with <, not <=.")


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
    monkeypatch.setattr(exercise, "in_notebook", lambda: True)
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


def test_a_former_name_leads_to_the_exercise(monkeypatch):
    monkeypatch.setitem(exercise.ALIASES, "vector_add/axpy", "vector_add/saxpy")
    assert exercise.exercise("vector_add/axpy") is exercise.exercise("vector_add/saxpy")
    with pytest.raises(ValueError, match="there is no exercise 'vector_add/apxy'"):
        exercise.exercise("vector_add/apxy")
