"""Which plan a product gets: by what was timed on this GPU, and by the model alone where nothing was.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

`pmpp.kernels.matmul.fitted` chooses a tile and a split of K by a model, `fitted.cycles`. The model knows how many tiles
a multiprocessor gets, which changes with every shape. It knows less about how fast each tile really is. Times know
that, but of some shapes only. So both are put together. Where a kind of plans was timed, its time divided by the
model's is its *correction*, which changes slowly with the shape. A product gets the plan whose modelled time,
multiplied by the corrections measured near its shape, is the least.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence

from pmpp.kernels.matmul import fitted
from pmpp.kernels.matmul.fitted import Plan
from pmpp.kernels.matmul.tiles import KINDS, Kind, kind_of, plan_of_kind
from pmpp.runtime import device, tuned
from pmpp.runtime.rung import rung

RECORD = "tuned_fitted.json"  # which `pmpp.kernels.autotuning.fitted` is tuned into
NEAR = 8  # measured shapes that a product asks
WORTH = 0.01  # less than this a record may gain by chance: single times are known to about 1 %
REACH = 3.0  # how far they may be: in doublings of M, N and K, as the root of the sum of the squares


class Measured(typing.NamedTuple):
    """A shape that was timed: where it lies, by the logarithms of its extents, and the logarithm of each correction.

    Corrections are relative to their mean. So what slows all kinds down at a shape, such as memory, speaks for none.
    """

    place: tuple[float, float, float]
    corrections: Mapping[Kind, float]


def place_of(m: int, n: int, k: int) -> tuple[float, float, float]:
    """Where a shape lies: the logarithms of its extents, to base 2."""
    return math.log2(max(m, 1)), math.log2(max(n, 1)), math.log2(max(k, 1))


def measured(times: Mapping[str, tuned.Times], whole: bool, multiprocessors: int) -> list[Measured]:
    """The corrections of all shapes that were timed with rows of whole vectors, or without.

    Raises ValueError for a configuration that is no kind, or that the shape has no plan of.
    """
    found = []
    for said, (shape, seconds) in times.items():
        m, k, n = shape
        if (k % 4 == n % 4 == 0) != whole:
            continue
        ratios = {}
        for numbers, time in seconds.items():
            kind = Kind(*numbers)
            plan = plan_of_kind(kind, m, n, k, multiprocessors) if kind in KINDS else None
            if plan is None:
                raise ValueError(f"the record of {said} has a time of {kind}, of which there is no plan")
            ratios[kind] = math.log(time / fitted.cycles(plan, m, n, k, multiprocessors))
        mean = sum(ratios.values()) / len(ratios)
        found.append(Measured(place_of(m, n, k), {kind: ratio - mean for kind, ratio in ratios.items()}))
    return found


def corrections_near(m: int, n: int, k: int, shapes: Sequence[Measured]) -> dict[Kind, float]:
    """The logarithm of each kind's correction at a shape: the mean of those near it, of which the nearest weigh most.

    Nothing, if no shape lies within `REACH`. A kind that was timed at none of them has no correction: there the model
    expected it to be slow.
    """
    place = place_of(m, n, k)
    near = sorted(((math.dist(place, one.place), one) for one in shapes), key=lambda pair: pair[0])[:NEAR]
    sums: dict[Kind, tuple[float, float]] = {}
    for distance, one in near:
        if distance <= REACH:
            weight = 1 / (1 + distance)
            for kind, correction in one.corrections.items():
                total, weights = sums.get(kind, (0.0, 0.0))
                sums[kind] = total + weight * correction, weights + weight
    return {kind: total / weights for kind, (total, weights) in sums.items()}


def plan_from(m: int, n: int, k: int, shapes: Sequence[Measured], multiprocessors: int) -> Plan:
    """The plan that should take least time, by the model and the corrections; by the model alone where there are none.

    >>> guess = plan_from(704, 704, 704, [], multiprocessors=132)
    >>> guess == fitted.plan_for(704, 704, 704, 132)
    True
    >>> fine, coarse = Kind(32, 64, 8, 4, 0), Kind(64, 64, 8, 2, 0)
    >>> near = Measured(place_of(512, 512, 512), {coarse: 0.5, fine: -0.5})  # e times as fast
    >>> kind_of(plan_from(704, 704, 704, [near], 132)) == fine
    True
    """
    expected = []
    for kind, correction in corrections_near(m, n, k, shapes).items():
        if plan := plan_of_kind(kind, m, n, k, multiprocessors):
            expected.append((math.log(fitted.cycles(plan, m, n, k, multiprocessors)) + correction, plan))
    return min(expected)[1] if expected else fitted.plan_for(m, n, k, multiprocessors)


@device.cached(1)
def here() -> tuple[Mapping[bool, Sequence[Measured]], str]:
    """What was measured on the current device, with and without whole vectors; and in words, where it is from.

    A record that names a plan that does not exist is not used, nor one that does not help.
    """
    times, why = tuned.times(RECORD, "float32"), tuned.why(RECORD)
    if times is None:
        return {True: (), False: ()}, why
    try:
        multiprocessors = device.limits()["multiprocessors"]
        found = {whole: measured(times, whole, multiprocessors) for whole in (True, False)}
        if helps(times, multiprocessors):
            return found, why
        raise ValueError("for shapes that are left out it chooses no better than the model alone")
    except (TypeError, ValueError) as error:
        return {True: (), False: ()}, f"{RECORD} is not used: {error}"


@device.cached(4096)
def plan(m: int, n: int, k: int, whole: bool) -> Plan:
    """The plan for a product on the current device. ``whole``: rows of both operands can be read 16 bytes at a time."""
    return plan_from(m, n, k, here()[0][whole], device.limits()["multiprocessors"])


@rung(fitted.product_kernel, fitted.sum_kernel, arguments=fitted.arguments)
def product(p):
    """A product of any shape, by the plan that was the fastest on this GPU: `split_k` with a better choice.

    Source: Ansel et al., "OpenTuner: an extensible framework for program autotuning", PACT 2014.
    """
    (m, k), n = p.a.shape, p.b.shape[1]
    fitted.launch(p, plan(m, n, k, (k if p.a_c else m) % 4 == (n if p.b_c else k) % 4 == 0))


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

    A shape is missing if what is guessed or chosen for it was not timed.
    """
    found = []
    for whole in (True, False):
        every = measured(times, whole, multiprocessors)
        for shape, seconds in times.values():
            m, k, n = shape
            others = [one for one in every if one.place != place_of(m, n, k)]
            if len(others) == len(every):
                continue  # it is of the other kind of rows
            both = [plan_from(m, n, k, known, multiprocessors) for known in ((), others)]
            guess, chosen = (seconds.get(tuple(kind_of(one))) for one in both)
            if guess and chosen:
                found.append(Judged(shape, whole, guess, chosen, min(seconds.values())))
    return found


def ratio(shapes: Sequence[Judged], one: str, other: str) -> float:
    """The geometric mean of one time divided by another, as ``"guess"`` by ``"best"``."""
    return math.exp(sum(math.log(getattr(s, one) / getattr(s, other)) for s in shapes) / len(shapes))


def helps(times: Mapping[str, tuned.Times], multiprocessors: int) -> bool:
    """Whether shapes that are left out get faster by the other shapes' times, on average and by `WORTH` at least."""
    shapes = held_out(times, multiprocessors)
    return bool(shapes) and ratio(shapes, "chosen", "guess") < 1 - WORTH
