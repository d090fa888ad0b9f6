"""Pages for teachers: what is read beside a chapter, what is refused, courses, names of exercises, and the command."""

import pytest

from pmpp.lab.publish import course, mistakes, skeleton, teaching
from pmpp.lab.publish.course import Course, Part

SOURCE = """\
# %% [markdown]
# # {number}. {title}
#
# *About it. PMPP 4e: {fourth}; 5e: none.*
#
# {words}

# %%
guess = None  # bytes
predict(guess, 4)
exercise("scan/one")
"""
HEAD = """\
+++
minutes = {minutes}
after = {after}
objectives = ["run a kernel", "count sectors", "read a roofline"]
+++
"""
NOTES = """
## On the board

A warp.

## To discuss

**Why?**

Because of it.

**And
why**

**Why so?**

For another reason.

It takes two paragraphs.
"""


def put(folder, number, *, after=(), minutes=10, notes="", fourth="chapter 4", words=200):
    """A chapter named for its number."""
    stem, source = f"{number:02}_c{number}", folder / "source"
    source.mkdir(exist_ok=True)
    text = SOURCE.format(number=number, title=f"Chapter {number}", fourth=fourth, words="word " * words)
    (source / f"{stem}.py").write_text(text.replace(" word", "\n# word"), encoding="utf-8")
    (source / f"{stem}.md").write_text(HEAD.format(minutes=minutes, after=list(after)) + notes, encoding="utf-8")
    return source / f"{stem}.py"


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, 0, notes=NOTES)
    put(tmp_path, 4, after=[0])
    put(tmp_path, 8, after=[4], fourth="none")
    return tmp_path


# ---------------------------------------------------------------------------------------------------------- one chapter


def test_what_stands_beside_a_chapter_is_read(folder):
    known = course.chapters(folder)
    assert list(known) == [0, 4, 8]
    first = known[0]
    assert (first.stem, first.title, first.minutes, first.after) == ("00_c0", "Chapter 0", 10, ())
    assert first.objectives == ("run a kernel", "count sectors", "read a roofline")
    assert (first.fourth, first.fifth) == ("chapter 4", "none")
    assert first.board == "A warp."
    assert first.questions[1] == ("Why so?", "For another reason.\n\nIt takes two paragraphs.")
    assert (known[4].board, known[4].questions) == ("", ())
    assert course.needs(8, known) == {0, 4}
    assert course.faults(known, folder) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("+++\nminutes", "minutes", "must begin with a head"),
        ("minutes = 10", "minutes = ten", "Invalid value"),
        ("minutes = 10\n", "", "must have minutes, after, objectives, has after, objectives"),
        ("minutes = 10", "minutes = 10\nhours = 1", "has minutes, hours"),
        ("minutes = 10", 'minutes = "10"', "minutes must be int, was '10'"),
        ("after = []", "after = 0", "after must be list, was 0"),
        ("## On the board", "## On a board", "must have the sections"),
        ("## On the board\n\nA warp.\n", "", "must have the sections"),
        ("A warp.\n", "", "must have the sections"),
        ("## On the board", "Words.\n\n## On the board", "must have the sections"),
        ("**Why so?**", "Why so?", "must have 2 questions"),
        ("**Why?**", "First.\n\n**Why?**", "must have 2 questions"),
        ("Because of it.\n\n**And\nwhy**\n\n", "", "must have 2 questions"),
    ],
)
def test_what_is_unclear_is_named_with_its_file(folder, old, new, said):
    path = folder / "source" / "00_c0.md"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"00_c0\.md.*{said}"):
        course.read(path.with_suffix(".py"))


def test_a_chapter_without_notes_is_named(folder):
    (folder / "source" / "04_c4.md").unlink()
    with pytest.raises(ValueError, match=r"04_c4\.md is missing beside 04_c4\.py"):
        course.chapters(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"after": [5]}, "there is no chapter 5"),
        ({"after": [8]}, "chapter 8 does not come before chapter 4"),
        ({"after": [4]}, "chapter 4 does not come before chapter 4"),
        ({"after": [0, 0]}, "names a chapter twice"),
        ({"minutes": 12}, "12 minutes, where about 12 are expected, in steps of 5"),
        ({"minutes": 60}, "60 minutes, where about 12 are expected"),
        ({"minutes": 5}, "5 minutes, where about 12 are expected"),
    ],
)
def test_faults_are_named(folder, change, said):
    put(folder, 4, **{"after": [0], **change})
    (fault,) = course.faults(course.chapters(folder), folder)
    assert fault.startswith("04_c4.md: ")
    assert said in fault


def test_objectives_complete_a_sentence(folder):
    path = folder / "source" / "00_c0.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"run a kernel", "count', '"Run a kernel.", "count'), encoding="utf-8")
    assert any("without a full stop: 'Run a kernel.'" in one for one in course.faults(course.chapters(folder), folder))
    path.write_text(text.replace('"run a kernel", ', ""), encoding="utf-8")
    assert course.faults(course.chapters(folder), folder) == ["00_c0.md: three to five objectives, has 2"]


def test_a_circle_is_named(folder):
    put(folder, 0, after=[8])
    with pytest.raises(ValueError, match="chapter 8 needs itself, by way of 8, 4, 0"):
        course.needs(8, course.chapters(folder))


def test_the_estimate_counts_words_predictions_and_exercises(folder):
    path = folder / "source" / "00_c0.py"
    begun = course.estimate(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + '\npredict(guess, 2)\nexercise("scan/one")\nexercise("scan/two")\ncheck_rule(1)\n')
    assert course.estimate(path) - begun == pytest.approx(1.5 + 8 + 8)


def test_the_skeleton_of_a_chapter_can_be_read(folder, tmp_path):
    source = [path for path in skeleton.write("bit_count", 38, tmp_path / "new") if path.suffix == ".md"]
    chapter = course.read(source[0].with_suffix(".py"))
    assert (chapter.number, chapter.title, len(chapter.questions)) == (38, "Bit count", 2)


# -------------------------------------------------------------------------------------------------------------- courses


def planned(*parts, budget=20):
    return Course("A course", "For all.", "week", budget, tuple(Part("Some", part) for part in parts))


@pytest.mark.parametrize(
    ("parts", "faults"),
    [
        (((0, 4), (8,)), []),
        (((0,), (8,), (4,)), ["A course, week 2: chapter 8 needs chapters 4, which have not come"]),
        (((4, 0),), ["A course, week 1: chapter 4 needs chapters 0, which have not come"]),
        (((0,), (0,)), ["A course, week 2: chapter 0 comes twice"]),
        (((0, 7),), ["A course, week 1: there is no chapter 7"]),
        (((0, 4, 8),), ["A course, week 1: 30 minutes, and at most 20 are meant"]),
    ],
)
def test_a_course_is_checked(folder, parts, faults):
    assert course.course_faults(planned(*parts), course.chapters(folder)) == faults


def test_a_syllabus_adds_up(folder):
    text = teaching.syllabus(course.chapters(folder), [planned((0,), (4,))])
    assert "| 2 | Some | [4. Chapter 4](../../notebooks/04_c4.ipynb), 10 | 10 |" in text
    assert "20 min in all" in text
    assert "chapters 8 need nothing beyond it" in text
    assert "| [8. Chapter 8](../../notebooks/08_c8.ipynb) | 10 | 4 | no counterpart | no counterpart |" in text
    assert "- read a roofline." in text


# ---------------------------------------------------------------------------------------------------------------- pages


@pytest.fixture
def without_rooms(monkeypatch):
    monkeypatch.setattr(mistakes, "tasks", lambda source: [])
    monkeypatch.setattr(mistakes, "ladders", lambda stem: [])
    monkeypatch.setattr(mistakes, "wrong_versions", lambda stem: [])


def test_what_is_not_written_is_left_out(folder, without_rooms):
    known = course.chapters(folder)
    full, bare = (teaching.guide(known[number], known, folder) for number in (0, 4))
    assert "## On the board\n\nA warp.\n\n## To discuss\n\n**Why?**\n\nBecause of it." in full
    assert "##" not in bare
    assert "after chapter [0](00_c0.md). PMPP 4e: chapter 4; 5e: no counterpart." in bare


def test_advice_of_the_exercise_stands_beside_the_mistake_and_the_usual_at_the_end(folder, monkeypatch, without_rooms):
    found = [
        mistakes.Mistake("missing guard", "", ("no_guard", "f(guard=False)")),
        mistakes.Mistake("a sum", "Take the maximum | not the sum.", ()),
    ]
    monkeypatch.setattr(
        mistakes, "tasks", lambda source: [mistakes.Task("scan/one", "Do it.", tuple(found), "tests/a.py")]
    )
    known = course.chapters(folder)
    text = teaching.guide(known[4], known, folder)
    assert "### `scan/one`\n\nDo it. Wrong answers: [tests/a.py](../../../tests/a.py)." in text
    assert "| missing guard | `no_guard`, `f(guard=False)` |  |\n" in text
    assert "| a sum |  | Take the maximum \\| not the sum. |\n" in text
    assert "| missing guard | The last block is only partly needed: test the index first. |\n" in text


def test_names_of_exercises_stay():
    assert teaching.identifiers(["a/x"], ["a/y"], {"a/x": "a/y"}) == ["a/x", "a/y"]
    assert teaching.identifiers([], ["b/y", "a/y"], {}) == ["a/y", "b/y"]
    for aliases in ({}, {"a/x": "a/z"}):
        with pytest.raises(ValueError, match=r"no exercise any more: a/x\. .* ALIASES"):
            teaching.identifiers(["a/x"], ["a/y"], aliases)


def test_the_command_writes_checks_and_takes_away(tmp_path, monkeypatch, capsys):
    made = {"syllabus.md": "one\n", "guide/00_c0.md": "two\n"}
    monkeypatch.setattr(teaching, "pages", lambda: made)
    assert teaching.main(["--check"], tmp_path) == 1
    assert "stale: syllabus.md, guide/00_c0.md. Run: make teaching" in capsys.readouterr().err
    assert teaching.main([], tmp_path) == 0
    (tmp_path / "guide" / "04_gone.md").write_text("old", encoding="utf-8")
    (tmp_path / "README.md").write_text("by hand", encoding="utf-8")
    assert teaching.main(["--check"], tmp_path) == 1
    assert "stale: guide/04_gone.md." in capsys.readouterr().err
    assert teaching.main([], tmp_path) == 0
    assert teaching.main(["--check"], tmp_path) == 0
    assert sorted(path.name for path in tmp_path.rglob("*.md")) == ["00_c0.md", "README.md", "syllabus.md"]


def test_the_command_says_what_is_wrong(monkeypatch, capsys):
    def refuse():
        raise ValueError("00_c0.md: no")

    monkeypatch.setattr(teaching, "pages", refuse)
    assert teaching.main([]) == 1
    assert "00_c0.md: no" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- mistakes

ANSWERS = """
TASK = "scan/two"
@wrong("scan/one", "a guess")
@cuda.jit
def guessed(x): ...
@right("scan/one")
def fine(x): ...
wrong("scan/one", "a race")(
    made(
        race="yes",
        wide=True,
    )
)
ANSWERS += [WrongAnswer(TASK, made(sum=1), "a sum"), WrongAnswer("scan/two", other, mistake="other", said="x")]
WRONG = [("scan/three", halves, "half", "of it"), ("scan/three", made(name="thirds"), "third", "of it")]
"""


def test_wrong_answers_are_found_in_each_way_of_writing_them():
    found = list(mistakes._written(ANSWERS, {"TASK": "scan/two"}))
    assert found == [
        (("scan/one", "a guess"), "guessed"),
        (("scan/one", "a race"), 'made(race="yes", wide=True)'),
        (("scan/two", "a sum"), "made(sum=1)"),
        (("scan/two", "other"), "other"),
        (("scan/three", "half"), "halves"),
        (("scan/three", "third"), "thirds"),
    ]


def test_wrong_answers_are_found_in_files_of_tests():
    text = (
        'WRONG += [("scan/one", "a race", made(1)), ("no", "name", 1)]\n@wrong("scan/two", "half")\ndef halves(x): ...'
    )
    assert sorted(mistakes._named_in_tests(text)) == [
        (("scan/one", "a race"), "made(1)"),
        (("scan/two", "half"), "halves"),
    ]
    text = 'ONE = {"no guard": (made(guard=False), "missing guard")}\nWRONG = {"scan/one": ONE}'
    assert list(mistakes._named_in_tests(text)) == [(("scan/one", "missing guard"), "no guard")]
