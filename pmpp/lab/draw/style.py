"""What all figures share: one style, figures that show themselves in a notebook, and labels that do not collide."""

from __future__ import annotations

import functools
import io
import math
import typing
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pmpp.lab.draw import palette

__all__ = ["SMALL", "STYLE", "Chart", "chart", "foot", "label_points", "styled"]

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=palette.COLOURS),
    "grid.color": palette.GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}
SMALL, FOOTER = 9, 8  # points: labels beside marks, and the line at the bottom; nothing is smaller


class Chart(Figure):
    """A Figure that a notebook shows although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


P = typing.ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in STYLE, whatever the session's own settings are, and leave those as they were."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style


def chart(height: float = 4.4) -> tuple[Chart, Axes]:
    """An empty chart as wide as a notebook's column, ``height`` inches high, and its axes."""
    figure = Chart(figsize=(7.8, height), layout="constrained")
    # Text beside the axes ends where the layout ends: keep a margin.
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, rect=(0, 0, 0.985, 1))
    return figure, figure.add_subplot()


def foot(figure: Figure, text: str) -> None:
    """Say at the bottom where the figures come from. A line that is longer than the figure is wide is broken."""
    figure.supxlabel(text, x=0.01, ha="left", fontsize=FOOTER, color=palette.NOTE, wrap=True)


# ------------------------------------------------------------------------------------------------------ labels that fit


def label_points(
    ax: Axes, points: Sequence[tuple[float, float, str, str]], avoid: Sequence[tuple[float, float]]
) -> None:
    """Label (x, y, text, colour) near their points, so that no two labels meet, nor a label a point or ``avoid``.

    Each label takes the nearest free place, and gets a thin line if that is not beside its point. If ``avoid`` leaves
    no place at all, the label may lie on it, but not on another text or a point.
    """
    ax.figure.draw_without_rendering()  # settles the layout, so that data can be placed in pixels
    pixel = ax.figure.dpi / 72  # pixels in a point
    marks = [_around(ax, x, y, pixel) for x, y, *_ in points]
    others = [_around(ax, x, y, pixel) for x, y in avoid]
    for text in ax.texts:
        (others if text.get_rotation() else marks).append(text.get_window_extent().extents)
    style = {"fontsize": SMALL, "color": palette.TEXT, "va": "center", "in_layout": False}
    for x, y, text, colour in sorted(points, key=lambda point: -point[1]):
        px, py = ax.transData.transform((x, y))
        label = ax.annotate(text, (x, y), (0, 0), textcoords="offset points", **style)
        size = label.get_window_extent()
        places = _places(ax.get_window_extent(), px, py, size.width, size.height + pixel, pixel)
        free = places[_clear(places, marks)]
        clear = free[_clear(free, others)]
        left, bottom, right, top = (clear if len(clear) else free if len(free) else places)[0]
        marks.append((left - 4 * pixel, bottom, right + 4 * pixel, top))  # or two labels read as one
        middle = (bottom + top) / 2
        label.set_position(((left - px) / pixel, (middle - py) / pixel))
        end = min(max(px, left - 2 * pixel), right + 2 * pixel), min(max(py, bottom), top)
        if math.dist(end, (px, py)) > 12 * pixel:
            offset = (end[0] - px) / pixel, ((middle if not left <= end[0] <= right else end[1]) - py) / pixel
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
            ax.annotate("", (x, y), offset, textcoords="offset points", arrowprops=line, in_layout=False)


def _around(ax: Axes, x: float, y: float, pixel: float) -> tuple[float, ...]:
    px, py = ax.transData.transform((x, y))
    return px - 4 * pixel, py - 4 * pixel, px + 4 * pixel, py + 4 * pixel


def _places(area: typing.Any, px: float, py: float, width: float, height: float, pixel: float) -> np.ndarray:
    """Boxes (left, bottom, right, top) inside ``area`` where a label of this size may stand, the best first."""
    right, left = px + 9 * pixel, px - 9 * pixel - width
    lefts = np.r_[right, left, np.arange(area.x0, area.x1 - width, 9 * pixel)]
    bottoms = np.r_[py - height / 2, np.arange(area.y0, area.y1 - height, height / 3)]
    x, y = (grid.ravel() for grid in np.meshgrid(lefts, bottoms))
    boxes = np.stack([x, y, x + width, y + height], axis=1)
    inside = (x >= area.x0) & (boxes[:, 2] <= area.x1) & (y >= area.y0) & (boxes[:, 3] <= area.y1)
    # How far the box is from the point; to the right is best, and a step up or down is better than one to the side.
    aside = np.where(x > px, x - px, np.where(boxes[:, 2] < px, px - boxes[:, 2] + 6 * pixel, 12 * pixel))
    order = np.argsort(np.hypot(aside, 1.2 * (y + height / 2 - py)), kind="stable")
    return boxes[order[inside[order]]]


def _clear(boxes: np.ndarray, taken: Sequence[tuple[float, ...]]) -> np.ndarray:
    """Which boxes meet none of ``taken``."""
    other = np.array(taken).reshape(-1, 1, 4)
    apart = (boxes[:, :2] >= other[..., 2:]).any(axis=-1) | (boxes[:, 2:] <= other[..., :2]).any(axis=-1)
    return apart.all(axis=0)
