"""Exercises of notebooks/101_tensor_parallelism.ipynb: two cut layers, a loss over cut classes, cut rows."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence

import numpy as np

from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.exercises.all_reduce import ranks_of
from pmpp.parallel.exercises.data_parallelism import EPS, close, host
from pmpp.runtime import device

ROOM = 1.3  # times the least bytes: for a few more messages, and not for twice the bytes


def name_the_mistake(case: str, found: Sequence, wanted: Sequence, bound: float, known: dict) -> None:
    """A mistake, if a rank has not what it should. ``known`` has, by a name, what each rank then has, and advice."""
    for rank, (one, right) in enumerate(zip(found, wanted, strict=True)):
        if close(one, right, bound):
            continue
        wanted_text, found_text = (" ".join(str(np.round(value, 3)).split()) for value in (right, one))
        said = f"{case} rank {rank} must return {wanted_text}, was {found_text}"
        for name, (values, advice) in known.items():
            if close(one, values[rank], 4 * bound):
                raise Mistake(name, f"{said}: {advice}")
        raise Mistake("wrong result", said)


def count_bytes(case: str, report: typing.Any, least: int, advice: str) -> None:
    """A mistake, if the ranks send more than they need."""
    sent = sum(report.nbytes.values())
    if sent > ROOM * least:
        raise Mistake("too many bytes", f"{case} the ranks send {sent} bytes, where {least} are enough: {advice}")


# ------------------------------------------------------------------------------------------------ columns, then rows


def two_layers(group: typing.Any, x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray):
    """Two linear layers with a ReLU between them: the first cut by columns, the second by rows."""
    hidden = np.maximum(x @ w1.T + b1, 0)
    return device.to_host(group.all_reduce(hidden @ w2.T)) + b2


def judge_two_layers(answer: Callable) -> str:
    """The result of the whole layers on all ranks, and what is sent."""

    def run(group: typing.Any) -> typing.Any:
        part = slice(group.rank * each, (group.rank + 1) * each)
        mine = x, w1[part], b1[part], w2[:, part], b2
        return host(case, group.rank, answer(group, *[one.copy() for one in mine]), (rows, outputs))

    for size, rows in ((1, 2), (2, 3), (4, 2)):
        inputs, each, outputs = 3, 2, 4
        rng = np.random.default_rng(size)
        shapes = (rows, inputs), (size * each, inputs), (size * each,), (outputs, size * each), (outputs,)
        x, w1, b1, w2, b2 = (rng.integers(1, 8, shape).astype(np.float32) for shape in shapes)
        x[0], w2[0] = -x[0], -w2[0]
        case = f"with {size} rank{'s' * (size > 1)}"
        found = ranks_of(case, size, run)
        before = x @ w1.T + b1
        parts = [
            np.maximum(before, 0)[:, k * each : (k + 1) * each] @ w2[:, k * each : (k + 1) * each].T
            for k in range(size)
        ]
        total = sum(parts)
        known = {
            "bias on each rank": (
                [total + size * b2] * size,
                "every rank has added b2 before the sum: add it once, to the sum",
            ),
            "no bias": ([total] * size, "b2 is missing"),
            "not summed": ([part + b2 for part in parts], "this is the part of its own hidden features"),
            "not summed, no bias": (parts, "this is the part of its own hidden features"),
            "mean instead of sum": ([total / size + b2] * size, "the parts are added, and not averaged"),
            "mean instead of sum, of the bias too": (
                [total / size] * size,
                "the parts are added, and not averaged, and b2 is missing",
            ),
            "no ReLU": ([before @ w2.T + b2] * size, "the ReLU between the layers is missing"),
            "no first bias": ([np.maximum(x @ w1.T, 0) @ w2.T + b2] * size, "b1 is missing"),
            "ReLU of the parts": (
                [sum(np.maximum(part, 0) for part in parts) + b2] * size,
                "a ReLU of each part of a sum is not the ReLU of the sum; and here none follows the second layer",
            ),
        }
        bound = (size * each + 3) * EPS * float((np.abs(before) @ np.abs(w2).T + b2).max())
        name_the_mistake(case, found, [total + b2] * size, bound, known)
        count_bytes(
            case, found.report, 2 * (size - 1) * 4 * rows * outputs, "one all-reduce of the second layer's parts"
        )
    return "All ranks have the result of the whole layers, after one all-reduce."


# ------------------------------------------------------------------------------------------------ cut classes


def cross_entropy(group: typing.Any, scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross-entropy, where rank k has the scores (rows, each) of the k-th part of the classes."""
    rows, each = scores.shape
    largest = device.to_host(group.all_reduce(scores.max(axis=1), "max"))
    shifted = scores - largest[:, None]
    mine = labels - group.rank * each
    here = (mine >= 0) & (mine < each)
    picked = np.where(here, shifted[np.arange(rows), np.where(here, mine, 0)], 0)
    total, picked = device.to_host(group.all_reduce(np.float32([np.exp(shifted).sum(axis=1), picked])))
    return float((np.log(total) - picked).mean())


def judge_cross_entropy(answer: Callable) -> str:
    """The loss for scores of usual size, and for large ones whose largest is on another rank, and what is sent."""

    def run(group: typing.Any) -> typing.Any:
        mine = scores[:, group.rank * each : (group.rank + 1) * each]
        found = answer(group, np.ascontiguousarray(mine), labels.copy())
        if found is None:
            raise Mistake("nothing returned", f"{case} rank {group.rank} returned None")
        number = np.asarray(device.to_host(found) if hasattr(found, "copy_to_host") else found)
        return host(case, group.rank, number.reshape(()) if number.size == 1 else number, ())

    for size, rows, large in ((2, 3, 0), (3, 4, 0), (2, 2, 200)):
        each = 8
        rng = np.random.default_rng(size + large)
        scores = rng.normal(0, 2, (rows, size * each)).astype(np.float32)
        scores[0, -1] += large
        scores[1, 0] -= large
        labels = rng.permutation(size * each)[:rows]
        case = f"with {size} ranks" + (" and large scores" if large else "")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = ranks_of(case, size, run)
            parts = scores.astype(np.float64).reshape(rows, size, each).swapaxes(0, 1)
            own, here = parts.max(axis=2), labels // each == np.arange(size)[:, None]
            best = own.max(axis=0)
            chosen = scores[np.arange(rows), labels].astype(np.float64)
            sums = np.exp(parts - best[:, None]).sum(axis=2)
            loss = np.log(sums.sum(axis=0)) + best - chosen
            unequal = np.exp(parts - own[..., None]).sum(axis=(0, 2))
            picked = np.where(here, chosen - best, 0)
            every = parts[:, np.arange(rows), labels % each].sum(axis=0) - size * best
            known = {
                "sum instead of mean": ([loss.sum()] * size, "take the mean of the rows"),
                "sum of the ranks' losses": ([size * loss.mean()] * size, "all ranks have the loss: do not add it up"),
                "own largest": (
                    [(np.log(unequal) - np.where(here, chosen - own, 0).sum(axis=0)).mean()] * size,
                    "each rank has subtracted its own largest score: all have to subtract the same one",
                ),
                "sum of its own classes": (
                    (np.log(sums) + best - chosen).mean(axis=1),
                    "the sum of exponentials is that of its own classes: add up those of all ranks",
                ),
                "nothing summed": (
                    (np.log(sums) + best - np.where(here, chosen, 0)).mean(axis=1),
                    "this comes from its own scores alone: add up what the ranks have of each row",
                ),
                "label of another rank": (
                    (np.log(sums.sum(axis=0)) - picked).mean(axis=1),
                    "the label's score is on one rank: the others need it, too",
                ),
                "a label on each rank": (
                    [(np.log(sums.sum(axis=0)) - every).mean()] * size,
                    "every rank has added a score: labels count all classes, and one rank alone has the label",
                ),
            }
        for rank, one in enumerate(found):
            if not np.isfinite(one):
                raise Mistake(
                    "overflow",
                    f"{case} rank {rank} must return {loss.mean():.4f}, was {one}: subtract the largest score of all "
                    "ranks before you take exponentials",
                )
        # A sum of all classes, and differences of scores, each rounded.
        bound = (size * each + 8) * EPS * float(max(1, np.abs(scores).max()))
        name_the_mistake(case, found, [np.float64(loss.mean())] * size, bound, known)
        least = 3 * 2 * (size - 1) * 4 * rows
        count_bytes(case, found.report, least, "three numbers for each row, in float32")
    return "All ranks have the loss, and send three numbers for each row."


# ------------------------------------------------------------------------------------------------ cut rows


def cut_rows(group: typing.Any, x: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    """Two cut layers between which and others the rows are cut: rows of this rank in, rows of this rank out."""
    every = device.to_host(group.all_gather(x)).reshape(-1, x.shape[1])
    part = np.maximum(every @ w1.T, 0) @ w2.T
    return device.to_host(group.reduce_scatter(part.reshape(group.size, len(x), -1)))


def judge_cut_rows(answer: Callable) -> str:
    """The rank's rows of the result of the whole layers, and what is sent."""

    def run(group: typing.Any) -> typing.Any:
        part = slice(group.rank * each, (group.rank + 1) * each)
        own = slice(group.rank * rows, (group.rank + 1) * rows)
        found = answer(group, x[own].copy(), w1[part].copy(), np.ascontiguousarray(w2[:, part]))
        if found is not None and np.shape(device.to_host(found)) == (size * rows, outputs) and size > 1:
            raise Mistake("all rows", f"{case} rank {group.rank} returns all {size * rows} rows: return its own {rows}")
        return host(case, group.rank, found, (rows, outputs))

    for size, rows in ((1, 2), (2, 3), (4, 1)):
        inputs, each, outputs = 4, 2, 5
        rng = np.random.default_rng(size)
        shapes = (size * rows, inputs), (size * each, inputs), (outputs, size * each)
        x, w1, w2 = (rng.integers(1, 8, shape).astype(np.float32) for shape in shapes)
        w1[0] *= -1
        case = f"with {size} rank{'s' * (size > 1)}"
        found = ranks_of(case, size, run)
        hidden = np.maximum(x @ w1.T, 0)
        parts = [hidden[:, k * each : (k + 1) * each] @ w2[:, k * each : (k + 1) * each].T for k in range(size)]
        right = sum(parts).reshape(size, rows, outputs)
        alone = [part.reshape(size, rows, outputs)[k] for k, part in enumerate(parts)]
        known = {
            "not summed": (alone, "this is the part of its own hidden features: the parts of all ranks are added"),
            "rows not gathered": (
                [sum(alone)] * size,
                "each rank has used its own rows alone, and then rows of different ranks were added: gather x first",
            ),
            "another rank's rows": ([right[k - 1] for k in range(size)], "these are the rows of the rank before"),
            "mean instead of sum": (right / size, "the parts are added, and not averaged"),
            "no ReLU": ((x @ w1.T @ w2.T).reshape(right.shape), "the ReLU between the layers is missing"),
        }
        bound = (size * each + inputs) * EPS * float((abs(x) @ abs(w1).T @ abs(w2).T).max())
        name_the_mistake(case, found, right, bound, known)
        least = (size - 1) * 4 * size * rows * (inputs + outputs)
        count_bytes(case, found.report, least, "gather x once, and let reduce_scatter sum and cut in one call")
    return "Each rank has its rows, and the two calls send what one all-reduce would, where both sides are as wide."


EXERCISES = (
    Exercise(
        "tensor_parallelism/two_layers",
        "Compute two linear layers with a ReLU between them, and return the result on all ranks. Each rank has all of "
        "x, its rows of w1 with their part of b1, its columns of w2, and all of b2. Weights have a row for each output "
        "(F.linear). All are NumPy arrays. Send no more than one all-reduce of the result.",
        "two_layers(group, x, w1, b1, w2, b2)",
        judge_two_layers,
        (
            "With its part of w1 a rank computes some hidden features, completely. So it can apply the ReLU.",
            "With its columns of w2 a rank makes a part of a sum that has the shape of the result.",
            "group.all_reduce adds the parts. How often must b2 be added?",
        ),
        two_layers,
    ),
    Exercise(
        "tensor_parallelism/cross_entropy",
        "Return the mean cross-entropy on all ranks, where rank k has the scores of the k-th part of the classes: "
        "scores is (rows, classes / size) in float32. labels are numbers among all classes, equal on all ranks. Both "
        "are NumPy arrays. Scores may be large. Send three numbers for each row.",
        "cross_entropy(group, scores, labels)",
        judge_cross_entropy,
        (
            "The loss of a row is log(sum of exp(score - largest)) - (score of the label - largest).",
            "The largest score of all ranks is group.all_reduce(scores.max(axis=1), 'max').",
            "labels - group.rank * scores.shape[1] are a rank's own numbers. It has the label, if that is one of them. "
            "A rank that has not adds 0.",
        ),
        cross_entropy,
    ),
    Exercise(
        "tensor_parallelism/cut_rows",
        "Compute two linear layers with a ReLU between them, where each rank has some rows of x: rank k has the k-th "
        "part. Return this rank's rows of the result. Each rank has its rows of w1 and its columns of w2, as in "
        "tensor_parallelism/two_layers. There is no bias. Use no all_reduce: it would send more than is needed.",
        "cut_rows(group, x, w1, w2)",
        judge_cut_rows,
        (
            "A rank has some of the weights. So it can do its part for all rows, and for that it needs all rows.",
            "group.all_gather(x) has shape (size, rows, inputs): reshape it to (size * rows, inputs).",
            "group.reduce_scatter(parts) takes (size, rows, outputs), and gives rank k the sum of all parts[k].",
        ),
        cut_rows,
    ),
)
