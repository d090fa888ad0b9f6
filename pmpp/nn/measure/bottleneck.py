"""Six slow trainings and their cures, measured on a GPU: ``python -m pmpp.nn.measure.bottleneck``.

LeNet-5 learns digits. Each `Case` is one training loop in several versions: the first has a fault, the last has none.
All versions of a case begin with the same parameters and see the same batches, and their losses are compared before
anything is timed. Then come the time of a step without a recorder, and a timeline of a few steps with one. PyTorch's
profiler, where it is installed, says of the same steps when kernels ran: by it the timeline is judged.

It writes the record ``bottleneck`` after each case. ``--tools`` runs one version under Nsight Systems and one under
Nsight Compute instead, where these are installed, and writes ``bottleneck_tools``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.kernels import elementwise
from pmpp.lab.teach import data
from pmpp.nn import functional as F
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.measure import write
from pmpp.nn.tape import Tensor, no_grad, state
from pmpp.nn.timeline import Recorder, Timeline, merged
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

__all__ = ["CASES", "Case", "Job", "compare", "run", "silent"]

LR, MOMENTUM = 0.01, 0.9
#: Two versions compute the same in another order: the losses of a few steps differ by roundings, which grow from step
#: to step. A batch too many, an image decoded otherwise or a forgotten momentum changes them by more than this.
APART = 1e-3
REPETITIONS, DRAWN = 5, 3
DISTINCT = 4  # batches, which come again and again where a loader is not what is measured
MORE = 3  # batches behind the last step, so that a loader that works ahead has as much to do in it as before
FIRST = 2  # steps of each training that are not counted: they fill caches and pools
KNOB = 16, 64, 256, 1024, 4096

Span = Callable[[str], contextlib.AbstractContextManager]


# ------------------------------------------------------------------------------------------------------ what is trained


def gelu(x: Tensor) -> Tensor:
    """GELU by the hyperbolic tangent, written down operation by operation: nine kernels."""
    return (0.5 * x) * (1.0 + F.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


ACTIVATIONS = {"relu": F.relu, "gelu": lambda x: F.gelu(x, "tanh"), "gelu by operations": gelu}


class Large(LeNet):
    """LeNet-5 with one of `ACTIVATIONS`."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 10) of images (N, 1, 28, 28)."""
        x = F.max_pool2d(self.activation(self.conv1(x)), 2)
        x = F.max_pool2d(self.activation(self.conv2(x)), 2)
        x = self.activation(self.fc1(x.flatten(1)))
        return self.fc3(self.activation(self.fc2(x)))


class Small(nn.Module):
    """A linear layer for images of 8 x 8: for the interpreter."""

    def __init__(self, activation: str) -> None:
        self.fc1 = nn.Linear(64, 10)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 10) of images (N, 1, 8, 8)."""
        return self.activation(self.fc1(x.flatten(1)))


@functools.lru_cache(maxsize=2)
def digits(n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """n digits as bytes, and labels: 8 x 8, or 28 x 28 with each pixel three by three and an edge of two."""
    images, labels = data.digits()
    images = (images * np.float32(255 / 16)).astype(np.uint8)
    if size == 28:
        images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    chosen = np.resize(np.arange(len(labels)), n)
    return images[chosen], labels[chosen]


def decode(image: np.ndarray) -> np.ndarray:
    """From bytes to numbers of mean about 0: one image, or many."""
    return (image.astype(np.float32) / np.float32(255) - np.float32(0.13)) / np.float32(0.31)


@functools.lru_cache(maxsize=2)
def decoded(n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with the images decoded, (n, 1, size, size)."""
    images, labels = digits(n, size)
    return decode(images)[:, None], labels


class Files:
    """A dataset that decodes each image when it is asked for, as one does that reads files."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return decode(self.images[index])[None], self.labels[index]


class Job:
    """A training that begins anew: network, optimiser and batches are the same each time.

    Args:
        batch: examples in a step.
        steps: how many there will be.
        activation: of `ACTIVATIONS`.
        size: of an image: 28 for LeNet-5, or 8 for a small network, for the interpreter.

    Attributes: these; net; optimizer; norm, of the gradients, if `step` was asked for it.
    """

    def __init__(self, batch: int, steps: int, activation: str = "relu", size: int = 28) -> None:
        self.batch, self.steps, self.activation, self.size = batch, steps, activation, size
        self.norm: Tensor | None = None
        self.again()

    def again(self) -> None:
        """The network and the optimiser as they were before the first step."""
        self.net = self.network()
        self.optimizer = nn.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)

    def network(self) -> nn.Module:
        """A network with the parameters that every training begins with."""
        nn.manual_seed(0)
        return (Large if self.size == 28 else Small)(self.activation)

    def part(self, k: int) -> slice:
        """The examples of step k; they come again after `DISTINCT` steps."""
        return slice(k % DISTINCT * self.batch, (k % DISTINCT + 1) * self.batch)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The images of `DISTINCT` steps, decoded, (n, 1, size, size), and labels."""
        return decoded(self.batch * DISTINCT, self.size)

    def on_device(self) -> list[tuple[Tensor, Tensor]]:
        """All batches as tensors, so that a loop need not copy any."""
        images, labels = self.arrays()
        made = [(Tensor(images[self.part(k)]), Tensor(labels[self.part(k)])) for k in range(DISTINCT)]
        return [made[k % DISTINCT] for k in range(self.steps)]

    def step(self, x: Tensor, y: Tensor, span: Span, norm: bool = False) -> Tensor:
        """Forward, backward and update. Returns the loss, which is not waited for."""
        with span("forward"):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
        with span("backward"):
            loss.backward()
            if norm:
                self.norm = nn.clip_grad_norm_(self.net.parameters(), 1e6)
        with span("update"):
            self.optimizer.step()
        return loss.detach()

    def captured(self, *others: Callable[[Tensor, Tensor], typing.Any], norm: bool = False) -> Callable:
        """The step as a CUDA graph, begun anew. Its results are the loss and those of ``others``, copied each time."""

        def step(x: Tensor, y: Tensor) -> tuple:
            return self.step(x, y, silent, norm), *(other(x, y) for other in others)

        images, labels = self.arrays()
        graph = nn.capture(step, Tensor(images[self.part(0)]), Tensor(labels[self.part(0)]))
        self.restart(graph)

        def call(x: Tensor, y: Tensor) -> tuple:
            # The next replay overwrites the results, so what is kept is a copy. It is queued where the graph was.
            results = graph(x, y)
            before = state.stream
            state.stream = device.as_stream(graph._stream) if device.on_gpu() else before
            try:
                return tuple(Tensor(elementwise.copy(one.array, stream=state.stream)) for one in results)
            finally:
                state.stream = before

        return call

    def restart(self, graph: typing.Any) -> None:
        """Undo the steps that recording took, in place: the graph knows addresses."""
        self.net.load_state_dict(self.network().state_dict())
        for arrays in self.optimizer.state.values():
            for array in arrays.values():
                array.copy_to_device(np.zeros(array.shape, np.float32))


def silent(name: str) -> contextlib.AbstractContextManager:
    """A span that nobody records."""
    return contextlib.nullcontext()


def read(losses: list[Tensor], span: Span) -> list[float]:
    """What was kept on the device."""
    with span("read"):
        return [loss.item() for loss in losses]


# --------------------------------------------------------------------------------- the loops: (job, span) -> (go, done)
# A loop prepares what does not belong to a step. It returns `go(k)`, step k, and `done()`, the losses of all steps.


def loading(job: Job, span: Span, each: bool) -> tuple[Callable, Callable]:
    """Batches from a loader: images decoded one by one when they are asked for, or all of them beforehand."""
    n = job.batch * (job.steps + MORE)
    dataset = Files(*digits(n, job.size)) if each else TensorDataset(*decoded(n, job.size))
    batches, step, losses = iter(DataLoader(dataset, job.batch)), job.captured(), []

    def go(k: int) -> None:
        with span("load"):
            x, y = next(batches)
        with span("graph"):
            losses.append(step(x, y)[0])

    return go, lambda: read(losses, span)


def pageable(job: Job, span: Span) -> tuple[Callable, Callable]:
    """Each batch is copied when its step begins, from ordinary memory, and the host waits for it."""
    images, labels = job.arrays()
    losses: list[Tensor] = []

    def go(k: int) -> None:
        with span("transfer"):
            x, y = Tensor(images[job.part(k)]), Tensor(labels[job.part(k)])
        losses.append(job.step(x, y, span))

    return go, lambda: read(losses, span)


def pinned(job: Job, span: Span) -> tuple[Callable, Callable]:
    """The batch of the next step is copied from pinned memory, on a stream of its own, while this step computes."""
    from pmpp import cuda

    arrays = []
    for array in job.arrays():
        arrays.append(cuda.pinned_array(array.shape, array.dtype))
        arrays[-1][...] = array
    copies, computes = cuda.stream(), state.stream or cuda.default_stream()
    slots = [[device.empty((job.batch, *a.shape[1:]), a.dtype) for a in arrays] for _ in range(2)]
    arrived, free = ([cuda.event(timing=False) for _ in slots] for _ in range(2))
    losses: list[Tensor] = []

    def fetch(k: int) -> None:
        if k >= job.steps:
            return
        if k >= len(slots):
            free[k % 2].wait(copies)  # until the step that used this memory is done
        for array, target in zip(arrays, slots[k % 2], strict=True):
            target.copy_to_device(array[job.part(k)], stream=copies)
        arrived[k % 2].record(copies)

    def go(k: int) -> None:
        with span("transfer"):
            if k == 0:
                fetch(0)
            fetch(k + 1)
            arrived[k % 2].wait(computes)
        losses.append(job.step(*(Tensor(array) for array in slots[k % 2]), span))
        free[k % 2].record(computes)

    return go, lambda: read(losses, span)


class PerParameter:
    """SGD with momentum, written as a formula for each parameter: several launches for each."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.velocities = [Tensor(np.zeros(p.shape, np.float32)) for p in parameters]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """v = momentum v + gradient; p = p - lr v."""
        stream = state.stream
        for p, v in zip(self.parameters, self.velocities, strict=True):
            elementwise.multiply(v.array, MOMENTUM, out=v.array, stream=stream)
            elementwise.add(v.array, p.grad.array, out=v.array, stream=stream)
            change = elementwise.multiply(v.array, LR, stream=stream)
            elementwise.subtract(p.array, change, out=p.array, stream=stream)
            p.changed()


def launches(job: Job, span: Span, fused: bool = True) -> tuple[Callable, Callable]:
    """A step launched kernel by kernel; the update is one launch, or several for each parameter."""
    batches, losses = job.on_device(), []
    if not fused:
        job.optimizer = PerParameter(list(job.net.parameters()))

    def go(k: int) -> None:
        losses.append(job.step(*batches[k], span))

    return go, lambda: read(losses, span)


def graph(job: Job, span: Span) -> tuple[Callable, Callable]:
    """A step as a CUDA graph."""
    batches, step, losses = job.on_device(), job.captured(), []

    def go(k: int) -> None:
        with span("graph"):
            losses.append(step(*batches[k])[0])

    return go, lambda: read(losses, span)


def reading(job: Job, span: Span, each: bool) -> tuple[Callable, Callable]:
    """The loss and the gradients' norm of each step are wanted: read in each step, or when the training is over."""
    batches, step, kept = job.on_device(), job.captured(lambda x, y: job.norm, norm=True), []

    def go(k: int) -> None:
        with span("graph"):
            loss, norm = step(*batches[k])
        if each:
            with span("read"):
                loss, norm = loss.item(), norm.item()
        kept.append((loss, norm))

    def done() -> list[float]:
        with span("read"):
            return [float(one) for pair in kept for one in pair]

    return go, done


def statistics_on_host(job: Job, span: Span) -> tuple[Callable, Callable]:
    """A log wants the mean and the mean square of each batch, and NumPy computes them between two steps."""
    images, _ = job.arrays()
    batches, step, losses, log = job.on_device(), job.captured(), [], []

    def go(k: int) -> None:
        with span("graph"):
            losses.append(step(*batches[k])[0])
        with span("log"):
            x = images[job.part(k)].astype(np.float64)
            log.append((x.mean(), (x * x).mean()))

    return go, lambda: [*read(losses, span), *(float(one) for pair in log for one in pair)]


def statistics_on_device(job: Job, span: Span) -> tuple[Callable, Callable]:
    """The same by kernels that are part of the step's graph, read when the training is over."""

    def mean(x: Tensor, y: Tensor) -> Tensor:
        with no_grad():
            return x.mean()

    def square(x: Tensor, y: Tensor) -> Tensor:
        with no_grad():
            return (x * x).mean()

    batches, step, kept = job.on_device(), job.captured(mean, square), []

    def go(k: int) -> None:
        with span("graph"):
            kept.append(step(*batches[k]))

    def done() -> list[float]:
        with span("read"):
            return [row[0].item() for row in kept] + [one.item() for row in kept for one in row[1:]]

    return go, done


@dataclass(frozen=True)
class Case:
    """A fault and its cure.

    Attributes: batch; versions, by what distinguishes them, the faulty first: a loop, and the network's activation;
    steps, how many are timed together.
    """

    batch: int
    versions: dict[str, tuple[Callable, str]]
    steps: int = 20

    def begin(
        self, version: str, steps: int, span: Span, batch: int | None = None, size: int = 28
    ) -> tuple[Callable[[int], None], Callable[[], list[float]]]:
        """Prepare a training of so many steps: ``go(k)`` is step k, and ``done()`` what was computed."""
        loop, activation = self.versions[version]
        return loop(Job(batch or self.batch, steps, activation, size), span)


def with_options(loop: Callable, **options: typing.Any) -> tuple[Callable, str]:
    """A loop of the plain network."""
    return functools.partial(loop, **options), "relu"


CASES = {
    "loading": Case(
        256,
        {
            "images decoded one by one": with_options(loading, each=True),
            "decoded beforehand": with_options(loading, each=False),
        },
    ),
    "transfer": Case(8192, {"pageable, waited for": (pageable, "relu"), "pinned, ahead": (pinned, "relu")}, steps=8),
    "launches": Case(
        32,
        {
            "an update for each parameter": with_options(launches, fused=False),
            "one update for all": with_options(launches, fused=True),
            "one graph for all": (graph, "relu"),
        },
    ),
    "synchronisation": Case(
        1024,
        {
            "read in each step": with_options(reading, each=True),
            "read at the end": with_options(reading, each=False),
        },
    ),
    "memory-bound layers": Case(
        16384,
        {"GELU in nine kernels": (launches, "gelu by operations"), "GELU in one kernel": (launches, "gelu")},
        steps=6,
    ),
    "host work": Case(
        1024, {"the log by NumPy": (statistics_on_host, "relu"), "the log by kernels": (statistics_on_device, "relu")}
    ),
}


# --------------------------------------------------------------------------------------------------------- measurements


@functools.cache
def _stream() -> typing.Any:
    from pmpp import cuda

    return cuda.stream()


@contextlib.contextmanager
def own_stream() -> Iterator[None]:
    """Compute on a stream of one's own: with the default stream, every other stream's copies wait for its kernels."""
    before, state.stream = state.stream, _stream()
    try:
        yield
    finally:
        state.stream = before


def run(case: Case, version: str, steps: int, batch: int | None = None, size: int = 28) -> list[float]:
    """The losses of one version, and what else it keeps."""
    with own_stream():
        go, done = case.begin(version, steps, silent, batch, size)
        for k in range(steps):
            go(k)
        return done()


def compare(case: Case, steps: int, batch: int | None = None, size: int = 28) -> dict[str, list[float]]:
    """What each version computes. Raises RuntimeError if one computes something else than the first."""
    found = {version: run(case, version, steps, batch, size) for version in case.versions}
    first = np.array(next(iter(found.values())))
    for version, values in found.items():
        apart = np.max(np.abs(np.array(values) - first) / np.abs(first))
        if not apart <= APART:
            raise RuntimeError(f"{version!r} computes something else: the values differ by {apart:.1e} of themselves")
    return found


def warm(case: Case, version: str, steps: int, span: Span, batch: int | None = None, size: int = 28) -> Callable:
    """``go(k)`` of a training that has `FIRST` steps behind it, and so many before it."""
    go, _ = case.begin(version, FIRST + steps, span, batch, size)
    for k in range(FIRST):
        go(k)
    return go


def seconds(case: Case, version: str, steps: int, batch: int | None = None, size: int = 28) -> list[float]:
    """The time of a step, in each of `REPETITIONS` trainings; their first steps are not counted."""
    from pmpp import cuda

    found = []
    with own_stream():
        for _ in range(REPETITIONS):
            go = warm(case, version, steps, silent, batch, size)
            cuda.synchronize()
            began = time.perf_counter()
            for k in range(FIRST, FIRST + steps):
                go(k)
            cuda.synchronize()
            found.append((time.perf_counter() - began) / steps)
    return found


def drawn(case: Case, version: str, batch: int | None = None, size: int = 28) -> Timeline:
    """A timeline of `DRAWN` steps, after `FIRST` that are not recorded."""
    recorder = Recorder()
    current: list[Span] = [silent]
    with own_stream():
        go = warm(case, version, DRAWN, lambda name: current[-1](name), batch, size)  # noqa: PLW0108  it is another later
        with recorder:
            current.append(recorder.span)
            for k in range(FIRST, FIRST + DRAWN):
                with recorder.span("step"):
                    go(k)
        return recorder.timeline()


def profiled_or_not(case: Case, version: str, batch: int | None = None) -> dict[str, typing.Any] | None:
    """`profiled`, whose failure must not cost the measurement that stands beside it."""
    try:
        return profiled(case, version, batch)
    except Exception as error:  # whatever a profiler does
        return {"missing": f"{type(error).__name__}: {error}"}


def profiled(case: Case, version: str, batch: int | None = None) -> dict[str, typing.Any] | None:
    """What PyTorch's profiler says of the same steps; None where it is not, or sees no kernel."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    from pmpp import cuda

    torch.cuda.init()
    with own_stream(), tempfile.TemporaryDirectory() as folder:
        go = warm(case, version, DRAWN, silent, batch)
        cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profiler:
            began = time.perf_counter()
            for k in range(FIRST, FIRST + DRAWN):
                go(k)
            cuda.synchronize()
            wall = time.perf_counter() - began
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return from_trace(events, 1e6 * wall, DRAWN)


def from_trace(events: list[dict], wall: float, steps: int) -> dict[str, typing.Any] | None:
    """The kernels and copies of a trace in Chrome's format: how long the GPU was busy, and with what."""
    kept = [event for event in events if event.get("ph") == "X" and "dur" in event]
    kernels = [event for event in kept if event.get("cat") == "kernel"]
    copies = [event for event in kept if event.get("cat") == "gpu_memcpy"]
    if not kernels:
        return None
    busy = sum(end - start for start, end in merged((e["ts"], e["ts"] + e["dur"]) for e in kernels))
    by_name: dict[str, list[float]] = {}
    for event in kernels:
        by_name.setdefault(short(event["name"]), []).append(event["dur"])
    most = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:8]
    return {
        "us a step": wall / steps,
        "busy us a step": busy / steps,
        "kernels a step": len(kernels) / steps,
        "copies a step": len(copies) / steps,
        "copying us a step": sum(e["dur"] for e in copies) / steps,
        "most": [[name, len(durations) / steps, sum(durations) / steps] for name, durations in most],
    }


def short(name: str) -> str:
    """A kernel's name without modules, versions and arguments."""
    return re.split(r"[\[(]", name)[0].rpartition("::")[2]


def measure(name: str, steps: int | None = None, batch: int | None = None, size: int = 28) -> dict[str, typing.Any]:
    """All versions of a case: verified, timed and drawn."""
    case = CASES[name]
    steps = steps or case.steps
    losses = compare(case, min(steps, 6), batch, size)
    rows = {}
    for version in case.versions:
        times = seconds(case, version, steps, batch, size)
        line = drawn(case, version, batch, size)
        rows[version] = {
            "ms": 1e3 * statistics.median(times),
            "all ms": [1e3 * t for t in times],
            "idle": line.idle_share,
            "waits": line.wait_share,
            "blame": line.blame(),
            "counts": dict(line.counts),
            "recorded ms": line.length / 1e3 / line.steps,
            "timeline": line.as_json(),
            "profiler": profiled_or_not(case, version, batch),
        }
    return {"batch": batch or case.batch, "values": losses, "versions": rows}


def knob(batches: tuple[int, ...] = KNOB, steps: int = 6, size: int = 28) -> dict[str, typing.Any]:
    """The case "loading" by batch size: the time of a step and the GPU's idle share."""
    case, rows = CASES["loading"], {}
    for version in case.versions:
        rows[version] = {"batch": list(batches), "ms": [], "idle": []}
        for batch in batches:
            rows[version]["ms"].append(1e3 * statistics.median(seconds(case, version, steps, batch, size)))
            rows[version]["idle"].append(drawn(case, version, batch, size).idle_share)
    return rows


# --------------------------------------------------------------------------------------------------- NVIDIA's profilers

METRICS = (
    "gpu__time_duration.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)


def one_version(name: str, version: int, batch: int | None = None, size: int = 28) -> None:
    """Two steps of one version between cudaProfilerStart and cudaProfilerStop, after two others: what tools look at."""
    from pmpp import cuda

    case = CASES[name]
    with own_stream():
        go = warm(case, list(case.versions)[version], 2, silent, batch, size)
        cuda.synchronize()
        cuda.profile_start()
        go(FIRST)
        go(FIRST + 1)
        cuda.synchronize()
        cuda.profile_stop()


def asked(command: list[str], seconds: float) -> tuple[str, str]:
    """What a command printed, and what went wrong, in words, or ""."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return "", f"it took more than {seconds:.0f} s"
    said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
    return done.stdout, "" if done.returncode == 0 else said


def systems(name: str, version: int, seconds: float) -> dict[str, typing.Any]:
    """Nsight Systems' tables of kernels and of calls of the driver, as CSV; or what it said."""
    found = shutil.which("nsys")
    if found is None:
        return {"missing": "nsys is not on the path of this machine"}
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder) / "steps")
        command = [found, "profile", "--trace=cuda", "--capture-range=cudaProfilerApi", "--output", report]
        command += [sys.executable, "-m", "pmpp.nn.measure.bottleneck", "--one", name, str(version)]
        _, wrong = asked(command, seconds)
        if wrong:
            return {"missing": wrong}
        made = next(Path(folder).glob("steps*.nsys-rep"), None)
        if made is None:
            return {"missing": "nsys wrote no report"}
        tables = {}
        for table in ("cuda_gpu_kern_sum", "cuda_api_sum"):
            text, wrong = asked([found, "stats", "--report", table, "--format", "csv", "--quiet", str(made)], seconds)
            tables[table] = wrong or text
    return {"case": name, "version": list(CASES[name].versions)[version], "tables": tables}


def compute(name: str, version: int, seconds: float) -> dict[str, typing.Any]:
    """Nsight Compute's `METRICS` of the kernels of two steps, as rows; or what it said."""
    import csv

    found = shutil.which("ncu")
    if found is None:
        return {"missing": "ncu is not on the path of this machine"}
    command = [found, "--clock-control", "none", "--csv", "--page", "raw", "--profile-from-start", "off"]
    command += ["--launch-count", "60", "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-m", "pmpp.nn.measure.bottleneck", "--one", name, str(version)]
    text, wrong = asked(command, seconds)
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if wrong or not lines:
        return {"missing": wrong or "ncu saw no kernel"}
    header, units, *rows = csv.reader(lines)
    table = [dict(zip(header, row, strict=True)) for row in rows]
    kept = [[short(row["Kernel Name"]), *(float(row[m].replace(",", "")) for m in METRICS)] for row in table]
    return {
        "case": name,
        "version": list(CASES[name].versions)[version],
        "metrics": list(METRICS),
        "units": [dict(zip(header, units, strict=True))[m] for m in METRICS],
        "rows": kept,
    }


def tools(seconds: float = 120) -> dict[str, typing.Any]:
    """What the tools of NVIDIA say of the cases that they are best at."""
    last = len(CASES["memory-bound layers"].versions) - 1
    return {
        "nsys": systems("launches", 0, seconds),
        "ncu": [compute("memory-bound layers", version, seconds) for version in (0, last)],
    }


# -------------------------------------------------------------------------------------------------------------- command


def table(rows: dict[str, typing.Any]) -> str:
    """What was found, a line for each version."""
    lines = [f"{'case':21}{'version':31}{'batch':>6}{'ms':>9}{'gain':>7}{'idle':>6}{'waits':>7}{'launches':>10}"]
    for name, row in rows.items():
        first = next(iter(row["versions"].values()))["ms"]
        for version, one in row["versions"].items():
            each = one["counts"].get("launches", 0) / one["timeline"]["steps"]
            lines.append(
                f"{name:21}{version:31}{row['batch']:6}{one['ms']:9.3f}{first / one['ms']:7.2f}{one['idle']:6.0%}"
                f"{one['waits']:7.0%}{each:10.0f}"
            )
    return "\n".join(lines)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.bottleneck", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, help="another file for the record")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no further case is begun")
    parser.add_argument("--tools", action="store_true", help="ask Nsight Systems and Nsight Compute instead")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "VERSION"), help="two steps for a profiler to look at")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    if options.one:
        one_version(options.one[0], int(options.one[1]))
        return 0
    source = "pmpp/nn/measure/bottleneck.py"
    if options.tools:
        print(write("bottleneck_tools", source, tools(), options.out))
        return 0
    began, rows, record, failed = time.perf_counter(), {}, {}, 0
    for name in [*(options.cases or CASES), *([] if options.cases else ["knob"])]:
        if time.perf_counter() - began > options.budget:
            print(f"not measured, the budget is spent: {name}")
            continue
        if name == "knob":
            record["knob"] = knob()
        else:
            try:
                rows[name] = measure(name)
            except Exception as error:  # the other cases are measured all the same
                print(f"{name}: {type(error).__name__}: {error}")
                failed = 1
        path = write("bottleneck", source, {"cases": rows, **record}, options.out)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    print(table(rows))
    print(path)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
