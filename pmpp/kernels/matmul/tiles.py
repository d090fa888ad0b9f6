"""The plans that the plain product chooses from: more tiles than `pmpp.kernels.matmul.fitted`, by *kinds*.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

Chapter 36 has nine tiles that were chosen by hand. Its factory can make more of them. With more tiles to choose from, a
shape more often finds one that leaves few multiprocessors idle. Here are those that the model expects to be the best
for some shapes. A kind of plans is a tile, with or without a split of K; into how many parts K is split says the model.
"""

from __future__ import annotations

import typing

from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted
from pmpp.kernels.matmul.fitted import MOST_BLOCKS, SPLITS, Plan, Tile

# With 8 x 16 sums a thread reads less from shared memory for each of them, and few threads make a block; with half as
# many groups, or a block of half the size, there are other numbers of blocks to divide among the multiprocessors.
MORE = (
    Tile(128, 64, 8, 16, lanes_m=8, depth=8, groups=1, registers=255),
    Tile(128, 64, 8, 16, lanes_m=8, depth=16, groups=2, registers=255),
    Tile(64, 128, 8, 16, lanes_m=8, depth=16, groups=2, registers=255),
    Tile(64, 64, 8, 16, lanes_m=8, depth=16, groups=2, registers=255),
    Tile(64, 64, 8, 16, lanes_m=8, depth=32, groups=4, registers=255),
    Tile(128, 32, 8, 16, lanes_m=16, depth=16, groups=2, registers=255),
    Tile(128, 32, 8, 16, lanes_m=16, depth=32, groups=4, registers=255),
    Tile(32, 128, 8, 16, lanes_m=4, depth=32, groups=4, registers=255),
    Tile(128, 64, 8, 8, lanes_m=8, depth=8, groups=1, registers=168),
    Tile(64, 64, 8, 8, lanes_m=8, depth=8, groups=1, registers=168),
    Tile(64, 32, 8, 8, lanes_m=8, depth=16, groups=2, registers=168),
    Tile(64, 32, 8, 8, lanes_m=8, depth=32, groups=4, registers=168),
    Tile(32, 64, 8, 8, lanes_m=4, depth=16, groups=2, registers=168),
)
TILES = (*fitted.TILES, *MORE)


class Kind(typing.NamedTuple):
    """A tile, by its sides, the columns of a thread and its groups; and whether (1) or not (0) its blocks share K."""

    m: int
    n: int
    thread_n: int
    groups: int
    split: int


TILE_OF = {(tile.m, tile.n, tile.thread_n, tile.groups): tile for tile in TILES}
KINDS = tuple(Kind(*numbers, split) for numbers in TILE_OF for split in (0, 1))


def kind_of(plan: Plan) -> Kind:
    """The kind of a plan.

    >>> kind_of(fitted.plan_of(fitted.LARGE, 4096, 2))
    Kind(m=128, n=128, thread_n=16, groups=1, split=1)
    """
    return Kind(plan.tile.m, plan.tile.n, plan.tile.thread_n, plan.tile.groups, int(plan.parts > 1))


def plan_of_kind(kind: Kind, m: int, n: int, k: int, multiprocessors: int) -> Plan | None:
    """The plan of a kind that should take least time by the model; None if there is none that can be launched.

    >>> plan_of_kind(Kind(64, 64, 8, 2, 1), 64, 64, 4096, multiprocessors=132)[1:]
    (32, 128)
    >>> plan_of_kind(Kind(64, 64, 8, 2, 1), 64, 64, 16, multiprocessors=132) is None  # one step: nothing to share
    True
    """
    tile = TILE_OF[kind[:4]]
    plans = {fitted.plan_of(tile, k, parts) for parts in (SPLITS if kind.split else (1,))}
    tiles = blocks(m, tile.m) * blocks(n, tile.n)
    fitting = [one for one in plans if (one.parts > 1) == bool(kind.split) and tiles * one.parts <= MOST_BLOCKS]
    return min(fitting, key=lambda one: (fitted.cycles(one, m, n, k, multiprocessors), one), default=None)
