"""The package as a student's process gets it: without the answers to the exercises, and without what judges them.

The copy has every module of `pmpp`. Of a module with ``EXERCISES`` it has only what students are given: the tasks and
hints, and the functions that chapters import from it, such as a kernel to start from. All else is blank lines, so that
line numbers stay. `check` takes an answer over for grading there, and `predict` also tells the grader what it said.
"""

from __future__ import annotations

import ast
import functools
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from pmpp.lab.teach.points import NOTEBOOKS

__all__ = ["PACKAGE", "build", "given", "trimmed"]

PACKAGE = Path(__file__).parents[3]
HIDDEN = {"answer", "budget", "cases", "judge", "traps"}  # fields of an exercise that students do not get
PLACES = {"cases": 3, "judge": 3, "answer": 5}  # where one of them is given by its place

WITHHELD = "__import__('pmpp.lab.teach.grade.player', fromlist=['WITHHELD']).WITHHELD"

# What takes the place of these functions, as a last line of their modules.
REPLACED = {
    "lab/teach/exercise.py": "from pmpp.lab.teach.grade.player import check",
    "nn/exercises/__init__.py": "from pmpp.lab.teach.grade.player import check",
    "parallel/exercises/__init__.py": "from pmpp.lab.teach.grade.player import check",
    "lab/teach/predict.py": "from pmpp.lab.teach.grade.player import told\npredict = told(predict)",
}

_CODE = re.compile(r"(?m)^# %%(?! *\[markdown\])(?!.*\"answer\").*\n((?:(?!# %%).*\n?)*)")


def build(folder: Path) -> Path:
    """Write the copy to ``folder / "pmpp"``, and return the folder, which goes on a student's path."""
    target = folder / PACKAGE.name
    shutil.copytree(PACKAGE, target)  # with what Python has compiled: a process starts sooner
    names = given()
    for path in list(target.rglob("*.py")):
        module = path.relative_to(folder).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        if _has_exercises(text):
            path.write_text(trimmed(text, names.get(module, ())), encoding="utf-8")
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
    for name, line in REPLACED.items():
        with (target / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    return folder


@functools.cache
def given() -> dict[str, set[str]]:
    """By module, the names that chapters, without their answers, and the rest of the package use of modules."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((NOTEBOOKS / "source").glob("*.py"))]
    parts = ["\n".join(_CODE.findall(text)) for text in texts]
    own = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    found: dict[str, set[str]] = {}
    for text in [*parts, *(text for text in own if not _has_exercises(text))]:
        if "exercises" not in text:
            continue
        modules = {}
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
                modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.setdefault(modules[node.value.id], set()).add(node.attr)
    return found


def _has_exercises(text: str) -> bool:
    return re.search(r"^EXERCISES\b", text, re.MULTILINE) is not None


def trimmed(text: str, kept: Iterable[str]) -> str:
    """The source of a module with ``EXERCISES``, without what judges and answers them.

    Args:
        text: the source.
        kept: names of it that students are given.

    What these and the statements of the module need is kept, too. Raises ValueError if an answer would be left.
    """
    tree = ast.parse(text)
    lines = text.splitlines()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "Exercise"]
    answers = {name for call in calls for name in map(_name, _hide(call)) if name}
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    others = [node for node in tree.body if node not in defined.values()]
    pending = [*kept, *(name for node in others if not isinstance(node, ast.ImportFrom) for name in _names(node))]
    needed: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += _names(defined[name]) if name in defined else ()
    if left := answers & needed - {*kept}:
        raise ValueError(f"a student would be given the answer {', '.join(sorted(left))}")
    needed -= answers
    for node in tree.body:
        changed = any(call in calls for call in ast.walk(node))
        if isinstance(node, ast.ImportFrom) and "exercises" in (node.module or ""):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in needed]
            changed = True
        if not changed and (node not in defined.values() or node.name in needed):
            continue
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        lines[first - 1 : node.end_lineno] = [""] * (node.end_lineno - first + 1)
        if changed and getattr(node, "names", True):
            lines[first - 1] = _in_one_line(node)
        elif getattr(node, "name", "") in answers & {*kept}:  # what measures imports it, and no student needs it
            lines[first - 1] = f"{node.name} = {WITHHELD}"
    return "\n".join(lines) + "\n"


def _in_one_line(node: ast.stmt) -> str:
    """The source of a statement with exercises in one line: a generator of them becomes a lambda of a tuple."""
    if not isinstance(node, ast.FunctionDef):
        return ast.unparse(node)
    yielded = [one.value for one in ast.walk(node) if isinstance(one, ast.Yield)]
    return f"{node.name} = lambda: ({', '.join(map(ast.unparse, yielded))},)"


def _hide(call: ast.Call) -> Iterator[ast.expr]:
    """Take out of a call of ``Exercise`` what students do not get, and give its answers."""
    withheld = ast.parse(WITHHELD, mode="eval").body
    for keyword in list(call.keywords):
        if keyword.arg == "answer":
            yield keyword.value
            keyword.value = withheld
        elif keyword.arg in ("cases", "judge"):
            keyword.value = ast.Constant(None)
        elif keyword.arg in HIDDEN:
            call.keywords.remove(keyword)
    for name, place in PLACES.items():
        if len(call.args) > place:
            if name == "answer":
                yield call.args[place]
            call.args[place] = withheld if name == "answer" else ast.Constant(None)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
