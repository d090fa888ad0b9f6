"""Nothing in the interpreter depends on the width of NumPy's default integer."""

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import pmpp.simt
from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.values import dtypes
from tests.support import versus
from tests.support.widths import Narrow, unsaid

FILES = sorted(Path(pmpp.simt.__file__).parent.rglob("*.py"))
LEVELS = ("run", "count", "check")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_width_is_said(path):
    assert [f"{path}:{line}: {text}" for line, text in unsaid(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "np.arange(n)",
        "np.arange(0, n, 2)",
        "np.full(n, 1)",
        "np.array([1, 2])",
        "x.sum()",
        "x.sum(axis=1)",
        "np.cumsum(x)",
        "x.take(at)",
        "x.take(at[0], axis=1)",
        "np.bincount(at % 32)",
        "np.choose(turn, [a, b])",
        "np.repeat(x, np.diff(at))",
        "np.where(a == 0, np.iinfo(a.dtype).min, 0)",
        "np.where(a < 0, -1, 1)",
        "np.int_",
        "np.uint(3)",
    ],
)
def test_what_leaves_a_width_open_is_found(text):
    assert [found for _, found in unsaid(text)] == [text.removesuffix("(3)")]


@pytest.mark.parametrize(
    "text",
    [
        "np.arange(n, dtype=np.int64)",
        "np.full(n, 1, np.int64)",
        "np.array(x)",
        "x.sum(dtype=np.int64)",
        "x.take(as_intp(at), axis=1)",
        "turns = dtypes.as_intp(x)[()]\nnp.choose(turns, [a, b])",
        "np.repeat(x, parts)",
        "np.where(a < 0, -1.0, 1.0)",
        "np.where(a < 0, a, 0)",
        "np.where(a < 0)",
        "sum(x)",
        "math.prod(shape)",
    ],
)
def test_what_says_it_is_not(text):
    assert list(unsaid(text)) == []


# -- in a NumPy whose default integer has 32 bits --------------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch):
    """All of the interpreter works with a NumPy whose default integer has 32 bits."""
    names = [found.name for found in pkgutil.walk_packages(pmpp.simt.__path__, "pmpp.simt.")]
    numpy = Narrow()
    monkeypatch.setattr(dtypes, "INTP", np.dtype(numpy.intp))
    for module in map(importlib.import_module, names):
        if getattr(module, "np", None) is np:
            monkeypatch.setattr(module, "np", numpy)


def test_the_narrow_numpy_is_narrow():
    narrow = Narrow()
    assert narrow.arange(3).dtype == narrow.nonzero(np.ones(2, np.bool_))[0].dtype == narrow.intp == np.int32
    assert narrow.arange(3, dtype=np.int64).dtype == narrow.array(np.int64([0, 1])).dtype == np.int64
    assert narrow.array([1, 2]).dtype == narrow.full(2, 1).dtype == narrow.where([True], 1, 0).dtype == np.int32
    assert narrow.flatnonzero([0, 1]).dtype == narrow.argsort([2, 1]).dtype == np.int32
    for call in (narrow.bincount, lambda at: narrow.take([1, 2], at), lambda at: narrow.repeat([1, 2], at)):
        call(np.array([1, 0], np.int32))
        with pytest.raises(TypeError, match="cannot cast array data from int64 to int32"):
            call(np.array([1, 0], np.int64))


@pytest.mark.parametrize("level", LEVELS)
def test_the_kernels_of_the_speed_comparison_in_it(narrow, level):
    assert len(versus.in_interpreter(level, repeats=1)) == 4  # raises if a result is wrong


@cuda.jit(device=True)
def weight(x):
    return np.float32(2) if x > 0 else 1


@cuda.jit
def of_everything(x, z, counts, out, last):
    """Loads and stores of all kinds, divergence, atomics, warp operations, local and shared memory."""
    tile = cuda.shared.array((2, 64), np.float64)
    own = cuda.local.array(3, np.int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    for k in range(3):
        own[k] = i * k
    tile[0, t] = x[i, 1] * weight(x[i, 0]) + z[i].imag
    cuda.syncthreads()
    total = tile[0, 63 - t] + own[2]
    if t % 3 == 0:
        total += math_of(t)
        tile[1, t] = cuda.popc(t) + cuda.clz(t)
    old = cuda.atomic.add(counts, i % 5, 1)
    cuda.atomic.max(counts, 5, i)
    cuda.atomic.add(last, 0, x[i, 0])
    total += cuda.shfl_down_sync(0xFFFFFFFF, t, 1) + cuda.syncthreads_count(t % 2)
    total += cuda.ballot_sync(0xFFFFFFFF, t > 40) + cuda.match_any_sync(0xFFFFFFFF, t // 7)
    out[i] = total + min(old, 0)


@cuda.jit(device=True)
def math_of(t):
    return cuda.libdevice.sinpi(t / 4) + cuda.libdevice.jn(3, 2.0e4 + t) + round(t / 3) + int(t / 7)


def ran(level, schedule="lockstep"):
    n = 192
    x = np.linspace(-2, 2, 2 * n).reshape(n, 2)
    args = x, x[:, 0] + 3j * x[:, 1], np.zeros(6, np.int32), np.zeros(n), np.zeros(1)
    trace = level != "run"
    report = simt.profile(of_everything, 3, 64, args, level=level, schedule=schedule, seed=1, trace=trace)
    heat = [a.tolist() for a in report.trace.touched("x")] if trace else None
    return [a.tolist() for a in args[2:]], report.counters, [str(h) for h in report.hazards], str(report), heat


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("schedule", ["lockstep", "warps", "shuffled"])
def test_results_counters_and_findings_are_the_same_in_it(level, schedule, request):
    wide = ran(level, schedule)
    request.getfixturevalue("narrow")
    assert ran(level, schedule) == wide


@cuda.jit
def waits(turn, out):
    while cuda.atomic.add(turn, 0, 0) != cuda.blockIdx.x:
        pass
    out[cuda.blockIdx.x] = cuda.clz(cuda.blockIdx.x) + cuda.int_(1)
    cuda.threadfence()
    cuda.atomic.add(turn, 0, 1)


def test_threads_that_wait_and_races_in_it(narrow):
    out = cuda.device_array(5, np.int64)
    assert simt.profile(waits, 5, 1, (np.zeros(1, np.int32), out), level="check").hazards == []
    assert out.copy_to_host().tolist() == [33, 32, 31, 31, 30]
    part = out[2:]
    seen = cuda.from_cuda_array_interface(part.__cuda_array_interface__)
    assert seen.copy_to_host().tolist() == [31, 31, 30]

    @cuda.jit
    def race(x):
        x[0] = cuda.grid(1)

    found = simt.profile(race, 2, 32, (np.zeros(1, np.int64),), level="check").hazards
    assert [h.kind for h in found] == ["race"]


def test_numbas_long_types_have_64_bits():
    assert [kind.dtype for kind in (cuda.int_, cuda.long_, cuda.intp)] == [np.int64] * 3
    assert [kind.dtype for kind in (cuda.uint, cuda.ulong, cuda.uintp)] == [np.uint64] * 3
