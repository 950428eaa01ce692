"""Rules of training loops and of waits: a loss that is kept with its graph, empty_cache() in a loop, and a copy to the
host that is read without a wait."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gpucheck.program.lint import names, options
from gpucheck.program.lint.names import called_name
from gpucheck.program.lint.source import walk
from gpucheck.program.lint.values import SCALAR, Loop, Place, Value

# Calls that take a number's value, or show it: a graph that goes there was not wanted.
_SINKS = names.words(
    "print len float int str format info debug warning write log add_scalar set_postfix set_description append "
    "round isnan isinf isfinite item tolist"
)
_BACKWARDS = frozenset({"backward", "manual_backward"})
# Calls that make a pass of a loop a step.
_OF_STEPS = frozenset({*_BACKWARDS, "step", "forward", "generate", "model", "net", "network"})


def read(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that are read here: a copy may still be on its way to them."""
    for value in values:
        pending = value.pending or (value.item.pending if value.item is not None else None)
        if pending is not None:
            run.report(options.UNWAITED, pending, name=run.text(pending), line=node.lineno)


def waited(run: Place, values: Iterable[Value]) -> None:
    """The host needs these values here: where a value may be on a device, the copies before it are complete."""
    if any(value.is_tensor and value.pending is None and value.place not in ("default", "cpu") for value in values):
        run.flow.settle()


def empty_cache(run: Place, node: ast.expr, name: str) -> None:
    """`empty_cache()` in each pass of a loop: not in an error's handler, now and then, or once an epoch."""
    if not name.startswith("torch.") or not name.endswith(".empty_cache") or not run.loops:
        return
    loop = run.loops[-1]
    has_inner = any(isinstance(inner, Loop) and inner is not loop for inner in walk(loop))
    is_step = any(isinstance(call, ast.Call) and called_name(call) in _OF_STEPS for call in walk(loop))
    if is_step and not has_inner and not _is_guarded(run, node, loop):
        run.report(options.EMPTY_CACHE, node)


def _is_guarded(run: Place, node: ast.AST, loop: Loop) -> bool:
    """Return whether not every pass of the loop comes here: behind a condition, or in an error's handler."""
    above = run.parent(node)
    while above is not None and above is not loop:
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and not re.search("cuda|device", ast.unparse(above.test)):
            return True
        above = run.parent(above)
    return False


def kept_loss(run: Place, node: ast.expr, key: str, added: Value) -> None:
    """`losses.append(loss)` in a loop without a backward, where nobody takes the list for one.

    A loss that was made under `no_grad` has no graph; one that was made before has, wherever it is kept.
    """
    if not run.loops or not added.is_tensor or not added.graph or added.ndim != SCALAR:
        return
    if run.has_framework_step or _backwards(run.loops[-1]) or _is_taken(run, key):
        return
    is_element = isinstance(node, ast.Call) and node.args and called_name(node) not in ("extend", "update")
    text = _operand(run, node.args[-1]) if isinstance(node, ast.Call) and is_element else "loss"
    run.report(options.KEPT_GRAPH, node, name=key, fix=f"keep only the number: {text}.item(), or {text}.detach()")


def _operand(run: Place, node: ast.expr) -> str:
    """The source of an expression, so that a method can be called on it."""
    text = run.text(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"


def summed_loss(run: Place, node: ast.stmt, target: ast.expr, added: ast.expr, known: Value, before: Value) -> None:
    """`total += loss` in a loop: after a backward, or where no backward is made of the total. A total that is used as a
    tensor stays one."""
    if not run.loops or run.in_no_grad or not _is_outside(target, run.loops[-1]):
        return
    loop, key = run.loops[-1], ast.unparse(target)
    if {key, key.partition("[")[0]} & _backwards(run.body) or before.kind in ("items", "module"):
        return
    trained = set(_names_kept(added)) & _backwards(loop)
    is_evaluated = known.is_tensor and known.graph and known.ndim == SCALAR
    is_evaluated = is_evaluated and not (run.has_framework_step or run.no_graph)
    if (trained and not _is_plain(trained, loop)) or (is_evaluated and not _is_taken(run, key)):
        methods = (inner for inner in walk(run.body) if isinstance(inner, ast.Attribute))
        is_tensor = any(ast.unparse(inner.value) == key for inner in methods)
        number = f"{_operand(run, added)}.{'detach' if is_tensor else 'item'}()"
        terms = ast.iter_child_nodes(getattr(node, "value", node))
        is_sum = isinstance(node, ast.AugAssign) or key in map(ast.unparse, terms)
        run.report(options.KEPT_GRAPH, node, name=key, fix=f"{key} += {number}" if is_sum else f"add {number}")


def _is_outside(target: ast.expr, loop: Loop) -> bool:
    """Return whether a total lives on from one pass to the next: nothing in the loop sets it anew."""
    text = ast.unparse(target)
    sets = (node for node in walk(loop) if isinstance(node, ast.Assign) and text in map(ast.unparse, node.targets))
    return all(text in texts(node.value) for node in sets)


def texts(node: ast.expr) -> set[str]:
    """The source of every expression within an expression."""
    return {ast.unparse(inner) for inner in walk(node) if isinstance(inner, ast.expr)}


def _names_kept(node: ast.expr) -> Iterator[str]:
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


def _backwards(within: ast.AST) -> frozenset[str]:
    """The names of what backward is called on in a loop or a function, and "" where it is called at all."""
    known: set[str] = set()
    for node in walk(within):
        if isinstance(node, ast.Call) and called_name(node) in _BACKWARDS and isinstance(node.func, ast.Attribute):
            known.add("")
            for inner in (below for part in (node.func.value, *node.args) for below in walk(part)):
                if isinstance(inner, (ast.Name, ast.Attribute, ast.Subscript)):
                    known.add(ast.unparse(inner))
    return frozenset(known)


def _is_plain(trained: set[str], loop: Loop) -> bool:
    """Return whether one of these names is made a number or loses its graph in the loop: `loss = loss.item()`."""
    for node in walk(loop):
        if isinstance(node, ast.Assign) and trained & {getattr(target, "id", "") for target in node.targets}:
            value = node.value
            last = called_name(value) if isinstance(value, ast.Call) else getattr(value, "attr", "")
            if last in ("item", "detach", "tolist", "numpy", "data"):
                return True
        if isinstance(node, ast.Call) and called_name(node) == "detach_":
            return True
    return False


def _is_taken(run: Place, key: str) -> bool:
    """Return whether a value goes anywhere but to a screen or a number: returned, passed on, or backward is called."""
    places = (node for node in walk(run.body) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)))
    reads = (node for node in places if isinstance(node.ctx, ast.Load) and ast.unparse(node) == key)
    return not all(_sinks(run, node) for node in reads)


def _sinks(run: Place, node: ast.AST) -> bool:
    """Return whether all that comes of a value is shown or becomes a number."""
    above = run.parent(node)
    match above:
        case ast.BinOp() | ast.UnaryOp() | ast.FormattedValue() | ast.JoinedStr() | ast.Compare() | ast.IfExp():
            return _sinks(run, above)
        case ast.Tuple() | ast.Dict() | ast.keyword():
            return _sinks(run, above)
        case ast.If() | ast.While() | ast.Expr():
            return True
        case ast.Return():
            # After an evaluation nobody calls backward on what is returned.
            calls = (inner for inner in walk(run.body) if isinstance(inner, ast.Call))
            return any(called_name(call) == "eval" and not call.args for call in calls)
        case ast.Attribute(attr=name):  # total.item(), losses.append
            inner = run.parent(above) if name in ("mean", "sum") else None
            return name in _SINKS or (inner is not None and _sinks(run, inner))
        case ast.Call():
            name = called_name(above)
            return _sinks(run, above) if name in ("sum", "mean", "stack", "cat", "tensor") else name in _SINKS
    return False
