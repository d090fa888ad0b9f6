"""The picture of drawn shapes: a dot a shape, ratio against work, a panel and a colour a room.

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
from pmpp.lab.measure.shapes.drawing import rooms
from pmpp.lab.measure.shapes.report import ratio

__all__ = ["ratios"]

LOOKS = dict(zip(rooms(), zip((*palette.COLOURS, palette.GREY), palette.MARKERS, strict=False), strict=True))
LEAST = 1.0  # microseconds: what takes less is drawn here, so that the named tiny ones do not squeeze all others
TICKS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))


@styled
def ratios(record: Mapping[str, typing.Any], *, room: str | None = None) -> Figure:
    """The better library's time over ours, above 1.0 where ours is faster, against the least time by the roofline.

    Args:
        record: as it is in ``pmpp/recorded/<gpu>/shapes.json``.
        room: draw the shapes of one room alone; None for a panel for each room that has any.

    The least time is the longer of a shape's bytes and its FLOP over the ceilings of its GPU: work in one unit,
    whatever bounds it. A panel's title has the geometric mean of its dots, and how many of them are at or above 1.0.
    Shapes without a time, of either side, are counted at the bottom, and those that are kept aside are left out. Raises
    ValueError if no shape has a ratio.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for name in LOOKS:
        if name in record["measured"] and room in (None, name):
            rows = [row for row in record["measured"][name]["rows"] if not row["aside"]]
            found = [(max(row["bound_us"], LEAST), value) for row in rows if (value := ratio(row)) is not None]
            missing += len(rows) - len(found)
            points |= {name: found} if found else {}
    if not points:
        raise ValueError("the record must have a ratio of at least one shape")
    columns = min(3, len(points))
    lines = math.ceil(len(points) / columns)
    figure = Chart(figsize=(7.8, 1.2 + (4 if lines == 1 else 2.2 * lines)), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, (name, dots) in zip(panels, points.items(), strict=False):
        _panel(panel, name, dots)
    every = [value for dots in points.values() for _, value in dots]
    _range(panels[0], min(every), max(every))
    for panel in panels[len(points) :]:
        panel.remove()
    for panel in panels[max(0, len(points) - columns) : len(points)]:  # the last of each column
        panel.tick_params(labelbottom=True)
    figure.supylabel("speed, in multiples of the better library", fontsize=10)
    about = record["about"]
    words = "Horizontally: the least time by the roofline, in microseconds. Above the line ours is faster. "
    words += f"Refused or without a time: {missing}. Means are geometric.\n"
    words += f"Recorded on {about['gpu']['name']}, {about['run']['date'][:10]}, revision {about['run']['revision']}"
    foot(figure, words)
    return figure


def _panel(panel: Axes, name: str, dots: list[tuple[float, float]]) -> None:
    colour, marker = LOOKS[name]
    panel.axhline(1, color=palette.INK, lw=1)
    panel.scatter(*zip(*dots, strict=True), s=14, color=colour, marker=marker, alpha=0.7, lw=0)
    values = [value for _, value in dots]
    mean = math.exp(sum(map(math.log, values)) / len(values))
    wins = sum(value >= 1 for value in values)
    panel.set_title(f"{name.replace('_', ' ')}\nmean {mean:.2f}, {wins} of {len(values)} won", fontsize=SMALL)


def _range(panel: Axes, low: float, high: float) -> None:
    """Logarithmic axes with plain numbers. They are shared: one panel sets those of all."""
    low, high = min(low, 0.8) / 1.15, max(high, 1.25) * 1.15
    panel.set(xscale="log", yscale="log", ylim=(low, high))
    shown = [tick for tick in TICKS if low <= tick <= high]
    if len(shown) > 7:
        shown = [tick for tick in shown if f"{tick:e}"[0] == "1"]
    panel.set_yticks(shown)
    panel.xaxis.set_major_locator(LogLocator(numticks=8))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
