"""Figures with knobs: change a number, and see what follows from it.

`turn` shows a figure of chosen numbers. In a notebook with ipywidgets there is a slider for each of them, and the
figure is drawn again when one is moved. Everywhere else the figure is a picture of the numbers in the cell: change them
there, and run the cell again. Either way the notebook keeps a plain picture, which needs no kernel to be shown.

The other functions are figures to turn. Their numbers come from the interpreter's table of GPUs, from recorded
ceilings, and from the rules that the chapters derive; nothing here is measured.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import typing
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pmpp.lab.draw import palette
from pmpp.lab.draw.plots import draw_roof
from pmpp.lab.draw.style import SMALL, chart, foot, styled
from pmpp.lab.measure import record as store
from pmpp.lab.measure import roofline
from pmpp.lab.measure.record import Record
from pmpp.runtime.rung import Cost
from pmpp.simt import LaunchError
from pmpp.simt import occupancy as fit
from pmpp.simt.machine.gpus import gpu as gpu_named

__all__ = ["SLIDERS", "TILES", "occupancy", "roof", "tiles", "turn", "under_way"]

SLIDERS = "PMPP_SLIDERS"  # "0" in the environment: no sliders, as when chapters are executed to be stored
TILES = range(4, 33)  # sides of a block, up to 32 x 32 threads


def turn(draw: Callable[..., Figure], **knobs: tuple[typing.Any, Sequence]) -> Figure | None:
    """Show ``draw(name=value, ...)``, with a slider for each knob where there can be one.

    Args:
        draw: makes a figure of the knobs' values, which it gets by name. It must accept all combinations.
        knobs: a pair for each, ``(value, choices)``: what to begin with, and all that it can be, in order.

    Returns the figure if there are no sliders: a notebook shows it if it is the last value of a cell. With sliders it
    is displayed below them, and None is returned. There are sliders in a Jupyter kernel that has ipywidgets, unless the
    variable PMPP_SLIDERS of the environment is "0".

    Raises TypeError for a knob that is no such pair, and ValueError for a value that is not among the choices.

    >>> figure = turn(roof, flops=(16, (8, 16, 32)), nbytes=(8, range(4, 65, 4)))
    >>> figure.axes[0].get_title(loc="left").partition(",")[0]
    '16 FLOP for 8 bytes: 2 FLOP/byte'
    """
    for name, knob in knobs.items():
        if not (isinstance(knob, tuple) and len(knob) == 2 and isinstance(knob[1], Sequence)):
            raise TypeError(f"{name} must be a pair (value, choices), was {knob!r}")
        if knob[0] not in knob[1]:
            raise ValueError(f"{name} is {knob[0]!r}; it must be {_said(knob[1])}")
    values = {name: value for name, (value, _) in knobs.items()}
    if not _sliders():
        return draw(**values)

    import ipywidgets
    from IPython.display import display

    wide = {"style": {"description_width": "10em"}, "layout": {"width": "36em"}}
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(str(choice), choice) for choice in choices],
            value=value,
            description=name.replace("_", " "),
            continuous_update=False,
            **wide,
        )
        for name, (value, choices) in knobs.items()
    }
    display(ipywidgets.VBox([*sliders.values()]))
    # A display that is updated, not a widget: it is a picture in the notebook's file, too.
    shown = display(draw(**values), display_id=True)

    def redraw(_: typing.Any) -> None:
        shown.update(draw(**{name: slider.value for name, slider in sliders.items()}))

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    return None


def _sliders() -> bool:
    """Whether someone can move a slider: a Jupyter kernel with ipywidgets, and nobody has said no."""
    if os.environ.get(SLIDERS) == "0" or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:  # no IPython at all, or one in a terminal
        return False
    return importlib.util.find_spec("ipywidgets") is not None


def _said(choices: Sequence) -> str:
    if isinstance(choices, range):
        step = "" if choices.step == 1 else f" in steps of {choices.step}"
        return f"from {choices[0]} to {choices[-1]}{step}"
    return f"one of {', '.join(map(str, choices))}"


def _panels(height: float, columns: int, **options: typing.Any) -> tuple[Figure, Sequence[Axes]]:
    figure, ax = chart(height)
    ax.remove()
    return figure, figure.subplots(1, columns, **options)


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=11)


# --------------------------------------------------------------------------------------------------------- occupancy


@styled
def occupancy(threads: int, registers: int, shared_kib: int, gpu: str = "H200") -> Figure:
    """How many blocks each resource of a multiprocessor allows, and the occupancy over two of them.

    Args:
        threads: of a block. registers: of a thread. shared_kib: KiB of shared memory of a block.
        gpu: a name from ``simt.GPUS``.

    A block that does not fit at all has an occupancy of 0.
    """
    most, blocks = gpu_named(gpu).architecture, _blocks(threads, registers, shared_kib, gpu)
    limiter = min(blocks, key=blocks.__getitem__)
    warps = blocks[limiter] * -(-threads // 32)
    figure, (bars, left, right) = _panels(3.2, 3, width_ratios=(5, 4, 4))
    for row, (name, count) in enumerate(blocks.items()):
        bars.barh(row, count, color=palette.WRONG if name == limiter else palette.COLOURS[0], height=0.6)
        inside = {"va": "center", "fontsize": SMALL, "color": palette.TEXT}
        bars.text(min(count, most.blocks) + 0.8, row, str(count), **inside)  # a longer bar would be cut off anyway
    bars.set_yticks(range(len(blocks)), blocks)
    bars.set(xlim=(0, most.blocks + 8), ylim=(len(blocks) - 0.4, -0.6), xlabel="blocks that fit")
    bars.set_xticks(range(0, most.blocks + 1, 8))
    bars.grid(visible=False, axis="y")
    shared = np.arange(most.shared_block // 1024 + 1)
    _curve(left, range(16, 256), lambda n: _share(threads, n, shared_kib, gpu), registers)
    _curve(right, shared, lambda n: _share(threads, registers, int(n), gpu), shared_kib)
    left.set(xlabel="registers a thread", ylabel="occupancy (%)", xticks=(16, 64, 128, 192, 255))
    right.set(xlabel="shared memory (KiB)", yticklabels=[])
    share = _share(threads, registers, shared_kib, gpu)
    each = f"{blocks[limiter]} block{'s' * (blocks[limiter] != 1)} of {threads:,} threads"
    if share:
        _title(figure, f"{each}, {warps} of {most.warps} warps: occupancy {share:.4g} %, limited by {limiter}")
    else:
        _title(figure, f"A block of {threads:,} threads does not fit: {limiter}")
    foot(figure, f"Computed by simt.occupancy for one multiprocessor of the {gpu}. Red: the limit. Dot: your numbers")
    return figure


def _blocks(threads: int, registers: int, shared_kib: int, gpu: str) -> dict[str, int]:
    """The blocks that each resource by itself would allow: 0 where not even one fits."""
    blocks = {name: count for name, count in fit(threads, gpu=gpu).limits.items() if name in ("threads", "blocks")}
    for taken in ({"shared_bytes": 1024 * shared_kib}, {"registers": registers}):
        resource = "registers" if "registers" in taken else "shared memory"
        try:
            found = fit(threads, gpu=gpu, **taken).limits
            blocks |= {resource: found[resource]} if resource in found else {}  # one that limits nothing is left out
        except LaunchError:
            blocks[resource] = 0
    return blocks


def _share(threads: int, registers: int, shared_kib: int, gpu: str) -> float:
    """Occupancy in per cent; 0 for a block that does not fit."""
    try:
        return 100 * fit(threads, 1024 * shared_kib, registers, gpu).occupancy
    except LaunchError:
        return 0.0


def _curve(ax: Axes, xs: Sequence[int], share: Callable[[int], float], x: int) -> None:
    ax.plot(xs, [share(each) for each in xs], color=palette.COLOURS[0])
    if min(xs) <= x <= max(xs):  # a GPU may not have what was asked for
        ax.plot(x, share(x), "o", color=palette.OWN, mec=palette.INK, markersize=8, clip_on=False, zorder=3)
    ax.set(ylim=(0, 105), xlim=(min(xs), max(xs)))


# ------------------------------------------------------------------------------------------------------ Little's law


@styled
def under_way(warps: int, nbytes: int, latency: int, gpu: str = "H200", record: Record | None = None) -> Figure:
    """The share of the memory's bandwidth that warps can ask for, by Little's law.

    Args:
        warps: on a multiprocessor, all waiting. nbytes: that each thread waits for. latency: in cycles.
        gpu: a name from ``simt.GPUS``, for its clock and its multiprocessors. record: for the bandwidth.
    """
    record, of = record or store.load(), gpu_named(gpu)
    bandwidth = record.ceilings().bandwidth
    needed = bandwidth * latency / of.clock / of.sms  # bytes under way on a multiprocessor
    most, each = of.architecture.warps, 32 * nbytes
    places = np.union1d(np.arange(most + 1), min(needed / each, most))  # with the corner of the line
    figure, ax = chart(3.4)
    ax.plot(places, np.minimum(places * each / needed, 1) * bandwidth / 1e12, color=palette.COLOURS[0])
    ax.axhline(bandwidth / 1e12, color=palette.INK, linestyle="--", linewidth=1.2)
    ax.text(0.6, bandwidth / 1e12 * 1.02, "what the memory can do", fontsize=SMALL, va="bottom")
    share = min(warps * each / needed, 1)
    ax.plot(warps, share * bandwidth / 1e12, "o", color=palette.OWN, mec=palette.INK, markersize=9, clip_on=False)
    full = -(-needed // each)
    if full <= most:
        ax.axvline(full, color=palette.GREY, linestyle=":", linewidth=1.2)
    ends = f"full from {full:.0f} warps on" if full <= most else f"never full: that takes {full:.0f} warps"
    ax.set(xlabel=f"warps on an SM ({ends})", ylabel="rate (TB/s)", xticks=range(0, most + 1, 8))
    ax.set(xlim=(0, most), ylim=(0, bandwidth / 1e12 * 1.16))
    said = f"{warps} warps x 32 threads x {nbytes} bytes = {warps * each:,} bytes under way"
    ax.set_title(f"{said}, {needed:,.0f} needed: {share:.0%}")
    foot(figure, f"A model (Little's law), not measured. Bandwidth: {record.footer()}")
    return figure


# ---------------------------------------------------------------------------------------------------------- roofline


@styled
def roof(flops: int, nbytes: int, record: Record | None = None) -> Figure:
    """Where a perfect kernel stands on the roofline, by its operations and its bytes for each element.

    Args:
        flops: floating-point operations for an element. nbytes: moved for it. record: for the ceilings.
    """
    record = record or store.load()
    ceilings, cost = record.ceilings(), Cost(flops, nbytes)
    bound, x = roofline.bound(cost, ceilings), cost.intensity
    y = roofline.attainable(x, ceilings)
    figure, ax = chart(4.0)
    ends = [(end, roofline.attainable(end, ceilings) / 1e12) for end in (1 / 16, 256)]  # the same axes for all numbers
    draw_roof(ax, ceilings, [*ends, (x, y / 1e12)])
    ax.axvline(x, color=palette.OWN, linewidth=1.2, linestyle="--")
    ax.plot(x, y / 1e12, "o", color=palette.OWN, mec=palette.INK, markersize=10, zorder=4)
    what = f"{flops:,} FLOP for {nbytes} bytes: {x:.3g} FLOP/byte, {bound.side}-bound"
    ax.set_title(f"{what}, at most {y / 1e12:.3g} TFLOP/s ({y / ceilings.fma_f32:.0%})")
    foot(figure, f"Computed from two ceilings, in per cent of the rate of multiply-adds. {record.footer()}")
    return figure


# ------------------------------------------------------------------------------------------------------------- tiles


@styled
def tiles(tile: int, mask: int, image: int) -> Figure:
    """Tiles with a halo over an image: what a block loads for its outputs, and the threads that have none.

    Args:
        tile: a block makes tile x tile outputs, one a thread. mask: its side, an odd number. image: its side in pixels.
    """
    figure, ax = chart(3.7)
    ax.remove()
    grid = figure.add_gridspec(2, 2, width_ratios=(5, 6))
    _draw_tiles(figure.add_subplot(grid[:, 0]), tile, mask, image)
    above, below = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    for ax, value in ((above, lambda side: _intensity(side, mask)), (below, lambda side: 100 * _wasted(side, image))):
        ax.plot(TILES, [value(side) for side in TILES], ".-", color=palette.COLOURS[0])
        ax.plot(tile, value(tile), "o", color=palette.OWN, mec=palette.INK, markersize=9, zorder=3)
        ax.set(xlim=(TILES[0] - 1, TILES[-1] + 1), xticks=range(4, 33, 4))
    above.axhline(mask**2 / 2, color=palette.INK, linestyle="--", linewidth=1.2)  # without a halo
    above.set(ylim=(0, mask**2 / 2 * 1.1), ylabel="FLOP/byte", xticklabels=[])
    below.set(ylim=(0, max(10, 110 * max(_wasted(side, image) for side in TILES))), ylabel="wasted (%)")
    below.set_xlabel("side of the tile. Dashed: without a halo")
    loads = (tile + mask - 1) ** 2 / tile**2
    _title(
        figure,
        f"{tile} x {tile} outputs under {mask} x {mask}: {loads:.2f} loads an output,"
        f" {_intensity(tile, mask):.3g} FLOP/byte, {_wasted(tile, image):.0%} of threads wasted",
    )
    foot(
        figure,
        "Computed: loads of the image alone. Orange: a block, in its halo. Red: threads without an output are wasted",
    )
    return figure


def _intensity(tile: int, mask: int) -> float:
    """FLOP for each byte of the image that a block loads into its tile."""
    return 2 * tile**2 * mask**2 / (4 * (tile + mask - 1) ** 2)


def _wasted(tile: int, image: int) -> float:
    """The share of threads whose output does not exist."""
    return 1 - (image / (-(-image // tile) * tile)) ** 2


def _draw_tiles(ax: Axes, tile: int, mask: int, image: int) -> None:
    blocks = -(-image // tile)
    end, reach = blocks * tile, mask // 2
    ax.add_patch(Rectangle((0, 0), end, end, facecolor=palette.WAITING, gid="threads"))
    ax.add_patch(Rectangle((0, 0), image, image, facecolor=palette.REGIONS["in cache"], gid="image"))
    at = (blocks - 1) // 2 * tile  # a block in the middle
    halo = at - reach, tile + 2 * reach
    ax.add_patch(Rectangle((halo[0], halo[0]), halo[1], halo[1], facecolor=palette.COLOURS[6], alpha=0.6, gid="halo"))
    ax.add_patch(Rectangle((at, at), tile, tile, facecolor=palette.COLOURS[1], gid="block"))
    for k in range(blocks + 1):
        for ends in (((k * tile,) * 2, (0, end)), ((0, end), (k * tile,) * 2)):
            ax.plot(*ends, color=palette.GREY, linewidth=0.5)
    low, high = min(0, halo[0]) - 1, max(end, sum(halo)) + 1
    ax.set(xlim=(low, high), ylim=(high, low), aspect="equal")
    ax.set(xticks=(0, image), yticks=(0, image), xlabel="column", ylabel="row")
    ax.grid(visible=False)
