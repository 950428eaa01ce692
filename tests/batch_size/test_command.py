from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_recorder import Recorder
from shown import shown

from gpucheck import api
from gpucheck.batch_size.command import command, is_shared
from gpucheck.batch_size.options import DEFAULT_CAP, FindBatchSizeOptions
from gpucheck.errors import CannotLook, GpucheckError, TargetError, UsageError
from gpucheck.machine import inventory
from gpucheck.render import text
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Event, Failed, Notice, Trial
from gpucheck.report.facts import Device, Facts, Host, Process, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]
CPU = Device(kind="cpu", id="cpu", name="a CPU")
FACTS = Facts(host=Host(system="Linux"), devices=(CPU,))
RUNTIME = ["builtins.RuntimeError", "builtins.Exception"]
OUT_OF_MEMORY = {"chain": [{"classes": RUNTIME, "message": "CUDA out of memory."}], "traceback": "t"}


pytestmark = pytest.mark.usefixtures("cpu_machine")


def see(monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    monkeypatch.setattr(inventory, "read", lambda *_, **__: facts)


def find(**options: Any) -> Recorder:
    recorder = Recorder()
    command(FindBatchSizeOptions(**{"target": "mlp", "device": "cpu", **options}), recorder)
    return recorder


def answer(recorder: Recorder) -> dict[str, Any]:
    (event,) = [event for event in recorder.events if isinstance(event, Answered)]
    assert event.name == "find_batch_size"
    found: dict[str, Any] = to_json(event.value)
    return found


def findings(recorder: Recorder) -> list[Finding]:
    collector = Collector()
    for event in recorder.events:
        collector(event)
    return [*collector.report(version="0", command="", argv=(), started="", elapsed_s=0.0).findings]


def notices(recorder: Recorder) -> list[str]:
    return [event.text for event in recorder.events if isinstance(event, Notice)]


def test_from_start_to_answer(scenario: Scenario) -> None:
    log = scenario(static=100 * MIB, per_sample=MIB)
    recorder = find(memory_limit="1GiB")
    found = answer(recorder)
    assert found["max_batch_size"] in range(906, 925)  # 924 fill it; 2 % below is near enough
    assert found["confirmed"] is True
    # No failure is needed: a step more is predicted to exceed the budget.
    assert found["first_failing"] is None
    assert 924 < found["predicted_above"] <= 1.02 * found["max_batch_size"]
    assert found["limited_by"] == "over-budget"
    assert (found["budget_bytes"], found["budget_reason"]) == (GIB, "--memory-limit 1GiB")
    assert found["peak_bytes"] == (100 + found["max_batch_size"]) * MIB
    assert found["loss"] == "mean square of the output"
    trials = [event.result for event in recorder.events if isinstance(event, Trial)]
    assert trials == found["trials"]
    assert [trial["purpose"] for trial in trials[-2:]] == ["confirm", "recommended"]
    assert trials[-2]["fresh_process"]
    assert found["recommended"] == {
        "batch_size": 816,  # 821 take 90 % of the budget; a multiple of 8
        "headroom": 1 - 916 / 1024,
        "headroom_wanted": 0.1,
        "peak_bytes": 916 * MIB,
        "samples_per_s": 816_000.0,
        "reason": None,
    }
    assert [finding.verdict for finding in findings(recorder)] == ["pass"]
    assert findings(recorder)[0].title == f"a batch of {found['max_batch_size']} fits"
    assert log.read_text().count("start 1") == 2  # the search, and the confirmation


def test_memory_that_grows_from_step_to_step_is_told_and_undecided(scenario: Scenario) -> None:
    levels = [(100 + 61 * step) * MIB for step in range(8)]
    scenario(static=100 * MIB, per_sample=MIB, always={"levels_bytes": levels})
    recorder = find(memory_limit="2GiB", start=1000, quick=True)
    found = answer(recorder)
    assert found["confirmed"] and found["max_batch_size"] is not None
    grows = next(one for one in findings(recorder) if one.id == "batch_size.growth")
    left = max(0, (2 * GIB - found["peak_bytes"]) // (61 * MIB))
    title = "memory grew by 61 MiB in each of the last 5 steps"
    assert (grows.verdict, grows.title) == ("inconclusive", title)
    more = f"about {left} more steps of a batch of {found['max_batch_size']} fit"
    assert grows.message == f"the cause is a leak or a cache that fills; {more}"


def test_memory_is_split_and_an_effective_batch_divided(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    found = answer(find(memory_limit="1GiB", effective_batch=8000))
    split = found["memory_split"]
    assert (split["parameter_bytes"], split["gradient_bytes"], split["optimizer_bytes"]) == (1000, 1000, 2000)
    assert (split["activation_bytes_per_sample"], split["fixed_bytes"]) == (MIB, 100 * MIB - 4000)
    assert found["accumulation"] == {
        "effective_batch": 8000,
        "micro_batch": 800,
        "steps": 10,
        "smaller": 0,
        "limit": 816,
    }


def test_without_a_target_it_says_which(scenario: Scenario) -> None:
    scenario(per_sample=MIB)
    recorder = find(target=None, max_batch_size=2)
    assert "no TARGET given: using the built-in transformer" in notices(recorder)
    assert answer(recorder)["target"] == "transformer"


def test_several_devices_are_several_searches() -> None:
    fix = "search on each device: gpucheck find-batch-size mlp --device cuda:0"
    for search in (find, api.find_batch_size):
        with pytest.raises(UsageError, match="--device 'all': a search runs on one device") as caught:
            search(target="mlp", device="all")
        assert caught.value.fix == fix


def test_a_cap_is_no_answer(scenario: Scenario) -> None:
    scenario(per_sample=1)
    recorder = find(max_batch_size=100)
    found = answer(recorder)
    assert (found["max_batch_size"], found["at_least"], found["limited_by"]) == (None, 100, "max-batch-size")
    assert found["first_failing"] is None
    told = findings(recorder)[0]
    assert (told.title, told.message) == ("at least a batch of 100 fits", "stopped at --max-batch-size 100")
    assert told.verdict == "pass"  # the user wants no more


@pytest.mark.parametrize("asked", [None, DEFAULT_CAP])
def test_the_default_cap_leaves_the_answer_open(scenario: Scenario, asked: int | None) -> None:
    scenario(per_sample=1)
    recorder = find(memory_limit="1GiB", max_batch_size=asked)
    found, told = answer(recorder), findings(recorder)[0]
    assert (found["max_batch_size"], found["at_least"], found["confirmed"]) == (None, DEFAULT_CAP, True)
    assert told.title == f"at least a batch of {DEFAULT_CAP} fits"
    assert told.verdict == ("pass" if asked else "inconclusive")
    if asked is None:
        assert (found["limited_by"], told.fix) == ("default-cap", f"--max-batch-size {16 * DEFAULT_CAP}")
        assert told.message.startswith("stopped at --max-batch-size, 65536 by default")


def test_a_limit_above_what_is_there(scenario: Scenario) -> None:
    scenario(per_sample=MIB)
    recorder = find(memory_limit="64GiB", max_batch_size=1)
    assert "--memory-limit 64GiB exceeds available memory; using 8 GiB" in notices(recorder)


def test_not_even_the_smallest_fits(scenario: Scenario) -> None:
    scenario(static=2 * GIB, per_sample=MIB)
    recorder = find(memory_limit="1GiB")
    (finding,) = findings(recorder)
    assert (finding.id, finding.verdict) == ("batch_size.fits", "fail")
    assert finding.title == "not even a batch of 1 fits"
    assert finding.message == "needs 2 GiB, budget 1 GiB"
    assert answer(recorder)["max_batch_size"] is None


def test_the_model_cannot_be_built_within_the_budget(scenario: Scenario) -> None:
    raised = {"classes": RUNTIME, "message": "DefaultCPUAllocator: can't allocate memory: you tried"}
    scenario(setup={"stage": "build", "chain": [raised], "traceback": "t"})
    recorder = find(memory_limit="1GiB")
    (finding,) = findings(recorder)
    assert (finding.verdict, finding.title) == ("fail", "not even the model fits")
    assert finding.evidence["reason"] == "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.mark.slow
def test_out_of_time_before_any_batch(scenario: Scenario) -> None:
    scenario(**{"from": 1, "beyond": "hang"})
    recorder = find(time_budget_s=0.5)
    (finding,) = findings(recorder)
    assert (finding.verdict, finding.title) == ("inconclusive", "no batch passed before time ran out")
    assert answer(recorder)["limited_by"] == "time"


@pytest.mark.slow
def test_out_of_time_after_some(scenario: Scenario) -> None:
    scenario(static=MIB, per_sample=1, step_s=0.2)
    recorder = find(time_budget_s=3.0)
    found = answer(recorder)
    assert (found["limited_by"], found["max_batch_size"]) == ("time", None)
    # A time per sample at 8 says nothing: time hardly grows here, and the search finds that out.
    assert 8 < found["at_least"] < 65536
    assert found["predicted_batch_size"] == 65536
    assert found["recommended"]["batch_size"] is None
    (finding,) = findings(recorder)
    assert (finding.id, finding.verdict) == ("batch_size.fits", "inconclusive")
    assert finding.title == f"at least a batch of {found['at_least']} fits"
    assert finding.message.startswith("time ran out; ")
    assert finding.message.endswith("; about a batch of 65536 is predicted")
    assert finding.fix is not None and re.fullmatch(r"--time-budget \d+s", finding.fix)
    assert finding.evidence["at_least"] == found["at_least"]


def test_a_slow_first_step_says_nothing_of_later_ones(scenario: Scenario) -> None:
    scenario(static=MIB, per_sample=MIB, at={"8": {"ok": True, "steps_s": [30.0, 0.001]}})
    found = answer(find(memory_limit="1GiB", time_budget_s=20.0))
    assert (found["limited_by"], found["at_least"], found["confirmed"]) == ("over-budget", None, True)
    assert 1003 <= found["max_batch_size"] <= 1023


@pytest.mark.slow
def test_a_first_size_that_takes_too_long_is_followed_by_smaller_ones(scenario: Scenario) -> None:
    scenario(static=100, per_sample=100, **{"from": 100, "beyond": "hang"})
    recorder = find(start=1600, time_budget_s=4.0)
    found = answer(recorder)
    assert sizes(recorder)[:2] == [1600, 100]
    assert found["trials"][0]["outcome"] == found["trials"][1]["outcome"] == "out-of-time"
    assert found["trials"][0]["reason"].startswith("--time-budget ended it after ")
    # It bounds nothing: what the time ended is no failure of the size.
    assert (found["first_failing"], found["max_batch_size"]) == (None, None)
    assert found["at_least"] is None or found["at_least"] < 100


def test_a_program_that_kills_itself_decides_nothing(scenario: Scenario) -> None:
    scenario(static=100, per_sample=100, **{"from": 40, "beyond": "kill"})
    recorder = find()
    found = answer(recorder)
    assert (found["limited_by"], found["max_batch_size"]) == ("inconclusive", None)
    assert 1 <= found["at_least"] < 40
    killed = [trial for trial in found["trials"] if trial["outcome"] == "inconclusive"]
    assert len(killed) == 2 and killed[0]["batch_size"] == killed[1]["batch_size"]
    assert killed[1]["reason"] == "killed by SIGKILL, but not by the kernel's out-of-memory killer"
    disturbed = findings(recorder)[0]
    assert (disturbed.id, disturbed.verdict) == ("batch_size.undisturbed", "inconclusive")


@pytest.mark.slow
def test_a_failure_above_a_size_that_had_no_time_does_not_say_that_nothing_fits(scenario: Scenario) -> None:
    scenario(at={"1": "hang"}, **{"from": 2, "beyond": OUT_OF_MEMORY})
    recorder = find(start=16, time_budget_s=1.5)
    (finding,) = findings(recorder)
    assert (finding.verdict, finding.title) == ("inconclusive", "no batch passed before time ran out")


def test_an_error_of_the_first_size_is_the_targets(scenario: Scenario) -> None:
    raised = {"chain": [{"classes": ["builtins.ValueError"], "message": "wrong shape"}], "traceback": "t"}
    scenario(**{"from": 1, "beyond": raised})
    with pytest.raises(TargetError) as caught:
        find()
    assert caught.value.what == "mlp fails with a batch of 8"


def test_batches_of_one_size_that_differ_are_told(scenario: Scenario) -> None:
    scenario(per_sample=1, at={"8": {"ok": True, "batch_elements": [64, 128]}})
    recorder = find(max_batch_size=8, quick=True)
    (warning,) = [finding for finding in findings(recorder) if finding.id == "batch_size.unlike_batches"]
    assert (warning.verdict, warning.title) == ("warn", "batches of one size differ")
    assert warning.evidence == {"batch_size": 8, "least_elements": 64, "most_elements": 128}


def test_quick_leaves_out_what_follows(scenario: Scenario) -> None:
    scenario(static=100, per_sample=100, **{"from": 30, "beyond": OUT_OF_MEMORY})
    found = answer(find(quick=True))
    assert (found["max_batch_size"], found["recommended"]["reason"]) == (29, "skipped by --quick")


def test_a_trial_that_hangs_bounds_the_search(scenario: Scenario) -> None:
    scenario(per_sample=1, **{"from": 5, "beyond": "hang"})
    recorder = find(trial_timeout_s=0.2, time_budget_s=30.0)
    found = answer(recorder)
    assert (found["max_batch_size"], found["limited_by"]) == (4, "timeout")
    assert "no answer within 200 ms" in [trial["reason"] for trial in found["trials"]]


def test_out_of_memory_bounds_the_search(scenario: Scenario) -> None:
    scenario(static=100, per_sample=100, **{"from": 30, "beyond": OUT_OF_MEMORY})
    found = answer(find())
    assert (found["max_batch_size"], found["first_failing"], found["limited_by"]) == (29, 30, "out-of-memory")


def test_what_is_suspected_counts_once_a_smaller_batch_passed(scenario: Scenario) -> None:
    suspected = {"chain": [{"classes": RUNTIME, "message": "could not create a primitive"}], "traceback": "t"}
    scenario(static=100, per_sample=100, **{"from": 30, "beyond": suspected})
    found = answer(find())
    assert (found["max_batch_size"], found["limited_by"]) == (29, "suspected")


@pytest.mark.parametrize(
    "message", ["could not create a primitive", "Storage size calculation overflowed with sizes=[1]"]
)
def test_at_the_smallest_size_it_is_the_targets_error(scenario: Scenario, message: str) -> None:
    raised = {"chain": [{"classes": RUNTIME, "message": message}], "traceback": "all of it"}
    scenario(**{"from": 1, "beyond": raised})
    with pytest.raises(TargetError) as caught:
        find()
    assert caught.value.what == "mlp fails with a batch of 1"
    assert caught.value.why == f"RuntimeError: {message}"
    assert caught.value.trace == "all of it"


def test_the_users_error_at_a_larger_size_is_no_answer(scenario: Scenario) -> None:
    raised = {"chain": [{"classes": ["builtins.ValueError"], "message": "at most 10"}], "traceback": "all of it"}
    scenario(per_sample=1, **{"from": 11, "beyond": raised})
    with pytest.raises(TargetError) as caught:
        find()
    assert "after a batch of" in caught.value.what
    assert caught.value.why == "ValueError: at most 10"
    assert caught.value.fix == "stay below that with --max-batch-size N, or run with --debug to see the traceback"
    assert caught.value.exit_code == 2


def test_a_broken_device_ends_the_search_and_keeps_what_passed(scenario: Scenario) -> None:
    broken = {"chain": [{"classes": RUNTIME, "message": "CUDA error: an illegal memory access"}], "traceback": "t"}
    scenario(per_sample=1, **{"from": 11, "beyond": broken})
    recorder = find()
    assert next((f.id, f.verdict) for f in findings(recorder)) == ("batch_size.device", "fail")
    assert answer(recorder)["limited_by"] == "device-broken"
    assert answer(recorder)["max_batch_size"] is None
    assert answer(recorder)["at_least"] >= 1
    assert findings(recorder)[-1].fix is None
    # On the screen too the device comes first, with what to do of it, and no other advice.
    collector = Collector()
    for event in recorder.events:
        collector(event)
    made = collector.report(version="0", command="find-batch-size", argv=(), started="", elapsed_s=0.0)
    first, _, fix, fits, incomplete, *_ = shown(text.blocks(made), 200)
    assert first.startswith("✗ a batch of ") and "broke the device: RuntimeError: CUDA error: an illegal" in first
    assert (fix, incomplete) == (f"→ {findings(recorder)[0].fix}", "! not complete: cpu failed")
    assert fits.startswith("? at least ") and "a larger size broke the device" in fits


def test_a_device_that_the_smallest_size_broke_is_not_to_be_broken_again(scenario: Scenario) -> None:
    broken = {"chain": [{"classes": RUNTIME, "message": "CUDA error: an illegal memory access"}], "traceback": "t"}
    scenario(per_sample=1, at={"8": broken})
    device, fits = findings(find())
    assert (device.title, device.verdict) == ("a batch of 8 broke the device", "fail")
    assert (fits.title, fits.message, fits.fix) == ("no batch gave a result", "", None)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", "the trial process ended before the first trial; killed by SIGKILL, but not by the kernel's"),
        ("exit", "the trial process ended before the first trial; exit status 1"),
    ],
)
def test_what_passed_is_an_answer_where_no_further_process_starts(scenario: Scenario, how: str, said: str) -> None:
    scenario(per_sample=MIB, setup=how, setup_from=2)
    recorder = find(max_batch_size=4)
    found = answer(recorder)
    assert (found["at_least"], found["confirmed"]) == (4, False)
    (warning,) = [finding for finding in findings(recorder) if finding.id == "batch_size.confirmed"]
    assert warning.message.startswith(f"no process could be started to run it again: {said}")
    assert warning.fix == "run the same command again"


# Accelerators

H = Device(kind="cuda", id="cuda:0", name="a GPU", memory_free_bytes=10 * GIB, processes=())
GPU_FACTS = Facts(host=Host(system="Linux"), torch=TorchBuild(version="2.13.0", built_for="cuda"), devices=(H, CPU))
READY = {
    "kind": "cuda",
    "method": "device",
    "budget": {"bytes": 8 * GIB, "margin_bytes": GIB, "reason": "r"},
    "free_at_open": 9 * GIB,
}


DEVICE_ERRORS = (
    "CUDA error: uncorrectable ECC error encountered",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "shape '[3]' is invalid for input of size 4",
)


def device_error(recorder: Recorder) -> Finding:
    (one,) = [one for one in findings(recorder) if one.id == "device.error"]
    assert one.verdict == "fail"
    assert len([event for event in recorder.events if isinstance(event, Failed)]) == 1
    return one


@pytest.mark.parametrize("message", DEVICE_ERRORS)
def test_a_model_of_ours_that_fails_on_a_device_is_the_devices_failure(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    see(monkeypatch, GPU_FACTS)
    raised = {"chain": [{"classes": RUNTIME, "message": message}], "traceback": "all of it"}
    scenario(setup={"stage": "build", **raised})
    finding = device_error(find(device="cuda"))
    assert message in finding.evidence["text"]
    assert finding.evidence["device"] == "cuda:0"


@pytest.mark.parametrize("message", DEVICE_ERRORS[1:])
def test_so_is_one_that_fails_with_the_smallest_batch(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    see(monkeypatch, GPU_FACTS)
    raised = {"chain": [{"classes": RUNTIME, "message": message}], "traceback": "all of it"}
    scenario(ready=READY, at={"1": raised}, static=1)
    assert message in device_error(find(device="cuda", max_batch_size=1)).evidence["text"]


def test_what_a_user_asks_of_a_model_of_ours_is_the_users_error(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(monkeypatch, GPU_FACTS)
    raised = {"chain": [{"classes": RUNTIME, "message": "mat1 and mat2 shapes cannot be multiplied"}]}
    scenario(setup={"stage": "build", "traceback": "t", **raised})
    for asked in ({"inputs": ("x:3:float32",)}, {"dtype": "float16"}, {"amp": "bfloat16"}):
        with pytest.raises(TargetError):
            find(device="cuda", **asked)


def test_a_trial_that_broke_the_device_is_a_fault(scenario: Scenario) -> None:
    broken = {"chain": [{"classes": RUNTIME, "message": "CUDA error: an illegal memory access"}], "traceback": "t"}
    scenario(per_sample=1, **{"from": 11, "beyond": broken})
    (fault,) = [event.fault for event in find().events if isinstance(event, Failed)]
    assert (fault.kind, fault.cause, fault.where) == ("device", "cuda.illegal_access", "find-batch-size")


def test_the_trials_before_the_users_error_are_told(scenario: Scenario) -> None:
    raised = {"chain": [{"classes": ["builtins.ValueError"], "message": "at most 10"}], "traceback": "all of it"}
    scenario(per_sample=1, **{"from": 11, "beyond": raised})
    recorder = Recorder()
    with pytest.raises(TargetError):
        command(FindBatchSizeOptions(target="mlp", device="cpu"), recorder)
    trials = [event.result for event in recorder.events if isinstance(event, Trial)]
    assert answer(recorder)["trials"] == trials


def test_on_a_device_the_child_knows_the_budget(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, GPU_FACTS)
    log = scenario(static=GIB, per_sample=GIB // 64, ready=READY)
    recorder = find(device="cuda")
    found = answer(recorder)
    assert 440 <= found["max_batch_size"] <= 448
    assert (found["budget_bytes"], found["margin_bytes"]) == (8 * GIB, GIB)
    # Of 7.2 GiB, 1 is static, so 396 fit.
    assert (found["recommended"]["batch_size"], found["trials"][-1]["purpose"]) == (392, "recommended")
    assert "budget: 8 GiB (r), 1 GiB margin excluded" in notices(recorder)
    assert "start 1" not in log.read_text()


def test_another_process_on_the_card_is_told(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Device(kind="cuda", id="cuda:0", name="a GPU", processes=(Process(1, "compute"),))
    see(monkeypatch, Facts(host=FACTS.host, torch=GPU_FACTS.torch, devices=(busy, CPU)))
    scenario(static=GIB, per_sample=GIB, ready=READY)
    assert notices(find(device="cuda"))[0] == "another process uses this device: margin doubled"


def test_who_is_on_a_card() -> None:
    assert not is_shared(H)
    assert is_shared(Device(kind="cuda", processes=(Process(1, "compute"),)))
    assert is_shared(Device(kind="cuda", memory_used_bytes=GIB))
    assert not is_shared(Device(kind="cuda", memory_used_bytes=100 * MIB))
    assert not is_shared(Device(kind="cuda", memory_used_bytes=GIB, integrated=True))
    assert not is_shared(Device(kind="cuda"))


@pytest.mark.parametrize(
    ("machine_facts", "ready"),
    [
        (Host(system="Linux", wsl=True), READY),
        (Host(system="Windows"), READY),
        (Host(system="Linux"), {**READY, "integrated": True}),
    ],
)
def test_where_failing_is_dangerous_it_stays_below(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, machine_facts: Host, ready: dict[str, Any]
) -> None:
    see(monkeypatch, Facts(host=machine_facts, torch=GPU_FACTS.torch, devices=GPU_FACTS.devices))
    scenario(static=GIB, per_sample=GIB // 64, ready=ready)
    recorder = find(device="cuda")
    found = answer(recorder)
    assert found["limited_by"] == "safety"
    assert found["first_failing"] is None
    assert 0.8 * 8 * GIB < found["peak_bytes"] <= 0.85 * 8 * GIB
    assert "running out of memory is dangerous here; staying below 85 % of the budget" in notices(recorder)


def test_along_an_axis(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    recorder = find(memory_limit="1GiB", inputs=("ids:seq:int64:0..9",), axis="seq:64..4096", batch_size=8)
    found = answer(recorder)
    assert found["axis"] == {"name": "seq", "batch_size": 8}
    assert found["trials"][0]["batch_size"] == 64
    assert found["max_batch_size"] in range(906, 925)
    assert found["method"]["recipe"]["axis"] == "seq"
    fits = findings(recorder)[0]
    assert fits.title == f"seq {found['max_batch_size']} fits"


def test_a_length_that_the_model_cannot_take(scenario: Scenario) -> None:
    error = {"what": "too long", "why": "", "fix": "", "finding": "target", "kind": "TargetError", "trace": "t"}
    scenario(static=MIB, per_sample=1, **{"from": 100}, beyond={"error": error})
    with pytest.raises(TargetError) as caught:
        find(memory_limit="1GiB", inputs=("ids:seq:int64:0..9",), axis="seq:64..128")
    assert caught.value.what.startswith("mlp fails with seq 1")
    assert caught.value.what.endswith(", after seq 64 passed")
    assert caught.value.fix.startswith("give the valid lengths with --axis seq:LOW..HIGH")


# Slips


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "trian"}, "--mode 'trian' is unknown; did you mean train?"),
        ({"optimizer": "my lion"}, "--optimizer 'my lion' is not a name; use sgd, adam, adamw or another"),
        ({"amp": "bf16"}, "--amp 'bf16' is unknown; did you mean bfloat16?"),
        ({"amp": "int8"}, "--amp 'int8' is unknown; give bfloat16, float16"),
        (
            {"amp": "float16", "dtype": "float16"},
            "--amp float16 and --dtype float16 exclude each other; autocast",
        ),
        ({"axis": "seq:9"}, "--axis 'seq:9' is not understood; write it like NAME[:LOW..HIGH]"),
        ({"axis": "seq", "effective_batch": 8}, "--effective-batch and --axis exclude each other"),
        ({"axis": "seq", "batch_size": 0}, "--batch-size must be an integer from 1 to 2147483647, not '0'"),
        ({"batch_size": 8}, "--batch-size needs --axis; without an axis the batch size is"),
        ({"inputs": ("ids:seq:int64",)}, "--input ids names a dimension 'seq'; no axis is given; add --axis seq, or"),
        ({"inputs": ("i:a:int64",), "axis": "b"}, "--input i names a dimension 'a'; the axis is b; give its length"),
        ({"axis": "seq:1..9", "start": 10}, "--start must be from 1 to 9, the greatest length of seq, not 10"),
        ({"dtype": "float8"}, "--dtype 'float8' is unknown; did you mean float"),
        ({"dtype": "int64"}, "--dtype 'int64' is unknown"),
        ({"max_batch_size": 0}, "--max-batch-size must be an integer from 1 to 2147483647, not '0'"),
        ({"max_batch_size": -5}, "--max-batch-size must be an integer from 1 to 2147483647, not '-5'"),
        ({"max_batch_size": 10**12}, "--max-batch-size must be an integer from 1 to 2147483647, not '1000000000000'"),
        ({"effective_batch": 0}, "--effective-batch must be an integer from 1 to 2147483647, not '0'"),
        ({"headroom": 1.0}, "--headroom must be a percentage, 0% to below 100%, not '100%'"),
        ({"time_budget_s": 0.0}, "--time-budget must be a time above 0s, up to 8784h, not '0.0'"),
        ({"time_budget_s": float("nan")}, "--time-budget must be a time above 0s, up to 8784h, not 'nan'"),
        ({"trial_timeout_s": -1.0}, "--trial-timeout must be a time above 0s, up to 8784h, not '-1.0'"),
        ({"memory_limit": "plenty"}, "--memory-limit must be a size, a percentage or leave:SIZE, not 'plenty'"),
        ({"inputs": ("x",)}, "--input 'x' is not understood"),
        ({"target": "no/such.py:make"}, "the target's file no/such.py does not exist"),
        ({"device": "tpu"}, "--device 'tpu' is not a device"),
    ],
)
def test_slips_cost_no_time(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        api.find_batch_size(**{"target": "mlp", "device": "cpu", **options})
    assert str(caught.value).startswith(text)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(CannotLook) as caught:
        find(device="cuda")
    assert isinstance(caught.value, GpucheckError)
    assert caught.value.exit_code == 3


def test_ctrl_c_leaves_the_answer_so_far(scenario: Scenario) -> None:
    scenario(per_sample=1)
    recorder = Recorder()

    def emit(event: Event) -> None:
        recorder(event)
        if isinstance(event, Trial) and event.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command(FindBatchSizeOptions(target="mlp", device="cpu"), emit)
    found = answer(recorder)
    assert (found["limited_by"], found["confirmed"]) == ("interrupted", False)
    assert (found["max_batch_size"], found["at_least"]) == (None, 256)  # both trials count
    assert [trial["batch_size"] for trial in found["trials"]] == [8, 256]


def test_the_parent_needs_no_torch() -> None:
    code = "import sys, gpucheck.batch_size.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# How the search goes


def sizes(recorder: Recorder) -> list[int]:
    return [event.result["batch_size"] for event in recorder.events if isinstance(event, Trial)]


def test_avoiding_to_run_out_stays_below(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    recorder = find(memory_limit="1GiB", avoid_oom=True)
    found = answer(recorder)
    assert "--avoid-oom: staying below 85 % of the budget" in notices(recorder)
    assert (found["first_failing"], found["limited_by"]) == (None, "safety")
    assert 0.8 * 1024 <= found["peak_bytes"] / MIB <= 0.86 * 1024
    assert found["method"]["seek_failure"] is False
    assert findings(recorder)[0].message == (
        "larger sizes are predicted to exceed 85 % of the budget, the limit of --avoid-oom"
    )


@pytest.mark.parametrize(
    ("search", "what"),
    [
        ({"exact": True, "tolerance": 0.02}, "--exact and --tolerance exclude each other"),
        ({"exact": True, "avoid_oom": True}, "--exact and --avoid-oom exclude each other"),
        ({"tolerance": 0.0}, "--tolerance must be a percentage, above 0%, up to 50%, not '0%'"),
        ({"tolerance": 0.6}, "--tolerance must be a percentage, above 0%, up to 50%, not '60%'"),
        ({"multiple_of": 0}, "--multiple-of must be an integer from 1 to 2147483647, not '0'"),
        ({"multiple_of": 128}, "--multiple-of 128 has no multiple from 1 to --max-batch-size 100"),
        ({"start": 0}, "--start must be an integer from 1 to 2147483647, not '0'"),
        ({"start": 101}, "--start must be from 1 to --max-batch-size 100, not 101"),
    ],
)
def test_a_search_that_cannot_be_asked_for(search: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        api.find_batch_size("mlp", device="cpu", max_batch_size=100, **search)
    assert caught.value.what == what
