"""A group of ranks: what they pass to one another, and what they compute together.

Every rank of a program runs the same code, and has a `Group` that says which rank it is. A *collective* is called by
all ranks of the group, in the same order, with arrays that fit together. `send` and `recv` concern two ranks.

A method checks its arguments, tells the *transport* what it wants as a `switchboard.Request`, and waits for the reply.
Where the other ranks are, in this process or elsewhere, only the transport knows.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
import typing

import numpy as np
import numpy.typing as npt

from pmpp.parallel.algorithms import OPS
from pmpp.parallel.switchboard import WORLD, Reply, Request, stale
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer

if typing.TYPE_CHECKING:
    from pmpp.parallel import windows

__all__ = ["Group", "Transport", "caller", "place_of", "shown"]

FLOATS = ("float16", "float32", "float64")
NUMBERS = (*FLOATS, "int32", "int64")
ANY = (*NUMBERS, "bool")
COMBINED = {"mean": FLOATS, "max": ANY, "min": ANY}  # the dtypes of an operation; of others NUMBERS
NAMES = {np.dtype(name): name for name in ANY}  # NumPy takes long to say a dtype's name
KEPT = 1024  # all-reduces that need not be checked again; then all are forgotten
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # pmpp/
RANKS = tuple(range(33))  # of arrays: from no axis to as many as NumPy has


class Transport:
    """What carries requests to the other ranks. Derive from it, and write `exchange`.

    Attributes: backend, its name; direct, whether it moves device arrays by itself: then write `carry`, too; named,
    whether it asks where in the program a call stands, which takes longer to find than a short call takes.
    """

    backend = ""
    direct = False
    named = True

    def exchange(self, request: Request) -> Reply:
        """The reply to a request. Waits for it. Raises the `CommunicationError` that it is answered with."""
        raise NotImplementedError

    def carry(self, request: Request, sent: typing.Any, out: typing.Any, stream: typing.Any) -> typing.Any:
        """Queue what is requested on a stream, from the array ``sent`` into ``out``, or into a new array if it is None.

        Returns the array with the result, or None if this rank gets none.
        """
        raise NotImplementedError

    def shared(self, name: str, shape: tuple[int, ...], dtype: np.dtype, beside_work: bool = False) -> typing.Any:
        """A new device array for all-reduces in place in the group of this name. Called by all its ranks."""
        return device.empty(shape, dtype)

    def look_at(self, request: Request, reads: typing.Any, writes: typing.Any) -> None:
        """Told of the device arrays of a request before it, or None. Raises if they are not the rank's own."""

    def window(self, group: Group, name: str, x: typing.Any, request: Request) -> typing.Any:
        """The window of this name, to which a rank gives its array, and which is there when all have called it."""
        raise NotImplementedError

    windows = False  # whether it has them


class Group:
    """Ranks that communicate. `parallel.init` and `parallel.ranks` make the group of all ranks, `split` smaller ones.

    Attributes:
        rank: the number of this rank in the group, from 0.
        size: how many ranks the group has.
        backend: what carries the messages, as "simulated".
        members: for each rank of the group, its number among all ranks of the program.

    What all methods share:

    - Arrays are device arrays, or NumPy arrays, which are transferred. They are in C order, and float16, float32,
      float64, int32 or int64; where nothing is added or multiplied, bool, too. No array is cast.
    - ``out`` is the device array for the result, of its shape and dtype; ``out=x`` is in place, where the shapes agree.
      Without it a new array is made. It may share no memory with the array passed, but for being it.
    - ``op`` is "sum", "prod", "max", "min" or "mean". The mean is of floats, sum and product are not of bool. Each
      operation rounds to the array's dtype; integers wrap. A NaN in one rank makes "max" and "min" NaN.
    - The order of a sum is that of the algorithm (`pmpp.parallel.algorithms`): the same in every run. All ranks get the
      same bits.
    - ``stream`` is that of the work before and after. The method returns when its result is there. The backends "nccl"
      and "peer" move arrays from GPU to GPU, and a method returns when that is queued on the stream. Calls of one group
      on several streams have to be ordered by the caller.

    Each method raises TypeError and ValueError for arguments that are wrong by themselves, and a
    `parallel.CommunicationError` for what does not fit the calls of other ranks.

    >>> from pmpp import parallel
    >>> def total(group):
    ...     mine = np.full(3, group.rank, np.float32)
    ...     return group.all_reduce(mine).copy_to_host()
    >>> parallel.ranks(4, total)[0]
    array([6., 6., 6.], dtype=float32)
    """

    def __init__(self, transport: Transport, rank: int, members: tuple[int, ...], name: str = WORLD) -> None:
        self.rank, self.size, self.members = rank, len(members), members
        self._transport, self._name = transport, name
        self._collectives = 0  # that this rank has called
        # All-reduces on GPUs that were found right before, by the layouts of both arrays, of which each has one object,
        # and by the operation. A training calls the same ones in each step, and checks take longer than a short one.
        self._passed: dict[tuple, Request] = {}

    backend = property(lambda self: self._transport.backend)

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, {self.backend}>"

    # ---------------------------------------------------------------------------------------------------- collectives

    def barrier(self, *, stream: typing.Any = 0) -> None:
        """Wait until all ranks have come here.

        >>> from pmpp import parallel
        >>> parallel.ranks(2, lambda group: group.barrier())
        [None, None]
        """
        self._collective("barrier", stream)

    def broadcast(self, x: typing.Any, root: int = 0, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
        """The array of rank ``root``, on all ranks.

        Args:
            x: on ``root`` what it sends. On others None, or an array of the same shape and dtype, whose elements do not
                matter: so ``group.broadcast(x, out=x)`` is right on all ranks.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     x = np.arange(3) if group.rank == 1 else None
        ...     return group.broadcast(x, root=1).copy_to_host().tolist()
        >>> parallel.ranks(2, step)
        [[0, 1, 2], [0, 1, 2]]
        """
        root = self._rank("root", root)
        if x is None and self.rank == root:
            raise TypeError("x must be an array on the root, which sends it, was None")
        if x is None and out is None:
            return self._collective("broadcast", stream, root=root)
        like = self._input("x", x, ANY, stream) if x is not None else self._input("out", out, ANY, stream)
        result = self._output(out, like.shape, like.dtype, x if x is None else like, stream)
        sent = like if self.rank == root else None
        return self._collective("broadcast", stream, like, sent=sent, out=result, root=root)

    def reduce(
        self, x: typing.Any, root: int = 0, op: str = "sum", *, out: typing.Any = None, stream: typing.Any = 0
    ) -> typing.Any:
        """The arrays of all ranks combined by element: the result on rank ``root``, and None on the others.

        ``out`` is for ``root`` alone.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     largest = group.reduce(np.array([group.rank, -group.rank]), root=2, op="max")
        ...     return None if largest is None else largest.copy_to_host().tolist()
        >>> parallel.ranks(3, step)
        [None, None, [2, 0]]
        """
        root, x = self._rank("root", root), self._combined(x, op, stream)
        if out is not None and self.rank != root:
            raise ValueError(
                f"out must be None on rank {self.rank}: the result is given to the root, rank {root}, alone"
            )
        result = self._output(out, x.shape, x.dtype, x, stream) if self.rank == root else None
        return self._collective("reduce", stream, x, sent=x, out=result, op=op, root=root)

    def all_reduce(
        self, x: typing.Any, op: str = "sum", *, out: typing.Any = None, stream: typing.Any = 0
    ) -> typing.Any:
        """The arrays of all ranks combined by element, on all ranks.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     return group.all_reduce(np.float32([group.rank, 1]), op="mean").copy_to_host().tolist()
        >>> parallel.ranks(2, step)
        [[0.5, 1.0], [0.5, 1.0]]
        """
        stream = device.as_stream(stream)
        alike = _layout(x), _layout(out), op if isinstance(op, str) else None
        if alike in self._passed and _apart(x, out):
            self._collectives += 1
            return self._transport.carry(self._passed[alike], x, out, stream)
        x = self._combined(x, op, stream)
        result = self._output(out, x.shape, x.dtype, x, stream)
        if self._transport.direct and not self._transport.named and None not in alike:
            if len(self._passed) > KEPT:
                self._passed.clear()
            self._passed[alike] = self._request("all_reduce", array=x, op=op)
        return self._collective("all_reduce", stream, x, sent=x, out=result, op=op)

    def all_gather(self, x: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
        """The arrays of all ranks, stacked by rank, on all ranks: (size, *x.shape).

        >>> from pmpp import parallel
        >>> parallel.ranks(3, lambda group: group.all_gather(np.array([group.rank] * 2)).copy_to_host().tolist())[0]
        [[0, 0], [1, 1], [2, 2]]
        """
        x = self._input("x", x, ANY, stream)
        result = self._output(out, (self.size, *x.shape), x.dtype, x, stream)
        return self._collective("all_gather", stream, x, sent=x, out=result)

    def reduce_scatter(
        self, x: typing.Any, op: str = "sum", *, out: typing.Any = None, stream: typing.Any = 0
    ) -> typing.Any:
        """Row k of the arrays of all ranks, combined by element, on rank k: x is (size, ...), the result (...).

        >>> from pmpp import parallel
        >>> def step(group):
        ...     return group.reduce_scatter(np.array([[1, 2], [30, 40]])).copy_to_host().tolist()
        >>> parallel.ranks(2, step)
        [[2, 4], [60, 80]]
        """
        x = self._rows(self._combined(x, op, stream))
        result = self._output(out, x.shape[1:], x.dtype, x, stream)
        return self._collective("reduce_scatter", stream, x, sent=x, out=result, op=op)

    def all_to_all(self, x: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
        """Row k of x goes to rank k, and row k of the result comes from rank k: both are (size, ...).

        >>> from pmpp import parallel
        >>> def step(group):
        ...     return group.all_to_all(np.arange(2) + 10 * group.rank).copy_to_host().tolist()
        >>> parallel.ranks(2, step)
        [[0, 10], [1, 11]]
        """
        x = self._rows(self._input("x", x, ANY, stream))
        result = self._output(out, x.shape, x.dtype, x, stream)
        return self._collective("all_to_all", stream, x, sent=x, out=result)

    def same(self, x: typing.Any, name: str = "x", *, stream: typing.Any = 0) -> None:
        """Check that an array has the same bits on all ranks, as weights have in data parallelism.

        A digest of 32 bytes is gathered, and no element. Raises `Stale` on all ranks if one has another array: it began
        with other numbers, or has missed an update.

        >>> from pmpp import parallel
        >>> parallel.ranks(2, lambda group: group.same(np.ones(3), "weight"))
        [None, None]
        """
        stream, x = device.as_stream(stream), self._input("x", x, ANY, stream)
        self._transport.look_at(self._request("all_gather", array=x), x, None)
        digest = hashlib.sha256(f"{x.dtype} {x.shape}".encode() + self._on_host(x, stream).tobytes()).digest()
        digests = device.to_host(self.all_gather(np.frombuffer(digest, np.int64))).reshape(self.size, -1)
        if error := stale([row.tobytes() for row in digests], self.members, name, caller()):
            raise error

    def split(self, colour: int | None, key: int | None = None) -> Group | None:
        """Divide the group: ranks that name the same colour make a new one. Called by all ranks of this group.

        Args:
            colour: an integer from 0; None for a rank that goes into no group, which is given None.
            key: the order of the ranks in the new group; equal keys, or none, keep the order that they have.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     row = group.split(colour=group.rank // 2)
        ...     return row.rank, row.size, row.members
        >>> parallel.ranks(3, step)
        [(0, 2, (0, 1)), (1, 2, (0, 1)), (0, 1, (2,))]
        """
        wanted = -1 if colour is None else as_integer("colour", colour, 0, 2**63 - 1)
        order = self.rank if key is None else as_integer("key", key, -(2**63), 2**63 - 1)
        wish = np.array([colour is not None, wanted, order], np.int64)
        reply = self._transport.exchange(self._request("split", payload=wish, counted=True))
        if not reply.members:
            return None
        place = reply.members.index(self.members[self.rank])
        return Group(self._transport, place, reply.members, reply.group)

    # ------------------------------------------------------------------------------------------------------- one-sided

    def shared(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, beside_work: bool = False) -> typing.Any:
        """A new device array for all-reduces in place; its contents are undefined. Called by all ranks alike.

        On backend "peer" all ranks know its address, so ``all_reduce(x, out=x)`` of the whole array copies nothing to a
        place in between. There it stays until the program ends. With ``beside_work`` its sums leave room on the GPU for
        what goes on meanwhile on other streams. On other backends it is an array as any other.

        >>> from pmpp import parallel
        >>> def total(group):
        ...     x = group.shared(2, np.float32)
        ...     x.copy_to_device(np.full(2, group.rank, np.float32))
        ...     return group.all_reduce(x, out=x).copy_to_host().tolist()
        >>> parallel.ranks(3, total)[0]
        [3.0, 3.0]
        """
        extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        extents = tuple([as_integer("shape", extent, 0) for extent in extents])
        kind = np.dtype(dtype)
        if str(kind) not in ANY:
            raise TypeError(f"dtype must be {', '.join(ANY[:-1])} or {ANY[-1]}, was {kind}")
        return self._transport.shared(self._name, extents, kind, as_flag("beside_work", beside_work))

    def window(self, x: typing.Any, *, stream: typing.Any = 0) -> windows.Window:
        """Let the other ranks read and write an array. Called by all ranks, with arrays of one shape and dtype.

        Who reads what another one writes has to wait for its signal: see `pmpp.parallel.windows`, also for an example.
        Only ranks in one process have windows; others raise RuntimeError.
        """
        if not self._transport.windows:
            raise RuntimeError(f"backend {self.backend!r} has no windows here: ranks in one process do, parallel.ranks")
        if x is None:
            raise TypeError("x must be a device array, was None")
        box = self._output(x, *self._described("x", x, stream), None, stream)
        if not box.shape:
            raise ValueError("x must have rows, had shape ()")
        request = self._request("window", array=box, counted=True)
        self._transport.look_at(request, None, box)
        name = f"{self._name}/{request.number}"
        return self._transport.window(self, name, box, request)

    # ------------------------------------------------------------------------------------------------- point to point

    def send(self, x: typing.Any, to: int, *, tag: int = 0, stream: typing.Any = 0) -> None:
        """Send an array to rank ``to``. Returns when that has received it, with `recv` and the same tag.

        Two ranks that first send to each other wait for ever: one of them has to receive first.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     box = device.empty(2, np.int64)
        ...     if group.rank == 0:
        ...         return group.send(np.array([3, 4]), to=1)
        ...     return group.recv(box, source=0).copy_to_host().tolist()
        >>> parallel.ranks(2, step)
        [None, [3, 4]]
        """
        x, peer, tag = self._input("x", x, ANY, stream), self._rank("to", to), as_integer("tag", tag, 0, 2**31 - 1)
        stream = device.as_stream(stream)
        request = self._request("send", peer=peer, tag=tag, array=x)
        self._transport.look_at(request, x, None)
        if self._transport.direct:
            self._transport.carry(request, x, None, stream)
            return
        self._transport.exchange(request._replace(payload=self._on_host(x, stream)))

    def recv(self, out: typing.Any, source: int, *, tag: int = 0, stream: typing.Any = 0) -> typing.Any:
        """Fill ``out``, a device array, with what rank ``source`` sends with the same tag. Returns ``out``.

        Shape and dtype must be those of the array that is sent. See `send` for an example.
        """
        if out is None:
            raise TypeError("out must be a device array to receive into, was None: see device.empty(shape, dtype)")
        peer, tag = self._rank("source", source), as_integer("tag", tag, 0, 2**31 - 1)
        box = self._output(out, *self._described("out", out, stream), None, stream)
        request = self._request("recv", peer=peer, tag=tag, array=box)
        self._transport.look_at(request, None, box)
        if self._transport.direct:
            self._transport.carry(request, None, box, device.as_stream(stream))
            return out
        reply = self._transport.exchange(request)
        box.copy_to_device(reply.payload, stream=device.as_stream(stream))
        return out

    def send_recv(
        self, x: typing.Any, to: int, out: typing.Any, source: int, *, tag: int = 0, stream: typing.Any = 0
    ) -> typing.Any:
        """Send an array to rank ``to`` and meanwhile fill ``out`` with what rank ``source`` sends. Returns ``out``.

        Both may be met by `send`, `recv` or `send_recv` of the others. All ranks of a ring can call it at once, where
        `send` would wait for ever. ``out`` may have another shape and dtype than x, and shares no memory with it.

        >>> from pmpp import parallel
        >>> def step(group):
        ...     right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        ...     box = device.empty(1, np.int64)
        ...     return group.send_recv(np.array([group.rank]), right, box, left).copy_to_host().tolist()
        >>> parallel.ranks(3, step)
        [[2], [0], [1]]
        """
        if out is None:
            raise TypeError("out must be a device array to receive into, was None: see device.empty(shape, dtype)")
        x, peer = self._input("x", x, ANY, stream), self._rank("to", to)
        source, tag = self._rank("source", source), as_integer("tag", tag, 0, 2**31 - 1)
        shape, dtype = self._described("out", out, stream)
        box = self._output(out, shape, dtype, x, stream)
        if x.size and box.size and device.address(x) == device.address(box):
            raise ValueError("out must share no memory with x, which is sent while out is filled")
        stream = device.as_stream(stream)
        request = self._request(
            "send_recv", peer=peer, tag=tag, array=x, source=source, out_dtype=str(dtype), out_shape=shape
        )
        self._transport.look_at(request, x, box)
        if self._transport.direct:
            self._transport.carry(request, x, box, stream)
            return out
        reply = self._transport.exchange(request._replace(payload=self._on_host(x, stream)))
        box.copy_to_device(reply.payload, stream=stream)
        return out

    # ------------------------------------------------------------------------------------------ from arrays to requests

    def _collective(
        self,
        kind: str,
        stream: typing.Any,
        like: typing.Any = None,
        *,
        sent: typing.Any = None,
        out: typing.Any = None,
        op: str | None = None,
        root: int | None = None,
    ) -> typing.Any:
        """Carry out a collective. ``like`` has the dtype and shape to agree on; ``sent`` is what this rank gives."""
        stream = device.as_stream(stream)
        request = self._request(kind, op=op, root=root, array=like, counted=True)
        self._transport.look_at(request, sent, out)
        if self._transport.direct:
            return self._transport.carry(request, sent, out, stream)
        reply = self._transport.exchange(
            request._replace(payload=None if sent is None else self._on_host(sent, stream))
        )
        if reply.payload is None:
            return None
        if out is None:
            return device.to_device(reply.payload, stream=stream)
        if out.size:
            out.copy_to_device(reply.payload, stream=stream)
        return out

    def _request(
        self, kind: str, *, array: typing.Any = None, counted: bool = False, **arguments: typing.Any
    ) -> Request:
        number = self._collectives
        self._collectives += counted
        if array is not None:
            arguments["dtype"], arguments["shape"] = NAMES[array.dtype], tuple(array.shape)
        where = caller() if self._transport.named else ""
        return Request(kind, self.members[self.rank], self._name, where, number=number, **arguments)

    @staticmethod
    def _on_host(x: typing.Any, stream: typing.Any) -> np.ndarray:
        """A copy, made when the work before it is done."""
        if not isinstance(stream, int):
            stream.synchronize()
        return device.to_host(x)

    # ---------------------------------------------------------------------------------------------------------- checks

    def _input(self, name: str, x: typing.Any, dtypes: tuple[str, ...], stream: typing.Any) -> typing.Any:
        return device.as_input(name, x, dtypes=dtypes, ndim=RANKS, stream=device.as_stream(stream))

    def _combined(self, x: typing.Any, op: str, stream: typing.Any) -> typing.Any:
        """An array of a dtype that ``op`` combines."""
        if not isinstance(op, str) or op not in OPS:
            raise ValueError(f"op must be {', '.join(map(repr, OPS))}, was {op!r}")
        return self._input("x", x, COMBINED.get(op, NUMBERS), stream)

    def _rows(self, x: typing.Any) -> typing.Any:
        """An array with a row for each rank."""
        if not x.shape or x.shape[0] != self.size:
            raise ValueError(f"x must have a row for each of the {self.size} ranks, had shape {tuple(x.shape)}")
        return x

    def _described(self, name: str, out: typing.Any, stream: typing.Any) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a device array to receive into."""
        if isinstance(out, np.ndarray):
            raise TypeError(f"{name} must be a device array, was a NumPy array: a result stays on the device")
        array = self._input(name, out, ANY, stream)
        return tuple(array.shape), array.dtype

    @staticmethod
    def _output(
        out: typing.Any, shape: tuple[int, ...], dtype: np.dtype, x: typing.Any, stream: typing.Any
    ) -> typing.Any:
        """``out`` after a check; None if there is none, since the result makes an array by itself."""
        if out is None:
            return None
        scalar = tuple(shape) == getattr(out, "shape", None) == ()  # of which `as_output` knows nothing
        wanted = {
            "shape": (1,) if scalar else tuple(shape),
            "dtype": dtype,
            "apart": {} if x is None else {"x": x},
            "may_be": ("x",),
            "stream": device.as_stream(stream),
        }
        if scalar and not isinstance(out, np.ndarray | np.generic):
            return device.as_output("out", out.reshape(1), **wanted).reshape(())
        return device.as_output("out", out, **wanted)

    def _rank(self, name: str, value: int) -> int:
        return as_integer(name, value, 0, self.size - 1)


def _layout(x: typing.Any) -> typing.Any:
    """What an array of `pmpp.runtime.array` has in common with others; None for other arrays, as PyTorch's."""
    return x.layout if hasattr(x, "form") else None


def _apart(x: typing.Any, out: typing.Any) -> bool:
    """Whether two arrays of equal length in C order are one, or have no memory in common."""
    distance = abs(x.pointer - out.pointer)
    return distance == 0 or distance >= x.layout.nbytes


def caller() -> str:
    """File and line of the innermost code outside `pmpp.parallel`, as "train.py:31".

    A file below the current folder is named from there, another by its name alone. A cell of a notebook is "cell:3".
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pmpp.parallel"):
        frame = frame.f_back
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_of(error: BaseException) -> str:
    """File and line of the program in which an exception arose: the innermost code of no library, if there is some."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(path, line) for path, line in frames if not _of_library(path)]
    path, line = [("an unknown file", 0), *frames[-1:], *own[-1:]][-1]
    return f"{shown(path)}:{line}"


def _of_library(path: str) -> bool:
    # Cython names its sources by a path within its package, wherever that is installed.
    return path.startswith(PACKAGE) or "site-packages" in path or path.endswith((".pyx", ".pxi"))


def shown(path: str) -> str:
    """A file as messages name it."""
    if "ipykernel" in path:
        return "cell"
    if path.startswith(os.getcwd() + os.sep):
        return os.path.relpath(path)
    return path if path.startswith("<") else os.path.basename(path)
