"""The tiles that the plain product chooses from, with and without a split of K, and what has to be known to tune them.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

`products` tries tiles that nobody has chosen, and few shapes. Here the nine tiles of chapter 36 are tried on many
shapes, and `pmpp.kernels.matmul.plans` uses the times for all others. A configuration leaves open into how many parts K
is split: the model of chapter 36 says that, for each shape. It also says what is too slow to be tried.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping, Sequence

import numpy as np

from pmpp.kernels.autotuning import products
from pmpp.kernels.matmul import fitted, plans
from pmpp.kernels.matmul.workloads import verify
from pmpp.lab.measure.tune import Estimate, Space, Subject
from pmpp.runtime import device, tuned
from pmpp.simt import Gpu

Configuration = plans.Kind
SIDES = 8, 32, 64, 128


def run(configuration: Configuration, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """The product by the best plan of a kind."""
    p = fitted.arguments(a, b, out=out)
    (m, k), n = a.shape, b.shape[1]
    plan = plans.plan_of_kind(configuration, m, n, k, device.limits()["multiprocessors"])
    if plan is None:
        raise ValueError(f"{m} x {k} times {k} x {n} has no plan of {configuration}")
    fitted.launch(p, plan)
    return p.result


def tile_of_chapter_36(c: Configuration) -> bool:
    """Chapter 36 has a tile with these sides."""
    return (c.m, c.n) in plans.TILE_OF


def predicted(c: Configuration, shape: tuple[int, ...], gpu: Gpu) -> Estimate:
    """The time by the model of chapter 36. Raises ValueError if the shape has no plan of the kind."""
    m, k, n = shape
    plan = plans.plan_of_kind(c, m, n, k, gpu.sms)
    if plan is None:
        raise ValueError("K has too few steps for a split" if c.split else "too many tiles for a grid")
    seconds = fitted.cycles(plan, m, n, k, gpu.sms) / gpu.clock
    return Estimate(seconds, "cycles", {"cycles": seconds})


# ------------------------------------------------------------------------------------------------------ what is tuned
# A shape is (M, K, N), as it is multiplied.

SEED, SHAPES = 37, 40  # of drawn shapes, each with whole vectors and with single elements
SMALLEST, LARGEST = 16, 8192  # extents
LEAST, MOST = 2**23, 2**34  # multiply-adds: below, a launch is all that is timed


@functools.cache
def drawn() -> tuple[tuple[int, int, int], ...]:
    """The shapes that are tuned: log-uniform extents, each shape of another class.

    Each is taken twice: with extents that are multiples of 8, and with odd ones.
    """
    rng, shapes = np.random.default_rng(SEED), {}
    while len(shapes) < 2 * SHAPES:
        shape = tuple(int(SMALLEST * (LARGEST / SMALLEST) ** rng.random()) // 8 * 8 for _ in range(3))
        both = {products.shape_class(one): one for one in (shape, tuple(extent + 1 for extent in shape))}
        if LEAST <= math.prod(shape) <= MOST and not both.keys() & shapes.keys():
            shapes |= both
    return tuple(shapes.values())


SUBJECT = Subject(
    name="fitted",
    source="pmpp/kernels/autotuning/fitted.py",
    dtype="float32",
    space=Space(Configuration, {"m": SIDES, "n": SIDES, "split": (0, 1)}, [tile_of_chapter_36]),
    make=products.make,
    output=products.output,
    run=run,
    verify=verify,
    shapes=((35, 321, 70), (36, 320, 132)),
    probes=lambda c, shape: [],
    registers=lambda c: plans.TILE_OF[c.m, c.n].registers,
    cost=products.SUBJECT.cost,
    shape_class=products.shape_class,
    measured=drawn(),
    kernels=("pmpp/kernels/matmul/fitted.py",),
    compiled=lambda c: (c.m, c.n),
    predicted=predicted,
    options={"factor": 2.0, "most": 10, "seconds": 0.02},
)


# ------------------------------------------------------------------------------------------------- what it is worth


class Judged(typing.NamedTuple):
    """Seconds of a shape by three kinds: what the model guesses, what other shapes' times choose, and the fastest."""

    shape: tuple[int, ...]
    whole: bool
    guess: float
    chosen: float
    best: float


def held_out(times: Mapping[str, tuned.Times], multiprocessors: int) -> list[Judged]:
    """Each shape of a record, judged by all the others: it is left out when its plan is chosen.

    A shape is missing if what is chosen for it was not timed.
    """
    found = []
    for whole in (True, False):
        every = plans.measured(times, whole, multiprocessors)
        for shape, seconds in times.values():
            m, k, n = shape
            others = [one for one in every if one.place != plans.place_of(m, n, k)]
            if len(others) == len(every):
                continue  # it is of the other kind of rows
            guess, chosen = (plans.plan_from(m, n, k, known, multiprocessors) for known in ((), others))
            of_both = [seconds.get((plan.tile.m, plan.tile.n, int(plan.parts > 1))) for plan in (guess, chosen)]
            if all(of_both):
                found.append(Judged(shape, whole, *of_both, min(seconds.values())))
    return found


def ratio(shapes: Sequence[Judged], one: str, other: str) -> float:
    """The geometric mean of one time divided by another, as ``"guess"`` by ``"best"``."""
    return math.exp(sum(math.log(getattr(s, one) / getattr(s, other)) for s in shapes) / len(shapes))
