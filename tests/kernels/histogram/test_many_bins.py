"""Many bins: results, which rung counts what, and the counters of each against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import histogram as subject
from pmpp.kernels.histogram import ladder as histogram
from pmpp.kernels.histogram import many_bins as room
from pmpp.kernels.histogram import many_bins_workloads as workloads
from pmpp.runtime import device
from tests.kernels.histogram.test_histogram import right
from tests.kernels.histogram.wrong_many_bins import RIGHT
from tests.kernels.histogram.wrong_many_bins import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe

MOST, FEWEST = room.MOST_PRIVATE, room.FEWEST
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


@pytest.fixture
def small(monkeypatch):
    """A GPU that has no more shared memory than every one has: so few bins are shared out already."""
    limits = {"multiprocessors": 3, "max_shared_memory_per_multiprocessor": 50_000}
    monkeypatch.setattr(room.device, "limits", lambda: {"max_threads_per_multiprocessor": 2048, **limits})


def launched(rung, n, bins, weighted=False):
    """The kernel that counts, and its grid."""
    x = np.zeros(n, np.int32)
    _, reports = observe(rung, x, bins, None, np.zeros(n, np.float32) if weighted else None)
    (report,) = [report for report in reports if report.kernel != "clear_kernel"]
    return report.kernel, report.grid


def faults(function):
    """All that is wrong with a histogram on the first input where anything is, worst first."""
    rng = np.random.default_rng(30)
    bins, n = 1001, 40 * 512  # an odd number: the second part is shorter
    x, weights = rng.integers(-9, bins + 9, n).astype(np.int32), rng.standard_normal(n, dtype=np.float32)
    runs = np.repeat(x[: n // 512], 512)
    for arguments in ((x, bins), (x, bins, None, weights), (runs, bins, None, weights), (x[:70], bins)):
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return []


@each_rung
def test_a_rung_has_no_fault(rung):
    assert faults(rung) == []
    for name, arguments in room.inputs().items():
        found = judge.faults(rung, arguments, lambda result, arguments=arguments: right(result, *arguments))
        assert found == [], name


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=["one after another", "in runs"])
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@each_rung
@pytest.mark.parametrize("dtype", histogram.DTYPES)
@hypothesis.given(
    bins=st.sampled_from([MOST, MOST + 1, 2 * MOST, 4 * MOST, 4 * MOST + 1]),
    more=st.integers(-1, 5000),
    offset=st.integers(0, 17),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=4, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_any_type_alignment_and_number_of_bins(small, rung, dtype, bins, more, offset, weighted, seed):
    rng = np.random.default_rng(seed)
    n = FEWEST * bins + more
    if dtype.startswith("float"):
        x, range = rng.standard_normal(n).astype(dtype), (-1.5, 0.75)
    else:
        x, range = rng.integers(0, min(256, bins) if dtype == "uint8" else bins + 3, n).astype(dtype), None
    weights = rng.standard_normal(n, dtype=np.float32) if weighted else None
    result = device.to_host(rung(misaligned(x, offset), bins, range, weights))
    assert right(result, *((x, bins, range, weights) if weighted else (x, bins, range)))


@interpreter_only
@pytest.mark.parametrize("rest", [0, 1, 1023, 1024, 1025, 2500, 3072, 3500])
def test_the_last_of_the_loads_that_are_under_way_at_once(small, rest):
    """A block of each part takes 4096 elements in a round, and at last what is left of them."""
    bins, n = MOST + 1, 13 * 4096 + rest
    assert launched(room.in_parts, n, bins) == ("counts_kernel", (1, 2, 1))
    x = np.random.default_rng(rest).integers(0, bins, n).astype(np.int32)
    np.testing.assert_array_equal(device.to_host(room.in_parts(x, bins)), np.bincount(x, minlength=bins))


@pytest.mark.parametrize("kind", ["uniform", "words", "sorted", "equal"])
def test_as_many_bins_as_this_gpu_has_room_for(kind):
    for bins in (room.most_private(), room.most_private() + 1):
        (x,) = workloads.numbers(FEWEST * bins, bins, kind)(0)
        expected = np.bincount(device.to_host(x), minlength=bins)
        np.testing.assert_array_equal(device.to_host(subject.histogram(x, bins)), expected)


@interpreter_only
def test_which_kernel_counts(small):
    n = FEWEST * (4 * MOST + 1)
    counts, sums, globally = "counts_kernel", "sums_kernel", "aggregated_global_kernel"
    few = "copies_kernel"
    assert [launched(rung, n, MOST)[0] for rung in room.LADDER] == ["aggregated_kernel", few, few]
    assert [launched(rung, n, MOST + 1)[0] for rung in room.LADDER] == [globally, globally, counts]
    assert launched(room.in_parts, n, 4 * MOST, weighted=True)[0] == sums
    assert launched(room.in_parts, n, 4 * MOST + 1)[0] == globally
    assert launched(room.in_parts, FEWEST * (MOST + 1) - 1, MOST + 1)[0] == globally
    assert launched(room.in_parts, FEWEST * (MOST + 1), MOST + 1)[0] == counts


@interpreter_only
def test_one_block_has_what_this_gpu_gives_it():
    n, most = FEWEST * 13_000, room.most_private()
    assert launched(room.in_shared_memory, n, 13_000) == ("counts_kernel", (4, 1, 1))
    assert most == 58_112  # of an H200
    assert launched(room.in_shared_memory, FEWEST * most + 4, most + 1)[0] == "aggregated_global_kernel"


@interpreter_only
def test_counters_of_in_parts(small):
    """Each of two parts reads all elements, and all lanes of a warp count in one of them."""
    bins, n = 2 * MOST, 8 * MOST
    _, reports = observe(room.in_parts, np.repeat(np.arange(bins, dtype=np.int32), 4), bins)
    (found,) = [report.counters for report in reports if report.kernel == "counts_kernel"]
    assert found["global_load_requests"] == 2 * n / 32
    assert found["global_load_bytes"] == 2 * 4 * n
    assert found["atomic_lanes"] == n + bins  # an element, and each bin of the block that has it
    assert found["flops"] == 0


@interpreter_only
@pytest.mark.parametrize("weighted", [False, True])
def test_bins_without_elements_and_runs_cost_no_atomics(small, weighted):
    """An element is an atomic, and a thread's run of weights is one. Of all bins only one is flushed."""
    bins, n = 2 * MOST, 8 * MOST
    weights = np.ones(n, np.float32) if weighted else None
    _, reports = observe(room.in_parts, np.full(n, 5, np.int32), bins, None, weights)
    (found,) = [report.counters for report in reports if report.kernel != "clear_kernel"]
    assert found["atomic_lanes"] == (room.BLOCK if weighted else n) + 1


@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_no_block_counts_beyond_32_bits(monkeypatch, multiprocessors):
    grids = []

    class Kernel:
        def __getitem__(self, where):
            grids.append(where[0])
            return lambda *arguments: None

    class Long:
        size = 2**33 + 1

    more = {"max_shared_memory_per_multiprocessor": 233_472, "max_threads_per_multiprocessor": 2048}
    monkeypatch.setattr(room.device, "limits", lambda: {"multiprocessors": multiprocessors, **more})
    monkeypatch.setattr(room, "counts_kernel", Kernel())
    edges = 0, 65_535, 1, 65_536
    room.launch(histogram.Problem(None, x=Long, bins=65_536, stream=0, weighted=False, edges=edges), 2)
    assert grids[0][1] == 2
    assert -(-Long.size // grids[0][0]) < 2**31
