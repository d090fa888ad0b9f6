"""Wrong random numbers."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random import DISTRIBUTIONS
from pmpp.kernels.random.generator import LOW, M0, M1, W0, W1, philox, product
from pmpp.kernels.random.ladder import NUMBERS, one_of
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64


def philox_with(rounds=10, swapped=False, key_once=False):
    """Philox with a mistake."""

    @cuda.jit(device=True)
    def wrong(counter, stream, key):
        c0, c1 = np.uint32(counter & LOW), np.uint32(counter >> np.uint64(32))
        c2, c3 = np.uint32(stream & LOW), np.uint32(stream >> np.uint64(32))
        k0, k1 = np.uint32(key & LOW), np.uint32(key >> np.uint64(32))
        for _ in range(rounds):
            high0, low0 = product(c0, M0)
            high1, low1 = product(c2, M1)
            if swapped:
                c0, c1, c2, c3 = np.uint32(high0 ^ c1 ^ k0), low0, np.uint32(high1 ^ c3 ^ k1), low1
            else:
                c0, c1, c2, c3 = np.uint32(high1 ^ c1 ^ k0), low1, np.uint32(high0 ^ c3 ^ k1), low0
            if not key_once:
                k0, k1 = np.uint32(k0 + W0), np.uint32(k1 + W1)
        return c0, c1, c2, c3

    return wrong


def random(name, generator=philox, guard=True, numbers=NUMBERS, short=False, by_block=False):
    """Random numbers, a counter each, with some of its parts exchanged."""

    def make(distribution):
        numbers_of = numbers[distribution]

        @cuda.jit
        def kernel(key, offset, scale, shift, out):
            i = np.int64(cuda.grid(1))
            if not guard or i < out.size:
                place = offset + np.uint64(i)
                counter = place >> np.uint64(2)
                if short:
                    counter = counter & LOW
                if by_block:
                    counter = np.uint64(cuda.threadIdx.x)
                words = generator(counter, np.uint64(0), key)
                out[i] = one_of(numbers_of(words, (scale, shift)), np.int64(place & np.uint64(3)))

        return kernel

    def draw(like, distribution="uniform", seed=0, offset=0, scale=1.0, shift=0.0):
        out = device.empty(like.shape, DISTRIBUTIONS[distribution])
        if out.size:
            numbers = np.uint64(seed), np.uint64(offset), np.float32(scale), np.float32(shift)
            make(distribution)[blocks(out.size, BLOCK), BLOCK](*numbers, out.reshape(-1))
        return out

    draw.__name__ = name
    return draw


@cuda.jit(device=True)
def bits_of(words, affine):
    return words


@cuda.jit(device=True)
def rounded(word, affine):
    return np.float32(word) * np.float32(2.0**-32) * affine[0] + affine[1]  # 2^32 - 1 becomes 1


@cuda.jit(device=True)
def uniform_of_32_bits(words, affine):
    return rounded(words[0], affine), rounded(words[1], affine), rounded(words[2], affine), rounded(words[3], affine)


@cuda.jit(device=True)
def unit(word, affine):
    return np.float32(word >> np.uint32(8)) * np.float32(2.0**-24) * affine[0] + affine[1]


@cuda.jit(device=True)
def uniform_of_24_bits(words, affine):
    return unit(words[0], affine), unit(words[1], affine), unit(words[2], affine), unit(words[3], affine)


BY_BITS = {"bits": bits_of, "uniform": uniform_of_24_bits, "normal": uniform_of_24_bits}
ROUNDED = {**BY_BITS, "uniform": uniform_of_32_bits}

RUNGS = (
    WrongRung(random("no_guard", numbers=BY_BITS, guard=False), "out of bounds"),
    WrongRung(random("seven_rounds", philox_with(7), numbers=BY_BITS), "wrong result"),
    WrongRung(random("halves_swapped", philox_with(swapped=True), numbers=BY_BITS), "wrong result"),
    WrongRung(random("the_same_key_in_all_rounds", philox_with(key_once=True), numbers=BY_BITS), "wrong result"),
    WrongRung(random("uniform_of_32_bits", numbers=ROUNDED), "wrong result"),
    WrongRung(random("a_counter_of_32_bits", numbers=BY_BITS, short=True), "wrong result"),
    WrongRung(random("every_block_the_same", numbers=BY_BITS, by_block=True), "wrong result"),
    WrongRung(random("uniform_for_normal", numbers=BY_BITS), "wrong result"),
)
