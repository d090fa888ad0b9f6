"""The chapters for a grader: nbgrader, otter-grader, or GitHub Classroom.

::

    make nbgrader     a course for nbgrader 0.9, in build/nbgrader/
    make otter        notebooks for otter assign 7, in build/otter/
    make classroom    template repositories for GitHub Classroom, in build/classroom/

    python -m pmpp.lab.publish.export nbgrader                            the same without make
    python -m pmpp.lab.publish.export otter 04_vector_add --out FOLDER    one chapter, another folder
    python -m pmpp.lab.publish.export nbgrader --seed 7 --explanation 0
    python -m pmpp.lab.publish.export classroom --repository https://example.org/pmpp/blob/main

Each chapter becomes an assignment of its own, with the cells of its release (`pmpp.lab.publish.release`). An exercise
has the points of `pmpp.lab.teach.points`, and earns all of them or none: on the inputs of `check`, and on others, made
from a seed that students do not see. With the same ``--seed`` the same files are written. Without it one is drawn, and
printed. After the exercises a question asks for an explanation in words, for which a person gives the points:
``--explanation 0`` leaves it out.

What nbgrader and otter start from has the answers in it, and they take them out. Do not hand these files out.

Both run a student's answer and the check of it in one process, so an answer that sets out to deceive them can. Where
that matters, grade with ``python -m pmpp.lab.teach.grade``, as the files for GitHub Classroom do.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import json
import re
import secrets
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pmpp
from pmpp.lab.measure.environment import revision
from pmpp.lab.publish.assignment import Assignment, Task, assignment
from pmpp.lab.publish.notebooks import NOTEBOOKS, sources
from pmpp.lab.publish.release import ROOT, checked, write
from pmpp.lab.teach.points import chapters

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["FORMATS", "Options", "main", "requirements"]

EXPLANATION = 5  # points of the question that a person grades
TEMPLATES = Path(__file__).with_name("graders")  # what is written beside the notebooks
PYTHON = "{}.{}".format(*sys.version_info)  # of this process, for those that grade


# ------------------------------------------------------------------------------------------------- what formats share

ASKED = (
    "**In your own words** ({points} points). Take the exercise that cost you most time. What was wrong with an "
    "attempt of yours, what showed it, and what did you change? {more}Five sentences are enough."
)
PREDICTED = (
    "Then take the prediction that was furthest off. What had you expected, what happened, and what had you not known? "
)
#: Of every README. The package index has no checkout of the workbook, and another project by the name of pmpp.
SOURCE = """\
The first line of `requirements.txt` says where students and graders get pmpp. It must be a checkout, since graders need
the chapters. `--repository https://github.com/OWNER/NAME/blob/main` writes it, and `--package` writes another."""
RUBRIC = (
    "For whoever grades: full points if each part names a cause, such as a race, a lane without work, or a sector that "
    "is fetched twice, and what showed it: a verdict, a counter, a case worked out by hand. Half of them if it only "
    "says what was changed. None if it would fit any exercise."
)


def _file(name: str, /, **facts: object) -> str:
    """A file of `TEMPLATES` with each ``@fact@`` in it replaced."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda place: str(facts[place[1]]), text)


def _asked_cell(one: Assignment, options: Options) -> NotebookNode:
    """The question that a person grades."""
    more = PREDICTED if one.predicted else ""
    return _cell("markdown", ASKED.format(points=options.explanation, more=more), "explanation-asked")


def requirements(package: str) -> str:
    """A file for pip: pmpp, and what a notebook and its tests import, each with the version that is installed here."""
    found = {"pytest": "pytest"}
    for line in importlib.metadata.requires("pmpp-workbook") or ():
        wanted, _, condition = line.partition(";")
        if not condition or re.search(r"""extra == (["'])lab\1""", condition):
            found[re.match(r"[\w.-]+", wanted)[0]] = wanted.strip()
    for name in found:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = f"{name}=={importlib.metadata.version(name)}"
    return "\n".join([package, *(found[name] for name in sorted(found))]) + "\n"


def where(repository: str) -> str:
    """The requirement by which students get pmpp, from an address such as "https://host/pmpp/blob/main".

    Grading needs the chapters, too, so a checkout is installed as it is.
    """
    address, _, branch = repository.partition("/blob/")
    if not branch:
        return f"pmpp-workbook=={pmpp.__version__}"
    return f"-e git+{address}@{revision().removesuffix('-dirty')}#egg=pmpp-workbook"


@dataclass(frozen=True)
class Options:
    """What is the same for all assignments of an export.

    seed         of the inputs that students do not see
    explanation  points of the explanation in words; 0: it is not asked for
    package      the requirement by which students get pmpp
    """

    seed: int
    explanation: int = EXPLANATION
    package: str = where("")

    def __post_init__(self) -> None:
        for name in ("seed", "explanation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, was {getattr(self, name)}")


def _filled(source: str, answer: str, begin: str, end: str, blank: int) -> str:
    """A cell with an answer above its check; ``blank`` of the empty lines between them are left out."""
    lines = source.split("\n")
    last = ast.parse(source).body[-1].lineno - 1
    above = lines[: last - blank] if last else []
    return "\n".join([*above, begin, answer, end, *lines[last:]])


def _cell(kind: str, source: str, name: str, metadata: Mapping | None = None) -> NotebookNode:
    import nbformat

    cell = getattr(nbformat.v4, f"new_{kind}_cell")(source, metadata=dict(metadata or {}))
    cell.id = name[:64]
    return cell


def _rewritten(one: Assignment, around: Callable[[NotebookNode, Task], list], last: list) -> NotebookNode:
    """The notebook with each task's cell replaced by others, and more cells after the last of them."""
    import nbformat

    tasks = {task.cell: task for task in one.tasks}
    notebook = nbformat.from_dict({**one.notebook, "cells": []})
    for cell in one.notebook.cells:
        task = tasks.pop(cell.id, None)
        notebook.cells += around(nbformat.from_dict(cell), task) if task else [cell]
        if task and not tasks:
            notebook.cells += last
    nbformat.validate(notebook)
    return notebook


def _text(notebook: NotebookNode) -> str:
    import nbformat

    return nbformat.writes(notebook).rstrip("\n") + "\n"


def _assertion(task: Task, seed: int | None, indent: str = "") -> str:
    """Lines that end in an assertion: a grader may take any other end of a cell for a pass."""
    given = f'"{task.name}", {task.variable}' + (f", seed={seed}" if seed is not None else "")
    return f"{indent}marked = mark({given})\n{indent}assert marked, marked"


# ----------------------------------------------------------------------------------------------------------- nbgrader


def _nbgrader_metadata(name: str, **facts: typing.Any) -> dict:
    usual = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    return {"nbgrader": {**usual, "grade_id": name, **facts}}


def nbgrader(one: Assignment, options: Options) -> dict[str, str]:
    """A source assignment, which ``nbgrader generate_assignment`` makes the students' version of."""

    def around(cell: NotebookNode, task: Task) -> list[NotebookNode]:
        cell.source = _filled(cell.source, task.answer, "### BEGIN SOLUTION", "### END SOLUTION", 1)
        cell.metadata.update(_nbgrader_metadata(f"{task.id}-answer", solution=True))
        lines = [
            f"# {task.name}: {task.points} points. This cell is for the grader.",
            "from pmpp.lab.teach.mark import mark",
            "",
            _assertion(task, None),
        ]
        if task.seeded:
            lines += ["### BEGIN HIDDEN TESTS", _assertion(task, options.seed), "### END HIDDEN TESTS"]
        metadata = _nbgrader_metadata(task.id, grade=True, locked=True, points=task.points)
        metadata["tags"] = ["raises-exception"]  # who runs all cells gets past an exercise that is not solved yet
        return [cell, _cell("code", "\n".join(lines), f"{task.id}-graded", metadata)]

    last = []
    if options.explanation:
        metadata = _nbgrader_metadata("explanation", grade=True, solution=True, points=options.explanation)
        last.append(_asked_cell(one, options))
        last.append(_cell("markdown", RUBRIC, "explanation", metadata))
    return {f"source/{one.stem}/{one.stem}.ipynb": _text(_rewritten(one, around, last))}


# -------------------------------------------------------------------------------------------------------------- otter

OTTER_CONFIG = """\
# ASSIGNMENT CONFIG
name: {stem}
requirements: requirements.txt
python_version: "{python}"
export_cell:
  pdf: false
tests:
  ok_format: false
"""

HIDDEN = '""" # BEGIN TEST CONFIG\nhidden: true\n""" # END TEST CONFIG\n'


def otter(one: Assignment, options: Options) -> dict[str, str]:
    """A notebook from which ``otter assign`` makes the students' version, and what grades it."""

    def raw(text: str, name: str) -> NotebookNode:
        return _cell("raw", text, name)

    def test(task: Task, seed: int | None) -> NotebookNode:
        kind = "hidden" if seed is not None else "public"
        body = "    from pmpp.lab.teach.mark import mark\n\n" + _assertion(task, seed, "    ")
        # Otter gives the notebook's variable of each parameter's name, and None if there is none.
        source = (HIDDEN if seed is not None else "") + f"def test_{kind}({task.variable}):\n{body}"
        return _cell("code", source, f"{task.id}-{kind}")

    def around(cell: NotebookNode, task: Task) -> list[NotebookNode]:
        cell.source = _filled(cell.source, task.answer, "# BEGIN SOLUTION NO PROMPT", "# END SOLUTION", 0)
        question = f"# BEGIN QUESTION\nname: {task.id}\npoints: {task.points}\nall_or_nothing: true"
        tests = [test(task, None), *([test(task, options.seed)] if task.seeded else [])]
        return [
            raw(question, f"{task.id}-question"),
            raw("# BEGIN SOLUTION", f"{task.id}-solution"),
            cell,
            raw("# END SOLUTION", f"{task.id}-solution-end"),
            raw("# BEGIN TESTS", f"{task.id}-tests"),
            *tests,
            raw("# END TESTS", f"{task.id}-tests-end"),
            raw("# END QUESTION", f"{task.id}-question-end"),
        ]

    last = []
    if options.explanation:
        question = f"# BEGIN QUESTION\nname: explanation\npoints: {options.explanation}\nmanual: true"
        last = [
            raw(question, "explanation-question"),
            _asked_cell(one, options),
            raw("# BEGIN SOLUTION", "explanation-solution"),
            _cell("markdown", RUBRIC, "explanation"),
            raw("# END SOLUTION", "explanation-solution-end"),
            raw("# END QUESTION", "explanation-question-end"),
        ]
    notebook = _rewritten(one, around, last)
    notebook.cells.insert(0, raw(OTTER_CONFIG.format(stem=one.stem, python=PYTHON).rstrip(), "assignment-config"))
    return {
        f"{one.stem}/{one.stem}.ipynb": _text(notebook),
        f"{one.stem}/requirements.txt": requirements(options.package),
    }


# --------------------------------------------------------------------------------------------------- GitHub Classroom


def classroom(one: Assignment, options: Options) -> dict[str, str]:
    """A template repository: the notebook, tests that grade it, and a workflow that runs them on GitHub."""
    notebook = one.notebook
    if options.explanation:
        notebook = _rewritten(
            one, lambda cell, _: [cell], [_asked_cell(one, options), _cell("markdown", "*Your answer*", "explanation")]
        )
    names = [task.name for task in one.tasks]
    facts = [{"name": task.name, "id": task.id, "points": task.points} for task in one.tasks]
    workflow = _file(
        "classroom/workflow.yml",
        python=PYTHON,
        # Its command gets the path and the home of the step and no other variable, so it sets its own.
        steps="".join(_file("classroom/step.yml", **fact) for fact in facts).rstrip("\n"),
        results="".join(_file("classroom/result.yml", upper=fact["id"].upper(), **fact) for fact in facts).rstrip("\n"),
        runners=",".join(fact["id"] for fact in facts),
    )
    files = {
        f"{one.stem}.ipynb": _text(notebook),
        "test_answers.py": _file("classroom/test_answers.txt", stem=one.stem, names=json.dumps(names)),
        "requirements.txt": requirements(options.package),
        ".github/workflows/classroom.yml": workflow,
        "README.md": _file("classroom/student.md", stem=one.stem),
        "LICENSE": (ROOT / "LICENSE").read_text(encoding="utf-8"),
    }
    return {f"{one.stem}/{name}": text for name, text in files.items()}


FORMATS: dict[str, Callable[[Assignment, Options], dict[str, str]]] = {
    "nbgrader": nbgrader,
    "otter": otter,
    "classroom": classroom,
}


def exported(
    kind: str, names: Sequence[str], options: Options, folder: Path = NOTEBOOKS, repository: str = ""
) -> dict[str, str]:
    """The files of an export, as text by name.

    Args:
        kind: one of `FORMATS`.
        names: stems of chapters; none for all that set exercises.
        options: of all assignments.
        folder: of the chapters.
        repository: as in `pmpp.lab.publish.release.linked`.

    Raises ValueError if a chapter sets no exercise, or as `assignment` and `checked` do. Raises SystemExit if there is
    no such chapter.
    """
    paths = sources(names or chapters(folder), folder)
    checked(paths, repository)
    found = [assignment(path, repository) for path in paths]
    if empty := [one.stem for one in found if not one.tasks]:
        raise ValueError(f"a chapter must set exercises to be an assignment: {', '.join(empty)} sets none")
    files = {name: text for one in found for name, text in FORMATS[kind](one, options).items()}
    rows = [f"| {one.stem} | {len(one.tasks)} | {sum(task.points for task in one.tasks)} |" for one in found]
    points = "\n".join(["| assignment | exercises | points |", "|---|---|---|", *rows])
    facts = {"first": found[0].stem, "version": pmpp.__version__, "seed": options.seed, "points": points}
    facts["source"] = SOURCE
    files["README.md"] = _file(f"{kind}/README.md", **facts)
    files["LICENSE"] = (ROOT / "LICENSE").read_text(encoding="utf-8")
    if kind == "nbgrader":
        files["nbgrader_config.py"] = _file("nbgrader/nbgrader_config.txt")
        files["requirements.txt"] = requirements(options.package)
    return files


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.export", description="Write the chapters as assignments for a grader."
    )
    parser.add_argument("format", choices=FORMATS, help="the grader")
    parser.add_argument("names", nargs="*", help="chapters, as 4 or 04_vector_add; all that set exercises by default")
    parser.add_argument("--out", type=Path, help="the folder to write; build/FORMAT by default")
    parser.add_argument("--repository", default="", help="an address, for links to files of the repository")
    parser.add_argument("--seed", type=int, help="of the hidden inputs; drawn by default")
    parser.add_argument("--explanation", type=int, default=EXPLANATION, help="points of the question in words; 0: none")
    parser.add_argument("--package", help="the requirement by which students get pmpp; from --repository by default")
    chosen = parser.parse_args(arguments)
    out = chosen.out or ROOT / "build" / chosen.format
    seed = secrets.randbelow(2**31) if chosen.seed is None else chosen.seed
    try:
        options = Options(seed, chosen.explanation, chosen.package or where(chosen.repository))
        files = exported(chosen.format, chosen.names, options, folder, chosen.repository)
        write(files, out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    count = sum(name.endswith(".ipynb") for name in files)
    seeded = "" if chosen.format == "classroom" else f". The seed of the hidden inputs is {seed}"
    print(f"{out}: assignments for {chosen.format}: {count}{seeded}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
