"""Counters: what a profiler on a real GPU would report, counted from the lanes' addresses.

Global memory.  A request is one warp executing one access.  The memory system moves sectors of 32 bytes, so the
traffic of a request is the number of different sectors that its active lanes touch: 4 when 32 lanes read 32
neighbouring float32, 32 when each lane reads its own row of a wide matrix.

Shared memory.  32 banks, each 4 bytes wide, serve one word a cycle each.  Lanes that want different words of one bank
wait for each other; the number of passes is the number of wavefronts.  8-byte accesses are served half a warp at a
time, 16-byte accesses a quarter of a warp at a time.

Instructions are counted at source level: every operator, comparison, load, store and device call is one, and a branch
is one.  A compiler merges, hoists and fuses, so compare requests, sectors, wavefronts and FLOPs with hardware, not
these.
"""

from __future__ import annotations

import numpy as np

from pmpp.simt.lanes import WARP, Lanes, Mask

SECTOR = 32
BANKS = 32
BANK_BYTES = 4

COUNTERS = (
    "global_load_requests", "global_load_sectors", "global_load_bytes",
    "global_store_requests", "global_store_sectors", "global_store_bytes",
    "shared_load_requests", "shared_load_wavefronts",
    "shared_store_requests", "shared_store_wavefronts",
    "atomic_requests", "branches", "divergent_branches",
    "warp_instructions", "thread_instructions",
    "flops", "flops_f64", "barriers",
)  # fmt: skip

_NONE = np.int64(1) << np.int64(62)  # larger than any address: stands for an inactive lane


def _warps_of(of: Lanes, addresses: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Addresses a warp a row, the same for the active lanes (None: all), and how often each row stands for a block."""
    bits = mask.bits
    rows = max(addresses.shape[0], 1 if bits is None else bits.shape[0])
    shape = (rows, of.width)
    spread = np.broadcast_to(addresses, shape).reshape(-1, WARP)
    active = None if bits is None else np.broadcast_to(bits, shape).reshape(-1, WARP)
    return spread, active, of.blocks // rows


def _distinct_a_row(keys: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """Number of different keys among the active lanes of each row."""
    if active is not None:
        keys = np.where(active, keys, _NONE)
    steps = keys[:, 1:] - keys[:, :-1]
    if steps.size and steps.min() < 0:  # lanes out of order: the common case of rising addresses needs no sort
        keys = np.sort(keys, axis=1)
        steps = keys[:, 1:] - keys[:, :-1]
    new = steps != 0
    if active is None:
        return 1 + np.count_nonzero(new, axis=1)
    return (keys[:, 0] != _NONE) + np.count_nonzero(new & (keys[:, 1:] != _NONE), axis=1)


def sectors(addresses: np.ndarray | np.generic, itemsize: int, mask: Mask) -> int:
    """Sectors moved by one access whose lanes start at these byte addresses."""
    of = mask.of
    if addresses.size == 1:  # every lane the same address
        first = int(addresses.reshape(-1)[0])
        return mask.warps * ((first + itemsize - 1) // SECTOR - first // SECTOR + 1)
    if addresses.shape[1] == 1:
        addresses = np.broadcast_to(addresses, (addresses.shape[0], of.width))
    rows, active, repeat = _warps_of(of, addresses, mask)
    if SECTOR % itemsize == 0 and not (addresses % itemsize).any():
        return int(_distinct_a_row(rows // SECTOR, active).sum()) * repeat
    # Elements that straddle sectors: list both ends, and what lies between.
    ends = [np.minimum(rows + step, rows + itemsize - 1) // SECTOR for step in range(0, itemsize + SECTOR - 1, SECTOR)]
    wide = np.concatenate(ends, axis=1)
    return (
        int(_distinct_a_row(wide, None if active is None else np.concatenate([active] * len(ends), axis=1)).sum())
        * repeat
    )


def wavefronts(addresses: np.ndarray | np.generic, itemsize: int, mask: Mask) -> int:
    """Passes through the banks of shared memory for one access whose lanes start at these byte addresses."""
    of = mask.of
    words = max(1, itemsize // BANK_BYTES)
    if addresses.size == 1 or addresses.shape[1] == 1:
        if words == 1:
            return mask.warps
        addresses = np.broadcast_to(addresses, (addresses.shape[0] if addresses.ndim else 1, of.width))
    rows, active, repeat = _warps_of(of, addresses, mask)
    if words == 1 and active is None:
        low = rows.min(axis=1, keepdims=True)
        if int((rows - low).max()) < BANKS * BANK_BYTES - BANK_BYTES + 1 and not (rows % BANK_BYTES).any():
            return rows.shape[0] * repeat  # all within 32 neighbouring words: no two in one bank
    group = WARP // words  # lanes served together
    rows = rows.reshape(-1, group)
    first = rows // BANK_BYTES
    keys = np.concatenate([first + w for w in range(words)], axis=1)
    on = None if active is None else np.concatenate([active.reshape(-1, group)] * words, axis=1)
    return int(_conflict_degree(keys, on).sum()) * repeat


def _conflict_degree(words: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """The most different words that any one bank is asked for, row by row."""
    words = np.sort(words if active is None else np.where(active, words, _NONE), axis=1)
    fresh = np.ones(words.shape, np.bool_)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    fresh &= words != _NONE
    row, column = np.nonzero(fresh)
    loads = np.bincount(row * BANKS + words[row, column] % BANKS, minlength=words.shape[0] * BANKS)
    return loads.reshape(-1, BANKS).max(axis=1)
