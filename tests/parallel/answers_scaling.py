"""Answers to the exercises about thousands of GPUs: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp.runtime import device

# ------------------------------------------------------------------------------------------- few messages between nodes


def leaders_alone(group, x, per_node):
    """A group of the first ranks, into which the others do not go."""
    machine = group.split(colour=group.rank // per_node)
    leaders = group.split(colour=0 if group.rank % per_node == 0 else None)
    if leaders is not None:
        x = leaders.broadcast(x)
    return machine.broadcast(x)


def by_messages(group, x, per_node):
    """From machine to machine along a chain, and inside each of them likewise."""
    x = device.empty(1000, np.float32) if x is None else x
    first = group.rank % per_node == 0
    if group.rank:
        x = group.recv(x, group.rank - per_node if first else group.rank - 1)
    if first and group.rank + per_node < group.size:
        group.send(x, group.rank + per_node)
    if (group.rank + 1) % per_node:
        group.send(x, group.rank + 1)
    return x


def along_a_line(group, x, per_node):
    """A chain of all ranks in their order enters each machine once."""
    x = device.empty(1000, np.float32) if x is None else x
    if group.rank:
        x = group.recv(x, group.rank - 1)
    if group.rank + 1 < group.size:
        group.send(x, group.rank + 1)
    return x


def by_gathering(group, x, per_node):
    """In a machine all gather what they have, of which one is the array."""
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    x = across.broadcast(x) if machine.rank == 0 else np.zeros(1000, np.float32)
    return machine.all_gather(x)[0]


def by_sums(group, x, per_node):
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    x = across.broadcast(x) if machine.rank == 0 else np.zeros(1000, np.float32)
    return machine.all_reduce(x)


def over_all(group, x, per_node):
    return group.broadcast(x)


def sums_over_all(group, x, per_node):
    return group.all_reduce(np.zeros(1000, np.float32) if x is None else x)


def one_after_another(group, x, per_node):
    """Rank 0 sends to everybody."""
    if group.rank:
        return group.recv(device.empty(1000, np.float32), 0)
    for rank in range(1, group.size):
        group.send(x, rank)
    return x


def inside_alone(group, x, per_node):
    machine = group.split(colour=group.rank // per_node)
    return machine.broadcast(np.zeros(1000, np.float32) if x is None and machine.rank == 0 else x)


def leaders_forget_the_others(group, x, per_node):
    group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    return across.broadcast(x) if group.rank % per_node == 0 else None


def across_in_every_column(group, x, per_node):
    """First inside machine 0, and then each of its ranks sends to the other machines."""
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    if group.rank < per_node:
        x = machine.broadcast(x)
    return across.broadcast(x)


def splits_in_a_branch(group, x, per_node):
    """Only some ranks call split."""
    machine = group.split(colour=group.rank // per_node)
    if group.rank % per_node == 0:
        x = group.split(colour=0).broadcast(x)
    return machine.broadcast(x)


# ---------------------------------------------------------------------------------------------------------- what fits


def one_by_one(parameters, replicas, nbytes):
    if 16 * parameters <= nbytes:
        return 0
    if parameters * (4 + 12 / replicas) <= nbytes:
        return 1
    if parameters * (2 + 14 / replicas) <= nbytes:
        return 2
    return 3 if 16 * parameters / replicas <= nbytes else None


def by_next(parameters, replicas, nbytes):
    kept = (16, 4, 2, 0)
    return next((s for s in range(4) if parameters * (kept[s] + (16 - kept[s]) / replicas) <= nbytes), None)


def in_gigabytes(parameters, replicas, nbytes):
    n, memory = parameters / 1e9, nbytes / 1e9
    sizes = [16 * n, 4 * n + 12 * n / replicas, 2 * n + 14 * n / replicas, 16 * n / replicas]
    fits = [s for s, size in enumerate(sizes) if size <= memory]
    return fits[0] if fits else None


def from_the_end(parameters, replicas, nbytes):
    found = None
    for shard in (3, 2, 1, 0):
        share = [replicas if shard >= stage else 1 for stage in (1, 2, 3)]
        if parameters * (12 / share[0] + 2 / share[1] + 2 / share[2]) <= nbytes:
            found = shard
    return found


def by_numpy(parameters, replicas, nbytes):
    kept = np.array([16, 4, 2, 0])
    fits = np.flatnonzero(parameters * (kept + (16 - kept) / replicas) <= nbytes)
    return fits[0] if fits.size else None


def counted(optimiser, gradient, parameter, order=(1, 2, 3), strict=False):
    def answer(parameters, replicas, nbytes):
        for shard in range(4):
            share = [replicas if shard >= stage else 1 for stage in order]
            needed = parameters * (optimiser / share[0] + gradient / share[1] + parameter / share[2])
            if needed < nbytes or (not strict and needed == nbytes):
                return shard
        return None

    return answer


two_moments = counted(8, 2, 2)
float32 = counted(8, 4, 4)
without_gradients = counted(12, 0, 2)
parameters_first = counted(12, 2, 2, (3, 2, 1))
less_than = counted(12, 2, 2, strict=True)


def always_three(parameters, replicas, nbytes):
    return 3


def the_bytes(parameters, replicas, nbytes):
    return 16 * parameters / replicas


def never_says_none(parameters, replicas, nbytes):
    found = one_by_one(parameters, replicas, nbytes)
    return 3 if found is None else found


# --------------------------------------------------------------------------------------------------------- checkpoints


def by_power(writes, each, gpus):
    return (2 * writes * (3600 * each / gpus)) ** 0.5


def in_float32(writes, each, gpus):
    return np.sqrt(np.float32(2 * writes * 3600 * each / gpus))


def searched(writes, each, gpus):
    """The least of many intervals."""
    between = 3600 * each / gpus
    t = np.geomspace(1, 1e8, 400_001)
    return t[np.argmin(writes / t + t / (2 * between))]


def by_rate(writes, each, gpus):
    rate = gpus / each / 3600
    return math.sqrt(2 * writes / rate)


def by_newton(writes, each, gpus):
    square = 2 * writes * 3600 * each / gpus
    t = 1.0
    for _ in range(100):
        t = (t + square / t) / 2
    return t


def of_one_gpu(writes, each, gpus):
    return math.sqrt(2 * writes * each * 3600)


def in_hours(writes, each, gpus):
    return math.sqrt(2 * writes * each / gpus)


def without_two(writes, each, gpus):
    return math.sqrt(writes * each * 3600 / gpus)


def without_root(writes, each, gpus):
    return 2 * writes * each * 3600 / gpus


def between_failures(writes, each, gpus):
    return each * 3600 / gpus


def every_hour(writes, each, gpus):
    return 3600


def as_text(writes, each, gpus):
    return "38 minutes"


def forgets_to_return(writes, each, gpus):
    by_power(writes, each, gpus)


ALSO_RIGHT = (
    *[("scaling/broadcast", one) for one in (leaders_alone, by_messages, along_a_line, by_gathering, by_sums)],
    *[("scaling/smallest_shard", one) for one in (one_by_one, by_next, in_gigabytes, from_the_end, by_numpy)],
    *[("scaling/interval", one) for one in (by_power, in_float32, searched, by_rate, by_newton)],
)

WRONG = (
    ("scaling/broadcast", over_all, "crosses too often", "4 times the bytes .* into machine 1"),
    ("scaling/broadcast", one_after_another, "crosses too often", "4 times the bytes"),
    ("scaling/broadcast", across_in_every_column, "crosses too often", "Once is enough"),
    ("scaling/broadcast", sums_over_all, "crosses too often", "1.8 times the bytes"),
    ("scaling/broadcast", inside_alone, "wrong array", "rank 4 did not"),
    ("scaling/broadcast", leaders_forget_the_others, "nothing returned", "rank 1 returned None"),
    ("scaling/broadcast", splits_in_a_branch, "error", "Deadlock"),
    ("scaling/smallest_shard", two_moments, "no copy in float32", "three float32 numbers"),
    ("scaling/smallest_shard", float32, "all in float32", "have 2 bytes here"),
    ("scaling/smallest_shard", without_gradients, "no gradients", "2 bytes each"),
    ("scaling/smallest_shard", parameters_first, "parameters first", "the largest"),
    ("scaling/smallest_shard", less_than, "equal does not fit", "just fits"),
    ("scaling/smallest_shard", always_three, "wrong result", "0 is right, was 3"),
    ("scaling/smallest_shard", the_bytes, "no stage", "0, 1, 2, 3 or None"),
    ("scaling/smallest_shard", never_says_none, "wrong result", "nothing fits, was 3"),
    ("scaling/interval", of_one_gpu, "one GPU alone", "as many times as often"),
    ("scaling/interval", in_hours, "hours for seconds", "given in hours"),
    ("scaling/interval", without_two, "no factor of 2", "half an interval"),
    ("scaling/interval", without_root, "no root", "both are equal"),
    ("scaling/interval", between_failures, "the time between failures", "half of all work"),
    ("scaling/interval", every_hour, "wrong result", "was 3600"),
    ("scaling/interval", as_text, "no number", "38 minutes"),
    ("scaling/interval", forgets_to_return, "nothing returned", "returned None"),
)
