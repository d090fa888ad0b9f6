"""What a teacher wants to know of the chapters before a course begins, and courses made of them.

Beside each chapter's source, ``notebooks/source/NN_name.py``, stands ``NN_name.md``. It is written by hand. Its head is
TOML between two lines of ``+++``, and then comes Markdown for the instructor's guide::

    +++
    minutes = 90
    after = [0]
    objectives = ["write a kernel and launch it", "say when memory is the bound"]
    +++

    ## On the board

    What to draw.

    ## To discuss

    **A question?**

    Its answer.

``minutes`` is how long a student takes, exercises included. ``after`` has the numbers of the chapters that must come
before; what these need need not be repeated. An objective completes "Afterwards you can". The two sections may be
missing. What goes with which part of the book stands in the chapter itself (`pmpp.lab.publish.book`).

Nothing of this is part of the notebook, so that a change does not ask for the chapter to be executed again.

A course is a list of parts, such as weeks, each with its chapters: ``docs/teaching/courses.toml``.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmpp.lab.publish import book
from pmpp.lab.publish.notebooks import NOTEBOOKS, sources

__all__ = ["COURSES", "Chapter", "Course", "Part", "chapters", "courses", "estimate", "faults", "needs", "read"]

COURSES = NOTEBOOKS.parent / "docs" / "teaching" / "courses.toml"
KEYS = {"minutes": int, "after": list, "objectives": list}
SECTIONS = ("On the board", "To discuss")
QUESTIONS = 2  # for each chapter, if there are any


@dataclass(frozen=True)
class Chapter:
    """A chapter, as a teacher sees it.

    number, stem, title   7, "07_name", "Name"
    minutes               with the exercises
    after                 numbers of the chapters that must come before it
    objectives            each completes "Afterwards you can"
    fourth, fifth         what it goes with in PMPP, in the words of its first cell; "none" if there is nothing
    board                 what to draw, in Markdown; "" if nobody has written it
    questions             pairs of a question and its answer, in Markdown
    """

    number: int
    stem: str
    title: str
    minutes: int
    after: tuple[int, ...]
    objectives: tuple[str, ...]
    fourth: str
    fifth: str
    board: str = ""
    questions: tuple[tuple[str, str], ...] = ()


class Part(typing.NamedTuple):
    """A week or a day: its title, and the numbers of its chapters in order."""

    title: str
    chapters: tuple[int, ...]


@dataclass(frozen=True)
class Course:
    """Parts of equal length. ``unit`` is what a part is called, and ``budget`` the most minutes that one may take."""

    title: str
    intro: str
    unit: str
    budget: int
    parts: tuple[Part, ...]


def read(source: Path) -> Chapter:
    """What stands beside a chapter's source. Raises ValueError, with the name of the file, for anything unclear."""
    path = source.with_suffix(".md")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing beside {source.name}")
    _, head, body = _split(path)
    try:
        found = tomllib.loads(head)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if found.keys() != KEYS.keys():
        raise ValueError(f"{path.name} must have {', '.join(KEYS)}, has {', '.join(found) or 'nothing'}")
    for key, kind in KEYS.items():
        if not isinstance(found[key], kind):
            raise ValueError(f"{path.name}: {key} must be {kind.__name__}, was {found[key]!r}")
    title = re.search(r"(?m)^# # \d+\. (.+)$", source.read_text(encoding="utf-8"))
    if not title:
        raise ValueError(f"{source.name} has no title '# 7. Name'")
    board, questions = _notes(path.name, body)
    fourth, fifth = book.sentence(source)
    return Chapter(
        int(source.stem.partition("_")[0]),
        source.stem,
        title[1],
        found["minutes"],
        tuple(found["after"]),
        tuple(found["objectives"]),
        fourth,
        fifth,
        board,
        questions,
    )


def _split(path: Path) -> tuple[str, str, str]:
    parts = re.split(r"(?m)^\+\+\+\n", path.read_text(encoding="utf-8"), maxsplit=2)
    if len(parts) != 3 or parts[0].strip():
        raise ValueError(f"{path.name} must begin with a head between two lines of +++")
    return parts[0], parts[1], parts[2]


def _notes(name: str, body: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What to draw, and the questions with their answers."""
    before, *parts = re.split(r"(?m)^## (.+)\n", body)
    found = dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
    if before.strip() or list(found) not in ([], list(SECTIONS)) or not all(found.values()):
        raise ValueError(f"{name} must have the sections {' and '.join(SECTIONS)}, in this order, or neither")
    if not found:
        return "", ()
    begin, *asked = re.split(r"(?m)^\*\*(.+\?)\*\*\n", found[SECTIONS[1]])
    questions = tuple((question, answer.strip()) for question, answer in zip(asked[::2], asked[1::2], strict=True))
    if begin.strip() or len(questions) != QUESTIONS or not all(answer for _, answer in questions):
        raise ValueError(f"{name} must have {QUESTIONS} questions '**Why?**', each with its answer below it")
    return found[SECTIONS[0]], questions


def chapters(folder: Path = NOTEBOOKS) -> dict[int, Chapter]:
    """All chapters by number, in reading order. Raises ValueError as `read` does."""
    return {chapter.number: chapter for chapter in map(read, sources(folder=folder))}


def needs(number: int, known: Mapping[int, Chapter]) -> set[int]:
    """All chapters that must come before one: its own prerequisites, and theirs. Raises ValueError for a circle."""
    found: set[int] = set()

    def visit(one: int, path: tuple[int, ...]) -> None:
        if one in path:
            raise ValueError(f"chapter {one} needs itself, by way of {', '.join(map(str, path))}")
        for other in known[one].after:
            if other in known:
                visit(other, (*path, one))
                found.add(other)

    visit(number, ())
    return found


def estimate(source: Path) -> float:
    """A rough guess of a chapter's minutes, to find one that cannot be right.

    A hundred words of prose a minute, with the code beside it and the waiting for cells; a minute and a half to think
    about a prediction; and eight for an exercise. The chapters whose minutes were given by hand lie within a factor of
    1.5 of it.
    """
    text = source.read_text(encoding="utf-8")
    cells = re.split(r"(?m)^# %%", text)[1:]
    words = sum(word != "#" for cell in cells if cell.startswith(" [markdown]") for word in cell.split())
    tasks = {*re.findall(r"""\bexercise\(["']([\w/]+)""", text), *re.findall(r"\b(check_\w+)\(", text)}
    return words / 100 + 1.5 * len(re.findall(r"(?m)^predict\(", text)) + 8 * len(tasks)


def faults(known: Mapping[int, Chapter], folder: Path = NOTEBOOKS) -> list[str]:
    """What is wrong with the chapters' metadata; empty if nothing is."""
    found = []
    for chapter in known.values():
        name = f"{chapter.stem}.md"
        for other in chapter.after:
            if other not in known:
                found.append(f"{name}: there is no chapter {other}")
            elif other >= chapter.number:
                found.append(f"{name}: chapter {other} does not come before chapter {chapter.number}")
        if len(set(chapter.after)) != len(chapter.after):
            found.append(f"{name}: after names a chapter twice")
        if not 3 <= len(chapter.objectives) <= 5:
            found.append(f"{name}: three to five objectives, has {len(chapter.objectives)}")
        for one in chapter.objectives:
            if not isinstance(one, str) or not re.fullmatch(r"[a-z].*[^.\s]", one):
                found.append(f"{name}: an objective completes 'Afterwards you can', without a full stop: {one!r}")
        guess = estimate(folder / "source" / f"{chapter.stem}.py")
        if chapter.minutes % 5 or not guess / 1.5 <= chapter.minutes <= guess * 1.5:
            found.append(f"{name}: {chapter.minutes} minutes, where about {guess:.0f} are expected, in steps of 5")
    return found


def courses(path: Path = COURSES) -> list[Course]:
    """The courses that are written down. Raises ValueError for anything unclear."""
    found = []
    for one in tomllib.loads(path.read_text(encoding="utf-8"))["course"]:
        parts = tuple(Part(part["title"], tuple(part["chapters"])) for part in one["part"])
        found.append(Course(one["title"], one["intro"], one["unit"], one["budget"], parts))
    return found


def minutes(numbers: Iterable[int], known: Mapping[int, Chapter]) -> int:
    """How long some chapters take together."""
    return sum(known[number].minutes for number in numbers)


def course_faults(course: Course, known: Mapping[int, Chapter]) -> list[str]:
    """What is wrong with a course: an unknown chapter, one that comes twice or too early, a part that is too long."""
    found: list[str] = []
    met: list[int] = []
    for place, part in enumerate(course.parts, 1):
        where = f"{course.title}, {course.unit} {place}"
        for number in part.chapters:
            if number not in known:
                found.append(f"{where}: there is no chapter {number}")
                continue
            if number in met:
                found.append(f"{where}: chapter {number} comes twice")
            if early := sorted(needs(number, known) - set(met)):
                found.append(f"{where}: chapter {number} needs chapters {_listed(early)}, which have not come")
            met.append(number)
        if not found and (length := minutes(part.chapters, known)) > course.budget:
            found.append(f"{where}: {length} minutes, and at most {course.budget} are meant")
    return found


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
