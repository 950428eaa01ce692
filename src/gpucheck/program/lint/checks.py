"""The rules about tensors and modules. Each looks at one place while a function is walked through."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucheck.program.lint import rules
from gpucheck.program.lint.tree import walk
from gpucheck.program.lint.value import UNKNOWN, Value

if TYPE_CHECKING:
    from gpucheck.program.lint.expressions import Expressions
    from gpucheck.program.lint.run import Run


def discarded(run: Run, node: ast.expr) -> None:
    """A statement that is nothing but the move of a tensor. The expression has been evaluated before."""
    match node:
        case ast.IfExp():
            discarded(run, node.body)
            discarded(run, node.orelse)
        case ast.BoolOp():
            discarded(run, node.values[-1])
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            discarded(run, node.elt)
        case ast.Tuple() | ast.List():
            for one in node.elts:
                discarded(run, one)
        case ast.Call() if id(node) in run.receivers:
            func = node.func
            name = func.value if isinstance(func, ast.Attribute) else func
            if run.dotted(func).startswith("torch.Tensor.") and node.args:
                name = node.args[0]
            if not _is_kept(run, name):
                # torch.zeros(1).cuda() starts CUDA: there is no tensor that anybody reads afterwards.
                return
            text = run.scope.source.text(node)
            key = run.scope.source.text(name)
            is_name = isinstance(name, (ast.Name, ast.Attribute, ast.Subscript))
            fix = f"{key} = {text}" if is_name else f"moved = {text}"
            run.report(rules.DISCARDED, node, name=key, fix=fix)
            if run.key(name) in run.flow.names:
                # What follows from this is told once: it counts as moved from here on.
                run.flow.names[run.key(name)] = replace(run.receivers[id(node)], place="")


def _is_kept(run: Run, node: ast.expr) -> bool:
    """Whether an expression begins with a value that has a name: `x`, `self.x`, `batch["x"].float()`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False
    return node.id in run.flow.names or node.id not in run.scope.file.imports


def apart(run: Expressions, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that an operation combines: one made on the CPU beside one that is where the module is."""
    if not run.in_forward:
        return
    tensors = [one for one in values if one.is_tensor]
    if not any(one.place == "input" for one in tensors):
        return
    for one in tensors:
        behind = one.place == "default" or (one.place == "cuda" and one.attribute)
        # A parameter that was moved is told where it was moved.
        if behind and one.has_dimensions and one.made is not None and one.moved is None:
            _tell_apart(run, node, one)


def _tell_apart(run: Expressions, node: ast.expr, one: Value) -> None:
    made = one.made
    if made is None:
        return
    text = run.scope.source.text(made)
    if not one.attribute:
        fix = "name the device where it is made: device=x.device, of a tensor that it is used with"
        run.report(rules.IN_FORWARD, made, name=text, line=node.lineno, fix=fix)
        return
    fix = f'self.register_buffer("{one.attribute}", {text})'
    if one.leaf:
        fix = f"self.{one.attribute} = nn.Parameter(…): it requires a gradient"
    run.report(rules.PLAIN, made, name=f"self.{one.attribute}", line=node.lineno, fix=fix)


def put_in(run: Run, node: ast.expr, key: str, added: Value) -> None:
    """A value that is put into the list or dict of this key."""
    kept_module(run, node, key, added)
    kept_loss(run, node, key, added)


def kept_module(run: Run, node: ast.AST, key: str, item: Value | None) -> None:
    """A module with something to move, in a list or dict that is an attribute of a module."""
    owner, name = run.owner, key.removeprefix("self.")
    if owner is None or not owner.is_module or not key.startswith("self.") or item is None:
        return
    while item.kind == "items" and item.item is not None:
        item = item.item
    if item.kind != "module" or not item.stateful or item.attribute or owner.registers_by_hand:
        return
    registered = run.scope.registered.get(owner.node.name, set())
    if name in owner.handed_on or (item.made is not None and id(item.made) in registered):
        return
    if (owner.node.name, key) in run.scope.told:
        return
    if not run.quiet:
        run.scope.told.add((owner.node.name, key))
    kind = "nn.ModuleDict" if isinstance(run.containers.get(key), (ast.Dict, ast.DictComp)) else "nn.ModuleList"
    run.report(rules.IN_LIST, node, name=key, fix=f"use {kind}")


def wrapped(run: Run, known: Value) -> None:
    """A parameter that is about to be an attribute, and was moved after it was made."""
    if known.moved is not None and known.is_tensor:
        name = run.scope.source.text(known.moved)
        run.report(
            rules.MOVED_PARAMETER, known.moved, name=name, fix="move first, wrap then: nn.Parameter(t.to(device))"
        )


def moved_leaf(run: Expressions, known: Value) -> None:
    """A moved leaf whose gradient is asked for, or that an optimizer gets."""
    if known.moved is not None:
        name = run.scope.source.text(known.moved)
        run.report(
            rules.MOVED_PARAMETER,
            known.moved,
            name=name,
            fix="make it on the device: device=…, requires_grad=True, or call .requires_grad_() after the move",
        )


def optimized(run: Run, values: Iterable[Value]) -> None:
    """What an optimizer gets."""
    for one in values:
        for inner in (one, *one.parts, one.item or UNKNOWN):
            moved_leaf(run, inner)
            if inner.kind == "items" and inner is not one:
                optimized(run, [inner])


def read(run: Expressions, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that are read here: one that a copy is still on its way to."""
    for one in values:
        pending = one.pending or (one.item.pending if one.item is not None else None)
        if pending is not None:
            run.report(rules.UNWAITED, pending, name=run.scope.source.text(pending), line=node.lineno)


# -- loops -------------------------------------------------------------------------------------------------------------


def empty_cache(run: Run, node: ast.expr, name: str) -> None:
    """`empty_cache()` in each pass of a loop: not in an error's handler, now and then, or once an epoch."""
    if not name.startswith("torch.") or not name.endswith(".empty_cache") or not run.loops:
        return
    loop = run.loops[-1]
    has_inner = any(isinstance(one, (ast.For, ast.While, ast.AsyncFor)) for one in walk(loop) if one is not loop)
    if not has_inner and not run.is_guarded(node, loop) and run.facts.is_steps(loop):
        run.report(rules.EMPTY_CACHE, node)


def kept_loss(run: Run, node: ast.expr, key: str, added: Value) -> None:
    """`losses.append(loss)` in a loop without a backward, where nobody takes the list for one.

    A loss that was made under `no_grad` has no graph; one that was made before has, wherever it is kept.
    """
    if not run.loops or not added.is_tensor or not added.graph or added.ndim != 0:
        return
    if run.has_framework_step or run.facts.has_backward(run.loops[-1]) or run.facts.is_taken(key):
        return
    argument = node.args[-1] if isinstance(node, ast.Call) and node.args else node
    text = run.scope.source.text(argument)
    run.report(rules.KEPT_GRAPH, node, name=key, fix=f"keep the number: {text}.item(), or {text}.detach()")


def summed_loss(run: Run, node: ast.stmt, target: ast.expr, added: ast.expr, known: Value, before: Value) -> None:
    """`total += loss` in a loop: after a backward, or where no backward is made of the total."""
    if not run.loops or run.no_graph or not run.is_outside(target, run.loops[-1]):
        return
    loop, key = run.loops[-1], ast.unparse(target)
    if {key, key.partition("[")[0]} & run.facts.backwards(None) or before.kind in ("items", "module"):
        return
    trained = set(_names_kept(added)) & run.facts.backwards(loop)
    evaluated = known.is_tensor and known.graph and known.ndim == 0 and not run.has_framework_step
    if (trained and not run.facts.is_plain(trained, loop)) or (evaluated and not run.facts.is_taken(key)):
        text = run.scope.source.text(added)
        fix = f"{key} += {text}.item()" if isinstance(added, ast.Name) else "add the number: .item(), or .detach()"
        run.report(rules.KEPT_GRAPH, node, name=key, fix=fix)


def _names_kept(node: ast.expr) -> Iterable[str]:
    """The names whose graph an expression keeps: `loss`, `loss * n`, `loss / k`; not `loss.item()`."""
    match node:
        case ast.Name():
            yield node.id
        case ast.BinOp():
            yield from _names_kept(node.left)
            yield from _names_kept(node.right)
        case ast.UnaryOp():
            yield from _names_kept(node.operand)
        case ast.Call(ast.Attribute(inner, name)) if name in ("mean", "sum", "clone", "to", "cuda", "float", "cpu"):
            yield from _names_kept(inner)
