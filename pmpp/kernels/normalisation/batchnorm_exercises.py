"""Exercises of notebooks/54_normalisation.ipynb on batches: merging moments, and updating running moments."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads per block
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."


# ---------------------------------------------------------------------------------------------------- batchnorm/merge


def _merge_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, parts: int, channels: int, centre: float, largest: int = 9) -> Case:
        sizes = rng.integers(1, largest + 1, (parts, channels))
        columns = [[centre + rng.standard_normal(size) for size in sizes[:, c]] for c in range(channels)]
        counts = sizes.astype(np.float32)
        means = np.array([[part.mean() for part in column] for column in columns]).T.astype(np.float32)
        m2s = np.array([[part.var() * part.size for part in column] for column in columns]).T.astype(np.float32)
        # The parts are rounded to float32 first, and the expected result is the exact one for these rounded parts. Each
        # M2 is moved from its part's mean to the common mean.
        count = sizes.sum(axis=0)
        mean = (sizes * means.astype(np.float64)).sum(axis=0) / count
        var = (m2s.astype(np.float64) + sizes * (means.astype(np.float64) - mean) ** 2).sum(axis=0) / count
        # Each merge is allowed 3 roundings of the mean, by 2^-24 of its size, and 8 of M2. If the mean is off by e, the
        # square of a distance d is off by up to 2 d e + e^2.
        off = 3 * parts * 2.0**-24 * np.abs(means).max()
        allowed = np.array([np.full(channels, off), 8 * parts * 2.0**-24 * var + 2 * off * np.sqrt(var) + off**2])
        args = counts, np.ascontiguousarray(means), np.ascontiguousarray(m2s), unwritten((2, channels), np.float32)
        return Case(name, args, blocks(channels, BLOCK), BLOCK, {3: np.array([mean, var])}, {3: allowed})

    return [
        case("one channel in one part", 1, 1, 0.0),
        case("64 channels in two equal parts", 2, BLOCK, 0.0, 1),
        case("63 channels in 5 parts", 5, BLOCK - 1, 3.0),
        case("65 channels in 3 parts", 3, BLOCK + 1, -3.0),
        case("10 channels in 40 parts, around 1000", 40, 10, 1000.0),
        case("200 channels in 20 parts", 20, 200, 1.0),
    ]


@cuda.jit(device=True)
def merged(count, mean, m2, other_count, other_mean, other_m2):
    """The moments of two sets of values together."""
    both = count + other_count
    delta = other_mean - mean
    share = other_count / both
    return both, mean + delta * share, m2 + other_m2 + delta * delta * count * share


@cuda.jit
def merge_answer(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = counts[0, c], means[0, c], m2s[0, c]
        for part in range(1, counts.shape[0]):
            count, mean, m2 = merged(count, mean, m2, counts[part, c], means[part, c], m2s[part, c])
        out[0, c] = mean
        out[1, c] = m2 / count


def _merged_without_the_distance(counts, means, m2s, out) -> dict[int, np.ndarray]:
    mean = (counts * means.astype(np.float64)).sum(axis=0) / counts.sum(axis=0)
    return {3: np.array([mean, m2s.astype(np.float64).sum(axis=0) / counts.sum(axis=0)])}


def _mean_of_means(counts, means, m2s, out) -> dict[int, np.ndarray]:
    return {3: np.array([means.mean(axis=0, dtype=np.float64), np.full(out.shape[1], np.nan)])}


# -------------------------------------------------------------------------------------------------- batchnorm/running


def _running_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for channels, count, momentum in ((1, 2, 0.5), (63, 3, 0.1), (64, 5, 0.1), (65, 32, 0.75), (300, 4, 0.1)):
        mean, old_mean = rng.standard_normal((2, channels), dtype=np.float32)
        var, old_var = rng.uniform(0.5, 2, (2, channels)).astype(np.float32)
        share = float(np.float32(momentum))
        expected = {
            4: (1 - share) * old_mean.astype(np.float64) + share * mean,
            5: (1 - share) * old_var.astype(np.float64) + share * var.astype(np.float64) * count / (count - 1),
        }
        # Six roundings, of numbers of at most this size.
        allowed = {
            i: 6 * 2.0**-24 * (np.abs(old) + 2 * np.abs(new))
            for i, old, new in ((4, old_mean, mean), (5, old_var, var))
        }
        args = mean, var, count, np.float32(momentum), old_mean.copy(), old_var.copy()
        name = f"{channels} channel{'s' * (channels > 1)} of {count} values, momentum {momentum}"
        cases.append(Case(name, args, blocks(channels, BLOCK), BLOCK, expected, allowed))
    return cases


@cuda.jit
def running_answer(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        old = np.float32(1) - momentum
        unbiased = var[c] * np.float32(count) / np.float32(count - 1)
        running_mean[c] = old * running_mean[c] + momentum * mean[c]
        running_var[c] = old * running_var[c] + momentum * unbiased


def _kept(mean, var, count, momentum, running_mean, running_var, share: float, unbias: bool) -> dict[int, np.ndarray]:
    more = count / (count - 1) if unbias else 1
    return {
        4: (1 - share) * running_mean.astype(np.float64) + share * mean,
        5: (1 - share) * running_var.astype(np.float64) + share * var.astype(np.float64) * more,
    }


def _smaller(mean, var, count, momentum, running_mean, running_var) -> dict[int, np.ndarray]:
    less = var.astype(np.float64) * ((count - 1) / count)
    return _kept(mean, less, count, momentum, running_mean, running_var, share=float(momentum), unbias=False)


def _budget(case: Case) -> dict[str, tuple[float, str]]:
    return {"flops_f64": (0, FLOAT64)}


EXERCISES = (
    Exercise(
        "batchnorm/merge",
        task="Each channel's values were seen in parts: counts, means and m2s have shape (parts, channels), and m2s "
        "are sums of squared distances from the part's own mean. Merge them: out[0, c] is the mean of channel c, "
        "out[1, c] its biased variance. All in float32, one thread per channel. "
        f"The launch has {BLOCK} threads per block, and at least one thread for each channel.",
        parameters="counts, means, m2s, out",
        cases=_merge_cases,
        budget=_budget,
        answer=merge_answer,
        hints=(
            "Take the first part as it is, and merge one part after another into it: three numbers in registers.",
            "The mean moves by (other mean - mean) * other count / count of both.",
            "M2 of both is the sum of the two, and (other mean - mean)^2 * count * other count / count of both: the "
            "parts lie apart, and that is spread too.",
        ),
        traps=(
            Trap(
                "the distance between the parts is lost",
                "Adding the M2s is not enough: parts with different means lie apart, and that adds to the spread.",
                _merged_without_the_distance,
            ),
            Trap("every part counts the same", "A mean of means is right for parts of one size only.", _mean_of_means),
        ),
        advice={
            "inaccurate": "The variance must not be a small difference of large numbers, such as the mean of squares "
            "less the square of the mean: square distances between means instead."
        },
    ),
    Exercise(
        "batchnorm/running",
        task="Update the running moments as PyTorch does: running_mean and running_var are updated in place, and the "
        "new values have the weight momentum. mean and var are those of a batch with count values per channel. var is "
        "the biased variance; the unbiased one goes into running_var. "
        f"The launch has {BLOCK} threads per block, and at least one thread for each channel.",
        parameters="mean, var, count, momentum, running_mean, running_var",
        cases=_running_cases,
        budget=_budget,
        answer=running_answer,
        hints=(
            "The result is (1 - momentum) * old + momentum * new, where new is the batch's.",
            "The unbiased variance divides by count - 1 where the biased one divides by count.",
            "count is an int64, and a float32 times that is a float64: write np.float32(count).",
        ),
        traps=(
            Trap(
                "the biased variance is kept",
                "The variance that is kept is the unbiased one.",
                lambda *args: _kept(*args, share=float(args[3]), unbias=False),
            ),
            Trap(
                "the wrong way round",
                "The unbiased variance is the larger one: var * count / (count - 1).",
                _smaller,
            ),
            Trap(
                "momentum is given to the old",
                "In PyTorch momentum is the weight of the new batch.",
                lambda *args: _kept(*args, share=1 - float(args[3]), unbias=True),
            ),
        ),
    ),
)
