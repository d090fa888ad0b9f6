"""What a network consists of, and what its training needs of memory."""

from __future__ import annotations

import math
import typing

from pmpp.nn.modules import Module
from pmpp.nn.tape import Tensor, no_grad, state
from pmpp.runtime import device

__all__ = ["memory", "summary"]


def summary(net: Module, x: Tensor) -> str:
    """A table of the layers that ``net(x)`` calls: path, kind, shape of the result, parameters.

    The network is called in evaluation, so that running moments and random numbers stay as they are, and is in training
    as before when it returns. Of a tuple each part has its shape; what is no tensor has the name of its kind.
    """
    rows: list[tuple[str, str, str, int]] = []

    def watch(path: tuple[str, ...], module: Module, result: typing.Any) -> None:
        if any(True for _ in module.named_children()):
            return
        own = sum(math.prod(p.shape) for p in module.parameters())
        rows.append((".".join(path[1:]) or path[0], type(module).__name__, _shapes(result), own))

    training = [(module, module.training) for module in net.modules()]
    before, state.watch = state.watch, watch
    try:
        for module, _ in training:
            module.training = False
        with no_grad():
            net(x)
    finally:
        state.watch = before
        for module, was in training:
            module.training = was
    total = sum(math.prod(p.shape) for p in net.parameters())
    cells = [("layer", "kind", "result", "parameters"), *((a, b, c, f"{d:,}") for a, b, c, d in rows)]
    cells.append(("", "", "all", f"{total:,}"))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)) for row in cells]
    return "\n".join(f"{line}  {row[3]:>{widths[3]}}" for line, row in zip(lines, cells, strict=True))


def _shapes(result: typing.Any) -> str:
    if isinstance(result, tuple | list):
        return ", ".join(map(_shapes, result))
    return str(result.shape) if isinstance(result, Tensor) else type(result).__name__


def memory(net: Module, loss: Tensor, optimizer: typing.Any = None) -> dict[str, int]:
    """Bytes that a training step needs: parameters, gradients, what the optimiser keeps, activations.

    ``loss`` is a result of ``net`` on which `backward` has not been called. Activations are the arrays that the tape
    has saved. Memory that is seen through several of them counts once, and that of the parameters does not count. The
    batch is among them if the first layer saved it. What a kernel needs while it runs is not.
    Raises RuntimeError if `backward` has freed them.
    """
    parameters = list(net.parameters())
    trained = {id(p): 4 * p.size for p in parameters if p.requires_grad}
    groups = [] if optimizer is None else optimizer.param_groups
    kept = sum(len(optimizer.wanted(g)) * trained.get(id(p), 0) for g in groups for p in g["params"])
    own = [span(p.array) for p in parameters]
    saved = [span(array) for array in _saved(loss)]
    return {
        "parameters": _covered(own),
        "gradients": sum(trained.values()),
        "optimiser": kept,
        "activations": _covered(own + saved) - _covered(own),
    }


def span(array: typing.Any) -> tuple[int, int]:
    """The addresses of the first byte of an array and of the one behind its last; its strides are not negative."""
    first = device.address(array)
    if not array.size:
        return first, first
    steps = ((extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True))
    return first, first + sum(steps) + array.dtype.itemsize


def _saved(loss: Tensor) -> list:
    """All arrays that the operations behind a tensor have saved."""
    found, waiting, seen = [], [loss.node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.context is not None:
            found += [array for array in node.context.held if array is not None]
        waiting += [edge[0] for edge in node.inputs if edge is not None]
    return found


def _covered(spans: list[tuple[int, int]]) -> int:
    """Bytes that lie in at least one of the spans."""
    total, reached = 0, 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total
