"""What `run` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.options import option


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user asked for."""

    program: tuple[str, ...] = option(
        "The program and its arguments, as python takes them.",
        name="SCRIPT",
        metavar="SCRIPT [ARGS]...",
        positional=True,
        repeat=True,
        commas=False,
        required=True,
        verbatim=True,
    )
    module: bool = option("SCRIPT is a module, run as python -m runs it.", False, short="-m")
    trace: int | None = option(
        "Look at N steps with everything: who makes and keeps memory, by line. Slows these steps.",
        metavar="N",
        parse=units.Whole(largest=1000),
    )
    memory: bool = option("The same as --trace 5; on CUDA also record a snapshot for torch's viewer.", False)

    @property
    def traced(self) -> int:
        """How many steps to look at with everything."""
        return self.trace if self.trace is not None else TRACED if self.memory else 0


# A leak shows from one step to the next; some more make sure that it goes on.
TRACED = 5
