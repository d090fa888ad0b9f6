"""From a kernel's Python source to functions that execute it over lanes.

Each syntax node is turned once into a Python closure: an expression's takes a frame and returns a value, a statement's takes
a frame and changes it.  A frame is one activation of one function: its variables and the mask of lanes that execute it.
Control flow is masks: an `if` runs both sides, each under the lanes that chose it; a loop runs until its last lane leaves.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import os
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt import control, dtypes, intrinsics
from pmpp.simt.control import Frame
from pmpp.simt.dtypes import BINARY, COMPARE, UNARY
from pmpp.simt.errors import SimtError, UnsupportedError
from pmpp.simt.memory import Array

Expression = Callable[[Frame], Any]
Statement = Callable[[Frame], None]

#: Stands for "not known before the kernel runs".
DYNAMIC = object()

_REFUSED = {
    ast.Dict: "a dict", ast.DictComp: "a dict comprehension", ast.ListComp: "a list comprehension", ast.List: "a list",
    ast.Set: "a set", ast.SetComp: "a set comprehension", ast.GeneratorExp: "a generator", ast.JoinedStr: "an f-string",
    ast.Lambda: "a lambda", ast.Await: "await", ast.Yield: "yield", ast.YieldFrom: "yield", ast.Starred: "a starred argument",
    ast.Try: "try", ast.With: "with", ast.Raise: "raise", ast.Import: "import", ast.ImportFrom: "import", ast.Global: "global",
    ast.Nonlocal: "nonlocal", ast.ClassDef: "a class", ast.FunctionDef: "a nested function", ast.Delete: "del",
    ast.NamedExpr: "an assignment expression", ast.Match: "match",
}  # fmt: skip


class Function:
    """A compiled kernel or device function."""

    def __init__(self, py_func: Callable) -> None:
        self.py_func = py_func
        self.name = py_func.__name__
        self.signature = inspect.signature(py_func)
        tree, self.file, self.source_file, self.first_line = _parse(py_func)
        self.params = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args)]
        if tree.args.vararg or tree.args.kwarg or tree.args.kwonlyargs:
            raise UnsupportedError(
                f"{self.file}:{tree.lineno}: {self.name}: a kernel takes plain positional parameters"
            )
        compiler = _Compiler(self, tree)
        self.body = compiler.block(tree.body, top=True)
        self.uses = compiler.uses
        self.calls = compiler.calls

    def activate(self, frame: Frame) -> None:
        """Run the body in a frame whose parameters are set."""
        self.body(frame)


@functools.lru_cache(maxsize=1024)
def compile_function(py_func: Callable) -> Function:
    """Compile once a function object; running a notebook cell again makes a new function object."""
    return Function(py_func)


def _parse(py_func: Callable) -> tuple[ast.FunctionDef, str, str, int]:
    code = py_func.__code__
    path = code.co_filename
    linecache.checkcache(path)
    try:
        lines, first = inspect.getsourcelines(py_func)
    except (OSError, TypeError) as error:
        raise UnsupportedError(
            f"{py_func.__name__} has no source that can be read (made with exec, or typed into a plain python prompt); "
            "the interpreter runs source, so put the kernel into a file or a notebook cell"
        ) from error
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError as error:
        raise UnsupportedError(
            f"{path}:{first}: cannot read the source of {py_func.__name__} on its own: {error.msg}"
        ) from error
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise UnsupportedError(
            f"{path}:{first}: a kernel is a function made with def, not a {type(node).__name__.lower()}"
        )
    shown = os.path.relpath(path) if os.path.isabs(path) and path.startswith(os.getcwd() + os.sep) else path
    if "ipykernel_" in path:
        shown = "this notebook's cell"
    return node, shown, path, first


class _Compiler:
    def __init__(self, function: Function, tree: ast.FunctionDef) -> None:
        self.function = function
        py_func = function.py_func
        closure = inspect.getclosurevars(py_func)
        self.outer: dict[str, Any] = {**py_func.__globals__, **closure.nonlocals}
        self.locals = {a.arg for a in (*tree.args.posonlyargs, *tree.args.args)}
        self.assigned_once: dict[str, ast.expr] = {}
        self._find_locals(tree)
        self.uses: set[str] = set()
        self.calls = False
        self.loop_depth = 0

    def _find_locals(self, tree: ast.FunctionDef) -> None:
        counts: dict[str, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.locals.add(node.id)
                counts[node.id] = counts.get(node.id, 0) + 1
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if counts[name] == 1 and name not in self.function.params:
                    self.assigned_once[name] = node.value

    def refuse(self, node: ast.AST, message: str) -> UnsupportedError:
        line = getattr(node, "lineno", self.function.first_line)
        return UnsupportedError(f"{self.function.file}:{line}: in {self.function.name}: {message}")

    # -- what is known before the kernel runs ----------------------------------------------------------------------------

    def static(self, node: ast.expr) -> Any:
        """The Python object that an expression of globals and literals stands for, or DYNAMIC."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self.locals:
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
        """Like `static`, for array shapes: also arithmetic, tuples, and a name that is assigned such a constant once."""
        if isinstance(node, ast.Tuple):
            parts = tuple(self.static_int(e) for e in node.elts)
            return DYNAMIC if DYNAMIC in parts else parts
        if isinstance(node, ast.BinOp):
            a, b = self.static_int(node.left), self.static_int(node.right)
            if DYNAMIC in (a, b):
                return DYNAMIC
            operations = {ast.Add: lambda: a + b, ast.Sub: lambda: a - b, ast.Mult: lambda: a * b,
                          ast.FloorDiv: lambda: a // b, ast.LShift: lambda: a << b}  # fmt: skip
            return operations.get(type(node.op), lambda: DYNAMIC)()
        if isinstance(node, ast.Name) and node.id in self.assigned_once:
            return self.static_int(self.assigned_once[node.id])
        return self.static(node)

    # -- expressions -----------------------------------------------------------------------------------------------------

    def expr(self, node: ast.expr) -> Expression:
        """Compile an expression."""
        for kind, name in _REFUSED.items():
            if isinstance(node, kind):
                raise self.refuse(node, f"{name} does not exist on the device")
        method = getattr(self, "expr_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(node, f"{type(node).__name__} is not supported in a kernel")
        return method(node)

    def expr_Constant(self, node: ast.Constant) -> Expression:
        value = node.value
        if value is None or isinstance(value, str) or value is Ellipsis:
            return lambda f: value
        typed = dtypes.constant(value)
        if typed is None:
            raise self.refuse(node, f"the literal {value!r} does not fit 64 bits")
        return lambda f: typed

    def expr_Name(self, node: ast.Name) -> Expression:
        name, line = node.id, node.lineno
        if name in self.locals:
            return lambda f: control.read_variable(f, name, line)
        thing = self.static(node)
        if thing is DYNAMIC:
            raise self.refuse(node, f"the name {name!r} is not defined")
        return self.known(node, thing, name)

    def known(self, node: ast.expr, thing: Any, name: str) -> Expression:
        """An expression whose Python object is known now: a constant, an index like threadIdx.x, a type, a constant array."""
        path = intrinsics.device_path(thing)
        if path in intrinsics.SPECIAL:
            special = intrinsics.SPECIAL[path]
            return lambda f: special(f.m)
        if path is not None and path not in intrinsics.NAMESPACES and path not in intrinsics.DEVICE:
            raise self.refuse(node, f"cuda.{path} is not supported by the interpreter")
        if isinstance(thing, np.ndarray):
            return lambda f: control.constant_array(f.m, thing, name)
        if isinstance(thing, tuple):
            parts = tuple(dtypes.constant(e) for e in thing)
            if None not in parts:
                return lambda f: parts
        typed = dtypes.constant(thing)
        if typed is not None:
            return lambda f: typed
        return lambda f: thing

    def expr_Attribute(self, node: ast.Attribute) -> Expression:
        thing = self.static(node)
        if thing is not DYNAMIC:
            return self.known(node, thing, ast.unparse(node))
        static_base = self.static(node.value)
        if static_base is not DYNAMIC and not isinstance(static_base, (np.ndarray, np.generic)):
            raise self.refuse(node, f"{ast.unparse(node.value)} has no {node.attr}")
        base, attribute, line = self.expr(node.value), node.attr, node.lineno
        return lambda f: control.attribute(f, base(f), attribute, line)

    def expr_BinOp(self, node: ast.BinOp) -> Expression:
        left, right, line = self.expr(node.left), self.expr(node.right), node.lineno
        operate = self.binary(node.op, node)

        def ev(f: Frame) -> Any:
            return operate(f, left(f), right(f), line)

        return ev

    def binary(self, op: ast.operator, node: ast.AST) -> Callable:
        name = type(op).__name__
        if name not in BINARY:
            raise self.refuse(node, "matrix multiplication with @ does not exist on the device")
        function = BINARY[name]
        flop = function.flop

        def operate(f: Frame, a: Any, b: Any, line: int) -> Any:
            try:
                result = function(a, b)
            except (AttributeError, TypeError, ValueError) as error:
                raise control.bad_operands(f, name, a, b, line) from error
            m = f.m
            if m.counting:
                if flop:
                    m.flops(f.site or line, f.mask, result.dtype)
                else:
                    m.instruction(f.site or line, f.mask)
            return result

        return operate

    def expr_UnaryOp(self, node: ast.UnaryOp) -> Expression:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            typed = dtypes.constant(-node.operand.value)
            return lambda f: typed
        operand, line = self.expr(node.operand), node.lineno
        name = type(node.op).__name__
        function = UNARY[name]

        def ev(f: Frame) -> Any:
            a = operand(f)
            try:
                result = function(a)
            except (AttributeError, TypeError) as error:
                raise control.bad_operands(f, name, a, None, line) from error
            if f.m.counting:
                f.m.instruction(f.site or line, f.mask)
            return result

        return ev

    def expr_Compare(self, node: ast.Compare) -> Expression:
        line = node.lineno
        first = self.expr(node.left)
        rest = [(self.comparison(op, node), self.expr(e)) for op, e in zip(node.ops, node.comparators, strict=True)]
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

    def comparison(self, op: ast.cmpop, node: ast.AST) -> Callable:
        name = type(op).__name__
        if name in ("Is", "IsNot"):
            return lambda f, a, b, line: np.bool_((a is b) == (name == "Is"))
        if name in ("In", "NotIn"):
            return lambda f, a, b, line: control.contains(f, a, b, name == "In", line)
        function = COMPARE[name]

        def compare(f: Frame, a: Any, b: Any, line: int) -> Any:
            try:
                result = function(a, b)
            except (AttributeError, TypeError) as error:
                raise control.bad_operands(f, name, a, b, line) from error
            if f.m.counting:
                f.m.instruction(f.site or line, f.mask)
            return result

        return compare

    def expr_BoolOp(self, node: ast.BoolOp) -> Expression:
        parts = [self.expr(e) for e in node.values]
        is_and = isinstance(node.op, ast.And)
        return lambda f: control.short_circuit(f, parts, is_and)

    def expr_IfExp(self, node: ast.IfExp) -> Expression:
        test, yes, no = self.expr(node.test), self.expr(node.body), self.expr(node.orelse)
        line = node.lineno
        return lambda f: control.conditional(f, test, yes, no, line)

    def expr_Tuple(self, node: ast.Tuple) -> Expression:
        parts = [self.expr(e) for e in node.elts]
        return lambda f: tuple(p(f) for p in parts)

    def expr_Slice(self, node: ast.Slice) -> Expression:
        parts = [self.expr(e) if e is not None else None for e in (node.lower, node.upper, node.step)]
        return lambda f: slice(*(p(f) if p is not None else None for p in parts))

    def subscript(self, node: ast.Subscript) -> tuple[Expression, Expression, str, tuple[bool, ...]]:
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        literals = tuple(_is_literal(e) for e in index)
        parts = [self.expr(e) for e in index]
        if isinstance(node.slice, ast.Tuple):
            indices: Expression = lambda f: tuple(p(f) for p in parts)  # noqa: E731
        else:
            only = parts[0]

            def indices(f: Frame) -> tuple:
                value = only(f)
                return value if isinstance(value, tuple) else (value,)

        return self.expr(node.value), indices, ast.unparse(node.value), literals

    def expr_Subscript(self, node: ast.Subscript) -> Expression:
        base, indices, name, literals = self.subscript(node)
        line = node.lineno
        return lambda f: control.get_item(f, base(f), indices(f), name, line, literals)

    def expr_Call(self, node: ast.Call, *, used: bool = True) -> Expression:
        args, names = [], []
        for a in node.args:
            args.append(self.expr(a))
        for k in node.keywords:
            if k.arg is None:
                raise self.refuse(node, "** does not exist on the device")
            names.append((k.arg, self.expr(k.value)))
        thing = self.static(node.func)
        line = node.lineno
        if thing is DYNAMIC:
            if isinstance(node.func, ast.Attribute):
                base, attribute = self.expr(node.func.value), node.func.attr
                if attribute == "sync":
                    self.uses.add("grid_sync")
                return lambda f: control.method(f, base(f), attribute, [a(f) for a in args], line)
            if isinstance(node.func, ast.Call):  # type(x)(value)
                make = self.expr(node.func)
                return lambda f: control.cast_call(f, make(f), [a(f) for a in args], line)
            raise self.refuse(node, f"{ast.unparse(node.func)} is not a function that is known before the kernel runs")
        call = intrinsics.Call(line, used, ast.unparse(node.args[0]) if node.args else "", id(node), node)
        path = intrinsics.device_path(thing)
        if path is not None:
            return self.device_call(node, path, call, args, names)
        dtype = dtypes.as_dtype(thing)
        if dtype is not None and thing not in (bool, int, float):
            return lambda f: control.cast_call(f, dtype, [a(f) for a in args], line)
        handler = intrinsics.python_function(thing)
        if handler is not None:
            return self.plain_call(handler, call, args, names)
        py_func = getattr(thing, "py_func", None)
        if py_func is not None:
            self.calls = True
            inner = self.callee(py_func, node)
            return lambda f: control.call_function(
                f, inner(), [a(f) for a in args], {k: v(f) for k, v in names}, call, ast.unparse(node.func)
            )
        raise self.refuse(node, self.unknown_call(node, thing))

    def callee(self, py_func: Callable, node: ast.AST) -> Callable[[], Function]:
        """A device function, compiled when first called, so that functions may call themselves."""
        return functools.partial(compile_function, py_func)

    def unknown_call(self, node: ast.Call, thing: Any) -> str:
        name = ast.unparse(node.func)
        if inspect.isfunction(thing):
            return f"{name} is a plain Python function; a kernel calls functions made with @cuda.jit(device=True)"
        if type(thing).__module__ == "numpy" or getattr(thing, "__module__", "") == "numpy":
            return f"{name} does not run on the device; write math.{name.rpartition('.')[2]} or a loop"
        return f"{name} cannot be called in a kernel"

    def device_call(self, node: ast.Call, path: str, call: intrinsics.Call, args: list, names: list) -> Expression:
        handler = intrinsics.DEVICE.get(path)
        if handler is None:
            raise self.refuse(node, f"cuda.{path} is not supported by the interpreter")
        self.uses.add(path)
        if path in ("grid", "gridsize") and (len(args) != 1 or self.static(node.args[0]) not in (1, 2, 3)):
            raise self.refuse(node, f"the argument of cuda.{path} must be the literal 1, 2 or 3")
        if path in ("shared.array", "local.array"):
            shape_node = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "shape"), None)
            shape = DYNAMIC if shape_node is None else self.static_int(shape_node)
            if shape is DYNAMIC:
                raise self.refuse(
                    node, f"the shape of cuda.{path} must be a constant: the compiler lays memory out before the kernel runs "
                    "(for a size chosen at launch use cuda.shared.array(0, dtype) and the launch's fourth parameter)",
                )  # fmt: skip
            rest = [a for a in args[1:]]
            keywords = [(k, v) for k, v in names if k != "shape"]
            return self.plain_call(functools.partial(handler, shape=shape), call, rest, keywords)
        return self.plain_call(handler, call, args, names)

    def plain_call(self, handler: Callable, call: intrinsics.Call, args: list, names: list) -> Expression:
        silent = getattr(handler, "counts_itself", False) or isinstance(handler, functools.partial)
        line = call.line

        def ev(f: Frame) -> Any:
            values = [a(f) for a in args]
            if f.mask is None:
                return np.int64(0)
            keywords = {k: v(f) for k, v in names}
            f.m.line = line
            try:
                result = handler(f, call, *values, **keywords)
            except SimtError:
                raise
            except (TypeError, ValueError, AttributeError) as error:
                raise f.m.error(f"{ast.unparse(call.node)}: {_plain(error)}", line, UnsupportedError) from error
            if f.m.counting and not silent:
                f.m.instruction(f.site or line, f.mask)
            return result

        return ev

    # -- statements ------------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], *, top: bool = False) -> Statement:
        """Compile a list of statements."""
        steps = [self.stmt(s) for s in body]

        def run(f: Frame) -> None:
            for step in steps:
                step(f)
                if f.mask is None:
                    return

        def run_top(f: Frame) -> None:
            for step in steps:
                step(f)
                if f.mask is None:
                    return
                f.live = f.mask  # at this depth every lane that has not returned is here

        return run_top if top else run

    def stmt(self, node: ast.stmt) -> Statement:
        """Compile a statement; the closure notes its line, so that any error can say where it happened."""
        for kind, name in _REFUSED.items():
            if isinstance(node, kind):
                raise self.refuse(node, f"{name} does not exist on the device")
        method = getattr(self, "stmt_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(node, f"{type(node).__name__} is not supported in a kernel")
        return method(node)

    def stmt_Pass(self, node: ast.Pass) -> Statement:
        return lambda f: None

    def stmt_Expr(self, node: ast.Expr) -> Statement:
        if isinstance(node.value, ast.Constant):
            return lambda f: None
        value = self.expr_Call(node.value, used=False) if isinstance(node.value, ast.Call) else self.expr(node.value)
        line = node.lineno

        def ex(f: Frame) -> None:
            f.m.line = line
            value(f)

        return ex

    def stmt_Assert(self, node: ast.Assert) -> Statement:
        test, line, text = self.expr(node.test), node.lineno, ast.unparse(node.test)

        def ex(f: Frame) -> None:
            f.m.line = line
            control.check_assertion(f, test(f), text, line)

        return ex

    def stmt_Assign(self, node: ast.Assign) -> Statement:
        value, line = self.expr(node.value), node.lineno
        targets = [self.target(t) for t in node.targets]

        def ex(f: Frame) -> None:
            f.m.line = line
            v = value(f)
            for assign in targets:
                assign(f, v)

        return ex

    def stmt_AnnAssign(self, node: ast.AnnAssign) -> Statement:
        if node.value is None:
            return lambda f: None
        return self.stmt_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def target(self, node: ast.expr) -> Callable[[Frame, Any], None]:
        """Compile the left side of an assignment."""
        line = node.lineno
        if isinstance(node, ast.Name):
            name = node.id
            return lambda f, v: control.assign(f, name, v, line)
        if isinstance(node, ast.Tuple):
            parts = [self.target(e) for e in node.elts]

            def unpack(f: Frame, v: Any) -> None:
                values = control.unpack(f, v, len(parts), line)
                for part, each in zip(parts, values, strict=True):
                    part(f, each)

            return unpack
        if isinstance(node, ast.Subscript):
            base, indices, name, literals = self.subscript(node)
            return lambda f, v: control.set_item(f, base(f), indices(f), v, name, line, literals)
        raise self.refuse(node, f"cannot assign to {ast.unparse(node)} in a kernel")

    def stmt_AugAssign(self, node: ast.AugAssign) -> Statement:
        operate, value, line = self.binary(node.op, node), self.expr(node.value), node.lineno
        if isinstance(node.op, ast.Div):
            operate = control.inplace_division(operate)
        if isinstance(node.target, ast.Name):
            name = node.target.id

            def ex(f: Frame) -> None:
                f.m.line = line
                old = control.read_variable(f, name, line)
                control.assign(f, name, operate(f, old, value(f), line), line)

            return ex
        if not isinstance(node.target, ast.Subscript):
            raise self.refuse(node, f"cannot assign to {ast.unparse(node.target)} in a kernel")
        base, indices, name, literals = self.subscript(node.target)

        def ex_item(f: Frame) -> None:
            f.m.line = line
            array, where = base(f), indices(f)
            old = control.get_item(f, array, where, name, line, literals)
            control.set_item(f, array, where, operate(f, old, value(f), line), name, line, literals)

        return ex_item

    def stmt_If(self, node: ast.If) -> Statement:
        test, body, line = self.expr(node.test), self.block(node.body), node.lineno
        orelse = self.block(node.orelse) if node.orelse else None
        return lambda f: control.run_if(f, test, body, orelse, line)

    def stmt_While(self, node: ast.While) -> Statement:
        test = self.expr(node.test)
        body, orelse = self.loop_parts(node)
        line = node.lineno
        return lambda f: control.run_while(f, test, body, orelse, line)

    def stmt_For(self, node: ast.For) -> Statement:
        iterable, assign, line = self.expr(node.iter), self.target(node.target), node.lineno
        body, orelse = self.loop_parts(node)
        return lambda f: control.run_for(f, iterable, assign, body, orelse, line)

    def loop_parts(self, node: ast.For | ast.While) -> tuple[Statement, Statement | None]:
        self.loop_depth += 1
        body = self.block(node.body)
        self.loop_depth -= 1
        return body, self.block(node.orelse) if node.orelse else None

    def stmt_Break(self, node: ast.Break) -> Statement:
        return control.run_break

    def stmt_Continue(self, node: ast.Continue) -> Statement:
        return control.run_continue

    def stmt_Return(self, node: ast.Return) -> Statement:
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return lambda f: control.run_return(f, None)
        value, line = self.expr(node.value), node.lineno

        def ex(f: Frame) -> None:
            f.m.line = line
            if f.caller is None:
                raise f.m.error("a kernel cannot return a value: write it to an output array", line, UnsupportedError)
            control.run_return(f, value(f))

        return ex


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _plain(error: Exception) -> str:
    return str(error).replace("handler() ", "").replace("() takes", " takes")


__all__ = ["Array", "Function", "compile_function"]
