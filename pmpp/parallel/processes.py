"""Ranks as processes: one process holds the `Switchboard`, and the others tell it what they call.

`pmpp.parallel.run` starts a process for each rank, and has the `Exchange` in its own. A rank is connected to it by a
local socket (on Windows a pipe) from `multiprocessing.connection`, and both ends prove that they know the run's key. A
message is a header in JSON and the bytes of at most one array. Nothing is pickled, so what arrives can only be data.

All that is checked, and the order of every sum, is the same as for ranks in one process: the same `Switchboard` and the
same `algorithms` do it. What differs is that ranks have no memory in common, and run at the same time.

Each array goes to the exchange and its result comes back, by copies in memory: that is right for learning and for
tests, and no way to be fast.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import runpy
import secrets
import shutil
import sys
import tempfile
import threading
import traceback
import types
import typing
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

from pmpp.parallel import switchboard
from pmpp.parallel.group import Group, Transport, place_of, shown
from pmpp.parallel.owners import check_written
from pmpp.parallel.switchboard import Answers, CommunicationError, Reply, Request, Switchboard
from pmpp.parallel.traffic import Report, Traffic

__all__ = ["Connected", "Exchange", "execute", "here", "join", "main"]

ERRORS = {
    name: kind
    for name, kind in vars(switchboard).items()
    if isinstance(kind, type) and issubclass(kind, CommunicationError)
}
FRAMES = 12  # of a traceback that are told
PIECE = 1 << 17  # bytes of an array that are sent at a time, fewer than the buffer of a socket holds
RANK, SIZE, ADDRESS, KEY = "PMPP_RANK", "PMPP_SIZE", "PMPP_ADDRESS", "PMPP_KEY"

# ------------------------------------------------------------------------------------------------------------- messages


def send(connection: Connection, header: dict, array: typing.Any = None) -> None:
    """Send a header in JSON, and then the bytes of an array in pieces.

    Python reads a long message by taking memory for all of it again and again, once for each part that has come.
    """
    if array is None:
        connection.send_bytes(json.dumps([header, None]).encode())
        return
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    connection.send_bytes(json.dumps([header, [str(array.dtype), array.shape]]).encode())
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, data.size, PIECE):
        connection.send_bytes(data[begin : begin + PIECE])


def receive(connection: Connection) -> tuple[dict, np.ndarray | None]:
    """What `send` was given."""
    header, form = json.loads(connection.recv_bytes())
    if form is None:
        return header, None
    array = np.empty(form[1], form[0])
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, data.size, PIECE):
        connection.recv_bytes_into(data[begin : begin + PIECE])
    return header, array


def request_of(header: dict, array: np.ndarray | None) -> Request:
    """The request that a rank has sent. JSON has no tuples."""
    shapes = {name: None if header[name] is None else tuple(header[name]) for name in ("shape", "out_shape")}
    return Request(**header | shapes | {"payload": array})


def described(answer: Reply | CommunicationError) -> tuple[dict, np.ndarray | None]:
    """A reply or an error as a header and an array."""
    if isinstance(answer, CommunicationError):
        return {"error": type(answer).__name__, "text": str(answer), "ranks": answer.ranks}, None
    return {"group": answer.group, "members": answer.members}, answer.payload


def answer_of(header: dict, array: np.ndarray | None) -> Reply | CommunicationError:
    """What `described` was given."""
    if "error" in header:
        return ERRORS[header["error"]](header["text"], tuple(header["ranks"]))
    return Reply(array, header["group"], tuple(header["members"]))


# ------------------------------------------------------------------------------------------------------------- exchange


def folder_of_socket() -> str:
    """A new folder, into which nobody else may look. The name of a socket in it has at most 103 bytes, for macOS."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="pmpp-", dir=usual if len(os.fsencode(usual)) < 80 else "/tmp")


class Exchange:
    """Where the requests of all ranks arrive.

    A thread waits for ranks that connect, and one for each of them reads what it sends. They take turns at the
    switchboard.

    Args:
        size: how many ranks there are.
        failed: called with a rank that has said that it fails, from another thread.
        door: what ranks come through, with `accept`, `close` and `address`; None for a local socket.
        left: called with a rank that has said that it returns, or has gone without a word.

    Attributes: environment, what a rank needs besides its number to find a local socket; address, of the door; notes,
    by rank what it has said of its end; complete, an event that is set when all ranks have come; gone, by rank one that
    is set when its connection is closed; folder, of the socket.
    """

    def __init__(
        self,
        size: int,
        failed: Callable[[int], None],
        door: typing.Any = None,
        left: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self.size, self.traffic = size, Traffic(size, None)
        self.board = Switchboard(size, self.traffic.between)
        self.notes: dict[int, dict] = {}
        self.gone = [threading.Event() for _ in range(size)]
        self.complete = threading.Event()
        self._failed, self._left = failed, left
        self._calls: dict[int, Request] = {}  # by rank, the last one
        self._turn = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._sending = [threading.Lock() for _ in range(size)]
        self._places: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(size)]
        self.folder, self.environment = None, {}
        self._listener = self._local() if door is None else door
        self.address = self._listener.address
        self._open = True
        self._door = threading.Thread(target=self._accept, name="exchange", daemon=True)
        self._door.start()

    def _local(self) -> Listener:
        """A socket of this machine, and a key that ranks find in their environment."""
        key = secrets.token_bytes(32)
        self.folder = None if os.name == "nt" else folder_of_socket()
        address = None if self.folder is None else os.path.join(self.folder, "exchange")
        family = "AF_PIPE" if self.folder is None else "AF_UNIX"
        made = Listener(address, family, backlog=max(self.size, 16), authkey=key)
        self.environment = {SIZE: str(self.size), ADDRESS: str(made.address), KEY: key.hex()}
        return made

    def close(self) -> None:
        """Let nobody in any more, and remove the socket."""
        self._open = False
        with contextlib.suppress(OSError):
            if self.environment:
                Client(self.address).close()  # closing the socket does not wake a thread that waits at it
            self._door.join()
        with contextlib.suppress(FileNotFoundError):
            self._listener.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------- what ranks send

    def _accept(self) -> None:
        while self._open:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):  # one who does not know the key, or has gone already
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Read what a rank sends, until it has gone."""
        rank = None
        try:
            rank = receive(connection)[0]["rank"]
            with self._turn:
                if rank in self._connections:  # a process that a rank has started, with its environment
                    connection.close()
                    return
                self._connections[rank] = connection
                if len(self._connections) == self.size:
                    self.complete.set()
            while True:
                self._hear(rank, *receive(connection))
        except (EOFError, OSError):
            if rank is not None:
                self.gone[rank].set()
                if rank not in self.notes:
                    self._left(rank)
        except Exception as error:  # a mistake of ours: without an answer the rank would wait for ever
            self._note(rank, {"how": "met a mistake in pmpp.parallel", "failed": True, "traceback": told(error)})

    def _hear(self, rank: int, header: dict, array: np.ndarray | None) -> None:
        if "place" in header:
            self._places[rank].put(header["place"])
        elif "how" in header:
            self._note(rank, header)
        else:
            request = request_of(header, array)
            with self._turn:
                self._calls[rank] = request
                self.traffic.enter(request)
                answers = self.board.arrive(request)
            self._deliver(answers)

    def _note(self, rank: int, note: dict) -> None:
        self.notes[rank] = note
        (self._failed if note.get("failed") else self._left)(rank)

    # ------------------------------------------------------------------------------------------- what ranks are told

    def ended(self, rank: int, how: str) -> None:
        """A rank has ended, and others may wait for it."""
        with self._turn:
            answers = self.board.ended(rank, how)
        self._deliver(answers)

    def _deliver(self, answers: Answers) -> None:
        """Rank 0 is told last. It may be in the same process, and go on into a call in which no other thread runs."""
        self.traffic.leave(answers)
        for rank, answer in sorted(answers, key=lambda told: told[0] == 0):
            self.tell(rank, *described(answer))

    def tell(self, rank: int, header: dict, array: np.ndarray | None = None) -> None:
        """Send something to a rank."""
        with contextlib.suppress(OSError), self._sending[rank]:  # a rank that has gone is seen elsewhere
            if rank in self._connections:
                send(self._connections[rank], header, array)

    # ----------------------------------------------------------------------------------------------- what ranks do

    def there(self, rank: int) -> bool:
        """Whether a rank has come."""
        return rank in self._connections

    def last_call(self, rank: int) -> str:
        """Where a rank waits, or its last call: a clause about it."""
        call = self._calls.get(rank)
        if call is None:
            return "had not communicated yet" if rank in self._connections else "had not connected yet"
        what = f"{'waited' if rank in self.board.waiting else 'had last been'} in {call.kind}"
        return f"{what} at {call.where}" if call.where else what  # a call on a GPU says it only if calls are checked

    def doing(self, rank: int, seconds: float = 0.5) -> str:
        """What a rank does now: it is asked for its line, and given some time to answer."""
        if rank in self.board.waiting or rank not in self._connections:
            return self.last_call(rank)
        self.tell(rank, {"ask": "place"})
        try:
            return f"ran at {self._places[rank].get(timeout=seconds)}"
        except queue.Empty:
            return f"ran, and did not say where: it {self.last_call(rank)}"

    def report(self) -> Report:
        """What the ranks have sent to one another."""
        return Report(self.traffic)


# --------------------------------------------------------------------------------------------------------------- a rank


class Connected(Transport):
    """The transport of a rank that is a process.

    A thread reads what the exchange sends. When the connection ends, whoever started this process is gone. ``lost`` is
    called then: it ends the process, too.
    """

    backend = "simulated"

    def __init__(
        self, rank: int, size: int, connection: Connection, lost: Callable[[], None] = lambda: os._exit(1)
    ) -> None:
        self.rank, self.size, self._lost = rank, size, lost
        self._process = os.getpid()
        self._connection = connection
        self._sending, self._calling = threading.Lock(), threading.Lock()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._call: Request | None = None
        self._welcome = threading.Event()
        self._send({"rank": rank})
        threading.Thread(target=self._listen, name="exchange", daemon=True).start()

    def group(self) -> Group:
        """The group of all ranks."""
        return Group(self, self.rank, tuple(range(self.size)))

    def exchange(self, request: Request) -> Reply:
        """The reply of the exchange."""
        if os.getpid() != self._process:
            raise CommunicationError(
                f"process {os.getpid()} calls {request.kind} at {request.where}: it is a child of rank {self.rank}, "
                "and no rank itself"
            )
        if not self._calling.acquire(blocking=False):
            raise CommunicationError(
                f"rank {self.rank} calls {request.kind} at {request.where} while another thread of it is in "
                f"{self._call.kind} at {self._call.where}: a rank is in one call at a time",
                (self.rank,),
            )
        try:
            self._call = request
            self._send(request._replace(payload=None)._asdict(), request.payload)
            answer = self._answers.get()
        finally:
            self._calling.release()
        if isinstance(answer, CommunicationError):
            raise answer
        return answer

    def look_at(self, request: Request, reads: typing.Any, writes: typing.Any) -> None:
        """Refuse arrays that nobody has written to."""
        check_written(request, reads)

    def note(self, how: str, **more: typing.Any) -> None:
        """Say how this rank ends. ``how`` is a predicate: "returned"."""
        with contextlib.suppress(OSError):
            self._send({"how": how, **more})

    def wait_for_welcome(self, seconds: float) -> None:
        """Wait until the exchange says that all ranks have come. Raises RuntimeError if it does not."""
        if not self._welcome.wait(seconds):
            raise RuntimeError(f"rank {self.rank} has waited {seconds:g} s for the other ranks (PMPP_JOIN_SECONDS)")

    def told_to_end(self, why: str) -> None:
        """The exchange tells this rank to end."""
        self._lost()

    def _send(self, header: dict, array: typing.Any = None) -> None:
        with self._sending:
            send(self._connection, header, array)

    def _listen(self) -> None:
        try:
            while True:
                header, array = receive(self._connection)
                if "ask" in header:
                    self._send({"place": where_it_runs()})
                elif "welcome" in header:
                    self._welcome.set()
                elif "end" in header:
                    self.told_to_end(header["end"])
                else:
                    self._answers.put(answer_of(header, array))
        except (EOFError, OSError):
            self._lost()


def where_it_runs() -> str:
    """The line at which the main thread is."""
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pmpp.parallel"):
        frame = frame.f_back
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


_joined: Connected | None = None


def join(rank: int, size: int, address: str, key: str) -> Connected:
    """Connect this process as a rank, once."""
    global _joined  # noqa: PLW0603 - a process is one rank
    if _joined is None:
        _joined = Connected(rank, size, Client(address, authkey=bytes.fromhex(key)))
    return _joined


def here() -> Group | None:
    """The group of all ranks, if this process is one of them."""
    return None if _joined is None else _joined.group()


# ----------------------------------------------------------------------------------------------------------- its script


def execute(argv: list[str]) -> None:
    """Run a script, or a module after "-m", as ``python`` does."""
    if argv[0] == "-m":
        sys.argv[:] = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    with open(argv[0], "rb") as file:
        code = compile(file.read(), argv[0], "exec")
    module = types.ModuleType("__main__")
    module.__file__ = os.path.abspath(argv[0])
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def told(error: BaseException) -> str:
    """The end of an exception's traceback, without the lines that started the script."""
    found = traceback.TracebackException.from_exception(error)
    start = [k for k, frame in enumerate(found.stack) if (frame.filename, frame.name) == (__file__, execute.__name__)]
    frames = found.stack[start[0] + 1 :] if start else found.stack
    frames = [frame for frame in frames if frame.filename != "<frozen runpy>"] or frames
    if isinstance(error, CommunicationError):  # it names lines itself; those below the call are ours
        frames = [frame for frame in frames if os.path.dirname(frame.filename) != os.path.dirname(__file__)] or frames
    found.stack = traceback.StackSummary.from_list(frames[-FRAMES:])
    return "".join(found.format())


def ending(error: BaseException) -> tuple[str, bool]:
    """How an exception ends a rank, as a predicate, and whether that is a failure."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"called sys.exit({code}) at {place_of(error)}", error.code not in (None, 0)
    if isinstance(error, SyntaxError) and error.filename:
        return f"raised {type(error).__name__} at {shown(error.filename)}:{error.lineno}", True
    return f"raised {type(error).__name__} at {place_of(error)}", True


def main() -> None:
    """A rank: connect, run the script, and say how it ended. `pmpp.parallel.run` starts processes with it."""
    faulthandler.enable(all_threads=False)  # after a segmentation fault it prints the line
    rank, size, address = int(os.environ[RANK]), int(os.environ[SIZE]), os.environ[ADDRESS]
    transport = join(rank, size, address, os.environ.pop(KEY))  # processes that this one starts are no ranks
    try:
        execute(sys.argv[1:])
    except SystemExit as error:
        how, failed = ending(error)
        # A process with a GPU takes longer to end than the starter waits, so the status is said before.
        transport.note(how, failed=failed, status=error.code if isinstance(error.code, int) else int(failed))
        raise
    except BaseException as error:
        how, failed = ending(error)
        transport.note(how, failed=failed, traceback=told(error))
        sys.exit(1)
    transport.note("returned")
