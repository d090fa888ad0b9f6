"""Answers to the exercises on compression: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.random.generator import unit
from pmpp.kernels.random.ladder import word_of
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ROUND, SIGNS = "compression/round", "compression/signs"
FULL = 0xFFFFFFFF
f0 = np.float32(0)


@right(ROUND)
@cuda.jit
def rounded_in_strides(x, seed, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        whole = np.int32(x[i])
        if np.float32(whole) > x[i]:
            whole -= np.int32(1)
        if unit(word_of(seed, np.uint64(i))) < x[i] - np.float32(whole):
            whole += np.int32(1)
        out[i] = whole


def rounded(guard=True, own=True, up=True, floor=True):
    @cuda.jit
    def kernel(x, seed, out):
        i = cuda.grid(1)
        if not guard or i < x.size:
            below = cuda.libdevice.floorf(x[i]) if floor else np.float32(np.int32(x[i]))
            number = unit(word_of(seed, np.uint64(i if own else 0)))
            goes = number < x[i] - below if up else number >= x[i] - below
            out[i] = np.int32(below) + np.int32(goes)

    return kernel


@wrong(ROUND, "to the nearest")
@cuda.jit
def rounded_to_the_nearest(x, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = cuda.libdevice.float2int_rn(x[i])


@wrong(ROUND, "always down")
@cuda.jit
def rounded_down(x, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = np.int32(cuda.libdevice.floorf(x[i]))


@wrong(ROUND, "accidental float64")
@cuda.jit
def rounded_in_float64(x, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        below = math.floor(x[i] * 1.0)
        out[i] = below + (unit(word_of(seed, np.uint64(i))) < x[i] - below)


@wrong(SIGNS, "inactive lanes")
@cuda.jit
def signs_of_those_that_are_there(x, words):
    i = cuda.grid(1)
    if i < x.size:
        votes = cuda.ballot_sync(FULL, x[i] > f0)
        if cuda.laneid == 0:
            words[i // 32] = votes


@wrong(SIGNS, "wrong result")
@cuda.jit
def signs_into_nothing(x, words):
    i = cuda.grid(1)
    if i < x.size and x[i] > f0:
        cuda.atomic.or_(words, i // 32, np.uint32(np.uint32(1) << np.uint32(i % 32)))


@right(SIGNS)
@cuda.jit
def signs_by_shuffles(x, words):
    i = cuda.grid(1)
    word = np.int32(0)
    if i < x.size:
        word = np.int32(np.int32(x[i] > f0) << np.int32(i % 32))
    for distance in (16, 8, 4, 2, 1):
        word = np.int32(word | cuda.shfl_xor_sync(FULL, word, distance))
    if i < x.size and i % 32 == 0:
        words[i // 32] = np.uint32(word)


@wrong(SIGNS, "wrong result")
@cuda.jit
def signs_of_whole_numbers(x, words):
    i = cuda.grid(1)
    votes = cuda.ballot_sync(FULL, np.int32(x[i]) > 0 if i < x.size else False)
    if i < x.size and cuda.laneid == 0:
        words[i // 32] = votes


def signs(guard=True, zero=False, negative=False, reverse=False, all_store=False):
    @cuda.jit
    def kernel(x, words):
        i, positive = cuda.grid(1), False
        if not guard or i < x.size:
            positive = x[i] >= f0 if zero else x[i] < f0 if negative else x[i] > f0
        votes = np.uint32(cuda.ballot_sync(FULL, positive))
        if reverse:
            votes = np.uint32(cuda.brev(votes))
        if i < x.size and (all_store or cuda.laneid == 0):
            words[i // 32] = votes

    return kernel


ANSWERS += [
    WrongAnswer(ROUND, rounded(guard=False), "missing guard"),
    WrongAnswer(ROUND, rounded(own=False), "one number for all"),
    WrongAnswer(ROUND, rounded(up=False), "up and down exchanged"),
    WrongAnswer(ROUND, rounded(floor=False), "towards zero"),
    WrongAnswer(SIGNS, signs(guard=False), "missing guard"),
    WrongAnswer(SIGNS, signs(zero=True), "0 counts"),
    WrongAnswer(SIGNS, signs(negative=True), "negative ones"),
    WrongAnswer(SIGNS, signs(reverse=True), "first on top"),
]
