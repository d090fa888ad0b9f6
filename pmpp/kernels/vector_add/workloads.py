"""What is measured of ``vector_add``: adding two vectors, copying one, and transfers to and from the GPU."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.vector_add import ladder as vector_add
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.rung import Cost

DESIGN = 2**28
SWEEP = [2**k for k in range(10, 29)]
IN_16_BITS = [2**16, 2**20, 2**24, DESIGN]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
TRANSFERS = [2**k for k in range(12, 31, 2)]  # bytes


def verifier(dtype: np.dtype) -> typing.Callable[..., tuple[float, float]]:
    def verify(result: typing.Any, x: typing.Any, y: typing.Any) -> tuple[float, float]:
        """One addition is one rounding: half an ulp of each element."""
        if result.shape != x.shape:
            return float("inf"), 0.0
        found = []
        for part in chunks(x.size):
            expected = x[part].astype(np.float64) + y[part]
            found.append(worst(abs(result[part] - expected), rounding(expected, dtype)))
        return worst_of(found)

    return verify


def verify_copy(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    if result.shape != x.shape:
        return float("inf"), 0.0
    return worst_of(worst(abs(result[part] - x[part]), 0 * x[part]) for part in chunks(x.size))


LIBRARIES = {
    "torch.add": lambda torch, x, y, out: torch.add(x, y, out=out),
    "cupy.add": lambda cupy, x, y, out: cupy.add(x, y, out=out),
}


def _add_in_16_bits(n: int, dtype: np.dtype) -> Workload:
    return Workload(
        family=f"add, {dtype}",
        name=_power(n),
        sizes={"n": n},
        cost=vector_add.cost(n, dtype.itemsize),
        make=lambda seed: (normal(n, seed, dtype), normal(n, seed + 1000, dtype)),
        output=lambda: empty(n, dtype),
        rungs=vector_add.LADDER[-1:],
        libraries={name: call for name, call in LIBRARIES.items() if name == "torch.add" or dtype == np.float16},
        verify=verifier(dtype),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        quick=n == DESIGN,
    )


def _add(n: int) -> Workload:
    return Workload(
        family="add",
        name=_power(n),
        sizes={"n": n},
        cost=vector_add.cost(n),
        make=lambda seed: (normal(n, seed), normal(n, seed + 1000)),
        output=lambda: empty(n, np.float32),
        rungs=vector_add.LADDER,
        libraries=LIBRARIES,
        verify=verifier(np.dtype(np.float32)),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.add": lambda x, y, out: np.add(x, y, out=out)},
        host_args=lambda x, y: (to_host(x), to_host(y), np.zeros(n, np.float32)),
        end_to_end=True,
        quick=n in (2**10, 2**20, DESIGN),
    )


def _copy(n: int) -> Workload:
    def memcpy(cuda: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        out.copy_to_device(x)
        return out

    return Workload(
        family="copy",
        name=_power(n),
        sizes={"n": n},
        cost=Cost(flops=0, bytes=8 * n),
        make=lambda seed: (normal(n, seed),),
        output=lambda: empty(n, np.float32),
        rungs=(vector_add.copy,),
        libraries={"cuda.memcpy": memcpy, "torch.copy_": lambda torch, x, out: out.copy_(x)},
        verify=verify_copy,
        cache="cold",
        quick=True,
    )


def _transfer(direction: str, size: int) -> Workload:
    def host_args() -> tuple:
        pageable = np.ones(size, np.uint8)
        pinned = cuda.pinned_array(size, np.uint8)
        pinned[:] = 1  # memory that was never written has no pages behind it yet
        return cuda.to_device(pageable), pageable, pinned

    def copy(x: typing.Any, host: np.ndarray) -> None:
        x.copy_to_device(host) if direction == "host to device" else x.copy_to_host(host)

    return Workload(
        family=direction,
        name=_bytes(size),
        sizes={"bytes": size},
        cost=Cost(flops=0, bytes=size),
        cache="warm",
        host={
            "pageable": lambda x, pageable, pinned: copy(x, pageable),
            "pinned": lambda x, pageable, pinned: copy(x, pinned),
        },
        host_args=host_args,
        host_kind="transfer",
        quick=size == TRANSFERS[-1],
    )


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


WORKLOADS = [
    *(_add(n) for n in SWEEP),
    *(_add_in_16_bits(n, dtype) for dtype in known(vector_add.SHORT) for n in IN_16_BITS),
    *(_copy(n) for n in (2**28, 2**30)),
    *(_transfer(direction, size) for direction in ("host to device", "device to host") for size in TRANSFERS),
]
