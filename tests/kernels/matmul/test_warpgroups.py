"""Products of warpgroups: every tile and edge, stages that are used again, counts, and the arguments."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import tensor_cores
from pmpp.kernels.matmul import warpgroups as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.matmul.wrong_warpgroups import RIGHT
from tests.kernels.matmul.wrong_warpgroups import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, observe, result_of, total, watch

INPUTS = room.inputs()
F16 = np.float16
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
hopper_only = pytest.mark.skipif(
    device.limits()["compute_capability"] != room.CAPABILITY, reason="the room needs compute capability 9.0"
)
pytestmark = hopper_only
BY_NAME = {rung.name: rung for rung in room.LADDER}
SMALL = room.Tile(64, 64, 3)


def pair(seed, m, n, k):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(F16), rng.standard_normal((k, n)).astype(F16)


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def is_right(result, a, b):
    return judge.right(result, exact(a, b), room.tolerance(a, b))


def by_copies(tile, flying):
    def run(a, b):
        p = room.arguments(a, b)
        room.by_copies(tile, flying, p)
        return p.result

    return run


def by_engine(kernel, tile, most_blocks=None):
    threads = tile.teams * room.TEAM + (room.WARP if kernel is room.specialised_kernel else 0)

    def run(a, b):
        p = room.arguments(a, b)
        room.by_engine(kernel, tile, threads, most_blocks, p)
        return p.result

    return run


def by_stores(tile):
    def run(a, b):
        p = room.arguments(a, b)
        tiles = blocks(a.shape[0], tile.m) * blocks(b.shape[1], tile.n)
        cut = room.Cut(tile, 2, tiles)
        room.in_chunks(p, lambda a, b, c: room.store_tiles(cut, p.kind, (a, b), c, p.stream))
        return p.result

    return run


WAYS = {
    "copied": by_copies(SMALL, 0),
    "in flight": by_copies(SMALL, 1),
    "bulk": by_engine(room.bulk_kernel, SMALL),
    "specialised": by_engine(room.specialised_kernel, SMALL),
    "persistent": by_engine(room.specialised_kernel, SMALL, 2),
    "stored": by_stores(SMALL),
}


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16(way):
    for dtype in known(("bfloat16",)):
        a, b = (x.astype(np.float32).astype(dtype) for x in pair(13, 64, 72, 200))
        result = result_of(WAYS[way], a, b)
        assert is_right(result, a, b)
        assert not is_right(result, a.view(F16), b.view(F16))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 5])
def test_stages_are_used_again(way, steps):
    a, b = pair(steps, 64, 64, 64 * steps - (24 if steps == 5 else 0))
    assert is_right(result_of(WAYS[way], a, b), a, b)


@pytest.mark.parametrize("way", WAYS)
def test_several_tiles_with_edges(way):
    a, b = pair(1, 72, 80, 136)
    assert is_right(result_of(WAYS[way], a, b), a, b)


@pytest.mark.parametrize("tile", room.TILES, ids=str)
def test_every_tile_of_the_last_rung(tile):
    a, b = pair(2, tile.m - 3, tile.n - 5, 72)
    assert is_right(result_of(by_engine(room.specialised_kernel, tile, 1), a, b), a, b)
    assert is_right(result_of(by_stores(tile), a, b), a, b)


@interpreter_only
@pytest.mark.parametrize("way", ["bulk", "specialised", "stored"])
def test_warps_may_run_in_any_order(way):
    a, b = pair(3, 64, 64, 64 * 5)
    with simt.schedule("shuffled", 0):
        assert is_right(result_of(WAYS[way], a, b), a, b)


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)
def test_rows_and_arrays_that_begin_anywhere(rung):
    a, b = pair(4, 9, 11, 13)
    assert is_right(result_of(rung, misaligned(a, 1), misaligned(b, 3)), a, b)


def test_whole_numbers_are_multiplied_without_an_error():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-9, 10, shape).astype(F16) for shape in ((70, 100), (100, 36)))
    for way in WAYS.values():
        np.testing.assert_array_equal(device.to_host(way(a, b)), exact(a, b))


def test_the_same_bits_as_by_mma_sync():
    """wgmma cuts off as mma.sync does, 16 products at a time."""
    a, b = pair(6, 16, 24, 48)
    expected = device.to_host(tensor_cores.wide(a, b))
    np.testing.assert_array_equal(device.to_host(WAYS["specialised"](a, b)), expected)


@few_counters()
def faults(multiply, pairs):
    """All that is wrong with a product, worst first. The ladder has none; each in wrong_warpgroups.py has one."""
    for a, b in pairs:
        result, reports = watch(multiply, a, b)
        found = hazards(reports)
        if found:
            return found
        found = ["wrong result"] * (not is_right(result, a, b)) + ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return []


SOME = [pair(7, 8, 64, 64), pair(7, 64, 72, 64 * 5)]


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)
def test_the_ladder_has_no_fault(rung):
    assert faults(rung, SOME) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(right):
    assert faults(right, SOME) == []


# --------------------------------------------------------------------------------------------------------------- tiles


def test_every_tile_fits_a_block():
    for tile in (room.TILE, *room.TILES):
        assert room.shared_with_buffers(tile) + 2 * 8 * tile.stages + 1024 <= 227 * 1024
        assert tile.m % room.ROWS == tile.n % 64 == 0
        assert tile.n // 2 in (32, 64, 128)  # sums of a lane that wgmma can have
        threads = tile.teams * room.TEAM
        assert tile.m * room.DEPTH // 8 % threads == tile.n * room.DEPTH // 8 % threads == 0
        assert tile.stages >= 4  # one is multiplied, one is still read, and two are on their way


def test_the_choice_follows_the_shape():
    assert room.tile_for(4096, 4096, 132) == room.TILES[0]
    assert room.tile_for(2048, 2048, 132) == room.TILES[0]  # 128 tiles: one round
    assert room.tile_for(1408, 1408, 132) == room.TILES[1]
    assert room.tile_for(1, 1, 132) == room.TILES[-1]


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_what_a_product_costs():
    """64 x 64 x 192 of one warpgroup: three steps of four wgmmas, each an instruction of four warps."""
    a, b = pair(8, 64, 64, 192)
    for name in ("copied", "bulk", "specialised", "stored"):
        _, (report,) = observe(WAYS[name], a, b)
        assert report.counters["tensor_flops"] == 2 * 64 * 64 * 192
        assert report.counters["inst_tensor"] == 3 * 4 * 4
        assert report.counters["shared_load_requests"] == 0  # no operand goes through registers
        assert report.counters["global_load_sectors"] == (a.nbytes + b.nbytes) // 32
        maps = 0 if name in ("copied", "stored") else 2 * 16  # a thread stores their words one by one
        assert report.counters["global_store_sectors"] == 64 * 64 * 4 // 32 + maps


@interpreter_only
def test_a_copy_of_a_tile_is_one_instruction():
    a, b = pair(9, 64, 64, 192)
    requests = {}
    for name in ("copied", "bulk"):
        _, (report,) = observe(WAYS[name], a, b)
        requests[name] = report.counters["global_load_requests"]
    assert requests == {"copied": 3 * 2 * 64 * 8 // 32, "bulk": 3 * 2}


@interpreter_only
def test_a_box_is_stored_by_one_instruction():
    """64 x 64 sums: boxes of 16 rows and 32 columns. Their sums come into shared memory without a bank conflict."""
    a, b = pair(9, 64, 64, 64)
    requests = {}
    for name in ("specialised", "stored"):
        _, (report,) = observe(WAYS[name], a, b)
        requests[name] = report.counters["global_store_requests"], report.counters["shared_store_wavefronts"]
    by_threads, by_engine = 64 * 64 // 4 // 32, 4 * 2  # of 16 bytes a lane; of a box
    assert requests == {"specialised": (by_threads + 2 * 16, 0), "stored": (by_engine, 64 * 64 // 32)}


@interpreter_only
def test_who_meets_at_barriers():
    """By copies all warps meet in each step. With a warp for the copies they meet once, for the mbarriers."""
    a, b = pair(10, 64, 64, 64 * 5)
    barriers = {name: observe(WAYS[name], a, b)[1][0].counters["barriers"] for name in WAYS}
    assert barriers == {"copied": 5, "in flight": 5, "bulk": 6, "specialised": 1, "persistent": 1, "stored": 1}


# ------------------------------------------------------------------------------------------------------------ arguments


def test_bad_arguments_are_named():
    a, b = pair(11, 3, 5, 4)
    with pytest.raises(TypeError, match=r"a must .*float16.*float32"):
        room.persistent(a.astype(np.float32), b)
    with pytest.raises(ValueError, match=r"b must have shape \(4, any\), had \(3, 5\)"):
        room.bulk(a, b[:3])
    for dtype in known(("bfloat16",)):
        with pytest.raises(TypeError, match=r"b must .*float16.*bfloat16"):
            room.bulk(a, b.astype(np.float32).astype(dtype))


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_another_gpu_is_refused_by_name(monkeypatch, capability):
    monkeypatch.setattr(room.device, "limits", lambda: {"compute_capability": capability, "multiprocessors": 1})
    said = ".".join(map(str, capability))
    with pytest.raises(RuntimeError, match=rf"compute capability 9.0, this one has {said}"):
        room.persistent(*pair(12, 2, 3, 4))
