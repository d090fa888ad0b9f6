"""Which backend runs the kernels, and the arrays and streams that they are given.

The backend is Numba on an NVIDIA GPU where one is usable, else the interpreter. ``PMPP_BACKEND=numba`` or ``simt``
overrides the choice. Nothing here imports Numba, CuPy or the interpreter before a kernel or an array is asked for.

Every rung passes its arguments through ``as_input``, ``as_output`` and ``as_stream``. They copy and cast nothing behind
the caller's back: an array that does not fit is an error that names the argument, what it was, and what is accepted.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pmpp.runtime import foreign, gpu, translate
from pmpp.runtime.dtypes import BFLOAT16, dtype_of, is_bfloat16

__all__ = [
    "Backend",
    "BackendError",
    "BackendWarning",
    "address",
    "as_input",
    "as_output",
    "as_stream",
    "backend",
    "cached",
    "current",
    "describe",
    "empty",
    "limits",
    "on_gpu",
    "to_device",
    "to_host",
]


class BackendError(RuntimeError):
    """The backend that was asked for cannot work. The message is one sentence and says what to do."""


class BackendWarning(UserWarning):
    """There is a GPU, but kernels run in the interpreter."""


@dataclass(frozen=True)
class Backend:
    """``name`` ("numba" or "simt"), ``why`` this one (a clause), and ``cuda``, the module kernels are written in."""

    name: str
    why: str
    cuda: types.ModuleType


# ---------------------------------------------------------------------------------------------- choosing the backend


@functools.cache
def backend() -> Backend:
    """The backend in use, chosen once a process.

    Raises BackendError if ``PMPP_BACKEND`` names no backend, or names one that cannot work here.
    """
    wanted = os.environ.get("PMPP_BACKEND", "").strip().lower()
    if wanted not in ("", "numba", "simt"):
        raise BackendError(
            f"PMPP_BACKEND must be 'numba' or 'simt', or unset to choose by the machine; was {wanted!r}."
        )
    if wanted == "simt":
        return _interpreter("PMPP_BACKEND=simt asks for it")
    fault, gpu_present = gpu.fault()
    if fault is None:
        from numba import cuda
        from numba.cuda import random  # noqa: F401  makes it an attribute of cuda

        # A lesson launches small grids on purpose; Numba would warn about each.
        cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
        translate.install()
        from pmpp.runtime import bfloat16, launcher

        launcher.install()
        bfloat16.install()
        return Backend("numba", "PMPP_BACKEND=numba asks for it" if wanted else "a usable NVIDIA GPU was found", cuda)
    if wanted == "numba":
        raise BackendError(f"PMPP_BACKEND=numba asks for a GPU, but {fault}.")
    if gpu_present:
        warnings.warn(f"Kernels run in the interpreter although there is a GPU: {fault}.", BackendWarning, stacklevel=2)
    return _interpreter(fault)


def _interpreter(why: str) -> Backend:
    from pmpp.simt import cuda

    return Backend("simt", why, cuda)


@functools.cache
def on_gpu() -> bool:
    """Whether kernels run on a GPU."""
    return backend().name == "numba"


# ------------------------------------------------------------------------------------------------ what the machine is

_LIMITS = {
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_block_x": "MAX_BLOCK_DIM_X",
    "max_block_y": "MAX_BLOCK_DIM_Y",
    "max_block_z": "MAX_BLOCK_DIM_Z",
    "max_grid_x": "MAX_GRID_DIM_X",
    "max_grid_y": "MAX_GRID_DIM_Y",
    "max_grid_z": "MAX_GRID_DIM_Z",
    "max_shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",  # bytes
    "max_shared_memory_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",  # bytes
    "max_registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "max_threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "l2_cache": "L2_CACHE_SIZE",  # bytes
    "warp_size": "WARP_SIZE",
}


def limits() -> Mapping[str, typing.Any]:
    """The current device's ``name``, ``compute_capability`` and limits (sizes in bytes).

    In the interpreter these are the limits of the GPU that it imitates.
    """
    return _limits_of(current())


@functools.cache
def _limits_of(number: int) -> Mapping[str, typing.Any]:
    device = backend().cuda.get_current_device()
    found: dict[str, typing.Any] = {"name": gpu.text(device.name)}
    found["compute_capability"] = tuple(device.compute_capability)
    for key, attribute in _LIMITS.items():
        value = getattr(device, attribute, None)
        if value is not None:
            found[key] = int(value)
    return types.MappingProxyType(found)


def describe() -> str:
    """What ``python -m pmpp`` prints: the backend and why, the device and its limits, versions, and what is missing.

    Raises BackendError where ``backend()`` does.
    """
    import pmpp

    chosen, limit = backend(), limits()
    real = chosen.name == "numba"
    device = f"{limit['name']}, compute capability {gpu.dotted(limit['compute_capability'])}"
    if real:
        device += f", driver for CUDA {gpu.dotted(gpu.driver()[0])}"
    else:
        device = f"none: {device}"
    a_block = (
        f"{limit['max_threads_per_block']} threads, {limit['max_shared_memory_per_block'] // 1024} KiB shared memory"
    )
    packages = [
        "numpy",
        "matplotlib",
        "numba",
        "numba-cuda",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "torch",
        "jupyterlab",
        "pytest",
    ]
    versions = [f"{package} {found}" for package in packages if (found := gpu.version(package))]
    lines = [
        f"pmpp {pmpp.__version__}: kernels run {'on the GPU' if real else 'in the interpreter'}, because {chosen.why}.",
        f"device    {device}",
        f"limits    {a_block} a block; {limit.get('multiprocessors', '?')} multiprocessors",
        f"versions  Python {platform.python_version()}, {', '.join(versions)}",
    ]
    wanted = {
        "jupyterlab": 'JupyterLab, for the chapters: make lab, or pip install -e ".[lab]"',
        "pytest": 'pytest, for the tests: make test, or pip install -e ".[test]"',
    }
    if real:
        wanted["cupy"] = f'CuPy, for fast allocation and library baselines: pip install -e ".[{gpu.extra()}]"'
        wanted["torch"] = "PyTorch, for more library baselines (optional): pip install torch"
    missing = [words for module, words in wanted.items() if importlib.util.find_spec(module) is None]
    return "\n".join(lines + [f"missing   {words}" for words in missing or ["nothing"]])


# ------------------------------------------------------------------------------------------------------------- arrays


def cached(maxsize: int) -> Callable[[Callable], Callable]:
    """Keep the last ``maxsize`` results of the decorated function, which makes device arrays, for each device its own.

    >>> @cached(8)
    ... def zeros(n):
    ...     return to_device(np.zeros(n))
    >>> zeros(3) is zeros(3)
    True
    """

    def decorate(make: Callable) -> Callable:
        @functools.cache
        def of_device(number: int) -> Callable:
            return functools.lru_cache(maxsize)(make)

        @functools.wraps(make)
        def kept(*args: typing.Any) -> typing.Any:
            return of_device(current())(*args)

        return kept

    return decorate


def current() -> int:
    """The number of the current device; 0 where there is only one."""
    return _ask_for_current() if _device_count() > 1 else 0


def _ask_for_current() -> int:
    cuda = backend().cuda
    if getattr(cuda, "__name__", "") != "numba.cuda":
        return cuda.get_current_device().id
    from pmpp.runtime.array import device  # Numba's own way looks up a context each time

    return device()


def to_device(x: npt.ArrayLike, *, stream: typing.Any = 0) -> typing.Any:
    """A device array with a copy of ``x``, a NumPy array (or what ``numpy.asarray`` takes)."""
    x, stream = np.asarray(x), as_stream(stream)
    if not on_gpu() or not x.flags.c_contiguous or not x.size or x.dtype.hasobject:
        return _sent(x, stream)
    array = empty(x.shape, x.dtype, stream=stream)
    array.copy_to_device(x, stream=stream)
    return array


def _sent(x: np.ndarray, stream: typing.Any) -> typing.Any:
    """What ``cuda.to_device`` makes of an array of the host. Of bfloat16 Numba can only send the bits."""
    if not on_gpu() or not is_bfloat16(x.dtype):
        return backend().cuda.to_device(x, stream=stream)
    from pmpp.runtime.array import Array, adopted, layout

    bits = adopted(backend().cuda.to_device(x.view(np.uint16), stream=stream))
    return Array.at(bits.pointer, layout(bits.shape, bits.strides, x.dtype, current()), bits.owner)


def to_host(x: typing.Any) -> np.ndarray:
    """``x`` as a NumPy array: a device array is copied once the work queued before it is done; NumPy arrays pass."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "copy_to_host"):
        return x.copy_to_host()
    if hasattr(x, "__cuda_array_interface__") and on_gpu():
        return _wrap("x", x, 0).copy_to_host()
    raise TypeError(f"x must be a device array or a NumPy array, was {_kind(x)}")


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, stream: typing.Any = 0) -> typing.Any:
    """A device array with undefined contents, in C order. ``dtype`` is as in NumPy, or "bfloat16".

    On a GPU the memory comes from CuPy's pool if CuPy is installed: ``cuda.device_array`` asks the driver on every
    call, which costs more than many kernels. The pool reuses memory in the order of ``stream``.
    """
    shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    return _maker()(shape, dtype if type(dtype) is np.dtype else dtype_of(dtype), stream)


@functools.cache
def _maker() -> Callable:
    """The function behind `empty`."""
    cuda, cupy = backend().cuda, _cupy()
    if not on_gpu():
        return lambda shape, dtype, stream: cuda.device_array(shape, dtype)
    from pmpp.runtime.array import Array, adopted, contiguous

    if cupy is None:
        return lambda shape, dtype, stream: adopted(cuda.device_array(shape, dtype))
    alloc, cupy_stream = cupy.cuda.alloc, foreign.cupy_stream

    def make(shape: tuple[int, ...], dtype: np.dtype, stream: typing.Any) -> typing.Any:
        layout = contiguous(shape, dtype, current())
        if not layout.nbytes:
            return Array.at(0, layout, None)
        handle = _stream_handle(stream)
        if handle == cupy_stream():
            memory = alloc(layout.nbytes)
        else:
            with _cupy_stream(cupy, handle):
                memory = alloc(layout.nbytes)
        return Array.at(memory.ptr, layout, memory)

    return make


def _cupy_stream(cupy: types.ModuleType, handle: int) -> typing.Any:
    """CuPy's view of a stream that it did not make."""
    if not handle:
        return cupy.cuda.Stream.null
    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14

        class Protocol:
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, handle  # version of the protocol, stream

        return cupy.cuda.Stream.from_external(Protocol())
    return cupy.cuda.ExternalStream(handle)


@functools.cache
def _cupy() -> types.ModuleType | None:
    if not on_gpu():
        return None
    try:
        import cupy

        cupy.empty(1)  # an installation for another CUDA version imports, and fails here
    except Exception:  # CuPy is a convenience: whatever is wrong with it, Numba's own allocator works
        return None
    return cupy


def address(x: typing.Any) -> int:
    """The address of a device array's first element: what a 128-bit access needs to be a multiple of 16 bytes."""
    try:
        return x.pointer
    except AttributeError:
        pass
    if hasattr(x, "device_ctypes_pointer"):
        return x.device_ctypes_pointer.value or 0
    return int(x.__cuda_array_interface__["data"][0])


@functools.lru_cache(maxsize=256)
def _accepted(dtypes: typing.Any) -> tuple[frozenset[np.dtype], str]:
    several = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if BFLOAT16 is None:  # then no array has it
        kinds = [one if isinstance(one, str) and one == "bfloat16" else np.dtype(one) for one in several]
    else:
        kinds = [dtype_of(one) for one in several]
    return frozenset(one for one in kinds if isinstance(one, np.dtype)), _either([str(kind) for kind in kinds])


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _kind(x: typing.Any) -> str:
    name = f"{type(x).__module__}.{type(x).__qualname__}"
    return name.removeprefix("builtins.") if x is not None else "None"


def as_input(
    name: str,
    x: typing.Any,
    *,
    dtypes: typing.Any,
    ndim: int | tuple[int, ...] | None = None,
    shape: tuple[int | None, ...] | None = None,
    layout: str = "C",
    stream: typing.Any = 0,
) -> typing.Any:
    """``x`` as a device array that a kernel can be given, after checking it.

    Args:
        name: what the caller calls the argument; every error begins with it.
        x: a device array of the backend, or on a GPU anything with ``__cuda_array_interface__`` (CuPy, PyTorch, ...),
            which is wrapped, not copied; or a NumPy array, which is transferred.
        dtypes: the dtype or the tuple of dtypes accepted.
        ndim: the rank or the tuple of ranks accepted; None accepts any but 0.
        shape: the exact shape; None in it accepts any extent there.
        layout: "C" (contiguous in C order), "CF" (in C or in Fortran order) or "any".
        stream: the stream that the kernel will be launched on.

    Raises:
        TypeError: not an array, not on this backend, or of another dtype.
        ValueError: another rank, shape or layout, or on another device.
    """
    take = _TAKERS.get(type(x))
    if take is None:
        if isinstance(x, np.ndarray):
            if isinstance(x, np.ma.MaskedArray):
                raise TypeError(f"{name} must be a plain array, was a masked one: fill it first, as in x.filled(0)")
            _check(name, x, dtypes, ndim, shape, layout)
            if layout == "any":
                x = np.ascontiguousarray(x)  # the transfer copies in any case, and can only copy what is contiguous
            return _sent(_without_stride_0(x), as_stream(stream))
        take = _taker_of(type(x))
    array = take(name, x, stream)
    asked = getattr(array, "form", None), dtypes, ndim, layout
    if asked not in _PASSED:
        _check(name, array, dtypes, ndim, None, layout)
        _note(asked)
        if layout != "any" and 0 in array.strides:
            array = _without_stride_0(array)
    if shape is not None and array.shape != shape and not _fits(array.shape, shape):
        raise ValueError(f"{name} must have shape {_shape_words(shape)}, had {array.shape}")
    return array


def _without_stride_0(x: typing.Any) -> typing.Any:
    """A contiguous array with the strides that its shape says. An axis of one element may have had the stride 0.

    It has in NumPy's ``x[None]``. Numba takes that for a gap, and does not reshape such an array.
    """
    if 0 not in x.strides or not x.size:
        return x
    order = "C" if _contiguous(x.shape, x.strides, x.dtype.itemsize) else "F"
    if isinstance(x, np.ndarray):
        return x.reshape(-1, order=order).reshape(x.shape, order=order) if x.flags.forc else x
    if order == "F" or not on_gpu():
        return x
    from pmpp.runtime.array import Array, contiguous

    return Array.at(address(x), contiguous(tuple(x.shape), x.dtype, current()), getattr(x, "owner", x))


#: What was checked and found right before: an array's form (see `pmpp.runtime.array`), and what was asked of it.
_PASSED: set[tuple] = set()


def _note(asked: tuple) -> None:
    form = asked[0]
    if form is not None and form.order != "A":  # an "A" array can be contiguous in one shape, not in another
        if len(_PASSED) > 4096:
            _PASSED.clear()
        _PASSED.add(asked)


def as_output(
    name: str,
    out: typing.Any,
    *,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    apart: Mapping[str, typing.Any] = types.MappingProxyType({}),
    may_be: tuple[str, ...] = (),
    stream: typing.Any = 0,
) -> typing.Any:
    """``out`` as a device array of that shape and dtype in C order, or a new one if ``out`` is None.

    Args:
        name, out, shape, dtype, stream: as in ``as_input``.
        apart: by name, the arrays that the kernel reads or writes besides; they may share no memory with ``out``. None
            stands for an array that was not given.
        may_be: names of those that ``out`` may be as a whole, because a thread reads an element before it writes it.

    Raises what ``as_input`` raises; TypeError for a NumPy array, because a result stays on the device; and ValueError
    for a read-only array, and for one that shares memory with another.
    """
    if out is None:
        return _maker()(shape, dtype, stream) if type(dtype) is np.dtype else empty(shape, dtype, stream=stream)
    if isinstance(out, np.ndarray):
        use = "leave it out, or give pmpp.runtime.device.empty(shape, dtype)"
        raise TypeError(f"{name} must be a device array, was a NumPy array: {use}")
    take = _taker_of(type(out))
    if take in (_take_interface, _refused):
        if "__cuda_array_interface__" not in dir(out):
            raise TypeError(f"{name} must be a device array, was {_kind(out)}")
        if _read_only(out):  # arrays of the other kinds have no such state
            raise ValueError(f"{name} must be writable, was a read-only array")
    array = take(name, out, stream)
    if array is not out and getattr(array, "owner", out) is None:
        array = array.owned_by(out)
    asked = getattr(array, "form", None), dtype, None, "C"
    if asked not in _PASSED or array.shape != shape:
        _check(name, array, dtype, None, tuple(shape), "C")
        _note(asked)
    if apart:
        _refuse_overlap(name, array, apart, may_be)
    return array


def _refuse_overlap(name: str, out: typing.Any, apart: Mapping[str, typing.Any], may_be: tuple[str, ...]) -> None:
    try:  # most calls end here: the pool's arrays know where they lie
        begin, end = out.pointer, out.pointer + out.layout.nbytes
        for other, x in apart.items():
            if x is None or (x is out and other in may_be):
                continue
            if x.pointer < end and begin < x.pointer + x.layout.nbytes:
                break
        else:
            return
    except AttributeError:
        pass
    begin, end = _memory(out)
    for other, x in apart.items():
        first, last = (0, 0) if x is None else _memory(x)
        shared, whole = min(end, last) - max(begin, first), other in may_be
        if shared > 0 and not (whole and (first, last) == (begin, end)):
            wanted = f"be {other} itself or share no memory with it" if whole else f"share no memory with {other}"
            raise ValueError(f"{name} must {wanted}, had {end - begin} bytes, shared {shared} of them")


def _memory(x: typing.Any) -> tuple[int, int]:
    """The addresses of the first byte of a device array and of the one behind its last."""
    first = address(x)
    if not x.size:
        return first, first
    steps = [(extent - 1) * stride for extent, stride in zip(x.shape, x.strides, strict=True)]
    return first + sum(min(step, 0) for step in steps), first + sum(max(step, 0) for step in steps) + x.dtype.itemsize


def _check(name: str, x: typing.Any, dtypes: typing.Any, ndim: typing.Any, shape: typing.Any, layout: str) -> None:
    accepted, words = _accepted(dtypes)
    given = x.shape
    if x.dtype not in accepted:
        raise TypeError(f"{name} must be {words}, was {x.dtype}")
    if ndim is None:
        if not given:
            raise ValueError(f"{name} must have at least 1 dimension, had none")
    elif len(given) != ndim and (isinstance(ndim, int) or len(given) not in ndim):
        ranks = _either([str(rank) for rank in ([ndim] if isinstance(ndim, int) else ndim)])
        raise ValueError(
            f"{name} must have {ranks} dimension{'s' * (ranks != '1')}, had {len(given)}: its shape was {given}"
        )
    if shape is not None and given != shape and not _fits(given, shape):
        raise ValueError(f"{name} must have shape {_shape_words(shape)}, had {given}")
    if layout == "any" or _contiguous(given, x.strides, x.dtype.itemsize):
        return
    if layout == "CF" and _contiguous(given[::-1], x.strides[::-1], x.dtype.itemsize):
        return
    was = f"had shape {given} and strides {tuple(x.strides)} bytes"
    raise ValueError(
        f"{name} must be contiguous in {'C or Fortran' if layout == 'CF' else 'C'} order, {was}: copy it first"
    )


def _fits(given: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(given) == len(shape) and all(want in (None, have) for have, want in zip(given, shape, strict=True))


def _shape_words(shape: tuple[int | None, ...]) -> str:
    words = ", ".join("any" if extent is None else str(extent) for extent in shape)
    return f"({words},)" if len(shape) == 1 else f"({words})"


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    if 0 in shape:
        return True
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _read_only(x: typing.Any) -> bool:
    if hasattr(x, "copy_to_host"):
        return False  # the backend's own arrays have no such state
    interface = _interface_or_none(x)
    return isinstance(interface, Mapping) and bool(interface.get("data", (0, False))[1])


def _interface_or_none(x: typing.Any) -> typing.Any:
    try:
        return x.__cuda_array_interface__
    except Exception:  # PyTorch's raises several kinds of errors; _interface() explains them
        return None


def _taker_of(kind: type) -> Callable:
    """How an array of a type is taken: a function of its name, the array and the stream."""
    take = _TAKERS.get(kind)
    if take is None:
        take = _TAKERS[kind] = _taker(kind)
    return take


_TAKERS: dict[type, Callable] = {}


# Module by name rather than isinstance: neither Numba nor the interpreter may be imported for the other's sake.
def _taker(kind: type) -> Callable:
    origin, ours = kind.__module__, hasattr(kind, "copy_to_host")
    if not on_gpu():
        return _as_it_is if ours and origin.startswith("pmpp.simt") else _refused
    if ours and origin.startswith("pmpp.simt"):
        return _refused
    if ours and origin == "pmpp.runtime.array":
        return _take_array if _device_count() > 1 else _as_it_is
    if ours and origin.startswith("numba.cuda"):
        return _take_numba
    library = foreign.library(kind)
    return _take_from(library) if library else _take_interface


def _as_it_is(name: str, x: typing.Any, stream: typing.Any) -> typing.Any:
    return x


def _refused(name: str, x: typing.Any, stream: typing.Any) -> typing.NoReturn:
    if on_gpu():
        raise TypeError(f"{name} must be on the GPU, was an array of the interpreter: pass x.copy_to_host()")
    hint = ""
    if _is_torch(x):
        hint = ": pass x.numpy()" if getattr(x.device, "type", "") == "cpu" else ": pass x.cpu().numpy()"
        if str(getattr(x, "dtype", "")) == "torch.bfloat16":  # PyTorch makes no NumPy array of it
            hint = ": pass x.cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)"
    raise TypeError(f"{name} must be a NumPy array or an array of the interpreter, was {_kind(x)}{hint}")


def _take_numba(name: str, x: typing.Any, stream: typing.Any) -> typing.Any:
    """An array that Numba made."""
    from pmpp.runtime.array import adopted

    if _device_count() > 1:
        _check_device(name, x.form.device if adopted(x) is not None else _device_of(address(x)))
    else:
        adopted(x)
    return x


def _take_array(name: str, x: typing.Any, stream: typing.Any) -> typing.Any:
    """An `Array`. Where there are several devices, it needs no more than a look at its own."""
    _check_device(name, x.form.device)
    return x


def _take_interface(name: str, x: typing.Any, stream: typing.Any) -> typing.Any:
    return _wrap(name, x, _stream_handle(stream))


def _take_from(library: str) -> Callable:
    """The way for arrays of CuPy or PyTorch."""

    view, several, cuda = foreign.maker(library), _device_count() > 1, backend().cuda
    ordered = library == "cupy"

    def take(name: str, x: typing.Any, stream: typing.Any) -> typing.Any:
        array = view(x)
        if array is None:
            return _wrap(name, x, _stream_handle(stream))
        if not array.size:
            return empty(array.shape, array.dtype, stream=stream)  # its pointer may be null
        if several:
            _check_device(name, array.form.device)
        if ordered:
            foreign.begin_after(cuda, foreign.cupy_stream(), _stream_handle(stream))
        return array

    return take


def _is_torch(x: typing.Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "device")


def _interface(name: str, x: typing.Any) -> Mapping[str, typing.Any]:
    """``x.__cuda_array_interface__``, or an error that says why it has none."""
    if _is_torch(x):
        if x.device.type != "cuda":
            raise TypeError(f"{name} must be on the GPU, was a torch tensor on {x.device}: pass x.cuda()")
        if x.requires_grad:
            raise TypeError(f"{name} must be a plain array, was a torch tensor that requires grad: pass x.detach()")
        if str(getattr(x, "dtype", "")) == "torch.bfloat16" and BFLOAT16 is None:
            raise TypeError(f"{name} is bfloat16, which needs the package ml_dtypes: pip install ml_dtypes")
    try:
        interface = x.__cuda_array_interface__
    except AttributeError:
        accepted = "a NumPy array or an array on the GPU (Numba, CuPy, PyTorch)"
        raise TypeError(f"{name} must be {accepted}, was {_kind(x)}") from None
    except Exception as error:
        raise TypeError(f"{name} cannot be used: {_kind(x)} gives no address ({gpu.one_line(error)})") from error
    if not isinstance(interface, Mapping) or not {"shape", "typestr", "data"} <= interface.keys():
        raise TypeError(f"{name} cannot be used: the __cuda_array_interface__ of {_kind(x)} is not complete")
    if interface.get("mask") is not None:
        raise TypeError(f"{name} must be a plain array, was a masked one")
    return interface


def _wrap(name: str, x: typing.Any, handle: int) -> typing.Any:
    """A Numba view of a foreign GPU array, to be used on the stream with that handle."""
    interface = _interface(name, x)
    pointer = interface["data"][0]
    cuda = backend().cuda
    if 0 in interface["shape"]:
        return cuda.device_array(tuple(interface["shape"]), np.dtype(interface["typestr"]))  # its pointer may be null
    if _device_count() > 1:
        _check_device(name, _device_of(pointer))
    # Numba would make the host wait, and also where the streams are the same; a captured one must not be waited for.
    producer = interface.get("stream")
    foreign.begin_after(cuda, producer, handle)
    return cuda.from_cuda_array_interface({**interface, "stream": None}, owner=x, sync=False)


@functools.cache
def _device_count() -> int:
    return len(backend().cuda.gpus)


def _check_device(name: str, owner: int) -> None:
    if owner != (here := current()):
        raise ValueError(f"{name} must be on GPU {here}, the current device, was on GPU {owner}")


def _device_of(pointer: int) -> int:
    from numba.cuda.cudadrv import driver

    attribute = driver.binding.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver.driver.cuPointerGetAttribute(attribute, driver.binding.CUdeviceptr(pointer)))


# ------------------------------------------------------------------------------------------------------------ streams


def as_stream(stream: typing.Any) -> typing.Any:
    """A stream that a launch accepts: 0 (the default stream), the backend's own, or on a GPU CuPy's or PyTorch's.

    Raises TypeError for anything else, a raw pointer included: nothing tells it from a wrong number.
    """
    if type(stream) is int and stream == 0:
        return 0
    origin = type(stream).__module__
    if on_gpu():
        if origin.startswith("numba.cuda") and hasattr(stream, "handle"):
            return stream
        if origin.partition(".")[0] in ("cupy", "torch"):
            pointer = getattr(stream, "ptr" if origin.startswith("cupy") else "cuda_stream", None)
            if isinstance(pointer, int):
                return _external_stream(pointer) if pointer else 0
        raise TypeError(f"stream must be 0, or a Numba, CuPy or PyTorch stream, was {_stream_words(stream)}")
    if origin.startswith("pmpp.simt") and hasattr(stream, "synchronize") and not hasattr(stream, "copy_to_host"):
        return stream
    raise TypeError(f"stream must be 0 or a stream of the interpreter, cuda.stream(), was {_stream_words(stream)}")


@functools.lru_cache(256)
def _external_stream(pointer: int) -> typing.Any:
    return backend().cuda.external_stream(pointer)


def _stream_words(stream: typing.Any) -> str:
    return repr(stream) if isinstance(stream, int | float | str) else _kind(stream)


def _stream_handle(stream: typing.Any) -> int:
    if type(stream) is int and stream == 0:
        return 0
    handle = int(as_stream(stream))
    return 0 if handle == 1 else handle  # 1 is the driver's name for the default stream
