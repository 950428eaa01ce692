"""Device to device: a pair's work on two fakes, the parent with a fake child, one real child, and the judge."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from judged import run

from gpucheck.bench import buffers, concurrent
from gpucheck.bench.transfer import TransferOptions, judge
from gpucheck.bench.transfer import work as command
from gpucheck.bench.transfer.work import Several
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, choose, inventory
from gpucheck.machine.child import LineChild
from gpucheck.machine.child_protocol import Start
from gpucheck.report.events import Progress, Recorder, Skipped
from gpucheck.report.facts import Device, Facts, PciPath
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats

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
    for name in ("RATE_S", "LATENCY_S", "PAIR_WARM_UP_S"):
        monkeypatch.setattr(concurrent, name, 0.02)


def work(*devices: Fake) -> list[Measurement]:
    opened = {device.id: device for device in devices}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accel, "open_device", opened.__getitem__)
        return list(concurrent.between(*opened))


# what the child does


def test_a_pair_is_measured_both_ways_on_the_sources_stream() -> None:
    first, second = Fake("cuda:0"), Fake("cuda:1")
    rows = work(first, second)
    assert [tuple(one.case.values()) for one in rows] == [
        ("cuda:0", "cuda:1", MIB, "rate"),
        ("cuda:0", "cuda:1", 64 * KIB, "latency"),
        ("cuda:1", "cuda:0", MIB, "rate"),
        ("cuda:1", "cuda:0", 64 * KIB, "latency"),
    ]
    assert [one.device.id for one in rows] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    for card in (first, second):
        assert (card.current[0], card.current[-1]) == ("entered", "left") and "stamp" in card.current
    assert set(first.asked) == {"cuda:1"}
    for one in rows:
        assert one.method.details["path"] == "peer"
        assert one.method.details["verified_slices"] > 0 and one.method.details["wrong_bytes"] == 0
    assert [(one.method.clock, one.method.cache) for one in rows[:2]] == [("device events", "cold"), ("host", "cold")]
    assert rows[0].rate is not None and rows[1].time_s is not None
    assert rows[0].method.details["no_telemetry_because"].startswith("clocks and links are not sampled")


def test_copies_through_the_host_are_timed_by_the_hosts_clock() -> None:
    (rate, *_) = work(Fake("cuda:0", path=False), Fake("cuda:1", path=None))
    assert (rate.method.details["path"], rate.method.clock) == ("staged", "host")
    assert work(Fake("xpu:0", path=None), Fake("xpu:1"))[0].method.details["path"] is None


def test_bytes_that_change_on_the_way_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = buffers.Copies.call

    def wrong(self: Any) -> None:
        real(self)
        self.destination.words[1] += 1

    monkeypatch.setattr(buffers.Copies, "call", wrong)
    assert work(Fake("cuda:0"), Fake("cuda:1"))[0].method.details["wrong_bytes"] > 0


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
    monkeypatch.setattr(concurrent, "requests", lambda: iter([{"pair": ids}]))
    monkeypatch.setattr(accel, "open_device", lambda name: Fake(name, **kinds))
    assert concurrent.main() == 0
    return said


def test_the_child_says_a_line_for_each_measurement_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    *said, end = said_by_main(monkeypatch, "cuda:0", "cuda:3")
    assert end == {"end": True}
    assert [one["measurement"]["case"]["destination"] for one in said] == ["cuda:3", "cuda:3", "cuda:0", "cuda:0"]
    (refused,) = said_by_main(monkeypatch, "cuda:0", "cuda:3", free=KIB)
    assert refused == {"error": "not enough memory on cuda:0 and cuda:3; a buffer may use 256 B on each"}


# what the parent does


def says(*lines: dict[str, Any], then: str = "") -> Start:
    """A child that answers its setup with these lines and goes on so."""
    told = "\n".join(json.dumps(line) for line in lines)
    program = f"import os, sys, time\nsys.stdin.readline()\nprint({told!r}, flush=True)\n{then}"
    return lambda: LineChild([sys.executable, "-c", program])


def several(*ids: str, left_s: float = 100.0) -> Several:
    facts = Facts(devices=tuple(Device(kind="cuda", id=one, uuid=f"GPU-{one[-1]}") for one in ids))
    return Several(TransferOptions(), ids, facts, Recorder(), time.monotonic() + left_s)


def judged(given: Several) -> list[Finding]:
    return [event.finding for event in given.emit.events if isinstance(event, Skipped)]  # type: ignore[attr-defined]


def test_every_two_devices_of_a_kind_are_a_pair_neighbours_first() -> None:
    ids = ("cuda:0", "cuda:1", "cuda:2", "xpu:0", "xpu:1", "cpu")
    assert command.pairs(ids) == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:2"), ("cuda:0", "cuda:2"), ("xpu:0", "xpu:1")]
    assert len(command.pairs([f"cuda:{place}" for place in range(8)])) == 28
    assert command.pairs(("cpu", "cuda:0")) == []


def test_a_child_for_each_pair_and_a_finding_for_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAIR_TIMEOUT_S", 2.0)
    first = said_by_main(monkeypatch, "cuda:0", "cuda:1")
    last = said_by_main(monkeypatch, "cuda:0", "cuda:2")
    # One is killed by its driver; of another's second way the latency never comes.
    children = iter([says(*first), says(then="os.kill(os.getpid(), 11)"), says(*last[:3], then="time.sleep(60)")])
    given = several("cuda:0", "cuda:1", "cuda:2")
    rows = list(command.peer(given, lambda: next(children)()))
    assert len(rows) == 4 + 3
    assert {(one.device.id, one.device.uuid) for one in rows} == {
        (f"cuda:{place}", f"GPU-{place}") for place in (0, 1, 2)
    }
    assert [(one.id, one.verdict, one.title, one.evidence["reason"]) for one in judged(given)] == [
        ("transfer.peer", "inconclusive", f"the {what} of copies from {ways} was not measured", why)
        for what, ways, why in (
            ("rate and latency", "cuda:1 to cuda:2", "its process was ended by SIGSEGV"),
            ("rate and latency", "cuda:2 to cuda:1", "its process was ended by SIGSEGV"),
            ("latency", "cuda:2 to cuda:0", "its process did not answer within 2 s"),
        )
    ]
    assert ["way" in one.evidence for one in judged(given)] == [False, False, True]
    steps = [event.step for event in given.emit.events if isinstance(event, Progress)]  # type: ignore[attr-defined]
    assert steps == ["cuda:0 and cuda:1", "cuda:1 and cuda:2", "cuda:0 and cuda:2"]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (says({"error": "there is no room"}), "there is no room"),
        (says({"end": True}), "no reason was given"),
        (
            says(then="sys.exit('torch.AcceleratorError: CUDA error: an illegal memory access\\nFor debugging, pass')"),
            "its process ended with 1: torch.AcceleratorError: CUDA error: an illegal memory access",
        ),
    ],
)
def test_why_a_pair_was_not_measured(start: Start, reason: str) -> None:
    given = several("cuda:0", "cuda:1")
    assert list(command.peer(given, start)) == []
    assert [one.message for one in judged(given)] == [reason] * 2


PORTS = ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0"), ("0000:00:01.1", "0000:01:00.0", "0000:02:01.0")


def box(iommu: str | None, redirecting: tuple[str, ...] | None) -> Facts:
    """Two GPUs below one switch."""
    paths = [PciPath(ports, iommu, redirecting) for ports in PORTS]
    cards = [Device(kind="cuda", id=f"cuda:{index}", pci_path=path) for index, path in enumerate(paths)]
    return Facts(devices=tuple(cards))


def hidden() -> Facts:
    """Two GPUs of a virtual machine that shows no bridge."""
    return Facts(devices=tuple(Device(kind="cuda", id=f"cuda:{at}", pci_path=PciPath((), "off")) for at in (0, 1)))


def test_a_pair_that_hangs_names_its_bridge_the_iommu_and_what_to_do() -> None:
    facts = box("translating", ("0000:02:00.0",))
    first = judge.not_measured(("cuda:0", "cuda:1"), ["rate"], "its process did not answer within 60 s", facts)
    fix = first.fix or ""
    assert "NCCL_P2P_DISABLE=1" in fix and "iommu=pt" in fix and "setpci -s 0000:02:00.0" in fix and "Xid" in fix
    assert first.evidence["way"] == {
        "bridge": "0000:01:00.0",
        "iommu": "translating",
        "redirecting": ("0000:02:00.0",),
    }
    assert "way" not in judge.not_measured(("cuda:0", "cuda:1"), ["rate"], "it ended with 1", None).evidence


@pytest.mark.parametrize(
    ("facts", "bridge", "asks"),
    [
        (box("translating", ()), "0000:01:00.0", ["iommu=pt"]),
        (box("off", None), "0000:01:00.0", ["sudo gpucheck doctor"]),
        (box(None, ()), "0000:01:00.0", []),
        (Facts(), None, ["sudo gpucheck doctor"]),
        (hidden(), None, []),
    ],
)
def test_a_pair_with_wrong_data_names_them_too(facts: Facts, bridge: str | None, asks: list[str]) -> None:
    (found,) = judge.peer([row(0, 1, 390e9, wrong=7), row(1, 0, 390e9)], facts)
    assert found.verdict == "fail" and found.evidence["way"].get("bridge") == bridge
    fix = found.fix or ""
    assert [word for word in ("iommu=pt", "sudo gpucheck doctor") if word in fix] == asks


def test_pairs_without_time_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = several("cuda:0", "cuda:1", "cuda:2", left_s=-1.0)
    assert len(list(command.peer(given, says(*said_by_main(monkeypatch, "cuda:0", "cuda:1"))))) == 4
    (found,) = judged(given)
    assert (found.verdict, found.title, found.message) == (
        "skip",
        "2 of 3 pairs of devices were not measured",
        "out of time",
    )
    assert found.evidence == {"pairs": [["cuda:1", "cuda:2"], ["cuda:0", "cuda:2"]]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has such a device")
def test_a_real_child_says_that_there_is_no_such_device() -> None:
    given = several("cuda:0", "cuda:1")
    assert list(command.peer(given)) == []
    assert judged(given)[0].message.startswith("torch cannot use cuda:0; ")


# what the judge says


def row(source: int, destination: int, rate: float | None, path: str | None = "peer", wrong: int = 0) -> Measurement:
    return measured(source, destination, "rate", rate, 6e-4, {"path": path, "wrong_bytes": wrong, "verified_slices": 4})


def measured(
    source: int, destination: int, what: str, rate: float | None, seconds: float, details: dict[str, Any]
) -> Measurement:
    return Measurement(
        name=judge.PEER,
        device=DeviceRef(f"cuda:{source}"),
        case={"source": f"cuda:{source}", "destination": f"cuda:{destination}", "size_bytes": MIB, "what": what},
        runs=(),
        time_s=TimeStats(seconds, 30),
        work={"bytes": float(MIB)},
        rate=None if rate is None else Rate(rate, "B/s"),
        memory=MemoryFigures(),
        method=Method("device events", "held", "cold", details={"wrong_bytes": 0, "verified_slices": 4, **details}),
    )


def every(rate: float, count: int = 3, **changed: Any) -> list[Measurement]:
    """Every ordered pair at one rate; `changed` names some as `r01=…` for the rate from 0 to 1."""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return [row(a, b, changed.get(f"r{a}{b}", rate)) for a, b in pairs]


def test_a_sound_matrix_is_told_by_its_median() -> None:
    latency = measured(0, 1, "latency", None, 12e-6, {"path": "peer"})
    (found,) = judge.peer([*every(390e9, 2), latency], Facts())
    assert (found.id, found.verdict) == ("transfer.peer", "info")
    assert found.evidence == {
        "devices": ["cuda:0", "cuda:1"],
        "bytes_per_s": [[None, 390e9], [390e9, None]],
        "path": [[None, "peer"], ["peer", None]],
        "latency_s": [[None, 12e-6], [None, None]],
        "wrong_bytes": [],
        "slow": [],
        "staged": [],
        "asymmetric": [],
    }
    assert judge.peer([], Facts()) == []


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


def test_a_pair_that_is_not_the_same_both_ways_is_told() -> None:
    (found,) = judge.peer(every(390e9, r01=300e9), Facts())
    assert found.verdict == "info"
    assert found.evidence["asymmetric"] == [["cuda:0", "cuda:1", 300 / 390]]


def test_of_two_devices_a_direction_with_half_the_other_s_rate_warns() -> None:
    (found,) = judge.peer(every(40e9, 2, r01=20e9), Facts())
    assert (found.verdict, found.evidence["asymmetric"]) == ("warn", [["cuda:0", "cuda:1", 0.5]])
    assert judge.peer(every(40e9, 2, r01=25e9), Facts())[0].verdict == "info"


def test_wrong_bytes_fail_whatever_the_rate() -> None:
    (found,) = judge.peer([row(0, 1, 390e9, wrong=7), row(1, 0, 390e9)], Facts())
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", [["cuda:0", "cuda:1", 7]])
    assert found.fix is not None and "NCCL_P2P_DISABLE=1" in found.fix


def test_one_bad_run_of_seven_stays_bad() -> None:
    each = [{"details": {"wrong_bytes": 7 if number == 3 else 0}} for number in range(7)]
    bad = measured(0, 1, "rate", 390e9, 6e-4, {"path": "peer", "each_run": each})
    (found,) = judge.peer([bad, row(1, 0, 390e9)], Facts())
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", [["cuda:0", "cuda:1", 7]])


def test_no_rate_at_all_is_undecided_and_many_pairs_are_counted() -> None:
    (found,) = judge.peer([row(0, 1, None), row(1, 0, None)], Facts())
    assert found.verdict == "inconclusive"
    rows = [row(a, b, 1e9 * (a + 1), "staged" if b == 9 else "peer") for a in range(6) for b in (8, 9, 10)]
    (found,) = judge.peer(rows, Facts())
    assert "cuda:3 to cuda:9 and 2 more" in found.message
    assert found.evidence["devices"][-1] == "cuda:10"


# the command


def test_the_command_measures_pairs_after_the_devices_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(given: Several) -> Iterator[Measurement]:
        return command.peer(given, says(*said_by_main(monkeypatch, *given.ids)))

    (part,) = [replace(one, rows=rows) for one in command.OF_SEVERAL if one.id == "peer"]
    monkeypatch.setattr(command, "OF_SEVERAL", (part,))
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cuda:0", "cuda:1")))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: Fake(device_id))
    made = run(lambda emit: command.command(TransferOptions(device="all", only=("peer",)), emit))
    assert [(one.case["source"], one.case["what"]) for one in made.measurements] == [
        ("cuda:0", "rate"),
        ("cuda:0", "latency"),
        ("cuda:1", "rate"),
        ("cuda:1", "latency"),
    ]
    (found,) = made.findings
    assert found.id == "transfer.peer" and found.evidence["devices"] == ["cuda:0", "cuda:1"]
