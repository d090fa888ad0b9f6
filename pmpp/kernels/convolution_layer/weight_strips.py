"""Weight gradients of layers whose groups have few channels: strips of dy slide over x, with their sums in registers.

A thread has some outputs one below the other, in one column. It reads a row of x after the other, as many numbers as a
filter has columns, and each row meets all taps that it has a part in. So an element of dy is read once, and one of x as
many times as a filter has columns, from the cache. The sums of all taps stay in registers, over several strips and
images, until the block adds up what its threads have.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up, warp_sum
from pmpp.kernels.convolution_layer.definition import Layer, Pair
from pmpp.kernels.convolution_layer.direct_tiles import f0

BLOCK, WARPS = 128, 4  # threads of a block, and its warps
LONGEST = 8  # outputs of a thread, one below the other
ENOUGH = 16  # blocks for each multiprocessor: sums are divided until there are so many
u32, i32 = np.uint32, np.int32


class Form(typing.NamedTuple):
    """What a kernel is compiled for: the window, and how many outputs, one below the other, a thread has."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    rows: int

    @property
    def reach(self) -> int:
        """Rows of x that the outputs of a thread span."""
        return (self.rows - 1) * self.stride.rows + (self.kernel.rows - 1) * self.dilation.rows + 1


class Work(typing.NamedTuple):
    """How the work is divided: uint32."""

    down: int  # strips along a column of outputs
    items: int  # strips of a filter, over all images
    span: int  # of these, for a block
    parts: int  # blocks that share a filter's channel
    pitch: int  # elements from the sums of one part to those of the next


@functools.lru_cache(64)
def rows_of(form: Form, first: int, count: int) -> typing.Any:
    """A device function that adds rows ``first`` to ``first + count - 1`` of x to a thread's sums.

    It is made of functions of one row, so that the number of the row is known when it is compiled, and with it the taps
    that meet it. Then all sums are registers.
    """
    if count > 1:
        half = count // 2
        above, below = rows_of(form, first, half), rows_of(form, first + half, count - half)

        @cuda.jit(device=True)
        def both(x, begin, top, left, places, within, sizes, given, sums):
            above(x, begin, top, left, places, within, sizes, given, sums)
            below(x, begin, top, left, places, within, sizes, given, sums)

        return both
    (taps_down, taps_across), u, d, rows = form.kernel, form.stride.rows, form.dilation.rows, form.rows
    met = tuple(i for i in range(rows) if (first - i * u) % d == 0 and 0 <= (first - i * u) // d < taps_down)
    begin_i, end_i, step_i = (met[0], met[-1] + 1, met[1] - met[0] if len(met) > 1 else 1) if met else (0, 0, 1)

    @cuda.jit(device=True)
    def one_row(x, begin, top, left, places, within, sizes, given, sums):
        values = cuda.local.array(taps_across, np.float32)
        row = i32(top + first)
        inside = u32(row) < u32(sizes.h)
        at = u32(begin + u32(min(max(row, i32(0)), i32(sizes.h - 1))) * u32(sizes.w))
        for s in range(taps_across):
            value = x[u32(at + places[s])]
            values[s] = value if inside and within[s] else f0
        for i in range(begin_i, end_i, step_i):
            if i < left:  # below the last output nothing is added: 0 times an infinity would be a NaN
                for s in range(taps_across):
                    sums[(first - i * u) // d, s] += given[i] * values[s]

    return one_row


@functools.lru_cache(64)
def share_of(form: Form, first: int, count: int) -> typing.Any:
    """A device function: a warp's sums of the taps in rows ``first`` to ``first + count - 1``, into shared memory."""
    if count > 1:
        half = count // 2
        above, below = share_of(form, first, half), share_of(form, first + half, count - half)

        @cuda.jit(device=True)
        def both(shared, at, lane, sums):
            above(shared, at, lane, sums)
            below(shared, at, lane, sums)

        return both
    taps_across = form.kernel.columns

    @cuda.jit(device=True)
    def one_row(shared, at, lane, sums):
        for s in range(taps_across):
            total = warp_sum(sums[first, s])
            if lane == 0:
                shared[at + u32(first * taps_across + s)] = total

    return one_row


@functools.lru_cache(64)  # a compilation each
def strips_kernel(form: Form) -> typing.Any:
    """The kernel ``(dy, x, target, sizes, window, work)`` of a form, for a block for each filter, channel and part.

    Arrays are flat, and so are the sums in ``target``: those of a part are in the order of the weights.
    """
    (taps_down, taps_across), v, e, rows = form.kernel, form.stride.columns, form.dilation.columns, form.rows
    taps, all_sums, u = taps_down * taps_across, WARPS * taps_down * taps_across, form.stride.rows
    add_rows, share = rows_of(form, 0, form.reach), share_of(form, 0, taps_down)

    @cuda.jit
    def strips_of_gradients(dy, x, target, sizes, window, work):
        shared = cuda.shared.array(all_sums, np.float32)
        thread = u32(cuda.threadIdx.x)
        pair = u32(u32(cuda.blockIdx.x) // work.parts)
        part = u32(u32(cuda.blockIdx.x) - pair * work.parts)
        k = u32(pair // u32(sizes.group_channels))
        c = u32(k // u32(sizes.group_filters) * u32(sizes.group_channels) + (pair - k * u32(sizes.group_channels)))
        filters, area, outputs = u32(sizes.groups * sizes.group_filters), u32(sizes.h * sizes.w), u32(sizes.p * sizes.q)
        sums, given = cuda.local.array((taps_down, taps_across), np.float32), cuda.local.array(rows, np.float32)
        places, within = cuda.local.array(taps_across, np.uint32), cuda.local.array(taps_across, np.bool_)
        for r in range(taps_down):
            for s in range(taps_across):
                sums[r, s] = 0
        item, end = u32(part * work.span + thread), min(u32((part + u32(1)) * work.span), work.items)
        while item < end:
            line = u32(item // u32(sizes.q))
            n = u32(line // work.down)
            p, q = i32(rows * (line - n * work.down)), i32(item - line * u32(sizes.q))
            left = i32(sizes.p - p)
            at = u32((n * filters + k) * outputs + u32(p * sizes.q + q))
            for i in range(rows):
                given[i] = dy[u32(at + u32(min(i32(i), left - i32(1)) * sizes.q))]
            for s in range(taps_across):
                column = i32(q * v - window.padding.columns + s * e)
                within[s] = u32(column) < u32(sizes.w)
                places[s] = u32(min(max(column, i32(0)), i32(sizes.w - 1)))
            top = i32(p * u - window.padding.rows)
            add_rows(x, u32((n * u32(sizes.c) + c) * area), top, left, places, within, sizes, given, sums)
            item = u32(item + u32(BLOCK))
        share(shared, u32(thread // u32(32) * u32(taps)), thread % u32(32), sums)
        cuda.syncthreads()
        if thread < taps:
            total = shared[thread]
            for warp in range(1, WARPS):
                total += shared[u32(warp * taps) + thread]
            target[np.uint64(part) * np.uint64(work.pitch) + np.uint64(pair * u32(taps) + thread)] = total

    return strips_of_gradients


class Plan(typing.NamedTuple):
    """How a layer is computed."""

    form: Form
    work: Work
    blocks: int
    parts: int


@functools.lru_cache(4096)  # as `definition.window_of`
def plan_of(a: Layer, multiprocessors: int) -> Plan:
    """The plan for a layer that has images: as many parts as fill the GPU, and strips of nearly the same length.

    >>> plan = plan_of(Layer(32, 144, 56, 56, 144, 3, 3, padding=(1, 1), groups=144), 132)
    >>> plan.form.rows, plan.parts
    (8, 14)
    """
    rows = blocks(a.p, blocks(a.p, LONGEST))
    down, pairs = blocks(a.p, rows), a.k * (a.c // a.groups)
    items = a.n * down * a.q
    parts = max(1, min(blocks(ENOUGH * multiprocessors, pairs), items // BLOCK))
    span = round_up(blocks(items, parts), BLOCK)
    parts = blocks(items, span)
    pitch = round_up(pairs * a.r * a.s, 4)
    work = Work(*map(u32, (down, items, span, parts, pitch)))
    return Plan(Form(Pair(a.r, a.s), a.stride, a.dilation, rows), work, pairs * parts, parts)
