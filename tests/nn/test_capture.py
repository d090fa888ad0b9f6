"""A recorded training step: what it refuses, and that it does what the step does when it is called, bit for bit."""

import gc
import importlib.util

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.optim import SGD, Adam, AdamW
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

needs_cupy = pytest.mark.skipif(
    device.on_gpu() and importlib.util.find_spec("cupy") is None, reason="CUDA graphs are recorded with CuPy"
)
#: `capture` carries out the step so often before it records it.
WARM_UP = 3 if device.on_gpu() else 0


class Small(nn.Module):
    """A convolution and a linear layer: little enough for the interpreter."""

    def __init__(self):
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(F.relu(F.max_pool2d(self.conv(x), 2)).flatten(1))


def training(kind, optimizer, **options):
    """A network from always the same numbers, and a step of its training."""
    nn.manual_seed(11)
    net = kind()
    optimizer = optimizer(net.parameters(), lr=0.01, **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return net, step


def batches(count, shape):
    """Images and labels, others in each batch."""
    rng = np.random.default_rng(12)
    return [
        (Tensor(rng.standard_normal(shape, dtype=np.float32)), Tensor(rng.integers(0, 10, shape[0])))
        for _ in range(count)
    ]


def called_and_captured_agree(kind, shape, steps, optimizer, **options):
    """Train two networks of the same numbers, one with the step as it is, and compare all bits."""
    given = batches(steps, shape)
    called, step = training(kind, optimizer, **options)
    for _ in range(WARM_UP):
        step(*given[0])
    replayed, same_step = training(kind, optimizer, **options)
    captured = nn.capture(same_step, *given[0])
    # A result is overwritten by the next call, so each is read before it.
    losses = [(step(*batch).item(), captured(*batch).item()) for batch in given]
    assert [a for a, _ in losses] == [b for _, b in losses]
    assert len({a for a, _ in losses}) == steps, "each batch has a loss of its own"
    for (name, mine), other in zip(replayed.state_dict().items(), called.state_dict().values(), strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=name)


STEPS = [(SGD, {"momentum": 0.9, "weight_decay": 0.01}), (Adam, {}), (AdamW, {"weight_decay": 0.1})]
each_optimizer = pytest.mark.parametrize("optimizer, options", STEPS, ids=lambda one: getattr(one, "__name__", ""))


@needs_cupy
@each_optimizer
def test_a_captured_step_is_the_step(optimizer, options):
    called_and_captured_agree(Small, (3, 1, 6, 6), 3, optimizer, **options)


@pytest.mark.gpu
@needs_cupy
@each_optimizer
def test_ten_steps_of_lenet_are_the_same_bits(optimizer, options):
    called_and_captured_agree(LeNet, (64, 1, 28, 28), 10, optimizer, **options)


@needs_cupy
def test_what_a_call_returns_and_where_inputs_go():
    step_inputs = []

    def step(x, y):
        step_inputs.append((x, y))
        return x + y

    x, y = (Tensor(np.float32([1, 2]) * k) for k in (1, 10))
    captured = nn.capture(step, x, y)
    assert [(kept.shape, kept.dtype) for kept in captured.inputs] == [((2,), np.float32)] * 2
    for k in (2, 3):
        result = captured(Tensor(np.float32([k, k])), y)
        assert result is captured.result
        assert (result.shape, result.dtype) == ((2,), np.float32)
        np.testing.assert_array_equal(result.numpy(), np.float32([10 + k, 20 + k]))
    # What was recorded with stays as it was: the graph has copies of its own.
    np.testing.assert_array_equal(x.numpy(), np.float32([1, 2]))
    # On a GPU the step is carried out before the recording and in it, and never after; here, in each call.
    assert len(step_inputs) == (WARM_UP + 1 if device.on_gpu() else 2)


@pytest.mark.parametrize(
    "inputs, error, words",
    [
        ((), TypeError, "recorded with 2 inputs, was given 0"),
        (((3, np.float32),), TypeError, "recorded with 2 inputs, was given 1"),
        (((3, np.float32), (3, np.int64), (3, np.int64)), TypeError, "recorded with 2 inputs, was given 3"),
        (((4, np.float32), (3, np.int64)), ValueError, r"input 0 must be float32\(3,\), .* was float32\(4,\)"),
        (((3, np.float32), ((3, 1), np.int64)), ValueError, r"input 1 must be int64\(3,\), .* was int64\(3, 1\)"),
        (((3, np.int64), (3, np.int64)), ValueError, r"input 0 must be float32\(3,\), .* was int64\(3,\)"),
    ],
)
@needs_cupy
def test_other_inputs_are_refused_by_number_and_nothing_is_done(inputs, error, words):
    done = []
    captured = nn.capture(lambda x, y: done.append(1), Tensor(np.ones(3, np.float32)), Tensor(np.ones(3, np.int64)))
    before = len(done)
    with pytest.raises(error, match=words):
        captured(*(Tensor(np.ones(shape, dtype)) for shape, dtype in inputs))
    assert len(done) == before
    assert captured.result is None


def test_a_step_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="step must be a function, was int"):
        nn.capture(3, Tensor([1.0]))


@pytest.mark.gpu
@needs_cupy
def test_an_old_graph_in_a_circle_is_not_destroyed_while_another_is_recorded():
    """Python searches for garbage at any moment, and the driver frees no memory during a capture."""
    given = batches(1, (4, 1, 6, 6))[0]
    _, step = training(Small, SGD)
    old = nn.capture(step, *given)
    old.itself = old
    del old

    often = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # a search of everything with nearly every allocation
    try:
        nn.capture(step, *given)  # what the driver refuses is a warning, which is an error here
    finally:
        gc.set_threshold(*often)
