"""Digits of keys: how a number becomes bits that are ordered as the numbers are, for every radix sort of this subject.

A radix sort compares no keys. It looks at their bits, so these must be ordered as the keys. Of uint32 they are. Of
int32 the sign is the first bit, and set for the lesser keys: it is turned over. Of float32 it is, too; and of a
negative number all other bits are, as a greater magnitude is a lesser number.

Two numbers that are equal must have the same bits, or the sort would not be stable: -0 has those of 0. And all NaNs
have the greatest bits, whatever their sign, because they come last.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda

BITS = 8  # of a digit
BINS = 1 << BITS  # values of a digit
PASSES = 32 // BITS  # digits of a key


def as_digits(x: typing.Any) -> typing.Any:
    """An array of keys as kernels take it that look at digits: whole numbers as uint32, in the same memory."""
    return x.view(np.uint32) if x.dtype == np.int32 else x


@functools.lru_cache(16)
def turn_of(dtype: np.dtype, descending: bool = False) -> np.uint32:
    """The bits to turn over of every key, of uint32, int32 or float32. Descending, it is the others: NaN comes first.

    >>> hex(turn_of(np.dtype(np.int32))), hex(turn_of(np.dtype(np.int32), descending=True))
    ('0x80000000', '0x7fffffff')
    """
    turn = 0 if dtype == np.uint32 else 0x80000000
    return np.uint32(turn ^ 0xFFFFFFFF if descending else turn)


@cuda.jit(device=True)
def ordered(key, turn):
    """The bits of a key, as a uint32 that is less for a key that comes before.

    A uint32 is not less than 0, it is equal to itself, and if it is 0 it has the bits of 0. So of whole numbers the
    compiler leaves out all three questions.
    """
    bits = key.view(np.uint32)
    if key < 0:
        bits = np.uint32(bits ^ 0x7FFFFFFF)
    elif key != key:
        bits = np.uint32(0x7FFFFFFF)  # a NaN: more than infinity
    elif key == 0:
        bits = np.uint32(0)
    return np.uint32(bits ^ turn)


@cuda.jit(device=True)
def byte_of(bits, number):
    """Byte ``number`` of a uint32; byte 0 is the last one. An instruction puts four bytes into a word: here three 0."""
    return np.uint32(cuda.libdevice.byte_perm(bits, 0, 0x4440 | number))


@cuda.jit(device=True)
def digit_of(key, number, turn):
    """Digit ``number`` of a key; digit 0 is the last one."""
    return byte_of(ordered(key, turn), number)
