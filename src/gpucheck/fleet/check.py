"""The command `fleet check`: run each part of the check in a child with a time limit, and write one document."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import gpucheck
from gpucheck import errors, units
from gpucheck.errors import CannotLook, GpucheckError, Terminated, UsageError
from gpucheck.fleet import documents, hosts
from gpucheck.fleet.judge import gpus_text
from gpucheck.fleet.options import FleetCheckOptions
from gpucheck.machine import child, child_protocol, driver_reads, launcher
from gpucheck.report.codec import from_json
from gpucheck.report.events import Answered, Emit, Judged, Notice, Progress
from gpucheck.report.facts import Facts
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report, exit_code, settle
from gpucheck.report.results.fleet import NODE_SCHEMA, NodeDevice, NodeDocument, NodeFigure, NodePart, NodeProblem

# The most figures and devices in a document: enough for 64 devices with 16 figures.
MOST_FIGURES, MOST_DEVICES = 1024, 256
MOST_TEXT = 300
# The time to write a document. A file of 64 KB takes milliseconds; a busy network file system may take seconds.
WRITE_S, LEAST_WRITE_S = 20.0, 5.0
# No part can start in less time than this.
LEAST_S = 0.5
# The time for a part to start and end on a busy machine.
START_S = 3.0
# Stages of doctor that depend on torch and not on the node: a broken torch must not drain every node in a prolog.
OF_TORCH = ("torch", "architecture")

# By part: its weight in the remaining time, its time budget as a share of its limit, and its command.
PARTS: Mapping[str, tuple[float, float | None, str]] = {
    "devices": (1.0, None, "devices"),
    "doctor": (2.0, 0.8, "doctor"),
    "smoke": (3.0, 0.6, "smoke --device all"),
    # A product cannot be interrupted, so the bench took twice its time budget on a busy CPU.
    "bench": (4.0, 0.25, "bench all --device all --only bandwidth --only matmul"),
    "memory": (1.0, None, "memory"),
    "transfer": (3.0, 0.5, "bench transfer --device all"),
    "overlap": (2.0, 0.5, "bench overlap --device all"),
    "collective": (3.0, 0.5, "bench collective"),
    "stress": (6.0, 0.5, "stress --device all"),
}


def arguments(part: str, limit_s: float) -> list[str]:
    _, share, line = PARTS[part]
    option = "--duration" if part == "stress" else "--time-budget"
    return [*line.split(), *([] if share is None else [option, f"{limit_s * share:.1f}s"])]


def command(options: FleetCheckOptions, emit: Emit) -> None:
    """Check this node, unless another rank of the node does. Raises UsageError and CannotLook."""
    launch = launcher.detect(os.environ)
    host = options.host or launch.host or socket.gethostname()
    if not hosts.is_safe(host):
        raise UsageError(f"the host name {host[:80]!r} is not safe to list", "", "give --host NAME")
    if (run := options.run or launch.run) is None and options.gather and launch.launcher != "none":
        raise UsageError(f"{launch.launcher} gives no job ID", "the nodes' documents need one run", "give --run ID")
    if launcher.works(launch):
        _check(options, launch, host, documents.clean(run or "alone", 200), emit)
    else:
        emit(Judged(Finding("fleet.rank", "info", f"another rank of {host} checks it")))


def _check(options: FleetCheckOptions, launch: launcher.Launch, host: str, run: str, emit: Emit) -> None:
    deadline = time.monotonic() + options.within_s
    now_s = time.time()
    node = NodeDocument(
        schema=NODE_SCHEMA,
        gpucheck=gpucheck.__version__,
        run=run,
        host=host,
        attempt=launch.attempt,
        boot_id=launcher.boot_id(),
        launcher=launch.launcher,
        expected=launch.nodes,
        started_wall_s=now_s,
        written_wall_s=now_s,
        written_monotonic_s=time.monotonic(),
        within_s=options.within_s,
        step="start",
        exit=None,
    )
    try:
        for index, part in enumerate(options.parts):
            emit(Progress(part, index, len(options.parts)))
            node = _written(replace(node, step=part), options.gather, in_log=not node.parts)
            weight = sum(PARTS[remaining][0] for remaining in options.parts[index:])
            left_s = max(deadline - time.monotonic(), 0.0)
            # The limit must be long enough to detect a hanging driver.
            least_s = driver_reads.nvml_timeout_s() + START_S if part == "devices" else 0.0
            limit_s = min(max(left_s * PARTS[part][0] / weight, least_s), left_s)
            node = with_part(node, part, _run(part, limit_s), limit_s)
    except GpucheckError:
        raise
    except BaseException as error:
        # If a rank dies, its launcher ends the others. They write this text, and the rank that died does not.
        name = {Terminated: "SIGTERM", KeyboardInterrupt: "SIGINT"}.get(type(error))
        node = replace(node, ended=name or documents.clean(f"{type(error).__name__}: {error}", MOST_TEXT))
        with contextlib.suppress(CannotLook):
            _written(node, options.gather)
        _report(node, emit)
        within, elapsed_s = units.duration(node.within_s), time.monotonic() - deadline + options.within_s
        message = f"{node.ended} after {units.age(elapsed_s)} of at most {within} (--within)"
        fix, title = f"allow the check {within}, or set a shorter --within", f"{node.step} did not finish"
        emit(Judged(Finding("fleet.part", "inconclusive", title, message, {"part": node.step}, fix)))
        raise
    node = replace(node, step="", exit=exit_of(node.parts))
    required, title, fix = options.devices, "", "gpucheck devices"
    if node.gpus is not None and required is not None and node.gpus != required:
        title = gpus_text(node.gpus, required)
    elif node.gpus == 0 and required is None and node.exit != errors.FAILED:
        title, fix = "no GPU found", "gpucheck doctor; for a node without GPUs, --devices 0"
    if title:
        problem = NodeProblem("devices", "fleet.devices", "fail", title, "", fix)
        # Other failures come first, because they may explain the missing GPUs.
        problems = _worst_first([*node.problems, problem])
        passed = ("devices", errors.OK)
        parts = (replace(row, exit=errors.FAILED) if (row.id, row.exit) == passed else row for row in node.parts)
        node = replace(node, problems=problems, parts=tuple(parts), exit=errors.FAILED)
    _report(node, emit)
    if not node.problems:
        emit(Judged(Finding("fleet.node", "pass", f"{host} is good")))
    node = _written(node, options.gather)
    if options.gather is not None and options.gather != "-":
        emit(Notice(f"wrote {documents.place(Path(options.gather), host, run)}"))
    if node.exit == errors.COULD_NOT_LOOK:
        blind = ", ".join(part.id for part in node.parts if part.exit == errors.COULD_NOT_LOOK)
        raise CannotLook(f"{host} could not be checked", f"could not look: {blind}", f"on {host}: gpucheck doctor")


def _report(node: NodeDocument, emit: Emit) -> None:
    emit(Answered("fleet_check", node))
    for problem in node.problems:
        verdict, evidence = cast(Verdict, problem.verdict), {"part": problem.part}
        finding = Finding(problem.id, verdict, problem.title, problem.message, evidence, problem.fix, problem.device)
        emit(Judged(finding))


def _written(node: NodeDocument, gather: str | None, *, in_log: bool = True) -> NodeDocument:
    """Write the document with the current time; with `--gather -` only if `in_log`. Raises CannotLook."""
    node = replace(node, written_wall_s=time.time(), written_monotonic_s=time.monotonic())
    if gather is None or (gather == "-" and not in_log):
        return node
    marked = documents.marked(node)
    if gather == "-":
        # stdout may have the JSON, and a log has both streams.
        sys.stderr.write(f"{marked}\n")
        sys.stderr.flush()
        return node
    # A child writes the file, because a network file system blocks its caller if the server does not answer.
    limit_s = min(WRITE_S, max(node.within_s, LEAST_WRITE_S))
    try:
        ended = child.run(child.python_argv("gpucheck.fleet.documents", gather), limit_s, stdin=marked)
        output = child_protocol.output_of(ended, limit_s)
        why = str(output.merged.get("wrong", output.ending.in_words))
    except OSError as error:
        why = error.strerror or str(error)
    if not why:
        return node
    raise CannotLook(f"--gather {gather!r} cannot be written", why, "use a folder that every node can write")


def _run(part: str, limit_s: float) -> child.ChildResult:
    if limit_s < LEAST_S:
        return child.ChildResult(None, "", "", True, False, 0.0)
    try:
        with tempfile.TemporaryDirectory(prefix="gpucheck-fleet-") as folder:
            # The part updates this file after each benchmark, so that an interrupted part keeps its results.
            so_far = Path(folder, "part.json")
            wanted = [*arguments(part, limit_s), "--json", "--quiet", "--output", str(so_far)]
            ended = child.run(child.python_argv("gpucheck.cli.app", *wanted), limit_s, env=launcher.alone(os.environ))
            if ended.timed_out and so_far.exists():
                ended = replace(ended, stdout=so_far.read_text(encoding="utf-8"))
            return ended
    except OSError as error:
        return child.ChildResult(None, "", error.strerror or str(error), False, False, 0.0)


# -- the result of a part ----------------------------------------------------------------------------------------------


def with_part(node: NodeDocument, part: str, ended: child.ChildResult, limit_s: float) -> NodeDocument:
    """Return the document with the result of a part. A part without a result is a problem of the node."""
    report, code, findings = None, None, tuple[Finding, ...]()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        report = from_json(Report, json.loads(ended.stdout))
        code, findings = report.summary.exit, report.findings
    if part == "doctor":
        findings = tuple(map(_of_node, findings))
    # If the child was ended, its exit status does not come from its findings.
    if report is not None and (ended.timed_out or (part == "doctor" and code == errors.FAILED)):
        code = exit_code(findings)
    why = _why(ended, limit_s, code)
    done = NodePart(part, code if code in _EXITS else None, round(ended.elapsed_s, 3), why)
    problems = list(node.problems)
    if why:
        # Suggest twice the time, and at least half a minute.
        fix = f"on {node.host}: gpucheck {' '.join(arguments(part, max(2 * limit_s, 30.0)))}"
        problems.append(NodeProblem(part, "fleet.part", "inconclusive", f"{part} did not finish", why, fix))
    if report is not None:
        # A skipped check is a problem only if the part could not run at all.
        problem_verdicts = _PROBLEM_VERDICTS if code == errors.COULD_NOT_LOOK else _PROBLEM_VERDICTS[:-1]
        for finding in findings:
            if finding.verdict in problem_verdicts:
                texts = finding.title, finding.message, finding.fix or ""
                title, message, fix = (documents.clean(text, MOST_TEXT) for text in texts)
                problems.append(
                    NodeProblem(part, finding.id, finding.verdict, title, message, fix or None, finding.device)
                )
        # Devices and settings from earlier parts take precedence.
        devices = {device.id: device for device in node.devices}
        for device in report.facts.devices:
            if device.id is not None and device.kind != "host" and len(devices) < MOST_DEVICES:
                values = {field.name: getattr(device, field.name) for field in fields(NodeDevice)}
                devices.setdefault(device.id, NodeDevice(**values | {"name": device.name or device.kind}))
        figures = [*node.figures, *filter(None, map(figure_of, report.measurements))]
        # Keep the latest figure of each case and device, if the document lists the device.
        latest = {(figure.device, figure.name, figure.case): figure for figure in figures if figure.device in devices}
        node = replace(
            node,
            devices=tuple(devices.values()),
            settings={**settings_of(report.facts), **node.settings},
            gpus=gpus_of(report.facts) if node.gpus is None else node.gpus,
            figures=tuple(latest.values())[:MOST_FIGURES],
        )
    return replace(node, parts=(*node.parts, done), problems=_worst_first(problems)[: documents.MOST_PROBLEMS])


def _of_node(finding: Finding) -> Finding:
    """Return a finding of doctor as a finding of the node. A node whose torch is unusable is undecided, not bad."""
    is_of_torch = finding.verdict == "fail" and finding.evidence.get("rung") in OF_TORCH
    return replace(finding, verdict="inconclusive") if is_of_torch else finding


def gpus_of(facts: Facts) -> int | None:
    """Return the number of GPUs; None if unknown. The MIG instances of a GPU count as one GPU."""
    gpus = [gpu for gpu in facts.devices if gpu.kind not in ("cpu", "host")]
    is_unread = facts.driver is not None and facts.driver.nvml_error and facts.driver.nvml_code is None
    if not facts.devices or (not gpus and is_unread):  # NVML was not called
        return None
    return len({gpu.parent_uuid or gpu.uuid or (gpu.nvml_index, gpu.cuda_index, gpu.id) for gpu in gpus})


_EXITS = (errors.OK, errors.FAILED, errors.COULD_NOT_LOOK, errors.UNDECIDED)
_PROBLEM_VERDICTS = WORST_FIRST[:4]


def _worst_first(problems: Sequence[NodeProblem]) -> tuple[NodeProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: _PROBLEM_VERDICTS.index(problem.verdict)))


def _why(ended: child.ChildResult, limit_s: float, code: int | None) -> str:
    """Return the reason why a part has no result, or an empty text."""
    if limit_s < LEAST_S:
        return "not started: no time was left (--within)"
    if ended.timed_out:
        stuck = "; its process could not be ended" if ended.abandoned else ""
        return f"did not finish within {units.duration(limit_s)}{stuck}"
    return "" if code in _EXITS else documents.clean(child_protocol.ending_of(ended, limit_s).in_words, MOST_TEXT)


def exit_of(parts: Sequence[NodePart]) -> int:
    """Return the node's exit status. The node is undecided if a part did not finish, unless this part had failed."""
    return settle(
        errors.UNDECIDED if part.exit is None or (part.ended and part.exit != errors.FAILED) else part.exit
        for part in parts
    )


# -- figures, devices, settings ----------------------------------------------------------------------------------------


def figure_of(row: Measurement) -> NodeFigure | None:
    if row.rate is None or not row.rate.median > 0:
        return None
    # The dtype or operation comes first, because the judge looks up the peak by it. The size comes last.
    shape = ("m", "n", "k")
    words = [str(value) for name, value in row.case.items() if name not in (*shape, "size_bytes", "support")]
    if "m" in row.case:
        words.append("x".join(str(row.case[name]) for name in shape))
    if "size_bytes" in row.case:
        words.append(units.capacity(float(str(row.case["size_bytes"]))))
    return NodeFigure(row.device.id, row.name, " ".join(words), row.rate.median, row.rate.unit, row.flags)


def settings_of(facts: Facts) -> dict[str, str]:
    """Return the settings that siblings should share: versions, and GPU settings by model."""
    driver, torch, host, python = facts.driver, facts.torch, facts.host, facts.python
    settings = {
        "gpucheck": gpucheck.__version__,
        "driver": driver and driver.version,
        "CUDA of the driver": driver and driver.cuda_version,
        "torch": torch and torch.version,
        "torch's CUDA": torch and torch.toolkit_version,
        "Python": python and python.version,
        "kernel": host and host.release,
        "architecture": host and host.architecture,
    }
    by_model: dict[str, set[str]] = {}
    for device in facts.devices:
        for name, value in device.settings.items():
            by_model.setdefault(f"{name} of {device.name}", set()).add(value)
    settings |= {name: " and ".join(sorted(values)) for name, values in by_model.items()}
    return {documents.clean(name, 200): documents.clean(value, 200) for name, value in settings.items() if value}
