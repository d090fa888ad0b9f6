"""The twins of the tensor core's instructions: layout, rounding, counters, hazards, and what is refused."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime.copies import copy_async_once
from pmpp.runtime.matrix import (
    commit_copies,
    copy_async,
    ldmatrix,
    ldmatrix_transposed,
    load32,
    mma_f16,
    mma_s8,
    mma_tf32,
    pack_halves,
    wait_copies,
)
from pmpp.simt import cuda
from pmpp.simt.values import tensor_cores
from tests.corpus import pairs

# -- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tensor_cores.KINDS)
@pytest.mark.parametrize("matrix", "abc")
def test_the_fragments_of_a_warp_are_the_whole_matrix(name, matrix):
    depth = tensor_cores.KINDS[name].depth
    rows, columns = {"a": (16, depth), "b": (depth, 8), "c": (16, 8)}[matrix]
    registers = tensor_cores.REGISTERS[matrix]
    places = [p for lane in range(32) for r in range(registers) for p in simt.fragment(name, matrix, lane, r)]
    assert sorted(places) == [(row, column) for row in range(rows) for column in range(columns)]


def test_fragments_by_hand():
    # PTX ISA, figures of the fragments of m16n8k16 (16 bits), m16n8k8 (tf32) and m16n8k32 (8 bits)
    assert simt.fragment("mma_f16", "a", 31, 3) == [(15, 14), (15, 15)]
    assert simt.fragment("mma_bf16", "b", 6, 1) == [(12, 1), (13, 1)]
    assert simt.fragment("mma_tf32", "a", 9, 2) == [(2, 5)]
    assert simt.fragment("mma_tf32", "b", 9, 1) == [(5, 2)]
    assert simt.fragment("mma_s8", "a", 1, 1) == [(8, 4), (8, 5), (8, 6), (8, 7)]
    assert simt.fragment("mma_s8", "b", 1, 1) == [(20, 0), (21, 0), (22, 0), (23, 0)]
    assert simt.fragment("mma_f64", "a", 9, 2) == [(2, 5)]  # and m16n8k8 of float64
    assert simt.fragment("mma_f64", "b", 9, 1) == [(5, 2)]
    assert simt.fragment("mma_e4m3", "a", 1, 2) == [(0, 20), (0, 21), (0, 22), (0, 23)]
    assert simt.fragment("mma_f16", "c", 5, 2) == [(9, 2)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mma", "a", 0, 0), "name is 'mma'; it must be one of mma_f16, mma_bf16, mma_tf32, mma_s8, mma_f64, "),
        (("mma_f16", "d", 0, 0), "matrix is 'd'; it must be one of a, b, c"),
        (("mma_f16", "a", 32, 0), "lane is 32; it must be an integer from 0 to 31"),
        (("mma_f16", "b", 0, 2), "register is 2; it must be an integer from 0 to 1"),
        (("mma_f16", "a", 1.0, 0), "lane is 1.0; it must be an integer from 0 to 31"),
        (("mma_f16", "a", 0, True), "register is True; it must be an integer from 0 to 3"),
        (([], "a", 0, 0), r"name is \[\]; it must be one of mma_f16"),
        (("mma_f16", ["a"], 0, 0), r"matrix is \['a'\]; it must be one of a, b, c"),
    ],
)
def test_fragments_that_do_not_exist(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        simt.fragment(*arguments)


# -- rounding --------------------------------------------------------------------------------------------------------


def registers_of(name, letter, matrix):
    """The registers of one warp, (1, 32, registers), from a matrix of numbers."""
    kind = tensor_cores.KINDS[name].numbers
    if letter == "c" or kind == "float64":
        numbers = np.asarray(matrix, np.float64 if kind == "float64" else np.float32)
        return numbers.reshape(-1)[tensor_cores._places(name, letter)[:, :, 0]][None]
    if kind in ("e4m3", "e5m2"):
        table = tensor_cores.values_of_8_bits(kind)
        bits = np.array([np.flatnonzero(table == value)[0] for value in matrix.flat], np.uint8)
        return bits[tensor_cores._places(name, letter)].view(np.uint32)[None, :, :, 0]
    bits = np.asarray(matrix, np.float16 if kind == "float16" else np.float32)
    bits = bits.view(np.uint16 if kind == "float16" else np.uint32)
    if kind == "bfloat16":
        bits = (bits >> 16).astype(np.uint16)
    return bits.reshape(-1)[tensor_cores._places(name, letter)].view(np.uint32)[None, :, :, 0]


def one_sum(name, products, c):
    """The sum of some products and c, by one instruction."""
    depth = tensor_cores.KINDS[name].depth
    a, b, sums = np.zeros((16, depth)), np.zeros((depth, 8)), np.zeros((16, 8))
    for k, (x, y) in enumerate(products):
        a[3, k], b[k, 5] = x, y
    sums[3, 5] = c
    given = [registers_of(name, letter, matrix) for letter, matrix in (("a", a), ("b", b), ("c", sums))]
    found = tensor_cores.multiply_add(name, *given)
    place = np.argwhere(tensor_cores._places(name, "c")[:, :, 0] == 3 * 8 + 5)[0]
    return found[0][tuple(place)]


FLOATS = ["mma_f16", "mma_bf16", "mma_tf32"]


@pytest.mark.parametrize("name", FLOATS)
def test_a_sum_is_cut_and_not_rounded(name):
    just_below_two = np.nextafter(np.float32(2), np.float32(0))
    assert one_sum(name, [(1, 1), (1, 1)], -(2.0**-24)) == just_below_two  # to nearest it would be 2
    assert one_sum(name, [(1, 1)], 1.75 * 2.0**-24) == 1
    assert one_sum(name, [(-1, 1)], -1.75 * 2.0**-24) == -1


@pytest.mark.parametrize("name", FLOATS)
def test_what_lies_too_far_below_the_largest_is_lost(name):
    kept = 2.0 ** -tensor_cores.HOPPER.fraction[tensor_cores.KINDS[name].numbers]
    assert one_sum(name, [(1, 1), (1, -1)], kept) == kept
    assert one_sum(name, [(1, 1), (1, -1)], kept / 2) == 0
    assert one_sum(name, [(1, 1), (1, -1)], 1.5 * kept) == kept


def test_an_infinity_and_a_nan_come_through():
    assert one_sum("mma_f16", [(np.inf, 1)], 1) == np.inf
    assert one_sum("mma_f16", [(np.inf, -1)], 1) == -np.inf
    for products, c in (([(np.inf, 1), (np.inf, -1)], 0), ([(np.inf, 0)], 0), ([(1, 1)], np.nan)):
        found = np.asarray(one_sum("mma_f16", products, c))
        assert found.view(np.uint32) == 0x7FFFFFFF


def test_tf32_has_ten_bits_behind_the_point():
    assert one_sum("mma_tf32", [(1 + 2.0**-10, 1)], 0) == 1 + 2.0**-10
    assert one_sum("mma_tf32", [(1 + 2.0**-10 + 2.0**-11, 1)], 0) == 1 + 2.0**-10  # the others are ignored


def test_float64_is_a_chain_of_multiply_adds():
    """In the order of k, each rounded once, to the nearest and ties to even."""
    half = (2.0**-53, 1)
    assert one_sum("mma_f64", [half, half], 1) == 1
    assert one_sum("mma_f64", [half, half, (1, 1)], 0) == 1 + 2.0**-52
    assert one_sum("mma_f64", [(1, 1), half, half], 0) == 1
    assert one_sum("mma_f64", [(1 + 2.0**-30, 1 + 2.0**-30)], -(1 + 2.0**-29)) == 2.0**-60  # the product is not rounded
    assert (
        one_sum("mma_f64", [(1e308, 10), (-1e308, 10)], 0) == np.inf
    )  # the second product is finite before it is added


@pytest.mark.parametrize("name", FLOATS)
def test_a_sum_is_near_the_exact_one(name, rng):
    depth = tensor_cores.KINDS[name].depth
    a, b = (rng.normal(size=shape).astype(np.float16).astype(np.float32) for shape in ((16, depth), (depth, 8)))
    if name == "mma_bf16":
        a, b = ((m.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for m in (a, b))
    c = rng.normal(size=(16, 8)).astype(np.float32)
    found = tensor_cores.multiply_add(name, *(registers_of(name, k, m) for k, m in zip("abc", (a, b, c), strict=True)))
    exact = a.astype(np.float64) @ b + c
    largest = np.maximum(np.abs(a[:, :, None] * b).max(axis=1), np.abs(c))
    lost = (depth + 1) * 2 * largest * 2.0 ** -tensor_cores.HOPPER.fraction[
        tensor_cores.KINDS[name].numbers
    ] + np.spacing(np.abs(exact).astype(np.float32))
    error = np.abs(found.reshape(-1) - exact.reshape(-1)[tensor_cores._places(name, "c").reshape(-1)])
    assert (error <= lost.reshape(-1)[tensor_cores._places(name, "c").reshape(-1)]).all()


# -- many warps ------------------------------------------------------------------------------------------------------


@cuda.jit
def multiplied(a, b, out, n):
    t = cuda.grid(1)
    zero = np.float32(0)
    c = (zero, zero, zero, zero)
    for k in range(n):
        c = mma_f16((a[t], np.uint32(a[t] ^ k), a[t], a[t]), (b[t], b[t]), c)
    for k in range(4):
        out[t, k] = c[k]


def test_batches_change_nothing(rng):
    a, b = (rng.integers(0, 2**15, 640).astype(np.uint32) for _ in range(2))
    results = []
    for lanes in (64, 1 << 20):
        for schedule in ("lockstep", "warps", "shuffled"):
            out = np.zeros((640, 4), np.float32)
            with simt.batch_lanes(lanes), simt.schedule(schedule):
                multiplied[10, 64](a, b, out, 3)
            results.append(out)
    assert all(np.array_equal(out.view(np.uint32), results[0].view(np.uint32)) for out in results)


def test_lanes_alone_cannot_multiply():
    a = np.zeros(64, np.uint32)
    with pytest.raises(simt.HazardError, match="thread 1 of block 0 does not execute"), simt.schedule("lanes"):
        multiplied[1, 64](a, a, np.zeros((64, 4), np.float32), 1)


# -- counters --------------------------------------------------------------------------------------------------------


def test_operations_of_tensor_cores_are_counted_apart():
    a = np.zeros(64, np.uint32)
    counters = simt.profile(multiplied, 1, 64, (a, a, np.zeros((64, 4), np.float32), 3), level="count").counters
    assert counters["tensor_flops"] == 2 * 3 * 2 * 16 * 8 * 16
    assert counters["inst_tensor"] == 2 * 3
    assert counters["thread_inst_tensor"] == 64 * 3
    assert counters["flops"] == 0


@cuda.jit
def matrices_of_a_pitch(out, pitch, level):
    s = cuda.shared.array(32 * 64, np.uint16)
    t = cuda.threadIdx.x
    a = ldmatrix(s, pitch * t)
    b = ldmatrix_transposed(s, pitch * t)
    out[t] = a[0] + b[0]


@pytest.mark.parametrize(("pitch", "wavefronts"), [(8, 4), (16, 8), (24, 4), (32, 16), (64, 32)])
def test_eight_rows_of_16_bytes_are_a_wavefront_at_best(pitch, wavefronts):
    # Rows of `pitch` halves: 8 rows begin in 32 banks at 8 pitch / 2 x r words, r = 0 to 7.
    counters = simt.profile(matrices_of_a_pitch, 1, 32, (np.zeros(32, np.uint32), pitch, 0), level="count").counters
    assert counters["shared_load_requests"] == 2
    assert counters["shared_load_wavefronts"] == 2 * wavefronts
    assert counters["shared_load_bank_conflicts"] == 2 * (wavefronts - 4)
    assert counters["inst_memory"] == 2 + 1


@cuda.jit
def pairs_of_lanes_share_rows(out):
    s = cuda.shared.array(32 * 8, np.uint16)
    t = cuda.threadIdx.x
    out[t] = ldmatrix(s, 8 * (t // 2))[0]


def test_rows_that_neighbours_share_are_loaded_twice():
    # As on an H200: 100 of these took 400 wavefronts, and none more for bank conflicts.
    counters = simt.profile(pairs_of_lanes_share_rows, 1, 32, (np.zeros(32, np.uint32),), level="count").counters
    assert (counters["shared_load_wavefronts"], counters["shared_load_bank_conflicts"]) == (4, 0)


@cuda.jit
def copied(x, out, n):
    s = cuda.shared.array(256, np.uint16)
    t = cuda.threadIdx.x
    copy_async(s, 8 * t, x, 8 * t, min(8, max(0, n - 8 * t)))
    commit_copies()
    wait_copies(0)
    out[t] = s[8 * t]


@pytest.mark.parametrize(("n", "lanes"), [(256, 32), (128, 16), (4, 1), (0, 0)])
def test_a_copy_is_one_instruction_that_loads_sectors_and_stores_to_banks(n, lanes):
    x = np.arange(256).astype(np.uint16)
    report = simt.profile(copied, 1, 32, (x, np.zeros(32, np.uint16), n), level="check")
    assert report.hazards == []
    counters = report.counters
    assert counters["global_load_requests"] == (lanes > 0)
    assert counters["global_load_sectors"] == -(-lanes // 2)
    assert counters["unique_load_sectors"] == -(-lanes // 2)
    assert counters["shared_store_requests"] == 1
    assert counters["shared_store_wavefronts"] == 4
    assert counters["shared_store_bank_conflicts"] == 0
    assert counters["inst_memory"] == 3  # the copy, the load and the store of the last line
    assert counters["inst_barrier"] == 2


# -- asynchronous copies ---------------------------------------------------------------------------------------------


@cuda.jit
def never_waited_for(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    wait_copies(1)
    cuda.syncthreads()
    out[t] = s[4 * t]


def test_what_has_not_arrived_is_poison_at_every_level():
    for level in ("run", "count"):
        out = np.zeros(32, np.float32)
        simt.profile(never_waited_for, 1, 32, (np.ones(128, np.float32), out), level=level)
        assert np.isnan(out).all()
    out = np.zeros(32, np.float32)
    report = simt.profile(never_waited_for, 2, 32, (np.ones(128, np.float32), out), level="check", collect=True)
    assert {hazard.kind for hazard in report.hazards} == {"race"}
    assert "while the copy_async of thread 0 of block 0" in report.hazards[0].message
    assert np.isnan(out).all()


@cuda.jit
def pipelined(x, out, rounds):
    s = cuda.shared.array((3, 256), np.float32)
    t = cuda.threadIdx.x
    for k in range(2):
        if k < rounds:
            copy_async(s, 256 * k + 4 * t, x, 256 * k + 4 * t, 4)
        commit_copies()
    total = np.float32(0)
    for k in range(rounds):
        wait_copies(1)
        cuda.syncthreads()
        total += s[k % 3, 255 - 4 * t]
        if k + 2 < rounds:
            copy_async(s, 256 * ((k + 2) % 3) + 4 * t, x, 256 * (k + 2) + 4 * t, 4)
        commit_copies()
    out[cuda.grid(1)] = total


@pytest.mark.parametrize("schedule", ["lockstep", "blocks", "warps", "lanes", "shuffled"])
def test_a_pipeline_of_three_stages(rng, schedule):
    x = rng.random(256 * 7).astype(np.float32)
    for rounds in (1, 2, 3, 7):
        out = np.zeros(128, np.float32)
        with simt.schedule(schedule):
            report = simt.profile(pipelined, 2, 64, (x, out, rounds), level="check", collect=True)
        races = [hazard for hazard in report.hazards if hazard.variable == "s"]
        assert races == []
        expected = x[: 256 * rounds].reshape(rounds, 256)[:, ::-4]
        np.testing.assert_array_equal(out.reshape(2, 64)[0], np.add.accumulate(expected)[-1])


@cuda.jit
def groups_of_a_thread(x, out):
    s = cuda.shared.array((4, 128), np.float32)
    t = cuda.threadIdx.x
    for k in range(1 + t % 4):
        copy_async(s, 128 * k + 4 * t, x, 128 * k + 4 * t, 4)
        commit_copies()
    wait_copies(1)
    for k in range(t % 4):
        out[k, t] = s[k, 4 * t]


def test_groups_are_counted_by_threads():
    x, out = np.arange(512).astype(np.float32), np.full((4, 32), -1, np.float32)
    report = simt.profile(groups_of_a_thread, 1, 32, (x, out), level="check")
    assert report.hazards == []
    k, t = np.indices((4, 32))
    np.testing.assert_array_equal(out, np.where(k < t % 4, 128 * k + 4 * t, -1))


@cuda.jit
def copy_of(x, i, j, count):
    s = cuda.shared.array(16, np.float32)
    copy_async(s, i, x, j, count)


@pytest.mark.parametrize(
    ("i", "j", "count", "sentence"),
    [
        (0, 0, 5, r"count is 5; 16 bytes are 0 to 4 elements of float32"),
        (0, 0, -1, r"count is -1"),
        (2, 0, 4, r"misaligned 128-bit access: thread \(0, 0, 0\) of block \(0, 0, 0\) uses s\[2\]"),
        (0, 2, 4, r"misaligned 128-bit access: .* uses x\[2\]"),
        (0, 2, 1, r"misaligned 128-bit access: .* uses x\[2\]"),
        (16, 0, 4, r"s\[16\], but valid indices are 0 to 15"),
        (0, 16, 1, r"x\[16\], but valid indices are 0 to 14"),
        (0, 12, 4, r"x\[15\], but valid indices are 0 to 14"),
        (-4, 0, 4, r"s\[-4\], but valid indices are 0 to 15"),
        (0, -4, 4, r"x\[-4\], but valid indices are 0 to 14"),
    ],
)
def test_a_copy_that_cannot_be(i, j, count, sentence):
    for level in ("run", "count", "check"):
        with pytest.raises(simt.SimtError, match=sentence):
            simt.profile(copy_of, 1, 1, (np.zeros(15, np.float32), i, j, count), level=level)


def test_a_copy_of_nothing_touches_nothing():
    for j in (1 << 40, -(1 << 40)):
        assert simt.profile(copy_of, 1, 1, (np.zeros(15, np.float32), 0, j, 0), level="check").hazards == []
    assert simt.profile(copy_of, 1, 1, (np.zeros(15, np.float32), 0, 12, 3), level="check").hazards == []
    assert simt.profile(copy_of, 1, 1, (np.zeros(0, np.float32), 0, 0, 0), level="check").hazards == []


# -- indices ---------------------------------------------------------------------------------------------------------


@cuda.jit
def words_of(x, out, first):
    s = cuda.shared.array(512, np.uint16)
    t = cuda.threadIdx.x
    for k in range(t, 512, 32):
        s[k] = x[k]
    cuda.syncwarp()
    out[t, 0] = load32(x, first + 2 * t)
    out[t, 1] = ldmatrix(s, first + 8 * t)[0]


@cuda.jit
def matrix_of(out, first):
    s = cuda.shared.array(512, np.uint16)
    out[cuda.threadIdx.x, 1] = ldmatrix(s, first + 8 * cuda.threadIdx.x)[0]


def test_a_load_before_an_array_does_not_wrap_around():
    x, out = np.arange(512).astype(np.uint16), np.zeros((32, 2), np.uint32)
    for level in ("run", "count", "check"):
        with pytest.raises(simt.OutOfBoundsError, match=r"x\[-2\], but valid indices are 0 to 511"):
            simt.profile(words_of, 1, 32, (x, out, -2), level=level)
        with pytest.raises(simt.OutOfBoundsError, match=r"s\[-8\], but valid indices are 0 to 511"):
            simt.profile(matrix_of, 1, 32, (out, -8), level=level)


@cuda.jit
def words_of_slices(x, out, first):
    s = cuda.shared.array(512, np.uint16)
    t = cuda.threadIdx.x
    copy_async(s[8 * t :], 0, x[8 * t : 8 * t + 8], 0, 8)
    copy_async(s[256 + 8 * t :], 0, x[256 + 8 * t :], 0, 8)
    commit_copies()
    wait_copies(0)
    cuda.syncwarp()
    out[t, 0] = load32(x[2 * t :], first)
    out[t, 1] = ldmatrix(s[8 * t : 8 * t + 8], first)[0]


def test_slices_that_differ_between_threads_are_as_indices():
    x, slices, indices = np.arange(512).astype(np.uint16), *np.zeros((2, 32, 2), np.uint32)
    for kernel, out in ((words_of, indices), (words_of_slices, slices)):
        assert simt.profile(kernel, 1, 32, (x, out, 0), level="check").hazards == []
    np.testing.assert_array_equal(slices, indices)
    assert slices.any()


@cuda.jit
def by_name(x, out):
    s = cuda.shared.array(256, np.uint16)
    t = cuda.threadIdx.x
    copy_async(j=8 * t, x=x, count=8, shared=s, i=8 * t)
    commit_copies()
    wait_copies(n=0)
    out[t] = load32(i=8 * t, x=x) - s[8 * t]


def test_arguments_may_be_given_by_name(ptx):
    x, out = np.arange(256).astype(np.uint16), np.zeros(32, np.uint32)
    assert simt.profile(by_name, 1, 32, (x, out), level="check").hazards == []
    np.testing.assert_array_equal(out, np.arange(1, 257, 8) << 16)
    with pytest.raises(simt.OutOfBoundsError, match=r"accesses x\[104\]"):
        by_name[1, 32](x[:100], out)
    assert "cp.async.wait_group 0" in ptx(by_name, x, out, cc=(8, 0))


@cuda.jit(device=True)
def waited_for(s, newest, size):
    first = cuda.local.array(size, np.float32)
    wait_copies(newest)
    first[0] = s[4 * cuda.threadIdx.x]
    return first[0]


@cuda.jit
def constants_by_name(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    out[t] = waited_for(s, size=2, newest=0)


def test_a_constant_that_a_device_function_is_given_by_name_is_one(ptx):
    x, out = np.arange(128).astype(np.float32), np.zeros(32, np.float32)
    constants_by_name[1, 32](x, out)
    np.testing.assert_array_equal(out, x[::4])
    assert "cp.async.wait_group 0" in ptx(constants_by_name, x, out, cc=(8, 0))


@cuda.jit
def chosen_by_branches(x, y, out):
    r = cuda.shared.array(256, np.uint16)
    s = cuda.shared.array(256, np.uint16)
    t = cuda.threadIdx.x
    both = (x, y)
    copy_async(r if t < 20 else s, 8 * t, x if t % 2 == 0 else y, 8 * t, 8)
    copy_async(s if t < 20 else r, 8 * t, x, 8 * t, 8)
    commit_copies()
    wait_copies(0)
    cuda.syncwarp()
    out[t, 0] = ldmatrix(r if t < 16 else s, 8 * t)[0]
    out[t, 1] = load32(both[t % 2], 2 * t)


def test_lanes_may_use_different_arrays(rng):
    x, y = (rng.integers(0, 1 << 16, 256).astype(np.uint16) for _ in range(2))
    out = np.zeros((32, 2), np.uint32)
    assert simt.profile(chosen_by_branches, 1, 32, (x, y, out), level="check").hazards == []
    t = np.arange(32)
    words = np.where(t[:, None] % 2 == 0, x.view(np.uint32).reshape(32, 4), y.view(np.uint32).reshape(32, 4))
    np.testing.assert_array_equal(out[:, 0], words[:8].reshape(-1))  # matrix 0: word t % 4 of row t // 4
    np.testing.assert_array_equal(out[:, 1], np.where(t % 2 == 0, x.view(np.uint32)[t], y.view(np.uint32)[t]))


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(kernel, *arguments, match):
    with pytest.raises(simt.SimtError, match=match):
        cuda.jit(kernel)[1, 32](*arguments)


def test_what_numba_refuses_is_refused():
    x, words = np.zeros(512, np.float16), np.zeros(32, np.uint32)

    def integers(words):
        mma_f16((1, 1, 1, 1), (words[0], words[1]), (np.float32(0), np.float32(0), np.float32(0), np.float32(0)))

    refused(integers, words, match=r"mma_f16: a must be a tuple of 4 uint32, was \(int64, int64, int64, int64\)")

    def wide_sum(words):
        mma_tf32((words[0], words[0], words[0], words[0]), (words[0], words[1]), (0.0, 0.0, 0.0, 0.0))

    refused(wide_sum, words, match="mma_tf32: c must be a tuple of 4 float32")

    def no_tuple(words):
        mma_s8((words[0], words[0], words[0], words[0]), words[0], (0, 0, 0, 0))

    refused(no_tuple, words, match="mma_s8: b must be a tuple of 2 uint32, was uint32")

    def from_global_memory(x):
        ldmatrix(x, 0)

    refused(from_global_memory, x, match="ldmatrix: x must be in shared memory; it is in global memory")

    def bytes_transposed(x):
        s = cuda.shared.array(512, np.int8)
        ldmatrix_transposed(s, 0)

    refused(bytes_transposed, x, match="ldmatrix_transposed: x must hold numbers of 16 bits")

    def crooked(x):
        s = cuda.shared.array(512, np.float16)
        ldmatrix(s, 8 * cuda.threadIdx.x + 4)

    refused(crooked, x, match=r"misaligned 128-bit access: .* uses s\[4\]")

    def crooked_word(x):
        load32(x, 1)

    refused(crooked_word, x, match="misaligned 32-bit access")

    def pack_of_floats(x):
        pack_halves(1.0, 2.0)

    refused(pack_of_floats, x, match="pack_halves: lo must be float16, int16 or uint16, was float64")

    def two_types(x):
        s = cuda.shared.array(512, np.int16)
        copy_async(s, 0, x, 0, 8)

    refused(two_types, x, match="copy_async: shared and x must have one dtype, were int16 and float16")

    def wait_for_a_variable(x):
        wait_copies(x.size)

    refused(wait_for_a_variable, x, match="wait_copies: n must be a literal")


NUMBERS = np.zeros(512, np.float16)


def test_arrays_in_other_memory_are_refused():
    x = np.zeros(512, np.float16)

    def from_constant_memory(x):
        s = cuda.shared.array(512, np.float16)
        copy_async(s, 0, cuda.const.array_like(NUMBERS), 0, 8)

    refused(from_constant_memory, x, match="copy_async: x must be in global memory; it is in const memory")

    def of_local_memory(x):
        load32(cuda.local.array(8, np.float16), 0)

    refused(of_local_memory, x, match="load32: x must be in global or shared memory; it is in local memory")


def test_load32_takes_no_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

    def brain(x):
        load32(x, 0)

    refused(brain, np.zeros(8, bfloat16), match="numbers of 8 or 16 or 32 bits that are no bfloat16, was")


def test_errors_name_the_copy_that_is_called():
    x = np.zeros(512, np.float16)

    def too_many(x):
        s = cuda.shared.array(512, np.float16)
        copy_async_once(s, 0, x, 0, 9)

    refused(too_many, x, match="copy_async_once: count is 9; 16 bytes are 0 to 8 elements of float16")

    def to_global_memory(x):
        copy_async_once(x, 0, x, 0, 8)

    refused(to_global_memory, x, match="copy_async_once: shared must be in shared memory; it is in global memory")


def test_a_warp_that_is_not_whole_cannot_take_part():
    def loads(out):
        s = cuda.shared.array(512, np.float16)
        out[cuda.threadIdx.x] = ldmatrix(s, 0)[0]

    report = simt.profile(cuda.jit(loads), 1, 40, (np.zeros(40, np.uint32),), level="check", collect=True)
    [message] = [h.message for h in report.hazards if h.kind == "divergent_barrier"]
    assert "thread 32 of block 0 executes this ldmatrix() in a warp of 8 threads" in message


def overwritten(x, counts, where, first, out):
    """Each thread copies up to 4 elements.  One writes ``x[where]``, and then all wait; the ``first`` did before."""
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, counts[t])
    commit_copies()
    if t < first:
        wait_copies(0)
    cuda.syncwarp()
    if t == 31 and where >= 0:
        x[where] = 5
    wait_copies(0)
    cuda.syncwarp()
    out[t] = s[4 * t]


@pytest.mark.parametrize(
    ("where", "first", "reader"),
    [(-1, 0, None), (8, 0, 2), (11, 0, None), (10, 0, 2), (12, 0, None), (8, 3, None), (20, 3, 5), (127, 0, 31)],
)
def test_what_a_copy_may_still_read_is_not_written(where, first, reader):
    """Thread 2 copies three elements, thread 3 none, and all others four."""
    counts = np.full(32, 4, np.int32)
    counts[2], counts[3] = 3, 0
    arguments = np.arange(128, dtype=np.float32), counts, where, first, np.zeros(32, np.float32)
    for schedule in ("auto", "blocks", "warps"):
        report = simt.profile(
            cuda.jit(overwritten), 1, 32, arguments, level="check", collect=True, schedule=schedule
        )  # fmt: skip
        found = [hazard.message for hazard in report.hazards]
        assert len(found) == (reader is not None), found
        told = f"an element of x that the copy_async of thread {reader} of block 0 on line"
        assert all(told in message and "has not waited for it with wait_copies" in message for message in found)


PAIRS = [pair for pair in pairs() if pair.subject in ("copies", "precisions")]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_planted_bugs_compile(ptx, pair):
    arguments = pair.make(cuda.device_array)
    assert ".entry" in ptx(pair.kernel, *arguments, False, cc=(8, 0) if pair.subject == "copies" else (8, 9))


def test_two_numbers_are_rounded_to_nearest_and_even():
    """Ties, what becomes infinite, the smallest, and NaN, which the instruction makes 0x7FFF."""
    from pmpp.runtime.matrix import rounded_bf16, rounded_f16

    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        out[i, 0], out[i, 1] = rounded_f16(x[i], -x[i]), rounded_bf16(x[i], -x[i])

    x = np.float32([1, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65520, 65519, 2**-25, 3.4e38, np.inf])
    x = np.append(x, np.float32([2**-24 * 1.5, 0, np.nan]))
    out = np.zeros((32, 2), np.uint32)
    kernel[1, 32](np.resize(x, 32).astype(np.float32), out)
    with np.errstate(over="ignore"):
        f16 = x.astype(np.float16).view(np.uint16)
    f16[-1] = 0x7FFF
    sign = np.uint16(0x8000)
    np.testing.assert_array_equal(out[: x.size, 0] & 0xFFFF, f16)
    np.testing.assert_array_equal(out[: x.size - 1, 0] >> 16, f16[:-1] | sign)
    bf16 = out[: x.size, 1] & 0xFFFF
    assert [hex(v) for v in bf16[[0, 3, 4, 8, 9, -1]]] == ["0x3f80", "0x3f80", "0x3f82", "0x7f80", "0x7f80", "0x7fff"]
