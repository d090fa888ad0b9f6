"""Which chapter of this workbook goes with which chapter of the book, in both of its editions.

The book is *Programming Massively Parallel Processors* (PMPP), by W. Hwu, D. Kirk and I. El Hajj. The first cell of a
chapter names what it goes with, in one sentence that people read and this module does::

    PMPP 4e: chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5; 5e: chapters 2 and 3, sections 4.1 to 4.7.

An edition that has nothing of the kind is ``none``. A chapter or a section that the edition does not have is an error.
`SECTIONS` says how many sections each chapter of the book has, by its printed contents. So a section can be checked to
be there; whether it treats what is claimed is for people to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["OUTSIDE", "SECTIONS", "SUBJECTS", "chapters_in", "cited", "missing", "sentence", "table"]

#: The book's subjects, each with its chapter in the 4th and in the 5th edition.
SUBJECTS: tuple[tuple[str, int | None, int | None], ...] = (
    ("Introduction", 1, 1),
    ("Data parallelism", 2, 2),
    ("Grids and data of several dimensions", 3, 3),
    ("Architecture and scheduling", 4, 4),
    ("Memory and locality", 5, 5),
    ("Performance", 6, 6),
    ("Convolution", 7, 7),
    ("Stencil", 8, 8),
    ("Histogram", 9, 9),
    ("Reduction", 10, 10),
    ("Scan", 11, 11),
    ("Filter", None, 12),
    ("Merge", 12, 13),
    ("Sorting", 13, 14),
    ("Advanced matrix multiplication", None, 15),
    ("Dynamic programming and wavefronts", None, 16),
    ("Sparse matrices", 14, 17),
    ("Graphs", 15, 18),
    ("Convolutional neural networks", 16, 19),
    ("Large language models", None, 20),
    ("Magnetic resonance imaging", 17, None),
    ("Electrostatic potential map", 18, 21),
    ("Selecting algorithms", 19, 22),
    ("Several GPUs", 20, 23),
    ("Dynamic parallelism", 21, None),
    ("Advanced practices", 22, None),
    ("Conclusion", 23, 24),
)

#: The subjects that no chapter here will treat, and why.
OUTSIDE: dict[str, str] = {
    "Dynamic parallelism": "none: a kernel of Numba cannot launch a kernel",
    "Conclusion": "none: it has no kernels",
}

#: By edition, the number of numbered sections of each chapter, from chapter 1 on. Summaries count, and in the 5th
#: edition exercises do: there they have a number.
SECTIONS: dict[str, tuple[int, ...]] = {
    "4e": (7, 8, 5, 9, 7, 6, 6, 6, 7, 9, 8, 9, 9, 7, 8, 6, 4, 6, 5, 8, 6, 5, 2),
    "5e": (7, 9, 5, 10, 8, 11, 8, 8, 8, 12, 12, 10, 10, 11, 11, 10, 9, 10, 6, 9, 7, 6, 7, 2),
}

_SENTENCE = re.compile(r"PMPP 4e: (.+?); 5e: (.+?)\.(?=[\s*]|$)")
_ITEM = r"(?:(?:chapters?|sections?) )?(\d+)(?:\.(\d+))?(?: to (\d+)(?:\.(\d+))?)?"
_ITEMS = re.compile(rf"{_ITEM}(?:(?:, | and ){_ITEM})*")


def chapters_in(text: str) -> tuple[int, ...]:
    """The chapters that a list of chapters and sections names, in order, each once.

    >>> chapters_in("chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5")
    (2, 3, 4, 6, 20)
    >>> chapters_in("none")
    ()

    Raises ValueError for anything else.
    """
    if text == "none":
        return ()
    if not _ITEMS.fullmatch(text):
        raise ValueError(f"expected such as 'chapter 2, sections 4.1 to 4.7 and 6.1', or 'none', was {text!r}")
    found: list[int] = []
    for first, _, last, _ in re.findall(_ITEM, text):
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def missing(text: str, edition: str) -> str:
    """The first chapter or section of a list that the edition, "4e" or "5e", does not have; ``""`` if it has all.

    >>> missing("chapter 24", "4e"), missing("sections 4.1 to 4.10", "4e"), missing("sections 4.1 to 4.10", "5e")
    ('chapter 24', 'section 4.10', '')
    """
    extents = SECTIONS[edition]
    for first, of_first, last, of_last in re.findall(_ITEM, text):
        for chapter, section in ((first, of_first), (last, of_last)):
            if chapter and not 1 <= int(chapter) <= len(extents):
                return f"chapter {chapter}"
            if section and not 1 <= int(section) <= extents[int(chapter) - 1]:
                return f"section {chapter}.{section}"
    return ""


def sentence(source: Path) -> tuple[str, str]:
    """What a chapter's source names of the 4th and of the 5th edition in its first cell, in the words of its sentence.

    Raises ValueError, with the name of the source, if the sentence is missing.
    """
    cell = source.read_text(encoding="utf-8").partition("# %% [markdown]\n")[2].partition("\n# %%")[0]
    text = " ".join(line.removeprefix("#").strip() for line in cell.splitlines())
    found = _SENTENCE.search(text)
    if not found:
        raise ValueError(f"{source.name} needs a sentence 'PMPP 4e: ...; 5e: ....' in its first cell")
    return found[1], found[2]


def cited(source: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The chapters of the 4th and of the 5th edition that a chapter's source names in its first cell.

    Raises ValueError, with the name of the source, if the sentence is missing, unclear, or names a chapter or a section
    that the edition does not have.
    """
    editions = []
    for edition, part in zip(SECTIONS, sentence(source), strict=True):
        try:
            chapters = chapters_in(part)
        except ValueError as error:
            raise ValueError(f"{source.name}, PMPP {edition}: {error}") from None
        if unknown := missing(part, edition):
            raise ValueError(f"{source.name}: PMPP {edition} has no {unknown}")
        editions.append(chapters)
    return editions[0], editions[1]


def table(sources: Iterable[Path]) -> str:
    """In Markdown: the book's subjects, their chapters in both editions, and the chapters here or why there is none."""
    known = [(path, *cited(path)) for path in sources]
    lines = ["| Subject | PMPP 4e | PMPP 5e | Chapters here |", "|---|--:|--:|---|"]
    for subject, fourth, fifth in SUBJECTS:
        here = [
            f"[{int(path.stem.partition('_')[0])}](notebooks/{path.stem}.ipynb)"
            for path, in_fourth, in_fifth in known
            if fourth in in_fourth or fifth in in_fifth
        ]
        lines.append(
            f"| {subject} | {fourth or ''} | {fifth or ''} | {', '.join(here) or OUTSIDE.get(subject, 'not yet')} |"
        )
    return "\n".join(lines)
