"""Rotation: results, arguments, and the counters of each rung against counts done by hand."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import images
from pmpp.kernels.images import rotation as room
from pmpp.kernels.images import rotation_workloads
from pmpp.runtime import device
from tests.kernels.images.wrong_rotation import RIGHT
from tests.kernels.images.wrong_rotation import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, x, angle):
    return judge.right(result, room.reference(x, angle), room.tolerance(x, angle), np.uint8)


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_scipys_rotation_but_for_its_eight_bits(name):
    ndimage = pytest.importorskip("scipy.ndimage")
    x, angle = room.inputs()[name]
    if not x.size:
        return
    found = rotation_workloads.by_ndimage(ndimage, x.astype(np.float64), angle)
    assert abs(found - room.reference(x, angle)).max() < 2.5  # two shares cut off at 1/256, and a result rounded


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1, 5])
def test_quarters_of_a_square_are_numpys(quarters):
    x = np.random.default_rng(4).integers(0, 256, (9, 9), dtype=np.uint8)
    np.testing.assert_array_equal(room.reference(x, quarters * math.pi / 2), np.rot90(x, quarters))


def test_the_workload_computes_the_reference():
    for x, angle in room.inputs().values():
        if x.size:
            whole, _ = rotation_workloads._exact(x.astype(np.int64), slice(0, len(x)), angle)
            np.testing.assert_array_equal(whole, room.reference(x, angle))


@each_rung
@hypothesis.given(
    h=st.integers(0, 20),
    w=st.one_of(st.integers(0, 40), st.sampled_from([16, 32, 48])),
    angle=st.floats(-7, 7),
    offset=st.integers(0, 5),
    seed=st.integers(0, 9),
)
@hypothesis.settings(max_examples=8)
def test_any_shape_angle_and_alignment(rung, h, w, angle, offset, seed):
    x = np.random.default_rng(seed).integers(0, 256, (h, w), dtype=np.uint8)
    assert right(device.to_host(rung(misaligned(x, offset), angle)), x, angle)


@each_rung
def test_output_and_stream(rung, rng):
    x, stream = rng.integers(0, 256, (9, 36), dtype=np.uint8), cuda.stream()
    out = device.empty(x.shape, np.uint8)
    assert rung(x, 2, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, 2)


@pytest.mark.parametrize("rung", room.LADDER[2:], ids=lambda rung: rung.name)
def test_an_output_between_two_words(rung, rng):
    x = rng.integers(0, 256, (5, 12), dtype=np.uint8)
    out = device.empty(61, np.uint8)[1:].reshape(5, 12)
    assert right(device.to_host(rung(x, 0.4, out=out)), x, 0.4)


def test_boxes_inside_of_the_image(rng):
    """Here a tile in the middle takes the way without tests, and its box is as large as boxes become."""
    h, w = 4 * room.SIDE - 5, 4 * room.SIDE
    x = rng.integers(0, 256, (h, w), dtype=np.uint8)
    assert right(device.to_host(room.in_boxes(x, math.pi / 4)), x, math.pi / 4)


def test_a_box_has_all_that_a_tile_needs():
    """Whatever the angle is, and whatever fraction the tile's first position has."""
    starts = np.random.default_rng(5).integers(-(2**40), 2**40, 500)
    for degrees in range(0, 360, 5):
        cos, sin = (2 * step for step in room.steps(math.radians(degrees)))
        highest, lowest = room.farthest(cos, sin)
        rows = ((starts + lowest) >> 32) - ((starts + highest) >> 32) + 2  # the last one has a row below
        leftmost, rightmost = room.farthest(cos, -sin)
        columns = ((starts + rightmost) >> 32) - ((starts + leftmost) >> 35 << 3) + 1  # from two whole words on
        assert rows.max() <= room.BOX_ROWS
        assert columns.max() <= 8 * room.PIECES


def test_the_plain_function():
    np.testing.assert_array_equal(device.to_host(images.rotate(np.uint8([[1, 2], [3, 4]]), math.pi)), [[4, 3], [2, 1]])


GREY = np.zeros((2, 3), np.uint8)
BAD = {
    "floats": ((np.zeros((2, 3)), 1), TypeError, "x must be uint8, was float64"),
    "in colour": ((np.zeros((2, 3, 3), np.uint8), 1), ValueError, "x must have 2 dimensions, had 3"),
    "too wide": ((np.zeros((1, room.MOST + 1), np.uint8), 1), ValueError, "x must have at most 524280 rows"),
    "no number": ((GREY, "1"), TypeError, "angle must be a number, was '1'"),
    "not a number": ((GREY, math.nan), ValueError, "angle must be a finite number, was nan"),
    "a large angle": ((GREY, 2e6), ValueError, "angle must be from -1000000.0 to 1000000.0, was 2000000.0"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(rung, name):
    arguments, error, said = BAD[name]
    with pytest.raises(error, match=said):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


def counts(rung, angle, x, *names):
    result, reports = observe(rung, x, angle)
    assert right(result, x, angle)
    return [total(reports, name) for name in names]


@interpreter_only
def test_counters():
    h = w = 64
    x = np.random.default_rng(1).integers(0, 256, (h, w), dtype=np.uint8)
    names = "global_load_bytes", "global_store_requests", "global_load_sectors"
    quarter = {rung.name: counts(rung, math.pi / 2, x, *names) for rung in room.LADDER}
    # Every pixel asks for the one that it is, for its neighbours to the right and below, and for the one beyond both,
    # as far as they are in the image.
    loaded = h * w + (h - 1) * w + h * (w - 1) + (h - 1) * (w - 1)
    assert [found[0] for found in quarter.values()][:3] == [loaded] * 3
    # The box of the only tile is the image, and each of its words is loaded once.
    assert quarter["in_boxes"][0] == h * w
    assert [quarter[name][1] for name in quarter] == [h * w // 32, h * w // 32, h * w // 128, h * w // 512]
    # Whatever the angle is, a patch of 8 x 4 pixels has few pairs in one bank.
    names = "shared_load_wavefronts", "shared_load_requests"
    for degrees in (0, 30, 45, 90):
        wavefronts, requests = counts(room.in_boxes, math.radians(degrees), x, *names)
        assert wavefronts < 1.7 * requests
    # A warp of 32 in a row reads a column of the image: a sector a lane. A patch reads eight rows of four.
    assert quarter["in_rows"][2] == loaded
    assert quarter["in_patches"][2] < loaded / 3
    still = {rung.name: counts(rung, 0, x, "global_load_sectors")[0] for rung in room.LADDER[:2]}
    assert still["in_rows"] < still["in_patches"] / 2


@pytest.mark.gpu
@each_rung
def test_torch_and_cupy_agree(rung, rng):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = torch.from_numpy(rng.integers(0, 256, (130, 92), dtype=np.uint8)).cuda()
    for angle in (0.0, 0.5, 2.0):
        found = device.to_host(rung(x, angle)).astype(int)
        expected = rotation_workloads.by_torch(torch, x, angle).cpu().numpy()
        assert abs(found - expected).max() <= rotation_workloads.ALLOWED
        by_cupy = cupy.asnumpy(rotation_workloads.by_cupy(cupy, cupy.asarray(x), angle))
        assert abs(found - by_cupy).max() <= rotation_workloads.ALLOWED
