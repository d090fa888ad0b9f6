"""The figures of notebooks/90_feeding_the_gpu.ipynb. Each takes the record of `pmpp.nn.measure.feeding`.

`record` returns it, or an empty one where there is none. A figure that is all measurements says then what is missing.
"""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from pmpp.kernels.feeding.streams import Program
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import Chart, chart, foot, styled
from pmpp.lab.measure.record import RecordError
from pmpp.nn.measure import feeding, recorded

__all__ = ["bandwidths", "crossing", "fed", "pieces", "record", "rows", "schedules", "source", "steps", "timelines"]

Record = Mapping[str, typing.Any]
MISSING = "There is no record yet: on a GPU run python -m pmpp.nn.measure.feeding"
LOOK = {"fill": palette.EDGE, "launch": palette.GREY, "wait": palette.WAITING, "copy": palette.COLOURS[1]}
LOOK |= {"kernel": palette.COLOURS[0], "copy back": palette.COLOURS[3]}


def record() -> Record:
    """The record, or an empty one."""
    try:
        return recorded("feeding")
    except RecordError:
        return {}


def source(kept: Record) -> str:
    """Where and when it was measured."""
    if not kept:
        return MISSING
    return f"Recorded on {kept['about']['gpu']['name']}, {kept['about']['run']['date'][:10]}"


def rows(kept: Record, question: str, **fields: typing.Any) -> list[dict[str, typing.Any]]:
    """The rows that answer a question and have these fields."""
    return [row for row in kept.get(question, ()) if fields.items() <= row.items()]


def _measured(question: str) -> Callable:
    """Print what is missing where the record has no row that answers the question."""

    def decorate(draw: Callable[..., Figure]) -> Callable[..., Figure | None]:
        @functools.wraps(draw)
        def drawn(kept: Record, **options: typing.Any) -> Figure | None:
            if not rows(kept, question, **options):
                print(f"The record has no rows for {question}. On a GPU run python -m pmpp.nn.measure.feeding")
                return None
            return styled(draw)(kept, **options)

        return drawn

    return decorate


# ------------------------------------------------------------------------------------------------------------ schedules


def schedules(*programs: tuple[str, Program]) -> Figure:
    """The schedules that a model computes, one below the other."""
    known = ("host", "copies", "compute", "in", "out")
    parts = []
    for title, program in programs:
        spans = program.spans()
        parts.append(
            (f"{title}: {program.us:,.0f} us", [name for name in known if any(s[0] == name for s in spans)], spans)
        )
    return _pictures(parts, "time (us); a model, not a measurement")


@_measured("timelines")
def timelines(kept: Record, captured: bool) -> Figure:
    """Recorded timelines, one below the other: of steps that were captured, or of steps as they are called."""
    parts = []
    for row in rows(kept, "timelines", captured=captured):
        spans = [(one["row"], _kind(one), one["from"], one["to"]) for one in row["spans"]]
        names = [name for name in ("host", "thread", "copies", "kernels") if any(name == span[0] for span in spans)]
        parts.append((f"{row['way']}, batch {row['batch']:,}", names, spans))
    figure = _pictures(parts, "time (us)")
    foot(figure, source(kept))
    return figure


def _kind(span: Mapping[str, typing.Any]) -> str:
    kinds = {"load": "fill", "make a batch": "fill", "copy": "copy"}
    return kinds.get(span["what"], "launch" if span["row"] == "host" else "kernel")


def _pictures(parts: Sequence[tuple[str, list[str], list[tuple]]], label: str) -> Figure:
    height = sum(0.8 + 0.32 * len(names) for _, names, _ in parts) + 0.7
    figure = Chart(figsize=(7.8, height), layout="constrained")
    axes = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=[2.5 + len(p[1]) for p in parts])
    used: dict[str, None] = {}
    for ax, (title, names, spans) in zip(axes[:, 0], parts, strict=True):
        for row, what, begin, end in spans:
            box = ax.broken_barh([(begin, end - begin)], (-names.index(row) - 0.4, 0.8), facecolor=LOOK[what])
            box.set(edgecolor="white", linewidth=0.6, hatch="///" if what == "wait" else None)
            used[what] = None
        ax.set(yticks=[-i for i in range(len(names))], yticklabels=names, title=title)
        ax.grid(visible=False)
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=LOOK[what], hatch="///" if what == "wait" else None) for what in used
    ]
    words = {"fill": "load", "wait": "the host waits"}
    labels = [words.get(what, what) for what in used]
    figure.legend(handles, labels, loc="outside upper right", ncols=len(used))
    axes[-1, 0].set_xlabel(label)
    return figure


schedules = styled(schedules)

# --------------------------------------------------------------------------------------------------------------- curves


@styled
def bandwidths(kept: Record, by_numpy: Mapping[int, float]) -> Figure:
    """Bandwidth by bytes: pageable and pinned memory, both directions, and NumPy within the host."""
    figure, ax = chart()
    for memory, colour, marker in (("pageable", palette.COLOURS[1], "s"), ("pinned", palette.COLOURS[0], "o")):
        for direction, line in (("to the GPU", "-"), ("from the GPU", "--")):
            if found := rows(kept, "copies", memory=memory, direction=direction):
                speeds = [row["bytes"] / row["us"] / 1e3 for row in found]
                look = {"marker": marker, "ls": line, "color": colour}
                ax.loglog([row["bytes"] for row in found], speeds, label=f"{memory}, {direction}", **look)
    ax.loglog(by_numpy.keys(), by_numpy.values(), "x-", color=palette.GREY, label="NumPy, this computer")
    ax.set(xlabel="bytes of a copy", ylabel="bandwidth (GB/s)", title="A copy costs by the piece, then by the byte")
    ax.legend()
    foot(figure, source(kept))
    return figure


@_measured("loading")
def fed(kept: Record) -> Figure:
    """Images a second by batch size, a curve for each way of loading."""
    figure, ax = chart(5)
    ours, theirs = iter(palette.COLOURS), iter(palette.LIBRARIES)
    for marker, way in zip(palette.MARKERS, dict.fromkeys(row["way"] for row in rows(kept, "loading")), strict=False):
        found = rows(kept, "loading", way=way)
        library = way.startswith("PyTorch")
        look = {"marker": marker, "ls": "--" if library else "-", "color": next(theirs if library else ours)}
        ax.loglog([row["batch"] for row in found], [row["images_s"] for row in found], label=way, **look)
    ax.set(xlabel="images in a batch", ylabel="images a second", title="One training, fed in different ways")
    ax.set_xticks(feeding.FED, feeding.FED)
    ax.minorticks_off()
    ax.set_ylim(top=5 * ax.get_ylim()[1])  # room for the legend
    ax.legend(ncols=2, loc="upper left")
    foot(figure, source(kept))
    return figure


@styled
def pieces(kept: Record, computed: Mapping[int, float]) -> Figure:
    """The time of a copy, a kernel and a copy back by the number of pieces: a model's, and what was recorded."""
    figure, ax = chart(3.8)
    ax.semilogx(
        computed.keys(), [us / computed[1] for us in computed.values()], "x--", color=palette.INK, label="model"
    )
    if found := rows(kept, "chunks"):
        whole = next(row["us"] for row in found if row["pieces"] == 1)
        at, shares = [row["pieces"] for row in found], [row["us"] / whole for row in found]
        ax.semilogx(at, shares, "o-", color=palette.COLOURS[0], label="recorded")
    ax.axhline(1 / 3, color=palette.GREY, ls=":", label="a third: all three overlap")
    ax.set(xlabel="pieces", ylabel="time, in one piece = 1", ylim=(0, 1.05), title="Copy, kernel, copy back, in pieces")
    ax.set_xticks(list(computed), list(computed))
    ax.minorticks_off()
    ax.legend()
    foot(figure, source(kept))
    return figure


@_measured("steps")
def steps(kept: Record) -> Figure:
    """Host time and GPU time of a step by batch size: called and captured, and the whole steps."""
    figure, ax = chart(5)
    found = rows(kept, "steps")
    at = [row["batch"] for row in found]
    for how, colour, marker in (("called", palette.COLOURS[1], "s"), ("captured", palette.COLOURS[2], "D")):
        ax.loglog(at, [row[how]["host_us"] for row in found], f"{marker}-", color=colour, label=f"host, {how}")
        ax.loglog(at, [row[how]["step_us"] for row in found], ":", color=colour, label=f"whole step, {how}")
    ax.loglog(at, [row["gpu_us"] for row in found], "o-", color=palette.COLOURS[0], label="GPU, graph")
    if all("torch" in row for row in found):
        for how, marker, colour in (("called", "x--", palette.INK), ("captured", "+--", palette.GREY)):
            times = [row["torch"][how]["step_us"] for row in found]
            ax.loglog(at, times, marker, color=colour, label=f"PyTorch's whole step, {how}")
    ax.set(xlabel="images in a batch", ylabel="time (us)", title="A step of LeNet-5: host and GPU")
    ax.set_xticks(at, at)
    ax.minorticks_off()
    ax.set_ylim(top=8 * ax.get_ylim()[1])  # room for the legend
    ax.legend(ncols=2, loc="upper left")
    foot(figure, source(kept))
    return figure


def crossing(kept: Record, how: str) -> float | None:
    """The batch from which the GPU takes longer than the host; None if they do not cross between measured ones."""
    for one, other in itertools.pairwise(rows(kept, "steps")):
        a, b = (np.log(row["gpu_us"] / row[how]["host_us"]) for row in (one, other))
        if a < 0 <= b:
            return float(one["batch"] * (other["batch"] / one["batch"]) ** (a / (a - b)))
    return None


def mean_us(spans: Sequence[Mapping[str, typing.Any]], what: str, skip: int = 2) -> float:
    """The mean length of the spans of that name, without the first few; 0 if there are none."""
    lengths = [span["to"] - span["from"] for span in spans if span["what"] == what][skip:]
    return float(np.mean(lengths)) if lengths else 0.0
