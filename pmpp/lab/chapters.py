"""The order of the chapters. Names sorted as text would put chapter 100 between chapters 08 and 12."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["in_order", "number_of"]


def number_of(stem: str) -> int | None:
    """The number that a chapter's name begins with; None if it begins with none.

    >>> number_of("08_warps"), number_of("100_data_parallelism"), number_of("Untitled")
    (8, 100, None)
    """
    number = stem.partition("_")[0]
    return int(number) if number.isdecimal() else None


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Files of chapters by number; then those without one, by name.

    >>> [path.stem for path in in_order(map(Path, ["100_c.py", "try.py", "12_b.py", "08_a.py"]))]
    ['08_a', '12_b', '100_c', 'try']
    """

    def key(path: Path) -> tuple[bool, int, str]:
        number = number_of(path.stem)
        return number is None, number or 0, path.name

    return sorted(paths, key=key)
