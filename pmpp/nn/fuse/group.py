"""Grouping: which operations share a kernel.

An operation runs over a *space*, the shape of what it goes through: the shape of its result, and for a reduction that
of its operand. A kernel goes through one space, a row at a time. The threads that hold a row have all of its elements.
So they know the sum of the row at once, and an operation on the same row can follow. A value of a smaller shape, such
as a bias, is computed again for each row.

What ends a kernel is a reduction over *another* space: no row of this kernel has its elements.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pmpp.nn.fuse.tracing import REDUCTIONS, Graph, Value, ancestors


class Part(typing.NamedTuple):
    """A kernel to be: the space that it goes through, and the values that it writes to memory."""

    space: tuple[int, ...]
    targets: tuple[Value, ...]


def operations(graph: Graph) -> Iterator[Value]:
    """What is to be computed: neither inputs nor what depends on numbers alone. Each thread computes the latter."""
    return (value for value in ancestors(graph.results) if value.shape and value.op != "input")


def space_of(value: Value) -> tuple[int, ...]:
    return value.operands[0].shape if value.op in REDUCTIONS else value.shape


def alone(graph: Graph) -> list[Part]:
    """Nothing is fused: a kernel for each operation, as without a compiler."""
    copies = [value for value in dict.fromkeys(graph.results) if value.op == "input"]
    return [Part(space_of(value), (value,)) for value in [*operations(graph), *copies]]


def elementwise_only(graph: Graph) -> list[Part]:
    """Chains of elementwise operations are fused, reductions have their own kernels."""
    kept = {value for value in operations(graph) if value.op in REDUCTIONS}
    kept |= {value.operands[0] for value in kept if value.operands[0].op != "input"} | set(graph.results)
    return [Part(space_of(value), (value,)) for value in sorted(kept, key=lambda value: value.number)]


def fused(graph: Graph) -> list[Part]:
    """All that goes through the same space shares a kernel, unless it waits for a kernel of another space.

    The level of a kernel says after how many others it can run. A reduction, or a result, is at the level of the
    reductions over its own space that it needs, and one above those over other spaces.
    """
    needs: dict[Value, dict[tuple, int]] = {}  # of a value: the highest level of reductions that it needs, by space
    home: dict[Value, tuple[int, tuple]] = {}  # of a reduction: the level and the space of its kernel

    def level(value: Value, space: tuple) -> int:
        return max((at + (other != space) for other, at in needs[value].items()), default=0)

    for value in ancestors(graph.results):
        needs[value] = {}
        for operand in value.operands:
            for space, at in needs[operand].items():
                needs[value][space] = max(at, needs[value].get(space, 0))
        if value.op in REDUCTIONS:
            space = space_of(value)
            home[value] = level(value, space), space
            needs[value] = {space: home[value][0]}

    kernels: dict[tuple[int, tuple], dict[Value, None]] = {}  # the targets of each, in order
    for value in graph.results:
        # What has one number a row joins the kernel of the reduction that it comes from.
        rows = [(at, space) for space, at in needs[value].items() if (*space[:-1], 1) == value.shape]
        space = max(rows)[1] if rows else value.shape
        kernels.setdefault((level(value, space), space), {})[value] = None
    done: set[tuple] = set()
    while pending := kernels.keys() - done:
        key = max(pending)  # the last level first: it says what earlier kernels have to write
        done.add(key)
        for value in ancestors(kernels[key], lambda value, key=key: home.get(value, key) != key):
            if home.get(value, key) != key:
                kernels.setdefault(home[value], {})[value] = None
    return [Part(space, tuple(kernels[at, space])) for at, space in sorted(kernels)]
