"""What is measured of ``many_bins``: bin numbers uniform, as frequent as the words of a text, sorted, and all equal."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from pmpp.kernels.histogram import many_bins
from pmpp.kernels.histogram.workloads import verify
from pmpp.lab.measure.arrays import with_options
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

N = 2**26
VOCABULARY = 50_257  # words of GPT-2
BINS = (2**14, VOCABULARY, 2**16, 2**17, 230_000, 2**18)  # one block has room for two of these, four for all but one


def numbers(n: int, bins: int, kind: str) -> Callable[[int], tuple]:
    """A seed to n int32 from 0 to bins - 1. Of "words" number k is about as frequent as 1 / (k + 1): Zipf's law."""

    def make(seed: int) -> tuple:
        if kind == "equal":
            return (to_device(np.full(n, bins // 3, np.int32)),)
        if kind == "sorted":
            return (to_device((np.arange(n) * bins // n).astype(np.int32)),)
        share = np.random.default_rng(seed).random(n, dtype=np.float32)
        x = share * bins if kind == "uniform" else np.exp(share * np.float32(np.log(bins + 1))) - 1
        return (to_device(np.minimum(x, bins - 1).astype(np.int32)),)

    return make


def _workload(n: int, bins: int, kind: str, family: str) -> Workload:
    return Workload(
        family=family,
        name=f"{kind}, {bins:,} bins" if n == N else f"{kind}, {n:,} of {bins:,}",
        sizes={"n": n, "bins": bins},
        cost=many_bins.cost(n, bins, itemsize=4),
        make=numbers(n, bins, kind),
        rungs=tuple(with_options(rung, bins) for rung in many_bins.LADDER),
        libraries={
            "torch.bincount": lambda torch, x: torch.bincount(x, minlength=bins),
            "cupy.bincount": lambda cupy, x: cupy.bincount(x, minlength=bins),
        },
        verify=functools.partial(verify, bins=bins),
        design=(n, bins, kind) == (N, VOCABULARY, "words"),
        quick=bins in (VOCABULARY, 2**17) and kind in ("uniform", "words"),
    )


WORKLOADS = [
    *(_workload(N, bins, kind, kind) for kind in ("uniform", "words") for bins in BINS),
    *(_workload(N, VOCABULARY, kind, kind) for kind in ("sorted", "equal")),
    *(_workload(n, VOCABULARY, kind, "few elements") for kind in ("uniform", "words") for n in (2**14, 2**18, 2**22)),
]
