"""Exercises of notebooks/54_normalisation.ipynb on rows: RMS normalisation, and groups of channels."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks, warp_sum
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block: four warps
f0 = np.float32(0)
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."
NO_ATOMICS = "A sum within a warp or a block needs no atomics."


def _growth(n: int) -> float:
    """The relative error allowed for a sum over n values by a warp or a block: n / 32 + 20 roundings of 2^-24.

    With a warp, a lane adds n / 32 values. 20 roundings are for adding up the lanes, and for what follows the sum.
    """
    return (n / 32 + 20) * 2.0**-24


# ------------------------------------------------------------------------------------------------------ layernorm/rms


def _rms_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # A large eps shows where it is added.
    shapes = ((1, 1), (1, 32), (4, 32), (3, 33), (5, 77), (9, 100), (12, 512))
    for (rows, columns), eps in zip(shapes, (0.25, 1e-5, 0.25, 1e-5, 1e-5, 0.25, 1e-5), strict=True):
        x = (1 + 3 * rng.standard_normal((rows, columns))).astype(np.float32)
        weight = rng.uniform(0.5, 2, columns).astype(np.float32)
        exact = x.astype(np.float64)
        expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + np.float32(eps)) * weight
        args = x, weight, np.float32(eps), unwritten(x.shape, np.float32)
        allowed = {3: _growth(columns) * float(np.abs(expected).max())}
        cases.append(Case(f"{rows} x {columns}, eps {eps:g}", args, blocks(rows, 4), BLOCK, {3: expected}, allowed))
    return cases


@cuda.jit
def rms_answer(x, weight, eps, out):
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:  # the same for a whole warp
        squares = f0
        for i in range(lane, columns, 32):
            squares += x[row, i] * x[row, i]
        scale = np.float32(1) / math.sqrt(warp_sum(squares) / np.float32(columns) + eps)
        for i in range(lane, columns, 32):
            out[row, i] = x[row, i] * scale * weight[i]


def _layer_normalised(x, weight, eps, out) -> dict[int, np.ndarray]:
    exact = x.astype(np.float64)
    spread = np.sqrt(exact.var(axis=1, keepdims=True) + eps)
    return {3: (exact - exact.mean(axis=1, keepdims=True)) / spread * weight}


def _by_the_sum(x, weight, eps, out) -> dict[int, np.ndarray]:
    exact = x.astype(np.float64)
    return {3: exact / np.sqrt((exact**2).sum(axis=1, keepdims=True) + eps) * weight}


def _eps_outside(x, weight, eps, out) -> dict[int, np.ndarray]:
    exact = x.astype(np.float64)
    return {3: exact / (np.sqrt((exact**2).mean(axis=1, keepdims=True)) + eps) * weight}


def _rms_budget(case: Case) -> dict[str, tuple[float, str]]:
    x = case.args[0]
    each = "Let each lane square its own columns only, in steps of 32: warp_sum adds up the lanes."
    return {
        "flops_f64": (0, FLOAT64),
        # 4 for an element, and for a row what joins the lanes: far less than a row in every lane.
        "flops": (8 * x.size + 2000 * x.shape[0], each),
        "barriers": (0, "A row is the work of one warp, and its lanes need no barrier."),
        "atomic_requests": (0, NO_ATOMICS),
    }


# ---------------------------------------------------------------------------------------------------- layernorm/group


def _group_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # A large centre shows a variance that is the difference of two large numbers, and a large eps where it is added.
    for n, c, inner, groups, centre, eps in (
        (1, 2, 5, 1, 5, 0.25),
        (2, 4, 3, 2, 5, 1e-5),
        (1, 6, 100, 3, 5, 1e-5),
        (3, 4, 33, 4, 1000, 1e-5),
        (2, 12, 64, 3, 5, 1e-5),
    ):
        x = (centre + rng.standard_normal((n, c, inner))).astype(np.float32)
        weight, bias = rng.uniform(0.5, 2, c).astype(np.float32), rng.standard_normal(c, dtype=np.float32)
        expected = _grouped(x, weight, bias, groups, np.float32(eps))
        # The mean is off by at most `growth` times the values' size. Dividing by x.std() turns this into an error of
        # the result. Other errors are smaller.
        growth, size = _growth(c // groups * inner), np.abs(x).max()
        allowed = growth * (np.abs(weight)[:, None] * (size / x.std() + size) + np.abs(bias)[:, None])
        args = x, weight, bias, groups, np.float32(eps), unwritten(x.shape, np.float32)
        name = f"{n} x {c} x {inner} around {centre} in {groups} group{'s' * (groups > 1)}"
        cases.append(Case(name, args, (n, groups), BLOCK, {5: expected}, {5: np.broadcast_to(allowed, x.shape)}))
    return cases


def _grouped(x, weight, bias, groups, eps) -> np.ndarray:
    exact = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    mean, var = exact.mean(axis=2, keepdims=True), exact.var(axis=2, keepdims=True)
    return ((exact - mean) / np.sqrt(var + eps)).reshape(x.shape) * weight[:, None] + bias[:, None]


@cuda.jit
def group_answer(x, weight, bias, groups, eps, out):
    image, group = cuda.blockIdx.x, cuda.blockIdx.y
    inner, channels = x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    partial = cuda.shared.array((2, 32), np.float32)
    total, squares = f0, f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        total += x[image, first + i // inner, i % inner]
    mean = block_sum(total, partial[0]) / np.float32(values)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        deviation = x[image, first + i // inner, i % inner] - mean
        squares += deviation * deviation
    scale = np.float32(1) / math.sqrt(block_sum(squares, partial[1]) / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]


def _weight_of_the_group(x, weight, bias, groups, eps, out) -> dict[int, np.ndarray]:
    group = np.arange(x.shape[1]) // (x.shape[1] // groups)
    return {5: _grouped(x, weight[group], bias[group], groups, eps)}


def _each_channel_by_itself(x, weight, bias, groups, eps, out) -> dict[int, np.ndarray]:
    return {5: _grouped(x, weight, bias, x.shape[1], eps)}


def _group_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, groups = case.args[0], case.args[3]
    each = "Let each thread take its own values only, in steps of the block: block_sum adds up the threads."
    return {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (0, NO_ATOMICS),
        # 8 for an element, and for a group what joins the threads, at most moments: far less than a group in each.
        "flops": (16 * x.size + 16_000 * x.shape[0] * groups, each),
    }


EXERCISES = (
    Exercise(
        "layernorm/rms",
        task="Divide each row of x by its root mean square, sqrt(mean(x^2) + eps), and multiply by weight: no mean is "
        "subtracted, nothing is added. A row is the work of one warp. "
        f"The launch has {BLOCK} threads per block, and at least one warp for each row.",
        parameters="x, weight, eps, out",
        cases=_rms_cases,
        budget=_rms_budget,
        answer=rms_answer,
        hints=(
            "cuda.grid(1) // 32 is the row, cuda.laneid the lane: lane 0 takes columns 0, 32, 64, ...",
            "`warp_sum` of pmpp.kernels.common gives all lanes the sum of what each brings. All 32 must call it.",
            "The test row < x.shape[0] is the same for a whole warp, so the shuffles may stand inside it.",
        ),
        traps=(
            Trap("the mean is subtracted", "That is layer normalisation; here the mean stays.", _layer_normalised),
            Trap("eps outside the root", "eps is added to the mean square, under the root.", _eps_outside),
            Trap("the sum, not the mean", "Divide the sum of the squares by the number of columns.", _by_the_sum),
        ),
        advice={"missing atomic": "Let each lane keep a sum of its own: warp_sum adds up the lanes."},
    ),
    Exercise(
        "layernorm/group",
        task="Group normalisation: x has shape (images, channels, inner). The channels form `groups` groups of "
        "channels // groups neighbours each. In each image each group is normalised by its own mean and biased "
        "variance, with eps. Each channel has its own weight and bias. The block (image, group) of the grid normalises "
        f"one group, with {BLOCK} threads.",
        parameters="x, weight, bias, groups, eps, out",
        cases=_group_cases,
        budget=_group_budget,
        answer=group_answer,
        hints=(
            "A group's values lie together: value i is at channel first + i // inner, place i % inner.",
            "`block_sum(value, partial)` of pmpp.kernels.common gives all threads the block's sum. It "
            "needs 32 floats of shared memory. A second sum needs 32 others.",
            "Find the mean first, and the variance around it in a second loop.",
        ),
        traps=(
            Trap(
                "weight of the group", "weight and bias belong to the channel, not to the group.", _weight_of_the_group
            ),
            Trap(
                "each channel by itself",
                "A group has one mean and one variance, for all of its channels.",
                _each_channel_by_itself,
            ),
        ),
        advice={"missing atomic": "Let each thread keep a sum of its own: block_sum adds up the threads."},
    ),
)
