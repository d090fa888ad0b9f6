"""Answers to the exercises of chapters 75 and 87: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ONLINE, COMBINE, TILES = "attention/online", "attention/combine", "attention/tiles"
f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)
TILE = 64


# -- online


def online_with(name, total_too=True, values_too=True, divided=True, shifted=True, guarded=True, start=f0, top0=LEAST):
    """A thread a query, with one of its parts exchanged."""

    @cuda.jit
    def online(q, k, v, out):
        i = cuda.grid(1)
        if i < out.size or not guarded:
            own, highest, total, added = q[i], top0, start, f0
            for j in range(k.size):
                score = own * k[j]
                top = max(highest, score) if shifted else f0
                keep, weight = math.exp(highest - top) if shifted else f1, math.exp(score - top)
                total = total * (keep if total_too else f1) + weight
                added = added * (keep if values_too else f1) + weight * v[j]
                highest = top
            out[i] = added / total if divided else added

    online.py_func.__name__ = name
    return online


wrong(ONLINE, "values not rescaled")(online_with("values_not_rescaled", values_too=False))
wrong(ONLINE, "weights not rescaled")(online_with("weights_not_rescaled", total_too=False))
wrong(ONLINE, "not rescaled")(online_with("nothing_rescaled", total_too=False, values_too=False))
wrong(ONLINE, "not divided")(online_with("sums", divided=False))
wrong(ONLINE, "no maximum")(online_with("without_maximum", shifted=False))
wrong(ONLINE, "maximum begun at 0")(online_with("online_maximum_from_0", top0=f0))
wrong(ONLINE, "missing guard")(online_with("online_without_guard", guarded=False))
wrong(ONLINE, "accidental float64")(online_with("online_from_a_float64", start=0.0))


@wrong(ONLINE, "too much traffic", "go over the keys once")
@cuda.jit
def maximum_first(q, k, v, out):
    i = cuda.grid(1)
    if i < out.size:
        highest, total, added = LEAST, f0, f0
        for j in range(k.size):
            highest = max(highest, q[i] * k[j])
        for j in range(k.size):
            weight = math.exp(q[i] * k[j] - highest)
            total += weight
            added += weight * v[j]
        out[i] = added / total


@right(ONLINE)
@cuda.jit
def branches(q, k, v, out):
    """Only what changes is computed: the old weights, or the new one, are 1."""
    i = cuda.grid(1)
    if i < out.size:
        own = q[i]
        highest, total, added = own * k[0], f1, v[0]
        for j in range(1, k.size):
            score = own * k[j]
            if score > highest:
                keep = math.exp(highest - score)
                total, added, highest = total * keep + f1, added * keep + v[j], score
            else:
                weight = math.exp(score - highest)
                total, added = total + weight, added + weight * v[j]
        out[i] = added / total


@right(ONLINE)
@cuda.jit
def means(q, k, v, out):
    """The mean so far, from the last key to the first."""
    i = cuda.grid(1)
    if i >= q.size:
        return
    own, highest, total, mean, j = q[i], LEAST, f0, f0, k.size - 1
    while j >= 0:
        score = own * k[j]
        top = max(highest, score)
        old, new = total * math.exp(highest - top), math.exp(score - top)
        total, highest = old + new, top
        mean += (v[j] - mean) * (new / total)
        j -= 1
    out[i] = mean


# -- combine


def combine_with(name, by_total=True, by_maximum=True, divided=True, safe=True, guarded=True, one=f1, top0=LEAST):
    """A thread a result, with one of its parts exchanged."""

    @cuda.jit
    def combine(highest, total, mean, out):
        i = cuda.grid(1)
        if i < out.size or not guarded:
            top = top0
            for part in range(highest.shape[0]):
                top = max(top, highest[part, i])
            weights, added = f0, f0
            if top > LEAST or not safe:
                for part in range(highest.shape[0]):
                    weight = one * (total[part, i] if by_total else f1)
                    if by_maximum:
                        weight *= math.exp(highest[part, i] - top)
                    weights += weight
                    added += weight * mean[part, i]
                if divided:
                    added /= weights
            out[i] = added

    combine.py_func.__name__ = name
    return combine


wrong(COMBINE, "mean of means")(combine_with("mean_of_means", by_total=False, by_maximum=False))
wrong(COMBINE, "maximum ignored")(combine_with("by_total_alone", by_maximum=False))
wrong(COMBINE, "total ignored")(combine_with("by_maximum_alone", by_total=False))
wrong(COMBINE, "not divided")(combine_with("combined_sums", divided=False))
wrong(COMBINE, "results without a key", "NaN")(combine_with("nan_without_a_key", safe=False))
wrong(COMBINE, "maximum begun at 0")(combine_with("combined_maximum_from_0", top0=f0))
wrong(COMBINE, "missing guard")(combine_with("combine_without_guard", guarded=False))
wrong(COMBINE, "accidental float64")(combine_with("combine_in_float64", one=1.0))


@wrong(COMBINE, "results without a key", "never written")
@cuda.jit
def nothing_without_a_key(highest, total, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        top = LEAST
        for part in range(highest.shape[0]):
            top = max(top, highest[part, i])
        if top > LEAST:
            weights, added = f0, f0
            for part in range(highest.shape[0]):
                weight = total[part, i] * math.exp(highest[part, i] - top)
                weights += weight
                added += weight * mean[part, i]
            out[i] = added / weights


@right(COMBINE)
@cuda.jit
def combine_online(highest, total, mean, out):
    """Part after part, with the maximum so far."""
    i = cuda.grid(1)
    if i < out.size:
        top, weights, added = LEAST, f0, f0
        for part in range(highest.shape[0]):
            if total[part, i] > f0:
                higher = max(top, highest[part, i])
                keep, weight = math.exp(top - higher), math.exp(highest[part, i] - higher) * total[part, i]
                weights, added, top = weights * keep + weight, added * keep + weight * mean[part, i], higher
        out[i] = added / weights if weights > f0 else f0


@right(COMBINE)
@cuda.jit
def combine_from_a_finite_base(highest, total, mean, out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    top = highest[0, i]
    for part in range(1, highest.shape[0]):
        top = max(top, highest[part, i])
    base = top if top > LEAST else f0
    weights, added = f0, f0
    for part in range(highest.shape[0]):
        weight = total[part, i] * math.exp(highest[part, i] - base)
        weights += weight
        added += weight * mean[part, i]
    out[i] = added / weights if weights != f0 else f0


# -- tiles


def tiles_with(name, ahead=1, up=TILE - 1, whole=True, later=0, window_too=True, wider=0, guarded=True, safe=True):
    """A thread a block of queries, with one of its parts exchanged."""

    @cuda.jit
    def tiles(queries, keys, window, first, last):
        t = cuda.grid(1)
        if t < first.size or not guarded:
            shift = (keys - queries) * ahead
            end = min(t * TILE + (TILE if whole else 1), queries) + shift
            begin = max((t + later) * TILE + shift - window - wider + 1, 0) if window_too else 0
            if end <= 0 and safe:
                begin, end = 0, 0
                last[t] = 0
            else:
                last[t] = (end + up) // TILE
            first[t] = begin // TILE

    tiles.py_func.__name__ = name
    return tiles


wrong(TILES, "lengths ignored")(tiles_with("lengths_ignored", ahead=0))
wrong(TILES, "part of a tile left out")(tiles_with("rounded_down", up=0))
wrong(TILES, "one tile too many")(tiles_with("one_tile_too_many", up=TILE))
wrong(TILES, "first query alone")(tiles_with("first_query_alone", whole=False))
wrong(TILES, "last query alone")(tiles_with("last_query_alone", later=1))
wrong(TILES, "window ignored")(tiles_with("window_ignored", window_too=False))
wrong(TILES, "window too wide")(tiles_with("window_with_one_key_more", wider=1))
wrong(TILES, "window too narrow")(tiles_with("window_with_one_key_less", wider=-1))
wrong(TILES, "index out of bounds")(tiles_with("tiles_without_guard", guarded=False))
wrong(TILES, "wrong result")(tiles_with("negative_tiles", safe=False))


@right(TILES)
@cuda.jit
def tiles_by_the_last_key(queries, keys, window, first, last):
    t = cuda.grid(1)
    if t >= last.size:
        return
    highest = min(t * TILE + TILE - 1, queries - 1) + keys - queries
    lowest = t * TILE + keys - queries - window + 1
    if highest < 0:
        first[t] = 0
        last[t] = 0
    else:
        first[t] = lowest // TILE if lowest > 0 else 0
        last[t] = highest // TILE + 1


@right(TILES)
@cuda.jit
def tiles_by_looking(queries, keys, window, first, last):
    """Tile after tile: is any of its keys seen?"""
    t = cuda.grid(1)
    if t < first.size:
        low, high = 0, 0
        start = t * TILE + keys - queries - window + 1
        end = min(t * TILE + TILE, queries) + keys - queries
        for tile in range((keys + TILE - 1) // TILE):
            if tile * TILE < end and (tile + 1) * TILE > start:
                if high == 0:
                    low = tile
                high = tile + 1
        first[t], last[t] = low, high


# -- on_tensor_cores/operand

OPERAND = "on_tensor_cores/operand"


def operand_with(name, columns_first=False, down=False, along=False, whole=False):
    """A lane writes its four registers, with one of its parts exchanged."""

    @cuda.jit
    def operand(w, out):
        matrix, lane = cuda.blockIdx.x, cuda.threadIdx.x
        first, second = (lane % 4 * 2, lane // 4) if along else (lane // 4, lane % 4 * 2)
        for register in range(4):
            below, beside = (register // 2, register % 2) if columns_first else (register % 2, register // 2)
            for half in range(2):
                row, column = first + 8 * below, second + 8 * beside
                row, column = (row + half, column) if down else (row, column + half)
                out[matrix, lane, register, half] = w[16 * (0 if whole else matrix) + row % 16, column % 16]

    operand.py_func.__name__ = name
    return operand


wrong(OPERAND, "columns before rows")(operand_with("registers_1_and_2_exchanged", columns_first=True))
wrong(OPERAND, "pairs down a column")(operand_with("as_the_second_operand", down=True))
wrong(OPERAND, "rows by lane % 4")(operand_with("lanes_across", along=True))
wrong(OPERAND, "only right for one block")(operand_with("the_first_matrix_only", whole=True))


@wrong(OPERAND, "index out of bounds")
@cuda.jit
def rows_too_far(w, out):
    matrix, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for register in range(4):
        for half in range(2):
            row, column = 16 * matrix + lane // 4 + 16 * (register % 2), lane % 4 * 2 + 8 * (register // 2) + half
            out[matrix, lane, register, half] = w[row, column]


@right(OPERAND)
@cuda.jit
def by_places(w, out):
    for place in range(cuda.threadIdx.x, 256, 32):
        row, column = place // 16, place % 16
        lane, register = row % 8 * 4 + column % 8 // 2, row // 8 + column // 8 * 2
        out[cuda.blockIdx.x, lane, register, column % 2] = w[16 * cuda.blockIdx.x + row, column]
