"""How many additions with a maximum or a minimum behind them the GPU does a second, if it does nothing else.

An addition of int32 and a maximum, x = max(x + step, bound), are a single instruction on Hopper GPUs. An addition of
float32 and a minimum are two, and of minima a multiprocessor does half as many as of additions. So neither rate follows
from that of multiply-adds. The kernels here are measured beside the rungs, as often in a chain as the rungs need the
operations: what remains is what it takes to bring the numbers there.

Eight chains a thread, as in `pmpp.lab.measure.roofline`: each waits for itself alone.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device

CHAINS, UNROLLED = 8, 16  # of a thread; and steps of each chain in one turn of the loop
THREADS, PER_MULTIPROCESSOR = 1024, 2  # threads a block, and blocks
OPERATIONS = 2 * CHAINS * UNROLLED  # of a thread in a turn: additions, and maxima or minima
MAX_ADD = np.int32(-1), np.int32(-(10**6))  # step and bound: some chains reach the bound, and others do not
ADD_MIN = np.float32(1), np.float32(1e6)  # float32 has these numbers exactly


@cuda.jit(device=True)
def four_steps(chains, step, bound):
    """Four steps of each chain of integers: of all 16 in a loop the compiler would unroll only a part."""
    for c in range(CHAINS):
        for _ in range(4):
            chains[c] = max(np.int32(chains[c] + step), bound)


@cuda.jit
def max_add_kernel(out, step, bound, turns):
    chains, i = cuda.local.array(CHAINS, np.int32), cuda.grid(1)
    for c in range(CHAINS):
        chains[c] = np.int32(i * CHAINS + c)
    for _ in range(turns):  # UNROLLED steps
        four_steps(chains, step, bound)
        four_steps(chains, step, bound)
        four_steps(chains, step, bound)
        four_steps(chains, step, bound)
    for c in range(CHAINS):
        out[c, i] = chains[c]


@cuda.jit
def add_min_kernel(out, step, bound, turns):
    chains, i = cuda.local.array(CHAINS, np.float32), cuda.grid(1)
    for c in range(CHAINS):
        chains[c] = np.float32(i * CHAINS + c)
    for _ in range(turns):
        for _ in range(UNROLLED):
            for c in range(CHAINS):
                chains[c] = min(chains[c] + step, bound)
    for c in range(CHAINS):
        out[c, i] = chains[c]


def _grid() -> int:
    return device.limits()["multiprocessors"] * PER_MULTIPROCESSOR


def turns_for(operations: int) -> int:
    """How many turns are at least so many operations, on all threads together."""
    return max(1, blocks(operations, OPERATIONS * THREADS * _grid()))


def max_add(operations: int) -> typing.Any:
    """At least so many operations, half of them additions of int32 and half maxima: the chains, a device array.

    The array has three dimensions, so that a check can tell it from the result of a rung.
    """
    grid = _grid()
    out = device.empty((CHAINS, grid * THREADS), np.int32)
    max_add_kernel[grid, THREADS](out, *MAX_ADD, turns_for(operations))
    return out.reshape(1, CHAINS, grid * THREADS)


def add_min(operations: int) -> typing.Any:
    """The same with additions of float32 and minima."""
    grid = _grid()
    out = device.empty((CHAINS, grid * THREADS), np.float32)
    add_min_kernel[grid, THREADS](out, *ADD_MIN, turns_for(operations))
    return out.reshape(1, CHAINS, grid * THREADS)


def wrong(chains: typing.Any, operations: int) -> tuple[float, float]:
    """How far the chains are from where they must end after so many operations, and the tolerance, which is 0."""
    steps = turns_for(operations) * UNROLLED
    start = np.arange(chains.size, dtype=np.int64).reshape(-1, CHAINS).T
    if chains.dtype == np.int32:
        expected = np.maximum(start - steps, MAX_ADD[1])
    else:
        expected = np.minimum(start + steps, int(ADD_MIN[1]))
    found = chains.get() if hasattr(chains, "get") else np.asarray(chains)
    return float(np.abs(found[0].astype(np.float64) - expected).max()), 0.0
