"""What is measured of ``activation``: each function, a bias inside and apart, sizes that suit no vector."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.activation import ladder as activation
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding

DESIGN = (256, 64, 112, 112)
SMALL = (4, 64, 7, 7)
SWEEP = [2**k for k in range(12, 28, 3)]
ON_CPU = 2**24  # elements, at most: NumPy gets these, too
ODD = [1, 1000, 1_000_001]
BIASED = [(256, 2048, 7, 7), (64, 64, 111, 111), (65536, 1000), (1, 64, 56, 56)]

TORCH: dict[str, Callable] = {
    "relu": lambda torch, x: torch.relu(x),
    "leaky_relu": lambda torch, x: torch.nn.functional.leaky_relu(x),
    "sigmoid": lambda torch, x: torch.sigmoid(x),
    "tanh": lambda torch, x: torch.tanh(x),
    "gelu": lambda torch, x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda torch, x: torch.nn.functional.silu(x),
}


def erf(x: typing.Any) -> typing.Any:
    if xp() is np:
        return np.vectorize(math.erf, otypes=[np.float64])(x)
    from cupyx.scipy import special

    return special.erf(x)


def _exact(v: typing.Any, function: str) -> typing.Any:
    """The function of finite float64 numbers."""
    if function == "relu":
        return xp().maximum(v, 0)
    if function == "leaky_relu":
        return xp().where(v > 0, v, v * float(np.float32(0.01)))
    if function == "tanh":
        return xp().tanh(v)
    if function in ("sigmoid", "silu"):
        return (v if function == "silu" else 1) / (1 + xp().exp(-v))
    inner = erf(v / 2**0.5) if function == "gelu" else xp().tanh((2 / np.pi) ** 0.5 * (v + 0.044715 * v**3))
    return v * (1 + inner) / 2


def verifier(function: str, dtype: typing.Any = np.float32) -> Callable[..., tuple[float, float]]:
    """Every element against float64, with the tolerance of `pmpp.kernels.activation`."""
    short = np.dtype(dtype) != np.float32

    def verify(result: typing.Any, x: typing.Any, bias: typing.Any = None) -> tuple[float, float]:
        x = x.astype(np.float32, copy=False)
        if bias is not None:  # in float32, as the rungs add it
            x = x + bias.astype(np.float32, copy=False).reshape(1, -1, *[1] * (x.ndim - 2))
        if result.shape != x.shape:
            return float("inf"), 0.0
        result, x = result.reshape(-1), x.reshape(-1)
        found = []
        for part in chunks(x.size):
            v = x[part].astype(np.float64)
            expected = _exact(v, function)
            size = 0 * v if function == "relu" else abs(v if function.startswith("gelu") else expected)
            allowed = 8 * 2.0**-24 * size
            if short:  # PyTorch, too, leaves the sum with a bias in memory
                allowed = allowed + (0 if bias is None else 1.13 * rounding(v, dtype))
                allowed = allowed + rounding(abs(expected) + allowed, dtype)
            found.append(worst(abs(result[part] - expected), allowed))
        return worst_of(found)

    return verify


def relu_on_cpu(x: np.ndarray) -> np.ndarray:
    """ReLU by NumPy on the CPU."""
    return np.maximum(x, 0)


def _with(rung: typing.Any, function: str) -> Callable:
    def call(x: typing.Any, bias: typing.Any = None, *, out: typing.Any = None) -> typing.Any:
        return rung(x, function, bias, out=out)

    call.__name__ = rung.name
    return call


def _workload(
    shape: tuple,
    function: str,
    rungs: tuple,
    family: str,
    name: str = "",
    *,
    bias: bool = False,
    dtype: typing.Any = np.float32,
    **more: typing.Any,
) -> Workload:
    def make(seed: int) -> tuple:
        return normal(shape, seed, dtype), *((normal(shape[1], seed + 1000, dtype),) if bias else ())

    def library(torch: typing.Any, x: typing.Any, *rest: typing.Any) -> typing.Any:
        if bias:
            x = x + rest[0].view(1, -1, *[1] * (x.ndim - 2))
        return TORCH[function](torch, x)

    n = math.prod(shape)
    return Workload(
        family=family,
        name=name or "x".join(map(str, shape)),
        sizes={"n": n},
        cost=activation.cost(n, np.dtype(dtype).itemsize),
        make=make,
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(_with(rung, function) for rung in rungs),
        libraries={f"torch.{function}(x + bias)" if bias else f"torch.{function}": library},
        verify=verifier(function, dtype),
        design=shape == DESIGN,
        cache="cold" if n >= 2**24 or n in ODD or bias else "warm",
        quick=shape == DESIGN,
        **more,
    )


def _in_16_bits(shape: tuple, dtype: np.dtype) -> tuple[Workload, ...]:
    """ReLU, GELU, and both after a bias: by the best rung."""
    best = activation.LADDER[-1:]
    families = {"relu": ("relu", False), "gelu": ("gelu", False), "bias and gelu": ("gelu", True)}
    return tuple(
        _workload(shape, function, best, f"{family}, {dtype}", bias=bias, dtype=dtype)
        for family, (function, bias) in families.items()
    )


def _beside_numpy(n: int) -> Workload:
    """ReLU of n elements; of few enough also by NumPy, and from host to host."""
    more = {"host": {"numpy": relu_on_cpu}, "end_to_end": True} if n <= ON_CPU else {}
    return _workload((n,), "relu", activation.LADDER[:2], "relu", **more)


WORKLOADS = [
    _workload(DESIGN, "relu", activation.LADDER[:2], "relu"),
    _workload(DESIGN, "relu", activation.LADDER, "bias and relu", bias=True),
    *(_workload(DESIGN, name, activation.LADDER[:2], name) for name in activation.NAMES[1:]),
    _workload(DESIGN, "gelu", activation.LADDER, "bias and gelu", bias=True),
    *(one for dtype in known(activation.SHORT) for shape in (SMALL, DESIGN) for one in _in_16_bits(shape, dtype)),
    *(_beside_numpy(n) for n in SWEEP),
    *(_workload((n,), "relu", activation.LADDER[1:2], "odd sizes") for n in ODD),
    *(_workload(shape, "relu", activation.LADDER[-1:], "bias and relu, other shapes", bias=True) for shape in BIASED),
]
