"""Barriers and fences: who must arrive, and what they order."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.instructions import BARRIER
from pmpp.simt.machine.lanes import WARP, packed
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.turns import Waits, suspending
from pmpp.simt.values import dtypes

ALL_LANES = 0xFFFFFFFF


def alive(m: Machine) -> np.ndarray:
    """Lanes that have not returned from the kernel, as a (B, T) array."""
    everyone = m.batch.lanes.full.grid()
    return everyone if m.batch.exited is None else everyone & ~m.batch.exited


def arrive(f: Frame, line: int, what: str = "syncthreads()") -> np.ndarray:
    """Check that in each block all threads that still run are here, or none; returns which blocks are."""
    m, mask = f.m, f.mask
    known = m.batch.barrier_known
    if known is not None and known[0] is mask and known[1] is m.batch.exited:
        return known[2]
    active = mask.grid()
    here = active.any(axis=1)
    missing = alive(m) & ~active & here[:, None]
    if missing.any():
        lane = int(np.argmax(missing))
        m.hazard("divergent_barrier", "register", what, line, lane,
                 f"{{who}} does not reach the {what} at which other threads of its block wait")  # fmt: skip
    m.batch.barrier_known = (mask, m.batch.exited, here)
    return here


@suspending
def barrier(f: Frame, call: Any, what: str = "syncthreads()") -> Waits:
    """`cuda.syncthreads()`."""
    m, line = f.m, call.line
    if m.counts is not None:
        m.counts.instruction(line, f.mask, BARRIER)
    if m.turns is not None:
        yield from m.turns.barrier(f.mask, line, what)
        return
    here = arrive(f, line, what)
    if m.counts is not None:
        m.counts.barrier(line, int(np.count_nonzero(here)))
    if m.checks is not None:
        m.checks.block_barrier(m.batch.lanes, here)


barrier.counts_itself = True  # type: ignore[attr-defined]


def voting_barrier(combine: str):
    """`syncthreads_count`, `_and`, `_or`: a barrier that also combines one integer a thread over the block."""

    @suspending
    def vote(f: Frame, call: Any, predicate: Any) -> Waits:
        if predicate.dtype.kind not in "iu":
            raise TypeError(f"the predicate is {predicate.dtype}; Numba takes an integer here: int32(...)")
        what, lanes, voters = f"syncthreads_{combine}()", f.m.batch.lanes, f.mask.grid()
        yes = np.broadcast_to(dtypes.truth(predicate), (lanes.blocks, lanes.width)) & voters
        if f.m.turns is not None:
            if f.m.counts is not None:
                f.m.counts.instruction(call.line, f.mask, BARRIER)
            voters, yes = yield from f.m.turns.vote(f.mask, call.line, what, yes)
        else:
            yield from barrier(f, call, what)
        if combine == "count":
            return yes.sum(axis=1, keepdims=True, dtype=np.int32)
        if combine == "or":
            return yes.any(axis=1, keepdims=True).astype(np.int32)
        return (yes | ~voters).all(axis=1, keepdims=True).astype(np.int32)

    vote.counts_itself = True  # type: ignore[attr-defined]
    return vote


@suspending
def grid_barrier(f: Frame, line: int) -> Waits:
    """`cuda.cg.this_grid().sync()`: all threads of all blocks, also those that have returned."""
    m = f.m
    if m.counts is not None:
        m.counts.instruction(line, f.mask, BARRIER)
    if m.turns is not None:
        yield from m.turns.grid_barrier(f.mask, line)
        return
    missing = m.batch.lanes.full.grid() & ~f.mask.grid()
    if missing.any():
        lane = int(np.argmax(missing))
        ended = m.batch.exited is not None and m.batch.exited.reshape(-1)[lane]
        m.hazard("divergent_barrier", "register", "grid.sync()", line, lane,
                 f"{{who}} {'has returned before' if ended else 'does not reach'} the grid.sync() at which other "
                 "threads wait")  # fmt: skip
    m.settle()
    if m.counts is not None:
        m.counts.barrier(line, m.batch.lanes.blocks)
    if m.checks is not None:
        m.checks.grid_barrier()


def fence(f: Frame, call: Any) -> None:
    """`cuda.threadfence()`: earlier writes become visible to other blocks before later ones."""
    if f.m.checks is not None:
        f.m.checks.fence(f.mask)


def block_fence(f: Frame, call: Any) -> None:
    """`cuda.threadfence_block()`: orders writes as seen by the same block; it is not a barrier."""
    if f.m.checks is not None:
        f.m.checks.block_fence(f.mask)


def members(f: Frame, call: Any, value: Any, what: str) -> np.ndarray | None:
    """The lanes with which each lane takes part in a warp operation: a warp a row, as bits.

    None if those are all lanes of its warp that are here.  Lanes that name one another with one mask form a group, and
    a warp may hold several groups.  Threads that have ended may be named: nobody waits for them.  Everything else is
    undefined on a GPU, and a hazard here: a lane that does not name itself, that names a lane which does not arrive, or
    one that arrives with another mask.
    """
    m, mask = f.m, f.mask
    if value.dtype.kind not in "iu":
        raise TypeError(f"the member mask is {value.dtype}; it must be an integer")
    lanes = m.batch.lanes
    if mask is lanes.full and value.size == 1 and int(np.asarray(value).reshape(-1)[0]) & ALL_LANES == ALL_LANES:
        return None
    known = m.batch.members_known
    alike = value.size == 1 and known is not None and known[0] is mask and known[1] is m.batch.exited
    if alike and known[2] == int(np.asarray(value).reshape(-1)[0]):
        return None
    each = np.ndim(value) > 0 and value.shape[1] > 1  # a mask a lane; otherwise one a block or for all
    named = np.broadcast_to(value.astype(np.int64) & ALL_LANES, (lanes.blocks, lanes.width if each else lanes.warps))
    named = named.reshape(-1, WARP if each else 1)
    here = mask.grid().reshape(-1, WARP)
    arrived = packed(here).astype(np.int64)[:, None]
    waited_for = named & packed(alive(m).reshape(-1, WARP)).astype(np.int64)[:, None]
    of_one_mask = not each or not (here & (named != np.where(here, named, 0).max(axis=1, keepdims=True))).any()
    if of_one_mask and not (here & (waited_for != arrived)).any():
        if value.size == 1:
            m.batch.members_known = mask, m.batch.exited, int(np.asarray(value).reshape(-1)[0])
        return None
    own = np.left_shift(np.int64(1), np.arange(WARP, dtype=np.int64))
    stray = here & (named & own == 0)
    if stray.any():
        m.hazard("divergent_barrier", "register", what, call.line, int(np.argmax(stray)),
                 f"{{who}} calls {what} but its own bit is not set in the member mask")  # fmt: skip
    missing = np.where(here, waited_for & ~arrived, 0)
    if missing.any():
        lane = int(np.argmax(missing != 0))
        absent = lane - lane % WARP + int(np.argmax(missing.reshape(-1)[lane] & own != 0))
        m.hazard("divergent_barrier", "register", what, call.line, absent,
                 f"{{who}} is named in the member mask of {what} but does not reach it")  # fmt: skip
    if not of_one_mask:
        _check_groups(f, call, here, named, what)
    return (named & arrived).astype(np.uint32)


def _check_groups(f: Frame, call: Any, here: np.ndarray, named: np.ndarray, what: str) -> None:
    """Check that lanes which name one another do so with one mask; a warp a row."""
    names = (named[:, :, None] >> np.arange(WARP, dtype=np.int64)) & 1 != 0
    wrong = here[:, :, None] & here[:, None, :] & names & (named[:, :, None] != named[:, None, :])
    if wrong.any():
        lane, partner = divmod(int(np.argmax(wrong)), WARP)
        partner += lane - lane % WARP
        masks, who = named.reshape(-1), f.m.named(*f.m.batch.lanes.threads_at(partner))
        f.m.hazard("divergent_barrier", "register", what, call.line, lane,
                   f"{{who}} names {who} in the member mask of {what}, {int(masks[lane]):#010x}, and that thread calls "
                   f"it with another mask, {int(masks[partner]):#010x}")  # fmt: skip


def warp_barrier(f: Frame, call: Any, mask: Any = None) -> None:
    """`cuda.syncwarp(mask)`: orders memory accesses among the lanes of a warp."""
    groups = members(f, call, np.int64(ALL_LANES) if mask is None else mask, "syncwarp()")
    if f.m.checks is not None:
        f.m.checks.warp_barrier(f.mask, alive(f.m), groups)
