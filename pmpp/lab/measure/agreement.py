"""Does the interpreter count what the hardware counts?  The same launches under Nsight Compute and in the interpreter.

::

    python -m pmpp.lab.measure.agreement                    the table: recorded hardware values beside the interpreter's
    python -m pmpp.lab.measure.agreement --all              every row, not only where the two differ
    python -m pmpp.lab.measure.agreement --gpu OUT.json     run every kernel under ``ncu`` on this GPU, and record the
    values

What is run is said by ``pmpp.kernels.instruments.agreement``: a list of `Case`, each one launch of one kernel, with
the reason
for every metric in which the interpreter is known to differ from the hardware. The interpreter counts the accesses and
operations of the Python source. The hardware runs what a compiler made of it, which merges loads, turns branches into
predicates and drops what nobody needs. A reason says which, and was read from the machine code (SASS). A difference
without a reason is a fault, of the interpreter or of this table, and the tests fail over it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import functools
import hashlib
import importlib
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pmpp.lab.measure import environment as machine
from pmpp.lab.measure import nsight
from pmpp.lab.measure.record import RECORDED
from pmpp.lab.measure.sources import bare_source
from pmpp.runtime import device
from pmpp.runtime.rung import Rung
from pmpp.simt import Table

__all__ = [
    "METRICS", "Case", "Launch", "Metric", "Reason", "Row", "by_metric", "by_reason", "by_room", "cases", "faults",
    "interpret", "main", "measure", "older", "recorded", "rows", "summary", "table",
]  # fmt: skip

RECORD = RECORDED / "nvidia-h200" / "agreement.json"
CATALOGUE = "pmpp.kernels.instruments.agreement"


class Reason(str):
    """Why two counts differ, in words. ``seen``: the machine instructions that show it, by the start of their names."""

    seen: tuple[str, ...]

    def __new__(cls, text: str, *seen: str) -> Reason:
        reason = super().__new__(cls, text)
        reason.seen = seen
        return reason


@dataclass(frozen=True)
class Case:
    """One launch: a rung called with ``args()``, or a kernel launched on them with ``grid`` and ``block``.

    ``differs`` gives, by the name of a metric, why the hardware's value is not the interpreter's. ``launched`` is the
    name of the kernel that is compared, if it is not the first of a rung's kernels.
    """

    name: str
    target: typing.Any
    args: Callable[[], tuple]
    grid: typing.Any = None
    block: typing.Any = None
    differs: Mapping[str, Reason] = field(default_factory=dict)
    launched: str = ""

    @property
    def kernel(self) -> typing.Any:
        """The kernel that is compared, or the function that makes it for some sizes: one of a rung's kernels."""
        if not isinstance(self.target, Rung):
            return self.target
        kernels = self.target.kernels
        named = [one for one in kernels if _name(one) == self.launched]
        named = named or [one for one in kernels if f"def {self.launched}(" in _source(_function(one))[0]]
        return (named or kernels)[0]

    @property
    def kernel_name(self) -> str:
        """The name of the kernel that is compared, as it is launched."""
        return self.launched or _name(self.kernel)

    def run(self) -> None:
        """Launch, on whatever backend is in use, and wait."""
        args = [device.to_device(a) if isinstance(a, np.ndarray) else a for a in self.args()]
        if isinstance(self.target, Rung):
            self.target(*args)
        else:
            self.target[self.grid, self.block](*args)
        device.backend().cuda.synchronize()

    @property
    def digest(self) -> str:
        """Of the kernel's source, of what it calls and reads, and of the arguments: a record of another is stale."""
        text = hashlib.sha256()
        for piece in _code(self.kernel, set()):
            text.update(piece.encode())
        for a in self.args():
            array = isinstance(a, np.ndarray)
            text.update(repr((a.dtype.str, a.shape)).encode() + a.tobytes() if array else b"%r" % (a,))
        text.update(repr((self.grid, self.block)).encode())
        return text.hexdigest()[:16]


def _name(kernel: typing.Any) -> str:
    return getattr(kernel, "py_func", kernel).__name__


def _function(kernel: typing.Any) -> typing.Any:
    """The Python function of a kernel, of a device function, or of a function that makes one and keeps it."""
    return inspect.unwrap(getattr(kernel, "py_func", kernel))


@functools.cache
def _source(function: types.FunctionType) -> tuple[str, list[str]]:
    """The source of a function without comments and layout, and the names in it."""
    bare = bare_source(textwrap.dedent(inspect.getsource(function)))
    return bare, sorted(set(re.findall(r"[^\W\d]\w*", bare)))  # not those in a docstring, of what is not called


def _code(function: typing.Any, seen: set) -> list[str]:
    """The source of a kernel without comments and layout, then of the functions and constants that it names."""
    function = _function(function)
    if not isinstance(function, types.FunctionType) or function in seen:
        return []
    seen.add(function)
    bare, names = _source(function)
    pieces = [bare]
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, (bool, int, float, str, tuple)):
            pieces.append(f"{name} = {value!r}")
        elif hasattr(value, "py_func"):
            pieces += _code(value, seen)
    return pieces


@functools.cache
def cases() -> tuple[Case, ...]:
    """The catalogue."""
    return importlib.import_module(CATALOGUE).CASES


# ------------------------------------------------------------------------------------------------ what is compared


@dataclass(frozen=True)
class Metric:
    """One column of the comparison: what Nsight Compute says, and what the interpreter's counters say.

    ``nsight`` are the metrics that ``ncu`` collects for it; ``hardware`` makes one number of a recorded launch, and
    ``interpreter`` one of a report's counters. ``unit`` names a counter of the memory system for the same thing, where
    ``nsight`` counts it by instruction. ``reason`` holds wherever the two differ.
    """

    name: str
    nsight: tuple[str, ...]
    hardware: Callable[[Launch], float]
    interpreter: Callable[[Mapping[str, int]], float]
    unit: str = ""
    reason: str = ""


#: Bytes of a lane, by the part of an instruction's name that says so; 4 if none does.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclass(frozen=True)
class Launch:
    """One launch as recorded: its shape, what ``ncu`` measured, and which machine instructions its warps executed.

    ``opcodes`` has a pair for each: how often a warp executed it, and with how many lanes in all. Those that a
    predicate guards begin with "@".
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    digest: str
    values: Mapping[str, float]
    opcodes: Mapping[str, tuple[int, int]]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)

    def executed(self, start: str) -> int:
        """How often warps executed the instructions whose name begins so, guarded or not."""
        return sum(n for name, (n, _) in self.opcodes.items() if name.lstrip("@").startswith(start))

    def moved(self, kind: str) -> int:
        """How many bytes the lanes moved by instructions of a kind: LDG or STG, LDS or STS."""
        named = ((name.lstrip("@").split("."), lanes) for name, (_, lanes) in self.opcodes.items())
        widths = (
            (lanes, next((_WIDTHS[part] for part in parts if part in _WIDTHS), 4))
            for parts, lanes in named if parts[0] == kind
        )  # fmt: skip
        return sum(lanes * width for lanes, width in widths)


_LSU = "l1tex__{}_pipe_lsu_mem_{}_op_{}.sum"


def _plain(name: str, counter: str, nsight: str, unit: str = "") -> Metric:
    return Metric(name, (nsight,), lambda run: run.values[nsight], lambda counts: counts[counter], unit)


def _flops(letters: str) -> tuple[tuple[str, ...], Callable[[Launch], float]]:
    weights = {"add": 1, "mul": 1, "fma": 2}
    parts = {
        f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum": weight
        for letter in letters
        for op, weight in weights.items()
    }
    return tuple(parts), lambda run: sum(weight * run.values[name] for name, weight in parts.items())


def _sum(name: str, *ops: str) -> tuple[tuple[str, ...], Callable[[Launch], float]]:
    names = tuple(name.format(op) for op in ops)
    return names, lambda run: sum(run.values[each] for each in names)


_THREADS, _INSTRUCTIONS = "smsp__thread_inst_executed.sum", "smsp__inst_executed.sum"
_DIVERGENT = "smsp__sass_branch_targets_threads_divergent.sum"


def _metrics() -> Iterable[Metric]:
    for kind, op in (("load", "ld"), ("store", "st")):
        yield _plain(f"global {kind} requests", f"global_{kind}_requests", _LSU.format("t_requests", "global", op))
        # By instruction: the L1's own counter of the same can be a little off, up or down, in such small launches.
        by_instruction = f"smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_{op}.sum"
        unit = _LSU.format("t_sectors", "global", op)
        yield _plain(f"global {kind} sectors", f"global_{kind}_sectors", by_instruction, unit)
    for kind, op in (("load", "ld"), ("store", "st")):
        by_instruction = f"smsp__sass_inst_executed_op_shared_{op}.sum"
        yield _plain(f"shared {kind} requests", f"shared_{kind}_requests", by_instruction)
        # By the unit: what ncu derives for an instruction is too much for some wide loads in which lanes share.
        for what, name in (
            ("wavefronts", "data_pipe_lsu_wavefronts"),
            ("bank conflicts", "data_bank_conflicts_pipe_lsu"),
        ):
            counter = f"shared_{kind}_{what.replace(' ', '_')}"
            yield _plain(f"shared {kind} {what}", counter, f"l1tex__{name}_mem_shared_op_{op}.sum")
    executed = "smsp__sass_inst_executed_op_{}.sum"
    atomics = _sum(executed, "global_atom", "global_red", "shared_atom")
    yield Metric("atomic requests", *atomics, lambda counts: counts["atomic_requests"])
    atomics = _sum("smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_{}.sum", "atom", "red")
    yield Metric("global atomic sectors", *atomics, lambda counts: counts["global_atomic_sectors"])
    yield Metric("local memory requests", *_sum(executed, "local_ld", "local_st"), lambda counts: 0)
    yield Metric("barriers", (), lambda run: run.executed("BAR.") / run.warps, lambda counts: counts["barriers"])
    yield _plain("divergent branches", "divergent_branches", _DIVERGENT)
    # No 16-bit ones: the compiler also uses HFMA2 to put a constant into a register.
    yield Metric("flops", *_flops("fd"), lambda counts: counts["flops"])
    yield Metric("flops in float64", *_flops("d"), lambda counts: counts["flops_f64"])
    yield Metric(
        "lanes an instruction",
        (_THREADS, _INSTRUCTIONS),
        lambda run: round(run.values[_THREADS] / run.values[_INSTRUCTIONS], 2),
        lambda counts: round(counts["thread_instructions"] / counts["warp_instructions"], 2),
        reason="an average over other instructions: a line of Python is several in machine code, and not as many for "
        "every line",
    )


METRICS = tuple(_metrics())


def nsight_names() -> list[str]:
    """Every metric that ``ncu`` is asked for."""
    names = [name for metric in METRICS for name in (*metric.nsight, metric.unit) if name]
    return [*dict.fromkeys(names)]


# -------------------------------------------------------------------------------------------------------- the two sides


def recorded(path: Path = RECORD) -> tuple[dict, dict[str, Launch]]:
    """``(runs, launches)`` of a record: GPU, versions and revision by date; and what was measured, by case."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    names = data["metrics"]
    launches = {}
    for name, entry in data["launches"].items():
        values = dict(zip(names, entry["values"], strict=True))
        opcodes = {opcode: tuple(pair) for opcode, pair in entry["opcodes"].items()}
        shape = (tuple(entry["grid"]), tuple(entry["block"]))
        launches[name] = Launch(entry["kernel"], *shape, entry["digest"], values, opcodes)
    return data["runs"], launches


def interpret() -> dict[str, dict]:
    """The catalogue in the interpreter, by case: ``kernel``, ``grid``, ``block`` and ``counters`` of its launch."""
    if device.on_gpu():  # the choice of the backend is for the whole process
        command = [sys.executable, "-m", "pmpp.lab.measure.agreement", "--interpret"]
        environment = {**os.environ, "PMPP_BACKEND": "simt"}
        return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    from pmpp import simt
    from pmpp.simt.host import launch as host

    plain, found = host.launch, {}
    for case in cases():

        def launch(kernel: Callable, *args: typing.Any, case: Case = case, **keywords: typing.Any) -> typing.Any:
            if kernel.__name__ != case.kernel_name:
                return plain(kernel, *args, **keywords | {"level": "run"})
            report = plain(kernel, *args, **keywords)
            counters = {key: int(value) for key, value in report.counters.items()}
            shape = {"grid": report.grid, "block": report.block}
            found[case.name] = {"kernel": report.kernel, **shape, "counters": counters}
            raise _Seen

        with _instead(host, "launch", launch), simt.record(level="count"):
            case.run()
    return found


class _Seen(Exception):
    """The launch that is compared is over: what the rung would do then is of no interest."""


@contextlib.contextmanager
def _instead(owner: typing.Any, name: str, call: Callable) -> Iterator[None]:
    """Another function in the place of one that launches, until it has seen what it is for."""
    plain = getattr(owner, name)
    setattr(owner, name, call)
    try:
        with contextlib.suppress(_Seen):
            yield
    finally:
        setattr(owner, name, plain)


@dataclass(frozen=True)
class Row:
    """One metric of one launch: both values, and the reason if they differ and a reason is known."""

    case: str
    metric: str
    hardware: float
    interpreter: float
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two are not the very same number."""
        return self.hardware != self.interpreter


def older(launches: Mapping[str, Launch]) -> list[str]:
    """The cases whose kernel or arguments changed since they were recorded. Only a GPU can record them again.

    They are compared with nothing. `make stale` names them.
    """
    return [case.name for case in cases() if case.name in launches and launches[case.name].digest != case.digest]


def rows(launches: Mapping[str, Launch], counted: Mapping[str, dict] | None = None) -> list[Row]:
    """Every metric of every case that is in the record as it is now, in the order of the catalogue."""
    counted = interpret() if counted is None else counted
    found, changed = [], older(launches)
    for case in cases():
        if case.name not in launches or case.name in changed:
            continue
        run, counters = launches[case.name], counted[case.name]["counters"]
        for metric in METRICS:
            pair = metric.hardware(run), metric.interpreter(counters)
            why = case.differs.get(metric.name, metric.reason) if pair[0] != pair[1] else ""
            found.append(Row(case.name, metric.name, *pair, str(why)))
    return found


def faults(launches: Mapping[str, Launch], counted: Mapping[str, dict] | None = None) -> list[str]:
    """What is wrong with the record or with the reasons; empty if every difference is explained.

    What is `older` than its kernel is no fault: nobody without a GPU could mend it.
    """
    counted = interpret() if counted is None else counted
    names, changed = [case.name for case in cases()], older(launches)
    found = [f"{name}: there are two cases of this name" for name in {n for n in names if names.count(n) > 1}]
    found += [f"{name}: recorded, but no longer in the catalogue" for name in launches if name not in names]
    for case in (one for one in cases() if one.name not in changed):
        run, now = launches.get(case.name), counted[case.name]
        if run is None:
            found.append(f"{case.name}: not recorded")
        elif (run.grid, run.block) != (tuple(now["grid"]), tuple(now["block"])):
            found.append(f"{case.name}: recorded with grid {run.grid} and block {run.block}, not as it is launched now")
    every = rows({name: run for name, run in launches.items() if name in names}, counted)
    differing = {(row.case, row.metric) for row in every if row.differs}
    found += [
        f"{row.case}: {row.metric}: {row.hardware:g} on the hardware, {row.interpreter:g} here, and no reason"
        for row in every if row.differs and not row.reason
    ]  # fmt: skip
    for case in (one for one in cases() if one.name not in changed):
        for metric, reason in case.differs.items() if case.name in launches else ():
            if (case.name, metric) not in differing:
                found.append(f"{case.name}: {metric}: a reason, but no difference")
            names = {form for name in launches[case.name].opcodes for form in (name, name.lstrip("@"))}
            unseen = [start for start in reason.seen if not any(name.startswith(start) for name in names)]
            if unseen:
                found.append(
                    f"{case.name}: {metric}: the reason speaks of {', '.join(unseen)}, which it did not execute"
                )
    return found


def table(every: Sequence[Row], *, all_rows: bool = False) -> str:
    """The comparison as text: each launch with the metrics in which the two differ, or with all that are not 0."""
    lines, notes, last = [], {}, None
    for row in every:
        if not (row.differs or all_rows) or row.hardware == row.interpreter == 0:
            continue
        if row.case != last:
            lines.append(row.case)
        last = row.case
        note = ""
        if row.differs:
            note = f"  ({notes.setdefault(row.reason, len(notes) + 1)})" if row.reason else "  UNEXPLAINED"
        difference = f"{row.hardware - row.interpreter:+g}" if row.differs else "equal"
        lines.append(f"  {row.metric:28}{row.hardware:>10g}{row.interpreter:>13g}{difference:>10}{note}")
    head = f"{'':30}{'hardware':>10}{'interpreter':>13}"
    reasons = [f"({number}) {reason}" for reason, number in notes.items()]
    return "\n".join([head, *lines, "", *reasons, "", str(by_metric(every))])


def summary(every: Sequence[Row]) -> str:
    """One sentence: how many launches and values, how many of them equal, and how many unexplained."""
    shown = [row for row in every if row.hardware or row.interpreter]
    differing = [row for row in shown if row.differs]
    launches, unexplained = len({row.case for row in every}), sum(not row.reason for row in differing)
    return (
        f"{launches} launches, {len(shown)} values that are not 0: {len(shown) - len(differing)} equal,"
        f" {len(differing)} differ, {unexplained} of them unexplained"
    )


def by_metric(every: Sequence[Row]) -> Table:
    """For each metric: what Nsight Compute calls it, in how many launches it is not 0, and in how many it is equal."""
    rows = []
    for metric in METRICS:
        of = [row for row in every if row.metric == metric.name and (row.hardware or row.interpreter)]
        names = f"{metric.nsight[0]} and {len(metric.nsight) - 1} more" if metric.nsight[1:] else "".join(metric.nsight)
        names = names or "BAR instructions in the source page"
        rows.append((metric.name, str(len(of)), str(sum(not row.differs for row in of)), names))
    return Table(summary(every), ("metric", "launches", "equal", "Nsight Compute"), rows)


def by_room(every: Sequence[Row]) -> Table:
    """For each room, and for the probes: its launches, how many of their values are not 0, and how many are equal."""
    found: dict[str, list[Row]] = {}
    for row in every:
        room, rung, _ = row.case.partition(": ")
        found.setdefault(room if rung else "probes", []).append(row)
    rows = []
    for room, of in found.items():
        shown = [row for row in of if row.hardware or row.interpreter]
        equal = sum(not row.differs for row in shown)
        rows.append((room, str(len({row.case for row in of})), str(len(shown)), str(equal)))
    return Table(summary(every), ("room", "launches", "values", "equal"), rows)


def by_reason(every: Sequence[Row], most: int | None = None) -> Table:
    """The reasons why values differ: how many values each explains, and one of them as an example.

    ``most``: so many of them, those that explain most.
    """
    found: dict[str, list[Row]] = {}
    for row in every:
        if row.differs:
            found.setdefault(row.reason or "UNEXPLAINED", []).append(row)
    rows = [
        (f"{of[0].case}: {of[0].metric}", f"{of[0].hardware:,g}", f"{of[0].interpreter:,g}", str(len(of)), reason)
        for reason, of in found.items()
    ]
    heads = ("for example", "hardware", "interpreter", "values", "reason")
    title = f"{len(found)} reasons for {sum(map(len, found.values()))} differences"
    if most is not None and most < len(rows):
        rows.sort(key=lambda row: -int(row[3]))
        title = f"{title}; the {most} that explain most"
    return Table(title, heads, rows[:most])


# ----------------------------------------------------------------------------------------------------- on the hardware


def measure(path: Path, *, keep: Path | None = None, stale_only: bool = False, together: int = 8) -> None:
    """Run the catalogue under ``ncu`` on this GPU, and write the record.

    ``stale_only``: run only what the record at ``path`` lacks or has of another source or other arguments, and keep the
    rest. ``keep``: a folder for ncu's own reports. ``together``: how many processes compile kernels at the same time.
    Raises RuntimeError if there is no GPU, or if ``ncu`` fails; what other processes measured is written before.
    """
    if not device.on_gpu():
        raise RuntimeError(f"kernels run in the interpreter: {device.backend().why}")
    names, data = nsight_names(), {"runs": {}, "launches": {}}
    if stale_only:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["metrics"] != names:
            raise RuntimeError(f"{path} has other metrics than are compared now: measure all kernels")
    digests = {case.name: case.digest for case in cases()}
    kept = {name: entry for name, entry in data["launches"].items() if digests.get(name) == entry["digest"]}
    due = [case for case in cases() if case.name not in kept]
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    measured, failed = _profiled(due, names, keep, max(1, together))
    found = kept | {name: {"run": date, "digest": digests[name], **entry} for name, entry in measured.items()}
    runs = data["runs"] | {
        date: {
            "gpu": machine.describe_gpu(),
            "revision": machine.revision(),
            "ncu": nsight.version(),
            "versions": {"python": platform.python_version(), **machine.versions()},
        }
    }
    write(path, runs, names, found)
    if failed:
        raise RuntimeError("\n".join(failed))


def write(path: Path, runs: Mapping[str, dict], names: Sequence[str], found: Mapping[str, dict]) -> None:
    """Write a record: a line for each case, in the order of the catalogue, and the runs that these are of."""
    used = {entry["run"] for entry in found.values()}
    parts = {"runs": {date: run for date, run in runs.items() if date in used}, "metrics": names}
    head = "".join(f' "{key}": {json.dumps(value)},\n' for key, value in parts.items())
    compact = {case.name: json.dumps(found[case.name], separators=(",", ":")) for case in cases() if case.name in found}
    body = ",\n".join(f"  {json.dumps(name)}: {entry}" for name, entry in compact.items())
    path.write_text(f'{{\n{head} "launches": {{\n{body}\n }}\n}}\n', encoding="utf-8")


def _profiled(
    due: Sequence[Case], names: Sequence[str], keep: Path | None, together: int
) -> tuple[dict[str, dict], list[str]]:
    """What ``ncu`` measured, by case, and what it said where it failed.

    Nearly all the time goes into compiling, on one core a process. So the cases are dealt out to several processes.
    ``ncu`` itself sees to it that one kernel at a time is profiled.
    """
    environment = {**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}

    def part(number: int) -> dict[str, dict]:
        mine = due[number::together]
        chosen = json.dumps([case.name for case in mine])
        command = [sys.executable, "-m", "pmpp.lab.measure.agreement", "--launch", chosen]
        report = keep / f"part_{number}.ncu-rep" if keep else None
        return _match(mine, nsight.profile(command, names, environment, report))

    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    measured, failed = {}, []
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        for done in [pool.submit(part, number) for number in range(min(together, len(due)))]:
            try:
                measured |= done.result()
            except RuntimeError as error:
                failed.append(str(error))
    return measured, failed


def _match(due: Sequence[Case], launches: Sequence[dict]) -> dict[str, dict]:
    """Launches by case: of each one was profiled."""
    seen = [launch["kernel"] for launch in launches]
    if seen != [case.kernel_name for case in due]:
        raise RuntimeError(f"ncu saw the kernels {', '.join(seen)}, which are not those of the cases")
    return {case.name: launch for case, launch in zip(due, launches, strict=True)}


def _run_profiled(case: Case) -> None:
    """Run a case under ``ncu``, which sees the first launch of its kernel alone. Others would take it many minutes."""
    from numba import cuda

    from pmpp.runtime.launcher import Launch

    plain = Launch.__call__

    def call(launch: typing.Any, *args: typing.Any) -> None:
        kernel = launch.dispatcher
        if kernel.py_func.__name__ != case.kernel_name:
            plain(launch, *args)
            return
        # It is compiled and loaded before, for ncu lets other processes wait while it profiles.
        kernel.compile(tuple(kernel.typeof_pyval(arg) for arg in args))
        cuda.synchronize()
        cuda.profile_start()
        plain(launch, *args)
        cuda.synchronize()
        cuda.profile_stop()
        raise _Seen

    with _instead(Launch, "__call__", call):
        case.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 if a difference is unexplained, or a case is not recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.agreement", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--all", action="store_true", help="every metric of every launch, not only the differences")
    parser.add_argument("--record", type=Path, default=RECORD, help="the record to compare with")
    parser.add_argument("--gpu", type=Path, metavar="OUT.json", help="measure on this GPU, and write a record")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --gpu: keep ncu's reports, with the SASS")
    parser.add_argument(
        "--stale", action="store_true", help="with --gpu: only what OUT.json lacks, or has of old source"
    )
    parser.add_argument("--launch", metavar="NAMES", help=argparse.SUPPRESS)
    parser.add_argument("--interpret", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.launch:
        names = json.loads(chosen.launch)
        for case in cases():
            if case.name in names:
                _run_profiled(case)
        return 0
    if chosen.interpret:
        print(json.dumps(interpret()))
        return 0
    if chosen.gpu:
        measure(chosen.gpu, keep=chosen.keep, stale_only=chosen.stale)
        return 0
    runs, launches = recorded(chosen.record)
    counted = interpret()
    for date, run in runs.items():
        print(f"{run['gpu']['name']}, {date}, revision {run['revision']}, Nsight Compute {run['ncu']}")
    print(table(rows(launches, counted), all_rows=chosen.all))
    if changed := older(launches):
        print(f"changed since they were recorded, and not compared: {', '.join(changed)}")
    found = faults(launches, counted)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
