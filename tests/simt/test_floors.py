"""The interpreter's floors: no two modules need each other, and only `host` knows an observer.

That its folders import downwards is part of the contract: tests/contract/test_imports.py.
"""

from tests.support import imports

FOUND = imports.imports("pmpp.simt")


def test_no_two_modules_import_each_other():
    assert imports.circles(imports.graph("pmpp.simt", FOUND)) == []


def test_a_circle_is_found_however_long():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert imports.circles(arrows) == [["a", "b", "c"]]


def test_the_machine_the_api_and_the_front_end_know_no_observer():
    knows = {imports.folder(one.source, "pmpp.simt") for one in FOUND if ".observe" in one.target}
    assert knows - {"observe", ""} == {"host"}
    needs = {imports.folder(one.target, "pmpp.simt") for one in FOUND if ".observe." in one.source}
    assert needs - {"observe", ""} == {"machine", "values"}


def test_nothing_else_of_the_project_is_imported():
    assert {one.target for one in FOUND if one.target.startswith("pmpp") and ".simt" not in one.target} == set()
