"""A command on a card that pins memory, in a separate process: `python pinned.py PLACE AFTER ARGUMENT…`.

Whatever is pinned ends the process with SIGABRT where it is freed once the card is lost, as torch's own does: the
memory itself does so, through whichever view it was held last. From the AFTER-th call of PLACE on the card is lost;
with an empty PLACE it is sound, and the last line on stderr tells what was called how often, pinned and released.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("../src", "fakes", "record", "faults")]

import failing_card  # noqa: E402 - in the tests' folders
import matrix  # noqa: E402
from failing_card import Card, Plan  # noqa: E402

LOST = "CUDA error: an illegal memory access was encountered"


class PinningCard(Card):
    """A card for which memory can be pinned."""

    @property
    def can_pin(self) -> bool:
        return True


def pinned(plan: Plan, counts: dict[str, int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes of a tensor one like it whose memory is pinned."""

    class Pinned(bytearray):
        def __del__(self) -> None:
            if plan.broken:
                os.abort()
            counts["released"] += 1

    def made(tensor: torch.Tensor) -> torch.Tensor:
        counts["pinned"] += 1
        memory = Pinned(max(tensor.numel(), 1) * tensor.element_size())
        return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape).copy_(tensor)

    return made


def patch(patches: pytest.MonkeyPatch, pin: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let torch pin so, wherever it is asked to."""

    def pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            tensor = make(*shape, **options)
            return pin(tensor) if pin_memory else tensor

        return made

    for name in ("empty", "empty_like", "full", "zeros", "ones"):
        patches.setattr(torch, name, pinning(getattr(torch, name)))
    patches.setattr(torch.Tensor, "pin_memory", pin)
    patches.setattr(torch.Tensor, "is_pinned", lambda tensor: True)


def main() -> int:
    """Run the command line; its exit status."""
    place, after, *arguments = sys.argv[1:]
    counts = {"pinned": 0, "released": 0}
    plan = Plan(place, int(after), RuntimeError(LOST), poisons=True, events=True)
    from gpucheck.cli import app
    from gpucheck.machine import accel, device_lifetime, watchdog

    really_pinned = accel.pinned

    watchdog.GRACE_S = float("inf")  # how busy this machine is decides no test
    with pytest.MonkeyPatch.context() as patches, matrix.on(plan, patches):
        patches.setattr(failing_card, "Card", PinningCard)
        patches.setattr(accel, "pinned", really_pinned)
        patch(patches, pinned(plan, counts))
        patches.setattr(sys, "argv", ["gpucheck", *arguments])
        # The process's own command line would end it here, with what is counted.
        code = app.main(arguments)
        if device_lifetime.is_lost():
            device_lifetime.leave(code)
    sys.stderr.write(json.dumps({"calls": plan.calls, **counts}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
