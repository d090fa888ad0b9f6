"""Attention on tensor cores: every tile and edge, counts of requests and bank conflicts, and the arguments."""

import re

import numpy as np
import pytest

from pmpp.kernels import attention as subject
from pmpp.kernels.attention import on_tensor_cores as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.attention.wrong_on_tensor_cores import RIGHT
from tests.kernels.attention.wrong_on_tensor_cores import RUNGS as WRONG
from tests.support import judge
from tests.support.compiled import compile_ptx
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F16 = np.float16
INPUTS = room.inputs()
SOME = ["rows of odd length", "grouped, causal", "a tile and one", "causal, more queries", "window, large scores"]


def arrays(queries, keys, size, heads=1, groups=1, seed=3, dtype=F16):
    rng = np.random.default_rng(seed)
    shapes = (1, heads, queries, size), (1, groups, keys, size), (1, groups, keys, size)
    return tuple(rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)


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


TILES = [room.Tile(64, 32, 2, 1, 3, 1), room.Tile(128, 32, 1, 2, 1, 1), room.Tile(64, 64, 1, 2, 2, 1)]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_kind_of_tile_at_its_edges(tile):
    """Several tiles of keys, of which the last is cut, more heads of queries, and blocks that reach beyond these."""
    given = *arrays(tile.queries + 3, 2 * tile.keys + 5, tile.columns - 8, 2), True, tile.keys + 7

    def run(*given):
        p = room.arguments(*given)
        room.by_tile(tile, p)
        return p.result

    assert right(result_of(run, *given), *given)


@each_rung
def test_equal_scores_give_the_mean(rung):
    """Of whole numbers, and of a power of two of them: a value that is lost, or counted twice, shows."""
    _, k, v = arrays(1, 64, 8)
    v = np.round(4 * v)
    result = device.to_host(rung(np.zeros((1, 1, 3, 8), F16), k, v))
    np.testing.assert_array_equal(result[0, 0], v[0, 0].mean(0, dtype=np.float64).astype(F16)[None].repeat(3, 0))


@each_rung
def test_a_query_that_sees_nothing_gets_zeros(rung):
    q, k, v = arrays(5, 2, 8)
    result = device.to_host(rung(q, k, v, True))
    assert not result[0, 0, :3].any()
    np.testing.assert_array_equal(result[0, 0, 3], v[0, 0, 0])  # it sees one key
    assert result[0, 0, 4].all()


def test_arrays_that_begin_anywhere():
    q, k, v = arrays(5, 9, 16)
    assert right(result_of(room.wide, misaligned(q, 1), misaligned(k, 3), v), q, k, v)
    out = device.to_device(np.zeros(5 * 16 + 1, F16))[1:].reshape(1, 1, 5, 16)
    assert room.wide(q, k, v, out=out) is out
    assert right(device.to_host(out), q, k, v)


@pytest.mark.parametrize("scale", [1.0, -0.5, 0.0])
def test_the_logarithms_of_the_sums(scale):
    q, k, v = arrays(3, 5, 8)
    p, logs = room.arguments(q, k, v, True, None, scale), device.empty(3, np.float32)
    room.by_tile(room.Tile(64, 32, 1, 1, 2, 1), p, logs)
    scores = np.where(np.tri(3, 5, 2, dtype=bool), scale * (q[0, 0].astype(float) @ k[0, 0].T.astype(float)), -np.inf)
    np.testing.assert_allclose(device.to_host(logs), np.log2(np.exp(scores).sum(1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
def test_the_plain_function(dtype):
    q, k, v = arrays(3, 4, 8, heads=2, dtype=dtype)
    result = device.to_host(subject.attention(q, k, v, causal=True, window=2, scale=0.5))
    assert right(result, q, k, v, True, 2, 0.5)


def test_the_plain_function_names_each_dtype():
    wide = np.ones((1, 1, 3, 8))
    with pytest.raises(TypeError, match=r"^q must be float32, float16 or bfloat16, was float64"):
        subject.attention(wide, wide, wide)


# ------------------------------------------------------------------------------------------------------------ bad input

Q, K = np.ones((2, 4, 3, 8), F16), np.ones((2, 2, 5, 8), F16)
BAD = {
    "float32": ((Q.astype(np.float32), K, K), {}, TypeError, "q must be float16 or bfloat16, was float32"),
    "another dtype": ((Q, K.astype(np.float32), K), {}, TypeError, "k must be float16, was float32"),
    "another size": ((Q, K[..., :4].copy(), K), {}, ValueError, "k must have shape"),
    "groups": ((Q, np.ones((2, 3, 5, 8), F16), K), {}, ValueError, "k must have a number of heads that divides the 4"),
    "no group": ((Q, K[:, :0], K[:, :0]), {}, ValueError, "k must have at least one head"),
    "large heads": ((np.ones((1, 1, 1, 129), F16), K, K), {}, ValueError, "q must have a size from 1 to 128"),
    "causal": ((Q, K, K), {"causal": 1}, TypeError, "causal must be True or False"),
    "window": ((Q, K, K), {"window": 0}, ValueError, "window must be at least 1, was 0"),
    "scale": ((Q, K, K), {"scale": np.inf}, ValueError, "scale must be a finite number"),
    "a large scale": ((Q, K, K), {"scale": 2.1e38}, ValueError, r"scale must be from -2e\+38 to 2e\+38, was 2.1e\+38"),
    "out": ((Q, K, K), {"out": device.empty((2, 4, 3, 7), F16)}, ValueError, r"out must have shape \(2, 4, 3, 8\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.wide(*given, **options)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_what_is_loaded_from_shared_memory():
    """128 queries, 64 keys of 64. A warp reads 16 operands for two scores each, and 16 for two sums each, by ldmatrix.

    With 16 queries a warp eight warps do that; with 32, four. A request of ldmatrix takes four wavefronts.
    """
    given = arrays(128, 64, 64)
    for rung, warps in ((room.registers, 8), (room.overlapped, 8), (room.wide, 4)):
        _, (report,) = observe(rung, *given)
        counters = report.counters
        assert counters["shared_load_requests"] == 32 * warps
        assert counters["shared_load_wavefronts"] == 4 * 32 * warps
        assert counters["shared_load_bank_conflicts"] == counters["shared_store_bank_conflicts"] == 0


@interpreter_only
def test_the_scores_never_leave_the_registers():
    """What is stored is the result, once."""
    given = arrays(64, 128, 64)
    for rung in room.LADDER:
        _, reports = observe(rung, *given)
        assert total(reports, "global_store_bytes") == given[0].nbytes


@interpreter_only
def test_tiles_that_nobody_sees_are_skipped():
    """66 queries are two blocks, and 66 keys two tiles. Of these, a causal mask leaves the first block one."""
    q, k, v = arrays(66, 66, 64)
    found = []
    for causal in (False, True):
        _, (report,) = observe(room.registers, q, k, v, causal)
        found.append(report.counters["shared_load_requests"])
    assert found == [4 * 4 * 32, 3 * 4 * 32]


@interpreter_only
@pytest.mark.parametrize("columns", [64, 128])
def test_everything_of_a_lane_stays_in_registers(columns):
    """No array in local memory, and an exponential is one instruction."""
    x, words, sizes = np.ones((9, 128), np.uint16), np.ones((9, 64), np.uint32), room.Sizes(1, 9, 9, 128, -9, 9)
    tile = room.Tile(columns, *(room.WIDE if columns == 64 else room.NARROW))
    given = x, x, x, words, np.ones(0, np.float32), np.float32(1), sizes
    ptx = compile_ptx(room.registers_kernel(tile, "float16"), *given, cc=room.CAPABILITY)
    assert ".local" not in ptx
    assert ".f64" not in ptx
    assert len(re.findall(r"mma\.sync", ptx)) == 2 * tile.fragments * tile.keys // 8 * tile.columns // 16
    assert len(re.findall(r"ex2\.approx\.ftz\.f32", ptx)) == 2 * tile.fragments * (tile.keys // 4 + 1)


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("causal", [False, True])
def test_torch_agrees(rung, causal):
    torch = pytest.importorskip("torch")
    q, k, v = arrays(200, 200, 64, heads=4, groups=4)
    tensors = (torch.from_numpy(x).cuda() for x in (q, k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal).cpu().numpy()
    ours = device.to_host(rung(q, k, v, causal))
    assert judge.right(ours, theirs.astype(np.float64), 2 * room.tolerance(q, k, v, causal), F16)
