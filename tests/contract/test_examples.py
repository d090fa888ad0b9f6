"""Every example in a docstring below ``pmpp`` runs and prints what it says, and whatever a reader calls has one."""

import doctest
import importlib
import io
import pkgutil

import pytest

import pmpp
from pmpp.lab.rooms import rooms
from pmpp.runtime.rung import Rung
from tests.support.public import examples_of, name_of, plain_functions

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


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    """Those of rungs are examples of ``arguments``, a function of the module: each runs once."""
    said = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    for found in doctest.DocTestFinder().find(importlib.import_module(name), name):
        if found.examples:  # also for a docstring without one, `run` looks at the time of every source file
            runner.run(found, out=said.write)
    assert not runner.failures, said.getvalue()


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda made: made.__module__)
def test_the_arguments_of_rungs_have_an_example_that_calls_one(arguments):
    called = "".join(examples_of(arguments))
    assert any(f".{name}(" in called for name in ARGUMENTS[arguments]), f"no example calls {ARGUMENTS[arguments]}"


def test_help_of_a_rung_shows_the_example():
    for ladder in LADDERS:
        for rung in ladder:
            assert isinstance(rung, Rung)
            assert examples_of(rung.arguments) == examples_of(rung)


@pytest.mark.parametrize("function", plain_functions(), ids=name_of)
def test_a_plain_function_has_an_example_that_calls_it(function):
    assert any(f"{function.__name__}(" in source for source in examples_of(function))
