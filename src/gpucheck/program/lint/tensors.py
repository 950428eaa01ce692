"""Rules about tensors: moves, devices, parameters, losses that keep a graph, and reads of pending copies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpucheck.program.lint import tables
from gpucheck.program.lint.facts import SCALAR, UNKNOWN, Loop, Node, Scope, Value, called_name, walk


def discarded(run: Scope, node: ast.expr) -> None:
    """Report a statement that only moves a tensor. `node` must have been evaluated before."""
    if isinstance(node, ast.IfExp):  # x.cuda() if has_gpu else None
        node = node.body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or id(node) not in run.receivers:
        return
    receiver = root = node.func.value
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    # A move of a temporary value, such as torch.zeros(1).cuda(), only starts CUDA.
    if not isinstance(root, ast.Name) or (root.id not in run.flow.names and root.id in run.file.imports):
        return
    run.report("lint.discarded_move", node, name=run.file.text(receiver), fix=_keeping(run, node, receiver))
    if run.key(receiver) in run.flow.names:
        # The tensor counts as moved, so that lint does not report later lines for the same mistake.
        run.flow.names[run.key(receiver)] = replace(run.receivers[id(node)], place="")


def _keeping(run: Scope, node: ast.Call, receiver: ast.expr) -> str:
    """Return how to keep the result of a move. A loop variable cannot keep the result."""
    value, move = run.receivers[id(node)], run.file.text(node)
    if value.kind == "parameter":
        return "move its module, which moves parameters in place"
    if value.leaf:
        return "create it on the device: device=…, requires_grad=True"
    targets = [part for loop in run.loops if isinstance(loop, ast.For) for part in walk(loop.target)]
    is_local = isinstance(receiver, ast.Name) and (isinstance(run.body, ast.Module) or receiver.id in run.local_names)
    if is_local and all(getattr(part, "id", "") != run.file.text(receiver) for part in targets):
        return f"assign the result: {run.file.text(receiver)} = {move}"
    return f"keep the result: moved = {move}"


def mixed_devices(run: Scope, node: ast.expr, values: Iterable[Value]) -> None:
    """Report an operation that combines a CPU tensor with a tensor on the module's device."""
    tensors = [value for value in values if value.is_tensor]
    if not run.in_forward or all(value.place != "input" for value in tensors):
        return
    for value in tensors:
        is_elsewhere = value.place == "default" or (value.place == "cuda" and value.attribute)
        # Another rule reports a moved parameter at the line of the move.
        if not is_elsewhere or value.ndim in (None, SCALAR) or value.made is None or value.moved is not None:
            continue
        if not value.attribute:
            fix = f"create it on the right device, or move it there: {_device_at(run, value.made)}"
            run.report("lint.cpu_in_forward", value.made, name=run.file.text(value.made), line=node.lineno, fix=fix)
            continue
        name = value.attribute if value.attribute.isidentifier() else "name"
        fix = f"self.{name} = nn.Parameter(…)" if value.leaf else f'self.register_buffer("{name}", …)'
        run.report("lint.plain_tensor", value.made, name=f"self.{value.attribute}", line=node.lineno, fix=fix)


def _device_at(run: Scope, made: ast.AST) -> str:
    """Return an expression for the module's device at the line of `made`, such as `device=x.device`."""
    arguments = getattr(run.body, "args", None)
    if arguments is not None and any(inner is made for inner in walk(run.body)):
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument in positional[: len(positional) - len(arguments.defaults)]:  # a default may be None
            known = run.visible().get(argument.arg, UNKNOWN)
            may_be_none = argument.annotation is not None and "None" in ast.unparse(argument.annotation)
            if known.is_tensor and known.place == "input" and not may_be_none:
                return f"device={argument.arg}.device"
    return "the device of the other operand"


def kept_module(run: Scope, node: Node, key: str, item: Value | None) -> None:
    """Report a module with parameters or buffers in a plain list or dict of another module."""
    owner, name = run.owner, key.removeprefix("self.")
    if owner is None or not owner.is_module or owner.registers_by_hand or not key.startswith("self.") or item is None:
        return
    while item.kind == "items" and item.item is not None:
        item = item.item
    if item.kind == "module" and item.stateful and not item.attribute and name not in owner.passed_on:
        run.report("lint.module_in_list", node, name=key)
        owner.passed_on |= set() if run.quiet else {name}  # each attribute is reported once


def moved_leaf(run: Scope, known: Value) -> None:
    """Report a moved leaf. Callers see a read of its gradient, an optimizer, or a module's attribute."""
    if known.is_tensor and known.moved is not None:
        run.report("lint.moved_parameter", known.moved, name=run.file.text(known.moved))


def optimized(run: Scope, values: Iterable[Value]) -> None:
    for value in values:
        moved_leaf(run, value)
        optimized(run, [*value.parts, *([value.item] if value.item is not None else [])])


# Calls that use or print only a number. A loss that reaches only these calls needs no graph.
_SINKS = tables.words(
    "print len float int str format info debug warning write log add_scalar set_postfix set_description append "
    "round isnan isinf isfinite item tolist"
)
_BACKWARDS = frozenset({"backward", "manual_backward"})
# A loop with any of these calls is a loop of training or inference steps.
_OF_STEPS = frozenset({*_BACKWARDS, "step", "forward", "generate", "model", "net", "network"})


def read(run: Scope, node: ast.expr, values: Iterable[Value]) -> None:
    """Report a read of values while a non-blocking copy into them is pending."""
    for value in values:
        pending = value.pending or (value.item.pending if value.item is not None else None)
        if pending is not None:
            run.report("lint.unwaited_copy", pending, name=run.file.text(pending), line=node.lineno)


def waited(run: Scope, values: Iterable[Value]) -> None:
    """Mark earlier copies as complete if the host waits for one of the values, which may be on a device."""
    if any(value.is_tensor and value.pending is None and value.place not in ("default", "cpu") for value in values):
        run.flow.settle()


def empty_cache(run: Scope, node: ast.expr, name: str) -> None:
    """Report `empty_cache()` in every pass of a step loop, unless an exception handler or an `if` guards the call."""
    if not name.startswith("torch.") or not name.endswith(".empty_cache") or not run.loops:
        return
    loop = run.loops[-1]
    has_inner = any(isinstance(inner, Loop) and inner is not loop for inner in walk(loop))
    is_step = any(isinstance(call, ast.Call) and called_name(call) in _OF_STEPS for call in walk(loop))
    if is_step and not has_inner and not _is_guarded(run, node, loop):
        run.report("lint.empty_cache_in_loop", node)


def _is_guarded(run: Scope, node: ast.AST, loop: Loop) -> bool:
    """Return whether a condition or an exception handler keeps some passes of the loop from this node."""
    above = run.parent(node)
    while above is not None and above is not loop:
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and not re.search("cuda|device", ast.unparse(above.test)):
            return True
        above = run.parent(above)
    return False


def kept_loss(run: Scope, node: ast.expr, key: str, added: Value) -> None:
    """Report `losses.append(loss)` in a loop without a backward pass, if no later backward pass uses the list."""
    if not run.loops or not added.is_tensor or not added.graph or added.ndim != SCALAR:
        return
    if not (run.has_framework_step or _backwards(run.loops[-1]) or _is_taken(run, key)):
        run.report("lint.kept_graph", node, name=key, fix="keep only the number: loss.item(), or loss.detach()")


def summed_loss(run: Scope, node: ast.stmt, target: ast.expr, added: ast.expr, known: Value, before: Value) -> None:
    """Report `total += loss` in a loop after the loss's backward pass, or if no backward pass uses the total."""
    if not run.loops or run.no_graph:
        return
    loop, key = run.loops[-1], ast.unparse(target)
    sets = (inner for inner in walk(loop) if isinstance(inner, ast.Assign) and key in map(ast.unparse, inner.targets))
    if any(key not in texts(inner.value) for inner in sets):  # the loop resets the total
        return
    if {key, key.partition("[")[0]} & _backwards(run.body) or before.kind in ("items", "module"):
        return
    trained = set(_names_kept(added)) & _backwards(loop)
    is_loss = known.is_tensor and known.graph and known.ndim == SCALAR and not run.has_framework_step
    if (trained and not _is_plain(trained, loop)) or (is_loss and not _is_taken(run, key)):
        text = run.file.text(added)
        text = text if isinstance(added, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"
        run.report("lint.kept_graph", node, name=key, fix=f"add {text}.detach()")


def texts(node: ast.expr) -> set[str]:
    """Return the source of every expression within an expression."""
    return {ast.unparse(inner) for inner in walk(node) if isinstance(inner, ast.expr)}


def _names_kept(node: ast.expr) -> Iterator[str]:
    """Yield the names whose graph an expression keeps: `loss` for `loss * n`, none for `loss.item()`."""
    match node:
        case ast.Name():
            yield node.id
        case ast.BinOp():
            yield from _names_kept(node.left)
            yield from _names_kept(node.right)
        case ast.Call(ast.Attribute(inner, name)) if name in ("mean", "sum", "clone", "to", "cuda", "float", "cpu"):
            yield from _names_kept(inner)


def _backwards(within: ast.AST) -> frozenset[str]:
    """Return the expressions on which a loop or function calls backward, and "" if it has any such call."""
    known: set[str] = set()
    for node in walk(within):
        if isinstance(node, ast.Call) and called_name(node) in _BACKWARDS and isinstance(node.func, ast.Attribute):
            known |= {""}.union(*map(texts, (node.func.value, *node.args)))
    return frozenset(known)


def _is_plain(trained: set[str], loop: Loop) -> bool:
    """Return whether the loop turns one of these names into a number or detaches it, as `loss = loss.item()` does."""
    values = [
        node.value
        for node in walk(loop)
        if isinstance(node, ast.Assign) and trained & {getattr(target, "id", "") for target in node.targets}
    ]
    last = {called_name(value) if isinstance(value, ast.Call) else getattr(value, "attr", "") for value in values}
    return not last.isdisjoint(("item", "detach", "tolist", "numpy", "data"))


def _is_taken(run: Scope, key: str) -> bool:
    """Return whether the program returns a value, passes it on, or runs backward on it."""
    return not all(
        _sinks(run, node)
        for node in walk(run.body)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        if isinstance(node.ctx, ast.Load) and ast.unparse(node) == key
    )


def _sinks(run: Scope, node: ast.AST) -> bool:
    """Return whether every result computed from a value is only printed or turned into a number."""
    above = run.parent(node)
    match above:
        case (
            ast.BinOp()
            | ast.UnaryOp()
            | ast.Compare()
            | ast.IfExp()
            | ast.FormattedValue()
            | ast.JoinedStr()
            | ast.Tuple()
            | ast.Dict()
            | ast.keyword()
        ):
            return _sinks(run, above)
        case ast.If() | ast.While() | ast.Expr():
            return True
        case ast.Return():
            # The caller of an evaluation, which calls `eval()`, does not call backward on the result.
            calls = (inner for inner in walk(run.body) if isinstance(inner, ast.Call))
            return any(called_name(call) == "eval" and not call.args for call in calls)
        case ast.Attribute(attr=name):  # total.item(), losses.append
            inner = run.parent(above) if name in ("mean", "sum") else None
            return name in _SINKS or (inner is not None and _sinks(run, inner))
        case ast.Call():
            name = called_name(above)
            return _sinks(run, above) if name in ("sum", "mean", "stack", "cat", "tensor") else name in _SINKS
    return False
