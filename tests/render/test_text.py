"""Which layout a command has, and that no other comes with it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpucheck
from gpucheck.cli import app, commands
from gpucheck.render import text
from gpucheck.render.text import ADVICE, Line
from gpucheck.report.events import Judged
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report

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
    # What a page says of all results is read from their ids, and which figures are in doubt from their judge.
    assert [name for name in loaded if name.startswith(others)] == ["gpucheck.bench.ids", "gpucheck.bench.judging"]


def with_fix(fix: str, typed: str) -> str:
    """The advice on the screen, of a command that was typed like this."""
    collector, argv = Collector(), tuple(typed.split())
    collector(Judged(Finding("collective.ranks", "skip", "1 GPU for 2 ranks", fix=fix)))
    made: Report = collector.report(
        version="0", command=" ".join(argv[:2]), argv=argv, started="", elapsed_s=1.0, code=3
    )
    return next(one.text for one in text.blocks(made) if isinstance(one, Line) and one.text.startswith(ADVICE))


@pytest.mark.parametrize(
    ("fix", "typed", "advice"),
    [
        ("--device cpu", "bench collective", "gpucheck bench collective --device cpu"),
        (
            "--device cpu",
            "bench collective --device cuda --ranks 2",
            "gpucheck bench collective --ranks 2 --device cpu",
        ),
        # How the result was shown is no part of what to do.
        (
            "--time-budget 5m",
            "bench collective --debug --json --quiet -v --verbose --output a.json --strict",
            "gpucheck bench collective --strict --time-budget 5m",
        ),
        ("--only both_ways,on_device", "bench transfer", "gpucheck bench transfer --only both_ways,on_device"),
        # Sentences.
        ("--device cpu measures processes on the host", "bench collective", None),
        ("--device cpu; then again", "bench collective", None),
        ("--fp16 in place of --bf16", "bench collective", None),
    ],
)
def test_a_fix_that_is_an_option_is_shown_as_the_whole_command(fix: str, typed: str, advice: str | None) -> None:
    assert with_fix(fix, typed) == f"{ADVICE}{advice or fix}"


def texts_of_options() -> Iterator[tuple[str, str]]:
    """Each text of the source that begins with an option, with its file; what is filled in later is `1`."""
    root = Path(gpucheck.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            told = "".join(str(one.value) if isinstance(one, ast.Constant) else "1" for one in parts)
            if told.startswith("--") and " " in told:
                yield path.relative_to(root).as_posix(), told


def test_every_text_that_would_be_joined_to_a_command_is_an_option_with_a_value() -> None:
    takes_a_value = {
        one.name for command in commands.names() for one in commands.parameters(command) if not one.is_flag
    }
    found = list(texts_of_options())
    assert ("batch_size/answer.py", "--start 1") in found
    joined = [(path, told) for path, told in found if with_fix(told, "bench collective") != f"{ADVICE}{told}"]
    assert len(joined) > 9  # the fixes of ids and of find-batch-size are among them
    # Both are put into a longer text where they are made.
    parts = [("doctor/fixes.py", "--no-deps 1"), ("explain/figures.py", "--max-model-len 1")]
    assert [one for one in joined if one[1].split()[0] not in takes_a_value] == parts


def test_work_that_was_cut_off_says_what_to_type_next() -> None:
    argv = ("bench", "bandwidth", "--device", "cuda:0", "--json")
    made = Collector().report(
        version="0", command="bench bandwidth", argv=argv, started="", elapsed_s=1.0, code=130, complete=False
    )
    lines = [one.text for one in text.blocks(made) if isinstance(one, Line) and one.text]
    assert lines[-2:] == ["! not complete: the command was cut off", "→ gpucheck bench bandwidth --device cuda:0"]


def test_what_several_devices_share_is_said_once_and_with_every_one_of_them() -> None:
    alike = [
        Finding(
            "stress.slow",
            "fail",
            f"cuda:{n}: 9 % slower",
            "heat",
            {},
            f"gpucheck devices --device cuda:{n}",
            f"cuda:{n}",
        )
        for n in range(3)
    ]
    other = Finding("stress.slow", "fail", "cuda:3: 9 % slower", "power", {}, None, "cuda:3")
    assert [line.text for line in text.said([*alike, other])] == [
        "✗ cuda:0 to cuda:2  9 % slower: heat",
        "→ gpucheck devices --device cuda:0 (and 2 more, each by its own address)",
        "✗ cuda:3: 9 % slower: power",
    ]


def test_findings_in_brief_keep_the_device_and_the_title() -> None:
    lines = ["! cuda:6  91 °C, limit 87 °C: the driver lowers the clock", "→ check fans", "! cuda:3: 9 % slow: heat"]
    assert text.in_brief(lines) == "cuda:6  91 °C, limit 87 °C; cuda:3: 9 % slow"
