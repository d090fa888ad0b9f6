"""Wrong vector additions, and wrong answers to the exercises of chapter 4."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.vector_add import add_four
from pmpp.kernels.vector_add.exercises import neighbours_start
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128, widened
from tests.support.wrong import WrongAnswer, WrongRung

BLOCK = 256


def adder(kernel, each=1):
    """``kernel`` as a function of (x, y), launched with one thread for every ``each`` elements."""

    def add(x, y):
        x, y = (device.to_device(v) if isinstance(v, np.ndarray) else v for v in (x, y))
        out = device.empty(x.size, x.dtype)
        if x.size:
            threads = -(-x.size // each)
            kernel[-(-threads // BLOCK), BLOCK](x, y, out)
        return out

    add.__name__ = getattr(kernel, "py_func", kernel).__name__
    return add


@cuda.jit
def no_guard(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


@cuda.jit
def one_too_many(x, y, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def without_the_last(x, y, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = x[i] + y[i]


@cuda.jit
def whole_blocks_only(x, y, out):
    i = cuda.grid(1)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x <= out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def every_block_the_same(x, y, out):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def stride_of_a_block(x, y, out):
    for i in range(cuda.grid(1), out.size, cuda.blockDim.x):  # the grid's stride is gridsize(1): work is done again
        out[i] = x[i] + y[i]


@cuda.jit
def in_float64(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 1.0 * y[i]


@cuda.jit
def through_float32(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(x[i]) + np.float32(y[i])


@cuda.jit
def four_in_a_row(x, y, out):
    first = 4 * cuda.grid(1)
    for i in range(first, min(first + 4, out.size)):
        out[i] = x[i] + y[i]


@cuda.jit
def in_place(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        x[i] += y[i]
        out[i] = x[i]


@cuda.jit
def atomically(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]
        cuda.atomic.add(out, i, y[i])


@cuda.jit
def vectors_anywhere(x, y, out):
    width = 16 // x.itemsize
    i = width * cuda.grid(1)
    if i + width <= out.size:
        a, b = load128(x, i), load128(y, i)
        if width == 4:
            store128(out, i, (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))
        else:
            store128(out, i, (a[0] + b[0], a[1] + b[1]))
    else:
        for k in range(i, out.size):
            out[k] = x[k] + y[k]


@cuda.jit
def eight_by_fours(x, y, out):
    i = 4 * cuda.grid(1)  # a vector of 16 bits has eight elements, and begins at a multiple of eight
    if i + 8 <= out.size:
        a, b = widened(load128(x, i)), widened(load128(y, i))
        store128(out, i, add_four(a[:4], b[:4]) + add_four(a[4:], b[4:]))
    elif i < out.size:
        for k in range(i, out.size):
            out[k] = widened(x[k]) + widened(y[k])


@cuda.jit
def through_float16(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(np.float16(widened(x[i]))) + np.float32(np.float16(widened(y[i])))


# Of these only numbers of 16 bits are asked.
SHORT_RUNGS = (
    WrongRung(adder(eight_by_fours, each=4), "misaligned"),
    WrongRung(adder(through_float16), "wrong result"),  # of large bfloat16
)

RUNGS = (
    WrongRung(adder(no_guard), "out of bounds"),
    WrongRung(adder(one_too_many), "out of bounds"),
    WrongRung(adder(without_the_last), "wrong result"),
    WrongRung(adder(whole_blocks_only), "wrong result"),
    WrongRung(adder(every_block_the_same), "wrong result"),
    WrongRung(adder(stride_of_a_block), "traffic"),
    WrongRung(adder(in_float64), "wrong result"),  # of large int64
    WrongRung(adder(through_float32), "wrong result"),  # of float64
    WrongRung(adder(four_in_a_row, each=4), "traffic"),
    WrongRung(adder(in_place), "input changed"),
    WrongRung(adder(atomically), "atomics"),
    WrongRung(adder(vectors_anywhere, each=2), "misaligned"),
)


# ------------------------------------------------------------------------------------------------- wrong answers: saxpy


@cuda.jit
def saxpy_no_guard(a, x, y, out):
    i = cuda.grid(1)
    out[i] = np.float32(a) * x[i] + y[i]


@cuda.jit
def saxpy_one_too_many(a, x, y, out):
    i = cuda.grid(1)
    if i > out.size:
        return
    out[i] = np.float32(a) * x[i] + y[i]


@cuda.jit
def saxpy_no_blocks(a, x, y, out):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = np.float32(a) * x[i] + y[i]


@cuda.jit
def saxpy_in_float64(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def saxpy_without_a(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def saxpy_into_y(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        y[i] = np.float32(a) * x[i] + y[i]


@cuda.jit
def saxpy_whole_number(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(int(a)) * x[i] + y[i]


@cuda.jit
def saxpy_for_5000(a, x, y, out):
    i = cuda.grid(1)
    if i < 5000:
        out[i] = np.float32(a) * x[i] + y[i]


@cuda.jit
def saxpy_one_thread(a, x, y, out):
    if cuda.grid(1) == 0:
        for i in range(out.size):
            out[i] = np.float32(a) * x[i] + y[i]


# -------------------------------------------------------------------------------------------- wrong answers: neighbours


@cuda.jit
def neighbours_overlap(x, out):
    first = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
    for k in range(4):
        i = first + k * BLOCK
        if i < out.size:
            out[i] = x[i] * x[i]


@cuda.jit
def neighbours_no_guard(x, out):
    first = cuda.blockIdx.x * BLOCK * 4 + cuda.threadIdx.x
    for k in range(4):
        i = first + k * BLOCK
        out[i] = x[i] * x[i]


@cuda.jit
def neighbours_first_round_guarded(x, out):
    first = cuda.blockIdx.x * BLOCK * 4 + cuda.threadIdx.x
    if first < out.size:
        for k in range(4):
            i = first + k * BLOCK
            out[i] = x[i] * x[i]


@cuda.jit
def neighbours_three_rounds(x, out):
    first = cuda.blockIdx.x * BLOCK * 4 + cuda.threadIdx.x
    for k in range(3):
        i = first + k * BLOCK
        if i < out.size:
            out[i] = x[i] * x[i]


@cuda.jit
def neighbours_across_warps(x, out):
    thread = cuda.threadIdx.x  # neighbours in threadIdx, but 8 elements apart
    first = cuda.blockIdx.x * BLOCK * 4 + thread % 32 * 8 + thread // 32
    for k in range(4):
        i = first + k * BLOCK
        if i < out.size:
            out[i] = x[i] * x[i]


# -------------------------------------------------------------------------------------------- wrong answers: cross_fade


@cuda.jit
def fade_rows_first(a, b, t, out):
    row, column = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0] and column < out.shape[1]:
        for c in range(3):
            before, after = np.float32(a[row, column, c]), np.float32(b[row, column, c])
            out[row, column, c] = np.uint8(before + weight * (after - before) + np.float32(0.5))


@cuda.jit
def fade_guards_rows(a, b, t, out):
    column, row = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0]:
        for c in range(3):
            before, after = np.float32(a[row, column, c]), np.float32(b[row, column, c])
            out[row, column, c] = np.uint8(before + weight * (after - before) + np.float32(0.5))


@cuda.jit
def fade_wraps(a, b, t, out):
    column, row = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0] and column < out.shape[1]:
        for c in range(3):
            difference = np.float32(b[row, column, c] - a[row, column, c])
            out[row, column, c] = np.uint8(np.float32(a[row, column, c]) + weight * difference + np.float32(0.5))


@cuda.jit
def fade_cuts_off(a, b, t, out):
    column, row = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0] and column < out.shape[1]:
        for c in range(3):
            before, after = np.float32(a[row, column, c]), np.float32(b[row, column, c])
            out[row, column, c] = np.uint8(before + weight * (after - before))


@cuda.jit
def fade_in_grey(a, b, t, out):
    column, row = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0] and column < out.shape[1]:
        before, after = np.float32(a[row, column, 0]), np.float32(b[row, column, 0])
        out[row, column, 0] = np.uint8(before + weight * (after - before) + np.float32(0.5))


@cuda.jit
def fade_backwards(a, b, t, out):
    column, row = cuda.grid(2)
    weight = np.float32(t)
    if row < out.shape[0] and column < out.shape[1]:
        for c in range(3):
            before, after = np.float32(a[row, column, c]), np.float32(b[row, column, c])
            out[row, column, c] = np.uint8(after + weight * (before - after) + np.float32(0.5))


ANSWERS = (
    WrongAnswer(
        "vector_add/saxpy", saxpy_no_guard, "missing guard", r"with n = 257, thread 1 of block 1 reads x\[257\]"
    ),
    WrongAnswer("vector_add/saxpy", saxpy_one_too_many, "guard off by one"),
    WrongAnswer("vector_add/saxpy", saxpy_no_blocks, "only right for one block", r"threadIdx counts within a block"),
    WrongAnswer("vector_add/saxpy", saxpy_in_float64, "accidental float64", r"10,000 operations .* where 0 will do"),
    WrongAnswer("vector_add/saxpy", saxpy_without_a, "argument ignored", "never uses a"),
    WrongAnswer("vector_add/saxpy", saxpy_into_y, "input changed", "writes to y"),
    WrongAnswer("vector_add/saxpy", saxpy_whole_number, "wrong result"),
    WrongAnswer("vector_add/saxpy", saxpy_for_5000, "hard-coded size", "says 5000"),
    WrongAnswer("vector_add/saxpy", saxpy_one_thread, "idle threads", r"only 1 of the 32 threads"),
    WrongAnswer("vector_add/neighbours", neighbours_start, "uncoalesced", "15.8 sectors a request where 4 do"),
    WrongAnswer("vector_add/neighbours", neighbours_overlap, "output not written", r"the first is out\[2304\]"),
    WrongAnswer("vector_add/neighbours", neighbours_no_guard, "missing guard"),
    WrongAnswer("vector_add/neighbours", neighbours_first_round_guarded, "missing guard", "it lets this index through"),
    WrongAnswer("vector_add/neighbours", neighbours_three_rounds, "output not written", r"the first is out\[768\]"),
    WrongAnswer("vector_add/neighbours", neighbours_across_warps, "uncoalesced"),
    WrongAnswer("vector_add/cross_fade", fade_rows_first, "wrong axis order", "cuda.grid.2. gives x first"),
    WrongAnswer("vector_add/cross_fade", fade_guards_rows, "missing guard", r"a\[:, 40, :\], but .* a\[:, 39, :\]"),
    WrongAnswer("vector_add/cross_fade", fade_wraps, "integer overflow", "b is darker than a"),
    WrongAnswer("vector_add/cross_fade", fade_cuts_off, "not rounded", "add 0.5 first"),
    WrongAnswer("vector_add/cross_fade", fade_in_grey, "output not written", r"the first is out\[0, 0, 1\]"),
    WrongAnswer("vector_add/cross_fade", fade_backwards, "wrong way round"),
)
