"""What copies measured by hand come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judged import seen

from gpucheck.bench.transfer.judge import JUDGE, copies, fits, latencies, speedups
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats

KIB, MIB, GIB = 2**10, 2**20, 2**30
X16 = {"generation": 5, "width": 16, "max_width": 16}


def row(
    seconds: float,
    size: int = GIB,
    direction: str = "host_to_device",
    memory: str = "pinned",
    timed: str = "link",
    *,
    bound: bool = False,
    **details: Any,
) -> Measurement:
    return Measurement(
        name="transfer",
        device=DeviceRef("cuda:0"),
        case={"direction": direction, "host_memory": memory, "size_bytes": size, "timed": timed},
        runs=(Run("", 1, (seconds,), (0.0,)),),
        time_s=TimeStats(seconds, 20, ci_low=seconds * 0.99, ci_high=seconds * 1.01),
        work={"bytes": float(size)},
        rate=None if bound else Rate(size / seconds, "B/s"),
        memory=MemoryFigures(),
        method=Method("host", "host", "cold", details={"wrong_bytes": 0, "verified_slices": 4, **details}),
    )


def called(seconds: float, memory: str, size: int = GIB, direction: str = "host_to_device") -> Measurement:
    return row(seconds, size, direction, memory, "as_called")


def by_id(measurements: list[Measurement], link: dict[str, int] | None = X16) -> dict[str, Finding]:
    rows = [replace(one, telemetry={"pcie": link}) if link is not None else one for one in measurements]
    return {finding.id: finding for finding in copies(rows, Facts())}


def test_nothing_copied_is_a_skip() -> None:
    assert [(f.id, f.verdict) for f in copies([], Facts())] == [("transfer.copies", "skip")]


def test_a_row_of_which_nothing_was_compared_is_no_pass() -> None:
    found = by_id([row(1.0), row(1.0, 16 * MIB, verified_slices=0)])["transfer.corrupt"]
    assert found.verdict == "inconclusive" and len(found.evidence["unverified"]) == 1
    wrong = by_id([row(1.0, verified_slices=0), row(1.0, wrong_bytes=3, first_wrong_byte=0)])["transfer.corrupt"]
    assert wrong.verdict == "fail"


def test_sound_pinned_copies_reach_the_link() -> None:
    found = by_id([row(GIB / 55.4e9), row(GIB / 55e9, direction="device_to_host")])["transfer.link"]
    assert (found.verdict, found.evidence["link"]) == ("pass", "PCIe 5 x16")
    assert found.evidence["share"] == pytest.approx({"host_to_device": 0.879, "device_to_host": 0.873}, abs=0.001)


def test_the_slower_direction_decides() -> None:
    found = by_id([row(GIB / 55e9), row(GIB / 20e9, direction="device_to_host")])["transfer.link"]
    assert found.verdict == "warn" and found.fix


def test_faster_than_the_link_means_another_link() -> None:
    found = by_id([row(GIB / 346e9)])["transfer.link"]
    assert (found.verdict, found.evidence["limit_bytes_per_s"]) == ("info", None)


def test_an_unknown_link_is_no_judgement() -> None:
    found = by_id([row(GIB / 10e9, no_telemetry_because="NVML is not there")], None)["transfer.link"]
    assert (found.verdict, found.evidence["limit_bytes_per_s"]) == ("info", None)


@pytest.mark.parametrize(("lanes", "rate", "verdict"), [(8, 27e9, "info"), (4, 13e9, "info"), (2, 6.5e9, "warn")])
def test_missing_lanes_are_told_and_warned_of_where_no_slot_has_so_few(lanes: int, rate: float, verdict: str) -> None:
    found = by_id([row(GIB / rate)], {**X16, "width": lanes})
    assert found["transfer.link"].verdict == "pass"
    width = found["transfer.link_width"]
    assert (width.verdict, width.evidence["width"], width.evidence["max_width"]) == (verdict, lanes, 16)


def test_small_copies_say_nothing_of_the_link() -> None:
    assert "transfer.link" not in by_id([row(1e-3, 64 * KIB)])


def test_gain_compares_as_called_with_as_called() -> None:
    """The link's own rate, four times better still, plays no part."""
    rows = [row(1.0), called(4.0, "pinned"), called(18.0, "pageable")]
    assert to_json(speedups(rows)) == [{"direction": "host_to_device", "size_bytes": GIB, "gain": 4.5}]
    found = by_id(rows)["transfer.pinned_speedup"]
    assert found.evidence["gains"] == to_json(speedups(rows)) and found.fix


def test_no_gain_gives_no_advice() -> None:
    found = by_id([called(4.0, "pinned"), called(4.1, "pageable")])["transfer.pinned_speedup"]
    assert (found.verdict, found.fix) == ("info", None)


def test_the_size_below_which_latency_rules() -> None:
    """10 µs to start and 50 GB/s: half the rate at 500 kB."""
    rows = [called(10e-6 + size / 50e9, "pinned", size) for size in (64 * KIB, MIB, GIB)]
    (found,) = latencies(rows)
    assert found.time_s == pytest.approx(10e-6 + 64 * KIB / 50e9)
    assert found.half_rate_bytes == pytest.approx(500e3)
    rows += [called(20e-6 + size / 10e9, "pageable", size) for size in (64 * KIB, MIB, GIB)]
    assert by_id(rows)["transfer.pinned_speedup"].evidence["half_rate_bytes"] == pytest.approx(500e3)


def test_a_line_for_each_way_memory_and_clock() -> None:
    sizes = (64 * KIB, MIB, GIB)
    rows = [called(10e-6 + size / 50e9, "pinned", size) for size in sizes]
    rows += [row(5e-6 + size / 55e9, size) for size in sizes]
    rows += [called(1e-3, "pageable", MIB)]
    as_called, link, pageable = fits(rows)
    assert (as_called.timed, link.timed, pageable.host_memory) == ("as_called", "link", "pageable")
    assert [link.latency_s, link.bytes_per_s] == pytest.approx([5e-6, 55e9])
    assert link.half_rate_bytes == pytest.approx(275e3)
    assert (link.sizes, link.sizes_off_bytes, link.unknown_because) == (3, (), None)
    assert (pageable.latency_s, pageable.unknown_because) == (None, "a fit needs 3 sizes")


def test_what_launching_takes_is_not_the_links_time() -> None:
    rows = [row(5e-6 + size / 55e9, size) for size in (64 * KIB, MIB, GIB)]
    rows.append(replace(row(80e-6, 4 * KIB), flags=("launch-bound",)))
    (found,) = fits(rows)
    assert found.sizes == 3
    assert found.latency_s == pytest.approx(5e-6)


def test_the_document_has_link_gains_latencies_and_fits() -> None:
    (told,) = JUDGE.answers(seen([row(GIB / 55e9), replace(row(1.0), name="transfer.other", case={})]))
    assert told.link is not None and told.link.unknown_because == "it was not read"
    assert [len(part) for part in (told.gains, told.latencies, told.fits)] == [0, 0, 1]


def test_a_wrong_byte_fails() -> None:
    found = by_id([row(1.0), row(1.0, 16 * MIB, wrong_bytes=3, first_wrong_byte=4096)])["transfer.corrupt"]
    assert (found.verdict, [*found.evidence["wrong_bytes"].values()]) == ("fail", [3])


def test_copies_on_the_host_are_told_as_such() -> None:
    rows = [
        row(1e-3, 16 * MIB, "host_to_host", "pageable", "as_called"),
        row(5e-6, 64 * KIB, "host_to_host", "pageable", "as_called", bound=True),
    ]
    found = by_id(rows, None)
    assert set(found) == {"transfer.corrupt", "transfer.host_to_host"}
    assert found["transfer.host_to_host"].evidence["bytes_per_s"] == 16 * MIB / 1e-3


def of_seven(bad: dict[str, Any]) -> list[dict[str, Any]]:
    """Seven runs, of which one says this."""
    right = {"wrong_bytes": 0, "verified_slices": 4, "first_wrong_byte": None}
    return [{"details": details, "telemetry": None} for details in (*6 * [right], {**right, **bad})]


def test_one_bad_run_of_seven_stays_bad() -> None:
    wrong = by_id([row(1.0, each_run=of_seven({"wrong_bytes": 3, "first_wrong_byte": 8}))])["transfer.corrupt"]
    assert (wrong.verdict, wrong.evidence["copies"]) == ("fail", 28)
    unseen = by_id([row(1.0, each_run=of_seven({"verified_slices": 0}))])["transfer.corrupt"]
    assert (unseen.verdict, unseen.evidence["copies"]) == ("inconclusive", 24)
