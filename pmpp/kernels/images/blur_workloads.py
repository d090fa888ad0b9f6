"""What is measured of ``blur``: radii from 1 to 32 on one image, a larger image, and the photograph."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.images import blur
from pmpp.kernels.images.grey_workloads import PHOTOGRAPH, random_image
from pmpp.lab.measure.arrays import library_of, view, with_options, worst
from pmpp.lab.measure.bench import Workload

SIDE, LARGE = 8192, 16384
RADII = [1, 2, 4, 8, 16, 32]
DESIGN = 8


def window_sums(x: typing.Any, radius: int, axis: int) -> typing.Any:
    """Of each place, the sum of the places at most ``radius`` away along an axis: a difference of two running sums."""
    library, size = library_of(x), x.shape[axis]
    sums = library.cumsum(x, axis=axis, dtype=np.int64)
    sums = library.concatenate([library.zeros_like(sums[:1] if axis == 0 else sums[:, :1]), sums], axis=axis)
    at = library.arange(size)
    after, before = library.minimum(at + radius + 1, size), library.maximum(at - radius, 0)
    return library.take(sums, after, axis) - library.take(sums, before, axis)


def verify(result: typing.Any, x: typing.Any, *, radius: int) -> tuple[float, float]:
    """Every pixel must be the very same: the arithmetic is exact."""
    if tuple(result.shape) != tuple(x.shape):
        return float("inf"), 0.0
    x, result = view(x), view(result)
    total = window_sums(window_sums(x, radius, 0), radius, 1)
    ones = library_of(x).ones
    rows = window_sums(ones((x.shape[0], 1), np.int64), radius, 0)
    count = rows * window_sums(ones((1, x.shape[1]), np.int64), radius, 1)
    error = abs(result.astype(np.int64) - (2 * total + count) // (2 * count))
    return worst(error, 0 * error)


def by_torch(torch: typing.Any, x: typing.Any, radius: int) -> typing.Any:
    """Average pooling, which counts as the room does, of float32: sums of up to 65 x 65 bytes are exact in it."""
    pool = torch.nn.functional.avg_pool2d
    mean = pool(x[None, None].to(torch.float32), 2 * radius + 1, 1, radius, count_include_pad=False)
    return (mean[0, 0] + 0.5).to(torch.uint8)


def by_ndimage(ndimage: typing.Any, x: typing.Any, radius: int) -> typing.Any:
    """Sums of float32 along both axes, by SciPy or CuPy, with zeros around; they are exact as in `by_torch`."""
    library = library_of(x)
    ones, total = library.ones(2 * radius + 1, np.float32), x.astype(np.float32)
    for axis in (0, 1):
        total = ndimage.correlate1d(total, ones, axis=axis, mode="constant")
    return (total / pixels_inside(x.shape, radius, library) + np.float32(0.5)).astype(np.uint8)


def by_cupy(cupy: typing.Any, x: typing.Any, radius: int) -> typing.Any:
    from cupyx.scipy import ndimage

    return by_ndimage(ndimage, x, radius)


@functools.lru_cache(1)
def pixels_inside(shape: tuple[int, int], radius: int, library: typing.Any) -> typing.Any:
    """How many pixels of each square are in the image, as float32. They are counted once for all calls."""
    rows = window_sums(library.ones((shape[0], 1), np.int64), radius, 0)
    return (rows * window_sums(library.ones((1, shape[1]), np.int64), radius, 1)).astype(np.float32)


def by_numpy(x: np.ndarray, radius: int) -> np.ndarray:
    total = window_sums(window_sums(x, radius, 0), radius, 1)
    count = window_sums(np.ones((x.shape[0], 1), np.int64), radius, 0)
    count = count * window_sums(np.ones((1, x.shape[1]), np.int64), radius, 1)
    return ((2 * total + count) // (2 * count)).astype(np.uint8)


def _blur(family: str, name: str, h: int, w: int, radius: int) -> Workload:
    return Workload(
        family=family,
        name=name,
        sizes={"radius": radius, "h": h, "w": w},
        cost=blur.cost(h, w),
        make=random_image(h, w),
        rungs=tuple(with_options(rung, radius) for rung in blur.LADDER),
        libraries={
            "torch.avg_pool2d": lambda torch, x: by_torch(torch, x, radius),
            "cupy.correlate1d": lambda cupy, x: by_cupy(cupy, x, radius),
        },
        verify=functools.partial(verify, radius=radius),
        design=family == "blur" and radius == DESIGN,
        cache="cold" if h >= SIDE else "warm",
        host={"numpy": lambda x: by_numpy(x, radius)} if h < SIDE else {},
        quick=radius in (1, DESIGN, 32) and h <= SIDE,
    )


WORKLOADS = [
    *(_blur("blur", f"radius {radius}", SIDE, SIDE, radius) for radius in RADII),
    _blur("large", f"{LARGE} x {LARGE}", LARGE, LARGE, DESIGN),
    _blur("photograph", f"radius {DESIGN}", *PHOTOGRAPH, DESIGN),
]
