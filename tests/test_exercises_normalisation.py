"""The exercises of chapter 16: other right answers, and that answers are ones for a GPU too.

Wrong answers are in tests/wrong/batchnorm.py and tests/wrong/layernorm.py; tests/test_exercises.py tries them.
"""

import math

import numpy as np
import pytest
from wrong.batchnorm import ANSWERS as WRONG_OF_BATCHES
from wrong.layernorm import ANSWERS as WRONG_OF_ROWS

from pmpp import cuda
from pmpp.exercises.batchnorm import EXERCISES as OF_BATCHES
from pmpp.exercises.layernorm import EXERCISES as OF_ROWS
from pmpp.lab.exercise import check, exercise
from pmpp.moments import block_merge, block_sum, warp_sum, welford_step

f0, f1 = np.float32(0), np.float32(1)
EXERCISES = (*OF_BATCHES, *OF_ROWS)
RIGHT = [(one.name, one.answer) for one in EXERCISES]


def right(name):
    return lambda kernel: RIGHT.append((name, kernel)) or kernel


@right("batchnorm/merge")
@cuda.jit
def merge_in_two_passes(counts, means, m2s, out):
    """The mean of all first, then the distances of the parts from it."""
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, total, m2 = f0, f0, f0
        for part in range(counts.shape[0]):
            count += counts[part, c]
            total += counts[part, c] * (means[part, c] - means[0, c])
        mean = means[0, c] + total / count
        for part in range(counts.shape[0]):
            away = means[part, c] - mean
            m2 += m2s[part, c] + counts[part, c] * away * away
        out[0, c] = mean
        out[1, c] = m2 / count


@right("batchnorm/running")
@cuda.jit
def running_by_a_step(mean, var, count, momentum, running_mean, running_var):
    """The old moves towards the new."""
    c = cuda.grid(1)
    if c < mean.size:
        more = np.float32(count) / np.float32(count - 1)
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_var[c] += momentum * (var[c] * more - running_var[c])


@right("layernorm/rms")
@cuda.jit
def rms_in_registers(x, weight, eps, out):
    """The row is kept: up to 512 elements are 16 a lane."""
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:
        values, squares = cuda.local.array(16, np.float32), f0
        for k in range(16):
            values[k] = x[row, lane + 32 * k] if lane + 32 * k < columns else f0
            squares += values[k] * values[k]
        scale = f1 / math.sqrt(warp_sum(squares) / np.float32(columns) + eps)
        for k in range(16):
            if lane + 32 * k < columns:
                out[row, lane + 32 * k] = values[k] * scale * weight[lane + 32 * k]


@right("layernorm/group")
@cuda.jit
def group_by_welford(x, weight, bias, groups, eps, out):
    image, group = cuda.blockIdx.x, cuda.blockIdx.y
    inner, channels = x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    count, mean, m2 = f0, f0, f0
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        count, mean, m2 = welford_step(count, mean, m2, x[image, first + i // inner, i % inner])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    scale = f1 / math.sqrt(m2 / count + eps)
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]


@right("layernorm/group")
@cuda.jit
def group_with_one_array(x, weight, bias, groups, eps, out):
    """One array for both sums, and a barrier before it is used again."""
    image, group = cuda.blockIdx.x, cuda.blockIdx.y
    inner, channels = x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    partial, total, squares = cuda.shared.array(32, np.float32), f0, f0
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        total += x[image, first + i // inner, i % inner]
    mean = block_sum(total, partial) / np.float32(values)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        deviation = x[image, first + i // inner, i % inner] - mean
        squares += deviation * deviation
    scale = f1 / math.sqrt(block_sum(squares, partial) / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes(name, kernel):
    verdict = check(name, kernel)
    assert verdict, verdict.message


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_is_one_for_a_gpu_too(name, kernel, ptx):
    assert ".entry" in ptx(kernel, *exercise(name).inputs[0].args)


@pytest.mark.parametrize("name", [one.name for one in EXERCISES])
def test_each_exercise_has_at_least_five_wrong_answers(name):
    assert len([1 for wrong in (*WRONG_OF_BATCHES, *WRONG_OF_ROWS) if wrong.exercise == name]) >= 5
