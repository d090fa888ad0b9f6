"""A new room: the skeleton of all its files, and what in them is still empty.

::

    make room NAME=histogram             writes the files; the chapter gets a number after the last one
    make room NAME=histogram NUMBER=38   the chapter gets this one

    python -m pmpp.lab.publish.skeleton histogram --number 38     the same without make
    python -m pmpp.lab.publish.skeleton histogram --empty         what is still empty

The files come from one template, ``room.txt`` beside this module. It marks each slot with EMPTY and a colon, and
tests/contract/ names the slots that are left. Nothing is overwritten.
"""

from __future__ import annotations

import argparse
import keyword
import re
import string
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

from pmpp.lab.chapters import in_order, number_of

__all__ = ["Slot", "before", "chapters", "files", "main", "next_number", "slots", "write"]

ROOT = Path(__file__).parents[3]
TEMPLATE = Path(__file__).with_name("room.txt")
LAST = 999  # the largest number of a chapter
GAP = 4  # between the numbers of chapters, so that one fits in between later
MARK = "EMPTY: "  # what a slot begins with
PLACES = ("pmpp/kernels", "tests/kernels", "notebooks/source")


class Slot(typing.NamedTuple):
    """A place that a room's author has still to fill: the file below the repository, the line, and what is missing."""

    path: str
    line: int
    missing: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.missing}"


def chapters(root: Path = ROOT) -> dict[int, str]:
    """The chapters by number: ``{30: "30_reduction"}``, in reading order."""
    found = in_order((root / "notebooks/source").glob("*.py"))
    return {number: path.stem for path in found if (number := number_of(path.stem)) is not None}


def next_number(root: Path = ROOT) -> int:
    """A number after the last chapter, with a gap."""
    return max(chapters(root), default=0) + GAP


def files(name: str, number: int, root: Path = ROOT) -> dict[str, str]:
    """The skeleton of a room: the text of each file by its path in the repository.

    Args:
        name: the room's, and its subject's: lower case, digits and underscores, such as ``"histogram"``.
        number: the chapter's, 0 to 999; no other chapter has it.

    Raises ValueError that names the argument at fault.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ValueError(f"name must be lower case, with digits and single underscores inside, was {name!r}")
    taken = chapters(root)
    if not 0 <= number <= LAST or number in taken:
        listed = ", ".join(map(str, taken))
        raise ValueError(f"number must be from 0 to {LAST} and free, was {number}; taken are {listed}")
    following = [stem for other, stem in taken.items() if other > number]
    after = f"{_leads_to(following[0])}." if following else "This is the last chapter."
    values = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "number": f"{number:02}",
        "plain": str(number),
        "after": after,
    }
    _, *parts = re.split(r"^=== (.+)\n", TEMPLATE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    made = {}
    for path, text in zip(parts[::2], parts[1::2], strict=True):
        filled = string.Template(text).substitute(values).strip("\n")
        made[string.Template(path).substitute(values)] = f"{filled}\n" if filled else ""
    return made


def write(name: str, number: int | None = None, root: Path = ROOT) -> list[Path]:
    """Write the skeleton of a room, all files or none, and return them.

    Args: as in `files`; ``number`` None takes `next_number`.

    Raises ValueError that names the argument at fault, and FileExistsError if a file or its subject is there already.
    """
    made = files(name, next_number(root) if number is None else number, root)
    there = [path for path in made if (root / path).exists()]
    there += [folder for folder in (f"pmpp/kernels/{name}", f"tests/kernels/{name}") if (root / folder).exists()]
    if there:
        raise FileExistsError(f"name must be new, was {name!r}: there is {', '.join(sorted(there))}")
    for path, text in made.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return [root / path for path in made]


def _leads_to(stem: str) -> str:
    """What the last cell of a chapter says of the one after it: tests/contract/test_chapters.py looks for it."""
    return f"Go on with [chapter {number_of(stem)}]({stem}.ipynb)"


def before(stem: str, root: Path = ROOT) -> str:
    """Which line of the chapter before ``stem`` must change, and to what; empty for the first chapter."""
    earlier = [other for number, other in chapters(root).items() if number < number_of(stem)]
    if not earlier:
        return ""
    path = root / "notebooks/source" / f"{earlier[-1]}.py"
    lines = path.read_text(encoding="utf-8").splitlines()
    at = max((at for at, line in enumerate(lines, 1) if "Go on with" in line), default=len(lines))
    return f"{path.relative_to(root).as_posix()}:{at}: write here {_leads_to(stem)!r}, in the last cell."


def slots(name: str = "", root: Path = ROOT) -> list[Slot]:
    """What is still empty in the files of a room, or of all of them: what their folder or chapter is named for."""
    found = []
    for place in PLACES:
        for path in sorted(path for path in (root / place).rglob("*") if path.suffix in (".py", ".md")):
            inside = path.relative_to(root / place)
            own = re.sub(r"^\d+_", "", inside.parts[0].partition(".")[0])
            if name in ("", own):
                lines = path.read_text(encoding="utf-8").splitlines()
                named = path.relative_to(root).as_posix()
                found += [Slot(named, at, _missing(line)) for at, line in enumerate(lines, 1) if MARK in line]
    return found


def _missing(line: str) -> str:
    """What a line with slots says of them: the words after each mark, without what the code puts around them."""
    said = [re.sub(r'"[",)]*$', "", part.strip()).strip(" .*#") for part in line.split(MARK)[1:]]
    return "; ".join(filter(None, said)) or line.strip()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.skeleton", description="Write the skeleton of a new room."
    )
    parser.add_argument("name", nargs="?", default="", help="the room's name, such as histogram")
    parser.add_argument("--number", type=int, help="the chapter's number; by default one after the last")
    parser.add_argument("--empty", action="store_true", help="write nothing; print what is still empty")
    chosen = parser.parse_args(arguments)
    if chosen.empty:
        left = slots(chosen.name, root)
        print("\n".join(map(str, left)) or f"nothing of {chosen.name} is empty")
        return int(bool(left))
    try:
        written = write(chosen.name, chosen.number, root)
    except (ValueError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(path.relative_to(root).as_posix())
    print(before(written[-1].stem, root))
    print(f"Fill what is marked EMPTY: {len(slots(chosen.name, root))} slots. CONTRIBUTING.md says how.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
