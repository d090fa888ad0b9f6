"""What the tests of this folder share."""

import pytest

from tests.support.once import repository_is_read_once  # noqa: F401


@pytest.fixture
def unchecked(monkeypatch):
    """For tests of what is built on layers: every launch is checked in the tests of rooms, of layers and of the tape.

    Without checks it takes half the time.
    """
    monkeypatch.setenv("PMPP_CHECK", "")
