"""Which functions may wait: a loop whose end depends on what it reads from memory.

Such a kernel is run in lockstep first, on the chance that nobody has to wait (a search reads memory in a loop, too),
and its arrays are kept so that it can begin again by turns.  Others need no copy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Calls whose result depends on nothing but their arguments.
_PURE = {
    "abs", "bool", "brev", "clz", "ffs", "float", "float16", "float32", "float64", "grid", "gridsize", "int", "int8",
    "int16", "int32", "int64", "len", "max", "min", "popc", "range", "round", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip


def may_wait(tree: ast.AST) -> bool:
    """Whether a function has a loop that may end only when another thread has written something."""
    return any(_ends_by_memory(loop) for loop in ast.walk(tree) if isinstance(loop, (ast.While, ast.For)))


def _ends_by_memory(loop: ast.While | ast.For) -> bool:
    deciding: list[ast.expr] = [loop.test] if isinstance(loop, ast.While) else []
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(node)):
            deciding.append(node.test)
    known: set[str] = set()
    while deciding:
        expression = deciding.pop()
        if _reads_memory(expression):
            return True
        names = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)} - known
        known |= names
        deciding += [value for name in names for value in _assigned(loop, name)]
    return False


def _assigned(loop: ast.AST, name: str) -> Iterator[ast.expr]:
    """What the loop assigns to a variable."""
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is None or not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            continue
        if any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target)):
            yield value


def _reads_memory(expression: ast.expr) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Subscript) and not _is_shape(node.value):
            return True
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name not in _PURE:
                return True
    return False


def _is_shape(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "strides")
