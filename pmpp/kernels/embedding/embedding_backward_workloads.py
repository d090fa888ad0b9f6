"""What is measured of ``embedding_backward``: tokens with Zipf's frequencies, all different ones, and all the same."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.embedding import embedding_backward as room
from pmpp.kernels.embedding.workloads import zipf
from pmpp.lab.measure.arrays import normal, with_options, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

DESIGN = (50_257, 768, 8192)
OTHERS = [(50_257, 768, 2**17), (128_256, 4096, 8192), (50_257, 767, 8192), (300, 16, 64)]


def different(rows: int, tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(rows)[:tokens]


def all_one(rows: int, tokens: int, seed: int) -> np.ndarray:
    return np.full(tokens, seed % rows)


def verifier(rows: int) -> Callable[..., tuple[float, float]]:
    def verify(result: typing.Any, dy: typing.Any, indices: typing.Any) -> tuple[float, float]:
        """Every element against float64: half an eps for each addition of a row."""
        if result.shape != (rows, dy.shape[1]):
            return float("inf"), 0.0
        expected, sizes = (xp().zeros(result.shape) for _ in range(2))
        xp().add.at(expected, indices, dy.astype(np.float64))
        xp().add.at(sizes, indices, abs(dy).astype(np.float64))
        count = xp().bincount(indices, minlength=rows)[:, None]
        return worst(abs(result - expected), 2.0**-24 * (count + 8) * sizes)

    return verify


def _torch(rows: int) -> Callable:
    def back(torch: typing.Any, dy: typing.Any, indices: typing.Any, out: typing.Any) -> typing.Any:
        return torch.ops.aten.embedding_dense_backward(dy, indices, rows, -1, False)

    return back


def on_cpu(rows: int) -> Callable:
    def added(dy: np.ndarray, indices: np.ndarray) -> np.ndarray:
        out = np.zeros((rows, dy.shape[1]), np.float32)
        np.add.at(out, indices, dy)
        return out

    return added


def _workload(
    rows: int, width: int, tokens: int, rungs: tuple, family: str, draw: Callable = zipf, **more: typing.Any
) -> Workload:
    return Workload(
        family=family,
        name=f"{tokens} of {rows} x {width}",
        sizes={"n": tokens, "rows": rows, "width": width},
        cost=room.cost(tokens, width, rows),
        make=lambda seed: (normal((tokens, width), seed), device.to_device(draw(rows, tokens, seed))),
        output=lambda: device.empty((rows, width), np.float32),
        rungs=tuple(with_options(rung, rows) for rung in rungs),
        libraries={"torch.embedding_dense_backward": _torch(rows)},
        verify=verifier(rows),
        host={"numpy": on_cpu(rows)},
        **more,
    )


ENDS = room.LADDER[0], room.LADDER[-1]
WORKLOADS = [
    _workload(*DESIGN, room.LADDER, "zipf", design=True, quick=True),
    *(_workload(*sizes, ENDS, "other sizes") for sizes in OTHERS),
    _workload(*DESIGN, ENDS, "all different", different),
    _workload(*DESIGN, ENDS, "all the same", all_one),
]
