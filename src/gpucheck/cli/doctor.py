"""`gpucheck doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.cli.common import Common
from gpucheck.health.options import DoctorOptions

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def doctor(common: Common, options: DoctorOptions) -> int:
    """Why does torch not use my GPU? The first broken rung, its evidence and the fix."""
    from gpucheck.cli import session

    packed = None
    if options.bundle:
        from gpucheck.cli.bundle import Bundle

        packed = Bundle(options.bundle)

    def diagnose(emit: Emit) -> None:
        from gpucheck.health.doctor.command import Options, command
        from gpucheck.machine.torch_probe import TIMEOUT_S
        from gpucheck.report.events import Notice

        limit_s = options.timeout_s or TIMEOUT_S
        evidence = command(Options(options.python, options.only, options.skip, options.require, limit_s), emit)
        if packed is not None:
            packed.hold(evidence)
            emit(Notice(packed.notice))

    return session.run(common, diagnose, [packed.wanted] if packed is not None else [])
