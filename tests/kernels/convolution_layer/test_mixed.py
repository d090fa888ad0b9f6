"""Convolution layers of 16 bits and their gradients: against the definition in float64, on layers that are no tiles."""

from unittest import mock

import numpy as np
import pytest

from pmpp.kernels.convolution_layer import (
    definition,
    input_gradients,
    mixed,
    mixed_boxes,
    mixed_warpgroups,
    weight_gradients,
)
from pmpp.kernels.matmul import tensor_cores
from pmpp.kernels.matmul.tensor_cores import Tile
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding

DTYPES = known(mixed.DTYPES)

#: x, w, then stride, padding, dilation and groups.
LAYERS = {
    "3x3": ((2, 5, 6, 7), (9, 5, 3, 3), 1, 1, 1, 1),
    "1x1 in chunks": ((2, 16, 4, 4), (8, 16, 1, 1), 1, 0, 1, 1),
    "strides": ((1, 3, 9, 8), (4, 3, 3, 2), (2, 3), (1, 0), 1, 1),
    "a stride that skips": ((1, 2, 6, 6), (3, 2, 1, 1), 2, 0, 1, 1),
    "dilated": ((1, 2, 7, 9), (3, 2, 3, 2), 1, (2, 1), (2, 3), 1),
    "groups": ((1, 6, 5, 5), (9, 2, 3, 3), 2, 1, 1, 3),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), 1, 0, 1, 1),
    "as large as the image": ((3, 4, 3, 5), (2, 4, 3, 5), 1, 0, 1, 1),
}


def drawn(rng, shape, dtype):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def close(found, exact, sizes, terms, dtype):
    """The error of sums in float32 on tensor cores, 17 terms at a time, and of rounding once."""
    assert found.dtype == dtype
    steps = -(-terms // tensor_cores.MMA_K) + 1
    sums = 17 * steps * 2.0**-23 * (sizes + 1e-30)
    error = abs(device.to_host(found).astype(np.float64) - exact)
    assert (error <= sums + rounding(abs(exact) + sums, dtype)).all()


def agrees(case, dtype):
    x_shape, w_shape, *options = case
    rng = np.random.default_rng(0)
    x, w, bias = drawn(rng, x_shape, dtype), drawn(rng, w_shape, dtype), drawn(rng, w_shape[0], dtype)
    a = definition.layer_of(x_shape, w_shape, *options)
    dy = drawn(rng, a.shape, dtype)
    wide = [one.astype(np.float64) for one in (x, w, bias, dy)]
    sizes = [abs(one) for one in wide]
    made = mixed.convolution(x, w, bias, *options)
    by_x = mixed.input_gradient(dy, w, x_shape, *options)
    by_w = mixed.weight_gradient(dy, x, w_shape[2:], *options)
    reference = definition.reference
    close(made, reference(*wide[:3], *options), reference(*sizes[:3], *options), w[0].size + 1, dtype)
    reference = input_gradients.reference
    of_input = wide[3], wide[1], x_shape, *options
    close(by_x, reference(*of_input), reference(sizes[3], sizes[1], *of_input[2:]), w[:, 0].size, dtype)
    reference, terms = weight_gradients.reference, a.n * a.p * a.q
    close(
        by_w,
        reference(wide[3], wide[0], w_shape[2:], *options),
        reference(sizes[3], sizes[0], w_shape[2:], *options),
        terms + 2,
        dtype,
    )


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_and_its_gradients(name):
    agrees(LAYERS[name], np.dtype("float16"))


@pytest.mark.parametrize("dtype", [one for one in DTYPES if one != np.float16], ids=str)
def test_the_other_dtype(dtype):
    agrees(LAYERS["3x3"], dtype)


@pytest.mark.parametrize(("name", "side"), [("3x3", 128), ("strides", 64), ("a stride that skips", 64), ("one", 128)])
def test_warpgroups_compute_a_layer_and_its_gradient(name, side):
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    with mock.patch.object(mixed, "by_warpgroups", return_value=side):
        agrees(LAYERS[name], np.dtype("float16"))


@pytest.mark.parametrize("parts", [1, 3])
def test_warpgroups_compute_a_gradient_by_weights(parts):
    """Small integers, as below: of more filters than a tile, and of parts whose last one is short."""
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    rng = np.random.default_rng(2)
    x, dy = (rng.integers(-1, 2, shape).astype(np.float16) for shape in ((5, 16, 5, 9), (5, 136, 4, 8)))
    assert mixed.as_it_lies(1, 136, 32)
    with mock.patch.object(mixed, "parts_for", return_value=parts):
        found = device.to_host(mixed.weight_gradient(dy, x, 2))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float32), (2, 2), (2, 3))
    wanted = np.einsum("ncpqrs,nkpq->kcrs", windows, dy.astype(np.float32), optimize=True)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("side", [128, 64])
def test_several_tiles_of_warpgroups(side):
    """As the next test, for pixels of more than a tile, and filters of one and a bit."""
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    with mock.patch.object(mixed, "by_warpgroups", return_value=side):
        compared_with_numpy(Tile(side, 128, 32, 1, 4), mixed.TILES[-1])


@pytest.mark.parametrize("tile", mixed.TILES, ids=str)
def test_several_tiles_of_each_size(tile):
    """Small integers: all sums are exact, and so is each result, of at most 11 bits. So NumPy's must be the same."""
    with mock.patch.multiple(mixed, by_warpgroups=lambda *_: None, as_it_lies=lambda *_: False):
        compared_with_numpy(tile, tile)


def compared_with_numpy(tile, cut):
    rng = np.random.default_rng(1)
    c, k, h, width = 16, tile.m + 8, 9, tile.n // 8 + 2
    x, w, dy = (
        rng.integers(-1, 2, shape).astype(np.float16)
        for shape in ((1, c, h, width), (k, c, 2, 2), (1, k, h - 1, width - 1))
    )
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float32), (2, 2), (2, 3))
    wide_w, wide_dy, by_x = w.astype(np.float32), dy.astype(np.float32), np.zeros(x.shape, np.float32)
    for r, s in np.ndindex(2, 2):
        by_x[:, :, r : r + h - 1, s : s + width - 1] += np.einsum("nkpq,kc->ncpq", wide_dy, wide_w[:, :, r, s])
    with (
        mock.patch.object(mixed, "tile_for", return_value=tile),
        mock.patch.object(mixed, "cut_for", return_value=(cut, 3)),
    ):
        made, back = mixed.convolution(x, w), mixed.input_gradient(dy, w, x.shape)
        by_w = mixed.weight_gradient(dy, x, 2)
    np.testing.assert_array_equal(device.to_host(made), np.einsum("ncpqrs,kcrs->nkpq", windows, wide_w))
    np.testing.assert_array_equal(device.to_host(back), by_x)
    np.testing.assert_array_equal(device.to_host(by_w), np.einsum("ncpqrs,nkpq->kcrs", windows, wide_dy))


#: Of layers that the copy engine brings: images, channels, filters, rows and columns of images and kernel; a dtype.
BOXES = {
    "two tiles, and filters of two warpgroups": (5, 64, 128, 5, 5, 3, 1, np.dtype("float16")),
    "more channels than a box": (1, 128, 64, 3, 2, 1, 3, DTYPES[-1]),
    "3x3": (2, 64, 64, 3, 4, 3, 3, np.dtype("float16")),
    "1x1": (2, 64, 64, 3, 4, 1, 1, np.dtype("float16")),
}


def integers_of(n, c, k, h, width, r, q):
    """x, w, dy and bias of a layer, and its padding. All results are small integers, and exact."""
    rng = np.random.default_rng(5)
    shapes = (n, c, h, width), (k, c, r, q), (n, k, h, width), (k,)
    return [rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes], (r // 2, q // 2)


def needs_boxes():
    if device.limits()["compute_capability"] != mixed_boxes.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_places(name):
    """Few enough terms that an integer below 256, which fits in bfloat16, holds every sum of the case in bfloat16."""
    needs_boxes()
    *extents, r, q, dtype = BOXES[name]
    (x, w, dy, bias), padding = integers_of(*extents, r, q)
    around = (0, 0), (0, 0), (r // 2,) * 2, (q // 2,) * 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), (r, q), (2, 3))
    of_dy = np.lib.stride_tricks.sliding_window_view(np.pad(dy, around), (r, q), (2, 3))
    short = [one.astype(dtype) for one in (x, w, dy, bias)]
    with mock.patch.multiple(mixed_boxes, _suits=lambda *_: True, MOST_GATHERED=9.0):
        made = mixed.convolution(short[0], short[1], short[3], 1, padding)
        by_x = mixed.input_gradient(short[2], short[1], x.shape, 1, padding)
        by_w = mixed.weight_gradient(short[2], short[0], (r, q), 1, padding)
    wanted = np.einsum("ncpqrs,kcrs->nkpq", windows, w, optimize=True) + bias[:, None, None]
    np.testing.assert_array_equal(device.to_host(made).astype(np.float32), wanted)
    wanted = np.einsum("nkhwrs,kcrs->nchw", of_dy, w[:, :, ::-1, ::-1], optimize=True)
    np.testing.assert_array_equal(device.to_host(by_x).astype(np.float32), wanted)
    wanted = np.einsum("ncpqrs,nkpq->kcrs", windows, dy, optimize=True)
    np.testing.assert_array_equal(device.to_host(by_w).astype(np.float32), wanted)


def test_other_kernels_take_the_order_of_boxes():
    """They do where many places are zeros. And what lies in the order already is taken."""
    needs_boxes()
    (x, w, dy, bias), padding = integers_of(2, 64, 64, 3, 2, 3, 1)
    x, w, dy, bias = (one.astype(np.float16) for one in (x, w, dy, bias))
    found = []
    for gathers in (True, False):
        with mock.patch.multiple(mixed_boxes, _suits=lambda *_: True, gathers=lambda _, answer=gathers: answer):
            zeros = mixed.zeros_for(x.shape, w.shape, 1, padding)
            last, last_dy = (mixed.channels_last(one, 1, zeros) for one in (x, dy))
            more = [{"last": last}, {"last": last_dy}, {"last": last, "last_dy": last_dy}] if gathers else [{}] * 3
            made = (
                mixed.convolution(x, w, bias, 1, padding, **more[0]),
                mixed.input_gradient(dy, w, x.shape, 1, padding, **more[1]),
                mixed.weight_gradient(dy, x.shape if gathers else x, (3, 1), 1, padding, **more[2]),
            )
            found.append([device.to_host(one) for one in made])
            with pytest.raises(ValueError, match=r"^last must have shape"):
                mixed.convolution(x, w, None, 1, padding, last=last[8:])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("rows", "filters", "dtype"), [(1300, 64, DTYPES[-1]), (70, 192, np.dtype("float16"))])
def test_gradients_of_a_linear_layer_by_boxes(rows, filters, dtype):
    """Enough rows for parts that several threads add up, with a short one at the end; and filters of a tile and a half.

    Few rows of dy are not 0, so that sums are small integers.
    """
    needs_boxes()
    rng = np.random.default_rng(6)
    dy, x = (rng.integers(-1, 2, (rows, width)).astype(np.float32) for width in (filters, 64))
    dy[rng.permutation(rows)[64:]] = 0
    cut = mixed_boxes.Cut(1, -(-rows // 64), 1) if rows > 1000 else mixed_boxes.cut_for(filters, 1, rows, 132)
    with mock.patch.object(mixed_boxes, "cut_for", return_value=cut):
        given = [device.to_device(one.astype(dtype)) for one in (dy, x)]
        by_w, by_bias = mixed_boxes.transposed_product(*given, 0, counted=True)
        alone, nothing = mixed_boxes.transposed_product(*given, 0)
    np.testing.assert_array_equal(device.to_host(by_w).astype(np.float32), dy.T @ x)
    np.testing.assert_array_equal(device.to_host(by_bias).astype(np.float32), dy.sum(axis=0))
    np.testing.assert_array_equal(device.to_host(alone), device.to_host(by_w))
    assert nothing is None
    assert mixed_boxes.slices_of(filters * 64, cut.parts) == (8 if rows > 1000 else 1)


def test_which_layers_the_copy_engine_brings():
    def taken(x, w, **options):
        return mixed_boxes.takes(definition.layer_of(x, w, **options))

    limits = {**device.limits(), "compute_capability": (9, 0), "multiprocessors": 132}
    with mock.patch.object(device, "limits", return_value=limits):
        x, w = (128, 64, 32, 32), (64, 64, 3, 3)
        assert taken(x, w, padding=1)
        assert not taken(x, w)  # the output is smaller than the input
        assert not taken(x, w, padding=1, stride=2)
        assert not taken(x, w, padding=2, dilation=2)
        assert not taken(x, (64, 32, 3, 3), padding=1, groups=2)
        assert not taken(x, (72, 64, 3, 3), padding=1)
        limits["compute_capability"] = 8, 0
        assert not taken(x, w, padding=1)


@pytest.mark.parametrize(("columns", "padding"), [(7, (1, 2)), (8, (2, 1)), (16, (0, 0)), (8, (0, 1))])
def test_zeros_lie_behind_rows_and_images(columns, padding):
    """More channels than a square, and more pixels; by single numbers, and by 16 bytes at a time."""
    down, along = padding
    x = np.arange(1, 2 * 128 * 5 * columns + 1, dtype=np.uint16).reshape(2, 128, 5, columns)
    found = device.to_host(mixed.channels_last(x.view(np.float16), 1, padding))
    wanted = np.pad(x, ((0, 0), (0, 0), (0, down), (0, along))).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(found, wanted.reshape(-1))
    with pytest.raises(ValueError, match=r"^x must have a multiple of 64 channels"):
        mixed.channels_last(x[:, :6].view(np.float16).copy(), 1, padding)
    with pytest.raises((TypeError, ValueError), match=r"^zeros must be"):
        mixed.channels_last(x.view(np.float16), 1, (-1, 0))


def test_no_images_give_no_outputs_and_no_gradient():
    x, w = np.empty((0, 3, 4, 4), np.float16), np.ones((2, 3, 3, 3), np.float16)
    assert mixed.convolution(x, w).shape == (0, 2, 2, 2)
    dy = np.empty((0, 2, 2, 2), np.float16)
    assert mixed.input_gradient(dy, w, x.shape).shape == x.shape
    assert (device.to_host(mixed.weight_gradient(dy, x, 3)) == 0).all()


def test_the_same_call_gives_the_same_bits():
    rng = np.random.default_rng(3)
    x, dy = drawn(rng, (4, 8, 6, 6), np.float16), drawn(rng, (4, 8, 6, 6), np.float16)
    with mock.patch.object(mixed, "cut_for", return_value=(mixed.TILES[-1], 3)):
        found = [device.to_host(mixed.weight_gradient(dy, x, 3, 1, 1)) for _ in range(2)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("shape", [(2, 70, 7, 5), (2, 70, 6, 11), (1, 6, 1, 2)])
def test_channels_lie_last(shape):
    """An odd number of pixels, an even one of more than a tile, and groups that are padded."""
    n, c, h, w = shape
    x = np.arange(1, n * c * h * w + 1, dtype=np.uint16).reshape(shape).view(np.float16)
    for groups in (1, 2):
        found = device.to_host(mixed.channels_last(x, groups)).reshape(n, h, w, groups, -1)
        wanted = x.view(np.uint16).reshape(n, groups, c // groups, h, w).transpose(0, 3, 4, 1, 2)
        np.testing.assert_array_equal(found[..., : c // groups], wanted)
        assert not found[..., c // groups :].any()


def test_images_that_lie_last_already_are_taken():
    rng = np.random.default_rng(4)
    x, w, dy = (drawn(rng, shape, np.float16) for shape in ((2, 6, 4, 5), (4, 3, 3, 3), (2, 4, 4, 5)))
    options = 1, 1, 1, 2
    last, last_dy = (mixed.channels_last(one, 2) for one in (x, dy))
    pairs = (
        (mixed.convolution(x, w, None, *options), mixed.convolution(x, w, None, *options, last=last)),
        (mixed.input_gradient(dy, w, x.shape, *options), mixed.input_gradient(dy, w, x.shape, *options, last=last_dy)),
        (
            mixed.weight_gradient(dy, x, 3, *options),
            mixed.weight_gradient(dy, x.shape, 3, *options, last=last, last_dy=last_dy),
        ),
    )
    for once, again in pairs:
        np.testing.assert_array_equal(device.to_host(once), device.to_host(again))
    with pytest.raises(ValueError, match=r"^last must have shape"):
        mixed.convolution(x[:1], w, None, *options, last=last)
    with pytest.raises(ValueError, match=r"^last_dy must have shape"):
        mixed.weight_gradient(dy, x, 3, *options, last_dy=last[8:])
    with pytest.raises(TypeError, match=r"^x must be"):
        mixed.weight_gradient(dy, x.shape, 3, *options)
    with pytest.raises(ValueError, match=r"^groups must divide"):
        mixed.channels_last(x, 4)


def test_what_is_wrong_is_named():
    x, w = np.ones((1, 2, 4, 4), np.float16), np.ones((2, 2, 3, 3), np.float16)
    with pytest.raises(TypeError, match=r"^x must be float16 or bfloat16"):
        mixed.convolution(x.astype(np.float32), w)
    with pytest.raises(TypeError, match=r"^w must be float16"):
        mixed.convolution(x, w.astype(np.float32))
    with pytest.raises(ValueError, match=r"^bias must have"):
        mixed.convolution(x, w, np.ones(3, np.float16))
    with pytest.raises(ValueError, match=r"^x must have 2 channels"):
        mixed.convolution(x[:, :1], w)
    with pytest.raises(ValueError, match=r"^padding must end within"):
        mixed.convolution(x, w, None, 1, 2**15, 1, 1)
    with pytest.raises(ValueError, match=r"^dy must have shape \(1, 2, 2, 2\)"):
        mixed.input_gradient(x, w, x.shape)
    with pytest.raises(ValueError, match=r"^shape must have 2 channels"):
        mixed.input_gradient(x, w, (1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"^dy must have shape"):
        mixed.weight_gradient(x, x, 3)
    with pytest.raises((TypeError, ValueError), match=r"^kernel_size must be"):
        mixed.weight_gradient(x, x, 0)
    with pytest.raises((TypeError, ValueError), match=r"^stride must be"):
        mixed.weight_gradient(x, x, 1, 0)
