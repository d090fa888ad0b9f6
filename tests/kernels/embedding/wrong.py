"""Wrong embeddings."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.embedding import ladder as room
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = 64
f1 = np.float32(1)


def looked_up(name, *, guard=True, check=True, factor=f1, of_token=False, into_table=False, stride=True):
    """An element a thread, right if left alone."""

    @cuda.jit
    def kernel(table, indices, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            token = i // out.shape[1] if stride else i % out.shape[0]
            column = i % out.shape[1] if stride else i // out.shape[0]
            row = token if of_token else indices[token]
            inside = 0 <= row < table.shape[0]
            if check:
                out[token, column] = factor * table[row, column] if inside else np.float32(np.nan)
            else:
                out[token, column] = factor * table[row, column]
            if into_table and inside:
                table[row, column] = np.float32(0)

    def run(table, indices):
        p = room.arguments(table, indices)
        if not p.done:
            kernel[blocks(p.out.size, BLOCK), BLOCK](p.table, p.indices, p.out)
        return p.result

    run.__name__ = name
    return run


@cuda.jit
def whole_vectors_kernel(table, indices, out, width):
    token = cuda.blockIdx.x
    for i in range(4 * cuda.threadIdx.x, width, 4 * BLOCK):
        store128(out, token * width + i, load128(table, indices[token] * width + i))


def always_vectors(table, indices):
    p = room.arguments(table, indices)
    if not p.done:
        size = p.table.size, p.out.size, p.out.shape[1]
        whole_vectors_kernel[p.indices.size, BLOCK](
            p.table.reshape(size[0]), p.indices, p.out.reshape(size[1]), size[2]
        )
    return p.result


RIGHT = looked_up("an_element_a_thread")
RUNGS = [
    WrongRung(looked_up("beyond_the_end", guard=False), "out of bounds"),
    WrongRung(looked_up("index_not_checked", check=False), "out of bounds"),
    WrongRung(looked_up("in_float64", factor=1.0), "float64"),
    WrongRung(looked_up("token_for_row", of_token=True), "wrong result"),
    WrongRung(looked_up("table_cleared", into_table=True), "race"),
    WrongRung(looked_up("down_the_columns", stride=False), "traffic"),
    WrongRung(always_vectors, "misaligned"),
]
