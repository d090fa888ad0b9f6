"""Every example in a docstring below ``pmpp`` runs and prints what it says, and whatever a reader calls has one."""

import doctest
import importlib
import inspect
import io
import pkgutil
import types

import pytest

import pmpp
from pmpp import kernels
from pmpp.lab.rooms import rooms
from pmpp.runtime.rung import Rung

MODULES = [
    "pmpp",
    *(info.name for info in pkgutil.walk_packages(pmpp.__path__, "pmpp.") if not info.name.endswith("__main__")),
]
LADDERS = [room.LADDER for room in rooms()]
# Several rooms may share one function of arguments: each once, with the names of all rungs that it is for.
ARGUMENTS = {
    made: {rung.name for ladder in LADDERS for rung in ladder if rung.arguments is made}
    for made in dict.fromkeys(rung.arguments for ladder in LADDERS for rung in ladder if rung.arguments is not None)
}


def examples_of(thing):
    """The lines of code in its docstring."""
    return [example.source for example in doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")]


def plain_functions():
    """What a subject offers beside rungs: functions of its package, and what one of its modules has in ``__all__``."""
    found = []
    for info in pkgutil.iter_modules(kernels.__path__):
        subject = importlib.import_module(f"{kernels.__name__}.{info.name}")
        for function in (value for value in vars(subject).values() if isinstance(value, types.FunctionType)):
            home = importlib.import_module(function.__module__)
            below = home.__name__.startswith(f"{subject.__name__}.")
            if home is subject or (below and function.__name__ in vars(home).get("__all__", ())):
                found.append(pytest.param(function, id=f"{info.name}.{function.__name__}"))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    """Those of rungs are examples of ``arguments``, a function of the module: each runs once."""
    said = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    for found in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        runner.run(found, out=said.write)
    assert not runner.failures, said.getvalue()


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda made: made.__module__)
def test_the_arguments_of_rungs_have_an_example_that_calls_one(arguments):
    called = "".join(examples_of(arguments))
    assert any(f".{name}(" in called for name in ARGUMENTS[arguments]), f"no example calls {ARGUMENTS[arguments]}"


def test_help_of_a_rung_shows_the_example():
    for ladder in LADDERS:
        for rung in ladder:
            if rung.arguments is not None:  # TODO: rooms that are not converted yet
                assert isinstance(rung, Rung)
                assert examples_of(rung.arguments) == examples_of(rung)


@pytest.mark.parametrize("function", plain_functions())
def test_a_plain_function_has_an_example_that_calls_it(function):
    assert any(f"{function.__name__}(" in source for source in examples_of(function))
