"""`gpucheck status`: what is there and whether torch can use it, from one reading of the machine, within 10 s."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from gpucheck import exits
from gpucheck.devices.command import judge as judge_devices
from gpucheck.devices.options import StatusOptions
from gpucheck.doctor import command as doctor
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Evidence
from gpucheck.doctor.conditions_torch import torch_version
from gpucheck.doctor.ladder import select
from gpucheck.doctor.options import DoctorOptions
from gpucheck.machine import installed_torch, inventory, readings
from gpucheck.report.events import Answered, Emit, Judged, Started
from gpucheck.report.finding import Finding
from gpucheck.report.results.short import DoctorResult

# Whoever types the bare command waits for this screen: what has not answered by then is named, and `doctor` waits for
# it. torch from a warm disk is imported in two to four seconds.
LIMIT_S = 8.0
# A driver that has just answered does so again in milliseconds.
AGAIN_S = 2.0
# What `devices` says of the whole driver: where the doctor names the broken stage, that is the same fault.
OF_THE_DRIVER = ("devices.nvml", "devices.libcuda", "devices.hidden", "devices.torch_build")
# Where these keep the environment of a program that they installed or run for itself.
_TOOL_FOLDER = re.compile(r"[/\\](?:(pipx)[/\\]venvs|(uv)[/\\](?:tools|archive-v\d|builds-v\d|environments-v\d))[/\\]")
_WAITS = "gpucheck doctor"


def command(options: StatusOptions, emit: Emit) -> None:
    """Read the machine once and judge it as `devices` and `doctor --skip load` do. Raises UsageError."""
    began_s = time.monotonic() if exits.began_s is None else exits.began_s
    healthy_s = readings.door_timeout_s(options.root)
    limit_s = min(LIMIT_S, healthy_s)
    answer_s = max(began_s + LIMIT_S - time.monotonic(), 1.0)
    asked = DoctorOptions(options.python, time_budget_s=answer_s, root=options.root)
    evidence = doctor.read(asked, emit, driver_timeout_s=limit_s)
    probe = evidence.torch
    if probe is not None and probe.timed_out:
        # Time is over, and torch had no card yet while these were read.
        evidence = replace(evidence, torch=replace(probe, timed_out=False, not_awaited=_late("torch")))
    else:
        # A second time, now that torch is no longer at work in a child of ours.
        left_s = max(began_s + LIMIT_S - time.monotonic(), AGAIN_S)
        evidence = replace(evidence, facts=inventory.again(evidence.facts, min(left_s, limit_s)))
    emit(Started(evidence.facts))
    result, found = judge(evidence, is_early=limit_s < healthy_s, is_chosen=options.python is not None)
    emit(Answered("doctor", result))
    for finding in found:
        emit(Judged(finding))


def judge(evidence: Evidence, *, is_early: bool = False, is_chosen: bool = False) -> tuple[DoctorResult, list[Finding]]:
    """The diagnosis and the findings of both, each fault once.

    `is_early` says that the driver got less time than a healthy one may take, `is_chosen` that the user named the
    interpreter.
    """
    result, diagnosed = doctor.diagnosed(evidence, select((), ("load.",)), everything=True)
    facts, whose = evidence.facts, [] if is_chosen else _whose(evidence)
    errors = (evidence.driver.nvml_error or "", evidence.driver.cuinit_error or "")
    late = next((text for text in errors if "did not answer within" in text), "") if is_early else ""
    if late:
        unread = Finding("status.driver", "inconclusive", "the driver has not answered yet", late, fix=_WAITS)
        return replace(result, first=None, broken=None), [unread, *whose]
    if not evidence.is_nvidia_here and all(device.kind == "cpu" for device in facts.devices):
        # Nothing to judge a torch by: what is wrong with it is said, and breaks nothing here.
        mild = [replace(one, verdict="warn") if one.verdict == "fail" else one for one in diagnosed]
        said = [one for one in mild if one.id != "doctor.no_gpu"]
        return result, [*judge_devices(facts), *said, *whose]
    if _is_torch_late(evidence):
        diagnosed = [_unsure(one) for one in diagnosed if one.id not in ("doctor.unknown", "doctor.no_gpu")]
        if result.first is None or all(one.verdict != "fail" for one in diagnosed):
            why = f"it was given {LIMIT_S:g} s"
            diagnosed.insert(0, Finding("status.torch", "inconclusive", "torch has not answered yet", why, fix=_WAITS))
    return result, [*_each_once(diagnosed, judge_devices(facts), result.first), *whose]


def _late(what: str) -> str:
    return f"{what} has not answered within {LIMIT_S:g} s"


def _is_torch_late(evidence: Evidence) -> bool:
    probe = evidence.torch
    if probe is None or probe.not_awaited != _late("torch"):
        return False
    return evidence.is_nvidia_here or installed_torch.could_see_another(evidence.build)


def _unsure(finding: Finding) -> Finding:
    """Return what versions and permissions suggest: a torch that runs would refute it, and may be about to."""
    proven = finding.evidence.get("certainty") == "proof"
    return finding if finding.verdict != "fail" or proven else replace(finding, verdict="inconclusive")


def _each_once(diagnosed: Sequence[Finding], looked: Sequence[Finding], first: str | None) -> list[Finding]:
    """The doctor's findings, then those of `devices` that say something else; of a card's own fault, one for each."""
    by_card = {one.id for one in looked if "nvml_index" in one.evidence} - {first}
    known = {one.id for one in diagnosed} - by_card | ({*OF_THE_DRIVER} if first is not None else set())
    return [*(one for one in diagnosed if one.id not in by_card), *(one for one in looked if one.id not in known)]


def _whose(evidence: Evidence) -> list[Finding]:
    """Which interpreter was judged, where that is likely not the one that the user's programs run in."""
    probe = evidence.torch
    if probe is None or probe.executable is None:
        return []
    variable, tool = probe.active_elsewhere, _TOOL_FOLDER.search(f"{probe.prefix}/")
    if tool is None and variable is None and torch_version(evidence) is not None:
        return []
    why = "it has no torch" if variable is None else f"{variable} names another"
    why = why if tool is None else f"gpucheck was installed there by {tool[1] or tool[2]}"
    python = "PATH"
    if variable is not None:
        below = ("Scripts", "python.exe") if evidence.host.system == "Windows" else ("bin", "python")
        python = fixes.interpreter(os.path.join(os.environ.get(variable, ""), *below))
    title = f"the interpreter judged is {probe.executable}"
    seen = {"executable": probe.executable, "variable": variable}
    return [Finding("status.interpreter", "info", title, why, seen, f"gpucheck --python {python}")]
