"""The sum of few numbers: exact on whole ones, and which vectors it is for."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels import reduction
from pmpp.kernels.reduction import few
from pmpp.runtime import device
from tests.support.wrong import misaligned, observe, result_of

F32 = np.float32
SIZES = [4, 5, 127, 128, 512, 513, 1000, 2048, 2049, 4096, 4099, 8191, 16383, 16384]


@pytest.mark.parametrize("n", SIZES)
def test_one_lost_or_doubled_number_shows(n):
    x = np.random.default_rng(n).integers(1, 1000, n).astype(F32)  # every partial sum is exact
    result = result_of(few.sum_of_few, misaligned(x, 4))
    assert result.tolist() == [x.sum(dtype=np.int64)]


def test_what_is_not_finite_is_not_lost():
    for place in (0, 1, 2000, 4998):
        x = np.ones(4999, F32)
        x[place] = np.nan
        assert np.isnan(device.to_host(few.sum_of_few(device.to_device(x)))).all()
        x[place] = -np.inf
        assert device.to_host(few.sum_of_few(device.to_device(x))).tolist() == [-np.inf]


@pytest.mark.skipif(device.on_gpu(), reason="observes what the interpreter runs")
def test_which_sums_are_of_few():
    def kernels(x, op="sum"):
        return [report.kernel for report in observe(getattr(reduction, op), x)[1]]

    name = "sum_of_few_kernel"
    assert (
        kernels(np.ones(few.MOST, F32)) == kernels(np.ones(4, F32)) == kernels(misaligned(np.ones(9, F32), 4)) == [name]
    )
    for x in (np.ones(few.MOST + 1, F32), np.ones(3, F32), np.ones(64), np.ones(64, np.int32), np.ones((8, 8), F32)):
        assert name not in kernels(x)
    assert name not in kernels(misaligned(np.ones(64, F32), 1))
    assert kernels(np.ones(64, F32), "max") == ["deterministic_kernel"]
    _, (report,) = observe(reduction.sum, np.ones(4096, F32))
    assert (report.counters["barriers"], report.counters["global_load_requests"]) == (1, 4096 // 128)


def test_the_stream_is_used():
    x, stream = device.to_device(np.arange(100, dtype=F32)), cuda.stream()
    result = reduction.sum(x, stream=stream)
    stream.synchronize()
    assert (result.shape, result.copy_to_host()) == ((), 4950)
