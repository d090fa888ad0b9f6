"""Pages for teachers: the syllabi, and the instructor's guide of each chapter, in ``docs/teaching/``.

::

    python -m pmpp.lab.publish.teaching            write them anew (make teaching)
    python -m pmpp.lab.publish.teaching --check    exit with 1 if any is stale, or if the metadata have a fault

Generated are ``syllabus.md``, ``exercises.txt`` and the files of ``guide/``. They are made of what stands elsewhere:
the metadata and the notes beside each chapter and the courses (`pmpp.lab.publish.course`), and the mistakes that the
tests keep (`pmpp.lab.publish.mistakes`). What has not been written is left out. ``README.md`` is written by hand.

``exercises.txt`` has the name of every exercise that there is or was. Names are added to it and never taken away: one
that is listed belongs to an exercise, or leads to one by ``ALIASES`` of `pmpp.lab.teach.exercise`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pmpp.lab.publish import course, mistakes
from pmpp.lab.publish.course import COURSES, Chapter, Course
from pmpp.lab.publish.notebooks import NOTEBOOKS, sources
from pmpp.lab.teach import exercise
from pmpp.runtime.rung import room_name

__all__ = ["guide", "identifiers", "main", "pages", "syllabus"]

FOLDER = COURSES.parent
NAMES = "exercises.txt"
BY = "<!-- written by make teaching: change what it is made of, and not this file -->"
UP = "../../.."  # from a page of the guide to the repository


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _listed(items: Sequence[object]) -> str:
    """
    >>> _listed([4]), _listed([4, 12, 16])
    ('4', '4, 12 and 16')
    """
    words = [str(item) for item in items]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def _hours(minutes: int) -> str:
    """
    >>> _hours(45), _hours(60), _hours(1980)
    ('45 min', '1 h', '33 h')
    >>> _hours(95)
    '1 h 35 min'
    """
    hours, rest = divmod(minutes, 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest))


def _book(chapter: Chapter) -> str:
    """Where the book treats it; that an edition has no counterpart is said."""
    named = [text if text != "none" else "no counterpart" for text in (chapter.fourth, chapter.fifth)]
    return f"PMPP 4e: {named[0]}; 5e: {named[1]}"


# ---------------------------------------------------------------------------------------------------------- syllabus


def syllabus(known: Mapping[int, Chapter], courses: Sequence[Course]) -> str:
    """The courses, week by week or day by day, and all chapters with what they need and teach; in Markdown."""
    total = course.minutes(known, known)
    lines = [
        "# Syllabus",
        BY,
        "Minutes are those of a student at work, exercises included. A part of a course is within its budget, and no "
        "chapter comes before what it needs: tests see to both.",
    ]
    for one in courses:
        lines += _course(one, known)
    lines += [
        "## All chapters",
        f"{len(known)} chapters take {_hours(total)}. In the column *needs* stand the chapters that a chapter builds "
        "on directly; what these need comes before, too.",
        "\n".join(
            [
                _row("Chapter", "Minutes", "Needs", "PMPP 4e", "PMPP 5e", "Guide"),
                "|---|--:|---|---|---|---|",
                *(
                    _row(
                        _chapter(chapter, "../.."),
                        chapter.minutes,
                        _listed(chapter.after) or "nothing",
                        _or_none(chapter.fourth),
                        _or_none(chapter.fifth),
                        f"[guide](guide/{chapter.stem}.md)",
                    )
                    for chapter in known.values()
                ),
            ]
        ),
        "## Objectives",
        "Afterwards students can:",
    ]
    lines += [f"**{_chapter(chapter, '../..')}**\n\n{_bullets(chapter.objectives)}" for chapter in known.values()]
    return "\n\n".join(lines) + "\n"


def _or_none(text: str) -> str:
    return "no counterpart" if text == "none" else text


def _chapter(chapter: Chapter, up: str) -> str:
    return f"[{chapter.number}. {chapter.title}]({up}/notebooks/{chapter.stem}.ipynb)"


def _bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}{';' if number < len(items) else '.'}" for number, item in enumerate(items, 1))


def _course(one: Course, known: Mapping[int, Chapter]) -> Iterator[str]:
    taught = [number for part in one.parts for number in part.chapters]
    yield f"## {one.title}"
    yield f"{one.intro} At most {_hours(one.budget)} a {one.unit}, {_hours(course.minutes(taught, known))} in all."
    rows = [_row(one.unit.capitalize(), "Subject", "Chapters", "Minutes"), "|--:|---|---|--:|"]
    for place, part in enumerate(one.parts, 1):
        names = "<br>".join(f"{_chapter(known[number], '../..')}, {known[number].minutes}" for number in part.chapters)
        rows.append(_row(place, part.title, names, course.minutes(part.chapters, known)))
    yield "\n".join(rows)
    ready = [number for number in known if number not in taught and not course.needs(number, known) - set(taught)]
    if ready:
        yield f"For those who want more: chapters {_listed(ready)} need nothing beyond it."


# ------------------------------------------------------------------------------------------------- instructor's guide


def guide(chapter: Chapter, known: Mapping[int, Chapter], folder: Path = NOTEBOOKS) -> str:
    """The page of a chapter, in Markdown."""
    after = [f"[{number}]({known[number].stem}.md)" for number in chapter.after]
    needed = f"after chapter{'s' * (len(after) > 1)} {_listed(after)}" if after else "needs no other chapter"
    lines = [
        f"# {chapter.number}. {chapter.title}",
        BY,
        f"[The chapter]({UP}/notebooks/{chapter.stem}.ipynb): {chapter.minutes} minutes; {needed}. {_book(chapter)}.",
        f"Afterwards students can:\n\n{_bullets(chapter.objectives)}",
    ]
    if chapter.board:
        lines += ["## On the board", chapter.board]
    if chapter.questions:
        lines.append("## To discuss")
        lines += [f"**{question}**\n\n{answer}" for question, answer in chapter.questions]
    lines += _exercises(folder / "source" / f"{chapter.stem}.py")
    lines += _kernels(chapter.stem)
    return "\n\n".join(lines) + "\n"


def _exercises(source: Path) -> Iterator[str]:
    found = mistakes.tasks(source)
    if not found:
        return
    yield "## Mistakes in the exercises"
    yield (
        "`check` names each of these mistakes, says what it has seen, and advises. Advice that belongs to the exercise "
        "stands beside it. What is usual stands at the end."
    )
    often: dict[str, str] = {}
    for task in found:
        where = f" Wrong answers: [{task.path}]({UP}/{task.path})." if task.path else ""
        yield f"### `{task.name}`"
        yield f"{task.task}{where}"
        advised = any(mistake.advice for mistake in task.mistakes)
        rows = [_row("Mistake", "Made by", *["Advice"] * advised), "|---|---|" + "---|" * advised]
        for mistake in task.mistakes:
            code = ", ".join(map(_code, mistake.examples))
            rows.append(_row(mistake.name, code, *[mistake.advice] * advised))
            if not mistake.advice and mistakes.usual(mistake.name):
                often[mistake.name] = mistakes.usual(mistake.name)
        yield "\n".join(rows)
    if often:
        yield "### The usual advice"
        yield "\n".join([_row("Mistake", "Advice"), "|---|---|", *(_row(*pair) for pair in sorted(often.items()))])


def _code(example: str) -> str:
    """A wrong answer, as code unless it is described.

    >>> _code("half(rows=1)"), _code("no guard at the store")
    ('`half(rows=1)`', 'no guard at the store')
    """
    return example if " " in example and "(" not in example else f"`{example}`"


def _kernels(stem: str) -> Iterator[str]:
    rooms, wrong = mistakes.ladders(stem), mistakes.wrong_versions(stem)
    if rooms:
        yield "## What each rung leaves"
        yield "The fault that the next rung mends. Ask for it before you show the next one."
    for room in rooms:
        rows = [_row(f"`{room_name(room)}`", "Leaves"), "|---|---|"]
        rows += [_row(f"`{rung.name}`", rung.leaves.replace("``", "`") or "nothing more") for rung in room.LADDER]
        yield "\n".join(rows)
    if wrong:
        yield "## Wrong kernels"
        yield "Versions that people write, and what the tests find first in them. For an exam: what is wrong here?"
    for one in wrong:
        rows = [_row(f"`{one.room}`", f"[{one.path}]({UP}/{one.path})"), "|---|---|"]
        rows += [_row(reason, ", ".join(f"`{name}`" for name in names)) for reason, names in one.reasons.items()]
        yield "\n".join(rows)


# -------------------------------------------------------------------------------------------------- names of exercises


def identifiers(listed: Sequence[str], current: Collection[str], aliases: Mapping[str, str]) -> list[str]:
    """All names that exercises have or had, sorted. Raises ValueError for a listed one that leads nowhere.

    >>> identifiers(["scan/old"], ["scan/new"], {"scan/old": "scan/new"})
    ['scan/new', 'scan/old']
    """
    lost = [name for name in listed if name not in current and aliases.get(name) not in current]
    if lost:
        raise ValueError(
            f"no exercise any more: {', '.join(lost)}. Notebooks and grade books have these names: let each lead to "
            "another exercise, by ALIASES in pmpp/lab/teach/exercise.py"
        )
    return sorted({*listed, *current})


# ---------------------------------------------------------------------------------------------------------- the command


def pages(folder: Path = NOTEBOOKS, courses: Path = COURSES) -> dict[str, str]:
    """All generated pages by their path below ``docs/teaching``.

    Raises ValueError with all faults of the metadata, or if an exercise that once had a name is gone.
    """
    known, planned = course.chapters(folder), course.courses(courses)
    wrong = course.faults(known, folder) + [fault for one in planned for fault in course.course_faults(one, known)]
    if wrong:
        raise ValueError("\n".join(wrong))
    path = courses.parent / NAMES
    listed = path.read_text(encoding="utf-8").split() if path.is_file() else []
    current = [task.name for source in sources(folder=folder) for task in mistakes.tasks(source)]
    names = identifiers(listed, current, getattr(exercise, "ALIASES", {}))
    found = {"syllabus.md": syllabus(known, planned), NAMES: "\n".join(names) + "\n"}
    return found | {f"guide/{chapter.stem}.md": guide(chapter, known, folder) for chapter in known.values()}


def stale(made: Mapping[str, str], folder: Path = FOLDER) -> list[str]:
    """The pages that are not as they would be written, or that nothing writes any more."""
    found = [name for name, text in made.items() if not _is(folder / name, text)]
    return found + sorted(f"guide/{path.name}" for path in folder.glob("guide/*") if f"guide/{path.name}" not in made)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.teaching", description="Write the syllabi and the instructor's guide."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if anything is stale")
    chosen = parser.parse_args(arguments)
    try:
        made = pages()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    changed = stale(made, folder)
    if chosen.check:
        if changed:
            print(f"stale: {', '.join(changed)}. Run: make teaching", file=sys.stderr)
        return int(bool(changed))
    for name in changed:
        path = folder / name
        if name in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
    print(f"written: {len(changed)} of {len(made)} pages in {folder}" if changed else "nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
