"""Answers to the exercises of chapter 92: wrong ones with their mistakes, and other right ones."""

import itertools

import numpy as np

from pmpp.kernels.bottleneck import gpu as bench
from pmpp.kernels.bottleneck.gpu import Gpu, slow, step_kernel
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
IDLE, BLAME, CURE = "bottleneck/idle", "bottleneck/blame", "bottleneck/cure"

# -- idle


@right(IDLE)
def idle_by_marks(spans, length):
    marks = np.unique(np.concatenate([[0.0, length], spans.ravel()]))
    gaps, before = [0.0], False
    for start, end in itertools.pairwise(marks):
        free = not any(a <= start and end <= b for a, b in spans)
        if free:
            gaps.append((gaps.pop() if before else 0.0) + end - start)
        before = free
    return np.array([sum(gaps) / length, max(gaps)])


def walked(spans, length, edges=True):
    free, gaps = 0.0, [0.0]
    for number, (start, end) in enumerate(spans):
        if edges or number:
            gaps.append(max(start - free, 0.0))
        free = max(free, end)
    if edges:
        gaps.append(length - free)
    return np.array([sum(gaps) / length, max(gaps)])


@wrong(IDLE, "overlap counted twice")
def idle_of_sums(spans, length):
    share = 1 - (spans[:, 1] - spans[:, 0]).sum() / length
    return np.array([share, walked(sorted(map(tuple, spans)), length)[1]])


@wrong(IDLE, "edges forgotten")
def idle_between(spans, length):
    return walked(sorted(map(tuple, spans)), length, edges=False)


@wrong(IDLE, "spans not sorted")
def idle_unsorted(spans, length):
    return walked(spans, length)


@wrong(IDLE, "span inside another", "by max")
def idle_until_the_last_one_ends(spans, length):
    free, gaps = 0.0, []
    for start, end in spans[np.argsort(spans[:, 0], kind="stable")]:
        gaps.append(max(start - free, 0.0))
        free = end
    gaps.append(length - free)
    return np.array([sum(gaps) / length, max(gaps)])


@wrong(IDLE, "wrong result", "one kernel in the middle")
def longest_without_the_last(spans, length):
    """The share is right, and the longest time leaves out the one behind the last kernel."""
    share, _ = walked(sorted(map(tuple, spans)), length)
    starts, ends = np.sort(spans[:, 0]), np.maximum.accumulate(np.sort(spans[:, 1]))
    between = np.maximum(starts - np.concatenate([[0.0], ends[:-1]]), 0) if len(spans) else [length]
    return np.array([share, max(between)])


@wrong(IDLE, "wrong result", "a late start")
def longest_without_the_first(spans, length):
    """Wrong only where no spans overlap."""
    share, longest = walked(sorted(map(tuple, spans)), length)
    if not len(spans):
        return np.array([share, longest])
    return np.array([share, walked(sorted(map(tuple, spans - spans[:, 0].min())), length - spans[:, 0].min())[1]])


@wrong(IDLE, "wrong result")
def idle_in_microseconds(spans, length):
    return walked(sorted(map(tuple, spans)), length) * np.array([length, 1])


@wrong(IDLE, "wrong result")
def busy_share(spans, length):
    share, longest = walked(sorted(map(tuple, spans)), length)
    return np.array([1 - share, longest])


@wrong(IDLE, "input changed")
def idle_sorting_in_place(spans, length):
    spans[:] = spans[np.argsort(spans[:, 0], kind="stable")]
    return walked(spans, length)


# -- blame


@right(BLAME)
def blame_at_once(gaps, host, kinds):
    starts = np.maximum(host[:, None, 0], gaps[None, :, 0])
    ends = np.minimum(host[:, None, 1], gaps[None, :, 1])
    return np.bincount(kinds, np.maximum(ends - starts, 0).sum(axis=1), minlength=4)


def blamed(gaps, host, kinds, share):
    found = np.zeros(4)
    for (start, end), kind in zip(host, kinds, strict=True):
        for first, last in gaps:
            found[kind] += share(start, end, first, last)
    return found


@wrong(BLAME, "whole spans blamed")
def blame_whole_spans(gaps, host, kinds):
    found = np.zeros(4)
    for (start, end), kind in zip(host, kinds, strict=True):
        if ((gaps[:, 0] < end) & (gaps[:, 1] > start)).any():
            found[kind] += end - start
    return found


@wrong(BLAME, "whole gaps blamed")
def blame_whole_gaps(gaps, host, kinds):
    return blamed(gaps, host, kinds, lambda start, end, first, last: (last - first) * (start <= first < end))


@wrong(BLAME, "wrong result")
def blame_without_a_floor(gaps, host, kinds):
    return blamed(gaps, host, kinds, lambda start, end, first, last: min(end, last) - max(start, first))


@wrong(BLAME, "wrong result")
def blame_the_busy_time(gaps, host, kinds):
    busy = np.bincount(kinds, host[:, 1] - host[:, 0], minlength=4)
    return busy - blame_at_once(gaps, host, kinds)


@wrong(BLAME, "wrong result")
def blame_only_kinds_that_occur(gaps, host, kinds):
    return np.bincount(kinds, blame_of_each(gaps, host))


def blame_of_each(gaps, host):
    return [sum(max(0.0, min(end, last) - max(start, first)) for first, last in gaps) for start, end in host]


# -- cure


def loop(fused=True, together=True, at_the_end=True, rate_twice=False):
    """The loop with some of its faults left."""

    def train(batches, start, rate):
        gpu = Gpu()
        w, losses, read = gpu.to_device(start), gpu.empty(len(batches)), []
        d, loss = gpu.empty(start.size), gpu.empty(1)
        rows = gpu.to_device(batches) if together else None
        for k in range(len(batches)):
            here, row = (rows, k) if together else (gpu.to_device(batches[k : k + 1]), 0)
            if fused:
                one = losses if together else losses[k : k + 1]
                gpu.launch(step_kernel, here, row, w, rate * np.float32(1 + rate_twice), one)
            else:
                gpu.launch(bench.distance_kernel, w, here[row], d)
                gpu.launch(bench.loss_kernel, d, losses[k : k + 1])
                gpu.launch(bench.scale_kernel, d, rate)
                gpu.launch(bench.move_kernel, w, d)
            if not at_the_end:
                loss = losses[k : k + 1]
                read.append(gpu.to_host(loss)[0])
        return gpu.bill(gpu.to_host(losses) if at_the_end else read)

    return train


@right(CURE)
def cure_with_slices(batches, start, rate):
    gpu = Gpu()
    rows, w, losses = gpu.to_device(batches), gpu.to_device(start), gpu.empty(len(batches))
    for k, _ in enumerate(batches):
        gpu.launch(step_kernel, rows[k : k + 1], 0, w, rate, losses[k : k + 1])
    return gpu.bill(gpu.to_host(losses))


def named(name, function):
    function.__name__ = name
    return function


ANSWERS += [
    WrongAnswer(CURE, named("reads_in_each_step", loop(at_the_end=False)), "waits in each step"),
    WrongAnswer(CURE, named("copies_in_each_step", loop(together=False, at_the_end=False)), "copies in each step"),
    WrongAnswer(CURE, named("not_fused", loop(fused=False)), "many launches"),
    WrongAnswer(CURE, named("not_cured", slow), "copies in each step"),
    WrongAnswer(CURE, named("another_rate", loop(rate_twice=True)), "wrong result"),
]


@wrong(CURE, "wrong result")
def only_the_bill(batches, start, rate):
    return Gpu().bill([0.0] * len(batches))


@wrong(CURE, "output not written")
def returns_nothing(batches, start, rate):
    loop()(batches, start, rate)


@wrong(CURE, "wrong result", "The last three are launches, waits and bytes")
def cure_with_a_bill_of_nothing(batches, start, rate):
    gpu = Gpu()
    w, rows, losses = gpu.to_device(start), gpu.to_device(batches), gpu.empty(len(batches))
    for k in range(len(batches)):
        gpu.launch(step_kernel, rows, k, w, rate, losses)
    return np.array([*gpu.to_host(losses), 0, 0, 0], np.float64)
