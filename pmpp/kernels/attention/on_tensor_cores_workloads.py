"""What is measured of ``on_tensor_cores``: heads of 64 and 128 in float16 and bfloat16, masks, groups, odd shapes.

The roof of the figures is that of float32 multiply-adds, which tensor cores pass by far. What counts is the comparison
with the faster of PyTorch's two kernels for tensor cores, FlashAttention and cuDNN's.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.attention import on_tensor_cores as attention
from pmpp.kernels.attention.workloads import LARGE, ON_CPU, Shape, on_cpu, square, weights_of
from pmpp.lab.measure.arrays import normal, view, with_options, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty
from pmpp.runtime.dtypes import dtype_of, known

SWEEP = [2**k for k in range(7, 14)]  # queries and keys of 16 heads of 64
OTHER = [
    square(8, 16, 4096, 64, causal=True, window=256),
    Shape(8, 16, 2, 2048, 2048, 64, True),
    Shape(4, 32, 8, 2048, 2048, 128, True),
    Shape(8, 12, 12, 77, 1024, 64),
    square(16, 8, 1000, 80),
    square(16, 8, 999, 63),
]
U = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half an eps


def make(shape: Shape, seed: int, dtype: str) -> tuple:
    """Queries, keys and values: normally distributed, rounded to 16 bits."""
    q, kv = (
        (shape.batch, heads, length, shape.size)
        for heads, length in ((shape.heads, shape.queries), (shape.groups, shape.keys))
    )
    return tuple(normal(one, seed + 100 * i, dtype_of(dtype)) for i, one in enumerate((q, kv, kv)))


def verify(result: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, shape: Shape, dtype: str):
    """Against float64, every element, a head at a time.

    Weights and result are rounded to 16 bits: that counts in full. What float32 adds to it is less than an eighth.
    """
    if result.shape != q.shape:
        return float("inf"), 0.0
    found, shared = [], shape.heads // shape.groups
    for b, h in np.ndindex(shape.batch, shape.heads):
        weights, _ = weights_of(q[b, h], k[b, h // shared], shape)
        values = v[b, h // shared].astype(np.float64)
        exact = weights @ values
        allowed = U[dtype] * (1.125 * (weights @ abs(values)) + abs(exact)) + 2.0**-24
        found.append(worst(abs(result[b, h] - exact), allowed))
    return worst_of(found)


def torch_attention(shape: Shape, backend: str) -> typing.Callable:
    """PyTorch's attention by one of its kernels. None of them has a window."""

    def call(torch: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, out: typing.Any) -> typing.Any:
        chosen = getattr(torch.nn.attention.SDPBackend, backend)
        with torch.nn.attention.sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=shape.causal, enable_gqa=shape.groups != shape.heads
            )

    return call


def on_cpu_in_float32(*arrays: np.ndarray) -> np.ndarray:
    return on_cpu(*(x.astype(np.float32) for x in arrays)).astype(np.float16)


def work(family: str, shape: Shape, rungs: tuple, dtype: str = "float16", **more: typing.Any) -> Workload:
    """The workload of a shape."""
    batch, heads, groups, queries, keys, size, causal, window = shape
    lengths = f"s{queries}" if queries == keys else f"q{queries} k{keys}"
    masked = " causal" * causal + (f" window {window}" if window else "")
    same = window is None and (queries == keys or not causal)
    backends = {"torch.flash": "FLASH_ATTENTION", "torch.cudnn": "CUDNN_ATTENTION"} if same and size % 8 == 0 else {}
    pairs = attention.ladder.seen_pairs(queries, keys, causal, window)
    return Workload(
        family=family,
        name=f"b{batch} h{heads}{f'/{groups}' if groups != heads else ''} {lengths} d{size}{masked}",
        sizes={"s": keys, "d": size},
        cost=attention.cost(*shape[:6], pairs),
        make=functools.partial(make_of, shape, dtype),
        output=lambda: empty((batch, heads, queries, size), dtype_of(dtype)),
        rungs=tuple(with_options(rung, causal, window) for rung in rungs) if masked else rungs,
        libraries={name: torch_attention(shape, backend) for name, backend in backends.items()},
        verify=lambda result, *arrays: verify(view(result), *map(view, arrays), shape, dtype),
        **more,
    )


def make_of(shape: Shape, dtype: str, seed: int) -> tuple:
    return make(shape, seed, dtype)


LAST = attention.LADDER[-1:]
CAUSAL = {name: shape._replace(causal=True) for name, shape in LARGE.items()}
WORKLOADS = [
    *(work(name, shape, attention.LADDER, design=True, quick=True) for name, shape in LARGE.items()),
    *(work("causal", shape, attention.LADDER, quick=shape.size == 64) for shape in CAUSAL.values()),
    *(
        work(f"{name}, {dtype}", shape, LAST, str(dtype))
        for dtype in known(attention.DTYPES[1:])
        for name, shape in LARGE.items()
    ),
    *(
        work(
            "sweep",
            square(1, 16, length, 64),
            LAST,
            host={"numpy": on_cpu_in_float32} if length <= ON_CPU else {},
            end_to_end=length <= ON_CPU,
            cache="warm",
        )
        for length in SWEEP
    ),
    *(work("other shapes", shape, LAST) for shape in OTHER),
]
