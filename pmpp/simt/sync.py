"""Barriers and fences: who must arrive, and what they order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pmpp.simt import dtypes
from pmpp.simt.lanes import WARP, Mask
from pmpp.simt.machine import BARRIERS, Machine
from pmpp.simt.metrics import BARRIER

if TYPE_CHECKING:
    from pmpp.simt.frames import Frame

ALL_LANES = 0xFFFFFFFF


def alive(m: Machine) -> np.ndarray:
    """Lanes that have not returned from the kernel, as a (B, T) array."""
    everyone = m.lanes.full.grid()
    return everyone if m.exited is None else everyone & ~m.exited


def arrive(f: Frame, line: int, what: str = "syncthreads()") -> np.ndarray:
    """Check that in each block all threads that still run are here, or none; returns which blocks are."""
    m, mask = f.m, f.mask
    known = m.barrier_known
    if known is not None and known[0] is mask and known[1] is m.exited:
        return known[2]
    active = mask.grid()
    here = active.any(axis=1)
    missing = alive(m) & ~active & here[:, None]
    if missing.any():
        lane = int(np.argmax(missing))
        m.hazard("divergent_barrier", "register", what, line, lane,
                 f"{{who}} does not reach the {what} at which other threads of its block wait")  # fmt: skip
    m.barrier_known = (mask, m.exited, here)
    return here


def barrier(f: Frame, call: Any, what: str = "syncthreads()") -> None:
    """`cuda.syncthreads()`."""
    m, line = f.m, call.line
    if m.fibers is not None:
        if m.counting:
            m.instruction(line, f.mask, BARRIER)
        m.fibers.barrier(f, line, what)
        return
    here = arrive(f, line, what)
    if m.counting:
        m.instruction(line, f.mask, BARRIER)[BARRIERS] += int(np.count_nonzero(here))
    if m.checking:
        m.blocks_alike &= bool(here.all())
        rows = np.flatnonzero(here) + m.lanes.first
        m.clock.block_barrier[rows] = m.clock.tick()


barrier.counts_itself = True  # type: ignore[attr-defined]


def voting_barrier(combine: str):
    """`syncthreads_count`, `_and`, `_or`: a barrier that also combines one integer a thread over the block."""

    def vote(f: Frame, call: Any, predicate: Any) -> np.ndarray:
        if predicate.dtype.kind not in "iu":
            raise TypeError(f"the predicate is {predicate.dtype}; Numba takes an integer here: int32(...)")
        what, lanes, voters = f"syncthreads_{combine}()", f.m.lanes, f.mask.grid()
        yes = np.broadcast_to(dtypes.truth(predicate), (lanes.blocks, lanes.width)) & voters
        if f.m.fibers is not None:
            if f.m.counting:
                f.m.instruction(call.line, f.mask, BARRIER)
            voters, yes = f.m.fibers.vote(f, call.line, what, yes)
        else:
            barrier(f, call, what)
        if combine == "count":
            return yes.sum(axis=1, keepdims=True).astype(np.int32)
        if combine == "or":
            return yes.any(axis=1, keepdims=True).astype(np.int32)
        return (yes | ~voters).all(axis=1, keepdims=True).astype(np.int32)

    vote.counts_itself = True  # type: ignore[attr-defined]
    return vote


def grid_barrier(f: Frame, line: int) -> None:
    """`cuda.cg.this_grid().sync()`: all threads of all blocks."""
    m = f.m
    if m.fibers is not None:
        if m.counting:
            m.instruction(line, f.mask, BARRIER)
        m.fibers.grid_barrier(f, line)
        return
    missing = alive(m) & ~f.mask.grid()
    if missing.any():
        m.hazard("divergent_barrier", "register", "grid.sync()", line, int(np.argmax(missing)),
                 "{who} does not reach the grid.sync() at which other threads wait")  # fmt: skip
    m.settle()
    if m.counting:
        m.instruction(line, f.mask, BARRIER)[BARRIERS] += m.lanes.blocks
    if m.checking:
        m.clock.grid_barrier = m.clock.tick()
        m.clock.block_barrier[:] = m.clock.now


def active_warps(m: Machine, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """Block of the launch and warp of the block, for each warp with an active lane."""
    here = mask.grid().reshape(m.lanes.blocks, m.lanes.warps, WARP).any(axis=2)
    rows, warps = np.nonzero(here)
    return rows + m.lanes.first, warps


def fence(f: Frame, call: Any) -> None:
    """`cuda.threadfence()`: earlier writes become visible to other blocks before later ones."""
    m = f.m
    if m.checking:
        who, now = active_warps(m, f.mask), m.clock.tick()
        m.clock.blocks.on_fence(who, now, m.clock.block_barrier)
        m.clock.warps_inside.on_fence(who, now)


def block_fence(f: Frame, call: Any) -> None:
    """`cuda.threadfence_block()`: orders writes as seen by the same block; it is not a barrier."""
    m = f.m
    if m.checking:
        m.clock.warps_inside.on_fence(active_warps(m, f.mask), m.clock.tick())


def members(f: Frame, call: Any, value: Any, what: str) -> Mask:
    """Check a warp operation's member mask: every named lane that still runs must be here, and only those."""
    m, mask = f.m, f.mask
    if value.dtype.kind not in "iu":
        raise TypeError(f"the member mask is {value.dtype}; it must be an integer")
    full = value.size == 1 and int(np.asarray(value).reshape(-1)[0]) & ALL_LANES == ALL_LANES
    if full and mask is m.lanes.full:
        return mask
    lanes = m.lanes
    bit = np.left_shift(np.int64(1), lanes.lane.astype(np.int64))
    named = np.broadcast_to((value.astype(np.int64) & bit) != 0, (lanes.blocks, lanes.width))
    active = mask.grid()
    stray = active & ~named
    if stray.any():
        m.hazard("divergent_barrier", "register", what, call.line, int(np.argmax(stray)),
                 f"{{who}} calls {what} but its own bit is not set in the member mask")  # fmt: skip
    rows = active.reshape(lanes.blocks, lanes.warps, WARP)
    # Lanes of one warp may call the same operation with different masks on different branches: each group waits for
    # its own.
    wanted = named.reshape(rows.shape) & rows.any(axis=2, keepdims=True)
    if value.size == 1 or value.shape[1] == 1:
        missing = wanted.reshape(active.shape) & alive(m) & ~active
        if missing.any():
            m.hazard("divergent_barrier", "register", what, call.line, int(np.argmax(missing)),
                     f"{{who}} is named in the member mask of {what} but does not reach it")  # fmt: skip
    return mask


def warp_barrier(f: Frame, call: Any, mask: Any = None) -> None:
    """`cuda.syncwarp(mask)`: orders memory accesses among the lanes of a warp."""
    m = f.m
    members(f, call, np.int64(ALL_LANES) if mask is None else mask, "syncwarp()")
    if m.checking:
        here = f.mask.grid().reshape(m.lanes.blocks, m.lanes.warps, WARP).any(axis=2)
        m.blocks_alike &= bool((here == here[0]).all())
        rows, lanes = np.nonzero(f.mask.grid())
        m.clock.warp_barrier(rows + m.lanes.first, lanes)
