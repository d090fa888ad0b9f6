"""What is measured of ``embedding``: the vocabulary of a language model, tokens with Zipf's frequencies."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.embedding import ladder as room
from pmpp.lab.measure.arrays import normal, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

DESIGN = (50_257, 768, 8192)
OTHERS = [(50_257, 768, 2**17), (128_256, 4096, 8192), (2**20, 64, 2**20), (50_257, 767, 8192), (300, 16, 64)]


def zipf(rows: int, tokens: int, seed: int) -> np.ndarray:
    """Tokens as a text has them: the k-th of all rows has 1 / k of the frequency of the first. int64."""
    frequencies = 1 / np.arange(1.0, rows + 1)
    return np.random.default_rng(seed).choice(rows, tokens, p=frequencies / frequencies.sum())


def verify(result: typing.Any, table: typing.Any, indices: typing.Any) -> tuple[float, float]:
    """Every element is the very same."""
    if result.shape != (*indices.shape, table.shape[1]):
        return float("inf"), 0.0
    error = abs(result - table[indices])
    return worst(error, 0 * error)


def on_cpu(table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Rows looked up by NumPy on the CPU."""
    return table[indices]


def make(rows: int, width: int, tokens: int) -> Callable[[int], tuple]:
    return lambda seed: (normal((rows, width), seed), device.to_device(zipf(rows, tokens, seed)))


def _workload(rows: int, width: int, tokens: int, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=f"{tokens} of {rows} x {width}",
        sizes={"n": tokens, "rows": rows, "width": width},
        cost=room.cost(tokens, width),
        make=make(rows, width, tokens),
        output=lambda: device.empty((tokens, width), np.float32),
        rungs=rungs,
        libraries={
            "torch.embedding": lambda torch, table, indices, out: torch.nn.functional.embedding(indices, table),
            "cupy.take": lambda cupy, table, indices, out: cupy.take(table, indices, axis=0, out=out),
        },
        verify=verify,
        host={"numpy": on_cpu},
        **more,
    )


WORKLOADS = [
    _workload(*DESIGN, room.LADDER, "zipf", design=True, quick=True),
    *(_workload(*sizes, room.LADDER[-1:], "other sizes") for sizes in OTHERS),
]
