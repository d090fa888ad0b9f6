"""What all figures share: one style, figures that show themselves in a notebook, and labels that do not collide."""

from __future__ import annotations

import functools
import io
import math
import typing
from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    "grid.color": "#E4E4E4",
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
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    return figure, figure.add_subplot()


def foot(figure: Figure, text: str) -> None:
    """Say at the bottom where the figures come from."""
    figure.supxlabel(text, x=0.01, ha="left", fontsize=FOOTER, color="#666666")


# ------------------------------------------------------------------------------------------------------ labels that fit


def _boxes_meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def label_points(
    ax: Axes, points: Sequence[tuple[float, float, str, str]], avoid: Sequence[tuple[float, float]]
) -> None:
    """Label (x, y, text, colour) beside their points, so that no two labels meet, nor a label a point or ``avoid``.

    Each label takes the nearest free place to the right or left of its point, and gets a thin line if it had to move.
    """
    figure = ax.figure
    figure.draw_without_rendering()  # settles the layout, so that data can be placed in pixels
    scale = figure.dpi / 72
    axes_box = ax.get_window_extent()
    taken = []
    for x, y in [*((x, y) for x, y, _, _ in points), *avoid]:
        px, py = ax.transData.transform((x, y))
        taken.append((px - 4 * scale, py - 4 * scale, px + 4 * scale, py + 4 * scale))
    for x, y, text, colour in sorted(points, key=lambda point: -point[1]):
        px, py = ax.transData.transform((x, y))
        label = ax.annotate(
            text, (x, y), (0, 0), textcoords="offset points", fontsize=SMALL, color="#222222", va="center"
        )
        label.set_in_layout(False)
        size = label.get_window_extent()
        width, height = size.width, size.height + scale
        spots = []
        for side in (1, -1):
            for away in (9, 28, 60, 110):
                for step in range(-24, 25):
                    left = px + side * away * scale - (width if side < 0 else 0)
                    middle = py + step * height / 2
                    box = (left, middle - height / 2, left + width, middle + height / 2)
                    cost = abs(step) + away / 12 + (1 if side < 0 else 0) + (0.3 if step > 0 else 0)
                    spots.append((cost, box))
        inside = (axes_box.x0, axes_box.y0, axes_box.x1, axes_box.y1)
        for _, box in sorted(spots):
            if not (inside[0] <= box[0] and inside[1] <= box[1] and box[2] <= inside[2] and box[3] <= inside[3]):
                continue
            if not any(_boxes_meet(box, other) for other in taken):
                break
        else:
            label.remove()  # no room at all: the mark stays, and the legend or the caller's table has its name
            continue
        taken.append(box)
        label.set_position(((box[0] - px) / scale, ((box[1] + box[3]) / 2 - py) / scale))
        moved = math.hypot(min(abs(box[0] - px), abs(box[2] - px)), (box[1] + box[3]) / 2 - py) > 14 * scale
        if moved:
            end = (box[0] - 2 * scale if box[0] > px else box[2] + 2 * scale, (box[1] + box[3]) / 2)
            line = ax.annotate(
                "", (x, y), ((end[0] - px) / scale, (end[1] - py) / scale), textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4},
            )  # fmt: skip
            line.set_in_layout(False)
