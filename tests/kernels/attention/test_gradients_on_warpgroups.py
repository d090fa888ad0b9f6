"""Gradients of attention by warpgroups: against float64, tiles and edges, counts, and wrong ones."""

from unittest import mock

import numpy as np
import pytest

from pmpp.kernels import attention as subject
from pmpp.kernels.attention import gradients_on_warpgroups as room
from pmpp.kernels.attention import on_warpgroups
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.attention.gradients import allowed, arrays, ignore_the_first_use_of_cublas, watched, wrongs
from tests.kernels.attention.wrong_gradients_on_warpgroups import RIGHT
from tests.kernels.attention.wrong_gradients_on_warpgroups import RUNGS as WRONG
from tests.support.compiled import compile_ptx
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, total

pytestmark = pytest.mark.skipif(
    device.limits()["compute_capability"] != room.CAPABILITY, reason="the room needs compute capability 9.0"
)
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
# The kernels see the heads of all images one after another: one image with as many groups will do.
INPUTS = room.inputs() | {"grouped, causal": (*arrays(5, 11, 16, heads=4, groups=2), True)}
SOME = ["a tile and one", "a group, causal"]
GIVEN = INPUTS | {"a group, causal": (*arrays(5, 11, 16, heads=2, groups=1), True)}


@few_counters()
def faults(function, names):
    """All that is wrong with gradients, worst first. The ladder has no fault; each wrong kernel has its own."""
    for given in (GIVEN[name] for name in names):
        results, reports = watched(function, given)
        found = hazards(reports) or ["wrong result"] * bool(wrongs(results, given))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return []


# -------------------------------------------------------------------------------------------------------------- results


# Both rungs are one kernel with other tiles. The last one is tried on all inputs, the first one on some.
CASES = [
    (rung, name) for rung in room.LADDER for name in INPUTS if rung is room.LADDER[-1] or name in (SOME[0], "of 128")
]


@pytest.mark.parametrize(("rung", "name"), CASES, ids=[f"{rung.name}-{name}" for rung, name in CASES])
def test_a_rung_has_no_fault(rung, name):
    assert faults(rung, [name]) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, SOME) == []


@pytest.mark.parametrize("flying", [False, True])
def test_stages_take_turns_and_the_last_tiles_are_cut(flying):
    """Two heads of a group, each with three tiles for two stages, and blocks that reach beyond the keys."""
    given = *arrays(134, 70, 24, heads=2, groups=1), True, 120

    def run(*given):
        p = room.arguments(*given)
        tile = room.Tile(64, 64, 1, 2, 1, flying)
        room.by_tiles(tile, tile, p)
        return p.result

    results, reports = watched(run, given)
    assert hazards(reports) == []
    assert wrongs(results, given) == []


def test_arrays_that_begin_anywhere():
    gradient, q, k, v = arrays(5, 9, 16)
    results = room.LADDER[-1](misaligned(gradient, 1), q, misaligned(k, 3), v)
    assert wrongs(results, (gradient, q, k, v)) == []


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
def test_the_plain_function_with_what_the_forward_pass_left(dtype):
    gradient, q, k, v = arrays(6, 9, 8, heads=2, dtype=dtype)
    out, logs = on_warpgroups.forward(q, k, v, True)
    results = subject.attention_backward(gradient, q, k, v, True, result=out, logs=logs)
    assert wrongs(results, (gradient, q, k, v, True)) == []
    if dtype != np.float16:
        return
    again = subject.attention_backward(gradient, q, k, v, True, result=out, logs=logs)
    for one, other in zip(results, again, strict=True):
        np.testing.assert_array_equal(device.to_host(one), device.to_host(other))


# ------------------------------------------------------------------------------------------------------------ bad input


def test_another_gpu_is_refused():
    limits = device.limits() | {"compute_capability": (8, 0)}
    with mock.patch.object(device, "limits", return_value=limits), pytest.raises(RuntimeError, match=r"has 8\.0"):
        room.warpgroup(*arrays(3, 4, 8))


def test_bad_input():
    gradient, q, k, v = arrays(3, 4, 8)
    with pytest.raises(ValueError, match=r"gradient must have shape \(1, 1, 3, 8\)"):
        room.warpgroup(gradient[:, :, :2].copy(), q, k, v)
    with pytest.raises(ValueError, match="logs must be given, as result is, was None"):
        room.warpgroup(gradient, q, k, v, result=q)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_seven_products():
    """Of 128 x 128 x 64 multiply-adds each. From shared memory come only the two numbers of each query."""
    given = arrays(128, 128, 64)
    out, logs = on_warpgroups.forward(*given[1:])
    for rung in room.LADDER:
        _, reports = watched(lambda *given, rung=rung: rung(*given, result=out, logs=logs), given)
        assert total(reports, "tensor_flops") == 7 * 2 * 128 * 128 * 64
        # Eight warps have 16 keys each: for 8 queries a load of 16 bytes a lane, for the weights and for their slopes.
        assert total(reports, "shared_load_requests") == 8 * 2 * 128 // 8


@interpreter_only
@pytest.mark.parametrize("flying", [False, True])
@pytest.mark.parametrize("maker", [room.keys_kernel, room.queries_kernel], ids=lambda one: one.__name__)
def test_everything_of_a_lane_stays_in_registers(maker, flying):
    words, line, place = np.ones((9, 32), np.uint32), np.ones(9, np.float32), (np.uint64(0),) * 16
    sizes = on_warpgroups.on_tensor_cores.Sizes(1, 9, 9, 64, -9, 9)
    outs = (words, words) if maker is room.keys_kernel else (words,)
    given = place, place, place, place, np.ones(9, np.uint64), line, line, *outs, np.float32(1), np.float32(1), sizes
    ptx = compile_ptx(maker(room.Tile(64, 64, 2, 2, 1, flying), "float16"), *given, cc=room.CAPABILITY)
    assert ".local" not in ptx
    assert ".f64" not in ptx
    assert ptx.count("wgmma.mma_async") == 4 * (4 if maker is room.keys_kernel else 3)


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@ignore_the_first_use_of_cublas
@each_rung
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_torch_agrees(rung, causal, size):
    torch = pytest.importorskip("torch")
    gradient, q, k, v = arrays(500, 500, size, heads=4, groups=4)
    tensors = [torch.from_numpy(x.astype(np.float32)).cuda() for x in (q, k, v)]
    theirs = torch_gradients(torch, tensors, torch.from_numpy(gradient.astype(np.float32)).cuda(), causal)
    for one, other, bound in zip(
        rung(gradient, q, k, v, causal), theirs, allowed(gradient, q, k, v, causal), strict=True
    ):
        assert (abs(device.to_host(one).astype(np.float64) - other) <= 2 * bound).all()


def torch_gradients(torch, tensors, gradient, causal):
    with torch.enable_grad():
        tensors = [x.requires_grad_() for x in tensors]
        result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
        return [x.cpu().numpy().astype(np.float64) for x in torch.autograd.grad(result, tensors, gradient)]
