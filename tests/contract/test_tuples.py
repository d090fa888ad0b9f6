"""No branch of a kernel chooses a tuple: NVIDIA's compiler in CUDA 13.0 may not end on it.

``b = (f0, f0, f0, f0)`` and then ``if summed: b = load128(x, i)`` made it run for ever in a kernel of some length. The
compiler that a reader has may be that one, and the tests compile with a later one. Write what is done with the tuple
into each branch, or put the branch into a device function that returns the tuple.
"""

import ast
from pathlib import Path

import pytest

from tests.support.mutants import kernels_in

KERNELS = Path(__file__).parents[2] / "pmpp" / "kernels"
FILES = {path.relative_to(KERNELS).as_posix(): path for path in sorted(KERNELS.rglob("*.py"))}

# Functions that do it, and compile with CUDA 13.0 all the same: it ran them on an H200. A new one is no such function.
COMPILE = {
    ("linear/products.py", "fetch"),
    ("linear/products.py", "add"),
    ("pooling/ladder.py", "threes_positions_kernel"),
}


def pairs(statement):
    """The names that an assignment binds, each with its value: two pairs of ``a, b = c, d``."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        several = isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple)
        both = zip(target.elts, statement.value.elts, strict=True) if several else [(target, statement.value)]
        yield from ((name.id, value) for name, value in both if isinstance(name, ast.Name))


def is_tuple(value):
    return isinstance(value, ast.Tuple) or (isinstance(value, ast.Call) and ast.unparse(value.func) == "load128")


def is_chosen(value):
    """Whether an expression is one tuple or another."""
    return isinstance(value, ast.IfExp) and any(is_tuple(one) or is_chosen(one) for one in (value.body, value.orelse))


def chosen(statements, bound=frozenset()):
    """The line and the name of each tuple that a branch chooses. ``bound``: names that are tuples above."""
    for one in statements:
        for name, value in pairs(one):
            if is_chosen(value):
                yield one.lineno, name
            bound = bound | {name} if is_tuple(value) else bound - {name}
        if isinstance(one, ast.If):
            for branch in (one.body, one.orelse):
                for inner in (node for top in branch for node in ast.walk(top)):
                    yield from (
                        (inner.lineno, name) for name, value in pairs(inner) if name in bound and is_tuple(value)
                    )
        for block in ("body", "orelse"):
            yield from chosen(getattr(one, block, ()), frozenset() if isinstance(one, ast.If) else bound)


def found_in(path):
    """Of each kernel and device function of a file the lines, and the names of tuples, that a branch chooses."""
    found = {kernel.name: sorted(set(chosen(kernel.body))) for kernel in kernels_in(str(path))}
    return {name: lines for name, lines in found.items() if lines}


def test_no_branch_chooses_a_tuple():
    found = {(file, name): lines for file, path in FILES.items() for name, lines in found_in(path).items()}
    assert {place: lines for place, lines in found.items() if place not in COMPILE} == {}
    assert set(found) >= COMPILE, "take those that no longer do it out of the list"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("b = (0, 0)\nif c:\n    b = load128(x, i)", [(3, "b")]),
        ("a, b = load128(x, 0), (0, 0)\nif c:\n    pass\nelif d:\n    b = (1, 1)", [(5, "b")]),
        (
            "b = load128(x, 0)\nfor i in range(9):\n    if c:\n        for j in range(2):\n            b = (i, j)",
            [(5, "b")],
        ),
        ("b = load128(x, 0) if c else (0, 0)", [(1, "b")]),
        ("b = 0 if c else 1 if d else (0, 0)", [(1, "b")]),
        ("if c:\n    b = (0, 0)\n    b = (1, 1)\n    if d:\n        b = (2, 2)", [(5, "b")]),
        ("b = (0, 0)\nb = load128(x, i)\nif c:\n    d = load128(x, i)", []),
        ("b = (0, 0)\nb = b[0]\nif c:\n    b = b + 1", []),
        ("if c:\n    b = (0, 0)\nfor k in range(4):\n    a = load128(x, k)", []),
    ],
)
def test_it_is_found(tmp_path, body, lines):
    text = "@cuda.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    (tmp_path / "kernel.py").write_text(text, encoding="utf-8")
    found = found_in(tmp_path / "kernel.py").get("kernel", [])
    assert [(line - 2, name) for line, name in found] == lines
