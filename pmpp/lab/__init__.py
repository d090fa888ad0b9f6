"""The instruments: rooms, counts, timing, rooflines, plots, exercises. No instrument imports a room."""

from __future__ import annotations

import typing

__all__ = ["count"]


def __getattr__(name: str) -> typing.Any:
    # At first use, so that importing one instrument does not import them all.
    if name == "count":
        from pmpp.lab.measure.count import count

        globals()["count"] = count
        return count
    raise AttributeError(f"module 'pmpp.lab' has no attribute {name!r}")
