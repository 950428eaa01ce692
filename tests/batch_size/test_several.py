from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.command import command, each_device, finding_of_all, least
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.errors import CannotLook
from gpucheck.machine import inventory
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Answered, Recorder, Trial
from gpucheck.report.facts import Device, Facts, Host, TorchBuild
from gpucheck.report.report import Collector
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import GIB

Scenario = Callable[..., Path]

CARDS = tuple(
    Device(kind="cuda", id=f"cuda:{place}", name=f"card {place}", memory_free_bytes=10 * GIB, processes=())
    for place in range(2)
)
FACTS = Facts(host=Host(system="Linux"), torch=TorchBuild(version="2.13.0", built_for="cuda"), devices=CARDS)


def ready(budget: int) -> dict[str, Any]:
    free, total = budget + GIB, 12 * GIB
    told = {"bytes": budget, "margin_bytes": GIB, "reason": "r", "free_bytes": free, "total_bytes": total}
    return {"kind": "cuda", "method": "device", "budget": told, "free_at_open": free}


# The second card has half the memory and takes half as long.
UNLIKE = {
    "cuda:0": {"ready": ready(8 * GIB), "step_s": 0.004},
    "cuda:1": {"ready": ready(4 * GIB), "step_s": 0.002},
}


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Collector]:
    def run(**options: Any) -> Collector:
        monkeypatch.setattr(inventory, "read", lambda *_, **__: FACTS)
        said = Collector()
        command(FindBatchSizeOptions(**{"target": "mlp", "device": "all", **options}), said)
        return said

    return run


def test_each_device_has_its_answer_and_the_least_is_the_commands(
    scenario: Scenario, find: Callable[..., Collector]
) -> None:
    scenario(static=GIB, per_sample=GIB // 64, devices=UNLIKE)
    said = find()
    every = to_json(said.results["find_batch_size_devices"])
    first, second = every["devices"]
    assert (first["device"]["id"], second["device"]["id"]) == ("cuda:0", "cuda:1")
    assert first["max_batch_size"] in range(440, 449)
    assert second["max_batch_size"] in range(189, 193)
    assert (every["least"], every["max_batch_size"]) == ("cuda:1", second["max_batch_size"])
    assert to_json(said.results["find_batch_size"]) == second
    titles = [finding.title for finding in said.findings]
    assert f"cuda:0: a batch of {first['max_batch_size']} fits" in titles
    assert titles[-1] == f"a batch of {second['max_batch_size']} fits every device"
    assert said.findings[-1].message == "least on cuda:1"
    assert said.findings[0].evidence["device"] == "cuda:0"
    assert {one.device.id for one in said.measurements} == {"cuda:0", "cuda:1"}


def test_a_device_on_which_nothing_fits_leaves_no_common_batch(
    scenario: Scenario, find: Callable[..., Collector]
) -> None:
    scenario(static=GIB, per_sample=GIB // 64, devices={**UNLIKE, "cuda:1": {"ready": ready(GIB // 2)}})
    said = find()
    assert said.results["find_batch_size"].max_batch_size is None
    assert [finding.verdict for finding in said.findings if finding.id == "batch_size.all_devices"] == ["fail"]
    assert said.findings[-1].title == "cuda:1 fits no batch at all"


def test_a_device_that_cannot_be_used_does_not_cost_the_others_their_answer(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"stage": "device", "chain": [{"classes": ["builtins.RuntimeError"], "message": "busy"}], "traceback": ""}
    scenario(static=GIB, per_sample=GIB // 64, devices={**UNLIKE, "cuda:0": {"setup": broken}})
    monkeypatch.setattr(inventory, "read", lambda *_, **__: FACTS)
    said = Collector()
    with pytest.raises(CannotLook, match="cuda:0 cannot be used; RuntimeError: busy"):
        command(FindBatchSizeOptions(target="mlp", device="all"), said)
    assert said.results["find_batch_size"].device.id == "cuda:1"
    # What fits every device is not known.
    assert "batch_size.all_devices" not in {finding.id for finding in said.findings}


def test_a_device_that_fails_does_not_cost_the_others_their_answer(
    scenario: Scenario, find: Callable[..., Collector]
) -> None:
    message = "CUDA error: uncorrectable ECC error encountered"
    raised = [{"classes": ["torch.AcceleratorError", "builtins.RuntimeError"], "message": message}]
    broken = {"stage": "build", "chain": raised, "traceback": ""}
    scenario(static=GIB, per_sample=GIB // 64, devices={**UNLIKE, "cuda:0": {"setup": broken}})
    said = find()
    assert said.results["find_batch_size"].device.id == "cuda:1"
    assert [fault.device for fault in said.faults] == ["cuda:0"]
    findings = said.report(version="0", command="", argv=(), started="", elapsed_s=0.0).findings
    assert [one.id for one in findings if one.verdict == "fail"] == ["device.error"]
    assert "batch_size.all_devices" not in {finding.id for finding in findings}


def test_an_interrupted_search_leaves_the_answers_before_it() -> None:
    def search(device: str, _: int, emit: Any) -> None:
        emit(Answered("find_batch_size", answer(device, 8, 1.0)))
        if device == "cuda:1":
            raise KeyboardInterrupt

    said = Collector()
    with pytest.raises(KeyboardInterrupt):
        each_device(("cuda:0", "cuda:1", "cuda:2"), search, said)
    assert [one.device.id for one in said.results["find_batch_size_devices"].devices] == ["cuda:0", "cuda:1"]


def test_a_trial_says_on_which_device() -> None:
    def search(device: str, _: int, emit: Any) -> None:
        emit(Trial(1, {"batch_size": 1}))

    recorder = Recorder()
    each_device(("cuda:0", "cuda:1"), search, recorder)
    trials = [event.result["device"] for event in recorder.events if isinstance(event, Trial)]
    assert trials == ["cuda:0", "cuda:1"]


def test_an_answer_that_is_open_on_one_device_is_open_for_all() -> None:
    closed, short = answer("cuda:0", 400, 100.0), answer("cuda:1", None, 50.0, at_least=100)
    assert least([closed, short]).device.id == "cuda:1"
    found = finding_of_all([closed, short])
    assert (found.verdict, found.title) == ("inconclusive", "at least a batch of 100 fits every device")
    assert found.message == "the search on cuda:1 did not end"
    assert found.evidence == {"cuda:0": 400, "cuda:1": 100}
    # As large as the other's, it may be larger: what holds for both is the closed one's no more than its own.
    assert least([answer("a", 100, 1.0), answer("b", None, 1.0, at_least=100)]).device.id == "b"
    # Another that is open and larger leaves the least as it is.
    wide = answer("cuda:0", None, 9.0, at_least=500)
    assert finding_of_all([wide, answer("cuda:1", 100, 1.0)]).verdict == "pass"


def answer(device: str, size: int | None, rate: float | None, **parts: Any) -> FoundBatchSize:
    told = {
        "device": {"id": device},
        "max_batch_size": size,
        "samples_per_s": rate,
        "trials": [],
        "method": {},
        **dict.fromkeys(("target", "mode", "budget_reason"), ""),
        **dict.fromkeys(("budget_bytes", "margin_bytes"), 0),
        **dict.fromkeys(("confirmed", "peak_bytes", "optimizer", "loss", "dtype")),
        **parts,
    }
    return from_json(FoundBatchSize, told)
