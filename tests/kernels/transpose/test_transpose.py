"""Transpose: results, arguments, exercises, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.transpose import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.transpose.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


# -------------------------------------------------------------------------------------------------------------- results


def same(result, expected):
    """Elements are moved, not computed: every bit must be there, in C order."""
    expected = np.ascontiguousarray(expected)
    given = result.dtype == expected.dtype and result.shape == expected.shape
    return given and result.tobytes() == expected.tobytes()


def faults(transpose):
    """All that is wrong with a transpose on the first input where anything is, worst first."""
    for (x,) in room.inputs().values():
        if found := judge.faults(transpose, (x,), lambda result, x=x: same(result, x.T)):
            return found
    return further_faults(transpose)


def further_faults(transpose):
    """Of views that begin between 16-byte boundaries."""
    x = np.arange(64 * 60, dtype=F32).reshape(64, 60)
    given = (misaligned(x, offset) for offset in (1, 2, 3))
    return [fault for a in given for fault in judge.faults(transpose, (a,), lambda result: same(result, x.T))]


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_numpys_transpose(name):
    (x,) = room.inputs()[name]
    assert same(room.reference(x), x.T)


@each_rung
@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
@hypothesis.given(
    m=st.integers(0, 140), n=st.integers(0, 140), whole=st.booleans(), offset=st.integers(0, 4), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=8)
def test_any_shape_type_and_alignment(rung, dtype, m, n, whole, offset, seed):
    if whole:
        m, n = m // 8 * 8, n // 8 * 8  # rows of whole vectors, which chance seldom gives
    bits = np.random.default_rng(seed).integers(0, 256, (m, n * dtype.itemsize), dtype=np.uint8)
    x = bits.view(dtype).reshape(m, n)
    assert same(device.to_host(rung(misaligned(x, offset))), x.T)


@each_rung
def test_output_and_stream(rung):
    (x,) = room.inputs()["several tiles"]
    out = device.to_device(np.full(x.shape[::-1], np.nan, F32))
    stream = cuda.stream()
    assert rung(x, out=out, stream=stream) is out
    stream.synchronize()
    assert same(out.copy_to_host(), x.T)


@each_rung
def test_a_misaligned_output(rung):
    x = np.arange(64 * 60, dtype=F32).reshape(64, 60)
    out = device.to_device(np.zeros(1 + x.size, F32))[1:].reshape(60, 64)
    rung(x, out=out)
    assert same(out.copy_to_host(), x.T)


@each_rung
def test_twice_is_nothing(rung):
    (x,) = room.inputs()["several tiles"]
    assert same(device.to_host(rung(rung(x))), x)


def test_the_grid_holds_any_matrix():
    """y and z may have 65,535 blocks each, x 2^31 - 1."""
    assert room.tiles_of((1, 1), 32) == (1, 1, 1)
    assert room.tiles_of((33, 64), 32) == (2, 2, 1)
    assert room.tiles_of((1, 32 * 65535), 32) == (1, 65535, 1)
    assert room.tiles_of((1, 32 * 65535 + 1), 32) == (1, 65535, 2)
    assert room.tiles_of((2**36, 1), 32) == (2**31, 1, 1)  # one more than there may be: 256 GiB of float32
    _, y, z = room.tiles_of((1, 2**36), 32)
    assert y * z * 32 >= 2**36
    assert max(y, z) <= 65535


@each_rung
def test_more_columns_than_y_has_blocks(rung, monkeypatch):
    monkeypatch.setattr(room, "MOST", 2)
    x = np.arange(40 * 330, dtype=F32).reshape(40, 330)
    for matrix in (x, np.ascontiguousarray(x[:, :328])):
        assert same(device.to_host(rung(matrix)), matrix.T)


# ------------------------------------------------------------------------------------------------------------ bad input


MATRIX = np.ones((5, 4), F32)
BAD = {
    "another dtype": (MATRIX.astype(np.uint8), {}, TypeError, r"x must be float32, .* or bfloat16, was uint8"),
    "a vector": (MATRIX[0], {}, ValueError, r"x must have 2 dimensions, had 1: its shape was \(4,\)"),
    "a cube": (np.ones((2, 2, 2), F32), {}, ValueError, "x must have 2 dimensions, had 3"),
    "Fortran order": (MATRIX.T, {}, ValueError, "x must be contiguous in C order, had .* copy it"),
    "every other": (MATRIX[:, ::2], {}, ValueError, "x must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    x, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(x, **options)


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(4, 5\), had \(5, 4\)"):
        rung(MATRIX, out=device.empty((5, 4), F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        rung(MATRIX, out=device.empty((4, 5), np.float64))


# ------------------------------------------------------------------------------------------------------------- counters


COUNTED = ("load_requests", "load_sectors", "store_requests", "store_sectors")
SHARED = ("store_requests", "store_wavefronts", "load_requests", "load_wavefronts")


def counted(rung, x):
    result, (report,) = observe(rung, x)
    assert same(result, x.T)
    assert report.counters["flops"] == report.counters["flops_f64"] == report.counters["atomic_requests"] == 0
    return tuple(
        tuple(report.counters[f"{space}_{name}"] for name in names)
        for space, names in (("global", COUNTED), ("shared", SHARED))
    )


# 128 x 192 elements are 768 warps of 32. A warp's 32 neighbours of 4 bytes are 4 sectors.
@interpreter_only
@pytest.mark.parametrize(
    ("rung", "device_memory", "shared"),
    [
        (room.naive, (768, 768 * 4, 768, 768 * 32), (0, 0, 0, 0)),
        (room.tiled, (768, 768 * 4, 768, 768 * 4), (768, 768, 768, 768 * 32)),
        (room.padded, (768, 768 * 4, 768, 768 * 4), (768, 768, 768, 768)),
        (room.coarsened, (768, 768 * 4, 768, 768 * 4), (768, 768, 768, 768)),
        # A quarter of the requests, each for 512 bytes: 16 sectors, and 4 wavefronts of 128 bytes.
        (room.vectorised, (192, 768 * 4, 192, 768 * 4), (192, 768, 192, 768)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_counters_of_4_byte_elements(rung, device_memory, shared):
    assert counted(rung, np.arange(128 * 192, dtype=F32).reshape(128, 192)) == (device_memory, shared)


# 64 x 96 elements are 192 warps of 32. Their 256 bytes are 8 sectors, and 2 wavefronts of 128 bytes.
@interpreter_only
@pytest.mark.parametrize(
    ("rung", "device_memory", "shared"),
    [
        (room.naive, (192, 192 * 8, 192, 192 * 32), (0, 0, 0, 0)),
        (room.tiled, (192, 192 * 8, 192, 192 * 8), (192, 192 * 2, 192, 192 * 32)),
        (room.padded, (192, 192 * 8, 192, 192 * 8), (192, 192 * 2, 192, 192 * 2)),
        (room.coarsened, (192, 192 * 8, 192, 192 * 8), (192, 192 * 2, 192, 192 * 2)),
        (room.vectorised, (96, 192 * 8, 96, 192 * 8), (96, 192 * 2, 96, 192 * 2)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_counters_of_8_byte_elements(rung, device_memory, shared):
    assert counted(rung, np.arange(64.0 * 96).reshape(64, 96)) == (device_memory, shared)


# 256 x 384 elements are 6 tiles of 128 x 128, each of 8 warps whose lanes have 8 x 8 elements: 8 requests of 512 bytes,
# 16 sectors, and in shared memory 4 wavefronts of 128 bytes.
@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_counters_of_2_byte_elements(dtype):
    x = np.arange(256 * 384, dtype=np.uint16).view(dtype).reshape(256, 384)
    requests = 6 * 8 * 8
    device_memory, shared = (requests, 16 * requests) * 2, (requests, 4 * requests) * 2
    assert counted(room.vectorised, x) == (device_memory, shared)


def test_elements_of_2_bytes_stay_in_registers(ptx):
    x = np.zeros((16, 16), np.float16)
    text = ptx(room.octets_kernel, x, x, cc=(9, 0))
    assert ".extern" not in text
    assert ".local" not in text
    assert "cvt.rn" not in text
    assert text.count("ld.global.v4.u32") == text.count("st.shared.v4.u32") == 8


@interpreter_only
@pytest.mark.parametrize(("shape", "offset", "wide"), [((64, 60), 0, True), ((64, 60), 1, False), ((64, 62), 0, False)])
def test_when_vectorised_is_wide(shape, offset, wide):
    x = np.arange(shape[0] * shape[1], dtype=F32).reshape(shape)
    result, reports = observe(room.vectorised, misaligned(x, offset))
    assert same(result, x.T)
    warps = -(-shape[0] // 32) * -(-shape[1] // 32) * 32
    assert total(reports, "global_load_requests") == (64 // 2 if wide else warps)
    assert [report.kernel for report in reports] == ["quads_kernel" if wide else "coarsened_kernel"]


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", room.inputs())
def test_cupy_and_torch_agree(rung, name):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    (x,) = room.inputs()[name]
    stream = cupy.cuda.Stream()
    if "bfloat16" not in name:
        with stream:
            given = cupy.asarray(x)
            expected = cupy.asnumpy(cupy.ascontiguousarray(given.T))
        assert same(device.to_host(rung(given, stream=stream)), expected)
    tensor = tensor_of(torch, x)
    out = torch.empty(x.shape[::-1], dtype=tensor.dtype, device="cuda")
    rung(tensor, out=out)
    assert same(array_of(torch, out), array_of(torch, tensor.t().contiguous()))
