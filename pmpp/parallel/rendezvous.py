"""Ranks that somebody else has started, as processes of one machine or of several: they meet at an address.

``torchrun`` and Kubernetes' PyTorchJob give every rank MASTER_ADDR and MASTER_PORT; so does who sets RANK, WORLD_SIZE
and these two by hand. Under ``srun`` the address is the first machine of the step, and the port follows from the job's
number; MASTER_ADDR and MASTER_PORT take their place where they are set. Rank 0 listens there. It has the
`processes.Exchange` in a thread, and the other ranks are connected to it by TCP. So all calls are checked as those of
`pmpp.parallel.run` are, sums have the same bits, and every byte goes through rank 0: right for learning, and not fast.

**Which port.** ``torchrun`` listens at MASTER_PORT itself, and says so by TORCHELASTIC_USE_AGENT_STORE; then we begin
one further on. Rank 0 takes the first of `PORTS` ports that is free. The others try them in turn, and leave those at
which nobody proves to know the run's key.

**Who is let in.** Both ends prove that they know the key. It is made of PMPP_KEY, if you set that to the same secret
for all ranks, and of what tells this run from others. Without a secret whoever can reach the port and guess the run's
name can take the place of a rank, as with PyTorch's own store. What arrives is data, never a program.

**When a rank fails.** A rank that raises, or goes without a word, ends the others within a second or two; each says
why. So does a rank that never comes, after PMPP_JOIN_SECONDS (300). ``sys.exit(3)`` cannot be told from a return here:
others learn of it when they wait for that rank, and whoever started it learns of the status. A rank that computes for
ever is not noticed.

Source: the manuals of torchrun (``torch.distributed.run``) and of Slurm's srun.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import socket
import struct
import sys
import threading
import time
import typing
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from pmpp.parallel import processes, switchboard
from pmpp.parallel.group import Group
from pmpp.parallel.processes import Connected, Exchange
from pmpp.parallel.switchboard import CommunicationError, RankEnded

if typing.TYPE_CHECKING:
    from pmpp.parallel.environment import Place

__all__ = ["Meeting", "group", "meeting"]

PORTS = 8  # that are tried, one after another
HANDSHAKE = 5.0  # seconds in which a stranger has to prove that it is none
LATER = 1.0  # seconds that a rank leaves to the one that prints an error
SECONDS = 300.0  # to wait for the others, if PMPP_JOIN_SECONDS does not say
JOINED = "PMPP_PROCESS"  # the number of the process that has joined: a process that it starts is no rank
# What tells a run from others, as far as it is set: the same in all ranks.
RUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMPP_KEY")


class Meeting(typing.NamedTuple):
    """Where ranks meet: host; port, the first one that is tried; key; seconds to wait."""

    host: str
    port: int
    key: bytes
    seconds: float = SECONDS


def meeting(found: Place, environment: Mapping[str, str] = os.environ) -> Meeting:
    """Where the ranks of a starter meet, by their environment variables.

    Raises ValueError for a variable that is wrong, or is missing.

    >>> from pmpp.parallel.environment import place
    >>> given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    >>> meeting(place(given), given)[:2]
    ('node1', 29500)
    """
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        host, text = environment["MASTER_ADDR"], environment["MASTER_PORT"]
        port = int(text) if text.isascii() and text.isdigit() else 0
        if not 0 < port < 2**16:
            raise ValueError(f"MASTER_PORT must be a port from 1 to 65535, was {text!r}")
        port += environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    else:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
        job = environment.get("SLURM_JOB_ID", "")
        if not nodes or not job.isdigit():
            raise ValueError(
                f"{found.starter.name} has started this rank, and it is not known where ranks meet: set MASTER_ADDR "
                "to the machine of rank 0, and MASTER_PORT to a free port of it, for all ranks"
            )
        step = environment.get("SLURM_STEP_ID", "0")
        host = first_host(nodes)
        port = 20_000 + PORTS * ((int(job) * 7 + (int(step) if step.isdigit() else 0)) % 1500)  # below ephemeral ones
    text = environment.get("PMPP_JOIN_SECONDS", str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"PMPP_JOIN_SECONDS must be a number of seconds greater than 0, was {text!r}")
    told = repr((found.size, host, port, *[(name, environment.get(name)) for name in RUN]))
    return Meeting(host, port, hashlib.sha256(told.encode()).digest(), seconds)


def first_host(nodes: str) -> str:
    """The first machine of a list in Slurm's notation.

    >>> first_host("gpu[007-010,12],login")
    'gpu007'
    >>> first_host("rack[2-3]n[1-4]")
    'rack2n1'
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


# ------------------------------------------------------------------------------------------------------------- sockets


def limit(connection: socket.socket, seconds: float) -> None:
    """Let reading fail after some seconds; 0 for never. A timeout of Python's own would not hold for `Connection`."""
    whole = int(seconds)
    value = struct.pack("ll", whole, int((seconds - whole) * 1e6)) if os.name != "nt" else int(seconds * 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def proved(made: socket.socket, key: bytes, first: bool) -> Connection:
    """A connection of which both ends have proved that they know the key. Raises OSError or EOFError if not.

    ``first``: this end asks first, the one that listens.
    """
    made.setblocking(True)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request is small, and somebody waits for it
    limit(made, HANDSHAKE)
    connection = Connection(made.detach())
    try:
        for ask in (first, not first):
            (deliver_challenge if ask else answer_challenge)(connection, key)
    except (AuthenticationError, AssertionError, ValueError) as error:  # Python asserts what a challenge looks like
        connection.close()
        raise OSError(str(error)) from error
    except BaseException:
        connection.close()
        raise
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        limit(same, 0)
    return connection


class Door:
    """Where rank 0 listens: at the first free port of a meeting."""

    def __init__(self, where: Meeting) -> None:
        self._key = where.key
        for port in range(where.port, where.port + PORTS):
            try:
                self._socket = self._listen(where.host, port)
                break
            except OSError as error:
                last = error
        else:
            raise RuntimeError(
                f"rank 0 cannot listen at {where.host}, ports {where.port} to {where.port + PORTS - 1}: {last}"
            )
        self._socket.settimeout(0.2)  # so that whoever waits here looks up now and then
        self.address = self._socket.getsockname()[:2]

    @staticmethod
    def _listen(host: str, port: int) -> socket.socket:
        """At the machine's own address of that name; at all of them, if the name is that of a service before it."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        try:
            return socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            if "assign" not in os.strerror(error.errno or 0):
                raise
            return socket.create_server(("", port), family=family, backlog=128)

    def accept(self) -> Connection:
        """A rank that has come. Raises OSError if nobody has, or a stranger."""
        return proved(self._socket.accept()[0], self._key, first=True)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


def connect(where: Meeting, rank: int) -> Connection:
    """Find rank 0 at one of its ports. Raises RuntimeError if that does not come."""
    until = time.monotonic() + where.seconds
    while True:
        why = "nobody listens"
        for port in range(where.port, where.port + PORTS):
            try:
                made = socket.create_connection((where.host, port), timeout=HANDSHAKE)
            except OSError:
                continue
            try:
                return proved(made, where.key, first=False)
            except (OSError, EOFError) as error:
                why = f"who listens at {port} is none of us ({error or 'it hung up'})"
        if time.monotonic() > until:
            raise RuntimeError(
                f"rank {rank} has not found rank 0 at {where.host}, ports {where.port} to {where.port + PORTS - 1}, "
                f"in {where.seconds:g} s (PMPP_JOIN_SECONDS): {why}"
            )
        time.sleep(0.1)


# --------------------------------------------------------------------------------------------------------------- ranks


class Host:
    """What rank 0 does for all: it has the exchange, and ends the others when one has failed."""

    def __init__(self, where: Meeting, size: int) -> None:
        self.where, self.size = where, size
        self.exchange = Exchange(size, self._failed, Door(where), self._left)
        self._ending = threading.Lock()
        self._needs_none = [threading.Event() for _ in range(size)]  # by rank: it has returned, or has gone
        self.broken = False

    def welcome(self) -> None:
        """Wait until all have come, and say so to them."""
        if not self.exchange.complete.wait(self.where.seconds):
            missing = [rank for rank in range(self.size) if not self.exchange.there(rank)]
            have = "has" if len(missing) == 1 else "have"
            text = f"{switchboard._ranks(missing)} {have} not come in {self.where.seconds:g} s (PMPP_JOIN_SECONDS)"
            self._end_all(text, (0,))
            raise RuntimeError(text)
        self.exchange.close()  # the door: nobody else is to come
        for rank in range(self.size):
            self.exchange.tell(rank, {"welcome": True})

    def _failed(self, rank: int) -> None:
        self._end_all(f"rank {rank} {self.exchange.notes[rank]['how']}", (rank,))

    def _left(self, rank: int) -> None:
        """A rank has returned, or its connection has ended before it could say anything."""
        self._needs_none[rank].set()
        if note := self.exchange.notes.get(rank):
            self.exchange.ended(rank, f"it {note['how']}")
        else:
            self._end_all(f"rank {rank} has gone without a word; it {self.exchange.last_call(rank)}", (rank,))

    def _end_all(self, why: str, but: tuple[int, ...]) -> None:
        """Tell the others to end; rank 0 last, since it carries the messages."""
        with self._ending:
            if not self.broken:
                self.broken = True
                for rank in reversed(range(self.size)):
                    if rank not in but:
                        self.exchange.tell(rank, {"end": why})

    def stay(self) -> None:
        """Wait until the others have returned. After a failure not for long: they have been told.

        Their processes may not have ended then: one whose communicator NCCL lets go of waits for this one to do so.
        """
        for rank in range(1, self.size):
            while not self._needs_none[rank].wait(LATER) and not self.broken:
                pass


class Joined(Connected):
    """The transport of a rank that has met the others."""

    backend = "sockets"

    def __init__(self, rank: int, size: int, connection: Connection, host: Host | None) -> None:
        self._host = host
        self.failed = False
        self.speaking = threading.Lock()  # held by whoever says the last words of this process
        super().__init__(rank, size, connection, self._alone)

    def _alone(self) -> None:
        self._over("the connection to rank 0, which carries all messages, has ended")

    def _over(self, why: str) -> None:
        """End this process, unless it has begun to end by itself."""
        if self.speaking.acquire(timeout=2 * LATER):
            with contextlib.suppress(OSError, ValueError):
                print(f"rank {self.rank} was ended: {why}", file=sys.stderr, flush=True)
            os._exit(1)

    def told_to_end(self, why: str) -> None:
        self._over(why)

    def fail(self, error: BaseException) -> None:
        """Say how this rank has failed, and print it.

        Often several raise the same. Then the first that the error names is to print it; the others leave it a moment,
        in which they are ended.
        """
        self.failed = True
        named = error.ranks if isinstance(error, CommunicationError) and error.ranks else (self.rank,)
        if self.rank != named[-1 if isinstance(error, RankEnded) else 0]:
            time.sleep(LATER)
        self.speaking.acquire()
        how, _ = processes.ending(error)
        sys.stdout.flush()
        print(f"rank {self.rank} {how}\n{processes.told(error)}", end="", file=sys.stderr, flush=True)
        self.note(how, failed=True)

    def end(self) -> None:
        """At the end of the process: say that it returns. Rank 0 stays while others need it.

        From when these have said so the connection may end, which is no reason any more to end this process.
        """
        if self._host is not None:
            if not self.failed:
                self.note("returned")
            self._host.stay()
        if not self.failed:
            self.speaking.acquire(timeout=2 * LATER)
        if self._host is None and not self.failed:
            self.note("returned")


_joined: Joined | None = None


def group(found: Place, environment: typing.MutableMapping[str, str] = os.environ) -> Group:
    """The group of all ranks of a starter. Waits until all have come.

    Raises RuntimeError if they do not, or if a rank has started this process.
    """
    global _joined  # noqa: PLW0603 - a process is one rank
    if _joined is None:
        if environment.get(JOINED, str(os.getpid())) != str(os.getpid()):
            raise RuntimeError(
                f"process {environment[JOINED]} is rank {found.rank} already, and has started this one: a process "
                f"that a rank starts is no rank. Remove {found.starter.rank} and {found.starter.size} from its "
                "environment if it is to be alone"
            )
        where = meeting(found, environment)
        host = Host(where, found.size) if found.rank == 0 else None
        if host is not None:
            where = where._replace(port=host.exchange.address[1])
        _joined = Joined(found.rank, found.size, connect(where, found.rank), host)
        if host is not None:
            host.welcome()
        _joined.wait_for_welcome(where.seconds)
        environment[JOINED] = str(os.getpid())
        atexit.register(_joined.end)
        sys.excepthook = hook(_joined.fail, sys.excepthook)
    return _joined.group()


def hook(fail: Callable[[BaseException], None], usual: Callable) -> Callable:
    """An excepthook. Ctrl-C is told as Python does."""

    def failed(kind: type, error: BaseException, trace: typing.Any) -> None:
        fail(error)
        if isinstance(error, KeyboardInterrupt):
            usual(kind, error, trace)

    return failed
