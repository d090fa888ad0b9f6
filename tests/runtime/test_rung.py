"""Rungs, costs, and the source on show."""

import inspect
import types

import pytest

from pmpp import cuda
from pmpp.lab import rooms
from pmpp.lab.teach import source
from pmpp.runtime.rung import Cost, rung


@cuda.jit
def double_kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@rung(double_kernel)
def double(x, *, stream=0):
    """Each thread doubles one element.

    Shapes: any.

    Leaves: the faults are named
    over two lines.

    Source: none.
    """
    return x, stream


def test_a_rung_tells_what_it_is():
    assert double.name == "double"
    assert double.room == "test_lab_room"
    assert double.idea == "Each thread doubles one element."
    assert double.leaves == "the faults are named over two lines."
    assert double.kernels == (double_kernel,)
    assert double("x", stream=1) == ("x", 1)
    assert str(inspect.signature(double)) == "(x, *, stream=0)"
    assert double.__doc__ == double.fn.__doc__
    assert repr(double) == "<rung test_rung.double: Each thread doubles one element.>"


def test_leaves_may_end_the_docstring_or_be_missing():
    def last(x):
        """The idea.
        Leaves: nothing."""

    def best(x):
        """The idea."""

    assert rung(double_kernel)(last).leaves == "nothing."
    assert rung(double_kernel)(best).leaves == ""


def test_a_rung_without_an_idea_is_refused():
    def silent(x):
        pass

    with pytest.raises(TypeError, match=r"rung test_rung.silent needs a docstring whose first line is its idea"):
        rung(double_kernel)(silent)


@pytest.mark.parametrize("kernels", [(), (lambda x: x,)], ids=["nothing", "the function itself"])
def test_a_rung_without_a_kernel_is_refused(kernels):
    with pytest.raises(TypeError, match=r"write @rung\(kernel, \.\.\.\)"):
        rung(*kernels)


def test_cost():
    cost = Cost(flops=6, bytes=24)
    assert cost.intensity == 0.25
    assert cost + Cost(2, 8) == Cost(8, 32)
    assert Cost(0, 0).intensity == 0
    assert Cost(1, 0).intensity == float("inf")
    with pytest.raises(TypeError):
        cost + 1
    with pytest.raises(AttributeError):
        cost.flops = 1


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
    chapters = [rooms.chapter_of(one) for one in rooms.rooms()]
    assert chapters == sorted(chapters)
    assert len(chapters) >= 3


def test_show_prints_a_kernel_with_its_place(capsys):
    source.show(double_kernel)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# tests/runtime/test_rung.py:") or lines[0].startswith("# test_rung.py:")
    assert lines[2] == "def double_kernel(x):"


def test_show_prints_a_rung_after_its_kernels(capsys):
    source.show(double)
    shown = capsys.readouterr().out
    assert shown.index("def double_kernel(x):") < shown.index("def double(x, *, stream=0):")


def test_show_in_a_notebook_is_highlighted(monkeypatch):
    shown = []
    monkeypatch.setattr(rung, "_in_notebook", lambda: True)
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
