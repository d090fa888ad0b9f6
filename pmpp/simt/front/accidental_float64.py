"""Accidental float64: the expressions that turn float32 into float64 although nobody asked for it.

Under Numba's typing a Python float is float64, and so is float32 with an integer, or an integer over an integer.  One
such operand makes the whole expression float64, at half the speed of float32 on a data-centre GPU and a 32nd or a 64th
on others.  (A compiler computes in float32 after all where the result is at once stored as float32 and cannot differ.)

It is an accident unless float64 is asked for: by an array or an argument of float64, or by a cast, `np.float64(x)`.
The values do not know where they come from, but the source does.  So an expression that has just turned float64 is
traced back through the assignments and calls that feed it.  What follows from an accident is not one more accident: the
line where float64 arises is told, not those that it spreads to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.memory import Array
from pmpp.simt.values import dtypes


def is_float64(dtype: np.dtype | None) -> bool:
    """Whether a type is float64.  (NumPy takes None for float64, so `==` alone does not do.)"""
    return dtype is not None and dtype == dtypes.FLOAT64


@dataclass(frozen=True)
class KernelWarning:
    """What is not wrong, but hardly meant.  `message` begins with the line, and says why.

    kind   "float64"; of notes "wraps" for an index from the end, "overflow" for a constant that does not fit
    """

    kind: str
    line: int
    message: str


class Warnings:
    """Those of one launch, and which expressions have been asked already whether their float64 is an accident."""

    def __init__(self) -> None:
        self.found: list[KernelWarning] = []
        self.notes: list[KernelWarning] = []
        self.asked: set = set()

    def now(self) -> tuple[int, int, int]:
        """How much there is so far."""
        return len(self.found), len(self.notes), len(self.asked)

    def back_to(self, before: tuple[int, int, int]) -> None:
        """Forget what came since `now`: it will come again."""
        del self.found[before[0] :], self.notes[before[1] :]
        if len(self.asked) != before[2]:
            self.asked = set()

    def note(self, kind: str, line: int, message: str) -> None:
        """Something that is as it is written, and may not be known: told once a line."""
        found = KernelWarning(kind, line, f"line {line}: {message}")
        if all((one.kind, one.line) != (kind, line) for one in self.notes):
            self.notes.append(found)


def arises(
    f: Frame, node: ast.AST, operands: list[tuple[ast.expr, np.dtype]], template: str, verb: str = "gives float64"
) -> None:
    """An expression is computed in float64 and not all of its operands are: warn, once, if that is an accident.

    operands   the operands' nodes and types
    template   how to write the expression, with {} for each operand
    """
    m, kept = f.m, f.m.warnings
    key = (id(node), *(dtype.num for _, dtype in operands))
    if kept is None or key in kept.asked:
        return
    kept.asked.add(key)
    cause = _cause(f, operands)
    if cause is None:
        return
    why, remedy = cause
    said = template.format(*(_describe(f, each, dtype) for each, dtype in operands))
    line = m.place.site or getattr(node, "lineno", m.place.line)
    found = KernelWarning("float64", line, f"line {line}: {said} {verb}{why}: {remedy}")
    if found not in kept.found:
        kept.found.append(found)


def _cause(f: Frame, operands: list[tuple[ast.expr, np.dtype]]) -> tuple[str, str] | None:
    """Why it is an accident, and what to write; None if it is none, or follows from another."""
    wide = [node for node, dtype in operands if is_float64(dtype)]
    narrow = [node for node, dtype in operands if dtype.kind == "f" and not is_float64(dtype)]
    whole = [node for node, dtype in operands if dtype.kind in "iub"]
    if any(_asked_for(f, node, set()) for node in wide):
        return None
    if not narrow and _launched_with_float64(f):
        return None  # an index or a factor, in a kernel that computes in float64
    if all(f.function.names.constant_value(node) is not None for node, _ in operands):
        return None  # computed by the compiler; what it meets is told
    for node in wide:
        origin = _origin(f, node, set())
        if origin is not None:
            return origin[0], " and ".join([f"write {origin[1]}", *map(_cast, whole)])
    if wide:
        return None
    return "", "write " + " and ".join(map(_cast, whole))


def _describe(f: Frame, node: ast.expr, dtype: np.dtype) -> str:
    if is_literal(node):
        return f"{dtype} literal {ast.unparse(node)}"
    return f"{dtype} {ast.unparse(node)}" if isinstance(node, (ast.Name, ast.Attribute)) else str(dtype)


def _cast(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"np.float32({text if len(text) <= 40 else '...'})"


def is_literal(node: ast.expr) -> bool:
    """Whether an expression is a literal, or the negative of one."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _launched_with_float64(f: Frame) -> bool:
    return any(map(_is_double, f.m.launch.arguments.values()))


def assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement assigns, each with the expression that its value comes from."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For):
        pairs = [(node.target, node.iter)]
    else:
        return
    while pairs:
        target, value = pairs.pop()
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple):
            same = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            pairs.extend(zip(target.elts, value.elts if same else [value] * len(target.elts), strict=True))


# -- tracing ---------------------------------------------------------------------------------------------------------


def _holder(f: Frame, name: str) -> Frame | None:
    """The frame that has the variable; None if the name is a global."""
    level = f.function.names.level(name)
    if level is None:
        return None
    for _ in range(level):
        f = f.outer
    return f


def _passed(f: Frame, name: str) -> ast.expr | None:
    """The expression that the caller gave for a parameter."""
    call = f.call
    if call is None or name not in f.function.params:
        return None
    for keyword in call.node.keywords:
        if keyword.arg == name:
            return keyword.value
    at = f.function.params.index(name)
    return call.node.args[at] if at < len(call.node.args) else None


def _feeds(f: Frame, name: str) -> Iterator[tuple[Frame, ast.expr]]:
    """The expressions that a variable gets its value from, with the frames that they belong to."""
    for value in f.function.names.values.get(name, ()):
        yield f, value
    passed = _passed(f, name)
    if passed is not None:
        yield f.caller, passed


def _asked_for(f: Frame, node: ast.expr, seen: set) -> bool:
    """Whether something that feeds the expression is float64 on purpose: an array, an argument, or a cast."""
    names = f.function.names
    if isinstance(node, ast.Name):
        holder = _holder(f, node.id)
        if holder is None:
            thing = names.static(node)
            return isinstance(thing, np.ndarray) and is_float64(thing.dtype)
        if (id(holder), node.id) in seen:
            return False
        seen.add((id(holder), node.id))
        value = holder.vars.get(node.id)
        if isinstance(value, Array):
            return is_float64(value.dtype)
        if (
            holder.caller is None
            and node.id in holder.function.params
            and _is_double(f.m.launch.arguments.get(node.id))
        ):
            return True
        return any(_asked_for(g, each, seen) for g, each in _feeds(holder, node.id))
    if isinstance(node, ast.Call):
        thing = names.static(node.func)
        dtype = dtypes.as_dtype(thing)
        if dtype is not None and thing not in (int, float, bool):
            return is_float64(dtype)
        if _casts_to_float64(f, getattr(thing, "py_func", None)):
            return True
        return any(_asked_for(f, each, seen) for each in (*node.args, *(k.value for k in node.keywords)))
    if isinstance(node, ast.Subscript):
        return _asked_for(f, node.value, seen)
    if isinstance(node, ast.IfExp):
        return _asked_for(f, node.body, seen) or _asked_for(f, node.orelse, seen)
    return any(_asked_for(f, each, seen) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))


def _is_double(value: Any) -> bool:
    """Whether an argument is a number or an array of float64, or a tuple with one."""
    if isinstance(value, tuple):
        return any(map(_is_double, value))
    return is_float64(getattr(value, "dtype", None))


def _casts_to_float64(f: Frame, py_func: Any) -> bool:
    """Whether a device function has a cast to float64 in it."""
    if py_func is None:
        return False
    names = f.function.compiled(py_func).names
    return any(
        isinstance(n, ast.Call) and is_float64(dtypes.as_dtype(t := names.static(n.func))) and t is not float
        for n in ast.walk(names.tree)
    )


def _origin(f: Frame, node: ast.expr, seen: set, integers: bool = False) -> tuple[str, str] | None:
    """The constant that makes an expression float64, as (what is to be said of it, what to write); None: no constant.

    `integers` also takes whole numbers, which make a variable float64 if it is float32 elsewhere.
    """
    names = f.function.names
    value = names.constant_value(node)
    if value is not None:
        if isinstance(value, (float, np.float64)) or (integers and isinstance(value, (int, np.integer))):
            what = "" if is_literal(node) else f"; {ast.unparse(node)} is {_kind(value)}"
            return what, _cast(node)
        return None
    if isinstance(node, ast.BinOp) and None not in map(names.constant_value, (node.left, node.right)):
        return "", _cast(node)
    if isinstance(node, ast.IfExp):
        return _origin(f, node.body, seen, integers) or _origin(f, node.orelse, seen, integers)
    if not isinstance(node, ast.Name):
        return None
    holder = _holder(f, node.id)
    if holder is None or (id(holder), node.id) in seen:
        return None
    seen.add((id(holder), node.id))
    for g, each in _feeds(holder, node.id):
        found = _origin(g, each, seen, True)
        if found is not None:
            what = f"; {node.id} is float64 because of {ast.unparse(each)} on line {each.lineno}"
            return what, found[1].removesuffix(" there") + " there"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, np.float64):
        return "a NumPy float64"
    return "a Python float" if isinstance(value, float) else "an integer"
