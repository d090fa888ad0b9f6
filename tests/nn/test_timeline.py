"""The recorder of spans: what it counts, what it computes of them, and that it leaves no trace."""

import json

import numpy as np
import pytest

from pmpp import cuda, nn
from pmpp.nn import functional as F
from pmpp.nn import timeline
from pmpp.nn.tape import Tensor
from pmpp.nn.timeline import Recorder, Span, Timeline, draw, merged
from pmpp.runtime import device


def by_hand():
    """Two steps: the GPU works from 10 to 30, 30 to 40 and 60 to 80, of 100; the host waits from 20 to 40."""
    spans = [
        Span("host", "step", 0, 45),
        Span("host", "load", 0, 10),
        Span("host", "forward", 10, 45),
        Span("host", "wait", 20, 40),
        Span("host", "step", 50, 100),
        Span("host", "load", 50, 60),
        Span("GPU", "a_kernel", 10, 30, "forward", "conv1"),
        Span("GPU", "b_kernel", 25, 40, "forward", "fc1"),
        Span("GPU", "a_kernel", 60, 80, "load", "conv1"),
        Span("copies", "to the GPU", 85, 90, "load"),
    ]
    return Timeline(spans, 100.0, steps=2)


def test_intervals_are_merged():
    assert merged([(3, 4), (0, 2), (1, 3), (6, 7)]) == [(0, 4), (6, 7)]
    assert merged([(0, 9), (1, 2)]) == [(0, 9)]
    assert merged([]) == []


def test_who_keeps_the_gpu_waiting():
    line = by_hand()
    assert line.busy() == [(10, 40), (60, 80)]
    assert line.gaps() == [(0, 10), (40, 60), (80, 100)]
    assert line.idle_share == pytest.approx(0.5)
    assert line.wait_share == pytest.approx(0.2)
    assert line.blame() == {"load": 20, "step": 20, "forward": 5, "between spans": 5}
    assert sum(line.blame().values()) == pytest.approx(100 * line.idle_share)
    assert line.by("layer") == {"conv1": 40, "fc1": 15}
    assert line.by("name", "copies") == {"to the GPU": 5}


def test_a_gpu_that_does_nothing_is_idle():
    assert Timeline([], 10.0).idle_share == 1


def test_it_survives_json():
    line = by_hand()
    again = Timeline.from_json(json.loads(json.dumps(line.as_json())))
    assert again.spans == line.spans
    assert (again.length, again.steps, again.counts) == (line.length, line.steps, line.counts)


def step(recorder, net, x, y):
    with recorder.span("step"):
        with recorder.span("forward"):
            loss = F.cross_entropy(net(x), y)
        with recorder.span("backward"):
            loss.backward()
        return loss.item()


class Net(nn.Module):
    def __init__(self):
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


X, Y = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])


@pytest.fixture(scope="module", autouse=True)
def a_step_before():
    """What the first step on a GPU copies once, for all that follow, is no part of a step."""
    with Recorder() as recorder:
        step(recorder, Net(), Tensor(X), Tensor(Y))


@pytest.mark.parametrize("gpu", [False, True], ids=["counts alone", "with events"])
def test_a_step_is_recorded(gpu):
    """Events of the interpreter pass when they are recorded: they stand for those of a GPU."""
    net, recorder = Net(), Recorder()
    x, y = Tensor(X), Tensor(Y)
    recorder.gpu = recorder.gpu or gpu
    with recorder:
        x.array.copy_to_device(X)
        step(recorder, net, x, y)
        cuda.synchronize()
    line = recorder.timeline()
    assert line.counts["bytes in"] == X.nbytes
    assert (line.counts["copies out"], line.counts["bytes out"]) == (1, 4)
    assert line.counts["waits"] == 3  # a copy in, one out, and the call
    assert [span.name for span in line.row("host") if span.name != "wait"] == ["step", "forward", "backward"]
    assert line.steps == 1
    kernels = line.row("GPU")
    assert len(kernels) == (line.counts["launches"] if recorder.gpu else 0)
    if recorder.gpu:
        assert {"first", "last"} <= {span.layer for span in kernels if span.phase == "forward"}
        assert {"first", "last"} <= {span.layer for span in kernels if span.phase == "backward"}
        # Only the host's own clock tells when a recording begins and ends: a GPU's is brought in line with it.
        assert all(0 <= span.start <= span.end <= line.length + 1e-6 for span in line.row("host"))
        assert all(span.start <= span.end for span in kernels)
    assert recorder.counts["launches"] > 6


def test_the_same_is_counted_every_time():
    counts = []
    for _ in range(2):
        net, recorder = Net(), Recorder()
        with recorder:
            step(recorder, net, Tensor(X), Tensor(Y))
        counts.append(recorder.counts)
    assert counts[0] == counts[1]


def test_nothing_is_left_behind():
    owners = [type(device.empty(1, np.float32)), timeline.tape.Node, timeline.Captured, device.backend().cuda]
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(ZeroDivisionError), Recorder():
        _ = 1 / 0
    assert all(dict(vars(owner)) == was for owner, was in zip(owners, before, strict=True))


def test_it_is_drawn():
    figure = draw({"one": by_hand(), "other": Timeline(by_hand().spans[:-1], 4000.0)}, names=("load",), note="by hand")
    first, second = figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["host", "GPU", "copies"]
    assert [label.get_text() for label in second.get_yticklabels()] == ["host", "GPU"]
    assert second.get_xlabel() == "time (ms)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["load", "forward", "the host waits"]


def test_a_short_span_is_still_seen():
    figure = draw({"one": Timeline((Span("host", "forward", 0, 6000), Span("GPU", "tiny", 100, 101)), 6000.0)})
    (ax,) = figure.axes
    assert sorted(round(bar.get_width(), 3) for bar in ax.patches) == [0.01, 6.0], "milliseconds"
