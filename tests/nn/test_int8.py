"""Networks quantised after their training: the layers, their steps in floats, the scores, and the command."""

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn.examples import digits, int8
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

F32 = np.float32


def untrained(make=digits.Net, seed=3):
    nn.manual_seed(seed)
    return make()


def test_layers_are_found_in_their_order():
    found = int8.layers_of(untrained(LeNet))
    assert [(layer.weight.shape, layer.padding, layer.relu) for layer in found] == [
        ((6, 5, 5, 1), 2, True),
        ((16, 5, 5, 6), 0, True),
        ((120, 400), 0, True),
        ((84, 120), 0, True),
        ((10, 84), 0, False),
    ]


@pytest.mark.parametrize("make", [digits.Net, LeNet])
def test_layers_and_pooling_are_those_of_the_network(make):
    """In floats the same steps give the scores of the network itself."""
    net, size = untrained(make), 8 if make is digits.Net else 28
    images = np.random.default_rng(1).standard_normal((3, 1, size, size), dtype=F32)
    x = int8.channels_last(images)
    for layer in int8.layers_of(net):
        layer = int8.of_places(layer, x.shape)
        x = int8.pooled(int8.in_floats(x, layer), layer)
    with nn.no_grad():
        np.testing.assert_allclose(x, net(Tensor(images)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", int8.WAYS)
def test_scores_in_int8_are_near_those_in_float32(how):
    net, images = untrained(), digits.datasets()[0].arrays[0][:40]
    whole, exact = int8.IntegerNet(net, images, how), digits.scores(net, images)
    error = np.sqrt(np.mean((whole(images) - exact) ** 2)) / np.sqrt(np.mean(exact**2))
    # Four roundings of 8 bits, each of a thousandth or two of its range; a cut-off range costs more.
    assert error < (0.03 if how == "range" else 0.1)
    assert [one.weight.dtype for one in whole.whole] == [np.int8] * 3


def test_bytes_are_those_of_a_byte_a_weight():
    net = untrained()
    whole = int8.IntegerNet(net, digits.datasets()[0].arrays[0][:8])
    weights, channels = 72 + 1152 + 640, 8 + 16 + 10
    assert [one.weight.shape for one in whole.whole] == [(8, 3, 3, 1), (16, 3, 3, 8), (10, 64)]
    assert whole.nbytes == weights + channels * (4 + 4)
    assert sum(parameter.detach().numpy().nbytes for parameter in net.parameters()) == 4 * (weights + channels)


def test_a_bias_beside_tiny_weights_fits_an_int32():
    net, images = untrained(), digits.datasets()[0].arrays[0][:40]
    values = net.state_dict()
    weight, bias = next(name for name in values if "weight" in name), next(name for name in values if "bias" in name)
    values[weight][0] *= np.float32(1e-9)
    values[bias][0] = 0.5
    net.load_state_dict(values)
    whole, exact = int8.IntegerNet(net, images), digits.scores(net, images)
    assert whole.whole[0].bias[0] == pytest.approx(2**30, rel=1e-6)
    assert whole.whole[0].weight[0].tolist() == np.zeros((3, 3, 1)).tolist()
    error = np.sqrt(np.mean((whole(images) - exact) ** 2)) / np.sqrt(np.mean(exact**2))
    assert error < 0.05


def test_layers_without_biases_no_layers_and_no_images():
    nn.manual_seed(3)
    net = nn.Module()
    net.convolution, net.last = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Linear(64, 10, bias=False)
    images = digits.datasets()[0].arrays[0][:20]
    whole = int8.IntegerNet(net, images)
    assert [one.bias.tolist() for one in whole.whole] == [[0] * 4, [0] * 10]
    assert whole(images).shape == (20, 10)
    assert whole(images[:0]).shape == (0, 10)
    with pytest.raises(ValueError, match="net must have Conv2d or Linear layers among its attributes, ReLU has none"):
        int8.IntegerNet(nn.ReLU(), images)


@pytest.mark.parametrize(
    ("option", "said"), [("--seeds", "seeds must be at least 1"), ("--epochs", "epochs must be at")]
)
def test_nothing_to_train_is_refused(option, said, capsys):
    with pytest.raises(SystemExit):
        int8.main([option, "0"])
    assert said in capsys.readouterr().err


@pytest.mark.gpu
def test_little_is_lost():
    found = int8.main(["--seeds", "2"])
    assert all(before > 0.95 for before, _ in found)
    assert np.mean([before - after for before, after in found]) < 0.01
    assert device.on_gpu()
