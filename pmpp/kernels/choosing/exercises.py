"""The exercises of notebooks/96_cpu_against_gpu.ipynb and 97_choosing_a_gpu.ipynb: functions that run on the host."""

import itertools
import math

import numpy as np

from pmpp.lab.teach.exercise import Case, Exercise, Trap

EPS = float(np.finfo(np.float64).eps)


def host(name, args, expected, tolerance=0.0):
    """A case for a function that returns a number."""
    return Case(name, args, None, None, {0: expected}, {0: tolerance})


# ------------------------------------------------------------------------------------------------------- crossover


def crossover_answer(sizes, cpu, gpu):
    first = 0
    for i in range(len(sizes) - 1, -1, -1):
        if not gpu[i] < cpu[i]:
            break
        first = int(sizes[i])
    return first


def _crossover_cases(rng):
    first, (short, long) = 2 ** int(rng.integers(7)), np.sort(rng.uniform(1, 5, (2, 1)), axis=0)
    sizes = first * 2 ** np.arange(10)

    def times(i):
        """Of a CPU, and of a GPU that is faster from sizes[i] on."""
        each = rng.uniform(0.01, 0.1)
        return each * sizes, each * (sizes[i] * rng.uniform(0.6, 0.9) + sizes / 50)

    cases = [
        host("one size, GPU faster", (sizes[:1], long, short), first),
        host("one size, CPU faster", (sizes[:1], short, long), 0),
    ]
    same = rng.uniform(1, 5, 2)
    cases.append(host("two equal times", (sizes[::3][:2], same, same.copy()), 0))
    i = int(rng.integers(3, 9))
    cases.append(host("ten sizes", (sizes, *times(i)), int(sizes[i])))
    i = int(rng.integers(3, 9))
    cpu, gpu = times(i)
    before = int(rng.integers(i - 1))
    cpu[before] += 2 * gpu[before]  # something else ran on the CPU meanwhile
    cases.append(host(f"an outlier at {sizes[before]}", (sizes, cpu, gpu), int(sizes[i])))
    cpu, gpu = times(0)
    cases.append(host("a GPU that is always faster", (sizes[:7], cpu[:7] + 1, gpu[:7]), first))
    i = int(rng.integers(3, 9))
    cpu, gpu = times(i)
    gpu[i] = cpu[i]
    cases.append(host(f"equal times at {sizes[i]}", (sizes, cpu, gpu), int(sizes[i + 1])))
    return cases


def _first_only(sizes, cpu, gpu):
    faster = np.flatnonzero(gpu < cpu)
    return {0: np.asarray(int(sizes[faster[0]]) if faster.size else 0)}


def _ties_count(sizes, cpu, gpu):
    first = 0
    for i in range(len(sizes) - 1, -1, -1):
        if gpu[i] > cpu[i]:
            break
        first = int(sizes[i])
    return {0: np.asarray(first)}


# ---------------------------------------------------------------------------------------------------------- joules


def joules_answer(readings, full):
    total = 0
    for before, after in itertools.pairwise(readings):
        total += (int(after) - int(before)) % full
    return total / 1e6


def _joules_cases(rng):
    cases = []
    for name, steps, full in (
        ("one reading", [], 1000_000),
        ("two readings", [250_000], 1000_000),
        ("a counter that began again", [400_000, 400_000, 400_000], 1000_000),
        ("two turns", [900_000, 900_000, 900_000], 1000_000),
        ("64 readings", rng.integers(0, 260_000_000, 63), 262_143_328_850),
        ("100 readings of a small counter", rng.integers(0, 900, 99), 1000),
    ):
        counted = np.concatenate([[full * 7 // 10], np.asarray(steps, np.int64)]).cumsum()
        exact = float(counted[-1] - counted[0]) / 1e6
        cases.append(host(name, ((counted % full).astype(np.int64), full), exact, 4 * EPS * abs(exact)))
    return cases


def _last_minus_first(readings, full):
    return {0: np.asarray(float(readings[-1] - readings[0]) / 1e6)}


def _microjoules(readings, full):
    return {0: np.asarray(float((np.diff(readings) % full).sum()))}


# ------------------------------------------------------------------------------------------------------- break_even


def break_even_answer(setup, cpu, gpu):
    ahead = -setup
    if ahead >= 0:
        return 0
    for i in range(len(cpu)):
        ahead += cpu[i] - gpu[i]
        if ahead >= 0:
            return i + 1
    return -1


def _break_even_cases(rng):
    cases = []
    # Numbers that are exact in binary, so that nothing depends on how a sum is rounded.
    for name, n, setup, cpu, gpu in (
        ("no step", 0, 1.0, 1.0, 0.5),
        ("no setup", 3, 0.0, 1.0, 0.5),
        ("a setup of 4 s that pays after 8 steps", 20, 4.0, 1.0, 0.5),
        ("a setup that these steps do not pay", 7, 4.0, 1.0, 0.5),
        ("a slower GPU", 30, 4.0, 0.5, 1.0),
        ("a part of a step", 40, 13.0, 1.0, 0.25),
    ):
        args = setup, np.full(n, cpu), np.full(n, gpu)
        cases.append(host(name, args, break_even_answer(*args)))
    cpu, gpu = rng.integers(1, 64, 100) / 16, rng.integers(1, 32, 100) / 16
    gpu[:10] += 2  # the first steps of a GPU are slower
    cases.append(host("steps that differ", (20.0, cpu, gpu), break_even_answer(20.0, cpu, gpu)))
    return cases


def _step_before(setup, cpu, gpu):
    right = break_even_answer(setup, cpu, gpu)
    return {0: np.asarray(right - 1 if right > 0 else right)}


def _forgets_the_gpu(setup, cpu, gpu):
    return {0: np.asarray(break_even_answer(setup, cpu, np.zeros_like(gpu)))}


# -------------------------------------------------------------------------------------------------------- step_time


def step_time_answer(flops, moved, peak, bandwidth, floor):
    return float(sum(max(f / peak, m / bandwidth, floor) for f, m in zip(flops, moved, strict=True)))


def _step_time_cases(rng):
    cases = []
    for name, n, peak, bandwidth, floor in (
        ("no kernel", 0, 1e12, 1e11, 1e-6),
        ("one kernel", 1, 1e12, 1e11, 0.0),
        ("two kernels, one on each side", 2, 1e12, 1e11, 0.0),
        ("small kernels", 5, 60e12, 4e12, 2e-6),
        ("60 kernels", 60, 60e12, 4e12, 2e-6),
    ):
        flops, moved = 10.0 ** rng.uniform(6, 11, n), 10.0 ** rng.uniform(4, 9, n)
        if n == 2:
            flops, moved = np.array([1e10, 1e6]), np.array([1e6, 1e9])
        exact = step_time_answer(flops, moved, peak, bandwidth, floor)
        cases.append(host(name, (flops, moved, peak, bandwidth, floor), exact, EPS * (n + 4) * exact))
    return cases


def _larger_of_the_sums(flops, moved, peak, bandwidth, floor):
    return {0: np.asarray(max(flops.sum() / peak, moved.sum() / bandwidth, floor * len(flops)))}


def _adds_both(flops, moved, peak, bandwidth, floor):
    return {0: np.asarray(np.maximum(flops / peak + moved / bandwidth, floor).sum())}


def _no_floor(flops, moved, peak, bandwidth, floor):
    return {0: np.asarray(np.maximum(flops / peak, moved / bandwidth).sum())}


# ------------------------------------------------------------------------------------------------------ largest_batch


def largest_batch_answer(parameters, states, kept, memory):
    fixed = 4 * int(parameters.sum()) * (2 + states)
    return max(0, (memory - fixed) // (4 * int(kept.sum())))


def _largest_batch_cases(rng):
    cases = []
    draw, batch = rng.integers, int(rng.integers(5, 50))
    one, few, layers = draw(200, 300, 1), draw(400, 900, 2), draw(20, 100, 2)
    just = 8 * int(few.sum()) + 4 * int(layers.sum()) * batch
    for name, parameters, states, kept, memory in (
        ("a network without parameters", few[:0], 0, one, 4 * int(one[0]) * batch + 500),
        ("memory that is just enough", few, 0, layers, just),
        ("a byte too little", few, 0, layers, just - 1),
        ("parameters that do not fit", draw(9_000_000, 12_000_000, 1), 2, few, 100_000_000),
        ("momentum on 8 GB", draw(1_000_000, 9_000_000, 3), 1, draw(200_000, 1_000_000, 2), 8_000_000_000),
        ("Adam on 24 GB", draw(150_000_000, 200_000_000, 2), 2, draw(500_000, 20_000_000, 3), 24_000_000_000),
        ("Adam on 141 GB", draw(6_000_000_000, 8_000_000_000, 1), 2, draw(150_000_000, 250_000_000, 4), 141 * 10**9),
    ):
        args = parameters, states, kept, memory
        cases.append(host(name, args, largest_batch_answer(*args)))
    return cases


def _fixed(arrays):
    def wrong(parameters, states, kept, memory):
        left = memory - 4 * int(parameters.sum()) * arrays(states)
        return {0: np.asarray(max(0, left // (4 * int(kept.sum()))))}

    return wrong


def _elements(parameters, states, kept, memory):
    left = memory - int(parameters.sum()) * (2 + states)
    return {0: np.asarray(max(0, left // int(kept.sum())))}


# ---------------------------------------------------------------------------------------------------------- cheapest


def cheapest_answer(seconds, hour, memory, needed):
    best, least = -1, math.inf
    for i in range(len(seconds)):
        if memory[i] >= needed and seconds[i] * hour[i] < least:
            best, least = i, seconds[i] * hour[i]
    return best


def _cheapest_cases(rng):
    def case(name, needed, *gpus):
        """GPUs as (seconds, hour, memory), in a drawn order and of a drawn scale: quarters, so all costs are exact."""
        seconds, hour, memory = np.array(gpus)[rng.permutation(len(gpus))].T
        a, b, c = rng.integers(1, 50), rng.integers(1, 20) / 4, float(rng.integers(1, 4))
        args = a * seconds, b * hour, c * memory, c * needed
        return host(name, args, cheapest_answer(*args))

    nan = math.nan
    return [
        case("one GPU that fits", 8.0, (10, 1, 8)),
        case("one GPU that is too small", 8.5, (10, 1, 8)),
        case("a dear fast one", 20.0, (9, 1, 24), (1, 4, 80)),
        case("a cheap slow one", 20.0, (3, 1, 24), (1, 4, 80)),
        case("the cheapest too small", 20.0, (3, 1, 16), (1, 4, 80), (2, 3, 48)),
        case("two that cost the same", 20.0, (1, 5, 80), (4, 1, 80), (2, 2, 80), (8, 0.75, 80)),
        case("a price that is not known", 40.0, (1, nan, 80), (2, 3, 80), (4, 1, 48), (9, 0.5, 8)),
        case("no price known", 40.0, *((seconds, nan, 80) for seconds in (1, 2, 4, 9, 1))),
    ]


def _last_of_equals(seconds, hour, memory, needed):
    found = cheapest_answer(seconds[::-1], hour[::-1], memory[::-1], needed)
    return {0: np.asarray(len(seconds) - 1 - found if found >= 0 else -1)}


def _by(measure):
    def wrong(seconds, hour, memory, needed):
        with np.errstate(all="ignore"):
            cost = np.where((memory >= needed) & ~np.isnan(hour), measure(seconds, hour), np.inf)
        return {0: np.asarray(int(np.argmin(cost)) if np.isfinite(cost).any() else -1)}

    return wrong


def _ignores_memory(seconds, hour, memory, needed):
    return {0: np.asarray(cheapest_answer(seconds, hour, np.full(len(seconds), np.inf), needed))}


EXERCISES = (
    Exercise(
        "choosing/crossover",
        "Return the smallest batch size from which on the GPU is faster at every larger size as well; sizes rise, and "
        "0 says that there is none. Equal times are not faster.",
        parameters="sizes, cpu, gpu",
        cases=_crossover_cases,
        hints=(
            "One size at which the GPU won by chance is no crossover.",
            "Go from the largest size down, and stop where the GPU is not faster.",
        ),
        answer=crossover_answer,
        traps=(
            Trap("first crossing", "At a larger size the CPU was faster again.", _first_only),
            Trap("ties counted", "Equal times are not faster.", _ties_count),
        ),
    ),
    Exercise(
        "choosing/joules",
        "Return the joules between the first and the last reading of a counter of microjoules that counts 0, 1, ... "
        "full - 1 and begins again; between two readings it is never full more than once.",
        parameters="readings, full",
        cases=_joules_cases,
        hints=(
            "Add the differences of neighbouring readings.",
            "A difference modulo full is right on both sides of the turn.",
        ),
        answer=joules_answer,
        traps=(
            Trap("turn forgotten", "A counter that is full begins at 0 again.", _last_minus_first),
            Trap("wrong unit", "The counter has microjoules, joules are asked for.", _microjoules),
        ),
    ),
    Exercise(
        "choosing/break_even",
        "A GPU needs setup seconds more than the CPU before the first step; step i then takes cpu[i] or gpu[i] "
        "seconds. Return the least number of steps after which the GPU is not behind, and -1 if that does not happen "
        "in these.",
        parameters="setup, cpu, gpu",
        cases=_break_even_cases,
        hints=("Step i brings the GPU forward by cpu[i] - gpu[i] seconds.", "After i + 1 steps step i is done."),
        answer=break_even_answer,
        traps=(
            Trap("a step too few", "After that many steps the GPU is still behind.", _step_before),
            Trap("the GPU's steps forgotten", "While the GPU catches up its own steps take time.", _forgets_the_gpu),
        ),
    ),
    Exercise(
        "choosing/step_time",
        "Return the least seconds of a step whose kernels run one after the other: kernel i does flops[i] operations "
        "and moves moved[i] bytes at the same time, at peak FLOP/s and bandwidth byte/s, and takes at least floor.",
        parameters="flops, moved, peak, bandwidth, floor",
        cases=_step_time_cases,
        hints=(
            "Within a kernel arithmetic and memory overlap: the longer time counts.",
            "Between kernels nothing overlaps: add.",
        ),
        answer=step_time_answer,
        traps=(
            Trap("bound of the sum", "One kernel's arithmetic cannot hide another's memory.", _larger_of_the_sums),
            Trap("times added", "A kernel computes while it loads: take the longer.", _adds_both),
            Trap("floor forgotten", "No kernel is shorter than floor.", _no_floor),
        ),
    ),
    Exercise(
        "choosing/largest_batch",
        "Return the largest batch that fits into memory bytes: parameters has the sizes of the arrays of parameters; "
        "each number in them has a gradient and states numbers of the optimiser; kept has how many numbers each layer "
        "keeps for an example; all numbers have 4 bytes. 0 says that none fits.",
        parameters="parameters, states, kept, memory",
        cases=_largest_batch_cases,
        hints=(
            "Take away first what does not depend on the batch.",
            "Only whole examples count, and there are none below 0.",
        ),
        answer=largest_batch_answer,
        traps=(
            Trap("gradients forgotten", "A gradient is as large as its parameter.", _fixed(lambda states: 1 + states)),
            Trap("optimiser forgotten", "The optimiser keeps states numbers for each parameter.", _fixed(lambda _: 2)),
            Trap("numbers for bytes", "memory is in bytes, and a number has 4.", _elements),
        ),
    ),
    Exercise(
        "choosing/cheapest",
        "Return the index of the GPU on which the job costs least, seconds[i] at hour[i] dollars an hour, of those "
        "whose memory[i] is at least needed; an unknown price is NaN and is left out, and -1 says that none is left. "
        "Of equal ones return the first.",
        parameters="seconds, hour, memory, needed",
        cases=_cheapest_cases,
        hints=("A job costs its time times the price of time.", "Every comparison with NaN is false."),
        answer=cheapest_answer,
        traps=(
            Trap("price of an hour", "A cheap hour is no bargain if there are many.", _by(lambda seconds, hour: hour)),
            Trap("fastest", "The fastest one costs more than it saves.", _by(lambda seconds, hour: seconds)),
            Trap("memory ignored", "The network does not fit.", _ignores_memory),
            Trap("last of equals", "Of equal costs the first counts: compare with <, not <=.", _last_of_equals),
        ),
    ),
)
