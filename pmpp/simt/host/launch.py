"""Launching: from a configured call to batches of lanes, and back to the caller's arrays.

Several Python threads may launch at the same time, the same kernel or different ones: each launch is a machine of its
own.  They may read the same arrays; an array that one of them writes is for this one alone, as between two streams of
a GPU.  `record`, `schedule`, `loop_limit` and `batch_lanes` hold for the thread that enters them (they are context
variables): a thread started inside sees none of them, unless it is run in a copy of the context,
`contextvars.copy_context().run(...)`, or Python's threads inherit contexts (as they do in free-threaded builds).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.front.accidental_float64 import Warnings
from pmpp.simt.front.compiler import Function, compile_function
from pmpp.simt.host.arrays import DeviceArray, as_cuda_array, storage_at
from pmpp.simt.host.context import Transfer
from pmpp.simt.host.depth import deep_calls
from pmpp.simt.host.report import Report
from pmpp.simt.machine import engines
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.gpus import DYNAMIC_LIMIT, MAX_THREADS
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.machine import HAZARDS, LEVELS, Launch, Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scheduler import Waiting, checked, grains, hands_over, run_by_turns, run_lockstep
from pmpp.simt.machine.storage import POISON_BYTE, Storage, poison
from pmpp.simt.machine.turns import Waits
from pmpp.simt.observe.checks import Sanitizers
from pmpp.simt.observe.counters import Counters
from pmpp.simt.observe.trace import Trace, Tracing
from pmpp.simt.values import dtypes, records
from pmpp.simt.values.errors import ArgumentError, LaunchError, TraceError

MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_CLUSTER = 16  # blocks, as on an H200

#: Names of `cuda` that order some threads of a block and not the others.
ORDERING = (
    "threadfence", "threadfence_block", "threadfence_system", "syncwarp(mask)", "mbarrier_arrive", "mbarrier_wait",
    "store_release_system", "load_acquire_system",
)  # fmt: skip

#: Where a report is wanted, only what makes the rest meaningless stops the kernel.
_FATAL = frozenset({"out_of_bounds"})

_recording: contextvars.ContextVar[tuple[str, frozenset[str], bool | Tracing, list[Report]] | None] = (
    contextvars.ContextVar("recording", default=None)
)


def dimensions(what: str, extent: Any, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    """A grid or block as three positive ints, or an error that names it."""
    if type(extent) is int and 1 <= extent <= limits[0]:  # most are
        return extent, 1, 1
    parts = extent if isinstance(extent, (tuple, list)) else (extent,)
    if not 1 <= len(parts) <= 3:
        raise LaunchError(f"{what} is {extent!r}; it must be an int or a tuple of one to three ints")
    sizes = []
    for part, limit in zip(parts, limits, strict=False):
        if isinstance(part, bool) or not isinstance(part, (int, np.integer)):
            raise ArgumentError(f"{what} is {extent!r}; its extents must be ints, not {type(part).__name__}")
        if part < 1:
            raise LaunchError(f"{what} is {extent!r}; each extent must be at least 1")
        if part > limit:
            raise LaunchError(f"{what} is {extent!r}; the largest extents are {limits}")
        sizes.append(int(part))
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]


def configure(grid: Any, block: Any, sharedmem: Any = 0) -> tuple[tuple, tuple, int]:
    """Check a launch configuration."""
    grid = dimensions("the grid", grid, MAX_GRID)
    block = dimensions("the block", block, MAX_BLOCK)
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"the block has {threads} threads; a block has at most {MAX_THREADS}")
    if isinstance(sharedmem, bool) or not isinstance(sharedmem, (int, np.integer)) or sharedmem < 0:
        raise LaunchError(f"sharedmem is {sharedmem!r}; it must be a number of bytes, 0 or more")
    if sharedmem > DYNAMIC_LIMIT:
        raise LaunchError(f"sharedmem is {sharedmem:,} bytes; a block has {DYNAMIC_LIMIT:,} at most")
    return grid, block, int(sharedmem)


def _choose(function: Function, args: tuple, signatures: list[list] | None) -> list | None:
    """The first declared signature whose array types fit; a kernel without signatures takes anything."""
    if not signatures:
        return None
    for types in signatures:
        if len(types) != len(args):
            raise ArgumentError(
                f"the signature of {function.name}() declares {len(types)} arguments; {len(args)} were given"
            )
        arrays = [(t, a) for t, a in zip(types, args, strict=True) if hasattr(t, "axes")]
        if all(hasattr(a, "dtype") and a.dtype == t.dtype and a.ndim == t.ndim for t, a in arrays):
            return types
    if len(signatures) == 1:
        return signatures[0]
    given = ", ".join(f"{a.dtype}[{', '.join(':' * a.ndim)}]" if hasattr(a, "ndim") else type(a).__name__ for a in args)
    raise ArgumentError(
        f"No matching definition: no signature of {function.name}() fits the arguments ({given}); "
        f"it declares {signatures}"
    )


class _Arguments:
    """Kernel arguments as values, and what must be copied back to the caller afterwards."""

    def __init__(self, function: Function, args: tuple, signatures: list[list] | None) -> None:
        names = list(function.signature.parameters)
        if len(args) != len(names):
            raise ArgumentError(
                f"{function.name}() takes {len(names)} arguments ({', '.join(names)}), but {len(args)} were given"
            )
        types = _choose(function, args, signatures)
        self.back: list[Callable[[], None]] = []
        self.arrays: list[Array] = []
        self.copied: list[tuple[str, np.ndarray, np.ndarray, bool, Storage]] = []  # what is copied back
        self.values: dict[str, Any] = {}
        for i, (self.name, value) in enumerate(zip(names, args, strict=True)):
            what = f"argument {self.name!r} of {function.name}()"
            self.values[self.name] = self.convert(what, value, types[i] if types else None)

    def convert(self, what: str, value: Any, declared: Any) -> Any:
        if isinstance(value, DeviceArray):
            array = value._argument()
        elif isinstance(value, np.ndarray):
            array = self.host(what, value)
        elif isinstance(value, Transfer):
            if isinstance(value.value, np.ndarray):
                array = self.host(what, value.value, into=value.into, back=value.back)
            else:
                array = as_cuda_array(value.value)._argument()
        elif isinstance(value, np.void) and value.dtype.names:
            array = self.record(what, value)
        elif isinstance(value, tuple):
            parts = [self.convert(what, v, None) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        elif hasattr(value, "copy_to_host") and hasattr(
            value, "copy_to_device"
        ):  # a Numba device array, being profiled
            copy = value.copy_to_host()
            array = self.host(what, copy)
            self.back.append(lambda: value.copy_to_device(copy))
        elif hasattr(value, "__cuda_array_interface__") and hasattr(value, "get") and hasattr(value, "set"):  # CuPy's
            fetched = value.get()
            array = self.host(what, fetched)
            self.back.append(lambda: value.set(fetched))
        elif hasattr(value, "__cuda_array_interface__"):
            array = as_cuda_array(value)._argument()
        elif isinstance(value, enum.Enum) and declared is None:
            return value
        else:
            typed = dtypes.constant(value)
            if typed is None:
                raise ArgumentError(
                    f"{what} is of type {type(value).__name__}; a kernel takes device arrays, NumPy arrays and numbers"
                )
            if declared is not None and not isinstance(declared, np.dtype):
                raise ArgumentError(f"{what} is a number; its signature declares an array")
            return typed if declared is None else dtypes.cast(typed, declared)
        if declared is not None and not hasattr(declared, "axes"):
            raise ArgumentError(f"{what} is an array; its signature declares {declared}")
        if declared is not None and (declared.dtype != array.dtype or declared.ndim != array.ndim):
            raise ArgumentError(f"{what} is a {array.ndim}-D array of {array.dtype}; its signature declares {declared}")
        self.arrays.append(array)
        return array

    def capture(self, contents: list | None, thing: Any) -> Array:
        """A device array that is a global, treated like an argument; `contents` as that method gave them."""
        return self.joined(contents, as_cuda_array(thing)._argument())

    def at(self, contents: list | None, address: int) -> tuple[Storage, int] | None:
        """The allocation that a simulated address lies in, treated like an argument, and the bytes from its start."""
        found = storage_at(address)
        if found is not None:
            storage = found[0]
            self.joined(contents, Array(storage, storage.layout, (), (), 0))
        return found

    def joined(self, contents: list | None, array: Array) -> Array:
        """An array that the launch came upon after it had begun, as one of its arguments."""
        if all(array.storage is not known.storage for known in self.arrays):
            self.arrays.append(array)
            if contents is not None:
                contents.append(array.storage.contents())
        return array

    def contents(self) -> list:
        """Copies of what the arrays hold, for a launch that may have to begin again."""
        return [array.storage.contents() for array in self.arrays]

    def restore(self, contents: list) -> None:
        """Put back what `contents` kept."""
        for array, kept in zip(self.arrays, contents, strict=True):
            array.storage.restore(kept)

    def launch_ended(self, level: str) -> None:
        """Keep account of what the launch has written."""
        for array in self.arrays:
            array.storage.launch_ended(checked=level == "check")

    def host(self, what: str, value: np.ndarray, *, into: bool = True, back: bool = True) -> Array:
        """A host array is copied to the device, and back when the kernel is done, as Numba does."""
        if not records.supported(value.dtype):
            raise ArgumentError(f"{what} holds {value.dtype}; a kernel takes numbers, and records of numbers")
        if not (value.flags.c_contiguous or value.flags.f_contiguous):
            raise LaunchError(
                f"{what} is not contiguous (strides {value.strides}); copy it with np.ascontiguousarray first"
            )
        copy = value.astype(records.plain(value.dtype), order="K", subok=False)
        if not into:
            copy[...] = poison(copy.shape, copy.dtype)
        back = back and value.flags.writeable
        if back:
            self.back.append(lambda: np.copyto(value, copy))  # in the order of the arguments, as Numba
        elif not value.flags.writeable:
            copy.flags.writeable = False
        array = DeviceArray.holding(copy, fresh=not into)._argument()
        if back:
            self.copied.append((self.name, value, copy, into, array.storage))
        return array

    def lost_writes(self, m: Machine) -> None:
        """Report what the kernel wrote to a host array, and what copying back a later argument will overwrite.

        Each argument is copied to the device and back for itself, in their order, also where two of them are the same
        memory of the host.  Nothing is lost where the later argument holds the same, or where nothing has changed.
        """
        for i, (name, value, copy, into, storage) in enumerate(self.copied):
            wrote, start = _bytes(copy), value.__array_interface__["data"][0]
            before = _bytes(value) if into else np.uint8(POISON_BYTE)
            after, by = wrote, ""
            for other, second, copy_of_second, *_ in self.copied[i + 1 :]:
                if np.may_share_memory(value, second):
                    apart = second.__array_interface__["data"][0] - start
                    low, high = max(0, apart), min(value.nbytes, apart + second.nbytes)
                    after, by = after.copy() if after is wrote else after, other
                    after[low:high] = _bytes(copy_of_second)[low - apart : high - apart]
            for byte in np.flatnonzero((after != wrote) & (wrote != before)) if by else ():
                found = m.checks.last_write(storage, int(byte))
                if found is not None:
                    line, thread = found
                    said = (
                        f"{{who}} writes an element of {{name}}, and the write is lost: {by} is the same memory of the "
                        "host, and a launch copies each argument to the GPU, and back when it ends, one after the "
                        "other. Pass one device array for both, or a copy"
                    )
                    m.hazard_of("lost_write", "global", name, line, m.thread_of(thread), said)
                    break

    def record(self, what: str, value: np.void) -> Array:
        """One record of host memory goes to the device and back, like an array of one."""
        one = np.array([value], records.plain(value.dtype))
        array = self.host(what, one)

        def back() -> None:
            for name in one.dtype.names:
                value[name] = one[0][name]

        self.back.append(back)
        return Array(array.storage, array.dtype, (), (), 0)


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, as they lie in memory."""
    return array.reshape(-1, order="A" if array.ndim < 2 or array.flags.c_contiguous else "F").view(np.uint8)


def launch(
    py_func: Callable,
    grid: Any,
    block: Any,
    args: tuple,
    *,
    level: str,
    raises: frozenset[str],
    sharedmem: Any = 0,
    signatures: list | None = None,
    schedule: str | None = None,
    seed: int = 0,
    trace: bool | Tracing = False,
    counted: bool = True,
    cluster: int = 1,
) -> Report:
    """Run a kernel at a level and return its report; arrays are changed in place.

    `counted` is False where nobody sees the report: hazards are looked for, and nothing is counted.
    """
    if level not in LEVELS:
        raise LaunchError(f"level is {level!r}; it must be one of {', '.join(LEVELS)}")
    grid, block, sharedmem = configure(grid, block, sharedmem)
    _check_cluster(cluster, grid, trace)
    name, seed = checked(schedule, seed)
    function = compile_function(py_func)
    arguments = _Arguments(function, args, signatures)
    uses, waits, local_bytes = function.facts
    again = name == "auto" and waits and not hands_over(uses)
    kept = arguments.contents() if again else None
    attempts = grains(name, uses) if again or name != "auto" or hands_over(uses) else ("lockstep",)
    if cluster > 1 and not uses.isdisjoint(("this_grid", "cg.this_grid")):
        raise LaunchError(f"{function.name} waits for the whole grid: it cannot be launched in clusters")
    told = Launch(
        function.name, function.file, function.source_file, grid, block, level, raises, sharedmem,
        cooperative=not uses.isdisjoint(("this_grid", "cg.this_grid")),
        cluster=int(cluster),
        local_bytes=local_bytes,
        orders_some=not uses.isdisjoint(ORDERING),
        multiplies_tiles=any(used.startswith(("bulk_", "wgmma")) for used in uses),
        arguments=arguments.values,
        capture=functools.partial(arguments.capture, kept),
        at=functools.partial(arguments.at, kept),
        looks=_looks(function) if level == "check" else (frozenset(), frozenset()),
    )  # fmt: skip
    try:
        with deep_calls() if function.callees else contextlib.nullcontext():
            for grain in attempts:
                shown = f"shuffled, seed {seed}" if grain == "shuffled" else grain
                begins_again = again and grain == "lockstep"
                same = shown == told.schedule and begins_again == told.can_begin_again
                m = Machine(told if same else dataclasses.replace(told, schedule=shown, can_begin_again=begins_again))
                try:
                    watch(m, trace, args, counted)
                    execute(m, function, grain, seed)
                    if m.checks is not None and len(arguments.copied) > 1:
                        arguments.lost_writes(m)
                    report = Report(m, (function.source_file, function.first_line, function.last_line))
                    break
                except Waiting:
                    if grain == attempts[-1]:
                        raise
                    arguments.launch_ended(level)
                    arguments.restore(kept)
                finally:
                    m.unplug()
    finally:
        arguments.launch_ended(level)
    for copy_back in arguments.back:
        copy_back()
    return report


def _check_cluster(cluster: Any, grid: tuple[int, int, int], trace: bool | Tracing) -> None:
    """Refuse clusters that a GPU would not launch, and what cannot be done with them."""
    if isinstance(cluster, bool) or not isinstance(cluster, (int, np.integer)) or not 1 <= cluster <= MAX_CLUSTER:
        raise LaunchError(f"cluster is {cluster!r}; it must be a number of blocks, from 1 to {MAX_CLUSTER}")
    if grid[0] % cluster:
        raise LaunchError(f"the grid is {grid}; its first extent must be a multiple of the cluster's {cluster} blocks")
    if cluster > 1 and getattr(trace, "contents", 0):  # what one block stores in another's memory is not traced
        raise TraceError("what memory holds cannot be traced of a launch in clusters")


def _looks(function: Function) -> tuple[frozenset[int], frozenset[int]]:
    """Lines where a plain read does not race with atomics: of the kernel's file, and of other files."""
    own, others = set(), set()
    for file, line in function.looks():
        (own if file == function.source_file else others).add(line)
    return frozenset(own), frozenset(others)


def watch(m: Machine, trace: bool | Tracing, given: tuple, counted: bool) -> None:
    """Plug in the observers that the launch's level asks for; `given` are the arguments as the caller passed them."""
    if m.launch.level != "run" and counted:
        m.counts, m.warnings = Counters(m), Warnings()
    if m.launch.level == "check":
        m.checks = Sanitizers(m)
    if trace is not False:
        m.trace = Trace(trace, m, given)


def execute(m: Machine, function: Function, grain: str, seed: int) -> None:
    """Run the kernel: all lanes of a batch in lockstep, or blocks, warps or lanes by turns."""

    def run(mask: Mask) -> Waits:
        frame = Frame(m, function, mask)
        frame.vars.update(m.launch.arguments)
        if function.suspends:
            yield from function.body(frame)
        else:
            function.body(frame)
        if m.batch.engines is not None:
            engines.ends(m, mask)
        return frame.returned

    with np.errstate(all="ignore"):
        if grain == "lockstep":
            run_lockstep(m, run)
        else:
            run_by_turns(m, run, grain, seed, function.facts[0])


def plain_launch(
    py_func: Callable,
    grid: Any,
    block: Any,
    args: tuple,
    sharedmem: Any,
    signatures: list | None,
    cluster: int = 1,
) -> None:
    """`kernel[grid, block](...)`: at the level of the enclosing `record`, else of the environment."""
    recording = _recording.get()
    if recording is not None:
        level, raises, trace, reports = recording
        reports.append(
            launch(
                py_func, grid, block, args, level=level, raises=raises, sharedmem=sharedmem, signatures=signatures,
                trace=trace, cluster=cluster,
            )
        )  # fmt: skip
        return
    level = "check" if os.environ.get("PMPP_CHECK", "") not in ("", "0") else "run"
    launch(
        py_func, grid, block, args, level=level, raises=HAZARDS, sharedmem=sharedmem, signatures=signatures,
        counted=False, cluster=cluster,
    )  # fmt: skip


class Clusters(int):
    """A grid of so many blocks along x, `size` of them a cluster: for those who can say the grid alone.

    >>> Clusters(12, 4), Clusters(12, 4).size
    (12, 4)
    """

    size: int

    def __new__(cls, blocks: int, size: int) -> Clusters:
        made = super().__new__(cls, blocks)
        made.size = size
        return made

    def __getnewargs__(self) -> tuple[int, int]:
        return int(self), self.size


def profile(
    kernel: Any,
    grid: Any,
    block: Any,
    args: tuple,
    *,
    level: str = "count",
    sharedmem: int = 0,
    collect: bool = False,
    schedule: str | None = None,
    seed: int = 0,
    trace: bool | Tracing = False,
    cluster: int = 1,
) -> Report:
    """Run a kernel in the interpreter and report what it did.

    kernel   a kernel of the interpreter, of Numba (its source is interpreted), or a plain function
    grid     blocks, an int or a tuple of up to three; or Clusters(blocks, size)
    block    threads a block, likewise
    args     its arguments; arrays are changed as by a real launch
    level    "run" (results only), "count" (and counters), "check" (and hazards)
    collect  gather accesses out of bounds in `report.hazards` too: the load gives 0, the store is dropped
    schedule, seed  who runs when, as in `simt.schedule`; "shuffled" runs warps in random order between barriers
    trace    keep who touched what in `report.trace`: of block 0 if True, of others with simt.Tracing; TraceError if
             that takes more than its limit of memory; accesses by `map_shared_rank` are not in it
    cluster  blocks of a cluster, as in pmpp.runtime.clusters

    Hazards are in `report.hazards`, the first of a kind on each line; but an access out of bounds raises
    OutOfBoundsError unless told to collect.  Also raises LaunchError, ArgumentError and UnsupportedError.
    """
    py_func = getattr(kernel, "py_func", kernel)
    if not inspect.isfunction(py_func):
        raise ArgumentError(
            f"kernel is {type(kernel).__name__}; it must be a kernel made with @cuda.jit, or a function"
        )
    if not isinstance(args, (tuple, list)):
        raise ArgumentError(f"args is {type(args).__name__}; it must be a tuple of the kernel's arguments")
    raises = frozenset() if collect else _FATAL
    cluster = grid.size if isinstance(grid, Clusters) else cluster
    return launch(
        py_func,
        grid,
        block,
        tuple(args),
        level=level,
        raises=raises,
        sharedmem=sharedmem,
        schedule=schedule,
        seed=seed,
        trace=trace,
        cluster=cluster,
    )


@contextlib.contextmanager
def record(level: str = "count", collect: bool = True, trace: bool | Tracing = False) -> Iterator[list[Report]]:
    """Record every launch inside the block: `with simt.record() as reports: shuffle(x)`.

    Launches of other threads are not recorded: see the top of this file.

    `collect` and `trace` are as in `profile`.
    """
    reports: list[Report] = []
    token = _recording.set((level, frozenset() if collect else _FATAL, trace, reports))
    try:
        yield reports
    finally:
        _recording.reset(token)
