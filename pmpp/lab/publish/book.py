"""Which chapter of this workbook goes with which chapter of the book, in both of its editions.

The book is *Programming Massively Parallel Processors* (PMPP), by W. Hwu, D. Kirk and I. El Hajj. The first cell of a
chapter names what it goes with, in one sentence that people read and this module does::

    PMPP 4e: chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5; 5e: chapters 2 and 3, sections 4.1 to 4.7.

An edition that has nothing of the kind is ``none``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["SUBJECTS", "chapters_in", "cited", "table"]

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

_SENTENCE = re.compile(r"PMPP 4e: (.+?); 5e: (.+?)\.(?=[\s*]|$)")
_ITEM = r"(?:(?:chapters?|sections?) )?(\d+)(?:\.\d+)?(?: to (\d+)(?:\.\d+)?)?"
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
    for first, last in re.findall(_ITEM, text):
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def cited(source: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The chapters of the 4th and of the 5th edition that a chapter's source names in its first cell.

    Raises ValueError, with the name of the source, if the sentence is missing, unclear, or names a chapter that the
    edition does not have.
    """
    cell = source.read_text(encoding="utf-8").partition("# %% [markdown]\n")[2].partition("\n# %%")[0]
    text = " ".join(line.removeprefix("#").strip() for line in cell.splitlines())
    sentence = _SENTENCE.search(text)
    if not sentence:
        raise ValueError(f"{source.name} needs a sentence 'PMPP 4e: ...; 5e: ....' in its first cell")
    editions = []
    for place, part in enumerate(sentence.groups(), 1):
        try:
            chapters = chapters_in(part)
        except ValueError as error:
            raise ValueError(f"{source.name}, PMPP {place + 3}e: {error}") from None
        there = {subject[place] for subject in SUBJECTS}
        if unknown := [chapter for chapter in chapters if chapter not in there]:
            raise ValueError(f"{source.name}: PMPP {place + 3}e has no chapter {unknown[0]}")
        editions.append(chapters)
    return editions[0], editions[1]


def table(sources: Iterable[Path]) -> str:
    """In Markdown: the book's subjects, their chapters in both editions, and the chapters here; ``not yet`` if none."""
    known = [(path, *cited(path)) for path in sources]
    lines = ["| Subject | PMPP 4e | PMPP 5e | Chapters here |", "|---|--:|--:|---|"]
    for subject, fourth, fifth in SUBJECTS:
        here = [
            f"[{int(path.stem.partition('_')[0])}](notebooks/{path.stem}.ipynb)"
            for path, in_fourth, in_fifth in known
            if fourth in in_fourth or fifth in in_fifth
        ]
        lines.append(f"| {subject} | {fourth or ''} | {fifth or ''} | {', '.join(here) or 'not yet'} |")
    return "\n".join(lines)
