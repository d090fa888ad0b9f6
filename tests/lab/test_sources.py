"""Which sources a result depends on: what is followed, what is not, and what counts as a change."""

import ast
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from pmpp.lab.measure.sources import ROOT, SHOWN, Sources, bare_source, difference, digest_of
from tests.support.imports import files, imports


@pytest.fixture
def write(tmp_path):
    """``write({path: text}) -> Sources``: files below a folder of their own, read anew."""

    def put(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Sources(tmp_path)

    return put


BASE = {
    "pmpp/__init__.py": "def __getattr__(name):\n    if name == 'cuda':\n        from pmpp.runtime import device\n"
    "    if name == 'show':\n        from pmpp.lab import source\n",
    "pmpp/runtime/__init__.py": "",
    "pmpp/runtime/device.py": "import numpy\n\n\ndef backend():\n    from pmpp.simt import cuda\n    return cuda\n",
    "pmpp/simt/__init__.py": "from pmpp.simt import cuda\n",
    "pmpp/simt/cuda.py": "",
    "pmpp/lab/__init__.py": "",
    "pmpp/lab/source.py": "",
    "pmpp/kernels/__init__.py": "",
    "pmpp/kernels/sum/__init__.py": "from pmpp.kernels.sum.ladder import *\n",
    "pmpp/kernels/sum/ladder.py": "from pmpp import cuda\nfrom .helper import f\nLADDER = (f,)\n",
    "pmpp/kernels/sum/helper.py": "def f():\n    pass\n",
    "pmpp/kernels/sum/exercises.py": "",
    "pmpp/kernels/sum/workloads.py": "from pmpp.lab.rooms import rooms\n",
    "pmpp/kernels/scan/__init__.py": "",
    "pmpp/nn/exercises/__init__.py": "MODULES = iter_modules(__path__)\n",
    "pmpp/nn/exercises/memory.py": "",
    "pmpp/kernels/scan/chained.py": "import pmpp.kernels.sum.helper\nLADDER = (chained, single_pass)\n",
    "pmpp/kernels/scan/chained_workloads.py": "",
    "pmpp/lab/rooms.py": "from pmpp import kernels\nPATH = kernels.__path__\n",
    "pmpp/recorded/gpu-1/prices.json": '{"a": 1}',
    "pmpp/recorded/gpu-1/attested.json": "{}",
}


def closure(write, text, **more):
    found = write({**BASE, "tests/test_it.py": text, **more}).closure("tests/test_it.py")
    return [path.removeprefix("pmpp/") for path in found if path != "tests/test_it.py"]


CUDA = ["__init__.py", "runtime/device.py"]
LADDER = [*CUDA, "kernels/sum/helper.py", "kernels/sum/ladder.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import numpy, os.path\n", []),
        ("from pmpp import cuda\n", CUDA),
        ("from pmpp import show\n", ["__init__.py", "lab/source.py"]),
        ("from pmpp.kernels import sum\n", [*LADDER, "kernels/sum/__init__.py"]),
        ("from pmpp.kernels.sum import f\n", [*LADDER, "kernels/sum/__init__.py"]),
        ("def test():\n    import pmpp.kernels.sum.ladder as room\n", LADDER),
        # A package that is passed through does not count.
        ("from pmpp.kernels.sum.helper import f\n", ["kernels/sum/helper.py"]),
        ("import typing\nif typing.TYPE_CHECKING:\n    import pmpp.lab.source\nelse:\n    import os\n", []),
        ("try:\n    import pmpp.lab\nexcept ImportError:\n    pass\n", ["lab/__init__.py"]),
        ("NAME = 'pmpp.lab.source'\n", ["lab/source.py"]),
        ("name = 'pmpp.lab'\n", []),
        ('"""pmpp.lab.source"""\n# "pmpp.lab.source"\n', []),
        ("check('sum/largest', f)\n", ["kernels/sum/exercises.py"]),
        ("check('memory/fits', f)\n", ["nn/exercises/memory.py"]),
        (
            "from pmpp.nn.exercises import check\ncheck('memory/fits', f)\n",
            ["nn/exercises/__init__.py", "nn/exercises/memory.py"],
        ),
        ("x = 'folder/prices.json'\n", ["recorded/gpu-1/prices.json"]),
        ("x = 'attested.json'\n", []),
        ("from pmpp.simt import cuda\n", ["simt/cuda.py"]),
        ("from pmpp import simt\n", ["simt/__init__.py", "simt/cuda.py"]),
    ],
)
def test_what_is_followed(write, text, expected):
    assert closure(write, text) == sorted(expected)


def test_of_several_gpus_records_the_one_shown_counts(write):
    more = {f"pmpp/recorded/{gpu}/prices.json": "{}" for gpu in (SHOWN, "gpu-2")}
    assert closure(write, "x = 'folder/prices.json'\n", **more) == [f"recorded/{SHOWN}/prices.json"]


def test_who_asks_for_all_rooms_depends_on_them(write):
    kernels = {path.removeprefix("pmpp/") for path in BASE if path.startswith("pmpp/kernels/")}
    assert kernels <= set(closure(write, "from pmpp.lab.rooms import rooms\n"))
    assert kernels <= set(closure(write, "from pmpp import kernels\nfiles = walk_packages(kernels.__path__)\n"))
    # An instrument that can find every room is not every room.
    asks = closure(write, "from pmpp.lab.bench import run\n", **{"pmpp/lab/bench.py": "from pmpp.lab import rooms\n"})
    assert asks == ["kernels/__init__.py", "lab/bench.py", "lab/rooms.py"]


def test_a_test_depends_on_what_its_folders_set_up(write):
    files = {"tests/conftest.py": "import pmpp.lab", "tests/a/conftest.py": "", "tests/b/conftest.py": ""}
    found = write({**BASE, **files, "tests/a/test_it.py": ""}).closure("tests/a/test_it.py")
    assert found == ["pmpp/lab/__init__.py", "tests/a/conftest.py", "tests/a/test_it.py", "tests/conftest.py"]


def test_a_package_that_imports_its_modules_by_a_computed_name(write):
    files = {"tests/all/__init__.py": "for n in N:\n    import_module(f'{__name__}.{n}')\n", "tests/all/one.py": ""}
    assert closure(write, "from tests import all\n", **files) == ["tests/all/__init__.py", "tests/all/one.py"]
    # A test that writes such a package as text imports nothing.
    files["tests/all/__init__.py"] = f"TEXT = {files['tests/all/__init__.py']!r}\n"
    assert closure(write, "from tests import all\n", **files) == ["tests/all/__init__.py"]


def test_imports_in_a_circle_end(write):
    files = {"tests/a.py": "import tests.b", "tests/b.py": "import tests.a"}
    assert write(files).closure("tests/a.py") == ["tests/a.py", "tests/b.py"]


def test_a_start_that_is_not_there_is_named(write):
    with pytest.raises(FileNotFoundError, match=r"there is no tests/none\.py"):
        write({}).closure("tests/none.py")


def test_a_measurement_depends_on_its_room_and_not_on_the_instruments(write):
    now = write(BASE)
    assert now.rooms() == {"chained": "pmpp/kernels/scan/chained.py", "sum": "pmpp/kernels/sum/ladder.py"}
    assert now.ladder("pmpp/kernels/scan/chained.py") == ("chained", "single_pass")
    assert sorted(now.of_room("chained")) == [
        "pmpp/kernels/scan/chained.py",
        "pmpp/kernels/scan/chained_workloads.py",
        "pmpp/kernels/sum/helper.py",
    ]
    assert "pmpp/kernels/sum/workloads.py" in now.of_room("sum")
    with pytest.raises(ValueError, match="room must be one of chained, sum, was 'attic'"):
        now.of_room("attic")


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("x = 1  # one\n", "x = 1\n\n\n", True),
        ('def f():\n    """A."""\n    return 1\n', "def f():\n    return 1\n", True),
        ('def f(x):\n    """Größe."""; return x  # ü\n', "def f(x):\n    ; return x\n", True),
        ("x = 'a # b'\n", "x = 'a # c'\n", False),
        ('x = """\n# text\n"""\n', 'x = """\n# other\n"""\n', False),
        ("x = 'it\\'s # 1'  # 2\n", "x = 'it\\'s # 1'\n", True),
        ("f'{x} # a'\n", "f'{x} # b'\n", False),
        ("x = 1\n", "x = 2\n", False),
        ("if x:\n    y = 1\n", "if x:\n  y = 1\n", False),
    ],
)
def test_what_counts_as_a_change(before, after, same):
    assert (bare_source(before) == (after.rstrip("\n") if ";" in after else bare_source(after))) == same


def test_bare_source_has_the_tokens_of_the_source():
    """Of this repository's own files: what is left is the source's tokens, without comments and docstrings.

    Blank lines are left out of strings, too.
    """
    skipped = (tokenize.COMMENT, tokenize.NL)

    def filled(string):
        return "\n".join(line.rstrip() for line in string.splitlines() if line.strip())

    for path in sorted((ROOT / "pmpp" / "lab").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        docstrings = {
            (node.lineno, node.col_offset)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        tokens = list(tokenize.generate_tokens(iter(text.splitlines(True)).__next__))
        code = [token.string for token in tokens if token.type not in skipped and token.start not in docstrings]
        left = tokenize.generate_tokens(iter(bare_source(text).splitlines(True)).__next__)
        # A docstring's line ends in a token of its own.
        assert [filled(s) for s in code if s.strip()] == [
            filled(t.string) for t in left if t.type != tokenize.NL and t.string.strip()
        ]


def test_a_digest_is_of_content(write):
    files = {"tests/a.py": "x = 1\n", "pmpp/recorded/g/d.json": '{"b": 2,\n "a": 1}', "tests/b.py": "f = 'd.json'\n"}
    first = write(files).digests("tests/b.py")
    assert write({"pmpp/recorded/g/d.json": '{"a": 1, "b": 2}'}).digests("tests/b.py") == first
    other = write({"pmpp/recorded/g/d.json": '{"a": 1, "b": 3}'}).digests("tests/b.py")
    assert digest_of(other) != digest_of(first)
    assert difference(first, other) == "changed since: pmpp/recorded/g/d.json"


NAMES = {
    "tests/p/__init__.py": "from tests.p.made import *\nfrom .other import g as f\nh = 1\n",
    "tests/p/made.py": "if True:\n    def one():\n        pass\n"
    "two, (three, *four) = DATA\nimport os.path\nclass Five:\n    six = 1\n",
    "tests/p/other.py": "from tests.q import g\n",
    "tests/q.py": "def g():\n    pass\n",
}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("from tests.p import one\none()\n", "from tests.p.made import one\none()\n", True),
        ("from tests.p import three, os\n", "from .p.made import os, three\n", True),
        ("from tests.p import two, one\n", "from tests.p.made import one\n\nfrom tests.p.made import two\n", True),
        # Of a package only what is asked of it counts, and of a module as well.
        ("from tests import p\np.one()\n", "from tests.p import made as p\np.one()\n", True),
        ("import tests.p as p\np.f(p.h)\n", "from tests import p\np.f(p.h)\n", True),
        ("from tests import p\np.f()\n", "from tests.p import other as p\np.f()\n", False),
        ("from tests import p\nprint(p, p.one)\n", "from tests.p import made as p\nprint(p, p.one)\n", False),
        # A module is one piece: who takes a name that it imports depends on its import, whose digest says so.
        ("from tests.p import f\n", "from tests.p.other import g as f\n", True),
        ("from tests.p import f\n", "from tests.q import g as f\n", False),
        ("from tests.p import h\n", "from tests.p.made import h\n", False),
        ("from tests.p import Five\n", "from tests.p import six\n", False),
        ("from tests.p import one\n", "from tests.p import one as two\n", False),
        ("import numpy as np\n", "import numpy\n", False),
        ("from numpy import sum\n", "from math import sum\n", False),
        ("from tests.p import (  # a\n    one,  # b\n    two,\n)\nx\n", "from tests.p import one, two\nx\n", True),
        ("if typing.TYPE_CHECKING:\n    import os\n", "if typing.TYPE_CHECKING:\n    import re\n", True),
    ],
)
def test_a_digest_has_what_imports_stand_for(write, before, after, same):
    first = write({**NAMES, "tests/a.py": before}).digest("tests/a.py")
    assert (write({"tests/a.py": after}).digest("tests/a.py") == first) == same


def test_imports_of_one_name_in_a_circle_end(write):
    files = {"tests/p/__init__.py": "from tests.r import f\n", "tests/r/__init__.py": "from tests.p import f\n"}
    assert write({**files, "tests/a.py": "from tests.p import f\n"}).digest("tests/a.py")


def test_a_difference_in_words():
    then = dict.fromkeys("abcdefg", "0")
    assert difference(then, then) == ""
    assert difference(then, {**then, "a": "1"}) == "changed since: a"
    assert difference({"a": "0", "b": "0"}, {"b": "0", "c": "0"}) == "not recorded then: c"
    assert difference(then, dict.fromkeys("abcdefg", "1")) == "changed since: a, b, c and 4 more"


@pytest.mark.parametrize("room", ["scan.ladder", "normalisation.batchnorm"])
def test_python_agrees_on_what_is_imported(room):
    """The modules that a room's import loads are in the closure, which was found without importing it."""
    code = f"import sys, pmpp.kernels.{room}\nprint(*(m.__file__ for n, m in sys.modules.items() if n[:5] == 'pmpp.'))"
    environment = {**os.environ, "PMPP_BACKEND": "simt"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    loaded = {Path(path).relative_to(ROOT).as_posix() for path in done.stdout.split() if "__init__" not in path}
    loaded = {path for path in loaded if not path.startswith("pmpp/simt/")}
    assert len(loaded) > 3
    missed = loaded - set(Sources().closure(f"pmpp/kernels/{room.replace('.', '/')}.py"))
    # A package's __init__ loads what it offers beside the name that is imported, and what that needs; no result depends
    # on it.
    packages = {name for name, path in files("pmpp.kernels").items() if path.name == "__init__.py"}
    offered = {one.target for one in imports("pmpp.kernels") if one.source in packages}
    beside = {f"{name.replace('.', '/')}.py" for name in offered if (ROOT / f"{name.replace('.', '/')}.py").is_file()}
    assert missed <= set(Sources().closure(*beside))
