"""What is measured of ``pooling``: windows of common networks on large maps, and shapes that suit no kernel."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pmpp.kernels.pooling import ladder as pooling
from pmpp.kernels.pooling.windows import pair_of
from pmpp.lab.measure.arrays import chunks, normal, with_options, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding

DESIGN = (256, 64, 112, 112)
TINY = (2, 16, 32, 32)
SWEEP = [(images, 64, 112, 112) for images in (1, 4, 16, 64)]
ON_CPU = 16  # images, at most: NumPy gets these, too
SIDES = (3, 5, 9, 17, 33)  # of windows with stride 1: from bytes to arithmetic
WINDOWS = {"max 2x2": ("max", 2), "max 3x3": ("max", 3, 2, 1), "average 2x2": ("average", 2)}
WHOLE = ("average", None)  # the mean of each plane
# Odd widths, overlapping and large windows, one row, tiny batches, few planes.
OTHER: list[tuple[tuple[int, ...], tuple]] = [
    *[((64, 64, 111, 111), ("max", 2)), ((64, 64, 111, 111), ("average", 3, 2, 1)), ((256, 64, 55, 55), ("max", 3, 2))],
    *[
        ((32, 192, 28, 28), ("max", 3, 1, 1)),
        ((8, 256, 13, 13), ("max", 5, 1, 2)),
        ((1, 64, 112, 112), ("max", 3, 2, 1)),
    ],
    *[
        ((1, 3, 224, 224), ("max", 2)),
        ((256, 6, 28, 28), ("average", 2)),
        ((1, 1, 1, 1_000_001), ("max", (1, 3), (1, 2))),
    ],
    *[((256, 2048, 7, 7), WHOLE), ((32, 512, 14, 14), WHOLE), ((1, 3, 1000, 1001), WHOLE), ((1, 1, 4096, 4096), WHOLE)],
    *[((2, 2048, 1, 1), WHOLE), ((64, 64, 111, 111), WHOLE)],
]


def verifier(
    op: str, kernel: tuple, stride: tuple, padding: tuple, dtype: typing.Any = np.float32
) -> Callable[..., tuple[float, float]]:
    """Every element: the maximum exactly, an average against float64 with the tolerance of `pmpp.kernels.pooling`."""

    def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        step = max(1, 2**26 * len(x) // x.size)
        parts = chunks(len(x), step)
        return worst_of(_images(result[part], x[part], op, kernel, stride, padding, dtype) for part in parts)

    return verify


def _images(result, x, op, kernel, stride, padding, dtype) -> tuple[float, float]:
    area = math.prod(kernel)
    if op == "max":
        expected = _windows(x, xp().maximum, -np.inf, result.shape[2:], kernel, stride, padding)
        return worst(abs(result - expected), 0 * expected)
    if kernel == x.shape[2:]:
        mean, size = (v.mean(axis=(2, 3), keepdims=True, dtype=np.float64) for v in (x, abs(x)))
    else:
        wide = x.astype(np.float64)
        options = xp().add, 0, result.shape[2:], kernel, stride, padding
        mean, size = _windows(wide, *options) / area, _windows(abs(wide), *options) / area
    allowed = area * 2.0**-24 * size + 2.0**-149
    if np.dtype(dtype) != np.float32:
        allowed = allowed + rounding(abs(mean) + allowed, dtype)
    return worst(abs(result - mean), allowed)


def _windows(x, combine, outside, places, kernel, stride, padding) -> typing.Any:
    """All windows at once: their first elements combined with their second ones, and so on."""
    reach = [(p - 1) * s + k for p, s, k in zip(places, stride, kernel, strict=True)]
    edges = [(p, max(r - p - n, 0)) for r, p, n in zip(reach, padding, x.shape[2:], strict=True)]
    if any(map(any, edges)):
        x = xp().pad(x, ((0, 0), (0, 0), *edges), constant_values=outside)
    total = None
    for y in range(kernel[0]):
        for z in range(kernel[1]):
            rows = slice(y, y + (places[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(z, z + (places[1] - 1) * stride[1] + 1, stride[1])
            part = x[:, :, rows, columns]
            total = part.copy() if total is None else combine(total, part)
    return total


def _torch(op: str, whole: bool, kernel: tuple, stride: tuple, padding: tuple) -> dict[str, Callable]:
    if whole:
        return {"torch.adaptive_avg_pool2d": lambda torch, x, out: torch.nn.functional.adaptive_avg_pool2d(x, 1)}
    name = {"max": "max_pool2d", "average": "avg_pool2d"}[op]
    return {f"torch.{name}": lambda torch, x, out: getattr(torch.nn.functional, name)(x, kernel, stride, padding)}


def max_on_cpu(x: np.ndarray) -> np.ndarray:
    """The largest of each 2 x 2 elements by NumPy on the CPU. Planes have even sides."""
    above = np.maximum(x[:, :, ::2, ::2], x[:, :, ::2, 1::2])
    below = np.maximum(x[:, :, 1::2, ::2], x[:, :, 1::2, 1::2])
    return np.maximum(above, below, out=above)


def _workload(
    shape: tuple, options: tuple, rungs: tuple, family: str, *, dtype: typing.Any = np.float32, **more: typing.Any
) -> Workload:
    op, kernel, *rest = options
    window = pair_of(shape[2:] if kernel is None else kernel)
    stride = pair_of(rest[0]) if rest else window
    padding = pair_of(rest[1]) if rest[1:] else (0, 0)
    axes = zip(shape[2:], window, stride, padding, strict=True)
    places = tuple(pooling.pooled_extent(*axis) for axis in axes)
    planes, (h, w) = math.prod(shape[:2]), shape[2:]
    name = "x".join(map(str, shape))
    if family.startswith("other"):
        name += " whole" if kernel is None else f" {op} {window[0]}x{window[1]} s{stride[1]} p{padding[1]}"
    return Workload(
        family=family,
        name=name,
        sizes={"n": math.prod(shape), "images": shape[0], "channels": shape[1], "height": h, "width": w},
        cost=pooling.cost(planes, h, w, window, stride, padding, itemsize=np.dtype(dtype).itemsize),
        make=lambda seed: (normal(shape, seed, dtype),),
        output=lambda: device.empty((*shape[:2], *places), dtype),
        rungs=tuple(with_options(rung, op, window, stride, padding) for rung in rungs),
        libraries=_torch(op, kernel is None, window, stride, padding),
        verify=verifier(op, window, stride, padding, dtype),
        design=shape == DESIGN,
        quick=shape in (DESIGN, OTHER[0][0]),
        **more,
    )


def _beside_numpy(shape: tuple) -> Workload:
    """Maxima of 2 x 2; of few enough images also by NumPy, and from host to host."""
    more = {"host": {"numpy": max_on_cpu}, "end_to_end": True} if shape[0] <= ON_CPU else {}
    return _workload(shape, WINDOWS["max 2x2"], pooling.LADDER[:-1], "max 2x2", **more)


def _with_positions(family: str) -> Workload:
    """Maxima with positions of one byte, for the way back; PyTorch stores 64-bit indices. The values are verified."""

    def told(rung: typing.Any) -> Callable:
        def call(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
            return rung(x, *WINDOWS[family], return_positions=True, out=out)[0]

        call.__name__ = rung.name
        return call

    workload = _workload(DESIGN, WINDOWS[family], (), f"{family} and positions")
    cost = replace(workload.cost, bytes=workload.cost.bytes + workload.sizes["n"] // 4)  # stride 2: one for four
    return replace(workload, cost=cost, rungs=(told(pooling.narrow), told(pooling.vectorised)))


def _in_16_bits(shape: tuple, dtype: np.dtype) -> tuple[Workload, ...]:
    """Every window of common networks, and whole planes: by the best rung."""
    windows = WINDOWS | {"global average": WHOLE}
    best = pooling.LADDER[-1:]
    return tuple(_workload(shape, one, best, f"{name}, {dtype}", dtype=dtype) for name, one in windows.items())


def _of_side(side: int) -> Workload:
    """Means over windows with stride 1, as many as elements: the work grows with the window, and the bytes do not."""
    rungs = pooling.narrow, pooling.shared
    workload = _workload(SWEEP[2], ("average", side, 1, side // 2), rungs, "window sizes")
    return replace(workload, name=f"{side}x{side}", sizes={"side": side} | workload.sizes)


WORKLOADS = [
    *(_workload(DESIGN, window, pooling.LADDER[:-1], family) for family, window in WINDOWS.items()),
    *(_with_positions(family) for family in ("max 2x2", "max 3x3")),
    _workload(DESIGN, WHOLE, (pooling.narrow, pooling.whole_planes), "global average"),
    *(one for dtype in known(pooling.SHORT) for shape in (TINY, DESIGN) for one in _in_16_bits(shape, dtype)),
    *(_beside_numpy(shape) for shape in SWEEP),
    *(_of_side(side) for side in SIDES),
    *(_workload(shape, window, pooling.LADDER[-1:], "other shapes") for shape, window in OTHER),
]
