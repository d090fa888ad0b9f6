"""Which sources a result depends on, and what has changed in them since.

A result is a measurement of a room, a test file that passed on a GPU, or a chapter that ran there. It depends on the
files that it imports, on those that they import, and so on. `Sources.closure` finds them without running anything:

- ``import`` statements anywhere in a file count, inside functions too; what only a type checker imports does not.
- Of a package's ``__init__.py``, what makes the names counts that are taken from the package. Where a package is only
  passed through on the way to a module, its ``__init__.py`` does not count.
- A string that is the full name of a module, and not of a package, counts as an import, for
  ``importlib.import_module(NAME)``. So does the name of an exercise, for ``check("reduction/largest", kernel)``: of a
  room, or of a module of ``pmpp/nn/exercises`` or ``pmpp/parallel/exercises``.
- A string that is the name of a JSON file below ``pmpp/recorded/`` counts as reading it: the prices by which an
  algorithm is chosen are as much a source as the code. Of several GPUs' files of that name only that of `SHOWN`
  counts, which the chapters are about. Attestations are no source: they would depend on themselves.
- A test or chapter that asks ``pmpp.lab.rooms`` for all rooms depends on all of them, and one that walks through a
  package on all of it.
- What chooses the backend imports the interpreter where there is no GPU. That import is not followed, for these are
  results of GPUs; whoever imports `pmpp.simt` directly depends on it.

The digest of a file leaves out comments, docstrings, blank lines and trailing spaces. Of its imports it has what each
name stands for: the module where the name is made, whichever packages pass it on. So a name may be taken from another
place, and nothing has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pmpp.lab.rooms import BESIDE

__all__ = ["ROOT", "Sources", "bare_source", "difference", "digest_of", "key_of"]

ROOT = Path(__file__).parents[3]
PARTS = ("pmpp", "tests")  # the top-level packages of the repository
MEASURED = ("pmpp/kernels/", "pmpp/runtime/")  # what a measurement of kernels depends on, and nothing beyond
ATTESTATIONS = "attested.json"
SHOWN = "nvidia-h200"  # the GPU whose figures the chapters and README.md are written about; others stand beside it
ROOMS = "pmpp/lab/rooms.py"

# In code without comments and docstrings: a string that may name something, and what finds modules by walking.
_NAMED = re.compile(r"""(?P<quote>["'])(?P<text>\w+(?:\.\w+)+|\w+/\w+|[\w./-]+\.json)(?P=quote)""")
_WALKED = re.compile(r"\b(\w+)\.__path__")

_Names = frozenset[str] | None  # the names taken from a file; None for all


@dataclass(frozen=True)
class _File:
    """What is kept of a file: its source, its imports, its ladder, and the tree of an ``__init__.py``."""

    code: str  # without comments, docstrings and imports
    imports: list[ast.Import | ast.ImportFrom]
    bound: frozenset[str]  # names that statements outside of functions and classes make
    used: Mapping[str, frozenset[str]]  # of a name, the attributes that are asked for; "" where it stands alone
    ladder: tuple[str, ...]
    finds_own: bool  # it imports modules of its own package by names that it computes
    tree: ast.Module | None


class Sources:
    """The sources below ``root``. Each file is read once; make a new one when files may have changed."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._read_files: dict[str, _File] = {}
        self._digests: dict[str, str] = {}
        self._files: dict[str, str | None] = {}
        self._edges: dict[tuple[str, _Names], list[tuple[str, _Names]]] = {}
        self._data: dict[str, list[str]] = {}
        for path in sorted((root / "pmpp" / "recorded").rglob("*.json")):
            if path.name != ATTESTATIONS:
                self._data.setdefault(path.name, []).append(self.name(path))
        for name, paths in self._data.items():
            self._data[name] = [path for path in paths if f"/{SHOWN}/" in path] or paths

    def name(self, path: Path) -> str:
        """A path below ``root`` as it stands in records: relative, with slashes."""
        return path.relative_to(self.root).as_posix()

    def closure(self, *starts: str, within: Collection[str] = ("",)) -> list[str]:
        """The files that the results of ``starts`` depend on, themselves included, sorted.

        All are paths relative to ``root``. Files outside the folders ``within`` are left out, and not passed through.
        A start below ``tests/`` depends on each ``conftest.py`` above it. Raises FileNotFoundError for a start that
        does not exist, and SyntaxError for a source that is not Python.
        """
        for start in starts:
            if not (self.root / start).is_file():
                raise FileNotFoundError(f"there is no {start} in {self.root}")
        waiting: list[tuple[str, _Names]] = [(start, None) for start in starts]
        for start in starts:
            folders = [folder.as_posix() for folder in Path(start).parents]
            beside = [f"{folder}/conftest.py" for folder in folders if folder.split("/")[0] == "tests"]
            waiting += [(path, None) for path in beside if (self.root / path).is_file()]
        seen = set()
        while waiting:
            one = waiting.pop()
            if one not in seen and any(one[0].startswith(folder) for folder in within):
                seen.add(one)
                waiting += self._follow(*one)
        return sorted({path for path, _ in seen})

    def digests(self, *starts: str, within: Collection[str] = ("",)) -> dict[str, str]:
        """A digest of each file of the closure."""
        return {path: self.digest(path) for path in self.closure(*starts, within=within)}

    def digest(self, path: str) -> str:
        """The digest of one file: of bare Python source, or of the content of JSON."""
        if path not in self._digests:
            if path.endswith(".json"):
                essence = json.dumps(json.loads((self.root / path).read_text(encoding="utf-8")), sort_keys=True)
            else:
                essence = "\n".join([*sorted(set(self._names(path))), self._read(path).code])
            self._digests[path] = hashlib.sha256(essence.encode()).hexdigest()[:16]
        return self._digests[path]

    def _read(self, path: str) -> _File:
        if path not in self._read_files:
            text = (self.root / path).read_text(encoding="utf-8")
            tree = ast.parse(text, path)
            # Of a tree only what is asked for is kept: hundreds of trees would keep Python's garbage collector busy.
            kept = tree if path.endswith("__init__.py") else None
            self._read_files[path] = _File(
                bare_source(text, tree, imports=False),
                imports := _imports(tree),
                _bound(tree),
                _used(tree, imports),
                _ladder(tree),
                _finds_own(text, tree),
                kept,
            )
        return self._read_files[path]

    def _names(self, path: str) -> Iterator[str]:
        """What a file's imports stand for: ``"rfft = pmpp.kernels.fft.real:rfft"``; of a module, what is used of it."""
        file = self._read(path)
        for node in file.imports:
            base = _absolute(path, node) if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name, origin = alias.asname or alias.name, self._origin(base, alias.name) if base else alias.name
                for part in file.used.get(name, ("",)) if self._file(origin) else ("",):
                    yield f"{name}.{part} = {self._origin(origin, part)}" if part else f"{name} = {origin}"

    def _origin(self, base: str, name: str, through: tuple[str, ...] = ()) -> str:
        """Where a name is made that is imported from ``base``: a module, or ``module:name``.

        ``through``: the packages that passed it on, which may stand in a circle.
        """
        if self._file(f"{base}.{name}"):
            return f"{base}.{name}"
        package = self._file(base) or ""
        if package.endswith("__init__.py") and package not in through:
            for node in self._read(package).imports:
                for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                    source = _absolute(package, node)
                    if name == (alias.asname or alias.name):
                        return self._origin(source, alias.name, (*through, package))
                    if alias.name == "*" and (file := self._file(source)) and name in self._read(file).bound:
                        return self._origin(source, name, (*through, package))
        return f"{base}:{name}"

    # ------------------------------------------------------------------------------------------------- one file

    def _follow(self, path: str, names: _Names) -> list[tuple[str, _Names]]:
        """What one file depends on directly, for ``names`` in it."""
        if path.endswith(".json"):
            return []
        if (path, names) not in self._edges:
            file = self._read(path)
            code, statements = file.code, file.imports
            if file.tree is not None and names is not None:
                part = _taken(file.tree, names)
                if part is not file.tree:
                    code, statements = ast.unparse(part), _imports(part)
            found = dict.fromkeys(
                [*self._imported(path, statements), *self._named(code), *self._walked(path, code, statements)]
            )
            chooses = path == "pmpp/__init__.py" or path.startswith("pmpp/runtime/")
            self._edges[path, names] = [
                edge for edge in found if edge[0] != path and not (chooses and edge[0].startswith("pmpp/simt/"))
            ]
        return self._edges[path, names]

    def _imported(self, path: str, statements: Iterable[ast.Import | ast.ImportFrom]) -> Iterator[tuple[str, _Names]]:
        for node in statements:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            else:
                base = _absolute(path, node)
                for alias in node.names:
                    if self._file(f"{base}.{alias.name}"):
                        yield from self._module(f"{base}.{alias.name}")
                    else:
                        yield from self._module(base, None if alias.name == "*" else frozenset([alias.name]))

    def _module(self, dotted: str, names: _Names = None) -> Iterator[tuple[str, _Names]]:
        """A module or package of the repository as an edge."""
        found = self._file(dotted)
        if found:
            # A reader of one name of a package may not need all that it imports; a module is one piece.
            yield found, names if found.endswith("__init__.py") else None

    def _file(self, dotted: str) -> str | None:
        """The file of a module or package of the repository; None for any other."""
        if dotted not in self._files:
            stem = dotted.replace(".", "/")
            paths = (f"{stem}.py", f"{stem}/__init__.py") if dotted.partition(".")[0] in PARTS else ()
            self._files[dotted] = next((path for path in paths if (self.root / path).is_file()), None)
        return self._files[dotted]

    def _named(self, code: str) -> Iterator[tuple[str, _Names]]:
        """What strings name: modules, exercises, recorded data."""
        for match in _NAMED.finditer(code):
            text = match["text"]
            if text.endswith(".json"):
                yield from ((path, None) for path in self._data.get(text.rpartition("/")[2], ()))
            elif "/" in text:
                room = text.partition("/")[0]
                found = [self.root / "pmpp" / "kernels" / room / "exercises.py"]
                found += (self.root / "pmpp" / "kernels").glob(f"*/{room}_exercises.py")
                found += (self.root / "pmpp").glob(f"*/exercises/{room}.py")
                yield from ((self.name(path), None) for path in found if path.is_file())
            elif not (self._file(text) or "__init__.py").endswith("__init__.py"):
                yield from self._module(text)

    def _walked(
        self, path: str, code: str, statements: Iterable[ast.Import | ast.ImportFrom]
    ) -> Iterator[tuple[str, _Names]]:
        """What a file finds without naming it. ``pmpp.lab.rooms`` finds for others: see there who asks."""
        if path.startswith("pmpp/lab/"):
            return
        folders = ["pmpp/kernels"] if ROOMS in (edge[0] for edge in self._imported(path, statements)) else []
        folders += [path.rpartition("/")[0]] if self._read(path).finds_own else []
        walked = set(_WALKED.findall(code))
        for node in statements:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                package = self._file(f"{_absolute(path, node)}.{alias.name}")
                if package and (alias.asname or alias.name) in walked:
                    folders.append(package.rpartition("/")[0])
        for folder in folders:
            for found in sorted((self.root / folder).rglob("*.py")):
                yield self.name(found), None

    # --------------------------------------------------------------------------------------------------- rooms

    def rooms(self) -> dict[str, str]:
        """The files of all rooms by name, as `pmpp.lab.rooms` finds them: modules below kernels with a ``LADDER``."""
        found = {}
        for path in sorted((self.root / "pmpp" / "kernels").glob("*/*.py")):
            helper = path.stem == "__init__" or path.stem.endswith(BESIDE)
            if not helper and self.ladder(self.name(path)):
                found[path.parent.name if path.stem == "ladder" else path.stem] = self.name(path)
        return found

    def ladder(self, path: str) -> tuple[str, ...]:
        """The names of the rungs in a file's ``LADDER``, in its order; empty if it has none."""
        return self._read(path).ladder

    def of_room(self, name: str) -> dict[str, str]:
        """Digests of what a measurement of the room depends on: its kernels, what launches them, what was measured.

        That is the room, its workloads, and what they import of ``pmpp/kernels`` and ``pmpp/runtime``. How a time is
        taken is said by each entry, and neither plots nor the interpreter change it. Raises ValueError, with the names
        that there are, if there is no such room.
        """
        rooms = self.rooms()
        if name not in rooms:
            raise ValueError(f"room must be one of {', '.join(rooms)}, was {name!r}")
        room = Path(rooms[name])
        starts = [rooms[name]]
        for workloads in (f"{name}_workloads.py", "workloads.py" if room.stem == "ladder" else ""):
            if workloads and (self.root / room.parent / workloads).is_file():
                starts.append((room.parent / workloads).as_posix())
        return self.digests(*starts, within=MEASURED)


def _ladder(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["LADDER"]:
            return tuple(ast.unparse(item) for item in getattr(node.value, "elts", ()))
    return ()


def _finds_own(text: str, tree: ast.Module) -> bool:
    """Whether a file calls ``import_module(f"{__name__}.…")``. The text of a string that says so does not count."""
    if "import_module" not in text:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    named = [call.args[0] for call in calls if ast.unparse(call.func).endswith("import_module")]
    return any(
        isinstance(name, ast.JoinedStr)
        and isinstance(name.values[0], ast.FormattedValue)
        and ast.unparse(name.values[0].value) == "__name__"
        for name in named
    )


def _absolute(path: str, node: ast.ImportFrom) -> str:
    """The full name of the module that ``node``, in the file ``path``, imports from."""
    if not node.level:
        return node.module or ""
    package = path.split("/")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _taken(tree: ast.Module, names: _Names) -> ast.AST:
    """The part of a package's ``__init__.py`` that makes ``names``; all of it if one of them is not found there."""
    if names is None:
        return tree
    found: list[ast.stmt] = []
    for name in names:
        places: list[ast.stmt] = []
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                places += [node] if name in [alias.asname or alias.name for alias in node.names] else []
            elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
                ifs = [one for one in ast.walk(node) if isinstance(one, ast.If)]
                places += [one for one in ifs if any(_is_text(part, name) for part in ast.walk(one.test))]
        if not places:
            return tree
        found += places
    return ast.Module(found, [])


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _statements(tree: ast.AST, into: tuple[type, ...] = (ast.AST,)) -> Iterator[ast.AST]:
    """The statements below ``tree``, at any depth, or only inside of such statements."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if node is not tree and not isinstance(node, into):
            continue
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, field, ())
            waiting += below if isinstance(below, list) else ()


def _imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """The import statements below ``tree``, but for what only a type checker runs."""
    found, unread = [], set()
    for node in _statements(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            unread |= set(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom) and node not in unread:
            found.append(node)
    return found


def _bound(tree: ast.Module) -> frozenset[str]:
    """The names that a module's own statements make, those of its imports included."""
    found: set[str] = set()
    for node in _statements(tree, into=(ast.If, ast.Try, ast.With)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return frozenset(found)


def _used(tree: ast.Module, statements: Iterable[ast.Import | ast.ImportFrom]) -> dict[str, frozenset[str]]:
    """By which attributes a file uses what it imports: ``{"scan": {"LADDER"}}``; ``""`` for the name by itself."""
    imported = {alias.asname or alias.name for node in statements for alias in node.names}
    found: dict[str, set[str]] = {}
    within = set()
    for node in ast.walk(tree):  # what holds an expression comes before it
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            within.add(node.value)
            found.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Name) and node.id in imported and node not in within:
            found.setdefault(node.id, set()).add("")
    return {name: frozenset(parts) for name, parts in found.items()}


# --------------------------------------------------------------------------------------------------------- digests


def digest_of(digests: Mapping[str, str]) -> str:
    """One digest of many files."""
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def key_of(path: str, digest: str) -> str:
    """A short name for a source as it was: many results share it, and a record has its path once."""
    return hashlib.sha256(f"{path} {digest}".encode()).hexdigest()[:8]


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs between two closures, in words; ``""`` if nothing does.

    What is no longer used does not matter: something else would have changed if the result depended on it.
    """
    both = then.keys() & now.keys()
    kinds = {
        "changed since": [path for path in both if then[path] != now[path]],
        "not recorded then": now.keys() - then.keys(),
    }
    return "; ".join(f"{kind}: {_few(sorted(paths))}" for kind, paths in kinds.items() if paths)


def _few(paths: list[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


# What may hold a #: a string, or a comment. A string is matched whole, so that a # in it begins no comment.
_STRING_OR_COMMENT = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|"(?:\\.|[^"\\\n])*"|'''
    r"""'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|'(?:\\.|[^'\\\n])*'|"""
    r"#[^\n]*",
    re.DOTALL,
)


def bare_source(text: str, tree: ast.Module | None = None, imports: bool = True) -> str:
    """Python source without comments, docstrings and blank lines. ``tree``: its syntax tree, if it is at hand.

    ``imports``: False to leave out import statements as well.

    The text is cut, and neither tokens joined nor a tree written out: both differ between versions of Python.
    """
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    lines = text.split("\n")

    def at(line: int, byte: int) -> int:
        row = lines[line - 1]
        return begins[line - 1] + (byte if row.isascii() else len(row.encode()[:byte].decode()))

    drop = [(match.start(), match.end()) for match in _STRING_OR_COMMENT.finditer(text) if match[0].startswith("#")]
    for node in _statements(tree or ast.parse(text)):
        text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        docstring = text_alone and isinstance(node.value.value, str)
        if docstring or (not imports and isinstance(node, ast.Import | ast.ImportFrom)):
            drop.append((at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)))
    pieces, place = [], 0
    for start, end in sorted(drop):
        pieces.append(text[place:start])  # nothing, for a comment inside of what was left out
        place = max(place, end)
    return "\n".join(line.rstrip() for line in "".join([*pieces, text[place:]]).splitlines() if line.strip())
