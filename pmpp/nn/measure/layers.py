"""Where a training step goes, layer by layer: ``python -m pmpp.nn.measure.layers`` measures it on a GPU.

One step of LeNet-5 and of ResNet-18 is carried out, and each operation's arguments are kept. Then each is carried out
alone, forwards and backwards, as often as its time takes to be known. Beside the time stands the least that the
operation must do: bytes and FLOP of its definition, and the roofline's bound for them.

The GPU's cache is emptied before each sample. In a step some of a layer's input is still there, so a layer can be a
little faster in the step than alone. The record has the time of the whole step, too, replayed as a CUDA graph.

`counted` shows the same of a small network in the interpreter, in instructions and bytes instead of time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmpp import nn, simt
from pmpp.kernels import activation, elementwise, linear, optimiser, pooling
from pmpp.kernels.activation import activation_backward
from pmpp.kernels.convolution_layer.definition import layer_of
from pmpp.kernels.normalisation import batchnorm, batchnorm_backward
from pmpp.kernels.optimiser import sgd
from pmpp.kernels.pooling import pooling_backward
from pmpp.kernels.softmax import cross_entropy_loss
from pmpp.lab.measure import roofline, timing
from pmpp.nn import arithmetic
from pmpp.nn import functional as F
from pmpp.nn.examples.digits import Net
from pmpp.nn.examples.networks import LeNet, ResNet18
from pmpp.nn.measure import write
from pmpp.nn.measure.steps import theirs
from pmpp.nn.tape import Context, Function, Node, Tensor, no_grad
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet-5, batch 256": (LeNet, (256, 1, 28, 28)),
    "ResNet-18, batch 128": (ResNet18, (128, 3, 32, 32)),
}
#: How many times as far from float64 as PyTorch's float32 a gradient may be. Both round, in another order. Ours may
#: come from Winograd's F(4x4, 3x3), too, whose transforms make errors several times larger: see chapter 68.
MARGIN = 8
WITHOUT_KERNELS = (arithmetic.Reshape,)


@dataclass(eq=False)
class Operation:
    """An operation of a step: what was called, with what, where, and what it returned."""

    function: type[Function]
    arguments: tuple
    node: Node
    result: typing.Any

    @property
    def layer(self) -> str:
        """The path of the module that called it, such as "layer1.0.conv1"."""
        return ".".join(self.node.path[1:]) or "-"

    @property
    def name(self) -> str:
        """Which operation it is, such as "Conv2d"."""
        return self.function.__name__

    @property
    def key(self) -> tuple:
        """Equal for operations that do the same work: their shapes, options, and which gradients are wanted."""
        shapes = tuple(a.shape if isinstance(a, Tensor) else repr(a) for a in self.arguments)
        return self.name, shapes if self.function is not F.BatchNorm else shapes[:1], self.node.context.needs

    def forward(self) -> typing.Any:
        """Carry it out again. Returns device arrays."""
        with no_grad():
            return self.function.forward(Context(self.node.context.needs), *self.arguments)

    def backward(self, upstream: typing.Any) -> tuple:
        """The gradients of its arguments, from that of its result."""
        with no_grad():
            made = self.function.backward(self.node.context, upstream)
        return made if isinstance(made, tuple) else (made,)

    def upstream(self) -> typing.Any:
        """A gradient of its result, drawn at random."""
        shape = self.node.outputs[0]
        return device.to_device(
            np.random.default_rng(0).standard_normal(shape or (1,), dtype=np.float32).reshape(shape)
        )

    @property
    def costs(self) -> tuple[Cost, Cost]:
        """The least work forwards and backwards. Raises NotImplementedError for an operation that is not known here."""
        needs, arguments = self.node.context.needs, self.arguments
        x = arguments[0].shape
        if self.function is F.Conv2d:
            layer = layer_of(x, arguments[1].shape, *arguments[3:])
            # One product for each gradient that is wanted. Each moves what the layer itself moves.
            return layer.cost, _sum([layer.cost] * sum(needs[:2]))
        if self.function is F.Linear:
            extents = math.prod(x[:-1]), x[-1], arguments[1].shape[0]
            wanted = [of for of, need in zip(("x", "weight"), needs, strict=False) if need]
            gradients = linear.linear_gradients
            return linear.cost(*extents), _sum([gradients.cost(*extents, of) for of in wanted])
        if self.function is F.Activation:
            return activation.cost(math.prod(x)), activation_backward.cost(math.prod(x))
        if self.function in (F.MaxPool2d, F.AvgPool2d):
            shape = math.prod(x[:-2]), *x[-2:]
            told = 1 if self.function is F.MaxPool2d else 0
            options = arguments[1:5]
            return pooling.cost(*shape, *options), pooling_backward.cost(*shape, *options, told=told)
        if self.function is F.BatchNorm:
            shape = x[0], x[1], math.prod(x[2:])
            return batchnorm.cost(*shape), batchnorm_backward.cost(*shape)
        if self.function is F.CrossEntropy:
            return cross_entropy_loss.cost(*x), elementwise.cost(math.prod(x))
        if self.function is arithmetic.Add:
            # Backwards the gradient is handed on as it is, unless an operand was repeated.
            return elementwise.cost(math.prod(x)), Cost(0, 0)
        raise NotImplementedError(f"the least work of {self.name} in {self.layer} is not known here: add it to `costs`")


def _sum(costs: list[Cost]) -> Cost:
    return sum(costs, Cost(0, 0))


@contextlib.contextmanager
def kept() -> Iterator[list[Operation]]:
    """Within it every operation that is written on the tape is kept, in order."""
    found: list[Operation] = []
    usual = Function.__dict__["apply"]

    def apply(cls: type[Function], *arguments: typing.Any) -> typing.Any:
        made = usual.__func__(cls, *arguments)
        if isinstance(made, Tensor) and made.node is not None and cls not in WITHOUT_KERNELS:
            found.append(Operation(cls, arguments, made.node, made.array))
        return made

    Function.apply = classmethod(apply)
    try:
        yield found
    finally:
        Function.apply = usual


def operations(net: nn.Module, images: np.ndarray, labels: np.ndarray) -> tuple[list[Operation], Tensor]:
    """The operations of a step's forward pass that have a gradient, in order; and the loss."""
    with kept() as found:
        loss = F.cross_entropy(net(Tensor(images)), Tensor(labels))
    return found, loss


def batch(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images of this shape and labels, drawn at random."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape, dtype=np.float32), rng.integers(0, 10, shape[0])


# ----------------------------------------------------------------------------------------- counted, in the interpreter


def counted(images: np.ndarray, labels: np.ndarray) -> list[dict[str, typing.Any]]:
    """What each layer of the network of `digits` does in a step, counted by the interpreter.

    A row has the layer's path, the operation, its shape, and for "forward" and "backward" the warp instructions, the
    bytes that were asked of device memory in sectors, and the least FLOP and bytes. ``lab.count(layers.counted, images,
    labels)`` calls it on a machine with a GPU, too.
    """
    nn.manual_seed(0)
    found, _ = operations(Net(), images, labels)
    rows = []
    for one in found:
        row: dict[str, typing.Any] = {"layer": one.layer, "operation": one.name, "shape": tuple(one.result.shape)}
        upstream = one.upstream()
        sides = {"forward": one.forward, "backward": lambda one=one, upstream=upstream: one.backward(upstream)}
        for (side, call), cost in zip(sides.items(), one.costs, strict=True):
            with simt.record(collect=False) as reports:
                call()
            total = {
                what: sum(report.counters[what] for report in reports)
                for what in ("warp_instructions", "global_load_sectors", "global_store_sectors")
            }
            sectors = total["global_load_sectors"] + total["global_store_sectors"]
            row[side] = {"instructions": total["warp_instructions"], "bytes": 32 * sectors, "launches": len(reports)}
            row[side] |= {"least bytes": cost.bytes, "flops": cost.flops}
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------- measured, on a GPU


def verify(net: nn.Module, images: np.ndarray, labels: np.ndarray, where: str = "cuda") -> dict[str, float]:
    """Compare the gradients of all parameters with PyTorch's in float64. Raises `timing.WrongResult`.

    PyTorch's float32 says how far rounding leads: a gradient of ours may be `MARGIN` times as far from float64 as the
    farthest of PyTorch's, both as a share of the gradient's norm. Returns both shares.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def gradients(kind: typing.Any) -> dict[str, np.ndarray]:
        other = theirs(net, where).to(kind)
        x, y = torch.from_numpy(images).to(where, kind), torch.from_numpy(labels).to(where)
        torch.nn.functional.cross_entropy(other(x), y).backward()
        return {name: p.grad.double().cpu().numpy() for name, p in other.named_parameters()}

    exact, rounded = gradients(torch.float64), gradients(torch.float32)
    net.zero_grad()
    state = net.state_dict()  # batch normalisation counts batches
    F.cross_entropy(net(Tensor(images)), Tensor(labels)).backward()
    found = {name: p.grad.numpy().astype(np.float64) for name, p in net.named_parameters()}
    net.zero_grad()
    net.load_state_dict(state)
    shares = {
        who: max(np.linalg.norm(made[name] - exact[name]) / np.linalg.norm(exact[name]) for name in exact)
        for who, made in (("ours", found), ("torch", rounded))
    }
    if not shares["ours"] <= MARGIN * shares["torch"] + 2.0**-23:
        raise timing.WrongResult(
            f"a gradient of {type(net).__name__} is off by {shares['ours']:.1e} of its norm, PyTorch's by at most "
            f"{shares['torch']:.1e}"
        )
    return {who: float(share) for who, share in shares.items()}


def same(expected: typing.Any) -> Callable[..., tuple[float, float]]:
    """A check for `timing.measure`: the result is what it was in the step, but for the order of an atomic sum."""
    arrays = [
        np.array(device.to_host(a)) for a in (expected if isinstance(expected, tuple) else (expected,)) if a is not None
    ]

    def check(result: typing.Any, *_: typing.Any) -> tuple[float, float]:
        made = [device.to_host(a) for a in (result if isinstance(result, tuple) else (result,)) if a is not None]
        off = [abs(a.astype(np.float64) - b).max(initial=0) for a, b in zip(made, arrays, strict=True)]
        size = [abs(b.astype(np.float64)).max(initial=0) for b in arrays]
        share = [a / b if b else float(a > 0) for a, b in zip(off, size, strict=True)]
        return max(share, default=0.0), 2.0**-20

    return check


def side(call: Callable, expected: typing.Any, cost: Cost, seconds: float) -> dict[str, typing.Any]:
    """The row of one operation in one direction: its time, and what the roofline says."""
    found = timing.measure(call, [()], check=same(expected), set_bytes=max(cost.bytes, 1), max_seconds=seconds)
    return {"us": 1e6 * found.median, **least(cost)}


def least(cost: Cost) -> dict[str, typing.Any]:
    """FLOP and bytes, the time that the roofline allows for them, and what sets it."""
    allowed = roofline.bound(cost, roofline.ceilings())
    return {"flops": cost.flops, "bytes": cost.bytes, "bound us": 1e6 * allowed.seconds, "bound by": allowed.side}


def measure(name: str, seconds: float = 0.1, where: str = "cuda", side: Callable = side) -> dict[str, typing.Any]:
    """All operations of a step, and the change of the parameters. ``seconds``: at most for each direction of each."""
    kind, shape = CASES[name]
    images, labels = batch(shape)
    nn.manual_seed(0)
    net = kind()
    row: dict[str, typing.Any] = {"batch": shape[0]}
    if importlib.util.find_spec("torch") is not None:
        row["off by"] = verify(net, images, labels, where)
    found, loss = operations(net, images, labels)
    known: dict[tuple, dict] = {}
    row["operations"] = []
    for one in found:
        if one.key not in known:
            upstream, (forward, backward) = one.upstream(), one.costs
            known[one.key] = {
                "forward": side(one.forward, one.forward(), forward, seconds),
                "backward": side(
                    lambda one=one, up=upstream: one.backward(up), one.backward(upstream), backward, seconds
                )
                if backward.bytes
                else None,
            }
        about = {"layer": one.layer, "operation": one.name, "shape": list(one.result.shape)}
        row["operations"].append({**about, **known[one.key]})
    loss.backward()
    row["update"] = update(net, seconds, side)
    return row


def update(net: nn.Module, seconds: float, side: Callable) -> dict[str, typing.Any]:
    """One step of SGD with momentum. Its rate is 0, so that it can be repeated: the work is the same."""
    parameters = [p.array for p in net.parameters()]
    gradients = [p.grad.array for p in net.parameters()]
    velocities = [device.to_device(np.zeros(p.shape, np.float32)) for p in net.parameters()]

    def call() -> tuple:
        optimiser.sgd_(parameters, gradients, velocities, lr=0.0, momentum=0.9, step=1)
        return tuple(parameters)

    return side(call, call(), sgd.cost(sum(math.prod(p.shape) for p in net.parameters()), momentum=True), seconds)


def whole_step(name: str, repetitions: int = 20) -> float:
    """Microseconds of the whole step, replayed as a CUDA graph, from host to host."""
    kind, shape = CASES[name]
    images, labels = batch(shape)
    nn.manual_seed(0)
    net = kind()
    optimizer = nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = Tensor(images), Tensor(labels)
    recorded = nn.capture(step, x, y)
    samples = []
    for _ in range(5):
        recorded(x, y).item()
        began = time.perf_counter()
        for _ in range(repetitions):
            result = recorded(x, y)
        result.item()
        samples.append((time.perf_counter() - began) / repetitions)
    return 1e6 * float(np.median(samples))


def table(name: str, row: dict[str, typing.Any]) -> str:
    """The operations as a table, the longest first."""
    lines = [f"{name}: {'operation':<11} {'layer':<22} {'direction':<9} {'us':>8} {'bound us':>8}  bound by"]
    parts = [(one, d, one[d]) for one in row["operations"] for d in ("forward", "backward") if one[d]]
    parts.append(({"operation": "SGD", "layer": "all"}, "update", row["update"]))
    for one, direction, found in sorted(parts, key=lambda part: -part[2]["us"])[:20]:
        words = f"{one['operation']:<11} {one['layer']:<22} {direction:<9}"
        lines.append(f"{'':{len(name)}}  {words} {found['us']:8.1f} {found['bound us']:8.1f}  {found['bound by']}")
    total = sum(found["us"] for *_, found in parts)
    lines.append(
        f"{'':{len(name)}}  all {len(parts)}: {total:.0f} us; the whole step as a graph: {row['step us']:.0f} us"
    )
    return "\n".join(lines)


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.layers", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among the records of this GPU")
    parser.add_argument("--budget", type=float, default=50, help="seconds, of which each operation is given its share")
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    rows: dict[str, dict] = {}
    path = None
    for name in options.cases or CASES:
        # Some 15 kinds of operations in LeNet-5 and 40 in ResNet-18, each in two directions.
        try:
            row = measure(name, options.budget / 150)
        except timing.WrongResult as error:
            print(f"{name} is not recorded: {error}", flush=True)
            continue
        rows[name] = {**row, "step us": whole_step(name)}
        print(table(name, rows[name]), flush=True)
        path = write("layers", "pmpp/nn/measure/layers.py", {"networks": rows}, options.out)
    print(f"written to {path}" if path else "nothing was written")
    return 0 if len(rows) == len(options.cases or CASES) else 1


if __name__ == "__main__":
    raise SystemExit(main())
