"""The rules about processes and their environment: workers, forks, and the variable that hides devices."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpucheck.program.lint import rules, torch_names
from gpucheck.program.lint.scope import Effect
from gpucheck.program.lint.tree import walk
from gpucheck.program.lint.value import Value

if TYPE_CHECKING:
    from gpucheck.program.lint.calls import Given
    from gpucheck.program.lint.run import Run

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WORKER_FIX = "return CPU tensors; move the batch in the main process"
_FORK_FIX = 'start processes with torch.multiprocessing.get_context("spawn"), or use CUDA only in the child'


def on_gpu(run: Run, node: ast.expr, tell: ast.expr) -> None:
    """A tensor is made on a GPU or moved there."""
    run.flow.started = run.flow.started or node
    if run.quiet:
        return
    run.on_gpu.append(node)
    if run.in_worker:
        run.report(rules.IN_WORKER, tell, name=f"{run.name} runs in a DataLoader worker", fix=_WORKER_FIX)


def called(run: Run, node: ast.Call, effect: Effect) -> Value:
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


def imported(run: Run, given: Given, name: str) -> None:
    """A call of an imported function that concerns devices or processes."""
    node = given.node
    if name in torch_names.STARTS_CUDA:
        run.flow.started = run.flow.started or node
    if name in ("os.environ.update", "os.environ.setdefault", "os.putenv", "os.environ.__setitem__"):
        named = any(one.arg == _VARIABLE for one in node.keywords)
        if named or any(names_variable(one) for one in node.args[:1]):
            visible_devices(run, node)
    elif name == "os.fork":
        _forked(run, node)
    elif name.rpartition(".")[2] in ("Process", "Pool") and name.partition(".")[0] in ("multiprocessing", "torch"):
        _child(run, given)


def method(run: Run, given: Given, func: ast.Attribute) -> None:
    """A method of what is not known that makes processes: `get_context("fork").Process(…)`."""
    inner = func.value
    if func.attr != "Process" or not isinstance(inner, ast.Call) or not run.dotted(inner.func).endswith(".get_context"):
        return
    if getattr(inner.args[0] if inner.args else None, "value", "fork") == "fork":
        _child(run, given)


def names_variable(node: ast.expr | None) -> bool:
    """Whether this is the variable's name, or a dict with it."""
    if isinstance(node, ast.Dict):
        return any(names_variable(key) for key in node.keys)
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def sets_variable(run: Run, target: ast.expr) -> bool:
    """Whether this assigns to os.environ["CUDA_VISIBLE_DEVICES"]."""
    is_environ = isinstance(target, ast.Subscript) and run.dotted(target.value) == "os.environ"
    return is_environ and isinstance(target, ast.Subscript) and names_variable(target.slice)


def visible_devices(run: Run, node: ast.AST) -> None:
    """The variable is set here."""
    if run.flow.started is not None:
        _late(run, node)
    elif not run.quiet:
        run.sets.append(node)


def _late(run: Run, node: ast.AST) -> None:
    # What is set for a child that is started later is in time.
    if not run.scope.file.starts_children:
        run.report(rules.LATE_VISIBLE, node, line=getattr(run.flow.started, "lineno", 0))


def _forked(run: Run, node: ast.Call) -> None:
    """`os.fork()`: CUDA has started, and is used after it."""
    if run.flow.started is None or run.quiet:
        return
    later = [one for one in walk(run.facts.body) if isinstance(one, ast.Call) and one.lineno > node.lineno]
    if any(_uses_gpu(run, one) for one in later):
        line = getattr(run.flow.started, "lineno", 0)
        run.report(rules.IN_WORKER, node, name=f"CUDA has started in line {line}", fix=_FORK_FIX)


def _uses_gpu(run: Run, node: ast.Call) -> bool:
    """Whether a call, by its words alone, uses a GPU."""
    if isinstance(node.func, ast.Attribute) and (
        node.func.attr == "cuda" or run.dotted(node.func) in torch_names.STARTS_CUDA
    ):
        return True
    values = [*node.args, *(one.value for one in node.keywords)]
    return any(isinstance(one, ast.Constant) and str(one.value).startswith("cuda") for one in values)


def _child(run: Run, given: Given) -> None:
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
