"""Ranks with a GPU each: arrays travel from GPU to GPU, and no byte of them goes through the host.

A script asks for it by ``parallel.init("nccl")``, or is told by whoever starts it::

    python -m pmpp.parallel.run -n 2 --backend nccl train.py
    PMPP_GROUP=peer torchrun --nproc-per-node 2 train.py
    mpirun -n 2 -x PMPP_GROUP=nccl python train.py

Two backends do it. "nccl" is NVIDIA's library, by CuPy's binding or by nccl4py (`pmpp.parallel.nccl`). "peer" is our
own kernels for `Group.all_reduce` (`pmpp.parallel.peers`), and NCCL for the rest.

**Who does what.** The ranks have met already, in one of the ways of `environment.STARTERS`. That group, the *host*
group, carries what is short and comes once: NCCL's identifiers, addresses, the wishes of `Group.split`. It also notices
when a rank fails, and ends the others, as it does without GPUs. Each rank uses one GPU: its number among the ranks of
its machine.

**When a call is done.** A call queues its work on the stream and returns. So does a call of NCCL and a launch of a
kernel. What the host reads by `copy_to_host` waits for that. `Group.barrier` waits for all streams of the GPU, and then
for the other ranks.

**What is checked.** A rank's own arguments always are: they cost no message. Whether the calls of different ranks fit
together costs one. So it is checked where launches are, too: with PMPP_CHECK=1 every call is announced to the host
group first, without its data, and what does not fit is named there by rank and line, as without GPUs. Otherwise NCCL
waits for ever for a call that does not come; ``--timeout`` of `pmpp.parallel.run` ends that.

**How results differ.** NCCL chooses the order of a sum by itself, so its bits may differ from those of other backends
from three ranks on. All ranks get the same bits. A maximum of NCCL may lose a NaN.

Source: NVIDIA, NCCL user guide, "Collective operations" and "Group calls".
"""

from __future__ import annotations

import contextlib
import os
import typing

import numpy as np

from pmpp.parallel import nccl, simulated
from pmpp.parallel.environment import place
from pmpp.parallel.group import Group, Transport
from pmpp.parallel.switchboard import WORLD, Reply, Request
from pmpp.runtime import device

__all__ = ["OverNccl", "group"]

# NCCL's numbers, of ncclDataType_t and ncclRedOp_t. Moving asks for no dtype, and a bool is a byte.
DTYPES = {"bool": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}


class OverNccl(Transport):
    """The transport of a rank whose arrays NCCL moves.

    Args:
        host: the group of all ranks that carries what is short.
        nccl: CuPy's module of that name, or what stands for it.

    Attributes: checked, whether every call is announced to the host group first.
    """

    backend = "nccl"
    direct = True

    def __init__(self, host: Group, nccl: typing.Any) -> None:
        self._host, self._nccl = host._transport, nccl
        self.checked = self.named = os.environ.get("PMPP_CHECK", "") not in ("", "0")
        self._communicators: dict[str, typing.Any] = {}  # by group
        self.join(host, WORLD)

    def join(self, host: Group, name: str) -> None:
        """Be a member of a new group. Called by all its members."""
        mine = np.zeros(1 + 128, np.int64)  # CuPy has had the identifier as bytes, and as a tuple of numbers before
        if host.rank == 0:
            made = self._nccl.get_unique_id()
            mine[0], mine[1:] = isinstance(made, bytes), list(made)
        as_bytes, *values = map(int, device.to_host(host.broadcast(mine)))
        # CuPy's binding lets no other thread run until all ranks are in this call. A thread of rank 0 may carry the
        # messages of all (`pmpp.parallel.rendezvous`): then it has told the others before rank 0 gets here.
        identifier = bytes(values) if as_bytes else tuple(values)
        self._communicators[name] = self._nccl.NcclCommunicator(host.size, identifier, host.rank)

    # ------------------------------------------------------------------------------------------------------- the host

    def exchange(self, request: Request) -> Reply:
        """What has no array: the wishes of split. The new group gets a communicator of its own."""
        reply = self._host.exchange(request)
        if request.kind == "split" and reply.members:
            place = reply.members.index(request.rank)
            self.join(Group(self._host, place, reply.members, reply.group), reply.group)
        return reply

    def announce(self, request: Request) -> None:
        """Let the host group see a call, with an array of no elements in the place of its own."""
        if request.kind == "recv" or request.dtype == "":
            payload = None
        else:
            rows = request.shape[:1] if request.kind in ("reduce_scatter", "all_to_all") else ()
            payload = np.empty((*rows, 0), request.dtype)
        self._host.exchange(request._replace(payload=payload))

    # -------------------------------------------------------------------------------------------------------- the GPU

    def carry(self, request: Request, sent: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        """Queue a call of NCCL."""
        if request.kind == "barrier":
            device.backend().cuda.synchronize()
            self._host.exchange(request)
            return None
        if request.dtype == "":
            raise TypeError(
                f"x or out must be an array on backend {self.backend!r}, were None: only the root knows its shape"
            )
        if self.checked:
            self.announce(request)
        return getattr(self, f"_{request.kind}")(request, sent, out, stream)

    def _queue(self, method: str, request: Request, *arguments: typing.Any, stream: typing.Any) -> None:
        communicator = self._communicators[request.group]
        getattr(communicator, method)(*arguments, device._stream_handle(stream))

    def _all_reduce(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        out = _result(out, x.shape, x.dtype, stream)
        if x.size:
            kinds = DTYPES[request.dtype], OPS[request.op]
            self._queue("allReduce", request, *_addresses(x, out), x.size, *kinds, stream=stream)
        return out

    def _reduce(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        mine = request.root == self._rank(request)
        if mine:
            out = _result(out, x.shape, x.dtype, stream)
        if x.size:
            into = device.address(out) if mine else 0
            kinds = DTYPES[request.dtype], OPS[request.op], request.root
            self._queue("reduce", request, device.address(x), into, x.size, *kinds, stream=stream)
        return out if mine else None

    def _broadcast(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        out = _result(out, request.shape, np.dtype(request.dtype), stream)
        if out.size:
            kinds = DTYPES[request.dtype], request.root
            self._queue("broadcast", request, *_addresses(out if x is None else x, out), out.size, *kinds,
                        stream=stream)  # fmt: skip
        return out

    def _all_gather(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        out = _result(out, (self._size(request), *x.shape), x.dtype, stream)
        if x.size:
            self._queue("allGather", request, *_addresses(x, out), x.size, DTYPES[request.dtype], stream=stream)
        return out

    def _reduce_scatter(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        out = _result(out, x.shape[1:], x.dtype, stream)
        if out.size:
            kinds = DTYPES[request.dtype], OPS[request.op]
            self._queue("reduceScatter", request, *_addresses(x, out), out.size, *kinds, stream=stream)
        return out

    def _all_to_all(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        """NCCL has none: sends and receives to and from all, in one group call, so that they run at once."""
        kept = x
        if out is not None and x.size and device.address(out) == device.address(x):  # rows arrive over those that leave
            kept = device.empty(x.shape, x.dtype, stream=stream)
            kept.copy_to_device(x, stream=stream)
        out = _result(out, x.shape, x.dtype, stream)
        row = x.size // self._size(request)
        if row:
            with self._together():
                for peer in range(self._size(request)):
                    source, target = (a + peer * row * x.dtype.itemsize for a in _addresses(kept, out))
                    self._queue("send", request, source, row, DTYPES[request.dtype], peer, stream=stream)
                    self._queue("recv", request, target, row, DTYPES[request.dtype], peer, stream=stream)
        return out

    def _send(self, request: Request, x: typing.Any, out: None, stream: typing.Any) -> None:
        if x.size:
            self._queue("send", request, device.address(x), x.size, DTYPES[request.dtype], request.peer, stream=stream)

    def _recv(self, request: Request, x: None, out: typing.Any, stream: typing.Any) -> None:
        if out.size:
            kind = DTYPES[str(out.dtype)]
            self._queue("recv", request, device.address(out), out.size, kind, request.peer, stream=stream)

    def _send_recv(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> None:
        with self._together():
            self._send(request, x, None, stream)
            self._recv(request._replace(peer=request.source), None, out, stream)

    @contextlib.contextmanager
    def _together(self) -> typing.Iterator[None]:
        """Calls of NCCL that run at once."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def _rank(self, request: Request) -> int:
        """This rank's number within a group."""
        return self._communicators[request.group].rank_id()

    def _size(self, request: Request) -> int:
        return self._communicators[request.group].size()


def _addresses(*arrays: typing.Any) -> list[int]:
    return [device.address(array) for array in arrays]


def _result(out: typing.Any, shape: tuple[int, ...], dtype: np.dtype, stream: typing.Any) -> typing.Any:
    return device.empty(shape, dtype, stream=stream) if out is None else out


# ------------------------------------------------------------------------------------------------------------- the rank

_joined: dict[str, Group] = {}  # by backend


def group(host: Group, backend: str) -> Group:
    """The group of all ranks with a GPU each. Called by all ranks.

    Raises RuntimeError where kernels do not run on a GPU, where ranks share a process or outnumber the machine's GPUs,
    or where no binding of NCCL is installed.
    """
    if simulated.here() is not None:
        raise RuntimeError(f"backend {backend!r} needs a process for each rank: parallel.ranks has one for all")
    if backend not in _joined:
        bound, number = library(backend), choose_gpu(host, backend)
        if (cupy := device._cupy()) is not None:
            cupy.cuda.Device(number).use()  # CuPy's pool, where arrays come from, has its own idea
        if backend == "peer":
            from pmpp.parallel.peers import OverPeers

            transport = OverPeers(host, bound)
        else:
            transport = OverNccl(host, bound)
        _joined[backend] = Group(transport, host.rank, host.members)
    return _joined[backend]


def library(backend: str) -> typing.Any:
    """A binding of NCCL."""
    if not device.on_gpu():
        why = device.backend().why
        raise RuntimeError(
            f"backend {backend!r} needs a GPU for each rank; kernels run in the interpreter, because {why}"
        )
    try:
        return nccl.binding()
    except ImportError as error:
        raise RuntimeError(
            f"backend {backend!r} needs NCCL, and no binding of it could be imported ({error}). "
            "https://docs.cupy.dev, section Installation, names the package that brings libnccl.so.2 for CuPy"
        ) from error


def choose_gpu(host: Group, backend: str) -> int:
    """Make the GPU of this rank the current one, and return its number."""
    cuda, found = device.backend().cuda, place()
    local = host.rank if found is None or found.local_rank is None else found.local_rank
    if local >= len(cuda.gpus):
        raise RuntimeError(
            f"backend {backend!r} needs a GPU for each rank, and this machine shows {len(cuda.gpus)}: rank {host.rank} "
            f"would use GPU {local}"
        )
    cuda.select_device(local)
    return local
