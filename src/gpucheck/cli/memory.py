"""`gpucheck memory`."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.memory.options import MemoryOptions


def memory(common: Common, options: MemoryOptions) -> int:
    """Whose memory: total, free and used, the processes on it, and torch's four figures explained by example."""
    from gpucheck.cli import session
    from gpucheck.memory.command import command

    return session.run(common, lambda emit: command(options, emit))
