"""Cross-entropy: how far a row's softmax is from its label, -log(share of the label), and its gradient.

Chapter: notebooks/86_gradients_of_softmax.ipynb.  PMPP 4e ch. 10 and 16.

The gradient of a row's loss is its softmax with 1 taken from the share of the label. So one pass can give both: what
the loss needs, a row's maximum and its sum, is all that the gradient needs besides the row itself. At best the logits
are read once and the gradient is written once. The rungs differ in how often a row is read and written.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum, blocks, warp_sum
from pmpp.kernels.softmax import ladder as softmax
from pmpp.kernels.softmax.ladder import LIKE, nothing, plan
from pmpp.kernels.softmax.rows import (
    BLOCK,
    EACH,
    EMPTY,
    HELD,
    append,
    block_join,
    empty_kernel,
    highest_of,
    hold,
    join,
    lanes_max,
    lanes_sum,
    loose,
    power,
    store_vector,
    total_of,
    vectors_of,
    warp_join,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("float32",)
LABELS = ("int32", "int64")
REDUCTIONS = ("mean", "sum", "none")


def reference(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="mean") -> np.ndarray:
    """The gradient of the loss in float64, a row at a time."""
    n = logits.shape[1]
    out = np.zeros(logits.shape)
    count = sum(int(label) != ignore_index for label in labels)
    for row, label in enumerate(map(int, labels)):
        if label == ignore_index:
            continue
        wanted = np.full(n, label_smoothing / n)
        if 0 <= label < n:
            wanted[label] += 1 - label_smoothing
        else:
            wanted[:] = np.nan
        out[row] = softmax.reference(logits[row]) - wanted
        out[row] /= count if reduction == "mean" else 1
    return out


def loss_reference(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="mean") -> np.ndarray:
    """The loss in float64: of shape () for a mean or a sum, else a loss for each row."""
    losses, count = np.zeros(len(labels)), 0
    for row, label in enumerate(map(int, labels)):
        if label == ignore_index:
            continue
        count += 1
        logs = softmax.reference(logits[row], log=True)
        losses[row] = -(1 - label_smoothing) * logs[label] if 0 <= label < len(logs) else np.nan
        if label_smoothing:
            losses[row] -= label_smoothing * logs.mean()
    losses[losses > np.finfo(np.float32).max] = np.inf
    if reduction == "none":
        return losses
    with np.errstate(invalid="ignore"):
        return np.divide(losses.sum(), count if reduction == "mean" else 1)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(logits, labels, ignore_index, label_smoothing, reduction)``."""
    rng = np.random.default_rng(86) if rng is None else rng

    def case(m: int, n: int, *options: typing.Any, dtype: type = np.int64, spread: float = 1.0) -> tuple:
        logits = (spread * rng.standard_normal((m, n))).astype(np.float32)
        return logits, rng.integers(0, n, m).astype(dtype), *options

    made = {"one": case(1, 1), "one class": case(40, 1), "two classes": case(33, 2), "no rows": case(0, 5)}
    made |= {f"{n} classes": case(37, n) for n in (3, 4, 10, 17, 31, 32, 33, 64, 100)}
    made |= {"rows of a warp +1": case(5, 1025, dtype=np.int32), "rows of a block": case(2, 4096)}
    made |= {"several blocks a row": case(2, 33_001), "the same, smoothed": case(2, 33_001, -100, 0.1)}
    made["int32"] = case(65, 10, dtype=np.int32)
    for n in (10, 65, 1030):
        made[f"smoothed, {n} classes"] = case(9, n, -100, 0.1)
        logits, labels = case(9, n)
        labels[::2] = -100
        made[f"ignored, {n} classes"] = logits, labels
        made[f"none of {n}"] = logits, np.where(labels == -100, 3, labels), 3, 0.25, "none"  # 3 would be a class
    made["sum"] = case(9, 50, -100, 0.0, "sum")
    made["sum of all, smoothed away"] = case(9, 50, -1, 1.0, "sum")
    made["all ignored"] = rng.standard_normal((5, 12)).astype(np.float32), np.full(5, -100)
    made["large"] = case(4, 1000, spread=3000.0)  # shares below the smallest float32
    made["far below 0"] = made["64 classes"][0] - 1000, made["64 classes"][1]
    made["extremes"] = np.tile(np.float32([3.4e38, -3.4e38, 0, 1e-45] * 9), (4, 1)), np.arange(4), -100, 0.0, "none"
    for n in (8, 40, 3000):
        logits, labels = case(8, n)
        logits[0, ::2], logits[1] = -np.inf, -np.inf
        logits[3, -1], logits[4, n // 2], logits[5, 1:] = np.inf, np.nan, -np.inf
        labels[0], labels[5], labels[6], logits[6, : n // 2] = 1, 0, 1, -np.inf  # the loss of row 6 is infinite
        made[f"non-finite, {n} classes"] = logits, labels, -100, 0.0, "none"
        ignored = labels.copy()
        ignored[[1, 3, 4]] = -100  # what is ignored is not looked at
        made[f"non-finite and ignored, {n} classes"] = logits, ignored, -100, 0.0, "sum"
    return made


def tolerance(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="mean") -> np.ndarray:
    """How far a right gradient may be from `reference`, element by element.

    A share is off by what `softmax.tolerance` allows, or if it was found as exp(log share) by as much as its logarithm:
    6 log n more roundings of half an eps (u). Scaling by the number of labels and taking the wanted share off add four.
    """
    if not logits.size:
        return np.zeros(logits.shape)
    u, n = np.finfo(np.float32).eps / 2, logits.shape[1]
    shares = np.nan_to_num(softmax.reference(logits))
    hit = np.arange(n) == labels[:, None]
    allowed = softmax.tolerance(logits) + u * (shares * (6 * math.log(n) + 14) + 4 * hit + 4 * label_smoothing / n)
    count = max(1, np.count_nonzero(labels != ignore_index)) if reduction == "mean" else 1
    return allowed / count + 4 * 2.0**-149


def loss_tolerance(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="mean") -> np.ndarray:
    """How far a right loss may be from `loss_reference`.

    A row's loss is log(total), plus what the label lies below the maximum, plus, smoothed, what the mean does. The
    logarithm is off by the relative error of the total, as in `softmax.tolerance`; a mean of n adds the error of its
    sum. A sum of rows is off by an eps for each addition on the way of a term, at most N / 256 + 32.
    """
    u, (m, n) = np.finfo(np.float32).eps / 2, logits.shape
    if not m:
        return np.float64(0)
    live = (labels != ignore_index) & (labels >= 0) & (labels < n)
    wide = np.where(np.isfinite(logits), logits, 0).astype(np.float64)
    highest = np.abs(wide).max(axis=1)
    chosen = wide[np.arange(m), np.where(live, labels, 0)]
    growth = softmax.tolerance(logits, log=True).max(axis=1)  # of the least share: more than of the label's
    sums = label_smoothing * (n / 32 + 64) * (highest + np.abs(wide).mean(axis=1))
    each = np.where(live, 2 * growth + u * (4 * (highest + np.abs(chosen)) + 8 * math.log(n + 1) + sums), 0)
    if reduction == "none":
        return each
    losses = np.nan_to_num(loss_reference(logits, labels, ignore_index, label_smoothing, "none"), posinf=0)
    allowed = each.sum() + u * (m / 256 + 32) * np.abs(losses).sum()
    return allowed / (max(1, np.count_nonzero(labels != ignore_index)) if reduction == "mean" else 1)


def cost(m: int, n: int, itemsize: int = 4) -> Cost:
    """m rows of n: compare, subtract, exponential, add, divide. Logits are read once, the gradient is written once."""
    return Cost(flops=5 * m * n, bytes=2 * m * n * itemsize + 12 * m)


class Rule(typing.NamedTuple):
    """What a row should be: ``hit`` at its label, and ``each`` everywhere. ``smoothing`` is n times ``each``."""

    ignored: typing.Any
    hit: typing.Any
    each: typing.Any
    smoothing: typing.Any


def arguments(
    logits,
    labels,
    ignore_index=-100,
    label_smoothing=0.0,
    reduction="mean",
    *,
    gradient=True,
    return_loss=False,
    out=None,
    stream=0,
) -> Problem:
    """The gradient of the cross-entropy of each row's softmax and its label, and the loss itself.

    Args:
        logits: (N, classes), float32, contiguous; at least one class.
        labels: (N,), int32 or int64, each from 0 to classes - 1, or ``ignore_index``. NumPy labels are checked. Of
            labels on the device nothing is known here: the loss and the gradient of a row whose label is no class
            become NaN, and `check_labels` finds it.
        ignore_index: rows of this label count for nothing, whatever is in them: their loss and gradient are 0.
        label_smoothing: from 0 to 1: this part of each label is spread evenly over all classes.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for a loss of each row.
        gradient: False to compute the loss alone.
        return_loss: True to return ``(loss, out)``, or ``(loss, None)``.
        out: a device array like ``logits`` and apart from ``logits`` and ``labels`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, the gradient of the loss for each logit, or the loss, or both, without waiting for the work to be
    done. The loss is (1,), or (N,) for "none". The mean of no rows is NaN. A row with NaN or +inf, or of nothing but
    -inf, becomes NaN. The same input gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PyTorch's torch.nn.functional.cross_entropy.

    >>> from pmpp.kernels.softmax import cross_entropy_loss
    >>> logits, labels = np.float32([[0, 0, 0, 0], [9, 9, -np.inf, -np.inf]]), np.int64([3, 0])
    >>> cross_entropy_loss.fused(logits, labels).copy_to_host()
    array([[ 0.125,  0.125,  0.125, -0.375],
           [-0.25 ,  0.25 ,  0.   ,  0.   ]], dtype=float32)
    """
    stream = device.as_stream(stream)
    logits = device.as_input("logits", logits, dtypes=DTYPES, ndim=2, stream=stream)
    m, n = logits.shape
    if not n:
        raise ValueError(f"logits must have at least one class, had shape {logits.shape}")
    ignored = as_integer("ignore_index", ignore_index, -(2**63), 2**63 - 1)
    if isinstance(labels, np.ndarray) and labels.dtype in LABELS:
        check_labels(labels, n, ignore_index=ignore_index)
    labels = device.as_input("labels", labels, dtypes=LABELS, shape=(m,), stream=stream)
    smoothing = as_number("label_smoothing", label_smoothing, 0, 1)
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, was {reduction!r}")
    gradient, return_loss = as_flag("gradient", gradient), as_flag("return_loss", return_loss)
    if gradient:
        apart = {"logits": logits, "labels": labels}
        out = device.as_output("out", out, shape=(m, n), dtype=np.float32, apart=apart, stream=stream)
    elif out is not None:
        raise ValueError("out must be None for gradient=False, was an array")
    losses = device.empty(m, np.float32, stream=stream)
    loss = losses if reduction == "none" else device.empty(1, np.float32, stream=stream)
    parts = min(WARP, max(1, blocks(m, LABELS_EACH))) if reduction == "mean" else 0
    problem = Problem(
        (loss, out) if return_loss else out if gradient else loss,
        stream=stream,
        begin=count_labels,
        finish=add_up,
        done=not m,
        logits=logits,
        labels=labels,
        out=out if gradient else no_gradient(),
        losses=losses,
        loss=loss,
        counts=device.empty(WARP, np.int32, stream=stream) if parts else no_counts(),
        parts=parts,
        rule=Rule(np.int64(ignored), np.float32(1 - smoothing), np.float32(smoothing / n), smoothing),
        none=nothing(np.dtype(np.float32)),
    )
    if not m:  # the sum of no losses is 0, and their mean is NaN
        count_labels(problem)
        add_up(problem)
    return problem


def check_labels(labels, classes, *, ignore_index=-100) -> None:
    """Raise ValueError that names the first label which is neither a class nor ``ignore_index``.

    Args:
        labels: integers, a NumPy array or a device array, which is copied to the host: call it where a loss has become
            NaN, or once before training, not in every step.
        classes: how many there are.
        ignore_index: a label that is allowed besides.

    >>> check_labels(np.int64([0, 2, -100]), 3)
    >>> check_labels(np.int64([0, 3, -100]), 3)
    Traceback (most recent call last):
    ValueError: labels must be from 0 to 2 for classes=3, or ignore_index=-100, was 3 at [1]
    """
    count, ignored = as_integer("classes", classes, 1), as_integer("ignore_index", ignore_index)
    try:
        found = device.to_host(labels)
    except TypeError:
        found = None
    if found is None or found.dtype.kind not in "iu":
        was = type(labels).__name__ if found is None else found.dtype
        raise TypeError(f"labels must be an array of integers, was {was}")
    wrong = np.argwhere(((found < 0) | (found >= count)) & (found != ignored))
    if wrong.size:
        at = tuple(map(int, wrong[0]))
        words = f"labels must be from 0 to {count - 1} for {classes=}, or {ignore_index=}"
        raise ValueError(f"{words}, was {found[at]} at {list(at)}")


@device.cached(1)
def no_gradient():
    """The empty array that kernels are given where no gradient is asked for."""
    return device.empty((0, 1), np.float32)


@device.cached(1)
def no_counts():
    return device.empty(0, np.int32)


# -------------------------------------------------------------------------------------- what every rung does for a mean
#
# The mean's divisor is known to the device alone, and before any gradient can be written. Up to 32 blocks count the
# labels of a share each. Whoever needs the number adds up the 32 counts: they are integers, so the order is no matter.

WARP = 32
MOST = (0,) * HELD  # as long as a member can hold vectors: logits are float32
LABELS_EACH = 8192  # labels, at least, that a block counts if there are several
SHARE = 8192  # losses that a block adds up
WIDE = 1024  # threads of the blocks that count and add up


@cuda.jit
def count_kernel(labels, share, ignored, counts):
    end = min((cuda.blockIdx.x + 1) * share, labels.size)
    found = np.int32(0)
    for i in range(cuda.blockIdx.x * share + cuda.threadIdx.x, end, WIDE):
        found += np.int32(labels[i] != ignored)
    partial = cuda.shared.array(32, np.int32)
    found = warp_sum(found)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = found
    cuda.syncthreads()
    found = warp_sum(partial[cuda.laneid])
    if cuda.threadIdx.x == 0:
        counts[cuda.blockIdx.x] = found


def count_labels(p: Problem) -> None:
    if p.parts:
        share = blocks(p.labels.size, p.parts)
        count_kernel[p.parts, WIDE, p.stream](p.labels, share, p.rule.ignored, p.counts)


@cuda.jit(device=True)
def weight_of_a_row(counts, parts, target):
    """1, or for a mean 1 / the number of rows that count; NaN if the row has no class. All lanes of a warp call it."""
    weight = np.float32(1)
    if parts > 0:
        found = np.int32(0)
        if cuda.laneid < parts:
            found = counts[cuda.laneid]
        found = warp_sum(found)
        weight = np.float32(1) / np.float32(found)
    return np.float32(np.nan) if target < 0 else weight


@cuda.jit
def add_up_kernel(values, sums, counts, parts):
    end = min((cuda.blockIdx.x + 1) * SHARE, values.size)
    total = np.float32(0)
    for i in range(cuda.blockIdx.x * SHARE + cuda.threadIdx.x, end, WIDE):
        total += values[i]
    total = block_sum(total, cuda.shared.array(32, np.float32))
    weight = weight_of_a_row(counts, parts, 0)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = total * weight


def add_up(p: Problem) -> None:
    """The sum of all losses in an order that depends on their number alone; for a mean, divided by the count."""
    if p.loss is p.losses:
        return
    values = p.losses
    while True:
        grid = max(1, blocks(values.size, SHARE))
        sums = p.loss if grid == 1 else device.empty(grid, np.float32, stream=p.stream)
        add_up_kernel[grid, WIDE, p.stream](values, sums, p.counts, p.parts if grid == 1 else 0)
        if grid == 1:
            return
        values = sums


# ------------------------------------------------------------------------------------------------------ a row's numbers


@cuda.jit(device=True)
def target_of(label, n, rule):
    """The label of a row, -1 if it is no class, and whether the row counts."""
    live = label != rule.ignored
    target = np.int64(label)
    if not live or target < 0 or target >= n:
        target = np.int64(-1)
    return target, live


@cuda.jit(device=True)
def loss_of(highest, total, chosen, drift, target, live, rule):
    """A row's loss. ``chosen`` is the logit of the label, and ``drift`` the sum of rule.each * logit over the row."""
    if not live:
        return np.float32(0)
    if target < 0:
        return np.float32(np.nan)
    loss = math.log(total) + rule.hit * (highest - chosen)
    if rule.each > 0:
        loss += rule.smoothing * highest - drift
    return loss


# --------------------------------------------------------------------------------------------- a kernel for every step


@cuda.jit
def pick_kernel(logs, labels, losses, rule):
    row, n = cuda.blockIdx.x, logs.shape[1]
    target, live = target_of(labels[row], n, rule)
    drift = np.float32(0)
    if rule.each > 0:
        for i in range(cuda.threadIdx.x, n, BLOCK):
            drift += rule.each * logs[row, i]
    drift = block_sum(drift, cuda.shared.array(32, np.float32))
    if cuda.threadIdx.x == 0:
        # Of logarithms of shares the maximum may be taken as 0, and the sum of the powers is 1.
        chosen = logs[row, max(target, 0)]
        losses[row] = loss_of(np.float32(0), np.float32(1), chosen, drift, target, live, rule)


@cuda.jit
def gradient_kernel(out, labels, counts, parts, rule):
    """``out`` has the logarithms of the shares, and becomes the gradient."""
    row, n = cuda.blockIdx.x, out.shape[1]
    target, live = target_of(labels[row], n, rule)
    weight = weight_of_a_row(counts, parts, target)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        wanted = rule.each + rule.hit if i == target else rule.each
        out[row, i] = (math.exp(out[row, i]) - wanted) * weight if live else np.float32(0)


@rung(pick_kernel, gradient_kernel)
def separate(p):
    """The definition, a kernel for each part of it: three for the logarithms of the shares, the loss, the gradient.

    The logarithm of a softmax would be -inf wherever a share is too small for float32. So the logarithms come first.

    Source: PyTorch's cross_entropy is log_softmax and nll_loss, and has two kernels more for their gradients.

    Leaves: logits are read three times, and their shares are written, read and replaced: six numbers for each logit.
    """
    logs = p.out if p.out.size else device.empty(p.logits.shape, np.float32, stream=p.stream)
    softmax.three_kernels(p.logits, -1, True, out=logs, stream=p.stream)
    pick_kernel[p.labels.size, BLOCK, p.stream](logs, p.labels, p.losses, p.rule)
    if p.out.size:
        gradient_kernel[p.labels.size, BLOCK, p.stream](logs, p.labels, p.counts, p.parts, p.rule)


# --------------------------------------------------------------------------------------------------- a block for a row


@cuda.jit
def fused_kernel(logits, labels, out, losses, counts, parts, rule, none):
    row, n = cuda.blockIdx.x, logits.shape[1]
    target, live = target_of(labels[row], n, rule)
    weight = weight_of_a_row(counts, parts, target)
    (best, added), drift = none, np.float32(0)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        value = logits[row, i]
        best, added = append(best, added, value)
        if rule.each > 0:
            drift += rule.each * value
    highests, totals = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.float32)
    best, added = block_join(best, added, highests, totals, none)
    drift = block_sum(drift, cuda.shared.array(32, np.float32))
    if cuda.threadIdx.x == 0:
        chosen = logits[row, max(target, 0)]
        losses[row] = loss_of(best, added, chosen, drift, target, live, rule)
    if out.size:
        scale = weight / added
        for i in range(cuda.threadIdx.x, n, BLOCK):
            wanted = rule.each + rule.hit if i == target else rule.each
            share = math.exp(logits[row, i] - best) * scale
            out[row, i] = share - wanted * weight if live else np.float32(0)


@rung(fused_kernel)
def fused(p):
    """One kernel: a block finds maximum and sum in one pass, and writes loss and gradient in a second one.

    Leaves: a row is read twice, 4 bytes a lane. A row of 50,257 logits has left the caches before it is read again.
    """
    fused_kernel[p.labels.size, BLOCK, p.stream](p.logits, p.labels, p.out, p.losses, p.counts, p.parts, p.rule, p.none)


# --------------------------------------------------------------------------------------------- a row stays in registers


@cuda.jit(device=True)
def drift_of(values, count, vectors, first, start, like, held, member, members, rule):
    """The sum of rule.each * logit over a member's logits; those that `hold` loaded again do not count."""
    drift = np.float32(0)
    if rule.each > 0:
        if loose(member, first, start, vectors, like) < count:
            drift = rule.each * values[EACH - 1]
        for k in range(HELD):
            if k < held and member + k * members < vectors:
                for c in range(len(like) * k, len(like) * (k + 1)):
                    drift += rule.each * values[c]
    return drift


@cuda.jit(device=True)
def finish(values, out, first, count, shift, like, held, member, members, scale, rule, live, weight, at, at_label):
    """Store a member's part of the gradient: values * scale - rule.each * weight, and ``at_label`` at ``at``.

    ``at`` is where in the part the label lies, if it does. The thread that stores this logit's vector stores it again,
    alone: that takes a comparison for each vector instead of one for each logit.
    """
    start, vectors = vectors_of(first, count, shift, like)
    low, label_vector, mine = rule.each * weight, np.int32((first + at - start) // len(like)), False
    for k in range(HELD):
        if k < held:
            for c in range(len(like) * k, len(like) * (k + 1)):
                values[c] = values[c] * scale - low if live else np.float32(0)
            vector = member + k * members
            if vector < vectors:
                store_vector(out, start + len(like) * vector, values, len(like) * k, like)
                mine |= vector == label_vector
    i = loose(member, first, start, vectors, like)
    if i < count:
        out[first + i] = values[EACH - 1] * scale - low if live else np.float32(0)
        mine |= i == at
    if mine:
        out[first + at] = at_label


@cuda.jit(device=True)
def at_the_label(chosen, best, scale, rule, weight, like):
    """The gradient of the label's logit."""
    return power(chosen - best, like) * scale - (rule.each + rule.hit) * weight


@cuda.jit
def tiny_kernel(logits, labels, out, n, losses, counts, parts, rule, none):
    lane, lanes = cuda.threadIdx.x, cuda.blockDim.x
    mine = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row = min(mine, labels.size - 1)  # lanes beyond the last row take it again: the shuffles need all lanes
    value = logits[row * n + lane] if lane < n else np.float32(-np.inf)
    target, live = target_of(labels[row], n, rule)
    weight = weight_of_a_row(counts, parts, target)
    best = max(none.highest, value)
    best = lanes_max(best, lanes)
    e = math.exp(value - best)
    total = lanes_sum(e, lanes)
    drift = rule.each * value if rule.each > 0 and lane < n else np.float32(0)
    drift = lanes_sum(drift, lanes)
    if mine == row:
        if lane == 0:
            losses[row] = loss_of(best, total, logits[row * n + max(target, 0)], drift, target, live, rule)
        if lane < n and out.size:
            wanted = rule.each + rule.hit if lane == target else rule.each
            out[row * n + lane] = e * (weight / total) - wanted * weight if live else np.float32(0)


@cuda.jit
def row_in_lanes_kernel(logits, labels, out, n, held, shift, like, losses, counts, parts, rule, none):
    values = cuda.local.array(EACH, np.float32)
    member, lanes = cuda.threadIdx.x, cuda.blockDim.x
    mine = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row = min(mine, labels.size - 1)
    first = row * n
    hold(values, logits, first, n, shift, like, MOST, held, member, lanes)  # first of all: these loads take longest
    target, live = target_of(labels[row], n, rule)
    weight = weight_of_a_row(counts, parts, target)
    start, vectors = vectors_of(first, n, shift, like)
    chosen = logits[first + max(target, 0)]
    drift = drift_of(values, n, vectors, first, start, like, held, member, lanes, rule)
    best = lanes_max(highest_of(values, none, vectors, like, MOST, held, member, lanes), lanes)
    total = lanes_sum(total_of(values, like, MOST, held, best, False), lanes)
    drift = lanes_sum(drift, lanes)
    if mine == row:
        if member == 0:
            losses[row] = loss_of(best, total, chosen, drift, target, live, rule)
        if out.size:
            scale = weight / total
            label = at_the_label(chosen, best, scale, rule, weight, like)
            finish(values, out, first, n, shift, like, held, member, lanes, scale, rule, live, weight, target, label)


@cuda.jit(max_registers=64)
def row_in_block_kernel(logits, labels, out, n, held, shift, like, losses, counts, parts, rule, none):
    values = cuda.local.array(EACH, np.float32)
    row, member, members = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first = row * n
    hold(values, logits, first, n, shift, like, MOST, held, member, members)
    target, live = target_of(labels[row], n, rule)
    weight = weight_of_a_row(counts, parts, target)
    start, vectors = vectors_of(first, n, shift, like)
    chosen = logits[first + max(target, 0)]
    drift = drift_of(values, n, vectors, first, start, like, held, member, members, rule)
    best = highest_of(values, none, vectors, like, MOST, held, member, members)
    best = block_max(best, cuda.shared.array(32, np.float32))
    total = total_of(values, like, MOST, held, best, False)
    total = block_sum(total, cuda.shared.array(32, np.float32))
    if rule.each > 0:
        drift = block_sum(drift, cuda.shared.array(32, np.float32))
    if member == 0:
        losses[row] = loss_of(best, total, chosen, drift, target, live, rule)
    if out.size:
        scale = weight / total
        label = at_the_label(chosen, best, scale, rule, weight, like)
        finish(values, out, first, n, shift, like, held, member, members, scale, rule, live, weight, target, label)


LIKE_A_VECTOR = LIKE[4]


def plan_of(p: Problem) -> typing.Any:
    """Which threads hold a row: what `pmpp.kernels.softmax.ladder.plan` says of a softmax of the same shape."""
    limits = device.limits()
    multiprocessors = limits["multiprocessors"]
    at = device.address(p.logits) % 16 // 4
    out_at = device.address(p.out) % 16 // 4 if p.out.size else at
    resident = multiprocessors * limits["max_threads_per_multiprocessor"]
    return plan(*p.logits.shape, 4, max(at, out_at), at == out_at, multiprocessors, resident)


@rung(tiny_kernel, row_in_lanes_kernel, row_in_block_kernel, fused_kernel)
def held(p):
    """A row waits in registers for its maximum and its sum, as in softmax: it is read once, 128 bits at a time.

    Up to 32 lanes or a block hold a row. Rows of more than 32,768 logits go to `fused`. So do rows of more than 32
    where ``logits`` and ``out`` lie differently on 16-byte boundaries.

    Leaves: a block's registers are too few for the 50,257 tokens of a vocabulary.
    """
    (m, n), how = p.logits.shape, plan_of(p)
    logits, out = p.logits.reshape(p.logits.size), p.out.reshape(p.out.size)
    rest = p.losses, p.counts, p.parts, p.rule, p.none
    if n <= 32 and (how is None or how.holder in ("thread", "lane for each element")):
        lanes = 1 << (n - 1).bit_length()
        rows = BLOCK // lanes
        tiny_kernel[blocks(m, rows), (lanes, rows), p.stream](logits, p.labels, out, n, *rest)
    elif how is None or how.holder == "blocks":
        fused.launch(p)
    else:
        kernel = row_in_lanes_kernel if how.holder == "lanes" else row_in_block_kernel
        kernel[how.grid, how.block, p.stream](logits, p.labels, out, *how.sizes, LIKE_A_VECTOR, *rest)


# ------------------------------------------------------------------------------------------------ several blocks a row
#
# The blocks of a row tell each other what they found as the blocks of a softmax do: see `blocks_kernel` in
# pmpp/kernels/softmax/rows.py, which says why none waits forever. All blocks of a row see the same label, so those of
# an ignored row leave together.


@cuda.jit(max_registers=64)
def row_in_blocks_kernel(
    logits, labels, out, n, chunk, row_parts, held, shift, like, losses, counts, parts, rule, none, slots, drifts
):
    values, ticket = cuda.local.array(EACH, np.float32), cuda.shared.array(1, np.int64)
    whole = cuda.shared.array(4, np.float32)
    thread, members = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        ticket[0] = cuda.atomic.add(slots, 0, 1)
    cuda.syncthreads()
    row = ticket[0] // row_parts
    begin = (ticket[0] - row * row_parts) * chunk
    first, count = row * n + begin, min(chunk, n - begin)
    target, live = target_of(labels[row], n, rule)
    if live:
        hold(values, logits, first, count, shift, like, MOST, held, thread, members)
        start, vectors = vectors_of(first, count, shift, like)
        if rule.each > 0:
            drift = drift_of(values, count, vectors, first, start, like, held, thread, members, rule)
            drift = block_sum(drift, cuda.shared.array(32, np.float32))
            if thread == 0:
                drifts[ticket[0]] = drift
        own = highest_of(values, none, vectors, like, MOST, held, thread, members)
        own = block_max(own, cuda.shared.array(32, np.float32))
        total = total_of(values, like, MOST, held, own, False)
        total = block_sum(total, cuda.shared.array(32, np.float32))
        if thread < 32:
            if thread == 0:
                word = np.int64(cuda.libdevice.float_as_int(own)) << 32
                word |= np.int64(cuda.libdevice.float_as_int(total)) & 0xFFFFFFFF
                cuda.atomic.exch(slots, 1 + ticket[0], word)
            weight = weight_of_a_row(counts, parts, target)  # these loads overlap with the waiting
            chosen = logits[row * n + max(target, 0)]
            best, total = none
            for i in range(1 + row * row_parts + thread, 1 + (row + 1) * row_parts, 32):
                word = cuda.atomic.add(slots, i, 0)
                while word == EMPTY:
                    word = cuda.atomic.add(slots, i, 0)
                other_best = cuda.libdevice.int_as_float(np.int32(word >> 32))
                best, total = join(best, total, other_best, cuda.libdevice.int_as_float(np.int32(word)))
            best, total = warp_join(best, total)
            if thread == 0:  # one thread computes what all need, and the others keep their registers for logits
                scale = weight / total
                whole[0], whole[1], whole[2] = best, scale, weight
                whole[3] = at_the_label(chosen, best, scale, rule, weight, like)
                if begin == 0:
                    losses[row] = loss_of(best, total, chosen, np.float32(0), target, live, rule)
        cuda.syncthreads()
        if out.size:
            scale, weight, label, at = whole[1] * power(own - whole[0], like), whole[2], whole[3], target - begin
            finish(values, out, first, count, shift, like, held, thread, members, scale, rule, live, weight, at, label)
    else:
        if thread == 0 and begin == 0:
            losses[row] = np.float32(0)
        if out.size:
            for i in range(first + thread, first + count, members):
                out[i] = np.float32(0)


@cuda.jit
def drift_kernel(labels, drifts, row_parts, losses, rule):
    """Take what the parts of a row add to the drift from its loss, in their order."""
    row = cuda.grid(1)
    if row < labels.size and labels[row] != rule.ignored:
        loss = losses[row]
        for part in range(row * row_parts, (row + 1) * row_parts):
            loss -= drifts[part]
        losses[row] = loss


@rung(
    row_in_blocks_kernel,
    drift_kernel,
    empty_kernel,
    tiny_kernel,
    row_in_lanes_kernel,
    row_in_block_kernel,
    fused_kernel,
)
def split(p):
    """Several blocks hold a long row: they tell each other what they found. Other rows go to `held`.

    Rows that need more blocks than the GPU has multiprocessors, of about a million logits, go to `fused`.
    """
    how = plan_of(p)
    if how is None or how.holder != "blocks":
        held.launch(p)
        return
    slots = device.empty(how.slots, np.int64, stream=p.stream)
    drifts = device.empty(how.grid if p.rule.each else 0, np.float32, stream=p.stream)
    empty_kernel[blocks(how.slots, BLOCK), BLOCK, p.stream](slots)
    row_in_blocks_kernel[how.grid, how.block, p.stream](
        p.logits.reshape(p.logits.size),
        p.labels,
        p.out.reshape(p.out.size),
        *how.sizes,
        LIKE_A_VECTOR,
        p.losses,
        p.counts,
        p.parts,
        p.rule,
        p.none,
        slots,
        drifts,
    )
    if p.rule.each:
        row_parts = how.sizes[2]
        drift_kernel[blocks(p.labels.size, BLOCK), BLOCK, p.stream](p.labels, drifts, row_parts, p.losses, p.rule)


LADDER = (separate, fused, held, split)
