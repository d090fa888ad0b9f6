"""The model of a host and a GPU: times by hand, and that each imagined training shows its fault and no other."""

import pytest

from pmpp.nn.examples import queues
from pmpp.nn.examples.queues import Queue, imagined, unknown


def test_a_kernel_begins_when_it_was_launched_and_the_one_before_is_done():
    queue = Queue()
    queue.launch(20.0, 2)
    kernels = [(span.start, span.end) for span in queue.spans]
    assert kernels == [(8, 28), (28, 48)]
    queue.work("load", 100)
    queue.launch(5.0)
    assert queue.spans[-1].start == 16 + 100 + 8


def test_the_host_waits_for_the_gpu():
    queue = Queue()
    queue.launch(50.0)
    queue.wait()
    assert queue.host == 58 + queues.WAIT


def test_a_copy_from_pinned_memory_waits_for_no_kernel():
    queue = Queue()
    queue.launch(500.0)
    assert queue.fetch(80) == 8 + 8 + 80
    assert queue.fetch(80) == 8 + 8 + 80 + 80
    queue.copy(10)
    assert queue.host == 508 + 10


@pytest.mark.parametrize("case", queues.CASES)
def test_a_cure_is_faster(case):
    slow, cured = imagined(case, faulty=True), imagined(case, faulty=False)
    assert cured.length < 0.9 * slow.length
    assert slow.steps == cured.steps == 3


@pytest.mark.parametrize(
    ("case", "guilty"), [("loading", "load"), ("transfer", "wait"), ("host work", "log"), ("synchronisation", "wait")]
)
def test_the_guilty_span_has_the_most_idle_time(case, guilty):
    blame = imagined(case, faulty=True).blame()
    assert guilty in list(blame)[:2]
    assert imagined(case, faulty=True).idle_share > 0.1


def test_the_unknown_ones_show_their_causes():
    line, cause = unknown(1)
    assert cause == "launches"
    assert line.idle_share > 0.6
    assert line.wait_share == 0
    line, cause = unknown(2)
    assert cause == "transfer"
    assert next(iter(line.blame())) == "wait"
    assert len(line.row("copies")) == 2 * line.steps
