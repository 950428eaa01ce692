"""The architecture, read from the imports: a module imports from lower layers or its own package, and each external
system has one adapter."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "gpucheck"

# The layer of each package and of each module directly in gpucheck. A new one is added here.
LAYERS = {
    "__init__": 0,
    "errors": 0,
    "units": 0,
    "stats": 0,
    "config": 0,
    "links": 0,
    "messages": 0,
    "naming": 0,
    "options": 0,
    "peaks": 0,
    "xid": 0,
    "report": 1,
    "machine": 2,
    "measure": 3,
    "work": 3,
    "health": 3,
    "bench": 4,
    "batch_size": 4,
    "program": 4,
    "compare": 4,
    "memory": 4,
    "doctor": 5,
    "smoke": 5,
    "stress": 5,
    "devices": 6,
    "explain": 6,
    "render": 7,
    "fleet": 5,
    "cli": 8,
    "api": 8,
    "__main__": 9,
}

# The most files and statements (without docstrings) of each package; `.` is the modules beside them. A package that
# grows past its row fails the test: raise it in the same commit, whose message says why; lower it where it shrank.
SIZES = {
    ".": (13, 1039),
    "batch_size": (10, 1824),
    "bench": (31, 4146),
    "cli": (14, 1505),
    "compare": (2, 226),
    "devices": (3, 241),
    "doctor": (12, 1515),
    "explain": (18, 1212),
    "fleet": (8, 1039),
    "health": (5, 816),
    "machine": (24, 3489),
    "measure": (4, 576),
    "memory": (4, 212),
    "program": (33, 6849),
    "render": (18, 2079),
    "report": (16, 1550),
    "smoke": (6, 550),
    "stress": (6, 918),
    "work": (7, 976),
}

# A benchmark's folder. It imports its own files and those of bench/ itself; what several share lies there.
BENCHMARKS = {path.parent.name for path in SOURCE.glob("bench/*/judge.py")}
# The adapters of external systems: the only files that may import each name.
ADAPTERS = {
    "pynvml": ("machine/nvml_*",),
    "subprocess": ("machine/child.py",),
    # `run --dry` sees that the user's program starts processes.
    "multiprocessing": ("machine/child.py", "program/run/dry.py"),
    "rich": ("render/*", "cli/*"),
    "click": (),
    "typer._click": (),
    "typer": ("cli/*",),
}

# Modules that may import torch at load time; others only inside a function.
TORCH_AT_ONCE = (
    "machine/accel*.py",
    "work/*",
    "bench/*",
    "batch_size/trial*.py",
    "program/*",
    "smoke/*",
    "stress/work.py",
    "stress/device.py",
)

# Modules that judge measurements never import torch, not even inside a function: a judgement needs no torch. (A check
# of smoke is work: it judges the torch that it calls.)
JUDGES = (
    "bench/judge.py",
    "bench/*/judge.py",
    "compare/*",
    "devices/command.py",
    "doctor/condition*.py",
    "doctor/ladder.py",
    "health/*",
    "memory/steps.py",
    "program/lint/*",
    "program/judge.py",
    "program/rules.py",
    "report/*",
    "smoke/options.py",
    "stress/judge.py",
    "stress/options.py",
)

# Starting a process without subprocess is starting a process.
PROCESS_CALLS = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import: of what, on which line, and whether it happens as the module itself is imported."""

    name: str
    line: int
    at_once: bool


def module_of(path: str) -> str:
    """`bench/matmul.py` is `gpucheck.bench.matmul`; a package's `__init__.py` is the package."""
    parts = ["gpucheck", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


class File(NamedTuple):
    """A parsed file: its imports, its calls `os.name()` with their lines, and the number of its statements."""

    imports: list[Import]
    os_calls: list[tuple[str, int]]
    statements: int


@functools.cache
def read(path: str, text: str) -> File:
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    called = [(node.func, node.lineno) for node in nodes if isinstance(node, ast.Call)]
    return File(
        list(_imports(tree, ["gpucheck", *path.split("/")[:-1]], at_once=True)),
        [
            (func.attr, line)
            for func, line in called
            if isinstance(func, ast.Attribute) and getattr(func.value, "id", "") == "os"
        ],
        sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in nodes),
    )


def imports_of(path: str, text: str) -> list[Import]:
    """Every import in the file: relative ones resolved, those for type checkers alone left out of `at_once`, and
    `import_module("name")` counted with the rest."""
    return read(path, text).imports


def _imports(node: ast.AST, package: list[str], at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_once)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, at_once)
    elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
        named = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        yield from (Import(name, node.lineno, at_once) for name in named)
    if isinstance(node, ast.If) and _names_type_checking(node.test):
        for child in node.body:
            yield from _imports(child, package, at_once=False)
        for child in node.orelse:
            yield from _imports(child, package, at_once)
        return
    inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for inner in ast.iter_child_nodes(node):
        yield from _imports(inner, package, at_once and not inside)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _names_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def package_of(name: str) -> str:
    """Return the package of a dotted name: `bench` for `gpucheck.bench.matmul.run`."""
    return name.split(".")[1] if "." in name else "__init__"


def faults(path: str, text: str) -> list[str]:
    """Return the rules that the file `path` (below gpucheck/) breaks, a line for each."""
    package = path.split("/")[0].removesuffix(".py")
    if package not in LAYERS:
        return [f"{path}: {package} has no layer"]
    found = [fault for entry in imports_of(path, text) if (fault := _fault(path, package, entry))]
    for name, line in read(path, text).os_calls:
        if path != "machine/child.py" and (name in PROCESS_CALLS or name.startswith(("spawn", "exec"))):
            found.append(f"{path}:{line}: os.{name} belongs to machine/child.py")
    return found


def _fault(path: str, package: str, entry: Import) -> str | None:
    at = f"{path}:{entry.line}: "
    if entry.name == "gpucheck" or entry.name.startswith("gpucheck."):
        target = package_of(entry.name)
        if target == "__version__":
            return None
        if target not in LAYERS:
            return f"{at}{entry.name} has no layer"
        if target != package and LAYERS[target] > LAYERS[package]:
            return f"{at}{package} (layer {LAYERS[package]}) imports {target} (layer {LAYERS[target]}): upward"
        if target != package and LAYERS[target] == LAYERS[package] > 0:
            return f"{at}{package} imports {target}, of the same layer {LAYERS[package]}"
        mine = benchmark_of(path.rpartition("/")[0].replace("/", "."))
        other = benchmark_of(entry.name.removeprefix("gpucheck."))
        if mine and other and mine != other:
            return f"{at}{mine} imports {other}, another benchmark"
        return None
    if within(entry.name, "torch"):
        allowed = not entry.at_once or any(fnmatch(path, place) for place in TORCH_AT_ONCE)
        return None if allowed else f"{at}torch is imported with the module"
    for adapter, places in sorted(ADAPTERS.items(), key=lambda row: -len(row[0])):
        if within(entry.name, adapter):
            return None if any(fnmatch(path, place) for place in places) else f"{at}{adapter} is not used here"
    return None


def benchmark_of(name: str) -> str | None:
    """The benchmark whose folder is `bench.transfer`, or has `bench.transfer.judge`; None for what is in none."""
    package, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return first if package == "bench" and first in BENCHMARKS else None


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def files() -> dict[str, str]:
    return {p.relative_to(SOURCE).as_posix(): p.read_text(encoding="utf-8") for p in sorted(SOURCE.rglob("*.py"))}


def test_every_import_keeps_to_the_layers() -> None:
    tree = files()
    assert len(tree) > 20  # the source was found
    assert [fault for path, text in tree.items() for fault in faults(path, text)] == []


def sizes(tree: dict[str, str]) -> dict[str, tuple[int, int]]:
    """The files and the statements of each package."""
    found: dict[str, tuple[int, int]] = {}
    for path, text in tree.items():
        package = path.partition("/")[0] if "/" in path else "."
        count, statements = found.get(package, (0, 0))
        found[package] = (count + 1, statements + read(path, text).statements)
    return found


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_no_package_grows_past_its_size() -> None:
    found = sizes(files())
    grown = {
        package: f"{now} files and statements, {SIZES.get(package, (0, 0))} are held"
        for package, now in found.items()
        if any(figure > most for figure, most in zip(now, SIZES.get(package, (0, 0)), strict=True))
    }
    assert grown == {}
    assert set(SIZES) == set(found)  # a package that went leaves the table


# --- imports behind a module -----------------------------------------------------------------------------------------


def reached(start: str, tree: dict[str, str], at_once: bool = False) -> set[str]:
    """Every import behind the module `start`, through all of gpucheck; `at_once`: only what importing it imports."""
    modules = {module_of(path): path for path in tree}
    seen: set[str] = set()
    todo = [modules[start]]
    while todo:
        path = todo.pop()
        for entry in imports_of(path, tree[path]):
            if (at_once and not entry.at_once) or entry.name in seen:
                continue
            seen.add(entry.name)
            # `from gpucheck.bench import matmul` names a module, `from gpucheck.units import text` something in one;
            # either way the packages above are imported too.
            parts = entry.name.split(".")
            todo += [modules[m] for n in range(1, len(parts) + 1) if (m := ".".join(parts[:n])) in modules]
    return seen


def circles(tree: dict[str, str]) -> list[list[str]]:
    """The groups of files of which each imports, over others of the group, every other; whenever the import happens."""
    modules = {module_of(path): path for path in tree}

    def imported(path: str) -> set[str]:
        found = set()
        for entry in imports_of(path, tree[path]):
            name = entry.name
            while name and name not in modules:
                name = name.rpartition(".")[0]
            found |= {modules[name]} if name else set()
        # `from gpucheck.bench import matmul` in a package's file names the package too, which imports nothing of it.
        return {other for other in found if other != path and not other.endswith("__init__.py")}

    graph = {path: imported(path) for path in tree}

    def behind(path: str) -> set[str]:
        seen: set[str] = set()
        todo = [path]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reach = {path: behind(path) for path in tree}
    groups = {
        tuple(sorted(other for other in reach[path] if path in reach[other])) for path in tree if path in reach[path]
    }
    return [list(group) for group in sorted(groups)]


def test_no_files_import_each_other() -> None:
    assert circles(files()) == []


def test_a_circle_is_found_late_imports_and_those_for_type_checkers_too() -> None:
    tree = {
        "bench/a.py": "def f():\n    from gpucheck.bench import b\n",
        "bench/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpucheck.bench.c import C\n",
        "bench/c.py": "from gpucheck.bench.a import f\nfrom gpucheck.bench import d\n",
        "bench/d.py": "",
    }
    assert circles(tree) == [["bench/a.py", "bench/b.py", "bench/c.py"]]


def test_judges_import_no_torch() -> None:
    """Neither they themselves, at any level, nor what comes with them."""
    tree = files()
    judges = [path for path in tree if any(fnmatch(path, place) for place in JUDGES)]
    assert all(any(fnmatch(path, place) for path in judges) for place in JUDGES)
    own = [path for path in judges if any(within(entry.name, "torch") for entry in imports_of(path, tree[path]))]
    brought = [path for path in judges if any(within(name, "torch") for name in reached(module_of(path), tree, True))]
    assert (own, brought) == ([], [])


# --- the check itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("units.py", "import gpucheck.report.facts", "units (layer 0) imports report (layer 1): upward"),
        ("report/facts.py", "from gpucheck.machine import host", "report (layer 1) imports machine (layer 2): upward"),
        ("machine/host.py", "from .. import measure", "machine (layer 2) imports measure (layer 3): upward"),
        ("bench/matmul.py", "from gpucheck import render", "bench (layer 4) imports render (layer 7): upward"),
        ("bench/matmul.py", "import_module('gpucheck.cli.app')", "bench (layer 4) imports cli (layer 8): upward"),
        ("bench/matmul.py", "from gpucheck.memory import steps", "bench imports memory, of the same layer 4"),
        ("work/target.py", "from gpucheck.measure.timing import run", "work imports measure, of the same layer 3"),
        ("bench/matmul.py", "import gpucheck.gadgets", "gpucheck.gadgets has no layer"),
        (
            "bench/overlap/cases.py",
            "from gpucheck.bench.transfer.cases import Buffers",
            "overlap imports transfer, another benchmark",
        ),
        ("bench/matmul/judge.py", "from ..bandwidth import judge", "matmul imports bandwidth, another benchmark"),
        ("machine/host.py", "import torch", "torch is imported with the module"),
        (
            "machine/host.py",
            "try:\n    from torch import cuda\nexcept ImportError:\n    pass",
            "torch is imported with",
        ),
        ("machine/inventory.py", "def f():\n    import pynvml", "pynvml is not used here"),
        ("smoke/command.py", "import multiprocessing.pool", "multiprocessing is not used here"),
        ("machine/host.py", "import os\nos.system('true')", "os.system belongs to machine/child.py"),
        ("smoke/command.py", "from rich.table import Table", "rich is not used here"),
        ("cli/app.py", "import click", "click is not used here"),
        ("cli/app.py", "from typer._click import exceptions", "typer._click is not used here"),
        ("gadgets.py", "", "gadgets has no layer"),
    ],
)
def test_a_planted_fault_is_found(path: str, text: str, fault: str) -> None:
    (found,) = faults(path, text)
    assert fault in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cli/app.py", "from gpucheck.render import text\nfrom gpucheck.units import format_bytes\nimport typer, rich"),
        ("cli/app.py", "def f():\n    import torch"),
        ("machine/installed_torch.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("machine/accel.py", "import torch"),
        ("machine/nvml_read.py", "import pynvml"),
        ("machine/child.py", "import subprocess, multiprocessing\nimport os\nos.execv('/bin/true', [])"),
        ("bench/matmul.py", "import torch\nfrom . import transfer\nfrom gpucheck import __version__"),
        ("report/facts.py", "from gpucheck.report.codec import encode\nimport torchvision_lookalike"),
        ("errors.py", "from gpucheck.errors import USAGE"),
        (
            "bench/overlap/cases.py",
            "from gpucheck.bench.buffers import Buffers\nfrom gpucheck.bench.overlap import judge",
        ),
        ("bench/benchmarks.py", "from gpucheck.bench.transfer import TransferOptions"),
    ],
)
def test_an_allowed_import_is_no_fault(path: str, text: str) -> None:
    assert faults(path, text) == []


def test_reached_follows_packages_functions_and_relative_imports() -> None:
    tree = {
        "devices/__init__.py": "",
        "devices/command.py": "from ..machine.inventory import look\n",
        "machine/__init__.py": "import psutil\n",
        "machine/inventory.py": "def look():\n    import torch\n",
    }
    start = "gpucheck.devices.command"
    assert reached(start, tree) == {"gpucheck.machine.inventory.look", "psutil", "torch"}
    assert reached(start, tree, at_once=True) == {"gpucheck.machine.inventory.look", "psutil"}
