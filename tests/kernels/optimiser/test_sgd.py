"""Gradient descent: steps against float64 and PyTorch, lists of tensors, in place, and traffic."""

import numpy as np
import pytest

from pmpp.kernels import optimiser
from pmpp.kernels.optimiser import sgd as room
from pmpp.runtime import device
from tests.kernels.optimiser.networks import F32, SHAPES, drawn, on_device
from tests.kernels.optimiser.wrong_sgd import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
#: momentum, dampening, weight decay, Nesterov
KINDS = {
    "plain": (0.0, 0.0, 0.0, False),
    "L2": (0.0, 0.0, 0.1, False),
    "momentum": (0.9, 0.0, 0.1, False),
    "dampening": (0.9, 0.5, 0.0, False),
    "Nesterov": (0.9, 0.0, 0.1, True),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(step):
    """All that is wrong with a step on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        found = judge.faults(step, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@each_kind
def test_a_list_of_tensors(rung, kind):
    p, g, b = drawn(3, 1)
    sums = b if kind[0] else None
    results = rung(on_device(p), on_device(g), sums and on_device(sums), 0.1, *kind)
    for k, result in enumerate(results):
        one = p[k], g[k], sums and sums[k], 0.1, *kind
        assert result.shape == (2 if kind[0] else 1, *SHAPES[k][0])
        assert right(device.to_host(result), *one)


@each_rung
def test_the_first_step_does_not_read_the_sums(rung):
    p, g = (one[:1] for one in drawn(2, 2))
    nobody_wrote = [device.to_device(np.full(p[0].shape, np.nan, F32))]
    (result,) = rung(p, g, nobody_wrote, 0.1, 0.9, 0.5, step=1)
    np.testing.assert_array_equal(result.copy_to_host()[1], g[0])


@each_kind
def test_many_steps_in_place(kind):
    p, *_ = drawn(1, 3)
    momentum, dampening, decay, nesterov = kind
    exact = [[x.astype(np.float64), np.zeros(x.shape)] for x in p]
    params, sums = on_device(p), [device.to_device(np.full(x.shape, np.nan, F32)) for x in p]
    for step in range(1, 13):
        (g,) = drawn(1, 100 + step)
        options = {"lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov}
        optimiser.sgd_(params, on_device(g), sums if momentum else None, **options, step=step)
        for one, gradient in zip(exact, g, strict=True):
            found = room.reference(one[0], gradient, one[1] if momentum else None, 0.1, *kind, step)
            one[: len(found)] = found
    for one, ours in zip(exact, params, strict=True):
        np.testing.assert_allclose(device.to_host(ours), one[0], rtol=1e-5, atol=1e-5)


@each_rung
def test_the_same_bits_twice_and_in_place(rung):
    p, g, b = (on_device(one) for one in drawn(3, 4))
    first, second = (rung(p, g, b, 0.1, 0.9, 0.1) for _ in range(2))
    assert all(x.copy_to_host().tobytes() == y.copy_to_host().tobytes() for x, y in zip(first, second, strict=True))
    if rung is room.LADDER[-1]:
        optimiser.sgd_(p, g, b, lr=0.1, momentum=0.9, dampening=0.1)
        for expected, *ours in zip(first, p, b, strict=True):
            for x, y in zip(expected.copy_to_host(), ours, strict=True):
                np.testing.assert_array_equal(x, y.copy_to_host())


P = np.ones((2, 3), F32)
BAD = {
    "a dtype": ((P.astype(np.float64), P), {}, TypeError, "parameters must be float32, was float64"),
    "a shape": ((P, P[0]), {}, ValueError, r"gradients must have shape \(2, 3\), had \(3,\)"),
    "no sums": ((P, P, None, 0.1, 0.9), {}, ValueError, "momenta must be given with momentum=0.9, was None"),
    "sums for nothing": ((P, P, P), {}, ValueError, "momenta must be left out with momentum=0.0, was ndarray"),
    "Nesterov": ((P, P), {"nesterov": True}, ValueError, "nesterov must be False with momentum=0.0"),
    "Nesterov, dampened": ((P, P, P, 0.1, 0.9, 0.5, 0.0, True), {}, ValueError, "nesterov must be False with .*=0.5"),
    "decay": ((P, P), {"weight_decay": -1}, ValueError, "weight_decay must not be negative, was -1"),
    "step": ((P, P), {"step": 0}, ValueError, "step must be at least 1, was 0"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_bad_input_in_place():
    p, g = device.to_device(P), device.to_device(P)
    with pytest.raises(TypeError, match="parameters must be a device array, was a NumPy array"):
        optimiser.sgd_(P, g)
    with pytest.raises(ValueError, match=r"gradients must share no memory with parameters|parameters must share no"):
        optimiser.sgd_(p, p)


@interpreter_only
@pytest.mark.parametrize(("momentum", "loads", "stores"), [(0.0, 2, 1), (0.9, 3, 2)], ids=["plain", "momentum"])
def test_traffic(momentum, loads, stores):
    """4,096 parameters are 512 sectors of each array: without momentum the sums are neither read nor written."""
    p, g, b = (device.to_device(one) for one in np.ones((3, 4096), F32))
    for rung in room.LADDER:
        _, reports = watch(rung, p, g, b if momentum else None, 0.1, momentum)
        assert len(reports) == 1
        assert total(reports, "flops_f64") == 0
        assert total(reports, "global_store_sectors") == stores * 512
        tables = 0 if rung is room.fused else 128 * 20
        assert loads * 512 <= total(reports, "global_load_sectors") <= loads * 512 + tables


@each_kind
def test_the_reference_is_pytorchs(kind):
    torch = pytest.importorskip("torch")
    p, *_ = drawn(1, 5)
    momentum, dampening, decay, nesterov = kind
    weights = [torch.nn.Parameter(torch.from_numpy(x.astype(np.float64))) for x in p]
    options = {"lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov}
    theirs = torch.optim.SGD(weights, **options)
    ours = [np.stack([x.astype(np.float64), np.zeros(x.shape)]) for x in p]
    for step in range(1, 11):
        (g,) = drawn(1, 200 + step)
        for one, weight, gradient in zip(ours, weights, g, strict=True):
            weight.grad = torch.from_numpy(gradient.astype(np.float64))
            found = room.reference(one[0], gradient, one[1] if momentum else None, 0.1, *kind, step)
            one[: len(found)] = found
        theirs.step()
    for weight, one in zip(weights, ours, strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), one[0], rtol=1e-12, atol=1e-14)
