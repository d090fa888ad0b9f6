"""The choice of the backend, and what it says of itself."""

import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from pmpp.runtime import device, gpu


def python(code, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMPP_", "NUMBA_"))}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=120, check=False)


def test_importing_pmpp_chooses_nothing():
    modules = "sys, pmpp, pmpp.runtime.device, pmpp.runtime.rung"
    code = f"import {modules}; print({{'numba', 'cupy', 'pmpp.simt'}} & set(sys.modules))"
    assert python(code, PMPP_BACKEND="nonsense").stdout == "set()\n"


def test_what_readers_call_is_found_when_asked_for():
    code = "import pmpp, sys; before = 'pmpp.lab' in sys.modules; from pmpp import check, cuda, show; "
    code += "from pmpp.lab.teach import exercise, source; from pmpp import simt; "
    code += "print(before, check is exercise.check, show is source.show, cuda is simt.cuda, 'show' in dir(pmpp))"
    assert python(code, PMPP_BACKEND="simt").stdout == "False True True True True\n"
    assert "module 'pmpp' has no attribute 'nonsense'" in python("import pmpp; pmpp.nonsense").stderr


def test_the_interpreter_can_be_asked_for():
    result = python("from pmpp.runtime import device as d; b = d.backend(); print(b.name, b.why)", PMPP_BACKEND="simt")
    assert result.stdout == "simt PMPP_BACKEND=simt asks for it\n"


def test_with_numba_the_random_generators_are_there_at_once():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    code = "import warnings; warnings.simplefilter('ignore'); from pmpp.runtime import device as d, gpu; "
    result = python(code + "gpu.fault = lambda: (None, True); print(d.backend().cuda.random.__name__)")
    assert result.stdout == "numba.cuda.random\n", result.stderr


def test_an_unknown_backend_is_refused():
    result = python("from pmpp import cuda", PMPP_BACKEND="opencl")
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        "pmpp.runtime.device.BackendError: PMPP_BACKEND must be 'numba' or 'simt', or unset to choose by the machine; "
        "was 'opencl'."
    )


@pytest.mark.parametrize("asked", ["numba", "opencl"])
def test_the_description_has_no_traceback(asked):
    if asked == "numba" and gpu.fault()[0] is None:
        pytest.skip("there is a GPU, so this works")
    result = python("import runpy; runpy.run_module('pmpp', run_name='__main__')", PMPP_BACKEND=asked)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("PMPP_BACKEND")
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_description():
    result = python("import runpy; runpy.run_module('pmpp', run_name='__main__')", PMPP_BACKEND="simt")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("pmpp 0.1.0: kernels run in the interpreter, because PMPP_BACKEND=simt asks for it.")
    assert [line.split()[0] for line in lines[1:5]] == ["device", "limits", "versions", "missing"]
    assert "1024 threads, 48 KiB shared memory a block" in lines[2]
    assert f"numpy {np.__version__}" in lines[3]


FAULTS = [
    ((None, "no NVIDIA driver was found"), "", "no NVIDIA driver was found", False),
    (((11, 4), None), "", "its driver supports CUDA 11.4, and 12.0 or later is needed: update the driver", True),
    (((13, 0), None), "simulator", "NUMBA_ENABLE_CUDASIM replaces the GPU by Numba's simulator: unset it", True),
    (((13, 0), None), "no numba", 'numba-cuda is not installed: install it with: pip install -e ".[gpu-cu13]"', True),
    (((12, 4), None), "no numba", 'numba-cuda is not installed: install it with: pip install -e ".[gpu-cu12]"', True),
    (((13, 0), None), "numpy 2.5", "NumPy 2.5.1 breaks numba-cuda: pip install 'numpy<2.5'", True),
    (
        ((13, 0), None),
        "broken",
        r"numba-cuda \S+ cannot be imported \(ImportError: no bindings\): install it with",
        True,
    ),
]


@pytest.mark.parametrize(("driver", "setting", "sentence", "present"), FAULTS)
def test_every_fault_is_a_sentence(monkeypatch, driver, setting, sentence, present):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    if setting == "simulator":
        monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    if setting == "no numba":
        monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: "found")
    if setting in ("numpy 2.5", "broken"):
        broken = types.ModuleType("numba")
        broken.__getattr__ = lambda name: (_ for _ in ()).throw(ImportError("no bindings:\nreinstall"))
        monkeypatch.setitem(sys.modules, "numba", broken)
        monkeypatch.setitem(sys.modules, "numba.cuda", None)
    if setting == "numpy 2.5":
        monkeypatch.setattr(gpu, "version", lambda package: "2.5.1")
    fault, found = gpu.fault.__wrapped__()
    assert found == present
    assert fault == sentence or re.match(sentence, fault)


@pytest.mark.parametrize(
    ("driver", "extra"),
    [(((0, 0), "none"), ""), (((11, 8), None), ""), (((12, 9), None), "gpu-cu12"), (((13, 1), None), "gpu-cu13")],
)
def test_the_extra_fits_the_driver(monkeypatch, driver, extra):
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    assert gpu.extra() == extra


def test_a_device_that_is_too_old_or_fails(monkeypatch):
    old = types.SimpleNamespace(compute_capability=(6, 1), name=b"GeForce GTX 1080")
    fake = types.SimpleNamespace(get_current_device=lambda: old, current_context=lambda: None)
    assert gpu._device_fault(fake) == "GeForce GTX 1080 has compute capability 6.1, and 7.5 or later is needed"

    def fail():
        raise RuntimeError("[46] CUDA_ERROR_DEVICE_UNAVAILABLE:\nbusy")

    fake = types.SimpleNamespace(get_current_device=lambda: old, current_context=fail)
    assert gpu._device_fault(fake) == "the GPU cannot be used (RuntimeError: [46] CUDA_ERROR_DEVICE_UNAVAILABLE)"


def test_compiler_libraries_newer_than_the_driver():
    pytest.importorskip("cuda.bindings")
    assert gpu._toolkit_fault((13, 0), "install") is None
    assert gpu._toolkit_fault((12, 8), "install").endswith("but the driver supports CUDA 12.8: install")


def test_a_gpu_that_is_left_idle_is_worth_a_warning(monkeypatch):
    monkeypatch.delenv("PMPP_BACKEND", raising=False)
    monkeypatch.setattr(gpu, "fault", lambda: ("numba-cuda is not installed", True))
    with pytest.warns(device.BackendWarning, match="although there is a GPU: numba-cuda is not installed"):
        assert device.backend.__wrapped__().name == "simt"
    monkeypatch.setattr(gpu, "fault", lambda: ("no NVIDIA driver was found", False))
    assert device.backend.__wrapped__().why == "no NVIDIA driver was found"
    monkeypatch.setenv("PMPP_BACKEND", "numba")
    with pytest.raises(device.BackendError, match=r"=numba asks for a GPU, but no NVIDIA driver was found\."):
        device.backend.__wrapped__()


def test_limits():
    limits = device.limits()
    assert limits["max_threads_per_block"] == 1024
    assert limits["warp_size"] == 32
    assert limits["max_shared_memory_per_block"] == 48 * 1024
    with pytest.raises(TypeError):
        limits["warp_size"] = 64
