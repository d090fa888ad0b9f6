"""Exercises of notebooks/92_finding_the_bottleneck.ipynb: how idle a GPU was, who kept it waiting, and a cure."""

from __future__ import annotations

import numpy as np

from pmpp.kernels.bottleneck.gpu import Gpu, step_kernel
from pmpp.lab.teach.exercise import Case, Exercise, Trap

KINDS = 4

# ---------------------------------------------------------------------------------------------------- bottleneck/idle


def idle_answer(spans, length):
    free, idle, longest = 0.0, 0.0, 0.0  # free: until when the GPU has been busy so far
    for start, end in sorted(map(tuple, spans)):
        gap = max(start - free, 0.0)
        idle, longest, free = idle + gap, max(longest, gap), max(free, end)
    return np.array([(idle + length - free) / length, max(longest, length - free)])


def _idle_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, spans: list | np.ndarray, length: float) -> Case:
        spans = np.array(spans, np.float64).reshape(-1, 2)
        # Sums of at most 100 numbers below the length, in any order.
        allowed = 100 * 2.0**-52 * np.array([1, length])
        return Case(name, (spans, length), None, None, {0: idle_answer(spans, length)}, {0: allowed})

    many = np.sort(rng.uniform(0, 900, (40, 2)), axis=1)
    many[:, 1] = np.minimum(many[:, 1], many[:, 0] + 30)
    return [
        case("one kernel in the middle", [[30, 40]], 100.0),
        case("two that touch, and a late start", [[50, 60], [60, 90]], 100.0),
        case("two streams that overlap", [[0, 50], [20, 30], [40, 70]], 100.0),
        case("no kernel at all", [], 50.0),
        case("a span inside another", [[0, 90], [20, 30]], 100.0),
        case("spans in no order", [[60, 80], [0, 10], [20, 30], [25, 45]], 100.0),
        case("40 spans of two streams", many, 1000.0),
    ]


def _added_up(spans: np.ndarray, length: float) -> dict[int, np.ndarray]:
    """What the sum of the times gives. The gap is that of the answer, unless spans overlap: then it may be any."""
    share, (right, longest) = 1 - (spans[:, 1] - spans[:, 0]).sum() / length, idle_answer(spans, length)
    return {0: np.array([share, longest if np.isclose(share, right) else np.nan])}


def _only_between(spans: np.ndarray, length: float) -> dict[int, np.ndarray]:
    free, idle, longest = None, 0.0, 0.0
    for start, end in sorted(map(tuple, spans)):
        gap = 0.0 if free is None else max(start - free, 0.0)
        idle, longest, free = idle + gap, max(longest, gap), end if free is None else max(free, end)
    return {0: np.array([idle / length, longest])}


def _until_the_last_one(spans: np.ndarray, length: float) -> dict[int, np.ndarray]:
    free, idle, longest = 0.0, 0.0, 0.0
    for start, end in sorted(map(tuple, spans)):
        gap = max(start - free, 0.0)
        idle, longest, free = idle + gap, max(longest, gap), end
    return {0: np.array([(idle + length - free) / length, max(longest, length - free)])}


def _as_they_come(spans: np.ndarray, length: float) -> dict[int, np.ndarray]:
    free, idle, longest = 0.0, 0.0, 0.0
    for start, end in spans:
        gap = max(start - free, 0.0)
        idle, longest, free = idle + gap, max(longest, gap), max(free, end)
    return {0: np.array([(idle + length - free) / length, max(longest, length - free)])}


# --------------------------------------------------------------------------------------------------- bottleneck/blame


def blame_answer(gaps, host, kinds):
    found = np.zeros(KINDS)
    for (start, end), kind in zip(host, kinds, strict=True):
        for first, last in gaps:
            found[kind] += max(0.0, min(end, last) - max(start, first))
    return found


def _blame_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, gaps: list | np.ndarray, host: list | np.ndarray, kinds: list | np.ndarray) -> Case:
        gaps, host = np.array(gaps, np.float64).reshape(-1, 2), np.array(host, np.float64).reshape(-1, 2)
        kinds = np.array(kinds, np.intp)  # np.bincount takes no int64 where an index has 32 bits, as in a browser
        expected = blame_answer(gaps, host, kinds)
        # Each of the sums has as many terms as there are pairs; the times are below 1000.
        return Case(name, (gaps, host, kinds), None, None, {0: expected}, {0: 1000 * 2.0**-52 * 400})

    marks = np.sort(rng.uniform(0, 900, 31))
    ends = np.sort(rng.uniform(0, 900, 24))
    return [
        case("one gap and one span", [[10, 30]], [[5, 20]], [1]),
        case("a gap that two spans share", [[10, 50]], [[0, 30], [30, 60]], [0, 2]),
        case("a span over two gaps", [[0, 10], [20, 40]], [[5, 35], [35, 60]], [3, 1]),
        case("no gap", [], [[0, 10], [10, 30]], [0, 1]),
        case("30 spans", ends.reshape(-1, 2), np.stack([marks[:-1], marks[1:]], axis=1), rng.integers(0, KINDS, 30)),
    ]


def _whole_spans(gaps: np.ndarray, host: np.ndarray, kinds: np.ndarray) -> dict[int, np.ndarray]:
    found = np.zeros(KINDS)
    for (start, end), kind in zip(host, kinds, strict=True):
        if any(min(end, last) > max(start, first) for first, last in gaps):
            found[kind] += end - start
    return {0: found}


def _whole_gaps(gaps: np.ndarray, host: np.ndarray, kinds: np.ndarray) -> dict[int, np.ndarray]:
    found = np.zeros(KINDS)
    for first, last in gaps:
        for (start, end), kind in zip(host, kinds, strict=True):
            if start <= first < end:
                found[kind] += last - first
    return {0: found}


# ---------------------------------------------------------------------------------------------------- bottleneck/cure


def cure_answer(batches, start, rate):
    gpu = Gpu()
    w, rows, losses = gpu.to_device(start), gpu.to_device(batches), gpu.empty(len(batches))
    for k in range(len(batches)):
        gpu.launch(step_kernel, rows, k, w, rate, losses)
    return gpu.bill(gpu.to_host(losses))


def _reference(batches: np.ndarray, start: np.ndarray, rate: np.float32) -> list[float]:
    w, losses = start.astype(np.float64), []
    for batch in batches.astype(np.float64):
        losses.append(((w - batch) ** 2).sum())
        w = w - rate * (w - batch)
    return losses


def _cure_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for steps, n in ((1, 3), (3, 64), (7, 65)):
        batches, start = rng.standard_normal((steps, n), dtype=np.float32), rng.standard_normal(n, dtype=np.float32)
        losses = _reference(batches, start, np.float32(0.25))
        # Each step rounds w three times, and a loss is a sum of n squares.
        allowed = [2 * (n + 6 * steps) * 2.0**-24 * (loss + n) for loss in losses]
        # The counts: a launch a step, or one for some of them; three copies, or two if batches and start go together;
        # and each byte of batches, start and losses once. The middle of what is right is expected.
        counts = [(1 + steps) / 2, 2.5, batches.nbytes + start.nbytes + 4 * steps]
        name = f"{steps} step{'s' * (steps > 1)} of {n} numbers"
        case = Case(name, (batches, start, np.float32(0.25)), None, None, {0: np.array(losses + counts)}, {})
        case.tolerance[0] = np.array([*allowed, (steps - 1) / 2, 0.5, 0])
        cases.append(case)
    return cases


def _counted(launches: int | None = None, waits: int | None = None, start: int = 0) -> object:
    """What the bill would be with so many launches and waits a step; None for whatever it was."""

    def wrong(batches: np.ndarray, begin: np.ndarray, rate: np.float32) -> dict[int, np.ndarray]:
        steps = len(batches)
        found = np.full(steps + 3, np.nan)
        for place, each, more in ((steps, launches, 0), (steps + 1, waits, start)):
            if each is not None:
                found[place] = each * steps + more
        return {0: found}

    return wrong


EXERCISES = (
    Exercise(
        "bottleneck/idle",
        "Return an array of two: the share of the time from 0 to length in which no kernel ran, and the longest time "
        "without a kernel. Each row of spans is a kernel's start and end, in no order; kernels of several streams may "
        "overlap.",
        parameters="spans, length",
        cases=_idle_cases,
        answer=idle_answer,
        hints=(
            "Sort the spans by their start, and keep in a variable until when the GPU has been busy so far.",
            "A span that ends before that moment changes nothing: the moment only moves on, by max.",
            "There is a gap before the first kernel, and one behind the last.",
        ),
        traps=(
            Trap(
                "overlap counted twice",
                "Two kernels that run at the same time keep the GPU busy once: join spans that overlap.",
                _added_up,
            ),
            Trap("edges forgotten", "The GPU is idle before the first kernel and behind the last, too.", _only_between),
            Trap(
                "span inside another",
                "The kernel that began last need not end last: keep the latest end so far, by max.",
                _until_the_last_one,
            ),
            Trap("spans not sorted", "The spans come in no order: sort them by their start first.", _as_they_come),
        ),
    ),
    Exercise(
        "bottleneck/blame",
        "Return an array of 4: for each kind of the host's spans, how long the GPU was idle while the host was in a "
        "span of this kind. Each row of gaps is a start and an end, and so is each row of host; kinds has a number "
        "from 0 to 3 for each row of host. Neither the gaps nor the host's spans overlap among themselves.",
        parameters="gaps, host, kinds",
        cases=_blame_cases,
        answer=blame_answer,
        hints=(
            "How long do two intervals overlap? From the later start to the earlier end, if that is later.",
            "Add that up for each pair of a gap and a span, into the place of the span's kind.",
        ),
        traps=(
            Trap("whole spans blamed", "A span counts only as long as the GPU was idle during it.", _whole_spans),
            Trap("whole gaps blamed", "A gap may go on while the host does something else: share it.", _whole_gaps),
        ),
    ),
    Exercise(
        "bottleneck/cure",
        "Cure `slow` of pmpp.kernels.bottleneck.gpu: the same losses with one launch a step, three copies in all, and "
        "no more bytes than before. All goes through a Gpu, and its bill is what you return.",
        parameters="batches, start, rate",
        cases=_cure_cases,
        answer=cure_answer,
        hints=(
            "Copy all batches once, before the first step.",
            "step_kernel does all that the four kernels do, on row k of the batches.",
            "It writes the loss of step k to losses[k]: read that array when all steps are launched.",
        ),
        traps=(
            Trap("waits in each step", "The host still waits in each step.", _counted(waits=1, start=2)),
            Trap("copies in each step", "The host still copies, and waits, in each step.", _counted(waits=2, start=1)),
            Trap("many launches", "Each step still launches four kernels: fuse them.", _counted(launches=4)),
        ),
        advice={
            "wrong result": "First come the losses. The last three are launches, waits and bytes: a launch a step, "
            "three copies, each of which waits, and each byte once."
        },
    ),
)
