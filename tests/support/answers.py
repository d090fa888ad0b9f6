"""What the tests of exercises share: an exercise's own answer, with which others are compared, runs once a process."""

import functools
from collections.abc import Iterator

import pytest

from pmpp.lab.teach import diagnosis, run, waste
from pmpp.lab.teach.exercise import exercises


@functools.cache
def own_answers() -> frozenset:
    return frozenset(one.answer for one in exercises().values())


ONCE = functools.cache(run.attempt)


def attempt(answer, case):
    """`pmpp.lab.teach.run.attempt`, once for each case of an exercise's own answer."""
    return (ONCE if answer in own_answers() else run.attempt)(answer, case)


@pytest.fixture(scope="module", autouse=True)
def own_answers_run_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnosis, "attempt", attempt)
        patch.setattr(waste, "attempt", attempt)
        yield
