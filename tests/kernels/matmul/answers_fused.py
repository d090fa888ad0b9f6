"""Answers to the exercises of chapter 39: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.matmul.fused_exercises import TEAM
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
FINISH, SEVERAL = "fused/finish_once", "fused/several_a_block"
f0 = np.float32(0)
PRODUCTS, ELEMENTS = 8, 12  # of a block; of a matrix
ROOM = PRODUCTS * ELEMENTS


# -- finish_once


@right(FINISH)
@cuda.jit
def finish_from_the_last_part(partials, bias, residual, alpha, out):
    column, row = cuda.grid(2)
    if row >= out.shape[0] or column >= out.shape[1]:
        return
    total, part = f0, partials.shape[0] - 1
    while part >= 0:
        total += partials[part, row, column]
        part -= 1
    value = bias[column] + residual[row, column] + total * alpha
    out[row, column] = value if value > f0 else f0


@right(FINISH)
@cuda.jit
def finish_with_scaled_parts(partials, bias, residual, alpha, out):
    """alpha may be multiplied with each part: that is linear."""
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        value = residual[row, column] + bias[column]
        for part in range(partials.shape[0]):
            value += alpha * partials[part, row, column]
        out[row, column] = max(f0, value)


@cuda.jit(device=True)
def clipped(value):
    return max(value, f0)


@right(FINISH)
@cuda.jit
def finish_by_a_device_function(partials, bias, residual, alpha, out):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * cuda.blockDim.y + y, cuda.blockIdx.x * cuda.blockDim.x + x
    inside = row < out.shape[0] and column < out.shape[1]
    total = f0
    for part in range(partials.shape[0]):
        if inside:
            total += partials[part, row, column]
    if inside:
        out[row, column] = clipped(alpha * total + residual[row, column] + bias[column])


def finish_with(finish, name, *, guard=True, zero=f0):
    """The answer, finished by a device function (partials, row, column, residual, bias, alpha, zero)."""

    @cuda.jit
    def kernel(partials, bias, residual, alpha, out):
        column, row = cuda.grid(2)
        if not guard or (row < out.shape[0] and column < out.shape[1]):
            out[row, column] = finish(partials, row, column, residual[row, column], bias, alpha, zero)

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def sum_of(partials, row, column, zero):
    total = zero
    for part in range(partials.shape[0]):
        total += partials[part, row, column]
    return total


@cuda.jit(device=True)
def rightly(partials, row, column, old, bias, alpha, zero):
    return max(alpha * sum_of(partials, row, column, zero) + old + bias[column], zero)


@cuda.jit(device=True)
def each_part(partials, row, column, old, bias, alpha, zero):
    total = zero
    for part in range(partials.shape[0]):
        total += max(alpha * partials[part, row, column] + old + bias[column], zero)
    return total


@cuda.jit(device=True)
def each_part_clipped(partials, row, column, old, bias, alpha, zero):
    total = old + bias[column]
    for part in range(partials.shape[0]):
        total += max(alpha * partials[part, row, column], zero)
    return max(total, zero)


@cuda.jit(device=True)
def bias_again_and_again(partials, row, column, old, bias, alpha, zero):
    total = old
    for part in range(partials.shape[0]):
        total += alpha * partials[part, row, column] + bias[column]
    return max(total, zero)


@cuda.jit(device=True)
def of_one_part(partials, row, column, old, bias, alpha, zero):
    return max(alpha * partials[0, row, column] + old + bias[column], zero)


@cuda.jit(device=True)
def residual_last(partials, row, column, old, bias, alpha, zero):
    return max(alpha * sum_of(partials, row, column, zero) + bias[column], zero) + old


@cuda.jit(device=True)
def all_times_alpha(partials, row, column, old, bias, alpha, zero):
    return max(alpha * (sum_of(partials, row, column, zero) + old + bias[column]), zero)


@cuda.jit(device=True)
def linear(partials, row, column, old, bias, alpha, zero):
    return alpha * sum_of(partials, row, column, zero) + old + bias[column]


@cuda.jit(device=True)
def bias_of_the_row(partials, row, column, old, bias, alpha, zero):
    return max(alpha * sum_of(partials, row, column, zero) + old + bias[row % bias.size], zero)


wrong(FINISH, "finished parts")(finish_with(each_part, "finish_each_part"))
wrong(FINISH, "clipped parts")(finish_with(each_part_clipped, "finish_parts_that_were_clipped"))
wrong(FINISH, "bias in every part")(finish_with(bias_again_and_again, "finish_with_a_bias_a_part"))
wrong(FINISH, "one part")(finish_with(of_one_part, "finish_the_first_part"))
wrong(FINISH, "residual behind")(finish_with(residual_last, "finish_before_the_residual"))
wrong(FINISH, "everything scaled")(finish_with(all_times_alpha, "finish_with_all_scaled"))
wrong(FINISH, "no activation")(finish_with(linear, "finish_without_activation"))
wrong(FINISH, "wrong result")(finish_with(bias_of_the_row, "finish_with_the_bias_of_the_row"))
wrong(FINISH, "missing guard")(finish_with(rightly, "finish_without_guard", guard=False))
wrong(FINISH, "accidental float64")(finish_with(rightly, "finish_in_float64", zero=0.0))


# -- several_a_block


@right(SEVERAL)
@cuda.jit
def teams_in_shared_memory(a, b, c, step_a, step_b):
    of_a, of_b = cuda.shared.array(ROOM, np.float32), cuda.shared.array(ROOM, np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    product = cuda.blockIdx.x * PRODUCTS + y
    inside = product < c.shape[0]
    if x < ELEMENTS and inside:
        of_a[y * ELEMENTS + x] = a[product * step_a + x]
        of_b[y * ELEMENTS + x] = b[product * step_b + x]
    cuda.syncthreads()
    if inside:
        row, column, total = x // 4, x % 4, f0
        for k in range(3):
            total += of_a[y * ELEMENTS + row * 3 + k] * of_b[y * ELEMENTS + k * 4 + column]
        c[product, row, column] = total


@right(SEVERAL)
@cuda.jit
def teams_written_out(a, b, c, step_a, step_b):
    thread = cuda.threadIdx.y * TEAM + cuda.threadIdx.x
    number = cuda.blockIdx.x * PRODUCTS * TEAM + thread
    product, at = number // TEAM, number % TEAM
    if product >= c.shape[0]:
        return
    i, j = product * step_a + at // 4 * 3, product * step_b + at % 4
    c[product, at // 4, at % 4] = a[i] * b[j] + a[i + 1] * b[j + 4] + a[i + 2] * b[j + 8]


@right(SEVERAL)
@cuda.jit
def teams_that_turn_it_over(a, b, c, step_a, step_b):
    """A thread's column is x // 4, and its row x % 4: slower, and right."""
    column, row = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    product = cuda.grid(2)[1] + cuda.blockIdx.x * cuda.blockDim.y
    if product < c.shape[0]:
        total = f0
        for k in range(2, -1, -1):
            total += a[product * step_a + row * 3 + k] * b[product * step_b + k * 4 + column]
        c[product, row, column] = total


def teams_with(
    name, *, steps=True, own_b=True, team=True, block=PRODUCTS, first=False, down=False, guard=True, zero=f0
):
    """The answer with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c, step_a, step_b):
        row, column = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
        product = cuda.blockIdx.x * block + (cuda.threadIdx.y if team else 0)
        place = cuda.blockIdx.x * PRODUCTS + cuda.threadIdx.y if first else product
        if not guard or place < c.shape[0]:
            of_a = product * (step_a if steps else ELEMENTS)
            of_b = product * (step_b if steps else ELEMENTS) if own_b else 0
            total = zero
            for k in range(3):
                total += a[of_a + row * 3 + k] * b[of_b + (column * 3 + k if down else k * 4 + column)]
            c[place, row, column] = total

    kernel.py_func.__name__ = name
    return kernel


wrong(SEVERAL, "closed up")(teams_with("teams_without_steps", steps=False))
wrong(SEVERAL, "a block's number")(teams_with("teams_with_the_blocks_matrices", team=False, block=1, first=True))
wrong(SEVERAL, "first team")(teams_with("teams_with_the_first_product", team=False, first=True))
wrong(SEVERAL, "columns of B")(teams_with("teams_that_read_b_down", down=True))
wrong(SEVERAL, "one B")(teams_with("teams_with_one_b", own_b=False))
wrong(SEVERAL, "missing guard")(teams_with("teams_without_guard", guard=False))
wrong(SEVERAL, "accidental float64")(teams_with("teams_in_float64", zero=0.0))
wrong(SEVERAL, "output not written")(teams_with("teams_in_one_place", team=False))
