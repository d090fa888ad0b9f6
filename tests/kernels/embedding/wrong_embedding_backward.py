"""Wrong gradients of embeddings."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.embedding import embedding_backward as room
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


def owned(name, *, first=0, padded=True, once=False, one=f1, beyond=0, clear=True, into_dy=False):
    """A thread for each element of the gradient looks through all indices, right if left alone."""

    @cuda.jit
    def kernel(dy, indices, out, padding):
        i = cuda.grid(1)
        if i < out.size:
            row, column = i // out.shape[1], i % out.shape[1]
            total, found = f0, False
            for token in range(first, indices.size + beyond):
                mine = indices[token] == row and (not padded or row != padding)
                if mine and not (once and found):
                    total += one * dy[token, column]
                    found = True
                    if into_dy:
                        dy[token, column] = f0
            if found or clear:
                out[row, column] = total

    def run(dy, indices, rows, padding_idx=None):
        p = room.arguments(dy, indices, rows, padding_idx)
        if not p.done:
            kernel[blocks(p.out.size, BLOCK), BLOCK](p.dy, p.indices, p.out, p.padding)
        return p.result

    run.__name__ = name
    return run


@cuda.jit
def plain_add_kernel(dy, indices, out, padding):
    i = cuda.grid(1)
    if i < dy.size:
        token, column = i // dy.shape[1], i % dy.shape[1]
        if indices[token] != padding and 0 <= indices[token] < out.shape[0]:
            out[indices[token], column] += dy[token, column]


@cuda.jit
def unchecked_kernel(dy, indices, out, padding):
    i = cuda.grid(1)
    if i < dy.size:
        token, column = i // dy.shape[1], i % dy.shape[1]
        if indices[token] != padding:
            cuda.atomic.add(out, (indices[token], column), dy[token, column])


def scattered(kernel):
    def run(dy, indices, rows, padding_idx=None):
        p = room.arguments(dy, indices, rows, padding_idx)
        if not p.done:
            room.make_zero(p)
            if p.dy.size:
                kernel[blocks(p.dy.size, BLOCK), BLOCK](p.dy, p.indices, p.out, p.padding)
        return p.result

    run.__name__ = getattr(kernel, "py_func", kernel).__name__
    return run


RIGHT = owned("a_thread_an_element")
RUNGS = [
    WrongRung(scattered(plain_add_kernel), "race"),
    WrongRung(scattered(unchecked_kernel), "out of bounds"),
    WrongRung(owned("without_the_first_token", first=1), "wrong result"),
    WrongRung(owned("beyond_the_last_token", beyond=1), "out of bounds"),
    WrongRung(owned("only_one_token", once=True), "wrong result"),
    WrongRung(owned("padding_is_trained", padded=False), "wrong result"),
    WrongRung(owned("float64_literal", one=1.0), "float64"),
    WrongRung(owned("others_not_cleared", clear=False), "wrong result"),
    WrongRung(owned("tokens_cleared", into_dy=True), "input changed"),
]
