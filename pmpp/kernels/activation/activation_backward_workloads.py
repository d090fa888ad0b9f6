"""What is measured of ``activation_backward``: each function, with the bias's gradient, sizes that suit no vector."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.activation import activation_backward as room
from pmpp.kernels.activation.workloads import erf
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding

DESIGN = (256, 64, 112, 112)
SMALL = (4, 64, 7, 7)
SWEEP = [2**k for k in range(12, 28, 3)]
ON_CPU = 2**24  # elements, at most: NumPy gets these, too
ODD = [1, 1000, 1_000_001]
SUMMED = [(256, 2048, 7, 7), (64, 64, 111, 111), (65536, 1000), (256, 120), (1, 64, 56, 56)]


def _slope(v: typing.Any, function: str) -> typing.Any:
    """The slope at finite float64 numbers."""
    library = xp()
    if function in ("relu", "leaky_relu"):
        return library.where(v > 0, 1.0, 0.0 if function == "relu" else float(np.float32(0.01)))
    sigmoid = 1 / (1 + library.exp(-v))
    if function == "sigmoid":
        return sigmoid * (1 - sigmoid)
    if function == "tanh":
        return 1 - library.tanh(v) ** 2
    if function == "silu":
        return sigmoid + v * sigmoid * (1 - sigmoid)
    if function == "gelu":
        return (1 + erf(v / 2**0.5)) / 2 + v * library.exp(-v * v / 2) / math.sqrt(2 * math.pi)
    t = library.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))
    return (1 + t) / 2 + v / 2 * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * v * v)


def _allowed(dy: typing.Any, slope: typing.Any, function: str) -> typing.Any:
    """A part of the tolerance of `activation_backward`, which allows as much or more everywhere."""
    if function == "relu":
        return 0 * slope
    size = abs(dy)
    return 12 * 2.0**-24 * size * (1 if function.startswith("gelu") else abs(slope) + 2.0**-30)


def verifier(function: str, dtype: typing.Any = np.float32) -> Callable[..., tuple[float, float]]:
    """Every element of the gradient against float64."""

    def verify(result: typing.Any, dy: typing.Any, x: typing.Any) -> tuple[float, float]:
        if result.shape != x.shape:
            return float("inf"), 0.0
        result, dy, x = (a.reshape(-1) for a in (result, dy, x))
        dy = dy.astype(np.float32, copy=False)
        found = []
        for part in chunks(x.size):
            slope = _slope(x[part].astype(np.float64), function)
            allowed = _allowed(dy[part], slope, function)
            if function == "silu":  # two parts, which cancel near -1.28
                allowed = allowed + 12 * 2.0**-24 * abs(dy[part])
            expected = dy[part] * slope
            if np.dtype(dtype) != np.float32:
                allowed = allowed + rounding(abs(expected) + allowed, dtype)
            found.append(worst(abs(result[part] - expected), allowed))
        return worst_of(found)

    return verify


def sum_verifier(dtype: typing.Any = np.float32) -> Callable[..., tuple[float, float]]:
    """The bias's gradient of ReLU against float64: additions fewer than a channel's elements, as `bias_tolerance`."""

    def verify(result: typing.Any, dy: typing.Any, x: typing.Any) -> tuple[float, float]:
        dx = xp().where(x > 0, dy, 0)
        axes = (0, *range(2, dx.ndim))
        count = dx.size // dx.shape[1]
        expected, size = dx.sum(axis=axes, dtype=np.float64), abs(dx).sum(axis=axes, dtype=np.float64)
        if result.shape != expected.shape:
            return float("inf"), 0.0
        allowed = count * 2.0**-24 * size
        if np.dtype(dtype) != np.float32:
            allowed = allowed + rounding(abs(expected) + allowed, dtype)
        return worst(abs(result - expected), allowed)

    return verify


def relu_on_cpu(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of ReLU by NumPy on the CPU."""
    return np.where(x > 0, dy, np.float32(0))


def _torch(function: str) -> Callable:
    """PyTorch's own functions for the way back, on the same arrays."""

    def back(torch: typing.Any, dy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        aten = torch.ops.aten
        if function == "relu":
            return aten.threshold_backward(dy, x, 0)
        if function == "leaky_relu":
            return aten.leaky_relu_backward(dy, x, 0.01, False)
        if function in ("gelu", "gelu_tanh"):
            return aten.gelu_backward(dy, x, approximate="tanh" if function == "gelu_tanh" else "none")
        return aten.silu_backward(dy, x)

    return back


def _workload(
    shape: tuple, function: str, rungs: tuple, family: str, *, dtype: typing.Any = np.float32, **more: typing.Any
) -> Workload:
    n = math.prod(shape)
    name = f"torch.{'threshold' if function == 'relu' else function}_backward"
    # Sigmoid's and tanh's take the result of the forward pass, which would have to be computed within the measurement.
    libraries = {} if function in ("sigmoid", "tanh") else {name: _torch(function)}
    return Workload(
        family=family,
        name="x".join(map(str, shape)),
        sizes={"n": n},
        cost=room.cost(n, np.dtype(dtype).itemsize),
        make=lambda seed: (normal(shape, seed, dtype), normal(shape, seed + 1000, dtype)),
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(_with(rung, function) for rung in rungs),
        libraries=libraries,
        verify=verifier(function, dtype),
        design=shape == DESIGN,
        cache="cold" if n >= 2**24 or n in ODD else "warm",
        quick=shape == DESIGN,
        **more,
    )


def _with(rung: typing.Any, function: str) -> Callable:
    def call(dy: typing.Any, x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(dy, x, function, out=out)

    call.__name__ = rung.name
    return call


def _summed(shape: tuple, family: str, *, dtype: typing.Any = np.float32) -> Workload:
    """ReLU with the bias's gradient, which is what is verified."""

    def with_sum(rung: typing.Any) -> Callable:
        def call(dy: typing.Any, x: typing.Any) -> typing.Any:
            return rung(dy, x, "relu", return_bias_gradient=True)[1]

        call.__name__ = rung.name
        return call

    def library(torch: typing.Any, dy: typing.Any, x: typing.Any) -> typing.Any:
        return torch.ops.aten.threshold_backward(dy, x, 0).sum((0, *range(2, x.ndim)))

    n = math.prod(shape)
    return Workload(
        family=family,
        name="x".join(map(str, shape)),
        sizes={"n": n},
        cost=room.cost(n, np.dtype(dtype).itemsize),
        make=lambda seed: (normal(shape, seed, dtype), normal(shape, seed + 1000, dtype)),
        rungs=tuple(with_sum(rung) for rung in (room.LADDER if family == "relu and bias" else room.LADDER[-1:])),
        libraries={"torch.threshold_backward and sum": library},
        verify=sum_verifier(dtype),
        design=shape == DESIGN,
        quick=shape == DESIGN,
    )


def _beside_numpy(n: int) -> Workload:
    """ReLU of n elements; of few enough also by NumPy, and from host to host."""
    more = {"host": {"numpy": relu_on_cpu}, "end_to_end": True} if n <= ON_CPU else {}
    return _workload((n,), "relu", room.LADDER[:2], "relu", **more)


def _in_16_bits(shape: tuple, dtype: np.dtype) -> tuple[Workload, ...]:
    """ReLU, GELU, and ReLU with the bias's gradient: by the best rung."""
    best = room.LADDER[-1:]
    functions = [_workload(shape, name, best, f"{name}, {dtype}", dtype=dtype) for name in ("relu", "gelu")]
    return *functions, _summed(shape, f"relu and bias, {dtype}", dtype=dtype)


WORKLOADS = [
    *(_workload(DESIGN, function, room.LADDER[:2], function) for function in room.FUNCTIONS),
    _summed(DESIGN, "relu and bias"),
    *(one for dtype in known(room.SHORT) for shape in (SMALL, DESIGN) for one in _in_16_bits(shape, dtype)),
    *(_beside_numpy(n) for n in SWEEP),
    *(_workload((n,), "relu", room.LADDER[1:2], "odd sizes") for n in ODD),
    *(_summed(shape, "relu and bias, other shapes") for shape in SUMMED),
]
