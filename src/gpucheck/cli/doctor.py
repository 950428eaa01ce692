"""`gpucheck doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.cli.common import Common
from gpucheck.doctor.options import DoctorOptions

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def doctor(common: Common, options: DoctorOptions) -> int:
    """Find out why torch does not use the GPU, and how to fix it.

    Shows the first broken layer from hardware to torch, the evidence and the fix.
    """
    from gpucheck.cli import session

    packed = None
    if options.bundle:
        from gpucheck.cli.bundle import Bundle

        packed = Bundle(options.bundle)

    def diagnose(emit: Emit) -> None:
        from gpucheck.doctor.command import command
        from gpucheck.report.events import Notice

        evidence = command(options, emit)
        if packed is not None:
            packed.hold(evidence)
            emit(Notice(packed.notice))

    return session.run(common, diagnose, [packed.wanted] if packed is not None else [])
