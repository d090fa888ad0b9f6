"""Cutoff: results, bins, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.potential import cutoff as room
from pmpp.kernels.potential import cutoff_workloads as workloads
from pmpp.kernels.potential import ladder
from pmpp.lab.measure import bench
from pmpp.runtime import device
from tests.kernels.potential.wrong_cutoff import RIGHT
from tests.kernels.potential.wrong_cutoff import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


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


def test_the_reference_is_that_of_distances_by_scipy():
    distance = pytest.importorskip("scipy.spatial.distance")
    atoms, shape, cutoff, spacing, softening = INPUTS["an odd grid"]
    r = distance.cdist(np.indices(shape).reshape(3, -1).T[:, ::-1] * spacing, atoms[:, :3].astype(np.float64))
    terms = np.where(r < cutoff, atoms[:, 3] / np.hypot(r, softening) * (1 - (r / cutoff) ** 2) ** 2, 0)
    np.testing.assert_allclose(room.reference(*INPUTS["an odd grid"]), terms.sum(axis=1).reshape(shape), atol=1e-5)


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=lambda rung: rung.name)
@hypothesis.given(
    atoms=st.integers(1, 60),
    shape=st.tuples(*[st.sampled_from([1, 2, 5, 8, 9, 33])] * 3).filter(lambda shape: np.prod(shape) < 1500),
    cutoff=st.sampled_from([0.5, 1.9, 4.0, 30.0]),
    spacing=st.sampled_from([1.0, 0.3]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_grid(rung, atoms, shape, cutoff, spacing, seed):
    size = tuple(spacing * n for n in reversed(shape))
    arguments = ladder.atoms_in_box(atoms, size, np.random.default_rng(seed)), shape, cutoff, spacing, 1e-3
    assert right(device.to_host(rung(*arguments)), *arguments)


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=lambda rung: rung.name)
def test_few_bins_that_are_wider(rung, monkeypatch):
    """As if a million were too many: bins grow, and a grid far from 0 loses no atom to rounding."""
    monkeypatch.setattr(room, "MOST_BINS", 30)
    arguments = INPUTS["an odd grid"]
    assert right(device.to_host(rung(*arguments)), *arguments)
    far = ladder.atoms_in_box(40, (3, 2, 40_000), np.random.default_rng(5))
    far[:, 2] = 40_000 - far[:, 2] / 4000
    arguments = far, (4001, 1, 2), 3.0, 10.0, 1e-3
    assert right(device.to_host(rung(*arguments)), *arguments)


def test_bins_reach_as_far_as_the_cutoff():
    for extents, spacing, cutoff in (((9, 1, 100), 0.5, 2.0), ((1, 1, 1), 1.0, 1e15), ((2000, 2000, 2000), 1.0, 0.01)):
        bins = room.bins_of(extents, spacing, cutoff)
        assert bins.nu * bins.nv * bins.nw <= room.MOST_BINS
        for count, n in zip(bins[:3], extents, strict=True):
            assert -bins.start >= cutoff
            assert float(bins.start) + count * float(bins.side) > (n - 1) * spacing + cutoff


@each_rung
def test_atoms_that_begin_anywhere_and_out(rung):
    arguments = INPUTS["an odd grid"]
    out = device.to_device(np.full(arguments[1], np.nan, np.float32))
    assert rung(misaligned(arguments[0], 1), *arguments[1:], out=out) is out
    assert right(device.to_host(out), *arguments)


A, S = np.ones((3, 4), np.float32), (2, 3, 4)
BAD = {
    "atoms of float64": ((A.astype(float), S, 1), {}, TypeError, "atoms must be float32, was float64"),
    "a flat grid": ((A, (3, 4), 1), {}, ValueError, r"shape must be three integers \(nz, ny, nx\)"),
    "no cutoff": ((A, S, 0), {}, ValueError, "cutoff must be from 1e-15 to .*, was 0"),
    "an endless cutoff": ((A, S, np.inf), {}, ValueError, "cutoff must be a finite number, was inf"),
    "a word": ((A, S, "far"), {}, TypeError, "cutoff must be a number, was 'far'"),
    "out where atoms are": ((A, (1, 3, 4), 1), {"out": np.ones(3)}, TypeError, "out must be a device array"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.by_box(*arguments, **options)


def test_what_is_refused_leaves_the_output_alone():
    """Also without atoms, where all potentials are 0."""
    out = device.to_device(np.full(S, 7, np.float32))
    with pytest.raises(ValueError, match="cutoff must be from 1e-15"):
        room.by_box(A[:0], S, -1, out=out)
    assert (out.copy_to_host() == 7).all()


def test_a_cutoff_far_below_the_spacing_makes_no_more_bins():
    cutoffs = (1.0, 0.1, 1e-3, 1e-9)
    assert {room.bins_of((5, 1, 1), 1.0, cutoff).side for cutoff in cutoffs} == {0.25}
    atoms = np.float32([[2, 0, 0, 1], [3.0005, 0, 0, 1]])
    found = [device.to_host(rung(atoms, (1, 1, 5), 1e-3)) for rung in room.LADDER]
    assert (found[0] > 0).tolist() == [[[False, False, True, True, False]]]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------- counters


def counters_of(rung, *arguments):
    result, reports = observe(rung, *arguments)
    assert right(result, *arguments)
    return {name: total(reports, name) for name in reports[-1].counters}


@interpreter_only
def test_counters():
    """An atom to each cell of a crystal, and points half way between them."""
    crystal = ladder.rock_salt(8)
    crystal[:, :3] += np.float32(0.5)
    arguments = crystal, (8, 8, 8), 2.0
    found = {rung.name: counters_of(rung, *arguments) for rung in room.LADDER}
    points = np.indices((8, 8, 8)).reshape(3, -1).T[:, np.newaxis, ::-1]
    pairs = int((((points - crystal[:, :3]) ** 2).sum(axis=2) < 4).sum())
    # Of a pair 8 FLOP for the square of its distance, 2 to ask, and 5 more if it is near; 3 for a point.
    assert found["all_asked"]["flops"] == 10 * 512 * 512 + 5 * pairs + 3 * 512
    for name, share in (("binned", 3), ("by_box", 1.5)):  # each lane looks at the bins of its whole box
        assert 512 <= found[name]["atomic_lanes"] < 540  # each atom is counted once; the tiles of the scan, too
        assert 5 * pairs < found[name]["flops"] < found["all_asked"]["flops"] / share
    # Where all lanes of a warp ask for the same atom, that is one sector; binned's lanes go their own ways.
    assert found["by_box"]["global_load_requests"] < found["binned"]["global_load_requests"] / 2


@interpreter_only
def test_work_grows_with_the_volume():
    rng, found = np.random.default_rng(1), {}
    for edge in (6, 12):
        arguments = ladder.atoms_in_box(edge**3 // 4, (edge,) * 3, rng), (edge,) * 3, 2.0
        found[edge] = [counters_of(rung, *arguments)["warp_instructions"] for rung in (room.all_asked, room.by_box)]
    all_asked, by_box = (found[12][k] / found[6][k] for k in (0, 1))
    assert all_asked > 50  # eight times the points, and each asks eight times the atoms
    assert by_box < 14  # less is left out at the rim of the larger one


def test_the_workloads_are_verified_by_another_way():
    one = min(workloads.WORKLOADS, key=lambda one: one.cost.bytes)
    inputs = one.make(1)
    result = device.to_host(one.rungs[-1](*inputs))
    error, tolerance = bench._check(one, result, inputs)
    assert error <= tolerance
    result.flat[result.size // 2] += 1e-3 * abs(result).max()
    error, tolerance = bench._check(one, result, inputs)
    assert error > tolerance


def test_how_many_pairs_are_near():
    """The number by geometry, which costs are made of, against a count: points and atoms lie in one cube."""
    edge, rng = 64, np.random.default_rng(2)
    atoms = ladder.atoms_in_box(workloads.atoms_of(edge), (edge * workloads.SPACING,) * 3, rng)[:, :3]
    points = rng.integers(0, edge, (400, 1, 3)) * workloads.SPACING
    near = ((points - atoms) ** 2).sum(axis=2) < workloads.CUTOFF**2
    assert near.mean() * atoms.shape[0] * edge**3 == pytest.approx(workloads.pairs_of(edge), rel=0.08)


@pytest.mark.gpu
def test_whole_arrays_of_cupy_agree():
    cupy = pytest.importorskip("cupy")
    one = min(workloads.WORKLOADS, key=lambda one: one.cost.bytes)
    inputs, out = one.make(1), one.output()
    one.libraries["cupy.sqrt"](cupy, cupy.asarray(inputs[0]), cupy.asarray(out))
    error, tolerance = bench._check(one, out, inputs)
    assert error <= tolerance
