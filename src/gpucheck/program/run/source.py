"""What a line of source says of a copy: whether it is in a loop, and whether its tensor is made on the host first.

Read in our process, from the file. Pure but for that; None for what cannot be read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

# Functions of torch that make a tensor on the host unless they are told a device. What takes data that is there
# already (from_numpy, as_tensor, load) is none: such data has to come to the device in some way.
_FACTORIES = frozenset(
    (
        *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace"),
        *("eye", "tensor", "tril_indices", "triu_indices", "normal", "bernoulli", "multinomial"),
    )
)
_MOVES = frozenset(("to", "cuda", "cpu", "xpu", "copy_"))
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Said:
    """What the source says of one line."""

    text: str | None = None
    in_loop: bool | None = None
    made_by: str | None = None


class Sources:
    """The files of a program, each read once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[str], ast.Module | None]] = {}

    def said(self, file: str, line: int) -> Said:
        """What the source says of this line."""
        lines, tree = self._file(file)
        text = lines[line - 1].strip() if 0 < line <= len(lines) else None
        if tree is None:
            return Said(text)
        path = _path_to(tree, line)
        inner = [node for node in path if isinstance(node, _FUNCTIONS)]
        within = path[path.index(inner[-1]) :] if inner else path
        in_loop = any(isinstance(node, _LOOPS) and line > node.lineno for node in within) or any(
            isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) for node in within
        )
        return Said(text, in_loop, _made_by(within[0] if within else tree, line))

    def _file(self, file: str) -> tuple[list[str], ast.Module | None]:
        if file not in self._files:
            try:
                text = Path(file).read_text(encoding="utf-8")
                self._files[file] = text.splitlines(), ast.parse(text)
            except (OSError, SyntaxError, ValueError):
                self._files[file] = [], None
        return self._files[file]


def _path_to(tree: ast.AST, line: int) -> list[ast.AST]:
    """The nodes that enclose a line, outermost first."""
    path: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        path.append(node)
        node = next(
            (one for one in ast.iter_child_nodes(node) if _begins(one) <= line <= (getattr(one, "end_lineno", 0) or 0)),
            None,
        )
    return path


def _begins(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 10**9))


def _made_by(scope: ast.AST, line: int) -> str | None:
    """The factory that makes the tensor which is moved on this line: in the same expression, or in the last value that
    its variable was given in the same scope."""
    for call in ast.walk(scope):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES):
            continue
        if not call.lineno <= line <= (call.end_lineno or call.lineno):
            continue
        made = _factory(call.func.value)
        if made is None and isinstance(call.func.value, ast.Name):
            value = _last_value(scope, call.func.value.id, line)
            made = None if value is None else _factory(value)
        if made is not None:
            return made
    return None


def _factory(value: ast.expr) -> str | None:
    """The factory at the root of `torch.zeros(3).view(-1)`, or of `torch.tril(torch.ones(4, 4))`."""
    while isinstance(value, ast.Call):
        function = value.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "torch"
        ):
            if function.attr in _FACTORIES:
                on_device = any(word.arg == "device" for word in value.keywords)
                return None if on_device else f"torch.{function.attr}"
            if not value.args or isinstance(value.args[0], ast.Starred):
                return None
            value = value.args[0]
        elif isinstance(function, ast.Attribute) and function.attr not in _MOVES:
            value = function.value
        else:
            return None
    return None


def _last_value(scope: ast.AST, name: str, line: int) -> ast.expr | None:
    found: ast.expr | None = None
    at = 0
    for node in ast.walk(scope):
        if not (isinstance(node, ast.Assign) and at <= node.lineno < line):
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            found, at = node.value, node.lineno
    return found
