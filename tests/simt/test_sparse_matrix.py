"""The twins of mma.sp: layout, metadata, counters, and what is refused."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime.sparse_matrix import mma_sp_bf16, mma_sp_f16, mma_sp_s8
from pmpp.simt import cuda
from pmpp.simt.values import sparse_tensor_cores

KINDS = sparse_tensor_cores.KINDS
FIRST_TWO = np.uint32(0x44444444)

# -- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("matrix", "abc")
def test_the_fragments_of_a_warp_are_the_whole_matrix(name, matrix):
    depth = KINDS[name].depth
    rows, columns = {"a": (16, depth // 2), "b": (depth, 8), "c": (16, 8)}[matrix]
    places = [p for lane in range(32) for r in range(4) for p in simt.fragment(name, matrix, lane, r)]
    assert sorted(places) == [(row, column) for row in range(rows) for column in range(columns)]


def test_fragments_by_hand():
    # PTX ISA, figures of the fragments of sparse m16n8k32 (16 bits) and m16n8k64 (8 bits)
    assert simt.fragment("mma_sp_f16", "a", 31, 3) == [(15, 14), (15, 15)]
    assert simt.fragment("mma_sp_bf16", "b", 6, 2) == [(20, 1), (21, 1)]
    assert simt.fragment("mma_sp_s8", "b", 1, 3) == [(52, 0), (53, 0), (54, 0), (55, 0)]
    assert simt.fragment("mma_sp_f16", "c", 5, 2) == [(9, 2)]


@pytest.mark.parametrize("name", KINDS)
def test_each_four_columns_have_metadata_once(name):
    for selector in range(KINDS[name].selectors):
        places = [p for lane in range(32) for p in sparse_tensor_cores.metadata(name, lane, selector)]
        assert sorted(places) == [(row, column) for row in range(16) for column in range(0, KINDS[name].depth, 4)]


def test_metadata_by_hand():
    # PTX ISA, figures of the metadata of sparse m16n8k32 (16 bits) and m16n8k64 (8 bits)
    assert sparse_tensor_cores.metadata("mma_sp_f16", 2, 1)[:5] == [(0, 0), (0, 4), (0, 8), (0, 12), (8, 0)]
    assert sparse_tensor_cores.metadata("mma_sp_f16", 31, 1)[3:5] == [(7, 28), (15, 16)]
    assert sparse_tensor_cores.metadata("mma_sp_f16", 31, 0) == []
    assert sparse_tensor_cores.metadata("mma_sp_s8", 6, 0)[::7] == [(1, 32), (1, 60)]


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        (simt.fragment, ("mma", "a", 0, 0), "name is 'mma'; it must be one of mma_f16, .*, mma_sp_f16, mma_sp_bf16"),
        (simt.fragment, ("mma_sp_f16", "d", 0, 0), "matrix is 'd'; it must be one of a, b, c"),
        (simt.fragment, ("mma_sp_f16", "b", 0, 4), "register is 4; it must be an integer from 0 to 3"),
        (sparse_tensor_cores.metadata, ("mma_f16", 0), "name is 'mma_f16'; it must be one of mma_sp_f16"),
        (sparse_tensor_cores.metadata, ("mma_sp_s8", 0, 1), "selector is 1; it must be an integer from 0 to 0"),
        (simt.fragment, ("mma_sp_f16", "b", 0, 3.0), "register is 3.0; it must be an integer from 0 to 3"),
        (simt.fragment, ([], "a", 0, 0), r"name is \[\]; it must be one of"),
        (sparse_tensor_cores.metadata, ("mma_sp_f16", 0, True), "selector is True; it must be an integer from 0 to 1"),
        (sparse_tensor_cores.metadata, ({}, 0), "name is {}; it must be one of mma_sp_f16"),
        (sparse_tensor_cores.metadata, ("mma_sp_f16", 32), "lane is 32; it must be an integer from 0 to 31"),
    ],
)
def test_what_does_not_exist(function, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        function(*arguments)


# -- metadata --------------------------------------------------------------------------------------------------------


@cuda.jit
def multiplied(a, b, e, out):
    t = cuda.grid(1)
    one = np.float32(1)
    d = mma_sp_f16((a[t], a[t], a[t], a[t]), (b[t], b[t], b[t], b[t]), (one, one, one, one), e[t], 0)
    for k in range(4):
        out[t, k] = d[k]


def zeros(blocks=1):
    return np.zeros(32 * blocks, np.uint32), np.zeros(32 * blocks, np.uint32), np.zeros((32 * blocks, 4), np.float32)


def test_the_six_words_of_four_bits():
    assert [f"{four:04b}" for four in sorted(sparse_tensor_cores.ORDERED)] == [
        *("0100", "1000", "1001", "1100", "1101", "1110")
    ]


@pytest.mark.parametrize("four", range(16))
def test_what_is_out_of_order_is_refused(four):
    """What a GPU does with it is undefined."""
    a, b, out = zeros(2)
    e = np.full(64, FIRST_TWO)
    e[32 + 5] = FIRST_TWO & ~np.uint32(15 << 8) | np.uint32(four << 8)
    if four in sparse_tensor_cores.ORDERED:
        multiplied[2, 32](a, b, e, out)
        assert (out == 1).all()
        return
    sentence = rf"in multiplied: mma_sp_f16: thread 5 of block 1 has metadata with 0b{four:04b}, for the numbers"
    for level in ("run", "count", "check"):
        with pytest.raises(simt.SimtError, match=sentence) as caught:
            simt.profile(multiplied, 2, 32, (a, b, e, out), level=level)
        line = multiplied.py_func.__code__.co_firstlineno + 4
        assert f":{line}:" in str(caught.value)


def test_lanes_that_the_selector_leaves_out_may_have_anything():
    a, b, out = zeros()
    e = np.where(np.arange(32) % 4 < 2, FIRST_TWO, np.uint32(0)).astype(np.uint32)
    multiplied[1, 32](a, b, e, out)
    assert (out == 1).all()


def test_warps_that_do_not_take_part_may_have_anything():
    @cuda.jit
    def some(e, out):
        t = cuda.threadIdx.x
        zero, one = np.uint32(0), np.float32(1)
        if t >= 32:
            d = mma_sp_f16((zero, zero, zero, zero), (zero, zero, zero, zero), (one, one, one, one), e[t], 1)
            out[t] = d[0]

    e, out = np.zeros(96, np.uint32), np.zeros(96, np.float32)
    e[32:] = FIRST_TWO
    report = simt.profile(some, 1, 96, (e, out), level="check")
    assert report.hazards == []
    assert out.tolist() == [0] * 32 + [1] * 64


# -- many warps ------------------------------------------------------------------------------------------------------


def test_batches_change_nothing(rng):
    a, b = (rng.integers(0, 2**15, 640).astype(np.uint32) for _ in range(2))
    fours = np.array(sparse_tensor_cores.ORDERED, np.uint32)[rng.integers(0, 6, (640, 8))]
    e = (fours << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    results = []
    for lanes in (64, 1 << 20):
        for schedule in ("lockstep", "warps", "shuffled"):
            out = np.zeros((640, 4), np.float32)
            with simt.batch_lanes(lanes), simt.schedule(schedule):
                multiplied[10, 64](a, b, e, out)
            results.append(out)
    assert all(np.array_equal(out.view(np.uint32), results[0].view(np.uint32)) for out in results)


def test_lanes_alone_cannot_multiply():
    a, b, out = zeros()
    with pytest.raises(simt.HazardError, match="thread 1 of block 0 does not execute"), simt.schedule("lanes"):
        multiplied[1, 32](a, b, np.full(32, FIRST_TWO), out)


def test_a_warp_that_is_not_whole_cannot_take_part():
    a, b, out = zeros(2)
    report = simt.profile(multiplied, 1, 40, (a, b, np.full(64, FIRST_TWO), out), level="check", collect=True)
    [message] = [hazard.message for hazard in report.hazards if hazard.kind == "divergent_barrier"]
    assert "thread 32 of block 0 executes this mma_sp_f16() in a warp of 8 threads" in message


# -- counters --------------------------------------------------------------------------------------------------------


def test_products_that_are_made_are_counted():
    """16 x 8 sums of 16 products each: as many as without sparsity, for twice as many columns."""
    a, b, out = zeros(2)
    counters = simt.profile(multiplied, 2, 32, (a, b, np.full(64, FIRST_TWO), out), level="count").counters
    assert counters["tensor_flops"] == 2 * (2 * 16 * 8 * 16)
    assert counters["inst_tensor"] == 2
    assert counters["flops"] == 0
    assert sparse_tensor_cores.operations("mma_sp_s8") == 2 * 16 * 8 * 32


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(kernel, *arguments, match):
    with pytest.raises(simt.SimtError, match=match):
        cuda.jit(kernel)[1, 32](*arguments)


@cuda.jit
def selected_by_name(w, out):
    t = cuda.threadIdx.x
    f = np.float32(0)
    a, b = (w[t], w[t], w[t], w[t]), (w[t], w[t], w[t], w[t])
    out[0, t] = mma_sp_f16(a, b, (f, f, f, f), np.uint32(0x44444444), 0)[0]
    out[1, t] = mma_sp_f16(a, b, (f, f, f, f), np.uint32(0x44444444), selector=0)[0]
    out[2, t] = mma_sp_f16(c=(f, f, f, f), b=b, a=a, selector=0, metadata=np.uint32(0x44444444))[0]


def test_the_selector_may_be_given_by_name(rng):
    out = np.zeros((3, 32), np.float32)
    selected_by_name[1, 32](rng.normal(size=64).astype(np.float16).view(np.uint32), out)
    assert out[0].any()
    np.testing.assert_array_equal(out[1:], out[[0, 0]])


def test_what_numba_refuses_is_refused():
    words = np.full(32, FIRST_TWO)

    def half_of_b(w):
        f = np.float32(0)
        mma_sp_f16((w[0], w[0], w[0], w[0]), (w[0], w[1]), (f, f, f, f), w[0], 0)

    refused(half_of_b, words, match="mma_sp_f16: b must be a tuple of 4 uint32, was")

    def float_sums(w):
        f = np.float32(0)
        mma_sp_s8((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (f, f, f, f), w[0], 0)

    refused(float_sums, words, match="mma_sp_s8: c must be a tuple of 4 int32")

    def signed_metadata(w):
        f = np.float32(0)
        mma_sp_bf16((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (f, f, f, f), np.int32(w[0]), 0)

    refused(signed_metadata, words, match="mma_sp_bf16: metadata must be a uint32, was int32")

    def variable_selector(w):
        f = np.float32(0)
        mma_sp_f16((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (f, f, f, f), w[0], w.size)

    refused(variable_selector, words, match="mma_sp_f16: selector must be a literal, from 0 to 1, was")

    def third_selector(w):
        f = np.float32(0)
        mma_sp_f16((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (f, f, f, f), w[0], 2)

    refused(third_selector, words, match="mma_sp_f16: selector must be a literal, from 0 to 1, was 2")

    def variable_by_name(w):
        f = np.float32(0)
        mma_sp_f16((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (f, f, f, f), w[0], selector=w.size)

    refused(variable_by_name, words, match="mma_sp_f16: selector must be a literal, from 0 to 1, was")

    def selector_of_bytes(w):
        i = np.int32(0)
        mma_sp_s8((w[0], w[0], w[0], w[0]), (w[0], w[0], w[0], w[0]), (i, i, i, i), w[0], 1)

    refused(selector_of_bytes, words, match="mma_sp_s8: selector must be a literal, 0, was 1")
