"""Exercises of notebooks/78_gradients_of_pooling_and_activations.ipynb on activations: a gate, and a bias."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.activation.ladder import logistic
from pmpp.kernels.common import block_sum, blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."


# ------------------------------------------------------------------------------------------ activation_backward/gated


def _gated_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, n in ((1, 1), (1, 5), (3, 4), (2, 64), (7, 129)):
        x, dy = (
            4 * rng.standard_normal((rows, 2 * n), dtype=np.float32),
            rng.standard_normal((rows, n), dtype=np.float32),
        )
        back = _gated(dy, x)
        args = dy, x, unwritten((rows, 2 * n), np.float32)
        # The slope is a sum of two parts of at most 1 and |gate| / 4; exp is good to 2 ulp, and ten roundings follow.
        allowed = 2.0**-24 * 16 * np.abs(dy).max() * (1 + np.abs(x).max()) * max(1, np.abs(x).max())
        cases.append(Case(f"{rows} x {2 * n}", args, blocks(rows * n, BLOCK), BLOCK, {2: back}, {2: allowed}))
    return cases


def _parts(dy: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    gate, value = np.split(x.astype(np.float64), 2, axis=1)
    sigmoid = 1 / (1 + np.exp(-gate))
    return dy.astype(np.float64), gate, value, sigmoid, sigmoid * (1 + gate * (1 - sigmoid))


def _gated(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    dy, gate, value, sigmoid, slope = _parts(dy, x)
    return np.hstack([dy * value * slope, dy * gate * sigmoid])


@cuda.jit
def gated_answer(dy, x, dx):
    i = cuda.grid(1)
    if i < dy.size:
        n = dy.shape[1]
        row, column = i // n, i % n
        gate, value, given = x[row, column], x[row, n + column], dy[row, column]
        sigmoid = logistic(gate)
        dx[row, column] = given * value * sigmoid * (np.float32(1) + gate * (np.float32(1) - sigmoid))
        dx[row, n + column] = given * gate * sigmoid


def _swapped(dy: np.ndarray, x: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    first, second = np.split(_gated(dy, x), 2, axis=1)
    return {2: np.hstack([second, first])}


def _slope_of_the_sigmoid(dy: np.ndarray, x: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    dy, gate, value, sigmoid, _ = _parts(dy, x)
    return {2: np.hstack([dy * value * sigmoid * (1 - sigmoid), dy * gate * sigmoid])}


# ------------------------------------------------------------------------------------------- activation_backward/bias


def _bias_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, c, inner in ((1, 1, 1), (2, 1, 200), (1, 3, 128), (3, 2, 49), (5, 4, 130)):
        dy = rng.uniform(1, 2, (n, c, inner)).astype(np.float32)  # of one sign: what is lost shows
        x = rng.standard_normal((n, c, inner), dtype=np.float32)
        x.reshape(-1)[1::5] = 0  # where the slope is 0
        kept = np.where(x > 0, dy, 0).astype(np.float64)
        total = kept.sum(axis=(0, 2))
        # Each of the additions is off by 2^-24 of at most the whole sum.
        args, allowed = (dy, x, unwritten(c, np.float32)), n * inner * 2.0**-24 * total
        cases.append(Case(f"shape {dy.shape}", args, c, BLOCK, {2: total}, {2: allowed}))
    return cases


@cuda.jit
def bias_answer(dy, x, dbias):
    images, inner, channel = x.shape[0], x.shape[2], cuda.blockIdx.x
    total = np.float32(0)
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        image, place = i // inner, i % inner
        if x[image, channel, place] > np.float32(0):
            total += dy[image, channel, place]
    shared = cuda.shared.array(32, np.float32)
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        dbias[channel] = total


def _one_image(dy: np.ndarray, x: np.ndarray, dbias: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.where(x[:1] > 0, dy[:1], 0).sum(axis=(0, 2), dtype=np.float64)}


def _no_slope(dy: np.ndarray, x: np.ndarray, dbias: np.ndarray) -> dict[int, np.ndarray]:
    return {2: dy.sum(axis=(0, 2), dtype=np.float64)}


def _open_at_zero(dy: np.ndarray, x: np.ndarray, dbias: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.where(x >= 0, dy, 0).sum(axis=(0, 2), dtype=np.float64)}


EXERCISES = (
    Exercise(
        "activation_backward/gated",
        task="The gradient of the gated unit of chapter 46 (SwiGLU). A row of x has n gates and then n values, and "
        "the forward pass made y = silu(gate) * value. From dy of shape (rows, n) and x of shape (rows, 2 n) compute "
        "dx, of the shape of x: first the gradients of the gates, then those of the values, float32. The slope of "
        f"silu(g) is s (1 + g (1 - s)) with s = sigmoid(g). The launch has {BLOCK} threads per block, one for each "
        "element of dy. Kernels can call pmpp.kernels.activation.logistic, which is the sigmoid.",
        parameters="dy, x, dx",
        cases=_gated_cases,
        answer=gated_answer,
        hints=(
            "y is a product of two factors. The gradient of one factor has the other one in it.",
            "The value gets dy * silu(gate). The gate gets dy * value * (slope of silu at gate).",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("halves swapped", "The gradients of the gates come first.", _swapped),
            Trap("slope of the sigmoid", "silu is g * s: its slope has a second part, s.", _slope_of_the_sigmoid),
        ),
    ),
    Exercise(
        "activation_backward/bias",
        task="The gradient of a bias before a ReLU, in one kernel and without atomics: dbias[c] is the sum of dy over "
        "all images and elements of channel c where x > 0. dy and x have shape (images, channels, elements), dbias "
        f"(channels,), float32. The launch has a block for each channel, of {BLOCK} threads. Kernels can call "
        "pmpp.kernels.common.block_sum(value, shared): all threads get the sum of the block's values; shared is "
        "a shared array of 32 float32.",
        parameters="dy, x, dbias",
        cases=_bias_cases,
        answer=bias_answer,
        hints=(
            "Count through the channel: i from threadIdx.x on, in steps of blockDim.x, below images * elements.",
            "i // elements is the image and i % elements the place in it.",
            "All threads call block_sum, those without an element, too. One thread stores.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "A block has the whole channel: add its threads' sums with block_sum."),
        },
        traps=(
            Trap("one image", "The sum goes over all images.", _one_image),
            Trap("slope forgotten", "Where x is not positive, ReLU lets nothing through.", _no_slope),
            Trap("slope at 0", "Where x is 0, the slope is 0: compare with >.", _open_at_zero),
        ),
    ),
)
