"""The results of a short load: the loaded GPUs, and NVML's readings of each. Data and its making."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gpucheck import units
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine import load_child, talk
from gpucheck.machine.host import held_bytes
from gpucheck.machine.torch_probe import how_it_ended, said
from gpucheck.measure.telemetry import Sample, Watch, summarise
from gpucheck.report.facts import Device
from gpucheck.report.measurement import Run
from gpucheck.report.results.doctor import CardUnderLoad, LoadOutcome, LoadResult

# torch's words where there is no memory, cuBLAS's for the same, and the driver's for a card that one process may use.
TAKEN = ("OutOfMemoryError", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "busy or unavailable")
UNTOLD = "NVML does not report on it, so nothing would be visible"


def why_not(card: Device) -> str:
    """Why a card is not loaded, from a reading without any process of ours on it; empty where it can be."""
    if card.parent_uuid is not None or (card.mig is not None and card.mig.enabled):
        return "NVML reports neither clock nor link of a MIG instance"
    if card.uuid is None or card.nvml_index is None:
        return UNTOLD
    if card.state is not None:
        return card.state
    computing = [process for process in card.processes or () if "compute" in process.kind]
    if computing:
        names = ", ".join(f"{process.name or 'not visible here'} ({process.pid})" for process in computing)
        return f"in use by others: {names}"
    held = held_bytes(card)
    return f"in use by others, which hold {units.capacity(held)} of its memory" if held is not None else ""


def gathered(
    said: Mapping[str, Any],
    failed: str,
    samples: Mapping[str, Sequence[Sample]],
    unseen: Mapping[str, str],
    left_out: dict[str, str],
) -> LoadResult:
    """The load from what its process said, the readings of each card and why there are none, and the cards left out.

    `failed` is how the process ended early, empty where it did not.
    """
    if failed:
        # A card that is full or was taken meanwhile is no fault of its, nor is what happens before torch goes there.
        reached = said.get("stage") in ("prepare", "load")
        outcome: LoadOutcome = "failed" if reached and not any(word in failed for word in TAKEN) else "none"
        return LoadResult(outcome, f"{failed} ({_where(said.get('stage'))})", None, (), left_out)
    run = Run("", 1, (float(said["took_s"]),), (float(said["began_s"]),))
    cards = tuple(_card(device, read, run, unseen.get(device, "")) for device, read in samples.items())
    return LoadResult("ran", None, run.samples_s[0], cards, left_out)


def _where(stage: object) -> str:
    named = {"import": "while torch was imported", "prepare": "as it began", "load": "under load"}
    return named.get(str(stage), "as it was started")


def _card(device: str, samples: Sequence[Sample], run: Run, unseen: str) -> CardUnderLoad:
    if unseen:
        return CardUnderLoad(device, None, unseen, {})
    telemetry, reason = summarise(samples, run)
    start, length = run.started_monotonic_s[0], run.samples_s[0]
    inside = [sample for sample in samples if start <= sample["at_s"] <= start + length]
    names = Counter(name for sample in inside for name in (sample.get("clock_reasons") or {}).get("names", ()))
    return CardUnderLoad(device, telemetry, reason or None, dict(names))


# Clocks and links are up a few tens of milliseconds after work arrives, and NVML's reasons may flash meanwhile.
SETTLE_S = 0.3
# Twenty readings.
LOAD_S = 1.0
# Over this lie importing torch (which was just done), a context for each card and the load itself.
TIMEOUT_S = 60.0


def is_possible(evidence: Evidence) -> bool:
    """Return whether torch ran something on a device that NVML could watch."""
    return evidence.torch_works and evidence.torch is not None and evidence.torch.hip is None


def run(evidence: Evidence, python: str | None) -> LoadResult:
    """The load on every card that torch can use, that NVML tells of and that nobody else uses."""
    assert evidence.torch is not None
    ran = {one.device for one in evidence.torch.kernels if one.error is None}
    # As of the second reading: at the first torch was at work in a child of ours.
    cards = {card.id: card for card in evidence.cards if card.id in ran and card.id is not None}
    left_out = {name: why for name, card in cards.items() if (why := why_not(card))}
    left_out |= dict.fromkeys(ran - set(cards), UNTOLD)
    loaded = {name: card.uuid for name, card in cards.items() if name not in left_out}
    if not loaded:
        return LoadResult("none", "no GPU is free for it", None, (), left_out)
    # An import that is slow enough to be given more time is so again.
    timeout_s = max(TIMEOUT_S, evidence.torch.limit_s or 0.0)
    return _run(loaded, left_out, python, timeout_s)


def _run(loaded: dict[str, str | None], left_out: dict[str, str], python: str | None, timeout_s: float) -> LoadResult:
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
        late = f"it did not finish within {timeout_s:g} s"
        failed = late if heard.ending.how == "late" else str(told.get("error") or how_it_ended(heard.ending))
    return gathered(told, failed, samples, unseen, left_out)
