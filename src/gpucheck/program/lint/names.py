"""A file as a whole: what its imports, classes and functions are called, and what it says of workers and devices."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucheck.program.lint import torch_names
from gpucheck.program.lint.source import walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
# What makes a child process: CUDA_VISIBLE_DEVICES may then be meant for it.
_CHILDREN = ("subprocess", "Popen", "Process", "spawn", "ray", "execv", "execve", "mp.", "launch")


@dataclass(slots=True)
class Class:
    """A class: its methods by name, the dotted names of its bases, and whether its objects are modules or datasets."""

    node: ast.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, Function]
    is_module: bool = False
    is_dataset: bool = False
    is_lightning: bool = False
    registers_by_hand: bool = False
    # Attributes that some call takes: `nn.Sequential(*self.layers)`.
    handed_on: frozenset[str] = frozenset()


@dataclass(slots=True)
class File:
    """The names of a file. `imports` maps a name to what it was imported as, in dots."""

    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    # Functions that run in DataLoader workers, by name, and whether datasets do.
    in_workers: frozenset[str] = frozenset()
    lambdas_in_workers: set[int] = field(default_factory=set)
    datasets_in_workers: bool = True
    has_default_device: bool = False
    starts_children: bool = False
    spawns: bool = False

    def dotted(self, node: ast.expr) -> str:
        """`nn.Linear` as `torch.nn.Linear`; empty for what is not an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.imports.get(node.id)
        return ".".join([root, *reversed(parts)]) if root else ""


def read(tree: ast.Module) -> File:
    """The names of a file."""
    file = File(tree)
    calls: list[ast.Call] = []
    for node in walk(tree):
        match node:
            case ast.Import(names):
                for one in names:
                    root = one.name if one.asname else one.name.partition(".")[0]
                    file.imports[one.asname or root] = root
            case ast.ImportFrom(module, names, level):
                where = "." * level + (module or "")
                file.imports |= {one.asname or one.name: _canonical(f"{where}.{one.name}") for one in names}
            case ast.Call():
                calls.append(node)
            case ast.ClassDef():
                file.classes[node.name] = _class(node)
    for statement in tree.body:
        if isinstance(statement, Function):
            file.functions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # Linear = nn.Linear
            dotted = file.dotted(statement.value)
            if dotted and statement.targets[0].id not in file.imports:
                file.imports[statement.targets[0].id] = dotted
    _bases(file)
    _look_at_calls(file, calls)
    return file


def _canonical(name: str) -> str:
    """The name by which the tables know it: `from torch.nn.modules.linear import Linear` is torch.nn.Linear."""
    if name.startswith("torch.nn.modules."):
        return f"torch.nn.{name.rpartition('.')[2]}"
    return {"torch.nn.parameter.Parameter": "torch.nn.Parameter"}.get(name, name)


def _class(node: ast.ClassDef) -> Class:
    methods = {one.name: one for one in node.body if isinstance(one, Function)}
    by_hand, handed_on = False, set()
    for inner in walk(node):
        if isinstance(inner, ast.Call):
            called = called_name(inner)
            by_hand = by_hand or called in ("add_module", "register_module", "setattr", "__setattr__")
            arguments = [*inner.args, *(one.value for one in inner.keywords)]
            handed_on |= {attribute for one in arguments if (attribute := _container_of(one, called))}
    return Class(node, (), methods, registers_by_hand=by_hand, handed_on=frozenset(handed_on))


def _container_of(node: ast.expr, called: str) -> str:
    """The attribute of self that a call registers the elements of; empty for another argument."""
    if isinstance(node, ast.Starred):
        node = node.value
    elif called not in ("ModuleList", "ModuleDict", "Sequential", "extend", "update", "OrderedDict"):
        return ""
    return self_attribute(node)


def self_attribute(node: ast.expr) -> str:
    """`x` of `self.x`; empty for anything else."""
    is_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_self and isinstance(node, ast.Attribute) else ""


def called_name(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _bases(file: File) -> None:
    """Which classes are modules and datasets, through bases in the file."""
    for one in file.classes.values():
        one.bases = tuple(file.dotted(base) or getattr(base, "id", "") for base in one.node.bases if base)
    for one in file.classes.values():
        family = list(_family(file, one))
        names = [name for member in family for name in member.bases]
        one.is_module = any(_is_module_base(name) for name in names) or _looks_like_a_module(file, one)
        one.is_lightning = any("Lightning" in name for name in names)
        one.is_dataset = any(name in torch_names.DATASETS or name.startswith("torchvision.datasets.") for name in names)


def _is_module_base(name: str) -> bool:
    return name in torch_names.MODULE_BASES or torch_names.is_module_class(name) or name.endswith(".LightningModule")


def _looks_like_a_module(file: File, one: Class) -> bool:
    """A class of a base that is elsewhere: it has a forward, and keeps modules of torch.nn as attributes."""
    if not one.bases or "forward" not in one.methods or "__init__" not in one.methods:
        return False
    if not any(name.endswith(("Module", "Layer", "Model", "PreTrainedModel", "Block")) for name in one.bases):
        return False
    return any(
        isinstance(node, ast.Assign)
        and any(self_attribute(target) for target in node.targets)
        and isinstance(node.value, ast.Call)
        and torch_names.is_module_class(file.dotted(node.value.func))
        for node in walk(one.methods["__init__"])
    )


def family(file: File, one: Class) -> Iterator[Class]:
    """A class and its bases in the file, itself first."""
    return _family(file, one)


def _family(file: File, one: Class, seen: tuple[str, ...] = ()) -> Iterator[Class]:
    yield one
    for name in one.bases:
        base = file.classes.get(name)
        if base is not None and base is not one and name not in seen:
            yield from _family(file, base, (*seen, one.node.name))


def method(file: File, one: Class, name: str) -> Function | None:
    """The method of this name, of the class or the nearest base in the file."""
    return next((member.methods[name] for member in _family(file, one) if name in member.methods), None)


def reachable(file: File, one: Class, roots: frozenset[str]) -> set[str]:
    """The methods that these call on self, and they themselves."""
    seen: set[str] = set()
    todo = [name for name in roots if method(file, one, name) is not None]
    while todo:
        name = todo.pop()
        body = None if name in seen else method(file, one, name)
        seen.add(name)
        for node in walk(body) if body is not None else ():
            if isinstance(node, ast.Call) and (called := self_attribute(node.func)) and called not in seen:
                todo.append(called)
    return seen


def _look_at_calls(file: File, calls: list[ast.Call]) -> None:
    """Which functions run in workers, and what is set for the whole file."""
    in_workers: set[str] = set()
    forked: list[bool] = []
    for call in calls:
        called, dotted = called_name(call), file.dotted(call.func)
        if called in ("set_default_device", "set_default_tensor_type"):
            file.has_default_device = True
        elif called in ("set_start_method", "get_context") or dotted.startswith("torch.multiprocessing.spawn"):
            file.spawns = file.spawns or "fork" not in [getattr(one, "value", "") for one in call.args]
        if dotted in torch_names.LOADERS or called == "DataLoader":
            has_workers = _has_workers(call)
            forked.append(has_workers)
            if has_workers:
                given = [one.value for one in call.keywords if one.arg in ("collate_fn", "worker_init_fn")]
                given = [one.args[0] if isinstance(one, ast.Call) and one.args else one for one in given]  # partial
                in_workers |= {f"{called_name(one)}.__call__" for one in given if isinstance(one, ast.Call)}
                in_workers |= {getattr(one, "id", "") or getattr(one, "attr", "") for one in given}
                file.lambdas_in_workers |= {id(one) for one in given if isinstance(one, ast.Lambda)}
        if called in ("Popen", "Process", "spawn", "run", "check_call", "check_output", "call", "execv", "execvp"):
            started = dotted.startswith(("subprocess", "multiprocessing", "torch.multiprocessing", "os."))
            file.starts_children = file.starts_children or started
        elif dotted in ("os.system", "os.execve", "os.execvpe"):
            file.starts_children = True
    file.in_workers = frozenset(in_workers - {""})
    file.datasets_in_workers = any(forked) or not forked


def _has_workers(call: ast.Call) -> bool:
    """Whether a DataLoader has workers that are forked."""
    given = {one.arg: one.value for one in call.keywords}
    if None in given:
        return False
    if getattr(given.get("multiprocessing_context"), "value", None) in ("spawn", "forkserver"):
        return False
    # Its sixth positional argument, after dataset, batch_size, shuffle, sampler and batch_sampler.
    workers = given.get("num_workers") or (call.args[5] if len(call.args) > 5 else None)
    return workers is not None and not (isinstance(workers, ast.Constant) and not workers.value)
