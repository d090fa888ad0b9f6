"""The contract of a room, held to every room: its shape, its inputs, its results, and that its kernels compile."""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from pmpp.lab.rooms import chapter_of, pmpp_section, rooms, subject_of
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Rung, room_name
from pmpp.simt.host import launch
from tests.support.budget import note
from tests.support.compiled import names_of
from tests.support.few_counters import FewCounters
from tests.support.judge import difference, judge

ROOT = Path(__file__).parents[2]
ROOMS = rooms()
NAMES = [room_name(module) for module in ROOMS]
RUNGS = [rung for module in ROOMS for rung in module.LADDER]
each_room = pytest.mark.parametrize("room", ROOMS, ids=NAMES)
each_rung = pytest.mark.parametrize("rung", RUNGS, ids=[f"{rung.room}.{rung.name}" for rung in RUNGS])


def module_of(rung):
    return ROOMS[NAMES.index(rung.room)]


def top_level(room):
    return ast.parse(inspect.getsource(room)).body


def defined_at(room):
    """Each top-level name and the position of its definition."""
    found = {}
    for position, node in enumerate(top_level(room)):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = position
        elif isinstance(node, ast.Assign):
            found.update((target.id, position) for target in node.targets if isinstance(target, ast.Name))
    return found


def kernels_of(room):
    """The room's kernels, each once, in the order of the ladder."""
    return list(dict.fromkeys(kernel for rung in room.LADDER for kernel in rung.kernels))


def kernel_name(kernel):
    return getattr(kernel, "py_func", kernel).__name__


def own(room, kernels):
    """Those that are written in the room's file, and not in one that was split off it by algorithm."""
    return [kernel for kernel in kernels if getattr(kernel, "py_func", kernel).__module__ == room.__name__]


# ------------------------------------------------------------------------------------------------------- its shape


@each_room
def test_the_docstring_names_subject_chapter_and_section(room):
    assert re.match(r"[A-Z][^\n]*: [^\n]+\.\n", room.__doc__), "the first line: Subject: what it is."
    assert re.fullmatch(r"notebooks/\d{2,3}_\w+\.ipynb", chapter_of(room))
    assert pmpp_section(room)


@each_room
def test_the_bands_are_in_order(room):
    at = defined_at(room)
    bands = [at[name] for name in ("reference", "inputs", "cost")]
    assert bands == sorted(bands)
    assert max(bands) < min(at[kernel_name(kernel)] for kernel in own(room, kernels_of(room)))
    assert at["LADDER"] == len(top_level(room)) - 1, "LADDER comes last"
    for rung in room.LADDER:
        for kernel in own(room, rung.kernels):
            assert at[kernel_name(kernel)] < at[rung.name], f"{kernel_name(kernel)} stands before its rung"
    order = [at[rung.name] for rung in room.LADDER]
    assert order == sorted(order), "the rungs stand in the order of the ladder"


@each_room
def test_the_ladder_has_every_rung_once(room):
    rungs = [value for value in vars(room).values() if isinstance(value, Rung)]
    own_rungs = {rung for rung in rungs if rung.launch.__module__ == room.__name__}
    for rung in own_rungs.difference(room.LADDER):
        pytest.fail(f"`{rung.name}` is a rung of this room and not in LADDER")
    for rung in set(room.LADDER) - own_rungs:
        pytest.fail(f"`{rung.name}` is in LADDER and no rung of this room")
    assert len(set(room.LADDER)) == len(room.LADDER), "a rung stands twice in LADDER"
    assert len(room.LADDER) >= 2, f"LADDER has {len(room.LADDER)} rung; at least 2"


@each_room
def test_a_room_has_its_tests_its_wrong_kernels_and_its_chapter(room):
    name, subject = room_name(room), subject_of(room)
    chapter = Path(chapter_of(room))
    source = chapter.parent / "source" / f"{chapter.stem}.py"
    folder = ROOT / "tests" / "kernels" / subject
    tests = folder / f"test_{name}.py"
    wrong = folder / ("wrong.py" if name == subject else f"wrong_{name}.py")
    for path in (tests, wrong, source):
        assert (ROOT / path).is_file(), f"{path} is missing"
    command = f".venv/bin/python -m pmpp.lab.publish.notebooks {chapter.stem}"
    assert (ROOT / chapter).is_file(), f"{chapter} is missing: execute the chapter with `{command}`"
    kernels = importlib.import_module(f"tests.kernels.{subject}.{wrong.stem}").RUNGS
    assert len(kernels) >= 4, f"{wrong} has {len(kernels)} wrong kernels; at least 4"
    if room not in SAY_HOW_FAR:
        needed = f"{room.__name__} needs a function `tolerance`, or {tests} a test `test_a_rung_has_no_fault`"
        assert "def test_a_rung_has_no_fault(" in tests.read_text(encoding="utf-8"), needed


@each_rung
def test_a_rung_is_named_for_its_idea(rung):
    assert not re.search(r"_?v?\d+$", rung.name), "a number rots"
    assert rung.idea.endswith("."), "the docstring's first line is a sentence"
    if rung is not module_of(rung).LADDER[-1]:
        assert rung.leaves, "Leaves: is the fault that the next rung mends"


# ------------------------------------------------------------------------------------------- its inputs and results


def same(first, second):
    """Arrays bit for bit: a NaN is itself, in bfloat16 as well."""
    if not isinstance(first, np.ndarray):
        return first == second
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@each_room
def test_the_inputs_are_small_awkward_and_the_same_every_time(room):
    once, again = room.inputs(), room.inputs()
    assert len(once) >= 8, f"`inputs()` has {len(once)} arguments; at least 8"
    for name, arguments in once.items():
        assert isinstance(arguments, tuple), name
        assert isinstance(arguments[0], np.ndarray), f"{name}: arrays come first, then numbers"
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        assert sum(array.nbytes for array in arrays) < 2**20, f"{name} is not small"
        for first, second in zip(arguments, again[name], strict=True):
            assert same(first, second), name


@each_room
def test_every_dtype_is_among_the_inputs(room):
    """What no input has is neither computed nor compiled by any test."""
    given = {np.dtype(arguments[0].dtype) for arguments in room.inputs().values()}
    assert set(known(getattr(room, "DTYPES", ()))) <= given


@each_room
def test_the_cost_is_a_cost(room):
    parameters = inspect.signature(room.cost).parameters.values()
    required = [one for one in parameters if one.default is inspect.Parameter.empty]
    small, large = room.cost(*[64] * len(required)), room.cost(*[128] * len(required))
    assert isinstance(small, Cost)
    assert 0 < small.bytes < large.bytes
    assert small.flops == large.flops == 0 or 0 < small.flops < large.flops  # a transpose only moves


@functools.cache
def smallest(room):
    """The name of the input with the fewest elements of which no array is empty, and one has more than one."""
    sizes = {name: [one.size for one in case if isinstance(one, np.ndarray)] for name, case in room.inputs().items()}
    return min((name for name, size in sizes.items() if min(size) and max(size) > 1), key=lambda name: sum(sizes[name]))


def of_the_host(rung, arguments):
    """What a rung makes of the host's arrays, which stay as they were. It lies on the device."""
    before = [np.copy(argument) for argument in arguments]
    result = rung(*arguments)
    assert all(hasattr(one, "copy_to_host") for one in (result if isinstance(result, tuple) else (result,)))
    for argument, copy in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, copy)
    return result


def test_arrays_are_the_same_bit_for_bit():
    x = np.float32([1, np.nan])
    assert same(x, x.copy())
    assert not same(x, np.float32([1, 2]))
    assert not same(x, x.astype(np.float64))
    assert same(3, 3)
    assert not same("max", "sum")


@functools.cache
def solved(room):
    """The room's inputs by name, each with the reference's result and how far from it is right."""
    cases = room.inputs().items()
    return {name: (arguments, room.reference(*arguments), room.tolerance(*arguments)) for name, arguments in cases}


# A room without `tolerance` has derived in its test_<room>.py how far is right, and runs every input there.
SAY_HOW_FAR = [room for room in ROOMS if hasattr(room, "tolerance")]
RUNGS_OF_THESE = [rung for room in SAY_HOW_FAR for rung in room.LADDER]


@pytest.mark.parametrize(
    "rung",
    [rung for rung in RUNGS if rung not in RUNGS_OF_THESE],
    ids=[f"{rung.room}.{rung.name}" for rung in RUNGS if rung not in RUNGS_OF_THESE],
)
def test_a_rung_leaves_its_inputs_alone_and_returns_a_device_array(rung, monkeypatch):
    """The other rungs are tried with arrays of the host below, where results are compared.

    Without checks: on every input of the room, this one too, they are made by the test that compares results.
    """
    monkeypatch.setenv("PMPP_CHECK", "")
    of_the_host(rung, module_of(rung).inputs()[smallest(module_of(rung))])


@pytest.mark.parametrize("room", SAY_HOW_FAR, ids=room_name)
def test_the_tolerance_tells_a_result_from_one_that_is_off_by_a_tenth(room):
    """On most inputs at least: what cancels may be off by all of itself."""
    told = []
    for _, expected, allowed in solved(room).values():
        expected = np.asarray(expected)
        known = np.isfinite(expected) & (expected != 0)
        if known.any():
            told.append((0.1 * abs(expected) > np.broadcast_to(allowed, expected.shape))[known].any())
    assert np.mean(told) > 0.5, f"on {told.count(False)} of {len(told)} inputs such a result is near enough"


def meant(rung):
    """Arithmetic in float64 is no fault where a kernel names a type of 64 bits."""
    made = (inspect.unwrap(getattr(kernel, "py_func", kernel)) for kernel in rung.kernels)  # some by a function
    named = {name for function in made for name in names_of(function)}
    return {"float64"} if named & {"float64", "complex128"} else set()


def faults_on(rung, name):
    """What is wrong with a rung on one input, with the element that is; and the reports of the launches.

    The smallest input is given as the host's arrays, the others as the device's.
    """
    arguments, expected, allowed = solved(module_of(rung))[name]

    def wrong(result):
        usual = np.complex64 if result.dtype.kind == "c" else arguments[0].dtype
        dtype = getattr(module_of(rung), "RESULT", usual)
        return difference(result, np.reshape(expected, result.shape), allowed, dtype)

    host = name == smallest(module_of(rung))
    judged = judge(
        (lambda *_: of_the_host(rung, arguments)) if host else rung, arguments, lambda result: not wrong(result)
    )
    found = [fault for fault in judged.faults if fault not in meant(rung)]
    where = [wrong(judged.result)] if found and judged.result is not None else []
    return found + [said for said in where if said], judged.reports


@pytest.mark.parametrize("rung", RUNGS_OF_THESE, ids=[f"{rung.room}.{rung.name}" for rung in RUNGS_OF_THESE])
def test_a_rung_is_right_on_every_input(rung, record_property, monkeypatch):
    """No race, no access out of bounds, no input changed, and each element within the room's tolerance."""
    monkeypatch.setattr(launch, "Counters", FewCounters)
    wrong, reports = {}, []
    for name in solved(module_of(rung)):
        try:
            found, of_input = faults_on(rung, name)
        except Exception as error:
            error.add_note(f"on the input {name!r}")
            raise
        reports += of_input
        if found:
            wrong[name] = found
    assert wrong == {}
    note(record_property, rung.room, reports)
