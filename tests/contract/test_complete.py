"""What a subject and its rooms still lack, by name: slots that `make room` left, docstrings, exercises, workloads."""

import ast
import functools
import re

import pytest

from pmpp.lab.publish.skeleton import slots
from pmpp.lab.rooms import _HEADER
from tests.support.imports import ROOT, files

KERNELS = files("pmpp.kernels")
SUBJECTS = sorted({name.split(".")[2] for name in KERNELS if name.count(".") >= 3} - {"common"})
CHAPTERS = {path.stem for path in (ROOT / "notebooks/source").glob("*.py")}
each_subject = pytest.mark.parametrize("subject", SUBJECTS)


@functools.cache
def tree_of(name):
    """A module's source, parsed when a test asks for it: every process collects these tests, and few run them."""
    return ast.parse(KERNELS[name].read_text(encoding="utf-8"))


def has_ladder(tree):
    assigned = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    return any(getattr(target, "id", "") == "LADDER" for targets in assigned for target in targets)


def rooms_of(subject):
    """The modules of a subject that have a ladder. Nothing is imported, so that an unfinished room is named here."""
    own = (name for name in KERNELS if name.startswith(f"pmpp.kernels.{subject}."))
    return [name.rpartition(".")[2] for name in own if has_ladder(tree_of(name))]


def strings_in(node):
    """The strings that stand in a list, tuple, set or dictionary, as elements, keys or values."""
    inside = [*getattr(node, "elts", ()), *getattr(node, "keys", ()), *getattr(node, "values", ())]
    return {one.value for one in inside if isinstance(one, ast.Constant)}


@pytest.mark.parametrize("folder", ["pmpp/lab", "pmpp/runtime", "tests/contract", "tests/support"])
def test_no_list_of_rooms_is_kept_by_hand(folder):
    names = {subject if room == "ladder" else room for subject in SUBJECTS for room in rooms_of(subject)}
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
                listed = strings_in(node) & names
                assert len(listed) < 3, f"{path.relative_to(ROOT)}, line {node.lineno}: {sorted(listed)}"


@each_subject
def test_nothing_is_still_empty(subject):
    left = slots(subject)
    assert not left, "still empty:\n" + "\n".join(map(str, left))


def test_nothing_is_still_empty_elsewhere():
    left = [slot for slot in slots() if not any(slot in slots(subject) for subject in SUBJECTS)]
    assert not left, "still empty:\n" + "\n".join(map(str, left))


@each_subject
def test_a_subject_says_what_it_is_and_names_its_rooms(subject):
    said = ast.get_docstring(tree_of(f"pmpp.kernels.{subject}")) or ""
    assert re.match(r"[A-Z0-9].+\.$", said.partition("\n")[0]), "the first line of __init__.py says what it is"
    for room in rooms_of(subject):
        assert f"`pmpp.kernels.{subject}.{room}`" in said or f"`{room}`" in said, f"{room} is not named"


@each_subject
def test_a_subject_names_its_chapters(subject):
    package = f"pmpp.kernels.{subject}"
    own = [name for name in KERNELS if name == package or name.startswith(f"{package}.")]
    named = {name: re.findall(r"notebooks/(\w+)\.ipynb", ast.get_docstring(tree_of(name)) or "") for name in own}
    assert any(named.values())
    for name, stems in named.items():
        assert set(stems) <= CHAPTERS, f"{name} names a chapter that is not there"


@each_subject
def test_a_room_names_its_chapter(subject):
    """Without this line `rooms()` raises, and other tests cannot even be collected."""
    for room in rooms_of(subject):
        said = ast.get_docstring(tree_of(f"pmpp.kernels.{subject}.{room}")) or ""
        needed = "the docstring needs the line 'Chapter: notebooks/NN_name.ipynb.  PMPP <section>.'"
        assert _HEADER.search(said), f"pmpp/kernels/{subject}/{room}.py: {needed}"


@each_subject
def test_a_subject_has_exercises_and_tests(subject):
    assert (ROOT / "tests/kernels" / subject).is_dir(), f"tests/kernels/{subject}/ is missing"
    names = [name.rpartition(".")[2] for name in KERNELS if name.startswith(f"pmpp.kernels.{subject}.")]
    assert [name for name in names if name.endswith("exercises")], f"pmpp/kernels/{subject}/exercises.py is missing"


@each_subject
def test_a_room_has_workloads(subject):
    for room in rooms_of(subject):
        module = "workloads" if room == "ladder" else f"{room}_workloads"
        assert f"pmpp.kernels.{subject}.{module}" in KERNELS, f"pmpp/kernels/{subject}/{module}.py is missing"
