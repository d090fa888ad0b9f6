"""The repository's sources, read once in a process: they do not change while tests run.

A folder's ``conftest.py`` imports the fixture, which then holds for all tests. The topmost ``conftest.py`` does not:
every test depends on it, and few depend on all sources.
"""

from collections.abc import Iterator

import pytest

from pmpp.lab.measure.sources import ROOT, Sources


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


PARSE = parse_once(Sources.__init__)


@pytest.fixture(scope="session", autouse=True)
def repository_is_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sources, "__init__", PARSE)
        yield
