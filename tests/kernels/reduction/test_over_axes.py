"""Reduction over axes: results on every path, the same bits in every run, arguments, and counters by hand."""

import functools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import reduction
from pmpp.kernels.reduction import over_axes as room
from pmpp.kernels.reduction.operators import OPERATORS, operator_of
from pmpp.runtime import device
from pmpp.runtime.dtypes import dtype_of, known
from tests.kernels.reduction.wrong_over_axes import ACCEPTED
from tests.kernels.reduction.wrong_over_axes import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
SOME = [  # of each kind one
    "a vector of 31",
    "axis 1 of three",
    "means of rows",
    "two that are apart",
    "tall and odd",
    "rows of 3",
    "rows of 7",
    "few long rows",
    "equal ones",
    "below nothing",
    "NaN, max",
    "two neighbours",
]


# -------------------------------------------------------------------------------------------------------------- results


@functools.cache
def solved(name):
    x, _, op = INPUTS[name][:3]
    return room.reference(*INPUTS[name]), room.error_bound(*INPUTS[name]), OPERATORS[op].result(x.dtype)


def right(result, x, axis=None, op="sum", keepdims=False, ddof=0):
    arguments = x, axis, op, keepdims, ddof
    dtype = OPERATORS[op].result(x.dtype)
    return judge.right(result, room.reference(*arguments), room.error_bound(*arguments), dtype)


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first."""
    for name in names:
        found = judge.faults(function, INPUTS[name], lambda result, name=name: judge.right(result, *solved(name)))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", ACCEPTED, ids=lambda function: function.__name__)
def test_the_same_without_its_mistake_is_accepted(function):
    assert faults(function) == []


@each_rung
def test_a_rung_has_no_fault(rung):
    """On every input, and on one that begins between multiples of 16 bytes."""
    assert {name: found for name in INPUTS if (found := faults(rung, [name]))} == {}
    for x, axis in ((INPUTS["rows of 36"][0], 1), (INPUTS["tall"][0], 0), (INPUTS["few long rows"][0], 1)):
        assert judge.faults(rung, (misaligned(x, 1), axis), lambda result, x=x, axis=axis: right(result, x, axis)) == []


def numpys(x, axis, op, keepdims, ddof):
    """What NumPy says, in float64 where x has floats."""
    wide = x if x.dtype.kind in "ib" else x.astype(np.float64)
    norms = {"norm1": 1, "norm2": 2, "norm_inf": np.inf}
    with np.errstate(all="ignore"):
        if op in norms:
            axes = room.axes_of(axis, x.ndim)
            rows = np.moveaxis(wide, axes, range(-len(axes), 0)) if axes else wide[..., None]
            rows = rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)
            made = np.linalg.norm(rows, norms[op], axis=-1)
            return made.reshape([1 if d in axes else e for d, e in enumerate(x.shape)]) if keepdims else made
        more = {"ddof": ddof} if op == "var" else {}
        return getattr(np, op)(wide, axis=axis, keepdims=keepdims, **more)


@each_rung
@pytest.mark.parametrize("n", [2, 9, 70, 300])
def test_a_variance_is_no_number_wherever_an_infinity_stands(rung, n):
    """Row and column i have it in place i. Of parts that are joined the mean becomes infinite, or NaN, and stays so."""
    x = np.random.default_rng(4).standard_normal((n, n), dtype=F32)
    x[np.arange(n), np.arange(n)] = np.inf
    for axis in (0, 1):
        assert np.isnan(device.to_host(rung(x, axis, "var"))).all()


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    x, axis, op, keepdims, ddof = (*INPUTS[name], False, 0)[: len(INPUTS[name])] + (False, 0)[len(INPUTS[name]) - 3 :]
    expected, mine = numpys(x, axis, op, keepdims, ddof), room.reference(x, axis, op, keepdims, ddof)
    assert mine.shape == np.shape(expected)
    close = {"float16": 1e-3, "bfloat16": 8e-3}.get(mine.dtype.name, 1e-6)
    expected = np.asarray(expected).astype(mine.dtype)
    if mine.dtype.itemsize == 2:
        mine, expected = mine.astype(F32), expected.astype(F32)
    np.testing.assert_allclose(mine, expected, rtol=close, atol=close)


def test_what_the_bound_allows_is_little():
    """A result that is off by a tenth is wrong on most inputs with rounding: what cancels may be off by all of it."""
    told = []
    for name in INPUTS:
        expected, allowed, dtype = solved(name)
        known = np.isfinite(expected) & (expected != 0)
        if dtype.kind == "f" and known.any() and np.any(allowed):
            told.append((0.1 * abs(expected) > np.broadcast_to(allowed, expected.shape))[known].any())
    assert np.mean(told) > 0.9


def test_a_float16_between_two_may_become_either():
    """The mean is 2051, and above 2048 a float16 is even. A sum that is off by a bit makes 2050 of it, and not 2052."""
    x = np.float16([[2050, 2052]])
    assert abs(room.reference(x, 1, "mean")[0] - 2050) <= room.error_bound(x, 1, "mean")[0]


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=15)
def test_any_shape_axes_operator_and_alignment(rung, data):
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 7, 12, 31, 64, 129, 300]), min_size=1, max_size=4))
    hypothesis.assume(math.prod(shape) <= 8_000)
    op = data.draw(st.sampled_from(["sum", "max", "argmax", "var", "any"]))
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1)).map(tuple)))
    if op == "argmax":
        axes = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    if op in ("max", "argmax"):
        hypothesis.assume(math.prod(shape))
    x = np.random.default_rng(1).integers(-9, 10, shape).astype(F32)
    keepdims = data.draw(st.booleans())
    result = rung(misaligned(x, data.draw(st.integers(0, 3))), axes, op, keepdims)
    assert right(device.to_host(result), x, axes, op, keepdims)


#: Folds for every way of the last two rungs: each kernel, in one part and in several, by wide loads and narrow ones.
FOLDS = {
    "short rows": (600, 7, 1),
    "short rows, an odd end": (201, 7, 1),  # 1407 elements: three behind the last load, which some threads do not have
    "lanes": (70, 36, 1),
    "a warp, odd": (40, 301, 1),
    "few rows, odd": (2, 3001, 1),  # the second one begins between two vectors
    "a long row": (1, 40_000, 1),
    "three columns": (1, 3001, 3),
    "columns of images": (3, 50, 7),
    "columns of images, wide": (3, 52, 7),
    "many columns": (1, 400, 1024),
    "odd columns": (1, 70, 129),
    "wide": (2, 70, 2500),
    "wide, odd": (1, 9, 2501),
    "small ones": (520, 5, 3),
}


@pytest.mark.parametrize("dtype", known(room.OF_16_BITS), ids=str)
@pytest.mark.parametrize("shape", [(600, 7, 1), (70, 40, 1), (40, 301, 1), (2, 3001, 1), (3, 52, 7)], ids=str)
def test_sums_of_16_bits_are_those_of_float32_rounded_once(shape, dtype):
    """Whole numbers, of which float32 has every sum. In 16 bits most sums would be other ones."""
    x = np.random.default_rng(8).integers(-4, 5, shape).astype(dtype) + dtype.type(1)
    expected = x.astype(np.float64).sum(axis=1).astype(dtype)
    for offset in (0, 1, 3):
        result, reports = observe(room.planned, misaligned(x, offset), 1)
        np.testing.assert_array_equal(result.astype(F32), expected.astype(F32))
        assert total(reports, "flops_f16") == 0


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.OF_16_BITS), ids=str)
def test_a_load_brings_eight_of_16_bits(dtype):
    result, (report,) = observe(room.planned, np.ones((8, 4096), dtype), 1)
    np.testing.assert_array_equal(result.astype(F32), 4096)
    assert report.counters["global_load_requests"] == 8 * 4096 // 8 // 32
    assert report.counters["global_load_sectors"] == 8 * 4096 * 2 // 32


@pytest.mark.parametrize("name", FOLDS)
def test_every_way_of_the_last_rungs(name):
    shape = FOLDS[name]
    x = np.random.default_rng(8).integers(-4, 5, shape).astype(F32)  # sums are exact: one lost element shows
    for rung, offset in ((room.planned, 0), (room.planned, 1), (room.split, 0), (room.split, 3)):
        result, reports = observe(rung, misaligned(x, offset), 1)
        np.testing.assert_array_equal(result, x.sum(axis=1))
        assert total(reports, "atomic_requests") == 0
    places = result_of(room.planned, x, 1, "argmax")
    np.testing.assert_array_equal(places, x.argmax(axis=1))


@pytest.mark.gpu
@each_rung
def test_the_same_bits_in_every_run(rung):
    for shape, axis in (((300_001,), 0), ((5000, 700), 0), ((64, 8, 50, 50), (0, 2, 3))):
        x = device.to_device(np.random.default_rng(5).standard_normal(shape, dtype=F32))
        first = device.to_host(rung(x, axis, "var"))
        assert all(np.array_equal(device.to_host(rung(x, axis, "var")), first) for _ in range(20))


@each_rung
def test_streams(rung):
    x = np.random.default_rng(5).standard_normal((7, 30), dtype=F32)
    stream = cuda.stream()
    result = rung(device.to_device(x), (0, 1), "max", True, stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), x, (0, 1), "max", True)


# -------------------------------------------------------------------------------------------- operators of the caller's


@cuda.jit(device=True)
def common_bits(a, b):
    return a & b


@cuda.jit(device=True)
def hypotenuse(a, b):
    return math.sqrt(a * a + b * b)


@each_rung
def test_an_operator_of_the_callers(rung):
    x = np.random.default_rng(3).integers(0, 2**31, (70, 9), dtype=np.int32) | np.int32(0x1010)
    both = operator_of(common_bits, np.int32(-1))
    for axis in (0, 1, None):
        np.testing.assert_array_equal(device.to_host(rung(x, axis, both)), np.bitwise_and.reduce(x, axis=axis))
    x = np.random.default_rng(3).random((40, 33), dtype=F32)
    length = operator_of(hypotenuse, F32(0))
    result = device.to_host(rung(x, 1, length))
    assert result.dtype == F32
    # A term is under at most 40 roots, squares and sums, each of which rounds by a part in 2^23 of what it has.
    np.testing.assert_allclose(result, np.sqrt((x.astype(np.float64) ** 2).sum(axis=1)), rtol=4 * 40 * 2**-24)


def test_kernels_of_an_operator_are_made_once():
    assert operator_of(common_bits, np.int32(-1)) is operator_of(common_bits, np.int32(-1))
    assert operator_of(hypotenuse, F32(np.nan)) is operator_of(hypotenuse, F32(np.nan))
    made_for = OPERATORS["sum"], np.dtype(F32), False, True, 4
    assert room.rows_kernel(*made_for) is room.rows_kernel(*made_for)


@cuda.jit(device=True)
def product(a, b):
    return a * b


def test_equal_identities_of_other_dtypes_or_signs_make_other_operators():
    """1 and 1.0 are equal as keys of a cache, and so are 0.0 and -0.0."""
    x = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    assert device.to_host(room.planned(x, 1, operator_of(product, np.int32(1)))).tolist() == [6, 120]
    result = device.to_host(room.planned(x.astype(F32), 1, operator_of(product, F32(1))))
    assert result.tolist() == [6, 120]
    assert result.dtype == F32
    with pytest.raises(TypeError, match="identity must be"):
        operator_of(product, np.float64(1))
    none = np.zeros((0, 1), F32)
    for zero in (0.0, -0.0):
        result = device.to_host(room.planned(none, 0, operator_of(hypotenuse, F32(zero))))
        assert np.signbit(result) == np.signbit(zero)


# ------------------------------------------------------------------------------------------------------- shapes alone


def test_axes_that_are_neighbours_are_one():
    fold = room.Fold
    assert room.folds_of((4, 5, 6), (1, 2)) == (fold(4, 30, 1),)
    assert room.folds_of((4, 5, 6), (0, 2)) == (fold(20, 6, 1), fold(1, 4, 5))
    assert room.folds_of((9, 5, 6, 2), (0, 2)) == (fold(1, 9, 60), fold(5, 6, 2))
    assert room.folds_of((4, 5, 6), ()) == (fold(1, 1, 120),)
    assert room.folds_of((4, 1, 6), (0, 2)) == (fold(1, 24, 1),)  # an axis of one element separates nothing
    assert room.folds_of((1, 5, 1), (0, 2)) == (fold(1, 1, 5),)


def test_plans_cover_every_element_once():
    """Parts, tiles and threads: counted from the numbers of a plan, as the kernels use them."""
    for fold in (room.Fold(3, 5000, 1), room.Fold(1, 10**7, 1), room.Fold(40, 200_001, 1)):
        plan = room.teams(fold, 4, 0)
        assert plan.parts * plan.length >= fold.n > (plan.parts - 1) * plan.length
    for fold in (room.Fold(1, 3001, 3), room.Fold(2, 9000, 1500), room.Fold(5, 10**6, 7), room.Fold(1, 10**7, 2)):
        for width in (1, 4):
            plan = room.side_by_side(fold, width)
            assert plan.parts * plan.length >= fold.n > (plan.parts - 1) * plan.length
            assert plan.tiles * plan.tile >= fold.inner > (plan.tiles - 1) * plan.tile
            assert plan.threads * width % plan.tile == 0
            assert plan.threads * width <= room.CELLS // (1 if width == 4 else 4)


# ------------------------------------------------------------------------------------------------------------ bad input


MAP = np.ones((2, 3), F32)
BAD = {
    "an axis": ((MAP, 2), ValueError, "axis must .*2"),
    "an axis below": ((MAP, -3), ValueError, "axis must .*-3"),
    "an axis twice": ((MAP, (0, -2)), ValueError, r"axis must name each axis once, was \(0, -2\) for 2 dimensions"),
    "no integer": ((MAP, 1.0), TypeError, "axis must be an integer"),
    "a list": ((MAP, [0, 1]), TypeError, "axis must be an integer"),
    "another dtype": ((MAP.astype(np.float64),), TypeError, "x must be .*was float64"),
    "strides": ((MAP[:, ::2],), ValueError, "x must be contiguous in C order"),
    "no dimension": ((np.array(1, F32),), ValueError, "x must have"),
    "nine": ((np.ones((1,) * 9, F32),), ValueError, "x must have .*8 dimensions, had 9"),
    "an operator": ((MAP, 0, "median"), ValueError, "op must be one of sum, .*was 'median'"),
    "a function": ((MAP, 0, max), ValueError, "op must be"),
    "a flag": ((MAP, 0, "sum", "yes"), TypeError, "keepdims must be"),
    "the mean of integers": (
        (MAP.astype(np.int32), 0, "mean"),
        TypeError,
        "x must be float32 or float16 or bfloat16 for op='mean'",
    ),
    "a sum of bool": ((MAP > 0, 0, "sum"), TypeError, "x must be .* for op='sum', was bool"),
    "two places": ((np.ones((2, 3, 4), F32), (0, 1), "argmax"), ValueError, "axis must be an integer or None"),
    "no maximum": ((np.ones((2, 0), F32), 1, "max"), ValueError, "x must have elements along axis 1 for op='max'"),
    "ddof": ((MAP, 0, "mean", False, 1), ValueError, "ddof must be 0 for op='mean'"),
    "a negative ddof": ((MAP, 0, "var", False, -1), ValueError, "ddof must be at least 0"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_bad_operators():
    with pytest.raises(TypeError, match=r"identity must be an np\.float32 or an np\.int32, was 0"):
        operator_of(common_bits, 0)
    with pytest.raises(TypeError, match="combine must be a device function"):
        operator_of(max, F32(0))
    for combine, identity, words in (([], F32(0), "combine must"), (common_bits, np.ones(1, F32), "identity must")):
        with pytest.raises(TypeError, match=words):  # neither has a hash
            operator_of(combine, identity)
    with pytest.raises(TypeError, match="x must be int32 for op='common_bits', was float32"):
        room.planned(MAP, 0, operator_of(common_bits, np.int32(-1)))


def test_nothing_is_what_numpy_says():
    none = np.ones((2, 0), F32)
    for op, expected in (("sum", 0), ("prod", 1), ("any", False), ("all", True), ("count_nonzero", 0), ("norm2", 0)):
        assert device.to_host(room.planned(none, 1, op)).tolist() == [expected] * 2
    assert np.isnan(device.to_host(room.planned(none, 1, "mean"))).all()
    assert np.isnan(device.to_host(room.planned(none, 1, "var"))).all()


def test_a_variance_of_too_few_is_no_number():
    x = F32([[3], [4]])
    assert np.isnan(device.to_host(room.planned(x, 1, "var", False, 1))).all()


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, x, axis, op="sum"):
    """Kernels, requests and sectors of loads."""
    _, reports = observe(rung, x, axis, op)
    names = ("global_load_requests", "global_load_sectors")
    return [report.kernel for report in reports], tuple(total(reports, name) for name in names)


@interpreter_only
def test_rows_of_sixteen():
    """512 rows of 16 elements are 8192 elements, 1024 sectors."""
    x = np.ones((512, 16), F32)
    # A thread a row: 16 warps, 16 steps, and each lane reads from a sector of its own.
    assert counted(room.thread_per_result, x, 1) == (["thread_a_result"], (16 * 16, 16 * 16 * 32))
    assert counted(room.coalesced, x, 1) == (["warp_a_result"], (512, 1024))  # half a warp has work


@interpreter_only
def test_rows_of_four_thousand():
    """A row of 4096 is 512 sectors, and 128 requests of a warp, or 32 of 128 bits: nothing is read twice."""
    x = np.ones((2, 4096), F32)
    assert counted(room.block_per_result, x, 1) == (["rows"], (2 * 128, 2 * 512))
    assert counted(room.vectorised, x, 1) == (["rows"], (2 * 32, 2 * 512))


@interpreter_only
def test_rows_of_seven():
    """4096 rows of 7 are 28,672 elements, 3584 sectors: 8 blocks with 512 rows, which are 896 loads of 128 bits.

    256 threads make four each, 1024. Those of the last four warps are again of the last one that there is.
    """
    x = np.ones((4096, 7), F32)
    kernels, (requests, sectors) = counted(room.planned, x, 1)
    assert kernels == ["short_rows"]
    assert requests == 8 * 32
    assert sectors == 3584 + 8 * 4


@interpreter_only
def test_three_columns():
    """4096 rows of 3 are 12,288 elements, 1536 sectors, and 96 requests of 512 bytes."""
    x = np.ones((4096, 3), F32)
    kernels, (requests, sectors) = counted(room.block_per_result, x, 0)
    assert kernels == ["columns"]
    assert requests == 4096  # a request a row
    _, reports = observe(room.block_per_result, x, 0)
    assert total(reports, "global_store_bytes") == 3 * 4  # one thread stores a result
    kernels, (requests, sectors) = counted(room.planned, x, 0)
    assert kernels == ["columns", "rows"]  # the states of a column are stored as neighbours
    assert sectors <= 1.1 * 1536
    assert requests <= 1.2 * 96


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "argmax", "var", "any", "count_nonzero"])
def test_torch_agrees(op):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((64, 33, 50), dtype=F32)
    there = torch.from_numpy(x).cuda()
    mine = {"amax": "max", "amin": "min"}.get(op, op)
    for axis in (0, 1, 2):
        more = {"unbiased": False} if op == "var" else {}
        theirs = getattr(torch, op)(there, dim=axis, **more).cpu().numpy()
        ours = device.to_host(room.planned(there, axis, mine))
        assert judge.right(ours, theirs, 2 * room.error_bound(x, axis, mine), theirs.dtype)


# -------------------------------------------------------------------------------------------------- the plain functions

NAMES = ("sum", "prod", "max", "min", "mean", "var", "any", "all", "count_nonzero", "argmax", "argmin")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_plain_function_is_numpys(name, axis, keepdims):
    if name in ("argmax", "argmin") and isinstance(axis, tuple):
        pytest.skip("a place is one number")
    x = np.random.default_rng(8).integers(-3, 4, (3, 4, 5)).astype(np.float32)
    expected = getattr(np, name)(x.astype(np.float64), axis, keepdims=keepdims)
    result = device.to_host(getattr(reduction, name)(x, axis, keepdims))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ord", [1, 2, np.inf, np.int64(1)])
def test_the_norms_are_numpys(ord):
    x = np.random.default_rng(8).standard_normal((3, 50), dtype=np.float32)
    expected = np.linalg.norm(x.astype(np.float64), ord, axis=1)
    np.testing.assert_allclose(device.to_host(reduction.norm(x, 1, ord=ord)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"^ord must be 1, 2 or numpy.inf, was 3$"):
        reduction.norm(x, 1, ord=3)


@pytest.mark.parametrize(
    "dtype", [dtype.name for dtype in known(("float32", "float16", "bfloat16", "int32", "float64", "int64"))]
)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_a_whole_vector_has_one_more_room(name, dtype):
    x = np.arange(-40, 61).astype(dtype_of(dtype))
    expected = getattr(np, name)(x)
    if dtype == "bfloat16":  # NumPy adds up in 16 bits
        expected = getattr(np, name)(x.astype(F32)).astype(x.dtype)
    for keepdims in (False, True) if dtype not in ("float64", "int64") else (False,):
        result = device.to_host(getattr(reduction, name)(x, keepdims=keepdims))
        assert result.shape == (1,) * keepdims
        assert result.dtype == expected.dtype
        assert result == expected


def test_a_variance_with_degrees_of_freedom_and_ones_own_operator():
    x = np.float32([[1, 3, 8], [2, 6, 4]])
    np.testing.assert_allclose(device.to_host(reduction.var(x, 1, ddof=1)), x.var(1, ddof=1), rtol=1e-6)

    @cuda.jit(device=True)
    def larger(a, b):
        return a if a > b else b

    own = reduction.operator_of(larger, np.float32(-np.inf))
    assert (device.to_host(reduction.reduce(x, own, 0)) == [2, 6, 8]).all()
    with pytest.raises(TypeError, match=r"^operator must be one that operator_of made, was 'sum'$"):
        reduction.reduce(x, "sum", 0)
