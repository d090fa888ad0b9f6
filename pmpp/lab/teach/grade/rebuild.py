"""An answer put together again from data, for a process that has never run a cell of the notebook.

A kernel is not run by Python: the interpreter walks through its source, and knows the words of the kernel language
alone. So nothing that stands in a kernel can reach what judges it.

An answer that is Python, a function or a class for the host, does run beside its judge. Its source is screened before:
it is compiled with few builtins, modules are given to it for reading alone, and names that lead out of it, such as
``__globals__``, are refused. `RefusedError` says which, and on which line.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import linecache
import types
import typing
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from pmpp.lab.teach.grade.capture import Nodes, from_bytes
from pmpp.lab.teach.points import known
from pmpp.runtime import device

__all__ = ["Answer", "RefusedError", "rebuilt"]

MODULES = {
    "bisect", "cmath", "collections", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq", "itertools",
    "math", "numpy", "numpy.fft", "numpy.linalg", "numpy.random", "operator", "statistics", "time", "typing",
    "collections.abc", "__future__", "warnings",
}  # fmt: skip
FRAMES = {"f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_code", "gi_frame", "cr_code", "cr_frame",
          "ag_code", "ag_frame", "tb_frame", "tb_next", "mro", "attrgetter", "methodcaller", "get_type_hints",
          "ForwardRef", "evaluate_forward_ref", "ctypeslib", "ctypes", "update_wrapper", "wraps", "singledispatch",
          "singledispatchmethod", "_convert_", "_module", "_written_"}  # fmt: skip
DUNDERS = {"__init__", "__call__", "__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__contains__",
           "__enter__", "__exit__", "__repr__", "__str__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__",
           "__hash__", "__bool__", "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__",
           "__neg__", "__abs__", "__radd__", "__rsub__", "__rmul__", "__matmul__", "__name__", "__doc__",
           "__post_init__", "__slots__", "__int__", "__float__", "__index__", "__array__", "__iadd__", "__isub__",
           "__imul__", "__itruediv__", "__rtruediv__", "__pos__", "__and__", "__or__", "__xor__", "__invert__",
           "__reversed__", "__round__"}  # fmt: skip
LEFT_OUT = {"breakpoint", "compile", "copyright", "credits", "delattr", "eval", "exec", "exit", "globals", "help",
            "input", "license", "locals", "open", "quit", "setattr", "vars"}  # fmt: skip


CLOSED = {types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType}


class RefusedError(AttributeError):
    """An answer that is not run beside its judge; the message says what it uses."""


class Answer(typing.NamedTuple):
    """An answer; the lines of its source, for the report; and what could not be taken over, in words."""

    value: typing.Any
    source: str
    missing: tuple[str, ...]
    cell: int | None


def rebuilt(nodes: Nodes, given: Mapping[str, Collection[str]], *, kernel: bool) -> Answer:
    """The answer that a student's process took apart.

    Args:
        nodes: what `pmpp.lab.teach.grade.capture.taken` has returned.
        given: by module with exercises, what students may use of it.
        kernel: whether the exercise asks for a kernel. It may also be given as the plain function of one.

    Raises RefusedError for an answer that is not run, and ValueError for data of another form.
    """
    building = _Building(nodes, given)
    try:
        value = building.value(0, interpreted=kernel)
    except RefusedError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the answer came in an unknown form: {type(error).__name__}: {error}") from None
    return Answer(value, building.source, tuple(building.missing), building.cell)


class _Building:
    def __init__(self, nodes: Nodes, given: Mapping[str, Collection[str]]) -> None:
        self.nodes, self.given = nodes, given
        self.made: dict[tuple[int, bool], typing.Any] = {}
        self.missing: list[str] = []
        self.source = ""
        self.cell: int | None = None

    def value(self, at: int, *, interpreted: bool) -> typing.Any:
        """A node's value; ``interpreted``: for a kernel, which reads modules as they are."""
        key = int(at), interpreted
        if key not in self.made:
            kind, *about = self.nodes[key[0]]
            self.made[key] = getattr(self, f"of_{kind}")(key, *about)
        return self.made[key]

    def of_plain(self, key: tuple, value: typing.Any) -> typing.Any:
        return value

    def of_float(self, key: tuple, text: str) -> float:
        return float(text)

    def of_complex(self, key: tuple, text: str) -> complex:
        return complex(text)

    def of_numpy(self, key: tuple, dtype: str, text: str) -> np.generic:
        return from_bytes(text, dtype)[()]

    def of_array(self, key: tuple, dtype: str, shape: list, text: str) -> np.ndarray:
        return from_bytes(text, dtype, shape)

    def of_tuple(self, key: tuple, places: list) -> tuple:
        return tuple(self.value(at, interpreted=key[1]) for at in places)

    def of_list(self, key: tuple, places: list) -> list:
        return list(self.of_tuple(key, places))

    def of_set(self, key: tuple, places: list) -> set:
        return set(self.of_tuple(key, places))

    def of_dict(self, key: tuple, pairs: list) -> dict:
        return dict(self.of_tuple(key, pair) for pair in pairs)

    def of_missing(self, key: tuple, words: str) -> typing.Any:
        self.missing.append(words)
        return _Missing(words)

    def of_module(self, key: tuple, name: str) -> typing.Any:
        if name == "pmpp.simt.host.cuda":
            return device.backend().cuda
        if not _allowed(name):
            return self.of_missing(key, f"the module {name}")
        module = importlib.import_module(name)
        return module if key[1] and name in MODULES else _Reading(module)  # whose attributes are looked at

    def of_object(self, key: tuple, module: str, name: str) -> typing.Any:
        if module == "dtype":
            return np.dtype(name)
        if module == "builtins" and name not in LEFT_OUT and not name.startswith("_"):
            return getattr(builtins, name)
        if module == "pmpp.simt.host.cuda":
            return _attribute(device.backend().cuda, name)
        if "exercises" in module:
            if name not in self.given.get(module, ()):
                raise RefusedError(f"{module}.{name} is not given to students")
        elif not _allowed(module):
            return self.of_missing(key, f"{module}.{name}")
        if any(part.startswith("_") for part in name.split(".")):
            return self.of_missing(key, f"{module}.{name}")
        return _not_shipped(_attribute(importlib.import_module(module), name))

    def of_names(self, key: tuple, nothing: None, names: dict) -> types.SimpleNamespace:
        found = self.made[key] = types.SimpleNamespace()
        for name, at in names.items():
            setattr(found, name, self.value(at, interpreted=key[1]))
        return found

    def of_kernel(self, key: tuple, at: int, on_device: bool, threads: int | None) -> typing.Any:
        inner = self.nodes[at]
        if inner[0] == "object":
            found = self.value(at, interpreted=True)
            return found if hasattr(found, "py_func") else device.backend().cuda.jit(found, device=on_device)
        if inner[0] != "function":
            raise ValueError(f"a kernel is made of a function, not of {inner[0]}")
        function = self.value(at, interpreted=True)
        return device.backend().cuda.jit(function, device=on_device, launch_bounds=threads)

    def of_function(self, key: tuple, about: dict) -> typing.Any:
        file, text = about["file"], about["text"]
        _keep(file, text)
        tree = ast.parse(text, file)
        node = _found(tree, about["name"], about["line"], about["column"])
        self._note(key, text, node, about)
        names: dict[str, typing.Any] = {"__name__": "answer"}
        if key[1]:
            code = _code(compile(tree, file, "exec", dont_inherit=True), about)
            names["__builtins__"] = {}
            cells = tuple(types.CellType(None) for _ in code.co_freevars)
            function = types.FunctionType(code, names, about["name"], closure=cells)
        else:
            function = _screened(node, file, names, self.given)
        self.made[key] = function
        for name, at in about["globals"].items():
            names[name] = self.value(at, interpreted=key[1])
        if key[1]:
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                cell.cell_contents = names.get(name)
        if defaults := tuple(self.value(at, interpreted=key[1]) for at in about["defaults"]):
            function.__defaults__ = defaults
        return function

    def of_class(self, key: tuple, about: dict, names_of_it: dict) -> typing.Any:
        if key[1]:  # a kernel reads its attributes and knows no classes
            return self.of_names(key, None, names_of_it)
        _keep(about["file"], about["text"])
        tree = ast.parse(about["text"], about["file"])
        node = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.lineno == about["line"])
        self._note(key, about["text"], node, about)
        names: dict[str, typing.Any] = {"__name__": "answer"}
        for name, at in about["globals"].items():  # its bases are needed at once
            names[name] = self.value(at, interpreted=False)
        made = self.made[key] = _screened(node, about["file"], names, self.given)
        return made

    def _note(self, key: tuple, text: str, node: ast.AST, about: dict) -> None:
        if not self.source:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            self.source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
            self.cell = about.get("cell")


def _keep(file: str, text: str) -> None:
    """Let the interpreter and messages find the source by the name of its file."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file


def _allowed(module: str) -> bool:
    """Whether an answer may use a module: not what judges it, and nothing that leads to the operating system."""
    inside = module == "pmpp" or module.startswith(("pmpp.kernels.", "pmpp.nn.", "pmpp.runtime."))
    left_out = "exercises" in module or module.startswith("pmpp.nn.fuse")  # fuse() compiles strings
    return module in MODULES or module in ("pmpp.kernels", "pmpp.nn", "pmpp.runtime") or (inside and not left_out)


def _not_shipped(value: typing.Any) -> typing.Any:
    """The value, if it is not the shipped answer to any exercise: some are also used elsewhere in the package."""
    functions = {id(value), id(getattr(value, "py_func", value))}
    if not functions.isdisjoint(_shipped()):
        raise RefusedError("an answer uses a shipped answer")
    return value


@functools.cache
def _shipped() -> frozenset[int]:
    answers = [one.answer for one in known().values()]
    return frozenset(id(part) for one in answers for part in (one, getattr(one, "py_func", one)))


def _attribute(holder: typing.Any, name: str) -> typing.Any:
    for part in name.split("."):
        holder = getattr(holder, part)
        if isinstance(holder, types.ModuleType):
            raise RefusedError(f"an answer uses the module {holder.__name__}, which leads out of it")
    return holder


def _found(tree: ast.AST, name: str, line: int, column: int) -> typing.Any:
    """The definition of a function in a file: by its name, and the line of its `def` or of its first decorator."""
    for node in ast.walk(tree):
        if name == "<lambda>":
            here = isinstance(node, ast.Lambda) and node.lineno == line
            if here and (node.col_offset <= column <= (node.end_col_offset or 0) or node.end_lineno != line):
                return node
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            lines = [node.lineno, *(one.lineno for one in node.decorator_list)]
            if line in lines:
                return node
    raise ValueError(f"there is no function {name} on line {line}")


def _code(code: types.CodeType, about: Mapping[str, typing.Any]) -> types.CodeType:
    """The code of a function inside that of its file, which is compiled and not run."""
    for inner in _inside(code):
        found = inner.co_name, inner.co_firstlineno, inner.co_qualname
        if found == (about["name"], about["line"], about["qualname"]):
            columns = [c for _, _, c, _ in inner.co_positions() if c]
            if inner.co_name != "<lambda>" or (columns and columns[0] == about["column"]):
                return inner
    raise ValueError(f"there is no function {about['qualname']} on line {about['line']}")


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inside(constant)


# -------------------------------------------------------------------------------------------------- Python, screened


class _Missing:
    """What could not be taken over. Whoever uses it is told so."""

    def __init__(self, words: str) -> None:
        object.__setattr__(self, "_words", words)

    def __getattr__(self, name: str) -> typing.NoReturn:
        raise RefusedError(f"{object.__getattribute__(self, '_words')} is not there when the answer is judged")

    def __call__(self, *args: object, **options: object) -> typing.NoReturn:
        self.any  # noqa: B018 (it raises)


class _Reading:
    """A module, for reading."""

    __slots__ = ("_module",)

    def __init__(self, module: types.ModuleType) -> None:
        object.__setattr__(self, "_module", module)

    def __getattribute__(self, name: str) -> typing.Any:
        module = object.__getattribute__(self, "_module")
        if _leads_out(name) or (name.startswith("_") and name not in DUNDERS):
            raise RefusedError(f"an answer uses {module.__name__}.{name}, which leads out of it")
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            if not _allowed(value.__name__) and value is not device.backend().cuda:
                raise RefusedError(f"an answer uses the module {value.__name__}, which leads out of it")
            return value if value is device.backend().cuda else _Reading(value)
        return _not_shipped(value)

    def __setattr__(self, name: str, value: object) -> typing.NoReturn:
        raise RefusedError(f"an answer changes {object.__getattribute__(self, '_module').__name__}.{name}")

    def __delattr__(self, name: str) -> typing.NoReturn:
        type(self).__setattr__(self, name, None)


def _written(owner: typing.Any) -> typing.Any:
    """The object whose attribute is about to be assigned: none of the workbook's own classes, functions and modules."""
    kind = type(owner)
    foreign = kind.__module__.startswith(("numpy", "pmpp.simt", "pmpp.runtime")) and not isinstance(owner, np.ndarray)
    if (isinstance(owner, type) and owner.__module__ != "answer") or foreign or kind in CLOSED:
        raise RefusedError(f"an answer changes {getattr(owner, '__name__', owner)!r}, which is not its own")
    return owner


def _builtins(given: Mapping[str, Collection[str]]) -> dict[str, typing.Any]:
    def get(owner: typing.Any, name: str, *default: typing.Any) -> typing.Any:
        _named(name, "getattr")
        return getattr(owner, name, *default)

    def has(owner: typing.Any, name: str) -> bool:
        _named(name, "hasattr")
        return hasattr(owner, name)

    def load(name: str, about: object = None, local: object = None, parts: tuple | None = (), level: int = 0) -> object:
        if type(parts) is list:  # code in C, such as NumPy's, which takes it from sys.modules
            importlib.import_module(name)
            return _Missing(f"the module {name}")
        if level or not _allowed(name):
            raise RefusedError(f"an answer imports {name}, which is not there when it is judged")
        module = importlib.import_module(name)
        for part in parts or ():
            whole = f"{name}.{part}"
            if importlib.util.find_spec(name).submodule_search_locations and importlib.util.find_spec(whole):
                if not _allowed(whole):
                    raise RefusedError(f"an answer imports {whole}, which is not there when it is judged")
                importlib.import_module(whole)
        return _Reading(module if parts else importlib.import_module(name.partition(".")[0]))

    def kind(*arguments: typing.Any) -> type:
        if len(arguments) != 1:
            raise RefusedError("an answer makes a class by type(): write it with class")
        return type(arguments[0])

    usual = {name: value for name, value in vars(builtins).items() if name not in LEFT_OUT and name[0] != "_"}
    own = {"getattr": get, "hasattr": has, "__import__": load, "__build_class__": builtins.__build_class__}
    return usual | own | {"type": kind, "display": print, "_written_": _written}


def _named(name: object, where: str) -> None:
    if not isinstance(name, str) or _leads_out(name):
        raise RefusedError(f"an answer asks {where}() for {name!r}, which leads out of it")


def _leads_out(name: str) -> bool:
    return name in FRAMES or (name.startswith("__") and name.endswith("__") and name not in DUNDERS)


class _Screen(ast.NodeTransformer):
    """Refuse names that lead out of an answer, and let each assignment to an attribute ask whether it is allowed."""

    def refuse(self, node: ast.AST, name: str) -> typing.NoReturn:
        raise RefusedError(f"line {node.lineno} uses {name}, which leads out of an answer: write it without")

    def visit(self, node: ast.AST) -> typing.Any:
        """Functions, arguments, imports and patterns have or bind names that are no nodes of their own."""
        for field in ("name", "arg", "asname", "rest"):
            name = getattr(node, field, None)
            if isinstance(name, str) and _leads_out(name):
                self.refuse(node, name)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if _leads_out(node.id) or (isinstance(node.ctx, ast.Load) and node.id in LEFT_OUT):
            self.refuse(node, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if _leads_out(node.attr):
            self.refuse(node, f".{node.attr}")
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            asked = ast.Call(ast.copy_location(ast.Name("_written_", ast.Load()), node.value), [node.value], [])
            node.value = ast.copy_location(asked, node.value)
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return node

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.AST:
        for name in node.kwd_attrs:
            if _leads_out(name):
                self.refuse(node, name)
        self.generic_visit(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        for alias in node.names:
            if _leads_out(alias.name) or alias.name == "*":
                self.refuse(node, f"from {node.module} import {alias.name}")
        return node


def _screened(node: typing.Any, file: str, names: dict, given: Mapping[str, Collection[str]]) -> typing.Any:
    """A function or a class from its definition, with few builtins."""
    name = "answer" if isinstance(node, ast.Lambda) else node.name
    if not isinstance(node, ast.Lambda):
        node.decorator_list = [one for one in node.decorator_list if not _is_jit(one)]
    if isinstance(node, ast.FunctionDef):
        node.returns = None
        node.args.defaults = [ast.copy_location(ast.Constant(None), one) for one in node.args.defaults]
        for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            one.annotation = None
    node = ast.fix_missing_locations(_Screen().visit(node))
    names["__builtins__"] = _builtins(given)
    if isinstance(node, ast.Lambda):
        return eval(compile(ast.Expression(node), file, "eval", dont_inherit=True), names)
    exec(compile(ast.Module([node], []), file, "exec", dont_inherit=True), names)
    return names[name]


def _is_jit(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith(("cuda.jit", "jit"))
