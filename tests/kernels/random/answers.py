"""Answers to the exercises on random numbers: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.random.generator import philox, unit
from pmpp.kernels.random.ladder import one_of, word_of
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
DICE, WAITING = "random/dice", "random/waiting"
f1 = np.float32(1)


@right(DICE)
@cuda.jit
def dice_by_an_instruction(seed, faces, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        words = philox(np.uint64(i // 4), np.uint64(0), seed)
        out[i] = cuda.libdevice.umulhi(np.int32(one_of(words, i % 4)), np.int32(faces))


def dice_with(guard=True, word=word_of, first=0, remainder=False):
    @cuda.jit
    def dice(seed, faces, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            bits = word(seed, np.uint64(i))
            if remainder:
                out[i] = bits % faces
            else:
                out[i] = (np.uint64(bits) * np.uint64(faces) >> np.uint64(32)) + np.uint64(first)

    return dice


@cuda.jit(device=True)
def first_word(seed, place):
    return philox(place, np.uint64(0), seed)[0]


@wrong(DICE, "wrong result")
@cuda.jit
def dice_of_32_bits(seed, faces, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.uint32(word_of(seed, np.uint64(i)) * faces) >> np.uint32(16)


@wrong(DICE, "only right for one block")
@cuda.jit
def dice_of_a_block(seed, faces, out):
    i = cuda.grid(1)
    if i < out.size:
        bits = word_of(seed, np.uint64(cuda.threadIdx.x))
        out[i] = np.uint64(bits) * np.uint64(faces) >> np.uint64(32)


@right(WAITING)
@cuda.jit
def waiting_by_log1p(seed, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = mean * -math.log1p(-unit(word_of(seed, np.uint64(i))))


def waiting_with(guard=True, of_u=False, divided=False, one=f1, sign=-f1):
    @cuda.jit
    def waiting(seed, mean, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            u = unit(word_of(seed, np.uint64(i)))
            log = sign * math.log(u if of_u else one - u)
            out[i] = log / mean if divided else log * mean

    return waiting


ANSWERS += [
    WrongAnswer(DICE, dice_with(guard=False), "missing guard"),
    WrongAnswer(DICE, dice_with(word=first_word), "wrong result"),
    WrongAnswer(DICE, dice_with(first=1), "from 1"),
    WrongAnswer(DICE, dice_with(remainder=True), "remainder"),
    WrongAnswer(WAITING, waiting_with(guard=False), "missing guard"),
    WrongAnswer(WAITING, waiting_with(of_u=True), "log of u"),
    WrongAnswer(WAITING, waiting_with(divided=True), "divided by the mean"),
    WrongAnswer(WAITING, waiting_with(one=1.0), "accidental float64"),
    WrongAnswer(WAITING, waiting_with(sign=f1), "wrong result"),
]
