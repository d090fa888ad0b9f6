"""Exercises of notebooks/100_data_parallelism.ipynb: parts of unequal size, a whole training, a sharded step."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Sequence

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.exercises.all_reduce import ranks_of
from pmpp.runtime import device

EPS = float(np.finfo(np.float32).eps)
MOMENTUM = 0.9


def host(case: str, rank: int, found: typing.Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a rank has returned, on the host; a mistake, if it is not an array of that shape."""
    if found is None:
        raise Mistake("nothing returned", f"{case} rank {rank} returned None")
    result = np.asarray(device.to_host(found))
    if result.ndim > len(shape) == 1 and result.size == shape[0]:
        raise Mistake(
            "rows not joined", f"{case} rank {rank} returned shape {result.shape}: join the rows by reshape(-1)"
        )
    if result.shape != shape:
        raise Mistake("wrong shape", f"{case} rank {rank} must return shape {shape}, was {result.shape}")
    return result


def close(found: np.ndarray, wanted: np.ndarray, bound: float) -> bool:
    """Whether two arrays differ by no more than rounding."""
    return bool((np.abs(found - wanted) <= bound).all())


# ------------------------------------------------------------------------------------------------ unequal parts


def average(group: typing.Any, gradient: typing.Any, count: int) -> typing.Any:
    """The gradient of the joined batch's mean loss, of ranks with ``count`` examples each, which may be 0."""
    both = np.append(gradient * np.float32(count), np.float32(count))
    total = device.to_host(group.all_reduce(both))
    return total[:-1] / total[-1]


def judge_average(answer: Callable) -> str:
    """Equal and unequal parts, and a rank that has no example."""

    def run(group: typing.Any) -> typing.Any:
        return answer(group, gradients[group.rank].copy(), counts[group.rank])

    for counts in ((3, 1), (3, 3), (1, 2, 5), (4, 0, 2)):
        size = len(counts)
        gradients = np.float32([[8.0 * rank + 1, 2.0 - rank, 3.0] for rank in range(size)])
        for rank in range(size):
            if not counts[rank]:
                gradients[rank] = 0
        case = f"with {', '.join(map(str, counts))} examples"
        found = [host(case, rank, one, (3,)) for rank, one in enumerate(ranks_of(case, size, run))]
        number, many = np.array(counts)[:, None], sum(counts)
        wanted = (number * gradients).sum(axis=0) / many
        # Products, a sum and a quotient: at most size + 3 roundings of the sum of the absolute terms.
        bound = (size + 3) * EPS * float((number * abs(gradients)).sum(axis=0).max() / many)
        for rank, result in enumerate(found):
            if close(result, wanted, bound):
                continue
            said = f"{case} rank {rank} must return {wanted}, was {result}"
            if not np.isfinite(result).all():
                raise Mistake("divided by zero", f"{said}: a rank may have no example, all together have some")
            known = {
                "sum instead of mean": (gradients.sum(axis=0), "divide by the number of examples, not by nothing"),
                "mean of means": (
                    gradients.mean(axis=0),
                    "each rank counts the same here, and each example should: weigh a gradient with its examples",
                ),
                "not divided": ((number * gradients).sum(axis=0), "divide by the examples of all ranks"),
                "divided by the ranks": (
                    (number * gradients).mean(axis=0),
                    "divide by the examples of all ranks, and not by the number of ranks",
                ),
                "not summed": (gradients[rank], "this is its own gradient"),
            }
            if counts[rank]:
                own = (number * gradients).sum(axis=0) / counts[rank]
                which = own if close(result, own, size * bound * many) else own / size
                known["divided by its own examples"] = which, "the examples of all ranks are summed, like the gradients"
            for name, (value, advice) in known.items():
                if close(result, value, size * bound):
                    raise Mistake(name, f"{said}: {advice}")
            if any(not np.array_equal(result, other) for other in found):
                raise Mistake("ranks differ", f"{said}: the ranks must have the same result")
            raise Mistake("wrong result", said)
    return "Each example counts the same, wherever it is, and a rank without examples adds nothing."


# ------------------------------------------------------------------------------------------------ a whole training


def train(group: typing.Any, net: typing.Any, steps: list, lr: float) -> None:
    """Train a network on all ranks as one rank would on the joined pieces. ``steps`` has lists of (images, labels)."""
    for parameter in net.parameters():
        group.broadcast(parameter.array, out=parameter.array)
        parameter.changed()
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        optimizer.zero_grad()
        for images, labels in pieces:
            (F.cross_entropy(net(nn.Tensor(images)), nn.Tensor(labels)) * (1 / len(pieces))).backward()
        for parameter in net.parameters():
            group.all_reduce(parameter.grad.array, "mean", out=parameter.grad.array)
        optimizer.step()


#: What may be wrong with a training, as names of options of `trained`, with the mistake's name and what to do.
FAULTS = {
    "own_start": (
        "parameters not broadcast",
        "the ranks began with other parameters, and still differ: send those of rank 0 to all before the first step",
    ),
    "mean_start": (
        "parameters averaged",
        "the ranks began with the mean of their parameters: send those of rank 0 to all",
    ),
    "stepped": (
        "step for each piece",
        "the parameters changed between the pieces of a step: let the optimiser step once, after the last piece",
    ),
    "dropped": (
        "pieces dropped",
        "only the last piece of a step counts: call zero_grad() once for each step, before the first piece",
    ),
    "summed": (
        "sum instead of mean",
        "this is what the sum of the ranks' gradients gives, which acts as a larger rate: take their mean",
    ),
    "undivided": (
        "pieces not divided",
        "the gradients of the pieces are added up: divide each loss by the number of pieces",
    ),
    "early": (
        "averaged too early",
        "the gradients were averaged before the last piece, whose gradient stayed each rank's own: average once, after "
        "the last backward pass",
    ),
    "alone": ("not averaged", "each rank steps with its own gradients"),
    "kept": ("old gradients", "the gradients of the step before were not dropped"),
}
FEATURES, CLASSES = 64, 5


def trained(weights: np.ndarray, steps: list, lr: float, faults: Sequence[str] = ()) -> np.ndarray:
    """The training of a linear layer by NumPy in float64, for all ranks: weights (ranks, classes, features + 1).

    ``steps[step][piece]`` has the images and labels of all ranks; ``faults`` are names of `FAULTS`.
    """
    size = len(weights)
    start = weights.mean(axis=0, keepdims=True) if "mean_start" in faults else weights[:1]
    w = (weights if "own_start" in faults else np.repeat(start, size, 0)).astype(np.float64)
    held = np.zeros_like(w)
    for pieces in steps:
        gradient = held.copy() if "kept" in faults else np.zeros_like(w)
        for k, (images, labels) in enumerate(pieces):
            if "dropped" in faults:
                gradient = np.zeros_like(w)
            last = k == len(pieces) - 1
            x = np.concatenate([images, np.ones((*images.shape[:2], 1))], axis=2)
            scores = np.exp(np.einsum("rnf,rcf->rnc", x, w))
            error = scores / scores.sum(axis=2, keepdims=True) - np.eye(CLASSES)[labels]
            part = np.einsum("rnc,rnf->rcf", error, x) / images.shape[1]
            gradient += part if "undivided" in faults else part / len(pieces)
            if (k == 0 if "early" in faults else last or "stepped" in faults) and "alone" not in faults:
                joined = gradient.sum(axis=0) if "summed" in faults else gradient.mean(axis=0)
                gradient[:] = joined
            if last or "stepped" in faults:
                w -= lr * gradient
        held = gradient
    return w


def judge_train(answer: Callable) -> str:
    """The weights of one rank on the joined pieces, for ranks that begin with other parameters, and what is sent."""
    count, lr = CLASSES * (FEATURES + 1), 0.5
    for size, of_a_step in ((2, 1), (2, 3), (3, 2)):
        rng = np.random.default_rng(size + of_a_step)
        weights = rng.normal(0, 0.1, (size, CLASSES, FEATURES + 1)).astype(np.float32)
        steps = [
            [
                (rng.normal(size=(size, 2, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, (size, 2)))
                for _ in range(of_a_step)
            ]
            for _ in range(2)
        ]
        case = f"with {size} ranks and {of_a_step} piece{'s' * (of_a_step > 1)} in a step"
        found = ranks_of(case, size, _of_rank, answer, weights, steps, lr)
        result = np.stack(found)
        # Sums of up to 64 products of numbers of about 1, in each of 2 steps, forwards and backwards.
        bound = 2 * 2 * FEATURES * EPS
        if not close(result, trained(weights, steps, lr), bound):
            for faults in itertools.chain.from_iterable(itertools.combinations(FAULTS, n) for n in (1, 2, 3)):
                if close(result, trained(weights, steps, lr, faults), bound):
                    name, advice = FAULTS[faults[0]]
                    raise Mistake(name, f"{case}: {advice}")
            if close(result, weights, 0.0) or close(result, weights[:1], 0.0):
                raise Mistake("not trained", f"{case} no parameter has changed")
            if not (result == result[0]).all():
                raise Mistake("ranks differ", f"{case} the ranks end with other parameters")
            raise Mistake("wrong result", f"{case} the parameters are not those of one rank on the joined batch")
        sent, once = sum(found.report.nbytes.values()), 4 * (size - 1) * count
        if of_a_step > 1 and sent > 1.6 * once * (1 + 2 * len(steps)):
            raise Mistake(
                "too many bytes",
                f"{case} the ranks send {sent:,} bytes, where {once * (1 + 2 * len(steps)):,} are enough: average once "
                "for each step, after the last piece",
            )
    return "All ranks hold the network that one rank would have, and send each gradient once for each step."


def _of_rank(group: typing.Any, answer: Callable, weights: np.ndarray, steps: list, lr: float) -> np.ndarray:
    net = nn.Linear(FEATURES, CLASSES)
    own = weights[group.rank]
    with nn.no_grad():
        net.weight.copy_(nn.Tensor(np.ascontiguousarray(own[:, :-1])))
        net.bias.copy_(nn.Tensor(np.ascontiguousarray(own[:, -1])))
    mine = [[(x[group.rank], y[group.rank].astype(np.int64)) for x, y in pieces] for pieces in steps]
    answer(group, net, mine, lr)
    return np.concatenate([net.weight.detach().numpy(), net.bias.detach().numpy()[:, None]], axis=1)


# ------------------------------------------------------------------------------------------------ a sharded step


def sharded_step(group: typing.Any, weights: np.ndarray, gradient: np.ndarray, lr: float, state: dict) -> np.ndarray:
    """A step of SGD with momentum 0.9, of which each rank keeps the momentum of its part alone, in ``state``."""
    share = -(-weights.size // group.size)
    rows = np.zeros((2, group.size, share), np.float32)
    rows[0].reshape(-1)[: weights.size], rows[1].reshape(-1)[: weights.size] = weights, gradient
    mean = device.to_host(group.reduce_scatter(rows[1], "mean"))
    state["momentum"] = np.float32(MOMENTUM) * state.get("momentum", np.float32(0)) + mean
    mine = rows[0, group.rank] - np.float32(lr) * state["momentum"]
    return device.to_host(group.all_gather(mine)).reshape(-1)[: weights.size]


def judge_sharded_step(answer: Callable) -> str:
    """The weights after three steps, for lengths that the ranks do not divide, and the length of each state."""

    def run(group: typing.Any) -> tuple[list, int]:
        state: dict = {}
        weights, seen = start.copy(), []
        for k in range(len(gradients)):
            found = answer(group, weights.copy(), gradients[k, group.rank].copy(), 0.5, state)
            weights = host(f"{case} in step {k}", group.rank, found, start.shape)
            seen.append(weights)
        return seen, sum(getattr(one, "size", 0) for one in state.values())

    for size, length in ((2, 8), (3, 8), (4, 7), (4, 2)):
        case = f"with {size} ranks and {length} weights"
        rng = np.random.default_rng(size)
        start = rng.integers(-8, 8, length).astype(np.float32)
        gradients = rng.integers(-8, 8, (3, size, length)).astype(np.float32)
        found = ranks_of(case, size, run)
        _weights(case, start, gradients, [seen for seen, _ in found])
        share = -(-length // size)
        for rank, (_, kept) in enumerate(found):
            if kept > share:
                raise Mistake(
                    "shard too long",
                    f"{case} rank {rank} keeps {kept} numbers of state, where its part has {share}: keep that of its "
                    "own part alone",
                )
            if kept == 0 and rank * share < length:
                raise Mistake("no state", f"{case} rank {rank} keeps nothing in state")
        sent, least = max(found.report.nbytes.values()), 2 * 3 * (size - 1) * 4 * share
        if sent > least:
            raise Mistake(
                "too many bytes",
                f"{case} a rank sends {sent} bytes, where {least} are enough: a rank needs the mean of its own part "
                "alone, so reduce_scatter does what is needed of all_reduce",
            )
    return "Each rank keeps the state of its part, and sends what an all-reduce of the gradients would."


def _weights(case: str, start: np.ndarray, gradients: np.ndarray, found: list) -> None:
    """Whether all ranks have the weights of one optimiser that keeps everything; else what is wrong."""
    size, length = gradients.shape[1:]

    def after(joined: np.ndarray, factor: float = MOMENTUM) -> list[np.ndarray]:
        w, v, seen = start.astype(np.float64), 0.0, []
        for gradient in joined:
            v = factor * v + gradient
            w = w - 0.5 * v
            seen.append(w)
        return seen

    # Numbers of up to 8 + 3 * 8 * 2.71, with some roundings in each of three steps.
    bound = 3 * (size + 4) * EPS * 32 * 4
    right = after(gradients.mean(axis=1))
    for rank, seen in enumerate(found):
        if all(map(lambda a, b: close(a, b, bound), seen, right)):
            continue
        said = f"{case} rank {rank}"
        if all(map(lambda a, b: close(a, b, 4 * bound), seen, after(gradients.sum(axis=1)))):
            raise Mistake("sum instead of mean", f"{said} steps with the sum of the gradients: take the mean")
        if all(map(lambda a, b: close(a, b, bound), seen, after(gradients[:, rank]))):
            raise Mistake("not averaged", f"{said} steps with its own gradient alone")
        if all(map(lambda a, b: close(a, b, bound), seen, after(gradients.mean(axis=1), 0.0))):
            raise Mistake("no momentum", f"{said} forgets the momentum between two steps: keep it in state")
        first, short = seen[0], length // size
        done = np.abs(first - right[0]) <= bound
        if short * size < length and done[: short * size].all() and (first == start)[short * size :].all():
            raise Mistake(
                "shard too short",
                f"{said} leaves the last {length - short * size} weights as they were: {size} parts of {short} are "
                f"{short * size}. Round the length of a part up, and fill the last part with zeros",
            )
        if (first == start).all():
            raise Mistake("no step", f"{said} has the weights that it had before the step")
        share = -(-length // size)
        own = np.arange(length) // share == rank
        if done[own].all() and (first == start)[~own].all():
            raise Mistake(
                "not gathered", f"{said} has changed its own part alone: gather the parts of all ranks afterwards"
            )
        at = next(k for k, (a, b) in enumerate(zip(seen, right, strict=True)) if not close(a, b, bound))
        raise Mistake("wrong result", f"{said} must have {right[at]} after step {at}, was {seen[at]}")


EXERCISES = (
    Exercise(
        "data_parallelism/average",
        "Each rank has the gradient of the mean loss of its own examples, a NumPy vector, and count, the number of "
        "these. Where count is 0, gradient is zeros. Return on all ranks the gradient of the mean loss of all "
        "examples.",
        "average(group, gradient, count)",
        judge_average,
        (
            "The mean of all examples is their sum, divided by their number. What is the sum of a rank's examples?",
            "count times gradient is that sum. Both the sums and the counts have to be summed over the ranks.",
            "Append count to the vector before it is summed: then one all-reduce does both.",
        ),
        average,
    ),
    Exercise(
        "data_parallelism/train",
        "Train net by SGD with F.cross_entropy, so that all ranks end with the network that one rank would have. Each "
        "rank's net begins with other parameters: those of rank 0 count. steps has a list of pieces for each step. A "
        "piece is this rank's (images, labels), NumPy arrays, and all pieces have the same length. The loss of a "
        "step is the mean over all pieces of all ranks. Send each gradient once for each step.",
        "train(group, net, steps, lr)",
        judge_train,
        (
            "group.broadcast(parameter.array, out=parameter.array), and parameter.changed() says that it has changed.",
            "backward() adds to the gradients that are there. Divide each loss by the number of pieces.",
            "data.DataParallel(group, net) broadcasts, and its average_gradients() is called after the last piece.",
        ),
        train,
    ),
    Exercise(
        "data_parallelism/sharded_step",
        "Write a step of SGD with momentum 0.9 whose state is divided among the ranks: v = 0.9 v + mean gradient, and "
        "weights - lr v is returned on all ranks. A rank keeps the v of its own part alone in the dictionary state, "
        "which is empty in the first step. weights and gradient are NumPy vectors. weights are equal on all ranks, and "
        "their length need not be a multiple of the number of ranks.",
        "sharded_step(group, weights, gradient, lr, state)",
        judge_sharded_step,
        (
            "group.reduce_scatter(rows, 'mean') takes an array with a row for each rank, and returns this rank's row.",
            "A row has the length divided by the ranks, rounded up. Fill what is missing with zeros.",
            "group.all_gather(mine) stacks the rows of all ranks. Cut off the zeros at the end.",
        ),
        sharded_step,
    ),
)
