"""What is measured of ``warpgroups``: products of every type, square ones and others, on a Hopper GPU.

The roof of the figures is that of float32 multiply-adds, which tensor cores pass by far. What counts is the comparison
with cuBLAS, which has these instructions as well, and with the best product by mma.sync.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.matmul import products, tensor_cores, warpgroups
from pmpp.kernels.matmul.tensor_cores_workloads import LIBRARIES, halves, probe_of, stored_as_float32, verify
from pmpp.lab.measure.arrays import integers, normal, on_device, view, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import as_input, empty, to_host
from pmpp.runtime.dtypes import BFLOAT16
from pmpp.runtime.views import strided
from pmpp.simt.values.tensor_cores import values_of_8_bits

DESIGN = 4096
SWEEP = [512, 1024, 2048, 4096, 8192]
ODD = [4095, 4104]  # rows that do not begin at multiples of 16 bytes; no multiple of a tile
SHAPES = [(8192, 8192, 256), (256, 8192, 4096), (8192, 256, 4096), (1024, 4096, 8192)]
COLD = 4000


def _workload(family: str, name: str, m: int, n: int, k: int, sizes: dict, **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=warpgroups.cost(m, n, k),
        make=lambda seed: (halves((m, k), seed), halves((k, n), seed + 1000)),
        output=lambda: empty((m, n), np.float32),
        rungs=(tensor_cores.wide, *warpgroups.LADDER),
        libraries=LIBRARIES,
        verify=verify,
        **more,
    )


def _product(n: int) -> Workload:
    return _workload(
        "odd sizes" if n in ODD else "warpgroups",
        str(n),
        *(n, n, n),
        {"n": n},
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.matmul": lambda a, b, out: np.matmul(a, b, out=out)} if n <= DESIGN and n in SWEEP else {},
        host_args=lambda a, b: (to_host(a).astype("f4"), to_host(b).astype("f4"), np.zeros((n, n), np.float32)),
        quick=n in (1024, DESIGN),
    )


def _shape(m: int, n: int, k: int) -> Workload:
    return _workload("shapes", f"{m} x {k} x {n}", m, n, k, {"m": m, "n": n, "k": k})


def _of_bfloat16(n: int) -> Workload:
    """The last rung with the other dtype, and cuBLAS with a result in float32, as the rung has it."""
    return Workload(
        family="bfloat16",
        name=f"{n}, bfloat16",
        sizes={"n": n},
        cost=warpgroups.cost(n, n, n),
        make=lambda seed: (normal((n, n), seed, BFLOAT16), normal((n, n), seed + 1000, BFLOAT16)),
        output=lambda: empty((n, n), np.float32),
        rungs=warpgroups.LADDER[-1:],
        libraries={"torch.mm to float32": stored_as_float32},
        verify=verify,
        cache="cold" if n >= COLD else "warm",
    )


# ---------------------------------------------------------------------------------------------- tf32, int8 and e4m3
# The second matrix lies column by column, which is what cuBLAS is fastest with, too.


def bits_of_e4m3(shape: tuple[int, int], seed: int) -> typing.Any:
    """A device array of uint8: e4m3 of both signs, from 1/4 to 7.5, each equally likely."""
    drawn = view(integers(shape, seed, 39, np.int32))
    return on_device(((40 + abs(drawn)) | (drawn < 0) << 7).astype(np.uint8))


def whole(shape: tuple[int, int], seed: int) -> typing.Any:
    """A device array of int8, all but -128 equally likely."""
    return integers(shape, seed, 127, np.int8)


def as_tf32(torch: typing.Any, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """cuBLAS with tensor cores for float32, which everything else here is measured without."""
    torch.backends.cuda.matmul.allow_tf32 = True
    result = torch.mm(a, b, out=out)
    torch.backends.cuda.matmul.allow_tf32 = False
    return result


@functools.cache
def _one(torch: typing.Any) -> typing.Any:
    return torch.ones((), device="cuda")


def scaled_to(dtype: str) -> Callable:
    """cuBLASLt's product of e4m3. With use_fast_accum its sums are added as ours are, which is its fastest way."""

    def scaled(torch: typing.Any, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
        a, b = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn)
        return torch._scaled_mm(a, b, _one(torch), _one(torch), out_dtype=getattr(torch, dtype), use_fast_accum=True)

    return scaled


def verify_as(kind: str) -> Callable:
    """Against float64, all elements or some rows. A sum of int8 is exact. Of the others: see the comments."""

    def check(result: typing.Any, a: typing.Any, b: typing.Any) -> tuple[float, float]:
        (m, k), n = a.shape, b.shape[1]
        if result.shape != (m, n):
            return float("inf"), 0.0
        rows = slice(None)
        if m > 1024:
            rows = xp().asarray(np.unique(np.r_[0, m - 1, np.random.default_rng().integers(0, m, 512)]))
        if kind == "e4m3":
            numbers = xp().asarray(values_of_8_bits(kind))
            a64, b64 = numbers[a[rows].astype(np.int64)], numbers[b.astype(np.int64)]
        else:
            a64, b64 = a[rows].astype(np.float64), b.astype(np.float64)
        exact, size = a64 @ b64, abs(a64) @ abs(b64)
        if kind == "int8":
            allowed = 0 * size
        elif kind == "tf32":
            # Both numbers lose up to 2**-10 of themselves. The errors have random signs, so they grow like sqrt(k).
            allowed = 6 * 2.0**-9 * size / math.sqrt(k)
        else:
            # Each step of 32 products cuts them and their sum 13 bits behind the largest. A sum is about sqrt(k)
            # products, and seldom five times that.
            largest = float(abs(a64).max() * abs(b64).max())
            allowed = 2.0**-13 * math.sqrt(k) * (5 / 32 * size + largest)
        if result.dtype == np.float16:
            allowed = allowed + abs(exact) * float(np.finfo(np.float16).eps)
        return worst(abs(result[rows] - exact), allowed)

    return check


#: By type: bytes of a number, what draws them, and whom it is measured beside.
TYPES: dict[str, tuple[int, Callable, dict[str, Callable]]] = {
    "tf32": (4, normal, {"torch.mm": as_tf32}),
    "int8": (1, whole, {"torch._int_mm": lambda torch, a, b, out: torch._int_mm(a, b)}),
    "e4m3": (
        1,
        bits_of_e4m3,
        {"torch._scaled_mm": scaled_to("float16"), "torch._scaled_mm to float32": scaled_to("float32")},
    ),
}


def _of_type(kind: str, n: int) -> Workload:
    itemsize, draw, libraries = TYPES[kind]

    def make(seed: int) -> tuple:
        columns = draw((n, n), seed + 1000)
        columns = as_input("columns", columns, dtypes=columns.dtype, ndim=2)
        return draw((n, n), seed), strided(columns, (n, n), (1, n))

    return Workload(
        family=kind,
        name=f"{n}, {kind}",
        sizes={"n": n},
        cost=products.cost(n, n, n, itemsize, 4),
        make=make,
        output=lambda: empty((n, n), np.int32 if kind == "int8" else np.float32),
        rungs=(products.product,),
        libraries=libraries,
        verify=verify_as(kind),
        cache="cold" if n >= COLD else "warm",
    )


WORKLOADS = [*(_product(n) for n in (*SWEEP, *ODD)), *(_shape(*shape) for shape in SHAPES)]
WORKLOADS += [_of_bfloat16(n) for n in (1024, 4096, 8192) if BFLOAT16 is not None]
WORKLOADS += [_of_type(kind, n) for kind in TYPES for n in (1024, 4096, 8192)]
