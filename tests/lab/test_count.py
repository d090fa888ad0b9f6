"""`lab.count`: a rung's counters, the same whether kernels run in the interpreter or on a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda, lab, simt
from pmpp.kernels.convolution_layer import direct
from pmpp.kernels.normalisation import batchnorm
from pmpp.kernels.reduction import ladder as reduction
from pmpp.kernels.vector_add import ladder as vector_add
from pmpp.lab.measure import count as counting
from pmpp.lab.measure import record
from pmpp.lab.teach import results
from pmpp.runtime import device


@pytest.fixture(params=["in this process", "in a second process"])
def anywhere(request, monkeypatch):
    """Both ways to count: the first is that of the interpreter, the second that of a GPU."""
    if request.param == "in a second process":
        monkeypatch.setattr(device, "on_gpu", lambda: True)
    elif device.on_gpu():
        pytest.skip("kernels run on a GPU")


@cuda.jit
def beyond_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1]


def beyond(x):
    out = device.to_device(np.zeros_like(x))
    beyond_kernel[1, 32](device.to_device(x), out)
    return out


def printing(x):
    print("printed", x)
    return x


def ending():
    os._exit(3)


def test_all_launches_are_counted(anywhere):
    x = np.random.default_rng(1).standard_normal((4, 3, 8, 8), dtype=np.float32)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    counted = lab.count(batchnorm.two_pass, x, ones, zeros)
    assert [report.kernel for report in counted.reports] == ["two_pass_kernel", "normalise_kernel"]
    for name in ("flops", "global_store_sectors", "warp_instructions"):
        each = [report.counters[name] for report in counted.reports]
        assert counted.counters[name] == sum(each)
        assert all(each)
    assert counted.counters["global_store_sectors"] >= x.nbytes // 32
    assert repr(counted) == "<Counted: 2 launches (two_pass_kernel[3, 1, 1], normalise_kernel[3, 1, 1])>"


def test_what_comes_back_lies_on_the_host(anywhere):
    x = np.arange(1000, dtype=np.float32)
    result = lab.count(reduction.shuffle, x, "max").result
    assert isinstance(result, np.ndarray)
    assert result.item() == 999


def test_both_ways_count_the_same(monkeypatch):
    x = np.random.default_rng(2).standard_normal(5000, dtype=np.float32)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    there = lab.count(reduction.vectorised, x, trace=True)
    here = counting._call("pmpp.kernels.reduction.ladder", "vectorised", (x,), {}, True) if not _gpu() else there
    assert there.counters == here.counters
    assert [report.by_line for report in there.reports] == [report.by_line for report in here.reports]
    heat = [report.trace.heat("x").reads for report in (there.reports[-1], here.reports[-1])]
    np.testing.assert_array_equal(*heat)
    assert heat[0].sum() == x.size


def _gpu():
    return device.backend().name == "numba"


def test_arguments_are_copies(anywhere):
    x = np.arange(100, dtype=np.float32)
    y, out = x.copy(), device.to_device(np.full(100, -1, np.float32))
    counted = lab.count(vector_add.vectorised, device.to_device(x), y, out=out)
    np.testing.assert_array_equal(counted.result, 2 * x)
    assert (device.to_host(out) == -1).all()


def test_errors_arrive_as_they_are(anywhere):
    with pytest.raises(simt.OutOfBoundsError, match=r"x\[32\]") as caught:
        lab.count(beyond, np.zeros(32, np.float32))
    assert caught.value.hazard.variable == "x"
    with pytest.raises(TypeError, match="x must be"):
        lab.count(reduction.shuffle, np.zeros(32, np.int8))


def test_what_the_call_prints_is_printed(anywhere, capsys):
    assert lab.count(printing, 7).result == 7
    assert capsys.readouterr().out == "printed 7\n"


@pytest.mark.parametrize(
    ("rung", "words"),
    [
        (reduction.shuffle_kernel, "was the kernel shuffle_kernel: use simt.profile"),
        (lambda: None, "that can be imported"),
        ("shuffle", "was 'shuffle'"),
    ],
)
def test_what_is_no_rung_is_refused(anywhere, rung, words):
    with pytest.raises(TypeError, match=f"^rung must be .*{words}"):
        lab.count(rung)


def test_a_stream_is_refused(anywhere):
    with pytest.raises(TypeError, match=r"^stream must be left out"):
        lab.count(reduction.shuffle, np.zeros(3, np.float32), stream=0)


def test_what_cannot_be_sent_is_refused(monkeypatch):
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    with pytest.raises(TypeError, match="one cannot be sent"):
        lab.count(printing, lambda: None)


def test_a_process_that_ends_is_replaced(monkeypatch):
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    with pytest.raises(RuntimeError, match="ended with status 3"):
        lab.count(ending)
    assert lab.count(printing, 8).result == 8


def test_an_interrupted_call_leaves_no_answer_behind(monkeypatch):
    monkeypatch.setattr(device, "on_gpu", lambda: True)

    def interrupted(stream):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(counting.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lab.count(printing, 1)
    assert lab.count(printing, 2).result == 2


def test_numbas_rooms_are_counted_by_the_interpreter():
    """As on a GPU: the room of this process holds Numba's kernels, which no GPU is needed to make."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    code = """
import warnings
warnings.simplefilter("ignore")
from pmpp.runtime import device, gpu
gpu.fault = lambda: (None, True)
import numpy as np
from pmpp import lab, simt
from pmpp.kernels.reduction import ladder as reduction
assert device.on_gpu()
counted = lab.count(reduction.vectorised, np.ones(4096, np.float32))
print(type(reduction.vectorised_kernel).__module__.partition(".")[0], counted.result, counted.counters["flops"] > 0)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMPP_", "NUMBA_"))}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
    assert done.stdout == "numba [4096.] True\n", done.stderr


def test_traffic_is_for_each_multiply_add():
    x = np.ones(1 << 14, np.float32)
    counted = lab.count(vector_add.vectorised, x, x)
    counters = counted.counters
    assert counters["global_load_sectors"] + counters["global_store_sectors"] == 3 * x.nbytes // 32
    # As if a sum were a multiply-add: 12 bytes for each, 384 for those of a warp.
    assert results.traffic(counted, 2 * x.size).startswith("  384.0 bytes asked  0.000 wavefronts")
    with pytest.raises(ValueError, match=r"^flops must be positive, was 0$"):
        results.traffic(counted, 0)


def test_recorded_times_are_printed_or_missing(monkeypatch, tmp_path, capsys):
    results.recorded(direct, "7x7 c3 h224", only=("sliding",))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-5] for line in lines] == ["sliding", "torch.conv2d"]
    results.compared(direct, "depthwise", "depthwise", "torch.conv2d")
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.endswith(" x") and "TB/s; torch.conv2d" in line for line in lines)
    results.compared(direct, "depthwise", "attic", "torch.conv2d")
    line = capsys.readouterr().out
    assert line.startswith("There are no times to show: pmpp/recorded/")
    assert line.endswith(" has no 'depthwise' by 'attic' of room 'direct'\n")
    monkeypatch.setattr(record, "RECORDED", tmp_path)
    results.recorded(direct, "7x7 c3 h224")
    results.compared(direct, "depthwise", "depthwise", "torch.conv2d")
    assert capsys.readouterr().out.count("There are no times to show") == 2
