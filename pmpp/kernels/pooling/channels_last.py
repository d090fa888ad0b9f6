"""Pooling with channels last: maps of shape (N, H, W, C), in which the neighbours of an element are its other channels.

Chapter: notebooks/46_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

The bound is that of maps with channels first: read the input once, write the output once. But neighbouring lanes take
neighbouring channels of one window. So every window, stride and padding is coalesced, no lane needs what another one
has loaded, and 128 bits are four channels, or eight of 16 bits, wherever the window lies.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling import ladder as channels_first
from pmpp.kernels.pooling.ladder import BLOCK, DTYPES, NARROW, OPERATORS, windows_of
from pmpp.kernels.pooling.windows import finish, span
from pmpp.kernels.reduction.ladder import combine
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width128, width_of


def channels_to(place: int, x: typing.Any) -> typing.Any:
    """A view of maps (N, C, H, W) with the channels at axis 3, or of maps (N, H, W, C) with the channels at axis 1."""
    return x.transpose((0, 2, 3, 1) if place == 3 else (0, 3, 1, 2))


def reference(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> np.ndarray:
    """The pooled maps in float64, computed one window at a time. Arguments as in `arguments`."""
    options = kernel, stride, padding, ceil_mode, count_include_pad
    return channels_to(3, channels_first.reference(channels_to(1, x), op, *options))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, op, kernel, stride, padding, ceil_mode, count_include_pad)``."""
    rng = np.random.default_rng(46) if rng is None else rng
    made = {}

    def add(name: str, shape: tuple[int, ...], *options: typing.Any, dtype: typing.Any = np.float32) -> None:
        for op in OPERATORS:
            made[f"{op}, {name}"] = rng.standard_normal(shape).astype(dtype), op, *options

    add("one", (1, 1, 1, 1), 1)
    add("2x2", (2, 6, 4, 8), 2)
    add("2x2, odd sides, three channels", (1, 7, 5, 3), 2)
    add("2x2, ceil", (1, 5, 7, 4), 2, 2, 0, True)
    add("3x3 s2 p1", (2, 9, 8, 16), 3, 2, 1)
    add("3x3 s1 p1, without padding in the count", (1, 5, 6, 8), 3, 1, 1, False, False)
    add("3x2 s2x3 p1x0, ceil", (2, 10, 9, 4), (3, 2), (2, 3), (1, 0), True, False)
    add("last window begins in the padding", (1, 4, 4, 4), 2, 2, 1, True)
    add("stride beyond the window", (1, 11, 13, 4), 2, 5)
    add("many channels", (1, 3, 2, 260), 2, 1)
    add("several blocks", (1, 20, 20, 12), 3, 1, 1)
    add("no images", (0, 4, 4, 4), 2)
    add("whole planes", (2, 7, 7, 8), 7)
    extremes = np.array([0.0, -0.0, 1e-45, 1e30, np.inf, -np.inf, np.nan, 1.0], np.float32)
    for op in OPERATORS:
        made[f"{op}, non-finite"] = rng.choice(extremes, (2, 6, 8, 4)), op, 3, 2, 1
    made["max, all -inf"] = np.full((1, 4, 4, 4), -np.inf, np.float32), "max", 3, 2, 1
    for dtype in known(DTYPES[1:]):
        add(f"2x2, {dtype}", (2, 6, 4, 16), 2, dtype=dtype)
        add(f"3x3 s2 p1, {dtype}", (1, 9, 7, 8), 3, 2, 1, dtype=dtype)
        add(f"half a vector, {dtype}", (1, 4, 6, 12), 2, dtype=dtype)
        add(f"3x2 s2x3 p1x0, ceil, {dtype}", (1, 10, 9, 24), (3, 2), (2, 3), (1, 0), True, False, dtype=dtype)
    return made


def tolerance(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> typing.Any:
    """As with channels first: 0 for max; of a mean each addition and the division are rounded, 16 bits once more."""
    options = kernel, stride, padding, ceil_mode, count_include_pad
    allowed = channels_first.tolerance(channels_to(1, x), op, *options)
    return allowed if op == "max" else channels_to(3, allowed)


def cost(planes: int, h: int, w: int, kernel=2, stride=None, padding=0, ceil_mode=False, itemsize: int = 4) -> Cost:
    """kh * kw - 1 operations per window; x read once and the result written once. ``planes`` is N times C."""
    return channels_first.cost(planes, h, w, kernel, stride, padding, ceil_mode, itemsize)


def arguments(
    x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True, *, out=None, stream=0
) -> Problem:
    """Reduce each window of each feature map to one number, with channels last.

    Args:
        x: feature maps of shape (N, H, W, C), H and W >= 1, float32, float16 or bfloat16, contiguous. PyTorch's
            channels-last tensors are such maps: ``x.permute(0, 2, 3, 1)``.
        op: "max" or "average".
        kernel: the size of a window, an integer below 2^31 or a pair of them for rows and columns.
        stride: the distance from one window to the next, given as ``kernel`` is; None for windows side by side.
        padding: on all four sides, at most half of the kernel: minus infinity for max, 0 for average.
        ceil_mode: True to keep a last window that reaches beyond the padded input, if it begins inside the input or the
            left (top) padding.
        count_include_pad: True to divide an average by the number of elements of its window inside the padded input;
            False to divide by the number of its elements inside ``x``.
        out: a device array of the dtype of ``x`` for the result, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, a device array of shape (N, P, Q, C) and the dtype of ``x``, without waiting for the work to be
    done. A window with a NaN gives NaN. A mean of 16 bits is computed in float32, and rounded to the nearest. There are
    no indices and no positions.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.2; PyTorch's channels-last memory format.

    >>> from pmpp.kernels.pooling import channels_last
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)  # two channels side by side
    >>> channels_last.vectorised(x).copy_to_host()
    array([[[[6., 7.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=4, stream=stream)
    images, h, w, channels = x.shape
    op, padded, rows, columns = windows_of(
        (images, channels, h, w), op, kernel, stride, padding, ceil_mode, count_include_pad
    )
    shape = images, rows.places, columns.places, channels
    out = device.as_output("out", out, shape=shape, dtype=x.dtype, apart={"x": x}, stream=stream)
    return Problem(
        out,
        stream=stream,
        x=x.reshape(-1),
        out=out.reshape(-1),
        op=op,
        padded=padded,
        channels=channels,
        rows=rows,
        columns=columns,
    )


# ----------------------------------------------------------------------------------------- a thread for each channel


@cuda.jit
def channel_each_kernel(x, out, op, padded, channels, rows, columns):
    i = cuda.grid(1)
    if i < out.size:
        channel, place = i % channels, i // channels
        column, row = place % columns.places, place // columns.places % rows.places
        image = place // columns.places // rows.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        first = ((image * rows.extent + top) * columns.extent + left) * channels + channel
        total = widened(x[first])
        z = 1  # the first element is there already
        for y in range(bottom - top):
            while z < right - left:
                total = combine(op, total, widened(x[first + (y * columns.extent + z) * channels]))
                z += 1
            z = 0
        out[i] = finish(total, op, padded, tall * wide, (bottom - top) * (right - left))


@rung(channel_each_kernel)
def channel_each(p):
    """One thread for each output; neighbouring lanes take neighbouring channels of the same window.

    Leaves: seven 64-bit divisions for one output, and 4 bytes to a load, or 2 of 16 bits.
    """
    grid = blocks(p.out.size, BLOCK)
    channel_each_kernel[grid, BLOCK, p.stream](p.x, p.out, p.op, p.padded, p.channels, p.rows, p.columns)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit(device=True)
def combine_lanes(op, a, b):
    """Combine four or eight channels with as many others."""
    if len(a) == 8:
        return combine_four(op, a[:4], b[:4]) + combine_four(op, a[4:], b[4:])
    return combine_four(op, a, b)


@cuda.jit(device=True)
def combine_four(op, a, b):
    return combine(op, a[0], b[0]), combine(op, a[1], b[1]), combine(op, a[2], b[2]), combine(op, a[3], b[3])


@cuda.jit(device=True)
def finish_lanes(v, op, padded, area, seen):
    """`finish` for four or eight channels."""
    if len(v) == 8:
        return finish_four(v[:4], op, padded, area, seen) + finish_four(v[4:], op, padded, area, seen)
    return finish_four(v, op, padded, area, seen)


@cuda.jit(device=True)
def finish_four(v, op, padded, area, seen):
    return (
        finish(v[0], op, padded, area, seen),
        finish(v[1], op, padded, area, seen),
        finish(v[2], op, padded, area, seen),
        finish(v[3], op, padded, area, seen),
    )


@cuda.jit
def vectorised_kernel(x, out, op, padded, count, vectors, rows, columns):
    i = np.uint32(cuda.grid(1))
    if i < count:
        place = np.uint32(i // vectors)
        line = np.uint32(place // np.uint32(columns.places))  # a row of outputs, counted through all images
        image = np.int64(np.uint32(line // np.uint32(rows.places)))
        row, column = np.int64(line) - image * rows.places, np.int64(place) - np.int64(line) * columns.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        step = width128(x) * np.int64(vectors)  # from one element of the window to the next in its row: all channels
        first = ((image * rows.extent + top) * columns.extent + left) * step
        first += width128(x) * (np.int64(i) - np.int64(place) * np.int64(vectors))
        total = widened(load128(x, first))
        z = 1
        for y in range(bottom - top):
            while z < right - left:
                total = combine_lanes(op, total, widened(load128(x, first + (y * columns.extent + z) * step)))
                z += 1
            z = 0
        results = finish_lanes(total, op, padded, tall * wide, (bottom - top) * (right - left))
        store128(out, width128(x) * np.int64(i), results)


@rung(vectorised_kernel, channel_each_kernel)
def vectorised(p):
    """A thread takes 128 bits of channels through the window: four, or eight of 16 bits. It has three 32-bit divisions.

    If the channels are no multiple of that, if an array does not begin at a multiple of 16 bytes, or if there are 2^31
    vectors or more, this is `channel_each`. A window as large as its plane is the work of a few threads.
    """
    width = width_of(p.x.dtype)
    count = p.out.size // width
    if p.channels % width or count >= NARROW or device.address(p.x) % 16 or device.address(p.out) % 16:
        channel_each.launch(p)
        return
    sizes = np.uint32(count), np.uint32(p.channels // width), p.rows, p.columns
    vectorised_kernel[blocks(count, BLOCK), BLOCK, p.stream](p.x, p.out, p.op, p.padded, *sizes)


LADDER = (channel_each, vectorised)
