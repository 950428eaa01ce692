"""The installed torch, read without importing it: its version, what it was built for and where it is."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from gpucheck.report.facts import TorchBuild


def read() -> TorchBuild:
    """The torch that `import torch` would load here; all fields None where there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a broken path hook, or a `torch` without a spec already in sys.modules
        spec = None
    if spec is None or spec.origin is None:
        return TorchBuild()
    return from_folder(Path(spec.origin).parent)


def from_folder(folder: Path) -> TorchBuild:
    """The torch whose package folder this is. What `version.py` does not tell stays None."""
    try:
        names = assigned_constants((folder / "version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return TorchBuild(path=str(folder))
    toolkits = {"cuda": names.get("cuda"), "rocm": names.get("hip"), "xpu": names.get("xpu")}
    built_for = next((name for name, version in toolkits.items() if version), "cpu")
    return TorchBuild(
        version=names.get("__version__"),
        path=str(folder),
        built_for=built_for,
        toolkit_version=toolkits.get(built_for),
        git_version=names.get("git_version"),
    )


def assigned_constants(source: str) -> dict[str, str | None]:
    """The names that `source` assigns a string or None at its top level. Raises SyntaxError."""
    found: dict[str, str | None] = {}
    for statement in ast.parse(source).body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str | None):
                found[target.id] = value.value
    return found
