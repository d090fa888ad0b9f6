"""Wrong versions of compression: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.compression import ladder as room
from pmpp.kernels.random.generator import philox
from pmpp.kernels.random.ladder import one_of
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1, i0, u0 = np.float32(0), np.float32(1), np.int32(0), np.uint32(0)


@cuda.jit(device=True)
def half_of(numbers, k):
    number = one_of(numbers, k >> 1)
    return np.uint32(number >> np.uint32(16)) if k & 1 else np.uint32(number & np.uint32(0xFFFF))


@cuda.jit(device=True)
def upper_half_first(numbers, k):
    return half_of(numbers, k ^ 1)


@cuda.jit(device=True)
def the_same_for_all(numbers, k):
    return half_of(numbers, 0)


@cuda.jit(device=True)
def to_the_nearest(numbers, k):
    return np.uint32(1 << 15)


@cuda.jit(device=True)
def down(numbers, k):
    return u0


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(x, bits=8, seed=None, offset=0):
        p = room.arguments(x, bits, seed, offset)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def by_thread(
    name, half=half_of, guard=True, further=0, checked=True, from_offset=True, filled=True, first_in="low", one=f1
):
    """A thread for each group, with one of the steps exchanged."""

    @cuda.jit
    def kernel(x, key, counter, words, ranges, bits):
        group = np.int64(cuda.grid(1))
        if group >= ranges.size // 2:
            return
        first, levels, each = group * room.GROUP, np.int32(2**bits - 1 + further), 32 // bits
        last = np.float32(levels << room.PLACES)
        end = min(first + room.GROUP, x.size) if guard else first + room.GROUP
        low, high, check = x[first], x[first], f0
        for i in range(first, end):
            low, high = min(low, x[i]), max(high, x[i])
            if checked:
                check = cuda.fma(x[i], f0, check)
        low, step, per_step = room.range_of(low, high, check, levels, last)
        ranges[2 * group], ranges[2 * group + 1] = low.view(np.uint32), step.view(np.uint32)
        mask, numbers, word = levels if step >= f0 else i0, (u0, u0, u0, u0), u0
        for j in range(room.GROUP):
            if j % 8 == 0:
                begin = counter if from_offset else np.uint64(0)
                numbers = philox(np.uint64(begin + np.uint64((first + j) // 8)), np.uint64(0), key)
            place = j % each if first_in == "low" else each - 1 - j % each
            if first + j < end or not filled:
                value = np.float32(one * x[min(first + j, x.size - 1)])
                q = room.code(value, low, per_step, half(numbers, j % 8), mask)
                word = np.uint32(word | np.uint32(np.uint32(q) << np.uint32(bits * place)))
            if j % each == each - 1:
                words[(first + j) // each] = word
                word = u0

    return launched(
        name, lambda p: kernel[blocks(p.groups, BLOCK), BLOCK](p.x, p.key, p.counter, p.words, p.ranges, p.bits)
    )


@cuda.jit
def adding_kernel(x, key, counter, words, ranges, bits, atomic):
    """A thread for each number, which puts its code among the others of a word."""
    i, levels, each = np.int64(cuda.grid(1)), np.int32(2**bits - 1), 32 // bits
    last = np.float32(levels << room.PLACES)
    if i < x.size:
        group = i // room.GROUP
        low, high, check = x[i], x[i], f0
        for j in range(group * room.GROUP, min((group + 1) * room.GROUP, x.size)):
            low, high, check = min(low, x[j]), max(high, x[j]), cuda.fma(x[j], f0, check)
        low, step, per_step = room.range_of(low, high, check, levels, last)
        if i % room.GROUP == 0:
            ranges[2 * group], ranges[2 * group + 1] = low.view(np.uint32), step.view(np.uint32)
        numbers = philox(np.uint64(counter + np.uint64(i // 8)), np.uint64(0), key)
        q = np.uint32(room.code(x[i], low, per_step, half_of(numbers, i % 8), levels if step >= f0 else i0))
        code = np.uint32(q << np.uint32(bits * (i % each)))
        if atomic:
            cuda.atomic.or_(words, i // each, code)
        else:
            words[i // each] = np.uint32(words[i // each] | code)


def adding(atomic):
    def work(p):
        if not atomic:
            p.words.copy_to_device(np.zeros(p.words.size, np.uint32))
        grid = blocks(p.x.size, BLOCK)
        adding_kernel[grid, BLOCK](p.x, p.key, p.counter, p.words, p.ranges, p.bits, atomic)

    return work


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("rounded_to_the_nearest", to_the_nearest), "wrong result"),
    WrongRung(by_thread("rounded_down", down), "wrong result"),
    WrongRung(by_thread("upper_half_first", upper_half_first), "wrong result"),
    WrongRung(by_thread("eight_round_together", the_same_for_all), "wrong result"),
    WrongRung(by_thread("a_level_too_many", further=1), "wrong result"),
    WrongRung(by_thread("nan_not_seen", checked=False), "wrong result"),
    WrongRung(by_thread("the_same_in_every_layer", from_offset=False), "wrong result"),
    WrongRung(by_thread("codes_behind_the_end", filled=False), "wrong result"),
    WrongRung(by_thread("first_code_on_top", first_in="high"), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(launched("words_shared_without_atomics", adding(False)), "race"),
    WrongRung(launched("atomics_into_nothing", adding(True)), "uninitialised read"),
)
