"""Wrong versions of `runs` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.filter import runs as room
from tests.support.wrong import WrongRung


def by_scan(name, heads=room.heads_kernel, scatter=room.scatter_heads_kernel, lengths=room.lengths_kernel):
    """`by_scan` with one of its kernels exchanged."""

    def found(x):
        p = room.arguments(x)
        if p.done:
            return p.result
        n, starts = p.x.size, room.starts_for(p)
        flags, grid = room.device.empty(n, np.int32), blocks(n, 256)
        heads[grid, 256](p.x, flags)
        places = room.scan.vectorised(flags, exclusive=True)
        scatter[grid, 256](p.x, flags, places, p.values, starts, p.count)
        lengths[grid, 256](starts, p.count, p.lengths)
        return p.result

    found.__name__ = name
    return found


@cuda.jit
def no_first_run(x, heads):
    i = cuda.grid(1)
    if i < x.size:
        heads[i] = 1 if i > 0 and x[i] != x[i - 1] else 0


@cuda.jit
def each_block_begins_a_run(x, heads):
    i = cuda.grid(1)
    if i < x.size:
        heads[i] = 1 if cuda.threadIdx.x == 0 or x[i] != x[i - 1] else 0


@cuda.jit
def bits_compared(x, heads):
    """-0 is another number than 0, and a NaN equals itself."""
    i = cuda.grid(1)
    if i < x.size:
        heads[i] = 1 if i == 0 or x[i].view(np.int32) != x[i - 1].view(np.int32) else 0


@cuda.jit
def at_their_ends(x, heads, places, values, starts, count):
    """Where the next element begins a run, this one ends one."""
    i = cuda.grid(1)
    if i < x.size:
        if i == x.size - 1 or heads[i + 1]:
            values[places[i] + heads[i] - 1] = x[i]
            starts[places[i] + heads[i] - 1] = i
        if i == x.size - 1:
            count[0] = places[i] + heads[i]


@cuda.jit
def last_run_without_an_end(starts, count, lengths):
    k = cuda.grid(1)
    if k < count[0]:
        lengths[k] = starts[k + 1] - starts[k]


@cuda.jit
def last_run_left_out(starts, count, lengths):
    k = cuda.grid(1)
    if k + 1 < count[0]:
        lengths[k] = starts[k + 1] - starts[k]


RUNGS = (
    WrongRung(by_scan("no_first_run", no_first_run), "wrong result"),
    WrongRung(by_scan("each_block_begins_a_run", each_block_begins_a_run), "wrong result"),
    WrongRung(by_scan("bits_compared", bits_compared), "wrong result"),
    WrongRung(by_scan("at_their_ends", scatter=at_their_ends), "wrong result"),
    WrongRung(by_scan("last_run_without_an_end", lengths=last_run_without_an_end), "out of bounds"),
    WrongRung(by_scan("last_run_left_out", lengths=last_run_left_out), "wrong result"),
)
RIGHT = (by_scan("by_scan"),)
