"""`gpucheck model`."""

from __future__ import annotations

from gpucheck.cli.common import Common
from gpucheck.program.options import ModelOptions


def model(common: Common, options: ModelOptions) -> int:
    """Show what a model leaves behind on its way to a GPU.

    Its weights, what a training step adds to them, and every tensor on the wrong device, with its line. Needs no GPU.
    """
    from gpucheck.cli import session
    from gpucheck.program.command import command

    return session.run(common, lambda emit: command(options, emit))
