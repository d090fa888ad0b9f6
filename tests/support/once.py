"""The repository's records and sources, read once in a process: they do not change while tests run.

A folder's ``conftest.py`` imports the fixture, which then holds for all tests. The topmost ``conftest.py`` does not:
every test depends on it, and few depend on records. What a test writes into a folder of its own is read every time.
"""

import functools
from collections.abc import Iterator

import pytest

from pmpp.lab.measure import record
from pmpp.lab.measure.sources import ROOT, Sources

RECORDED = record.RECORDED


def read_once(function):
    """``function``, called once for each path below ``pmpp/recorded``, and every time for others."""
    kept = functools.cache(function)
    return lambda path: (kept if path.is_relative_to(RECORDED) else function)(path)


def parse_once(init):
    """`Sources.__init__`, with which all that read this repository keep what they have read in the same place."""
    kept = {}

    def shared(self, root=ROOT):
        if root != ROOT or not kept:
            init(self, root)
        if root == ROOT:
            kept.update({} if kept else vars(self))
            vars(self).update(kept)

    return shared


OPEN, FILES, PARSE = read_once(record._open), read_once(record.files_of), parse_once(Sources.__init__)


@pytest.fixture(scope="session", autouse=True)
def repository_is_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_open", OPEN)
        patch.setattr(record, "files_of", FILES)
        patch.setattr(Sources, "__init__", PARSE)
        yield
