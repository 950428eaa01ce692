"""Which layout a command has, and that no other comes with it."""

from __future__ import annotations

import importlib
import subprocess
import sys

from gpucheck.cli import app, commands
from gpucheck.render import text

PROGRAM = """
import sys
from gpucheck.render import text
from gpucheck.report.report import Collector
text.blocks(Collector().report(version="0", command="bench bandwidth", argv=(), started="", elapsed_s=1.0))
print(*(name for name in sys.modules if name.startswith("gpucheck.")))
"""


def test_every_command_that_reports_has_a_layout() -> None:
    assert app.app is not None  # its import adds the commands
    # What `judge` is given is shown as what it is.
    assert set(text.LAYOUTS) == set(commands.names()) - {"schema", "judge"}
    for name in text.LAYOUTS.values():
        file, _, function = name.partition(".")
        assert callable(getattr(importlib.import_module(f"gpucheck.render.{file}"), function or "page"))


def test_only_the_layout_that_is_shown_is_loaded() -> None:
    loaded = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()
    layouts = {f"gpucheck.render.{name.partition('.')[0]}" for name in text.LAYOUTS.values()}
    assert layouts & set(loaded) == {"gpucheck.render.bench"}
    others = ("gpucheck.bench.", "gpucheck.compare.", "gpucheck.doctor.")
    # What a page says of all results is read from their ids.
    assert [name for name in loaded if name.startswith(others)] == ["gpucheck.bench.ids"]
