"""Tracing: a function runs once, on values that have no elements and note what is done with them.

A `Value` answers to Python's operators and to NumPy's functions. So a function for NumPy arrays can be traced as it is:
NumPy itself hands the call to the value (``__array_ufunc__`` and ``__array_function__``, NEP 13 and NEP 18). Each
operation becomes a value again, and the values become a `Graph`. Nothing is computed.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence

import numpy as np

#: What can be traced: NumPy's name of an operation, and how a kernel computes it. One that needs no more than a line of
#: source for a number needs no more than a line here.
OPERATIONS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "{} / {}",
    "power": "math.pow({}, {})",
    "negative": "-{}",
    "absolute": "abs({})",
    "exp": "math.exp({})",
    "log": "math.log({})",
    "sqrt": "math.sqrt({})",
    "tanh": "math.tanh({})",
    "maximum": "{0} if {0} > {1} or {0} != {0} else {1}",  # of a NaN nothing is true but that it differs from itself
    "minimum": "{0} if {0} < {1} or {0} != {0} else {1}",
    "greater": "ONE if {} > {} else ZERO",
    "greater_equal": "ONE if {} >= {} else ZERO",
    "less": "ONE if {} < {} else ZERO",
    "less_equal": "ONE if {} <= {} else ZERO",
    "equal": "ONE if {} == {} else ZERO",
    "where": "{1} if {0} != ZERO else {2}",
}
REDUCTIONS = ("sum", "max")  # along the last axis; a mean is a sum and a division


class TraceError(TypeError):
    """The function does something that cannot become part of a kernel."""


class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """What an operation will compute. ``shape`` is known, the elements are not.

    Attributes:
        op: "input", "constant", or a key of `OPERATIONS` or `REDUCTIONS`.
        operands: the values that it is computed from.
        shape: as in NumPy; () for a number.
        detail: of an input its name, of a constant the number.
        number: its place in the graph; operands come before what is computed from them.
    """

    def __init__(self, graph: Graph, op: str, operands: tuple[Value, ...], shape: tuple, detail: typing.Any) -> None:
        self.graph, self.op, self.operands, self.shape, self.detail = graph, op, operands, shape, detail
        self.number = len(graph.values)

    __hash__ = object.__hash__  # ``==`` is an operation on elements, as in NumPy

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        made = self.detail if self.op in ("input", "constant") else ", ".join(f"%{x.number}" for x in self.operands)
        return f"%{self.number} = {self.op}({made}), shape {self.shape}"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: typing.Any, **options: typing.Any) -> Value:
        if options.get("out"):
            raise TraceError(f"np.{ufunc.__name__} into an array, as in x += y, cannot be traced: write x = x + y")
        if method != "__call__" or options or ufunc.__name__ not in OPERATIONS:
            name = (
                ufunc.__name__ + (f".{method}" if method != "__call__" else "") + (" with options" if options else "")
            )
            raise TraceError(
                f"np.{name} cannot be traced; what can be: {', '.join([*OPERATIONS, *REDUCTIONS, 'mean'])}"
            )
        return self.graph.apply(ufunc.__name__, inputs)

    def __array_function__(self, function: Callable, types: typing.Any, args: tuple, options: dict) -> Value:
        name = {"amax": "max"}.get(function.__name__, function.__name__)
        if name in ("sum", "mean", "max") and isinstance(args[0], Value):
            return getattr(args[0], name)(*args[1:], **options)
        if name != "where" or len(args) != 3 or options:
            raise TraceError(f"np.{function.__name__} cannot be traced with these arguments, or not at all")
        return self.graph.apply("where", args)

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The sum along the last axis, which stays, with the extent 1."""
        return self._reduced("sum", axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The largest element along the last axis; NaN if one is NaN."""
        return self._reduced("max", axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The sum, divided by how many elements there are."""
        return self._reduced("sum", axis, keepdims) / self.shape[-1]

    def _reduced(self, op: str, axis: int | None, keepdims: bool) -> Value:
        if not self.shape:
            raise TraceError(f"{op} of a number: there is no axis")
        if axis not in (-1, self.ndim - 1) or keepdims is not True:
            was = f"axis={axis}, keepdims={keepdims}"
            raise TraceError(f"{op} must go along the last axis and keep it: axis=-1, keepdims=True; had {was}")
        if not self.shape[-1]:
            raise ValueError(f"{op} of no elements: the shape was {self.shape}")
        return self.graph.note(op, (self,), (*self.shape[:-1], 1))

    def _refuse(self, what: str, instead: str) -> typing.NoReturn:
        raise TraceError(f"{what} of {self!r} is not known while the function is traced: {instead}")

    def __bool__(self) -> bool:  # noqa: PLE0304  it never returns
        self._refuse("the truth", "a kernel has no way back to this `if`, `while`, `and` or `max()`; use np.where")

    def __float__(self) -> float:
        self._refuse("the number", "keep it as a value")

    __int__ = __index__ = __float__

    def __iter__(self) -> typing.Iterator:
        self._refuse("an element", "only whole values can be used")

    def __getitem__(self, key: typing.Any) -> typing.NoReturn:
        self._refuse("a part", "pass the part as an argument")

    def __array__(self, *options: typing.Any, **more: typing.Any) -> np.ndarray:
        self._refuse("the array", "use NumPy's elementwise functions on the value itself")


class Graph:
    """All values of a traced function in the order in which they were made, its inputs and its results.

    The same operation on the same values is one value: a common subexpression is computed once.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.results: list[Value] = []
        self._known: dict[tuple, Value] = {}

    def note(self, op: str, operands: tuple[Value, ...], shape: tuple, detail: typing.Any = None) -> Value:
        """The value of an operation: the one that is there, or a new one."""
        key = op, tuple(value.number for value in operands), repr(detail)
        if key not in self._known:
            self._known[key] = Value(self, op, operands, shape, detail)
            self.values.append(self._known[key])
        return self._known[key]

    def apply(self, op: str, given: Sequence[typing.Any]) -> Value:
        """An elementwise operation on values and numbers."""
        operands = tuple(self._value(op, one) for one in given)
        if op == "power" and operands[1].op == "constant" and operands[1].detail in (2, 3):
            square = self.apply("multiply", (operands[0], operands[0]))  # pow takes dozens of instructions
            return square if operands[1].detail == 2 else self.apply("multiply", (square, operands[0]))
        try:
            shape = np.broadcast_shapes(*(value.shape for value in operands))
        except ValueError:
            words = " and ".join(str(value.shape) for value in operands)
            raise ValueError(f"{op}: the shapes {words} do not broadcast: from the last axis on, extents must be "
                             "equal, or 1") from None  # fmt: skip
        return self.note(op, operands, shape)

    def _value(self, op: str, given: typing.Any) -> Value:
        if isinstance(given, Value):
            if given.graph is not self:
                raise TraceError(f"{op}: {given!r} is of a function that was traced before")
            return given
        if isinstance(given, bool | int | float | np.number | np.bool_) and not isinstance(given, np.complexfloating):
            return self.note("constant", (), (), float(given))
        kind = f"{type(given).__module__}.{type(given).__qualname__}".removeprefix("builtins.")
        raise TraceError(f"{op}: {kind} cannot be traced; an array must be an argument of the function")


def trace(function: Callable, names: Sequence[str], shapes: Sequence[tuple]) -> Graph:
    """What ``function`` does with arguments of these shapes; () stands for a number.

    >>> graph = trace(lambda x: (x + 1) * (x + 1), ["x"], [(8,)])
    >>> print(*graph.values, sep="\\n")
    %0 = input(x), shape (8,)
    %1 = constant(1.0), shape ()
    %2 = add(%0, %1), shape (8,)
    %3 = multiply(%2, %2), shape (8,)
    """
    graph = Graph()
    for name, shape in zip(names, shapes, strict=True):
        graph.inputs.append(graph.note("input", (), tuple(shape), name))
    returned = function(*graph.inputs)
    for value in returned if isinstance(returned, tuple | list) else [returned]:
        if not isinstance(value, Value) or value.graph is not graph or not value.shape:
            raise TraceError(f"the function must return arrays that it computes from its arguments, returned {value!r}")
        graph.results.append(value)
    return graph


def ancestors(targets: Iterable[Value], stop: Callable[[Value], bool] = lambda value: False) -> list[Value]:
    """The targets and all that they are computed from, operands first; nothing behind a stop."""
    found, pending = set(), list(targets)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += () if stop(value) else value.operands
    return sorted(found, key=lambda value: value.number)
