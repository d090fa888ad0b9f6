"""Whether a GPU can be used, and if not, why.

The driver is asked first and directly, so that Numba is imported only where it can work. The Makefile runs this file
before anything is installed, to learn which extra fits the driver: it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import types
from importlib import metadata

__all__ = ["dotted", "driver", "extra", "fault", "one_line", "text", "version"]

MIN_DRIVER = (12, 0)  # what numba-cuda 0.30 supports
MIN_CAPABILITY = (7, 5)  # Turing: the oldest that CUDA 13 compiles for, and the oldest that the tests compile for


@functools.cache
def fault() -> tuple[str | None, bool]:
    """``(fault, present)``: why no GPU can be used, as a clause, or None; and whether the driver sees a GPU at all."""
    supported, why = driver()
    if why:
        return why, False
    if supported < MIN_DRIVER:
        need = f"{dotted(MIN_DRIVER)} or later is needed: update the driver"
        return f"its driver supports CUDA {dotted(supported)}, and {need}", True
    install = f'install it with: pip install -e ".[{extra()}]"'
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "NUMBA_ENABLE_CUDASIM replaces the GPU by Numba's simulator: unset it", True
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed: {install}", True
    try:
        from numba import cuda
    except Exception as error:  # a broken installation can raise anything, and must not end in a traceback
        numpy = version("numpy") or "0.0"
        if tuple(int(part) for part in numpy.split(".")[:2]) >= (2, 5):
            return f"NumPy {numpy} breaks numba-cuda: pip install 'numpy<2.5'", True
        return f"numba-cuda {version('numba-cuda')} cannot be imported ({one_line(error)}): {install}", True
    return _toolkit_fault(supported, install) or _device_fault(cuda), True


@functools.cache
def driver() -> tuple[tuple[int, int], str | None]:
    """``(CUDA version of the driver, fault)``, asked from the driver itself, so that Numba need not be imported."""
    none = (0, 0)
    if sys.platform == "darwin":
        return none, "macOS has no NVIDIA driver"
    names = ["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"]
    for name in names:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return none, "no NVIDIA driver was found"
    code = library.cuInit(0)
    if code == 100:
        hidden = " (CUDA_VISIBLE_DEVICES hides some or all)" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        return none, f"the NVIDIA driver sees no GPU{hidden}"
    if code == 803:
        return none, "the NVIDIA driver and its kernel module are of different versions: reboot, or update the driver"
    if code:
        words = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(words))
        return none, f"the NVIDIA driver does not start (error {code}: {text(words.value or b'unknown')})"
    number, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    library.cuDeviceGetCount(ctypes.byref(count))
    supported = (number.value // 1000, number.value % 1000 // 10)
    return supported, None if count.value else "the NVIDIA driver sees no GPU"


def extra() -> str:
    """The extra of pyproject.toml that fits the driver, or "" where no driver can be used."""
    supported, why = driver()
    if why or supported < MIN_DRIVER:
        return ""
    return "gpu-cu12" if supported < (13, 0) else "gpu-cu13"


def _toolkit_fault(driver_version: tuple[int, int], install: str) -> str | None:
    """Whether the compiler libraries that Numba needs are here, and not newer than the driver."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        for library in ("nvrtc", "nvvm", "nvJitLink"):
            load_nvidia_dynamic_lib(library)
        major = nvrtc.nvrtcVersion()[1]
    except Exception as error:  # each library fails in its own way
        return f"the CUDA compiler libraries are missing ({one_line(error)}): {install}"
    if major > driver_version[0]:
        have = f"the driver supports CUDA {dotted(driver_version)}"
        return f"numba-cuda is set up for CUDA {major}, but {have}: {install}"
    return None


def _device_fault(cuda: types.ModuleType) -> str | None:
    try:
        device = cuda.get_current_device()
        capability = tuple(device.compute_capability)
        name = text(device.name)
        cuda.current_context()
    except Exception as error:  # the driver's own errors, in the words of whichever layer raised
        return f"the GPU cannot be used ({one_line(error)})"
    if capability < MIN_CAPABILITY:
        return f"{name} has compute capability {dotted(capability)}, and {dotted(MIN_CAPABILITY)} or later is needed"
    return None


def one_line(error: Exception) -> str:
    """An error as one clause: its type, and the first line of what it says."""
    lines = [line.strip().rstrip(":.") for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(extra())
