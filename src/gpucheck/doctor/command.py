"""`gpucheck doctor`: from what is read to a diagnosis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gpucheck.doctor import fixes, ladder, load
from gpucheck.doctor.catalogue import CONDITIONS, select
from gpucheck.doctor.condition import Condition
from gpucheck.doctor.evidence import Evidence
from gpucheck.doctor.options import DoctorOptions
from gpucheck.errors import UsageError
from gpucheck.machine import child, choose, installed_torch, inventory, stack, torch_probe
from gpucheck.machine.choose import Usable
from gpucheck.machine.stack import Stack
from gpucheck.machine.torch_probe import TorchProbe
from gpucheck.report.events import Answered, Emit, Judged, Progress, Started
from gpucheck.report.facts import Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.results.doctor import DoctorResult

# A driver that hangs is told within ten seconds: it is known after five, and torch, which starts the same driver, may
# be about to answer for another reason.
TORCH_GRACE_S = 2.0
# The oldest Python that the probe's program runs in.
OLDEST = (3, 8)
_GIVE = "give the path of a Python interpreter, 3.8 or newer"
# Where an environment, and a Python unpacked on Windows, have theirs.
_IN_A_FOLDER = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")
# Devices in the answer's line.
_MOST_NAMED = 3


def command(options: DoctorOptions, emit: Emit) -> Evidence:
    """Read, diagnose, and say the first broken rung before all else. Returns what was read. Raises UsageError."""
    conditions = select(options.only, options.skip)
    evidence = read(options, emit)
    # A second time, now that torch is no longer at work in a child of ours: what others do now, and what grew.
    evidence = replace(evidence, facts=inventory.again(evidence.facts))
    if any(condition.id.startswith("load.") for condition in conditions) and load.is_possible(evidence):
        emit(Progress("running 1 s of load on the GPUs"))
        evidence = replace(evidence, load=load.run(evidence, options.python))
    emit(Started(evidence.facts))
    result, found = diagnosed(evidence, conditions, everything=len(conditions) == len(CONDITIONS))
    emit(Answered("doctor", result))
    first = None if result.first is None else f"fix {result.first} first"
    asked = choose.judge_required(options.require, None, usable(evidence.torch), evidence.facts, fix=first)
    for finding in (*asked, *found):
        emit(Judged(finding))
    return evidence


def diagnosed(
    evidence: Evidence, conditions: Sequence[Condition], *, everything: bool
) -> tuple[DoctorResult, list[Finding]]:
    """The diagnosis and its findings: the first broken rung before all else; `everything` as `healthy`'s."""
    diagnosis = ladder.diagnose(evidence, conditions)
    result = DoctorResult(
        first=diagnosis.first.condition.id if diagnosis.first else None,
        broken=diagnosis.broken,
        rungs=ladder.standings(evidence, diagnosis),
        consequences=tuple(sighting.condition.id for sighting in diagnosis.consequences),
        asked=len(conditions),
        torch_works=evidence.torch_works,
        load=evidence.load,
    )
    found = ladder.findings(diagnosis)
    return result, found if diagnosis.first else [*found, healthy(evidence, everything=everything)]


def usable(probe: TorchProbe | None) -> Usable:
    """What the torch that was asked can use, without importing it here."""
    if probe is not None and probe.available and probe.count:
        return Usable("cuda", probe.count, probe.hip is not None)
    if probe is not None and probe.other and probe.other_count:
        return Usable(probe.other, probe.other_count)
    return Usable(None, 0)


def read(options: DoctorOptions, emit: Emit, *, driver_timeout_s: float | None = None) -> Evidence:
    """Read everything, the slow parts side by side. Raises UsageError for a --python that cannot start.

    The driver is waited for as long as a healthy one may take, or `driver_timeout_s`.
    """
    emit(Progress("reading driver and torch"))
    # The driver in this thread, which an interrupt reaches; torch is cut off by it.
    cut = child.Cut()
    with ThreadPoolExecutor(max_workers=1) as beside:
        asked = beside.submit(
            torch_probe.probe, options.python, timeout_s=options.time_budget_s or torch_probe.TIMEOUT_S, cut=cut
        )
        try:
            facts, seen = _around(options.root, cut, driver_timeout_s)
            probe = _answer(asked, options.python)
        finally:
            cut.after(0.0, "interrupted")
    if options.python is not None:
        if probe.stage == "start" and not probe.timed_out and probe.not_awaited is None:
            raise _no_answer(options.python, probe)
        facts = replace(facts, torch=_build_of(probe))
        # Another environment than the active one was asked for.
        probe = replace(probe, active_elsewhere=None)
    return Evidence(facts, seen, probe, frozenset(os.environ))


def _answer(asked: Future[TorchProbe], python: str | None) -> TorchProbe:
    probe = asked.result()
    if probe.unstarted is not None and python is not None and Path(python).is_dir():
        inside = next((path for path in map(Path(python).joinpath, _IN_A_FOLDER) if path.is_file()), None)
        tip = f"gpucheck doctor --python {fixes.interpreter(str(inside))}" if inside else _GIVE
        raise UsageError(f"--python {python} is a folder, not a Python interpreter", "", tip)
    if probe.unstarted is not None:
        raise UsageError(f"--python {python} cannot be started", probe.unstarted, _GIVE)
    return probe


def _no_answer(python: str, probe: TorchProbe) -> UsageError:
    """Why a program that was started as a Python said nothing: it is none, is too old, or fails before our first word.

    What a program that is no Python printed is left out: most repeat the script that they were given.
    """
    version = torch_probe.python_version(python)
    if version is None:
        return UsageError(f"--python {python} is not a Python interpreter", "", _GIVE)
    if version < OLDEST:
        older = "{}.{}".format(*version)
        return UsageError(
            f"--python {python} is Python {older}", "{}.{} is the oldest supported".format(*OLDEST), _GIVE
        )
    return UsageError(f"--python {python} cannot run the probe", probe.error or "it printed nothing", _GIVE)


def _around(root: Path, cut: child.Cut, timeout_s: float | None) -> tuple[Facts, Stack]:
    facts = inventory.read(processes=True, root=root, links=True, timeout_s=timeout_s)
    driver = facts.driver
    if driver is not None and driver.cuinit_code is None and driver.is_hung:
        # What torch waits for does not come. One that answers and hangs at a device may let torch use another.
        cut.after(TORCH_GRACE_S, f"{driver.cuinit_error}, and torch waits for it too")
    running = facts.host.release if facts.host is not None else None
    # After the libraries were asked: a program of root's makes the nodes by asking.
    return facts, stack.read(root, os.environ.get("LD_LIBRARY_PATH", ""), running)


def _build_of(probe: TorchProbe) -> TorchBuild:
    """The torch of another interpreter, read from its folder without importing it here."""
    return installed_torch.from_folder(Path(probe.path)) if probe.path else TorchBuild()


def healthy(evidence: Evidence, *, everything: bool) -> Finding:
    """What is said where no rung is broken: that torch works here, that there is no GPU, or that nobody knows.

    `everything` is whether all conditions were asked.
    """
    probe = evidence.torch
    if evidence.torch_works and probe is not None:
        ran = [run.device for run in probe.kernels if run.error is None]
        named = ", ".join(ran[:_MOST_NAMED]) + (f" and {len(ran) - _MOST_NAMED} more" if ran[_MOST_NAMED:] else "")
        title = f"torch can use {len(ran)} GPU{'s' * (len(ran) != 1)}"
        return Finding("doctor.healthy", "pass", title, f"kernel and matrix product correct on {named}")
    if not evidence.is_nvidia_here:
        return Finding("doctor.no_gpu", "info", "no NVIDIA GPU here", _where_looked(evidence.facts))
    asked = "known" if everything else "selected"
    python = fixes.interpreter(probe.executable if probe is not None else None)
    return Finding(
        "doctor.unknown",
        "inconclusive",
        "no known cause found, and torch was not seen to use the GPU",
        f"no {asked} condition matches, or evidence was unreadable",
        # torch's own words, in full.
        fix=f"""{python} -c 'import torch; print(torch.ones(1, device="cuda"))'""",
    )


def _where_looked(facts: Facts) -> str:
    others = [device.name or device.kind for device in facts.devices if device.kind != "cpu"]
    if others:
        return f"torch has {', '.join(others)}"
    return "PCI bus, /dev and driver show none"
