"""The chapters for a class: without answers for students (a release), and the whole of them for the teacher.

::

    make release      chapters without answers, in build/release/
    make solutions    the same chapters with answers, explanations and outputs, in build/solutions/

    python -m pmpp.lab.publish.release                                  the same without make
    python -m pmpp.lab.publish.release 04_vector_add 08_warps           only these chapters; or their numbers: 4 8
    python -m pmpp.lab.publish.release --solutions --out FOLDER         another folder
    python -m pmpp.lab.publish.release --repository https://example.org/pmpp/blob/main

What belongs to an answer is marked in the source: a cell of code has the tag ``answer``, and everything that explains
an answer stands below the heading ``## Answers``. A release has neither. It keeps the chapter's last paragraph, which
links the next chapter, and says under the heading that the answers are with the teacher. Cells of code are not changed:
a stub is the cell to fill in, and a guess is None.

Of the outputs a release keeps those above the chapter's first question: before its first `predict`, `exercise` or
`check`. They are the photographs and numbers that a chapter begins with, and nothing above a question may give it away
(CONTRIBUTING.md, "A chapter"). Further down nobody can tell from an output what it gives away: a time, a ladder and
even the listing of the next rung may be what was asked for. So these are left out, but for the tasks of the exercises.
They come back when the reader runs the cells. Prose stays as it is. Below a question it says why the answer is so,
since a chapter is read from top to bottom.

Links to chapters that are in the same folder stay. A link to a file of this repository leads there if ``--repository``
says where the repository can be read. It becomes the path of the file otherwise, and so does in a release a link to a
file with exercises, which has their answers.

The folder gets notebooks, the licence, a README.md for those who open it, and ``files.json``, which lists the others
with their digests. A folder that has anything else in it, or one of these files changed, is not written to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pmpp
from pmpp.lab.measure.environment import revision
from pmpp.lab.publish.notebooks import NOTEBOOKS, faults, sources

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["checked", "linked", "main", "pages", "released", "write"]

ROOT = Path(__file__).parents[3]
LISTED = "files.json"  # what a former call has written
BY = "written by pmpp.lab.publish.release"
TAG = "answer"
FEW = 5  # files that an error names

_HEADING = re.compile(r"^## Answers$", re.MULTILINE)
_ASKS = re.compile(r"\b(?:check|exercise|predict)\(")
_TASK = re.compile(r"""exercise\((["'])[\w/]+\1\)""")
_LINK = re.compile(r"\[([^\[\]]+)\]\((\.\./[^()\s]+|\w+\.ipynb)\)")

NOTE = "## Answers\n\nThe answers are with your teacher."

RELEASE = (
    "# Chapters of pmpp\n\n"
    "{chapters}\n\n"
    "- Run the cells from top to bottom. "
    "Outputs that would give something away are not in the file, and appear as you run.\n"
    "- Where a cell begins with `guess = None`, write what you expect in the place of None, and run it.\n"
    "- Where a cell says `pass  # your code`, write your code there. `check` says what it finds.\n"
)
INSTALL = (
    "\n## Install\n\n"
    "You need Python 3.11 to 3.14, and the workbook pmpp {version} (revision {revision}). It is not what "
    "`pip install pmpp` installs, which is by others. {source}In this folder:\n\n"
    "```sh\n"
    "{clone}"
    "python3 -m venv .venv\n"
    '.venv/bin/python -m pip install -e "./workbook[lab]"\n'
    ".venv/bin/python -m jupyter lab {first}.ipynb\n"
    "```\n\n"
    "On Windows write `python` for `python3`, and `.venv\\Scripts\\python` for `.venv/bin/python`. No GPU is needed. "
    "If you have one by NVIDIA, write `[lab,gpu-cu13]` for `[lab]`, or `[lab,gpu-cu12]` if its driver is for CUDA 12.\n"
)
SOLUTIONS = (
    "# Chapters of pmpp, with answers\n\n"
    "For teachers: answers, explanations and outputs, of pmpp {version} (revision {revision}).\n"
    "Begin with [{first}]({first}.ipynb). Answers are folded: open a cell to see its code.\n"
)


def released(notebook: NotebookNode) -> NotebookNode:
    """A copy of a chapter without its answers, what explains them, and outputs that may give something away."""
    import nbformat

    found = nbformat.from_dict({**notebook, "cells": []})
    asked = below = False
    for cell in notebook.cells:
        cell = nbformat.from_dict(cell)
        if cell.cell_type == "code":
            asked = asked or bool(_ASKS.search(cell.source))
            if below or TAG in cell.metadata.get("tags", ()):
                continue
            keeps = not asked or _TASK.fullmatch(cell.source.strip())
            cell.outputs = [_uncounted(output) for output in cell.outputs if keeps]
            cell.execution_count = None
        elif below:
            continue
        elif heading := _HEADING.search(cell.source):
            cell.source, below = cell.source[: heading.start()] + NOTE, True
        found.cells.append(cell)
    last = notebook.cells[-1]
    onwards = last.source.rpartition("\n\n")[2]
    if below and last.cell_type == "markdown" and "Go on with [" in onwards:
        if found.cells[-1].id == last.id:  # the heading and the last paragraph stand in one cell
            found.cells[-1].source += f"\n\n{onwards}"
        else:
            found.cells.append(nbformat.from_dict({**last, "source": onwards}))
    return found


def _uncounted(output: NotebookNode) -> NotebookNode:
    if "execution_count" in output:
        output.execution_count = None
    return output


def linked(text: str, chapters: Collection[str], repository: str = "", *, hides_answers: bool = False) -> str:
    """Markdown of which each link leads somewhere, or is words.

    Args:
        text: the Markdown of a cell.
        chapters: stems of the notebooks in the same folder.
        repository: the address at which files of the repository can be read, as in ``https://host/pmpp/blob/main``.
        hides_answers: give no address for files with exercises.

    >>> linked("[Chapter 8](08_warps.ipynb), [ladder](../pmpp/kernels/warps/ladder.py)", [])
    'Chapter 8, ladder (`pmpp/kernels/warps/ladder.py`)'
    """

    def lead(link: re.Match) -> str:
        label, target = link.groups()
        if target.endswith(".ipynb") and not target.startswith("../"):
            return link[0] if target.removesuffix(".ipynb") in chapters else label
        path = target.removeprefix("../")
        if repository and not (hides_answers and "exercises" in path):
            return f"[{label}]({repository.rstrip('/')}/{path})"
        return f"`{path}`" if path.endswith(label) else f"{label} (`{path}`)"

    return _LINK.sub(lead, text)


def checked(paths: Sequence[Path], repository: str = "") -> None:
    """Raise ValueError if a notebook is not what its source says, or ``repository`` is no address."""
    if repository and not re.match(r"https?://\S+$", repository):
        raise ValueError(f"repository must be an address that begins with https:// or http://, was {repository!r}")
    if wrong := [fault for path in paths for fault in faults(path)]:
        raise ValueError("\n".join([*wrong, "Run: make notebooks; or git restore, if you only worked in it"]))


def pages(
    paths: Sequence[Path], *, solutions: bool = False, repository: str = "", install: bool = True
) -> dict[str, str]:
    """The files of a release, or of the teacher's set, as text by name.

    Args:
        paths: sources of chapters, such as `pmpp.lab.publish.notebooks.sources` gives.
        solutions: with answers and all outputs.
        repository: as in `linked`.
        install: README.md tells students how to install the workbook.

    Raises ValueError if a notebook is not what its source says, or ``repository`` is no address.
    """
    import nbformat

    checked(paths, repository)
    stems = [path.stem for path in paths]
    found = {}
    for path in paths:
        notebook = nbformat.read(path.parents[1] / f"{path.stem}.ipynb", as_version=4)
        notebook = notebook if solutions else released(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = linked(cell.source, stems, repository, hides_answers=not solutions)
            for data in (output.get("data", {}) for output in cell.get("outputs", ())):
                if "text/markdown" in data:
                    data["text/markdown"] = linked(data["text/markdown"], stems, repository)
        nbformat.validate(notebook)
        found[f"{path.stem}.ipynb"] = nbformat.writes(notebook).rstrip("\n") + "\n"
    readme = SOLUTIONS if solutions else RELEASE + INSTALL * install
    found["README.md"] = readme.format(
        first=stems[0],
        version=pmpp.__version__,
        revision=revision(),
        chapters=_in_order(stems),
        **_workbook(repository),
    )
    found["LICENSE"] = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return found


def _in_order(stems: Sequence[str]) -> str:
    """A sentence that links all chapters of the folder."""
    first, *others = (f"[{stem}]({stem}.ipynb)" for stem in stems)
    return f"Begin with {first}." + (f" Then come {', '.join(others)}." if others else "")


def _workbook(repository: str) -> dict[str, str]:
    """What students are told about where the workbook is: a sentence, or commands if the address can be cloned."""
    address, _, branch = repository.partition("/blob/")
    if not branch:
        return {
            "source": "Your teacher says where to get it: put it into a folder `workbook` beside this file. ",
            "clone": "",
        }
    commit = revision().removesuffix("-dirty")
    checkout = f"git -C workbook checkout {commit}\n" if re.fullmatch("[0-9a-f]+", commit) else ""
    return {"source": "", "clone": f"git clone {address} workbook\n{checkout}"}


def write(files: Mapping[str, str], out: Path) -> None:
    """Write files by name into a folder, in the place of what a former call has written there.

    A name may have folders in it, as in "source/00_start_here.ipynb". Empty folders do not count.

    Raises ValueError, and writes nothing, if there is anything else in the folder, or if a file was changed since.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, and {out} is a file")
    there = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir())
    former = _former(out)
    if other := [name for name in there if name not in former and not (former and name == LISTED)]:
        names = ", ".join(other[:FEW]) + (f" and {len(other) - FEW} more" if len(other) > FEW else "")
        raise ValueError(f"out must be a new folder, or that of a former release: {out} also has {names}")
    if changed := [name for name in there if name in former and _digest((out / name).read_bytes()) != former[name]]:
        raise ValueError(
            f"out must have a former release as it was written: changed since in {out}: {', '.join(changed)}. "
            "Move what you want to keep elsewhere, and delete the rest"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in there:
        (out / name).unlink()
    written = {name: text.encode() for name, text in files.items()}
    listed = {name: _digest(content) for name, content in written.items()}
    # First the list: a call that is broken off leaves a folder that the next one may write to.
    (out / LISTED).write_text(json.dumps({BY: listed}, indent=1) + "\n", encoding="utf-8")
    for name, content in written.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)


def _former(out: Path) -> dict[str, str]:
    """The digests of the files that a former call has written, by name; empty if there was none."""
    try:
        found = json.loads((out / LISTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found.get(BY, {}) if isinstance(found, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: Sequence[str] | None = None, folder: Path = NOTEBOOKS) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.publish.release", description="Write the chapters for a class, without answers."
    )
    parser.add_argument("names", nargs="*", help="chapters, as 4 or 04_vector_add; all by default")
    parser.add_argument("--solutions", action="store_true", help="the teacher's set: with answers and all outputs")
    parser.add_argument("--out", type=Path, help="the folder to write; build/release or build/solutions by default")
    parser.add_argument("--repository", default="", help="an address, for links to files of the repository")
    chosen = parser.parse_args(arguments)
    kind = "solutions" if chosen.solutions else "release"
    out = chosen.out or ROOT / "build" / kind
    try:
        paths = sources(chosen.names, folder)
        write(pages(paths, solutions=chosen.solutions, repository=chosen.repository), out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{out}: chapters {'with' if chosen.solutions else 'without'} answers: {len(paths)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
