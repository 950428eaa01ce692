"""Along an axis sizes are lengths: nothing that a person reads speaks of a batch but the one that is fixed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.command import command
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.cli.session import LiveView
from gpucheck.render import terminal, text
from gpucheck.report.events import Event
from gpucheck.report.report import Collector
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("cpu_machine")

RUNTIME = ["builtins.RuntimeError", "builtins.Exception"]
OUT_OF_MEMORY = {"chain": [{"classes": RUNTIME, "message": "CUDA out of memory."}], "traceback": "t"}
BROKEN = {"chain": [{"classes": RUNTIME, "message": "CUDA error: an illegal memory access"}], "traceback": "t"}
GROWS = {"static": 100 * MIB, "per_sample": MIB}
ESTIMATED = {"ok": True, "largest": 924, "smallest": 64, "peak_bytes": 1024 * MIB} | dict.fromkeys(
    ("parameter_bytes", "gradient_bytes", "optimizer_bytes"), 1
)
# The one batch there is, and names that are no sentences.
FIXED = re.compile(r"at batch size 8|find-batch-size")


def read(monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Everything that a person sees of a search along `seq`, live and at the end."""
    monkeypatch.delenv("COLUMNS", raising=False)
    stream, said = io.StringIO(), Collector()
    view = LiveView(stream)

    def emit(event: Event) -> None:
        said(event)
        view(event)

    options = {"axis": "seq:64..4096", "batch_size": 8, "memory_limit": "1GiB", "device": "cpu", **options}
    command(FindBatchSizeOptions(target="mlp", inputs=("ids:seq:int64:0..9",), **options), emit)
    view.close()
    made = said.report(version="0", command="find-batch-size", argv=(), started="", elapsed_s=1.0)
    terminal.show(terminal.console(stream), text.blocks(made, verbose=True))
    return stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "options", "said"),
    [
        (GROWS, {}, "recommended: "),
        ({**GROWS, "from": 200, "beyond": OUT_OF_MEMORY}, {}, "limit: memory; first that fails: 20"),
        ({**GROWS, "from": 200, "beyond": BROKEN}, {}, "✗ seq "),
        ({"static": 2 * GIB}, {}, "not even seq 64 fits"),
        ({"static": MIB, "per_sample": 1}, {}, "stopped at the greatest length given"),
        ({"static": MIB, "per_sample": 1}, {"multiple_of": 1000}, "stopped at the greatest length given"),
        ({**GROWS, "step_s": 0.4}, {"time_budget_s": 1.9}, "at least seq "),
        ({"at": {"64": "hang"}}, {"time_budget_s": 0.5}, "no length of seq passed before time ran out"),
        ({"estimated": ESTIMATED}, {"estimate": True}, "estimate: seq 924 fits 1 GiB"),
    ],
)
def test_every_sentence_is_about_lengths(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, scene: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    scenario(**scene)
    shown = read(monkeypatch, **options)
    assert said in shown
    assert [text for text in FIXED.sub("", shown).splitlines() if re.search(r"batch|sample", text)] == []


def test_why_none_is_recommended_is_about_lengths_too(scenario: Scenario) -> None:
    scenario(**GROWS)
    said, inputs = Collector(), ("ids:seq:int64:0..9",)
    along = FindBatchSizeOptions(target="mlp", inputs=inputs, axis="seq:64..4096", memory_limit="1GiB", headroom=0.95)
    command(along, said)
    reason = said.results["find_batch_size"].recommended.reason
    assert reason == "even the least length of seq leaves less than the headroom"
