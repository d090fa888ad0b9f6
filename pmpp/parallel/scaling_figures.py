"""Figures of many GPUs: collectives on two kinds of links, memory, where a step's time goes, and checkpoints.

Everything in them follows from `pmpp.parallel.scaling`, a model; only `machines` is given times besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, chart, foot, styled
from pmpp.parallel import scaling
from pmpp.parallel.scaling import Memory, Step
from pmpp.parallel.traffic import Nodes

__all__ = ["checkpoints", "collectives", "machines", "memories", "steps"]

COLLECTIVES = {
    "one ring": scaling.ring_seconds,
    "two trees": scaling.double_tree_seconds,
    "two levels": scaling.two_levels_seconds,
}
MODEL = "a model: nothing here is measured"


@styled
def collectives(lengths: Sequence[int], sizes: Sequence[int], links: Nodes) -> Figure:
    """The time of an all-reduce over the number of GPUs; for each length in bytes a picture."""
    figure = Chart(figsize=(7.8, 3.7), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(lengths), sharex=True))
    for ax, nbytes in zip(axes, lengths, strict=True):
        for k, (name, seconds) in enumerate(COLLECTIVES.items()):
            look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k], "ms": 4}
            ax.loglog(sizes, [1e3 * seconds(nbytes, size, links) for size in sizes], label=name, **look)
        ax.axvline(links.size, color=palette.GREY, ls=":", lw=1.2)
        ax.set_title(f"{nbytes / 2**20:,g} MiB", fontsize=10)
        ax.set_xscale("log", base=2)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.set(xlabel="GPUs", ylabel="ms")
    axes[0].legend(loc="upper left", fontsize=SMALL)
    inside, between = (
        f"{one.bandwidth / 1e9:g} GB/s and {1e6 * one.latency:g} µs" for one in (links.inside, links.between)
    )
    foot(figure, f"dotted: one machine; {inside} inside, {between} between machines; {MODEL}")
    return figure


@styled
def memories(kept: dict[str, Memory], limit: float) -> Figure:
    """What a GPU keeps, as bars by a name. ``limit``: bytes of its memory."""
    figure, ax = chart(0.55 * len(kept) + 1.7)
    for k, part in enumerate(Memory._fields):
        left = [sum(one[:k]) / 1e9 for one in kept.values()]
        look = {"color": palette.COLOURS[k], "hatch": ("", "///", "...", "xx")[k], "ec": "white"}
        ax.barh(list(kept), [getattr(one, part) / 1e9 for one in kept.values()], 0.7, left, label=part, **look)
    for row, one in enumerate(kept.values()):
        at = max(one.total, limit) / 1e9  # beside the dashed line, where the bar ends before it
        ax.text(at, row, f" {one.total / 1e9:,.0f}", va="center", fontsize=SMALL, color=palette.TEXT)
    ax.axvline(limit / 1e9, color=palette.INK, ls="--", lw=1.2, label=f"memory of a GPU, {limit / 1e9:.0f} GB")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set(xlabel="GB on a GPU", xlim=(0, 1.2 * max(limit, *(one.total for one in kept.values())) / 1e9))
    figure.legend(loc="outside upper center", ncols=5, fontsize=SMALL)
    foot(figure, MODEL)
    return figure


@styled
def steps(found: dict[int, Step]) -> Figure:
    """Which share of a step a GPU computes, and what it waits for, over the number of GPUs; and the time of a step."""
    figure = Chart(figsize=(7.8, 3.9), layout="constrained")
    shares, times = figure.subplots(1, 2, width_ratios=(1.5, 1))
    names = [f"{gpus:,}" for gpus in found]
    bottom = np.zeros(len(found))
    for k, part in enumerate(Step._fields):
        height = np.array([getattr(one, part) / one.total for one in found.values()])
        look = {"color": palette.COLOURS[k], "hatch": ("", "///", "...", "xx", "\\\\\\")[k], "ec": "white"}
        label = "computes" if part == "compute" else f"waits: {part}"
        shares.bar(names, 100 * height, 0.8, 100 * bottom, label=label, **look)
        bottom += height
    shares.set(xlabel="GPUs", ylabel="% of a step", ylim=(0, 100))
    shares.tick_params(axis="x", labelrotation=45)
    figure.legend(loc="outside lower center", ncols=3)
    sizes = list(found)
    first = sizes[0] * found[sizes[0]].total
    times.loglog(
        sizes, [first / size for size in sizes], color=palette.GREY, ls=":", label="time divided by GPUs", base=2
    )
    look = {"color": palette.COLOURS[0], "marker": palette.MARKERS[0]}
    times.loglog(sizes, [one.total for one in found.values()], base=2, label="model", **look)
    for axis in (times.xaxis, times.yaxis):
        axis.set_major_formatter(lambda value, place: f"{value:,g}")
    times.set(xlabel="GPUs", ylabel="seconds of a step")
    times.tick_params(axis="x", labelrotation=45)
    times.legend(loc="upper right", fontsize=SMALL)
    return figure


@styled
def machines(seconds: dict[str, float], tokens: float) -> Figure:
    """How long one token for each of ``tokens`` takes on different machines, as bars on a logarithmic axis."""
    figure, ax = chart(0.5 * len(seconds) + 1.2)
    days = [tokens * each / 86400 for each in seconds.values()]
    ax.barh(list(seconds), days, 0.65, color=[palette.INK, *[palette.COLOURS[0]] * (len(days) - 1)], log=True)
    for row, day in enumerate(days):
        text = f"{day / 365.25:,.0f} years" if day > 1000 else f"{day:,.0f} days"
        ax.text(day, row, f"  {text}", va="center", fontsize=SMALL, color=palette.TEXT)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set(xlabel="days", xlim=(1, 40 * max(days)))
    return figure


@styled
def checkpoints(counts: Sequence[int], each: float, writes: float, restart: float) -> Figure:
    """The share of the time that is left for training, over the time between checkpoints, for some numbers of GPUs.

    ``each``: seconds between two failures of one GPU. A mark has Young's interval.
    """
    figure, ax = chart(3.9)
    intervals = np.geomspace(30, 86400, 200)
    for k, gpus in enumerate(counts):
        between = each / gpus
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k]}
        left = [100 * scaling.kept(t, writes, between, restart) for t in intervals]
        ax.semilogx(intervals / 60, left, label=f"{gpus:,} GPUs", **look)
        best = scaling.checkpoint_interval(writes, between)
        left = 100 * scaling.kept(best, writes, between, restart)
        ax.plot(best / 60, left, color=palette.COLOURS[k], marker=palette.MARKERS[k], ms=7, ls="")
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="minutes between checkpoints", ylabel="% of the time left for training", ylim=(0, 100))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, f"marks: Young's interval; a checkpoint takes {writes:g} s, a restart {restart:g} s; {MODEL}")
    return figure
