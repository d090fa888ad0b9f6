"""Figures of several ranks: who sends how much to whom, times by the alpha-beta model, and what data parallelism costs.

No time in them is measured, but for what the caller gives to `times`, and those of `on_gpus`, which are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from pmpp.lab.draw import palette
from pmpp.lab.draw.style import SMALL, Chart, chart, foot, styled
from pmpp.parallel import measure, overlap
from pmpp.parallel.all_reduce import LADDER, seconds
from pmpp.parallel.traffic import Links, Report

__all__ = [
    "bucket_sizes",
    "busy_links",
    "losses",
    "on_gpus",
    "optimiser_state",
    "scaling",
    "strong_and_weak",
    "timelines",
    "times",
]


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


@styled
def on_gpus(ranks: int = 2) -> Figure:
    """Recorded times of real GPUs over the length: marks; and as lines the alpha-beta model that fits them best.

    Short arrays' times are those in a CUDA graph, as far as they were measured: without what the host does for a call.
    Of more than two ranks it shows our times of shared arrays: other long arrays are carried by NCCL.

    Raises RecordError if there is no record.
    """
    kept = measure.recorded(ranks)
    figure, ax = chart(4.2)
    ours = "peer" if ranks == 2 else "shared"
    for k, (who, name) in enumerate((("nccl", "NCCL"), (ours, "our kernels"))):
        times = [(row["bytes"], row[who]) for row in kept["all_reduce"]]
        pairs = [(nbytes, found.get("graph", found["queued"]) / 1e6) for nbytes, found in times]
        links = measure.fit(pairs)
        lengths = np.geomspace(pairs[0][0], pairs[-1][0], 100)
        model = f"{1e6 * links.latency:.3g} µs and {links.bandwidth / 1e9:.3g} GB/s"
        look = {"color": palette.COLOURS[k]}
        ax.loglog(lengths, [1e6 * links.seconds(n) for n in lengths], ls=palette.LINES[k], lw=1.4, label=model, **look)
        at, took = zip(*pairs, strict=True)
        ax.plot(at, [1e6 * t for t in took], ls="", marker=palette.MARKERS[k], ms=6, label=name, **look)
    ax.set(xlabel="bytes of the array", ylabel="time, µs")
    ax.set_title(f"{kept['ranks']} x {kept['about']['gpu']['name']}")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, f"recorded {kept['about']['run']['date'][:10]}; lines: the alpha-beta model, fitted")
    return figure


# ------------------------------------------------------------------------------------------------ data parallelism

MODEL = "predicted by the alpha-beta model from assumed times of computation; not measured"


@styled
def losses(curves: dict[str, Sequence[float]]) -> Figure:
    """The loss over the steps of several trainings."""
    figure, ax = chart(3.6)
    for k, (name, found) in enumerate(curves.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        # Lines that lie on each other are told apart by marks of other sizes.
        ax.plot(range(len(found)), found, label=name, ms=9 - 2 * k, mfc="none", **look)
    ax.set(xlabel="step", ylabel="loss of the joined batch", ylim=(0, None))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def timelines(layers: Sequence[overlap.Layer], buckets: Sequence[int], size: int, links: Links) -> Figure:
    """For each size of buckets two bars: the backward pass, layer by layer, and the all-reduces of the buckets."""
    figure, ax = chart(0.9 * len(buckets) + 1.2)
    backward = sum(layer.seconds for layer in layers)
    for row, bucket in enumerate(buckets):
        sums = overlap.timeline(layers, bucket, size, links)
        at = 0.0
        for layer in reversed(layers):
            ax.barh(row - 0.2, 1e3 * layer.seconds, 0.36, 1e3 * at, color=palette.COLOURS[0], ec="white", lw=0.3)
            at += layer.seconds
        for one in sums:
            spent = one.end - one.begin
            ax.barh(row + 0.2, 1e3 * spent, 0.36, 1e3 * one.begin, color=palette.COLOURS[1], ec="white", lw=0.3)
        end = max(backward, sums[-1].end)
        ax.text(1e3 * end, row, f"  {1e3 * end:.1f} ms", va="center", fontsize=SMALL, color=palette.TEXT)
    for k, name in enumerate(("backward pass", "all-reduces")):
        ax.barh(0, 0, color=palette.COLOURS[k], label=name)
    ax.axvline(1e3 * backward, color=palette.GREY, ls=":", lw=1)
    named = [f"{bucket / 2**20:g} MiB" for bucket in buckets]
    ax.set(yticks=range(len(buckets)), yticklabels=named, ylabel="a bucket", xlabel="time, ms")
    ax.set_xlim(0, 1.13 * ax.get_xlim()[1])
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    foot(figure, f"{size} ranks, ring; {MODEL}")
    return figure


@styled
def bucket_sizes(
    layers: Sequence[overlap.Layer],
    size: int,
    links: Links,
    buckets: Sequence[int],
    clocks: Sequence[tuple[int, float]] = (),
) -> Figure:
    """When all gradients are summed, over the size of buckets: during the backward pass, and after it.

    ``clocks``: pairs of a size in bytes and the seconds that clocks of simulated ranks show, for sums afterwards.
    """
    figure, ax = chart(3.8)
    for k, (during, name) in enumerate(((False, "after the backward pass"), (True, "during the backward pass"))):
        ends = [overlap.timeline(layers, one, size, links, overlap=during)[-1].end for one in buckets]
        look = {"color": palette.COLOURS[1 - k], "ls": palette.LINES[k]}
        ax.plot([one / 2**20 for one in buckets], [1e3 * end for end in ends], label=f"sums {name}", **look)
    if clocks:
        at, shown = zip(*clocks, strict=True)
        look = {"color": palette.COLOURS[1], "marker": "D", "ls": "", "label": "clocks of simulated ranks"}
        ax.plot([one / 2**20 for one in at], [1e3 * clock for clock in shown], **look)
    backward = 1e3 * sum(layer.seconds for layer in layers)
    ax.axhline(backward, color=palette.GREY, ls=":", lw=1.2, label="the backward pass alone")
    ax.set_xscale("log", base=2)
    ax.set(xlabel="bytes in a bucket, MiB", ylabel="time, ms", ylim=(0, None))
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.set_title(f"{size} ranks, {1e6 * links.latency:g} µs a message, {links.bandwidth / 1e9:g} GB/s")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    foot(figure, MODEL)
    return figure


@styled
def optimiser_state(parameters: int, sizes: Sequence[int], arrays: int = 2) -> Figure:
    """GB of a rank over the number of ranks, with a divided state of ``arrays`` numbers for each parameter."""
    figure, ax = chart(3.6)
    places = np.arange(len(sizes))
    whole = np.full(len(sizes), 4e-9 * parameters)
    state = np.array([4e-9 * arrays * -(-parameters // size) for size in sizes])
    below = np.zeros(len(sizes))
    for k, (name, part) in enumerate((("parameters", whole), ("gradients", whole), ("optimiser state", state))):
        ax.bar(places, part, 0.7, below, color=palette.COLOURS[k], label=name, ec="white", lw=0.6)
        below = below + part
    for place, top in zip(places, below, strict=True):
        ax.text(place, top, f"{top:.3g}", ha="center", va="bottom", fontsize=SMALL, color=palette.TEXT)
    ax.axhline(2 * whole[0], color=palette.GREY, ls=":", lw=1.2)
    ax.set(xlabel="ranks", ylabel="GB on each rank", xticks=places, xticklabels=sizes)
    ax.set_title(f"{parameters:,} parameters in float32")
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def stages(parameters: int, sizes: Sequence[int], largest: float = 0.01) -> Figure:
    """GB of a rank over the number of ranks, with Adam in float32, for whole copies and for each stage of ZeRO.

    ``largest``: the part of all parameters that the largest layer has; the third stage has it whole at a time.
    """
    figure, ax = chart(3.9)
    ranks = np.array(sizes)
    one = 4e-9 * parameters  # GB of a number for each parameter
    lines = {
        "all whole": np.full(ranks.shape, 4.0 * one),
        "stage 1: state divided": 2 * one + 2 * one / ranks,
        "stage 2: and gradients": one + 3 * one / ranks,
        "stage 3: and parameters": 4 * one / ranks + 2 * one * largest,
    }
    for k, (name, amount) in enumerate(lines.items()):
        look = {"color": palette.COLOURS[k], "ls": palette.LINES[k], "marker": palette.MARKERS[k]}
        ax.loglog(ranks, amount, base=2, label=name, **look)
    ax.set(xlabel="ranks", ylabel="GB on each rank", xticks=ranks, xticklabels=sizes)
    ax.set_yscale("log", base=10)
    ax.set_title(f"{parameters:,} parameters in float32, Adam")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def strong_and_weak(
    layers: Sequence[overlap.Layer], together: int, each: int, links: Links, sizes: Sequence[int], bucket: int
) -> Figure:
    """How many times as many examples a second as one rank, over ranks: one batch divided, and a batch for each.

    Args:
        layers: with the seconds of the backward pass of one example.
        together: examples in the batch that is divided; ``sizes`` divide it.
        each: examples of a rank where every rank has a batch of its own.
        links, bucket: as for `overlap.step`.
        sizes: numbers of ranks.
    """
    figure = Chart(figsize=(7.8, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, strong in zip(axes, (True, False), strict=True):
        steps = [overlap.step(layers, together // p if strong else each, p, links, bucket=bucket) for p in sizes]
        alone = overlap.step(layers, together if strong else each, 1, links).total
        speed = [alone / step.total * (1 if strong else p) for step, p in zip(steps, sizes, strict=True)]
        bound = [p for p, step in zip(sizes, steps, strict=True) if step.waiting > step.compute]
        if bound:
            shade = {"color": palette.REGIONS["launch-bound"], "lw": 0, "zorder": 0}
            ax.axvspan(bound[0] / np.sqrt(2), max(sizes) * 1.6, label="waits longer than it computes", **shade)
        ax.loglog(sizes, sizes, color=palette.GREY, ls=":", lw=1.2, label="as many as ranks", base=2)
        look = {"color": palette.COLOURS[0 if strong else 2], "marker": palette.MARKERS[0 if strong else 2]}
        ax.loglog(sizes, speed, base=2, label="model", **look)
        best = int(np.argmax(speed))
        ax.text(sizes[best], 0.85 * speed[best], f"{speed[best]:.3g}", va="top", fontsize=SMALL, color=palette.TEXT)
        share = f"{together} examples in all" if strong else f"{each} examples on each rank"
        ax.set_title(f"{'strong' if strong else 'weak'} scaling: {share}", fontsize=10)
        ax.set(xlabel="ranks", xlim=(min(sizes) / 1.2, max(sizes) * 1.6))
        ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.legend(loc="upper left", fontsize=SMALL)
    axes[0].set_ylabel("examples a second, beside one rank")
    foot(figure, f"{1e6 * links.latency:g} µs a message, {links.bandwidth / 1e9:g} GB/s; {MODEL}")
    return figure
