"""Merge: two sorted vectors become one that is sorted.

Chapter: notebooks/41_merge.ipynb.  PMPP 4e ch. 12; 5e ch. 13.

Each element is read once and written once, and an output needs one comparison: memory is the bound. The difficulty is
that one merge looks sequential: what comes next depends on what has been taken. A thread can begin in the middle of the
output if it knows how many elements of each vector come before. A binary search finds that: the co-rank.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("int32", "float32")
BLOCK = 256  # threads a block
PIECE = 8  # outputs of a thread: of `co_ranked` in all, of `tiled` and `circular_buffer` in each round
ROUND = BLOCK * PIECE  # outputs of a block in a round; a power of two, so that a remainder is a mask
SECTION = 8 * ROUND  # outputs of a block: it takes eight rounds
ITEMS = 15  # outputs of a thread of `partitioned` and `vectorised`: odd, so that a warp's lanes use 32 banks
TILE = BLOCK * ITEMS  # outputs of a block
VECTORS = 4  # 128-bit accesses of a thread: together 16 elements, so they cover a tile and what alignment adds
LOADED = 4 * VECTORS  # elements that a thread loads so
PLACES = TILE + 16  # of a tile in shared memory, with that: up to three elements at either end of two parts


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Take the smaller one of the two first elements that are left; ``a``'s if they are equal. NaN comes last."""
    merged, i, j = [], 0, 0
    while i < a.size or j < b.size:
        if j == b.size or (i < a.size and (a[i] <= b[j] or np.isnan(b[j]))):
            merged.append(a[i])
            i += 1
        else:
            merged.append(b[j])
            j += 1
    return np.array(merged, a.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(41) if rng is None else rng

    def both(n: int, m: int) -> tuple:
        return tuple(np.sort(rng.integers(-(2**31), 2**31, size, dtype=np.int32)) for size in (n, m))

    made: dict[str, tuple] = {"empty": both(0, 0), "one": both(1, 0), "one and one": both(1, 1)}
    made["nothing and many"], made["many and nothing"] = both(0, TILE + 5), both(ROUND + 5, 0)
    made |= {f"a tile {d:+}": both(TILE // 2 + d, TILE - TILE // 2) for d in (-1, 0, 1)}
    made |= {f"a round {d:+}": both(ROUND // 2, ROUND // 2 + d) for d in (-1, 0, 1)}
    made["several tiles"] = both(TILE + 700, 2 * TILE - 301)
    made["many tiles"] = both(5 * TILE + 11, 4 * TILE + 3)
    made["a section and more"] = both(SECTION // 3, SECTION - SECTION // 3 + 100)
    made["one among many"] = np.int32([7]), np.arange(-2000, 3000, dtype=np.int32)
    made["all of a first"] = np.arange(3000, dtype=np.int32), np.arange(3000, 8001, dtype=np.int32)
    made["all of b first"] = np.arange(3000, 8001, dtype=np.int32), np.arange(3000, dtype=np.int32)
    made["all equal"] = np.full(2500, 3, np.int32), np.full(3001, 3, np.int32)
    made["the largest and the smallest"] = (
        np.repeat(np.int32([-(2**31), 2**31 - 1]), 900),
        np.repeat(np.int32([-(2**31), 0, 2**31 - 1]), 700),
    )
    made["few values"] = tuple(np.sort(rng.integers(0, 5, n).astype(np.int32)) for n in (TILE, TILE + 9))
    made["float32"] = tuple(np.sort(rng.standard_normal(n, dtype=np.float32)) for n in (2000, TILE))
    zeros = np.zeros(1500, np.float32)
    made["-0 and 0 are equal"] = zeros, -zeros[:1301]  # which of them comes first shows whether a merge is stable
    odd = np.float32([-np.inf, -3e38, -1e-45, -0.0, 0.0, 1e-45, 3e38, np.inf, np.nan])
    made["not finite, and nearly 0"] = np.repeat(odd, 210), np.repeat(odd, 250)
    made["nothing but NaN"] = np.full(700, np.nan, np.float32), np.full(601, np.nan, np.float32)
    made["NaN in b alone"] = np.arange(1200, dtype=np.float32), np.sort(np.float32([np.nan] * 1000 + [1, 2]))
    made["NaN in a alone"] = np.sort(np.float32([np.nan] * 1000 + [1, 2])), np.arange(1200, dtype=np.float32)
    return made


def cost(n: int, m: int, itemsize: int = 4) -> Cost:
    """``a`` and ``b`` read once, and the result written once. To compare counts as no operation."""
    return Cost(flops=0, bytes=2 * (n + m) * itemsize)


def tolerance(a: np.ndarray, b: np.ndarray) -> float:
    """Nothing is computed: every element is one of the inputs."""
    return 0.0


def arguments(a, b, *, out=None, stream=0) -> Problem:
    """Merge two sorted vectors.

    Args:
        a: a contiguous vector (n,), n >= 0, of int32 or float32, in ascending order with NaNs last, as NumPy sorts.
        b: another one (m,), m >= 0, of the same dtype.
        out: a contiguous device array (n + m,) of that dtype for the result, apart from ``a`` and ``b`` in memory, or
            None to allocate one.
        stream: the stream to work on.

    Returns a device array (n + m,) of their dtype, without waiting for the work to be done. The merge is stable: of
    equal elements, those of ``a`` come first. -0 and 0 are equal, and so are all NaNs, which come last. Whether ``a``
    and ``b`` are sorted is not checked: that would be another pass over memory. If they are not, neither is the
    result, and it need not have each element once.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``np.sort(np.concatenate([a, b]), kind="stable")``.

    >>> from pmpp.kernels import merge
    >>> merge.vectorised(np.int32([1, 4, 6]), np.int32([2, 4, 5, 9])).copy_to_host()
    array([1, 2, 4, 4, 5, 6, 9], dtype=int32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=1, stream=stream)
    b = device.as_input("b", b, dtypes=a.dtype, ndim=1, stream=stream)
    out = device.as_output("out", out, shape=(a.size + b.size,), dtype=a.dtype, apart={"a": a, "b": b}, stream=stream)
    return Problem(out, stream=stream, a=a, b=b, out=out)


@cuda.jit(device=True)
def goes_first(y, x):
    """Whether ``y`` of b comes before ``x`` of a: if it is less, or if x is a NaN and y is none."""
    return not y >= x and y == y


@cuda.jit(device=True)
def co_rank_between(low, high, k, a, b):
    """`co_rank`, if it is known to be from ``low`` to ``high``: a binary search."""
    while low < high:
        i = low + high >> 1
        if goes_first(b[k - 1 - i], a[i]):  # then at least k elements come before a[i]
            high = i
        else:
            low = i + 1
    return low


@cuda.jit(device=True)
def co_rank(k, a, b):
    """How many of the first ``k`` outputs come from ``a``; the others come from ``b``."""
    return co_rank_between(max(0, k - b.size), min(k, a.size), k, a, b)


@cuda.jit(device=True)
def merge_piece(a, i, b, j, out, k, end):
    """out[k:end], from a[i] and b[j] on, one output after another."""
    while k < end:
        if i < a.size and (j >= b.size or not goes_first(b[j], a[i])):
            out[k] = a[i]
            i += 1
        else:
            out[k] = b[j]
            j += 1
        k += 1


@cuda.jit
def co_ranked_kernel(a, b, out):
    k = np.int64(cuda.grid(1)) * PIECE
    if k < out.size:
        i = co_rank(k, a, b)
        merge_piece(a, i, b, k - i, out, k, min(k + PIECE, out.size))


@rung(co_ranked_kernel)
def co_ranked(p):
    """A thread takes eight outputs. A binary search says where they begin in ``a`` and in ``b``; then it merges.

    Source: PMPP 4e sections 12.3 and 12.4; 5e chapter 13.

    Leaves: every thread searches the whole vectors, 28 steps for 2^28 elements, and each step waits for memory. Then
    the lanes of a warp read and write 32 separate places.
    """
    co_ranked_kernel[blocks(p.out.size, BLOCK * PIECE), BLOCK, p.stream](p.a, p.b, p.out)


@cuda.jit(device=True)
def section_of(a, b, first, last, ends):
    """Where outputs first to last come from: from a[i:i_end], and from b beginning at first - i. Returns i and i_end.

    ``ends``: a shared array of two. The second end is kept to what is possible, also if the input is not sorted.
    """
    if cuda.threadIdx.x < 2:
        ends[cuda.threadIdx.x] = co_rank(first if cuda.threadIdx.x == 0 else last, a, b)
    cuda.syncthreads()
    return ends[0], max(ends[0], min(ends[1], ends[0] + last - first))


@cuda.jit
def tiled_kernel(a, b, out):
    thread = cuda.threadIdx.x
    tile_a, tile_b = cuda.shared.array(ROUND, a.dtype), cuda.shared.array(ROUND, a.dtype)
    k = np.int64(cuda.blockIdx.x) * SECTION
    last = min(k + SECTION, out.size)
    i, i_end = section_of(a, b, k, last, cuda.shared.array(2, np.int64))
    j, j_end = k - i, last - i_end
    while k < last:
        in_a, in_b = min(ROUND, i_end - i), min(ROUND, j_end - j)
        for at in range(thread, in_a, BLOCK):
            tile_a[at] = a[i + at]
        for at in range(thread, in_b, BLOCK):
            tile_b[at] = b[j + at]
        cuda.syncthreads()

        count = min(ROUND, last - k)  # for as many, the tiles have enough of both
        mine = min(thread * PIECE, count)
        used = co_rank(mine, tile_a[:in_a], tile_b[:in_b])
        end = min(mine + PIECE, count)
        merge_piece(tile_a[:in_a], used, tile_b[:in_b], mine - used, out[k:], mine, end)
        used = co_rank(count, tile_a[:in_a], tile_b[:in_b])  # of a, by the whole block
        i, j, k = i + used, j + count - used, k + count
        cuda.syncthreads()


@rung(tiled_kernel)
def tiled(p):
    """A block finds its section of the output once. It merges from tiles in shared memory, and threads search those.

    Source: PMPP 4e section 12.5; 5e chapter 13.

    Leaves: a round loads as many elements of each vector as it has outputs, and uses half of them. The rest is loaded
    again in the next round.
    """
    tiled_kernel[blocks(p.out.size, SECTION), BLOCK, p.stream](p.a, p.b, p.out)


@cuda.jit(device=True)
def co_rank_in_rings(k, ring_a, start_a, in_a, ring_b, start_b, in_b):
    """`co_rank` in rings of ROUND places: element i of a is at (start_a + i) modulo ROUND."""
    low, high = max(0, k - in_b), min(k, in_a)
    while low < high:
        i = low + high >> 1
        if goes_first(ring_b[(start_b + k - 1 - i) & (ROUND - 1)], ring_a[(start_a + i) & (ROUND - 1)]):
            high = i
        else:
            low = i + 1
    return low


@cuda.jit
def circular_buffer_kernel(a, b, out):
    thread = cuda.threadIdx.x
    ring_a, ring_b = cuda.shared.array(ROUND, a.dtype), cuda.shared.array(ROUND, a.dtype)
    k = np.int64(cuda.blockIdx.x) * SECTION
    last = min(k + SECTION, out.size)
    i, i_end = section_of(a, b, k, last, cuda.shared.array(2, np.int64))
    j, j_end = k - i, last - i_end
    left_a, left_b = np.int64(0), np.int64(0)  # elements in the rings that no round has used
    while k < last:
        # a[i] has the place i modulo ROUND in its ring, so what is left from the last round is where it belongs.
        in_a, in_b = min(ROUND, i_end - i), min(ROUND, j_end - j)
        for at in range(left_a + thread, in_a, BLOCK):
            ring_a[(i + at) & (ROUND - 1)] = a[i + at]
        for at in range(left_b + thread, in_b, BLOCK):
            ring_b[(j + at) & (ROUND - 1)] = b[j + at]
        cuda.syncthreads()

        count = min(ROUND, last - k)
        mine = min(thread * PIECE, count)
        ia = co_rank_in_rings(mine, ring_a, i, in_a, ring_b, j, in_b)
        ib = mine - ia
        for at in range(mine, min(mine + PIECE, count)):
            place_a, place_b = (i + ia) & (ROUND - 1), (j + ib) & (ROUND - 1)
            if ia < in_a and (ib >= in_b or not goes_first(ring_b[place_b], ring_a[place_a])):
                out[k + at] = ring_a[place_a]
                ia += 1
            else:
                out[k + at] = ring_b[place_b]
                ib += 1
        used = co_rank_in_rings(count, ring_a, i, in_a, ring_b, j, in_b)
        left_a, left_b = in_a - used, in_b - (count - used)
        i, j, k = i + used, j + count - used, k + count
        cuda.syncthreads()


@rung(circular_buffer_kernel)
def circular_buffer(p):
    """What a round leaves in its tiles stays there. The next one loads only what is missing, around the end of a ring.

    Source: PMPP 4e section 12.6; 5e chapter 13.

    Leaves: each access computes a remainder, rounds follow one another with barriers between them, and a thread still
    writes its eight outputs side by side, so that 32 lanes write to 32 sectors.
    """
    circular_buffer_kernel[blocks(p.out.size, SECTION), BLOCK, p.stream](p.a, p.b, p.out)


@cuda.jit
def borders_kernel(a, b, borders):
    """For each tile's first output, and the end of the last tile, how many elements of a come before it.

    The search begins at multiples of TILE. As k is one, too, all threads look at the same few elements: one of TILE in
    a, and one of TILE in b. These stay in the cache.
    """
    tile = np.int64(cuda.grid(1))
    if tile < borders.size:
        k = min(tile * TILE, a.size + b.size)
        low, high = max(0, k - b.size), min(k, a.size)
        while high - low >= 2 * TILE:
            i = (low + high) // (2 * TILE) * TILE
            if goes_first(b[k - 1 - i], a[i]):
                high = i
            else:
                low = i + 1
        borders[tile] = co_rank_between(low, high, k, a, b)


@cuda.jit(device=True)
def tile_of(borders, tile, size):
    """Where a tile comes from: from a[i], in_a elements, and from b[j], in_b elements.

    The numbers stay within the tile also if the input is not sorted.
    """
    k = tile * TILE
    count = min(np.int64(TILE), size - k)
    i = borders[tile]
    in_a = max(np.int64(0), min(borders[tile + 1] - i, count))
    return i, k - i, np.uint32(in_a), np.uint32(count - in_a)


@cuda.jit(device=True)
def largest(a, b):
    """The last element of the merged vector."""
    if b.size == 0 or (a.size > 0 and goes_first(b[b.size - 1], a[a.size - 1])):
        return a[a.size - 1]
    return b[b.size - 1]


@cuda.jit(device=True)
def load_tile(a, i, in_a, b, j, count, tile):
    """a's part of the tile to tile[:in_a], and b's behind it. Neighbouring lanes load neighbouring elements.

    The last tile is filled up with the largest element, so that every thread has ITEMS outputs.
    """
    for item in range(ITEMS):
        at = np.uint32(item * BLOCK + cuda.threadIdx.x)
        if at < in_a:
            tile[at] = a[i + at]
        elif at < count:
            tile[at] = b[j + at - in_a]
    for at in range(count + cuda.threadIdx.x, TILE, BLOCK):
        tile[at] = largest(a, b)


@cuda.jit(device=True)
def merge_items(tile, i, i_end, j, j_end, mine):
    """This thread's outputs of the tile into ``mine``, from a's tile[i:i_end] and b's tile[j:j_end] in shared memory.

    An index is uint32: Numba would compare a signed one with 0, to count from the end.
    """
    k = np.uint32(cuda.threadIdx.x * ITEMS)
    in_b = np.uint32(j_end - j)
    low, high = np.uint32(k - min(k, in_b)), min(k, np.uint32(i_end - i))
    while low < high:
        middle = np.uint32(low + high) >> np.uint32(1)
        if goes_first(tile[np.uint32(j + k - np.uint32(1) - middle)], tile[np.uint32(i + middle)]):
            high = middle
        else:
            low = np.uint32(middle + np.uint32(1))
    i, j = np.uint32(i + low), np.uint32(j + k - low)
    last = np.uint32(j_end - np.uint32(1))  # nothing is read behind it, also when one of the two is used up
    x, y = tile[min(i, last)], tile[min(j, last)]
    for step in range(ITEMS):
        from_a = i < i_end and (j >= j_end or not goes_first(y, x))
        mine[step] = x if from_a else y
        following = np.uint32((i if from_a else j) + np.uint32(1))
        value = tile[min(following, last)]  # one load, whichever of the two was taken
        if from_a:
            i, x = following, value
        else:
            j, y = following, value


@cuda.jit
def partitioned_kernel(a, b, borders, out):
    thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * TILE
    tile, mine = cuda.shared.array(TILE, a.dtype), cuda.local.array(ITEMS, a.dtype)
    i, j, in_a, in_b = tile_of(borders, np.int64(cuda.blockIdx.x), out.size)
    count = np.uint32(in_a + in_b)
    load_tile(a, i, in_a, b, j, count, tile)
    cuda.syncthreads()

    merge_items(tile, np.uint32(0), in_a, in_a, np.uint32(TILE), mine)
    cuda.syncthreads()  # all have read the tile, and now it takes the outputs
    for item in range(ITEMS):
        tile[np.uint32(thread * ITEMS + item)] = mine[item]
    cuda.syncthreads()
    for item in range(ITEMS):
        at = np.uint32(item * BLOCK + thread)
        if at < count:
            out[first + at] = tile[at]


def borders_of(p):
    """How many elements of ``a`` come before each tile, computed on the device."""
    borders = device.empty(blocks(p.out.size, TILE) + 1, np.int64, stream=p.stream)
    borders_kernel[blocks(borders.size, BLOCK), BLOCK, p.stream](p.a, p.b, borders)
    return borders


@rung(borders_kernel, partitioned_kernel)
def partitioned(p):
    """A first kernel finds where every tile begins in ``a`` and ``b``. So a block loads exactly what it merges, once.

    A thread merges fifteen outputs into registers. They go to shared memory, and from there side by side to ``out``.

    Source: Green, McColl and Bader, "GPU merge path: a GPU merging algorithm", ICS 2012; S. Baxter, Modern GPU.

    Leaves: fifteen loads and fifteen stores of 4 bytes a thread, each with an address and a comparison of its own.
    """
    partitioned_kernel[blocks(p.out.size, TILE), BLOCK, p.stream](p.a, p.b, borders_of(p), p.out)


@cuda.jit(device=True)
def places_of(first, count):
    """Where x[first:first + count] goes if its vectors go to shared memory: behind ``skip`` elements, in ``room``.

    A vector begins at a multiple of four elements. So the first one may have up to three that belong to another tile.
    """
    if count == 0:
        return np.uint32(0), np.uint32(0)
    skip = np.uint32(first & 3)
    return skip, np.uint32((skip + count + 3) // 4 * 4)


@cuda.jit(device=True)
def load_vectors(a, i, room_a, b, j, room, tile):
    """From a[i] and b[j] on, vectors to tile[:room_a] and to tile[room_a:room]. All loads come before the stores."""
    loaded = cuda.local.array(LOADED, a.dtype)
    for v in range(VECTORS):
        at = np.uint32(4 * (v * BLOCK + cuda.threadIdx.x))
        if at < room_a:
            loaded[4 * v], loaded[4 * v + 1], loaded[4 * v + 2], loaded[4 * v + 3] = load128(a, i + at)
        elif at < room:
            loaded[4 * v], loaded[4 * v + 1], loaded[4 * v + 2], loaded[4 * v + 3] = load128(b, j + at - room_a)
    for v in range(VECTORS):
        at = np.uint32(4 * (v * BLOCK + cuda.threadIdx.x))
        if at < room:
            store128(tile, at, (loaded[4 * v], loaded[4 * v + 1], loaded[4 * v + 2], loaded[4 * v + 3]))


@cuda.jit(max_registers=32)  # so that eight blocks fit on a multiprocessor, which has 65,536
def vectorised_kernel(a, b, borders, out):
    thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * TILE
    tile, mine = cuda.shared.array(PLACES, a.dtype), cuda.local.array(ITEMS, a.dtype)
    i, j, in_a, in_b = tile_of(borders, np.int64(cuda.blockIdx.x), out.size)
    count = np.uint32(in_a + in_b)
    skip_a, room_a = places_of(i, in_a)
    skip_b, room_b = places_of(j, in_b)
    if count == TILE and i - skip_a + room_a <= a.size and j - skip_b + room_b <= b.size:
        load_vectors(a, i - skip_a, room_a, b, j - skip_b, np.uint32(room_a + room_b), tile)
    else:  # a vector at an end of a or b does not exist as a whole
        skip_a, room_a, skip_b = np.uint32(0), in_a, np.uint32(0)
        load_tile(a, i, in_a, b, j, count, tile)
    cuda.syncthreads()

    begin_b = np.uint32(room_a + skip_b)
    merge_items(tile, skip_a, np.uint32(skip_a + in_a), begin_b, np.uint32(begin_b + TILE - in_a), mine)
    cuda.syncthreads()
    for item in range(ITEMS):
        tile[np.uint32(thread * ITEMS + item)] = mine[item]
    cuda.syncthreads()
    if count == TILE:
        for v in range(VECTORS):
            at = np.uint32(4 * (v * BLOCK + thread))
            if at < TILE:
                store128(out, first + at, load128(tile, at))
    else:
        for at in range(thread, count, BLOCK):
            out[first + at] = tile[at]


@rung(borders_kernel, vectorised_kernel, partitioned_kernel)
def vectorised(p):
    """One access moves four elements. A tile's vectors begin up to three elements early, and the merge skips these.

    A tile with an incomplete vector, at the end of ``a`` or ``b``, is loaded element by element. Arrays that do not
    begin at a multiple of 16 bytes are merged by `partitioned`.

    Source: CUDA C++ programming guide, "Device memory accesses".
    """
    if any(device.address(x) % 16 for x in (p.a, p.b, p.out)):
        partitioned.launch(p)
    else:
        vectorised_kernel[blocks(p.out.size, TILE), BLOCK, p.stream](p.a, p.b, borders_of(p), p.out)


LADDER = (co_ranked, tiled, circular_buffer, partitioned, vectorised)
