"""Exercises of notebooks/84_gradients_of_normalisation.ipynb on rows: RMS normalisation, and the sums of columns."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, warp_sum
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block: four warps
f0 = np.float32(0)
UNIT = 2.0**-24
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."


def _budget(case: Case) -> dict[str, tuple[float, str]]:
    atomics = "Atomics leave the order of the additions to chance: the same call would not give the same bits."
    return {"flops_f64": (0, FLOAT64), "atomic_requests": (0, atomics)}


# ------------------------------------------------------------------------------------------ layernorm_backward/rms


def _rms_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, columns in ((1, 2), (1, 32), (4, 31), (3, 33), (5, 77), (9, 100), (12, 256)):
        dy, x = rng.standard_normal((2, rows, columns), dtype=np.float32) + np.float32([[[0]], [[1]]])
        weight = rng.uniform(0.5, 2, columns).astype(np.float32)
        invrms = (1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1) + 1e-5)).astype(np.float32)
        args = dy, x, weight, invrms, unwritten(x.shape, np.float32)
        size = invrms.max() * (np.abs(dy).max() * 2 + 2 * np.abs(x * invrms[:, None]).max() ** 2)
        allowed = float((columns / 32 + 20) * UNIT * size)
        cases.append(Case(f"{rows} x {columns}", args, blocks(rows, 4), BLOCK, {4: _rms(*args[:-1])}, {4: allowed}))
    return cases


def _rms(dy, x, weight, invrms, of_weight=True, centred=False, divide=True) -> np.ndarray:
    scale = invrms.astype(np.float64)[:, None]
    normalised, given = x * scale, dy.astype(np.float64) * weight
    slope = ((given if of_weight else dy) * normalised).sum(axis=1, keepdims=True) / (x.shape[1] if divide else 1)
    common = given.mean(axis=1, keepdims=True) if centred else 0
    return scale * (given - common - normalised * slope)


@cuda.jit
def rms_answer(dy, x, weight, invrms, out):
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:  # the same for a whole warp
        slope = f0
        for i in range(lane, columns, 32):
            slope += dy[row, i] * weight[i] * x[row, i] * invrms[row]
        slope = warp_sum(slope) / np.float32(columns)
        for i in range(lane, columns, 32):
            out[row, i] = (dy[row, i] * weight[i] - x[row, i] * invrms[row] * slope) * invrms[row]


def _rms_budget(case: Case) -> dict[str, tuple[float, str]]:
    return _budget(case) | {"barriers": (0, "A row is the work of one warp, and its lanes need no barrier.")}


# ------------------------------------------------------------------------------------------ layernorm_backward/columns


def _columns_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, columns in ((1, 1), (7, 5), (33, 127), (20, 128), (50, 129), (64, 300)):
        dy, x = rng.standard_normal((2, rows, columns), dtype=np.float32) + np.float32([[[0]], [[3]]])
        exact = x.astype(np.float64)
        mean, invstd = exact.mean(axis=1), 1 / np.sqrt(exact.var(axis=1) + 1e-5)
        args = dy, x, mean.astype(np.float32), invstd.astype(np.float32), unwritten((2, columns), np.float32)
        size = np.array([np.abs(dy * (np.abs(x) + 3) * args[3][:, None]).sum(axis=0), np.abs(dy).sum(axis=0)])
        allowed = {4: (rows + 8) * UNIT * size}
        name = f"{rows} x {columns}"
        cases.append(Case(name, args, blocks(columns, BLOCK), BLOCK, {4: _columns(*args[:-1])}, allowed))
    return cases


def _columns(dy, x, mean, invstd) -> np.ndarray:
    normalised = (x.astype(np.float64) - mean[:, None]) * invstd[:, None].astype(np.float64)
    return np.array([(dy * normalised).sum(axis=0), dy.sum(axis=0, dtype=np.float64)])


@cuda.jit
def columns_answer(dy, x, mean, invstd, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        plain, weighted = f0, f0
        for row in range(x.shape[0]):
            plain += dy[row, column]
            weighted += dy[row, column] * ((x[row, column] - mean[row]) * invstd[row])
        out[0, column], out[1, column] = weighted, plain


EXERCISES = (
    Exercise(
        "layernorm_backward/rms",
        task="RMS normalisation divides each row of x by its root mean square and multiplies by weight; no mean is "
        "subtracted. dy is the gradient of the result, and invrms[row] is 1 over the row's root mean square. Store the "
        f"gradient of x in out. A row is the work of one warp. The launch has {BLOCK} threads per block, and at least "
        "one warp for each row.",
        parameters="dy, x, weight, invrms, out",
        cases=_rms_cases,
        budget=_rms_budget,
        answer=rms_answer,
        hints=(
            "Derive it as in the text, with h = x * invrms. No mean is subtracted, so one of the two sums is gone.",
            "dx = invrms * (g - h * mean(g * h)) with g = dy * weight.",
            "`warp_sum` of pmpp.kernels.common gives all lanes the sum of what each brings. All 32 must call it.",
        ),
        traps=(
            Trap(
                "the mean of g is subtracted",
                "That is layer normalisation. Here no mean was subtracted, so its gradient is not there.",
                lambda *args: {4: _rms(*args[:-1], centred=True)},
            ),
            Trap(
                "weight is missing in the sum",
                "Each column has its own weight, so it belongs into the sum: g = dy * weight.",
                lambda *args: {4: _rms(*args[:-1], of_weight=False)},
            ),
            Trap(
                "the sum, not the mean",
                "Divide the sum by the number of columns.",
                lambda *args: {4: _rms(*args[:-1], divide=False)},
            ),
        ),
    ),
    Exercise(
        "layernorm_backward/columns",
        task="Each row of x was normalised by mean[row] and invstd[row]. Store in out[0, c] the gradient of weight[c], "
        "the sum over the rows of dy * (x - mean) * invstd, and in out[1, c] that of bias[c], the sum of dy. One "
        f"thread has one column. The launch has {BLOCK} threads per block, and at least one thread for each column.",
        parameters="dy, x, mean, invstd, out",
        cases=_columns_cases,
        budget=_budget,
        answer=columns_answer,
        hints=(
            "cuda.grid(1) is the column. Neighbouring threads have neighbouring columns: the loads are coalesced.",
            "The moments belong to the row, so they change with every step.",
            "Two sums in two registers, stored at the end.",
        ),
        traps=(
            Trap(
                "x is not normalised",
                "The sum is over the normalised x: subtract the row's mean and multiply by its invstd.",
                lambda dy, x, mean, invstd, out: {4: _columns(dy, x, 0 * mean, 0 * invstd + 1)},
            ),
            Trap(
                "x is not centred",
                "Subtract the row's mean before you multiply by invstd.",
                lambda dy, x, mean, invstd, out: {4: _columns(dy, x, 0 * mean, invstd)},
            ),
            Trap(
                "the two are exchanged",
                "out[0] is the gradient of weight, out[1] that of bias.",
                lambda *args: {4: _columns(*args[:-1])[::-1]},
            ),
        ),
    ),
)
