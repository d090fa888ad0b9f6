"""Wrong versions of `pairs` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.sort import ladder, pairs
from tests.support.wrong import WrongRung


def named(name, sort):
    """``sort(p)``, called as a rung is."""

    def sorted_pairs(keys, values):
        p = pairs.arguments(keys, values)
        if not p.done:
            sort(p)
        return p.result

    sorted_pairs.__name__ = name
    return sorted_pairs


def splits(name, kernel, numbers=range(32)):
    """`one_bit` with another kernel that moves pairs, or other bits."""

    def sort(p):
        n = p.x.size

        def one_pass(number, source, target):
            ones = cuda.device_array(n, np.int32)
            ladder.bit_kernel[blocks(n, 256), 256](source.keys, numbers[number], p.turn, ones)
            before = ladder.scan.vectorised(ones, exclusive=True)
            kernel[blocks(n, 256), 256](*source, ones, before, *target)

        pairs.by_passes(p, len(numbers), one_pass)

    return named(name, sort)


@cuda.jit
def ones_turned_around(keys, values, ones, before, keys_out, values_out):
    """Keys with a one go to the end, the first of them last: right if no keys are equal in any bit."""
    i = np.int64(cuda.grid(1))
    if i < keys.size:
        at = keys.size - 1 - before[i] if ones[i] else i - before[i]
        keys_out[at], values_out[at] = keys[i], values[i]


@cuda.jit
def values_stay(keys, values, ones, before, keys_out, values_out):
    i = np.int64(cuda.grid(1))
    if i < keys.size:
        zeros = keys.size - (before[keys.size - 1] + ones[keys.size - 1])
        at = zeros + before[i] if ones[i] else i - before[i]
        keys_out[at], values_out[i] = keys[i], values[i]


@cuda.jit
def zeros_not_counted(keys, values, ones, before, keys_out, values_out):
    i = np.int64(cuda.grid(1))
    if i < keys.size:
        at = before[i] if ones[i] else i - before[i]
        keys_out[at], values_out[at] = keys[i], values[i]


@cuda.jit
def without_a_guard(keys, values, ones, before, keys_out, values_out):
    i = np.int64(cuda.grid(1))
    zeros = keys.size - (before[keys.size - 1] + ones[keys.size - 1])
    at = zeros + before[i] if ones[i] else i - before[i]
    if i < keys.size:
        keys_out[at], values_out[at] = keys[i], values[i]


def by_keys_that_are_sorted(p):
    """The keys as `ladder.one_sweep` sorts them, and the values by a sort of their own."""
    ladder.one_sweep.launch(ladder.arguments(p.x, out=p.keys_out))
    ladder.one_sweep.launch(ladder.arguments(p.values, out=p.result))


def signs_as_they_are(p):
    p.turn = np.uint32(0)
    pairs.one_sweep.launch(p)


def half_of_the_digits(p):
    """Two passes of four: by the last sixteen bits."""
    passes, pairs.PASSES = pairs.PASSES, 2
    try:
        pairs.one_sweep.launch(p)
    finally:
        pairs.PASSES = passes


def floats_as_they_are(p):
    """-0 before 0, and NaN of either sign where its bits say: floats given as whole numbers."""
    if p.x.dtype == np.float32:
        p = p.replace(x=p.x.view(np.int32), keys_out=p.keys_out.view(np.int32))
    pairs.one_sweep.launch(p)


RUNGS = (
    WrongRung(splits("ones_turned_around", ones_turned_around), "wrong result"),
    WrongRung(splits("values_stay", values_stay), "wrong result"),
    WrongRung(splits("zeros_not_counted", zeros_not_counted), "race"),
    WrongRung(splits("without_a_guard", without_a_guard), "out of bounds"),
    WrongRung(splits("without_the_first_bit", pairs.split_pairs_kernel, range(31)), "wrong result"),
    WrongRung(named("by_keys_that_are_sorted", by_keys_that_are_sorted), "wrong result"),
    WrongRung(named("signs_as_they_are", signs_as_they_are), "wrong result"),
    WrongRung(named("half_of_the_digits", half_of_the_digits), "wrong result"),
    WrongRung(named("floats_as_they_are", floats_as_they_are), "wrong result"),
)
RIGHT = (splits("splits", pairs.split_pairs_kernel),)
