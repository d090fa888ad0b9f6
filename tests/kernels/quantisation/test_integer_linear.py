"""Integer layers: every rung gives the bits of the definition, for any shape and place; arguments, and counters."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import quantisation
from pmpp.kernels.quantisation import integer_linear as room
from pmpp.runtime import device
from tests.kernels.quantisation.wrong_integer_linear import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
SOME = ["halves", "relu", "odd", "largest sums"]


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0, np.int8)


def drawn(m, n, k, seed=3):
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (n, k)))
    factors = (rng.uniform(0.3, 1, n) * 60 / (5500 * k**0.5)).astype(F32)
    return x, w, factors, rng.integers(-5000, 5000, n).astype(np.int32)


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first."""
    for arguments in (INPUTS[name] for name in names):
        found = judge.faults(function, arguments, lambda result, a=arguments: right(result, *a))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=6)
def test_any_shape_and_place(rung, data):
    m, n, k = (data.draw(st.sampled_from(sizes)) for sizes in ([1, 8, 17, 33], [1, 5, 24], [1, 16, 31, 32, 100, 144]))
    x, w, factors, bias = drawn(m, n, k)
    placed = misaligned(x, data.draw(st.sampled_from([0, 1, 4, 16]))), misaligned(w, data.draw(st.sampled_from([0, 4])))
    assert right(device.to_host(rung(*placed, factors, bias)), x, w, factors, bias)


def test_tiles_that_meet():
    """More than one tile of 128 x 128 in both directions, and more steps than there are stages."""
    arguments = drawn(140, 133, 300)
    assert right(result_of(room.tiled, *arguments), *arguments)


def test_a_layer_of_floats_becomes_one_of_integers():
    """Quantise, multiply, and go back: the result is that of the float layer within the steps that it was given."""
    rng = np.random.default_rng(9)
    x, w = rng.standard_normal((20, 64), dtype=F32), rng.standard_normal((10, 64), dtype=F32)
    bias, exact = rng.standard_normal(10, dtype=F32), None
    exact = x.astype(np.float64) @ w.T + bias
    (x_scale, _), (w_scales, _) = quantisation.calibrate(x), quantisation.calibrate(w, per_channel=True)
    y_scale, _ = quantisation.calibrate(exact.astype(F32))
    product_scales = x_scale * w_scales
    whole_bias = np.rint(bias / product_scales).astype(np.int32)
    y = room.tiled(
        quantisation.quantise(x, x_scale), quantisation.quantise(w, w_scales), product_scales / y_scale, whole_bias
    )
    back = device.to_host(quantisation.dequantise(y, y_scale))
    # Half a step of y; and each factor is off by half a step, so a product by that of the other's size, 64 times.
    sizes = (abs(x).sum(axis=1)[:, None] * w_scales + x_scale * abs(w).sum(axis=1)) / 2
    assert (abs(back - exact) <= y_scale / 2 + sizes + 64 * product_scales / 4 + product_scales + 1e-5).all()
    assert np.sqrt(np.mean((back - exact) ** 2)) < 0.02 * np.sqrt(np.mean(exact**2))


# -------------------------------------------------------------------------------------------------------- the arguments


@each_rung
def test_bad_arguments_are_refused_by_name(rung):
    x, w, factors, bias = drawn(3, 4, 5)
    with pytest.raises(TypeError, match="x must be int8, was uint8"):
        rung(x.view(np.uint8), w, factors)
    with pytest.raises(ValueError, match=r"w must have shape \(any, 5\), had \(4, 4\)"):
        rung(x, w[:, :4].copy(), factors)
    with pytest.raises(ValueError, match=r"factors must have shape \(4,\), had \(3,\)"):
        rung(x, w, factors[:3])
    with pytest.raises(TypeError, match="bias must be int32, was float32"):
        rung(x, w, factors, bias.astype(F32))
    with pytest.raises(TypeError, match="relu must be True or False, was 1"):
        rung(x, w, factors, bias, 1)


def test_sums_that_may_not_fit_are_refused():
    many = np.zeros((1, room.MOST_K + 1), np.int8)
    with pytest.raises(ValueError, match="x must have at most 131071 columns, had 131072"):
        room.fragments(many, many, F32([1]))
    assert 128 * 128 * room.MOST_K < 2**31


def test_an_old_gpu_is_refused_by_name(monkeypatch):
    x, w, factors, _ = drawn(3, 4, 5)
    monkeypatch.setattr(device, "limits", lambda: {"compute_capability": (7, 5)})
    with pytest.raises(RuntimeError, match=r"needs a GPU of compute capability 8.0 or higher, this one has 7.5"):
        room.fragments(x, w, factors)


# --------------------------------------------------------------------------------------------------------- the counters


@interpreter_only
def test_counts_of_a_tile():
    x, w, factors, _ = drawn(128, 128, 128)
    products = 2 * 128**3
    # 8 x 16 fragments of four steps each: a warp loads four words of x and two of w a step, then four factors.
    _, reports = observe(room.fragments, x, w, factors)
    assert total(reports, "tensor_flops") == products
    assert total(reports, "global_load_requests") == 8 * 16 * (4 * 6 + 4)
    # One block: 4 requests of 512 bytes a warp for each of two tiles, of two steps, and of what lies beyond, never.
    _, reports = observe(room.tiled, x, w, factors)
    assert total(reports, "tensor_flops") == products
    assert total(reports, "shared_load_bank_conflicts") == 0
    assert total(reports, "global_store_requests") == 8 * 16 * 4
