"""Exercises of the chapter about thousands of GPUs: few messages between machines, memory, and checkpoints."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.parallel import simulated
from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.group import Group
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

# ------------------------------------------------------------------------------------------- few messages between nodes


def broadcast(group: Group, x: typing.Any, per_node: int) -> typing.Any:
    """The array of rank 0 on all ranks: once into each machine, and from there to the others inside."""
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    if group.rank % per_node == 0:
        x = across.broadcast(x)
    return machine.broadcast(x)


WORDS = 1000  # of the array: many more bytes than the numbers that `split` passes round


def judge_broadcast(answer: Callable) -> str:
    """Ranks of two, three and one machines, and machines of one rank; results, and the bytes between machines."""

    def call(group: Group, per_node: int) -> np.ndarray | None:
        mine = np.full(WORDS, 7.5 if group.rank == 0 else -1.0, np.float32)
        found = answer(group, mine if group.rank == 0 else None, per_node)
        return None if found is None else device.to_host(found)

    for nodes, per_node in ((2, 4), (3, 2), (1, 3), (3, 1)):
        case = f"with {nodes} machine{'s' * (nodes > 1)} of {per_node} rank{'s' * (per_node > 1)}"
        found = simulated.ranks(nodes * per_node, call, per_node)
        for rank, array in enumerate(found):
            if array is None:
                raise Mistake("nothing returned", f"{case} rank {rank} returned None")
            if array.shape != (WORDS,) or not (array == 7.5).all():
                raise Mistake("wrong array", f"{case} rank {rank} did not return the array of rank 0")
        entered = dict.fromkeys(range(1, nodes), 0)
        for (source, target), nbytes in found.report.nbytes.items():
            if source // per_node != target // per_node and target // per_node:
                entered[target // per_node] += nbytes
        for node, nbytes in entered.items():
            times = nbytes / (4 * WORDS)
            if times > 1.25:  # `split` sends a few numbers, too
                raise Mistake(
                    "crosses too often",
                    f"{case} {times:.2g} times the bytes of the array were sent into machine {node}. Once is enough: "
                    "from there they can go on inside",
                )
    return "The array enters each machine once."


# ---------------------------------------------------------------------------------------------------------- what fits


def smallest_shard(parameters: float, replicas: int, nbytes: float) -> int | None:
    """The least that ZeRO has to divide so that parameters, gradients and Adam's state fit; None if nothing does."""
    for shard in range(4):
        needed = sum(
            each * parameters / (replicas if shard >= stage else 1) for each, stage in ((12, 1), (2, 2), (2, 3))
        )
        if needed <= nbytes:
            return shard
    return None


def by_bytes(
    each: tuple[float, float, float], order: tuple[int, int, int] = (1, 2, 3), strict: bool = False
) -> Callable:
    """What an answer with other bytes of a parameter returns: the optimiser's, the gradient's, the parameter's own."""

    def found(parameters: float, replicas: int, nbytes: float) -> int | None:
        for shard in range(4):
            parts = zip(each, order, strict=True)
            needed = sum(n * parameters / (replicas if shard >= stage else 1) for n, stage in parts)
            if needed < nbytes or (needed == nbytes and not strict):
                return shard
        return None

    return found


#: Other counts that people make, with the mistake's name and what to do.
COUNTS = (
    ("no copy in float32", by_bytes((8, 2, 2)), "Adam's state is three float32 numbers: a copy, and two moments"),
    ("all in float32", by_bytes((8, 4, 4)), "parameters and gradients have 2 bytes here, and the optimiser has 12"),
    ("no gradients", by_bytes((12, 0, 2)), "gradients have 2 bytes each"),
    (
        "parameters first",
        by_bytes((12, 2, 2), (3, 2, 1)),
        "ZeRO divides the optimiser's state first: it is the largest",
    ),
    ("equal does not fit", by_bytes((12, 2, 2), strict=True), "what fills the memory just fits"),
)


def judge_shard(answer: Callable) -> str:
    """Each stage, one that fits exactly, one replica, and a network that never fits."""
    for parameters, replicas, nbytes in (
        (4e9, 8, 80e9),
        (1e9, 4, 16e9),
        (7e9, 8, 80e9),
        (16e9, 16, 80e9),
        (30e9, 16, 80e9),
        (6e9, 64, 80e9),
        (10e9, 64, 39e9),
        (24e9, 8, 80e9),
        (10e9, 1, 80e9),
        (90e9, 8, 80e9),
        (8e9, 2, 80e9),
    ):
        case = f"{parameters:.0e} parameters, {replicas} replica{'s' * (replicas > 1)} and {nbytes / 1e9:g} GB"
        found, wanted = answer(parameters, replicas, nbytes), smallest_shard(parameters, replicas, nbytes)
        if found == wanted and not isinstance(found, float | bool):
            continue
        if found is not None:
            try:
                as_integer("shard", found, 0, 3)
            except (TypeError, ValueError) as error:
                raise Mistake("no stage", f"with {case} it must return 0, 1, 2, 3 or None, was {found!r}") from error
        said = f"with {case} {'nothing fits' if wanted is None else f'{wanted} is right'}, was {found}"
        for name, other, advice in COUNTS:
            if found == other(parameters, replicas, nbytes):
                raise Mistake(name, f"{said}: {advice}")
        raise Mistake("wrong result", said)
    return "It fits, and with one stage less it does not."


# --------------------------------------------------------------------------------------------------------- checkpoints


def interval(writes: float, each: float, gpus: int) -> float:
    """Seconds between checkpoints: the root of twice the time of writing, times the time between failures."""
    return math.sqrt(2 * writes * each * 3600 / gpus)


#: Other formulas, with the mistake's name and what to do.
INTERVALS = (
    (
        "one GPU alone",
        lambda writes, each, gpus: math.sqrt(2 * writes * each * 3600),
        "any of the GPUs may fail, so failures come as many times as often as there are GPUs",
    ),
    (
        "hours for seconds",
        lambda writes, each, gpus: math.sqrt(2 * writes * each / gpus),
        "the time between failures is given in hours",
    ),
    (
        "no factor of 2",
        lambda writes, each, gpus: math.sqrt(writes * each * 3600 / gpus),
        "a failure loses half an interval, on average",
    ),
    (
        "no root",
        lambda writes, each, gpus: 2 * writes * each * 3600 / gpus,
        "a longer interval writes less often and loses more: the sum is least where both are equal",
    ),
    (
        "the time between failures",
        lambda writes, each, gpus: each * 3600 / gpus,
        "with one checkpoint between two failures half of all work is lost",
    ),
)


def judge_interval(answer: Callable) -> str:
    """A few machines, and many."""
    for writes, each, gpus in ((60.0, 50_000.0, 4096), (5.0, 50_000.0, 1), (300.0, 8_000.0, 16_384)):
        case = f"with {writes:g} s to write, {each:g} hours a GPU and {gpus} GPU{'s' * (gpus > 1)}"
        found, wanted = answer(writes, each, gpus), interval(writes, each, gpus)
        if found is None:
            raise Mistake("nothing returned", f"{case} it returned None")
        try:
            number = float(found)
        except (TypeError, ValueError) as error:
            raise Mistake("no number", f"{case} it must return seconds, was {found!r}") from error
        if math.isclose(number, wanted, rel_tol=1e-3):
            continue
        for name, other, advice in INTERVALS:
            if math.isclose(number, other(writes, each, gpus), rel_tol=1e-3):
                raise Mistake(name, f"{case} {wanted:.5g} s is right, was {number:.5g}: {advice}")
        raise Mistake("wrong result", f"{case} {wanted:.5g} s is right, was {number:.5g}")
    return "That is where both losses are equal."


EXERCISES = (
    Exercise(
        "scaling/broadcast",
        "Return the array of rank 0 on all ranks. Machine i has the ranks from i * per_node on. The array must be sent "
        "into every other machine exactly once. x is the array on rank 0, and None elsewhere.",
        "broadcast(group, x, per_node)",
        judge_broadcast,
        (
            "group.split(colour=...) makes smaller groups. Which two kinds do you need?",
            "The first rank of each machine gets the array first. All ranks of a group call split, also those that "
            "need no new group.",
            "A rank without an array passes None to broadcast, and is given one.",
        ),
        broadcast,
    ),
    Exercise(
        "scaling/smallest_shard",
        "Return the smallest ZeRO stage, 0 to 3, with which parameters, gradients and Adam's state fit into the memory "
        "of each of the replicas, in bytes. Return None if none does. Parameters and gradients are bfloat16; Adam has "
        "a float32 copy and two float32 moments of each parameter. Activations need nothing here.",
        "smallest_shard(parameters, replicas, nbytes)",
        judge_shard,
        (
            "How many bytes does one parameter need in all, if nothing is divided?",
            "Stage 1 divides the 12 bytes of the optimiser, stage 2 the 2 of the gradient as well, and stage 3 all 16.",
        ),
        smallest_shard,
    ),
    Exercise(
        "scaling/interval",
        "Return the seconds between two checkpoints that lose the least time. A checkpoint takes writes seconds, one "
        "GPU fails every each hours on average, and any failure stops all of them.",
        "interval(writes, each, gpus)",
        judge_interval,
        (
            "How many seconds lie between two failures of all GPUs together?",
            "Of an interval t, writes / t is spent on writing, and t / 2 is lost with each failure.",
            "The derivative of writes / t + t / (2 between) is 0 at one t.",
        ),
        interval,
    ),
)
