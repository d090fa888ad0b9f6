"""Attention for one query: a model writes a word, and looks at the keys and values of all words before.

Chapter: notebooks/75_attention.ipynb.  PMPP 5e ch. 20.

The keys and values of earlier words are kept, in a *KV cache*, and each new word has one query a head. A key is used
once for each head that shares it, and so is a value: a few FLOP for each byte. So memory is the bound, and there is
nothing to keep in a tile. What is left to do: read each key once for all heads that share it, have enough bytes under
way, and give every multiprocessor a part of the keys, even if there is one text and one head.

A cache may be *paged*: its memory is cut into pages of some keys each, and a table says which page has the next keys of
a text. Then texts of any length share one memory, and none is copied when it grows.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import decode_ahead, decode_fed, decode_on_tensor_cores, ladder
from pmpp.kernels.attention.decode_ahead import RING, ahead_kernel
from pmpp.kernels.attention.decode_fed import fed_kernel
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, matrix_kernel
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, as_scale, f0, finite_base, reshaped, zero_kernel
from pmpp.kernels.attention.streams import can_copy
from pmpp.kernels.attention.teams import BLOCK, MOST_HEADS, TEAM, TEAMS, joiner, loader, row_of
from pmpp.kernels.common import FULL_WARP, blocks, round_up, warp_max
from pmpp.kernels.common.division import divisor
from pmpp.kernels.matmul.warpgroups import counts_for
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.hopper import tensor_map
from pmpp.runtime.hopper_maps import launch_words
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import width_of

DTYPES = ("float32", "float16", "bfloat16")
LEAST_KEYS = 128  # of a part: a second launch has to pay
FULL = 4  # blocks of `split` that each multiprocessor should have
PART = 1 / 256  # of the time for all keys, what another part costs: its block begins, and what it found is joined
TURNS = 3  # texts and groups for each multiprocessor, from which on `fed` takes over
JOINING = 8  # warps that put together what the parts of a row have found
COLUMNS = MOST_SIZE // 32  # of a row, that a lane of them has


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    pages: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """The definition in float64, one query after another, on the keys that the table leads to."""
    out = np.zeros(q.shape)
    for b in range(q.shape[0]):
        table = [b] if pages is None else pages[b]
        rows = [(table[j // k.shape[2]], j % k.shape[2]) for j in range(lengths[b])]
        for h in range(q.shape[1]) if rows else ():
            group = h // (q.shape[1] // k.shape[1])
            keys, values = (np.array([x[page, group, j] for page, j in rows])[None, None] for x in (k, v))
            out[b, h] = ladder.reference(q[b, h][None, None, None], keys, values, scale=scale)[0, 0, 0]
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(q, k, v, lengths, pages, scale)``."""
    rng = np.random.default_rng(21) if rng is None else rng

    def case(lengths: list[int], size: int, heads: int = 1, groups: int = 1, page: int = 0, times: float = 1) -> tuple:
        table, room = None, max([*lengths, 1])
        rows = len(lengths)
        if page:
            wide = blocks(room, page)
            table = rng.permutation(rows * wide + 1)[: rows * wide].astype(np.int32).reshape(rows, wide)
            rows, room = rows * wide + 1, page
        q = times * rng.standard_normal((len(lengths), heads, size), dtype=np.float32)
        k, v = (rng.standard_normal((rows, groups, room, size), dtype=np.float32) for _ in range(2))
        return q, k, v, np.int32(lengths), table, None

    made = {"one": (*case([1], 1)[:5], 0.5), "no text": case([], 4), "no key yet": case([0, 3], 4)}
    made |= {"odd": case([35], 7, 3), "a head": case([130], 8), "different lengths": case([1, 40, 17], 12, 2, 2)}
    made |= {"four share": case([50], 32, 4, 1), "six share": case([9], 8, 6), "of 128": case([20], 128, 2)}
    made |= {"pages": case([7, 33], 8, 4, 2, page=16), "odd pages": case([20], 5, 1, page=3)}
    q, k, v, lengths, pages, scale = case([0, 0], 4, page=2)
    made["no page yet"] = q, k, v, lengths, pages[:, :0].copy(), scale
    made |= {"large scores": case([90], 8, times=300)}
    made["a long text"] = case([700], 4)
    for dtype in known(DTYPES[1:]):
        for name in ("of 128", "odd", "four share"):
            made[f"{name}, {dtype}"] = (*(x.astype(dtype) for x in made[name][:3]), *made[name][3:])
    q, k, v, lengths, pages, _ = made["odd, float16"]
    made["a negative scale, float16"] = q, k, v, lengths, pages, -0.7
    q, k, v, *rest = case([600], 8)
    made["a long text, float16"] = (*(x.astype(np.float16) for x in (q, k, v)), *rest)
    return made


def cost(batch: int, heads: int, groups: int, keys: int, size: int, each: int = 4) -> Cost:
    """Two products for each head and key; each key and value read once, queries read and results written.

    ``each``: bytes of an element.
    """
    return Cost(4 * batch * heads * keys * size, each * batch * (2 * groups * keys * size + 2 * heads * size))


def tolerance(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    pages: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """As `ladder.tolerance`, for the largest key and value that there are; 16 bits are rounded once, in the end."""
    if not q.size:
        return np.zeros(q.shape)
    u, size = 2.0**-24, 1 / math.sqrt(q.shape[2]) if scale is None else abs(float(scale))
    keys = np.abs(k.astype(np.float64)).reshape(-1, k.shape[3]).max(axis=0)
    off = u * (q.shape[2] + 6) * size * (np.abs(q.astype(np.float64)) @ keys)[..., None]
    found = (np.expm1(2 * off) + 2 * u * (7 * int(max(lengths, default=0)) + 16)) * np.abs(v.astype(np.float64)).max()
    return found if q.dtype == np.float32 else found + rounding(reference(q, k, v, lengths, pages, scale), q.dtype)


class Sizes(typing.NamedTuple):
    """What a launch tells its kernel.

    A group of keys serves ``shared`` heads of q, in ``turns`` blocks. ``page``: keys of a page. ``part``: keys of a
    block. ``page_times`` and ``page_shift`` divide by ``page``.
    """

    heads: int
    shared: int
    turns: int
    size: int
    page: int
    part: int
    page_times: int
    page_shift: int


def arguments(q, k, v, lengths, pages=None, scale=None, *, out=None, stream=0) -> Problem:
    """Attention of one query a head, on the first keys of a cache.

    Args:
        q: float32, float16 or bfloat16, shape (batch, heads, size), with size from 1 to 128. All arrays are in C order.
        k, v: of the dtype of q, shape (batch, groups, room, size), or with ``pages`` (number of pages, groups, page,
            size). groups divides heads: heads // groups neighbouring heads of q share a head of k and v.
        lengths: int32, shape (batch,): how many keys each text has. They are not checked: what is beyond the cache is
            read beyond it.
        pages: int32, shape (batch, most pages of a text): where in k and v the next keys are; None if a text has them
            side by side. They are not checked either.
        scale: what scores are multiplied by, a number from 1.2e-38 to 2e38 in size, or 0; None for 1 / sqrt(size). Its
            product with log2(e) and an element of q must be in the range of float32.
        out: a device array of the dtype and the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU. A text
    without a key gets zeros. The values must be finite, as in `ladder.arguments`. Texts times heads may be
    65535; more may be possible where heads share their keys.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Dao et al., Flash-Decoding, 2023; Kwon et al., PagedAttention, SOSP 2023.

    >>> from pmpp.kernels.attention import decode
    >>> q, k = np.zeros((1, 1, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    >>> v = np.float32([1, 3, 100]).reshape(1, 1, 3, 1).repeat(4, 3)
    >>> decode.split(q, k, v, np.int32([2]), scale=1.0).copy_to_host()
    array([[[2., 2., 2., 2.]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    q = device.as_input("q", q, dtypes=DTYPES, ndim=3, stream=stream)
    batch, heads, size = q.shape
    if not 1 <= size <= MOST_SIZE:
        raise ValueError(f"q must have a size from 1 to {MOST_SIZE} in its last dimension, had shape {q.shape}")
    first = batch if pages is None else None
    k = device.as_input("k", k, dtypes=q.dtype, ndim=4, shape=(first, None, None, size), stream=stream)
    groups, page = k.shape[1:3]
    if groups == 0 if heads else groups:
        raise ValueError(f"k must have {'at least one head' if heads else 'no head'}, as q, had shape {k.shape}")
    if heads and heads % groups:
        raise ValueError(f"k must have a number of heads that divides the {heads} of q, had {groups}")
    if not page:
        raise ValueError(f"k must have room for at least one key, had shape {k.shape}")
    v = device.as_input("v", v, dtypes=q.dtype, ndim=4, shape=k.shape, stream=stream)
    lengths = device.as_input("lengths", lengths, dtypes="int32", ndim=1, shape=(batch,), stream=stream)
    if pages is not None:
        pages = device.as_input("pages", pages, dtypes="int32", ndim=2, shape=(batch, None), stream=stream)
    most = page if pages is None else page * pages.shape[1]
    scale = as_scale(scale, size)
    apart = {"q": q, "k": k, "v": v, "lengths": lengths, "pages": pages}
    out = device.as_output("out", out, shape=q.shape, dtype=q.dtype, apart=apart, stream=stream)
    table = own_pages(max(batch, 1)) if pages is None else pages
    scale = np.float32(float(scale) * math.log2(math.e))
    shape = batch, heads, groups, page, size
    p = Problem(out, stream=stream, q=q, k=k, v=v, lengths=lengths, table=table, scale=scale, shape=shape, most=most)
    if out.size and not most:  # a table without columns: no text has a page
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](reshaped(out, (out.size,)))
        p.done = True
    return p


@device.cached(64)
def own_pages(batch: int) -> typing.Any:
    """The table of a cache that is not paged: a text has one page, its own."""
    return device.to_device(np.arange(batch, dtype=np.int32)[:, None])


# ---------------------------------------------------------------------------------------------------- teams of lanes


@functools.cache
def part_kernel(heads: int, wide: bool, width: int) -> typing.Any:
    """The kernel ``(q, k, v, lengths, table, highests, totals, means, scale, sizes)``, for so many heads a block.

    ``wide``: rows begin at multiples of 16 bytes. ``width``: elements in 16 bytes.

    Its grid has a block for each part, turn, group and text. It leaves for each head the highest score of the part, the
    sum of its weights and their mean of the values. All arrays but the table have one dimension.
    """

    per_lane, load = MOST_SIZE // (width * TEAM), loader(width, wide)  # vectors that a lane has of a key
    join_teams = joiner(heads, width)

    @cuda.jit
    def kernel(q, k, v, lengths, table, highests, totals, means, scale, sizes):
        own = cuda.local.array((heads, per_lane, width), np.float32)
        sums = cuda.local.array((heads, per_lane, width), np.float32)
        highest, total = cuda.local.array(heads, np.float32), cuda.local.array(heads, np.float32)
        keys, values = cuda.local.array((per_lane, width), np.float32), cuda.local.array((per_lane, width), np.float32)
        thread, size = cuda.threadIdx.x, sizes.size
        lane = thread % TEAM
        part, groups = cuda.blockIdx.x, sizes.heads // sizes.shared
        turn, group = cuda.blockIdx.y % sizes.turns, cuda.blockIdx.y // sizes.turns % groups
        text = cuda.blockIdx.y // sizes.turns // groups
        first_head = text * sizes.heads + group * sizes.shared + turn * heads
        for h in range(heads):
            row = min(first_head + h, q.size // size - 1)  # the last again, for what is not stored
            highest[h], total[h] = LEAST, f0
            for c in range(per_lane):
                vector = load(q, row, width * (lane + TEAM * c), size)
                for e in range(width):
                    own[h, c, e], sums[h, c, e] = vector[e] * scale, f0
        end = min(lengths[text], (part + 1) * sizes.part)
        first = part * sizes.part
        while first < end:
            j = first + thread // TEAM
            at = min(j, end - 1)  # a team without a key takes the last one, which then counts nothing
            row = row_of(table, text, np.int32(at), group, groups, sizes)
            for c in range(per_lane):  # all loads come first
                column = width * (lane + TEAM * c)
                key, value = load(k, row, column, size), load(v, row, column, size)
                for e in range(width):
                    keys[c, e], values[c, e] = key[e], value[e]
            for h in range(heads):
                score = f0
                for c in range(per_lane):
                    for e in range(width):
                        score += own[h, c, e] * keys[c, e]
                for distance in (1, 2, 4):
                    score += cuda.shfl_xor_sync(FULL_WARP, score, distance)
                if j >= end:
                    score = LEAST
                top = max(highest[h], score)
                base = finite_base(top)
                keep, weight = cuda.libdevice.exp2f(highest[h] - base), cuda.libdevice.exp2f(score - base)
                highest[h], total[h] = top, total[h] * keep + weight
                for c in range(per_lane):
                    for e in range(width):
                        sums[h, c, e] = sums[h, c, e] * keep + weight * values[c, e]
            first += TEAMS
        join_teams(
            highest, total, sums, highests, totals, means, first_head, min(heads, sizes.shared - turn * heads), sizes
        )

    return kernel


@device.cached(1)
def nothing() -> typing.Any:
    """An empty array: with a single part nobody needs its maximum and its sum."""
    return device.empty(0, np.float32)


def launch(p: Problem, most_heads: int, parts: int, kind: str = "") -> None:
    """A problem with up to so many heads a block, and with its keys in so many parts.

    ``kind``: "ahead" for `ahead_kernel`, "matrices" for `matrix_kernel` in 16 bits and `ahead_kernel` in 32, where 16
    bytes can be copied at a time and the GPU has the instructions and room. Where it has no room for `matrix_kernel`,
    it may have for `ahead_kernel`.
    """
    batch, heads, groups, page, size = p.shape
    shared = heads // groups
    q, k, v, out = (reshaped(x, (x.size,)) for x in (p.q, p.k, p.v, p.result))
    width = width_of(q.dtype)
    wide = size % width == 0 and not any(device.address(x) % 16 for x in (q, k, v))
    each = 1 if most_heads == 1 or shared == 1 else 2 if shared == 2 else MOST_HEADS
    half = q.dtype == np.float16
    if kind == "matrices" and wide and width == 8 and can_copy(decode_on_tensor_cores.SHARED):
        kernel, room, each = matrix_kernel("float16" if half else "bfloat16"), decode_on_tensor_cores.RING, HEADS
        q, k, v = (x.view(np.uint16) for x in (q, k, v))
    elif kind and wide and (width == 4 or half) and can_copy(decode_ahead.SHARED):  # no such copies of bfloat16
        kernel, room = ahead_kernel(each, width), RING
    else:
        kernel, room = part_kernel(each, wide, width), 0
    part = part_of(p.most, parts, bool(kind))
    parts = blocks(p.most, part)
    by_page = divisor(page, min(p.most, 2**31 - 1))
    sizes = Sizes(heads, shared, blocks(shared, each), size, page, part, *by_page)
    rows = batch * groups * sizes.turns
    if rows > 65535:
        raise ValueError(f"q must have so few texts and heads that 65535 blocks do for a part, needed {rows}")
    highests, totals, means = nothing(), nothing(), out
    if parts > 1:
        highests, totals = (device.empty(parts * batch * heads, np.float32, stream=p.stream) for _ in range(2))
        means = device.empty(parts * out.size, np.float32, stream=p.stream)
    given = q, k, v, p.lengths, p.table, highests, totals, means, p.scale, sizes
    kernel[(parts, rows), BLOCK, p.stream, room](*given)
    if parts > 1:
        combine_kernel[batch * heads, 32 * JOINING, p.stream](highests, totals, means, out, batch * heads, parts)


def can_feed(p: Problem) -> bool:
    """Whether `fed_kernel` takes this problem: a tile lies in one page, and its rows are whole lines of 128 bytes."""
    _, _, _, page, size = p.shape
    if device.limits()["compute_capability"] != decode_fed.CAPABILITY or p.q.dtype.itemsize != 2:
        return False
    if size not in decode_fed.SIZES or any(device.address(x) % 16 for x in (p.q, p.k, p.v)):
        return False
    few = p.k.size // decode_fed.LINE < 2**31 - 256  # the engine counts lines in an int32
    return few and (page % decode_fed.TILE_KEYS == 0 or page == p.most)


def rows_of(p: Problem) -> int:
    """How many times up to eight heads of a text share their keys."""
    batch, heads, groups, _, _ = p.shape
    return batch * groups * blocks(heads // groups, HEADS)


def launch_fed(p: Problem) -> None:
    """A problem by `fed_kernel`: all keys of heads that share them are the work of one block."""
    _, heads, groups, page, size = p.shape
    shared, line, rows = heads // groups, decode_fed.LINE, rows_of(p)
    q, k, v, out = (reshaped(x, (x.size,)) for x in (p.q, p.k, p.v, p.result))
    q, k, v = (x.view(np.uint16) for x in (q, k, v))
    box = decode_fed.TILE_KEYS * size // line, line
    maps = launch_words(*(tensor_map(x.reshape((x.size // line, line)), *box) for x in (k, v)))
    sizes = Sizes(heads, shared, blocks(shared, HEADS), size, page, p.most, *divisor(page, min(p.most, 2**31 - 1)))
    grid = min(rows, device.limits()["multiprocessors"])
    kernel = fed_kernel(str(p.q.dtype), size)[grid, decode_fed.THREADS, p.stream, decode_fed.RING]
    kernel(maps, q, p.lengths, p.table, counts_for(p.stream), out, p.scale, sizes, np.int64(rows))


def part_of(keys: int, parts: int, copied: bool) -> int:
    """Keys of a part, so that all teams have as many of them, and if they are copied all warps."""
    return round_up(blocks(keys, parts), 4 * TEAMS if copied else TEAMS)


@cuda.jit
def combine_kernel(highests, totals, means, out, rows, parts):
    """Put together what parts have found: a block for each row of the result. Its warps take the parts in turns."""
    sums, weights = cuda.shared.array((JOINING, MOST_SIZE), np.float32), cuda.shared.array(JOINING, np.float32)
    row, size, thread = cuda.blockIdx.x, out.size // rows, cuda.threadIdx.x
    warp, lane, top = thread // 32, thread % 32, LEAST
    for part in range(lane, parts, 32):
        top = max(top, highests[part * rows + row])
    base = finite_base(warp_max(top))
    added, total = cuda.local.array(COLUMNS, np.float32), f0
    for c in range(COLUMNS):
        added[c] = f0
    for part in range(warp, parts, JOINING):
        weight = totals[part * rows + row] * cuda.libdevice.exp2f(highests[part * rows + row] - base)
        total += weight
        for c in range(COLUMNS):
            column = lane + 32 * c
            if column < size:
                added[c] += weight * means[part * out.size + row * size + column]
    for c in range(COLUMNS):
        sums[warp, lane + 32 * c] = added[c]
    if lane == 0:
        weights[warp] = total
    cuda.syncthreads()
    if thread < size:
        value, total = f0, f0
        for w in range(JOINING):
            value += sums[w, thread]
            total += weights[w]
        out[row * size + thread] = value / total if total != f0 else f0


@rung(part_kernel)
def head_by_head(p):
    """A block for each head of q. Eight lanes have a key, and each team of eight an online softmax of its own.

    Source: as `pmpp.kernels.attention.online`.

    Leaves: heads that share keys read them again.
    """
    launch(p, 1, 1)


@rung(part_kernel)
def grouped(p):
    """A key that is in registers meets up to four heads of q.

    Source: Ainslie et al., GQA, EMNLP 2023.

    Leaves: one text with few heads has few blocks, and most of the GPU is idle.
    """
    launch(p, MOST_HEADS, 1)


@rung(part_kernel, combine_kernel)
def split(p):
    """The keys are cut into parts, each for a block of its own, and a second kernel puts together what they found.

    There are as many parts as keep the GPU busy, but each has at least 128 keys.

    Source: Dao et al., Flash-Decoding, 2023.

    Leaves: a team asks for a key and a value, and waits until they are there.
    """
    launch(p, MOST_HEADS, parts_of(p))


def parts_of(p: Problem) -> int:
    """Into how many parts `split` cuts the keys, so that each multiprocessor has a few blocks."""
    batch, _, groups, _, _ = p.shape
    wanted = blocks(FULL * device.limits()["multiprocessors"], max(batch * groups, 1))
    return max(1, min(wanted, p.most // LEAST_KEYS))


def long_parts(p: Problem) -> int:
    """Into how many parts the keys are cut for kernels of which a block or two keep a multiprocessor busy."""
    batch, heads, groups, _, _ = p.shape
    rows = batch * groups * blocks(heads // groups, HEADS if p.q.dtype.itemsize == 2 else MOST_HEADS)
    return few_parts(max(rows, 1), p.most, device.limits()["multiprocessors"])


@functools.lru_cache(1024)
def few_parts(rows: int, keys: int, multiprocessors: int) -> int:
    """How many parts leave few multiprocessors without work, and are few themselves.

    ``rows``: blocks of a part. Blocks have a multiprocessor each, or run in turns of two on each. In a last turn of a
    few blocks most of the memory's bandwidth is unused. Fewer parts have less to put together, and one has nothing.

    >>> few_parts(8, 131072, 132), few_parts(128, 8192, 132), few_parts(512, 8192, 132)
    (16, 1, 1)
    """

    def time(parts: int) -> float:
        count = rows * blocks(keys, part_of(keys, parts, True))
        at_once = multiprocessors if count <= multiprocessors else 2 * multiprocessors
        return blocks(count, at_once) * at_once / count + parts * PART

    return min(range(1, max(1, min(keys // LEAST_KEYS, 2 * multiprocessors)) + 1), key=time)


@rung(part_kernel, ahead_kernel, combine_kernel)
def ahead(p):
    """While a team computes with two keys, its next ones are on their way into shared memory.

    A thread copies what it needs itself, so there is no barrier. Two keys at a time also share one new maximum, and
    what was summed is scaled once for both. bfloat16 and rows that do not begin at multiples of 16 bytes go by `split`.

    Source: chapter 40 for the copies.

    Leaves: in 16 bits a key has half the bytes and as many multiply-adds, and these become the bound.
    """
    launch(p, MOST_HEADS, long_parts(p), "ahead")


@rung(part_kernel, ahead_kernel, matrix_kernel, combine_kernel)
def as_matrices(p):
    """In 16 bits tensor cores multiply up to eight heads with sixteen keys, and their weights with sixteen values.

    A weight is the sum of two numbers of 16 bits, so that it is not rounded before the result is. There are as few
    parts as keep the GPU busy to the end: a single one needs no second kernel. float32 goes by `ahead`, and so does
    float16 on GPUs with too little shared memory, of 100 KiB.

    Source: as `pmpp.kernels.attention.on_tensor_cores`.

    Leaves: every warp spends instructions on copies, and a new block has nothing to do until its first keys are there.
    """
    launch(p, MOST_HEADS, long_parts(p), "matrices")


@rung(part_kernel, ahead_kernel, matrix_kernel, fed_kernel, combine_kernel)
def fed(p):
    """On Hopper an engine brings the keys and values, and a multiprocessor that is done takes what nobody has yet.

    A block for each multiprocessor takes one text and group after the other. One of its threads asks for tiles of 128
    keys, and goes on to the block's next text while eight warps put together what they have found. `as_matrices` does
    the work where there are too few texts and groups for that, and where the engine cannot bring tiles: it needs 16
    bits, a size of 64 or 128, and pages that hold whole tiles.

    Source: chapter 43 for the engine.
    """
    if can_feed(p) and rows_of(p) >= TURNS * device.limits()["multiprocessors"]:
        launch_fed(p)
    else:
        as_matrices.launch(p)


LADDER = (head_by_head, grouped, split, ahead, as_matrices, fed)
