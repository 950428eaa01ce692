"""`gpucheck devices`."""

from __future__ import annotations

import sys

from gpucheck.cli.common import Common
from gpucheck.devices.options import DevicesOptions
from gpucheck.errors import UsageError


def devices(common: Common, options: DevicesOptions) -> int:
    """Show each device: memory, load, power, temperature, link.

    Also shows the index that CUDA and NVML use for each device, and which devices are hidden.
    """
    if options.watch_s is not None and (common.json or common.output):
        raise UsageError(
            "--watch refreshes the screen", "--json and --output write one result", "give one or the other"
        )
    from gpucheck.machine.asleep import sleeping
    from gpucheck.machine.child import LIBCUDA_READER, NVML_READER, Ahead

    # They take as long to load as this process does from here on. There is no NVIDIA driver for macOS.
    readers = (NVML_READER, LIBCUDA_READER) if sys.platform != "darwin" and not sleeping() else ()
    with Ahead(*readers) as ahead:
        from gpucheck.cli import session
        from gpucheck.devices.command import command

        if options.watch_s is None:
            return session.run(common, lambda emit: command(options, emit, ahead=ahead))
        return session.watch(common, lambda emit: command(options, emit, ahead=ahead), options.watch_s)
