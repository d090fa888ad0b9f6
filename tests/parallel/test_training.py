"""Four simulated ranks train the digit network: the losses are those of one rank on the joined batch."""

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import data
from pmpp.runtime import device

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

RANKS, EACH, STEPS = 4, 2, 3  # EACH: the digits of a rank


def train(group, images, labels):
    """A few steps on one batch, of which every rank takes its own part. Returns its losses, and all weights after."""
    nn.manual_seed(5)
    net = data.DataParallel(group, digits.Net())
    optimizer = nn.optim.SGD(net.parameters(), lr=digits.RATE, momentum=0.9)
    share, losses = len(labels) // group.size, []
    part = slice(share * group.rank, share * (group.rank + 1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(nn.Tensor(images[part])), nn.Tensor(labels[part]))
        loss.backward()
        net.average_gradients()
        optimizer.step()
        losses.append(device.to_host(group.all_reduce(loss.array, "mean")).item())
    weights = np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in net.parameters()])
    return losses, weights


@pytest.fixture(scope="module")
def batch():
    images, labels = digits.datasets()[0][: RANKS * EACH]
    return images, labels.astype(np.int64)


def test_four_ranks_train_as_one_does_on_the_joined_batch(batch):
    results = parallel.ranks(RANKS, train, *batch)
    alone, weights = train(parallel.init(), *batch)
    for losses, others in results:
        assert losses == results[0][0]
        np.testing.assert_array_equal(others, results[0][1])  # all ranks hold the same network, to the bit
    # The longest sum of a step is over 8 images of 64 places. It is off by no more than so many half epsilons.
    rounding = STEPS * RANKS * EACH * 64 * np.finfo(np.float32).eps / 2
    np.testing.assert_allclose(results[0][0], alone, rtol=rounding)
    np.testing.assert_allclose(results[0][1], weights, rtol=0, atol=rounding * np.abs(weights).max())
    assert alone[-1] < alone[0]
    bytes_of_gradients = 4 * len(weights)
    # A ring sends each byte 2 (p - 1) times in all; the loss of 4 bytes is one more array. In the bucket 6 elements lie
    # between the last layer's bias of 10 and the next gradient, which begins at a multiple of 8.
    assert results.report.kinds["all_reduce"][2] == STEPS * 2 * (RANKS - 1) * (bytes_of_gradients + 4 * 6 + 4)
    assert results.report.kinds["broadcast"][2] == (RANKS - 1) * bytes_of_gradients
