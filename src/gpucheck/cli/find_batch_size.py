"""`gpucheck find-batch-size`."""

from __future__ import annotations

from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.cli.common import Common


def find_batch_size(common: Common, options: FindBatchSizeOptions) -> int:
    """Find the largest batch size that trains.

    Runs each size in a separate process and confirms the answer with a second run.
    """
    from gpucheck.batch_size.command import command
    from gpucheck.cli import session

    return session.run(common, lambda emit: command(options, emit))
