"""Which parts of `bench transfer` run, for how long, and what one without room costs the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.transfer import command, parts
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.bench.transfer.parts import Part, TogetherPart
from gpucheck.bench.transfer.setting import Setting, Together
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.report.events import Answered, Judged, Measured, Notice, Recorder
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method
from gpucheck.report.results.transfer import IdiomTime, TransferResult

CPU = accel.open_device("cpu")
FACTS = Facts()


def row(name: str) -> Measurement:
    method = Method("host", "host", "cold")
    return Measurement(name, DeviceRef("cpu"), {}, (), None, {"bytes": 1.0}, None, MemoryFigures(), method)


def part(part_id: str, *, weight: float = 1.0, error: Exception | None = None, seen: list[Any] | None = None) -> Part:
    def rows(setting: Setting) -> Iterator[Measurement]:
        if seen is not None:
            seen.append(setting)
        if error is not None:
            raise error
        yield row(part_id)

    def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
        return [Finding(part_id, "info", f"{len(measurements)} rows")]

    def answer(result: TransferResult, measurements: Sequence[Measurement], facts: Facts) -> TransferResult:
        return replace(result, idioms=(*result.idioms, IdiomTime({}, part_id, float(len(measurements)))))

    return Part(part_id, part_id, weight, rows, judge, answer=answer)


def run(
    options: TransferOptions,
    monkeypatch: pytest.MonkeyPatch,
    alone: Sequence[Part],
    together: Sequence[TogetherPart] = (),
    ids: tuple[str, ...] = ("cpu",),
    recorder: Recorder | None = None,
) -> Recorder:
    monkeypatch.setattr(inventory, "read", lambda: FACTS)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(ids))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: CPU)
    for module in (parts, command):
        monkeypatch.setattr(module, "PARTS", tuple(alone))
        monkeypatch.setattr(module, "TOGETHER", tuple(together))
    recorder = recorder or Recorder()
    command.command(options, recorder)
    return recorder


def told(recorder: Recorder) -> list[Any]:
    """What came out, in order: names of rows, and findings."""
    return [
        event.measurement.name if isinstance(event, Measured) else (event.finding.id, event.finding.title)
        for event in recorder.events
        if isinstance(event, (Measured, Judged))
    ]


def test_ids_and_names_are_unique() -> None:
    table: list[Part | TogetherPart] = [*parts.PARTS, *parts.TOGETHER]
    assert len({one.id for one in table}) == len({one.name for one in table}) == len(table)
    assert all(one.weight > 0 for one in table)


def test_parts_are_chosen_by_prefix() -> None:
    assert TransferOptions(only=("cop",)).select() == {"copies"}
    assert TransferOptions().select() == {one.id for one in parts.PARTS} | {one.id for one in parts.TOGETHER}
    with pytest.raises(UsageError, match="--only 'x' fits no part; the parts are copies"):
        TransferOptions(only=("x",)).check()
    with pytest.raises(UsageError, match="--skip leaves no part of --only"):
        TransferOptions(only=("copies",), skip=("copies",)).check()


def test_a_part_that_is_left_out_neither_runs_nor_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(TransferOptions(skip=("a",)), monkeypatch, [part("a"), part("b")])
    assert told(recorder) == ["b", ("b", "1 rows")]


def test_every_judge_sees_all_rows_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(TransferOptions(), monkeypatch, [part("a"), part("b")])
    assert told(recorder) == ["a", "b", ("a", "2 rows"), ("b", "2 rows")]
    (answered,) = [event for event in recorder.events if isinstance(event, Answered)]
    idioms = (IdiomTime({}, "a", 2.0), IdiomTime({}, "b", 2.0))
    assert answered == Answered("bench_transfer", (TransferResult("cpu", idioms=idioms),))


def test_time_is_split_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still: the first of weights 3 and 1 gets three quarters, the second what is left."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    seen: list[Setting] = []
    run(TransferOptions(time_budget_s=8.0), monkeypatch, [part("a", weight=3.0, seen=seen), part("b", seen=seen)])
    assert [setting.deadline for setting in seen] == [106.0, 108.0]


def test_parts_without_time_are_told_in_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(TransferOptions(time_budget_s=1e-9), monkeypatch, [part("a"), part("b"), part("c")])
    assert told(recorder) == ["a", ("transfer.time", "not measured: b, c"), ("a", "1 rows")]
    skipped = next(event.finding for event in recorder.events if isinstance(event, Judged))
    assert (skipped.verdict, skipped.message) == ("skip", "the time was up")
    assert skipped.fix == "give a longer --time-budget, or --only b"


def test_a_part_without_room_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    full = CannotLook("no room", "memory is full", finding="b.memory")
    recorder = run(TransferOptions(), monkeypatch, [part("a"), part("b", error=full), part("c")])
    assert told(recorder)[:3] == ["a", ("b.memory", "no room"), "c"]


def test_the_first_part_without_room_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotLook, match="no room"):
        run(TransferOptions(), monkeypatch, [part("a", error=CannotLook("no room")), part("b")])


# several devices at once


def several(part_id: str, seen: list[Together]) -> TogetherPart:
    def rows(together: Together) -> Iterator[Measurement]:
        seen.append(together)
        yield row(part_id)

    def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
        return [Finding(part_id, "info", f"{len(measurements)} rows")]

    return TogetherPart(part_id, part_id, 1.0, rows, judge)


def test_several_devices_are_judged_once_after_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Together] = []
    recorder = run(
        TransferOptions(device="all"), monkeypatch, [part("a")], [several("t", seen)], ids=("cuda:0", "cuda:1")
    )
    assert told(recorder) == ["a", ("a", "1 rows"), "a", ("a", "1 rows"), "t", ("t", "3 rows")]
    assert [together.facts for together in seen] == [FACTS]


def test_one_device_has_nothing_to_do_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Together] = []
    assert told(run(TransferOptions(), monkeypatch, [part("a")], [several("t", seen)])) == ["a", ("a", "1 rows")]
    assert not seen
    with pytest.raises(CannotLook, match="t needs several devices"):
        run(TransferOptions(only=("t",)), monkeypatch, [part("a")], [several("t", seen)])


def test_what_several_devices_measured_before_ctrl_c_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(together: Together) -> Iterator[Measurement]:
        yield row("t")
        raise KeyboardInterrupt

    never = several("u", [])
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        run(
            TransferOptions(device="all"),
            monkeypatch,
            [part("a")],
            [replace(several("t", []), rows=rows), never],
            ids=("cuda:0", "cuda:1"),
            recorder=recorder,
        )
    assert told(recorder)[4:] == ["t", ("t", "3 rows")]
    assert [event.text for event in recorder.events if isinstance(event, Notice)] == [
        "interrupted: not every device was measured beside the others"
    ]


def test_a_part_of_several_devices_that_cannot_look_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(together: Together) -> Iterator[Measurement]:
        yield from refused()

    def refused() -> Iterator[Measurement]:
        raise CannotLook("no child came up", "it hung", finding="t.child")

    first = replace(several("t", []), rows=rows)
    found = told(run(TransferOptions(), monkeypatch, [part("a")], [first, several("u", [])], ids=("cuda:0", "cuda:1")))
    assert found[4:] == [("t.child", "no child came up"), "u", ("t", "3 rows"), ("u", "3 rows")]
