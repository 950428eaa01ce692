"""What an earlier reading of NVML adds to a later one: how counters grew, and who a card was that is lost now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpucheck.machine.readings import DeviceReading, NvmlReading
from gpucheck.report.facts import Changes, Device, Link

# What a card is called, which it keeps when it stops answering.
IDENTITY = ("name", "uuid", "pci_address", "serial", "part_number", "minor_number", "compute_capability")
NO_LONGER_LISTED = "NVML no longer lists the card"


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of cards: each as it was last read whole, by UUID, and since when those that are lost are."""

    cards: Mapping[str, Device] = field(default_factory=dict)
    lost_since: Mapping[str, str] = field(default_factory=dict)


def of(devices: Iterable[Device]) -> Memory:
    """The memory of these cards. A MIG instance is no card: it may come and go."""
    return Memory({device.uuid: device for device in devices if device.uuid is not None and _is_well(device)})


def _is_well(device: Device) -> bool:
    return device.nvml_index is not None and device.parent_uuid is None and device.state != "lost"


def added(memory: Memory, reading: NvmlReading, now: str) -> tuple[NvmlReading, Memory]:
    """The reading with what is remembered, and the memory after it. `now` is the time, as it is to be told."""
    listed = {row.device.uuid for row in reading.devices}
    gone = {uuid: card for uuid, card in memory.cards.items() if uuid not in listed}
    rows = [_identified(row, gone) for row in reading.devices]
    identified = {row.device.uuid for row in rows}
    if reading.code == 0 and reading.error is None:
        taken = {row.device.nvml_index for row in rows}
        rows += [_missing(card, taken) for uuid, card in gone.items() if uuid not in identified]
    since = {
        uuid: memory.lost_since.get(uuid, now)
        for row in rows
        if (uuid := row.device.uuid) is not None and row.device.state == "lost" and uuid in memory.cards
    }
    rows = [_compared(_since(row, since), memory) for row in rows]
    return replace(reading, devices=tuple(rows)), Memory(
        {**memory.cards, **of(row.device for row in rows).cards}, since
    )


def _identified(row: DeviceReading, gone: Mapping[str, Device]) -> DeviceReading:
    """A row without a UUID is the card that had its index, where no other row is that card."""
    if row.device.uuid is not None or row.device.nvml_index is None:
        return row
    known = next((card for card in gone.values() if card.nvml_index == row.device.nvml_index), None)
    if known is None:
        return row
    told = {name: getattr(known, name) for name in IDENTITY if getattr(row.device, name) is None}
    unknown = {name: reason for name, reason in row.unknown.items() if name not in told or told[name] is None}
    return DeviceReading(replace(row.device, **told), unknown)


def _missing(card: Device, taken: set[int | None]) -> DeviceReading:
    """A card that was there and is not listed any more: lost, with its index where no other has it now."""
    told = {name: getattr(card, name) for name in IDENTITY}
    index = None if card.nvml_index in taken else card.nvml_index
    return DeviceReading(Device(kind="cuda", nvml_index=index, state="lost", **told), {"*": NO_LONGER_LISTED})


def _since(row: DeviceReading, since: Mapping[str, str]) -> DeviceReading:
    return replace(row, device=replace(row.device, state_since=since.get(row.device.uuid or "")))


def _compared(row: DeviceReading, memory: Memory) -> DeviceReading:
    before = memory.cards.get(row.device.uuid or "")
    grown = None if before is None or not _is_well(row.device) else changes(before, row.device)
    return row if grown is None else replace(row, device=replace(row.device, changes=grown))


def changes(before: Device, now: Device) -> Changes | None:
    """By how much the counters of one card grew; None where one of its readings has no time."""
    if before.read_at_s is None or now.read_at_s is None or now.read_at_s <= before.read_at_s:
        return None
    span_s = now.read_at_s - before.read_at_s
    started, ended = before.violations_s or {}, now.violations_s or {}
    link, later = before.pcie or Link(), now.pcie or Link()
    seconds = {name: _grown(began, ended.get(name)) for name, began in started.items()}
    corrected, uncorrected = (
        _grown(_ecc(before, f"volatile_{kind}"), _ecc(now, f"volatile_{kind}")) for kind in ("corrected", "uncorrected")
    )
    return Changes(
        span_s=span_s,
        violations_s=seconds,
        pcie_replays=_whole(_grown(link.replays, later.replays)),
        pcie_sent_bytes_per_s=_rate(link.sent_bytes, later.sent_bytes, span_s),
        pcie_received_bytes_per_s=_rate(link.received_bytes, later.received_bytes, span_s),
        nvlink_errors=_new_errors(before, now),
        ecc_corrected=_whole(corrected),
        ecc_uncorrected=_whole(uncorrected),
        lasting_clock_reasons=tuple(name for name in _reasons(now) if name in _reasons(before)),
    )


def _grown(began: float | None, ended: float | None) -> float | None:
    """None also for a counter that ran backwards: it was started anew, or wrapped around."""
    return None if began is None or ended is None or ended < began else ended - began


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _rate(began: int | None, ended: int | None, span_s: float) -> float | None:
    grown = _grown(began, ended)
    return None if grown is None else grown / span_s


def _ecc(device: Device, name: str) -> int | None:
    found: int | None = getattr(device.ecc, name) if device.ecc is not None else None
    return found


def _reasons(device: Device) -> tuple[str, ...]:
    return device.clock_reasons.names if device.clock_reasons is not None else ()


def _new_errors(before: Device, now: Device) -> dict[str, int]:
    """New errors of all links together, by their names; without those that did not grow."""
    counted: Counter[str] = Counter()
    earlier = {link.link: link.errors for link in before.nvlinks or ()}
    for link in now.nvlinks or ():
        for name, count in link.errors.items():
            counted[name] += max(count - earlier.get(link.link, {}).get(name, count), 0)
    return {name: count for name, count in counted.items() if count}
