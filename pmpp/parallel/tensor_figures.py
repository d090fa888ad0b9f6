"""What tensor parallelism costs, by formulas, and figures of it.

The block is a pair of linear layers without biases, from ``width`` features to 4 times as many and back, in float32.
Nothing is measured, but for what the caller gives to `parts_on_a_cpu`.

Source: M. Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism (2019),
section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, chart, foot, styled
from pmpp.parallel import all_reduce
from pmpp.parallel.overlap import Step
from pmpp.parallel.traffic import Links

__all__ = ["parts_on_a_cpu", "sent", "sent_bytes", "step", "steps"]

WIDER = 4  # times as many hidden features


def sent(rows: int, width: int, ranks: int) -> tuple[float, float]:
    """Bytes that a rank sends for a forward and a backward pass: with tensor parallelism, and with data parallelism.

    All-reduces go around a ring: two of an activation (rows, width), or one of the gradients of 8 width² weights.

    >>> sent(rows=64, width=16, ranks=2)
    (8192.0, 8192.0)
    """
    around = 2 * (ranks - 1) / ranks * 4
    return around * 2 * rows * width, around * 2 * WIDER * width**2


def step(rows: int, width: int, ranks: int, links: Links, rate: float) -> Step:
    """The time of a forward and a backward pass with tensor parallelism, whose all-reduces hide behind nothing.

    Args:
        rows, width, ranks: as for `sent`.
        links: what a message costs.
        rate: FLOP a second of a rank.

    >>> step(1, 1, 1, Links(latency=1.0, bandwidth=1.0), rate=48.0)
    Step(compute=1.0, total=1.0)
    """
    # Two products forward and four backward, each with 2 FLOP for each row and weight.
    compute = 3 * 2 * rows * 2 * WIDER * width**2 / ranks / rate
    return Step(compute, compute + 2 * all_reduce.seconds(all_reduce.ring, ranks, 4 * rows * width, links))


@styled
def sent_bytes(width: int, ranks: int, rows: Sequence[int], counted: dict[str, Sequence[tuple[int, float]]]) -> Figure:
    """Bytes that a rank sends over the rows of a batch. ``counted``: by a name, pairs of rows and bytes of a rank."""
    figure, ax = chart(3.8)
    border = WIDER * width
    first, last = min(rows), max(rows)
    names = ("tensor parallelism", "data parallelism")
    for k, name in enumerate(names):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k]}
        ax.loglog(rows, [sent(n, width, ranks)[k] for n in rows], label=name, **look)
        if name in counted:
            at, nbytes = zip(*counted[name], strict=True)
            look = {"color": palette.COLOURS[k], "marker": palette.MARKERS[k], "ls": "", "ms": 6}
            ax.plot(at, nbytes, label=f"{name}, counted", **look)
    if first < border < last:
        ax.axvline(border, color=palette.GREY, ls=":", lw=1.2)
        ax.text(border, 0.02, f" {border} rows", fontsize=SMALL, color=palette.NOTE, transform=ax.get_xaxis_transform())
    ax.set(xlabel="rows of the batch", ylabel="bytes that a rank sends", xlim=(first, last))
    ax.set_title(f"{width} features, {ranks} ranks")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def steps(rows: int, width: int, rate: float, kinds: dict[str, Links], sizes: Sequence[int]) -> Figure:
    """For each kind of links the time of a step over the number of ranks: computing, and with the all-reduces."""
    figure = Chart(figsize=(7.8, 3.7), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(kinds), sharey=True))
    for ax, (name, links) in zip(axes, kinds.items(), strict=True):
        found = [step(rows, width, size, links, rate) for size in sizes]
        bound = [size for size, one in zip(sizes, found, strict=True) if one.waiting > one.compute]
        if bound:
            shade = {"color": palette.REGIONS["launch-bound"], "lw": 0, "zorder": 0}
            ax.axvspan(bound[0] / np.sqrt(2), max(sizes) * 1.3, label="communication-bound", **shade)
        for k, (label, values) in enumerate(
            (("computes", [one.compute for one in found]), ("in all", [one.total for one in found]))
        ):
            look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k], "ms": 4}
            ax.loglog(sizes, [1e3 * value for value in values], base=2, label=label, **look)
        ax.set_yscale("log", base=10)
        ax.set_title(f"{name}: {1e6 * links.latency:g} µs, {links.bandwidth / 1e9:g} GB/s", fontsize=10)
        ax.set(xlabel="ranks", xlim=(min(sizes) / 1.2, max(sizes) * 1.3))
        ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.legend(loc="lower left", fontsize=SMALL)
    axes[0].set_ylabel("time of a step, ms")
    said = f"{rows} rows, {width} features, {rate / 1e12:g} TFLOP/s"
    foot(figure, f"{said}; predicted by the alpha-beta model from an assumed rate; not measured")
    return figure


@styled
def parts_on_a_cpu(measured: dict[str, Sequence[tuple[int, float]]]) -> Figure:
    """Time of a block over the rows, by a name for all weights or a part: pairs of rows and seconds."""
    figure, ax = chart(3.6)
    for k, (name, pairs) in enumerate(measured.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        ax.loglog([n for n, _ in pairs], [1e3 * t for _, t in pairs], label=name, **look)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set(xlabel="rows of the batch", ylabel="time, ms")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, "NumPy on the CPU of this machine, measured, without any message")
    return figure
