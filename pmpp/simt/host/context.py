"""The host side of `cuda`: streams, events, devices, contexts, shared memory; and what there is not.

The interpreter finishes each piece of work before it returns and keeps device memory in the computer's own.  So
streams are always empty, and pinning, mapping and managing memory need nothing done.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from pmpp.simt.host.arrays import DeviceArray, as_cuda_array
from pmpp.simt.values.dtypes import HAS_BFLOAT16
from pmpp.simt.values.errors import ArgumentError, LaunchError, UnsupportedError

# -- streams and events ----------------------------------------------------------------------------------------------


class Stream:
    """A queue of work.  The interpreter finishes each piece before it returns, so a stream is always empty."""

    handle = 0

    def synchronize(self) -> None:
        """Wait for the work queued so far: there is none."""

    def auto_synchronize(self) -> Stream:
        """A context manager that waits at its end."""
        return self

    def add_callback(self, callback: Callable, arg: Any = None) -> None:
        """Call `callback(stream, status, arg)` when the work queued so far is done: now, with status 0."""
        callback(self, 0, arg)

    def async_done(self) -> NoReturn:
        """Not here: there is nothing to await."""
        raise UnsupportedError("stream.async_done: the interpreter never works in the background: nothing to await")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __repr__(self) -> str:
        return "<stream of the interpreter>"


def check_stream(value: Any) -> None:
    """Refuse what is neither 0 nor a stream."""
    if not (isinstance(value, Stream) or (isinstance(value, int) and not isinstance(value, bool) and value == 0)):
        raise ArgumentError(f"the stream is {value!r}; it must be 0 or a stream made with cuda.stream()")


def stream() -> Stream:
    """A new stream."""
    return Stream()


def default_stream() -> Stream:
    """The stream that is used when none is given."""
    return Stream()


legacy_default_stream = per_thread_default_stream = default_stream


def external_stream(ptr: int) -> NoReturn:
    """Not here: a stream of another library belongs to a GPU."""
    raise UnsupportedError("cuda.external_stream: the interpreter has no GPU, and so no stream of another library")


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


def event(timing: bool = True) -> Event:
    """A new event; with timing=False it cannot tell the time."""
    return Event(timing)


def event_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two recorded events: the interpreter's own time, which says nothing about a GPU."""
    if not (start.timing and end.timing):
        raise LaunchError("both events must be made with timing=True for their distance to be asked for")
    if start.time is None or end.time is None:
        raise LaunchError("both events must be recorded before their distance is asked for")
    return (end.time - start.time) * 1e3


def synchronize() -> None:
    """Wait for all work: there is none."""


# -- devices and contexts --------------------------------------------------------------------------------------------


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
    CLOCK_RATE, MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH = 1_980_000, 3_201_000, 6144  # kHz, kHz, bits
    TOTAL_CONSTANT_MEMORY = 64 * 1024
    COOPERATIVE_LAUNCH = 1
    supports_float16, supports_bfloat16, supports_fp8 = True, HAS_BFLOAT16, False

    def get_primary_context(self) -> Context:
        """The context of this device."""
        return current_context()

    def reset(self) -> None:
        """Release what the device holds: nothing to do."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __repr__(self) -> str:
        return f"<{self.name.decode()}>"


class Devices(list):
    """`cuda.gpus`: the devices; one."""

    @property
    def lst(self) -> list[Device]:
        """All devices, as a list."""
        return list(self)

    @property
    def current(self) -> Device:
        """The device that kernels run on."""
        return self[0]


_device = Device()
gpus = Devices([_device])


class Context:
    """What `cuda.current_context()` returns: the interpreter's one context."""

    device, id = _device, 0

    def synchronize(self) -> None:
        """Wait for all work: there is none."""

    def reset(self) -> None:
        """Release what the context holds: nothing to do."""

    def push(self) -> None:
        """Make this the current context: it is."""

    def pop(self) -> None:
        """Leave this context: it stays the only one."""

    def create_stream(self) -> Stream:
        """A new stream."""
        return Stream()

    def create_event(self, timing: bool = True) -> Event:
        """A new event."""
        return Event(timing)

    def get_default_stream(self) -> Stream:
        """The stream that is used when none is given."""
        return Stream()

    get_legacy_default_stream = get_per_thread_default_stream = get_default_stream

    def can_access_peer(self, peer_context: Any) -> bool:
        """Whether another GPU's memory can be read: there is no other GPU."""
        return False

    def defer_cleanup(self) -> contextlib.AbstractContextManager:
        """A context manager inside which no memory is released."""
        return defer_cleanup()

    def __getattr__(self, name: str) -> Any:
        if name in _CONTEXT:
            raise UnsupportedError(f"current_context().{name}: {_CONTEXT[name]}")
        raise AttributeError(f"a context has no {name}")


_DRIVER = "it belongs to the CUDA driver, which the interpreter does without"
_IPC = "memory of the interpreter belongs to this process and cannot be shared with another"
_CONTEXT = {
    **dict.fromkeys(
        ("create_external_stream", "create_module_image", "create_module_ptx", "enable_peer_access", "memalloc",
         "memallocmanaged", "memhostalloc", "mempin", "prepare_for_use", "unload_module"), _DRIVER),
    "get_ipc_handle": _IPC, "open_ipc_handle": _IPC,
    "get_memory_info": "device memory is the computer's own, of which only the operating system keeps account",
    "get_active_blocks_per_multiprocessor": "occupancy needs the registers of a compiled kernel",
    "get_max_potential_block_size": "occupancy needs the registers of a compiled kernel",
}  # fmt: skip

_context = Context()


def current_context(devnum: int | None = None) -> Context:
    """The context of device `devnum`, which must be 0."""
    if devnum not in (None, 0):
        raise LaunchError(f"devnum is {devnum!r}; the interpreter has one device, 0")
    return _context


def require_context(fn: Callable) -> Callable:
    """A decorator that makes sure of a context: there always is one."""
    return fn


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


def is_supported_version() -> bool:
    """Whether the CUDA runtime will do: none is needed."""
    return True


def is_float16_supported() -> bool:
    """Whether kernels can use float16."""
    return True


def is_bfloat16_supported() -> bool:
    """Whether kernels can use bfloat16."""
    return _device.supports_bfloat16


def is_fp8_supported() -> bool:
    """Whether kernels can use 8-bit floats."""
    return False


def cuda_error() -> None:
    """What kept the driver from starting: nothing."""
    return


def detect() -> bool:
    """Print the devices."""
    print(f"Found 1 device\nid 0  {_device.name.decode()}")
    return True


def close() -> None:
    """Release the device: nothing to do."""


# -- memory that host and device share -------------------------------------------------------------------------------


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> np.ndarray:
    """Host memory.  On a GPU its pages are locked, so that transfers run at full speed."""
    return np.empty(shape, dtype, order=order)


def pinned_array_like(ary: np.ndarray) -> np.ndarray:
    """Host memory of the shape, dtype and order of `ary`."""
    return np.empty_like(ary)


def mapped_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0,
    portable: bool = False, wc: bool = False,
) -> np.ndarray:  # fmt: skip
    """Host memory that kernels work on in place.  On a GPU each access crosses the bus."""
    return pinned_array(shape, dtype, order=order)


def mapped_array_like(ary: np.ndarray, stream: Any = 0, portable: bool = False, wc: bool = False) -> np.ndarray:
    """Mapped memory of the shape, dtype and order of `ary`."""
    return np.empty_like(ary)


def managed_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0,
    attach_global: bool = True,
) -> np.ndarray:  # fmt: skip
    """Memory that host and kernels both use.  On a GPU its pages move to whoever touches them."""
    return pinned_array(shape, dtype, order=order)


@contextlib.contextmanager
def pinned(*arylist: np.ndarray) -> Iterator[None]:
    """Lock the pages of host arrays for a while: nothing to do."""
    for ary in arylist:
        if not isinstance(ary, np.ndarray):
            raise ArgumentError(f"pinned takes NumPy arrays, not {type(ary).__name__}")
    yield


@contextlib.contextmanager
def mapped(*arylist: np.ndarray, stream: Any = 0, portable: bool = False) -> Iterator[Any]:
    """Host arrays as device arrays for a while; kernels write into the host's memory."""
    check_stream(stream)
    views = []
    for ary in arylist:
        if not (isinstance(ary, np.ndarray) and ary.flags.forc):
            raise ArgumentError(f"mapped takes contiguous NumPy arrays, not {type(ary).__name__}")
        views.append(DeviceArray.holding(ary))
    yield views[0] if len(views) == 1 else views


@contextlib.contextmanager
def defer_cleanup() -> Iterator[None]:
    """Inside, no device memory is released: Python does that here."""
    yield


class Transfer:
    """An argument of a launch with the direction in which it is copied."""

    into, back = True, True

    def __init__(self, value: Any) -> None:
        self.value = value


class In(Transfer):
    """`cuda.In(x)`: copy a host array to the device, and not back."""

    back = False


class Out(Transfer):
    """`cuda.Out(x)`: give the kernel uninitialised memory, and copy it back."""

    into = False


class InOut(Transfer):
    """`cuda.InOut(x)`: copy a host array to the device and back, as a plain array is."""


def from_cuda_array_interface(desc: dict, owner: Any = None, sync: bool = True) -> DeviceArray:
    """The device array that a `__cuda_array_interface__` describes; the interpreter knows only its own."""
    return as_cuda_array(type("Described", (), {"__cuda_array_interface__": desc})())


# -- profiling -------------------------------------------------------------------------------------------------------


def profile_start() -> None:
    """Tell a profiler to begin: none is attached.  (`simt.profile` and `simt.record` are the interpreter's own.)"""


def profile_stop() -> None:
    """Tell a profiler to stop: none is attached."""


@contextlib.contextmanager
def profiling() -> Iterator[None]:
    """`profile_start()` and, at the end, `profile_stop()`."""
    yield


# -- what there is not -----------------------------------------------------------------------------------------------


class CudaSupportError(RuntimeError):
    """Numba's error for a driver that cannot be used; the interpreter never raises it."""


class KernelRuntimeError(RuntimeError):
    """Numba's error for an assertion that fails in a kernel; the interpreter raises SimtError."""


class Refused:
    """A name of `numba.cuda` that the interpreter does not have: using it in any way says why."""

    def __init__(self, name: str, why: str) -> None:
        self.__name__, self._message = name, f"cuda.{name} does not exist in the interpreter: {why}"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python and its tools ask of any object
            raise AttributeError(name)
        raise UnsupportedError(self._message)

    def __repr__(self) -> str:
        return f"<{self._message}>"


_COMPILER = "kernels are interpreted, so nothing is compiled or linked; on a GPU this is Numba's"
_REASONS = {
    _COMPILER: (
        "Archive", "CUSource", "Cubin", "Fatbin", "LTOIR", "LinkableCode", "Object", "PTXSource", "compile",
        "compile_all", "compile_for_current_device", "compile_ptx", "compile_ptx_for_current_device",
        "declare_device", "HAS_NUMBA", "config_default_cc", "numba_cuda_default_ptx_cc",
    ),
    _DRIVER: (
        "BaseCUDAMemoryManager", "HostOnlyCUDAMemoryManager", "MappedMemory", "MemoryInfo", "MemoryPointer",
        "PinnedMemory", "set_memory_manager", "prepare_shape_strides_dtype",
    ),
    _IPC: ("GetIpcHandleMixin", "IpcHandle", "open_ipc_array"),
    "it makes a ufunc with Numba's vectoriser; write the kernel that it stands for, one thread an element": (
        "vectorize", "guvectorize",
    ),
    "no kernel of this workbook needs the type in a signature": (
        "Dim3", "GridGroup", "deferred_type", "dim3", "ffi", "ffi_forced_object", "grid_group", "optional",
    ),
    "it is one of Numba's internal modules": (
        "api", "api_util", "cache_hints", "cext", "cgutils", "cloudpickle", "codegen", "compiler", "config",
        "core", "cpython", "cuda_paths", "cudadrv", "datamodel", "debuginfo", "decorators", "descriptor",
        "device_init", "devicearray", "devices", "deviceufunc", "dispatcher", "driver", "errors", "extending",
        "flags", "initialize", "intrinsics", "itanium_mangler", "kernels", "launchconfig", "literal", "locks",
        "lowering", "mathimpl", "memory_management", "misc", "models", "nvvm", "nvvmutils", "reduction",
        "runtime", "serialize", "simulator", "stubs", "target", "typeconv", "typing", "ufuncs", "utils",
        "vectorizers", "args",
    ),
}  # fmt: skip

if not HAS_BFLOAT16:
    _REASONS["NumPy gets the type from the package ml_dtypes: pip install ml_dtypes"] = ("bfloat16",)

#: Every name that is refused, and why.
REFUSED = {name: Refused(name, why) for why, names in _REASONS.items() for name in names}
