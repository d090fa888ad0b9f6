"""``python -m pmpp.lab.teach.grade``: from arguments to reports."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pmpp.lab.teach.grade import edition, gpu, result, supervise
from pmpp.lab.teach.grade.result import Graded, Result
from pmpp.lab.teach.grade.supervise import Cell, Judged, Limits, Played
from pmpp.lab.teach.points import chapters, graded, points

__all__ = ["NotANotebookError", "cells_in", "chapter_of", "grade", "main"]

LARGEST = 100_000_000  # bytes of a file
QUESTION = 150  # characters of a prediction's name


class NotANotebookError(ValueError):
    """A file that is no notebook; the message says why."""


@dataclass(frozen=True)
class Task:
    """A notebook to grade: its student, its name for the reader, and its path."""

    student: str
    name: str
    path: Path


@dataclass(frozen=True)
class Setting:
    """What all notebooks of a run share."""

    folder: Path
    edition: Path
    hidden: tuple[Path, ...]
    given: Mapping[str, Collection[str]]
    seed: int
    limits: Limits
    chapter: str
    gpu: bool = False


def tasks(path: Path) -> list[Task]:
    """The notebooks to grade: a file, or all in a folder and the folders inside it.

    Raises ValueError if there is no notebook.
    """
    if path.is_file():
        return [Task(path.stem, path.name, path.resolve())]
    found = [
        one
        for one in sorted(path.rglob("*.ipynb"))
        if one.is_file() and not any(part.startswith(".") for part in one.relative_to(path).parts)
    ]
    if not found:
        raise ValueError(f"there is no notebook in {path}" if path.is_dir() else f"there is no {path}")
    inside = [one.relative_to(path) for one in found]
    return [
        Task(name.parts[0] if len(name.parts) > 1 else name.stem, name.as_posix(), one)
        for name, one in zip(inside, found, strict=True)
    ]


def cells_in(path: Path) -> tuple[list[Cell], str]:
    """The cells of code in a notebook, and all its Markdown. Raises NotANotebookError."""
    try:
        if path.is_symlink():
            raise NotANotebookError("it is a link to another file")
        if path.stat().st_size > LARGEST:
            raise NotANotebookError(f"it has more than {LARGEST:,} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        code: list[Cell] = []
        prose, question = [], ""
        for cell in found["cells"]:
            source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
            if cell["cell_type"] == "code":
                code.append(Cell(len(code) + 1, source, question))
                question = "" if "predict(" in source else question
            else:
                prose.append(source)
                question = question_in(source) or question
    except NotANotebookError:
        raise
    except OSError as error:
        raise NotANotebookError(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise NotANotebookError("it is no JSON, or not in UTF-8") from None
    except (KeyError, TypeError, AttributeError):
        raise NotANotebookError("it has not the form of a notebook of version 4") from None
    return code, "\n\n".join(prose)


def question_in(prose: str) -> str:
    """What a cell of Markdown asks the reader to predict: the sentence with the question mark; "" if it asks nothing.

    >>> question_in("## Warps\\n\\n**Predict, then run.** A block has 40\\nthreads. How many warps is that?")
    'How many warps is that?'
    """
    paragraph = prose.rpartition("**Predict")[2].partition("**")[2] if "**Predict" in prose else ""
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z])", " ".join(paragraph.partition("\n\n")[0].split()))
    asked = next((one for one in sentences if one.endswith("?")), sentences[0])
    return asked if len(asked) <= QUESTION else asked[: QUESTION - 3] + "..."


def chapter_of(path: Path, cells: Sequence[Cell], prose: str) -> str:
    """The chapter that a notebook is: by its name, by its title, or by the exercises that it names. "" if by none."""
    known = chapters()
    if path.stem in known:
        return path.stem
    title = re.search(r"^# (\d+)\. ", prose, re.MULTILINE)
    for one in known:
        if title and int(one.partition("_")[0]) == int(title[1]):
            return one
    named = set(re.findall(r"""\b(?:check|exercise)\(\s*["']([\w/]+)["']""", "\n".join(cell.source for cell in cells)))
    shared = {one: len(named & {*graded(one)}) for one in known}
    best = max(known, key=lambda one: shared[one])
    return best if shared[best] else ""


# ---------------------------------------------------------------------------------------------------- one notebook


def grade(task: Task, setting: Setting) -> Result:
    """Grade one notebook. Whatever is wrong with it stands in the result."""
    found = Result(task.student, task.name)
    try:
        cells, prose = cells_in(task.path)
    except NotANotebookError as error:
        found.chapter = setting.chapter or (task.path.stem if task.path.stem in chapters() else "")
        found.notes.append(f"The file is no notebook: {error}.")
        return _with_exercises(found, Played(), [], setting)
    found.chapter = setting.chapter or chapter_of(task.path, cells, prose)
    if not found.chapter:
        found.notes.append("It names no exercise of any chapter, so nobody can say which one it is: give --chapter.")
        return found
    folder = Path(tempfile.mkdtemp(dir=setting.folder))
    played = supervise.play(cells, setting.edition, setting.hidden, setting.limits, folder)
    return _with_exercises(found, played, cells, setting)


def _with_exercises(found: Result, played: Played, cells: Sequence[Cell], setting: Setting) -> Result:
    first = {cell.number: _first_line(cell.source) for cell in cells}
    found.faults = [{"cell": cell, "code": first.get(cell, ""), "words": words} for cell, words in played.faults]
    questions = {cell.number: cell.question for cell in cells}
    found.predictions = [one | {"question": questions.get(one["cell"], "")} for one in played.predictions]
    names = graded(found.chapter) if found.chapter else []
    found.exercises = [_exercise(name, found, played, cells, setting) for name in names]
    if strange := sorted(played.answers.keys() - {*names}):
        found.notes.append(f"Not an exercise of this chapter, and so not graded: {', '.join(strange)}.")
    found.points = sum(one.points for one in found.exercises)
    found.earned = sum(one.earned for one in found.exercises)
    return found


def _first_line(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    line = next((line for line in lines if not line.startswith(("@", "#", "%%"))), lines[0] if lines else "")
    return line if len(line) <= 60 else line[:57] + "..."


def _exercise(name: str, found: Result, played: Played, cells: Sequence[Cell], setting: Setting) -> Graded:
    worth, tried = points(name), played.answers.get(name, [])
    if not tried:
        return Graded(name, worth, 0, False, "not checked", _unchecked(name, found, cells))
    verdicts: list[tuple[dict, Judged]] = []
    for one in reversed(tried):  # the last first: it is mostly the best
        verdict = _judged(name, one, setting)
        verdicts.append((one, verdict))
        if verdict.passed:
            break
    one, verdict = next((pair for pair in verdicts if pair[1].passed), verdicts[0])
    earned = worth if verdict.passed else 0
    timed = None
    if setting.gpu and verdict.share is not None:  # a kernel that passed
        timed = gpu.timed(name, one["nodes"], setting.given, setting.seed, setting.limits, setting.folder / "gpu")
    about = verdict._asdict()
    kept = {key: about[key] for key in ("passed", "mistake", "words", "line", "code", "source", "share", "shipped")}
    return Graded(name, worth, earned, cell=one["cell"], tried=len(tried), timed=timed, **kept)


def _judged(name: str, one: dict, setting: Setting) -> Judged:
    if "nodes" not in one:
        said = str(one.get("refused", "nothing was passed on"))
        mistake = "the shipped answer" if "shipped answer" in said else "not taken over"
        return Judged(False, mistake, f"{mistake}: {said}.")
    return supervise.judged(name, one["nodes"], setting.given, setting.seed, setting.limits)


def _unchecked(name: str, found: Result, cells: Sequence[Cell]) -> str:
    """Why there is no answer."""
    asks = re.compile(rf"""\bcheck\(\s*["']{re.escape(name)}["']""")
    with_check = [cell.number for cell in cells if asks.search(cell.source)]
    stopped = {fault["cell"]: fault["words"] for fault in found.faults}
    if not with_check:
        return f"not checked: no cell calls check({name!r}, ...)."
    if reasons := [
        f"code cell {number} stopped before: {stopped[number]}" for number in with_check if number in stopped
    ]:
        return f"not checked: {reasons[-1]}"
    return f"not checked: code cell {with_check[-1]} has check({name!r}, ...), and it was never called."


def once_for_each_student(results: Sequence[Result]) -> None:
    """Let an exercise that stands in several notebooks of a student count in one of them, that with most points."""
    best: dict[tuple[str, str], tuple[Result, Graded]] = {}
    for found in results:
        for one in found.exercises:
            key = found.student, one.exercise
            if key not in best or one.earned > best[key][1].earned:
                best[key] = found, one
    for found in results:
        for at, one in enumerate(found.exercises):
            counted, _ = best[found.student, one.exercise]
            if counted is not found:
                words = f"counted once, in {counted.notebook}. {one.words}"
                found.exercises[at] = Graded(**(asdict(one) | {"points": 0, "earned": 0, "words": words}))
        found.points = sum(one.points for one in found.exercises)
        found.earned = sum(one.earned for one in found.exercises)


# ----------------------------------------------------------------------------------------------------- all notebooks


def grade_all(found: Sequence[Task], setting: Setting, jobs: int) -> list[Result]:
    """Grade notebooks, each in a process of its own, some at a time."""
    waiting, running, done = list(enumerate(found)), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                at, task = waiting.pop(0)
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    _child(task, setting, setting.folder / f"result {at}")
                running[pid] = at
            pid, _ = os.wait()
            if (at := running.pop(pid, None)) is not None:
                done[at] = _result(found[at], setting.folder / f"result {at}")
    finally:  # if somebody stops the grader, nothing of it goes on
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return [done[at] for at in sorted(done)]


def _result(task: Task, path: Path) -> Result:
    try:
        return Result.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return Result(task.student, task.name, notes=["The grader itself failed on this notebook."])


def _stop(number: int, frame: object) -> typing.NoReturn:
    raise SystemExit(128 + number)


def _child(task: Task, setting: Setting, path: Path) -> typing.NoReturn:
    status = 1
    try:
        path.write_text(json.dumps(asdict(grade(task, setting))), encoding="utf-8")
        status = 0
    except Exception:  # a fault of the grader: whoever mends it needs to see it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def hidden(path: Path) -> tuple[Path, ...]:
    """What a student's process must not read: this workbook, its chapters and tests, and notebooks of others."""
    root = edition.PACKAGE.parent
    own = [edition.PACKAGE]
    if (root / "notebooks" / "source").is_dir():  # a checkout; its virtual environment may lie in it
        own = [one for one in root.iterdir() if not Path(sys.prefix).is_relative_to(one)]
    own += [Path(folder, edition.PACKAGE.name) for folder in sys.path]  # it may be installed, too
    return (*own, *(path.rglob("*.ipynb") if path.is_dir() else path.parent.glob("*.ipynb")))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0 if the notebooks were graded, whatever they earned."""
    limits = Limits()
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.teach.grade",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Grade notebooks that students were given by `make release` and have filled in.\n\n"
        "Each notebook runs in a process of its own, with limits. What it passes to check() is judged afterwards in\n"
        "another process, on inputs that nobody has seen. An exercise counts once, with its best answer. A cell that\n"
        "fails, hangs or ends the process costs its own exercises alone, and the report says why.",
        epilog="fields of the JSON: see pmpp/lab/teach/grade/result.py. Columns of the CSV:\n"
        f"{', '.join(result.COLUMNS)}\n\n"
        "This is no sandbox: it keeps a notebook from passing itself, and not a program from attacking your computer.\n"
        "Grade notebooks of people whom you do not trust in a container without a network.",
    )
    add = parser.add_argument
    add("path", type=Path, metavar="NOTEBOOK|FOLDER", help="a notebook, or a folder with those of a class")
    add(
        "--chapter",
        default="",
        help="the chapter that all of them are; found from name, title and exercises if not said",
    )
    add("--seed", type=int, default=0, help="another number makes other inputs; keep it to yourself (default 0)")
    add("--json", type=Path, metavar="FILE", help="write all that is known as JSON; - writes it to the output")
    add("--csv", type=Path, metavar="FILE", help="write a line for each exercise as CSV; - writes it to the output")
    add("--rubric", type=Path, metavar="FILE", help="write a table for a teacher to fill in, on explanations, "
        "predictions and speed: Markdown, or CSV if it ends in .csv")  # fmt: skip
    add("--totals", type=Path, metavar="FILE", help="write a line for each student, with the points of each chapter, "
        "for a learning platform to import: CSV; - writes it to the output")  # fmt: skip
    add("--feedback", type=Path, metavar="FOLDER", help="write a file for each student to read, STUDENT.md: points, "
        "verdicts and what to look at next")  # fmt: skip
    add("--gpu", action="store_true", help="also measure kernels that pass on this machine's GPU, for the rubric and "
        "the JSON; points do not depend on it")  # fmt: skip
    add("--jobs", type=int, default=1, help="notebooks at a time (default 1)")
    add("--cell", type=float, default=limits.cell, help=f"seconds for a cell (default {limits.cell:g})")
    add("--notebook", type=float, default=limits.notebook, help=f"seconds for a notebook ({limits.notebook:g})")
    add("--judge", type=float, default=limits.judge, help=f"seconds to judge an answer ({limits.judge:g})")
    add("--memory", type=int, default=limits.memory >> 20, help=f"MiB for a process ({limits.memory >> 20})")
    add("--output", type=int, default=limits.output, help=f"bytes that a notebook may print ({limits.output:,})")
    chosen = parser.parse_args(arguments)
    for name in ("cell", "notebook", "judge", "memory", "output", "jobs"):
        if getattr(chosen, name) <= 0:
            parser.error(f"--{name} must be more than 0, was {getattr(chosen, name)}")
    if chosen.chapter and chosen.chapter not in chapters():
        near = difflib.get_close_matches(chosen.chapter, chapters(), 3, 0.2) or chapters()
        parser.error(f"--chapter must be one with exercises, such as {', '.join(near)}; was {chosen.chapter!r}")
    try:
        found = tasks(chosen.path)
    except ValueError as error:
        parser.error(str(error))
    if chosen.gpu and (fault := gpu.fault()):
        parser.error(f"--gpu needs a GPU: {fault}")
    limits = Limits(chosen.cell, chosen.notebook, chosen.judge, chosen.memory << 20, chosen.output)
    signal.signal(signal.SIGTERM, _stop)
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        base = Path(folder).resolve()
        (base / "edition").mkdir()
        setting = Setting(
            base,
            edition.build(base / "edition"),
            (*hidden(chosen.path.resolve()), base),
            edition.given(),
            chosen.seed,
            limits,
            chosen.chapter,
            chosen.gpu,
        )
        results = grade_all(found, setting, chosen.jobs)
    once_for_each_student(results)
    rubric = result.rubric_csv if chosen.rubric and chosen.rubric.suffix == ".csv" else result.rubric_markdown
    texts = {
        chosen.json: lambda: result.as_json(results, chosen.seed),
        chosen.csv: lambda: result.as_csv(results),
        chosen.rubric: lambda: rubric(results),
        chosen.totals: lambda: result.as_totals(results),
    }
    if chosen.feedback is not None:
        chosen.feedback.mkdir(parents=True, exist_ok=True)
        for student, text in result.as_feedback(results).items():
            (chosen.feedback / f"{student}.md").write_text(text, encoding="utf-8")
    if Path("-") not in texts:
        print(result.as_text(results), end="")
    for path, text in texts.items():
        if path == Path("-"):
            print(text(), end="")
        elif path is not None:
            path.write_text(text(), encoding="utf-8")
    return 0
