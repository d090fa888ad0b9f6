"""A drawing of a graph: what is computed from what, and which kernel computes it."""

from __future__ import annotations

import typing

from pmpp.lab.draw import palette
from pmpp.nn.fuse.group import Part
from pmpp.nn.fuse.tracing import REDUCTIONS, Graph, Value, ancestors


def draw(ax: typing.Any, graph: Graph, parts: typing.Sequence[Part], title: str) -> None:
    """Draw a graph from top to bottom into matplotlib axes.

    An ellipse is an input. A box has the colour and the number of the first kernel that computes it, and a thick edge
    if it is written to memory. Constants are left out.
    """
    values = [value for value in ancestors(graph.results) if value.op != "constant"]
    stored = {value for part in parts for value in part.targets}
    kernel: dict[Value, int] = {}
    before: set[Value] = set()
    for k, part in enumerate(parts):
        for value in ancestors(part.targets, lambda value, before=before - set(part.targets): value in before):
            kernel.setdefault(value, k)
        before |= set(part.targets)
    depth: dict[Value, int] = {}
    for value in values:
        depth[value] = 1 + max((depth[one] for one in value.operands if one in depth), default=-1)
    place: dict[Value, tuple[float, float]] = {}
    for level in range(max(depth.values()) + 1):
        row = [value for value in values if depth[value] == level]
        for k, value in enumerate(row):
            place[value] = k - (len(row) - 1) / 2, -level
    for value in values:
        for one in value.operands:
            if one in place:
                aside = 0.35 if place[one][0] <= place[value][0] else -0.35  # around what stands between
                bend = aside if depth[value] - depth[one] > 1 else 0
                ax.annotate("", place[value], place[one], arrowprops={
                    "arrowstyle": "->", "color": palette.GREY, "shrinkA": 9, "shrinkB": 10,
                    "connectionstyle": f"arc3,rad={bend}",
                })  # fmt: skip
        colour = palette.INK if value.op == "input" else palette.COLOURS[kernel[value] % len(palette.COLOURS)]
        word = value.detail if value.op == "input" else f"{value.op}  {kernel[value] + 1}"
        shape = "ellipse" if value.op == "input" else "round" if value.op in REDUCTIONS else "square"
        box = {"boxstyle": f"{shape},pad=0.3", "edgecolor": colour, "linewidth": 3 if value in stored else 1.2}
        ax.text(*place[value], word, ha="center", va="center", fontsize=9, bbox={**box, "facecolor": "white"})
    width = max(abs(x) for x, _ in place.values()) + 0.9
    ax.set(xlim=(-width, width), ylim=(-max(depth.values()) - 0.6, 0.6), title=title)
    ax.axis("off")
