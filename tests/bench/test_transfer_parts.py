"""Which parts of `bench transfer` run, for how long, and what one without room costs the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_device import FakeDevice
from judged import Document

from gpucheck.bench.transfer import PARTS, TransferOptions, judge, work
from gpucheck.bench.transfer.work import Part, Setting, Several
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method

CPU = accel.open_device("cpu")
FACTS = Facts()


def row(name: str, device: str = "cpu") -> Measurement:
    method = Method("host", "host", "cold")
    return Measurement(
        f"transfer.{name}", DeviceRef(device), {}, (), None, {"bytes": 1.0}, None, MemoryFigures(), method
    )


def part(part_id: str, *, weight: float = 1.0, error: Exception | None = None, seen: list[Any] | None = None) -> Part:
    def rows(setting: Setting) -> Iterator[Measurement]:
        if seen is not None:
            seen.append(setting)
        if error is not None:
            raise error
        yield row(part_id, setting.accel.id)

    return Part(part_id, weight, rows)


def counts(part_id: str) -> Any:
    """A judge that says how many rows it was asked of."""
    return lambda measurements, facts: [Finding(f"transfer.{part_id}", "info", f"{len(measurements)} rows")]


def run(
    options: TransferOptions,
    monkeypatch: pytest.MonkeyPatch,
    alone: Sequence[Part],
    together: Sequence[Part] = (),
    ids: tuple[str, ...] = ("cpu",),
    document: Document | None = None,
) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: FACTS)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(ids))
    monkeypatch.setattr(choose, "open_named", lambda name, facts: CPU if name == "cpu" else FakeDevice(id=name))
    monkeypatch.setattr(work, "PARTS", tuple(alone))
    monkeypatch.setattr(work, "OF_SEVERAL", tuple(together))
    monkeypatch.setattr(TransferOptions, "titles", {entry.id: "" for entry in (*alone, *together)})
    monkeypatch.setattr(judge, "OF_A_DEVICE", {entry.id: counts(entry.id) for entry in alone})
    monkeypatch.setattr(judge, "OF_SEVERAL", {entry.id: counts(entry.id) for entry in together})
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
    assert [part.id for part in work.OF_SEVERAL] == list(judge.OF_SEVERAL)
    assert [*(part.id for part in work.PARTS), *(part.id for part in work.OF_SEVERAL)] == list(PARTS)


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


def several(part_id: str, seen: list[Several]) -> Part:
    def rows(together: Several) -> Iterator[Measurement]:
        seen.append(together)
        yield row(part_id, together.ids[-1])

    return Part(part_id, 1.0, rows)


def test_several_devices_are_judged_once_after_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Several] = []
    document = run(
        TransferOptions(device="all"), monkeypatch, [part("a")], [several("t", seen)], ids=("cuda:0", "cuda:1")
    )
    # What a device did beside the others is among its rows too.
    assert told(document) == ["a", "a", "t", ("a", "1 rows"), ("a", "2 rows"), ("t", "3 rows")]
    assert [finding.device for finding in document.judged().findings] == ["cuda:0", "cuda:1", None]
    assert [together.facts for together in seen] == [FACTS]


def test_one_device_has_nothing_to_do_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Several] = []
    assert told(run(TransferOptions(), monkeypatch, [part("a")], [several("t", seen)])) == ["a", ("a", "1 rows")]
    assert not seen
    with pytest.raises(CannotLook, match="t needs several devices"):
        run(TransferOptions(only=("t",)), monkeypatch, [part("a")], [several("t", seen)])


def test_what_several_devices_measured_before_ctrl_c_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(together: Several) -> Iterator[Measurement]:
        yield row("t", "cuda:1")
        raise KeyboardInterrupt

    document = Document()
    with pytest.raises(KeyboardInterrupt):
        run(
            TransferOptions(device="all"),
            monkeypatch,
            [part("a")],
            [replace(several("t", []), rows=rows), several("u", [])],
            ids=("cuda:0", "cuda:1"),
            document=document,
        )
    assert told(document)[2:] == ["t", ("a", "1 rows"), ("a", "2 rows"), ("t", "3 rows")]
    # That not every device was measured beside the others is told by the part that has no end.
    assert [(finding.id, finding.ended) for finding in document.judged().parts if finding.device is None] == [
        ("transfer.t", None)
    ]


def test_a_part_of_several_devices_that_cannot_look_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(together: Several) -> Iterator[Measurement]:
        yield from ()
        raise CannotLook("no child came up", "it hung", finding="transfer.child")

    first = replace(several("t", []), rows=rows)
    document = run(TransferOptions(), monkeypatch, [part("a")], [first, several("u", [])], ids=("cuda:0", "cuda:1"))
    assert told(document)[2:] == [
        "u",
        ("a", "1 rows"),
        ("a", "2 rows"),
        ("child", "no child came up"),
        ("t", "3 rows"),
        ("u", "3 rows"),
    ]
