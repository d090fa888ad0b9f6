"""What grading found, and how it is written: text, JSON, CSV, totals, a rubric, and a file for each student to read."""

from __future__ import annotations

import csv
import io
import json
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from pmpp.lab.chapters import number_of
from pmpp.lab.teach.points import graded, named, points

__all__ = [
    "COLUMNS",
    "Graded",
    "Result",
    "as_csv",
    "as_feedback",
    "as_json",
    "as_text",
    "as_totals",
    "rubric_csv",
    "rubric_markdown",
]

OPEN = ("not checked", "not started", "wrong result", "too slow")  # mistakes that do not say what to do
CLOSE = 2 / 3  # of the shipped answer's share of the roof: beyond that there is nothing to look for
FORMAT = 2  # of the JSON; another number says that fields have changed


@dataclass(frozen=True)
class Graded:
    """One exercise of one notebook.

    exercise  its name
    points    what it is worth
    earned    all of that, or 0
    passed    whether an answer passed
    mistake   its name as `check` gives it; "not checked" if no answer was passed to `check`; "" if one passed
    words     the verdict in words
    cell      the cell of code with the answer, counted from 1, or None
    line      the line of that cell that the verdict names, or None
    code      that line
    tried     how many different answers were passed to `check`, of which the last ten count
    source    the answer that was judged
    share     the share of the roof that a kernel reaches by its counters (`pmpp.lab.teach.grade.roof`), or None
    shipped   that of the shipped answer, or None
    timed     None; or with --gpu what `pmpp.lab.teach.grade.gpu.timed` returns of an answer that passed
    """

    exercise: str
    points: int
    earned: int
    passed: bool
    mistake: str
    words: str
    cell: int | None = None
    line: int | None = None
    code: str = ""
    tried: int = 0
    source: str = ""
    share: float | None = None
    shipped: float | None = None
    timed: dict | None = None


@dataclass
class Result:
    """One notebook.

    student      the folder that it lies in, or its name without ending
    notebook     its path inside the folder that was graded
    chapter      the chapter that it is taken for, or ""
    points       what its exercises are worth together
    earned       what it has earned
    exercises    a `Graded` for each of the chapter's exercises, in the order of the chapter
    predictions  a dict for each call of `predict`: its cell, the question, or "", whether the guess was filled in, the
                 guess, whether it was right (None: nobody can say), and what `predict` said of it
    faults       a dict for each cell that stopped: its number (None: the whole notebook), its first line, what happened
    notes        sentences on what else a teacher should know
    """

    student: str
    notebook: str
    chapter: str = ""
    points: int = 0
    earned: int = 0
    exercises: list[Graded] = field(default_factory=list)
    predictions: list[dict] = field(default_factory=list)
    faults: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, found: dict) -> Result:
        """A result from what `dataclasses.asdict` made of it."""
        return cls(**{**found, "exercises": [Graded(**one) for one in found["exercises"]]})


COLUMNS = (
    "student", "notebook", "chapter", "exercise", "points", "earned", "passed", "mistake", "cell", "line", "tried",
    "share", "shipped", "words",
)  # fmt: skip


def as_json(results: Sequence[Result], seed: int) -> str:
    """All that is known: ``{"format": 2, "seed": seed, "notebooks": [a `Result`, ...]}``."""
    return json.dumps({"format": FORMAT, "seed": seed, "notebooks": [asdict(one) for one in results]}, indent=1) + "\n"


def as_csv(results: Sequence[Result]) -> str:
    """A line for each exercise of each notebook, with `COLUMNS`.

    A notebook without exercises, such as one that cannot be read, has one line, whose words say why.
    """
    rows: list[dict] = []
    for result in results:
        about = {"student": result.student, "notebook": result.notebook, "chapter": result.chapter}
        rows += [
            about | {key: value for key, value in asdict(one).items() if key in COLUMNS} for one in result.exercises
        ]
        if not result.exercises:
            rows.append(about | {"points": 0, "earned": 0, "words": " ".join(result.notes)})
    return _csv(COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Sequence[dict]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _safe(value: typing.Any) -> typing.Any:
    """A student's words must not become a formula in a spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value


def as_text(results: Sequence[Result]) -> str:
    """For a teacher to read: a paragraph for each notebook, and at the end a line for each."""
    parts = []
    for result in results:
        lines = [f"{result.notebook}: {result.earned} of {result.points} points ({result.chapter or 'no chapter'})"]
        for one in result.exercises:
            where = f", code cell {one.cell}" if one.cell else ""
            lines.append(f"  {one.exercise}: {one.earned} of {one.points}{where}. {one.words}")
            if one.line and one.code:
                lines.append(f"      {one.line} | {one.code}")
        if result.predictions:
            filled = [one for one in result.predictions if one["filled"]]
            right = sum(one["right"] is True for one in filled)
            lines.append(f"  predictions: {len(filled)} of {len(result.predictions)} filled in, {right} right")
        for fault in result.faults:
            where = f"code cell {fault['cell']} ({fault['code']})" if fault["cell"] else "the notebook"
            lines.append(f"  {where}: {fault['words']}")
        lines += [f"  {note}" for note in result.notes]
        parts.append("\n".join(lines))
    width = max((len(result.notebook) for result in results), default=0)
    parts.append("\n".join(f"{one.notebook:{width}}  {one.earned:4} of {one.points:4} points" for one in results))
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------- totals, and for students


def as_totals(results: Sequence[Result]) -> str:
    """A line for each student, for a learning platform to import: CSV.

    The columns are "student", one for each chapter, "total", and "of", the points of all these chapters. Where a
    student has handed in no notebook of a chapter, its place is empty, and counts 0 in the total.
    """
    chapters = {one.chapter: 0 for one in results if one.chapter}
    students: dict[str, dict[str, int]] = {one.student: {} for one in results}
    for one in results:
        if one.chapter:
            earned = students[one.student]
            earned[one.chapter] = earned.get(one.chapter, 0) + one.earned
    for chapter in chapters:
        chapters[chapter] = sum(points(name) for name in graded(chapter))
    rows = [
        {"student": student, **earned, "total": sum(earned.values()), "of": sum(chapters.values())}
        for student, earned in students.items()
    ]
    return _csv(("student", *sorted(chapters, key=number_of), "total", "of"), rows)


def as_feedback(results: Sequence[Result]) -> dict[str, str]:
    """For each student what they want to read, as Markdown: points, verdicts, and what to look at next."""
    students: dict[str, list[Result]] = {}
    for one in results:
        students.setdefault(one.student, []).append(one)
    return {student: _feedback(student, own) for student, own in students.items()}


def _feedback(student: str, results: Sequence[Result]) -> str:
    parts = [f"# {student}: {sum(one.earned for one in results)} of {sum(one.points for one in results)} points"]
    for result in results:
        parts.append(f"## {result.chapter or result.notebook}: {result.earned} of {result.points} points")
        for one in result.exercises:
            parts += [f"### {one.exercise}: {one.earned} of {one.points} points", _one_line(one.words)]
            if one.line and one.code:
                parts.append(f"Code cell {one.cell}, line {one.line}:\n\n    {one.code}")
            if following := _next(one):
                parts.append(f"*Look at next:* {following}")
        if result.predictions:
            filled = sum(one["filled"] for one in result.predictions)
            lines = [f"### Predictions: {filled} of {len(result.predictions)} filled in", ""]
            for one in result.predictions:
                said = f"{one['guess']}. {one['headline']}" if one["filled"] else "not filled in"
                lines.append(f"- {_asked(one)} {_one_line(said)}")
            parts.append("\n".join(lines))
        stopped = []
        for fault in result.faults:
            where = f"Code cell {fault['cell']} stopped" if fault["cell"] else "The notebook"
            stopped.append(f"- {where}: {_one_line(fault['words'])}")
        if stopped or result.notes:
            parts.append("\n".join(["### What else happened", "", *stopped, *(f"- {note}" for note in result.notes)]))
    return "\n\n".join(parts) + "\n"


def _next(one: Graded) -> str:
    """A hint where the verdict has no advice of its own, or how far a right kernel is from the roof."""
    if not one.passed:
        return f"A hint: {named(one.exercise).hints[0]}" if one.mistake in OPEN else ""
    if one.share is None or one.shipped is None or one.share >= CLOSE * one.shipped:
        return ""
    return (
        f"By its counters this kernel reaches {one.share:.0%} of the roof, and {one.shipped:.0%} can be reached. "
        "`simt.profile` counts what it moves."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------------------ a rubric

LEVELS = {
    "explanation": (
        "What a student writes about an answer.",
        "0 nothing, or not about this answer",
        "1 says what the code does",
        "2 says why it is right for every size",
        "3 also says what bounds its time, with a number",
    ),
    "prediction": (
        "A guess that was filled in. Right or wrong, it counts: to commit oneself before the reveal is the point. "
        "A notebook cannot tell when it was written.",
        "0 none filled in",
        "1 some filled in, or all of them plainly copied from the reveal",
        "2 all filled in",
        "3 all filled in, and what was wrong is explained",
    ),
    "speed": (
        "The share of the roof that the kernel reaches by its counters, beside that of the shipped answer. 1 is the "
        "least that any kernel could ask of the GPU. Times, where there are some, are of the exercise's small inputs: "
        "compare them with that of an empty kernel, below which none can be.",
        "0 no kernel that passes",
        "1 less than half of the shipped answer's share",
        "2 about the shipped answer's share",
        "3 more than that",
    ),
}
RUBRIC = ("student", "notebook", "aspect", "of", "seen", "level")


def _rubric(result: Result) -> list[dict]:
    rows = [
        {"aspect": "explanation", "of": one.exercise, "seen": "passed" if one.passed else one.mistake}
        for one in result.exercises
    ]
    for one in result.predictions:
        seen = f"{one['guess']}: {one['headline']}" if one["filled"] else "not filled in"
        rows.append({"aspect": "prediction", "of": _asked(one), "seen": seen})
    for one in result.exercises:
        if one.share is not None:
            seen = f"{one.share:.0%}, shipped {one.shipped:.0%}"
            rows.append({"aspect": "speed", "of": one.exercise, "seen": "; ".join([seen, *_timed(one)])})
        elif not one.passed:
            rows.append({"aspect": "speed", "of": one.exercise, "seen": "no kernel that passes"})
    return [{"student": result.student, "notebook": result.notebook, "level": ""} | row for row in rows]


def _timed(one: Graded) -> list[str]:
    """What was measured on a GPU, in words, if it was tried."""
    if one.timed is None:
        return []
    if "failed" in one.timed:
        return [f"not measured: {one.timed['failed']}"]
    own, shipped, empty = (f"{one.timed[name] * 1e6:.2f} us" for name in ("own", "shipped", "empty"))
    return [f"on an {one.timed['gpu']} {own}, shipped {shipped}, an empty kernel {empty}"]


def _asked(prediction: dict) -> str:
    """The name of a prediction: its question. A student may have deleted that."""
    return prediction["question"] or f"code cell {prediction['cell']}"


def rubric_csv(results: Sequence[Result]) -> str:
    """A line for each thing that a teacher reads, with `RUBRIC`; the level is to be filled in."""
    return _csv(RUBRIC, [row for result in results for row in _rubric(result)])


def rubric_markdown(results: Sequence[Result]) -> str:
    """The levels, and for each notebook a table whose last column is to be filled in."""
    lines = ["# A rubric for what is not graded by a program", ""]
    for aspect, (about, *levels) in LEVELS.items():
        lines += [f"**{aspect.capitalize()}.** {about}", "", *(f"- {level}" for level in levels), ""]
    for result in results:
        lines += [f"## {result.student}: {result.notebook}", "", "| aspect | of | seen | level |", "|---|---|---|---|"]
        for row in _rubric(result):
            cells = (
                str(row[name]).replace("|", "\\|").replace("\n", " ") for name in ("aspect", "of", "seen", "level")
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
