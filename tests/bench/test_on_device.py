"""Copies within one device, on a fake whose memory is the host's: counted as they move, verified, judged."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice

from gpucheck.bench.buffers import Buffer, Copies, Room
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import Setting
from gpucheck.errors import CannotLook
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Recorder
from gpucheck.report.facts import Device, Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate

KIB, MIB, GIB = 2**10, 2**20, 2**30
HOST = torch.device("cpu")


@dataclass
class Fake(FakeDevice):
    """A device with a small cache."""

    l2_cache_bytes: int | None = 256 * KIB


def setting(device: Any = None, device_bytes: int | None = 8 * MIB, sizes: tuple[int, ...] = (MIB,)) -> Setting:
    device = device or Fake()
    room = Room(host=4 * MIB, device=device_bytes, cache=KIB, cache_known=True)
    return Setting(TransferOptions(sizes=sizes), device, room, Watch(None), Recorder(), time.monotonic() + 0.1)


def measured(rate: float | None = 4e12, cache: str = "cold", **details: Any) -> Measurement:
    return Measurement(
        name=judge.ON_DEVICE,
        device=DeviceRef("cuda:0"),
        case={"size_bytes": 512 * MIB},
        runs=(),
        time_s=None,
        work={"bytes": float(GIB)},
        rate=None if rate is None else Rate(rate, "B/s"),
        memory=MemoryFigures(),
        method=Method("device events", "held", cache, details={"wrong_bytes": 0, "verified_slices": 4, **details}),
    )


def test_every_byte_counts_twice_and_the_copy_is_compared() -> None:
    (row,) = work.on_device(setting())
    details = row.method.details
    assert (row.name, row.case, row.work) == ("transfer.on_device", {"size_bytes": MIB}, {"bytes": 2.0 * MIB})
    assert (row.method.clock, row.method.launch, row.method.cache) == ("device events", "held", "cold")
    assert (details["bytes_counted"], details["bytes_copied"]) == ("read and written", MIB)
    assert details["verified_slices"] > 0 and details["wrong_bytes"] == 0


def test_small_copies_rotate_over_twice_the_cache_where_there_is_room() -> None:
    (row,) = work.on_device(setting(sizes=(64 * KIB,)))
    assert (row.method.details["rotation_bytes"], row.method.cache) == (512 * KIB, "cold")
    (row,) = work.on_device(setting(Fake(l2_cache_bytes=64 * MIB), sizes=(64 * KIB,)))
    assert (row.method.details["rotation_bytes"], row.method.cache) == (4 * MIB, "warm")


def test_a_device_without_a_clock_is_timed_by_the_hosts() -> None:
    (row,) = work.on_device(setting(Fake(has_events=False)))
    assert (row.method.clock, row.method.launch) == ("host", "host")


def test_a_copy_that_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Copies.call

    def wrong(self: Any) -> None:
        real(self)
        self.destination.words[5] += 1

    monkeypatch.setattr(Copies, "call", wrong)
    (row,) = work.on_device(setting())
    assert row.method.details["wrong_bytes"] > 0
    (found,) = judge.on_device([row], Facts())
    assert (found.id, found.verdict) == ("transfer.on_device", "fail")


def test_the_usual_size_and_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for device_bytes, sizes, size in (
        (7 * MIB, (), 2 * MIB),
        (8 * MIB, (KIB, 3 * MIB), 3 * MIB),
        # Where host and device share their memory the two buffers come out of it.
        (None, (), 2 * MIB),
    ):
        (row,) = work.on_device(setting(device_bytes=device_bytes, sizes=sizes))
        assert row.case == {"size_bytes": size}
    monkeypatch.setattr(work, "ON_DEVICE_BYTES", 512 * KIB)
    (row,) = work.on_device(setting(sizes=()))
    assert row.case == {"size_bytes": 512 * KIB}
    with pytest.raises(CannotLook, match="not enough memory to copy; each of two buffers may use 2 KiB"):
        list(work.on_device(setting(device_bytes=4 * KIB)))


def test_a_device_that_is_full_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, device: torch.device) -> Buffer:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(work, "allocate", refuse)
    with pytest.raises(
        CannotLook, match=r"not enough memory for two buffers of 1\.5 MiB on cuda:0; CUDA out of memory"
    ):
        list(work.on_device(setting()))


def test_the_rate_is_told_in_both_ways_of_counting() -> None:
    (found,) = judge.on_device([measured(), replace(measured(), name="transfer")], Facts())
    assert found.verdict == "info"
    assert found.evidence == {"bytes_per_s": 4e12, "bytes_copied_per_s": 2e12, "size_bytes": 512 * MIB}
    assert judge.on_device([measured(rate=None)], Facts()) == []


def test_the_share_of_the_memory_peak_is_told_where_the_part_is_known() -> None:
    h200 = Device(
        kind="cuda",
        id="cuda:0",
        name="NVIDIA H200",
        compute_capability="9.0",
        multiprocessors=132,
        memory_bus_width_bits=6144,
    )
    (found,) = judge.on_device([measured(rate=4.32e12)], Facts(devices=(h200,)))
    assert found.evidence["share_of_peak"] == pytest.approx(0.9)
    (warm,) = judge.on_device([measured(cache="warm")], Facts(devices=(h200,)))
    assert "share_of_peak" not in warm.evidence


def test_one_bad_run_of_seven_stays_bad() -> None:
    each = [{"details": {"wrong_bytes": 5 if number == 3 else 0}} for number in range(7)]
    (found,) = judge.on_device([measured(each_run=each)], Facts())
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", {"512 MiB": 5})
