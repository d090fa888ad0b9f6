"""Judging results: one rule for what is right, and one list of what is wrong with a function that launches kernels.

The contract of a room holds every rung to it on every input of the room (tests/contract/test_rooms.py). The tests of a
room hold rungs and wrong kernels to it on further arguments.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import simt
from pmpp.runtime import device
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, total, watch


def right(result: np.ndarray, expected: typing.Any, allowed: typing.Any, dtype: typing.Any = np.float32) -> bool:
    """Whether ``result`` has that dtype, the shape of ``expected``, and each element within what is allowed.

    What is not finite must be the very same: NaN for NaN, and infinities with their sign. ``allowed`` is an absolute
    error, a number or an array that fits the shape; 0 asks for equality.
    """
    return not difference(result, expected, allowed, dtype)


def difference(result: np.ndarray, expected: typing.Any, allowed: typing.Any, dtype: typing.Any = np.float32) -> str:
    """What is not `right`, in words: the dtype, the shape, or the first wrong element. Empty if the result is right."""
    expected = np.asarray(expected)
    if result.dtype != dtype:
        return f"the result's dtype is {result.dtype}, expected {np.dtype(dtype)}"
    if result.shape != expected.shape:
        return f"the result's shape is {result.shape}, expected {expected.shape}"
    allowed = np.broadcast_to(allowed, expected.shape)
    wrong = _wrong(result, expected, allowed)
    if not wrong.any():
        return ""
    at = tuple(map(int, np.argwhere(wrong)[0]))
    said = f"element {list(at)} is {result[at]}, expected {expected[at]}, with an error of at most {allowed[at]}"
    return f"{said}; {wrong.sum()} of {wrong.size} elements are wrong"


def _wrong(result: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Which elements are not right, as an array of booleans."""
    if result.dtype.kind in "iub":
        return np.asarray(result != expected.astype(result.dtype))  # integers wrap or fit
    finite = np.isfinite(expected)
    wrong = np.zeros(expected.shape, np.bool_)
    with np.errstate(over="ignore"):
        got, same = result[~finite], expected[~finite].astype(result.dtype)
    wrong[~finite] = (got != same) & ~(np.isnan(got) & np.isnan(same))
    wide = np.complex128 if result.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        error = np.abs(result[finite].astype(wide) - expected[finite].astype(wide))
    wrong[finite] = ~(error <= allowed[finite])
    return wrong


class Judged(typing.NamedTuple):
    """``faults``, worst first; the ``result`` on the host, None if the launch was refused; a report of each launch."""

    faults: list[str]
    result: np.ndarray | None
    reports: list[simt.Report]


def judge(
    function: Callable, arguments: tuple, is_right: Callable[[np.ndarray], bool], **options: typing.Any
) -> Judged:
    """Call ``function`` with every launch checked, and list what is wrong, worst first.

    A launch that is refused is "misaligned", or the error's text. Then hazards by kind, and if there are none "wrong
    result" and "input changed" (of NumPy and device arrays); then "float64" arithmetic where no array is of 64 bits.
    """
    given = [device.to_device(one) if isinstance(one, np.ndarray) else one for one in arguments]
    arrays = [one for one in given if hasattr(one, "copy_to_host")]
    before = [one.copy_to_host() for one in arrays]
    try:
        result, reports = watch(function, *given, **options)
    except simt.SimtError as error:
        return Judged(["misaligned" if "misaligned" in str(error) else str(error)], None, [])
    found = hazards(reports)
    if not found:
        same = all(a.tobytes() == one.copy_to_host().tobytes() for a, one in zip(before, arrays, strict=True))
        found += ["wrong result"] * (not is_right(result)) + ["input changed"] * (not same)
    if all(one.dtype not in (np.float64, np.complex128) for one in before):
        found += ["float64"] * (total(reports, "flops_f64") > 0)
    return Judged(found, result, reports)


def faults(function: Callable, arguments: tuple, is_right: Callable[[np.ndarray], bool], **options) -> list[str]:
    """The faults that `judge` finds."""
    with few_counters():
        return judge(function, arguments, is_right, **options).faults
