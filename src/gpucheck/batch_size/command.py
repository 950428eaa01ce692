"""`gpucheck find-batch-size`: from options to events."""

from __future__ import annotations

import contextlib
import os
import time

from gpucheck.batch_size import ends, estimate, several
from gpucheck.batch_size.exchange import IN_TRIAL, TRIAL_TIMEOUT_LEAST_S
from gpucheck.batch_size.hunt import Hunt
from gpucheck.batch_size.options import Options, Plan, plan
from gpucheck.batch_size.prepare import for_estimate, prepare
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.trial_log import TrialLog, identity_of
from gpucheck.errors import DeviceFailed, UsageError
from gpucheck.machine import choose, faults, inventory
from gpucheck.report.events import Emit, Failed, Notice, Started

CPU_TIME_BUDGET_S = 60.0
DEVICE_TIME_BUDGET_S = 300.0


def command(options: Options, emit: Emit) -> None:
    """Find the largest batch that fits.

    Raises UsageError and TargetError for the user's errors and CannotLook where the device cannot be used. That not
    even the smallest batch fits, or that time ran out before any passed, is a finding.
    """
    began = time.monotonic()
    if IN_TRIAL in os.environ:
        raise UsageError(
            "a trial of a search begins another",
            "trials import the script that the target is in",
            'put what the script does under `if __name__ == "__main__":`',
        )
    made = plan(options)
    if options.estimate:
        _estimate(made, began, emit)
        return
    facts = inventory.read(processes=True)
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    for text in (chosen.notice, None if options.target else "no TARGET given: searching for the built-in transformer"):
        if text:
            emit(Notice(text))
    default = CPU_TIME_BUDGET_S if chosen.ids == ("cpu",) else DEVICE_TIME_BUDGET_S * len(chosen.ids)
    deadline = began + (options.time_budget_s or default)

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(TrialLog(options.resume, identity_of(made, facts))) if options.resume else None

        def search(device_id: str, devices_left: int, emit: Emit) -> None:
            seconds = (deadline - time.monotonic()) / devices_left
            setup, budget = prepare(made, device_id, facts, emit)
            with Runner(setup, start_timeout_s=max(seconds, TRIAL_TIMEOUT_LEAST_S)) as runner:
                Hunt(made, emit, facts, runner, budget, time.monotonic() + seconds, log).run()

        if len(chosen.ids) == 1:
            try:
                search(chosen.ids[0], 1, emit)
            except DeviceFailed as error:
                emit(Failed(faults.of(error, ends.WHERE, chosen.ids[0])))
        else:
            several.each(chosen.ids, search, emit)


def _estimate(made: Plan, began: float, emit: Emit) -> None:
    """Estimate for a device that is not here, without looking at any."""
    memory, kind = estimate.checked(made.limit, made.options.device)
    emit(Started(inventory.read()))
    deadline = began + (made.options.time_budget_s or DEVICE_TIME_BUDGET_S)
    estimate.estimate(for_estimate(made, kind, memory), memory, made.sizes, deadline, emit)
