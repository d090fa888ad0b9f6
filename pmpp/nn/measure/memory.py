"""Where the bytes of a training step are, on one GPU: ``python -m pmpp.nn.measure.memory``.

LeNet-5 and ResNet-18 are trained for a step as they are, with each stage checkpointed, and with the gradients of
several small batches accumulated, over batch sizes, beside PyTorch's networks of the same build. Losses and gradients
are compared before a step is measured. For each it records what `nn.memory` predicted, the bytes that were in use after
the forward pass, the most that were in use at once, and the time of a step.

PyTorch counts what its allocator has handed out, which includes the workspaces of cuDNN and cuBLAS. PyTorch runs in
float32 without TF32, and its cuDNN is in benchmark mode.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import statistics
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn import tape
from pmpp.nn.examples.networks import Block, LeNet
from pmpp.nn.measure import write
from pmpp.nn.measure.steps import theirs
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.checkpoint import checkpoint
from pmpp.runtime import device

PARTS = 4  # small batches that a batch is cut into for accumulation
REPETITIONS = 5
VARIANTS = ("plain", "checkpointed", "accumulated")
FARTHEST = 2e-2  # float32 through eighteen layers, whose gradient is a sum of numbers that cancel


class Differs(RuntimeError):
    """What was computed is not what PyTorch computes, so it is not measured."""


# ---------------------------------------------------------------------------------------------------- bytes in use


def in_use() -> int:
    """Bytes of device memory that arrays of this process hold.

    In the interpreter that is the sum over all arrays that live. On a GPU it is what CuPy's pool has handed out, in
    multiples of 512 bytes; without CuPy, all that is not free.
    """
    if not device.on_gpu():
        from pmpp.simt.host import arrays

        return sum(storage.values.nbytes for storage in list(arrays._allocations.values()))
    if (pool := _pool()) is not None:
        return int(pool.used_bytes())
    found = device.backend().cuda.current_context().get_memory_info()
    return int(found.total - found.free)


def _pool() -> typing.Any:
    """CuPy's pool, which device arrays come from on a GPU; None without CuPy."""
    try:
        import cupy
    except ImportError:
        return None
    return cupy.get_default_memory_pool()


class Curve:
    """Bytes in use through a step: after the forward pass of each layer, and after the backward pass of each operation.

    Attributes: points, (direction, path, bytes); before, the bytes when it began; peak, the most, those of kernels'
    workspaces included where CuPy tells of each allocation.
    """

    def __init__(self) -> None:
        self.before = in_use()
        self.peak = self.before
        self.points: list[tuple[str, str, int]] = []

    def note(self, direction: str, path: tuple[str, ...]) -> None:
        """Look now."""
        found = in_use()
        self.peak = max(self.peak, found)
        self.points.append((direction, ".".join(path[1:]) or "".join(path), found))


@contextlib.contextmanager
def curve() -> Iterator[Curve]:
    """Within it each step is watched.

    >>> with curve() as seen:
    ...     net = nn.Linear(4, 2)
    ...     net(Tensor(np.ones((3, 4), np.float32))).sum().backward()
    >>> [direction for direction, _, _ in seen.points]
    ['forward', 'backward', 'backward']
    """
    seen = Curve()
    node_backward, watch = tape.Node.backward, tape.state.watch

    def after_layer(path: tuple[str, ...], module: nn.Module, result: typing.Any) -> None:
        if not any(True for _ in module.named_children()):
            seen.note("forward", path)

    def after_operation(node: tape.Node, gradients: dict) -> tuple:
        made = node_backward(node, gradients)
        seen.note("backward", (*node.path, node.function.__name__))
        return made

    tape.state.watch, tape.Node.backward = after_layer, after_operation
    try:
        with _every_allocation(seen):
            yield seen
    finally:
        tape.state.watch, tape.Node.backward = watch, node_backward


def _every_allocation(seen: Curve) -> typing.Any:
    """CuPy tells of each allocation, so that no peak is missed; elsewhere the points have to do."""
    pool = _pool() if device.on_gpu() else None
    if pool is None:
        return contextlib.nullcontext()
    from cupy.cuda import MemoryHook

    class Peak(MemoryHook):
        name = "pmpp.nn.measure.memory"

        def malloc_postprocess(self, **_: typing.Any) -> None:
            seen.peak = max(seen.peak, int(pool.used_bytes()))

    return Peak()


# -------------------------------------------------------------------------------------------------------- networks


class ConvPool(nn.Module):
    """A stage of LeNet-5: a convolution, ReLU, and maximum pooling."""

    def __init__(self, channels_in: int, channels: int, padding: int) -> None:
        self.conv = nn.Conv2d(channels_in, channels, 5, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, channels_in, H, W)."""
        return F.max_pool2d(F.relu(self.conv(x)), 2)


class Dense(nn.Module):
    """The last stage of LeNet-5: three linear layers."""

    def __init__(self) -> None:
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, 16, 5, 5)."""
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Stem(nn.Module):
    """The first stage of ResNet-18 for small images."""

    def __init__(self, channels: int) -> None:
        self.conv1, self.bn1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, 3, H, W)."""
        return F.relu(self.bn1(self.conv1(x)))


class Last(nn.Module):
    """The last stage of ResNet-18: the mean of each channel, and a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, channels, H, W)."""
        return self.fc(F.avg_pool2d(x, x.shape[2:]).flatten(1))


def lenet() -> nn.Sequential:
    """LeNet-5 as three stages."""
    return nn.Sequential(ConvPool(1, 6, 2), ConvPool(6, 16, 0), Dense())


def resnet(width: int = 64) -> nn.Sequential:
    """ResNet-18 for 32 x 32 as ten stages: the stem, eight blocks, and the last layer. ``width``: of the first."""
    blocks, channels_in = [], width
    for i, channels in enumerate((width, 2 * width, 4 * width, 8 * width)):
        blocks += [Block(channels_in, channels, 1 if i == 0 else 2), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(Stem(width), *blocks, Last(channels_in, 10))


#: Network, shape of an image, batch sizes.
CASES: dict[str, tuple[Callable, tuple[int, ...], tuple[int, ...]]] = {
    "LeNet-5": (lenet, (1, 28, 28), (64, 256, 1024, 4096)),
    "ResNet-18": (resnet, (3, 32, 32), (32, 128, 512)),
}
#: Measured before all others.
FIRST = (("ResNet-18", 128), ("LeNet-5", 4096), ("ResNet-18", 512))


def forward(net: typing.Any, x: typing.Any, keep: Callable | None = None) -> typing.Any:
    """A network of stages. With ``keep``, a library's ``checkpoint``, all stages but the last are checkpointed.

    What the last stage keeps is needed at once, so to compute it again would save nothing.
    """
    stages = [getattr(net, str(i)) for i in range(len(net))]
    for stage in stages[:-1]:
        x = keep(stage, x) if keep else stage(x)
    return stages[-1](x)


def step_of(net: typing.Any, optimizer: typing.Any, batches: Sequence[tuple], loss_of: Callable, keep: typing.Any):
    """A function that does a training step on the mean loss of equal batches, one after the other; it returns it."""

    def step() -> typing.Any:
        optimizer.zero_grad()
        total = None
        for x, y in batches:
            loss = loss_of(forward(net, x, keep), y)
            if len(batches) > 1:
                loss = loss * (1 / len(batches))
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        optimizer.step()
        return total

    return step


def cut(array: np.ndarray, parts: int) -> list[np.ndarray]:
    """An array as equal parts."""
    if len(array) % parts:
        raise ValueError(f"parts must divide the batch, {len(array)}, was {parts}")
    return list(array.reshape(parts, -1, *array.shape[1:]))


# ------------------------------------------------------------------------------------------------------- measuring


def milliseconds(step: Callable, synchronize: Callable, at_least: float = 0.05) -> float:
    """The median time of a step: several are queued, and waited for at the end."""

    def run(n: int) -> float:
        synchronize()
        began = time.perf_counter()
        for _ in range(n):
            step()
        synchronize()
        return (time.perf_counter() - began) / n

    n = max(1, int(at_least / max(run(1), 1e-9)))
    return 1e3 * statistics.median(run(n) for _ in range(REPETITIONS))


def data_of(shape: tuple[int, ...], batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, *shape), dtype=np.float32), rng.integers(0, 10, batch)


def ours(kind: Callable, shape: tuple[int, ...], batch: int, variant: str, points: bool = False) -> dict:
    """Predicted and measured bytes of a step of this library, its loss, its first gradients, and its time."""
    gc.collect()
    nothing = in_use()
    nn.manual_seed(0)
    net = kind()
    optimizer = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    parts = PARTS if variant == "accumulated" else 1
    images, labels = data_of(shape, batch)
    batches = [(Tensor(x), Tensor(y)) for x, y in zip(cut(images, parts), cut(labels, parts), strict=True)]
    keep = checkpoint if variant == "checkpointed" else None
    step = step_of(net, optimizer, batches, F.cross_entropy, keep)
    row: dict[str, typing.Any] = {"loss": step().item()}  # compiles, and fills the tables of addresses
    row["gradient"] = next(iter(net.parameters())).grad.numpy()
    step()
    optimizer.zero_grad()
    before = in_use()
    loss = F.cross_entropy(forward(net, batches[0][0], keep), batches[0][1])
    row["predicted"] = nn.memory(net, loss, optimizer)
    row["after forward"] = in_use() - before
    row["before"] = before - nothing
    row["batch"] = sum(array.nbytes for array in (images, labels))
    del loss
    with curve() as seen:
        step()
    row["peak"] = seen.peak - nothing
    if points:
        row["points"] = [(direction, path, found - nothing) for direction, path, found in seen.points]
    row["ms"] = milliseconds(step, device.backend().cuda.synchronize)
    return row


def torchs(kind: Callable, shape: tuple[int, ...], batch: int, variant: str) -> dict:
    """Measured bytes of a step of PyTorch, its loss, its first gradients, and its time."""
    import torch
    from torch.utils.checkpoint import checkpoint as keeping

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    gpu = torch.cuda.is_available()
    used = torch.cuda.memory_allocated if gpu else lambda: 0
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    gc.collect()
    nothing = used()
    nn.manual_seed(0)
    net = theirs(kind()) if gpu else theirs(kind(), "cpu")
    place = next(net.parameters()).device
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    parts = PARTS if variant == "accumulated" else 1
    images, labels = (torch.from_numpy(array).to(place) for array in data_of(shape, batch))
    batches = list(zip(images.chunk(parts), labels.chunk(parts), strict=True))
    keep = functools.partial(keeping, use_reentrant=False) if variant == "checkpointed" else None
    step = step_of(net, optimizer, batches, torch.nn.functional.cross_entropy, keep)
    row: dict[str, typing.Any] = {"loss": step().item()}
    row["gradient"] = next(iter(net.parameters())).grad.cpu().numpy()
    step()
    optimizer.zero_grad()
    before = used()
    loss = torch.nn.functional.cross_entropy(forward(net, batches[0][0], keep), batches[0][1])
    row["after forward"] = used() - before
    row["before"] = before - nothing
    del loss
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    step()
    row["peak"] = (torch.cuda.max_memory_allocated() - nothing) if gpu else 0
    row["ms"] = milliseconds(step, synchronize)
    if gpu:
        del net, optimizer, batches, images, labels, step
        gc.collect()
        torch.cuda.empty_cache()
    return row


def measure(name: str, batch: int, variant: str) -> dict[str, typing.Any]:
    """One row of the table. Raises Differs if the two libraries do not compute the same."""
    kind, shape, _ = CASES[name]
    row: dict[str, typing.Any] = {"ours": ours(kind, shape, batch, variant, points=True)}
    mine = row["ours"].pop("gradient").astype(np.float64)
    if importlib.util.find_spec("torch") is not None:
        row["torch"] = torchs(kind, shape, batch, variant)
        gradient = row["torch"].pop("gradient")
        row["gradients differ by"] = float(np.linalg.norm(mine - gradient) / np.linalg.norm(gradient))
        row["losses differ by"] = abs(row["ours"]["loss"] / row["torch"]["loss"] - 1)
        for what in ("gradients", "losses"):
            if not row[f"{what} differ by"] < FARTHEST:
                raise Differs(f"{name}, batch {batch}, {variant}: {what} differ by {row[f'{what} differ by']:.1e}")
    return row


def flat(steps: int = 1000) -> dict[str, int]:
    """Bytes that are in use after the second step of LeNet-5 with AdamW, and after the last."""
    net = LeNet()
    optimizer = nn.optim.AdamW(net.parameters())
    images, labels = data_of((1, 28, 28), 64 if device.on_gpu() else 1)
    x, y = Tensor(images), Tensor(labels)
    found = {}
    for i in range(1, steps + 1):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        if i in (2, steps):
            found[f"after step {i}"] = in_use()
    return found


def table(rows: dict[str, dict]) -> str:
    """The rows as text, sizes in MiB."""
    names = ("predicted", "after forward", "peak", "torch's peak", "ms", "torch's ms")
    lines = [f"{'':<38}" + "".join(f"{name:>15}" for name in names)]
    for name, row in rows.items():
        mine, other = row["ours"], row.get("torch", {})
        sizes = (mine["predicted"]["activations"], mine["after forward"], mine["peak"], other.get("peak"))
        cells = ["-" if size is None else f"{size / 2**20:.1f}" for size in sizes]
        cells += [f"{one['ms']:.2f}" if one else "-" for one in (mine, other)]
        lines.append(f"{name:<38}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.memory", description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds after which no further case is begun")
    options = parser.parse_args(argv)
    if stray := [name for name in options.networks if name not in CASES]:
        parser.error(f"networks must be of {', '.join(CASES)}, was {stray[0]}")
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    began, rows, whole, failed = time.perf_counter(), {}, {}, 0
    wanted = [(name, batch) for name in options.networks or CASES for batch in CASES[name][2]]
    # What the chapter shows comes first, and a short budget leaves out the rest.
    wanted.sort(key=lambda case: (FIRST.index(case) if case in FIRST else len(FIRST), -case[1]))
    whole["flat"] = flat()
    print(f"LeNet-5, AdamW, bytes in use: {', '.join(f'{k} {v:,}' for k, v in whole['flat'].items())}", flush=True)
    cases = [(name, batch, variant) for name, batch in wanted for variant in VARIANTS]
    for name, batch, variant in cases:
        if time.perf_counter() - began > options.budget:
            print(f"the budget is spent: {name}, batch {batch}, {variant} and what follows is left out")
            break
        try:
            rows[f"{name}, batch {batch}, {variant}"] = measure(name, batch, variant)
        except Differs as error:
            print(error)
            failed += 1
        whole |= {"parts": PARTS, "rows": rows}
        print(f"{time.perf_counter() - began:6.1f} s: {name}, batch {batch}, {variant}", flush=True)
        write("memory", "pmpp/nn/measure/memory.py", whole, options.out)
    print(table(rows))
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
