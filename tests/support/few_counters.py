"""Counters for checked launches of which nobody reads more than whether there was float64, or an atomic."""

from __future__ import annotations

import typing
from unittest import mock

import numpy as np

from pmpp.simt.host import launch
from pmpp.simt.observe.counters import COUNTERS, Counters

COUNTED = "thread_instructions", "flops_f64", "atomic_requests"
THREAD_INSTRUCTIONS, FLOPS_F64, ATOMICS = map(COUNTERS.index, COUNTED)
OF_64_BITS = {np.dtype(kind).num for kind in (np.float64, np.complex128)}


class FewCounters(Counters):
    """Counts threads' instructions, operations in float64 and atomics: what `judge`, a budget and rooms ask for.

    Classes of instructions, warps, branches, sectors and banks are not counted: that takes an eighth of the time.
    """

    def __init__(self, m: typing.Any) -> None:
        super().__init__(m)
        self.lines[0] = [0] * len(COUNTERS)
        self.rest = [0] * len(COUNTERS)  # to which the caller of `instruction` may add

    def instruction(self, line: int, mask: typing.Any, kind: int = 0) -> list[int]:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes
        return self.rest

    def flops(self, line: int, mask: typing.Any, dtype: np.dtype, each: int = 1, kind: int | None = None) -> None:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes
        if dtype.num in OF_64_BITS:
            self.lines[0][FLOPS_F64] += each * mask.lanes

    def branch(self, line: int, mask: typing.Any, *ways: typing.Any) -> None:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes

    def access(
        self, kind: str, line: int, at: typing.Any, mask: typing.Any, *told: typing.Any, of: str = "access"
    ) -> None:
        if of != "copy":  # the instruction of such a copy is counted by itself
            self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes

    def atomic(self, line: int, at: typing.Any, positions: typing.Any, mask: typing.Any, *told: typing.Any) -> None:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes
        self.lines[0][ATOMICS] += mask.warps

    def atomic_alone(self, line: int, place: int, mask: typing.Any, *told: typing.Any) -> None:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes
        self.lines[0][ATOMICS] += 1

    def bulk(self, line: int, mask: typing.Any, *told: typing.Any) -> None:
        self.lines[0][THREAD_INSTRUCTIONS] += mask.lanes


def few_counters() -> typing.Any:
    """A context, and a decorator, in which launches count no more than `FewCounters`."""
    return mock.patch.object(launch, "Counters", FewCounters)
