"""The interpreter's floors: no two modules need each other, and only `host` knows an observer.

That its folders import downwards is part of the contract: tests/contract/test_imports.py.
"""

import functools

from tests.support import imports


@functools.cache
def found():
    """Every import of the interpreter. Not read while tests are collected, which each process does."""
    return imports.imports("pmpp.simt")


def test_no_two_modules_import_each_other():
    assert imports.circles(imports.graph("pmpp.simt", found())) == []


def test_a_circle_is_found_however_long():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert imports.circles(arrows) == [["a", "b", "c"]]


def test_the_machine_the_api_and_the_front_end_know_no_observer():
    knows = {imports.folder(one.source, "pmpp.simt") for one in found() if ".observe" in one.target}
    assert knows - {"observe", ""} == {"host"}
    needs = {imports.folder(one.target, "pmpp.simt") for one in found() if ".observe." in one.source}
    assert needs - {"observe", ""} == {"machine", "values"}


def test_nothing_else_of_the_project_is_imported():
    assert {one.target for one in found() if one.target.startswith("pmpp") and ".simt" not in one.target} == set()
