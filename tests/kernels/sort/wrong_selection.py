"""Wrong versions of `selection` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.sort import pairs, selection
from pmpp.kernels.sort.digits import as_digits, ordered, turn_of
from tests.support.wrong import WrongRung


def named(select):
    """``select(p)``, called as a rung is."""

    def selected(x, k):
        p = selection.arguments(x, k)
        if not p.done:
            select(p)
        return p.result

    selected.__name__ = select.__name__
    return selected


def smallest_instead(p):
    p.turn = turn_of(p.x.dtype)
    selection.by_digits.launch(p)


def signs_as_they_are(p):
    p.turn = np.uint32(0xFFFFFFFF)
    selection.by_digits.launch(p)


def in_the_order_of_x(p):
    """The right keys, but not the greatest first."""
    selection.by_digits.launch(p)
    order = pairs.arguments(p.result, p.result)
    pairs.one_sweep.launch(order)
    p.result = order.result


def with_other(name, called, value):
    """`by_digits` with another value of a name of its module."""

    def select(p):
        kept = getattr(selection, name)
        setattr(selection, name, value)
        try:
            selection.by_digits.launch(p)
        finally:
            setattr(selection, name, kept)

    select.__name__ = called
    return select


@cuda.jit
def greater_alone(x, threshold, turn, count, where):
    """All that is greater than the k-th key or equal to it, wherever a counter says: maybe more than k."""
    i = cuda.grid(1)
    if i < x.size and ordered(x[i], turn) <= threshold:
        where[cuda.atomic.add(count, 0, 1)] = i


def every_key_that_is_equal(p):
    bits = p.x.copy_to_host()
    kth = np.sort(as_bits(bits, p.turn))[p.k - 1]
    count = cuda.to_device(np.zeros(1, np.int64))
    greater_alone[blocks(p.x.size, 256), 256](as_digits(p.x), kth, p.turn, count, p.result)


def as_bits(x, turn):
    """`digits.ordered` of a NumPy array."""
    bits = x.view(np.uint32).copy()
    if x.dtype == np.float32:
        bits = np.where(x < 0, bits ^ np.uint32(0x7FFFFFFF), np.where(x == 0, np.uint32(0), bits))
        bits = np.where(np.isnan(x), np.uint32(0x7FFFFFFF), bits)
    return bits ^ turn


def one_too_few(p):
    """As if one key less were wanted: the last place stays as it was."""
    q = p.replace(k=p.k - 1, result=p.result[: p.k - 1], keys_out=p.keys_out[: p.k - 1])
    if q.k:
        selection.by_digits.launch(q)


RUNGS = (
    WrongRung(named(smallest_instead), "wrong result"),
    WrongRung(named(signs_as_they_are), "wrong result"),
    WrongRung(named(in_the_order_of_x), "wrong result"),
    WrongRung(named(every_key_that_is_equal), "out of bounds"),
    WrongRung(named(one_too_few), "wrong result"),
    WrongRung(named(with_other("LESS", "keys_beside_the_kth_left_out", selection.EQUAL)), "uninitialised read"),
)
