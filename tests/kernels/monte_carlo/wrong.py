"""Wrong ways to draw prices, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common.reductions import block_sum
from pmpp.kernels.monte_carlo import ladder as room
from tests.support.wrong import WrongRung

STREAMS = room.STREAMS


def prices(name, same=False, squared=False, barrier=True, all_of_a_group=False):
    """The rung `in_registers` with one of its parts exchanged."""

    @cuda.jit
    def kernel(contracts, samples, seed, sums):
        partial = cuda.shared.array(32, np.float64)
        thread, row = cuda.grid(1), cuda.blockIdx.y
        option, state = room.option_of(contracts, row), room.counted(thread, np.int64(0) if same else row, seed)
        total, squares = np.float64(0), np.float64(0)
        for first in range(4 * np.int64(thread), samples, 4 * STREAMS):
            words, state = room.counted_next(state)
            left = 4 if all_of_a_group else samples - first
            total, squares = room.added(total, squares, option, room.four_normals(words), left)
        if squared:
            squares = total * total
        total = block_sum(total, partial)
        if barrier:
            cuda.syncthreads()
        squares = block_sum(squares, partial)
        if cuda.threadIdx.x == 0:
            sums[row, cuda.blockIdx.x, 0] = total
            sums[row, cuda.blockIdx.x, 1] = squares

    def call(contracts, samples, seed=0, generator="philox"):
        p = room.arguments(contracts, samples, seed, "philox")
        if not p.done and generator == "philox":
            sums = room._sums(p)
            kernel[p.grid, room.BLOCK, p.stream](p.contracts, p.samples, p.seed, sums)
            room._finish(p, sums)
            return p.result
        return room.in_registers(contracts, samples, seed, generator)

    call.__name__ = name
    return call


RIGHT = prices("right")
RUNGS = (
    WrongRung(prices("the_same_numbers_for_all_options", same=True), "wrong result"),
    WrongRung(prices("squares_of_sums", squared=True), "wrong result"),
    WrongRung(prices("no_barrier_between_two_sums", barrier=False), "race"),
    WrongRung(prices("all_four_count", all_of_a_group=True), "wrong result"),
)
