"""What is measured of ``elementwise``: arrays that lie alike, broadcasting, a transposed operand, one number."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.elementwise import casts
from pmpp.kernels.elementwise import ladder as elementwise
from pmpp.lab.measure.arrays import chunks, normal, uniform, with_options, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import as_input, empty
from pmpp.runtime.dtypes import is_bfloat16, known, rounding
from pmpp.runtime.rung import Cost
from pmpp.runtime.views import strided

DESIGN = 2**28
SWEEP = [2**k for k in range(10, 29, 3)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
MAPS = (256, 64, 112, 112)  # feature maps of a network
# A map of 7 x 7 has no whole vectors in a row of it; a part with one channel less does not lie in one piece.
BIASED = [(MAPS, (64, 1, 1)), ((256, 2048, 7, 7), (2048, 1, 1)), ((65536, 1000), (1000,)), ((65536, 1000), (65536, 1))]
COPIES = [(16384, 16384), (4096, 65536), (5001, 7003), (2**24, 3)]
LAST = elementwise.LADDER[-2:]


def verifier(operation: Callable, half_ulps: int, dtype: typing.Any = np.float32) -> Callable[..., tuple[float, float]]:
    """Every element against float64; ``half_ulps`` as in `elementwise.tolerance`."""

    def verify(result: typing.Any, *arrays: typing.Any) -> tuple[float, float]:
        shape = operation(*(np.broadcast_to(np.float32(1), x.shape) for x in arrays)).shape
        if result.shape != shape:
            return float("inf"), 0.0
        arrays = [xp().broadcast_to(x, shape) if x.ndim == len(shape) else x for x in map(xp().asarray, arrays)]
        found = []
        for part in chunks(shape[0], max(1, 2**24 // max(1, math.prod(shape[1:])))):
            pieces = [(x[part] if x.ndim == len(shape) else x).astype(np.float64) for x in arrays]
            expected = operation(*pieces)
            allowed = half_ulps * 2.0**-24 * abs(expected)
            if np.dtype(dtype) != np.float32:
                allowed = allowed + rounding(expected, dtype)
            found.append(worst(abs(result[part] - expected), allowed))
        return worst_of(found)

    return verify


def _binary(
    family: str,
    name: str,
    shapes: tuple,
    op: str,
    rungs: tuple = elementwise.LADDER,
    dtype: typing.Any = np.float32,
    **more,
) -> Workload:
    """``op`` of two arrays, which are broadcast."""
    dtype = np.dtype(dtype)
    shape = np.broadcast_shapes(*shapes)
    n = math.prod(shape)
    operation = {"add": np.add, "multiply": np.multiply}[op]
    read = sum(math.prod(each) for each in shapes)
    return Workload(
        family=family,
        name=name,
        sizes={"n": n},
        cost=Cost(flops=n, bytes=dtype.itemsize * (n + read)),
        make=lambda seed: tuple(normal(each, seed + 1000 * k, dtype) for k, each in enumerate(shapes)),
        output=lambda: empty(shape, dtype),
        rungs=tuple(with_options(rung, op) for rung in rungs),
        libraries={
            f"torch.{op}": lambda torch, x, y, out: getattr(torch, op)(x, y, out=out),
            **({} if is_bfloat16(dtype) else {f"cupy.{op}": lambda cupy, x, y, out: getattr(cupy, op)(x, y, out=out)}),
        },
        verify=verifier(operation, 1, dtype),
        **more,
    )


def _add(n: int) -> Workload:
    more = {"host": {"numpy.add": np.add}, "end_to_end": True} if n <= DESIGN else {}
    cache, quick = "cold" if n >= COLD else "warm", n in (2**10, DESIGN)
    name = f"2^{n.bit_length() - 1}"
    return _binary("add", name, ((n,), (n,)), "add", design=n == DESIGN, cache=cache, quick=quick, **more)


def _bias(shape: tuple, bias: tuple) -> Workload:
    name = f"{'x'.join(map(str, shape))} + {'x'.join(map(str, bias))}"
    rungs, design = (elementwise.LADDER, True) if shape == MAPS else (LAST, False)
    return _binary("bias", name, (shape, bias), "add", rungs, design=design, quick=design)


def _in_16_bits(dtype: np.dtype) -> list[Workload]:
    """Sums of arrays that lie alike, and a bias for each channel: by the best rung."""
    best = elementwise.LADDER[-1:]
    sums = [
        _binary(f"add, {dtype}", f"2^{n.bit_length() - 1}", ((n,), (n,)), "add", best, dtype, design=n == DESIGN)
        for n in (2**13, DESIGN)
    ]
    biases = [
        _binary(f"bias, {dtype}", "x".join(map(str, shape)), (shape, (64, 1, 1)), "add", best, dtype, design=design)
        for shape, design in (((2, 64, 8, 8), False), (MAPS, True))
    ]
    return sums + biases


def _cast(name: str, given: np.dtype, wanted: np.dtype, n: int) -> Workload:
    def cast(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return casts.cast(x, wanted, out=out)

    def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        parts = [(result[part].astype(np.float64), x[part].astype(np.float64)) for part in chunks(n)]
        down = wanted.itemsize < given.itemsize
        return worst_of(worst(abs(got - v), rounding(v, wanted) if down else 0 * v) for got, v in parts)

    return Workload(
        family=f"cast, {name}",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=Cost(flops=0, bytes=n * (given.itemsize + wanted.itemsize)),
        make=lambda seed: (normal(n, seed, given),),
        output=lambda: empty(n, wanted),
        rungs=(cast,),
        libraries={"torch.copy_": lambda torch, x, out: out.copy_(x)},
        verify=verify,
        design=n == DESIGN,
    )


def _casts() -> list[Workload]:
    wide, made = np.dtype(np.float32), []
    for short in known(elementwise.SHORT):
        for n in (2**13, DESIGN):
            made += [_cast(f"to {short}", wide, short, n), _cast(f"from {short}", short, wide, n)]
    return made


def transposed(rung: typing.Any) -> Callable:
    """The rung on a transposed view of its operand."""

    def call(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        rows, columns = x.shape
        array = as_input("x", x, dtypes="float32")
        return rung(strided(array, (columns, rows), (1, columns)), None, "copy", out=out)

    call.__name__ = rung.name
    return call


def _copy(m: int, n: int) -> Workload:
    design = (m, n) == COPIES[0]
    return Workload(
        family="transposed copy",
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=Cost(flops=0, bytes=8 * m * n),
        make=lambda seed: (normal((m, n), seed),),
        output=lambda: empty((n, m), np.float32),
        rungs=tuple(map(transposed, elementwise.LADDER if design else LAST)),
        libraries={
            "torch.copy_": lambda torch, x, out: out.copy_(x.T),
            "cupy.copyto": lambda cupy, x, out: cupy.copyto(out, x.T) or out,
        },
        verify=_verify_transposed,
        design=design,
        quick=design,
    )


def _verify_transposed(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    if result.shape != x.shape[::-1]:
        return float("inf"), 0.0
    return worst_of(worst(abs(result[part] - x[:, part].T), 0 * result[part]) for part in chunks(x.shape[1], 512))


def _with_a_number(op: str, number: float, n: int = DESIGN) -> Workload:
    operation = {"multiply": np.multiply, "power": np.power}[op]
    libraries = {
        "multiply": {
            "torch.mul": lambda torch, x, out: torch.mul(x, number, out=out),
            "cupy.multiply": lambda cupy, x, out: cupy.multiply(x, np.float32(number), out=out),
        },
        "power": {
            "torch.pow": lambda torch, x, out: torch.pow(x, number, out=out),
            "cupy.power": lambda cupy, x, out: cupy.power(x, np.float32(number), out=out),
        },
    }
    return Workload(
        family=f"{op} by a number",
        name=f"2^{n.bit_length() - 1}, {number:g}",
        sizes={"n": n},
        cost=elementwise.cost(n, operands=1),
        make=lambda seed: (_positive(n, seed),),
        output=lambda: empty(n, np.float32),
        rungs=tuple(with_options(rung, number, op) for rung in elementwise.LADDER),
        libraries=libraries[op],
        verify=verifier(lambda x: operation(x, float(np.float32(number))), 8 if op == "power" else 1),
        design=True,
    )


def _positive(n: int, seed: int) -> typing.Any:
    """From 0 to 1, so that every power is a number."""
    x = uniform(n, seed)
    return elementwise.tiled(x, None, "absolute", out=x)


WORKLOADS = [
    *map(_add, SWEEP),
    *(one for dtype in known(elementwise.SHORT) for one in _in_16_bits(dtype)),
    *_casts(),
    *(_bias(shape, bias) for shape, bias in BIASED),
    *(_copy(m, n) for m, n in COPIES),
    _binary("outer product", "16384 x 16384", ((16384, 1), (16384,)), "multiply", design=True),
    _with_a_number("multiply", 0.1),
    _with_a_number("power", 1.5),
]
