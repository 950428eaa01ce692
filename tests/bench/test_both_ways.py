"""Both directions at once: which windows count, on a simulated device; copies and judging on the host's memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from duplex import Duplex
from event_recorder import Recorder
from fake_device import FakeDevice, no_pinned, unpinned
from judged import copied

from gpucheck.bench import buffers, concurrent
from gpucheck.bench.buffers import BufferMemory, Copies
from gpucheck.bench.concurrent import Lane
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import Setting
from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Limits, Timed
from gpucheck.report.events import Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import Measurement

MIB = 2**20
HOST = torch.device("cpu")
SHORT = Limits(budget_s=0.5)


def lane(device: Duplex, name: str, prepare: Callable[[int, int], None] = lambda number, calls: None) -> Lane:
    return Lane(device.copy, device.on(name), prepare)


def take(device: Any, limits: Limits = SHORT) -> Timed:
    """The lane `a`, while `b` copies."""
    return concurrent.take(device, [lane(device, "a"), lane(device, "b")], limits)[0]


def per_call_s(timed: Timed) -> float:
    return timed.run.samples_s[0] / timed.run.calls_per_sample


# windows


@pytest.mark.parametrize("copy_s", [200e-6, 2.4e-3, 40e-3])
def test_engines_of_their_own_show_the_full_rate(copy_s: float) -> None:
    timed = take(Duplex(length=lambda stream, number: copy_s))
    assert per_call_s(timed) == pytest.approx(copy_s, rel=0.01)
    assert (timed.launch, timed.flags) == ("unheld", ())


@pytest.mark.parametrize("shared", [{"beside": 0.5}, {"engines": "in turn"}])
def test_a_link_or_an_engine_that_both_share_shows_half_the_rate(shared: dict[str, Any]) -> None:
    timed = take(Duplex(length=lambda stream, number: 2e-3, **shared))
    assert per_call_s(timed) == pytest.approx(4e-3, rel=0.02)
    assert timed.details["alone_s"] == pytest.approx(2e-3, rel=0.01)


def by_stream(lengths_s: dict[str, float], stream: str, number: int) -> float:
    return lengths_s[stream]


def test_ways_of_different_length_each_take_their_own_time() -> None:
    for length_s, other_s in ((1e-3, 4e-3), (4e-3, 1e-3), (9e-3, 0.2e-3)):
        each = {"a": length_s, "b": other_s}
        timed = take(Duplex(length=partial(by_stream, each)))
        assert per_call_s(timed) == pytest.approx(length_s, rel=0.01)


@pytest.mark.parametrize(
    "device",
    [
        # Alone a copy of the other takes 4 ms, later next to nothing.
        Duplex(length=lambda stream, number: 4e-3 if stream == "a" or number < 6 else 1e-6),
        Duplex(length=lambda stream, number: 2e-3, engines="a first"),
        # The device waits for the host.
        Duplex(length=lambda stream, number: 10e-6),
    ],
    ids=["too early", "one after the other", "launches"],
)
def test_windows_in_which_only_one_copies_do_not_count(device: Duplex) -> None:
    timed = take(device)
    assert timed.run.samples_s == () and timed.flags == ("never-together",)


def test_one_that_is_slowed_down_counts_while_it_runs() -> None:
    timed = take(Duplex(length=lambda stream, number: 20e-3, beside_b=0.3))
    assert per_call_s(timed) == pytest.approx(20e-3, rel=0.01)


# copies between host and a device whose memory is the host's


@dataclass
class Fake(FakeDevice):
    """A device with two streams, whose copies block."""

    l2_cache_bytes: int | None = MIB

    def side_stream(self) -> Any:
        return contextlib.nullcontext


ROOM = BufferMemory(host=64 * MIB, device=64 * MIB, cache=64 * 1024)


@pytest.fixture(autouse=True)
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    monkeypatch.setattr(work, "LEAST_BOTH_WAYS_BYTES", MIB)


def setting(device: Any = None, room: BufferMemory = ROOM, **options: Any) -> Setting:
    chosen = TransferOptions(**{"sizes": (MIB,), **options})
    device = device or Fake()
    return Setting(chosen, device, room, Watch(None), Recorder(), time.monotonic() + 0.2)


def test_each_direction_is_a_row_and_both_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", unpinned)
    monkeypatch.setattr(timing, "AHEAD_IN_WINDOW", 0.0)  # these copies keep the host
    rows = list(work.both_ways(setting()))
    assert [row.case for row in rows] == [
        {"direction": way, "host_memory": "pinned", "size_bytes": MIB, "other": other}
        for way, other in (("host_to_device", "device_to_host"), ("device_to_host", "host_to_device"))
    ]
    for row in rows:
        details = row.method.details
        assert row.rate is not None and row.work == {"bytes": float(MIB)}
        assert (row.method.clock, row.method.launch, row.method.cache) == ("device events", "unheld", "cold")
        assert (details["verified_slices"] > 0, details["wrong_bytes"]) == (True, 0)


def test_a_copy_that_arrives_changed_is_counted_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", unpinned)
    monkeypatch.setattr(timing, "AHEAD_IN_WINDOW", 0.0)  # these copies keep the host
    real = Copies.call

    def wrong(self: Any) -> None:
        real(self)
        if self.source.number is not None and self.source.number % 2:
            self.destination.words[0] += 1

    monkeypatch.setattr(Copies, "call", wrong)
    to_device, to_host = work.both_ways(setting(directions=("host_to_device",)))
    # Copies to the device have even numbers, those to the host odd ones.
    assert to_device.method.details["wrong_bytes"] == 0
    assert to_host.method.details["wrong_bytes"] > 0 and to_host.method.details["first_wrong_byte"] == 0


def test_what_does_not_apply_and_what_there_is_no_room_for() -> None:
    (part,) = (part for part in work.PARTS if part.id == "both_ways")
    assert not part.applies(accel.open_device("cpu"))
    assert part.applies(Fake())  # type: ignore[arg-type]
    with pytest.raises(CannotLook, match="both ways at once need pinned memory; --host-memory excludes it"):
        list(work.both_ways(setting(memories=("pageable",))))
    with pytest.raises(CannotLook, match="not enough memory to copy both ways at once; buffers may use 512 KiB each"):
        list(work.both_ways(setting(room=BufferMemory(MIB, 64 * MIB, MIB))))


def test_pinned_memory_that_is_refused_is_one_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", no_pinned)
    given = setting()
    assert list(work.both_ways(given)) == []
    (found,) = [event.finding for event in given.emit.events if isinstance(event, Skipped)]  # type: ignore[attr-defined]
    assert (found.id, found.verdict, found.message) == ("transfer.pinned", "skip", "CUDA error: out of memory")


# judging


def row(direction: str, rate: float | None, *, size: int = 128 * MIB, **more: Any) -> Measurement:
    other = "device_to_host" if direction == "host_to_device" else "host_to_device"
    case = {"direction": direction, "host_memory": "pinned", "size_bytes": size, "other": other}
    return copied(judge.BOTH_WAYS, case, rate, **{"alone_s": size / 50e9, **more})


def one_way(direction: str, rate: float, size: int = 128 * MIB, timed: str = "link") -> Measurement:
    measurement = row(direction, rate, size=size)
    case = {"direction": direction, "host_memory": "pinned", "size_bytes": size, "timed": timed}
    return replace(measurement, name="transfer", case=case)


def both(to_device: float, to_host: float, **more: Any) -> list[Measurement]:
    return [row("host_to_device", to_device, **more), row("device_to_host", to_host, **more)]


def test_the_sum_stands_beside_one_direction_alone() -> None:
    rows = [*both(48e9, 46e9), one_way("host_to_device", 55e9), one_way("device_to_host", 54e9)]
    small = one_way("device_to_host", 99e9, size=MIB)
    (found,) = judge.both_ways([*rows, small], Facts())
    assert (found.id, found.verdict) == ("transfer.both_ways", "info")
    assert (found.evidence["sum_bytes_per_s"], found.evidence["over_one_direction"]) == (94e9, 94 / 55)
    assert found.evidence["alone_bytes_per_s"] == {"host_to_device": 55e9, "device_to_host": 54e9}


def test_two_directions_that_are_hardly_more_than_one_are_a_warning() -> None:
    (found,) = judge.both_ways(both(11e9, 25e9), Facts())
    assert (found.verdict, found.evidence["over_one_direction"]) == ("warn", 0.72) and found.fix
    (enough,) = judge.both_ways(both(28.75e9, 28.75e9), Facts())
    assert enough.verdict == "info"


def test_a_chip_to_chip_link_is_known_to_add_little() -> None:
    (found,) = judge.both_ways(both(25e9, 25e9, telemetry={"c2c_bytes_per_s": 447e9}), Facts())
    assert (found.verdict, found.evidence["over_one_direction"]) == ("info", 1.0)


def test_directions_that_never_ran_together_are_undecided() -> None:
    timed = row("host_to_device", 48e9)
    never: dict[str, Any] = {"discarded_windows": 4}
    (found,) = judge.both_ways([row("host_to_device", None, **never)], Facts())
    assert (found.verdict, found.evidence) == ("inconclusive", {"directions": ["host_to_device"]})
    both_found = judge.both_ways([timed, row("device_to_host", None, **never)], Facts())
    assert [finding.verdict for finding in both_found] == ["inconclusive", "info"]


def test_wrong_bytes_of_either_direction_fail() -> None:
    rows = [row("host_to_device", 50e9), row("device_to_host", 50e9, wrong_bytes=4)]
    finding = judge.corrupt(rows)
    assert (finding.verdict, finding.evidence["wrong_bytes"]) == ("fail", {"to the host, both ways at once": 4})
    unseen = judge.corrupt([row("host_to_device", 50e9, verified_slices=0)])
    assert unseen.verdict == "inconclusive"
    assert judge.both_ways([one_way("host_to_device", 1.0)], Facts()) == []
