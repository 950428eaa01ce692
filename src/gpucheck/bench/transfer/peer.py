"""Copies from device to device as a matrix: for each pair a child, so that one that hangs or dies costs only its pair.

The children see what this process sees: `CUDA_VISIBLE_DEVICES` is theirs too, so torch's names mean the same.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucheck import units
from gpucheck.bench.transfer.peer_judge import NAME
from gpucheck.bench.transfer.setting import Together
from gpucheck.machine import child
from gpucheck.machine.child import ChildResult
from gpucheck.report.codec import from_json
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# Importing torch and opening two devices takes some seconds, half a minute on a busy machine; the copies two.
CHILD_TIMEOUT_S = 60.0
# What is measured of each ordered pair.
WHAT = {"rate", "latency"}
# torch's names of devices that can copy to each other. The CPU is none, and MPS has but one.
KINDS = ("cuda", "xpu")

RunChild = Callable[[Sequence[str], float], ChildResult]
# The line of a traceback that names the error; CUDA's errors go on for several more.
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said: its measurements, and why there are not more of them; empty where nothing went wrong."""

    measurements: tuple[Measurement, ...]
    reason: str = ""


def applies(ids: Sequence[str]) -> bool:
    """Whether two of these devices can copy to each other without being the host."""
    return bool(pairs(ids))


def pairs(ids: Sequence[str]) -> list[tuple[str, str]]:
    """Every two devices of a kind: neighbours first, so that each device has its turn where time is short."""
    found: list[tuple[str, str]] = []
    for kind in KINDS:
        mine = [one for one in ids if one.partition(":")[0] == kind]
        found += [(mine[at], mine[at + far]) for far in range(1, len(mine)) for at in range(len(mine) - far)]
    return found


def rows(together: Together, run_child: RunChild = child.run) -> Iterator[Measurement]:
    """A row for the rate and one for the latency of every ordered pair; a finding for each pair without.

    The pairs for which there is no time are told in one finding; the first is always measured.
    """
    todo = pairs(together.ids)
    for done, (first, second) in enumerate(todo):
        if done and time.monotonic() >= together.deadline:
            together.emit(Skipped(_no_time(todo[done:], len(todo))))
            return
        together.emit(Progress(f"{first} and {second}", done, len(todo)))
        argv = child.python_argv("gpucheck.bench.transfer.peer_child", first, second)
        answer = read(run_child(argv, CHILD_TIMEOUT_S))
        for one in answer.measurements:
            yield replace(one, device=replace(one.device, uuid=_uuid(one.device.id, together.facts) or one.device.uuid))
        for source, destination in ((first, second), (second, first)):
            seen = {one.case["what"] for one in answer.measurements if one.case["source"] == source}
            if seen < WHAT:
                together.emit(Skipped(_missing(source, destination, seen, answer.reason or "nothing was said of it")))


def read(ended: ChildResult) -> Answer:
    """What a child said on its stdout, also one that did not come to its end; lines of others are passed over."""
    measurements: list[Measurement] = []
    reason = _how(ended)
    for line in ended.stdout.splitlines():
        said = _object(line)
        if "measurement" in said:
            measurements.append(from_json(Measurement, said["measurement"]))
        elif "error" in said:
            reason = str(said["error"])
    return Answer(tuple(measurements), reason)


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line; empty for what is none: a library's word, or a line cut off by the child's death."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _how(ended: ChildResult) -> str:
    """How the child ended, where that was not as it should."""
    if ended.timed_out:
        still = " and could not be ended" if ended.abandoned else ""
        return f"its process did not end within {units.duration(CHILD_TIMEOUT_S)}{still}"
    if ended.returncode == 0:
        return ""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    words = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")
    how = f"ended with {ended.returncode}"
    if ended.returncode is not None and ended.returncode < 0:
        how = f"was ended by {_signal(-ended.returncode)}"
    return f"its process {how}{f': {words}' if words else ''}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _missing(source: str, destination: str, seen: set[str], reason: str) -> Finding:
    what = " and ".join(sorted(WHAT - seen, reverse=True))
    return Finding(
        NAME,
        "inconclusive",
        f"the {what} of copies from {source} to {destination} could not be measured",
        reason,
        {"source": source, "destination": destination, "reason": reason},
        fix=f"run `gpucheck devices`; if {source} and {destination} are sound there, look for Xid errors in the system "
        "log",
    )


def _no_time(left: Sequence[tuple[str, str]], total: int) -> Finding:
    return Finding(
        NAME,
        "skip",
        f"{len(left)} of {total} pairs of devices were not measured",
        "the time was up",
        {"pairs": [list(pair) for pair in left]},
        fix="give a longer --time-budget: a pair takes some 10 s",
    )


def _uuid(device_id: str, facts: Facts) -> str | None:
    return next((device.uuid for device in facts.devices if device.id == device_id), None)
