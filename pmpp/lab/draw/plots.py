"""Pictures of measurements: the roofline, a ladder, a sweep over sizes, CPU beside GPU.

Each function returns a matplotlib ``Figure`` that shows itself in a notebook and leaves pyplot alone. Figures are drawn
from recorded measurements (``lab.measure.record``); the line at the bottom says from which GPU, day and revision. A
rung has one colour and one marker everywhere: those of its place in the ladder. Libraries are grey and hollow. See
``pmpp.lab.draw.palette``.

Pictures of one launch in the interpreter (``access``, ``banks``, ``divergence``, ``heat``) are from
``pmpp.lab.draw.pictures``.
"""

from __future__ import annotations

import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatter, NullLocator

from pmpp.lab.draw import palette
from pmpp.lab.draw.palette import COLOURS, MARKERS
from pmpp.lab.draw.pictures import access, banks, divergence, heat
from pmpp.lab.draw.style import SMALL, chart, foot, label_points, styled
from pmpp.lab.measure import record as store
from pmpp.lab.measure import roofline as roof
from pmpp.lab.measure import units
from pmpp.lab.measure.record import Entry, Record
from pmpp.runtime.rung import room_name

__all__ = [
    "COLOURS",
    "MARKERS",
    "access",
    "banks",
    "by_dtype",
    "colours",
    "counted_intensity",
    "cpu_gpu",
    "divergence",
    "drawn",
    "heat",
    "ladder",
    "regions",
    "roofline",
    "sweep",
    "transfers",
]


def _name(room: str | types.ModuleType) -> str:
    return room if isinstance(room, str) else room_name(room)


def colours(record: Record, room: str | types.ModuleType) -> dict[str, tuple[str, str]]:
    """Colour and marker of every contender of a room: rungs by their place in the ladder, libraries in greys."""
    names: dict[str, list[str]] = {kind: [] for kind in store.KINDS}
    # The design size first: it has the whole ladder in order.
    for entry in sorted(record.entries(_name(room)), key=lambda entry: not entry.design):
        if entry.contender not in names[entry.kind]:
            names[entry.kind].append(entry.contender)
    found = {}
    for kind, members in names.items():
        among = palette.LIBRARIES if kind in ("library", "numpy") else COLOURS
        for place, name in enumerate(members):
            found[name] = among[place % len(among)], MARKERS[place % len(MARKERS)]
    return found


def _ceilings(record: Record, name: str) -> tuple[roof.Ceilings, str]:
    """The ceilings of a room's run, and whose arithmetic they are if it is not plainly that of multiply-adds."""
    found = units.roof(record, name)
    if not found.known:
        return found.ceilings, " of float32 multiply-adds (that of tensor cores was not measured)"
    return found.ceilings, f" of tensor cores, {found.tensor}" if found.tensor else ""


def _share(entry: Entry, ceilings: roof.Ceilings) -> float:
    """The share of the roof by the least work of the entry's algorithm."""
    return roof.share(entry.own or entry.cost, entry.seconds, ceilings)


def _best(entries: Iterable[Entry], kind: str) -> Entry | None:
    return min((entry for entry in entries if entry.kind == kind), key=lambda entry: entry.median_ms, default=None)


def _title(name: str, entry: Entry) -> str:
    return f"{name}: {entry.workload}" if entry.family == name else f"{name}: {entry.family}, {entry.workload}"


def _ms(milliseconds: float) -> str:
    """A time with three digits, and in a unit that needs no power of ten.

    >>> _ms(2708.4), _ms(999.6), _ms(12), _ms(0.0567)
    ('2.71 s', '1 s', '12 ms', '56.7 us')
    """
    if milliseconds >= 999.5:
        return f"{_short(milliseconds / 1e3)} s"
    return f"{_short(milliseconds)} ms" if milliseconds >= 0.1 else f"{_short(milliseconds * 1e3)} us"


def _short(number: float) -> str:
    """Three digits of a number, without a power of ten.

    >>> _short(2708.4), _short(0.5), _short(12.345)
    ('2,710', '0.5', '12.3')
    """
    return f"{float(f'{number:.3g}'):,.10g}"


def _lines(words: str, width: int = 24) -> str:
    r"""A label for a legend, which takes its width from the axes: a long one is broken after a blank or an underscore.

    >>> _lines("torch.native_batch_norm_backward 10%")
    'torch.native_batch_norm_\nbackward 10%'
    """
    lines = [""]
    for piece in re.split(r"(?<=[_ ])", words):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _rate(tera: float) -> str:
    return f"{_short(tera)} TFLOP/s" if tera >= 1 else f"{_short(tera * 1e3)} GFLOP/s"


class _Minor(LogFormatter):
    """Plain numbers at minor ticks, where matplotlib would label them: on a short axis."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _plain(axis: typing.Any) -> None:
    """Write 0.01 and 100 on a logarithmic axis, not powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    axis.set_minor_formatter(_Minor())


# ---------------------------------------------------------------------------------------------------------- roofline


@styled
def roofline(
    room: str | types.ModuleType | None = None,
    *,
    record: Record | None = None,
    family: str | None = None,
    reports: Mapping[str, typing.Any] | None = None,
) -> Figure:
    """The roofline: rate over arithmetic intensity, under the two ceilings of the GPU.

    Args:
        room: the rungs and libraries of one room at its design size; None draws the best rung of every room, with its
            other rungs faint.
        record: the measurements; ``record.load(room=...)`` by default. family: which of the room's workloads.
        reports: ``{"mine": report}`` with Reports of ``pmpp.simt``: each is drawn at its *counted* intensity, FLOP over
            32 bytes for each sector of global memory, at the height of the roof there. That is what it could reach, a
            prediction, and marked as one.

    A measured point lies at the least work of its algorithm (``Cost``): its distance from the roof is all that can be
    gained. Where that is less than the work of the definition, a small hollow mark has the same time by the definition,
    which may lie above the roof. Raises RecordError if there is no measurement, ValueError for a room without
    arithmetic, or for a report without arithmetic or traffic.
    """
    name = None if room is None else _name(room)
    record = record or store.load(room=name)
    figure, ax = chart(4.8 if name else max(6.4, 0.1 * len(record.rooms())))  # a label for each room
    ceilings, by = _ceilings(record, name) if name else (record.ceilings(), "")
    points: list[tuple[float, float, str, str]] = []  # to be labelled
    drawn: list[tuple[float, float]] = []
    notes, twofold, without, kinds = [], False, [], set()
    if name is None:
        for number, each in enumerate(record.rooms()):
            best = _best(record.design(each), "rung")
            if best is None or not best.flops:
                without.append(each)
                continue
            colour = COLOURS[number % len(COLOURS)]
            for entry in record.design(each):
                if entry.kind == "rung" and entry is not best:
                    drawn += _mark(ax, entry, colour, ".", alpha=0.45, both=False)
            (x, y), *others = _mark(ax, best, colour, "o")
            # By the room's own ceilings, as everywhere else: rooms can be measured on different days.
            own = units.roof(record, each)
            share = f" {_share(best, own.ceilings):.0%}" if own.known else ""  # of another unit's it would say nothing
            points.append((x, y, f"{each}{share}", colour))
            kinds |= {own.tensor} if own.tensor else set()
            drawn += others
            twofold |= bool(others)
        ax.set_title("The best rung of each room and its share of the roof; small dots are the rungs before it")
        if without:
            verbs = "does no arithmetic and is" if len(without) == 1 else "do no arithmetic and are"
            notes.append(f"{', '.join(without[:-1]) + ' and ' if without[1:] else ''}{without[-1]} {verbs} not drawn")
    else:
        # All lie above one another, at the intensity of the least cost: a legend names them without crowding.
        look = colours(record, name)
        entries = [entry for entry in record.design(name, family) if entry.kind in ("rung", "library")]
        for entry in entries:
            label = _lines(f"{entry.contender} {_share(entry, ceilings):.0%}")
            drawn += _mark(ax, entry, *look[entry.contender], label)
            twofold |= entry.own is not None
        if not drawn:
            raise ValueError(f"{name} does no arithmetic, so it has no place on a roofline")
        # Over the legend as well: a layer's name is longer than the axes are wide.
        figure.suptitle(_title(name, entries[0]), x=0.01, ha="left", fontsize=ax.title.get_fontsize())
        figure.legend(loc="outside right upper", alignment="left", title="share of the roof", title_fontsize=SMALL)
    for label, report in (reports or {}).items():
        x = counted_intensity(report)
        y = roof.attainable(x, ceilings) / 1e12
        ax.plot(x, y, "*", color=palette.OWN, mfc="white", mew=1.5, markersize=13, zorder=5)
        points.append((x, y, f"{label}\nat most {_rate(y)}, predicted", palette.OWN))
    drawn += [(x, y) for x, y, *_ in points]
    if kinds := sorted(kinds & ceilings.tensor.keys(), key=lambda kind: ceilings.tensor[kind]):
        drawn.append((ceilings.ridge, ceilings.tensor[kinds[-1]] / 1e12))  # the axes reach to their roofs
    draw_roof(ax, ceilings, drawn, "tensor cores" if by.startswith(" of tensor cores") else "multiply-add")
    low, high = ax.get_xlim()
    along = [low * (high / low) ** (i / 300) for i in range(301)]
    roofs = [(x, roof.attainable(x, ceilings) / 1e12) for x in along]
    for kind in kinds:
        roofs += _draw_tensor_roof(ax, ceilings, kind)
    predicted = ["Stars are predicted from counted traffic, not measured"] if reports else []
    if by:
        notes.append(f"The flat roof is that{by}")
    if twofold:
        notes.append("Small and hollow: the same time by the definition")
    foot(figure, "\n".join(filter(None, [record.footer(name), ". ".join([*predicted, *notes])])))
    label_points(ax, points, [*drawn, *roofs])
    return figure


def _draw_tensor_roof(ax: Axes, ceilings: roof.Ceilings, kind: str) -> list[tuple[float, float]]:
    """Tensor cores' roof over that of multiply-adds, dashed. Returns points along it."""
    theirs, high = ceilings.on_tensor_cores(kind), ax.get_xlim()[1]
    edge = [ceilings.ridge, theirs.ridge, high]
    ax.plot(edge, [roof.attainable(x, theirs) / 1e12 for x in edge], "--", color=palette.INK, linewidth=1, zorder=1)
    top = theirs.fma_f32 / 1e12
    words = f"tensor cores, {kind}, {_rate(top)}"
    ax.text(high / 1.1, top * 1.06, words, ha="right", va="bottom", fontsize=SMALL, color=palette.INK)
    along = [ceilings.ridge * (high / ceilings.ridge) ** (i / 200) for i in range(201)]
    return [(x, roof.attainable(x, theirs) / 1e12) for x in along]


def counted_intensity(report: typing.Any) -> float:
    """FLOP a byte of a ``pmpp.simt`` Report, by the sectors of 32 bytes that its loads and stores touch.

    Raises ValueError if it counted no traffic or no arithmetic: then it has no place on a roofline.
    """
    counters = report.counters
    moved = 32 * (counters["global_load_sectors"] + counters["global_store_sectors"])
    if not moved or not counters["flops"]:
        what = "no global memory traffic" if not moved else "no floating-point arithmetic"
        raise ValueError(f"the report counted {what}, so it has no place on a roofline; profile it at level 'count'")
    return counters["flops"] / moved


def _mark(
    ax: Axes, entry: Entry, colour: str, marker: str, label: str = "_", alpha: float = 1.0, both: bool = True
) -> list[tuple[float, float]]:
    """Draw a measured point; where it lies, or nothing if it does no arithmetic and so has no place.

    With a cost of its own it lies there, and with ``both`` a second point is where the definition's cost would put it.
    """
    costs = [cost for cost in (entry.own, entry.cost) if cost is not None and cost.flops]
    costs = costs if both else costs[:1]
    if not costs:
        return []
    places = [(cost.intensity, cost.flops / entry.seconds / 1e12) for cost in costs]
    # A library is larger, hollow, and below: neither hides the other where they are equally fast.
    face, size, order = ("white", 11, 3.5) if entry.kind == "library" else (colour, 7, 4)
    style = {"color": colour, "mfc": face, "markersize": size, "alpha": alpha, "zorder": order, "label": label}
    ax.plot(*places[0], marker, **style)
    if len(places) == 2:
        ax.plot(*zip(*places, strict=True), ":", color=colour, linewidth=0.8, alpha=alpha, zorder=2)
        ax.plot(*places[1], marker, color=colour, mfc="white", markersize=4, alpha=alpha, zorder=order)
    return places


def draw_roof(
    ax: Axes, ceilings: roof.Ceilings, drawn: Sequence[tuple[float, float]], arithmetic: str = "multiply-add"
) -> None:
    """The two ceilings and the ridge, over an area that holds what is ``drawn``."""
    top = ceilings.fma_f32 / 1e12
    xs = [ceilings.ridge, *(x for x, _ in drawn)]
    low, high = min(min(xs) / 4, ceilings.ridge / 40), max(xs) * 12
    bottom = min([roof.attainable(min(xs), ceilings) / 1e12, *(y for _, y in drawn)]) / 4
    edge = [low, ceilings.ridge, high]
    ax.plot(edge, [roof.attainable(x, ceilings) / 1e12 for x in edge], color=palette.INK, zorder=3)
    ax.plot([ceilings.ridge] * 2, [bottom, top], ":", color=palette.FAINT, linewidth=1, zorder=1)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, max([top, *(y for _, y in drawn)]) * 2.5))
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="rate (TFLOP/s)")
    _plain(ax.xaxis)
    _plain(ax.yaxis)
    style = {"fontsize": SMALL, "color": palette.INK, "va": "bottom"}
    above = ax.text(high / 1.1, top * 1.06, f"{arithmetic} {_short(top)} TFLOP/s", ha="right", **style)
    slope = ceilings.bandwidth / 1e12
    x = _free_place(max(low, bottom / slope), ceilings.ridge, [px for px, py in drawn if py > px * slope / 2])
    turned = {"rotation": math.degrees(math.atan(slope)), "rotation_mode": "anchor", "transform_rotates_text": True}
    along = ax.text(x, x * slope * 1.12, f"memory {slope:.3g} TB/s", ha="center", **style, **turned)
    label = ax.annotate(
        f"ridge: {ceilings.ridge:.3g} FLOP/byte",
        (ceilings.ridge, 0),
        (4, 5),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=SMALL,
        color=palette.NOTE,
    )
    ax.figure.draw_without_rendering()  # settles the width of the axes
    if label.get_window_extent().x1 > ax.get_window_extent().x1:
        label.set(ha="right", position=(-4, 5))  # no room on the right: left of the line
    if (beyond := ax.get_window_extent().x0 - along.get_window_extent().x0) > 0:
        x = ax.transData.inverted().transform((ax.transData.transform((x, 1))[0] + beyond, 0))[0]
        along.set_position((x, x * slope * 1.12))
    _lift(above, [tuple(at) for at in ax.transData.transform(drawn)])


def _free_place(left: float, right: float, taken: Sequence[float]) -> float:
    """The intensity between two others that is farthest from those taken, on a logarithmic axis; or the middle."""
    places = [left * (right / left) ** (share / 100) for share in sorted(range(15, 86, 5), key=lambda s: abs(s - 50))]
    far = 0.3 * math.log(right / left)  # farther away is no better
    return max(places, key=lambda x: min([far, *(abs(math.log(x / other)) for other in taken)]))


def _lift(label: Text, marks: Sequence[tuple[float, float]]) -> None:
    """Move a label up until it hides none of the marks, given in pixels: it begins where a mark may lie."""
    size = 8.0  # from the middle of a mark to its edge, and some air
    for _, y in sorted(marks, key=lambda mark: mark[1]):
        box = label.get_window_extent()
        if any(box.x0 - size < a < box.x1 + size and box.y0 - size < b < box.y1 + size and b == y for a, b in marks):
            label.set_y(label.axes.transData.inverted().transform((0, y + size))[1])


# ------------------------------------------------------------------------------------------------------------ ladder


@styled
def ladder(
    room: str | types.ModuleType,
    *,
    record: Record | None = None,
    family: str | None = None,
) -> Figure:
    """The rungs of a room from naive to fast, the libraries and NumPy: share of the roof as bars, times beside them.

    The dashed line is the best library. A kernel of ours that stands beside the rungs, such as a measured roof
    (``cuda.add_min``), is named in its place. 100 % is the bound of ``roofline.bound`` for the work of the definition.
    What reads more than it writes can pass it by some per cent, since the ceiling is measured by a copy, and an
    algorithm that does less can pass it by far: then a further column has its share of its own bound. A room on
    tensor cores has their rate as its ceiling, if the run has measured it. Raises RecordError if the room was not
    measured.
    """
    name = _name(room)
    record = record or store.load(room=name)
    entries = [entry for entry in record.design(name, family) if entry.kind != "transfer"]
    ceilings, by = _ceilings(record, name)
    look = colours(record, name)
    figure, ax = chart(1.7 + 0.36 * len(entries))
    shares = [roof.share(entry.cost, entry.seconds, ceilings) for entry in entries]
    for row, (entry, share) in enumerate(zip(entries, shares, strict=True)):
        colour = look[entry.contender][0]
        # Whose kernels are not shown here is hollow, as in the other figures.
        face, hatch = (colour if entry.kind == "rung" else "white"), ("///" if entry.kind == "numpy" else None)
        ax.barh(row, 100 * share, height=0.66, facecolor=face, edgecolor=colour, linewidth=1.5, hatch=hatch)
        own = [f"{_share(entry, ceilings):.1%}"] if entry.own else []
        _beside(ax, row, _ms(entry.median_ms), f"{share:.1%}", *own)
    if any(entry.own for entry in entries):
        _beside(ax, -0.65, "", "", "of its own", va="bottom")
    side = roof.bound(entries[0].cost, ceilings).side
    ceiling = f"{ceilings.bandwidth / 1e12:.3g} TB/s" if side == "memory" else _rate(ceilings.fma_f32 / 1e12)
    ax.axvline(100, color=palette.INK, linewidth=1.2)
    library = _best(entries, "library")
    if library is not None:
        ax.axvline(100 * _share(library, ceilings), color=palette.INK, linewidth=1.2, linestyle="--")
    ax.set_yticks(range(len(entries)), [_lines(_who(entry), NAME) for entry in entries])
    ax.set_ylim(len(entries) - 0.4, -0.6)  # naive on top: the reader climbs down the page
    ax.set_xlim(0, 100 * max(1.02, 1.02 * max(shares)))
    ax.grid(False, axis="y")
    dashed = f". Dashed: {_rival(library)}" if library else ""
    ax.set_xlabel(f"share of the roof (%). Solid: the {side} ceiling, {ceiling}{dashed}")
    ax.set_title(_title(name, entries[0]))
    words = record.footer(name) + (f"\nThe ceiling of arithmetic is that{by}" if by and side == "compute" else "")
    foot(figure, words + (_cpu(record, name) if _best(entries, "numpy") else ""))
    return figure


NAME = 34  # characters of a bar's name in a line: longer ones would leave the bars no room
COLUMNS = (58, 104, 150)  # points from the axes to the right end of each column beside the bars


def _beside(ax: Axes, row: float, *texts: str, va: str = "center") -> None:
    """Write columns on the right of the axes, as wide as their words need, however wide the axes are."""
    at = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
    for x, text in zip(COLUMNS, texts, strict=False):
        if text:
            ax.annotate(text, (1, row), (x, 0), ha="right", va=va, fontsize=SMALL, annotation_clip=False, **at)


def _who(entry: Entry) -> str:
    return f"{entry.contender}, CPU" if entry.kind == "numpy" else entry.contender


def _rival(entry: Entry) -> str:
    """Who is measured beside the rungs. What the package ``cuda`` stands for is no library: see `Workload`."""
    return entry.contender if units.is_roof(entry) else "the best library"


def _cpu(record: Record, name: str) -> str:
    """A second line at the bottom, on whose CPU NumPy ran."""
    run = record.run(name)
    numpy = f"NumPy {run['versions'].get('numpy', 'unknown')} (on one core, but for products of matrices)"
    return f"\nCPU: {run['cpu']}; {numpy}"


# ------------------------------------------------------------------------------------------------------------- sweep


def regions(entries: Iterable[Entry], ceilings: roof.Ceilings, l2_bytes: int) -> list[tuple[str, float, float]]:
    """What bounds each size, from the record: ``(name, from, to)`` along the size, neighbours joined.

    Launch-bound: the bound is shorter than an empty kernel. Compute-bound: arithmetic sets the bound. In cache: all
    bytes fit in the L2 cache, where repeated launches find them. Memory-bound: the rest. Borders lie midway between two
    sizes, on the logarithmic axis.
    """
    sizes = {entry.x: entry for entry in entries}
    kinds = []
    for x in sorted(sizes):
        bound = roof.bound(sizes[x].cost, ceilings)
        if bound.seconds < ceilings.empty_kernel:
            kind = "launch-bound"
        elif bound.side == "compute":
            kind = "compute-bound"
        else:
            kind = "in cache" if sizes[x].bytes <= l2_bytes else "memory-bound"
        kinds.append((x, kind))
    found: list[tuple[str, float, float]] = []
    for place, (x, kind) in enumerate(kinds):
        start = math.sqrt(kinds[place - 1][0] * x) if place else float(x)
        end = math.sqrt(x * kinds[place + 1][0]) if place + 1 < len(kinds) else float(x)
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1], end)
        else:
            found.append((kind, start, end))
    return found


@styled
def sweep(
    room: str | types.ModuleType,
    *,
    record: Record | None = None,
    family: str | None = None,
    only: Sequence[str] | None = None,
    xlabel: str | None = None,
    title: str | None = None,
) -> Figure:
    """Rate over size for every rung and library of a room, over regions where launch, cache, memory or arithmetic rule.

    The dashed line is what the ceilings allow: the bound, but never less than an empty kernel. Data that fit in the
    cache can be above it. ``only`` picks contenders. ``xlabel`` says what the size is, where the record has only its
    letter, and ``title`` what is compared. Raises RecordError if the room was not measured, or at one size alone.
    """
    name = _name(room)
    record = record or store.load(room=name)
    family = family or record.families(name)[0]
    entries = [e for e in record.entries(name, family=family) if e.kind in ("rung", "library")]
    entries = [e for e in entries if only is None or e.contender in only]
    if not entries:
        raise store.RecordError(f"{record.where} has no sweep of {family!r} in room {name!r}")
    if len({entry.x for entry in entries}) == 1:
        raise store.RecordError(f"{record.where} has one size of {family!r} in room {name!r}, and a sweep has several")
    ceilings, by = _ceilings(record, name)
    look = colours(record, name)
    compute = roof.bound(max(entries, key=lambda entry: entry.x).cost, ceilings).side == "compute"

    def rate(entry: Entry, seconds: float) -> float:
        return (entry.flops if compute else entry.bytes) / seconds / 1e12

    figure, ax = chart(4.6)
    for contender in dict.fromkeys(entry.contender for entry in entries):
        mine = sorted((entry for entry in entries if entry.contender == contender), key=lambda entry: entry.x)
        colour, marker = look[contender]
        face = "white" if mine[0].kind == "library" else colour
        rates = [rate(entry, entry.seconds) for entry in mine]
        order = 2 if mine[0].kind == "library" else 3  # no library hides a rung
        line = {"color": colour, "marker": marker, "mfc": face, "zorder": order}
        ax.plot([entry.x for entry in mine], rates, **line, label=contender)
    sizes = sorted({entry.x: entry for entry in entries}.values(), key=lambda entry: entry.x)
    allowed = [rate(e, max(roof.bound(e.cost, ceilings).seconds, ceilings.empty_kernel)) for e in sizes]
    ax.plot([entry.x for entry in sizes], allowed, "--", color=palette.INK, linewidth=1.2, label="the ceilings allow")
    words = record.footer(name) + (f"\nThe ceiling of arithmetic is that{by}" if by and compute else "")
    ax.set(xscale="log", yscale="log", xlabel=xlabel or _size_label(sizes[-1]))
    ax.set(ylabel=f"rate (T{'FLOP' if compute else 'B'}/s)", title=title or f"{name}: {family} over size")
    _size_axis(ax, [entry.x for entry in sizes])
    _plain(ax.yaxis)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.12)  # a band on top for the names of the regions
    foot(figure, words)
    _shade(ax, regions(entries, ceilings, record.l2_bytes))
    return figure


def _size_label(entry: Entry) -> str:
    key = next(iter(entry.sizes))
    if key == "bytes":
        return "size (bytes)"
    if len(entry.sizes) > 1:
        return f"size {key}"  # of several: neither all elements nor the side of a square
    # A matrix of n x n has far more bytes than a vector of n.
    return f"size {key} (elements)" if entry.bytes < 100 * entry.x else f"size {key} (rows and columns)"


def _size_axis(ax: Axes, sizes: Sequence[int]) -> None:
    """Ticks at powers of two, at most nine."""
    powers = range(math.ceil(math.log2(min(sizes))), math.floor(math.log2(max(sizes))) + 1)
    chosen = powers[:: max(1, math.ceil(len(powers) / 9))]
    small = max(sizes) <= 2**14
    ax.set_xticks([2**k for k in chosen], [str(2**k) if small else f"$2^{{{k}}}$" for k in chosen])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)


def _shade(ax: Axes, found: Sequence[tuple[str, float, float]]) -> None:
    """Colour the regions and name them on top: in two lines if narrow, in the legend if too narrow even for that."""
    low, high = ax.get_xlim()
    spans = [[name, start, end] for name, start, end in found]
    spans[0][1], spans[-1][2] = low, high
    for name, start, end in spans:
        ax.axvspan(start, end, color=palette.REGIONS[name], zorder=0, linewidth=0)
    handles: list[typing.Any] = list(ax.get_lines())
    # The legend decides how much width the axes keep, so it comes before the names are measured.
    legend = ax.figure.legend(handles=handles, loc="outside right upper", alignment="left")
    ax.figure.draw_without_rendering()
    style = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": SMALL, "in_layout": False}
    for name, start, end in spans:
        width = ax.transData.transform((end, 1))[0] - ax.transData.transform((start, 1))[0] - 4
        for text in (name, name.replace("-", "-\n").replace(" ", "\n")):
            label = ax.text(math.sqrt(start * end), 0.985, text, **style)
            if label.get_window_extent().width <= width:
                break
            label.remove()
        else:
            handles.append(Patch(color=palette.REGIONS[name], label=name))
    if len(handles) > len(ax.get_lines()):
        legend.remove()
        ax.figure.legend(handles=handles, loc="outside right upper", alignment="left")


def drawn(draw: Callable[..., Figure], *arguments: typing.Any, **options: typing.Any) -> Figure | None:
    """The figure that ``draw`` makes; where nothing has been measured, print what is missing and go on.

    A file of the repository is named from its root on: the output is the same wherever the repository lies.
    """
    try:
        return draw(*arguments, **options)
    except store.RecordError as missing:
        print("Nothing to draw:", str(missing).replace(f"{store.RECORDED.parents[1]}{os.sep}", ""))
        return None


# -------------------------------------------------------------------------------------------------------- CPU and GPU


@styled
def cpu_gpu(
    room: str | types.ModuleType, *, record: Record | None = None, family: str | None = None, xlabel: str = ""
) -> Figure:
    """Time over size: what ran on the CPU, a rung's kernel alone, and the same with both transfers and the call.

    The rung is the one that was timed with transfers. Where none was, it is the fastest at the design size, or at the
    largest size of a family without one.

    Raises RecordError if the room has no CPU measurements.
    """
    name = _name(room)
    record = record or store.load(room=name)
    cpu = [entry for entry in record.entries(name, kind="numpy") if family in (None, entry.family)]
    if not cpu:
        raise store.RecordError(f"{record.where} has no CPU measurements of room {name!r}")
    cpu = sorted((entry for entry in cpu if entry.family == cpu[0].family), key=lambda entry: entry.x)
    rungs = record.entries(name, family=cpu[0].family, kind="rung")  # of a sweep, which need not have a design size
    chosen = _to_use(rungs)
    gpu = sorted((entry for entry in rungs if entry.contender == chosen), key=lambda entry: entry.x)
    colour, marker = colours(record, name)[chosen]
    figure, ax = chart()
    style = {"color": colour, "marker": marker}
    for place, contender in enumerate(dict.fromkeys(entry.contender for entry in cpu)):
        mine = [entry for entry in cpu if entry.contender == contender]
        look = HOST_MARKERS[place % len(HOST_MARKERS)] + HOST_LINES[place % len(HOST_LINES)]
        ax.plot([e.x for e in mine], [e.median_ms for e in mine], look, color=palette.NOTE, label=f"CPU: {contender}")
    whole = [(entry.x, entry.end_to_end_ms) for entry in gpu if entry.end_to_end_ms is not None]
    if whole:
        label = f"GPU: {chosen}, call and transfers included"
        ax.plot(*zip(*whole, strict=True), **style, linestyle="--", mfc="white", label=label)
    ax.plot([e.x for e in gpu], [e.median_ms for e in gpu], **style, label=f"GPU: {chosen}, kernel alone")
    ax.set(xscale="log", yscale="log", ylabel="time (ms)", xlabel=xlabel or _size_label(cpu[-1]))
    ax.set_title(f"{name}: {cpu[0].family} on the CPU and on the GPU")
    _size_axis(ax, [entry.x for entry in [*cpu, *gpu]])
    _plain(ax.yaxis)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.3)  # the legend's room
    ax.legend(loc="upper left")
    foot(figure, record.footer(name) + _cpu(record, name))
    return figure


HOST_MARKERS, HOST_LINES = "x+123", ("-", ":", "--", "-.")  # five and four: 20 pairs until one comes again


def _to_use(rungs: Sequence[Entry]) -> str:
    """The name of the rung to compare with a CPU: see `cpu_gpu`."""
    whole = [entry for entry in rungs if entry.end_to_end_ms is not None]
    if whole:
        return whole[-1].contender
    at = [entry for entry in rungs if entry.design]
    at = at or [entry for entry in rungs if entry.x == max(one.x for one in rungs)]
    return min(at, key=lambda entry: entry.median_ms).contender


@styled
def transfers(room: str | types.ModuleType, *, record: Record | None = None) -> Figure:
    """Rate of transfers between host and device over their size, from pageable and from pinned host memory."""
    name = _name(room)
    record = record or store.load(room=name)
    entries = record.entries(name, kind="transfer")
    if not entries:
        raise store.RecordError(f"{record.where} has no transfers in room {name!r}")
    look = colours(record, name)
    figure, ax = chart()
    for family, contender in dict.fromkeys((entry.family, entry.contender) for entry in entries):
        mine = [entry for entry in entries if (entry.family, entry.contender) == (family, contender)]
        mine.sort(key=lambda entry: entry.x)
        colour, marker = look[contender]
        line = {"color": colour, "marker": marker, "linestyle": "-" if family.startswith("host") else "--"}
        rates = [entry.bytes / entry.seconds / 1e9 for entry in mine]
        ax.plot([entry.x for entry in mine], rates, **line, label=f"{family}, {contender}")
    ax.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="rate (GB/s)")
    ax.set_title("Transfers between host and device")
    _size_axis(ax, [entry.x for entry in entries])
    _plain(ax.yaxis)
    ax.legend(loc="lower right")
    foot(figure, record.footer(name))
    return figure


# -------------------------------------------------------------------------------------------------------------- dtypes


@styled
def by_dtype(room: str | types.ModuleType, family: str, *, record: Record | None = None) -> Figure:
    """The time of a family at its design size in float32, float16 and bfloat16: the best rung, and the best library.

    A family in 16 bits has the dtype in its name, as in "add, float16". The dashed line is half the rung's time in
    float32, which is the bound where nothing but memory counts. Beside each bar stand its time, and how many times as
    fast that is as the same contender in float32. Raises RecordError if no such family was measured.
    """
    name = _name(room)
    record = record or store.load(room=name)
    families = {dtype: family if dtype == "float32" else f"{family}, {dtype}" for dtype in DTYPES}
    known = [dtype for dtype in DTYPES if record.entries(name, family=families[dtype], design=True)]
    if not {"float32"} < set(known):
        raise store.RecordError(f"{record.where} has no measurement of {name!r}, {family}, in 16 bits")
    bars = []
    for dtype in known:
        entries = record.design(name, families[dtype])
        bars += [(dtype, _best(entries, kind)) for kind in ("rung", "library")]
    bars = [(dtype, entry) for dtype, entry in bars if entry is not None]
    slow = {entry.kind: entry for dtype, entry in bars if dtype == "float32"}
    look = colours(record, name)
    figure, ax = chart(1.5 + 0.36 * len(bars))
    for row, (_, entry) in enumerate(bars):
        colour = look[entry.contender][0]
        face = colour if entry.kind == "rung" else "white"
        ax.barh(row, entry.median_ms, height=0.66, facecolor=face, edgecolor=colour, linewidth=1.5)
        times = slow[entry.kind].median_ms / entry.median_ms if entry.kind in slow else math.nan
        _beside(ax, row, _ms(entry.median_ms), f"{times:.2f} x")
    ax.axvline(slow["rung"].median_ms / 2, color=palette.INK, linewidth=1.2, linestyle="--")
    ax.set_yticks(range(len(bars)), [_lines(f"{dtype}, {entry.contender}", NAME) for dtype, entry in bars])
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.grid(False, axis="y")
    ax.set_xlabel(f"time (ms). Dashed: half of {slow['rung'].contender} in float32")
    ax.set_title(_title(name, slow["rung"]))
    foot(figure, record.footer(name))
    return figure


DTYPES = ("float32", "float16", "bfloat16")
