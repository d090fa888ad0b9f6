"""The exercises about several ranks: answers that pass, and wrong ones that are found out for their reason."""

import pytest

from pmpp.parallel import exercises
from tests import parallel as here
from tests.support.python_answers import checks_of

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

test_a_right_answer_passes, test_a_wrong_answer_is_rejected_for_its_reason, test_an_exercise_is_complete = checks_of(
    exercises, here
)


def test_an_unknown_name_is_answered_with_those_that_are_close():
    with pytest.raises(ValueError, match="all_reduce/ring_step"):
        exercises.exercise("all_reduce/ring")
