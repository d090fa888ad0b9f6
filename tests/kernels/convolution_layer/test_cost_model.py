"""The guess at an algorithm's time: its amounts, its prices, and how good the choice is on what was measured."""

import json

import numpy as np
import pytest

from pmpp.kernels.convolution_layer import cost_model
from pmpp.kernels.convolution_layer import dispatch as layers
from pmpp.kernels.convolution_layer import survey as recorded
from pmpp.kernels.convolution_layer.definition import Layer

ABOUT, ROWS = recorded.load()
AWKWARD = [Layer(1, 1, 1, 1, 1, 1, 1), Layer(3, 6, 5, 7, 6, 3, 3, groups=6), Layer(1, 2, 90, 90, 1, 70, 70)]


@pytest.mark.parametrize("layer", [*recorded.sets()["resnet50"][:4], *AWKWARD], ids=str)
def test_every_amount_is_finite_and_has_a_price(layer):
    for name in layers.expected_times(layer):
        amounts = cost_model.AMOUNTS[name](layer)
        assert amounts.keys() <= cost_model.prices()[name].keys()
        assert all(np.isfinite(amount) and amount >= 0 for amount in amounts.values())
        assert cost_model.guess(name, layer) > 0


def test_more_images_never_take_less_time():
    few, many = (layers.expected_times(Layer(n, 64, 56, 56, 64, 3, 3, padding=(1, 1))) for n in (8, 32))
    assert few.keys() == many.keys() == set(layers.ALGORITHMS)
    assert all(few[name] < many[name] for name in few)


def test_the_record_has_every_layer_and_every_algorithm_or_a_reason():
    for name, wanted in recorded.sets().items():
        assert [row.layer for row in ROWS if row.set == name] == wanted
    for row in ROWS:
        assert (row.ms.keys() | row.notes.keys()) - {"numpy"} == {*layers.ALGORITHMS, "cudnn"}
        assert all(layers.workspace_bytes(name, row.layer) == row.workspace[name] for name in row.workspace)
    by_numpy = [layer for layer in recorded.sets()["design"] if layer.cost.flops <= recorded.ON_CPU]
    assert [row.layer for row in ROWS if "numpy" in row.ms] == by_numpy
    refused = {name for row in ROWS for name, note in row.notes.items() if not layers.refuses(name, row.layer)}
    assert refused <= {"fft"}, "one 1 x 1 layer, where the tile's error is large beside the only term"


def test_the_prices_are_those_of_the_record():
    fitted = recorded.fit([row for row in ROWS if row.set in ("fit", "grid")])
    for name, found in cost_model.prices().items():
        assert fitted[name] == pytest.approx(found, rel=1e-3)
    kept = json.loads(cost_model.PRICES.read_text(encoding="utf-8"))
    assert kept["revision"] == ABOUT["run"]["revision"]


def test_a_record_of_another_gpu_gives_no_prices(tmp_path, capsys):
    other = recorded.RECORD.read_text(encoding="utf-8").replace(ABOUT["gpu"]["name"], "NVIDIA L4")
    path, before = tmp_path / "survey.json", cost_model.PRICES.read_bytes()
    path.write_text(other, encoding="utf-8")
    assert recorded.main(["--fit", "--out", str(path)]) == 2
    said = capsys.readouterr().err
    assert "nvidia-h200" in said
    assert "NVIDIA L4" in said
    assert cost_model.PRICES.read_bytes() == before


def test_the_choice_is_within_a_tenth_of_the_best_on_nine_layers_of_ten():
    judged = [row for row in ROWS if row.set in ("resnet50", "judge")]  # none of them was used for the fit
    assert len(judged) == 23 + 40
    losses = np.array(recorded.losses(judged))
    assert np.mean(losses <= 1.1) >= 0.9


def test_another_price_changes_the_choice(monkeypatch):
    layer = recorded.sets()["design"][2]
    assert layers.choose(layer)[0] == "winograd"
    prices = cost_model.prices() | {"winograd": dict.fromkeys(cost_model.prices()["winograd"], 1e3)}
    monkeypatch.setattr(cost_model, "prices", lambda: prices)
    monkeypatch.setattr(layers, "guess", cost_model.guess.__wrapped__)
    assert layers.choose(layer)[-1] == "winograd"
