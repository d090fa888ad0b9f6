"""Plates on several GPUs of one process, here on one device: the bits of one GPU, flags, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.stencil import jacobi
from pmpp.parallel import measure_halo, plates
from pmpp.parallel.halo import reference
from pmpp.parallel.plates import WAYS, Plates
from pmpp.runtime import device
from tests.support.compiled import compile_ptx

each_way = pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
#: GPUs of the parts: where there are two, the parts change between them.
SECOND = 1 if len(cuda.gpus) > 1 else 0


def random(shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@each_way
@pytest.mark.parametrize(
    "shape, parts", [((3, 3), 1), ((7, 5), 2), ((37, 132), 2), ((9, 1028), 2), ((52, 34), 3), ((5, 1030), 3)], ids=str
)
def test_the_bits_are_those_of_one_gpu(way, shape, parts):
    grid = random(shape)
    several = Plates(grid, [SECOND * (k % 2) for k in range(parts)], way)
    several.run(3, changes=True)
    np.testing.assert_array_equal(several.whole(), reference(grid, 3))
    change = abs(reference(grid, 3) - reference(grid, 2)).max()
    assert several.largest_change() == change


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("shape", [(6, 8), (11, 37)], ids=str)
def test_strips_of_other_heights(shape, rows):
    grid = random(shape)
    old, new = device.to_device(grid), device.to_device(grid)
    change = device.to_device(np.zeros(1, np.float32))
    kernel = jacobi.step_for(shape[1] % 4 == 0, True, rows)
    kernel[jacobi.strips_of(shape[0] - 2, shape[1], rows), jacobi.THREADS](old, new, change)
    np.testing.assert_array_equal(device.to_host(new), reference(grid, 1))
    assert device.to_host(change)[0] == abs(reference(grid, 1) - grid).max()


def test_solve_stops_at_the_tolerance_and_at_the_most_steps():
    grid = np.zeros((8, 8), np.float32)
    grid[0] = 1
    solved = Plates(grid, [0, SECOND])
    made, change = solved.solve(1e-3, every=10)
    assert made % 10 == 0
    assert change <= 1e-3
    np.testing.assert_array_equal(solved.whole(), reference(grid, made))
    before = abs(reference(grid, made - 10) - reference(grid, made - 11)).max()
    assert before > 1e-3
    assert Plates(grid, [0]).solve(0.0, every=4, most=7)[0] == 7


def test_a_flag_that_is_never_set_ends_in_an_error(monkeypatch):
    """The neighbour's kernel is missing, so a border block waits until it gives up."""
    monkeypatch.setattr(plates, "LIMIT", 10)
    alone = Plates(random((8, 8)), [0, SECOND])
    alone.run(1)
    first = alone.parts[0]
    alone.parts = [first]
    alone.run(2)
    with pytest.raises(RuntimeError, match="a block of GPU 0 waited in vain for the border of its neighbour"):
        alone.synchronize()


def test_flags_say_how_many_steps_have_arrived():
    several = Plates(random((9, 1500)), [0, SECOND, 0])
    several.run(4)
    several.synchronize()
    across = 2
    for part, above, below in zip(several.parts, (0, 4, 4), (4, 4, 0), strict=True):
        flags = device.to_host(part.flags).tolist()
        assert flags == [above] * across + [below] * across + [0]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (([[1.0]], [0]), "grid must be a NumPy array of float32 with 2 dimensions, was list"),
        ((random((5, 5)), []), r"devices must be at least one and at most a part for each inner row, were \[\]"),
        ((random((5, 5)), [0] * 4), r"at most a part for each inner row, were \[0, 0, 0, 0\]"),
        ((random((5, 5)), [len(cuda.gpus)]), r"devices\[0\] must be"),
        ((random((5, 5)), [0], print), "way must be one of whole_exchange, overlapped, peer_stores, was"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Plates(*arguments)


@pytest.mark.parametrize(("aligned", "changes"), [(True, False), (False, True)])
def test_the_kernels_compile_without_float64(aligned, changes):
    grid, cell, flags = np.zeros((3, 8), np.float32), np.zeros(1, np.float32), np.zeros(3, np.int32)
    ptx = compile_ptx(jacobi.step_for(aligned, changes), grid, grid, cell)
    assert ".f64" not in ptx
    assert ("ld.global.v4.f32" in ptx) == aligned
    peer = jacobi.peer_step_for(aligned, changes)
    ptx = compile_ptx(peer, grid, grid, cell, grid, grid, flags, flags, flags, 3, 0, 10)
    assert ".f64" not in ptx
    assert ptx.count("st.release.sys") >= 2
    assert "ld.acquire.sys" in ptx


def test_the_command_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(measure_halo, "seconds", lambda plates, steps: 1.0 / len(plates.parts))
    measure_halo.main(["--side", "12", "--steps", "1", "--repeats", "1", "--no-record"])
    said = capsys.readouterr().out
    assert "efficiency 1.000" in said
    assert all(way.__name__ in said for way in WAYS)


@pytest.mark.parametrize(
    ("way", "kinds"),
    list(zip(WAYS, (["inside", "exchange"], ["border", "exchange", "inside"], ["inside"]), strict=True)),
)
def test_a_timeline_has_the_last_steps_of_each_gpu(way, kinds):
    several = Plates(random((12, 8)), [0, SECOND], way)
    found = measure_halo.timeline(several, steps=3, shown=2)
    assert [[one.kind for one in spans] for spans in found] == [kinds * 2] * 2
    assert min(one.begin for spans in found for one in spans) == 0.0
    np.testing.assert_array_equal(several.whole(), reference(several.grid, 3))
    assert all(part.marks is None for part in several.parts)


@pytest.mark.gpu
@pytest.mark.skipif(len(cuda.gpus) < 2, reason="needs two GPUs")
def test_a_process_that_used_two_gpus_ends_well():
    """Numba would unload each kernel's library once for each GPU."""
    command = [sys.executable, "-m", "pmpp.parallel.measure_halo", "--side", "64", "--steps", "2", "--no-record"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr


def test_the_command_refuses_a_way_that_computes_something_else(monkeypatch):
    monkeypatch.setattr(plates, "_send", lambda part, now, stream: None)
    with pytest.raises(RuntimeError, match="whole_exchange on 2 GPUs does not give the bits of one GPU"):
        measure_halo.measured(12, 1, 1, [0, 0])
