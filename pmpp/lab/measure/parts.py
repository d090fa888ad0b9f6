"""Parts of a long run, for machines with several GPUs: each part works on its own share, and their records are merged.

A part is asked for as ``--part 2/4``. `share` divides names so that the parts take equally long. Every part computes
the same division, so all must see the same records and the same files.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Part", "run_name", "share"]


@dataclass(frozen=True)
class Part:
    """The part ``number`` of ``count``, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """``"2/4"`` as a part, for argparse. Raises ArgumentTypeError, with what is accepted."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        part = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= part.number <= part.count:
            raise argparse.ArgumentTypeError(f"a part is K/N with K from 1 to N, as 2/4; was {text!r}")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def share(seconds: Mapping[str, float | None], part: Part) -> list[str]:
    """The names of this part, in the given order. ``seconds``: how long each takes; where None, the median is taken.

    The longest goes first, each to the part that has the least so far.

    >>> share({"a": 10, "b": 4, "c": None, "d": 3}, Part(2, 2))
    ['b', 'c', 'd']
    """
    known = [value for value in seconds.values() if value is not None]
    median = statistics.median(known) if known else 1.0
    whole = {name: median if value is None else value for name, value in seconds.items()}
    loads, mine = [0.0] * part.count, set()
    for name in sorted(whole, key=lambda name: (-whole[name], name)):
        least = loads.index(min(loads))
        loads[least] += whole[name]
        if least == part.number - 1:
            mine.add(name)
    return [name for name in seconds if name in mine]


def run_name(run: Mapping) -> str:
    """The name of a run in a record: its date, and its part. Parts that begin in the same second do not collide."""
    return " ".join(filter(None, [run["date"], run.get("part")]))
