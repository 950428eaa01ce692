"""Device to device: a pair's work on two fakes, the parent with a fake child, one real child, and the judge."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from event_recorder import Recorder
from fake_device import FakeDevice
from judged import copied

from gpucheck.bench import buffers, concurrent
from gpucheck.bench.transfer import judge
from gpucheck.bench.transfer import work as command
from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.machine.child import LineChild
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement

KIB, MIB = 2**10, 2**20
HOST = torch.device("cpu")


@dataclass
class Fake(FakeDevice):
    """One of two devices."""

    path: bool | None = True
    free: int = 4 * MIB
    l2_cache_bytes: int | None = 64 * KIB
    current: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def ref(self) -> DeviceRef:
        return DeviceRef(self.id, uuid="GPU-torch", name=self.name)

    def record(self) -> float:
        self.current.append("stamp")
        return time.perf_counter()

    def memory_info(self) -> tuple[int, int]:
        return self.free, 2 * self.free

    def peer_access(self, other: Fake) -> bool | None:
        self.asked.append(other.id)
        return self.path

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        self.current.append("entered")
        yield
        self.current.append("left")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RATE_S", "PAIR_WARM_UP_S"):
        monkeypatch.setattr(concurrent, name, 0.02)


def work(*devices: Fake) -> list[Measurement]:
    opened = {device.id: device for device in devices}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accel, "open_device", opened.__getitem__)
        return list(concurrent.pair_rates(*opened))


# what the child does


def test_a_pair_is_measured_both_ways_on_the_sources_stream() -> None:
    first, second = Fake("cuda:0"), Fake("cuda:1")
    rows = work(first, second)
    assert [tuple(row.case.values()) for row in rows] == [
        ("cuda:0", "cuda:1", MIB, "rate"),
        ("cuda:1", "cuda:0", MIB, "rate"),
    ]
    assert [row.device.id for row in rows] == ["cuda:0", "cuda:1"]
    for device in (first, second):
        assert (device.current[0], device.current[-1]) == ("entered", "left") and "stamp" in device.current
    assert set(first.asked) == {"cuda:1"}
    for row in rows:
        assert row.rate is not None and row.method.details["path"] == "peer"
        assert row.method.details["verified_slices"] > 0 and row.method.details["wrong_bytes"] == 0
        assert (row.method.clock, row.method.cache) == ("device events", "cold")
        assert row.method.details["no_telemetry_because"].startswith("clocks and links are not sampled")


def test_copies_through_the_host_are_timed_by_the_hosts_clock() -> None:
    (rate, *_) = work(Fake("cuda:0", path=False), Fake("cuda:1", path=None))
    assert (rate.method.details["path"], rate.method.clock) == ("staged", "host")
    assert work(Fake("xpu:0", path=None), Fake("xpu:1"))[0].method.details["path"] is None


def test_the_fuller_device_decides_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(Fake("a", free=2**40), Fake("b", free=13 * MIB))[0].case["size_bytes"] == 2 * MIB
    with pytest.raises(CannotLook, match="not enough memory on a and b; a buffer may use 32 KiB on each") as scarce:
        work(Fake("a", free=128 * KIB), Fake("b"))
    assert scarce.value.fix == ""
    with monkeypatch.context() as patch:
        patch.setattr(concurrent, "USUAL_BYTES", MIB)
        assert work(Fake("a", free=2**40), Fake("b", free=13 * MIB))[0].case["size_bytes"] == MIB

    def refuse(size: int, device: torch.device) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(buffers, "allocate", refuse)
    with pytest.raises(CannotLook, match="not enough memory for buffers of 1 MiB; CUDA out of memory"):
        work(Fake("cuda:0"), Fake("cuda:1"))


def said_by_main(monkeypatch: pytest.MonkeyPatch, *ids: str, **kinds: Any) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(concurrent, "claim_stdout", lambda: said.append)
    monkeypatch.setattr(sys, "argv", ["concurrent", *ids])
    monkeypatch.setattr(accel, "open_device", lambda name: Fake(name, **kinds))
    assert concurrent.main() == 0
    return said


def test_the_child_says_a_line_for_each_measurement_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    *said, end = said_by_main(monkeypatch, "cuda:0", "cuda:3")
    assert end == {"end": True}
    assert [line["measurement"]["case"]["destination"] for line in said] == ["cuda:3", "cuda:0"]
    (refused,) = said_by_main(monkeypatch, "cuda:0", "cuda:3", free=KIB)
    assert refused == {"error": "not enough memory on cuda:0 and cuda:3; a buffer may use 256 B on each", "end": True}


# what the parent does


def says(*lines: dict[str, Any], then: str = "") -> Callable[[], LineChild]:
    """A child that prints these lines and goes on so."""
    told = "\n".join(json.dumps(line) for line in lines)
    program = f"import os, time\nprint({told!r}, flush=True)\n{then}"
    return lambda: LineChild([sys.executable, "-c", program])


def judged(recorder: Recorder) -> list[Finding]:
    return [event.finding for event in recorder.events if isinstance(event, Skipped)]


def test_every_two_devices_of_a_kind_are_a_pair_neighbours_first() -> None:
    ids = ("cuda:0", "cuda:1", "cuda:2", "xpu:0", "xpu:1", "cpu")
    assert command.pairs(ids) == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:2"), ("cuda:0", "cuda:2"), ("xpu:0", "xpu:1")]
    assert len(command.pairs([f"cuda:{place}" for place in range(8)])) == 28
    assert command.pairs(("cpu", "cuda:0")) == []


@pytest.mark.slow
def test_a_child_for_each_pair_and_a_finding_for_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAIR_TIMEOUT_S", 2.0)
    first = said_by_main(monkeypatch, "cuda:0", "cuda:1")
    last = said_by_main(monkeypatch, "cuda:0", "cuda:2")
    # One is killed by its driver; of another the second way never comes.
    children = iter([says(*first), says(then="os.kill(os.getpid(), 11)"), says(*last[:1], then="time.sleep(60)")])
    ids, recorder = ("cuda:0", "cuda:1", "cuda:2"), Recorder()
    facts = Facts(devices=tuple(Device(kind="cuda", id=id_, uuid=f"GPU-{id_[-1]}") for id_ in ids))
    rows = list(command.peer(ids, facts, recorder, time.monotonic() + 100.0, lambda pair: next(children)()))
    assert len(rows) == 2 + 1
    assert {(row.device.id, row.device.uuid) for row in rows} == {(f"cuda:{place}", f"GPU-{place}") for place in (0, 1)}
    assert [
        (finding.id, finding.verdict, finding.evidence["source"], finding.evidence["reason"])
        for finding in judged(recorder)
    ] == [
        ("transfer.peer", "inconclusive", source, why)
        for source, why in (
            ("cuda:1", "its process was ended by SIGSEGV"),
            ("cuda:2", "its process was ended by SIGSEGV"),
            ("cuda:2", "its process did not answer within 2 s"),
        )
    ]
    assert ["NCCL_P2P_DISABLE=1" in (finding.fix or "") for finding in judged(recorder)] == [False, False, True]
    steps = [event.step for event in recorder.events if isinstance(event, Progress)]
    assert steps == ["cuda:0 and cuda:1", "cuda:1 and cuda:2", "cuda:0 and cuda:2"]


# what the judge says


def row(
    source: int, destination: int, rate: float | None, path: str | None = "peer", what: str = "rate", **details: Any
) -> Measurement:
    case = {"source": f"cuda:{source}", "destination": f"cuda:{destination}", "size_bytes": MIB, "what": what}
    return copied(judge.PEER, case, rate, device=f"cuda:{source}", path=path, **details)


def every(rate: float, count: int = 3, **changed: Any) -> list[Measurement]:
    """Every ordered pair at one rate; `changed` names some as `r01=…` for the rate from 0 to 1."""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return [row(a, b, changed.get(f"r{a}{b}", rate)) for a, b in pairs]


def test_a_sound_matrix_is_told_by_its_median() -> None:
    (finding,) = judge.peer(every(390e9, 2), Facts())
    assert (finding.id, finding.verdict) == ("transfer.peer", "info")
    assert finding.evidence == {
        "devices": ["cuda:0", "cuda:1"],
        "bytes_per_s": [[None, 390e9], [390e9, None]],
        "path": [[None, "peer"], ["peer", None]],
        "slow": [],
        "staged": [],
    }
    assert judge.peer([], Facts()) == []
    assert judge.peer([row(0, 1, None), row(1, 0, None)], Facts())[0].verdict == "inconclusive"


def test_wrong_bytes_fail_whatever_the_rate_and_in_one_run_of_seven() -> None:
    each = [{"details": {"wrong_bytes": 7 if number == 3 else 0, "verified_slices": 4}} for number in range(7)]
    for wrong in (row(0, 1, 390e9, wrong_bytes=7), row(0, 1, 390e9, each_run=each)):
        (finding,) = judge.peer([wrong, row(1, 0, 390e9)], Facts())
        assert (finding.verdict, finding.evidence["wrong_bytes"]) == ("fail", {"cuda:0 to cuda:1": 7})
        assert finding.fix is not None and "NCCL_P2P_DISABLE=1" in finding.fix
    (unseen,) = judge.peer([row(0, 1, 390e9, verified_slices=0), row(1, 0, 390e9)], Facts())
    assert unseen.verdict == "inconclusive"


def test_a_pair_much_slower_than_its_siblings_warns() -> None:
    (found,) = judge.peer(every(390e9, r01=200e9, r10=195e9), Facts())
    assert found.verdict == "warn"
    assert found.evidence["slow"] == [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]]
    assert judge.peer(every(390e9, r01=235e9, r10=235e9), Facts())[0].verdict == "info"


def test_pairs_through_the_host_warn_beside_direct_ones_and_are_not_held_against_them() -> None:
    rows = [row(0, 1, 50e9), row(1, 0, 50e9), row(0, 2, 10e9, "staged"), row(2, 0, 10e9, "staged")]
    (found,) = judge.peer(rows, Facts())
    assert (found.verdict, found.evidence["slow"], len(found.evidence["staged"])) == ("warn", [], 2)
    assert judge.peer(rows[2:], Facts())[0].verdict == "info"
