"""PageRank: against dense matrices in float64, both ways of bringing ranks, and bad arguments."""

import numpy as np
import pytest

from pmpp.kernels.graph import graphs, pagerank
from pmpp.runtime import device
from tests.support.wrong import observe

EPS = np.finfo(np.float32).eps
RNG = np.random.default_rng(45)


def one_way(tails, heads, vertices):
    starts, neighbours, _, *turned = graphs.directed(tails, heads, vertices)
    return starts, neighbours, *turned


GRAPHS = {
    "a hub": graphs.both_ways([0, 0, 0], [1, 2, 3], 4),
    "one vertex": graphs.both_ways([], [], 1),
    "no edges": graphs.both_ways([], [], 5),
    "loops, and edges twice": graphs.both_ways([0, 0, 1, 2], [0, 1, 1, 1], 3),
    "one way, and some lead nowhere": one_way(*RNG.integers(0, 90, (2, 120)), 90),
    "starts of 64 bits": graphs.both_ways(*RNG.integers(0, 300, (2, 500)), 300, np.int64),
}


def dense(starts, neighbours, in_starts=None, in_neighbours=None, damping=0.85, steps=1):
    """So many steps in float64."""
    n = starts.size - 1
    degree, led = np.diff(starts), np.zeros((n, n))
    np.add.at(led, (neighbours, np.repeat(np.arange(n), degree)), 1)
    led = np.where(degree > 0, led / np.maximum(degree, 1), 1 / n)
    ranks = np.full(n, 1 / n)
    for _ in range(steps):
        ranks = (1 - damping) / n + damping * led @ ranks
    return ranks


def allowed(starts, steps):
    """Each step rounds a rank's products, sums and itself, in relation to a sum of positive terms."""
    return steps * (np.diff(starts).max() + starts.size + 6) * EPS


@pytest.mark.parametrize("by", ["pull", "push"])
@pytest.mark.parametrize("name", GRAPHS)
def test_steps_are_those_of_the_definition(name, by):
    graph = GRAPHS[name]
    for damping, steps in ((0.85, 3), (0, 1), (1, 2)):
        found = pagerank.pagerank(*graph, by=by, damping=damping, most=steps, tolerance=0, every=1)
        ranks = device.to_host(found.ranks)
        expected = dense(*graph, damping=damping, steps=found.steps)
        np.testing.assert_allclose(ranks, expected, rtol=allowed(graph[0], steps), atol=1e-12)
        assert found.steps == steps or found.change == 0


@pytest.mark.parametrize("by", ["pull", "push"])
def test_it_ends_when_little_changes(by):
    graph = GRAPHS["one way, and some lead nowhere"]
    found = pagerank.pagerank(*graph, by=by, tolerance=1e-2, every=1)
    assert found.converged
    assert found.change <= 1e-2
    before, last = dense(*graph, steps=found.steps - 1), dense(*graph, steps=found.steps)
    assert abs(found.change - abs(last - before).sum()) < 1e-6
    less = pagerank.pagerank(*graph, by=by, tolerance=1e-2, most=found.steps - 1, every=1)
    assert (less.converged, less.steps) == (False, found.steps - 1)
    assert pagerank.pagerank(*graph, by=by, tolerance=1e-2, every=5).steps % 5 == 0
    assert abs(device.to_host(found.ranks).sum() - 1) < 100 * EPS


@pytest.mark.skipif(device.on_gpu(), reason="counts launches")
def test_no_launch_has_a_hazard():
    for by in ("pull", "push"):
        _, reports = observe(lambda *graph, by=by: pagerank.pagerank(*graph, by=by, most=2).ranks, *GRAPHS["a hub"])
        updates = [report for report in reports if report.kernel == "update_kernel"]
        assert len(updates) == 2


S, N = np.int32([0, 1, 2]), np.int32([1, 0])
BAD = {
    "neighbours of int64": ((S, N.astype(np.int64)), {}, TypeError, "neighbours must be int32, was int64"),
    "damping above 1": ((S, N), {"damping": 1.5}, ValueError, "damping must be from 0 to 1, was 1.5"),
    "tolerance below 0": ((S, N), {"tolerance": -1}, ValueError, "tolerance must not be negative, was -1"),
    "no steps": ((S, N), {"most": 0}, ValueError, "most must be at least 1, was 0"),
    "never looked at": ((S, N), {"every": 0}, ValueError, "every must be at least 1, was 0"),
    "another way": ((S, N), {"by": "jump"}, ValueError, "by must be 'pull' or 'push', was 'jump'"),
    "a way of no word": ((S, N), {"by": 1}, TypeError, "by must be .*, was 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        pagerank.pagerank(*arguments, **options)
