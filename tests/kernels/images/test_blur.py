"""Blur: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import images
from pmpp.kernels.images import blur as room
from pmpp.kernels.images import blur_workloads
from pmpp.runtime import device
from tests.kernels.images.wrong_blur import RIGHT
from tests.kernels.images.wrong_blur import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, x, radius):
    return judge.right(result, room.reference(x, radius), room.tolerance(x, radius), np.uint8)


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
def test_the_reference_is_scipys_sum_of_an_image_with_zeros_around(name):
    ndimage = pytest.importorskip("scipy.ndimage")
    x, radius = room.inputs()[name]
    if not x.size:
        return
    ones = np.ones(2 * radius + 1)
    total, count = x.astype(np.float64), np.ones(x.shape)
    for axis in (0, 1):
        total, count = (ndimage.correlate1d(one, ones, axis, mode="constant") for one in (total, count))
    np.testing.assert_array_equal(room.reference(x, radius), np.floor(total / count + 0.5))
    np.testing.assert_array_equal(blur_workloads.by_numpy(x, radius), room.reference(x, radius))
    np.testing.assert_array_equal(blur_workloads.by_ndimage(ndimage, x, radius), room.reference(x, radius))


@each_rung
@hypothesis.given(
    h=st.integers(0, 20),
    w=st.one_of(st.integers(0, 40), st.sampled_from([16, 32, 48])),
    radius=st.integers(0, 4),
    offset=st.integers(0, 5),
    seed=st.integers(0, 9),
)
@hypothesis.settings(max_examples=8)
def test_any_shape_radius_and_alignment(rung, h, w, radius, offset, seed):
    x = np.random.default_rng(seed).integers(0, 256, (h, w), dtype=np.uint8)
    assert right(device.to_host(rung(misaligned(x, offset), radius)), x, radius)


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=lambda rung: rung.name)
def test_the_largest_radius(rung):
    x = np.full((3, 40), 255, np.uint8)
    assert right(device.to_host(rung(x, room.MOST_RADIUS)), x, room.MOST_RADIUS)


def test_the_largest_square_fits_31_bits():
    pixels = (2 * room.MOST_RADIUS + 1) ** 2
    assert 2 * 255 * pixels + pixels < 2**31


@pytest.mark.parametrize("count", [1, 2, 24, 2**12, 17**2, 19**2, 88**2, (2 * room.MOST_FUSED + 1) ** 2])
def test_means_by_float32_are_exact(count):
    """For every sum that so many pixels can have: the product goes into the addition as it is."""
    total = np.arange(255 * count + 1, dtype=np.int64)
    share = np.nextafter(np.float32(1) / np.float32(count), np.float32(2))
    found = (total * np.float64(share) + np.float64(room.LARGE)).astype(np.float32)
    np.testing.assert_array_equal(found.view(np.int32) & 255, (2 * total + count) // (2 * count))


@pytest.mark.parametrize("radius", range(room.MOST_KEPT + 1))
def test_means_by_one_multiply_add_are_exact(radius):
    """For every sum that a whole window can have, if the room says that its share is near enough."""
    count = (2 * radius + 1) ** 2
    parts = room.coarse_share(count)
    assert parts is not None or radius > 8
    if parts is None:
        return
    share, addend = map(np.float64, parts)
    total = np.arange(255 * count + 1, dtype=np.int64)
    found = ((total + 2**23) * share + addend).astype(np.float32)  # exact in float64, then rounded once
    np.testing.assert_array_equal(found.view(np.int32) & 255, (2 * total + count) // (2 * count))


# A row alone, three walks and a part of one, and four whole ones: each radius with the part, the ends with all three.
WALKS = [(h, radius) for h in (1, 47, 60) for radius in (0, 1, 4, 8, room.MOST_KEPT) if h == 47 or radius in (0, 16)]


@pytest.mark.parametrize(("h", "radius"), WALKS)
def test_a_long_walk_goes_round_its_buffer(radius, h, monkeypatch, rng):
    """Two tiles, with windows that reach over several pieces of 448 columns, and rows that are more than the buffer."""
    monkeypatch.setattr(room, "rows_of_walk", lambda *_: 15)
    x = rng.integers(0, 256, (h, 928), dtype=np.uint8)
    x[:, 400:500] = 255
    result = result_of(room.circular_buffer, x, radius)
    np.testing.assert_array_equal(result, blur_workloads.by_numpy(x, radius))


@pytest.mark.parametrize("radius", [0, 7, 8, 9, room.MOST_KEPT])
def test_a_white_image_stays_white(radius):
    x = np.full((9, 96), 255, np.uint8)
    assert right(device.to_host(room.circular_buffer(x, radius)), x, radius)


def test_circular_buffer_hands_on_what_it_cannot_do(monkeypatch):
    x = np.random.default_rng(3).integers(0, 256, (12, 80), dtype=np.uint8)
    handed = []
    monkeypatch.setattr(room.fused, "launch", lambda p: handed.append((p.x.shape, p.radius)))
    assert right(device.to_host(room.circular_buffer(x, room.MOST_KEPT)), x, room.MOST_KEPT)
    room.circular_buffer(x, room.MOST_KEPT + 1)
    room.circular_buffer(x[:, :79].copy(), 2)
    room.circular_buffer(misaligned(x, 4), 2)
    monkeypatch.setattr(room, "CAPABILITY_OF", {"circular_buffer_for": (99, 0)})  # as if this GPU were too old
    room.circular_buffer(x, 2)
    assert handed == [((12, 80), room.MOST_KEPT + 1), ((12, 79), 2), ((12, 80), 2), ((12, 80), 2)]


def test_fused_hands_on_what_it_cannot_do(monkeypatch):
    x = np.random.default_rng(2).integers(0, 256, (12, 80), dtype=np.uint8)
    handed = []
    monkeypatch.setattr(room.running, "launch", lambda p: handed.append((p.x.shape, p.radius)))
    assert right(device.to_host(room.fused(x, room.MOST_FUSED)), x, room.MOST_FUSED)
    room.fused(x, room.MOST_FUSED + 1)
    room.fused(x[:, :79].copy(), 2)
    room.fused(misaligned(x, 4), 2)
    assert handed == [((12, 80), 45), ((12, 79), 2), ((12, 80), 2)]


@each_rung
def test_output_and_stream(rung, rng):
    x, stream = rng.integers(0, 256, (9, 33), dtype=np.uint8), cuda.stream()
    out = device.empty(x.shape, np.uint8)
    assert rung(x, 2, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, 2)


def test_the_plain_function():
    np.testing.assert_array_equal(device.to_host(images.box_blur(np.uint8([[0, 90, 0]]), 1)), [[45, 30, 45]])


GREY = np.zeros((2, 3), np.uint8)
BAD = {
    "floats": ((np.zeros((2, 3)), 1), TypeError, "x must be uint8, was float64"),
    "in colour": ((np.zeros((2, 3, 3), np.uint8), 1), ValueError, "x must have 2 dimensions, had 3"),
    "too wide": ((np.zeros((1, room.MOST + 1), np.uint8), 1), ValueError, "x must have at most 524280 rows"),
    "half a radius": ((GREY, 1.5), TypeError, "radius must be an integer, was 1.5"),
    "a negative radius": ((GREY, -1), ValueError, "radius must be from 0 to 1023, was -1"),
    "a large radius": ((GREY, 1024), ValueError, "radius must be from 0 to 1023, was 1024"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(rung, name):
    arguments, error, said = BAD[name]
    with pytest.raises(error, match=said):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


def loads(rung, radius, x):
    """Bytes loaded from global memory. A byte of the image counts 1, and a sum 4."""
    result, reports = observe(rung, x, radius)
    assert right(result, x, radius)
    assert (total(reports, "flops") == 0) == (rung not in (room.fused, room.circular_buffer))
    return total(reports, "global_load_bytes")


@interpreter_only
@pytest.mark.parametrize("radius", [1, 3])
def test_counters(radius):
    h, w = 16, 64
    x = np.random.default_rng(1).integers(0, 256, (h, w), dtype=np.uint8)
    # Of all places 2 r + 1 wide, r (r + 1) are beyond the two ends.
    down, along = ((2 * radius + 1) * size - radius * (radius + 1) for size in (h, w))
    assert loads(room.direct, radius, x) == down * along
    assert loads(room.separable, radius, x) == down * w + 4 * along * h
    # Down: each thread has one strip, the whole column: h pixels enter, and all but r leave.
    walked = (2 * h - radius) * w
    # Along: a run loads what is before it, then what enters and what leaves; except beyond the ends of the row.
    runs = range(0, w, room.RUN)
    before = sum(min(first + radius, w) - max(first - radius, 0) for first in runs)
    assert loads(room.running, radius, x) == walked + 4 * h * (before + 2 * (w - radius))
    # In one kernel, by two blocks of eight rows: all lanes load the rows that are in the first window already, then
    # those that enter and leave, one ahead. Lanes beyond the image load its first columns.
    walks, filled = h // room.DEEP[0], radius + 2 * radius
    entering, leaving = h - radius - 1, h - radius
    assert loads(room.fused, radius, x) == 16 * 32 * room.WARPS * (filled + walks + entering + leaving)
    # Each tile of two walks loads its rows and r above and below them once, as far as they are in the image.
    middles, reach = range(room.WALK[0], h + room.WALK[0], 2 * room.WALK[0]), room.WALK[0] + radius
    rows = sum(min(middle + reach, h) - max(middle - reach, 0) for middle in middles)
    assert loads(room.circular_buffer, radius, x) == rows * w


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("radius", [1, 8, 32])
def test_torch_and_cupy_agree(rung, radius, rng):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = torch.from_numpy(rng.integers(0, 256, (130, 90), dtype=np.uint8)).cuda()
    expected = blur_workloads.by_torch(torch, x, radius).cpu().numpy()
    np.testing.assert_array_equal(device.to_host(rung(x, radius)), expected)
    by_cupy = blur_workloads.by_cupy(cupy, cupy.asarray(x), radius)
    np.testing.assert_array_equal(cupy.asnumpy(by_cupy), expected)
