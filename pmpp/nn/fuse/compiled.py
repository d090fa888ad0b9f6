"""From a function to launched kernels, and what is remembered in between."""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.nn.fuse.group import Part, fused
from pmpp.nn.fuse.source import Writer, Written
from pmpp.nn.fuse.tracing import Graph, TraceError, Value, trace
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.vector import width_of

DTYPES = ("float32", "float64")
KEPT = 256  # programs a function, and kernels in all


@functools.lru_cache(KEPT)
def kernel_of(source: str, name: str) -> typing.Any:
    """The kernel in a source. Two functions with the same source share it: it is compiled once.

    `linecache` holds the source as if it were a file. The interpreter reads it there, as it reads every kernel, and so
    does Python for a traceback.
    """
    file = f"generated/{name}_{len(FILES)}.py"
    FILES.append(file)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, typing.Any] = {"__name__": "pmpp.nn.fuse.generated"}
    exec(compile(source, file, "exec"), scope)
    return scope[name]


FILES: list[str] = []  # the names that were given so far


class Program(typing.NamedTuple):
    """The kernels of a function for arguments of given shapes.

    ``nbytes``: what they read and write at least, together; a row that is read again is not in it.
    """

    graph: Graph
    parts: tuple[Part, ...]
    written: tuple[Written, ...]
    kernels: tuple[typing.Any, ...]
    dtype: np.dtype
    nbytes: int

    @property
    def source(self) -> str:
        """The source of all kernels."""
        return "\n\n".join(one.source for one in self.written)


class Fused:
    """A function that runs as generated kernels. Made by `fuse`."""

    def __init__(self, function: Callable, rule: Callable[[Graph], list[Part]]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.rule = function, rule
        self.names = list(inspect.signature(function).parameters)
        self._programs: dict[tuple, Program] = {}

    def __call__(self, *arguments: typing.Any, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
        """Run on arrays and numbers, without waiting for the end.

        Args:
            arguments: those of the function: arrays of float32, or of float64, in C order, or numbers.
            out: a device array for the result, for several results a tuple of them; None to allocate. Where the whole
                function is one kernel, it may be an argument that has its shape: each thread reads before it writes.
            stream: the stream to work on.
        """
        stream, given = device.as_stream(stream), self._checked(arguments, stream)
        aligned = all(device.address(x) % 16 == 0 for x in given if hasattr(x, "shape") and x.shape)
        several = isinstance(out, tuple | list)
        outs = list(out) if several else [out]
        aligned = aligned and all(device.address(x) % 16 == 0 for x in outs if hasattr(x, "copy_to_host"))
        program = self._program(given, aligned)
        inputs = dict(zip(program.graph.inputs, given, strict=True))
        arrays = {value: array for value, array in inputs.items() if value.shape}
        outs = outs if out is not None else [None] * len(program.graph.results)
        if len(outs) != len(program.graph.results):
            raise ValueError(f"out must have {len(program.graph.results)} arrays, had {len(outs)}")
        made: dict[Value, typing.Any] = {}
        for k, (value, into) in enumerate(zip(program.graph.results, outs, strict=True)):
            if value in made and into is None:
                continue
            apart = {one.detail: array for one, array in arrays.items()}
            apart |= {f"out[{i}]": array for i, array in enumerate(made.values())}
            space = program.parts[0].space if len(program.parts) == 1 else None
            may_be = tuple(one.detail for one in arrays if one.shape == space)
            name = f"out[{k}]" if several else "out"
            made[value] = device.as_output(
                name, into, shape=value.shape, dtype=program.dtype, apart=apart if into is not None else {},
                may_be=may_be, stream=stream,
            )  # fmt: skip
        self._launch(program, inputs, dict(made), stream)
        results = tuple(made[value] for value in program.graph.results)
        return results if len(results) > 1 else results[0]

    def program(self, *arguments: typing.Any) -> Program:
        """The kernels for such arguments. Their source is ``program.source``; nothing is launched."""
        return self._program(self._checked(arguments, 0), True)

    def _checked(self, arguments: tuple, stream: typing.Any) -> list:
        if len(arguments) != len(self.names):
            raise TypeError(f"{self.__name__} takes {', '.join(self.names)}, had {len(arguments)} arguments")
        dtypes: typing.Any = DTYPES
        given, first = [], ""
        for name, x in zip(self.names, arguments, strict=True):
            if isinstance(x, int | float | np.number) and not hasattr(x, "copy_to_host"):
                given.append(x)
                continue
            try:
                x = device.as_input(name, x, dtypes=dtypes, stream=stream)
            except TypeError as error:
                raise TypeError(f"{error}{first and f', the dtype of {first}'}") from None
            dtypes, first = x.dtype, first or name
            given.append(x)
        if not first:
            raise TypeError(f"{self.__name__} needs at least one array")
        return [x if hasattr(x, "copy_to_host") else as_number(n, x, dtype=dtypes.type)
                for n, x in zip(self.names, given, strict=True)]  # fmt: skip

    def _program(self, given: list, aligned: bool) -> Program:
        shapes = tuple(x.shape if hasattr(x, "copy_to_host") else () for x in given)
        dtype = next(x.dtype for x, shape in zip(given, shapes, strict=True) if shape)
        key = shapes, dtype, aligned
        if key not in self._programs:
            if len(self._programs) >= KEPT:
                self._programs.clear()
            self._programs[key] = self._compiled(shapes, dtype, aligned)
        return self._programs[key]

    def _compiled(self, shapes: tuple, dtype: np.dtype, aligned: bool) -> Program:
        try:
            graph = trace(self.function, self.names, shapes)
        except (TraceError, ValueError) as error:
            raise type(error)(f"{self.__name__}: {error}") from error
        parts = tuple(self.rule(graph))
        written, kernels, stored, nbytes = [], [], set(), 0
        for k, part in enumerate(parts):
            name = f"{self.__name__.strip('<>')}_{k}" if len(parts) > 1 else f"{self.__name__.strip('<>')}_kernel"
            wide = width_of(dtype) if aligned else 1
            one = Writer(name, part, stored, dtype.name, wide)
            if wide > 1 and one.granule() % wide:
                one = Writer(name, part, stored, dtype.name, 1)
            written.append(one.write())
            kernels.append(kernel_of(written[-1].source, name))
            moved = [*written[-1].loads, *part.targets]
            nbytes += dtype.itemsize * sum(math.prod(value.shape) for value in moved)
            stored |= set(part.targets)
        return Program(graph, parts, tuple(written), tuple(kernels), dtype, nbytes)

    def _launch(self, program: Program, inputs: dict, arrays: dict, stream: typing.Any) -> None:
        """``arrays``: for results, where to write. What only later kernels read is made here, until the last has."""
        last = {value: k for k, one in enumerate(program.written) for value in one.loads}
        results = set(program.graph.results)
        for k, (one, kernel) in enumerate(zip(program.written, program.kernels, strict=True)):
            for value in one.targets:
                if value not in arrays:
                    arrays[value] = device.empty(value.shape, program.dtype, stream=stream)
            if one.grid:
                read = [inputs[v] if v.op == "input" else arrays[v] for v in one.loads]
                flat = [x.reshape(x.size) for x in (*read, *(arrays[v] for v in one.targets))]
                numbers = [inputs[value] for value in one.numbers]
                where = kernel[one.grid, one.block, stream]
                where(*flat[: len(read)], *numbers, *flat[len(read) :], one.extent)
                del read, flat
            for value in one.loads:
                if last[value] == k and value not in results:
                    arrays.pop(value, None)


def fuse(function: Callable | None = None, *, rule: Callable[[Graph], list[Part]] = fused) -> typing.Any:
    """Make a function of NumPy's elementwise operations run as few kernels.

    Args:
        function: takes arrays and numbers, and returns an array or a tuple of arrays. It may use what
            `OPERATIONS` and `REDUCTIONS` of `pmpp.nn.fuse.tracing` name; reductions go along the last axis and keep it.
            It is called once for each combination of shapes, dtype and alignment, on values without elements.
        rule: which operations share a kernel; see `pmpp.nn.fuse.group`.

    Returns a `Fused`, which is called as the function is. A number that is an argument may change from call to call. A
    number in the function's text becomes part of the kernel. Comparisons give 1 and 0.
    Raises TraceError, TypeError or ValueError, at the first call, for what cannot become a kernel.

    >>> @fuse
    ... def swish(x):
    ...     return x / (1 + np.exp(-x))
    >>> swish(np.float32([0, 100])).copy_to_host()
    array([  0., 100.], dtype=float32)
    """
    return functools.partial(fuse, rule=rule) if function is None else Fused(function, rule)
