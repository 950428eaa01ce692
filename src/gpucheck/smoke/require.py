"""What the command line asks of the machine, judged by the torch of this process."""

from __future__ import annotations

import torch

from gpucheck.machine import accel, choose
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding


def judge(require: str | None, min_devices: int | None, facts: Facts) -> list[Finding]:
    """The findings on this machine."""
    driver = facts.driver
    # torch of this process would wait for libcuda for ever, and nobody could end it.
    hung = driver is not None and driver.cuinit_code is None and driver.is_hung
    kind = None if hung else accel.default_accelerator()
    count = accel.device_count(kind) if kind else 0
    seen = choose.Usable(kind, count, torch.version.hip is not None)
    return choose.judge_required(require, min_devices, seen, facts)
