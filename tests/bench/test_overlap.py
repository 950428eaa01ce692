"""What hides of a copy: recovered on a device whose truth is known, judged by hand, and the command on a fake one."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass, replace
from typing import Any

import judged as judging
import pytest
from engines import Engines
from fake_device import FakeDevice, no_pinned, unpinned
from judged import Document

import document_schema as schema
from gpucheck.bench import buffers, concurrent, devices
from gpucheck.bench import judge as whole_judge
from gpucheck.bench.buffers import BufferMemory
from gpucheck.bench.judging import DeviceRows
from gpucheck.bench.overlap import OverlapOptions, judge, work
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure import runs as merging
from gpucheck.report.codec import to_json
from gpucheck.report.events import Measured
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Part, Report, Summary, document
from gpucheck.report.results import Results
from gpucheck.report.results.bench import OverlapResult

MIB, GIB = 2**20, 2**30
CPU = accel.open_device("cpu")
PRODUCT_S = 120e-6


def row(what: str, samples: tuple[float, ...], **case: Any) -> Measurement:
    return Measurement(
        name="overlap",
        device=DeviceRef("cuda:0"),
        case={
            "direction": "host_to_device",
            "host_memory": "pinned",
            "streams": 2,
            "size_bytes": 128 * MIB,
            **case,
            "what": what,
        },
        runs=(Run("", 1, samples, tuple(map(float, range(len(samples))))),),
        time_s=TimeStats(samples[0], len(samples)),
        work={"bytes": 1.0},
        rate=None,
        memory=MemoryFigures(),
        method=Method("host", "host", "cold", details={"verified_slices": 4, "wrong_bytes": 0}),
    )


def rows(overlap: float, **case: Any) -> list[Measurement]:
    """A case whose copy and compute take a second each, in eight rounds."""
    return [row(what, (s,) * 8, **case) for what, s in (("copy", 1.0), ("compute", 1.0), ("both", 2.0 - overlap))]


def groups(device: Engines, streams: int = 2, product_s: float = PRODUCT_S) -> tuple[Any, Any]:
    """Groups of a device's copies and of its products."""
    current = device.side if streams == 2 else contextlib.nullcontext
    copies_of = functools.partial(work.group, device, device.copy, current=current)
    return copies_of, functools.partial(work.group, device, device.product(product_s))


def measured(device: Engines, streams: int = 2, budget_s: float = 1.0) -> OverlapResult:
    """What the measuring code, unmodified, says of a device."""
    copies_of, products_of = groups(device, streams)
    copies, products = work.balanced(copies_of, products_of)
    timed = concurrent.in_turn(work.in_turn(copies_of(copies), products_of(products)), device.host_s + budget_s)
    (entry,) = judge.answer(
        DeviceRows("cuda:0", [replace(row(what, (1.0,)), runs=(one.run,)) for what, one in timed.items()])
    )
    return entry


# calibrating


@pytest.mark.parametrize(("copy_s", "copies"), [(4e-3, 1), (0.3e-3, 7)])
def test_compute_is_made_as_long_as_copies_of_two_milliseconds(copy_s: float, copies: int) -> None:
    count, products = work.balanced(*groups(Engines(copy_s=copy_s)))
    assert count == copies and products * PRODUCT_S == pytest.approx(copies * copy_s, rel=0.04)


def test_a_device_too_slow_for_the_product_is_balanced_as_far_as_can_be() -> None:
    assert work.balanced(*groups(Engines(copy_s=4e-3), product_s=7e-3)) == (1, 1)


def test_every_copy_is_prepared_for_before_its_window() -> None:
    device, prepared = Engines(copy_s=4e-3), list[int]()
    copies = work.group(device, device.copy, 3, prepare=lambda number, count: prepared.append(count))
    for calls in work.in_turn(copies, groups(device)[1](66)).values():
        calls.window(1)
    assert prepared == [3, 3] and device.copies == 6


# the truth is recovered


@pytest.mark.parametrize(
    ("device", "streams", "overlap"),
    [
        (Engines(), 2, 1.0),
        (Engines(), 1, 0.0),
        (Engines(shared=0.5), 2, 0.5),
        (Engines(shared=1.0), 2, 0.0),
        (Engines(pageable=True), 2, 0.0),
        (Engines(blocking=True), 2, 0.0),
    ],
    ids=["two engines", "one stream", "half shared", "one engine", "pageable", "blocking launches"],
)
def test_what_truly_hides_is_recovered(device: Engines, streams: int, overlap: float) -> None:
    found = measured(device, streams)
    # Copy and compute are equal within 3 %.
    assert found.overlap == pytest.approx(overlap, abs=0.03)
    assert found.ci_low is not None and found.ci_high is not None
    assert found.ci_low <= found.overlap <= found.ci_high
    assert found.ci_high - found.ci_low < 0.01
    assert found.rounds >= 10 and "unbalanced" not in found.flags


@pytest.mark.parametrize(("shared", "overlap"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_noise_widens_the_interval_and_moves_the_overlap_little(shared: float, overlap: float) -> None:
    found = measured(Engines(shared=shared, noise=0.05))
    assert found.overlap == pytest.approx(overlap, abs=0.06)
    assert found.ci_low is not None and found.ci_high is not None
    assert 0.005 < found.ci_high - found.ci_low < 0.2


def test_a_copy_that_makes_compute_slower_than_one_after_the_other_is_told_as_negative() -> None:
    (found,) = judge.answer(DeviceRows("cuda:0", rows(-0.25)))
    assert (found.overlap, found.ci_low, found.ci_high) == pytest.approx((-0.25,) * 3)


def test_an_overlap_is_of_the_shorter_and_too_few_rounds_have_no_interval() -> None:
    (found,) = judge.answer(
        DeviceRows("cuda:0", [row("copy", (2.0,) * 5), row("compute", (1.0,) * 5), row("both", (2.5,) * 5)])
    )
    assert to_json(found) == {
        "device": "cuda:0",
        "direction": "host_to_device",
        "host_memory": "pinned",
        "streams": 2,
        "size_bytes": 128 * MIB,
        "overlap": 0.5,
        "ci_low": None,
        "ci_high": None,
        "copy_s": 2.0,
        "compute_s": 1.0,
        "both_s": 2.5,
        "rounds": 5,
        "flags": ["unbalanced", "few-samples"],
    }


# judging


def judged(*measurements: Measurement, environment: dict[str, str] | None = None) -> dict[str, Finding]:
    return {one.id: one for one in judge.findings(judging.seen(measurements, Facts(environment=environment or {})))}


def test_copies_that_hide_pass() -> None:
    older = [*rows(0.01, streams=1), *rows(0.02, host_memory="pageable")]
    found = judged(*rows(0.97), *rows(0.99, direction="device_to_host"), *older)
    assert list(found) == ["overlap.pinned_two_streams", "overlap.copies"]
    first = found["overlap.pinned_two_streams"]
    assert first.verdict == "pass"
    assert first.evidence["overlap"] == pytest.approx({"host_to_device": 0.97, "device_to_host": 0.99})
    assert found["overlap.copies"].verdict == "pass"


def test_copies_that_hide_less_than_half_warn_with_the_cause_that_is_seen() -> None:
    found = judged(*rows(0.95), *rows(0.3, direction="device_to_host"))["overlap.pinned_two_streams"]
    assert found.verdict == "warn"
    known = judged(*rows(0.0), environment={"CUDA_LAUNCH_BLOCKING": "1"})["overlap.pinned_two_streams"]
    assert known.fix and found.fix and known.fix != found.fix


@pytest.mark.parametrize("overlap", [0.1, 0.95])
def test_what_is_noisy_neither_warns_nor_passes(overlap: float) -> None:
    copy, *rest = rows(overlap)
    copy.method.details["cores_used_by_others"] = 1.5
    found = judged(replace(copy, flags=("noisy", "drift", "cpu-busy")), *rest)["overlap.pinned_two_streams"]
    assert (found.verdict, found.fix) == ("info", judge.AGAIN)


def test_copies_that_arrive_changed_fail() -> None:
    copy, *rest = rows(1.0)
    wrong = replace(copy, method=Method("host", "host", "cold", details={**copy.method.details, "wrong_bytes": 3}))
    wrong.method.details["first_wrong_byte"] = 17
    found = judged(wrong, *rest)["overlap.copies"]
    assert (found.verdict, [*found.evidence["wrong_bytes"].values()]) == ("fail", [3])
    unseen = replace(copy, method=Method("host", "host", "cold", details={"verified_slices": 0, "wrong_bytes": 0}))
    assert judged(unseen, *rest)["overlap.copies"].verdict == "inconclusive"


# options and cases


def test_the_size_follows_the_room() -> None:
    assert work.size_for(OverlapOptions(), BufferMemory(GIB, 8 * GIB, MIB)) == 64 * MIB
    assert work.size_for(OverlapOptions(), BufferMemory(50 * MIB, 8 * GIB, MIB)) == 32 * MIB
    with pytest.raises(UsageError, match=r"--size 64 MiB does not fit; .*; use at most 50 MiB"):
        work.size_for(OverlapOptions(64 * MIB), BufferMemory(50 * MIB, 8 * GIB, MIB))
    with pytest.raises(CannotLook, match="not enough memory to copy"):
        work.size_for(OverlapOptions(), BufferMemory(MIB // 2, 8 * GIB, MIB))


# the command


@dataclass
class Fake(FakeDevice):
    """A device with two streams and pinned memory, whose memory is the host's."""

    compute_capability: tuple[int, int] | None = (5, 2)
    streams: bool = True

    def memory_info(self) -> tuple[int, int]:
        return GIB, GIB

    def side_stream(self) -> Any:
        return contextlib.nullcontext if self.streams else None


def run(device: Any, monkeypatch: pytest.MonkeyPatch, options: OverlapOptions, pin: bool = True) -> Document:
    facts = Facts(devices=(Device(kind="cpu", id="cpu", name="CPU"),))
    monkeypatch.setattr(inventory, "read", lambda: facts)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice((device.id,), "a notice"))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: device)
    monkeypatch.setattr(buffers, "allocate", unpinned if pin else no_pinned)
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    monkeypatch.setattr(work, "WARM_UP_S", 0.0)
    monkeypatch.setattr(work, "SIDES", (16,))
    recorder = Document()
    work.command(options, recorder, devices.ALONE)
    return recorder


def test_the_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(Fake(), monkeypatch, OverlapOptions(size=MIB, time_budget_s=1.5))
    made = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    assert len(made) == 2 * 3
    assert made[0].case == {
        "direction": "host_to_device",
        "host_memory": "pinned",
        "streams": 2,
        "size_bytes": MIB,
        "what": "copy",
    }
    copy, compute, both = made[:3]
    assert copy.work == both.work == {"bytes": MIB} and compute.work == {"flop": 2.0 * 16**3}
    assert copy.rate and compute.rate and both.rate is None
    assert compute.method.precision_requested == "float32"
    assert len(copy.runs[0].samples_s) == len(both.runs[0].samples_s)
    answers = recorder.judged().results["bench_overlap"]
    assert len(answers) == 2 and answers == tuple(judge.answer(DeviceRows("cuda:0", made)))
    verdicts = {one.id: one.verdict for one in recorder.judged().findings}
    assert verdicts["overlap.copies"] == "pass"
    schema.validator().validate(json.loads(document(recorder.judged())))


def test_a_device_that_lacks_a_stream_or_pinned_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = OverlapOptions(size=MIB, time_budget_s=0.1)
    with pytest.raises(CannotLook, match="has no second stream"):
        run(Fake(streams=False), monkeypatch, asked)
    with pytest.raises(CannotLook, match="pinned memory could not be allocated"):
        run(Fake(), monkeypatch, asked, pin=False)


# several runs


def report(measured: list[Measurement]) -> Report:
    parts = ("gpucheck.report/1", "0.1.0", "bench overlap", (), "", 1.0, Facts())
    made = Report(*parts, tuple(measured), (), Results(), (), Summary("pass", 0, True))
    return replace(made, parts=(Part("overlap", "cuda:0", True, ""),))


def test_several_runs_have_one_overlap_also_where_they_calibrated_to_other_products() -> None:
    documents = []
    for number, overlap in enumerate((0.9, 0.92, 0.94, 0.96)):
        copy, compute, both = (
            replace(one, runs=(replace(one.runs[0], started=f"run {number}"),)) for one in rows(overlap)
        )
        # One of four was disturbed: not most of them.
        copy = replace(copy, flags=("noisy",) if number == 2 else ())
        documents.append(report([copy, replace(compute, work={"flop": 1.0 + (number == 3)}), both]))
    merged = merging.merge(documents)
    whole = merged.concluded(whole_judge.judge(merged))
    assert [one.case["what"] for one in whole.measurements] == ["copy", "compute", "both", "compute"]
    (found,) = whole.results["bench_overlap"]
    assert found.overlap == pytest.approx(0.93) and found.rounds == 32
    # Between processes, not within one.
    assert found.ci_low is not None and found.ci_low < 0.905
    assert found.ci_high is not None and found.ci_high > 0.955
    assert found.flags == ()
    told = {one.id: one for one in whole.findings}
    assert told["overlap.copies"].evidence == {"copies": 16}
