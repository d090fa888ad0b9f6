"""Matrix multiplication: results, arguments, and the counters of each rung against counts done by hand."""

import functools
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import matmul
from pmpp.kernels.matmul import fitted, matvec, plans
from pmpp.kernels.matmul import ladder as room
from pmpp.runtime import device
from tests.kernels.matmul.wrong import RIGHT
from tests.kernels.matmul.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, total, watch

INPUTS = room.inputs()
F32 = np.float32
VECTORS = (room.vectorised, room.prefetched)  # the rungs with 128-bit access
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def tolerance(a, b):
    """How far from the exact product a right one may be.

    An element is a sum of K products. Each product is rounded, unless fused with its addition, and then goes through at
    most K additions, which each round by half an eps of at most sum |a b| (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.5). That holds in any order, for tiles and zeros in between, too.
    """
    with np.errstate(all="ignore"):
        return (a.shape[1] + 1) * np.finfo(F32).eps / 2 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))


@functools.cache
def exact(name):
    return room.reference(*INPUTS[name])


def right(result, a, b, expected):
    return judge.right(result, expected, tolerance(a, b))


@few_counters()
def faults(multiply, names=INPUTS):
    """All that is wrong with a matrix product, worst first. The ladder has none; each in wrong.py has one."""
    found = []
    for name in names:
        a, b = INPUTS[name]
        given = device.to_device(a), device.to_device(b)
        result, reports = watch(multiply, *given)
        found += hazards(reports)
        if found:
            return found
        found += ["wrong result"] * (not right(result, a, b, exact(name)))
        for before, after in zip((a, b), given, strict=True):
            found += ["input changed"] * (not np.array_equal(before, after.copy_to_host(), equal_nan=True))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        found += ["atomics"] * (total(reports, "atomic_requests") > 0)
    return found


@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_a_rung_has_no_fault(rung, name):
    assert faults(rung, [name]) == []


SOME = ["a tile", "a tile and one", "both transposed, odd", "row times column"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT, SOME) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    a, b = (x.astype(np.float64) for x in INPUTS[name])
    with np.errstate(all="ignore"):
        # Both add up in float64, in different orders: K roundings each.
        allowed = 2 * a.shape[1] * 2.0**-52 * (np.abs(a) @ np.abs(b))
        expected = a @ b
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(exact(name)[~finite], expected[~finite])
    assert (np.abs(exact(name)[finite] - expected[finite]) <= allowed[finite]).all()


def laid_out(x, fortran, offset):
    """A device array with the values of ``x``, in that order, ``offset`` elements behind a 16-byte boundary."""
    if not x.size:
        return device.empty(x.shape, F32)
    flat = np.concatenate([np.full(offset, np.nan, F32), x.ravel(order="F" if fortran else "C")])
    array = device.to_device(flat)[offset:]
    if not fortran:
        return array.reshape(*x.shape)
    # .T of a device array is a copy in C order.
    pointer, strides = array.__cuda_array_interface__["data"][0], (4, 4 * x.shape[0])
    interface = {"shape": x.shape, "strides": strides, "typestr": "<f4", "data": (pointer, False), "version": 3}
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=interface, owner=array))


@each_rung
@hypothesis.given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40)),
    fortran=st.tuples(st.booleans(), st.booleans()),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=4)
def test_any_shape_layout_and_alignment(rung, shape, fortran, offsets, seed):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k), dtype=F32), rng.standard_normal((k, n), dtype=F32)
    out = laid_out(np.full((m, n), np.nan, F32), False, offsets[2])
    result = rung(laid_out(a, fortran[0], offsets[0]), laid_out(b, fortran[1], offsets[1]), out=out)
    assert result is out
    assert right(device.to_host(out), a, b, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("rung", VECTORS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("where", range(3))
def test_one_misaligned_matrix_of_a_shape_that_fits(rung, where, rng):
    a, b = rng.standard_normal((2, 16, 16), dtype=F32)
    offsets = [0, 0, 0]
    offsets[where] = 1
    out = laid_out(np.full((16, 16), np.nan, F32), False, offsets[2])
    rung(laid_out(a, False, offsets[0]), laid_out(b, False, offsets[1]), out=out)
    assert right(device.to_host(out), a, b, a.astype(np.float64) @ b.astype(np.float64))


@each_rung
def test_whole_numbers_are_exact(rung, rng):
    """More than one block in each direction, and no rounding behind which an error could hide."""
    a, b = rng.integers(-8, 9, (150, 24)).astype(F32), rng.integers(-8, 9, (24, 140)).astype(F32)
    np.testing.assert_array_equal(device.to_host(rung(a, b)), a @ b)


@each_rung
def test_streams(rung):
    a, b = INPUTS["a tile and one"]
    stream = cuda.stream()
    result = rung(a, b, stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), a, b, exact("a tile and one"))


@each_rung
def test_the_same_matrix_twice(rung, rng):
    a = device.to_device(rng.standard_normal((20, 20), dtype=F32))
    host = a.copy_to_host()
    assert right(device.to_host(rung(a, a)), host, host, host.astype(np.float64) @ host.astype(np.float64))


# ------------------------------------------------------------------------------------------------------------ bad input

A, B = np.ones((5, 7), F32), np.ones((7, 3), F32)
BAD = {
    "float64": ((A.astype(np.float64), B), {}, TypeError, "a must be float32, was float64"),
    "two dtypes": ((A, B.astype(np.float16)), {}, TypeError, "b must be float32, was float16"),
    "integers": ((A.astype(np.int32), B), {}, TypeError, "a must be float32, was int32"),
    "a vector": ((A[0], B), {}, ValueError, r"a must have 2 dimensions, had 1: its shape was \(7,\)"),
    "a batch": ((A, B[None]), {}, ValueError, r"b must have (2 dimensions, had 3|shape)"),
    "depths that differ": ((A, A), {}, ValueError, r"b must have shape \(7, any\), had \(5, 7\)"),
    "every other row": ((np.ones((10, 7), F32)[::2], B), {}, ValueError, "a must be contiguous in C or Fortran order"),
    "a part of the columns": ((A, np.ones((7, 6), F32)[:, :3]), {}, ValueError, "b must be contiguous in C or Fortran"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


class ReadOnly:
    """What says of itself that it lies on a GPU, and may not be written."""

    def __init__(self, x):
        interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (device.address(x), True), "version": 3}
        self.__cuda_array_interface__ = interface


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(5, 3\), had \(3, 5\)"):
        rung(A, B, out=device.empty((3, 5), F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        rung(A, B, out=device.empty((5, 3), np.float64))
    with pytest.raises(ValueError, match="out must be contiguous in C order"):
        rung(A, B, out=device.to_device(np.zeros((5, 3), F32, order="F")))
    with pytest.raises(ValueError, match="out must be writable, was a read-only array"):
        rung(A, B, out=ReadOnly(device.empty((5, 3), F32)))


@pytest.mark.parametrize("rung", [room.coalesced, room.tiled, room.coarsened], ids=lambda rung: rung.name)
def test_too_many_rows_for_the_grid(rung):
    a, b = device.empty((65535 * 32 + 1, 1), F32), np.ones((1, 1), F32)
    with pytest.raises(ValueError, match="the rows of a must be at most 2097120 for this rung, were 2097121"):
        rung(a, b)


def test_too_many_columns_for_the_grid():
    with pytest.raises(ValueError, match="the columns of b must be at most 2097120 for this rung, were 2097121"):
        room.naive(np.ones((1, 1), F32), device.empty((1, 65535 * 32 + 1), F32))


# --------------------------------------------------------------------------------------------------- the plain function


@pytest.mark.parametrize("name", INPUTS)
def test_the_plain_function_is_right(name, monkeypatch):
    """With the plans for one multiprocessor, and for a million. Neither is kept: no GPU has so many."""
    monkeypatch.setattr(plans, "plan", plans.plan.__wrapped__)
    here = dict(device.limits())
    for multiprocessors in (1, 10**6):
        monkeypatch.setattr(device, "limits", lambda count=multiprocessors: {**here, "multiprocessors": count})
        assert right(device.to_host(matmul.matmul(*INPUTS[name])), *INPUTS[name], exact(name))


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 40, 7), (1, 7, 300), (40, 1, 7), (5, 1, 300), (1, 5, 1), (5, 1, 1), (1, 1, 33), (1, 4, 0)]
)
def test_a_product_with_a_vector_is_one_of_the_room_for_them(shape, orders):
    (m, n, k), rng = shape, np.random.default_rng(5)
    a, b = rng.standard_normal((m, k), dtype=F32), rng.standard_normal((k, n), dtype=F32)
    given = [laid_out(x, order == "F", 0) for x, order in zip((a, b), orders, strict=True)]
    out = device.to_device(np.full((m, n), np.nan, F32))
    result, reports = watch(matmul.matmul, *given, out=out)
    assert right(result, a, b, a.astype(np.float64) @ b.astype(np.float64))
    assert hazards(reports) == []
    if k:
        assert {report.kernel for report in reports} <= {kernel.__name__ for kernel in matvec.LADDER[-1].kernels}


def test_operands_that_the_last_room_refuses_go_to_the_ladder(monkeypatch):
    monkeypatch.setattr(fitted, "MOST_ELEMENTS", 10)
    a, b = np.ones((4, 3), F32), np.ones((3, 5), F32)
    with pytest.raises(ValueError, match=r"^a must have at most 10 elements"):
        fitted.split_k(a, b)
    assert (device.to_host(matmul.matmul(a, b)) == 3).all()


# ------------------------------------------------------------------------------------------------------------- counters
#
# A warp's request for 32 neighbouring float32 is 4 sectors, for one element 1, for a column of a wide matrix 32.


def counters_of(rung, m, n, k, transposed=(False, False)):
    """Counters of the rung's kernel, which must be all that it launches."""
    a = laid_out(np.ones((m, k), F32), transposed[0], 0)
    b = laid_out(np.ones((k, n), F32), transposed[1], 0)
    result, (report,) = observe(rung, a, b)
    assert (result == k).all()
    assert report.counters["flops"] == room.cost(m, n, k).flops
    assert report.counters["flops_f64"] == report.counters["atomic_requests"] == 0
    return report.counters


@interpreter_only
def test_counters_of_naive():
    found = counters_of(room.naive, 32, 32, 32)
    # 32 warps, 32 steps: a column of A, which is 128 bytes a row, and one element of B.
    assert found["global_load_requests"] == 32 * 32 * 2
    assert found["global_load_sectors"] == 32 * 32 * (32 + 1)
    assert found["global_store_sectors"] == 32 * 32
    # Transposed, A's column lies together.
    assert counters_of(room.naive, 32, 32, 32, (True, False))["global_load_sectors"] == 32 * 32 * (4 + 1)


@interpreter_only
def test_counters_of_coalesced():
    found = counters_of(room.coalesced, 32, 32, 32)
    assert found["global_load_requests"] == 32 * 32 * 2
    assert found["global_load_sectors"] == 32 * 32 * (1 + 4)
    assert found["global_store_sectors"] == 32 * 4
    assert counters_of(room.coalesced, 64, 32, 32)["global_load_sectors"] == 2 * 32 * 32 * (1 + 4)


@interpreter_only
def test_counters_of_tiled():
    found = counters_of(room.tiled, 64, 64, 64)
    steps = 4 * 2  # 4 blocks, 2 steps each
    assert found["global_load_requests"] == steps * 2 * 32
    assert found["global_load_sectors"] == steps * 2 * 32 * 4  # 32 times fewer elements than coalesced
    assert found["shared_store_requests"] == found["shared_store_wavefronts"] == steps * 2 * 32
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == steps * 32 * 32 * 2
    assert found["barriers"] == steps * 2


@interpreter_only
def test_counters_of_coarsened():
    found = counters_of(room.coarsened, 64, 64, 64)
    steps, warps = 4 * 2, 4
    assert found["global_load_sectors"] == steps * 2 * 32 * 4  # as tiled
    # One value of B and eight of A for eight multiply-adds, where tiled loads sixteen.
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == steps * warps * 32 * (1 + 8)
    assert found["barriers"] == steps * 2


@interpreter_only
def test_counters_of_register_tiled():
    found = counters_of(room.register_tiled, 128, 128, 8)
    warps = 4
    assert found["global_load_requests"] == 2 * 8 * warps  # of each tile, 8 elements a thread
    assert found["global_load_sectors"] == 2 * 128 * 8 // 8
    # A's tile is stored down its columns: the pitch keeps the 32 lanes in 32 banks.
    assert found["shared_store_requests"] == found["shared_store_wavefronts"] == 2 * 8 * warps
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == 8 * warps * (8 + 16)
    assert found["barriers"] == 2
    # A warp's 32 elements of C are 8 in each of 4 rows: 4 sectors.
    assert found["global_store_requests"] == 128 * warps
    assert found["global_store_sectors"] == 128 * 128 // 8


@interpreter_only
@pytest.mark.parametrize("rung", VECTORS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("transposed", [(False, False), (True, True)], ids=["C", "F"])
def test_counters_of_the_vectorised_fast_path(rung, transposed):
    found = counters_of(rung, 128, 128, 16, transposed)
    steps, warps = 2, 4
    assert found["global_load_requests"] == steps * 2 * 2 * warps  # a quarter of register_tiled's
    assert found["global_store_requests"] == 128 // 4 * warps
    assert found["global_store_sectors"] == 128 * 128 // 8
    assert found["shared_load_requests"] == steps * 8 * warps * (2 + 4)
    # A request of 16 bytes a lane goes half a warp at a time, since the lanes of each 2 x 2 square share, and there are
    # no bank conflicts.
    assert found["shared_load_wavefronts"] == 2 * found["shared_load_requests"]
    assert found["shared_load_bank_conflicts"] == 0
    if transposed == (False, False):
        # A row of A gives a warp two whole vectors of its tile: 16 rows, 32 bytes of each. B's row is one piece.
        assert found["global_load_sectors"] == steps * 2 * 128 * 8 // 8


@interpreter_only
@pytest.mark.parametrize("rung", VECTORS, ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    "shape, copies", [((128, 128, 16), 0), ((127, 128, 8), 0), ((128, 127, 8), 3), ((128, 128, 7), 3)]
)
def test_copies_are_made_only_where_vectors_do_not_fit(rung, shape, copies):
    m, n, k = shape
    rng = np.random.default_rng(m * n)
    a, b = rng.standard_normal((m, k), dtype=F32), rng.standard_normal((k, n), dtype=F32)
    result, reports = observe(rung, a, b)
    assert right(result, a, b, a.astype(np.float64) @ b.astype(np.float64))
    assert [report.kernel for report in reports].count("copy_kernel") == copies
    assert len(reports) == copies + 1


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, name, library):
    module = pytest.importorskip(library)
    a, b = INPUTS[name]
    if library == "cupy":
        given = [module.asarray(x) for x in (a, b)]
        expected = module.asnumpy(given[0] @ given[1])
    else:
        module.backends.cuda.matmul.allow_tf32 = False
        given = [module.from_numpy(x).cuda() for x in (a, b)]
        expected = (given[0] @ given[1]).cpu().numpy()
    result = device.to_host(rung(*given))
    finite = np.isfinite(exact(name))
    # Each is as close to the exact product as float32 can be expected to be.
    assert (np.abs(result[finite] - expected[finite]) <= 2 * tolerance(a, b)[finite]).all()


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (1000, 1111, 999), (4096, 33, 517)])
def test_a_large_product_on_the_gpu(rung, shape):
    cupy = pytest.importorskip("cupy")
    m, n, k = shape
    random = cupy.random.RandomState(0)
    a, b = random.standard_normal((m, k), dtype=F32), random.standard_normal((k, n), dtype=F32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    allowed = (k + 1) * np.finfo(F32).eps / 2 * (abs(a).astype(np.float64) @ abs(b).astype(np.float64))
    assert bool((abs(cupy.asarray(rung(a, b)) - expected) <= allowed).all())
