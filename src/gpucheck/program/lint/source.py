"""From a file's bytes to its tree, with the comments that tell `lint` to be silent; and walks through the tree."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

# What stands somewhere in a file.
Node = ast.expr | ast.stmt
# A larger file is data, not a program: a table of 10 MB of literals takes ast a gigabyte.
MOST_BYTES = 4 * 2**20
_IGNORE = re.compile(r"#\s*gpucheck:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


class Unreadable(Exception):
    """The file cannot be judged: why, and on which line where that is known."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(why)
        self.why, self.line, self.column = why, line, column


@dataclass(frozen=True, slots=True)
class Source:
    """A file as a tree. `lines` are numbered from 0; `ignored` holds the ids by line, an empty set for all."""

    tree: ast.Module
    lines: list[str]
    ignored: dict[int, frozenset[str]] = field(default_factory=dict)

    def text(self, node: Node) -> str:
        """The source of an expression, in one line, cut where it is longer than 60 characters."""
        line = self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        text = line if node.end_lineno == node.lineno else ast.unparse(node)  # lines have comments
        return text if len(text) <= 60 else f"{text[:59]}…"

    def column(self, node: Node) -> int:
        """The column of a node in characters, from 1: ast counts bytes."""
        return len(self.lines[node.lineno - 1].encode()[: node.col_offset].decode("utf-8", "replace")) + 1

    def width(self, node: Node) -> int:
        """Return the length of the node on its first line, at least one character."""
        line = self.lines[node.lineno - 1].rstrip()
        if node.end_lineno == node.lineno:
            line = line.encode()[: node.end_col_offset].decode("utf-8", "replace")
        return max(len(line) - self.column(node) + 1, 1)

    def is_ignored(self, node: Node, rule: str) -> bool:
        """Return whether a comment on one of the node's lines names the rule, or all."""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        told = [ids for line, ids in self.ignored.items() if line in lines]
        return any(not ids or rule in ids or rule.removeprefix("lint.") in ids for ids in told)


def parse(data: bytes) -> Source:
    """A file's bytes as a tree. Raises Unreadable, with the reason, for what Python cannot read."""
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES // 2**20} MiB")
    text = _decoded(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's own escapes and comparisons
            tree = ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(f"not valid Python: {error.msg}", error.lineno, error.offset) from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable("its expressions are nested too deeply") from error
    except ValueError as error:
        raise Unreadable(f"not valid Python: {error}") from error
    return Source(tree, text.split("\n"), _ignored(text))


def _decoded(data: bytes) -> str:
    """The text, by its byte order mark or its coding comment (PEP 263), with plain line ends."""
    if b"\0" in data:
        raise Unreadable("not valid Python: it contains null bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except SyntaxError as error:
        raise Unreadable(f"not valid Python: {error.msg}", 1) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"not valid {error.encoding}", line) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _ignored(text: str) -> dict[int, frozenset[str]]:
    """The ignore comments by line. A text that only looks like one, within a string, is none."""
    if _IGNORE.search(text) is None:
        return {}
    found = {}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise Unreadable(f"its comments cannot be read: {error}") from error
    for token in tokens:
        told = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if told is not None:
            given = told.group(1)
            ids = frozenset(one.strip() for one in (given or "").split(",") if one.strip())
            # `ignore[]` names nothing, so it ignores nothing.
            if ids or given is None:
                found[token.start[0]] = ids
    return found


# -- a walk through a tree without walking: each node knows the slice of one list that holds what lies below it --------

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
