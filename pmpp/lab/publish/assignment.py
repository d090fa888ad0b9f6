"""A chapter as an assignment: its release, the cell that each graded exercise is answered in, and an answer to it.

The formats of graders (`pmpp.lab.publish.export`) are made from this. A chapter's source does not know of them.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmpp.lab.publish.release import TAG, linked, released
from pmpp.lab.teach import exercise as rooms
from pmpp.lab.teach.points import graded, named, points
from pmpp.lab.teach.source import source_of

if typing.TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Assignment", "Task", "assignment"]

_ANYWHERE = {*dir(builtins), "__name__"}


@dataclass(frozen=True)
class Task:
    """A graded exercise of a chapter.

    name      of the exercise, such as "vector_add/saxpy"
    points    for a right answer
    variable  the name that the chapter gives the answer: ``check("vector_add/saxpy", saxpy)`` has saxpy
    cell      the id of the cell that is filled in; it ends in that call
    answer    code that, run above that call, makes the answer a right one
    seeded    whether its inputs can be made from another seed
    """

    name: str
    points: int
    variable: str
    cell: str
    answer: str
    seeded: bool

    @property
    def id(self) -> str:
        """Its name where no slash may be: in the name of a file, or in nbgrader's grade_id."""
        return self.name.replace("/", "-")


@dataclass(frozen=True)
class Assignment:
    """A chapter that is handed out.

    stem       the chapter, such as "04_vector_add"
    notebook   what students get: as in a release, with links to no other chapter, since it stands alone
    tasks      the exercises, in the order of their cells
    predicted  how many predictions it asks for
    """

    stem: str
    notebook: NotebookNode
    tasks: Sequence[Task]
    predicted: int


def assignment(path: Path, repository: str = "") -> Assignment:
    """The assignment that a chapter is.

    Args:
        path: the chapter's source.
        repository: as in `pmpp.lab.publish.release.linked`.

    Raises ValueError if an exercise has no cell to fill in, or the code of an answer needs a name that nothing defines.
    """
    import nbformat

    whole = nbformat.read(path.parents[1] / f"{path.stem}.ipynb", as_version=4)
    notebook = released(whole)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, [path.stem], repository, hides_answers=True)
    answers = [cell.source for cell in whole.cells if cell.cell_type == "code" and TAG in cell.metadata.get("tags", ())]
    pieces = [piece for source in answers for piece in _pieces(source)]
    wanted, found, known = graded(path.stem, path.parents[1]), {}, set(_ANYWHERE)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            name, variable = _asked(cell.source)
            known.update(*(piece.binds for piece in _pieces(cell.source)))
            if name in wanted and name not in found:
                code = _answer(name, variable, pieces, known)
                seeded = isinstance(named(name), rooms.Exercise)
                found[name] = Task(name, points(name), variable, cell.id, code, seeded)
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"{path.stem}: no cell ends in check(name, answer) for {', '.join(missing)}")
    predicted = sum("guess = None" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    return Assignment(path.stem, notebook, list(found.values()), predicted)


# ---------------------------------------------------------------------------------------------------- the code of cells


@dataclass(frozen=True)
class _Piece:
    """A statement of a cell: its text, the names that it binds, and those that it needs."""

    text: str
    node: ast.stmt
    binds: frozenset[str]
    needs: frozenset[str]


def _pieces(source: str) -> list[_Piece]:
    """The statements of a cell, each with the comments above it."""
    lines, found, start = source.split("\n"), [], 0
    for node in ast.parse(source).body:
        text = "\n".join(lines[start : node.end_lineno]).strip("\n")
        table = symtable.symtable(text, "cell", "exec")
        binds = frozenset(one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported())
        found.append(_Piece(text, node, binds, frozenset(_needs(table)) - binds))
        start = node.end_lineno
    return found


def _needs(table: symtable.SymbolTable) -> Iterator[str]:
    """The names of the notebook that code refers to, in functions and classes too."""
    for one in table.get_symbols():
        if one.is_referenced() and (table.get_type() == "module" or one.is_global()):
            yield one.get_name()
    for inner in table.get_children():
        yield from _needs(inner)


def _call(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """The name and the answer of ``check("name", answer)``, alone or asserted."""
    call = node.value if isinstance(node, ast.Expr) else node.test if isinstance(node, ast.Assert) else None
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check" and len(call.args) == 2:
        name, answer = call.args
        if isinstance(name, ast.Constant):
            return name.value, answer
    return None


def _asked(source: str) -> tuple[str, str]:
    """The exercise and the variable of a cell that ends in ``check("name", variable)``, or empty strings."""
    body = ast.parse(source).body
    if body and (found := _call(body[-1])) and isinstance(found[1], ast.Name):
        return found[0], found[1].id
    return "", ""


def _answer(name: str, variable: str, pieces: Sequence[_Piece], known: set[str]) -> str:
    """Code that defines a right answer under the name that students give it."""
    own = [found[1] for piece in pieces if (found := _call(piece.node)) and found[0] == name]
    own = [node.id for node in own if isinstance(node, ast.Name)]
    if own and any(own[0] in piece.binds for piece in pieces):
        parts, answer = _with_what_it_needs(own[0], pieces, known), own[0]
    else:  # the chapter shows an answer of the package
        parts, answer = _from_package(named(name).answer, known)
    last = [] if answer == variable else [f"{variable} = {answer}"]
    code = "\n\n\n".join([*parts, *last])
    defined = known.union(*(piece.binds for piece in _pieces(code)))
    if missing := {need for piece in _pieces(code) for need in piece.needs} - defined:
        raise ValueError(f"the answer to {name} needs {', '.join(sorted(missing))}, which no cell above it defines")
    return code


def _with_what_it_needs(name: str, pieces: Sequence[_Piece], known: set[str]) -> list[str]:
    """The statements of answers that bind a name, and those that bind what these need, in their order."""
    chosen, open_names = set(), {name}
    while open_names:
        wanted = open_names.pop()
        for i, piece in enumerate(pieces):
            if wanted in piece.binds and i not in chosen:
                chosen.add(i)
                open_names |= piece.needs - known
    return [pieces[i].text for i in sorted(chosen)]


def _from_package(answer: typing.Any, known: set[str]) -> tuple[list[str], str]:
    """The source of an answer of the package, with an import of what it needs from its module; and its name."""
    function = getattr(answer, "py_func", answer)
    [(_, text)] = source_of(answer)
    needs = {need for piece in _pieces(text) for need in piece.needs} - _ANYWHERE - (known & {"cuda", "np"})
    module = sys.modules[function.__module__]
    modules = sorted(name for name in needs if inspect.ismodule(getattr(module, name)))
    parts = [f"import {getattr(module, name).__name__} as {name}" for name in modules]
    if own := sorted(needs.difference(modules)):
        parts.append(f"from {module.__name__} import {', '.join(own)}")
    return ["\n".join(parts), text.strip("\n")] if parts else [text.strip("\n")], function.__name__
