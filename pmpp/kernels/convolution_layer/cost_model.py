"""A cost model: how long each convolution algorithm should take for a layer, from the layer's shape alone.

The time of an algorithm is estimated as a sum of amounts times prices. An amount is work that takes time in proportion
to it: the gigabytes of an array that is written or read, the steps of the multiprocessor that has most of them, or the
steps of blocks that must follow one another because not all fit on the GPU at once. Prices are in milliseconds per
unit. They are fitted to the recorded survey by `python -m pmpp.kernels.convolution_layer.survey --fit`, and hold for
the GPU that it was measured on.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import by_fft, direct_tiles, implicit_gather
from pmpp.kernels.convolution_layer import direct as direct_room
from pmpp.kernels.convolution_layer import im2col as im2col_room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.matmul.batched import DEPTH
from pmpp.runtime import device

PRICES = Path(__file__).parents[2] / "recorded" / "nvidia-h200" / "convolution_prices.json"


@functools.cache
def prices() -> dict[str, dict[str, float]]:
    """Milliseconds for a unit of each amount, by algorithm, as fitted to an H200."""
    return json.loads(PRICES.read_text(encoding="utf-8"))["prices"]


def _multiprocessors() -> int:
    return device.limits()["multiprocessors"]


def _gigabytes(elements: int) -> float:
    return elements * 4e-9


def _arrays(a: Layer) -> float:
    """Gigabytes of x, w and the output."""
    return a.cost.bytes * 1e-9


def _products(count: int, rows: int, columns: int, depth: int) -> dict[str, float]:
    """Steps of ``count`` matrix products in tiles of 64 x 64: of the busiest multiprocessor, and of blocks in turn."""
    grid = count * blocks(rows, 64) * blocks(columns, 64)
    return {
        "steps": blocks(grid, _multiprocessors()) * depth * 1e-3,
        "steps in turn": blocks(grid, 4 * _multiprocessors()) * depth * 1e-3,
    }


def direct(a: Layer) -> dict[str, float]:
    """The room's own estimate of its time, `pmpp.kernels.convolution_layer.direct_tiles.time_of`, and what it omits."""
    style = direct_room.SINGLE if direct_room.wants_single(a) else direct_room.NEIGHBOURS
    if a.stride.columns > 2 or a.dilation.columns > 1:
        style = direct_room.SPREAD
    tile = direct_tiles.tile_of(a, style)
    found = {"start": 1, "arrays": _arrays(a), "multiply-adds": math.prod(a.shape) * a.terms * 1e-12}
    found["terms"] = a.terms * 1e-3
    if tile is not None:
        strips = a.c == a.groups and (a.r, a.s) == (3, 3)  # a kernel of their own
        chunks = blocks(a.c // a.groups, tile.channels) * blocks(a.r, tile.kernel_rows)
        turns = blocks(tile.grid(a), _multiprocessors() * max(1, direct_tiles.RESIDENT // tile.warps))
        found["model"] = 0 if strips else direct_tiles.time_of(a, style, tile) * 1e-6
        found["chunks in turn"], found["terms in turn"] = chunks * turns * 1e-3, turns * a.terms * 1e-3
    return found


def im2col(a: Layer) -> dict[str, float]:
    """Columns written and read, and a matrix product for each image and group."""
    product, pixels = im2col_room.is_product(a), a.p * a.q
    depth = a.terms if product else round_up(a.terms, DEPTH)
    guarded = pixels % 4 != 0 or depth % DEPTH != 0
    passes = 0 if product else blocks(a.n, im2col_room.images_at_a_time(a))
    steps = _products(a.n * a.groups, a.k // a.groups, pixels, depth)
    return {
        "start": 1,
        "arrays": _arrays(a),
        "columns": im2col_room.workspace_bytes(a) * 1e-9 * max(passes, 1),
        "passes": passes,
        "groups": _gigabytes(math.prod(a.shape)) if a.groups > 1 else 0,
        "narrow output": _gigabytes(math.prod(a.shape)) if guarded else 0,
        **steps,
        **{f"guarded {name}": amount if guarded else 0 for name, amount in steps.items()},
    }


def implicit(a: Layer) -> dict[str, float]:
    """Steps of 8 terms, counted by how the columns are gathered, and parts of sums."""
    mode = implicit_gather.mode_of(a)
    plan = implicit_gather.plan_of(a, mode, True)
    steps = blocks(blocks(plan.depth, implicit_gather.DEPTH), plan.parts) * 1e-3
    busiest, outputs = blocks(plan.blocks, _multiprocessors()), _gigabytes(math.prod(a.shape))
    return {
        "start": 1,
        "weights": _gigabytes(plan.weights),
        "narrow output": outputs if a.p * a.q % 4 else 0,
        "parts": outputs * plan.parts if plan.parts > 1 else 0,
        "blocks": busiest * 1e-3,
        "steps": busiest * steps,
        "steps by table": busiest * steps if mode == implicit_gather.ANY else 0,
        "steps in turn": blocks(plan.blocks, 4 * _multiprocessors()) * steps,
    }


def winograd(a: Layer) -> dict[str, float]:
    """Transformed images, weights and sums, and 36 matrix products per group."""
    tiles, channels = a.n * blocks(a.p, 4) * blocks(a.q, 4), a.c // a.groups
    steps = _products(36 * a.groups, a.k // a.groups, tiles, channels)
    return {
        "start": 1,
        "images": _gigabytes(36 * tiles * a.c),
        "sums": _gigabytes(36 * tiles * a.k),
        "weights": _gigabytes(36 * a.k * channels),
        "narrow rows": _gigabytes(a.n * (a.c * a.h * a.w + a.k * a.p * a.q)) if a.w % 4 else 0,
        **steps,
        "guarded steps": steps["steps"] if tiles % 4 or channels % DEPTH else 0,
    }


def fft(a: Layer) -> dict[str, float]:
    """Spectra of tiles, and a complex matrix product for each frequency."""
    tiling, group = by_fft.tiling_of(a), a.c // a.groups
    if tiling is None:  # whole images were not measured: assume that a value of their spectra takes as long
        tiles, size = a.n, by_fft.whole_image_workspace(a) // (8 * (a.n * (a.c + a.k) + a.k * group))
    else:
        tiles, size = tiling.count(a), tiling.size
    spectrum = 2 * size
    grid = blocks(size, 8) * a.groups * blocks(a.k // a.groups, 32) * blocks(tiles, 32)
    return {
        "start": 1,
        "arrays": _arrays(a),
        "images": _gigabytes(tiles * a.c * spectrum),
        "sums": _gigabytes(tiles * a.k * spectrum),
        "weights": _gigabytes(a.k * group * spectrum),
        "blocks": blocks(grid, _multiprocessors()) * 1e-3,
        "steps": blocks(grid, _multiprocessors()) * group * 1e-3,
        "steps in turn": blocks(grid, 2 * _multiprocessors()) * group * 1e-3,
    }


AMOUNTS = {"direct": direct, "im2col": im2col, "implicit": implicit, "winograd": winograd, "fft": fft}


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def guess(algorithm: str, layer: Layer) -> float:
    """Milliseconds that the algorithm should take for the layer."""
    return sum(prices()[algorithm][name] * amount for name, amount in AMOUNTS[algorithm](layer).items())
