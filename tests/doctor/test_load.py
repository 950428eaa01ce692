"""What a card does under a short load: judged by evidence made by hand, and from a child's load to the findings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import CARDS, GIB, HEALTHY, busy, card, seen_by, with_cards, with_torch, without_gpu
from whole import TWO_GPUS, diagnosed, interpreter, root, told, torch_of, worst

from gpucheck.doctor import command, conditions_gpus
from gpucheck.doctor.condition import Evidence, Signs
from gpucheck.doctor.options import DoctorOptions
from gpucheck.errors import UsageError
from gpucheck.machine import stack
from gpucheck.machine.stack import TorchProbe
from gpucheck.report.facts import Changes, ClockReasons, Device, Link, Mig, Process
from gpucheck.report.results.short import GpuUnderLoad, LoadOutcome, LoadResult

__all__ = ["root"]
Fake = Callable[..., Path]

CONDITIONS = {row.id: row for row in conditions_gpus.LOAD}
LINK = {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16}
NOT_SUPPORTED = "not supported by this device or driver"


def under_load(device: str, read: dict[str, Any] | None = None, reason: str | None = None, **held: Any) -> GpuUnderLoad:
    return GpuUnderLoad(device, read, reason, held.get("held_by", {}))


def load_of(outcome: LoadOutcome, reason: str | None = None, **more: Any) -> LoadResult:
    return LoadResult(outcome, reason, more.get("cards", ()), more.get("left_out", {}))


def telemetry(**changes: Any) -> dict[str, Any]:
    """What twenty readings of a healthy card come to."""
    return {
        "readings": 20,
        "sm_clock_hz": {"median": 1.98e9, "min": 1.9e9, "max": 1.98e9},
        "max_sm_clock_hz": 1.98e9,
        "temperature_celsius": 45.0,
        "clock_reasons": [],
        "violations_s": None,
        "violations_span_s": None,
        "pcie": dict(LINK),
        "c2c_bytes_per_s": None,
        "unknown": {"power_w": "the row is shorter than the 2 s over which energy is counted"},
        **changes,
    }


def clock(median_hz: float) -> dict[str, float]:
    return {"median": median_hz, "min": median_hz, "max": median_hz}


def loaded(
    changes: dict[str, Any] | None = None, held_by: dict[str, int] | None = None, evidence: Evidence = HEALTHY
) -> Evidence:
    """The machine where cuda:1 was read so under load."""
    cards = (
        under_load("cuda:0", telemetry()),
        under_load("cuda:1", telemetry(**changes or {}), held_by=held_by or {}),
    )
    return replace(evidence, load=load_of("ran", cards=cards))


def judged(condition: str, evidence: Evidence) -> Signs | None:
    return seen_by(CONDITIONS[condition], evidence)


def said(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Every condition of this file that holds: id, verdict, message."""
    found = [(value, seen) for value in CONDITIONS.values() if (seen := seen_by(value, evidence)) is not None]
    return [(row.id, seen.verdict or row.verdict, seen.message) for row, seen in found]


@pytest.mark.parametrize("evidence", [HEALTHY, Evidence(), without_gpu(), loaded(), loaded(held_by={"gpu_idle": 1})])
def test_nothing_is_said_of_a_healthy_card_nor_where_nothing_is_known(evidence: Evidence) -> None:
    assert said(evidence) == []


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held_by", "found"),
    [
        ({"hw_slowdown": 1}, None),
        ({"hw_slowdown": 2}, ("load.throttled", "warn")),
        ({"hw_thermal_slowdown": 9}, ("load.throttled", "warn")),
        ({"hw_power_brake_slowdown": 10}, ("load.throttled", "fail")),
        ({"sw_thermal_slowdown": 20}, ("load.throttled", "warn")),
        ({"applications_clocks_setting": 20}, None),
    ],
)
def test_what_holds_the_clock(held_by: dict[str, int], found: tuple[str, str] | None) -> None:
    clocks = {} if found is None else {"sm_clock_hz": clock(1.485e9)}
    words = "cuda:1: clock 1485 of 1980 MHz (25 % lower); 45 °C"
    assert said(loaded(clocks, held_by)) == ([] if found is None else [(*found, words)])


def test_what_lasts_does_so_in_a_short_load() -> None:
    short = {"violations_s": {"thermal": 0.0}, "violations_span_s": 0.1}
    ((name, verdict, _),) = said(loaded(short, {"hw_slowdown": 20}))
    assert (name, verdict) == ("load.throttled", "fail")


def test_what_was_read_at_rest_does_not_count_under_load() -> None:
    resting = card(
        1,
        utilization_percent=0.0,
        temperature_celsius=99.0,
        memory_temperature_celsius=110.0,
        memory_max_celsius=95.0,
        sm_clock_hz=210e6,
        memory_clock_hz=405e6,
        max_memory_clock_hz=2.6e9,
        power_w=900.0,
        power_limit_w=700.0,
        violations_s={"thermal": 500.0},
        pcie=Link(1, 4, 5, 16),
        clock_reasons=ClockReasons(0, ("hw_slowdown",)),
        changes=Changes(2.0, {"thermal": 1.0}, lasting_clock_reasons=("hw_slowdown",)),
    )
    assert said(loaded(evidence=with_cards(card(0), resting))) == []


def test_a_setting_is_told_where_the_clock_is_lower() -> None:
    held_by = {"applications_clocks_setting": 20}
    words = "cuda:1: application clocks; clock 1200 of 1980 MHz (39 % lower)"
    assert said(loaded({"sm_clock_hz": clock(1.2e9)}, held_by)) == [("load.clock_setting", "warn", words)]


# --- the link ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "found"),
    [
        (
            {"width": 8},
            ("load.link_width", "warn", "cuda:1: a GPU of the same name has x16"),
        ),
        (
            {"generation": 4},
            ("load.link_generation", "warn", "cuda:1: a GPU of the same name has gen 5"),
        ),
        ({"width": None}, None),
        ({"max_width": None}, None),
        ({"generation": None, "max_generation": None}, None),
    ],
)
def test_the_link_is_judged_beside_what_both_ends_can(link: dict[str, Any], found: tuple[str, str, str] | None) -> None:
    assert said(loaded({"pcie": {**LINK, **link}})) == ([] if found is None else [found])


def test_a_link_that_carries_little_is_not_judged() -> None:
    narrow = {"pcie": {**LINK, "width": 1}}
    assert said(loaded({**narrow, "c2c_bytes_per_s": 450e9})) == []
    assert said(loaded(narrow, evidence=with_cards(card(0), card(1, integrated=True)))) == []
    # Where NVML does not tell of NVLink-C2C, the name does.
    assert said(loaded(narrow, evidence=with_cards(card(0), card(1, name="NVIDIA GH200 480GB")))) == []


# --- heat -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("celsius", "verdict"), [(92.0, None), (93.0, "warn")])
def test_heat_beside_the_temperature_of_the_slowdown(celsius: float, verdict: str | None) -> None:
    evidence = with_cards(card(0), card(1, slowdown_celsius=93.0))
    found = said(loaded({"temperature_celsius": celsius}, evidence=evidence))
    assert found == ([] if verdict is None else [("load.hot", verdict, "cuda:1: the hardware lowers the clock")])


def test_heat_is_not_judged_where_either_is_unknown() -> None:
    assert said(loaded({"temperature_celsius": 99.0})) == []
    evidence = with_cards(card(0), card(1, slowdown_celsius=93.0))
    assert said(loaded({"temperature_celsius": None}, evidence=evidence)) == []


# --- what was not seen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason", "is_unread"),
    [
        ("clock_reasons", "NVML returns: unknown error", True),
        ("pcie/width", "no permission", True),
        ("pcie/max_width", "NVML's answer makes no sense: '99'", True),
        ("pcie/width", NOT_SUPPORTED, False),
        ("energy_j", "NVML returns: unknown error", False),
    ],
)
def test_what_nvml_did_not_tell_under_load_is_not_healthy(name: str, reason: str, is_unread: bool) -> None:
    expected = [("load.unread", "inconclusive", f"cuda:1: {name} ({reason})")] if is_unread else []
    assert said(loaded({"unknown": {name: reason}})) == expected


def test_a_card_without_readings_is_not_healthy() -> None:
    evidence = replace(HEALTHY, load=load_of("ran", cards=(under_load("cuda:0", reason="NVML does not answer"),)))
    assert ("load.unread", "inconclusive", "cuda:0: NVML does not answer") in said(evidence)


def test_a_load_that_failed_and_one_that_was_not_run() -> None:
    failed = replace(HEALTHY, load=load_of("failed", "RuntimeError: CUDA error (under load)"))
    assert said(failed) == [("load.failed", "fail", "RuntimeError: CUDA error (under load)")]
    left_out = {"cuda:0": "in use by others: x (7)", "cuda:1": "lost"}
    well = with_cards(card(0), card(1, state="lost"))
    idle = replace(well, load=load_of("none", "no GPU is free for the load", left_out=left_out))
    words = "cuda:0: in use by others: x (7); cuda:1: lost"
    assert said(idle) == [("load.not_run", "skip", words)]
    full = replace(HEALTHY, load=load_of("none", "OutOfMemoryError: CUDA out of memory (as it began)"))
    ((name, verdict, words),) = said(full)
    assert (name, verdict) == ("load.not_run", "skip")
    assert words == "cuda:0, cuda:1: OutOfMemoryError: CUDA out of memory (as it began)"


MIG_CARD = card(0, mig=Mig(True, True))
COMPUTING = Process(7, "compute", "python")


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (card(0), ""),
        (card(0, processes=(Process(7, "graphics", "Xorg"),)), ""),
        (card(0, processes=(COMPUTING,)), "in use by others: python (7)"),
        (card(0, processes=(replace(COMPUTING, name=None),)), "in use by others: not visible here (7)"),
        (card(0, processes=None, memory_used_bytes=20 * GIB), "in use by others, which hold 20 GiB of its memory"),
        (card(0, parent_uuid="GPU-0"), "NVML reports neither clock nor link of a MIG instance"),
        (MIG_CARD, "NVML reports neither clock nor link of a MIG instance"),
        (card(0, nvml_index=None), "NVML does not report on this GPU, so the load would show nothing"),
        (card(0, state="lost"), "lost"),
    ],
)
def test_which_cards_are_left_alone(device: Device, why: str) -> None:
    assert command.why_not(device) == why


# --- what the child said ----------------------------------------------------------------------------------------------


def sample(at_s: float, *names: str) -> dict[str, Any]:
    reasons = {"bits": 0, "names": list(names)}
    return {"at_s": at_s, "sm_clock_hz": 1.98e9, "clock_reasons": reasons, "pcie": dict(LINK), "unknown": {}}


def test_only_readings_under_load_count() -> None:
    samples = [sample(9.0, "gpu_idle"), sample(10.1, "sw_power_cap"), sample(10.5), sample(11.2, "gpu_idle")]
    said = {"stage": "end", "began_s": 10.0, "took_s": 1.0}
    seen = command.load_result(
        said, "", {"cuda:0": samples, "cuda:1": []}, {"cuda:1": "NVML is silent"}, {"cuda:2": "lost"}
    )
    assert (seen.outcome, seen.left_out) == ("ran", {"cuda:2": "lost"})
    first, second = seen.cards
    assert first.telemetry is not None and first.telemetry["readings"] == 2
    assert first.held_by == {"sw_power_cap": 1}
    assert (second.telemetry, second.reason) == (None, "NVML is silent")


@pytest.mark.parametrize(
    ("stage", "failed", "outcome", "reason"),
    [
        ("load", "SIGSEGV", "failed", "SIGSEGV (under load)"),
        ("prepare", "RuntimeError: CUDA error: x", "failed", "RuntimeError: CUDA error: x (as it began)"),
        # Where the card was not reached, or not ours to use, nothing is said of it.
        ("import", "ImportError: x", "none", "ImportError: x (while torch was imported)"),
        (None, "exit status 3", "none", "exit status 3 (as it was started)"),
        ("prepare", "OutOfMemoryError: x", "none", "OutOfMemoryError: x (as it began)"),
        ("prepare", "x: CUBLAS_STATUS_ALLOC_FAILED", "none", "x: CUBLAS_STATUS_ALLOC_FAILED (as it began)"),
        (
            "prepare",
            "device(s) is/are busy or unavailable",
            "none",
            "device(s) is/are busy or unavailable (as it began)",
        ),
    ],
)
def test_how_it_ended_early(stage: str | None, failed: str, outcome: str, reason: str) -> None:
    seen = command.load_result({} if stage is None else {"stage": stage}, failed, {}, {}, {})
    assert (seen.outcome, seen.reason) == (outcome, reason)


def test_the_program_is_for_any_python() -> None:
    """An interpreter without torch says where it stopped; what it prints is JSON alone."""
    text = stack.TORCH_PROGRAM.read_text(encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text, "0", "0", "cuda:0"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == '{"stage": "import", "gpucheck": 1}'
    assert "ModuleNotFoundError" in ended.stdout


# --- from the driver to the findings ----------------------------------------------------------------------------------


def test_a_load_is_in_the_document(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver("slowdown=93\nfabric=3\nnvlinks=2\n" + TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path))))
    assert worst(report) == []
    ran = report.results["doctor"].load
    assert ran is not None
    assert (ran.outcome, ran.left_out) == ("ran", {})
    assert [entry.device for entry in ran.cards] == ["cuda:0", "cuda:1"]
    assert all(entry.telemetry is not None and entry.telemetry["readings"] >= 1 for entry in ran.cards)
    assert (ran.cards[0].telemetry or {})["pcie"]["width"] == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("1.pcie.width=8\n", [("load.link_width", "warn")]),
        ("1.sm_clock=345\n", [("load.low_clock", "warn")]),
        ("1.pcie.width=!999\n", [("load.unread", "inconclusive")]),
        ("1.temperature=93\n1.slowdown=90\n", [("devices.hot", "warn"), ("load.hot", "warn")]),
        ("1.clock_reasons=0x80\n", [("devices.throttled", "warn"), ("load.throttled", "fail")]),
        ("1.clock_reasons=0x4\n", []),
        ("1.remap.pending=!999\n1.ecc=!999\nnvlinks=!999\n", [("devices.unread", "inconclusive")]),
    ],
)
def test_a_fault_under_load_or_of_a_link(
    fake_driver: Fake, tmp_path: Path, script: str, found: list[tuple[str, str]]
) -> None:
    fake_driver(script + TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path))))
    assert worst(report) == found
    assert ("doctor.healthy", "pass") in told(report)


def test_a_card_that_others_use_is_left_alone(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver("0.processes=77:5\n" + TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path))))
    ran = report.results["doctor"].load
    assert ran is not None
    assert [entry.device for entry in ran.cards] == ["cuda:1"]
    assert list(ran.left_out) == ["cuda:0"] and ran.left_out["cuda:0"].startswith("in use by others: ")
    assert ("load.not_run", "skip") in told(report) and worst(report) == []


@pytest.mark.slow
def test_a_load_that_fails_or_hangs(fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(TWO_GPUS)
    broken = interpreter(tmp_path, torch_of(tmp_path, load="raise RuntimeError('CUDA error: device-side')"))
    report = diagnosed(DoctorOptions(python=broken))
    (failed,) = [finding for finding in report.findings if finding.id == "load.failed"]
    assert failed.message == "RuntimeError: CUDA error: device-side (as it began)"
    monkeypatch.setattr(command, "LOAD_TIMEOUT_S", 1.0)
    (tmp_path / "hangs").mkdir()
    hangs = interpreter(tmp_path / "hangs", torch_of(tmp_path / "hangs", load="__import__('time').sleep(600)"))
    report = diagnosed(DoctorOptions(python=hangs, time_budget_s=4.0))
    assert worst(report) == [("load.failed", "fail")]
    # A torch that was given longer to be imported is given as long again.
    ran = report.results["doctor"].load
    assert ran is not None and (ran.reason or "").startswith("the load did not finish within 4 s")


def test_no_load_is_run_that_nobody_asked_for(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    left_out = diagnosed(
        DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, load="raise SystemExit")), skip=("load",))
    )
    assert left_out.results["doctor"].load is None and worst(left_out) == []


def test_a_machine_whose_torch_ran_nothing_says_that_no_load_was_run() -> None:
    found = said(with_torch(with_cards(busy(0), card(1)), kernels=()))
    why = "torch did not run on a GPU, so no GPU was loaded"
    words = f"cuda:0, cuda:1: {why}"
    assert found == [("load.not_run", "skip", words)]


def test_cards_that_torch_does_not_see_were_not_loaded_either() -> None:
    hidden = card(1, id=None, cuda_index=None, state="hidden by CUDA_VISIBLE_DEVICES=0", utilization_percent=0.0)
    parts = (under_load("cuda:0", telemetry()),)
    evidence = replace(with_cards(card(0), hidden), load=load_of("ran", cards=parts))
    words = "NVML 1: hidden by CUDA_VISIBLE_DEVICES=0"
    assert said(evidence) == [("load.not_run", "skip", words)]


def test_nothing_is_loaded_where_torch_does_not_work() -> None:
    assert not command.can_load(without_gpu())
    assert not command.can_load(replace(HEALTHY, torch=None))
    assert command.can_load(with_cards(*CARDS))


def test_an_interpreter_that_this_user_may_not_start_is_no_wrong_option() -> None:
    asked: Future[TorchProbe] = Future()
    asked.set_result(TorchProbe(unstarted="Permission denied"))
    probe = command._answer(asked, None)
    assert (probe.not_awaited or "").endswith(" cannot be started (Permission denied)")
    with pytest.raises(UsageError, match="--python /x cannot be started"):
        command._answer(asked, "/x")
