"""`python -m tests.corpus`: bugs caught and look-alikes silent, subject by subject."""

from . import SUBJECTS, pairs
from .judge import caught, silent


def main() -> None:
    entries = pairs()
    print(f"{'':48}{'bugs caught':>14}{'look-alikes silent':>22}")
    for subject, title in SUBJECTS.items():
        row([pair for pair in entries if pair.subject == subject], title)
    row(entries, "all")


def row(entries: list, title: str) -> None:
    bugs, fine = sum(map(caught, entries)), sum(map(silent, entries))
    print(f"{title:48}{f'{bugs} / {len(entries)}':>14}{f'{fine} / {len(entries)}':>22}")


if __name__ == "__main__":
    main()
