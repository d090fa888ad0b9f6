"""Elementwise: results on views of any strides, arguments, and counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import elementwise
from pmpp.kernels.elementwise import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.views import strided
from tests.kernels.elementwise.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import tensor_of
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
WIDE = [name for name in INPUTS if INPUTS[name][0].dtype == F32]
SHORT = [name for name in INPUTS if name not in WIDE]


# -------------------------------------------------------------------------------------------------------------- results


def right(result, a, b=None, op="add"):
    return judge.right(result, room.reference(a, b, op), room.tolerance(a, b, op), a.dtype)


def view_of(x, order, first=0):
    """A device array with the shape and the values of x, whose dimensions lie in that order in memory.

    It begins ``first`` elements behind a boundary of 16 bytes.
    """
    lying = np.ascontiguousarray(x.transpose(order))
    flat = device.to_device(np.concatenate([np.zeros(first, x.dtype), lying.reshape(-1)]))
    steps = [int(np.prod(lying.shape[place + 1 :])) for place in range(x.ndim)]
    back = np.argsort(order)
    return strided(flat, x.shape, tuple(steps[place] for place in back), first)


def faults(function, names=WIDE):
    """All that is wrong on the first input where anything is, worst first; then on views."""
    for arguments in (INPUTS[name] for name in names):
        found = judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return further_faults(function)


def further_faults(function):
    """On views that begin between boundaries of 16 bytes, and on transposed ones."""
    rng, found = np.random.default_rng(3), []
    a, b = rng.standard_normal((2, 132)).astype(F32)
    for offset in (1, 2, 3):
        given = misaligned(a, offset), misaligned(b, offset)
        found += judge.faults(function, given, lambda result: right(result, a, b))
    x = rng.standard_normal((35, 40), dtype=F32)
    return found + judge.faults(
        function, (view_of(x, (1, 0)), None, "copy"), lambda result: right(result, x, op="copy")
    )


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@st.composite
def operands(draw):
    """Two device arrays that fit each other, and their values: repeated, transposed, begun between boundaries."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 9, 12, 33]), min_size=1, max_size=4))
    hypothesis.assume(np.prod(shape) <= 4000)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    made = []
    for _ in range(2):
        own = [extent if draw(st.booleans()) else 1 for extent in shape] if draw(st.booleans()) else shape
        own = own[draw(st.integers(0, len(own) - 1)) :] if draw(st.booleans()) else own
        x = rng.standard_normal(own, dtype=F32)
        made.append((view_of(x, draw(st.permutations(range(x.ndim))), draw(st.integers(0, 3))), x))
    return made


@each_rung
@hypothesis.given(operands())
@hypothesis.settings(max_examples=25)
def test_any_strides_and_shapes(rung, two):
    (a, first), (b, second) = two
    assert right(device.to_host(rung(a, b, "subtract")), first, second, "subtract")


@each_rung
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 2, 0), (1, 0, 2)], ids=str)
def test_dimensions_in_any_order(rung, order):
    x, y = np.random.default_rng(2).standard_normal((2, 9, 33, 40), dtype=F32)
    for given in (view_of(y, (0, 1, 2)), view_of(y, order)):
        result = result_of(rung, view_of(x, order), given, "multiply")
        assert right(result, x, y, "multiply")
    result = result_of(rung, device.to_device(x), view_of(y, order), "divide")
    assert right(result, x, y, "divide")


@each_rung
def test_a_slice(rung):
    x = np.arange(600, dtype=F32).reshape(20, 30)
    whole = device.to_device(x)
    for view, expected in ((whole[3:], x[3:]), (whole[:, 4:20], x[:, 4:20]), (whole[::3, 1::2], x[::3, 1::2])):
        assert right(device.to_host(rung(view, 2, "multiply")), expected, 2, "multiply")
        assert right(device.to_host(rung(view, view, "add")), expected, expected)


@each_rung
def test_in_place_and_streams(rung):
    x, bias = np.random.default_rng(4).standard_normal((30, 41), dtype=F32), np.arange(41, dtype=F32)
    given = device.to_device(x)
    stream = cuda.stream()
    assert rung(given, bias, "add", out=given, stream=stream) is given
    stream.synchronize()
    assert right(given.copy_to_host(), x, bias)


@each_rung
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_an_output_that_begins_elsewhere(rung, offset):
    x, y = np.random.default_rng(4).standard_normal((2, 13, 41), dtype=F32)
    out = misaligned(np.full(x.shape, np.nan, F32), offset)
    rung(x, y, "minimum", out=out)
    assert right(out.copy_to_host(), x, y, "minimum")


def test_more_dimensions_than_a_kernel_tells_apart(rng):
    x = rng.standard_normal((2, 3, 2, 3, 2, 3), dtype=F32)
    for rung in room.LADDER:  # neighbours are joined
        assert right(device.to_host(rung(x, x)), x, x)
    backwards = view_of(x[0], (4, 3, 2, 1, 0))
    with pytest.raises(ValueError, match=r"at most 4 dimensions after neighbours are joined, left 5 .* copy one"):
        room.tiled(backwards, None, "copy")


def test_the_ways_to_four_neighbours():
    """A bias of channels is one number, what lies flat is one load, and the rest is four loads."""

    def ways(a, b, shape, addresses=(0, 0, 0)):
        described = [(x.shape, x.strides) for x in (np.empty(a, F32), np.empty(b, F32), np.empty(shape, F32))]
        return room.ways_of(room.plan_of(*described), addresses)

    maps, odd = (2, 3, 4, 4), (2, 3, 7, 7)
    assert ways(maps, (3, 1, 1), maps) == (room.VECTOR, room.SAME)
    assert ways(odd, (3, 1, 1), odd) == (room.VECTOR, room.EACH)
    assert ways((5, 8), (8,), (5, 8)) == (room.VECTOR, room.VECTOR)
    assert ways((5, 8), (8,), (5, 8), (0, 4, 0)) == (room.VECTOR, room.EACH)
    assert ways((5, 8), (8,), (5, 8), (0, 0, 4)) is None
    assert ways((5, 1), (1, 8), (5, 8)) == (room.SAME, room.VECTOR)
    assert ways((5,), (1,), (5,)) == (room.VECTOR, room.SAME)


def test_indices_of_64_bits_where_32_do_not_reach():
    small, large = ((2**15, 2**15), (2**17, 4)), ((2**16, 2**15), (2**17, 4))
    column = ((1, 2**15), (2**17, 4))
    for (shape, strides), fits in ((small, True), (large, False)):
        plan = room.plan_of((shape, strides), column, (shape, strides))
        assert (room.in_32_bits(plan) is not None) == fits
    far = room.plan_of(((2, 2), (2**34, 4)), ((2, 2), (8, 4)), ((2, 2), (8, 4)))
    assert room.in_32_bits(far) is None
    assert room.in_32_bits(room.plan_of(*[small] * 3)).extents == (1, 1, 1, 2**30)


# -------------------------------------------------------------------------------------------------- the plain functions


@pytest.mark.parametrize("op", room.OPERATIONS)
def test_each_operation_is_a_function(op):
    a, b, _ = INPUTS[op]
    arguments = (a,) if op in room.UNARY else (a, b)
    assert right(device.to_host(getattr(elementwise, op)(*arguments)), a, b, op)


def test_full():
    for shape in ((), (0,), (1,), (5, 7), (1024,), (3, 341)):
        assert np.array_equal(device.to_host(elementwise.full(shape, -0.5)), np.full(shape, -0.5, F32))
    with pytest.raises(TypeError, match="value must be a number, was 'a'"):
        elementwise.full((2,), "a")


def test_assign_writes_what_the_view_shows_and_nothing_else(rng):
    for target, values in (
        (np.s_[:], (6, 9)),
        (np.s_[2], (9,)),
        (np.s_[:, 3], (6,)),
        (np.s_[1:5, ::2], (5,)),
        (np.s_[::3, 1:2], (1, 1)),
        (np.s_[:0], (9,)),
    ):
        x, new = rng.standard_normal((6, 9), dtype=F32), rng.standard_normal(values, dtype=F32)
        given = device.to_device(x)
        elementwise.assign(given[target], new)
        x[target] = new
        np.testing.assert_array_equal(given.copy_to_host(), x)


def test_assign_through_a_transposed_view(rng):
    x, new = rng.standard_normal((40, 33), dtype=F32), rng.standard_normal((33, 40), dtype=F32)
    given = device.to_device(x)
    elementwise.assign(strided(given, (33, 40), (1, 33)), new)
    np.testing.assert_array_equal(given.copy_to_host(), new.T)


def test_what_assign_refuses():
    x = device.to_device(np.zeros((4, 5), F32))
    with pytest.raises(TypeError, match="target must be a device array, was a NumPy array"):
        elementwise.assign(np.zeros(3, F32), np.zeros(3, F32))
    with pytest.raises(ValueError, match=r"values must be broadcast to \(4, 5\), had shape \(6, 4, 5\)"):
        elementwise.assign(x, np.zeros((6, 4, 5), F32))
    with pytest.raises(ValueError, match="target must show each element once and forwards, had strides"):
        elementwise.assign(strided(x, (3, 4), (0, 1)), np.zeros(4, F32))
    with pytest.raises(ValueError, match=r"target must .*values"):
        elementwise.assign(x[:2], x[1:3])


# ------------------------------------------------------------------------------------------------------------- 16 bits


@each_rung
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize("offsets", [(0, 0), (3, 3), (0, 1)])
def test_views_of_16_bits(rung, dtype, offsets):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 133)).astype(dtype)
    assert right(device.to_host(rung(misaligned(a, offsets[0]), misaligned(b, offsets[1]))), a, b)
    x, bias = rng.standard_normal((35, 40)).astype(dtype), rng.standard_normal(40).astype(dtype)
    turned = view_of(x, (1, 0), offsets[0])
    assert right(device.to_host(rung(turned, None, "copy")), x, op="copy")
    assert right(device.to_host(rung(turned, bias, "add")), x, bias)
    assert right(device.to_host(rung(turned, 0.1, "multiply")), x, 0.1, "multiply")


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_half_the_bytes_move(dtype):
    x, bias = np.ones((16, 64), dtype), np.ones(64, dtype)
    for arguments, kernel in (((x, x), "straight_octets_kernel"), ((x, bias), "octets_kernel")):
        result, (report,) = observe(room.tiled, *arguments)
        assert right(result, *arguments)
        assert report.kernel == kernel
        assert report.counters["global_store_sectors"] == x.nbytes // 32
        assert report.counters["flops_f16"] == 0


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_16_bits_are_computed_in_float32(ptx, dtype):
    x = np.zeros(64, dtype)
    plan = room.plan_of(*[((64,), (4,))] * 3)
    text = ptx(room.straight_octets_kernel, 0, x, x, F32(0), False, x, plan, room.VECTOR, room.VECTOR, cc=(9, 0))
    assert ".extern" not in text
    assert text.count("ld.global.v4.u32") == 2
    assert text.count("st.global.v4.u32") == 1


@pytest.mark.parametrize("given", known(room.DTYPES), ids=str)
@pytest.mark.parametrize("wanted", known(room.DTYPES), ids=str)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 4099])
def test_a_cast_rounds_once(given, wanted, n):
    x = (10.0 ** np.random.default_rng(n).uniform(-9, 5, n)).astype(F32)
    with np.errstate(over="ignore"):
        x[: min(n, 5)] = F32([65504, 65520, np.inf, np.nan, -0.0])[:n]
        x = x.astype(given)
        expected = x.astype(F32).astype(wanted)
    for array in (device.to_device(x), misaligned(x, 1)):
        result = device.to_host(elementwise.cast(array, wanted))
        assert result.dtype == wanted
        np.testing.assert_array_equal(result.astype(F32), expected.astype(F32))


def test_a_cast_of_a_view_and_bad_ones():
    x = np.random.default_rng(2).standard_normal((9, 12), dtype=F32)
    result = elementwise.cast(view_of(x, (1, 0)), "float16")
    np.testing.assert_array_equal(device.to_host(result), x.astype(np.float16))
    out = device.empty((9, 12), np.float16)
    assert elementwise.cast(x, out.dtype, out=out) is out
    for dtype in ("float64", "halves", None, 3, np.float16):
        with pytest.raises(TypeError, match=r"dtype must be float32, float16 or bfloat16, .*, was"):
            elementwise.cast(x, dtype)
    with pytest.raises(TypeError, match=r"a must be float32, .*, was int32"):
        elementwise.cast(x.astype(np.int32), "float16")
    with pytest.raises(ValueError, match="out must have shape"):
        elementwise.cast(x, "float16", out=device.empty(3, np.float16))


# ------------------------------------------------------------------------------------------------------------ bad input


MAP, ROW = np.ones((2, 3), F32), np.ones(3, F32)
BAD = {
    "shapes that do not fit": ((MAP, np.ones(2, F32)), ValueError, r"extents that are equal or 1.*\(2, 3\) and \(2,\)"),
    "another dtype": ((MAP.astype(np.float64), MAP), TypeError, "a must be float32, .* or bfloat16, was float64"),
    "b of 16 bits": ((MAP, ROW.astype(np.float16)), TypeError, "b must be float32, was float16"),
    "b of another dtype": ((MAP, ROW.astype(np.int32)), TypeError, "b must be float32, was int32"),
    "an operation": ((MAP, MAP, "plus"), ValueError, "op must be one of copy, .*, was 'plus'"),
    "one operand too many": ((MAP, ROW, "exp"), ValueError, r"b must be None, since exp takes one .*\(3,\)"),
    "one operand too few": ((MAP, None, "add"), ValueError, "b must be an array or a number, since add takes two"),
    "text": ((MAP, "2", "add"), TypeError, "b must"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, *arguments):
    """Kernels, and requests and sectors of loads and of stores."""
    _, reports = observe(rung, *arguments)
    names = ("global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors")
    return [report.kernel for report in reports], tuple(total(reports, name) for name in names)


# 8192 elements are 256 warps of 32, whose 128 bytes are 4 sectors; or 64 requests of 512 bytes.
@interpreter_only
def test_two_loads_and_a_store():
    x = np.ones(8192, F32)
    assert counted(room.indexed, x, x) == (["indexed_kernel"], (512, 2048, 256, 1024))
    assert counted(room.joined, x, x) == (["straight_kernel"], (512, 2048, 256, 1024))
    for rung in (room.vectorised, room.tiled):
        assert counted(rung, x, x) == (["straight_vectors_kernel"], (128, 2048, 64, 1024))
    assert counted(room.tiled, x, 2, "multiply") == (["straight_vectors_kernel"], (64, 1024, 64, 1024))


@interpreter_only
def test_what_is_repeated_is_read_once_for_four():
    """A plane has 64 elements, which are 16 threads: a warp reads two biases, which are neighbours, in one sector."""
    x, bias = np.ones((2, 64, 8, 8), F32), np.ones((64, 1, 1), F32)
    assert counted(room.joined, x, bias) == (["small_kernel"], (512, 1024 + 256, 256, 1024))
    assert counted(room.vectorised, x, bias) == (["vectors_kernel"], (128, 1024 + 64, 64, 1024))


@interpreter_only
def test_a_transposed_operand_is_read_in_whole_sectors():
    """64 x 64 elements: a warp that reads down a column of the memory asks for 32 sectors."""
    x = device.to_device(np.ones((64, 64), F32))
    turned = strided(x, (64, 64), (1, 64))
    assert counted(room.joined, turned, None, "copy") == (["small_kernel"], (128, 128 * 32, 128, 512))
    assert counted(room.tiled, turned, None, "copy") == (["tiles_kernel"], (128, 512, 128, 512))
    _, (report,) = observe(room.tiled, turned, None, "copy")
    assert report.counters["shared_load_bank_conflicts"] == report.counters["shared_store_bank_conflicts"] == 0


# ---------------------------------------------------------------------------------------------------------------- NumPy


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    a, b, op = INPUTS[name]
    function = {"copy": np.positive, "greater_equal": np.greater_equal}.get(op) or getattr(np, op)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64), *(() if b is None else (np.float32(b).astype(np.float64),))
        expected = function(*wide).astype(np.float64)
        expected = np.where(np.isinf(expected.astype(a.dtype)), np.copysign(np.inf, expected), expected)
    np.testing.assert_array_equal(room.reference(a, b, op), expected)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    a, b, op = INPUTS[name]
    arrays = [tensor_of(torch, x) if isinstance(x, np.ndarray) else x for x in (a, b)]
    result = device.to_host(rung(arrays[0], arrays[1], op))
    assert right(result, a, b, op)
    if op in ("add", "multiply", "maximum", "equal") and a.dtype == F32:
        names = {"maximum": torch.maximum, "equal": torch.eq, "multiply": torch.mul, "add": torch.add}
        second = arrays[1] if isinstance(b, np.ndarray) or op in ("add", "multiply") else torch.tensor(b).cuda()
        theirs = names[op](arrays[0], second).float().cpu().numpy()
        np.testing.assert_allclose(result, theirs, rtol=2.0**-23, atol=2.0**-148, equal_nan=True)
