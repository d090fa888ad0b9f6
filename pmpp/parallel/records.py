"""The records of several GPUs, one for each number of ranks: ``halo.json`` has what two measured, ``halo_4.json`` four.

`pmpp.parallel.targets` says what two GPUs have to reach, so theirs have the plain names.
"""

from __future__ import annotations

import typing
from pathlib import Path

from pmpp.lab.measure import environment, record
from pmpp.nn import measure

__all__ = ["file_of", "name_of", "recorded"]


def name_of(name: str, ranks: int) -> str:
    """The record's name, with the number of ranks if there are not two.

    >>> name_of("halo", 2), name_of("halo", 4)
    ('halo', 'halo_4')
    """
    return name if ranks == 2 else f"{name}_{ranks}"


def file_of(name: str, ranks: int) -> Path:
    """The file of such a record of this GPU."""
    return record.RECORDED / record.slug(environment.describe_gpu()["name"]) / f"{name_of(name, ranks)}.json"


def recorded(name: str, ranks: int, command: str) -> dict[str, typing.Any]:
    """The record ``name`` of so many ranks, of this GPU or of the one that chapters show.

    Raises `pmpp.lab.measure.record.RecordError` if there is none, with the ``command`` that writes one.
    """
    try:
        return measure.recorded(name_of(name, ranks))
    except record.RecordError as missing:
        name = name_of(name, ranks)
        raise record.RecordError(f"no record {name}.json: on {ranks} GPUs run python -m {command}") from missing
