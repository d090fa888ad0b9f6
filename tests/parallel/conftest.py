"""What the tests of this folder share."""

import pytest


@pytest.fixture
def unchecked(monkeypatch):
    """For tests of what is made of rooms: every launch of these kernels is checked in the tests of their rooms."""
    monkeypatch.setenv("PMPP_CHECK", "")
