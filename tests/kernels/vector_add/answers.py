"""More answers to the exercises of chapter 4: right in another way, or wrong for a reason easily mistaken."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
SAXPY, NEIGHBOURS, FADE = "vector_add/saxpy", "vector_add/neighbours", "vector_add/cross_fade"
BLOCK, EACH = 256, 4


# -- saxpy


@right(SAXPY)
@cuda.jit
def saxpy_from_the_end(a, x, y, out):
    i = out.size - 1 - cuda.grid(1)
    if i >= 0:
        out[i] = y[i] + x[i] * np.float32(a)


@right(SAXPY)
@cuda.jit
def saxpy_in_two_stores(a, x, y, out):
    i = cuda.grid(1)
    while i < out.size:
        out[i] = np.float32(a) * x[i]
        out[i] += y[i]
        i += cuda.gridsize(1)


@wrong(SAXPY, "repeated work", "several threads write the same elements")
@cuda.jit
def saxpy_by_every_block(a, x, y, out):
    for i in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        out[i] = np.float32(a) * x[i] + y[i]


@wrong(SAXPY, "missing guard", "it lets this index through")
@cuda.jit
def saxpy_with_a_guard_on_the_thread(a, x, y, out):
    i = cuda.grid(1)
    if cuda.threadIdx.x < out.size:
        out[i] = np.float32(a) * x[i] + y[i]


@wrong(SAXPY, "uncoalesced")
@cuda.jit
def saxpy_block_by_block(a, x, y, out):
    i = cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x
    if i < out.size:
        out[i] = np.float32(a) * x[i] + y[i]


@wrong(SAXPY, "inputs exchanged", "It is what comes out with x and y exchanged")
@cuda.jit
def saxpy_of_the_other_vector(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(a) * y[i] + x[i]


@wrong(SAXPY, "deliberate float64", r"line \d+ asks for float64; 10,000 operations are in float64 where 0 will do")
@cuda.jit
def saxpy_in_float64_on_purpose(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(np.float64(a) * np.float64(x[i]) + y[i])


# -- neighbours


@right(NEIGHBOURS)
@cuda.jit
def neighbours_by_warps(x, out):
    warp, lane = cuda.grid(1) // 32, cuda.grid(1) % 32
    for k in range(EACH):
        i = warp * 32 * EACH + k * 32 + lane
        if i < out.size:
            out[i] = x[i] ** 2


@wrong(NEIGHBOURS, "too much traffic", "for out alone it is 1,356 where 0 will do.* store each element once")
@cuda.jit
def neighbours_squared_in_out(x, out):
    first = cuda.blockIdx.x * BLOCK * EACH + cuda.threadIdx.x
    for k in range(EACH):
        i = first + k * BLOCK
        if i < out.size:
            out[i] = x[i]
            out[i] = out[i] * out[i]


@wrong(NEIGHBOURS, "uncoalesced", "8 sectors a request where 4 do")
@cuda.jit
def neighbours_in_pairs(x, out):
    first = cuda.blockIdx.x * BLOCK * EACH + 2 * cuda.threadIdx.x
    for k in range(EACH):
        i = first + k // 2 * 2 * BLOCK + k % 2
        if i < out.size:
            out[i] = x[i] * x[i]


# -- cross_fade: the task names no type, so float64 is right


@right(FADE)
@cuda.jit
def fade_in_float64(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = np.uint8((1 - t) * a[y, x, c] + t * b[y, x, c] + 0.5)


@right(FADE)
@cuda.jit
def fade_that_rounds(a, b, t, out):
    x, y = cuda.grid(2)
    if x >= out.shape[1] or y >= out.shape[0]:
        return
    for c in range(out.shape[2]):
        out[y, x, c] = round((1 - t) * a[y, x, c] + t * b[y, x, c])


@right(FADE)
@cuda.jit
def fade_in_whole_numbers(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        share = int(t * 65536 + 0.5)
        for c in range(3):
            out[y, x, c] = (a[y, x, c] * (65536 - share) + b[y, x, c] * share + 32768) >> 16


@right(FADE)
@cuda.jit
def fade_that_rounds_up(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            before, after = np.float32(a[y, x, c]), np.float32(b[y, x, c])
            out[y, x, c] = math.ceil(before * np.float32(1 - t) + after * np.float32(t) - np.float32(0.5))


@wrong(FADE, "inaccurate", "with an image of 1 x 1, .* the type of what is in between")
@cuda.jit
def fade_of_parts_cut_off(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = np.uint8((1 - t) * a[y, x, c]) + np.uint8(t * b[y, x, c])


@wrong(FADE, "integer overflow")
@cuda.jit
def fade_wraps_in_float64(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = np.uint8(a[y, x, c] + t * (b[y, x, c] - a[y, x, c]) + 0.5)


@wrong(FADE, "integer overflow", r"int\(\) leaves a uint8 as it is")
@cuda.jit
def fade_of_uint8_all_the_same(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = int(int(a[y, x, c]) + t * (int(b[y, x, c]) - int(a[y, x, c])) + 0.5)


@wrong(FADE, "integer overflow", "where a is darker than b")
@cuda.jit
def fade_wraps_where_b_is_brighter(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = np.uint8(a[y, x, c] - t * (a[y, x, c] - b[y, x, c]) + 0.5)


@wrong(FADE, "not rounded", "always rounds up")
@cuda.jit
def fade_that_always_rounds_up(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = math.ceil((1 - t) * a[y, x, c] + t * b[y, x, c])


@wrong(FADE, "wrong axis order", "x first")
@cuda.jit
def fade_rows_along_x(a, b, t, out):
    y, x = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[y, x, c] = round((1 - t) * a[y, x, c] + t * b[y, x, c])


@wrong(FADE, "wrong result", r"out\[0, 0, 0\] is \d+, and should be")
@cuda.jit
def fade_half_way(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1] and t >= 0:
        for c in range(3):
            out[y, x, c] = (a[y, x, c] + b[y, x, c]) // 2


@wrong(FADE, "axes exchanged", r"out\[i, j, c\] holds what belongs into out\[j, i, c\]")
@cuda.jit
def fade_stored_down_the_columns(a, b, t, out):
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        for c in range(3):
            out[x, y, c] = round((1 - t) * a[y, x, c] + t * b[y, x, c])
