"""Clusters: neighbouring blocks that run at the same time and use one another's shared memory.

A kernel is launched in clusters of so many blocks, on both backends::

    in_clusters(kernel, 4)[grid, block, stream, shared](x, out)

The blocks of a cluster are neighbours along x: 0 to 3, 4 to 7, ... They run at the same time, on multiprocessors that
a network joins. Inside the kernel::

    mine = cuda.shared.array(SIZE, np.float32)
    mine[i] = ...
    cluster_sync()                                       # the others run, and have written theirs
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    x = theirs[i]                                        # loads, stores and atomics, as of any array
    cluster_sync()                                       # nobody ends while another one still reads

- ``cluster_rank()`` is the number of this block in its cluster, from 0 on, and ``cluster_size()`` how many blocks it
  has: int32, and 0 and 1 where the kernel is launched without clusters.
- ``cluster_sync()`` is a barrier of all threads of the cluster that still run. What they did before it, in shared and
  in global memory, is seen by all of them after it. It is a `syncthreads` of each block, too, and as there the threads
  of a warp call it together: it stands outside of any branch.
- ``map_shared_rank(array, rank)`` is the same array of the block with that rank: ``array`` is a whole array in shared
  memory, or a part of one, and ``rank`` an integer from 0 to ``cluster_size() - 1``, which may differ from thread to
  thread. PTX calls this memory distributed shared memory. An access to another block's goes through the network between
  multiprocessors.

Two barriers are needed. Before the first access to a block's memory the block must have begun, and it must not have
ended before the last one. `cluster_sync` says both.

A cluster has at most 8 blocks on every GPU that has clusters, and at most 16 on an H100 or H200. A GPU before compute
capability 9.0 has none. Sources: PTX ISA, "Cluster of Cooperative Thread Arrays", "barrier.cluster", "mapa";
CUDA C++ programming guide, "Distributed shared memory".
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

from pmpp.runtime import device
from pmpp.runtime.check import as_integer

__all__ = [  # noqa: F822
    "MOST", "NAMES", "cluster_rank", "cluster_size", "cluster_sync", "in_clusters", "map_shared_rank",
    "numba_intrinsics", "resident_clusters",
]  # fmt: skip

#: What this module gives a kernel.
NAMES = ("cluster_rank", "cluster_size", "cluster_sync", "map_shared_rank")

CAPABILITY = (9, 0)
MOST = 16  # blocks of a cluster


def in_clusters(kernel: typing.Any, blocks: int) -> typing.Any:
    """The kernel, to be launched in clusters of so many blocks: ``in_clusters(kernel, 4)[grid, block](...)``.

    Args:
        kernel: made by ``@cuda.jit``. Its arguments are then device arrays, numbers and tuples of them. NumPy arrays
            are refused.
        blocks: of a cluster, from 1 to 16. The grid's first extent must be a multiple of it. More than 8 are what CUDA
            calls non-portable.

    A launch raises ValueError for a grid that is not whole clusters, TypeError for NumPy arrays, and RuntimeError if
    the driver refuses, as it does where the shared memory of a cluster's blocks is more than neighbouring
    multiprocessors have.

    >>> import numpy as np
    >>> from pmpp import cuda
    >>> from pmpp.runtime.clusters import cluster_rank, in_clusters
    >>> @cuda.jit
    ... def ranks(out):
    ...     out[cuda.grid(1)] = cluster_rank()
    >>> out = cuda.to_device(np.zeros(6, np.int32))
    >>> in_clusters(ranks, 2)[6, 1](out)
    >>> out.copy_to_host()
    array([0, 1, 0, 1, 0, 1], dtype=int32)
    """
    blocks = as_integer("blocks", blocks, 1, MOST)
    if device.backend().name == "simt":
        from pmpp.simt.host.clusters import InClusters
    else:
        from pmpp.runtime.cluster_launcher import InClusters
    return InClusters(kernel, blocks)


def resident_clusters(blocks: int, threads: int, shared: int = 0) -> int:
    """How many clusters this GPU holds at once, if threads and shared memory are the limit, not registers; at least 1.

    A kernel whose clusters take one piece of work after another is launched with so many.

    Args:
        blocks: of a cluster, from 1 to 16.
        threads: of a block.
        shared: bytes of dynamic shared memory of a block.

    The interpreter imagines multiprocessors that may form any cluster; on a GPU some are left over.

    >>> resident_clusters(2, 1024, 160 * 1024) >= 1
    True
    """
    blocks, threads = as_integer("blocks", blocks, 1, MOST), as_integer("threads", threads, 1, 1024)
    shared = as_integer("shared", shared, 0)
    if device.backend().name == "simt":
        from pmpp.simt.host.clusters import resident
    else:
        from pmpp.runtime.cluster_launcher import resident
    return max(resident(blocks, threads, shared), 1)


@functools.cache
def numba_intrinsics() -> dict[str, Callable]:
    """All of `NAMES` for the Numba backend, by name. Needs numba-cuda, but no GPU."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic

    word, long, void = ir.IntType(32), ir.IntType(64), ir.VoidType()

    def needs(name: str) -> None:
        found = ConfigStack().top().compute_capability
        if tuple(found[:2]) < CAPABILITY:
            has = ".".join(map(str, found))
            raise TypingError(f"{name} needs a GPU of compute capability 9.0 or more, and compiles for {has}")

    def emit(builder, text, result, operands, constraints):
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=False), operands)

    def number(name: str, register: str) -> Callable:
        def instruction(typingctx):
            def codegen(context, builder, signature, args):
                needs(name)
                return emit(builder, f"mov.u32 $0, {register};", word, [], "=r")

            return types.int32(), codegen

        instruction.__name__ = instruction.__qualname__ = name
        return intrinsic(instruction)

    @intrinsic
    def cluster_sync(typingctx):
        def codegen(context, builder, signature, args):
            needs("cluster_sync")
            # It has its place among the accesses before and behind it: the compiler moves none of them across.
            text = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
            assembly = ir.InlineAsm(ir.FunctionType(void, []), text, "~{memory}", side_effect=True)
            builder.call(assembly, [], attrs=("convergent",))
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def map_shared_rank(typingctx, array, rank):
        if not isinstance(array, types.Array):
            raise TypingError(f"map_shared_rank: array must be an array in shared memory, was {array}")
        if not isinstance(rank, types.Integer):
            raise TypingError(f"map_shared_rank: rank must be one integer, was {rank}")

        def codegen(context, builder, signature, args):
            needs("map_shared_rank")
            mapped = context.make_array(array)(context, builder, args[0])
            place = builder.ptrtoint(mapped.data, long)
            which = context.cast(builder, args[1], rank, types.uint32)
            place = emit(builder, "mapa.u64 $0, $1, $2;", long, [place, which], "=l,l,r")
            mapped.data = builder.inttoptr(place, mapped.data.type)
            return mapped._getvalue()

        return array(array, rank), codegen

    return {
        "cluster_rank": number("cluster_rank", "%cluster_ctarank"),
        "cluster_size": number("cluster_size", "%cluster_nctarank"),
        "cluster_sync": cluster_sync,
        "map_shared_rank": map_shared_rank,
    }


def __getattr__(name: str) -> typing.Any:
    # Chosen at first use, like pmpp.cuda: the interpreter has its own twins and must not need Numba.
    if name not in NAMES:
        raise AttributeError(f"module 'pmpp.runtime.clusters' has no attribute {name!r}")
    chosen = device.backend()
    globals()[name] = getattr(chosen.cuda, name) if chosen.name == "simt" else numba_intrinsics()[name]
    return globals()[name]
