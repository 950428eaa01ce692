"""What the functions of a file share while they are walked through: mistakes found, attributes, what functions do."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucheck.program.lint import names, rules
from gpucheck.program.lint.names import Class, File, Function
from gpucheck.program.lint.source import Source
from gpucheck.program.lint.value import UNKNOWN, Value

if TYPE_CHECKING:
    from gpucheck.program.lint.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake: by which rule, where, and what to say. Line and column count from 1, in characters."""

    id: str
    line: int
    column: int
    message: str
    fix: str
    end_line: int
    function: str = ""
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call of a function does: what it returns, where it starts CUDA, and what it does before that.

    `sets` is where it sets CUDA_VISIBLE_DEVICES before it starts CUDA, `on_gpu` where it makes or moves tensors on one.
    """

    returns: Value = UNKNOWN
    started: ast.AST | None = None
    sets: tuple[ast.AST, ...] = ()
    on_gpu: tuple[ast.expr, ...] = ()


def _nothing_known(
    function: Function, owner: Class | None, outer: Mapping[str, Value], args: Sequence[Value], no_graph: int
) -> Effect:
    return Effect()


@dataclass(slots=True)
class Scope:
    """A file while it is judged."""

    source: Source
    file: File
    found: dict[tuple[str, int, int], Mistake] = field(default_factory=dict)
    # By name of the class: its attributes, and what made the modules that it registers.
    attributes: dict[str, dict[str, Value]] = field(default_factory=dict)
    registered: dict[str, set[int]] = field(default_factory=dict)
    # Lists of modules that have been told, by class and attribute.
    told: set[tuple[str, str]] = field(default_factory=set)
    effects: dict[int, Effect] = field(default_factory=dict)
    forwards: dict[str, set[str]] = field(default_factory=dict)
    # By id of a function that was defined within another: who was walked through there.
    parents: dict[int, Expressions] = field(default_factory=dict)
    # What a call of a function does; it is walked through once, when it is first called or when its turn comes.
    effect_of: Callable[[Function, Class | None, Mapping[str, Value], Sequence[Value], int], Effect] = _nothing_known

    def report(self, rule: str, node: ast.AST, function: str, **words: object) -> None:
        """A mistake, once for each place."""
        line, column = getattr(node, "lineno", 1), self.source.column(node)
        row = rules.BY_ID[rule]
        mistake = Mistake(
            rule,
            line,
            column,
            row.message.format_map(words),
            row.fix.format_map(words),
            getattr(node, "end_lineno", None) or line,
            function,
            self.source.is_ignored(node, rule),
        )
        self.found.setdefault((rule, line, column), mistake)

    def method(self, owner: Class | None, name: str) -> Function | None:
        """The method of this name as a class has it, through bases in the file."""
        return names.method(self.file, owner, name) if owner is not None else None
