"""`gpucheck model`: from options to events. A child loads the model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace

from gpucheck.errors import CannotLook, TargetError
from gpucheck.machine import child_protocol, inventory
from gpucheck.machine.child import python_argv
from gpucheck.program import judge
from gpucheck.program.options import ModelOptions
from gpucheck.report.codec import from_json
from gpucheck.report.events import Answered, Emit, Judged, Notice, Progress, Started
from gpucheck.report.results.model import ModelResult
from gpucheck.work.spec import parse_target

CHILD = "gpucheck.program.placement"
# The child copies the model once and runs a few samples on the CPU. A child that takes longer than this hangs.
LONGEST_S = 1800.0


def command(options: ModelOptions, emit: Emit) -> None:
    """Examine a model on simulated devices. Raises TargetError, UsageError, and CannotLook if the child fails."""
    emit(Started(inventory.read()))
    if (target := parse_target(options.target).text) != options.target:
        emit(Notice(f"{options.target}: using {target}"))
        options = replace(options, target=target)
    emit(Progress("running the model on simulated devices", 0, 1))
    output = child_protocol.run(
        python_argv(CHILD, json.dumps(asdict(options))),
        LONGEST_S,
        # Real GPUs are hidden, because tensors on simulated devices have their data on the CPU.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""},
    )
    answer = output.merged
    if "raised" in answer:
        raise child_protocol.rebuilt(answer["raised"])
    if "failed" in answer:
        raise RuntimeError(f"in the process that runs the model:\n{answer['failed']}")
    if "answer" not in answer:
        raise _ended(output.ending, answer, target)
    result = from_json(ModelResult, answer["answer"])
    emit(Answered("model", result))
    for finding in judge.findings(result):
        emit(Judged(finding))


def _ended(ending: child_protocol.Ending, answer: child_protocol.Message, target: str) -> Exception:
    last_words = ending.last_words
    if ending.how == "late":
        title = f"{target} did not finish within {ending.limit_s:g} s"
        return CannotLook(title, last_words, "give a smaller --batch-size")
    if ending.signal is not None:
        why = "probably out of memory" if ending.signal == "SIGKILL" else last_words
        return CannotLook(f"{ending.signal} ended the process that ran {target}", why)
    if "started" in answer:
        return TargetError(f"the process that ran {target} ended with status {ending.status}", last_words)
    return CannotLook("the process that loads the model did not start", ending.reason or last_words)
