"""The picture of drawn shapes: a dot a shape, ratio against work, a panel a line of the report and a colour a room.

`ratios` takes a record of `pmpp.lab.measure.shapes.running.load`, in a chapter as::

    from pmpp.lab.draw import shapes
    from pmpp.lab.measure.shapes.running import load

    shapes.ratios(load())
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, foot, styled
from pmpp.lab.measure.shapes.drawing import LINES, Line, rooms
from pmpp.lab.measure.shapes.report import TARGETS, Target, ratio

__all__ = ["ratios"]

COLOURS = (*palette.COLOURS, palette.GREY, palette.INK)
LOOKS = dict(zip(rooms(), zip(COLOURS, palette.MARKERS, strict=False), strict=True))
LEAST = 1.0  # microseconds: what takes less is drawn here, so that the named tiny ones do not squeeze all others
TICKS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))


@styled
def ratios(record: Mapping[str, typing.Any], *, room: str | None = None) -> Figure:
    """The better library's time over ours, above 1.0 where ours is faster, against the least time by the roofline.

    Args:
        record: as it is in ``pmpp/recorded/<gpu>/shapes.json``.
        room: draw the lines of one room alone; None for all.

    The least time is the longer of a shape's bytes and its FLOP over the ceilings of its GPU: work in one unit,
    whatever bounds it. A panel's title has the geometric mean of its dots and the least of them; its corner, how many
    of the line's shapes they are. The dashed line is the ratio that each shape of the line is to reach, and the dotted
    one what their mean is to reach. A line of which nothing is recorded has a panel that says so. Shapes without a
    time, of either side, are counted at the bottom, and those that are kept aside are left out. Raises ValueError if
    no shape has a ratio.
    """
    lines = [line for line in LINES if room in (None, line.room)]
    points: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for line in lines:
        rows = record["measured"].get(line.room, {"rows": ()})["rows"]
        rows = [row for row in rows if row["line"] == line.name and not row["aside"]]
        found = [(max(row["bound_us"], LEAST), value) for row in rows if (value := ratio(row)) is not None]
        missing += len(rows) - len(found)
        points[line.name] = found
    every = [value for dots in points.values() for _, value in dots]
    if not every:
        raise ValueError("the record must have a ratio of at least one shape")
    columns = min(4, len(lines))
    deep = math.ceil(len(lines) / columns)
    figure = Chart(figsize=(7.8, 1.2 + (4 if deep == 1 else 2.0 * deep)), layout="constrained")
    panels = figure.subplots(deep, columns, sharex=True, sharey=True, squeeze=False).ravel()
    about, targets = record["about"], {target.line: target for target in TARGETS}
    for panel, line in zip(panels, lines, strict=False):
        _panel(panel, line, targets[line.name], points[line.name], about["gpu"]["name"])
    held = [targets[line.name] for line in lines if points[line.name]]
    every += [wanted for target in held for wanted in (target.least, target.mean) if wanted is not None]
    _range(panels[0], min(every), max(every))  # the lines that the note names are inside
    for panel in panels[len(lines) :]:
        panel.remove()
    for panel in panels[max(0, len(lines) - columns) : len(lines)]:  # the last of each column
        panel.tick_params(labelbottom=True)
    figure.supylabel("speed, in multiples of the better library", fontsize=10)
    words = "Horizontally: the least time by the roofline, in microseconds. Above the solid line ours is faster.\n"
    words += "Dashed: wanted of each shape. Dotted: wanted of the mean, which is geometric. "
    words += f"Refused or without a time: {missing}.\n"
    words += f"Recorded on {about['gpu']['name']}, {about['run']['date'][:10]}, revision {about['run']['revision']}"
    foot(figure, words)
    return figure


def _panel(panel: Axes, line: Line, target: Target, dots: list[tuple[float, float]], gpu: str) -> None:
    colour, marker = LOOKS[line.room]
    panel.axhline(1, color=palette.INK, lw=1)
    if not dots:
        panel.set_title(f"{line.name}\n", fontsize=SMALL)
        panel.text(0.5, 0.7, f"not recorded\non {gpu}", transform=panel.transAxes, ha="center", fontsize=SMALL)
        return
    for wanted, style in ((target.least, "--"), (target.mean, ":")):
        if wanted is not None:
            panel.axhline(wanted, color=palette.INK, lw=1, ls=style)
    panel.scatter(*zip(*dots, strict=True), s=12, color=colour, marker=marker, alpha=0.7, lw=0)
    values = [value for _, value in dots]
    mean = math.exp(sum(map(math.log, values)) / len(values))
    panel.set_title(f"{line.name}\nmean {mean:.2f}, least {min(values):.2f}", fontsize=SMALL)
    words = f"{len(values)} of {line.count or len(line.named)}"
    panel.text(0.97, 0.97, words, transform=panel.transAxes, ha="right", va="top", fontsize=SMALL)


def _range(panel: Axes, low: float, high: float) -> None:
    """Logarithmic axes with plain numbers. They are shared: one panel sets those of all."""
    low, high = min(low, 0.8) / 1.15, max(high, 1.25) * 2  # above the dots is room for words
    panel.set(xscale="log", yscale="log", ylim=(low, high))
    shown = [tick for tick in TICKS if low <= tick <= high]
    if len(shown) > 7:
        shown = [tick for tick in shown if f"{tick:e}"[0] == "1"]
    panel.set_yticks(shown)
    panel.xaxis.set_major_locator(LogLocator(base=100))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
