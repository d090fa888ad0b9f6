"""Gradients of layers with channels last: against those with channels first in float64, and which kernels run."""

import itertools

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.convolution_layer import channels_last_gradients as room
from pmpp.kernels.convolution_layer import depthwise_channels_last as depthwise
from pmpp.kernels.convolution_layer import input_gradients, weight_gradients
from pmpp.kernels.convolution_layer.definition import Layer, layer_of, window_of
from pmpp.kernels.convolution_layer.implicit_channels_last import first, last, plan_of
from pmpp.kernels.convolution_layer.measured_gradients import input_sums, weight_sums
from pmpp.runtime import device
from tests.support.wrong import misaligned, observe

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="observes what the interpreter runs")
BY_INPUT, BY_WEIGHTS = input_gradients.inputs(), weight_gradients.inputs()

# Layers in which each channel has its own filter, and channels are whole vectors: images, window, options.
DEPTHWISE = {
    "3x3 p1": ((2, 8, 5, 6), (3, 3), 1, 1),
    "3x3 s2 p1": ((2, 12, 7, 9), (3, 3), 2, 1),
    "3x3 s2x3, two groups of vectors": ((1, 132, 6, 7), (3, 3), (2, 3), 1),
    "5x5 s2 p2": ((1, 8, 9, 9), (5, 5), 2, 2),
    "7x7, in four parts": ((1, 4, 8, 8), (7, 7), 1, 3),
    "3x2 s1x2 d2x1": ((2, 8, 9, 8), (3, 2), (1, 2), 0, (2, 1)),
    "5x5 s3 d2, a place at a time": ((1, 4, 11, 17), (5, 5), (1, 3), 2, 2),
    "5x1 d1x9, columns far apart": ((1, 4, 6, 40), (1, 5), 1, 0, (1, 9)),
    "stride beyond the window": ((1, 4, 9, 10), (2, 2), (3, 4)),
    "stride beyond the image": ((1, 4, 3, 5), (2, 2), (2, 2**30), 1),
}


def lying_last(x):
    return np.ascontiguousarray(last(x))


def last_shape(shape):
    return shape[0], *shape[2:], shape[1]


def by_input(dy, w, shape, *rest, **more):
    """As `input_gradients`, through channels last."""
    result = room.input_gradient(lying_last(dy), lying_last(w), last_shape(shape), *rest, **more)
    return first(device.to_host(result))


def by_weights(dy, x, *rest, **more):
    """As `weight_gradients`, through channels last."""
    return first(device.to_host(room.weight_gradient(lying_last(dy), lying_last(x), *rest, **more)))


def right(result, definition, *arguments):
    expected = definition.reference(*arguments)
    return result.shape == expected.shape and (abs(result - expected) <= definition.tolerance(*arguments)).all()


def drawn(shape, window, *options):
    """(dy, x, w, options) of a layer in which each channel has its own filter."""
    channels, rng = shape[1], np.random.default_rng(76)
    options = *options, *(1, 0, 1)[len(options) :], channels
    w = channels, 1, *window
    return *(rng.standard_normal(one, dtype=F32) for one in (layer_of(shape, w, *options).shape, shape, w)), options


@pytest.mark.parametrize("name", BY_INPUT)
def test_by_input(name):
    assert right(by_input(*BY_INPUT[name]), input_gradients, *BY_INPUT[name])


@pytest.mark.parametrize("name", BY_WEIGHTS)
def test_by_weights(name):
    assert right(by_weights(*BY_WEIGHTS[name]), weight_gradients, *BY_WEIGHTS[name])


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name):
    dy, x, w, options = drawn(*DEPTHWISE[name])
    assert right(by_input(dy, w, x.shape, *options), input_gradients, dy, w, x.shape, *options)
    assert right(by_weights(dy, x, w.shape[2:], *options), weight_gradients, dy, x, w.shape[2:], *options)


def test_whole_vectors_of_channels_and_filters():
    """More than a tile of filters and of columns, in two groups; sums in several parts, the last one short."""
    rng = np.random.default_rng(1)
    shape, w = (3, 72, 5, 7), (136, 36, 2, 2)
    a = layer_of(shape, w, 1, 1, 1, 2)
    dy, x, w = (rng.standard_normal(one, dtype=F32) for one in (a.shape, shape, w))
    apart = abs(by_weights(dy, x, 2, 1, 1, 1, 2) - weight_sums(dy, x, a))
    assert (apart <= (a.n * a.p * a.q + 2) * 2.0**-24 * weight_sums(abs(dy), abs(x), a)).all()
    apart = abs(by_input(dy, w, shape, 1, 1, 1, 2) - input_sums(dy, w, a))
    assert (apart <= (a.k // 2 * 4 + 2) * 2.0**-24 * input_sums(abs(dy), abs(w), a)).all()


def test_what_begins_anywhere():
    dy, x, w, options = drawn(*DEPTHWISE["3x3 s2 p1"])
    moved = [misaligned(lying_last(one), 1) for one in (dy, x, w)]
    result = room.input_gradient(moved[0], moved[2], last_shape(x.shape), *options)
    assert right(first(device.to_host(result)), input_gradients, dy, w, x.shape, *options)
    result = room.weight_gradient(*moved[:2], 3, *options)
    assert right(first(device.to_host(result)), weight_gradients, dy, x, 3, *options)


def test_output_and_stream():
    dy, w, shape, *options = BY_INPUT["3x3 s2 p1, 17 channels"]
    out, stream = device.to_device(np.full(last_shape(shape), np.nan, F32)), cuda.stream()
    result = room.input_gradient(lying_last(dy), lying_last(w), last_shape(shape), *options, out=out, stream=stream)
    stream.synchronize()
    assert result is out
    assert right(first(out.copy_to_host()), input_gradients, dy, w, shape, *options)
    dy, x, kernel, *options = BY_WEIGHTS["3x3 p1"]
    out = device.to_device(np.full((4, 3, 3, 3), np.nan, F32))
    result = room.weight_gradient(lying_last(dy), lying_last(x), kernel, *options, out=out, stream=stream)
    stream.synchronize()
    assert result is out
    assert right(first(out.copy_to_host()), weight_gradients, dy, x, kernel, *options)


def test_what_is_refused_is_named():
    dy, w, x = np.ones((1, 4, 4, 8), F32), np.ones((8, 3, 3, 4), F32), np.ones((1, 4, 4, 4), F32)
    shape = x.shape
    for call, name in (
        (lambda: room.input_gradient(dy.astype(np.float64), w, shape, 1, 1), "dy"),
        (lambda: room.input_gradient(dy[0], w, shape, 1, 1), "dy"),
        (lambda: room.input_gradient(dy, w, shape), "dy"),
        (lambda: room.input_gradient(dy, w[:0], shape, 1, 1), "w"),
        (lambda: room.input_gradient(dy, w, shape[1:], 1, 1), "shape"),
        (lambda: room.input_gradient(dy, w, (1, 1, 1, 4), 1, 0), "shape"),
        (lambda: room.input_gradient(dy, w, shape, 0, 1), "stride"),
        (lambda: room.input_gradient(dy, w, shape, 1, -1), "padding"),
        (lambda: room.input_gradient(dy, w, shape, 1, 1, 0), "dilation"),
        (lambda: room.input_gradient(dy, w, shape, 1, 1, 1, 3), "groups"),
        (lambda: room.input_gradient(dy, w, shape, 1, 1, out=np.zeros(shape, F32)), "out"),
        (lambda: room.input_gradient(dy, w, shape, 1, 1, stream="s"), "stream"),
        (lambda: room.weight_gradient(dy, x.astype(np.float16), 3, 1, 1), "x"),
        (lambda: room.weight_gradient(dy, x[..., :0], 3, 1, 1), "x"),
        (lambda: room.weight_gradient(dy[..., :0], x, 3, 1, 1), "dy"),
        (lambda: room.weight_gradient(dy, x, 3), "dy"),
        (lambda: room.weight_gradient(dy, x, 7, 1, 1), "x"),
        (lambda: room.weight_gradient(dy, x, 0, 1, 1), "kernel_size"),
        (lambda: room.weight_gradient(dy, x, 3, 1, 1, 1, 3), "groups"),
        (lambda: room.weight_gradient(dy, x, 3, 1, 1, stream="s"), "stream"),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert str(caught.value).startswith(name), caught.value
    whole = device.to_device(np.zeros(1000, F32))
    given, out = whole[: dy.size].reshape(dy.shape), whole[100 : 100 + x.size].reshape(shape)
    with pytest.raises(ValueError, match=r"^out"):
        room.input_gradient(given, w, shape, 1, 1, out=out)


@interpreter_only
def test_which_kernels_run():
    def kernels(call, *arguments):
        return [report.kernel for report in observe(call, *arguments)[1]]

    dy, x, w, options = drawn(*DEPTHWISE["3x3 p1"])
    assert kernels(by_input, dy, w, x.shape, *options) == ["turned_kernel", "kernel"]
    assert kernels(by_weights, dy, x, 3, *options) == ["windows_kernel"]
    dy, x, w, options = drawn(*DEPTHWISE["3x3 s2 p1"])
    assert kernels(by_input, dy, w, x.shape, *options) == ["depthwise_input_kernel"]
    dy, x = np.ones((1, 32, 12, 12), F32), np.ones((1, 16, 12, 12), F32)
    run = kernels(by_weights, dy, x, 3, 1, 1)
    assert run == ["weights_by_vectors_kernel", "add_parts_kernel"]
    w = np.ones((32, 16, 3, 3), F32)
    assert kernels(by_input, dy, w, x.shape, 1, 1)[:2] == ["turned_squares_kernel", "vectorised_kernel"]
    some = kernels(by_input, dy[:, :, :6, :6].copy(), w, x.shape, 2, 1)  # four classes, and none is all of dx
    assert some.count("place_kernel") == some.count("turned_squares_kernel") == 4


def test_totals_stay_in_registers(ptx):
    x, layer = np.zeros(64, F32), Layer(1, 8, 4, 4, 8, 3, 3, padding=(1, 1), groups=8)
    sizes = depthwise.sizes_of(layer), window_of(layer)
    lines, strips = room.Lines(*map(np.int32, range(7))), room.Strips(*map(np.int32, range(4)))
    product = room.Product(*map(np.uint32, range(13)))
    for kernel, more in (
        *(
            (room.depthwise_weights_kernel(how), (*sizes, lines))
            for how in (room.Strides(3, 3, 4, 1, 1), room.Strides(3, 5, 4, 2, 1), room.Strides(3, 5, 1, 1, 2))
        ),
        (room.depthwise_input_kernel, (*sizes, strips)),
        (room.weights_by_vectors_kernel, (plan_of(layer).image, product)),
        (room.weights_kernel, (plan_of(layer).image, product)),
    ):
        assert ".local" not in ptx(kernel, x, x, x, *more, cc=(9, 0))


@pytest.mark.gpu
@pytest.mark.parametrize(("stride", "groups"), [*itertools.product((1, 2), (1, 2, 24))])
def test_torch_agrees(stride, groups):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    w = rng.standard_normal((24, 24 // groups, 3, 3), dtype=F32)
    a = layer_of((3, 24, 13, 15), w.shape, stride, 1, 1, groups)
    dy, x = rng.standard_normal(a.shape, dtype=F32), rng.standard_normal((3, 24, 13, 15), dtype=F32)
    given = [torch.from_numpy(one).cuda() for one in (dy, x, w)]
    pair = [stride, stride], [1, 1], [1, 1]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        dx, dw, _ = torch.ops.aten.convolution_backward(*given, None, *pair, False, [0, 0], groups, [True, True, False])
    apart = abs(by_input(dy, w, x.shape, stride, 1, 1, groups) - dx.cpu().numpy())
    assert (apart <= 2 * input_gradients.tolerance(dy, w, x.shape, stride, 1, 1, groups)).all()
    apart = abs(by_weights(dy, x, 3, stride, 1, 1, groups) - dw.cpu().numpy())
    assert (apart <= 2 * weight_gradients.tolerance(dy, x, 3, stride, 1, 1, groups)).all()
