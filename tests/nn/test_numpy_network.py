"""The training step in NumPy does what the network does."""

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.examples.digits import Net
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.examples.numpy_network import DIGITS, LENET, NumpyNetwork
from pmpp.nn.tape import Tensor

EPS = float(np.finfo(np.float32).eps)


def batch(side, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, 1, side, side), dtype=np.float32), rng.integers(0, 10, n)


def within(name, mine, theirs, terms):
    """Two float32 sums of so many terms, in different orders, of about the size of the largest result."""
    assert (mine.shape, mine.dtype) == (theirs.shape, np.float32), name
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=EPS * terms**0.5 * 8 * abs(theirs).max(), err_msg=name)


@pytest.mark.parametrize(("kind", "layers", "side", "n"), [(Net, DIGITS, 8, 6), (LeNet, LENET, 28, 2)])
def test_loss_and_gradients_are_those_of_the_network(kind, layers, side, n):
    nn.manual_seed(3)
    net = kind()
    images, labels = batch(side, n)
    loss = F.cross_entropy(net(Tensor(images)), Tensor(labels))
    loss.backward()
    mine, made = NumpyNetwork(layers, net.state_dict()).gradients(images, labels)
    assert mine == pytest.approx(loss.item(), rel=1e-5)
    assert made.keys() == net.state_dict().keys()
    for name, parameter in net.named_parameters():
        within(name, made[name], parameter.grad.numpy(), terms=side * side * n)


def test_three_steps_change_the_parameters_as_sgd_does():
    nn.manual_seed(1)
    net = Net()
    twin = NumpyNetwork(DIGITS, net.state_dict(), lr=0.1, momentum=0.9)
    optimizer = nn.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        images, labels = batch(8, 4, seed=i)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(Tensor(images)), Tensor(labels))
        loss.backward()
        optimizer.step()
        assert twin.step(images, labels) == pytest.approx(loss.item(), rel=1e-4)
    for name, value in net.state_dict().items():
        within(name, twin.parameters[name], value, terms=3 * 64 * 4)


def test_threads_share_a_batch_and_the_result_is_the_same():
    nn.manual_seed(2)
    state = Net().state_dict()
    images, labels = batch(8, 27)
    loss, made = NumpyNetwork(DIGITS, state).gradients(images, labels)
    shared, parts = NumpyNetwork(DIGITS, state, workers=4).gradients(images, labels)
    assert shared == pytest.approx(loss, rel=1e-5)
    for name in made:
        within(name, parts[name], made[name], terms=64 * 27)


def test_the_state_that_was_given_stays_as_it_is():
    state = Net().state_dict()
    before = {name: value.copy() for name, value in state.items()}
    NumpyNetwork(DIGITS, state).step(*batch(8, 4))
    assert all((state[name] == before[name]).all() for name in state)


def test_an_odd_row_has_no_window():
    from pmpp.nn.examples.numpy_network import max_pool, max_pool_backward

    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    y = max_pool(x)
    np.testing.assert_array_equal(y[0, 0], [[6, 8], [16, 18]])
    dx = max_pool_backward(np.ones_like(y), x, y)
    assert dx.sum() == 4
    assert dx[0, 0, 4].sum() == dx[0, 0, :, 4].sum() == 0


def test_of_equal_elements_the_first_takes_the_gradient():
    from pmpp.nn.examples.numpy_network import max_pool_backward

    x = np.zeros((1, 1, 2, 2), np.float32)
    y, dy = np.zeros((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), 5, np.float32)
    np.testing.assert_array_equal(max_pool_backward(dy, x, y)[0, 0], [[5, 0], [0, 0]])


def test_no_thread_at_all_is_refused():
    with pytest.raises(ValueError, match="workers"):
        NumpyNetwork(DIGITS, Net().state_dict(), workers=0)
