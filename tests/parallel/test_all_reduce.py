"""The algorithms of chapter 99: their sums, their messages, and their clocks beside the model."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import parallel
from pmpp.parallel import all_reduce
from pmpp.parallel.all_reduce import LADDER, critical_path, fastest, seconds
from pmpp.parallel.traffic import Links
from pmpp.runtime import device

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

each = pytest.mark.parametrize("algorithm", LADDER, ids=lambda one: one.__name__)
LINKS = Links(latency=1.0, bandwidth=16.0)


def run(algorithm, parts, **options):
    return parallel.ranks(
        len(parts), lambda group: device.to_host(algorithm(group, np.asarray(parts[group.rank]))), **options
    )


@each
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_sum_has_the_same_bits_on_all_ranks(algorithm, size, rng):
    for shape in ((), (0,), (1,), (3, 7)):
        parts = rng.normal(size=(size, *shape)).astype(np.float32)
        results = run(algorithm, parts)
        exact = parts.astype(np.float64).sum(axis=0)
        bound = size * np.finfo(np.float32).eps * np.abs(parts).astype(np.float64).sum(axis=0)
        for result in results:
            assert result.shape == shape
            assert (np.abs(result - exact) <= bound).all()
            np.testing.assert_array_equal(result, results[0], strict=True)


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.sampled_from(LADDER), st.integers(1, 9), st.integers(0, 40))
def test_integers_in_floats_are_exact(algorithm, size, length):
    parts = np.arange(size * length, dtype=np.float32).reshape(size, length)
    for result in run(algorithm, parts):
        np.testing.assert_array_equal(result, parts.sum(axis=0))


@each
def test_what_is_passed_stays_as_it_is(algorithm):
    def step(group):
        x = device.to_device(np.float32([1, 2, 3]))
        result = algorithm(group, x)
        return device.to_host(x).tolist(), device.to_host(result).tolist()

    assert parallel.ranks(3, step) == [([1, 2, 3], [3, 6, 9])] * 3


@each
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_the_clocks_are_those_of_the_model(algorithm, size):
    length = 120 * size  # pieces of all algorithms have one length: 120 is divisible by 8
    found = run(algorithm, np.ones((size, length), np.float32), links=LINKS)
    assert max(found.report.seconds) == pytest.approx(seconds(algorithm, size, 4 * length, LINKS))


@each
@pytest.mark.parametrize("size", [2, 4, 8])
def test_messages_and_bytes_by_hand(algorithm, size):
    nbytes, log = 4 * 64, int(math.log2(size))
    report = run(algorithm, np.ones((size, 64), np.float32)).report
    messages, copies = {
        "through_one": (2 * (size - 1), 2 * (size - 1)),
        "tree": (2 * (size - 1), 2 * (size - 1)),
        "gather_and_sum": (size * (size - 1), size * (size - 1)),
        "doubling": (size * log, size * log),
        "ring": (2 * size * (size - 1), 2 * (size - 1)),
        "halving": (2 * size * log, 2 * (size - 1)),
    }[algorithm.__name__]
    assert sum(report.messages.values()) == messages
    assert sum(report.nbytes.values()) == copies * nbytes


@pytest.mark.parametrize("size", range(2, 20))
def test_the_bounds_hold_and_are_reached(size):
    paths = [critical_path(algorithm, size) for algorithm in LADDER]
    assert min(messages for messages, _ in paths) >= math.log2(size)
    assert min(copies for _, copies in paths) >= 2 * (size - 1) / size
    assert critical_path(all_reduce.ring, size)[1] == 2 * (size - 1) / size
    if size & (size - 1) == 0:
        assert critical_path(all_reduce.doubling, size)[0] == math.log2(size)


def test_the_fastest_changes_with_the_length():
    links = Links(2e-6, 10e9)
    names = [fastest(8, 1 << k, links).__name__ for k in range(3, 31)]
    assert names == sorted(names, key=("doubling", "halving").index)
    assert {"doubling", "halving"} == set(names)
    assert fastest(6, 1 << 30, links) is all_reduce.ring
    assert fastest(1, 8, links)(parallel.init(), np.float32([2])).copy_to_host() == 2


def test_it_chooses_by_itself():
    found = parallel.ranks(4, lambda group: all_reduce.all_reduce(group, np.ones(2, np.float32), LINKS), links=LINKS)
    assert max(found.report.seconds) == 2 * (1 + 8 / 16)  # doubling
    with pytest.raises(TypeError, match="links must be Links"):
        all_reduce.all_reduce(parallel.init(), np.ones(2, np.float32), None)


@each
def test_another_dtype_is_refused(algorithm):
    with pytest.raises(TypeError, match="x must be"):
        algorithm(parallel.init(), np.ones(3))


def test_another_function_is_no_algorithm():
    with pytest.raises(ValueError, match=r"algorithm must be one of through_one, tree, .* halving, was"):
        critical_path(sum, 4)
    with pytest.raises(ValueError, match="size must be at least 1"):
        critical_path(all_reduce.ring, 0)
