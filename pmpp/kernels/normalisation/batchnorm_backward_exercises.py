"""Exercises of notebooks/84_gradients_of_normalisation.ipynb on batches: sums of a channel, and a ReLU behind it."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
f0 = np.float32(0)
UNIT, FAR = 2.0**-24, 1000  # FAR: a mean that is a thousand standard deviations from 0
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."
NO_ATOMICS = "A block's sum needs no atomics, and with them the order of the additions is left to chance."


def _budget(case: Case) -> dict[str, tuple[float, str]]:
    return {"flops_f64": (0, FLOAT64), "atomic_requests": (0, NO_ATOMICS)}


# -------------------------------------------------------------------------------------------- batchnorm_backward/sums


def _drawn(rng: np.random.Generator, n: int, c: int, inner: int, centre: float) -> tuple[np.ndarray, ...]:
    dy, x = rng.standard_normal((2, n, c, inner), dtype=np.float32) + np.float32([[[[1]]], [[[centre]]]])
    exact = x.astype(np.float64)
    mean, var = exact.mean(axis=(0, 2)), exact.var(axis=(0, 2))
    return dy, x, mean.astype(np.float32), (1 / np.sqrt(var + 1e-5)).astype(np.float32)


def _sums_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, c, inner, centre in (
        (1, 1, 2, 0),
        (2, 3, 5, 0),
        (3, 2, 43, 0),
        (2, 1, 64, 1),
        (2, 2, 40, FAR),
        (5, 4, 77, 8),
    ):
        dy, x, mean, invstd = _drawn(rng, n, c, inner, centre)
        expected = _summed(dy, x, mean, invstd)
        # A thread adds count / BLOCK terms, and 20 roundings are for the terms and for adding up the threads.
        growth = (n * inner / BLOCK + 20) * UNIT
        terms = _summed(np.abs(dy), np.abs(x - mean[:, None]), 0 * mean, invstd)
        args = dy, x, mean, invstd, unwritten((2, c), np.float32)
        name = f"{n} x {c} x {inner}" + f", around {centre}" * bool(centre)
        cases.append(Case(name, args, c, BLOCK, {4: expected}, {4: growth * terms}))
    return cases


def _summed(dy, x, mean, invstd) -> np.ndarray:
    normalised = (x.astype(np.float64) - mean[:, None]) * invstd[:, None].astype(np.float64)
    return np.array([(dy * normalised).sum(axis=(0, 2)), dy.sum(axis=(0, 2), dtype=np.float64)])


@cuda.jit
def sums_answer(dy, x, mean, invstd, out):
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        given = dy[i // inner, c, i % inner]
        plain += given
        weighted += given * (x[i // inner, c, i % inner] - mean[c])
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        out[0, c], out[1, c] = weighted * invstd[c], plain


def _not_centred(dy, x, mean, invstd, out) -> dict[int, np.ndarray]:
    found = _summed(dy, x, 0 * mean, invstd)
    found[0] = np.where(mean > FAR / 2, np.nan, found[0])  # a difference of two sums that float32 cannot hold: anything
    return {4: found}


def _not_scaled(dy, x, mean, invstd, out) -> dict[int, np.ndarray]:
    return {4: _summed(dy, x, mean, 0 * invstd + 1)}


def _means(dy, x, mean, invstd, out) -> dict[int, np.ndarray]:
    return {4: _summed(dy, x, mean, invstd) / (x.shape[0] * x.shape[2])}


# -------------------------------------------------------------------------------------------- batchnorm_backward/relu


def _relu_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, c, inner in ((1, 1, 4), (2, 3, 5), (3, 2, 50), (2, 2, 64), (7, 5, 33)):
        dy, x, mean, invstd = _drawn(rng, n, c, inner, 0)
        weight, bias = rng.uniform(0.5, 2, c).astype(np.float32), rng.uniform(0.1, 0.5, c).astype(np.float32)
        normalised = (x.astype(np.float64) - mean[:, None]) * invstd[:, None]
        y = np.maximum(normalised * weight[:, None] + bias[:, None], 0).astype(np.float32)
        args = dy, y, x, weight, mean, invstd, unwritten(x.shape, np.float32)
        size = np.abs(dy).mean() * (1 + np.abs(normalised).max()) ** 2 * float(weight.max()) * invstd.max()
        allowed = 2 * (n * inner / BLOCK + 30) * UNIT * (size + np.abs(dy).max() * weight.max() * invstd.max())
        cases.append(Case(f"{n} x {c} x {inner}", args, c, BLOCK, {6: _through(*args[:-1])}, {6: float(allowed)}))
    return cases


def _through(dy, y, x, weight, mean, invstd, first=True, last=True) -> np.ndarray:
    """dx behind a ReLU. ``first``, ``last``: whether the sums, and the element itself, leave out what ReLU cut off."""
    normalised = (x.astype(np.float64) - mean[:, None]) * invstd[:, None]
    own, summed = (np.where(y > 0, dy, 0) if cut else dy.astype(np.float64) for cut in (last, first))
    common = summed.mean(axis=(0, 2), keepdims=True)
    slope = (summed * normalised).mean(axis=(0, 2), keepdims=True)
    return (weight * invstd.astype(np.float64))[:, None] * (own - common - normalised * slope)


@cuda.jit
def relu_answer(dy, y, x, weight, mean, invstd, out):
    images, _, inner = x.shape
    c, partial, count = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32), np.float32(images * inner)
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        image, r = i // inner, i % inner
        given = dy[image, c, r] if y[image, c, r] > f0 else f0
        plain += given
        weighted += given * (x[image, c, r] - mean[c]) * invstd[c]
    plain = block_sum(plain, partial[0]) / count
    weighted = block_sum(weighted, partial[1]) / count
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        image, r = i // inner, i % inner
        given = dy[image, c, r] if y[image, c, r] > f0 else f0
        out[image, c, r] = weight[c] * invstd[c] * (given - plain - (x[image, c, r] - mean[c]) * invstd[c] * weighted)


EXERCISES = (
    Exercise(
        "batchnorm_backward/sums",
        task="dy and x have shape (images, channels, inner), and mean and invstd one number for each channel. Store in "
        "out[0, c] the gradient of the weight of channel c, the sum of dy * (x - mean) * invstd, and in out[1, c] that "
        f"of its bias, the sum of dy. Block c of the grid has channel c, with {BLOCK} threads.",
        parameters="dy, x, mean, invstd, out",
        cases=_sums_cases,
        budget=_budget,
        answer=sums_answer,
        hints=(
            f"Thread t takes the values t, t + {BLOCK}, ... of the channel: value i is in image i // inner.",
            "`block_sum(value, partial)` of pmpp.kernels.common gives all threads the block's sum. It needs 32 floats "
            "of shared memory. A second sum needs 32 others.",
            "invstd is the same for all terms: multiply by it once, after the sum.",
        ),
        traps=(
            Trap("x is not centred", "The sum is over the normalised x: subtract the mean first.", _not_centred),
            Trap("x is not scaled", "The sum is over the normalised x: multiply by invstd.", _not_scaled),
            Trap(
                "means instead of sums", "Weight and bias take part in every value: their gradients are sums.", _means
            ),
        ),
    ),
    Exercise(
        "batchnorm_backward/relu",
        task="Behind the normalisation stands a ReLU, and y is its result: relu(weight * normalised + bias). dy is the "
        "gradient of y. Store the gradient of x in out. A value where y is 0 gives nothing to any sum, and yet has a "
        f"gradient itself. Block c of the grid has channel c, with {BLOCK} threads.",
        parameters="dy, y, x, weight, mean, invstd, out",
        cases=_relu_cases,
        budget=_budget,
        answer=relu_answer,
        hints=(
            "Behind the ReLU the gradient is dy where y > 0, and 0 elsewhere. Use that in place of dy, everywhere.",
            "Two passes over the channel: one for the two sums, one for the gradient.",
            "The two sums are divided by the number of values, images * inner, as a float32.",
        ),
        traps=(
            Trap(
                "the ReLU is left out of the sums",
                "Values that ReLU cut off give nothing to the sums, either.",
                lambda *args: {6: _through(*args[:-1], first=False)},
            ),
            Trap(
                "the ReLU is left out of the element's own part",
                "An element that ReLU cut off has no dy of its own: only the two sums reach it.",
                lambda *args: {6: _through(*args[:-1], last=False)},
            ),
            Trap(
                "the gradient is cut off, too",
                "An element that ReLU cut off still moves the channel's mean and variance, so its gradient is not 0.",
                lambda *args: {6: np.where(args[1] > 0, _through(*args[:-1]), 0)},
            ),
        ),
    ),
)
