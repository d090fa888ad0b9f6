"""The measurement of trainings beside PyTorch, on the CPU and tiny: each function but the clock's."""

import json

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.measure import training
from pmpp.nn.utils.data import TensorDataset
from pmpp.runtime import device


def tiny(n=4):
    rng = np.random.default_rng(0)
    return TensorDataset(rng.standard_normal((n, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, n))


@pytest.fixture(scope="module")
def compared():
    pytest.importorskip("torch")
    nn.manual_seed(0)
    return training.losses(LeNet().state_dict(), training.batches(tiny(), 1, 2, 0), 0.05, "cpu")


def test_the_batches_are_the_loaders():
    whole = tiny(5)
    found = training.batches(whole, 2, 2, seed=1)
    assert [len(labels) for _, labels in found] == [2, 2, 1] * 2
    for epoch in found[:3], found[3:]:
        assert sorted(label for _, labels in epoch for label in labels) == sorted(whole.arrays[1])
    again = training.batches(whole, 2, 2, seed=1)
    assert all(
        np.array_equal(a, b) for one, two in zip(found, again, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_losses_are_those_of_pytorch(compared):
    assert compared["within"]
    assert len(compared["ours"]) == len(compared["torch"]) == len(compared["float64"]) == 2
    assert max(compared["allowed"]) < 1e-4, "so small that another training is not within it"


def test_another_training_is_not_within(compared, monkeypatch):
    """The tolerance rejects a rate that is off by a hundredth."""
    ours = training.ours
    monkeypatch.setattr(training, "ours", lambda state, given, lr: ours(state, given, 1.01 * lr))
    nn.manual_seed(0)
    assert not training.losses(LeNet().state_dict(), training.batches(tiny(), 1, 2, 0), 0.05, "cpu")["within"]


def test_a_row_a_report_and_a_record(compared, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    whole = tiny()
    monkeypatch.setattr(training.mnist, "BATCH", 2)
    row = training.one_seed(0, whole, whole, 1, "cpu")
    assert set(row) == {"ours", "torch"}
    assert all(0 <= one["accuracy"] <= 1 and one["seconds"] > 0 for one in row.values())
    said = training.report([row, row, row], compared)
    assert "MISSED" in said.splitlines()[1], "nothing can be learnt from this"
    assert said.splitlines()[2].startswith("the mean of 3 seeds")
    assert "met" in said.splitlines()[4]
    found = {"seeds": [row], "medians": training.medians([row]), "losses": compared}
    path = training.write("training", "pmpp/nn/measure/training.py", found, tmp_path / "training.json")
    assert json.loads(path.read_text())["losses"]["within"] is True


def test_the_medians_are_of_each_figure():
    rows = [
        {who: {"accuracy": a, "seconds": s} for who in ("ours", "torch")}
        for a, s in ((0.5, 3.0), (0.9, 1.0), (0.7, 2.0))
    ]
    assert training.medians(rows)["ours"] == {"accuracy": 0.7, "seconds": 2.0}
    mean, error = training.averages(rows)["torch"]
    assert (round(mean, 6), round(error, 4)) == (70.0, round(20 / 3**0.5, 4))


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_it_says_so(capsys):
    assert training.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
