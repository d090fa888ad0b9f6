"""Divided parameters: the same training, in parts, with the bytes that the formulas say."""

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import data, sharded

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

BATCH, STEPS = 8, 2
# The longest sum of a step is over the 64 places of an image; two orders of it differ by so much of its size at most.
ROUNDING = 64 * np.finfo(np.float32).eps
RULES = {
    "SGD": lambda params: nn.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: nn.optim.Adam(params, lr=1e-3),
}
COUNTS = (64 * 4 + 4, 4 * 10 + 10)  # parameters of the two layers that have some


@pytest.fixture(scope="module")
def examples():
    images, labels = digits.datasets()[0][: BATCH * STEPS]
    return images, labels.astype(np.int64)


def layers(seed):
    nn.manual_seed(seed)
    return [nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10)]


def train(group, images, labels, rule, reshard=None, pieces=1):
    """Two steps. ``reshard``: None for whole parameters. Returns losses, weights by name, and bytes of state."""
    made = layers(5 + group.rank)
    if reshard is None:
        net = data.DataParallel(group, nn.Sequential(*made))
    else:
        net = sharded.FullySharded(group, made, reshard_after_forward=reshard)
    optimizer, losses = RULES[rule](list(net.parameters())), []
    for indices in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        for part in np.split(indices, pieces):
            loss = F.cross_entropy(net(nn.Tensor(images[part])), nn.Tensor(labels[part])) * (1 / pieces)
            loss.backward()
        if reshard is None:
            net.average_gradients()
        optimizer.step()
        losses.append(loss.item())
    weights = (net.net if reshard is None else net).state_dict()
    return losses, weights, data.state_bytes(optimizer)


@pytest.mark.parametrize("rule, reshard", [("SGD", True), ("Adam", False)])
def test_two_ranks_train_as_with_whole_parameters_to_the_bit(rule, reshard, examples):
    """With two ranks a sum has one order."""
    whole = parallel.ranks(2, train, *examples, rule)
    parts = parallel.ranks(2, train, *examples, rule, reshard)
    for a, b in zip(whole, parts, strict=True):
        assert a[0] == b[0]
        assert a[1].keys() == b[1].keys()
        for name in a[1]:
            np.testing.assert_array_equal(a[1][name], b[1][name], err_msg=name)


@pytest.mark.parametrize("reshard", [True, False])
def test_three_ranks_keep_a_third_and_train_as_one(reshard, examples):
    images, labels = examples[0][:12], examples[1][:12]

    def step(group):
        made = layers(5)
        net = sharded.FullySharded(group, made, reshard_after_forward=reshard) if group.size > 1 else None
        params = list((net or nn.Sequential(*made)).parameters())
        optimizer = RULES["SGD"](params)
        share = len(labels) // group.size
        mine = slice(share * group.rank, share * (group.rank + 1))
        F.cross_entropy((net or nn.Sequential(*made))(nn.Tensor(images[mine])), nn.Tensor(labels[mine])).backward()
        assert sum(param.grad.size for param in params) == sum(param.size for param in params)
        optimizer.step()
        return (net or nn.Sequential(*made)).state_dict(), sum(param.size for param in params)

    alone, _ = step(parallel.init())
    for weights, kept in parallel.ranks(3, step):
        assert kept == sum(-(-count // 3) for count in COUNTS)
        for name, value in alone.items():
            np.testing.assert_allclose(weights[name], value, rtol=0, atol=ROUNDING * abs(value).max(), err_msg=name)


def test_bytes_and_state_of_a_step(examples):
    """Whole: an all-reduce, 2 halves. In parts: a half more, since parameters are gathered twice."""
    size, padded = 4, [4 * -(-count // 4) for count in COUNTS]
    half = 4 * (size - 1) * sum(padded)  # bytes of all ranks: each row goes to, or comes from, all others

    def kinds(reshard):
        def one(group):
            net = sharded.FullySharded(group, layers(5), reshard_after_forward=reshard)
            optimizer = RULES["Adam"](list(net.parameters()))
            x, y = nn.Tensor(examples[0][:2]), nn.Tensor(examples[1][:2])
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            return data.state_bytes(optimizer)

        return parallel.ranks(size, one)

    for reshard in (True, False):
        found = kinds(reshard)
        assert found.report.kinds["all_gather"][2] == half * (2 if reshard else 1)
        assert found.report.kinds["reduce_scatter"][2] == half
        assert list(found) == [4 * 2 * sum(padded) // size] * size


def test_pieces_are_accumulated(examples):
    whole = parallel.ranks(2, train, *examples, "SGD", None, 2)
    parts = parallel.ranks(2, train, *examples, "SGD", True, 2)
    for name, value in whole[0][1].items():
        np.testing.assert_allclose(parts[0][1][name], value, rtol=0, atol=ROUNDING * abs(value).max())


def test_a_layer_is_there_only_while_it_computes(examples):
    made = layers(5)
    net = sharded.FullySharded(parallel.init(), made)
    assert made[1].weight is None
    loss = F.cross_entropy(net(nn.Tensor(examples[0][:2])), nn.Tensor(examples[1][:2]))
    assert made[1].weight is None
    loss.backward()
    assert made[1].weight is None
    assert [name for name, _ in net.named_parameters()] == ["parts.1", "parts.3"]


def test_without_a_tape_nothing_is_computed_twice(examples):
    net = sharded.FullySharded(parallel.init(), layers(5))
    with nn.no_grad():
        found = net(nn.Tensor(examples[0])).numpy()
    wanted = nn.Sequential(*layers(5))(nn.Tensor(examples[0])).detach().numpy()
    np.testing.assert_array_equal(found, wanted)


def test_dropout_and_moments_are_as_in_one_pass(examples):
    """A layer that is computed again drops the same numbers."""

    def gradients(wrap):
        nn.manual_seed(3)
        made = [nn.Flatten(), nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5)), nn.Linear(8, 10)]
        net = wrap(made)
        F.cross_entropy(net(nn.Tensor(examples[0][:4])), nn.Tensor(examples[1][:4])).backward()
        return np.concatenate([param.grad.numpy().reshape(-1) for param in net.parameters()])

    whole = gradients(lambda made: nn.Sequential(*made))
    parts = gradients(lambda made: sharded.FullySharded(parallel.init(), made))
    np.testing.assert_array_equal(parts, whole)


def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            self.down, self.up = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.up.weight = self.down.weight

        def forward(self, x):
            return self.up(self.down(x))

    def gradient(divided):
        nn.manual_seed(1)
        net = sharded.FullySharded(parallel.init(), [Tied()]) if divided else Tied()
        (net(nn.Tensor(np.eye(4, dtype=np.float32))) * 1.0).sum().backward()
        return next(iter(net.parameters())).grad.numpy().reshape(-1)

    np.testing.assert_array_equal(gradient(True), gradient(False))
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    with pytest.raises(ValueError, match=r"layers must not share parameters: 1\.weight is 0\.weight"):
        sharded.FullySharded(parallel.init(), [first, second])


def test_wrong_arguments():
    group = parallel.init()
    with pytest.raises(TypeError, match=r"layers must be modules, layers\[1\] was function"):
        sharded.FullySharded(group, [nn.ReLU(), F.relu])
    with pytest.raises(TypeError, match="reshard_after_forward"):
        sharded.FullySharded(group, [nn.Linear(2, 2)], reshard_after_forward=1.5)
    with pytest.raises(NotImplementedError, match="before they are divided"):
        sharded.FullySharded(group, [nn.Linear(2, 2)]).load_state_dict({})


def test_a_rank_that_calls_a_layer_less_is_named(examples):
    def step(group):
        net = sharded.FullySharded(group, layers(5))
        with nn.no_grad():
            for _ in range(2 - group.rank):
                net(nn.Tensor(examples[0][:2]))
        group.barrier()

    with pytest.raises(parallel.CommunicationError, match="barrier"):
        parallel.ranks(2, step)
