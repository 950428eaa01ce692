"""Rules about processes and their environment: DataLoader workers, forks, and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import ast

from gpucheck.program.lint import tables
from gpucheck.program.lint.facts import CallArgs, Node, Scope, Value, called_name

_FORK_FIX = 'start processes with torch.multiprocessing.get_context("spawn"), or use CUDA only in the child'
_VARIABLE = "CUDA_VISIBLE_DEVICES"
# Calls whose first argument is a device.
_TAKES_DEVICE = tables.words("device to cuda set_device synchronize mem_get_info get_device_properties")


def on_gpu(run: Scope, node: ast.expr) -> None:
    """Record that CUDA starts. Report the use of a GPU in a DataLoader worker."""
    run.flow.started = run.flow.started or node
    if run.in_worker:
        fix = "return CPU tensors; move the batch in the main process"
        run.report("lint.device_in_worker", node, name=f"{run.name} runs in a DataLoader worker", fix=fix)


def called(run: Scope, node: ast.expr, effect: Scope) -> Value:
    """Apply the effects of a call of the file's own function, and return the function's value."""
    visible_devices(run, *effect.sets)
    if effect.sets:  # the function may set the variable on some paths only
        run.flow.mask = None
    if effect.flow.started is not None:
        run.flow.started = run.flow.started or node
    return effect.returns


def imported(run: Scope, given: CallArgs, name: str) -> None:
    node = given.node
    if name in tables.STARTS_CUDA:
        run.flow.started = run.flow.started or node
    if name in ("os.environ.update", "os.environ.setdefault", "os.putenv"):
        if any(keyword.arg == _VARIABLE for keyword in node.keywords) or any(map(names_variable, node.args[:1])):
            visible_devices(run, node)
    elif name in ("multiprocessing.Process", "torch.multiprocessing.Process"):
        child(run, given)


def child(run: Scope, given: CallArgs) -> None:
    """Report a forked process that uses CUDA, if CUDA has started before the fork."""
    function = run.file.functions.get(getattr(given.argument("target"), "id", ""))
    if run.flow.started is None or run.file.spawns or run.quiet or function is None:
        return
    if run.effect_of(function).flow.started is not None:
        name = f"{function.name} uses the GPU, and CUDA has started in line {run.flow.started.lineno}"
        run.report("lint.device_in_worker", given.node, name=name, fix=_FORK_FIX)


def names_variable(node: ast.expr | None) -> bool:
    """Return whether a node is the name CUDA_VISIBLE_DEVICES, or a dict with that key."""
    if isinstance(node, ast.Dict):
        return any(map(names_variable, node.keys))
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def visible_devices(run: Scope, *nodes: Node) -> None:
    """Record nodes that set CUDA_VISIBLE_DEVICES, or report them if CUDA has already started."""
    if run.flow.started is None:
        run.sets += () if run.quiet else nodes
        for node in nodes:
            run.flow.mask = node if isinstance(node, ast.Assign) else None
    elif not run.file.starts_children:  # a child that starts later sees the new value
        for node in nodes:
            run.report("lint.late_visible_devices", node, line=run.flow.started.lineno)


def hidden(run: Scope, node: ast.Call, setting: ast.Assign) -> None:
    """Report a call with the number of a device that the mask in `setting` hides."""
    mask = getattr(setting.value, "value", None)
    entries = mask.split(",") if isinstance(mask, str) else []
    count = len([entry for entry in entries if entry.strip() not in ("", "-1")])
    name = called_name(node)
    given = [keyword.value for keyword in node.keywords if keyword.arg in ("device", "type")]
    given += node.args[:1] if name in _TAKES_DEVICE else []
    if name == "device" and len(node.args) > 1:  # torch.device("cuda", 2)
        given = [node.args[1]]
    for argument in given:
        value = getattr(argument, "value", None)
        is_number = type(value) is int and (name in ("cuda", "set_device") or len(node.args) > 1)
        device = f"cuda:{value}" if is_number else str(value)
        kind, _, number = device.partition(":")
        if kind == "cuda" and number.isdecimal() and int(number) >= count > 0:
            words = {"count": f"{count} GPU{'s' * (count != 1)}", "last": f" to cuda:{count - 1}" * (count != 1)}
            run.report("lint.hidden_device", argument, name=device, line=setting.lineno, **words)
