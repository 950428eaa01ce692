"""Parse TARGET, `--input` and `--axis` without importing torch or the user's code."""

from __future__ import annotations

import ast
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, replace

from gpucheck import naming
from gpucheck.errors import TargetError, UsageError

BUILT_IN = ("mlp", "convnet", "transformer")
FLOATING = ("float64", "float32", "float16", "bfloat16")
INTEGRAL = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATING, *INTEGRAL, "bool")
TARGET_GRAMMAR = "package.module:factory, path/to/file.py:factory, or one of " + ", ".join(BUILT_IN)
INPUT_GRAMMAR = "NAME:SHAPE:DTYPE[:LOW..HIGH], like image:3x224x224:float32 or ids:1024:int64:0..50256"
AXIS_GRAMMAR = "NAME[:LOW..HIGH], like seq or seq:128..8192, with a shape that names it, like --input ids:seq:int64"

# The name of a dimension. The name contains no x, because an x separates sizes.
_NAME = "(?!x)[A-Za-z_](?:(?!x)[A-Za-z0-9_])*"

# The most elements of one sample (1 TiB in uint8). A larger number is a typing error.
LARGEST_SAMPLE = 2**40


@dataclass(frozen=True, slots=True)
class Target:
    """The source of a workload: a built-in model, or the `attribute` of a file or a module."""

    text: str
    built_in: str | None = None
    file: str | None = None
    module: str | None = None
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model: the shape of one sample, and the range of the values. A name in the shape is an axis."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    low: float | None = None
    high: float | None = None


def sized(given: Input, axis: str | None, length: int) -> Input:
    """Return the input with `length` in place of the dimension `axis`."""
    return replace(given, shape=tuple(length if size == axis else size for size in given.shape))


@dataclass(frozen=True, slots=True)
class Axis:
    """The dimension whose length the search varies. If `high` is None, the search has a default bound."""

    name: str
    low: int = 1
    high: int | None = None


def parse_axis(text: str) -> Axis:
    """Return the axis that `text` describes. Raises UsageError."""
    if (match := re.fullmatch(rf"({_NAME})(?::(\d+)\.\.(\d+))?", text, re.ASCII)) is None:
        raise UsageError(f"--axis {text!r} is not understood", "", f"write it like {AXIS_GRAMMAR}", finding="usage")
    name, low, high = match.groups()
    if low is None:
        return Axis(name)
    if not 1 <= int(low) <= int(high):
        raise UsageError(f"--axis {text!r} has no length", f"{low}..{high} is not a range from 1 up", finding="usage")
    return Axis(name, int(low), int(high))


def parse_target(text: str) -> Target:
    """Return the target that `text` names. Raises TargetError."""
    if text in BUILT_IN:
        return Target(text, built_in=text)
    if text.endswith(".py") and os.path.isfile(text):
        return _in_file(text)
    location, colon, attribute = text.rpartition(":")
    if not colon or not location or not attribute:
        similar = naming.slip(text, BUILT_IN)
        hint = f"did you mean {similar}? " if similar else ""
        raise TargetError(f"the target {text!r} is not understood", "", f"{hint}write {TARGET_GRAMMAR}")
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise TargetError(f"the target {text!r} names no function", f"{attribute!r} is not a Python name")
    if location.endswith(".py") or "/" in location or "\\" in location:
        if not os.path.isfile(location):
            raise TargetError(f"the target's file {location} does not exist", "", f"write {TARGET_GRAMMAR}")
        return Target(text, file=location, attribute=attribute)
    if not all(part.isidentifier() for part in location.split(".")):
        raise TargetError(f"the target {text!r} names no module", f"{location!r} is not a module", TARGET_GRAMMAR)
    return Target(text, module=location, attribute=attribute)


def _in_file(file: str) -> Target:
    """Return the only module or factory of a file that needs no arguments. Nothing is imported. Raises TargetError."""
    try:
        with open(file, "rb") as opened:
            tree = ast.parse(opened.read(), file)
    except (OSError, SyntaxError, ValueError) as error:
        raise TargetError(f"the target's file {file} cannot be read", str(error), f"write {TARGET_GRAMMAR}") from error
    ready, lacking = _candidates(tree)
    if not ready:
        why = f"{lacking[0][0]} needs {', '.join(lacking[0][1])}" if lacking else "it has no class of torch.nn.Module"
        make = f"def make(): return {lacking[0][0]}(…)" if lacking else "def make(), which returns a module"
        raise TargetError(
            f"{file} has no module or factory that needs no arguments", why, f"add {make}, and give {file}:make"
        )
    if len(ready) > 1:
        commands = ", ".join(f"{file}:{name}" for name in ready)
        raise TargetError(f"{file} has {len(ready)} modules", "", f"name one: {commands}", finding="target.several")
    if (line := _works_on_import(tree)) is not None:
        fix = f'guard it with if __name__ == "__main__":, or gpucheck run --dry cuda {file}'
        raise TargetError(f"{file} trains as it is imported", f"line {line} is not inside a function", fix)
    return Target(f"{file}:{ready[0]}", file=file, attribute=ready[0])


def _candidates(tree: ast.Module) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the modules and factories that need no arguments, and pairs of the others and the arguments they need.

    A module that another module or factory of the file uses is left out.
    """
    classes: dict[str, ast.ClassDef] = {}
    factories: dict[str, ast.AST] = {}
    needed: dict[str, list[str]] = {}
    modules: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
            if any(_is_module(base, modules) for base in node.bases):
                modules.add(node.name)
                factories[node.name], needed[node.name] = node, _needed(_init_of(classes, node.name), 1)
        elif isinstance(node, ast.FunctionDef) and _returns_module(node, modules):
            factories[node.name], needed[node.name] = node, _needed(node, 0)
        elif isinstance(node, ast.Assign) and _makes_module(node.value, modules):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            factories |= dict.fromkeys(names, node.value)
            needed |= {name: [] for name in names}
    ready = [name for name in factories if not needed[name]]
    used = {
        name: {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} for name, node in factories.items()
    }
    roots = [name for name in ready if not any(name in used[other] for other in factories if other != name)]
    return roots or ready, [(name, needed[name]) for name in factories if needed[name]]


def _name_of(node: ast.AST) -> str:
    """Return `Module` for `torch.nn.Module`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_module(base: ast.expr, modules: set[str]) -> bool:
    return _name_of(base) in modules or _name_of(base).endswith(("Module", "PreTrainedModel", "Sequential"))


def _makes_module(value: ast.expr | None, modules: set[str]) -> bool:
    """Return whether an expression creates a module: it calls a class of the file, or a container class of torch."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda", "train", "eval", "half", "bfloat16"):
        return _makes_module(value.func.value, modules)
    return _name_of(value.func) in (*modules, "Sequential", "ModuleList")


def _returns_module(node: ast.FunctionDef, modules: set[str]) -> bool:
    if node.returns is not None and (_is_module(node.returns, modules) or _name_of(node.returns) == "Module"):
        return True
    parts = [*ast.walk(node)]
    assigned = [part for part in parts if isinstance(part, ast.Assign) and _makes_module(part.value, modules)]
    names = {_name_of(part.targets[0]) for part in assigned} - {""}
    returned = [part.value for part in parts if isinstance(part, ast.Return) and part.value is not None]
    return any(_makes_module(value, modules) or _name_of(value) in names for value in returned)


def _init_of(classes: dict[str, ast.ClassDef], name: str) -> ast.FunctionDef | None:
    """Return the `__init__` of this class or of a base class in the same file; None without one."""
    body = classes[name].body
    init = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    bases = [_name_of(base) for base in classes[name].bases if _name_of(base) != name]
    return init or next((_init_of(classes, base) for base in bases if base in classes), None)


def _needed(node: ast.FunctionDef | None, first: int) -> list[str]:
    """Return the names of the arguments without a default, from the argument number `first` on."""
    if node is None:
        return []
    args = node.args
    positional = [argument.arg for argument in (*args.posonlyargs, *args.args)]
    by_name = [name.arg for name, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    return [*positional[first : len(positional) - len(args.defaults)], *by_name]


def _works_on_import(tree: ast.Module) -> int | None:
    """Return the line of a training loop at the top level of the file; None if there is none."""
    for node in tree.body:
        if isinstance(node, (ast.For, ast.While, ast.With)):
            called = {_name_of(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
            if called & {"backward", "step", "fit", "train"}:
                return node.lineno
    return None


def parse_input(text: str) -> Input:
    """Return the input that `text` describes. Raises UsageError."""
    name, *rest = text.split(":")
    if not name.isidentifier() or len(rest) not in (2, 3):
        raise _refused(text, "")
    shape, dtype = rest[0], rest[1].removeprefix("torch.")
    if dtype not in DTYPES:
        similar = naming.slip(dtype, DTYPES)
        raise _refused(text, f"{dtype!r} is not a dtype" + (f", did you mean {similar}?" if similar else ""))
    low, high = _range(text, rest[2], dtype) if len(rest) == 3 else (None, None)
    return Input(name, _shape(text, shape), dtype, low, high)


def parse_inputs(texts: tuple[str, ...]) -> tuple[Input, ...]:
    """Return several inputs. Raises UsageError, also for a name that is given twice."""
    inputs = tuple(map(parse_input, texts))
    for name, count in Counter(given.name for given in inputs).items():
        if count > 1:
            raise UsageError(f"--input {name!r} is given twice", "", "name each input once", finding="usage")
    return inputs


def _shape(text: str, shape: str) -> tuple[int | str, ...]:
    if not shape:
        return ()  # labels::int64:0..9 has one number for each sample
    if not re.fullmatch(rf"(\d+|{_NAME})(x(\d+|{_NAME}))*", shape, re.ASCII):
        raise _refused(text, f"{shape!r} is not a shape")
    sizes = tuple(int(size) if size.isdigit() else size for size in shape.split("x"))
    if (elements := math.prod(size for size in sizes if isinstance(size, int))) == 0:
        raise _refused(text, "a size of 0 leaves nothing to compute")
    if elements > LARGEST_SAMPLE:
        raise _refused(text, "one sample would have more than 2^40 elements")
    return sizes


def _range(text: str, limits: str, dtype: str) -> tuple[float, float]:
    number = r"[+-]?\d+" if dtype in INTEGRAL or dtype == "bool" else r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    if (match := re.fullmatch(rf"({number})\.\.({number})", limits, re.ASCII)) is None:
        raise _refused(text, f"{limits!r} is not a range of {dtype}")
    low, high = float(match.group(1)), float(match.group(2))
    if low > high:
        raise _refused(text, f"{match.group(1)} is above {match.group(2)}")
    return low, high


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--input {text!r} is not understood", why, f"write it like {INPUT_GRAMMAR}", finding="usage")
