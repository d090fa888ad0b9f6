"""Expressions: from syntax nodes to closures that take a frame and return a value."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import intrinsics
from pmpp.simt.front import (
    accidental_float64,
    advice,
    array_functions,
    calls,
    flow,
    indexing,
    python,
    things,
    tuples,
    ufuncs,
    variables,
)
from pmpp.simt.front.names import DYNAMIC, Names, calls_something, counts_from_the_end, folded, is_value
from pmpp.simt.front.nodes import children, walk
from pmpp.simt.machine import memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.instructions import FP16, FP64, INTEGER, SPECIAL, class_of, class_of_call, classify
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.turns import Waits, plain, suspending, suspends, through
from pmpp.simt.values import dtypes, maths
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import SimtError, UnsupportedError
from pmpp.simt.values.operators import BINARY, COMPARE, UNARY

#: Operations on real numbers that Numba compiles one on complex numbers to. A quotient is Smith's: 3 of them divisions.
COMPLEX_FLOPS = {"Add": 2, "Sub": 2, "Mult": 6, "Div": 9}

Expression = Callable[[Frame], Any]

DOUBLE = dtypes.FLOAT64.num

#: What Numba does not compile: what it is called, and what to write instead.
_LOOP = "write a loop"
REFUSED = {
    ast.Dict: ("a dict", "write a tuple, or pass an array"), ast.DictComp: ("a dict comprehension", "pass an array"),
    ast.List: ("a list", "write a tuple, (1, 2), or cuda.local.array for what changes"),
    ast.ListComp: ("a list comprehension", "write a loop that fills a cuda.local.array"),
    ast.Set: ("a set", "write a tuple, (1, 2)"), ast.SetComp: ("a set comprehension", "write a tuple"),
    ast.GeneratorExp: ("a generator", _LOOP), ast.JoinedStr: ("an f-string", "print takes several values"),
    ast.Await: ("await", "a kernel runs from its first line to its last"), ast.Yield: ("yield", _LOOP),
    ast.YieldFrom: ("yield", _LOOP),
    ast.Starred: ("a star here", "* is for the arguments of a call, and for the elements of a tuple"),
    ast.Try: ("try", "test with if before"), ast.With: ("with", "a kernel has nothing to open or close"),
    ast.Import: ("import", "import it outside the kernel"), ast.ImportFrom: ("import", "import it outside the kernel"),
    ast.Global: ("global", "a kernel cannot change a global: pass an array"),
    ast.Nonlocal: ("nonlocal", "return the new value"), ast.ClassDef: ("a class", "define it outside the kernel"),
    ast.Delete: ("del", "leave the variable alone"),
    ast.NamedExpr: ("an assignment expression", "assign on a line of its own"),
}  # fmt: skip


class Expressions(Names):
    """Compiles expressions."""

    def expr(self, node: ast.expr, **options: Any) -> Expression:
        """Compile an expression."""
        key = id(node)
        if key in self.computed_before:
            return lambda f: f.slots.pop(key)
        self.refuse_syntax(node)
        method = getattr(self, "expr_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(node, f"{type(node).__name__} is not supported in a kernel")
        value = folded(node)
        if value is not DYNAMIC:
            return self.expr_Constant(ast.copy_location(ast.Constant(value), node))
        operands = self.operands(node)
        if any(map(self.node_suspends, operands)):
            return self.after_operands(operands, lambda: method(node, **options))
        return method(node, **options)

    def refuse_syntax(self, node: ast.AST) -> None:
        """Refuse what Numba does not compile wherever it stands."""
        refused = REFUSED.get(type(node))
        if refused is not None:
            raise self.refuse(node, f"{refused[0]} does not exist on the device: {refused[1]}")

    # -- operands that may have to wait ------------------------------------------------------------------------------

    def node_suspends(self, node: ast.AST) -> bool:
        """Whether an expression has a call in it that may have to wait: of a barrier or of a device function."""
        known = self.waiting.get(id(node))
        if known is None:
            known = self.waiting[id(node)] = (isinstance(node, ast.Call) and self.call_suspends(node)) or any(
                map(self.node_suspends, children(node))
            )
        return known

    def call_suspends(self, node: ast.Call) -> bool:
        thing = self.static(node.func)
        if thing is DYNAMIC:  # a method of a value, or a function that a variable holds
            return not isinstance(node.func, ast.Attribute) or node.func.attr == "sync"
        path = intrinsics.device_path(thing)
        if path is not None:
            return suspends(intrinsics.DEVICE.get(path))
        return self.callee_suspends(getattr(thing, "py_func", None))

    def callee_suspends(self, py_func: Callable | None) -> bool:
        """Whether a device function may have to wait: one without a loop or a barrier does not, and is a plain call.

        One that is being compiled, for it calls itself, may; and what is wrong with one is told when it is called.
        """
        if py_func is None:
            return False
        try:
            return self.function.compiled(py_func).suspends
        except Exception:
            return True

    def operands(self, node: ast.expr) -> list[ast.expr]:
        """The expressions that are computed before a node can be, in their order; none if it is up to their values."""
        if isinstance(node, ast.Call):
            function = node.func
            if self.static(function) is not DYNAMIC:
                first = []
            else:
                first = [function.value if isinstance(function, ast.Attribute) else function]
            given = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
            return [*first, *given, *(keyword.value for keyword in node.keywords)]
        if isinstance(node, ast.Tuple):
            return [e.value if isinstance(e, ast.Starred) else e for e in node.elts]
        if isinstance(node, ast.Subscript):
            return [node.value, *(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
        if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)):
            return []
        return [child for child in children(node) if isinstance(child, ast.expr)]

    def after_operands(self, operands: list[ast.expr], compile_rest: Callable[[], Callable]) -> Callable:
        """Code that waits for its operands first and keeps their values in slots, where the rest of it finds them."""
        parts = [(id(operand), self.expr(operand)) for operand in operands]
        keys = {key for key, _ in parts}
        self.computed_before |= keys
        rest = compile_rest()
        self.computed_before -= keys

        @suspending
        def ev(f: Frame, *more: Any) -> Waits:
            values = []
            for _, part in parts:
                values.append((yield from part(f)) if suspends(part) else part(f))
            f.slots.update(zip((key for key, _ in parts), values, strict=True))
            result = rest(f, *more)
            return (yield from result) if suspends(rest) else result

        return ev

    def expr_Constant(self, node: ast.Constant) -> Expression:
        value = node.value
        if value is None or isinstance(value, str) or value is Ellipsis:
            return lambda f: value
        if isinstance(value, tuple):
            return self.known(node, value, ast.unparse(node))
        typed = dtypes.constant(value)
        if typed is None:
            raise self.refuse(node, f"the literal {value!r} does not fit 64 bits: write it as a float, {value!r}.0")
        return lambda f: typed

    def expr_Name(self, node: ast.Name) -> Expression:
        name, line = node.id, node.lineno
        level = self.level(name)
        if level is not None:
            return variables.reader(name, line, level)
        thing = self.static(node)
        if thing is DYNAMIC:
            raise self.refuse(node, f"the name {name!r} is not defined")
        return self.known(node, thing, name)

    def known(self, node: ast.expr, thing: Any, name: str) -> Expression:
        """An expression whose Python object is known now: a constant, an index, a type, a constant array."""
        path = intrinsics.device_path(thing)
        if path in intrinsics.SPECIAL:
            special = intrinsics.SPECIAL[path]
            return lambda f: special(f.m)
        if path is not None and path not in intrinsics.NAMESPACES and path not in intrinsics.DEVICE:
            raise self.refuse(node, f"cuda.{path} is not supported by the interpreter")
        if isinstance(thing, np.ndarray):
            frozen = thing.copy(order="K")  # Numba compiles the values in: what happens to the array later is not seen
            return lambda f: indexing.constant_array(f.m, frozen, name)
        if hasattr(thing, "__cuda_array_interface__") and not isinstance(thing, type):
            return lambda f: indexing.captured_array(f.m, thing)
        if isinstance(thing, tuple):
            if any(inspect.isbuiltin(e) or inspect.isfunction(e) for e in thing):
                raise self.refuse(
                    node, f"{name} is a tuple with a function in it, which has no type in Numba: name each"
                )
            parts = [self.known(node, e, f"{name}[{k}]") for k, e in enumerate(thing)]
            if tuples.holds_arrays(thing):
                return lambda f: tuples.like(thing, [part(f) for part in parts])
            fixed = tuples.like(thing, [part(None) for part in parts])  # type: ignore[arg-type]
            return lambda f: fixed
        if isinstance(thing, enum.Enum):
            return lambda f: thing
        typed = dtypes.constant(thing)
        if typed is not None:
            return lambda f: typed
        if isinstance(thing, int):
            raise self.refuse(
                node, f"{name} is {thing}, which does not fit 64 bits: make it a float outside the kernel"
            )
        if isinstance(thing, (list, dict, set, frozenset)):
            what, instead = type(thing).__name__, "a tuple" if isinstance(thing, list) else "a tuple, or pass an array"
            raise self.refuse(
                node, f"{name} is a {what}, and Numba compiles no {what} that is a global: make it {instead}"
            )
        return lambda f: thing

    def expr_Attribute(self, node: ast.Attribute) -> Expression:
        thing = self.static(node)
        if thing is not DYNAMIC:
            return self.known(node, thing, ast.unparse(node))
        static_base = self.static(node.value)
        if static_base is not DYNAMIC and not is_value(static_base):
            raise self.refuse(node, f"{ast.unparse(node.value)} has no {node.attr}")
        base, attribute, line, text = self.expr(node.value), node.attr, node.lineno, ast.unparse(node)

        def ev(f: Frame) -> Any:
            value = base(f)
            special = intrinsics.SPECIAL.get(f"{intrinsics.device_path(value)}.{attribute}")  # d = cuda.blockDim; d.x
            return indexing.attribute(f, value, attribute, line, text) if special is None else special(f.m)

        return ev

    def expr_BinOp(self, node: ast.BinOp) -> Expression:
        left, right, line = self.expr(node.left), self.expr(node.right), node.lineno
        operate = self.binary(node.op, node)

        def ev(f: Frame) -> Any:
            return operate(f, left(f), right(f), line)

        return ev

    def binary(self, op: ast.operator, node: ast.AST) -> Callable:
        name = type(op).__name__
        if name not in BINARY:
            raise self.refuse(node, "matrix multiplication with @ does not exist on the device: write the loops")
        function = BINARY[name]
        flop = function.flop
        nodes = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        template = f"{{}} {variables.SYMBOLS[name]} {{}}"
        # A compiler multiplies by the reciprocal of a power of two, and multiplies out a constant integer power.
        constant = self.constant_value(nodes[1])
        plain = constant is not None and not isinstance(constant, (complex, np.complexfloating))
        divides = name == "Div" and not (plain and math.frexp(constant)[0] in (0.5, -0.5))
        powers = name == "Pow" and not isinstance(constant, (int, np.integer))
        may_raise, in_place = name in ("Pow", "Div"), isinstance(node, ast.AugAssign)
        folded = all(map(self.is_constant, nodes))  # the compiler computes it
        too_large = self.too_large(node) if isinstance(node, ast.BinOp) else ""

        def operate(f: Frame, a: Any, b: Any, line: int) -> Any:
            try:
                result = function(a, b)
            except (AttributeError, TypeError, ValueError) as error:
                whole, real = things.as_numbers(f, a, b, template, line)
                if whole is not None:
                    return operate(f, whole, real, line)
                if not in_place and (result := tuples.added(name, a, b)) is not None:
                    return result
                raise variables.bad_operands(f, name, a, b, line) from error
            if may_raise:
                variables.check_operator(f, name, a, b, line)
            m = f.m
            if too_large and m.warnings is not None:
                m.warnings.note("overflow", m.place.site or line, f"{too_large} does not fit 64 bits: it is {result}")
            if m.counts is not None:
                kind = SPECIAL if divides or (powers and result.dtype.kind == "f") else class_of(result.dtype)
                if flop and not folded:
                    each = COMPLEX_FLOPS.get(name, 0) if result.dtype.kind == "c" else 1
                    m.counts.flops(line, f.mask, result.dtype, each, kind)
                else:
                    m.counts.instruction(line, f.mask, kind)
                if result.dtype.num == DOUBLE and (a.dtype != result.dtype or b.dtype != result.dtype):
                    accidental_float64.arises(f, node, [(nodes[0], a.dtype), (nodes[1], b.dtype)], template)
            return result

        return operate

    def too_large(self, node: ast.BinOp) -> str:
        """An operation on constants, as written, if its result does not fit 64 bits, in which it is computed."""
        values = [self.fixed(side) for side in (node.left, node.right)]
        if not all(type(value) is int for value in values) or (isinstance(node.op, ast.Pow) and values[1] > 4096):
            return ""
        exact = self.of_two_constants(node)
        return ast.unparse(node) if type(exact) is int and dtypes.constant(exact) is None else ""

    def expr_UnaryOp(self, node: ast.UnaryOp) -> Expression:
        operand, line = self.expr(node.operand), node.lineno
        name = type(node.op).__name__
        function = UNARY[name]

        def ev(f: Frame) -> Any:
            a = operand(f)
            if isinstance(a, enum.IntEnum) and name != "Not":
                a = np.int64(a)
            try:
                result = function(a)
            except (AttributeError, TypeError) as error:
                if name == "Not" and isinstance(a, str):
                    return np.bool_(not a)
                raise variables.bad_operands(f, name, a, None, line) from error
            if f.m.counts is not None:
                f.m.counts.instruction(line, f.mask, class_of(result.dtype))
            return result

        return ev

    def expr_Compare(self, node: ast.Compare) -> Expression:
        line = node.lineno
        first = self.expr(node.left)
        *others, last = node.comparators
        if isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            last = as_tuple(last)  # Python's own compiler does that
        sides = itertools.pairwise([node.left, *others, last])
        rest = [(self.comparison(op, *two), self.expr(two[1])) for op, two in zip(node.ops, sides, strict=True)]
        if len(rest) == 1:
            compare, second = rest[0]
            return lambda f: compare(f, first(f), second(f), line)

        def chain(f: Frame) -> Any:
            left, result = first(f), None
            for compare, second in rest:
                right = second(f)
                now = compare(f, left, right, line)
                result = now if result is None else np.logical_and(result, now)
                left = right
            return result

        return chain

    def comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Callable:
        name = type(op).__name__
        if name in ("Is", "IsNot"):
            return lambda f, a, b, line: things.identical(f, a, b, name == "Is", line)
        if name in ("In", "NotIn"):
            return lambda f, a, b, line: things.contains(f, a, b, name == "In", line)
        function = COMPARE[name]
        # A compiler compares in float32 after all if the other side is a literal that float32 holds exactly.
        exact = [self.exact_in_float32(side) for side in (left, right)]
        template = f"{{}} {variables.SYMBOLS[name]} {{}}"

        def compare(f: Frame, a: Any, b: Any, line: int) -> Any:
            if a.__class__ is Array or b.__class__ is Array:  # NumPy would compare the objects
                raise variables.bad_operands(f, name, a, b, line)
            try:
                result = function(a, b)
            except (AttributeError, TypeError) as error:
                whole, real = things.as_numbers(f, a, b, template, line)
                if whole is not None:
                    return compare(f, whole, real, line)
                result = things.compared(name, a, b)
                if result is not None:
                    return result
                raise variables.bad_operands(f, name, a, b, line) from error
            if f.m.counts is not None:
                kind, other = class_of(a.dtype), class_of(b.dtype)
                if a.dtype != b.dtype and FP16 <= max(kind, other) <= FP64:
                    if exact[1] and kind != INTEGER:
                        other = kind
                    elif exact[0] and other != INTEGER:
                        kind = other
                    else:
                        kind = other = class_of(dtypes.arithmetic(a.dtype, b.dtype))
                        if kind == FP64:
                            operands = [(left, a.dtype), (right, b.dtype)]
                            accidental_float64.arises(f, left, operands, template, "compares in float64")
                f.m.counts.instruction(line, f.mask, max(kind, other))
            return result

        return compare

    def exact_in_float32(self, node: ast.expr) -> bool:
        """Whether an expression is a constant that float32 holds exactly."""
        value = self.constant_value(node)
        if value is None:
            return False
        with np.errstate(over="ignore"):
            return float(np.float32(value)) == value

    def expr_BoolOp(self, node: ast.BoolOp) -> Expression:
        is_and = isinstance(node.op, ast.And)
        values = self.undecided(node.values, is_and)
        if len(values) == 1:
            return self.expr(values[0])
        parts, paths = [self.expr(e) for e in values], self.paths(*values)
        if any(map(suspends, parts)):
            return suspending(lambda f: flow.short_circuit_by_turns(f, parts, is_and, paths))
        return lambda f: flow.short_circuit(f, parts, is_and, paths)

    def expr_IfExp(self, node: ast.IfExp) -> Expression:
        true, false = self.reached(node.test)
        if not (true and false) and not calls_something(node.test):
            return self.expr(node.body if true else node.orelse)
        test, yes, no = self.expr(node.test), self.expr(node.body), self.expr(node.orelse)
        line = node.lineno
        sides = {yes: self.paths(node.body), no: self.paths(node.orelse)}

        def look_at(f: Frame, result: Any) -> Any:
            if (
                f.m.warnings is not None
                and is_number(result)
                and result.dtype.num == DOUBLE
                and id(node) not in f.m.warnings.asked
            ):
                f.m.warnings.asked.add(id(node))
                kinds = [
                    (node.body, sides[yes].of_value(f, plain(yes))),
                    (node.orelse, sides[no].of_value(f, plain(no))),
                ]
                if all(dtype is not None for _, dtype in kinds) and kinds[0][1] != kinds[1][1]:
                    accidental_float64.arises(f, node, kinds, "{} or {}")
            return result

        @suspending
        def by_turns(f: Frame) -> Waits:
            return look_at(f, (yield from flow.conditional_by_turns(f, test, yes, no, line, sides)))

        if any(map(suspends, (test, yes, no))):
            return by_turns
        return lambda f: look_at(f, flow.conditional(f, test, yes, no, line, sides))

    def expr_Tuple(self, node: ast.Tuple) -> Expression:
        return self.gathered(node.elts, tuple)

    def gathered(self, nodes: list[ast.expr], kind: type = list) -> Callable[[Frame], Any]:
        """The values of some expressions; of one with a star before it, those of the tuple's elements."""
        parts = [self.expr(e.value if isinstance(e, ast.Starred) else e) for e in nodes]
        if not any(isinstance(e, ast.Starred) for e in nodes):
            return lambda f: kind([p(f) for p in parts])
        stars = [isinstance(e, ast.Starred) for e in nodes]

        def ev(f: Frame) -> Any:
            values: list[Any] = []
            for part, star, node in zip(parts, stars, nodes, strict=True):
                value = part(f)
                if star and not isinstance(value, tuple):
                    what = ast.unparse(node)
                    raise f.m.error(
                        f"{what}: a star takes a tuple, not {kind_of(value)}", node.lineno, UnsupportedError
                    )
                values.extend(value if star else [value])
            return kind(values)

        return ev

    def expr_Slice(self, node: ast.Slice) -> Expression:
        parts = [self.expr(e) if e is not None else None for e in (node.lower, node.upper, node.step)]
        return lambda f: slice(*(p(f) if p is not None else None for p in parts))

    def subscript(self, node: ast.Subscript) -> tuple[Expression, Expression, str, tuple[bool, ...]]:
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        literals = tuple(map(self.may_be_negative, index))
        parts = [self.expr(e) for e in index]
        if isinstance(node.slice, ast.Tuple):
            indices: Expression = lambda f: tuple([p(f) for p in parts])  # noqa: E731
        else:
            only = parts[0]

            def indices(f: Frame) -> tuple:
                value = only(f)
                return value if isinstance(value, tuple) else (value,)

        return self.expr(node.value), indices, ast.unparse(node.value), literals

    def may_be_negative(self, node: ast.expr) -> bool | str:
        """Whether an index may count from the end: a literal does, and what is written so, which is noted."""
        if accidental_float64.is_literal(node):
            return True
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            node = self.assigned_once[node.id]
        return memory.FROM_THE_END if counts_from_the_end(node) else False

    def expr_Subscript(self, node: ast.Subscript) -> Expression:
        base, indices, name, literals = self.subscript(node)
        line = node.lineno
        return lambda f: indexing.get_item(f, base(f), indices(f), name, line, literals)

    def expr_Call(self, node: ast.Call, *, used: bool = True) -> Expression:
        args, names = self.gathered(node.args), []
        for k in node.keywords:
            if k.arg is None:
                raise self.refuse(node, "** does not exist on the device: name the arguments, f(a=1)")
            names.append((k.arg, self.expr(k.value)))
        thing = self.static(node.func)
        if thing is print and names:
            raise self.refuse(node, f"print takes no {names[0][0]}= on a GPU: values alone")
        line = node.lineno
        literals = tuple(not isinstance(a, ast.Starred) and self.literal_argument(a) for a in node.args)
        named = {k.arg: self.literal_argument(k.value) for k in node.keywords}
        call = intrinsics.Call(line, used, _first_argument(node), id(node), node, literals, named)
        if thing is DYNAMIC:
            if isinstance(node.func, ast.Attribute):
                base, attribute = self.expr(node.func.value), node.func.attr
                if attribute == "sync":
                    return suspending(lambda f: calls.synchronise(f, base(f), args(f), line))
                if names:
                    raise self.refuse(node, f"{ast.unparse(node.func)}() takes no arguments by name in a kernel")
                return lambda f: calls.method(f, base(f), attribute, args(f), line, call)
            function = self.expr(node.func)
            return suspending(lambda f: calls.call_value(f, function(f), args(f), {k: v(f) for k, v in names}, call))
        path = intrinsics.device_path(thing)
        if path is not None:
            return self.device_call(node, path, call, args, names)
        dtype = dtypes.as_dtype(thing)
        if dtype is not None and thing not in (bool, int, float):
            simple = len(node.args) == 1 and not names and _is_written_plainly(node.args[0])
            simple = simple and not isinstance(self.static(node.args[0]), enum.Enum)  # which Numba does not cast
            known = self.constant_value(node) if simple else None
            if known is not None:  # np.float32(0.5): cast once, and counted each time
                return lambda f: calls.constant_cast(f, known, line)
            if len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
                return calls.cast_of(dtype, self.expr(node.args[0]), line)
            return lambda f: calls.cast_call(f, dtype, args(f), line)
        handler = python.handler(thing) or ufuncs.handler(thing) or array_functions.handler(thing)
        if handler is None and tuples.is_named(thing):
            handler = tuples.maker(thing)
        if handler is not None:
            return self.plain_call(handler, call, args, names, getattr(thing, "__name__", ""))
        py_func = getattr(thing, "py_func", None)
        if py_func is not None:
            self.callees.append(py_func)
            if not self.callee_suspends(py_func):
                return lambda f: through(calls.call_value(f, thing, args(f), {k: v(f) for k, v in names}, call))
            return suspending(lambda f: calls.call_value(f, thing, args(f), {k: v(f) for k, v in names}, call))
        raise self.refuse(node, self.unknown_call(node, thing))

    def literal_argument(self, node: ast.expr) -> bool | str:
        """Whether an argument is a constant; a parameter answers with its name, since that is up to the caller."""
        if isinstance(node, ast.Name) and node.id in self.function.params:
            return node.id
        return isinstance(self.static_int(node), (int, np.integer, tuple))

    def unknown_call(self, node: ast.Call, thing: Any) -> str:
        name = ast.unparse(node.func)
        if inspect.isfunction(thing) and thing.__module__.partition(".")[0] not in ("numpy", "math", "random"):
            return f"{name} is a plain Python function; a kernel calls functions made with @cuda.jit(device=True)"
        if isinstance(thing, type) and issubclass(thing, enum.Enum):
            return f"{name} cannot be called in a kernel: compare with its members' values"
        instead = advice.instead_of(thing, name)
        return f"{name} cannot be called in a kernel{': ' + instead if instead else ''}"

    def device_call(self, node: ast.Call, path: str, call: intrinsics.Call, args: Callable, names: list) -> Expression:
        handler = intrinsics.DEVICE.get(path)
        if handler is None:
            raise self.refuse(node, f"cuda.{path} is not supported by the interpreter")
        self.uses.add(path)
        if path == "syncwarp" and (node.args or node.keywords):
            self.uses.add("syncwarp(mask)")
        if path in ("grid", "gridsize"):
            given = node.args[0] if len(node.args) == 1 and not names else None
            if not node.args and [k.arg for k in node.keywords] == ["ndim"]:
                given = node.keywords[0].value
                args, names = self.gathered([given]), []
            if given is None or self.static(given) not in (1, 2, 3):
                raise self.refuse(node, f"the argument of cuda.{path} must be the literal 1, 2 or 3")
        if path in ("shared.array", "local.array"):
            return self.array_call(node, handler, call, names)
        if path.startswith("shfl_"):
            args = self.passing_on(node, args)
        return self.plain_call(handler, call, args, names, path)

    def passing_on(self, node: ast.Call, args: Callable) -> Callable[[Frame], list]:
        """The arguments of a shuffle: of a variable that is passed on, only the lanes that are asked need a value."""
        passed = node.args[1] if len(node.args) > 1 else None
        if (
            not isinstance(passed, ast.Name)
            or isinstance(node.args[0], ast.Starred)
            or self.level(passed.id) != 0
            or id(passed) in self.computed_before
        ):
            return args
        before, behind = self.gathered(node.args[:1]), self.gathered(node.args[2:])
        return lambda f: [*before(f), variables.read_operand(f, passed.id, passed.lineno), *behind(f)]

    def array_call(self, node: ast.Call, handler: Callable, call: intrinsics.Call, names: list) -> Expression:
        """`cuda.shared.array(shape, dtype)`: the shape is needed before the kernel runs."""
        if any(isinstance(a, ast.Starred) for a in node.args):
            raise self.refuse(node, f"{call.function} takes no star: write its arguments")
        shape_node = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "shape"), None)
        shape = DYNAMIC if shape_node is None else self.static_int(shape_node)
        rest, keywords = self.gathered(node.args[1:]), [(k, v) for k, v in names if k != "shape"]
        dtype_node = (
            node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "dtype"), None)
        )
        dtype = DYNAMIC if dtype_node is None else self.static(dtype_node)
        if dtype is not DYNAMIC:
            try:
                intrinsics.element_type(dtype)
            except TypeError as error:
                raise self.refuse(node, f"{call.function}: {error}") from error
        for extent in shape if isinstance(shape, tuple) else (shape,):
            if isinstance(extent, enum.Enum):
                member = f"{type(extent).__name__}.{extent.name}"
                raise self.refuse(node, f"the shape of {call.function} is {member}: write {member}.value")
        if shape is not DYNAMIC:
            if handler is intrinsics.DEVICE["local.array"] and dtype is not DYNAMIC:
                self.local_bytes.append(intrinsics.bytes_of(shape, dtype))
            return self.plain_call(functools.partial(handler, shape=shape), call, rest, keywords)
        refusal = self.refuse(
            node,
            f"the shape of {call.function} must be constant, and Numba computes nothing with constants: write a number "
            "or the name of a global, as in PITCH = W + 1 outside the kernel "
            "(for a size chosen at launch use cuda.shared.array(0, dtype) and the launch's fourth parameter)",
        )
        wanted = {n.id for n in walk(shape_node) if isinstance(n, ast.Name)} if shape_node is not None else set()
        if not wanted or not wanted <= set(self.function.params):
            raise refusal
        self.literal_shapes.append(refusal)
        extents = self.expr(shape_node)

        def ev(f: Frame) -> Any:
            if not wanted <= f.literals:  # a device function's argument is constant if its caller passes a constant
                raise refusal
            shape = extents(f)
            make = functools.partial(handler, shape=shape)
            return make(f, call, *rest(f), **{k: v(f) for k, v in keywords})

        return ev

    def plain_call(
        self, handler: Callable, call: intrinsics.Call, args: Callable, names: list, name: str = ""
    ) -> Expression:
        silent = getattr(handler, "counts_itself", False) or isinstance(handler, functools.partial)
        line, kind = call.line, classify(name)
        common = name in _NUMERIC or name in maths.MATH
        if suspends(handler):
            return self.waiting_call(handler, call, args, names)

        def ev(f: Frame) -> Any:
            values = args(f)
            if f.mask is None:
                return np.int64(0)
            keywords = {k: v(f) for k, v in names} if names else {}
            f.m.place.line = line
            try:
                result = handler(f, call, *values, **keywords)
            except SimtError:
                raise
            except (TypeError, ValueError, AttributeError) as error:
                raise f.m.error(f"{ast.unparse(call.node)}: {_plain(error, values)}", line, UnsupportedError) from error
            if f.m.counts is not None and not silent:
                f.m.counts.instruction(line, f.mask, class_of_call(result, values) if kind is None else kind)
                if common and is_number(result) and result.dtype.num == DOUBLE:
                    given = [(n, v.dtype) for n, v in zip(call.node.args, values, strict=False) if is_number(v)]
                    if any(dtype.num != DOUBLE for _, dtype in given):
                        accidental_float64.arises(f, call.node, given, f"{name}({', '.join('{}' for _ in given)})")
            return result

        return ev

    def waiting_call(self, handler: Callable, call: intrinsics.Call, args: Callable, names: list) -> Expression:
        """A call of a barrier.  Handlers that may wait count themselves."""
        line = call.line

        @suspending
        def ev(f: Frame) -> Waits:
            values = args(f)
            if f.mask is None:
                return np.int64(0)
            keywords = {k: v(f) for k, v in names}
            f.m.place.line = line
            try:
                return (yield from handler(f, call, *values, **keywords))
            except SimtError:
                raise
            except (TypeError, ValueError, AttributeError) as error:
                raise f.m.error(f"{ast.unparse(call.node)}: {_plain(error, values)}", line, UnsupportedError) from error

        return ev


#: Python's functions whose result has the common type of their arguments.
_NUMERIC = ("min", "max", "pow", "float", "abs", "sum", "divmod", "fma", "cbrt")


def _first_argument(node: ast.Call) -> str:
    """The first argument as written; if all are given by name, the array of an instruction that takes one."""
    named = {k.arg: k.value for k in node.keywords}
    first = node.args[0] if node.args else named.get("shared", named.get("x"))
    return "" if first is None else ast.unparse(first)


def as_tuple(node: ast.expr) -> ast.expr:
    """A list that Python's compiler makes a tuple, because only its elements are asked for."""
    if isinstance(node, ast.List) and not any(isinstance(e, ast.Starred) for e in node.elts):
        return ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)
    return node


def _is_written_plainly(node: ast.expr) -> bool:
    """Whether computing an expression is no instruction: a name, a literal or what Python makes of literals."""
    return isinstance(node, (ast.Constant, ast.Name, ast.Attribute)) or folded(node) is not DYNAMIC


_NO_DTYPE = re.compile(r"'(\w+)' object has no attribute '(?:dtype|shape|ndim)'")


def _plain(error: Exception, values: list) -> str:
    """What a handler has to say about its arguments, in a reader's words."""
    text = str(error).replace("handler() ", "").replace("() takes", " takes")
    text = re.sub(r"^\S+ takes .*positional arguments? but .*", "it does not take so many arguments", text)
    text = re.sub(r"^\S+ missing \d+ required .*", "it takes more arguments", text)
    text = re.sub(r"^\S+ got an unexpected keyword argument '(\w+)'.*", r"it takes no argument \1", text)
    found = _NO_DTYPE.search(text)
    if found:
        odd = next((v for v in values if not is_number(v)), None)
        return f"it takes numbers, not {kind_of(odd)}{': write its .value' if isinstance(odd, enum.Enum) else ''}"
    return text
