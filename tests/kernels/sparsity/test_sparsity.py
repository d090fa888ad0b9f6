"""Products with 2:4 sparsity: the format, pruning, every tile and edge, counts by hand, and the arguments."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import sparsity as subject
from pmpp.kernels.sparsity import compressed
from pmpp.kernels.sparsity import ladder as room
from pmpp.runtime import device
from tests.kernels.sparsity.wrong import RIGHT
from tests.kernels.sparsity.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, observe, result_of, total, watch

INPUTS = room.inputs()
F16 = np.float16
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)


def problem(seed, m, n, k):
    rng = np.random.default_rng(seed)
    w, x = rng.standard_normal((m, k)).astype(F16), rng.standard_normal((k, n)).astype(F16)
    return *room.pruned_on_host(w), x


def is_right(result, values, metadata, x):
    exact = dense(values, metadata, x.shape[0]) @ x.astype(np.float64)
    return judge.right(result, exact, room.tolerance(values, metadata, x))


def dense(values, metadata, k):
    """The matrix with its zeros, in float64."""
    w = np.zeros((len(values), 2 * values.shape[1]))
    np.put_along_axis(w, compressed.places(metadata, len(values)), values.astype(np.float64), axis=1)
    return w[:, :k]


# ----------------------------------------------------------------------------------------------------------- the format


def pruned_slowly(w):
    """Four by four: the two that are the largest, in their order."""
    out = np.zeros(w.shape, w.dtype)
    for row, first in np.ndindex(len(w), -(-w.shape[1] // 4)):
        four = w[row, 4 * first : 4 * first + 4]
        size = np.where(np.isnan(four), np.inf, np.abs(four.astype(np.float64)) + np.isnan(four))
        size = np.where(np.isinf(four), 1e300, size)
        for place in np.argsort(-size, kind="stable")[:2]:
            out[row, 4 * first + place] = four[place]
    return out


@hypothesis.given(m=st.integers(0, 70), k=st.integers(0, 150), kind=st.sampled_from("nwzs"), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=25)
def test_prune_keeps_the_two_largest_of_each_four(m, k, kind, seed):
    """Normal numbers; small whole ones with many that are equal; mostly zeros; and some that are not finite."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((m, k)).astype(F16)
    if kind == "w":
        w = rng.integers(-2, 3, (m, k)).astype(F16)
    elif kind == "z":
        w[rng.random((m, k)) < 0.7] = 0
    elif kind == "s":
        w[rng.random((m, k)) < 0.1], w[rng.random((m, k)) < 0.05] = np.inf, np.nan
    values, metadata = map(device.to_host, subject.prune(w))
    compressed.check_metadata(metadata)
    for one, other in zip((values, metadata), room.pruned_on_host(w), strict=True):
        np.testing.assert_array_equal(one, other)
    found = device.to_host(subject.decompress(values, metadata, k))
    np.testing.assert_array_equal(found, pruned_slowly(w))
    np.testing.assert_array_equal(found, dense(values, metadata, k).astype(F16))


def test_metadata_by_hand():
    """Row 9 is in the upper half of the words of lanes 4 and 5, and columns 16 to 31 are those of lane 5."""
    w = np.zeros((10, 32), F16)
    w[9, [21, 23]] = 5, -7  # places 1 and 3 of the second four of lane 5
    values, metadata = map(device.to_host, subject.prune(w))
    assert hex(metadata[0, 0, 5]) == "0x44d44444"
    assert values[9, 10:12].tolist() == [5, -7]
    assert np.unique(metadata[:, 1:]).tolist() == [0x44444444]


@interpreter_only
def test_prune_and_decompress_touch_nothing_beyond_their_arrays():
    for m, k in ((1, 1), (33, 130), (300, 12)):
        w = np.random.default_rng(m).standard_normal((m, k)).astype(F16)
        with simt.record("check", collect=True) as reports:
            values, metadata = subject.prune(w)
            subject.decompress(values, metadata, k)
        assert hazards(reports) == []


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", [name for name in INPUTS if "not finite" not in name])
def test_the_reference_is_numpys_matmul_of_the_matrix_with_its_zeros(name):
    values, metadata, x = INPUTS[name]
    exact = dense(values, metadata, x.shape[0]) @ x.astype(np.float64)
    np.testing.assert_allclose(room.reference(values, metadata, x), exact, rtol=1e-12, atol=1e-12)


def test_what_is_not_stored_takes_no_part():
    values, metadata, x = INPUTS["not finite where nothing is stored"]
    assert not np.isfinite(x).all()
    assert np.isfinite(room.reference(values, metadata, x)).all()


TILES = [*room.TILES, room.Tile(128, 256, 64, 2)]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_run_ahead_to_every_edge(tile):
    for number, (m, n, k) in enumerate(((tile.m + 5, 8, 4 * tile.depth - 8), (3, tile.n + 8, 1), (tile.m, 8, 100))):
        arguments = problem(number, m, n, k)

        def run(*arguments, tile=tile):
            p = room.arguments(*arguments)
            room.by_overlap(tile, 2, p)
            return p.result

        assert is_right(result_of(run, *arguments), *arguments)


@pytest.mark.parametrize(("m", "n", "k", "most_blocks"), [(70, 136, 300, 1), (300, 8, 8, 2)])
def test_an_engine_feeds_tile_after_tile(m, n, k, most_blocks):
    """Also a block that has several tiles, and fewer steps than stages."""
    arguments = problem(6, m, n, k)

    def run(*arguments):
        p = room.arguments(*arguments)
        room.by_engine(room.FED._replace(n=64, stages=2), most_blocks, 2, p)
        return p.result

    if device.limits()["compute_capability"] == room.ENGINE:
        assert is_right(result_of(run, *arguments), *arguments)


@pytest.mark.parametrize("tile", room.WARPGROUP_TILES, ids=str)
@pytest.mark.parametrize(("m", "n", "steps", "most_blocks"), [(142, 136, 2, 1), (70, 8, 1, 2), (1, 8, 0, 1)])
def test_warpgroups_multiply_tile_after_tile(tile, m, n, steps, most_blocks):
    """Rows and columns beyond the edges, a block that has several tiles, fewer steps than stages, and one more (0)."""
    arguments = problem(13, m, n, (steps or tile.stages + 1) * tile.depth - 84)

    def run(*arguments):
        p = room.arguments(*arguments)
        room.by_warpgroups(tile, most_blocks, 2, p)
        return p.result

    if device.limits()["compute_capability"] == room.ENGINE:
        assert is_right(result_of(run, *arguments), *arguments)


def test_warpgroups_are_chosen_on_hopper(monkeypatch):
    arguments, chosen = problem(14, 8, 16, 24), []
    monkeypatch.setattr(room, "by_warpgroups", lambda *given: chosen.append("warpgroups"))
    monkeypatch.setattr(room, "by_overlap", lambda *given: chosen.append("overlapped"))
    for capability in ((9, 0), (8, 6), (10, 0)):
        limits = {**device.limits(), "compute_capability": capability}
        monkeypatch.setattr(device, "limits", lambda limits=limits: limits)
        room.warpgroups(*arguments)
    assert chosen == ["warpgroups", "overlapped", "overlapped"]


@each_rung
def test_rows_and_arrays_that_begin_anywhere(rung):
    values, metadata, x = problem(2, 21, 19, 35)
    assert is_right(result_of(rung, values, metadata, x), values, metadata, x)
    values, metadata, x = problem(3, 20, 24, 40)
    moved = misaligned(values, 1), misaligned(metadata, 1), misaligned(x, 3)
    assert is_right(result_of(rung, *moved), values, metadata, x)
    out = device.to_device(np.zeros(20 * 24 + 1, np.float32))[1:].reshape(20, 24)
    assert rung(values, metadata, x, out=out) is out
    assert is_right(device.to_host(out), values, metadata, x)


@each_rung
def test_whole_numbers_are_multiplied_without_an_error(rung):
    rng = np.random.default_rng(4)
    w, x = (rng.integers(-9, 10, shape).astype(F16) for shape in ((70, 100), (100, 36)))
    np.testing.assert_array_equal(device.to_host(rung(*room.pruned_on_host(w), x)), pruned_slowly(w).astype(float) @ x)


def test_the_same_call_gives_the_same_bits():
    arguments = problem(5, 40, 48, 200)
    first, second = (device.to_host(room.overlapped(*arguments)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("n", [0, 1, subject.FEW, subject.FEW + 1])
def test_the_plain_function_takes_what_prune_gives(n):
    w, x = (np.random.default_rng(7).standard_normal(shape).astype(F16) for shape in ((40, 64), (64, n)))
    found = device.to_host(subject.multiply(*subject.prune(w), x))
    assert judge.right(found, pruned_slowly(w).astype(float) @ x, room.tolerance(*room.pruned_on_host(w), x))


@few_counters()
def faults(multiply, names):
    """All that is wrong with a product, worst first. Each in wrong.py has one.

    The ladder has none on any input of the room: tests/contract/test_rooms.py checks it.
    """
    for name in names:
        result, reports = watch(multiply, *INPUTS[name])
        found = hazards(reports)
        if found:
            return found
        found = ["wrong result"] * (not is_right(result, *INPUTS[name]))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return []


SOME = ["words of metadata", "a fragment", "steps"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(right):
    assert faults(right, SOME) == []


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_the_tensor_cores_make_half_of_the_products():
    """128 x 128 x 128: as a dense product, 2 x 128 x 128 x 128."""
    arguments = problem(8, 128, 128, 128)
    for rung in room.LADDER[1:4]:
        _, reports = observe(rung, *arguments)
        assert total(reports, "tensor_flops") == 128**3 == room.cost(128, 128, 128).flops
    _, (report,) = observe(room.gathered, *arguments)
    assert report.counters["flops"] == 128**3


@interpreter_only
def test_warpgroups_load_nothing_but_metadata():
    """A tile, 256 x 128 x 128: each of 16 warps loads 2 words a lane, twice. The engine brings a box of w, two of x."""
    arguments = problem(15, 256, 128, 128)

    def run(*arguments):
        p = room.arguments(*arguments)
        room.by_warpgroups(room.WARPGROUP_TILES[0], 1, 1, p)
        return p.result

    _, (report,) = observe(run, *arguments)
    assert report.counters["tensor_flops"] == 256 * 128 * 128
    assert report.counters["global_load_requests"] == 16 * 2 * 2 + 3  # those of the engine are boxes
    assert report.counters["shared_load_requests"] == 0
    assert report.counters["shared_store_bank_conflicts"] == 0


@interpreter_only
def test_each_weight_is_loaded_once_for_few_columns():
    """32 x 1024, and 8 columns: 32 steps, with 8 requests of 16 bytes in 8 rows for w, 1 for metadata, and 4 for x."""
    arguments = problem(12, 32, 8, 1024)
    _, (_, report) = observe(room.shared_k, *arguments)
    values, metadata, x = (array.nbytes // 32 for array in arguments)
    assert report.counters["global_load_requests"] == 1024 // 32 * (8 + 1 + 4)
    assert report.counters["unique_load_sectors"] == values + metadata // 8 + x  # there is metadata for 256 rows


@interpreter_only
def test_what_is_loaded_from_shared_memory():
    """128 x 128 x 128: 4 warps, 4 steps of 32 k, and in each 4 fragments of w and 8 of x, of four wavefronts each."""
    arguments = problem(9, 128, 128, 128)
    _, (report,) = observe(room.tiled, *arguments)
    assert report.counters["shared_load_requests"] == 4 * 4 * (4 + 8)
    assert report.counters["shared_load_wavefronts"] == 4 * 4 * (4 + 8) * 4
    assert report.counters["shared_load_bank_conflicts"] == 0
    assert report.counters["shared_store_bank_conflicts"] == 0


@interpreter_only
def test_metadata_comes_from_shared_memory_without_conflicts():
    """256 x 128 x 128, a tile: 8 warps, 4 steps, and 2 words a lane besides the 12 fragments."""
    arguments = problem(10, 256, 128, 128)

    def run(*arguments):
        p = room.arguments(*arguments)
        room.by_overlap(room.TILES[0], 1, p)
        return p.result

    _, (report,) = observe(run, *arguments)
    # The first fragments of a stage that does not come are read, too: 4 of w, 4 of x, and 2 words.
    assert report.counters["shared_load_requests"] == 8 * (4 * (4 + 8 + 2) + 4 + 4 + 2)
    assert report.counters["shared_load_bank_conflicts"] == 0


# ------------------------------------------------------------------------------------------------------------ bad input

V, E, X = *room.pruned_on_host(np.ones((2, 4), F16)), np.ones((4, 3), F16)
BAD = {
    "values of float32": ((V.astype("f4"), E, X), TypeError, "values must be float16, was float32"),
    "values of another width": ((V[:, :32].copy(), E, X), ValueError, r"values must have 64 columns for K = 4, had"),
    "metadata of int32": ((V, E.astype(np.int32), X), TypeError, "metadata must be uint32, was int32"),
    "metadata of fewer rows": ((V, E[:1].copy(), X), ValueError, r"metadata must have shape \(8, 4, 32\), had"),
    "metadata out of order": ((V, E ^ np.uint32(4), X), ValueError, r"two of four places in their order, was 0b0000"),
    "x of float32": ((V, E, X.astype("f4")), TypeError, "x must be float16, was float32"),
    "x with more rows": ((V, E, np.ones((200, 3), F16)), ValueError, "values must have 128 columns for K = 200"),
    "x in columns": ((V, E, X.T.copy().T), ValueError, "x must be contiguous in C order"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        subject.multiply(*arguments)


def test_bad_input_of_prune_and_decompress():
    with pytest.raises(TypeError, match="w must be float16, was float32"):
        subject.prune(np.ones((2, 4), np.float32))
    with pytest.raises(ValueError, match="w must have 2 dimensions, had 1"):
        subject.prune(np.ones(4, F16))
    with pytest.raises(ValueError, match="k must be from 0 to"):
        subject.decompress(V, E, -1)
    with pytest.raises(ValueError, match=r"k must be from 1 to 128 for values of shape \(\d+, 64\), was 130"):
        subject.decompress(V, E, 130)


def test_an_older_gpu_is_refused(monkeypatch):
    limits = device.limits()
    monkeypatch.setattr(device, "limits", lambda: {**limits, "compute_capability": (7, 5)})
    with pytest.raises(RuntimeError, match=r"compute capability 8\.0 or higher, this one has 7\.5"):
        subject.multiply(V, E, X)


@each_rung
def test_out_and_stream(rung):
    arguments, stream = problem(11, 20, 16, 40), cuda.stream()
    out = device.to_device(np.full((20, 16), np.nan, np.float32))
    assert rung(*map(device.to_device, arguments), out=out, stream=stream) is out
    stream.synchronize()
    assert is_right(device.to_host(out), *arguments)


def test_every_tile_fits_a_multiprocessor():
    for tile in (*room.TILES, room.FED):
        assert tile.shared + room.RESERVED <= (100 if tile is room.TILES[-1] else 228) * 1024
        assert tile.threads <= 1024
        assert tile.m % compressed.SIDE == tile.n % (2 * room.PANEL_N) == compressed.PADDED % tile.depth == 0
        assert compressed.PADDED_ROWS % tile.m == 0
    for tile in room.WARPGROUP_TILES:
        assert room.warpgroups_shared(tile) + room.RESERVED <= 228 * 1024
        assert compressed.PADDED_ROWS % tile.m == compressed.PADDED % tile.depth == 0
    assert room.tile_for(4096, 4096, 132, 228 * 1024) == room.TILES[0]
    assert room.tile_for(1024, 1024, 132, 228 * 1024) == room.TILES[-1]
    assert room.tile_for(1, 1, 132, 48 * 1024) == room.TILES[-1]
    assert room.is_for_engine(8192, 8192, 8192, 132)
    assert not room.is_for_engine(4096, 4096, 2**31, 132)
