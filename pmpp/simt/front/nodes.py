"""Walking a syntax tree many times: each statement is looked through for its names, its loops, its calls, ..."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

Found = TypeVar("Found")


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes directly below a node.  They are kept with it, for nobody changes a tree that is being compiled."""
    try:
        return node._children  # type: ignore[attr-defined]
    except AttributeError:
        found: list[ast.AST] = []
        for name in node._fields:
            field = getattr(node, name, None)
            if isinstance(field, ast.AST):
                found.append(field)
            elif isinstance(field, list):
                found += [each for each in field if isinstance(each, ast.AST)]
        kept = node._children = tuple(found)  # type: ignore[attr-defined]
        return kept


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in the order of `ast.walk`."""
    found = [tree]
    for node in found:  # it grows meanwhile
        found += children(node)
    return iter(found)


def moved(tree: ast.AST, lines: int) -> None:
    """Move a tree down by some lines, as `ast.increment_lineno` does in twice the time."""
    for node in {id(node): node for node in walk(tree)}.values():
        if "lineno" in node._attributes:
            node.lineno += lines  # type: ignore[attr-defined]
            node.end_lineno += lines  # type: ignore[attr-defined]


def once(function: Callable[[ast.AST], Found]) -> Callable[[ast.AST], Found]:
    """What a function finds in a tree, kept with it: many functions are made from one tree.  Nobody changes it."""
    attribute = f"_{function.__name__}_once"

    @functools.wraps(function)
    def asked(tree: ast.AST) -> Found:
        try:
            return getattr(tree, attribute)
        except AttributeError:
            found = function(tree)
            setattr(tree, attribute, found)
            return found

    return asked
