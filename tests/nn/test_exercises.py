"""The exercises about training: answers that pass, and wrong ones that are found out for their reason."""

import pytest

from pmpp.nn import exercises
from pmpp.nn.tape import state
from tests import nn as here
from tests.support.python_answers import checks_of

test_a_right_answer_passes, test_a_wrong_answer_is_rejected_for_its_reason, test_an_exercise_is_complete = checks_of(
    exercises, here
)


pytestmark = pytest.mark.usefixtures("collected_once")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setenv("PMPP_CHECK", "")
    yield
    assert state.watch is None


def test_an_unknown_name_is_answered_with_those_that_are_close():
    with pytest.raises(ValueError, match="memory/leak"):
        exercises.exercise("memory/leek")
