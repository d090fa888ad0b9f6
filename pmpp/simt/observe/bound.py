"""The roofline of one launch on one GPU: how long each part of the machine must work, and which of them longest.

Parts of a GPU work at the same time, so a launch takes at least as long as the busiest of them.  Each is given two
times.  Neither is a prediction: latency, too few warps, and waiting at barriers come on top.

    at least     what no compiler and no cache can avoid, for a launch that finds nothing in the cache
    as written   what the counters say, with each access and each operator by itself

    device memory      at least each sector once, from memory or to it; as written each sector of each request
    float16 / 32 / 64  FLOPs at the rate of multiply-adds; as written each operation takes the slot of one
    special functions  one MUFU each.  Accurate functions that use none take longer, in multiply-adds
    shared memory      one wavefront a cycle and SM; at least if neighbouring accesses are merged into 128-bit ones
    atomics            shared and global, a turn a cycle and SM; as written only, since hardware combines some
    issue              4 instructions a cycle and SM; at least arithmetic, half of it fused away, special functions,
                       barriers, shuffles, and memory accesses, merged four to one

Tensor cores have no row: their operations are in the counter `tensor_flops` alone.

A launch of fewer blocks than there are SMs keeps only as many busy.
"""

from __future__ import annotations

from dataclasses import dataclass

from pmpp.simt.machine.gpus import SCHEDULERS, Gpu
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.observe.counting import SECTOR
from pmpp.simt.observe.tables import Table

#: Of resources that work at least this share of the longest time, the first is named.
NEARLY = 0.9


@dataclass(frozen=True)
class Resource:
    """One part of a GPU: seconds it works at least, and as written, and what it was asked for, in words."""

    name: str
    least: float
    written: float
    work: str


@dataclass(frozen=True)
class Bound:
    """The roofline time of one launch.

    seconds     no launch can be faster: the longest of the resources' `least`
    resource    the name of the first resource within a tenth of that time: where multiply-adds fill the slots of
                `issue`, they are what binds
    written     the longest of the resources' `written`, in seconds: a kernel that takes longer than this waits
    binding     the name of the first within a tenth of it
    resources   all of them, in a fixed order
    """

    kernel: str
    gpu: str
    seconds: float
    resource: str
    written: float
    binding: str
    resources: tuple[Resource, ...]

    def table(self) -> Table:
        """The resources that have work, a row each; < marks the ones named in the title, `resource` and `binding`."""
        rows = []
        for r in self.resources:
            if r.written:
                low = duration(r.least) + (" <" if r.name == self.resource else "")
                high = duration(r.written) + (" <" if r.name == self.binding else "")
                rows.append((r.name, low, high, r.work))
        least = f"{self.kernel} on {self.gpu}: at least {duration(self.seconds)}, bound by {self.resource}"
        title = least + f"; as written {duration(self.written)}, by {self.binding}"
        return Table(title, ("", "at least", "as written", ""), rows)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def duration(seconds: float) -> str:
    """A time in the unit that suits it: 12.3 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bound(kernel: str, grid_blocks: int, counters: dict[str, int], needed: int, merged: float, gpu: Gpu) -> Bound:
    """The roofline time of a launch from its counters.

    needed   sectors that memory must deliver, and take: different ones, without those loaded after they were stored
    merged   wavefronts of shared memory if neighbouring accesses were merged
    """
    arch, c = gpu.architecture, counters
    cycles = min(gpu.sms, grid_blocks) * gpu.clock  # of all SMs that have a block, a second
    resources = []

    def add(name: str, least: float, written: float, work: str) -> None:
        resources.append(Resource(name, least, written, work))

    moved = c["global_load_sectors"] + c["global_store_sectors"] + c["global_atomic_sectors"]
    add(
        "device memory", needed * SECTOR / gpu.bandwidth, max(moved, needed) * SECTOR / gpu.bandwidth,
        f"{_bytes(needed * SECTOR)} different, {_bytes(moved * SECTOR)} moved",
    )  # fmt: skip
    f16, f64 = c["flops_f16"], c["flops_f64"]
    for bits, flops, lanes in ((16, f16, arch.fp16), (32, c["flops"] - f16 - f64, arch.fp32), (64, f64, arch.fp64)):
        instructions = c[f"inst_fp{bits}"] * WARP / lanes / cycles
        least = flops / (2 * lanes) / cycles
        add(f"float{bits}", least, max(least, instructions), f"{flops:,} FLOP")
    special = c["inst_special"] * WARP / arch.special / cycles
    add("special functions", special, special, f"{c['inst_special']:,} warp instructions")
    shared = c["shared_load_wavefronts"] + c["shared_store_wavefronts"]
    add("shared memory", merged / cycles, shared / cycles, f"{shared:,} wavefronts")
    add("atomics", 0.0, c["atomic_passes"] / cycles, f"{c['atomic_passes']:,} turns")
    fused = c["flops"] / 2 / WARP
    kept = fused + c["inst_special"] + c["inst_barrier"] + c["inst_shuffle"] + c["inst_memory"] / 4
    issued = c["warp_instructions"]
    add("issue", kept / SCHEDULERS / cycles, issued / SCHEDULERS / cycles, f"{issued:,} warp instructions")
    least, written = max(r.least for r in resources), max(r.written for r in resources)
    low = next(r.name for r in resources if r.least >= NEARLY * least)
    high = next(r.name for r in resources if r.written >= NEARLY * written)
    return Bound(kernel, gpu.name, least, low, written, high, tuple(resources))


def _bytes(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n} B"
