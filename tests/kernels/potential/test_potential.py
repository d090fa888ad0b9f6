"""Potential: results, a crystal, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import potential as subject
from pmpp.kernels.potential import exercises, roots_alone, workloads
from pmpp.kernels.potential import ladder as room
from pmpp.lab.measure import bench
from pmpp.runtime import device
from tests.kernels.potential.wrong import RIGHT
from tests.kernels.potential.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

EACH, INPUTS = room.EACH, room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), np.dtype(np.float32))


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


@pytest.mark.parametrize("name", ["an odd grid", "atoms on points, two in one place, one without charge"])
def test_the_reference_is_that_of_distances_by_scipy(name):
    distance = pytest.importorskip("scipy.spatial.distance")
    atoms, shape, spacing, softening = INPUTS[name]
    points = np.indices(shape).reshape(3, -1).T[:, ::-1] * spacing
    r = distance.cdist(points, atoms[:, :3].astype(np.float64))
    expected = (atoms[:, 3] / np.hypot(r, softening)).sum(axis=1).reshape(shape)
    np.testing.assert_allclose(room.reference(*INPUTS[name]), expected, rtol=1e-5, atol=1e-4 * abs(expected).max())


@each_rung
@hypothesis.given(
    atoms=st.integers(1, 40),
    shape=st.tuples(*[st.sampled_from([1, 2, 3, 7, 8, 9, 33])] * 3).filter(lambda shape: np.prod(shape) < 2000),
    spacing=st.sampled_from([1.0, 0.25, 3.7]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_grid(rung, atoms, shape, spacing, seed):
    size = tuple(spacing * n for n in reversed(shape))
    arguments = room.atoms_in_box(atoms, size, np.random.default_rng(seed)), shape, spacing, 1e-3
    assert right(device.to_host(rung(*arguments)), *arguments)


@each_rung
def test_atoms_that_begin_anywhere(rung):
    arguments = INPUTS["an odd grid"]
    assert right(device.to_host(rung(misaligned(arguments[0], 1), *arguments[1:])), *arguments)


def test_the_same_call_gives_the_same_bits():
    found = set()
    for seed in range(1 if device.on_gpu() else 2):
        with simt.schedule("shuffled", seed):
            found.add(device.to_host(room.on_both_units(*INPUTS["an odd grid"])).tobytes())
    assert len(found) == 1


def test_a_crystal_has_its_constant():
    """The potential of all other ions at one of rock salt: Madelung's constant, -1.7475646 in an endless crystal.

    Half, quarter and eighth charges on faces, edges and corners make the cube neutral (Evjen, "On the stability of
    certain heteropolar crystals", 1932): so few cells are enough.
    """
    n = 9
    salt = room.rock_salt(n)
    on_border = ((salt[:, :3] == 0) | (salt[:, :3] == n - 1)).sum(axis=1)
    salt[:, 3] *= np.float32(0.5) ** on_border
    middle = (salt[:, :3] == n // 2).all(axis=1)
    assert salt[middle, 3] == 1
    others = salt[~middle]
    others[:, :3] -= n // 2
    assert device.to_host(room.on_both_units(others, (1, 1, 1)))[0, 0, 0] == pytest.approx(-1.7475646, abs=5e-4)


def test_steps_keep_the_energy():
    """The exercise's answer, step by step, on two bodies that circle around each other: a few rounds."""
    square, step = np.float32(0.01), np.float32(0.05)
    bodies = device.to_device(np.float32([[-1, 0, 0, 2], [1, 0, 0, 2]]))
    velocities = device.to_device(np.float32([[0, -0.7, 0], [0, 0.7, 0]]))

    def energy():
        x, v = device.to_host(bodies).astype(float), device.to_host(velocities).astype(float)
        return (v**2).sum() - 4 / np.sqrt(((x[0] - x[1])[:3] ** 2).sum() + 0.01)

    energies = [energy()]
    for _ in range(300):
        moved, faster = device.empty((2, 4), np.float32), device.empty((2, 3), np.float32)
        exercises.step_answer[1, 32](bodies, velocities, step, square, moved, faster)
        bodies, velocities = moved, faster
        energies.append(energy())
    assert np.ptp(energies) < 0.03 * abs(energies[0])


def test_roots_by_hand():
    """Every float32 of two octaves, and the ends of the range: an error of at most 2^-23."""

    @cuda.jit
    def roots(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = room.root_by_hand(x[i])

    x = np.concatenate([np.geomspace(1, 4, 30_000), np.geomspace(1e-37, 1e38, 3_000)]).astype(np.float32)
    out = device.empty(x.size, np.float32)
    roots[-(-x.size // 128), 128](device.to_device(x), out)
    assert np.abs(device.to_host(out) * np.sqrt(x.astype(np.float64)) - 1).max() <= 2**-23


@each_rung
def test_out_and_stream(rung):
    arguments, stream = INPUTS["an odd grid"], cuda.stream()
    out = device.to_device(np.full(arguments[1], np.nan, np.float32))
    assert rung(device.to_device(arguments[0]), *arguments[1:], out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), *arguments)


@pytest.mark.parametrize("few", [0, 1024])
def test_the_plain_function_and_shapes_in_a_list(monkeypatch, few):
    monkeypatch.setattr(subject, "FEW", few)
    arguments = INPUTS["deep"]
    assert right(device.to_host(subject.of_charges(arguments[0], list(arguments[1]), *arguments[2:])), *arguments)


# ------------------------------------------------------------------------------------------------------------ bad input

A, S = np.ones((3, 4), np.float32), (2, 3, 4)
SHAPE = r"shape must be three integers \(nz, ny, nx\)"
BAD = {
    "atoms of float64": ((A.astype(float), S), {}, TypeError, "atoms must be float32, was float64"),
    "atoms without charges": ((A[:, :3].copy(), S), {}, ValueError, r"atoms must have shape \(any, 4\), had \(3, 3\)"),
    "every other atom": ((A[::2], S), {}, ValueError, "atoms must be contiguous in C order"),
    "a flat grid": ((A, (3, 4)), {}, ValueError, SHAPE),
    "a shape of one number": ((A, 5), {}, TypeError, SHAPE),
    "a shape below 0": ((A, (2, -1, 3)), {}, ValueError, SHAPE),
    "half a point": ((A, (2, 1.5, 3)), {}, ValueError, SHAPE),
    "no spacing": ((A, S, 0), {}, ValueError, "spacing must be from 1e-15 to .*, was 0"),
    "too wide": (
        (A, (1, 1, 2000), 1e15),
        {},
        ValueError,
        "spacing must end the grid before 1e18, was 1",
    ),
    "no softening": ((A, S, 1, 0), {}, ValueError, "softening must be from 1e-15"),
    "a word": ((A, S, 1, "soft"), {}, TypeError, "softening must be a number, was 'soft'"),
    "out on the host": ((A, S), {"out": np.ones(S, np.float32)}, TypeError, "out must be a device array"),
    "no stream": ((A, S), {"stream": "x"}, TypeError, "stream must be"),
    "an unknown word": ((A, S), {"outs": None}, TypeError, "did you mean 'out'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.on_both_units(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# 128 atoms, and 8 x 4 x 32 points: a tile of atoms, and 1,024 points in 8 blocks, or in one with 8 points a thread.

ATOMS, GRID = 128, (8, 4, 32)
POINTS = 1024
PAIRS, GROUPS = ATOMS * POINTS, ATOMS * POINTS // EACH
PLAIN = room.atoms_in_box(ATOMS, (32, 4, 8), np.random.default_rng(0)), GRID


def counters_of(rung):
    result, reports = observe(rung, *PLAIN)
    assert right(result, *PLAIN)
    return {name: total(reports, name) for name in reports[0].counters}


@interpreter_only
def test_counters_of_scattered():
    found = counters_of(room.scattered)
    assert found["atomic_lanes"] == PAIRS
    # Five a pair, six a row of points, two a plane; the sixth of a pair is the atomic's.
    assert found["flops"] == 5 * PAIRS + ATOMS * (6 * 32 + 2 * 8)


@interpreter_only
def test_counters_of_gathered_and_in_tiles():
    gathered, tiled = counters_of(room.gathered), counters_of(room.in_tiles)
    # Three differences, three squares, three additions, the product and its addition: 11 a pair, 3 a point.
    assert gathered["flops"] == tiled["flops"] == 11 * PAIRS + 3 * POINTS
    assert gathered["global_load_requests"] == 4 * PAIRS // 32
    assert tiled["global_load_requests"] == 4 * ATOMS // 32 * 8  # each block brings all numbers
    assert tiled["shared_load_requests"] == PAIRS // 32
    assert tiled["barriers"] == 2 * 8


@interpreter_only
def test_counters_of_coarsened_and_coalesced():
    coarse, in_order = counters_of(room.coarsened), counters_of(room.coalesced)
    for found in (coarse, in_order):
        assert found["flops"] == 5 * PAIRS + 6 * GROUPS + (2 + EACH) * POINTS // EACH
        assert found["shared_load_requests"] == GROUPS // 32
        assert found["inst_special"] == PAIRS // 32
    assert coarse["global_store_sectors"] == POINTS  # a sector for each element
    assert in_order["global_store_sectors"] == POINTS // 8


@interpreter_only
def test_counters_of_on_both_units():
    plain, found = counters_of(room.coalesced), counters_of(room.on_both_units)
    by_hand = GROUPS * room.BY_HAND
    assert found["inst_special"] == (PAIRS - by_hand) // 32
    assert found["flops"] - plain["flops"] == 12 * by_hand


# --------------------------------------------------------------------------------------------------------- the measured


def small(module, family):
    """The smallest workload of a family."""
    return min((one for one in module.WORKLOADS if one.family == family), key=lambda one: one.cost.bytes)


def test_the_workloads_are_verified_by_another_way():
    one = small(workloads, "cube")
    inputs = one.make(1)
    result = device.to_host(one.rungs[-1](*inputs))
    error, tolerance = bench._check(one, result, inputs)
    assert error <= tolerance
    result.flat[result.size // 2] += 1e-3 * abs(result).max()
    error, tolerance = bench._check(one, result, inputs)
    assert error > tolerance


def test_roots_of_roots_come_to_one():
    grid, turns = roots_alone.turns_of(1)
    assert turns == 1
    start = device.to_device(np.linspace(1, 2, grid * roots_alone.BLOCK, dtype=np.float32))
    out = device.to_host(roots_alone.roots_alone(start, 1))
    assert abs(out - 8).max() < 0.2  # eight roots of roots: the error halves each time


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_whole_arrays_of_a_library_agree(library):
    module = pytest.importorskip(library)
    one = small(workloads, "cube")
    inputs, out = one.make(1), one.output()
    _, convert = bench.adapter(library)
    one.libraries[f"{library}.rsqrt"](module, convert(inputs[0]), convert(out))
    error, tolerance = bench._check(one, out, inputs)
    assert error <= tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [room.gathered, room.coarsened, room.on_both_units], ids=lambda rung: rung.name)
def test_more_points_than_32_bits_count(rung):
    """2^31 and more points, of which the last ones are checked."""
    cupy = pytest.importorskip("cupy")
    shape = (2**11 + 1, 2**10, 2**10)
    if cupy.cuda.runtime.memGetInfo()[0] < 10 * 2**30:
        pytest.skip("too little memory")
    last = np.float32([[1023, 1023, 2048, 3]])
    found = cupy.asarray(rung(last, shape, 1.0, 0.5))[-2:, -1, -2:].get()
    near = np.float32([[2, 1], [1, 0]])
    np.testing.assert_allclose(found, 3 / np.sqrt(near + 0.25), rtol=1e-6)
