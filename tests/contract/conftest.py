"""The order of the tests that launch rungs, on a GPU."""

from pmpp.runtime import device
from tests.support import by_room


def pytest_collection_modifyitems(items):
    if device.on_gpu():
        items[:] = by_room.together(items)
