"""What is measured of ``quantisation``: float32 to int8 with one scale, and with one for each row; and the way back."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.quantisation import calibration
from pmpp.kernels.quantisation import ladder as quantisation
from pmpp.lab.measure.arrays import chunks, integers, normal, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_device, to_host

DESIGN = 2**28
SWEEP = [2**k for k in range(12, 29, 2)]
COLD = 2**25  # from here on nothing stays in a cache from one launch to the next
CHANNELS = [(4096, 4096), (16384, 16384), (512, 4609)]  # the last: a layer of 512 filters of 512 x 3 x 3, and one more
SCALE = 2.0**-5  # a power of two: PyTorch multiplies by the reciprocal, which is the same for those alone


def verify(result: typing.Any, x: typing.Any, scales: typing.Any) -> tuple[float, float]:
    """Every element: the number nearest to the quotient, which float32 has exactly for these scales."""
    if result.shape != x.shape:
        return float("inf"), 0.0
    found, x = [], x.reshape(scales.size, -1)
    for channels in chunks(x.shape[0], max(1, 2**26 // x.shape[1])):
        q = xp().clip(xp().rint(x[channels] / scales[channels, None]), -128, 127)
        found.append(worst(abs(result.reshape(x.shape)[channels] - q), 0 * q))
    return worst_of(found)


def verify_back(result: typing.Any, q: typing.Any, scales: typing.Any) -> tuple[float, float]:
    """Every element: a product with a power of two is exact."""
    if result.shape != q.shape:
        return float("inf"), 0.0
    return worst_of(worst(abs(result[part] - q[part] * scales), 0 * result[part]) for part in chunks(q.size))


def in_steps(torch: typing.Any, x: typing.Any, scales: typing.Any) -> typing.Any:
    """The definition, as an operation after another: what one writes."""
    return torch.clamp(torch.round(x / scales.reshape(-1, *(1,) * (x.ndim - 1))), -128, 127).to(torch.int8)


def of_torch(torch: typing.Any, x: typing.Any, scales: typing.Any) -> typing.Any:
    """PyTorch's operation, and a copy that makes a plain tensor of its result."""
    return torch.quantize_per_tensor(x, SCALE, 0, torch.qint8).int_repr()


def of_numpy(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x / scales), -128, 127).astype(np.int8)


def _tensor(n: int) -> Workload:
    return Workload(
        family="one scale",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=quantisation.cost(n),
        make=lambda seed: (normal(n, seed), to_device(np.float32([SCALE]))),
        rungs=quantisation.LADDER,
        libraries={"torch.round": in_steps, "torch.quantize_per_tensor": of_torch},
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.rint": of_numpy} if n <= 2**24 else {},
        host_args=lambda x, scales: (to_host(x), to_host(scales)),
        end_to_end=n <= 2**24,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _channels(m: int, n: int) -> Workload:
    scales = (2.0 ** -np.arange(2, 8, dtype=np.float32))[np.arange(m) % 6]
    return Workload(
        family="a scale for each row",
        name=f"{m} x {n}",
        sizes={"n": m * n, "m": m},
        cost=quantisation.cost(m * n),
        make=lambda seed: (normal((m, n), seed), to_device(scales)),
        rungs=quantisation.LADDER,
        libraries={"torch.round": in_steps},
        verify=verify,
        cache="cold" if m * n >= COLD else "warm",
    )


def _back(n: int) -> Workload:
    return Workload(
        family="the way back",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=quantisation.cost(n),
        make=lambda seed: (integers(n, seed, 127, np.int8), to_device(np.float32([SCALE]))),
        output=lambda: empty(n, np.float32),
        rungs=(calibration.dequantise,),
        libraries={"torch.mul": lambda torch, q, scales, out: torch.mul(q, scales, out=out)},
        verify=verify_back,
        cache="cold" if n >= COLD else "warm",
    )


WORKLOADS = [
    *map(_tensor, SWEEP),
    *(_channels(*shape) for shape in CHANNELS),
    *map(_back, (2**16, DESIGN)),
]
