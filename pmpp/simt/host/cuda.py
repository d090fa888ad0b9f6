"""`pmpp.simt.cuda`: the names of `numba.cuda`, run by the interpreter."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pmpp.simt.api.intrinsics import DEVICE, SPECIAL, DeviceName
from pmpp.simt.front.compiler import compile_function
from pmpp.simt.host.arrays import DeviceArray, as_cuda_array, device_array, device_array_like, is_cuda_array, to_device
from pmpp.simt.host.context import (
    REFUSED,
    Context,
    CudaSupportError,
    Device,
    Event,
    In,
    InOut,
    KernelRuntimeError,
    Out,
    Stream,
    check_stream,
    close,
    cuda_error,
    current_context,
    default_stream,
    defer_cleanup,
    detect,
    event,
    event_elapsed_time,
    external_stream,
    from_cuda_array_interface,
    get_current_device,
    gpus,
    is_available,
    is_bfloat16_supported,
    is_float16_supported,
    is_fp8_supported,
    is_supported_version,
    legacy_default_stream,
    list_devices,
    managed_array,
    mapped,
    mapped_array,
    mapped_array_like,
    per_thread_default_stream,
    pinned,
    pinned_array,
    pinned_array_like,
    profile_start,
    profile_stop,
    profiling,
    require_context,
    select_device,
    stream,
    synchronize,
)
from pmpp.simt.host.launch import configure, plain_launch
from pmpp.simt.host.reduction import Reduce, reduce
from pmpp.simt.values.dtypes import BFLOAT16, HAS_BFLOAT16, as_dtype
from pmpp.simt.values.errors import ArgumentError, LaunchError, UnsupportedError


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
byte, char, short, intc, longlong = uint8, int8, int16, int32, int64
uchar, ushort, uintc, ulonglong, size_t, ssize_t = uint8, uint16, uint32, uint64, uint64, int64
long_, ulong, int_, uint = (ScalarType(kind) for kind in (np.int64, np.uint64, np.int64, np.uint64))
none = None
if HAS_BFLOAT16:
    bfloat16 = ScalarType(BFLOAT16)


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


class MissingError(UnsupportedError, AttributeError):
    """An attribute that only a compiled kernel has."""


_COMPILED = frozenset({
    "compile", "compile_device", "get_const_mem_size", "get_local_mem_per_thread", "get_max_threads_per_block",
    "get_overload", "get_regs_per_thread", "get_shared_mem_per_block", "inspect_asm", "inspect_cfg",
    "inspect_disasm_cfg", "inspect_llvm", "inspect_lto_ptx", "inspect_sass", "inspect_sass_cfg", "inspect_types",
    "overloads", "recompile", "specialize", "stats",
})  # fmt: skip


class Kernel:
    """A kernel or device function; `kernel[grid, block, stream, sharedmem](...)` launches it."""

    def __init__(
        self,
        py_func: Callable,
        *,
        device: bool = False,
        signature: Any = None,
        launch_bounds: Any = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        functools.update_wrapper(self, py_func)
        self.py_func, self.device, self.options = py_func, device, dict(options)
        self.max_threads = _max_threads(launch_bounds)
        declared = [] if signature is None else signature if isinstance(signature, list) else [signature]
        parsed = [_signature(one) for one in declared]
        self.signatures = [arguments for _, arguments in parsed]
        self.device_types = parsed[0] if device and len(parsed) == 1 else None
        if not device and any(result is not None for result, _ in parsed):
            raise ArgumentError(
                f"the signature of {py_func.__name__}() names a result, and a kernel returns none: void"
            )
        if declared and not device:  # Numba compiles a kernel with a signature at once
            for refusal in compile_function(py_func).literal_shapes:  # a kernel's arguments are never constants
                raise refusal

    def __getitem__(self, configuration: Any) -> Configured:
        if self.device:
            raise LaunchError(f"{self.py_func.__name__} is a device function; only kernels are launched")
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                f"a launch is configured as kernel[grid, block, stream, sharedmem], not with {configuration!r}"
            )
        grid, block, *rest = configuration
        stream, sharedmem = (*rest, *(0, 0)[len(rest) :])
        check_stream(stream)
        _, (x, y, z), _ = configure(grid, block, sharedmem)
        if self.max_threads is not None and x * y * z > self.max_threads:
            name = self.py_func.__name__
            raise LaunchError(
                f"the block has {x * y * z} threads; {name} was made for at most {self.max_threads} (launch_bounds)"
            )
        return Configured(self, grid, block, sharedmem)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Configured:
        """`kernel[griddim, blockdim, stream, sharedmem]`."""
        return self[griddim, blockdim, stream, sharedmem]

    def __getattr__(self, name: str) -> Any:
        if name in _COMPILED:
            raise MissingError(f"{self.__name__}.{name}: the interpreter compiles nothing; on a GPU this is Numba's")
        raise AttributeError(f"a kernel has no {name}")

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable:
        """A launcher for one thread a task in one dimension; with no tasks it launches nothing."""
        check_stream(stream)
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


def _max_threads(launch_bounds: Any) -> int | None:
    """The most threads a block that `launch_bounds` allows: itself, or the first of up to three bounds."""
    bounds = launch_bounds if isinstance(launch_bounds, tuple) else (launch_bounds,)
    if len(bounds) > 3:
        raise LaunchError(f"Got {len(bounds)} launch bounds: {launch_bounds}; there are at most three")
    return bounds[0]


class Configured:
    """A kernel with its launch configuration."""

    def __init__(self, kernel: Kernel, grid: Any, block: Any, sharedmem: int, cluster: int = 1) -> None:
        self.kernel, self.grid, self.block, self.sharedmem, self.cluster = kernel, grid, block, sharedmem, cluster

    def __call__(self, *args: Any) -> None:
        plain_launch(
            self.kernel.py_func, self.grid, self.block, args, self.sharedmem, self.kernel.signatures, self.cluster
        )


def jit(
    func_or_sig: Any = None, *, device: bool = False, signature: Any = None, launch_bounds: Any = None, **options: Any
) -> Any:
    """`@cuda.jit`, `@cuda.jit(device=True)`, `@cuda.jit("void(float32[:])")`.

    Of the compiler's options only `launch_bounds` matters here: a launch with more threads a block is refused. The
    others are kept in `Kernel.options`, for those who compile the function.
    """
    if options.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA; the interpreter always checks")
    for name in ("argtypes", "restype", "bind"):
        if options.get(name) is not None:
            raise ArgumentError(
                f"{name} is an argument of old: write the signature first, cuda.jit('void(float32[:])')"
            )
    if inspect.isfunction(func_or_sig):
        return Kernel(func_or_sig, device=device, launch_bounds=launch_bounds, options=options)
    declared = func_or_sig if func_or_sig is not None else signature

    def made(py_func: Callable) -> Kernel:
        return Kernel(py_func, device=device, signature=declared, launch_bounds=launch_bounds, options=options)

    return made


def void(*arguments: Any) -> Signature:
    """`void(float32[:], int32)`: a signature."""
    return Signature(None, arguments)


# -- names that mean something inside a kernel -----------------------------------------------------------------------

for _path in [*SPECIAL, *DEVICE]:
    _top = _path.partition(".")[0]
    if _top != "this_grid":
        globals()[_top] = DeviceName(_top)
del _path, _top


class types:
    """`cuda.types`: the scalar types by name."""


for _name, _kind in list(globals().items()):
    if isinstance(_kind, ScalarType):
        setattr(types, _name, _kind)
types.bool, types.void, types.none = boolean, void, none  # type: ignore[attr-defined]
del _name, _kind


def __getattr__(name: str) -> Any:
    if name == "bool":  # as a global it would hide Python's from this module
        return boolean
    if name in REFUSED:
        return REFUSED[name]
    raise AttributeError(f"cuda has no {name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *REFUSED, "bool"})


__all__ = [
    "Context", "CudaSupportError", "Device", "DeviceArray", "Event", "In", "InOut", "KernelRuntimeError", "Out",
    "Reduce", "Stream", "as_cuda_array", "close", "cuda_error", "current_context", "default_stream", "defer_cleanup",
    "detect",
    "device_array", "device_array_like", "event", "event_elapsed_time", "external_stream",
    "from_cuda_array_interface", "get_current_device", "gpus", "is_available", "is_bfloat16_supported",
    "is_cuda_array", "is_float16_supported", "is_fp8_supported", "is_supported_version", "jit",
    "legacy_default_stream", "list_devices", "managed_array", "mapped", "mapped_array", "mapped_array_like",
    "per_thread_default_stream", "pinned", "pinned_array", "pinned_array_like", "profile_start", "profile_stop",
    "profiling", "reduce", "require_context", "select_device", "stream", "synchronize", "to_device",
]  # fmt: skip
