"""Products with packed weights: results on every path, exact sums, the bits of a weight, arguments, and counters."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.quantisation import weight_only as room
from pmpp.runtime import device
from tests.kernels.quantisation.wrong_weight_only import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F16, F32 = np.float16, np.float32
INPUTS = room.inputs()
SOME = ["one", "a group and one", "filled up by words", "float32, odd, 4 bits", "scales of any sign"]


def whole_case(m, n, k, bits, dtype=F16, seed=5):
    """Whole numbers and scales that are powers of two: every sum is exact, and one lost or doubled product shows.

    A tensor core has 24 bits below the largest exponent of a product: with 8 bits and x up to 4 all of it fits.
    """
    rng = np.random.default_rng(seed)
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    groups = -(-k // room.GROUP)
    numbers = rng.integers(low, high, (n, groups * room.GROUP)).astype(np.int8)
    x = rng.integers(1, 5, (m, k)) * rng.choice([-1, 1], (m, k))
    scales = (2.0 ** rng.integers(-3, 3, (n, groups))).astype(F32)
    return x.astype(dtype), room.packed(numbers) if bits == 4 else numbers, scales


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def exact(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0.0)


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first; then on exact sums, and out of place."""
    for arguments in (INPUTS[name] for name in names):
        found = judge.faults(function, arguments, lambda result, a=arguments: right(result, *a))
        if found:
            return found
    x, w, scales = whole_case(1, 5, 261, 4)
    found = judge.faults(function, (x, w, scales), lambda result: exact(result, x, w, scales))
    return found or judge.faults(function, (x, misaligned(w, 4), scales), lambda result: exact(result, x, w, scales))


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


@each_rung
@pytest.mark.parametrize("bits", [4, 8])
def test_one_lost_product_shows(rung, bits):
    for m, n, k, dtype in ((1, 17, 264, F16), (9, 5, 131, F16), (2, 3, 136, F32)):
        arguments = whole_case(m, n, k, bits, dtype)
        assert exact(result_of(rung, *arguments), *arguments)


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=8)
def test_any_shape_and_place(rung, data):
    m, n = data.draw(st.sampled_from([1, 2, 8, 9, 17])), data.draw(st.sampled_from([1, 4, 15, 16, 33]))
    k, bits = data.draw(st.sampled_from([1, 8, 127, 128, 129, 250, 384])), data.draw(st.sampled_from([4, 8]))
    hypothesis.assume(m * n * k < 40_000)
    x, w, scales = whole_case(m, n, k, bits, data.draw(st.sampled_from([F16, F32])))
    placed = misaligned(x, data.draw(st.integers(0, 8))), misaligned(w, data.draw(st.sampled_from([0, 1, 16])))
    assert exact(device.to_host(rung(*placed, scales)), x, w, scales)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("high", "warps", "k"), [(1, 1, 300), (2, 2, 130), (1, 4, 1500), (2, 8, 1100)])
def test_any_number_of_warps_and_rows_a_block(bits, high, warps, k):
    """Also with more warps than there are groups."""
    arguments = whole_case(3, 37, k, bits)
    p = room.arguments(*arguments)
    assert exact(result_of(lambda: room.by_tensors(p, high, warps) or p.result), *arguments)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("m", "k", "plan"),
    [
        (1, 1304, room.Plan(1, 1, 16, 2, 0)),
        (1, 1112, room.Plan(1, 2, 2, 3, 0)),
        (1, 776, room.Plan(1, 4, 3, 3, 0)),
        (8, 904, room.Plan(8, 2, 1, 4, 0)),
        (3, 136, room.Plan(8, 1, 4, 3, 0)),
    ],
)
def test_any_number_of_stages(bits, m, k, plan):
    """Also with more stages than a warp has groups, and with warps that have more groups than stages."""
    arguments = whole_case(m, 37, k, bits)
    p = room.arguments(*arguments)
    assert exact(result_of(lambda: room.by_stages(p, plan) or p.result), *arguments)


@pytest.mark.parametrize(("shares", "n", "k"), [(2, 129, 1304), (4, 70, 2056), (16, 20, 8)])
def test_any_number_of_warps_that_share_rows(shares, n, k):
    """More and fewer eights of groups than warps share; rows of W and groups that the last block and warp lack."""
    arguments = whole_case(1, n, k, 4)
    p = room.arguments(*arguments)
    assert exact(result_of(lambda: room.by_queues(p, shares) or p.result), *arguments)


@pytest.mark.parametrize("memory", [100, 164, 228])
def test_the_plan_fits_a_multiprocessor(memory):
    for bits in (4, 8):
        for shape in ((1, 8192, 28672), (8, 8192, 512), (1, 64, 65536), (8, 64, 65536), (1, 8, 8)):
            plan = room.plan(*shape, bits, 132, memory * 1024)
            sums = plan.warps * 16 * plan.high * 8 * 4
            assert plan.stages >= 2
            assert plan.warps in (8, 12, 16, 32)
            assert plan.shared(bits) + sums + room.RESERVED <= memory * 1024


def test_warps_share_rows_where_that_fills_the_gpu():
    for n, k, wanted in (
        (4096, 4096, 8),
        (16384, 16384, 2),
        (28672, 8192, 2),
        (17000, 8192, 8),  # with 2 it would be one block more than multiprocessors
        (1024, 16384, 0),  # too few rows
        (2048, 2048, 0),  # too few groups for as many warps
        (8192, 65536, 0),  # x takes more shared memory than there is
    ):
        assert room.shares(n, k, 132, 228 * 1024) == wanted
        assert not wanted or room.queued_shared(k) + 1024 + room.RESERVED <= 228 * 1024


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_any_number_of_rows_a_warp(rows):
    arguments = whole_case(2, 11, 264, 4)
    p = room.arguments(*arguments)
    assert exact(result_of(lambda: room.by_vectors(p, rows) or p.result), *arguments)


# ------------------------------------------------------------------------------------------------- the bits of a weight


def test_a_weight_is_a_subnormal():
    """What the last rung takes for granted of float16, for every weight that there is."""
    for q in range(16):
        assert np.uint16(q << 6).view(F16) == q * 2.0**-18
    for q in range(256):
        assert np.uint16(q << 2).view(F16) == q * 2.0**-22
    less = np.uint16(0x8200).view(F16)
    assert less == -8 * 2.0**-18
    assert less == -128 * 2.0**-22


def test_a_whole_number_is_the_last_bits_of_a_large_float():
    for q in range(256):
        assert np.uint32(q | int(room.MAGIC)).view(F32) == 2.0**23 + q


def test_two_weights_a_byte():
    numbers = np.random.default_rng(6).integers(-8, 8, (3, 10)).astype(np.int8)
    packed = room.packed(numbers)
    assert (packed.shape, packed.dtype) == ((3, 5), np.uint8)
    np.testing.assert_array_equal(room.whole(packed), numbers)
    assert packed[1, 2] == (numbers[1, 4] + 8) + 16 * (numbers[1, 5] + 8)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_are_off_by_half_a_step(bits):
    w = np.random.default_rng(7).standard_normal((6, 200), dtype=F32)
    w[2, :128], w[3, 7] = 0, 50
    numbers, scales = room.quantise_weights(w, bits)
    back = (room.whole(numbers) * np.repeat(scales.astype(np.float64), room.GROUP, axis=1))[:, :200]
    step = np.repeat(scales, room.GROUP, axis=1)[:, :200]
    assert (abs(back - w) <= step * (0.5 + 1e-6)).all()
    most = np.repeat(abs(np.pad(w, ((0, 0), (0, 56)))).reshape(6, 2, 128).max(2), 128, axis=1)[:, :200]
    np.testing.assert_allclose(step[most > 0], most[most > 0] / (7 if bits == 4 else 127), rtol=1e-6)
    assert (back[2, :128] == 0).all()  # a group of zeros has a scale, too
    x = np.random.default_rng(8).standard_normal((2, 200)).astype(F16)
    assert right(device.to_host(room.tensor(x, numbers, scales)), x, numbers, scales)


def test_no_weights_are_quantised():
    for shape in ((0, 5), (3, 0)):
        numbers, scales = room.quantise_weights(np.ones(shape, F32))
        result = device.to_host(room.tensor(np.ones((2, shape[1]), F16), numbers, scales))
        np.testing.assert_array_equal(result, np.zeros((2, shape[0])))


# -------------------------------------------------------------------------------------------------------- the arguments


@each_rung
def test_bad_arguments_are_refused_by_name(rung):
    x, w, scales = whole_case(2, 3, 130, 4)
    with pytest.raises(TypeError, match=r"x must be float32 or float16, was float64"):
        rung(x.astype(np.float64), w, scales)
    with pytest.raises(ValueError, match=r"w must have 128 bytes a row for K = 130 and 4 bits, had shape \(3, 64\)"):
        rung(x, w[:, :64].copy(), scales)
    with pytest.raises(ValueError, match=r"w must have 256 bytes a row for K = 130 and 8 bits, had shape \(3, 128\)"):
        rung(x, w.view(np.int8), scales)
    with pytest.raises(ValueError, match=r"scales must have shape \(3, 2\), had \(3, 1\)"):
        rung(x, w, scales[:, :1].copy())
    with pytest.raises(ValueError, match=r"out must have shape \(2, 3\), had \(3, 2\)"):
        rung(x, w, scales, out=device.empty((3, 2), F32))


@pytest.mark.parametrize("bits", [3, 5, 9])
def test_weights_have_4_or_8_bits(bits):
    with pytest.raises(ValueError, match=f"bits must be 4 or 8, was {bits}"):
        room.quantise_weights(np.ones((2, 3), F32), bits)


def test_weights_are_finite():
    with pytest.raises(ValueError, match="w must be finite, had an element that is not"):
        room.quantise_weights(F32([[1, np.nan]]))


# --------------------------------------------------------------------------------------------------------- the counters


@interpreter_only
def test_counts_of_one_vector():
    """32 rows of 1024 weights: 16 KiB, which are 512 sectors. The scales are 32 x 8."""
    x, w, scales = whole_case(1, 32, 1024, 4)
    # One warp, a row a lane. At each weight a request for it, for its scale and for x.
    _, reports = observe(room.thread_per_row, x, w, scales)
    assert total(reports, "global_load_requests") == 3 * 1024
    assert total(reports, "global_load_sectors") == 1024 * (32 + 32 + 1)
    # Eight warps of four rows each: a lane has 32 weights of each row, four words of x, and a scale a row.
    _, reports = observe(room.vectorised, x, w, scales)
    assert total(reports, "global_load_requests") == 8 * (4 + 4 + 4)
    # A block with a warp for each group. A warp loads 64 bytes of 32 rows, eight rows at a time, and again of the group
    # after the last one, which is none; x four times, and four scales.
    p = room.arguments(x, w, scales)
    _, reports = observe(lambda: room.by_tensors(p, 2, 8) or p.result)
    assert total(reports, "global_load_requests") == 8 * (2 * 4 + 4 + 4)
    # An mma.sync of 4096 FLOP for each 16 x 16 weights of W, and one more for what was added to those of 32 rows.
    assert total(reports, "tensor_flops") == 3 * 4096 * (1024 // 16)
    # Each warp copies 2 KiB of W and 256 bytes of x, and nothing behind the last group. It asks for its scales twice.
    _, reports = observe(lambda: room.by_stages(p, room.Plan(1, 2, 8, 2, 0)) or p.result)
    assert total(reports, "global_load_sectors") == 512 + 2 * 1024 // 32 + 2 * 8 * 32
    assert total(reports, "tensor_flops") == 3 * 4096 * (1024 // 16)
    # A block copies x once. Of its 16 warps two have groups: they load 32 sectors of scales twice, and the others once.
    # Nothing is multiplied for what was added to the weights.
    _, reports = observe(lambda: room.by_queues(p, 8) or p.result)
    assert total(reports, "global_load_sectors") == 512 + 2 * 1024 // 32 + (16 + 2) * 32
    assert total(reports, "tensor_flops") == 2 * 4096 * (1024 // 16)


@interpreter_only
def test_nothing_is_added_by_atomics():
    arguments = whole_case(2, 20, 300, 4)
    for rung in room.LADDER:
        _, reports = observe(rung, *arguments)
        assert total(reports, "atomic_requests") == 0


# ---------------------------------------------------------------------------------------------------------- the machine


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_large_products_are_right_and_the_same_in_every_run(bits):
    """8190 rows are enough for `queued` on an H200."""
    host = whole_case(1, 8190, 5000, bits)
    arguments = tuple(map(device.to_device, host))
    rungs = room.tensor, room.staged, room.queued
    results = {device.to_host(rung(*arguments)).tobytes() for rung in rungs for _ in range(5)}
    assert len(results) == 1
    np.testing.assert_array_equal(np.frombuffer(results.pop(), F32), room.reference(*host)[0])
