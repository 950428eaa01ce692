"""Runs commands on planned cards, each in a separate process, forked from one that has loaded torch already.

One line of JSON in for each: the arguments, the plan, and how the device or the process ends. One line out: its status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
from typing import Any

import matrix
import pytest
import torch
import torch._dynamo  # what `matrix` dispatches by loads it at the first call: here once, not in each child
from failing_card import Plan

import gpucheck
from gpucheck.cli.app import main
from gpucheck.machine import watchdog

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}


def plan_of(asked: dict[str, Any]) -> Plan:
    """A card that raises, hangs, or meets a signal at the call that was asked for."""
    how = asked["how"]
    if how == "raise":
        return Plan(asked["call"], asked["after"], matrix.ERRORS["ecc"].raised, poisons=True)
    plan = Plan(hangs=True)

    def seen(name: str) -> None:
        if name == asked["call"] and plan.calls.get(name, 0) == asked["after"]:
            if how in SIGNALS:
                os.kill(os.getpid(), SIGNALS[how])
            else:
                plan.broken = True  # from now on it answers nothing any more, nor to whoever asks whether it does

    plan.seen = seen
    return plan


def run(asked: dict[str, Any]) -> int:
    """The command, in this process, with its output in a file."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{asked['folder']}/{name}", os.O_CREAT | os.O_WRONLY), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watchdog.GRACE_S = float("inf")  # how busy this machine is decides no test
    if asked["how"] == "hang":
        watchdog.SILENT_S, watchdog.ANSWER_S, watchdog.LOOK_EVERY_S = 0.4, 0.2, 0.05
    with pytest.MonkeyPatch.context() as patches, matrix.on(plan_of(asked), patches):
        return main(asked["arguments"])


def serve() -> None:
    """Fork for each line, and say how the process ended."""
    torch.set_num_threads(1)  # threads do not survive a fork
    # All that a command loads as it needs it, once for every child.
    for module in pkgutil.walk_packages(gpucheck.__path__, "gpucheck."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()  # and no child looks for garbage in what is here already
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = run(json.loads(line))
                sys.stdout.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
