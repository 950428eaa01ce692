"""What documents of nodes come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.fleet.nodes import node, slower

from gpucheck.errors import UsageError
from gpucheck.fleet.documents import MARKED_LINE, file_name
from gpucheck.fleet.judge import FleetJudgement, judge
from gpucheck.report.results.fleet import (
    FleetNode,
    NodeDevice,
    NodeDocument,
    NodeFigure,
    NodePart,
    NodeProblem,
    RefusedFile,
)

TWENTY = [node(f"n{number}") for number in range(20)]


def row(judged: FleetJudgement, host: str) -> FleetNode:
    return next(one for one in judged.result.nodes if one.host == host)


def finding(judged: FleetJudgement, id: str) -> str:
    return next(f"{one.verdict}: {one.title}: {one.message}" for one in judged.findings if one.id == id)


def test_an_even_fleet_is_good() -> None:
    judged = judge([*TWENTY])
    assert [one.id for one in judged.findings] == ["fleet.nodes"]
    assert judged.findings[0].verdict == "pass"
    assert set(judged.result.good) == {f"n{number}" for number in range(20)}
    assert judged.result.bad == ()


def test_a_slow_device_is_named_with_its_ratio() -> None:
    judged = judge([*TWENTY[:-1], slower(TWENTY[-1], "cuda:3", 0.1)])
    found = row(judged, "n19")
    assert found.state == "bad"
    assert {one.device for one in found.slow} == {"cuda:3"}
    assert 0.88 < found.slow[0].ratio < 0.92
    assert found.cause.startswith("cuda:3 reaches 0.")
    assert found.fix is not None and found.fix.endswith("--device cuda:3")
    assert judged.result.bad == ("n19",)


def test_what_is_near_is_even_however_certain() -> None:
    exact = [replace(one, figures=tuple(replace(f, rate=1e12) for f in one.figures)) for one in TWENTY[:-1]]
    near = replace(TWENTY[-1], figures=tuple(replace(f, rate=0.98e12) for f in TWENTY[-1].figures))
    assert row(judge([*exact, near]), "n19").state == "good"


@pytest.mark.parametrize("flag", ["cpu-busy", "few-samples"])
def test_a_disturbed_figure_leaves_the_node_undecided(flag: str) -> None:
    slow = slower(TWENTY[-1], "cuda:3", 0.2)
    slow = replace(slow, figures=tuple(replace(one, flags=(flag,)) for one in slow.figures))
    assert row(judge([*TWENTY[:-1], slow]), "n19").state == "undecided"


def whole(document: NodeDocument, by: float) -> NodeDocument:
    """The same with every device slower."""
    for device in document.devices:
        document = slower(document, device.id, by)
    return document


def test_below_five_nodes_devices_are_compared_within_their_node() -> None:
    judged = judge([*TWENTY[:3], slower(TWENTY[3], "cuda:0", 0.4)])
    assert set(judged.result.good) == {"n0", "n1", "n2"} and judged.result.bad == ("n3",)
    assert row(judged, "n3").cause.startswith("cuda:0 reaches 0.")
    assert "fewer than 5 nodes" in finding(judged, "fleet.siblings")


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("device", ["cuda:3", "all"])
def test_of_few_nodes_one_of_half_the_speed_is_far_below_the_others(count: int, device: str) -> None:
    """Of one device a node: within it there is nothing to compare with."""
    sound = [node(f"n{number}", devices=4) for number in range(count - 1)]
    bad = node("bad", devices=4)
    judged = judge([*sound, whole(bad, 0.5) if device == "all" else slower(bad, device, 0.5)])
    others = "two" if count == 3 else "three"
    cause = row(judged, "bad").cause
    assert f" far below the other {others}: 0." in cause and (device == "all" or cause.startswith("cuda:3 "))
    assert judged.result.bad == () and "bad" not in judged.result.good
    assert finding(judged, "fleet.nodes").startswith(f"warn: {count - 1} of {count} nodes good; bad: cuda:")


def test_of_few_nodes_none_is_far_below_where_the_others_differ_or_it_was_disturbed() -> None:
    sound = [node(f"n{number}", devices=1) for number in range(3)]
    bad = whole(node("bad", devices=1), 0.5)
    assert row(judge([*sound, whole(node("bad", devices=1), 0.25)]), "bad").state == "good"
    assert row(judge([*sound[:2], whole(sound[2], 0.3), bad]), "bad").state == "good"
    assert row(judge([sound[0], bad]), "bad").state == "good"
    busy = replace(bad, figures=tuple(replace(one, flags=("cpu-busy",)) for one in bad.figures))
    assert row(judge([*sound, busy]), "bad").state == "good"


@pytest.mark.parametrize("count", [1, 4])
def test_a_fleet_whose_speed_was_not_compared_is_not_all_good(count: int) -> None:
    judged = judge([*TWENTY[: count - 1], whole(TWENTY[19], 0.2)])
    nodes = "1 node" if count == 1 else "4 nodes"
    assert (
        finding(judged, "fleet.nodes")
        == f"info: {nodes}: nothing failed; speed not compared (a comparison needs 5 nodes of one model): "
    )


def test_nodes_without_figures_or_of_another_model_are_not_called_good() -> None:
    without = [replace(one, figures=()) for one in TWENTY]
    assert "nothing failed; speed not compared" in finding(judge([*without]), "fleet.nodes")
    other = node("other")
    other = replace(other, devices=tuple(replace(one, name="Other GPU") for one in other.devices))
    for alone in (other, replace(other, figures=())):
        assert "speed of other not compared" in finding(judge([*TWENTY, alone]), "fleet.nodes")


def with_only(document: NodeDocument, device: str = "", name: str = "") -> NodeDocument:
    """The same with the figures of these devices and names, given by how they begin."""
    figures = (one for one in document.figures if one.device.startswith(device) and one.name.startswith(name))
    return replace(document, figures=tuple(figures))


def without(document: NodeDocument, device: str) -> NodeDocument:
    return replace(document, figures=tuple(one for one in document.figures if one.device != device))


def test_a_node_that_lacks_what_its_siblings_have_is_undecided() -> None:
    judged = judge([*TWENTY[:7], without(TWENTY[7], "cuda:3")])
    found = row(judged, "n7")
    assert found.state == "undecided" and found.cause.startswith("not measured on cuda:3: matmul ")
    assert found.fix == "on n7: gpucheck bench matmul --device cuda:3"
    assert finding(judged, "fleet.nodes").startswith("inconclusive: 7 of 8 nodes good; n7: not measured on cuda:3")
    none = row(judge([*TWENTY[:7], replace(TWENTY[7], figures=())]), "n7")
    assert none.cause.startswith("not measured on cuda:0, cuda:1, cuda:2 and 5 more: ")
    assert none.fix is not None and none.fix.endswith("--device all")
    half = judge([*TWENTY[:4], *(with_only(one, name="matmul") for one in TWENTY[4:8])])
    assert half.result.counts["good"] == half.result.counts["undecided"] == 4
    alone = judge([without(TWENTY[0], "cuda:3")])  # the other devices of one node are siblings too
    assert row(alone, "n0").state == "undecided"


def test_what_no_sibling_has_is_not_missing() -> None:
    less = [with_only(one, name="matmul") for one in TWENTY]
    assert judge([*less]).findings[0].verdict == "pass"
    assert judge([*less[:19], TWENTY[19]]).result.counts["good"] == 20  # one that was asked for more
    processors = [replace(one, devices=(*one.devices, NodeDevice("cpu", "Some CPU"))) for one in TWENTY]
    of_cpu = (NodeFigure("cpu", "matmul", "float32 1x1x1", 1e9, "FLOP/s"),)
    plain = [replace(node(f"c{n}"), devices=(NodeDevice("cpu", "Some CPU"),), figures=of_cpu) for n in range(20)]
    assert set(judge([*processors, *plain]).result.good) >= {one.host for one in TWENTY}


def test_a_few_devices_that_were_measured_are_not_all_good() -> None:
    judged = judge([*(with_only(one, device="cuda:0") for one in TWENTY[:8])])
    assert finding(judged, "fleet.nodes").startswith("info: 8 nodes: nothing failed; speed not compared")


def test_a_slow_node_is_named_once_and_not_its_devices() -> None:
    judged = judge([*TWENTY[:7], whole(TWENTY[19], 0.2)])
    found = row(judged, "n19")
    assert found.state == "bad" and {one.device for one in found.slow} == {"all devices"}
    assert found.cause.startswith("the whole node reaches 0.8") and found.cause.endswith("and 1 more figure")
    assert found.fix is not None and found.fix.endswith("--device all")
    two = judge([*TWENTY[:14], whole(TWENTY[18], 0.2), whole(TWENTY[19], 0.3)])
    assert set(two.result.bad) == {"n18", "n19"}  # neither hides the other


def test_a_node_that_is_probably_slow_is_undecided() -> None:
    """Five nodes that differ by 1 %, and one of them is 9 % lower: too little to call it bad, too much for good."""
    by = (0.1, 0.0, 0.01, 0.02, 0.02)
    judged = judge([*(whole(one, low) for one, low in zip(TWENTY, by, strict=False))])
    found = row(judged, "n0")
    assert found.state == "undecided" and found.cause.startswith("the whole node reaches 0.9")
    assert found.cause.endswith("; not certain") and judged.result.counts["good"] == 4
    # One of its devices that is certainly slow is bad all the same.
    judged = judge([slower(whole(TWENTY[0], 0.1), "cuda:3", 0.4), *(whole(TWENTY[n], by[n]) for n in range(1, 5))])
    assert row(judged, "n0").state == "bad" and row(judged, "n0").slow[0].device == "cuda:3"


def test_a_link_at_half_speed_on_one_of_five_nodes() -> None:
    slow = TWENTY[4]
    figures = (replace(one, rate=one.rate / 2) if one.name == "bandwidth" else one for one in slow.figures)
    judged = judge([*TWENTY[:4], replace(slow, figures=tuple(figures))])
    assert judged.result.bad == ("n4",)
    assert [one.figure for one in row(judged, "n4").slow] == ["bandwidth copy 4 GiB"]


def test_half_a_fleet_that_is_slower_is_never_good() -> None:
    judged = judge([*TWENTY[:10], *(whole(one, 0.1) for one in TWENTY[10:])])
    assert {one.host for one in judged.result.nodes if one.state == "undecided"} == {f"n{n}" for n in range(10, 20)}
    assert "two speeds in" in finding(judged, "fleet.modes") and judged.findings[0].verdict == "inconclusive"
    # Inside a group of five or more one device is still found.
    judged = judge([slower(TWENTY[0], "cuda:3", 0.2), *TWENTY[1:10], *(whole(one, 0.1) for one in TWENTY[10:])])
    assert judged.result.bad == ("n0",)


def test_a_minority_of_devices_is_told_in_any_fleet() -> None:
    for others in (1, 2, 3):
        judged = judge([*TWENTY[:others], node("n9", devices=7)])
        assert row(judged, "n9").state == "undecided" and row(judged, "n9").cause.startswith("7 devices, ")


def test_proven_failures_stand_in_the_list_whatever_else_is_suspect() -> None:
    failed = [replace(one, exit=1) for one in TWENTY[:8]]
    everyone = tuple(one.host for one in TWENTY)
    judged = judge([*failed, *TWENTY[8:]])
    assert not judged.result.suspect and len(judged.result.bad) == 8
    judged = judge([*failed, *TWENTY[8:15]], expected=everyone)
    assert judged.result.suspect and judged.result.bad == tuple(one.host for one in failed)
    assert [one.id for one in judged.findings[:2]] == ["fleet.nodes", "fleet.suspect"]
    assert " bad or silent: proven only for n0" in judged.findings[0].title
    few = judge([*TWENTY[:17]], expected=everyone)  # three always may
    assert not few.result.suspect and few.result.bad == ("n17", "n18", "n19")
    all_may = judge([*TWENTY[:10]], expected=everyone, max_bad=1.0)  # a quarter is the most
    assert all_may.result.suspect and all_may.result.bad == ()


@pytest.mark.parametrize("short", [4, 8])
def test_a_stated_number_of_devices_is_no_matter_of_how_many_fail(short: int) -> None:
    judged = judge([*(node(f"n{n}", devices=7) for n in range(short)), *TWENTY[short:8]], devices=8)
    assert not judged.result.suspect and set(judged.result.bad) == {f"n{n}" for n in range(short)}
    assert [one.id for one in judged.findings if one.verdict in ("fail", "inconclusive")] == ["fleet.nodes"]
    # Without torch and NVML nobody knows how many there are: all nodes of a wrong image are not drained.
    blind = judge([replace(one, exit=3, devices=(), figures=()) for one in TWENTY], devices=8)
    assert blind.result.suspect and blind.result.bad == ()


def test_a_limit_is_to_be_raised_only_where_that_changes_something() -> None:
    silent = [replace(one, exit=None, step="smoke") for one in TWENTY]
    check = "on n0: gpucheck fleet check"
    for count, fix in ((4, f"{check}; or raise --max-bad"), (6, check)):
        told = judge([*silent[:count], *TWENTY[count:]]).findings[0]
        assert (told.id, told.fix) == ("fleet.suspect", fix)
    unnamed = judge([], expected=4).findings[0].fix
    assert unnamed == "check that the nodes are up and their job was started"
    assert not judge([*silent[:4], *TWENTY[4:]], max_bad=0.2).result.suspect


def test_the_parts_peak_is_a_floor_where_most_of_a_rack_is_bad() -> None:
    card = NodeDevice("cuda:0", "NVIDIA H100 80GB HBM3", "GPU-1", "9.0", 132, 5120)
    rate = 1.5e12  # of 3.35e12
    figure = NodeFigure("cuda:0", "bandwidth", "copy 4 GiB", rate, "B/s")
    rack = [replace(node(f"n{n}"), devices=(replace(card, uuid=f"GPU-{n}"),), figures=(figure,)) for n in range(8)]
    judged = judge([*rack], max_bad=1.0)
    assert judged.result.counts["bad"] == 8
    assert "of the model's peak" in row(judged, "n0").cause
    sound = replace(figure, rate=3.0e12)
    assert judge([*(replace(one, figures=(sound,)) for one in rack)]).result.counts["good"] == 8
    beyond = replace(rack[0], figures=(replace(figure, rate=9e12),))
    others = [replace(one, figures=(sound,)) for one in rack[1:]]
    assert "n0" in finding(judge([beyond, *others]), "fleet.impossible")


def test_missing_hung_and_blind_nodes_have_a_row() -> None:
    hung = replace(TWENTY[1], exit=None, step="smoke", written_wall_s=1100.0)
    blind = replace(TWENTY[2], exit=3, problems=(NodeProblem("doctor", "torch", "skip", "no torch", "not installed"),))
    judged = judge([TWENTY[0], hung, blind], expected=("n0", "n1", "n2", "n3"), max_bad=1.0)
    states = {one.host: (one.state, one.step, one.cause) for one in judged.result.nodes}
    assert states["n0"] == ("good", "", "")
    assert states["n1"] == ("silent", "smoke", "stopped at smoke, which began 1 min 40 s into the check")
    assert states["n2"] == ("blind", "", "no torch: not installed")
    assert states["n3"] == ("silent", "", "left no document")
    assert judged.result.good == ("n0",)
    assert judged.result.suspect and judged.result.bad == ()  # two of four may not be silent


def test_ten_percent_missing_or_broken_are_all_named() -> None:
    many = [node(f"n{number}", devices=1) for number in range(200)]
    broken = [replace(one, exit=1, problems=(NodeProblem("smoke", "x", "fail", "wrong sums"),)) for one in many[:10]]
    judged = judge([*broken, *many[20:]], expected=tuple(one.host for one in many), max_bad=0.2)
    assert set(judged.result.bad) == {f"n{number}" for number in range(20)}
    assert not judged.result.suspect


def test_the_newest_run_counts_and_others_are_told() -> None:
    before = [replace(one, run="last night", started_wall_s=1.0) for one in TWENTY[:2]]
    judged = judge([*before, *TWENTY])
    assert judged.result.run == "tonight"
    assert "'last night' (2)" in finding(judged, "fleet.other_run")
    alone = replace(TWENTY[0], run="one with a wrong clock", started_wall_s=9e9)
    with pytest.raises(UsageError, match="several runs"):
        judge([alone, *TWENTY])
    assert judge([alone, *TWENTY], run="tonight").result.counts["good"] == 20
    judged = judge([before[0], *TWENTY[1:]], expected=tuple(one.host for one in TWENTY))
    assert row(judged, "n0").cause == "left no document"  # last night's does not stand for tonight's


def test_a_document_of_the_night_before_under_the_same_run_is_silent() -> None:
    day_s = 86400.0
    nights = [replace(TWENTY[0], run="alone"), *(replace(one, run="alone", started_wall_s=1000.0 + day_s)
              for one in TWENTY[1:])]  # fmt: skip
    judged = judge([*nights], expected=tuple(one.host for one in TWENTY))
    assert (row(judged, "n0").state, row(judged, "n0").cause) == ("silent", "its document is 1 d older than the others")
    assert judged.result.counts["good"] == 19 and len(judged.result.nodes) == 20
    assert "up to 1 d apart" in finding(judged, "fleet.old")
    ahead = judge([replace(TWENTY[0], started_wall_s=1e12), *TWENTY[1:]])  # a wrong clock hurts nobody else
    assert ahead.result.counts["good"] == 19 and row(ahead, "n0").state == "undecided"
    assert finding(ahead, "fleet.old")
    # Or only one node was checked tonight: it is not known that the others are good.
    cause = "its document is 1 d newer than the others, which may be old"
    tonight = [replace(one, started_wall_s=1000.0 + day_s) for one in TWENTY[:10]]
    alone = judge([tonight[0], *TWENTY[1:]])
    assert alone.findings[0].title == f"19 of 20 nodes good; n0: {cause}"
    failed = judge([replace(tonight[0], exit=1), *TWENTY[1:]])
    assert failed.result.bad == ("n0",)
    half = judge([*tonight, *TWENTY[10:]])
    assert (half.result.counts["good"], row(half, "n19").cause) == (10, "its document is 1 d older than the others")


def test_the_last_attempt_counts_and_duplicates_are_told() -> None:
    first = replace(TWENTY[0], exit=1)
    again = replace(TWENTY[0], attempt=1)
    assert row(judge([again, first, *TWENTY[1:]]), "n0").state == "good"
    twice = judge([TWENTY[0], replace(first, written_wall_s=2000.0), *TWENTY[1:]])
    assert row(twice, "n0").state == "bad"
    assert "n0" in finding(twice, "fleet.duplicate")


def test_nodes_that_were_not_expected_are_in_no_list() -> None:
    judged = judge([*TWENTY, node("stranger")], expected=tuple(one.host for one in TWENTY))
    assert judged.result.unexpected == ("stranger",)
    assert "stranger" in finding(judged, "fleet.unexpected")
    assert set(judged.result.good) == {one.host for one in TWENTY}
    more = judge([*TWENTY], expected=12)
    assert "20 nodes left documents, but 12 were expected" in finding(more, "fleet.unexpected")


def test_a_list_of_short_names_means_the_whole_ones() -> None:
    whole = [replace(one, host=f"{one.host}.cluster.example") for one in TWENTY]
    judged = judge([*whole[:-1]], expected=tuple(one.host for one in TWENTY))
    assert judged.result.counts["good"] == 19 and judged.result.bad == ("n19",)
    assert judged.result.unexpected == ()
    back = judge([*TWENTY], expected=tuple(one.host for one in whole))
    assert set(back.result.good) == {one.host for one in whole}
    both = judge([TWENTY[0]], expected=("n0.a", "n0.b"))  # which of them it is cannot be known
    assert both.result.unexpected == ("n0",) and both.result.counts["silent"] == 2
    for name, other in (("10.0.0.3", "10.0.0.9"), ("n0.rack1", "n0.rack2")):  # two whole names are two nodes
        apart = judge([replace(TWENTY[0], host=other)], expected=(name,))
        assert (apart.result.unexpected, apart.result.bad) == ((other,), (name,))


def test_a_machine_that_calls_itself_by_both_names_is_one_node() -> None:
    """Its failed check was left out as not expected, and the node good by the other."""
    failed = replace(TWENTY[0], host="n0.example", exit=1)
    for late in (0.0, 1.0):
        judged = judge(
            [*TWENTY, replace(failed, written_wall_s=failed.written_wall_s + late)],
            expected=tuple(one.host for one in TWENTY),
        )
        assert judged.result.bad == ("n0",) and len(judged.result.nodes) == 20
        assert "n0" in finding(judged, "fleet.duplicate")


def test_containers_of_one_machine_with_gpus_of_their_own_are_two_nodes() -> None:
    """The one that failed first was a second document of the other, which was good."""
    pod, other = (replace(node(host), boot_id="boot of the host") for host in ("pod", "pod.second"))
    judged = judge([pod, replace(other, exit=1, written_wall_s=1050.0), *TWENTY])
    assert (judged.result.bad, len(judged.result.nodes)) == (("pod.second",), 22)
    alone = replace(pod, exit=1, devices=(), figures=())  # one that found no GPU
    assert judge([alone, other, *TWENTY]).result.bad == ("pod",)


def refused(host: str, why: str = "truncated, or not JSON", run: str = "tonight") -> RefusedFile:
    return RefusedFile(f"/d/00/{file_name(host, run)}", why)


@pytest.mark.parametrize("expected", [None, 20])
def test_a_document_that_cannot_be_read_is_a_silent_node(expected: int | None) -> None:
    judged = judge([*TWENTY[1:]], [refused("n0")], expected=expected)
    assert (row(judged, "n0").state, row(judged, "n0").cause) == (
        "silent",
        "its document is refused: truncated, or not JSON",
    )
    assert judged.result.bad == ("n0",) and len(judged.result.nodes) == 20
    listed = judge([*TWENTY[2:]], [refused("n0"), refused("n1", run="last night")], expected=("n0", "n1"))
    assert [row(listed, host).cause for host in ("n0", "n1")] == [row(judged, "n0").cause, "left no document"]
    most = judge([TWENTY[0]], [refused(one.host) for one in TWENTY[1:8]])
    assert most.result.suspect and most.result.counts["silent"] == 7


def test_a_line_of_a_log_that_cannot_be_read_may_be_a_node() -> None:
    cut = [RefusedFile("/d/job.log", f"{MARKED_LINE}a marked line is cut or changed")]
    judged = judge([*TWENTY], cut)
    assert row(judged, "(unnamed 1)").state == "undecided" and judged.findings[0].verdict == "inconclusive"
    assert judge([*TWENTY], cut, expected=20).findings[0].verdict == "pass"
    assert judge([replace(one, expected=20) for one in TWENTY], cut).findings[0].verdict == "pass"


def test_files_that_are_no_document_of_the_run_are_no_nodes() -> None:
    others = [RefusedFile(f"/d/{name}", "not a document") for name in ("fleet.json", "n0-copy.json", "x.y.json")]
    hostile = refused("$(reboot)")
    judged = judge([*TWENTY], [*others, hostile, refused("n0"), refused("n99", run="last night")])
    assert judged.findings[0].verdict == "pass" and len(judged.result.nodes) == 20


def test_a_forged_document_drains_no_node_and_raises_no_limit() -> None:
    forged = [refused(f"spare{number}", "forged? its owner is user 7") for number in range(20)]
    judged = judge([*TWENTY], forged)
    assert row(judged, "spare0").state == "undecided" and judged.result.bad == ()
    assert judged.findings[0].verdict == "inconclusive"
    one = replace(TWENTY[0], exit=None, step="smoke")
    assert judge([one, replace(one, host="b"), *TWENTY[2:4]], forged).result.suspect


def test_a_run_of_which_nothing_can_be_read_may_be_the_newest() -> None:
    lost = [refused(one.host, run="later") for one in TWENTY]
    with pytest.raises(UsageError, match="another run has only unreadable documents"):
        judge([*TWENTY], lost)
    assert judge([*TWENTY], lost, run="tonight").findings[0].verdict == "pass"
    assert judge([*TWENTY], lost, run="later").result.counts["silent"] == 20


def test_fewer_devices_than_the_others_is_bad() -> None:
    judged = judge([node("n0", devices=7), *TWENTY[1:]])
    assert row(judged, "n0").cause == "7 devices, the others have 8"
    blind = node("n0", devices=0, exit=3, problems=(NodeProblem("devices", "x", "skip", "no driver", "", "modprobe"),))
    lost = row(judge([blind, *TWENTY[1:]]), "n0")
    assert (lost.state, lost.cause, lost.fix) == ("bad", "0 devices, the others have 8; no driver", "modprobe")


@pytest.mark.parametrize("whole", [2, 3, 4])
def test_nodes_with_fewer_devices_are_never_the_usual_ones(whole: int) -> None:
    """Of eight nodes some lost a GPU, half of them or more: those with all of theirs are not the odd ones."""
    judged = judge([*TWENTY[:whole], *(node(f"f{n}", devices=7) for n in range(8 - whole))])
    assert row(judged, "f0").state == "undecided" and row(judged, "f0").cause == f"7 devices, {whole} nodes have 8"
    assert judged.result.counts["good"] == whole and judged.findings[0].verdict == "inconclusive"


def test_nodes_of_another_kind_may_have_fewer_devices() -> None:
    def four(host: str, count: int = 4) -> NodeDocument:
        made = node(host, devices=count)
        return replace(made, devices=tuple(replace(one, name="NVIDIA L40S") for one in made.devices))

    judged = judge([*TWENTY[:8], *(four(f"l{n}") for n in range(6)), four("l6", 3)])
    assert {one.host: one.cause for one in judged.result.nodes if one.state != "good"} == {
        "l6": "3 devices, the others have 4"
    }


def test_drifts_are_grouped_by_what_nodes_share() -> None:
    odd = {"driver": "550.5", "torch": "2.9.0"}
    judged = judge([*(replace(one, settings=odd) for one in TWENTY[:3]), *TWENTY[3:]])
    (drift,) = [one for one in judged.findings if one.id == "fleet.drift"]
    assert drift.title == "3 nodes with driver 550.5 (most: 580.1), torch 2.9.0 (most: 2.11.0)"
    half = [replace(one, settings={**one.settings, "driver": "570"}) for one in TWENTY[:10]]
    assert "10 nodes with driver 580.1 (others: 570)" in finding(judge([*half, *TWENTY[10:]]), "fleet.drift")


def test_forged_and_unreadable_files_are_told_apart() -> None:
    refused = [RefusedFile("a.json", "forged? it says n2"), RefusedFile("b.json", "nested too deeply")]
    judged = judge([*TWENTY], refused)
    assert "a.json" in finding(judged, "fleet.forged")
    assert "b.json" in finding(judged, "fleet.unreadable")
    assert judged.result.counts["good"] == 20


def test_what_ended_a_rank_tells_the_culprit_from_its_victims() -> None:
    victim = replace(TWENTY[0], exit=None, step="smoke", ended="SIGTERM", written_wall_s=1008.0)
    culprit = replace(TWENTY[1], exit=None, step="smoke")
    judged = judge([victim, culprit, *TWENTY[2:]])
    assert [one.host for one in judged.result.nodes[:2]] == ["n1", "n0"]
    assert row(judged, "n0").cause == "ended by SIGTERM at smoke, 8 s into the check"
    assert row(judged, "n1").cause.startswith("stopped at smoke")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"parts": (NodePart("devices", 0, 1.0), NodePart("bench", 1, 30.0))}, "bench did not pass"),
        ({"parts": (NodePart("bench", 0, 30.0, "did not finish within 30 s"),)}, "bench did not finish within 30 s"),
        ({"problems": (NodeProblem("smoke", "memory.x", "fail", "wrong data"),)}, "smoke: wrong data"),
    ],
)
def test_a_document_that_contradicts_itself_is_never_good(changed: dict[str, Any], why: str) -> None:
    found = row(judge([replace(TWENTY[0], **changed), *TWENTY[1:]]), "n0")
    assert (found.state, found.cause) == ("undecided", f"its check reports a pass, but {why}")
    warned = replace(TWENTY[0], problems=(NodeProblem("doctor", "x", "warn", "ECC is off"),))
    assert row(judge([warned, *TWENTY[1:]]), "n0").state == "good"


def test_a_part_that_did_not_end_is_advised_by_a_whole_command() -> None:
    late = replace(TWENTY[0], exit=4, parts=(NodePart("bench", None, 5.0, "did not end within 5 s"),))
    assert row(judge([late, *TWENTY[1:]]), "n0").fix == "on n0: gpucheck fleet check --only bench"
