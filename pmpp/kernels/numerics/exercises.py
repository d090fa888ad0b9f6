"""Exercises of notebooks/38_numerics.ipynb: a compensated dot product, a sum in integers, a variance that survives."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.numerics.ladder import two_sum
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block
U = 2.0**-24  # the largest relative error of one rounding to float32
FLOAT64 = "The task is to do without float64: a literal such as 0.0 is one, and so is what it is added to."


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# ------------------------------------------------------------------------------------------------------- numerics/dot


def _dot_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray, y: np.ndarray) -> Case:
        x, y = x.astype(np.float32), y.astype(np.float32)
        products = x.astype(np.float64) * y  # of 48 bits: exact
        expected = np.array([math.fsum(column) for column in products.T])
        # One rounding of the result; what is lost is at most n u sum |products|, and is added up with n more roundings.
        # Twice that, since each element brings two such errors: of the product, and of the sum.
        size = np.abs(products).sum(axis=0)
        allowed = U * np.abs(expected) + 2 * (len(x) + 1) ** 2 * U**2 * size
        columns = x.shape[1]
        return Case(name, (x, y, unwritten(columns, np.float32)), _blocks(columns), BLOCK, {2: expected}, {2: allowed})

    def cancelling(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Products in pairs that cancel but for their last bits."""
        x, y = rng.standard_normal((2, rows // 2, columns), dtype=np.float32)
        order = rng.permutation(rows)
        near = np.nextafter(y, np.float32(9))
        return np.concatenate([x, -x])[order], np.concatenate([y, near])[order]

    return [
        case("1 row and 1 column", *rng.standard_normal((2, 1, 1))),
        case("40 rows and a block less one", *rng.standard_normal((2, 40, BLOCK - 1))),
        case("64 rows that cancel, and a block", *cancelling(64, BLOCK)),
        case("a block and one, large between small", *(rng.standard_normal((2, 31, BLOCK + 1)) ** 9)),
        case("20 rows that cancel, and 700 columns", *cancelling(20, 700)),
    ]


@cuda.jit
def dot_answer(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total, rest = np.float32(0), np.float32(0)
        for k in range(x.shape[0]):
            product = x[k, i] * y[k, i]
            below = cuda.fma(x[k, i], y[k, i], -product)  # what the rounding of the product has taken away
            total, lost = two_sum(total, product)
            rest += lost + below
        out[i] = total + rest


def _dot_plain(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    products = x * y
    total, rest = np.zeros_like(out), np.zeros_like(out)
    for product in products:
        after = total + product
        rest += (total - (after - (after - total))) + (product - (after - total))
        total = after
    return {2: total + rest}


def _dot_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {"flops_f64": (0, FLOAT64)}


# ----------------------------------------------------------------------------------------------------- numerics/fixed


def _fixed_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, units: np.ndarray, blocks: int | None = None) -> Case:
        x = (units * 2.0**-20).astype(np.float32)  # 24 bits: exact
        expected = np.array([units.sum(dtype=np.int64)])
        return Case(name, (x, np.zeros(1, np.int64)), blocks or _blocks(x.size), BLOCK, {1: expected})

    def up_to(n: int, low: int) -> np.ndarray:
        return rng.integers(low, 2**24, n)

    cases = [case(f"n = {n}", up_to(n, 1)) for n in (1, 31, BLOCK, BLOCK + 1)]
    cases.append(case("n = 700, of both signs, and one block more", up_to(700, -(2**24) + 1), _blocks(700) + 1))
    cases.append(case("n = 5000", up_to(5000, 2**23)))
    return cases


@cuda.jit
def fixed_answer(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    partial = cuda.shared.array(BLOCK, np.int64)
    partial[thread] = np.int64(x[i] * np.float32(2**20)) if i < x.size else np.int64(0)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


def _fixed_in_32_bits(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    units = (x.astype(np.float64) * 2**20).astype(np.int64)
    # A block's sum wraps around; blocks are added in 64 bits.
    sums = [units[first : first + BLOCK].sum().astype(np.int32) for first in range(0, x.size, BLOCK)]
    return {1: np.array([np.sum(sums, dtype=np.int64)])}


def _fixed_cut_off(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.array([x.astype(np.int64).sum() * 2**20])}


def _fixed_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (
            case.grid,
            "One a block is enough, in shared memory too: let the block agree on its sum by a tree.",
        ),
    }


# -------------------------------------------------------------------------------------------------- numerics/variance


def _variance_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int, columns: int, mean: float) -> Case:
        x = (mean + rng.standard_normal((rows, columns))).astype(np.float32)
        wide = x.astype(np.float64)
        expected = wide.var(axis=0)
        # Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983), table 1: updating formulas are
        # off by n kappa u of the variance, and two passes by n u + n^2 kappa^2 u^2. Each step has at most 4 roundings.
        kappa = np.sqrt((wide**2).mean(axis=0) / expected)
        allowed = 4 * rows * U * (1 + kappa) * expected
        name = f"{rows} rows, {columns} columns, and a mean of {mean:g}"
        return Case(name, (x, unwritten(columns, np.float32)), _blocks(columns), BLOCK, {1: expected}, {1: allowed})

    return [
        case(16, 1, 0),
        case(40, BLOCK - 1, 0),
        case(50, BLOCK, 4096),
        case(33, BLOCK + 1, -3e4),
        case(20, 900, 1e4),
    ]


@cuda.jit
def variance_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        mean, squares = np.float32(0), np.float32(0)
        for k in range(x.shape[0]):  # B. P. Welford (1962)
            before = x[k, i] - mean
            mean += before / np.float32(k + 1)
            squares += before * (x[k, i] - mean)
        out[i] = squares / np.float32(x.shape[0])


def _variance_of_a_sample(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.astype(np.float64).var(axis=0, ddof=1)}


def _not_divided(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.astype(np.float64).var(axis=0) * len(x)}


def _deviation(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.astype(np.float64).std(axis=0)}


def _variance_budget(case: Case) -> dict[str, tuple[float, str]]:
    sectors = 2 * _blocks(case.args[0].nbytes) * BLOCK // 32 + 2 * case.args[0].shape[0] * 2
    return {
        "flops_f64": (0, FLOAT64),
        "flops": (12 * case.args[0].size, "Two passes take four operations an element, and one takes six."),
        "global_load_sectors": (2 * sectors, "Twice through the column is enough."),
        "global_load_requests": (math.inf, ""),
    }


EXERCISES = (
    Exercise(
        "numerics/dot",
        task="out[i] is the dot product of column i of the float32 matrices x and y, as near to the true one as if it "
        "had been computed with twice as many digits and rounded at the end. Stay in float32. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each column.",
        parameters="x, y, out",
        cases=_dot_cases,
        budget=_dot_budget,
        answer=dot_answer,
        hints=(
            "numerics.two_sum(a, b) gives the rounded sum, and what was lost. Add up what is lost, apart from the sum.",
            "A product is rounded, too. cuda.fma(a, b, c) is a * b + c with one rounding.",
            "cuda.fma(a, b, -(a * b)) is what the rounding of the product has taken away, exactly.",
        ),
        traps=(
            Trap(
                "products are rounded",
                "The sums are in order. Each product has lost something as well: cuda.fma finds it.",
                _dot_plain,
            ),
        ),
        advice=dict.fromkeys(
            ("inaccurate", "wrong result"), "What do the roundings take away, and where does your kernel keep it?"
        ),
    ),
    Exercise(
        "numerics/fixed",
        task="Each x[i], a float32, is a multiple of 2^-20, and less than 16 in size. Add their sum, in units of "
        "2^-20, to out[0], an int64 that is 0 at the beginning. The result is exact, in whatever order blocks finish. "
        f"Use one atomic a block. The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, out",
        cases=_fixed_cases,
        budget=_fixed_budget,
        answer=fixed_answer,
        hints=(
            "Multiply by np.float32(2**20) first, which is exact, and convert to np.int64 after that.",
            f"Then add integers: a tree in a shared array of {BLOCK} np.int64, as in chapter 30.",
            "The sum of 256 numbers of up to 2^24 units has up to 32 bits and a sign.",
        ),
        traps=(
            Trap("overflow", "A block's sum can pass 2^31: keep it in an int64.", _fixed_in_32_bits),
            Trap("cut off", "The conversion drops the fraction: multiply before it.", _fixed_cut_off),
        ),
        advice={"wrong result": "If only the last digits are wrong: a float32 has 24 bits, and sums need more."},
    ),
    Exercise(
        "numerics/variance",
        task="out[i] is the variance of column i of the float32 matrix x: the mean of the squared distances from the "
        "column's mean. The mean may be thousands of times as large as the spread. Stay in float32. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each column.",
        parameters="x, out",
        cases=_variance_cases,
        budget=_variance_budget,
        answer=variance_answer,
        hints=(
            "The mean of the squares less the square of the mean is the difference of two large numbers.",
            "Two passes: the mean first, then the squares of the distances from it.",
            "One pass: Welford's recurrence corrects the mean with each element. Or subtract the first from all.",
        ),
        traps=(
            Trap(
                "divided by n - 1",
                "That is the variance of a sample. This one is divided by the number of rows.",
                _variance_of_a_sample,
            ),
            Trap("not divided", "This is the sum of the squares: the variance is their mean.", _not_divided),
            Trap("standard deviation", "This is the root of the variance.", _deviation),
        ),
        advice={
            "inaccurate": "Which numbers do you subtract, and how many of their digits are the same?",
            "wrong result": "If it is right where the mean is 0: which numbers do you subtract, and how many of their "
            "digits are the same?",
        },
    ),
)
