"""Grading: five notebooks of a class, and how an answer gets from a notebook's process to its judge."""

import json
import linecache
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest

from pmpp import cuda
from pmpp.lab.publish import notebooks, release
from pmpp.lab.teach.diagnosis import judge
from pmpp.lab.teach.grade import capture, command, edition, rebuild, result, supervise, wall
from pmpp.lab.teach.grade.result import Graded, Result
from pmpp.lab.teach.points import graded, known, named, points
from pmpp.runtime import device
from tests.kernels.launches import answers

nbformat = pytest.importorskip("nbformat", reason="chapters need the extra 'lab'")
if device.on_gpu():
    pytest.skip("notebooks are graded in the interpreter", allow_module_level=True)

CHAPTER = "22_launches"
FUSED, LOGISTIC = graded(CHAPTER)
ROOT = Path(__file__).parents[2]
ASKED = "What are its last four words?"

# ------------------------------------------------------------------------------------------------------ a class of five

RIGHT = {
    FUSED: """\
@cuda.jit
def one_launch(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], np.float32(0))


check("launches/fused", one_launch)
""",
    LOGISTIC: """\
ONE = np.float32(1)


@cuda.jit(device=True)
def step(x, r):
    return r * x * (ONE - x)


class Chains:
    @cuda.jit
    def chain(x, r, steps, out):
        i = cuda.grid(1)
        if i < out.size:
            value = x[i]
            for _ in range(steps):
                value = step(value, r)
            out[i] = value


%time check("launches/logistic", Chains.chain)
""",
}
WRONG = RIGHT[FUSED].replace("if i < out.size:", "if i <= out.size:")

# What does not earn anything. The exercise of each is the first one.
MALICIOUS = [
    # the shipped answer, in five ways
    'check("launches/fused", exercise("launches/fused").answer)',
    'check("launches/fused", exercise("launches/fused").answer.py_func)',
    'from pmpp.kernels.launches.exercises import fused_answer\ncheck("launches/fused", fused_answer)',
    f"source = open({str(ROOT / 'pmpp/kernels/launches/exercises.py')!r}).read()\nexec(source)",
    'import sys\nplayer = sys.modules["pmpp.lab.teach.grade.player"]\n'
    'kernel, place = ["kernel", 1, False, None], ["object", "pmpp.kernels.launches.exercises", "fused_answer"]\n'
    'player._state["report"]("check", name="launches/fused", nodes=[kernel, place])',
    # a verdict of one's own
    'print("launches/fused: passed")\nprint(\'{"kind": "verdict", "name": "launches/fused", "passed": true}\')',
    "import pmpp\nfrom pmpp.lab.teach import diagnosis, exercise as module\n"
    "module.check = diagnosis.judge = pmpp.check = lambda name, answer: True\n"
    'module.check("launches/fused", None)',
    "from pmpp import simt\nfrom pmpp.lab.teach.exercise import Verdict\n"
    "Verdict.__bool__ = simt.profile = lambda *_, **__: True\nassert check('launches/fused', add_kernel)",
    # other processes
    "import os\nos.fork()",
    "import subprocess\nsubprocess.run(['touch', 'x'])",
    "!echo passed > verdict",
    # the end of the process
    "import os\nos._exit(0)",
    "import sys\nsys.exit(0)",
    "while True:\n    print('x' * 100_000)",
    "import ctypes\nctypes.string_at(0)",
    'import sys\nsys.modules["pmpp.lab.teach.grade.player"]._state["report"]("done")',
]
HANGING = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"


def handed_out():
    """The release of the chapter, without its figures: the cells that the exercises need."""
    [source] = notebooks.sources([CHAPTER])
    whole = nbformat.read(notebooks.NOTEBOOKS / f"{source.stem}.ipynb", as_version=4)
    notebook = release.released(whole)
    predictions = [cell for cell in notebook.cells if "guess = None" in cell.source]
    wanted = re.compile(r"^import|\bexercise\(|\bcheck\(|def words|vector, matrix =|list\(struct|^## Exercises")
    notebook.cells = [
        c
        for c in notebook.cells
        if "last four words" in c.source or (wanted.search(c.source) and (c not in predictions or "4q" in c.source))
    ]
    return notebook


def fill_in(notebook, answers, *, first=(), guess=None):
    """Put an answer in the place of each stub, and cells behind the first."""
    for cell in notebook.cells:
        name = re.search(r'^check\("([\w/]+)"', cell.source, re.MULTILINE)
        if name and name[1] in answers:
            cell.source = answers[name[1]]
        elif guess:
            cell.source = cell.source.replace("guess = None  # a list of four words", f"guess = {guess}")
    notebook.cells[1:1] = [nbformat.v4.new_code_cell(source) for source in first]
    return notebook


@pytest.fixture(scope="module")
def graded_class(tmp_path_factory):
    """The five, graded by the command from an empty folder: the JSON, by student, and what was printed."""
    folder = tmp_path_factory.mktemp("class")
    submitted = {
        "perfect": fill_in(handed_out(), RIGHT, guess=[4, 3, 4, 16]),
        "empty": handed_out(),
        "half": fill_in(handed_out(), {FUSED: WRONG, LOGISTIC: RIGHT[LOGISTIC]}, guess=[3, 4, 16, 4]),
        "malicious": fill_in(handed_out(), {LOGISTIC: RIGHT[LOGISTIC]}, first=MALICIOUS),
        "hanging": fill_in(handed_out(), {FUSED: HANGING, LOGISTIC: RIGHT[LOGISTIC]}),
    }
    for student, notebook in submitted.items():
        (folder / "in" / student).mkdir(parents=True)
        nbformat.write(notebook, folder / "in" / student / f"{CHAPTER}.ipynb")
    limits = ["--cell", "15", "--output", "100000", "--jobs", "2"]
    files = ["--json", "out.json", "--csv", "out.csv", "--rubric", "rubric.md"]
    files += ["--totals", "totals.csv", "--feedback", "feedback"]
    done = subprocess.run(  # noqa: PLW1510 (the status is compared below)
        [sys.executable, "-m", "pmpp.lab.teach.grade", "in", *limits, *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert found["format"] == result.FORMAT
    assert sorted(path.name for path in folder.iterdir()) == [
        "feedback", "in", "out.csv", "out.json", "rubric.md", "totals.csv",
    ]  # fmt: skip
    assert all(len(list(path.iterdir())) == 1 for path in (folder / "in").iterdir())
    return {one["student"]: Result.of(one) for one in found["notebooks"]}, folder, done.stdout


def exercise_of(found, student, name):
    return next(one for one in found[student].exercises if one.exercise == name)


def test_what_five_notebooks_earn(graded_class):
    found, _, said = graded_class
    earned = {student: (one.earned, one.points) for student, one in found.items()}
    expected = {"perfect": (15, 15), "empty": (0, 15), "half": (10, 15), "malicious": (10, 15), "hanging": (10, 15)}
    assert earned == expected
    for student, (got, of) in expected.items():
        assert f"{student}/{CHAPTER}.ipynb: {got} of {of} points ({CHAPTER})" in said


def test_the_verdicts_words(graded_class):
    found, *_ = graded_class
    assert exercise_of(found, "perfect", FUSED).words.startswith("passed: right on ")
    half = exercise_of(found, "half", FUSED)
    assert half.mistake == "guard off by one"
    assert half.code == "out[i] = max(a * x[i] + y[i], np.float32(0))"
    assert "def one_launch" in half.source
    for name in (FUSED, LOGISTIC):
        assert exercise_of(found, "empty", name).mistake == "not started"
    assert found["empty"].faults == []


def test_predictions_are_read_from_the_notebook(graded_class):
    found, folder, _ = graded_class
    [right], [wrong], [none] = (found[student].predictions for student in ("perfect", "half", "empty"))
    assert (right["filled"], right["right"]) == (True, True)
    assert (wrong["filled"], wrong["right"], wrong["guess"]) == (True, False, "[3, 4, 16, 4]")
    assert "of 4 right" in wrong["headline"]
    assert (none["filled"], none["right"], none["said"]) == (False, None, "")
    rubric = (folder / "rubric.md").read_text(encoding="utf-8")
    assert "| explanation | launches/fused | guard off by one |  |" in rubric
    assert f"| prediction | {ASKED} | [4, 3, 4, 16]: 4 of 4 right. |  |" in rubric
    assert "| speed | launches/fused | 100%, shipped 100% |  |" in rubric


def test_a_student_reads_what_was_found_and_what_to_look_at(graded_class):
    _, folder, _ = graded_class
    said = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "feedback").iterdir()}
    assert sorted(said) == ["empty", "half", "hanging", "malicious", "perfect"]
    assert said["perfect"].startswith(
        f"# perfect: 15 of 15 points\n\n## {CHAPTER}: 15 of 15 points\n\n### {FUSED}: 5 of "
    )
    assert "Look at next" not in said["perfect"]
    half = said["half"]
    assert f"### {FUSED}: 0 of 5 points\n\nguard off by one: " in half
    assert "line 5:\n\n    out[i] = max(a * x[i] + y[i], np.float32(0))\n" in half
    assert "Look at next" not in half  # the verdict says what to do
    assert f"*Look at next:* A hint: {named(FUSED).hints[0]}" in said["empty"]
    assert f"### Predictions: 1 of 1 filled in\n\n- {ASKED} [3, 4, 16, 4]. 0 of 4 right." in half
    assert f"- {ASKED} not filled in" in said["empty"]
    assert "Code cell" not in said["empty"]
    assert "stopped: It took longer than 15 s, and the process had to be ended." in said["hanging"]


def test_a_kernel_far_from_the_roof_is_told_so():
    def said(share):
        one = Graded("vector_add/saxpy", 5, 5, True, "", "passed", share=share, shipped=0.9)
        return result.as_feedback([Result("a", "a.ipynb", "04_vector_add", 5, 5, [one])])["a"]

    assert "this kernel reaches 30% of the roof, and 90% can be reached" in said(0.3)
    assert "Look at next" not in said(0.8)
    assert "Look at next" not in said(None)


def test_totals_have_a_line_for_each_student(graded_class):
    _, folder, _ = graded_class
    first, *lines = (folder / "totals.csv").read_text(encoding="utf-8").splitlines()
    assert first == f"student,{CHAPTER},total,of"
    assert sorted(lines) == [
        "empty,0,0,15",
        "half,10,10,15",
        "hanging,10,10,15",
        "malicious,10,10,15",
        "perfect,15,15,15",
    ]


def test_totals_of_several_chapters():
    """Who hands nothing in has an empty place, and a chapter that was handed in twice is added up."""
    two = [CHAPTER, "04_vector_add"]
    worth = sum(points(name) for chapter in two for name in graded(chapter))
    results = [Result("a", "a/22.ipynb", CHAPTER, 15, 5), Result("a", "a/04.ipynb", two[1], 25, 10),
               Result("a", "a/again.ipynb", CHAPTER, 0, 0), Result("=b", "b.ipynb", two[1], 25, 0),
               Result("c", "c.ipynb")]  # fmt: skip
    assert result.as_totals(results).splitlines() == [
        f"student,04_vector_add,{CHAPTER},total,of",
        f"a,10,5,15,{worth}",
        f"'=b,0,,0,{worth}",
        f"c,,,0,{worth}",
    ]


def test_malice_earns_nothing_and_is_named(graded_class):
    found, *_ = graded_class
    said = {fault["cell"]: fault["words"] for fault in found["malicious"].faults}
    reasons = {
        2: "the shipped answer is not there",
        3: "cannot import name 'fused_answer'",
        4: "not readable while a notebook is graded",
        9: "os.fork is not allowed",
        10: "subprocess.Popen is not allowed",
        12: "ended the process, with exit status 0",
        13: "SystemExit: 0",
        14: "print more than 100,000 bytes",
        15: "ended the process: SIGSEGV",
        16: "writes where only the grader does",
    }
    for place, reason in reasons.items():
        assert reason in said[place + 1], said
    assert not exercise_of(found, "malicious", FUSED).passed
    assert exercise_of(found, "malicious", FUSED).tried >= 3
    assert exercise_of(found, "malicious", LOGISTIC).passed


def test_a_hanging_cell_costs_its_own_exercise(graded_class):
    found, *_ = graded_class
    hung = exercise_of(found, "hanging", FUSED)
    assert hung.mistake == "not checked"
    [fault] = found["hanging"].faults
    assert fault["code"] == "import time"
    assert fault["words"] == "It took longer than 15 s, and the process had to be ended."


def test_the_csv_has_a_line_for_each_exercise(graded_class):
    _, folder, _ = graded_class
    first, *lines = (folder / "out.csv").read_text(encoding="utf-8").splitlines()
    assert first == ",".join(result.COLUMNS)
    assert len(lines) == 2 * 5
    assert f"hanging,hanging/{CHAPTER}.ipynb,{CHAPTER},{FUSED},5,0,False,not checked,,,0,,," in "\n".join(lines)


# ------------------------------------------------------------------------------- what a student's process is given


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return edition.build(tmp_path_factory.mktemp("edition"))


def test_the_copy_has_no_answer(copy):
    """No two lines of a shipped answer follow one another in what students are given of its module."""
    everything = {path: path.read_text(encoding="utf-8") for path in copy.rglob("*exercises*.py")}
    everything |= {path: path.read_text(encoding="utf-8") for path in copy.glob("pmpp/*/exercises/*.py")}
    text = "\n".join(everything.values())
    for name, one in known().items():
        function = getattr(one.answer, "py_func", one.answer)
        lines = [line for line in linecache.getlines(sys.modules[function.__module__].__file__) if line.strip()]
        assert any(f"def {function.__name__}(" in line or f"class {function.__name__}(" in line for line in lines)
        assert not re.search(rf"(def|class) {function.__name__}\(", text), name
        assert name in text


def test_the_copy_has_no_compiled_answer(copy):
    names = [getattr(one.answer, "__name__", "").encode() for name, one in known().items() if name != LOGISTIC]
    for path in copy.rglob("*exercises*.pyc"):
        assert not [name for name in names if name and b"_answer" in name and name in path.read_bytes()], path


def test_the_copy_can_be_imported_as_chapters_do(copy):
    lines = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in edition.given().items()
        if "exercises" in module and not names & {"*"}
    ]
    code = "\n".join([*lines, "from pmpp.lab.teach.exercise import exercise", f"print(exercise({FUSED!r}).answer)"])
    environment = {**os.environ, "PYTHONPATH": str(copy), "PMPP_BACKEND": "simt"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "<the shipped answer is not there while a notebook is graded, and earns nothing>\n", (
        done.stderr
    )


@pytest.mark.parametrize("name", ["given", "Both"])
def test_what_is_cut_out_of_a_module(name):
    source = """\
        from pmpp.lab.teach.exercise import Exercise
        SIZE = 3


        @jit
        def right_answer(x):
            return helper(x)


        def helper(x):
            return x


        def given(x):
            return Both(SIZE)


        class Both:
            pass


        def _cases(rng):
            return [right_answer(3)]


        EXERCISES = (
            Exercise("a/b", task=f"Up to {SIZE}.", parameters="x", cases=_cases, answer=right_answer),
        )
        """
    text = edition.trimmed(textwrap.dedent(source), [name])
    lines, before = text.splitlines(), textwrap.dedent(source).splitlines()
    assert all(line in ("", *before[at : at + 1]) or line.startswith("EXERCISES = (") for at, line in enumerate(lines))
    assert "right_answer" not in text
    assert "_cases" not in text
    assert "helper" not in text
    assert ("def given" in text) == (name == "given")
    assert "class Both" in text
    assert "SIZE = 3" in text
    compile(text, "text", "exec")
    with pytest.raises(ValueError, match="a student would be given the answer right_answer"):
        edition.trimmed(textwrap.dedent(source) + "TABLE = [right_answer]\n", [])


# --------------------------------------------------------------------------------------------- what a process reaches

ANSWERS = str(ROOT / "pmpp/kernels/vector_add/exercises.py")
# The first cell is allowed. Each of the others gets past the refusals that Python makes, or did so once.
REACHING = {
    "its own folder": "import os\nos.mkdir('a')\nopen('own', 'w').close()\n"
    "os.rename('own', 'a/own')\nassert os.listdir('a') == ['own']\n"
    "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('a/figure.png')\nopen('/dev/null', 'w')",
    "a file beside a folder": f"import os\nos.open({ANSWERS[1:]!r}, os.O_RDONLY, dir_fd=os.open('/', os.O_RDONLY))",
    "builtins": "import builtins\nkept, builtins.isinstance = isinstance, lambda *_: False\n"
    f"try:\n    open({ANSWERS!r})\nfinally:\n    builtins.isinstance = kept",
    "paths": f"import posixpath\nposixpath._joinrealpath = lambda *_: ('/dev/null', True)\nopen({ANSWERS!r})",
    "the hook": "import gc\n"
    "hook = next(one for one in gc.get_objects() if getattr(one, '__qualname__', '') == 'watch.<locals>.hook')\n"
    "for name, cell in zip(hook.__code__.co_freevars, hook.__closure__):\n"
    "    if name == 'looks':\n        cell.cell_contents = ()\n"
    f"open({ANSWERS!r})",
    "the parent": "import os\nopen(f'/proc/{os.getppid()}/cmdline')",
    "C": "import ctypes\n"
    f"if ctypes.CDLL(None).open({ANSWERS.encode()!r}, 0) < 0:\n    raise OSError('Permission denied')",
    "a pipe with a name": "import os\nos.mkfifo(os.path.join(os.path.dirname(os.getcwd()), 'left'))",
    "a database": "import sqlite3\nsqlite3.connect('../left')",
    "another name": "import os\nopen('own', 'w').close()\nos.rename('own', '../left')",
    "another place": "import os\nos.symlink('own', '../left')",
}


@pytest.mark.skipif(wall.version() < 2, reason="this system has no Landlock 2, so only Python refuses")
def test_what_a_cell_cannot_reach(copy, tmp_path):
    cells = [supervise.Cell(number, source) for number, source in enumerate(REACHING.values(), 1)]
    hidden = [ROOT / "pmpp", copy]
    played = supervise.play(cells, copy, hidden, supervise.Limits(), tmp_path / "folder")
    said = dict(played.faults)
    refused = re.compile("Permission denied|not readable|unable to open database|nothing is written")
    assert 1 not in said, said
    for number, name in enumerate(REACHING, 1):
        assert number == 1 or refused.search(said.get(number, "")), (name, said)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(wall.version() < 2, reason="this system has no Landlock 2, so only Python refuses")
def test_what_the_judge_of_a_python_answer_cannot_change(tmp_path):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert wall.build((), (), ())
            Path(__file__).read_text(encoding="utf-8")
            with pytest.raises(PermissionError):
                (tmp_path / "left").touch()
            if wall.version() >= 6:
                with pytest.raises(PermissionError):
                    os.kill(os.getppid(), 0)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


# ------------------------------------------------------------------------------------- from a notebook to its judge


@pytest.fixture
def notebook(monkeypatch):
    """Runs the source of a cell as a notebook does, and gives its names."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__dict__.update(np=np, cuda=cuda)

    def run(source, file="code cell 1"):
        source = textwrap.dedent(source)
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(source, file, "exec"), module.__dict__)
        return module.__dict__

    return run


def handed_over(answer, *, kernel=True):
    """What the judge gets of an answer."""
    nodes = json.loads(json.dumps(capture.taken(answer, {"code cell 1": 1})))
    return rebuild.rebuilt(nodes, edition.given(), kernel=kernel)


KERNELS = {
    "with a helper and a constant of the notebook": RIGHT[LOGISTIC].replace(
        "%time check", "answer = (lambda *p: p[1])"
    ),
    "with a lambda as a helper": """
        import math
        step = cuda.jit(device=True)(lambda x, r: r * x * (np.float32(1) - x))

        @cuda.jit
        def answer(x, r, steps, out):
            i = cuda.grid(1)
            if i < out.size:
                value = x[i]
                for _ in range(steps):
                    value = step(value, r)
                out[i] = value
        """,
    "made by a function": """
        def make(one, start):
            @cuda.jit
            def kernel(x, r, steps, out):
                i = start + cuda.grid(1)
                if i < out.size:
                    value = x[i]
                    for _ in range(steps):
                        value = r * value * (one - value)
                    out[i] = value
            return kernel

        answer = make(np.float32(1), 0)
        """,
    "with numbers by names, and a default": """
        START, ONE = 0, np.float32(1)

        @cuda.jit(device=True)
        def step(x, r, one=np.float32(1)):
            return r * x * (one - x)

        @cuda.jit(launch_bounds=256)
        def answer(x, r, steps, out):
            i = START + cuda.grid(1)
            if i < out.size:
                value = x[i] * ONE
                for _ in range(steps):
                    value = step(value, r)
                out[i] = value
        """,
    "as a plain function with an array of constants": """
        ONES = np.ones(3, np.float32)

        def answer(x, r, steps, out):
            i = cuda.grid(1)
            if i < out.size:
                value = x[i]
                for _ in range(steps):
                    value = r * value * (ONES[0] - value)
                out[i] = value
        """,
}


@pytest.mark.parametrize("source", KERNELS.values(), ids=KERNELS)
def test_a_kernel_is_taken_over_with_what_it_uses(notebook, source):
    answer = handed_over(notebook(source)["answer"])
    verdict = judge(named(LOGISTIC), answer.value)
    assert verdict, verdict
    assert (answer.missing, answer.cell) == ((), 1)
    assert "for _ in range(steps):" in answer.source


@pytest.mark.parametrize("wrong", answers.ANSWERS, ids=lambda wrong: f"{wrong.exercise} {wrong.kernel.__name__}")
def test_a_wrong_answer_is_told_the_same(wrong):
    told = judge(named(wrong.exercise), handed_over(wrong.kernel).value)
    assert told.message == judge(named(wrong.exercise), wrong.kernel).message


def test_the_lines_are_those_of_the_cell(notebook):
    answer = handed_over(notebook("\n\n" + WRONG.partition("\n\ncheck")[0])["one_launch"])
    verdict = judge(named(FUSED), answer.value)
    assert (verdict.line, verdict.code) == (7, "out[i] = max(a * x[i] + y[i], np.float32(0))")


def test_what_cannot_be_taken_over(notebook):
    names = notebook("""
        rng = np.random.default_rng(0)
        def answer(x):
            return rng.random()
        many = np.zeros(10**6)
        def large(x):
            return many
        """)
    answer = handed_over(names["answer"], kernel=False)
    assert answer.missing == ("rng, a Generator",)
    with pytest.raises(rebuild.RefusedError, match="rng, a Generator is not there when the answer is judged"):
        answer.value(1)
    with pytest.raises(
        capture.NotTakenError, match=r"refers to [\d,]+ bytes of data; at most 4,000,000 are taken over"
    ):
        capture.taken(names["large"])
    exec("def typed(x):\n    pass", names)
    with pytest.raises(capture.NotTakenError, match=r"the source of the answer \(typed\) is not in the notebook"):
        capture.taken(names["typed"])


PYTHON = """
import math
from collections import deque
from pmpp import nn
from pmpp.nn.tape import Function


class Twice(Function):
    @staticmethod
    def forward(context, x):
        context.kept = x
        return x

    def named(self):
        return super().__init__(), Twice.__name__


def half(x):
    import numpy as again
    assert again.array([1.0, 3.0]).mean() == 2  # NumPy imports a part of its own for it
    queue = deque(maxlen=math.ceil(x))
    queue.append(again.linalg.norm([3.0, 4.0]))
    return helper(queue.pop()) + (half(x - 1) if x > 1 else 0)


helper = lambda x: x / TWO
TWO = 2
"""


def test_python_is_taken_over(notebook):
    names = notebook(PYTHON)
    assert handed_over(names["half"], kernel=False).value(2) == 5
    made = handed_over(names["Twice"], kernel=False).value
    assert issubclass(made, sys.modules["pmpp.nn.tape"].Function)
    context = types.SimpleNamespace()
    assert made.forward(context, 3) == context.kept == 3


ESCAPES = {
    "names": ("return answer.__globals__", "line 3 uses .__globals__"),
    "classes": ("return ().__class__.__base__", "line 3 uses .__base__"),
    "frames": ("return (x for x in x).gi_frame", "line 3 uses .gi_frame"),
    "eval": ("return eval('1')", "line 3 uses eval"),
    "files": ("return open('/etc/passwd')", "line 3 uses open"),
    "getattr": ("return getattr(answer, '__glo' + 'bals__')", "asks getattr.. for '__globals__'"),
    "an import": ("import sys; return sys.modules", "imports sys"),
    "another": ("from pmpp.kernels.launches import exercises; return exercises.EXERCISES", "exercises"),
    "the judge": ("from pmpp.lab.teach import diagnosis; return diagnosis", "imports pmpp.lab.teach"),
    "a module": ("import numpy as n; n.allclose = None", "changes numpy.allclose"),
    "a module of a module": ("return np.lib.npyio", "the module numpy.lib"),
    "a class": ("np.ndarray.shape = 3", "changes 'ndarray'"),
    "a function": ("np.allclose.shape = 3", "changes 'allclose'"),
    "another way to get attributes": ("import operator; return operator.attrgetter('a')", "line 3 uses .attrgetter"),
    "what holds a module": ("return np._module.lib", "line 3 uses ._module"),
    "asked for by getattr": ("return getattr(np, '_mod' + 'ule')", "asks getattr.. for '_module'"),
    "what a warning holds": ("import warnings; return warnings.catch_warnings()._module", "line 3 uses ._module"),
    "an enumeration of a module": (
        "import enum; return enum.Enum._convert_('E', 'sys', lambda n: n == 'modules')",
        "line 3 uses ._convert_",
    ),
    "a wrapper": (
        "from functools import update_wrapper as u; return u",
        "line 3 uses from functools import update_wrapper",
    ),
    "a type in quotes": ("import functools; return functools.singledispatch(x)", "line 3 uses .singledispatch"),
    "an argument": ("return lambda _written_: 3", "line 3 uses _written_"),
    "a name of an import": ("import math as _written_", "line 3 uses _written_"),
    "a function of that name": ("def _written_(x): return x", "line 3 uses _written_"),
    "an error": ("try: x()\n    except TypeError as _written_: pass", "line 4 uses _written_"),
    "a pattern": ("match x:\n        case [_written_]: pass", "line 4 uses _written_"),
    "the memory": ("class A:\n        def __array_interface__(self): pass", "line 4 uses __array_interface__"),
    "a comparison": ("class A:\n        def __array_ufunc__(self): pass", "line 4 uses __array_ufunc__"),
    "an answer": ("from pmpp.nn.measure import feeding; return feeding.logistic_answer", "uses a shipped answer"),
}


@pytest.mark.parametrize(("code", "said"), ESCAPES.values(), ids=ESCAPES)
def test_python_is_screened(notebook, code, said):
    names = notebook(f"\ndef answer(x):\n    {code}\n")
    with pytest.raises(rebuild.RefusedError, match=said):
        handed_over(names["answer"], kernel=False).value([3])


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (["object", "pmpp.kernels.launches.exercises", "fused_answer"], "is not given to students"),
        (["object", "pmpp.kernels.launches.exercises", "logistic_answer"], "uses a shipped answer"),
        (["object", "pmpp.nn.measure.feeding", "logistic_answer"], "uses a shipped answer"),
        (["object", "pmpp.nn.exercises.memory", "LeanReLU"], "is not given to students"),
        (["object", "numpy", "ctypeslib.load_library"], "the module numpy.ctypeslib"),
    ],
)
def test_forged_data_earns_nothing(node, said):
    for nodes in ([node], [["kernel", 1, False, None], node]):
        with pytest.raises(rebuild.RefusedError, match=said):
            rebuild.rebuilt(nodes, edition.given(), kernel=False)


def test_forged_data_of_no_form():
    for nodes in ([], [["tuple", [0]]], [["function", {}]], [["other"]], [["kernel", 1, False, None], ["plain", 3]]):
        with pytest.raises(ValueError, match=r"unknown form|a kernel is made of a function"):
            rebuild.rebuilt(nodes, {}, kernel=True)


def test_the_inputs_follow_from_the_seed_and_the_answer(notebook):
    first = capture.taken(notebook(KERNELS["made by a function"])["answer"])
    again = capture.taken(notebook(KERNELS["made by a function"], "code cell 9")["answer"], {"code cell 9": 9})
    numbers = supervise.numbers_of(0, LOGISTIC, first)
    assert np.array_equal(numbers, supervise.numbers_of(0, LOGISTIC, again))
    other = capture.taken(notebook(KERNELS["made by a function"].replace("+ cuda", "+  cuda"))["answer"])
    different = [(1, LOGISTIC, first), (0, FUSED, first), (0, LOGISTIC, other)]
    assert not any(np.array_equal(numbers, supervise.numbers_of(*about)) for about in different)


def test_no_name_is_left_out_of_what_the_inputs_follow_from(notebook):
    """Else a forged answer could point from a name to any of its numbers, and keep its inputs."""
    nodes = capture.taken(notebook("file, cell = 1, 2\n\ndef answer(out):\n    out[file] = cell\n")["answer"])
    about = nodes[0][1]
    swapped = dict(zip(about["globals"], reversed(about["globals"].values()), strict=True))
    assert sorted(swapped) == ["cell", "file"]
    other = [["function", about | {"globals": swapped}], *nodes[1:]]
    assert not np.array_equal(*(supervise.numbers_of(0, FUSED, one) for one in (nodes, other)))


def contents_of(cases):
    """Arrays as bytes: to write numbers out takes far longer."""
    arguments = [argument for case in cases for argument in case.args]
    return [one.tobytes() if isinstance(one, np.ndarray) else repr(one) for one in arguments]


@pytest.mark.parametrize("name", [name for name, one in known().items() if hasattr(one, "cases")])
def test_the_inputs_follow_from_the_seed(name):
    """Else an answer could be a list of what it must return."""
    one = named(name)
    others = one.cases(np.random.default_rng(12_345))
    assert contents_of(one.inputs) != contents_of(others)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "begins", "cell": Infinity}',
        '{"kind": "begins", "cell": 1e400}',
        "[" * 100_000,
        '{"kind": "check", "cell": 1, "name": "launches/fused", "nodes": [3]}',
        '{"kind": "check", "cell": {"a": 1}, "name": "launches/fused", "refused": "x"}',
        '{"kind": "check", "cell": 1, "name": ["launches/fused"], "refused": "x"}',
        '{"kind": "predict", "cell": "=1", "filled": true}',
        '{"kind": "done", "cell": null}',  # while a cell runs
        '{"kind": "begins", "cell": 2}',
        '{"kind": "ended", "cell": 2}',
        '{"kind": "ended", "cell": 1}\n{"kind": "done", "cell": null}',  # and code cell 2 is left
        '{"kind": "ended", "cell": 1}\n{"kind": "begins", "cell": 3}',
        '{"kind": "ended", "cell": 1}\n{"kind": "begins", "cell": 2}\n{"kind": "ended", "cell": 2}\n'
        '{"kind": "begins", "cell": 3}',
        '{"kind": "ended", "cell": 1}\n{"kind": "begins", "cell": 2}\n{"kind": "ended", "cell": 2}\n'
        '{"kind": "done", "cell": null}\n{"kind": "ended", "cell": 1}',  # and then what the process itself says
    ],
)
def test_a_forged_report_costs_that_notebook_only(line):
    run = object.__new__(supervise._Run)
    run.played, run.limits, run.events, run.asked = supervise.Played(), supervise.Limits(), 0, 0.0
    run.cell, run.waiting, run.done = 1, [2], False
    assert run._heard(bytearray(), line.encode() + b"\n").startswith("It writes where only the grader does")
    assert (run.played.answers.get(FUSED, []), run.played.predictions) == ([], [])
    run.done = False
    long = json.dumps({"kind": "check", "cell": 1, "name": FUSED, "refused": "x" * 10_000})
    assert run._heard(bytearray(), long.encode() + b"\n") == ""
    assert len(run.played.answers[FUSED][0]["refused"]) == supervise.WORDS


# --------------------------------------------------------------------------------------------- notebooks and students


def cell(source, kind="code"):
    return {"cell_type": kind, "source": source, "metadata": {}}


@pytest.mark.parametrize(
    ("name", "cells", "chapter"),
    [
        (f"{CHAPTER}.ipynb", [], CHAPTER),
        ("mine.ipynb", [cell(["# 22. What a launch costs\n", "words"], "markdown")], CHAPTER),
        ("mine.ipynb", [cell("x = 3"), cell("check('launches/fused', f)")], CHAPTER),
        (
            "mine.ipynb",
            [cell('exercise("vector_add/fade")'), cell('check("vector_add/neighbours", f)')],
            "04_vector_add",
        ),
        ("mine.ipynb", [cell("x = 3")], ""),
    ],
)
def test_the_chapter_of_a_notebook(tmp_path, name, cells, chapter):
    path = tmp_path / name
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert command.chapter_of(path, *command.cells_in(path)) == chapter


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no JSON"),
        (b"\xff\xfe", "not in UTF-8"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", "not the form of a notebook of version 4"),
        (b'{"worksheets": []}', "not the form of a notebook of version 4"),
        (b'{"cells": [{"cell_type": "code", "source": 3}]}', "not the form of a notebook of version 4"),
    ],
)
def test_a_file_that_is_no_notebook_costs_that_student_only(tmp_path, content, said):
    path = tmp_path / f"{CHAPTER}.ipynb"
    path.write_bytes(content)
    with pytest.raises(command.NotANotebookError, match=said):
        command.cells_in(path)
    setting = command.Setting(tmp_path, tmp_path, (), {}, 0, supervise.Limits(), "")
    found = command.grade(command.Task("somebody", path.name, path), setting)
    assert (found.earned, found.points, found.chapter) == (0, 15, CHAPTER)
    assert said in found.notes[0]
    assert [one.mistake for one in found.exercises] == ["not checked"] * 2
    assert found.exercises[0].words == "not checked: no cell calls check('launches/fused', ...)."


def test_a_link_is_not_a_students_own_notebook(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "22.ipynb").write_text('{"cells": []}', encoding="utf-8")
    (tmp_path / "b" / "22.ipynb").symlink_to("../a/22.ipynb")
    own, linked = command.tasks(tmp_path)
    assert command.cells_in(own.path) == ([], "")
    with pytest.raises(command.NotANotebookError, match="a link to another file"):
        command.cells_in(linked.path)
    [named] = command.tasks(tmp_path / "b" / "22.ipynb")  # by the teacher
    assert command.cells_in(named.path) == ([], "")


def test_students_and_their_notebooks(tmp_path):
    for name in ("b.ipynb", "a/22.ipynb", "a/more/23.ipynb", "a/.ipynb_checkpoints/22.ipynb", "a/22.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [(task.student, task.name) for task in command.tasks(tmp_path)]
    assert found == [("a", "a/22.ipynb"), ("a", "a/more/23.ipynb"), ("b", "b.ipynb")]
    assert command.tasks(tmp_path / "b.ipynb")[0].student == "b"
    (tmp_path / "empty").mkdir()
    for name, said in {"empty": "there is no notebook in ", "nowhere": "there is no "}.items():
        with pytest.raises(ValueError, match=said):
            command.tasks(tmp_path / name)


def test_what_a_notebook_cannot_read(tmp_path):
    for name in ("a.ipynb", "b.ipynb", "c/d.ipynb", "data.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    whole, one = (command.hidden(path) for path in (tmp_path, tmp_path / "a.ipynb"))
    assert {path.name for path in whole if path.is_relative_to(tmp_path)} == {"a.ipynb", "b.ipynb", "d.ipynb"}
    assert {path.name for path in one if path.is_relative_to(tmp_path)} == {"a.ipynb", "b.ipynb"}
    assert {ROOT / "pmpp", ROOT / "tests", ROOT / "notebooks"} <= {*whole}
    assert not any(Path(sys.prefix).is_relative_to(path) for path in whole)


def test_an_exercise_counts_once_for_each_student():
    def one(student, name, earned):
        exercises = [Graded("vector_add/saxpy", 5, earned, earned > 0, "", "words")]
        return Result(student, name, "04_vector_add", 5, earned, exercises)

    results = [one("a", "00.ipynb", 0), one("a", "04.ipynb", 5), one("b", "04.ipynb", 5)]
    command.once_for_each_student(results)
    assert [(found.earned, found.points) for found in results] == [(0, 0), (5, 5), (5, 5)]
    assert results[0].exercises[0].words == "counted once, in 04.ipynb. words"


def test_a_students_words_are_no_formula():
    bad = Graded("a/b", 5, 0, False, "=1+1", '=HYPERLINK("x")')
    text = result.as_csv([Result("-x", "n", "c", 5, 0, [bad])])
    assert "'=1+1" in text
    assert "'-x" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no nowhere"),
        ([".", "--jobs", "0"], "--jobs must be more than 0, was 0"),
        ([".", "--chapter", "22"], "--chapter must be one with exercises, such as"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
