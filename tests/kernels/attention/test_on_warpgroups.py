"""Attention by warpgroups: every tile and edge, stages that are used again, counts, and the arguments."""

import re
from unittest import mock

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels import attention as subject
from pmpp.kernels.attention import on_warpgroups as room
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.attention.wrong_on_warpgroups import RIGHT
from tests.kernels.attention.wrong_on_warpgroups import RUNGS as WRONG
from tests.support import judge
from tests.support.compiled import compile_ptx
from tests.support.wrong import misaligned, name_of, observe, result_of, total

hopper_only = pytest.mark.skipif(
    device.limits()["compute_capability"] != room.CAPABILITY, reason="the room needs compute capability 9.0"
)
pytestmark = hopper_only
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F16 = np.float16
SOME = ["a tile and one", "causal window, a negative scale", "several tiles"]
CONSUMERS = (room.one_after_the_other, room.both_at_once)


def arrays(queries, keys, size, heads=1, groups=1, seed=3, dtype=F16):
    rng = np.random.default_rng(seed)
    shapes = (1, heads, queries, size), (1, groups, keys, size), (1, groups, keys, size)
    return tuple(rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)


INPUTS = room.inputs() | {"several tiles": tuple(3 * x for x in arrays(9, 130, 16))}


def right(result, *arguments):
    allowed = room.tolerance(*arguments)
    return judge.right(result, room.reference(*arguments), allowed, arguments[0].dtype)


def faults(function, names):
    """All that is wrong on the first of these inputs where anything is, worst first."""
    for given in (INPUTS[name] for name in names):
        found = judge.faults(function, given, lambda result, given=given: right(result, *given))
        if found:
            return found
    return []


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, SOME) == []


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("tile", [room.Tile(64, 64, 2, 2, 1), room.Tile(128, 64, 1, 1, 1)], ids=str)
def test_every_kind_of_tile_at_its_edges(tile, consumer):
    """Tiles of keys take turns in each stage, the last is cut, and blocks reach beyond the queries."""
    given = *arrays(tile.queries + 3, 3 * tile.keys + 5, tile.columns - 8), True, 3 * tile.keys

    def run(*given):
        p = room.arguments(*given)
        room.by_tile(tile, consumer, p)
        return p.result

    assert right(result_of(run, *given), *given)


@pytest.mark.parametrize("causal", [False, True])
def test_every_head_and_query_has_its_turn(causal):
    """Three blocks for 34 heads of two tiles, so that groups of heads, turns and the last turn are cut."""
    tile, sizes = room.Tile(64, 64, 1, 1, 1), room.on_tensor_cores.Sizes(1, 70, 70, 64, -70, 1 if causal else 70)
    total, work_of = 34 * 2, room.worker(tile)

    @cuda.jit
    def kernel(out, total, together, sizes):
        turn = np.int64(0)
        while turn * cuda.gridDim.x < total:
            head, query0, key0, end = work_of(turn, total, together, sizes)
            if end >= 0:
                cuda.atomic.add(out, (head, query0 // 64), 100 + end - key0)
            turn += 1

    out = device.to_device(np.zeros((34, 2), np.int64))
    kernel[3, 1](out, np.int64(total), np.int64(32), sizes)
    np.testing.assert_array_equal(device.to_host(out), np.tile([164 if causal else 170, 170], (34, 1)))


@pytest.mark.parametrize(
    ("heads", "length", "tile"), [(128, 2048, room.NARROW), (64, 4096, room.WIDE), (3, 9, room.WIDE)]
)
def test_blocks_get_about_equal_shares(heads, length, tile):
    """With a causal mask: the keys that each of 132 blocks goes through, counted by a block's own turns."""
    sizes, number = room.on_tensor_cores.Sizes(1, length, length, tile.columns, -length, 1), 132
    together = room.together(heads, sizes, tile, number)
    tiles = blocks(length, tile.queries)
    order = [
        blocks(min((tiles - place // count) * tile.queries, length), tile.keys)
        for first in range(0, heads, together)
        for count in [min(together, heads - first)]
        for place in range(count * tiles)
    ]
    shares = [0] * number
    for at, steps in enumerate(order):
        turn, place = divmod(at, number)
        shares[number - 1 - place if turn % 2 else place] += steps
    assert sum(shares) == heads * sum(blocks(min((i + 1) * tile.queries, length), tile.keys) for i in range(tiles))
    assert max(shares) <= 1.06 * max(sum(shares) / number, *order)


@each_rung
def test_equal_scores_give_the_mean(rung):
    """Of whole numbers, and of a power of two of them: a value that is lost, or counted twice, shows."""
    _, k, v = arrays(1, 256, 8)
    v = np.round(4 * v)
    result = device.to_host(rung(np.zeros((1, 1, 3, 8), F16), k, v))
    np.testing.assert_array_equal(result[0, 0], v[0, 0].mean(0, dtype=np.float64).astype(F16)[None].repeat(3, 0))


@each_rung
def test_a_query_that_sees_nothing_gets_zeros(rung):
    q, k, v = arrays(5, 2, 8)
    result = device.to_host(rung(q, k, v, True))
    assert not result[0, 0, :3].any()
    np.testing.assert_array_equal(result[0, 0, 3], v[0, 0, 0])  # it sees one key


def test_arrays_that_begin_anywhere():
    q, k, v = arrays(5, 9, 16)
    assert right(result_of(room.LADDER[-1], misaligned(q, 1), misaligned(k, 3), v), q, k, v)
    out = device.to_device(np.zeros(5 * 16 + 1, F16))[1:].reshape(1, 1, 5, 16)
    assert room.LADDER[-1](q, k, v, out=out) is out
    assert right(device.to_host(out), q, k, v)


@pytest.mark.parametrize("scale", [1.0, -0.5, 0.0])
def test_the_logarithms_of_the_sums(scale):
    q, k, v = arrays(3, 5, 8)
    _, logs = room.forward(q, k, v, True, None, scale)
    scores = np.where(np.tri(3, 5, 2, dtype=bool), scale * (q[0, 0].astype(float) @ k[0, 0].T.astype(float)), -np.inf)
    np.testing.assert_allclose(device.to_host(logs)[0, 0], np.log2(np.exp(scores).sum(1)), rtol=1e-4, atol=1e-5)


def test_what_the_forward_pass_leaves_where_there_is_nothing_to_see():
    q, k, v = arrays(3, 2, 8)
    assert device.to_host(room.forward(q, k, v, True)[1])[0, 0, 0] == -np.inf
    out, logs = room.forward(q, k[:, :, :0], v[:, :, :0])
    assert not device.to_host(out).any()
    assert (device.to_host(logs) == -np.inf).all()


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
def test_the_plain_function(dtype):
    q, k, v = arrays(3, 4, 8, heads=2, dtype=dtype)
    result = device.to_host(subject.attention(q, k, v, causal=True, window=2, scale=0.5))
    assert right(result, q, k, v, True, 2, 0.5)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_another_gpu_is_refused():
    q, k, v = arrays(3, 4, 8)
    for capability, said in (((8, 0), "8.0"), ((12, 0), "12.0")):
        limits = device.limits() | {"compute_capability": capability}
        with mock.patch.object(device, "limits", return_value=limits), pytest.raises(RuntimeError, match=said):
            room.overlapped(q, k, v)


def test_more_rows_than_the_engine_counts_are_refused():
    rows = mock.Mock(shape=(2, 2, 2**29, 8))
    with pytest.raises(ValueError, match="k must have at most 2147483136 rows in all its heads"):
        room.check_rows(mock.Mock(shape=(1, 1, 1, 8)), rows)


def test_bad_input():
    q, k, v = arrays(3, 4, 8)
    with pytest.raises(TypeError, match="k must be float16, was float32"):
        room.overlapped(q, k.astype(np.float32), v)
    with pytest.raises(ValueError, match="window must be at least 1, was 0"):
        room.overlapped(q, k, v, window=0)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_nothing_is_loaded_for_a_product():
    """What is multiplied lies in shared memory or in registers, and what is stored is the result, once."""
    given, queries = arrays(128, 128, 64), room.NARROW.queries
    for rung in room.LADDER:
        _, reports = observe(rung, *given)
        assert total(reports, "shared_load_requests") == 0
        assert total(reports, "global_store_bytes") == given[0].nbytes + 3 * 128  # and three tensor maps
        assert total(reports, "tensor_flops") == 4 * queries * 128 * 64


@interpreter_only
def test_tiles_that_nobody_sees_are_skipped():
    """Two blocks of queries, and two tiles of keys. Of these, a causal mask leaves the first block one."""

    def run(*given):
        p = room.arguments(*given)
        room.by_tile(room.Tile(64, 64, 1, 2, 1), room.both_at_once, p)
        return p.result

    given = arrays(66, 66, 64)
    found = [total(observe(run, *given, causal)[1], "tensor_flops") for causal in (False, True)]
    assert found == [4 * 4 * 64**3, 3 * 4 * 64**3]


@interpreter_only
@pytest.mark.parametrize("tile", [room.NARROW, room.WIDE], ids=str)
def test_everything_of_a_lane_stays_in_registers(tile):
    """No array in local memory, an exponential is one instruction, and all products are those that were written."""
    words, sizes = np.ones((9, tile.columns // 2), np.uint32), room.on_tensor_cores.Sizes(1, 9, 9, 64, -9, 9)
    place = (np.uint64(0),) * 16
    given = (
        place,
        place,
        place,
        np.ones(9, np.uint64),
        words,
        np.ones(0, np.float32),
        np.float32(1),
        np.int64(9),
        np.int64(1),
        sizes,
    )
    ptx = compile_ptx(room.warpgroups_kernel(tile, "float16", room.one_after_the_other), *given, cc=room.CAPABILITY)
    assert ".local" not in ptx
    assert ".f64" not in ptx
    made = re.findall(r"wgmma\.mma_async\S*m64n(\d+)k16", ptx)
    assert made == [str(tile.keys)] * (tile.columns // 16) + [str(tile.columns)] * (tile.keys // 16)
    assert len(re.findall(r"ex2\.approx\.ftz\.f32", ptx)) == tile.keys // 2 + 2


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_torch_agrees(rung, causal, size):
    torch = pytest.importorskip("torch")
    q, k, v = arrays(700, 700, size, heads=4, groups=4)
    tensors = (torch.from_numpy(x).cuda() for x in (q, k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal).cpu().numpy()
    ours = device.to_host(rung(q, k, v, causal))
    assert judge.right(ours, theirs.astype(np.float64), 2 * room.tolerance(q, k, v, causal), F16)
