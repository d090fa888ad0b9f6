"""The same programs over MPI: the same bits and the same errors as in one process, and no hang when a rank fails.

Needs mpi4py and mpirun: pip install "pmpp-workbook[mpi]".
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from pmpp import parallel
from pmpp.parallel import mpi, run
from pmpp.parallel.switchboard import WORLD, Request
from tests.parallel import everything, over_mpi

MPIRUN = shutil.which("mpirun", path=os.path.dirname(sys.executable)) or shutil.which("mpirun")
MISSING = [
    name for name, there in {"mpi4py": importlib.util.find_spec("mpi4py"), "mpirun": MPIRUN}.items() if not there
]

pytestmark = pytest.mark.native("processes")
needs_mpi = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: extra mpi in pyproject.toml")
HANG = 120  # seconds after which a run is ended


@needs_mpi
def test_every_call_has_the_same_bits_and_every_mistake_the_same_error(tmp_path, capsys):
    timeout = ["--timeout", str(HANG)]
    assert run.main(["-n", "3", "--backend", "mpi", *timeout, "-m", "tests.parallel.over_mpi", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    # Codes for colours, as Numba's warnings have, may come between a label and what the rank prints.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert sorted(re.findall(r"^\[(\d)\] rank (\d) of 3, mpi$", plain, re.MULTILINE)) == [
        (f"{rank}", f"{rank}") for rank in range(3)
    ], out
    found = [json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(3)]
    assert [one["everything"] for one in found] == everything.by_ranks(3)
    for mistake in over_mpi.MISTAKES:
        with pytest.raises(parallel.CommunicationError) as caught:
            parallel.ranks(3, mistake)
        error = caught.value
        wanted = [type(error).__name__, str(error), list(error.ranks)]
        told = [one["errors"][mistake.__name__] for one in found]
        assert [one for one in told if one] == [wanted] * sum(map(bool, told))
        assert {rank for rank in range(3) if told[rank]} >= set(error.ranks)


@needs_mpi
@pytest.mark.parametrize(
    "how, status, message",
    [
        ("sys.exit", 3, r"rank 1 called sys.exit\(3\) at .*endings.py:\d+"),
        (
            "return",
            1,
            r"RankEnded: rank 1 has ended \(after barrier at .*\), and rank 0 waits in all_reduce at .*endings",
        ),
    ],
)
def test_a_rank_that_fails_ends_all(how, status, message, capsys):
    arguments = ["-n", "2", "--backend", "mpi", "--timeout", str(HANG), "-m", "tests.parallel.endings", how]
    assert run.main(arguments) == status
    out, err = capsys.readouterr()
    assert re.search(message, out + err)


@needs_mpi
def test_mpirun_starts_a_script_by_itself_and_an_error_ends_all():
    command = run.mpi_command(2, [])
    command = [*command[: command.index(sys.executable)], sys.executable, "-m", "tests.parallel.endings", "raise"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert ended.returncode == 1
    assert re.search(r"rank 1 raised ValueError at .*endings.py:\d+", ended.stdout + ended.stderr)


CALLS = [
    Request("barrier", 0, WORLD, "a.py:1"),
    Request("all_reduce", 3, WORLD, "a.py:1", number=2**40, op="mean", dtype="float16", shape=()),
    Request("reduce", 3, WORLD, "a.py:1", op="sum", root=2, dtype="int64", shape=(1,) * 31 + (2**62, 0)),
    Request("recv", 2**20, "world/0:1", "ü.py:1", peer=7, tag=2**31 - 1, dtype="bool", shape=(3, 2)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.kind)
def test_a_header_holds_a_call(call):
    row = mpi.header(call)
    assert row.size == mpi.AGREED + mpi.OWN
    assert mpi.request_of(row, WORLD) == call


def test_a_header_has_its_length_whatever_the_names_are():
    long = Request("send", 2**20, "world" + "/1000:9223372036854775807" * 30, "é" * 300 + ".py:5", peer=2**20, tag=1)
    found = mpi.request_of(mpi.header(long), WORLD)
    assert mpi.header(long).size == mpi.AGREED + mpi.OWN
    assert found.where == long.where[-mpi.WHERE :]
    assert found.group != mpi.request_of(mpi.header(long._replace(group=long.group + "0")), WORLD).group
    wish = np.array([1, 2**63 - 1, -(2**63)], np.int64)
    split = Request("split", 0, WORLD, "x" * 99, number=2**40, payload=wish)
    np.testing.assert_array_equal(mpi.request_of(mpi.header(split), WORLD).payload, wish)
    assert mpi.header(split).size == mpi.AGREED + mpi.OWN


@pytest.mark.parametrize(
    "version, options",
    [
        ("mpirun (Open MPI) 5.0.11", ["--output", "rank", "--oversubscribe"]),
        ("mpirun (Open MPI) 4.1.6", ["--tag-output", "--oversubscribe"]),
        ("HYDRA build details:\n    Version: 4.2.0", ["-prepend-rank"]),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for mpirun")
def test_the_options_of_mpirun(version, options, tmp_path, monkeypatch):
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\necho '{version}'\n", encoding="utf-8")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(tmp_path / "python"))
    found = run.mpi_command(4, ["script.py", "--rate", "3"])
    assert [option for option in found[1 : found.index("-n")] if option != "--allow-run-as-root"] == options
    assert found[found.index("-n") + 1] == "4"
    assert found[-3:] == ["script.py", "--rate", "3"]


def test_where_there_is_no_mpirun_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SystemExit):
        run.main(["-n", "2", "--backend", "mpi", __file__])
    assert (
        'there is no mpirun: install one, for example with pip install "pmpp-workbook[mpi]"' in capsys.readouterr().err
    )
