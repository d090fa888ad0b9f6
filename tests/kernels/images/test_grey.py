"""Grey: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import images
from pmpp.kernels.images import grey as room
from pmpp.kernels.images import grey_workloads
from pmpp.runtime import device
from tests.kernels.images.wrong_grey import RIGHT
from tests.kernels.images.wrong_grey import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, x):
    return judge.right(result, room.reference(x), room.tolerance(x), np.uint8)


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of an image that begins between multiples of 16 bytes."""
    x = np.random.default_rng(0).integers(0, 256, (9, 33, 3), dtype=np.uint8)
    for offset in (1, 3):
        if found := judge.faults(function, (misaligned(x, offset),), lambda result: right(result, x)):
            return found
    return []


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """Beyond the room's inputs, on which tests/contract/test_rooms.py checks every rung."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_a_rounded_weighted_sum(name):
    (x,) = room.inputs()[name]
    exact = x.astype(np.float64) @ (np.array([54, 184, 18]) / 256)  # exact in float64
    np.testing.assert_array_equal(room.reference(x), np.floor(exact + 0.5).astype(np.uint8))
    np.testing.assert_array_equal(grey_workloads.brightness(x), room.reference(x))


def test_the_weights_are_pmpps_in_256ths():
    weights = np.array([room.RED, room.GREEN, room.BLUE])
    np.testing.assert_array_equal(weights, np.round(256 * np.array([0.21, 0.72, 0.07])))
    assert weights.sum() == 256


@each_rung
@hypothesis.given(
    h=st.integers(0, 20), w=st.integers(0, 70), offset=st.sampled_from([0, 1, 16]), seed=st.integers(0, 9)
)
@hypothesis.settings(max_examples=10)
def test_any_shape_and_alignment(rung, h, w, offset, seed):
    x = np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)
    assert right(device.to_host(rung(misaligned(x, offset))), x)


@each_rung
def test_output_and_stream(rung, rng):
    x, stream = rng.integers(0, 256, (9, 33, 3), dtype=np.uint8), cuda.stream()
    for offset in (0, 1):
        out = misaligned(np.zeros((9, 33), np.uint8), offset)
        assert rung(x, out=out, stream=stream) is out
        stream.synchronize()
        assert right(out.copy_to_host(), x)


def test_the_plain_function():
    np.testing.assert_array_equal(device.to_host(images.to_grey(np.uint8([[[255, 0, 0]]]))), [[54]])


BAD = {
    "floats": (np.zeros((2, 3, 3)), TypeError, "x must be uint8, was float64"),
    "already grey": (np.zeros((2, 3), np.uint8), ValueError, r"x must have (shape|3 dim).*"),
    "four colours": (np.zeros((2, 3, 4), np.uint8), ValueError, r"x must have shape .*3\), had \(2, 3, 4\)"),
    "mirrored": (np.zeros((2, 3, 3), np.uint8)[:, ::-1], ValueError, "x must be contiguous in C order"),
    "too high": (np.zeros((room.MOST + 1, 1, 3), np.uint8), ValueError, "x must have at most 524280 rows"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(rung, name):
    x, error, said = BAD[name]
    with pytest.raises(error, match=said):
        rung(x)


@each_rung
def test_a_bad_out_is_named(rung):
    x = np.zeros((2, 3, 3), np.uint8)
    with pytest.raises(ValueError, match=r"out must have shape \(2, 3\)"):
        rung(x, out=device.empty((3, 2), np.uint8))
    with pytest.raises(TypeError, match="out must be uint8"):
        rung(x, out=device.empty((2, 3), np.float32))


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung):
    """Of a 32 x 64 image, 64 warps of 32 pixels."""
    x = np.random.default_rng(1).integers(0, 256, (32, 64, 3), dtype=np.uint8)
    result, (report,) = observe(rung, x)
    assert right(result, x)
    names = ("load_requests", "load_sectors", "store_requests", "store_sectors")
    assert report.counters["flops"] == 0
    return tuple(report.counters[f"global_{name}"] for name in names)


@interpreter_only
def test_counters():
    # Three loads a warp. A row has 192 bytes, so each of 32 lanes is in a sector of its own.
    assert counted(room.rows_first) == (3 * 64, 3 * 64 * 32, 64, 64 * 32)
    # 32 pixels are 96 bytes: three sectors, each touched by each of the three loads.
    assert counted(room.columns_first) == (3 * 64, 3 * 64 * 3, 64, 64)
    # 2048 pixels are 128 threads, four warps. Three loads of a warp touch each of its 48 sectors: a lane's three
    # vectors are 16 bytes, half a sector, each, 48 bytes apart: 32 sectors a load.
    assert counted(room.sixteen_each) == (3 * 4, 3 * 4 * 32, 4, 4 * 16)


@pytest.mark.gpu
@each_rung
def test_torch_and_cupy_agree(rung, rng):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = torch.from_numpy(rng.integers(0, 256, (61, 83, 3), dtype=np.uint8)).cuda()
    found = device.to_host(rung(x))
    np.testing.assert_array_equal(found, grey_workloads.by_torch(torch, x).cpu().numpy())
    np.testing.assert_array_equal(found, cupy.asnumpy(grey_workloads.by_cupy(cupy, cupy.asarray(x))))
