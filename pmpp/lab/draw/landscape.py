"""The landscape of a search: what is predicted, and what was measured, over two parameters or all at once."""

from __future__ import annotations

import collections
import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, chart, foot, label_points, styled
from pmpp.lab.measure.tune import Row, Space

__all__ = ["against", "gains", "ground"]

GROUND = LinearSegmentedColormap.from_list("ground", ["white", palette.COLOURS[0]])
MOST = 4  # times the best: all that is slower has the same colour


@styled
def ground(
    space: Space,
    seconds: dict[typing.Any, float],
    *,
    across: str,
    down: str,
    title: str,
    footer: str = "",
) -> Figure:
    """Over two parameters the least time of all others, as a multiple of the best. Dark is fast.

    Args:
        space: of the configurations. A place where all are refused is empty, with the name of the restriction that
            refuses most.
        seconds: by configuration; those that are missing, though they are allowed, are left out.
        across, down: the names of two parameters.
        title, footer: above and below.

    Raises ValueError if a name is no parameter, or if there is no time.
    """
    for name in (across, down):
        if name not in space.values:
            raise ValueError(f"across and down must be of {', '.join(space.values)}, was {name!r}")
    if not seconds:
        raise ValueError("seconds must have a time at least, had none")
    xs, ys = space.values[across], space.values[down]
    least: dict[tuple, float] = {}
    for one, time in seconds.items():
        place = getattr(one, across), getattr(one, down)
        least[place] = min(time, least.get(place, time))
    refusals: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for one in space.refused():
        refusals[getattr(one.configuration, across), getattr(one.configuration, down)][one.by] += 1
    best = min(least.values())
    figure, ax = chart(0.55 * len(ys) + 1.3)
    shade = np.full((len(ys), len(xs)), np.nan)
    for (x, y), time in least.items():
        shade[ys.index(y), xs.index(x)] = min(1.0, np.log(time / best) / np.log(MOST))
    ax.imshow(1 - shade, cmap=GROUND, vmin=-0.1, vmax=1.4, origin="lower", aspect="auto")
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            if (x, y) in least:
                factor = least[x, y] / best
                ax.text(j, i, f"{factor:.2f} x", ha="center", va="center", color=palette.TEXT)
                if factor < 1.005:
                    ax.add_patch(Rectangle((j - 0.46, i - 0.42), 0.92, 0.84, fill=False, ec=palette.OWN, lw=2))
            elif refusals[x, y]:
                name = refusals[x, y].most_common(1)[0][0].replace("_", " ")
                ax.text(j, i, name, ha="center", va="center", color=palette.NOTE, fontsize=SMALL)
    ax.set_xticks(range(len(xs)), [f"{x}" for x in xs])
    ax.set_yticks(range(len(ys)), [f"{y}" for y in ys])
    ax.set(xlabel=across, ylabel=down)
    ax.grid(visible=False)
    ax.set_title(title, loc="left")
    if footer:
        foot(figure, footer)
    return figure


@styled
def against(rows: Sequence[Row], *, title: str, footer: str = "", name: Callable[[typing.Any], str] = str) -> Figure:
    """Predicted against measured time of each row that was timed. On the line both are the same.

    ``name`` labels the fastest and the one that was predicted to be. Raises ValueError if no row was timed.
    """
    timed = [row for row in rows if row.timing and row.estimate]
    if not timed:
        raise ValueError("rows must have one at least that was timed, had none")
    figure, ax = chart(4.0)
    by_part = collections.defaultdict(list)
    for row in timed:
        by_part[row.estimate.part].append((row.estimate.seconds * 1e6, row.timing.median * 1e6))
    for (part, points), colour, marker in zip(by_part.items(), palette.COLOURS, palette.MARKERS, strict=False):
        ax.plot(*zip(*points, strict=True), marker, color=colour, label=f"predicted: {part}", alpha=0.8)
    low = min(min(pair) for points in by_part.values() for pair in points)
    high = max(max(pair) for points in by_part.values() for pair in points)
    ax.plot([low, high], [low, high], color=palette.INK, lw=1)
    ax.set(xscale="log", yscale="log", xlabel="predicted (us)", ylabel="measured (us)")
    ax.set_title(title, loc="left")
    figure.legend(loc="outside right upper")
    if footer:
        foot(figure, footer)
    best = min(timed, key=lambda row: row.timing.median)
    first = min(timed, key=lambda row: row.estimate.seconds)
    labels = {row.configuration: (row, said) for row, said in ((first, "predicted"), (best, "fastest"))}
    marks = [
        (row.estimate.seconds * 1e6, row.timing.median * 1e6, f"{said}: {name(row.configuration)}", palette.INK)
        for row, said in labels.values()
    ]
    label_points(ax, marks, [pair for points in by_part.values() for pair in points])
    return figure


@styled
def gains(points: Mapping[str, Sequence[tuple[float, float]]], *, title: str, footer: str = "") -> Figure:
    """How many times as fast a choice is as the guess, over the work: a point a shape, ``(multiply-adds, ratio)``.

    ``points`` has them by what they have in common, which the legend says. Raises ValueError if there is none.
    """
    if not any(points.values()):
        raise ValueError("points must have one at least, had none")
    figure, ax = chart(3.4)
    for (said, some), colour, marker in zip(points.items(), palette.COLOURS, palette.MARKERS, strict=False):
        ax.plot([work for work, _ in some], [ratio for _, ratio in some], marker, color=colour, label=said, alpha=0.8)
    ax.axhline(1, color=palette.INK, lw=1)
    ax.set(xscale="log", xlabel="multiply-adds", ylabel="time of the guess / time of the choice")
    ax.set_title(title, loc="left")
    figure.legend(loc="outside right upper")
    if footer:
        foot(figure, footer)
    return figure
