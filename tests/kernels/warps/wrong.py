"""Wrong kernels for the two recurrences of chapter 8."""

import types

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.vector_add import vector_span
from pmpp.kernels.warps import BLOCK, EVEN, ODD
from pmpp.kernels.warps import ladder as warps
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung


def sent_through(kernel, each=1):
    """``kernel`` as a function of (x, rounds), launched with a thread for every ``each`` elements."""

    def two_ways(x, rounds, out=None):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out = device.empty(x.size, x.dtype) if out is None else out
        if x.size:
            kernel[blocks(x.size, BLOCK * each), BLOCK](x, out, rounds)
        return out

    two_ways.__name__ = kernel.py_func.__name__
    return two_ways


def rounds_of(begin=0, guarded=True, factors=(EVEN, ODD), more=0):
    """The kernel of `by_data` with one of its parts exchanged."""
    even, odd = factors

    @cuda.jit
    def kernel(x, out, rounds):
        i = cuda.grid(1)
        if not guarded or i < out.size:
            factor, start = even if i % 2 == 0 else odd, x[i]
            value, k = start, begin
            while k < rounds + more:
                value = factor * value + start
                k += 1
            out[i] = value

    return kernel


def named(name, kernel):
    function = kernel if isinstance(kernel, types.FunctionType) else sent_through(kernel)
    function.__name__ = name
    return function


@cuda.jit
def begins_at_zero(x, out, rounds):
    i = cuda.grid(1)
    if i < out.size:
        factor, start = EVEN if i % 2 == 0 else ODD, x[i]
        value, k = np.float32(0), 0
        while k < rounds:
            value = factor * value + start
            k += 1
        out[i] = value


@cuda.jit
def first_block_only(x, out, rounds):
    half, thread = BLOCK // 2, cuda.threadIdx.x
    i = thread % half * 2 + thread // half
    if i < out.size:
        factor, start = EVEN if thread < half else ODD, x[i]
        value, k = start, 0
        while k < rounds:
            value = factor * value + start
            k += 1
        out[i] = value


@cuda.jit
def halves_not_taken_apart(x, out, rounds):  # threads by halves, elements still one after another
    i = cuda.grid(1)
    if i < out.size:
        factor, start = EVEN if cuda.threadIdx.x < BLOCK // 2 else ODD, x[i]
        value, k = start, 0
        while k < rounds:
            value = factor * value + start
            k += 1
        out[i] = value


@cuda.jit
def forgets_the_rest(x, out, rounds):
    i = cuda.grid(1)
    if i < out.size:
        factor, start = EVEN if i % 2 == 0 else ODD, x[i]
        value = start
        for _ in range(rounds // 16):
            for _ in range(16):
                value = factor * value + start
        out[i] = value


def vectors_of(begin, odd_first, tail=True):
    """The kernel of `four_each`, which begins ``begin(head)`` elements behind the first and may know of no odd head."""

    @cuda.jit
    def kernel(x, out, rounds, head, end):
        thread = cuda.grid(1)
        i = head + 4 * thread
        if i < end:
            start = warps.in_pairs(load128(x, i), head if odd_first else 0)
            values = start
            for _ in range(rounds):
                values = warps.one_round(values, start)
            store128(out, i, warps.in_pairs(values, head if odd_first else 0))
        j = thread if thread < head else end + thread - head
        if j < (out.size if tail else head):
            out[j] = warps.one_element(x[j], j, rounds)

    def two_ways(x, rounds, out=None):
        out = device.empty(x.size, x.dtype) if out is None else out
        head, end, _ = begin(x, out)
        if x.size:
            threads = blocks(max((end - head) // 4, head + x.size - end), BLOCK)
            kernel[threads, BLOCK](x, out, rounds, head, end)
        return out

    return two_ways


def from_the_first(x, out):
    """The span of vectors that do not care where an array begins."""
    return 0, x.size - x.size % 4, 4


@cuda.jit
def in_place_of_the_input(x, out, rounds):
    i = cuda.grid(1)
    if i < out.size:
        factor, start, k = EVEN if i % 2 == 0 else ODD, x[i], 0
        while k < rounds:
            x[i] = factor * x[i] + start
            k += 1
        out[i] = x[i]


RUNGS = (
    WrongRung(named("no_guard", rounds_of(guarded=False)), "out of bounds"),
    WrongRung(named("one_round_too_few", rounds_of(begin=1)), "wrong result"),
    WrongRung(named("one_round_too_many", rounds_of(more=1)), "wrong result"),
    WrongRung(named("ways_swapped", rounds_of(factors=(ODD, EVEN))), "wrong result"),
    WrongRung(named("in_float64", rounds_of(factors=(0.5, -0.25))), "float64"),
    WrongRung(sent_through(begins_at_zero), "wrong result"),
    WrongRung(sent_through(first_block_only), "wrong result"),
    WrongRung(sent_through(halves_not_taken_apart), "wrong result"),
    WrongRung(sent_through(forgets_the_rest), "wrong result"),
    WrongRung(named("vectors_anywhere", vectors_of(from_the_first, True)), "misaligned"),
    WrongRung(named("kinds_by_the_place_in_a_vector", vectors_of(vector_span, False)), "wrong result"),
    WrongRung(named("no_tail", vectors_of(vector_span, True, tail=False)), "wrong result"),
    WrongRung(sent_through(in_place_of_the_input), "input changed"),
)
