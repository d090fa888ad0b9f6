"""What is measured of ``cross_entropy_loss``: classifiers and vocabularies, with the gradient and without it."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.softmax import cross_entropy_loss as room
from pmpp.lab.measure.arrays import chunks, normal, with_options, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

DESIGN = [(8192, 50_257), (65536, 1000)]
OTHERS = [(256, 10), (128, 1000), (2**20, 64), (4096, 32_000), (2048, 128_256), (1024, 151_936)]
SMALL = (64, 257)


def make(m: int, n: int) -> Callable[[int], tuple]:
    def made(seed: int) -> tuple:
        labels = np.random.default_rng(seed).integers(0, n, m)
        return normal((m, n), seed), device.to_device(labels)

    return made


def _parts(logits: typing.Any) -> typing.Iterator[tuple]:
    """Rows as many as fit, with what they lie below their maximum and their shares, in float64."""
    for part in chunks(logits.shape[0], max(1, 2**25 // logits.shape[1])):
        below = logits[part].astype(np.float64)
        below -= below.max(axis=1, keepdims=True)
        shares = xp().exp(below)
        totals = shares.sum(axis=1, keepdims=True)
        shares /= totals
        yield part, below, shares, totals


def verifier(smoothing: float = 0.0) -> Callable[..., tuple[float, float]]:
    """Every element of the gradient of the mean against float64; the tolerance is that of the room, or less."""

    def verify(result: typing.Any, logits: typing.Any, labels: typing.Any) -> tuple[float, float]:
        if result.shape != logits.shape:
            return float("inf"), 0.0
        (m, n), found, u = logits.shape, [], np.finfo(np.float32).eps / 2
        for part, below, shares, _ in _parts(logits):
            growth = 14 + 24 * math.sqrt(n / 8 + 16) + 6 * math.log(n)
            growth = growth - 3.35 * (below + (shares * below).sum(axis=1, keepdims=True))
            allowed = u * (shares * growth + 4 * smoothing / n)
            rows = xp().arange(len(shares))
            shares -= smoothing / n
            shares[rows, labels[part]] -= 1 - smoothing
            allowed[rows, labels[part]] += 4 * u
            found.append(worst(abs(result[part] * float(m) - shares), allowed))
        return worst_of(found)

    return verify


def verify_loss(result: typing.Any, logits: typing.Any, labels: typing.Any) -> tuple[float, float]:
    """The mean against float64: the roundings of a row's logarithm, and of the sum of all rows."""
    m, n = logits.shape
    total = allowed = 0.0
    for part, below, _, totals in _parts(logits):
        chosen = -below[xp().arange(len(below)), labels[part]]
        losses = chosen + xp().log(totals[:, 0])
        total += float(losses.sum())
        growth = 3.35 * 16 + 24 * math.sqrt(n / 8 + 16) + 14 * math.log(n + 1) + m / 256 + 32
        allowed += float((losses + chosen + 1).sum()) * growth * 2.0**-24
    error = xp().abs(result.reshape(1).astype(np.float64) - total / m)
    return worst(error, xp().full(1, allowed / m)) if result.size == 1 else (float("inf"), 0.0)


def _torch(smoothing: float) -> Callable:
    def both(torch: typing.Any, logits: typing.Any, labels: typing.Any, out: typing.Any) -> typing.Any:
        logits = logits.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        return torch.autograd.grad(loss, logits)[0]

    return both


def on_cpu(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The gradient of the mean by NumPy on the CPU."""
    shares = logits - logits.max(axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(shares)), labels] -= 1
    shares /= np.float32(len(shares))
    return shares


def _both(m: int, n: int, rungs: tuple, family: str, smoothing: float = 0.0, **more: typing.Any) -> Workload:
    """Loss and gradient. What is verified is the gradient, of which each element needs the sum of its row."""
    return Workload(
        family=family,
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=room.cost(m, n),
        make=make(m, n),
        output=lambda: device.empty((m, n), np.float32),
        rungs=tuple(with_options(rung, -100, smoothing) for rung in rungs),
        libraries={"torch.cross_entropy and its gradient": _torch(smoothing)},
        verify=verifier(smoothing),
        cache="cold" if m * n >= 2**22 else "warm",
        **more,
    )


def _alone(m: int, n: int, **more: typing.Any) -> Workload:
    """The loss alone: logits are read, and next to nothing is written."""

    def loss(logits: typing.Any, labels: typing.Any) -> typing.Any:
        return room.split(logits, labels, gradient=False)

    loss.__name__ = "split"
    cost = room.cost(m, n)
    return Workload(
        family="loss alone",
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=Cost(flops=cost.flops, bytes=4 * m * n + 12 * m),
        make=make(m, n),
        rungs=(loss,),
        libraries={
            "torch.cross_entropy": lambda torch, logits, labels: torch.nn.functional.cross_entropy(logits, labels)
        },
        verify=verify_loss,
        cache="cold" if m * n >= 2**22 else "warm",
        **more,
    )


LAST = room.LADDER[-1:]
WORKLOADS = [
    *(_both(m, n, room.LADDER, f"{n} classes", design=True, quick=True) for m, n in DESIGN),
    *(_both(m, n, LAST, "other sizes") for m, n in OTHERS),
    _both(*SMALL, LAST, "other sizes", host={"numpy": on_cpu}, end_to_end=True),
    *(_both(m, n, LAST, "smoothed", smoothing=0.1) for m, n in (DESIGN[0], SMALL)),
    *(_alone(m, n) for m, n in (*DESIGN, SMALL)),
]
