"""Whose an array is: simulated ranks share a process, but not their memory.

It is known of arrays of the interpreter only. On a GPU addresses are used again, so that they do not tell an owner.
"""

from __future__ import annotations

import bisect
import typing

import numpy as np

from pmpp.parallel.switchboard import CommunicationError, Request
from pmpp.runtime import device
from pmpp.simt.host.arrays import storage_at

__all__ = ["ForeignMemory", "Owners", "UnwrittenMemory", "check_written"]


class ForeignMemory(CommunicationError):
    """A rank passes an array that is not its own. Ranks in processes have no memory in common."""


class UnwrittenMemory(CommunicationError):
    """A rank sends an array that nobody has written to."""


class Owners:
    """Which rank made an array of the interpreter, and which ranks used one that was there before they began.

    Addresses in the interpreter only grow. So it is enough to note the next address at each turn: what begins between
    two notes was made in the turn between.
    """

    def __init__(self) -> None:
        self.begins: list[int] = []  # of the addresses of each turn
        self.turns: list[int] = []  # whose turn it was
        self.used: dict[int, dict[tuple, str]] = {}  # by allocation: which bytes, by whom, whether written; and where

    def turn(self, rank: int) -> None:
        """A rank begins to run."""
        if not device.on_gpu() and self.turns[-1:] != [rank]:
            self.begins.append(device.address(device.empty(1, np.uint8)))
            self.turns.append(rank)

    def owner(self, array: typing.Any) -> int | None:
        """The rank that made the memory; None if it was there before the ranks began."""
        turn = bisect.bisect_right(self.begins, device.address(array)) - 1
        return self.turns[turn] if turn >= 0 else None

    def check(self, request: Request, name: str, array: typing.Any, writes: bool) -> None:
        """Raise `ForeignMemory` if it is another rank's."""
        if array is None or not array.size or device.on_gpu():
            return
        owner, at = self.owner(array), f"{name} of {request.kind} at {request.where}"
        if owner is None:
            self._shared(request, at, array, writes)
        elif owner != request.rank:
            raise ForeignMemory(
                f"rank {request.rank} passes an array that rank {owner} made, as {at}: ranks have no memory in common, "
                "send its elements",
                (request.rank, owner),
            )

    def _shared(self, request: Request, at: str, array: typing.Any, writes: bool) -> None:
        """Memory that was there before: all may read it, as what each has loaded. It is no place to write for two."""
        begin = device.address(array)
        storage = storage_at(begin)
        used = self.used.setdefault(begin - storage[1], {}) if storage else {}
        mine = (begin, begin + array.nbytes, request.rank, writes)
        for (first, last, rank, written), where in used.items():
            if rank != request.rank and (writes or written) and max(first, mine[0]) < min(last, mine[1]):
                raise ForeignMemory(
                    f"rank {request.rank} and rank {rank} have the same memory: {at}, and {where}. It was made before "
                    "the ranks began, so all have this one array: make one in each rank",
                    (request.rank, rank),
                )
        used.setdefault(mine, at)


def check_written(request: Request, array: typing.Any) -> None:
    """Raise `UnwrittenMemory` if nobody has written to any element of an array of the interpreter."""
    found = storage_at(device.address(array)) if array is not None and array.size and not device.on_gpu() else None
    if found is None or found[0].init is None:
        return
    cells, start = found[0].cells, found[1]
    if not cells.init[start // cells.unit : (start + array.nbytes) // cells.unit].any():
        raise UnwrittenMemory(
            f"rank {request.rank} sends memory that nobody has written to: x of {request.kind} at {request.where}",
            (request.rank,),
        )
