"""Gradients of pooling: finite differences, positions, the same bits twice, which kernel does what, counts by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import pooling
from pmpp.kernels.pooling import ladder as forward
from pmpp.kernels.pooling import pooling_backward as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.pooling.wrong_pooling_backward import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def right(result, dy, x, *options):
    return judge.right(result, room.reference(dy, x, *options), room.tolerance(dy, x, *options), dy.dtype)


def random_case(shape, *options, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(F32) if ties else rng.standard_normal(shape, dtype=F32)
    return rng.standard_normal(room.pooled_shape(shape, *options[1:5]), dtype=F32), x, *options


# ------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize(
    "options",
    [
        ("max", 2),
        ("max", 3, 2, 1),
        ("max", (3, 2), (1, 2), (1, 0), True),
        ("average", 3, 2, 1),
        ("average", 3, 2, 1, True, False),
        ("average", (2, 3), (2, 1), (0, 1), True),
        ("average", (5, 6)),
    ],
)
def test_the_reference_is_what_finite_differences_say(options):
    """With an upstream gradient that is not all ones. Elements differ by more than a step, so no winner changes."""
    rng = np.random.default_rng(3)
    x = rng.permutation(60).reshape(1, 2, 5, 6).astype(np.float64)
    dy = rng.standard_normal(room.pooled_shape(x.shape, *options[1:5]))
    step, slopes = 0.25, np.empty(x.shape)
    for at in np.ndindex(x.shape):
        there, back = x.copy(), x.copy()
        there[at] += step
        back[at] -= step
        change = forward.reference(there, *options) - forward.reference(back, *options)
        slopes[at] = (dy * change).sum() / (2 * step)
    np.testing.assert_allclose(room.reference(dy, x, *options), slopes, rtol=0, atol=1e-12)


def test_the_reference_by_hand():
    x = np.array([[1, 5, 2], [4, 5, 6]], F32).reshape(1, 1, 2, 3)
    dy = np.array([[10, 20]], F32).reshape(1, 1, 1, 2)
    assert room.reference(dy, x, "max", 2, 1).tolist() == [[[[0, 10, 0], [0, 0, 20]]]]  # the first of two fives
    assert room.reference(dy, x, "average", 2, 1).tolist() == [[[[2.5, 7.5, 5], [2.5, 7.5, 5]]]]


PYTORCH = {name: case for name, case in room.inputs().items() if case[1].size}


def torch_gradient(torch, dy, x, op, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    f, x = torch.nn.functional, x.requires_grad_()
    if op == "max":
        y = f.max_pool2d(x, kernel, stride, padding, 1, ceil_mode)
    else:
        y = f.avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad)
    return torch.autograd.grad(y, x, dy)[0]


@pytest.mark.parametrize("name", PYTORCH)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    dy, x, *options = PYTORCH[name]
    result = torch_gradient(torch, *(torch.from_numpy(a.astype(F32)) for a in (dy, x)), *options)
    assert right(result.numpy().astype(x.dtype), dy, x, *options)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", PYTORCH)
def test_tensors_are_taken(rung, name):
    torch = pytest.importorskip("torch")
    dy, x, *options = PYTORCH[name]
    tensors = [tensor_of(torch, a) for a in (dy, x)]
    out = torch.empty_like(tensors[1])
    rung(*tensors, *options, out=out)
    assert right(array_of(torch, out), dy, x, *options)


# -------------------------------------------------------------------------------------------------------------- results

TOLD_APART = (  # small inputs, each of which some plausible mistake gets wrong
    "max, one",
    "max, 2x2, odd height",
    "max, 3x3 s2 p1",
    "average, 3x3 s2 p1, ceil",
    "average, 3x3 s1 p1, without padding in the count",
    "max, stride beyond the window",
    "max, ties",
    "max, non-finite, (2,)",
    "max, all -inf",
)


def faults(function):
    """All that is wrong with a gradient on the first input where anything is, worst first."""
    for name in TOLD_APART:
        arguments = room.inputs()[name]
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of a result that begins between 16-byte boundaries."""
    found = []
    for options in (("max", 2), ("max", 3, 2, 1), ("average", 2), ("average", 3, 1, 1)):
        case = random_case((1, 2, 6, 8), *options)
        out = misaligned(np.full(case[1].shape, np.nan, F32), 1)
        found += judge.faults(function, case, lambda result, case=case: right(result, *case), out=out)
    return found


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@hypothesis.given(
    shape=st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(1, 10), st.integers(1, 14)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    half=st.tuples(st.booleans(), st.booleans()),
    op=st.sampled_from(["max", "average"]),
    ceil_mode=st.booleans(),
    counted=st.booleans(),
    told=st.booleans(),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=14)
def test_any_shape_dtype_and_window(rung, shape, kernel, stride, half, op, ceil_mode, counted, told, seed, dtype):
    padding = tuple(k // 2 if h else 0 for k, h in zip(kernel, half, strict=True))
    extents = [n + 2 * p - k for n, p, k in zip(shape[2:], padding, kernel, strict=True)]
    hypothesis.assume(min(extents) >= 0)
    options = op, kernel, stride, padding, ceil_mode, counted
    dy, x = (a.astype(dtype) for a in random_case(shape, *options, seed=seed, ties=True)[:2])
    positions = None
    if told and op == "max":
        _, positions = forward.whole_planes(x, *options, return_positions=True)
    assert right(device.to_host(rung(dy, x, *options, positions=positions)), dy, x, *options)


@each_rung
@hypothesis.given(
    planes=st.integers(1, 3),
    h=st.integers(2, 9),
    vectors=st.integers(1, 5),
    kind=st.integers(0, 3),
    ceil_mode=st.booleans(),
    seed=st.integers(0, 9),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=14)
def test_the_shapes_of_the_wide_kernels(rung, planes, h, vectors, kind, ceil_mode, seed, dtype):
    options = [("max", 2, 2, 0), ("average", 2, 2, 0), ("max", 3, 2, 1), ("average", 3, 2, 1)][kind]
    shape = 1, planes, h, 16 // dtype.itemsize * vectors
    dy, x, *rest = random_case(shape, *options, ceil_mode, seed=seed, ties=True)
    case = dy.astype(dtype), x.astype(dtype), *rest
    assert right(device.to_host(rung(*case)), *case)


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize(
    ("options", "width", "kernel"),
    [
        (("max", 2), 16, "wide_pairs_back"),
        (("max", 3, 2, 1), 24, "wide_threes_back"),
        (("max", 3, 2, 1), 32, "sixteen_threes_back"),
    ],
)
def test_which_kernel_16_bits_take(dtype, options, width, kernel):
    dy, x, *_ = random_case((1, 2, 6, width), *options)
    dy, x = dy.astype(dtype), x.astype(dtype)
    _, positions = forward.whole_planes(x, *options, return_positions=True)
    with simt.record("count") as reports:
        result = room.patches(dy, x.shape, *options, positions=positions)
    assert [report.kernel for report in reports] == [f"{kernel}_kernel"]
    assert right(device.to_host(result), dy, x, *options)
    if width % 16 == 0:  # rows of whole sectors; with sixteen columns a lane fills each by two stores
        assert total(reports, "global_store_sectors") == x.nbytes // 32 * (2 if width == 32 else 1)


# ------------------------------------------------------------------------------------------------------------ positions


@each_rung
def test_with_positions_the_shape_of_x_will_do(rung):
    for options in (("max", 2), ("max", 3, 2, 1), ("max", 3, 1, 1)):
        dy, x, *_ = case = random_case((2, 2, 6, 8), *options, ties=True)
        _, positions = forward.whole_planes(x, *options, return_positions=True)
        assert right(device.to_host(rung(dy, x.shape, *options, positions=positions)), *case)
    dy, x, *_ = case = random_case((2, 2, 6, 8), "average", 3, 2, 1)
    assert right(device.to_host(rung(dy, x.shape, "average", 3, 2, 1)), *case)


@each_rung
def test_given_positions_are_used(rung):
    dy = np.arange(1, 5, dtype=F32).reshape(1, 1, 1, 4)
    positions = np.array([3, 0, 1, 2], np.uint8).reshape(dy.shape)
    expected = [[0, 0, 2, 0, 0, 3, 0, 0], [0, 1, 0, 0, 0, 0, 4, 0]]
    assert device.to_host(rung(dy, (1, 1, 2, 8), positions=positions)).tolist() == [[expected]]


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
def test_the_same_bits_twice_and_from_every_rung_without_atomics(rung):
    for options in (("max", 3, 2, 1), ("max", 4, 1, 2), ("average", 3, 2, 1)):
        case = random_case((1, 2, 9, 12), *options, ties=True)
        first, again = (device.to_host(rung(*case)) for _ in range(2))
        assert first.tobytes() == again.tobytes()
        np.testing.assert_array_equal(first, device.to_host(room.gather(*case)))  # 0 and -0 are equal


def test_the_plain_function_is_the_last_rung():
    case = random_case((2, 2, 6, 8), "max", 3, 2, 1)
    assert right(device.to_host(pooling.backward(*case)), *case)
    y, positions = pooling.max_pool2d(case[1], 3, 2, 1, return_positions=True)
    assert y.shape == positions.shape == case[0].shape
    assert right(device.to_host(pooling.backward(case[0], (2, 2, 6, 8), "max", 3, 2, 1, positions=positions)), *case)


@each_rung
def test_output_and_stream(rung):
    case = room.inputs()["max, 3x3 s2 p1"]
    out = device.to_device(np.full(case[1].shape, np.nan, F32))
    stream = cuda.stream()
    assert rung(*case, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), *case)


# ------------------------------------------------------------------------------------------------------------ bad input

X = np.ones((1, 2, 4, 6), F32)
DY = np.ones((1, 2, 2, 3), F32)
AT = np.zeros((1, 2, 2, 3), np.uint8)
BAD = {
    "gradients of another shape": ((X, X), {}, ValueError, r"dy must have the shape of the result, \(1, 2, 2, 3\)"),
    "gradients in float64": ((DY.astype(np.float64), X), {}, TypeError, "dy must be float32, was float64"),
    "an input in float64": (
        (DY, X.astype(np.float64)),
        {},
        TypeError,
        "x must be float32, .* or bfloat16, was float64",
    ),
    "gradients of 16 bits": ((DY.astype(np.float16), X), {}, TypeError, "dy must be float32, was float16"),
    "a matrix": ((DY, X[0, 0]), {}, ValueError, "x must have 4 dimensions, had 2"),
    "a short shape": ((DY, (4, 6)), {}, ValueError, r"x must be an array .* or its shape .*, was \(4, 6\)"),
    "a shape without positions": ((DY, X.shape), {}, ValueError, "x must be the input itself where op='max'"),
    "an operator": ((DY, X, "min"), {}, ValueError, "op must be 'max' or 'average', was 'min'"),
    "positions of a mean": ((DY, X, "average"), {"positions": AT}, ValueError, "positions must be None for op="),
    "64-bit positions": ((DY, X), {"positions": AT.astype(np.int64)}, TypeError, "positions must be uint8"),
    "too few positions": ((DY, X), {"positions": AT[:, :1]}, ValueError, "positions must have shape"),
    "too large a window": (
        (np.ones((1, 1, 1, 1), F32), np.ones((1, 1, 17, 16), F32), "max", (17, 16)),
        {"positions": np.zeros((1, 1, 1, 1), np.uint8)},
        ValueError,
        "positions must be None for windows of more than 256 elements",
    ),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters


def kernels(rung, case, told=False, **more):
    """The names of the kernels that were launched, once the result has been found right."""
    if told:
        _, x, *options = case
        _, more["positions"] = forward.whole_planes(x, *options, return_positions=True)
    with simt.record("check") as reports:
        result = rung(*case, **more)
    assert right(device.to_host(result), *case)
    return [report.kernel for report in reports]


@interpreter_only
def test_which_kernel_does_it():
    def case(h, w, *options):
        return random_case((1, 2, h, w), *options)

    assert kernels(room.scatter, case(6, 16, "max", 2)) == ["clear_kernel", "scatter_kernel"]
    assert kernels(room.once, case(6, 16, "max", 2), told=True) == ["gather_kernel"]
    assert kernels(room.once, case(6, 16, "average", 2)) == ["gather_kernel"]
    assert kernels(room.once, case(6, 12, "max", 2)) == ["winners_kernel", "gather_kernel"]
    for h in (6, 7):
        assert kernels(room.patches, case(h, 16, "max", 2)) == ["pairs_positions_kernel", "pairs_back_kernel"]
        assert kernels(room.patches, case(h, 12, "max", 2)) == ["winners_kernel", "pairs_back_kernel"]
        assert kernels(room.patches, case(h, 16, "max", 3, 2, 1)) == ["threes_positions_kernel", "threes_back_kernel"]
        assert kernels(room.patches, case(h, 12, "max", 3, 2, 1), told=True) == ["threes_back_kernel"]
        assert kernels(room.patches, case(h, 16, "average", 2)) == ["pairs_back_kernel"]
    assert kernels(room.patches, case(7, 16, "average", 2, 2, 0, True)) == ["average_quads_kernel"]
    assert kernels(room.patches, case(7, 16, "average", 3, 2, 1)) == ["average_quads_kernel"]
    assert kernels(room.patches, case(7, 15, "max", 3, 2, 1), told=True) == ["max_quads_kernel"]
    assert kernels(room.patches, case(18, 19, "max", (18, 19))) == ["winners_kernel", "max_quads_kernel"]
    out = misaligned(np.zeros((1, 2, 6, 16), F32), 1)
    assert kernels(room.patches, case(6, 16, "max", 2), told=True, out=out) == ["gather_kernel"]
    out = misaligned(np.zeros((1, 2, 6, 15), F32), 1)
    assert kernels(room.patches, case(6, 15, "max", 2), told=True, out=out) == ["max_quads_kernel"]


@interpreter_only
def test_sizes_that_32_bits_do_not_count(monkeypatch):
    monkeypatch.setattr(room, "NARROW", 100)
    assert kernels(room.patches, random_case((1, 2, 6, 16), "average", 2)) == ["gather_kernel"]


# 2 planes of 32 x 128: a warp has the 32 patches of a pair of rows, 16 pairs in a plane. Windows: 16 x 64.
@interpreter_only
def test_counters():
    dy, x, *options = random_case((1, 2, 32, 128), "max", 3, 2, 1)
    _, positions = forward.whole_planes(x, *options, return_positions=True)
    counted = {}
    for rung in room.LADDER:
        result, reports = observe(rung, dy, x, *options, positions=positions)
        assert right(result, dy, x, *options)
        assert total(reports, "flops_f64") == 0
        counted[rung.name] = lambda name, reports=reports: total(reports, name)
    assert counted["scatter"]("atomic_lanes") == dy.size
    for name in ("gather", "once", "four_wide", "patches"):
        assert counted[name]("atomic_lanes") == 0
    sectors = x.nbytes // 32  # each is stored once
    assert [counted[name]("global_store_sectors") for name in ("gather", "patches")] == [sectors, sectors]
    assert counted["gather"]("global_store_requests") == x.size // 32
    assert counted["patches"]("global_store_requests") == x.size // 128
    # Six windows for a patch, two loads each; the last pair of a plane has no windows below.
    assert counted["patches"]("global_load_requests") == 2 * (15 * 12 + 6)
