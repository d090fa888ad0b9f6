"""What `pmpp.nn.measure.cpu_gpu` does on a GPU, done here with tiny sizes: nothing of it looks at how long it took."""

import ctypes
import json
import typing

import numpy as np
import pytest

from pmpp.nn.measure import cpu_gpu
from pmpp.runtime import device

pytestmark = pytest.mark.usefixtures("unchecked")

CASE = cpu_gpu.CASES["digits"]


def test_without_a_gpu_it_says_so(capsys):
    if device.on_gpu():
        pytest.skip("there is a GPU")
    assert cpu_gpu.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out


def test_images_are_enlarged_and_keep_their_pixels():
    small, large = cpu_gpu.datasets(8)[0].arrays[0], cpu_gpu.datasets(28)[0].arrays[0]
    assert large.shape == (len(small), 1, 28, 28)
    assert large.dtype == np.float32
    np.testing.assert_array_equal(large[:, :, 3:26:3, 3:26:3], small)
    assert not large[:, :, :2].any()
    assert not large[:, :, :, -2:].any()


@pytest.mark.parametrize("graph", [False, True])
def test_our_steps_have_the_losses_of_numpy(graph):
    ours = cpu_gpu.Ours(CASE, cpu_gpu.state_of(CASE), graph)
    assert cpu_gpu.farthest(CASE, ours, size=2, steps=2) < 1e-5
    assert ours.scores(np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10)
    ours.wait()


def test_what_a_recording_did_is_undone():
    state = cpu_gpu.state_of(CASE)
    ours = cpu_gpu.Ours(CASE, state)
    ours.step(*cpu_gpu.batches(CASE, 2, 1)[0])
    ours.forget(state)
    now = ours.net.state_dict()
    assert all((now[name] == state[name]).all() for name in state)
    kept = [array for arrays in ours.optimizer.state.values() for array in arrays.values()]
    assert kept
    assert not any(device.to_host(array).any() for array in kept)


def test_pytorch_on_the_cpu_has_the_losses_of_numpy():
    torch = pytest.importorskip("torch")
    for case in cpu_gpu.CASES.values():
        state = cpu_gpu.state_of(case)
        theirs = cpu_gpu.InTorch(case, state, "cpu")
        assert cpu_gpu.farthest(case, theirs, size=4, steps=2) < 1e-5
        theirs.forget({name: torch.from_numpy(value) for name, value in state.items()})
        assert cpu_gpu.farthest(case, theirs, size=4, steps=2) < 1e-5
        assert theirs.scores(np.zeros((1, 1, case.side, case.side), np.float32)).shape == (1, 10)


def test_threads_have_the_losses_of_numpy():
    assert cpu_gpu.farthest(CASE, cpu_gpu.InNumpy(CASE, cpu_gpu.state_of(CASE), 3), size=24, steps=2) < 1e-5


def test_another_network_is_noticed():
    state = cpu_gpu.state_of(CASE)
    state["conv1.bias"] = state["conv1.bias"] + 1
    with pytest.raises(ArithmeticError, match="losses differ"):
        cpu_gpu.farthest(CASE, cpu_gpu.InNumpy(CASE, state), size=8, steps=1)


def test_a_measurement_fills_its_record(monkeypatch, tmp_path, capsys):
    def broken(case, state):
        raise RuntimeError("no such library")

    monkeypatch.setattr(cpu_gpu, "runners", lambda gpu: {"CPU, NumPy": cpu_gpu.InNumpy, "GPU, none": broken})
    rows: dict[str, typing.Any] = {"energy": {}}
    kept, counted = [], iter(range(1000))
    cpu_gpu.measure(
        rows, lambda: kept.append(json.dumps(rows)), gpu=False, budget=60, meters={"gpu": lambda: float(next(counted))},
        cases={"digits": CASE}, sizes=(2, 4), seconds=0.001, energy_sizes=(2,), energy_seconds=0.01,
        epochs=1, batch=16, examples=64,
    )  # fmt: skip
    found = json.loads(kept[-1])["networks"]["digits"]
    assert found["trainings"]["CPU, NumPy"]["steps"] == 4
    assert found["faults"] == {"GPU, none": "RuntimeError: no such library"}
    assert found["ms"].keys() == {"CPU, NumPy"}
    assert found["ms"]["CPU, NumPy"].keys() == {"2", "4"}
    assert found["transfer ms"].keys() == {"2", "4"}
    assert found["energy"]["CPU, NumPy"]["2"]["gpu"] == 1
    assert len(kept) == 5
    cpu_gpu.show(rows)
    assert "no such library" in capsys.readouterr().out


def test_the_record_is_written_again_with_what_came_since(tmp_path):
    rows = {"cores": 1}
    keep = cpu_gpu.keeper(rows, tmp_path / "cpu_gpu.json")
    first = json.loads((tmp_path / "cpu_gpu.json").read_text())
    rows["networks"] = {"digits": {}}
    second = json.loads(keep().read_text())
    assert first["about"]["measured_by"] == "pmpp/nn/measure/cpu_gpu.py"
    assert second == {**first, "networks": {"digits": {}}}


def test_a_budget_that_is_spent_leaves_the_trainings(monkeypatch):
    monkeypatch.setattr(cpu_gpu, "runners", lambda gpu: {"CPU, NumPy": cpu_gpu.InNumpy})
    rows: dict[str, typing.Any] = {}
    options = {"epochs": 1, "batch": 16, "examples": 16, "cases": {"digits": CASE}}
    cpu_gpu.measure(rows, lambda: None, gpu=False, budget=-1, meters={}, **options)
    assert rows["networks"]["digits"]["trainings"]
    assert not rows["networks"]["digits"]["ms"]


def test_the_runners_of_a_gpu_are_named_so():
    assert {name.partition(",")[0] for name in cpu_gpu.runners(False)} == {"CPU"}
    assert {"GPU, ours", "GPU, ours, graph"} <= cpu_gpu.runners(True).keys()


class Driver:
    """NVML as it would answer."""

    def __init__(self, fails=None):
        self.fails, self.count = fails, 5000

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus, handle):
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 7 if bus == b"0000:1B:00.0" else 0
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, joules):
        assert handle.value == 7
        self.count += 1500
        ctypes.cast(joules, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.count
        return 3 if self.fails else 0


def test_energy_of_a_gpu_is_in_joules():
    read, words = cpu_gpu.nvml("0000:1B:00.0", Driver())
    assert "NVML" in words
    assert read() == 8.0
    assert read() == 9.5


def test_a_gpu_that_does_not_count_is_named():
    assert cpu_gpu.nvml("0000:1B:00.0", Driver(fails=True)) == (None, "nvmlDeviceGetTotalEnergyConsumption returned 3")


def zone(folder, name, kind, microjoules, full):
    (folder / name).mkdir()
    for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", full)):
        (folder / name / file).write_text(f"{value}\n")


def test_energy_of_processors_goes_on_when_a_counter_is_full(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, 9_999_999)
    zone(tmp_path, "intel-rapl:1", "package-1", 0, 9_999_999)
    zone(tmp_path, "intel-rapl:0:0", "core", 5, 9_999_999)
    read, words = cpu_gpu.rapl(tmp_path)
    assert "2 processors" in words
    assert read() == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500000\n")
    assert read() == pytest.approx(2.5) == read()


def test_what_cannot_be_read_has_a_reason(tmp_path, monkeypatch):
    assert "there is no" in cpu_gpu.rapl(tmp_path / "none")[1]
    assert "no counter" in cpu_gpu.rapl(tmp_path)[1]

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    read, words = cpu_gpu.nvml("0000:1B:00.0")
    assert read is None
    assert words.startswith("no NVML: libnvidia-ml")
