"""`gpucheck stress`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.cli.common import Common
from gpucheck.stress.options import StressOptions

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def stress(common: Common, options: StressOptions) -> int:
    """Load every device at once and verify every result.

    Every result is compared bit for bit with the first one and with devices of the same model. On a CPU each core is
    tested.
    """
    from gpucheck.cli import session
    from gpucheck.stress.judge import judge

    def load(emit: Emit) -> None:
        from gpucheck.stress.command import command

        command(options, emit)

    return session.run(common, load, judge=judge)
