"""The same search with a launch for each level, between which the host reads how many vertices were found.

This is how a search was written before a grid could wait for itself. It needs no limit on the size of the grid. But the
host waits for each level, reads one number, and launches again. `pmpp.kernels.graph.ladder` has the search in one
launch; the chapter compares what a level costs.

Source: PMPP 4e section 15.4; Luo, Wong and Hwu, "An effective GPU implementation of breadth-first search" (2010).
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.graph import ladder
from pmpp.runtime import device

__all__ = ["levels_by_launches", "step_kernel"]

BLOCK = ladder.BLOCK


@cuda.jit
def step_kernel(starts, neighbours, levels, queue, begin, end, depth, totals):
    """One level: the vertices ``queue[begin:end]`` append their new neighbours. totals[0]: how many were ever found."""
    i = begin + cuda.grid(1)
    if i < end:
        v = queue[i]
        for j in range(starts[v], starts[v + 1]):
            w = neighbours[j]
            if levels[w] < 0 and cuda.atomic.cas(levels, w, -1, depth + 1) == -1:
                queue[1 + cuda.atomic.add(totals, 0, 1)] = w


def levels_by_launches(starts, neighbours, source=0, *, out=None, stream=0) -> typing.Any:
    """The levels that `ladder.frontier` finds, by a launch for each of them.

    What it takes, and what it raises, is as of `ladder.arguments`. Edges turned round it neither needs nor takes. It
    returns when the work is done.

    >>> from pmpp.kernels import graph
    >>> starts, neighbours = graph.both_ways([0, 1], [1, 2], vertices=4)
    >>> levels_by_launches(starts, neighbours).copy_to_host()
    array([ 0,  1,  2, -1], dtype=int32)
    """
    p = ladder.arguments(starts, neighbours, source, out=out, stream=stream)
    if p.done:
        return p.result
    ladder.begin(p)
    queue = device.empty(p.result.size, np.int32, stream=p.stream)
    queue[:1].copy_to_device(np.array([p.source], np.int32), stream=p.stream)
    begin, end, depth = 0, 1, 0
    while begin < end:
        grid = blocks(end - begin, BLOCK)
        step_kernel[grid, BLOCK, p.stream](p.starts, p.neighbours, p.result, queue, begin, end, depth, p.totals)
        if p.stream:
            p.stream.synchronize()
        begin, end = end, 1 + int(device.to_host(p.totals[:1])[0])
        depth += 1
    return p.result
