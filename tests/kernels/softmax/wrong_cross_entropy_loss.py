"""Wrong gradients of the cross-entropy, and wrong losses."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum
from pmpp.kernels.softmax import cross_entropy_loss as room
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)
LOWEST = np.float32(np.finfo(np.float32).min)


@cuda.jit(device=True)
def right_weight(target, counts, parts, rows):
    return room.weight_of_a_row(counts, parts, target)


@cuda.jit(device=True)
def by_all_rows(target, counts, parts, rows):
    """The mean over all rows, ignored ones included."""
    return f1 / np.float32(rows) if parts else f1


@cuda.jit(device=True)
def unscaled(target, counts, parts, rows):
    return f1


@cuda.jit(device=True)
def right_loss(best, total, chosen, drift, target, live, rule):
    return room.loss_of(best, total, chosen, drift, target, live, rule)


@cuda.jit(device=True)
def log_of_the_share(best, total, chosen, drift, target, live, rule):
    """-log(share): infinite where the share is below the smallest float32."""
    if not live or target < 0 or rule.each > 0:
        return room.loss_of(best, total, chosen, drift, target, live, rule)
    return -math.log(math.exp(chosen - best) / total)


@cuda.jit(device=True)
def not_smoothed(best, total, chosen, drift, target, live, rule):
    return f0 if not live else np.float32(np.nan) if target < 0 else math.log(total) + (best - chosen)


def loss_and_gradient(
    name,
    *,
    weigh=right_weight,
    loss=right_loss,
    shift=True,
    ignore=True,
    take_off=True,
    smooth=True,
    guard=0,
    times_zero=False,
    one=f1,
    barrier=True,
    check=True,
):
    """A block for each row in three passes, right if left alone."""

    @cuda.jit
    def kernel(logits, labels, out, losses, counts, parts, rule):
        row, n, thread = cuda.blockIdx.x, logits.shape[1], cuda.threadIdx.x
        target, live = room.target_of(labels[row], n, rule)
        if not check and live:
            target = np.int64(labels[row])
        weight = weigh(target, counts, parts, labels.size)
        live = live or not ignore
        best, total, drift = LOWEST, f0, f0
        for i in range(thread, n + guard, BLOCK):
            best = max(best, logits[row, i])
        best = block_max(best, cuda.shared.array(32, np.float32))
        best = best if shift else f0
        for i in range(thread, n, BLOCK):
            total += math.exp(logits[row, i] - best)
            if rule.each > 0:
                drift += rule.each * logits[row, i]
        partial = cuda.shared.array(32, np.float32)
        total = block_sum(total, partial)
        if barrier:
            cuda.syncthreads()
        drift = block_sum(drift, partial)
        if thread == 0 and losses.size:
            losses[row] = loss(best, total, logits[row, max(target, 0)], drift, target, live, rule)
        if out.size:
            for i in range(thread, n, BLOCK):
                wanted = rule.each if smooth else f0
                if i == target and take_off:
                    wanted += rule.hit
                value = one * (math.exp(logits[row, i] - best) / total - wanted) * weight
                if times_zero:
                    out[row, i] = value * (f1 if live else f0)
                else:
                    out[row, i] = value if live else f0

    def run(*arguments, **options):
        p = room.arguments(*arguments, **options)
        if not p.done:
            p.begin(p)
            kernel[p.labels.size, BLOCK](p.logits, p.labels, p.out, p.losses, p.counts, p.parts, p.rule)
            p.finish(p)
        return p.result

    run.__name__ = name
    return run


RIGHT = loss_and_gradient("three_passes")


def by_atomics(*arguments, **options):
    """The sum of the losses in whatever order the blocks come: here the last first."""
    p = room.arguments(*arguments, **options)
    if not p.done:
        room.fused.run(p)
        if p.loss is not p.losses:
            backwards_kernel[1, 1](p.losses, p.loss, p.counts, p.parts)
    return p.result


@cuda.jit
def backwards_kernel(losses, loss, counts, parts):
    total, count = f0, np.int32(0)
    for i in range(losses.size):
        total += losses[i]
    for i in range(parts):
        count += counts[i]
    loss[0] = total / np.float32(losses.size) if parts else total  # over all, ignored ones included


def given_back(*arguments, **options):
    """The gradient in the place of the logits."""
    p = room.arguments(*arguments, **options)
    result = room.fused.run(p)
    if p.out.size and not p.done:
        copy_kernel[p.labels.size, BLOCK](p.out, p.logits)
    return result


@cuda.jit
def copy_kernel(x, y):
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        y[cuda.blockIdx.x, i] = x[cuda.blockIdx.x, i]


RUNGS = [
    WrongRung(loss_and_gradient("mean_over_all_rows", weigh=by_all_rows), "wrong result"),
    WrongRung(loss_and_gradient("sum_for_mean", weigh=unscaled), "wrong result"),
    WrongRung(loss_and_gradient("without_the_label", take_off=False), "wrong result"),
    WrongRung(loss_and_gradient("ignored_rows_count", ignore=False), "wrong result"),
    WrongRung(loss_and_gradient("ignored_nan_times_zero", times_zero=True), "wrong result"),
    WrongRung(loss_and_gradient("gradient_not_smoothed", smooth=False), "wrong result"),
    WrongRung(loss_and_gradient("not_shifted", shift=False), "wrong result"),
    WrongRung(loss_and_gradient("beyond_the_row", guard=BLOCK), "out of bounds"),
    WrongRung(loss_and_gradient("float64_literal", one=1.0), "float64"),
    WrongRung(loss_and_gradient("one_array_for_two_sums", barrier=False), "race"),
    WrongRung(loss_and_gradient("label_not_checked", check=False), "out of bounds"),
    WrongRung(loss_and_gradient("log_of_the_share", loss=log_of_the_share), "wrong loss"),
    WrongRung(loss_and_gradient("loss_not_smoothed", loss=not_smoothed), "wrong loss"),
    WrongRung(by_atomics, "wrong loss"),
    WrongRung(given_back, "input changed"),
]
