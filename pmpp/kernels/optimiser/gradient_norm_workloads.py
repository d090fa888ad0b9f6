"""What is measured of ``gradient_norm``: the gradients of the networks of ``adam``, and of one tensor."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.optimiser import gradient_norm as room
from pmpp.kernels.optimiser.adam_workloads import DESIGN, NETWORKS, ends, state
from pmpp.lab.measure.arrays import chunks, view, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device


def verifier(sizes: tuple[int, ...]) -> Callable:
    """All rows in float64; of a library, the norm of all gradients."""

    def verify(result: typing.Any, g: typing.Any) -> tuple[float, float]:
        rows = []
        for first, last in (*ends(sizes), (0, g.size)):
            squares = total = sizes_added = largest = 0.0
            for part in chunks(last - first):
                x = g[first + part.start : first + part.stop].astype(np.float64)
                squares, total = squares + float((x * x).sum()), total + float(x.sum())
                sizes_added, largest = sizes_added + float(abs(x).sum()), max(largest, float(abs(x).max()))
            n = last - first
            rows.append(((squares**0.5, total / n, largest, 0.0), (squares**0.5, sizes_added / n, 0.0, 0.0)))
        expected, scale = view(np.array([row for row, _ in rows])), view(np.array([row for _, row in rows]))
        if result.size == 1:
            expected, scale = expected[-1:, :1], scale[-1:, :1]
        error = abs(result.reshape(expected.shape).astype(np.float64) - expected)
        return worst(error, 66 * 2.0**-24 * scale + 1e-30)

    return verify


def norm_on_cpu(g: np.ndarray) -> np.ndarray:
    """The norm by NumPy on the CPU, whose sums are pairwise: those of a scalar product would be too far off."""
    return np.sqrt(np.square(g).sum()).reshape(1)


def _parts(g: typing.Any, sizes: tuple[int, ...]) -> list:
    return [g[first:last] for first, last in ends(sizes)]


def _call(rung: typing.Any, sizes: tuple[int, ...]) -> Callable:
    kept: dict[int, list] = {}

    def call(g: typing.Any, *, out: typing.Any = None) -> typing.Any:
        address = device.address(g)
        if address not in kept:
            kept.clear()
            kept[address] = _parts(g, sizes)
        return rung(kept[address], out=out)

    call.__name__ = rung.name
    return call


def total_norm(sizes: tuple[int, ...]) -> Callable:
    """PyTorch's clip_grad_norm_ finds the norm this way: of each tensor, and then of these."""

    def library(torch: typing.Any, g: typing.Any, out: typing.Any) -> typing.Any:
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(_parts(g, sizes)))).reshape(1)

    return library


def _workload(name: str, sizes: tuple[int, ...]) -> Workload:
    n = sum(sizes)
    return Workload(
        family="norm",
        name=name,
        sizes={"n": n, "tensors": len(sizes)},
        cost=room.cost(n),
        make=state(1, n),
        output=lambda: device.empty((len(sizes) + 1, 4), np.float32),
        rungs=tuple(_call(rung, sizes) for rung in room.LADDER),
        libraries={"torch.foreach_norm": total_norm(sizes)},
        verify=verifier(sizes),
        design=name == DESIGN,
        cache="cold" if n > 2**20 else "warm",
        host={"numpy": norm_on_cpu} if name == "ResNet-18" else {},
        quick=name == DESIGN,
    )


WORKLOADS = [_workload(name, sizes) for name, sizes in NETWORKS.items()]
