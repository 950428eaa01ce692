"""`gpucheck memory`."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.memory.options import MemoryOptions


def memory(common: Common, options: MemoryOptions) -> int:
    """Show who uses GPU memory and what torch's figures mean.

    Shows total, free and used memory, the processes that hold it, and torch's four memory figures by example.
    """
    from gpucheck.cli import session
    from gpucheck.memory.command import command

    return session.run(common, lambda emit: command(options, emit))
