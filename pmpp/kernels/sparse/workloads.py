"""What is measured of ``sparse``: Poisson's matrix, a power law, rows of one length, and what is hard for some rungs.

The libraries call cuSPARSE. Their matrices are made of the same arrays, once and not in each call.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pmpp.kernels.sparse import formats, gathers_alone
from pmpp.kernels.sparse import ladder as room
from pmpp.lab.measure.arrays import normal, view, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

SIDES = [64, 256, 1024, 2048, 4096]  # of the grid
ROWS = [2**12, 2**16, 2**18, 2**20]  # of the power law, with 16 values each in the mean
LENGTHS = [1, 2, 4, 8, 16, 32, 128, 1024]
STORED = 2**24  # values, where rows have one length, and of what is hard
MEAN = 16
COLD = 2**26  # bytes, from which on nothing stays in a cache from one launch to the next


def power_law(rows: int) -> np.ndarray:
    """Lengths that fall as (rank + 1)^-0.8, 16 in the mean, in an order by chance: the longest has the most by far."""
    share = np.arange(1, rows + 1) ** -0.8
    lengths = np.floor(share * (MEAN * rows / share.sum())).astype(np.int64)
    return np.random.default_rng(44).permutation(lengths)


def hub() -> np.ndarray:
    """Half of all values are in one row, and the others in rows of 8."""
    lengths = np.full(STORED // 16, 8)
    lengths[lengths.size // 3] = STORED // 2
    return lengths


def nearly_empty() -> np.ndarray:
    """One row of 16 has a value, and the others have none."""
    lengths = np.zeros(STORED, np.int64)
    lengths[::16] = 1
    return lengths


def one_value() -> np.ndarray:
    """A row in the middle has a value, and all others have none."""
    lengths = np.zeros(STORED, np.int64)
    lengths[STORED // 2] = 1
    return lengths


@functools.lru_cache(maxsize=2)
def _drawn(lengths: Callable[[], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Columns and starts, with columns drawn from as many as there are rows."""
    each = lengths()
    starts = np.concatenate([[0], np.cumsum(each)])
    columns = np.random.default_rng(45).integers(0, each.size, starts[-1], dtype=np.int32)
    return columns, starts.astype(np.int32)


def _with_random_values(lengths: Callable[[], np.ndarray], seed: int) -> tuple:
    columns, starts = _drawn(lengths)
    values, x = normal(columns.size, seed), normal(starts.size - 1, seed + 1000)
    return values, to_device(columns), to_device(starts), x


@functools.lru_cache(maxsize=1)
def _poisson(side: int) -> tuple:
    return room.poisson(side)


def _with_grid(side: int, seed: int) -> tuple:
    return *map(to_device, _poisson(side)), normal(side * side, seed)


def verify(result: Any, values: Any, columns: Any, starts: Any, x: Any) -> tuple:
    """Error and tolerance of the worst row: the sums in float64, as differences of the sums of all before."""
    terms = values.astype(np.float64) * x.astype(np.float64)[columns]

    def by_row(each: Any) -> Any:
        before = xp().concatenate([xp().zeros(1), xp().cumsum(each)])
        return before[starts[1:]] - before[starts[:-1]]

    largest = by_row(xp().abs(terms))
    lengths = (starts[1:] - starts[:-1]).astype(np.float64)
    # The differences are of sums of all values: their rounding, in float64, is allowed for as well.
    slack = 2.0**-50 * float(xp().abs(terms).sum())
    tolerance = (lengths + 1) * (np.finfo(np.float32).eps / 2 * largest + 2.0**-126) + slack
    return worst(xp().abs(view(result).astype(np.float64) - by_row(terms)), tolerance)


_MADE: dict[tuple[str, int], tuple] = {}  # the matrix that a contender has made of an array of values, and the array


def once(contender: str, make: Callable[[], Any], values: Any) -> Any:
    """What ``make()`` makes, once for each array of values: bench calls a contender with the same arrays again."""
    found = _MADE.get((contender, id(values)))
    if found is None or found[0] is not values:
        if len(_MADE) >= 16:  # as many sets of inputs as bench makes
            _MADE.clear()
        found = _MADE[contender, id(values)] = values, make()
    return found[1]


def _in(make: Callable, name: str) -> Callable:
    """The product in another format, which is made once for each matrix."""

    def product(values, columns, starts, x, *, out=None, stream=0):
        matrix = once(name, lambda: make(values, columns, starts, x.size), values)
        return formats.multiply(matrix, x, out=out, stream=stream)

    product.__name__ = name
    return product


def _made_anew(make: Callable, name: str) -> Callable:
    """The product in another format, which is made anew for each product."""

    def product(values, columns, starts, x, *, out=None, stream=0):
        return formats.multiply(make(values, columns, starts, x.size, stream=stream), x, out=out, stream=stream)

    product.__name__ = name
    return product


MAKERS = {
    "coordinates": formats.to_coordinates,
    "columns": formats.to_columns,
    "padded": formats.to_padded,
    "hybrid": formats.to_hybrid,
    "jagged": formats.to_jagged,
    "tiled": formats.to_tiled,
}
FORMATS = {name: _in(make, name) for name, make in MAKERS.items()}


def torch_matrix(torch: Any, values: Any, columns: Any, starts: Any, width: int) -> Any:
    """PyTorch's matrix of these arrays, made once."""

    def make():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            shape = starts.numel() - 1, width
            return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)

    return once("torch", make, values)


def cupy_matrix(values: Any, columns: Any, starts: Any, width: int) -> Any:
    """CuPy's matrix of these arrays, made once."""
    from cupyx.scipy import sparse

    def make():
        matrix = sparse.csr_matrix((values, columns, starts), (starts.size - 1, width))
        matrix.has_canonical_format = True  # CuPy asks for sorted columns, which cuSPARSE does not need
        return matrix

    return once("cupy", make, values)


def _torch(torch: Any, values: Any, columns: Any, starts: Any, x: Any) -> Any:
    return torch.mv(torch_matrix(torch, values, columns, starts, x.numel()), x)


def _cupy(cupy: Any, values: Any, columns: Any, starts: Any, x: Any) -> Any:
    from cupyx import cusparse

    return cusparse.spmv(cupy_matrix(values, columns, starts, x.size), x)


def _scipy(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, x: np.ndarray) -> np.ndarray:
    from scipy import sparse

    return sparse.csr_array((values, columns, starts), shape=(starts.size - 1, x.size)) @ x


def _workload(
    family: str, name: str, sizes: dict, cost: Any, make: Callable[[int], tuple], design: bool = False
) -> Workload:
    rows = cost[0]
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=room.cost(*cost),
        make=make,
        output=None,
        rungs=room.LADDER,
        libraries={"torch.mv": _torch, "cupy.spmv": _cupy},
        verify=verify,
        design=design,
        cache="cold" if room.cost(*cost).bytes >= COLD else "warm",
        host={"scipy.csr_array": _scipy},
        end_to_end=False,
        quick=design or rows in (64**2, 2**16),
    )


def grid(side: int) -> Workload:
    n, stored = side**2, 5 * side**2 - 4 * side
    sizes = {"rows": n, "stored": stored}
    make = functools.partial(_with_grid, side)
    return _workload("poisson", f"{side}^2", sizes, (n, n, stored), make, design=side == 2048)


def _given(family: str, name: str, lengths: Callable[[], np.ndarray], sizes: dict, design: bool = False) -> Workload:
    cost = sizes["rows"], min(sizes["rows"], sizes["stored"]), sizes["stored"]
    return _workload(family, name, sizes, cost, functools.partial(_with_random_values, lengths), design)


def power(rows: int) -> Workload:
    lengths = functools.partial(power_law, rows)
    sizes = {"rows": rows, "stored": int(lengths().sum())}
    return _given("power law", f"2^{rows.bit_length() - 1} rows", lengths, sizes, design=rows == 2**20)


def _even(length: int) -> Workload:
    rows = STORED // length
    lengths = functools.partial(np.full, rows, length)
    return _given("equal rows", f"of {length}", lengths, {"length": length, "rows": rows, "stored": STORED})


def _formats_of(workload: Workload, *without: str) -> Workload:
    """A workload of rows, with the other formats in place of the ladder."""
    rungs = [product for name, product in FORMATS.items() if name not in without]
    name = f"{workload.family} {workload.name}"
    return replace(
        workload, family="formats", name=name, rungs=[*rungs, room.merged], design=False, host={}, quick=False
    )


def _tiles_of(workload: Workload) -> Workload:
    """A workload of rows, with the product in tiles and the best rung for any rows."""
    formed = _formats_of(workload)
    return replace(formed, family="tiles", rungs=[FORMATS["tiled"], room.merged])


def _made(workload: Workload, *without: str) -> Workload:
    """The same, but each call makes the format first: what is more than in `_formats_of` is what making it takes."""
    rungs = [_made_anew(make, name) for name, make in MAKERS.items() if name not in without]
    return replace(_formats_of(workload), family="formats, made anew", rungs=rungs, libraries={})


def _verify_either(result: Any, values: Any, columns: Any, starts: Any, x: Any) -> tuple:
    """A product as `verify` does it, or the sum of the sums that threads have of products in any order."""
    if result.size == starts.size - 1:
        return verify(result, values, columns, starts, x)
    terms = values.astype(np.float64) * x.astype(np.float64)[columns]
    each = -(-values.size // gathers_alone.threads())  # products of a thread, at most
    error = abs(float(view(result).sum(dtype=np.float64) - terms.sum()))
    return error, (each + 1) * float(np.finfo(np.float32).eps) / 2 * float(xp().abs(terms).sum())


def _roof(workload: Workload) -> Workload:
    """The best rung for any rows beside a kernel that reads the same, and does not care for rows."""
    return replace(
        workload,
        family="gathers",
        rungs=[room.merged],
        libraries={
            "cuda.gathers_alone": lambda cuda, values, columns, starts, x: gathers_alone.gathers_alone(
                values, columns, x
            )
        },
        verify=_verify_either,
        design=False,
        host={},
        quick=False,
    )


ONE_HUB = _given("hard", "one hub", hub, {"rows": STORED // 16, "stored": STORED - 8})
WORKLOADS = [
    grid(2048),
    power(2**20),
    ONE_HUB,
    _given("hard", "nearly empty", nearly_empty, {"rows": STORED, "stored": STORED // 16}),
    _given("hard", "one value", one_value, {"rows": STORED, "stored": 1}),
    *(_even(length) for length in LENGTHS),
    *(grid(side) for side in SIDES if side != 2048),
    *(power(rows) for rows in ROWS if rows != 2**20),
    _roof(power(2**20)),
    _formats_of(grid(2048)),
    _formats_of(power(2**20), "padded"),  # its longest row has a fifth of a million values
    *(_tiles_of(power(rows)) for rows in ROWS),
    _tiles_of(grid(2048)),
    _tiles_of(ONE_HUB),
    _made(grid(2048)),
    _made(power(2**20), "padded", "jagged"),
]
