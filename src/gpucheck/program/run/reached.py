"""Find the code that a dry run did not reach before its end, and that uses a module, an optimizer or a loss."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from gpucheck.program.lint.facts import called_name

MOST = 5  # names that are returned
# Methods of modules, optimizers and losses.
_METHODS = frozenset(
    ("backward", "zero_grad", "state_dict", "load_state_dict", "parameters", "named_parameters", "eval", "generate")
)
_TORCH = frozenset(("torch", "nn", "F"))  # the usual names for torch's modules
# Functions of these modules that do no work.
_NO_WORK = frozenset(("no_grad", "inference_mode", "save", "load", "device", "manual_seed", "is_available", "cuda"))
# Other types have these methods too, so a call on an unknown type proves nothing.
_OF_OTHERS = frozenset(("to", *(name for kind in (dict, list, set, str) for name in dir(kind))))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class LastLine:
    """A line at which the program was ended."""

    file: str
    function: int  # the first line of its function, or 0 at module level
    line: int
    is_loop: bool  # whether only the loop was ended, and the program continued after the loop


@dataclass(frozen=True, slots=True, eq=False)
class _Function:
    name: str
    file: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    variables: frozenset[str]  # the variables of the function's module

    @property
    def line(self) -> int:
        """Return the first line as code objects do: the line of the first decorator."""
        return min(node.lineno for node in (self.node, *self.node.decorator_list))


def not_reached(
    trees: Mapping[str, ast.Module], ran: Mapping[str, frozenset[int]], left: Iterable[LastLine]
) -> list[str]:
    """Return functions that did not run, such as `Trainer.evaluate()`, and lines of code that runs only once, such as
    `train.py:74`. `ran` has the first lines of the functions that ran in each file."""
    functions = [function for file, tree in trees.items() for function in _functions(file, tree)]
    known: dict[str, list[_Function]] = {}
    for function in functions:
        if function.node.name not in function.variables:  # a variable of this name may be another function
            known.setdefault(function.node.name, []).append(function)
    begins = {(function.file, function.line): function.node for function in functions}
    names: dict[str, None] = {}
    for at in left:
        tree = trees.get(at.file)
        scope = tree if at.function == 0 else begins.get((at.file, at.function))
        if scope is None:
            continue
        ahead, once = _ahead(scope.body, at)
        for call in _calls(ahead):
            called = known.get(called_name(call), [])
            if isinstance(call.func, ast.Attribute) and called_name(call) in _OF_OTHERS:
                continue
            if not any(function.line in ran.get(function.file, ()) for function in called):
                names |= dict.fromkeys(f"{function.name}()" for function in called if _works(function, known, set()))
        if once and tree is not None and (scope is tree or _runs_once(getattr(scope, "name", ""), tree)):
            held = frozenset((*_assigned(tree.body), *_assigned(scope.body)))
            own = (statement for statement in once if _uses([statement], held, {}, set()))
            names |= dict.fromkeys(f"{os.path.basename(at.file)}:{statement.lineno}" for statement in [*own][:1])
    return list(names)[:MOST]


def _functions(file: str, tree: ast.Module) -> Iterator[_Function]:
    variables = frozenset(_assigned(tree.body))

    def below(node: ast.AST, prefix: str) -> Iterator[_Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                yield _Function(prefix + child.name, file, child, variables)
                yield from below(child, "")
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{child.name}.")
            else:
                yield from below(child, prefix)

    yield from below(tree, "")


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements assign, also in nested blocks."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            nodes = (node for target in statement.targets for node in ast.walk(target))
            yield from (node.id for node in nodes if isinstance(node, ast.Name))
        elif not isinstance(statement, _SCOPES):
            for block in _blocks(statement):
                yield from _assigned(block)


def _ahead(body: list[ast.stmt], at: LastLine) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements that would still have run, and those among them that run only once. An ended loop has only
    its own body. Else a line has the outermost loop's body and all later statements, once from that loop's end on."""
    loops: list[list[ast.stmt]] = []
    behind: list[ast.stmt] = []
    once: list[ast.stmt] = []
    while True:
        index = next((n for n, entry in enumerate(body) if at.line <= (entry.end_lineno or entry.lineno)), len(body))
        statement = body[index] if index < len(body) and body[index].lineno <= at.line else None
        behind = [*body[index + (statement is not None) :], *behind]
        once = once if loops else behind
        if isinstance(statement, _LOOPS):
            loops.append(statement.body)
        inside = () if statement is None or isinstance(statement, _SCOPES) else _blocks(statement)
        block = next((part for part in inside if part[0].lineno <= at.line <= (part[-1].end_lineno or 0)), None)
        if block is None:
            break
        body = block
    if at.is_loop:
        return (loops[-1] if loops else []), []
    return [*(loops[0] if loops else ()), *behind], once


def _runs_once(name: str, tree: ast.Module) -> bool:
    """Return whether the file calls a function only once, at module level and outside of loops."""
    nodes = [*ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and called_name(node) == name]
    if len(calls) != 1 or calls[0] not in _calls(tree.body):
        return False
    return not any(calls[0] in ast.walk(loop) for loop in nodes if isinstance(loop, _LOOPS))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for part in (statement, *ast.iter_child_nodes(statement)):  # exception handlers and match cases have blocks too
        blocks = (getattr(part, name, None) for name in ("body", "orelse", "finalbody"))
        yield from (block for block in blocks if isinstance(block, list) and block)


def _calls(body: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls in statements, except those inside nested functions and classes."""
    for node in body:
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls(ast.iter_child_nodes(node))


def _works(function: _Function, known: Mapping[str, list[_Function]], asked: set[_Function]) -> bool:
    """Return whether a function or one of its callees uses a module, an optimizer or a loss."""
    if function in asked:
        return False
    asked.add(function)
    arguments = function.node.args
    names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return _uses(function.node.body, names | function.variables, known, asked)


def _uses(body: Iterable[ast.AST], held: Set[str], known: Mapping[str, list[_Function]], asked: set[_Function]) -> bool:
    """Return whether statements use a module, an optimizer or a loss, which any variable in `held` may be."""
    for call in _calls(body):
        name, called = called_name(call), call.func
        if any(_works(other, known, asked) for other in known.get(name, ())):
            return True
        if isinstance(called, ast.Name) and name in held:
            return True
        if isinstance(called, ast.Attribute):
            root: ast.AST = called
            while isinstance(root, ast.Attribute):
                root = root.value
            is_torchs = isinstance(root, ast.Name) and root.id in _TORCH and name not in _NO_WORK
            is_held = isinstance(called.value, ast.Name) and called.value.id == "self" and name not in known
            if name in _METHODS or is_torchs or is_held:
                return True
    return False
