"""The validation that every rung's arguments pass through."""

import math
import types

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.device import as_input, as_output, as_stream

F32 = np.float32


def gpu_array(module="cupy", name="ndarray", **attributes):
    """An object that says of itself what CuPy's and PyTorch's arrays say."""
    interface = {"shape": (4,), "typestr": "<f4", "data": (0x1000, False), "strides": None, "version": 3}
    interface.update(attributes.pop("interface", {}))
    kind = type(name, (), {"__module__": module, "__cuda_array_interface__": interface, **attributes})
    return kind()


class FakeCuda:
    """The part of numba.cuda that wraps a foreign array, for machines without a GPU."""

    def __init__(self, devices=1):
        self.gpus = [None] * devices
        self.waits = []  # pairs of streams, the one that waits and the one that is waited for

    def from_cuda_array_interface(self, interface, owner, sync):
        assert interface.get("stream") is None
        assert not sync
        dtype = np.dtype(interface["typestr"])
        strides = interface["strides"] or np.zeros(interface["shape"], dtype).strides
        shape, pointer = interface["shape"], interface["data"][0]
        return types.SimpleNamespace(
            shape=shape, size=math.prod(shape), strides=strides, dtype=dtype, owner=owner, pointer=pointer
        )

    def device_array(self, shape, dtype):
        return np.zeros(shape, dtype)

    def external_stream(self, pointer):
        stream = types.SimpleNamespace(handle=pointer, __int__=lambda _: pointer)
        return type("Stream", (), {"__module__": "numba.cuda.cudadrv.driver", **vars(stream)})()

    def default_stream(self):
        return self.external_stream(0)

    def event(self, timing):
        recorded = []
        return types.SimpleNamespace(
            record=lambda stream: recorded.append(int(stream)),
            wait=lambda stream: self.waits.append((int(stream), recorded[-1])),
        )

    def get_current_device(self):
        return types.SimpleNamespace(id=0)


@pytest.fixture
def fake_gpu(monkeypatch):
    """The validator as it is on a GPU, with the wrapping itself replaced."""
    fake = FakeCuda()
    monkeypatch.setattr(device, "backend", lambda: device.Backend("numba", "a test", fake))
    device._device_count.cache_clear()
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device, "_TAKERS", {})
    yield fake
    device._device_count.cache_clear()


# ------------------------------------------------------------------------------------------- arrays, either backend


@pytest.mark.parametrize("shape", [(7,), (3, 5), (0,), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_there_and_back(rng, shape, dtype):
    x = (100 * rng.random(shape)).astype(dtype)
    there = device.to_device(x)
    assert (there.shape, there.dtype) == (shape, np.dtype(dtype))
    back = device.to_host(there)
    np.testing.assert_array_equal(back, x)
    assert back.dtype == x.dtype
    assert device.to_host(x) is x


def test_empty():
    out = device.empty((3, 4), F32)
    assert (out.shape, out.dtype, out.strides) == ((3, 4), F32, (16, 4))
    assert device.empty(5, np.int64).shape == (5,)
    assert device.empty((0, 3), F32).shape == (0, 3)


def test_what_is_kept_is_bounded_and_of_its_device(monkeypatch):
    made = []

    @device.cached(2)
    def zeros(n):
        made.append(n)
        return device.to_device(np.zeros(n))

    assert zeros(1) is zeros(1)
    for n in (2, 3, 1):  # 1 is the oldest of three
        zeros(n)
    assert made == [1, 2, 3, 1]

    number = 0
    gpus = types.SimpleNamespace(
        cuda=types.SimpleNamespace(get_current_device=lambda: types.SimpleNamespace(id=number))
    )
    of_first = zeros(1)
    with monkeypatch.context() as patched:
        patched.setattr(device, "_device_count", lambda: 2)
        patched.setattr(device, "to_device", lambda x: x)
        patched.setattr(device, "backend", lambda: gpus)
        assert zeros(1) is of_first
        number = 1
        assert zeros(1) is not of_first
        number = 0
        assert zeros(1) is of_first


def test_to_host_refuses_what_is_no_array():
    with pytest.raises(TypeError, match="x must be a device array or a NumPy array, was list"):
        device.to_host([1, 2])


def test_an_address_is_aligned():
    x = device.empty(64, F32)
    assert device.address(x) % 256 == 0
    assert device.address(x[1:]) == device.address(x) + 4


def test_a_numpy_array_is_transferred(rng):
    x = rng.random(9, F32)
    array = as_input("x", x, dtypes=F32, ndim=1)
    assert not isinstance(array, np.ndarray)
    x[0] = 7
    assert device.to_host(array)[0] != 7


def test_a_device_array_passes_as_it_is():
    x = device.empty((4, 6), F32)
    assert as_input("x", x, dtypes=(F32, np.float64), ndim=2, shape=(4, None)) is x
    assert as_output("out", x, shape=(4, 6), dtype=F32) is x


def test_no_output_makes_one():
    out = as_output("out", None, shape=(4, 6), dtype="int32")
    assert (out.shape, out.dtype) == ((4, 6), np.int32)


@pytest.mark.parametrize("make", [np.asarray, device.to_device], ids=["numpy", "device"])
@pytest.mark.parametrize(
    ("x", "wanted", "error", "sentence"),
    [
        (np.zeros(3, np.int16), {}, TypeError, r"x must be float32 or float64, was int16"),
        (np.zeros((2, 3), F32), {"ndim": 1}, ValueError, r"x must have 1 dimension, had 2: its shape was \(2, 3\)"),
        (np.zeros(3, F32), {"ndim": (2, 3)}, ValueError, r"x must have 2 or 3 dimensions, had 1: its shape was \(3,\)"),
        (np.zeros(3, F32), {"shape": (4,)}, ValueError, r"x must have shape \(4,\), had \(3,\)"),
        (np.zeros((2, 3), F32), {"shape": (None, 4)}, ValueError, r"x must have shape \(any, 4\), had \(2, 3\)"),
        (np.zeros((2, 3), F32), {"shape": (6,)}, ValueError, r"x must have shape \(6,\), had \(2, 3\)"),
    ],
    ids=["dtype", "rank", "ranks", "shape", "shape with any", "rank by shape"],
)
def test_what_does_not_fit_is_named(make, x, wanted, error, sentence):
    with pytest.raises(error, match=sentence):
        as_input("x", make(x), dtypes=(F32, np.float64), **wanted)


@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        ([1.0, 2.0], TypeError, "x must be .*, was list"),
        (3.0, TypeError, "x must be .*, was float"),
        (None, TypeError, "x must be .*, was None"),
        (F32(3), TypeError, "x must be .*, was numpy.float32"),
        (np.array(3, F32), ValueError, "x must have at least 1 dimension, had none"),
        (np.zeros(3, ">f4"), TypeError, "x must be float32, was >f4"),
        (np.zeros(3, object), TypeError, "x must be float32, was object"),
        (np.ma.zeros(3, F32), TypeError, "x must be a plain array, was a masked one"),
    ],
    ids=["list", "float", "none", "scalar", "0-d", "byte order", "object", "masked"],
)
def test_what_is_no_plain_array_is_refused(x, error, sentence):
    with pytest.raises(error, match=sentence):
        as_input("x", x, dtypes=F32)


NOT_C = {
    "strided": np.zeros(8, F32)[::2],
    "reversed": np.zeros(8, F32)[::-1],
    "transposed": np.zeros((3, 4), F32).T,
    "broadcast": np.broadcast_to(F32(1), (3, 4)),
    "columns": np.zeros((4, 8), F32)[:, :4],
}


@pytest.mark.parametrize("name", NOT_C)
def test_what_is_not_contiguous_is_refused(name):
    with pytest.raises(ValueError, match=r"x must be contiguous in C order, had shape .* and strides .*: copy it"):
        as_input("x", NOT_C[name], dtypes=F32)


@pytest.mark.parametrize("name", [name for name in NOT_C if name != "transposed"])
def test_neither_order(name):
    with pytest.raises(ValueError, match="x must be contiguous in C or Fortran order, had"):
        as_input("x", NOT_C[name], dtypes=F32, layout="CF")


def test_fortran_order_where_it_is_accepted(rng):
    x = np.asfortranarray(rng.random((3, 4), F32))
    array = as_input("x", x, dtypes=F32, layout="CF")
    assert array.strides == x.strides
    np.testing.assert_array_equal(device.to_host(array), x)


@pytest.mark.parametrize("name", NOT_C)
def test_any_layout_where_it_is_accepted(name):
    array = as_input("x", NOT_C[name], dtypes=F32, layout="any")
    np.testing.assert_array_equal(device.to_host(array), NOT_C[name])


@pytest.mark.parametrize("layout", ["C", "CF", "any"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_new_axis_of_stride_0_can_be_reshaped(order, layout):
    x = np.asarray(np.arange(12, dtype=F32).reshape(3, 4), order=order)
    for given in (x[None], x[:, :, None], x[None, None]):
        if (order, layout) == ("F", "C"):
            continue
        taken = device.as_input("x", given, dtypes="float32", layout=layout)
        assert 0 not in taken.strides
        np.testing.assert_array_equal(taken.copy_to_host(), given)
        if order == "C":
            np.testing.assert_array_equal(taken.reshape(6, 2).copy_to_host(), x.reshape(6, 2))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), (1, 5), (5, 1)])
def test_strides_of_short_axes_do_not_matter(shape):
    x = np.lib.stride_tricks.as_strided(np.zeros(8, F32), shape, tuple(4 if extent == 5 else 96 for extent in shape))
    assert as_input("x", x, dtypes=F32).shape == shape


@pytest.mark.parametrize(
    ("out", "error", "sentence"),
    [
        (np.zeros(4, F32), TypeError, "out must be a device array, was a NumPy array: leave it out, or give pmpp"),
        (device.empty(3, F32), ValueError, r"out must have shape \(4,\), had \(3,\)"),
        (device.empty((4, 1), F32), ValueError, r"out must have shape \(4,\), had \(4, 1\)"),
        (device.empty(4, np.float64), TypeError, "out must be float32, was float64"),
        ([0, 0, 0, 0], TypeError, "out must be .*, was list"),
        (gpu_array(interface={"data": (0x1000, True)}), ValueError, "out must be writable, was a read-only array"),
    ],
    ids=["numpy", "length", "rank", "dtype", "list", "read-only"],
)
def test_an_output_that_does_not_fit_is_named(out, error, sentence):
    with pytest.raises(error, match=sentence):
        as_output("out", out, shape=(4,), dtype=F32)


@pytest.mark.parametrize(
    ("first", "last", "shared"),
    [(0, 4, 0), (0, 5, 4), (4, 12, 16), (5, 7, 8), (4, 8, 16), (3, 5, 4), (7, 9, 4), (8, 9, 0), (5, 5, 0), (3, 3, 0)],
)
def test_an_output_lies_apart_from_other_arrays(first, last, shared):
    memory = device.to_device(np.zeros(16, F32))
    out, x = memory[4:8], memory[first:last]
    options = {"shape": (4,), "dtype": F32, "apart": {"none": None, "x": x}}
    if not shared:
        assert as_output("out", out, **options) is out
        return
    words = f"out must share no memory with x, had 16 bytes, shared {shared} of them"
    with pytest.raises(ValueError, match=f"^{words}$"):
        as_output("out", out, **options)


def test_an_output_may_be_an_input_as_a_whole():
    memory = device.to_device(np.zeros(16, F32))
    x, y, out = memory[4:8], memory[8:12], memory[4:8]
    options = {"shape": (4,), "dtype": F32, "may_be": ("x", "y")}
    assert as_output("out", out, **options, apart={"x": x, "y": y}) is out
    assert as_output("out", y, **options, apart={"x": x, "y": y}) is y
    for other in (memory[5:9], memory[4:7], memory[3:8]):
        words = "out must be y itself or share no memory with it, had 16 bytes, shared "
        with pytest.raises(ValueError, match=f"^{words}"):
            as_output("out", out, **options, apart={"x": x, "y": other})
    with pytest.raises(ValueError, match=r"^out must share no memory with z, "):
        as_output("out", out, **options, apart={"x": x, "z": out})


def test_what_lies_between_the_elements_of_a_strided_array_belongs_to_it():
    apart = device.to_device(np.zeros(40, F32))
    x = apart[1:31].reshape(5, 6)[:, ::5]
    assert as_output("out", apart[31:35], shape=(4,), dtype=F32, apart={"x": x}) is not None
    with pytest.raises(ValueError, match="shared 4 of them"):
        as_output("out", apart[30:34], shape=(4,), dtype=F32, apart={"x": x})


@pytest.mark.parametrize("stream", [None, 1, 7, 0.0, False, "0", [0], np.zeros(1)], ids=repr)
def test_a_stream_of_the_wrong_kind_is_refused(stream):
    with pytest.raises(TypeError, match=r"stream must be 0,? or .*, was "):
        as_stream(stream)


def test_streams_that_are_accepted():
    stream = cuda.stream()
    assert as_stream(stream) is stream
    assert as_stream(0) == 0
    x = device.to_device(np.arange(4), stream=stream)
    np.testing.assert_array_equal(device.to_host(x), np.arange(4))


# ------------------------------------------------------------------------------------------- arrays from elsewhere


@pytest.mark.skipif(device.on_gpu(), reason="the interpreter's own errors")
@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (gpu_array(), "x must be a NumPy array or an array of the interpreter, was cupy.ndarray"),
        (gpu_array("torch", "Tensor", device=types.SimpleNamespace(type="cpu")), r"Tensor: pass x.numpy\(\)"),
        (gpu_array("torch", "Tensor", device=types.SimpleNamespace(type="cuda")), r"Tensor: pass x.cpu\(\).numpy\(\)"),
        (gpu_array("numba.cuda.cudadrv.devicearray", "DeviceNDArray"), "was numba.cuda.*.DeviceNDArray"),
    ],
    ids=["cupy", "torch on the CPU", "torch on the GPU", "numba"],
)
def test_the_interpreter_takes_no_gpu_array(x, sentence):
    with pytest.raises(TypeError, match=sentence):
        as_input("x", x, dtypes=F32)


def test_a_foreign_array_is_wrapped_not_copied(fake_gpu):
    x = gpu_array()
    assert as_input("x", x, dtypes=F32).owner is x
    assert as_output("out", x, shape=(4,), dtype=F32).owner is x
    assert fake_gpu.waits == []


def test_an_empty_foreign_array_may_have_no_address(fake_gpu):
    x = gpu_array("torch", "Tensor", interface={"shape": (0, 3), "data": (0, False)}, requires_grad=False)
    x.__class__.device = types.SimpleNamespace(type="cuda")
    assert as_input("x", x, dtypes=F32, ndim=2).shape == (0, 3)


@pytest.mark.parametrize(
    ("producer", "stream", "waits"),
    [(None, 0, []), (1, 0, []), (1, 5, [(5, 0)]), (5, 5, []), (5, 0, [(0, 5)]), (5, 6, [(6, 5)])],
)
def test_work_queued_elsewhere_is_waited_for(fake_gpu, producer, stream, waits):
    x = gpu_array(interface={"stream": producer})
    as_input("x", x, dtypes=F32, stream=fake_gpu.external_stream(stream) if stream else 0)
    assert fake_gpu.waits == waits


def raising(error):
    def interface(self):
        raise error

    return property(interface)


@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        (
            gpu_array("torch", "Tensor", device=types.SimpleNamespace(type="cpu", __str__=lambda: "cpu")),
            TypeError,
            r"x must be on the GPU, was a torch tensor on .*: pass x.cuda\(\)",
        ),
        (
            gpu_array("torch", "Tensor", device=types.SimpleNamespace(type="cuda"), requires_grad=True),
            TypeError,
            r"x must be a plain array, was a torch tensor that requires grad: pass x.detach\(\)",
        ),
        (
            gpu_array("jax", "Array", __cuda_array_interface__=raising(RuntimeError("deleted\nlong ago"))),
            TypeError,
            r"x cannot be used: jax.Array gives no address \(RuntimeError: deleted\)",
        ),
        (
            gpu_array("other", "Array", __cuda_array_interface__={"shape": (4,)}),
            TypeError,
            "x cannot be used: the __cuda_array_interface__ of other.Array is not complete",
        ),
        (gpu_array(interface={"mask": object()}), TypeError, "x must be a plain array, was a masked one"),
        (gpu_array(interface={"typestr": "<i2"}), TypeError, "x must be float32, was int16"),
        (gpu_array(interface={"strides": (8,)}), ValueError, "x must be contiguous in C order"),
        (gpu_array(interface={"shape": ()}), ValueError, "x must have at least 1 dimension, had none"),
        ([1.0], TypeError, r"x must be a NumPy array or an array on the GPU \(Numba, CuPy, PyTorch\), was list"),
        (
            gpu_array("pmpp.simt.memory", "DeviceArray", copy_to_host=None),
            TypeError,
            r"x must be on the GPU, was an array of the interpreter: pass x.copy_to_host\(\)",
        ),
    ],
    ids=["cpu", "grad", "raises", "incomplete", "masked", "dtype", "strided", "0-d", "list", "interpreter"],
)
def test_a_foreign_array_that_does_not_fit_is_named(fake_gpu, x, error, sentence):
    with pytest.raises(error, match=sentence):
        as_input("x", x, dtypes=F32)


def test_a_read_only_foreign_array_is_an_input_but_no_output(fake_gpu):
    x = gpu_array(interface={"data": (0x1000, True)})
    assert as_input("x", x, dtypes=F32).owner is x
    with pytest.raises(ValueError, match="out must be writable, was a read-only array"):
        as_output("out", x, shape=(4,), dtype=F32)


def test_a_foreign_output_lies_apart_from_other_arrays(fake_gpu):
    def array(address):
        return gpu_array(interface={"data": (address, False)})  # of 16 bytes

    options = {"shape": (4,), "dtype": F32}
    x = as_input("x", array(0x1000), dtypes=F32)
    assert as_output("out", array(0x1010), **options, apart={"x": x}).pointer == 0x1010
    assert as_output("out", array(0x1000), **options, apart={"x": x}, may_be=("x",)).pointer == 0x1000
    with pytest.raises(ValueError, match="out must share no memory with x, had 16 bytes, shared 4 of them"):
        as_output("out", array(0x100C), **options, apart={"x": x})


def test_arrays_of_the_pool_are_compared_by_what_they_know():
    pytest.importorskip("numba_cuda", reason="these arrays are Numba's")
    from pmpp.runtime.array import Array, contiguous, layout

    def array(pointer, n=4):
        return Array.at(pointer, contiguous((n,), np.dtype(F32), 0), None)

    out = array(0x1000)
    for pointer, n in ((0xFF0, 4), (0x1010, 4), (0x1008, 0), (0x1000, 0)):
        device._refuse_overlap("out", out, {"none": None, "x": array(pointer, n)}, ())
        device._refuse_overlap("out", array(pointer, n), {"x": out}, ())
    rows = Array.at(0xFF0, layout((2, 2), (16, 4), np.dtype(F32), 0), None)
    cases = (array(0xFF0, 5), 4), (array(0x100C), 4), (array(0x1004, 1), 4), (array(0x1000), 16), (out, 16), (rows, 8)
    for x, shared in cases:
        words = f"^out must share no memory with x, had 16 bytes, shared {shared} of them$"
        with pytest.raises(ValueError, match=words):
            device._refuse_overlap("out", out, {"none": None, "x": x}, ("y",))
    for whole in (out, array(0x1000)):
        device._refuse_overlap("out", out, {"x": whole}, ("x",))
    with pytest.raises(
        ValueError, match=r"^out must be x itself or share no memory with it, had 16 bytes, shared 12 of"
    ):
        device._refuse_overlap("out", out, {"x": array(0x1004)}, ("x",))


def test_a_tensor_on_another_device_is_refused(fake_gpu, monkeypatch):
    fake_gpu.gpus = [None, None]
    monkeypatch.setattr(device, "_device_of", lambda pointer: 1)
    with pytest.raises(ValueError, match="x must be on GPU 0, the current device, was on GPU 1"):
        as_input("x", gpu_array(), dtypes=F32)
    monkeypatch.setattr(device, "_device_of", lambda pointer: 0)
    assert as_input("x", gpu_array(), dtypes=F32).shape == (4,)


def test_streams_from_elsewhere(fake_gpu):
    def stream(module, **attributes):
        return type("Stream", (), {"__module__": module, **attributes})()

    assert int(as_stream(stream("cupy.cuda.stream", ptr=5))) == 5
    assert int(as_stream(stream("torch.cuda.streams", cuda_stream=6))) == 6
    assert as_stream(stream("cupy.cuda.stream", ptr=0)) == 0
    own = fake_gpu.external_stream(7)
    assert as_stream(own) is own
    with pytest.raises(
        TypeError, match=r"stream must be 0, or a Numba, CuPy or PyTorch stream, was torch\.cuda\.Event"
    ):
        as_stream(type("Event", (), {"__module__": "torch.cuda"})())


# ---------------------------------------------------------------------------------------- on a GPU, with libraries


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_libraries_share_memory_with_kernels(library):
    module = pytest.importorskip(library)

    @cuda.jit
    def add_one(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    x = module.arange(100, dtype=module.float32, **({"device": "cuda"} if library == "torch" else {}))
    array = as_input("x", x, dtypes=F32, ndim=1)
    add_one[1, 128](array)
    np.testing.assert_array_equal(device.to_host(array), np.arange(1, 101))
    assert float(x[0]) == 1
    assert device.address(array[1:]) % 16 == 4


@pytest.mark.gpu
def test_torch_tensors_that_cannot_be_used():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"x must be on the GPU, was a torch tensor on cpu: pass x.cuda\(\)"):
        as_input("x", torch.zeros(3), dtypes=F32)
    with pytest.raises(TypeError, match=r"requires grad: pass x.detach\(\)"):
        as_input("x", torch.zeros(3, device="cuda", requires_grad=True), dtypes=F32)
    assert as_input("x", torch.zeros((0, 3), device="cuda"), dtypes=F32).shape == (0, 3)
    with pytest.raises(ValueError, match="x must be contiguous"):
        as_input("x", torch.zeros((3, 4), device="cuda").T, dtypes=F32)


@pytest.mark.gpu
def test_memory_from_the_pool_keeps_the_order_of_its_stream():
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    out = device.empty((64, 64), F32, stream=stream)
    assert (out.shape, out.dtype) == ((64, 64), F32)
    assert device.address(out) % 256 == 0
    assert device.on_gpu()
    with stream:
        view = cupy.asarray(out)
        view[...] = 3
    stream.synchronize()
    assert device.to_host(out).min() == 3
