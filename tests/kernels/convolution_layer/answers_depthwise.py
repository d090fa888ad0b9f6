"""Answers to the exercises of chapter 71: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
STRIPS, GROUPS = "depthwise/strips", "depthwise/groups"
ROWS, CHANNELS, FILTERS = 4, 2, 3
NEEDED = 6  # rows of x that a strip needs
f0 = np.float32(0)


# -- strips


def strips_with(name, **parts):
    """Four outputs a thread, of rows that slide down, with some of its parts exchanged."""
    guard, short, start = parts.get("guard", True), parts.get("short", True), parts.get("start", f0)
    turned, transposed = parts.get("turned", False), parts.get("transposed", False)
    first = parts.get("first", False)

    @cuda.jit
    def strips(x, w, out):
        channels, height, width = out.shape
        down = (height + ROWS - 1) // ROWS
        i = cuda.grid(1)
        if i >= channels * down * width and guard:
            return
        c, p, q = i // width // down, i // width % down * ROWS, i % width
        k = 0 if first else c
        a, b, d = w[k, 0, 0], w[k, 0, 1], w[k, 0, 2]
        e, f, g = w[k, 1, 0], w[k, 1, 1], w[k, 1, 2]
        h, m, o = w[k, 2, 0], w[k, 2, 1], w[k, 2, 2]
        if turned:
            a, b, d, h, m, o = h, m, o, a, b, d
        if transposed:
            b, d, e, g, h, m = e, h, b, m, d, g
        u = v = start
        for y in range(ROWS + 2):
            if p + y < height + 2 or not short:
                s, t, z = x[c, p + y, q], x[c, p + y, q + 1], x[c, p + y, q + 2]
                if y >= 2:
                    out[c, p + y - 2, q] = u + (s * h + t * m + z * o)
                u = v + (s * e + t * f + z * g)
                v = start + s * a + t * b + z * d

    strips.py_func.__name__ = name
    return strips


right(STRIPS)(strips_with("strips_of_sums_that_move_on"))
wrong(STRIPS, "index out of bounds")(strips_with("strips_without_guard", guard=False))
wrong(STRIPS, "missing guard")(strips_with("strips_beyond_the_last_row", short=False))
wrong(STRIPS, "kernel turned round")(strips_with("strips_turned", turned=True))
wrong(STRIPS, "kernel transposed")(strips_with("strips_transposed", transposed=True))
wrong(STRIPS, "one filter for all")(strips_with("strips_by_the_first_filter", first=True))
wrong(STRIPS, "accidental float64")(strips_with("strips_in_float64", start=0.0))


def strips_of_windows(name, rows):
    """Each output has its own window, so that a thread loads each x three times."""

    @cuda.jit
    def strips(x, w, out):
        channels, height, width = out.shape
        down = (height + ROWS - 1) // ROWS
        i = cuda.grid(1)
        if i < channels * down * width:
            c, first, q = i // width // down, i // width % down * ROWS, i % width
            for p in range(first, min(first + rows, height)):
                total = f0
                for r in range(3):
                    for s in range(3):
                        total += x[c, p + r, q + s] * w[c, r, s]
                out[c, p, q] = total

    strips.py_func.__name__ = name
    return strips


wrong(STRIPS, "too much traffic")(strips_of_windows("strips_that_load_again", ROWS))
wrong(STRIPS, "output not written")(strips_of_windows("strips_of_one_output", 1))


@right(STRIPS)
@cuda.jit
def strips_of_all_rows_first(x, w, out):
    channels, height, width = out.shape
    down = -(-height // ROWS)
    i = cuda.grid(1)
    c, strip, q = i // (width * down), i % (width * down) // width, i % width
    if c < channels:
        values, taps = cuda.local.array((NEEDED, 3), np.float32), cuda.local.array(9, np.float32)
        for tap in range(9):
            taps[tap] = w[c, tap // 3, tap % 3]
        for y in range(NEEDED):
            for s in range(3):
                row = min(ROWS * strip + y, height + 1)
                values[y, s] = x[c, row, q + s]
        for j in range(ROWS):
            total = f0
            for tap in range(9):
                total += taps[tap] * values[j + tap // 3, tap % 3]
            if ROWS * strip + j < height:
                out[c, ROWS * strip + j, q] = total


# -- groups


def groups_with(name, **parts):
    """A pixel of three filters a thread, with some of its parts exchanged."""
    guard, again, start = parts.get("guard", True), parts.get("again", False), parts.get("start", f0)
    channels, first, in_turn = parts.get("channels", CHANNELS), parts.get("first", False), parts.get("in_turn", False)
    few, crosswise, mixed = parts.get("few", False), parts.get("crosswise", False), parts.get("mixed", False)

    @cuda.jit
    def groups(x, w, out):
        filters, height, width = out.shape
        count = filters // FILTERS
        i = cuda.grid(1)
        if not guard or i < count * height * width:
            g, p, q = i // width // height, i // width % height, i % width
            a, b, d = start, start, start
            for c in range(channels):
                channel = c if first else (c * count + g if in_turn else CHANNELS * g + c)
                for r in range(2):
                    for s in range(2):
                        y, z = (s, r) if crosswise else (r, s)
                        value = x[channel, p + r, q + s]
                        a += value * w[FILTERS * g, c, y, z]
                        b += (x[channel, p + r, q + s] if again else value) * w[FILTERS * g + 1, c, y, z]
                        d += (x[channel, p + r, q + s] if again else value) * w[FILTERS * g + 2, c, y, z]
            if mixed:
                a, b = b, a
            out[FILTERS * g, p, q] = a
            out[FILTERS * g + 1, p, q] = b
            if not few:
                out[FILTERS * g + 2, p, q] = d

    groups.py_func.__name__ = name
    return groups


right(GROUPS)(groups_with("groups_in_three_variables"))
wrong(GROUPS, "index out of bounds")(groups_with("groups_without_guard", guard=False))
wrong(GROUPS, "too much traffic")(groups_with("groups_that_load_again", again=True))
wrong(GROUPS, "only one channel")(groups_with("groups_of_one_channel", channels=1))
wrong(GROUPS, "first group for all")(groups_with("groups_of_the_first_channels", first=True))
wrong(GROUPS, "channels in turn")(groups_with("groups_of_channels_in_turn", in_turn=True))
wrong(GROUPS, "accidental float64")(groups_with("groups_in_float64", start=0.0))
wrong(GROUPS, "output not written")(groups_with("groups_but_two_filters", few=True))
wrong(GROUPS, "wrong result")(groups_with("groups_crosswise", crosswise=True))
wrong(GROUPS, "wrong result")(groups_with("groups_with_filters_exchanged", mixed=True))


@right(GROUPS)
@cuda.jit
def groups_from_the_last_tap(x, w, out):
    height, width = out.shape[1], out.shape[2]
    i = cuda.grid(1)
    g, pixel = i // (height * width), i % (height * width)
    if g * FILTERS < out.shape[0]:
        p, q = pixel // width, pixel % width
        sums = cuda.local.array(FILTERS, np.float32)
        sums[0], sums[1], sums[2] = f0, f0, f0
        for tap in range(4 * CHANNELS - 1, -1, -1):
            c, r, s = tap // 4, tap // 2 % 2, tap % 2
            value = x[g * CHANNELS + c, p + r, q + s]
            for f in range(FILTERS):
                sums[f] += w[g * FILTERS + f, c, r, s] * value
        for f in range(FILTERS):
            out[g * FILTERS + f, p, q] = sums[f]
