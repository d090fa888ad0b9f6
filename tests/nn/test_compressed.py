"""Compressed activations: which gradients change and which do not, their expectation, the bytes, what is refused."""

import contextlib
import gc

import numpy as np
import pytest

from pmpp import nn
from pmpp.kernels import compression
from pmpp.nn import functional as F
from pmpp.nn import init
from pmpp.nn.measure.memory import in_use
from pmpp.nn.tape import Tensor, state
from pmpp.runtime import device

each_bits = pytest.mark.parametrize("bits", compression.BITS)


def made():
    """A network whose every kind of layer is packed, pooled, or kept."""
    nn.manual_seed(3)
    first = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(128, 16), nn.Tanh(), nn.Linear(16, 10))


def batch(n=8):
    rng = np.random.default_rng(5)
    return Tensor(rng.standard_normal((n, 1, 8, 8), dtype=np.float32)), Tensor(rng.integers(0, 10, n))


def gradients(net, x, y):
    net.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in net.named_parameters()}


def same(found, expected):
    """Equal, but for the order in which atomics on a GPU may add: far less than what 8 bits leave."""
    return np.linalg.norm(found - expected) <= (1e-5 if device.on_gpu() else 0) * np.linalg.norm(expected)


def test_with_32_bits_only_relu_is_packed_and_nothing_changes():
    net, (x, y) = made(), batch()
    plain, exact = gradients(net, x, y)
    with nn.compressed_activations(32):
        loss, found = gradients(net, x, y)
    assert same(loss, plain)
    for name, gradient in exact.items():
        assert same(found[name], gradient), name


@each_bits
def test_only_weights_behind_a_packed_input_have_another_gradient(bits):
    """Forwards nothing changes, and on the way back weights and signs are exact: so biases are, and the first layer."""
    net, (x, y) = made(), batch()
    plain, exact = gradients(net, x, y)
    with nn.compressed_activations(bits):
        loss, found = gradients(net, x, y)
    assert same(loss, plain)
    packed = {"3.weight", "6.weight", "8.weight"}
    for name, gradient in exact.items():
        assert same(found[name], gradient) == (name not in packed), name
        assert np.linalg.norm(found[name] - gradient) < 2.0 ** (1 - bits / 2) * np.linalg.norm(gradient)


@each_bits
def test_the_expectation_of_a_gradient_is_the_gradient(bits):
    """dW = dy^T x: its element is a sum of codes times dy, each of which varies by a quarter of a step squared at most.

    The mean over k seeds is then within five deviations, but for what the order of float32 sums changes.
    """
    rng = np.random.default_rng(6)
    x = Tensor(rng.standard_normal((64, 24), dtype=np.float32), requires_grad=True)
    weight = Tensor(rng.standard_normal((5, 24), dtype=np.float32), requires_grad=True)
    dy, seeds = rng.standard_normal((64, 5), dtype=np.float32), 64
    total = np.zeros((5, 24))
    with nn.compressed_activations(bits):
        for seed in range(seeds):
            nn.manual_seed(seed)
            weight.grad = None
            F.linear(x, weight).backward(dy)
            total += weight.grad.numpy()
    values = x.detach().numpy()
    step = (values.max() - values.min()) / (2**bits - 1)
    deviation = 0.5 * step * np.sqrt(np.sum(dy.astype(np.float64) ** 2, axis=0) / seeds)[:, None]
    rounding = 64 * 2.0**-24 * (np.abs(dy).T.astype(np.float64) @ np.abs(values))
    exact = dy.T.astype(np.float64) @ values
    assert np.all(abs(total / seeds - exact) < 5 * deviation + rounding)
    with nn.compressed_activations(bits, nearest=True):
        weight.grad = None
        F.linear(x, weight).backward(dy)
        once = weight.grad.numpy()
        weight.grad = None
        F.linear(x, weight).backward(dy)
    assert same(weight.grad.numpy(), once), "to the nearest it is the same each time"


def test_each_call_and_each_step_draws_other_numbers_and_a_seed_repeats_them():
    net, (x, y) = made(), batch()
    with nn.compressed_activations(2):
        nn.manual_seed(1)
        first, second = gradients(net, x, y)[1], gradients(net, x, y)[1]
        nn.manual_seed(1)
        again = gradients(net, x, y)[1]
    assert not same(first["6.weight"], second["6.weight"])
    assert same(again["6.weight"], first["6.weight"])


def test_parameters_and_dropout_are_the_same_with_and_without():
    x = Tensor(np.ones((4, 300), np.float32), requires_grad=True)

    def results():
        nn.manual_seed(4)
        return [F.dropout(nn.Linear(300, 300)(x), 0.5).detach().numpy() for _ in range(2)]

    plain = results()
    with nn.compressed_activations(4):
        np.testing.assert_array_equal(results(), plain)


@each_bits
def test_the_bytes_that_are_kept(bits):
    """Of a linear layer's input the words, of ReLU's a bit a number; the batch as it is; and they are released."""
    nn.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 3)), Tensor(np.ones((64, 6), np.float32))
    n = 64 * 512

    def kept():
        for _ in range(3):  # whatever kernels, and recordings of them, keep for good
            net(x).sum()
        gc.collect()
        before = in_use()
        loss = net(x).sum()
        return in_use() - before, nn.memory(net, loss)["activations"]

    measured, predicted = kept()
    assert predicted == 2 * 4 * n + x.array.nbytes
    with nn.compressed_activations(bits):
        fewer, packed = kept()
    assert packed == 4 * compression.words_of(n, bits) + n // 8 + x.array.nbytes
    rounded = 512 * 8 if device.on_gpu() else 0  # a pool gives multiples of 512 bytes
    assert abs((measured - fewer) - (predicted - packed)) <= rounded


def test_a_graph_that_is_used_twice_unpacks_the_same_numbers():
    x = Tensor(np.random.default_rng(7).standard_normal((40, 30), dtype=np.float32), requires_grad=True)
    weight = Tensor(np.ones((2, 30), np.float32), requires_grad=True)
    with nn.compressed_activations(4):
        loss = F.relu(F.linear(x, weight)).sum()
    loss.backward(retain_graph=True)
    first = weight.grad.numpy()
    loss.backward()
    np.testing.assert_allclose(weight.grad.numpy(), 2 * first, rtol=1e-6)
    with pytest.raises(RuntimeError, match="was freed by an earlier backward"):
        loss.backward()


def test_what_is_checkpointed_keeps_its_input_as_it_is():
    """Nothing within it is saved forwards. Computed again behind the context, nothing is packed."""
    net, (x, y) = made(), batch()
    first, last = nn.Sequential(*[net[i] for i in range(6)]), nn.Sequential(*[net[i] for i in range(6, 9)])
    _, exact = gradients(net, x, y)
    net.zero_grad()
    with nn.compressed_activations(4):
        loss = F.cross_entropy(last(nn.checkpoint.checkpoint(first, x)), y)
    loss.backward()
    for name, p in net.named_parameters():
        assert same(p.grad.numpy(), exact[name]) == (name not in ("6.weight", "8.weight")), name


def test_within_it_and_outside_of_it():
    assert state.compression is None
    outer, inner = nn.compressed_activations(8), nn.compressed_activations(2, nearest=True)
    with outer:
        with inner:
            assert state.compression is inner
        assert state.compression is outer
        with outer:
            assert state.compression is outer
        assert state.compression is outer
    assert state.compression is None

    @nn.compressed_activations(4)
    def bits():
        return state.compression.bits

    assert bits() == 4
    assert state.compression is None


def test_what_is_kept_as_it_is():
    """What has 16 bits, what is seen through strides, what needs no gradient, and other activations."""
    plain = Tensor(np.ones((4, 300), np.float32), requires_grad=True)
    short = Tensor(np.ones((4, 300), np.float16))
    with nn.compressed_activations(4) as rule:
        assert rule.input(short) is short
        assert rule.signs(short) is short
        assert isinstance(rule.input(plain), nn.tape.Packed)
        tanh = F.tanh(plain)
    assert tanh.node.context.saved[0].dtype == np.float32


def test_bad_arguments():
    for bits, error, said in (
        (3, ValueError, "bits must be 8, 4, 2 or 32, was 3"),
        ("4", TypeError, "bits must be an integer, was '4'"),
    ):
        with pytest.raises(error, match=said):
            nn.compressed_activations(bits)
    with pytest.raises(TypeError, match="nearest must be True or False, was 1"):
        nn.compressed_activations(4, nearest=1)


def test_a_recording_is_refused(monkeypatch):
    monkeypatch.setattr(state, "capturing", True)
    x = Tensor(np.ones((4, 300), np.float32), requires_grad=True)
    with nn.compressed_activations(4) as rule, pytest.raises(RuntimeError, match="every step would round alike"):
        rule.input(x)


def test_rounding_has_a_count_of_its_own():
    nn.manual_seed(9)
    before = init.where()
    offsets = [init.next_rounding() for _ in range(3)]
    assert init.where()[:2] == before[:2]
    assert len(set(offsets)) == 3
    assert all(offset % 4 == 0 and offset >= 2**62 for offset in offsets)


def test_rounding_goes_on_where_it_was_and_two_numbers_leave_it():
    nn.manual_seed(9)
    init.next_rounding()
    at = init.where()
    expected = init.next_rounding()
    init.resume(list(at))
    assert init.next_rounding() == expected
    init.resume(at[:2])
    assert init.where() == (9, 0, 2)
    for wrong, error, said in (
        ((1,), ValueError, "two or three numbers"),
        (3, TypeError, "at must be what where"),
        ((9, 0, -1), ValueError, "rounded must be at least 0"),
        ((9, 1.5), TypeError, "drawn must be an integer"),
    ):
        with pytest.raises(error, match=said):
            init.resume(wrong)
    assert init.where() == (9, 0, 2), "nothing was changed"


def test_a_checkpointed_part_rounds_anew_each_time():
    """Only the backward pass rounds there. Its count goes on, or each step would have the errors of the one before."""
    layer, x = nn.Linear(300, 2), Tensor(np.ones((4, 300), np.float32), requires_grad=True)
    began = init.where()
    for n in (1, 2):
        loss = nn.utils.checkpoint.checkpoint(layer, x).sum()
        with nn.compressed_activations(4):
            loss.backward()
        assert init.where() == (*began[:2], began[2] + n)


def test_the_gradient_of_relu_where_its_input_is_nan_is_zero():
    """The docstring names this as the one gradient that packing changes."""
    found = []
    for packed in (False, True):
        x = Tensor(np.float32([np.nan, 1, -1]), requires_grad=True)
        with nn.compressed_activations(32) if packed else contextlib.nullcontext():
            y = F.relu(x)
        y.backward(np.float32([5, 6, 7]))
        found.append(x.grad.numpy().tolist())
    assert found == [[5, 6, 0], [0, 6, 0]]
