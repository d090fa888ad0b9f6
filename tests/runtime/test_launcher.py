"""Prepared launches: what they give a kernel is what Numba gives it, for any signature."""

import collections
import ctypes
import math
import struct
import sys
import threading
import types
import typing

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device

pytest.importorskip("numba_cuda", reason="the launcher belongs to Numba's compiler")

NUMBERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64)
ELEMENTS = ("int8", "int32", "int64", "uint8", "uint32", "float32", "float64", "complex64", "complex128", "bool")


class Pair(typing.NamedTuple):
    first: typing.Any
    second: typing.Any


class Triple(typing.NamedTuple):
    a: typing.Any
    b: typing.Any
    c: typing.Any


class Described(typing.NamedTuple):
    """An array to be made: its memory's shape, what is cut out of it, and its dtype."""

    shape: tuple
    cut: tuple
    transposed: bool
    dtype: str

    @property
    def values(self):
        whole = (np.arange(math.prod(self.shape)) % 100).astype(self.dtype).reshape(self.shape)
        return whole.T if self.transposed else whole


described = st.integers(0, 3).flatmap(
    lambda rank: st.builds(
        Described,
        shape=st.tuples(*[st.integers(1, 5)] * rank),
        cut=st.tuples(*[st.integers(1, 2)] * rank),
        transposed=st.booleans() if rank == 2 else st.just(False),
        dtype=st.sampled_from(ELEMENTS),
    )
)
numbers = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, width=32),
    st.complex_numbers(allow_nan=False, allow_infinity=False, width=64),
    *(st.integers(0, 100).map(kind) for kind in NUMBERS),
    st.booleans().map(np.bool_),
    st.complex_numbers(allow_nan=False, allow_infinity=False, width=64).map(np.complex64),
)
tuples = st.recursive(
    st.one_of(numbers, described),
    lambda one: st.one_of(
        st.lists(one, max_size=3).map(tuple), st.builds(Pair, one, one), st.builds(Triple, one, one, one)
    ),
    max_leaves=6,
)
signatures = st.lists(tuples, min_size=1, max_size=5).map(tuple)


def each(convert, value):
    if isinstance(value, Described):
        return convert(value)
    if isinstance(value, tuple):
        parts = [each(convert, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@hypothesis.given(signatures)
@hypothesis.settings(max_examples=150)
def test_the_words_are_those_that_numba_passes(args):
    """Without a GPU: arrays stand at made-up addresses, and nothing is launched."""
    from numba.cuda.dispatcher import _Kernel
    from numba.cuda.typing.typeof import Purpose, typeof

    from pmpp.runtime import array, launcher

    def place(one):
        values = one.values[tuple(slice(None, None, step) for step in reversed(one.cut))] if one.cut else one.values
        made = array.Array.at(0x7000, array.layout(values.shape, values.strides, values.dtype, 0), None)
        made.__dict__["gpu_data"] = types.SimpleNamespace(device_ctypes_pointer=ctypes.c_size_t(0x7000))
        return made

    args = tuple(each(place, one) for one in args)
    values, forms = launcher.describe(args, 0)
    rest = iter(forms)
    formats = launcher.formats_of(next(rest), rest)
    packed = struct.pack("=" + "".join(formats), *values)
    assert len(packed) % 8 == 0
    words = [packed[at : at + 8] for at in launcher.offsets_of(formats)]

    numba = types.SimpleNamespace(extensions=[])
    numba._prepare_args = types.MethodType(_Kernel._prepare_args, numba)
    theirs = []
    for one in args:
        numba._prepare_args(typeof(one, Purpose.argument), one, 0, [], theirs)
    assert len(words) == len(theirs)
    for word, their in zip(words, theirs, strict=True):
        known = bytes(np.int64(their).tobytes()) if type(their) in (int, bool) else bytes(their)
        assert word[: len(known)] == known


def test_forms_tell_apart_what_numba_compiles_apart():
    from numba.cuda.typing.typeof import Purpose, typeof

    from pmpp.runtime import launcher

    values = [1, 1.0, True, np.int32(1), np.float32(1), np.bool_(True), 1j, np.complex64(1), (1,), (1, 1), (True,)]
    values += [((1,),), (1.0, 1), Pair(1, 1), Pair(1, 1.0), (), ((), 1)]
    types_of = collections.defaultdict(set)
    for value in values:
        _, forms = launcher.describe((value,), 0)
        types_of[tuple(forms)].add(typeof(value, Purpose.argument))
    assert len(types_of) == len(values)
    assert all(len(found) == 1 for found in types_of.values())


def test_extents_are_ints():
    from pmpp.runtime import array

    shape = array.contiguous((np.int64(3), np.int32(2)), np.dtype("int16"), 0).attributes["shape"]
    assert shape == (3, 2)
    assert {type(extent) for extent in shape} == {int}
    with pytest.raises(TypeError, match="float"):
        array.contiguous((1.5,), np.dtype("int16"), 0)


@pytest.mark.parametrize("made_by", ["Numba", "this project"])
def test_the_device_of_every_array_is_looked_at(made_by, monkeypatch):
    """On a machine with two GPUs, also that of the first array, which no check has seen before."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    from pmpp.runtime import array

    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device, "_device_count", lambda: 2)
    monkeypatch.setattr(device, "_ask_for_current", lambda: 0)
    monkeypatch.setattr(device, "_TAKERS", {})
    dtype = np.dtype(np.float32)
    there = array.Array.at(0x7000, array.contiguous((4,), dtype, 1), None)
    if made_by == "Numba":
        there = DeviceNDArray.__new__(DeviceNDArray)
        memory = types.SimpleNamespace(context=types.SimpleNamespace(device=types.SimpleNamespace(id=1)))
        there.__dict__.update(shape=(4,), strides=(4,), dtype=dtype, ndim=1, size=4, gpu_data=memory)
    for _ in range(2):
        with pytest.raises(ValueError, match="y must be on GPU 0, the current device, was on GPU 1"):
            device.as_input("y", there, dtypes="float32")


# --------------------------------------------------------------------------------------------------------- on a GPU


def reads(name, value, lines):
    """Lines of a kernel that write down all that it sees of an argument."""
    if isinstance(value, Described):
        last = ", ".join(f"{name}.shape[{axis}] - 1" for axis in range(len(value.shape))) or "()"
        lines += [
            f"{name}.size",
            *(f"{name}.{what}[{axis}]" for axis in range(len(value.shape)) for what in ("shape", "strides")),
        ]
        element = f"{name}[{last}]"
        lines += [f"{element}.real", f"{element}.imag"] if value.dtype.startswith("complex") else [f"{element}"]
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            reads(f"{name}[{place}]", part, lines)
    elif isinstance(value, complex | np.complexfloating):
        lines += [f"{name}.real", f"{name}.imag"]
    else:
        lines.append(name)


def kernel_for(args):
    lines = []
    for place, value in enumerate(args):
        reads(f"a{place}", value, lines)
    body = [f"    out[{place}] = np.float64({line})" for place, line in enumerate(lines)]
    parameters = ", ".join(["out", *(f"a{place}" for place in range(len(args)))])
    scope = {"np": np}
    exec("\n".join([f"def kernel({parameters}):", *body, "    return"]), scope)
    return cuda.jit(scope["kernel"]), len(lines)


@pytest.mark.gpu
@hypothesis.given(signatures)
@hypothesis.settings(max_examples=40)
def test_a_kernel_sees_what_it_sees_when_numba_launches_it(args):
    def place(one):
        there = cuda.to_device(one.values if not one.transposed else np.asfortranarray(one.values))
        return there[tuple(slice(None, None, step) for step in reversed(one.cut))] if one.cut else there

    placed = tuple(each(place, one) for one in args)
    kernel, count = kernel_for(args)
    seen = []
    for _ in range(3):
        out = device.to_device(np.full(max(count, 1), -1.0))
        kernel[1, 1](out, *placed)  # first Numba's launch, then the plan's
        seen.append(out.copy_to_host())
    out = device.to_device(np.full(max(count, 1), -1.0))
    kernel.configure(1, 1)(out, *placed)
    for one in seen:
        np.testing.assert_array_equal(one, out.copy_to_host())


@cuda.jit
def add(x, y, out, scale):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + scale * y[i]


def planned(kernel):
    return list(kernel.__dict__.get("_pmpp_plans", {}).values())


@pytest.mark.gpu
def test_arrays_of_others_are_taken_as_they_are():
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    x = np.arange(100, dtype=np.float32)
    for place in (cupy.asarray, lambda a: torch.asarray(a, device="cuda"), cuda.to_device, device.to_device):
        for _ in range(2):
            given = [place(one) for one in (x, 2 * x, 0 * x)]
            add[1, 128](*given, np.float32(3))
            cuda.synchronize()
            np.testing.assert_array_equal(device.to_host(given[2]), 7 * x)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Host array used in CUDA kernel")
def test_numpy_arrays_and_numbers_beyond_64_bits_are_numbas():
    x = np.arange(100, dtype=np.float32)
    out = np.zeros_like(x)
    for _ in range(2):
        add[1, 128](x, x, out, np.float32(1))
        np.testing.assert_array_equal(out, 2 * x)

    @cuda.jit
    def keep(out, n):
        out[0] = n

    there = device.to_device(np.zeros(1, np.uint64))
    for n in (5, 2**63 + 1, 7):
        keep[1, 1](there, n)
        assert there.copy_to_host()[0] == n


@pytest.mark.gpu
def test_dynamic_shared_memory_beyond_48_kib():
    @cuda.jit
    def turn(x, out):
        held = cuda.shared.array(0, np.float32)
        i = cuda.threadIdx.x
        for at in range(i, x.size, cuda.blockDim.x):
            held[at] = x[at]
        cuda.syncthreads()
        for at in range(i, x.size, cuda.blockDim.x):
            out[at] = held[x.size - 1 - at]

    for n in (1000, 20_000, 40_000, 25_000):  # 160,000 bytes
        x = np.arange(n, dtype=np.float32)
        for _ in range(2):
            out = device.empty(n, np.float32)
            turn[1, 256, 0, 4 * n](device.to_device(x), out)
            np.testing.assert_array_equal(out.copy_to_host(), x[::-1])


@pytest.mark.gpu
def test_a_cooperative_kernel_is_launched_as_one():
    @cuda.jit
    def both(x):
        grid = cuda.cg.this_grid()
        if cuda.grid(1) == 0:
            x[0] = 5
        grid.sync()
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == cuda.gridDim.x - 1:
            x[1] = x[0] + 1

    for _ in range(3):
        x = device.to_device(np.zeros(2, np.int32))
        both[64, 64](x)
        assert x.copy_to_host().tolist() == [5, 6]


@pytest.mark.gpu
def test_a_launch_that_the_driver_refuses_is_explained():
    x = device.to_device(np.ones(8, np.float32))
    add[1, 32](x, x, x, np.float32(0))
    with pytest.raises(Exception, match="INVALID_VALUE"):
        add[1, 2048](x, x, x, np.float32(0))
    add[1, 32](x, x, x, np.float32(0))  # and goes on
    np.testing.assert_array_equal(x.copy_to_host(), 1)


def held():
    """What this process holds on the GPU: bytes of CuPy's pool, and Numba's own allocations."""
    cupy = sys.modules.get("cupy")
    pool = cupy.get_default_memory_pool().total_bytes() if cupy else 0
    return pool, len(cuda.current_context().memory_manager.allocations)


@pytest.mark.gpu
def test_ten_thousand_launches_from_four_threads_on_two_streams():
    @cuda.jit
    def bump(x, step):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += step

    streams = [cuda.stream(), cuda.stream()]
    arrays = [device.to_device(np.zeros(256, np.int64)) for _ in range(4)]
    bump[2, 128](device.to_device(np.zeros(256, np.int64)), 1)
    cuda.synchronize()
    errors = []

    def work(number):
        try:
            for step in range(2500):
                bump[2, 128, streams[number % 2]](arrays[number], step % 3 + number)
        except Exception as error:
            errors.append(error)

    before = held()
    for _ in range(2):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    cuda.synchronize()
    assert not errors
    for number, x in enumerate(arrays):
        np.testing.assert_array_equal(x.copy_to_host(), 2 * sum(step % 3 + number for step in range(2500)))
    (plan,) = planned(bump)
    assert len(plan.slots) <= 4
    assert held() == before  # other processes may use the GPU, so its free memory says nothing


@pytest.mark.gpu
def test_a_kernel_that_is_compiled_anew_is_launched_anew():
    scope = {"cuda": cuda, "step": np.int32(1)}
    exec("def bump(x):\n    x[0] += step", scope)
    bump = cuda.jit(scope["bump"])
    x = device.to_device(np.zeros(1, np.int32))
    for _ in range(2):
        bump[1, 1](x)
    scope["step"] = np.int32(10)
    bump.recompile()
    for _ in range(2):
        bump[1, 1](x)
    assert x.copy_to_host()[0] == 22


@pytest.mark.gpu
def test_views_and_what_they_keep():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    whole = device.to_device(x)
    views = whole.reshape(6, -1), whole.reshape((3, 8)), whole.ravel(), whole[1:], whole.view(np.int32), whole[0:1][0]
    expected = x.reshape(6, 4), x.reshape(3, 8), x.ravel(), x[1:], x.view(np.int32), x[0]
    again = whole.reshape(6, -1), whole.view(np.int32)
    del whole
    device.to_device(np.zeros_like(x))  # would get the memory, were it free
    for view, values in zip((*views, *again), (*expected, x.reshape(6, 4), x.view(np.int32)), strict=True):
        np.testing.assert_array_equal(view.copy_to_host(), values)
        assert (view.shape, view.dtype) == (values.shape, values.dtype)
    with pytest.raises(Exception, match="reshape"):
        views[0].reshape(5, 5)


@pytest.mark.gpu
def test_what_is_kept_is_bounded():
    from pmpp.runtime import launcher

    @cuda.jit
    def nothing(x):
        pass

    x = device.to_device(np.zeros(1))
    for grid in range(1, 2 * launcher.KEPT):
        nothing[grid, 32](x)
    assert len(nothing.__dict__["_pmpp_launches"]) <= launcher.KEPT


@pytest.mark.gpu
def test_an_array_of_another_gpu_is_refused_by_name():
    if len(cuda.gpus) < 2:
        pytest.skip("there is one GPU")
    from pmpp.kernels import vector_add

    x = np.arange(1000, dtype=np.float32)
    first = device.to_device(x)
    with cuda.gpus[1]:
        there = device.to_device(x)
        assert (device.current(), there.form.device, first.form.device) == (1, 1, 0)
        np.testing.assert_array_equal(vector_add.vectorised(there, there).copy_to_host(), 2 * x)
        with pytest.raises(ValueError, match="y must be on GPU 1, the current device, was on GPU 0"):
            vector_add.vectorised(there, first)
        for _ in range(2):
            with pytest.raises(ValueError, match="an array of GPU 0 cannot be given to a kernel on GPU 1"):
                add[8, 128](first, there, there, np.float32(1))
    np.testing.assert_array_equal(vector_add.vectorised(first, first).copy_to_host(), 2 * x)


def test_a_library_is_unloaded_once_however_many_gpus_have_loaded_it(monkeypatch):
    """The driver loads it for all GPUs. Numba has a finalizer for each."""
    from pmpp.runtime import launcher

    unloaded = []
    monkeypatch.setattr(
        launcher.driver, "_module_finalizer", lambda context, code: lambda: unloaded.append((context, code.handle))
    )
    launcher.unload_once()
    make = launcher.driver._module_finalizer
    code = types.SimpleNamespace(handle=7)
    first, second = make("GPU 0", code), make("GPU 1", code)
    second()
    assert unloaded == []
    first()
    assert unloaded == [("GPU 0", 7)]
    make("GPU 1", code)()  # another library, to which the driver gives the same handle
    assert unloaded == [("GPU 0", 7), ("GPU 1", 7)]
