"""Measures the rooms on this machine's GPU beside the libraries, prints a table and records it.

    python -m pmpp.lab.measure.bench [room ...] [--quick] [--out PATH] [--budget SECONDS]
    python -m pmpp.lab.measure.bench --processes 14              so many processes take turns on the GPU
    python -m pmpp.lab.measure.bench --stale                     what the record lacks, or has of other sources
    python -m pmpp.lab.measure.bench --part 2/4 --into DIR       the second of four parts that take equally long
    python -m pmpp.lab.measure.bench --merge DIR [DIR ...]       what parts have recorded, merged into the record

A subject's ``workloads.py`` or ``<room>_workloads.py`` says what is measured: a list ``WORKLOADS``.
`pmpp.lab.measure.timing` says how, and `pmpp.lab.measure.record` where it is kept.

The sizes that a room is judged by, its *design sizes*, come first for all rooms, and none is left out for want of time:
if the budget is short its contenders get fewer repetitions. The other sizes share what is left of the budget. What it
does not suffice for is named in the record, and keeps the times of an earlier run, which figures name by its date.
`make stale` names each design size that a record lacks. On SIGTERM
and Ctrl-C the measuring stops, and what was measured is recorded.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import math
import signal
import statistics
import sys
import time
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pmpp.lab.measure import environment, record, roofline, timing, turns
from pmpp.lab.measure.parts import Part, share
from pmpp.lab.measure.record import Entry, Record, RecordError, load
from pmpp.lab.measure.sources import Sources
from pmpp.lab.measure.timing import Timing, WrongResult, measure, measure_host, measure_together
from pmpp.lab.rooms import room_named, subject_of, workload_modules
from pmpp.runtime.rung import Cost, Rung

__all__ = [
    "Entry",
    "Record",
    "RecordError",
    "Timing",
    "Workload",
    "WrongResult",
    "load",
    "main",
    "measure",
    "measure_host",
    "measure_together",
    "missing",
    "run",
    "run_rooms",
    "table",
]


@dataclass(frozen=True)
class Workload:
    """One problem of one size, and who is to solve it.

    Attributes:
        family: what is computed (``"sum"``). A sweep is all workloads of a family.
        name: the size in words (``"2^28"``). sizes: the same in numbers; the first is the sweep's horizontal axis.
        cost: the least that any version by the definition must do. own: the same for the rungs' algorithm, if that is
            another than the definition's.
        make: ``make(seed)`` -> the inputs, device arrays.
        output: ``output()`` -> a device array for the result, given to rungs as ``out=`` and to libraries as their last
            argument; None if they make their own.
        rungs: the contenders of the room, rungs or plain functions.
        libraries: ``{"torch.add": lambda torch, x, y, out: ...}``; the part before the point is the package, which is
            imported, handed in first, and given its own kind of arrays. ``"cuda"`` is the backend.
        verify: ``verify(result, *inputs) -> (error, tolerance)`` of the worst element, with CuPy arrays where CuPy is
            installed, else NumPy's. probe: ``probe(call)``, further checks of a rung on inputs of its own.
        design: the size that the ladder is judged by. cache: ``"cold"`` or ``"warm"``, as in
        ``pmpp.lab.measure.timing``.
        host: ``{"numpy.add": f}``, timed by the host's clock; ``host_args(*inputs)`` makes their arguments, by default
            NumPy copies of the inputs. host_kind: ``"numpy"`` or ``"transfer"``.
        end_to_end: also time the last rung from NumPy arrays to a NumPy array. state: how many inputs, the last ones, a
            call changes, as running means: they stay on the GPU from call to call, end to end, too.
        quick: part of ``--quick``.
    """

    family: str
    name: str
    sizes: Mapping[str, int]
    cost: Cost
    make: Callable[[int], tuple] = lambda seed: ()
    output: Callable[[], typing.Any] | None = None
    rungs: Sequence[Rung | Callable] = ()
    libraries: Mapping[str, Callable] = field(default_factory=dict)
    verify: Callable[..., tuple[float, float]] | None = None
    probe: Callable[[Callable], object] | None = None
    design: bool = False
    cache: str = "cold"
    host: Mapping[str, Callable] = field(default_factory=dict)
    host_args: Callable[..., tuple] | None = None
    host_kind: str = "numpy"
    end_to_end: bool = False
    state: int = 0
    quick: bool = False
    own: Cost | None = None

    @property
    def weight(self) -> int:
        """How many timings this is."""
        return len(self.rungs) + len(self.libraries) + len(self.host) + self.end_to_end

    @property
    def label(self) -> str:
        return f"{self.family} {self.name}"


MOST_SETS = 16  # of inputs to rotate over


def input_sets(set_bytes: int, l2_bytes: int, cache: str) -> int:
    """How many input sets: one if the cache is to be warm, else enough for twice the L2 cache, from 2 to 16."""
    if cache == "warm":
        return 1
    return min(MOST_SETS, max(2, math.ceil(2 * l2_bytes / max(set_bytes, 1))))


# ------------------------------------------------------------------------------------------- one workload on this GPU


def adapter(package: str) -> tuple[types.ModuleType, Callable[[typing.Any], typing.Any]]:
    """A library, and what makes its kind of array of a device array without copying. Raises ImportError."""
    if package == "cuda":
        from pmpp.runtime import device

        return device.backend().cuda, lambda x: x
    module = importlib.import_module(package)
    if package == "torch":
        # The baseline is float32 arithmetic, not the tensor cores' 19-bit TF32.
        module.backends.cuda.matmul.allow_tf32 = False
        module.backends.cudnn.allow_tf32 = False
        module.backends.cudnn.benchmark = True  # it measures its algorithms at the first call and keeps the fastest
        from pmpp.lab.measure.arrays import torch_tensor

        return module, functools.partial(torch_tensor, module)
    return module, module.asarray


def name_of(rung: Rung | Callable) -> str:
    return getattr(rung, "name", None) or rung.__name__


def rung_call(rung: Rung | Callable, output: bool) -> Callable:
    if not output:
        return rung
    if "out" not in inspect.signature(rung).parameters:
        return lambda *args: rung(*args[:-1])
    return lambda *args: rung(*args[:-1], out=args[-1])


class Stage:
    """The inputs and outputs of one workload, shared by its contenders."""

    def __init__(self, workload: Workload, count: int) -> None:
        self.workload = workload
        self.inputs = [workload.make(seed) for seed in range(1, count + 1)]
        self.outputs = [workload.output() for _ in range(count)] if workload.output else None

    def contenders(self) -> tuple[dict[str, timing.Contender], list[str]]:
        """Rungs first, then the libraries that are installed; and a sentence for each that is not."""
        found, notes = {}, []
        for rung in self.workload.rungs:
            call = rung_call(rung, self.outputs is not None)
            found[name_of(rung)] = self._contender(call, lambda x: x, self.workload.probe)
        for name, function in self.workload.libraries.items():
            try:
                package, convert = adapter(name.partition(".")[0])
            except ImportError as error:
                notes.append(f"{name} was left out: {error}")
                continue
            found[name] = self._contender(lambda *args, f=function, p=package: f(p, *args), convert, None)
        return found, notes

    def _contender(self, call: Callable, convert: Callable, probe: Callable | None) -> timing.Contender:
        workload = self.workload
        outputs = [()] * len(self.inputs) if self.outputs is None else [(out,) for out in self.outputs]
        pairs = list(zip(self.inputs, outputs, strict=True))
        sets = [tuple(convert(x) for x in (*inputs, *out)) for inputs, out in pairs]

        def check(result: typing.Any, *args: typing.Any) -> tuple[float, float]:
            which = next(index for index, one in enumerate(sets) if one[0] is args[0])
            return _check(workload, result, self.inputs[which])

        def poison(*args: typing.Any) -> None:
            if self.outputs is None:
                _poison_pools()
            else:
                which = next(index for index, one in enumerate(sets) if one[0] is args[0])
                fill_with_nan(self.outputs[which])

        def probed() -> None:
            probe(lambda *inputs: call(*inputs, *(() if workload.output is None else (workload.output(),))))

        return timing.Contender(
            call,
            sets,
            check=check if workload.verify else None,
            poison=poison,
            probe=probed if probe else None,
            cache=workload.cache,
            set_bytes=workload.cost.bytes,
        )


def _check(workload: Workload, result: typing.Any, inputs: tuple) -> tuple[float, float]:
    from pmpp.lab.measure.arrays import view

    result = tuple(view(x) for x in result) if type(result) is tuple else view(result)  # a NamedTuple views itself
    return workload.verify(result, *(view(x) for x in inputs))


def fill_with_nan(x: typing.Any) -> None:
    """Overwrite an array: with NaN, or where numbers are whole with the greatest of them."""
    from pmpp.lab.measure.arrays import is_bfloat16, view, xp

    if is_bfloat16(x):
        x, value = x.view("uint16"), 0x7FFF
    else:
        value = np.iinfo(x.dtype).max if x.dtype.kind in "iu" else math.nan
    if xp().__name__ == "cupy":
        view(x)[...] = value
    else:
        x.copy_to_device(xp().full(x.shape, value, x.dtype))


def _poison_pools() -> None:
    """Leave NaN in the memory that the next small result is likely to get: that of the last one, from its pool."""
    for package in ("cupy", "torch"):
        if package in sys.modules:
            module, _ = adapter(package)
            where = {"device": "cuda"} if package == "torch" else {}
            for count in (1, 2, 128, 256):
                module.full((count,), math.nan, dtype=module.float32, **where)


def _measure_workload(
    workload: Workload, seconds: float, timer: timing.GpuTimer, clock: Callable[[], float]
) -> tuple[list[Entry], list[str]]:
    """The workload's entries, and a sentence for what was left out or failed. ``seconds`` is for each contender."""
    stage = stage_of(workload, timer)
    entries, notes = on_gpu(stage, seconds, timer, clock)
    entries, more = on_host(stage, entries, seconds, timer, clock)
    return entries, notes + more


def stage_of(workload: Workload, timer: timing.GpuTimer) -> Stage:
    """The workload's inputs and outputs, as many as its caches ask for."""
    return Stage(workload, input_sets(workload.cost.bytes, timer.l2_bytes, workload.cache))


def on_gpu(
    stage: Stage, seconds: float, timer: timing.GpuTimer, clock: Callable[[], float], at_least: int = 3
) -> tuple[list[Entry], list[str]]:
    """What the rungs and the libraries take. ``at_least``: samples of what takes longer than ``seconds``, and one."""
    workload = stage.workload
    entries: list[Entry] = []
    contenders, notes = stage.contenders()
    rule = timing.Rule(max_seconds=seconds, at_least=at_least)
    outcome = measure_together(contenders, timer=timer, rule=rule, clock=clock)
    rungs = [name_of(rung) for rung in workload.rungs]
    for name, timed in outcome.items():
        if isinstance(timed, Exception):
            notes.append(_failure(workload, name, timed))
        else:
            entry = _entry(workload, name, "rung" if name in rungs else "library", timed)
            if workload.design and name in rungs:
                entry = replace(entry, **resources(workload.rungs[rungs.index(name)]))
            entries.append(entry)
    return entries, notes


def on_host(
    stage: Stage,
    entries: Sequence[Entry],
    seconds: float,
    timer: timing.GpuTimer,
    clock: Callable[[], float],
    at_least: int = 3,
) -> tuple[list[Entry], list[str]]:
    """The same entries with what is timed by the host's clock: NumPy, transfers, and the last rung end to end.

    ``at_least``: samples of what takes longer than ``seconds``.
    """
    from pmpp.runtime import device

    workload, notes = stage.workload, []
    found = list(entries)

    def timed(function: Callable, args: tuple, finish: Callable[[], object] | None) -> Timing:
        check = (lambda result: _check(workload, result, stage.inputs[0])) if workload.verify else None
        timer.synchronize()  # what the GPU still does is none of the first call's time
        return measure_host(
            lambda: function(*args), check=check, finish=finish, max_seconds=seconds, clock=clock, at_least=at_least
        )

    for name, function in workload.host.items():
        try:
            # NumPy leaves nothing to wait for, and asking the GPU takes longer than a small call.
            finish = None if workload.host_kind == "numpy" else timer.synchronize
            args = (workload.host_args or _numpy)(*stage.inputs[0])
            found.append(_entry(workload, name, workload.host_kind, timed(function, args, finish)))
        except Exception as error:  # as in measure_together: who fails gets no time, and costs the others nothing
            notes.append(_failure(workload, name, error))
    last = workload.rungs[-1] if workload.end_to_end else None
    name = None if last is None else name_of(last)
    place = next((place for place, one in enumerate(found) if one.contender == name), None)
    if place is not None:
        try:
            args = end_to_end_args(workload, stage.inputs[0])
            whole = timed(lambda *args: device.to_host(last(*args)), args, timer.synchronize)
            found[place] = replace(found[place], end_to_end_ms=whole.median * 1e3)
        except Exception as error:
            notes.append(_failure(workload, f"{name}, end to end,", error))
    return found, notes


def end_to_end_args(workload: Workload, inputs: tuple) -> tuple:
    """NumPy's copies of the inputs, but for those that a call changes: they stay where they are."""
    stateless = len(inputs) - workload.state
    return (*_numpy(*inputs[:stateless]), *inputs[stateless:])


def resources(rung: Rung | Callable) -> dict[str, int]:
    """What the compiler gave the rung's first kernel, as fields of an `Entry`; empty if nothing was compiled.

    Of several versions, for arguments of other types, the one with the most registers counts.
    """
    kernels = getattr(rung, "kernels", ())
    compiled = list(getattr(kernels[0], "overloads", {}).values()) if kernels else []
    if not compiled:
        return {}
    most = max(compiled, key=lambda version: version.regs_per_thread)
    return {"registers": most.regs_per_thread, "shared_bytes": most.shared_mem_per_block}


def _failure(workload: Workload, name: str, error: Exception) -> str:
    return f"{name} on {workload.label} FAILED: {type(error).__name__}: {error}"


def _numpy(*inputs: typing.Any) -> tuple:
    from pmpp.runtime import device

    return tuple(device.to_host(x) for x in inputs)


def _entry(workload: Workload, name: str, kind: str, timed: Timing) -> Entry:
    own = workload.own if kind == "rung" else None
    return Entry(
        family=workload.family,
        workload=workload.name,
        sizes=dict(workload.sizes),
        design=workload.design,
        cache=workload.cache,
        contender=name,
        kind=kind,
        median_ms=timed.median * 1e3,
        low_ms=timed.low * 1e3,
        high_ms=timed.high * 1e3,
        repeats=timed.repeats,
        batch=timed.batch,
        settled=timed.settled,
        method=timed.method,
        flops=workload.cost.flops,
        bytes=workload.cost.bytes,
        error=timed.error,
        tolerance=timed.tolerance,
        call_ms=None if timed.call is None else timed.call * 1e3,
        own_flops=own and own.flops,
        own_bytes=own and own.bytes,
    )


LONGEST, SHORTEST = 1.5, 0.1  # seconds for a contender, at most; and at least at a design size, whatever the budget


def run(
    workloads: Sequence[Workload],
    *,
    budget: float = 120.0,
    progress: Callable[[Iterable], Iterable] = iter,
    timer: timing.GpuTimer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[Entry], list[str]]:
    """Measure ``workloads`` in about ``budget`` seconds: their entries, and a sentence for everything left out.

    The design sizes come first, and a short budget drops none of them. Raises RuntimeError without a GPU.
    """
    entries: list[Entry] = []
    notes: list[str] = []
    _run_into(entries, notes, workloads, budget, progress, timer or timing.gpu_timer(), clock)
    return as_written(entries, workloads), notes


def _run_into(
    entries: list[Entry],
    notes: list[str],
    workloads: Sequence[Workload],
    budget: float,
    progress: Callable[[Iterable], Iterable],
    timer: timing.GpuTimer,
    clock: Callable[[], float],
) -> None:
    began = clock()
    order = sorted(workloads, key=lambda workload: not workload.design)  # stable: otherwise as written
    left = sum(workload.weight for workload in order)
    for workload in progress(order):
        remaining = budget - (clock() - began)
        if remaining <= 0 and not workload.design:
            notes.append(f"{workload.label} was left out: the budget of {budget:.0f} s is used up")
            continue
        needed = bytes_needed(workload, timer.l2_bytes)
        free = free_bytes(needed)
        if needed > free:
            notes.append(too_large(workload, needed, free))
            continue
        seconds = min(LONGEST, 0.7 * remaining / max(left, 1))  # the rest goes to compiling and checking
        left -= workload.weight
        try:
            measured, more = _measure_workload(
                workload, max(seconds, SHORTEST) if workload.design else seconds, timer, clock
            )
        except Exception as error:  # one workload must not cost the others their measurements
            notes.append(f"{workload.label} FAILED: {type(error).__name__}: {error}")
            continue
        entries += measured
        notes += more


def as_written(entries: Iterable[Entry], workloads: Sequence[Workload]) -> list[Entry]:
    place = {(workload.family, workload.name): number for number, workload in enumerate(workloads)}
    return sorted(entries, key=lambda entry: place[entry.family, entry.workload])  # stable: else as measured


@dataclass
class Measured:
    """What came of a room: its entries as they are written down, a sentence for all that was left out, and the time."""

    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_rooms(
    plan: Mapping[str, Sequence[Workload]],
    *,
    budget: float,
    progress: Callable[[str, Iterable], Iterable] = lambda room, items: items,
    timer: timing.GpuTimer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measured]:
    """Measure the workloads of rooms by name, as `run` does those of one: the design sizes of all rooms, then the rest.

    A room's share of the budget goes by its number of timings; what one leaves is there for those that follow.
    KeyboardInterrupt ends it early: what was measured until then is returned, and the notes say so.
    """
    timer = timer or timing.gpu_timer()
    began = clock()
    found = {room: Measured() for room in plan}
    left = sum(workload.weight for workloads in plan.values() for workload in workloads)
    steps = [
        (room, part)
        for design in (True, False)
        for room, workloads in plan.items()
        if (part := [workload for workload in workloads if workload.design == design])
    ]
    try:
        while steps:
            room, part = steps[0]
            weight = sum(workload.weight for workload in part)
            share_of_it = (budget - (clock() - began)) * weight / max(left, 1)
            left -= weight
            one, start = found[room], clock()
            try:
                shown = functools.partial(progress, room)
                _run_into(one.entries, one.notes, part, share_of_it, shown, timer, clock)
                steps.pop(0)
            finally:
                one.seconds += clock() - start
    except KeyboardInterrupt:
        for room in dict.fromkeys(room for room, _ in steps):
            found[room].notes.append("the run was told to stop before all was measured")
    for room, one in found.items():
        one.entries = as_written(one.entries, plan[room])
    return found


def missing(rec: Record, room: str, workloads: Sequence[Workload]) -> list[str]:
    """What a record lacks of a room's design sizes: a rung, or any of the libraries; empty if it has all.

    Raises RecordError if the room is not in the record.
    """
    found = []
    for workload in workloads:
        if not workload.design:
            continue
        entries = rec.entries(room, family=workload.family, workload=workload.name)
        there = {entry.contender for entry in entries}
        lacking = [name_of(rung) for rung in workload.rungs if name_of(rung) not in there]
        if workload.libraries and not there & set(workload.libraries):
            lacking.append("a library")
        if lacking:
            found.append(f"{workload.label} ({'everything' if not there else ', '.join(lacking)})")
    return found


def too_large(workload: Workload, needed: int, free: int) -> str:
    """The sentence for a workload that memory does not suffice for."""
    short = f"it needs {needed / 2**30:.3g} GiB of GPU memory, {free / 2**30:.3g} GiB are free"
    return f"{workload.label} was left out: {short}"


def bytes_needed(workload: Workload, l2_bytes: int) -> int:
    """Of GPU memory, about, to measure a workload."""
    # The check in float64 wants about as much again as four float32 sets.
    return (input_sets(workload.cost.bytes, l2_bytes, workload.cache) + 4) * workload.cost.bytes


def free_bytes(wanted: float = math.inf) -> int:
    """Free GPU memory. If it is less than ``wanted``, the pools of the libraries first give back what they keep.

    They do not give it back for nothing: to allocate it again takes longer than many kernels are timed.
    """
    from pmpp.runtime import device

    context = device.backend().cuda.current_context()
    if (free := int(context.get_memory_info().free)) >= wanted:
        return free
    for package in ("cupy", "torch"):
        if package in sys.modules:
            module, _ = adapter(package)
            module.cuda.empty_cache() if package == "torch" else module.get_default_memory_pool().free_all_blocks()
    return int(context.get_memory_info().free)


# ---------------------------------------------------------------------------------------------------------- the table


def table(rec: Record, rooms: Iterable[str] | None = None) -> str:
    """The record as text, one line a measurement: time, rate, share of the roof, speed against the best library."""
    lines = []
    for room in rooms or rec.rooms():
        ceilings = rec.ceilings(room)
        entries = rec.entries(room)
        head = f"{'contender':20}{'ms':>11}{'+-%':>7}{'rate':>14}{'roof':>8}{'library':>9}{'call us':>9}"
        lines += [f"{room}: {rec.footer(room)}", f"  {'workload':24}{head}"]
        for entry in entries:
            spread = 50 * (entry.high_ms - entry.low_ms) / entry.median_ms
            line = f"  {entry.family + ' ' + entry.workload:24}{entry.contender:20}{entry.median_ms:11.5f}{spread:6.1f}"
            line += f"{' ' if entry.settled else '*'}{rate(entry, ceilings):>14}"
            on_gpu = entry.kind in ("rung", "library")
            share = roofline.share(entry.cost, entry.seconds, ceilings) if on_gpu else None
            line += f"{share:8.1%}" if share is not None else " " * 8
            same = [e for e in entries if (e.family, e.workload) == (entry.family, entry.workload)]
            rivals = [e.median_ms for e in same if e.kind == "library"]
            line += f"{min(rivals) / entry.median_ms:9.3f}" if rivals and entry.kind == "rung" else " " * 9
            line += f"{entry.call_ms * 1e3:9.1f}" if entry.call_ms is not None else ""
            line += f"  {roofline.share(entry.own, entry.seconds, ceilings):.1%} of its own roof" if entry.own else ""
            line += f"  end to end {entry.end_to_end_ms:.4g} ms" if entry.end_to_end_ms is not None else ""
            lines.append(line.rstrip())
    return "\n".join([*lines, "* the interval was still wide when the time was used up"])


def rate(entry: Entry, ceilings: roofline.Ceilings) -> str:
    """The rate that the entry's bound is about: ``"4.21 TB/s"`` or ``"43.8 TFLOP/s"``."""
    compute = roofline.bound(entry.cost, ceilings).side == "compute"
    value, unit = (entry.flops, "FLOP/s") if compute else (entry.bytes, "B/s")
    value /= entry.seconds
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# ----------------------------------------------------------------------------------------------------- command line


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0; 1 if a contender failed; 2 if nothing could be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.bench", description="Measure the rooms on this GPU and record it."
    )
    parser.add_argument("rooms", nargs="*", help="rooms to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few sizes, for a look: recorded only with --out")
    parser.add_argument(
        "--out", "--into", type=Path, help="the record to merge into (default: the shipped one of this GPU)"
    )
    parser.add_argument("--part", type=Part.parse, help="K/N: one of N parts that take equally long")
    parser.add_argument(
        "--stale", action="store_true", help="sizes that the shipped record of this GPU lacks, or has of other sources"
    )
    parser.add_argument("--merge", type=Path, nargs="+", metavar="DIR", help="measure nothing; merge these records")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds, about, for all (default: %(default)g)")
    parser.add_argument("--processes", type=int, default=1, help="so many take turns on the GPU (default: one, alone)")
    parser.add_argument(
        "--host-seconds",
        type=float,
        default=60.0,
        help="with --processes: what is timed by the host's clock, after the GPU's times (default: %(default)g)",
    )
    parser.add_argument(
        "--quiet-lock",
        type=Path,
        help="a file that all who measure on this machine lock (default: one in the folder for temporary files)",
    )
    options = parser.parse_args(argv)
    if options.processes > 1 and not turns.possible():
        parser.error("--processes needs a lock that this system does not have")
    if options.merge:
        return _merge(options.merge, options.out)
    known = list(workload_modules())
    unknown = [room for room in options.rooms if room not in known]
    if unknown:
        print(f"there are no workloads for {', '.join(unknown)}; there are for: {', '.join(known)}", file=sys.stderr)
        return 2
    from pmpp.runtime import device

    try:
        if not device.on_gpu():
            print(f"bench needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
            return 2
        rooms = options.rooms or known
        wanted = _stale() if options.stale else everything
        with _interrupted_by_sigterm():
            return _bench(_of_part(rooms, options.part, wanted) if options.part else rooms, options, wanted)
    except (device.BackendError, RecordError) as error:
        print(error, file=sys.stderr)
        return 2


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def stop(number: int, frame: types.FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends two: the second must not cost the record
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Wanted = Callable[[str, Workload], bool]


def everything(room: str, workload: Workload) -> bool:
    """Each workload of each room is to be measured."""
    return True


def _stale() -> Wanted:
    """Whether the shipped record of this GPU lacks something of a workload, or has it of other sources than now."""
    now = Sources()
    path = record.RECORDED / record.slug(environment.describe_gpu()["name"])
    rec = load(path) if path.is_dir() and record.files_of(path) else None
    current = functools.cache(lambda room: rec.current(room, now) if rec else set())

    def wanted(room: str, workload: Workload) -> bool:
        names = [*map(name_of, workload.rungs), *workload.libraries]
        return any((workload.family, workload.name, name) not in current(room) for name in names)

    return wanted


def _of_part(rooms: Sequence[str], part: Part, wanted: Wanted = everything) -> list[str]:
    """The rooms that the part measures."""
    return share(_expected(rooms, wanted), part)


def _expected(rooms: Sequence[str], wanted: Wanted = everything) -> dict[str, float]:
    """How long rooms will take: by their number of timings, and by how long one took when the room was last measured.

    In a room that never was, one takes what it takes in the median room.
    """
    each: dict[str, float] = {}
    for path in reversed(record.available()):  # of several GPUs the first available counts
        blocks = load(path).data["rooms"]
        each |= {
            room: blocks[room]["seconds"] / len(blocks[room]["entries"])
            for room in rooms
            if "seconds" in blocks.get(room, {})
        }
    usual = statistics.median(each.values()) if each else 1.0
    return {
        room: each.get(room, usual) * sum(one.weight for one in workloads_of(room, quick=False) if wanted(room, one))
        for room in rooms
    }


def _merge(folders: Sequence[Path], out: Path | None) -> int:
    try:
        parts = [load(folder).data for folder in folders]
        path = out or record.RECORDED / record.slug(parts[0]["gpu"]["name"])
        there = path.is_file() or (path.is_dir() and record.files_of(path))
        data = _with_families(record.joined([*([load(path).data] if there else []), *parts], still_measured))
        record.write(data, path)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    rooms = list(dict.fromkeys(room for part in parts for room in part["rooms"]))
    print(f"{len(rooms)} rooms of {len(folders)} records are merged into {path}: {', '.join(rooms)}")
    return 0


def _bench(rooms: Sequence[str], options: argparse.Namespace, wanted: Wanted = everything) -> int:
    from tqdm import tqdm

    from pmpp.lab.measure import processes

    # Small sizes are part of a sweep; Numba warns about each.
    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    began = time.perf_counter()
    gpu = environment.describe_gpu()
    path = options.out or record.RECORDED / record.slug(gpu["name"])
    keep = bool(options.out) or not options.quick
    there = path.is_file() or (path.is_dir() and record.files_of(path))  # a GPU's folder may have other records
    old = load(path).data if keep and there else None  # now: a broken file should not cost a run
    ceilings = roofline.measure_ceilings()
    print(
        f"{gpu['name']}: copy {ceilings.bandwidth / 1e12:.3f} TB/s, "
        f"multiply-add {ceilings.fma_f32 / 1e12:.1f} TFLOP/s, "
        f"empty kernel {ceilings.empty_kernel * 1e6:.2f} us, launch {ceilings.launch * 1e6:.1f} us"
    )
    plan = {room: workloads_of(room, options.quick) for room in rooms}
    now = Sources()  # before anything runs: what is edited meanwhile is not what was measured
    sources = {room: now.of_room(room) for room in rooms}

    def least(room: str) -> float:
        return sum(roofline.bound(workload.cost, ceilings).seconds for workload in plan[room])

    left = options.budget - (time.perf_counter() - began)
    if options.processes > 1:
        seconds = _expected(rooms, wanted)
        plan = {room: plan[room] for room in sorted(plan, key=lambda room: -seconds[room])}
        found_in = processes.run_rooms(
            plan,
            options.processes,
            budget=left,
            memory=gpu["memory_bytes"],
            quick=options.quick,
            quiet=processes.Quiet(options.quiet_lock, options.host_seconds),
            wanted=wanted,
        )
    else:
        plan = {room: [one for one in workloads if wanted(room, one)] for room, workloads in plan.items()}
        plan = {room: plan[room] for room in sorted(plan, key=least)}  # what light rooms leave is for the heavy ones
        found_in = run_rooms(plan, budget=left, progress=lambda room, items: tqdm(items, desc=room))
    measured, failed = {}, False
    for room, found in found_in.items():
        failed |= any("FAILED" in note for note in found.notes)
        print("".join(f"{room}: {note}\n" for note in found.notes), end="")
        if found.entries:
            measured[room] = {
                "subject": subject_of(room_named(room)),
                "seconds": round(found.seconds, 1),
                "sources": sources[room],
                "notes": found.notes,
                "entries": [record.as_json(entry) for entry in found.entries],
            }
    if not measured:
        print("nothing was measured, and nothing is recorded", file=sys.stderr)
        return 2
    run = environment.describe_run(ceilings) | ({"part": str(options.part)} if options.part else {})
    data = _with_families(record.merge(old, gpu, run, measured, still_measured))
    print(table(Record(data), measured))
    if keep:
        record.write(data, path)
    where = f"recorded in {path}" if keep else "a quick look is not recorded without --out"
    print(f"{where}; {time.perf_counter() - began:.0f} s")
    return int(failed)


def _with_families(data: dict) -> dict:
    """The record with the families of each room in the order of its workloads."""
    for room, block in data["rooms"].items():
        if room in workload_modules():
            block["families"] = list(dict.fromkeys(one.family for one in workloads_of(room, quick=False)))
    return data


def still_measured(room: str, entry: Mapping) -> bool:
    """Whether an entry of a record is of a workload and a contender that there still are."""
    return (entry["family"], entry["workload"], entry["contender"]) in _contenders_of(room)


@functools.cache
def _contenders_of(room: str) -> frozenset[tuple[str, str, str]]:
    if room not in workload_modules():
        return frozenset()
    return frozenset(
        (workload.family, workload.name, name)
        for workload in workloads_of(room, quick=False)
        for name in (*map(name_of, workload.rungs), *workload.libraries, *workload.host)
    )


def workloads_of(room: str, quick: bool) -> list[Workload]:
    found = importlib.import_module(workload_modules()[room]).WORKLOADS
    return [workload for workload in found if workload.quick or not quick]


if __name__ == "__main__":
    sys.exit(main())
