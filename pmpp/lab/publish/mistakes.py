"""The mistakes that students make, from where the repository keeps them: for the instructor's guide.

- Wrong answers to exercises, each with the mistake that `check` must name, stand in the tests. What to answer is the
  advice of the verdict: that of the exercise, of its traps, or the usual one (`pmpp.lab.teach.diagnosis`).
- Wrong versions of a room's kernels stand there, too, each with the reason for which the tests reject it.
- What a rung leaves to the next one is in its docstring, after ``Leaves:``.

The tests are found as files, and their modules by the names of these. So this works in a clone of the repository, and
not in an installed package.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pmpp.lab.publish.notebooks import NOTEBOOKS
from pmpp.lab.rooms import chapter_of, rooms
from pmpp.lab.teach.diagnosis import ADVICE
from pmpp.runtime.rung import room_name

__all__ = ["Mistake", "Task", "Wrong", "ladders", "tasks", "usual", "wrong_versions"]

ROOT = NOTEBOOKS.parent
LABEL = 72  # characters that the code of a wrong answer may have, to be shown


class Mistake(typing.NamedTuple):
    """A mistake by name, what this exercise advises, and the wrong answers that make it, as short code or in words.

    ``advice`` is "" where the exercise has none of its own: then it is `usual`.
    """

    name: str
    advice: str
    examples: tuple[str, ...]


class Task(typing.NamedTuple):
    """An exercise by name, what it asks for, its mistakes, and the file with wrong answers."""

    name: str
    task: str
    mistakes: tuple[Mistake, ...]
    path: str


class Wrong(typing.NamedTuple):
    """Wrong versions of a room: by reason their names; and the file that has them."""

    room: str
    reasons: dict[str, list[str]]
    path: str


# --------------------------------------------------------------------------------------------- exercises, and answers


def tasks(source: Path) -> list[Task]:
    """The exercises of a chapter, in the order of the chapter. Raises ValueError if one is not there."""
    text = source.read_text(encoding="utf-8")
    found = re.search(r"(?m)^from (pmpp[\w.]*) import (?:.*\W)?exercise\b", text)
    if not found:
        return []
    registry = importlib.import_module(found[1])
    names = dict.fromkeys(re.findall(r"""\bexercise\(["']([\w/]+)["']\)""", text))
    return [_task(registry.exercise(name)) for name in names]


def _task(one: typing.Any) -> Task:
    given = _answers().get(one.name, [])
    by_name: dict[str, list[str]] = {}
    for mistake, label, _ in given:
        by_name.setdefault(mistake, []).append(label)
    mistakes = [Mistake(name, _advice(one, name), tuple(filter(None, labels))) for name, labels in by_name.items()]
    return Task(one.name, one.task, tuple(mistakes), given[0][2] if given else "")


def _advice(one: typing.Any, mistake: str) -> str:
    """What the verdict of an exercise advises for a mistake, if that is not the usual."""
    sentences = [trap.sentence for trap in getattr(one, "traps", ()) if trap.mistake == mistake]
    return "<br>".join(dict.fromkeys(sentences)) or getattr(one, "advice", {}).get(mistake, "")


def usual(mistake: str) -> str:
    """What verdicts advise for a mistake that many exercises share; "" if it depends on what was seen."""
    return ADVICE.get(mistake, "")


@functools.cache
def _answers() -> dict[str, list[tuple[str, str, str]]]:
    """The wrong answers to each exercise: the mistake, a label or "", and the file."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name.startswith("test_exercises"):  # these import pytest, and are only read
            for (exercise, mistake), label in _named_in_tests(path.read_text(encoding="utf-8")):
                found.setdefault(exercise, []).append((mistake, label, path.relative_to(ROOT).as_posix()))
        if re.fullmatch(r"(answers|wrong)(_\w+)?\.py", path.name) and "support" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            module = _module(path)
            given = [(one.exercise, one.mistake, one.kernel) for one in getattr(module, "ANSWERS", ())]
            given += [(exercise, mistake, answer) for exercise, answer, mistake, _ in getattr(module, "WRONG", ())]
            for (exercise, mistake, _), label in zip(given, _labels(path, given), strict=True):
                found.setdefault(exercise, []).append((mistake.replace("|", " or "), label, name))
    return found


def _labels(path: Path, given: list[tuple[str, str, typing.Any]]) -> list[str]:
    """How to call each wrong answer: by its code in the file if that can be told apart, else by its name."""
    text = path.read_text(encoding="utf-8")
    written = list(_written(text, vars(_module(path))))
    if [pair for pair, _ in written] == [(exercise, mistake) for exercise, mistake, _ in given]:
        return [label for _, label in written]
    names = [getattr(getattr(answer, "py_func", answer), "__name__", "<lambda>") for *_, answer in given]
    count = Counter(names)
    return [name if count[name] == 1 and name.isidentifier() else "" for name in names]


def _code(text: str, node: ast.expr) -> str:
    """A piece of source on one line, as it is written there, or the name that it gives to what it makes.

    "" if it is long, or has a function without a name.
    """
    code = " ".join((ast.get_source_segment(text, node) or "").split())
    if named := re.search(r"""\b(?:name=|named\()["'](\w+)["']""", code):
        return named[1]
    code = re.sub(r",? \)", ")", code.replace("( ", "("))
    return code if len(code) <= LABEL and "lambda" not in code else ""


def _written(text: str, names: Mapping[str, typing.Any]) -> Iterator[tuple[tuple[str, str], str]]:
    """The wrong answers of a file in the order of their lines: the exercise with the mistake, and the code.

    They are written as a decorator ``@wrong(exercise, mistake)``, as ``wrong(exercise, mistake)(answer)``, as
    ``WrongAnswer(exercise, answer, mistake)``, or in ``WRONG`` as tuples in that order.
    """

    def pair(exercise: ast.expr, mistake: ast.expr) -> tuple[str, str]:
        said = [names.get(one.id) if isinstance(one, ast.Name) else _value(one) for one in (exercise, mistake)]
        return str(said[0]), str(said[1])

    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef):
            for one in statement.decorator_list:
                if _calls(one, "wrong"):
                    yield pair(*one.args[:2]), statement.name
            continue
        found: list[tuple[ast.expr, ast.expr, ast.expr, ast.expr]] = []
        for node in ast.walk(statement):
            if _calls(node, "WrongAnswer"):
                exercise, answer, mistake, *_ = [*node.args, *(word.value for word in node.keywords)]
                found.append((node, exercise, answer, mistake))
            elif isinstance(node, ast.Call) and _calls(node.func, "wrong"):
                found.append((node, node.func.args[0], node.args[0], node.func.args[1]))
            elif isinstance(node, ast.Tuple) and len(node.elts) == 4 and _value(node.elts[0]).count("/") == 1:
                found.append((node, *node.elts[:3]))
        for _, exercise, answer, mistake in sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset)):
            yield pair(exercise, mistake), _code(text, answer)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == name


def _value(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _named_in_tests(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Wrong answers in a file of tests: decorators and tuples that begin with an exercise and a mistake.

    Or ``WRONG`` is a dictionary: by exercise the name of another one, which has by description an answer and a mistake.
    """
    tree = ast.parse(text)
    assigned = {
        getattr(node.targets[0], "id", ""): node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    if wrong := assigned.get("WRONG"):
        for exercise, name in zip(wrong.keys, wrong.values, strict=True):
            cases = assigned[name.id]
            for words, case in zip(cases.keys, cases.values, strict=True):
                yield (exercise.value, case.elts[1].value), words.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            named, label = node.elts[:2], _code(text, node.elts[2])
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            named, label = getattr(node.decorator_list[0], "args", []), node.name
        else:
            continue
        said = [getattr(one, "value", None) for one in named]
        if len(said) == 2 and all(isinstance(one, str) for one in said) and re.fullmatch(r"\w+/\w+", said[0]):
            yield (said[0], said[1]), label


def _module(path: Path) -> types.ModuleType:
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


# -------------------------------------------------------------------------------------------------------------- rooms


def ladders(stem: str) -> list[types.ModuleType]:
    """The rooms of a chapter."""
    return [room for room in rooms() if Path(chapter_of(room)).stem == stem]


def wrong_versions(stem: str) -> list[Wrong]:
    """The wrong versions of what a chapter teaches."""
    return [wrong for chapter, wrong in _wrong_versions() if chapter == stem]


@functools.cache
def _wrong_versions() -> list[tuple[str, Wrong]]:
    found = []
    for path in sorted((ROOT / "tests" / "kernels").rglob("wrong*.py")):
        rungs = getattr(_module(path), "RUNGS", ())
        if not rungs:
            continue
        beside = path.stem.removeprefix("wrong").removeprefix("_") or "ladder"
        room = importlib.import_module(f"pmpp.kernels.{path.parent.name}.{beside}")
        chapter = re.search(r"notebooks/(\w+)\.ipynb", room.__doc__ or "")
        reasons: dict[str, list[str]] = {}
        for one in rungs:
            reasons.setdefault(one.reason, []).append(one.function.__name__)
        wrong = Wrong(room_name(room), reasons, path.relative_to(ROOT).as_posix())
        found.append((chapter[1] if chapter else "", wrong))
    return found
