"""The records of several GPUs, one for each number of ranks: ``halo.json`` has what two measured, ``halo_4.json`` four.

`pmpp.parallel.targets` says what two GPUs have to reach, so theirs have the plain names.
"""

from __future__ import annotations

import typing

from pmpp.lab.measure.record import RecordError
from pmpp.nn import measure

__all__ = ["name_of", "recorded"]


def name_of(name: str, ranks: int) -> str:
    """The record's name, with the number of ranks if there are not two.

    >>> name_of("halo", 2), name_of("halo", 4)
    ('halo', 'halo_4')
    """
    return name if ranks == 2 else f"{name}_{ranks}"


def recorded(name: str, ranks: int, command: str) -> dict[str, typing.Any]:
    """The record ``name`` of so many ranks, of this GPU or of the one that chapters show.

    Raises RecordError if there is none, which names the ``command`` that writes it: a module and its options.
    """
    try:
        return measure.recorded(name_of(name, ranks))
    except RecordError as missing:
        raise RecordError(
            f"no record {name_of(name, ranks)}.json: on {ranks} GPUs run python -m {command}"
        ) from missing
