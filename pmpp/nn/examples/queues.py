"""A model of a host and a GPU: a program of work, launches, copies and waits becomes a `Timeline`, without a clock.

The host takes some time for each launch. A GPU runs what is queued in order, each kernel when it was launched and the
one before is done. Copies from pinned memory have a queue of their own. `imagined` has the six slow trainings of
notebooks/92_finding_the_bottleneck.ipynb in this model, and their cures. The numbers in them are assumptions that make
each fault visible; what real ones take, `pmpp.nn.measure.bottleneck` measures.
"""

from __future__ import annotations

import typing
from collections import Counter
from contextlib import contextmanager

from pmpp.nn.timeline import Span, Timeline

__all__ = ["CASES", "Queue", "imagined", "unknown"]

CASES = "loading", "transfer", "launches", "synchronisation", "memory-bound layers", "host work"
LAUNCH, WAIT = 8.0, 10.0  # microseconds of the host: a launch, and noticing that the GPU is done


class Queue:
    """The host's time, and when the GPU and the copies will be done, in microseconds."""

    def __init__(self) -> None:
        self.host = self.gpu = self.copies = 0.0
        self.spans: list[Span] = []
        self.phase = ""

    @contextmanager
    def span(self, name: str) -> typing.Iterator[None]:
        """Name what the host does within."""
        start, before = self.host, self.phase
        self.phase = name
        yield
        self.phase = before
        self.spans.append(Span("host", name, start, self.host))

    def work(self, name: str, us: float) -> None:
        """The host computes."""
        with self.span(name):
            self.host += us

    def launch(self, us: float, times: int = 1, cost: float = LAUNCH) -> None:
        """Kernels of so many microseconds each."""
        for _ in range(times):
            self.host += cost
            start = max(self.gpu, self.host)
            self.gpu = start + us
            self.spans.append(Span("GPU", "kernel", start, self.gpu, self.phase))

    def wait(self) -> None:
        """The host waits until the GPU is done."""
        start, self.host = self.host, max(self.host, self.gpu) + WAIT
        self.spans.append(Span("host", "wait", start, self.host))

    def copy(self, us: float) -> None:
        """From pageable memory: when the GPU is done, and the host waits for it."""
        began, start = self.host, max(self.host, self.gpu)
        self.host = self.gpu = self.copies = start + us
        self.spans += [
            Span("copies", "to the GPU", start, self.host, self.phase),
            Span("host", "wait", began, self.host),
        ]

    def fetch(self, us: float) -> float:
        """From pinned memory, while the GPU computes. Returns when it will be there."""
        self.host += LAUNCH
        start = max(self.copies, self.host)
        self.copies = start + us
        self.spans.append(Span("copies", "to the GPU", start, self.copies, self.phase))
        return self.copies

    def step(self, us: float = 20.0, layers: int = 6, cost: float = LAUNCH) -> None:
        """A training step: two launches backward for each forward, and an update."""
        for phase, times in (("forward", layers), ("backward", 2 * layers), ("update", 1)):
            with self.span(phase):
                self.launch(us, times, cost)

    def timeline(self, steps: int) -> Timeline:
        """What has happened."""
        length = max(span.end for span in self.spans)
        launches = sum(span.row == "GPU" for span in self.spans)
        return Timeline(self.spans, length, Counter(launches=launches), steps)


def imagined(case: str, faulty: bool, steps: int = 3) -> Timeline:
    """A slow training, or its cure, in the model. Raises KeyError for a case that is none of `CASES`."""
    queue = Queue()
    program = {
        "loading": _loading,
        "transfer": _transfer,
        "launches": _launches,
        "synchronisation": _synchronisation,
        "memory-bound layers": _layers,
        "host work": _host_work,
    }[case]
    arrived = 0.0
    for k in range(steps):
        with queue.span("step"):
            arrived = program(queue, faulty, k, arrived) or 0.0
    return queue.timeline(steps)


def _loading(queue: Queue, faulty: bool, k: int, arrived: float) -> None:
    queue.work("load", 900 if faulty else 40)
    queue.step()


def _transfer(queue: Queue, faulty: bool, k: int, arrived: float) -> float:
    if faulty:
        with queue.span("transfer"):
            queue.copy(400)
        queue.step()
        return 0.0
    with queue.span("transfer"):
        if k == 0:
            arrived = queue.fetch(80)
        after = queue.fetch(80)
    queue.gpu = max(queue.gpu, arrived)
    queue.step()
    return after


def _launches(queue: Queue, faulty: bool, k: int, arrived: float) -> None:
    if faulty:
        queue.step(2.0)
        with queue.span("update"):
            queue.launch(2.0, 40)
        return
    with queue.span("graph"):
        queue.launch(2.0 * 19, 1, 20)


def _synchronisation(queue: Queue, faulty: bool, k: int, arrived: float) -> None:
    with queue.span("graph"):
        queue.launch(150.0, 1, 40)
    if faulty:
        with queue.span("read"):
            queue.wait()
            queue.wait()


def _layers(queue: Queue, faulty: bool, k: int, arrived: float) -> None:
    for phase, products, activations in (("forward", 5, 4), ("backward", 10, 4)):
        with queue.span(phase):
            for i in range(products):
                queue.launch(20.0)
                if i < activations:
                    queue.launch(24.0, 9 if faulty else 1)
    with queue.span("update"):
        queue.launch(10.0)


def _host_work(queue: Queue, faulty: bool, k: int, arrived: float) -> None:
    with queue.span("graph"):
        queue.launch(300.0 if faulty else 330.0, 1, 20)
    if faulty:
        queue.work("log", 900)


# Two more, for an exercise: what each span does is in the picture, and not in its name.


def unknown(number: int, steps: int = 3) -> tuple[Timeline, str]:
    """Timeline 1 or 2 of an exercise, and its cause, one of `CASES`."""
    queue = Queue()
    for _ in range(steps):
        with queue.span("step"):
            (_first, _second)[number - 1](queue)
    return queue.timeline(steps), ("launches", "transfer")[number - 1]


def _first(queue: Queue) -> None:
    for phase, times in (("forward", 12), ("backward", 24), ("update", 50)):
        with queue.span(phase):
            queue.launch(2.5, times)


def _second(queue: Queue) -> None:
    for phase, times in (("forward", 12), ("backward", 24), ("update", 1)):
        with queue.span(phase):
            if phase != "update":
                queue.copy(250)
            queue.launch(15.0, times)
