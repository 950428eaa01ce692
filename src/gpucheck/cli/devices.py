"""`gpucheck devices`."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.devices.options import DevicesOptions
from gpucheck.errors import UsageError


def devices(common: Common, options: DevicesOptions) -> int:
    """What is there: every device with its index for CUDA and for NVML, memory, clocks, power and link."""
    from gpucheck.cli import session
    from gpucheck.devices.command import command

    if options.watch_s is not None and (common.json or common.output):
        raise UsageError("--watch refreshes a screen", "--json and --output hold one result", "give one or the other")
    if options.watch_s is None:
        return session.run(common, lambda emit: command(options, emit))
    return session.watch(common, lambda emit: command(options, emit), options.watch_s)
