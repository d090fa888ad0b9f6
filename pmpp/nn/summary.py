"""What a network consists of, and what its training needs of memory."""

from __future__ import annotations

import math
import typing

from pmpp.nn.modules import Module
from pmpp.nn.tape import Tensor, no_grad, state

__all__ = ["memory", "summary"]


def summary(net: Module, x: Tensor) -> str:
    """A table of the layers that ``net(x)`` calls: path, kind, shape of the result, parameters."""
    rows: list[tuple[str, str, str, int]] = []

    def watch(path: tuple[str, ...], module: Module, result: typing.Any) -> None:
        if any(True for _ in module.named_children()):
            return
        own = sum(math.prod(p.shape) for p in module.parameters())
        rows.append((".".join(path[1:]) or path[0], type(module).__name__, str(tuple(result.shape)), own))

    state.watch = watch
    try:
        with no_grad():
            net(x)
    finally:
        state.watch = None
    total = sum(math.prod(p.shape) for p in net.parameters())
    cells = [("layer", "kind", "result", "parameters"), *((a, b, c, f"{d:,}") for a, b, c, d in rows)]
    cells.append(("", "", "all", f"{total:,}"))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)) for row in cells]
    return "\n".join(f"{line}  {row[3]:>{widths[3]}}" for line, row in zip(lines, cells, strict=True))


def memory(net: Module, loss: Tensor, optimizer: typing.Any = None) -> dict[str, int]:
    """Bytes that a training step needs: parameters, gradients, what the optimiser keeps, activations.

    ``loss`` is a result of ``net`` on which `backward` has not been called. Activations are the arrays that the tape
    has saved, each counted once; parameters among them do not count.
    """
    parameters = list(net.parameters())
    own = {id(p.array) for p in parameters}
    size = sum(p.array.nbytes if hasattr(p.array, "nbytes") else 4 * p.size for p in parameters)
    trained = sum(4 * p.size for p in parameters if p.requires_grad)
    saved: dict[int, int] = {}
    waiting, seen = [loss.node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.context is not None:
            for array in node.context.saved:
                if id(array) not in own:
                    saved[id(array)] = math.prod(array.shape) * array.dtype.itemsize
        waiting += [edge[0] for edge in node.inputs if edge is not None]
    kept = len(optimizer.wanted(optimizer.param_groups[0])) if optimizer is not None else 0
    return {
        "parameters": size,
        "gradients": trained,
        "optimiser": kept * trained,
        "activations": sum(saved.values()),
    }
