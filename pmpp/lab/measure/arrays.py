"""What workloads share: inputs made on the GPU, and views for checking results there in float64.

Results are checked by CuPy where it is installed, and by NumPy on the host where it is not.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable

import numpy as np

from pmpp.runtime import device
from pmpp.runtime.dtypes import BFLOAT16

__all__ = [
    "chunks",
    "copied",
    "integers",
    "library_of",
    "normal",
    "on_device",
    "torch_tensor",
    "uniform",
    "view",
    "with_options",
    "worst",
    "worst_of",
    "xp",
]


@functools.cache
def xp() -> types.ModuleType:
    """CuPy if it is installed and kernels run on a GPU, else NumPy."""
    if device.on_gpu():
        try:
            import cupy
        except ImportError:
            return np
        return cupy
    return np


def library_of(x: typing.Any) -> types.ModuleType:
    """The library that ``x`` is an array of: NumPy, or else what ``xp()`` is. CuPy does not take NumPy's arrays."""
    return np if isinstance(x, np.ndarray) else xp()


def view(x: typing.Any) -> typing.Any:
    """Any array or number as an array of ``xp()``: no copy on the GPU, a transfer where ``xp()`` is NumPy.

    One of bfloat16 is copied to a float32, which holds all its numbers: CuPy need not know the type.
    """
    if str(getattr(x, "dtype", "")) == "torch.bfloat16":
        x = x.float()
    elif is_bfloat16(x):
        bits = view(x.view(np.uint16)).astype(np.uint32)
        return (bits << 16).view(np.float32)
    if xp() is not np:
        return xp().asarray(x)
    if hasattr(x, "cpu"):  # a torch tensor
        return x.cpu().numpy()
    return device.to_host(x) if hasattr(x, "copy_to_host") else np.asarray(x)


def is_bfloat16(x: typing.Any) -> bool:
    return BFLOAT16 is not None and getattr(x, "dtype", None) == BFLOAT16


def torch_tensor(torch: types.ModuleType, x: typing.Any) -> typing.Any:
    """A tensor where a device array is. The interface that both know has no word for bfloat16."""
    if is_bfloat16(x):
        return torch.as_tensor(x.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(x, device="cuda")


def _of_dtype(x: typing.Any, dtype: typing.Any) -> typing.Any:
    """A device array of that dtype with the values of a float32 array of ``xp()``, rounded to the nearest."""
    if isinstance(x, np.ndarray) or BFLOAT16 is None or dtype != BFLOAT16:
        return on_device(x.astype(dtype, copy=False))
    from pmpp.runtime.array import adopted

    bits = x.view(np.uint32)
    bits += 0x7FFF + (bits >> 16 & 1)  # half of the last place that is kept; less one where it is even, for ties
    return adopted(on_device((bits >> 16).astype(np.uint16))).view(BFLOAT16)


def on_device(x: typing.Any) -> typing.Any:
    """A device array of an array of ``xp()``: on the GPU it is the same memory, and keeps it."""
    if isinstance(x, np.ndarray):
        return device.to_device(x)
    from numba import cuda

    # Without CuPy's stream in it, so that Numba does not wait for that stream at every launch.
    return cuda.from_cuda_array_interface({**x.__cuda_array_interface__, "stream": None}, owner=x, sync=False)


def normal(shape: int | tuple[int, ...], seed: int, dtype: typing.Any = np.float32) -> typing.Any:
    """A device array of normally distributed numbers, float32, float16 or bfloat16.

    Never time zeros: they can run faster, and they hide faults.
    """
    if xp() is np:
        return _of_dtype(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32), dtype)
    return _of_dtype(xp().random.RandomState(seed).standard_normal(shape, dtype=np.float32), dtype)


def uniform(shape: int | tuple[int, ...], seed: int) -> typing.Any:
    """A device array of float32 from -1 to 1, whose powers do not overflow."""
    if xp() is np:
        return on_device(2 * np.random.default_rng(seed).random(shape, dtype=np.float32) - 1)
    return on_device(2 * xp().random.RandomState(seed).random_sample(shape, dtype=np.float32) - 1)


def integers(shape: int | tuple[int, ...], seed: int, largest: int, dtype: typing.Any = np.float32) -> typing.Any:
    """A device array of float32, or of ``dtype``, with whole numbers in [-largest, largest].

    While sums of them stay below 2^24 float32 holds them exactly in any order, so a check on them needs no tolerance.
    """
    if xp() is np:
        return on_device(np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(dtype))
    drawn = xp().random.RandomState(seed).randint(-largest, largest + 1, shape, dtype=np.int32)
    return on_device(drawn.astype(dtype))


def copied(x: typing.Any) -> typing.Any:
    """A device array in its own memory with the numbers of another, which `normal` and its like have made."""
    return device.to_device(device.to_host(x)) if xp() is np else on_device(view(x).copy())


def chunks(n: int, size: int = 2**26) -> typing.Iterator[slice]:
    """Slices that cover range(n): a check in float64 of all at once would want several times the inputs' memory."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def worst(error: typing.Any, tolerance: typing.Any) -> tuple[float, float]:
    """Error and tolerance of the element that comes closest to its tolerance, or is furthest over it; NaN is worst."""
    # float64, where 1e-300 below is not 0 as it would be in float32.
    error, tolerance = (xp().ravel(x).astype(np.float64) for x in (error, tolerance))
    if not error.size:
        return 0.0, 0.0
    if bool(xp().isnan(error).any()):
        return float("nan"), float(xp().max(tolerance))
    # The tiny divisor keeps 0 / 0 out and makes any error over a tolerance of 0 the worst.
    index = int(xp().argmax(error / xp().maximum(tolerance, 1e-300)))
    return float(error[index]), float(tolerance[index])


def worst_of(parts: typing.Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The same for a result that is checked in parts: the worst of their ``worst``; (0, 0) if there is none."""
    errors, tolerances = np.array([(0.0, 0.0), *parts]).T
    return worst(view(errors), view(tolerances))


def with_options(rung: typing.Any, *after: typing.Any, **named: typing.Any) -> Callable:
    """The rung as a contender of its name that is called with arrays alone: further arguments are given here."""

    def call(*arrays: typing.Any, out: typing.Any = None) -> typing.Any:
        return rung(*arrays, *after, out=out, **named)

    call.__name__ = rung.name
    return call
