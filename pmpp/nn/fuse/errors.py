"""How far from the exact result a kernel may be: a bound that is computed beside the result, operation by operation.

Each value is computed in float64. Its bound is what the bounds of its operands can become in this operation, and the
rounding of the operation itself. u is half an epsilon: a sum, a product, a quotient or a root is rounded once.
Functions are good to 2 ulp, an ulp is at most 2 u, and a power is good to 4 ulp (CUDA C++ programming guide,
"Mathematical functions"). In a sum, at most n / 32 + 16 additions follow one another: a row belongs to a warp or more.
Joining a multiplication and an addition leaves a rounding out, and so stays below the bound.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping

import numpy as np

from pmpp.nn.fuse.tracing import Graph, Value, ancestors

ROUNDINGS = {"exp": 4, "log": 4, "tanh": 4, "power": 8, "divide": 2, "add": 1, "subtract": 1, "multiply": 1, "sqrt": 1}


def bounded(
    graph: Graph,
    given: Mapping[str, typing.Any],
    dtype: typing.Any = np.float32,
    xp: types.ModuleType = np,
    *,
    fast: bool = False,
) -> list[tuple]:
    """For each result of a graph: what it is in float64, and how far from it a right result may be.

    Args:
        graph: what was traced.
        given: the inputs by name, arrays of ``xp`` or numbers.
        dtype: in which kernels compute.
        xp: NumPy, or CuPy for arrays on a GPU.
        fast: allow for the hardware's exponential, which is good to 2 + 1.173 |x| ulp.

    A bound is infinite where rounding can make any number of the result: beyond the dtype's largest, a logarithm or a
    root of what may be negative, a quotient whose divisor may be 0.
    """
    info, found = np.finfo(dtype), {}
    u = float(info.eps) / 2
    order = ancestors(graph.results)
    last = {one: value for value in order for one in value.operands}
    for value in order:
        if value.op == "input":
            exact = xp.asarray(given[value.detail], dtype=np.float64)
            # A number is rounded to the dtype when it is passed. The elements of an array have it already.
            found[value] = exact, (xp.zeros_like(exact) if exact.ndim else xp.abs(exact) * u)
            continue
        if value.op == "constant":
            exact = xp.asarray(value.detail)
            found[value] = exact, xp.abs(exact) * u
            continue
        with np.errstate(all="ignore"):
            exact, bound = step(value, [found[one] for one in value.operands], u, xp)
            size = xp.abs(exact) + bound
            if fast and value.op == "exp":
                bound = bound + 2.35 * u * xp.abs(found[value.operands[0]][0]) * xp.abs(exact)
            bound = bound + ROUNDINGS.get(value.op, 0) * u * size + 4 * float(info.smallest_subnormal)
            lost = ~(size < float(info.max))  # NaN is not smaller, either
            found[value] = exact, xp.where(lost, np.inf, bound)
        for one in {*value.operands} - {*graph.results}:
            if last[one] is value:
                del found[one]  # a GPU may not hold them all
    return [found[value] for value in graph.results]


def step(value: Value, operands: list[tuple], u: float, xp: types.ModuleType) -> tuple:
    """An operation in float64, and what becomes of its operands' errors."""
    op = value.op
    if op == "where":
        (test, unsure), (a, ea), (b, eb) = operands
        either = xp.abs(a - b) + xp.maximum(ea, eb)
        return xp.where(test != 0, a, b), xp.where(unsure > 0, either, xp.where(test != 0, ea, eb))
    a, ea = operands[0]
    b, eb = operands[-1]
    if op in ("add", "subtract"):
        return (a + b if op == "add" else a - b), ea + eb
    if op == "multiply":
        return a * b, xp.abs(a) * eb + xp.abs(b) * ea + ea * eb
    if op == "divide":
        exact = a / b
        left = xp.abs(b) - eb
        return exact, xp.where(left > 0, (ea + xp.abs(exact) * eb) / left, np.inf)
    if op == "power":
        exact, low = a**b, a - ea
        corners = [abs(base**power - exact) for base in (low, a + ea) for power in (b - eb, b + eb)]
        worst = xp.maximum(xp.maximum(corners[0], corners[1]), xp.maximum(corners[2], corners[3]))
        return exact, xp.where(low > 0, worst, np.inf)
    if op in ("negative", "absolute"):
        return (-a if op == "negative" else xp.abs(a)), ea
    if op == "exp":
        exact = xp.exp(a)
        return exact, exact * xp.expm1(ea)
    if op == "log":
        return xp.log(a), xp.where(a > ea, -xp.log1p(-ea / a), np.inf)
    if op == "sqrt":
        exact = xp.sqrt(a)
        return exact, xp.where(
            (a > ea) | (ea == 0), ea / xp.maximum(exact, 1e-300), np.inf
        )  # its slope is 1 / (2 root)
    if op == "tanh":
        return xp.tanh(a), ea
    if op in ("maximum", "minimum"):
        return (xp.maximum(a, b) if op == "maximum" else xp.minimum(a, b)), xp.maximum(ea, eb)
    if op == "sum":
        total = xp.sum(xp.abs(a) + ea, axis=-1, keepdims=True)
        follow = a.shape[-1] / 32 + 16
        return xp.sum(a, axis=-1, keepdims=True), xp.sum(ea, axis=-1, keepdims=True) + follow * u * total
    if op == "max":
        return xp.max(a, axis=-1, keepdims=True), xp.max(ea, axis=-1, keepdims=True)
    exact = getattr(xp, op)(a, b) * 1.0  # a comparison: 1, or 0
    return exact, xp.where(xp.abs(a - b) > ea + eb, 0.0, xp.where((ea == 0) & (eb == 0), 0.0, 1.0))


def worst(
    results: typing.Sequence, exact_and_bound: typing.Sequence[tuple], xp: types.ModuleType = np
) -> tuple[float, float]:
    """(error, tolerance) of the element of all results that comes closest to its bound, or is furthest over it.

    Args:
        results: what was computed.
        exact_and_bound: from `bounded`. Where a bound is infinite, nothing is compared.
        xp: as there.
    """
    worst = (0.0, 0.0)
    for got, (exact, bound) in zip(results, exact_and_bound, strict=True):
        if got.shape != exact.shape:
            return float("nan"), 0.0
        known = xp.isfinite(bound) & xp.isfinite(exact)
        error = xp.where(known, xp.abs(xp.asarray(got, dtype=np.float64) - xp.where(known, exact, 0)), 0.0)
        over = error / xp.where(known, bound, 1.0)
        if not over.size:
            continue
        if bool(xp.isnan(error).any()):
            return float("nan"), 0.0
        at = int(xp.argmax(over))
        pair = float(error.ravel()[at]), float(xp.where(known, bound, 1.0).ravel()[at])
        if worst[1] == 0 or pair[0] / pair[1] > worst[0] / worst[1]:
            worst = pair
    return worst
