"""Assignments for graders: their form, that nothing of an answer is left, and what the real graders make of them.

The tests with the real tools are run by `make test-course`, which installs these.
"""

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.publish import export, notebooks, release
from pmpp.lab.publish.assignment import assignment
from pmpp.lab.teach.exercise import exercise, exercises
from pmpp.lab.teach.mark import mark, seeded
from pmpp.lab.teach.points import chapters, graded, named, points
from tests.support.leaks import leaks

if importlib.util.find_spec("nbformat") is None:
    pytest.skip("chapters need the extra 'lab'", allow_module_level=True)

try:
    importlib.metadata.version("pmpp-workbook")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("a class is told what to install, which an installed package says", allow_module_level=True)

OPTIONS = export.Options(seed=7)
STEMS = chapters()


@cuda.jit
def without_a_guard(x, y, a, out):
    i = cuda.grid(1)
    out[i] = max(a * x[i] + y[i], np.float32(0))


each_chapter = pytest.mark.parametrize("stem", STEMS)


@pytest.fixture(autouse=True, scope="module")
def formats():
    """Imported for these tests and not when tests are collected: it takes seconds."""
    global nbformat  # noqa: PLW0603
    nbformat = importlib.import_module("nbformat")


@functools.cache
def chapter(stem):
    return assignment(notebooks.NOTEBOOKS / "source" / f"{stem}.py")


@functools.cache
def sources(stem):
    """The notebooks that nbgrader and otter start from."""
    files = {**export.nbgrader(chapter(stem), OPTIONS), **export.otter(chapter(stem), OPTIONS)}
    return [
        nbformat.reads(files[name], as_version=4) for name in (f"source/{stem}/{stem}.ipynb", f"{stem}/{stem}.ipynb")
    ]


def without(source, begin, end):
    """A cell's text without the lines from one mark to the other."""
    kept, inside = [], False
    for line in source.split("\n"):
        inside = inside or line == begin
        if not inside:
            kept.append(line)
        inside = inside and line != end
    assert not inside
    return "\n".join(kept)


def ends_in_an_assertion(source):
    return isinstance(ast.parse(source).body[-1], ast.Assert)


# -------------------------------------------------------------------------------------------------------- every chapter


@each_chapter
def test_metadata_is_that_of_nbgrader(stem):
    notebook, _ = sources(stem)
    nbformat.validate(notebook)
    found = [(cell, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]
    for cell, facts in found:
        usual = {"schema_version", "grade", "solution", "locked", "task", "grade_id"}
        assert set(facts) == usual | ({"points"} if facts["grade"] else set())
        assert facts["schema_version"] == 3
        assert facts["task"] is False
        assert facts["grade"] or facts["solution"]
        assert facts["locked"] == (not facts["solution"])
        assert cell.cell_type == "code" or (facts["grade"] and facts["solution"])
    ids = [facts["grade_id"] for _, facts in found]
    assert all(re.fullmatch(r"[\w-]+", one) for one in ids)
    assert len({*ids}) == len(ids)
    worth = [(facts["grade_id"], facts["points"]) for _, facts in found if facts["grade"]]
    tasks = sorted((name.replace("/", "-"), points(name)) for name in graded(stem))
    assert sorted(worth) == sorted([*tasks, ("explanation", export.EXPLANATION)])


@each_chapter
def test_each_graded_cell_ends_in_an_assertion(stem):
    """For students, who do not get the hidden lines, and for the grader, who does."""
    for_nbgrader, for_otter = sources(stem)
    cells = [cell.source for cell in for_nbgrader.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    code = [source for source in cells if source != export.RUBRIC]
    assert len(code) == len(graded(stem)) == len(cells) - 1
    for source, task in zip(code, chapter(stem).tasks, strict=True):
        public = without(source, "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")
        assert ends_in_an_assertion(source)
        assert ends_in_an_assertion(public)
        assert public.count(f'mark("{task.name}", {task.variable})') == 1
        hidden = source.count(f'mark("{task.name}", {task.variable}, seed=7)')
        assert hidden == (task.name in exercises())  # those about training have no inputs of their own
        assert "seed" not in public
    tests = [cell.source for cell in for_otter.cells if "def test_" in cell.source]
    assert len(tests) == sum(2 if task.seeded else 1 for task in chapter(stem).tasks)
    for source in tests:
        last = ast.parse(source).body[-1]
        assert isinstance(last, ast.FunctionDef)
        assert isinstance(last.body[-1], ast.Assert)
        assert ("hidden: true" in source) == ("seed=7" in source)


@each_chapter
def test_nothing_of_an_answer_is_left_but_in_its_region(stem):
    path = notebooks.NOTEBOOKS / "source" / f"{stem}.py"
    marks = ("### BEGIN SOLUTION", "### END SOLUTION"), ("# BEGIN SOLUTION NO PROMPT", "# END SOLUTION")
    for notebook, (begin, end) in zip(sources(stem), marks, strict=True):
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        assert text.count(f"{begin}\n") == text.count(f"{end}\n") == len(graded(stem))
        assert leaks(notebook, path)
        cut = nbformat.from_dict(notebook)
        for cell in cut.cells:
            cell.source = without(cell.source, begin, end)
        assert leaks(cut, path) == []


@each_chapter
def test_students_get_the_cells_of_the_release(stem):
    """Without regions, graded cells and what grades them, what is left is the release, to the last empty line."""
    whole = nbformat.read(notebooks.NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    expected = [cell.source for cell in release.released(whole).cells if cell.cell_type == "code"]
    for_nbgrader, for_otter = sources(stem)
    kept = [
        re.sub(r"(?m)^### BEGIN SOLUTION$(?s:.*?)^### END SOLUTION$", "", cell.source).lstrip("\n")
        for cell in for_nbgrader.cells
        if cell.cell_type == "code" and not cell.metadata.get("nbgrader", {}).get("grade")
    ]
    assert kept == expected
    kept = [
        without(cell.source, "# BEGIN SOLUTION NO PROMPT", "# END SOLUTION")
        for cell in for_otter.cells
        if cell.cell_type == "code" and "def test_" not in cell.source
    ]
    assert kept == expected


@each_chapter
def test_blocks_of_otter_are_closed_in_their_order(stem):
    _, notebook = sources(stem)
    nbformat.validate(notebook)
    raw = [cell.source for cell in notebook.cells if cell.cell_type == "raw"]
    assert raw[0].startswith(f"# ASSIGNMENT CONFIG\nname: {stem}\n")
    first = [text.split("\n")[0] for text in raw[1:]]
    question = ["# BEGIN QUESTION", "# BEGIN SOLUTION", "# END SOLUTION"]
    task = [*question, "# BEGIN TESTS", "# END TESTS", "# END QUESTION"]
    assert first == task * len(graded(stem)) + [*question, "# END QUESTION"]
    worth = re.findall(r"^name: (.+)\npoints: (\d+)\nall_or_nothing: true$", "\n".join(raw), re.MULTILINE)
    assert worth == [(task.id, str(task.points)) for task in chapter(stem).tasks]


# ------------------------------------------------------------------------------------------------- a verdict for a cell


def test_mark_says_what_check_says_and_writes_nothing(capfd, recwarn):
    def crossover(sizes, cpu, gpu):
        print("loud")
        print("louder", file=sys.stderr)
        warnings.warn("a warning", stacklevel=1)
        return exercise("choosing/crossover").answer(sizes, cpu, gpu)

    verdict = mark("choosing/crossover", crossover)
    assert verdict, verdict
    assert mark("choosing/crossover", crossover, seed=7)
    assert mark("launches/fused", without_a_guard).mistake == "missing guard"
    assert mark("launches/fused", None, seed=7).mistake == "not started"
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.parametrize("name", ["launches/fused", "choosing/crossover", "memory/relu", "memory/leak"])
def test_an_answer_of_the_package_earns_nothing(name):
    shipped = named(name).answer
    for answer in (shipped, getattr(shipped, "py_func", shipped)):
        assert mark(name, answer).mistake == "not your own"


def test_an_exercise_about_training_is_judged_with_or_without_a_seed():
    class Own(named("memory/relu").answer):
        pass

    assert mark("memory/relu", Own)
    assert mark("memory/relu", Own, seed=7)
    assert not mark("memory/relu", None)


def test_other_seeds_give_other_inputs_and_the_same_seed_the_same():
    one = exercise("launches/fused")
    first, again, other = (seeded(one, seed).inputs[-1].args[0] for seed in (7, 7, 8))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
    assert first.tobytes() != one.inputs[-1].args[0].tobytes()


# ---------------------------------------------------------------------------------- what the graders make of notebooks

# A chapter by the name of a real one, so that `pmpp.lab.teach.grade` knows its exercises.
SMALL = """\
# %% [markdown]
# # 22. A small chapter

# %%
import numpy as np

from pmpp import cuda, predict
from pmpp.lab.teach.exercise import check, exercise

# %%
guess = None  # launches

predict(guess, 2, unit="launches")

# %%
exercise("launches/fused")


# %%
@cuda.jit
def fused(x, y, a, out):
    pass  # your code


check("launches/fused", fused)

# %%
exercise("launches/logistic")


# %%
@cuda.jit
def logistic(x, r, steps, out):
    pass  # your code


check("launches/logistic", logistic)

# %% [markdown]
# ## Answers


# %% tags=["answer"]
@cuda.jit
def fused_answer(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], np.float32(0))


assert check("launches/fused", fused_answer)


# %% tags=["answer"]
ONE = np.float32(1)


@cuda.jit
def logistic_answer(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * value * (ONE - value)
        out[i] = value


assert check("launches/logistic", logistic_answer)
"""

FUSED = """\
@cuda.jit
def fused(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        out[i] = value if value > 0 else np.float32(0)
"""
LOGISTIC = """\
@cuda.jit
def logistic(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value, left = x[i], steps
        while left > 0:
            value = r * (np.float32(1) - value) * value
            left -= 1
        out[i] = value
"""
NO_GUARD = FUSED.replace("    if i < out.size:\n", "    if True:\n")
ONE_STEP = LOGISTIC.replace("left -= 1", "left = 0")
NOISE = "import sys, warnings\nprint('loud', file=sys.stderr)\nwarnings.warn('a warning')\n"
SHIPPED = "{0} = exercise('launches/{0}').answer\n"
ALWAYS = "import pmpp\ncheck = pmpp.check = lambda *answer: True\n"

# What students wrote in the cells of the two exercises, and the points of each.
STUDENTS = {
    "right": (FUSED, LOGISTIC, 5, 10),
    "noisy": (NOISE + FUSED, LOGISTIC + NOISE, 5, 10),
    "half": (FUSED, ONE_STEP, 5, 0),
    "wrong": (NO_GUARD, ONE_STEP, 0, 0),
    "empty": ("", "", 0, 0),
    "shipped": (SHIPPED.format("fused"), SHIPPED.format("logistic"), 0, 0),
    "broken": ("1 / 0\n", LOGISTIC, 0, 10),
    "hanging": ("while True:\n    pass\n", LOGISTIC, 0, 10),
    "check_replaced": (FUSED, ALWAYS + ONE_STEP, 5, 0),
}
POINTS = {who: {"launches-fused": one, "launches-logistic": two} for who, (_, _, one, two) in STUDENTS.items()}


#: Twenty minutes with the real graders, so only where they are asked for, even if they are installed.
course = pytest.mark.skipif(os.environ.get("PMPP_GRADERS") != "1", reason="run make test-course, which installs them")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of chapters, with a small one that has been executed, as far as one can see."""
    pytest.importorskip("jupytext", reason="chapters need the extra 'lab'")
    folder = tmp_path_factory.mktemp("book") / "notebooks"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "22_launches.py").write_text(SMALL, encoding="utf-8")
    notebook = notebooks.read_source(folder / "source" / "22_launches.py")
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
    nbformat.write(notebook, folder / "22_launches.ipynb")
    return folder


def handed_in(notebook, who):
    """A student's notebook: what was written stands where the stub stood."""
    notebook, written = nbformat.from_dict(notebook), STUDENTS[who][:2]
    for cell in notebook.cells:
        for name, text in zip(("fused", "logistic"), written, strict=True):
            if cell.source.endswith(f'check("launches/{name}", {name})') and text:
                cell.source = f'{text}\n\ncheck("launches/{name}", {name})'
    return notebook


def run(*arguments, cwd):
    """A command of a tool that is a Python module; its output."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment["PYTHONPATH"] = os.pathsep.join([str(notebooks.NOTEBOOKS.parent), os.environ.get("PYTHONPATH", "")])
    # nbgrader calls alembic by its name.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def classroom(folder, out):
    """The folder of the template."""
    address = "https://example.org/pmpp/blob/main"
    assert export.main(["classroom", "--out", str(out), "--repository", address], folder) == 0
    return out / "22_launches"


def test_the_same_seed_writes_the_same_files_and_without_one_it_is_drawn(folder, tmp_path, capsys):
    written = []
    for name, seed in {"a": ["--seed", "7"], "b": ["--seed", "7"], "c": []}.items():
        assert export.main(["nbgrader", "22_launches", "--out", str(tmp_path / name), *seed], folder) == 0
        written.append((tmp_path / name / "source" / "22_launches" / "22_launches.ipynb").read_bytes())
    assert written[0] == written[1] != written[2]
    worth = sum(POINTS["right"].values())
    assert f"| 22_launches | 2 | {worth} |" in (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path / 'a'}: assignments for nbgrader: 1. The seed of the hidden inputs is 7"
    drawn = said[2].rpartition(" ")[2]
    assert f"seed={drawn})" in written[2].decode()


def test_each_readme_says_where_students_get_the_workbook(folder, tmp_path):
    for kind in export.FORMATS:
        assert export.main([kind, "22_launches", "--out", str(tmp_path / kind)], folder) == 0
        assert export.SOURCE in (tmp_path / kind / "README.md").read_text(encoding="utf-8")


def test_without_an_explanation_all_points_are_for_exercises(folder, tmp_path):
    for kind in export.FORMATS:
        assert export.main([kind, "--explanation", "0", "--out", str(tmp_path / kind)], folder) == 0
        assert not [path for path in (tmp_path / kind).rglob("*.ipynb") if "explanation" in path.read_text("utf-8")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "-1"], "seed must not be negative, was -1"),
        (["--explanation", "-1"], "explanation must not be negative, was -1"),
        (["--repository", "here"], "repository must be an address that begins with https:// or http://, was 'here'"),
        (["--out", "."], "out must be a new folder, or that of a former release: . also has mine.txt"),
    ],
)
def test_what_is_refused(folder, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").touch()
    assert export.main(["otter", *(["--out", "new"] if "--out" not in arguments else []), *arguments], folder) == 1
    assert capsys.readouterr().err == f"{said}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_chapter_without_exercises_is_refused(capsys, tmp_path):
    assert export.main(["nbgrader", "72_choosing_a_convolution", "--out", str(tmp_path / "new")]) == 1
    assert "72_choosing_a_convolution sets none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('check("launches/fused", fused)', 'check("launches/fused", fused);', ""),
        ('check("launches/fused", fused)', 'print(check("launches/fused", fused))', "no cell ends in check"),
        ("ONE = np.float32(1)\n\n\n", "", "the answer to launches/logistic needs ONE, which no cell above it defines"),
    ],
)
def test_what_a_chapter_needs(folder, tmp_path, before, after, said):
    (tmp_path / "source").mkdir()
    text = (folder / "source" / "22_launches.py").read_text(encoding="utf-8")
    path = tmp_path / "source" / "22_launches.py"
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    nbformat.write(notebooks.read_source(path), tmp_path / "22_launches.ipynb")
    if said:
        with pytest.raises(ValueError, match=said):
            assignment(path)
    else:
        assert [task.variable for task in assignment(path).tasks] == ["fused", "logistic"]


@course
def test_grade(folder, tmp_path):
    """`pmpp.lab.teach.grade` gives as many points as the other graders, on the same notebooks."""
    students = release.released(nbformat.read(folder / "22_launches.ipynb", as_version=4))
    for who in STUDENTS:
        (tmp_path / "in" / who).mkdir(parents=True)
        nbformat.write(handed_in(students, who), tmp_path / "in" / who / "22_launches.ipynb")
    run("pmpp.lab.teach.grade", "in", "--seed", "7", "--cell", "60", "--json", "out.json", cwd=tmp_path)
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["notebooks"]
    earned = {
        one["student"]: {each["exercise"].replace("/", "-"): each["earned"] for each in one["exercises"]}
        for one in found
    }
    assert earned == POINTS


def test_a_template_for_github_classroom(folder, tmp_path):
    """Its workflow asks for each exercise by name and points, and its packages are pinned."""
    yaml = pytest.importorskip("yaml")
    template = classroom(folder, tmp_path)
    first, *pinned = (template / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"-e git\+https://example\.org/pmpp@\w+#egg=pmpp-workbook", first)
    assert {line.partition("==")[0] for line in pinned} >= {"numpy", "pytest", "ipykernel", "nbformat"}
    assert (template / "22_launches.ipynb").is_file()
    assert leaks(nbformat.read(template / "22_launches.ipynb", 4), folder / "source" / "22_launches.py") == []

    workflow = yaml.safe_load((template / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["grade"]["steps"]
    asked = {step["id"]: step["with"] for step in steps if "command-grader" in step.get("uses", "")}
    assert {name: facts["max-score"] for name, facts in asked.items()} == POINTS["right"]
    for name, facts in asked.items():
        assert facts["command"].endswith(f'"test_answers.py::test_answer[{name}]"')
    assert steps[-1]["with"]["runners"] == ",".join(asked)
    assert steps[-1]["env"] == {f"{name.upper()}_RESULTS": f"${{{{ steps.{name}.outputs.result }}}}" for name in asked}


@course
def test_classroom(folder, tmp_path):
    """The template's tests pass and fail as the answers are right or wrong, by the commands of its workflow."""
    yaml = pytest.importorskip("yaml")
    template = classroom(folder, tmp_path)
    workflow = yaml.safe_load((template / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8"))
    path = template / "22_launches.ipynb"
    nbformat.write(handed_in(nbformat.read(path, as_version=4), "half"), path)
    run("test_answers", "graded.json", cwd=template)
    said = {}
    for step in workflow["jobs"]["grade"]["steps"]:
        if "command-grader" in step.get("uses", ""):
            command = step["with"]["command"].replace(" python ", f" {sys.executable} ")
            command = command.replace("${{ runner.temp }}", str(template))
            home = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # as on GitHub
            done = subprocess.run(
                command, shell=True, cwd=template, env=home, capture_output=True, text=True, check=False
            )
            assert done.returncode == (not POINTS["half"][step["id"]]), done.stdout + done.stderr
            said[step["id"]] = done.stdout
    assert "1 passed" in said["launches-fused"]
    assert "wrong result" in said["launches-logistic"]


GRADEBOOK = """\
import json
from nbgrader.api import Gradebook

with Gradebook("sqlite:///gradebook.db") as book:
    grades = [
        (one.student.id, grade.name, grade.auto_score, grade.max_score, grade.needs_manual_grade)
        for one in book.assignment_submissions("22_launches")
        for grade in one.notebooks[0].grades
    ]
print(json.dumps(grades))
"""


@course
def test_nbgrader(folder, tmp_path):
    """Generated, handed in, graded: as many points as expected, and words that say why."""
    assert export.main(["nbgrader", "--out", str(tmp_path), "--seed", "7"], folder) == 0
    with (tmp_path / "nbgrader_config.py").open("a", encoding="utf-8") as file:
        file.write("c.Execute.timeout = 60\n")
    run("nbgrader", "generate_assignment", "22_launches", cwd=tmp_path)
    given = nbformat.read(tmp_path / "release" / "22_launches" / "22_launches.ipynb", as_version=4)
    text = nbformat.writes(given)
    assert not re.search(r"SOLUTION|HIDDEN|seed|logistic_answer|ONE|For whoever grades", text)
    students = release.released(nbformat.read(folder / "22_launches.ipynb", as_version=4))
    graders = [cell for cell in given.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    kept = [cell.source for cell in given.cells if cell.cell_type == "code" and cell not in graders]
    assert kept == [cell.source for cell in students.cells if cell.cell_type == "code"]
    for who in STUDENTS:
        path = tmp_path / "submitted" / who / "22_launches" / "22_launches.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(handed_in(given, who), path)
    run("nbgrader", "autograde", "22_launches", cwd=tmp_path)
    (tmp_path / "grades.py").write_text(GRADEBOOK, encoding="utf-8")
    found = {who: {} for who in STUDENTS}
    for who, name, earned, most, by_hand in json.loads(run("grades", cwd=tmp_path)):
        if name == "explanation":
            assert (earned, most, by_hand) == (0, export.EXPLANATION, False), "no response is no work for the grader"
        else:
            assert (most, by_hand) == (points(name.replace("-", "/")), False)
            found[who][name] = earned
    assert found == POINTS
    run("nbgrader", "generate_feedback", "22_launches", cwd=tmp_path)
    feedback = {path.parts[-3]: path.read_text(encoding="utf-8") for path in tmp_path.glob("feedback/*/*/*.html")}
    for who, said in {"wrong": "missing guard", "empty": "not started", "shipped": "not your own"}.items():
        assert said in feedback[who]


@course
def test_otter(folder, tmp_path):
    """Assigned, which grades the answers; handed in, graded: as many points as expected, and words that say why."""
    assert export.main(["otter", "--out", str(tmp_path), "--seed", "7"], folder) == 0
    run("otter", "assign", "22_launches/22_launches.ipynb", "dist", cwd=tmp_path)
    given = nbformat.read(tmp_path / "dist" / "student" / "22_launches.ipynb", as_version=4)
    assert not re.search(r"SOLUTION|hidden=True|seed|logistic_answer|ONE|For whoever grades", nbformat.writes(given))
    students = release.released(nbformat.read(folder / "22_launches.ipynb", as_version=4))
    kept = [cell.source for cell in given.cells if cell.cell_type == "code" and "otter" not in cell.source]
    kept = [source for source in kept if "grader." not in source]
    assert kept == [cell.source for cell in students.cells if cell.cell_type == "code"]
    [archive] = (tmp_path / "dist" / "autograder").glob("22_launches-autograder_*.zip")
    found, said = {}, {}
    for who in STUDENTS.keys() - {"hanging"}:  # otter run has no limit
        path = tmp_path / who / "22_launches.ipynb"
        path.parent.mkdir()
        nbformat.write(handed_in(given, who), path)
        run("otter", "run", "-a", archive, "-o", path.parent, path, cwd=tmp_path)
        tests = json.loads((path.parent / "results.json").read_text(encoding="utf-8"))["tests"]
        found[who] = {one["name"]: one["score"] for one in tests if "score" in one}
        said[who] = json.dumps(tests)
    assert found | {"hanging": POINTS["hanging"]} == POINTS
    for who, words in {"wrong": "missing guard", "empty": "not started", "shipped": "not your own"}.items():
        assert words in said[who]
