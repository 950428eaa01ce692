"""The place `child`: each process that a command starts is killed, hangs, says nonsense or half a line, or gives up."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from matrix import CHILDREN, HOWS, SHORT

from gpucheck import exits
from gpucheck.cli.app import main
from gpucheck.machine import child
from gpucheck.report import schema

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fake driver needs Linux"),
]
RELAY = Path(__file__).with_name("relay.py")
EVERY = [(command, module, how, lines) for command, of in CHILDREN.items() for module, lines in of for how in HOWS]


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema.schema())


def breaking(module: str, how: str, lines: int, patches: pytest.MonkeyPatch) -> list[str]:
    """Let the children that run this module break off; returns what is started so, as it comes."""
    start = child._popen
    broken: list[str] = []

    def through_the_relay(argv: Any, *rest: Any, **named: Any) -> subprocess.Popen[bytes]:
        if any(module in word for word in argv):
            broken.append(module)
            argv = [sys.executable, "-S", str(RELAY), how, str(lines), *argv]
        return start(argv, *rest, **named)

    patches.setattr(child, "_popen", through_the_relay)
    for owner, name, limit_s in SHORT:
        if how == "hang" or how == "garbage":
            patches.setattr(owner, name, limit_s)
    return broken


@pytest.mark.parametrize(("command", "module", "how", "lines"), EVERY)
def test_a_child(
    command: str,
    module: str,
    how: str,
    lines: int,
    fake_driver: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fake_driver("nvml.count=2\ncuda.order=0,1\n")
    target = tmp_path / "x.json"
    broken = breaking(module, how, lines, monkeypatch)
    code = main([*command.split(), "--json", "--quiet", "--output", str(target)])
    said = capsys.readouterr()
    assert broken, "no such child is started"
    assert code not in (exits.BUG, exits.USAGE), said.err
    document = json.loads(said.out)
    assert said.out == target.read_text(encoding="utf-8")
    validator().validate(document)
    assert document["summary"]["exit"] == code
    print(code, [(f["id"], f["verdict"], f["title"], f["message"]) for f in document["findings"]], document["facts"]["unknown"], document["summary"], len(document.get("trials", ())))
