"""Exercise of notebooks/76_convolution_gradients.ipynb on the gradient by the weights: a sum in a fixed order."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 32  # threads per block
ZERO = np.float32(0)


def _taps(dy: np.ndarray, x: np.ndarray, padding: int, taps: int) -> np.ndarray:
    """The gradient in float64, of shape (filters, taps)."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding)))
    width = dy.shape[2]
    return np.stack([np.einsum("nkq,nq->k", dy.astype(np.float64), padded[:, s : s + width]) for s in range(taps)], 1)


def _cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, filters, width, taps, padding in (
        (1, 1, 3, 1, 0),
        (1, 2, 20, 3, 1),
        (3, 1, 33, 2, 0),
        (4, 3, 40, 5, 2),
        (7, 2, 19, 3, 1),
    ):
        outputs = width + 2 * padding - taps + 1
        x = rng.uniform(1, 2, (rows, width)).astype(np.float32)  # of one sign: no term may be lost
        dy = rng.uniform(1, 2, (rows, filters, outputs)).astype(np.float32)
        args = dy, x, padding, unwritten((filters, taps), np.float32)
        expected = _taps(dy, x, padding, taps)
        name = f"{rows} x {width}, {filters} filter{'s' * (filters > 1)} of {taps}, padding {padding}"
        allowed = (rows * outputs + 1) * 2.0**-24 * expected
        cases.append(Case(name, args, filters * taps, BLOCK, {3: expected}, {3: allowed}))
    return cases


@cuda.jit
def taps_answer(dy, x, padding, dw):
    sums = cuda.shared.array(BLOCK, np.float32)
    thread = cuda.threadIdx.x
    k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
    outputs = dy.shape[2]
    total = ZERO
    for place in range(thread, dy.shape[0] * outputs, BLOCK):
        n, q = place // outputs, place % outputs
        column = q + s - padding
        if 0 <= column < x.shape[1]:
            total += dy[n, k, q] * x[n, column]
    sums[thread] = total
    cuda.syncthreads()
    half = BLOCK // 2
    while half > 0:
        if thread < half:
            sums[thread] += sums[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        dw[k, s] = sums[0]


def _unpadded(dy, x, padding, dw) -> dict[int, np.ndarray]:
    return {3: _taps(dy, np.pad(x, ((0, 0), (0, 2 * padding))), 0, dw.shape[1])}


def _turned(dy, x, padding, dw) -> dict[int, np.ndarray]:
    return {3: _taps(dy, x, padding, dw.shape[1])[:, ::-1]}


def _first_row(dy, x, padding, dw) -> dict[int, np.ndarray]:
    return {3: _taps(dy[:1], x[:1], padding, dw.shape[1])}


EXERCISES = (
    Exercise(
        "weight_gradients/taps",
        task="A layer of one channel on rows computes y[n, k, q] = the sum over s of w[k, s] x[n, q + s - padding], "
        "with 0 outside the row. Given dy, of shape (rows, filters, outputs), and x, of shape (rows, width), write dw, "
        "of shape (filters, taps): dw[k, s] is the sum over n and q of dy[n, k, q] x[n, q + s - padding]. Two runs "
        f"must give the same bits, so without atomics. Arrays are float32. The launch has {BLOCK} threads a block, and "
        "a block for each element of dw: number k taps + s.",
        parameters="dy, x, padding, dw",
        cases=_cases,
        answer=taps_answer,
        hints=(
            "Thread t takes the places t, t + 32, t + 64, ... of all rows together, and adds up what they give.",
            "Then each thread has a sum. Put the sums into shared memory, and add them up in an order that is fixed.",
            "All threads of the block must be past a barrier before one reads what another has written.",
        ),
        budget=lambda case: {"atomic_requests": (0, "With atomics the order of the sum, and its last bits, change.")},
        traps=(
            Trap("padding forgotten", "Output q begins padding columns left of x[n, q].", _unpadded),
            Trap("turned", "Here nothing is turned: tap s saw x[n, q + s - padding].", _turned),
            Trap("first row only", "A weight is used in every row: the sum runs over n, too.", _first_row),
        ),
        advice={
            "missing atomic": "Let each thread keep a sum of its own, and add these up in shared memory.",
            "too much traffic": "Let each thread take places of its own, and add up their sums in shared memory.",
        },
    ),
)
