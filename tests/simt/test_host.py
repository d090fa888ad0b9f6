"""The host side: every public name of `numba.cuda` works or says in one sentence why not."""

import re
import subprocess
import sys
import types

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.host import context


@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]


@cuda.jit
def increment(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


def numba_cuda():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba import cuda as numbas

    return numbas


#: Names that Numba's module has by accident: Python's own modules, and the variables of a loop at its top level.
ACCIDENTS = {"alias", "implementation"}


def public(module):
    """The names of a fresh import: other tests import more of Numba's modules, which then are names, too."""
    fresh = "from numba import cuda; print(*dir(cuda))"
    names = subprocess.run([sys.executable, "-W", "ignore", "-c", fresh], capture_output=True, text=True, check=True)
    return [
        name
        for name in names.stdout.split()
        if not name.startswith("_") and name not in ACCIDENTS
        and not (isinstance(getattr(module, name), types.ModuleType) and name in sys.stdlib_module_names)
    ]  # fmt: skip


def test_no_public_name_of_numba_cuda_is_missing():
    names = public(numba_cuda())
    assert len(names) > 300
    assert [name for name in names if not hasattr(cuda, name)] == []
    assert [name for name in names if name not in dir(cuda)] == []


@pytest.mark.parametrize("name", sorted(context.REFUSED))
def test_what_is_refused_says_why_in_one_sentence(name):
    with pytest.raises(simt.UnsupportedError) as found:
        getattr(cuda, name)(1)
    assert re.fullmatch(rf"cuda\.{name} does not exist in the interpreter: [^.]+(\.py)?[^.]*", str(found.value))
    with pytest.raises(simt.UnsupportedError):
        getattr(cuda, name).anything  # noqa: B018


def test_a_name_that_numba_does_not_have_either_is_an_attribute_error():
    with pytest.raises(AttributeError, match="cuda has no nosuch"):
        cuda.nosuch  # noqa: B018


def test_every_scalar_type_of_numba_has_its_dtype():
    numbas = numba_cuda()
    from numba.cuda.np.numpy_support import as_dtype

    wrong = {}
    for name in public(numbas):
        kind = getattr(numbas, name)
        if type(kind).__name__ in ("Integer", "Float", "Complex", "Boolean"):
            mine = getattr(cuda, name)
            if mine.dtype != as_dtype(kind) or getattr(cuda.types, name).dtype != as_dtype(kind):
                wrong[name] = (mine.dtype, as_dtype(kind))
    assert wrong == {}


@pytest.mark.parametrize("make", [cuda.pinned_array, cuda.mapped_array, cuda.managed_array])
def test_arrays_that_host_and_device_share(make):
    x = make(10, dtype=np.float32)
    x[:] = np.arange(10)
    increment[1, 32](x)
    cuda.synchronize()
    assert x.tolist() == list(range(1, 11))
    assert make((3, 4), np.int16, order="F").flags.f_contiguous


def test_arrays_like_another():
    x = np.zeros((3, 4), np.int16, order="F")
    for like in (cuda.pinned_array_like, cuda.mapped_array_like, cuda.device_array_like):
        assert (like(x).shape, like(x).dtype, like(x).flags["F_CONTIGUOUS"]) == ((3, 4), np.int16, True)


def test_mapped_arrays_are_written_in_place():
    x, y = np.arange(8.0), np.ones(8)
    with cuda.mapped(x) as a:
        increment[1, 32](a)
    assert x.tolist() == list(range(1, 9))
    with cuda.mapped(x, y, stream=cuda.stream()) as (a, b):
        double[1, 32](a, b)
    assert y.tolist() == (2 * x).tolist()
    with pytest.raises(simt.ArgumentError, match="contiguous NumPy arrays"), cuda.mapped(x[::2]):
        pass


def test_of_one_host_array_given_twice_the_last_copy_comes_back_last(monkeypatch):
    monkeypatch.setenv("PMPP_CHECK", "")  # a check refuses it: see test_lost_writes.py

    @cuda.jit
    def kernel(x, y):
        x[cuda.threadIdx.x] = 7

    x = np.zeros(4)
    kernel[1, 4](x, x)  # as in Numba each argument has its copy, and that of y is as it was
    assert x.tolist() == [0, 0, 0, 0]


def test_pinned_and_deferred_cleanup_are_contexts():
    x = np.ones(4)
    with cuda.pinned(x, x), cuda.defer_cleanup(), cuda.profiling():
        increment[1, 4](x)
    assert x.tolist() == [2] * 4
    with pytest.raises(simt.ArgumentError, match="NumPy arrays, not list"), cuda.pinned([1]):
        pass
    cuda.profile_start()
    cuda.profile_stop()


def test_in_out_and_inout():
    x, y = np.arange(4.0), np.zeros(4)
    double[1, 4](cuda.In(x), cuda.Out(y))
    assert y.tolist() == [0, 2, 4, 6]
    increment[1, 4](cuda.In(x))
    assert x.tolist() == [0, 1, 2, 3]
    increment[1, 4](cuda.InOut(x))
    assert x.tolist() == [1, 2, 3, 4]
    with pytest.raises(simt.HazardError, match="nothing has written"):  # Out gives memory that holds nothing
        increment[1, 4](cuda.Out(x))
    device = cuda.to_device(x)
    increment[1, 4](cuda.InOut(device))
    assert device.copy_to_host().tolist() == [2, 3, 4, 5]


def test_streams_and_events():
    stream, start, end = cuda.stream(), cuda.event(), cuda.event(timing=True)
    start.record(stream)
    x = cuda.to_device(np.ones(4), stream=stream)
    increment[1, 4, stream](x)
    end.record(stream)
    end.synchronize()
    end.wait(stream)
    assert end.query()
    assert cuda.event_elapsed_time(start, end) >= 0
    with stream.auto_synchronize():
        assert x.copy_to_host(stream=stream).tolist() == [2] * 4
    called = []
    stream.add_callback(lambda *arguments: called.append(arguments), "argument")
    assert called == [(stream, 0, "argument")]
    with pytest.raises(simt.LaunchError, match="timing=True"):
        cuda.event_elapsed_time(start, cuda.event(timing=False))
    with pytest.raises(simt.UnsupportedError, match="external_stream"):
        cuda.external_stream(1)
    with pytest.raises(simt.UnsupportedError, match="async_done"):
        stream.async_done()


def test_devices_and_contexts():
    assert len(cuda.gpus) == 1
    assert cuda.gpus.lst == cuda.list_devices() == [cuda.get_current_device()]
    assert cuda.gpus.current is cuda.select_device(0)
    with cuda.gpus[0] as device:
        assert device.compute_capability == (9, 0)
    context = cuda.current_context()
    assert context.device is device
    assert device.get_primary_context() is context is cuda.current_context(0)
    context.synchronize()
    assert not context.can_access_peer(1)
    increment[1, 1, context.create_stream()](np.ones(1))
    with pytest.raises(simt.LaunchError, match="one device, 0"):
        cuda.current_context(1)
    with pytest.raises(simt.LaunchError, match="one device, 0"):
        cuda.select_device(1)
    with pytest.raises(simt.UnsupportedError, match=r"current_context\(\).get_memory_info: device memory is"):
        context.get_memory_info()
    assert not hasattr(context, "nosuch")
    assert cuda.is_available()
    assert cuda.is_float16_supported()
    assert not cuda.is_fp8_supported()
    assert cuda.is_supported_version()
    assert cuda.cuda_error() is None
    assert cuda.require_context(len) is len


def test_memory_is_not_shared_between_processes():
    x = cuda.to_device(np.ones(4))
    for call in (x.get_ipc_handle, lambda: cuda.current_context().get_ipc_handle(x),
                 lambda: cuda.open_ipc_array(b"", 4, np.float32), lambda: cuda.IpcHandle()):  # fmt: skip
        with pytest.raises(simt.UnsupportedError, match="belongs to this process and cannot be shared"):
            call()


def test_device_arrays_split_squeeze_and_items():
    x = cuda.to_device(np.arange(10.0))
    assert [part.copy_to_host().tolist() for part in x.split(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert x.reshape(1, 10, 1).squeeze().shape == (10,)
    x.setitem(3, 7.0)
    assert x.getitem(3) == 7
    bound, stream = x.bind(cuda.stream()), cuda.stream()
    assert bound.device_ctypes_pointer.value == x.device_ctypes_pointer.value
    assert (x.bind(stream).stream, x.stream) == (stream, 0)
    again = cuda.from_cuda_array_interface(x.__cuda_array_interface__)
    increment[1, 32](again)
    assert x.copy_to_host()[3] == 8


def test_kernels_have_no_compiled_parts():
    for name in ("inspect_asm", "get_regs_per_thread", "specialize", "overloads"):
        assert not hasattr(increment, name)
        with pytest.raises(simt.UnsupportedError, match=f"increment.{name}: the interpreter compiles nothing"):
            getattr(increment, name)
    x = np.zeros(4)
    increment.configure(1, 4)(x)
    assert x.tolist() == [1] * 4


literal_unroll = cuda.literal_unroll  # Numba knows it by this name only


@cuda.jit
def unrolled(x, out):
    total = 0.0
    for value in literal_unroll((1, 2.5, 3)):
        total += value * x[0]
    out[0] = total


def test_literal_unroll_walks_over_a_tuple(ptx):
    x, out = np.ones(1), np.zeros(1)
    unrolled[1, 1](x, out)
    assert out[0] == 6.5
    assert ".entry" in ptx(unrolled, x, out)


def test_what_numba_s_decorator_refuses_is_refused():
    def kernel(x):
        x[0] = 1

    with pytest.raises(NotImplementedError, match="bounds checking is not supported"):
        cuda.jit(boundscheck=True)(kernel)
    with pytest.raises(simt.ArgumentError, match="names a result, and a kernel returns none: void"):
        cuda.jit("float32(float32[:])")(kernel)
    with pytest.raises(simt.ArgumentError, match="restype is an argument of old"):
        cuda.jit(restype="void")(kernel)
    cuda.jit("float32(float32)", device=True)(kernel)
