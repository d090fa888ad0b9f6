"""The guess at an algorithm's time: its parts, what it depends on, and how good the choice is on what was measured."""

import numpy as np
import pytest

from pmpp.kernels.convolution_layer import cost_model
from pmpp.kernels.convolution_layer import dispatch as layers
from pmpp.kernels.convolution_layer import survey as recorded
from pmpp.kernels.convolution_layer.definition import Layer

_, ROWS = recorded.load()
AWKWARD = [Layer(1, 1, 1, 1, 1, 1, 1), Layer(3, 6, 5, 7, 6, 3, 3, groups=6), Layer(1, 2, 90, 90, 1, 70, 70)]
H100 = cost_model.Rates(132, 1.78e9, 2.85e12)


@pytest.mark.parametrize("layer", [*recorded.sets()["resnet50"][:4], *AWKWARD], ids=str)
def test_every_part_is_finite_and_together_they_are_the_guess(layer):
    for name, guess in layers.expected_times(layer).items():
        parts = cost_model.seconds(name, layer)
        assert all(np.isfinite(part) and part >= 0 for part in parts.values())
        assert guess == pytest.approx(1e3 * sum(parts.values()))
        assert guess > 0


def test_a_layer_without_images_has_a_choice():
    assert layers.choose(Layer(0, 3, 8, 8, 4, 3, 3))


def test_more_images_never_take_less_time():
    few, many = (layers.expected_times(Layer(n, 64, 56, 56, 64, 3, 3, padding=(1, 1))) for n in (8, 32))
    assert few.keys() == many.keys() == set(layers.ALGORITHMS) - {"depthwise"}
    assert all(few[name] < many[name] for name in few)


@pytest.mark.parametrize("row", ROWS[:7], ids=lambda row: str(row.layer))
def test_no_guess_is_below_the_memorys_roof(row):
    gpu = cost_model.rates()
    for name in layers.expected_times(row.layer):
        assert cost_model.guess(name, row.layer) >= 1e3 * gpu.moving(row.layer.cost.bytes)


def test_a_slower_memory_takes_longer_where_memory_is_the_bound_and_a_slower_clock_elsewhere():
    h200 = cost_model.rates()
    pointwise, large = Layer(32, 16, 112, 112, 16, 1, 1), Layer(8, 64, 128, 128, 64, 15, 15, padding=(7, 7))

    def guess(name, layer, gpu):
        return sum(cost_model.KERNELS[name](layer, gpu).values())

    slow_memory, slow_clock = h200._replace(bandwidth=h200.bandwidth / 2), h200._replace(clock=h200.clock / 2)
    assert guess("winograd", Layer(32, 64, 56, 56, 64, 3, 3), slow_memory) > 1.3 * guess(
        "winograd", Layer(32, 64, 56, 56, 64, 3, 3), h200
    )
    assert guess("implicit", large, slow_memory) < 1.05 * guess("implicit", large, h200)
    assert guess("implicit", large, slow_clock) > 1.8 * guess("implicit", large, h200)
    assert guess("im2col", pointwise, h200) < guess("im2col", pointwise, H100)


def test_the_rates_are_what_the_driver_says_of_the_device():
    gpu, limits = cost_model.rates(), cost_model.device.limits()
    assert gpu.multiprocessors == limits["multiprocessors"]
    assert gpu.clock == pytest.approx(cost_model.SUSTAINED * 1e3 * limits["clock"])
    assert gpu.bandwidth == pytest.approx(cost_model.REACHED * 2e3 * limits["memory_clock"] * limits["memory_bus"] / 8)


def test_the_record_has_every_layer_and_every_algorithm_or_a_reason():
    for name, wanted in recorded.sets().items():
        assert [row.layer for row in ROWS if row.set == name] == wanted
    measured = {name for row in ROWS for name in row.ms.keys() | row.notes.keys()} - {"numpy"}
    assert {"direct", "im2col", "implicit", "winograd", "fft", "cudnn"} <= measured <= {*layers.ALGORITHMS, "cudnn"}
    for row in ROWS:
        assert (row.ms.keys() | row.notes.keys()) - {"numpy"} == measured
        judged = recorded.as_measured() & row.workspace.keys()
        assert all(layers.workspace_bytes(name, row.layer) == row.workspace[name] for name in judged)
    by_numpy = [layer for layer in recorded.sets()["design"] if layer.cost.flops <= recorded.ON_CPU]
    assert [row.layer for row in ROWS if "numpy" in row.ms] == by_numpy
    refused = {name for row in ROWS for name, note in row.notes.items() if not layers.refuses(name, row.layer)}
    assert refused <= {"fft"}, "one 1 x 1 layer, where the tile's error is large beside the only term"


def test_the_choice_is_within_a_tenth_of_the_best_on_nine_layers_of_ten():
    if len(recorded.as_measured()) < 3:
        pytest.skip("the rooms have changed since the survey: measure it again")
    for name in ("resnet50", "judge", "fit", "grid"):
        losses = np.array(recorded.losses([row for row in ROWS if row.set == name]))
        assert np.mean(losses <= 1.1) >= 0.9, name
        assert np.mean(losses) <= 1.03, name


def test_another_guess_changes_the_choice(monkeypatch):
    layer = recorded.sets()["design"][2]
    assert layers.choose(layer)[0] == "winograd"
    monkeypatch.setitem(cost_model.KERNELS, "winograd", lambda layer, gpu: {"never": 1e3})
    cost_model._guess.cache_clear()
    monkeypatch.setattr(layers, "guess", lambda name, layer: cost_model.guess(name, layer))
    assert layers.choose(layer)[-1] == "winograd"
    cost_model._guess.cache_clear()
