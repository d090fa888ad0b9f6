"""Ranks over MPI, by mpi4py: arrays go through host memory.

MPI joins ranks of any number of machines, and `pmpp.parallel.processes` those of one. MPI's own collectives move what
is only moved. Sums are another matter: MPI may add in any order, knows no float16, and leaves open what becomes of a
NaN in a maximum. So reductions are the rings and trees of `pmpp.parallel.algorithms`, in messages of MPI. They have the
same bits.

**What is checked.** Nobody here sees the calls of all ranks, as the `Switchboard` does. But before its data a
collective exchanges a *header* of 1.2 kB: who calls what, where, with which operation, root, dtype and shape. If
they differ, every rank raises the same error. The two ranks of a send do likewise, which finds two that both send, or
both receive. The price is one small all-gather for each collective, and one message each way for a send.

What then remains is a hang, which ``--timeout`` of `pmpp.parallel.run` ends: a collective that meets a send, different
groups, a circle of three sends, a send to a rank that has ended.

A rank that raises ends all by ``MPI_Abort``, and one that returns says so when others call a collective of all ranks.

Source: MPI: A Message-Passing Interface Standard, version 4.1, sections 3.10 (send and receive at once), 6.9
(reductions) and 9.8 (abort).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import sys
import time
import typing

import numpy as np

from pmpp.parallel import processes
from pmpp.parallel.algorithms import combine, finish
from pmpp.parallel.environment import Place, place
from pmpp.parallel.group import Group, Transport
from pmpp.parallel.owners import check_written
from pmpp.parallel.switchboard import (
    POINT,
    WORLD,
    CommunicationError,
    RankEnded,
    Reply,
    Request,
    Switchboard,
    _alike,
    _at,
    _verb,
    _who,
    disagreement,
)

__all__ = ["OverMPI", "group", "main"]

AGREED, OWN = 768, 448  # bytes of a header: what all ranks have to agree on, and what each has for itself
WHERE, NAME = 60, 64  # characters of a place, and of a group's name, that a header has room for
LARGEST = 2**31 - 1  # elements in a message: MPI counts in a C int
UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # MPI has no float16; moving asks for no dtype
LATER = 1.0  # seconds that a rank leaves to the one that prints an error


def words(array: np.ndarray) -> np.ndarray:
    """The elements as unsigned integers: what MPI moves."""
    return array.reshape(-1).view(UNITS[array.dtype.itemsize])


def header(request: Request) -> np.ndarray:
    """A request without its array, as bytes of one length.

    >>> call = Request("reduce", 1, WORLD, "train.py:5", number=3, op="sum", root=0, dtype="int64", shape=(2, 3))
    >>> header(call).size, request_of(header(call), WORLD) == call
    (1216, True)
    """
    agreed = [request.kind, request.op, request.root, request.dtype, request.shape]
    wish = None if request.kind != "split" else [int(value) for value in request.payload]
    name = request.group if request.kind in POINT else ""  # else the communicator says it
    if len(name) > NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    received = [request.source, request.out_dtype, request.out_shape]
    own = [request.rank, name, request.where[-WHERE:], request.number, request.peer, request.tag, wish, received]
    made = [json.dumps(part, ensure_ascii=False).encode() for part in (agreed, own)]
    return np.frombuffer(made[0].ljust(AGREED) + made[1].ljust(OWN), np.uint8)


def request_of(row: np.ndarray, name: str) -> Request:
    """What `header` was given, in the group of this name."""
    kind, op, root, dtype, shape = json.loads(row[:AGREED].tobytes())
    rank, group, where, number, peer, tag, wish, (source, out_dtype, out_shape) = json.loads(row[AGREED:].tobytes())
    return Request(
        kind, rank, group or name, where, number, op, root, peer, tag, dtype,
        None if shape is None else tuple(shape),
        None if wish is None else np.array(wish, np.int64),
        source, out_dtype, None if out_shape is None else tuple(out_shape),
    )  # fmt: skip


class OverMPI(Transport):
    """The transport of a rank that MPI has started.

    Args:
        world: the communicator of all ranks. Its copy is used, so that messages of others on it do not interfere.
    """

    backend = "mpi"

    def __init__(self, world: typing.Any) -> None:
        self.rank, self.size = world.rank, world.size
        self._world = world.Dup()
        self._communicators = {WORLD: (self._world, tuple(range(self.size)))}
        self._last = "before it communicated"
        self.failed = False

    def group(self) -> Group:
        """The group of all ranks."""
        return Group(self, self.rank, tuple(range(self.size)))

    def look_at(self, request: Request, reads: typing.Any, writes: typing.Any) -> None:
        """Refuse arrays that nobody has written to."""
        check_written(request, reads)

    def exchange(self, request: Request) -> Reply:
        """Agree with the other ranks, then move the data."""
        try:
            reply = self._pair(request) if request.kind in POINT else self._collective(request)
        except CommunicationError:
            self.failed = True
            raise
        self._last = f"after {request.kind} at {request.where}"
        return reply

    # ----------------------------------------------------------------------------------------------------- agreement

    def _agree(self, request: Request) -> list[Request]:
        """The calls of all members, which fit together; their arrays stay where they are.

        Where all agree to the byte, nobody is interested in the others' lines: then it is only the own call.
        """
        communicator, members = self._communicators[request.group]
        mine = header(request)
        rows = np.empty((len(members), mine.size), np.uint8)
        communicator.Allgather(mine, rows)
        agreed = (rows[:, :AGREED] == mine[:AGREED]).all()
        if agreed and request.kind != "split":
            return [request]
        calls = [request_of(row, request.group) for row in rows]
        if not agreed:
            if gone := [call for call in calls if call.kind == "end"]:
                raise self._abandoned(gone, [call for call in calls if call.kind != "end"])
            if error := disagreement(calls):
                raise error
        return calls

    @staticmethod
    def _abandoned(gone: list[Request], left: list[Request]) -> CommunicationError:
        """Ranks have ended, and the others call a collective."""
        ended = " and ".join(f"rank {call.rank} has ended ({call.where})" for call in gone)
        waits = " and ".join(f"{_who(calls)} {_verb(calls, 'wait')} in {_at(calls)}" for calls in _alike(left))
        return RankEnded(f"{ended}, and {waits}", tuple([call.rank for call in gone + left]))

    def end(self) -> None:
        """Say to all ranks that this one has returned. Waits until they have all ended, or call a collective."""
        if not self.failed:
            ended = Request("end", self.rank, WORLD, self._last)
            self._world.Allgather(header(ended), np.empty((self.size, header(ended).size), np.uint8))

    # --------------------------------------------------------------------------------------------------- collectives

    def _collective(self, request: Request) -> Reply:
        calls = self._agree(request)
        communicator, members = self._communicators[request.group]
        if request.kind == "barrier":
            return Reply()
        if request.kind == "split":
            return self._split(request, calls)
        described = next((call for call in calls if call.shape is not None), None)
        x = request.payload
        if x is None:  # of a broadcast, where it is to arrive
            x = np.empty(described.shape, described.dtype)
        x = np.ascontiguousarray(x).reshape(x.shape)
        if x.size * (len(members) if request.kind == "all_gather" else 1) > LARGEST:
            raise ValueError(f"x must have at most {LARGEST:,} elements in all for MPI, had shape {x.shape}")
        return Reply(getattr(self, f"_{request.kind}")(communicator, x, request.op, request.root))

    @staticmethod
    def _broadcast(communicator: typing.Any, x: np.ndarray, op: None, root: int) -> np.ndarray:
        result = x.copy()  # what was received cannot be written to
        communicator.Bcast(words(result), root)
        return result

    @staticmethod
    def _all_gather(communicator: typing.Any, x: np.ndarray, op: None, root: None) -> np.ndarray:
        result = np.empty((communicator.size, *x.shape), x.dtype)
        communicator.Allgather(words(x), words(result))
        return result

    @staticmethod
    def _all_to_all(communicator: typing.Any, x: np.ndarray, op: None, root: None) -> np.ndarray:
        result = np.empty_like(x)
        communicator.Alltoall(words(x), words(result))
        return result

    @staticmethod
    def _sum_pieces(communicator: typing.Any, pieces: list[np.ndarray], op: str) -> None:
        """Afterwards rank k has piece k of all ranks, combined: see `algorithms.around`."""
        rank, size = communicator.rank, communicator.size
        for step in range(size - 1):
            sent, received = (rank - 1 - step) % size, (rank - 2 - step) % size
            arrived = np.empty_like(pieces[received])
            communicator.Sendrecv(
                words(pieces[sent]), (rank + 1) % size, recvbuf=words(arrived), source=(rank - 1) % size
            )
            pieces[received] = np.asarray(combine(op, arrived, pieces[received]))

    def _all_reduce(self, communicator: typing.Any, x: np.ndarray, op: str, root: None) -> np.ndarray:
        rank, size = communicator.rank, communicator.size
        pieces = np.array_split(x.reshape(-1), size)
        lengths = [piece.size for piece in pieces]
        self._sum_pieces(communicator, pieces, op)
        result = np.empty_like(x)
        communicator.Allgatherv(words(finish(op, pieces[rank], size)), [words(result), lengths])
        return result

    def _reduce_scatter(self, communicator: typing.Any, x: np.ndarray, op: str, root: None) -> np.ndarray:
        pieces = [np.asarray(row) for row in x]
        self._sum_pieces(communicator, pieces, op)
        return np.asarray(finish(op, pieces[communicator.rank], communicator.size))

    @staticmethod
    def _reduce(communicator: typing.Any, x: np.ndarray, op: str, root: int) -> np.ndarray | None:
        """Those that are ``distance`` and more behind the root send what they have to those before: a tree."""
        rank, size = communicator.rank, communicator.size
        behind, held = (rank - root) % size, x
        distance = (1 << (size - 1).bit_length()) // 2  # the largest power of 2 below size; 0 for one rank
        while distance:
            if behind >= distance:
                communicator.Send(words(held), (rank - distance) % size)
                return None
            if behind + distance < min(2 * distance, size):
                arrived = np.empty_like(x)
                communicator.Recv(words(arrived), (rank + distance) % size)
                held = np.asarray(combine(op, held, arrived))
            distance //= 2
        return np.asarray(finish(op, held, size))

    def _split(self, request: Request, calls: list[Request]) -> Reply:
        """Every rank knows all wishes, and a switchboard of its own makes the same groups of them."""
        communicator, members = self._communicators[request.group]
        board = Switchboard(0)
        board.groups[request.group] = members
        for call in calls:
            replies = dict(board.arrive(call))
        reply = replies[request.rank]
        groups = sorted({made.group for made in replies.values() if made.members})
        from mpi4py import MPI

        colour = groups.index(reply.group) if reply.members else MPI.UNDEFINED
        key = reply.members.index(request.rank) if reply.members else 0
        made = communicator.Split(colour, key)
        if reply.members:
            self._communicators[reply.group] = made, reply.members
        return reply

    # ------------------------------------------------------------------------------------------------- point to point

    def _pair(self, request: Request) -> Reply:
        """The ranks tell each other what they call. If a send meets its receive, the data follow."""
        members = self._communicators[request.group][1]
        source = None if request.source is None else members[request.source]
        call = request._replace(peer=members[request.peer], source=source, payload=None)
        mine = header(call)
        partners = sorted({call.peer, call.peer if source is None else source})
        theirs = {partner: np.empty_like(mine) for partner in partners}
        waits = [self._world.Irecv(box, partner) for partner, box in theirs.items()]
        waits += [self._world.Isend(mine, partner) for partner in partners]
        for wait in waits:
            wait.Wait()
        others = [request_of(row, WORLD) for row in theirs.values()]
        if error := self._verdict(request_of(mine, WORLD), *others):
            raise error
        if request.payload is not None and np.asarray(request.payload).size > LARGEST:
            raise ValueError(f"x must have at most {LARGEST:,} elements for MPI, had shape {request.shape}")
        halves, box, waits = call.halves(), None, []
        if received := halves.get("recv"):
            box = np.empty(received.shape, received.dtype)
            waits.append(self._world.Irecv(words(box), received.peer))
        if "send" in halves:
            self._world.Send(words(np.ascontiguousarray(request.payload)), halves["send"].peer)
        for wait in waits:
            wait.Wait()
        return Reply(box)

    def _verdict(self, *calls: Request) -> CommunicationError | None:
        """What a switchboard says to two calls whose peers are numbers among all ranks."""
        board = Switchboard(self.size)
        for call in sorted(calls, key=lambda call: call.rank):
            board.groups[call.group] = board.groups[WORLD]
            if call.rank not in board.waiting and board.error is None:
                board.arrive(call)
        return board.error


# ------------------------------------------------------------------------------------------------------------- the rank

_joined: OverMPI | None = None


def group(found: Place) -> Group:
    """The group of all ranks that ``mpirun`` or ``srun`` has started.

    Raises RuntimeError where MPI sees others than the starter has started, and ImportError where mpi4py is missing.
    """
    global _joined  # noqa: PLW0603 - a process is one rank
    if _joined is None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ImportError(
                f"{found.starter.name} has started this rank, and mpi4py could not be imported ({error}): "
                'pip install "pmpp-workbook[mpi]"'
            ) from error
        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (found.rank, found.size):
            raise RuntimeError(
                f"{found.starter.name} says that this is rank {found.rank} of {found.size}, and MPI that it is rank "
                f"{world.rank} of {world.size}: mpi4py uses {MPI.Get_library_version().splitlines()[0].strip()}, which "
                "has to be the one that started it"
            )
        _joined = OverMPI(world)
        atexit.register(_joined.end)
        sys.excepthook = lambda kind, error, trace: fail(error)
    return _joined.group()


def fail(error: BaseException) -> typing.NoReturn:
    """Print an exception, and end all ranks.

    Often several raise the same one. Then the first rank that it names is to print it, or rank 0; the others wait. If
    the first one has ended, it is the last.
    """
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    named = error.ranks if isinstance(error, CommunicationError) and error.ranks else (0,)
    if rank != named[-1 if isinstance(error, RankEnded) else 0]:
        time.sleep(LATER)
    how, _ = processes.ending(error)
    sys.stdout.flush()
    print(f"rank {rank} {how}\n{processes.told(error)}", end="", file=sys.stderr, flush=True)
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    MPI.COMM_WORLD.Abort(code)


def main() -> None:
    """A rank of ``mpirun``: join the others, and run the script. `pmpp.parallel.run` starts processes with it."""
    found = place()
    if found is None or found.starter.backend != "mpi":
        raise RuntimeError("mpirun has left no variables that say which rank this is")
    # mpirun marks each piece that it reads with the rank. So a line has to be one piece, its end included.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)
    group(found)
    try:
        processes.execute(sys.argv[1:])
    except SystemExit as error:
        if processes.ending(error)[1]:
            fail(error)
        raise
    except BaseException as error:
        fail(error)
