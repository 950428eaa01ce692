"""From a file's bytes to its tree, and the comments in it that tell `lint` to be silent."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    def text(self, node: ast.AST, most: int = 60) -> str:
        """The source of an expression, in one line, cut where it is longer than `most` characters."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not line:
            return ""
        start, stop = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        rows = [row.encode() for row in self.lines[line - 1 : end]]
        if rows:
            rows[-1] = rows[-1][:stop]
            rows[0] = rows[0][start:]
        text = " ".join(b" ".join(rows).decode("utf-8", "replace").split())
        return text if len(text) <= most else f"{text[: most - 1]}…"

    def column(self, node: ast.AST) -> int:
        """The column of a node in characters, from 1: ast counts bytes."""
        line = self.lines[getattr(node, "lineno", 1) - 1]
        return len(line.encode()[: getattr(node, "col_offset", 0)].decode("utf-8", "replace")) + 1

    def is_ignored(self, node: ast.AST, rule: str) -> bool:
        """Return whether a comment on one of the node's lines names the rule, or all."""
        first = getattr(node, "lineno", 1)
        for line in range(first, (getattr(node, "end_lineno", None) or first) + 1):
            ids = self.ignored.get(line)
            if ids is not None and (not ids or rule in ids or rule.removeprefix("lint.") in ids):
                return True
        return False


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
