"""Pooling: results and indices, arguments, which kernel does what, and the counters against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels.pooling import ladder as room
from pmpp.kernels.pooling.windows import pair_of, pooled_extent
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.pooling.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, *options):
    return judge.right(result, room.reference(x, *options), room.tolerance(x, *options), x.dtype)


TOLD_APART = (  # small inputs, each of which some plausible mistake gets wrong
    "max, one",
    "average, 2x2, odd height",
    "max, 2x2, odd height",
    "max, 2x2, ceil",
    "average, 2x2, ceil",
    "max, 3x3 s2 p1",
    "average, 3x3 s1 p1, without padding in the count",
    "average, 3x2 s2x3 p1x0, ceil",
    "max, last window begins in the padding",
    "average, last window begins in the padding",
    "max, stride beyond the window",
    "average, whole planes",
    "max, non-finite, (2,)",
    "max, all -inf",
)


def faults(pool):
    """All that is wrong with a pooling on the first input where anything is, worst first."""
    for name in TOLD_APART:
        arguments = room.inputs()[name]
        if found := judge.faults(pool, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(pool)


def further_faults(pool):
    """Of a view that begins between 16-byte boundaries, and of indices."""
    found = []
    x = np.arange(2 * 4 * 8, dtype=F32).reshape(1, 2, 4, 8)
    for options in (("max", 2), ("max", 3, 2, 1), ("average", (4, 8))):
        given = misaligned(x, 1), *options
        found += judge.faults(pool, given, lambda result, options=options: right(result, x, *options))
    x[0, 0, 0, 3] = x[0, 0, 1, 2] = 100  # a tie: the first in the order of the plane
    x[0, 1, 2, 5] = np.nan
    for options in (("max", 2), ("max", 3, 2, 1)):
        with simt.record("check"):
            _, indices = pool(x, *options, return_indices=True)
        expected = room.reference_with_indices(x, *options)[1]
        if indices.dtype != np.int64 or not np.array_equal(device.to_host(indices), expected):
            found += ["wrong indices"]
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
    shape=st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 12), st.integers(1, 18)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    half=st.tuples(st.booleans(), st.booleans()),
    op=st.sampled_from(list(room.OPERATORS)),
    ceil_mode=st.booleans(),
    counted=st.booleans(),
    offset=st.integers(0, 1),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=12)
def test_any_shape_window_and_alignment(rung, shape, kernel, stride, half, op, ceil_mode, counted, offset, seed, dtype):
    padding = tuple(k // 2 if h else 0 for k, h in zip(kernel, half, strict=True))
    extents = [n + 2 * p - k for n, p, k in zip(shape[2:], padding, kernel, strict=True)]
    hypothesis.assume(min(extents) >= 0)
    # Few different values, so that there are ties.
    x = np.random.default_rng(seed).integers(-3, 3, shape).astype(dtype)
    options = op, kernel, stride, padding, ceil_mode, counted
    given = misaligned(x, offset)
    assert right(device.to_host(rung(given, *options)), x, *options)
    if op == "max" and x.size:
        out, indices = rung(given, *options, return_indices=True)
        values, places = room.reference_with_indices(x, *options)
        np.testing.assert_array_equal(device.to_host(out).astype(F32), values)
        np.testing.assert_array_equal(device.to_host(indices), places)


@each_rung
@hypothesis.given(
    planes=st.integers(1, 3),
    h=st.integers(2, 9),
    vectors=st.integers(1, 3),
    kind=st.integers(0, 2),
    seed=st.integers(0, 9),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=14)
def test_the_shapes_of_the_wide_kernels(rung, planes, h, vectors, kind, seed, dtype):
    x = np.random.default_rng(seed).standard_normal((1, planes, h, 32 // dtype.itemsize * vectors)).astype(dtype)
    options = [("max", 2), ("average", 2), ("max", 3, 2, 1)][kind]
    assert right(device.to_host(rung(x, *options)), x, *options)


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
@pytest.mark.parametrize("op", room.OPERATORS)
@pytest.mark.parametrize("shape", [(1, 2, 6, 10), (1, 1, 5, 13), (2, 1, 1, 64), (1, 3, 8, 8)])
def test_planes_in_parts(op, shape, dtype, monkeypatch):
    monkeypatch.setattr(room, "SMALL", 8)
    monkeypatch.setattr(room, "SHARE", 24)
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    assert right(device.to_host(room.whole_planes(x, op, shape[2:])), x, op, shape[2:])
    monkeypatch.setattr(room, "MANY", 1)
    assert right(device.to_host(room.whole_planes(x, op, shape[2:])), x, op, shape[2:])
    monkeypatch.setattr(room, "CROWD", shape[1])  # as many planes as a GPU has warps for: a warp each
    assert right(device.to_host(room.whole_planes(x, op, shape[2:])), x, op, shape[2:])


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
@pytest.mark.parametrize("op", room.OPERATORS)
@pytest.mark.parametrize("shape", [(1, 2, 11, 13), (1, 1, 29, 31), (1, 2, 20, 24), (1, 1, 64, 64)])
def test_planes_of_which_a_thread_takes_more_than_four_elements(op, shape, dtype):
    """Four loads at once, and then the rest: for a warp or a block, of elements or of vectors."""
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    x[0, 0, -1, -1] = 9  # the largest is the last
    assert right(device.to_host(room.whole_planes(x, op, shape[2:])), x, op, shape[2:])


def test_a_plane_with_nan_and_infinities():
    x = np.ones((3, 1, 8, 8), F32)
    x[0, 0, 7, 7], x[1, 0, 0, 0], x[2] = np.nan, np.inf, -np.inf
    for op, expected in (("max", [np.nan, np.inf, -np.inf]), ("average", [np.nan, np.inf, -np.inf])):
        np.testing.assert_array_equal(device.to_host(room.whole_planes(x, op, (8, 8))).reshape(-1), expected)


@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "padding", "floor", "ceil"),
    [
        (112, 2, 2, 0, 56, 56),
        (112, 3, 2, 1, 56, 57),
        (7, 2, 2, 0, 3, 4),
        (4, 2, 2, 1, 3, 3),
        (5, 2, 4, 0, 1, 2),
        (1, 3, 1, 1, 1, 1),
    ],
)
def test_the_number_of_windows(extent, kernel, stride, padding, floor, ceil):
    assert pooled_extent(extent, kernel, stride, padding) == floor
    assert pooled_extent(extent, kernel, stride, padding, True) == ceil


def test_the_reference_by_hand():
    x = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], F32).reshape(1, 1, 3, 3)
    assert room.reference(x, "max", 2, 1).tolist() == [[[[5, 6], [8, 9]]]]
    assert room.reference(x, "average", 2, 2, 1)[0, 0].tolist() == [[0.25, 1.25], [2.75, 7.0]]
    assert room.reference(x, "average", 2, 2, 1, False, False)[0, 0].tolist() == [[1.0, 2.5], [5.5, 7.0]]
    # The last window hangs over the edge, where there is not even padding: those columns never count.
    assert room.reference(x, "average", 2, 2, 0, True)[0, 0].tolist() == [[3.0, 4.5], [7.5, 9.0]]
    values, indices = room.reference_with_indices(np.zeros((1, 1, 2, 2), F32), "max", 2)
    assert (values.item(), indices.item()) == (0.0, 0)


@each_rung
def test_output_and_stream(rung):
    x, *options = room.inputs()["max, 2x2"]
    out = device.to_device(np.full((2, 3, 3, 8), np.nan, F32))
    stream = cuda.stream()
    assert rung(x, *options, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, *options)


@each_rung
def test_a_misaligned_output(rung):
    x = np.arange(64, dtype=F32).reshape(1, 1, 4, 16)
    out = device.to_device(np.zeros(1 + 16, F32))[1:].reshape(1, 1, 2, 8)
    rung(x, out=out)
    assert right(out.copy_to_host(), x)


@interpreter_only
def test_a_patch_that_does_not_fit_in_shared_memory():
    x = np.random.default_rng(0).standard_normal((1, 1, 9, 700), dtype=F32)
    options = "max", (9, 6), (9, 60)  # 32 windows side by side, 60 apart, see 72 rows of 1866 elements
    with simt.record() as reports:
        result = device.to_host(room.shared(x, *options))
    assert [report.kernel for report in reports] == ["narrow_kernel"]
    assert right(result, x, *options)


# ------------------------------------------------------------------------------------------------------------ positions


def positions_of(x, op, kernel=2, stride=None, padding=0, ceil_mode=False, *rest):
    """Of each maximum its place in its window, from the reference's index in its plane."""
    sizes = kernel, kernel if stride is None else stride, padding
    (_, kw), (sh, sw), (ph, pw) = map(pair_of, sizes)
    rows, columns = np.divmod(room.reference_with_indices(x, op, kernel, stride, padding, ceil_mode)[1], x.shape[3])
    i, j = np.indices(rows.shape[2:])
    return (rows - (i * sh - ph)) * kw + columns - (j * sw - pw)


SMALL_WINDOWS = [n for n, case in room.inputs().items() if case[1] == "max" and np.prod(pair_of(case[2])) <= 256]


@each_rung
@pytest.mark.parametrize("name", SMALL_WINDOWS)
def test_positions(rung, name):
    x, *options = room.inputs()[name]
    with simt.record("check"):
        out, positions = rung(x, *options, return_positions=True)
    assert positions.dtype == np.uint8
    assert right(device.to_host(out), x, *options)
    np.testing.assert_array_equal(device.to_host(positions), positions_of(x, *options))


@each_rung
@hypothesis.given(h=st.integers(2, 7), vectors=st.integers(1, 5), kind=st.integers(0, 1), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=10)
def test_positions_of_the_wide_kernels(rung, h, vectors, kind, seed):
    """Few different values, so that there are ties; with NaN and infinities among them."""
    x = np.random.default_rng(seed).choice(np.array([1, 2, -np.inf, np.nan, 3], F32), (1, 2, h, 8 * vectors))
    options = [("max", 2), ("max", 3, 2, 1)][kind]
    out, positions = rung(x, *options, return_positions=True)
    assert right(device.to_host(out), x, *options)
    np.testing.assert_array_equal(device.to_host(positions), positions_of(x, *options))


# ------------------------------------------------------------------------------------------------------------ bad input


MAP = np.ones((1, 2, 4, 6), F32)
BAD = {
    "another dtype": ((MAP.astype(np.float64),), {}, TypeError, "x must be float32, .* or bfloat16, was float64"),
    "a matrix": ((MAP[0, 0],), {}, ValueError, "x must have 4 dimensions, had 2"),
    "not contiguous": ((MAP[:, :, :, ::2],), {}, ValueError, "x must be contiguous in C order"),
    "an operator": ((MAP, "min"), {}, ValueError, "op must be 'max' or 'average', was 'min'"),
    "no window": ((MAP, "max", 0), {}, ValueError, "kernel must be an integer of at least 1 .*, was 0"),
    "half a window": ((MAP, "max", 1.5), {}, ValueError, "kernel must be an integer"),
    "three sizes": ((MAP, "max", (1, 2, 3)), {}, ValueError, "kernel must be an integer .*, was \\(1, 2, 3\\)"),
    "no stride": ((MAP, "max", 2, 0), {}, ValueError, "stride must be an integer of at least 1"),
    "too much padding": ((MAP, "max", 2, 2, 2), {}, ValueError, "padding must be at most half of the kernel"),
    "too large": ((MAP, "max", 5), {}, ValueError, "x must have room for a window of \\(5, 5\\) with padding"),
    "no rows": ((MAP[:, :, :0], "max", 2, 2, 1), {}, ValueError, "x must have room"),
    "indices of a mean": ((MAP, "average"), {"return_indices": True}, ValueError, "only a maximum has an index"),
    "positions of a mean": ((MAP, "average"), {"return_positions": True}, ValueError, "only a maximum has a position"),
    "indices and positions": (
        (MAP,),
        {"return_positions": True, "return_indices": True},
        ValueError,
        "return_positions must be False where return_indices is True",
    ),
    "positions in large windows": (
        (np.ones((1, 1, 17, 16), F32), "max", (17, 16)),
        {"return_positions": True},
        ValueError,
        "return_positions must be False for windows of more than 256 elements",
    ),
    "a flag in a pair": ((MAP, "max", (True, 2)), {}, ValueError, "kernel must be an integer .*, was \\(True, 2\\)"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters


def kernels(rung, x, *options, **more):
    """The names of the kernels that were launched, once the result has been found right."""
    with simt.record("check") as reports:
        result = rung(x, *options, **more)
    x = device.to_host(x)
    if more.get("return_positions"):
        result, positions = result
        np.testing.assert_array_equal(device.to_host(positions), positions_of(x, *options))
    if more.get("return_indices"):
        result, indices = result
        np.testing.assert_array_equal(device.to_host(indices), room.reference_with_indices(x, *options)[1])
    assert right(device.to_host(result), x, *options)
    return [report.kernel for report in reports]


@interpreter_only
def test_which_kernel_does_it():
    def map_of(h, w, offset=0):
        return misaligned(np.random.default_rng(h * w).standard_normal((1, 2, h, w), dtype=F32), offset)

    wide = {
        ("max", 2): "max_pairs_kernel",
        ("average", 2): "average_pairs_kernel",
        ("max", 3, 2, 1): "max_threes_kernel",
    }
    for options, kernel in wide.items():
        for h in (6, 7):
            assert kernels(room.vectorised, map_of(h, 16), *options) == [kernel]
            assert kernels(room.whole_planes, map_of(h, 16), *options) == [kernel]
        for x in (map_of(6, 16, 1), map_of(6, 12), map_of(6, 15)):
            assert kernels(room.vectorised, x, *options) == [f"{options[0]}_windows_kernel"]
    for options, kernel in {("max", 2): "pairs_positions_kernel", ("max", 3, 2, 1): "threes_positions_kernel"}.items():
        assert kernels(room.vectorised, map_of(6, 16), *options, return_positions=True) == [kernel]
        assert kernels(room.vectorised, map_of(6, 12), *options, return_positions=True) == ["narrow_kernel"]
    assert kernels(room.vectorised, map_of(6, 16), "max", 2, return_indices=True) == ["narrow_kernel"]
    assert kernels(room.vectorised, map_of(7, 16), "max", 2, 2, 0, True) == ["max_windows_kernel"]
    assert kernels(room.vectorised, map_of(6, 16), "max", 3, 2, 1, True) == ["max_windows_kernel"]
    assert kernels(room.vectorised, map_of(6, 15), "max", (2, 8), 1) == ["max_windows_kernel"]
    assert kernels(room.vectorised, map_of(6, 15), "max", (2, 9), 1) == ["narrow_kernel"]
    assert kernels(room.whole_planes, map_of(8, 16), "average", (8, 16)) == ["small_planes_kernel"]
    assert kernels(room.whole_planes, map_of(40, 16), "max", (40, 16)) == ["planes_kernel"]
    assert kernels(room.whole_planes, map_of(3, 5), "max", (3, 5)) == ["max_windows_kernel"]
    assert kernels(room.whole_planes, map_of(8, 16), "max", (8, 16), return_indices=True) == ["narrow_kernel"]


def counted(rung, x, *options):
    result, reports = observe(rung, x, *options)
    assert right(result, x, *options)
    names = ("global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors")
    assert total(reports, "flops_f64") == 0
    return tuple(total(reports, name) for name in names)


# 2 planes of 32 x 64: 1024 outputs are 32 warps. A row of 32 outputs sees two rows of 64, each 8 sectors.
@interpreter_only
def test_counters_of_pairs():
    x = np.random.default_rng(1).standard_normal((1, 2, 32, 64), dtype=F32)
    # Four loads per window, every second element each, and the first once more to begin with.
    assert counted(room.naive, x) == (32 * 5, 32 * 5 * 8, 32, 32 * 4)
    # 256 threads make four outputs each by four loads; lanes are 32 bytes apart, so that a load touches all sectors.
    assert counted(room.vectorised, x) == (8 * 4, 8 * 4 * 32, 8, 8 * 16)


# The same as a whole plane: 512 vectors, and one result.
@interpreter_only
def test_counters_of_whole_planes():
    x = np.random.default_rng(1).standard_normal((1, 2, 32, 64), dtype=F32)
    loads, sectors, stores, _ = counted(room.whole_planes, x, "average", (32, 64))
    assert (loads, sectors, stores) == (2 * 512 // 32, x.nbytes // 32, 2)


# ------------------------------------------------------------------------------------------------------------- PyTorch


PYTORCH = {name: case for name, case in room.inputs().items() if case[0].size}


def torch_pool(torch, x, op, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    f = torch.nn.functional
    if op == "max":
        return f.max_pool2d(x, kernel, stride, padding, 1, ceil_mode, True)
    return f.avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad), None


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize(
    ("options", "kernel"),
    [(("max", 2), "max_pairs"), (("average", 2), "average_pairs"), (("max", 3, 2, 1), "max_threes")],
)
def test_maps_of_16_bits_are_half_the_sectors(dtype, options, kernel):
    sectors = {}
    for kind in (F32, dtype):
        x = np.random.default_rng(4).standard_normal((1, 2, 8, 32)).astype(kind)
        result, (report,) = observe(room.vectorised, x, *options)
        assert right(result, x, *options)
        assert report.kernel == f"{kernel}_kernel"
        assert report.counters["flops_f16"] == report.counters["flops_f64"] == 0
        sectors[kind] = report.counters["global_load_sectors"], report.counters["global_store_sectors"]
    (loads, stores), (wide_loads, wide_stores) = sectors[dtype], sectors[F32]
    assert wide_stores == 2 * stores
    assert wide_loads == 2 * loads or kernel == "max_threes"  # in which first lanes load what shuffles do not bring
    assert wide_loads > 1.5 * loads


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_16_bits_are_widened_in_registers(ptx, dtype):
    x, of = np.zeros(64, dtype), (np.uint32(4), np.uint32(2), np.uint32(2))
    for kernel, last, loads in ((room.average_pairs_kernel, False, 4), (room.max_threes_kernel, np.uint32(4), 6)):
        text = ptx(kernel, x, x, *of, last, cc=(9, 0))
        assert ".extern" not in text
        assert ".local" not in text
        assert text.count("ld.global.v4.u32") == loads
        assert text.count("st.global.v4.u32") == 1


@pytest.mark.parametrize("name", PYTORCH)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, *options = PYTORCH[name]
    values, indices = torch_pool(torch, torch.from_numpy(x.astype(F32)), *options)
    assert right(values.numpy().astype(x.dtype), x, *options)
    if indices is not None:
        np.testing.assert_array_equal(indices.numpy(), room.reference_with_indices(x, *options)[1])


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", PYTORCH)
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, *options = PYTORCH[name]
    tensor = tensor_of(torch, x)
    values, indices = torch_pool(torch, tensor, *options)
    if indices is not None:
        mine, places = rung(tensor, *options, return_indices=True)
        np.testing.assert_array_equal(device.to_host(places), indices.cpu().numpy())
        np.testing.assert_array_equal(device.to_host(mine).astype(F32), values.float().cpu().numpy())
    out = torch.empty_like(values)
    rung(tensor, *options, out=out)
    assert right(array_of(torch, out), x, *options)
