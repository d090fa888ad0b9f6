"""What a GPU has compiled, and nothing has changed since: it is not compiled again on a machine without one.

`make attest` runs all tests on a GPU, and records for each file that passed the digests of all sources that it depends
on. Compiling takes a tenth of the time of `make test`. So a test that only compiles is skipped if it passed there with
these sources, and with Numba of this series. The environment's ``PMPP_COMPILE=all`` compiles all the same, as another
version of Python or of CUDA's compiler may say something else.
"""

import functools
import importlib.metadata
import os
from pathlib import Path

import pytest

from pmpp.lab.measure import stale
from pmpp.lab.measure.sources import ATTESTATIONS, ROOT, Sources, key_of
from pmpp.runtime import device

SOURCES = Sources()
ALL = device.on_gpu() or os.environ.get("PMPP_COMPILE") == "all"
HERE = [SOURCES.name(path) for path in (Path(__file__), ROOT / "tests" / "support" / "compiled.py")]


def skip_if_attested(test: str, *starts: str) -> None:
    """Skip this test if a GPU has compiled what stands in ``starts``. All are paths of files.

    ``test``: the file of the test, whose own source counts, and not all that it imports.
    """
    if not ALL and as_attested(test, *starts):
        pytest.skip("a GPU has compiled it as it is now")


def as_attested(test: str, *starts: str) -> bool:
    """Whether the test passed on a GPU with these sources, and all that they depend on, as they are now."""
    test, *starts = (SOURCES.name(Path(path)) for path in (test, *starts))
    now = SOURCES.digests(*starts) | {path: SOURCES.digest(path) for path in (test, *HERE)}
    keys = {key_of(path, digest) for path, digest in now.items() if not path.startswith(stale.INTERPRETER)}
    return any(keys <= then for then in attested(test))


@functools.cache
def attested(test: str) -> list[set[str]]:
    """For each GPU on which a file of tests passed, with Numba of this series: the keys of its sources then."""
    found = []
    for path in sorted((ROOT / "pmpp" / "recorded").glob(f"*/{ATTESTATIONS}")):
        record = stale.read(path)
        entry = record["tests"].get(test, {})
        if "sources" in entry and not stale.fault(entry):
            then = record["runs"][entry["run"]]["versions"]
            if all(series(then[name]) == series(importlib.metadata.version(name)) for name in ("numba", "numba-cuda")):
                found.append(set(entry["sources"].split()))
    return found


def series(version: str) -> str:
    """``"0.68.1"`` is of the series ``"0.68"``."""
    return version.rpartition(".")[0]
