"""Polynomial: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.memory_or_compute import polynomial as room
from pmpp.kernels.memory_or_compute import polynomial_workloads as workloads
from pmpp.runtime import device
from tests.kernels.memory_or_compute.wrong_polynomial import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, c):
    return judge.right(result, room.reference(x, c), room.tolerance(x, c))


def faults(evaluate):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(evaluate, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return traffic(evaluate)


def traffic(evaluate):
    """Whether a warp's loads of 32 neighbours, and its stores, touch more than the 4 sectors that they need."""
    x, c = np.ones(4096, F32), np.ones(3, F32)
    _, reports = observe(evaluate, device.to_device(x), device.to_device(c))
    loads, stores = (total(reports, f"global_{what}_sectors") for what in ("load", "store"))
    requests = total(reports, "global_load_requests"), total(reports, "global_store_requests")
    return ["traffic"] * (loads > 4 * requests[0] or stores > 4 * requests[1])


@interpreter_only
@each_rung
def test_a_rung_moves_no_more_than_it_needs(rung):
    """Its results, and that it has no hazard, are checked by tests/contract/test_rooms.py."""
    assert traffic(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@hypothesis.given(n=st.integers(0, 40), terms=st.integers(1, 60), seed=st.integers(0, 99))
def test_the_reference_is_numpys_polynomial(n, terms, seed):
    rng = np.random.default_rng(seed)
    x, c = rng.uniform(-1.5, 1.5, n).astype(F32), rng.standard_normal(terms, dtype=F32)
    exact = np.polynomial.Polynomial(c[::-1].astype(np.float64))(x.astype(np.float64))
    terms_of_x = np.polynomial.Polynomial(abs(c[::-1]).astype(np.float64))(abs(x).astype(np.float64))
    assert np.all(abs(room.reference(x, c) - exact) <= 2 * terms * 2.0**-52 * terms_of_x)


def test_the_reference_holds_what_float32_holds():
    x = np.array([1e20, -1e20, 2, 1e300], np.float64)
    assert room.reference(x, np.ones(4, F32)).tolist() == [np.inf, -np.inf, 15, np.inf]


@each_rung
@hypothesis.given(
    n=st.integers(0, 2 * room.EACH * room.BLOCK + 1),
    terms=st.integers(1, 20),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=10)
def test_any_length_degree_and_alignment(rung, n, terms, offsets, seed):
    rng = np.random.default_rng(seed)
    x, c = rng.standard_normal(n, dtype=F32), rng.standard_normal(terms, dtype=F32)
    result = result_of(rung, misaligned(x, offsets[0]), misaligned(c, offsets[1]))
    assert right(result, x, c)


@each_rung
def test_a_constant_is_written_everywhere(rung):
    out = device.to_device(np.full(3000, np.nan, F32))
    rung(np.ones(3000, F32), F32([7]), out=out)
    assert (out.copy_to_host() == 7).all()


@each_rung
def test_output_and_stream(rung):
    x, c = room.inputs()["a block of eights +1"]
    out = device.to_device(np.full_like(x, np.nan))
    stream = cuda.stream()
    assert rung(x, c, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, c)


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones(5, F32), np.ones(3, F32)
BAD = {
    "elements of float64": ((X.astype(np.float64), C), {}, TypeError, "x must be float32, was float64"),
    "whole coefficients": ((X, np.ones(3, np.int32)), {}, TypeError, "c must be float32, was int32"),
    "a matrix": ((np.ones((2, 3), F32), C), {}, ValueError, r"x must have 1 dimension, had 2: its shape was \(2, 3\)"),
    "a table of coefficients": ((X, np.ones((2, 3), F32)), {}, ValueError, "c must have 1 dimension, had 2"),
    "a number": ((X, 2.0), {}, TypeError, "c must be a NumPy array or an array .*, was float"),
    "no coefficient": ((X, C[:0]), {}, ValueError, "c must have at least 1 coefficient, had none"),
    "every other": ((np.ones(10, F32)[::2], C), {}, ValueError, "x must be contiguous in C order, had .* copy it"),
    "backwards": ((X, C[::-1]), {}, ValueError, "c must be contiguous in C order"),
    "out on the host": ((X, C), {"out": X.copy()}, TypeError, "out must be a device array, was a NumPy array"),
    "a stream's name": ((X, C), {"stream": "fast"}, TypeError, "stream must be 0.*, was 'fast'"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(5,\), had \(6,\)"):
        rung(X, C, out=device.empty(6, F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        rung(X, C, out=device.empty(5, np.float64))


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, n, degree):
    """Requests of loads and stores, and bytes of both. A warp's request for 32 neighbours is 128 bytes."""
    x, c = np.full(n, 0.5, F32), np.ones(degree + 1, F32)
    result, (report,) = observe(rung, x, c)
    assert right(result, x, c)
    counters = report.counters
    assert counters["flops_f64"] == counters["divergent_branches"] == counters["barriers"] == 0
    names = "load_requests", "store_requests", "load_bytes", "store_bytes", "load_sectors"
    return counters["flops"], *(counters[f"global_{name}"] for name in names)


@interpreter_only
@pytest.mark.parametrize("degree", [0, 1, 7])
def test_counters_through_memory(degree):
    n, warps = 2048, 64
    # A load of c[0]; in each step one of out, of x and of c. All lanes load the same coefficient, from one sector.
    loads, stores = warps * (1 + 3 * degree), warps * (1 + degree)
    expected = (2 * degree * n, loads, stores, 128 * loads, 128 * stores, warps * (1 + 9 * degree))
    assert counted(room.through_memory, n, degree) == expected


@interpreter_only
@pytest.mark.parametrize("degree", [0, 1, 7])
def test_counters_in_a_register(degree):
    n, warps = 2048, 64
    loads = warps * (2 + degree)
    expected = (2 * degree * n, loads, warps, 128 * loads, 128 * warps, warps * (4 + 1 + degree))
    assert counted(room.in_a_register, n, degree) == expected


@interpreter_only
@pytest.mark.parametrize("degree", [0, 1, 7])
def test_counters_of_eight_each(degree):
    n, warps = 2048, 8
    loads = warps * (8 + 1 + degree)  # a coefficient is loaded once for eight elements
    expected = (2 * degree * n, loads, 8 * warps, 128 * loads, 4 * n, warps * (8 * 4 + 1 + degree))
    assert counted(room.eight_each, n, degree) == expected


@interpreter_only
def test_eight_each_works_on_lanes_beyond_the_end():
    """They are given a 0 and compute with it, as a warp would in any case; they load and store nothing."""
    x, c = np.full(1, 0.5, F32), np.ones(4, F32)
    _, (report,) = observe(room.eight_each, x, c)
    assert report.counters["global_store_bytes"] == 4
    assert report.counters["global_load_bytes"] == 4 + 256 * 4 * 4
    assert report.counters["flops"] == 2 * 3 * 8 * 256


# --------------------------------------------------------------------------------------------- what `make bench` checks


@pytest.mark.skipif(device.on_gpu(), reason="there the check takes CuPy's arrays, and make bench runs it")
@pytest.mark.parametrize("degree", [1, 40])
def test_the_check_of_the_bench_knows_right_from_wrong(degree):
    rng = np.random.default_rng(degree)
    x, c = rng.uniform(-1, 1, 5000).astype(F32), rng.standard_normal(degree + 1, dtype=F32)
    result = device.to_host(room.eight_each(x, c))
    error, tolerance = workloads.verify(result, x, c)
    assert error <= tolerance
    for wrong in (result[:-1], result * F32(1.01), np.polyval(c[::-1], x), np.full_like(x, np.nan)):
        error, tolerance = workloads.verify(wrong, x, c)
        assert not error <= tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("degree", [1, 2, 40])
def test_torch_by_a_call_for_each_degree_agrees(degree):
    torch = pytest.importorskip("torch")
    x, c = (np.random.default_rng(3).uniform(-1, 1, n).astype(F32) for n in (5000, degree + 1))
    out = torch.empty(5000, device="cuda")
    workloads.by_torch(torch, torch.from_numpy(x).cuda(), torch.from_numpy(c).cuda(), out)
    assert right(out.cpu().numpy(), x, c)
