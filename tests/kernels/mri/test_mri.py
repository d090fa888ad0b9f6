"""MRI: results, the transform and its adjoint, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import mri as subject
from pmpp.kernels.mri import cosines_alone, workloads
from pmpp.kernels.mri import ladder as room
from pmpp.kernels.mri.phantom import phantom, spiral, voxels_of
from pmpp.lab.measure import bench
from pmpp.runtime import device
from tests.kernels.mri.wrong import RIGHT
from tests.kernels.mri.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), np.complex64)


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        if found := judge.faults(function, arguments, lambda result, given=arguments: right(result, *given)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@each_rung
def test_on_a_grid_it_is_the_fft(rung):
    """Frequencies and places on grids that fit: NumPy's inverse transform, but for its factor."""
    shape, rng = (3, 4, 5), np.random.default_rng(0)
    spectrum = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    z, y, x = np.indices(shape).reshape(3, -1)
    k = np.stack([x, y, z], axis=1).astype(np.float32)
    voxels = np.stack([x / 5, y / 4, z / 3], axis=1).astype(np.float32)
    result = device.to_host(rung(k, np.ones(k.shape[0], np.complex64), spectrum.ravel(), voxels))
    np.testing.assert_allclose(result.reshape(shape), np.fft.ifftn(spectrum) * spectrum.size, atol=1e-4)


@each_rung
@hypothesis.given(
    m=st.integers(1, 300), n=st.integers(1, 600), reach=st.sampled_from([1.0, 60.0]), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=4)
def test_any_numbers_of_samples_and_voxels(rung, m, n, reach, seed):
    rng = np.random.default_rng(seed)
    n = min(n, 20_000 // m)
    arguments = *room.samples_of(m, rng, reach), rng.uniform(-0.5, 0.5, (n, 3)).astype(np.float32)
    assert right(device.to_host(rung(*arguments)), *arguments)


@each_rung
def test_arrays_that_begin_anywhere_out_and_stream(rung):
    arguments, stream = INPUTS["high frequencies"], cuda.stream()
    given = [misaligned(x, offset) for x, offset in zip(arguments, (1, 1, 1, 2), strict=True)]
    out = device.to_device(np.full(len(arguments[3]), np.nan, np.complex64))
    assert rung(*given, out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), *arguments)


def test_the_same_call_gives_the_same_bits():
    found = set()
    for seed in range(1 if device.on_gpu() else 2):
        with simt.schedule("shuffled", seed):
            found.add(device.to_host(subject.adjoint(*INPUTS["high frequencies"])).tobytes())
    assert len(found) == 1


@cuda.jit
def fast_kernel(angle, out):
    i = cuda.grid(1)
    if i < angle.size:
        out[0, i], out[1, i] = cuda.libdevice.fast_sinf(angle[i]), cuda.libdevice.fast_cosf(angle[i])


def test_the_fast_sine_drops_whole_turns_itself():
    """Beyond its own error it is off by an eps of the angle, and by 4.03e-8 of it, by which 1 / (2 pi) is too small."""
    rng = np.random.default_rng(0)
    angles = (2.0 ** rng.uniform(0, 22, 4096) * rng.choice([-1, 1], 4096)).astype(np.float32)
    out = device.empty((2, angles.size), np.float32)
    fast_kernel[angles.size // 128, 128](device.to_device(angles), out)
    exact = angles.astype(np.float64)
    error = abs(device.to_host(out) - [np.sin(exact), np.cos(exact)]).max(axis=0)
    assert (error <= 2.0**-20.5 + (2.0**-23 + 4.1e-8) * abs(exact)).all()


def test_with_places_exchanged_it_is_the_forward_transform():
    """<F x, d> = <x, F^H d>, with F by exchanging samples and voxels and conjugating twice."""
    rng = np.random.default_rng(3)
    k, _, d = room.samples_of(50, rng)
    voxels = rng.uniform(-0.5, 0.5, (40, 3)).astype(np.float32)
    x = (rng.standard_normal(40) + 1j * rng.standard_normal(40)).astype(np.complex64)
    forward = device.to_host(subject.adjoint(voxels, x, np.ones(40, np.complex64), k)).conj()
    back = device.to_host(subject.adjoint(k, np.ones(50, np.complex64), d, voxels))
    assert np.vdot(forward, d) == pytest.approx(np.vdot(x, back), rel=1e-4)


def test_the_phantom_and_the_spiral():
    image = phantom(32)
    assert image.shape == (32, 32)
    assert image.min() == 0
    assert image.max() == pytest.approx(1)
    assert image[0, 0] == 0
    path = spiral(100, 5.0)
    assert np.hypot(*path[:, :2].T).max() <= 5
    assert (path[:, 2] == 0).all()
    assert (np.hypot(*path[:, :2].T) < 2.5).sum() == 50
    np.testing.assert_array_equal(voxels_of((2, 1, 1))[:, 2], [-0.25, 0.25])


# ------------------------------------------------------------------------------------------------------------ bad input

K, C, V = np.ones((2, 3), np.float32), np.ones(2, np.complex64), np.ones((5, 3), np.float32)
BAD = {
    "k of float64": ((K.astype(float), C, C, V), {}, TypeError, "k must be float32, was float64"),
    "k in a plane": ((K[:, :2].copy(), C, C, V), {}, ValueError, r"k must have shape \(any, 3\), had \(2, 2\)"),
    "phi of float32": ((K, C.real.copy(), C, V), {}, TypeError, "phi must be complex64, was float32"),
    "too few data": ((K, C, C[:1], V), {}, ValueError, r"data must have shape \(2,\), had \(1,\)"),
    "voxels in a line": ((K, C, C, V[:, 0].copy()), {}, ValueError, "voxels must have"),
    "every other voxel": ((K, C, C, V[::2]), {}, ValueError, "voxels must be contiguous in C order"),
    "out on the host": ((K, C, C, V), {"out": np.ones(5, np.complex64)}, TypeError, "out must be a device array"),
    "no stream": ((K, C, C, V), {"stream": "x"}, TypeError, "stream must be"),
    "an unknown word": ((K, C, C, V), {"outs": None}, TypeError, "did you mean 'out'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.in_parts(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters

SAMPLES, VOXELS = 128, 1024
PAIRS = SAMPLES * VOXELS
PLAIN = *room.samples_of(SAMPLES, np.random.default_rng(0)), voxels_of((4, 8, 32))


def counters_of(rung):
    result, reports = observe(rung, *PLAIN)
    assert right(result, *PLAIN)
    return {name: total(reports, name) for name in reports[-1].counters}


@interpreter_only
def test_counters_of_scattered_and_interchanged():
    scattered, interchanged = counters_of(room.scattered), counters_of(room.interchanged)
    assert scattered["atomic_lanes"] == 2 * PAIRS
    assert interchanged["atomic_lanes"] == 0
    # Five for the angle in turns, two to make radians of it (for sine and cosine), eight for product and sum; and the
    # six of conj(phi) data for each sample, or for each pair.
    assert scattered["flops"] == 13 * PAIRS + 6 * SAMPLES  # the atomics add
    assert interchanged["flops"] == (15 + 6) * PAIRS


@interpreter_only
def test_counters_of_fissioned_and_in_tiles():
    fissioned, tiled = counters_of(room.fissioned), counters_of(room.in_tiles)
    # Radians are made once for each sample: nine with its product.
    assert fissioned["flops"] == tiled["flops"] == 13 * PAIRS + 9 * SAMPLES
    packing = SAMPLES // 32 * (3 + 2) + VOXELS // 32 * 3  # of k, phi and data, and of the voxels
    assert fissioned["global_load_requests"] == packing + 2 * PAIRS // 32
    assert tiled["shared_load_requests"] == 2 * PAIRS // 32
    assert tiled["barriers"] == 2 * VOXELS // room.BLOCK


@interpreter_only
def test_counters_of_fast_trigonometry_several_voxels_and_unreduced():
    fast, several = counters_of(room.fast_trigonometry), counters_of(room.several_voxels)
    unreduced = counters_of(room.unreduced)
    # Five to take whole turns off.
    assert fast["flops"] == several["flops"] == unreduced["flops"] + 5 * PAIRS == (5 + 5 + 8) * PAIRS + 9 * SAMPLES
    assert fast["inst_special"] == several["inst_special"] == unreduced["inst_special"] == 2 * PAIRS // 32
    assert fast["shared_load_requests"] == room.EACH * several["shared_load_requests"]


def test_parts_are_as_many_as_there_are_multiprocessors_to_fill(monkeypatch):
    monkeypatch.setattr(room.device, "limits", lambda: {"multiprocessors": 4})
    monkeypatch.setattr(room, "RESIDENT", 4)  # 16 blocks are wanted
    block = room.EACH * room.BLOCK
    assert room.share_of(128 * 100, 16 * block) == 128 * 100  # they are there without parts
    assert room.share_of(128 * 100, 1) == 128 * 7  # 15 parts
    assert room.share_of(130, 1) == 128  # no part is smaller than a tile
    for m in (1, 128, 129, 1000):
        arguments = *room.samples_of(m, np.random.default_rng(m)), voxels_of((1, 1, 7))
        assert right(device.to_host(room.in_parts(*arguments)), *arguments)


# --------------------------------------------------------------------------------------------------------- the measured


def test_the_workloads_are_verified_by_another_way():
    one = workloads._workload(8, 300)
    inputs = one.make(1)
    result = device.to_host(one.rungs[-1](*inputs))
    error, tolerance = bench._check(one, result, inputs)
    assert error <= tolerance
    result[17] += 1e-3 * abs(result).max()
    error, tolerance = bench._check(one, result, inputs)
    assert error > tolerance


def test_cosines_of_cosines_come_to_one_number():
    grid, turns = cosines_alone.turns_of(1)
    assert turns == 1
    start = device.to_device(np.linspace(0, 1, grid * cosines_alone.BLOCK, dtype=np.float32))
    out = device.to_host(cosines_alone.cosines_alone(start, 1))
    assert abs(out - 8 * 0.739085).max() < 0.5  # eight cosines of cosines


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy.exp", "torch.polar"])
def test_whole_arrays_of_a_library_agree(library):
    module = pytest.importorskip(library.partition(".")[0])
    one = workloads._workload(8, 300)
    inputs, out = one.make(1), one.output()
    _, convert = bench.adapter(library.partition(".")[0])
    one.libraries[library](module, *map(convert, inputs), convert(out))
    error, tolerance = bench._check(one, out, inputs)
    assert error <= tolerance
