"""The small language model: NumPy's twin is the same network, and what is said of its work is what it does."""

import argparse
import contextlib

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn.examples import transformer
from pmpp.nn.examples.numpy_transformer import NumpyTransformer
from pmpp.nn.measure import language
from pmpp.nn.tape import Tensor
from pmpp.runtime import device


@pytest.fixture
def net(unchecked):
    nn.manual_seed(0)
    return transformer.Transformer(2, 16, 2, 6, vocabulary=11)


def test_the_twin_in_numpy_is_the_same_network(net):
    tokens = np.array([3, 1, 4, 1, 5, 10])
    with nn.no_grad():
        wanted = net(Tensor(tokens[None])).numpy()[0]
    twin = NumpyTransformer(net.state_dict(), net.layers, net.heads)
    # Sums of some dozens of terms of about 1 in float32, in another order.
    np.testing.assert_allclose(twin.read(tokens), wanted, atol=64 * 2.0**-23)
    begun = twin.read(tokens[:2])
    further = [twin.go_on(tokens[i : i + 1]) for i in range(2, 6)]
    np.testing.assert_allclose(np.concatenate([begun, *further]), wanted, atol=64 * 2.0**-23)


def test_reading_and_writing_give_the_same_scores(net):
    tokens = np.array([[3, 1, 4], [2, 7, 1]])
    read = language.reading(net, tokens)().numpy()
    cache, data = transformer.Cache(net, 2), Tensor
    with nn.no_grad():
        for i in range(2):
            net.step(data(np.ascontiguousarray(tokens[:, i])), cache)
    once = language.writing(net, tokens)
    kept = once.__closure__[once.__code__.co_freevars.index("cache")].cell_contents
    for mine, theirs in zip([*kept.keys, *kept.values], [*cache.keys, *cache.values], strict=True):
        mine.copy_to_device(theirs)
    np.testing.assert_allclose(once().numpy(), read[:, 2], atol=1e-5)
    np.testing.assert_allclose(once().numpy(), read[:, 2], atol=1e-5, err_msg="each call writes the same token")


def test_work_is_counted():
    weights = 12 * 2 * 16**2 + 11 * 16
    one = language.work_of(2, 16, 11, texts=1, length=1)
    assert one == (2 * (weights + 2 * 2 * 16), 4 * (weights + 2 * 2 * 16))
    steps = [language.work_of(2, 16, 11, 3, 1, used) for used in range(5)]
    whole = language.work_of(2, 16, 11, 3, 5)
    assert whole.flops == sum(step.flops for step in steps), "reading and writing do the same operations"
    assert whole.intensity > max(step.intensity for step in steps)


def test_each_row_of_the_costs_says_what_was_done(net):
    data = np.random.default_rng(0).integers(0, 11, 40)
    seen = []
    rows = list(language.costs(net, data, lambda call: seen.append(call()) or 0.5, together=(1, 3)))
    assert [(row["what"], row["who"], row["texts"]) for row in rows] == [
        ("read", "ours", 1),
        ("write", "ours", 1),
        ("read", "ours", 3),
        ("write", "ours", 3),
        ("read", "NumPy", 1),
        ("write", "NumPy", 1),
    ]
    assert seen[0].shape == (1, 6, 11)
    assert seen[3].shape == (3, 11)
    assert rows[2]["tokens"] == 18
    assert "36 tokens/s" in language.line(rows[2])


def test_counting_knows_only_how_often(net):
    assert language.counting_perplexity(np.arange(4), np.array([0, 3]), 4) == pytest.approx(4)


def test_all_parts_of_a_run(net, monkeypatch, tmp_path):
    """In this process, and with the file that is handed on."""
    monkeypatch.setattr(transformer, "text", lambda: np.tile(np.arange(60), 4))
    monkeypatch.setattr(language, "costs", lambda net, data, seconds=None: [])
    options = argparse.Namespace(layers=1, width=8, heads=2, length=8, texts=1, steps=3)
    state, turn = tmp_path / "state.npz", contextlib.nullcontext()
    found = language.trained(options, state, turn)
    assert len(found["losses"]) == len(found["seconds"]) == 3
    assert found["training_tokens_per_s"] > 0
    for part in language.read_and_written(options, state, turn):
        found |= part
    assert found["written"].startswith("def ")
    assert found["perplexity"] > 1
    assert found["costs"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_what_both_processes_find_is_put_together(monkeypatch, capsys):
    started = []

    def answers(commands, seconds):
        started.extend(commands)
        assert "--steps" in commands["reading"]
        yield "training", {"counting_perplexity": 20.0, "losses": [1.0]}
        yield "reading", {"perplexity": 5.0}
        yield "reading", {"written": "def f"}

    monkeypatch.setattr(language.processes, "answers", answers)
    options = argparse.Namespace(layers=1, width=8, heads=2, length=8, texts=1, steps=3)
    found = [dict(one) for one in language.both(options, 9.0)]
    assert started == ["training", "reading"]
    assert [sorted(one) for one in found][1] == ["counting_perplexity", "losses", "perplexity"]
    said = capsys.readouterr().out
    assert "perplexity 5.00, by counting 20.00" in said
    assert "def f" in said


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert language.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
