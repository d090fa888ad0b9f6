"""What compute-sanitizer prints is read right, and the record of wrong kernels is complete, current and robust."""

import json
import stat
import sys

import numpy as np
import pytest

from pmpp.kernels.debugging import bugs
from pmpp.lab.measure import debugging, environment
from pmpp.lab.measure.sources import Sources
from pmpp.runtime import device
from pmpp.simt import Table

# In the form in which versions 2024.1 to 2025.3 print; kernels have the names that Numba gives them.
MEMCHECK = """\
a line of the program itself
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at pmpp::kernels::debugging::bugs::add[abi:v1][abi:cw51cXTL](Array<float, (int)1, C>)+0x1f0 in bugs.py:63
=========     by thread (232,0,0) in block (3,0,0)
=========     Access to 0x7f3c7ea00fa0 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ea00000 of size 4,000 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2ea231] in libcuda.so.1
=========         Host Frame: ffi_call [0x6a4a] in libffi.so.8
=========
========= Invalid __global__ read of size 4 bytes
=========     at pmpp::kernels::debugging::bugs::add[abi:v1][abi:cw51cXTL](Array<float, (int)1, C>)+0x1f0 in bugs.py:63
=========     by thread (233,0,0) in block (3,0,0)
=========     Address 0x7f3c7ea00fa4 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f3c7ea00000 of size 4,000 bytes
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to \
cuCtxSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: [0x2ea231] in libcuda.so.1
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at pmpp::bugs::neighbour_sums[abi:v1](Array)+0x150 in bugs.py:113
=========     and Read access at pmpp::bugs::neighbour_sums[abi:v1](Array)+0x280 in bugs.py:115 [7,936 hazards]
=========     and Read access at pmpp::bugs::neighbour_sums[abi:v1](Array)+0x2a0 in bugs.py:115 [64 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at bugs::count_in_shared(Array)+0x1a0 in /home/me/pmpp/bugs.py:164
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x690
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at bugs::block_sums[abi:v1](Array)+0x2b0 in bugs.py:139
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: bugs::block_sums[abi:v1](Array)+0x2b0 in bugs.py:139
=========
========= ERROR SUMMARY: 1 error
"""
WITHOUT_LINES = SYNCCHECK.replace(" in bugs.py:139", "")
MISALIGNED = MEMCHECK.partition("=========     Saved")[0].replace("is out of bounds", "is misaligned")
WARNED = RACECHECK.replace("Error: Race", "Warning: Race")
SILENT = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def short(log):
    return [(one["kind"], one["kernel"], one["places"], one["access"], one["count"]) for one in debugging.findings(log)]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (MEMCHECK, [("out of bounds", "add", [63], "global read", 2), ("error of a call", "", [], "", 1)]),
        (RACECHECK, [("race", "neighbour_sums", [113, 115], "Write, Read, Read", 8000)]),
        (WARNED, [("race", "neighbour_sums", [113, 115], "Write, Read, Read", 8000)]),
        (INITCHECK, [("uninitialised read", "count_in_shared", [164], "", 1)]),
        (SYNCCHECK, [("divergent barrier", "block_sums", [139], "", 1)]),
        (WITHOUT_LINES, [("divergent barrier", "block_sums", [], "", 1)]),
        (MISALIGNED, [("misaligned", "add", [63], "global read", 1)]),
        (SILENT, []),
        ("", []),
        ("Traceback (most recent call last):\nImportError: no numba", []),
    ],
)
def test_a_log_is_read(log, expected):
    assert short(log) == expected


def test_a_finding_names_its_thread_and_keeps_the_words_of_the_tool():
    first = debugging.findings(MEMCHECK)[0]
    assert (first["thread"], first["block"]) == ([232, 0, 0], [3, 0, 0])
    assert first["text"][0] == "Invalid __global__ read of size 4 bytes"
    assert first["text"][-1].startswith("and is 1 bytes after the nearest allocation")
    assert not [line for line in first["text"] if "Host" in line]


@pytest.mark.parametrize(
    ("kernel", "same"),
    [("add", True), ("add_mended", False), ("_ZN4pmpp4bugs3addB2v1E5ArrayIfLi1E", True), ("_ZN4bugs4addsE", False)],
)
def test_a_kernel_is_known_by_either_name(kernel, same):
    assert debugging._names(kernel, "add") == same


@pytest.mark.parametrize(("log", "total"), [(MEMCHECK, 3), (RACECHECK, 1), (SILENT, 0), ("killed", None)])
def test_the_errors_are_those_that_the_tool_counts(log, total):
    assert debugging.errors(log) == total


# ------------------------------------------------------------------------------------------- a whole run, without a GPU

# Stands for compute-sanitizer: it runs the command behind its options, and says what the real one would.
PRETENDER = f"""#!{sys.executable}
import subprocess, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0 (build 1)")
    raise SystemExit
if "shared" in sys.argv:
    print("unrecognised option '--initcheck-address-space'")
    raise SystemExit(1)
command = sys.argv[sys.argv.index({sys.executable!r}) :]
subprocess.run(command, check=False)
if sys.argv[sys.argv.index("--tool") + 1] == "memcheck" and command[-2] == "missing guard":
    print('''{MEMCHECK}''')
else:
    print("========= ERROR SUMMARY: 0 errors")
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that takes the interpreter for its GPU, with a compute-sanitizer that pretends, and two bugs."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(PRETENDER, encoding="utf-8")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(environment, "describe_gpu", lambda: {"name": "NVIDIA Paper"})
    monkeypatch.setattr(environment, "describe_machine", lambda: {"date": "2026-11-22T10:00:00Z"})
    monkeypatch.setattr(debugging, "_program", lambda name: str(tool) if name == "compute-sanitizer" else None)
    monkeypatch.setattr(debugging, "TOOLS", {tool: debugging.TOOLS[tool] for tool in ("memcheck", "initcheck, shared")})
    monkeypatch.setattr(debugging, "COST", 1 << 10)
    monkeypatch.setattr(debugging, "HANG", 20)
    chosen = bugs.bug("missing guard"), bugs.bug("waits for ever")
    monkeypatch.setattr(debugging, "cases", lambda: chosen)
    monkeypatch.setattr(debugging, "_named", bugs.bug)
    monkeypatch.setenv("PMPP_BACKEND", "simt")
    return tmp_path


def test_a_run_records_what_was_found_and_what_is_missing(machine):
    said = []
    record = debugging.measure(machine / "gpu" / "debugging.json", said.append)
    assert json.loads((machine / "gpu" / "debugging.json").read_text(encoding="utf-8")) == record
    assert record["about"]["compute_sanitizer"] == "2025.3.1.0"
    assert record["about"]["cuda_gdb"] == "missing"
    guard, waits = record["bugs"]["missing guard"], record["bugs"]["waits for ever"]
    assert "x[1000]" in guard["alone"]["error"]  # which a GPU would not have said
    assert guard["alone"]["elements"] == 1000
    assert guard["tools"]["memcheck"]["status"] == "found"
    assert guard["tools"]["memcheck"]["errors"] == 3
    assert guard["tools"]["initcheck, shared"]["status"] == "missing"
    assert "unrecognised option" in guard["tools"]["initcheck, shared"]["why"]
    assert "waits in this loop" in waits["alone"]["error"]  # a GPU would go on
    assert waits["tools"] == {}
    assert record["cuda_gdb"] == {"status": "missing"}
    assert record["printing"][0].startswith("block 0 warp 0")
    assert all("AssertionError" in text or "assert" in text for text in record["asserting"].values())
    assert {"as usual", "debug=True, opt=False", "memcheck"} <= record["cost"]["runs"].keys()
    assert record["cost"]["runs"]["as usual"]["right"]
    assert isinstance(debugging.table(record), Table)
    assert debugging.told(record, "missing guard", "initcheck, shared").startswith("initcheck, shared: ")
    assert "launch the wrong kernel" in debugging.steps(record, "sticky")
    assert debugging.steps(record, "late").count("\n") == 3
    assert "debug=True" in debugging.asserted(record)
    assert debugging.printed(record).startswith("block 0")
    assert "not installed" in debugging.debugged(record)
    assert set(debugging.slowdowns(record)) == {"lineinfo=True", "debug=True, opt=False", "memcheck"}
    assert "said by the interpreter" in str(debugging.table(record, {"missing guard": "said by the interpreter"}))
    assert said


def test_a_process_that_does_not_end_is_killed(machine):
    done = debugging._run([], "alone", "bytes for elements", patience=0.05)
    assert done["result"] is None
    assert done["fault"] == "still running after 0.05 s, and killed"
    missing = debugging._run([str(machine / "no such tool")], "alone", "missing guard")
    assert missing["fault"].startswith("not started: ")


def test_without_a_gpu_nothing_is_recorded(tmp_path):
    if not device.on_gpu():
        with pytest.raises(RuntimeError, match="measured on a GPU"):
            debugging.measure(tmp_path / "debugging.json")
        assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------- the record, if any


def test_what_is_missing_is_said(tmp_path):
    assert debugging.recorded(tmp_path / "debugging.json") is None
    assert "python -m pmpp.lab.measure.debugging --gpu" in debugging.missing(None)
    assert debugging.missing({}) == ""
    assert debugging.slowdowns(None) == {}
    for said in (
        debugging.steps(None, "late"),
        debugging.asserted(None),
        debugging.printed(None),
        debugging.debugged(None),
    ):
        assert said == debugging.missing(None)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"status": "silent"}, "memcheck: nothing about missing guard"),
        ({"status": "missing", "why": "compute-sanitizer is not installed"}, "memcheck: missing, compute-sanitizer is"),
        (
            {"status": "found", "findings": [{**debugging.findings(MEMCHECK)[0], "lines": ["out[i] = x[i]"]}]},
            "Invalid __global__ read of size 4 bytes\nat add+0x1f0 in bugs.py:63\nby thread (232,0,0) in block (3,0,0)",
        ),
        (
            {"status": "found", "findings": [{"text": ["Invalid read"], "lines": ["out[i] = x[i]"], "count": 1024}]},
            "Invalid read\n    out[i] = x[i]\nreported 1,024 times",
        ),
    ],
)
def test_what_a_tool_said_is_told(found, said):
    record = {"bugs": {"missing guard": {"tools": {"memcheck": found}}}}
    if not device.on_gpu():
        assert debugging.told(record, "missing guard", "memcheck").startswith(said)
        assert debugging.told(None, "missing guard", "memcheck") == debugging.missing(None)


def test_the_record_is_of_the_bugs_as_they_are():
    record = debugging.recorded()
    if record is not None:
        assert list(record["bugs"]) == [case.name for case in bugs.CASES]
        assert record["about"]["sources"][debugging.SOURCE] == Sources().digest(debugging.SOURCE)
        assert str(debugging.table(record)).count("\n") == 1 + len(bugs.CASES)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"alone": {"elements": 8, "wrong": [0, 0], "error": ""}}, "right, 2 times"),
        ({"alone": {"elements": 8, "wrong": [5, 5], "error": ""}}, "5 of 8 wrong"),
        ({"alone": {"elements": 8, "wrong": [5, 0, 7], "error": ""}}, "0 to 7 of 8 wrong"),
        ({"alone": {"elements": 8, "wrong": [], "error": "CudaError: bad address"}}, "bad address"),
        ({"alone": {"elements": 8, "wrong": [], "error": "X: [7] CUDA_ERROR_ILLEGAL: no"}}, "CUDA_ERROR_ILLEGAL"),
        ({"alone": {"fault": "still running after 25 s, and killed"}}, "still running after 25 s, and killed"),
    ],
)
def test_what_the_gpu_did_in_words(entry, words):
    assert debugging.alone(entry) == words


def test_arguments_reach_the_device_as_they_are_made():
    case = bugs.bug("lost updates")
    given, host = debugging._arguments(device.backend().cuda, case)
    assert np.array_equal(given[0].copy_to_host(), host[0])
    assert not given[1].copy_to_host().any()
