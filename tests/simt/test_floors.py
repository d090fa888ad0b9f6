"""The interpreter's floors: which package may import which, and that no two modules need each other."""

import pytest

from tests.support import imports

#: From the highest to the lowest.  `observe` and `front` do not know each other: `host` plugs observers in.
FLOORS = [["__init__"], ["host"], ["front", "observe"], ["api"], ["machine"], ["values"]]
SIMT = "pmpp/simt"


def test_imports_run_downwards_only():
    packages = imports.grouped(imports.modules(SIMT), imports.below(SIMT))
    assert imports.upwards(packages, FLOORS) == []


def test_the_machine_the_api_and_the_front_end_know_no_observer():
    packages = imports.grouped(imports.modules(SIMT), imports.below(SIMT))
    assert [name for name, imported in packages.items() if "observe" in imported] == ["__init__", "host"]
    assert packages["observe"] == {"machine", "values"}


def test_no_two_modules_import_each_other():
    assert imports.circles(imports.modules(SIMT)) == []


def test_nothing_outside_of_the_interpreter_is_imported():
    graph = imports.grouped(imports.modules("pmpp"), imports.below("pmpp"))
    assert graph["simt"] == set()


@pytest.fixture
def package(tmp_path):
    """Writes a package of modules with these texts, and reads its imports."""

    def write(**texts: str) -> imports.Graph:
        (tmp_path / "house").mkdir()
        for name, text in texts.items():
            (tmp_path / "house" / f"{name}.py").write_text(text)
        return imports.modules("house", tmp_path)

    return write


@pytest.mark.parametrize(
    "text",
    [
        "import house.low",
        "from house import low",
        "from house.low import thing",
        "from . import low",
        "from .low import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import low",
        "def f():\n    from house.low import thing",
        "class A:\n    def f(self):\n        import house.low as other",
    ],
)
def test_every_way_to_import_counts(package, text):
    graph = package(__init__="", high=text, low="")
    assert graph["house.high"] == {"house.low"}
    assert imports.levels(graph) == [["house", "house.low"], ["house.high"]]


def test_an_arrow_up_and_a_circle_are_found(package):
    graph = package(
        __init__="", a="import house.b", b="def f():\n    import house.c", c="from house import a", d="import house.a"
    )
    assert imports.circles(graph) == [["house.a", "house.b", "house.c"]]
    with pytest.raises(ValueError, match=r"house.a, house.b, house.c"):
        imports.levels(graph)
    floors = [["house"], ["house.d"], ["house.a"], ["house.b"], ["house.c"]]
    assert imports.upwards(graph, floors) == ["house.c -> house.a"]
    assert imports.upwards(graph, floors[:-1]) == ["house.c has no floor"]
    assert "house.a + house.b + house.c" in imports.picture(graph)


def test_the_picture_shows_the_floors_from_the_top(package):
    graph = package(__init__="", high="from house import middle, low", middle="import house.low", low="")
    assert imports.picture(graph).splitlines() == [
        "  2  house.high  ->  house.low, house.middle",
        "  1  house.middle  ->  house.low",
        "  0  house",
        "  0  house.low",
    ]
