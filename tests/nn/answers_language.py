"""Answers to the exercises of notebooks/106_a_language_model.ipynb: wrong ones with their mistakes, and right ones."""

import math

import numpy as np

# ------------------------------------------------------------------------------------------------------- perplexity


def losses(scores, following):
    scores = scores.astype(np.float64)
    scores = scores - scores.max(axis=1, keepdims=True)
    return -(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))[np.arange(len(following)), following]


def mean_loss(scores, following):
    return losses(scores, following).mean()


def power_of_two(scores, following):
    return 2 ** losses(scores, following).mean()


def total(scores, following):
    return math.exp(losses(scores, following).sum())


def share(scores, following):
    return math.exp(-losses(scores, following).mean())


def mean_of_choices(scores, following):
    return np.exp(losses(scores, following)).mean()


def mean_of_shares(scores, following):
    return 1 / np.exp(-losses(scores, following)).mean()


def likeliest(scores, following):
    return math.exp(losses(scores, scores.argmax(axis=1)).mean())


def overflows(scores, following):
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return np.exp(-np.log(shares[np.arange(len(following)), following]).mean())


def underflows(scores, following):
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return np.exp(-np.log(shares[np.arange(len(following)), following]).mean())


def underflows_in_float64(scores, following):
    return underflows(scores.astype(np.float64), following)


def with_a_little_added(scores, following):
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return np.exp(-np.log(shares[np.arange(len(following)), following] + 1e-9).mean())


def across(scores, following):
    shares = np.exp(scores) / np.exp(scores).sum(axis=0)
    return np.exp(-np.log(shares[np.arange(len(following)), following]).mean())


def each(scores, following):
    return np.exp(losses(scores, following))


def in_place(scores, following):
    scores -= scores.max(axis=1, keepdims=True) + 1
    return math.exp(losses(scores, following).mean())


def nothing(*_):
    pass


def by_base_two(scores, following):
    return np.exp2(losses(scores, following).mean() / np.log(2))


def token_by_token(scores, following):
    """In float32, one token after another."""
    total = 0.0
    for row, token in zip(scores, following, strict=True):
        total += math.log(np.exp(row - row.max()).sum()) + float(row.max() - row[token])
    return math.exp(total / len(following))


# ----------------------------------------------------------------------------------------------------------- cached


def attended(q, keys, values, scale=None):
    scores = np.einsum("hs,hjs->hj", q, keys) * (1 / math.sqrt(q.shape[1]) if scale is None else scale)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.einsum("hj,hjs->hs", weights / weights.sum(axis=1, keepdims=True), values)


def keeps_nothing(q, k, v, keys, values, used):
    mine = np.concatenate([keys[:, :used], k[:, None]], 1), np.concatenate([values[:, :used], v[:, None]], 1)
    return attended(q, *mine)


def one_too_early(q, k, v, keys, values, used):
    at = max(used - 1, 0)
    keys[:, at], values[:, at] = k, v
    return attended(q, keys[:, : at + 1], values[:, : at + 1])


def blind_to_itself(q, k, v, keys, values, used):
    found = attended(q, keys[:, :used], values[:, :used])
    keys[:, used], values[:, used] = k, v
    return found


def reads_first(q, k, v, keys, values, used):
    scores = np.einsum("hs,hjs->hj", q, keys[:, :used]) / math.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    keys[:, used], values[:, used] = k, v
    return np.einsum("hj,hjs->hs", weights / weights.sum(axis=1, keepdims=True), values[:, :used])


def all_the_room(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    return attended(q, keys, values)


def unscaled(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    return attended(q, keys[:, : used + 1], values[:, : used + 1], 1.0)


def keys_alone(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    return attended(q, keys[:, : used + 1], keys[:, : used + 1])


def no_maximum(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    weights = np.exp(np.einsum("hs,hjs->hj", q, keys[:, : used + 1]) / math.sqrt(q.shape[1]))
    return np.einsum("hj,hjs->hs", weights / weights.sum(axis=1, keepdims=True), values[:, : used + 1])


def plain_mean(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    return values[:, : used + 1].mean(axis=1)


def first_head(q, k, v, keys, values, used):
    keys[:, used], values[:, used] = k, v
    return attended(q, keys[:, : used + 1], values[:, : used + 1])[0]


def by_matrices(q, k, v, keys, values, used):
    """Head after head."""
    made = np.empty_like(q)
    for head in range(len(q)):
        keys[head, used], values[head, used] = k[head], v[head]
        scores = keys[head, : used + 1] @ q[head] / q.shape[1] ** 0.5
        weights = np.exp(scores - scores.max())
        made[head] = weights / weights.sum() @ values[head, : used + 1]
    return made


#: (exercise, answer, mistake, what is said)
WRONG = [
    ("language/perplexity", mean_loss, "no exponential", "was 2.079"),
    ("language/perplexity", power_of_two, "another base", "power must be one of e"),
    ("language/perplexity", total, "not a mean", "not added up"),
    ("language/perplexity", share, "upside down", "number of choices"),
    ("language/perplexity", mean_of_choices, "mean of choices", "must be 4, was 5"),
    ("language/perplexity", mean_of_shares, "mean of shares", "must be 4, was 3.2"),
    ("language/perplexity", likeliest, "wrong token", "not the likeliest"),
    ("language/perplexity", overflows, "overflow", "greatest score"),
    ("language/perplexity", underflows, "underflow", "was inf"),
    ("language/perplexity", underflows_in_float64, "underflow", "must be 14.76, was inf"),
    ("language/perplexity", with_a_little_added, "underflow", "logarithm of the sum"),
    ("language/perplexity", across, "wrong perplexity", "must be 8, was 5"),
    ("language/perplexity", each, "wrong form", "one number"),
    ("language/perplexity", in_place, "scores change", "the caller's"),
    ("language/perplexity", nothing, "not started", "None"),
    ("language/cached", keeps_nothing, "cache is not written", "must hold what is new"),
    ("language/cached", one_too_early, "wrong place", r"keys\[:, 1\] alone"),
    ("language/cached", blind_to_itself, "does not see itself", "its own"),
    ("language/cached", reads_first, "does not see itself", "write first"),
    ("language/cached", all_the_room, "sees what is not there", "no token"),
    ("language/cached", unscaled, "no scale", "square root of 4"),
    ("language/cached", keys_alone, "keys for values", "keys were averaged"),
    ("language/cached", no_maximum, "overflow", "greatest score"),
    ("language/cached", plain_mean, "wrong result", "softmax"),
    ("language/cached", first_head, "wrong form", "must have shape"),
    ("language/cached", nothing, "not started", "None"),
]

ALSO_RIGHT = [
    ("language/perplexity", by_base_two),
    ("language/perplexity", token_by_token),
    ("language/cached", by_matrices),
]
