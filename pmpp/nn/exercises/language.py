"""Exercises of notebooks/106_a_language_model.ipynb: perplexity, and attention of one token with a cache."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator

import numpy as np

from pmpp.nn.exercises import Exercise, Mistake

# ------------------------------------------------------------------------------------------------------- perplexity


def perplexity(scores: np.ndarray, following: np.ndarray) -> float:
    """e to the mean of minus the logarithm of the share that the right token got."""
    scores = scores - scores.max(axis=1, keepdims=True)
    shares = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return math.exp(-shares[np.arange(len(following)), following].mean())


def _number(found: typing.Any, case: str) -> float:
    if found is None:
        raise Mistake("not started", "perplexity() returned None")
    if np.ndim(found) != 0 or not np.issubdtype(np.asarray(found).dtype, np.number):
        raise Mistake("wrong form", f"{case} the result must be one number, was {type(found).__name__}")
    return float(found)


def _told(answer: Callable, scores: np.ndarray, following: np.ndarray, case: str) -> float:
    given = scores.copy(), following.copy()
    with np.errstate(all="ignore"):
        found = _number(answer(*given), case)
    if not (np.array_equal(given[0], scores) and np.array_equal(given[1], following)):
        raise Mistake("scores change", f"{case} what was given has changed: it is the caller's")
    return found


def judge_perplexity(answer: Callable) -> str:
    """A network that knows nothing, one that wavers between two, one of both; then scores that are large or far."""
    scores, following = np.zeros((5, 8), np.float32), np.array([0, 5, 7, 1, 5])
    case = "with equal scores for 8 tokens"
    found = _told(answer, scores, following, case)
    for wrong, name, why in (
        (math.log(8), "no exponential", "that is the mean loss: perplexity is e to its power"),
        (3.0, "no exponential", "that is the mean loss in bits: perplexity is 2 to its power"),
        (2 ** math.log(8), "another base", "the logarithm is natural, so the power must be one of e"),
        (1 / 8, "upside down", "that is the share of the right token: perplexity is the number of choices"),
        (5 * math.log(8), "not a mean", "the losses of the tokens must be averaged, not added up"),
        (8.0**5, "not a mean", "the losses of the tokens must be averaged, not added up"),
    ):
        if math.isclose(found, wrong, rel_tol=1e-4):
            raise Mistake(name, f"{case} it must be 8, was {found:.4g}: {why}")
    if not math.isclose(found, 8, rel_tol=1e-4):
        raise Mistake("wrong perplexity", f"{case} it must be 8, was {found:.4g}")

    scores = np.log(np.float32([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]))
    following = np.array([0, 2])
    case = "with shares of 1/2 and 1/8 for the right tokens"
    found = _told(answer, scores, following, case)
    of_likeliest = math.exp(-(math.log(0.5) + math.log(0.75)) / 2)
    for wrong, name, why in (
        (5.0, "mean of choices", "average the logarithms first: the mean of 2 and 8 is not what is asked for"),
        (3.2, "mean of shares", "average the logarithms, not the shares"),
        (of_likeliest, "wrong token", "the token that follows counts, not the likeliest one"),
    ):
        if math.isclose(found, wrong, rel_tol=1e-4):
            raise Mistake(name, f"{case} it must be 4, was {found:.4g}: {why}")
    if not math.isclose(found, 4, rel_tol=1e-4):
        raise Mistake("wrong perplexity", f"{case} it must be 4, was {found:.4g}")

    scores = np.float32([[1000, 1000, 0], [-1000, -2000, -1000]])
    found = _told(answer, scores, np.array([1, 2]), "with scores of 1000 and -1000")
    if not math.isclose(found, 2, rel_tol=1e-4):
        why = "exp(1000) is infinite, and exp(-1000) is 0: take off the greatest score of each row first"
        raise Mistake("overflow", f"with scores of 1000 and -1000 it must be 2, was {found}: {why}")

    # exp(-1000) is 0 in float64, too.
    scores = np.zeros((500, 2), np.float32)
    scores[250, 1] = -1000
    case = "with one token of 500 whose score is 1000 below the greatest"
    found, wanted = _told(answer, scores, np.ones(500, int), case), math.exp((1000 + 499 * math.log(2)) / 500)
    if not math.isclose(found, wanted, rel_tol=1e-4):
        why = "its share is 0 after rounding: take the logarithm of the sum, and not that of the share"
        raise Mistake("underflow", f"{case} it must be {wanted:.4g}, was {found:.4g}: {why}")
    return "It says among how many tokens the network wavers, also where scores are large."


# ----------------------------------------------------------------------------------------------------------- cached


def cached(q: np.ndarray, k: np.ndarray, v: np.ndarray, keys: np.ndarray, values: np.ndarray, used: int) -> np.ndarray:
    """Attention of one more token of each head, whose key and value join the cache."""
    keys[:, used], values[:, used] = k, v
    scores = np.einsum("hs,hjs->hj", q, keys[:, : used + 1]) / math.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("hj,hjs->hs", weights, values[:, : used + 1])


def _near(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-3, atol=1e-4))


def judge_cached(answer: Callable) -> str:
    """Token after token of two heads, each compared with what single faults would give."""
    rng = np.random.default_rng(3)
    heads, room, size = 2, 6, 4
    cache = [np.full((heads, room, size), 7.0, np.float32) for _ in range(2)]  # what is beyond is not 0
    kept = [one.copy() for one in cache]
    for used in range(4):
        q, k, v = (2 * rng.standard_normal((heads, size)).astype(np.float32) for _ in range(3))
        case = f"for a token with {used} before it"
        given = [one.copy() for one in (q, k, v)]
        with np.errstate(all="ignore"):
            try:
                found = answer(*given, *cache, used)
            except ValueError as error:
                if not used and "zero-size" in str(error):  # what NumPy says of the maximum of no scores
                    why = f"{case} there is nothing to be seen before its key is written: write first"
                    raise Mistake("does not see itself", why) from error
                raise
        wanted = cached(q, k, v, *kept, used)
        if found is None:
            raise Mistake("not started", "step() returned None")
        if np.shape(found) != (heads, size):
            raise Mistake("wrong form", f"{case} the result must have shape {(heads, size)}, had {np.shape(found)}")
        for name, mine, right in zip(("keys", "values"), cache, kept, strict=True):
            if np.array_equal(mine, right):
                continue
            others = np.delete(mine != right, used, axis=1)
            if others.any():
                raise Mistake("wrong place", f"{case} {name}[:, {used}] alone may change: others have changed")
            raise Mistake("cache is not written", f"{case} {name}[:, {used}] must hold what is new")
        if not _near(found, wanted):
            raise _why(np.asarray(found), (q, k, v), kept, used, case)
    q, k, v = (np.full((heads, size), x, np.float32) for x in (100.0, 100.0, 1.0))
    with np.errstate(all="ignore"):
        found = answer(q, k, v, *cache, 4)
    if not _near(found, cached(q, k, v, *kept, 4)):
        raise Mistake("overflow", "with scores of 20000 the result is wrong: take off the greatest score first")
    return "Each token sees all before it and itself, and is seen by those that follow."


def _why(found: np.ndarray, new: tuple, kept: list[np.ndarray], used: int, case: str) -> Mistake:
    """Which fault gives this result."""
    q, _, _ = new
    keys, values = kept

    def attended(count: int, scale: float = 1 / math.sqrt(q.shape[1]), by: np.ndarray = values) -> np.ndarray:
        scores = np.einsum("hs,hjs->hj", q, keys[:, :count]) * scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("hj,hjs->hs", weights / weights.sum(axis=1, keepdims=True), by[:, :count])

    if used and _near(found, attended(used)):
        return Mistake("does not see itself", f"{case} the token itself is missing: {used + 1} keys are to be seen")
    if not used and not (np.isfinite(found).all() and found.any()):
        return Mistake("does not see itself", f"{case} the token sees itself: there is one key, its own")
    if _near(found, attended(keys.shape[1])):
        return Mistake("sees what is not there", f"{case} the cache has {used + 1} tokens: what is beyond is no token")
    if _near(found, attended(used + 1, 1.0)):
        return Mistake("no scale", f"{case} scores must be divided by the square root of {q.shape[1]}")
    if _near(found, attended(used + 1, by=keys)):
        return Mistake("keys for values", f"{case} the weights must be of the values: the keys were averaged")
    return Mistake("wrong result", f"{case} the result is not the mean of the values by the softmax of the scores")


def _all() -> Iterator[Exercise]:
    yield Exercise(
        "language/perplexity",
        "Write the perplexity of a text. `scores` has shape (n, vocabulary): what the network says of each place. "
        "`following` has the n tokens that really came. Return e to the mean of minus the logarithm of the share, of "
        "the softmax, that the right token got.",
        "perplexity(scores, following) -> number",
        judge_perplexity,
        (
            "A share is exp(score) divided by the sum of exp(score) over the row. The logarithm of that is a "
            "difference.",
            "Take the greatest score of a row off all its scores first. That changes no share, and nothing overflows.",
        ),
        perplexity,
    )
    yield Exercise(
        "language/cached",
        "Write attention for one more token, with a cache. `q`, `k` and `v` of the token have shape (heads, size). "
        "`keys` and `values` have shape (heads, room, size), of which the first `used` places belong to the tokens "
        "before. Put `k` and `v` into place `used`, and return the attention of `q` on all tokens up to its own, of "
        "shape (heads, size).",
        "step(q, k, v, keys, values, used) -> array of shape (heads, size)",
        judge_cached,
        (
            "Write into the cache first. Then the token is one of the used + 1 that it sees.",
            "np.einsum('hs,hjs->hj', q, keys[:, :used + 1]) has the scores of all heads. Divide them by the root of "
            "size.",
        ),
        cached,
    )


EXERCISES = tuple(_all())
