"""What can be plugged into a machine: observers of what it does, and the scheduler by whose turns it works.

The machine imports no observer.  Whoever launches a kernel decides what is looked at, makes the observers and hands
them over (host/launch.py); where there is none, nothing is told.  An observer sees everything and changes nothing that
a kernel computes, so results never depend on which are there.

    Counts   counters by source line, as a profiler's            level "count" and "check"
    Checks   races, and reads of what nobody wrote               level "check"
    Steps    each access and each statement, in order            trace=True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pmpp.simt.machine.instructions import INTEGER
from pmpp.simt.machine.lanes import Lanes, Mask
from pmpp.simt.machine.storage import Storage
from pmpp.simt.machine.turns import Waits
from pmpp.simt.values.dtypes import Value


class Counts(Protocol):
    """Told of each instruction.  Lines are those of the source under way: it charges them to the report's file."""

    def instruction(self, line: int, mask: Mask, kind: int = INTEGER) -> None:
        """One instruction of the active lanes, of a class of the instruction mix."""

    def flops(self, line: int, mask: Mask, dtype: np.dtype, each: int = 1, kind: int | None = None) -> None:
        """One instruction that is `each` floating-point operations a lane if `dtype` is floating."""

    def branch(self, line: int, mask: Mask, taken: Mask | None, not_taken: Mask | None) -> None:
        """One test, and the lanes that go either way."""

    def access(
        self,
        kind: str,
        line: int,
        at: Value,
        mask: Mask,
        width: int,
        storage: Storage,
        name: str,
        *,
        of: str = "access",
    ) -> None:
        """One "load" or "store" of `width` bytes a lane at these positions of the storage.

        of    "access", "matrix": rows of matrices, or "copy": an asynchronous copy, whose instruction is told by itself
        """

    def tensor(self, line: int, mask: Mask, operations: int) -> None:
        """One instruction of a tensor core that is so many operations a warp."""

    def bulk(
        self, line: int, mask: Mask, sectors: np.ndarray, size: int, storage: Storage, name: str, kind: str
    ) -> None:
        """One thread's "load" of a tile out of these sectors of global memory, `size` bytes with what lies outside.

        Or its "store" into them, `size` bytes without it.
        """

    def atomic(self, line: int, at: Value, positions: np.ndarray, mask: Mask, storage: Storage, name: str) -> None:
        """One atomic: the element of each lane, and the active lanes' positions in the flattened storage."""

    def atomic_alone(self, line: int, place: int, mask: Mask, storage: Storage, name: str) -> None:
        """The same of a single lane, on an element of global memory."""

    def now(self, updated: list[np.ndarray]) -> tuple:
        """What has been counted so far, for `back_to`; only these arrays may be updated by atomics until then."""

    def back_to(self, before: tuple) -> None:
        """Forget what was counted since: it will be told again."""

    def since(self, before: tuple) -> list[tuple[int, list[int]]]:
        """What was counted since `now`, if no memory was touched."""

    def again(self, counted: list[tuple[int, list[int]]], times: int) -> None:
        """That has happened so many times more."""

    def barrier(self, line: int, blocks: int) -> None:
        """So many blocks have passed a barrier (its instruction is told by itself)."""

    def batch_ends(self) -> None:
        """The blocks under way have ended: their shared memory is another block's next time."""


class Checks(Protocol):
    """Told of each access before it happens, and of whatever orders accesses; reports hazards to the machine."""

    def read(self, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, of_mbarrier: bool = False) -> None:
        """A load, or what an instruction does on an mbarrier."""

    def postpone(self) -> None:
        """The accesses to come are of several rounds of a loop; they are told again, in the order of the rounds."""

    def postponed(self) -> tuple[list[tuple], list[tuple]]:
        """These loads, and the other accesses; those to come happen now."""

    def can_be_told_at_once(self, reads: list[tuple]) -> bool:
        """Whether it makes no difference in which order such loads are told, but for those of the last round."""

    def read_in_turn(self, mask: Mask, storage: Storage, places: list[Value], name: str, line: int) -> None:
        """Loads by these lanes from each of these places, one after the other."""

    def read_by_rounds(self, reads: list[tuple], ends: list[int]) -> None:
        """Such loads of lanes that follow one another, round after round."""

    def can_write_together(self, writes: list[tuple], before: dict[Storage, np.ndarray]) -> bool:
        """Whether no such store or atomic, all of which have happened, is a hazard; `before`: what the arrays held."""

    def write_together(self, writes: list[tuple]) -> None:
        """These stores and atomics."""

    def write(
        self, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int, *, of_mbarrier: bool = False
    ) -> bool:
        """A store; whether several lanes store to one element, so that `written` is to be told afterwards.

        `of_mbarrier`: it initialises one.
        """

    def last_write(self, storage: Storage, byte: int) -> tuple[int, int] | None:
        """The line of the last store or atomic to a byte of global memory, and the thread's id; None without one."""

    def written(self, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int) -> None:
        """That store has happened."""

    def update(self, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, replaces: bool) -> None:
        """An atomic; whether it replaces what is there, and nobody asks what that was."""

    def copy_begins(self, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
        """An asynchronous copy to these elements is under way from now on."""

    def copy_lands(self, mask: Mask, storage: Storage, at: Value, line: int) -> None:
        """It has arrived, as a store of the thread that has waited for it."""

    def source_was_read(self, mask: Mask, storage: Storage, at: Value, line: int) -> None:
        """And until now it may have read these elements."""

    def tiles_read(
        self, storage: Storage, blocks: np.ndarray, at: np.ndarray, warps: np.ndarray, name: str, line: int,
        *, again: bool = False,
    ) -> None:  # fmt: skip
        """Warps multiply tiles in shared memory: a row of positions for each; `again`: they have waited for it now."""

    def box_read(
        self, storage: Storage, block: int, at: np.ndarray, lane: int, name: str, line: int, *, again: bool = False
    ) -> None:
        """A thread's bulk store reads shared memory at these positions; `again`: it has waited for it now."""

    def box_written(
        self, storage: Storage, halves: np.ndarray, differs: np.ndarray, lane: int, name: str, line: int
    ) -> None:
        """And writes to these 16-bit numbers of global memory; which of them will be others than before."""

    def tile_begins(
        self, target: tuple[Storage, int, np.ndarray], source: tuple[Storage, np.ndarray, np.ndarray], lane: int,
        names: tuple[str, str], line: int, key: tuple,
    ) -> None:  # fmt: skip
        """A thread's bulk copy to these positions of a block is under way, which an mbarrier counts.

        The source is a matrix, which numbers of a box lie inside, and where all of them are.
        """

    def map_read(self, storage: Storage, at: int, words: int, lane: int, name: str, line: int) -> None:
        """A thread's bulk copy, or store, uses the tensor map of so many words that lies there."""

    def store_left(self, lane: int, name: str, line: int) -> None:
        """A thread has ended and not waited for a bulk store, of this line."""

    def block_ends(self, block: int) -> None:
        """All threads of a block that has used an engine have ended."""

    def shows(self, mask: Mask) -> None:
        """What these lanes have written is there for products and bulk copies."""

    def arrives(self, mask: Mask, key: tuple) -> None:
        """Lanes have arrived at an mbarrier."""

    def completes(self, blocks: np.ndarray, key: tuple) -> None:
        """A phase of an mbarrier of these blocks has ended."""

    def has_waited(self, mask: Mask, key: tuple) -> None:
        """Lanes have seen that it ended."""

    def batch_begins(self) -> None:
        """Other blocks are under way."""

    def block_barrier(self, lanes: Lanes, here: np.ndarray) -> None:
        """A barrier in those blocks of `lanes` for which `here` holds."""

    def warp_barrier(self, mask: Mask, alive: np.ndarray, groups: np.ndarray | None) -> None:
        """A `syncwarp` of these lanes, each with its group, a warp a row, as bits; None: with all of its warp."""

    def grid_barrier(self) -> None:
        """A barrier of the whole grid."""

    def cluster_barrier(self, lanes: Lanes, here: np.ndarray, running: np.ndarray) -> None:
        """A barrier of whole clusters, in those blocks of `lanes` for which `here` holds; which blocks still run."""

    def maps(self, storage: Storage) -> None:
        """From now on blocks of a cluster may use one another's copy of an array in shared memory."""

    def clusters_end(self, lanes: Lanes) -> None:
        """All blocks of these lanes, whole clusters, have ended."""

    def fence(self, mask: Mask) -> None:
        """A fence between blocks."""

    def block_fence(self, mask: Mask) -> None:
        """A fence within blocks."""


class Steps(Protocol):
    """Told of each access and each statement, with the line of the report's file."""

    def access(
        self, kind: str, line: int, addresses: np.ndarray, mask: Mask, width: int, storage: Storage, name: str
    ) -> None:
        """One "load", "store" or "atomic"; addresses are bytes from the start of the storage."""

    def step(self, line: int, mask: Mask, taken: Mask | None = None, *, branch: bool = False) -> None:
        """One statement, or one test and the lanes that go on inside."""

    def close(self) -> None:
        """The launch is over."""


class Turns(Protocol):
    """The scheduler, where threads take turns: how a thread gives its turn away (see scheduler.py and turns.py)."""

    def idle(
        self, line: int, *, frozen: bool, endless: bool, still: bool = False, why: Callable[[], str] | None = None
    ) -> Waits:
        """A loop has gone round without writing anything, or a thread waits elsewhere, as `why` says."""

    def pause(self, line: int) -> Waits:
        """A loop has gone round many times."""

    def barrier(self, mask: Mask, line: int, what: str) -> Waits:
        """A block-wide barrier."""

    def vote(self, mask: Mask, line: int, what: str, yes: np.ndarray) -> Waits:
        """A barrier that collects a vote; its result is the voters of the whole block, and what they voted."""

    def cluster_barrier(self, mask: Mask, line: int) -> Waits:
        """`cluster_sync()`."""

    def grid_barrier(self, mask: Mask, line: int) -> Waits:
        """`grid.sync()`."""
