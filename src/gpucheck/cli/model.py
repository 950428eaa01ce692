"""`gpucheck model`."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.program.options import ModelOptions


def model(common: Common, options: ModelOptions) -> int:
    """What your model leaves behind on the way to a GPU: weights, memory, and tensors on the wrong device."""
    from gpucheck.cli import session
    from gpucheck.program.command import command

    return session.run(common, lambda emit: command(options, emit))
