"""The rules. Each looks at one place while a function is walked through."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from gpucheck.program.lint import names, rules
from gpucheck.program.lint.scope import UNKNOWN, Effect, Given, Place, Value
from gpucheck.program.lint.source import walk

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WORKER_FIX = "return CPU tensors; move the batch in the main process"
_FORK_FIX = 'start processes with torch.multiprocessing.get_context("spawn"), or use CUDA only in the child'


def discarded(run: Place, node: ast.expr) -> None:
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


def _is_kept(run: Place, node: ast.expr) -> bool:
    """Return whether an expression begins with a value that has a name: `x`, `self.x`, `batch["x"].float()`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False
    return node.id in run.flow.names or node.id not in run.scope.file.imports


def apart(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
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


def _tell_apart(run: Place, node: ast.expr, one: Value) -> None:
    made = one.made
    if made is None:
        return
    text = run.scope.source.text(made)
    if not one.attribute:
        fix = "create it on the right device: device=x.device"
        run.report(rules.IN_FORWARD, made, name=text, line=node.lineno, fix=fix)
        return
    fix = f'self.register_buffer("{one.attribute}", {text})'
    if one.leaf:
        fix = f"self.{one.attribute} = nn.Parameter(…): it requires a gradient"
    run.report(rules.PLAIN, made, name=f"self.{one.attribute}", line=node.lineno, fix=fix)


def put_in(run: Place, node: ast.expr, key: str, added: Value) -> None:
    """A value that is put into the list or dict of this key."""
    kept_module(run, node, key, added)
    kept_loss(run, node, key, added)


def kept_module(run: Place, node: ast.AST, key: str, item: Value | None) -> None:
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


def wrapped(run: Place, known: Value) -> None:
    """A parameter that is about to be an attribute, and was moved after it was made."""
    if known.moved is not None and known.is_tensor:
        name = run.scope.source.text(known.moved)
        run.report(
            rules.MOVED_PARAMETER, known.moved, name=name, fix="move it first, then wrap it: nn.Parameter(t.to(device))"
        )


def moved_leaf(run: Place, known: Value) -> None:
    """A moved leaf whose gradient is asked for, or that an optimizer gets."""
    if known.moved is not None:
        name = run.scope.source.text(known.moved)
        run.report(
            rules.MOVED_PARAMETER,
            known.moved,
            name=name,
            fix="create it on the device: device=…, requires_grad=True, or call .requires_grad_() after the move",
        )


def optimized(run: Place, values: Iterable[Value]) -> None:
    """Check the parameters that an optimizer gets."""
    for one in values:
        for inner in (one, *one.parts, one.item or UNKNOWN):
            moved_leaf(run, inner)
            if inner.kind == "items" and inner is not one:
                optimized(run, [inner])


def read(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that are read here: one that a copy is still on its way to."""
    for one in values:
        pending = one.pending or (one.item.pending if one.item is not None else None)
        if pending is not None:
            run.report(rules.UNWAITED, pending, name=run.scope.source.text(pending), line=node.lineno)


# -- loops -------------------------------------------------------------------------------------------------------------


def empty_cache(run: Place, node: ast.expr, name: str) -> None:
    """`empty_cache()` in each pass of a loop: not in an error's handler, now and then, or once an epoch."""
    if not name.startswith("torch.") or not name.endswith(".empty_cache") or not run.loops:
        return
    loop = run.loops[-1]
    has_inner = any(isinstance(one, (ast.For, ast.While, ast.AsyncFor)) for one in walk(loop) if one is not loop)
    if not has_inner and not run.is_guarded(node, loop) and run.facts.is_steps(loop):
        run.report(rules.EMPTY_CACHE, node)


def kept_loss(run: Place, node: ast.expr, key: str, added: Value) -> None:
    """`losses.append(loss)` in a loop without a backward, where nobody takes the list for one.

    A loss that was made under `no_grad` has no graph; one that was made before has, wherever it is kept.
    """
    if not run.loops or not added.is_tensor or not added.graph or added.ndim != 0:
        return
    if run.has_framework_step or run.facts.has_backward(run.loops[-1]) or run.facts.is_taken(key):
        return
    argument = node.args[-1] if isinstance(node, ast.Call) and node.args else node
    text = run.scope.source.text(argument)
    run.report(rules.KEPT_GRAPH, node, name=key, fix=f"keep only the number: {text}.item(), or {text}.detach()")


def summed_loss(run: Place, node: ast.stmt, target: ast.expr, added: ast.expr, known: Value, before: Value) -> None:
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


# -- processes and their environment: workers, forks, and the variable that hides devices -----------------------------


def on_gpu(run: Place, node: ast.expr, tell: ast.expr) -> None:
    """A tensor is made on a GPU or moved there."""
    run.flow.started = run.flow.started or node
    if run.quiet:
        return
    run.on_gpu.append(node)
    if run.in_worker:
        run.report(rules.IN_WORKER, tell, name=f"{run.name} runs in a DataLoader worker", fix=_WORKER_FIX)


def called(run: Place, node: ast.Call, effect: Effect) -> Value:
    """A function of the file is called: what it does happens here."""
    if run.flow.started is not None:
        for place in effect.sets:
            _late(run, place)
    elif effect.sets and not run.quiet:
        run.sets.extend(effect.sets)
    if run.in_worker and not run.quiet:
        for one in effect.on_gpu:
            run.report(rules.IN_WORKER, one, name=f"{run.name} runs in a DataLoader worker", fix=_WORKER_FIX)
    if effect.started is not None:
        run.flow.started = run.flow.started or node
    if not run.quiet:
        run.on_gpu.extend(effect.on_gpu)
    return effect.returns


def imported(run: Place, given: Given, name: str) -> None:
    """A call of an imported function that concerns devices or processes."""
    node = given.node
    if name in names.STARTS_CUDA:
        run.flow.started = run.flow.started or node
    if name in ("os.environ.update", "os.environ.setdefault", "os.putenv", "os.environ.__setitem__"):
        named = any(one.arg == _VARIABLE for one in node.keywords)
        if named or any(names_variable(one) for one in node.args[:1]):
            visible_devices(run, node)
    elif name == "os.fork":
        _forked(run, node)
    elif name.rpartition(".")[2] in ("Process", "Pool") and name.partition(".")[0] in ("multiprocessing", "torch"):
        _child(run, given)


def method(run: Place, given: Given, func: ast.Attribute) -> None:
    """A method of what is not known that makes processes: `get_context("fork").Process(…)`."""
    inner = func.value
    if func.attr != "Process" or not isinstance(inner, ast.Call) or not run.dotted(inner.func).endswith(".get_context"):
        return
    if getattr(inner.args[0] if inner.args else None, "value", "fork") == "fork":
        _child(run, given)


def names_variable(node: ast.expr | None) -> bool:
    """Return whether this is the variable's name, or a dict with it."""
    if isinstance(node, ast.Dict):
        return any(names_variable(key) for key in node.keys)
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def sets_variable(run: Place, target: ast.expr) -> bool:
    """Return whether this assigns to os.environ["CUDA_VISIBLE_DEVICES"]."""
    is_environ = isinstance(target, ast.Subscript) and run.dotted(target.value) == "os.environ"
    return is_environ and isinstance(target, ast.Subscript) and names_variable(target.slice)


def visible_devices(run: Place, node: ast.AST) -> None:
    """The variable is set here."""
    if run.flow.started is not None:
        _late(run, node)
    elif not run.quiet:
        run.sets.append(node)


def _late(run: Place, node: ast.AST) -> None:
    # What is set for a child that is started later is in time.
    if not run.scope.file.starts_children:
        run.report(rules.LATE_VISIBLE, node, line=getattr(run.flow.started, "lineno", 0))


def _forked(run: Place, node: ast.Call) -> None:
    """`os.fork()`: CUDA has started, and is used after it."""
    if run.flow.started is None or run.quiet:
        return
    later = [one for one in walk(run.facts.body) if isinstance(one, ast.Call) and one.lineno > node.lineno]
    if any(_uses_gpu(run, one) for one in later):
        line = getattr(run.flow.started, "lineno", 0)
        run.report(rules.IN_WORKER, node, name=f"CUDA has started in line {line}", fix=_FORK_FIX)


def _uses_gpu(run: Place, node: ast.Call) -> bool:
    """Return whether a call, by its words alone, uses a GPU."""
    if isinstance(node.func, ast.Attribute) and (
        node.func.attr == "cuda" or run.dotted(node.func) in names.STARTS_CUDA
    ):
        return True
    values = [*node.args, *(one.value for one in node.keywords)]
    return any(isinstance(one, ast.Constant) and str(one.value).startswith("cuda") for one in values)


def _child(run: Place, given: Given) -> None:
    """A process is made by fork: CUDA has started, and its function uses it."""
    if run.flow.started is None or run.scope.file.spawns or run.quiet:
        return
    target = given.argument("target") or given.argument("initializer")
    function = run.scope.file.functions.get(getattr(target, "id", ""))
    if function is None:
        return
    effect = run.scope.effect_of(function, None, run.outer, (), 0)
    if effect.on_gpu or effect.started is not None:
        line = getattr(run.flow.started, "lineno", 0)
        told = f"{function.name} uses the GPU, and CUDA has started in line {line}"
        run.report(rules.IN_WORKER, given.node, name=told, fix=_FORK_FIX)
