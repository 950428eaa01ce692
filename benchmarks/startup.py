"""How fast gpucheck starts, as ratios to what is measured beside it in the same run.

    python benchmarks/startup.py [--nvitop PATH]

`--help` against a Typer application with the same commands and empty bodies; `devices` against the bare start of NVML
and libcuda, which its document reports; and `devices` against `nvitop -1`, both on eight cards of the fake driver in
tests/fakes, so that a machine without a GPU measures it too. The pairs alternate, so that a change of the machine's
speed hits both. Both sides have their bytecode, as an installer leaves it, also where the environment forbids writing
it. nvitop is the one on the PATH unless another is named; without one that pair is left out, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import doctor_faults

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 15
# Written by the run of each that warms up, and not beside the sources, which may be read-only.
BYTECODE = tempfile.TemporaryDirectory()
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPATH": str(ROOT / "src"),
    "PYTHONPYCACHEPREFIX": BYTECODE.name,
}
GPUCHECK = [sys.executable, "-m", "gpucheck"]
NULL = subprocess.DEVNULL
CARDS = 8
# How much longer `devices` may take than `nvitop -1`: it asks several times as much, in two processes besides its own.
NVITOP_BOUND_S = 0.150

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


def seconds(command: list[str], environment: Mapping[str, str] = ENVIRONMENT) -> float:
    began = time.perf_counter()
    # In a folder without a project whose settings would be read.
    subprocess.run(command, env=environment, cwd=tempfile.gettempdir(), stdout=NULL, stderr=NULL, check=True)
    return time.perf_counter() - began


def in_turn(
    ours: list[str], theirs: list[str], environment: Mapping[str, str] = ENVIRONMENT
) -> list[tuple[float, float]]:
    """The seconds of both, again and again, after one of each that warms the disk's cache."""
    seconds(ours, environment), seconds(theirs, environment)
    return [(seconds(ours, environment), seconds(theirs, environment)) for _ in range(PAIRS)]


def help_page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(empty_app(), encoding="utf-8")
        pairs = in_turn([*GPUCHECK, "--help"], [sys.executable, str(script), "--help"])
    ratios = sorted(a / b for a, b in pairs)
    ours = statistics.median(a for a, _ in pairs)
    return (
        f"--help: {statistics.median(ratios):.2f}x an empty Typer app (bound 1.5x; {ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}, {PAIRS} pairs; ours {ours:.3f} s)"
    )


def beyond_the_driver() -> str:
    beyond = []
    for _ in range(PAIRS):
        began = time.perf_counter()
        done = subprocess.run([*GPUCHECK, "devices", "--json"], env=ENVIRONMENT, capture_output=True, check=True)
        wall = time.perf_counter() - began
        driver = json.loads(done.stdout)["facts"]["driver"] or {}
        # The two start side by side, so the slower one is what must be waited for.
        starts = [driver.get("nvml_start_s") or 0.0, driver.get("cuinit_start_s") or 0.0]
        beyond.append(wall - max(starts))
    return (
        f"devices: {statistics.median(beyond):.3f} s beyond the driver's own start "
        f"(bound 0.35 s on an NVIDIA machine; {min(beyond):.3f} to {max(beyond):.3f}, n = {PAIRS})"
    )


def beside_nvitop(nvitop: str | None) -> str:
    if nvitop is None:
        return (
            "devices beside nvitop: left out (there is no nvitop on the PATH: `pip install nvitop`, or --nvitop PATH)"
        )
    if sys.platform != "linux" or shutil.which("cc") is None:
        return "devices beside nvitop: left out (the fake driver needs Linux and a C compiler)"
    with tempfile.TemporaryDirectory() as folder:
        doctor_faults.compile_fakes(Path(folder))
        script = Path(folder) / "script"
        numbers = ",".join(map(str, range(CARDS)))
        script.write_text(f"nvml.count={CARDS}\ncuda.order={numbers}\n", encoding="utf-8")
        environment = {**ENVIRONMENT, "LD_LIBRARY_PATH": folder, "FAKE_DRIVER": str(script)}
        pairs = in_turn([*GPUCHECK, "devices"], [nvitop, "-1"], environment)
    longer = sorted(ours - theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    return (
        f"devices beside nvitop: {1e3 * statistics.median(longer):+.0f} ms (bound {1e3 * NVITOP_BOUND_S:+.0f} ms; "
        f"{1e3 * longer[0]:+.0f} to {1e3 * longer[-1]:+.0f}, {PAIRS} pairs;\n"
        f"        {CARDS} fake cards, ours {ours:.3f} s, nvitop -1 {theirs:.3f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvitop", default=shutil.which("nvitop"), metavar="PATH")
    nvitop = parser.parse_args().nvitop
    print(help_page())
    print(beyond_the_driver())
    print(beside_nvitop(nvitop))


if __name__ == "__main__":
    main()
