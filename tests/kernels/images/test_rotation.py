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
from tests.kernels.images.wrong_rotation import RIGHT, in_boxes
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


@pytest.mark.parametrize("function", [RIGHT, in_boxes(before=True, after=True)], ids=["pixels", "boxes"])
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


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


BOXES = room.LADDER[3:]
each_box = pytest.mark.parametrize("rung", BOXES, ids=[rung.name for rung in BOXES])


@each_box
def test_boxes_inside_of_the_image(rung, rng):
    """Here a tile in the middle takes the way without tests, and its box is as large as boxes become."""
    h, w = 3 * room.SIDE - 5, 3 * room.SIDE
    x = rng.integers(0, 256, (h, w), dtype=np.uint8)
    assert right(device.to_host(rung(x, math.pi / 4)), x, math.pi / 4)


@each_box
def test_boxes_outside_of_the_image(rung, rng):
    """Turned by 45 degrees, the first tile of a large image comes from beyond it."""
    side = 9 * room.SIDE
    x = rng.integers(1, 256, (side, side), dtype=np.uint8)
    result = device.to_host(rung(x, math.pi / 4))
    assert right(result, x, math.pi / 4)
    assert not result[: room.SIDE, : room.SIDE].any()


def listed(lanes):
    """Rows and pieces that are stored, as a set."""
    return {(int(place) & 255, int(place) >> 8) for place in lanes if place >= 0}


@pytest.mark.parametrize("whole", [True, False], ids=["the whole box", "what is touched"])
def test_the_pieces_have_all_that_a_tile_needs(whole, rng):
    """Whatever the angle is, and whatever fractions the tile's first position has."""
    row, column = np.indices((room.SIDE, room.SIDE)).reshape(2, -1)
    for degrees in [*range(0, 360, 15), 1, 44.9, 179.9, 300.3]:
        cos, sin = room.steps(math.radians(degrees))
        pieces = listed(room.pieces_of(cos, sin, whole).copy_to_host())
        assert max(row for row, _ in pieces) < room.BOX_ROWS
        assert max(piece for _, piece in pieces) < room.BOX_PIECES
        (highest, _), (leftmost, _) = room.farthest(2 * cos, 2 * sin), room.farthest(2 * cos, -2 * sin)
        ends = [[0, 0], [2**32 - 1, 2**35 - 1]] - np.array([highest, leftmost])  # the least and the largest fractions
        for down, right_of in [*ends, *rng.integers(-(2**40), 2**40, (8, 2))]:
            i = ((down + 2 * (row * cos + column * sin)) >> 32) - ((down + highest) >> 32)
            j = ((right_of + 2 * (column * cos - row * sin)) >> 32) - ((right_of + leftmost) >> 35 << 3)
            for below, beside in ((0, 0), (0, 1), (1, 0), (1, 1)):
                needed = np.unique((i + below) + ((j + beside) >> 3 << 8))
                assert listed(needed) <= pieces


@pytest.mark.parametrize("degrees", [0, 30, 45, 90, 200])
def test_the_next_lane_has_the_next_piece(degrees):
    """If a piece is stored and the next one of its row is listed, the lane to the right has loaded it."""
    lanes = room.pieces_of(*room.steps(math.radians(degrees)), False).copy_to_host().reshape(-1, 32)
    pieces = listed(lanes.reshape(-1))
    assert (lanes >= 0).sum() == len(pieces)  # each is stored once
    for lane, place in [(lane, int(place)) for each in lanes for lane, place in enumerate(each) if place >= 0]:
        if ((place & 255), (place >> 8) + 1) in pieces:
            following = lanes[np.nonzero(lanes[:, lane] == place)[0][0], lane + 1]
            assert int(following) & 0xFFFF == place + 256


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
    # The box of the only tile is the image, and two rows and two pieces more. A lane loads a piece's place in the list,
    # and then the piece, where it is in the image. The last lane of a round loads what the next round loads first.
    rounds, row_of, piece_of = 24, *divmod(np.arange((h + 2) * (w // 8 + 2)), w // 8 + 2)
    in_the_image = (row_of < h) & (piece_of < w // 8)
    for name in ("in_boxes", "in_pieces", "by_dots", "ahead"):
        assert quarter[name][0] == 8 * (in_the_image.sum() + in_the_image[31::31].sum()) + 4 * 32 * rounds
    stores = [h * w // 32, h * w // 32, h * w // 128, *[h * w // 512] * 4]
    assert [quarter[name][1] for name in quarter] == stores
    # Whatever the angle is, a patch of 4 x 8 pixels has few pairs in one bank.
    names = "shared_load_wavefronts", "shared_load_requests"
    for degrees in (0, 30, 45, 90):
        wavefronts, requests = counts(room.by_dots, math.radians(degrees), x, *names)
        assert wavefronts < 1.7 * requests
    # A warp of 32 in a row reads a column of the image: a sector a lane. A patch reads eight rows of four.
    assert quarter["in_rows"][2] == loaded
    assert quarter["in_patches"][2] < loaded / 3
    still = {rung.name: counts(rung, 0, x, "global_load_sectors")[0] for rung in room.LADDER[:2]}
    assert still["in_rows"] < still["in_patches"] / 2


@interpreter_only
@pytest.mark.parametrize("degrees", [0, 20, 30, 60, 90, 120, 150])
def test_the_passes_are_counted_beforehand(degrees):
    """What `passes` says of the better patch is what a rung then takes, but for its loads of results: four each."""
    x, turn = np.random.default_rng(1).integers(0, 256, (256, 256), dtype=np.uint8), math.radians(degrees)
    wavefronts, requests = counts(room.by_dots, turn, x, "shared_load_wavefronts", "shared_load_requests")
    results = x.size // 512
    expected = min(room.passes(*room.steps(turn), wide) for wide in (False, True))
    assert (wavefronts - 4 * results) / (requests - results) == pytest.approx(expected, rel=0.1)


@interpreter_only
def test_a_turned_tile_touches_about_half_of_its_box():
    x = np.random.default_rng(1).integers(0, 256, (192, 192), dtype=np.uint8)
    loaded, fewer = (counts(rung, math.pi / 4, x, "global_load_bytes")[0] for rung in (room.in_boxes, room.in_pieces))
    assert fewer < 0.65 * loaded
    # A weighted sum of two bytes is one instruction and not six.
    products, dots = (counts(rung, math.pi / 4, x, "inst_integer")[0] for rung in (room.in_pieces, room.by_dots))
    assert dots < products


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
