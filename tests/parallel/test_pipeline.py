"""Pipelines: gradients of one rank on the whole batch, and clocks that show the bubble of the formula."""

import functools
import itertools

import numpy as np
import pytest

from pmpp import nn, parallel
from pmpp.nn import functional as F
from pmpp.parallel import pipeline, pipeline_figures
from pmpp.parallel.pipeline import Stage, bubble, gpipe, one_forward_one_backward

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

schedules = pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward], ids=lambda one: one.__name__)
EACH = 2  # examples in a micro-batch
WIDTHS = (3, 4, 5, 4, 2)  # of four layers
SECONDS = 1.0, 2.0  # of a pass forward, and of one backward


class Layer(nn.Module):
    def __init__(self, inside, outside):
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        return F.relu(self.linear(x))


def layers():
    nn.manual_seed(3)
    return [Layer(a, b) for a, b in itertools.pairwise(WIDTHS)]


def target(y, k):
    wanted = np.random.default_rng(100 + k).normal(size=(EACH, WIDTHS[-1])).astype(np.float32)
    return ((y - nn.Tensor(wanted)) ** 2).sum()


def run(group, schedule, count, seconds=(0.0, 0.0)):
    """Gradients of this stage's layers, its losses, and of how many micro-batches it kept activations."""
    inputs = [np.random.default_rng(k).normal(size=(EACH, WIDTHS[0])).astype(np.float32) for k in range(count)]
    share = 4 // group.size
    part = slice(group.rank * share, (group.rank + 1) * share)
    net = nn.Sequential(*layers()[part])
    stage = Stage(group, net, (EACH, WIDTHS[part.start]), inputs, target, seconds)
    schedule(stage, count)
    assert not stage.kept
    return [parameter.grad.numpy() for parameter in net.parameters()], stage.losses, stage.most


@functools.cache
def piped(schedule, stages, count):
    """What `run` found on each stage, by ranks whose passes take `SECONDS` and whose messages take none."""
    return parallel.ranks(stages, run, schedule, count, SECONDS, links=parallel.Links(latency=0.0, bandwidth=1e30))


@functools.cache
def alone(count):
    return run(parallel.init(), gpipe, count)


@schedules
@pytest.mark.parametrize("stages, count", [(1, 3), (2, 1), (4, 2), (4, 5)])
def test_gradients_are_those_of_one_rank(schedule, stages, count):
    found = piped(schedule, stages, count)
    wanted, losses, _ = alone(count)
    gradients = [gradient for one in found for gradient in one[0]]
    assert len(gradients) == 8
    for mine, other in zip(gradients, wanted, strict=True):
        # The micro-batches are added in another order.
        np.testing.assert_allclose(mine, other, rtol=0, atol=count * np.finfo(np.float32).eps * np.abs(other).max())
    assert found[-1][1] == losses


@schedules
@pytest.mark.parametrize("stages, count", [(2, 1), (4, 2), (4, 5)])
def test_the_bubble_is_that_of_the_formula(schedule, stages, count):
    took, busy = max(piped(schedule, stages, count).report.seconds), count * sum(SECONDS)
    assert took == pytest.approx((count + stages - 1) * sum(SECONDS))
    assert 1 - busy / took == pytest.approx(bubble(stages, count))


@pytest.mark.parametrize("count", [2, 5])
def test_what_is_kept(count):
    assert [one[2] for one in piped(gpipe, 4, count)] == [count] * 4
    assert [one[2] for one in piped(one_forward_one_backward, 4, count)] == [
        min(4 - stage, count) for stage in range(4)
    ]


@schedules
def test_messages_and_bytes(schedule):
    """Activations and gradients of each micro-batch, over three links."""
    report = piped(schedule, 4, 5).report
    forward = {(s, s + 1): 5 * 4 * EACH * WIDTHS[s + 1] for s in range(3)}
    assert report.nbytes == forward | {(b, a): nbytes for (a, b), nbytes in forward.items()}
    assert set(report.messages.values()) == {5}


def test_neighbours_that_send_and_wait_are_a_deadlock(monkeypatch):
    """Why one forward, one backward needs both at the same time."""

    def first_send(self, y):
        if self.last:
            return None
        self.to_next(y)
        return self.from_next(y.shape)

    def first_send_back(self, dx):
        self.to_before(dx)
        return self.from_before()

    monkeypatch.setattr(Stage, "swap_with_next", first_send)
    monkeypatch.setattr(Stage, "swap_with_before", first_send_back)
    with pytest.raises(parallel.CommunicationError, match="deadlock: "):
        parallel.ranks(4, run, one_forward_one_backward, 6)


def test_the_last_rank_needs_a_loss():
    with pytest.raises(TypeError, match="loss must be a function on the last rank, was None"):
        Stage(parallel.init(), nn.Linear(1, 1))
    assert pipeline.bubble(1, 5) == 0


def test_passes_are_noted_by_the_clock():
    """Of a stage of its own group, whose rank there is not that among all."""

    def step(group):
        pair = group.split(colour=group.rank % 2)
        stage = Stage(pair, nn.Linear(1, 1), (1, 1), [np.ones((1, 1), np.float32)], lambda y, k: y.sum(), (1.0, 2.0))
        gpipe(stage, 1)
        return [(one.kind, one.k, round(one.begin, 6), round(one.end, 6)) for one in stage.passes]

    found = parallel.ranks(4, step, links=parallel.Links(latency=0.0, bandwidth=1e30))
    assert found[0] == found[1] == [("forward", 0, 0.0, 1.0), ("backward", 0, 4.0, 6.0)]
    assert found[2] == found[3] == [("forward", 0, 1.0, 2.0), ("backward", 0, 2.0, 4.0)]


def test_a_timetable_shows_each_pass_and_how_long_ranks_wait():
    ranks = [
        [pipeline.Pass("forward", 0, 0.0, 1.0), pipeline.Pass("backward", 0, 4.0, 6.0)],
        [pipeline.Pass("forward", 0, 1.0, 2.0), pipeline.Pass("backward", 0, 2.0, 4.0)],
    ]
    (ax,) = pipeline_figures.timetables({"GPipe": ranks}).axes
    assert ax.get_title(loc="left") == "GPipe: ends after 6, and the ranks wait 50% of the time"
    bars = [(bar.get_x(), bar.get_width(), bar.get_hatch()) for bar in ax.patches if bar.get_width()]
    assert bars == [(0.0, 1.0, None), (4.0, 2.0, "///"), (1.0, 1.0, None), (2.0, 2.0, "///")]
    assert [text.get_text() for text in ax.texts] == ["0"] * 4
