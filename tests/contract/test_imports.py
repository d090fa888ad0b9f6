"""Imports run downwards: notebooks, parallel, nn, kernels, lab, runtime, simt. A room knows no instrument."""

import ast
import functools
import re

import pytest

from pmpp.lab.rooms import BESIDE
from tests.support.imports import (
    ALLOWED,
    FLOORS,
    ROOT,
    Import,
    circles,
    drawn,
    files,
    folder,
    going_up,
    graph,
    imports,
    main,
)

KERNELS = "pmpp.kernels"
IN_KERNELS = files(KERNELS)

# Beside a subject's workloads and exercises, what measures on purpose. A room imports none of these.
MEASURES = {
    f"{KERNELS}.autotuning.fitted": "what the plain product chooses from, on drawn shapes",
    f"{KERNELS}.autotuning.products": "what is tuned: a space of tiles, and how each is tried",
    f"{KERNELS}.autotuning.transposes": "the same, of a kernel that is bound by memory",
    f"{KERNELS}.convolution_layer.find": "ranks the algorithms by running them",
    f"{KERNELS}.convolution_layer.measured_gradients": "what the workloads of the two rooms of gradients share",
    f"{KERNELS}.convolution_layer.measured_layers": "what the workloads of the five rooms share",
    f"{KERNELS}.convolution_layer.survey": "measures the map of the fastest algorithms",
    f"{KERNELS}.instruments.agreement": "the probes whose counts are compared with the hardware's",
    f"{KERNELS}.instruments.agreement_reasons": "why some of these counts differ",
    f"{KERNELS}.instruments.agreement_rungs": "the rungs whose counts are compared with the hardware's",
    f"{KERNELS}.instruments.agreement_rungs_reasons": "why some of these counts differ",
    **{
        module: "what is called for drawn shapes, and beside which libraries"
        for module in IN_KERNELS
        if module.startswith(f"{KERNELS}.instruments.shapes")
    },
}


@functools.cache
def made():
    """Every import of the package; not found while tests are collected, which every process does."""
    return imports("pmpp")


def may_measure(module):
    return module in MEASURES or bool(re.search(rf"[._]({'|'.join(BESIDE)})$", module))


@functools.cache
def chapter_named(module):
    """The number of the first chapter that a module's docstring names, or None."""
    found = re.search(
        r"notebooks/(\d+)_", ast.get_docstring(ast.parse(IN_KERNELS[module].read_text(encoding="utf-8"))) or ""
    )
    return int(found[1]) if found else None


@functools.cache
def first_chapter(subject):
    """Where the reader meets a subject: the first chapter of its rooms, else the chapter of its name."""
    named = [chapter_named(one) for one in IN_KERNELS if folder(one, KERNELS) == subject]
    titled = [int(path.name.split("_")[0]) for path in (ROOT / "notebooks/source").glob(f"*_{subject}.py")]
    return min([number for number in named if number is not None] or titled)


def met_before(source, target):
    """Whether the reader meets the subject of ``target`` before that of ``source``, or in the same chapter."""
    here, there = folder(source, KERNELS), folder(target, KERNELS)
    if there in ("", "common", here):
        return True
    own, other = chapter_named(source), chapter_named(target)
    own = first_chapter(here) if own is None else own
    return (first_chapter(there) if other is None else other) <= own


# ------------------------------------------------------------------------------------------------------------ the house


@pytest.mark.parametrize("package", FLOORS)
def test_imports_run_downwards(package):
    assert going_up(package, FLOORS[package], imports(package)) == []


@pytest.mark.parametrize("package", ["pmpp.kernels", "pmpp.runtime", "pmpp.simt"])
def test_no_two_modules_import_each_other(package):
    assert circles(graph(package, imports(package))) == []


def test_a_circle_is_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]


def test_every_exception_is_needed():
    pairs = {(one.source, one.target) for one in made()}
    assert set(ALLOWED) <= pairs
    for module in MEASURES:
        assert any(source == module and folder(target, "pmpp") == "lab" for source, target in pairs), module


def test_the_package_imports_no_test():
    assert [one for one in made() if re.match(r"tests\b", one.target)] == []


def test_a_room_imports_runtime_and_rooms_met_before():
    wrong = []
    for module, target, line in made():
        if module in IN_KERNELS and not may_measure(module) and target.partition(".")[0] == "pmpp":
            at = f"{module}, line {line}, imports {target}"
            if folder(target, "pmpp") not in ("runtime", "kernels"):
                wrong.append(f"{at}: a room imports pmpp.runtime and rooms")
            elif may_measure(target):
                wrong.append(f"{at}, which measures")
            elif not met_before(module, target):
                wrong.append(f"{at}, which the reader meets later")
    assert wrong == []


def test_what_measures_imports_rooms_met_before():
    for module, target, line in made():
        if module in IN_KERNELS and may_measure(module) and folder(target, "pmpp") == "kernels":
            assert met_before(module, target), f"{module}, line {line}, imports {target}"


# ----------------------------------------------------------------------------------------- the reader of imports itself


@pytest.fixture
def house(tmp_path):
    """A package of three folders, top, middle and low, in which everything goes down."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return [tuple(one) for one in imports("house", tmp_path) if one.source.startswith("house.low")]

    write("house/__init__.py", 'LAZY = {"show": "house.top.shown"}\n')
    for name in ("top/__init__", "top/shown", "middle/__init__", "middle/room", "low/__init__"):
        write(f"house/{name}.py", "")
    return write


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import house.top.shown", "house.top.shown"),
        ("from house.top import shown", "house.top.shown"),
        ("from house.top.shown import anything", "house.top.shown"),
        ("from house.top import *", "house.top"),
        ("from house import show", "house.top.shown"),
        ("from ..top import shown", "house.top.shown"),
        ("from .. import top", "house.top"),
        ("def f():\n    from house.top import shown", "house.top.shown"),
        ("import typing\nif typing.TYPE_CHECKING:\n    from house.top import shown", "house.top.shown"),
        ("import importlib\nimportlib.import_module('house.top.shown')", "house.top.shown"),
    ],
)
def test_no_import_is_overlooked(house, text, target):
    found = house("house/low/one.py", text)
    line = len(text.splitlines())
    assert ("house.low.one", target, line) in found
    read = [Import(*one) for one in found]
    assert going_up("house", ("top", "middle", "low"), read) == [
        f"house.low.one, line {line}: low imports {target}, which is above it"
    ]
    assert going_up("house", ("low", "middle", "top"), read) == []
    assert going_up("house", ("top", "middle"), read) == [f"house.low.one, line {line}: low has no floor in house"]


def test_the_picture_has_a_level_a_folder():
    found = [Import("a.top.x", "a.low.y", 1), Import("a.top.x", "a.low", 2), Import("a.low.y", "numpy", 1)]
    assert drawn("a", ("top", "nowhere", "low"), found).splitlines() == [
        "top           -> low (2)",
        "nowhere       (nothing there yet)",
        "low",
    ]


def test_the_command_prints_every_package():
    lines = []
    assert main([], lines.append) == 0
    assert [line.partition("\n")[0] for line in lines if line.partition("\n")[0] in FLOORS] == list(FLOORS)
    assert lines.count("no import goes up") == len(FLOORS)
