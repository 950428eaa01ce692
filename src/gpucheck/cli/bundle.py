"""`gpucheck doctor --bundle FILE`: what was read, redacted, as one archive for a bug report."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpucheck.cli.outputs import Wanted
from gpucheck.doctor import bundle
from gpucheck.doctor.bundle import Held
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine import identity, kernel_driver
from gpucheck.render import archive, terminal, text
from gpucheck.report.report import Report

OPTION = "--bundle"
# Whoever may read it is its owner's to say: not all that is private can be told from other text.
MODE = 0o600
# Lines are wrapped as on a wide terminal.
WIDTH = 120


@dataclass(slots=True)
class Bundle:
    """A bundle on its way: `hold` gives it what was read, and `wanted` has it written with the command's files."""

    path: str
    held: Held = field(default_factory=Held)

    @property
    def wanted(self) -> Wanted:
        """The file as the session prepares and writes it."""
        return Wanted(
            OPTION, self.path, {suffix: self._packed(pack) for suffix, pack in archive.SUFFIXES.items()}, MODE
        )

    @property
    def notice(self) -> str:
        """What the user should know before sending it."""
        return (
            f"{self.path} is for a bug report: names, addresses and secrets are replaced as far as they can be told; "
            "look through it before you send it"
        )

    def hold(self, evidence: Evidence) -> None:
        """Keep the evidence, and read what else a bundle needs."""
        self.held = Held(evidence, kernel_driver.state())

    def _packed(self, pack: Callable[[Mapping[str, str], datetime], bytes]) -> Callable[[Report], bytes]:
        def made(report: Report) -> bytes:
            # Also where the command was cut off before there was any evidence.
            held = replace(self.held, identity=identity.read(), environment=dict(os.environ))
            return pack(
                bundle.members(report, held, plain), datetime.fromisoformat(report.started.replace("Z", "+00:00"))
            )

        return made


def plain(report: Report) -> str:
    """The report as a terminal shows it, without colours."""
    held = io.StringIO()
    terminal.show(terminal.plain_console(held, WIDTH), text.blocks(report, verbose=True))
    return held.getvalue()
