"""Normalisation of float16 and bfloat16: every way that the last rungs take, in float32, rounded once."""

import numpy as np
import pytest

from pmpp.kernels.normalisation import (
    batchnorm,
    batchnorm_backward,
    batchnorm_channels_last,
    batchnorm_channels_last_backward,
    layernorm,
    layernorm_backward,
    moments,
)
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.normalisation import rounded_wrongly
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

SHORT = known(moments.DTYPES[1:])
BACKWARD = (batchnorm_backward, batchnorm_channels_last_backward, layernorm_backward)
ROOMS = (batchnorm, batchnorm_channels_last, layernorm, *BACKWARD)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
each_dtype = pytest.mark.parametrize("dtype", SHORT, ids=str)

#: Of each room: shapes for every kernel of the last rung, by vectors of eight and by single elements.
SHAPES = {
    batchnorm: [(8, 3, 16, 16), (9, 3, 7, 7), (9, 1, 64, 64), (3, 2, 181, 181), (1800, 37), (33_000, 2)],
    batchnorm_channels_last: [(300, 64), (9, 520), (70, 37)],
    batchnorm_channels_last_backward: [(300, 64), (9, 520), (70, 37)],
    layernorm: [(4, 64), (3, 4096), (5, 1023), (2, 32_768), (2, 32_776), (1, 32_769)],
    batchnorm_backward: [(8, 3, 16, 16), (9, 3, 7, 7), (5, 1, 64, 64), (2, 2, 101, 103), (700, 37), (9000, 2)],
    layernorm_backward: [(67, 64), (5, 256), (9, 264), (3, 2048), (35, 12), (3, 333), (1, 8200)],
}
CASES = [
    pytest.param(room, shape, id=f"{room.__name__.rpartition('.')[2]} {shape}")
    for room in ROOMS
    for shape in SHAPES[room]
]


def arrays_of(room, shape, dtype, rng):
    arrays = 2 if room in BACKWARD else 1
    parameters = 3 - arrays
    given = [(rng.standard_normal(shape) + 2 * k).astype(dtype) for k in range(arrays)]
    return *given, *(rng.uniform(0.5, 2, shape[1]).astype(np.float32) for _ in range(parameters))


def right(room, result, arrays):
    with np.errstate(all="ignore"):
        return judge.right(result, room.reference(*arrays), room.tolerance(*arrays), arrays[0].dtype)


@each_dtype
@pytest.mark.parametrize(("room", "shape"), CASES)
def test_every_way_of_the_last_rung(room, shape, dtype, rng):
    arrays = arrays_of(room, shape, dtype, rng)
    result, reports = observe(room.vectorised, *arrays)
    assert right(room, result, arrays)
    assert total(reports, "flops_f16") == total(reports, "flops_f64") == 0


@each_dtype
@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__.rpartition(".")[2])
def test_arrays_that_begin_between_two_vectors(room, dtype, rng):
    arrays = arrays_of(room, (16, 64), dtype, rng)
    given = [misaligned(one, 3) if one.ndim == 2 else one for one in arrays]
    assert right(room, device.to_host(room.vectorised(*given)), arrays)


@each_dtype
def test_the_moments_are_float32_and_those_of_the_widened(dtype, rng):
    """Of values far from 0: in 16 bits the mean would have no digit of the deviations left."""
    x = (100 + rng.standard_normal((6, 512))).astype(dtype)
    ones = np.ones(512, np.float32)
    _, mean, invstd = layernorm.vectorised(x, ones, ones, 0, return_moments=True)
    wide = x.astype(np.float64)
    assert mean.dtype == invstd.dtype == np.float32
    np.testing.assert_allclose(device.to_host(mean), wide.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(device.to_host(invstd), 1 / wide.std(axis=1), rtol=1e-5)


@interpreter_only
@each_dtype
def test_half_the_sectors_of_float32(dtype, rng):
    x, ones = rng.standard_normal((64, 1024)).astype(np.float32), np.ones(1024, np.float32)
    found = {}
    for kind in (np.dtype(np.float32), dtype):
        _, reports = observe(layernorm.vectorised, x.astype(kind), ones, ones)
        found[kind] = total(reports, "global_store_sectors"), total(reports, "global_store_requests")
    assert found[dtype] == (64 * 1024 * 2 // 32, 64 * 1024 // 8 // 32)
    assert found[np.dtype(np.float32)] == (64 * 1024 * 4 // 32, 64 * 1024 // 4 // 32)


@each_dtype
@pytest.mark.parametrize(
    ("room", "shape"),
    [
        (layernorm, (3, 1024)),
        (batchnorm, (8, 3, 16, 16)),
        (layernorm_backward, (9, 64)),
        (batchnorm_backward, (8, 3, 16, 16)),
    ],
    ids=str,
)
def test_16_bits_are_widened_in_registers(room, shape, dtype, rng, ptx, spy):
    watched = [spy(kernel) for kernel in room.vectorised.kernels]
    room.vectorised(*arrays_of(room, shape, dtype, rng))
    text = ptx(*next((one.kernel, *launch) for one in watched for launch in one.launches), cc=(9, 0))
    assert ".extern" not in text
    assert ".local" not in text
    assert "st.global.v4" in text


@interpreter_only
@each_dtype
@pytest.mark.parametrize("wrong", rounded_wrongly.RUNGS, ids=map(name_of, rounded_wrongly.RUNGS))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong, dtype):
    assert rounded_wrongly.faults(wrong.function, dtype)[:1] == [wrong.reason]


@each_dtype
def test_what_the_wrong_kernels_differ_from_is_right(dtype):
    assert rounded_wrongly.faults(rounded_wrongly.RIGHT, dtype) == []
