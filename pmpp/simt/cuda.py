"""`pmpp.simt.cuda`: the names of `numba.cuda`, run by the interpreter."""

from __future__ import annotations

import functools
import inspect
import math
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pmpp.simt.arrays import (
    DeviceArray,
    as_cuda_array,
    device_array,
    device_array_like,
    is_cuda_array,
    pinned_array,
    pinned_array_like,
    to_device,
)
from pmpp.simt.dtypes import as_dtype
from pmpp.simt.errors import ArgumentError, LaunchError, UnsupportedError
from pmpp.simt.intrinsics import DEVICE, SPECIAL, DeviceName
from pmpp.simt.launch import configure, plain_launch

mapped_array = managed_array = pinned_array


class ScalarType:
    """A Numba type: `float32(x)` converts, `float32[:, :]` names an array type in a signature."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, *values: Any) -> Any:
        if any(isinstance(v, (ScalarType, ArrayType)) for v in values):
            return Signature(self.dtype, values)
        return self.dtype.type(*values)

    def __getitem__(self, axes: Any) -> ArrayType:
        return ArrayType(self.dtype, len(axes) if isinstance(axes, tuple) else 1)

    def __repr__(self) -> str:
        return str(self.dtype)


class ArrayType:
    """An array type in a signature."""

    def __init__(self, dtype: np.dtype, ndim: int) -> None:
        self.dtype, self.ndim, self.axes = dtype, ndim, ":" * ndim

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(':' * self.ndim)}]"


class Signature(NamedTuple):
    """The types of a function's result (None: nothing) and arguments."""

    result: np.dtype | None
    arguments: tuple


boolean = bool_ = b1 = ScalarType(np.bool_)
int8, int16, int32, int64 = map(ScalarType, (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = map(ScalarType, (np.uint8, np.uint16, np.uint32, np.uint64))
float16, float32, float64 = map(ScalarType, (np.float16, np.float32, np.float64))
complex64, complex128 = map(ScalarType, (np.complex64, np.complex128))
intp, uintp, double = int64, uint64, float64
i1, i2, i4, i8, u1, u2, u4, u8 = int8, int16, int32, int64, uint8, uint16, uint32, uint64
f2, f4, f8, c8, c16 = float16, float32, float64, complex64, complex128


class types:
    """`cuda.types`: the scalar types by name."""

    boolean, int8, int16, int32, int64 = boolean, int8, int16, int32, int64
    uint8, uint16, uint32, uint64 = uint8, uint16, uint32, uint64
    float32, float64, complex64, complex128 = float32, float64, complex64, complex128


def _signature(signature: Any) -> tuple[np.dtype | None, list]:
    """Result and argument types of a signature: a string, a tuple, or a call such as `void(float32[:])`."""
    if isinstance(signature, str):
        inner = re.fullmatch(r"\s*(\w*)\s*\((.*)\)\s*", signature, re.DOTALL)
        result, text = inner.groups() if inner else ("", signature)
        pieces = [p.strip() for p in re.split(r",(?![^\[]*\])", text) if p.strip()]
        out = []
        for piece in pieces:
            name, _, axes = piece.partition("[")
            scalar = globals().get(name.strip())
            if not isinstance(scalar, ScalarType):
                raise ArgumentError(f"the signature {signature!r} names {name!r}, which is not a type")
            out.append(ArrayType(scalar.dtype, axes.count(":") - axes.count("::")) if axes else scalar.dtype)
        returned = globals().get(result)
        return (returned.dtype if isinstance(returned, ScalarType) else None), out
    if isinstance(signature, Signature):
        returned, arguments = signature
    elif hasattr(signature, "args") and hasattr(signature, "return_type"):  # Numba's own signature object
        returned, arguments = as_dtype(signature.return_type), signature.args
    else:
        returned, arguments = None, signature
    return returned, [_declared(t) for t in arguments]


def _declared(kind: Any) -> Any:
    if isinstance(kind, ArrayType):
        return kind
    dtype = as_dtype(kind)
    if dtype is not None:
        return dtype
    if hasattr(kind, "ndim") and as_dtype(getattr(kind, "dtype", None)) is not None:  # Numba's own array type
        return ArrayType(as_dtype(kind.dtype), kind.ndim)
    raise ArgumentError(f"the signature names {kind!r}, which is not a type")


class Kernel:
    """A kernel or device function; `kernel[grid, block, stream, sharedmem](...)` launches it."""

    def __init__(self, py_func: Callable, *, device: bool = False, signature: Any = None) -> None:
        functools.update_wrapper(self, py_func)
        self.py_func, self.device = py_func, device
        declared = [] if signature is None else signature if isinstance(signature, list) else [signature]
        parsed = [_signature(one) for one in declared]
        self.signatures = [arguments for _, arguments in parsed]
        self.device_types = parsed[0] if device and len(parsed) == 1 else None

    def __getitem__(self, configuration: Any) -> Configured:
        if self.device:
            raise LaunchError(f"{self.py_func.__name__} is a device function; only kernels are launched")
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                f"a launch is configured as kernel[grid, block, stream, sharedmem], not with {configuration!r}"
            )
        grid, block, *rest = configuration
        stream, sharedmem = (*rest, *(0, 0)[len(rest) :])
        _check_stream(stream)
        configure(grid, block, sharedmem)
        return Configured(self, grid, block, sharedmem)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable:
        """A launcher for one thread a task in one dimension; with no tasks it launches nothing."""
        _check_stream(stream)
        if ntasks < 0:
            raise LaunchError(f"ntasks is {ntasks}; it must be 0 or more")
        block = tpb or 128
        if ntasks == 0:
            return lambda *args: None
        return self[math.ceil(ntasks / block), block, stream, sharedmem]

    def __call__(self, *args: Any) -> None:
        name = self.py_func.__name__
        if self.device:
            raise UnsupportedError(f"{name} is a device function; only kernels and device functions call it")
        raise LaunchError(f"{name} needs a launch configuration: {name}[blocks, threads](...)")

    def __repr__(self) -> str:
        return f"<{'device function' if self.device else 'kernel'} {self.py_func.__name__}>"


class Configured:
    """A kernel with its launch configuration."""

    def __init__(self, kernel: Kernel, grid: Any, block: Any, sharedmem: int) -> None:
        self.kernel, self.grid, self.block, self.sharedmem = kernel, grid, block, sharedmem

    def __call__(self, *args: Any) -> None:
        plain_launch(self.kernel.py_func, self.grid, self.block, args, self.sharedmem, self.kernel.signatures)


def jit(func_or_sig: Any = None, *, device: bool = False, signature: Any = None, **options: Any) -> Any:
    """`@cuda.jit`, `@cuda.jit(device=True)`, `@cuda.jit("void(float32[:])")`; compiler options are ignored."""
    if inspect.isfunction(func_or_sig):
        return Kernel(func_or_sig, device=device)
    declared = func_or_sig if func_or_sig is not None else signature
    return lambda py_func: Kernel(py_func, device=device, signature=declared)


def void(*arguments: Any) -> Signature:
    """`void(float32[:], int32)`: a signature."""
    return Signature(None, arguments)


# -- streams, events, devices ----------------------------------------------------------------------------------------


class Stream:
    """A queue of work.  The interpreter finishes each piece before it returns, so a stream is always empty."""

    handle = 0

    def synchronize(self) -> None:
        """Wait for the work queued so far: there is none."""

    def auto_synchronize(self) -> Stream:
        """A context manager that waits at its end."""
        return self

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __repr__(self) -> str:
        return "<stream of the interpreter>"


def _check_stream(value: Any) -> None:
    if not (isinstance(value, Stream) or (isinstance(value, int) and not isinstance(value, bool) and value == 0)):
        raise ArgumentError(f"the stream is {value!r}; it must be 0 or a stream made with cuda.stream()")


class Event:
    """A mark in a stream; here, the time at which `record` was called."""

    def __init__(self, timing: bool = True) -> None:
        self.timing, self.time = timing, None

    def record(self, stream: Any = 0) -> None:
        """Set the mark."""
        self.time = time.perf_counter()

    def query(self) -> bool:
        """Whether the work before the mark is done."""
        return True

    def synchronize(self) -> None:
        """Wait for the mark."""

    def wait(self, stream: Any = 0) -> None:
        """Let a stream wait for the mark."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this mark to `end`."""
        return event_elapsed_time(self, end)


def event_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two recorded events: the interpreter's own time, which says nothing about a GPU."""
    if start.time is None or end.time is None:
        raise LaunchError("both events must be recorded before their distance is asked for")
    return (end.time - start.time) * 1e3


stream, event = Stream, Event


def default_stream() -> Stream:
    """The stream that is used when none is given."""
    return Stream()


legacy_default_stream = per_thread_default_stream = default_stream


def synchronize() -> None:
    """Wait for all work: there is none."""


class Device:
    """The GPU whose limits the interpreter imitates: an NVIDIA H200 (compute capability 9.0)."""

    id = 0
    name = b"SIMT interpreter (limits of an NVIDIA H200)"
    compute_capability = (9, 0)
    WARP_SIZE = 32
    MAX_THREADS_PER_BLOCK = 1024
    MAX_THREADS_PER_MULTIPROCESSOR = 2048
    MAX_BLOCKS_PER_MULTIPROCESSOR = 32
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, 65535, 65535
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 227 * 1024
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 228 * 1024
    MAX_REGISTERS_PER_BLOCK = 65536
    MAX_REGISTERS_PER_MULTIPROCESSOR = 65536
    MULTIPROCESSOR_COUNT = 132
    L2_CACHE_SIZE = 60 * 1024 * 1024
    TOTAL_CONSTANT_MEMORY = 64 * 1024
    COOPERATIVE_LAUNCH = 1

    def __repr__(self) -> str:
        return f"<{self.name.decode()}>"


_device = Device()
gpus = [_device]


def get_current_device() -> Device:
    """The device that kernels run on."""
    return _device


def list_devices() -> list[Device]:
    """All devices."""
    return list(gpus)


def select_device(device_id: int) -> Device:
    """Choose a device; there is one, number 0."""
    if device_id != 0:
        raise LaunchError(f"device_id is {device_id!r}; the interpreter has one device, 0")
    return _device


def is_available() -> bool:
    """Whether kernels can be launched: always."""
    return True


def detect() -> bool:
    """Print the devices."""
    print(f"Found 1 device\nid 0  {_device.name.decode()}")
    return True


def close() -> None:
    """Release the device: nothing to do."""


# -- names that mean something inside a kernel -----------------------------------------------------------------------

for _path in [*SPECIAL, *DEVICE]:
    _top = _path.partition(".")[0]
    if _top != "this_grid":
        globals()[_top] = DeviceName(_top)
del _path, _top

__all__ = [
    "DeviceArray", "as_cuda_array", "device_array", "device_array_like", "is_cuda_array", "jit", "pinned_array",
    "pinned_array_like", "to_device",
]  # fmt: skip
