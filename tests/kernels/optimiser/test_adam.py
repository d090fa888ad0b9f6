"""Adam: steps against float64 and PyTorch, lists of tensors, in place, steps counted on the device, and traffic."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels import optimiser
from pmpp.kernels.optimiser import adam as room
from pmpp.runtime import device
from tests.kernels.optimiser.networks import F32, SHAPES, drawn, on_device, on_host
from tests.kernels.optimiser.wrong_adam import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
ADAMW = 0.01, (0.9, 0.999), 1e-8, 0.1, True


def state(seed):
    """Parameters, gradients and moments of a network."""
    p, g, m, v = drawn(4, seed)
    return p, g, [F32(0.1) * one for one in m], [F32(0.01) * one * one for one in v]


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(step):
    """All that is wrong with a step of Adam on the first input where anything is, worst first."""
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
def test_a_list_of_tensors(rung):
    lists = state(1)
    before = [[x.copy() for x in one] for one in lists]
    given = [on_device(one) for one in lists]
    results = rung(*given, *ADAMW, 3)
    assert isinstance(results, tuple)
    for k, result in enumerate(results):
        one = [arrays[k] for arrays in before]
        assert result.shape == (3, *SHAPES[k][0])
        assert right(device.to_host(result), *one, *ADAMW, 3)
    for arrays, old in zip(given, before, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(on_host(arrays), old, strict=True)), "arguments are left alone"


@each_rung
def test_outputs_that_are_given(rung):
    p, g, m, v = (one[0] for one in state(2))
    out = device.empty((3, *p.shape), F32)
    assert rung(p, g, m, v, out=out) is out
    outs = [device.empty((3, *p.shape), F32) for _ in range(2)]
    for one, result in zip(outs, rung([p, p], [g, g], [m, m], [v, v], out=outs), strict=True):
        assert one is result
        np.testing.assert_array_equal(result.copy_to_host(), out.copy_to_host())


@pytest.mark.parametrize("decoupled", [False, True], ids=["L2", "decoupled"])
def test_many_steps_in_place(decoupled):
    """Errors of single steps add up: twenty of them move a parameter by 20 lr or so, and each is right to 1e-6."""
    p, *_ = state(3)
    exact = [[x.astype(np.float64), np.zeros(x.shape), np.zeros(x.shape)] for x in p]
    params = on_device(p)
    first, second = ([device.to_device(np.zeros(x.shape, F32)) for x in p] for _ in range(2))
    for step in range(1, 21):
        (g,) = drawn(1, 100 + step)
        optimiser.adam_(params, on_device(g), first, second, lr=0.01, weight_decay=0.1, decoupled=decoupled, step=step)
        for one, gradient in zip(exact, g, strict=True):
            one[:] = room.reference(one[0], gradient, *one[1:], 0.01, (0.9, 0.999), 1e-8, 0.1, decoupled, step)
    for one, *ours in zip(exact, params, first, second, strict=True):
        for x, y, allowed in zip(one, ours, (20 * 0.01 * 1e-5, 1e-6, 1e-6), strict=True):
            np.testing.assert_allclose(device.to_host(y), x, rtol=1e-5, atol=allowed)


def test_in_place_is_the_last_rung():
    lists = [on_device(one) for one in state(4)]
    expected = [one.copy_to_host() for one in room.vectorised(*lists, *ADAMW, 5)]
    p, _, m, v = lists
    assert optimiser.adam_(*lists, lr=0.01, weight_decay=0.1, decoupled=True, step=5) is None
    for new, *arrays in zip(expected, p, m, v, strict=True):
        for x, y in zip(new, arrays, strict=True):
            np.testing.assert_array_equal(x, y.copy_to_host())


def test_a_step_that_the_device_counts():
    """As often as it is called, with the very same arguments: what a CUDA graph does."""
    by_host, by_device = ([on_device(one) for one in state(5)] for _ in range(2))
    counter = device.to_device(np.array([41]))
    for step in (42, 43, 44):
        options = {"lr": 0.01, "weight_decay": 0.1, "decoupled": True}
        optimiser.adam_(*by_host, **options, step=step)
        optimiser.adam_(*by_device, **options, step=counter)
    assert counter.copy_to_host().tolist() == [44]
    for one, other in zip(by_host, by_device, strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x.copy_to_host(), y.copy_to_host())


@each_rung
def test_the_same_bits_twice(rung):
    lists = [on_device(one) for one in state(6)]
    first, second = (rung(*lists, *ADAMW, 2) for _ in range(2))
    assert all(a.copy_to_host().tobytes() == b.copy_to_host().tobytes() for a, b in zip(first, second, strict=True))


def test_rungs_agree_to_the_bit_with_one_another():
    """All but the first compute the same formula, element by element."""
    if device.on_gpu():
        pytest.skip("a GPU joins multiplications and additions, and may do so differently in each kernel")
    lists = state(7)
    one, *others = ([x.copy_to_host() for x in rung(*lists, *ADAMW, 2)] for rung in room.LADDER[1:])
    for other in others:
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


def test_nothing_but_empty_tensors():
    empty = [device.to_device(np.zeros((0, 3), F32))]
    optimiser.adam_(empty, empty, empty, empty, step=1)
    for rung in room.LADDER:
        assert rung(empty, empty, empty, empty)[0].shape == (3, 0, 3)


# ------------------------------------------------------------------------------------------------------------ bad input

P = np.ones((2, 3), F32)
BAD = {
    "a dtype": ((P.astype(np.float64), P, P, P), {}, TypeError, "parameters must be float32, was float64"),
    "one of a list": (
        ([P, P.T.astype(int)], [P, P], [P, P], [P, P]),
        {},
        TypeError,
        r"parameters\[1\] must be float32",
    ),
    "a shape": ((P, P[0], P, P), {}, ValueError, r"gradients must have shape \(2, 3\), had \(3,\)"),
    "too few": (([P, P], [P], [P, P], [P, P]), {}, ValueError, "gradients must be one array for each parameter, 2 in"),
    "no list": (([P, P], P, [P, P], [P, P]), {}, ValueError, "gradients must be one array for each parameter, 2 in"),
    "nothing": (([], [], [], []), {}, ValueError, r"parameters must be an array or a list with one or more, was \[\]"),
    "lr": ((P, P, P, P, -1.0), {}, ValueError, "lr must not be negative, was -1.0"),
    "betas": ((P, P, P, P, 0.1, (0.9, 1.0)), {}, ValueError, r"betas must be two numbers from 0 to less than 1"),
    "one beta": ((P, P, P, P, 0.1, (0.9,)), {}, TypeError, r"betas must be two numbers in a tuple, was \(0.9,\)"),
    "step": ((P, P, P, P), {"step": 0}, ValueError, "step must be at least 1, was 0"),
    "out": ((P, P, P, P), {"out": device.empty((2, 2, 3), F32)}, ValueError, r"out must have shape \(3, 2, 3\)"),
    "outs": (([P], [P], [P], [P]), {"out": P}, ValueError, "out must be one array for each parameter"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_bad_input_in_place():
    p, g, m, v = (device.to_device(P) for _ in range(4))
    with pytest.raises(TypeError, match=r"parameters\[0\] must be a device array, was a NumPy array: it is updated"):
        optimiser.adam_([P], [g], [m], [v], step=1)
    with pytest.raises(ValueError, match=r"second must share no memory with first"):
        optimiser.adam_(p, g, m, m, step=1)
    lists = [[one, device.to_device(P)] for one in (g, m, v)]
    with pytest.raises(ValueError, match=r"parameters\[1\] must share no memory with parameters\[0\]"):
        optimiser.adam_([p, p], *lists, step=1)
    with pytest.raises(TypeError, match="step must be int64, was float32"):
        optimiser.adam_(p, g, m, v, step=device.to_device(np.ones(1, F32)))
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'step'"):
        optimiser.adam_(p, g, m, v)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_launches_and_traffic():
    """4,096 parameters are 512 sectors of each array. AdamW without fusing moves 20 arrays, fused 7."""
    arrays = [device.to_device(one) for one in np.ones((4, 4096), F32)]
    counts = {}
    for rung in room.LADDER:
        _, reports = watch(rung, *arrays, *ADAMW)
        sectors = [total(reports, f"global_{way}_sectors") for way in ("load", "store")]
        counts[rung.name] = len(reports), *sectors, total(reports, "global_store_requests")
        assert total(reports, "flops_f64") == 0
    assert counts["per_operation"] == (8, 12 * 512, 8 * 512, 8 * 128)
    assert counts["fused"] == (1, 4 * 512, 3 * 512, 3 * 128)
    for name, requests in (("one_launch", 3 * 128), ("vectorised", 3 * 32)):
        launches, loads, *stored = counts[name]
        assert (launches, *stored) == (1, 3 * 512, requests)
        assert 4 * 512 < loads < 4 * 512 + 128 * 20, "and the tables: some sectors for each of 128 warps or 32"


@interpreter_only
def test_one_launch_whatever_the_number_of_tensors():
    lists = [on_device(one) for one in state(8)]
    sizes = [x.size for x in lists[0]]
    launches = {}
    for rung in room.LADDER:
        _, reports = watch(lambda *given, rung=rung: rung(*given, *ADAMW)[0], *lists)
        launches[rung.name] = len(reports)
    full = sum(map(bool, sizes))
    assert launches == {"per_operation": 8 * full, "fused": full, "one_launch": 1, "vectorised": 1}


@interpreter_only
def test_a_misaligned_tensor_is_moved_one_element_at_a_time():
    p, g, m, v = (one[6:7] for one in state(9))  # 1,024 elements
    given = [[device.to_device(x[0])] for x in (p, g, m, v)]
    _, aligned = observe(lambda *lists: room.vectorised(*lists)[0], *given)
    shifted = device.to_device(np.concatenate([F32([0]), p[0].reshape(-1)]))[1:].reshape(p[0].shape)
    result, reports = observe(lambda *lists: room.vectorised(*lists)[0], [shifted], *given[1:])
    assert right(result, p[0], g[0], m[0], v[0])
    assert total(reports, "global_store_requests") > 3 * total(aligned, "global_store_requests")


# ------------------------------------------------------------------------------------------------------------- PyTorch


@pytest.mark.parametrize("decoupled", [False, True], ids=["Adam", "AdamW"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_reference_is_pytorchs(decoupled, decay):
    torch = pytest.importorskip("torch")
    p, *_ = state(10)
    weights = [torch.nn.Parameter(torch.from_numpy(x.astype(np.float64))) for x in p]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    theirs = kind(weights, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay)
    ours = [np.stack([x.astype(np.float64), np.zeros(x.shape), np.zeros(x.shape)]) for x in p]
    for step in range(1, 11):
        (g,) = drawn(1, 200 + step)
        for k, (weight, gradient) in enumerate(zip(weights, g, strict=True)):
            weight.grad = torch.from_numpy(gradient.astype(np.float64))
            ours[k] = room.reference(
                ours[k][0], gradient, *ours[k][1:], 0.01, (0.8, 0.99), 1e-6, decay, decoupled, step
            )
        theirs.step()
    for weight, one in zip(weights, ours, strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), one[0], rtol=1e-12, atol=1e-14)


def pytorchs_tolerance(p, g, m, v):
    """How far from the reference PyTorch's fused AdamW may be: as far as a rung, and by its bias corrections farther.

    It has ``1 - beta ** step`` in float32, where the power is near 1. With u = 2^-24, a beta is rounded by u, which the
    power multiplies by the step; CUDA's powf is wrong by 4 units in the last place, 8 u (CUDA C++ programming guide,
    "Mathematical functions"); and the power and the difference are rounded. The step is wrong by as much, and by half
    as much by the second correction, of which it has the root.
    """
    (new_p, *_), (lr, betas, _, decay, _) = room.reference(p, g, m, v, *ADAMW, STEP), ADAMW
    moved = abs(new_p - (1 - lr * decay) * p.astype(np.float64))
    off = [2.0**-24 * ((STEP + 9) * beta**STEP / (1 - beta**STEP) + 1) for beta in betas]
    allowed = room.tolerance(p, g, m, v, *ADAMW, STEP)
    # On a GPU it has the betas, and 1 - beta, in float32, too: a beta is rounded by u.
    u, (_, first, second) = 2.0**-24, room.reference(p, g, m, v, *ADAMW, STEP)
    of_first, of_second = u * (abs(g) + abs(m)), u * (g.astype(np.float64) ** 2 + v)
    allowed[0] += moved * (off[0] + off[1] / 2)
    # The step is in proportion to the first moment, and to the root of the second.
    with np.errstate(divide="ignore", invalid="ignore"):
        allowed[0] += np.nan_to_num(moved * (of_first / abs(first) + of_second / second / 2), posinf=np.inf)
    allowed[1] += of_first
    allowed[2] += of_second
    return allowed


STEP = 5


def test_pytorchs_fused_step_and_ours_are_both_right():
    """Each beside the formula in float64. On a GPU both compute there, on the same tensors."""
    torch = pytest.importorskip("torch")
    before = state(11)
    where = "cuda" if device.on_gpu() else "cpu"
    theirs = [[torch.from_numpy(x.copy()).to(where) for x in one] for one in before]
    ours = [[x.clone() for x in one] for one in theirs] if device.on_gpu() else [on_device(one) for one in before]
    steps = [torch.tensor(float(STEP), device=where) for _ in SHAPES]
    lr, betas, eps, decay, _ = ADAMW
    optimiser.adam_(*ours, lr=lr, betas=betas, eps=eps, weight_decay=decay, decoupled=True, step=STEP)
    torch._fused_adamw_(
        *theirs, [], steps, lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=decay, eps=eps,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    for k, arguments in enumerate(zip(*before, strict=True)):
        expected = room.reference(*arguments, *ADAMW, STEP)
        for lists, allowed in (
            (ours, room.tolerance(*arguments, *ADAMW, STEP)),
            (theirs, pytorchs_tolerance(*arguments)),
        ):
            # Parameter, first and second moment: what is between them is the gradient.
            arrays = [lists[i][k] for i in (0, 2, 3)]
            found = np.stack([x.cpu().numpy() if hasattr(x, "cpu") else device.to_host(x) for x in arrays])
            assert judge.difference(found, expected, allowed) == "", SHAPES[k]


@pytest.mark.gpu
def test_a_graph_counts_its_steps():
    cupy = pytest.importorskip("cupy")
    lists = [on_device(one) for one in state(12)]
    counter, stream = device.to_device(np.zeros(1, np.int64)), cupy.cuda.Stream(non_blocking=True)
    cuda.synchronize()
    with stream:
        optimiser.adam_(*lists, step=counter, stream=stream)  # compiles, and makes the tables
        stream.synchronize()
        stream.begin_capture()
        optimiser.adam_(*lists, step=counter, stream=stream)
        graph = stream.end_capture()
        graph.launch(stream)
        graph.launch(stream)
        stream.synchronize()
    assert counter.copy_to_host().tolist() == [3]


def test_a_stream():
    lists, stream = [on_device(one) for one in state(13)], cuda.stream()
    optimiser.adam_(*lists, step=1, stream=stream)
    stream.synchronize()
