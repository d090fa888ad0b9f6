"""Every exercise of every room: awkward cases, an answer that passes, and wrong answers that are found out."""

import dataclasses
import importlib
import pkgutil
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tests.support.clusters  # noqa: F401 (lets Numba compile answers about clusters without a GPU)
from pmpp.lab.rooms import exercise_modules
from pmpp.lab.teach.diagnosis import ADVICE, judge
from pmpp.lab.teach.exercise import exercise, exercises
from pmpp.runtime import clusters, device
from pmpp.simt import Clusters
from tests import kernels
from tests.contract.attested import skip_if_attested
from tests.support.answers import own_answers_run_once  # noqa: F401
from tests.support.compiled import OLDEST
from tests.support.wrong import name_of

EXERCISES = list(exercises().values())
FILES = pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.")
COLLECTED = [importlib.import_module(info.name) for info in FILES if re.search(r"\.(wrong|answers)(_\w+)?$", info.name)]
ANSWERS = [answer for module in COLLECTED for answer in getattr(module, "ANSWERS", ())]
OWN = [(one.name, one.answer) for one in EXERCISES]
RIGHT = OWN + [pair for module in COLLECTED for pair in getattr(module, "ALSO_RIGHT", ())]
# Those whose cases have no grid. It is read off the answer: each process collects, and to make all cases takes seconds.
ON_HOST = {one.name for one in EXERCISES if isinstance(one.answer, types.FunctionType)}
SEEDS = 0, 1  # as graders have them
SQUARE = {"softmax/causal"}  # a task about square matrices
FORM = {"argnames": ("name", "answer"), "ids": lambda value: getattr(value, "__name__", None)}
each_right = pytest.mark.parametrize(**FORM, argvalues=RIGHT)
# Readers see the first ones. To compile all takes long, and is left to a machine with a GPU.
each_to_compile = pytest.mark.parametrize(**FORM, argvalues=RIGHT if device.on_gpu() else OWN)
each_exercise = pytest.mark.parametrize("one", EXERCISES, ids=[one.name for one in EXERCISES])


def blocks_of(case):
    return int(np.prod(case.grid))


@each_exercise
def test_an_exercise_is_complete(one):
    assert re.fullmatch(r"[a-z][a-z0-9_]*/[a-z_]+", one.name)
    assert one.task.endswith(".")
    assert one.hints
    assert one.answer is not None


def test_names_are_unique():
    modules = {room: importlib.import_module(name) for room, name in exercise_modules().items()}
    assert [one.name for module in modules.values() for one in module.EXERCISES] == [one.name for one in EXERCISES]
    for room, module in modules.items():
        assert all(one.name.startswith(f"{room}/") for one in module.EXERCISES)


CHAPTERS = "".join(
    path.read_text(encoding="utf-8")
    for path in (Path(kernels.__path__[0]).parents[1] / "notebooks/source").glob("*.py")
)


@each_exercise
def test_a_chapter_sets_it_and_checks_it(one):
    assert f'exercise("{one.name}")' in CHAPTERS
    assert f'check("{one.name}"' in CHAPTERS


@each_exercise
def test_only_the_cases_of_a_function_of_the_host_have_no_grid(one):
    assert {case.grid is None for case in one.inputs} == {one.name in ON_HOST}


@each_exercise
def test_the_cases_are_awkward(one):
    cases = one.inputs
    assert len({case.name for case in cases}) == len(cases)
    assert len({tuple(array.shape for array in case.arrays) for case in cases}) >= 3
    if cases[0].grid is not None:
        assert any(blocks_of(case) == 1 for case in cases), "a mistake that needs two blocks must not show here"
        assert any(blocks_of(case) > 1 for case in cases), "and must show here"
        shapes = [array.shape for case in cases for array in case.arrays if array.ndim == 2]
        square = all(rows == columns for rows, columns in shapes)
        assert not shapes or not square or one.name in SQUARE, "a square hides rows taken for columns"
    for case in cases:
        assert case.size < 100_000, f"{case.name} is not small"
        names = [name.strip() for name in one.parameters.split(",")]
        assert len(names) == len(case.args), case.name


@each_exercise
def test_the_cases_are_the_same_every_time(one):
    again = one.cases(np.random.default_rng(20261121))
    for first, second in zip(one.inputs, again, strict=True):
        for a, b in zip(first.args, second.args, strict=True):
            np.testing.assert_array_equal(a, b)


@each_exercise
def test_no_expected_result_is_there_already(one):
    """An answer that writes nothing must be wrong everywhere, or what it leaves out would not show."""
    for case in one.inputs:
        for index, expected in case.expected.items() if case.grid is not None else ():
            assert not np.array_equal(case.args[index], expected), f"{case.name}: args[{index}]"


@each_right
def test_a_right_answer_passes(name, answer):
    verdict = judge(exercise(name), answer)
    assert verdict, verdict


@each_to_compile
def test_a_right_answer_is_one_for_a_gpu_too(name, answer, ptx):
    case = exercise(name).inputs[0]
    if case.grid is not None:
        module = sys.modules[answer.py_func.__module__]
        skip_if_attested(__file__, module.__file__)
        oldest = clusters.CAPABILITY if isinstance(case.grid, Clusters) else OLDEST
        assert ".entry" in ptx(answer, *case.args, cc=oldest, opt=False)


@each_exercise
def test_nothing_is_no_answer(one):
    assert judge(one, None).mistake == "not started"


@pytest.mark.parametrize("wrong", ANSWERS, ids=map(name_of, ANSWERS))
def test_a_wrong_answer_is_rejected_for_its_reason(wrong):
    one = exercise(wrong.exercise)
    verdict = judge(one, wrong.kernel)
    assert not verdict
    assert verdict.mistake == wrong.mistake, verdict
    assert wrong.mistake in ADVICE or wrong.mistake in {trap.mistake for trap in one.traps}
    assert re.search(wrong.said, verdict.message), verdict


ONCE_OTHERWISE = {  # wrong kernels, and a seed with which they once passed or were told something else
    "no_mean": 3,  # what is wrong was far larger than what is right
    "segmented_by_walking_back_in_shared_memory": 3,  # no head was far
    "fade_of_parts_cut_off": 1,  # where the image fills its blocks there was nothing to mix
}


@pytest.mark.parametrize(("answer", "seed"), ONCE_OTHERWISE.items(), ids=ONCE_OTHERWISE)
def test_a_kernel_is_told_the_same_on_other_inputs(answer, seed):
    [wrong] = [wrong for wrong in ANSWERS if name_of(wrong).endswith(f": {answer}")]
    one = exercise(wrong.exercise)
    other = dataclasses.replace(one, cases=lambda _: one.cases(np.random.default_rng(seed)))
    assert judge(other, wrong.kernel).mistake == wrong.mistake


@pytest.mark.parametrize("name", sorted(ON_HOST))
def test_a_verdict_is_the_same_on_other_inputs(name):
    """As `make grade` judges. Functions of the host are judged fast, so all answers are tried."""
    one = exercise(name)
    expected = [(answer, "") for other, answer in RIGHT if other == name]
    expected += [(wrong.kernel, wrong.mistake) for wrong in ANSWERS if wrong.exercise == name]
    for seed in SEEDS:
        other = dataclasses.replace(one, cases=lambda _, seed=seed: one.cases(np.random.default_rng(seed)))
        for answer, mistake in expected:
            assert judge(other, answer).mistake == mistake, f"{answer.__name__} with seed {seed}"


@each_exercise
def test_each_exercise_has_wrong_answers(one):
    room = one.name.partition("/")[0]
    folder = Path(kernels.__file__).parent
    if list(folder.glob(f"{room}/test_exercises.py")) + list(folder.glob(f"*/test_exercises_{room}.py")):
        return  # so many that they have a file of their own
    wrong = [answer for answer in ANSWERS if answer.exercise == one.name]
    assert len(wrong) >= 5
    mistakes = {answer.mistake for answer in wrong}
    assert len(mistakes) >= 3, "at least three kinds of mistakes"
    assert {trap.mistake for trap in one.traps} <= mistakes, "each trap springs"
