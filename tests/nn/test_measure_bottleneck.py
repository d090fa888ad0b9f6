"""The measurement of bottlenecks, as far as it needs no GPU: the cures compute the same, and less is launched."""

import numpy as np
import pytest

from pmpp.nn.measure import bottleneck
from pmpp.nn.timeline import Recorder, Timeline
from pmpp.runtime import device

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    for name, value in {"REPETITIONS": 1, "DRAWN": 1, "FIRST": 0}.items():
        monkeypatch.setattr(bottleneck, name, value)


SMALL = {"batch": 2, "size": 8}


@pytest.mark.parametrize("name", bottleneck.CASES)
def test_all_versions_compute_the_same(name):
    found = bottleneck.compare(bottleneck.CASES[name], 2, **SMALL)
    for values in found.values():
        assert np.isfinite(values).all()
        assert len(set(values)) == len(values), "nothing was learned, or one step's result stands for another's"


def test_a_version_that_computes_something_else_is_refused():
    versions = dict(bottleneck.CASES["memory-bound layers"].versions)
    versions["another activation"] = bottleneck.CASES["launches"].versions["one update for all"]
    with pytest.raises(RuntimeError, match="'another activation' computes something else"):
        bottleneck.compare(bottleneck.Case(2, versions), 2, size=8)


def test_what_is_measured():
    """The times are the interpreter's, but all that is done with them on a GPU is done."""
    row = bottleneck.measure("synchronisation", steps=1, **SMALL)
    waits = [one["counts"].get("waits", 0) for one in row["versions"].values()]
    reads = [one["counts"].get("copies out", 0) for one in row["versions"].values()]
    assert reads == [2, 0], "the loss and the norm"
    assert waits[0] - waits[1] == 2
    if not device.on_gpu():
        assert all(one["profiler"] is None for one in row["versions"].values())
    text = bottleneck.table({"synchronisation": row})
    assert all(version in text for version in row["versions"])


def test_launches_are_counted(monkeypatch):
    monkeypatch.setattr(bottleneck, "FIRST", 1)  # there momenta are filled with zeros
    case = bottleneck.CASES["launches"]
    each, one, _ = (bottleneck.drawn(case, version, **SMALL) for version in case.versions)
    parameters = 2
    assert each.counts["launches"] - one.counts["launches"] == 4 * parameters - 1
    assert each.counts["waits"] == 0


def test_the_loader_copies_what_it_should():
    case = bottleneck.CASES["transfer"]
    recorder = Recorder()
    job = bottleneck.Job(3, 2, size=8)
    job.step = lambda x, y, span: y
    go, _ = case.versions["pageable, waited for"][0](job, recorder.span)
    with recorder:
        go(0)
    assert recorder.counts["bytes in"] == 3 * 64 * 4 + 3 * 8 == 792


def test_the_knob(monkeypatch):
    monkeypatch.setattr(bottleneck, "drawn", lambda case, version, batch, size: Timeline([], 1.0))
    rows = bottleneck.knob((3,), steps=1, size=8)
    assert [row["batch"] for row in rows.values()] == [[3], [3]]
    assert all(len(row["ms"]) == len(row["idle"]) == 1 for row in rows.values())


def test_a_profiler_that_fails_costs_no_measurement(monkeypatch):
    def profiled(*arguments):
        raise OSError("no counters")

    monkeypatch.setattr(bottleneck, "profiled", profiled)
    assert bottleneck.profiled_or_not(None, "") == {"missing": "OSError: no counters"}


def test_what_a_profiler_is_shown():
    bottleneck.one_version("launches", 0, **SMALL)


def test_a_trace_is_read():
    def event(cat, name, ts, dur):
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}

    events = [
        event("cpu_op", "a call", 0, 50),
        event("kernel", "cudapy::pmpp::nn::first_kernel[abi:v1](int)", 10, 4),
        event("kernel", "cudapy::pmpp::nn::first_kernel[abi:v2](int)", 12, 6),  # at the same time
        event("kernel", "second_kernel(float*)", 40, 2),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 10),
        {"ph": "i", "name": "a mark", "ts": 3},
    ]
    found = bottleneck.from_trace(events, wall=100, steps=2)
    assert found["us a step"] == 50
    assert found["busy us a step"] == (8 + 2) / 2
    assert found["kernels a step"] == 1.5
    assert found["copying us a step"] == 5
    assert found["most"] == [["first_kernel", 1.0, 5.0], ["second_kernel", 0.5, 1.0]]
    assert bottleneck.from_trace(events[:1], 1, 1) is None


def test_tools_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(bottleneck.shutil, "which", lambda name: None)
    found = bottleneck.tools()
    assert "nsys" in found["nsys"]["missing"]
    assert all("ncu" in one["missing"] for one in found["ncu"])


def test_what_ncu_prints_is_read(monkeypatch):
    header = ["ID", "Kernel Name", *bottleneck.METRICS]
    lines = ["==PROF== Connected", *(",".join(f'"{x}"' for x in row) for row in (
        header, ["", "", "ns", "%", "%", "byte", "byte"], ["0", "a::b_kernel[abi](int)", "1,200", "91.5", "3", "8", "4"]
    ))]  # fmt: skip
    monkeypatch.setattr(bottleneck.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(bottleneck, "asked", lambda command, seconds: ("\n".join(lines), ""))
    found = bottleneck.compute("memory-bound layers", 0, 1)
    assert found["rows"] == [["b_kernel", 1200.0, 91.5, 3.0, 8.0, 4.0]]
    assert found["units"][0] == "ns"


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(bottleneck.device, "on_gpu", lambda: False)
    assert bottleneck.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out


def test_the_command_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bottleneck.device, "on_gpu", lambda: True)
    row = {"ms": 2.0, "idle": 0.5, "waits": 0.1, "counts": {"launches": 6}, "timeline": {"steps": 3}}
    monkeypatch.setattr(bottleneck, "measure", lambda name: {"batch": 1, "versions": {"slow": row}})
    monkeypatch.setattr(bottleneck, "knob", lambda: {"slow": {}})
    written = []
    monkeypatch.setattr(bottleneck, "write", lambda *args: written.append(args) or tmp_path)
    assert bottleneck.main(["--budget", "1000"]) == 0
    assert list(written[-1][2]) == ["cases", "knob"]
    assert list(written[-1][2]["cases"]) == list(bottleneck.CASES)
    assert "slow" in capsys.readouterr().out


def test_a_case_that_fails_costs_no_other(monkeypatch, capsys, tmp_path):
    def measure(name):
        raise RuntimeError("another result")

    monkeypatch.setattr(bottleneck.device, "on_gpu", lambda: True)
    monkeypatch.setattr(bottleneck, "measure", measure)
    monkeypatch.setattr(bottleneck, "write", lambda *args: tmp_path)
    assert bottleneck.main(["loading", "transfer"]) == 1
    assert capsys.readouterr().out.count("another result") == 2
