"""NVIDIA's library NCCL, by one of two packages that bind it for Python.

    cupy        `cupy.cuda.nccl`: comes with CuPy, from whose pool arrays on a GPU are made, so it is there already
    nccl4py     NVIDIA's own, which goes on where CuPy's ends: its maintainers wish to give theirs up (CuPy issue 2244)

The first that is installed is taken, in this order, or the one that PMPP_NCCL names. Both are asked by addresses,
counts and NCCL's own numbers of dtypes and operations, which a group has at hand. Of nccl4py that is ``nccl.bindings``.
Its ``nccl.core`` takes arrays, and finds out in each call what they are. The two bindings differ in names alone, and
`Nccl4py` has CuPy's.

Source: NVIDIA, NCCL4Py's documentation, and CuPy's reference of cupy.cuda.nccl.
"""

from __future__ import annotations

import importlib
import os
import typing
from collections.abc import Callable, Mapping

__all__ = ["BINDINGS", "CHOICE", "Nccl4py", "binding"]

CHOICE = "PMPP_NCCL"  # the variable that chooses a binding


class Nccl4py:
    """NCCL by nccl4py, under the names that CuPy's module has.

    Args:
        bindings: the module ``nccl.bindings.nccl``.
    """

    def __init__(self, bindings: typing.Any) -> None:
        self.bindings = bindings
        self.groupStart, self.groupEnd = bindings.group_start, bindings.group_end

    def get_unique_id(self) -> bytes:
        """128 bytes, by which ranks find one another. One rank asks, and tells the others."""
        return bytes(self.bindings.get_unique_id())

    def NcclCommunicator(self, size: int, identifier: bytes, rank: int) -> Communicator:
        """This rank's end of a group. Called by all of them."""
        unique = self.bindings.UniqueId.from_buffer(bytes(identifier))
        return Communicator(self.bindings, self.bindings.comm_init_rank(size, unique, rank))


class Communicator:
    """A rank of a group. Arrays are addresses; what else is asked for are NCCL's numbers."""

    def __init__(self, bindings: typing.Any, comm: typing.Any) -> None:
        self._nccl, self._comm = bindings, comm

    def rank_id(self) -> int:
        """This rank's number in the group."""
        return self._nccl.comm_user_rank(self._comm)

    def size(self) -> int:
        """How many ranks the group has."""
        return self._nccl.comm_count(self._comm)

    def allReduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """The arrays of all ranks combined, on all ranks."""
        self._nccl.all_reduce(source, target, count, dtype, op, self._comm, stream)

    def reduce(self, source: int, target: int, count: int, dtype: int, op: int, root: int, stream: int) -> None:
        """The arrays of all ranks combined, on the root."""
        self._nccl.reduce(source, target, count, dtype, op, root, self._comm, stream)

    def broadcast(self, source: int, target: int, count: int, dtype: int, root: int, stream: int) -> None:
        """The root's array, on all ranks."""
        self._nccl.broadcast(source, target, count, dtype, root, self._comm, stream)

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        """``count`` elements of each rank, on all ranks."""
        self._nccl.all_gather(source, target, count, dtype, self._comm, stream)

    def reduceScatter(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """``count`` elements of the arrays of all ranks combined, on each rank others."""
        self._nccl.reduce_scatter(source, target, count, dtype, op, self._comm, stream)

    def send(self, source: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """An array to one rank."""
        self._nccl.send(source, count, dtype, peer, self._comm, stream)

    def recv(self, target: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """An array from one rank."""
        self._nccl.recv(target, count, dtype, peer, self._comm, stream)


def _cupys() -> typing.Any:
    return importlib.import_module("cupy.cuda.nccl")


def _nccl4pys() -> typing.Any:
    return Nccl4py(importlib.import_module("nccl.bindings.nccl"))


BINDINGS: Mapping[str, Callable[[], typing.Any]] = {"cupy": _cupys, "nccl4py": _nccl4pys}


def binding(environment: Mapping[str, str] = os.environ) -> typing.Any:
    """The module of CuPy, or what stands for it.

    Raises ValueError for another name in PMPP_NCCL, and ImportError, with what each said, where none can be imported.
    """
    chosen = environment.get(CHOICE)
    if chosen and chosen not in BINDINGS:
        raise ValueError(f"{CHOICE} must be {' or '.join(map(repr, BINDINGS))}, was {chosen!r}")
    said = []
    for name in [chosen] if chosen else BINDINGS:
        try:
            return BINDINGS[name]()
        except ImportError as error:
            said.append(f"{name}: {error}")
    raise ImportError("; ".join(said))
