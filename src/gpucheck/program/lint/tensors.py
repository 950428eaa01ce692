"""Rules of tensors: a move whose result is discarded, what stays behind when a module moves, parameters that were moved
after they were wrapped, losses that are kept with their graph, and copies to the host that are read without a wait."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpucheck.program.lint import names, options
from gpucheck.program.lint.names import Function, Node, called_name, self_attribute, walk
from gpucheck.program.lint.values import SCALAR, UNKNOWN, Loop, Place, Value

# -- a move whose result is discarded ----------------------------------------------------------------------------------


def discarded(run: Place, node: ast.expr, within: ast.expr | None = None) -> None:
    """A statement that is nothing but the move of a tensor, perhaps behind a condition, or for each that the
    comprehension `within` goes through. The expression has been evaluated before."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            discarded(run, body, within)
            discarded(run, orelse, within)
        case ast.BoolOp(values=values):
            discarded(run, values[-1], within)
        case ast.ListComp(elt) | ast.SetComp(elt) | ast.GeneratorExp(elt):
            discarded(run, elt, within or node)
        case ast.Tuple(elts) | ast.List(elts):
            for element in elts:
                discarded(run, element, within)
        case ast.Call(func) if id(node) in run.receivers:
            name = func.value if isinstance(func, ast.Attribute) else func
            if run.dotted(func).startswith("torch.Tensor.") and node.args:
                name = node.args[0]
            if not _is_kept(run, name):
                # torch.zeros(1).cuda() starts CUDA: there is no tensor that anybody reads afterwards.
                return
            run.report(options.DISCARDED, node, name=run.text(name), fix=_keeping(run, node, name, within))
            if run.key(name) in run.flow.names:
                # What follows from this is reported once: it counts as moved from here on.
                run.flow.names[run.key(name)] = replace(run.receivers[id(node)], place="")


def _keeping(run: Place, node: ast.Call, name: ast.expr, within: ast.expr | None) -> str:
    """Return how to keep the result of a move. A tensor of a module moves with the module, and assigning to the
    variable of a loop keeps nothing."""
    text, move, receiver = run.text(name), run.text(node), run.receivers[id(node)]
    loops = [loop for loop in run.loops if isinstance(loop, ast.For)]
    through: list[ast.For | ast.comprehension] = [*loops, *getattr(within, "generators", ())]
    through = [loop for loop in through if isinstance(name, ast.Name) and name.id in _names_in(loop.target)]
    calls = [call for loop in through for call in walk(loop.iter) if isinstance(call, ast.Call)]
    modules = [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and _gives_own(call)]
    if receiver.kind == "parameter" and isinstance(name, ast.Attribute):
        modules = [name.value]
    if modules:
        called = move.removeprefix(text) if move.startswith(f"{text}.") else ".to(device)"
        return f"move the module: {run.text(modules[-1])}{called}"
    if receiver.kind == "parameter":
        return "move it first, then wrap it: nn.Parameter(t.to(device))"
    if receiver.leaf:
        return "create it on the device: device=…, requires_grad=True"
    if within is not None or (through and not _is_read_after(run, through[-1], node)):
        return f"keep the results in a list: moved.append({move})"
    is_own = isinstance(run.body, ast.Module) or getattr(name, "id", "") in run.local_names
    can_be_set = is_own if isinstance(name, ast.Name) else isinstance(name, ast.Attribute) and name.attr not in _FIXED
    return f"assign the result: {text if can_be_set else 'moved'} = {move}"


# Attributes of a tensor that cannot be set, or only to a tensor on its device.
_FIXED = ("T", "mT", "H", "mH", "real", "imag", "grad")


def _names_in(target: ast.expr) -> set[str]:
    return {node.id for node in walk(target) if isinstance(node, ast.Name)}


def _gives_own(call: ast.Call) -> bool:
    return called_name(call) in ("parameters", "named_parameters", "buffers", "named_buffers")


def _is_read_after(run: Place, loop: ast.For | ast.comprehension, node: ast.expr) -> bool:
    """Return whether the rest of a loop's body does anything with what the loop goes through but move it."""
    bound, end = _names_in(loop.target), (node.end_lineno or node.lineno, node.end_col_offset or 0)
    reads = (name for name in walk(loop) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load))
    later = (name for name in reads if name.id in bound and (name.lineno, name.col_offset) >= end)
    return any(getattr(run.parent(name), "attr", "") not in names.MOVES for name in later)


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


# -- a tensor beside others on another device --------------------------------------------------------------------------


def apart(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that an operation combines: one made on the CPU beside one that is where the module is."""
    tensors = [value for value in values if value.is_tensor]
    if not run.in_forward or all(value.place != "input" for value in tensors):
        return
    for value in tensors:
        is_behind = value.place == "default" or (value.place == "cuda" and value.attribute)
        # A parameter that was moved is reported where it was moved.
        if not is_behind or value.ndim in (None, SCALAR) or value.made is None or value.moved is not None:
            continue
        if not value.attribute:
            fix = _on_device(run, value.made)
            run.report(options.IN_FORWARD, value.made, name=run.text(value.made), line=node.lineno, fix=fix)
            continue
        fix = _buffer(run, value.attribute, value.made)
        if value.leaf:
            fix = f"self.{value.attribute} = nn.Parameter(…): it requires a gradient"
        run.report(options.PLAIN, value.made, name=f"self.{value.attribute}", line=node.lineno, fix=fix)


def _buffer(run: Place, attribute: str, made: ast.expr) -> str:
    """Return how to make an attribute a buffer. `register_buffer` takes a name once."""
    if not attribute.isidentifier():
        return "register each tensor in it: self.register_buffer(name, tensor)"
    members = names.family(run.scope.file, run.owner) if run.owner is not None else ()
    nodes = (node for member in members for node in walk(member.node) if isinstance(node, (ast.Assign, ast.AnnAssign)))
    pairs = [pair for node in nodes for pair in names.bindings(node) if pair[1] is not None]
    values = [value for target, value in pairs if self_attribute(target) == attribute]
    if len(values) == 1 and sum(value is made for _, value in pairs) == 1:
        return f'self.register_buffer("{attribute}", {run.text(made)})'
    return f'set a variable {attribute}, then once: self.register_buffer("{attribute}", {attribute})'


# They make a tensor on the CPU alone.
_ONLY_CPU = names.of_torch("from_numpy Tensor") | {name.replace(".cuda", "") for name in names.CUDA_TYPES}


def _on_device(run: Place, made: ast.expr) -> str:
    """How a tensor gets to the module's device: it is made there, or moved where that is not possible."""
    functions = (node for node in walk(run.scope.file.tree) if isinstance(node, Function))
    if not any(inner is made for function in functions for inner in walk(function)):
        return f"move it where it is used: .to({_device_at(run, run.body).partition(',')[0]})"
    device = _device_at(run, made)
    name = run.dotted(made.func) if isinstance(made, ast.Call) else ""
    if name in (names.FACTORIES | names.LIKE) - _ONLY_CPU:
        return f"create it on the right device: device={device}"
    return f"move it: {run.text(made)}.to({device.partition(',')[0]})"


def _device_at(run: Place, made: ast.AST) -> str:
    """An expression for the module's device at a place: of a parameter that is a tensor, else of the module itself."""
    given = getattr(run.body, "args", None)
    if given is not None and any(inner is made for inner in walk(run.body)):
        positional = [*given.posonlyargs, *given.args]
        for argument in positional[: len(positional) - len(given.defaults)]:  # one with a default may be None
            known = run.visible().get(argument.arg, UNKNOWN)
            annotation = argument.annotation
            may_be_none = annotation is not None and re.search("None|Optional", ast.unparse(annotation))
            if known.is_tensor and known.place == "input" and not may_be_none:
                return f"{argument.arg}.device"
    methods = run.owner.methods.values() if run.owner is not None else ()
    method = next((own for own in methods if any(inner is made for inner in walk(own))), None)
    has_weights = any(value.kind in ("parameter", "module") for value in run.attributes.values())
    if method is not None and not names.method_kind(method) and has_weights:
        return "next(self.parameters()).device"
    return "device, given by the caller"


# -- modules and parameters that are not registered --------------------------------------------------------------------


def kept_module(run: Place, node: Node, key: str, item: Value | None) -> None:
    """A module with something to move, in a list or dict that is an attribute of a module."""
    owner, name = run.owner, key.removeprefix("self.")
    if owner is None or not owner.is_module or not key.startswith("self.") or item is None:
        return
    inner = ""
    while item.kind == "items" and item.item is not None:
        inner, item = ", and nn.ModuleList or nn.ModuleDict for what is in it", item.item
    if item.kind != "module" or not item.stateful or item.attribute or owner.registers_by_hand:
        return
    registered = run.scope.registered.get(owner.node.name, set())
    is_registered = name in owner.handed_on or (item.made is not None and id(item.made) in registered)
    if is_registered or (owner.node.name, key) in run.scope.reported:
        return
    if not run.quiet:
        run.scope.reported.add((owner.node.name, key))
    made = run.containers.get(key)
    is_dict = isinstance(made, (ast.Dict, ast.DictComp)) or getattr(getattr(made, "func", None), "id", "") == "dict"
    fix = "use nn.ModuleDict (its keys are strings without a dot)" if is_dict else "use nn.ModuleList"
    run.report(options.IN_LIST, node, name=key, fix=f"{fix}{inner}")


_MOVED_LEAF_FIX = "create it on the device: device=…, requires_grad=True, or call .requires_grad_() after the move"


def moved_leaf(run: Place, known: Value, fix: str = _MOVED_LEAF_FIX) -> None:
    """A moved leaf whose gradient is asked for, that an optimizer gets, or a moved parameter that becomes an
    attribute."""
    if known.is_tensor and known.moved is not None:
        run.report(options.MOVED_PARAMETER, known.moved, name=run.text(known.moved), fix=fix)


def wrapped(run: Place, known: Value) -> None:
    """A parameter that is about to be an attribute, and was moved after it was made."""
    moved_leaf(run, known, "move it first, then wrap it: nn.Parameter(t.to(device))")


def optimized(run: Place, values: Iterable[Value]) -> None:
    """Check the parameters that an optimizer gets."""
    for value in values:
        moved_leaf(run, value)
        optimized(run, [*value.parts, *([value.item] if value.item is not None else [])])


# -- training loops and waits ------------------------------------------------------------------------------------------

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
