"""The ceilings of tensor cores: the kernels multiply what they say, and other GPUs are left out."""

import numpy as np
import pytest

from pmpp.lab.measure import tensor_ceilings
from pmpp.runtime import device

TURNS = 2


def run(kind):
    instruction, _, draw = tensor_ceilings.KINDS[kind]
    bits = draw(np.random.default_rng(0))
    out = device.empty(tensor_ceilings.THREADS, np.int32 if kind == "int8" else np.float32)
    kernel = tensor_ceilings.kernel_of(instruction)
    kernel[1, tensor_ceilings.THREADS, 0, 2 * tensor_ceilings.STAGE](device.to_device(bits), TURNS, out)
    return bits, device.to_host(out)


def rows_of(bits, count):
    """Rows of 128 bytes, whose chunks of 16 bytes are exchanged by the row's number."""
    chunks = bits.reshape(count, 8, 8)
    row, chunk = np.ogrid[:count, :8]
    return chunks[row, chunk ^ row % 8].reshape(count, 64)


def first_sums(c):
    """Of each thread the first two sums of its row, added."""
    t = np.arange(tensor_ceilings.THREADS)
    row, column = t // 32 * 16 + t % 32 // 4, t % 4 * 2
    return c[row, column] + c[row, column + 1]


hopper_only = pytest.mark.skipif(device.limits()["compute_capability"] != (9, 0), reason="needs compute capability 9.0")


@hopper_only
def test_int8_is_multiplied_exactly():
    bits, out = run("int8")
    a, b = rows_of(bits[: 128 * 64], 128).view(np.int8), rows_of(bits[128 * 64 :], 256).view(np.int8)
    np.testing.assert_array_equal(out, first_sums(TURNS * (a.astype(np.int64) @ b.astype(np.int64).T)))


@hopper_only
def test_float16_has_its_second_operand_in_panels():
    bits, out = run("float16")
    a = rows_of(bits[: 128 * 64], 128).view(np.float16).astype(np.float64)
    panels = [rows_of(one, 64).view(np.float16) for one in bits[128 * 64 :].reshape(4, -1)]
    np.testing.assert_allclose(
        out, first_sums(TURNS * (a @ np.hstack(panels).astype(np.float64))), rtol=1e-4, atol=1e-3
    )


@hopper_only
@pytest.mark.parametrize("kind", ["tf32", "e4m3"])
def test_the_other_types_have_finite_sums(kind):
    _, out = run(kind)
    assert np.isfinite(out).all()
    assert np.count_nonzero(out) > 250


def test_what_is_multiplied_is_not_zero_and_fills_the_tiles():
    for _, itemsize, draw in tensor_ceilings.KINDS.values():
        bits = draw(np.random.default_rng(1))
        assert bits.dtype == np.uint16
        assert bits.size == tensor_ceilings.STAGE
        assert len(np.unique(bits)) > 250
        assert itemsize in (1, 2, 4)


def test_another_gpu_is_not_measured(monkeypatch):
    monkeypatch.setattr(device, "limits", lambda: {"compute_capability": (8, 0), "multiprocessors": 1})
    assert tensor_ceilings.measure(None, 1.0) == {}
