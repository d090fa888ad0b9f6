"""Gradients of attention: against finite differences and float64, counts, arguments, and wrong ones."""

import numpy as np
import pytest

from pmpp.kernels import attention as subject
from pmpp.kernels.attention import attention_gradients as room
from pmpp.kernels.attention import ladder, on_tensor_cores
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.attention.gradients import allowed, arrays, ignore_the_first_use_of_cublas, watched, wrongs
from tests.kernels.attention.wrong_attention_gradients import RIGHT
from tests.kernels.attention.wrong_attention_gradients import RUNGS as WRONG
from tests.support.compiled import compile_ptx
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F16 = np.float16
INPUTS = room.inputs()
SOME = ["grouped, causal", "a tile and one"]


@few_counters()
def faults(function, names):
    """All that is wrong with gradients, worst first. The ladder has no fault; each wrong kernel has its own."""
    for given in (INPUTS[name] for name in names):
        results, reports = watched(function, given)
        found = hazards(reports) or ["wrong result"] * bool(wrongs(results, given))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return []


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("options", [(False, None, None), (True, None, 0.7), (True, 2, -0.5)], ids=str)
def test_the_reference_is_the_slope_of_the_definition(options):
    """Central differences of a loss, for every element: they are off by a part of the step's square."""
    gradient, *inputs = arrays(3, 4, 2, heads=2, dtype=np.float64)
    found = room.reference(gradient, *inputs, *options)
    step = 1e-5
    for which, by in enumerate(found):
        for at in np.ndindex(by.shape):
            losses = []
            for sign in (1, -1):
                moved = [x.copy() for x in inputs]
                moved[which][at] += sign * step
                losses.append((ladder.reference(*moved, *options) * gradient).sum())
            assert abs((losses[0] - losses[1]) / (2 * step) - by[at]) < 1e-8


@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_a_rung_has_no_fault(rung, name):
    assert faults(rung, [name]) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, SOME) == []


def test_several_tiles_heads_and_blocks_together():
    given = *arrays(130, 140, 72, heads=2, groups=1), True, 90
    results, reports = watched(room.overlapped, given)
    assert hazards(reports) == []
    assert wrongs(results, given) == []


def test_arrays_that_begin_anywhere():
    gradient, q, k, v = arrays(5, 9, 16)
    results = room.overlapped(misaligned(gradient, 1), q, misaligned(k, 3), v)
    assert wrongs(results, (gradient, q, k, v)) == []


@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
def test_the_plain_function_with_what_the_forward_pass_left(dtype):
    gradient, q, k, v = arrays(6, 9, 8, heads=2, dtype=dtype)
    out, logs = on_tensor_cores.forward(q, k, v, True)
    results = subject.attention_backward(gradient, q, k, v, True, result=out, logs=logs)
    assert wrongs(results, (gradient, q, k, v, True)) == []
    again = subject.attention_backward(gradient, q, k, v, True)
    for one, other in zip(results, again, strict=True):
        np.testing.assert_array_equal(device.to_host(one), device.to_host(other))


def test_what_the_forward_pass_leaves_where_there_is_nothing_to_see():
    _, q, k, v = arrays(3, 2, 8)
    assert device.to_host(on_tensor_cores.forward(q, k, v, True)[1])[0, 0, 0] == -np.inf
    out, logs = on_tensor_cores.forward(q, k[:, :, :0], v[:, :, :0])
    assert not device.to_host(out).any()
    assert (device.to_host(logs) == -np.inf).all()


# ------------------------------------------------------------------------------------------------------------ bad input

G, K = np.ones((2, 4, 3, 8), F16), np.ones((2, 2, 5, 8), F16)
LOGS = np.ones((2, 4, 3), np.float32)
BAD = {
    "another dtype": ((G.astype(np.float32), G, K, K), {}, TypeError, "gradient must be float16, was float32"),
    "another shape": ((G[:, :, :2].copy(), G, K, K), {}, ValueError, r"gradient must have shape \(2, 4, 3, 8\)"),
    "result alone": ((G, G, K, K), {"result": G}, ValueError, "logs must be given, as result is, was None"),
    "logs alone": ((G, G, K, K), {"logs": LOGS}, ValueError, "result must be given, as logs is, was None"),
    "other logs": ((G, G, K, K), {"result": G, "logs": LOGS[:1]}, ValueError, r"logs must have shape \(2, 4, 3\)"),
    "groups": ((G, G, np.ones((2, 3, 5, 8), F16), K), {}, ValueError, "k must have a number of heads that divides"),
    "causal": ((G, G, K, K), {"causal": 1}, TypeError, "causal must be True or False"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.overlapped(*given, **options)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_seven_products():
    """Of 64 x 64 x 64 multiply-adds each, beside the two of the forward pass."""
    given = arrays(64, 64, 64)
    _, reports = observe(lambda *given: room.overlapped(*given)[0], *given)
    tensor = total(reports, "tensor_flops")
    assert tensor == (7 + 2) * 2 * 64**3


@interpreter_only
@pytest.mark.parametrize("maker", [room.keys_kernel, room.queries_kernel], ids=lambda one: one.__name__)
def test_everything_of_a_lane_stays_in_registers(maker):
    x, words, line, sizes = np.ones((9, 64), np.uint16), np.ones((9, 32), np.uint32), np.ones(9, np.float32), None
    sizes = room.on_tensor_cores.Sizes(1, 9, 9, 64, -9, 9)
    outs = (words, words) if maker is room.keys_kernel else (words,)
    given = x, x, x, x, line, line, *outs, np.float32(1), np.float32(1), sizes
    ptx = compile_ptx(maker(room.Tile(64, 64, 1, 4, 2, 2), "float16"), *given, cc=room.CAPABILITY)
    assert ".local" not in ptx
    assert ".f64" not in ptx


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@ignore_the_first_use_of_cublas
@pytest.mark.parametrize("causal", [False, True])
def test_torch_agrees(causal):
    torch = pytest.importorskip("torch")
    gradient, q, k, v = arrays(100, 100, 64, heads=4, groups=4)
    tensors = [torch.from_numpy(x.astype(np.float64)).cuda().requires_grad_() for x in (q, k, v)]
    result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
    theirs = torch.autograd.grad(result, tensors, torch.from_numpy(gradient.astype(np.float64)).cuda())
    ours = room.overlapped(gradient, q, k, v, causal)
    for one, other, bound in zip(ours, theirs, allowed(gradient, q, k, v, causal), strict=True):
        assert (abs(device.to_host(one).astype(np.float64) - other.cpu().numpy()) <= bound).all()
