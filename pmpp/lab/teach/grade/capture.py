"""What an answer is made of, as data: the text that defines it, and the values of all names that it uses.

A student's process takes answers apart with `taken`; the grader puts them together again with
`pmpp.lab.teach.grade.rebuild`. Between the two is JSON, so nothing of a student's process gets into the grader's but
text and numbers. A list of nodes refers to its members by their places; the last node is the answer::

    ["plain", 3]  ["float", "nan"]  ["complex", "1j"]  ["numpy", "<f4", base64]  ["array", "<f4", shape, base64]
    ["tuple" | "list" | "set", places]  ["dict", pairs of places]
    ["module", "math"]          a module
    ["object", "numpy", "sin"]  what a module of pmpp, NumPy or Python calls so
    ["names", None, {name: place}]  of any other object, the attributes that the code names
    ["kernel", place, device, threads at most]
    ["function", {file, text, name, qualname, line, column, cell, globals, defaults}]
    ["class", {file, text, name, line, cell, globals}, {name: place}]
    ["missing", words]          what cannot be taken over
"""

from __future__ import annotations

import ast
import base64
import dis
import inspect
import json
import linecache
import sys
import types
import typing

import numpy as np

__all__ = ["LARGEST", "NotTakenError", "from_bytes", "taken"]

LARGEST = 4_000_000  # bytes of one answer as JSON
DEEPEST = 40  # functions and values inside one another

Nodes = list[list]


class NotTakenError(ValueError):
    """An answer that cannot be taken over; the message says why."""


def from_bytes(text: str, dtype: str, shape: typing.Sequence[int] = ()) -> np.ndarray:
    """An array from the base64 of its bytes."""
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(tuple(shape)).copy()


def taken(answer: typing.Any, cells: typing.Mapping[str, int] = types.MappingProxyType({})) -> Nodes:
    """An answer as data.

    Args:
        answer: a kernel, a function or a class.
        cells: the number of the cell that each file name stands for.

    Raises NotTakenError if it is too large, or if its source is not kept.
    """
    taking = _Taking(cells)
    taking.place(answer, "the answer", frozenset(), 0)
    size = len(json.dumps(taking.nodes))
    if size > LARGEST:
        raise NotTakenError(f"the answer refers to {size:,} bytes of data; at most {LARGEST:,} are taken over")
    return taking.nodes


class _Taking:
    def __init__(self, cells: typing.Mapping[str, int]) -> None:
        self.nodes: Nodes = []
        self.cells = cells
        self.places: dict[int, int] = {}
        self.alive: list = []  # so that no id is given away again
        self.read: dict[str, ast.Module] = {}

    def place(self, value: typing.Any, name: str, used: frozenset[str], depth: int) -> int:
        """The place of a value among the nodes; ``used`` are the names in the code that refers to it."""
        known = self.places.get(id(value))
        if known is not None:
            node = self.nodes[known]
            if node and node[0] in ("names", "class"):  # another function may ask for more of it
                self._attributes(node, value, used, depth)
            return known
        self.alive.append(value)
        at = self.places[id(value)] = len(self.nodes)
        self.nodes.append([])
        self.nodes[at] = (
            self._node(value, name, used, depth, at) if depth < DEEPEST else ["missing", f"{name}, which nests deeply"]
        )
        return at

    def _node(self, value: typing.Any, name: str, used: frozenset[str], depth: int, at: int) -> list:
        if value is None or type(value) in (bool, int, str) or value is Ellipsis:
            return ["plain", "..."] if value is Ellipsis else ["plain", value]
        if type(value) in (float, complex):
            return [type(value).__name__, repr(value)]
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return ["numpy", value.dtype.str, base64.b64encode(value.tobytes()).decode()]
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            return ["array", value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]
        if type(value) in (tuple, list, set, frozenset):
            parts = [self.place(part, f"a part of {name}", used, depth + 1) for part in value]
            return [{frozenset: "set"}.get(type(value), type(value).__name__), parts]
        if type(value) is dict:
            parts = [
                [self.place(part, f"a part of {name}", used, depth + 1) for part in pair] for pair in value.items()
            ]
            return ["dict", parts]
        if isinstance(value, types.ModuleType) and not _sets_exercises(value.__name__):
            return ["module", value.__name__]
        if found := _known(value, name):
            return ["object", *found]
        return self._code(value, name, used, depth, at)

    def _code(self, value: typing.Any, name: str, used: frozenset[str], depth: int, at: int) -> list:
        function = getattr(value, "py_func", None)
        if inspect.isfunction(function):
            most = getattr(value, "max_threads", None)
            inner = self.place(function, name, used, depth + 1)
            return ["kernel", inner, bool(getattr(value, "device", False)), most if type(most) is int else None]
        if inspect.isfunction(value):
            return self._function(value, name, depth)
        if inspect.isclass(value) and value.__module__ == "__main__":
            node = self.nodes[at] = ["class", {}, {}]
            node[1] = self._class(value, depth)
            self._attributes(node, value, used, depth)
            return node
        if inspect.isclass(value) or isinstance(value, types.ModuleType | types.SimpleNamespace):
            self.nodes[at] = ["names", None, {}]
            self._attributes(self.nodes[at], value, used, depth)
            return self.nodes[at]
        return ["missing", f"{name}, a {type(value).__name__}"]

    def _attributes(self, node: list, value: typing.Any, used: frozenset[str], depth: int) -> None:
        for attribute in sorted(used - node[2].keys()):
            if not attribute.startswith("__") and hasattr(value, attribute):
                node[2][attribute] = self.place(getattr(value, attribute), attribute, used, depth + 1)

    def _function(self, function: types.FunctionType, name: str, depth: int) -> list:
        code = function.__code__
        text = self._text(code.co_filename)
        if not text:
            raise NotTakenError(f"the source of {name} ({function.__name__}) is not in the notebook")
        column = next((c for _, _, c, _ in code.co_positions() if c), 0) if function.__name__ == "<lambda>" else 0
        around = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        values = {**function.__globals__, **{free: cell.cell_contents for free, cell in around.items() if _full(cell)}}
        used, loaded = _names(code), _loaded(code)
        return [
            "function",
            {
                "file": code.co_filename,
                "text": text,
                "name": function.__name__,
                "qualname": code.co_qualname,
                "line": code.co_firstlineno,
                "column": column,
                "cell": self.cells.get(code.co_filename),
                "globals": self._globals(values, loaded, used, depth),
                "defaults": [self.place(one, "a default", used, depth + 1) for one in function.__defaults__ or ()],
            },
        ]

    def _class(self, made: type, depth: int) -> dict:
        files = {one.__code__.co_filename for one in vars(made).values() if inspect.isfunction(one)}
        files |= {one.__func__.__code__.co_filename for one in vars(made).values() if hasattr(one, "__func__")}
        for file in [*files, *reversed(self.cells)]:
            text = self._text(file)
            for node in ast.walk(self._tree(file)):
                if isinstance(node, ast.ClassDef) and node.name == made.__name__:
                    inner = compile(ast.Module([node], []), file, "exec")
                    loaded = _loaded(inner) - {made.__name__}
                    names = self._globals(vars(sys.modules["__main__"]), loaded, _names(inner), depth)
                    about = {"file": file, "text": text, "name": node.name, "line": node.lineno, "globals": names}
                    return about | {"cell": self.cells.get(file)}
        raise NotTakenError(f"the source of the class {made.__name__} is not in the notebook")

    def _globals(
        self, values: typing.Mapping[str, typing.Any], loaded: frozenset[str], used: frozenset[str], depth: int
    ) -> dict[str, int]:
        return {name: self.place(values[name], name, used, depth + 1) for name in sorted(loaded) if name in values}

    def _text(self, file: str) -> str:
        return "".join(linecache.getlines(file))

    def _tree(self, file: str) -> ast.Module:
        if file not in self.read:
            try:
                self.read[file] = ast.parse(self._text(file))
            except SyntaxError:
                self.read[file] = ast.Module([], [])
        return self.read[file]


def _loaded(code: types.CodeType) -> frozenset[str]:
    """The names of globals, and of variables around it, that code reads, and the functions inside it."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    own = {step.argval for step in dis.get_instructions(code) if step.opname in loads}
    inner = (_loaded(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset({*own, *code.co_freevars}).union(*inner)


def _names(code: types.CodeType) -> frozenset[str]:
    """All names in code, those of attributes too, and in the functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset({*code.co_names, *code.co_freevars}).union(*inner)


def _full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not assigned yet
        return False


def _sets_exercises(module: str) -> bool:
    return module.startswith("pmpp.") and "exercises" in module


def _shared(module: str) -> bool:
    """Whether the grader has the same module."""
    top = module.partition(".")[0]
    return module != "__main__" and (top in ("numpy", "pmpp") or top in sys.stdlib_module_names)


def _known(value: typing.Any, name: str) -> tuple[str, str] | None:
    """A module and the name that it has for a value, if the grader has the same."""
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, np.dtype):
        return "dtype", value.str
    code = getattr(getattr(value, "py_func", value), "__code__", None)
    if isinstance(module, str) and not _shared(module) and "site-packages" not in getattr(code, "co_filename", ""):
        module = None  # of the notebook
    for where, what in ((module, own), ("numpy", own), ("builtins", own), ("pmpp.simt.host.cuda", own)):
        if isinstance(where, str) and isinstance(what, str):
            found: typing.Any = sys.modules.get(where)
            for part in what.split("."):
                found = getattr(found, part, None)
            if found is value or (
                found is not None and inspect.isfunction(value) and getattr(found, "py_func", 0) is value
            ):
                return where, what
    if type(value).__module__.startswith(("pmpp.", "numpy")):  # an object without a name of its own
        for where, holder in sorted(sys.modules.items()):
            if where.startswith("pmpp.") and getattr(holder, "__dict__", {}).get(name) is value:
                return where, name
    return None
