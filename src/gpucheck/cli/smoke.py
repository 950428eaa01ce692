"""`gpucheck smoke`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.cli.common import Common
from gpucheck.smoke.options import SmokeOptions

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def smoke(common: Common, options: SmokeOptions) -> int:
    """Test that everything a training job needs works.

    Each check runs on the device and its result is verified. Suitable for CI.
    """
    from gpucheck.cli import session

    def check(emit: Emit) -> None:
        from gpucheck.machine import installed_torch

        installed_torch.load()  # Ctrl-C ends in a report from here on
        from gpucheck.smoke.command import command

        command(options, emit)

    return session.run(common, check)
