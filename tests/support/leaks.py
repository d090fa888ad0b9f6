"""What is left of answers in a notebook that is handed out: found by the sources, and not by the tool that cuts."""

import collections
import functools
import html
import re

from pmpp.lab.publish import notebooks
from pmpp.lab.teach.exercise import exercises
from pmpp.lab.teach.source import source_of
from tests.contract.test_chapters import cells

# What `check` and `predict` show, in HTML and as text. A task without parameters looks like a verdict, as text.
VERDICTS = r"border-left:4px|Show the answer|No guess yet|^\w+/\w+: .+", r"border-left:4px|Show the answer|No guess yet"
PACKAGE = notebooks.NOTEBOOKS.parent / "pmpp"


def bare(line):
    """A line of code without its comment and the spaces around it."""
    return line.partition("  #")[0].strip()


def lines(text):
    """The lines of code in a text."""
    return {*map(bare, text.splitlines())} - {""}


@functools.cache
def code(path, *, answers):
    """The lines of a chapter's answers, or those of all its other code."""
    return set().union(
        *(lines(text) for first, text in cells(path) if "[markdown]" not in first and ('"answer"' in first) == answers)
    )


@functools.cache
def explanations(path):
    """The lines of prose below the heading, but for the paragraph that leads on."""
    prose = "\n\n".join(text for first, text in cells(path) if "[markdown]" in first)
    below = prose.partition("\n## Answers\n")[2].split("\n\n")
    left_out = [part for part in below if not re.search(r"Go on with\s\[", part)]
    return {line.strip() for part in left_out for line in part.splitlines()} - {""}


@functools.cache
def package():
    """The lines of the answers to all exercises of the package, and the lines of the package without them."""
    answers = [text for one in exercises().values() for _, text in source_of(one.answer)]
    everything = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    own, all_lines = (collections.Counter(map(bare, "\n".join(one).splitlines())) for one in (answers, everything))
    return {*own}, {*(all_lines - own)}


@functools.cache
def hidden(path):
    """The lines that only answers have: those of the chapter's, and of all exercises of the package."""
    answers, ordinary = package()
    return (code(path, answers=True) | answers) - code(path, answers=False) - ordinary


def shown(cell):
    """The text of a cell's outputs."""
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def texts(notebook):
    """All that can be read in a notebook: sources, and the text of outputs."""
    for cell in notebook.cells:
        yield cell.source
        yield from shown(cell)


def leaks(notebook, path):
    """What is left of answers in a notebook: lines of code, of explanations, verdicts and reveals."""
    text = html.unescape("\n".join(texts(notebook)))
    found = sorted(lines(text) & hidden(path)) + sorted({*map(str.strip, text.splitlines())} & explanations(path))
    for cell in notebook.cells:
        task = cell.source.startswith("exercise(")
        found += re.findall(VERDICTS[task], "\n".join(shown(cell)), re.MULTILINE)
    return found
