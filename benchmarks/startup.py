"""How fast gpucheck starts, as ratios to what is measured beside it in the same run.

    python benchmarks/startup.py

`--help` against a Typer application with the same commands and empty bodies; `devices` against the bare start of NVML
and libcuda, which its document reports. The pairs alternate, so that a change of the machine's speed hits both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 15
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

EMPTY = """
import sys
from typing import Annotated
import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(rich_markup_mode=None)
app.add_typer(bench, name="bench")

@app.callback(invoke_without_command=True)
def root(context: typer.Context, version: Annotated[bool, typer.Option("--version")] = False) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())

{commands}
app()
"""

COMMANDS = (
    "app devices",
    "app memory",
    "app smoke",
    "app find-batch-size",
    "app compare",
    "app schema",
    "bench transfer",
    "bench bandwidth",
    "bench matmul",
)
BODY = '''
@{group}.command("{name}")
def {function}(device: Annotated[str, typer.Option("--device")] = "auto",
               json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Empty."""
'''


def empty_app() -> str:
    parts = [command.split() for command in COMMANDS]
    bodies = [BODY.format(group=group, name=name, function=name.replace("-", "_")) for group, name in parts]
    return EMPTY.format(commands="\n".join(bodies))


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(empty_app(), encoding="utf-8")
        ours = [sys.executable, "-m", "gpucheck", "--help"]
        theirs = [sys.executable, str(script), "--help"]
        seconds(ours), seconds(theirs)
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(PAIRS)]
    ratios = sorted(a / b for a, b in pairs)
    print(
        f"--help: {statistics.median(ratios):.2f}x an empty Typer app (bound 1.5x; {ratios[0]:.2f} to {ratios[-1]:.2f},"
    )
    print(f"        {PAIRS} pairs; ours {statistics.median(a for a, _ in pairs):.3f} s)")

    command = [sys.executable, "-m", "gpucheck", "devices", "--json"]
    beyond = []
    for _ in range(PAIRS):
        began = time.perf_counter()
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
        wall = time.perf_counter() - began
        driver = json.loads(done.stdout)["facts"]["driver"] or {}
        # The two start side by side, so the slower one is what must be waited for.
        starts = [driver.get("nvml_start_s") or 0.0, driver.get("cuinit_start_s") or 0.0]
        beyond.append(wall - max(starts))
    print(
        f"devices: {statistics.median(beyond):.3f} s beyond the driver's own start "
        f"(bound 0.35 s on an NVIDIA machine; {min(beyond):.3f} to {max(beyond):.3f}, n = {PAIRS})"
    )


if __name__ == "__main__":
    main()
