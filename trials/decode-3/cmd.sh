#!/bin/bash
# seconds: 25
# gpus: 1
cat > probe3.py <<'EOF_probe3.py'
import os, sys, time, traceback, importlib
T0 = time.time()
import numpy as np
from pmpp.kernels.attention import decode, decode_fed, decode_workloads as W
from pmpp.lab.measure import timing
from pmpp.lab.measure.bench import adapter
from pmpp.runtime import device

def say(*a):
    print(f"[{time.time()-T0:5.1f}]", *a, flush=True)

sets = [W.make(W.DESIGN, s, "float16") for s in (1, 2)]
outs = [device.empty((64, 32, 128), "float16") for _ in sets]

def fed(whole, parts, module):
    def call(q, k, v, lengths, *rest):
        import old_decode as old
        old.fed_kernel, old.decode_fed = module.fed_kernel, module
        p = old.arguments(q, k, v, lengths, *rest[:-1], out=rest[-1])
        old.launch_fed(p, whole, parts)
        return rest[-1]
    return call

def forced(q, k, v, lengths, *rest):
    decode.launch_fed(decode.arguments(q, k, v, lengths, *rest[:-1], out=rest[-1]))
    return rest[-1]

def rung(q, k, v, lengths, *rest):
    return decode.as_matrices(q, k, v, lengths, *rest[:-1], out=rest[-1])

def final(q, k, v, lengths, *rest):
    return decode.fed(q, k, v, lengths, *rest[:-1], out=rest[-1])

full = [(*s, o) for s, o in zip(sets, outs)]
package, convert = adapter("torch")
import torch
say("imports, inputs")
timer = timing.gpu_timer()

def sdpa(q, k, v, lengths, out):
    return W.torch_attention(torch, q, k, v, lengths, out)

def attempt(fn):
    try:
        fn()
    except Exception:
        say("FAILED"); traceback.print_exc()

def group(title, named, arg_sets, torch_sets, nbytes, repeats=25, seconds=0.2):
    cs = {n: timing.Contender(f, torch_sets if n.startswith("torch") else arg_sets, cache="cold", set_bytes=nbytes) for n, f in named.items()}
    got = timing.measure_together(cs, timer=timer, rule=timing.Rule(spread=0.003, min_repeats=repeats, max_repeats=repeats + 15, max_seconds=seconds))
    base = got.get("torch")
    for name, t in got.items():
        if isinstance(t, Exception):
            say(title, name, "FAILED", repr(t)[:600])
        else:
            ratio = base.median / t.median if base is not None and not isinstance(base, Exception) else 0
            say(f"{title:8s} {name:16s} {t.median*1e6:8.2f} us [{t.low*1e6:.1f} {t.high*1e6:.1f}] n{t.repeats} x{t.batch} torch/it {ratio:.4f}")

tfull = [tuple(convert(x) for x in s) for s in full]
nb = W.decode.cost(64, 32, 8, 8192, 128, 2).bytes
B = {"torch": sdpa, "rung": rung}

def check(name, fn, args=None):
    args = args or full[0]
    rung(*args); timer.synchronize()
    like = device.to_host(args[-1]).astype("float32")
    found = []
    for _ in range(5):
        fn(*full[1][:len(args) - 1] if len(args) == 5 and args[0].shape[0] == 64 else args[:-1], args[-1])
        fn(*args); timer.synchronize()
        found.append(device.to_host(args[-1]))
    off = float(abs(found[0].astype("float32") - like).max())
    same = all((f.view(np.uint16) == found[0].view(np.uint16)).all() for f in found)
    say("check", name, off, "" if off < 4e-4 else "WRONG", "" if same else "BITS DIFFER")

def main():
    rung(*full[0]); timer.synchronize(); say("rung compiled")
    final(*full[0]); timer.synchronize(); say("final compiled")
    check("final", final)
    group("final", {**B, "final": final}, full, tfull, nb)
attempt(main)

def variants():
    named = {}
    for n, plans in (("t3", [(512, 1), (396, 4), (396, 8)]), ("t2", [(512, 1), (396, 8)])):
        def go():
            m = importlib.import_module("fed_" + n)
            fed(512, 1, m)(*full[0]); timer.synchronize(); say(n, "compiled")
            check(n, fed(512, 1, m))
            named.update({f"{n} {w}+{p}": fed(w, p, m) for w, p in plans})
        attempt(go)
        if time.time() - T0 > 16:
            break
    group("variants", {**B, **named, "final": final}, full, tfull, nb)

def small():
    lens = device.to_device(np.random.default_rng(5).integers(0, 8193, 64).astype(np.int32))
    check("lengths", final, (*full[0][:3], lens, outs[0]))
    table = device.to_device(np.random.default_rng(6).permutation(4096).astype(np.int32).reshape(64, 64))
    q, k, v = full[0][:3]
    check("pages", final, (q, *[x.reshape((4096, 8, 128, 128)) for x in (k, v)], lens, table, outs[0]))
    for b, ps in {32: [1], 16: [1], 4: [], 1: []}.items():
        cut = [tuple(x[i * b:(i + 1) * b] for x in s[:3]) + (s[3][:b], o[i * b:(i + 1) * b]) for s, o in zip(sets, outs) for i in range(min(64 // b, 4))]
        tcut = [tuple(convert(x) for x in s) for s in cut]
        group(f"b{b}", {**B, "final": final, **({"forced": forced} if ps else {})}, cut, tcut, nb // 64 * b, 15, 0.1)
attempt(small)
attempt(variants)
say("done")

EOF_probe3.py
cat > old_decode.py <<'EOF_old_decode.py'
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
from pmpp.kernels.attention import decode_ahead, decode_on_tensor_cores, ladder
from pmpp.kernels.attention.decode_ahead import RING, ahead_kernel
from fed_t3 import Work, fed_kernel
import fed_t3 as decode_fed
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, matrix_kernel
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, finite_base, reshaped
from pmpp.kernels.attention.streams import can_copy
from pmpp.kernels.attention.teams import BLOCK, MOST_HEADS, TEAM, TEAMS, joiner, loader, row_of
from pmpp.kernels.common import FULL_WARP, blocks, round_up, warp_max
from pmpp.kernels.common.division import divisor
from pmpp.kernels.matmul.warpgroups import ARRIVALS, counts_for
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.hopper import tensor_map
from pmpp.runtime.hopper_maps import launch_words
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import width_of

DTYPES = ("float32", "float16", "bfloat16")
LEAST_KEYS = 128  # of a part: a second launch has to pay
FULL = 4  # blocks of `split` that each multiprocessor should have
PART = 1 / 256  # of the time for all keys, what another part costs: its block begins, and what it found is joined
FINE = 8  # parts of a row that is cut so that all multiprocessors end at the same time
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
    made |= {"large scores": case([90], 8, times=300)}
    made["a long text"] = case([700], 4)
    for dtype in known(DTYPES[1:]):
        for name in ("of 128", "odd", "four share"):
            made[f"{name}, {dtype}"] = (*(x.astype(dtype) for x in made[name][:3]), *made[name][3:])
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
    u, scale = 2.0**-24, 1 / math.sqrt(q.shape[2]) if scale is None else abs(float(scale))
    keys = np.abs(k.astype(np.float64)).reshape(-1, k.shape[3]).max(axis=0)
    off = u * (q.shape[2] + 6) * scale * (np.abs(q.astype(np.float64)) @ keys)[..., None]
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
        scale: a finite number to multiply the scores by; None for 1 / sqrt(size).
        out: a device array of the dtype and the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU. A text
    without a key gets zeros.
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
    if not groups or heads % groups:
        raise ValueError(f"k must have a number of heads that divides the {heads} of q, had {groups}")
    if not page:
        raise ValueError(f"k must have room for at least one key, had shape {k.shape}")
    v = device.as_input("v", v, dtypes=q.dtype, ndim=4, shape=k.shape, stream=stream)
    lengths = device.as_input("lengths", lengths, dtypes="int32", ndim=1, shape=(batch,), stream=stream)
    if pages is not None:
        pages = device.as_input("pages", pages, dtypes="int32", ndim=2, shape=(batch, None), stream=stream)
    most = page if pages is None else page * pages.shape[1]
    scale = np.float32(1 / math.sqrt(size)) if scale is None else as_number("scale", scale)
    apart = {"q": q, "k": k, "v": v, "lengths": lengths, "pages": pages}
    out = device.as_output("out", out, shape=q.shape, dtype=q.dtype, apart=apart, stream=stream)
    table = own_pages(max(batch, 1)) if pages is None else pages
    scale = np.float32(float(scale) * math.log2(math.e))
    shape = batch, heads, groups, page, size
    return Problem(out, stream=stream, q=q, k=k, v=v, lengths=lengths, table=table, scale=scale, shape=shape, most=most)


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
    there = device.limits()["compute_capability"] == decode_fed.CAPABILITY and p.q.dtype.itemsize == 2
    side_by_side = page % decode_fed.TILE_KEYS == 0 or page == p.most
    lines = p.k.size // decode_fed.LINE < 2**31 - 256  # the engine has them in an int32
    return (
        there
        and size in decode_fed.SIZES
        and side_by_side
        and lines
        and not any(device.address(x) % 16 for x in (p.q, p.k, p.v))
    )


def launch_fed(p: Problem, whole: int, parts: int) -> None:
    """A problem by `fed_kernel`: the first ``whole`` rows are not cut, and all others are, into about so many parts."""
    batch, heads, groups, page, size = p.shape
    shared = heads // groups
    turns = blocks(shared, HEADS)
    rows = batch * groups * turns
    part = round_up(blocks(p.most, parts), decode_fed.TILE_KEYS)
    parts = blocks(p.most, part)
    whole = rows if parts == 1 else min(whole, rows)
    rest = (rows - whole) * parts
    sizes = Sizes(heads, shared, turns, size, page, part, *divisor(page, min(p.most, 2**31 - 1)))
    q, k, v, out = (reshaped(x, (x.size,)) for x in (p.q, p.k, p.v, p.result))
    q, k, v = (x.view(np.uint16) for x in (q, k, v))
    boxes = decode_fed.TILE_KEYS * size // decode_fed.LINE
    maps = (tensor_map(x.reshape((x.size // decode_fed.LINE, decode_fed.LINE)), boxes, decode_fed.LINE) for x in (k, v))
    highests, totals = (device.empty(rest * HEADS * decode_fed.WARPS, np.float32, stream=p.stream) for _ in range(2))
    added = device.empty(rest * HEADS * size, np.float32, stream=p.stream)
    grid = min(whole + rest, decode_fed.BLOCKS * device.limits()["multiprocessors"])
    given = q, p.lengths, p.table, counts_for(p.stream), highests, totals, added, out, p.scale, sizes
    kernel = fed_kernel(str(p.q.dtype), size)[grid, decode_fed.THREADS, p.stream, decode_fed.shared_bytes(size)]
    kernel(launch_words(*maps), *given, Work(whole + rest, whole, parts))


def work_of(p: Problem) -> tuple[int, int]:
    """How many rows `fed` leaves whole, and into how many parts it cuts each of the others."""
    batch, heads, groups, _, _ = p.shape
    rows = batch * groups * blocks(heads // groups, HEADS)
    return whole_and_parts(max(rows, 1), p.most, device.limits()["multiprocessors"])


@functools.lru_cache(1024)
def whole_and_parts(rows: int, keys: int, multiprocessors: int) -> tuple[int, int]:
    """As many whole rows as each multiprocessor has its turn, but the last turn; the rest in parts.

    >>> whole_and_parts(512, 8192, 132)
    (396, 8)
    """
    whole = (blocks(rows, multiprocessors) - 1) * multiprocessors
    whole = max(whole, rows - (ARRIVALS - 1) // decode_fed.WARPS)  # of which there is a count for each warp
    return whole, max(1, min(FINE if whole else multiprocessors // rows, decode_fed.MOST_PARTS, keys // 256))


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

    Leaves: some multiprocessors get their bytes sooner than others, and have nothing left to do in the end.
    """
    launch(p, MOST_HEADS, long_parts(p), "matrices")


@rung(part_kernel, ahead_kernel, matrix_kernel, fed_kernel, combine_kernel)
def fed(p):
    """On Hopper an engine brings the keys and values, and who is done takes what nobody has yet.

    A block for each multiprocessor takes one text and group after the other. The last of them are cut into parts, so
    that all blocks end at about the same time. One thread asks for tiles of 128 keys, and goes on to the block's next
    work while the warps put together what they have found. The last warp to come joins the parts of a text, in their
    order. So there is no second kernel. What is not in 16 bits, has another size than 64 or 128, or pages that do not
    hold whole tiles, goes by `as_matrices`.

    Source: chapter 43 for the engine; for the work, as `pmpp.kernels.matmul.warpgroups.stored`.
    """
    if can_feed(p):
        launch_fed(p, *work_of(p))
    else:
        as_matrices.launch(p)



EOF_old_decode.py
cat > fed_t3.py <<'EOF_fed_t3.py'
"""The kernel of decoding on Hopper: an engine brings keys and values, and blocks take work until there is none left.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU of compute capability 9.0 (chapter 43). A
block has a multiprocessor to itself. One of its threads asks for tiles of keys and values, in a ring of shared memory,
and goes on to the block's next work while the eight other warps put together what they have found.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, INSTRUCTIONS, KEPT, KEYS
from pmpp.kernels.attention.ladder import LEAST, f0, finite_base
from pmpp.kernels.attention.teams import row_of
from pmpp.kernels.common import FULL_WARP, warp_max, warp_sum
from pmpp.kernels.matmul.warpgroups import WARP, is_last
from pmpp.runtime.hopper import (
    bulk_tile,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
)
from pmpp.runtime.hopper_maps import maps_of_launch
from pmpp.runtime.matrix import ldmatrix, ldmatrix_transposed, load32

CAPABILITY = (9, 0)  # of the only GPUs that have this engine and its barriers in this form
SIZES = (64, 128)  # of a key: whole lines of 128 bytes, in which the engine exchanges chunks
LINE, CHUNK = 64, 8  # elements of a line, and of a chunk
TEAM_WARPS, TEAMS = 4, 3  # warps that share a tile, and teams of them, which take tiles in turns
WARPS = TEAM_WARPS * TEAMS  # that multiply
TILE_KEYS = TEAM_WARPS * KEYS  # keys of a stage, sixteen for each warp of a team
RING = 160 * 1024  # bytes of shared memory for what is on its way
THREADS = WARP * (WARPS + 1)  # the last warp asks for tiles
BLOCKS = 1  # of a multiprocessor
MOST_PARTS = WARP  # of a row: a lane has one of them when they are put together


def shared_bytes(size: int) -> int:
    """Of a block: the ring, and sums of all warps."""
    return RING + 4 * WARPS * HEADS * size


class Work(typing.NamedTuple):
    """What there is to do, in ``units``: each of the first ``whole`` rows is one, and each other row is ``parts``.

    A row is up to eight heads of a text that share their keys, with all of these keys.
    """

    units: int
    whole: int
    parts: int


@cuda.jit(device=True)
def keys_of(unit, lengths, sizes, work):
    """Of a unit: its row, which of the row's parts it is and how many there are, where its heads and its keys are.

    That is: text, group of keys, turn of the group, first key, and where the keys end. The divisions are of 32 bits:
    those of 64 take far longer.
    """
    unit, whole, parts = np.uint32(unit), np.uint32(work.whole), np.uint32(work.parts)
    row, part = unit, np.uint32(0)
    if unit >= whole:
        turn = np.uint32((unit - whole) // parts)
        row, part = np.uint32(whole + turn), np.uint32(unit - whole - turn * parts)
    else:
        parts = np.uint32(1)
    turns, groups = np.uint32(sizes.turns), np.uint32(np.uint32(sizes.heads) // np.uint32(sizes.shared))
    place = np.uint32(row // turns)
    text = np.uint32(place // groups)
    group, which = np.int64(np.uint32(place - text * groups)), np.int64(np.uint32(row - place * turns))
    first, end = np.int64(0), np.int64(lengths[text])
    if parts > 1:
        first = np.int64(part) * sizes.part
        end = min(end, first + sizes.part)
    return np.int64(row), np.int64(part), np.int64(parts), np.int64(text), group, which, first, end


@functools.cache
def helpers(size: int) -> tuple[typing.Any, ...]:
    """Device functions: the next stage, where a chunk of a key is, and one with which a thread asks for all tiles."""
    lines, tile = size // LINE, TILE_KEYS * size
    stages = RING // (4 * tile)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def place(row, chunk):
        line = np.uint32(row * np.uint32(lines) + chunk // np.uint32(8))
        return np.uint32(line * np.uint32(LINE) + (chunk % np.uint32(8) ^ line % np.uint32(8)) * np.uint32(CHUNK))

    @cuda.jit(device=True)
    def take(counts, work):
        """A unit that nobody has. Each block asks once more than there is work for it; the last count makes it 0."""
        return np.int64(cuda.atomic.inc(counts, 0, np.uint32(work.units + cuda.gridDim.x - 1)))

    @cuda.jit(device=True)
    def produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work):
        """Ask for the tiles of one unit after the other. ``queue`` says which unit begins in a stage."""
        now, parity, unit = np.uint32(0), np.uint32(0), take(counts, work)
        groups = sizes.heads // sizes.shared
        while unit < work.units:
            coming = take(counts, work)  # nobody waits for it while there are tiles to ask for
            _, _, _, text, group, _, first, end = keys_of(unit, lengths, sizes, work)
            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
            queue[now] = unit
            if first >= end:  # without a key there is a stage all the same
                mbarrier_arrive(full, now)
                now, parity = next_stage(now, parity)
            while first < end:
                mbarrier_wait(empty, now, parity ^ np.uint32(1))
                line = lines * row_of(table, text, np.int32(first), group, groups, sizes)
                begin = np.uint32(now * np.uint32(2 * tile))
                expect_bytes(full, now, 4 * tile)
                bulk_tile(shared, begin, maps, 0, line, 0, full, now)
                bulk_tile(shared, np.uint32(begin + np.uint32(tile)), maps, 16, line, 0, full, now)
                first += TILE_KEYS
                now, parity = next_stage(now, parity)
            unit = coming
        mbarrier_wait(empty, now, parity ^ np.uint32(1))
        queue[now] = -1
        mbarrier_arrive(full, now)

    return stages, next_stage, place, produce


@functools.cache
def multiplier(kind: str, size: int) -> typing.Any:
    """A device function with which a warp takes sixteen keys and values that lie in shared memory.

    The first eight rows of the second product are weights of 16 bits, and the last eight what rounding has taken from
    them. So the sums of a head are in two rows, to be added in the end.
    """
    mma, rounded = INSTRUCTIONS[kind]
    (_, _, place, _), kept, steps, sum_tiles = helpers(size), KEPT[kind], size // 16, size // 8

    @cuda.jit(device=True)
    def first_bits(x):
        return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & kept)

    @cuda.jit(device=True)
    def multiply(shared, keys, values, first, end, own, scores, sums, highest, total, scale):
        """``keys``, ``values``: where they begin. ``first``: the first key's number. The new highest and total."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        pair, zero = lane % 4 * 2, np.uint32(0)
        for half in range(2):
            scores[half, 0], scores[half, 1] = f0, f0
        for s in range(steps):
            row, chunk = np.uint32(lane // 16 * 8 + lane % 8), np.uint32(2 * s + lane // 8 % 2)
            b = ldmatrix(shared, np.uint32(keys + place(row, chunk)))
            a = own[s, 0], zero, own[s, 1], zero
            for half in range(2):
                c = mma(a, (b[2 * half], b[2 * half + 1]), (scores[half, 0], scores[half, 1], f0, f0))
                scores[half, 0], scores[half, 1] = c[0], c[1]
        top = highest
        for half in range(2):
            for e in range(2):
                scores[half, e] = scores[half, e] * scale if first + 8 * half + pair + e < end else LEAST
                top = max(top, scores[half, e])
        for distance in (1, 2):  # the four lanes that have the same head
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        base = finite_base(top)
        keep = cuda.libdevice.exp2f(highest - base)
        total *= keep
        for t in range(sum_tiles):
            for e in range(4):
                sums[t, e] *= keep
        for half in range(2):
            for e in range(2):
                weight = cuda.libdevice.exp2f(scores[half, e] - base)
                total += weight
                scores[half, e] = first_bits(weight)
                scores[half, 2 + e] = weight - scores[half, e]
        weights = (
            rounded(scores[0, 0], scores[0, 1]),
            rounded(scores[0, 2], scores[0, 3]),
            rounded(scores[1, 0], scores[1, 1]),
            rounded(scores[1, 2], scores[1, 3]),
        )
        for n in range(steps):
            row, chunk = np.uint32(lane % 16), np.uint32(2 * n + lane // 16)
            b = ldmatrix_transposed(shared, np.uint32(values + place(row, chunk)))
            for half in range(2):
                t = 2 * n + half
                c = mma(weights, (b[2 * half], b[2 * half + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                for e in range(4):
                    sums[t, e] = c[e]
        return top, total

    return multiply


@functools.cache
def fed_kernel(kind: str, size: int) -> typing.Any:
    """The kernel for rows of ``size`` words of 16 bits of that kind. Its launch gives it `shared_bytes`.

    ``words``: tensor maps of the keys and of the values in lines; a box is a tile. ``counts``: zeros, and zeros again
    in the end. The first gives blocks their units, and each warp has one for each row in parts. In ``highests`` and
    ``totals`` it has a place for each head of a part, and in ``added`` there is a row for these.
    """
    (stages, next_stage, _, produce), multiply = helpers(size), multiplier(kind, size)
    tile, steps, sum_tiles = TILE_KEYS * size, size // 16, size // 8
    behind = RING // 4  # the place of sums of all warps
    across = size // WARP  # warps whose lanes have a column each of a result
    apart = WARPS // across  # every so many heads are of the same warp,
    own_heads = -(-HEADS // apart)  # and these are so many

    @cuda.jit(device=True)
    def forget(shared, begin, first, end):
        """Zeros for values that the engine brought from beyond the last key. They may be anything, NaN too."""
        for i in range(KEYS * size // WARP):
            at = np.uint32(np.uint32(i * WARP) + np.uint32(cuda.threadIdx.x) % np.uint32(WARP))
            if first + at // np.uint32(size) >= end:
                shared[begin + at] = np.uint16(0)
        copies_visible()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def join_parts(highests, totals, added, out, place, parts, some, first_head, head, column):
        """Put together what parts have found: a lane has the weight of a part, and then it has a column."""
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        keeps, values = cuda.local.array(own_heads, np.float32), cuda.local.array(own_heads, np.float32)
        weights = cuda.local.array(own_heads, np.float32)
        for i in range(own_heads):
            h, top, own = head + i * apart, LEAST, f0
            if h < some and lane < parts:
                at = ((place + lane) * HEADS + h) * WARPS + warp
                top, own = highests[at], totals[at]
            keeps[i] = cuda.libdevice.exp2f(top - finite_base(warp_max(top)))
            weights[i], values[i] = warp_sum(own * keeps[i]), f0
        for part in range(parts):
            for i in range(own_heads):
                h, keep = head + i * apart, cuda.shfl_sync(FULL_WARP, keeps[i], part)
                if h < some:
                    values[i] += added[((place + part) * HEADS + h) * size + column] * keep
        for i in range(own_heads):
            h = head + i * apart
            if h < some:
                out[(first_head + h) * size + column] = values[i] / weights[i] if weights[i] != f0 else f0

    @cuda.jit(fastmath=True)
    def kernel(words, q, lengths, table, counts, highests, totals, added, out, scale, sizes, work):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        queue, joined = cuda.shared.array(stages, np.int32), cuda.shared.array(2, np.uint64)
        all_highest = cuda.shared.array((WARPS, HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, HEADS), np.float32)
        all_sums = cuda.shared.array(0, np.float32, alignment=1024)  # behind the ring
        own = cuda.local.array((steps, 2), np.uint32)
        scores, sums = cuda.local.array((2, 4), np.float32), cuda.local.array((sum_tiles, 4), np.float32)
        maps = maps_of_launch(words)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        if cuda.threadIdx.x == 0:
            for b in range(stages):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, WARPS)
            for b in range(2):
                mbarrier_init(joined, b, WARPS)
        cuda.syncthreads()
        if warp == WARPS:
            if lane == 0:
                produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work)
        else:
            own_head, pair = lane // 4, lane % 4 * 2  # the lane's row, and the first of its columns in eight
            team, place_in_team = warp // np.uint32(TEAM_WARPS), warp % np.uint32(TEAM_WARPS)
            column, head = np.int64(warp) % across * WARP + lane, np.int64(warp) // across  # in the end
            now, parity, turn = np.uint32(0), np.uint32(0), np.uint32(0)
            mbarrier_wait(full, now, parity)
            unit = np.int64(queue[now])
            while unit >= 0:
                row, part, parts, text, group, which, first, end = keys_of(unit, lengths, sizes, work)
                first_head = text * sizes.heads + group * sizes.shared + which * HEADS
                some = min(HEADS, sizes.shared - which * HEADS)
                for s in range(steps):
                    for e in range(2):
                        own[s, e] = np.uint32(0)
                        if own_head < some:
                            own[s, e] = load32(q, (first_head + own_head) * size + 16 * s + 8 * e + pair)
                for t in range(sum_tiles):
                    for e in range(4):
                        sums[t, e] = f0
                highest, total, more, next_team = LEAST, f0, True, np.uint32(0)
                while more:
                    mbarrier_wait(full, now, parity)
                    keys = np.uint32(now * np.uint32(2 * tile) + place_in_team * np.uint32(KEYS * size))
                    values, key = np.uint32(keys + np.uint32(tile)), first + place_in_team * KEYS
                    if next_team == team and key < end:
                        if key + KEYS > end:
                            forget(shared, values, key, end)
                        highest, total = multiply(
                            shared, keys, values, key, end, own, scores, sums, highest, total, scale
                        )
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, now)
                    now, parity = next_stage(now, parity)
                    first += TILE_KEYS
                    next_team = np.uint32(next_team + 1) if next_team + 1 < TEAMS else np.uint32(0)
                    more = first < end
                for distance in (1, 2):
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                mbarrier_wait(joined, 1, turn ^ np.uint32(1))  # all have read what is there of the unit before
                all_highest[warp, own_head], all_total[warp, own_head] = highest, total
                for t in range(sum_tiles):
                    for e in range(2):
                        at = behind + (warp * HEADS + own_head) * size + 8 * t + pair + e
                        all_sums[at] = sums[t, e] + sums[t, 2 + e]
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 0)
                mbarrier_wait(joined, 0, turn)
                place = (row - work.whole) * parts  # of the first part, where there are several
                for i in range(own_heads):
                    h = head + i * apart
                    if h < some:
                        top = LEAST
                        for w in range(WARPS):
                            top = max(top, all_highest[w, h])
                        base, weights, value = finite_base(top), f0, f0
                        for w in range(WARPS):
                            keep = cuda.libdevice.exp2f(all_highest[w, h] - base)
                            weights += all_total[w, h] * keep
                            value += all_sums[behind + (w * HEADS + h) * size + column] * keep
                        if parts > 1:
                            at = (place + part) * HEADS + h
                            highests[at * WARPS + warp], totals[at * WARPS + warp] = top, weights
                            added[at * size + column] = value
                        else:
                            out[(first_head + h) * size + column] = value / weights if weights != f0 else f0
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 1)
                turn = np.uint32(turn ^ np.uint32(1))
                if parts > 1 and is_last(counts, 1 + (row - work.whole) * WARPS + warp, parts):
                    join_parts(highests, totals, added, out, place, parts, some, first_head, head, column)
                mbarrier_wait(full, now, parity)
                unit = np.int64(queue[now])

    return kernel

EOF_fed_t3.py
cat > fed_t2.py <<'EOF_fed_t2.py'
"""The kernel of decoding on Hopper: an engine brings keys and values, and blocks take work until there is none left.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU of compute capability 9.0 (chapter 43). A
block has a multiprocessor to itself. One of its threads asks for tiles of keys and values, in a ring of shared memory,
and goes on to the block's next work while the eight other warps put together what they have found.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, INSTRUCTIONS, KEPT, KEYS
from pmpp.kernels.attention.ladder import LEAST, f0, finite_base
from pmpp.kernels.attention.teams import row_of
from pmpp.kernels.common import FULL_WARP, warp_max, warp_sum
from pmpp.kernels.matmul.warpgroups import WARP, is_last
from pmpp.runtime.hopper import (
    bulk_tile,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
)
from pmpp.runtime.hopper_maps import maps_of_launch
from pmpp.runtime.matrix import ldmatrix, ldmatrix_transposed, load32

CAPABILITY = (9, 0)  # of the only GPUs that have this engine and its barriers in this form
SIZES = (64, 128)  # of a key: whole lines of 128 bytes, in which the engine exchanges chunks
LINE, CHUNK = 64, 8  # elements of a line, and of a chunk
TEAM_WARPS, TEAMS = 4, 2  # warps that share a tile, and teams of them, which take tiles in turns
WARPS = TEAM_WARPS * TEAMS  # that multiply
TILE_KEYS = TEAM_WARPS * KEYS  # keys of a stage, sixteen for each warp of a team
RING = 160 * 1024  # bytes of shared memory for what is on its way
THREADS = WARP * (WARPS + 1)  # the last warp asks for tiles
BLOCKS = 1  # of a multiprocessor
MOST_PARTS = WARP  # of a row: a lane has one of them when they are put together


def shared_bytes(size: int) -> int:
    """Of a block: the ring, and sums of all warps."""
    return RING + 4 * WARPS * HEADS * size


class Work(typing.NamedTuple):
    """What there is to do, in ``units``: each of the first ``whole`` rows is one, and each other row is ``parts``.

    A row is up to eight heads of a text that share their keys, with all of these keys.
    """

    units: int
    whole: int
    parts: int


@cuda.jit(device=True)
def keys_of(unit, lengths, sizes, work):
    """Of a unit: its row, which of the row's parts it is and how many there are, where its heads and its keys are.

    That is: text, group of keys, turn of the group, first key, and where the keys end. The divisions are of 32 bits:
    those of 64 take far longer.
    """
    unit, whole, parts = np.uint32(unit), np.uint32(work.whole), np.uint32(work.parts)
    row, part = unit, np.uint32(0)
    if unit >= whole:
        turn = np.uint32((unit - whole) // parts)
        row, part = np.uint32(whole + turn), np.uint32(unit - whole - turn * parts)
    else:
        parts = np.uint32(1)
    turns, groups = np.uint32(sizes.turns), np.uint32(np.uint32(sizes.heads) // np.uint32(sizes.shared))
    place = np.uint32(row // turns)
    text = np.uint32(place // groups)
    group, which = np.int64(np.uint32(place - text * groups)), np.int64(np.uint32(row - place * turns))
    first, end = np.int64(0), np.int64(lengths[text])
    if parts > 1:
        first = np.int64(part) * sizes.part
        end = min(end, first + sizes.part)
    return np.int64(row), np.int64(part), np.int64(parts), np.int64(text), group, which, first, end


@functools.cache
def helpers(size: int) -> tuple[typing.Any, ...]:
    """Device functions: the next stage, where a chunk of a key is, and one with which a thread asks for all tiles."""
    lines, tile = size // LINE, TILE_KEYS * size
    stages = RING // (4 * tile)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def place(row, chunk):
        line = np.uint32(row * np.uint32(lines) + chunk // np.uint32(8))
        return np.uint32(line * np.uint32(LINE) + (chunk % np.uint32(8) ^ line % np.uint32(8)) * np.uint32(CHUNK))

    @cuda.jit(device=True)
    def take(counts, work):
        """A unit that nobody has. Each block asks once more than there is work for it; the last count makes it 0."""
        return np.int64(cuda.atomic.inc(counts, 0, np.uint32(work.units + cuda.gridDim.x - 1)))

    @cuda.jit(device=True)
    def produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work):
        """Ask for the tiles of one unit after the other. ``queue`` says which unit begins in a stage."""
        now, parity, unit = np.uint32(0), np.uint32(0), take(counts, work)
        groups = sizes.heads // sizes.shared
        while unit < work.units:
            coming = take(counts, work)  # nobody waits for it while there are tiles to ask for
            _, _, _, text, group, _, first, end = keys_of(unit, lengths, sizes, work)
            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
            queue[now] = unit
            if first >= end:  # without a key there is a stage all the same
                mbarrier_arrive(full, now)
                now, parity = next_stage(now, parity)
            while first < end:
                mbarrier_wait(empty, now, parity ^ np.uint32(1))
                line = lines * row_of(table, text, np.int32(first), group, groups, sizes)
                begin = np.uint32(now * np.uint32(2 * tile))
                expect_bytes(full, now, 4 * tile)
                bulk_tile(shared, begin, maps, 0, line, 0, full, now)
                bulk_tile(shared, np.uint32(begin + np.uint32(tile)), maps, 16, line, 0, full, now)
                first += TILE_KEYS
                now, parity = next_stage(now, parity)
            unit = coming
        mbarrier_wait(empty, now, parity ^ np.uint32(1))
        queue[now] = -1
        mbarrier_arrive(full, now)

    return stages, next_stage, place, produce


@functools.cache
def multiplier(kind: str, size: int) -> typing.Any:
    """A device function with which a warp takes sixteen keys and values that lie in shared memory.

    The first eight rows of the second product are weights of 16 bits, and the last eight what rounding has taken from
    them. So the sums of a head are in two rows, to be added in the end.
    """
    mma, rounded = INSTRUCTIONS[kind]
    (_, _, place, _), kept, steps, sum_tiles = helpers(size), KEPT[kind], size // 16, size // 8

    @cuda.jit(device=True)
    def first_bits(x):
        return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & kept)

    @cuda.jit(device=True)
    def multiply(shared, keys, values, first, end, own, scores, sums, highest, total, scale):
        """``keys``, ``values``: where they begin. ``first``: the first key's number. The new highest and total."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        pair, zero = lane % 4 * 2, np.uint32(0)
        for half in range(2):
            scores[half, 0], scores[half, 1] = f0, f0
        for s in range(steps):
            row, chunk = np.uint32(lane // 16 * 8 + lane % 8), np.uint32(2 * s + lane // 8 % 2)
            b = ldmatrix(shared, np.uint32(keys + place(row, chunk)))
            a = own[s, 0], zero, own[s, 1], zero
            for half in range(2):
                c = mma(a, (b[2 * half], b[2 * half + 1]), (scores[half, 0], scores[half, 1], f0, f0))
                scores[half, 0], scores[half, 1] = c[0], c[1]
        top = highest
        for half in range(2):
            for e in range(2):
                scores[half, e] = scores[half, e] * scale if first + 8 * half + pair + e < end else LEAST
                top = max(top, scores[half, e])
        for distance in (1, 2):  # the four lanes that have the same head
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        base = finite_base(top)
        keep = cuda.libdevice.exp2f(highest - base)
        total *= keep
        for t in range(sum_tiles):
            for e in range(4):
                sums[t, e] *= keep
        for half in range(2):
            for e in range(2):
                weight = cuda.libdevice.exp2f(scores[half, e] - base)
                total += weight
                scores[half, e] = first_bits(weight)
                scores[half, 2 + e] = weight - scores[half, e]
        weights = (
            rounded(scores[0, 0], scores[0, 1]),
            rounded(scores[0, 2], scores[0, 3]),
            rounded(scores[1, 0], scores[1, 1]),
            rounded(scores[1, 2], scores[1, 3]),
        )
        for n in range(steps):
            row, chunk = np.uint32(lane % 16), np.uint32(2 * n + lane // 16)
            b = ldmatrix_transposed(shared, np.uint32(values + place(row, chunk)))
            for half in range(2):
                t = 2 * n + half
                c = mma(weights, (b[2 * half], b[2 * half + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                for e in range(4):
                    sums[t, e] = c[e]
        return top, total

    return multiply


@functools.cache
def fed_kernel(kind: str, size: int) -> typing.Any:
    """The kernel for rows of ``size`` words of 16 bits of that kind. Its launch gives it `shared_bytes`.

    ``words``: tensor maps of the keys and of the values in lines; a box is a tile. ``counts``: zeros, and zeros again
    in the end. The first gives blocks their units, and each warp has one for each row in parts. In ``highests`` and
    ``totals`` it has a place for each head of a part, and in ``added`` there is a row for these.
    """
    (stages, next_stage, _, produce), multiply = helpers(size), multiplier(kind, size)
    tile, steps, sum_tiles = TILE_KEYS * size, size // 16, size // 8
    behind = RING // 4  # the place of sums of all warps
    across = size // WARP  # warps whose lanes have a column each of a result
    apart = WARPS // across  # every so many heads are of the same warp,
    own_heads = -(-HEADS // apart)  # and these are so many

    @cuda.jit(device=True)
    def forget(shared, begin, first, end):
        """Zeros for values that the engine brought from beyond the last key. They may be anything, NaN too."""
        for i in range(KEYS * size // WARP):
            at = np.uint32(np.uint32(i * WARP) + np.uint32(cuda.threadIdx.x) % np.uint32(WARP))
            if first + at // np.uint32(size) >= end:
                shared[begin + at] = np.uint16(0)
        copies_visible()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def join_parts(highests, totals, added, out, place, parts, some, first_head, head, column):
        """Put together what parts have found: a lane has the weight of a part, and then it has a column."""
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        keeps, values = cuda.local.array(own_heads, np.float32), cuda.local.array(own_heads, np.float32)
        weights = cuda.local.array(own_heads, np.float32)
        for i in range(own_heads):
            h, top, own = head + i * apart, LEAST, f0
            if h < some and lane < parts:
                at = ((place + lane) * HEADS + h) * WARPS + warp
                top, own = highests[at], totals[at]
            keeps[i] = cuda.libdevice.exp2f(top - finite_base(warp_max(top)))
            weights[i], values[i] = warp_sum(own * keeps[i]), f0
        for part in range(parts):
            for i in range(own_heads):
                h, keep = head + i * apart, cuda.shfl_sync(FULL_WARP, keeps[i], part)
                if h < some:
                    values[i] += added[((place + part) * HEADS + h) * size + column] * keep
        for i in range(own_heads):
            h = head + i * apart
            if h < some:
                out[(first_head + h) * size + column] = values[i] / weights[i] if weights[i] != f0 else f0

    @cuda.jit(fastmath=True)
    def kernel(words, q, lengths, table, counts, highests, totals, added, out, scale, sizes, work):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        queue, joined = cuda.shared.array(stages, np.int32), cuda.shared.array(2, np.uint64)
        all_highest = cuda.shared.array((WARPS, HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, HEADS), np.float32)
        all_sums = cuda.shared.array(0, np.float32, alignment=1024)  # behind the ring
        own = cuda.local.array((steps, 2), np.uint32)
        scores, sums = cuda.local.array((2, 4), np.float32), cuda.local.array((sum_tiles, 4), np.float32)
        maps = maps_of_launch(words)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        if cuda.threadIdx.x == 0:
            for b in range(stages):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, WARPS)
            for b in range(2):
                mbarrier_init(joined, b, WARPS)
        cuda.syncthreads()
        if warp == WARPS:
            if lane == 0:
                produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work)
        else:
            own_head, pair = lane // 4, lane % 4 * 2  # the lane's row, and the first of its columns in eight
            team, place_in_team = warp // np.uint32(TEAM_WARPS), warp % np.uint32(TEAM_WARPS)
            column, head = np.int64(warp) % across * WARP + lane, np.int64(warp) // across  # in the end
            now, parity, turn = np.uint32(0), np.uint32(0), np.uint32(0)
            mbarrier_wait(full, now, parity)
            unit = np.int64(queue[now])
            while unit >= 0:
                row, part, parts, text, group, which, first, end = keys_of(unit, lengths, sizes, work)
                first_head = text * sizes.heads + group * sizes.shared + which * HEADS
                some = min(HEADS, sizes.shared - which * HEADS)
                for s in range(steps):
                    for e in range(2):
                        own[s, e] = np.uint32(0)
                        if own_head < some:
                            own[s, e] = load32(q, (first_head + own_head) * size + 16 * s + 8 * e + pair)
                for t in range(sum_tiles):
                    for e in range(4):
                        sums[t, e] = f0
                highest, total, more, next_team = LEAST, f0, True, np.uint32(0)
                while more:
                    mbarrier_wait(full, now, parity)
                    keys = np.uint32(now * np.uint32(2 * tile) + place_in_team * np.uint32(KEYS * size))
                    values, key = np.uint32(keys + np.uint32(tile)), first + place_in_team * KEYS
                    if next_team == team and key < end:
                        if key + KEYS > end:
                            forget(shared, values, key, end)
                        highest, total = multiply(
                            shared, keys, values, key, end, own, scores, sums, highest, total, scale
                        )
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, now)
                    now, parity = next_stage(now, parity)
                    first += TILE_KEYS
                    next_team = np.uint32(next_team + 1) if next_team + 1 < TEAMS else np.uint32(0)
                    more = first < end
                for distance in (1, 2):
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                mbarrier_wait(joined, 1, turn ^ np.uint32(1))  # all have read what is there of the unit before
                all_highest[warp, own_head], all_total[warp, own_head] = highest, total
                for t in range(sum_tiles):
                    for e in range(2):
                        at = behind + (warp * HEADS + own_head) * size + 8 * t + pair + e
                        all_sums[at] = sums[t, e] + sums[t, 2 + e]
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 0)
                mbarrier_wait(joined, 0, turn)
                place = (row - work.whole) * parts  # of the first part, where there are several
                for i in range(own_heads):
                    h = head + i * apart
                    if h < some:
                        top = LEAST
                        for w in range(WARPS):
                            top = max(top, all_highest[w, h])
                        base, weights, value = finite_base(top), f0, f0
                        for w in range(WARPS):
                            keep = cuda.libdevice.exp2f(all_highest[w, h] - base)
                            weights += all_total[w, h] * keep
                            value += all_sums[behind + (w * HEADS + h) * size + column] * keep
                        if parts > 1:
                            at = (place + part) * HEADS + h
                            highests[at * WARPS + warp], totals[at * WARPS + warp] = top, weights
                            added[at * size + column] = value
                        else:
                            out[(first_head + h) * size + column] = value / weights if weights != f0 else f0
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 1)
                turn = np.uint32(turn ^ np.uint32(1))
                if parts > 1 and is_last(counts, 1 + (row - work.whole) * WARPS + warp, parts):
                    join_parts(highests, totals, added, out, place, parts, some, first_head, head, column)
                mbarrier_wait(full, now, parity)
                unit = np.int64(queue[now])

    return kernel

EOF_fed_t2.py
export PYTHONPATH=$PWD PMPP_BACKEND=numba
timeout 24 python3 probe3.py > $OUT/table.txt 2>&1
grep -v Warning $OUT/table.txt | tail -c 8000
