"""Exercises of notebooks/46_pooling_and_activations.ipynb on activations: a bias by channel, a gated unit."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.activation.ladder import logistic
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 0.01 is float64, and makes a float64 of what it meets: write np.float32(0.01)."


# ---------------------------------------------------------------------------------------------------- activation/bias


def _leaky(v: np.ndarray, slope: float) -> np.ndarray:
    return np.where(v > 0, v, v * np.float64(np.float32(slope)))


def _bias_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    shapes = ((1, 1, 1), (1, 3, 5), (2, 3, 7), (2, 4, 32), (3, 5, 49))
    # One slope is above 1: there the larger of v and v * slope is not the answer.
    for (n, c, inner), slope in zip(shapes, (0.1, 0.25, 2.0, 0.5, 0.2), strict=True):
        x, bias = rng.standard_normal((n, c, inner), dtype=np.float32), rng.standard_normal(c, dtype=np.float32)
        total = (x + bias[None, :, None]).astype(np.float64)
        args = x, bias, np.float32(slope), unwritten(x.shape, np.float32)
        # A sum and a product, each rounded once; a slope above 1 multiplies the error of the sum. The largest element
        # stands for all.
        expected, allowed = _leaky(total, slope), 2.0**-23 * max(1, slope) * (np.abs(x).max() + np.abs(bias).max())
        cases.append(
            Case(f"shape {x.shape}, slope {slope}", args, blocks(x.size, BLOCK), BLOCK, {3: expected}, {3: allowed})
        )
    return cases


@cuda.jit
def bias_answer(x, bias, slope, out):
    i = cuda.grid(1)
    if i < out.size:
        c, inner = x.shape[1], x.shape[2]
        channel = i // inner % c
        value = x[i // inner // c, channel, i % inner] + bias[channel]
        out[i // inner // c, channel, i % inner] = value if value > np.float32(0) else value * slope


def _bias_after(x: np.ndarray, bias: np.ndarray, slope: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: _leaky(x.astype(np.float64), float(slope)) + bias[None, :, None]}


def _bias_of_the_column(x: np.ndarray, bias: np.ndarray, slope: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    added = bias[np.arange(x.size) % bias.size].reshape(x.shape)
    return {3: _leaky((x + added).astype(np.float64), float(slope))}


def _no_bias(x: np.ndarray, bias: np.ndarray, slope: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: _leaky(x.astype(np.float64), float(slope))}


def _larger(x: np.ndarray, bias: np.ndarray, slope: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    total = (x + bias[None, :, None]).astype(np.float64)
    return {3: np.maximum(total, total * float(slope))}


# --------------------------------------------------------------------------------------------------- activation/gated


def _silu(v: np.ndarray) -> np.ndarray:
    return v / (1 + np.exp(-v))


def _gated_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, n in ((1, 1), (1, 5), (3, 4), (2, 64), (7, 129)):
        x = rng.standard_normal((rows, 2 * n), dtype=np.float32) * 4
        gate, value = np.split(x.astype(np.float64), 2, axis=1)
        expected = _silu(gate) * value
        args = x, unwritten((rows, n), np.float32)
        # exp is good to 2 ulp; then a sum, a division and two products. The largest numbers stand for all.
        allowed = 2.0**-24 * 10 * np.abs(gate).max() * np.abs(value).max()
        cases.append(Case(f"{rows} x {2 * n}", args, blocks(rows * n, BLOCK), BLOCK, {1: expected}, {1: allowed}))
    return cases


@cuda.jit
def gated_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        n = out.shape[1]
        row, column = i // n, i % n
        gate = x[row, column]
        out[row, column] = gate * logistic(gate) * x[row, n + column]


def _swapped(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    value, gate = np.split(x.astype(np.float64), 2, axis=1)
    return {1: _silu(gate) * value}


def _interleaved(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    wide = x.astype(np.float64)
    return {1: _silu(wide[:, ::2]) * wide[:, 1::2]}


def _only_sigmoid(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    gate, value = np.split(x.astype(np.float64), 2, axis=1)
    return {1: value / (1 + np.exp(-gate))}


EXERCISES = (
    Exercise(
        "activation/bias",
        task="Add a bias and apply a leaky ReLU in one kernel: out = v if v > 0 else v * slope, where v is x plus the "
        "bias of its channel. x and out have shape (images, channels, elements), bias (channels,), slope is a number, "
        f"all float32. The launch has {BLOCK} threads a block, one for each element.",
        parameters="x, bias, slope, out",
        cases=_bias_cases,
        answer=bias_answer,
        hints=(
            "From a flat i: i % elements is the place in a plane, and i // elements counts planes.",
            "Planes go through the channels of one image, then of the next: what is the channel of plane p?",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("bias after the function", "Add the bias first: the function is of the sum.", _bias_after),
            Trap(
                "channel changes too fast",
                "Neighbours in a plane share a channel: it is not i % c.",
                _bias_of_the_column,
            ),
            Trap("no bias", "The bias is missing.", _no_bias),
            Trap("the larger of both", "Where slope is above 1, v * slope is larger than a positive v.", _larger),
        ),
    ),
    Exercise(
        "activation/gated",
        task="The gated unit of many language models (SwiGLU): a row of x has 2 n numbers, n gates and then n values. "
        "out[r, j] = silu(x[r, j]) * x[r, n + j], and silu(v) = v * sigmoid(v). x has shape (rows, 2 n), out has "
        f"(rows, n), float32. The launch has {BLOCK} threads a block, one for each element of out. Kernels can call "
        "pmpp.kernels.activation.logistic, which is the sigmoid.",
        parameters="x, out",
        cases=_gated_cases,
        answer=gated_answer,
        hints=(
            "One thread reads two numbers, n apart. Are both loads coalesced?",
            "Read what comes out of it: three numbers moved for each output. Two kernels would move five.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("halves swapped", "The gates come first: silu is of x[r, j].", _swapped),
            Trap("interleaved", "Gates and values are not in turn: all gates come first.", _interleaved),
            Trap("sigmoid only", "silu(v) is v * sigmoid(v): the gate itself is a factor, too.", _only_sigmoid),
        ),
    ),
)
