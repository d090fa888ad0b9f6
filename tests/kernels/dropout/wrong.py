"""Wrong versions of dropout."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random.generator import philox, unit
from pmpp.kernels.random.ladder import one_of
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def kept(x, number, p):
    return x / (f1 - p) if number >= p else f0


@cuda.jit(device=True)
def unscaled(x, number, p):
    return x if number >= p else f0


@cuda.jit(device=True)
def the_other_way_round(x, number, p):
    return x / (f1 - p) if number < p else f0


@cuda.jit(device=True)
def by_a_factor(x, number, p):
    return x * np.float32(number >= p) / (f1 - p)


@cuda.jit(device=True)
def in_float64(x, number, p):
    return x / (1.0 - p) if number >= p else f0


def dropout(name, keep=kept, guard=True, same_word=False, without_offset=False, in_x=False):
    """Dropout with some of its parts exchanged: a thread an element."""

    @cuda.jit
    def kernel(x, p, key, offset, out):
        i = np.int64(cuda.grid(1))
        if not guard or i < x.size:
            place = np.uint64(i) if without_offset else np.uint64(offset + np.uint64(i))
            words = philox(place >> np.uint64(2), np.uint64(0), key)
            word = words[0] if same_word else one_of(words, np.int64(place & np.uint64(3)))
            out[i] = keep(x[i], unit(word), p)
            if in_x:
                x[i] = out[i]

    def drop(x, p=0.5, seed=0, offset=0):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out = device.empty(x.shape, np.float32)
        if x.size:
            numbers = np.float32(p), np.uint64(seed), np.uint64(offset)
            kernel[blocks(x.size, BLOCK), BLOCK](x.reshape(-1), *numbers, out.reshape(-1))
        return out

    drop.__name__ = name
    return drop


RUNGS = (
    WrongRung(dropout("no_guard", guard=False), "out of bounds"),
    WrongRung(dropout("unscaled", unscaled), "wrong result"),
    WrongRung(dropout("the_other_way_round", the_other_way_round), "wrong result"),
    WrongRung(dropout("four_neighbours_together", same_word=True), "wrong result"),
    WrongRung(dropout("the_same_in_every_layer", without_offset=True), "wrong result"),
    WrongRung(dropout("nan_times_0", by_a_factor), "wrong result"),
    WrongRung(dropout("changes_x", in_x=True), "input changed"),
    WrongRung(dropout("in_float64", in_float64), "float64"),
)
