"""Matrix products of any tile: the factory of chapter 36, and what has to be known to tune it.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

For large extents the work is bound by arithmetic. Chapter 36 has eight tiles that were chosen by hand, and a model that
chooses among them. Here all tiles are tried that the factory can make.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted, workloads
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.tune import Probe, Space, Subject, at_most, near_power
from pmpp.runtime import device

DEPTH = 8  # of K that a group multiplies in a step: the factory has that many written out
THREAD_M = 8  # rows of C of a thread


class Configuration(typing.NamedTuple):
    """A block computes ``m`` x ``n`` of C, a thread 8 x ``thread_n`` of it.

    ``groups``: the block has the threads for that so many times, and each group takes a part of K.
    """

    m: int
    n: int
    thread_n: int
    groups: int


def lanes_of(c: Configuration) -> int | None:
    """How many rows the grid of a warp's lanes has; None if no grid fits into the tile.

    Of those that fit, the one with the least circumference, since a warp then reads least from shared memory; of equal
    ones that with most rows.
    """
    fitting = [rows for rows in (16, 8, 4, 2) if c.m % (rows * THREAD_M) == 0 and c.n % (32 // rows * c.thread_n) == 0]
    return min(fitting, key=lambda rows: rows * THREAD_M + 32 // rows * c.thread_n, default=None)


def tile_of(c: Configuration) -> fitted.Tile:
    """The tile of chapter 36 with these numbers."""
    most = 255 if c.thread_n == 16 else 168
    return fitted.Tile(c.m, c.n, THREAD_M, c.thread_n, lanes_of(c), DEPTH * c.groups, c.groups, registers=most)


def run(configuration: Configuration, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """The product by one tile, without a split of K."""
    p = fitted.arguments(a, b, out=out)
    fitted.launch(p, fitted.plan_of(tile_of(configuration), a.shape[1], 1))
    return p.result


# ------------------------------------------------------------------------------------------------------- what can run


def threads(c: Configuration) -> int:
    """Threads of a block."""
    return c.m * c.n // (THREAD_M * c.thread_n) * c.groups


def warps_fit(c: Configuration) -> bool:
    """The lanes of a warp form a grid that fits into the tile."""
    return lanes_of(c) is not None


def whole_loads(c: Configuration) -> bool:
    """Each thread loads equally many vectors of A, and of B."""
    depth = DEPTH * c.groups
    return all(side * depth % (4 * threads(c)) == 0 for side in (c.m, c.n))


def whole_lines(c: Configuration) -> bool:
    """The threads write whole lines of C: where elements are written one by one, fewer threads than columns fail."""
    return threads(c) >= c.n


SPACE = Space(
    Configuration,
    {"m": (32, 64, 128), "n": (32, 64, 128), "thread_n": (8, 16), "groups": (1, 2, 4)},
    [
        warps_fit,
        whole_loads,
        whole_lines,
        at_most("threads", threads, 1024),
        at_most("shared_bytes", lambda c: 8 * DEPTH * c.groups * (c.m + 4 + c.n), 48 * 1024),
        at_most("registers", lambda c: threads(c) * tile_of(c).registers, 65536),
    ],
)


# ------------------------------------------------------------------------------------------------------ what is tried
# A shape is (M, K, N), as it is multiplied: M x K times K x N.


def make(shape: tuple[int, ...], seed: int) -> tuple:
    """Two matrices of normally distributed numbers."""
    m, k, n = shape
    return normal((m, k), seed), normal((k, n), seed + 1000)


def output(shape: tuple[int, ...]) -> typing.Any:
    """A place for the result."""
    return device.empty((shape[0], shape[2]), np.float32)


def probes(c: Configuration, shape: tuple[int, ...]) -> list[Probe]:
    """One tile with one step of K, and one with two: the difference is a step, the rest is done once."""
    m, k, n = shape
    depth, tiles = DEPTH * c.groups, blocks(m, c.m) * blocks(n, c.n)
    steps = max(1, blocks(k, depth))
    once = [Probe((c.m, depth, c.n), tiles * (2 - steps))] if steps != 2 else []
    return once + ([Probe((c.m, 2 * depth, c.n), tiles * (steps - 1))] if steps > 1 else [])


def registers(c: Configuration) -> int:
    """What the compiler may give to a thread."""
    return tile_of(c).registers


def shape_class(shape: tuple[int, ...]) -> str:
    """About how large each extent is, and whether rows can be read 16 bytes at a time."""
    m, k, n = shape
    sizes = " x ".join(str(near_power(extent)) for extent in (m, k, n))
    return f"{sizes}, {'whole vectors' if k % 4 == n % 4 == 0 else 'single elements'}"


SUBJECT = Subject(
    name="products",
    source="pmpp/kernels/autotuning/products.py",
    dtype="float32",
    space=SPACE,
    make=make,
    output=output,
    run=run,
    verify=workloads.verify,
    shapes=((35, 21, 70), (36, 36, 132)),
    probes=probes,
    registers=registers,
    cost=lambda shape: fitted.cost(shape[0], shape[2], shape[1]),
    shape_class=shape_class,
    measured=((4096, 4096, 4096), (1024, 1024, 1024), (256, 4096, 4096)),
)
