"""What is measured of ``attention``: heads of 64 and 128, masks, groups, and odd shapes."""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.attention import ladder as attention
from pmpp.lab.measure.arrays import normal, with_options, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty


class Shape(typing.NamedTuple):
    """The extents of a problem, and its mask."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    window: int | None = None


def square(batch: int, heads: int, length: int, size: int, **more: typing.Any) -> Shape:
    """As many keys as queries, and a head of keys for each head of queries."""
    return Shape(batch, heads, heads, length, length, size, **more)


LARGE = {"heads of 64": square(8, 16, 2048, 64), "heads of 128": square(4, 16, 4096, 128)}
SWEEP = [2**k for k in range(7, 14)]  # queries and keys of 16 heads of 64
ON_CPU = 1024  # up to so many NumPy does it, too
MASKED = [
    *(shape._replace(causal=True) for shape in LARGE.values()),
    square(8, 16, 4096, 64, causal=True, window=256),
    square(8, 16, 4096, 64, window=256),
]
OTHER = [
    Shape(8, 16, 2, 2048, 2048, 64, True),
    Shape(4, 32, 8, 2048, 2048, 128, True),
    Shape(8, 12, 12, 77, 1024, 64),
    Shape(8, 16, 16, 256, 4096, 64, True),
    square(64, 12, 197, 64),
    square(256, 8, 64, 32),
    square(16, 8, 1000, 80),
    square(16, 8, 1000, 96),
    square(16, 8, 999, 63),
    square(1, 4, 2, 8, causal=True),
]


def weights_of(q: typing.Any, k: typing.Any, shape: Shape) -> tuple[typing.Any, typing.Any]:
    """For a head, in float64: the weights of all keys, and for each query the largest sum of |q k| times the scale."""
    scale = 1 / math.sqrt(shape.size)
    q, k = q.astype(np.float64), k.astype(np.float64)
    scores, sizes = q @ k.T * scale, (abs(q) @ abs(k).T).max(axis=1, keepdims=True) * scale
    low, high = attention.limits(shape.queries, shape.keys, shape.causal, shape.window)
    away = xp().arange(shape.keys)[None] - xp().arange(shape.queries)[:, None]
    scores = xp().where((away >= low) & (away < high), scores, -np.inf)
    highest = scores.max(axis=1, keepdims=True)
    weights = xp().exp(scores - xp().where(highest == -np.inf, 0, highest))
    total = weights.sum(axis=1, keepdims=True)
    return weights / xp().where(total == 0, 1, total), sizes


def verify(result: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, shape: Shape) -> tuple[float, float]:
    """Against float64, every element, a head at a time.

    The tolerance has the terms of `ladder.tolerance`. Rounding errors of a sum of n terms add like a random walk: with
    four times the expected size allowed, n becomes 4 sqrt(n) (Higham and Mary, 2019).
    """
    if result.shape != q.shape:
        return float("inf"), 0.0
    u, found, shared = 2.0**-24, [], shape.heads // shape.groups
    for b, h in np.ndindex(shape.batch, shape.heads):
        weights, sizes = weights_of(q[b, h], k[b, h // shared], shape)
        values = v[b, h // shared].astype(np.float64)
        off = xp().expm1(2 * u * (4 * math.sqrt(shape.size) + 6) * sizes)
        off += 2 * u * (28 * math.sqrt(shape.keys) + 8)
        found.append(worst(abs(result[b, h] - weights @ values), off * (weights @ abs(values)) + 2.0**-126))
    return worst_of(found)


def on_cpu(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention without a mask by NumPy on the CPU, with as many heads of k and v as of q."""
    scores = q @ k.swapaxes(2, 3)
    scores *= np.float32(1 / math.sqrt(q.shape[3]))
    scores -= scores.max(axis=3, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=3, keepdims=True)
    return scores @ v


def torch_attention(shape: Shape) -> typing.Callable:
    """PyTorch's attention with that mask: the backend that it chooses itself."""

    def call(torch: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, out: typing.Any) -> typing.Any:
        mask = None
        if shape.window is not None or (shape.causal and shape.queries != shape.keys):
            mask = masks.get(shape)
            if mask is None:
                low, high = attention.limits(shape.queries, shape.keys, shape.causal, shape.window)
                away = (
                    torch.arange(shape.keys, device="cuda")[None] - torch.arange(shape.queries, device="cuda")[:, None]
                )
                masks.clear()
                mask = masks[shape] = (away >= low) & (away < high)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=shape.causal and mask is None, enable_gqa=shape.groups != shape.heads
        )

    masks: dict[Shape, typing.Any] = {}
    return call


def work(family: str, shape: Shape, rungs: tuple, **more: typing.Any) -> Workload:
    """The workload of a shape."""
    batch, heads, groups, queries, keys, size, causal, window = shape
    lengths = f"s{queries}" if queries == keys else f"q{queries} k{keys}"
    masked = " causal" * causal + (f" window {window}" if window else "")
    q, kv = (batch, heads, queries, size), (batch, groups, keys, size)
    return Workload(
        family=family,
        name=f"b{batch} h{heads}{f'/{groups}' if groups != heads else ''} {lengths} d{size}{masked}",
        sizes={"s": keys, "d": size},
        cost=attention.cost(*shape[:6], attention.seen_pairs(queries, keys, causal, window)),
        make=lambda seed: tuple(normal(one, seed + 100 * i) for i, one in enumerate((q, kv, kv))),
        output=lambda: empty(q, np.float32),
        rungs=tuple(with_options(rung, causal, window) for rung in rungs) if masked else rungs,
        libraries={"torch.sdpa": torch_attention(shape)},
        verify=lambda result, *arrays: verify(result, *arrays, shape),
        **more,
    )


LAST = attention.LADDER[-1:]
WORKLOADS = [
    *(work(name, shape, attention.LADDER, design=True, quick=True) for name, shape in LARGE.items()),
    *(
        work(
            "sweep",
            square(1, 16, length, 64),
            (*attention.LADDER[:1], *LAST),
            host={"numpy": on_cpu} if length <= ON_CPU else {},
            end_to_end=length <= ON_CPU,
            cache="warm",
        )
        for length in SWEEP
    ),
    *(work("masks", shape, attention.LADDER[-3:], quick=shape.size == 64) for shape in MASKED),
    *(work("other shapes", shape, LAST) for shape in OTHER),
]
