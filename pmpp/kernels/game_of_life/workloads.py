"""What is measured of ``game_of_life``: 64 steps of boards of many sizes, and boards of any shape.

No library has the game. PyTorch and CuPy add up eight shifted copies of the board, as NumPy does.
"""

from __future__ import annotations

import functools
import typing
from functools import partial

import numpy as np

from pmpp.kernels.game_of_life import ladder as room
from pmpp.lab.measure.arrays import view, with_options, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

SIDE, STEPS = 8192, 64  # bench reckons with the bytes of all steps at a time, and has no room for a larger one
SIDES = [64, 256, 1024, 4096]
OTHER = [(1, 2**24), (2**20, 33), (3333, 7777)]
COLD = 2**26  # bytes, from which on nothing stays in a cache from one launch to the next


@functools.lru_cache(maxsize=4)
def _board(shape: tuple[int, int], seed: int) -> np.ndarray:
    return room.drawn(shape, np.random.default_rng(seed))


def _play(module: typing.Any, board: typing.Any, steps: int, pad: typing.Callable) -> typing.Any:
    h, w = board.shape
    for _ in range(steps):
        wide = pad(board)
        near = sum(wide[i : i + h, j : j + w] for i in range(3) for j in range(3) if (i, j) != (1, 1))
        board = ((near == 3) | ((near == 2) & (board == 1))).astype("uint8")
    return board


def _numpy(board: np.ndarray, steps: int) -> np.ndarray:
    return _play(np, board, steps, lambda x: np.pad(x, 1))


def _torch(torch: typing.Any, board: typing.Any, steps: int) -> typing.Any:
    h, w = board.shape
    for _ in range(steps):
        wide = torch.nn.functional.pad(board, (1, 1, 1, 1))
        near = sum(wide[i : i + h, j : j + w] for i in range(3) for j in range(3) if (i, j) != (1, 1))
        board = ((near == 3) | ((near == 2) & (board == 1))).to(torch.uint8)
    return board


def _cupy(cupy: typing.Any, board: typing.Any, steps: int) -> typing.Any:
    return _play(cupy, board, steps, lambda x: cupy.pad(x, 1))


def _verify(steps: int) -> typing.Callable:
    """How many cells are wrong, by the library in which the board is; none may be."""

    def verify(result: typing.Any, board: typing.Any) -> tuple[float, float]:
        exact = _play(xp(), board, steps, lambda x: xp().pad(x, 1))
        return float((view(result) != exact).sum()), 0.0

    return verify


def _workload(family: str, shape: tuple[int, int], steps: int = STEPS, design: bool = False) -> Workload:
    cells = shape[0] * shape[1]
    square = shape[0] == shape[1]
    return Workload(
        family=family,
        name=f"{shape[0]}^2" if square else f"{shape[0]} x {shape[1]}",
        sizes={"cells": cells, "steps": steps},
        cost=room.cost(*shape, steps),
        make=lambda seed: (to_device(_board(shape, seed)),),
        rungs=[with_options(rung, steps) for rung in room.LADDER],
        libraries={"torch.pad": partial(_torch, steps=steps), "cupy.pad": partial(_cupy, steps=steps)},
        verify=_verify(steps),
        design=design,
        cache="cold" if 2 * cells >= COLD else "warm",
        host={"numpy.pad": partial(_numpy, steps=steps)} if cells <= 2**22 else {},
        quick=shape == (1024, 1024),
    )


WORKLOADS = [
    _workload("64 steps", (SIDE, SIDE), design=True),
    *(_workload("64 steps", (side, side)) for side in SIDES),
    *(_workload("other shapes", shape, steps=8) for shape in OTHER),
]
