"""Products on tensor cores: every tile and edge, counts of requests and bank conflicts, and the arguments."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.matmul import tensor_cores as room
from pmpp.runtime import device
from tests.kernels.matmul.wrong_tensor_cores import RIGHT
from tests.kernels.matmul.wrong_tensor_cores import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, observe, result_of, total, watch

INPUTS = room.inputs()
F16 = np.float16
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
BY_NAME = {rung.name: rung for rung in room.LADDER}


def pair(seed, m, n, k):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(F16), rng.standard_normal((k, n)).astype(F16)


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def is_right(result, a, b):
    return judge.right(result, exact(a, b), room.tolerance(a, b))


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "non-finite"])
def test_the_reference_is_numpys_matmul(name):
    np.testing.assert_allclose(room.reference(*INPUTS[name]), exact(*INPUTS[name]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [room.PIPELINED, *room.TILES, room.Tile(64, 128, 64, 2, 2)], ids=str)
def test_every_tile_at_its_edges(tile):
    for number, (m, n, steps) in enumerate(((tile.m - 3, tile.n + 8, 1), (tile.m + 5, 8, tile.stages + 2))):
        a, b = pair(number, m, n, steps * tile.depth - 8 * number)

        def run(a, b, tile=tile):
            p = room.arguments(a, b)
            room.by_pipeline(tile, 2, p)
            return p.result

        assert is_right(result_of(run, a, b), a, b)


@pytest.mark.parametrize("tile", room.AHEAD, ids=str)
def test_fragments_run_ahead_to_every_edge(tile):
    for number, (m, n, k) in enumerate(((tile.m + 5, tile.n - 8, 4 * 64 - 8), (3, tile.n + 8, 2 * 64), (tile.m, 8, 8))):
        a, b = pair(number, m, n, k)

        def run(a, b, tile=tile):
            p = room.arguments(a, b)
            room.by_overlap(tile, 2, p)
            return p.result

        assert is_right(result_of(run, a, b), a, b)


@pytest.mark.parametrize(("m", "n", "k", "most_blocks"), [(70, 200, 136, 1), (64, 264, 8, 2)])
def test_an_engine_feeds_tile_after_tile(m, n, k, most_blocks):
    """Also a block that has several tiles, and fewer steps than stages."""
    a, b = pair(6, m, n, k)

    def run(a, b):
        p = room.arguments(a, b)
        room.by_engine(room.Tile(64, 256, 64, 2, 2), most_blocks, 2, p)
        return p.result

    if device.limits()["compute_capability"] == room.ENGINE:
        assert is_right(result_of(run, a, b), a, b)


@pytest.mark.parametrize("group", [1, 2, 8])
def test_every_tile_of_c_has_a_block_in_whatever_order(group):
    a, b = pair(1, 5 * 64, 3 * 64, 8)
    p = room.arguments(a, b)
    room.by_pipeline(room.Tile(64, 64, 32, 1, 3), group, p)
    assert is_right(device.to_host(p.result), a, b)


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)
def test_rows_and_arrays_that_begin_anywhere(rung):
    a, b = pair(2, 21, 19, 35)
    assert is_right(result_of(rung, a, b), a, b)
    a, b = pair(3, 20, 24, 40)
    assert is_right(result_of(rung, misaligned(a, 1), misaligned(b, 3)), a, b)
    out = device.to_device(np.zeros(20 * 24 + 1, np.float32))[1:].reshape(20, 24)
    assert rung(a, b, out=out) is out
    assert is_right(device.to_host(out), a, b)


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)
def test_whole_numbers_are_multiplied_without_an_error(rung):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-9, 10, shape).astype(F16) for shape in ((70, 100), (100, 36)))
    np.testing.assert_array_equal(device.to_host(rung(a, b)), exact(a, b))


def test_sums_are_in_float32():
    """In float16 this sum would stay at 2048, where the distance to the next number is 2."""
    a, b = np.ones((1, 2176), F16), np.ones((2176, 1), F16)
    assert device.to_host(room.overlapped(a, b)) == 2176
    large = np.full((1, 4), 60000, F16)
    assert device.to_host(room.overlapped(large, large.T.copy())) == np.float32(4 * 60000.0**2)


def test_the_same_call_gives_the_same_bits():
    a, b = pair(5, 40, 48, 200)
    first, second = (device.to_host(room.overlapped(a, b)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@few_counters()
def faults(multiply, names):
    """All that is wrong with a product, worst first. Each in wrong_tensor_cores.py has one.

    The ladder has none on any input of the room: tests/contract/test_rooms.py checks it.
    """
    for name in names:
        a, b = INPUTS[name]
        result, reports = watch(multiply, a, b)
        found = hazards(reports)
        if found:
            return found
        found = ["wrong result"] * (not is_right(result, a, b)) + ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return []


SOME = ["a fragment", "a fragment and one", "two steps"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(right):
    assert faults(right, SOME) == []


# ----------------------------------------------------------------------------------------------------- tiles and places


def test_every_tile_fits_a_block():
    for tile in (room.BLOCK, room.PIPELINED, *room.TILES, *room.AHEAD, room.FED):
        assert tile.shared + room.RESERVED <= (228 if tile in (*room.AHEAD[:-1], room.FED) else 49) * 1024
        assert tile.threads <= 1024
        assert tile.m % room.PANEL_M == tile.n % (room.PANEL_N * tile.panels) == tile.depth % 32 == 0
        for chunks in (tile.m * tile.depth // 8, tile.n * tile.depth // 8):
            assert chunks % tile.threads == 0


def test_the_choice_follows_the_shape():
    assert room.tile_for(4096, 4096, 132) == room.TILES[0]
    assert room.tile_for(1024, 1024, 132) == room.TILES[-1]
    assert room.tile_for(1, 1, 132) == room.TILES[-1]
    assert not room.is_for_engine(4096, 4096, 2**31, 132)
    large, middle, small = room.AHEAD
    memory = 228 * 1024
    assert room.tile_ahead(4096, 4096, 132, memory) == large
    assert room.tile_ahead(2048, 2048, 132, memory) == middle
    assert room.tile_ahead(1024, 1024, 132, memory) == small
    assert room.tile_ahead(4096, 4096, 84, 100 * 1024) == middle
    assert room.tile_ahead(4096, 4096, 40, 64 * 1024) == small


@interpreter_only
@pytest.mark.parametrize("chunks", [4, 8, 16])
def test_a_swizzled_column_of_chunks_meets_all_banks(chunks):
    from pmpp import cuda

    place = room.swizzled_place(chunks)

    @cuda.jit
    def places(out):
        row, chunk = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
        out[row, chunk] = place(row, chunk)

    out = np.zeros((32, chunks), np.int64)
    places[chunks, 32](out)
    np.testing.assert_array_equal(np.sort(out, axis=None), np.arange(32 * chunks))  # each has a place of its own
    np.testing.assert_array_equal(np.sort(out, axis=1), np.arange(32 * chunks).reshape(32, chunks))  # in its row
    for first in range(0, 32, 8):
        for chunk in range(chunks):
            assert len(set(out[first : first + 8, chunk] % 8)) == 8  # a line of all banks has 8 chunks


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_what_is_loaded_from_shared_memory():
    """128 x 128 x 64: 8 warps, and 4 steps of 16 k. ldmatrix takes 4 wavefronts, one for each matrix of 8 x 8."""
    a, b = pair(6, 128, 128, 64)
    counted = {}
    for name in ("shared", "matrices", "swizzled", "pipelined"):
        _, (report,) = observe(BY_NAME[name], a, b)
        counted[name] = report.counters
    requests = {name: counters["shared_load_requests"] for name, counters in counted.items()}
    assert requests == {"shared": 8 * 4 * 32, "matrices": 8 * 4 * 6, "swizzled": 8 * 4 * 6, "pipelined": 8 * 4 * 6}
    wavefronts = {name: counted[name]["shared_load_wavefronts"] for name in ("matrices", "swizzled", "pipelined")}
    # Without a swizzle the rows of a matrix of A lie in two places of the banks, and those of one of B in one.
    assert wavefronts == {"matrices": 8 * 4 * (4 * 4 * 4 + 2 * 4 * 8), "swizzled": 8 * 4 * 24, "pipelined": 8 * 4 * 24}
    assert counted["swizzled"]["shared_load_bank_conflicts"] == 0
    assert counted["swizzled"]["shared_store_bank_conflicts"] == 0


@interpreter_only
def test_what_is_loaded_from_device_memory():
    a, b = pair(7, 128, 128, 64)
    operands, result = (a.nbytes + b.nbytes) // 32, 128 * 128 * 4 // 32
    for rung in room.LADDER[1:5]:
        _, (report,) = observe(rung, a, b)
        assert report.counters["global_load_sectors"] == operands
        assert report.counters["global_store_sectors"] == result
    _, (report,) = observe(room.fragments, a, b)
    assert report.counters["global_load_requests"] == 8 * 16 * 4 * 12  # tiles, steps, elements of a lane
    _, (report,) = observe(room.wide, a, b)
    assert report.counters["global_load_sectors"] == 2 * operands  # four tiles of 64 x 64


@interpreter_only
def test_a_step_of_the_pipeline_has_one_barrier():
    a, b = pair(8, 64, 64, 5 * 32)
    tile = room.Tile(64, 64, 32, 1, 3)

    def run(a, b):
        p = room.arguments(a, b)
        room.by_pipeline(tile, 1, p)
        return p.result

    _, (report,) = observe(run, a, b)
    assert report.counters["barriers"] == 5


@interpreter_only
def test_a_launch_unless_copies_are_needed():
    assert len(observe(room.wide, *pair(9, 9, 16, 8))[1]) == 1
    assert len(observe(room.wide, *pair(9, 9, 16, 9))[1]) == 4


# ------------------------------------------------------------------------------------------------------------ arguments


def test_bad_arguments_are_named():
    a, b = pair(10, 3, 5, 4)
    with pytest.raises(TypeError, match=r"a must .*float16.*float32"):
        room.wide(a.astype(np.float32), b)
    with pytest.raises(ValueError, match=r"b must have shape \(4, any\), had \(3, 5\)"):
        room.wide(a, b[:3])
    with pytest.raises(ValueError, match="a must"):
        room.wide(np.asfortranarray(a), b)
    with pytest.raises(TypeError, match="out must"):
        room.wide(a, b, out=device.to_device(np.zeros((3, 5), F16)))


def test_a_gpu_without_the_instruction_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(room.device, "limits", lambda: {"compute_capability": (7, 5), "multiprocessors": 1})
    with pytest.raises(RuntimeError, match=r"compute capability 8.0 or higher, this one has 7.5"):
        room.wide(*pair(11, 2, 3, 4))


def test_the_layout_of_fragments_is_what_the_first_rung_loads():
    """Row and column of what a lane has, by formula, against the interpreter's table."""
    for lane in range(32):
        group, pair_of = lane // 4, lane % 4 * 2
        for register in range(4):
            row, column = group + register % 2 * 8, pair_of + register // 2 * 8
            assert simt.fragment("mma_f16", "a", lane, register) == [(row, column), (row, column + 1)]
            assert simt.fragment("mma_f16", "c", lane, register) == [
                (group + register // 2 * 8, pair_of + register % 2)
            ]
        for register in range(2):
            k = pair_of + register * 8
            assert simt.fragment("mma_f16", "b", lane, register) == [(k, group), (k + 1, group)]
