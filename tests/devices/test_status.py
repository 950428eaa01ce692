"""`gpucheck status`: one reading, judged as `devices` and `doctor --skip load` do; no answer yet is no fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_scenes import CPU, FACTS, card
from shown import shown as on_screen
from whole import TWO_GPUS, interpreter, root, torch_of

from gpucheck import errors
from gpucheck.cli.app import main
from gpucheck.devices import command
from gpucheck.doctor import command as doctor
from gpucheck.doctor.condition import Evidence
from gpucheck.doctor.ladder import select
from gpucheck.machine import child
from gpucheck.machine.stack import KernelRun, TorchProbe
from gpucheck.render import text
from gpucheck.report.events import Answered, Judged, Started
from gpucheck.report.facts import Device, Facts, Host
from gpucheck.report.report import Collector, Report

__all__ = ["root"]  # the machine that every test has
Fake = Callable[..., Path]
WORKS = TorchProbe(
    stage="end",
    executable="/x/bin/python",
    prefix="/x",
    version="2.11.0+cu130",
    cuda="13.0",
    available=True,
    count=8,
    kernels=tuple(KernelRun(f"cuda:{index}") for index in range(8)),
)


def machine(*devices: Any, **changes: Any) -> Facts:
    """A machine with these GPUs and a CPU."""
    return replace(FACTS, devices=(*devices, CPU), **changes)


def idle(index: int, **changes: Any) -> Any:
    """A GPU at rest."""
    return card(index, **{"utilization_percent": 0.0, "memory_used_bytes": 2**29, "power_w": 76.0, **changes})


def reported(evidence: Evidence, **how: bool) -> Report:
    """What the command makes of it."""
    collector = Collector()
    result, found = command.status_judge(evidence, **how)
    collector(Started(evidence.facts))
    collector(Answered("doctor", result))
    for finding in found:
        collector(Judged(finding))
    return collector.report(version="0", command="status", argv=(), started="", elapsed_s=1.0)


def shown(report: Report, width: int) -> list[str]:
    """The screen at this width."""
    return on_screen(text.blocks(report), width)


EIGHT = Evidence(machine(*map(idle, range(8))), torch=WORKS)


def test_eight_gpus_are_one_screen() -> None:
    report = reported(EIGHT)
    assert report.summary.exit == errors.OK
    lines = shown(report, 80)
    assert lines[:2] == ["✓ 8 GPUs work with torch 2.11.0 (CUDA 13.0)", "→ gpucheck smoke"]
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    narrow = shown(report, 40)
    assert len(narrow) <= 40 and max(map(len, narrow)) <= 40


def test_of_many_gpus_those_that_nvml_does_not_list_are_not_called_well() -> None:
    many = [idle(index, nvml_index=None if index > 11 else index) for index in range(16)]
    probe = replace(WORKS, count=16, kernels=tuple(KernelRun(f"cuda:{index}") for index in range(16)))
    report = reported(Evidence(machine(*many), torch=probe))
    lines = shown(report, 80)
    assert report.summary.exit == errors.UNDECIDED and lines[0].startswith("? ")
    assert "cuda:12 to cuda:15" in lines[0]


def test_a_torch_that_has_not_answered_is_undecided() -> None:
    late = TorchProbe(stage="import", executable="/x/bin/python", prefix="/x", not_awaited=command._LATE)
    report = reported(Evidence(machine(idle(0)), torch=late))
    assert report.summary.exit == errors.UNDECIDED
    assert shown(report, 80)[:2] == ["? torch has not answered yet: the time limit is 8 s", "→ gpucheck doctor"]


def test_what_versions_suggest_is_no_failure_before_torch_has_answered() -> None:
    """A torch that runs would refute it."""
    late = TorchProbe(stage="import", executable="/x/bin/python", prefix="/x", not_awaited=command._LATE)
    for mask in ("7", "GPU-nothing"):
        facts = machine(idle(0, cuda_index=None, id=None), environment={"CUDA_VISIBLE_DEVICES": mask})
        report = reported(Evidence(facts, torch=late))
        assert all(
            finding.verdict != "fail" or finding.evidence["certainty"] == "proof" for finding in report.findings
        ), report.findings


def test_a_driver_that_hangs_is_a_failure_and_one_that_starts_slowly_is_not() -> None:
    driver = replace(FACTS.driver, nvml_code=None, nvml_error="NVML did not answer within 29 s")  # type: ignore[type-var]
    evidence = Evidence(machine(driver=driver, host=Host(system="Linux", nvidia_pci_addresses=("0000:01:00.0",))))
    assert shown(reported(evidence), 80)[0] == "✗ torch cannot use the GPU: NVML does not answer"
    slow = replace(FACTS.driver, nvml_start_s=20.0)  # type: ignore[type-var]
    host = Host(system="Linux")
    for off, expected in ((False, ["warn"]), (True, []), (None, [])):
        facts = machine(*(idle(index, persistence_mode=off) for index in range(8)), driver=slow, host=host)
        report = reported(Evidence(facts, torch=WORKS))
        found = [finding for finding in report.findings if finding.id == "devices.persistence"]
        assert [finding.verdict for finding in found] == expected and report.summary.exit == errors.OK
        assert all(
            finding.title == "NVML took 20.0 s to start" and "nvidia-smi -pm 1" in (finding.fix or "")
            for finding in found
        )


def test_a_machine_without_a_gpu_is_no_failure_whatever_its_torch() -> None:
    probe = TorchProbe(stage="import", executable="/x/bin/python", error="ModuleNotFoundError: No module named 'torch'")
    report = reported(Evidence(machine(driver=None), torch=probe))
    assert report.summary.exit == errors.OK
    lines = shown(report, 200)
    assert lines[0].startswith("· no GPU found") and any("torch is not installed" in line for line in lines)


@pytest.mark.parametrize(
    ("prefix", "tool"),
    [
        ("/home/a/.local/share/pipx/venvs/gpucheck-cli", "pipx"),
        ("/home/a/.cache/uv/archive-v0/Xy3", "uv"),
        ("/home/a/.local/share/uv/tools/gpucheck-cli", "uv"),
        ("/home/a/uv/project/.venv", None),
        ("/home/a/pipx", None),
    ],
)
def test_an_interpreter_that_is_likely_not_the_users_is_named(prefix: str, tool: str | None) -> None:
    probe = replace(WORKS, executable=f"{prefix}/bin/python", prefix=prefix)
    report = reported(replace(EIGHT, torch=probe))
    lines = shown(report, 200)
    assert any(f"{prefix}/bin/python" in line and f"{tool} installed" in line for line in lines) is (tool is not None)
    assert ("→ gpucheck --python PATH" in lines) is (tool is not None)
    chosen = reported(replace(EIGHT, torch=probe), is_chosen=True)
    assert "status.interpreter" not in {finding.id for finding in chosen.findings}


# -- the whole command, on the fakes of both libraries -----------------------------------------------------------------


@pytest.mark.slow
def test_it_starts_what_the_doctor_starts_and_judges_as_both_do(
    fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(TWO_GPUS)
    python = interpreter(tmp_path, torch_of(tmp_path))
    started: list[str] = []
    popen = child._popen

    def noted(argv: Any, *more: Any, **named: Any) -> Any:
        started.append(argv[0])
        return popen(argv, *more, **named)

    monkeypatch.setattr(child, "_popen", noted)
    documents, processes = {}, {}
    for line in ("--json", "devices --json", "doctor --skip load --json"):
        started.clear()
        named = [] if line.startswith("devices") else ["--python", python]
        code = main([*line.split(), *named])
        documents[line] = json.loads(capsys.readouterr().out)
        processes[line] = sorted(started)
        assert documents[line]["summary"]["exit"] == code
    ours, doctors = documents["--json"], documents["doctor --skip load --json"]
    assert ours["command"] == "status" and ours["results"]["doctor"]["torch_works"]
    assert processes["--json"] == processes["doctor --skip load --json"]
    assert ours["results"]["doctor"]["rungs"] == doctors["results"]["doctor"]["rungs"]
    by_card = {finding["id"] for finding in documents["devices --json"]["findings"] if finding["evidence"].get("uuid")}
    assert by_card <= {finding["id"] for finding in ours["findings"]}


@pytest.mark.slow
def test_a_torch_that_hangs_costs_the_limit_and_no_more(
    fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(TWO_GPUS)
    monkeypatch.setattr(command, "STATUS_LIMIT_S", 2.0)
    python = interpreter(tmp_path, torch_of(tmp_path, top="import time; time.sleep(600)"))
    assert main(["--python", python]) == errors.UNDECIDED
    assert capsys.readouterr().out.startswith("? torch has not answered yet")


# -- two faults on eight GPUs: what several share is one line, the worst first, and nothing is out of sight ------------

SHARED = [card(index, processes=(), memory_used_bytes=int(72.3 * 2**30)) for index in range(6)]
LOST = Device(kind="cuda", uuid="GPU-7", name=card(7).name, pci_address="0000:71:00.0", nvml_index=7, state="lost")
TWO_FAULTS = Evidence(
    machine(*SHARED, idle(6, utilization_percent=100.0, temperature_celsius=91.0, processes=()), LOST),
    torch=replace(WORKS, count=7, kernels=WORKS.kernels[:7]),
)


def diagnosed(evidence: Evidence) -> Report:
    """What `doctor --skip load` makes of it."""
    collector = Collector()
    result, found = doctor.diagnosed(evidence, select((), ("load.",)))
    collector(Started(evidence.facts))
    collector(Answered("doctor", result))
    for finding in found:
        collector(Judged(finding))
    return collector.report(version="0", command="doctor", argv=(), started="", elapsed_s=1.0)


@pytest.mark.parametrize("made", [reported, diagnosed])
@pytest.mark.parametrize("width", [120, 80, 40])
def test_of_two_faults_the_lost_gpu_is_first_and_the_hot_one_comes_before_memory_in_use(
    width: int, made: Callable[[Evidence], Report]
) -> None:
    lines = shown(made(TWO_FAULTS), width)
    whole = " ".join(lines)
    assert lines[0].startswith("✗ NVML 7  lost: off the PCI bus")
    hot, held = whole.index("cuda:6  91 °C"), whole.index("cuda:0 to cuda:5  other processes")
    assert whole.index("drain and power-cycle") < hot < held and max(map(len, lines)) <= width
    assert sum("other processes" in line for line in lines) == 1 and "more finding" not in whole
