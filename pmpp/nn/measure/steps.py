"""Training steps beside PyTorch's, on one GPU: ``python -m pmpp.nn.measure.steps``.

A step is a forward pass, a backward pass and a change of the parameters. Both networks begin with the same state and
see the same batches, and their losses are compared before a step is timed. A step is timed as it is called, ours also
without `pmpp.nn.replay`, and recorded as a CUDA graph. PyTorch runs in float32 without TF32; for ResNet-18 its cuDNN is
in benchmark mode.

The step of a small network waits for its host, and one core may be half as fast as the next. So a loop of Python takes
turns with the steps that are called, and its time stands beside theirs.

It prints a table, and records it after each network.
"""

from __future__ import annotations

import argparse
import statistics
import time
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn import replay
from pmpp.nn.examples.networks import LeNet, ResNet18
from pmpp.nn.measure import write
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

REPETITIONS = 15
LOOP = 300_000  # additions of the loop that tells how fast the host is
#: The issue's targets: PyTorch's time over ours, of a step as it is called and of a graph.
CASES = {
    "LeNet-5, batch 256": (LeNet, (256, 1, 28, 28), 2.5, 1.2),
    "ResNet-18, batch 128": (ResNet18, (128, 3, 32, 32), None, 1.0),
}


def milliseconds(*calls: Callable, at_least: float = 0.15) -> list[float]:
    """The median time of each call from host to host: many are queued, and waited for at the end.

    The calls take turns, since a host is not equally fast all the time.
    """
    import torch

    def run(call: Callable, n: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / n

    counts = [max(3, int(at_least / min(run(call, 3) for _ in range(2)))) for call in calls]
    rounds = [[run(call, n) for call, n in zip(calls, counts, strict=True)] for _ in range(REPETITIONS)]
    return [1e3 * statistics.median(times) for times in zip(*rounds, strict=True)]


def python_loop() -> None:
    """`LOOP` additions, one at a time."""
    total = 0
    for i in range(LOOP):
        total += i


def theirs(net: typing.Any, where: str = "cuda") -> typing.Any:
    """A PyTorch network of the same build, with the same state, on PyTorch's device ``where``."""
    import torch

    made = _torch_of(net)
    made.load_state_dict({name: torch.from_numpy(value) for name, value in net.state_dict().items()})
    return made.to(where)


def _torch_of(net: typing.Any) -> typing.Any:
    """Module for module. One that is written here becomes one whose forward is the same code on PyTorch's tensors."""
    import torch
    from torch import nn as tnn

    if isinstance(net, nn.Conv2d):
        options = {"stride": net.stride, "padding": net.padding, "groups": net.groups, "bias": net.bias is not None}
        return tnn.Conv2d(net.in_channels, net.out_channels, net.kernel_size, **options)
    if isinstance(net, nn.Linear):
        return tnn.Linear(net.in_features, net.out_features, net.bias is not None)
    if isinstance(net, nn.BatchNorm2d):
        return tnn.BatchNorm2d(net.num_features, net.eps, net.momentum)
    if isinstance(net, nn.MaxPool2d):
        size, stride, padding, ceil_mode = net.options
        return tnn.MaxPool2d(size, stride, padding, ceil_mode=ceil_mode)
    if isinstance(net, nn.Sequential):
        return tnn.Sequential(*(_torch_of(child) for _, child in net.named_children()))
    forward = type(net).forward

    class Twin(tnn.Module):
        def forward(self, x: typing.Any) -> typing.Any:
            # The code names pmpp's functional; on PyTorch's tensors it must call PyTorch's, which has the same names.
            import types

            names = {**forward.__globals__, "F": torch.nn.functional}
            return types.FunctionType(forward.__code__, names)(self, x)

    made = Twin()
    for name, child in net.named_children():
        setattr(made, name, _torch_of(child))
    return made


def measure(name: str) -> dict[str, typing.Any]:
    """One row of the table."""
    import torch

    kind, shape, *_ = CASES[name]
    torch.backends.cudnn.benchmark = "ResNet" in name
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    nn.manual_seed(0)
    net = kind()
    other = theirs(net)
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal(shape, dtype=np.float32), rng.integers(0, 10, shape[0])
    x, y = Tensor(images), Tensor(labels)
    tx, ty = torch.from_numpy(images).cuda(), torch.from_numpy(labels).cuda()
    mine = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    their = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        mine.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        mine.step()
        return loss

    def their_step() -> typing.Any:
        their.zero_grad()
        loss = torch.nn.functional.cross_entropy(other(tx), ty)
        loss.backward()
        their.step()
        return loss

    losses = [(step(x, y).item(), their_step().item()) for _ in range(10)]
    row: dict[str, typing.Any] = {"losses": losses, "farthest": max(abs(a - b) / abs(b) for a, b in losses)}
    mine_ms, their_ms, row["host loop ms"] = milliseconds(lambda: step(x, y), their_step, python_loop)
    with replay.off():
        (anew,) = milliseconds(lambda: step(x, y))
    recorded, theirs_recorded = nn.capture(step, x, y), _torch_graph(their_step)
    graphs = zip(("ours, graph", "torch, graph"), milliseconds(lambda: recorded(x, y), theirs_recorded), strict=True)
    row["ms"] = {"ours": mine_ms, "torch": their_ms, "ours, each operation anew": anew, **dict(graphs)}
    return row


def _torch_graph(step: Callable) -> Callable:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.steps", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    rows: dict[str, typing.Any] = {}
    print(f"{'step':<22} {'':<10} {'ours ms':>9} {'torch ms':>9} {'ratio':>6} {'target':>7}  losses differ by")
    for name in options.cases or CASES:
        rows[name] = row = measure(name)
        for kind, target in zip(("", ", graph"), CASES[name][2:], strict=True):
            mine, other = row["ms"][f"ours{kind}"], row["ms"][f"torch{kind}"]
            words = f"{target:7.1f}" if target else f"{'-':>7}"
            what = "graph" if kind else "as called"
            print(f"{name:<22} {what:<10} {mine:9.3f} {other:9.3f} {other / mine:6.2f} {words}  {row['farthest']:.1e}")
        print(f"{'':<22} {LOOP:,} additions of the host, in Python: {row['host loop ms']:.1f} ms")
        out = write("steps", "pmpp/nn/measure/steps.py", {"steps": rows}, options.out)
    print(f"recorded in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
