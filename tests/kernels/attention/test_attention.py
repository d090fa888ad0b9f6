"""Attention: masks of every kind, paths of every kind, arguments, and counters against counts by hand."""

import functools
import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import attention as subject
from pmpp.kernels.attention import ladder as room
from pmpp.kernels.attention import streams
from pmpp.runtime import device
from pmpp.runtime.views import strided
from tests.kernels.attention import results
from tests.kernels.attention.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.compiled import compile_ptx
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
# Those first that show most and take least.
SOME = ["grouped, causal", "window, large scores", "causal window, a negative scale", "odd"]
right = functools.partial(results.right, room)


def arrays(queries, keys, size, heads=1, groups=1, batch=1, seed=3):
    rng = np.random.default_rng(seed)
    shapes = (batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, size)
    return tuple(rng.standard_normal(shape, dtype=F32) for shape in shapes)


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert results.faults(room, wrong.function, SOME)[:1] == [wrong.reason]


# The inputs of the room have these one by one: lengths beyond a tile, shared keys, several texts, masks, and scales.
TOGETHER = {
    "keys beyond a tile": (*arrays(5, 65, 6, heads=6, groups=2), True, 40, 2.0),
    "queries beyond a tile": (*arrays(33, 4, 1, heads=3, groups=1, batch=2), False, 4, None),
    "equal scores, causal": (*arrays(31, 33, 4, heads=2, groups=2), True, None, 0.0),
}


@each_rung
@pytest.mark.parametrize("name", TOGETHER)
def test_lengths_heads_and_masks_together(rung, name):
    result = result_of(rung, *TOGETHER[name])
    assert right(result, *TOGETHER[name])


@pytest.mark.parametrize("rung", [room.skipping, room.streamed], ids=["skipping", "streamed"])
@pytest.mark.parametrize("size", [32, 36, 68, 100])
def test_arrays_that_begin_anywhere(rung, size):
    """They are read element by element, by the kernel for each tile; the columns of the first tile are all in use."""
    q, k, v = arrays(2, 3, size)
    result = result_of(rung, q, misaligned(k, 1), v)
    assert right(result, q, k, v)


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(5, 130, 64), (6, 70, 20), (3, 66, 32), (65, 130, 68), (3, 129, 128)], ids=str
)
def test_chunks_of_every_kind(queries, keys, size):
    """Whole and partial chunks of columns and of values, several tiles, and warps that share queries."""
    given = *arrays(queries, keys, size), True
    result = result_of(room.streamed, *given)
    assert right(result, *given)


@each_rung
def test_a_query_that_sees_nothing_gets_zeros(rung):
    q, k, v = arrays(5, 2, 4)
    result = device.to_host(rung(q, k, v, True))
    assert not result[0, 0, :3].any()
    np.testing.assert_array_equal(result[0, 0, 3], v[0, 0, 0])  # it sees one key
    assert result[0, 0, 4].all()


@each_rung
def test_scores_of_minus_infinity_have_no_weight(rung):
    """One of the first head's three, and all of the second head's."""
    q, k, v = arrays(2, 3, 4, heads=2, groups=2)
    q[..., 0] = np.abs(q[..., 0])
    k[0, 0, 0, 0] = k[0, 1, :, 0] = -np.inf
    result = device.to_host(rung(q, k, v))
    first = q[:, :1], k[:, :1, 1:], v[:, :1, 1:]
    assert judge.right(result[:, :1], room.reference(*first), room.tolerance(*first))
    assert not result[:, 1].any()


@each_rung
def test_equal_scores_give_the_mean(rung):
    """Of whole numbers that a sum holds exactly: a value that is lost, or counted twice, shows."""
    _, k, v = arrays(1, 64, 4)
    v = np.round(4 * v)
    q = np.zeros((1, 1, 3, 4), F32)
    np.testing.assert_array_equal(device.to_host(rung(q, k, v))[0, 0], v[0, 0].mean(0, dtype=F32)[None].repeat(3, 0))


def test_axes_of_one_element_with_the_stride_0():
    """As NumPy's ``x[None]`` has them. Numba reshapes no such array."""
    q, k, v = arrays(3, 5, 4)
    given = [x[0, 0][None, None] for x in (q, k, v)]
    assert all(x.strides[:2] == (0, 0) for x in given)
    out = strided(device.empty(q.size, F32), q.shape, (0, 0, 4, 1))
    assert room.skipping(*given, out=out) is out
    assert right(device.to_host(out), q, k, v)
    assert right(device.to_host(room.skipping(*(x[0][None] for x in (q, k, v)))), q, k, v)
    one = np.float32(3)[None, None, None, None]
    assert device.to_host(room.skipping(one, one, one)).tolist() == [[[[3]]]]


@each_rung
def test_out_and_stream(rung):
    results.check_out_and_stream(room, rung, *arrays(3, 3, 4))


@pytest.mark.parametrize("launch", [lambda p, logs: room.launch(p, True, logs), room.launch_stream], ids=["", "stream"])
def test_the_logarithms_of_the_sums(launch):
    q, k, v = arrays(3, 5, 4)
    p, logs = room.arguments(q, k, v, True), device.empty(3, F32)
    launch(p, logs)
    scores = np.where(np.tri(3, 5, 2, dtype=bool), q[0, 0].astype(float) @ k[0, 0].T / 2, -np.inf)
    np.testing.assert_allclose(device.to_host(logs), np.log2(np.exp(scores).sum(1)), rtol=1e-5)
    assert right(device.to_host(p.result), q, k, v, True)


def test_the_plain_function():
    q, k, v = arrays(3, 4, 5, heads=2)
    result = device.to_host(subject.attention(q, k, v, causal=True, window=2, scale=0.5))
    assert right(result, q, k, v, True, 2, 0.5)


def test_the_reference_by_hand():
    q, k = np.zeros((1, 1, 3, 2), F32), np.zeros((1, 1, 4, 2), F32)
    v = F32([1, 2, 4, 8]).reshape(1, 1, 4, 1).repeat(2, 3)
    seen = room.reference(q, k, v, True)[0, 0, :, 0]
    np.testing.assert_allclose(seen, [1.5, 7 / 3, 3.75])  # the means of 2, 3, and 4 keys
    assert room.reference(q, k, v, True, 2)[0, 0, :, 0].tolist() == [1.5, 3, 6]
    assert room.reference(q, k, v, False, 1)[0, 0, :, 0].tolist() == [2, 4, 8]
    q[..., 0], k[0, 0, 3, 0] = 1, np.log(9)
    np.testing.assert_allclose(room.reference(q, k, v, scale=1.0)[0, 0, 0], (1 + 2 + 4 + 72) / 12, rtol=1e-6)


@hypothesis.given(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.sampled_from([None, 1, 2, 5, 100]))
def test_pairs_and_limits(queries, keys, causal, window):
    """`limits` in one comparison, as the definition has it in three."""
    low, high = room.limits(queries, keys, causal, window)
    count = 0
    for i, j in np.ndindex(queries, keys):
        away = j - (i + keys - queries)
        seen = not (causal and away > 0) and (window is None or abs(away) < window)
        assert seen == (low <= j - i < high)
        count += seen
    assert count == room.seen_pairs(queries, keys, causal, window)


# ------------------------------------------------------------------------------------------------------------ bad input

Q, K = np.ones((2, 4, 3, 8), F32), np.ones((2, 2, 5, 8), F32)
BAD = {
    "three dimensions": ((Q[0], K, K), {}, ValueError, "q must have 4 dimensions"),
    "another dtype": ((Q, K.astype(np.float64), K), {}, TypeError, "k must be float32, was float64"),
    "another batch": ((Q, K[:1], K[:1]), {}, ValueError, "k must have shape"),
    "another size": ((Q, K[..., :4].copy(), K), {}, ValueError, "k must have shape"),
    "other values": ((Q, K, K[:, :, :3].copy()), {}, ValueError, r"v must have shape \(2, 2, 5, 8\)"),
    "groups": ((Q, np.ones((2, 3, 5, 8), F32), K), {}, ValueError, "k must have a number of heads that divides the 4"),
    "no group": ((Q, K[:, :0], K[:, :0]), {}, ValueError, "k must have at least one head"),
    "large heads": ((np.ones((1, 1, 1, 129), F32), K, K), {}, ValueError, "q must have a size from 1 to 128"),
    "causal": ((Q, K, K), {"causal": 1}, TypeError, "causal must be True or False"),
    "window": ((Q, K, K), {"window": 0}, ValueError, "window must be at least 1, was 0"),
    "half a window": ((Q, K, K), {"window": 1.5}, TypeError, "window must be an integer"),
    "scale": ((Q, K, K), {"scale": np.inf}, ValueError, "scale must be a finite number"),
    "a large scale": ((Q, K, K), {"scale": 2.1e38}, ValueError, r"scale must be from -2e\+38 to 2e\+38, was 2.1e\+38"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.skipping(*given, **options)


def test_a_bad_out():
    with pytest.raises(ValueError, match=r"out must have shape \(2, 4, 3, 8\)"):
        room.skipping(Q, K, K, out=device.empty((2, 4, 3, 7), F32))
    q = device.to_device(Q)
    with pytest.raises(ValueError, match="out must share no memory with q"):
        room.skipping(q, K, K, out=q)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_the_bytes_of_the_scores():
    """40 queries and 32 keys of 4: the product writes 1280 scores, and the second one reads their weights."""
    q, k, v = arrays(40, 32, 4)
    _, reports = observe(room.materialised, q, k, v)
    (weights,) = (report.counters for report in reports if report.kernel == "weights_kernel")
    assert total(reports, "global_store_bytes") == 4 * (
        32 * 4 + 40 * 32 + 40 * 32 + 40 * 4
    )  # k turned, scores, weights
    assert weights["global_load_bytes"] == 3 * 4 * 40 * 32  # for the maximum, the sum, and the weights
    for rung in (room.online, room.tiled):
        _, reports = observe(rung, q, k, v)
        assert total(reports, "global_store_bytes") == 4 * 40 * 4


@interpreter_only
def test_loads_of_keys_and_values():
    """64 queries, 64 keys of 4: 16 bytes a row. A query, 32 queries, or 64 queries share them."""
    q, k, v = arrays(64, 64, 4)
    for rung, sharing in ((room.online, 1), (room.tiled, 32), (room.register_tiled, 64)):
        _, reports = observe(rung, q, k, v)
        assert total(reports, "global_load_bytes") == 16 * (64 + 2 * 64 * 64 // sharing)


@interpreter_only
def test_a_load_from_shared_memory_for_16_multiply_adds():
    """For four of 64 columns 8 rows of queries and 8 of keys; for four keys 8 rows of weights and 2 x 4 of values."""
    q, k, v = arrays(64, 64, 64)
    _, (report,) = observe(room.register_tiled, q, k, v)
    warps, steps = 2, 64 // 4
    assert report.counters["shared_load_requests"] == warps * (16 * steps + 16 * steps)


@interpreter_only
@pytest.mark.parametrize("tile", room.STREAMS[1:], ids=lambda tile: str(tile.columns))
def test_loads_from_shared_memory_of_a_tile(tile):
    """Of 128 bits: 8 rows of queries and the keys for four columns; for a key 8 weights and the values.

    The first of each chunk are loaded once more: behind the last step, where nobody uses them. Each element of the
    queries is loaded to be scaled. Warps that share queries tell each other their maxima.
    """
    q, k, v = arrays(tile.queries, tile.keys, tile.columns)
    _, (report,) = observe(room.streamed, q, k, v)
    warps, own_keys, own_columns = tile.threads // 32, tile.keys // tile.warps_x // 8, tile.columns // tile.warps_x // 8
    scores = (8 + own_keys) * tile.columns // 4 + (1 + own_keys) * tile.columns // tile.depth
    sums = (2 + own_columns // 4) * (tile.keys + tile.keys // tile.chunk)
    told = 2 * 8 if tile.warps_x > 1 else 0  # maxima, and sums in the end: a number for each of 8 rows
    scaled = tile.queries * tile.columns // (4 * 32)
    assert report.counters["shared_load_requests"] == warps * (scores + sums + told) + scaled


@interpreter_only
def test_bases_are_raised_only_for_a_score_that_is_far_above():
    """The second tile of keys has scores that are larger by so many powers of 2. Raised bases cost 3 x 8 shuffles."""
    q, k, v = arrays(1, 128, 4)
    shuffles = []
    for larger in (3, 5, 20000):
        q[:], k[:] = (1, 0, 0, 0), 0
        k[..., 64:, 0] = larger * np.log(2)
        given = q, k, v, False, None, 1.0
        result, (report,) = observe(room.streamed, *given)
        assert right(result, *given)
        shuffles.append(report.counters["inst_shuffle"])
    assert shuffles == [shuffles[0], shuffles[0] + 24, shuffles[0] + 24]


@interpreter_only
def test_tiles_that_nobody_sees_are_skipped():
    """66 queries are two blocks, and 66 keys two tiles. The second block's queries are the last two."""
    q, k, v = arrays(66, 66, 4)
    tile = 16 * (64 + 64)  # keys and values, with 64 rows each: beyond the end the last is read again
    end = 16 * (64 + 32)  # of the last tile the second half of the values is not needed
    for rung, mask, tiles in (
        (room.register_tiled, (True,), 2 * tile + 2 * end),
        (room.skipping, (True,), 2 * tile + end),
        (room.skipping, (True, 1), tile + end),
    ):
        _, (report,) = observe(rung, q, k, v, *mask)
        assert report.counters["global_load_bytes"] - 16 * 2 * 64 == tiles


# ---------------------------------------------------------------------------------------------------- what is compiled


@pytest.mark.parametrize("tile", room.TILES, ids=lambda tile: str(tile.columns))
def test_a_tile_fits(tile):
    """In shared memory, and no sum or score is an array in local memory."""
    assert tile.shared_bytes <= 48 * 1024
    assert tile.columns % tile.depth == tile.keys % tile.chunk == 0
    assert tile.keys // tile.chunk <= 2


@pytest.mark.parametrize("tile", room.STREAMS, ids=lambda tile: str(tile.columns))
def test_a_streamed_tile_fits(tile):
    """In shared memory, and every thread has as much to copy as any other, of rows that others copy, too."""
    assert tile.shared_bytes <= 227 * 1024
    for rows, width in ((tile.queries, tile.columns), (tile.keys, tile.depth), (tile.chunk, tile.columns)):
        assert tile.threads % (width // 4) == rows % (tile.threads // (width // 4)) == 0
    assert tile.columns % tile.depth == tile.keys % tile.chunk == tile.depth % 8 == tile.chunk % 8 == 0


@pytest.mark.parametrize(("kib", "size", "streamed"), [(228, 128, 1), (100, 128, 0), (100, 64, 1), (64, 8, 0)])
def test_where_a_stream_has_no_room_the_rung_before_does_the_work(monkeypatch, kib, size, streamed):
    """GPUs of compute capability 8.6, 8.9 and 12.0 have asynchronous copies, and 100 KiB a multiprocessor."""
    small, found = device.limits() | {"max_shared_memory_per_multiprocessor": 1024 * kib}, []
    made = room.stream_kernel
    monkeypatch.setattr(device, "limits", lambda: small)
    monkeypatch.setattr(room, "stream_kernel", lambda *given: found.append(given) or made(*given))
    x = np.ones((1, 1, 1, size), F32)
    np.testing.assert_allclose(device.to_host(room.streamed(x, x, x)), x)
    assert len(found) == streamed


@interpreter_only
def test_what_is_streamed_stays_in_registers():
    x, sizes, tile = np.ones((1, 9, 128), F32), room.Sizes(1, 9, 9, 128, -9, 9), room.STREAMS[-1]
    given = x, x, x, x, np.ones(0, F32), F32(1), sizes
    ptx = compile_ptx(room.stream_kernel(tile, True, True), *given, cc=streams.CAPABILITY)
    assert ".local." not in ptx
    assert ".f64" not in ptx
    assert ptx.count("cp.async.cg") > 0
    own_keys, own_columns = tile.keys // tile.warps_x // 8, tile.columns // tile.warps_x // 8
    assert ptx.count("ld.shared.v4.f32") >= 2 * (8 + own_keys) + 8 * (2 + own_columns // 4)


@interpreter_only
def test_sums_and_scores_stay_in_registers():
    x, sizes = np.ones((1, 9, 128), F32), room.Sizes(1, 9, 9, 128, -9, 9)
    kernel = room.kernel_for(room.TILES[-1], True)
    ptx = compile_ptx(kernel, x, x, x, x, np.ones(0, F32), F32(1), sizes, True)
    assert ".local." not in ptx
    assert ".f64" not in ptx
    assert len(re.findall(r"ld\.shared\.v4\.f32", ptx)) == 4 + 8 + 2 * (8 + 4 * 4)


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    q, k, v, causal, window, scale = INPUTS[name]
    if not k.size or not q.size or name in ("non-finite", "scores of -inf"):
        pytest.skip("PyTorch's kernels differ there")
    low, high = room.limits(q.shape[2], k.shape[2], causal, window)
    away = np.arange(k.shape[2])[None] - np.arange(q.shape[2])[:, None]
    seen = (away >= low) & (away < high)
    wide = (torch.from_numpy(x).double().cuda() for x in (q, k, v))
    options = {"attn_mask": torch.from_numpy(seen).cuda(), "scale": scale, "enable_gqa": True}
    theirs = torch.nn.functional.scaled_dot_product_attention(*wide, **options).cpu().numpy()
    theirs[..., ~seen.any(1), :] = 0
    ours = device.to_host(rung(*(torch.from_numpy(x).cuda() for x in (q, k, v)), causal, window, scale))
    assert judge.right(ours, theirs, room.tolerance(q, k, v, causal, window, scale))
