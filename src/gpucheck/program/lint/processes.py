"""Rules of processes and their environment: DataLoader workers, forks, and the variable that hides devices."""

from __future__ import annotations

import ast
import shlex

from gpucheck.program.lint import names, options
from gpucheck.program.lint.names import File, Node, called_name, walk
from gpucheck.program.lint.values import Effect, Given, Place, Processes, Value

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WORKER_FIX = "return CPU tensors; move the batch in the main process"
_FORK_FIX = 'start processes with torch.multiprocessing.get_context("spawn"), or use CUDA only in the child'
# Calls that start another process.
_STARTS = ("Popen", "Process", "spawn", "run", "check_call", "check_output", "call", "execv", "execvp")
# Calls whose first argument is a device.
_TAKES_DEVICE = frozenset(
    {"device", "to", "cuda", "set_device", "synchronize", "mem_get_info", "get_device_properties"}
)


# -- what runs in other processes, before the file is walked through ---------------------------------------------------


def of(file: File) -> Processes:
    """The processes that a file starts, and what runs in forked workers."""
    known = Processes()
    loaders: list[ast.Call] = []
    default = "fork"
    for call in file.calls:
        called, dotted = called_name(call), file.dotted(call.func)
        if called in ("set_start_method", "get_context") or dotted.startswith("torch.multiprocessing.spawn"):
            methods = {getattr(argument, "value", "") for argument in call.args}
            known.spawns = known.spawns or "fork" not in methods
            default = "spawn" if called == "set_start_method" and methods & {"spawn", "forkserver"} else default
        elif called in _STARTS or dotted in ("os.system", "os.execve", "os.execvpe"):
            known.starts_children |= dotted.startswith(
                ("subprocess", "multiprocessing", "torch.multiprocessing", "os.")
            )
        if dotted in names.LOADERS or called == "DataLoader":
            loaders.append(call)
    bound = _Bound(file)
    forked: set[str] = set()
    others: set[str] = set()
    for call in loaders:
        is_forked = _has_workers(bound, call, default)
        for keyword in call.keywords if is_forked else ():
            if keyword.arg in ("collate_fn", "worker_init_fn"):
                _function(file, bound, keyword.value, known)
        given = [keyword.value for keyword in call.keywords if keyword.arg == "dataset"] or call.args[:1]
        taken = bound.classes(given[0]) if given else {""}
        families = {member.node.name for name in taken if name for member in names.family(file, file.classes[name])}
        (forked if is_forked else others).update(taken | families)
    # A dataset that no loader is seen to take counts where a loader with workers may take any, or none is in the file.
    datasets = {name for name, own in file.classes.items() if own.is_dataset}
    known.datasets = datasets & forked | (datasets - others if "" in forked or not loaders else set())
    return known


class _Bound:
    """The values that names and attributes of a file are given; None for a value that no expression gives."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._values: dict[str, list[ast.expr | None]] | None = None

    def values(self, node: ast.expr) -> list[ast.expr | None]:
        """Every value of a name, or of an attribute, anywhere in the file."""
        if self._values is None:
            self._values = {}
            for target, value in (pair for inner in walk(self.file.tree) for pair in names.bindings(inner)):
                self._values.setdefault(ast.unparse(target), []).append(value)
        return self._values.get(ast.unparse(node), [])

    def classes(self, node: ast.expr) -> set[str]:
        """The classes of the file whose objects an expression is, or holds; with "" where it may be any other."""
        known: set[str] = set()
        met: set[str] = set()
        todo: list[ast.expr | None] = [node]
        while todo:
            expression = todo.pop()
            parts = walk(expression) if expression is not None else ()
            known |= {""} if expression is None else set()
            for part in (inner for inner in parts if isinstance(inner, (ast.Name, ast.Attribute))):
                text = ast.unparse(part)
                if text in met or self.file.dotted(part):
                    continue
                met.add(text)
                if text in self.file.classes:
                    known.add(text)
                else:
                    todo += self.values(part)
        return known


def _has_workers(bound: _Bound, call: ast.Call, default: str) -> bool:
    """Return whether a DataLoader has workers that are forked."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    context = given.get("multiprocessing_context")
    if isinstance(context, ast.Call):  # get_context("spawn")
        context = context.args[0] if context.args else None
    if None in given or (default if context is None else getattr(context, "value", "")) not in ("fork", None):
        return False
    # Its sixth positional argument, after dataset, batch_size, shuffle, sampler and batch_sampler.
    workers = given.get("num_workers") or (call.args[5] if len(call.args) > 5 else None)
    numbers = (bound.values(workers) if isinstance(workers, ast.Name) else []) or [workers]
    return workers is not None and not all(isinstance(node, ast.Constant) and not node.value for node in numbers)


def _function(file: File, bound: _Bound, node: ast.expr, known: Processes) -> None:
    """Note a function that a loader with workers is given."""
    if isinstance(node, ast.Call) and node.args and called_name(node) == "partial":
        node = node.args[0]
    if isinstance(node, ast.Lambda):
        known.lambdas.add(id(node))
    elif isinstance(node, ast.Call):
        known.in_workers.add(f"{called_name(node)}.__call__")
    elif isinstance(node, ast.Name):
        known.in_workers.add(node.id)
    elif isinstance(node, ast.Attribute) and not file.dotted(node):
        known.in_workers |= {f"{name}.{node.attr}" for name in bound.classes(node.value)}


# -- where devices are used --------------------------------------------------------------------------------------------


def on_gpu(run: Place, node: ast.expr) -> None:
    """A tensor is made on a GPU or moved there."""
    run.flow.started = run.flow.started or node
    _used(run, node)


def _used(run: Place, *nodes: ast.expr) -> None:
    if run.quiet:
        return
    run.on_gpu += nodes
    for node in nodes if run.in_worker else ():
        run.report(options.IN_WORKER, node, name=f"{run.name} runs in a DataLoader worker", fix=_WORKER_FIX)


def called(run: Place, node: ast.expr, effect: Effect) -> Value:
    """A function of the file is called: what it does happens here."""
    visible_devices(run, *effect.sets)
    _used(run, *effect.on_gpu)
    if effect.started is not None:
        run.flow.started = run.flow.started or node
    return effect.returns


def imported(run: Place, given: Given, name: str) -> None:
    """A call of an imported function that concerns devices or processes."""
    node = given.node
    if name in names.STARTS_CUDA:
        run.flow.started = run.flow.started or node
    if name in ("os.environ.update", "os.environ.setdefault", "os.putenv"):
        is_named = any(keyword.arg == _VARIABLE for keyword in node.keywords)
        if is_named or any(names_variable(argument) for argument in node.args[:1]):
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
        return any(map(names_variable, node.keys))
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def visible_devices(run: Place, *nodes: Node) -> None:
    """The variable is set here."""
    if run.flow.started is None:
        run.sets += () if run.quiet else nodes
        for node in nodes:
            run.flow.mask = node if isinstance(node, ast.Assign) else None
    elif not run.scope.processes.starts_children:  # what is set for a child that is started later is in time
        for node in nodes:
            run.report(options.LATE_VISIBLE, node, line=run.flow.started.lineno, value=_set_to(node))


def hidden(run: Place, node: ast.Call) -> None:
    """A call names a device by a number that the mask does not leave."""
    mask = getattr(getattr(run.flow.mask, "value", None), "value", None)
    if run.flow.mask is None or not isinstance(mask, str):
        return
    count = len([entry for entry in mask.split(",") if entry.strip() not in ("", "-1")])
    name = called_name(node)
    given = [keyword.value for keyword in node.keywords if keyword.arg in ("device", "type")]
    given += node.args[:1] if name in _TAKES_DEVICE else []
    if name == "device" and len(node.args) > 1:  # torch.device("cuda", 2)
        given = [node.args[1]]
    for argument in given:
        value = getattr(argument, "value", None)
        number = value.removeprefix("cuda:") if isinstance(value, str) else str(value)
        by_number = type(value) is int and (name in ("cuda", "set_device") or len(node.args) > 1)
        is_named = isinstance(value, str) and value != number
        if number.isdecimal() and (by_number or is_named) and int(number) >= count > 0:
            visible = "1 GPU" if count == 1 else f"{count} GPUs"
            fix = 'use "cuda:0"' if count == 1 else f"use cuda:0 to cuda:{count - 1}"
            line = run.flow.mask.lineno
            run.report(options.HIDDEN_DEVICE, argument, name=f"cuda:{number}", line=line, count=visible, fix=fix)


def _set_to(node: Node) -> str:
    """The value that a statement or a call sets the variable to, as a shell takes it; `…` where it is no constant."""
    values: list[ast.expr | None] = [getattr(node, "value", None)]
    if isinstance(node, ast.Call):
        values = [keyword.value for keyword in node.keywords if keyword.arg == _VARIABLE]
        values += [] if values else node.args[1:2]
        for given in (argument for argument in node.args if isinstance(argument, ast.Dict)):
            values += [value for key, value in zip(given.keys, given.values, strict=True) if names_variable(key)]
    constant = getattr(values[0] if values else None, "value", None)
    return shlex.quote(constant) if isinstance(constant, str) else "…"


def _forked(run: Place, node: ast.Call) -> None:
    """`os.fork()`: CUDA has started, and is used after it."""
    if run.flow.started is None or run.quiet:
        return
    later = [call for call in walk(run.body) if isinstance(call, ast.Call) and call.lineno > node.lineno]
    if any(_uses_gpu(run, call) for call in later):
        name = f"CUDA has started in line {run.flow.started.lineno}"
        run.report(options.IN_WORKER, node, name=name, fix=_FORK_FIX)


def _uses_gpu(run: Place, node: ast.Call) -> bool:
    """Return whether a call, by its words alone, uses a GPU."""
    if called_name(node) == "cuda" or run.dotted(node.func) in names.STARTS_CUDA:
        return True
    values = names.arguments(node)
    return any(isinstance(value, ast.Constant) and str(value.value).startswith("cuda") for value in values)


def _child(run: Place, given: Given) -> None:
    """A process is made by fork: CUDA has started, and its function uses it."""
    if run.flow.started is None or run.scope.processes.spawns or run.quiet:
        return
    target = given.argument("target") or given.argument("initializer")
    function = run.scope.file.functions.get(getattr(target, "id", ""))
    if function is None:
        return
    effect = run.scope.effect_of(function, None, run.outer, (), 0)
    if effect.on_gpu or effect.started is not None:
        name = f"{function.name} uses the GPU, and CUDA has started in line {run.flow.started.lineno}"
        run.report(options.IN_WORKER, given.node, name=name, fix=_FORK_FIX)
