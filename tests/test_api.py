"""The commands as functions: the examples in the docstring run, and mistakes raise what they say."""

from __future__ import annotations

import doctest
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from stressed import device, result

from gpucheck import api
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Event, Started
from gpucheck.report.facts import Facts
from gpucheck.report.report import Collector
from gpucheck.report.results.stress import StressResult


@pytest.mark.slow
def test_the_examples_run() -> None:
    ended = doctest.testmod(api)
    assert ended.attempted > 5 and ended.failed == 0


def test_every_name_is_there_and_no_other() -> None:
    functions = {name for name, value in vars(api).items() if getattr(value, "__module__", "") == api.__name__}
    assert {name for name in functions if not name.startswith("_")} <= set(api.__all__)
    assert all(hasattr(api, name) for name in api.__all__)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: api.bench("matmull"), "did you mean matmul"),
        (lambda: api.bench("matmul", sizes=64), "the option 'sizes' is unknown; did you mean size"),
        (lambda: api.bench("matmul", dtype="float33"), "--dtype 'float33' is unknown"),
        (lambda: api.bench("transfer", size="64parsec"), "--size must be a size"),
        (lambda: api.smoke("cpu", only=["tensor_"]), "matches no check"),
        (lambda: api.doctor(only=["torch_"]), "matches no condition"),
        (lambda: api.smoke("cpu", require="gpu"), "--require 'gpu' is unknown"),
        (lambda: api.smoke("cpu", only=[5]), "--only '5' matches no check"),  # type: ignore[list-item]
        (lambda: api.smoke("cpu", time_budget_s=float("nan")), "--time-budget must be a time above 0s"),
        (lambda: api.smoke(3), "--device '3' is not a device"),  # type: ignore[arg-type]
        (lambda: api.doctor(require="gpu"), "--require 'gpu' is unknown"),
        (lambda: api.doctor(time_budget_s=-1), "--time-budget must be a time above 0s"),
        (lambda: api.devices("cpu", processes="no"), "--processes is 'no'; it takes"),  # type: ignore[arg-type]
        (lambda: api.bench("matmul", search="no"), "--search is 'no'; it takes True or False"),
        (lambda: api.bench("matmul", time_budget="long"), "--time-budget must be a time above 0s"),
        (lambda: api.smoke("cpu", only={"tensor_"}), "--only 'tensor_' matches no check"),  # type: ignore[arg-type]
        (lambda: api.find_batch_size("mlp", headroom=Decimal(5)), "not '500%'"),  # type: ignore[arg-type]
        (lambda: api.devices("gpu7"), "is not a device"),
        (lambda: api.judge("nowhere.json"), "'nowhere.json' cannot be read"),
        (lambda: api.judge(api.devices("cpu")), "the document is a result of `gpucheck devices`"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(call: object, words: str) -> None:
    with pytest.raises(api.UsageError, match=None) as raised:
        call()  # type: ignore[operator]
    assert words in str(raised.value)


def test_a_saved_stress_test_is_judged_again(tmp_path: Path) -> None:
    import json

    def document(answer: StressResult) -> api.Report:
        collector = Collector()
        for event in (Started(Facts()), Answered("stress", answer)):
            collector(event)
        return collector.report(version="0", command="stress", argv=(), started="", elapsed_s=1.0)

    slow = document(result([device(0), device(1, speed=lambda _: 0.7), device(2)]))
    path = tmp_path / "stress.json"
    path.write_text(json.dumps(to_json(slow)), encoding="utf-8")
    for judged in (api.judge(slow), api.judge(path), api.judge(str(path))):
        assert [(one.id, one.verdict, one.device) for one in judged.findings] == [
            ("stress.wrong", "pass", None),
            ("stress.slow", "fail", "cuda:1"),
        ]
        assert judged.summary.exit == 1


def test_a_document_that_was_cut_off_is_no_pass() -> None:
    """Its findings may be few and good, or none at all."""
    cut = Collector().report(version="0", command="bench matmul", argv=(), started="", elapsed_s=1.0, complete=False)
    assert cut.findings == ()
    assert (cut.summary.verdict, cut.summary.exit) == ("inconclusive", 4)
    assert api.judge(cut).summary == cut.summary


def test_a_device_as_torch_has_it() -> None:
    assert api.devices(torch.device("cpu")).summary.verdict == "pass"


def test_events_are_told_as_they_come() -> None:
    events: list[Event] = []
    report = api.devices("cpu", on_event=events.append)
    assert isinstance(events[0], Started) and report.command == "devices"
