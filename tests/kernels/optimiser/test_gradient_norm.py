"""The norm of gradients and other statistics: lists of tensors, clipping on the device, what is not finite, traffic."""

import numpy as np
import pytest

from pmpp.kernels import optimiser
from pmpp.kernels.optimiser import gradient_norm as room
from pmpp.runtime import device
from tests.kernels.optimiser.networks import F32, SHAPES, drawn, on_device, on_host
from tests.kernels.optimiser.wrong_gradient_norm import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def right(result, *gradients):
    return judge.right(result, room.reference(*gradients), room.tolerance(*gradients))


def faults(statistics):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        found = judge.faults(statistics, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_list_of_tensors(rung):
    (g,) = drawn(1, 1)
    g[2][3, 4], g[0][0, 0, 0, 0] = np.nan, np.inf
    result = rung(on_device(g))
    assert result.shape == (len(SHAPES) + 1, 4)
    assert right(result.copy_to_host(), *g)


def test_the_reference_by_hand():
    result = room.reference(F32([3, -4]), np.zeros((0, 2), F32), F32([[12]]))
    np.testing.assert_array_equal(result, [[5, -0.5, 4, 0], [0, 0, 0, 0], [12, 12, 12, 0], [13, 11 / 3, 12, 0]])


def test_more_tensors_than_threads():
    g = [F32([k % 7 - 3]) for k in range(room.BLOCK + 10)]
    assert right(room.vectorised(g).copy_to_host(), *g)


@each_rung
def test_the_same_bits_twice(rung):
    g = on_device(drawn(1, 2)[0])
    assert rung(g).copy_to_host().tobytes() == rung(g).copy_to_host().tobytes()


@interpreter_only
def test_traffic():
    """16,384 elements are 2,048 sectors. Reading them is nearly all that there is to do."""
    g = device.to_device(np.ones(16384, F32))
    for rung in room.LADDER:
        _, reports = watch(rung, g)
        read = total(reports, "global_load_sectors")
        assert 2048 < read < 2048 + 200, rung
        assert total(reports, "flops_f64") == 0
        assert len(reports) == (2 if rung is room.a_block_a_tensor else 3)


# ------------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("most", [0.0, 0.5, 20.0, 1e6])
def test_clipping(most):
    (g,) = drawn(1, 3)
    norm = np.sqrt(sum(np.sum(one.astype(np.float64) ** 2) for one in g))
    given = on_device(g)
    found = optimiser.clip_norm_(given, most)
    assert found.shape == (1,)
    np.testing.assert_allclose(found.copy_to_host(), norm, rtol=1e-6)
    factor = min(1.0, most / (norm + 1e-6))
    for one, clipped in zip(g, on_host(given), strict=True):
        np.testing.assert_allclose(clipped, one * factor, rtol=3e-6)
        if factor == 1:
            np.testing.assert_array_equal(clipped, one)


@interpreter_only
def test_what_is_short_enough_is_not_moved():
    g = [device.to_device(np.ones(4096, F32))]
    _, reports = watch(optimiser.clip_norm_, g, 1000.0)
    assert reports[-1].kernel == "clip_kernel"
    assert reports[-1].counters["global_store_requests"] == 0
    assert reports[-1].counters["global_load_sectors"] == 4096 // 1024 * 8, "a warp of each block reads the norm"


def test_clipping_what_is_not_finite():
    for value, expected in ((np.nan, [np.nan, np.nan]), (np.inf, [np.nan, 0])):
        g = device.to_device(F32([value, 1]))
        found = optimiser.clip_norm_(g, 1.0)
        np.testing.assert_array_equal(found.copy_to_host(), [value])
        np.testing.assert_array_equal(g.copy_to_host(), expected)


def test_clipping_nothing():
    g = device.to_device(np.zeros((0, 3), F32))
    assert optimiser.clip_norm_([g, g], 1.0).copy_to_host().tolist() == [0]


G = np.ones(3, F32)
BAD = {
    "a dtype": ((G.astype(int),), TypeError, "gradients must be float32, was int64"),
    "nothing": (([],), ValueError, r"gradients must be an array or a list with one or more, was \[\]"),
    "one of a list": (([G, G[::2]],), ValueError, r"gradients\[1\] must be contiguous"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_bad_input_in_place():
    with pytest.raises(TypeError, match="gradients must be a device array, was a NumPy array"):
        optimiser.clip_norm_(G, 1.0)
    with pytest.raises(ValueError, match="max_norm must not be negative, was -1"):
        optimiser.clip_norm_(device.to_device(G), -1)


def test_pytorch_clips_the_same():
    torch = pytest.importorskip("torch")
    (g,) = drawn(1, 4)
    weights = [torch.nn.Parameter(torch.zeros(one.shape)) for one in g]
    for weight, one in zip(weights, g, strict=True):
        weight.grad = torch.from_numpy(one.copy())
    theirs = torch.nn.utils.clip_grad_norm_(weights, 0.7)
    ours = on_device(g)
    np.testing.assert_allclose(optimiser.clip_norm_(ours, 0.7).copy_to_host()[0], theirs.item(), rtol=1e-6)
    for weight, one in zip(weights, on_host(ours), strict=True):
        np.testing.assert_allclose(one, weight.grad.numpy(), rtol=3e-6)
