"""What the commands take, by their whole names: `schema`, which takes nothing, is not among them."""

from __future__ import annotations

from gpucheck.cli import commands

PARAMETERS = {name: taken for name in commands.names() if (taken := commands.parameters(name))}
