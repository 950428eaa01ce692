"""What a whole function shows before it is walked through: who calls backward, and where values go."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpucheck.program.lint import torch_names
from gpucheck.program.lint.names import called_name
from gpucheck.program.lint.tree import walk

Loop = ast.For | ast.AsyncFor | ast.While
# What takes a number's value, or shows it: a graph that goes there was not wanted.
_SINKS = torch_names.words(
    "print len float int str format info debug warning write log add_scalar set_postfix set_description append "
    "round isnan isinf isfinite item tolist"
)
_BACKWARDS = frozenset({"backward", "manual_backward"})


class Facts:
    """The names in a function (or a file), read off its tree."""

    def __init__(self, body: ast.AST) -> None:
        self.body = body
        self._parents: dict[int, ast.AST] | None = None
        self._backwards: dict[int, frozenset[str]] = {}

    def evidence(self) -> set[str]:
        """Names that are used as only a tensor can be."""
        found = set()
        for node in walk(self.body):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in torch_names.TENSOR_ONLY
                and isinstance(node.value, ast.Name)
            ):
                found.add(node.value.id)
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Tuple)
                and isinstance(node.value, ast.Name)
            ):
                # x[:, 0]: no list takes that.
                found |= {node.value.id for one in node.slice.elts if isinstance(one, ast.Slice)}
        return found

    def evaluates(self) -> bool:
        """Whether a model is set to evaluate here: no backward follows."""
        return any(isinstance(one, ast.Call) and called_name(one) == "eval" and not one.args for one in walk(self.body))

    def backwards(self, within: Loop | None) -> frozenset[str]:
        """The names of what backward is called on, in this loop or anywhere."""
        where = within or self.body
        if id(where) not in self._backwards:
            self._backwards[id(where)] = frozenset(self._backwards_in(where))
        return self._backwards[id(where)]

    def _backwards_in(self, where: ast.AST) -> Iterator[str]:
        for node in walk(where):
            if isinstance(node, ast.Call) and called_name(node) in _BACKWARDS and isinstance(node.func, ast.Attribute):
                yield ""  # there is one, whatever its name
                for inner in (node.func.value, *node.args):
                    yield from (one.id for one in walk(inner) if isinstance(one, ast.Name))
                    yield from (
                        ast.unparse(one) for one in walk(inner) if isinstance(one, (ast.Attribute, ast.Subscript))
                    )

    def has_backward(self, loop: Loop) -> bool:
        """Whether backward is called in this loop."""
        return bool(self.backwards(loop))

    def is_plain(self, names: set[str], loop: Loop) -> bool:
        """Whether one of these names is made a number or loses its graph in the loop: `loss = loss.item()`."""
        for node in walk(loop):
            if isinstance(node, ast.Assign) and any(
                isinstance(one, ast.Name) and one.id in names for one in node.targets
            ):
                last = (
                    node.value.func.attr
                    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
                    else ""
                )
                if (
                    last in ("item", "detach", "tolist", "numpy", "detach_")
                    or getattr(node.value, "attr", "") == "data"
                ):
                    return True
            if isinstance(node, ast.Call) and called_name(node) == "detach_":
                return True
        return False

    def is_taken(self, key: str) -> bool:
        """Whether a value goes anywhere but to a screen or a number: returned, passed on, or backward is called."""
        for node in walk(self.body):
            if not (
                isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
                and isinstance(getattr(node, "ctx", None), ast.Load)
            ):
                continue
            if ast.unparse(node) == key and not self._sinks(node):
                return True
        return False

    def _sinks(self, node: ast.AST) -> bool:
        """Whether all that comes of it is shown or becomes a number."""
        parent = self.parent(node)
        match parent:
            case ast.BinOp() | ast.UnaryOp() | ast.FormattedValue() | ast.JoinedStr() | ast.Compare() | ast.IfExp():
                return self._sinks(parent)
            case ast.If() | ast.While() | ast.Expr():
                return True
            case ast.Return():
                # After an evaluation nobody calls backward on what is returned.
                return self.evaluates()
            case ast.Tuple() | ast.Dict():
                return self._sinks(parent)
            case ast.Attribute():
                # total.item(), losses.append
                return parent.attr in _SINKS or (
                    parent.attr in ("mean", "sum") and self._sinks(self.parent(parent) or parent)
                )
            case ast.Call():
                name = called_name(parent)
                if name in ("sum", "mean", "stack", "cat", "tensor"):
                    return self._sinks(parent)
                return name in _SINKS
            case ast.keyword():
                return self._sinks(parent)
        return False

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around this one."""
        if self._parents is None:
            self._parents = {id(child): one for one in walk(self.body) for child in ast.iter_child_nodes(one)}
        return self._parents.get(id(node))

    def is_steps(self, loop: Loop) -> bool:
        """Whether each pass of a loop is a step: it calls backward, an optimizer's step, or a model."""
        for node in walk(loop):
            if isinstance(node, ast.Call):
                name = called_name(node)
                if name in _BACKWARDS or name in ("step", "forward", "generate", "model", "net", "network"):
                    return True
        return False
