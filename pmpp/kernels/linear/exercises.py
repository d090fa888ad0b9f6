"""Exercises of notebooks/74_linear.ipynb on the layer: finishing a split sum, and one row by a warp an output."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, warp_sum
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads of a block
WARPS = BLOCK // 32
FLOAT64 = "keep the sum in float32: np.float32(0), not 0.0, which is a float64 and makes a float64 of what it meets"


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers from -7 to 7 without 0: every lost or doubled one shows, and sums are exact in any order."""
    return (rng.integers(1, 8, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


# ------------------------------------------------------------------------------------------------------ linear/finish


def _finished(partials: np.ndarray, bias: np.ndarray) -> np.ndarray:
    y = bias
    with np.errstate(invalid="ignore"):
        for one in partials:
            y = y + one
    return np.where(y < 0, 0.0, y)


def _finish_cases(rng: np.random.Generator) -> list[Case]:
    def case(slices: int, rows: int, outputs: int, with_nan: bool = False) -> Case:
        partials, bias = whole(rng, slices, rows, outputs), whole(rng, outputs)
        if with_nan:
            partials[0, rows // 2, outputs // 3] = np.nan
        name = f"{slices} slice{'s' * (slices > 1)} of {rows} x {outputs}" + (
            " and a NaN among them" if with_nan else ""
        )
        args = partials, bias, unwritten((rows, outputs), np.float32)
        return Case(name, args, blocks(rows * outputs, BLOCK), BLOCK, {2: _finished(partials, bias)})

    def in_order(rows: int, outputs: int) -> Case:
        """Slices 0 and 3 cancel, and what is added between them is rounded coarsely: each order gives another sum."""
        large = 2.0**26 * rng.choice([-1, 1], (rows, outputs))
        second, third, last = 8 * rng.standard_normal((3, rows, outputs))
        partials = np.stack([large, second, third, -large, last]).astype(np.float32)
        bias = np.zeros(outputs, np.float32)  # it may be added first or last
        args = partials, bias, unwritten((rows, outputs), np.float32)
        name = f"5 slices of {rows} x {outputs} that cancel"
        return Case(name, args, blocks(rows * outputs, BLOCK), BLOCK, {2: _finished(partials, bias)})

    shapes = [(1, 1, 1), (2, 3, 5), (3, 8, 16), (4, 13, 11), (5, 16, 40)]
    return [*(case(*shape) for shape in shapes), case(3, 20, 9, True), in_order(19, 10), case(6, 32, 60)]


@cuda.jit
def finish_answer(partials, bias, y):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for s in range(partials.shape[0]):
            total += partials[s, row, output]
        y[row, output] = np.float32(0) if total < 0 else total


def _bias_in_each(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: _finished(partials, bias * len(partials))}


def _relu_of_each(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: _finished(np.where(partials < 0, 0, partials), bias)}


def _relu_before_the_bias(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: _finished(partials, 0 * bias) + bias}


def _nan_lost(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: np.nan_to_num(_finished(partials, bias), nan=0.0)}


def _backwards(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: _finished(partials[::-1], bias)}


def _in_float64(partials, bias, y) -> dict[int, np.ndarray]:
    return {2: _finished(partials.astype(np.float64), bias)}


FINISH = Exercise(
    name="linear/finish",
    task="y = relu(the sum of the slices + bias): partials[s, row, output] is what slice s of the inputs comes to. The "
    "slices are added in their order, by one thread for each output. A NaN stays one.",
    parameters="partials, bias, y",
    cases=_finish_cases,
    budget=lambda case: {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (0, "atomics add in any order, and the bits then differ: let one thread add all slices"),
    },
    hints=(
        "at = cuda.grid(1) counts through y: its row is at // y.shape[1], its output at % y.shape[1].",
        "The bias belongs to the whole sum, and so does the ReLU: what is negative in a slice may still be needed.",
        "max(total, 0) makes 0 of a NaN, in either order: on the device it is fmaxf. Compare: total < 0.",
    ),
    answer=finish_answer,
    traps=(
        Trap("bias in each slice", "the bias is added once for each slice, and belongs to the sum", _bias_in_each),
        Trap("relu of each slice", "the ReLU of a sum is not the sum of the slices' ReLUs", _relu_of_each),
        Trap(
            "relu before the bias", "the bias comes before the ReLU, since it decides the sign", _relu_before_the_bias
        ),
        Trap(
            "NaN lost",
            "a NaN became 0: max prefers the number, and no comparison with a NaN is true. Test total < 0",
            _nan_lost,
        ),
        Trap(
            "added backwards",
            "slice 0 comes first, then slice 1: each order of a sum is rounded in its own way",
            _backwards,
        ),
        Trap("accidental float64", FLOAT64, _in_float64),
    ),
    advice={"missing atomic": "let one thread add all slices of an output, in their order"},
)


# ----------------------------------------------------------------------------------------------------- linear/one_row


def _one_row_cases(rng: np.random.Generator) -> list[Case]:
    def case(outputs: int, features: int) -> Case:
        x, weight, bias = whole(rng, features), whole(rng, outputs, features), whole(rng, outputs)
        expected = weight.astype(np.float64) @ x + bias
        args = x, weight, bias, unwritten(outputs, np.float32)
        return Case(
            f"{outputs} output{'s' * (outputs > 1)} of {features}", args, blocks(outputs, WARPS), BLOCK, {3: expected}
        )

    return [case(*shape) for shape in ((4, 32), (1, 1), (3, 33), (9, 70), (5, 200), (6, 31), (24, 128))]


@cuda.jit
def one_row_answer(x, weight, bias, y):
    output, lane = cuda.grid(1) // 32, cuda.laneid
    if output < y.size:  # the same for a whole warp
        total = np.float32(0)
        for k in range(lane, x.size, 32):
            total += x[k] * weight[output, k]
        total = warp_sum(total)
        if lane == 0:
            y[output] = total + bias[output]


def _one_row_budget(case: Case) -> dict[str, tuple[float, str]]:
    outputs, features = case.args[1].shape
    return {
        "global_load_sectors": (
            outputs * (2 * 4 * blocks(features, 32) + 1),
            "the lanes of a warp should read neighbours of one row of weight, each element once",
        ),
        "barriers": (0, "an output is the work of one warp, and its lanes need no barrier"),
        "atomic_requests": (0, "the sum of a warp needs no atomics"),
        "flops_f64": (0, FLOAT64),
        "global_store_bytes": (math.inf, "all lanes know the sum: let one of them store it"),
    }


ONE_ROW = Exercise(
    name="linear/one_row",
    task="y = W x + bias for one example x, with a warp for each output: block b has four warps, for outputs 4 b to "
    "4 b + 3. Each weight is read once, by lanes that lie side by side.",
    parameters="x, weight, bias, y",
    cases=_one_row_cases,
    budget=_one_row_budget,
    hints=(
        "The output is cuda.grid(1) // 32, and the lane cuda.laneid.",
        "Lane l takes the weights l, l + 32, l + 64, ... of the row.",
        "common.warp_sum(total) gives all lanes the sum; all of them must call it. One lane stores.",
    ),
    answer=one_row_answer,
    advice={"missing atomic": "let each lane keep a sum of its own, and add these up by warp_sum"},
)


EXERCISES = (FINISH, ONE_ROW)
