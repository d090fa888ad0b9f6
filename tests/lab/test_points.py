"""What exercises are worth, and which of them a chapter sets."""

import pytest

from pmpp.lab.publish import notebooks
from pmpp.lab.teach.points import chapters, graded, known, named, points

NAMES = [*known()]


@pytest.fixture(scope="module")
def set_by_a_chapter():
    return {name for chapter in chapters() for name in graded(chapter)}


@pytest.mark.parametrize("name", NAMES)
def test_every_exercise_is_worth_something_and_a_chapter_sets_it(name, set_by_a_chapter):
    assert points(name) in {5, 10, 15}
    assert named(name).name == name
    assert name in set_by_a_chapter


@pytest.mark.parametrize("chapter", [path.stem for path in notebooks.sources()])
def test_what_a_chapter_sets_are_exercises_each_once(chapter):
    names = graded(chapter)
    assert len(set(names)) == len(names)
    assert {*names} <= {*NAMES}


def test_chapters_with_exercises_come_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "source").mkdir()
    for stem in ("100_last", "12_first", "99_none"):
        text = "# %%\n" + 'check("vector_add/saxpy", x)\n' * (stem != "99_none")
        (tmp_path / "source" / f"{stem}.py").write_text(text, encoding="utf-8")
    assert chapters(tmp_path) == ["12_first", "100_last"]


def test_an_order_and_no_answers(tmp_path):
    (tmp_path / "source").mkdir()
    source = """\
# %% [markdown]
# `check("a/prose", x)`

# %%
exercise("b/second")

# %%
def answer(x):
    pass  # your code


verdict = check("a/first", answer)

# %% tags=["answer"]
check("a/shown", answer)

# %%
check("b/second", answer)

# %% [markdown]
# Words.
#
# ## Answers

# %%
check("a/below", answer)
"""
    (tmp_path / "source" / "10_one.py").write_text(source, encoding="utf-8")
    (tmp_path / "source" / "20_two.py").write_text("# %% [markdown]\n# # 20. Two\n", encoding="utf-8")
    assert graded("10_one", tmp_path) == ["b/second", "a/first"]
    assert graded("20_two", tmp_path) == []
    assert chapters(tmp_path) == ["10_one"]


def test_unknown_names():
    with pytest.raises(ValueError, match="there is no exercise 'vector_add/other'"):
        points("vector_add/other")
    with pytest.raises(ValueError, match="there is no chapter '05_other'"):
        graded("05_other")
