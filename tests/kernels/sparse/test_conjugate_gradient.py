"""Conjugate gradients: solutions, what does not converge, launches, and bad arguments."""

import numpy as np
import pytest

from pmpp.kernels.sparse import conjugate_gradient, ladder
from pmpp.kernels.sparse.conjugate_gradient import solve
from pmpp.runtime import device
from tests.support.wrong import observe

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts launches")
SIDE = 10  # each step has three kernels of 2^16 threads, and steps grow with the side
PLATE = ladder.poisson(SIDE)
B = np.random.default_rng(1).standard_normal(SIDE**2, dtype=np.float32)


def residual(matrix, x, b):
    """The length of b - A x as a share of that of b, in float64."""
    sparse = pytest.importorskip("scipy.sparse")
    values, columns, starts = matrix
    there = sparse.csr_array((values.astype(np.float64), columns, starts), shape=(b.size, b.size))
    return np.linalg.norm(b - there @ x.astype(np.float64)) / np.linalg.norm(b)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
def test_the_error_is_what_was_asked_for(tolerance):
    found = solve(*PLATE, B, tolerance=tolerance, every=1)
    assert found.converged
    # The carried error drifts from the true one: eps times the condition number, here SIDE^2 times 4 / pi^2.
    drift = np.finfo(np.float32).eps * SIDE**2
    assert residual(PLATE, device.to_host(found.x), B) <= tolerance + drift
    assert found.error <= tolerance
    less = solve(*PLATE, B, tolerance=tolerance, most=found.steps - 1, every=1)
    assert (less.converged, less.steps) == (False, found.steps - 1)
    assert less.error > tolerance


def test_scipys_solver_needs_as_many_steps():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    values, columns, starts = PLATE
    matrix = pytest.importorskip("scipy.sparse").csr_array((values.astype(np.float64), columns, starts))
    steps = []
    linalg.cg(matrix, B.astype(np.float64), rtol=1e-4, callback=steps.append)
    assert abs(solve(*PLATE, B, tolerance=1e-4, every=1).steps - len(steps)) <= 1


@pytest.mark.parametrize("rung", [ladder.by_row, ladder.merged], ids=lambda rung: rung.name)
def test_any_product_will_do(rung):
    found = solve(*PLATE, B, tolerance=1e-4, multiply=rung)
    assert found.converged
    assert found.steps % 10 == 0  # the host looks at the error every ten steps


def test_in_n_steps_at_most_and_in_one_for_equal_diagonals():
    n = 5
    diagonal = np.float32([1, 2, 3, 4, 5]), np.arange(n, dtype=np.int32), np.arange(n + 1, dtype=np.int64)
    found = solve(*diagonal, np.ones(n, np.float32), tolerance=1e-6, every=1)
    assert found.steps <= n
    np.testing.assert_allclose(device.to_host(found.x), 1 / diagonal[0], rtol=1e-5)
    alike = np.full(n, 4, np.float32), *diagonal[1:]
    found = solve(*alike, np.arange(n, dtype=np.float32), every=1)
    assert found.steps == 1
    np.testing.assert_array_equal(device.to_host(found.x), np.arange(n) / 4)


def test_nothing_to_do():
    found = solve(*PLATE, np.zeros(SIDE**2, np.float32))
    assert (found.steps, found.error, found.converged) == (0, 0.0, True)
    assert not device.to_host(found.x).any()
    empty = solve(np.float32([]), np.int32([]), np.int32([0]), np.float32([]))
    assert (empty.x.shape, empty.steps, empty.converged) == ((0,), 0, True)


def test_what_is_not_positive_definite_does_not_converge():
    values, columns, starts = PLATE
    assert not solve(-values, columns, starts, B, most=30).converged
    found = solve(np.where(np.arange(values.size) == 40, np.float32(np.nan), values), columns, starts, B, most=30)
    assert not found.converged
    assert np.isnan(found.error)


@interpreter_only
def test_a_step_has_its_product_and_three_kernels_and_the_same_bits():
    def call(*arguments):
        return solve(*arguments, most=3, every=3).x

    result, reports = observe(call, *PLATE, B)
    product = ["merged_kernel"]
    step = ["dot_kernel", "advance_kernel", "turn_kernel"]
    grid = [name for name in (report.kernel for report in reports) if name != "finish_kernel"]
    assert grid == ["begin_kernel", *3 * [*product, *step]]
    assert device.to_host(call(*PLATE, B)).tobytes() == result.tobytes()


BAD = {
    "b too short": ((*PLATE, B[1:]), {}, ValueError, r"b must have shape \(100,\), had \(99,\)"),
    "b of float64": ((*PLATE, B.astype(float)), {}, TypeError, "b must be float32, was float64"),
    "values of float64": ((PLATE[0].astype(float), *PLATE[1:], B), {}, TypeError, "values must be float32"),
    "a column before the first": (
        (PLATE[0], PLATE[1] - 1, PLATE[2], B),
        {},
        ValueError,
        "columns must be from 0 to 99",
    ),
    "starts behind 0": ((*PLATE[:2], PLATE[2] + 1, B), {}, ValueError, "starts must be from 0 to 460, .*, was from 1"),
    "no starts": ((*PLATE[:2], PLATE[2][:0], B), {}, ValueError, "starts must have at least 1 element, .* had 0"),
    "no rows": ((*PLATE[:2], PLATE[2][:1], B[:0]), {}, ValueError, "starts must be from 0 to 460, .*, was from 0 to 0"),
    "tolerance below 0": ((*PLATE, B), {"tolerance": -1}, ValueError, "tolerance must be at least 0, was -1"),
    "no steps": ((*PLATE, B), {"most": 0}, ValueError, "most must be at least 1, was 0"),
    "another product": ((*PLATE, B), {"multiply": np.dot}, TypeError, "multiply must be a rung of .*, was"),
    "never looked at": ((*PLATE, B), {"every": 0}, ValueError, "every must be at least 1, was 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        solve(*arguments, **options)


def test_the_kernels_have_a_block_for_each_sum():
    assert conjugate_gradient.BLOCKS == conjugate_gradient.BLOCK  # a thread of the next kernel takes a sum each
