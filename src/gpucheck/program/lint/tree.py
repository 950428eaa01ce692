"""Walks through a tree without walking: each node knows the slice of one list that holds what lies below it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

_KEY = "_below"
_SKIPPED = frozenset({"ctx", "op", "ops", "type_comment", "kind", "type_ignores"})


def index(tree: ast.AST) -> list[ast.AST]:
    """Number the nodes below, parents before children. Raises RecursionError for a tree that is too deep.

    The list is returned to be cleared: it and the nodes hold each other.
    """
    nodes: list[ast.AST] = []
    fields: dict[type, tuple[str, ...]] = {}

    def visit(node: ast.AST) -> None:
        first = len(nodes)
        nodes.append(node)
        kind = type(node)
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = tuple(name for name in kind._fields if name not in _SKIPPED)
        values = node.__dict__
        for name in names:
            child = values.get(name)
            if child.__class__ is list:
                for one in child:
                    if isinstance(one, ast.AST):
                        visit(one)
            elif isinstance(child, ast.AST):
                visit(child)
        values[_KEY] = (nodes, first, len(nodes))

    visit(tree)
    return nodes


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """The node and all below it, as `ast.walk` gives them, without operators and contexts."""
    known = node.__dict__.get(_KEY)
    if known is None:
        return list(ast.walk(node))
    nodes, first, end = known
    return nodes[first:end]  # type: ignore[no-any-return]
