"""What the tests of exercises share whose answers are Python: those about training, and those about several ranks."""

import importlib
import pkgutil
import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest


def name_of(value):
    return getattr(value, "__name__", None) if callable(value) else None


def checks_of(exercises: types.ModuleType, folder: types.ModuleType) -> tuple[Callable, Callable, Callable]:
    """Three tests of a package of exercises. ``folder`` is the package of tests whose ``answers*.py`` have answers.

    A module of answers has ``ALSO_RIGHT``, pairs of an exercise's name and an answer, and ``WRONG``, rows of a name, an
    answer, and two patterns: for the whole name of the mistake, and for a part of what is said.
    """
    files = [info.name for info in pkgutil.iter_modules(folder.__path__) if info.name.startswith("answers")]
    modules = [importlib.import_module(f"{folder.__name__}.{name}") for name in files]
    every = list(exercises.exercises().values())
    right = [(one.name, one.answer) for one in every] + [pair for module in modules for pair in module.ALSO_RIGHT]
    wrong = [row for module in modules for row in module.WRONG]
    chapters = "".join(path.read_text(encoding="utf-8") for path in Path("notebooks/source").glob("*.py"))

    @pytest.mark.parametrize(("name", "answer"), right, ids=name_of)
    def a_right_answer_passes(name, answer):
        verdict = exercises.judged(exercises.exercise(name), answer)
        assert verdict, verdict

    @pytest.mark.parametrize(("name", "answer", "mistake", "said"), wrong, ids=name_of)
    def a_wrong_answer_is_rejected_for_its_reason(name, answer, mistake, said):
        verdict = exercises.judged(exercises.exercise(name), answer)
        assert re.fullmatch(mistake, verdict.mistake), verdict
        assert re.search(said, verdict.message), verdict

    @pytest.mark.parametrize("one", every, ids=lambda one: one.name)
    def an_exercise_is_complete(one):
        assert one.hints, "it has no hints"
        assert one.task.endswith("."), one.task
        mistakes = [mistake for name, _, mistake, _ in wrong if name == one.name]
        assert len(mistakes) >= 5, mistakes
        assert len(set(mistakes)) >= 3, mistakes
        assert f'exercise("{one.name}")' in chapters, "no chapter sets it"
        assert f'check("{one.name}"' in chapters, "no chapter checks it"
        assert one.call.partition("(")[0] in one._repr_html_(), one._repr_html_()

    return a_right_answer_passes, a_wrong_answer_is_rejected_for_its_reason, an_exercise_is_complete
