"""Answers to the exercises of chapter 74 on the layer: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, warp_sum
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
FINISH, ONE_ROW = "linear/finish", "linear/one_row"
f0 = np.float32(0)


# -- finish


@right(FINISH)
@cuda.jit
def finish_by_a_stride(partials, bias, y):
    for at in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        row, output = divmod(at, y.shape[1])
        total = f0
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        total += bias[output]
        y[row, output] = total if not total < f0 else f0


@right(FINISH)
@cuda.jit
def finish_from_the_first_slice(partials, bias, y):
    at = cuda.grid(1)
    if at >= y.size:
        return
    row, output = at // y.shape[1], at % y.shape[1]
    total = partials[0, row, output]
    for s in range(1, len(partials)):
        total += partials[s, row, output]
    total += bias[output]
    y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "added backwards", "5 slices of 19 x 10 that cancel.*Slice 0 comes first")
@cuda.jit
def finish_backwards(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for s in range(partials.shape[0]):
            total += partials[partials.shape[0] - 1 - s, row, output]
        y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "wrong result", "that cancel")
@cuda.jit
def finish_by_pairs(partials, bias, y):
    """The even slices, then the odd ones."""
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        even, odd = bias[output], f0
        for s in range(0, partials.shape[0], 2):
            even += partials[s, row, output]
        for s in range(1, partials.shape[0], 2):
            odd += partials[s, row, output]
        total = even + odd
        y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "bias in each slice")
@cuda.jit
def finish_with_a_bias_a_slice(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = f0
        for s in range(partials.shape[0]):
            total += partials[s, row, output] + bias[output]
        y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "relu of each slice")
@cuda.jit
def finish_with_a_relu_a_slice(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for s in range(partials.shape[0]):
            value = partials[s, row, output]
            total += f0 if value < f0 else value
        y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "relu before the bias")
@cuda.jit
def finish_with_the_bias_last(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = f0
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        y[row, output] = (f0 if total < f0 else total) + bias[output]


@wrong(FINISH, "NaN lost")
@cuda.jit
def finish_without_nan(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        y[row, output] = total if total > f0 else f0


@wrong(FINISH, "NaN lost", "max prefers the number")
@cuda.jit
def finish_by_a_maximum(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        y[row, output] = max(total, f0)


@wrong(FINISH, "missing atomic", "one thread add all slices")
@cuda.jit
def finish_by_a_thread_for_each_slice(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        y[at // y.shape[1], at % y.shape[1]] = bias[at % y.shape[1]]
    for i in range(at, partials.size, cuda.gridsize(1)):
        s, row, output = i // y.size, i % y.size // y.shape[1], i % y.shape[1]
        y[row, output] += partials[s, row, output]


@wrong(FINISH, "missing guard")
@cuda.jit
def finish_without_guard(partials, bias, y):
    at = cuda.grid(1)
    row, output = at // y.shape[1], at % y.shape[1]
    total = bias[output]
    for s in range(partials.shape[0]):
        total += partials[s, row, output]
    y[row, output] = f0 if total < f0 else total


@wrong(FINISH, "uninitialised memory")
@cuda.jit
def finish_in_y(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        for s in range(partials.shape[0]):
            y[row, output] += partials[s, row, output]
        y[row, output] += bias[output]
        y[row, output] = f0 if y[row, output] < f0 else y[row, output]


@wrong(FINISH, "accidental float64")
@cuda.jit
def finish_in_float64(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = 0.0
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        total += bias[output]
        y[row, output] = 0.0 if total < 0.0 else total


# -- one_row


@right(ONE_ROW)
@cuda.jit
def one_row_by_shuffles(x, weight, bias, y):
    output = cuda.blockIdx.x * 4 + cuda.threadIdx.x // 32
    if output >= y.size:
        return
    total = f0
    k = cuda.laneid
    while k < x.size:
        total += weight[output, k] * x[k]
        k += 32
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(FULL_WARP, total, distance)
    if cuda.laneid == 0:
        y[output] = bias[output] + total


@wrong(ONE_ROW, "wrong result")
@cuda.jit
def one_row_of_a_lane(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:
        total = f0
        for k in range(lane, x.size, 32):
            total += x[k] * weight[output, k]
        if lane == 0:
            y[output] = total + bias[output]


@wrong(ONE_ROW, "wrong result")
@cuda.jit
def one_row_with_a_bias_a_lane(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:
        total = bias[output]
        for k in range(lane, x.size, 32):
            total += x[k] * weight[output, k]
        total = warp_sum(total)
        if lane == 0:
            y[output] = total


@wrong(ONE_ROW, "missing guard")
@cuda.jit
def one_row_without_guard(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    total = f0
    for k in range(lane, x.size, 32):
        total += x[k] * weight[output, k]
    total = warp_sum(total)
    if lane == 0:
        y[output] = total + bias[output]


@wrong(ONE_ROW, "uncoalesced")
@cuda.jit
def one_row_in_pieces(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:
        length = (x.size + 31) // 32
        total = f0
        for k in range(lane * length, min((lane + 1) * length, x.size)):
            total += x[k] * weight[output, k]
        total = warp_sum(total)
        if lane == 0:
            y[output] = total + bias[output]


@wrong(ONE_ROW, "accidental float64")
@cuda.jit
def one_row_in_float64(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:
        total = 0.0
        for k in range(lane, x.size, 32):
            total += x[k] * weight[output, k]
        total = warp_sum(total)
        if lane == 0:
            y[output] = total + bias[output]


@wrong(ONE_ROW, "idle threads")
@cuda.jit
def one_row_by_one_lane(x, weight, bias, y):
    output = cuda.grid(1) // 32
    if output < y.size and cuda.laneid == 0:
        total = bias[output]
        for k in range(x.size):
            total += x[k] * weight[output, k]
        y[output] = total


@wrong(ONE_ROW, "repeated work", "let one of them store it")
@cuda.jit
def one_row_stored_by_all_lanes(x, weight, bias, y):
    output = cuda.grid(1) // 32
    if output < y.size:
        total = f0
        for k in range(cuda.laneid, x.size, 32):
            total += x[k] * weight[output, k]
        y[output] = warp_sum(total) + bias[output]


@wrong(ONE_ROW, "missing atomic", "add these up by warp_sum")
@cuda.jit
def one_row_added_up_in_y(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:
        if lane == 0:
            y[output] = bias[output]
        cuda.syncwarp()
        for k in range(lane, x.size, 32):
            y[output] += x[k] * weight[output, k]
