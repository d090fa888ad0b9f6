"""`make room`: what it writes parses and agrees in its names, what is empty is named, and nothing is overwritten."""

import ast
import re
from pathlib import Path

import pytest

from pmpp.lab.publish import book, skeleton
from pmpp.lab.rooms import _HEADER
from tests.support.imports import files, imports

CHAPTERS = ("00_start_here", "04_vector_add", "30_reduction", "100_last")


@pytest.fixture
def root(tmp_path):
    """A repository with four chapters and no room."""
    for stem in CHAPTERS:
        path = tmp_path / "notebooks/source" / f"{stem}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# %%\n", encoding="utf-8")
    for package in ("pmpp", "pmpp/kernels", "tests", "tests/kernels"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("", encoding="utf-8")
    return tmp_path


@pytest.fixture
def trees(root):
    """The syntax tree of each file that is written for a room named bit_count; None for the notes of its chapter."""
    return {
        path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) if path.suffix == ".py" else None
        for path in skeleton.write("bit_count", root=root)
    }


def test_everything_that_a_room_needs_is_written(trees):
    assert set(trees) == {
        "pmpp/kernels/bit_count/__init__.py",
        "pmpp/kernels/bit_count/ladder.py",
        "pmpp/kernels/bit_count/workloads.py",
        "pmpp/kernels/bit_count/exercises.py",
        "tests/kernels/bit_count/__init__.py",
        "tests/kernels/bit_count/test_bit_count.py",
        "tests/kernels/bit_count/wrong.py",
        "tests/kernels/bit_count/answers.py",
        "notebooks/source/104_bit_count.md",
        "notebooks/source/104_bit_count.py",
    }


def test_no_line_is_longer_than_the_formatter_allows(root, trees):
    for path in trees:
        assert max(map(len, (root / path).read_text(encoding="utf-8").splitlines()), default=0) <= 120, path


def test_the_names_agree(root, trees):
    ladder = trees["pmpp/kernels/bit_count/ladder.py"]
    chapter, number, section = _HEADER.search(ast.get_docstring(ladder)).groups()
    assert (chapter, number) == ("notebooks/104_bit_count.ipynb", "104")
    assert section.startswith("EMPTY")
    written = (root / "notebooks/source/104_bit_count.py").read_text(encoding="utf-8")
    assert "# # 104. Bit count\n" in written
    assert book._SENTENCE.search(written.replace("\n# ", " "))
    assert written.endswith("# This is the last chapter.\n")
    assert 'exercise("bit_count/first")' in written
    assert '"bit_count/first"' in (root / "pmpp/kernels/bit_count/exercises.py").read_text(encoding="utf-8")
    assert "$" not in "".join((root / path).read_text(encoding="utf-8") for path in trees)


def test_every_import_of_a_room_is_there(root, trees):
    """What the files import of the room is a file of the room, and a name in it."""
    found = {**files("pmpp", root), **files("tests", root)}
    own = [one for top in ("pmpp", "tests") for one in imports(f"{top}.kernels", root) if "bit_count" in one.target]
    assert own
    for _, target, _ in own:
        module = target if target in found else target.rpartition(".")[0]
        assert module in found, target
        names = {getattr(node, "name", "") for node in ast.walk(ast.parse(found[module].read_text(encoding="utf-8")))}
        names |= {
            node.id
            for node in ast.walk(ast.parse(found[module].read_text(encoding="utf-8")))
            if isinstance(node, ast.Name)
        }
        assert target in found or target.rpartition(".")[2] in names, target


def test_the_ladder_has_the_bands_of_a_room_in_order(trees):
    body = trees["pmpp/kernels/bit_count/ladder.py"].body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    bands = ["reference", "inputs", "cost", "tolerance", "arguments", "one_thread_each_kernel", "one_thread_each"]
    assert names == bands
    assert ast.unparse(body[-1]) == "LADDER = (one_thread_each,)"


def test_what_is_empty_is_named(root, trees):
    left = skeleton.slots("bit_count", root)
    assert {slot.path for slot in left} == {
        path for path in trees if not path.startswith("tests") or "__init__" not in path
    }
    said = "\n".join(map(str, left))
    for missing in (
        "the reference of",
        "the tolerance of",
        "wrong kernels",
        "the next rungs",
        "a doctest",
        "a right answer",
    ):
        assert missing in said
    for metadata in (
        "reader can do",
        "how long",
        "builds on",
        "same in the 5th",
        "cannot see it",
    ):
        assert metadata in said
    for slot in left:
        assert skeleton.MARK in (root / slot.path).read_text(encoding="utf-8").splitlines()[slot.line - 1]
        assert slot.missing
        assert "EMPTY" not in slot.missing


def test_what_is_filled_is_empty_no_more(root, trees):
    path = root / "tests/kernels/bit_count/wrong.py"
    before = skeleton.slots("bit_count", root)
    path.write_text(path.read_text(encoding="utf-8").replace("EMPTY: ", ""), encoding="utf-8")
    gone = set(before) - set(skeleton.slots("bit_count", root))
    assert {slot.path for slot in gone} == {"tests/kernels/bit_count/wrong.py"}
    assert skeleton.slots("reduction", root) == []
    assert skeleton.slots(root=root) == skeleton.slots("bit_count", root)


def test_nothing_is_overwritten(root, trees):
    before = {path: path.read_bytes() for path in root.rglob("*.py")}
    with pytest.raises(FileExistsError, match=r"name must be new, was 'bit_count': there is .*bit_count/ladder.py"):
        skeleton.write("bit_count", 38, root)
    (root / "tests/kernels/histogram").mkdir()
    with pytest.raises(FileExistsError, match=r"name must be new, was 'histogram': there is tests/kernels/histogram"):
        skeleton.write("histogram", root=root)
    assert {path: path.read_bytes() for path in root.rglob("*.py")} == before


@pytest.mark.parametrize(
    "name", ["", "Histogram", "1st", "two words", "a-b", "class", "_x", "x_", "a__b", "../x", "x\n"]
)
def test_a_bad_name_is_refused(root, name):
    with pytest.raises(ValueError, match=r"name must be lower case, .*, was "):
        skeleton.write(name, root=root)


@pytest.mark.parametrize("number", [-1, 1000, 4, 100])
def test_a_bad_number_is_refused(root, number):
    said = f"number must be from 0 to 999 and free, was {number}; taken are 0, 4, 30, 100"
    with pytest.raises(ValueError, match=said):
        skeleton.write("histogram", number, root)


@pytest.mark.parametrize(("last", "following"), [("99_x", 104), ("101_x", 105)])
def test_the_next_number_leaves_a_gap_after_the_last_chapter(root, last, following):
    (root / "notebooks/source" / f"{last}.py").write_text("", encoding="utf-8")
    assert skeleton.next_number(root) == following


def test_a_chapter_with_a_number_of_two_digits_comes_before_one_of_three(root):
    (root / "notebooks/source/100_last.py").write_text("# Go on with nothing\n", encoding="utf-8")
    assert list(skeleton.chapters(root)) == [0, 4, 30, 100]
    assert "notebooks/source/30_reduction.py:" in skeleton.before("38_histogram", root)
    assert "notebooks/source/100_last.py:1: write here 'Go on with [chapter 104]" in skeleton.before("104_x", root)
    assert root / "notebooks/source/06_histogram.py" in skeleton.write("histogram", 6, root)
    text = (root / "notebooks/source/06_histogram.py").read_text(encoding="utf-8")
    assert text.endswith("# Go on with [chapter 30](30_reduction.ipynb).\n")


def test_the_command(root, capsys):
    assert skeleton.main(["histogram", "--number", "38"], root) == 0
    written = capsys.readouterr().out.splitlines()
    assert "notebooks/source/38_histogram.py" in written
    leads_on = "'Go on with [chapter 38](38_histogram.ipynb)'"
    assert f"notebooks/source/30_reduction.py:1: write here {leads_on}, in the last cell." in written
    assert re.fullmatch(r"Fill what is marked EMPTY: \d+ slots\. CONTRIBUTING\.md says how\.", written[-1])
    assert skeleton.main(["histogram", "--empty"], root) == 1
    assert len(capsys.readouterr().out.splitlines()) == int(re.search(r"\d+", written[-1])[0])
    assert skeleton.main(["histogram"], root) == 1
    assert "name must be new" in capsys.readouterr().err
    assert skeleton.main(["scan", "--empty"], root) == 0


def test_the_template_is_part_of_the_package():
    assert skeleton.TEMPLATE.is_file()
    assert Path(skeleton.__file__).parent == skeleton.TEMPLATE.parent
