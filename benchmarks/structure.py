"""The size of the source, and how many files a figure passes through: counts to judge a change of structure by.

    python benchmarks/structure.py [--root CHECKOUT] [--json FILE]

Counts of this checkout, or of another one (an older commit in a worktree) for a comparison:

- files and lines of `src`, and names that more than one module defines at its top level;
- files and lines of each package;
- gpucheck's modules that `bench transfer`, `lint` and `--help` have loaded as they end;
- files whose functions run on four walks: from a bandwidth row's first call to the table, from the first trial of
  find-batch-size to its answer (of the parent: what runs in the child is the trial itself), from the first file of
  lint to the screen, and from the first condition of the doctor to the screen;
- files beside a benchmark's own folder that name it;
- places that an option passes: parameters, fields, keywords and texts that carry its name.

These say where to look; none of them is a score.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# The same command lines on both sides of a comparison; small, since what runs matters here and not how long.
TRANSFER = ["bench", "transfer", "--device", "cpu", "--size", "1MiB", "--time-budget", "60s"]
BANDWIDTH = ["bench", "bandwidth", "--device", "cpu", "--size", "1MiB", "--time-budget", "60s"]
LINT = ["lint", "MISTAKE"]
DOCTOR = ["doctor", "--skip", "load"]
BATCH = ["find-batch-size", "mlp", "--device", "cpu", "--max-batch-size", "4", "--time-budget", "60s"]
# One of each kind: a number, a choice, a flag.
OPTIONS = {
    "find-batch-size --tolerance": "tolerance",
    "bench transfer --direction": "direction",
    "smoke --strict": "strict",
}

# Of a long list the first ones are printed; the file has all.
MOST_SHOWN = 20
# What lint has to find.
MISTAKE = "import torch\nx = torch.ones(2)\nx.cuda()\n"

# Runs a command line and prints, as the last line, gpucheck's files whose functions ran once `begin` was called. With
# `begin` empty it prints the modules that are loaded at the end.
PROBE = """
import json, os, sys, threading
src, begin, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.path.insert(0, src)
files, began, begins = set(), [False], begin.split(',')
def look(frame, event, argument):
    if event != "call":
        return
    name = frame.f_code.co_filename
    if not name.startswith(src):
        return
    if not began[0] and any(frame.f_code.co_name == b.split(":")[1] and name.endswith(b.split(":")[0]) for b in begins):
        began[0] = True
    if began[0] and name not in files and not importing(frame):
        files.add(name)
def importing(frame):
    # Code that runs while a module is imported is no step of a walk.
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(src):
            return True
        frame = frame.f_back
    return False
out, sys.stdout = sys.stdout, open(os.devnull, "w")
from gpucheck.cli import app
if begin:
    threading.setprofile(look)
    sys.setprofile(look)
code = app.main(arguments)
sys.setprofile(None)
if not begin:
    ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "gpucheck"]
    files = {module.__file__ for module in ours if getattr(module, "__file__", None)}
print(json.dumps({"code": code, "files": sorted(os.path.relpath(f, src) for f in files)}), file=out)
"""


def probe(root: Path, arguments: list[str], begin: str = "") -> list[str]:
    """Return gpucheck's files whose functions run from `begin` (`file:function`) on; without it, the loaded ones."""
    with tempfile.TemporaryDirectory() as folder:
        mistake = Path(folder, "mistake.py")
        mistake.write_text(MISTAKE, encoding="utf-8")
        given = [str(mistake) if word == "MISTAKE" else word for word in arguments]
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(root / "src"), begin, *given],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
        )
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: list[str] = json.loads(done.stdout.strip().splitlines()[-1])["files"]
    if not found:
        raise SystemExit(f"{' '.join(arguments)}: no {begin} ran, so nothing was counted")
    return found


def packages(root: Path, trees: dict[Path, ast.Module]) -> dict[str, list[int]]:
    """The files and lines of each package; `.` is what lies beside them."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in trees:
        package, slash, _ = path.relative_to(root / "src" / "gpucheck").as_posix().partition("/")
        sizes = found[package if slash else "."]
        sizes[0] += 1
        sizes[1] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items()))


def modules(root: Path) -> dict[Path, ast.Module]:
    """Every module of `src`, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / "src").rglob("*.py"))}


def defined_often(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Public classes and constants that more than one module defines, with how many do."""
    where: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            names = []
            if isinstance(node, ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper()]
            for name in names:
                if not name.startswith("_"):
                    where[name].add(path)
    found = {name: len(paths) for name, paths in where.items() if len(paths) > 1}
    return dict(sorted(found.items(), key=lambda row: (-row[1], row[0])))


def places(trees: dict[Path, ast.Module], name: str) -> int:
    """Parameters, fields, keywords and option texts that carry an option's name."""
    option, count = f"--{name.replace('_', '-')}", 0
    for tree in trees.values():
        # zip's `strict` is no option of ours.
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        of_zip = {keyword for call in calls if getattr(call.func, "id", "") == "zip" for keyword in call.keywords}
        for node in ast.walk(tree):
            count += (
                (isinstance(node, ast.arg) and node.arg == name)
                or (isinstance(node, ast.keyword) and node.arg == name and node not in of_zip)
                or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name)
                or (isinstance(node, ast.Constant) and node.value == option)
            )
    return count


def beside(root: Path, trees: dict[Path, ast.Module], name: str) -> list[str]:
    """Files outside a benchmark's own folder or file that import it, or hold its name as a text or a key."""
    found = []
    for path, tree in trees.items():
        inside = path.relative_to(root / "src" / "gpucheck").as_posix()
        if inside.startswith((f"bench/{name}/", f"bench/{name}.py")):
            continue
        for node in ast.walk(tree):
            imported = isinstance(node, ast.ImportFrom) and name in (node.module or "").split(".")
            keyed = isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value.split(".")
            if imported or keyed:
                found.append(inside)
                break
    return found


def measure(root: Path) -> dict[str, object]:
    """Every count of a checkout."""
    trees = modules(root)
    often = defined_often(trees)
    row = probe(root, BANDWIDTH, "bench/bandwidth/measure.py:measure,bench/bandwidth/work.py:measure")
    trial = probe(root, BATCH, "batch_size/runner.py:run")
    return {
        "src_files": len(trees),
        "src_lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees),
        "names_defined_more_than_once": often,
        "files_and_lines_of_each_package": packages(root, trees),
        "modules_loaded_by_bench_transfer": len(probe(root, TRANSFER)),
        "modules_loaded_by_lint": len(probe(root, LINT)),
        "modules_loaded_by_help": len(probe(root, ["--help"])),
        "files_from_bandwidth_row_to_table": row,
        "files_from_trial_to_answer": trial,
        "files_from_lint_finding_to_screen": probe(
            root, LINT, "lint/judge.py:mistakes,lint/run.py:mistakes,lint/command.py:mistakes"
        ),
        "files_from_condition_to_screen": probe(root, DOCTOR, "doctor/ladder.py:diagnose"),
        "files_beside_a_benchmark": {name: beside(root, trees, name) for name in ("bandwidth", "overlap")},
        "places_of_an_option": {option: places(trees, name) for option, name in OPTIONS.items()},
    }


def _shown(value: object) -> object:
    """A list of names as their number, of numbers as they are."""
    if not isinstance(value, list):
        return value
    return "/".join(map(str, value)) if all(isinstance(item, int) for item in value) else len(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.root.resolve())
    for name, value in found.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {_shown(item)}" for key, item in list(value.items())[:MOST_SHOWN])
            print(f"{name.replace('_', ' ')}: {len(value)} ({shown})")
        else:
            print(f"{name.replace('_', ' ')}: {len(value) if isinstance(value, list) else value}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
