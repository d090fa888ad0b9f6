"""Answers to the exercises on optimisers: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
LION, CLIP = "optimiser/lion", "optimiser/clip"
f0, f1 = np.float32(0), np.float32(1)


@right(LION)
@cuda.jit
def lion_by_copysign(p, g, m, lr, beta, keep, decay):
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        old, gradient = m[i], g[i]
        c = old * beta + gradient * (f1 - beta)
        value = p[i] * (f1 - lr * decay)
        if c != f0:
            value -= math.copysign(lr, c)
        p[i], m[i] = value, old + (f1 - keep) * (gradient - old)


def lion_with(guard=True, new_moment=False, gradient=False, decayed=True, one=f1, zero_is_positive=False, kept=True):
    @cuda.jit
    def lion(p, g, m, lr, beta, keep, decay):
        i = cuda.grid(1)
        if not guard or i < p.size:
            new = keep * m[i] + (one - keep) * g[i]
            c = g[i] if gradient else new if new_moment else beta * m[i] + (one - beta) * g[i]
            sign = f1 if c > f0 else -f1 if c < f0 else f1 if zero_is_positive else f0
            p[i] -= lr * (sign + decay * p[i]) if decayed else lr * sign
            if kept:
                m[i] = new

    return lion


@wrong(LION, "m changed too early")
@cuda.jit
def lion_moment_first(p, g, m, lr, beta, keep, decay):
    i = cuda.grid(1)
    if i < p.size:
        m[i] = keep * m[i] + (f1 - keep) * g[i]
        c = beta * m[i] + (f1 - beta) * g[i]
        p[i] -= lr * ((f1 if c > f0 else -f1 if c < f0 else f0) + decay * p[i])


@wrong(CLIP, "made longer")
@cuda.jit
def clip_where_the_square_is_above(parts, most, g, out):
    i = cuda.grid(1)
    if i < g.size:
        total = f0
        for k in range(parts.size):
            total += parts[k]
        out[i] = g[i] * most / math.sqrt(total) if total > most else g[i]


@right(CLIP)
@cuda.jit
def clip_with_a_block(parts, most, g, out):
    """The threads of a block add the parts together, in another order."""
    mine = f0
    for k in range(cuda.threadIdx.x, parts.size, cuda.blockDim.x):
        mine += parts[k]
    norm = math.sqrt(block_sum(mine, cuda.shared.array(32, np.float32)))
    i = cuda.grid(1)
    if i < g.size:
        out[i] = g[i] * most / norm if norm > most else g[i]


def clip_with(guard=True, root=True, always=False, first_only=False, zero=f0):
    @cuda.jit
    def clip(parts, most, g, out):
        i = cuda.grid(1)
        if not guard or i < g.size:
            total = zero
            for k in range(1 if first_only else parts.size):
                total += parts[k]
            factor = most / (math.sqrt(total) if root else total)
            out[i] = g[i] * factor if always or factor < f1 else g[i]

    return clip


ANSWERS += [
    WrongAnswer(LION, lion_with(guard=False), "missing guard"),
    WrongAnswer(LION, lion_with(new_moment=True), "sign of the new moment"),
    WrongAnswer(LION, lion_with(gradient=True), "sign of the gradient"),
    WrongAnswer(LION, lion_with(decayed=False), "no decay"),
    WrongAnswer(LION, lion_with(one=1.0), "accidental float64"),
    WrongAnswer(LION, lion_with(zero_is_positive=True), "wrong result"),
    WrongAnswer(CLIP, clip_with(guard=False), "missing guard"),
    WrongAnswer(CLIP, clip_with(root=False), "no root"),
    WrongAnswer(CLIP, clip_with(always=True), "made longer"),
    WrongAnswer(CLIP, clip_with(first_only=True), "wrong result"),
    WrongAnswer(CLIP, clip_with(zero=0.0), "accidental float64"),
]
