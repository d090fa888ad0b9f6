"""Digits of keys: how a number becomes bits that are ordered as the numbers are, for every radix sort of this subject.

A radix sort compares no keys. It looks at their bits, so these must be ordered as the keys. Of uint32 they are. Of
int32 the sign is the first bit, and set for the lesser keys: it is turned over. Of float32 all bits of a negative
number are turned over, as a greater magnitude is a lesser number.

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


class Order(typing.NamedTuple):
    """The order of keys: the bits to turn over of a key whose first bit is set, and of one whose first bit is not."""

    negative: np.uint32
    positive: np.uint32


@functools.lru_cache(16)
def order_of(dtype: np.dtype, descending: bool = False) -> Order:
    """The order of keys of uint32, int32 or float32. Descending, all bits are turned over once more: NaN comes first.

    >>> order_of(np.dtype(np.int32))
    Order(negative=np.uint32(2147483648), positive=np.uint32(2147483648))
    """
    sign, every = 0x80000000, 0xFFFFFFFF
    negative, positive = {"u": (0, 0), "i": (sign, sign), "f": (every, sign)}[dtype.kind]
    if descending:
        negative, positive = negative ^ every, positive ^ every
    return Order(np.uint32(negative), np.uint32(positive))


@cuda.jit(device=True)
def ordered(key, order):
    """The bits of a key, as a uint32 that is less for a key that comes before.

    A whole number is equal to itself, and has the bits of 0 if it is 0: of it the compiler leaves out both questions.
    """
    bits = key.view(np.uint32)
    if key != key:
        bits = np.uint32(0x7FFFFFFF)  # a NaN: more than infinity
    elif key == 0:
        bits = np.uint32(0)
    return np.uint32(bits ^ (order.negative if bits >> 31 else order.positive))


@cuda.jit(device=True)
def byte_of(bits, number):
    """Byte ``number`` of a uint32; byte 0 is the last one. An instruction puts four bytes into a word: here three 0."""
    return np.uint32(cuda.libdevice.byte_perm(bits, 0, 0x4440 | number))


@cuda.jit(device=True)
def digit_of(key, number, order):
    """Digit ``number`` of a key; digit 0 is the last one."""
    return byte_of(ordered(key, order), number)
