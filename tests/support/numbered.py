"""Twins of kernels: what has a name in a NamedTuple is taken by its number from a plain tuple.

A twin is made from the kernel's source, and so are twins of the device functions that it hands such tuples to.
"""

import ast
import inspect
import itertools
import textwrap
import types
import typing

from tests.support.compiled import numba_type, options_of

SERIAL = itertools.count()


class Shape(typing.NamedTuple):
    """What is known of a tuple: the names of its items, none for a plain tuple, and for each its shape or None."""

    names: tuple[str, ...]
    items: tuple


def shape_of(kind):
    """The shape of a Numba type, or None if it is no tuple."""
    from numba.cuda import types as nt

    if not isinstance(kind, nt.BaseTuple):
        return None
    return Shape(tuple(getattr(kind, "fields", ())), tuple(map(shape_of, kind)))


def has_names(shape):
    """Whether a tuple is a named one, or has one in it."""
    return shape is not None and (bool(shape.names) or any(map(has_names, shape.items)))


def plain(kind):
    """The Numba type of the plain tuple with the same items, and of everything else itself."""
    from numba.cuda import types as nt

    return nt.BaseTuple.from_types([plain(one) for one in kind]) if isinstance(kind, nt.BaseTuple) else kind


class Device:
    """A device function's twin, as `tests.support.compiled` takes functions of either backend."""

    def __init__(self, py_func):
        self.py_func, self.__name__ = py_func, py_func.__name__


class Twins:
    """Makes twins. ``replaced`` counts the names that became numbers."""

    def __init__(self):
        self.replaced, self.made = 0, {}

    def function(self, function, shapes):
        """``(twin, shape)`` of a Python function that is called with arguments of ``shapes``: shape is its result's."""
        if (function, shapes) not in self.made:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            definition = tree.body[0]
            definition.decorator_list = []
            scope = dict(function.__globals__)
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            scope.update({name: cell.cell_contents for name, cell in cells})
            names = [argument.arg for argument in definition.args.args]
            numbered = Numbered(self, scope, dict(zip(names, shapes, strict=False)))
            definition.body = [numbered.visit(statement) for statement in definition.body]
            self.replaced += numbered.replaced
            exec(compile(ast.fix_missing_locations(tree), inspect.getsourcefile(function), "exec"), scope)
            self.made[function, shapes] = scope[definition.name], numbered.returned
        return self.made[function, shapes]


class Numbered(ast.NodeTransformer):
    """Rewrites one function. ``known``: the shapes of its variables. Each expression gets its ``shape``."""

    def __init__(self, twins, scope, known):
        self.twins, self.scope, self.known = twins, scope, known
        self.replaced, self.returned = 0, None

    def visit(self, node):
        new = super().visit(node)
        if isinstance(new, ast.expr) and not hasattr(new, "shape"):
            new.shape = None
        return new

    def visit_Name(self, node):
        node.shape = self.known.get(node.id)
        return node

    def visit_Attribute(self, node):
        node = self.generic_visit(node)
        shape = node.value.shape
        if shape is None or node.attr not in shape.names:
            return node
        self.replaced += 1
        number = shape.names.index(node.attr)
        new = ast.Subscript(node.value, ast.Constant(number), node.ctx)
        new.shape = shape.items[number]
        return new

    def visit_Subscript(self, node):
        node = self.generic_visit(node)
        if node.value.shape and isinstance(node.slice, ast.Constant):
            node.shape = node.value.shape.items[node.slice.value]
        return node

    def visit_Tuple(self, node):
        node = self.generic_visit(node)
        node.shape = Shape((), tuple(item.shape for item in node.elts))
        return node

    def visit_IfExp(self, node):
        node = self.generic_visit(node)
        node.shape = node.body.shape or node.orelse.shape
        return node

    def visit_Assign(self, node):
        node = self.generic_visit(node)
        for target in node.targets:
            self.learn(target, node.value.shape)
        return node

    def learn(self, target, shape):
        if isinstance(target, ast.Name):
            self.known[target.id] = shape
        elif isinstance(target, ast.Tuple) and shape:
            for one, its in zip(target.elts, shape.items, strict=True):
                self.learn(one, its)

    def visit_Return(self, node):
        node = self.generic_visit(node)
        self.returned = self.returned or (node.value and node.value.shape)
        return node

    def visit_Call(self, node):
        node = self.generic_visit(node)
        callee = self.value_of(node.func)
        if hasattr(callee, "_fields"):
            by_name = {keyword.arg: keyword.value for keyword in node.keywords}
            values = [*node.args, *(by_name[name] for name in callee._fields[len(node.args) :])]
            new = ast.Tuple(values, ast.Load())
            new.shape = Shape(callee._fields, tuple(value.shape for value in values))
            return new
        if isinstance(getattr(callee, "py_func", None), types.FunctionType) and not node.keywords:
            shapes = tuple(shape for one in node.args for shape in self.shapes_of(one))
            twin, node.shape = self.twins.function(callee.py_func, shapes)
            name = f"twin_{next(SERIAL)}"
            self.scope[name] = Device(twin)
            node.func = ast.Name(name, ast.Load())
        return node

    def shapes_of(self, argument):
        if isinstance(argument, ast.Starred):
            return argument.value.shape.items
        return (argument.shape,)

    def value_of(self, node):
        """What a name or an attribute of a module stands for, or None."""
        if isinstance(node, ast.Name):
            return self.scope.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(self.value_of(node.value), types.ModuleType):
            return getattr(self.value_of(node.value), node.attr, None)
        return None


def twin_of(kernel, *arguments):
    """``(twin, types, replaced)``: what to compile in place of ``kernel``, for which types, and how many names it had.

    ``arguments``: values or Numba types, as at a launch.
    """
    twins, kinds = Twins(), [numba_type(argument) for argument in arguments]
    function, _ = twins.function(getattr(kernel, "py_func", kernel), tuple(map(shape_of, kinds)))
    twin = Device(function)
    twin.options = options_of(kernel)
    return twin, [plain(kind) for kind in kinds], twins.replaced
