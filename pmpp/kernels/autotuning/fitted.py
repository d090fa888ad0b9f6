"""The kinds of plans that the plain product chooses from, and what has to be known to tune them.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

`products` tries all tiles, and few shapes. Here the kinds of `pmpp.kernels.matmul.tiles` are tried on many shapes, and
`pmpp.kernels.matmul.plans` uses the times for all others. A configuration leaves open into how many parts K is split:
the model of chapter 36 says that, for each shape. It also says what is too slow to be tried.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.autotuning import products
from pmpp.kernels.matmul import fitted, tiles
from pmpp.kernels.matmul.workloads import verify
from pmpp.lab.measure.tune import Estimate, Space, Subject
from pmpp.runtime import device
from pmpp.simt import Gpu

Configuration = tiles.Kind
SIDES = 8, 32, 64, 128


def run(configuration: Configuration, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """The product by the best plan of a kind."""
    p = fitted.arguments(a, b, out=out)
    (m, k), n = a.shape, b.shape[1]
    plan = tiles.plan_of_kind(configuration, m, n, k, device.limits()["multiprocessors"])
    if plan is None:
        raise ValueError(f"{m} x {k} times {k} x {n} has no plan of {configuration}")
    fitted.launch(p, plan)
    return p.result


def has_a_tile(c: Configuration) -> bool:
    """There is a tile with these numbers: nine of chapter 36, and thirteen more."""
    return c[:4] in tiles.TILE_OF


def predicted(c: Configuration, shape: tuple[int, ...], gpu: Gpu) -> Estimate:
    """The time by the model of chapter 36. Raises ValueError if the shape has no plan of the kind."""
    m, k, n = shape
    plan = tiles.plan_of_kind(c, m, n, k, gpu.sms)
    if plan is None:
        raise ValueError("K has too few steps for a split" if c.split else "too many tiles for a grid")
    seconds = fitted.cycles(plan, m, n, k, gpu.sms) / gpu.clock
    return Estimate(seconds, "cycles", {"cycles": seconds})


# ------------------------------------------------------------------------------------------------------ what is tuned
# A shape is (M, K, N), as it is multiplied.

SEED, SHAPES = 37, 32  # of drawn shapes, each with whole vectors and with single elements
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
    space=Space(
        Configuration,
        {"m": SIDES, "n": SIDES, "thread_n": (4, 8, 16), "groups": (1, 2, 4), "split": (0, 1)},
        [has_a_tile],
    ),
    make=products.make,
    output=products.output,
    run=run,
    verify=verify,
    shapes=((35, 321, 70), (36, 320, 132)),
    probes=lambda c, shape: [],
    registers=lambda c: tiles.TILE_OF[c[:4]].registers,
    cost=products.SUBJECT.cost,
    shape_class=products.shape_class,
    measured=drawn(),
    kernels=("pmpp/kernels/matmul/fitted.py", "pmpp/kernels/matmul/tiles.py"),
    compiled=lambda c: c[:4],
    predicted=predicted,
    options={"factor": 2.0, "most": 12, "seconds": 0.02},
)
