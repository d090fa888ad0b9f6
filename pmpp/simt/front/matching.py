"""`match`: rewritten as the chain of `if` that Python's compiler makes of it, before anything else looks at the source.

Numba compiles what is such a chain: numbers, strings, dotted names, None, alternatives, and a name for what is left.
A `match` with another pattern stays, and is refused (`stmt_Match` in compiler.py).
"""

from __future__ import annotations

import ast
from typing import Any


def why_not(node: ast.Match) -> str:
    """Why Numba does not compile a `match`, or an empty string."""
    for case in node.cases:
        for pattern in ast.walk(case.pattern):
            if isinstance(pattern, (ast.MatchSequence, ast.MatchStar)):
                return "compare the elements with if"
            if isinstance(pattern, ast.MatchMapping):
                return "a kernel has no dicts"
            if isinstance(pattern, ast.MatchClass):
                return "a kernel has no classes: compare with if"
            if isinstance(pattern, ast.MatchAs) and pattern.name is not None and case.guard is not None:
                return f"a name, {pattern.name}, together with a condition behind `if` does not compile: write if"
    return ""


class _Rewriter(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0

    def visit_Match(self, node: ast.Match) -> Any:
        self.generic_visit(node)
        if why_not(node):
            return node
        self.count += 1
        name = f"the subject of match {self.count}"  # no name that a kernel can have
        keep = ast.Assign([ast.Name(name, ast.Store())], node.subject)
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            test, bound = _test(case.pattern, name)
            body = [*(ast.Assign([ast.Name(b, ast.Store())], ast.Name(name, ast.Load())) for b in bound), *case.body]
            if case.guard is not None:
                test = case.guard if test is None else ast.BoolOp(ast.And(), [test, case.guard])
            chain = body if test is None else [ast.If(test, body, chain)]
            for statement in chain:
                _place(statement, case.pattern)
        return [ast.copy_location(keep, node), *chain]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self.generic_visit(node)


def _test(pattern: ast.pattern, name: str) -> tuple[ast.expr | None, list[str]]:
    """The condition under which a pattern fits (None: always), and the names that it binds."""
    subject = ast.Name(name, ast.Load())
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(subject, [ast.Eq()], [pattern.value]), []
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)]), []
    if isinstance(pattern, ast.MatchOr):
        tests = [_test(each, name)[0] for each in pattern.patterns]
        return (None if None in tests else ast.BoolOp(ast.Or(), tests)), []
    assert isinstance(pattern, ast.MatchAs)
    test, bound = (None, []) if pattern.pattern is None else _test(pattern.pattern, name)
    return test, bound if pattern.name is None else [*bound, pattern.name]


def _place(node: ast.AST, at: ast.pattern) -> None:
    """Give what was made the line of its pattern; what was written keeps its own."""
    for each in ast.walk(node):
        if "lineno" in each._attributes and getattr(each, "lineno", None) is None:
            ast.copy_location(each, at)


def without_match(tree: ast.AST) -> ast.AST:
    """The tree with every `match` that Numba compiles as a chain of `if`."""
    if any(isinstance(node, ast.Match) for node in ast.walk(tree)):
        return ast.fix_missing_locations(_Rewriter().visit(tree))
    return tree
