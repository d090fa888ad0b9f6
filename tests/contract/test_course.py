"""What every chapter tells a teacher: objectives, minutes, prerequisites, the book; courses; pages that are current."""

import re

import pytest

from pmpp.lab.publish import book, course, mistakes, notebooks, teaching
from pmpp.lab.teach import exercise as registry
from tests.contract.test_chapters import SOURCES, prose

ROOT = notebooks.NOTEBOOKS.parent
DOCS = course.COURSES.parent
KNOWN = course.chapters()
COURSES = course.courses()
each_chapter = pytest.mark.parametrize("chapter", KNOWN.values(), ids=lambda chapter: chapter.stem)
each_course = pytest.mark.parametrize("one", COURSES, ids=lambda one: one.title)


@pytest.fixture(scope="module")
def made():
    return teaching.pages()


def first_cells(chapter):
    """The prose before the first code, without the book's chapters and without addresses."""
    text = prose(notebooks.NOTEBOOKS / "source" / f"{chapter.stem}.py").partition("**The question")[0]
    text = re.sub(r"PMPP 4e: .+?; 5e: .+?\.(?=[\s*])", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_nothing_is_wrong_with_the_metadata():
    assert course.faults(KNOWN) == []
    assert [chapter.stem for chapter in KNOWN.values()] == [path.stem for path in SOURCES]


def test_no_note_is_left_of_a_chapter_that_is_gone():
    notes = {path.stem for path in (notebooks.NOTEBOOKS / "source").glob("*.md")}
    assert notes == {path.stem for path in SOURCES}


@each_chapter
def test_the_minutes_are_those_of_the_first_cell(chapter):
    """Not every chapter names them there."""
    said = re.findall(r"(\d+) minutes|Minutes:\*\* (\d+)", first_cells(chapter))
    assert {int(one or other) for one, other in said} <= {chapter.minutes}


@each_chapter
def test_the_prerequisites_of_the_first_cell_come_before(chapter):
    said = re.findall(
        r"(?:You need|Read|Prerequisites:\*\*) (\[?chapters? .+?)(?:;|\bbefore\b|first|\.|$)", first_cells(chapter)
    )
    named = {int(number) for one in said for number in re.findall(r"\d+", one)}
    assert named <= course.needs(chapter.number, KNOWN)


@each_chapter
def test_there_is_something_to_draw_and_to_discuss(chapter):
    assert chapter.board
    assert len(chapter.questions) == course.QUESTIONS
    assert all(len(answer.split()) >= 30 for _, answer in chapter.questions)


@each_chapter
def test_what_the_notes_name_exists(chapter):
    """Rungs and kernels in backticks are in the chapter, or in a room of it."""
    notes = " ".join([chapter.board, *(part for pair in chapter.questions for part in pair)])
    text = (notebooks.NOTEBOOKS / "source" / f"{chapter.stem}.py").read_text(encoding="utf-8")
    text += " ".join(rung.name for room in mistakes.ladders(chapter.stem) for rung in room.LADDER)
    for code in re.findall(r"`([a-z_]+)`", re.sub(r"(?ms)^```.*?^```", "", notes)):
        assert re.search(rf"\b{code}\b", text), code


@each_course
def test_a_course_keeps_its_budget_and_its_order(one):
    assert course.course_faults(one, KNOWN) == []
    assert course.minutes([number for part in one.parts for number in part.chapters], KNOWN) > 0.6 * one.budget


def test_there_are_the_three_courses():
    assert [(one.unit, len(one.parts)) for one in COURSES[:3]] == [("week", 12), ("day", 3), ("day", 1)]


def test_the_pages_are_current(made):
    assert teaching.stale(made) == [], "run: make teaching"


def test_the_links_lead_somewhere(made):
    pages = {name: text for name, text in made.items() if name.endswith(".md")}
    pages["README.md"] = (DOCS / "README.md").read_text(encoding="utf-8")
    for name, text in pages.items():
        for link in re.findall(r"\]\(([^)#]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if "://" not in link:
                assert ((DOCS / name).parent / link).exists(), f"{name}: {link}"


def test_an_exercise_keeps_its_name(made):
    listed = (DOCS / teaching.NAMES).read_text(encoding="utf-8").split()
    names = [task.name for source in SOURCES for task in mistakes.tasks(source)]
    assert listed == sorted({*names, *getattr(registry, "ALIASES", {})})
    assert len(names) == len(set(names))
    assert {*registry.exercises()} <= {*names}
    for old, new in getattr(registry, "ALIASES", {}).items():
        assert registry.exercise(old) is registry.exercise(new)


def test_every_mistake_of_an_exercise_of_a_room_is_explained():
    """By the exercise, or as usual; a few depend on what was seen, and have an entry without words."""
    for source in SOURCES:
        for task in mistakes.tasks(source):
            assert task.mistakes, task.name
            if task.name in registry.exercises():
                explained = set(registry.exercises()[task.name].advice)
                for mistake in task.mistakes:
                    assert mistake.advice or mistake.name in mistakes.ADVICE or mistake.name in explained, task.name


# ------------------------------------------------------------------------------------------------------------ the book


def test_the_sections_of_the_book_are_counted_for_every_chapter():
    for place, edition in enumerate(book.SECTIONS, 1):
        numbers = [subject[place] for subject in book.SUBJECTS if subject[place]]
        assert numbers == list(range(1, len(book.SECTIONS[edition]) + 1))


@pytest.mark.parametrize(
    ("text", "edition", "missing"),
    [
        ("none", "5e", ""),
        ("chapter 23", "4e", ""),
        ("chapter 24", "4e", "chapter 24"),
        ("chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5", "4e", ""),
        ("sections 4.1 to 4.10", "4e", "section 4.10"),
        ("sections 4.1 to 4.10", "5e", ""),
        ("section 6.7", "4e", "section 6.7"),
        ("section 3.0", "5e", "section 3.0"),
    ],
)
def test_a_section_that_is_not_there_is_named(text, edition, missing):
    assert book.missing(text, edition) == missing


def test_the_sections_that_docstrings_and_chapters_cite_are_there():
    found = 0
    folders = (ROOT / "pmpp", ROOT / "notebooks" / "source")
    for path in (path for folder in folders for path in folder.rglob("*.py") if path.name != "book.py"):
        text = re.sub(r"\s+#?\s*", " ", path.read_text(encoding="utf-8"))
        cited = re.findall(r"PMPP ([45]e) (sections? \d+\.\d+(?:(?:, | and | to )\d+\.\d+)*)", text)
        cited += [("4e", f"section {number}") for number in re.findall(r"\(PMPP (\d+\.\d+)", text)]
        found += len(cited)
        for edition, what in cited:
            assert book.missing(what, edition) == "", f"{path.relative_to(ROOT)}: PMPP {edition} {what}"
    assert found > 50
