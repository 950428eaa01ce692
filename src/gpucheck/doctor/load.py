"""What a short load showed: which cards were loaded, and what NVML told of each meanwhile. Data and its making."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucheck import units
from gpucheck.machine.others import held_bytes
from gpucheck.measure.telemetry import Sample, summarise
from gpucheck.report.facts import Device
from gpucheck.report.measurement import Run
from gpucheck.report.results.doctor import CardUnderLoad, LoadOutcome, LoadResult

# torch's words where there is no memory, cuBLAS's for the same, and the driver's for a card that one process may use.
TAKEN = ("OutOfMemoryError", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "busy or unavailable")
UNTOLD = "NVML does not tell of it, so that nothing would be seen"


@dataclass(frozen=True, slots=True)
class CardLoad:
    """One card under load: `telemetry` as measurements carry it, or None and why; `held_by` is in how many of its
    readings each of NVML's reasons for a lower clock was given."""

    device: str
    telemetry: Mapping[str, Any] | None = None
    reason: str = ""
    held_by: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """The load: what became of it, and why where it did not run; `left_out` are cards it was kept from, with why."""

    outcome: LoadOutcome
    reason: str = ""
    load_s: float | None = None
    cards: tuple[CardLoad, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def told(self) -> LoadResult:
        """As it stands in the document."""
        cards = tuple(
            CardUnderLoad(
                device=card.device,
                telemetry=None if card.telemetry is None else dict(card.telemetry),
                reason=card.reason or None,
                held_by=dict(card.held_by),
            )
            for card in self.cards
        )
        return LoadResult(self.outcome, self.reason or None, self.load_s, cards, dict(self.left_out))


def why_not(card: Device) -> str:
    """Why a card is not loaded, from a reading without any process of ours on it; empty where it can be."""
    if card.parent_uuid is not None or (card.mig is not None and card.mig.enabled):
        return "NVML tells neither clock nor link of a MIG instance"
    if card.uuid is None or card.nvml_index is None:
        return UNTOLD
    if card.state is not None:
        return card.state
    computing = [process for process in card.processes or () if "compute" in process.kind]
    if computing:
        names = ", ".join(f"{process.name or 'not visible here'} ({process.pid})" for process in computing)
        return f"in use by others: {names}"
    held = held_bytes(card)
    return f"in use by others, who hold {units.capacity(held)} of its memory" if held is not None else ""


def gathered(
    said: Mapping[str, Any],
    failed: str,
    samples: Mapping[str, Sequence[Sample]],
    unseen: Mapping[str, str],
    left_out: Mapping[str, str],
) -> Load:
    """The load from what its process said, the readings of each card and why there are none, and the cards left out.

    `failed` is how the process ended early, empty where it did not.
    """
    if failed:
        # A card that is full or was taken meanwhile is no fault of its, nor is what happens before torch goes there.
        reached = said.get("stage") in ("prepare", "load")
        outcome: LoadOutcome = "failed" if reached and not any(word in failed for word in TAKEN) else "none"
        return Load(outcome, f"{failed} ({_where(said.get('stage'))})", left_out=left_out)
    run = Run("", 1, (float(said["took_s"]),), (float(said["began_s"]),))
    cards = tuple(_card(device, read, run, unseen.get(device, "")) for device, read in samples.items())
    return Load("ran", load_s=run.samples_s[0], cards=cards, left_out=left_out)


def _where(stage: object) -> str:
    named = {"import": "as torch was imported", "prepare": "as it began", "load": "under load"}
    return named.get(str(stage), "as it was started")


def _card(device: str, samples: Sequence[Sample], run: Run, unseen: str) -> CardLoad:
    if unseen:
        return CardLoad(device, reason=unseen)
    telemetry, reason = summarise(samples, run)
    start, length = run.started_monotonic_s[0], run.samples_s[0]
    inside = [sample for sample in samples if start <= sample["at_s"] <= start + length]
    names = Counter(name for sample in inside for name in (sample.get("clock_reasons") or {}).get("names", ()))
    return CardLoad(device, telemetry, reason, dict(names))
