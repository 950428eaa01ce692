"""`gpucheck status` as blocks: whether torch can use the GPUs, then each GPU in a line; the rest with `-v`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpucheck.render.blocks import Block, Line, Page, advice_line, answer, finding_line
from gpucheck.render.devices import FAULTS, NONE, called, devices_table, hottest, is_about, versions_line
from gpucheck.render.doctor import COUNTED, absent, ladder
from gpucheck.render.text import said
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding, in_short
from gpucheck.report.report import Report
from gpucheck.report.results.short import DoctorResult

# More than these, and healthy GPUs share a line; more findings than these are left to `-v`: the screen stays one.
MOST_GPUS, MOST_FINDINGS = 8, 3


def page(report: Report) -> Page:
    """The verdict, the worst of what is wrong, the GPUs; the stages of the ladder and what asks for nothing with -v."""
    told: DoctorResult | None = report.results.get("doctor")
    whose = [one for one in report.findings if one.id == "status.interpreter"]
    findings = [one for one in report.findings if one not in whose and "because_of" not in one.evidence]
    gpus = [device for device in report.facts.devices if device.kind != "cpu"]
    line, cause, under = _answer(told, findings, report.facts)
    asking = sorted((one for one in findings if one.verdict in FAULTS and one is not cause), key=_gravity)
    shown, left = asking[:MOST_FINDINGS], asking[MOST_FINDINGS:]
    body = _gpus(gpus, report.findings)
    body += [Line(f"{len(left)} more findings: gpucheck status -v", "dim")] if left else []
    body += versions_line(report.facts)
    for one in whose:
        body += [Line(f"{one.title}: {one.message}"), *([advice_line(one.fix)] if one.fix else [])]
    rungs = told.rungs if told is not None else ()
    details = [*said(left), *ladder(rungs), *absent(rungs)]
    details += [devices_table(gpus, report.findings)] if len(gpus) > MOST_GPUS else []
    rest = [one for one in findings if one not in asking]
    then = "gpucheck doctor, if this machine should have a GPU" if cause is not None and cause.id == NONE else None
    then = "gpucheck smoke" if line is not None and told is not None and told.torch_works else then
    return Page(line, body, details, findings=[*shown, *rest], cause=cause, then=then, under=under)


def _gravity(finding: Finding) -> int:
    return FAULTS.index(finding.verdict)


def _answer(
    told: DoctorResult | None, findings: Sequence[Finding], facts: Facts
) -> tuple[Line | None, Finding | None, list[Line]]:
    """The first line, the finding that it says, and what is said below; no line where a finding has to come first."""
    none = next((one for one in findings if one.id == NONE), None)
    if none is not None:
        return finding_line(none), none, []
    first = next((one for one in findings if told is not None and one.id == told.first), None)
    worst = next((one for verdict in FAULTS for one in findings if one.verdict == verdict), None)
    if first is not None and first.verdict in FAULTS:
        short = first.message.startswith("torch ")
        text = first.message if short else first.title
        uses = told is not None and told.torch_works
        lead = "" if uses or ("torch" in first.title and not short) else "torch cannot use the GPU: "
        under = [] if short or not first.message else [Line(first.message)]
        return answer(first.verdict, f"{lead}{text}"), first, under
    works = _works(facts) if told is not None and told.torch_works else None
    if works is not None and (worst is None or worst.verdict == "warn"):
        counted = Counter(one.verdict for one in findings)["warn"]
        more = f"; {counted} {COUNTED['warn']}{'s' * (counted != 1)}" if counted else ""
        return answer("warn" if counted else "pass", f"{works}{more}"), None, []
    if worst is not None:
        return None, None, []
    other = next((one for one in findings if one.id == "doctor.no_gpu"), None)
    return (finding_line(other), other, []) if other is not None else (None, None, [])


def _works(facts: Facts) -> str:
    """How many GPUs torch can use, and which torch that is."""
    usable = [device for device in facts.devices if device.kind != "cpu" and device.id is not None]
    hidden = sum((device.state or "").startswith("hidden") for device in facts.devices)
    torch = facts.torch
    version = torch.version if torch is not None and torch.version else "of unknown version"
    if torch is not None and torch.built_for == "cuda" and torch.toolkit_version:
        version = f"{version.partition('+')[0]} (CUDA {torch.toolkit_version})"
    which = f"{len(usable)} GPUs work" if len(usable) != 1 else "1 GPU works"
    return f"{which} with torch {version}{f', {hidden} hidden from torch' if hidden else ''}"


def _gpus(gpus: Sequence[Device], findings: tuple[Finding, ...]) -> list[Block]:
    """A line for each GPU; of more than fit on a screen, those that need no look are one line."""
    if not gpus:
        return []
    faults = [one for one in findings if one.verdict in FAULTS]
    ill = [one for one in gpus if one.state or any(is_about(fault, one) for fault in faults)]
    alone = list(gpus) if len(gpus) <= MOST_GPUS else ill[:MOST_GPUS]
    well = [one for one in gpus if one not in ill] if len(gpus) > MOST_GPUS else []
    laid_out: list[Block] = [devices_table(alone, findings)] if alone else []
    if well:
        names = ", ".join(in_short([called(one) for one in well]))
        laid_out.append(Line(", ".join([f"✓ {len(well)} GPUs without a fault: {names}", *hottest(well)]), "green"))
    if len(gpus) > MOST_GPUS and len(ill) > MOST_GPUS:
        laid_out.append(Line(f"and {len(ill) - MOST_GPUS} more with a fault: gpucheck devices"))
    return [*laid_out, Line()]
