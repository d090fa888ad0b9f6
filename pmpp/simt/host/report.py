"""What a launch did: counters in total and by source line, and the hazards met."""

from __future__ import annotations

import functools
import html
import itertools
import linecache
from dataclasses import dataclass

from pmpp.simt.front.accidental_float64 import KernelWarning
from pmpp.simt.machine import gpus
from pmpp.simt.machine.instructions import CLASSES
from pmpp.simt.machine.machine import Machine
from pmpp.simt.observe import bound as roofline
from pmpp.simt.observe.counting import COUNTERS
from pmpp.simt.observe.metrics import METRICS
from pmpp.simt.observe.tables import Table
from pmpp.simt.values.errors import Hazard, LaunchError

#: What `show()` prints beside each line: heading, counters that are added up, and what they are divided by.
_COLUMNS = (
    ("instr.", ("warp_instructions",), None),
    ("lanes", ("thread_instructions",), ("warp_instructions",)),
    ("sect/req", ("global_load_sectors", "global_store_sectors"), ("global_load_requests", "global_store_requests")),
    (
        "wave/req",
        ("shared_load_wavefronts", "shared_store_wavefronts"),
        ("shared_load_requests", "shared_store_requests"),
    ),
    ("flops", ("flops",), None),
    ("diverg.", ("divergent_branches",), None),
)

# The listing in a notebook. Every viewer sets <pre> in its code font and keeps its columns, also GitHub, which strips
# styles. Pages made by nbconvert let <pre> inherit its font, hence the fonts around it. The mark is translucent, since
# what is beneath it may be light or dark.
_AROUND = "font-family:ui-monospace,Menlo,Consolas,monospace"
_LISTING = "margin:0;white-space:pre;word-break:normal;overflow-x:auto"
_MARKED = "background:rgba(214,39,40,0.15)"


@dataclass(frozen=True)
class Sectors:
    """The different 32-byte sectors of one array that a launch touched.

    load, store   how many were loaded, and how many were stored to (atomics included)
    needed        how many memory must deliver: those loaded, without those that the launch had stored before
    """

    load: int
    store: int
    needed: int


@dataclass(frozen=True)
class Contention:
    """What atomics did to one array.

    requests, lanes   atomics, one a warp and one an active lane
    passes            turns they take when the lanes of a warp on one address follow one another
    worst_warp        the most lanes of one warp on one address
    peak, where       the most updates that one element got, and its flat index; in shared memory, within one block
    """

    space: str
    requests: int
    lanes: int
    passes: int
    worst_warp: int
    peak: int
    where: int


class Report:
    """Counters and hazards of one launch.

    counters     dict of the names in `pmpp.simt.METRICS` to ints, for the whole launch; all zero at level "run"
    by_line      dict of line numbers to such dicts, of the names in `pmpp.simt.COUNTERS`; a call into another file is
                 charged to the line that calls
    sectors      dict of the names of arrays in global memory to their Sectors
    contention   dict of the names of arrays to what atomics did to them
    shared_bytes of shared memory that a block takes, static and dynamic
    hazards      list of Hazard, the first of its kind on each line
    warnings     list of KernelWarning: lines that turn float32 into float64 by accident; see accidental_float64.py
    notes        list of KernelWarning: what does what is written, and may surprise: an index that counts from the end,
                 a constant that does not fit 64 bits
    kernel       the kernel's name; `grid` and `block` are its launch configuration as 3-tuples
    schedule     how it ran: "lockstep", or by turns of "blocks", "warps", "lanes", or "shuffled, seed 0"
    trace        a Trace if one was asked for (`trace=True`): accesses, steps and heat; else None
    """

    def __init__(self, machine: Machine, source: tuple[str, int, int]) -> None:
        launch, counts = machine.launch, machine.counts
        self.kernel, self.level = launch.name, launch.level
        self.grid, self.block, self.schedule = launch.grid, launch.block, launch.schedule
        self.file, self._first, self._last = source
        self.hazards: list[Hazard] = list(machine.hazards.values())
        warnings = [] if machine.warnings is None else machine.warnings.found
        self.warnings: list[KernelWarning] = sorted(warnings, key=lambda warning: warning.line)
        self.notes: list[KernelWarning] = [] if machine.warnings is None else machine.warnings.notes
        self.trace = machine.trace
        self._lines: dict[int, list[int]] = {} if counts is None else dict(counts.lines)
        self.shared_bytes = machine.shared_peak + launch.dynamic_shared
        self.sectors: dict[str, Sectors] = {}
        for found in () if counts is None else counts.footprints:
            self.sectors[_unused(found.name, self.sectors)] = Sectors(*found.totals())
        self.contention: dict[str, Contention] = {}
        for each in () if counts is None else counts.contention.values():
            each.close()
            self.contention[_unused(each.name, self.contention)] = Contention(
                each.space, each.requests, each.lanes, each.passes, each.worst_warp, each.peak, each.where
            )
        self._merged_wavefronts = 0.0 if counts is None else counts.merged_wavefronts

    @functools.cached_property
    def counters(self) -> dict[str, int]:
        """The counters of the whole launch; made when somebody asks for them."""
        totals = map(sum, zip(*self._lines.values(), strict=True)) if self._lines else [0] * len(COUNTERS)
        counters = dict(zip(COUNTERS, totals, strict=True))
        counters["unique_load_sectors"] = sum(each.load for each in self.sectors.values())
        counters["unique_store_sectors"] = sum(each.store for each in self.sectors.values())
        return counters

    @functools.cached_property
    def by_line(self) -> dict[int, dict[str, int]]:
        """The counters of each line; made when somebody asks for them."""
        return {line: dict(zip(COUNTERS, values, strict=True)) for line, values in sorted(self._lines.items())}

    def metrics(self) -> Table:
        """Every counter beside its meaning, and beside what Nsight Compute calls it."""
        rows = [(name, f"{self.counters[name]:,}", m.unit, m.meaning, m.ncu or "-") for name, m in METRICS.items()]
        heads = ("counter", "value", "unit", "what is counted", "Nsight Compute")
        return Table(f"{self.kernel}: counters", heads, rows, (1, 3))

    def mix(self) -> Table:
        """The instruction mix: warp instructions by class, their share, and active lanes an instruction."""
        total = self.counters["warp_instructions"]
        rows = []
        for each in CLASSES:
            warps, lanes = self.counters[f"inst_{each.name}"], self.counters[f"thread_inst_{each.name}"]
            if warps:
                rows.append((each.name, f"{warps:,}", f"{warps / total:.1%}", f"{lanes / warps:.1f}", each.members))
        heads = ("class", "warp instr.", "share", "lanes", "what is counted")
        return Table(f"{self.kernel}: instruction mix", heads, rows)

    def occupancy(self, gpu: str | gpus.Gpu = "H200", registers: int | None = None) -> gpus.Occupancy:
        """How many blocks of this launch are resident on a multiprocessor; see `simt.occupancy`.

        registers   a thread, as the compiler reports them (a Numba kernel's `get_regs_per_thread()`), or None
        """
        threads = self.block[0] * self.block[1] * self.block[2]
        return gpus.occupancy(threads, self.shared_bytes, registers, gpu)

    def bound(self, gpu: str | gpus.Gpu = "H200") -> roofline.Bound:
        """The roofline time of this launch on a GPU of `simt.GPUS`: see observe/bound.py.

        Raises LaunchError after level "run", which counts nothing.
        """
        if self.level == "run":
            raise LaunchError('bound() needs counters: profile at level "count" or "check"')
        needed = sum(each.needed + each.store for each in self.sectors.values())
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        return roofline.bound(self.kernel, blocks, self.counters, needed, self._merged_wavefronts, gpus.gpu(gpu))

    def __repr__(self) -> str:
        return f"<Report of {self.kernel}: grid {self.grid}, block {self.block}, {len(self.hazards)} hazards>"

    def _findings(self) -> list[Hazard | KernelWarning]:
        return [*self.hazards, *self.warnings, *self.notes]

    def _source(self) -> list[tuple[int, str]]:
        told = [each.line for each in self._findings()]  # those outside of the kernel are of device functions nearby
        lines = sorted({*range(self._first, self._last + 1), *self.by_line, *told})
        return [(n, linecache.getline(self.file, n).rstrip("\n")) for n in lines]

    def _cells(self, line: int) -> list[str]:
        counts = self.by_line.get(line)
        if counts is None:
            return [""] * len(_COLUMNS)
        cells = []
        for _, parts, per in _COLUMNS:
            value = sum(counts[p] for p in parts)
            if per is None:
                cells.append(f"{value:,}" if value else "")
            else:
                base = sum(counts[p] for p in per)
                cells.append(f"{value / base:.1f}".removesuffix(".0") if base else "")
        return cells

    def _rows(self) -> list[tuple[int | None, str]]:
        """The listing's lines as text, columns aligned: a heading, then a line of source with its number."""
        rows = [(None, ("line", *(c[0] for c in _COLUMNS), ""))]
        rows += [(n, (str(n), *self._cells(n), text)) for n, text in self._source()]
        widths = [max(len(row[i]) for _, row in rows) for i in range(len(_COLUMNS) + 1)]
        return [
            (n, "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=False)) + "  " + row[-1])
            for n, row in rows
        ]

    def _title(self) -> str:
        return f"{self.kernel}: grid {_short(self.grid)}, block {_short(self.block)}"

    def __str__(self) -> str:
        lines = [self._title(), *(text for _, text in self._rows())]
        return "\n".join([*lines, *(f"{each.kind}: {each.message}" for each in self._findings())])

    def show(self) -> None:
        """Print the annotated source.

        For each line: warp instructions, active lanes an instruction, sectors a global request, wavefronts a shared
        request, FLOPs, and divergent branches.
        """
        print(self)

    def _repr_html_(self) -> str:
        notes: dict[int | None, str] = {}
        for each in self._findings():
            note = f"\n<b style='white-space:pre-wrap'>{html.escape(f'{each.kind}: {each.message}')}</b>"
            notes[each.line] = notes.get(each.line, "") + note
        lines = [html.escape(self._title())]
        for n, text in self._rows():
            shown = html.escape(text)
            lines.append(f"<span style='{_MARKED}'>{shown}{notes[n]}</span>" if n in notes else shown)
        listing = "\n".join(lines)
        return f"<div style='{_AROUND}'><pre style='{_LISTING}'>{listing}</pre></div>"


def _unused(name: str, taken: dict) -> str:
    """The name, or with a number where another array has it: the same array may go by one name on every line."""
    return name if name not in taken else next(n for k in itertools.count(2) if (n := f"{name} ({k})") not in taken)


def _short(extent: tuple[int, int, int]) -> str:
    used = [n for i, n in enumerate(extent) if n > 1 or i == 0 or any(m > 1 for m in extent[i:])]
    return " x ".join(map(str, used))
