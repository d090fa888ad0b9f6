"""Rooms are found by their headers, and the source of their kernels is shown."""

import types
from pathlib import Path

import pytest

from pmpp import cuda
from pmpp.lab import rooms
from pmpp.lab.chapters import number_of
from pmpp.lab.teach import source
from pmpp.runtime.rung import Problem, rung


@cuda.jit
def double_kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def arguments(x, *, stream=0):
    return Problem(x, stream=stream, x=x)


@rung(double_kernel)
def double(p):
    """Each thread doubles one element."""
    double_kernel[1, 32, p.stream](p.x)


def module(doc):
    made = types.ModuleType("pmpp.made")
    made.__doc__ = doc
    return made


def test_a_docstring_names_chapter_and_section():
    made = module("Made: up.\n\nChapter: notebooks/10_made_up.ipynb.  PMPP 4e ch. 2 and 3.\n\nMore.")
    assert rooms.chapter_of(made) == "notebooks/10_made_up.ipynb"
    assert rooms.pmpp_section(made) == "4e ch. 2 and 3"


@pytest.mark.parametrize("doc", [None, "Made: up.", "Chapter: 10_made_up.ipynb.  PMPP 4e ch. 2."])
def test_a_docstring_without_them_is_an_error(doc):
    with pytest.raises(ValueError, match=r"the docstring of pmpp\.made needs the line 'Chapter: notebooks/"):
        rooms.chapter_of(module(doc))


def test_rooms_come_in_the_order_of_their_chapters():
    chapters = [number_of(Path(rooms.chapter_of(one)).stem) for one in rooms.rooms()]
    assert chapters == sorted(chapters)
    assert len(chapters) >= 3


def test_show_prints_a_kernel_with_its_place(capsys):
    source.show(double_kernel)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# tests/lab/test_rooms_and_source.py:") or lines[0].startswith(
        "# test_rooms_and_source.py:"
    )
    assert lines[2] == "def double_kernel(x):"


def test_show_prints_a_rung_after_its_kernels(capsys):
    source.show(double)
    shown = capsys.readouterr().out
    assert shown.index("def double_kernel(x):") < shown.index("def double(p):")


def test_show_in_a_notebook_is_highlighted(monkeypatch):
    shown = []
    monkeypatch.setattr(source, "in_notebook", lambda: True)
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", lambda data, raw: shown.append((data, raw)))
    source.show(double_kernel)
    (data, raw), *more = shown
    assert raw
    assert not more
    assert "```python\n@cuda.jit\ndef double_kernel(x):" in data["text/markdown"]
    assert "def double_kernel(x):" in data["text/plain"]


def test_show_refuses_what_has_no_source():
    with pytest.raises(TypeError, match=r"show\(\) takes a rung, a kernel or a function, not int"):
        source.show(1)
