"""The rounding of tensor cores with 2:4 sparsity: what an H200 gave for the same fragments on 2026-11-29, bit for bit.

The fragments are those of tests/simt/test_tensor_cores.py: of the first matrix what is stored, and of the second one
twice as many rows. The metadata is random. Of what the GPU gave there is a digest for each.
"""

import numpy as np
import pytest

from pmpp.simt.values import sparse_tensor_cores, tensor_cores
from tests.simt import test_tensor_cores as dense

WARPS = dense.WARPS


def words(name, rng, selector):
    """Random metadata: (warps, 32). The lanes that the selector leaves out have words that mean nothing."""
    ordered = np.array(sparse_tensor_cores.ORDERED, np.uint32)
    fours = ordered[rng.integers(0, len(ordered), (WARPS, 32, 8))]
    made = (fours << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
    ignored = [not sparse_tensor_cores.metadata(name, lane, selector) for lane in range(32)]
    return np.where(ignored, np.uint32(0xFFFFFFFF), made)


def fragments(name):
    """(what they are, registers of a, b and c, metadata, selector) of many warps."""
    of = sparse_tensor_cores.KINDS[name].dense
    rng = np.random.default_rng(11)
    # A second draw of the same kind is the lower half of b.
    for number, ((what, a, b, c), (_, _, lower, _)) in enumerate(
        zip(dense.fragments(of), drawn_again(of), strict=True)
    ):
        selector = number % sparse_tensor_cores.KINDS[name].selectors
        halves = [dense.registers(of, "b", half) for half in (b, lower)]
        rest = dense.registers(of, "c", c), words(name, rng, selector), selector
        yield what, dense.registers(of, "a", a), np.concatenate(halves, axis=2), *rest


def drawn_again(name):
    """The same kinds of fragments, with other numbers: those of warp w are those of warp w + 1."""
    for what, *matrices in dense.fragments(name):
        yield what, *(np.roll(matrix, 1, axis=0) for matrix in matrices)


#: What the GPU gave, by instruction and fragments.
FOUND = {
    "mma_sp_f16": {
        "normal": "fe140cb2be43e241",
        "normal, large c": "0d5c6ff4a05b2ca3",
        "normal, no c": "8575d5183027d69a",
        "near one": "8e79add18cc2af70",
        "exponents +-3": "42ddb131dfb7e382",
        "exponents +-6": "aa00205a5dd8e86b",
        "exponents +-10": "d7980d7b31be9521",
        "exponents +-13": "1474f155307139c5",
        "all finite": "530ed8504be84172",
        "any bits": "dce58323e5084135",
        "tiny": "196c8f3707457419",
        "tiny, no c": "8e63ea538ecd8eb5",
        "huge": "cf4b3113995d9918",
        "cancelling": "13d4fcbdce9c4cca",
        "zeros": "6b2cc6951cceb488",
        "zeros only": "de676bae28a48001",
    },
    "mma_sp_bf16": {
        "normal": "c722566dc7242640",
        "normal, large c": "2c42b5ce773f2000",
        "normal, no c": "2f2ab39ef814cbc5",
        "near one": "49815cfef22cbdd5",
        "exponents +-3": "9cac0812be08092b",
        "exponents +-6": "db511cab1efa8c98",
        "exponents +-10": "eae30484a8ef98f2",
        "exponents +-13": "1fc66e6e4faa6215",
        "all finite": "e38ef03c4b88a21e",
        "any bits": "2db9c8d604c7229b",
        "tiny": "bc9967538f5dadf9",
        "tiny, no c": "055aed8aedd70fa5",
        "huge": "8700ef6f54d0edec",
        "cancelling": "49cfa14f8dc267b9",
        "zeros": "79ab16632fd3a9e6",
        "zeros only": "de676bae28a48001",
    },
    "mma_sp_s8": {
        "any": "c4e13471577e3179",
        "extreme": "87110e269a29f841",
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_results_are_those_of_an_h200(name):
    found = {}
    for what, a, b, c, e, selector in fragments(name):
        c = c.view(np.int32 if name == "mma_sp_s8" else np.float32)
        found[what] = dense.digest(sparse_tensor_cores.multiply_add(name, a, b, c, e, selector).view(np.uint32))
    assert found == FOUND[name]


@pytest.mark.parametrize("name", sparse_tensor_cores.KINDS)
def test_the_same_numbers_in_a_dense_matrix_give_the_same_whole_numbers(name, rng):
    """What is stored, put where the metadata says, and multiplied as matrices."""
    kind = sparse_tensor_cores.KINDS[name]
    stored = rng.integers(-8, 9, (16, kind.depth // 2))
    b, c = rng.integers(-8, 9, (kind.depth, 8)), rng.integers(-99, 100, (16, 8))
    for selector in range(kind.selectors):
        e = words(name, rng, selector)[:1]
        wide = np.zeros((16, kind.depth), np.int64)
        for lane in range(32):
            for four, (row, column) in enumerate(sparse_tensor_cores.metadata(name, lane, selector)):
                bits = int(e[0, lane]) >> 4 * four & 15
                wide[row, column + (bits & 3)] = stored[row, column // 2]
                wide[row, column + (bits >> 2)] = stored[row, column // 2 + 1]
        given = [registers_of(name, letter, matrix) for letter, matrix in (("a", stored), ("b", b), ("c", c))]
        found = sparse_tensor_cores.multiply_add(name, *given, e, selector)
        np.testing.assert_array_equal(found, registers_of(name, "c", wide @ b + c))


def registers_of(name, letter, matrix):
    """The registers of one warp, (1, 32, 4), number by number as `fragment` says."""
    numbers = tensor_cores.KINDS[sparse_tensor_cores.KINDS[name].dense].numbers
    if letter == "c":
        kind = np.int32 if numbers == "int8" else np.float32
        places = [[sparse_tensor_cores.fragment(name, "c", lane, r)[0] for r in range(4)] for lane in range(32)]
        return np.array([[[matrix[place] for place in row] for row in places]], kind)
    bits = {
        "float16": lambda: matrix.astype(np.float16).view(np.uint16),
        "bfloat16": lambda: (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "int8": lambda: matrix.astype(np.int8).view(np.uint8),
    }[numbers]()
    out = np.zeros((1, 32, 4), np.uint32)
    for lane in range(32):
        for register in range(4):
            for part, place in enumerate(sparse_tensor_cores.fragment(name, letter, lane, register)):
                out[0, lane, register] |= np.uint32(int(bits[place]) << part * 8 * bits.itemsize)
    return out
