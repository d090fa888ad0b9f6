"""What is measured of ``pooling_backward``: windows of common networks, with positions and from the input alone."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pmpp.kernels.pooling import ladder as pooling
from pmpp.kernels.pooling import pooling_backward as room
from pmpp.kernels.pooling.windows import pair_of
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.rung import Cost

DESIGN = (256, 64, 112, 112)
TINY = (2, 16, 32, 32)
SWEEP = [(images, 64, 112, 112) for images in (1, 4, 16, 64)]
ON_CPU = 16  # images, at most: NumPy gets these, too
SIDES = (3, 5, 9, 17, 33)  # of windows with stride 1: from bytes to arithmetic
WINDOWS = {"max 3x3": ("max", 3, 2, 1), "max 2x2": ("max", 2), "average 2x2": ("average", 2)}
TOLD = room.scatter, room.gather, room.four_wide, room.patches  # `once` is `gather` where positions are given
# Odd widths, overlapping and large windows, tiny batches, few planes, whole planes.
OTHER: list[tuple[tuple[int, ...], tuple]] = [
    *[((64, 64, 111, 111), ("max", 2)), ((64, 64, 111, 111), ("average", 3, 2, 1)), ((256, 64, 55, 55), ("max", 3, 2))],
    *[((32, 192, 28, 28), ("max", 3, 1, 1)), ((8, 256, 13, 13), ("max", 5, 1, 2)), ((256, 6, 28, 28), ("max", 2))],
    *[((16, 6, 28, 28), ("max", 2)), ((16, 16, 10, 10), ("average", 2)), ((1, 64, 112, 112), ("max", 3, 2, 1))],
    *[((256, 2048, 7, 7), ("average", (7, 7))), ((32, 512, 14, 14), ("average", (14, 14)))],
]


def _parts(x: typing.Any, shape: tuple, kernel: tuple, stride: tuple) -> typing.Iterator[typing.Any]:
    """For each element of a window in turn, the view of padded ``x`` that has this element of every window."""
    for y in range(kernel[0]):
        for z in range(kernel[1]):
            rows = slice(y, y + (shape[2] - 1) * stride[0] + 1, stride[0])
            columns = slice(z, z + (shape[3] - 1) * stride[1] + 1, stride[1])
            yield x[:, :, rows, columns]


def _edges(shape: tuple, places: tuple, kernel: tuple, stride: tuple, padding: tuple) -> list[tuple[int, int]]:
    reach = [(p - 1) * s + k for p, s, k in zip(places[2:], stride, kernel, strict=True)]
    return [(p, max(r - p - n, 0)) for r, p, n in zip(reach, padding, shape[2:], strict=True)]


def _gradient(dy, x, op, kernel, stride, padding) -> typing.Any:
    """The gradient in float64, all windows at once; the winners are found in ``x``, the first of equals."""
    library, shape = xp(), x.shape
    edges = [(0, 0), (0, 0), *_edges(shape, dy.shape, kernel, stride, padding)]
    dx = library.pad(library.zeros(shape), edges)
    if op == "average":
        for part in _parts(dx, dy.shape, kernel, stride):
            part += dy / math.prod(kernel)
    else:
        x = library.pad(x, edges, constant_values=-np.inf)
        best, where = library.full(dy.shape, -np.inf, np.float32), library.zeros(dy.shape, np.int32)
        for number, part in enumerate(_parts(x, dy.shape, kernel, stride)):
            better = part > best
            best, where = library.where(better, part, best), library.where(better, number, where)
        for number, part in enumerate(_parts(dx, dy.shape, kernel, stride)):
            part += library.where(where == number, dy, 0)
    return dx[:, :, padding[0] : padding[0] + shape[2], padding[1] : padding[1] + shape[3]]


def verifier(
    op: str, kernel: tuple, stride: tuple, padding: tuple, dtype: typing.Any = np.float32
) -> Callable[..., tuple[float, float]]:
    """Every element against float64, with the tolerance of `pmpp.kernels.pooling.pooling_backward`."""
    m = room.overlap(kernel, stride)

    def verify(result: typing.Any, dy: typing.Any, x: typing.Any, *told: typing.Any) -> tuple[float, float]:
        if result.shape != x.shape:
            return float("inf"), 0.0
        found = []
        dy, x = dy.astype(np.float32, copy=False), x.astype(np.float32, copy=False)
        for part in chunks(len(x), max(1, 2**24 * len(x) // x.size)):
            options = x[part], op, kernel, stride, padding
            expected, size = _gradient(dy[part], *options), _gradient(abs(dy[part]), *options)
            copied = op == "max" and m == 1
            allowed = 0 * size if copied else (m + (op != "max")) * (2.0**-24 * size + 2.0**-149)
            if np.dtype(dtype) != np.float32 and not copied:
                allowed = allowed + rounding(size + allowed, dtype)
            found.append(worst(abs(result[part] - expected), allowed))
        return worst_of(found)

    return verify


def on_cpu(kernel: tuple, stride: tuple, padding: tuple) -> Callable:
    """The gradient of maxima by NumPy on the CPU, from positions."""

    def back(dy: np.ndarray, x: np.ndarray, positions: np.ndarray, indices: np.ndarray) -> np.ndarray:
        dx = np.pad(
            np.zeros(x.shape, np.float32), [(0, 0), (0, 0), *_edges(x.shape, dy.shape, kernel, stride, padding)]
        )
        for number, part in enumerate(_parts(dx, dy.shape, kernel, stride)):
            part += np.where(positions == number, dy, np.float32(0))
        return dx[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]]

    return back


def _torch(op: str, whole: bool, kernel: tuple, stride: tuple, padding: tuple) -> dict[str, Callable]:
    """PyTorch's own functions for the way back, on the same arrays. Of ``x`` they take the shape."""

    def maxima(torch, dy, x, positions, indices, out):
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(dy, x, kernel, stride, padding, (1, 1), False, indices)

    def means(torch, dy, x, out):
        return torch.ops.aten.avg_pool2d_backward(dy, x, kernel, stride, padding, False, True, None)

    def of_planes(torch, dy, x, out):
        return torch.ops.aten._adaptive_avg_pool2d_backward(dy, x)

    if op == "max":
        return {"torch.max_pool2d_with_indices_backward": maxima}
    return {"torch.adaptive_avg_pool2d_backward": of_planes} if whole else {"torch.avg_pool2d_backward": means}


def _with(rung: typing.Any, told: bool, op: str, *options: typing.Any) -> Callable:
    """The rung with these options. It is given the input only where it has to find the winners itself."""

    def call(dy, x, positions=None, indices=None, *, out=None):
        if told and op == "max":
            return rung(dy, tuple(x.shape), op, *options, positions=positions, out=out)
        return rung(dy, x, op, *options, out=out)

    call.__name__ = rung.name
    return call


def _workload(
    shape: tuple,
    options: tuple,
    rungs: tuple,
    family: str,
    *,
    told: bool = True,
    dtype: typing.Any = np.float32,
    **more: typing.Any,
) -> Workload:
    op, kernel, *rest = options
    kernel = pair_of(kernel)
    stride = pair_of(rest[0]) if rest else kernel
    padding = pair_of(rest[1]) if rest[1:] else (0, 0)
    window = kernel, stride, padding
    places, whole = room.pooled_shape(shape, *window), kernel == shape[2:]

    def make(seed: int) -> tuple:
        x, dy = normal(shape, seed, dtype), normal(places, seed + 1000, dtype)
        if op == "average":
            return dy, x
        positions = pooling.whole_planes(x, op, *window, return_positions=True)[1]
        return dy, x, positions, pooling.whole_planes(x, op, *window, return_indices=True)[1]

    planes, (h, w) = math.prod(shape[:2]), shape[2:]
    name = "x".join(map(str, shape))
    if family.startswith("other"):
        name += " whole" if whole else f" {op} {kernel[0]}x{kernel[1]} s{stride[1]} p{padding[1]}"
    itemsize = np.dtype(dtype).itemsize
    cost = room.cost(planes, h, w, *window, told=1 if told and op == "max" else 0, itemsize=itemsize)
    if not told:
        cost = replace(room.cost(planes, h, w, *window), bytes=cost.bytes) + Cost(0, 4 * math.prod(shape))
    return Workload(
        family=family,
        name=name,
        sizes={"n": math.prod(shape), "images": shape[0], "channels": shape[1], "height": h, "width": w},
        cost=cost,
        make=make,
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(_with(rung, told, op, *window) for rung in rungs),
        libraries=_torch(op, whole, *window),
        verify=verifier(op, *window, dtype),
        design=shape == DESIGN,
        quick=shape in (DESIGN, OTHER[0][0]),
        **more,
    )


def _beside_numpy(shape: tuple) -> Workload:
    """Maxima of 3 x 3; of few enough images also by NumPy, and from host to host."""
    host = {"numpy": on_cpu((3, 3), (2, 2), (1, 1))}
    more = {"host": host, "end_to_end": True} if shape[0] <= ON_CPU else {}
    return _workload(shape, WINDOWS["max 3x3"], TOLD, "max 3x3", **more)


def _in_16_bits(shape: tuple, dtype: np.dtype) -> tuple[Workload, ...]:
    """Every window of common networks: by the best rung."""
    best = room.LADDER[-1:]
    return tuple(_workload(shape, one, best, f"{name}, {dtype}", dtype=dtype) for name, one in WINDOWS.items())


def _of_side(side: int) -> Workload:
    """Means over windows with stride 1: the work grows with the window, and the bytes do not."""
    rungs = room.gather, room.four_wide
    workload = _workload(SWEEP[2], ("average", side, 1, side // 2), rungs, "window sizes")
    return replace(workload, name=f"{side}x{side}", sizes={"side": side} | workload.sizes)


WORKLOADS = [
    *(_workload(DESIGN, window, TOLD, family) for family, window in WINDOWS.items()),
    _workload(DESIGN, WINDOWS["max 3x3"], room.LADDER, "max 3x3 from x", told=False),
    _workload(DESIGN, ("average", DESIGN[2:]), (room.gather, room.four_wide), "global average"),
    *(one for dtype in known(room.SHORT) for shape in (TINY, DESIGN) for one in _in_16_bits(shape, dtype)),
    *(_beside_numpy(shape) for shape in SWEEP),
    *(_of_side(side) for side in SIDES),
    *(_workload(shape, window, room.LADDER[-1:], "other shapes") for shape, window in OTHER),
]
