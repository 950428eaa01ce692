"""Which parts of `bench transfer` run, for how long, and what one without room costs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_device import FakeDevice
from judged import Document

from gpucheck.bench.transfer import PARTS, TransferOptions, judge, work
from gpucheck.bench.transfer.work import Setting, TransferPart
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.report.events import Emit
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method

# The part of several devices: their names, the machine, the events, and the deadline → rows.
Peer = Callable[[Sequence[str], Facts, Emit, float], Iterator[Measurement]]

CPU = accel.open_device("cpu")
FACTS = Facts()


def row(name: str, device: str = "cpu") -> Measurement:
    method = Method("host", "host", "cold")
    return Measurement(
        f"transfer.{name}", DeviceRef(device), {}, (), None, {"bytes": 1.0}, None, MemoryFigures(), method
    )


def part(
    part_id: str, *, weight: float = 1.0, error: Exception | None = None, seen: list[Any] | None = None
) -> TransferPart:
    def rows(setting: Setting) -> Iterator[Measurement]:
        if seen is not None:
            seen.append(setting)
        if error is not None:
            raise error
        yield row(part_id, setting.accel.id)

    return TransferPart(part_id, weight, rows)


def counts(part_id: str) -> Any:
    """A judge that says how many rows it was asked of."""
    return lambda measurements, facts: [Finding(f"transfer.{part_id}", "info", f"{len(measurements)} rows")]


def run(
    options: TransferOptions,
    monkeypatch: pytest.MonkeyPatch,
    alone: Sequence[TransferPart],
    peer: Peer | None = None,
    ids: tuple[str, ...] = ("cpu",),
    document: Document | None = None,
) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: FACTS)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(ids))
    monkeypatch.setattr(choose, "open_named", lambda name, facts: CPU if name == "cpu" else FakeDevice(id=name))
    monkeypatch.setattr(work, "PARTS", tuple(alone))
    titles = {entry.id: "" for entry in alone}
    if peer is not None:
        monkeypatch.setattr(work, "peer", peer)
        titles |= {work.PAIRS: ""}
    monkeypatch.setattr(TransferOptions, "titles", titles)
    monkeypatch.setattr(judge, "OF_A_DEVICE", {entry.id: counts(entry.id) for entry in alone})
    monkeypatch.setattr(judge, "peer", counts(work.PAIRS))
    document = document or Document()
    work.command(options, document)
    return document


def told(document: Document) -> list[Any]:
    """The names of rows in the order in which they were measured, then the findings."""
    made = document.judged()
    names = [row.name.removeprefix("transfer.") for row in made.measurements]
    return [*names, *((finding.id.removeprefix("transfer."), finding.title) for finding in made.findings)]


def test_there_is_a_judge_for_every_part() -> None:
    assert [part.id for part in work.PARTS] == list(judge.OF_A_DEVICE)
    assert [*(part.id for part in work.PARTS), work.PAIRS] == list(PARTS)


def test_parts_are_chosen_by_prefix() -> None:
    assert TransferOptions(only=("cop",)).selected == ["copies"]
    assert TransferOptions().selected == [*PARTS]
    with pytest.raises(UsageError, match="--only 'x' matches no part; the parts are copies"):
        TransferOptions(only=("x",)).check()
    with pytest.raises(UsageError, match="--only and --skip leave no part"):
        TransferOptions(only=("copies",), skip=("copies",)).check()


def test_every_judge_sees_all_rows_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    document = run(TransferOptions(), monkeypatch, [part("a"), part("b")])
    assert told(document) == ["a", "b", ("a", "2 rows"), ("b", "2 rows")]
    assert [answer.device for answer in document.judged().results["bench_transfer"]] == ["cpu"]


def test_time_is_split_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still: the first of weights 3 and 1 gets three quarters, the second what is left."""
    monkeypatch.setattr("gpucheck.bench.transfer.work.time.monotonic", lambda: 100.0)
    seen: list[Setting] = []
    run(TransferOptions(time_budget_s=8.0), monkeypatch, [part("a", weight=3.0, seen=seen), part("b", seen=seen)])
    assert [setting.deadline for setting in seen] == [106.0, 108.0]


def test_parts_without_time_are_told_in_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    document = run(TransferOptions(time_budget_s=1e-9), monkeypatch, [part("a"), part("b"), part("c")])
    assert told(document) == ["a", ("time", "not measured: b, c"), ("a", "1 rows")]
    skipped = document.judged().findings[0]
    assert (skipped.verdict, skipped.message) == ("skip", "out of time; a longer --time-budget measures all")
    assert skipped.fix == "gpucheck bench transfer --only b,c --device cpu"


def test_a_part_without_room_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    full = CannotLook("no room", "memory is full", finding="transfer.memory")
    found = told(run(TransferOptions(), monkeypatch, [part("a"), part("b", error=full), part("c")]))
    assert found[:3] == ["a", "c", ("memory", "no room")]


def test_the_first_part_without_room_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document()
    with pytest.raises(CannotLook, match="no room"):
        run(TransferOptions(), monkeypatch, [part("a", error=CannotLook("no room")), part("b")], document=document)
    assert told(document) == []


# several devices at once


def of_pairs(*, then: BaseException | None = None) -> Peer:
    def rows(ids: Sequence[str], facts: Facts, emit: Emit, deadline: float) -> Iterator[Measurement]:
        assert facts is FACTS
        yield row("peer", ids[-1])
        if then is not None:
            raise then

    return rows


def test_pairs_are_judged_once_after_each_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    document = run(TransferOptions(device="all"), monkeypatch, [part("a")], of_pairs(), ids=("cuda:0", "cuda:1"))
    # What a device did beside the others is among its rows too.
    assert told(document) == ["a", "a", "peer", ("a", "1 rows"), ("a", "2 rows"), ("peer", "3 rows")]
    assert [finding.device for finding in document.judged().findings] == ["cuda:0", "cuda:1", None]


def test_one_device_is_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(run(TransferOptions(), monkeypatch, [part("a")], of_pairs())) == ["a", ("a", "1 rows")]
    with pytest.raises(CannotLook, match="peer needs several devices"):
        run(TransferOptions(only=("peer",)), monkeypatch, [part("a")], of_pairs())


def test_pairs_that_were_measured_before_ctrl_c_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    document, pairs = Document(), of_pairs(then=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        options = TransferOptions(device="all")
        run(options, monkeypatch, [part("a")], pairs, ids=("cuda:0", "cuda:1"), document=document)
    assert told(document)[2:] == ["peer", ("a", "1 rows"), ("a", "2 rows"), ("peer", "3 rows")]
    # A part without an end shows that not every pair was measured.
    assert [(finding.id, finding.ended) for finding in document.judged().parts if finding.device is None] == [
        ("transfer.peer", None)
    ]
