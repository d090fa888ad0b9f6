"""Data parallelism: ranks train as one rank does on the joined batch, and send and keep what their formulas say."""

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import data, streams
from pmpp.parallel.switchboard import Mismatch, Stale
from pmpp.runtime import device

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

EPS = np.finfo(np.float32).eps
BATCH, STEPS = 8, 3


@pytest.fixture(scope="module")
def examples():
    images, labels = digits.datasets()[0][: BATCH * STEPS]
    return images, labels.astype(np.int64)


class Net(nn.Module):
    """Two linear layers. The digit network itself is trained in test_training.py."""

    def __init__(self):
        self.first, self.last = nn.Linear(64, 4), nn.Linear(4, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x.flatten(1))))


TENSORS = 4  # parameters of it


def weights_of(net):
    return np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in net.parameters()])


def train(group, images, labels, make, *, pieces=1, sharded=False, seed=None, during=False, each=False, **options):
    """One epoch. Each rank goes through its part in ``pieces``. Returns losses, weights, and bytes of state.

    ``during``: buckets are sent during the backward pass. ``each``: each has an optimiser of its own.
    """
    nn.manual_seed(5 if seed is None else seed + group.rank)
    net = data.DataParallel(group, Net(), **options)
    optimizer = data.ShardedOptimizer(group, net.parameters(), make) if sharded else make(net.parameters())
    optimizers = [make(bucket) for bucket in net.buckets]
    losses = []
    for indices in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        total = np.float32(0)
        for k, part in enumerate(np.split(indices, pieces)):
            loss = F.cross_entropy(net(nn.Tensor(images[part])), nn.Tensor(labels[part])) * (1 / pieces)
            if during and k == pieces - 1:
                net.backward(loss)
            else:
                loss.backward()
            total += device.to_host(group.all_reduce(loss.array, "mean"))
        if each:
            for _, one in zip(net.averaged(), optimizers, strict=True):
                one.step()
        else:
            if not sharded:
                net.average_gradients()
            optimizer.step()
        losses.append(float(total))
    net.check()
    kept = optimizer.state_bytes() if sharded else data.state_bytes(optimizer)
    return losses, weights_of(net), kept


def sgd(params):
    return nn.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return nn.optim.Adam(params, lr=1e-3)


# The longest sum of a step is over a batch, or over the 64 places of an image.
ROUNDING = STEPS * BATCH * 64 * EPS / 2


@pytest.fixture(scope="module")
def alone(examples):
    return train(parallel.init(), *examples, sgd)


@pytest.mark.parametrize(
    "size, options",
    [
        (2, {}),
        (2, {"pieces": 2}),
        (4, {"bucket": 300, "pieces": 2}),
        (4, {"sharded": True}),
    ],
    ids=str,
)
def test_ranks_train_as_one_does_on_the_joined_batch(size, options, examples, alone):
    results = parallel.ranks(size, lambda group: train(group, *examples, sgd, **options))
    losses, weights, _ = alone
    for one in results:
        assert one[0] == results[0][0]
        np.testing.assert_array_equal(one[1], results[0][1])
    np.testing.assert_allclose(results[0][0], losses, rtol=ROUNDING)
    np.testing.assert_allclose(results[0][1], weights, rtol=0, atol=ROUNDING * np.abs(weights).max())


def test_all_begin_with_the_network_of_rank_0(examples):
    results = parallel.ranks(2, lambda group: train(group, *examples, sgd, seed=7))
    first = train(parallel.init(), *examples, sgd, seed=7)
    np.testing.assert_allclose(results[1][1], first[1], rtol=0, atol=ROUNDING * np.abs(first[1]).max())


def test_a_sharded_optimiser_keeps_a_share_and_has_the_same_bits(examples):
    """With two ranks a sum has one order."""
    whole = parallel.ranks(2, lambda group: train(group, *examples, adam))
    shards = parallel.ranks(2, lambda group: train(group, *examples, adam, sharded=True))
    np.testing.assert_array_equal(shards[0][1], whole[0][1])
    count, arrays = len(whole[0][1]), 2
    assert [one[2] for one in whole] == [4 * arrays * count] * 2
    assert [one[2] for one in shards] == [4 * arrays * -(-count // 2)] * 2


@pytest.mark.parametrize("sharded", [False, True])
def test_bytes_and_messages_of_a_step(sharded, examples):
    size = 4
    report = parallel.ranks(size, lambda group: train(group, *examples, sgd, sharded=sharded)).report
    count = weights_of(Net()).size
    kinds = {kind: counts for kind, counts in report.kinds.items() if kind != "all_gather" or sharded}
    sent = 2 * (size - 1) * 4 * STEPS  # of each element of a ring, by all ranks together
    if sharded:
        padded = size * -(-count // size)
        assert kinds["reduce_scatter"] == (STEPS, STEPS * size * (size - 1), sent * padded // 2)
        gathered = (size - 1) * size * 32 * TENSORS  # digests of check()
        assert kinds["all_gather"][2] == sent * padded // 2 + gathered
        assert kinds["all_reduce"][2] == sent
    else:
        # In the bucket gradients begin at multiples of 8: after the last layer's 10 and the first one's 4.
        assert kinds["all_reduce"] == (2 * STEPS, 4 * STEPS * size * (size - 1), sent * (count + 6 + 4 + 1))


def test_smaller_buckets_send_more_messages_and_no_more_bytes(examples):
    def reports(bucket):
        return parallel.ranks(2, lambda group: train(group, *examples, sgd, bucket=bucket)).report.kinds["all_reduce"]

    one, each = reports(1 << 20), reports(1)
    assert one[0] == 2 * STEPS
    assert each[0] == (TENSORS + 1) * STEPS  # and the loss
    assert one[2] - each[2] == STEPS * 2 * 4 * (6 + 4)  # what lies between gradients, and alone they have none


def test_accumulating_sends_no_more(examples):
    def step(group, pieces):
        train(group, *examples, sgd, pieces=pieces)

    whole, pieces = (parallel.ranks(2, step, n).report.kinds["all_reduce"] for n in (1, 4))
    # Each piece has a loss, which the test sends; the gradients are sent once.
    assert pieces[0] - whole[0] == 3 * STEPS


@pytest.mark.parametrize("options", [{}, {"bucket": 1300, "last": 1100}, {"bucket": 1, "pieces": 2}], ids=str)
def test_sums_during_the_backward_pass_have_the_same_bits_and_messages(options, examples):
    """In the second one each bucket also has an optimiser of its own, which changes it when it has arrived."""
    after, during = (
        parallel.ranks(2, lambda group, yes: train(group, *examples, sgd, during=yes, each=yes, **options), yes)
        for yes in (False, True)
    )
    assert during[0][0] == after[0][0]
    np.testing.assert_array_equal(during[0][1], after[0][1])
    assert during.report.kinds == after.report.kinds


def test_a_bucket_is_sent_when_its_gradients_are_there():
    """The last layer's are sent before the first layer's have been computed."""

    def step(group):
        net = data.DataParallel(group, Net(), bucket=1)
        sent, send = [], net._send

        def note():
            sent.append((net._sent, sorted(net._written & {id(p) for p in net.net.first.parameters()})))
            send()

        net._send = note
        net.backward(F.cross_entropy(net(nn.Tensor(np.ones((2, 64), np.float32))), nn.Tensor(np.zeros(2, np.int64))))
        during = [(k, len(first)) for k, first in sent]
        net.average_gradients()
        return during, len(sent)

    for during, count in parallel.ranks(2, step):
        assert [k for k, _ in during] == list(range(TENSORS))
        assert [first for _, first in during[:2]] == [0, 0]
        assert count == TENSORS


@pytest.mark.parametrize("options", [{}, {"bucket": 300}, {"bucket": 1, "pieces": 2, "during": True}], ids=str)
def test_gradients_of_16_bits_send_half_the_bytes_and_differ_by_their_rounding(options, examples, alone):
    short = parallel.ranks(2, lambda group: train(group, *examples, sgd, dtype="float16", **options))
    whole = parallel.ranks(2, lambda group: train(group, *examples, sgd, **options))
    losses = 2 * 4 * STEPS * options.get("pieces", 1)  # bytes, of both ranks
    kinds = [one.report.kinds["all_reduce"][2] - losses for one in (short, whole)]
    assert 2 * kinds[0] == kinds[1]
    np.testing.assert_array_equal(short[0][1], short[1][1])
    assert (short[0][1] != whole[0][1]).any()
    # Three roundings of 2^-11: of both parts and of their sum. Momentum adds a gradient up to three times in as many
    # steps, so a weight differs by at most that much of the way that it has gone, were all gradients of one sign. They
    # are not, and ten times as much is allowed.
    nn.manual_seed(5)
    moved = np.abs(whole[0][1] - weights_of(Net())).max()
    assert np.abs(short[0][1] - whole[0][1]).max() <= 10 * 3 * 2.0**-11 * moved


def test_a_gradient_of_16_bits_is_rounded_and_what_is_too_large_is_infinite():
    def step(group):
        net = data.DataParallel(group, nn.Linear(2, 1, bias=False), dtype="float16")
        net.net(nn.Tensor(np.float32([[2049.0, 60000.0]]))).sum().backward()
        net.average_gradients()
        return net.net.weight.grad.numpy()

    for gradient in parallel.ranks(2, step):
        assert gradient.dtype == np.float32
        assert gradient.tolist() == [[2048.0, np.inf]]


@pytest.mark.parametrize("dtype", ["float64", "int32", None])
def test_gradients_are_sent_in_two_dtypes(dtype):
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'float16', was"):
        data.DataParallel(parallel.init(), nn.Linear(1, 1), dtype=dtype)


@pytest.mark.parametrize("last", [0, 301, 2.5])
def test_the_last_bucket_has_no_more_than_others(last):
    with pytest.raises((TypeError, ValueError), match="last must be"):
        data.DataParallel(parallel.init(), nn.Linear(1, 1), bucket=300, last=last)


def test_the_last_bucket_can_be_a_small_one():
    for dtype, last in (("float32", 1100), ("float16", 550)):
        net = data.DataParallel(parallel.init(), Net(), bucket=1300, dtype=dtype, last=last)
        assert [[one.size for one in bucket] for bucket in net.buckets] == [[10, 40], [4, 256]]


# ------------------------------------------------------------------------------------------------ going on later


def go_on(group, images, labels, make, kept, epoch, sharded):
    """An epoch, from what an earlier one has left. Returns what the next one needs, and the losses."""
    nn.manual_seed(9 + group.rank)
    net = Net()
    if kept is not None:
        net.load_state_dict(kept[0])
    net = data.DataParallel(group, net)
    optimizer = data.ShardedOptimizer(group, net.parameters(), make) if sharded else make(net.parameters())
    if kept is not None:
        optimizer.load_state_dict(kept[1])
    losses = []
    for indices in data.batches(len(labels), BATCH, group.rank, group.size, epoch=epoch):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(nn.Tensor(images[indices])), nn.Tensor(labels[indices]))
        loss.backward()
        if not sharded:
            net.average_gradients()
        optimizer.step()
        losses.append(float(device.to_host(group.all_reduce(loss.array, "mean"))))
    return (net.net.state_dict(), optimizer.state_dict()), losses


def test_a_training_goes_on_with_another_number_of_ranks(examples):
    """Four ranks, then one, then two, with the state divided, whole, and divided: the losses are those of one rank."""
    kept = alone = None
    for epoch, (size, sharded) in enumerate([(4, True), (1, False), (2, True)]):
        found = parallel.ranks(size, go_on, *examples, adam, kept, epoch, sharded)
        alone, wanted = parallel.ranks(1, go_on, *examples, adam, alone, epoch, False)[0]
        kept, losses = found[0]
        assert all(one[1] == losses for one in found)
        # An epoch rounds as `ROUNDING` says. Adam divides by the size of a gradient, and makes more of its rounding.
        np.testing.assert_allclose(losses, wanted, rtol=(epoch + 1) * ROUNDING * 10)
    assert kept[1]["groups"] == alone[1]["groups"]
    assert {name: array.shape for name, array in kept[1]["arrays"].items()} == {
        name: array.shape for name, array in alone[1]["arrays"].items()
    }


def test_state_of_other_parameters_is_refused():
    optimizer = data.ShardedOptimizer(parallel.init(), [nn.Parameter(np.zeros((2, 3), np.float32))], sgd)
    values = {"groups": [{}], "arrays": {"0.momentum": np.zeros((3, 2), np.float32)}}
    with pytest.raises(ValueError, match=r"values must fit the parameters; 0\.momentum of shape \(3, 2\) does not"):
        optimizer.load_state_dict(values)
    with pytest.raises(ValueError, match=r"1\.momentum of shape \(2, 3\) does not"):
        optimizer.load_state_dict({"groups": [{}], "arrays": {"1.momentum": np.zeros((2, 3), np.float32)}})


def test_gradients_that_come_back_to_an_address_are_copied_anew():
    net = data.DataParallel(parallel.init(), nn.Linear(3, 2))
    kept = []  # so that each round has addresses of its own
    for made in range(1, data.KEPT + 2):
        arrays = {id(parameter): device.empty(parameter.shape, np.float32) for parameter in net.buckets[0]}
        kept.append(arrays)
        for value in (7.0, 8.0):
            for array in arrays.values():
                array.copy_to_device(np.full(array.shape, value, np.float32))
            net._found = dict(arrays)
            net._fill(0)
            assert {float(x) for key in arrays for x in device.to_host(net._places[key])} == {value}
        assert len(net._tables[0]) == (made if made <= data.KEPT else 1)


def test_a_stream_waits_for_another_one_and_not_for_itself(monkeypatch):
    waits = []

    class Mark:
        def set(self, stream):
            waits.append(("set", stream))

        def wait(self, stream):
            waits.append(("wait", stream))

    monkeypatch.setattr(streams, "_mark", lambda number: Mark())
    monkeypatch.setattr(device, "_stream_handle", lambda stream: stream)
    streams.wait_for(0, 5)
    streams.wait_for(5, 5)
    assert waits == [("set", 0), ("wait", 5)]


def test_a_parameter_that_nobody_uses_is_sent_at_the_end():
    def step(group):
        net = data.DataParallel(group, Net(), bucket=1)
        net.backward((net.net.first(nn.Tensor(np.ones((1, 64), np.float32))) * (1 + group.rank)).sum())
        sent = net._sent  # the last layer comes first, and has no gradient
        net.average_gradients()
        return sent, net.net.last.bias.grad.numpy().tolist(), net.net.first.bias.grad.numpy().tolist()

    assert list(parallel.ranks(2, step)) == [(0, [0.0] * 10, [1.5] * 4)] * 2


def test_a_missed_average_is_named():
    def step(group):
        nn.manual_seed(1)
        net = data.DataParallel(group, nn.Linear(3, 2))
        optimizer = sgd(net.parameters())
        net(nn.Tensor(np.full((1, 3), 1.0 + group.rank, np.float32))).sum().backward()
        optimizer.step()
        net.check()

    with pytest.raises(Stale, match="rank 1 has another weight than rank 0"):
        parallel.ranks(2, step)


def test_ranks_with_other_networks_are_named():
    with pytest.raises(Mismatch, match="ranks disagree on the shape of broadcast"):
        parallel.ranks(2, lambda group: data.DataParallel(group, nn.Linear(3 + group.rank, 2)))


def test_a_parameter_without_a_gradient_counts_as_zeros():
    def step(group):
        nn.manual_seed(1)
        used, unused = nn.Linear(2, 2), nn.Linear(2, 2)
        net = data.DataParallel(group, nn.Sequential(used, unused))
        (used if group.rank == 0 else unused)(nn.Tensor(np.ones((1, 2), np.float32))).sum().backward()
        net.average_gradients()
        return [parameter.grad.numpy().tolist() for parameter in net.parameters()]

    assert parallel.ranks(2, step) == [[[[0.5, 0.5]] * 2, [0.5, 0.5]] * 2] * 2


# ------------------------------------------------------------------------------------------------ which examples


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_the_ranks_have_the_batches_of_one(size):
    def joined(size):
        parts = [list(data.batches(100, 12, rank, size, epoch=2, seed=3)) for rank in range(size)]
        return [np.concatenate(parts).tolist() for parts in zip(*parts, strict=True)]

    found = joined(size)
    assert found == joined(1)
    assert len(found) == 8
    assert len({index for batch in found for index in batch}) == 96


def test_each_epoch_and_seed_has_another_order():
    orders = [tuple(next(data.batches(50, 50, 0, 1, epoch=e, seed=s))) for e in (0, 1) for s in (0, 1)]
    assert len(set(orders)) == 4
    assert {*orders[0]} == {*range(50)}


@pytest.mark.parametrize(
    "arguments, options, says",
    [
        ((10, 3, 0, 2), {}, "batch must be a multiple of the 2 ranks, was 3"),
        ((10, 11, 0, 1), {}, "batch must be"),
        ((10, 4, 2, 2), {}, "rank must be"),
        ((10, 4, 0, 2), {"epoch": -1}, "epoch must be"),
        ((0, 1, 0, 1), {}, "length must be"),
    ],
)
def test_a_wrong_argument_is_named(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        next(data.batches(*arguments, **options))


# ------------------------------------------------------------------------------------------------ moments of all


def normalise(group, x, dy, layer):
    """A rank's part through a layer: results, gradients, moments."""
    share = len(x) // group.size
    part = slice(share * group.rank, share * (group.rank + 1))
    given = nn.Tensor(x[part], requires_grad=True)
    y = layer(given)
    (y * nn.Tensor(dy[part])).sum().backward()
    gradients = [group.all_reduce(p.grad.array) for p in (layer.weight, layer.bias)]
    layer.eval()
    found = (y.detach(), given.grad, layer.running_mean, layer.running_var, layer(given.detach()).detach())
    return [tensor.numpy() for tensor in found] + [device.to_host(gradient) for gradient in gradients]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_moments_are_those_of_the_joined_batch(size, rng):
    x, dy = (rng.normal(loc=3, size=(8, 3, 2, 2)).astype(np.float32) for _ in range(2))
    alone = normalise(parallel.init(), x, dy, nn.BatchNorm2d(3))
    found = parallel.ranks(size, lambda group: normalise(group, x, dy, data.SyncBatchNorm2d(group, 3)))
    joined = [np.concatenate(parts) for parts in list(zip(*found, strict=True))[:2]]
    # Sums over 32 elements of a size of up to 6, divided by a deviation of about 1.
    close = {"rtol": 0, "atol": 32 * 6 * 6 * EPS}
    for mine, wanted in zip(joined, alone[:2], strict=True):
        np.testing.assert_allclose(mine, wanted, **close)
    for one in found:
        for mine, wanted in zip(one[2:4] + one[5:], alone[2:4] + alone[5:], strict=True):
            np.testing.assert_allclose(mine, wanted, **close)
    if size > 1:
        own = parallel.ranks(size, lambda group: normalise(group, x, dy, nn.BatchNorm2d(3)))
        assert np.abs(np.concatenate([one[0] for one in own]) - alone[0]).max() > 0.05
    evaluated = np.concatenate([one[4] for one in found])
    np.testing.assert_allclose(evaluated, alone[4], **close)
