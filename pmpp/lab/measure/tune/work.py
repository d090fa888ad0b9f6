"""What a configuration has to do, counted in the interpreter, and how long that takes at least on a GPU.

A launch of real size is too large to be counted. But all blocks of a kernel do the same, and all turns of a loop do the
same. So a few small launches, the *probes*, tell the counts of a large one: each has a weight, and the weighted sum of
their counters is that of the whole. What blocks at the edges do less is left out.
"""

from __future__ import annotations

import functools
import math
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pmpp.lab.measure.count import count as count_call
from pmpp.runtime.rung import Cost
from pmpp.simt import GPUS, Gpu, LaunchError, occupancy
from pmpp.simt.machine.gpus import SCHEDULERS
from pmpp.simt.machine.gpus import gpu as gpu_named
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.observe.counting import SECTOR

if typing.TYPE_CHECKING:
    from pmpp.lab.measure.tune.search import Subject

__all__ = ["Estimate", "Probe", "Work", "count", "gpu_of", "near_power", "roofline_time"]

FROM_CACHE = 24  # bytes a cycle that reach a multiprocessor from the L2 cache, if all others ask too
WAIT = 1000  # cycles from a load to the barrier behind it: memory's latency, while others ask too


class Probe(typing.NamedTuple):
    """A small launch: its ``shape``, and how often its counters are contained in those of the whole, or less than 0."""

    shape: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class Work:
    """What all launches of a call do.

    blocks, threads, shared_bytes   of the launch with most threads: its grid, and what a block takes
    registers                       a thread, or None if that is not known
    counters                        of all launches, by the names of `pmpp.simt.METRICS`
    """

    blocks: int
    threads: int
    shared_bytes: int
    registers: int | None
    counters: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """A predicted time: that of the ``part`` that takes longest, since all work at the same time. In seconds."""

    seconds: float
    part: str
    parts: Mapping[str, float]

    @property
    def order(self) -> tuple[float, float]:
        """What candidates are sorted by: the time, and of equal times what the parts add up to.

        Parts overlap, but never perfectly. So of two that are bound alike, the one with less besides should be faster.
        """
        return self.seconds, sum(self.parts.values())


def gpu_of(name: str | Gpu) -> Gpu:
    """The GPU of the interpreter's table that a driver's name is about.

    >>> gpu_of("NVIDIA H100 80GB HBM3").name, gpu_of("nvidia-h200").name, gpu_of("NVIDIA A100-SXM4-80GB").name
    ('H100', 'H200', 'A100 80GB')

    Raises pmpp.simt.LaunchError for a GPU that is not in the table: then pass a `simt.Gpu`.
    """
    try:
        return gpu_named(name)
    except LaunchError:
        words = set(str(name).lower().replace("-", " ").split())
        fitting = [one for one in GPUS if set(one.name.lower().split()) <= words]
        if not fitting:
            raise
        return max(fitting, key=lambda one: len(one.name))


def near_power(extent: int, base: int = 4) -> int:
    """The power of ``base`` that is nearest to an extent, by ratio. Extents with the same one are of one class.

    >>> [near_power(n) for n in (1, 3, 100, 3000, 4096, 5000, 9000)]
    [1, 4, 64, 4096, 4096, 4096, 16384]
    """
    return base ** round(math.log(extent, base)) if extent > 0 else 0


# ------------------------------------------------------------------------------------------------------------- counting


def launched(run: Callable, make: Callable, output: Callable, configuration: typing.Any, shape: tuple) -> None:
    """What is counted: one call, without anything that compares results."""
    run(configuration, *make(shape, 1), output(shape))


@functools.lru_cache(4096)
def _counted(*call: typing.Any) -> tuple[Counter, int, int, int]:
    """The counters of a call of `launched`, and of its largest launch the grid, the block and shared memory."""
    reports = count_call(launched, *call).reports
    main = max(reports, key=lambda one: math.prod(one.grid) * math.prod(one.block))
    counters: Counter[str] = Counter()
    for report in reports:
        counters.update(report.counters)
    return counters, math.prod(main.grid), math.prod(main.block), main.shared_bytes


def count(subject: Subject, configuration: typing.Any, shape: tuple[int, ...]) -> Work:
    """What a configuration does for a shape of any size, from its probes. Runs the interpreter, on any machine."""
    counters: dict[str, float] = {}
    blocks, threads, shared_bytes = 0.0, 0, 0
    for probe in subject.probes(configuration, shape):
        call = subject.run, subject.make, subject.output, configuration, probe.shape
        found, grid, threads, shared_bytes = _counted(*call)
        blocks += probe.weight * grid
        for name, value in found.items():
            counters[name] = counters.get(name, 0) + probe.weight * value
    return Work(round(blocks), threads, shared_bytes, subject.registers(configuration), counters)


# --------------------------------------------------------------------------------------------------------- a prediction


def roofline_time(work: Work, cost: Cost, gpu: Gpu) -> Estimate:
    """The time that the busiest part of a GPU needs for the work.

    memory        the least bytes of the definition, at the bandwidth of device memory
    L2 cache      all sectors that are asked for, at what the cache delivers
    arithmetic    FLOP, as multiply-adds
    shared        wavefronts of shared memory, one a cycle
    issue         instructions: arithmetic as multiply-adds, accesses to memory, special functions, shuffles, barriers
    waiting       each barrier ends a step that begins with loads. A block does its steps one after the other, and so
                  many blocks as fit are resident at a time

    All but memory are times of the multiprocessor that gets most blocks. Integer arithmetic and loops are left out: of
    these the compiler leaves little, and the interpreter cannot know how much.

    Raises ValueError if not one block fits on a multiprocessor.
    """
    c, arch = work.counters, gpu.architecture
    try:
        resident = occupancy(work.threads, work.shared_bytes, work.registers, gpu).blocks
    except LaunchError as error:
        raise ValueError(str(error)) from None
    busiest = math.ceil(work.blocks / gpu.sms) / work.blocks / gpu.clock  # its share of all work, and a cycle's time
    sectors = c["global_load_sectors"] + c["global_store_sectors"] + c["global_atomic_sectors"]
    wavefronts = c["shared_load_wavefronts"] + c["shared_store_wavefronts"]
    fused = c["flops"] / 2
    slots = fused / WARP + c["inst_memory"] + c["inst_special"] + c["inst_shuffle"] + c["inst_barrier"]
    rounds = math.ceil(work.blocks / (gpu.sms * resident))
    parts = {
        "memory": cost.bytes / gpu.bandwidth,
        "L2 cache": sectors * SECTOR / FROM_CACHE * busiest,
        "arithmetic": fused / arch.fp32 * busiest,
        "shared": wavefronts * busiest,
        "issue": slots / SCHEDULERS * busiest,
        "waiting": rounds * (1 + c["barriers"] / work.blocks) * WAIT / gpu.clock,
    }
    part = max(parts, key=lambda name: parts[name])
    return Estimate(parts[part], part, parts)
