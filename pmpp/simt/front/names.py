"""What the names in a function stand for, and what of it is known before the kernel runs."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.api import intrinsics
from pmpp.simt.front import accidental_float64
from pmpp.simt.front.inference import Paths
from pmpp.simt.values import dtypes
from pmpp.simt.values.errors import UnsupportedError

#: Stands for "not known before the kernel runs".
DYNAMIC = object()


def own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it (but with their definitions)."""
    pending = list(ast.iter_child_nodes(tree))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


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
        self.values: dict[str, list[ast.expr]] = {}  # what each variable is assigned, for accidental_float64.py
        self._find_locals(tree)
        self.uses: set[str] = around.uses if around else set()
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
            if base is DYNAMIC or isinstance(base, (np.ndarray, np.generic)):
                return DYNAMIC
            path = intrinsics.device_path(base)
            if path is not None:
                return intrinsics.DevicePath(f"{path}.{node.attr}")
            return getattr(base, node.attr, DYNAMIC)
        return DYNAMIC

    def static_int(self, node: ast.expr) -> Any:
        """Like `static`, for array shapes: also tuples, and names assigned such a constant once."""
        if isinstance(node, ast.Tuple):
            parts = tuple(self.static_int(e) for e in node.elts)
            return DYNAMIC if DYNAMIC in parts else parts
        if isinstance(node, ast.BinOp):
            # Python itself computes 2 * 16.  Numba does not compute W + 1 of a global W, although it knows W.
            return _literal_arithmetic(node)
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            return self.static_int(self.assigned_once[node.id])
        return self.static(node)

    def constant_value(self, node: ast.expr) -> Any:
        """The number that the source says: a literal, a global, one of them negated or cast; None for anything else."""
        if isinstance(node, ast.Call) and len(node.args) == 1:
            dtype, value = dtypes.as_dtype(self.static(node.func)), self.constant_value(node.args[0])
            typed = dtypes.constant(value)
            if dtype is None or typed is None:
                return None
            with np.errstate(all="ignore"):
                return dtypes.cast(typed, dtype)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant_value(node.operand)
            return None if value is None else -value
        value = self.static(node)
        return value if isinstance(value, (int, float, np.integer, np.floating)) else None

    def constant_exponent(self, node: ast.expr) -> int | None:
        """The exponent that Numba multiplies out: a literal, a global, or a variable that only ever is that number."""
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            return self.constant_exponent(self.assigned_once[node.id])
        if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            return None  # Numba does not compute -N of a global N
        value = self.constant_value(node) if isinstance(node, ast.UnaryOp) else self.static(node)
        return value if type(value) is int else None

    def paths(self, *nodes: ast.AST) -> Paths:
        """What the type inference wants to know about some nodes."""
        return Paths(nodes, self.locals)


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def _literal_arithmetic(node: ast.expr) -> Any:
    """What an expression of literals comes to; DYNAMIC if there is anything else in it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        a, b = _literal_arithmetic(node.left), _literal_arithmetic(node.right)
        return DYNAMIC if DYNAMIC in (a, b) else _ARITHMETIC[type(node.op)](a, b)
    return DYNAMIC
