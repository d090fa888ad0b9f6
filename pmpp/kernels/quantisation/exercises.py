"""Exercises of notebooks/77_quantisation.ipynb: float32 to int8, weights of 4 bits, a convolution, two of four."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
GROUP = 32  # weights that share a scale, in the exercise
FLOAT64 = (
    "Keep it in float32: a literal such as 0.5 is a float64, and makes one of what it meets. np.float32(0.5) is not."
)


# ------------------------------------------------------------------------------------------------ quantisation/quantise


def _quotients(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return x / scales[:, None]


def _as_bytes(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.int64).astype(np.int8)  # wraps


def _quantise_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, tenths: bool = False) -> Case:
        scales = (2.0 ** rng.integers(-4, 1, m)).astype(np.float32)  # every quotient is exact
        if tenths:
            scales = (rng.permutation(m) + 1).astype(np.float32) / 10
        halves = rng.integers(-320, 321, (m, n)) / 2  # half of them lie between two whole numbers
        halves.flat[0] = 2.5
        halves.flat[-1] = -128 if m % 2 else 300.5
        x = (halves * scales[:, None]).astype(np.float32)
        if tenths:
            x[scales == np.float32(0.1), 1] = -12.15  # -121 by division, and -122 times the reciprocal
        expected = np.clip(np.rint(_quotients(x, scales)), -128, 127).astype(np.int8)
        args = x, scales, unwritten((m, n), np.int8)
        name = f"x of {m} x {n}" + (" and scales in tenths" if tenths else "")
        return Case(name, args, blocks(m * n, BLOCK), BLOCK, {2: expected})

    shapes = [(1, 1), (1, 9), (4, 64), (3, 43), (5, 128)]
    return [*(case(*shape) for shape in shapes), case(3, 50, True), case(7, 150)]


@cuda.jit
def quantise_answer(x, scales, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = i // x.shape[1], i % x.shape[1]
        q = cuda.libdevice.float2int_rn(x[row, column] / scales[row])
        out[row, column] = min(max(q, -128), 127)


def _clipped(round_: object) -> object:
    def made(x: np.ndarray, scales: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        return {2: np.clip(round_(_quotients(x, scales)), -128, 127).astype(np.int8)}

    return made


def _away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(0.5, x))


# --------------------------------------------------------------------------------------------------- quantisation/warps


def _whole(w: np.ndarray) -> np.ndarray:
    """The whole numbers, with 8 added, that lie two to a byte."""
    return np.stack([w & 15, w >> 4], axis=-1).reshape(w.shape[0], -1).astype(np.float64)


def _warps_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, k in ((1, GROUP), (3, 2 * GROUP), (4, 4 * GROUP), (5, 3 * GROUP), (9, 7 * GROUP)):
        w = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
        x = (rng.integers(1, 6, k) * rng.choice([-1, 1], k)).astype(np.float32)
        scales = (2.0 ** rng.integers(-2, 3, (n, k // GROUP))).astype(np.float32)
        expected = ((_whole(w) - 8) * np.repeat(scales, GROUP, axis=1)) @ x
        args = x, w, scales, unwritten(n, np.float32)
        # Whole numbers times powers of two: every sum is exact.
        cases.append(Case(f"w of {n} x {k}", args, blocks(32 * n, BLOCK), BLOCK, {3: expected}))
    return cases


@cuda.jit
def warps_answer(x, w, scales, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    total = np.float32(0)
    if row < out.size:
        for b in range(lane, w.shape[1], 32):
            byte = np.int32(w[row, b])
            pair = np.float32((byte & 15) - 8) * x[2 * b] + np.float32((byte >> 4) - 8) * x[2 * b + 1]
            total += scales[row, 2 * b // GROUP] * pair
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


def _product(weights: object, scales_of: object = lambda scales: np.repeat(scales, GROUP, axis=1)) -> object:
    def made(x: np.ndarray, w: np.ndarray, scales: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        return {3: (weights(w) * scales_of(scales)) @ x}

    return made


def _halves_exchanged(w: np.ndarray) -> np.ndarray:
    return _whole(w).reshape(w.shape[0], -1, 2)[..., ::-1].reshape(w.shape[0], -1) - 8


def _signed(w: np.ndarray) -> np.ndarray:
    return (_whole(w) + 8) % 16 - 8  # two's complement


def _first_scale(scales: np.ndarray) -> np.ndarray:
    return np.repeat(scales[:, :1], GROUP * scales.shape[1], axis=1)


# --------------------------------------------------------------------------------------------- quantisation/convolution


def _convolution_cases(rng: np.random.Generator) -> list[Case]:
    cases, sizes = [], ((1, 1, 1, 1, 1, 100), (1, 3, 4, 2, 3, -128), (2, 5, 4, 3, 2, 17), (1, 6, 7, 4, 5, -5))
    for n, h, w, c, k, zero in (*sizes, (1, 4, 5, 2, 3, 1), (1, 6, 7, 4, 5, 2)):
        halves = zero in (1, 2)  # small sums, half of them odd: what lies halfway is common
        most = 2 if halves else 128
        x = rng.integers(-most, most, (n, h, w, c)).astype(np.int8)
        filters = rng.integers(-most, most, (k, 3, 3, c)).astype(np.int8)
        factors = np.full(k, 0.5, np.float32) if halves else (2.0 ** rng.integers(-11, -8, k)).astype(np.float32)
        if zero == 2:
            factors[:] = 0.1  # a sum of rounded products ends beside a half
        if k > 1 and not halves:
            factors[0], factors[1] = 2.0**-11, 2.0**-8
        args = x, filters, factors, np.int32(zero), unwritten((n, h, w, k), np.int8)
        expected = _convolved(*args)
        cases.append(
            Case(f"{n} images of {h} x {w} x {c}, zero {zero}", args, blocks(n * h * w * k, BLOCK), BLOCK, expected)
        )
    return cases


def _convolved(
    x: np.ndarray,
    w: np.ndarray,
    factors: np.ndarray,
    zero: typing.Any,
    out: np.ndarray,
    around: typing.Any = None,
    rounded: typing.Any = np.rint,
    limited: typing.Any = lambda steps: np.clip(steps, -128, 127),
) -> dict[int, np.ndarray]:
    """What the exercise asks for, with another border, rounding or limit."""
    around = zero if around is None else around
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=around)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    sums = np.tensordot(windows, w.astype(np.int64), axes=([4, 5, 3], [1, 2, 3]))
    return {4: _as_bytes(limited(rounded(sums.astype(np.float32) * factors)))}


@cuda.jit
def convolution_answer(x, w, factors, zero, out):
    i = cuda.grid(1)
    if i < out.size:
        k, place = i % out.shape[3], i // out.shape[3]
        q, p, n = place % out.shape[2], place // out.shape[2] % out.shape[1], place // (out.shape[1] * out.shape[2])
        total = np.int32(0)
        for r in range(3):
            for s in range(3):
                row, column = p + r - 1, q + s - 1
                inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                for c in range(x.shape[3]):
                    number = np.int32(x[n, row, column, c]) if inside else zero
                    total = np.int32(total + number * np.int32(w[k, r, s, c]))
        steps = cuda.libdevice.float2int_rn(np.float32(total) * factors[k])
        out[n, p, q, k] = min(max(steps, -128), 127)


def _with(**exchanged: typing.Any) -> typing.Any:
    return lambda *args: _convolved(*args, **exchanged)


# --------------------------------------------------------------------------------------------- quantisation/two_of_four


def _kept(w: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The two of four that come first in an order along the last axis; the others are 0."""
    places = np.argsort(order, axis=-1, kind="stable")[..., :2]
    out = np.zeros_like(w)
    np.put_along_axis(out, places, np.take_along_axis(w, places, -1), -1)
    return out


def _two_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for groups in (1, 5, BLOCK, BLOCK + 1, 3 * BLOCK - 7):
        w = rng.standard_normal((groups, 4)).astype(np.float32)
        w[: groups // 2] = rng.integers(-2, 3, (groups // 2, 4))  # with equal sizes, and zeros
        expected = _kept(w, -abs(w))
        args = w.reshape(-1), unwritten(4 * groups, np.float32)
        cases.append(Case(f"{groups} groups", args, blocks(groups, BLOCK), BLOCK, {1: expected.reshape(-1)}))
    return cases


@cuda.jit
def two_answer(w, out):
    first = 4 * cuda.grid(1)
    if first < w.size:
        for i in range(4):
            own, before = w[first + i], 0
            for j in range(4):
                other = w[first + j]
                if abs(other) > abs(own) or (abs(other) == abs(own) and j < i):
                    before += 1
            out[first + i] = own if before < 2 else np.float32(0)


def _by(order: object) -> object:
    def made(w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
        fours = w.reshape(-1, 4)
        return {1: _kept(fours, order(fours)).reshape(-1)}

    return made


def _all_that_tie(w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    fours = w.reshape(-1, 4)
    second = np.sort(abs(fours), axis=1)[:, 2:3]
    return {1: np.where(abs(fours) >= second, fours, np.float32(0)).reshape(-1)}


def _one_of_two(w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    twos = w.reshape(-1, 2)
    keep = np.argmax(abs(twos), axis=1)[:, None] == np.arange(2)
    return {1: np.where(keep, twos, np.float32(0)).reshape(-1)}


EXERCISES = (
    Exercise(
        "quantisation/quantise",
        task="out[i, j] = x[i, j] / scales[i], rounded to the nearest whole number (halfway to the even one), and to "
        "-128 or 127 what lies beyond. x is float32 of shape (m, n), scales float32 (m,), out int8 (m, n). The launch "
        f"has {BLOCK} threads a block, one for each element.",
        parameters="x, scales, out",
        cases=_quantise_cases,
        answer=quantise_answer,
        hints=(
            "cuda.libdevice.float2int_rn rounds a float32 to the nearest int32, and halfway to the even one.",
            "An int8 takes the last 8 bits of what it is given. So 128 becomes -128: cut off before you store.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("cut off", "That rounds towards zero: round to the nearest.", _clipped(np.trunc)),
            Trap("half up", "Halfway goes to the even number: 2.5 to 2.", _clipped(lambda x: np.floor(x + 0.5))),
            Trap("half away", "Halfway goes to the even number: 2.5 to 2, and -2.5 to -2.", _clipped(_away)),
            Trap(
                "wraps around",
                "What is beyond -128 and 127 has to stay there: an int8 keeps the last 8 bits alone.",
                lambda x, scales, out: {2: _as_bytes(np.rint(_quotients(x, scales)))},
            ),
            Trap(
                "from -127",
                "int8 begins at -128.",
                lambda x, scales, out: {2: np.clip(np.rint(_quotients(x, scales)), -127, 127).astype(np.int8)},
            ),
            Trap(
                "one scale",
                "Each row has its own scale.",
                lambda x, scales, out: {2: np.clip(np.rint(x / scales[0]), -128, 127).astype(np.int8)},
            ),
            Trap(
                "times the reciprocal",
                "1 / scale is rounded, and then the product may lie on the other side of a half: divide.",
                lambda x, scales, out: {
                    2: np.clip(np.rint(x * (1 / scales)[:, None]), -128, 127).astype(np.int8),
                },
            ),
        ),
    ),
    Exercise(
        "quantisation/warps",
        task="out[i] is the sum over k of x[k] W[i, k], with a warp for each row. W has 4 bits a weight: w is uint8 of "
        f"shape (n, k / 2), its byte b has weights 2b (lower half) and 2b + 1, each with 8 added. Each {GROUP} weights "
        f"have a scale: scales is float32 of shape (n, k / {GROUP}). x is float32 (k,), out float32 (n,). The launch "
        f"has {BLOCK} threads a block, and 32 for each row.",
        parameters="x, w, scales, out",
        cases=_warps_cases,
        answer=warps_answer,
        hints=(
            "byte = np.int32(w[row, b]). Then byte & 15 is the lower half, and byte >> 4 the upper one.",
            "Lane 0 takes bytes 0, 32, 64 and so on: the lanes read neighbours.",
            "The lanes add up their sums by cuda.shfl_xor_sync, and one of them stores.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "The lanes of a warp add up their sums by shuffles."),
        },
        traps=(
            Trap("upper half first", "The lower half of a byte comes first.", _product(_halves_exchanged)),
            Trap("not lowered", "8 was added to each weight: take it away.", _product(_whole)),
            Trap("two's complement", "The halves have no sign: 8 was added to each.", _product(_signed)),
            Trap(
                "first scale",
                "Each group has its own scale, along a row, too.",
                _product(lambda w: _whole(w) - 8, _first_scale),
            ),
            Trap(
                "no scale",
                "Multiply by the scale of the group.",
                _product(lambda w: _whole(w) - 8, lambda scales: 1),
            ),
        ),
        advice={"repeated work": "The lanes share a row: each reads its own bytes, and one writes the sum."},
    ),
    Exercise(
        "quantisation/convolution",
        task="A convolution of int8 with filters of 3 x 3, stride 1, a padding of 1 and channels last. out[n, p, q, k] "
        "is factors[k] times the sum over r, s, c of x[n, p + r - 1, q + s - 1, c] w[k, r, s, c], rounded to the "
        "nearest whole number (halfway to the even one), and to -128 or 127 what lies beyond. Around the image x is "
        "zero, its zero point. x and w are int8 of shape (N, H, W, C) and (K, 3, 3, C), factors float32 (K,), zero an "
        f"int32, and out int8 (N, H, W, K). The launch has {BLOCK} threads a block, one for each output.",
        parameters="x, w, factors, zero, out",
        cases=_convolution_cases,
        answer=convolution_answer,
        hints=(
            "The filter k of output i is i % K, and i // K is the place: q is the fastest of (n, p, q).",
            "Add up in int32: np.int32(x[...]) * np.int32(w[...]). Requantise once, after the sum.",
            "Where a row or a column lies outside, the number is zero, and it is multiplied, too.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("zeros around", "Around the image x is its zero point, which stands for 0.0.", _with(around=0)),
            Trap("cut off", "That rounds towards zero: round to the nearest.", _with(rounded=np.trunc)),
            Trap(
                "wraps around",
                "What is beyond -128 and 127 has to stay there: an int8 keeps the last 8 bits alone.",
                _with(limited=lambda steps: steps),
            ),
            Trap(
                "one factor",
                "Each filter has its own factor.",
                lambda x, w, factors, zero, out: _convolved(x, w, np.full_like(factors, factors[0]), zero, out),
            ),
            Trap(
                "turned filters",
                "Row 0 of a filter meets the upper row: in networks filters are not turned round.",
                lambda x, w, factors, zero, out: _convolved(x, w[:, ::-1, ::-1], factors, zero, out),
            ),
        ),
    ),
    Exercise(
        "quantisation/two_of_four",
        task="Of each four neighbours in w keep the two of the largest size, and make the others 0. Of equal sizes "
        f"the first stays. w and out are float32 of shape (4 n,). The launch has {BLOCK} threads a block, one for each "
        "four neighbours.",
        parameters="w, out",
        cases=_two_cases,
        answer=two_answer,
        hints=(
            "An element stays if fewer than two of the others come before it.",
            "Another comes before it if its size is larger, or equal and it stands further left.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("sign counts", "The size counts, not the sign: abs().", _by(lambda w: -w)),
            Trap("smallest kept", "Those are the two smallest.", _by(abs)),
            Trap("all that tie", "Exactly two stay: of equal ones the first.", _all_that_tie),
            Trap(
                "last of equal ones",
                "Of equal sizes the first stays.",
                lambda w, out: {
                    1: _kept(w.reshape(-1, 4)[:, ::-1], -abs(w.reshape(-1, 4)[:, ::-1]))[:, ::-1].reshape(-1)
                },
            ),
            Trap("one of two", "Two of four, which may be neighbours: not one of each two.", _one_of_two),
        ),
    ),
)
