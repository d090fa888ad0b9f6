"""What is measured of ``attention_gradients``: the shapes of the forward pass, in float16 and bfloat16.

What the forward pass leaves, its result and the logarithms, is there when the clock starts, for the libraries as well.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.attention import attention_gradients as gradients
from pmpp.kernels.attention import on_tensor_cores
from pmpp.kernels.attention.on_tensor_cores_workloads import U
from pmpp.kernels.attention.on_tensor_cores_workloads import make as make_forward
from pmpp.kernels.attention.workloads import LARGE, Shape, square, weights_of
from pmpp.lab.measure.arrays import normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.dtypes import dtype_of, known

OTHER = [Shape(8, 16, 2, 2048, 2048, 64, True), square(64, 6, 256, 64, causal=True), square(16, 8, 1000, 80)]
KEPT = 16  # graphs of PyTorch


def make(shape: Shape, seed: int, dtype: str) -> tuple:
    """The gradient, queries, keys, values, the result, and the logarithms of the sums."""
    q, k, v = make_forward(shape, seed, dtype)
    gradient = normal(q.shape, seed + 300, dtype_of(dtype))
    return gradient, q, k, v, *on_tensor_cores.forward(q, k, v, shape.causal, shape.window)


def contender(rung: typing.Any, shape: Shape) -> typing.Callable:
    def call(gradient: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, result: typing.Any, logs: typing.Any):
        return rung(gradient, q, k, v, shape.causal, shape.window, result=result, logs=logs)

    call.__name__ = rung.name
    return call


def verify(results: typing.Any, *given: typing.Any, shape: Shape, dtype: str) -> tuple[float, float]:
    """Against float64, every element of the three, a head at a time.

    Terms are rounded to 16 bits before they are added: with random signs that grows like the root of the sum of their
    squares, of which six are allowed. A row's sum is off by one more rounding, which all its terms share.
    """
    gradient, q, k, v = (view(x).astype(np.float64) for x in given[:4])
    results, found, shared, scale = [view(x) for x in results], [], shape.heads // shape.groups, shape.size**-0.5
    if [x.shape for x in results] != [x.shape for x in (q, k, v)]:
        return float("inf"), 0.0
    for b, group in np.ndindex(shape.batch, shape.groups):
        sums = [[0.0, 0.0], [0.0, 0.0]]  # by k and by v: the exact one, and the squares of its terms
        for h in range(group * shared, (group + 1) * shared):
            weights, _ = weights_of(q[b, h], k[b, group], shape)
            slopes = gradient[b, h] @ v[b, group].T
            row = (weights * slopes).sum(axis=1, keepdims=True)
            exact, size = weights * (slopes - row), weights * (abs(slopes) + 2 * abs(row) + 1)
            allowed = 6 * U[dtype] * scale * xp().sqrt(size**2 @ k[b, group] ** 2)
            by_q = scale * exact @ k[b, group]
            found.append(worst(abs(results[0][b, h] - by_q), allowed + 2 * U[dtype] * abs(by_q) + 2.0**-24))
            parts = (scale * exact.T @ q[b, h], scale**2 * (size**2).T @ q[b, h] ** 2)
            others = (weights.T @ gradient[b, h], (weights**2).T @ gradient[b, h] ** 2)
            for kept, each in zip(sums, (parts, others), strict=True):
                kept[0], kept[1] = kept[0] + each[0], kept[1] + each[1]
        for result, (exact, squares) in zip(results[1:], sums, strict=True):
            allowed = 6 * U[dtype] * xp().sqrt(squares) + 2 * U[dtype] * abs(exact) + 2.0**-24
            found.append(worst(abs(result[b, group] - exact), allowed))
    return worst_of(found)


def torch_gradients(shape: Shape, backend: str) -> typing.Callable:
    """PyTorch's gradients by one of its kernels. The forward pass of each set of inputs is done once, and kept."""
    graphs: dict[int, tuple] = {}

    def call(torch: typing.Any, gradient: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, *_: typing.Any):
        at = q.data_ptr()
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            if at not in graphs or any(
                one.data_ptr() != x.data_ptr() for one, x in zip(graphs[at][0], (q, k, v), strict=True)
            ):
                if len(graphs) == KEPT:
                    graphs.clear()
                own = tuple(x.detach().requires_grad_() for x in (q, k, v))
                graphs[at] = (
                    own,
                    torch.nn.functional.scaled_dot_product_attention(
                        *own, is_causal=shape.causal, enable_gqa=shape.groups != shape.heads
                    ),
                )
            own, result = graphs[at]
            return torch.autograd.grad(result, own, gradient, retain_graph=True)

    return call


def work(family: str, shape: Shape, rungs: tuple, dtype: str = "float16", **more: typing.Any) -> Workload:
    """The workload of a shape, with as many keys as queries."""
    batch, heads, groups, queries, keys, size, causal, window = shape
    pairs = on_tensor_cores.ladder.seen_pairs(queries, keys, causal, window)
    names = {"torch.flash": "FLASH_ATTENTION", "torch.cudnn": "CUDNN_ATTENTION"}
    return Workload(
        family=family,
        name=f"b{batch} h{heads}{f'/{groups}' if groups != heads else ''} s{keys} d{size}{' causal' * causal}",
        sizes={"s": keys, "d": size},
        cost=gradients.cost(*shape[:6], pairs),
        make=functools.partial(make_of, shape, dtype),
        rungs=tuple(contender(rung, shape) for rung in rungs),
        libraries={name: torch_gradients(shape, backend) for name, backend in names.items()},
        verify=functools.partial(verify, shape=shape, dtype=dtype),
        cache="cold" if math.prod(shape[:6]) > 2**34 else "warm",
        **more,
    )


def make_of(shape: Shape, dtype: str, seed: int) -> tuple:
    return make(shape, seed, dtype)


LAST = gradients.LADDER[-1:]
WORKLOADS = [
    *(work(name, shape, gradients.LADDER, design=True, quick=shape.size == 64) for name, shape in LARGE.items()),
    *(work("causal", shape._replace(causal=True), gradients.LADDER) for shape in LARGE.values()),
    *(
        work(f"{name}, {dtype}", shape, LAST, str(dtype))
        for dtype in known(gradients.DTYPES[1:])
        for name, shape in LARGE.items()
    ),
    *(work("other shapes", shape, LAST) for shape in OTHER),
]
