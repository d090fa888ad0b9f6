"""Who works when: spans of time on the host and on the GPU, recorded while a program runs, and drawn as rows.

::

    recorder = Recorder()
    with recorder:
        for images, labels in loader:
            with recorder.span("forward"):
                loss = F.cross_entropy(net(images), labels)
            ...
    found = recorder.timeline()
    found.idle_share, found.blame()
    draw({"as it is": found})

The host's spans are those that the program names, and "wait" where it copies to or from the GPU or waits for it. A span
on the GPU is a kernel, a CUDA graph or a copy. Two CUDA events enclose each. The first event passes at once if nothing
is queued before it, and the kernel behind it is still on its way from the host. So a span begins when the first event
has passed *and* the launch has returned. Each event costs the host about a microsecond, so a program runs a little
slower while it is recorded: take its time without the recorder.

The interpreter has no clock of a GPU. There a timeline has the host's spans, and counts: launches, copies, waits.

Chapter: notebooks/92_finding_the_bottleneck.ipynb.
"""

from __future__ import annotations

import functools
import itertools
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pmpp.nn import tape
from pmpp.nn.capture import Captured
from pmpp.nn.replay import Replay, Replayer, name_of
from pmpp.runtime import device

__all__ = ["Recorder", "Span", "Timeline", "draw"]

ROWS = "host", "GPU", "copies"
SPARE = 2048  # events that are made before the recording: making one takes longer than using it


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes: row, one of `ROWS`; name, what it was; start and end, in microseconds from the beginning of the
    recording; phase, the host's span that it was queued in; layer, the path of the module that queued it.
    """

    row: str
    name: str
    start: float
    end: float
    phase: str = ""
    layer: str = ""


Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not overlap, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@dataclass(frozen=True, eq=False)
class Timeline:
    """What a `Recorder` has seen.

    Attributes: spans; length, in microseconds; steps, how many spans "step" the host had, or 1; counts, by name:
    "launches" (of kernels and graphs), "copies in", "bytes in", "copies out", "bytes out" and "waits" (reads included).
    """

    spans: list[Span]
    length: float
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 1

    def row(self, name: str) -> list[Span]:
        """The spans of a row, in order."""
        return sorted((span for span in self.spans if span.row == name), key=lambda span: (span.start, -span.end))

    def busy(self, row: str = "GPU") -> list[Interval]:
        """When something of a row was under way."""
        return merged((span.start, span.end) for span in self.row(row))

    def gaps(self, row: str = "GPU") -> list[Interval]:
        """When nothing of a row was under way."""
        ends = [0.0, *(end for _, end in self.busy(row))]
        starts = [*(start for start, _ in self.busy(row)), self.length]
        return [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]

    @property
    def idle_share(self) -> float:
        """The share of the time in which the GPU computed nothing."""
        return sum(end - start for start, end in self.gaps()) / self.length

    @property
    def wait_share(self) -> float:
        """The share of the time in which the host waited for the GPU or for a copy."""
        waits = merged((span.start, span.end) for span in self.row("host") if span.name == "wait")
        return sum(end - start for start, end in waits) / self.length

    def host_at(self) -> list[tuple[float, float, str]]:
        """What the host was doing, as (start, end, name) one after the other: the innermost span counts."""
        marks = sorted({0.0, self.length, *(t for span in self.row("host") for t in (span.start, span.end))})
        spans, found = self.row("host"), []
        for start, end in itertools.pairwise(marks):
            inside = [span for span in spans if span.start <= start and end <= span.end]
            name = max(inside, key=lambda span: (span.start, -span.end)).name if inside else "between spans"
            found.append((start, end, name))
        return found

    def blame(self) -> dict[str, float]:
        """Microseconds in which the GPU was idle, by what the host was doing meanwhile; the most first."""
        found: Counter[str] = Counter()
        gaps = self.gaps()
        for start, end, name in self.host_at():
            for a, b in gaps:
                found[name] += max(0.0, min(b, end) - max(a, start))
        return {name: us for name, us in found.most_common() if us > 0}

    def by(self, what: str, row: str = "GPU") -> dict[str, float]:
        """Microseconds of a row by "name", "phase" or "layer"; the most first."""
        found: Counter[str] = Counter()
        for span in self.row(row):
            found[getattr(span, what)] += span.end - span.start
        return dict(found.most_common())

    def as_json(self) -> dict[str, typing.Any]:
        """All of it as numbers, strings and lists; `from_json` reads it."""
        rows = [f"{s.row}|{s.name}|{s.start:.1f}|{s.end:.1f}|{s.phase}|{s.layer}" for s in self.spans]
        return {"length": round(self.length, 1), "steps": self.steps, "counts": dict(self.counts), "spans": rows}

    @classmethod
    def from_json(cls, values: Mapping[str, typing.Any]) -> Timeline:
        """What `as_json` made."""
        rows = [row.split("|") for row in values["spans"]]
        spans = [Span(row, name, float(start), float(end), *more) for row, name, start, end, *more in rows]
        return cls(spans, values["length"], Counter(values["counts"]), values["steps"])


class Recorder:
    """Within it launches, copies and waits of this process are recorded; ``span`` names what the host does."""

    def __init__(self) -> None:
        self.host: list[Span] = []
        self.queued: list[tuple] = []  # row, name, phase, layer, the two events, and when the call had returned
        self.counts: Counter[str] = Counter()
        self.phases: list[str] = []
        self.path: tuple[str, ...] = ()  # of the node that goes backward
        self.inside = False  # of a call that is recorded: what it calls in turn is part of it
        self.gpu = device.on_gpu()

    @contextmanager
    def span(self, name: str) -> typing.Iterator[None]:
        """Name what the host does within."""
        start = self.now()
        self.phases.append(name)
        try:
            yield
        finally:
            self.phases.pop()
            self.host.append(Span("host", name, start, self.now()))

    def now(self) -> float:
        """Microseconds from the beginning."""
        return 1e6 * time.perf_counter() - self.zero

    def __enter__(self) -> Recorder:
        cuda = device.backend().cuda
        self.spare = [cuda.event() for _ in range(SPARE)] if self.gpu else []
        best = None
        for _ in range(5):  # the shortest of five round trips tells best when the GPU passed the event
            cuda.synchronize()
            event, before = cuda.event(), time.perf_counter()
            event.record()
            event.synchronize()
            after = time.perf_counter()
            if best is None or after - before < best:
                best, self.first, self.zero = after - before, event, 1e6 * (before + after) / 2
        self._undo = [_replace(owner, name, make) for owner, name, make in self._hooks(cuda)]
        self.begin = self.now()
        return self

    def __exit__(self, *_: object) -> None:
        self.end = self.now()
        for undo in self._undo:
            undo()

    def timeline(self) -> Timeline:
        """What was recorded. Waits for the GPU."""
        cuda = device.backend().cuda
        cuda.synchronize()
        spans = list(self.host)
        for row, name, phase, layer, before, after, returned in self.queued:
            start, end = (1e3 * cuda.event_elapsed_time(self.first, event) for event in (before, after))
            spans.append(Span(row, name, min(max(start, returned), end), end, phase, layer))
        last = max((span.end for span in spans), default=self.end)
        shifted = [Span(s.row, s.name, s.start - self.begin, s.end - self.begin, s.phase, s.layer) for s in spans]
        steps = sum(span.name == "step" for span in self.host) or 1
        return Timeline(shifted, max(last, self.end) - self.begin, self.counts, steps)

    # ------------------------------------------------------------------------------------ what stands in their places

    def _hooks(self, cuda: typing.Any) -> list[tuple[typing.Any, str, Callable]]:
        """Whose attribute is replaced, its name, and what makes the new one of the old one."""
        from pmpp.kernels.elementwise.ladder import fill_kernel

        launch, array = type(fill_kernel[1, 1]), type(device.empty(1, np.float32))
        hooks = [
            (launch, "__call__", self._launch),
            (Replay, "launch", self._replay),
            (Replayer, "record", self._within),
            (Captured, "__call__", self._graph),
            (array, "copy_to_device", self._copy_in),
            (array, "copy_to_host", self._copy_out),
            (cuda, "synchronize", self._wait),
            (type(cuda.event()), "synchronize", self._wait),
            (type(cuda.stream()), "synchronize", self._wait),
            (tape.Node, "backward", self._backward),
        ]
        if not self.gpu:
            hooks.append((cuda, "to_device", self._to_device))
        return hooks

    def _measured(self, row: str, name: str, queue: typing.Any, call: Callable, *arguments, **options) -> typing.Any:
        """Make a call between two events in a stream."""
        path = tape.state.path or self.path
        layer, phase = ".".join(path[1:] or path), self.phases[-1] if self.phases else ""
        if not self.gpu:
            return call(*arguments, **options)
        cuda = device.backend().cuda
        before, after = (self.spare.pop() if self.spare else cuda.event() for _ in range(2))
        before.record(queue)
        result = call(*arguments, **options)
        returned = self.now() if row == "GPU" else 0.0  # a call that copies may return when the copy is done
        after.record(queue)
        self.queued.append((row, name, phase, layer, before, after, returned))
        return result

    def _launch(self, old: Callable) -> Callable:
        def launch(configured: typing.Any, *arguments: typing.Any) -> None:
            if self.inside:
                return old(configured, *arguments)
            self.counts["launches"] += 1
            kernel = getattr(configured, "kernel", None) or configured.dispatcher
            stream = getattr(configured, "stream", 0)
            return self._measured("GPU", kernel.py_func.__name__, stream, old, configured, *arguments)

        return launch

    def _replay(self, old: Callable) -> Callable:
        def launch(replay: Replay) -> None:
            if self.inside:
                old(replay)
                return
            for function, start in zip(replay.functions, replay.starts, strict=True):
                self.counts["launches"] += 1
                self._measured("GPU", name_of(function), 0, start)

        return launch

    def _within(self, old: Callable) -> Callable:
        def record(*arguments: typing.Any) -> typing.Any:  # what it queues is queued in graphs that nobody launches
            with self._alone():
                return old(*arguments)

        return record

    def _graph(self, old: Callable) -> Callable:
        def call(captured: typing.Any, *inputs: typing.Any) -> typing.Any:
            if not self.gpu:  # there its kernels are launched one by one
                return old(captured, *inputs)
            self.counts["launches"] += 1
            stream = device.as_stream(captured._stream)
            with self._alone():
                return self._measured("GPU", "graph", stream, old, captured, *inputs)

        return call

    def _copy_in(self, old: Callable) -> Callable:
        def copy_to_device(array: typing.Any, source: typing.Any, stream: typing.Any = 0) -> typing.Any:
            if self.inside:
                return old(array, source, stream=stream)
            if not isinstance(source, np.ndarray):
                return self._measured("GPU", "copy on the device", stream, old, array, source, stream=stream)
            self._count("in", source.nbytes)
            # From pageable memory the call returns when the copy has left the host's memory; from pinned, at once.
            with self._alone(), self._waiting(stream == 0):
                return self._measured("copies", "to the GPU", stream, old, array, source, stream=stream)

        return copy_to_device

    def _copy_out(self, old: Callable) -> Callable:
        def copy_to_host(array: typing.Any, ary: typing.Any = None, stream: typing.Any = 0) -> np.ndarray:
            if self.inside:
                return old(array, ary, stream=stream)
            self._count("out", array.size * array.dtype.itemsize)
            with self._alone(), self._waiting(stream == 0):
                return self._measured("copies", "to the host", stream, old, array, ary, stream=stream)

        return copy_to_host

    def _to_device(self, old: Callable) -> Callable:
        def to_device(source: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
            if isinstance(source, np.ndarray):
                self._count("in", source.nbytes)
                self.counts["waits"] += 1
            return old(source, *arguments, **options)

        return to_device

    def _wait(self, old: Callable) -> Callable:
        def synchronize(*what: typing.Any) -> None:
            with self._waiting(True):
                old(*what)

        return synchronize

    def _backward(self, old: Callable) -> Callable:
        def backward(node: tape.Node, gradients: dict) -> tuple:
            self.path = node.path
            try:
                return old(node, gradients)
            finally:
                self.path = ()

        return backward

    def _count(self, way: str, nbytes: int) -> None:
        self.counts[f"copies {way}"] += 1
        self.counts[f"bytes {way}"] += nbytes

    @contextmanager
    def _alone(self) -> typing.Iterator[None]:
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    @contextmanager
    def _waiting(self, waits: bool) -> typing.Iterator[None]:
        if not waits:
            yield
            return
        self.counts["waits"] += 1
        start = self.now()
        yield
        self.host.append(Span("host", "wait", start, self.now()))


def _replace(owner: typing.Any, name: str, make: Callable) -> Callable[[], None]:
    """Put something in the place of an attribute; the result puts the old one back."""
    classes = owner.__mro__ if isinstance(owner, type) else (owner,)
    where = next(one for one in classes if name in vars(one))
    old = vars(where)[name]
    setattr(where, name, functools.wraps(old)(make(old)))
    return lambda: setattr(where, name, old)


# ------------------------------------------------------------------------------------------------------- the picture


def draw(timelines: Mapping[str, Timeline], names: tuple[str, ...] = (), note: str = "") -> typing.Any:
    """Timelines one below the other, on one axis of time, with a row for the host, the GPU and copies.

    Args:
        timelines: by title.
        names: the names of spans in the order of their colours; those that are missing come behind.
        note: the line at the bottom, which says where the times come from.

    A kernel has the colour of the span in which the host queued it. Returns a figure.
    """
    import matplotlib
    from matplotlib.patches import Patch

    from pmpp.lab.draw import palette, style

    with matplotlib.rc_context(style.STYLE):
        seen = [span.name for one in timelines.values() for span in one.row("host")]
        every = [name for name in dict.fromkeys([*names, *seen]) if name not in ("step", "wait")]
        colours = dict(zip(every, itertools.cycle(palette.COLOURS), strict=False))
        longest = max(one.length for one in timelines.values())
        thinnest = longest / 600  # about a pixel: what is narrower would not be drawn, or only here and there
        unit, word = (1e3, "ms") if longest >= 2000 else (1, "us")
        heights = [len(_rows(one)) for one in timelines.values()]
        figure = style.Chart(figsize=(7.8, 0.95 + 0.42 * sum(heights) + 0.5 * len(heights)), layout="constrained")
        plots = figure.subplots(len(timelines), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for ax, (title, one) in zip(plots, timelines.items(), strict=True):
            rows = _rows(one)
            for at, row in enumerate(rows):
                for span in sorted(one.row(row), key=lambda span: (span.name == "wait", span.start - span.end)):
                    if span.name == "step":
                        ax.axvline(span.start / unit, color=palette.EDGE, linewidth=0.8, zorder=0)
                        continue
                    waits = span.name == "wait"
                    colour = palette.WAITING if waits else colours.get(span.phase or span.name, palette.GREY)
                    width = max(span.end - span.start, thinnest) / unit
                    wide = span.end - span.start > longest / 50  # with an edge its neighbours can be told apart
                    bar = ax.barh(at, width, left=span.start / unit, height=0.7, color=colour, hatch="///" * waits)
                    bar.patches[0].set(linewidth=0.8 * wide, edgecolor=palette.NOTE if waits else "white")
            ax.set_yticks(range(len(rows)), rows)
            ax.set(title=title, ylim=(len(rows) - 0.5, -0.5))
            ax.grid(visible=False, axis="y")
        plots[-1].set(xlabel=f"time ({word})", xlim=(0, longest / unit))
        handles = [Patch(color=colours[name], label=name) for name in every if name in seen]
        if "wait" in seen:
            handles.append(Patch(facecolor=palette.WAITING, hatch="///", label="the host waits"))
        figure.legend(handles=handles, loc="outside upper center", ncols=6)
        if note:
            style.foot(figure, note)
        return figure


def _rows(one: Timeline) -> list[str]:
    return [row for row in ROWS if row != "copies" or one.row(row)]
