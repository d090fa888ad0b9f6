"""What a launch did: counters in total and by source line, and the hazards met."""

from __future__ import annotations

import html
import linecache

from pmpp.simt.counting import COUNTERS
from pmpp.simt.errors import Hazard
from pmpp.simt.machine import Machine

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


class Report:
    """Counters and hazards of one launch.

    counters   dict of the names in `pmpp.simt.COUNTERS` to ints, for the whole launch; all zero at level "run"
    by_line    dict of line numbers to such dicts; a call into another file is charged to the line that calls
    hazards    list of Hazard, the first of its kind on each line
    kernel     the kernel's name; `grid` and `block` are its launch configuration as 3-tuples
    schedule   how it ran: "lockstep", or by turns of "blocks", "warps", "lanes", or "shuffled, seed 0"
    trace      a Trace if one was asked for (`trace=True`): accesses, steps and heat; else None
    """

    def __init__(self, machine: Machine, source: tuple[str, int, int]) -> None:
        self.kernel, self.level = machine.name, machine.level
        self.grid, self.block, self.schedule = machine.grid, machine.block, machine.schedule
        self.file, self._first, self._last = source
        self.hazards: list[Hazard] = list(machine.hazards)
        self.trace = machine.trace
        self.by_line: dict[int, dict[str, int]] = {
            line: dict(zip(COUNTERS, counts, strict=True)) for line, counts in sorted(machine.lines.items())
        }
        self.counters: dict[str, int] = {
            name: sum(counts[name] for counts in self.by_line.values()) for name in COUNTERS
        }

    def __repr__(self) -> str:
        return f"<Report of {self.kernel}: grid {self.grid}, block {self.block}, {len(self.hazards)} hazards>"

    def _source(self) -> list[tuple[int, str]]:
        inside = [line for line in self.by_line if line < self._first or line > self._last]  # device functions nearby
        lines = sorted({*range(self._first, self._last + 1), *inside})
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

    def __str__(self) -> str:
        rows = [("line", *(c[0] for c in _COLUMNS), "")]
        rows += [(str(n), *self._cells(n), text) for n, text in self._source()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS) + 1)]
        table = "\n".join(
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=False)) + "  " + row[-1] for row in rows
        )
        found = "".join(f"\n{hazard.kind}: {hazard.message}" for hazard in self.hazards)
        return f"{self.kernel}: grid {_short(self.grid)}, block {_short(self.block)}\n{table}{found}"

    def show(self) -> None:
        """Print the annotated source.

        For each line: warp instructions, active lanes an instruction, sectors a global request, wavefronts a shared
        request, FLOPs, and divergent branches.
        """
        print(self)

    def _repr_html_(self) -> str:
        marked = {hazard.line: hazard for hazard in self.hazards}
        head = "".join(f"<th style='text-align:right'>{name}</th>" for name in ("line", *(c[0] for c in _COLUMNS)))
        body = []
        for n, text in self._source():
            cells = "".join(f"<td style='text-align:right'>{cell}</td>" for cell in (str(n), *self._cells(n)))
            style = " style='background:rgba(214,39,40,0.15)'" if n in marked else ""
            note = f"<br><b>{html.escape(marked[n].kind)}: {html.escape(marked[n].message)}</b>" if n in marked else ""
            code = f"<td style='text-align:left'><code style='white-space:pre'>{html.escape(text)}</code>{note}</td>"
            body.append(f"<tr{style}>{cells}{code}</tr>")
        title = f"{html.escape(self.kernel)}: grid {_short(self.grid)}, block {_short(self.block)}"
        return f"<table><caption>{title}</caption><tr>{head}<th></th></tr>{''.join(body)}</table>"


def _short(extent: tuple[int, int, int]) -> str:
    used = [n for i, n in enumerate(extent) if n > 1 or i == 0 or any(m > 1 for m in extent[i:])]
    return " x ".join(map(str, used))
