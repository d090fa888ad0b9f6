"""Answers to the exercises of notebooks/22_launches.ipynb: wrong ones, and right ones that are written differently."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import WrongAnswer

DOUBLE = np.float64


@cuda.jit
def through_memory(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i]
        out[i] = out[i] + y[i]
        out[i] = max(out[i], np.float32(0))


@cuda.jit
def stores_then_clips(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        out[i] = value
        if value < np.float32(0):
            out[i] = np.float32(0)


@cuda.jit
def loads_twice(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        if a * x[i] + y[i] > np.float32(0):
            out[i] = a * x[i] + y[i]
        else:
            out[i] = np.float32(0)


@cuda.jit
def fused_in_float64(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(1.0 * a * x[i] + y[i], 0.0)


@cuda.jit
def clips_the_product(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i], np.float32(0)) + y[i]


@cuda.jit
def never_clips(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def forgets_the_factor(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i] + y[i], np.float32(0))


@cuda.jit
def writes_positive_ones_only(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        if value > np.float32(0):
            out[i] = value


@cuda.jit
def fused_no_guard(x, y, a, out):
    i = cuda.grid(1)
    out[i] = max(a * x[i] + y[i], np.float32(0))


@cuda.jit
def step_by_step(x, y, a, out):
    i = cuda.grid(1)
    if i < x.size:
        value = a * x[i]
        value += y[i]
        value = max(value, np.float32(0))
        out[i] = value


@cuda.jit
def fused_grid_stride(x, y, a, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        value = a * x[i] + y[i]
        out[i] = value if value > np.float32(0) else np.float32(0)


@cuda.jit
def steps_through_memory(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]
        for _ in range(steps):
            out[i] = r * out[i] * (np.float32(1) - out[i])


@cuda.jit
def stores_each_step(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        out[i] = value
        for _ in range(steps):
            value = r * value * (np.float32(1) - value)
            out[i] = value


@cuda.jit
def one_is_an_integer(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * value * (1 - value)
        out[i] = value


@cuda.jit
def in_the_input(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        for _ in range(steps):
            x[i] = r * x[i] * (np.float32(1) - x[i])
        out[i] = x[i]


@cuda.jit
def a_step_too_few(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(1, steps):
            value = r * value * (np.float32(1) - value)
        out[i] = value


@cuda.jit
def always_two_steps(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(2):
            value = r * value * (np.float32(1) - value)
        out[i] = value


@cuda.jit
def logistic_no_guard(x, r, steps, out):
    i = cuda.grid(1)
    value = x[i]
    for _ in range(steps):
        value = r * value * (np.float32(1) - value)
    out[i] = value


@cuda.jit
def without_a_one(x, r, steps, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        for _ in range(steps):
            value = r * (value - value * value)
        out[i] = value


@cuda.jit
def counts_down(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        one, value = np.float32(1), x[i]
        while steps > 0:
            value = (one - value) * (r * value)
            steps -= 1
        out[i] = value


@cuda.jit
def maximum_with_a_float(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], 0.0)


@cuda.jit
def maximum_with_an_integer(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], 0)


@cuda.jit
def leaves_where_it_clips(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        if value < 0:
            return
        out[i] = value


@cuda.jit
def compares_with_literals(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        if value < 0.0:
            value = np.float32(0)
        out[i] = value


@cuda.jit
def chooses_a_literal(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        out[i] = value if value > 0 else 0.0


@cuda.jit
def stores_in_both_branches(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]
        if value > np.float32(0):
            out[i] = value
        else:
            out[i] = 0


@cuda.jit
def always_of_the_first_value(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * x[i] * (np.float32(1) - x[i])
        out[i] = value


@cuda.jit
def waits_after_each_step(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * value * (np.float32(1) - value)
            cuda.syncthreads()
        out[i] = value


@cuda.jit
def maximum_with_a_float64_on_purpose(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], np.float64(0))


@cuda.jit
def fused_in_a_float64_variable(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = DOUBLE(a * x[i] + y[i])
        out[i] = value if value > 0 else 0


@cuda.jit
def fused_through_float64_in_shared_memory(x, y, a, out):
    values = cuda.shared.array(256, np.float64)
    i, thread = cuda.grid(1), cuda.threadIdx.x
    if i < out.size:
        values[thread] = max(a * x[i] + y[i], np.float32(0))
        out[i] = values[thread]


@cuda.jit
def fused_with_the_other_vector(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * y[i] + x[i], np.float32(0))


@cuda.jit
def fused_by_the_first_block(x, y, a, out):
    if cuda.blockIdx.x == 0:
        for i in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
            out[i] = max(a * x[i] + y[i], np.float32(0))


@cuda.jit
def a_step_too_many(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps + 1):
            value = r * value * (np.float32(1) - value)
        out[i] = value


@cuda.jit
def at_most_twenty_steps(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for k in range(20):
            if k < steps:
                value = r * value * (np.float32(1) - value)
        out[i] = value


FUSED, LOGISTIC = "launches/fused", "launches/logistic"

ANSWERS = (
    WrongAnswer(FUSED, fused_by_the_first_block, "idle blocks", "only 1 of the 20 blocks"),
    WrongAnswer(LOGISTIC, a_step_too_many, "wrong result", r"should be [\d.]+\. Take"),  # in every case
    WrongAnswer(LOGISTIC, at_most_twenty_steps, "hard-coded size", r"Line \d+ says 20"),
    WrongAnswer(FUSED, maximum_with_a_float64_on_purpose, "deliberate float64", r"line \d+ asks for float64"),
    WrongAnswer(FUSED, fused_in_a_float64_variable, "deliberate float64", "write np.float32"),
    WrongAnswer(FUSED, fused_through_float64_in_shared_memory, "deliberate float64", "twice the memory"),
    WrongAnswer(FUSED, fused_with_the_other_vector, "inputs exchanged", "with x and y exchanged"),
    WrongAnswer(FUSED, through_memory, "too much traffic", "fits into a variable"),
    WrongAnswer(FUSED, stores_then_clips, "too much traffic", "store only the result"),
    WrongAnswer(FUSED, loads_twice, "too much traffic", "load x and y once"),
    WrongAnswer(FUSED, fused_in_float64, "accidental float64"),
    WrongAnswer(FUSED, clips_the_product, "clipped too early"),
    WrongAnswer(FUSED, never_clips, "not clipped", "what is negative becomes 0"),
    WrongAnswer(FUSED, forgets_the_factor, "argument ignored", "never uses a"),
    WrongAnswer(FUSED, writes_positive_ones_only, "output not written"),
    WrongAnswer(FUSED, fused_no_guard, "missing guard"),
    WrongAnswer(LOGISTIC, steps_through_memory, "too much traffic", "do all steps on a variable"),
    WrongAnswer(LOGISTIC, stores_each_step, "too much traffic", "store it once"),
    WrongAnswer(LOGISTIC, one_is_an_integer, "accidental float64"),
    WrongAnswer(LOGISTIC, in_the_input, "input changed"),
    WrongAnswer(LOGISTIC, a_step_too_few, "wrong result"),
    WrongAnswer(LOGISTIC, always_two_steps, "argument ignored", "never uses steps"),
    WrongAnswer(LOGISTIC, logistic_no_guard, "missing guard"),
    WrongAnswer(
        FUSED, maximum_with_a_float, "accidental float64", r"max\(float32, float64 literal 0.0\) gives float64"
    ),
    WrongAnswer(FUSED, maximum_with_an_integer, "accidental float64", r"write np.float32\(0\)"),
    WrongAnswer(FUSED, leaves_where_it_clips, "output not written", "126 of the 255"),
    WrongAnswer(
        LOGISTIC, always_of_the_first_value, "wrong result", "It is right with n = 1, 1 step; n = 255, 0 steps"
    ),
    WrongAnswer(LOGISTIC, waits_after_each_step, "divergent barrier"),
)

ALSO_RIGHT = (
    (FUSED, compares_with_literals),
    (FUSED, chooses_a_literal),
    (FUSED, stores_in_both_branches),
    (FUSED, step_by_step),
    (FUSED, fused_grid_stride),
    (LOGISTIC, without_a_one),
    (LOGISTIC, counts_down),
)
