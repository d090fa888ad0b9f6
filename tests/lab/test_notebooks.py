"""The chapters' tool: what it writes, and what it finds wrong."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from pmpp.lab.publish import notebooks

if importlib.util.find_spec("nbformat") is None:
    pytest.skip("chapters need the extra 'lab'", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def formats():
    """Imported for these tests and not when tests are collected: it takes seconds."""
    global nbformat  # noqa: PLW0603
    nbformat = importlib.import_module("nbformat")


SOURCE = """\
# %% [markdown]
# # A title

# %%
1 + 1

# %% jupyter={"source_hidden": true}
print("an answer")

# %%
1 + 1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "00_try.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def written(folder, change=None):
    """Write the notebook as an execution would, with a change."""
    pytest.importorskip("jupytext", reason="chapters need the extra 'lab'")
    (path,) = notebooks.sources(folder=folder)
    notebook = notebooks.read_source(path)
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=count)]
    if change:
        change(notebook)
    nbformat.write(notebook, folder / "00_try.ipynb")
    return notebooks.faults(path)


def test_titles_are_those_of_the_notebooks_beside_the_reader_or_of_the_sources(folder, monkeypatch):
    title = "# %% [markdown]\n# # 4. {}\n#\n# # No title\n"
    (folder / "source" / "04_sources.py").write_text(title.format("Of the sources"), encoding="utf-8")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    assert notebooks.titles(folder=folder) == {"04_sources": "4. Of the sources"}
    cells = [nbformat.v4.new_code_cell("# 1. no title"), nbformat.v4.new_markdown_cell("# 8. Beside\n\nprose")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "08_beside.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "Untitled.ipynb")
    assert notebooks.titles(folder=folder) == {"08_beside": "8. Beside"}
    assert notebooks.titles(Path(), folder=folder / "nowhere") == {"08_beside": "8. Beside"}
    monkeypatch.chdir(folder)
    assert notebooks.titles(folder=folder / "nowhere") == {}


def test_a_notebook_that_agrees(folder, capsys):
    assert written(folder) == []
    assert notebooks.main(["--check"], folder) == 0
    assert capsys.readouterr().out == "1 chapters agree with their sources\n"


def test_the_same_source_gives_the_same_notebook(folder):
    pytest.importorskip("jupytext")
    (path,) = notebooks.sources(folder=folder)
    once, again = notebooks.read_source(path), notebooks.read_source(path)
    assert once == again
    assert len({cell.id for cell in once.cells}) == 4, "equal cells have ids of their own"
    nbformat.validate(once)


def edit(notebook):
    notebook.cells[1].source = "1 + 2"


def show_answer(notebook):
    del notebook.cells[2].metadata["jupyter"]


def skip(notebook):
    notebook.cells[2].execution_count = None


def fail(notebook):
    notebook.cells[1].outputs = [nbformat.v4.new_output("error", ename="NameError", evalue="x", traceback=[])]


def warn(notebook):
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="a.py:1\nUserWarning: hm")]


def address(notebook):
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="<function f at 0x7f01aabb>")]


def widget(notebook):
    data = {"text/plain": "VBox()", notebooks.WIDGET: {"model_id": "1", "version_major": 2, "version_minor": 0}}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", data)]


def version(notebook):
    notebook.metadata.language_info["version"] = "3.11.7"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (edit, "notebooks/00_try.ipynb differs from its source"),
        (show_answer, "notebooks/00_try.ipynb differs from its source"),
        (skip, "notebooks/00_try.ipynb was not executed from top to bottom"),
        (fail, "notebooks/00_try.ipynb, code cell 1 ends in NameError"),
        (warn, "notebooks/00_try.ipynb, code cell 1 writes to stderr: UserWarning: hm"),
        (address, "notebooks/00_try.ipynb, code cell 1 shows an address (at 0x7f01aabb), which differs in every run"),
        (widget, "notebooks/00_try.ipynb, code cell 1 shows a widget, which is nothing without a kernel"),
        (version, "notebooks/00_try.ipynb has other metadata than this tool writes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_is_named(folder, change, fault):
    assert written(folder, change) == [fault]


def test_a_missing_notebook_and_a_missing_source(folder, capsys):
    pytest.importorskip("jupytext")
    (folder / "99_orphan.ipynb").write_text("{}", encoding="utf-8")
    assert notebooks.main(["--check"], folder) == 1
    printed = capsys.readouterr()
    assert printed.out == "notebooks/00_try.ipynb is missing\nnotebooks/99_orphan.ipynb has no source\n"
    assert printed.err == "Run: make notebooks\n"


def test_a_chapter_may_be_named_by_its_number(folder):
    for name in ("0", "00", "00_try"):
        assert notebooks.sources([name], folder) == [folder / "source" / "00_try.py"]
    with pytest.raises(SystemExit, match="no such chapter: 4; there are 00_try"):
        notebooks.sources(["0", "4"], folder)


def test_chapters_come_in_the_order_of_their_numbers(folder, monkeypatch):
    stems = ["00_try", "12_second", "99_third", "100_last"]
    for number, stem in zip((12, 99, 100), stems[1:], strict=True):
        text = f"# %% [markdown]\n# # {number}. Title\n"
        (folder / "source" / f"{stem}.py").write_text(text, encoding="utf-8")
        cells = [nbformat.v4.new_markdown_cell(f"# {number}. Title")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{stem}.ipynb")
    assert [path.stem for path in notebooks.sources(folder=folder)] == stems
    assert [path.stem for path in notebooks.sources(["100", "12"], folder)] == ["12_second", "100_last"]
    assert list(notebooks.titles(folder / "nowhere", folder)) == stems[1:]
    assert list(notebooks.titles(folder, folder / "nowhere")) == stems[1:]


def test_an_unknown_chapter(folder):
    with pytest.raises(SystemExit, match="no such chapter: 11_none; there are 00_try"):
        notebooks.main(["11_none"], folder)


def test_executing(folder):
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="chapters need the extra 'lab'")
    (path,) = notebooks.sources(folder=folder)
    notebook, seconds = notebooks.execute(path)
    assert seconds > 0
    assert notebook.cells[1].outputs[0].data["text/plain"] == "2"
    assert notebook.cells[2].outputs[0].text == "an answer\n"
    nbformat.write(notebook, folder / "00_try.ipynb")
    assert notebooks.faults(path) == []
    path.write_text(SOURCE + "\n# %%\n1 / 0\n", encoding="utf-8")
    with pytest.raises(notebooks.ChapterError, match=r"00_try: a cell failed[\s\S]*1 / 0[\s\S]*ZeroDivisionError"):
        notebooks.execute(path)


def test_figures_are_kept_whatever_backend_the_environment_names(folder, monkeypatch):
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="chapters need the extra 'lab'")
    monkeypatch.setenv("MPLBACKEND", "agg")
    (path,) = notebooks.sources(folder=folder)
    drawing = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
    asking = "import os\nprint(os.environ.get('TQDM_DISABLE'), len(os.environ) > 2)\n"
    path.write_text(f"# %%\n{drawing}\n# %%\n{asking}")
    notebook, _ = notebooks.execute(path)
    assert "image/png" in notebook.cells[0].outputs[0].data
    assert notebook.cells[1].outputs[0].text == "1 True\n"
