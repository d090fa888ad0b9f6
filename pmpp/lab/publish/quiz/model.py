"""What a question is, where the templates are found, and how variants of them are drawn."""

from __future__ import annotations

import importlib
import math
import random
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pmpp import simt
from pmpp.lab.chapters import number_of
from pmpp.lab.publish.notebooks import stems
from pmpp.lab.teach.source import source_of

__all__ = ["Choice", "Number", "Template", "bank", "code", "counted", "many", "question", "shown", "templates"]

#: The modules with templates, each about one part of the workbook.
MODULES = ("threads", "memory", "speed", "algorithms", "numbers", "networks", "programs")
TRIES = 200  # draws for a variant that differs from those before it


@dataclass(frozen=True)
class Number:
    """A question whose answer is a number.

    text        paragraphs with an empty line between them; lines that begin with four spaces are code
    answer      an integer is exact, unless ``within`` says otherwise
    unit        what the number counts or measures
    why         how one finds it, with the numbers of this variant
    mistakes    wrong numbers that students give, each with what leads to it
    within      the largest error that counts as right, as a share of the answer
    given       what was drawn, by name, for tests
    """

    text: str
    answer: float
    unit: str
    why: str
    mistakes: Mapping[float, str] = field(default_factory=dict)
    within: float = 0.0
    given: Mapping[str, typing.Any] = field(default_factory=dict)

    def slack(self, number: float) -> float:
        """How far off a number may be and still count as this one. Of what is no integer three digits count."""
        return (self.within if isinstance(self.answer, int) else max(self.within, 0.005)) * abs(number)

    @property
    def wrong(self) -> dict[float, str]:
        """The mistakes that give a number of their own: by chance one may give the right one, or another one's."""
        found: dict[float, str] = {}
        for number, why in self.mistakes.items():
            taken = (self.answer, *found)
            if all(abs(number - other) > self.slack(number) + self.slack(other) + 1e-9 for other in taken):
                found[number] = why
        return found


@dataclass(frozen=True)
class Choice:
    """A question with answers to choose from. ``others`` has the wrong ones, each with what leads to it."""

    text: str
    answer: str
    why: str
    others: Mapping[str, str]
    given: Mapping[str, typing.Any] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, str]:
        """The wrong answers."""
        return {answer: why for answer, why in self.others.items() if answer != self.answer}


Question = Number | Choice


@dataclass(frozen=True)
class Template:
    """Questions of one kind: a function that draws the numbers of one of them.

    name      of the function
    chapter   the stem of the chapter that asks for such a prediction
    title     the first line of the function's docstring
    make      takes a `random.Random`, and returns a `Number` or a `Choice`
    """

    name: str
    chapter: str
    title: str
    make: Callable[[random.Random], Question]

    def variants(self, count: int, seed: int = 0) -> list[Question]:
        """Different questions of this kind: ``count``, or as many as a few hundred draws find.

        They depend on the name and the seed alone. The first ones do not change with ``count``.
        """
        draw = random.Random(f"{seed} {self.name}")
        found: dict[tuple, Question] = {}
        for _ in range(TRIES):
            if len(found) >= count:
                break
            made = self.make(draw)
            # A choice of two is a guess: draw again if mistakes happen to give the right answer.
            if isinstance(made, Number) or len(made.wrong) >= 2:
                found.setdefault((made.text, made.answer, *made.wrong), made)
        return [*found.values()]


_TEMPLATES: dict[str, Template] = {}


def question(chapter: str) -> Callable:
    """Register a function as a template that goes with a chapter. Raises ValueError for a second one of its name."""

    def register(make: Callable[[random.Random], Question]) -> Callable[[random.Random], Question]:
        name = make.__name__
        if name in _TEMPLATES:
            raise ValueError(f"there are two templates with the name {name}")
        _TEMPLATES[name] = Template(name, chapter, (make.__doc__ or "").strip().partition("\n")[0].rstrip("."), make)
        return make

    return register


def templates() -> list[Template]:
    """All templates, by chapter, and in the order in which they are written."""
    for module in MODULES:
        importlib.import_module(f"pmpp.lab.publish.quiz.{module}")
    return sorted(_TEMPLATES.values(), key=lambda template: number_of(template.chapter))


def bank(chapters: Sequence[str] = (), *, variants: int = 5, seed: int = 0) -> dict[Template, list[Question]]:
    """Questions by template, for all chapters or some.

    Args:
        chapters: stems or numbers, as 04_vector_add or 4; all by default.
        variants: how many of each template, at least 1.
        seed: another seed draws other numbers.

    Raises ValueError for a chapter without a template, or a bad number.
    """
    if variants < 1:
        raise ValueError(f"variants must be at least 1, was {variants}")
    found = templates()
    known = list(dict.fromkeys(template.chapter for template in found))
    chapters = stems(chapters, known)
    if unknown := [stem for stem in chapters if stem not in known]:
        raise ValueError(f"no questions for {', '.join(unknown)}; there are some for {', '.join(known)}")
    chosen = [template for template in found if not chapters or template.chapter in chapters]
    return {template: template.variants(variants, seed) for template in chosen}


# ---------------------------------------------------------------------------------------------- for those who write one


def code(kernel: typing.Any) -> str:
    """The source of a kernel as a paragraph of code."""
    ((_, source),) = source_of(kernel)
    return "\n".join(f"    {line}".rstrip() for line in source.rstrip().splitlines())


def counted(kernel: typing.Any, grid: typing.Any, block: typing.Any, *args: typing.Any) -> dict[str, int]:
    """The counters of a launch, by the interpreter."""
    return simt.profile(kernel, grid, block, args).counters


def many(count: int, noun: str) -> str:
    """A count with its noun.

    >>> many(1, "sector"), many(1024, "sector")
    ('1 sector', '1,024 sectors')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shown(number: float) -> str:
    """A number as questions write it, with three digits if it is no integer.

    >>> shown(819840), shown(2 / 3), shown(0.5), shown(709.8)
    ('819,840', '0.667', '0.5', '710')
    """
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    digits = max(3 - math.ceil(math.log10(abs(number))), 0)
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
