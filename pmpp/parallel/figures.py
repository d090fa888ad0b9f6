"""Figures of several ranks: who sends how much to whom, and times by the alpha-beta model with simulated clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, chart, styled
from pmpp.parallel.all_reduce import LADDER, seconds
from pmpp.parallel.traffic import Links, Report

__all__ = ["busy_links", "scaling", "times"]


@styled
def busy_links(reports: dict[str, Report]) -> Figure:
    """For each report a square: how many bytes the rank of a row has sent to the rank of a column."""
    figure = Chart(figsize=(7.8, 2.5), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(reports), sharey=True))
    most = max(max(report.nbytes.values()) for report in reports.values())
    for ax, (name, report) in zip(axes, reports.items(), strict=True):
        sent = np.full((report.size, report.size), np.nan)
        for link, nbytes in report.nbytes.items():
            sent[link] = nbytes
        image = ax.imshow(sent / 1024, cmap="viridis_r", vmin=0, vmax=most / 1024)
        ax.set(title=name, xlabel="to rank", xticks=range(report.size), yticks=range(report.size))
        ax.grid(False)
    axes[0].set_ylabel("from rank")
    figure.colorbar(image, ax=axes, label="KiB sent", shrink=0.8)
    return figure


@styled
def times(
    size: int,
    links: Links,
    lengths: Sequence[int],
    measured: dict[str, Sequence[tuple[int, float]]] | None = None,
    algorithms: Sequence[Callable] = LADDER,
) -> Figure:
    """Time over the length of an array: lines of the model, and marks of what clocks showed.

    Args:
        size: how many ranks.
        links: what a message costs.
        lengths: in bytes.
        measured: by a name, pairs of bytes and seconds. A name of an algorithm has its colour.
    """
    figure, ax = chart(4.6)
    border = links.latency * links.bandwidth
    ax.axvspan(min(lengths), border, color=palette.REGIONS["launch-bound"], lw=0)
    ax.axvspan(border, max(lengths), color=palette.REGIONS["memory-bound"], lw=0)
    for algorithm in algorithms:
        k = LADDER.index(algorithm)
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "lw": 1.6}
        ax.loglog(lengths, [1e6 * seconds(algorithm, size, n, links) for n in lengths], **look)
        ax.plot([], [], label=algorithm.__name__, marker=palette.MARKERS[k], **look)
    names = [algorithm.__name__ for algorithm in LADDER]
    for name, pairs in (measured or {}).items():
        k = names.index(name) if name in names else None
        look = {"color": palette.INK, "label": name, "marker": "*", "ls": ":"}
        if k is not None:
            look = {"color": palette.COLOURS[k], "marker": palette.MARKERS[k], "ls": ""}
        ax.plot([n for n, _ in pairs], [1e6 * t for _, t in pairs], ms=5, **look)
    for at, text in ((min(lengths), " messages count"), (border, " bytes count")):
        ax.text(at, 0.97, text, va="top", fontsize=SMALL, color=palette.NOTE, transform=ax.get_xaxis_transform())
    ax.set(xlabel="bytes of the array", ylabel="time, µs", xlim=(min(lengths), max(lengths)))
    ax.set_title(f"{size} ranks, {1e6 * links.latency:g} µs a message, {links.bandwidth / 1e9:g} GB/s")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def scaling(links: Links, nbytes: int, sizes: Sequence[int], algorithms: Sequence[Callable]) -> Figure:
    """Time over the number of ranks for one length; a band below shows the bound that the bytes set."""
    figure, ax = chart(4.0)
    for algorithm in algorithms:
        k = LADDER.index(algorithm)
        found = [1e3 * seconds(algorithm, size, nbytes, links) for size in sizes]
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k], "ms": 4}
        ax.loglog(sizes, found, label=algorithm.__name__, base=2, **look)
    least = [2e3 * (size - 1) / size * nbytes / links.bandwidth for size in sizes]
    ax.fill_between(sizes, least, min(least) / 2, color=palette.LIGHT, lw=0, label="less than the bytes take")
    ax.set_yscale("log", base=10)
    ax.set(xlabel="ranks", ylabel="time, ms", ylim=(min(least) / 2, None), xlim=(min(sizes), max(sizes)))
    ax.set_title(
        f"{nbytes / 1e6:g} MB, {1e6 * links.latency:g} µs a message, {links.bandwidth / 1e9:g} GB/s", loc="left"
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
