"""What is measured of ``grey``: the photograph, and square images up to 16384 x 16384."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.images import grey
from pmpp.lab.measure.arrays import chunks, integers, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 16384
SWEEP = [2**k for k in range(6, 15)]
COLD = 8192  # from here on nothing stays in a cache from one launch to the next
PHOTOGRAPH = (427, 640)  # those of pmpp.lab.teach.data


def brightness(x: typing.Any) -> typing.Any:
    """What the room defines, in NumPy or CuPy."""
    wide = x.astype(np.uint16)  # the largest sum, 65,408, fits
    total = wide[..., 0] * np.uint16(54) + wide[..., 1] * np.uint16(184) + wide[..., 2] * np.uint16(18)
    return ((total + np.uint16(128)) >> np.uint16(8)).astype(np.uint8)


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Every pixel must be the very same: the arithmetic is exact."""
    if tuple(result.shape) != tuple(x.shape[:2]):
        return float("inf"), 0.0

    def error(rows: slice) -> typing.Any:
        return abs(result[rows].astype(np.int16) - brightness(x[rows]).astype(np.int16))

    return worst_of(worst(found := error(rows), 0 * found) for rows in chunks(x.shape[0], 1024))


@functools.cache
def weights_of(torch: typing.Any, device: typing.Any) -> typing.Any:
    """The weights on the device. They are copied there once, and not in each call that is timed."""
    return torch.tensor([54, 184, 18], dtype=torch.int32, device=device)


def by_torch(torch: typing.Any, x: typing.Any) -> typing.Any:
    """The weighted sum in int32, since PyTorch's products with uint8 wrap around."""
    return (((x.to(torch.int32) * weights_of(torch, x.device)).sum(-1, dtype=torch.int32) + 128) >> 8).to(torch.uint8)


def by_cupy(cupy: typing.Any, x: typing.Any) -> typing.Any:
    return brightness(x)


def random_image(*shape: int) -> typing.Callable[[int], tuple]:
    """A seed to an image of random bytes."""

    def make(seed: int) -> tuple:
        if xp() is np:
            return (to_device(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)),)
        # from -128 to 128; negative numbers wrap around to 128 to 255
        return (integers(shape, seed, largest=128, dtype=np.uint8),)

    return make


def _grey(name: str, h: int, w: int) -> Workload:
    return Workload(
        family="grey",
        name=name,
        sizes={"n": h * w, "h": h, "w": w},
        cost=grey.cost(h, w),
        make=random_image(h, w, 3),
        rungs=grey.LADDER,
        libraries={"torch.sum": by_torch, "cupy.multiply": by_cupy},
        verify=verify,
        design=h == DESIGN,
        cache="cold" if h >= COLD else "warm",
        host={"numpy": brightness} if h <= 4096 else {},
        end_to_end=h <= 4096,
        quick=h in (PHOTOGRAPH[0], 64, 512, 2048, DESIGN),
    )


WORKLOADS = [*(_grey(f"{n} x {n}", n, n) for n in SWEEP), _grey("photograph", *PHOTOGRAPH)]
