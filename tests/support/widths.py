"""NumPy's default integer: which calls depend on it, and a NumPy in which it has 32 bits.

On some platforms, a browser among them, NumPy's default integer (`np.int_`, `np.intp`) has 32 bits.  There `np.arange`
gives int32 if nothing is said, sums wrap, and `take`, `bincount`, `repeat` and `choose` refuse int64.

    unsaid   reads a file and finds the calls that leave an integer's width to the platform
    Narrow   stands in for the module `numpy` and does what NumPy does there, as far as functions go
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: Functions that make integers of the default width unless told otherwise, and where their dtype stands.
_MAKERS = {"arange": None, "array": 1, "full": 2, "cumsum": 2, "cumprod": 2, "sum": 2, "prod": 2, "indices": 1}
#: Methods likewise: they add up integers in the default width if theirs is less.
_ADDERS = ("sum", "cumsum", "prod", "cumprod")
#: What takes indices of no other type than np.intp, and which argument that is (for methods, one less).
_TAKERS = {"take": 1, "bincount": 0, "repeat": 1, "choose": 0}
#: Names that mean a type of the default width.
_DEFAULTS = ("int_", "uint", "long", "ulong", "uintp")


def unsaid(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each expression whose result depends on the width of NumPy's default integer.

    >>> list(unsaid("np.arange(n)"))
    [(1, 'np.arange(n)')]
    >>> list(unsaid("np.arange(n, dtype=np.int64)"))
    []
    """
    tree = ast.parse(text)
    indices = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_index(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_numpy(node.value) and node.attr in _DEFAULTS:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not _says(node, indices):
            yield node.lineno, ast.unparse(node)


def _is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "np"


def _says(call: ast.Call, indices: set[str]) -> bool:
    """Whether a call of an attribute leaves no width open; `indices` are names that stand for results of `as_intp`."""
    name, of_numpy = call.func.attr, _is_numpy(call.func.value)
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "math":
        return True
    said = any(keyword.arg == "dtype" for keyword in call.keywords)
    if of_numpy and name in _MAKERS:
        at = _MAKERS[name]
        return said or (at is not None and len(call.args) > at) or (name in ("array", "full") and _carries_type(call))
    if of_numpy and name == "where" and len(call.args) == 3:
        return not all(_untyped(side) for side in call.args[1:])
    if not of_numpy and name in _ADDERS:
        return said or len(call.args) > 1
    if name in _TAKERS:
        at = _TAKERS[name] if of_numpy else max(0, _TAKERS[name] - 1)
        if at >= len(call.args):
            return False
        plain = name == "repeat" and not isinstance(call.args[at], ast.Call)  # a number of times: mostly a plain int
        return plain or _is_index(call.args[at], indices)
    return True


def _carries_type(call: ast.Call) -> bool:
    """`np.array(x)` and `np.full(shape, x)` of something that has a type: not of lists and numbers."""
    value = call.args[-1]
    return not isinstance(value, (ast.List, ast.ListComp, ast.Constant, ast.UnaryOp, ast.BinOp))


def _untyped(node: ast.expr) -> bool:
    """A Python int: written out, or a limit that `np.iinfo` gives."""
    if isinstance(node, ast.UnaryOp):
        return _untyped(node.operand)
    if isinstance(node, ast.Attribute):
        return node.attr in ("min", "max") and ast.unparse(node.value).startswith("np.iinfo(")
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_index(node: ast.expr, indices: set[str]) -> bool:
    """`as_intp(...)`, a part of that, or a name for it."""
    if isinstance(node, ast.Subscript):
        return _is_index(node.value, indices)
    if isinstance(node, ast.Call):
        function = node.func
        return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) == "as_intp"
    return isinstance(node, ast.Name) and node.id in indices


class Narrow(types.ModuleType):
    """NumPy where the default integer has 32 bits: what its functions return and what they refuse.

    Methods of arrays are NumPy's own, in C; of those `unsaid` takes care.
    """

    def __init__(self) -> None:
        super().__init__("numpy")

    def __getattr__(self, name: str) -> Any:
        thing = getattr(np, name)
        if name in _PLACES:
            return _returns_narrow(thing)
        return _takes_narrow(thing, _TAKERS[name]) if name in _TAKERS else thing

    intp, int_, uint, uintp = np.int32, np.int32, np.uint32, np.uint32

    @staticmethod
    def arange(*bounds: Any, dtype: Any = None) -> np.ndarray:
        """int32 if nothing is said."""
        return np.arange(*bounds, dtype=_or_narrow(dtype, bounds))

    @staticmethod
    def array(value: Any, dtype: Any = None, **rest: Any) -> np.ndarray:
        """Of Python's ints int32."""
        if dtype is None and not isinstance(value, (np.ndarray, np.generic)) and np.array(value).dtype == np.int64:
            dtype = np.int32 if _of_python_ints(value) else None
        return np.array(value, dtype, **rest)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any = None) -> np.ndarray:
        """Of a Python int int32."""
        return np.full(shape, value, _or_narrow(dtype, (value,)))

    @staticmethod
    def where(condition: Any, *sides: Any) -> Any:
        """Between two Python ints int32."""
        found = np.where(condition, *sides)
        return found.astype(np.int32) if not sides or all(type(side) is int for side in sides) else found

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> np.ndarray:
        """Of a Python int int32."""
        return np.asarray(value, np.int32 if dtype is None and type(value) is int else dtype)


#: Functions whose results are positions: np.intp.
_PLACES = (
    "argmax", "argmin", "argsort", "argwhere", "count_nonzero", "flatnonzero", "nonzero", "searchsorted", "bincount",
)  # fmt: skip


def _or_narrow(dtype: Any, values: tuple) -> Any:
    return np.int32 if dtype is None and all(type(value) is int for value in values) else dtype


def _of_python_ints(value: Any) -> bool:
    return type(value) is int or (isinstance(value, (list, tuple)) and all(map(_of_python_ints, value)))


def _returns_narrow(function: Callable) -> Callable:
    def call(*args: Any, **keywords: Any) -> Any:
        if function is np.bincount:
            _check_index(function, args[0])
        found = function(*args, **keywords)
        if isinstance(found, tuple):
            return tuple(each.astype(np.int32) for each in found)
        return found.astype(np.int32) if isinstance(found, (np.ndarray, np.generic)) else found

    return call


def _takes_narrow(function: Callable, at: int) -> Callable:
    def call(*args: Any, **keywords: Any) -> Any:
        _check_index(function, args[at])
        return function(*args, **keywords)

    return call


def _check_index(function: Callable, index: Any) -> None:
    if isinstance(index, (np.ndarray, np.generic)) and not np.can_cast(index.dtype, np.int32, "safe"):
        raise TypeError(f"np.{function.__name__}: cannot cast array data from {index.dtype} to int32")
