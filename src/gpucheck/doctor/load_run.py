"""Load the cards that torch can use for a second, in a child of the interpreter that is diagnosed, and read NVML."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from gpucheck.doctor import load
from gpucheck.doctor.evidence import Evidence
from gpucheck.doctor.load import Load
from gpucheck.machine import load_child, talk
from gpucheck.machine.torch_probe import how_it_ended, said
from gpucheck.measure.telemetry import Watch

# Clocks and links are up a few tens of milliseconds after work arrives, and NVML's reasons may flash meanwhile.
SETTLE_S = 0.3
# Twenty readings.
LOAD_S = 1.0
# Over this lie importing torch (which was just done), a context for each card and the load itself.
TIMEOUT_S = 60.0


def is_possible(evidence: Evidence) -> bool:
    """Whether torch ran something on a device that NVML could watch."""
    return evidence.torch_works and evidence.torch is not None and evidence.torch.hip is None


def run(evidence: Evidence, python: str | None) -> Load:
    """The load on every card that torch can use, that NVML tells of and that nobody else uses."""
    assert evidence.torch is not None
    ran = {one.device for one in evidence.torch.kernels if one.error is None}
    # As of the second reading: at the first torch was at work in a child of ours.
    cards = {card.id: card for card in evidence.cards if card.id in ran and card.id is not None}
    left_out = {name: why for name, card in cards.items() if (why := load.why_not(card))}
    left_out |= dict.fromkeys(ran - set(cards), load.UNTOLD)
    loaded = {name: card.uuid for name, card in cards.items() if name not in left_out}
    if not loaded:
        return Load("none", "no card is free for it", left_out=left_out)
    # An import that is slow enough to be given more time is so again.
    timeout_s = max(TIMEOUT_S, evidence.torch.limit_s or 0.0)
    return _run(loaded, left_out, python, timeout_s)


def _run(loaded: dict[str, str | None], left_out: dict[str, str], python: str | None, timeout_s: float) -> Load:
    text = Path(load_child.__file__).read_text(encoding="utf-8")
    argv = [python or sys.executable, "-c", text, str(SETTLE_S), str(LOAD_S), *loaded]
    with ExitStack() as stack:
        watches = {name: stack.enter_context(Watch(uuid)) for name, uuid in loaded.items()}
        heard = talk.run(argv, timeout_s)
        samples = {name: watch.take() for name, watch in watches.items()}
        unseen = {name: watch.reason for name, watch in watches.items() if watch.reason}
    told = said(heard.lines)
    failed = ""
    if told.get("stage") != "end":
        late = f"it did not end within {timeout_s:g} s"
        failed = late if heard.ending.how == "late" else str(told.get("error") or how_it_ended(heard.ending))
    return load.gathered(told, failed, samples, unseen, left_out)
