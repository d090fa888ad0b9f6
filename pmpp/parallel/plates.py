"""A plate on several GPUs of one process: Jacobi steps, with three ways to pass border rows on.

The inner rows of a plate are shared out. Each GPU has a `Part`: its rows, with one row of halo above and below, in two
arrays that take turns. A way is a function that queues one step on all GPUs and does not wait:

- `whole_exchange`: a kernel computes all rows, and then border rows are copied into the halos of the neighbours.
- `overlapped`: border rows are computed first. While they are copied, another kernel computes the rest.
- `peer_stores`: one kernel. Its border blocks store into the halos of the neighbours, and set flags there.

All give the bits of one GPU. Without a GPU, all parts are on the one device of the interpreter.

Source: PMPP 4e chapter 20; 5e chapter 23.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import typing
from collections.abc import Callable, Sequence

import numpy as np

from pmpp import cuda
from pmpp.kernels.stencil import jacobi
from pmpp.parallel.peers import ask
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number

__all__ = ["WAYS", "Part", "Plates", "overlapped", "peer_stores", "shares", "whole_exchange"]

LIMIT = 1 << 22  # looks at a flag before a block gives up: some seconds on a GPU
LARGEST = float(np.finfo(np.float32).max) / 6  # so that the sum of six cells is finite


def shares(n: int, size: int) -> list[tuple[int, int]]:
    """The first and the last row, plus 1, of each of ``size`` parts of n rows, which differ by one row at most.

    >>> shares(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    bounds = [n * k // size for k in range(size + 1)]
    return list(itertools.pairwise(bounds))


def as_plate(grid: typing.Any, ndim: tuple[int, ...] = (2,)) -> np.ndarray:
    """A grid on the host after a check: a NumPy array of float32 with an inner cell, whose numbers can be averaged."""
    if not isinstance(grid, np.ndarray) or grid.dtype != np.float32 or grid.ndim not in ndim:
        what = f"{grid.dtype} of shape {grid.shape}" if isinstance(grid, np.ndarray) else type(grid).__name__
        dimensions = " or ".join(map(str, ndim))
        raise TypeError(f"grid must be a NumPy array of float32 with {dimensions} dimensions, was {what}")
    if min(grid.shape) < 3:
        raise ValueError(f"grid must have at least 3 cells along each axis, had shape {grid.shape}")
    if not (abs(grid) <= LARGEST).all():  # also NaN
        raise ValueError(f"grid must have finite numbers of at most {LARGEST:.3g}, so that their sums are finite")
    return np.ascontiguousarray(grid)


class Part:
    """The rows of one GPU.

    Attributes: number, of the GPU; arrays, of shape (rows + 2, columns), in turn the old and the new one; seen, for
    each neighbour the arrays as this GPU can use them; flags, change: see `pmpp.kernels.stencil.jacobi`;
    marks: None, or a list of what was queued, each with an event before and one behind.
    """

    def __init__(self, number: int, grid: np.ndarray, sides: int) -> None:
        self.number, self.sides, self.rows = number, sides, len(grid) - 2
        with cuda.gpus[number]:
            self.stream, self.copies = cuda.stream(), cuda.stream()
            self.done, self.sent = cuda.event(timing=False), (cuda.event(timing=False), cuda.event(timing=False))
            self.arrays = [device.to_device(grid) for _ in range(2)]
            self.flags = device.to_device(np.zeros(jacobi.flags_of(grid.shape[1]), np.int32))
            self.change, self.none = device.to_device(np.zeros(1, np.float32)), device.empty(0, np.float32)
            self.aligned = grid.shape[1] % 4 == 0 and all(device.address(one) % 16 == 0 for one in self.arrays)
            cuda.synchronize()
        self.inner = [one[1:-1] for one in self.arrays]
        self.marks: list[tuple[str, typing.Any, typing.Any]] | None = None

    def to_neighbours(self, now: int) -> list[tuple[typing.Any, typing.Any]]:
        """Border rows, each with the halo of the neighbour that it is copied to."""
        new, found = self.arrays[now], []
        if self.sides & jacobi.ABOVE:
            found.append((new[1:2], self.seen[0][now][self.above.rows + 1 :]))
        if self.sides & jacobi.BELOW:
            found.append((new[self.rows : self.rows + 1], self.seen[1][now][:1]))
        return found

    @contextlib.contextmanager
    def span(self, kind: str, stream: typing.Any) -> typing.Iterator[None]:
        """What is queued here lies between two events, if `marks` is a list to put them into."""
        if self.marks is None:
            yield
            return
        self.marks.append((kind, cuda.event(), cuda.event()))
        _, begin, end = self.marks[-1]
        begin.record(stream)
        yield
        end.record(stream)

    def of_peer(self, array: typing.Any) -> typing.Any:
        """An array of another GPU, for kernels of this one: the same addresses."""
        if not device.on_gpu():
            return array
        from pmpp.runtime.array import Array, contiguous

        return Array.at(array.pointer, contiguous(array.shape, array.dtype, self.number), array)


def let_reach(here: int, there: int) -> None:
    """Kernels on GPU ``here`` may use the memory of GPU ``there``. Raises RuntimeError if the machine cannot do it."""
    if here == there:
        return
    with cuda.gpus[there]:
        other = cuda.current_context()
    with cuda.gpus[here]:
        mine = cuda.current_context()
        if not mine.can_access_peer(other.device.id):
            raise RuntimeError(f"GPU {here} cannot reach the memory of GPU {there} on this machine")
        try:
            mine.enable_peer_access(other.handle)
        except Exception as error:
            if "ALREADY_ENABLED" not in str(error):  # by another library, say
                raise


class Plates:
    """A plate of which each GPU has some rows.

    Args:
        grid: a NumPy array of float32 with at least 3 rows and 3 columns. Its border keeps its values.
        devices: the number of a GPU for each part, from above; one may have several parts.
        way: how border rows are passed on, a function of `WAYS`.

    Raises TypeError and ValueError for others, and RuntimeError if neighbours cannot reach each other's memory.

    >>> plates = Plates(np.float32([[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]), [0, 0])
    >>> plates.run(steps=2)
    >>> plates.whole()[1:3, 1]
    array([0.25  , 0.0625], dtype=float32)
    """

    def __init__(self, grid: np.ndarray, devices: Sequence[int], way: Callable | None = None) -> None:
        grid, self.way = as_plate(grid), peer_stores if way is None else way
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(one.__name__ for one in WAYS)}, was {way!r}")
        numbers = [as_integer(f"devices[{k}]", one, 0, len(cuda.gpus) - 1) for k, one in enumerate(devices)]
        if not 1 <= len(numbers) <= len(grid) - 2:
            raise ValueError(f"devices must be at least one and at most a part for each inner row, were {numbers}")
        self.grid, self.step = grid, 0
        for a, b in itertools.pairwise(numbers):
            let_reach(a, b)
            let_reach(b, a)
        last = len(numbers) - 1
        self.parts = [
            Part(number, grid[a : b + 2], (k > 0) * jacobi.ABOVE | (k < last) * jacobi.BELOW)
            for k, (number, (a, b)) in enumerate(zip(numbers, shares(len(grid) - 2, len(numbers)), strict=True))
        ]
        for k, part in enumerate(self.parts):
            part.above = self.parts[k - 1] if part.sides & jacobi.ABOVE else part
            part.below = self.parts[k + 1] if part.sides & jacobi.BELOW else part
            part.seen = [[part.of_peer(one) for one in other.arrays] for other in (part.above, part.below)]
            part.routes = [part.to_neighbours(now) for now in range(2)]
            part.their_flags = [part.of_peer(other.flags) for other in (part.above, part.below)]

    def run(self, steps: int, *, changes: bool = False) -> None:
        """Queue steps on all GPUs, without waiting. The last one notes the largest change, if it is to."""
        for k in range(as_integer("steps", steps, 0)):
            self.way(self, changes and k == steps - 1)
            self.step += 1

    def solve(self, tolerance: float, *, every: int = 50, most: int = 100_000) -> tuple[int, float]:
        """Steps until no cell changes by more than ``tolerance`` in one, or ``most``. Every so many steps it looks.

        Returns the number of steps that were made, and the largest change in the last of them.
        """
        tolerance = as_number("tolerance", tolerance, 0, dtype=np.float64)
        every, most = as_integer("every", every, 1), as_integer("most", most, 1)
        made, largest = 0, float("inf")
        while made < most and largest > tolerance:
            self.run(min(every, most - made), changes=True)
            made, largest = made + min(every, most - made), self.largest_change()
        return made, largest

    def largest_change(self) -> float:
        """That of the last step that noted it. Waits for all GPUs."""
        found = 0.0
        for part in self.parts:
            with cuda.gpus[part.number]:
                part.stream.synchronize()
                found = max(found, float(part.change.copy_to_host()[0]))
        return found

    def synchronize(self) -> None:
        """Wait for all GPUs. Raises RuntimeError if a block waited for a flag in vain."""
        for part in self.parts:
            with cuda.gpus[part.number]:
                part.stream.synchronize()
                part.copies.synchronize()
                if part.flags.copy_to_host()[-1]:
                    raise RuntimeError(f"a block of GPU {part.number} waited in vain for the border of its neighbour")

    def whole(self) -> np.ndarray:
        """The plate, on the host."""
        self.synchronize()
        found = self.grid.copy()
        for part, (a, b) in zip(self.parts, shares(len(found) - 2, len(self.parts)), strict=True):
            with cuda.gpus[part.number]:
                found[a + 1 : b + 1] = part.arrays[self.step % 2].copy_to_host()[1:-1]
        return found


def _noted(part: Part, changes: bool) -> typing.Any:
    """Where the kernel notes the largest change, 0 before it."""
    if changes:
        part.change.copy_to_device(np.zeros(1, np.float32), stream=part.stream)
    return part.change


def _after_the_neighbours(part: Part, was: int) -> None:
    """What is queued on a part's stream from here on comes after what its neighbours have sent in the last step."""
    for other in (part.above, part.below):
        if other is not part:
            other.sent[was].wait(part.stream)


def _send(part: Part, now: int, stream: typing.Any) -> None:
    """Queue copies of border rows into the halos of the neighbours, and an event behind them."""
    with part.span("exchange", stream):
        for source, target in part.routes[now]:
            queue_copy(source, target, stream)
    part.sent[now].record(stream)


def queue_copy(source: typing.Any, target: typing.Any, stream: typing.Any) -> None:
    """Queue a copy from one GPU's array to another's, of one shape and in C order."""
    if device.on_gpu():  # Numba's copy_to_device takes the host longer than the GPUs take for a row
        ask("cuMemcpyAsync", *(ctypes.c_uint64(one.pointer) for one in (target, source)),
            ctypes.c_size_t(source.nbytes), ctypes.c_void_p(int(stream.handle)))  # fmt: skip
    else:
        target.copy_to_device(source, stream=stream)


def whole_exchange(plates: Plates, changes: bool) -> None:
    """All rows, and then the border rows are copied to the neighbours.

    Leaves: while the rows are copied, no GPU computes.
    """
    was, now = plates.step % 2, 1 - plates.step % 2
    for part in plates.parts:
        with cuda.gpus[part.number]:
            _after_the_neighbours(part, was)
            kernel = jacobi.step_for(part.aligned, changes)
            launch = jacobi.strips_of(part.rows, plates.grid.shape[1]), jacobi.THREADS, part.stream
            noted = _noted(part, changes)
            with part.span("inside", part.stream):
                kernel[launch](part.arrays[was], part.arrays[now], noted)
            _send(part, now, part.stream)


def overlapped(plates: Plates, changes: bool) -> None:
    """Border rows first. They are copied on another stream while the rest is computed.

    Leaves: three kernels and two copies for each step and GPU, and the host has to order them by events.
    """
    was, now = plates.step % 2, 1 - plates.step % 2
    columns = plates.grid.shape[1]
    grid, block = jacobi.tiles(1, columns - 2)
    for part in plates.parts:
        with cuda.gpus[part.number]:
            _after_the_neighbours(part, was)
            old, new, noted = part.arrays[was], part.arrays[now], _noted(part, changes)
            with part.span("border", part.stream):
                for row in sorted({1, part.rows}):
                    borders = jacobi.cell_kernel[grid, block, part.stream]
                    borders(old, new, noted if changes else part.none, row, row + 1, 1, columns - 1)
            part.done.record(part.stream)
            part.done.wait(part.copies)
            _send(part, now, part.copies)
            if part.rows > 2:
                launch = jacobi.strips_of(part.rows - 2, columns), jacobi.THREADS, part.stream
                with part.span("inside", part.stream):
                    jacobi.step_for(part.aligned, changes)[launch](part.inner[was], part.inner[now], noted)


def peer_stores(plates: Plates, changes: bool) -> None:
    """One kernel, whose border blocks store into the neighbours' halos and set flags there. The host orders nothing."""
    was, now = plates.step % 2, 1 - plates.step % 2
    for part in plates.parts:
        with cuda.gpus[part.number]:
            kernel = jacobi.peer_step_for(part.aligned, changes)
            launch = jacobi.strips_of(part.rows, plates.grid.shape[1]), jacobi.THREADS, part.stream
            noted = _noted(part, changes)
            with part.span("inside", part.stream):
                kernel[launch](
                    part.arrays[was], part.arrays[now], noted, part.seen[0][now], part.seen[1][now],
                    part.flags, *part.their_flags, part.sides, plates.step, LIMIT,
                )  # fmt: skip


WAYS = (whole_exchange, overlapped, peer_stores)
