"""The user's code of a TARGET: found, imported and called.

It runs here, so this is imported in children only. Whatever it raises becomes a TargetError, but for what may be
memory that ran out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from gpucheck.errors import TargetError
from gpucheck.work.spec import Target


def find(target: Target) -> Callable[[], Any]:
    """What the target names. Raises TargetError where it is missing, raises on import or cannot be called."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _import_file(target.file) if target.file is not None else importlib.import_module(target.module or "")
    except ModuleNotFoundError as error:
        if target.module is not None and error.name in (target.module, target.module.split(".")[0]):
            raise TargetError(
                f"the target's module {target.module} is not there",
                "it is neither installed nor in the current folder",
                "give its file as path/to/file.py:factory",
                trace=traceback.format_exc(),
            ) from error
        raise raised(f"importing the target {target.text}", error) from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise raised(f"importing the target {target.text}", error) from error
    found: Any = module
    for name in (target.attribute or "").split("."):
        if not hasattr(found, name):
            public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")][:8]
            hint = f"it has {', '.join(public)}" if public else "it has no functions"
            raise TargetError(f"{target.file or target.module} has no {target.attribute}", hint)
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(
            f"the target {target.text} is not callable",
            f"it is {kind(found)}",
            "name a function that returns a module",
        )
    return found  # type: ignore[no-any-return]


def _import_file(file: str) -> Any:
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"the target's file {file} is no Python file", "", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Known by its name while it runs, as dataclasses and pickling in it expect.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def call(factory: Callable[[], Any], target: Target) -> Any:
    """What the factory returns; a module that is there already is taken as it is. Raises TargetError."""
    if isinstance(factory, nn.Module):
        return factory
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        if isinstance(error, (MemoryError, RuntimeError)):
            raise  # may be memory: for the caller to judge
        raise raised(f"the target {target.text}", error) from error


def raised(what: str, error: BaseException) -> TargetError:
    """`what` raised `error`, as an error of the target's with its traceback."""
    if isinstance(error, TargetError):
        return error
    said = " ".join(str(error).split())
    return TargetError(
        f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""),
        "",
        "see the traceback with --debug",
        trace="".join(traceback.format_exception(error)),
    )


def kind(value: Any) -> str:
    """A value's type in words."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
