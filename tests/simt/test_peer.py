"""numba-cuda's own tests, run through the interpreter (see tests/peer/run.py; the table is tests/peer/excluded.py)."""

import pytest

from pmpp.runtime import device
from tests.peer import excluded as peer_excluded
from tests.peer import run

pytestmark = [
    pytest.mark.skipif(bool(run.missing()), reason=f'not installed: {run.missing()} (pip install -e ".[test,ptx]")'),
    pytest.mark.skipif(device.on_gpu(), reason="numba.cuda is replaced by the interpreter, which a GPU does not need"),
]


@pytest.fixture(scope="module")
def server():
    running = run.Server()
    yield running
    running.close()


@pytest.mark.parametrize("module", peer_excluded.MODULES)
def test_what_is_not_excluded_passes_and_what_is_does_not(server, module):
    answer = server.run(module)
    assert "error" not in answer, answer["error"]
    assert not run.faults(module, answer["outcomes"])


def test_every_module_of_the_suite_is_run_or_named():
    folder = run.folder()
    there = {f"{part}.{path.stem}" for part in run.PARTS for path in (folder / part).glob("test_*.py")}
    named = [*peer_excluded.MODULES, *" ".join(peer_excluded.NOT_RUN.values()).split()]
    assert sorted(named) == sorted(there)


def test_the_table_finds_each_kind_of_fault():
    excluded = {"a reason": {"m": "T.gone T.passes T.fails Whole"}}
    outcomes = {
        "m.T.passes": ("passed", ""), "m.T.fails": ("failed", "x"), "m.T.unknown": ("failed", "why"),
        "m.T.fine": ("passed", ""), "m.T.skips": ("skipped", ""), "m.Whole.one": ("failed", "y"),
    }  # fmt: skip
    assert run.faults("m", outcomes, excluded) == [
        "m.T.passes passes, but is excluded: a reason",
        "m.T.unknown fails and is not excluded: why",
        "m.T.gone is excluded, but there is no such test",
    ]
    assert not run.faults("m", {"m.T.skips": ("skipped", "")}, {})
