"""Quantisation: results for any shape and place in memory, calibration, arguments, counts against counts by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import quantisation as subject
from pmpp.kernels.quantisation import calibration
from pmpp.kernels.quantisation import ladder as room
from pmpp.runtime import device
from tests.kernels.quantisation.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
SOME = ["one", "halves", "4 bits, affine", "channels of images", "short rows", "wild", "all and one", "halves, affine"]


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0, np.int8)


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first; and on many quotients near a tie."""
    for arguments in (*(INPUTS[name] for name in names), near_ties()):
        found = judge.faults(function, arguments, lambda result, a=arguments: right(result, *a))
        if found:
            return found
    return []


def near_ties():
    """Numbers half a step from whole ones, in steps that float32 rounds: a reciprocal is off by one step for some."""
    scales = np.float32([0.1, 0.3, 0.7])
    halves = np.arange(0.5, 100, dtype=np.float64)
    return (halves * scales[:, None].astype(np.float64)).astype(F32), scales, None, 8


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


def test_the_definition_agrees_with_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((6, 50), dtype=F32)
    # A scale that is a power of two: PyTorch multiplies by the reciprocal, which is the same for those alone.
    scales, zeros = F32([2.0**-k for k in range(2, 8)]), np.int8([0, 3, -9, 100, -128, 127])
    theirs = torch.quantize_per_channel(torch.tensor(x), torch.tensor(scales), torch.tensor(zeros), 0, torch.qint8)
    np.testing.assert_array_equal(room.reference(x, scales, zeros), theirs.int_repr().numpy())


def test_the_definition_by_hand():
    x = F32([0.5, 1.5, 2.5, -0.5, -1.5, 126.6, 127.5, 500, -128.5, -129, np.nan])
    expected = [0, 2, 2, 0, -2, 127, 127, 127, -128, -128, 0]
    assert room.reference(x, F32([1])).tolist() == expected
    assert room.reference(x, F32([1]), np.int8([3]), 4).tolist() == [3, 5, 5, 3, 1, 7, 7, 7, -8, -8, 3]


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=12)
def test_any_shape_place_and_kind(rung, data):
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 12, 33]), min_size=1, max_size=3)))
    hypothesis.assume(np.prod(shape) < 5000)
    rng = np.random.default_rng(len(shape))
    channels = shape[0] if data.draw(st.booleans()) else 1
    scales, bits = rng.uniform(0.01, 0.1, channels).astype(F32), data.draw(st.integers(2, 8))
    zeros = rng.integers(*room.limits(bits), channels, dtype=np.int8) if data.draw(st.booleans()) else None
    x = rng.standard_normal(shape, dtype=F32)
    result = rung(misaligned(x, data.draw(st.integers(0, 3))), scales, zeros, bits)
    assert right(device.to_host(result), x, scales, zeros, bits)


# ------------------------------------------------------------------------------------------ the way back


@pytest.mark.parametrize("shape", [(1,), (5,), (0,), (3, 0), (4, 7), (3, 4, 8), (300,)], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_the_way_back(shape, offset):
    rng = np.random.default_rng(2)
    q = rng.integers(-128, 128, shape).astype(np.int8)
    for channels in {1, shape[0]} - {0}:
        scales, zeros = rng.uniform(0.1, 1, channels).astype(F32), rng.integers(-9, 9, channels).astype(np.int8)
        form = (-1, *(1,) * (len(shape) - 1))
        for zero in (None, zeros):
            less = 0 if zero is None else zero.astype(F32).reshape(form)
            expected = (q.astype(F32) - less) * scales.reshape(form)
            result = result_of(subject.dequantise, misaligned(q, offset), scales, zero)
            np.testing.assert_array_equal(result, expected)


def test_there_and_back_is_off_by_half_a_step_at_most():
    x = np.random.default_rng(3).standard_normal((7, 60), dtype=F32)
    for affine in (False, True):
        for per_channel in (False, True):
            scales, zeros = subject.calibrate(x, affine=affine, per_channel=per_channel)
            back = device.to_host(subject.dequantise(subject.quantise(x, scales, zeros), scales, zeros))
            # An affine zero point is rounded, by up to half a step: the ends of the range may be cut by as much.
            most = scales.astype(np.float64)[:, None] * (1 if affine else 0.5) + 1e-6
            assert (abs(back - x) <= most).all()


# ------------------------------------------------------------------------------------------ calibration


def test_a_range_by_hand():
    x = F32([[-1, 3, 0], [2, 4, 8]])
    scales, zeros = subject.calibrate(x, bits=4, per_channel=True)
    np.testing.assert_array_equal(scales, F32([3 / 7, 8 / 7]))
    assert zeros is None
    scales, zeros = subject.calibrate(x, bits=4, affine=True, per_channel=True)
    np.testing.assert_array_equal(scales, F32([4 / 15, 8 / 15]))
    np.testing.assert_array_equal(zeros, [-4, -8])  # -8 + 1 / (4 / 15) = -4.25, and -8 + 0


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("how", calibration.WAYS)
def test_zeros_and_constants_are_quantised(how, affine):
    for value in (0.0, 2.0, -3.5, 1e-42):
        scales, zeros = subject.calibrate(np.full((2, 3), value, F32), how, affine=affine)
        assert scales[0] > 0
        back = device.to_host(subject.dequantise(subject.quantise(F32([value]), scales, zeros), scales, zeros))
        assert abs(back[0] - F32(value)) <= scales[0] / 2 + 1e-6 * abs(value)


@pytest.mark.parametrize("affine", [False, True])
def test_a_percentile_is_that_of_numpy_within_a_bin(affine):
    x = np.random.default_rng(4).standard_normal(3000, dtype=F32)
    x[7] = 30
    scales, zeros = subject.calibrate(x, "percentile", 8, affine, percentile=98)
    bin_ = (30 - (x.min() if affine else -30)) / calibration.BINS
    if affine:
        low, high = np.percentile(x, [1, 99])
        assert abs(scales[0] * 255 - (high - low)) <= 3 * bin_
        assert abs((-128 - zeros[0]) * scales[0] - low) <= 2 * bin_ + scales[0]
    else:
        assert abs(scales[0] * 127 - np.percentile(abs(x), 98)) <= 2 * bin_


@pytest.mark.parametrize("outliers", [1, 10])
def test_a_percentile_leaves_out_as_many_as_it_says(outliers):
    """99.9 % of 1,000 or 10,000 elements, where 0.999 is no float."""
    x = np.linspace(-1, 1, 1000 * outliers, dtype=F32)
    x[:outliers] = 1000
    assert subject.calibrate(x, "percentile")[0][0] * 127 < 2
    assert subject.calibrate(x, "percentile", percentile=99.91)[0][0] * 127 == pytest.approx(1000)


@pytest.mark.parametrize("end", [-1000, 1000])
def test_an_affine_percentile_is_the_same_at_both_ends(end):
    x = np.linspace(-1, 1, 2000, dtype=F32)
    x[500] = end
    assert subject.calibrate(x, "percentile", affine=True)[0][0] * 255 < 4  # half of 0.1 % of 2,000
    assert subject.calibrate(x, "percentile", affine=True, percentile=99.91)[0][0] * 255 > 900


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("how", calibration.WAYS)
def test_large_and_small_numbers_have_the_range_of_others(how, affine):
    """Also where their width is no float32. What is nearly 0 has any scale."""
    x = np.random.default_rng(6).uniform(-1, 1, 600).astype(F32)
    scale = subject.calibrate(x, how, affine=affine)[0][0]
    large = subject.calibrate(np.ldexp(x, 127), how, affine=affine)[0][0]
    assert large == pytest.approx(np.ldexp(float(scale), 127), rel=1e-6)
    small = subject.calibrate(np.ldexp(np.stack([x, x]), [[-130], [0]]), how, affine=affine, per_channel=True)[0]
    assert small[0] == 1
    assert small[1] == scale


def test_the_least_error_is_the_least():
    """Of the hundred ranges no other has a smaller error, measured on the numbers themselves."""
    x = np.random.default_rng(5).standard_normal(2000, dtype=F32)
    x[0] = 12

    def error(scales):
        q = room.reference(x, scales, None, 4)
        return float(np.mean((q * scales.astype(np.float64) - x) ** 2))

    found = error(subject.calibrate(x, "error", 4)[0])
    others = [error(calibration.numbers_of(np.array([-12 * s]), np.array([12 * s]), 4, False)[0]) for s in
              np.arange(1, 101) / 100]  # fmt: skip
    assert found <= min(others) * 1.02  # the histogram has each number as the middle of its bin
    assert found < 0.3 * others[-1]


# ------------------------------------------------------------------------------------------ arguments


@each_rung
def test_bad_arguments_are_refused_by_name(rung):
    x, scales = np.ones((3, 4), F32), np.ones(3, F32)
    with pytest.raises(TypeError, match=r"x must be float32, was float64"):
        rung(x.astype(np.float64), scales)
    with pytest.raises(ValueError, match=r"scales must have 1 element or 3, the channels of x, had 2"):
        rung(x, scales[:2])
    with pytest.raises(ValueError, match=r"zeros must have shape \(3,\)"):
        rung(x, scales, np.zeros(1, np.int8))
    with pytest.raises(ValueError, match=r"bits must be from 2 to 8, was 9"):
        rung(x, scales, None, 9)
    with pytest.raises(ValueError, match=r"out must have shape"):
        rung(x, scales, out=device.empty((4, 3), np.int8))


def test_calibration_refuses_what_has_no_range():
    with pytest.raises(ValueError, match="x must have at least one element"):
        subject.calibrate(np.ones((0, 3), F32))
    with pytest.raises(ValueError, match="x must be finite"):
        subject.calibrate(F32([1, np.inf]))
    with pytest.raises(ValueError, match="x must be finite"):
        subject.calibrate(F32([1, np.nan]))
    with pytest.raises(ValueError, match="how must be one of range, percentile, error, was 'best'"):
        subject.calibrate(F32([1]), "best")


# ------------------------------------------------------------------------------------------ counters


@interpreter_only
def test_counts_of_a_whole_block():
    """4096 elements: 512 sectors of x, and 128 of the result."""
    x, scales = np.ones(room.BLOCK * room.EACH, F32), np.ones(1, F32)
    # A warp has 32 elements: a request of 4 sectors, one for the scale, one for the zero point, and one store.
    _, reports = observe(room.thread_per_element, x, scales)
    assert (total(reports, "global_load_requests"), total(reports, "global_store_requests")) == (3 * 128, 128)
    _, reports = observe(room.vectorised, x, scales)
    assert total(reports, "global_store_requests") == 128 // 4
    assert total(reports, "global_load_requests") == 3 * 128 // 4
    assert total(reports, "global_store_sectors") == 128
