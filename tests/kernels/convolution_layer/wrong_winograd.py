"""Wrong Winograd convolutions: the room's tests must reject each for its reason."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import winograd as room
from pmpp.kernels.convolution_layer.definition import arguments, finish
from pmpp.kernels.convolution_layer.winograd_transforms import image_four, image_six, output_four, weights_four
from tests.support.wrong import WrongRung

f0 = np.float32(0)


@cuda.jit(device=True)
def inside(x, image, channel, row, column, wanted):
    return room_pixel(x, image, channel, row, column, wanted)


@cuda.jit(device=True)
def anywhere(x, image, channel, row, column, wanted):
    return x[image, channel, np.uint32(row), np.uint32(column)] if wanted else f0


@cuda.jit(device=True)
def edge_repeated(x, image, channel, row, column, wanted):
    return x[image, channel, nearest(row, x.shape[2]), nearest(column, x.shape[3])] if wanted else f0


@cuda.jit(device=True)
def one_sign_wrong(d, at, step):
    image_four(d, at, step)
    d[at] = -d[at]


@cuda.jit(device=True)
def one_of_four_wrong(g, at, step, u, to, by):
    weights_four(g, at, step, u, to, by)
    u[to + by] *= np.float32(1.001)


@cuda.jit(device=True)
def one_of_six_wrong(d, at, step):
    image_six(d, at, step)
    d[at + 3 * step] *= np.float32(1.001)


@cuda.jit(device=True)
def in_float64(g, at, step, u, to, by):
    g0, g1, g2 = g[at], g[at + step], g[at + 2 * step]
    u[to], u[to + by], u[to + 2 * by], u[to + 3 * by] = -g0, 0.5 * (g0 + g2 + g1), 0.5 * (g0 + g2 - g1), g2


@cuda.jit(device=True)
def finished(total, bias, k, relu):
    return finish(total, bias, k, relu)


@cuda.jit(device=True)
def no_relu(total, bias, k, relu):
    return finish(total, bias, k, False)


@cuda.jit(device=True)
def relu_before_bias(total, bias, k, relu):
    total = f0 if relu and total < 0 else total
    return total + bias[np.uint32(k)] if bias.size else total


@cuda.jit(device=True)
def bias_of_the_group(total, bias, k, relu):
    return finish(total, bias, k % 3, relu)


room_pixel, nearest = room.pixel, room.nearest
thread_place, tile_place, channel_place = room.thread_place, room.tile_place, room.channel_place


def winograd(name, *, read=inside, image=image_four, weights=weights_four, epilogue=finished, **switches):
    """`pmpp.kernels.convolution_layer.winograd.small_tiles` with some of its parts exchanged."""
    crop, mirrored = switches.get("crop", True), switches.get("mirrored", False)
    rows_first, fill, same_image = (
        switches.get("rows_only", False),
        switches.get("fill", True),
        switches.get("same", False),
    )
    overwrite = switches.get("overwrite", False)

    @cuda.jit
    def weights_kernel(w, u, extents):
        g, h, values = (
            cuda.local.array(9, np.float32),
            cuda.local.array(12, np.float32),
            cuda.local.array(16, np.float32),
        )
        group, k, c, at, step = thread_place(extents)
        if group < extents.groups and (fill or c < w.shape[1]):
            for i in range(9):
                j = 8 - i if mirrored else i
                g[i] = w[np.uint32(group * extents.rows + k), c, j // 3, j % 3] if c < w.shape[1] else f0
            for i in range(3):
                weights(g, i, 3, h, i, 3)
            for i in range(4):
                weights(h, 3 * i, 1, values, 4 * i, 1)
                for j in range(4):
                    u[at] = values[4 * i + j]
                    at += step

    @cuda.jit
    def image_kernel(x, v, extents, cut):
        d = cuda.local.array(16, np.float32)
        group, c, t, at, step = thread_place(extents)
        if group < extents.groups:
            channel, there = channel_place(x, group, c, extents.groups)
            place, row, column = tile_place(t, cut, 2)
            place = np.int32(0) if same_image else place
            for i in range(4):
                for j in range(4):
                    y, z = row + i - cut.padding_rows, column + j - cut.padding_columns
                    d[4 * i + j] = read(x, place, channel, y, z, there and t < cut.tiles)
            for i in range(4):
                image(d, i, 4)
            for i in range(4):
                if not rows_first:
                    image(d, 4 * i, 1)
                for j in range(4):
                    v[at] = d[4 * i + j]
                    at += step
            if overwrite:
                x[0, 0, 0, 0] = f0

    @cuda.jit
    def sums_kernel(s, bias, out, extents, cut, relu):
        m = cuda.local.array(16, np.float32)
        group, k, t, at, step = thread_place(extents)
        if group < extents.groups and t < cut.tiles:
            place, row, column = tile_place(t, cut, 2)
            for i in range(16):
                m[i] = s[at]
                at += step
            for i in range(4):
                output_four(m, i, 4)
            k = np.uint32(group * extents.rows + k)
            for i in range(2):
                output_four(m, 4 * i, 1)
                for j in range(2):
                    if not crop or (row + i < out.shape[2] and column + j < out.shape[3]):
                        out[place, k, row + i, column + j] = epilogue(m[4 * i + j], bias, k, relu)

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
        p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out, stream=stream)
        room.transformed(p, 2, (weights_kernel, image_kernel, sums_kernel), room.product)
        return p.result

    convolve.__name__ = name
    return convolve


def wide_anywhere(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """128-bit loads wherever x begins."""
    p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out, stream=stream)
    wide_in = p.layer.padding.columns == 1 and p.layer.w % 4 == 0
    image_kernel = room.wide_image_kernel if wide_in else room.large_image_kernel
    kernels = room.large_weights_kernel, image_kernel, room.large_sums_kernel
    room.transformed(p, 4, kernels, room.batched_product)
    return p.result


@cuda.jit
def six_with_a_wrong_one_kernel(x, v, extents, cut):
    d = cuda.local.array(36, np.float32)
    group, c, t, at, step = thread_place(extents)
    if group < extents.groups:
        channel, there = channel_place(x, group, c, extents.groups)
        image, row, column = tile_place(t, cut, 4)
        for i in range(36):
            y, z = row + i // 6 - cut.padding_rows, column + i % 6 - cut.padding_columns
            d[i] = room_pixel(x, image, channel, y, z, there and t < cut.tiles)
        for i in range(6):
            one_of_six_wrong(d, i, 6)
        for i in range(6):
            one_of_six_wrong(d, 6 * i, 1)
        for i in range(36):
            v[at] = d[i]
            at += step


def one_coefficient_of_six(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None):
    p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out)
    kernels = room.large_weights_kernel, six_with_a_wrong_one_kernel, room.large_sums_kernel
    room.transformed(p, 4, kernels, room.batched_product)
    return p.result


RIGHT = winograd("right")
OF_SIX = wide_anywhere, one_coefficient_of_six  # these are of F(4 x 4, 3 x 3)
RUNGS = (
    WrongRung(winograd("no_edge", read=anywhere), "out of bounds"),
    WrongRung(winograd("no_crop", crop=False), "out of bounds"),
    WrongRung(winograd("filling_not_written", fill=False), "uninitialised read"),
    WrongRung(winograd("edge_for_zeros", read=edge_repeated), "wrong result"),
    WrongRung(winograd("one_sign", image=one_sign_wrong), "wrong result"),
    WrongRung(winograd("one_coefficient", weights=one_of_four_wrong), "wrong result"),
    WrongRung(one_coefficient_of_six, "wrong result"),
    WrongRung(winograd("mirrored_weights", mirrored=True), "wrong result"),
    WrongRung(winograd("one_dimension_only", rows_only=True), "wrong result"),
    WrongRung(winograd("every_image_the_first", same=True), "wrong result"),
    WrongRung(winograd("relu_forgotten", epilogue=no_relu), "wrong result"),
    WrongRung(winograd("relu_before_bias", epilogue=relu_before_bias), "wrong result"),
    WrongRung(winograd("bias_of_the_group", epilogue=bias_of_the_group), "wrong result"),
    WrongRung(winograd("float64_coefficient", weights=in_float64), "float64"),
    WrongRung(winograd("writes_to_x", overwrite=True), "race"),
    WrongRung(wide_anywhere, "misaligned"),
)
