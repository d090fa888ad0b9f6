"""Which module imports which, read from the source: `python -m tests.support.imports [folder]` prints it by folders.

Every import counts, also those inside functions and those for type checkers only: each says that one file cannot be
understood without another.  Nothing is executed.

    modules   the files of a package and the imports among them
    levels    units (a unit is a module, or a folder) as floors: each only imports from floors below its own
    circles   units that import one another, directly or by way of others
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: For each unit the units that it imports.
Graph = dict[str, set[str]]


def modules(folder: str, root: Path = ROOT) -> Graph:
    """The modules below a folder by dotted name, and which of them each imports.

    >>> "pmpp.simt.machine.lanes" in modules("pmpp/simt")["pmpp.simt.machine.storage"]
    True
    """
    files = {_dotted(path.relative_to(root)): path for path in sorted((root / folder).rglob("*.py"))}
    return {name: set(_imports(name, path, files)) - {name} for name, path in files.items()}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a file imports, wherever in the file it does."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            yield from inside & known.keys()
            # `from package import name` also needs the package's own file, unless every name is a module of it.
            if base in known and not inside <= known.keys():
                yield base


def grouped(graph: Mapping[str, Iterable[str]], unit: Callable[[str], str]) -> Graph:
    """The same imports between larger units: `unit` names that of a module."""
    found: Graph = {unit(name): set() for name in graph}
    for name, imported in graph.items():
        found[unit(name)] |= {unit(other) for other in imported} - {unit(name)}
    return found


def below(folder: str) -> Callable[[str], str]:
    """A unit for `grouped`: the subfolder or file of `folder` that a module belongs to.

    >>> below("pmpp/simt")("pmpp.simt.machine.lanes")
    'machine'
    """
    prefix = folder.strip("/").replace("/", ".") + "."
    return lambda name: name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else "__init__"


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


def levels(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Units as floors, the lowest first: a unit stands one above the highest unit that it imports.

    Raises ValueError where units import one another, because then there are no floors.
    """
    if found := circles(graph):
        raise ValueError(f"these import one another: {'; '.join(', '.join(group) for group in found)}")
    floor: dict[str, int] = {}

    def height(unit: str) -> int:
        if unit not in floor:
            floor[unit] = 1 + max((height(other) for other in graph[unit]), default=-1)
        return floor[unit]

    for unit in graph:
        height(unit)
    return [sorted(unit for unit in graph if floor[unit] == k) for k in range(max(floor.values(), default=-1) + 1)]


def upwards(graph: Mapping[str, Iterable[str]], floors: Iterable[Iterable[str]]) -> list[str]:
    """The arrows that do not go down, as text; `floors` are units from the highest floor to the lowest.

    Units of one floor may not import each other.  A unit without a floor is an error, too: it must be given one.
    """
    height = {unit: k for k, floor in enumerate(floors) for unit in floor}
    wrong = [f"{unit} has no floor" for unit in graph if unit not in height]
    for unit, imported in sorted(graph.items()):
        wrong += [
            f"{unit} -> {other}"
            for other in sorted(imported)
            if unit in height and other in height and height[other] <= height[unit]
        ]
    return wrong


def picture(graph: Mapping[str, Iterable[str]]) -> str:
    """The floors from the top, each unit with what it imports; circles are named where there are any."""
    if found := circles(graph):
        groups = {unit: " + ".join(group) for group in found for unit in group}
        merged = grouped(graph, lambda unit: groups.get(unit, unit))
        lines = ["Units that import one another are shown as one.", picture(merged)]
        return "\n".join(lines)
    lines = []
    for k, floor in reversed(list(enumerate(levels(graph)))):
        for unit in floor:
            imported = ", ".join(sorted(graph[unit]))
            lines.append(f"{k:3}  {unit}" + (f"  ->  {imported}" if imported else ""))
    return "\n".join(lines)


def main(folders: list[str]) -> None:
    """Print the folders of each folder as floors."""
    for folder in folders or ["pmpp", "pmpp/simt"]:
        print(f"{folder}, as floors: each imports only from floors below")
        print(picture(grouped(modules(folder), below(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
