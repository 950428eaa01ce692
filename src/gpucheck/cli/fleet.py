"""The commands `gpucheck fleet …`: check one node, and judge all nodes."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck import errors
from gpucheck.cli.commands import Command, Common
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import device_lifetime

if TYPE_CHECKING:  # a help page needs no report classes
    from gpucheck.cli import outputs
    from gpucheck.fleet.judge import FleetJudgement
    from gpucheck.fleet.options import FleetCheckOptions, FleetJudgeOptions
    from gpucheck.report.events import Emit

_FILES = "give the folder of --gather, a document in it, or a log of --gather -"

COMMANDS = (
    Command(
        "fleet check",
        """Check this node: devices, doctor, smoke, a short bench.

        Each part has a time limit, which applies even if a call hangs.

        Start the check on every node with torchrun, srun, mpirun or a Kubernetes Job. Only one rank of a node runs it.
        Judge the documents in --gather with `gpucheck fleet judge`. Without a launcher, only this node is checked.

        $ gpucheck fleet check
        $ srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks
        $ gpucheck fleet check --prolog --within 60s --quiet
        """,
        "gpucheck.cli.fleet:check",
        "gpucheck.fleet.options:FleetCheckOptions",
    ),
    Command(
        "fleet judge",
        """Find the bad nodes of a run of `fleet check`.

        Compares each node and device with the same model on other nodes. A node is silent, and never good, if it has no
        document or its check stopped. A model on fewer than 5 nodes is compared only within each node.
        For the folder of `gpucheck run --output DIR/` under torchrun, shows which rank delays the job.

        $ gpucheck fleet judge /shared/checks
        $ gpucheck fleet judge /shared/checks --expect node[001-064] --wait 10m --into lists
        $ gpucheck fleet judge job.log --expect 64 --output fleet.json
        """,
        "gpucheck.cli.fleet:judge",
        "gpucheck.fleet.options:FleetJudgeOptions",
        loads_torch=False,
    ),
)


class NoDocument(CannotLook):
    """The folder has no document, not even a refused one."""


def judge(common: Common, options: FleetJudgeOptions) -> int:
    from gpucheck.cli import session

    return session.run(common, lambda emit: conclude(options, emit), _lists(options.into))


def conclude(options: FleetJudgeOptions, emit: Emit) -> None:
    """Read the documents and judge them. Raises UsageError, and CannotLook if no node could be judged."""
    from gpucheck.program.run import rank_files, ranks_findings
    from gpucheck.report.events import Answered, Judged, Notice

    if len(options.paths) == 1 and rank_files.is_job(options.paths[0]):
        result = rank_files.result(Path(options.paths[0]))
        emit(Answered("ranks", result))
        for finding in ranks_findings.findings(result):
            emit(Judged(finding))
        return
    with device_lifetime.loading(is_ours=False):  # reading creates millions of small objects
        judged, notices = _judge_all(options, emit)
    other_runs = next((row.evidence["runs"] for row in judged.findings if row.id == "fleet.other_run"), ())
    if not judged.result.nodes and not judged.result.refused and not other_runs:
        raise NoDocument(f"no node's document is in {shlex.join(options.paths)}", "", _FILES)
    for text in notices:
        emit(Notice(text))
    emit(Answered("fleet_judge", judged.result))
    for finding in judged.findings:
        emit(Judged(finding))
    if judged.result.counts["blind"] == len(judged.result.nodes):
        what = "no node could be checked" if judged.result.nodes else "no node's document was found"
        fix = "check the folder given to --gather and the nodes' output"
        if options.run and other_runs:
            fix = f"name an existing run: {' or '.join(f'--run {shlex.quote(name)}' for name in other_runs)}"
        raise CannotLook(what, "nothing was judged", fix)


def _judge_all(options: FleetJudgeOptions, emit: Emit) -> tuple[FleetJudgement, tuple[str, ...]]:
    """Return the judgement and notices once all nodes have finished, or `--wait` is over. Raises UsageError."""
    from gpucheck.fleet import documents
    from gpucheck.fleet import judge as judging
    from gpucheck.report.events import Progress

    deadline = time.monotonic() + (options.wait_s or 0.0)
    has_folders = any(os.path.isdir(path) for path in options.paths)
    while True:
        if has_folders:
            emit(Progress("reading documents"))
        read = documents.read(options.paths)
        if read.refused and not read.documents and not has_folders:
            raise UsageError(f"{read.refused[0].path!r} is not a node's document", read.refused[0].why, _FILES)
        judged = judging.judge(
            read.documents,
            read.refused,
            run=options.run,
            expected=options.expect,
            max_bad=options.max_bad,
            devices=options.devices,
        )
        has_silent = judged.result.counts["silent"] or not judged.result.nodes
        left_s = deadline - time.monotonic()
        if not has_silent or left_s <= 0 or "-" in options.paths:
            return judged, read.notices
        emit(Progress(f"waiting for {judged.result.counts['silent']} nodes"))
        time.sleep(min(2.0, left_s))  # network file systems show a new file after seconds


def _lists(folder: str | None) -> list[outputs.OutputFile]:
    if folder is None:
        return []
    from gpucheck.cli import outputs
    from gpucheck.render import prometheus
    from gpucheck.render.fleet import listed
    from gpucheck.report.report import document

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        title = f"--into {folder!r} cannot be created"
        raise CannotLook(title, error.strerror or "", "give a writable folder") from error
    contents: dict[str, outputs.Content] = {
        "good.txt": lambda report: listed(report, "good"),
        "bad.txt": lambda report: listed(report, "bad"),
        "fleet.json": document,
        "fleet.prom": prometheus.metrics,
    }
    paths = {os.path.join(folder, name): content for name, content in contents.items()}
    return [outputs.OutputFile("--into", path, {os.path.splitext(path)[1]: text}) for path, text in paths.items()]


def check(common: Common, options: FleetCheckOptions) -> int:
    from gpucheck.cli import session
    from gpucheck.fleet.check import command

    code = session.run(common, lambda emit: command(options, emit))
    # Slurm drains a node if the prolog fails, so an undecided check must not fail.
    return code if not options.prolog or code in (errors.FAILED, errors.USAGE) else errors.OK
