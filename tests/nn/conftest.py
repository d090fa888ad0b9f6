"""What the tests of this folder share."""

import gc

import pytest

from tests.support.once import repository_is_read_once  # noqa: F401


@pytest.fixture
def unchecked(monkeypatch):
    """For tests of what is built on layers: every launch is checked in the tests of rooms, of layers and of the tape.

    Without checks it takes half the time.
    """
    monkeypatch.setenv("PMPP_CHECK", "")


@pytest.fixture(scope="module")
def collected_once():
    """For tests that collect garbage: what other modules have left is looked through once, and not each time.

    In a process that has run many tests a collection takes a third of a second.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
