"""What is measured of ``alignment``: many pairs of short texts, and one pair of texts from 128 to 65,536 letters.

There is no library for this beside the rungs. What stands there is the roof: `pmpp.kernels.wavefront.roofs` does as
many additions and maxima, and nothing else. Its result is checked as what it is.
"""

from __future__ import annotations

import functools
import hashlib
import typing

import numpy as np

from pmpp.kernels.wavefront import alignment as room
from pmpp.kernels.wavefront import roofs
from pmpp.lab.measure.arrays import library_of, on_device, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty

LETTERS = 4
LENGTHS = [128, 1024, 4096, 16384, 65536]  # of one pair
DESIGN = 100_000  # pairs
PAIRS = [(100, 256), (1000, 256), (10_000, 256), (DESIGN, 256), (1_000_000, 32), (10_000, 1000)]  # and their length
ON_CPU = 4096  # letters of a pair that NumPy is given
ONE = room.LADDER[:-1]  # `many_pairs` hands one pair, and long texts, over to the rung before it


def drawn(pairs: int, letters: int, seed: int) -> typing.Any:
    """A device array of random letters."""
    if xp() is np:
        return on_device(np.random.default_rng(seed).integers(0, LETTERS, (pairs, letters)).astype(np.uint8))
    return on_device(xp().random.RandomState(seed).randint(0, LETTERS, (pairs, letters)).astype(np.uint8))


def scores_of(a: typing.Any, b: typing.Any, match: int = 2, mismatch: int = -1, gap: int = -1) -> typing.Any:
    """The scores of local alignments, diagonal by diagonal, each of all pairs at once. Arrays of NumPy or CuPy."""
    library = library_of(a)
    (pairs, m), n = a.shape, b.shape[1]
    a, b = library.ascontiguousarray(a.T), library.ascontiguousarray(b.T[::-1])  # a diagonal is a slice of each
    before, last, best = (library.zeros((size, pairs), np.int32) for size in (m + 1, m + 1, 1))
    for number in range(2, m + n + 1):
        low, high = max(1, number - n), min(m, number - 1) + 1
        start = n - number + low  # where in the reversed b the letter of row ``low`` is
        step = library.where(
            a[low - 1 : high - 1] == b[start : start + high - low], np.int32(match), np.int32(mismatch)
        )
        now = library.zeros((m + 1, pairs), np.int32)
        beside = library.maximum(last[low - 1 : high - 1], last[low:high]) + np.int32(gap)
        now[low:high] = library.maximum(library.maximum(before[low - 1 : high - 1] + step, beside), np.int32(0))
        best = library.maximum(best, now[low:high].max(axis=0))
        before, last = last, now
    return best[0]


@functools.lru_cache(maxsize=8)
def _kept(digest: str, shape: tuple) -> list:
    """A place for the scores of texts with this digest: all contenders are checked against the same."""
    return []


def verify(result: typing.Any, a: typing.Any, b: typing.Any) -> tuple[float, float]:
    """How many scores are wrong, which has to be 0. Of the roof: how far its chains are from where they must end."""
    if result.ndim == 3:
        return roofs.wrong(result, _operations(a.shape[0], a.shape[1], b.shape[1]))
    if result.shape != (a.shape[0],):
        return float("inf"), 0.0
    host = [x.get() if hasattr(x, "get") else x for x in (a, b)]
    digest = hashlib.sha256(host[0].tobytes() + host[1].tobytes()).hexdigest()
    place = _kept(digest, (*a.shape, *b.shape))
    if not place:
        place.append(scores_of(a, b))
    return float((place[0] != result).sum()), 0.0


def _operations(pairs: int, m: int, n: int) -> int:
    return room.cost(m, n, pairs).flops


def _workload(family: str, name: str, pairs: int, length: int, **more: typing.Any) -> Workload:
    operations = _operations(pairs, length, length)
    return Workload(
        family=family,
        name=name,
        cost=room.cost(length, length, pairs),
        make=lambda seed: (drawn(pairs, length, seed), drawn(pairs, length, seed + 1000)),
        output=lambda: empty(pairs, np.int32),
        libraries={"cuda.max_add": lambda cuda, a, b, out: roofs.max_add(operations)},
        verify=verify,
        cache="warm",
        end_to_end=False,
        **more,
    )


def _one_pair(length: int) -> Workload:
    sizes = {"m": length, "n": length, "pairs": 1}
    rungs = ONE[0 if length <= 16384 else 1 :]  # 131,073 launches would take seconds
    host = {"numpy.maximum": lambda a, b, out: scores_of(a, b)} if length <= ON_CPU else {}
    quick = length in (128, 4096)
    return _workload(
        "one pair", f"{length}", 1, length, sizes=sizes, rungs=rungs, host=host, host_args=_on_host, quick=quick
    )


def _on_host(a: typing.Any, b: typing.Any) -> tuple:
    return a.copy_to_host(), b.copy_to_host(), None


def _pairs(pairs: int, length: int) -> Workload:
    sizes = {"pairs": pairs, "m": length, "n": length}
    design = pairs == DESIGN
    name = f"{pairs:,} x {length}^2"
    rungs = room.LADDER if length <= room.STRIP else ONE
    return _workload(
        "pairs", name, pairs, length, sizes=sizes, rungs=rungs, design=design, quick=design or pairs == 100
    )


WORKLOADS = [
    *(_pairs(*each) for each in PAIRS if each[0] == DESIGN),
    *(_one_pair(length) for length in LENGTHS),
    *(_pairs(*each) for each in PAIRS if each[0] != DESIGN),
]
