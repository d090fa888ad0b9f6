"""Cross-entropy: loss and gradient, what PyTorch defines, labels that are no class, the same bits twice, counters."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import softmax
from pmpp.kernels.softmax import cross_entropy_loss as room
from pmpp.runtime import device
from tests.kernels.softmax.wrong_cross_entropy_loss import RIGHT
from tests.kernels.softmax.wrong_cross_entropy_loss import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def right_loss(loss, *arguments):
    loss = device.to_host(loss)
    expected, allowed = room.loss_reference(*arguments), room.loss_tolerance(*arguments)
    return judge.right(loss, np.reshape(expected, loss.shape), allowed)


def case(m, n, *options, seed=0, dtype=np.int64):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n), dtype=F32), rng.integers(0, n, m).astype(dtype), *options


# ------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_reference_is_what_finite_differences_say(smoothing, reduction):
    logits, labels = case(4, 6)
    logits, labels[2], step = logits.astype(np.float64), -100, 1e-5
    gradient = np.empty(logits.shape)
    for at in np.ndindex(logits.shape):
        losses = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[at] += sign * step
            losses.append(room.loss_reference(moved, labels, -100, smoothing, reduction))
        gradient[at] = (losses[0] - losses[1]) / (2 * step)
    np.testing.assert_allclose(room.reference(logits, labels, -100, smoothing, reduction), gradient, rtol=0, atol=1e-9)


def test_the_loss_by_hand():
    logits = np.log(np.float32([[1, 1, 2], [4, 2, 2]]))
    assert room.loss_reference(logits, [2, 0], reduction="none") == pytest.approx([np.log(2), np.log(2)])
    assert room.loss_reference(logits, [1, -100]) == pytest.approx(np.log(4))
    smooth = 0.7 * np.log(2) + 0.3 * (np.log(4) + np.log(4) + np.log(2)) / 3
    assert room.loss_reference(logits[:1], [2], label_smoothing=0.3) == pytest.approx(smooth)


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    logits, labels, *options = INPUTS[name]
    names = ("ignore_index", "label_smoothing", "reduction")
    more = dict(zip(names, options, strict=False))
    wide = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(wide, torch.tensor(labels, dtype=torch.int64), **more)
    expected = room.loss_reference(*INPUTS[name])
    result = loss.detach().numpy()
    result = np.where(abs(result) >= 2.0**128, np.copysign(np.inf, result), result)  # what float32 cannot hold
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)
    if logits.size and np.isfinite(logits).all():  # of an ignored row that is not finite PyTorch's gradient is NaN
        loss.sum().backward()
        np.testing.assert_allclose(wide.grad.numpy(), room.reference(*INPUTS[name]), rtol=1e-10, atol=1e-12)


# -------------------------------------------------------------------------------------------------------------- results

SOME = [
    "10 classes",
    "ignored, 10 classes",
    "smoothed, 65 classes",
    "sum",
    "large",
    "far below 0",
    "non-finite and ignored, 8 classes",
]


def faults(function, names=SOME):
    """All that is wrong with a cross-entropy on the first input where anything is, worst first."""
    for name in names:
        arguments = INPUTS[name]
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function, names)


def further_faults(function, names):
    """Of the loss, with the gradient and alone, and of labels that are no class."""
    for name in names:
        loss, gradient = function(*INPUTS[name], return_loss=True)
        alone = function(*INPUTS[name], gradient=False)
        if not right_loss(loss, *INPUTS[name]) or not right_loss(alone, *INPUTS[name]):
            return ["wrong loss"]
        if not right(device.to_host(gradient), *INPUTS[name]):
            return ["wrong result"]
    logits, labels = case(6, 40)
    labels[[1, 4]] = -1, 40
    arguments = logits, labels, -100, 0.0, "none"
    if found := judge.faults(function, arguments, lambda result: right(result, *arguments)):
        return found
    loss, _ = function(logits, device.to_device(labels), *arguments[2:], return_loss=True)
    return [] if right_loss(loss, *arguments) else ["wrong loss"]


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room. Here are the losses of all of them."""
    assert further_faults(rung, INPUTS) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
def test_the_kernel_that_the_wrong_ones_differ_from_is_right():
    assert faults(RIGHT) == []


@each_rung
@hypothesis.given(
    m=st.integers(1, 40),
    n=st.one_of(st.integers(1, 70), st.integers(1, 3000)),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(room.REDUCTIONS),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_shape_and_alignment(rung, m, n, smoothing, reduction, offset, seed):
    logits, labels = case(min(m, max(1, 3000 // n)), n, seed=seed)
    labels[np.random.default_rng(seed).random(labels.size) < 0.3] = -7
    options = -7, smoothing, reduction
    loss, gradient = rung(misaligned(logits, offset), labels, *options, return_loss=True)
    assert right(device.to_host(gradient), logits, labels, *options)
    assert right_loss(loss, logits, labels, *options)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 20, 31, 32, 33, 63, 1023, 1024, 1025, 8193])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_every_place_of_the_label(n, offset):
    """The label's logit is stored twice by one thread: first and last, before, in and behind the vectors."""
    places = sorted({0, 1, 2, 3, 4, 5, n // 2, n - 5, n - 4, n - 3, n - 2, n - 1} & set(range(n)))
    logits, _ = case(len(places), n)
    labels = np.array(places)
    out = device.empty(logits.size + offset, F32)[offset:].reshape(logits.shape)
    room.split(misaligned(logits, offset), labels, out=out)
    assert right(out.copy_to_host(), logits, labels)


def test_every_place_of_the_label_in_several_blocks():
    logits, _ = case(6, 33_001)
    labels = np.array([0, 33_000, 6600, 6601, 6604, 20_000])
    assert right(device.to_host(room.split(logits, labels)), logits, labels)


def test_an_out_that_lies_otherwise_than_the_logits():
    for n in (10, 100):
        logits, labels = case(4, n)
        out = device.empty(4 * n + 1, F32)[1:].reshape(4, n)
        assert right(device.to_host(room.split(logits, labels, out=out)), logits, labels)


def test_many_rows_are_counted_and_added_up_in_several_blocks():
    logits, labels = case(20_000, 2, seed=3)
    labels[::3] = -100
    loss, gradient = room.split(logits, labels, return_loss=True)
    count = np.count_nonzero(labels != -100)
    wide = logits.astype(np.float64)
    losses = np.logaddexp(wide[:, 0], wide[:, 1]) - wide[np.arange(20_000), np.maximum(labels, 0)]
    expected = losses[labels != -100].mean()
    assert abs(device.to_host(loss)[0] - expected) <= 2.0**-24 * (20_000 / 256 + 64) * expected
    assert np.count_nonzero(device.to_host(gradient).any(axis=1)) == count


@each_rung
def test_the_same_bits_twice(rung):
    for name in ("ignored, 1030 classes", "the same, smoothed", "smoothed, 10 classes"):
        once, again = (rung(*INPUTS[name], return_loss=True) for _ in range(2))
        for first, second in zip(once, again, strict=True):
            assert device.to_host(first).tobytes() == device.to_host(second).tobytes()


@each_rung
def test_streams(rung):
    arguments = INPUTS["several blocks a row"]
    stream = cuda.stream()
    result = rung(*map(device.to_device, arguments), stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), *arguments)


def test_a_million_classes_on_a_gpu_of_two_multiprocessors(monkeypatch):
    limits = {**device.limits(), "multiprocessors": 2}
    monkeypatch.setattr(device, "limits", lambda: limits)
    logits, labels = case(2, 40_000)
    result, reports = observe(room.split, logits, labels)
    assert right(result, logits, labels)
    assert device.on_gpu() or "fused_kernel" in [report.kernel for report in reports]


def test_the_mean_of_nothing():
    """As in PyTorch: NaN, and 0 for the sum."""
    empty, none = np.ones((0, 3), F32), np.ones(0, np.int64)
    ignored = np.full(4, -100)
    for logits, labels in ((empty, none), (np.ones((4, 3), F32), ignored)):
        for reduction, expected in (("mean", np.nan), ("sum", 0)):
            loss, gradient = softmax.cross_entropy(logits, labels, reduction=reduction)
            np.testing.assert_array_equal(device.to_host(loss), F32([expected]))
            assert not device.to_host(gradient).any()
        loss, _ = softmax.cross_entropy(logits, labels, reduction="none")
        assert device.to_host(loss).tolist() == [0] * len(labels)


def test_the_plain_function():
    arguments = INPUTS["smoothed, 10 classes"]
    loss, gradient = softmax.cross_entropy(*arguments[:2], label_smoothing=0.1)
    assert loss.shape == (1,)
    assert right_loss(loss, *arguments)
    assert right(device.to_host(gradient), *arguments)
    loss, gradient = softmax.cross_entropy(*arguments[:2], label_smoothing=0.1, gradient=False)
    assert gradient is None
    assert right_loss(loss, *arguments)


# ------------------------------------------------------------------------------------------------------------ bad input

LOGITS, LABELS = np.ones((3, 5), F32), np.int64([0, 4, 2])
BAD = {
    "doubles": ((LOGITS.astype(np.float64), LABELS), {}, TypeError, "logits must be float32, was float64"),
    "one row": ((LOGITS[0], LABELS), {}, ValueError, "logits must have 2 dimensions"),
    "no classes": ((LOGITS[:, :0].copy(), LABELS), {}, ValueError, "logits must have at least one class"),
    "real labels": ((LOGITS, LABELS.astype(F32)), {}, TypeError, "labels must be int32 or int64, was float32"),
    "few labels": ((LOGITS, LABELS[:2]), {}, ValueError, r"labels must have shape \(3,\), had \(2,\)"),
    "a label too large": (
        (LOGITS, LABELS + 1),
        {},
        ValueError,
        r"labels must be from 0 to 4 for classes=5, or .* 5 at \[1\]",
    ),
    "a label below 0": (
        (LOGITS, LABELS - 1),
        {},
        ValueError,
        r"labels must be from 0 to 4 for classes=5, or .* -1 at \[0\]",
    ),
    "too smooth": ((LOGITS, LABELS, -100, 1.5), {}, ValueError, "label_smoothing must be from 0 to 1, was 1.5"),
    "another reduction": ((LOGITS, LABELS, -100, 0.0, "max"), {}, ValueError, "reduction must be one of mean, sum"),
    "in place": ((LOGITS, LABELS), {"out": device.empty((5, 3), F32)}, ValueError, r"out must have shape \(3, 5\)"),
    "out for nothing": (
        (LOGITS, LABELS),
        {"out": device.empty((3, 5), F32), "gradient": False},
        ValueError,
        "out must be None for gradient=False",
    ),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_labels_are_checked_where_they_lie():
    room.check_labels(device.to_device(LABELS), 5)
    room.check_labels(np.int32([-1, 2]), 5, ignore_index=-1)
    with pytest.raises(
        ValueError, match=r"labels must be from 0 to 3 for classes=4, or ignore_index=-100, was 4 at \[1\]"
    ):
        room.check_labels(device.to_device(LABELS), 4)
    with pytest.raises(TypeError, match="labels must be an array of integers, was float32"):
        room.check_labels(np.ones(2, F32), 4)


# ------------------------------------------------------------------------------------------------------------- counters
#
# 16 rows of 1024 logits: 2048 sectors of 32 bytes to read, and as many to write. Labels, counts and losses are small.

ROWS = case(16, 1024, seed=5)
SECTORS = ROWS[0].nbytes // 32


def counted(rung, arguments=ROWS):
    result, reports = observe(rung, *arguments)
    assert right(result, *arguments)
    assert total(reports, "flops_f64") == 0
    return lambda counter: total(reports, counter)


@interpreter_only
@pytest.mark.parametrize(("rung", "reads", "writes"), [("separate", 4, 2), ("fused", 2, 1), ("held", 1, 1)])
def test_how_often_a_logit_is_read_and_written(rung, reads, writes):
    found = counted(getattr(room, rung))
    # A few sectors a warp besides: the label, the counts, the label's logit, the loss.
    assert 0 <= found("global_load_sectors") - reads * SECTORS <= 16 * 8 * 7
    assert 0 <= found("global_store_sectors") - writes * SECTORS <= 5 * 16


@interpreter_only
def test_long_rows_are_read_once():
    found = counted(room.split, (np.tile(ROWS[0].reshape(2, -1), 5), np.int64([3, 40_000])))
    sectors = 5 * SECTORS
    assert 0 <= found("global_load_sectors") - sectors <= 2 * 5 * 8 * 8
    assert 0 <= found("global_store_sectors") - sectors <= 2 * 5 * 8 * 2
