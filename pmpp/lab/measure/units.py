"""Which units of a GPU a room's best rungs use, and so what its roof is.

A roof has a rate of arithmetic: that of multiply-adds of float32, or that of tensor cores for the type of their
operands. A room on tensor cores says so in its docstring, below its chapter::

    Roof: tensor cores, float16.
"""

from __future__ import annotations

import functools
import re
import typing
from pathlib import Path

from pmpp.lab.measure.record import Entry, Record
from pmpp.lab.measure.roofline import Ceilings

__all__ = ["Roof", "is_roof", "roof", "tensor_types"]

KERNELS = Path(__file__).parents[2] / "kernels"
_SAID = re.compile(r"^Roof: tensor cores, (\w+)\.$", re.MULTILINE)


class Roof(typing.NamedTuple):
    """What a room can reach on a GPU.

    Attributes: ceilings, with the rate of the units that multiply in the room's best rungs; tensor, the type of the
    operands if these are tensor cores, or None for multiply-adds of float32; known, False if that rate of tensor cores
    was not measured, so that the ceilings are those of multiply-adds all the same.
    """

    ceilings: Ceilings
    tensor: str | None
    known: bool


@functools.cache
def tensor_types() -> dict[str, str]:
    """By room, the type of the operands on tensor cores; other rooms are left out. Nothing is imported.

    >>> tensor_types()["warpgroups"]
    'float16'
    """
    found = {}
    for path in sorted(KERNELS.glob("*/*.py")):
        if said := _SAID.search(path.read_text(encoding="utf-8")):
            found[path.parent.name if path.stem == "ladder" else path.stem] = said[1]
    return found


def roof(record: Record, room: str) -> Roof:
    """The roof of a room by the ceilings of the run that measured it."""
    ceilings, tensor = record.ceilings(room), tensor_types().get(room)
    known = tensor is None or tensor in ceilings.tensor
    return Roof(ceilings.on_tensor_cores(tensor) if tensor and known else ceilings, tensor, known)


def is_roof(entry: Entry) -> bool:
    """Whether an entry is a kernel of ours that shows what the units can do, such as ``cuda.add_min``."""
    return entry.kind == "library" and entry.contender.startswith("cuda.")
