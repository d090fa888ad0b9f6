"""The exercises about training: answers that pass, and wrong ones that are found out for their reason."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from pmpp.nn import exercises
from pmpp.nn.tape import state
from tests import nn as here

FILES = [info.name for info in pkgutil.iter_modules(here.__path__) if info.name.startswith("answers")]
MODULES = [importlib.import_module(f"{here.__name__}.{name}") for name in FILES]
EXERCISES = list(exercises.exercises().values())
RIGHT = [(one.name, one.answer) for one in EXERCISES] + [pair for module in MODULES for pair in module.ALSO_RIGHT]
WRONG = [row for module in MODULES for row in module.WRONG]
CHAPTERS = "".join(path.read_text(encoding="utf-8") for path in Path("notebooks/source").glob("*.py"))


def name_of(value):
    return getattr(value, "__name__", None) if callable(value) else None


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setenv("PMPP_CHECK", "")
    yield
    assert state.watch is None


@pytest.mark.parametrize(("name", "answer"), RIGHT, ids=name_of)
def test_a_right_answer_passes(name, answer):
    verdict = exercises.judged(exercises.exercise(name), answer)
    assert verdict, verdict


@pytest.mark.parametrize(("name", "answer", "mistake", "said"), WRONG, ids=name_of)
def test_a_wrong_answer_is_rejected_for_its_reason(name, answer, mistake, said):
    verdict = exercises.judged(exercises.exercise(name), answer)
    assert re.fullmatch(mistake, verdict.mistake), verdict
    assert re.search(said, verdict.message), verdict


@pytest.mark.parametrize("one", EXERCISES, ids=lambda one: one.name)
def test_an_exercise_is_complete(one):
    assert one.hints
    assert one.task.endswith(".")
    mistakes = [mistake for name, _, mistake, _ in WRONG if name == one.name]
    assert len(mistakes) >= 5
    assert len(set(mistakes)) >= 3
    assert f'exercise("{one.name}")' in CHAPTERS
    assert f'check("{one.name}"' in CHAPTERS
    assert one.call.partition("(")[0] in one._repr_html_()


def test_an_unknown_name_is_answered_with_those_that_are_close():
    with pytest.raises(ValueError, match="memory/leak"):
        exercises.exercise("memory/leek")
