"""All ranks of an all-reduce in one launch, on one device: to try kernels where there are no several GPUs.

The grid has a second extent, and block (b, k) is block b of rank k. The kernels are those that run on several GPUs. A
GPU has to hold all blocks at once, since they wait for one another. The interpreter lets blocks take turns.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.common import peers
from pmpp.runtime import device

__all__ = ["Ranks"]


class Ranks:
    """The memory of ``size`` ranks, which stays from one launch to the next.

    Args:
        size: how many ranks.
        dtype: of their arrays, float32 or int32.
        room: elements that go as packets at most.
        area: elements of a piece of the staged kernel and of the one that sends; a multiple of 4.
        grid, block: blocks of a rank at most, and their threads, of which there have to be as many as ranks.
        patience: how often a thread looks at a signal.

    Attributes: lost, a device array: 1 plus the number of a rank that did not come.

    >>> ranks = Ranks(3)
    >>> ranks.packets(np.float32([[1, 2], [10, 20], [100, 200]]))
    array([[111., 222.],
           [111., 222.],
           [111., 222.]], dtype=float32)
    """

    def __init__(
        self,
        size: int,
        dtype: typing.Any = np.float32,
        *,
        room: int = 256,
        area: int = 64,
        grid: int = 2,
        block: int = 32,
        patience: int = 100_000,
    ) -> None:
        self.size, self.dtype, self.room, self.area = size, np.dtype(dtype), room, area
        self.grid, self.block, self.patience = grid, block, patience
        zeros = {"boxes": (2 * size * room, np.int64), "flags": (size * peers.PLACES, np.int64)}
        made = {name: [device.to_device(np.zeros(*one)) for _ in range(size)] for name, one in zeros.items()}
        made["areas"] = [device.empty(2 * max(1, size - 1) * area * grid, self.dtype) for _ in range(size)]
        self._kept = made
        self.boxes, self.flags, self.areas = (addresses(made[name]) for name in ("boxes", "flags", "areas"))
        self.packet_rounds, self.rounds = (device.to_device(np.zeros(size * peers.PLACES, np.int64)) for _ in range(2))
        self.lost = device.to_device(np.zeros(1, np.int32))

    def _begin(self, parts: np.ndarray, shift: int) -> tuple[int, int, typing.Any, typing.Any]:
        """Elements of a rank, and between ranks; the ranks' arrays one after another; their results, poisoned."""
        n = parts.shape[1]
        pitch = -(-n // 4) * 4
        padded = np.zeros((self.size, pitch), self.dtype)
        padded[:, :n] = parts
        whole = device.to_device(np.concatenate([np.zeros(shift, self.dtype), padded.reshape(-1)]))
        poison = np.full(self.size * pitch, np.nan if self.dtype.kind == "f" else -1, self.dtype)
        return n, pitch, whole[shift:], device.to_device(poison)

    def _results(self, out: typing.Any, n: int, pitch: int) -> np.ndarray:
        return device.to_host(out).reshape(self.size, pitch)[:, :n]

    def packets(self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None) -> np.ndarray:
        """What each rank gets, by rows, from ``parts``, an array of the ranks' numbers by rows.

        ``kernel``: another one with the arguments of `peers.packets_kernel`.
        """
        n, pitch, x, out = self._begin(parts, 0)
        (kernel or peers.packets_kernel)[(-(-n // self.block), self.size), self.block](
            x, out, peers.OPS[op], self.boxes, self.room, self.packet_rounds, 0, pitch, n, self.patience, self.lost
        )
        return self._results(out, n, pitch)

    def staged(self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None, shift: int = 0) -> np.ndarray:
        """The same through areas. ``shift``: elements by which the arrays miss a multiple of 16 bytes."""
        n, pitch, x, out = self._begin(parts, shift)
        grid = min(self.grid, -(-n // self.area)), self.size
        (kernel or peers.staged_kernel)[grid, self.block](
            x, out, peers.OPS[op], self.areas, self.area, self.flags, self.rounds, 0, pitch, n, int(shift % 4 == 0),
            self.patience, self.lost,
        )  # fmt: skip
        return self._results(out, n, pitch)

    def one_shot(self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None) -> np.ndarray:
        """The same by loads from all arrays."""
        n, pitch, x, out = self._begin(parts, 0)
        (kernel or peers.one_shot_kernel)[(self.grid, self.size), self.block](
            x, out, peers.OPS[op], self._rows(x, pitch), self.flags, self.rounds, 0, pitch, n, self.patience, self.lost
        )
        return self._results(out, n, pitch)

    def two_shot(
        self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None, in_place: bool = False
    ) -> np.ndarray:
        """The same by loads from all arrays and stores to all results, which may be the arrays."""
        n, pitch, x, out = self._begin(parts, 0)
        out = x if in_place else out
        (kernel or peers.two_shot_kernel)[(self.grid, self.size), self.block](
            x, peers.OPS[op], self._rows(x, pitch), self._rows(out, pitch), self.flags, self.rounds, 0, n,
            self.patience, self.lost,
        )  # fmt: skip
        return self._results(out, n, pitch)

    def sent(self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None) -> np.ndarray:
        """The same by stores into boxes of the others."""
        n, pitch, x, out = self._begin(parts, 0)
        (kernel or peers.sent_kernel)[(min(self.grid, -(-n // self.area)), self.size), self.block](
            x, out, peers.OPS[op], self.areas, self.area, self.flags, self.rounds, 0, pitch, pitch, self.patience,
            self.lost,
        )  # fmt: skip
        return self._results(out, n, pitch)

    def copied(
        self, parts: np.ndarray, op: str = "sum", kernel: typing.Any = None, in_place: bool = False
    ) -> np.ndarray:
        """The same by copies into boxes of the others, in pieces of ``area`` elements, between launches."""
        n, pitch, x, out = self._begin(parts, 0)
        out = x if in_place else out
        self.meet()
        for piece, begin in enumerate(range(0, pitch, self.area)):
            count, half = min(self.area, pitch - begin), (piece & 1) * (self.size - 1) * self.area
            for rank in range(self.size):
                mine = x[rank * pitch + begin : rank * pitch + begin + count]
                for peer in range(self.size):
                    if peer != rank:
                        slot = half + (rank - (rank > peer)) * self.area
                        self._kept["areas"][peer][slot : slot + count].copy_to_device(mine)
            self.meet()
            (kernel or peers.arrived_kernel)[(self.grid, self.size), self.block](
                x[begin:], out[begin:], peers.OPS[op], self.areas, self.area, half, 0, pitch, count
            )
        return self._results(out, n, pitch)

    def meet(self) -> None:
        """All ranks meet, and nothing else."""
        peers.meet_kernel[(1, self.size), self.block](self.flags, self.rounds, 0, self.patience, self.lost)

    def _rows(self, x: typing.Any, pitch: int) -> tuple[int, ...]:
        """The addresses of the ranks' arrays."""
        return tuple([device.address(x) + rank * pitch * self.dtype.itemsize for rank in range(self.size)])


def addresses(arrays: list) -> tuple[int, ...]:
    """Where arrays lie."""
    return tuple([device.address(array) for array in arrays])
