"""What is measured of ``fused``: layers of a transformer, scores of its attention, small matrices, long sums."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.matmul import fused
from pmpp.lab.measure.arrays import normal, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host

# BERT base: 12 heads of 64, so 768 features, and 3072 between the two layers of a block. 64 sentences of 128 tokens.
SENTENCES, TOKENS, HEADS, WIDTH, INNER = 64, 128, 12, 64, 3072
FEATURES = HEADS * WIDTH
SIDE, DEPTHS = 4096, [2**k for k in range(4, 13)]  # M = N of a layer, and K: what fusing saves, in time
SIDES = (4, 8, 16, 24, 32, 64)  # of small matrices, 2^26 elements in all
SMALL_SUM = 2**26


def erf(x: typing.Any) -> typing.Any:
    """The error function in float64, of NumPy's or CuPy's arrays."""
    if xp() is np:
        return np.vectorize(math.erf, otypes=[np.float64])(x)
    from cupyx.scipy import special

    return special.erf(x)


def verifier(activation: str | None, alpha: float) -> Callable:
    """A check of every element against float64: ``verify(result, a, b, *others)``.

    A sum of K products has an error that grows like sqrt(K) (Higham and Mary 2019): with four times the expected size
    allowed, |error| <= 2 sqrt(K + 4) eps (sum of the absolute terms). The slope of a GELU is below 1.13, and it is off
    by a few eps of its argument by itself.
    """

    def verify(result: typing.Any, a: typing.Any, b: typing.Any, *others: typing.Any) -> tuple[float, float]:
        a, b = a.astype(np.float64), b.astype(np.float64)
        y, size = alpha * (a @ b), abs(alpha) * (abs(a) @ abs(b))
        for other in others:
            y, size = y + other, size + abs(other)
        if result.shape != y.shape:
            return float("inf"), 0.0
        if activation:
            y = y * (1 + erf(y / math.sqrt(2))) / 2 if activation == "gelu" else xp().maximum(y, 0)
        roundings = 2 * math.sqrt(a.shape[-1] + 4) + (4 if activation == "gelu" else 0)
        return worst(abs(result - y), 1.13 * roundings * float(np.finfo(np.float32).eps) * size)

    return verify


def contender(rung: typing.Any, names: tuple[str, ...], **options: typing.Any) -> Callable:
    """The rung under its name, called with arrays alone: a, b, and those that have ``names``."""

    def call(a: typing.Any, b: typing.Any, *others: typing.Any, out: typing.Any = None) -> typing.Any:
        return rung(a, b, out=out, **dict(zip(names, others, strict=True)), **options)

    call.__name__ = rung.name
    return call


def addmm_gelu(torch: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, out: typing.Any) -> typing.Any:
    """Two kernels: cuBLAS adds the bias."""
    return torch.nn.functional.gelu(torch.addmm(bias, x, weight, out=out))


LAYER = {"torch.addmm+gelu": addmm_gelu}
RESIDUAL = {
    "torch.addmm+add_": lambda torch, x, weight, bias, old, out: torch.addmm(bias, x, weight, out=out).add_(old)
}
SCORES = {"torch.baddbmm": lambda torch, q, k, mask, out: torch.baddbmm(mask, q, k, alpha=WIDTH**-0.5, out=out)}
BMM = {"torch.bmm": lambda torch, a, b, out: torch.bmm(a, b, out=out)}
RELU = {"torch.addmm+relu_": lambda torch, a, b, bias, out: torch.addmm(bias, a, b, out=out).relu_()}
ALL, FUSING = fused.LADDER, fused.LADDER[1:]


def _workload(
    family: str,
    name: str,
    shape: tuple[int, ...],
    libraries: dict,
    rungs: tuple = FUSING,
    names: tuple[str, ...] = (),
    activation: str | None = None,
    alpha: float = 1.0,
    **more: typing.Any,
) -> Workload:
    """Of shape (count, M, K, N), or without the count for two matrices.

    ``names``: of a bias, a residual like the result, or a ``mask``, which is a residual with a row for each product.
    """
    *leading, m, k, n = shape
    others = {"bias": (n,), "residual": (*leading, m, n), "mask": (*leading, 1, n)}
    shapes = (*leading, m, k), (*leading, k, n), *(others[one] for one in names)
    count = math.prod(leading)
    words = tuple("residual" if one == "mask" else one for one in names)
    return Workload(
        family=family,
        name=name,
        sizes={"k" if family == "depth" else "n": k if family == "depth" else n, "m": m, "count": count},
        cost=fused.cost(count, m, n, k, residual="residual" in names),
        make=lambda seed: tuple(normal(one, seed + 1000 * i) for i, one in enumerate(shapes)),
        output=lambda: empty((*leading, m, n), np.float32),
        rungs=[contender(rung, words, activation=activation, alpha=alpha) for rung in rungs],
        libraries=libraries,
        verify=verifier(activation, alpha),
        **more,
    )


def scores_on_cpu(q: np.ndarray, k: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scores by NumPy on the CPU."""
    y = np.matmul(q, k)
    y *= np.float32(WIDTH**-0.5)
    y += mask
    return y


def _scores(sentences: int, **more: typing.Any) -> Workload:
    count = sentences * HEADS
    shape = count, TOKENS, WIDTH, TOKENS
    name = f"{count} x ({TOKENS} x {WIDTH} x {TOKENS})"
    options = {"names": ("mask",), "alpha": WIDTH**-0.5, "host": {"numpy.matmul": scores_on_cpu}}
    return _workload("scores", name, shape, SCORES, ALL, host_args=lambda *x: tuple(map(to_host, x)), **options, **more)


def _small(side: int) -> Workload:
    count = SMALL_SUM // side**2
    return _workload("small", f"{count} x {side}^3", (count, side, side, side), BMM, (fused.split_k, fused.packed))


ROWS = SENTENCES * TOKENS
WORKLOADS = [
    _scores(SENTENCES, design=True, quick=True),
    _workload(
        "layer",
        f"{ROWS} x {FEATURES} x {INNER}, bias, gelu",
        (ROWS, FEATURES, INNER),
        LAYER,
        names=("bias",),
        activation="gelu",
    ),
    _workload(
        "layer",
        f"{ROWS} x {INNER} x {FEATURES}, bias, residual",
        (ROWS, INNER, FEATURES),
        RESIDUAL,
        names=("bias", "residual"),
    ),
    *(
        _workload("depth", f"{SIDE} x {k} x {SIDE}", (SIDE, k, SIDE), LAYER, names=("bias",), activation="gelu")
        for k in DEPTHS
    ),
    *map(_small, SIDES),
    _workload("small", "1024 x 16^3", (1024, 16, 16, 16), BMM, ALL, cache="warm", quick=True),
    _workload("small", "8 x 16^3", (8, 16, 16, 16), BMM, ALL, cache="warm"),
    _workload("few", "64 x (128 x 64 x 128)", (64, 128, 64, 128), BMM, ALL, cache="warm"),
    _workload("long sum", "512 x 32768 x 512", (512, 32768, 512), RELU, names=("bias",), activation="relu"),
]
