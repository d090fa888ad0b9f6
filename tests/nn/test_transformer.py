"""The transformer: its attention against float64, its gradients against slopes, its cache against the whole pass."""

import numpy as np
import pytest

from pmpp import nn
from pmpp.kernels import attention
from pmpp.nn import functional as F
from pmpp.nn import products
from pmpp.nn.examples import transformer
from pmpp.nn.tape import Tensor
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.nn.gradients import gradients_agree


@pytest.mark.parametrize(
    ("dtype", "causal"),
    [(None, True), (None, False), *zip(known(("float16", "bfloat16")), (True, False), strict=False)],
)
def test_attention_of_a_text_on_itself(dtype, causal):
    """In 16 bits within the room's tolerance, and in float32 within that of the room that keeps no weights.

    That room adds for each new maximum what the kept weights need not: its tolerance has room for the softmax, whose
    weights are divided once each, and rounded.
    """
    qkv = np.random.default_rng(0).standard_normal((2, 9, 3, 2, 8), dtype=np.float32)
    heads = [qkv[:, :, part].transpose(0, 2, 1, 3).astype(dtype or np.float32) for part in range(3)]
    exact = attention.reference(*(x.astype(np.float64) for x in heads), causal)
    allowed = (attention.on_tensor_cores if dtype else attention).tolerance(*heads, causal)
    with nn.amp.autocast(dtype=dtype or "float16", enabled=dtype is not None):
        found = F.self_attention(Tensor(qkv.reshape(2, 9, 48)), 2, causal)
    assert found.dtype == (np.float32 if dtype is None else dtype)
    by_heads = found.numpy().reshape(2, 9, 2, 8).transpose(0, 2, 1, 3).astype(np.float64)
    assert (abs(by_heads - exact) <= allowed).all()


@pytest.mark.parametrize("causal", [True, False])
def test_the_gradient_of_attention_is_its_slope(causal):
    gradients_agree(lambda qkv: F.self_attention(qkv, 2, causal), (2, 5, 24))


def test_the_gradient_of_attention_in_16_bits_is_the_rooms():
    """To the bit: a layer adds to the room's kernels only where their operands lie."""
    causal, forward = True, products.attention_room(9).forward
    rng = np.random.default_rng(1)
    qkv, up = (rng.standard_normal((1, 9, parts * 16)).astype(np.float16) for parts in (3, 1))
    x = Tensor(qkv.astype(np.float32), requires_grad=True)
    with nn.amp.autocast(dtype="float16"):
        y = F.self_attention(x, 2, causal)
    y.float().backward(up.astype(np.float32))
    by_heads = [one.reshape(1, 9, -1, 2, 8).transpose(2, 0, 3, 1, 4) for one in (qkv, up)]
    (q, k, v), (gradient,) = ([np.ascontiguousarray(part) for part in one] for one in by_heads)
    result, logs = forward(q, k, v, causal)
    wanted = attention.attention_backward(gradient, q, k, v, causal, result=result, logs=logs)
    found = x.grad.numpy().reshape(1, 9, 3, 2, 8).transpose(2, 0, 3, 1, 4)
    for mine, one in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, device.to_host(one).astype(np.float32))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_that_keeps_its_weights_agrees_in_16_bits(causal, monkeypatch):
    """Heads of more elements than the kernels on tensor cores take, here of 16 bits that are exact at every step.

    Queries are 0, so each weight is one over the number of keys seen. With a window of the first two keys these are 1
    and 1/2, and all numbers have few bits.
    """
    monkeypatch.setattr(products, "MOST_SIZE", 4)
    rng = np.random.default_rng(2)
    qkv, up = (rng.integers(-2, 3, (1, 2, parts * 16)).astype(np.float32) for parts in (3, 1))
    qkv[:, :, :16] = 0
    found = []
    for enabled in (False, True):
        x = Tensor(qkv, requires_grad=True)
        with nn.amp.autocast(dtype="float16", enabled=enabled):
            y = F.self_attention(x, 2, causal)
        y.float().backward(up)
        found.append(
            (y.detach().float().numpy(), x.grad.numpy()[:, :, 16:])
        )  # of queries the factor 1 / sqrt(8) is rounded
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_long_texts_on_hopper_take_warpgroups(monkeypatch):
    limits = {**device.limits(), "compute_capability": (9, 0)}
    monkeypatch.setattr(device, "limits", lambda: limits)
    assert products.attention_room(256) is attention.on_tensor_cores
    assert products.attention_room(1024) is attention.on_warpgroups
    limits["compute_capability"] = 8, 0
    assert products.attention_room(1024) is attention.on_tensor_cores


def test_the_gradient_of_softmax_is_its_slope():
    gradients_agree(lambda x: F.softmax(x), (3, 5))


def test_a_cache_gives_the_scores_of_the_whole_pass(unchecked):
    nn.manual_seed(4)
    net = transformer.Transformer(2, 16, 2, 8, vocabulary=24)
    tokens = np.random.default_rng(5).integers(0, 24, (2, 8))
    whole = net(Tensor(tokens)).detach().numpy()
    cache = transformer.Cache(net, 2)
    with nn.no_grad():
        for i in range(8):
            scores = net.step(Tensor(np.ascontiguousarray(tokens[:, i])), cache).numpy()
            np.testing.assert_allclose(scores, whole[:, i], atol=1e-5)
        with pytest.raises(ValueError, match="cache is full"):
            net.step(Tensor(tokens[:, 0].copy()), cache)
    likeliest = transformer.generate(net, tokens[:, :3], 2)
    assert likeliest[:, 3].tolist() == whole[:, 2].argmax(1).tolist()


def test_a_recorded_step_writes_the_same_text(unchecked):
    """Two texts, to the end of the cache: by steps, and as `generate` does it, which records one."""
    nn.manual_seed(4)
    net = transformer.Transformer(1, 16, 2, 12, vocabulary=24)
    made, cache = [np.array([3, 5])], transformer.Cache(net, 2)
    with nn.no_grad():
        for _ in range(12):
            made.append(net.step(Tensor(made[-1]), cache).numpy().argmax(1))
    assert transformer.FEW < 12
    np.testing.assert_array_equal(transformer.generate(net, made[0][:, None], 12), np.stack(made, 1))


def test_a_later_token_changes_no_earlier_score(unchecked):
    nn.manual_seed(6)
    net = transformer.Transformer(1, 16, 2, 8, vocabulary=24)
    tokens = np.arange(8)[None]
    other = tokens.copy()
    other[0, 5] = 20
    first, second = (net(Tensor(given)).detach().numpy() for given in (tokens, other))
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert (first[:, 5:] != second[:, 5:]).any(axis=(0, 2)).all()


def test_the_tied_table_gets_the_gradient_of_both_uses(unchecked):
    """One parameter of the table, moved: the slope has the part of the embedding and that of the head."""
    nn.manual_seed(7)
    net = transformer.Transformer(1, 8, 2, 4, vocabulary=6)
    tokens, following = Tensor(np.arange(4)[None]), Tensor(np.arange(1, 5)[None])
    transformer.loss_of(net, tokens, following).backward()
    table = net.tokens.weight
    direction = np.random.default_rng(8).choice(np.float32([-1, 1]), table.shape)
    start, losses, step = table.detach().numpy().copy(), [], 2.0**-8
    with nn.no_grad():
        for sign in (1, -1):
            table.copy_(start + np.float32(sign * step) * direction)
            losses.append(transformer.loss_of(net, tokens, following).item())
    slope, length = (losses[0] - losses[1]) / (2 * step), float(np.linalg.norm(table.grad.numpy()))
    assert abs((table.grad.numpy() * direction).sum() - slope) <= 1e-2 * length


def test_it_learns_a_text(unchecked):
    """It begins knowing nothing, and ends with less than half the bits of whoever knows how often each letter occurs.

    Four letters that follow one another in a circle take two bits each to whoever knows no more than that, a perplexity
    of 4, and none to whoever knows which letter follows which. One bit is a perplexity of 2.
    """
    data = np.tile(np.arange(4), 20)
    nn.manual_seed(9)
    net = transformer.Transformer(1, 16, 2, 8, vocabulary=4)
    # A normalised row has a length of 4, sqrt(width). So no score is above 4 times the length of a row of the table,
    # and minus the logarithm of a share is that far from log(4), twice.
    most = 4 * np.linalg.norm(net.tokens.weight.detach().numpy(), axis=1).max()
    losses = list(transformer.train(net, data, 16, texts=4, lr=5e-2))
    assert abs(losses[0] - np.log(4)) <= 2 * most + 2.0**-9
    assert transformer.perplexity(net, data[:33], texts=4) < 2


@pytest.mark.parametrize("dtype", [str(one) for one in known(("float16", "bfloat16"))])
def test_large_scores_of_large_heads_in_16_bits(dtype):
    """A head of 136 keeps its scores in memory: here 74,000 each, which float16 does not have. Keys are equal."""
    qkv = np.full((1, 2, 3 * 136), 80, np.float32)
    qkv[0, 0, 136:272], qkv[..., -136:] = -80, 1  # only what the first place sees of itself is negative
    x = Tensor(qkv, requires_grad=True)
    with nn.amp.autocast(dtype=dtype):
        y = F.self_attention(x, 1)
    assert y.dtype == dtype
    assert (y.detach().float().numpy() == 1).all()
    y.float().sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("short", [False, True])
def test_texts_without_a_token(short):
    for shape in ((2, 0, 12), (0, 3, 12)):
        x = Tensor(np.zeros(shape, np.float32), requires_grad=True)
        with nn.amp.autocast(enabled=short):
            y = F.self_attention(x, 2)
        assert y.shape == (*shape[:2], 4)
        y.float().sum().backward()
        assert x.grad.shape == shape


def small():
    nn.manual_seed(4)
    return transformer.Transformer(1, 8, 2, 6, vocabulary=5)


def test_a_step_that_fails_leaves_the_cache_as_it_was(unchecked):
    net, texts = small(), Tensor(np.array([1, 2]))
    with nn.no_grad():
        expected = net.step(texts, transformer.Cache(net, 2)).numpy()
        cache = transformer.Cache(net, 2)
        for wrong in (np.array([1, 2, 3]), np.array([1]), np.float32([1, 2])):
            with pytest.raises((TypeError, ValueError), match=r"^(tokens|indices) must"):
                net.step(Tensor(wrong), cache)
        with pytest.raises(ValueError, match=r"^cache must be of a network with .*'length': 6.* with .*'length': 7"):
            net.step(texts, transformer.Cache(transformer.Transformer(1, 8, 2, 7, vocabulary=5), 2))
        np.testing.assert_array_equal(net.step(texts, cache).numpy(), expected)


def test_what_is_drawn_at_a_low_temperature_is_the_likeliest():
    scores, rng = np.float32([[1, 3, 2], [-1, -3, -2]]), np.random.default_rng(1)
    assert transformer.chosen(scores, 1e-300, rng).tolist() == [1, 0]
    drawn = np.bincount(transformer.chosen(np.tile(scores[:1], (4000, 1)), 1.0, rng), minlength=3) / 4000
    shares = np.exp(scores[0]) / np.exp(scores[0]).sum()
    assert (np.abs(drawn - shares) <= 5 * np.sqrt(shares * (1 - shares) / 4000)).all()


def test_autocast_changes_nothing_that_is_written(unchecked):
    net, prompt = small(), np.array([[1, 2]])
    plain = transformer.generate(net, prompt, 2)
    with nn.amp.autocast():
        np.testing.assert_array_equal(transformer.generate(net, prompt, 2), plain)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": np.nan}, ValueError, "temperature must be a finite number"),
        ({"temperature": -1.0}, ValueError, "temperature must not be negative"),
        ({"temperature": "x"}, TypeError, "temperature must be a number"),
        ({"count": -5}, ValueError, "count must be at least 0"),
        ({"count": 1.5}, TypeError, "count must be an integer"),
        ({"prompt": np.array([[1, 7]])}, ValueError, "prompt must be of tokens from 0 to 4, was 1 to 7"),
        ({"prompt": np.array([[-1, 1]])}, ValueError, "prompt must be of tokens from 0 to 4, was -1 to 1"),
    ],
)
def test_what_cannot_be_written_is_named(options, error, words):
    given = {"prompt": np.array([[1, 2]]), "count": 2} | options
    with pytest.raises(error, match=f"^{words}"):
        transformer.generate(small(), **given)


def test_what_is_wrong_is_named():
    for options, words in (({"heads": 0}, "heads must be at least 1"), ({"layers": -1}, "layers must be at least 0")):
        with pytest.raises(ValueError, match=words):
            transformer.Transformer(**options)
    with pytest.raises(ValueError, match="data must have at least 2 tokens, had 1"):
        transformer.perplexity(small(), np.array([1]))
    with pytest.raises(ValueError, match="data must be of tokens from 0 to 4, was 0 to 5"):
        transformer.perplexity(small(), np.arange(6))
    with pytest.raises(ValueError, match="texts must be at least 1"):
        next(transformer.train(small(), np.arange(5), 4, texts=0))
    with pytest.raises(TypeError, match="qkv must be one of float32, float16, bfloat16, was int64"):
        F.self_attention(Tensor(np.zeros((1, 2, 6), np.int64)), 1)
    with pytest.raises(ValueError, match="qkv must have at least one element of each query"):
        F.self_attention(Tensor(np.zeros((2, 3, 0), np.float32)), 2)
    with pytest.raises(ValueError, match="heads must divide width"):
        transformer.Transformer(1, 10, 3)
    with pytest.raises(ValueError, match="'sys' is not"):
        transformer.text(["sys"])
    with pytest.raises(ValueError, match="qkv must have queries, keys and values"):
        F.self_attention(Tensor(np.ones((1, 2, 8), np.float32)), 2)
