"""More answers to the exercises on batch normalisation: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MERGE, RUNNING = "batchnorm/merge", "batchnorm/running"
f0 = np.float32(0)


# -- merge


@right(MERGE)
@cuda.jit
def merge_from_nothing(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = f0, f0, f0
        for part in range(counts.shape[0]):
            more, delta = counts[part, c], means[part, c] - mean
            m2 += m2s[part, c] + delta * delta * count * more / (count + more)
            count += more
            mean += delta * more / count
        out[0, c] = mean
        out[1, c] = m2 / count


@wrong(MERGE, "wrong result", "one channel in one part")
@cuda.jit
def merge_with_the_new_count(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = f0, f0, f0
        for part in range(counts.shape[0]):
            more, delta = counts[part, c], means[part, c] - mean
            count += more
            mean += delta * more / count
            m2 += m2s[part, c] + delta * delta * count * more / count
        out[0, c] = mean
        out[1, c] = m2 / count


@wrong(MERGE, "wrong result", "64 channels in two equal parts")
@cuda.jit
def merge_without_the_last_part(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = counts[0, c], means[0, c], m2s[0, c]
        for part in range(1, counts.shape[0] - 1):
            more, delta = counts[part, c], means[part, c] - mean
            m2 += m2s[part, c] + delta * delta * count * more / (count + more)
            count += more
            mean += delta * more / count
        out[0, c] = mean
        out[1, c] = m2 / count


@wrong(MERGE, "inaccurate", "around 1000.*must not be a small difference of large numbers")
@cuda.jit
def merge_by_the_mean_of_squares(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, total, squares = f0, f0, f0
        for part in range(counts.shape[0]):
            count += counts[part, c]
            total += counts[part, c] * means[part, c]
            squares += m2s[part, c] + counts[part, c] * means[part, c] ** 2
        mean = total / count
        out[0, c] = mean
        out[1, c] = squares / count - mean * mean


# -- running


@wrong(RUNNING, "the wrong way round", "the larger one")
@cuda.jit
def running_divided_the_wrong_way_round(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        smaller = var[c] * np.float32(count - 1) / np.float32(count)
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_var[c] += momentum * (smaller - running_var[c])


@right(RUNNING)
@cuda.jit
def running_by_the_difference(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        unbiased = var[c] * np.float32(count) / np.float32(count - 1)
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_var[c] += momentum * (unbiased - running_var[c])


@wrong(RUNNING, "output not written", "the kernel never uses running_mean")
@cuda.jit
def running_of_the_variance(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        unbiased = var[c] * np.float32(count) / np.float32(count - 1)
        running_var[c] += momentum * (unbiased - running_var[c])


@wrong(RUNNING, "inputs exchanged", "with mean and var exchanged")
@cuda.jit
def running_of_the_other_moment(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        old, n = np.float32(1) - momentum, np.float32(count)
        running_mean[c] = old * running_mean[c] + momentum * var[c]
        running_var[c] = old * running_var[c] + momentum * mean[c] * n / (n - np.float32(1))


@wrong(MERGE, "outputs exchanged", r"out\[0\] holds what belongs into out\[1\]")
@cuda.jit
def merge_variance_first(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = counts[0, c], means[0, c], m2s[0, c]
        for part in range(1, counts.shape[0]):
            more, delta = counts[part, c], means[part, c] - mean
            m2 += m2s[part, c] + delta * delta * count * more / (count + more)
            count += more
            mean += delta * more / count
        out[0, c], out[1, c] = m2 / count, mean
