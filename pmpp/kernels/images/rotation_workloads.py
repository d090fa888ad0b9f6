"""What is measured of ``rotation``: angles from 0 to 90 degrees on one image, and the photograph."""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.images import rotation
from pmpp.kernels.images.grey_workloads import PHOTOGRAPH, random_image
from pmpp.lab.measure.arrays import chunks, library_of, view, with_options, worst, worst_of
from pmpp.lab.measure.bench import Workload, WrongResult
from pmpp.runtime import device

SIDE = 16384
DEGREES = [0, 15, 30, 45, 60, 75, 90]
DESIGN = 30
#: A position in float32 is off by a thousandth of a pixel here, and libraries cut off a result where we round it.
ALLOWED = 4


def _exact(x: typing.Any, rows: slice, angle: float) -> tuple[typing.Any, typing.Any]:
    """Some rows of what the room defines, in NumPy or CuPy; and where any of the four pixels is in the image."""
    library, (h, w) = library_of(x), x.shape
    cos, sin = rotation.steps(angle)
    down = 2 * library.arange(rows.start, min(rows.stop, h), dtype=np.int64)[:, None] - (h - 1)
    right = 2 * library.arange(w, dtype=np.int64) - (w - 1)
    at = down * cos + right * sin + (h - 1) * 2**31, right * cos - down * sin + (w - 1) * 2**31
    whole, share = [one >> 32 for one in at], [(one >> 24) & 255 for one in at]
    total, any_inside = library.full(at[0].shape, 2**15, np.int64), library.zeros(at[0].shape, bool)
    for i in (0, 1):
        for j in (0, 1):
            inside = (whole[0] >= -i) & (whole[0] < h - i) & (whole[1] >= -j) & (whole[1] < w - j)
            pixel = x[library.clip(whole[0] + i, 0, h - 1), library.clip(whole[1] + j, 0, w - 1)]
            weight = (share[0] if i else 256 - share[0]) * (share[1] if j else 256 - share[1])
            total += library.where(inside, weight * pixel, 0)
            any_inside |= inside
    return total >> 16, any_inside


def verify(result: typing.Any, x: typing.Any, *, angle: float) -> tuple[float, float]:
    """Our pixels must be the very same, which ``probe`` checks; those of a library may be off by a few of 255.

    Where nothing of the image is, each must be 0.
    """
    if tuple(result.shape) != tuple(x.shape):
        return float("inf"), 0.0
    x, result = view(x), view(result)

    def of_rows(rows: slice) -> tuple[float, float]:
        exact, any_inside = _exact(x, rows, angle)
        return worst(abs(result[rows].astype(np.int64) - exact), ALLOWED * any_inside)

    return worst_of(of_rows(rows) for rows in chunks(x.shape[0], 1024))


def probe_of(angle: float) -> typing.Callable[[typing.Callable], None]:
    """A smaller image, whose pixels must be the very same as the reference's."""

    def probe(call: typing.Callable) -> None:
        x = np.random.default_rng(3).integers(0, 256, (301, 404), dtype=np.uint8)
        wrong = int((device.to_host(call(device.to_device(x))) != rotation.reference(x, angle)).sum())
        if wrong:
            raise WrongResult(f"of {x.size} pixels, {wrong} are not those of the reference")

    return probe


@functools.lru_cache(1)
def grid_of(torch: typing.Any, shape: tuple[int, int], angle: float) -> typing.Any:
    """Where each pixel comes from, for PyTorch. It is computed once, and not in each call that is timed."""
    h, w = shape
    cos, sin, wide, high = math.cos(angle), math.sin(angle), max(w - 1, 1), max(h - 1, 1)
    matrix = torch.tensor([[cos, -sin * high / wide, 0], [sin * wide / high, cos, 0]], device="cuda")
    return torch.nn.functional.affine_grid(matrix[None], (1, 1, h, w), align_corners=True)


def by_torch(torch: typing.Any, x: typing.Any, angle: float) -> typing.Any:
    """``grid_sample`` of float32, which reads two numbers for each pixel that say where it comes from."""
    grid = grid_of(torch, tuple(x.shape), angle)
    sampled = torch.nn.functional.grid_sample(x[None, None].to(torch.float32), grid, align_corners=True)
    return (sampled[0, 0] + 0.5).to(torch.uint8)


def by_ndimage(ndimage: typing.Any, x: typing.Any, angle: float) -> typing.Any:
    """``affine_transform`` of SciPy or CuPy, of order 1."""
    cos, sin = math.cos(angle), math.sin(angle)
    matrix, middle = np.array([[cos, sin], [-sin, cos]]), (np.array(x.shape) - 1) / 2
    offset = tuple(middle - matrix @ middle)
    return ndimage.affine_transform(x, library_of(x).asarray(matrix), offset=offset, order=1, mode="grid-constant")


def by_cupy(cupy: typing.Any, x: typing.Any, angle: float) -> typing.Any:
    from cupyx.scipy import ndimage

    return by_ndimage(ndimage, x, angle)


def by_scipy(x: np.ndarray, angle: float) -> np.ndarray:
    from scipy import ndimage

    return by_ndimage(ndimage, x, angle)


def _rotation(family: str, h: int, w: int, degrees: int) -> Workload:
    angle = math.radians(degrees)
    return Workload(
        family=family,
        name=f"{degrees} degrees",
        sizes={"degrees": degrees, "h": h, "w": w},
        cost=rotation.cost(h, w),
        make=random_image(h, w),
        rungs=tuple(with_options(rung, angle) for rung in rotation.LADDER),
        libraries={
            "torch.grid_sample": lambda torch, x: by_torch(torch, x, angle),
            "cupy.affine_transform": lambda cupy, x: by_cupy(cupy, x, angle),
        },
        verify=functools.partial(verify, angle=angle),
        probe=probe_of(angle),
        design=family == "rotation" and degrees == DESIGN,
        cache="cold" if h == SIDE else "warm",
        host={"scipy": lambda x: by_scipy(x, angle)} if h < SIDE else {},
        quick=degrees in (0, DESIGN, 90),
    )


WORKLOADS = [
    *(_rotation("rotation", SIDE, SIDE, degrees) for degrees in DEGREES),
    _rotation("turned photograph", *PHOTOGRAPH, DESIGN),
]
