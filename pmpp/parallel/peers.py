"""Ranks on the GPUs of one machine, whose kernels read each other's memory: a faster all-reduce.

Each rank is a process, and an address means nothing in another one. The driver lends memory between processes by a
*handle*: 64 bytes that say which allocation is meant. So each rank makes one allocation, tells its handle to the
others, and maps theirs. What lies in it:

    packets    two halves, with a word for each element of each rank     `kernels.common.peers.packets_kernel`
    areas      two for each block                                        `kernels.common.peers.sent_kernel`
    flags      a number for each block of each rank                      all kernels, and each lane

`Group.all_reduce` of float32 and int32 takes the first kernel up to `ROOM` elements, which p - 1 ranks divide. Longer
arrays take the second one between two ranks, or `staged_kernel` for lengths that are no multiple of 4. Between more
ranks each would send p - 1 whole arrays, where NCCL's rings carry less than two: then they are NCCL's. An array of
`Group.shared` that is summed in place needs no areas. All ranks know where it lies, and each adds its part of all of
them (`kernels.common.peers.two_shot_kernel`).

**Copies.** A kernel that carries numbers takes room on the SMs while it waits for the links. The GPU's copy engines
take none. So the longest arrays between two ranks, and those that are summed beside other work, go by copies: a piece
of `PIECE` elements is copied into the other rank's slot, the ranks meet by a kernel of one block, and a third launch
adds. *Lanes*, each with a stream, two slots and flags of its own, take turns with the pieces, so that the links are
busy while others meet and add. Beside other work there is one lane. The slots have an allocation of their own, of 256
MiB, which is made when a group copies for the first time.

Other dtypes and other collectives are NCCL's. Who carries an array depends on nothing but its dtype and size, and on
whether it is shared, so all ranks agree.

**One after another.** The kernels' blocks count what they have done together. So the all-reduces of a group run one
after another: on one stream, or on several that the caller lets wait for one another, as `data.DataParallel` does.

**When a rank does not come.** Its kernel ends after `PATIENCE` looks, some 20 seconds, and says which rank it has
missed. The next call of the group, or `Group.barrier`, raises `LostRank`. What the kernel has computed is of no use.

Source: NVIDIA, CUDA driver API, "Interprocess communication" (cuIpcGetMemHandle, cuIpcOpenMemHandle).
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import typing

import numpy as np

from pmpp.kernels import elementwise
from pmpp.kernels.common import peers
from pmpp.parallel.group import Group
from pmpp.parallel.on_gpus import OverNccl
from pmpp.parallel.streams import ask, sending_stream, wait_for
from pmpp.parallel.switchboard import CommunicationError, Request
from pmpp.runtime import device

__all__ = ["LostRank", "OverPeers", "Plan", "layout"]

# The numbers are measured on two H100 and two H200: see `pmpp.parallel.measure`.
ROOM = 1 << 18  # elements that go as packets between two ranks at most
AREA = 4096  # elements of a piece that a block takes at a time
GRID = 264  # blocks of the staged kernel at most; all of them are on the GPU at once
WIDE_GRID, SHARING_GRID = 792, 132  # blocks of the kernel for shared arrays at most: for very long ones, and for others
BESIDE_GRID = 32  # and where other work goes on meanwhile: as many as it takes to have enough loads under way
PIECE = 16 << 20  # elements that are copied at a time: shorter pieces meet too often
LANES = 2  # that take turns with pieces
COPIED = 1 << 27  # elements from which on an array goes by copies between two ranks
ADDING_GRID = 1056  # blocks that add a piece
PATIENCE = 40_000_000  # looks at a signal, of about half a microsecond each
DTYPES = ("float32", "int32")
RANKS = 16  # that a machine has at most: beyond that packets are too many


class LostRank(CommunicationError):
    """A rank has not come to an all-reduce of the others."""


class Plan(typing.NamedTuple):
    """Where the parts of a rank's allocation begin, and its length, in bytes."""

    packets: int
    areas: int
    flags: int
    nbytes: int


def room(size: int) -> int:
    """Elements that go as packets at most: each rank stores them in the boxes of all others.

    >>> room(2), room(8)
    (262144, 37449)
    """
    return ROOM // max(1, size - 1)


def layout(size: int) -> Plan:
    """The parts of an allocation in a group of ``size`` ranks.

    >>> layout(2)
    Plan(packets=0, areas=8388608, flags=17039360, nbytes=17088512)
    """
    areas = 2 * size * room(size) * 8
    flags = areas + 2 * AREA * GRID * 4
    return Plan(0, areas, flags, flags + (1 + LANES) * size * peers.PLACES * 8)


# ----------------------------------------------------------------------------------------------------------- the driver


class Handle(ctypes.Structure):
    """The driver's CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def allocate(nbytes: int) -> int:
    """Device memory full of zeros, of which there can be a handle: one of a pool may have none."""
    address = ctypes.c_uint64()
    ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
    ask("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
    ask("cuCtxSynchronize")
    return address.value


def handle_of(address: int) -> np.ndarray:
    """What another process needs to map an allocation, as 8 int64."""
    handle = Handle()
    ask("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
    return np.frombuffer(bytes(handle.bytes), np.int64).copy()


def mapped(handle: np.ndarray) -> int:
    """The address here of another process's allocation."""
    address, told = ctypes.c_uint64(), Handle.from_buffer_copy(handle.tobytes())
    lazily = ctypes.c_uint(1)  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag
    ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), told, lazily)
    return address.value


def word_of_host() -> int:
    """The address of 8 bytes of the host's memory that kernels can write to, full of zeros."""
    address = ctypes.c_void_p()
    portable_and_mapped = 3
    ask("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(8), ctypes.c_uint(portable_and_mapped))
    ctypes.memset(address, 0, 8)
    return address.value


# ------------------------------------------------------------------------------------------------------------ the ranks


class Boxes:
    """What a rank needs to launch the kernels in one group.

    Attributes: rank, size; packets, areas, flags: by rank the addresses here; packet_rounds, rounds: how often this
    rank's blocks have met others; lost, an array in the host's memory, and `missing`, what it says; slots and lanes,
    when they are needed.
    """

    def __init__(self, host: Group) -> None:
        from pmpp.runtime.array import Array, contiguous

        self._host = host
        self.rank, self.size, plan = host.rank, host.size, layout(host.size)
        self.room = room(self.size)
        bases = self._allocated(plan.nbytes)
        # By address: bytes, the addresses of all ranks' arrays, and whether other work goes on beside sums of it.
        self._shared: dict[int, tuple[int, tuple[int, ...], bool]] = {}
        self._bases: list[int] = []  # the same addresses, sorted
        self.packets, self.areas, self.flags = (
            tuple([base + first for base in bases]) for first in (plan.packets, plan.areas, plan.flags)
        )
        self.packet_rounds, self.rounds = (device.to_device(np.zeros(peers.PLACES, np.int64)) for _ in range(2))
        self.slots: tuple[int, ...] = ()
        self.lanes: list[Lane] = []
        self._word = word_of_host()
        self.lost = Array.at(self._word, contiguous((1,), np.dtype(np.int32), device.current()), None)
        host.barrier()  # nobody writes to a box that is not there yet

    def _allocated(self, nbytes: int) -> tuple[int, ...]:
        """New memory on all ranks: by rank its address here. Raises ValueError if they want different lengths."""
        mine = allocate(nbytes)
        told = device.to_host(self._host.all_gather(np.r_[np.int64(nbytes), handle_of(mine)]))
        if (told[:, 0] != nbytes).any():
            raise ValueError(f"shape and dtype must be the same on all ranks, had {told[:, 0].tolist()} bytes")
        return tuple([mine if rank == self.rank else mapped(told[rank, 1:]) for rank in range(self.size)])

    def shared(self, shape: tuple[int, ...], dtype: np.dtype, beside_work: bool = False) -> typing.Any:
        """A new array whose addresses all ranks know. Nothing frees it: another rank may still read it."""
        from pmpp.runtime.array import Array, contiguous

        form = contiguous(shape, dtype, device.current())
        bases = self._allocated(max(16, form.nbytes))
        self._shared[bases[self.rank]] = form.nbytes, bases, beside_work
        bisect.insort(self._bases, bases[self.rank])
        return Array.at(bases[self.rank], form, None)

    def takes(self, x: typing.Any, out: typing.Any) -> bool:
        """Whether it is our kernels that carry the array. All ranks say the same."""
        return x.size <= self.room or self.size == 2 or self._in_place(x, out) is not None

    def _in_place(self, x: typing.Any, out: typing.Any) -> tuple[int, ...] | None:
        """The addresses of all ranks' arrays, if this is a whole shared array and its own result."""
        nbytes, bases, _ = self._shared.get(device.address(x), (0, None, False))
        return bases if nbytes == x.nbytes and out is not None and device.address(out) == bases[self.rank] else None

    def _beside_work(self, out: typing.Any) -> bool:
        """Whether a result lies in a shared array whose sums go on beside other work."""
        place = bisect.bisect_right(self._bases, device.address(out)) - 1
        if place < 0:
            return False
        base = self._bases[place]
        nbytes, _, beside_work = self._shared[base]
        return beside_work and device.address(out) < base + nbytes

    @property
    def missing(self) -> int:
        """1 plus the number of the rank that has not come; 0 if all have."""
        return ctypes.c_int32.from_address(self._word).value

    def all_reduce(self, x: typing.Any, out: typing.Any, op: str, stream: typing.Any) -> None:
        """Launch what carries this array. The choice depends on what is the same on all ranks."""
        n, code = x.size, peers.OPS[op]
        if x.ndim != 1:
            x, out = x.reshape(-1), out.reshape(-1)
        if n <= self.room:
            peers.packets_kernel[_packet_grid(n), peers.BLOCK, stream](
                x, out, code, self.packets, self.room, self.packet_rounds, self.rank, n, n, PATIENCE, self.lost
            )
            return
        lanes = self._lanes_for(n, out)
        if not lanes and (bases := self._in_place(x, out)) is not None:
            beside_work = self._shared[bases[self.rank]][2]
            peers.two_shot_kernel[_wide_grid(n // self.size, beside_work), peers.BLOCK, stream](
                x, code, bases, bases, self.flags, self.rounds, self.rank, n, PATIENCE, self.lost
            )
        elif n % peers.VECTOR:
            wide = int((device.address(x) | device.address(out)) % 16 == 0)
            peers.staged_kernel[_staged_grid(n), peers.BLOCK, stream](
                x, out, code, self.areas, AREA, self.flags, self.rounds, self.rank, n, n, wide, PATIENCE, self.lost
            )
        elif (device.address(x) | device.address(out)) % 16:
            # Where an array begins is a rank's own affair, and the others do not know of it. So this rank copies.
            aligned = device.empty(n, x.dtype, stream=stream)
            elementwise.assign(aligned, x, stream=stream)
            self._long(aligned, aligned, code, stream, lanes)
            elementwise.assign(out, aligned, stream=stream)
        else:
            self._long(x, out, code, stream, lanes)

    def _lanes_for(self, n: int, out: typing.Any) -> int:
        """How many lanes copy n elements; 0 for those that kernels carry. All ranks say the same."""
        if self.size != 2 or n % peers.VECTOR:
            return 0
        return 1 if self._beside_work(out) else LANES if n >= COPIED else 0

    def _long(self, x: typing.Any, out: typing.Any, code: int, stream: typing.Any, lanes: int) -> None:
        """Carry an array whose vectors are whole and begin at multiples of 16 bytes."""
        if lanes:
            self._copied(x, out, code, stream, lanes)
        else:
            peers.sent_kernel[_staged_grid(x.size), peers.BLOCK, stream](
                x, out, code, self.areas, AREA, self.flags, self.rounds, self.rank, x.size, x.size, PATIENCE, self.lost
            )

    def _copied(self, x: typing.Any, out: typing.Any, code: int, stream: typing.Any, count: int) -> None:
        """Carry an array by copies in so many lanes. They begin behind what is queued, and end before what follows.

        Slots take turns, and a lane begins with the first: before that the ranks meet, since the call before may have
        ended with it.
        """
        if not self.lanes:  # on both ranks, which are in the same call
            self.slots = self._allocated(LANES * 2 * PIECE * x.dtype.itemsize)
            self.lanes = [Lane(self, number) for number in range(LANES)]
        lanes = self.lanes[:count]
        streams = [stream, *[lane.stream for lane in lanes[1:]]]
        for lane, its in zip(lanes, streams, strict=True):
            wait_for(stream, its)
            lane.meet(its)
        for piece, begin in enumerate(range(0, x.size, PIECE)):
            turn, number = divmod(piece, count)
            mine, into = x[begin : begin + PIECE], out[begin : begin + PIECE]
            lanes[number].carry(mine, into, code, turn & 1, streams[number])
        for its in streams[1:]:
            wait_for(its, stream)


class Lane:
    """A stream's copies of one rank to the other of two.

    Args:
        boxes: of the group.
        number: of the lane, from 0. The first one uses the caller's stream.
    """

    def __init__(self, boxes: Boxes, number: int) -> None:
        self._boxes, self._first = boxes, 2 * number * PIECE
        self.stream = sending_stream() if number else None
        self._flags = tuple([base + (1 + number) * boxes.size * peers.PLACES * 8 for base in boxes.flags])
        self._rounds = device.to_device(np.zeros(peers.PLACES, np.int64))

    def meet(self, stream: typing.Any) -> None:
        """Let the stream go on when the other rank's has come here."""
        boxes = self._boxes
        peers.meet_kernel[1, 32, stream](self._flags, self._rounds, boxes.rank, PATIENCE, boxes.lost)

    def carry(self, x: typing.Any, out: typing.Any, code: int, slot: int, stream: typing.Any) -> None:
        """A piece: copy it to the other rank, meet it, and add what it has copied here."""
        boxes, begin = self._boxes, self._first + slot * PIECE
        target = boxes.slots[1 - boxes.rank] + begin * x.dtype.itemsize
        copy(target, device.address(x), x.nbytes, stream)
        self.meet(stream)
        grid = min(ADDING_GRID, -(-x.size // (peers.VECTOR * peers.BLOCK)))
        peers.arrived_kernel[grid, peers.BLOCK, stream](
            x, out, code, boxes.slots, PIECE, begin, boxes.rank, x.size, x.size
        )


def copy(target: int, source: int, nbytes: int, stream: typing.Any) -> None:
    """Queue a copy between two addresses, which may be those of two GPUs."""
    handle = ctypes.c_void_p(device._stream_handle(stream))
    ask("cuMemcpyAsync", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), handle)


@functools.cache
def _packet_grid(n: int) -> tuple[int, int]:
    return -(-n // peers.BLOCK), 1


@functools.cache
def _staged_grid(n: int) -> tuple[int, int]:
    return min(GRID, -(-n // AREA)), 1


@functools.cache
def _wide_grid(n: int, beside_work: bool = False) -> tuple[int, int]:
    """The grid for a rank's part of n elements.

    Few blocks are nearly as fast as many, and leave the SMs room for kernels that compute meanwhile. Only where each
    thread would go many times around are there more.
    """
    rounds = -(-n // (peers.VECTOR * peers.UNROLL * peers.BLOCK))
    most = BESIDE_GRID if beside_work else WIDE_GRID if rounds > 16 * WIDE_GRID else SHARING_GRID
    return min(most, rounds), 1


class OverPeers(OverNccl):
    """The transport of a rank whose kernels read the memory of other GPUs of the machine."""

    backend = "peer"

    def __init__(self, host: Group, nccl: typing.Any) -> None:
        self._boxes: dict[str, Boxes] = {}  # by group
        super().__init__(host, nccl)

    def join(self, host: Group, name: str) -> None:
        """Be a member of a new group. Called by all its members."""
        super().join(host, name)
        if host.size > RANKS:
            raise RuntimeError(f"backend 'peer' joins at most {RANKS} ranks, were {host.size}: take 'nccl'")
        try:
            self._boxes[name] = Boxes(host)
        except RuntimeError as error:
            raise RuntimeError(
                f"backend 'peer' needs GPUs of one machine that reach each other's memory, and the driver refuses it "
                f"({error}): take 'nccl'"
            ) from error

    def carry(self, request: Request, sent: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        """Launch a kernel of ours, or queue a call of NCCL."""
        self._look_for_lost(request)
        found = super().carry(request, sent, out, stream)
        if request.kind == "barrier":
            self._look_for_lost(request)
        return found

    def _all_reduce(self, request: Request, x: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        boxes = self._boxes[request.group]
        if request.dtype not in DTYPES or not x.size or not boxes.takes(x, out):
            return super()._all_reduce(request, x, out, stream)
        if out is None:
            out = device.empty(x.shape, x.dtype, stream=stream)
        boxes.all_reduce(x, out, request.op, stream)
        return out

    def shared(self, name: str, shape: tuple[int, ...], dtype: np.dtype, beside_work: bool = False) -> typing.Any:
        """An array whose addresses all ranks know."""
        return self._boxes[name].shared(shape, dtype, beside_work)

    def _look_for_lost(self, request: Request) -> None:
        boxes = self._boxes[request.group]
        if boxes.missing:
            rank = boxes.missing - 1
            raise LostRank(
                f"rank {rank} of the group has not come to an all_reduce for so long that rank {boxes.rank} has given "
                "up: it has ended, or calls something else, or is late by many seconds",
                (rank,),
            )
