"""When a device is silent for too long, on a clock made by hand."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gpucheck import errors
from gpucheck.machine import watchdog
from gpucheck.machine.watchdog import LONGEST_S, SILENT_S, OutOfTime, Watchdog, WatchedDevice
from gpucheck.report.fault import Fault


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Card:
    """A device that answers, hangs or fails."""

    id: str = "cuda:0"
    is_cpu: bool = False
    wait: Callable[[], None] = lambda: None
    waits: list[int] = field(default_factory=list)

    def synchronize(self) -> None:
        self.waits.append(threading.get_ident())
        self.wait()


def fails() -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


def watched(card: Card) -> WatchedDevice:
    return WatchedDevice(card.id, "bench matmul", SILENT_S, card.synchronize)


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """What hangs until the test is over."""
    over = threading.Event()
    yield lambda: (over.wait(), None)[1]
    over.set()


def test_what_is_heard_keeps_it_alive() -> None:
    clock = Clock()
    one = Watchdog(clock, heard_s=clock())
    assert one.silent() is None  # nothing is watched
    one.watched.append(watched(Card()))
    clock.now_s += SILENT_S - 1
    assert one.silent() is None
    one.beat("a row")
    clock.now_s += SILENT_S - 1
    assert one.silent() is None
    clock.now_s += 1
    assert one.silent() is one.watched[0]
    one.off_device = 1
    assert one.silent() is None


def test_a_device_that_has_nothing_to_do_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, card = Clock(), Card()
    one = Watchdog(clock, heard_s=clock())
    one.watched.append(watched(card))
    clock.now_s += SILENT_S
    assert one.is_lost(one.watched[0]) is False
    # It was asked from another thread, and its answer is no word of the work.
    assert card.waits and card.waits[0] != threading.get_ident()
    assert one.heard_s == 100.0
    # Asked again after another while, and not for ever.
    assert one.silent() is None
    clock.now_s += SILENT_S
    assert one.silent() is not None
    clock.now_s = 100.0 + LONGEST_S
    assert one.is_lost(one.watched[0]) is True


@pytest.mark.parametrize("kind", ["hangs", "fails", "not open yet"])
def test_a_device_that_does_not_come_to_its_end_is_lost(
    kind: str, hang: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "ANSWER_S", 0.05)
    card = Card(wait=hang if kind == "hangs" else fails)
    one = watched(card)
    if kind == "not open yet":
        one = WatchedDevice(card.id, "memory", 1.0, None)
    assert Watchdog(Clock()).is_lost(one)


def test_what_the_asker_hears_is_no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    one = Watchdog(clock, heard_s=clock())

    def synchronize() -> None:
        one.waited = True  # as an accelerator does that was waited for

    clock.now_s += SILENT_S
    assert one.is_lost(WatchedDevice("cuda:0", "smoke", SILENT_S, synchronize)) is False
    assert (one.heard_s, one.waited) == (100.0, False)


def test_the_end_is_told_as_a_fault() -> None:
    clock = Clock()
    watchdog = Watchdog(clock, heard_s=clock(), step="float32 512")
    clock.now_s += 70
    fault = watchdog.fault(WatchedDevice("cuda:0", "bench matmul", 1.0, None))
    assert (fault.where, fault.device) == ("bench matmul", "cuda:0")
    assert (fault.kind, fault.silent_s, fault.step, fault.poisons) == ("device", 70.0, "float32 512", True)


def test_a_guard_looks_only_where_a_device_is_watched(
    hang: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SILENT_S", 0.05), ("ANSWER_S", 0.05), ("LOOK_EVERY_S", 0.01)):
        monkeypatch.setattr(watchdog, name, value)
    found, came = list[Fault](), threading.Event()

    def lost(fault: Fault) -> None:
        found.append(fault)
        came.set()

    with watchdog.guarded(lost):
        with watchdog.watching(Card("cpu", is_cpu=True), "bench matmul"):
            assert not came.wait(0.3)
        assert "gpucheck watchdog" not in {thread.name for thread in threading.enumerate()}
        with watchdog.watching(Card(wait=hang), "bench matmul"):
            assert came.wait(30)
    assert [fault.device for fault in found] == ["cuda:0"]
    assert watchdog.WATCHDOG.watched == []


def test_work_of_the_hosts_own_may_take_long() -> None:
    with watchdog.off_device():
        assert watchdog.WATCHDOG.off_device == 1
    assert watchdog.WATCHDOG.off_device == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no alarm")
def test_what_is_at_work_is_broken_off_as_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "began_s", time.monotonic() - 100.0)
    monkeypatch.setattr(watchdog, "GRACE_S", 10.0)
    never, left = threading.Event(), threading.Event()
    with watchdog.guarded(lambda fault: None, left.set):
        assert watchdog.ends_by(10.0, time.monotonic()) < time.monotonic()
        with pytest.raises(OutOfTime):
            never.wait(60)
        with pytest.raises(OutOfTime):
            watchdog.go_on()
        # Where nothing may be raised, whoever guards the process ends it.
        with watchdog.unbroken():
            watchdog.ends_by(10.0, time.monotonic())
            assert left.wait(60)
        watchdog.ends_by(10.0, time.monotonic())
        watchdog.finished()
        watchdog.go_on()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
