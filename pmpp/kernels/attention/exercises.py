"""Exercises of notebooks/75_attention.ipynb: attention in one pass, parts put together, and tiles that nobody sees."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads a block
TILE = 64  # queries, or keys, of a tile
ZERO = np.float32(0)
LEAST = np.float32(-np.inf)
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


# --------------------------------------------------------------------------------------------------- attention/online


def _mean(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of the values, with the softmax of each row of scores as weights, in float64."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ values / weights.sum(axis=1)


def _scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return q.astype(np.float64)[:, None] * k.astype(np.float64)


def _online_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, q: np.ndarray, k: np.ndarray) -> Case:
        q, k = q.astype(np.float32), k.astype(np.float32)
        v = rng.uniform(1, 3, k.size).astype(np.float32)
        scores = _scores(q, k)
        # A score is rounded by half an eps of its size, which counts for both sums; each of n keys may rescale them.
        allowed = 3 * 2.0**-24 * (8 * np.abs(scores).max(axis=1) + 8 * k.size + 16)
        return Case(
            name,
            (q, k, v, unwritten(q.size, np.float32)),
            blocks(q.size, BLOCK),
            BLOCK,
            {3: _mean(scores, v)},
            {3: allowed},
        )

    def normal(n: int, m: int, times: float = 1) -> tuple[np.ndarray, np.ndarray]:
        return times * rng.standard_normal(n), rng.standard_normal(m)

    cases = [case(f"{n} queries, {m} keys", *normal(n, m)) for n, m in ((1, 1), (5, 2), (BLOCK, 9), (BLOCK + 1, 20))]
    cases.append(case("rising scores", np.abs(normal(70, 1)[0]) + 3, np.linspace(-9, 9, 30)))
    cases.append(case("scores far from 0", *normal(70, 30, 100)))
    cases.append(case("scores near -300", np.where(rng.random(70) < 0.5, 10, 0.1), rng.uniform(-31, -29, 30)))
    cases.append(case("130 queries, 50 keys", *normal(130, 50)))
    return cases


@cuda.jit
def online_answer(q, k, v, out):
    i = cuda.grid(1)
    if i < out.size:
        own, highest, total, added = q[i], LEAST, ZERO, ZERO
        for j in range(k.size):
            score = own * k[j]
            top = max(highest, score)
            keep, weight = math.exp(highest - top), math.exp(score - top)
            total = total * keep + weight
            added = added * keep + weight * v[j]
            highest = top
        out[i] = added / total


def _walked(rescale_total: bool, rescale_added: bool, divided: bool = True) -> Callable:
    """What the loop leaves if it forgets to rescale one of its sums."""

    def wrong(q, k, v, out):
        scores = _scores(q, k)
        highest, total, added = np.full(q.size, -np.inf), np.zeros(q.size), np.zeros(q.size)
        with np.errstate(all="ignore"):
            for j in range(k.size):
                top = np.maximum(highest, scores[:, j])
                keep, weight = np.exp(highest - top), np.exp(scores[:, j] - top)
                total = total * (keep if rescale_total else 1) + weight
                added = added * (keep if rescale_added else 1) + weight * v[j]
                highest = top
            return {3: added / total if divided else added}

    return wrong


def _without_maximum(q, k, v, out):
    with np.errstate(all="ignore"):
        weights = np.exp(q[:, None] * k, dtype=np.float32)
        return {3: (weights @ v / weights.sum(axis=1)).astype(np.float64)}


def _from_zero(q, k, v, out):
    """The highest score begins at 0. NaN where every weight is 0 then."""
    with np.errstate(all="ignore"):
        scores = q[:, None] * k
        weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), ZERO))
        return {3: (weights @ v / weights.sum(axis=1)).astype(np.float64)}


def _online_budget(case: Case) -> dict[str, tuple[float, str]]:
    q, k, v, _ = case.args
    once = "Read q[i] once, and go over the keys once: when the maximum grows, scale down what you have."
    return {"flops_f64": (0, FLOAT64), "global_load_bytes": (4.4 * q.size * (1 + k.size + v.size), once)}


# -------------------------------------------------------------------------------------------------- attention/combine


def _combined(highest: np.ndarray, total: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The results of all keys, in float64; 0 where no part has one."""
    highest, total, mean = (part.astype(np.float64) for part in (highest, total, mean))
    top = highest.max(axis=0)
    weights = total * np.exp(highest - np.where(top == -np.inf, 0, top))
    added = weights.sum(axis=0)
    return (weights * mean).sum(axis=0) / np.where(added == 0, 1, added)


def _combine_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, parts: int, n: int, empty: float = 0, times: float = 1, below: float = 0) -> Case:
        highest = (times * rng.standard_normal((parts, n)) - below * (rng.random(n) < 0.5)).astype(np.float32)
        total, mean = rng.uniform(1, 40, (parts, n)), rng.uniform(1, 3, (parts, n))
        without = rng.random((parts, n)) < empty
        if empty:
            without[:, n // 2] = True
        highest[without], total[without], mean[without] = -np.inf, 0, 0
        total, mean = total.astype(np.float32), mean.astype(np.float32)
        expected = _combined(highest, total, mean)
        spread = np.ptp(np.where(np.isfinite(highest), highest, 0), axis=0)
        allowed = 3 * 2.0**-24 * (2 * spread + 2 * parts + 16)
        args = highest, total, mean, unwritten(n, np.float32)
        return Case(name, args, blocks(n, BLOCK), BLOCK, {3: expected}, {3: allowed})

    cases = [
        case(f"{parts} parts of {n}", parts, n) for parts, n in ((1, 1), (2, BLOCK - 1), (3, BLOCK), (4, BLOCK + 1))
    ]
    cases.append(case("parts without a key", 4, 100, empty=0.5))
    cases.append(case("scores far from 0", 5, 90, times=200))
    cases.append(case("scores near -300", 3, 90, below=300))
    cases.append(case("8 parts of 200", 8, 200))
    return cases


@cuda.jit
def combine_answer(highest, total, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        top = LEAST
        for part in range(highest.shape[0]):
            top = max(top, highest[part, i])
        weights, added = ZERO, ZERO
        if top > LEAST:
            for part in range(highest.shape[0]):
                weight = total[part, i] * math.exp(highest[part, i] - top)
                weights += weight
                added += weight * mean[part, i]
            added /= weights
        out[i] = added


def _mean_of_means(highest, total, mean, out):
    return {3: mean.mean(axis=0, dtype=np.float64)}


def _by_total_alone(highest, total, mean, out):
    return {3: (total * mean).sum(axis=0, dtype=np.float64) / np.maximum(total.sum(axis=0, dtype=np.float64), 1e-300)}


def _by_maximum_alone(highest, total, mean, out):
    return {3: _combined(highest, np.ones_like(total), mean)}


def _not_divided(highest, total, mean, out):
    top = highest.max(axis=0).astype(np.float64)
    return {3: (total * np.exp(highest - np.where(top == -np.inf, 0, top)) * mean).sum(axis=0)}


def _all_from_zero(highest, total, mean, out):
    """The maximum of all parts begins at 0. NaN where every weight is 0 then."""
    with np.errstate(all="ignore"):
        weights = total * np.exp(highest - np.maximum(highest.max(axis=0), ZERO))
        return {3: ((weights * mean).sum(axis=0) / weights.sum(axis=0)).astype(np.float64)}


def _nan_where_empty(highest, total, mean, out):
    return {3: np.where(total.any(axis=0), _combined(highest, total, mean), np.nan)}


# ---------------------------------------------------------------------------------------------------- attention/tiles


def _tiles(queries: int, keys: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """For each block of queries the first tile and the one behind the last, by looking at every pair."""
    found = []
    for begin in range(0, queries, TILE):
        at = np.arange(begin, min(begin + TILE, queries))[:, None] + keys - queries
        j = np.arange(keys)[None]
        tiles = np.flatnonzero(((j <= at) & (j > at - window)).any(axis=0)) // TILE
        found.append((tiles[0], tiles[-1] + 1) if tiles.size else (0, 0))
    first, last = np.int32(found).reshape(-1, 2).T
    return first, last


def _tiles_cases(rng: np.random.Generator) -> list[Case]:
    def case(queries: int, keys: int, window: int) -> Case:
        first, last = _tiles(queries, keys, window)
        args = queries, keys, window, unwritten(first.size, np.int32), unwritten(first.size, np.int32)
        name = f"{queries} queries, {keys} keys, a window of {window}"
        return Case(name, args, blocks(first.size, BLOCK), BLOCK, {3: first, 4: last})

    drawn = rng.integers(1, 90, 3)
    sizes = [
        (1, 1, 1),
        (64, 64, 64),
        (300, 300, 300),
        (200, 457, 600),
        (457, 200, 600),
        (700, 700, 100),
        (700, 700, 65),  # one key more or less than the window has: another first tile
        (700, 700, 66),
        (600, 913, 129),
    ]
    sizes += [(500 + int(drawn[0]), 650 + int(drawn[1]), 70 + int(drawn[2])), (5000, 5000, 1000)]
    return [case(*size) for size in sizes]


@cuda.jit
def tiles_answer(queries, keys, window, first, last):
    t = cuda.grid(1)
    if t < first.size:
        ahead = keys - queries
        end = min((t + 1) * TILE, queries) + ahead  # behind the last key of the block's last query
        begin = max(t * TILE + ahead - window + 1, 0)  # the first key of its first query
        first[t], last[t] = 0, 0
        if end > 0:
            first[t], last[t] = begin // TILE, (end + TILE - 1) // TILE


def _tiles_with(queries: int, keys: int, window: int, count: int, **change: int) -> dict[int, np.ndarray]:
    """The answer with one of its parts changed."""
    t = np.arange(count)
    ahead = change.get("ahead", keys - queries)
    end = np.minimum(t * TILE + change.get("rows", TILE), queries) + ahead
    begin = np.maximum((t + change.get("later", 0)) * TILE + ahead - change.get("back", window) + 1, 0)
    last = (end + change.get("up", TILE - 1)) // TILE
    return {3: np.where(end > 0, begin // TILE, 0).astype(np.int32), 4: np.where(end > 0, last, 0).astype(np.int32)}


def _lengths_ignored(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, ahead=0)


def _part_left_out(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, up=0)


def _one_too_many(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, up=TILE)


def _of_the_first_query(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, rows=1)


def _of_the_last_query(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, later=1)


def _window_too_narrow(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, back=window - 1)


def _window_too_wide(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, back=window + 1)


def _from_the_first_key(queries, keys, window, first, last):
    return _tiles_with(queries, keys, window, first.size, back=queries + keys + 1)


EXERCISES = (
    Exercise(
        "attention/online",
        task="Attention with queries, keys and values of one element each: out[i] is the sum over all j of "
        "weight[j] * v[j], where the weights are the softmax of q[i] * k[j]. A thread has a query, and goes over the "
        f"keys once. q and out have shape (n,), k and v (m,), all float32. The launch has {BLOCK} threads a block.",
        parameters="q, k, v, out",
        cases=_online_cases,
        answer=online_answer,
        hints=(
            "Keep three numbers: the highest score so far, the sum of the weights, and that of the weighted values.",
            "Weights are relative to the highest score. If that grows from a to b, old weights shrink by exp(a - b).",
            "Begin the highest score at -inf, as np.float32(-np.inf): then the first factor is 0.",
        ),
        budget=_online_budget,
        traps=(
            Trap(
                "values not rescaled",
                "The sum of the weighted values must be scaled down as well when the maximum grows.",
                _walked(True, False),
            ),
            Trap(
                "weights not rescaled",
                "The sum of the weights must be scaled down as well when the maximum grows.",
                _walked(False, True),
            ),
            Trap(
                "not rescaled",
                "What was summed with another maximum must be scaled down when the maximum grows.",
                _walked(False, False),
            ),
            Trap("not divided", "Divide by the sum of the weights in the end.", _walked(True, True, divided=False)),
            Trap(
                "maximum begun at 0",
                "Where every score is far below 0, every weight is 0 then: begin the highest score at -inf.",
                _from_zero,
            ),
            Trap(
                "no maximum",
                "exp(89) is beyond float32, and exp(-104) is 0: take the highest score off first.",
                _without_maximum,
            ),
        ),
    ),
    Exercise(
        "attention/combine",
        task="The keys were cut into parts. Of part p and result i you have the highest score, highest[p, i], "
        "the sum of exp(score - highest[p, i]), total[p, i], and the weighted mean of the part's values, mean[p, i]. "
        "Write the weighted mean of all values to out[i]. A part without a key has -inf, 0 and 0. A result without "
        f"any key is 0. All are float32. The launch has {BLOCK} threads a block, one for each result.",
        parameters="highest, total, mean, out",
        cases=_combine_cases,
        answer=combine_answer,
        hints=(
            "What would a part's total be, had it been computed with the highest score of all parts?",
            "A mean counts as much as the total that belongs to it.",
            "-inf - -inf is NaN. Where every part has -inf, there is nothing to compute, and the result is 0.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("mean of means", "Parts count differently: by their total, at a common maximum.", _mean_of_means),
            Trap(
                "maximum ignored",
                "A total is relative to the highest score of its own part: bring all to one maximum.",
                _by_total_alone,
            ),
            Trap("total ignored", "A part with more weight counts more: multiply by its total.", _by_maximum_alone),
            Trap("not divided", "Divide by the sum of what the parts count.", _not_divided),
            Trap(
                "results without a key",
                "Where no part has a key, write 0. The highest score is -inf there, and -inf - -inf is NaN.",
                _nan_where_empty,
            ),
            Trap(
                "maximum begun at 0",
                "Where every score is far below 0, every weight is 0 then: begin the maximum at -inf.",
                _all_from_zero,
            ),
        ),
    ),
    Exercise(
        "attention/tiles",
        task="Query i sees key j if j <= i + keys - queries and j > i + keys - queries - window. Block t has the "
        f"queries from {TILE} * t on, {TILE} of them or as many as are left, and a tile has {TILE} keys. Write to "
        "first[t] the first tile that any query of the block sees, and to last[t] the tile after the last one that any "
        "sees. Both are 0 if no query of the block sees a key. first and last are int32, the others integers. The "
        f"launch has {BLOCK} threads a block, one for each block of queries.",
        parameters="queries, keys, window, first, last",
        cases=_tiles_cases,
        answer=tiles_answer,
        hints=(
            "The first query of a block reaches furthest back, and its last query furthest ahead.",
            "The last block may have fewer queries: its last query is queries - 1.",
            "With more queries than keys, the first queries see nothing: what are the limits then?",
        ),
        traps=(
            Trap("lengths ignored", "The last query stands at the last key: add keys - queries.", _lengths_ignored),
            Trap("part of a tile left out", "A tile that is seen in part counts: round up.", _part_left_out),
            Trap("one tile too many", "Where the keys end with a tile, there is no further one.", _one_too_many),
            Trap("first query alone", "The last query of the block sees the furthest key.", _of_the_first_query),
            Trap(
                "window too narrow",
                "A window of 1 has the query's own key: begin behind i - window.",
                _window_too_narrow,
            ),
            Trap("window too wide", "A window of 1 has no key but the query's own.", _window_too_wide),
            Trap("last query alone", "The first query of the block sees the earliest key.", _of_the_last_query),
            Trap("window ignored", "Keys before the window of the first query are not seen.", _from_the_first_key),
        ),
    ),
)
