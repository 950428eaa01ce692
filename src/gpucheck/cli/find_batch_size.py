"""`gpucheck find-batch-size`."""

from __future__ import annotations

from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.cli.common import Common


def find_batch_size(common: Common, options: FindBatchSizeOptions) -> int:
    """The largest batch that really trains: every size is run, in a process of its own, and the answer again."""
    from gpucheck.batch_size.command import command
    from gpucheck.cli import session

    return session.run(common, lambda emit: command(options, emit))
