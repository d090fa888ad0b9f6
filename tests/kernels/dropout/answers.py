"""Answers to the exercises on dropout: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.random.generator import philox, unit
from pmpp.kernels.random.ladder import word_of
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
CHANNELS, RESIDUAL = "dropout/channels", "dropout/residual"
f0, f1 = np.float32(0), np.float32(1)


@right(CHANNELS)
@cuda.jit
def channels_by_a_factor(x, p, seed, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        c, k = divmod(i, x.shape[1])
        factor = f1 / (f1 - p) if unit(word_of(seed, np.uint64(c))) >= p else f0
        out[c, k] = factor * x[c, k]


def channels_with(guard=True, by_element=False, scaled=True, one=f1, by_column=False):
    @cuda.jit
    def channels(x, p, seed, out):
        i = cuda.grid(1)
        if not guard or i < x.size:
            c, k = i // x.shape[1], i % x.shape[1]
            which = i if by_element else k if by_column else c
            value = x[c, k] / (one - p) if scaled else x[c, k]
            out[c, k] = value if unit(word_of(seed, np.uint64(which))) >= p else f0

    return channels


@wrong(CHANNELS, "dropped at p")
@cuda.jit
def channels_above_p(x, p, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        c, k = i // x.shape[1], i % x.shape[1]
        out[c, k] = x[c, k] / (f1 - p) if unit(word_of(seed, np.uint64(c))) > p else f0


@wrong(CHANNELS, "argument ignored", "with 8 channels of 16.* never uses p")
@cuda.jit
def channels_of_a_constant_share(x, p, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        c, k = i // x.shape[1], i % x.shape[1]
        keep = unit(word_of(seed, np.uint64(c))) >= np.float32(0.375)
        out[c, k] = x[c, k] / np.float32(0.625) if keep else f0


@wrong(CHANNELS, "index out of bounds", "There is a test, but it lets this index through")
@cuda.jit
def channels_by_the_wrong_size(x, p, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        c, k = i // x.shape[0], i % x.shape[0]
        out[c, k] = x[c, k] / (f1 - p) if unit(word_of(seed, np.uint64(c))) >= p else f0


@wrong(RESIDUAL, "dropped at p")
@cuda.jit
def residual_above_p(x, skip, p, seed, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = skip[i] + (x[i] / (f1 - p) if unit(word_of(seed, np.uint64(i))) > p else f0)


@right(RESIDUAL)
@cuda.jit
def residual_by_vectors(x, skip, p, seed, out):
    """A counter for four neighbours: three of four threads have nothing to do, but none of them is wrong."""
    i = cuda.grid(1)
    if i < out.size:
        words = philox(np.uint64(i >> 2), np.uint64(0), seed)
        word = words[0] if i & 3 == 0 else words[1] if i & 3 == 1 else words[2] if i & 3 == 2 else words[3]
        out[i] = skip[i] + x[i] * (f1 / (f1 - p)) if unit(word) >= p else skip[i]


def residual_with(guard=True, all_dropped=False, scaled=True, one=f1, seed_of_block=False):
    @cuda.jit
    def residual(x, skip, p, seed, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            keep = unit(word_of(seed, np.uint64(cuda.threadIdx.x if seed_of_block else i))) >= p
            factor = f1 / (one - p) if scaled else f1
            if all_dropped:
                out[i] = (x[i] + skip[i]) * factor if keep else f0
            else:
                out[i] = skip[i] + (x[i] * factor if keep else f0)

    return residual


ANSWERS += [
    WrongAnswer(CHANNELS, channels_with(guard=False), "missing guard"),
    WrongAnswer(CHANNELS, channels_with(by_element=True), "elements, not channels"),
    WrongAnswer(CHANNELS, channels_with(scaled=False), "not scaled"),
    WrongAnswer(CHANNELS, channels_with(one=1.0), "accidental float64"),
    WrongAnswer(CHANNELS, channels_with(by_column=True), "wrong result"),
    WrongAnswer(RESIDUAL, residual_with(guard=False), "missing guard"),
    WrongAnswer(RESIDUAL, residual_with(all_dropped=True), "the sum is dropped"),
    WrongAnswer(RESIDUAL, residual_with(scaled=False), "not scaled"),
    WrongAnswer(RESIDUAL, residual_with(one=1.0), "accidental float64"),
    WrongAnswer(RESIDUAL, residual_with(seed_of_block=True), "only right for one block"),
]
