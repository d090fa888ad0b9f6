"""What is measured of ``fitted``: squares, shapes that a fixed tile is slow for, and shapes that nobody chose."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.matmul import fitted
from pmpp.kernels.matmul.workloads import LIBRARIES, verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host

# Shapes are (M, K, N), as they are multiplied: M x K times K x N.
DESIGN = (512, 32768, 512)
SQUARES = [2**k for k in range(7, 12)]
NAMED = {
    "few rows": (16, 4096, 11008),
    "few columns": (8192, 8192, 64),
    "long sum": DESIGN,
    "odd": (333, 777, 1111),
    "nearly square": (3000, 3000, 3000),
    "tall": (12288, 768, 768),
}
# A square matrix, and the columns of another: first memory is the bound, then arithmetic.
SIDE, COLUMNS = 4096, (4, 8, 16, 64, 256, 512)
SEED, COUNT, LEAST, MOST = 36, 10, 10**8, 10**11  # of drawn shapes; multiply-adds of each
LIBRARY = {"torch.matmul": LIBRARIES["torch.matmul"]}
ON_CPU = {"numpy.matmul": lambda a, b, out: np.matmul(a, b, out=out)}


def drawn() -> list[tuple[int, int, int]]:
    """Shapes of odd extents, log-uniform from 3 to 16,383, of neither very little nor very much work.

    Three rows of four do not begin at a multiple of 16 bytes, and no tile fits: the hardest case.
    """
    rng, shapes = np.random.default_rng(SEED), []
    while len(shapes) < COUNT:
        shape = tuple(int(2 * 8192 ** rng.random()) | 1 for _ in range(3))
        shapes += [shape] * (LEAST < int(np.prod(shape)) < MOST)
    return shapes


def name_of(shape: tuple[int, int, int]) -> str:
    """The shape as it is multiplied.

    >>> name_of((2, 3, 4))
    '2x3 times 3x4'
    """
    m, k, n = shape
    return f"{m}x{k} times {k}x{n}"


def _product(family: str, shape: tuple[int, int, int], **more: typing.Any) -> Workload:
    m, k, n = shape
    design = shape == DESIGN
    return Workload(
        family=family,
        name=name_of(shape),
        sizes={"n": n, "k": k, "m": m},
        cost=fitted.cost(m, n, k),
        make=lambda seed: (normal((m, k), seed), normal((k, n), seed + 1000)),
        output=lambda: empty((m, n), np.float32),
        rungs=fitted.LADDER,
        libraries=LIBRARY,
        verify=verify,
        design=design,
        quick=design,
        host=ON_CPU if design else {},
        host_args=lambda a, b: (to_host(a), to_host(b), np.zeros((m, n), np.float32)),
        **more,
    )


WORKLOADS = [
    *(_product("named", shape) for shape in NAMED.values()),
    *(_product("drawn", shape) for shape in drawn()),
    *(_product("columns", (SIDE, SIDE, n)) for n in COLUMNS),
    *(_product("squares", (n, n, n), cache="warm") for n in SQUARES),
]
