from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpucheck.errors import Undecided
from gpucheck.machine import torch_private

ROOT = Path(__file__).parent.parent.parent


def test_a_name_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = torch_private.Private("torch._C.gone", ("run",), "much")
    monkeypatch.setattr(torch_private, "ROWS", {"torch._C.gone": gone})
    assert not torch_private.has("torch._C.gone") and torch_private.find("torch._C.gone", 3) == 3
    assert torch_private.replacing("torch._C.gone", lambda original: original) == []
    assert torch_private.lost("run") == ("much",) and torch_private.lost("ranks") == ()
    with pytest.raises(Undecided, match=r"torch \S+ has no torch._C.gone; gpucheck cannot do without it"):
        torch_private.need("torch._C.gone")
    with pytest.raises(NotImplementedError, match=r"torch \S+ has no torch._C.gone"):
        torch_private.kernel("torch._C.gone")(1)


def test_an_older_name_is_taken_where_the_new_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    row = torch_private.Private("torch.gone_too", ("run",), "much", older=("torch.Tensor._version",))
    monkeypatch.setattr(torch_private, "ROWS", {"torch.gone_too": row})
    assert torch_private.find("torch.gone_too") is torch_private._resolve("torch.Tensor._version")
    assert torch_private.lost("run") == ()


def test_torch_has_every_name_that_something_is_lost_without() -> None:
    uses = ("simulation", "run", "trace", "ranks", "batches", "device")
    assert [use for use in uses if torch_private.lost(use)] == []  # type: ignore[arg-type]


def names_in(tree: ast.AST) -> list[str]:
    """The private names of other objects that a file uses: attributes, and those asked for as text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found += [part for item in node.names for part in f"{node.module}.{item.name}".split(".")]
        elif isinstance(node, ast.Import):
            found += [part for item in node.names if item.name.startswith("torch.") for part in item.name.split(".")]
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls"):
            found.append(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            found += [str(item.value) for item in node.args[1:2] if isinstance(item, ast.Constant)]
    return [name for name in found if name.startswith("_") and not name.startswith("__")]


# Private names of Python's own modules, of aten's operators, and of operations of torchvision.
OTHERS = {
    *("_exit", "_getframe", "_current_frames", "_fields", "_bootstrap_inner", "_args_from_interpreter_flags"),
    *("_to_copy", "_qualified_op_name"),
}

# Private names of gpucheck's own modules and objects.
OF_GPUCHECK = {"_replaced", "_replace", "_steps", "_main_thread", "_follow", "_end", "_above", "_made", "_copied"}


def test_no_private_name_is_used_that_is_not_in_the_table() -> None:
    known = OTHERS | {part.removesuffix("()") for path in torch_private.ROWS for part in path.split(".")}
    unknown = []
    for path in (ROOT / "src/gpucheck").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if ("import torch" not in text and "from torch" not in text) or path.name == "torch_private.py":
            continue
        tree = ast.parse(text)
        # Names of the file's own, and of gpucheck's modules that it uses.
        own = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.startswith("_")
        }
        unknown += [f"{path.name}: {name}" for name in {*names_in(tree)} - known - own - OF_GPUCHECK]
    assert unknown == []


def test_a_private_name_is_seen_however_it_is_used() -> None:
    text = "import torch._a\nfrom torch._b import c\nfrom torch.d import _e\ntorch._f\ngetattr(torch, '_g')\nself._h"
    assert sorted(names_in(ast.parse(text))) == ["_a", "_b", "_e", "_f", "_g"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    argv = [sys.executable, str(ROOT / "tests/fakes/taking_away.py"), str(tmp_path_factory.mktemp("away"))]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=900, env={"PYTHONPATH": str(ROOT / "src")})
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the commands run in forks")
def test_without_any_of_the_names_each_command_answers_and_nothing_is_falsely_right_or_wrong(
    answers: list[dict[str, Any]],
) -> None:
    exits = {
        "run --dry, right": {0},
        "run --dry, wrong": {1},
        "model, right": {0},
        "model, wrong": {1},
        "run": {0, 4},  # what so short a program waits for depends on the machine
        "forecast": {0},
    }
    assert all(item["exit"] in exits[item["way"]] for item in answers if item["path"] is None)
    wrong = []
    for item in answers:
        row = torch_private.ROWS.get(item["path"] or "")
        if row is None or ("_cuda_" in row.path and not torch.backends.cuda.is_built()):
            continue
        allowed = {4, 1} if item["way"].endswith("wrong") else {4} if row.lost or row.vital else exits[item["way"]]
        said = " ".join(item.get("found", [item.get("error", "")]))
        if item["exit"] not in allowed or (row.path if row.vital else row.lost) not in said:
            wrong.append(item)
    assert wrong == []
    asked = {(item["path"], item["way"]) for item in answers}
    assert all(any(path == row.path for path, _ in asked) for row in torch_private.ROWS.values() if "run" in row.uses)
