"""Figures of halo exchange: who does what when, bytes over ranks, widths of halo, plates, and what is measured.

Times are those of simulated clocks or of the alpha-beta model, but for `measured`, which shows a record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import Chart, chart, foot, styled
from pmpp.parallel import halo, measure_halo
from pmpp.parallel.traffic import Links

__all__ = [
    "bounds",
    "distances",
    "efficiencies",
    "measured",
    "measured_timelines",
    "plates",
    "surfaces",
    "timelines",
    "widths",
]

KINDS = {"border": palette.COLOURS[2], "inside": palette.COLOURS[0], "exchange": palette.COLOURS[1]}
HATCHES = {"border": "...", "inside": None, "exchange": "///"}
SAID = {"border": "border cells", "inside": "other cells", "exchange": "exchange"}


@styled
def timelines(runs: dict[str, Sequence[Sequence[halo.Span]]]) -> Figure:
    """For each run the spans of all ranks by their clocks. A rank's upper bar computes, and its lower one exchanges."""
    most = max(len(ranks) for ranks in runs.values())
    figure = Chart(figsize=(7.8, len(runs) * (0.5 * most + 0.75) + 0.3), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(runs), 1, sharex=True))
    for ax, (name, ranks) in zip(axes, runs.items(), strict=True):
        for rank, spans in enumerate(ranks):
            for one in spans:
                place = rank + (0.21 if one.kind == "exchange" else -0.21)
                look = {"color": KINDS[one.kind], "hatch": HATCHES[one.kind], "ec": "white", "lw": 0.6}
                ax.barh(place, one.end - one.begin, 0.4, one.begin, **look)
        end = max(one.end for spans in ranks for one in spans)
        ax.set_title(f"{name}: ends after {1e6 * end:.4g} µs", fontsize=10)
        ax.set(ylabel="rank", yticks=range(len(ranks)))
        ax.xaxis.set_major_formatter(lambda value, place: f"{1e6 * value:g}")
        ax.invert_yaxis()
        ax.grid(False, axis="y")
    for kind, colour in KINDS.items():
        axes[-1].barh(0, 0, color=colour, ec="white", hatch=HATCHES[kind], label=SAID[kind])
    axes[-1].set_xlabel("µs by the clocks of simulated ranks")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def measured_timelines() -> Figure:
    """The same of GPUs, from the events of the record: two steps of each way.

    Raises `pmpp.lab.measure.record.RecordError` if there is none.
    """
    found = measure_halo.recorded()["jacobi"]["timelines"]
    runs = {name: [[halo.Span(*one) for one in spans] for spans in gpus] for name, gpus in found.items()}
    figure = timelines({name.replace("_", " "): gpus for name, gpus in runs.items()})
    for ax, (name, gpus) in zip(figure.axes, runs.items(), strict=True):
        # Each GPU has a clock of its own. From the beginning on one to the end on another is no time that was taken.
        took = [1e6 * (max(one.end for one in spans) - min(one.begin for one in spans)) for spans in gpus]
        words = f"{' and '.join(f'{each:.0f}' for each in took)} µs from a GPU's first event to its last"
        ax.set_title(f"{name.replace('_', ' ')}: {words}", loc="left", fontsize=10)
        ax.set_ylabel("GPU")
    figure.axes[-1].set_xlabel("µs by CUDA events")
    return figure


@styled
def surfaces(
    rows: int, columns: int, meshes: dict[str, Sequence[tuple[int, int]]], counted: dict[str, dict[int, int]]
) -> Figure:
    """Bytes that a rank in the middle sends in an exchange, over the number of ranks: the formula, and counted marks.

    ``counted`` has bytes by the number of ranks, for each name of ``meshes``.
    """
    figure, ax = chart(3.6)
    for k, (name, shapes) in enumerate(meshes.items()):
        sizes = [down * across for down, across in shapes]
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k]}
        ax.plot(sizes, [halo.halo_bytes(rows, columns, shape) for shape in shapes], **look)
        at, nbytes = list(counted[name]), list(counted[name].values())
        ax.plot(at, nbytes, color=palette.COLOURS[k], marker=palette.MARKERS[k], ls="", ms=7, label=name)
    ax.set_xscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="ranks", ylabel="bytes that a rank sends", ylim=(0, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, f"{rows} x {columns} cells; lines: the formula; marks: counted by simulated links")
    return figure


@styled
def widths(
    rows: int,
    columns: int,
    mesh: tuple[int, int],
    cell: float,
    links: Sequence[Links],
    most: int,
    clocks: dict[float, dict[int, float]] | None = None,
) -> Figure:
    """The time of a step over the width of the halo: lines of the model, and marks of what clocks showed.

    ``clocks`` has seconds by the width, by the latency of the link.
    """
    figure, ax = chart(3.8)
    for k, one in enumerate(links):
        at = range(1, most + 1)
        values = [1e6 * halo.seconds(rows, columns, mesh, one, cell, width) for width in at]
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k]}
        ax.plot(at, values, label=f"{1e6 * one.latency:g} µs a message", **look)
        best = int(np.argmin(values))
        ax.plot(at[best], values[best], color=palette.COLOURS[k], marker="*", ms=13, ls="")
        found = (clocks or {}).get(one.latency, {})
        ax.plot(list(found), [1e6 * t for t in found.values()], color=palette.COLOURS[k], marker="o", ms=5, ls="")
    ax.set(xlabel="width of the halo, in cells", ylabel="µs a step", ylim=(0, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, f"{mesh[0]} x {mesh[1]} ranks; lines: the model, with a star where it is least; marks: clocks")
    return figure


@styled
def plates(pictures: dict[str, np.ndarray]) -> Figure:
    """Plates beside each other, with one scale of colours."""
    figure = Chart(figsize=(7.8, 2.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(pictures)))
    every = np.concatenate([picture.ravel() for picture in pictures.values()])
    for ax, (name, picture) in zip(axes, pictures.items(), strict=True):
        image = ax.imshow(picture, cmap="inferno", vmin=every.min(), vmax=every.max())
        ax.set_title(name, fontsize=10)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    figure.colorbar(image, ax=axes, label="temperature", shrink=0.8)
    return figure


@styled
def distances(curves: dict[str, dict[int, float]]) -> Figure:
    """How far the farthest cell is from the solution, over the steps, for each name."""
    figure, ax = chart(3.6)
    for k, (name, points) in enumerate(curves.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k], "ms": 5}
        ax.plot(list(points), list(points.values()), label=name, **look)
    ax.set_yscale("log")
    ax.set(xlabel="steps", ylabel="largest distance from the solution")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def bounds(sides: Sequence[int], cell: float, links: Links, mesh: tuple[int, int] = (2, 1)) -> Figure:
    """The time of a step over the side of a plate: one GPU, and several with and without overlap, by the model."""
    figure, ax = chart(3.8)
    parts = {
        "one GPU": [cell * n * n for n in sides],
        "cells alone": [cell * n * n / (mesh[0] * mesh[1]) for n in sides],
        "messages alone": [halo.seconds(n, n, mesh, links, 0.0) for n in sides],
        "one after the other": [halo.seconds(n, n, mesh, links, cell) for n in sides],
        "overlapped": [halo.seconds(n, n, mesh, links, cell, overlap=True) for n in sides],
    }
    for k, (name, values) in enumerate(parts.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k]}
        ax.loglog(sides, [1e6 * one for one in values], label=name, **look)
    both = zip(sides, parts["cells alone"], parts["messages alone"], strict=True)
    equal = next((n for n, computed, sent in both if computed > sent), None)
    if equal is not None:
        ax.axvline(equal, color=palette.GREY, lw=1)
        ax.annotate("messages are the bound", (equal, 1), (-6, 4), xycoords=("data", "axes fraction"),
                    textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
        ax.annotate("memory is the bound", (equal, 1), (6, 4), xycoords=("data", "axes fraction"),
                    textcoords="offset points", ha="left", fontsize=8)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="side of the plate, in cells", ylabel="µs a step")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def efficiencies(gpus: int = 2) -> Figure:
    """Of the record of so many GPUs: the efficiency of each way over the side of the plate.

    Raises `pmpp.lab.measure.record.RecordError` if there is none.
    """
    kept = measure_halo.recorded(gpus)
    every = sorted([*kept["smaller"], kept["jacobi"]], key=lambda found: found["side"])
    figure, ax = chart(3.4)
    sides = [found["side"] for found in every]
    for k, name in enumerate(name for name in every[0]["ways"] if name != "one_gpu"):
        look = {"color": palette.COLOURS[k + 1], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        ax.plot(sides, [measure_halo.efficiency(found, name) for found in every], label=name.replace("_", " "), **look)
    ax.axhline(1 / every[0]["gpus"], color=palette.GREY, lw=1, ls="--")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="side of the plate, in cells", ylabel="efficiency", ylim=(0, 1.05))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, f"{every[0]['gpus']} x {kept['about']['gpu']['name']}; dashed: as fast as one GPU")
    return figure


@styled
def measured() -> Figure:
    """The record of GPUs: the time of a step on one GPU, and of each way on several, beside an equal share of it.

    Raises `pmpp.lab.measure.record.RecordError` if there is none.
    """
    kept = measure_halo.recorded()
    found = kept["jacobi"]
    figure, ax = chart(3.0)
    names = list(found["ways"])
    for place, name in enumerate(names):
        one = found["ways"][name]
        low, high = (abs(one[end] - one["seconds"]) * 1e6 for end in ("low", "high"))
        ax.barh(place, 1e6 * one["seconds"], 0.6, color=palette.COLOURS[place], xerr=[[low], [high]])
        text = f"{1e6 * one['seconds']:.0f} µs"
        if name != "one_gpu":
            text += f", efficiency {measure_halo.efficiency(found, name):.3f}"
        box = {"boxstyle": "round,pad=0.1", "fc": palette.COLOURS[place], "ec": "none"}
        ax.annotate(
            text, (0, place), (6, 0), textcoords="offset points", va="center", fontsize=9, color="white", bbox=box
        )
    share = 1e6 * found["ways"]["one_gpu"]["seconds"] / found["gpus"]
    ax.axvline(share, color=palette.GREY, ls="--", lw=1)
    ax.set(yticks=range(len(names)), xlabel="µs a step", xlim=(0, 1.2e6 * found["ways"]["one_gpu"]["seconds"]))
    ax.set_yticklabels([name.replace("_", " ") for name in names])
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    where = f"{found['gpus']} x {kept['about']['gpu']['name']}, {found['side']} x {found['side']} cells"
    foot(figure, f"{where}; bars: median and its 95% interval; dashed: one GPU's time, divided by {found['gpus']}")
    return figure
