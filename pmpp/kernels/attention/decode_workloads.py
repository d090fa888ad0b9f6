"""What is measured of ``decode``: many texts and one, heads that share keys, short and long caches, pages."""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.attention import decode
from pmpp.lab.measure.arrays import normal, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device


class Shape(typing.NamedTuple):
    """The extents of a problem. ``page``: keys of a page, or 0 for a cache without pages."""

    batch: int
    heads: int
    groups: int
    keys: int
    size: int
    page: int = 0


DESIGN = Shape(64, 32, 8, 8192, 128)
SWEEP = [2**k for k in range(8, 18)]  # keys of one text
OTHER = [
    Shape(64, 32, 8, 8192, 128, 16),
    Shape(16, 32, 32, 2048, 128),
    Shape(16, 32, 4, 4096, 64),
    Shape(1, 32, 32, 8192, 128),
    Shape(7, 12, 3, 1000, 80),
    Shape(2, 2, 1, 40, 8),
]


def make(shape: Shape, seed: int, dtype: str = "float32") -> tuple:
    """Queries, keys, values, lengths, and a table if there are pages: in an order that is drawn."""
    batch, heads, groups, keys, size, page = shape
    cache = (batch * math.ceil(keys / page), groups, page, size) if page else (batch, groups, keys, size)
    shapes = (batch, heads, size), cache, cache
    arrays = tuple(normal(one, seed + 100 * i, np.dtype(dtype)) for i, one in enumerate(shapes))
    lengths = device.to_device(np.full(batch, keys, np.int32))
    if not page:
        return *arrays, lengths
    table = np.random.default_rng(seed).permutation(cache[0]).astype(np.int32).reshape(batch, -1)
    return *arrays, lengths, device.to_device(table)


def verify(
    result: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, lengths: typing.Any, *pages: typing.Any
) -> tuple[float, float]:
    """Against float64, every element, a text at a time. The tolerance is as in `workloads.verify`."""
    if result.shape != q.shape:
        return float("inf"), 0.0
    u, found, shared = 2.0**-24, [], q.shape[1] // k.shape[1]
    for text in range(q.shape[0]):
        rows = pages[0][text] if pages else [text]
        keys, values = (
            xp().concatenate([x[int(row)] for row in rows], axis=1)[:, : int(lengths[text])].astype(np.float64)
            for x in (k, v)
        )
        own = q[text].astype(np.float64).reshape(k.shape[1], shared, -1) / math.sqrt(q.shape[2])
        scores, sizes = own @ keys.swapaxes(1, 2), (abs(own) @ abs(keys).swapaxes(1, 2)).max(axis=2, keepdims=True)
        weights = xp().exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        off = xp().expm1(2 * u * (4 * math.sqrt(q.shape[2]) + 6) * sizes)
        off += 2 * u * (28 * math.sqrt(keys.shape[1]) + 16)
        mine = result[text].reshape(weights.shape[0], shared, -1)
        exact = weights @ values
        rounded = (
            2.0**-11 * (abs(exact) + weights @ abs(values)) if result.dtype == np.float16 else 0
        )  # theirs: weights
        found.append(worst(abs(mine - exact), off * (weights @ abs(values)) + rounded + 2.0**-126))
    return worst_of(found)


def torch_attention(
    torch: typing.Any, q: typing.Any, k: typing.Any, v: typing.Any, lengths: typing.Any, out: typing.Any
) -> typing.Any:
    """PyTorch's attention on a whole cache: the backend that it chooses itself."""
    grouped = k.shape[1] != q.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=grouped)[:, :, 0]


def work(family: str, shape: Shape, rungs: tuple, dtype: str = "float32", **more: typing.Any) -> Workload:
    """The workload of a shape."""
    batch, heads, groups, keys, size, page = shape
    return Workload(
        family=family,
        name=f"b{batch} h{heads}/{groups} k{keys} d{size}" + (f", pages of {page}" if page else ""),
        sizes={"keys": keys, "batch": batch},
        cost=decode.cost(*shape[:5], np.dtype(dtype).itemsize),
        make=lambda seed: make(shape, seed, dtype),
        output=lambda: device.empty((batch, heads, size), dtype),
        rungs=rungs,
        libraries={} if page else {"torch.sdpa": torch_attention},
        verify=verify,
        cache="cold" if decode.cost(*shape[:5]).bytes > 30_000_000 else "warm",
        **more,
    )


IN_32 = decode.LADDER[:-2]  # the last two are for 16 bits

WORKLOADS = [
    work("many texts", DESIGN, IN_32, design=True, quick=True),
    work("many texts, float16", DESIGN, decode.LADDER[1:], "float16", design=True),
    *(work("one text", Shape(1, 32, 8, keys, 128), IN_32[1:], quick=keys == SWEEP[-1]) for keys in SWEEP),
    *(work("other caches", shape, IN_32[-1:]) for shape in OTHER),
]
