"""What was recorded and what was counted, in lines of text: for the cells of chapters."""

from __future__ import annotations

import os
import types
from collections.abc import Sequence

from pmpp.lab.measure import record
from pmpp.lab.measure.count import Counted
from pmpp.runtime.rung import room_name

__all__ = ["compared", "recorded", "traffic"]

SECTOR = 32  # bytes


def traffic(counted: Counted, flops: int) -> str:
    """What a call asked for, for each multiply-add of the definition, of a whole warp.

    Args:
        counted: what `lab.count` returned.
        flops: operations of the definition, a multiply-add being two.

    Three numbers: bytes in sectors of global memory, loaded or stored; wavefronts of loads from shared memory; and
    warp instructions. Raises ValueError if there are no operations.
    """
    if flops <= 0:
        raise ValueError(f"flops must be positive, was {flops}")
    found, adds = counted.counters, flops / 64
    asked = SECTOR * (found["global_load_sectors"] + found["global_store_sectors"]) / adds
    wavefronts, instructions = found["shared_load_wavefronts"] / adds, found["warp_instructions"] / adds
    return f"{asked:7.1f} bytes asked{wavefronts:7.3f} wavefronts{instructions:7.1f} instructions"


def _nothing(missing: record.RecordError) -> str:
    """What is missing. A file is named from the repository's root on: the output is the same wherever that lies."""
    return f"There are no times to show: {missing}".replace(f"{record.RECORDED.parents[1]}{os.sep}", "")


def recorded(room: types.ModuleType, *families: str, only: Sequence[str] = ()) -> None:
    """Print the recorded times of a room's rungs and of the libraries, at the design size of some families.

    ``only`` are the names of the rungs to print; all, if there are none. Where nothing was recorded it says so.
    """
    name = room_name(room)
    try:
        kept = record.load(room=name)
        entries = [entry for family in families for entry in kept.design(name, family)]
    except record.RecordError as missing:
        print(_nothing(missing))
        return
    entries = [entry for entry in entries if entry.kind == "library" or not only or entry.contender in only]
    wide = 1 + max((len(entry.workload) for entry in entries), default=0)
    for entry in entries:
        rate = f"{entry.flops / entry.seconds / 1e12:6.1f} TFLOP/s"
        print(f"{entry.workload:{wide}}{entry.contender:16}{entry.median_ms:8.3f} ms {rate}")


def compared(room: types.ModuleType, family: str, contender: str, library: str) -> None:
    """Print the recorded times of one rung beside those of a library, for every workload of a family.

    Where they were not recorded it says so.
    """
    name = room_name(room)
    try:
        kept = record.load(room=name)
        entries = kept.entries(name, family=family)
        if not any(entry.contender == contender for entry in entries):
            raise record.RecordError(f"{kept.where} has no {family!r} by {contender!r} of room {name!r}")
    except record.RecordError as missing:
        print(_nothing(missing))
        return
    rivals = {entry.workload: entry for entry in entries if entry.contender == library}
    for entry in entries:
        if entry.contender == contender and entry.workload in rivals:
            rival, rate = rivals[entry.workload], f"{entry.flops / entry.seconds / 1e12:6.1f} TFLOP/s"
            print(f"{entry.workload:33}{entry.median_ms:7.3f} ms {rate}", end=" ")
            print(f"{entry.bytes / entry.seconds / 1e12:5.2f} TB/s; {library} {rival.median_ms:7.3f} ms,", end=" ")
            print(f"{rival.seconds / entry.seconds:5.2f} x")
