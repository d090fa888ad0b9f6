"""What is measured of ``stencil``: a step of each order in two and three dimensions, several steps, odd shapes."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.stencil import ladder as room
from pmpp.lab.measure.arrays import normal, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

PLANE, SPACE = (8192, 8192), (512, 512, 512)
WEIGHTS = (0.4, 0.1, -0.05, 0.02, 0.01)  # sizes of the same order at all distances, so that no fault hides
STEPS = (1, 2, 3, 6, 12, 24)
SIDES = (256, 1024, 4096)  # of squares, for the curve over sizes
OTHER = [((8191, 8193), 1), ((2**22, 33), 2), ((300, 301, 302), 3), ((33, 65), 1)]


@functools.lru_cache(maxsize=16)
def mask_of(ndim: int, order: int) -> np.ndarray:
    """The coefficients as a dense mask, for libraries that know only these."""
    mask = np.zeros((2 * order + 1,) * ndim, np.float32)
    for axis in range(ndim):
        for d in range(-order, order + 1):
            mask[tuple(order + d * (axis == i) for i in range(ndim))] = WEIGHTS[abs(d)]
    return mask


def stepped(x: typing.Any, coefficients: tuple, order: int, steps: int) -> typing.Any:
    """The room's reference by the library in which the array is, in float64 and without copies of the whole grid."""
    grid = x.astype(np.float64)
    inner = tuple(slice(order, n - order) for n in x.shape)
    for _ in range(steps):
        total = coefficients[0] * grid[inner]
        for axis in range(x.ndim):
            for d in range(1, order + 1):
                for shift in (-d, d):
                    near = list(inner)
                    near[axis] = slice(order + shift, x.shape[axis] - order + shift)
                    total += coefficients[d] * grid[tuple(near)]
        grid[inner] = total
    return grid


def _verify(order: int, steps: int) -> typing.Callable:
    """Every cell, with the tolerance of the room."""
    weights = tuple(float(np.float32(c)) for c in WEIGHTS[: order + 1])

    def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        if result.shape != x.shape:
            return float("inf"), 0.0
        exact = stepped(x, weights, order, steps)
        rounds = steps * (2 * x.ndim + 2 * order + 1) * 2.0**-24
        bound = rounds * stepped(abs(x), tuple(map(abs, weights)), order, steps)
        return worst(abs(result - exact), bound)

    return verify


def _with_border(result: typing.Any, x: typing.Any, order: int) -> typing.Any:
    """A library's convolution with the cells of the border set to those of x, which are few."""
    for axis in range(x.ndim):
        for side in (slice(0, order), slice(-order, None)):
            at = (slice(None),) * axis + (side,)
            result[at] = x[at]
    return result


def _torch(order: int) -> typing.Callable:
    @functools.cache  # copied once, and not while the time is taken
    def mask(torch: typing.Any, ndim: int) -> typing.Any:
        return torch.from_numpy(mask_of(ndim, order)).cuda()[None, None]

    def convolved(torch: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        torch.backends.cudnn.benchmark = True  # try all algorithms at the first call, and keep the fastest
        torch.backends.cudnn.allow_tf32 = False
        convolve = torch.nn.functional.conv2d if x.ndim == 2 else torch.nn.functional.conv3d
        return _with_border(convolve(x[None, None], mask(torch, x.ndim), padding=order)[0, 0], x, order)

    return convolved


def _cupy(order: int) -> typing.Callable:
    @functools.cache
    def mask(cupy: typing.Any, ndim: int) -> typing.Any:
        return cupy.asarray(mask_of(ndim, order))

    def correlated(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        from cupyx.scipy import ndimage

        return _with_border(ndimage.correlate(x, mask(cupy, x.ndim), output=out), x, order)

    return correlated


def sliced(x: np.ndarray) -> np.ndarray:
    """One step of order 1 by NumPy on the CPU: slices of the grid, added up in float32."""
    c, d = (np.float32(w) for w in WEIGHTS[:2])
    out = x.copy()
    out[1:-1, 1:-1] = c * x[1:-1, 1:-1] + d * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
    return out


def _stepping(rung: typing.Any, order: int, steps: int) -> typing.Callable:
    def call(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(x, WEIGHTS[: order + 1], steps, out=out)

    call.__name__ = rung.name
    return call


def _workload(family: str, shape: tuple[int, ...], order: int, steps: int = 1, rungs: tuple = (), **more) -> Workload:
    sizes = {"steps": steps} if family == "steps" else {"order": order} if "orders" in family else {"n": shape[0]}
    name = "x".join(map(str, shape))
    if family == "steps":
        name = f"{steps} steps"
    elif "orders" in family:
        name = f"order {order}"
    return Workload(
        family=family,
        name=name,
        sizes=sizes | {f"n{axis}": n for axis, n in enumerate(shape)} | {"order": order, "steps": steps},
        cost=room.cost(*shape, order=order, steps=steps),
        make=lambda seed: (normal(shape, seed),),
        output=lambda: device.empty(shape, np.float32),
        rungs=tuple(_stepping(rung, order, steps) for rung in rungs or room.LADDER[:-1]),
        verify=_verify(order, steps),
        **more,
    )


def _one_step(family: str, shape: tuple[int, ...], order: int) -> Workload:
    libraries = {f"torch.conv{len(shape)}d": _torch(order), "cupy.ndimage.correlate": _cupy(order)}
    design = order == (1 if len(shape) == 2 else 4)
    return _workload(family, shape, order, libraries=libraries, design=design, quick=design)


WORKLOADS = [
    *(_one_step("orders", PLANE, order) for order in (1, 2, 3, 4)),
    *(_one_step("orders, in space", SPACE, order) for order in (4, 1, 2, 3)),
    *(_workload("steps", PLANE, 1, n, room.LADDER[-2:], design=n == STEPS[-1], quick=n == STEPS[-1]) for n in STEPS),
    *(
        _workload(
            "squares", (n, n), 1, host={"numpy": sliced}, end_to_end=True, cache="cold" if n == SIDES[-1] else "warm"
        )
        for n in SIDES
    ),
    *(_workload("other shapes", shape, order, rungs=room.LADDER[-2:-1]) for shape, order in OTHER),
]
