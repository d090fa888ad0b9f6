"""What a class gets: that nothing of an answer is left in a release, and where releases are written."""

import ast
import builtins
import functools
import html
import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from pmpp.lab.publish import notebooks, release
from tests.contract.test_chapters import SOURCES
from tests.support.leaks import code, explanations, hidden, leaks, shown, texts

if importlib.util.find_spec("nbformat") is None:
    pytest.skip("chapters need the extra 'lab'", allow_module_level=True)

ROOT = notebooks.NOTEBOOKS.parent
STEMS = [path.stem for path in SOURCES]
each_chapter = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


@pytest.fixture(autouse=True, scope="module")
def formats():
    """Imported for these tests and not when tests are collected: it takes seconds."""
    global nbformat  # noqa: PLW0603
    nbformat = importlib.import_module("nbformat")


@functools.cache
def whole(path):
    return nbformat.read(notebooks.NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)


@functools.cache
def handed_out(path):
    return release.released(whole(path))


@functools.cache
def nodes(source):
    """All that a cell's code is made of."""
    return [*ast.walk(ast.parse(source))]


# -------------------------------------------------------------------------------------------------------- every chapter


@each_chapter
def test_nothing_of_an_answer_is_left(path):
    assert leaks(handed_out(path), path) == []


@each_chapter
def test_what_is_left_would_be_found(path):
    """The finder finds answers, explanations, verdicts and reveals, each where it stands: in the teacher's set."""
    found = leaks(whole(path), path)
    assert any("border-left" in leak for leak in found)
    assert hidden(path) & code(path, answers=True) <= {*found}
    assert explanations(path) <= {*found}


@each_chapter
def test_a_release_is_a_notebook_with_all_other_cells_as_they_were(path):
    notebook = handed_out(path)
    nbformat.validate(notebook)
    written = [cell.source for cell in whole(path).cells if cell.cell_type == "code" and "tags" not in cell.metadata]
    assert [cell.source for cell in notebook.cells if cell.cell_type == "code"] == written
    assert ("Go on with [" in notebook.cells[-1].source) == (path != SOURCES[-1])
    assert json.loads(nbformat.writes(notebook))["nbformat"] == 4


@each_chapter
def test_no_cell_needs_what_an_answer_defines(path):
    def defined(source):
        found = set()
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.ExceptHandler):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
        return found

    sources = [cell.source for cell in handed_out(path).cells if cell.cell_type == "code"]
    known = set(dir(builtins)).union(*map(defined, sources))
    used = {node.id for source in sources for node in nodes(source) if isinstance(node, ast.Name)}
    assert used <= known


@each_chapter
def test_outputs_that_are_kept_have_no_truth_of_a_prediction(path):
    """No number of four digits of what `predict` folds away, unless the chapter's source has it, as in a question."""

    def numbers(text):
        found = {number.replace(",", "") for number in re.findall(r"\d[\d,]*\.?\d*", text)}
        return {number for number in found if len(number.replace(".", "").lstrip("0")) >= 4}

    outputs = "\n".join(text for cell in handed_out(path).cells for text in shown(cell))
    said = numbers(path.read_text(encoding="utf-8"))
    for cell in whole(path).cells:
        for text in shown(cell):
            for truth in re.findall(r"<summary>Show the answer</summary>(.*?)</details>", text):
                assert not (numbers(html.unescape(truth)) - said) & numbers(outputs), truth


@each_chapter
def test_outputs_stay_up_to_the_first_question_and_tasks_everywhere(path):
    asked = False
    for cell in handed_out(path).cells:
        if cell.cell_type == "code":
            calls = [node for node in nodes(cell.source) if isinstance(node, ast.Call)]
            asked = asked or bool({"check", "exercise", "predict"} & {getattr(call.func, "id", "") for call in calls})
            before = next(one for one in whole(path).cells if one.id == cell.id)
            alone = len(calls) == 1 and cell.source.startswith("exercise(") and cell.source.endswith(")")
            assert len(cell.outputs) == (len(before.outputs) if alone or not asked else 0), cell.source
            assert cell.execution_count is None


@each_chapter
def test_links_lead_somewhere_or_are_words(path):
    for cell in whole(path).cells:
        if cell.cell_type == "markdown":
            inside = release.linked(cell.source, STEMS)
            assert {*re.findall(r"\]\((\w+)\.ipynb\)", inside)} <= {*STEMS}
            assert "](../" not in inside
            alone = release.linked(cell.source, [])
            assert ".ipynb)" not in alone
            assert "](../" not in alone
            address = release.linked(cell.source, STEMS, "https://host/pmpp/", hides_answers=True)
            for target in re.findall(r"\]\(https://host/pmpp/([^)]+)\)", address):
                assert (ROOT / target).exists()
                assert "exercises" not in target
            assert "](../" not in address


def test_a_release_runs_from_top_to_bottom():
    """A short chapter with predictions and exercises: no cell fails, and each stub is told that it is not started."""
    nbclient = pytest.importorskip("nbclient", reason="chapters need the extra 'lab'")
    notebook = nbformat.from_dict(handed_out(next(path for path in SOURCES if path.stem == "22_launches")))
    quiet = ["--log-level=ERROR"]
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", extra_arguments=quiet).execute()
    said = "\n".join(texts(notebook))
    assert len(re.findall(r"^launches/\w+: not started", said, re.MULTILINE)) == said.count("pass  # your code") == 2
    assert said.count("No guess yet.") >= said.count("guess = None")


# ------------------------------------------------------------------------------------------------------ a small chapter

SOURCE = """\
# %% [markdown]
# # 0. A title
#
# See [chapter 8](08_warps.ipynb) and [the ladder](../pmpp/kernels/warps/ladder.py).

# %%
x = 3
print(x)

# %%
guess = None  # number

predict(guess, x)

# %%
print(x)

# %%
exercise("room/task")

# %%
check("room/task", x)

# %% [markdown]
# To think about.
#
# ## Answers
#
# *First:* because.

# %% tags=["answer"]
x = 4

# %% [markdown]
# Why it is so.
#
# Go on with [chapter 8](08_warps.ipynb).
"""


@pytest.fixture
def folder(tmp_path):
    """A folder of chapters with one that has been executed, as far as its outputs show."""
    pytest.importorskip("jupytext", reason="chapters need the extra 'lab'")
    folder = tmp_path / "notebooks"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "00_try.py").write_text(SOURCE, encoding="utf-8")
    notebook = notebooks.read_source(folder / "source" / "00_try.py")
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = [
            nbformat.v4.new_output("execute_result", {"text/plain": f"output {count}"}, execution_count=count)
        ]
    nbformat.write(notebook, folder / "00_try.ipynb")
    return folder


def outputs(path):
    """The text of each output in a notebook's file."""
    read = nbformat.read(path, as_version=4).cells
    return [output.data["text/plain"] for cell in read for output in cell.get("outputs", ())]


def test_a_release_and_the_teachers_set(folder, tmp_path, capsys):
    out, teacher = tmp_path / "out", tmp_path / "teacher"
    assert release.main(["--out", str(out)], folder) == 0
    assert capsys.readouterr().out == f"{out}: chapters without answers: 1\n"
    assert sorted(path.name for path in out.iterdir()) == ["00_try.ipynb", "LICENSE", "README.md", "files.json"]
    assert outputs(out / "00_try.ipynb") == ["output 1", "output 4"]
    prose = [cell.source for cell in nbformat.read(out / "00_try.ipynb", 4).cells if cell.cell_type == "markdown"]
    assert prose == [
        "# 0. A title\n\nSee chapter 8 and the ladder (`pmpp/kernels/warps/ladder.py`).",
        "To think about.\n\n## Answers\n\nThe answers are with your teacher.",
        "Go on with chapter 8.",
    ]
    assert release.main(["--solutions", "--out", str(teacher), "00_try"], folder) == 0
    assert capsys.readouterr().out == f"{teacher}: chapters with answers: 1\n"
    assert outputs(teacher / "00_try.ipynb") == [f"output {count}" for count in range(1, 7)]
    assert "with answers" in (teacher / "README.md").read_text(encoding="utf-8")


def test_students_are_told_where_the_workbook_is_and_how_to_begin(folder, monkeypatch):
    paths = [folder / "source" / "00_try.py"]
    readme = release.pages(paths)["README.md"]
    assert "Begin with [00_try](00_try.ipynb).\n" in readme
    assert "Your teacher says where to get it" in readme
    assert "git clone" not in readme
    assert "nstall" not in release.pages(paths, install=False)["README.md"]  # of the browser edition
    monkeypatch.setattr(release, "revision", lambda: "12ab34c-dirty")
    readme = release.pages(paths, repository="https://host/me/pmpp/blob/main")["README.md"]
    assert "git clone https://host/me/pmpp workbook\ngit -C workbook checkout 12ab34c\npython3 -m venv" in readme
    assert "Your teacher says" not in readme
    monkeypatch.setattr(release, "revision", lambda: "unknown")
    readme = release.pages(paths, repository="https://host/me/pmpp/blob/main")["README.md"]
    assert "git clone https://host/me/pmpp workbook\npython3 -m venv" in readme


def test_all_chapters_of_a_folder_are_named_in_their_order():
    assert release._in_order(["00_a", "04_b", "12_c"]) == (
        "Begin with [00_a](00_a.ipynb). Then come [04_b](04_b.ipynb), [12_c](12_c.ipynb)."
    )


@pytest.mark.parametrize(
    "text",
    [
        SOURCE.replace("# %% tags", "# %% [markdown]\n# More.\n\n# %% tags"),
        SOURCE.replace('%% tags=["answer"]', "%%"),  # without its tag: the heading is above it
        SOURCE.replace("# ## Answers\n#\n", "# ## Answers\n"),
        SOURCE.replace("# %%\nexercise", '# %% tags=["answer"]\nx = 4\n\n# %%\nexercise', 1),  # above the heading
    ],
)
def test_other_forms_of_a_chapter(folder, text):
    path = folder / "source" / "00_try.py"
    path.write_text(text, encoding="utf-8")
    found = release.released(notebooks.read_source(path))
    said = "\n".join(texts(found))
    assert not re.search("because|x = 4|Why|More", said)
    assert found.cells[-1].source == "Go on with [chapter 8](08_warps.ipynb)."


def test_a_chapter_whose_answers_are_one_cell(folder):
    path = folder / "source" / "00_try.py"
    path.write_text(SOURCE.partition("\n\n# %% tags")[0] + "\n#\n# Go on with [chapter 8](08_warps.ipynb).\n")
    found = release.released(notebooks.read_source(path))
    assert found.cells[-1].source.split("\n\n")[1:] == [
        "## Answers",
        "The answers are with your teacher.",
        "Go on with [chapter 8](08_warps.ipynb).",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repository", "here"], "repository must be an address that begins with https:// or http://, was 'here'"),
        (["--out", "notebooks"], "out must be a new folder, or that of a former release: notebooks also has 00_try"),
        (["--out", "LICENSE"], "out must be a folder, and LICENSE is a file"),
    ],
)
def test_what_is_refused(folder, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("LICENSE").touch()
    assert release.main([*(["--out", "new"] if "--out" not in arguments else []), *arguments], folder) == 1
    assert capsys.readouterr().err.startswith(said)
    assert not Path("new").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["00_try.ipynb", "source"]


def test_unknown_chapters_and_stale_notebooks_are_refused(folder, tmp_path, capsys):
    with pytest.raises(SystemExit, match="no such chapter: 01_other; there are 00_try"):
        release.main(["01_other"], folder)
    (folder / "source" / "00_try.py").write_text(SOURCE.replace("x = 3", "x = 5"), encoding="utf-8")
    assert release.main(["--out", str(tmp_path / "out")], folder) == 1
    said = capsys.readouterr().err
    assert said.startswith("notebooks/00_try.ipynb differs from its source\nRun: make notebooks; or git restore")
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------------------------------------------- where it goes


def test_a_former_release_is_replaced(tmp_path):
    out = tmp_path / "a" / "b"
    release.write({"one": "1", "two": "2"}, out)
    release.write({"two": "3"}, out)
    assert sorted(path.name for path in out.iterdir()) == ["files.json", "two"]
    assert (out / "two").read_text(encoding="utf-8") == "3"
    (out / "two").unlink()  # a call that was broken off after the list
    release.write({"one": "1"}, out)
    assert sorted(path.name for path in out.iterdir()) == ["files.json", "one"]


@pytest.mark.parametrize("before", [{}, {"one": "1"}])
@pytest.mark.parametrize(
    ("name", "text"), [("mine.ipynb", "mine"), (".hidden", ""), ("one", "1"), ("files.json", "{}")]
)
def test_a_folder_with_other_files_is_left_alone(tmp_path, before, name, text):
    if before and name not in {"one", "files.json"}:
        release.write(before, tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"out must be a new folder, or that of a former release: .+ also has {name}"):
        release.write({"two": "2"}, tmp_path)
    assert not (tmp_path / "two").exists()
    assert (tmp_path / name).read_text(encoding="utf-8") == text


def test_a_notebook_that_somebody_has_worked_in_is_left_alone(tmp_path):
    release.write({"one": "1", "two": "2"}, tmp_path)
    (tmp_path / "two").write_text("my work", encoding="utf-8")
    with pytest.raises(ValueError, match=r"changed since in .+: two\. Move what you want to keep elsewhere"):
        release.write({"one": "3"}, tmp_path)
    assert (tmp_path / "two").read_text(encoding="utf-8") == "my work"
    assert (tmp_path / "one").read_text(encoding="utf-8") == "1"
