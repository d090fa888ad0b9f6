"""Divisions by numbers that a kernel is given: a multiplication and a shift in place of dozens of instructions.

Numba divides integers in 64 bits. A kernel that computes places from a counter divides several times for each of them,
and may spend more time on that than on what it moves.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda

__all__ = ["Divisor", "divisor", "quotient"]


class Divisor(typing.NamedTuple):
    """A number to divide by, as what `quotient` multiplies by and how far it shifts."""

    times: int
    shift: int


def divisor(d: int, most: int) -> Divisor:
    """Numbers with which `quotient` divides each n from 0 to ``most``, below 2^31, by d.

    n (2^s + e) / (d 2^s), with e from 1 to d, is above n / d by less than 1 / d if n e is below 2^s, so that both have
    the same whole part. Source: Granlund and Montgomery, Division by invariant integers using multiplication (1994).

    >>> times, shift = divisor(7, 1000)
    >>> all(n * times >> shift == n // 7 for n in range(1001))
    True
    """
    shift = (d * max(most, 1)).bit_length()
    return Divisor(2**shift // d + 1, shift)


@cuda.jit(device=True)
def quotient(n, times, shift):
    """n // d by a multiplication: Numba divides in 64 bits, which takes some dozens of instructions."""
    return np.int32(np.int64(n) * times >> shift)
