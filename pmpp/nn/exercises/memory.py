"""Exercises of notebooks/93_memory.ipynb: a leak, an activation that keeps less, and gradients in parts."""

from __future__ import annotations

import functools
import gc
import typing
from collections.abc import Callable, Iterator

import numpy as np

from pmpp import nn
from pmpp.kernels import activation
from pmpp.nn import functional as F
from pmpp.nn import tape
from pmpp.nn.exercises import Exercise, Mistake
from pmpp.nn.measure.memory import curve, in_use
from pmpp.nn.tape import Function, Tensor
from pmpp.runtime import device

ROUNDED = 512  # bytes: a GPU's pool gives an array at least so many
HELD_OUT = 256  # rows of a batch: the scores of one are more bytes than the losses may hold

# ------------------------------------------------------------------------------------------------------------ leak


def _nodes() -> int:
    gc.collect()
    return sum(1 for found in gc.get_objects() if type(found) is tape.Node)


def _batches(n: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(5)
    images = rng.standard_normal((n, rows, 16), dtype=np.float32)
    return [(Tensor(x), Tensor(np.arange(rows) % 4)) for x in images]


def _expected(net: nn.Module, optimizer: typing.Any, training: list, held_out: list) -> tuple[list, float]:
    losses = []
    for x, y in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with nn.no_grad():
        return losses, float(np.mean([F.cross_entropy(net(x), y).item() for x, y in held_out]))


def _made() -> tuple[nn.Module, typing.Any]:
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    return net, nn.optim.SGD(net.parameters(), lr=0.1)


@functools.cache
def _right() -> list[tuple[list, float]]:
    net, optimizer = _made()
    return [_expected(net, optimizer, _batches(2, 8), _batches(2, HELD_OUT)) for _ in range(2)]


def judge_leak(answer: Callable) -> str:
    """Two epochs: losses as they must be, and no more bytes and nodes after the second than after the first."""
    training, held_out = _batches(2, 8), _batches(2, HELD_OUT)
    net, optimizer = _made()
    right = _right()
    kept, sizes, nodes = [], [], []
    for losses, mean in right:
        found = answer(net, optimizer, training, held_out)
        if found is None:
            raise Mistake("not started", "epoch() returned None")
        kept.append(found)
        if tape.state.watch is not None:
            raise Mistake("a hook is left", "state.watch is still set: what it collects lives as long as the process")
        if not tape.state.recording:
            raise Mistake("the tape is off", "state.recording is False for all that follows: with no_grad() it ends")
        if not net.training or not all(p.requires_grad for p in net.parameters()):
            raise Mistake("the net is changed", "it is in another mode, or its parameters require no gradient any more")
        if not (isinstance(found, tuple | list) and len(found) == 2 and np.iterable(found[0])):
            raise Mistake("wrong form", "epoch() must return two things: a list of all losses, and a mean")
        nodes.append(_nodes())
        sizes.append(in_use())
        numbers = [float(value) for value in found[0]]
        if len(numbers) != len(losses) or not np.allclose([*numbers, float(found[1])], [*losses, mean], rtol=1e-4):
            must, was = np.round([*losses, mean], 4).tolist(), np.round([*numbers, float(found[1])], 4).tolist()
            case = f"in epoch {len(kept)} the losses, and then the mean,"
            raise Mistake("wrong losses", f"{case} must be {must}, were {was}")
    losses_alone = 2 * ROUNDED * (len(training) + 1)  # a result may hold its losses on the device
    if (grown := sizes[1] - sizes[0]) > losses_alone:
        raise Mistake("keeps activations", f"one more epoch holds {grown:,} bytes of device memory more")
    if (more := nodes[1] - nodes[0]) > 0:
        raise Mistake(
            "keeps the tape", f"one more epoch keeps {more} nodes: some loss that you keep still has its node"
        )
    return "Memory stays as it is from epoch to epoch, and no node of the tape is kept."


def mended(net: nn.Module, optimizer: typing.Any, training: list, held_out: list) -> tuple[list[float], float]:
    """An epoch that keeps numbers alone."""
    losses = []
    for x, y in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = 0.0
    with nn.no_grad():
        for x, y in held_out:
            total += F.cross_entropy(net(x), y).item()
    return losses, total / len(held_out)


# ------------------------------------------------------------------------------------------------------------ ReLU


class LeanReLU(Function):
    """max(x, 0), which keeps its result."""

    @staticmethod
    def forward(context, x):
        y = activation.fused(x.array, "relu", stream=tape.state.stream)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return activation.backward(dy, context.saved[0], "relu", stream=tape.state.stream)


def judge_relu(answer: type) -> str:
    """Results, gradients, what is kept beside the next layer's input, and that all of it is freed."""
    if not (isinstance(answer, type) and issubclass(answer, Function)):
        raise Mistake("not a Function", "the answer must be a class that is derived from nn.Function")
    rng = np.random.default_rng(3)
    for shape in ((5,), (3, 7), (2, 3, 4, 5)):
        values = rng.standard_normal(shape, dtype=np.float32)
        values.reshape(-1)[0] = 0
        upstream = rng.standard_normal(shape, dtype=np.float32)
        x, dy = Tensor(values, requires_grad=True), Tensor(upstream)
        given = x * 1.0
        y = answer.apply(given)
        if not np.array_equal(y.detach().numpy(), np.maximum(values, 0)):
            raise Mistake("wrong result", f"for shape {shape} the result is not max(x, 0)")
        if not np.array_equal(given.detach().numpy(), values):
            raise Mistake("input changes", "forward() writes into x, which others may have saved: make a new array")
        saved = [device.address(one) for one in y.node.context.saved if hasattr(one, "__cuda_array_interface__")]
        keeps_result = device.address(y.array) in saved
        y.backward(dy)
        if not np.array_equal(dy.numpy(), upstream):
            raise Mistake("dy changes", "backward() writes into dy, which others may be given, too: make a new array")
        if x.grad is None:
            raise Mistake("no gradient", "backward() returned None")
        wrong = x.grad.numpy() != np.where(values > 0, upstream, 0)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            where = "0" if values[at] == 0 else "positive" if values[at] > 0 else "negative"
            raise Mistake("wrong gradient", f"for shape {shape} the gradient at {at}, where x is {where}, is wrong")
    x, weight = Tensor(np.ones((64, 32), np.float32), requires_grad=True), Tensor(np.ones((4, 32), np.float32))
    weight.requires_grad_()
    gc.collect()
    before = in_use()
    y = x * 1.0
    y = answer.apply(y)
    loss = F.linear(y, weight).sum()
    kept, size = nn.memory(nn.Sequential(), loss)["activations"] - 4 * weight.size, 4 * y.size
    y = None
    gc.collect()
    found = in_use() - before
    if kept > size or found > size + 2 * ROUNDED:
        more = max(kept, found) - size
        raise Mistake(
            "keeps too much", f"beside the result, which the next layer keeps anyway, {more:,} bytes are kept"
        )
    loss.backward()
    gc.collect()
    if in_use() - before > 2 * ROUNDED + 4 * (x.size + weight.size):
        raise Mistake("kept outside the tape", "after backward() it is still there: the tape frees only what was saved")
    if not keeps_result:
        why = "forward() must give its result, and no other array, to context.save_for_backward"
        raise Mistake("result is not saved", f"{why}: what is kept elsewhere costs bytes as well, also on the host")
    return "It adds no byte to what the next layer keeps."


# ------------------------------------------------------------------------------------------------------ accumulation


def accumulated(net: nn.Module, x: Tensor, y: Tensor, size: int) -> float:
    """The gradient of the mean loss of a batch, computed in parts of at most ``size``."""
    total = 0.0
    for i in range(0, len(x), size):
        part, labels = x[i : i + size], Tensor(y.numpy()[i : i + size])
        loss = F.cross_entropy(net(part), labels) * (len(part) / len(x))
        loss.backward()
        total += loss.item()
    return total


class Counted(nn.Sequential):
    """A network that knows how many examples it was given at once, at most."""

    most = 0

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 3) of (N, 8)."""
        self.most = max(self.most, len(x))
        return super().forward(x)


def _linears() -> Counted:
    nn.manual_seed(2)
    return Counted(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))


@functools.cache
def _whole(rows: int) -> tuple:
    """A batch, and what all of it at once gives: bytes of activations, loss, gradients."""
    rng = np.random.default_rng(rows)
    net = _linears()
    x, y = Tensor(rng.standard_normal((rows, 8), dtype=np.float32)), Tensor(rng.integers(0, 3, rows))
    loss = F.cross_entropy(net(x), y)
    most = nn.memory(net, loss)["activations"]
    loss.backward()
    return x, y, most, loss.item(), [p.grad.numpy() for p in net.parameters()]


def judge_accumulate(answer: Callable) -> str:
    """The gradients are those of the whole batch, also where the last part is smaller, and few activations live."""
    many = 24 if not device.on_gpu() else 2400  # there the pool rounds each array up, which few rows would not outweigh
    for rows, size in ((8, 4), (10, 4), (5, 8), (9, 2), (3 * many, many)):
        net, (x, y, most, whole, right) = _linears(), _whole(rows)
        was = net.state_dict()
        with curve() as seen:
            loss = answer(net, x, y, size)
        found = [p.grad for p in net.parameters()]
        case = f"with {rows} examples in parts of {size}"
        if any(not np.array_equal(was[name], now) for name, now in net.state_dict().items()):
            raise Mistake("parameters change", f"{case} the parameters are others: the step is not part of the task")
        if any(gradient is None for gradient in found):
            raise Mistake("no gradient", f"{case} a parameter has no gradient")
        scale = _ratio([p.numpy() for p in found], right)
        if not all(np.allclose(a.numpy(), b, rtol=1e-3, atol=1e-5) for a, b in zip(found, right, strict=True)):
            raise Mistake("wrong gradient", f"{case} the gradient is not that of the whole batch: {scale}")
        if isinstance(loss, Tensor) and loss.node is not None:
            raise Mistake("keeps the tape", f"{case} the result leads to the nodes of each part: return a number")
        if loss is None or not np.isclose(float(loss), whole, rtol=1e-4):
            raise Mistake("wrong loss", f"{case} the loss must be {whole:.4f}, was {loss}")
        if net.most > size:
            raise Mistake("parts are too large", f"{case} the network was given {net.most} examples at once")
        held = seen.peak - seen.before - sum(4 * p.size for p in net.parameters())
        if rows == 3 * many and held > most // 2:
            raise Mistake("keeps all parts", f"{case} {held:,} bytes lived at once, nearly as many as for all at once")
    return "The gradients are those of the whole batch, and the activations those of one part."


def _ratio(found: list[np.ndarray], right: list[np.ndarray]) -> str:
    a, b = (np.concatenate([array.ravel() for array in arrays]) for arrays in (found, right))
    factor = float(a @ b / (b @ b))
    if np.allclose(a, factor * b, rtol=1e-2, atol=1e-4):
        return f"it is {factor:.3g} times that"
    return "and no multiple of it"


def _all() -> Iterator[Exercise]:
    yield Exercise(
        "memory/leak",
        "Each epoch holds more memory than the one before. Mend epoch(): it returns the losses of the training batches "
        "and the mean loss of the held-out ones as before, and keeps nothing else alive.",
        "epoch(net, optimizer, training, held_out) -> (list of numbers, number)",
        judge_leak,
        (
            "There are three leaks. Which of the names that outlive epoch() can reach a node of the tape, or an array?",
            "On the held-out batches no backward() frees anything.",
            "A function that state.watch names is called for every layer until state.watch is None again.",
        ),
        mended,
    )
    yield Exercise(
        "memory/relu",
        "Write a ReLU that keeps its result and not its input. Its gradient is 0 where x is 0.",
        "class ReLU(Function): forward(context, x), backward(context, dy)",
        judge_relu,
        (
            "Where the result is positive, the input was, too.",
            'activation.fused(x.array, "relu") is the result; activation.backward(dy, x, "relu") asks x for its sign.',
        ),
        LeanReLU,
    )
    yield Exercise(
        "memory/accumulate",
        "Compute the gradient of the mean loss of a batch in parts of at most `size` examples, with the activations of "
        "one part at a time, and return the loss as a number. The last part may be smaller.",
        "accumulate(net, x, y, size) -> number; y.numpy() has the labels",
        judge_accumulate,
        (
            "cross_entropy is the mean over a part. What must it be multiplied by to be its share of the whole mean?",
            "Call backward() for each part: it adds to the gradients, and frees.",
        ),
        accumulated,
    )


EXERCISES = tuple(_all())
