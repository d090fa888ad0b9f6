"""Wrong answers to the exercises on wrong kernels, and right ones that are written otherwise."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.debugging.exercises import edges_start, maximum_start, roll_start, slope_start
from tests.support.wrong import WrongAnswer

BLOCK = 128

# --------------------------------------------------------------------------------------------------------------- edges


@cuda.jit
def edges_guarded_on_the_right(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[min(i + 1, x.size - 1)] - x[i - 1]


@cuda.jit
def edges_guarded_on_the_left(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i + 1] - x[max(i - 1, 0)]


@cuda.jit
def edges_left_out(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = x[i + 1] - x[i - 1]


@cuda.jit
def edges_zero(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = x[i + 1] - x[i - 1]
    elif i < x.size:
        out[i] = np.float32(0)


@cuda.jit
def edges_wrapped(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[(i + 1) % x.size] - x[(i - 1) % x.size]


@cuda.jit
def edges_without_the_guard(x, out):
    i = cuda.grid(1)
    out[i] = x[min(i + 1, x.size - 1)] - x[max(i - 1, 0)]


@cuda.jit
def edges_of_two_or_more(x, out):
    i = cuda.grid(1)
    if i == 0:
        out[i] = x[1] - x[0]
    elif i == x.size - 1:
        out[i] = x[i] - x[i - 1]
    elif i < x.size:
        out[i] = x[i + 1] - x[i - 1]


@cuda.jit
def edges_by_cases(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    left = x[i]
    right = left
    if i > 0:
        left = x[i - 1]
    if i < x.size - 1:
        right = x[i + 1]
    out[i] = right - left


# ------------------------------------------------------------------------------------------------------------- maximum


@cuda.jit
def maximum_of_zero(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i] if i < x.size else np.float32(0)
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_of_a_thousand_below_zero(x, out):  # the largest case has 1000 elements, and this is no size
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i] if i < x.size else np.float32(-1000)
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_unguarded(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_without_the_last_threads(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[thread] = x[i]
        cuda.syncthreads()
        stride = BLOCK // 2
        while stride > 0:
            if thread < stride and i + stride < x.size:
                part[thread] = max(part[thread], part[thread + stride])
            cuda.syncthreads()
            stride //= 2
        if thread == 0:
            out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_with_one_barrier(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i] if i < x.size else np.float32(-np.inf)
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_of_the_first(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i] if i < x.size else np.float32(-np.inf)
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 1:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_guarded_in_the_tree(x, out):
    part = cuda.shared.array(128, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[thread] = x[i]
    stride = 64
    while stride > 0:
        cuda.syncthreads()
        if thread < stride and i + stride < x.size:
            part[thread] = max(part[thread], part[thread + stride])
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_of_the_last_element_again(x, out):
    part = cuda.shared.array(128, np.float32)
    thread = cuda.threadIdx.x
    part[thread] = x[min(cuda.grid(1), x.size - 1)]
    cuda.syncthreads()
    for level in range(6, -1, -1):
        if thread < 1 << level:
            part[thread] = max(part[thread], part[thread + (1 << level)])
        cuda.syncthreads()
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


# ---------------------------------------------------------------------------------------------------------------- roll


@cuda.jit
def roll_to_the_left(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, (column + by) % x.shape[1]]


@cuda.jit
def roll_down(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[(row - by) % x.shape[0], column]


@cuda.jit
def roll_without_a_modulus(x, by, out):  # a negative index counts from the end, in a kernel too
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column - by]


@cuda.jit
def roll_cut_off(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and by <= column < x.shape[1]:
        out[row, column] = x[row, column - by]


@cuda.jit
def roll_unguarded(x, by, out):
    column, row = cuda.grid(2)
    out[row, column] = x[row, (column - by) % x.shape[1]]


@cuda.jit
def roll_by_columns_as_rows(x, by, out):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, (column - by) % x.shape[1]]


@cuda.jit
def roll_by_scattering(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        target = column + by
        if target >= x.shape[1]:
            target -= x.shape[1]
        out[row, target] = x[row, column]


# --------------------------------------------------------------------------------------------------------------- slope


@cuda.jit
def slope_with_the_barrier_outside(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left
            before = part[BLOCK - 1]


@cuda.jit
def slope_with_two_barriers_in_the_branch(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
            cuda.syncthreads()
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left
            if first + BLOCK < x.shape[1]:
                before = part[BLOCK - 1]
            cuda.syncthreads()


@cuda.jit
def slope_of_each_part(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()
        if column < x.shape[1]:
            out[row, column] = part[thread] - part[max(thread - 1, 0)]
        cuda.syncthreads()


@cuda.jit
def slope_without_a_guard(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        part[thread] = x[row, column]
        cuda.syncthreads()
        left = part[thread - 1] if thread > 0 else before
        out[row, column] = part[thread] - left
        before = part[BLOCK - 1]
        cuda.syncthreads()


@cuda.jit
def slope_that_always_looks_at_the_end(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left
        before = part[BLOCK - 1]
        cuda.syncthreads()


@cuda.jit
def slope_without_any_barrier(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
            left = part[thread - 1] if thread > 0 else x[row, max(column - 1, 0)]
            out[row, column] = part[thread] - left


@cuda.jit
def slope_from_memory_where_a_part_begins(x, out):
    part = cuda.shared.array(128, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    for first in range(0, x.shape[1], 128):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else x[row, max(column - 1, 0)]
            out[row, column] = part[thread] - left
        cuda.syncthreads()


@cuda.jit
def slope_in_two_arrays(x, out):  # thread 0 may still read what the next trip overwrites
    part = cuda.shared.array((2, 128), np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    now = 0
    for first in range(0, x.shape[1], 128):
        column = first + thread
        if column < x.shape[1]:
            part[now, thread] = x[row, column]
        cuda.syncthreads()
        if column < x.shape[1]:
            left = x[row, 0]
            if thread > 0:
                left = part[now, thread - 1]
            elif first > 0:
                left = part[1 - now, 127]
            out[row, column] = part[now, thread] - left
        now = 1 - now


@cuda.jit
def slope_with_the_second_barrier_first(x, out):
    part = cuda.shared.array(128, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    for first in range(0, x.shape[1], 128):
        column = first + thread
        last = min(127, x.shape[1] - 1 - first)
        before = x[row, max(first - 1, 0)]
        cuda.syncthreads()
        part[min(thread, last)] = x[row, min(column, x.shape[1] - 1)]
        cuda.syncthreads()
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left


ANSWERS = (
    WrongAnswer("debugging/edges", edges_start, "index out of bounds", r"x\[129\]"),
    WrongAnswer("debugging/edges", edges_guarded_on_the_right, "negative index", r"x\[-1\]"),
    WrongAnswer("debugging/edges", edges_guarded_on_the_left, "index out of bounds"),
    WrongAnswer("debugging/edges", edges_left_out, "output not written"),
    WrongAnswer("debugging/edges", edges_zero, "ends left at zero"),
    WrongAnswer("debugging/edges", edges_wrapped, "wrapped around"),
    WrongAnswer("debugging/edges", edges_without_the_guard, "missing guard"),
    WrongAnswer("debugging/edges", edges_of_two_or_more, "missing guard", r"with n = 1, .* reads x\[1\]"),
    WrongAnswer("debugging/maximum", maximum_start, "uninitialised memory", "part"),
    WrongAnswer("debugging/maximum", maximum_of_zero, "filled with zero"),
    WrongAnswer("debugging/maximum", maximum_of_a_thousand_below_zero, "only right for whole blocks", "is -1000, and"),
    WrongAnswer("debugging/maximum", maximum_unguarded, "missing guard"),
    WrongAnswer("debugging/maximum", maximum_without_the_last_threads, "divergent barrier"),
    WrongAnswer("debugging/maximum", maximum_with_one_barrier, "missing barrier"),
    WrongAnswer("debugging/maximum", maximum_of_the_first, "wrong result"),
    WrongAnswer("debugging/roll", roll_start, "wrong result"),
    WrongAnswer("debugging/roll", roll_to_the_left, "to the left"),
    WrongAnswer("debugging/roll", roll_down, "down"),
    WrongAnswer("debugging/roll", roll_cut_off, "output not written"),
    WrongAnswer("debugging/roll", roll_unguarded, "missing guard"),
    WrongAnswer("debugging/roll", roll_by_columns_as_rows, "wrong axis order"),
    WrongAnswer("debugging/slope", slope_start, "divergent barrier"),
    WrongAnswer("debugging/slope", slope_with_the_barrier_outside, "missing barrier"),
    WrongAnswer("debugging/slope", slope_with_two_barriers_in_the_branch, "divergent barrier"),
    WrongAnswer("debugging/slope", slope_of_each_part, "each part anew"),
    WrongAnswer("debugging/slope", slope_without_a_guard, "missing guard"),
    WrongAnswer("debugging/slope", slope_that_always_looks_at_the_end, "uninitialised memory"),
    WrongAnswer("debugging/slope", slope_without_any_barrier, "missing barrier"),
    WrongAnswer("debugging/slope", slope_in_two_arrays, "missing barrier"),
)

ALSO_RIGHT = (
    ("debugging/edges", edges_by_cases),
    ("debugging/maximum", maximum_guarded_in_the_tree),
    ("debugging/maximum", maximum_of_the_last_element_again),
    ("debugging/roll", roll_by_scattering),
    ("debugging/roll", roll_without_a_modulus),
    ("debugging/slope", slope_from_memory_where_a_part_begins),
    ("debugging/slope", slope_with_the_second_barrier_first),
)
