"""What a GPU shows of a wrong kernel, and what NVIDIA's tools say about it.

::

    python -m pmpp.lab.measure.debugging              the table: bugs, what the GPU did, and which tool names them
    python -m pmpp.lab.measure.debugging --gpu        run everything on this GPU, and record it

What is run is said by ``pmpp.kernels.debugging.bugs``: a list of kernels, each with one bug and the launch that shows
it. Every launch has a process of its own, since an access outside of all memory ends the process's use of the GPU, and
a kernel that waits for ever ends only with its process. Each bug is launched alone, several times, and its result is
compared with the right one. Then it is launched under each tool of compute-sanitizer, and `findings` reads what the
tool has printed. Also recorded: how an error shows up at later calls (`sticky`), what ``debug=True`` makes of an
assertion, in which order ``print`` comes out, what cuda-gdb says where it is installed, and what all this costs.

The record is written after every step. What a step cannot do is recorded as missing, with the reason.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import importlib
import inspect
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pmpp import simt
from pmpp.lab.measure import environment
from pmpp.lab.measure.record import RECORDED, slug
from pmpp.lab.measure.sources import MEASURED, ROOT, Sources
from pmpp.runtime import device
from pmpp.simt import Table

__all__ = [
    "TOOLS", "alone", "asserted", "cases", "debugged", "errors", "findings", "interpret", "main", "measure", "missing",
    "printed", "recorded", "says", "slowdowns", "steps", "table", "told",
]  # fmt: skip

RECORD = RECORDED / "nvidia-h200" / "debugging.json"
CATALOGUE = "pmpp.kernels.debugging.bugs"
SOURCE = "pmpp/kernels/debugging/bugs.py"

#: The tools of compute-sanitizer: the arguments that choose each.
TOOLS = {
    "memcheck": ("--tool", "memcheck", "--padding", "32"),
    "racecheck": ("--tool", "racecheck", "--racecheck-report", "analysis"),
    "initcheck": ("--tool", "initcheck"),
    "initcheck, shared": ("--tool", "initcheck", "--initcheck-address-space", "shared"),
    "synccheck": ("--tool", "synccheck"),
}
COMMON = ("--report-api-errors", "no", "--print-limit", "2000")
REPEATS = 10  # launches of a bug by itself
PATIENCE = 90  # seconds until a process is ended; a process needs some to start, and more under a tool
HANG = 25  # seconds until a process without a tool is given up
AT_ONCE = 6  # processes under a tool at a time
COST = 1 << 22  # elements of the kernel that is timed


def cases() -> tuple:
    """The bugs: see ``pmpp.kernels.debugging.bugs``."""
    return importlib.import_module(CATALOGUE).CASES


# ------------------------------------------------------------------------------------------------- what a tool has said

_PREFIX = re.compile(r"^=+ ?")
_PLACE = re.compile(r"\bat (?P<kernel>\S.*?)\+0x[0-9a-f]+(?: in (?P<file>\S+?):(?P<line>\d+))?(?= \[|$)")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{8,}\b")
_LONG = re.compile(r"\bat (?:void )?(?:\w+::)*(\w+)(?:\[[^\]]*\])*\(.*?\)(?=\+0x)")
_THREAD = re.compile(r"by thread \((\d+), ?(\d+), ?(\d+)\) in block \((\d+), ?(\d+), ?(\d+)\)")
_ACCESS = re.compile(r"Invalid __(\w+)__ (read|write|atomic)\b")
_RACE = re.compile(r"Race reported between (\w+) access")
_NO_FINDING = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "WARNING: ", "This tool")
_KINDS = {
    "Invalid": "out of bounds",
    "Uninitialized": "uninitialised read",
    "Barrier error": "divergent barrier",
    "Misaligned": "misaligned",
    "Program hit": "error of a call",
}


def _blocks(log: str) -> list[list[str]]:
    """The findings of a log: a headline each, and the indented lines below it, without the tool's ``=========``."""
    found: list[list[str]] = []
    for line in log.splitlines():
        if not line.startswith("==="):
            continue  # what the program itself has printed
        text = _PREFIX.sub("", line).rstrip()
        if not text or (text.startswith(_NO_FINDING) and "Race reported" not in text):
            continue
        if text.startswith(" "):
            if found:
                found[-1].append(text.strip())
        else:
            found.append([text])
    return found


def findings(log: str) -> list[dict]:
    """What compute-sanitizer has printed, the same finding of many threads once.

    Each is a dict of ``kind`` ("out of bounds", "race", "uninitialised read", "divergent barrier", "misaligned", or the
    tool's own words), ``kernel`` (its name without modules and arguments, or ""), ``places`` (the lines of the file
    that are named, in the tool's order: for a race those of both ends), ``access`` ("global read", "Write, Read", or
    ""), ``thread`` and ``block`` (of the first, or None), ``count`` (how often it was reported, for a race the hazards)
    and ``text``, the first report without the stack of the host.

    >>> log = '''========= Invalid __global__ read of size 4 bytes
    ... =========     at pmpp::bugs::add[abi:v1](Array)+0x90 in bugs.py:63
    ... =========     by thread (232,0,0) in block (3,0,0)
    ... ========= ERROR SUMMARY: 1 error'''
    >>> [(one["kind"], one["kernel"], one["places"], one["thread"]) for one in findings(log)]
    [('out of bounds', 'add', [63], [232, 0, 0])]
    """
    distinct: dict[tuple, dict] = {}
    for block in _blocks(log):
        one = _finding(block)
        key = one["kind"], one["kernel"], tuple(one["places"]), one["access"]
        if key in distinct:
            distinct[key]["count"] += one["count"]
        else:
            distinct[key] = one
    return list(distinct.values())


def _finding(block: list[str]) -> dict:
    headline, body = block[0], "\n".join(block)
    places = [match for line in block for match in _PLACE.finditer(line)]
    lines = [int(match["line"]) for match in places if match["line"]]
    kernel = re.split(r"[\[(<]", places[0]["kernel"].removeprefix("void "))[0].rpartition("::")[2] if places else ""
    thread = _THREAD.search(body)
    numbers = list(map(int, thread.groups())) if thread else []
    access = ""
    if invalid := _ACCESS.match(headline):
        access = f"{invalid[1]} {invalid[2]}"
    elif race := _RACE.search(headline):
        access = ", ".join([race[1], *re.findall(r"\band (\w+) access", body)])
    hazards = [int(number.replace(",", "")) for number in re.findall(r"\[([\d,]+) hazards?\]", body)]
    return {
        "kind": _kind(headline, body),
        "kernel": kernel,
        "places": list(dict.fromkeys(lines)),
        "access": access,
        "thread": numbers[:3] or None,
        "block": numbers[3:] or None,
        "count": sum(hazards) or 1,
        "text": [line for line in block if not re.match(r"(Saved host backtrace|Host Frame|in /)", line)][:8],
    }


def _kind(headline: str, body: str) -> str:
    if "Race reported" in headline:
        return "race"
    if "is misaligned" in body:
        return "misaligned"
    return next((kind for start, kind in _KINDS.items() if headline.startswith(start)), headline)


def errors(log: str) -> int | None:
    """How many errors the tool counts in its last line; None if it has not come so far."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    return int(found[-1]) if found else None


# ------------------------------------------------------------------------------------------------- one process, one job


def _child(job: str, name: str, out: Path) -> None:
    """Run a job on the GPU, and write what came of it."""
    result = _JOBS[job](name)
    out.write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    if job in ("sticky", "late") or (isinstance(result, dict) and result.get("error")):
        os._exit(0)  # what a broken context says when it is taken down is of no interest


def _arguments(cuda: typing.Any, case: typing.Any) -> tuple[list, list]:
    """A bug's arguments on the device, and as they are on the host."""
    host = list(case.make(np.zeros))
    made = case.make(cuda.device_array)
    given = [cuda.to_device(one) if isinstance(one, np.ndarray) else one for one in made]
    return given, host


def _clause(error: Exception) -> str:
    """An error in a line."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


def _alone(name: str) -> dict:
    """A bug by itself, several times: how many elements are wrong each time, the first of them, or the error."""
    from pmpp import cuda

    case = _named(name)
    kernel, wrong, where = cuda.jit(case.function), [], np.zeros(0, int)
    for _ in range(REPEATS):
        given, host = _arguments(cuda, case)
        try:
            kernel[case.grid, case.block](*given)
            cuda.synchronize()
            bad = given[-1].copy_to_host() != case.expected(*host)
        except Exception as error:  # whatever the driver says is the result
            return {"elements": int(host[-1].size), "wrong": wrong, "error": _clause(error)}
        wrong.append(int(np.count_nonzero(bad)))
        where = np.flatnonzero(bad) if bad.any() else where
    return {"elements": int(host[-1].size), "wrong": wrong, "error": "", "where": where[:64].tolist()}


def _watched(name: str) -> dict:
    """A bug once, compiled with line numbers: this is what runs under a tool."""
    from pmpp import cuda

    case = _named(name)
    given, _ = _arguments(cuda, case)
    try:
        cuda.jit(lineinfo=True)(case.function)[case.grid, case.block](*given)
        cuda.synchronize()
    except Exception as error:
        return {"error": _clause(error)}
    return {"error": ""}


def _sticky(name: str) -> list:
    """An access far outside of an array, waited for, and then calls that are right: what each of them says."""
    return _steps(name, wait=True)


def _late(name: str) -> list:
    """The same without waiting: which call is the first to hear of the error."""
    return _steps(name, wait=False)


def _steps(name: str, wait: bool) -> list:
    from pmpp import cuda

    case, right = _named(name), _named("accidental float64")  # right, if slow
    (given, _), (fine, _) = _arguments(cuda, case), _arguments(cuda, right)
    wrong_kernel, right_kernel = cuda.jit(case.function), cuda.jit(right.function)
    right_kernel[right.grid, right.block](*fine)  # compiled, and seen to work
    cuda.synchronize()
    steps: list[tuple[str, Callable]] = [
        ("launch the wrong kernel", lambda: wrong_kernel[case.grid, case.block](*given)),
        *([("cuda.synchronize()", cuda.synchronize)] if wait else []),
        ("launch a right kernel", lambda: right_kernel[right.grid, right.block](*fine)),
        ("copy its result to the host", fine[-1].copy_to_host),
        ("copy a new array to the GPU", lambda: cuda.to_device(np.zeros(8, np.float32))),
    ]
    said = []
    for what, step in steps:
        try:
            step()
            said.append([what, "no error"])
        except Exception as error:  # whatever the driver says is the result
            said.append([what, _clause(error)])
    return said


def _asserting(_name: str) -> dict:
    """An assertion that fails, without and with ``debug=True``."""
    from pmpp import cuda

    catalogue = importlib.import_module(CATALOGUE)
    function = getattr(catalogue.add_asserting, "py_func", catalogue.add_asserting)
    said = {}
    for title, options in {"as usual": {}, "debug=True, opt=False": {"debug": True, "opt": False}}.items():
        case = _named("missing guard")
        given, _ = _arguments(cuda, case)
        try:
            cuda.jit(**options)(function)[case.grid, case.block](*given)
            cuda.synchronize()
            said[title] = "no error"
        except Exception as error:
            said[title] = re.sub(r"\S*/(?=\w+\.py)", "", _clause(error))
    return said


def _printing(_name: str) -> dict:
    """Some warps announce themselves; what they print goes to the output of the process."""
    from pmpp import cuda

    catalogue = importlib.import_module(CATALOGUE)
    x = cuda.to_device(np.arange(8 * 96, dtype=np.float32))
    catalogue.announce[8, 96](x)
    cuda.synchronize()
    return {}


def _timed(order: str) -> dict:
    """Microseconds of a launch of a kernel that is right, the median of five, as JSON orders it: elements, options."""
    from pmpp import cuda

    order = json.loads(order)
    case, n = _named("barrier in a branch"), order["elements"]
    kernel = cuda.jit(**order["options"])(getattr(case.mended, "py_func", case.mended))
    x, sums = cuda.to_device(np.ones(n, np.float32)), cuda.device_array(n // case.block, np.float32)
    took = []
    for _ in range(7):
        begin = time.perf_counter()
        kernel[n // case.block, case.block](x, sums)
        cuda.synchronize()
        took.append((time.perf_counter() - begin) * 1e6)
    right = bool((sums.copy_to_host() == case.block).all())
    return {"us": float(f"{statistics.median(took[2:]):.4g}"), "right": right}


_JOBS: Mapping[str, Callable[[str], typing.Any]] = {
    "alone": _alone,
    "watched": _watched,
    "sticky": _sticky,
    "late": _late,
    "asserting": _asserting,
    "printing": _printing,
    "timed": _timed,
}


def _named(name: str) -> typing.Any:
    return next(case for case in cases() if case.name == name)


# ------------------------------------------------------------------------------------------------------ on the GPU: all


def _run(before: Sequence[str], job: str, name: str = "", patience: float = PATIENCE) -> dict:
    """A job in a process of its own, below the command ``before``: its ``result``, ``log``, ``seconds`` and ``fault``.

    The process and all that it has started are killed when ``patience`` seconds are over.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "result.json", Path(folder) / "log.txt"
        own = [sys.executable, "-m", "pmpp.lab.measure.debugging", "--child", job, name, str(out)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        settings = os.environ | {"PMPP_CHECK": "0", "PYTHONPATH": path, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
        begin, fault = time.perf_counter(), ""
        with log.open("wb") as said:
            try:
                process = subprocess.Popen(
                    [*before, *own],
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    env=settings,
                    cwd=ROOT,
                    start_new_session=True,
                )
            except OSError as error:
                return {"result": None, "log": "", "seconds": 0.0, "fault": f"not started: {error}"}
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                fault = f"still running after {patience:g} s, and killed"
                _kill(process)
        text = log.read_text(encoding="utf-8", errors="replace")
        result = json.loads(out.read_text(encoding="utf-8")) if out.exists() and out.stat().st_size else None
        if result is None and not fault:
            last = [line for line in text.splitlines() if line.strip()]
            fault = f"ended with status {process.returncode}: {last[-1][:200] if last else 'nothing said'}"
    return {"result": result, "log": text, "seconds": round(time.perf_counter() - begin, 1), "fault": fault}


def _kill(process: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (OSError, AttributeError):  # already gone, or Windows
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # then the driver holds it, and it is no longer ours
        process.wait(30)


def _program(name: str) -> str | None:
    """Where a program of the CUDA toolkit is, or None."""
    usual = Path("/usr/local/cuda/bin") / name
    return shutil.which(name) or (str(usual) if usual.exists() else None)


def _version(program: str | None) -> str:
    """The version that a program of the CUDA toolkit gives itself, or "missing"."""
    if program is None:
        return "missing"
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return "missing"
    found = re.search(r"(?:[Vv]ersion|release) (\d[\d.]*)", said.stdout + said.stderr)
    return found[1] if found else "unknown"


def _names(kernel: str, function: str) -> bool:
    """Whether a tool's name of a kernel is that of a function: in plain words, or as the linker has it."""
    return kernel == function or (kernel.startswith("_Z") and f"{len(function)}{function}" in kernel)


def _under(sanitizer: str | None, tool: str, case: typing.Any) -> dict:
    """What one tool says about one bug."""
    if sanitizer is None:
        return {"status": "missing", "why": "compute-sanitizer is not installed"}
    done = _run([sanitizer, *TOOLS[tool], *COMMON], "watched", case.name)
    total = errors(done["log"])
    named = [one for one in findings(done["log"]) if _names(one["kernel"], case.function.__name__)]
    if total is None and not named:
        said = [line for line in done["log"].splitlines() if line.strip()]
        why = next((line for line in said if "unrecogni" in line), done["fault"] or "it has said nothing")[:200]
        if "unrecogni" in why:
            return {"status": "missing", "why": f"this version does not know it: {why.lstrip('= ')}"}
        return {"status": "failed", "why": why, "seconds": done["seconds"]}
    source, first = inspect.getsourcelines(case.function)
    for one in named:
        # A line of the file moves when something above it changes; its text does not.
        at = [line - first for line in one.pop("places")]
        one["lines"] = [source[line].partition("#")[0].strip() for line in at if 0 <= line < len(source)]
    return {
        "status": "found" if named else "silent",
        "errors": total,
        "findings": named[:6],
        "error": (done["result"] or {}).get("error", done["fault"]),
        "seconds": done["seconds"],
    }


def measure(path: Path, say: Callable[[str], typing.Any] = print) -> dict:
    """Run everything on this machine's GPU and write the record to ``path``, after every step anew; returns it.

    Raises RuntimeError where no GPU is in use.
    """
    if not device.on_gpu():
        raise RuntimeError("the debugging record is measured on a GPU: here kernels run in the interpreter")
    sanitizer, debugger = _program("compute-sanitizer"), _program("cuda-gdb")
    record: dict[str, typing.Any] = {
        "about": {
            "run": environment.describe_machine(),
            "gpu": environment.describe_gpu(),
            "compute_sanitizer": _version(sanitizer),
            "cuda_gdb": _version(debugger),
            "measured_by": SOURCE,
            "sources": Sources().digests(SOURCE, within=MEASURED),
        },
        "bugs": {case.name: {"kernel": case.function.__name__, "alone": None, "tools": {}} for case in cases()},
    }

    def keep(what: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        say(f"{time.perf_counter() - begin:6.0f} s  {what}")

    begin = time.perf_counter()
    ends = [case for case in cases() if not case.hangs]
    for case in ends:
        done = _run([], "alone", case.name, HANG)
        record["bugs"][case.name]["alone"] = done["result"] or {"fault": done["fault"]}
    keep("every bug by itself")
    far = next((case.name for case in ends if (record["bugs"][case.name]["alone"] or {}).get("error")), "")
    far = far or "bytes for elements"
    for job in ("sticky", "late"):
        done = _run([], job, far)
        record[job] = {"bug": far, "steps": done["result"] or [], "fault": done["fault"]}
    done = _run([], "asserting")
    record["asserting"] = done["result"] or {"fault": done["fault"]}
    done = _run([], "printing")
    record["printing"] = [line.strip() for line in done["log"].splitlines() if line.startswith("block")]
    keep("errors that stay, assertions, print")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(_under, sanitizer, tool, case): (case.name, tool) for case in ends for tool in TOOLS}
        for future in concurrent.futures.as_completed(waiting):
            name, tool = waiting[future]
            record["bugs"][name]["tools"][tool] = future.result()
            keep(f"{tool}: {name}: {future.result()['status']}")
    for case in ends:  # in the order of the tools, not of their ends
        known = record["bugs"][case.name]["tools"]
        record["bugs"][case.name]["tools"] = {tool: known[tool] for tool in TOOLS}
    record["cost"] = _cost(sanitizer)
    keep("what checking costs")
    record["cuda_gdb"] = _debugged(debugger, far)
    keep(f"cuda-gdb {record['about']['cuda_gdb']}")
    for case in cases():
        if case.hangs:
            done = _run([], "alone", case.name, HANG)
            record["bugs"][case.name]["alone"] = {"fault": done["fault"]} if done["fault"] else done["result"]
    keep("what does not end")
    return record


def _cost(sanitizer: str | None) -> dict:
    """Microseconds of one right kernel: as usual, without optimisation, and under each tool."""
    runs: dict[str, tuple[list[str], dict]] = {"as usual": ([], {}), "lineinfo=True": ([], {"lineinfo": True})}
    runs["debug=True, opt=False"] = [], {"debug": True, "opt": False}
    if sanitizer is not None:
        for tool, arguments in TOOLS.items():
            runs[tool] = [sanitizer, *arguments, *COMMON], {"lineinfo": True}
    found = {}
    for name, (before, options) in runs.items():
        done = _run(before, "timed", json.dumps({"elements": COST, "options": options}))
        found[name] = (done["result"] or {"fault": done["fault"]}) | {"seconds": done["seconds"]}
    return {"elements": COST, "kernel": "block_sums_mended", "runs": found}


def _debugged(debugger: str | None, name: str) -> dict:
    """What cuda-gdb says about a bug that a GPU stops at; the lines without addresses of libraries and threads."""
    if debugger is None:
        return {"status": "missing"}
    orders = ["run", "bt 3", "info cuda kernels", "info cuda lanes"]
    before = [debugger, "-batch", "-nx", *(part for order in orders for part in ("-ex", order)), "--args"]
    done = _run(before, "watched", name)
    dull = re.compile(r"^(\[|warning|Reading|Using host|Download|Missing|To enable|This GDB|Enable|Debuginfod|$)")
    kept = [line.rstrip()[:160] for line in done["log"].splitlines() if not dull.match(line)]
    over = done["fault"] if "killed" in done["fault"] else ""  # to end without a result is what a debugger does here
    return {"status": "ran", "bug": name, "fault": over, "lines": kept[:40]}


# --------------------------------------------------------------------------------------------------------- the record


def recorded(path: Path | None = None) -> dict | None:
    """The record, or None where nothing has been recorded yet."""
    path = RECORD if path is None else path
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def missing(record: dict | None) -> str:
    """What a chapter says in place of the record: a sentence, or "" if there is one."""
    if record is not None:
        return ""
    return "Not recorded yet: on a machine with an NVIDIA GPU run  python -m pmpp.lab.measure.debugging --gpu"


def told(record: dict | None, name: str, tool: str) -> str:
    """What a tool says about a bug: asked on the spot where there are a GPU and the tool, else as it was recorded.

    The kernel's modules and the types of its arguments are left out; the record has them.
    """
    found = None if record is None else record["bugs"][name]["tools"].get(tool)
    sanitizer = _program("compute-sanitizer") if device.on_gpu() else None
    if sanitizer is not None:
        found = _under(sanitizer, tool, _named(name))
    if found is None:
        return missing(record) or f"{tool} was not run on {name}"
    if found["status"] == "silent":
        return f"{tool}: nothing about {name}"
    if found["status"] != "found":
        return f"{tool}: {found['status']}, {found['why']}"
    first = found["findings"][0]
    lines = [_LONG.sub(r"at \1", line) for line in first["text"] if not line.startswith("Device Frame")]
    lines = [_ADDRESS.sub("0x...", line) for line in lines]  # they differ in every run
    return "\n".join([*lines, *(f"    {line}" for line in first["lines"]), f"reported {first['count']:,} times"])


def steps(record: dict | None, part: str) -> str:
    """One call after the other after an access far outside: ``part`` is "sticky" or "late" (without waiting)."""
    if record is None:
        return missing(record)
    found = record[part]
    return "\n".join([f"{what:32} {said}" for what, said in found["steps"]]) or found["fault"]


def asserted(record: dict | None) -> str:
    """What an assertion that fails does, without and with ``debug=True``."""
    return missing(record) if record is None else "\n".join(f"{k:24}{v}" for k, v in record["asserting"].items())


def printed(record: dict | None) -> str:
    """What came out of ``print``, in the order in which it came."""
    return missing(record) if record is None else "\n".join(record["printing"])


def debugged(record: dict | None) -> str:
    """What cuda-gdb has said."""
    if record is None:
        return missing(record)
    found = record.get("cuda_gdb") or {}
    return "\n".join(found["lines"]) if found.get("lines") else "cuda-gdb was not installed on the recorded machine"


def slowdowns(record: dict | None) -> dict[str, float]:
    """How many times longer one launch took on the GPU, by what watched it; empty where nothing is recorded."""
    runs = ((record or {}).get("cost") or {}).get("runs", {})  # a run that was cut short has none
    took = {name: run["us"] for name, run in runs.items() if run.get("us") and run["right"]}
    return {name: us / took["as usual"] for name, us in took.items() if name != "as usual" and "as usual" in took}


# ------------------------------------------------------------------------------------------------------ the interpreter


def interpret(case: typing.Any, kernel: typing.Any = None, level: str = "check", **options: typing.Any) -> tuple:
    """A bug in the interpreter: the report of its launch, the result, and the result that it should have.

    ``kernel`` runs in place of the bug, on the same arguments. ``options`` are those of `pmpp.simt.profile`. Accesses
    out of bounds are collected in the report.
    """
    args = case.make(simt.cuda.device_array)
    chosen = case.kernel if kernel is None else kernel
    report = simt.profile(chosen, case.grid, case.block, args, level=level, collect=level == "check", **options)
    result = args[-1].copy_to_host() if hasattr(args[-1], "copy_to_host") else args[-1]
    return report, result, case.expected(*case.make(np.zeros))


def says(case: typing.Any) -> str:
    """What level "check" of the interpreter calls a bug; "" if it has nothing to say."""
    try:
        report, _, _ = interpret(case)
    except simt.SimtError:
        return "endless loop"
    kinds = [one.kind.replace("_", " ") for one in report.hazards] + [one.kind for one in report.warnings]
    return ", ".join(dict.fromkeys(kinds))


def alone(entry: Mapping) -> str:
    """What the GPU did with a bug by itself, in a few words."""
    found = entry.get("alone") or {}
    if found.get("fault"):
        return found["fault"]
    if found.get("error"):
        code = re.search(r"CUDA_ERROR_\w+", found["error"])
        return code[0] if code else found["error"].partition(":")[2].strip() or found["error"]
    wrong, elements = found["wrong"], found["elements"]
    if not any(wrong):
        return f"right, {len(wrong)} times"
    if len(set(wrong)) == 1:
        return f"{wrong[0]:,} of {elements:,} wrong"
    return f"{min(wrong):,} to {max(wrong):,} of {elements:,} wrong"


def table(record: dict, interpreter: Mapping[str, str] | None = None) -> Table:
    """A row a bug: what the GPU shows by itself, and what each tool calls it.

    ``interpreter`` has what the interpreter says by the name of the bug, for a column of its own.
    """
    about = record["about"]
    rows = []
    for name, entry in record["bugs"].items():
        said = [_said(entry["tools"].get(tool)) for tool in TOOLS]
        rows.append((name, alone(entry), *([interpreter.get(name) or "-"] if interpreter is not None else []), *said))
    title = f"{about['gpu']['name']}, {about['run']['date'][:10]}, compute-sanitizer {about['compute_sanitizer']}"
    heads = "bug", "the GPU by itself", *(["interpreter"] if interpreter is not None else []), *TOOLS
    return Table(title, heads, rows, (2, len(heads) - 2))


def _said(found: Mapping | None) -> str:
    if found is None:
        return "not run"
    if found["status"] != "found":
        return {"silent": "-"}.get(found["status"], found["status"])
    kinds = collections.Counter()
    for one in found["findings"]:
        kinds[one["kind"]] += one["count"]
    return ", ".join(kinds)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where there is no record to show."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.debugging", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--gpu", action="store_true", help="run everything on this GPU, and record it")
    parser.add_argument("--out", type=Path, help="where the record goes; by default below pmpp/recorded/<gpu>/")
    parser.add_argument("--child", nargs=3, metavar=("JOB", "NAME", "OUT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        job, name, out = chosen.child
        _child(job, name, Path(out))
        return 0
    if chosen.gpu:
        path = chosen.out
        if path is None:
            name = device.limits()["name"]
            path = RECORDED / slug(name.decode() if isinstance(name, bytes) else name) / RECORD.name
        print(table(measure(path)))
        print(path)
        return 0
    record = recorded(chosen.out)
    print(missing(record) if record is None else table(record))
    return int(record is None)


if __name__ == "__main__":
    sys.exit(main())
