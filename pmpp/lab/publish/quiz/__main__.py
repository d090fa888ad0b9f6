"""The command ``python -m pmpp.lab.publish.quiz``; see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.publish.quiz.gift import gift, page
from pmpp.lab.publish.quiz.model import bank

OUT = Path(__file__).parents[4] / "build" / "quiz"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.quiz", description="Write a quiz bank for a learning platform."
    )
    parser.add_argument("chapters", nargs="*", help="chapters, as 4 or 04_vector_add; all by default")
    parser.add_argument("--variants", type=int, default=5, help="of each question, with other numbers; 5 by default")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other numbers")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to write; build/quiz by default")
    chosen = parser.parse_args(arguments)
    try:
        found = bank(chosen.chapters, variants=chosen.variants, seed=chosen.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "pmpp.gift").write_text(gift(found), encoding="utf-8", newline="\n")
    (chosen.out / "pmpp.html").write_text(page(found), encoding="utf-8", newline="\n")
    chapters = len({template.chapter for template in found})
    made = sum(map(len, found.values()))
    print(f"{chosen.out}: questions: {len(found)}, from chapters: {chapters}, with their variants: {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
