"""What is measured of compressed activations: the parts, on few digits, and what the command refuses."""

import numpy as np
import pytest

from pmpp.nn.examples import digits
from pmpp.nn.measure import compressed, memory
from pmpp.nn.tape import state
from pmpp.nn.utils.data import TensorDataset
from pmpp.runtime import device


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """The launches have been checked elsewhere; without checks they take a fraction of the time."""
    monkeypatch.setenv("PMPP_CHECK", "")


@pytest.fixture
def few():
    """Two batches of digits to train on, and some others."""
    return tuple(
        TensorDataset(*[part[:n] for part in one.arrays]) for one, n in zip(digits.datasets(), (128, 40), strict=True)
    )


def test_gradients_off_by_more_with_fewer_bits_and_less_in_the_mean(few):
    found = compressed.noise(few, 4)
    assert list(found) == list(compressed.WAYS)
    for way in ("as it is", "a bit for ReLU"):
        assert found[way]["one"] <= (1e-5 if device.on_gpu() else 0), "atomics on a GPU may add in another order"
    ones = [found[f"{bits} bits"]["one"] for bits in (8, 4, 2)]
    assert 0 < ones[0] < ones[1] < ones[2]
    for bits in (8, 4, 2):
        way = found[f"{bits} bits"]
        assert way["mean"] < 0.75 * way["one"], "independent errors halve in the mean of four"
    for bits in (4, 2):
        way = found[f"{bits} bits, nearest"]
        assert way["mean"] == pytest.approx(way["one"], rel=1e-3), "the same error each time"


def test_a_training_from_a_seed(few):
    rows = {way: compressed.trained(way, 1, few, 1) for way in ("as it is", "a bit for ReLU", "2 bits")}
    assert rows["as it is"]["loss"] == pytest.approx(rows["a bit for ReLU"]["loss"], rel=1e-3 * device.on_gpu())
    assert device.on_gpu() or rows["as it is"]["accuracy"] == rows["a bit for ReLU"]["accuracy"]
    assert rows["as it is"]["kept"] > rows["a bit for ReLU"]["kept"] > rows["2 bits"]["kept"]
    assert state.compression is None


def measured(monkeypatch, few, budget):
    """What is recorded of a run whose parts are replaced, but for their order; and how often it was noted."""
    noted = []
    monkeypatch.setattr(digits, "datasets", lambda: few)
    monkeypatch.setattr(compressed, "trained", lambda way, seed, data: {"accuracy": 0.5, "kept": 9, "seed": seed})
    monkeypatch.setattr(compressed, "noise", lambda data: {way: {"one": 0.1, "mean": 0.01} for way in compressed.WAYS})
    monkeypatch.setattr(compressed, "step_of", lambda *_: {"loss": 2.0, "kept": 8, "peak": 9, "ms": 1.0})
    return compressed.measure(budget, 3, lambda found: noted.append(len(found["networks"]))), noted


def test_a_run_records_whatever_there_is_time_for(monkeypatch, few):
    found, noted = measured(monkeypatch, few, 1e9)
    assert {tuple(row["seed"] for row in rows) for rows in found["training"].values()} == {(0, 1, 2)}
    assert list(found["networks"]) == ["LeNet-5, batch 4096", "ResNet-18, batch 128"]
    assert list(found["networks"]["ResNet-18, batch 128"]) == [way for way in compressed.WAYS if "nearest" not in way]
    assert len(noted) == 1 + 1 + 2 + 2 * 5
    assert "LeNet-5" in compressed.table(found)
    found, noted = measured(monkeypatch, few, 0)
    assert all(len(rows) == 1 for rows in found["training"].values())
    assert not found["gradient"]
    assert not found["networks"]
    assert "2 bits, nearest" in compressed.table(found)


@pytest.mark.skipif(device.on_gpu(), reason="the command measures there")
def test_a_step_of_a_larger_network(monkeypatch):
    monkeypatch.setattr(compressed, "milliseconds", lambda step, synchronize: 1.0)
    rows = {way: compressed.step_of("LeNet-5", 2, way) for way in ("as it is", "a bit for ReLU", "4 bits")}
    assert len({row["loss"] for row in rows.values()}) == 1
    kept = [row["kept"] for row in rows.values()]
    assert kept[0] > kept[1] > kept[2]
    assert all(row["peak"] > row["kept"] for row in rows.values())
    found = {"training": {}, "networks": {"LeNet-5, batch 2": rows}}
    assert "4 bits" in compressed.table(found)


def test_losses_that_differ_are_an_error():
    compressed.agree("8 bits", 2.3, 2.3 * (1 + 1e-7))
    for loss in (2.31, np.nan):
        with pytest.raises(memory.Differs, match="8 bits: the loss is"):
            compressed.agree("8 bits", loss, 2.3)


def test_the_command_needs_a_gpu_and_a_seed(capsys):
    with pytest.raises(SystemExit):
        compressed.main(["--seeds", "0"])
    if not device.on_gpu():
        assert compressed.main([]) == 2
        assert "a GPU is needed" in capsys.readouterr().out
