"""Answers to the exercises of chapters 96 and 97: wrong ones, and right ones that are written differently."""

import math

import numpy as np

from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()


# ------------------------------------------------------------------------------------------------------- crossover


@wrong("choosing/crossover", "first crossing", "outlier")
def first_faster(sizes, cpu, gpu):
    for n, a, b in zip(sizes, cpu, gpu, strict=True):
        if b < a:
            return int(n)
    return 0


@wrong("choosing/crossover", "ties counted")
def counts_ties(sizes, cpu, gpu):
    keep = 0
    for n, a, b in zip(sizes[::-1], cpu[::-1], gpu[::-1], strict=True):
        if b > a:
            break
        keep = int(n)
    return keep


@wrong("choosing/crossover", "wrong result")
def index_of_the_size(sizes, cpu, gpu):
    slower = np.flatnonzero(~(gpu < cpu))
    return int(slower[-1] + 1) if slower.size else 0


@wrong("choosing/crossover", "does not run", "one size, CPU faster")
def beyond_the_end(sizes, cpu, gpu):
    slower = np.flatnonzero(~(gpu < cpu))
    return int(sizes[slower[-1] + 1]) if slower.size else int(sizes[0])


@wrong("choosing/crossover", "wrong result")
def last_slower(sizes, cpu, gpu):
    slower = np.flatnonzero(~(gpu < cpu))
    return int(sizes[slower[-1]]) if slower.size else int(sizes[0])


@right("choosing/crossover")
def by_the_last_slower(sizes, cpu, gpu):
    slower = np.flatnonzero(gpu >= cpu)
    start = slower[-1] + 1 if slower.size else 0
    return int(sizes[start]) if start < len(sizes) else 0


# ---------------------------------------------------------------------------------------------------------- joules


@wrong("choosing/joules", "turn forgotten")
def ends_only(readings, full):
    return (readings[-1] - readings[0]) / 1e6


@wrong("choosing/joules", "wrong unit")
def in_microjoules(readings, full):
    return float((np.diff(readings) % full).sum())


@wrong("choosing/joules", "wrong result")
def one_turn_only(readings, full):
    return float((readings[-1] - readings[0]) % full) / 1e6


@wrong("choosing/joules", "wrong result")
def drops_negative(readings, full):
    steps = np.diff(readings)
    return float(steps[steps > 0].sum()) / 1e6


@wrong("choosing/joules", "does not run", "one reading")
def needs_two(readings, full):
    total = (readings[1] - readings[0]) % full
    for i in range(1, len(readings) - 1):
        total += (readings[i + 1] - readings[i]) % full
    return total / 1e6


@right("choosing/joules")
def by_differences(readings, full):
    return float((np.diff(readings) % full).sum()) / 1e6


@right("choosing/joules")
def adds_full(readings, full):
    total, last = 0, readings[0]
    for now in readings[1:]:
        total += now - last + (full if now < last else 0)
        last = now
    return total / 1e6


# ------------------------------------------------------------------------------------------------------- break_even


@wrong("choosing/break_even", "a step too few")
def index_of_the_step(setup, cpu, gpu):
    ahead = -setup
    if ahead >= 0:
        return 0
    for i in range(len(cpu)):
        ahead += cpu[i] - gpu[i]
        if ahead >= 0:
            return i
    return -1


@wrong("choosing/break_even", "the GPU's steps forgotten")
def by_the_cpu(setup, cpu, gpu):
    enough = np.flatnonzero(np.concatenate([[0.0], np.cumsum(cpu)]) >= setup)
    return int(enough[0]) if enough.size else -1


@wrong("choosing/break_even", "does not run", "no step")
def by_the_first_step(setup, cpu, gpu):
    saved = cpu[0] - gpu[0]
    return math.ceil(setup / saved) if saved > 0 else -1


@wrong("choosing/break_even", "wrong result", "no setup")
def begins_with_a_step(setup, cpu, gpu):
    ahead = np.flatnonzero(np.cumsum(cpu - gpu) >= setup)
    return int(ahead[0]) + 1 if ahead.size else -1


@wrong("choosing/break_even", "wrong result")
def must_be_ahead(setup, cpu, gpu):
    ahead = np.flatnonzero(np.concatenate([[0.0], np.cumsum(cpu - gpu)]) > setup)
    return int(ahead[0]) if ahead.size else -1


@right("choosing/break_even")
def with_sums(setup, cpu, gpu):
    ahead = np.flatnonzero(np.concatenate([[0.0], np.cumsum(cpu - gpu)]) >= setup)
    return int(ahead[0]) if ahead.size else -1


# -------------------------------------------------------------------------------------------------------- step_time


@wrong("choosing/step_time", "bound of the sum")
def bound_of_all(flops, moved, peak, bandwidth, floor):
    return max(sum(flops) / peak, sum(moved) / bandwidth, len(flops) * floor)


@wrong("choosing/step_time", "times added")
def one_after_the_other(flops, moved, peak, bandwidth, floor):
    return sum(max(f / peak + m / bandwidth, floor) for f, m in zip(flops, moved, strict=True))


@wrong("choosing/step_time", "floor forgotten")
def no_shortest(flops, moved, peak, bandwidth, floor):
    return float(np.maximum(flops / peak, moved / bandwidth).sum())


@wrong("choosing/step_time", "wrong result")
def the_shorter(flops, moved, peak, bandwidth, floor):
    return float(np.maximum(np.minimum(flops / peak, moved / bandwidth), floor).sum())


@wrong("choosing/step_time", "does not run", "no kernel")
def needs_a_kernel(flops, moved, peak, bandwidth, floor):
    total = max(flops[0] / peak, moved[0] / bandwidth, floor)
    for f, m in zip(flops[1:], moved[1:], strict=True):
        total += max(f / peak, m / bandwidth, floor)
    return total


@right("choosing/step_time")
def with_numpy(flops, moved, peak, bandwidth, floor):
    return float(np.maximum(np.maximum(flops / peak, moved / bandwidth), floor).sum())


# ------------------------------------------------------------------------------------------------------ largest_batch


@wrong("choosing/largest_batch", "gradients forgotten")
def without_gradients(parameters, states, kept, memory):
    return max(0, (memory - 4 * parameters.sum() * (1 + states)) // (4 * kept.sum()))


@wrong("choosing/largest_batch", "optimiser forgotten")
def without_states(parameters, states, kept, memory):
    return max(0, (memory - 8 * parameters.sum()) // (4 * kept.sum()))


@wrong("choosing/largest_batch", "numbers for bytes")
def counts_numbers(parameters, states, kept, memory):
    return max(0, (memory - parameters.sum() * (2 + states)) // kept.sum())


@wrong("choosing/largest_batch", "wrong result", "do not fit")
def below_zero(parameters, states, kept, memory):
    return (memory - 4 * parameters.sum() * (2 + states)) // (4 * kept.sum())


@wrong("choosing/largest_batch", "wrong result")
def rounds_up(parameters, states, kept, memory):
    return max(0, math.ceil((memory - 4 * parameters.sum() * (2 + states)) / (4 * kept.sum())))


@wrong("choosing/largest_batch", "does not run", "without parameters")
def first_array_apart(parameters, states, kept, memory):
    fixed = parameters[0] * (2 + states)
    for size in parameters[1:]:
        fixed += size * (2 + states)
    return max(0, (memory - 4 * fixed) // (4 * kept.sum()))


@right("choosing/largest_batch")
def by_hand(parameters, states, kept, memory):
    left = memory - sum(4 * (1 + 1 + states) * int(size) for size in parameters)
    return left // (4 * sum(int(size) for size in kept)) if left > 0 else 0


# ---------------------------------------------------------------------------------------------------------- cheapest


@wrong("choosing/cheapest", "price of an hour")
def cheapest_hour(seconds, hour, memory, needed):
    fits = [i for i in range(len(hour)) if memory[i] >= needed and hour[i] == hour[i]]
    return min(fits, key=lambda i: hour[i], default=-1)


@wrong("choosing/cheapest", "fastest")
def the_fastest(seconds, hour, memory, needed):
    fits = [i for i in range(len(hour)) if memory[i] >= needed and hour[i] == hour[i]]
    return min(fits, key=lambda i: seconds[i], default=-1)


@wrong("choosing/cheapest", "memory ignored")
def does_not_ask_for_memory(seconds, hour, memory, needed):
    known = [i for i in range(len(hour)) if hour[i] == hour[i]]
    return min(known, key=lambda i: seconds[i] * hour[i], default=-1)


@wrong("choosing/cheapest", "wrong result", "price that is not known")
def trusts_nan(seconds, hour, memory, needed):
    cost = np.where(memory >= needed, seconds * hour, np.inf)
    return -1 if (cost == np.inf).all() else int(np.argmin(cost))


@wrong("choosing/cheapest", "does not run", "too small")
def expects_one(seconds, hour, memory, needed):
    fits = [i for i in range(len(hour)) if memory[i] >= needed and hour[i] == hour[i]]
    return min(fits, key=lambda i: seconds[i] * hour[i])


@right("choosing/cheapest")
def with_a_list(seconds, hour, memory, needed):
    cost = [
        s * h if m >= needed and not math.isnan(h) else math.inf for s, h, m in zip(seconds, hour, memory, strict=True)
    ]
    return cost.index(min(cost)) if min(cost) < math.inf else -1


@wrong("choosing/cheapest", "last of equals")
def cheapest_last(seconds, hour, memory, needed):
    best, least = -1, math.inf
    for i in range(len(seconds)):
        if memory[i] >= needed and seconds[i] * hour[i] <= least:
            best, least = i, seconds[i] * hour[i]
    return best
