"""Walking a syntax tree many times: each statement is looked through for its names, its loops, its calls, ..."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes directly below a node.  They are kept with it, for nobody changes a tree that is being compiled."""
    try:
        return node._children  # type: ignore[attr-defined]
    except AttributeError:
        found = node._children = tuple(ast.iter_child_nodes(node))  # type: ignore[attr-defined]
        return found


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in the order of `ast.walk`."""
    found = [tree]
    for node in found:  # it grows meanwhile
        found += children(node)
    return iter(found)
