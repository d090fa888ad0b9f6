"""What the tests of this folder share."""

import functools

import pytest

from pmpp.lab.publish import readme
from tests.support.once import repository_is_read_once  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def tests_are_counted_once():
    """A room's tests are counted for each table that is made, and are always as many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readme, "count_tests", functools.cache(readme.count_tests))
        yield
