"""Layers that are divided among ranks: results and gradients of the whole layer, and what is sent."""

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.parallel import tensor
from pmpp.runtime import device

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

EPS = np.finfo(np.float32).eps
INPUTS, HIDDEN, CLASSES, ROWS = 5, 8, 12, 3


def whole():
    nn.manual_seed(2)
    return nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)


def given(rng):
    x = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    return x, rng.integers(0, CLASSES, ROWS)


def alone(x, labels):
    first, second = whole()
    x = nn.Tensor(x, requires_grad=True)
    loss = F.cross_entropy(second(F.relu(first(x))), nn.Tensor(labels.astype(np.int64)))
    loss.backward()
    parameters = first.weight, first.bias, second.weight, second.bias
    return loss.detach().item(), [tensor.grad.numpy() for tensor in (x, *parameters)]


def by_rows(group, x, labels):
    """Columns, then rows: the scores are on all ranks."""
    one, two = whole()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    x = nn.Tensor(x, requires_grad=True)
    loss = F.cross_entropy(second(F.relu(first(x))), nn.Tensor(labels.astype(np.int64)))
    loss.backward()
    parameters = first.weight, first.bias, second.weight, second.bias
    return loss.detach().item(), [tensor.grad.numpy() for tensor in (x, *parameters)]


def by_columns(group, x, labels):
    """The last layer by columns: each rank has the scores of some classes."""
    one, two = whole()
    x = nn.Tensor(x, requires_grad=True)
    second = tensor.ColumnLinear(group, two)
    loss = tensor.cross_entropy(group, second(F.relu(one(x))), labels)
    loss.backward()
    parameters = one.weight, one.bias, second.weight, second.bias
    return loss.detach().item(), [tensor.grad.numpy() for tensor in (x, *parameters)]


def agree(mine, wanted):
    """Sums over at most 12 elements, of gradients no larger than their largest."""
    np.testing.assert_allclose(mine, wanted, rtol=0, atol=4 * HIDDEN * EPS * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_then_rows(size, rng):
    x, labels = given(rng)
    loss, (dx, *wanted) = alone(x, labels)
    found = parallel.ranks(size, by_rows, x, labels)
    for mine, (own, *_) in found:
        agree(mine, loss)
        agree(own, dx)
    parts = [gradients[1:] for _, gradients in found]
    for k, axis in ((0, 0), (1, 0), (2, 1)):  # rows of the first weights, its bias, columns of the second weights
        agree(np.concatenate([part[k] for part in parts], axis=axis), wanted[k])
    for part in parts:
        agree(part[3], wanted[3])
    kinds = found.report.kinds
    assert kinds["all_reduce"][0] == 2  # one forward, one backward
    assert kinds["all_reduce"][2] == 2 * (size - 1) * 4 * ROWS * (CLASSES + INPUTS)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_classes_that_are_divided(size, rng):
    x, labels = given(rng)
    loss, (dx, *wanted) = alone(x, labels)
    found = parallel.ranks(size, by_columns, x, labels)
    for mine, (own, *gradients) in found:
        assert mine == found[0][0]
        agree(mine, loss)
        for one, other in zip([own, *gradients[:2]], [dx, *wanted[:2]], strict=True):
            agree(one, other)
    for k in (2, 3):
        agree(np.concatenate([gradients[1 + k] for _, gradients in found]), wanted[k])
    # Three numbers a row forward, and the gradient of the hidden features backward.
    assert found.report.kinds["all_reduce"][2] == 2 * (size - 1) * 4 * ROWS * (3 + HIDDEN)


HEADS, SIZE, LENGTH = 4, 3, 6  # of attention


def attends(group, x, causal, bias, whole=False):
    """The result, and the gradients of the input and of all parameters."""
    nn.manual_seed(4)
    width = HEADS * SIZE
    qkv, out = nn.Linear(INPUTS, 3 * width, bias=bias), nn.Linear(width, CLASSES, bias=bias)
    x = nn.Tensor(x, requires_grad=True)
    if whole:
        layer, y = nn.Sequential(qkv, out), out(F.self_attention(qkv(x), HEADS, causal))
    else:
        layer = tensor.SelfAttention(group, qkv, out, HEADS, causal)
        y = layer(x)
    (y * y).sum().backward()
    return [y.detach().numpy(), x.grad.numpy(), *(parameter.grad.numpy() for parameter in layer.parameters())]


@pytest.mark.parametrize("size, causal, bias", [(1, False, True), (2, False, False), (4, True, True)])
def test_heads_that_are_divided(size, causal, bias, rng):
    x = rng.normal(size=(2, LENGTH, INPUTS)).astype(np.float32)
    wanted = attends(None, x, causal, bias, whole=True)
    found = parallel.ranks(size, attends, x, causal, bias)
    # Sums of up to 12 elements, five of which follow one another, and as many backwards.
    for mine in found:
        for one, other in zip(mine[:2], wanted[:2], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=10 * 12 * EPS * np.abs(other).max())
    names = ["qkv", *["qkv bias"] * bias, "out", *["out bias"] * bias]
    for k, name in enumerate(names, start=2):
        parts = [mine[k] for mine in found]
        if name.startswith("qkv"):  # queries, keys and values of each rank's heads
            shape = 3, HEADS // size, SIZE
            joined = np.concatenate([part.reshape(*shape, *part.shape[1:]) for part in parts], axis=1)
            joined = joined.reshape(wanted[k].shape)
        else:
            joined = np.concatenate(parts, axis=1) if name == "out" else parts[0]
        np.testing.assert_allclose(joined, wanted[k], rtol=0, atol=10 * 24 * EPS * np.abs(wanted[k]).max())
    assert found.report.kinds["all_reduce"][0] == 2  # one forward, one backward


def test_large_scores_do_not_overflow():
    def step(group):
        scores = np.float32([[1000, 999], [-1000, -1001]])[:, group.rank : group.rank + 1]
        return tensor.cross_entropy(group, nn.Tensor(np.ascontiguousarray(scores)), np.array([0, 1])).item()

    wanted = np.log1p(np.exp(-1)) + 0.5
    assert parallel.ranks(2, step) == [pytest.approx(wanted, rel=float(8 * EPS))] * 2


def test_without_a_bias():
    def step(group):
        nn.manual_seed(1)
        one, two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        x = nn.Tensor(np.ones((1, 4), np.float32))
        y = tensor.RowLinear(group, two)(tensor.ColumnLinear(group, one)(x))
        return np.abs(y.detach().numpy() - two(one(x)).detach().numpy()).max()

    assert max(parallel.ranks(2, step)) <= 16 * EPS


@pytest.mark.parametrize(
    "use, error, says",
    [
        (
            lambda g: tensor.ColumnLinear(g, nn.Linear(4, 3)),
            ValueError,
            "outputs must be a multiple of the 2 ranks, was 3",
        ),
        (lambda g: tensor.RowLinear(g, nn.Linear(3, 4)), ValueError, "inputs must be a multiple of the 2 ranks, was 3"),
        (lambda g: heads(g, 3), ValueError, "heads must be a multiple of the 2 ranks, was 3"),
        (lambda g: heads(g, 5), ValueError, "qkv must have queries, keys and values of 5 heads, had 36 outputs"),
        (lambda g: heads(g, 0), ValueError, "heads must be"),
        (lambda g: entropy(g, np.array([0.0])), TypeError, "labels must be a NumPy array of integers, was float64"),
        (lambda g: entropy(g, [0]), TypeError, "labels must be a NumPy array of integers, was list"),
        (lambda g: entropy(g, np.array([0, 1])), ValueError, r"labels must have shape \(1,\), had \(2,\)"),
        (lambda g: entropy(g, np.array([6])), ValueError, "labels must be from 0 to 5, were from 6 to 6"),
        (lambda g: entropy(g, np.array([-1])), ValueError, "labels must be from 0 to 5"),
    ],
)
def test_a_wrong_argument_is_named(use, error, says):
    with pytest.raises(error, match=says):
        parallel.ranks(2, use)


def heads(group, count):
    return tensor.SelfAttention(group, nn.Linear(4, 36), nn.Linear(12, 4), count)


def entropy(group, labels):
    return tensor.cross_entropy(group, nn.Tensor(np.zeros((1, 3), np.float32)), labels)


def test_ranks_hold_a_part_of_the_weights():
    def step(group):
        first, second = whole()
        parts = tensor.ColumnLinear(group, first), tensor.RowLinear(group, second)
        return [device.to_host(part.weight.array).size for part in parts]

    assert parallel.ranks(4, step) == [[INPUTS * HIDDEN // 4, HIDDEN * CLASSES // 4]] * 4
