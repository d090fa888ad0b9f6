"""Who imports whom: every import of a package, read from the source, and those that go up.

::

    python -m tests.support.imports            the folders as levels, with arrows, and every import that goes up
    python -m tests.support.imports pmpp.lab   the same for the folders of one package

Nothing is imported to find out. Imports below ``if TYPE_CHECKING`` and inside functions count, and so does
``import_module`` with a name written out. `FLOORS` has the order of the folders that is agreed, from the top down.

    imports   every import of a package, with its line; `going_up` names those that go up
    graph     the same as a graph of modules; `circles` names modules that import one another
"""

from __future__ import annotations

import ast
import functools
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

# From the top down. A folder may import what stands after it. One line a package whose folders have an order.
FLOORS = {
    "pmpp": ("__main__", "parallel", "nn", "kernels", "lab", "runtime", "simt"),
    "pmpp.lab": ("publish", "draw", "teach", "measure", "rooms", "chapters"),
    "pmpp.simt": ("host", "front", "observe", "api", "machine", "values"),
}

# Imports that go up all the same, each with the reason.
ALLOWED = {
    ("pmpp.lab.rooms", "pmpp.kernels"): "it walks through the package to find the rooms, and names none",
}


class Import(typing.NamedTuple):
    """``line`` of module ``source`` imports ``target``: a module of the package, or a name outside of it."""

    source: str
    target: str
    line: int


def files(package: str, root: Path = ROOT) -> dict[str, Path]:
    """The file of every module of a package by its full name, the packages themselves among them."""
    found = {}
    for path in sorted((root / package.replace(".", "/")).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lazily_provided(path: Path) -> dict[str, str]:
    """What ``LAZY`` of a package's ``__init__`` promises: each name, and the full name of its module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["LAZY"]:
            return ast.literal_eval(node.value)
    return {}


def _named(node: ast.AST, package: str) -> Iterator[str]:
    """The full names that a node imports: of ``from a import b`` this is ``a.b``, a module or what is in it."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            yield node.args[0].value


@functools.cache
def _named_in(text: str, package: str) -> list[tuple[str, int]]:
    """Each full name that a module's source imports, with its line. Packages that lie in one another share files."""
    return [(name, node.lineno) for node in ast.walk(ast.parse(text)) for name in _named(node, package)]


def imports(package: str, root: Path = ROOT) -> list[Import]:
    """Every import that a module of ``package`` makes, at any depth of the source.

    The target is a module of the top-level package where it is one, so that ``from pmpp.runtime import device`` is an
    import of ``pmpp.runtime.device``. A name that a package provides lazily is an import of the module that it is from.
    """
    top = package.partition(".")[0]
    known = files(top, root)
    lazy = {f"{top}.{name}": module for name, module in lazily_provided(known[top]).items()}
    found = set()
    for source, path in files(package, root).items():
        inside = source if path.name == "__init__.py" else source.rpartition(".")[0]
        for name, line in _named_in(path.read_text(encoding="utf-8"), inside):
            target = lazy.get(name, name)
            while target not in known and "." in target and target.partition(".")[0] == top:
                target = target.rpartition(".")[0]
            found.add(Import(source, target if target in known else name, line))
    return sorted(found)


def graph(package: str, found: Sequence[Import]) -> dict[str, set[str]]:
    """Which modules of a package each of them imports, without what a package imports of itself."""
    known = files(package)
    arrows: dict[str, set[str]] = {name: set() for name in known}
    for source, target, _ in found:
        if source in known and target in known and source != target:
            arrows[source].add(target)
    return arrows


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Units that import one another, a sorted list for each group of them (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(unit: str) -> None:
        order[unit] = lowest[unit] = len(order)
        path.append(unit)
        for other in sorted(graph.get(unit, ())):
            if other not in order:
                visit(other)
                lowest[unit] = min(lowest[unit], lowest[other])
            elif other in path:
                lowest[unit] = min(lowest[unit], order[other])
        if lowest[unit] == order[unit]:
            group = path[path.index(unit) :]
            del path[path.index(unit) :]
            if len(group) > 1:
                found.append(sorted(group))

    for unit in sorted(graph):
        if unit not in order:
            visit(unit)
    return found


def folder(module: str, package: str) -> str:
    """The part of ``package`` that a module belongs to: "lab" of pmpp for ``pmpp.lab.rooms``; "" if it is no part."""
    inside, _, rest = module.partition(f"{package}.")
    return "" if inside else rest.partition(".")[0]


def going_up(package: str, floors: Sequence[str], found: Sequence[Import]) -> list[str]:
    """Every import of a folder by one that lies below it, or beside an order that does not have it: where, and what."""
    wrong = []
    for source, target, line in found:
        low, high = folder(source, package), folder(target, package)
        if not low or not high or low == high or (source, target) in ALLOWED:
            continue
        missing = [name for name in (low, high) if name not in floors]
        if missing:
            wrong.append(f"{source}, line {line}: {missing[0]} has no floor in {package}")
        elif floors.index(high) < floors.index(low):
            wrong.append(f"{source}, line {line}: {low} imports {target}, which is above it")
    return wrong


def drawn(package: str, floors: Sequence[str], found: Sequence[Import]) -> str:
    """The folders as levels from the top down, each with arrows to what it imports and how often."""
    arrows = Counter((folder(one.source, package), folder(one.target, package)) for one in found)
    inside = sorted({name for arrow in arrows for name in arrow if name} - set(floors))
    lines = []
    for name in (*floors, *inside):
        to = [(other, times) for (low, other), times in arrows.items() if low == name and other not in ("", name)]
        to.sort(key=lambda pair: (*floors, *inside).index(pair[0]))
        arrow = f"  -> {', '.join(f'{other} ({times})' for other, times in to)}" if to else ""
        there = any(name in pair for pair in arrows)
        lines.append(f"{name:12}{arrow}" if there else f"{name:12}  (nothing there yet)")
    return "\n".join(line.rstrip() for line in lines)


# -------------------------------------------------------------------------------------- graphs of modules or folders


def main(packages: Sequence[str], write: Callable[[str], typing.Any] = print) -> int:
    """Print the levels of each package; the number of packages with an import that goes up."""
    failed = 0
    for package in packages or FLOORS:
        found, floors = imports(package), FLOORS.get(package, ())
        write(f"{package}\n{drawn(package, floors, found)}")
        if not floors:
            write("no order of its folders is agreed: add a line to FLOORS\n")
            continue
        wrong = going_up(package, floors, found)
        failed += bool(wrong)
        write("\n".join(f"up: {line}" for line in wrong) or "no import goes up")
        for (source, target), why in ALLOWED.items():
            if folder(source, package) and folder(target, package):
                write(f"{source} may import {target}: {why}")
        write("")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
