"""Frames, variables and control flow: who executes what, and which lanes hold which value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmpp.simt import dtypes, machine, memory
from pmpp.simt.errors import ArgumentError, SimtError, UnsupportedError
from pmpp.simt.lanes import Mask, union
from pmpp.simt.machine import Machine
from pmpp.simt.memory import Array, Storage

#: Device functions may call themselves, to this depth.
CALL_DEPTH = 128


class Loop:
    """Lanes that have left the innermost loop, or this round of it."""

    __slots__ = ("broken", "continued")

    def __init__(self) -> None:
        self.broken: Mask | None = None
        self.continued: Mask | None = None


class Frame:
    """One activation of a function by a set of lanes."""

    __slots__ = (
        "arrays", "caller", "depth", "entry", "function", "live", "loops", "m", "mask", "partial", "returned", "site", "value", "vars",
    )  # fmt: skip

    def __init__(
        self, m: Machine, function: Any, mask: Mask, caller: Frame | None = None, site: int | None = None
    ) -> None:
        self.m, self.function, self.caller, self.site = m, function, caller, site
        self.depth = 0 if caller is None else caller.depth + 1
        self.vars: dict[str, Any] = {}
        self.partial: dict[str, Mask] = {}  # lanes in which a variable has a value, when that is not all of them
        self.mask: Mask | None = mask  # lanes that execute now
        self.live = mask  # lanes that have not returned, as of the last statement outside any branch
        self.returned: Mask | None = None
        self.value: Any = None
        self.loops: list[Loop] = []
        self.arrays: dict[int, Array] = {}  # local arrays, by call site


@dataclass(frozen=True)
class Range:
    """`range(start, stop, step)` with typed, possibly lane-varying bounds."""

    start: Any
    stop: Any
    step: Any
    dtype: np.dtype


class GridGroup:
    """What `cuda.cg.this_grid()` returns."""


# -- variables -----------------------------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """A typed scalar or lane array, not an array reference, tuple or type."""
    return isinstance(value, (np.generic, np.ndarray))


def read_variable(f: Frame, name: str, line: int) -> Any:
    """The value of a local variable; an error where an active lane never assigned it."""
    try:
        value = f.vars[name]
    except KeyError:
        raise f.m.error(f"the variable {name!r} is read before it is assigned", line, UnsupportedError) from None
    if f.partial:
        defined = f.partial.get(name)
        if defined is not None and f.mask is not None and not defined.covers(f.mask):
            missing = f.mask.without(defined.bits)
            lane = int(np.argmax(missing.grid()))
            f.m.hazard("uninitialised_read", "register", name, line, lane,
                       f"{{who}} reads {name}, which it never assigned (it was assigned on another branch)")  # fmt: skip
    return value


def assign(f: Frame, name: str, value: Any, line: int) -> None:
    """Assign under the mask; where only some lanes assign, the others keep what they had."""
    if value is None:
        raise f.m.error(f"{name} is assigned the result of something that returns nothing", line, UnsupportedError)
    mask, variables = f.mask, f.vars
    if mask is None:
        return
    if mask is f.live:
        variables[name] = value
        if f.partial:
            f.partial.pop(name, None)
        return
    defined = f.partial.get(name)
    if name not in variables or (defined is not None and mask.covers(defined)):
        variables[name] = value
        f.partial[name] = mask
        return
    variables[name] = select(f, mask.bits, value, variables[name], line)
    if defined is not None:
        both = union(defined, mask)
        if both.covers(f.live):
            del f.partial[name]
        else:
            f.partial[name] = both


def select(f: Frame, bits: np.ndarray | None, a: Any, b: Any, line: int) -> Any:
    """`a` in the lanes of `bits`, `b` in the others, in the type that Numba gives a variable with both."""
    if a is b or bits is None:
        return a
    if is_number(a) and is_number(b):
        dtype = dtypes.unify(a.dtype, b.dtype)
        a, b = dtypes.cast(a, dtype), dtypes.cast(b, dtype)
        if isinstance(a, np.generic) and isinstance(b, np.generic) and a == b:
            return a
        return np.where(bits, a, b)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(select(f, bits, x, y, line) for x, y in zip(a, b, strict=True))
    if isinstance(a, Array) and isinstance(b, Array):
        same = a.storage is b.storage and a.strides == b.strides and a.shape == b.shape
        if same:
            return Array(a.storage, a.dtype, a.shape, a.strides, np.where(bits, a.offset, b.offset))
        raise f.m.error(
            "lanes of one batch hold different arrays in one variable; index one array instead", line, UnsupportedError
        )
    raise f.m.error(f"cannot hold {kind_of(a)} in some lanes and {kind_of(b)} in others", line, UnsupportedError)


def kind_of(value: Any) -> str:
    """What a value is, in a reader's words."""
    if is_number(value):
        return str(value.dtype)
    if isinstance(value, Array):
        return f"a {value.ndim}-D array of {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "nothing" if value is None else type(value).__name__


def bad_operands(f: Frame, operator: str, a: Any, b: Any, line: int) -> SimtError:
    """The error for an operator that does not take these operands."""
    words = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "LShift": "<<",
             "RShift": ">>", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "USub": "-", "UAdd": "+", "Invert": "~", "Not": "not",
             "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!="}  # fmt: skip
    operands = kind_of(a) if b is None else f"{kind_of(a)} and {kind_of(b)}"
    hint = "; a kernel works on elements: index the array" if isinstance(a, Array) or isinstance(b, Array) else ""
    return f.m.error(
        f"the operator {words.get(operator, operator)} does not take {operands}{hint}", line, UnsupportedError
    )


def inplace_division(operate: Callable) -> Callable:
    """`a /= b`: Numba does not compile it for two integers, because the result is a float."""

    def divide(f: Frame, a: Any, b: Any, line: int) -> Any:
        if is_number(a) and is_number(b) and dtypes.is_int(a.dtype) and dtypes.is_int(b.dtype):
            raise f.m.error("/= on two integers does not compile in Numba: write x = x / y, or x //= y", line, UnsupportedError)
        return operate(f, a, b, line)

    return divide


def unpack(f: Frame, value: Any, count: int, line: int) -> tuple:
    """Split a tuple over `count` targets."""
    if not isinstance(value, tuple):
        raise f.m.error(f"cannot unpack {kind_of(value)}", line, UnsupportedError)
    if len(value) != count:
        raise f.m.error(f"a tuple of {len(value)} cannot be unpacked into {count} names", line, UnsupportedError)
    return value


def condition(f: Frame, value: Any, line: int) -> np.ndarray | np.bool_:
    """A value as a condition: a NumPy bool where it is the same for every lane, else an array of bools."""
    if not is_number(value):
        if value is None or isinstance(value, (bool, str)):
            return np.bool_(bool(value))
        raise f.m.error(f"{kind_of(value)} is not a condition", line, UnsupportedError)
    value = dtypes.truth(value)
    return value.reshape(-1)[0] if value.size == 1 else value


# -- expressions that choose lanes ---------------------------------------------------------------------------------------


def short_circuit(f: Frame, parts: list[Callable], is_and: bool) -> Any:
    """`a and b`, `a or b`: the right side runs only in the lanes that the left side leaves undecided."""
    outer, line = f.mask, f.m.line
    result = parts[0](f)
    try:
        for part in parts[1:]:
            c = condition(f, result, line)
            if isinstance(c, np.bool_):
                if bool(c) != is_and:
                    return result
                result = part(f)
                continue
            undecided, _ = f.mask.split(c if is_and else ~c)
            if undecided is None:
                return result
            f.mask = undecided
            value = part(f)
            result = select(f, c if is_and else ~c, value, result, line)
    finally:
        f.mask = outer
    return result


def conditional(f: Frame, test: Callable, yes: Callable, no: Callable, line: int) -> Any:
    """`a if test else b`, each side evaluated only in its lanes."""
    outer = f.mask
    c = condition(f, test(f), line)
    if isinstance(c, np.bool_):
        return yes(f) if c else no(f)
    true, false = outer.split(c)
    if true is None or false is None:
        return no(f) if true is None else yes(f)
    try:
        f.mask = true
        a = yes(f)
        f.mask = false
        b = no(f)
    finally:
        f.mask = outer
    return select(f, c, a, b, line)


def contains(f: Frame, a: Any, b: Any, wanted: bool, line: int) -> Any:
    """`a in (x, y, z)`."""
    if not isinstance(b, tuple):
        raise f.m.error(f"`in` takes a tuple, not {kind_of(b)}", line, UnsupportedError)
    found: Any = np.False_
    for each in b:
        found = np.logical_or(found, dtypes.COMPARE["Eq"](a, each))
    return found if wanted else np.logical_not(found)


# -- statements ----------------------------------------------------------------------------------------------------------


def run_if(f: Frame, test: Callable, body: Callable, orelse: Callable | None, line: int) -> None:
    """Both sides run, each under its lanes; a side without lanes is skipped."""
    m, outer = f.m, f.mask
    m.line = line
    c = condition(f, test(f), line)
    if isinstance(c, np.bool_):
        yes, no = (outer, None) if c else (None, outer)
    else:
        yes, no = outer.split(c)
    if m.counting:
        m.branch(f.site or line, outer, yes, no)
    after_yes, after_no = yes, no
    if yes is not None:
        f.mask = yes
        body(f)
        after_yes = f.mask
    if no is not None and orelse is not None:
        f.mask = no
        orelse(f)
        after_no = f.mask
    f.mask = outer if after_yes is yes and after_no is no else union(after_yes, after_no)


def run_while(f: Frame, test: Callable, body: Callable, orelse: Callable | None, line: int) -> None:
    """Repeat while any lane's test holds."""
    m, outer, loop = f.m, f.mask, Loop()
    f.loops.append(loop)
    current, done, rounds = outer, None, 0
    watch = _Watch(f, line)
    while current is not None:
        f.mask, m.line = current, line
        c = condition(f, test(f), line)
        if isinstance(c, np.bool_):
            going, leaving = (current, None) if c else (None, current)
        else:
            going, leaving = current.split(c)
        if m.counting:
            m.branch(f.site or line, current, going, leaving)
        done = union(done, leaving)
        if going is None:
            break
        f.mask, loop.continued = going, None
        body(f)
        current = union(f.mask, loop.continued)
        rounds += 1
        watch.check(rounds, current)
    f.loops.pop()
    _after_loop(f, outer, done, loop, orelse)


def run_for(
    f: Frame, iterable: Callable, assign_target: Callable, body: Callable, orelse: Callable | None, line: int
) -> None:
    """Repeat over a range, a tuple, an array, enumerate or zip."""
    m, outer, loop = f.m, f.mask, Loop()
    m.line = line
    source = iterable(f)
    f.loops.append(loop)
    current, done = outer, None
    for going, leaving, value in _rounds(f, source, lambda: current, line):
        if m.counting:
            m.branch(f.site or line, current, going, leaving)
        done = union(done, leaving)
        current = going
        if going is None:
            break
        f.mask, loop.continued = going, None
        assign_target(f, value)
        body(f)
        current = union(f.mask, loop.continued)
        if current is None:
            break
        m.line = line
    f.loops.pop()
    _after_loop(f, outer, done, loop, orelse)


def _after_loop(f: Frame, outer: Mask, done: Mask | None, loop: Loop, orelse: Callable | None) -> None:
    if orelse is not None and done is not None:
        f.mask = done
        orelse(f)
        done = f.mask
    after = union(done, loop.broken)
    f.mask = outer if after is not None and after.lanes == outer.lanes else after


def _rounds(f: Frame, source: Any, current: Callable, line: int) -> Iterator[tuple[Mask | None, Mask | None, Any]]:
    """For each round: the lanes that do it, the lanes that are through, and the loop variable's value."""
    if isinstance(source, Range):
        yield from _range_rounds(f, source, current, line)
        return
    for value in elements(f, source, line):
        yield current(), None, value
    yield None, current(), None


def _range_rounds(f: Frame, r: Range, current: Callable, line: int) -> Iterator[tuple[Mask | None, Mask | None, Any]]:
    if all(isinstance(v, np.generic) or v.size == 1 for v in (r.start, r.stop, r.step)):
        start, stop, step = (
            int(v if isinstance(v, np.generic) else v.reshape(-1)[0]) for v in (r.start, r.stop, r.step)
        )
        if step == 0:
            raise f.m.error("range() step must not be zero", line)
        make = r.dtype.type
        for i in range(start, stop, step):
            yield current(), None, make(i)
        yield None, current(), None
        return
    active = current().bits
    if np.any((r.step == 0) & (True if active is None else active)):
        raise f.m.error("range() step must not be zero", line)
    value = np.broadcast_to(r.start, np.broadcast_shapes(*(np.shape(v) for v in (r.start, r.stop, r.step))))
    up = np.asarray(r.step) > 0
    while True:
        more = np.where(up, value < r.stop, value > r.stop)
        going, leaving = current().split(more)
        yield going, leaving, value
        value = (value + r.step).astype(r.dtype, copy=False)


def elements(f: Frame, source: Any, line: int) -> Iterator[Any]:
    """The values of anything but a range that a `for` can run over."""
    if isinstance(source, (tuple, list)):
        yield from source
    elif isinstance(source, Array):
        extent = source.shape[0]
        for i in range(int(extent)):
            yield get_item(f, source, (np.int64(i),), source.storage.name, line, (True,))
    elif isinstance(source, Iterator):
        yield from source
    elif isinstance(source, Range):
        if not all(isinstance(v, np.generic) for v in (source.start, source.stop, source.step)):
            raise f.m.error(
                "zip and enumerate take a range whose bounds are the same for every thread", line, UnsupportedError
            )
        yield from (source.dtype.type(i) for i in range(int(source.start), int(source.stop), int(source.step)))
    else:
        raise f.m.error(f"cannot loop over {kind_of(source)}", line, UnsupportedError)


class _Watch:
    """Notices a `while` loop that can never end, instead of hanging.

    Lockstep execution is deterministic: if a round changes neither a variable, nor memory, nor the set of lanes, every later
    round will be the same.  Such a loop waits for another thread, which in turn waits for this loop to end.
    """

    PATIENCE = 64

    def __init__(self, f: Frame, line: int) -> None:
        self.f, self.line = f, line
        self.writes, self.lanes, self.variables = -1, -1, None

    def check(self, rounds: int, current: Mask | None) -> None:
        """Called after each round."""
        f, m = self.f, self.f.m
        if rounds > machine.LOOP_LIMIT:
            raise m.error(f"this loop has run {rounds - 1:,} times; it looks endless", self.line)
        if rounds % self.PATIENCE or current is None:
            self.writes, self.lanes = m.writes, current.lanes if current else 0
            if rounds % self.PATIENCE == self.PATIENCE - 1:
                self.variables = dict(f.vars)
            return
        if self.variables is None or self.writes != m.writes or self.lanes != current.lanes:
            return
        if self.variables.keys() == f.vars.keys() and all(_same(self.variables[k], f.vars[k]) for k in f.vars):
            raise m.error(
                "this loop waits for a value that another thread must write, but in the interpreter the threads of a batch run "
                "in lockstep, so that thread never gets to write it. On a GPU it may hang as well: see spin-waiting",
                self.line,
            )  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if is_number(a) and is_number(b):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return False


def run_break(f: Frame) -> None:
    """The active lanes leave the innermost loop."""
    loop = f.loops[-1]
    loop.broken, f.mask = union(loop.broken, f.mask), None


def run_continue(f: Frame) -> None:
    """The active lanes skip the rest of this round."""
    loop = f.loops[-1]
    loop.continued, f.mask = union(loop.continued, f.mask), None


def run_return(f: Frame, value: Any) -> None:
    """The active lanes leave the function."""
    if value is not None:
        f.value = value if f.returned is None else select(f, f.mask.grid(), value, f.value, f.m.line)
    f.returned, f.mask = union(f.returned, f.mask), None
    if f.caller is None:
        f.m.exited = f.returned.grid()


def check_assertion(f: Frame, value: Any, text: str, line: int) -> None:
    """`assert`: an error if it fails in any active lane.  (On a GPU only kernels compiled with debug=True check it.)"""
    c = condition(f, value, line)
    failed, _ = f.mask.split(np.broadcast_to(~c, (1, 1)) if isinstance(c, np.bool_) else ~c)
    if failed is not None:
        block, thread = f.m.lanes.threads_at(int(np.argmax(failed.grid())))
        raise f.m.error(f"assert {text} fails in thread {thread} of block {block}", line)


# -- calls ---------------------------------------------------------------------------------------------------------------


def call_function(f: Frame, function: Any, args: list, keywords: dict, call: Any, name: str) -> Any:
    """Call a device function: its own variables, the caller's lanes."""
    m = f.m
    if f.mask is None:
        return np.int64(0)
    try:
        bound = function.signature.bind(*args, **keywords)
    except TypeError as error:
        raise m.error(f"{name}: {error}", call.line, ArgumentError) from error
    for parameter in function.signature.parameters.values():
        if parameter.name not in bound.arguments:
            default = dtypes.constant(parameter.default)
            bound.arguments[parameter.name] = parameter.default if default is None else default
    if f.depth >= CALL_DEPTH:
        raise m.error(
            f"{name} calls itself more than {CALL_DEPTH} deep: recursion needs an end, and a GPU thread's stack is small", call.line
        )
    foreign = function.source_file != m.file_id
    inner = Frame(m, function, f.mask, f, f.site or (call.line if foreign else None))
    inner.vars.update(bound.arguments)
    if m.counting:
        m.instruction(f.site or call.line, f.mask)
    function.activate(inner)
    m.line = call.line
    return inner.value


def cast_call(f: Frame, dtype: Any, args: list, line: int) -> Any:
    """`float32(x)`: a conversion."""
    dtype = dtypes.as_dtype(dtype)
    if dtype is None or len(args) != 1 or not is_number(args[0]):
        given = ", ".join(map(kind_of, args))
        raise f.m.error(f"{dtype}({given}) is not a conversion: it takes one number", line, UnsupportedError)
    if f.m.counting and f.mask is not None:
        f.m.instruction(f.site or line, f.mask)
    return dtypes.cast(args[0], dtype)


def method(f: Frame, value: Any, name: str, args: list, line: int) -> Any:
    """A method call on a run-time value."""
    if isinstance(value, GridGroup) and name == "sync" and not args:
        from pmpp.simt import sync

        sync.grid_barrier(f, line)
        return None
    raise f.m.error(f"{kind_of(value)} has no method {name}() in a kernel", line, UnsupportedError)


def attribute(f: Frame, value: Any, name: str, line: int) -> Any:
    """An attribute of a run-time value."""
    if isinstance(value, Array):
        found = {
            "shape": lambda: tuple(np.int64(n) if isinstance(n, int) else n for n in value.shape),
            "size": lambda: np.int64(value.size()) if isinstance(value.size(), int) else value.size(),
            "ndim": lambda: np.int64(value.ndim),
            "strides": lambda: tuple(np.int64(s * value.dtype.itemsize) for s in value.strides),
            "itemsize": lambda: np.int64(value.dtype.itemsize),
            "nbytes": lambda: np.int64(value.size() * value.dtype.itemsize),
            "dtype": lambda: value.dtype,
            "T": value.transposed,
        }.get(name)
        if found is not None:
            return found()
    elif is_number(value) and name in ("real", "imag"):
        return getattr(value, name)
    elif isinstance(value, np.dtype) and name == "type":
        return value
    raise f.m.error(f"{kind_of(value)} has no attribute {name} in a kernel", line, UnsupportedError)


# -- subscripts ----------------------------------------------------------------------------------------------------------


def constant_array(m: Machine, values: np.ndarray, name: str) -> Array:
    """A global NumPy array: Numba compiles its values into the kernel."""
    key = ("constant", id(values))
    array = m.constants.get(key)
    if array is None:
        copy = np.ascontiguousarray(values)
        storage = Storage("const", copy.reshape(-1), name=name)
        array = m.constants[key] = Array(storage, copy.dtype, copy.shape, memory.c_strides(copy.shape))
    return array


def get_item(f: Frame, base: Any, indices: tuple, name: str, line: int, literals: tuple[bool, ...]) -> Any:
    """`base[indices]`: an element, a view, or a tuple's item."""
    if isinstance(base, Array):
        if len(indices) == base.ndim and not any(isinstance(i, slice) for i in indices):
            literals = literals if len(literals) == len(indices) else (False,) * len(indices)
            at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
            if mask is None:
                return base.dtype.type(0)
            if f.site:
                line = f.site
            return memory.load(f.m, mask, base, at, name, line)
        return _view(f, base, indices, name, line)
    if isinstance(base, tuple):
        if len(indices) == 1 and isinstance(indices[0], slice):
            return base[
                slice(*(None if v is None else int(v) for v in (indices[0].start, indices[0].stop, indices[0].step)))
            ]
        if len(indices) == 1 and is_number(indices[0]) and indices[0].size == 1:
            i = int(indices[0] if isinstance(indices[0], np.generic) else indices[0].reshape(-1)[0])
            if -len(base) <= i < len(base):
                return base[i]
            raise f.m.error(f"{name}[{i}] is outside a tuple of {len(base)}", line, UnsupportedError)
        return _tuple_lookup(f, base, indices, name, line)
    raise f.m.error(f"{name} is {kind_of(base)} and cannot be indexed", line, UnsupportedError)


def _tuple_lookup(f: Frame, base: tuple, indices: tuple, name: str, line: int) -> Any:
    if len(indices) != 1 or not is_number(indices[0]):
        raise f.m.error(f"{name} is a tuple and takes one integer index", line, UnsupportedError)
    if len({v.dtype for v in base if is_number(v)}) != 1 or not all(map(is_number, base)):
        raise f.m.error(f"{name} holds different types, so its index must be a constant", line, UnsupportedError)
    result = base[0]
    for i, value in enumerate(base[1:], 1):
        result = np.where(indices[0] == i, value, result)
    return result


def _view(f: Frame, base: Array, indices: tuple, name: str, line: int) -> Array:
    """An array of fewer elements: some axes indexed, others sliced or left whole."""
    if len(indices) > base.ndim:
        raise f.m.error(f"{name} has {base.ndim} axes and cannot take {len(indices)} indices", line, UnsupportedError)
    offset, shape, strides = base.offset, [], []
    for axis, extent in enumerate(base.shape):
        stride = base.strides[axis]
        index = indices[axis] if axis < len(indices) else slice(None)
        if isinstance(index, slice):
            start, count, step = _slice(f, index, extent, line)
            offset = offset + start * stride
            shape.append(count)
            strides.append(stride * step)
        else:
            template = ", ".join("?" if k == axis else ":" for k in range(base.ndim))
            index = memory.as_index(f.m, index, name)
            index, _ = memory.in_bounds(f.m, f.mask, index, extent, name, base.storage.space, template, line, False)
            offset = offset + index * stride
    return Array(base.storage, base.dtype, tuple(shape), tuple(strides), offset)


def _slice(f: Frame, s: slice, extent: Any, line: int) -> tuple[Any, Any, int]:
    step = 1 if s.step is None else _uniform(s.step)
    if step is None:
        raise f.m.error("the step of a slice must be the same for every thread", line, UnsupportedError)
    parts = [None if v is None else _uniform(v) for v in (s.start, s.stop)]
    fixed = all(v is None or p is not None for v, p in zip((s.start, s.stop), parts, strict=True))
    if fixed and isinstance(extent, int):
        start, stop, step = slice(parts[0], parts[1], step).indices(extent)
        return start, len(range(start, stop, step)), step
    if step != 1:
        raise f.m.error("a slice whose bounds differ between threads must have step 1", line, UnsupportedError)
    start, stop = (0 if s.start is None else s.start), (extent if s.stop is None else s.stop)
    start, stop = (np.clip(np.where(np.less(v, 0), v + extent, v), 0, extent) for v in (start, stop))
    return start, np.maximum(stop - start, 0), 1


def _uniform(value: Any) -> int | None:
    return int(np.asarray(value).reshape(-1)[0]) if np.size(value) == 1 else None


def set_item(f: Frame, base: Any, indices: tuple, value: Any, name: str, line: int, literals: tuple[bool, ...]) -> None:
    """`base[indices] = value`."""
    if f.mask is None:
        return
    if not isinstance(base, Array):
        raise f.m.error(f"{name} is {kind_of(base)} and its items cannot be assigned", line, UnsupportedError)
    if len(indices) != base.ndim or any(isinstance(i, slice) for i in indices):
        view = _view(f, base, indices, name, line)
        if not all(isinstance(n, int) for n in view.shape):
            raise f.m.error(
                "assigning to a slice whose length differs between threads is not supported", line, UnsupportedError
            )
        for where in np.ndindex(*view.shape):
            at = tuple(np.int64(i) for i in where)
            each = get_item(f, value, at, name, line, (True,) * len(at)) if isinstance(value, Array) else value
            set_item(f, view, at, each, name, line, (True,) * len(at))
        return
    if not is_number(value):
        raise f.m.error(f"cannot store {kind_of(value)} in {name}, an array of {base.dtype}", line, UnsupportedError)
    literals = literals if len(literals) == len(indices) else (False,) * len(indices)
    at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
    if mask is not None:
        memory.store(f.m, mask, base, at, value, name, f.site or line)
