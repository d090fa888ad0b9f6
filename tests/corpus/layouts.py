"""Indices of several axes, and memory cut into parts: what is meant for one element, thread or type goes to another."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF
BODY = np.dtype([("x", np.float32), ("v", np.float32)])
WEIGHTS = np.array([1, 2, 4, 2, 1], np.float32)


def image(rows, columns):
    return ramp(rows * columns).reshape(rows, columns)


# -- linear thread ids -----------------------------------------------------------------------------------------------


@pair("race", "shared", "sums", block=(8, 8), make=lambda new: (image(8, 8), zeros(2)),
      result=lambda x, out: x.reshape(2, 32).sum(1))  # fmt: skip
@cuda.jit
def first_lane_by_the_x_axis(x, out, mended):
    """In a block of 8 x 8, four lanes of each warp have an x of 0: lanes are counted by the linear id."""
    sums = cuda.shared.array(2, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    t = ty * cuda.blockDim.x + tx
    value = x[ty, tx]
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, k)
    if (t if mended else tx) % 32 == 0:
        sums[t // 32] = value  # BUG
    cuda.syncthreads()
    if t < 2:
        out[t] = sums[t]


@pair("out_of_bounds", "shared", "s", block=(16, 4), make=lambda new: (image(4, 16), zeros((4, 16))),
      result=lambda x, out: x)  # fmt: skip
@cuda.jit
def linear_id_with_the_axes_exchanged(x, out, mended):
    """x times the width plus y: beyond the number of threads unless the block is a square."""
    s = cuda.shared.array(64, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    t = ty * cuda.blockDim.x + tx if mended else tx * cuda.blockDim.x + ty
    s[t] = x[ty, tx]  # BUG
    cuda.syncthreads()
    out[ty, tx] = s[ty * cuda.blockDim.x + tx] if mended else np.float32(0)


@pair("race", "global", "out", block=(8, 4, 2), make=lambda new: (ramp(64).reshape(2, 4, 8), zeros(64)),
      result=lambda x, out: x.ravel())  # fmt: skip
@cuda.jit
def volume_flattened_by_the_wrong_extent(x, out, mended):
    """A layer has as many rows as the block is high, not as many as it is deep."""
    tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    rows = cuda.blockDim.y if mended else cuda.blockDim.z
    out[(tz * rows + ty) * cuda.blockDim.x + tx] = x[tz, ty, tx]  # BUG


@pair("race", "global", "out", grid=2, block=(16, 4), make=lambda new: (ramp(128), zeros(128)),
      result=lambda x, out: x)  # fmt: skip
@cuda.jit
def index_of_one_axis_in_a_block_of_two(x, out, mended):
    """`grid(1)` knows the x axis only: four threads get each index."""
    i = cuda.grid(1)
    if mended:
        i = (cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y) * cuda.blockDim.x + cuda.threadIdx.x
    out[i] += x[i]  # BUG


@pair("race", "shared", "s", block=320, make=lambda new: (ramp(320), zeros(320)), result=lambda x, out: x)
@cuda.jit
def thread_number_kept_in_a_byte(x, out, mended):
    """A byte counts to 255: thread 256 is thread 0 again."""
    s = cuda.shared.array(320, np.float32)
    t = cuda.threadIdx.x
    slot = t if mended else np.uint8(t)
    s[slot] = x[t]  # BUG
    cuda.syncthreads()
    out[t] = s[slot]


# -- rows and columns ------------------------------------------------------------------------------------------------


@pair("race", "global", "out", grid=(2, 2), block=(8, 8), make=lambda new: (image(16, 16), zeros(256)),
      result=lambda x, out: x.ravel())  # fmt: skip
@cuda.jit
def row_as_wide_as_the_block(x, out, mended):
    """The next row begins after the width of the image, not of the block."""
    j, i = cuda.grid(2)
    width = x.shape[1] if mended else cuda.blockDim.x
    out[i * width + j] = x[i, j]  # BUG


@pair("race", "global", "out", grid=(1, 4), block=(8, 4), make=lambda new: (image(32, 16), zeros((32, 16))),
      result=lambda x, out: x)  # fmt: skip
@cuda.jit
def steps_of_the_two_axes_exchanged(x, out, mended):
    """`gridsize(2)` gives the step along x first: with the two exchanged, rows are visited twice."""
    across, down = cuda.gridsize(2)
    if not mended:
        across, down = down, across
    first, start = cuda.grid(2)
    for i in range(start, x.shape[0], down):
        for j in range(first, x.shape[1], across):
            out[i, j] += x[i, j]  # BUG


@pair("race", "global", "packed", block=(8, 8), make=lambda new: (image(8, 8), zeros(36)),
      result=lambda x, packed: x[np.tril_indices(8)])  # fmt: skip
@cuda.jit
def triangle_packed_one_row_too_early(x, packed, mended):
    """Row i of a lower triangle begins behind 1 + 2 + ... + i elements."""
    j, i = cuda.grid(2)
    if j <= i:
        first = i * (i + 1) // 2 if mended else i * (i - 1) // 2
        packed[first + j] = x[i, j]  # BUG


@pair("out_of_bounds", "global", "x", block=(8, 8), make=lambda new: (image(8, 8), zeros((8, 8))),
      result=lambda x, out: sum(np.roll(np.pad(x, 1), (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1))[1:9, 1:9]
      )  # fmt: skip
@cuda.jit
def convolution_guarded_on_one_side(x, out, mended):
    """The halo lies on both sides of the image: rows and columns of -1 have to be left out, too."""
    j, i = cuda.grid(2)
    total = np.float32(0)
    for di in range(-1, 2):
        for dj in range(-1, 2):
            inside = i + di < x.shape[0] and j + dj < x.shape[1]
            if inside and (not mended or (i + di >= 0 and j + dj >= 0)):
                total += x[i + di, j + dj]  # BUG
    out[i, j] = total


@pair("out_of_bounds", "global", "window", result=lambda x, out: np.convolve(x, [1, 1, 1], "same"))
@cuda.jit
def window_cut_out_at_the_edge(x, out, mended):
    """`x[-1:2]` begins at the last element, so the first window is empty."""
    i = cuda.grid(1)
    first = max(i - 1, 0) if mended else i - 1
    window = x[first : i + 2]
    total = np.float32(0)
    for k in range(window.size if mended else min(3, x.size - first)):
        total += window[k]  # BUG
    out[i] = total


@pair("out_of_bounds", "global", "x", grid=2, make=lambda new: (image(16, 4), zeros(128)),
      result=lambda x, out: np.r_[x.sum(1), np.zeros(112)])  # fmt: skip
@cuda.jit
def guarded_by_the_size_of_all_axes(x, out, mended):
    """`size` counts all elements, and `shape[0]` the rows."""
    i = cuda.grid(1)
    if i < (x.shape[0] if mended else x.size):
        total = np.float32(0)
        for k in range(x.shape[1]):
            total += x[i, k]  # BUG
        out[i] = total


@pair("race", "global", "x", make=lambda new: (zeros((64, 4)), image(65, 4)), result=lambda out, x: x)
@cuda.jit
def rows_moved_up_in_place(out, x, mended):
    """Each thread copies the row below into its own, which the thread above is copying."""
    i = cuda.threadIdx.x
    for k in range(x.shape[1]):
        below = x[i + 1, k]  # WITH
        if mended:
            out[i, k] = below
        else:
            x[i, k] = below  # BUG


@pair("out_of_bounds", "const", "weights", make=lambda new: (ramp(64), zeros(64)),
      result=lambda x, out: np.convolve(x, WEIGHTS, "same"))  # fmt: skip
@cuda.jit
def filter_one_tap_too_wide(x, out, mended):
    """A radius of 2 has five taps: the loop goes up to the sixth."""
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    total = np.float32(0)
    for k in range(-2, 3 if mended else 4):
        if 0 <= i + k < x.size:
            total += weights[k + 2] * x[i + k]  # BUG
    out[i] = total


@pair("out_of_bounds", "global", "x", result=lambda x, out: np.roll(x, 1))
@cuda.jit
def neighbour_by_the_wrong_precedence(x, out, mended):
    """`i - 1 % n` is `i - (1 % n)`."""
    i = cuda.grid(1)
    if mended:
        out[i] = x[(i - 1) % x.size]
    else:
        out[i] = x[i - 1 % x.size]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(100), zeros(64)),
      result=lambda x, out: np.pad(np.add.reduceat(x, np.arange(0, 100, 2)), (0, 14)))  # fmt: skip
@cuda.jit
def chunks_rounded_up_past_the_end(x, out, mended):
    """64 chunks of 2 are more than 100 elements."""
    t = cuda.threadIdx.x
    chunk = (x.size + cuda.blockDim.x - 1) // cuda.blockDim.x
    stop = (t + 1) * chunk
    if mended:
        stop = min(stop, x.size)
    total = np.float32(0)
    for k in range(t * chunk, stop):
        total += x[k]  # BUG
    out[t] = total


@pair("out_of_bounds", "global", "out", make=lambda new: (np.where(ramp(64) == 17, np.float32(np.nan), ramp(64) / 64),
      zeros(8, np.int32)), result=lambda x, out: np.where(np.arange(8) == 2, 7, 8))  # fmt: skip
@cuda.jit
def no_bin_for_what_is_not_a_number(x, out, mended):
    """A NaN becomes the least integer, and passes a test for the largest bin."""
    value = x[cuda.grid(1)]
    if not mended or value == value:
        cuda.atomic.add(out, min(int(value * np.float32(8)), 7), 1)  # BUG


@pair("race", "global", "x", grid=2, make=lambda new: (zeros(128), ramp(128)), result=lambda out, x: x[::-1])
@cuda.jit
def reversed_in_place_by_all_threads(out, x, mended):
    """Each pair is exchanged by both of its threads, at the same time."""
    i = cuda.grid(1)
    j = x.size - 1 - i
    if i < j or not mended:
        low = x[i]  # WITH
        high = x[j]  # WITH
        x[i] = high  # BUG
        x[j] = low  # BUG


# -- tiles -----------------------------------------------------------------------------------------------------------


@pair("uninitialised_read", "shared", "tile", block=(16, 8), make=lambda new: (image(16, 16), zeros((16, 16))),
      result=lambda x, out: x.T)  # fmt: skip
@cuda.jit
def tile_loaded_by_a_block_of_half_its_height(x, out, mended):
    """8 rows of threads load 8 of 16 rows, unless each goes round twice."""
    tile = cuda.shared.array((16, 17), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for i in range(ty, 16 if mended else 8, 8):
        tile[i, tx] = x[i, tx]
    cuda.syncthreads()
    for i in range(ty, 16, 8):
        out[i, tx] = tile[tx, i]  # BUG


@pair("uninitialised_read", "shared", "tile", block=(8, 8), make=lambda new: (image(10, 10), zeros((8, 8))),
      result=lambda x, out: x[:8, 1:9] + x[2:, 1:9] + x[1:9, :8] + x[1:9, 2:])  # fmt: skip
@cuda.jit
def halo_loaded_in_one_round(x, out, mended):
    """A tile with its halo has 100 elements, and the block 64 threads."""
    tile = cuda.shared.array((10, 10), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    k = ty * 8 + tx
    while k < (100 if mended else 64):
        tile[k // 10, k % 10] = x[k // 10, k % 10]
        k += 64
    cuda.syncthreads()
    i, j = ty + 1, tx + 1
    out[ty, tx] = tile[i - 1, j] + tile[i + 1, j] + tile[i, j - 1] + tile[i, j + 1]  # BUG


@pair("uninitialised_read", "shared", "left", grid=(1, 2), block=(8, 8),
      make=lambda new: (image(12, 12) % 7, image(12, 8) % 5, zeros((12, 8))),
      result=lambda a, b, out: a @ b)  # fmt: skip
@cuda.jit
def partial_tile_not_padded(a, b, out, mended):
    """12 columns make a tile and a half: the other half has to be 0."""
    left = cuda.shared.array((8, 8), np.float32)
    right = cuda.shared.array((8, 8), np.float32)
    j, i = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for first in range(8, -1, -8):
        if i < a.shape[0] and first + tx < a.shape[1]:
            left[ty, tx] = a[i, first + tx]
        elif mended:
            left[ty, tx] = 0
        right[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] else np.float32(0)
        cuda.syncthreads()
        for k in range(8):
            total += left[ty, k] * right[k, tx]  # BUG
        cuda.syncthreads()
    if i < out.shape[0]:
        out[i, j] = total


@pair("out_of_bounds", "global", "out", grid=(3, 2), block=(8, 8), make=lambda new: (image(12, 20), zeros((20, 12))),
      result=lambda x, out: x.T)  # fmt: skip
@cuda.jit
def partial_tile_written_by_the_guard_of_its_load(x, out, mended):
    """A tile that is transposed sticks out at another edge than the one at which it was loaded."""
    tile = cuda.shared.array((8, 9), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = 8 * cuda.blockIdx.y, 8 * cuda.blockIdx.x
    inside = row + ty < x.shape[0] and column + tx < x.shape[1]
    tile[ty, tx] = x[row + ty, column + tx] if inside else np.float32(0)
    cuda.syncthreads()
    if mended:
        inside = column + ty < x.shape[1] and row + tx < x.shape[0]
    if inside:
        out[column + ty, row + tx] = tile[tx, ty]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(256), zeros(64)),
      result=lambda x, out: x.reshape(4, 64)[:, ::-1].sum(0))  # fmt: skip
@cuda.jit
def prefetch_past_the_last_tile(x, out, mended):
    """The tile after the last is fetched as well, and never used."""
    s = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    tiles = x.size // 64
    total = np.float32(0)
    ahead = x[t]
    for k in range(tiles):
        s[k % 2, t] = ahead
        if not mended or k + 1 < tiles:
            ahead = x[64 * (k + 1) + t]  # BUG
        cuda.syncthreads()
        total += s[k % 2, 63 - t]
    out[t] = total


# -- memory cut into parts -------------------------------------------------------------------------------------------


@pair("race", "shared", "values", alias="keys", sharedmem=768, result=lambda x, out: x[::-1] + np.arange(64)[::-1])
@cuda.jit
def second_part_counted_in_elements_of_the_first(x, out, mended):
    """64 keys of 8 bytes take as much as 128 values of 4."""
    t = cuda.threadIdx.x
    keys = cuda.shared.array(0, np.int64)
    values = cuda.shared.array(0, np.float32)[128 if mended else 64 :]
    keys[t] = t  # WITH
    values[t] = x[t]  # BUG
    cuda.syncthreads()
    out[t] = values[63 - t] + np.float32(keys[63 - t])


@pair("race", "shared", "stack", result=lambda x, out: 6 + 4 * x)
@cuda.jit
def stack_grows_into_its_neighbour(x, out, mended):
    """Each thread has four places, and the fifth is its neighbour's first."""
    stack = cuda.shared.array(4 * 64 + 1, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(4 if mended else 5):
        stack[4 * t + k] = x[t] + np.float32(k)  # BUG
    for k in range(4):
        total += stack[4 * t + k]  # BUG
    out[t] = total


@pair("uninitialised_read", "global", "bodies[i].v", make=lambda new: (ramp(64), new(64, BODY), zeros(64)),
      result=lambda x, bodies, out: x + 1)  # fmt: skip
@cuda.jit
def field_of_a_record_never_set(x, bodies, out, mended):
    """Each body has a place, and no speed."""
    i = cuda.grid(1)
    bodies[i].x = x[i]
    if mended:
        bodies[i].v = 1
    out[i] = bodies[i].x + bodies[i].v  # BUG


def bodies_at_rest(new):
    bodies = np.zeros(64, BODY)
    bodies["x"] = ramp(64)
    return bodies, zeros(64)


@pair("race", "global", "bodies[i].x", alias="bodies[k].x", grid=2, block=32, make=bodies_at_rest,
      result=lambda bodies, out: (63 * 64 // 2 - 64 * bodies["x"]))  # fmt: skip
@cuda.jit
def bodies_moved_while_others_look(bodies, out, mended):
    """A body that has moved pulls the others from its new place: all must have looked before one moves."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    force = np.float32(0)
    for k in range(bodies.size):
        force += bodies[k].x - bodies[i].x  # WITH
    if mended:
        grid.sync()
    bodies[i].x += 1  # BUG
    out[i] = force


def seeded(new):
    states = np.zeros(128, cuda.random.xoroshiro128p_dtype)
    cuda.random.init_xoroshiro128p_states_cpu(states, 7, 0)
    return states, zeros(128)


@pair("race", "global", "states", grid=2, make=seeded, result=lambda states, out: np.ones(128))
@cuda.jit
def generators_by_the_thread_of_the_block(states, out, mended):
    """Threads of two blocks draw from one generator, and change it."""
    i = cuda.grid(1)
    mine = i if mended else cuda.threadIdx.x
    inside = cuda.random.xoroshiro128p_uniform_float32(states, mine) <= 1  # BUG
    out[i] = inside
