"""What every chapter must satisfy: its number, its links, the way to the next, its place in the list of chapters."""

import itertools
import json
import re

import pytest

from pmpp.lab.publish import book, notebooks

SOURCES = notebooks.sources()
NUMBERS = {path.stem: int(path.stem.partition("_")[0]) for path in SOURCES}
LINK = re.compile(r"\[([^\]]+)\]\((\w+)\.ipynb\)")


def cells(path):
    """The cells of a source, each as its first line and its text, where Markdown has no comment signs."""
    for cell in re.split(r"(?m)^# %%", path.read_text(encoding="utf-8"))[1:]:
        first, _, text = cell.partition("\n")
        if "[markdown]" in first:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        yield first.strip(), text.strip()


def prose(path):
    """The Markdown of a chapter in one line, so that what is broken over two lines is found."""
    return " ".join(" ".join(text.split()) for first, text in cells(path) if "[markdown]" in first)


def test_numbers_are_unique():
    assert len(set(NUMBERS.values())) == len(NUMBERS)
    assert all(re.match(r"(\d\d|[1-9]\d\d)_[a-z0-9_]+$", stem) for stem in NUMBERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_title_has_the_number(path):
    first, text = next(cells(path))
    assert first == "[markdown]"
    assert re.match(rf"# {NUMBERS[path.stem]}\. \S", text), text.partition("\n")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_links_lead_to_the_chapter_that_they_name(path):
    for label, stem in LINK.findall(prose(path)):
        assert stem in NUMBERS, f"[{label}]({stem}.ipynb)"
        if number := re.search(r"\d+$", label):
            assert int(number[0]) == NUMBERS[stem], f"[{label}]({stem}.ipynb)"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_chapters_that_are_named_exist(path):
    text = re.sub(r"PMPP 4e: .+?; 5e: .+?\.(?=[\s*])", "", prose(path))  # the book's
    for number in re.findall(r"\b[Cc]hapter (\d+)\b", text):
        assert int(number) in NUMBERS.values(), f"chapter {number}"


@pytest.mark.parametrize(("path", "after"), list(itertools.pairwise(SOURCES)), ids=lambda path: path.stem)
def test_the_end_leads_on(path, after):
    first, text = list(cells(path))[-1]
    assert first == "[markdown]"
    last = " ".join(text.rpartition("\n\n")[2].split())
    needed = f"Go on with [chapter {NUMBERS[after.stem]}]({after.stem}.ipynb)"
    assert needed in last, f"notebooks/source/{path.name} must say in the last paragraph: {needed}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_answers_and_nothing_else_stand_below_their_heading(path):
    """A release (pmpp.lab.publish.release) leaves out the code with the tag, and the prose below the heading."""
    headings, below = 0, False
    for first, text in cells(path):
        if "[markdown]" in first:
            headings += len(re.findall(r"(?m)^#+ Answers?\b", text))
            below = below or bool(re.search(r"(?m)^## Answers$", text))
        else:
            assert ('tags=["answer"]' in first) == below, f"# %% {first}: {text[:80]}"
    assert headings == below


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_book_is_named_in_both_editions(path):
    fourth, fifth = book.cited(path)
    assert fourth or fifth


def test_the_first_chapter_lists_all():
    """The list is shown by its last code cell: the notebook must have been executed since a chapter came or went."""
    pages = json.loads((notebooks.NOTEBOOKS / "00_start_here.ipynb").read_text(encoding="utf-8"))
    (last,) = [cell for cell in pages["cells"] if cell["cell_type"] == "code"][-1]["outputs"]
    listed = re.findall(r"^- \[(\d+)\. (.+)\]\((\w+)\.ipynb\)$", "".join(last["data"]["text/markdown"]), re.MULTILINE)
    titles = [re.match(r"# (\d+)\. (.+)", next(cells(path))[1]).groups() for path in SOURCES]
    assert listed == [(*title, path.stem) for title, path in zip(titles, SOURCES, strict=True)]
