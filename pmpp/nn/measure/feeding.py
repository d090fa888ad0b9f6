"""Feeding the GPU, measured: ``python -m pmpp.nn.measure.feeding``. Chapter: notebooks/90_feeding_the_gpu.ipynb.

Five questions; the record is written every few seconds, so that a limit loses only the rest:

    copies     how long a copy takes, by its bytes, from pageable and from pinned memory, in both directions
    chunks     how long a copy to the GPU, a kernel and a copy back take, by the number of pieces that they are split in
    loading    images a second of a training, by batch size and by the way the batches come to the GPU
    steps      host time and GPU time of a training step, by batch size: called kernel by kernel, and as a CUDA graph
    timelines  when the host, the copies and the kernels of a few steps began and ended, on one clock

What is copied or computed is compared before it is timed. PyTorch's loader, steps and graphs stand beside ours where
PyTorch has a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import signal
import statistics
import sys
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pmpp import cuda, nn
from pmpp.kernels.launches.exercises import logistic_answer
from pmpp.nn import functional as F
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.measure import write
from pmpp.nn.tape import Tensor
from pmpp.nn.utils import data
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

__all__ = ["Trace", "chunked", "copies", "in_step", "loading", "main", "pinned_in_step", "steps", "timeline"]

SIZES = tuple(2**power for power in range(10, 29, 2))  # bytes of a copy: 1 KiB to 256 MiB
PIECES = (1, 2, 4, 8, 16, 32, 64)
FED = (64, 256, 1024, 4096)  # images in a batch
STEPPED = (1, 4, 16, 64, 256, 1024, 4096)
IMAGE = (1, 28, 28)
BLOCK, RATE = 256, np.float32(3.5)
REPETITIONS = 5  # at least, of each measurement


def median_us(call: Callable[[], object], seconds: float = 0.05) -> float:
    """The median time of a call, in microseconds, begun when the GPU has nothing to do. One call is made before."""
    call()
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < REPETITIONS or time.perf_counter() < until:
        cuda.synchronize()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    cuda.synchronize()
    return 1e6 * statistics.median(found)


def queued_us(call: Callable[[], object], seconds: float = 0.1) -> float:
    """Microseconds a call where many are queued and waited for at the end: the host or the GPU, whichever is slower."""

    def run(n: int) -> float:
        cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            call()
        cuda.synchronize()
        return (time.perf_counter() - began) / n

    run(1)
    n = max(20, int(seconds / REPETITIONS / run(1)))  # the tail of the last one counts in every run
    return 1e6 * statistics.median(run(n) for _ in range(REPETITIONS))


def on_gpu_us(call: Callable[[], object], stream: typing.Any) -> float:
    """Microseconds that the GPU takes for a call on a stream: events before and behind several of them."""
    call()
    n = 4 * REPETITIONS
    cuda.synchronize()
    first, last = cuda.event(), cuda.event()
    first.record(stream)
    for _ in range(n):
        call()
    last.record(stream)
    last.synchronize()
    return 1e3 * first.elapsed_time(last) / n


# -------------------------------------------------------------------------------------------------------------- copies


def copies(nbytes: int) -> list[dict[str, typing.Any]]:
    """Copies of so many bytes: ``us`` until the copy is done, and ``returns_us`` until the call returns."""
    stream, there = data._copy_stream(), device.empty(nbytes, np.uint8)
    content = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    rows = []
    for memory in ("pageable", "pinned"):
        here, back = (np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8))
        if memory == "pinned":
            here, back = (cuda.pinned_array(nbytes, np.uint8) for _ in range(2))
        here[...], back[...] = content, 0
        directions = {
            "to the GPU": lambda here=here: there.copy_to_device(here, stream=stream),
            "from the GPU": lambda back=back: there.copy_to_host(back, stream=stream),
        }
        for call in directions.values():
            call()
        stream.synchronize()
        if not np.array_equal(back, content):
            raise AssertionError(f"{memory}: what came back is not what was sent")
        for direction, call in directions.items():

            def whole(call: Callable = call) -> None:
                call()
                stream.synchronize()

            row = {"memory": memory, "direction": direction, "bytes": nbytes}
            rows.append({**row, "us": median_us(whole), "returns_us": median_us(call)})
    return rows


# -------------------------------------------------------------------------------------------------------------- chunks


def chunked(x: np.ndarray, out: np.ndarray, turns: int, pieces: int, streams: typing.Sequence) -> Callable[[], None]:
    """A call that copies x to the GPU, takes each element through ``turns`` logistic steps, and copies it to ``out``.

    Args:
        x, out: pinned arrays of float32 of one length.
        pieces: how many parts the arrays are split in; piece k + 1 is copied while piece k is computed.
        streams: one for copies to the GPU, one for kernels, one for copies back.
    """
    to_gpu, computes, back = streams
    edges = [len(x) * k // pieces for k in range(pieces + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    there, result = (device.empty(len(x), np.float32) for _ in range(2))
    arrived, made = ([cuda.event(timing=False) for _ in parts] for _ in range(2))
    views = [(x[part], there[part], result[part], out[part]) for part in parts]

    def call() -> None:
        for k, (source, a, b, target) in enumerate(views):
            a.copy_to_device(source, stream=to_gpu)
            arrived[k].record(to_gpu)
            arrived[k].wait(computes)
            logistic_answer[-(-len(source) // BLOCK), BLOCK, computes](a, RATE, turns, b)
            made[k].record(computes)
            made[k].wait(back)
            b.copy_to_host(target, stream=back)
        back.synchronize()

    return call


def chunks(nbytes: int, all_pieces: typing.Sequence[int], turns: int | None = None) -> Iterator[dict[str, typing.Any]]:
    """A row for each number of pieces. The kernel is made as long as a copy, unless ``turns`` is given."""
    n = nbytes // 4
    x, out = (cuda.pinned_array(n, np.float32) for _ in range(2))
    x[...] = np.random.default_rng(0).uniform(0.05, 0.95, n).astype(np.float32)
    streams = [data._non_blocking_stream() for _ in range(3)]
    there, result = (device.empty(n, np.float32) for _ in range(2))
    alone = {
        "to the GPU": lambda: there.copy_to_device(x, stream=streams[0]),
        "from the GPU": lambda: there.copy_to_host(out, stream=streams[2]),
    }
    alone_us = {name: on_gpu_us(call, streams[0 if "to" in name else 2]) for name, call in alone.items()}

    def kernel(turns: int) -> float:
        configured = logistic_answer[-(-n // BLOCK), BLOCK, streams[1]]
        return on_gpu_us(lambda: configured(there, RATE, turns, result), streams[1])

    if turns is None:
        few, many = kernel(100), kernel(1100)
        turns = max(1, round(100 + (alone_us["to the GPU"] - few) * 1000 / max(many - few, 1e-3)))
    there.copy_to_device(x)
    alone_us["kernel"] = kernel(turns)
    expected = device.to_host(result)
    for pieces in all_pieces:
        call = chunked(x, out, turns, pieces, streams)
        out[...] = 0
        call()
        if not np.array_equal(out, expected):
            raise AssertionError(f"{pieces} pieces have another result than one")
        yield {"pieces": pieces, "bytes": nbytes, "turns": turns, "us": median_us(call, 0.2), "alone_us": alone_us}


# ------------------------------------------------------------------------------------------------------------- batches


class Trace:
    """When things began and ended, in microseconds from the start of the trace: on the host, and on the GPU.

    The clocks of both are aligned at a synchronisation: the GPU has nothing to do then, and its first event happens as
    soon as it is queued.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin anew."""
        self.spans: list[dict[str, typing.Any]] = []
        self._events: list[tuple[str, str, typing.Any, typing.Any]] = []
        self._first = cuda.event()
        cuda.synchronize()
        self._began = time.perf_counter()
        self._first.record()

    @contextlib.contextmanager
    def host(self, what: str, row: str = "host") -> Iterator[None]:
        """A span of the host, or of another thread there."""
        began = time.perf_counter()
        yield
        ended = time.perf_counter()
        self.spans.append({"row": row, "what": what, "from": self._us(began), "to": self._us(ended)})

    @contextlib.contextmanager
    def gpu(self, row: str, what: str, stream: typing.Any = 0) -> Iterator[None]:
        """A span of a stream: of what is queued within."""
        first, last = cuda.event(), cuda.event()
        first.record(stream)
        yield
        last.record(stream)
        self._events.append((row, what, first, last))

    def finish(self) -> list[dict[str, typing.Any]]:
        """All spans: row, what, from, to."""
        cuda.synchronize()
        for row, what, *pair in self._events:
            begins, ends = (1e3 * self._first.elapsed_time(event) for event in pair)
            self.spans.append({"row": row, "what": what, "from": begins, "to": ends})
        self._events.clear()
        return sorted(self.spans, key=lambda span: span["from"])

    def _us(self, moment: float) -> float:
        return 1e6 * (moment - self._began)


class _Nothing:
    """A trace that notes nothing."""

    @staticmethod
    def gpu(*_: object) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


def _parts(loader: DataLoader) -> list[np.ndarray]:
    n = len(loader.dataset)
    order = np.random.default_rng([loader.seed, loader.epoch]).permutation(n)
    return [order[i : i + loader.batch_size] for i in range(0, n, loader.batch_size)][: len(loader)]


def in_step(loader: DataLoader, trace: typing.Any = _Nothing) -> Iterator[tuple[Tensor, ...]]:
    """What a loader does with ``prefetch=0``: a batch is made in pageable memory and copied when it is asked for."""
    for part in _parts(loader):
        arrays = loader._batch(part)
        with trace.gpu("copies", "copy"):
            tensors = tuple(map(Tensor, arrays))
        yield tensors


def pinned_in_step(loader: DataLoader, trace: typing.Any = _Nothing) -> Iterator[tuple[Tensor, ...]]:
    """The same through one pinned buffer, on the stream that computes. `copies_traced` notes its copies."""
    slot = data._Slot()
    for part in _parts(loader):
        slot.done.synchronize()  # the buffer is filled again
        arrays = loader._fill(part, slot.fit(loader._forms(len(part))))
        targets = [device.empty(array.shape, array.dtype) for array in arrays]
        slot.copy(arrays, targets, cuda.default_stream())
        slot.done.record()
        yield tuple(map(Tensor, targets))


@contextlib.contextmanager
def copies_traced(trace: Trace) -> Iterator[None]:
    """Within it the copies of loaders with ``prefetch`` are noted."""
    before = data._Slot

    class Noted(before):
        def copy(self, buffers: list, targets: list, stream: typing.Any) -> None:
            with trace.gpu("copies", "copy", stream):
                super().copy(buffers, targets, stream)

    data._Slot = Noted
    try:
        yield
    finally:
        data._Slot = before


WAYS: dict[str, dict[str, typing.Any]] = {
    "loaded in the step": {"make": in_step, "prefetch": 0},
    "through pinned memory": {"make": pinned_in_step, "prefetch": 0},
    "prefetched": {"make": lambda loader, trace=_Nothing: iter(loader), "prefetch": 2},
    "prefetched by a thread": {"make": lambda loader, trace=_Nothing: iter(loader), "prefetch": 2, "thread": True},
}


def images(n: int, shape: tuple[int, ...] = IMAGE) -> TensorDataset:
    """So many images of random numbers, with labels."""
    rng = np.random.default_rng(0)
    return TensorDataset(rng.standard_normal((n, *shape), dtype=np.float32), rng.integers(0, 10, n))


class Training:
    """A network with its optimiser: a step as it is called, and one that was captured."""

    def __init__(self, kind: Callable[[], nn.Module], x: Tensor, y: Tensor) -> None:
        nn.manual_seed(0)
        self.net = kind()
        self.optimizer = nn.optim.SGD(self.net.parameters(), lr=0.001, momentum=0.9)
        self.captured = nn.capture(self.step, x, y)
        with nn.no_grad():
            self.loss = F.cross_entropy(self.net(x), y).item()
        self.state = self.net.state_dict()
        found = self.captured(x, y).item()
        if not abs(found - self.loss) <= 1e-5 * abs(self.loss):
            raise AssertionError(f"the captured step has the loss {found}, and the network {self.loss}")

    def step(self, x: Tensor, y: Tensor, trace: Trace | None = None) -> Tensor:
        """Forward pass, backward pass, change of the parameters. A trace is told of each."""

        def note(what: str) -> contextlib.AbstractContextManager:
            if trace is None:
                return contextlib.nullcontext()
            both = contextlib.ExitStack()
            both.enter_context(trace.host(what))
            both.enter_context(trace.gpu("kernels", what))
            return both

        with note("forward"):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
        with note("backward"):
            loss.backward()
        with note("update"):
            self.optimizer.step()
        return loss

    def replay(self) -> None:
        """The graph alone, on the inputs that it has."""
        if device.on_gpu():
            self.captured._graph.launch(self.captured._stream)
        else:
            self.captured(*self.captured.inputs)

    @property
    def stream(self) -> typing.Any:
        """That of the graph."""
        return device.as_stream(self.captured._stream) if device.on_gpu() else 0

    def nodes(self) -> dict[str, int]:
        """How many kernels and other nodes the graph has; nothing where the driver cannot be asked."""
        found: dict[str, int] = {}
        with contextlib.suppress(Exception):  # an extra, not what is measured
            from numba.cuda.cudadrv.driver import binding

            graph = binding.CUgraph(int(self.captured._graph.graph))
            _, _, count = binding.cuGraphGetNodes(graph)
            _, nodes, _ = binding.cuGraphGetNodes(graph, count)
            for node in nodes:
                name = binding.cuGraphNodeGetType(node)[1].name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
                found[name] = found.get(name, 0) + 1
        return found


def _batch_of(dataset: TensorDataset, n: int) -> tuple[Tensor, Tensor]:
    return tuple(Tensor(array[:n]) for array in dataset.arrays)


def _verified(loader: DataLoader, make: Callable) -> None:
    """Compare the first three batches of a way of loading with the dataset. One is left in the middle of an epoch."""
    for part, tensors in zip(_parts(loader)[:3], make(loader), strict=False):
        for tensor, array in zip(tensors, loader.dataset.arrays, strict=True):
            if not np.array_equal(tensor.numpy(), array[part]):
                raise AssertionError("a batch is not what the dataset has")


def loading(
    dataset: TensorDataset, batch: int, kind: Callable[[], nn.Module] = LeNet, seconds: float = 0.4
) -> Iterator[dict[str, typing.Any]]:
    """Images a second of captured training steps, a row for each way in which the batches come."""
    x, y = _batch_of(dataset, batch)
    training = Training(kind, x, y)
    yield {"batch": batch, "way": "there already", "images_s": 1e6 * batch / queued_us(lambda: training.captured(x, y))}
    for way, options in WAYS.items():
        options = dict(options)
        make = options.pop("make")
        loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, **options)
        _verified(loader, make)
        rate = _rate(lambda make=make, loader=loader: make(loader), training.captured, batch, seconds)
        yield {"batch": batch, "way": way, "images_s": rate}
    if torch_has_gpu():
        yield from _torch_loading(dataset, batch, training, seconds)


def _rate(epoch: Callable[[], typing.Iterable], step: Callable, batch: int, seconds: float) -> float:
    """Images a second over whole epochs, or parts of one, for at least so long. The first batches are not counted."""
    count, began = -3, 0.0
    while True:
        for batch_of in epoch():
            if count == 0:
                cuda.synchronize()
                began = time.perf_counter()
            step(*batch_of)
            count += 1
            if count > 0 and time.perf_counter() - began > seconds:
                cuda.synchronize()
                return batch * count / (time.perf_counter() - began)


def steps(batch: int, kind: Callable[[], nn.Module] = LeNet, shape: tuple[int, ...] = IMAGE) -> dict[str, typing.Any]:
    """Times of a training step: ``host_us`` until the call returns, ``step_us`` a step where many are queued.

    ``gpu_us`` is the graph's time on the GPU. Both ways of launching give the GPU the same kernels.
    """
    x, y = _batch_of(images(batch, shape), batch)
    training = Training(kind, x, y)
    row: dict[str, typing.Any] = {"batch": batch, "loss": training.loss, "nodes": training.nodes()}
    for name, call in {"called": lambda: training.step(x, y), "captured": lambda: training.captured(x, y)}.items():
        row[name] = {"host_us": median_us(call), "step_us": queued_us(call)}
    row["gpu_us"] = on_gpu_us(training.replay, training.stream)
    if torch_has_gpu():
        row["torch"] = _torch_steps(training, x, y)
    return row


def timeline(
    dataset: TensorDataset, batch: int, way: str, captured: bool, kind: Callable[[], nn.Module] = LeNet, count: int = 8
) -> dict[str, typing.Any]:
    """The spans of the first ``count`` steps of a training: see `Trace`."""
    training = Training(kind, *_batch_of(dataset, batch))
    options = dict(WAYS[way])
    make = options.pop("make")
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, **options)
    trace, fill = Trace(), loader._fill

    def step(x: Tensor, y: Tensor) -> None:
        if not captured:
            training.step(x, y, trace)
            return
        with trace.host("launch"), trace.gpu("kernels", "step"):
            training.captured(x, y)

    def noted(*arguments: typing.Any) -> typing.Any:
        with trace.host("make a batch", "thread"):
            return fill(*arguments)

    if loader.thread:
        loader._fill = noted
    with copies_traced(trace):
        for _ in range(2):  # the first time allocates pinned buffers, which the loader keeps, and compiles
            trace.start()
            batches = iter(make(loader, trace))
            for _ in range(min(count, len(loader))):
                with trace.host("load"):
                    x, y = next(batches)
                step(x, y)
            spans = trace.finish()
            batches.close()
    return {"batch": batch, "way": way, "captured": captured, "spans": spans}


# ------------------------------------------------------------------------------------------------------------- PyTorch


def torch_has_gpu() -> bool:
    """Whether PyTorch is there, with a GPU."""
    if not device.on_gpu() or importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _torch_training(training: Training, x: Tensor, y: Tensor) -> tuple[Callable, Callable, typing.Any, typing.Any]:
    """PyTorch's step on two tensors, its graph, and these tensors, from the same state. Their losses are compared."""
    import torch

    from pmpp.nn.measure.steps import _torch_graph, theirs

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    other = theirs(training.net)
    other.load_state_dict({name: torch.from_numpy(value) for name, value in training.state.items()})
    optimizer = torch.optim.SGD(other.parameters(), lr=0.001, momentum=0.9)
    tx, ty = (torch.from_numpy(tensor.numpy()).cuda() for tensor in (x, y))
    found = torch.nn.functional.cross_entropy(other(tx), ty).item()
    if not abs(found - training.loss) <= 1e-3 * abs(found):
        raise AssertionError(f"PyTorch's loss is {found}, ours {training.loss}")

    def step() -> typing.Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(other(tx), ty)
        loss.backward()
        optimizer.step()
        return loss

    step()
    return step, _torch_graph(step), tx, ty


def _torch_steps(training: Training, x: Tensor, y: Tensor) -> dict[str, typing.Any]:
    step, graph, tx, ty = _torch_training(training, x, y)
    other = tx.clone(), ty.clone()

    def captured() -> None:
        tx.copy_(other[0])
        ty.copy_(other[1])
        graph()

    calls = {"called": step, "captured": captured}
    return {name: {"host_us": median_us(call), "step_us": queued_us(call)} for name, call in calls.items()}


def _torch_loading(
    dataset: TensorDataset, batch: int, training: Training, seconds: float
) -> Iterator[dict[str, typing.Any]]:
    """PyTorch's loader, example by example as it is meant, and one that is given the indices of whole batches."""
    import torch
    from torch.utils import data as torch_data

    x, y = _batch_of(dataset, batch)
    _, graph, tx, ty = _torch_training(training, x, y)

    def step(a: typing.Any, b: typing.Any) -> None:
        tx.copy_(a, non_blocking=True)
        ty.copy_(b, non_blocking=True)
        graph()

    theirs = torch_data.TensorDataset(*map(torch.from_numpy, dataset.arrays))
    whole = torch_data.BatchSampler(torch_data.RandomSampler(theirs), batch, drop_last=True)
    loaders = {
        "PyTorch's DataLoader, pinned": torch_data.DataLoader(
            theirs, batch, shuffle=True, drop_last=True, pin_memory=True
        ),
        "PyTorch's DataLoader, whole batches, pinned": torch_data.DataLoader(
            theirs, sampler=whole, batch_size=None, pin_memory=True
        ),
    }
    for way, loader in loaders.items():
        yield {"batch": batch, "way": way, "images_s": _rate(lambda loader=loader: loader, step, batch, seconds)}


# ------------------------------------------------------------------------------------------------------------- command


def cases(dataset: TensorDataset) -> Iterator[tuple[str, typing.Any]]:
    """All rows, each with the name of its question."""
    for nbytes in SIZES:
        for row in copies(nbytes):
            yield "copies", row
    for row in chunks(2**28, PIECES):
        yield "chunks", row
    for way, captured, batch in (
        ("loaded in the step", True, 1024),
        ("prefetched", True, 1024),
        ("prefetched by a thread", True, 1024),
        ("prefetched", False, 64),
    ):
        yield "timelines", timeline(dataset, batch, way, captured)
    for batch in FED:
        for row in loading(dataset, batch):
            yield "loading", row
    for batch in STEPPED:
        yield "steps", steps(batch)


def told(question: str, row: typing.Mapping[str, typing.Any]) -> str:
    """A row in words."""
    if question == "copies":
        return f"{row['bytes']:>11,} B {row['memory']:<9} {row['direction']:<13} {row['us']:10.1f} us" + (
            f", returns after {row['returns_us']:10.1f} us: {row['bytes'] / row['us'] / 1e3:6.1f} GB/s"
        )
    if question == "chunks":
        return f"{row['pieces']:3} pieces {row['us']:10.1f} us; alone {row['alone_us']}"
    if question == "loading":
        return f"batch {row['batch']:5}: {row['images_s']:12,.0f} images/s {row['way']}"
    if question == "timelines":
        return f"{row['way']}, batch {row['batch']}: {len(row['spans'])} spans, {row['spans'][-1]['to']:.0f} us"
    ways = {**{name: row[name] for name in ("called", "captured")}}
    ways |= {f"torch {name}": times for name, times in row.get("torch", {}).items()}
    words = "; ".join(f"{name} {t['host_us']:.0f} host, {t['step_us']:.0f} a step" for name, t in ways.items())
    return f"batch {row['batch']:5}: GPU {row['gpu_us']:8.1f} us; {words}; {row['nodes']}"


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.feeding", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="another file for the record")
    parser.add_argument("--budget", type=float, default=170, help="seconds after which no further case is begun")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a limit from outside: the record is still written
    return measure(cases(images(40_000)), options.budget, options.out)


def measure(rows: typing.Iterable[tuple[str, typing.Any]], budget: float, out: Path | None = None) -> int:
    """Print each row, and write the record now and then, and at the end whatever happens."""
    found: dict[str, list] = {name: [] for name in ("copies", "chunks", "loading", "steps", "timelines")}
    began = written = time.perf_counter()
    try:
        for question, row in rows:
            found[question].append(row)
            print(f"{question:9} {told(question, row)}", flush=True)
            now = time.perf_counter()
            if now > began + budget:
                print(f"stopped after {budget:.0f} s; what was measured is recorded")
                return 1
            if now > written + 10:
                write("feeding", "pmpp/nn/measure/feeding.py", found, out)
                written = time.perf_counter()
    finally:
        write("feeding", "pmpp/nn/measure/feeding.py", found, out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
