"""Pictures of one launch: which lane touches which address, sector and bank, who is idle when, how often in all.

Drawn from the trace that the interpreter keeps if asked, ``simt.profile(..., trace=True)``; nothing here is measured.
A lane has one colour in all pictures, from dark violet (lane 0) to light green (lane 31), an order that any kind of
colour vision keeps. Each function returns a ``Figure`` and raises ``simt.TraceError``, in words, for what the trace
does not have. ``pmpp.lab.draw.plots`` has them all.
"""

from __future__ import annotations

import itertools
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import FOOTER, chart, foot, styled

if typing.TYPE_CHECKING:
    from pmpp.simt import Access, Report, Trace

__all__ = ["LANES", "access", "banks", "divergence", "heat"]

LANES = tuple(map(tuple, matplotlib.colormaps["viridis"](np.linspace(0, 0.88, 32))))
ACTIVE, IDLE, RESTS, PARTS = palette.COLOURS[0], palette.WAITING, "white", palette.WRONG
SECTOR, ROW = 32, 128  # bytes
MOST_STEPS = 240  # columns that can still be told apart

Block = int | tuple[int, ...]


def _traces(reports: Report | Mapping[str, Report]) -> dict[str, Trace]:
    """The traces of one report or of several by name; an error for a report that has none."""
    from pmpp.simt import TraceError

    found = {}
    for name, report in (reports if isinstance(reports, Mapping) else {"": reports}).items():
        trace = getattr(report, "trace", None)
        if trace is None:
            what = getattr(report, "kernel", type(report).__name__)
            raise TraceError(f"no trace of {what} was kept: run it with simt.profile(..., trace=True)")
        found[name] = trace
    return found


def _requests(
    traces: Mapping[str, Trace], array: object, space: str, line: int | str | None, kind: str | None,
    block: Block | None, warp: int | None, nth: int,
) -> Iterator[tuple[str, Trace, Access]]:  # fmt: skip
    """What to draw: of each trace, each line and each kind of access, the nth request of the warp."""
    from pmpp.simt import TraceError

    arrays = array if isinstance(array, (list, tuple)) else [array]
    for (name, trace), each in itertools.product(traces.items(), arrays):
        here, it = (trace.blocks[0] if block is None else block), (trace.warps[0] if warp is None else warp)
        found: dict[tuple, list[Access]] = {}
        for one in trace.accesses(each, line=line, kind=kind, block=here, warp=it):
            found.setdefault((one.line, one.kind, one.variable), []).append(one)
        what = trace.name_of(each)
        if not found:
            verb, lines = kind or "access", ", ".join(map(str, trace.lines(each, kind))) or "none"
            raise TraceError(f"warp {it} of block {here} has no {verb} of {what}; lines with one are: {lines}")
        for (at, how, _), requests in found.items():
            if requests[0].space != space:
                other = "banks" if space == "global" else "access"
                raise TraceError(f"{what} is in {requests[0].space} memory: draw it with plots.{other}")
            if not 0 <= nth < len(requests):
                raise TraceError(f"nth is {nth}; on line {at} the warp has {len(requests)} requests ({how}), from 0 on")
            yield name, trace, requests[nth]


def _title(name: str, one: Access, result: str) -> str:
    verb = {"load": "load of", "store": "store to", "atomic": "atomic on"}[one.kind]
    return f"{name}: {result}" if name else f"Line {one.line}, {verb} {one.variable}: {result}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _who(panels: Sequence[tuple[str, Trace, Access]]) -> str:
    places = {(one.block, one.warp) for _, _, one in panels}
    return ", ".join(f"warp {warp} of block {block}" for block, warp in sorted(places))


# ------------------------------------------------------------------------------------------------- lanes and sectors


@styled
def access(
    report: Report | Mapping[str, Report],
    array: object,
    *,
    line: int | str | None = None,
    kind: str | None = None,
    warp: int | None = None,
    block: Block | None = None,
    nth: int = 0,
) -> Figure:
    """Which lane touches which bytes of global memory, and the sectors of 32 bytes that travel for it.

    Args:
        report: of a launch with ``trace=True``, or several by name: ``{"coalesced": one, "strided": other}``.
        array: a parameter's name, or the array that was passed; or a list of them.
        line: a line number, or a piece of that line's source; None draws each line that touches the array.
        kind: "load", "store" or "atomic"; None draws each.
        warp, block: the first that were traced, by default. nth: which of the warp's requests on the line, if it loops.

    One row for each request. Lines run from the lanes to the bytes; each box is a sector, and what is white in it
    travels for nothing. Raises simt.TraceError.
    """
    panels = list(_requests(_traces(report), array, "global", line, kind, block, warp, nth))
    layouts = [_Boxes(one) for *_, one in panels]
    width = max(9 * SECTOR, *(boxes.width for boxes in layouts))
    figure, axes = _column([1.55] * len(panels))
    for ax, (name, _, one), boxes in zip(axes, panels, layouts, strict=True):
        moved = len(one.sectors)
        result = f"{_plural(moved, 'sector')} a request, {int(one.active.sum())} at worst"
        used = len(np.unique(one.addresses[one.active, None] + np.arange(one.width)))
        ax.set_title(_title(name, one, f"{result}; {used} of {SECTOR * moved:,} bytes used"))
        _draw_request(ax, one, boxes, width)
    axes[-1].set_xlabel("address in the array's memory (bytes)")
    foot(figure, f"Counted by the interpreter: {_who(panels)}. A box is a sector of 32 bytes; white in it is not used")
    return figure


class _Boxes:
    """Where the sectors of a request are drawn: all from the first to the last, or the touched ones with gaps."""

    GAP = 10  # bytes on paper, where sectors are left out
    MOST = 40

    def __init__(self, one: Access) -> None:
        touched = one.sectors
        whole = touched[-1] - touched[0] < self.MOST
        self.touched = {int(s) for s in touched}
        self.sectors = list(range(int(touched[0]), int(touched[-1]) + 1)) if whole else [int(s) for s in touched]
        self.left: dict[int, float] = {}
        self.runs: list[int] = []  # sectors that do not follow the one before
        x = 0.0
        for before, sector in zip([None, *self.sectors], self.sectors, strict=False):
            if before is None or sector != before + 1:
                self.runs.append(sector)
                x += self.GAP if before is not None else 0
            self.left[sector] = x
            x += SECTOR
        self.width = x

    def pieces(self, first: int, width: int) -> Iterator[tuple[float, int]]:
        """Left edge and width on paper of bytes in memory, a piece for each sector."""
        while width > 0:
            sector, inside = divmod(first, SECTOR)
            size = min(width, SECTOR - inside)
            yield self.left[sector] + inside, size
            first, width = first + size, width - size


def _draw_request(ax: Axes, one: Access, boxes: _Boxes, width: float) -> None:
    low, high, top = 0.0, 0.3, 1.0  # the memory's boxes from low to high, the lanes' from top on
    pitch = width / 32
    for sector, left in boxes.left.items():
        edge = palette.INK if sector in boxes.touched else palette.LIGHT
        ax.add_patch(Rectangle((left, low), SECTOR, high, facecolor="none", edgecolor=edge, linewidth=0.8, zorder=2))
    lines, colours = [], []
    for lane in range(31, -1, -1):  # where several lanes share bytes, the first is on top
        on = bool(one.active[lane])
        face = LANES[lane] if on else "white"
        ax.add_patch(Rectangle((lane * pitch, top), pitch, 0.24, facecolor=face, edgecolor=palette.EDGE, linewidth=0.5))
        ink = ("white" if lane < 22 else "black") if on else palette.GREY
        ax.text((lane + 0.5) * pitch, top + 0.12, str(lane), ha="center", va="center", fontsize=FOOTER, color=ink)
        if on:
            pieces = list(boxes.pieces(int(one.addresses[lane]), one.width))
            for left, size in pieces:
                ax.add_patch(Rectangle((left, low), size, high, facecolor=face, linewidth=0, zorder=1.5, gid="used"))
            left, size = pieces[0]
            lines.append([((lane + 0.5) * pitch, top), (left + size / 2, high)])
            colours.append(face)
    ax.add_collection(LineCollection(lines, colors=colours, linewidths=0.9))
    ax.set(xlim=(-2, width + 2), ylim=(low - 0.02, top + 0.26))
    ax.set_yticks([0.15, top + 0.12], ["memory", "lanes"])
    ax.tick_params(length=0)
    starts = boxes.sectors if len(boxes.runs) == 1 else boxes.runs
    need = (0.085 * len(f"{SECTOR * starts[-1]:,}") + 0.12) * width / 6.9  # a label's width
    shown = [starts[0]]
    for sector in starts[1:]:
        if boxes.left[sector] - boxes.left[shown[-1]] >= need:
            shown.append(sector)
    ax.set_xticks([boxes.left[s] for s in shown], [f"{SECTOR * s:,}" for s in shown])
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)


def _column(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Axes below one another, of these heights in inches plus their titles."""
    figure, ax = chart(sum(heights) + 0.35 * len(heights) + 0.55)
    ax.remove()
    return figure, list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


# ------------------------------------------------------------------------------------------------------------- banks


@styled
def banks(
    report: Report | Mapping[str, Report],
    array: object,
    *,
    line: int | str | None = None,
    kind: str | None = None,
    warp: int | None = None,
    block: Block | None = None,
    nth: int = 0,
) -> Figure:
    """Which lane asks which word of which bank of shared memory, and how many wavefronts that takes.

    Arguments as in ``access``; the array is named as the kernel's source names it. Two maps stand side by side. A
    column is a bank, a row is 128 bytes, a cell is a word of 4 bytes, in the colour of the lane that asks for it (the
    first, if several share it). The bars count the words asked of each bank: the tallest is the number of wavefronts.
    Wide accesses are served in groups of lanes, and the map shows the group that needs most wavefronts. Raises
    simt.TraceError.
    """
    panels = list(_requests(_traces(report), array, "shared", line, kind, block, warp, nth))
    maps = [_Map(one) for *_, one in panels]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    most = max(len(each.rows) for each in maps)
    tall = min(4.0, max(0.8, 0.115 * most))
    figure, ax = chart(lines * (tall + 1.7) + 0.6)
    ax.remove()
    grid = figure.subplots(2 * lines, columns, squeeze=False, sharex=True, height_ratios=[tall, 0.75] * lines)
    worst = max(each.counts.max() for each in maps)
    for place, ((name, _, one), each) in enumerate(zip(panels, maps, strict=True)):
        row, column = divmod(place, columns)
        top, bottom = grid[2 * row, column], grid[2 * row + 1, column]
        each.draw(top, bottom, most, worst)
        # A lane asks a bank for one word at most, so that there are no more wavefronts than lanes.
        at_worst = "" if columns == 2 else f", {int(one.active.sum())} at worst"
        result = f"{_plural(one.wavefronts, 'wavefront')} a request{at_worst}"
        top.set_title(textwrap.fill(_title(name, one, result), 50 if columns == 2 else 100))
        if column == 0:
            top.set_ylabel("row")
            bottom.set_ylabel("words")
        bottom.set_xlabel("bank (4 bytes wide)")
    if len(panels) < lines * columns:
        for ax in grid[-2:, 1]:
            ax.remove()
    rows = f"Counted by the interpreter: {_who(panels)}. A row is 128 bytes, a cell a word of 4"
    foot(figure, ". ".join([rows, *sorted({each.note for each in maps if each.note})]))
    named = [Patch(color=LANES[lane], label=f"lane {lane}") for lane in (0, 8, 16, 24, 31)]
    figure.legend(handles=named, loc="outside upper right", ncols=len(named))
    return figure


class _Map:
    """The words that one group of lanes asks for, as rows and banks."""

    MOST = 48  # rows, beyond which those that nobody touches are left out

    def __init__(self, one: Access) -> None:
        groups = [group for group in one.groups() if len(group)]
        self.lanes = max(groups, key=lambda group: self._load(one.words(group)).max())
        self.words = one.words(self.lanes)
        self.counts = self._load(self.words)
        touched = np.unique(self.words // 32)
        whole = touched[-1] - touched[0] < self.MOST
        self.rows = np.arange(touched[0], touched[-1] + 1) if whole else touched
        self.note = ""
        if len(one.groups()) > 1:
            shown = f"lanes {self.lanes[0]} to {self.lanes[-1]}"
            self.note = f"Served {len(one.groups()[0])} lanes at a time: drawn are {shown}"

    @staticmethod
    def _load(words: np.ndarray) -> np.ndarray:
        """How many different words each bank is asked for."""
        return np.bincount(np.unique(words) % 32, minlength=32)

    def draw(self, top: Axes, bottom: Axes, rows: int, worst: int) -> None:
        place = {int(row): i for i, row in enumerate(self.rows)}
        for lane, words in zip(self.lanes[::-1], self.words[::-1], strict=True):
            for word in map(int, words):
                cell = Rectangle((word % 32 - 0.5, place[word // 32] - 0.5), 1, 1, facecolor=LANES[lane], gid="word")
                top.add_patch(cell)
        top.set(xlim=(-0.5, 31.5), ylim=(max(rows, 2) - 0.5, -0.5))
        top.set_xticks(np.arange(-0.5, 32), minor=True)
        top.set_yticks(np.arange(-0.5, len(self.rows)), minor=True)
        top.grid(visible=False, which="major")
        top.grid(visible=True, which="minor", color=palette.GRID, linewidth=0.5)
        step = 4 if len(self.rows) > 16 else max(1, len(self.rows) // 4)
        top.set_yticks(range(0, len(self.rows), step), [str(row) for row in self.rows[::step]])
        top.tick_params(which="both", length=0)
        heavy = self.counts == self.counts.max()
        colours = np.where(heavy & (self.counts > 1), palette.WRONG, palette.GREY)
        bottom.bar(range(32), self.counts, width=0.8, color=colours)
        bottom.set(ylim=(0, worst * 1.08), xticks=range(0, 32, 8))
        bottom.set_yticks(sorted({0, int(worst)}))
        bottom.grid(visible=False, axis="x")
        bottom.tick_params(which="minor", length=0)
        bottom.tick_params(labelbottom=True)  # below there may be no further map


# -------------------------------------------------------------------------------------------------------- divergence


@styled
def divergence(
    report: Report,
    *,
    warp: int | Sequence[int] | None = None,
    block: Block | None = None,
    first: int = 0,
    steps: int = MOST_STEPS,
) -> Figure:
    """Who works when: lanes against time, and below it the source line that is being executed.

    Args:
        report: of a launch with ``trace=True``.
        warp: one or several warps of the block; the first that was traced, by default.
        block: the first that was traced, by default. first, steps: where to begin, and how many steps to draw.

    A step is a statement, or the test of an ``if``, ``while`` or ``for``: time in statements, not in seconds. Dark: the
    lane executes it. Red: the lane waits while its warp does. White: the warp does not execute it. A cross is a branch
    at which lanes go different ways. Statements of a function in another file stand on the line that calls it. Raises
    simt.TraceError.
    """
    from pmpp.simt import TraceError

    (trace,) = _traces(report).values()
    block = trace.blocks[0] if block is None else block
    warps = [trace.warps[0]] if warp is None else [int(w) for w in np.atleast_1d(warp)]
    done = sorted((step for w in warps for step in trace.steps(block=block, warp=w)), key=lambda step: step.sequence)
    times = sorted({step.sequence for step in done})
    chosen = times[first : first + steps]
    if not chosen:
        raise TraceError(f"first is {first}; warp {warps} of block {block} executes {len(times)} steps, from 0 on")
    column = {sequence: i for i, sequence in enumerate(chosen)}
    done = [step for step in done if step.sequence in column]
    lines = sorted({step.line for step in done})
    shades = np.zeros((32 * len(warps), len(chosen)), np.uint8)
    for step in done:
        top = 32 * warps.index(step.warp)
        shades[top : top + 32, column[step.sequence]] = 1 + step.active
    figure, (upper, lower) = _column([max(1.9, min(4.5, 0.5 * len(warps))), max(0.5, 0.165 * len(lines))])
    upper.imshow(
        shades, cmap=ListedColormap([RESTS, IDLE, ACTIVE]), vmin=0, vmax=2, aspect="auto", interpolation="none",
        extent=(-0.5, len(chosen) - 0.5, 32 * len(warps) - 0.5, -0.5),
    )  # fmt: skip
    if len(warps) == 1:
        upper.set(ylabel="lane", yticks=(0, 8, 16, 24, 31))
    else:
        upper.set_yticks([32 * i + 15.5 for i in range(len(warps))], [f"warp {w}" for w in warps])
        for i in range(1, len(warps)):
            upper.axhline(32 * i - 0.5, color=palette.GREY, linewidth=0.6)
    branches = [step for step in done if step.taken is not None]
    split = [step for step in branches if step.diverges]
    mean = np.mean([step.active.sum() for step in done])
    many = "" if len(branches) == 1 else "es"
    found = f"{len(split)} of {len(branches)} branch{many} diverge{'s' if len(split) == 1 else ''}"
    upper.set_title(textwrap.fill(f"{trace.kernel}: {mean:.1f} of 32 lanes active on average; {found}", 50))
    row = {line: i for i, line in enumerate(lines)}
    lower.plot([column[s.sequence] for s in done], [row[s.line] for s in done], "s", color=ACTIVE, markersize=2.6)
    lower.plot([column[s.sequence] for s in split], [row[s.line] for s in split], "x", color=PARTS, markersize=6)
    texts = [textwrap.shorten(trace.source(line), 42, placeholder=" ...") or "..." for line in lines]
    lower.set_yticks(range(len(lines)), [f"{line}  {text}" for line, text in zip(lines, texts, strict=True)])
    for label in lower.get_yticklabels():
        label.set(fontfamily="monospace", fontsize=FOOTER)
    lower.set(xlim=(-0.5, len(chosen) - 0.5), ylim=(len(lines) - 0.4, -0.6), xlabel="time (statements and tests)")
    upper.set_xlim(lower.get_xlim())
    upper.tick_params(labelbottom=False, length=0)
    upper.grid(visible=False)
    keys = [Patch(facecolor=ACTIVE, label="works"), Patch(facecolor=IDLE, label="waits for others of its warp")]
    if (shades == 0).any():
        keys.append(Patch(facecolor=RESTS, edgecolor=palette.EDGE, label="the warp rests"))
    cross = matplotlib.lines.Line2D([], [], color=PARTS, marker="x", linestyle="none", label="the branch diverges")
    figure.legend(handles=[*keys, cross] if split else keys, loc="outside upper right", ncols=4)
    part = "" if len(chosen) == len(times) else f"; steps {first} to {first + len(chosen) - 1} of {len(times)}"
    number = trace.block_number(block)
    foot(figure, f"Counted by the interpreter: {_listed('warp', warps)} of block {number}{part}. Steps, not seconds")
    return figure


def _listed(what: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{what}s {numbers[0]} to {numbers[-1]}"
    return f"{what}s {', '.join(map(str, numbers))}"


# -------------------------------------------------------------------------------------------------------------- heat


@styled
def heat(
    report: Report | Mapping[str, Report],
    array: object | Sequence[object],
    *,
    by: str | None = None,
    block: Block | None = None,
    warp: int | None = None,
) -> Figure:
    """How often each element of an argument is touched: a picture of the array itself.

    Args:
        report: of a launch with ``trace=True``, or several by name.
        array: a parameter's name, or the array that was passed; a list draws several. Three axes and more are drawn as
            a matrix of the last axis, a vector as one row.
        by: "reads" or "writes" (by default whichever there are, both together if both), "block": the block that writes
            the element, or "order": when one traced warp first touches it, in requests.
        block, warp: count only the accesses of a traced block, or of one of its warps, not those of the whole grid.

    All panels have one colour scale, from one access on; it is logarithmic if it reaches beyond 20. White was never
    touched. Each lane's access counts as one, whether or not others of its warp ask for the same element. Raises
    simt.TraceError.
    """
    from pmpp.simt import TraceError

    if by not in (None, "reads", "writes", "block", "order"):
        raise TraceError(f"by is {by!r}; it must be 'reads', 'writes', 'block' or 'order'")
    traces = _traces(report)
    arrays = array if isinstance(array, (list, tuple)) else [array]
    panels = []
    for name, trace in traces.items():
        for each in arrays:
            values, what = _values(trace, each, by, block, warp)
            title = ", ".join(part for part in (name, trace.name_of(each)) if part)
            values = values.reshape(1, -1) if values.ndim < 2 else values.reshape(-1, values.shape[-1])
            panels.append((title, np.ma.masked_less(values, 0 if what in ("block", "request") else 1), what))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    shapes = [values.shape for _, values, _ in panels]
    ratio = max(rows / max(1, cols) for rows, cols in shapes)
    tall = min(4.5, max(0.5, 6.6 / columns * ratio))
    figure, ax = chart(lines * (tall + 0.75) + (1.1 if tall < 1.5 else 0.35))
    ax.remove()
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    counted = np.concatenate([values.compressed() for _, values, _ in panels])
    low, high = (int(counted.min()), int(counted.max())) if counted.size else (0, 1)
    counts = by in (None, "reads", "writes")
    low = 1 if counts else low  # once is light in every picture
    logarithmic = counts and high > 20
    norm = LogNorm(low, high) if logarithmic else Normalize(low, max(high, low + 1))
    colours = matplotlib.colormaps["viridis_r" if counts else "viridis"]
    for ax, (title, values, what) in zip(axes, panels, strict=False):
        image = ax.imshow(values, cmap=colours, norm=norm, interpolation="none", aspect=_aspect(values.shape))
        ax.set_title(textwrap.fill(f"{title}: {_summary(values, what)}", 74 // columns))
        ax.set(xlabel="column" if values.shape[0] > 1 else "element")
        ax.grid(visible=False)
        if values.shape[0] == 1:
            ax.set_yticks([])
    axes[0].set_ylabel("row" if shapes[0][0] > 1 else "")
    for ax in axes[len(panels) :]:
        ax.remove()
    if low < high:
        kinds = {what for *_, what in panels}
        count = f"{kinds.pop()}s (count)" if kinds in ({"read"}, {"write"}) else "accesses (count)"
        label = {"block": "writing block (number)", "order": "first touched in request (number)"}.get(by or "", count)
        where = {"location": "bottom", "shrink": 0.5} if tall < 1.5 else {}
        bar = figure.colorbar(image, ax=axes[: len(panels)].tolist(), label=label, **where)
        between = [t for t in 10 ** np.arange(0, 12) if 1.6 * low < t < high / 1.6]
        bar.set_ticks([low, *between, high] if logarithmic else MaxNLocator(6, integer=True))
        bar.ax.minorticks_off()
        if logarithmic:
            bar.set_ticklabels([f"{t:,}" for t in (low, *between, high)])
    scope = "the whole grid"
    if block is not None or warp is not None or by == "order":
        trace = next(iter(traces.values()))
        scope = f"block {trace.blocks[0] if block is None else trace.block_number(block)}"
        scope += "" if warp is None else f", warp {warp}"
    foot(figure, f"Counted by the interpreter, an access for each lane; {scope}")
    return figure


def _values(
    trace: Trace, array: object, by: str | None, block: Block | None, warp: int | None
) -> tuple[np.ndarray, str]:
    """What to paint, in the array's shape, and what it counts."""
    whole = trace.heat(array)
    if by == "block":
        return whole.writer, "block"
    if by != "order" and block is None and warp is None:
        reads, writes = whole.reads, whole.writes
    else:
        reads, writes, order = trace.touched(array, block=block, warp=warp)
        if by == "order":
            return order, "request"
    if by is None:
        by = "reads" if not writes.any() else "writes" if not reads.any() else None
    if by is None:
        return reads + writes, "access"
    return (reads, "read") if by == "reads" else (writes, "write")


def _summary(values: np.ma.MaskedArray, what: str) -> str:
    found = values.compressed()
    if what in ("block", "request"):
        return "by block" if what == "block" else f"in {int(found.max()) + 1 if found.size else 0} requests"
    if not found.size:
        return f"no {what}"
    verb = {"read": "read", "write": "written", "access": "touched"}[what]
    some = "" if found.size == values.size else f" ({found.size:,} elements)"
    low, high = int(found.min()), int(found.max())
    if low == high:
        return f"{verb} {'once' if low == 1 else f'{low:,} times'} each{some}"
    return f"{verb} {low:,} to {high:,} times{some}"


def _aspect(shape: tuple[int, ...]) -> str:
    return "equal" if 0.2 <= shape[0] / max(1, shape[1]) <= 3 else "auto"
