"""The parent's side of a trial: start the child process, watch it, and judge the result. Does not import torch.

A child on the CPU is reused while its trials pass. After any other outcome, a new child replaces it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

import psutil

from gpucheck import messages
from gpucheck.batch_size.outcome import IN_TRIAL, KILLED, MEMORY, End, Setup, SetupFailed, TrialResult, classify
from gpucheck.batch_size.search import Attempt
from gpucheck.errors import CannotLook, DeviceFailed, TargetError
from gpucheck.machine import host
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Ending, Lost, Message, rebuilt
from gpucheck.messages import ChainedError
from gpucheck.report.codec import from_json, to_json
from gpucheck.units import capacity, duration
from gpucheck.work.spec import BUILT_IN


class MemoryGuard:
    """Watches the resident memory of a child once the child has sent its baseline. `limit` is the growth in bytes."""

    def __init__(self, pid: int, limit: int | None) -> None:
        self.pid, self.limit = pid, limit
        self.exceeded: int | None = None
        self.baseline: int | None = None

    def look(self) -> bool:
        """Read the resident memory once. Return whether its growth has exceeded the limit."""
        if self.limit is not None and self.baseline is not None:
            with contextlib.suppress(psutil.Error):
                grown = int(psutil.Process(self.pid).memory_info().rss) - self.baseline
                self.exceeded = grown if grown > self.limit else self.exceeded
        return self.exceeded is not None


# With these settings, the resident set follows the tensors within a few MiB. By default, glibc keeps freed memory.
TUNED_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
# The interval between two readings of resident memory, in which a CPU fills about 0.2 GB.
WATCH_S = 0.02
# Importing torch takes seconds, and up to a minute on a busy machine or a network disk.
START_TIMEOUT_S = 180.0
# A process is replaced if a trial's last step added more than this share of the budget, because the added memory would
# count in the next trial.
KEPT_SHARE = 0.01
# Swapped memory above this counts as growth that the resident set does not show.
SPILL_BYTES = 16 * 2**20
# The free memory that a second process needs: up to 0.7 GiB to load torch, and a reserve for the host.
SPARE_ROOM_BYTES = 2**30

COMMAND = "find-batch-size"


class Runner(contextlib.AbstractContextManager["Runner"]):
    """Runs trials in child processes, and ends them on exit."""

    def __init__(self, setup: Setup, *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self.setup, self.start_timeout_s = setup, start_timeout_s
        self.ready: dict[str, Any] = {}
        self.start_s = 0.0  # the longest start of a child
        self._child: ChildSession | None = None
        self._spare: ChildSession | None = None  # the next child, which already loads torch
        self._watch = MemoryGuard(0, None)
        # The device's free memory when the first child opened it.
        self._free_expected: int | None = None
        # The most bytes outside the allocator in a trial so far. A new process starts with less.
        self._outside = 0
        self._is_fresh = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._drop()
        if self._spare is not None:
            self._spare.stop()

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    @property
    def budget_bytes(self) -> int:
        return int(self.ready["budget"]["bytes"]) if "budget" in self.ready else self.setup.budget_bytes

    def start(self) -> dict[str, Any]:
        """Start a child; return its report. Raises TargetError, CannotLook, and SetupFailed for lack of memory."""
        answer, end = self._start_once()
        if end.killed_by in (KILLED, 15):  # SIGKILL or SIGTERM may have ended the spare child while it waited
            answer, end = self._start_once()
        if answer is None or not answer["ok"]:
            self._drop()
            raise self._setup_error(answer, end)
        self.ready, self._is_fresh = answer, True
        if self._free_expected is None:
            self._free_expected = answer.get("free_at_open")
        return answer

    @property
    def needs_start(self) -> bool:
        return self._child is None

    def prepare(self, attempt: Attempt) -> None:
        """Start a child if this trial needs a new one. Raises the errors of `start`."""
        if self.needs_start or (attempt.purpose == "confirm" and not self._is_fresh):
            self.start()

    def _new_process(self) -> ChildSession:
        """Start a process that loads torch and waits for its setup. Raises CannotLook."""
        argv = python_argv("gpucheck.batch_size.trial")
        environment = {**os.environ, **(TUNED_MALLOC if self.setup.is_cpu else {}), IN_TRIAL: "1"}
        try:
            return ChildSession(lambda: LineChild(argv, env=environment))
        except Lost as lost:
            what = "cannot start a process for a trial"
            raise CannotLook(what, lost.ending.reason, finding="batch_size.start") from lost

    def _start_once(self) -> tuple[dict[str, Any] | None, End]:
        """Start a child. Return its answer to the setup, or None with the end of the child."""
        self._drop()
        began = time.monotonic()
        self._child, self._spare = self._spare or self._new_process(), None
        # Most trials on a device need a new process, so the next process starts now. On a CPU, a starting process would
        # disturb the timing of a trial, so only the first child has a spare one.
        is_cpu, needed = self.setup.is_cpu, SPARE_ROOM_BYTES + (self.budget_bytes if self.setup.is_cpu else 0)
        if not (is_cpu and self.ready) and host.memory().usable >= needed:
            with contextlib.suppress(CannotLook):  # a trial that needs a process reports this error
                self._spare = self._new_process()
        self._watch = MemoryGuard(self._child.pid, self.setup.watch_bytes if self.setup.is_cpu else None)
        message = {**to_json(self.setup), "free_expected": self._free_expected}
        answer, end = self._ask(message, time.monotonic() + self.start_timeout_s)
        if answer is not None:  # the spare child has already loaded torch, but the next child may not have
            self.start_s = max(self.start_s, time.monotonic() - began)
        return answer, end

    def run(self, attempt: Attempt, *, steps: int, limit_s: float, deadline: float) -> TrialResult:
        """Run one trial. After `limit_s` it is a `timeout`, after `deadline` `out-of-time`. Raises `start`'s errors."""
        self.prepare(attempt)
        blank = TrialResult(
            batch_size=attempt.size, purpose=attempt.purpose, fresh_process=self._is_fresh, outcome="fits"
        )
        self._is_fresh = False
        if self.ready.get("settled") is False:
            self._drop()
            why = "another process took device memory that was free before the first trial"
            return replace(blank, outcome="inconclusive", reason=why)
        started = time.monotonic()
        until = min(started + limit_s, deadline)
        # The keys are the parameters of `trial.Session.trial`.
        request = {
            "size": attempt.size,
            "steps": steps,
            # Additional steps get half of the time. The other half is a reserve.
            "spare_s": (until - started) / 2,
            "confirming": attempt.purpose == "confirm",
            "outside": self._outside,
        }
        answer, end = self._ask(request, until)
        blank = replace(blank, seconds=time.monotonic() - started)
        if answer is not None and answer["ok"]:
            # The keys of a child's answer are the names of a result's fields.
            self._outside = max(self._outside, answer.get("outside_bytes", 0))
            result = self._judged(from_json(TrialResult, {**to_json(blank), **answer}), answer)
        else:
            result = self._failed(blank, answer, end, limit_s)
            if end.timed_out and deadline < started + limit_s:
                why = f"--time-budget ended it after {duration(blank.seconds)}"
                result = replace(result, outcome="out-of-time", reason=why)
        # Each trial on a device has its own process.
        levels = result.levels_bytes
        is_growing = len(levels) > 1 and levels[-1] - levels[-2] > KEPT_SHARE * self.budget_bytes
        if result.outcome != "fits" or is_growing or not self.setup.is_cpu:
            self._drop()
        return result

    def _judged(self, result: TrialResult, answer: dict[str, Any]) -> TrialResult:
        peak, budget = result.peak_bytes or 0, self.budget_bytes
        if peak > budget:
            why = f"peak exceeds the budget by {capacity(peak - budget)}"
            return replace(result, outcome="over-budget", reason=why)
        if peak + result.unsettled_bytes > budget:
            why = f"the allocator took {capacity(result.unsettled_bytes)} more in the last two steps"
            return replace(result, outcome="over-budget", reason=f"{why}, and only {capacity(budget - peak)} are left")
        if answer["swapped_bytes"] > SPILL_BYTES:
            return replace(result, outcome="spill", reason=f"{capacity(answer['swapped_bytes'])} went to swap")
        if answer["retries_always"]:
            why = "the allocator emptied its cache in each of the last three steps"
            return replace(result, outcome="over-budget", reason=why)
        if (retries := result.allocation_retries) > 0:
            why = f"runs, but the allocator emptied its cache {retries}× in {len(result.steps_s)} steps"
            return replace(result, reason=why)
        return result

    def _failed(self, blank: TrialResult, answer: dict[str, Any] | None, end: End, limit_s: float) -> TrialResult:
        if answer is not None and "error" in answer:
            error = answer["error"]
            return replace(blank, outcome="user-error", reason=str(rebuilt(error)), trace=error["trace"])
        if self._watch.exceeded is not None:
            why = f"resident memory grew by {capacity(self._watch.exceeded)}, more than the limit"
            return replace(blank, outcome="over-budget", reason=why, peak_bytes=self._watch.exceeded)
        outcome = classify(end, self.ready.get("kind", self.setup.device.split(":")[0]))
        trace = answer["traceback"] if answer is not None else end.stderr_tail
        return replace(blank, outcome=outcome, reason=_in_words(end, limit_s), trace=trace)

    def _setup_error(self, answer: dict[str, Any] | None, end: End) -> Exception:
        if answer is not None and "error" in answer:
            error = rebuilt(answer["error"])
            cause = messages.cause_of(error.why) if isinstance(error, CannotLook) else None
            if cause is not None and cause.whose == "device":
                return DeviceFailed(error.what, error.why, cause.fix, device=self.setup.device)
            return error
        if end.timed_out:
            what = f"no trial could start within {duration(self.start_timeout_s)}"
            why = f"importing torch or building {self.setup.target} takes longer, or hangs"
            return CannotLook(what, why, "see `gpucheck smoke`", finding="batch_size.start")
        if self._watch.exceeded is not None:
            return SetupFailed(f"the build took {capacity(self._watch.exceeded)}")
        outcome = classify(end, self.setup.device.split(":")[0])
        reason = _in_words(end, self.start_timeout_s)
        if outcome in MEMORY:
            return SetupFailed(reason)
        if answer is None:
            return CannotLook("the trial process ended before the first trial", reason, "run again with --debug")
        is_opening = answer.get("stage") == "device"
        if end.raised and (device_error := failed_device(self.setup, reason, is_opening=is_opening)) is not None:
            return device_error
        if is_opening:
            return CannotLook(f"{self.setup.device} cannot be used", reason, "see `gpucheck smoke`")
        what, fix = f"the target {self.setup.target} raised {reason}", "run with --debug to see the traceback"
        return TargetError(what, "", fix, trace=answer["traceback"])

    def _ask(self, message: dict[str, Any], until: float) -> tuple[Message | None, End]:
        """Send a request and watch the child until its answer, its end, or `until` on the monotonic clock."""
        assert self._child is not None
        kills = host.memory_kills()
        try:
            self._child.send(message)
            while True:
                answer = self._child.receive(min(WATCH_S, max(until - time.monotonic(), 0.0)))
                if answer is not None and "ok" not in answer:  # a child on the CPU sends its baseline first
                    self._watch.baseline = answer["baseline_bytes"]
                elif answer is not None:
                    return answer, End(raised=tuple(from_json(ChainedError, link) for link in answer.get("chain", ())))
                elif self._watch.look() or time.monotonic() >= until:
                    self._child.stop()
                    return None, End(timed_out=self._watch.exceeded is None)
        except Lost as lost:
            return None, _end_of(lost.ending, kills)


def _end_of(ending: Ending, kills: int | None) -> End:
    """Return the end of a child without an answer. `kills` is the kernel's count of out-of-memory kills before it."""
    status, tail = ending.status or 0, ending.stderr[-2000:]
    if status >= 0:
        return End(exit_status=status, stderr_tail=tail)
    now = host.memory_kills()
    is_memory = kills is not None and now is not None and now > kills
    return End(killed_by=-status, kernel_says_memory=is_memory, stderr_tail=tail)


def _in_words(end: End, limit_s: float) -> str:
    if end.timed_out:
        return f"no answer within {duration(limit_s)}"
    if end.raised:
        first = end.raised[0]
        # The rest of torch's message (device, allocator, documentation) would fill a screen.
        text = (first.message.strip().splitlines() or [""])[0].partition(" GPU ")[0]
        return f"{first.classes[0].removeprefix('builtins.')}" + (f": {text}" if text else "")
    if end.killed_by == KILLED and end.kernel_says_memory:
        return "killed by the kernel: the machine's memory ran out"
    if end.killed_by == KILLED:
        return "killed by SIGKILL, but not by the kernel's out-of-memory killer"
    lines = end.stderr_tail.strip().splitlines()
    last_line = f" ({lines[-1]})" if lines else ""
    if end.killed_by is not None:
        return f"killed by {Ending('killed', -end.killed_by).signal}{last_line}"
    return f"exit status {end.exit_status}{last_line or ('' if end.exit_status else ' and no answer')}"


def failed_device(setup: Setup, reason: str, *, is_opening: bool = False) -> DeviceFailed | None:
    """Return the device's error if `reason` is an error of the device. None means that the workload is at fault.

    A built-in workload with default settings runs without errors on a CPU, so its errors are those of the device.
    If `is_opening`, the workload has not run yet.
    """
    name, cause = reason.partition(":")[0], messages.cause_of(reason)
    has_defaults = not setup.inputs and setup.dtype is None and not setup.recipe.amp
    is_built_in = setup.target in BUILT_IN and has_defaults and not is_opening and not setup.is_cpu
    # Other exception classes belong to the workload. A wrong input causes a failed assertion in a kernel.
    is_of_library = f"builtins.{name}" in messages.LIBRARY_ERRORS or name in messages.LIBRARY_ERRORS
    is_known = is_of_library and cause is not None and cause.whose == "device" and cause.id != "cuda.device_assert"
    is_unsupported = (cause is not None and cause.whose == "memory") or "not implemented for" in reason
    if not is_known and (not is_built_in or is_unsupported):
        return None
    title = cause.title if cause is not None and is_known else f"the built-in {setup.target} fails"
    return DeviceFailed(f"{setup.device} failed: {title}", reason, cause.fix if cause else "", device=setup.device)
