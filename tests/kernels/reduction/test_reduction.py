"""Reduction: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import reduction
from pmpp.kernels.reduction import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from tests.kernels.reduction.wrong import RIGHT
from tests.kernels.reduction.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, total, watch

BLOCK, COARSE, OPERATORS = room.BLOCK, room.COARSE, room.OPERATORS
INPUTS = room.inputs()
DTYPES = [dtype.name for dtype in known(room.DTYPES)]
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_operator = pytest.mark.parametrize("op", OPERATORS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def tolerance(x, op):
    """How far from the exact result a right one may be.

    Integers wrap or fit, and a maximum is one of the elements: nothing. In a float sum an element goes through at most
    so many additions: COARSE in its thread, log2(BLOCK) in the tree of its block, and one for each block of BLOCK
    elements. Each rounds by half an eps of what has been added up, which is at most sum |x| (Higham, Accuracy and
    Stability of Numerical Algorithms, section 4.2). Numbers of 16 bits are added up in float32, and the sum is rounded
    once more.
    """
    if op != "sum" or x.dtype.kind == "i":
        return 0.0
    additions, short = COARSE + np.log2(BLOCK) + -(-x.size // BLOCK), x.dtype.name in room.SHORT
    eps = np.finfo(np.float32 if short else x.dtype).eps
    allowed = additions * eps / 2 * float(np.abs(x[np.isfinite(x)].astype(np.float64)).sum())
    if short:
        finite = x[np.isfinite(x)].astype(np.float64)
        allowed += float(rounding(np.abs(finite.sum()) + allowed, x.dtype))
    return allowed


def right(result, x, op):
    exact = np.float64(room.reference(x, op)) if x.dtype.name in room.SHORT else room.reference(x, op)
    if x.dtype == np.float16 and abs(exact) >= 65520:
        exact = np.copysign(np.inf, exact)  # what a float16 cannot hold
    dtype = np.dtype(np.int64) if op == "sum" and x.dtype.kind == "i" else x.dtype
    return judge.right(result, np.reshape(exact, 1), tolerance(x, op), dtype)


@few_counters()
def faults(reduce, names=INPUTS):
    """All that is wrong with a reduction, worst first. The ladder has none; each in wrong.py has one."""
    found = []
    for name in names:
        (x,) = INPUTS[name]
        for op in OPERATORS:
            if x.size or op == "sum":
                given = device.to_device(x)
                result, reports = watch(reduce, given, op)
                found += hazards(reports)
                if not found:
                    found += ["wrong result"] * (not right(result, x, op))
                    found += ["input changed"] * (given.copy_to_host().tobytes() != x.tobytes())
        if found:
            return found
    return found


def excesses(reduce):
    """What a reduction does beyond its work."""
    found, x = [], np.ones(5000, np.float32)
    _, reports = observe(reduce, x)
    if reports:
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        found += ["atomics"] * (total(reports, "atomic_requests") > -(-x.size // BLOCK))
        found += ["traffic"] * (total(reports, "global_load_sectors") > 12 * x.size // 8)
    return found


@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_a_rung_has_no_fault(rung, name):
    assert faults(rung, [name]) == []


@each_rung
def test_a_rung_does_nothing_beyond_its_work(rung):
    assert excesses(rung) == []


SOME = [
    "one",
    "a block +1",
    "float64",
    "int64",
    "int32, sum beyond int32",
    "all negative",
    "all positive",
    "NaN middle",
]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    found = faults(wrong.function, SOME) or excesses(wrong.function)
    assert found[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT, SOME) == []
    assert excesses(RIGHT) == []


@each_operator
@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name, op):
    (x,) = INPUTS[name]
    if x.size == 0 and op != "sum":
        pytest.skip("the max of nothing is not defined")
    wide = np.int64 if x.dtype.kind == "i" else np.float64
    with np.errstate(all="ignore"):
        expected = getattr(np, op)(
            x.astype(np.float32) if x.dtype.name in room.SHORT else x, **({"dtype": wide} if op == "sum" else {})
        )
    result = room.reference(x, op)
    assert result.dtype == (wide if op == "sum" else x.dtype)
    # NumPy adds in pairs, the reference in order: n roundings each.
    allowed = x.size * 2.0**-52 * np.abs(x[np.isfinite(x)].astype(np.float64)).sum() if wide is np.float64 else 0
    np.testing.assert_allclose(result, expected, rtol=0, atol=allowed if op == "sum" else 0)


@each_rung
@each_operator
@hypothesis.given(
    n=st.one_of(st.integers(1, 100), st.integers(1, 5 * BLOCK)),
    dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 4),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_length_type_and_alignment(rung, op, n, dtype, offset, seed):
    rng = np.random.default_rng(seed)
    if "float" in dtype:
        base = rng.standard_normal(n + offset).astype(dtype)
    else:
        base = rng.integers(-(2**31), 2**31, n + offset).astype(dtype)
    result = device.to_host(rung(device.to_device(base)[offset:], op))
    assert right(result, base[offset:], op), f"{result[0]}, not {room.reference(base[offset:], op)}"


def reports_of(rung, x, op="sum"):
    """Reports of the rung's own kernel, without those that set up and finish."""
    result, reports = observe(rung, x, op)
    assert right(result, device.to_host(x), op)
    return [report for report in reports if report.kernel == f"{rung.name}_kernel"]


@interpreter_only
@each_rung
def test_the_result_does_not_depend_on_the_batch(rung):
    """The interpreter runs so many lanes at a time; a small batch is a GPU that runs its blocks one after the other."""
    (x,) = INPUTS["outliers"]
    x = np.tile(x, 9)
    results = []
    for lanes in (BLOCK, 3 * BLOCK, 2**20):
        with simt.batch_lanes(lanes):
            results.append(device.to_host(rung(x)))
    assert len({result.tobytes() for result in results}) == 1


@each_operator
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_deterministic_rung_gives_the_same_bits_again(op, dtype, rng):
    """And needs no atomics, whose order nobody promises."""
    x = device.to_device(
        (rng.standard_normal(70_001) * (1e3 if dtype == "float16" else 1e6)).astype(dtype)
    )  # five blocks: two launches
    runs = []
    for _ in range(50 if device.on_gpu() else 2):
        result, reports = observe(room.deterministic, x, op)
        runs.append(result.tobytes())
        assert total(reports, "atomic_requests") == 0
    assert len(set(runs)) == 1


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize("rung", room.LADDER[-2:], ids=lambda rung: rung.name)
def test_16_bits_are_half_the_sectors_and_are_added_up_in_float32(rung, dtype):
    (report,) = reports_of(rung, np.ones(room.LOADS * BLOCK * 8, dtype))
    assert report.counters["global_load_requests"] == room.LOADS * BLOCK // 32
    assert report.counters["global_load_sectors"] == room.LOADS * BLOCK * 16 // 32
    assert report.counters["flops_f16"] == report.counters["flops_f64"] == 0


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_16_bits_are_widened_in_registers(dtype, ptx):
    x, cell = np.ones(64, dtype), np.zeros(1, np.float32)
    text = ptx(room.vectorised_kernel, x, cell, room.SUM, np.float32(0), 0, 64, 8, cc=(9, 0))
    assert ".extern" not in text
    assert ".local" not in text
    assert text.count("ld.global.v4") >= room.LOADS


@interpreter_only
@pytest.mark.parametrize(("n", "launches", "threads"), [(1, 1, 32), (1024, 1, 64), (5000, 1, 320), (2**14, 1, 1024)])
def test_a_vector_that_fits_a_block_is_one_launch_of_as_many_threads_as_it_needs(n, launches, threads):
    x = np.arange(n) % 8
    result, reports = observe(room.deterministic, x.astype(np.float32))
    assert result.tolist() == [x.sum()]
    assert [report.block[0] for report in reports] == [threads] * launches


@interpreter_only
def test_a_longer_vector_has_many_blocks():
    _, reports = observe(reduction.sum, np.ones(2**14 + 1, np.float32))
    assert [report.kernel for report in reports] == ["fill_kernel", "vectorised_kernel"]


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_the_deterministic_rung_depends_on_nothing_but_the_alignment(shift, rng):
    x = (rng.standard_normal(40_000) * 1e6).astype(np.float32)
    once = device.to_host(room.deterministic(device.to_device(x)))
    moved = device.to_device(np.concatenate([np.full(shift, np.nan, np.float32), x]))[shift:]
    again = device.to_host(room.deterministic(moved))
    assert right(again, x, "sum")
    if shift % 4 == 0:
        assert once.tobytes() == again.tobytes()


@each_rung
def test_streams(rung):
    (x,) = INPUTS["a block +1"]
    stream = cuda.stream()
    result = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), x, "sum")


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR = np.ones(5, np.float32)
BAD = {
    "another dtype": ((VECTOR.astype(np.uint8),), {}, TypeError, "x must be float32, .* or bfloat16, was uint8"),
    "booleans": ((VECTOR > 0,), {}, TypeError, "x must be float32, .* or bfloat16, was bool"),
    "complex": ((VECTOR * 1j,), {}, TypeError, "x must be float32, .* or bfloat16, was complex64"),
    "a matrix": ((np.ones((2, 3), np.float32),), {}, ValueError, r"x must have 1 dimension, had 2: .* \(2, 3\)"),
    "every other": ((np.ones(10, np.float32)[::2],), {}, ValueError, "x must be contiguous in C order, had .* copy it"),
    "another operator": ((VECTOR, "mean"), {}, ValueError, "op must be 'sum', 'max' or 'min', was 'mean'"),
    "no name": ((VECTOR, max), {}, ValueError, "op must be 'sum', 'max' or 'min', was <built-in function max>"),
    "the max of nothing": ((VECTOR[:0], "max"), {}, ValueError, "x must have an element for op='max', was empty"),
    "the min of nothing": ((VECTOR[:0], "min"), {}, ValueError, "x must have an element for op='min', was empty"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# Sums of float32 in one block. A warp's request for 32 neighbours is 4 sectors. A tree over 1024 values has ten levels;
# n values take n - 1 additions.

WARPS = BLOCK // 32


def counters_of(rung, n):
    (report,) = reports_of(rung, np.ones(n, np.float32))
    assert not report.hazards
    assert report.counters["flops_f64"] == 0
    return report.counters


@interpreter_only
def test_counters_of_interleaved():
    found = counters_of(room.interleaved, BLOCK)
    # With strides 1 to 16 all 32 warps work, with fewer and fewer lanes; from 32 on one lane of every second warp, ...
    working = 5 * WARPS + (16 + 8 + 4 + 2 + 1)
    # The lanes of a warp still reach over 4 sectors up to stride 4, then 2, then 1.
    sectors = WARPS * (4 + 4 + 4 + 2 + 1) + (16 + 8 + 4 + 2 + 1)
    assert found["global_load_requests"] == WARPS + 2 * working + 1  # x, two operands each, work[i] at the end
    assert found["global_load_sectors"] == 4 * WARPS + 2 * sectors + 1
    assert found["global_store_requests"] == WARPS + working
    assert found["global_store_sectors"] == 4 * WARPS + sectors
    assert found["flops"] == BLOCK - 1
    assert found["barriers"] == 1 + 10
    assert found["atomic_requests"] == 1


@interpreter_only
def test_counters_of_sequential():
    found = counters_of(room.sequential, BLOCK)
    # Whole warps down to stride 32; then one warp with 16, 8, 4, 2 and 1 lanes: 2 sectors, then 1.
    whole, partly = 16 + 8 + 4 + 2 + 1, 5
    assert found["global_load_requests"] == WARPS + 2 * (whole + partly) + 1
    assert found["global_load_sectors"] == 4 * WARPS + 2 * (4 * whole + 2 + 1 + 1 + 1 + 1) + 1
    assert found["global_store_sectors"] == 4 * WARPS + 4 * whole + 2 + 1 + 1 + 1 + 1
    assert found["flops"] == BLOCK - 1
    assert found["divergent_branches"] < counters_of(room.interleaved, BLOCK)["divergent_branches"]


TREE = 16 + 8 + 4 + 2 + 1 + 5  # requests of warps, in all levels


@interpreter_only
def test_counters_of_shared_tree():
    found = counters_of(room.shared_tree, BLOCK)
    assert (found["global_load_requests"], found["global_load_sectors"]) == (WARPS, 4 * WARPS)
    assert found["global_store_requests"] == 0
    assert found["shared_store_requests"] == found["shared_store_wavefronts"] == WARPS + TREE  # no bank conflicts
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == 2 * TREE + 1
    assert (found["flops"], found["barriers"], found["atomic_requests"]) == (BLOCK - 1, 1 + 10, 1)


@interpreter_only
def test_counters_of_coarsened():
    found = counters_of(room.coarsened, COARSE * BLOCK)
    assert found["global_load_requests"] == COARSE * WARPS
    assert found["global_load_sectors"] == COARSE * BLOCK // 8
    assert found["shared_store_wavefronts"] == WARPS + TREE
    assert found["flops"] == COARSE * BLOCK + BLOCK - 1  # the first of each thread is added to 0
    assert (found["barriers"], found["atomic_requests"]) == (1 + 10, 1)


@interpreter_only
def test_counters_of_shuffle():
    found = counters_of(room.shuffle, COARSE * BLOCK)
    assert found["global_load_sectors"] == COARSE * BLOCK // 8
    assert found["shared_store_requests"] == found["shared_store_wavefronts"] == WARPS  # one value a warp
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == 1
    # Every lane adds in each of five steps, whether anybody needs its sum or not.
    assert found["flops"] == COARSE * BLOCK + 5 * BLOCK + 5 * 32
    assert (found["barriers"], found["atomic_requests"]) == (1, 1)


@interpreter_only
@pytest.mark.parametrize("rung", [room.vectorised, room.deterministic], ids=lambda rung: rung.name)
def test_counters_of_the_vectorised_fast_path(rung):
    n = COARSE * BLOCK
    found = counters_of(rung, n)
    assert found["global_load_requests"] == n // 4 // 32  # a quarter of the requests of shuffle
    assert found["global_load_sectors"] == n // 8
    assert found["global_load_bytes"] == 4 * n
    # 16 elements take 15 additions and none to a 0. In block 0 nothing is left for head and tail.
    assert found["flops"] == 15 * BLOCK + 5 * BLOCK + 5 * 32
    if rung is room.vectorised:
        assert (found["atomic_requests"], found["global_store_requests"]) == (1, 0)
    else:
        assert (found["atomic_requests"], found["global_store_requests"]) == (0, 1)


@interpreter_only
def test_a_head_and_a_tail_are_read_once():
    x = device.to_device(np.ones(4 * BLOCK + 7, np.float32))[1:]  # 3 + 1024 vectors of 4 but one + 3
    (report,) = reports_of(room.vectorised, x)
    assert report.counters["global_load_bytes"] == 4 * x.size
    assert report.counters["global_load_requests"] == -(-(x.size - 6) // 128) + 1 + 1


@interpreter_only
@pytest.mark.parametrize("n, launches", [(1, 1), (2**14, 1), (2**14 + 3, 1), (2**14 + 4, 2), (3 * 2**14, 2)])
def test_launches_of_the_deterministic_rung(n, launches):
    assert len(reports_of(room.deterministic, np.ones(n, np.float32))) == launches


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@each_operator
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, op, library):
    module = pytest.importorskip(library)
    for name, (x,) in INPUTS.items():
        if x.size == 0 or x.dtype.itemsize == 2:  # of 16 bits libraries round in other places
            continue
        if library == "cupy":
            given = module.asarray(x)
            expected = module.asnumpy(getattr(given, op)())
        else:
            given = module.from_numpy(x).cuda()
            expected = getattr(given, op)().cpu().numpy()
        result = device.to_host(rung(given, op))[0]
        # Both are as close to the exact result as a float can be expected to be.
        np.testing.assert_allclose(result, expected, rtol=0, atol=2 * tolerance(x, op), err_msg=name)


@pytest.mark.gpu
@each_rung
def test_a_large_sum_on_the_gpu(rung):
    cupy = pytest.importorskip("cupy")
    x = cupy.random.RandomState(0).standard_normal(2**24 + 3, dtype=cupy.float32)
    exact = float(x.astype(cupy.float64).sum())
    additions = COARSE + 10 + -(-x.size // BLOCK)
    assert abs(device.to_host(rung(x))[0] - exact) <= additions * 2.0**-24 * float(abs(x).astype(cupy.float64).sum())
