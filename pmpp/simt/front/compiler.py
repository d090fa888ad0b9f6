"""From a kernel's Python source to functions that execute it over lanes.

Each syntax node is turned once into a Python closure: an expression's takes a frame and returns a value, a
statement's takes a frame and changes it.  A frame is one activation of one function: its variables and the mask of
lanes that execute it. Control flow is masks: an `if` runs both sides, each under the lanes that chose it; a loop runs
until its last lane leaves.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import textwrap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import hopper, intrinsics
from pmpp.simt.front import calls, flow, indexing, variables
from pmpp.simt.front.expressions import Expression, Expressions, as_tuple
from pmpp.simt.front.gathering import width_of
from pmpp.simt.front.inference import Paths
from pmpp.simt.front.matching import why_not, without_match
from pmpp.simt.front.names import DYNAMIC, TESTS_TWICE, calls_something, leaves, own_nodes
from pmpp.simt.front.nodes import moved, walk
from pmpp.simt.front.rounds import adding, independent
from pmpp.simt.front.steady import is_arithmetic
from pmpp.simt.front.variables import LocalFunction
from pmpp.simt.front.waiting import Looks, decided_by, may_wait, reads
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.turns import Waits, suspending, suspends
from pmpp.simt.values.errors import UnsupportedError

Statement = Callable[[Frame], None]

#: The attribute of a Python function that has what was made of it.
_COMPILED = "__simt_function__"


class Function:
    """A compiled kernel or device function."""

    def __init__(self, py_func: Callable) -> None:
        self.py_func = py_func
        self.name = py_func.__name__
        self.signature = inspect.signature(py_func)
        parse = _parse_lambda if self.name == "<lambda>" else _parse
        tree, self.file, self.source_file, self.first_line = parse(py_func)
        self.last_line = tree.end_lineno
        self._compile(tree, None)

    @classmethod
    def inside(cls, tree: ast.FunctionDef | ast.Lambda, around: _Compiler) -> Function:
        """A function that is defined inside another one."""
        made, outer = cls.__new__(cls), around.function
        made.py_func, made.file, made.source_file = outer.py_func, outer.file, outer.source_file
        made.first_line, made.name = tree.lineno, getattr(tree, "name", "lambda")
        kind, given = inspect.Parameter.POSITIONAL_OR_KEYWORD, tree.args.args
        defaults = [inspect.Parameter.empty] * (len(given) - len(tree.args.defaults))
        for default in tree.args.defaults:
            defaults.append(around.fixed(default))
            if defaults[-1] is DYNAMIC:
                raise around.refuse(default, f"the default {ast.unparse(default)} must be a constant: pass it instead")
        named = [inspect.Parameter(a.arg, kind, default=d) for a, d in zip(given, defaults, strict=True)]
        made.signature = inspect.Signature(named)
        if tree.args.vararg:
            raise around.refuse(tree, "a function inside a kernel takes no starred parameters: name them")
        made._compile(tree, around)
        return made

    def _compile(self, tree: ast.FunctionDef | ast.Lambda, around: _Compiler | None) -> None:
        self.tree = tree
        self.params = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args)]
        self.takes_more = tree.args.vararg is not None
        self.inside, self.needed = around is not None, len(self.params) - len(tree.args.defaults)
        if tree.args.vararg:
            self.params.append(tree.args.vararg.arg)
        if tree.args.kwarg or tree.args.kwonlyargs:
            raise UnsupportedError(
                f"{self.file}:{tree.lineno}: {self.name}: a kernel takes plain positional parameters, and Numba "
                "compiles no **keywords and nothing behind a *: name the parameters before it"
            )
        compiler = self.names = _Compiler(self, tree, around)
        body = tree.body if isinstance(tree, ast.FunctionDef) else [ast.copy_location(ast.Return(tree.body), tree)]
        self.paths = Paths([tree], compiler.locals)
        self.paths.read = self.params
        self.returns = sum(isinstance(n, ast.Return) and n.value is not None for n in own_nodes(tree))
        self.body = compiler.block(body, top=True)  # runs in a frame whose parameters are set
        self.suspends = suspends(self.body)
        self._uses, self.callees, self.literal_shapes = compiler.uses, compiler.callees, compiler.literal_shapes
        self._local_bytes = compiler.local_bytes
        self._may_wait = may_wait(tree, compiler.static)
        self._looks, self._reads = Looks(tree, compiler.static), reads(tree)

    @functools.cached_property
    def facts(self) -> tuple[set[str], bool, int]:
        """What a launch wants to know of it: `uses`, `may_wait` and `local_bytes`."""
        return self.uses(), self.may_wait(), self.local_bytes()

    @staticmethod
    def compiled(py_func: Callable) -> Function:
        """A device function that this one calls; only when it runs is it known which, and whether it can be."""
        return compile_function(py_func)

    def types_of_variables(self, frame: Frame) -> dict[str, np.dtype]:
        """The variables that hold numbers, with their types over all paths; `frame` has the parameters."""
        start = Frame(frame.m, self, frame.m.batch.lanes.full, frame.caller)
        start.outer = frame.outer
        start.vars = {name: frame.vars[name] for name in self.params}
        return dict(self.paths.types(start, calls.rehearsal(self), "variables"))

    def uses(self, seen: frozenset = frozenset()) -> set[str]:
        """The device names that this function and those it calls may use."""
        used = set(self._uses)
        for py_func in self.callees:
            if py_func not in seen:
                used |= compile_function(py_func).uses(seen | {py_func})
        return used

    def local_bytes(self, seen: frozenset = frozenset()) -> int:
        """Bytes of local arrays that a thread has here and in what it calls, as far as their shapes are known now."""
        return sum(self._local_bytes) + sum(
            compile_function(py_func).local_bytes(seen | {py_func}) for py_func in self.callees if py_func not in seen
        )

    def may_wait(self, seen: frozenset = frozenset()) -> bool:
        """Whether this function or one that it calls has a loop that another thread may have to end."""
        return self._may_wait or any(
            compile_function(py_func).may_wait(seen | {py_func}) for py_func in self.callees if py_func not in seen
        )

    def looks(self, seen: frozenset = frozenset(), *, everywhere: bool = False) -> set[tuple[str, int]]:
        """Where this function and those it calls may read what others update atomically: the files and lines."""
        lines = self._reads if everywhere else self._looks.lines
        found = {(self.source_file, line) for line in lines}
        for py_func in {*self.callees, *self._looks.functions}:
            asked = everywhere or py_func in self._looks.functions
            if (py_func, asked) not in seen:
                found |= compile_function(py_func).looks(seen | {(py_func, asked)}, everywhere=asked)
        return found


_THREAD = threading.local()


def _under_way() -> set[Callable]:
    """The functions that this thread is compiling."""
    return _THREAD.__dict__.setdefault("functions", set())


def compile_function(py_func: Callable) -> Function:
    """Compile once a function object; running a notebook cell again makes a new function object.

    The function keeps what was made of it, as long as it lives itself.  Were there a bound on how many are kept, one
    that was compiled again would see what its globals are by then, as Numba's does not.
    """
    known = py_func.__dict__.get(_COMPILED)
    if known is None or known.py_func is not py_func:  # functools.wraps copies the attributes of what it wraps
        # If two threads compile it, both take what the first of them kept.
        if py_func in _under_way():
            raise RecursionError(f"{py_func.__name__} calls itself")
        _under_way().add(py_func)
        try:
            made = Function(py_func)
        finally:
            _under_way().discard(py_func)
        known = py_func.__dict__.setdefault(_COMPILED, made) if known is None else made
        py_func.__dict__[_COMPILED] = known
    return known


#: By the id of a code object that lives: its tree and its first line.
_TREES: dict[int, tuple[ast.FunctionDef, int]] = {}


def _parse(py_func: Callable) -> tuple[ast.FunctionDef, str, str, int]:
    """The tree of a function, its file as messages name it and as it is, and its first line.

    What a factory makes, one function for each tile, is one code with other values around it, and has one tree.
    """
    code, path = inspect.unwrap(py_func).__code__, py_func.__code__.co_filename
    if id(code) not in _TREES:
        _TREES[id(code)] = _tree(py_func)
        weakref.finalize(code, _TREES.pop, id(code)).atexit = False
    tree, first = _TREES[id(code)]
    return tree, _shown(path), path, first


def _tree(py_func: Callable) -> tuple[ast.FunctionDef, int]:
    path = py_func.__code__.co_filename
    linecache.checkcache(path)
    try:
        lines, first = inspect.getsourcelines(py_func)
    except (OSError, TypeError) as error:
        raise UnsupportedError(
            f"{py_func.__name__} has no source that can be read (made with exec, or typed into a plain python prompt); "
            "the interpreter runs source, so put the kernel into a file or a notebook cell"
        ) from error
    try:
        source = textwrap.dedent("".join(lines))
        tree = ast.parse(source).body[0]
    except SyntaxError as error:
        raise UnsupportedError(
            f"{path}:{first}: cannot read the source of {py_func.__name__} on its own: {error.msg}"
        ) from error
    if not isinstance(tree, ast.FunctionDef):
        raise UnsupportedError(
            f"{path}:{first}: a kernel is a function made with def, not a {type(tree).__name__.lower()}"
        )
    if "match" in source:  # a word to look for, before all nodes are
        tree = without_match(tree)
    moved(tree, first - 1)
    return tree, first


def _shown(path: str) -> str:
    """A file as messages name it."""
    if "ipykernel_" in path:
        return "this notebook's cell"
    return os.path.relpath(path) if os.path.isabs(path) and path.startswith(os.getcwd() + os.sep) else path


def _parse_lambda(py_func: Callable) -> tuple[ast.Lambda, str, str, int]:
    """A lambda is part of a statement: the one at the place in the file that its code remembers."""
    code = py_func.__code__
    path, line = code.co_filename, code.co_firstlineno
    linecache.checkcache(path)
    where = [(a, c) for a, _, c, _ in code.co_positions() if a is not None and c is not None and (a, c) != (line, 0)]
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == line:
            start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            if all(start <= place < end for place in where):
                return node, _shown(path), path, line
    raise UnsupportedError(f"{path}:{line}: the source of this lambda cannot be found; make it a function with def")


class _Compiler(Expressions):
    """Compiles a function: its statements here, their expressions in the base class."""

    def block(self, body: list[ast.stmt], *, top: bool = False) -> Statement:
        """Compile a list of statements."""
        steps = [self.stmt(s) for s in body]
        lines = [_traced_line(s) for s in body]
        if any(map(suspends, steps)):
            return _by_turns(steps, lines, top)

        def watched(f: Frame) -> None:
            m, trace = f.m, f.m.trace
            for step, line in zip(steps, lines, strict=True):
                if line is not None:
                    trace.step(m.place.site or line, f.mask)
                step(f)
                if f.mask is None:
                    return
                if top:
                    f.live = f.mask

        def run(f: Frame) -> None:
            if f.m.trace is not None and not f.m.dry:
                watched(f)
                return
            for step in steps:
                step(f)
                if f.mask is None:
                    return

        def run_top(f: Frame) -> None:
            if f.m.trace is not None and not f.m.dry:
                watched(f)
                return
            for step in steps:
                step(f)
                if f.mask is None:
                    return
                f.live = f.mask  # at this depth every lane that has not returned is here

        return run_top if top else run

    def stmt(self, node: ast.stmt) -> Statement:
        """Compile a statement; the closure notes its line, so that any error can say where it happened."""
        self.refuse_syntax(node)
        method = getattr(self, "stmt_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(node, f"{type(node).__name__} is not supported in a kernel")
        made = method(node)
        if not isinstance(node, (ast.If, ast.While, ast.For)):
            self.learn(node)
        return made

    def stmt_Match(self, node: ast.Match) -> Statement:
        raise self.refuse(node, f"Numba does not compile this match: {why_not(node)}")

    def stmt_Pass(self, node: ast.Pass) -> Statement:
        return lambda f: None

    def stmt_Expr(self, node: ast.Expr) -> Statement:
        if isinstance(node.value, ast.Constant):
            return lambda f: None
        value = self.expr(node.value, used=False) if isinstance(node.value, ast.Call) else self.expr(node.value)
        line = node.lineno

        def ex(f: Frame) -> None:
            f.m.place.line = line
            value(f)

        return self.after(value, line, lambda f, v: None) or ex

    def after(self, value: Expression, line: int, finish: Callable[[Frame, Any], None]) -> Statement | None:
        """A statement that finishes with the value of an expression, if that may have to wait for it; else None."""
        if not suspends(value):
            return None

        @suspending
        def ex(f: Frame) -> Waits:
            f.m.place.line = line
            finish(f, (yield from value(f)))

        return ex

    def stmt_Assert(self, node: ast.Assert) -> Statement:
        test, line, text = self.expr(node.test), node.lineno, f"assert {ast.unparse(node.test)} fails"
        if node.msg is not None:
            self.refuse_words(node.msg)

        def ex(f: Frame) -> None:
            f.m.place.line = line
            variables.check_assertion(f, test(f), text, line)

        return self.after(test, line, lambda f, v: variables.check_assertion(f, v, text, line)) or ex

    def refuse_words(self, *words: ast.expr) -> None:
        """Refuse what an exception says if it is no constant: Numba raises no such exception on a GPU."""
        for word in words:
            if not isinstance(word, ast.Constant) and self.fixed(word) is DYNAMIC:
                message = f"{ast.unparse(word)}: what an exception says must be a constant on a GPU"
                raise self.refuse(word, f"{message}; print it before, or leave it out")

    def stmt_Raise(self, node: ast.Raise) -> Statement:
        line, text = node.lineno, ast.unparse(node)
        if node.cause is not None:
            raise self.refuse(node, "Numba does not compile raise ... from: leave out what follows the exception")
        if isinstance(node.exc, ast.Call):
            self.refuse_words(*node.exc.args)

        def ex(f: Frame) -> None:
            f.m.place.line = line
            variables.check_assertion(f, np.False_, text, line)

        return ex

    def stmt_Assign(self, node: ast.Assign) -> Statement:
        value, line = self.expr(node.value), node.lineno
        if any(map(self.node_suspends, node.targets)):
            return self.assignment_by_turns(node, value)
        displayed = isinstance(node.value, ast.Tuple)
        targets = [self.target(t, displayed=displayed) for t in node.targets]
        if self.is_shuffle(node.value) and len(targets) == 1 and isinstance(node.targets[0], ast.Name):
            node.value.kept = True  # type: ignore[attr-defined]
            name = node.targets[0].id

            def ex_shuffled(f: Frame) -> None:
                f.m.place.line = line
                variables.assign_shuffled(f, name, value(f), line)

            return ex_shuffled

        def assign_all(f: Frame, v: Any) -> None:
            for assign in targets:
                assign(f, v)

        def ex(f: Frame) -> None:
            f.m.place.line = line
            v = value(f)
            for assign in targets:
                assign(f, v)

        return self.after(value, line, assign_all) or ex

    def is_shuffle(self, node: ast.expr) -> bool:
        """Whether an expression is the call of a shuffle, whose arguments need not be waited for."""
        path = intrinsics.device_path(self.static(node.func)) if isinstance(node, ast.Call) else None
        return path is not None and path.startswith("shfl_") and not self.node_suspends(node)

    def assignment_by_turns(self, node: ast.Assign, value: Expression) -> Statement:
        """`x[f(i)] = value`: places to assign to that may have to be waited for, after the value."""
        targets = []
        for target in node.targets:
            parts = [e for each in _places(target) for e in self.operands(each)]
            targets.append(self.after_operands(parts, lambda target=target: self.target(target)))
        line = node.lineno

        @suspending
        def ex(f: Frame) -> Waits:
            f.m.place.line = line
            v = (yield from value(f)) if suspends(value) else value(f)
            for assign in targets:
                yield from assign(f, v)

        return ex

    def stmt_AnnAssign(self, node: ast.AnnAssign) -> Statement:
        if node.value is None:
            return lambda f: None
        return self.stmt_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def target(self, node: ast.expr, *, displayed: bool = False) -> Callable[[Frame, Any], None]:
        """Compile the left side of an assignment.  `displayed`: the right side is written as `a, b`."""
        line = node.lineno
        if isinstance(node, ast.Name):
            name = node.id
            return lambda f, v: variables.assign(f, name, v, line)
        if isinstance(node, (ast.Tuple, ast.List)):
            if any(isinstance(e, ast.Starred) for e in node.elts):
                raise self.refuse(node, f"cannot assign to {ast.unparse(node)} in a kernel: write rest = t[1:]")
            parts = [self.target(e) for e in node.elts]

            def unpack(f: Frame, v: Any) -> None:
                values = variables.unpack(f, v, len(parts), line)
                for part, each in zip(parts, values, strict=True):
                    if not displayed:  # else whoever wrote an element was told
                        hopper.refuse_ticket(f, each, "an element of the tuple", line)
                    part(f, each)

            return unpack
        if isinstance(node, ast.Subscript):
            base, indices, name, literals = self.subscript(node)
            return lambda f, v: indexing.set_item(f, base(f), indices(f), v, name, line, literals)
        if isinstance(node, ast.Attribute):
            record, field, text = self.expr(node.value), node.attr, ast.unparse(node)
            return lambda f, v: indexing.set_attribute(f, record(f), field, v, text, line)
        raise self.refuse(node, f"cannot assign to {ast.unparse(node)} in a kernel")

    def stmt_AugAssign(self, node: ast.AugAssign) -> Statement:
        operands = self.operands(node.target)
        if any(map(self.node_suspends, operands)):
            return self.after_operands(operands, lambda: self.augmented(node))
        return self.augmented(node)

    def augmented(self, node: ast.AugAssign) -> Statement:
        operate, value, line = self.binary(node.op, node), self.expr(node.value), node.lineno
        if isinstance(node.op, ast.Div):
            operate = variables.inplace_division(operate)
        if isinstance(node.target, ast.Name):
            name = node.target.id

            def ex(f: Frame) -> None:
                f.m.place.line = line
                old = variables.read_variable(f, name, line)
                variables.assign(f, name, operate(f, old, value(f), line), line)

            @suspending
            def ex_by_turns(f: Frame) -> Waits:
                f.m.place.line = line
                old = variables.read_variable(f, name, line)
                variables.assign(f, name, operate(f, old, (yield from value(f)), line), line)

            return ex_by_turns if suspends(value) else ex
        if isinstance(node.target, ast.Attribute):
            record, field, text = self.expr(node.target.value), node.target.attr, ast.unparse(node.target)

            def ex_field(f: Frame) -> None:
                f.m.place.line = line
                base = record(f)
                old = indexing.attribute(f, base, field, line, text)
                indexing.set_attribute(f, base, field, operate(f, old, value(f), line), text, line)

            @suspending
            def ex_field_by_turns(f: Frame) -> Waits:
                f.m.place.line = line
                base = record(f)
                old = indexing.attribute(f, base, field, line, text)
                indexing.set_attribute(f, base, field, operate(f, old, (yield from value(f)), line), text, line)

            return ex_field_by_turns if suspends(value) else ex_field
        if not isinstance(node.target, ast.Subscript):
            raise self.refuse(node, f"cannot assign to {ast.unparse(node.target)} in a kernel")
        base, indices, name, literals = self.subscript(node.target)

        def ex_item(f: Frame) -> None:
            f.m.place.line = line
            array, where = base(f), indices(f)
            old = indexing.get_item(f, array, where, name, line, literals)
            indexing.set_item(f, array, where, operate(f, old, value(f), line), name, line, literals)

        @suspending
        def ex_item_by_turns(f: Frame) -> Waits:
            f.m.place.line = line
            array, where = base(f), indices(f)
            old = indexing.get_item(f, array, where, name, line, literals)
            new = operate(f, old, (yield from value(f)), line)
            indexing.set_item(f, array, where, new, name, line, literals)

        return ex_item_by_turns if suspends(value) else ex_item

    def stmt_FunctionDef(self, node: ast.FunctionDef) -> Statement:
        if node.decorator_list:
            raise self.refuse(node, "a function inside a kernel takes no decorator")
        function, name, line = Function.inside(node, self), node.name, node.lineno
        return lambda f: variables.assign(f, name, LocalFunction(function, f), line)

    def expr_Lambda(self, node: ast.Lambda) -> Expression:
        function = Function.inside(node, self)
        return lambda f: LocalFunction(function, f)

    def stmt_If(self, node: ast.If) -> Statement:
        true, false = self.reached(node.test)
        if not (true and false):
            return self.block([*self.effects(node.test), *(node.body if true else node.orelse)])
        test, line, before = self.expr(node.test), node.lineno, self.constants
        self.constants = dict(before)
        body, after = self.block(node.body), self.constants
        self.constants = dict(before)
        orelse = self.block(node.orelse) if node.orelse else None
        if leaves(node.orelse):
            self.constants = after
        elif not leaves(node.body):
            self.constants = {n: v for n, v in self.constants.items() if after.get(n, v)[0] is v[0] and n in after}
        paths = self.paths(node)
        if any(map(suspends, (test, body, orelse))):
            return suspending(lambda f: flow.run_if_by_turns(f, test, body, orelse, line, paths))
        return lambda f: flow.run_if(f, test, body, orelse, line, paths)

    def effects(self, test: ast.expr) -> list[ast.stmt]:
        """What is left to do of a condition whose outcome is known."""
        return [ast.copy_location(ast.Expr(test), test)] if calls_something(test) else []

    def stmt_While(self, node: ast.While) -> Statement:
        if not self.reached(node.test)[0]:
            return self.block([*self.effects(node.test), *node.orelse])
        entered = TESTS_TWICE and not self.reached(node.test)[1]
        self.forget(node)
        forever = not self.reached(node.test)[1]
        test = self.expr(node.test)
        body, orelse = self.loop_parts(node)
        line = node.lineno
        paths, kind = self.paths(node), flow.FOREVER if forever else flow.ENTERED if entered else flow.PERHAPS
        together, names = self.lanes_together(node.test, *node.body), decided_by(node)
        arithmetic = is_arithmetic(self, node)
        return suspending(
            lambda f: flow.run_while(f, test, body, orelse, line, paths, kind, together, names, arithmetic)
        )

    def stmt_For(self, node: ast.For) -> Statement:
        if self.node_suspends(node.target):
            raise self.refuse(node, "the target of a loop cannot call a device function")
        iterable, assign, line = self.expr(as_tuple(node.iter)), self.target(node.target), node.lineno
        self.forget(node)
        body, orelse = self.loop_parts(node)
        paths, together, names = self.paths(node), self.lanes_together(*node.body), decided_by(node)
        known = independent(self, node, self)
        self.forget(node)
        arithmetic = is_arithmetic(self, node)
        return suspending(
            lambda f: flow.run_for(f, iterable, assign, body, orelse, line, paths, together, names, known, arithmetic)
        )

    def adding(self, node: ast.AugAssign) -> Statement:
        """`total += value`, where several rounds of a loop run at once."""
        return adding(node.target.id, self.binary(node.op, node), self.expr(node.value), node.lineno)

    def lanes_together(self, *code: ast.AST) -> Callable[[], int]:
        """Asks how many lanes stay together in some code (`width_of`).  The device functions it calls compile later."""
        callees, used, fine = [], [], True
        for node in (n for each in code for n in walk(each) if isinstance(n, ast.Call)):
            thing = self.static(node.func)
            path = None if thing is DYNAMIC else intrinsics.device_path(thing)
            if thing is DYNAMIC:
                fine &= isinstance(node.func, ast.Attribute) and node.func.attr != "sync"
            elif path is not None:
                used.append(path)
            elif getattr(thing, "py_func", None) is not None:
                callees.append(thing.py_func)
            else:
                fine &= thing is not print
        if not fine:
            return lambda: 0
        return functools.cache(lambda: width_of({*used}.union(*(compile_function(each).uses() for each in callees))))

    def loop_parts(self, node: ast.For | ast.While) -> tuple[Statement, Statement | None]:
        body = self.block(node.body)
        self.forget(node)
        return body, self.block(node.orelse) if node.orelse else None

    def stmt_Break(self, node: ast.Break) -> Statement:
        return flow.run_break

    def stmt_Continue(self, node: ast.Continue) -> Statement:
        return flow.run_continue

    def stmt_Return(self, node: ast.Return) -> Statement:
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return lambda f: flow.run_return(f, None)
        value, line = self.expr(node.value), node.lineno

        def check(f: Frame) -> None:
            f.m.place.line = line
            if f.caller is None:
                raise f.m.error("a kernel cannot return a value: write it to an output array", line, UnsupportedError)

        def ex(f: Frame) -> None:
            check(f)
            flow.run_return(f, value(f))

        @suspending
        def ex_by_turns(f: Frame) -> Waits:
            check(f)
            flow.run_return(f, (yield from value(f)))

        return ex_by_turns if suspends(value) else ex


def _places(target: ast.expr) -> list[ast.expr]:
    """The parts of a target that are computed: all but names."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [place for each in target.elts for place in _places(each)]
    return [] if isinstance(target, ast.Name) else [target]


def _by_turns(steps: list[Statement], lines: list[int | None], top: bool) -> Statement:
    """A list of statements, one of which may have to wait."""
    waiting = [suspends(step) for step in steps]

    @suspending
    def run(f: Frame) -> Waits:
        trace = None if f.m.dry else f.m.trace
        for step, waits, line in zip(steps, waiting, lines, strict=True):
            if trace is not None and line is not None:
                trace.step(f.m.place.site or line, f.mask)
            if waits:
                yield from step(f)
            else:
                step(f)
            if f.mask is None:
                return
            if top:
                f.live = f.mask  # at this depth every lane that has not returned is here

    return run


def _traced_line(node: ast.stmt) -> int | None:
    """The line of a statement that a trace notes as a step; branches note themselves, a round at a time."""
    if isinstance(node, (ast.If, ast.While, ast.For, ast.Pass, ast.FunctionDef)):
        return None
    return None if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else node.lineno


__all__ = ["Function", "compile_function"]
