"""`gpucheck devices`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpucheck.cli.common import Common
from gpucheck.errors import UsageError


def devices(
    common: Common,
    processes: Annotated[bool, typer.Option("--processes", help="List the processes on each device.")] = False,
    watch: Annotated[str, typer.Option("--watch", metavar="SECONDS", help="Refresh in place until Ctrl-C.")] = "",
) -> int:
    """What is there: every device with its index for CUDA and for NVML, memory, clocks, power and link."""
    from gpucheck import units
    from gpucheck.cli import session
    from gpucheck.health import devices as health

    interval = units.parse_duration(watch, "--watch") if watch else None
    if interval is not None and (common.json or common.output):
        raise UsageError("--watch refreshes a screen", "--json and --output hold one result", "give one or the other")
    options = health.Options(processes=processes, watch_s=interval, device=common.device)
    if interval is None:
        return session.run(common, lambda emit: health.command(options, emit))
    return session.watch(common, lambda emit: health.command(options, emit), interval)
