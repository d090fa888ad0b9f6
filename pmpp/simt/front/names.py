"""What the names in a function stand for, and what of it is known before the kernel runs."""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import intrinsics
from pmpp.simt.front import accidental_float64
from pmpp.simt.front.inference import Paths
from pmpp.simt.front.nodes import children, once, walk
from pmpp.simt.values import dtypes
from pmpp.simt.values.errors import UnsupportedError

#: Stands for "not known before the kernel runs".
DYNAMIC = object()


def is_value(thing: Any) -> bool:
    """Whether a Python object is a number or an array in a kernel, whose attributes are the kernel's."""
    return isinstance(thing, (np.ndarray, np.generic)) or type(thing) in (bool, int, float, complex)


def has_attributes(thing: Any) -> bool:
    """Whether Numba compiles the attributes of a global: of modules, enumerations, types of numbers and tuples."""
    if isinstance(thing, type):
        known = issubclass(thing, (enum.Enum, np.generic)) or thing.__module__.partition(".")[0] in _OF_NUMBA
    else:
        kind = type(thing)
        known = (
            inspect.ismodule(thing)
            or callable(thing)
            or isinstance(thing, (enum.Enum, tuple, str, np.dtype, np.iinfo, np.finfo, list, dict, set, frozenset))
            or kind.__module__.partition(".")[0] in _OF_NUMBA
            or hasattr(thing, "__cuda_array_interface__")
        )
    return known


#: Packages that make what stands for something in a kernel.
_OF_NUMBA = ("numba", "numba_cuda", "pmpp")


def _attribute_of_what(thing: Any, written: str) -> str:
    """What the user wrote and what it is; a SimpleNamespace may stand for something else, so its type says nothing."""
    kind = f", a {type(thing).__name__}"
    if isinstance(thing, type | types.SimpleNamespace):
        kind = ", a class" if isinstance(thing, type) else ", which is no module"
    return f"an attribute of {written}{kind}: give it a global name of its own outside the kernel"


def calls_something(node: ast.expr) -> bool:
    """Whether computing an expression may do more than give a value."""
    return any(isinstance(n, ast.Call) for n in walk(node))


@once
def own_nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a function, without those of functions inside it (but with their definitions)."""
    found, pending = [], list(children(tree))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            pending += children(node)
    return found


class Names:
    """What the names in a function stand for: its own variables, those of the function around it, or Python objects."""

    def __init__(self, function: Any, tree: ast.FunctionDef | ast.Lambda, around: Names | None = None) -> None:
        self.function, self.around, self.tree = function, around, tree
        if around is None:
            closure = inspect.getclosurevars(function.py_func)
            self.outer: dict[str, Any] = {**function.py_func.__globals__, **closure.nonlocals}
        else:
            self.outer = around.outer
        self.locals = set(function.params)
        self.assigned_once: dict[str, ast.expr] = {}
        self.stored_from: dict[str, int] = {}  # the first line on which each variable is assigned
        self.constants: dict[str, tuple[ast.AST, Any]] = {}  # what variables hold here: the assignment and its constant
        self.values: dict[str, list[ast.expr]] = {}  # what each variable is assigned, for accidental_float64.py
        self._find_locals(tree)
        self.uses: set[str] = around.uses if around else set()
        self.local_bytes: list[int] = around.local_bytes if around else []  # of local arrays, as far as known
        self.callees: list[Callable] = around.callees if around else []
        self.waiting: dict[int, bool] = {}  # whether a node may have to wait, by id; for expressions.py
        self.computed_before: set[int] = set()  # operands that are computed before the node being compiled
        self.literal_shapes: list[UnsupportedError] = []  # what to say if an argument is no constant of the caller

    def _find_locals(self, tree: ast.FunctionDef | ast.Lambda) -> None:
        values: dict[str, list[ast.expr | None]] = {}
        for node in own_nodes(tree):
            for name, value in accidental_float64.assignments(node):
                self.values.setdefault(name, []).append(value)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                values.setdefault(node.id, []).append(None)
                self.stored_from[node.id] = min(node.lineno, self.stored_from.get(node.id, node.lineno))
            elif isinstance(node, ast.FunctionDef):
                values.setdefault(node.name, []).append(None)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
        self.locals |= values.keys()
        for name, found in values.items():  # the assignment itself and the name on its left
            if len(found) == 2 and name not in self.function.params:
                self.assigned_once.update((name, value) for value in found if value is not None)

    def level(self, name: str) -> int | None:
        """How many functions further out a variable lives: 0 for this one's own; None if it is no variable."""
        names, level = self, 0
        while names is not None:
            if name in names.locals:
                return level
            names, level = names.around, level + 1
        return None

    def refuse(self, node: ast.AST, message: str) -> UnsupportedError:
        line = getattr(node, "lineno", self.function.first_line)
        return UnsupportedError(f"{self.function.file}:{line}: in {self.function.name}: {message}")

    # -- what is known before the kernel runs ------------------------------------------------------------------------

    def static(self, node: ast.expr) -> Any:
        """The Python object that an expression of globals and literals stands for, or DYNAMIC."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if self.level(node.id) is not None:
                return DYNAMIC
            if node.id in self.outer:
                return self.outer[node.id]
            return getattr(builtins, node.id, DYNAMIC)
        if isinstance(node, ast.Attribute):
            base = self.static(node.value)
            if base is DYNAMIC or is_value(base):
                return DYNAMIC
            path = intrinsics.device_path(base)
            if path is not None:
                return intrinsics.DevicePath(f"{path}.{node.attr}")
            if not has_attributes(base) and node.attr in dir(base):
                raise self.refuse(
                    node,
                    f"Numba does not compile {ast.unparse(node)}, {_attribute_of_what(base, ast.unparse(node.value))}",
                )
            return getattr(base, node.attr, DYNAMIC)
        if isinstance(node, ast.Call) and self.static(node.func) in (np.iinfo, np.finfo):
            kind = self.static(node.args[0]) if len(node.args) == 1 and not node.keywords else DYNAMIC
            return DYNAMIC if dtypes.as_dtype(kind) is None else self.static(node.func)(dtypes.as_dtype(kind))
        return DYNAMIC

    def static_int(self, node: ast.expr) -> Any:
        """Like `static`, for array shapes: also tuples, and names assigned such a constant once."""
        if isinstance(node, ast.Tuple):
            parts = tuple(self.static_int(e) for e in node.elts)
            return DYNAMIC if DYNAMIC in parts else parts
        if isinstance(node, ast.BinOp):
            # Python itself computes 2 * 16.  Numba does not compute W + 1 of a global W, although it knows W.
            return folded(node)
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            return self.static_int(self.assigned_once[node.id])
        return self.static(node)

    def fixed(self, node: ast.expr) -> Any:
        """The constant that Numba knows an expression to be before it types anything, or DYNAMIC."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.constants[node.id][1]
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            return self.fixed(self.assigned_once[node.id])
        if isinstance(node, ast.IfExp) and not all(self.reached(node.test)):
            return self.fixed(node.body if self.reached(node.test)[0] else node.orelse)
        if (
            isinstance(node, ast.BoolOp)
            and len(parts := self.undecided(node.values, isinstance(node.op, ast.And))) == 1
        ):
            return self.fixed(parts[0])
        value = folded(node)
        if value is DYNAMIC and isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
            value = self.static(node)
        plain = isinstance(value, np.generic) or type(value) in (bool, int, float, complex, str, type(None))
        return value if plain else DYNAMIC

    def reached(self, test: ast.expr) -> tuple[bool, bool]:
        """Whether the code under a condition and its alternative can be reached, as far as Numba knows before it types.

        Numba leaves out what is never reached: such code gives no variable a type.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.reached(test.operand)[::-1]
        if isinstance(test, ast.BoolOp):
            yes, no = zip(*map(self.reached, test.values), strict=True)
            return (all(yes), any(no)) if isinstance(test.op, ast.And) else (any(yes), all(no))
        value = self.fixed(test)
        if value is DYNAMIC and isinstance(test, (ast.Compare, ast.BinOp)):
            value = self.of_two_constants(test)
        return (True, True) if value is DYNAMIC else (bool(value), not value)

    def undecided(self, values: list[ast.expr], is_and: bool) -> list[ast.expr]:
        """The parts of `and` or `or` that can be its value."""
        kept = []
        for value in values:
            true, false = self.reached(value)
            ends, passes = (not true, not false) if is_and else (not false, not true)
            if not passes or value is values[-1] or calls_something(value):
                kept.append(value)
            if ends:
                break
        return kept

    def learn(self, node: ast.stmt) -> None:
        """Note what a statement that is no branch and no loop leaves in variables."""
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        value = self.fixed(node.value) if isinstance(target, ast.Name) else DYNAMIC
        self.forget(node)
        if value is not DYNAMIC:
            self.constants[target.id] = node, value

    def forget(self, node: ast.AST) -> None:
        """Any variable that is assigned here may hold something else from now on."""
        for name in _stored(node):
            self.constants.pop(name, None)

    def of_two_constants(self, node: ast.Compare | ast.BinOp) -> Any:
        """What Python makes of an operation on two constants, or DYNAMIC."""
        if isinstance(node, ast.BinOp):
            sides, op = (node.left, node.right), node.op
        else:
            sides, op = (node.left, node.comparators[0]), node.ops[0]
        values = [self.fixed(side) for side in sides]
        one = isinstance(node, ast.BinOp) or len(node.ops) == 1
        if not one or type(op) not in _OPERATORS or any(value is DYNAMIC for value in values):
            return DYNAMIC
        try:
            with np.errstate(all="ignore"):
                return _OPERATORS[type(op)](*values)
        except Exception:  # Numba leaves it to the kernel then
            return DYNAMIC

    def constant_value(self, node: ast.expr) -> Any:
        """The number that the source says: a literal, a global, one of them negated or cast; None for anything else."""
        if isinstance(node, ast.Call) and len(node.args) == 1:
            dtype, value = dtypes.as_dtype(self.static(node.func)), self.constant_value(node.args[0])
            typed = dtypes.constant(value)
            if dtype is None or typed is None:
                return None
            if typed.dtype.kind == "c" and dtype.kind not in "cb":
                return None
            with np.errstate(all="ignore"):
                return dtypes.cast(typed, dtype)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant_value(node.operand)
            with np.errstate(over="ignore"):
                return None if value is None else -value
        value = self.static(node)
        return value if isinstance(value, (int, float, np.integer, np.floating)) else None

    def is_constant(self, node: ast.expr) -> bool:
        """Whether the source says a number, or an operation on such numbers."""
        if isinstance(node, ast.BinOp):
            return self.is_constant(node.left) and self.is_constant(node.right)
        return self.constant_value(node) is not None

    def paths(self, *nodes: ast.AST) -> Paths:
        """What the type inference wants to know about some nodes."""
        return Paths(nodes, self.locals)


_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_FOLDED = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp)
_LITERAL = (*_FOLDED, ast.Constant, ast.Tuple, ast.expr_context, ast.operator, ast.unaryop, ast.boolop)
#: Instructions of Python code that does nothing but return a constant.
_CONSTANT = {"RESUME", "NOP", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST"}


@once
def _stored(node: ast.AST) -> set[str]:
    """The variables that a statement assigns."""
    below = list(walk(node))
    functions = {n.name for n in below if isinstance(n, ast.FunctionDef)}
    return functions | {n.id for n in below if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def counts_from_the_end(node: ast.expr) -> bool:
    """Whether an index is written to be negative, as in `x[-1 - i]`: it begins with a minus, and nothing is added."""
    while isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
        node = node.left
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert))


def leaves(body: list[ast.stmt]) -> bool:
    """Whether what follows a list of statements is not reached through it."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Break, ast.Continue, ast.Raise))


def _tests(source: str) -> int:
    return sum(step.opname == "COMPARE_OP" for step in dis.get_instructions(compile(source, "", "exec")))


#: Whether this Python's compiler writes the test of a `while` loop twice: before the loop and behind its body.  Then
#: Numba sees that `k = 0` and `while k < 4` go round at least once.
TESTS_TWICE = _tests("while k < 4: k += 1") == 2


def folded(node: ast.expr) -> Any:
    """What Python's compiler makes of literals, before Numba sees any: 7 of `2 * 3 + 1`.  Or DYNAMIC."""
    if isinstance(node, _FOLDED) and all(isinstance(n, _LITERAL) for n in walk(node)):
        code = compile(ast.Expression(node), "", "eval")
        if {instruction.opname for instruction in dis.get_instructions(code)} <= _CONSTANT:
            value = eval(code)
            return value if isinstance(value, (bool, int, float, complex, tuple)) else DYNAMIC
    return DYNAMIC
