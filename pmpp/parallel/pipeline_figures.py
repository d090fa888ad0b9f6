"""Figures of pipelines: who computes when, how long stages wait, what they keep, and what is sent.

What they show is given by the caller, as simulated ranks have counted it. Only `bubbles` draws a formula beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, chart, foot, styled
from pmpp.parallel.pipeline import Pass, bubble

__all__ = ["bubbles", "bytes_kept", "bytes_sent", "timetables"]

KINDS = {"forward": palette.COLOURS[0], "backward": palette.COLOURS[1]}
NUMBERED = 80  # passes in a row at most, of which each has its number


@styled
def timetables(schedules: dict[str, Sequence[Sequence[Pass]]]) -> Figure:
    """For each schedule the passes of all ranks by their clocks: ranks down, time across, a number for the micro-batch.

    A backward pass is hatched, so that it differs from a forward pass without colours, too.
    """
    most = max(len(ranks) for ranks in schedules.values())
    figure = Chart(figsize=(7.8, len(schedules) * (0.36 * most + 0.75) + 0.3), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(schedules), 1, sharex=True))
    for ax, (name, ranks) in zip(axes, schedules.items(), strict=True):
        end = max(one.end for passes in ranks for one in passes)
        for rank, passes in enumerate(ranks):
            for one in passes:
                look = {"color": KINDS[one.kind], "ec": "white", "lw": 0.8}
                look["hatch"] = "///" if one.kind == "backward" else None
                ax.barh(rank, one.end - one.begin, 0.8, one.begin, **look)
                if sum(len(passes) for passes in ranks) <= NUMBERED and one.end - one.begin > end / 60:
                    box = {"boxstyle": "round,pad=0.1", "fc": KINDS[one.kind], "ec": "none"}
                    middle = (one.begin + one.end) / 2
                    ax.text(middle, rank, one.k, ha="center", va="center", color="white", fontsize=SMALL, bbox=box)
        waits = 1 - sum(one.end - one.begin for passes in ranks for one in passes) / (end * len(ranks))
        ax.set_title(f"{name}: ends after {end:g}, and the ranks wait {waits:.0%} of the time", fontsize=10)
        ax.set(ylabel="rank", yticks=range(len(ranks)))
        ax.invert_yaxis()
        ax.grid(False, axis="y")
    for kind, colour in KINDS.items():
        axes[-1].barh(0, 0, color=colour, ec="white", hatch="///" if kind == "backward" else None, label=kind)
    axes[-1].set_xlabel("time by the clocks of simulated ranks")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def bubbles(measured: dict[int, Sequence[tuple[int, float]]], counts: Sequence[int]) -> Figure:
    """The bubble over the number of micro-batches: lines of the formula, and marks of what clocks showed.

    ``measured`` has pairs of a number of micro-batches and a share, by the number of stages.
    """
    figure, ax = chart(3.8)
    for k, (stages, pairs) in enumerate(measured.items()):
        ax.plot(counts, [bubble(stages, m) for m in counts], color=palette.COLOURS[k], ls=palette.LINES[k])
        at, shares = zip(*pairs, strict=True)
        look = {"color": palette.COLOURS[k], "marker": palette.MARKERS[k], "ls": ""}
        ax.plot(at, shares, label=f"{stages} stages", ms=7, **look)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="micro-batches", ylabel="share of the step that ranks wait", ylim=(0, 1))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, "lines: (p - 1) / (m + p - 1); marks: clocks of simulated ranks, messages that take no time")
    return figure


@styled
def bytes_kept(kept: dict[str, dict[int, int]]) -> Figure:
    """Bytes of activations that a rank has kept at once, over the number of micro-batches, by a name."""
    figure, ax = chart(3.6)
    for k, (name, pairs) in enumerate(kept.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        ax.plot(list(pairs), [nbytes / 1024 for nbytes in pairs.values()], label=name, **look)
    ax.set(xlabel="micro-batches", ylabel="KiB of activations", ylim=(0, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def bytes_sent(sent: dict[str, dict[int, float]]) -> Figure:
    """Bytes that a rank sends in a step, over the examples of the batch, by a name."""
    figure, ax = chart(3.8)
    for k, (name, pairs) in enumerate(sent.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        ax.loglog(list(pairs), [nbytes / 1024 for nbytes in pairs.values()], base=2, label=name, **look)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="examples in the batch", ylabel="KiB that a rank sends, on average")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
