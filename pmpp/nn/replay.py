"""Operations that were carried out before on arrays of the same layouts: launched again without asking anew what.

An operation checks its arguments, chooses a kernel by their shapes, makes arrays, and launches. All but the last comes
out the same each time for the same layouts, and takes several times as long as the launches: a training step of a small
network waits for Python. `call` therefore carries an operation out by its own code once, records what it launches
before the second time, and from then on only does that: it allocates, writes the new addresses among the kernels'
arguments, and launches.

    the first call     the operation's own: it checks, compiles, fills its caches
    before the second  the operation is carried out twice within a CUDA graph that nobody launches
    each later one     allocations, addresses, launches

What an operation would launch is read from these graphs: kernels, extents, and arguments as bytes. The arrays in them
do not exist. Their addresses are made up, and are others in the second graph, so what differs between the graphs must
be addresses, and what does not differ is the same for all calls. An operation is left to its own code for good where
that is not so, or where a replay could be wrong: if it copies or fills memory without a kernel, if it needs two streams
or all blocks at a time, or if it reads a table that is kept elsewhere and could be freed.

`call` asks in each call what the recording depends on: the operation, each array's layout and its address modulo 512,
and each other argument. It leaves to the operation's own code what is on another stream than the default one, arrays of
NumPy, and arrays that begin at the same address. Operations that write into an argument do not belong here, but for
arrays that nobody else has, like a layer's running moments.

Chapter: notebooks/90_feeding_the_gpu.ipynb.  Source: CUDA Driver API, Graph Management (cuGraphKernelNodeGetParams).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import threading
import typing
from array import array as Words
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pmpp.nn.tape import state
from pmpp.runtime import device, garbage

__all__ = ["call", "off"]

ALIGNED = 512  # bytes: how CuPy's pool aligns what it allocates
KEPT = 1024  # recordings; then all are forgotten


def call(operation: Callable, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
    """The operation's result, on the stream of this thread."""
    if state.replaying and state.stream == 0 and (replayer := _replayer()) is not None:
        return replayer(operation, arguments, options)
    return operation(*arguments, **options, stream=state.stream)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Within it every operation is carried out by its own code: to compare, or to look for an error."""
    before, state.replaying = state.replaying, False
    try:
        yield
    finally:
        state.replaying = before


@functools.cache
def _replayer() -> Replayer | None:
    """None where there is no GPU, or no pool whose memory costs little."""
    if not device.on_gpu() or device._cupy() is None:
        return None
    return Replayer()


# ----------------------------------------------------------------------------------- what a recording says, as numbers


@dataclass(frozen=True)
class Launched:
    """A kernel of a recording: its function's handle; grid, block and shared memory; its arguments' bytes."""

    function: int
    extents: tuple[int, ...]
    arguments: tuple[bytes, ...]


@dataclass
class Recording:
    """An operation on arrays that do not exist.

    Attributes: begins, nbytes: of the memory of the arguments, then of all that was allocated; launched: the kernels in
    their order; results: for each array returned its address and its layout, or None; make: what the operation returns
    of a list of them.
    """

    begins: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    results: list[tuple[int, typing.Any] | None] = field(default_factory=list)
    make: Callable[[list], typing.Any] = list

    def place(self, address: int) -> tuple[int, int] | None:
        """Which piece of memory an address lies in, and how far from its beginning."""
        for i, (begin, nbytes) in enumerate(zip(self.begins, self.nbytes, strict=True)):
            if begin <= address < begin + max(nbytes, 1):
                return i, address - begin
        return None


class Unlike(Exception):
    """Two recordings differ in more than in addresses, or name memory that is not theirs."""


#: A word of the arguments that is an address: the word's number, the piece of memory, the distance from its beginning.
Patch = tuple[int, int, int]


def patches(first: Recording, second: Recording, foreign: Callable[[int], bool]) -> tuple[list[int], list[Patch]]:
    """The words of all arguments of all kernels, each argument beginning a word, and which of them are addresses.

    ``foreign`` says whether a word is the address of other memory. Raises Unlike.
    """
    words: list[int] = []
    found: list[Patch] = []
    if first.nbytes != second.nbytes or len(first.launched) != len(second.launched):
        raise Unlike("another number of kernels or allocations")
    for one, other in zip(first.launched, second.launched, strict=True):
        sizes = [tuple(map(len, launched.arguments)) for launched in (one, other)]
        if (one.function, one.extents, sizes[0]) != (other.function, other.extents, sizes[1]):
            raise Unlike("another kernel or other extents")
        for a, b in zip(map(_words, one.arguments), map(_words, other.arguments), strict=True):
            for was, now in zip(a, b, strict=True):
                if was != now:
                    place = first.place(was)
                    if place is None or place != second.place(now):
                        raise Unlike("a number that is not the same each time")
                    found.append((len(words), *place))
                elif foreign(was):
                    raise Unlike("memory that the operation keeps")
                words.append(was)
    return words, found


def _words(argument: bytes) -> Sequence[int]:
    padded = argument + bytes(-len(argument) % 8)
    return memoryview(padded).cast("Q").tolist()


# --------------------------------------------------------------------------------------------------------- on a GPU


class KernelNode(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS, version 2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


KERNEL_NODE, COOPERATIVE = 0, 2  # CU_GRAPH_NODE_TYPE_KERNEL, CU_LAUNCH_ATTRIBUTE_COOPERATIVE
THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE


def _ask(name: str, *arguments: typing.Any) -> None:
    """Call a function of the driver. Raises Unlike if it fails."""
    from pmpp.runtime import array

    if code := getattr(array.library(), name)(*arguments):
        raise Unlike(f"{name} failed with error {code}")


def launched_in(graph: ctypes.c_void_p) -> list[Launched]:
    """The kernels of a graph in their order. Raises Unlike if it is no chain of kernels."""
    before = {node: _nodes("cuGraphNodeGetDependencies", node) for node in _nodes("cuGraphGetNodes", graph.value)}
    chain: list[int] = []
    while len(chain) < len(before):
        following = [node for node, those in before.items() if those == chain[-1:]]
        if len(following) != 1:
            raise Unlike("kernels that do not follow one another")
        chain += following
    return [_launched(ctypes.c_void_p(node)) for node in chain]


def _nodes(function: str, of: int | None) -> list[int]:
    """The nodes that a function of the driver tells of: it is asked for their number first."""
    count = ctypes.c_size_t()
    _ask(function, ctypes.c_void_p(of), None, ctypes.byref(count))
    if not count.value:
        return []
    nodes = (ctypes.c_void_p * count.value)()
    _ask(function, ctypes.c_void_p(of), nodes, ctypes.byref(count))
    return list(nodes)


def _launched(node: ctypes.c_void_p) -> Launched:
    kind, known, together = ctypes.c_int(), KernelNode(), (ctypes.c_int * 16)()
    _ask("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value != KERNEL_NODE:
        raise Unlike("memory that is copied or filled without a kernel")
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(known))
    _ask("cuGraphKernelNodeGetAttribute", node, COOPERATIVE, together)
    if together[0] or known.extra or not known.arguments:
        raise Unlike("a kernel whose blocks wait for each other")
    function = ctypes.c_void_p(known.function)
    if not function.value:
        _ask("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(known.kernel))
    extents = tuple(getattr(known, name) for name, *_ in KernelNode._fields_[1:8])
    arguments: list[bytes] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    from pmpp.runtime import array

    parameter = array.library().cuFuncGetParamInfo
    while not parameter(function, ctypes.c_size_t(len(arguments)), ctypes.byref(offset), ctypes.byref(size)):
        arguments.append(ctypes.string_at(known.arguments[len(arguments)], size.value))
    return Launched(function.value or 0, extents, tuple(arguments))


def _is_memory(word: int) -> bool:
    """Whether a word is an address that the driver knows."""
    if word < 1 << 20:
        return False
    from pmpp.runtime import array

    kind = ctypes.c_uint()
    return not array.library().cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, ctypes.c_uint64(word))


@functools.lru_cache(KEPT)
def name_of(function: int) -> str:
    """The name in Python of a function of the driver; "kernel" if the driver is too old to say it."""
    from pmpp.runtime import array

    found = ctypes.c_char_p()
    ask = getattr(array.library(), "cuFuncGetName", None)
    if ask is None or ask(ctypes.byref(found), ctypes.c_void_p(function)):
        return "kernel"
    return unmangled((found.value or b"kernel").decode())


def unmangled(symbol: str) -> str:
    """The last part of the name of a function that Numba compiled.

    >>> unmangled("_ZN4pmpp7kernels6matmul12tiled_kernelB2v1B4cw51E5ArrayIfLi2E1CE")
    'tiled_kernel'
    """
    rest, name = symbol.removeprefix("_ZN"), symbol
    while found := re.match(r"\d+", rest):
        end = found.end() + int(found[0])
        name, rest = rest[found.end() : end], rest[end:]
        while tag := re.match(r"B(\d+)", rest):  # Numba's marks of what it compiled the function for
            rest = rest[tag.end() + int(tag[1]) :]
    return name


class Replay:
    """What an operation launches for arguments of some layouts."""

    def __init__(self, first: Recording, second: Recording, inputs: int) -> None:
        from pmpp.runtime import array, launcher

        words, self.patches = patches(first, second, _is_memory)
        self.words = Words("Q", words)
        self.lock = threading.Lock()  # of the words
        self.functions = [launched.function for launched in first.launched]
        self.starts: list[Callable[[], int]] = []  # each launches a kernel, and returns the driver's code
        (base, _), at = self.words.buffer_info(), 0
        for launched in first.launched:
            places = []
            for argument in launched.arguments:
                places.append(base + 8 * at)
                at += len(_words(argument))
            where = ctypes.byref(launcher.Configuration(*launched.extents, None, None, 0))
            parameters = (ctypes.c_void_p * max(len(places), 1))(*places)
            function = ctypes.c_void_p(launched.function)
            start = functools.partial(array.library().cuLaunchKernelEx, where, function, parameters, None)
            self.starts.append(start)
        places = [None if result is None else first.place(result[0]) for result in first.results]
        order = self._share(first.nbytes, inputs, {place[0] for place in places if place is not None})
        self.patches = [(word, order[piece], distance) for word, piece, distance in self.patches]
        self.make, self.results = first.make, []
        for result, place in zip(first.results, places, strict=True):
            if result is None:
                self.results.append(None)
            elif place is not None:
                self.results.append((order[place[0]], place[1], result[1]))
            elif not result[1].nbytes:
                self.results.append((-1, 0, result[1]))
            else:
                raise Unlike("a result that lies elsewhere")

    def _share(self, nbytes: list[int], inputs: int, returned: set[int]) -> list[int]:
        """Where each piece of memory comes in a call: the arguments, what is returned, and the rest.

        What is returned has memory of its own, since it can be freed alone. All the rest is allocated at once.
        """
        made = range(inputs, len(nbytes))
        single, together = [i for i in made if i in returned], [i for i in made if i not in returned]
        whole = [-(-nbytes[i] // ALIGNED) * ALIGNED for i in together]
        self.sizes = [nbytes[i] for i in single]
        self.offsets = list(itertools.accumulate(whole, initial=0))
        self.scratch = self.offsets.pop()
        sequence = [*range(inputs), *single, *together]
        return [sequence.index(i) for i in range(len(nbytes))]

    def __call__(self, arrays: list, pointers: list[int], alloc: Callable, kind: type) -> typing.Any:
        """The operation's result. Raises RuntimeError if the driver does not take a launch."""
        inputs, owners, new = len(arrays), [], kind.__new__
        for nbytes in self.sizes:
            memory = alloc(nbytes)
            owners.append(memory)
            pointers.append(memory.ptr)
        if self.scratch:
            scratch = alloc(self.scratch)
            base = scratch.ptr
            pointers += [base + offset for offset in self.offsets]
        words = self.words
        with self.lock:
            for word, piece, distance in self.patches:
                words[word] = pointers[piece] + distance
            self.launch()
        made = []
        for result in self.results:
            if result is None:
                made.append(None)
                continue
            piece, distance, layout = result
            array = new(kind)
            array.__dict__ = known = layout.attributes.copy()  # as `Array.at`, without the words: few are asked for
            known["pointer"] = pointers[piece] + distance if piece >= 0 else 0
            known["owner"] = None if piece < 0 else owners[piece - inputs] if piece >= inputs else arrays[piece].owner
            made.append(array)
        return self.make(made)

    def launch(self) -> None:
        """Launch the kernels with the words as they are. A `pmpp.nn.timeline.Recorder` puts its own in this place."""
        for start in self.starts:
            if start():
                raise RuntimeError("the driver did not take a launch")


class Replayer:
    """All recordings, by what they depend on."""

    def __init__(self) -> None:
        import cupy

        from pmpp.runtime import array

        self.recorded: dict[tuple, Replay | None] = {}
        self.seen: set[tuple] = set()
        self.left: dict[str, str] = {}  # operations that are left to their own code, and why
        self.array, self.alloc, self.stream = array.Array, cupy.cuda.alloc, cupy.cuda.get_current_stream
        self.own, self.several = threading.local(), array.several()

    def __call__(self, operation: Callable, arguments: tuple, options: dict) -> typing.Any:
        asked = [operation, self.several and device.current(), *options]
        arrays, pointers, bits, array = [], [], 0, self.array
        # One loop, since every step of a network waits for it once for each operation.
        for one in (*arguments, *options.values()) if options else arguments:
            kind = one.__class__
            if kind is array:
                pointer = one.pointer
                arrays.append(one)
                pointers.append(pointer)
                bits |= pointer
                asked.append(one.layout)
            else:  # the type, since 1, 1.0 and True are equal, and a float's digits, since 0.0 and -0.0 are
                asked.append(kind)
                asked.append(one.hex() if kind is float else one)
        if bits & (ALIGNED - 1):
            asked += [pointer & (ALIGNED - 1) for pointer in pointers]
        key = tuple(asked)
        try:
            replay = self.recorded.get(key, key)
        except TypeError:  # a list, an array of NumPy
            replay = None
        if replay is None or len(pointers) != len(set(pointers)) or self.stream().ptr:
            return operation(*arguments, **options, stream=0)
        if replay is not key:
            try:
                return replay(arrays, pointers, self.alloc, array)
            except RuntimeError:  # the operation's own code says what is wrong
                return operation(*arguments, **options, stream=0)
        if key in self.seen:
            self.record(key, operation, arguments, options)
        elif len(self.seen) >= 4 * KEPT:
            self.seen.clear()
        self.seen.add(key)
        return operation(*arguments, **options, stream=0)

    def record(self, key: tuple, operation: Callable, arguments: tuple, options: dict) -> None:
        """Keep what `Replay` makes of an operation, or None if it cannot be replayed."""
        made = None
        try:
            both = [self.recording(base, operation, arguments, options) for base in (1 << 45, 3 << 44)]
            arrays = sum(type(argument) is self.array for argument in (*arguments, *options.values()))
            made = Replay(*both, inputs=arrays)
        except Unlike as error:
            self.left[f"{operation.__module__}.{operation.__name__}"] = str(error)
        if len(self.recorded) >= KEPT:
            self.recorded.clear()
        self.recorded[key] = made

    def recording(self, base: int, operation: Callable, arguments: tuple, options: dict) -> Recording:
        """The operation on arrays at made-up addresses from ``base`` on. Raises Unlike."""
        import cupy

        from pmpp.runtime import array

        found, step, number = Recording(), 1 + (base >> 44), device.current()

        def place(nbytes: int, beyond: int = 0) -> int:
            """Where memory of that size begins. The distances are others from another base."""
            end = found.begins[-1] + found.nbytes[-1] if found.begins else base
            found.begins.append((end // ALIGNED + step) * ALIGNED + beyond)
            found.nbytes.append(nbytes)
            return found.begins[-1]

        def instead(argument: typing.Any) -> typing.Any:
            if type(argument) is not self.array:
                return argument
            address = place(argument.layout.nbytes, argument.pointer & (ALIGNED - 1))
            return self.array.at(address, argument.layout, None)

        def alloc(nbytes: int) -> typing.Any:
            memory = cupy.cuda.UnownedMemory(place(nbytes), nbytes, found, number)
            return cupy.cuda.MemoryPointer(memory, 0)

        if not hasattr(self.own, "stream"):
            self.own.stream = cupy.cuda.Stream(non_blocking=True)
        stream, graph = self.own.stream, ctypes.c_void_p()
        given = [instead(argument) for argument in arguments]
        named = {name: instead(value) for name, value in options.items()}
        handle = ctypes.c_void_p(stream.ptr)
        why = ""
        with cupy.cuda.using_allocator(alloc), stream, garbage.paused():
            _ask("cuStreamBeginCapture_v2", handle, THIS_THREAD)
            try:
                result = operation(*given, **named, stream=device.as_stream(stream))
            except Exception as error:  # whatever it is: on its own the operation did this before without one
                why = f"{type(error).__name__}: {error}"
            finally:
                if code := array.library().cuStreamEndCapture(handle, ctypes.byref(graph)):
                    why = why or f"the capture was cut short with error {code}"
        try:
            if why:
                raise Unlike(why)
            found.launched = launched_in(graph)
        finally:
            if graph:
                array.library().cuGraphDestroy(graph)
        found.results, found.make = self.described(result)
        return found

    def described(self, result: typing.Any) -> tuple[list, Callable]:
        """A result's arrays, and how it is put together from a list of them."""
        kind = type(result)
        several = list(result) if isinstance(result, tuple) else [result]
        make = getattr(kind, "_make", kind) if isinstance(result, tuple) else _only
        if any(part is not None and type(part) is not self.array for part in several):
            raise Unlike(f"a result that is no array: {kind.__name__}")
        return [None if part is None else (part.pointer, part.layout) for part in several], make


def _only(made: list) -> typing.Any:
    return made[0]
