"""Devices that copy at the same time: which windows count, what they say, and children that are lost."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from judged import copied

from gpucheck.bench import concurrent
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import Several
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import numa
from gpucheck.machine.child import LineChild
from gpucheck.machine.child_protocol import Start
from gpucheck.report.events import Recorder, Skipped
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run

GB, MIB = 1e9, 2**20
NOTHING = Facts()


def setting(recorder: Recorder, *ids: str, facts: Facts = NOTHING) -> Several:
    return Several(TransferOptions(host_share=0.05), ids, facts, recorder, time.monotonic() + 0.5)


# for real, with the CPU as both devices


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_two_children_copy_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "TOGETHER_BYTES", 2 * MIB)
    recorder = Recorder()
    node = next(iter(numa.allowed()), None)
    facts = Facts(devices=(Device("cpu", id="cpu", numa_node=node),))
    first, second = work.together(setting(recorder, "cpu", "cpu", facts=facts))
    assert [event for event in recorder.events if isinstance(event, Skipped)] == []
    case = {"direction": "host_to_host", "host_memory": "pageable", "size_bytes": 2 * MIB, "devices": 2}
    assert first.case == second.case == case
    begun = [entry.runs[0].started_monotonic_s[0] for entry in (first, second)]
    ended = [entry.runs[0].started_monotonic_s[-1] + entry.runs[0].samples_s[-1] for entry in (first, second)]
    # Every window that counts began after both did, and ended before either did.
    assert max(begun) < min(ended)
    for entry in (first, second):
        details = entry.method.details
        assert details["wrong_bytes"] == 0 and details["verified_slices"] > 0
        if node is not None:
            assert entry.method.numa == f"node {node} (assumed from affinity)"


# which windows count


class Ticking:
    """A device whose copies take a second each."""

    now = 10.0

    def host_now(self) -> float:
        return self.now

    def copy(self) -> None:
        self.now += 1.0

    def synchronize(self) -> None: ...


def test_windows_outside_the_common_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "LATEST_S", 1.5)
    device: Any = Ticking()
    run = concurrent.without_pause(device, device.copy, 2, at_s=10.0, for_s=5.0)
    # All copy from 11.5 to 16.5.
    assert (run.started_monotonic_s, run.samples_s, run.calls_per_sample) == ((12.0, 14.0), (2.0, 2.0), 2)


@pytest.mark.parametrize(("at_s", "why"), [(5.0, "began too late"), (10.0, "ended in time")])
def test_no_window_in_the_common_time_is_no_figure(at_s: float, why: str) -> None:
    device: Any = Ticking()
    with pytest.raises(CannotLook, match=why):
        concurrent.without_pause(device, device.copy, 2, at_s=at_s, for_s=1.0)


# children that are lost


def says(*lines: str) -> Start:
    """A child that answers each line with the next of these, then ends."""
    program = "import sys\n" + "".join(f"sys.stdin.readline()\n{line}\n" for line in lines)
    return lambda: LineChild([sys.executable, "-c", program])


READY = 'print(\'{"ready": true, "directions": ["host_to_device"]}\', flush=True)'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("sys.exit('no device')",), "its process ended with 1: no device"),
        (("import os; os.kill(os.getpid(), 9)",), "its process was ended by SIGKILL"),
        (('print(\'{"error": "torch cannot use cuda:0"}\', flush=True)',), "torch cannot use cuda:0"),
        (("print('half', flush=True)",), "its process ended with 0"),
        ((READY, "import time; time.sleep(60)"), "its process did not answer within 1 s"),
    ],
)
def test_a_child_that_is_lost_leaves_it_undecided(
    lines: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "ANSWER_TIMEOUT_S", 1.0)
    recorder = Recorder()
    assert list(work.together(setting(recorder, "cuda:0"), says(*lines))) == []
    (finding,) = [event.finding for event in recorder.events if isinstance(event, Skipped)]
    assert (finding.id, finding.verdict, finding.message) == ("transfer.together", "inconclusive", reason)
    assert finding.title == "cuda:0 did not copy with the others"


def test_a_child_whose_device_failed_raises_that() -> None:
    line = 'print(\'{"error": "CUDA error: unspecified launch failure"}\', flush=True)'
    with pytest.raises(DeviceFailed) as raised:
        list(work.together(setting(Recorder(), "cuda:0"), says(line)))
    assert raised.value.device == "cuda:0"


def test_no_room_is_said() -> None:
    with pytest.raises(CannotLook, match="not enough memory for 2 buffers of 16 MiB"):
        list(work.together(replace(setting(Recorder(), "cuda:0", "cuda:1"), options=TransferOptions(host_share=1e-9))))


# what it says


def row(device: str, gb: float, name: str = "transfer.together", **more: Any) -> Measurement:
    case: dict[str, Any] = {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": 256 * MIB}
    details = more.pop("details", {})
    case |= {"devices": 2} if name == "transfer.together" else {"timed": "link"}
    return copied(name, case | more, gb * GB, device=device, **details)


def judged(*rows: Measurement) -> Finding:
    (finding,) = judge.together(rows, NOTHING)
    return finding


ALONE = (row("cuda:0", 56.0, "transfer"), row("cuda:1", 55.0, "transfer"))


def test_devices_that_keep_their_rate() -> None:
    found = judged(*ALONE, row("cuda:0", 54.0), row("cuda:1", 53.0))
    assert (found.verdict, found.evidence["sum_bytes_per_s"]) == ("info", 107 * GB)
    assert found.evidence["share"] == {"cuda:0": 54 / 56, "cuda:1": 53 / 55}


def test_devices_that_take_turns_are_not_told_by_their_median_window() -> None:
    """Two windows of 1 s and one of 8 s, two copies in each: six in 10 s."""
    measurement = replace(row("cuda:0", 10.0), runs=(Run("", 2, (1.0, 8.0, 1.0), (0.0, 1.0, 9.0)),))
    assert judge.carried(measurement) == pytest.approx(0.6 * 256 * MIB)
    assert judge.carried(replace(measurement, runs=())) is None


def test_devices_that_share_an_uplink() -> None:
    found = judged(*ALONE, row("cuda:0", 28.0), row("cuda:1", 33.0))
    assert (found.verdict, found.evidence["share"]["cuda:0"]) == ("warn", 0.5)
    assert found.fix is not None


def test_alone_means_the_same_direction_and_memory_and_the_link() -> None:
    mine = row("cuda:0", 50.0)
    others = [
        row("cuda:0", 99.0, "transfer", direction="device_to_host"),
        row("cuda:0", 98.0, "transfer", host_memory="pageable"),
        row("cuda:1", 97.0, "transfer"),
        row("cuda:0", 96.0, "transfer", size_bytes=MIB),
    ]
    assert judge.alone(mine, others) is None
    called = row("cuda:0", 57.0, "transfer", timed="as_called")
    assert judge.alone(mine, [*others, called]) == 57 * GB
    assert judge.alone(mine, [*others, called, *ALONE]) == 56 * GB


def test_what_arrived_changed_fails() -> None:
    found = judged(row("cuda:0", 50.0), row("cuda:1", 50.0, details={"wrong_bytes": 3}))
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", {"on cuda:1": 3})
    each = [{"details": {"wrong_bytes": 5 if number == 3 else 0}} for number in range(7)]
    found = judged(row("cuda:0", 50.0), row("cuda:1", 50.0, details={"each_run": each}))
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", {"on cuda:1": 5})


def test_rows_without_all_devices_say_nothing() -> None:
    assert judge.together([*ALONE, row("cuda:0", 5.0)], NOTHING) == []
