"""Copies from processes that are bound to a NUMA node: which nodes, the children, and what the wrong one costs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.bench.transfer import bound, bound_judge, bound_place, bound_talk, cases, command, parts
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.bench.transfer.setting import Setting
from gpucheck.errors import CannotLook, DeviceFailed, UsageError
from gpucheck.machine import accel, choose, inventory, kernel_driver, numa
from gpucheck.machine.child import LineChild
from gpucheck.machine.numa import Bound, Node
from gpucheck.options import read
from gpucheck.report.codec import to_json
from gpucheck.report.events import Judged, Notice, Recorder
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats

MIB, GB = 2**20, 1e9
CPU = accel.open_device("cpu")
LOCAL, FAR = "node 0 (pages read back)", "node 1 (pages read back)"


class Gpu:
    id, uuid, name, is_cpu, device, module = "cuda:0", "GPU-0", "a fake GPU", False, None, None


def machine(
    monkeypatch: pytest.MonkeyPatch, count: int, allowed: Sequence[int], own: int | None, why: str = ""
) -> None:
    class Watch:
        numa_node, numa_unknown = own, why

        def __init__(self, uuid: str | None) -> None: ...

        def __enter__(self) -> Watch:
            return self

        def __exit__(self, *_: object) -> None: ...

    found = tuple(Node(number, frozenset({number}), None, (10, 20)) for number in range(count))
    monkeypatch.setattr(numa, "nodes", lambda *root: found)
    monkeypatch.setattr(numa, "allowed", lambda *root: tuple(allowed))
    monkeypatch.setattr(bound, "Watch", Watch)


def nodes_for(wanted: str, parts: Sequence[str] = ("copies",), device: Any = Gpu) -> tuple[int, ...]:
    return bound.nodes_for(wanted, parts, device)


# which nodes


def test_the_option() -> None:
    assert read(TransferOptions, {"numa": "remote"}).numa == "remote"
    with pytest.raises(UsageError, match="--numa 'far' is not known; give none, local, remote"):
        read(TransferOptions, {"numa": "far"})


def test_the_devices_own_node_and_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2, (0, 1), 1)
    assert (nodes_for("local"), nodes_for("remote")) == ((1,), (1, 0))


def test_a_device_that_nvml_does_not_know_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        @staticmethod
        def get_device_properties(device: object) -> object:
            return SimpleNamespace(pci_domain_id=1, pci_bus_id=0x41, pci_device_id=0)

    class Amd(Gpu):
        module = Module  # type: ignore[assignment]

    machine(monkeypatch, 2, (0, 1), None, "NVML tells none")
    monkeypatch.setattr(kernel_driver, "numa_nodes", lambda addresses: {"0001:41:00.0": 1})
    assert nodes_for("local", device=Amd) == (1,)


def test_one_node_is_everybodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1, (0,), None, "not supported")
    assert nodes_for("local") == (0,)
    with pytest.raises(CannotLook, match="this machine has one NUMA node; there is no wrong one"):
        nodes_for("remote")


@pytest.mark.parametrize(
    ("count", "allowed", "own", "wanted", "text"),
    [
        (0, (), None, "remote", "this system shows no NUMA nodes"),
        (2, (0, 1), None, "local", "the NUMA node of cuda:0 is not known; NVML tells none"),
        (2, (0,), 0, "remote", "this process may work on no other NUMA node than 0"),
    ],
)
def test_what_keeps_from_looking(
    count: int, allowed: tuple[int, ...], own: int | None, wanted: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, count, allowed, own, "NVML tells none")
    with pytest.raises(CannotLook, match=text):
        nodes_for(wanted)


def test_it_is_about_copies_to_a_device() -> None:
    with pytest.raises(CannotLook, match="--numa is for copies to a device"):
        nodes_for("local", device=CPU)
    with pytest.raises(UsageError, match="--numa remote compares copies"):
        nodes_for("remote", ("idioms",))


# where memory lies


def test_an_unbound_process_tells_where_it_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "allowed", lambda *root: (0, 1))
    assert bound_place.where(None, ()) == "any of nodes 0-1"
    assert bound_place.where(Bound(1, (1,)), ()) == "node 1 (assumed from affinity)"


def test_a_bound_process_has_its_nodes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "free_bytes", lambda node: 1000)
    room = cases.Room(host=700, device=None, cache=1, cache_known=True)
    assert bound_place.within(room, Bound(0, (0,)), 0.5).host == 500
    assert bound_place.within(room, Bound(0, (0,)), 0.9).host == 700
    # Memory that is not bound comes from anywhere.
    assert bound_place.within(room, Bound(0, (0,), False, "refused"), 0.5) is room
    assert bound_place.within(room, None, 0.5) is room


def test_what_a_row_tells_itself_stays() -> None:
    assert bound_place.placed(row("x", 1.0, numa=None), LOCAL).method.numa == LOCAL
    assert bound_place.placed(row("x", 1.0, numa=FAR), LOCAL).method.numa == FAR


def test_every_part_tells_where_its_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "allowed", lambda *root: (0, 1))
    seen: list[Bound | None] = []

    def rows(setting: Setting) -> Iterator[Measurement]:
        seen.append(setting.bound)
        yield row("x", 1.0, numa=None)

    part = parts.Part("x", "x", 1.0, rows, lambda measurements, facts: [])
    node = Bound(1, (1,), memory=False)
    told = [
        one.method.numa
        for bound_to in (None, node)
        for one in command.rows_on(TransferOptions(), [part], CPU, Recorder(), time.monotonic(), set(), bound_to)
    ]
    assert told == ["any of nodes 0-1", "node 1 (assumed from affinity)"]
    assert seen == [None, node]


# children


def row(name: str, gb: float | None, *, numa: str | None = LOCAL, **case: Any) -> Measurement:
    given = {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": 512 * MIB, "timed": "link"} | case
    return Measurement(
        name,
        DeviceRef("cuda:0"),
        given,
        (),
        TimeStats(1.0, 10),
        {},
        None if gb is None else Rate(gb * GB, "B/s"),
        MemoryFigures(),
        Method("host", "host", "cold", numa=numa),
    )


def says(*answers: Sequence[dict[str, Any]]) -> bound_talk.Start:
    """Children that answer each line with the next list of lines, then wait."""
    program = "import sys, json\n" + "".join(
        f"sys.stdin.readline()\nfor one in json.loads({json.dumps(answer)!r}): print(json.dumps(one), flush=True)\n"
        for answer in answers
    )
    return lambda module: LineChild([sys.executable, "-c", f"{program}sys.stdin.read()"])


def measured(start: bound_talk.Start, nodes: tuple[int, ...], recorder: Recorder) -> tuple[list[Measurement], set[str]]:
    ran: set[str] = set()
    found = bound.measured(TransferOptions(), ["copies"], Gpu, recorder, time.monotonic(), ran, nodes, start)  # type: ignore[arg-type]
    return list(found), ran


READY = [{"ready": True, "memory_refused": ""}]


def test_rows_of_the_wrong_node_have_their_own_name() -> None:
    one = row("transfer", 50.0)
    work = [{"ran": ["copies"]}, {"measurement": to_json(one)}, {"notice": {"text": "left out"}}, {"end": True}]
    recorder = Recorder()
    found, ran = measured(says(READY, work), (0, 1), recorder)
    assert [found[0], found[1].name] == [one, "transfer.remote"]
    assert ran == {"copies"}
    assert [event for event in recorder.events if isinstance(event, Notice)] == 2 * [Notice("left out")]


def test_a_refused_memory_policy_is_said() -> None:
    recorder = Recorder()
    refused = [{"ready": True, "memory_refused": "the memory policy is refused (EPERM)"}]
    measured(says(refused, [{"end": True}]), (0,), recorder)
    assert [event for event in recorder.events if isinstance(event, Notice)] == [
        Notice(
            "cuda:0 from node 0: the memory policy is refused (EPERM); memory comes from there while there is any",
            "warning",
        )
    ]


def test_a_child_that_cannot_look_says_so_here() -> None:
    told = {"what": "no room", "why": "it is full", "fix": "", "finding": "transfer.memory", "usage": False}
    with pytest.raises(CannotLook, match="no room; it is full") as raised:
        measured(says([{"raised": told}]), (0,), Recorder())
    assert raised.value.finding == "transfer.memory"
    with pytest.raises(UsageError):
        measured(says(READY, [{"raised": told | {"usage": True}}]), (0,), Recorder())


def test_a_child_that_is_lost_leaves_it_undecided() -> None:
    def dies(module: str) -> LineChild:
        return LineChild([sys.executable, "-c", "raise SystemExit('gone')"])

    recorder = Recorder()
    assert measured(dies, (0,), recorder) == ([], set())
    (finding,) = [event.finding for event in recorder.events if isinstance(event, Judged)]
    assert (finding.id, finding.verdict) == ("transfer.numa", "inconclusive")
    assert (finding.title, finding.message) == (
        "cuda:0 from node 0: copies were cut off",
        "its process ended with 1: gone",
    )


def test_a_child_whose_device_failed_raises_that() -> None:
    error = "CUDA error: uncorrectable ECC error encountered"
    with pytest.raises(DeviceFailed, match="its memory had an error") as raised:
        measured(says(READY, [{"error": error}]), (0,), Recorder())
    assert (raised.value.device, raised.value.why, raised.value.exit_code) == ("cuda:0", error, 1)


@pytest.mark.slow
def test_a_real_child_binds_itself_and_measures_the_same_rows() -> None:
    if not numa.allowed():
        pytest.skip("this system shows no NUMA node")
    node = numa.allowed()[0]
    options, ran = TransferOptions(sizes=(64 * 1024,), host_share=0.02), set[str]()
    recorder = Recorder()
    (one,) = bound.measured(options, ["copies"], CPU, recorder, time.monotonic(), ran, (node,))
    assert [event for event in recorder.events if isinstance(event, Judged)] == []
    assert (one.name, one.case["size_bytes"], one.method.details["wrong_bytes"]) == ("transfer", 64 * 1024, 0)
    assert one.method.numa in (f"node {node} (pages read back)", f"node {node} (assumed from affinity)")
    assert ran == {"copies"}


def test_the_command_measures_from_the_children_and_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = both(50.0, 25.0)
    for one in pairs:
        one.method.details.update(wrong_bytes=0, verified_slices=1, first_wrong_byte=None)
    asked: list[Any] = []

    def rows(
        options: TransferOptions, wanted: list[str], accel: Any, emit: Any, deadline: float, ran: set[str]
    ) -> Iterator[Measurement]:
        asked.append((options.numa, wanted))
        ran.add("copies")
        yield from pairs

    monkeypatch.setattr(bound, "rows", rows)
    monkeypatch.setattr(inventory, "read", Facts)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: CPU)
    recorder = Recorder()
    command.command(TransferOptions(numa="remote", only=("copies",)), recorder)
    assert asked == [("remote", ["copies"])]
    verdicts = {event.finding.id: event.finding.verdict for event in recorder.events if isinstance(event, Judged)}
    assert (verdicts["transfer.numa"], verdicts["transfer.corrupt"]) == ("warn", "pass")


# what the wrong node costs


def judged(*rows: Measurement) -> Finding:
    (finding,) = bound_judge.judge(rows, Facts())
    return finding


def both(near: float | None, far: float | None, **case: Any) -> tuple[Measurement, Measurement]:
    return row("transfer", near, **case), row("transfer.remote", far, numa=FAR, **case)


def test_nothing_is_said_where_no_wrong_node_was_measured() -> None:
    assert bound_judge.judge([row("transfer", 50.0)], Facts()) == []


def test_the_wrong_node_costs() -> None:
    found = judged(*both(50.0, 40.0), *both(48.0, 30.0, direction="device_to_host"))
    assert (found.verdict, found.title) == ("warn", "from the wrong NUMA node copies lose 38 % of their rate")
    assert found.message == (
        f"40.0 GB/s to the device from {FAR}, 50.0 GB/s from {LOCAL} (1.25×); "
        f"30.0 GB/s to the host from {FAR}, 48.0 GB/s from {LOCAL} (1.60×)"
    )
    assert [one["ratio"] for one in found.evidence["copies"]] == [1.25, 1.6]
    assert found.fix is not None and "numactl" in found.fix


def test_a_wrong_node_without_consequence_is_a_remark() -> None:
    found = judged(*both(50.0, 49.0))
    assert (found.verdict, found.title) == ("info", "the NUMA node makes no difference here")


def test_the_largest_copies_of_the_most_telling_kind_decide() -> None:
    rows = [
        *both(50.0, 25.0, size_bytes=256 * MIB),
        *both(50.0, 49.0, timed="as_called", size_bytes=1024 * MIB),
        *both(20.0, 5.0, host_memory="pageable", timed="as_called"),
        *both(50.0, 45.0, size_bytes=512 * MIB),
        *both(9.0, 1.0, size_bytes=MIB),
    ]
    (copy,) = judged(*rows).evidence["copies"]
    assert (copy["host_memory"], copy["timed"], copy["size_bytes"]) == ("pinned", "link", 512 * MIB)


def test_small_copies_alone_tell_nothing() -> None:
    assert judged(*both(9.0, 1.0, size_bytes=MIB)).verdict == "inconclusive"
    assert judged(*both(None, None)).verdict == "inconclusive"


def test_the_copies_judge_speaks_of_it() -> None:
    rows = [
        *(one for pair in (both(50.0, 25.0),) for one in pair),
    ]
    for one in rows:
        one.method.details.update(wrong_bytes=0, verified_slices=1, first_wrong_byte=None)
    ids = [finding.id for finding in parts.judge_device(rows, Facts(), ["copies"])]
    assert "transfer.numa" in ids and "transfer.corrupt" in ids
