"""What readers call, found where it stands: the rungs, the functions beside them, and a call of each that is right."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable

from pmpp import kernels
from pmpp.runtime.rung import Rung, room_name


def _modules() -> list[types.ModuleType]:
    """The modules below ``pmpp.kernels``, a subject's package before what is in it."""
    return [importlib.import_module(info.name) for info in pkgutil.walk_packages(kernels.__path__, "pmpp.kernels.")]


@functools.cache
def rungs() -> list[Rung]:
    """Every rung, also one of a module that is no room."""
    return list(dict.fromkeys(value for module in _modules() for value in vars(module).values() if type(value) is Rung))


@functools.cache
def plain_functions() -> list[types.FunctionType]:
    """What is offered beside rungs.

    These are the functions of a subject's package, what it takes from the ``__all__`` of one of its modules, and what
    says in an ``Args:`` section how it is called.
    """
    makers = {rung.arguments for rung in rungs()}
    found: dict[types.FunctionType, None] = {}
    for module in _modules():
        for name, value in vars(module).items():
            written_here = getattr(value, "__module__", "").startswith("pmpp.kernels.") and value not in makers
            if written_here and isinstance(value, types.FunctionType) and not name.startswith("_"):
                home = importlib.import_module(value.__module__)
                offered = home is module or name in vars(home).get("__all__", ())
                in_package = hasattr(module, "__path__") and home.__name__.startswith(module.__name__)
                if (in_package and offered) or "\n    Args:\n" in (value.__doc__ or ""):
                    found[value] = None
    return list(found)


def name_of(function: Callable) -> str:
    """How tests call it: with its room's or its subject's name."""
    if isinstance(function, Rung):
        return f"{function.room}.{function.name}"
    home = function.__module__.removeprefix("pmpp.kernels.")
    return f"{home if '.' not in home else room_name(function.__module__)}.{function.__name__}"


def examples_of(thing: typing.Any) -> list[str]:
    """The lines of code in its docstring."""
    return [example.source for example in doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")]


@functools.cache
def right_call(function: Callable) -> dict[str, typing.Any]:
    """The arguments, by name, of the call that the docstring has as an example.

    The example of a rung may call another one of its room, since they take the same.
    """
    documented = function.arguments if isinstance(function, Rung) else function
    module = importlib.import_module(documented.__module__)
    names = {function.__name__}
    if isinstance(function, Rung):
        names |= {other.name for other in rungs() if other.arguments is documented}
    space = dict(vars(module))
    for source in examples_of(documented):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                args = [_value(one, space) for one in node.args]
                kwargs = {one.arg: _value(one.value, space) for one in node.keywords}
                return inspect.signature(function).bind(*args, **kwargs).arguments
        exec(source, space)
    raise LookupError(f"no example of {name_of(function)} calls it")


def _value(node: ast.expr, space: dict) -> typing.Any:
    return eval(compile(ast.Expression(node), "an example", "eval"), space)
