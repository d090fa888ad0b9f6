"""Long rows on clusters of blocks: results, arguments, and what each rung reads, launches and passes between blocks."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import tests.support.clusters  # noqa: F401 (lets Numba compile these kernels without a GPU)
from pmpp import cuda
from pmpp.kernels import clusters
from pmpp.kernels.clusters import ladder as room
from pmpp.kernels.normalisation import moments
from pmpp.runtime import device
from tests.kernels.clusters.wrong import RIGHT
from tests.kernels.clusters.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

INPUTS = room.inputs()
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
needs_clusters = pytest.mark.skipif(room.most_blocks() == 1, reason="needs a GPU with clusters")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, weight, bias, eps=1e-5):
    with np.errstate(all="ignore"):
        expected, allowed = room.reference(x, weight, bias, eps), room.tolerance(x, weight, bias, eps)
    return judge.right(result, expected, allowed, x.dtype)


def faults(normalise, names):
    """All that is wrong with a layer normalisation on the first input where anything is, worst first."""
    for name in names:
        x, weight, bias = INPUTS[name]
        arguments = x, weight, bias, 1e-3
        judged = judge.judge(normalise, arguments, lambda result, arguments=arguments: right(result, *arguments))
        found = judged.faults
        found += ["traffic"] * (total(judged.reports, "global_store_bytes") > 2 * x.nbytes + 1024)
        if found:
            return found
    return []


SOME = ["a row", "short", "odd", "many", "one"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@needs_clusters
@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert faults(rung, SOME) == []


@each_rung
@hypothesis.given(
    rows=st.integers(0, 9),
    columns=st.one_of(st.integers(1, 40), st.integers(1, 20_000)),
    whole=st.booleans(),
    offsets=st.tuples(*[st.integers(0, 4)] * 4),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_shape_and_alignment(rung, rows, columns, whole, offsets, seed):
    if whole:
        columns, offsets = 4 * columns, tuple(4 * (offset // 4) for offset in offsets)
    rng = np.random.default_rng(seed)

    def made(offset, *shape):
        flat = rng.standard_normal(offset + math.prod(shape), dtype=F32)
        if not math.prod(shape):
            return np.zeros(shape, F32), device.to_device(np.zeros(shape, F32))
        return flat[offset:].reshape(shape), device.to_device(flat)[offset:].reshape(shape)

    (x, given), (weight, w), (bias, b) = (
        made(offsets[0], rows, columns),
        made(offsets[1], columns),
        made(offsets[2], columns),
    )
    out = made(offsets[3], rows, columns)[1]
    rung(given, w, b, out=out)
    assert right(out.copy_to_host(), x, weight, bias)


@each_rung
@pytest.mark.parametrize("name", ["odd", "short", "three blocks", "a column"])
def test_the_moments_of_the_rows_are_returned_if_asked_for(rung, name):
    x, weight, bias = INPUTS[name]
    out, mean, invstd = rung(x, weight, bias, 1e-3, return_moments=True)
    assert right(device.to_host(out), x, weight, bias, 1e-3)
    rows = x.astype(np.float64)
    mean_error, var_error = (error[:, 0] for error in moments.moment_errors(rows))
    square = rows.var(axis=1) + 1e-3
    assert judge.right(device.to_host(mean), rows.mean(axis=1), mean_error)
    assert judge.right(device.to_host(invstd), square**-0.5, square**-0.5 * (var_error / square + 4 * 2.0**-24))


@each_rung
def test_output_and_stream(rung):
    x, weight, bias = INPUTS["odd"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(x, weight, bias, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, weight, bias)


@each_rung
def test_many_rows_for_each_cluster(rung, monkeypatch):
    """Clusters that take row after row: a late block must not find the sums of the next row."""
    monkeypatch.setattr(room, "resident_clusters", lambda *_: 2)
    rng = np.random.default_rng(4)
    x, weight, bias = (rng.standard_normal(shape, dtype=F32) for shape in ((13, 8200), 8200, 8200))
    assert right(device.to_host(rung(x, weight, bias)), x, weight, bias)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "expected"),
    [
        (1, 100, F32, "read_twice"),
        (1, 2**15, F32, "read_twice"),
        (1, 33_000, np.float16, "read_twice"),
        (128, 2**15 + 4, F32, "in_registers"),
        (1, 2**18, F32, "in_registers"),
        (1, 2**18 + 4, F32, "read_twice"),
        (129, 2**17, F32, "pipelined"),
        (129, 2**17 + 4, F32, "read_twice"),
    ],
)
def test_layer_norm_takes_the_rung_for_the_rows(monkeypatch, rows, columns, dtype, expected):
    monkeypatch.setattr(type(room.pipelined), "run", lambda rung, p: rung.name)
    x, parameter = device.empty((rows, columns), dtype), device.empty(columns, F32)
    assert clusters.layer_norm(x, parameter, parameter) == expected


def test_layer_norm():
    x, weight, bias = INPUTS["three blocks"]
    assert right(device.to_host(clusters.layer_norm(x, weight, bias)), x, weight, bias)


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones((4, 5), F32), np.ones(5, F32)
BAD = {
    "another dtype": ((X.astype(np.float64), C, C), TypeError, "x must be float32, float16 or bfloat16, was float64"),
    "a vector": ((C, C, C), ValueError, "x must have 2 dimensions, had 1"),
    "no columns": ((X[:, :0].copy(), C[:0], C[:0]), ValueError, r"x must have a column, had shape \(4, 0\)"),
    "another weight": ((X, C[:2], C), ValueError, r"weight must have shape \(5,\), had \(2,\)"),
    "eps": ((X, C, C, -1e-5), ValueError, "eps must not be negative, was -1e-05"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------- what is launched, and read


def launched(rung, rows, columns, dtype=F32):
    """Reports of the launches, once the result has been found right."""
    rng = np.random.default_rng(3)
    x, weight, bias = (rng.standard_normal(shape, dtype=F32) for shape in ((rows, columns), columns, columns))
    x = x.astype(dtype)
    result, reports = observe(rung, x, weight, bias)
    assert right(result, x, weight, bias)
    return reports


@interpreter_only
@pytest.mark.parametrize(
    "name, columns, kernels",
    [
        ("in_shared_memory", 16_384, ["in_shared_memory_kernel"]),
        ("in_shared_memory", 16 * 49_152 + 1, ["parts_kernel", "long_rows_kernel"]),
        ("in_registers", 16_385, ["in_registers_kernel"]),
        ("in_registers", 2**19 + 4, ["parts_kernel", "long_rows_kernel"]),
        ("pipelined", 8192, ["pipelined_kernel"]),
        ("pipelined", 8193, ["in_registers_kernel"]),  # no whole vectors
        ("pipelined", 2**18 + 4, ["in_registers_kernel"]),
    ],
)
def test_the_way_that_a_row_takes(name, columns, kernels):
    assert [report.kernel for report in launched(getattr(room, name), 1, columns)] == kernels


@interpreter_only
def test_bfloat16_is_not_copied_ahead():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    (report,) = launched(room.pipelined, 2, 4096, bfloat16)
    assert report.kernel == "in_registers_kernel"


def test_a_gpu_without_clusters_reads_twice(monkeypatch):
    limits = {**device.limits(), "compute_capability": (8, 0)}
    monkeypatch.setattr(device, "limits", lambda: limits)
    assert room.most_blocks() == 1
    x, weight, bias = INPUTS["three blocks"]
    for rung in room.LADDER:
        result, reports = observe(rung, x, weight, bias)
        assert right(result, x, weight, bias)
        assert not any("cluster" in report.kernel or "pipelined" in report.kernel for report in reports)


@pytest.mark.parametrize(("capability", "most"), [((7, 5), 1), ((8, 9), 1), ((9, 0), 16), ((10, 0), 16), ((12, 0), 8)])
def test_how_many_blocks_a_cluster_may_have(monkeypatch, capability, most):
    monkeypatch.setattr(device, "limits", lambda: {"compute_capability": capability})
    assert room.most_blocks() == most


def test_the_plan_of_a_row():
    assert room.plan(1, 1, 32, 16) == room.Kept(1, 512, 1)
    assert room.plan(2**14, 4, 32, 16) == room.Kept(1, 512, 8)
    assert room.plan(2**14 + 4, 4, 32, 16) == room.Kept(2, 512, 5)
    assert room.plan(2**18 + 1, 1, 32, 16) == room.Kept(16, 1024, 17)
    assert room.plan(2**19, 4, 32, 16) == room.Kept(16, 1024, 8)
    assert room.plan(2**19 + 1, 1, 32, 16) is None
    assert room.plan(2**18, 4, 32, 8) == room.Kept(8, 1024, 8)
    assert room.plan(4, 4, 32, 1) is None


# A row of 2^16 float32, for a cluster of several blocks. The row, weight and bias are read once. The cluster's sums are
# all that passes between blocks.
@interpreter_only
@pytest.mark.parametrize(
    "name, times, blocks, barriers",
    [("in_shared_memory", 1, 4, 2 + 3), ("in_registers", 1, 4, 2 + 3), ("pipelined", 1, 8, 2 + 3)],
)
def test_a_row_is_read_once_and_sums_alone_pass_between_blocks(name, times, blocks, barriers):
    (report,) = launched(getattr(room, name), 1, 2**16)
    size = report.grid[0]
    assert size == blocks
    assert report.counters["global_load_bytes"] == (times + 2) * 4 * 2**16
    assert report.counters["global_store_bytes"] == 4 * 2**16
    threads = report.block[0]
    reads = 2 * size * size * threads  # each thread reads all sums, twice
    told = 2 * size * size  # a block tells each one its sum, twice
    assert report.counters["cluster_bytes"] == 4 * (reads if name == "in_shared_memory" else told)
    assert report.counters["barriers"] == barriers * size


@interpreter_only
def test_reading_twice_reads_twice():
    reports = launched(room.read_twice, 1, 2**16)
    assert total(reports, "global_load_bytes") >= (2 + 2) * 4 * 2**16


@interpreter_only
def test_weight_and_bias_are_read_once_for_all_rows_of_a_cluster(monkeypatch):
    monkeypatch.setattr(room, "resident_clusters", lambda *_: 1)
    (report,) = launched(room.pipelined, 6, 4096)
    assert report.counters["global_load_bytes"] == (6 + 2) * 4 * 4096


def test_the_local_arrays_are_registers_in_ptx(ptx):
    """Whether ptxas spills some of them, with 64 registers, only a GPU says."""
    from pmpp.kernels.normalisation.layernorm import Returned

    x, v = np.zeros((4, 2**17), F32), np.zeros(2**17, F32)
    rest = 8, v, v, F32(1e-5), Returned(v, v, False), x
    for kernel in (room.in_registers_kernel, room.pipelined_kernel):
        assert ".local" not in ptx(kernel, x, moments.LIKE[4], *rest, cc=room.CAPABILITY)


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
def test_torch_agrees_on_the_gpu(rung):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    for shape in ((3, 2**17), (64, 40_004), (200, 2**15), (1, 2**18)):
        x, weight, bias = (rng.standard_normal(s, dtype=F32) for s in (shape, shape[1], shape[1]))
        given = [torch.from_numpy(array).cuda() for array in (x, weight, bias)]
        expected = torch.nn.functional.layer_norm(given[0], x.shape[1:], *given[1:]).cpu().numpy()
        result = device.to_host(rung(*given))
        assert (np.abs(result - expected) <= 2 * room.tolerance(x, weight, bias)).all(), shape
