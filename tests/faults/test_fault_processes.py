"""What only a separate process shows: a device that hangs, a kill, a signal, each command's last word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matrix import COMMANDS

import document_schema as schema
from gpucheck import errors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked"),
]

# Where each is in the middle of its work: after its first row, and where it has rows, with some to come.
AMID = {"bench overlap": ("memory", 3), "bench crossover": ("synchronize", 8), "smoke": ("synchronize", 1)}
# What ends it, and with what.
ENDS = {
    "raise": errors.FAILED,
    "hang": errors.FAILED,
    "interrupt": errors.INTERRUPTED,
    "terminate": errors.TERMINATED,
    "kill": -9,
}


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    program = Path(__file__).with_name("forked.py")
    folders = [str(program.parent), *(str(program.parents[1] / name) for name in ("fakes", "record"))]
    folders.append(str(program.parents[2] / "src"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    with subprocess.Popen(
        [sys.executable, str(program)], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as ready:
        yield ready
        assert ready.stdin is not None
        ready.stdin.close()


def ended(server: subprocess.Popen[str], **asked: Any) -> int:
    """How the process ended that was asked for."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_process(command: str, how: str, server: subprocess.Popen[str], tmp_path: Path) -> None:
    call, after = AMID.get(command, ("memory", 1))
    target = tmp_path / "x.json"
    target.write_text("what was there before", encoding="utf-8")
    line = f"{command} {COMMANDS[command]} --device cuda:0 --json --quiet"
    arguments = [*line.split(), "--output", str(target)]
    code = ended(server, arguments=arguments, folder=str(tmp_path), call=call, after=after, how=how)
    said = (tmp_path / "err").read_text()
    assert code == ENDS[how], said
    written = target.read_text(encoding="utf-8")
    if how == "kill":
        # What was there stays, or there is a whole document of the parts that were done.
        assert (tmp_path / "out").read_text() == ""
        if written == "what was there before":
            return
    else:
        assert (tmp_path / "out").read_text() == written
        assert sorted(path.name for path in tmp_path.iterdir()) == ["err", "out", "x.json"]
    document = json.loads(written)
    schema.validator().validate(document)
    assert document["summary"]["complete"] is False
    failed = [one["id"] for one in document["findings"] if one["verdict"] == "fail"]
    if how in ("raise", "hang"):
        (one,) = [one for one in document["findings"] if one["id"] == "device.error"]
        assert (one["title"].startswith("cuda:0: no answer for ")) is (how == "hang")
    else:
        assert failed == []
    if command.startswith("bench ") and command != "bench crossover":
        assert document["measurements"]


# A page breaks off while it is made: the escaping of its text meets a signal or raises.
PAGE = """
import html, os, signal, sys
from gpucheck.cli.app import main

how = sys.argv.pop(1)

def met(text, quote=True):
    if how == "raise":
        raise RuntimeError("broken")
    os.kill(os.getpid(), {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}[how])

html.escape = met
sys.exit(main())
"""


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A document to make pages of."""
    folder = tmp_path_factory.mktemp("saved")
    ended = ran(folder, "-m", "gpucheck", "explain", "oom.cuda", "--output", "saved.json")
    assert ended.returncode == errors.OK, ended.stderr
    return (folder / "saved.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("how", ["raise", "interrupt", "terminate", "kill"])
@pytest.mark.parametrize("command", ["report saved.json", "explain oom.cuda"])
def test_a_page_that_breaks_off_leaves_the_one_before(command: str, how: str, saved: str, tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(saved, encoding="utf-8")
    (tmp_path / "page.html").write_text("what was there before", encoding="utf-8")
    ended = ran(tmp_path, "-c", PAGE, how, *command.split(), "--output", "page.html")
    # `report` makes its page before there is anything to tell of: SIGTERM ends the process itself.
    code = errors.BUG if how == "raise" else -15 if (command[:6], how) == ("report", "terminate") else ENDS[how]
    assert ended.returncode == code, ended.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "what was there before"
    assert how == "kill" or sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "saved.json"]
