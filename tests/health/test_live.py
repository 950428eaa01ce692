"""Cards at work, at rest and in between: judged by facts made by hand. Each scene is one of a machine with eight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.devices.command import judge, selected
from gpucheck.health.live import activity
from gpucheck.messages import FIX
from gpucheck.report.facts import (
    Changes,
    ClockReasons,
    Device,
    Driver,
    Ecc,
    Fabric,
    Facts,
    Host,
    Link,
    Mig,
    NvLink,
    Process,
    RemapBanks,
    RemappedRows,
    SramEcc,
    XidError,
)
from gpucheck.report.finding import Finding
from gpucheck.report.report import exit_code, grouped

UP = tuple(NvLink(number, True, {"replay": 0, "recovery": 0}) for number in range(18))
DOWN = tuple(NvLink(number, False) for number in range(18))
CPU = Device(kind="cpu", id="cpu", name="a CPU")
ADDRESS = "0000:11:00.0"  # of cuda:0


NO_LIMITS: dict[str, Any] = dict.fromkeys(("gpu_max_celsius", "slowdown_celsius", "shutdown_celsius"))


def card(index: int = 0, *reasons: str, **changes: Any) -> Device:
    """One of eight cards that work as they should."""
    made = Device(
        kind="cuda",
        id=f"cuda:{index}",
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}",
        pci_address=f"0000:{index + 1}1:00.0",
        cuda_index=index,
        nvml_index=index,
        utilization_percent=100.0,
        temperature_celsius=64.0,
        slowdown_celsius=90.0,
        gpu_max_celsius=87.0,
        shutdown_celsius=95.0,
        memory_temperature_celsius=70.0,
        memory_max_celsius=95.0,
        power_w=600.0,
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        sm_clock_hz=1.98e9,
        max_sm_clock_hz=1.98e9,
        memory_clock_hz=2.6e9,
        max_memory_clock_hz=2.6e9,
        clock_reasons=ClockReasons(0, reasons),
        pcie=Link(5, 16, 5, 16, 0),
        ecc=Ecc(True, 0, 0, True, True),
        remapped_rows=RemappedRows(0, 0, False, False),
        recovery_action="none",
        compute_mode="default",
        nvlinks=UP,
        fabric=Fabric("completed"),
    )
    return replace(made, **changes)


def node(*others: Device) -> Facts:
    """Eight cards at work, with these in the place of those that have their number."""
    cards = {index: card(index) for index in range(8)} | {other.nvml_index: other for other in others}
    return Facts(
        host=Host(system="Linux"),
        driver=Driver(version="580.95.05", nvml_code=0, cuinit_code=0),
        devices=(*cards.values(), CPU),
    )


def logged(*errors: XidError, beside: Facts) -> Facts:
    """The machine with these errors in the kernel's log."""
    assert beside.driver is not None
    return replace(beside, driver=replace(beside.driver, xids=errors))


def said(*others: Device) -> list[tuple[str, str, str]]:
    """What is more than a pass: id, verdict, title."""
    return [
        (finding.id, finding.verdict, finding.title) for finding in judge(node(*others)) if finding.verdict != "pass"
    ]


def the_one(*others: Device) -> Finding:
    (found,) = [finding for finding in judge(node(*others)) if finding.verdict != "pass"]
    return found


def test_eight_cards_that_work_pass() -> None:
    assert said() == []
    assert exit_code(tuple(judge(node()))) == 0


# --- whether it works -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "does"),
    [
        ({"utilization_percent": 100.0}, "busy"),
        ({"utilization_percent": 50.0}, "busy"),
        ({"utilization_percent": 49.0}, "light load"),
        ({"utilization_percent": 4.0, "power_w": 690.0}, "idle"),
        ({"utilization_percent": None, "power_w": 350.0}, "busy"),
        ({"utilization_percent": None, "power_w": 100.0}, "unknown"),
        ({"utilization_percent": None, "power_w": 100.0, "clock_reasons": ClockReasons(1, ("gpu_idle",))}, "idle"),
        ({"utilization_percent": None, "power_w": None, "clock_reasons": None}, "unknown"),
        ({"utilization_percent": None, "power_limit_w": None}, "unknown"),
    ],
)
def test_whether_a_card_works(changes: dict[str, Any], does: str) -> None:
    assert activity(card(**changes)) == does


# --- what protects the card -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "title", "words"),
    [
        (("hw_slowdown",), "throttled by heat or power", "hw_slowdown in one reading"),
        (
            ("hw_slowdown", "hw_thermal_slowdown"),
            "throttled by heat",
            "hw_thermal_slowdown, hw_slowdown in one",
        ),
        (
            ("hw_slowdown", "hw_power_brake_slowdown"),
            "throttled by power brake",
            "hw_power_brake_slowdown, hw_slowdown in one reading",
        ),
        (("sw_thermal_slowdown",), "throttled by heat", "sw_thermal_slowdown in one reading"),
    ],
)
def test_a_working_card_that_protects_itself_is_told_with_the_cause(
    reasons: tuple[str, ...], title: str, words: str
) -> None:
    found = the_one(card(3, *reasons, sm_clock_hz=0.81e9))
    assert (found.id, found.verdict, found.title) == ("devices.throttled", "warn", title)
    assert words in found.message and found.message.startswith("cuda:3: ")
    assert found.message.startswith("cuda:3: clock 810 of 1980 MHz (59 % lower)")
    assert found.evidence["clock_reasons"] == list(reasons)


@pytest.mark.parametrize(
    ("reason", "verdict"), [("hw_thermal_slowdown", "fail"), ("hw_slowdown", "fail"), ("sw_thermal_slowdown", "warn")]
)
def test_what_the_hardware_does_in_both_readings_is_a_failure(reason: str, verdict: str) -> None:
    found = the_one(card(3, reason, changes=Changes(2.0, lasting_clock_reasons=(reason,))))
    assert (found.id, found.verdict) == ("devices.throttled", verdict)


def idle(*reasons: str, **changes: Any) -> Device:
    resting: dict[str, Any] = {
        "utilization_percent": 0.0,
        "power_w": 70.0,
        "sm_clock_hz": 345e6,
        "pcie": Link(1, 16, 5, 16, 0),
        "clock_reasons": ClockReasons(1, ("gpu_idle", *reasons)),
    }
    return card(3, **{**resting, **changes})


def test_a_card_at_rest_has_no_verdict_on_clock_and_link_and_says_so() -> None:
    found = the_one(idle())
    assert (found.id, found.verdict) == ("devices.not_judged", "skip")
    assert found.message == "cuda:3: the GPU is idle"
    narrow = the_one(idle(pcie=Link(1, 8, 5, 16, 0)))
    assert narrow.message == "cuda:3: the GPU is idle; the link is at x8 of x16, normal for some idle GPUs"
    assert exit_code(tuple(judge(node(idle())))) == 0


@pytest.mark.parametrize(
    ("reasons", "lasting", "seen"),
    [
        (("hw_thermal_slowdown",), (), "heat"),
        (("hw_power_brake_slowdown",), (), "power brake"),
        # As clocks change it flashes.
        (("hw_slowdown",), (), ""),
        (("hw_slowdown",), ("hw_slowdown",), "heat or power"),
        (("sw_thermal_slowdown",), (), ""),
        (("sw_thermal_slowdown",), ("sw_thermal_slowdown",), "heat"),
        (("sw_power_cap", "applications_clocks_setting"), (), ""),
    ],
)
def test_a_card_that_is_slowed_down_at_rest(reasons: tuple[str, ...], lasting: tuple[str, ...], seen: str) -> None:
    resting = idle(*reasons, changes=Changes(2.0, lasting_clock_reasons=lasting))
    found = [item for item in said(resting) if item[1] != "skip"]
    assert found == ([("devices.throttled", "warn", f"throttled by {seen} while idle")] if seen else [])


@pytest.mark.parametrize(
    ("violations", "verdict", "title"),
    [
        ({"thermal": 0.8}, "warn", "clock limited"),
        ({"reliability": 0.8, "power": 2.0}, "warn", "clock limited"),
        ({"power": 2.0}, "info", "clock limited"),
        ({"board_limit": 1.0}, "info", "clock limited"),
        ({"thermal": 0.01}, None, None),
        ({"low_utilization": 2.0}, None, None),
        ({"thermal": None}, None, None),
    ],
)
def test_counters_that_grew_between_two_readings(
    violations: dict[str, float | None], verdict: str | None, title: str | None
) -> None:
    found = said(card(3, changes=Changes(2.0, violations_s=violations)))
    assert found == ([] if verdict is None else [("devices.violations", verdict, title)])


@pytest.mark.parametrize("limit", ["power", "board_limit", "sync_boost"])
def test_a_clock_that_only_the_counters_explain_is_told_with_its_reason(limit: str) -> None:
    """NVML names no reason at the moment of the reading: beside such a card nobody says that there is no fault."""
    held = card(3, changes=Changes(2.0, violations_s={limit: 1.0}), sm_clock_hz=1.2e9)
    found = the_one(held)
    assert (found.id, found.verdict, found.title) == (
        "devices.violations",
        "info",
        "clock limited",
    )
    assert found.evidence["cost"] == pytest.approx(0.39, abs=0.01)
    # What NVML names has its own finding, which has the cost.
    named = replace(held, clock_reasons=ClockReasons(4, ("sw_power_cap",)))
    costs = {finding.id: finding.evidence["cost"] for finding in judge(node(named)) if "cost" in finding.evidence}
    assert costs == {"devices.power_limited": pytest.approx(0.39, abs=0.01), "devices.violations": 0.0}


def test_the_odd_one_with_ecc_on_is_not_told_to_turn_it_off() -> None:
    off = [card(index, ecc=Ecc(False, enabled_by_default=True)) for index in range(1, 8)]
    found = next(finding for finding in judge(node(card(0), *off)) if finding.verdict == "warn")
    assert (found.title, found.fix) == ("ECC is on", "sudo nvidia-smi --ecc-config=1, then reset the GPU")


# --- heat -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "verdict", "title"),
    [
        ({"temperature_celsius": 86.0}, None, None),
        ({"temperature_celsius": 91.0, "power_w": 690.0}, "warn", "91 °C, limit 90 °C"),
        ({"temperature_celsius": 91.0, "gpu_max_celsius": None}, "warn", "91 °C, limit 90 °C"),
        ({"temperature_celsius": 95.0}, "fail", "95 °C, limit 95 °C"),
        ({**NO_LIMITS}, None, None),
        ({"temperature_celsius": None}, None, None),
        ({"memory_temperature_celsius": 97.0}, "warn", "memory 97 °C, limit 95 °C"),
        ({"memory_temperature_celsius": 97.0, "memory_max_celsius": None}, None, None),
    ],
)
def test_heat_against_the_cards_own_limits(changes: dict[str, Any], verdict: str | None, title: str | None) -> None:
    assert [item[1:] for item in said(card(3, **changes))] == ([] if verdict is None else [(verdict, title)])


# --- power and settings -----------------------------------------------------------------------------------------------


def test_a_power_cap_is_a_remark_with_what_it_costs() -> None:
    found = the_one(card(3, "sw_power_cap", power_w=698.0, sm_clock_hz=1.386e9))
    assert (found.id, found.verdict) == ("devices.power_limited", "info")
    told = "cuda:3: 698 W of 700 W; 100 % busy; clock 1386 of 1980 MHz (30 % lower)"
    assert found.message == f"{told}; default 700 W"


def test_a_power_cap_far_below_the_limit_is_a_fault() -> None:
    found = the_one(card(3, "sw_power_cap", power_w=150.0, sm_clock_hz=0.345e9))
    assert (found.verdict, found.title) == ("warn", "power cap far below the limit")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("applications_clocks_setting", "application clocks"),
        ("display_clock_setting", "a display's clocks"),
        ("sync_boost", "sync boost"),
    ],
)
def test_a_setting_is_a_remark_with_what_it_costs(reason: str, words: str) -> None:
    found = the_one(card(3, reason, sm_clock_hz=1.2e9))
    assert (found.id, found.verdict) == ("devices.clock_setting", "warn")
    as_it_came = {"application_sm_clock_hz": 1.2e9, "default_application_sm_clock_hz": 1.2e9}
    for changes in ({"sm_clock_hz": 1.7e9}, {"sm_clock_hz": 1.2e9, **as_it_came}):
        assert the_one(card(3, reason, **changes)).verdict == "info"
    assert words in found.message and found.message.endswith("clock 1200 of 1980 MHz (39 % lower)")
    assert said(card(3, reason)) == []


@pytest.mark.parametrize("clock", ["sm", "memory"])
@pytest.mark.parametrize(
    ("now", "set_to", "id", "verdict"),
    [
        # The clock stands at an application clock below its default.
        (0.6, 0.6, "devices.clock_setting", "warn"),
        (0.9, 0.9, "devices.clock_setting", "info"),
        # It stands elsewhere, or as it came: nothing to reset.
        (0.6, 0.9, "devices.low_clock", "warn"),
        (0.6, 1.0, "devices.low_clock", "warn"),
        (1.0, 0.6, None, ""),
    ],
)
def test_application_clocks_are_reset_only_where_the_clock_stands_at_them(
    clock: str, now: float, set_to: float, id: str | None, verdict: str
) -> None:
    usual = 1.98e9 if clock == "sm" else 2.6e9
    changes = {
        f"{clock}_clock_hz": now * usual,
        f"application_{clock}_clock_hz": set_to * usual,
        f"default_application_{clock}_clock_hz": usual,
    }
    rows = [row for row in judge(node(card(3, **changes))) if row.verdict != "pass"]
    assert [(row.id, row.verdict) for row in rows] == ([(id, verdict)] if id else [])
    resets = ["--reset-applications-clocks" in (row.fix or "") for row in rows]
    assert resets == ([id == "devices.clock_setting"] if id else [])


def test_a_boost_is_no_reference() -> None:
    alone = replace(node(), devices=(card(0, nvlinks=None, fabric=None, sm_clock_hz=345e6), CPU))
    (low,) = [finding for finding in judge(alone) if finding.id == "devices.low_clock"]
    assert (low.verdict, low.fix, "locked" in low.message) == ("info", None, False)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"power_limit_w": 350.0, "power_w": 340.0}, ("devices.power_limit", "warn", "power limit 350 W")),
        ({"compute_mode": "prohibited"}, ("devices.compute_mode", "info", "compute mode prohibited")),
        ({"ecc": Ecc(False)}, ("devices.ecc_mode", "warn", "ECC is off")),
        (
            {"ecc": Ecc(False, enabled_after_reset=False, enabled_by_default=True)},
            ("devices.ecc_mode", "warn", "ECC is off"),
        ),
        # A GeForce comes so.
        ({"ecc": Ecc(False, enabled_after_reset=False, enabled_by_default=False)}, None),
        ({"application_sm_clock_hz": 1.98e9, "default_application_sm_clock_hz": 1.98e9}, None),
    ],
)
def test_how_a_card_is_set(changes: dict[str, Any], found: tuple[str, str, str] | None) -> None:
    assert said(card(3, **changes)) == ([] if found is None else [found])


# --- the PCIe link ----------------------------------------------------------------------------------------------------


def alone(**changes: Any) -> list[tuple[str, str, str]]:
    facts = replace(node(), devices=(card(0, nvlinks=None, fabric=None, **changes), CPU))
    return [(finding.id, finding.verdict, finding.title) for finding in judge(facts) if finding.verdict != "pass"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pcie": Link(5, 8, 5, 16)}, ("devices.link_width", "warn", "PCIe x8 of x16")),
        # Many of these are wired so.
        ({"pcie": Link(4, 8, 4, 16), "name": "NVIDIA A10G"}, ("devices.link_width", "info", "PCIe x8 of x16")),
        ({"pcie": Link(4, 2, 4, 16), "name": "NVIDIA A10G"}, ("devices.link_width", "warn", "PCIe x2 of x16")),
        # Passed to a virtual machine, where the slot is not seen.
        (
            {"pcie": Link(4, 16, 5, 16), "pci_address": "0000:00:1e.0"},
            ("devices.link_generation", "info", "PCIe gen 4 of 5"),
        ),
        ({"pcie": Link(1, 1, 5, 16), "name": "NVIDIA GH200 480GB"}, None),
        ({"pcie": Link(1, 1, 5, 16), "integrated": True}, None),
    ],
)
def test_a_link_without_another_card_beside_it(changes: dict[str, Any], found: tuple[str, str, str] | None) -> None:
    assert alone(**changes) == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("replays", "changes", "found"),
    [
        (50_000, None, ("warn", "50000 PCIe replays")),
        (50_000, Changes(2.0, pcie_replays=0), ("warn", "50000 PCIe replays")),
        (50_000, Changes(7200.0, pcie_replays=0), None),
        (50_000, Changes(7200.0, pcie_replays=None), ("warn", "50000 PCIe replays")),
        (5_000, None, None),
        (100, Changes(2.0, pcie_replays=None), None),
    ],
)
def test_packets_that_were_sent_again(replays: int, changes: Changes | None, found: tuple[str, str] | None) -> None:
    one = card(3, pcie=Link(5, 16, 5, 16, replays), changes=changes)
    assert said(one) == ([] if found is None else [("devices.pcie_replays", *found)])
    resting = [item for item in said(idle(pcie=Link(1, 16, 5, 16, replays), changes=changes)) if item[1] != "skip"]
    assert resting == ([] if found is None else [("devices.pcie_replays", *found)])


# --- NVLinks ----------------------------------------------------------------------------------------------------------


def only_up(count: int) -> tuple[NvLink, ...]:
    return UP[:count] + DOWN[count:]


@pytest.mark.parametrize(
    ("links", "verdict", "title"),
    [
        (DOWN, "fail", "all 18 NVLinks down"),
        (only_up(17), "warn", "1 of 18 NVLinks down"),
        (only_up(9), "warn", "9 of 18 NVLinks down"),
    ],
)
def test_one_card_of_eight_that_lost_links(links: tuple[NvLink, ...], verdict: str, title: str) -> None:
    assert said(card(3, nvlinks=links)) == [("links.inactive", verdict, title)]


def test_all_links_of_all_cards_down_under_a_fabric_that_calls_itself_completed() -> None:
    facts = node(*(card(index, nvlinks=DOWN) for index in range(8)))
    found = [finding for finding in judge(facts) if finding.verdict != "pass"]
    assert {(finding.id, finding.verdict) for finding in found} == {("links.inactive", "warn")} and len(found) == 8
    (group,) = grouped(found)
    assert group.message.startswith("cuda:0 to cuda:7: and on every other GPU: copies")


def test_all_links_down_without_a_fabric() -> None:
    without = [card(index, nvlinks=DOWN, fabric=None) for index in range(8)]
    assert {item[:2] for item in said(*without)} == {("links.inactive", "warn")}
    # Cards without a bridge.
    bridgeless = [replace(item, name="NVIDIA H100 PCIe") for item in without]
    assert said(*bridgeless) == []
    one_alone = [replace(item, nvlinks=None) for item in without[1:]]
    assert said(without[0], *one_alone) == []


def test_links_in_mig_mode_are_nobodys() -> None:
    sliced = card(3, nvlinks=DOWN, mig=Mig(True, True, ("MIG-1",)), utilization_percent=None)
    assert [finding for finding in said(sliced) if finding[0] == "links.inactive"] == []


def test_errors_of_links_say_what_is_new() -> None:
    links = (replace(UP[0], errors={"replay": 7, "recovery": 0}), *UP[1:])
    found = the_one(card(3, nvlinks=links, changes=Changes(2.0, nvlink_errors={"replay": 2})))
    assert (found.id, found.verdict) == ("links.errors", "warn")
    assert found.message == "cuda:3: 7 replay on link 0"


# --- memory, MIG, lost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"sram_ecc": SramEcc(0, 0, 4, 0, True, {"l2": 4, "sm": 0})},
            ("devices.sram_ecc", "fail", "SRAM errors over the threshold"),
        ),
        ({"sram_ecc": SramEcc(1, 0, 1, 0, False)}, ("devices.sram_ecc", "fail", "1 uncorrected SRAM error")),
        ({"sram_ecc": SramEcc(0, 0, 4, 0, False)}, None),
        ({"remapped_rows": RemappedRows(0, 1, True, False)}, ("devices.remapped_rows", "warn", "row remap pending")),
        ({"remapped_rows": RemappedRows(0, 512, False, False)}, ("devices.remapped_rows", "warn", "512 rows remapped")),
        (
            {"remap_banks": RemapBanks(600, 0, 0, 0, 40)},
            ("devices.remapped_rows", "warn", "40 memory banks without spares"),
        ),
        (
            {"mig": Mig(True, True), "cuda_index": None, "utilization_percent": 0.0},
            ("devices.mig_empty", "warn", "MIG mode without instances"),
        ),
        ({"state": "lost"}, ("devices.answers", "fail", "lost")),
    ],
)
def test_one_card_of_eight(changes: dict[str, Any], found: tuple[str, str, str] | None) -> None:
    seen = [item for item in said(card(3, **changes)) if item[1] != "skip"]
    assert seen == ([] if found is None else [found])


def test_a_card_that_is_chosen_is_judged_beside_the_others() -> None:
    machine = node(card(3, nvlinks=DOWN))
    machine = replace(
        machine, host=Host(nvidia_pci_addresses=tuple(device.pci_address or "" for device in machine.devices[:8]))
    )
    found = judge(selected("cuda:3", machine), machine)
    assert [(finding.id, finding.verdict) for finding in found if finding.verdict != "pass"] == [
        ("links.inactive", "fail")
    ]


# --- one line for what is the same ------------------------------------------------------------------------------------


# --- the kernel's log -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        *[(number, "fail") for number in (48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 167)],
        *[(number, "warn") for number in (8, 32, 80, 94, 39, 999)],
        *[(number, "info") for number in (13, 31, 43, 45, 63, 92, 121, 137)],
    ],
)
def test_an_xid_is_as_bad_as_nvidias_catalogue_has_it(number: int, verdict: str) -> None:
    facts = logged(XidError(number, ADDRESS), beside=node())
    ((id, found, title),) = [
        (finding.id, finding.verdict, finding.title) for finding in judge(facts) if finding.verdict != "pass"
    ]
    assert (id, found, title) == ("log.xid", verdict, f"Xid {number}")
    facts = logged(XidError(number, ADDRESS, is_past=True), beside=node())
    assert [finding.verdict for finding in judge(facts) if finding.verdict != "pass"] == ["info"]


def test_an_error_of_nvlink_says_itself_whether_it_is_fatal() -> None:
    def verdict(is_fatal: bool | None) -> list[str]:
        facts = logged(XidError(145, ADDRESS, is_fatal=is_fatal), beside=node())
        return [finding.verdict for finding in judge(facts) if finding.verdict != "pass"]

    assert [verdict(fatal) for fatal in (False, True, None)] == [["warn"], ["fail"], ["fail"]]


def test_a_recovery_action_has_its_cause_beside_it_and_both_are_one_line() -> None:
    facts = logged(XidError(95, ADDRESS), beside=node(card(recovery_action="gpu_reset")))
    (found,) = [finding for finding in judge(facts) if finding.verdict != "pass"]
    assert found.id == "devices.recovery_action" and "; Xid 95: uncontained memory error" in found.message


def test_a_containers_log_is_its_hosts() -> None:
    facts = logged(XidError(79, "0000:ff:00.0"), beside=node())
    assert [finding.verdict for finding in judge(facts) if finding.verdict != "pass"] == ["fail"]
    inside = replace(facts, host=Host(system="Linux", container="docker"))
    assert [finding.verdict for finding in judge(inside) if finding.verdict != "pass"] == ["info"]


SWITCH = "0000:c3:00.0"


def switched(*errors: XidError, xids: tuple[XidError, ...] = (), **host: Any) -> list[tuple[str, str, str]]:
    """What is said of a machine whose kernel log has these SXid errors: verdict, title, fix."""
    facts = node()
    facts = replace(
        facts, driver=replace(facts.driver or Driver(), sxids=errors, xids=xids), host=Host("Linux", **host)
    )
    return [(finding.verdict, finding.title, finding.fix or "") for finding in judge(facts) if finding.id == "log.sxid"]


def test_an_sxid_that_is_past_or_comes_of_a_lost_gpu_or_is_of_other_containers() -> None:
    fatal = XidError(20034, SWITCH, is_fatal=True)
    assert [item[0] for item in switched(replace(fatal, is_past=True))] == ["info"]
    assert [error[0] for error in switched(fatal, xids=(XidError(79, ADDRESS),))] == ["info"]
    assert [error[0] for error in switched(fatal, xids=(XidError(79, ADDRESS, is_past=True),))] == ["fail"]
    assert [item[0] for item in switched(fatal, container="docker")] == ["warn"]
    whole = XidError(22003, SWITCH, is_fatal=True)
    assert [item[0] for item in switched(whole, container="docker")] == ["fail"]
    assert [item[:2] for item in switched(XidError(20009, SWITCH, is_fatal=False), whole)] == [("fail", "SXid 22003")]


def test_a_card_that_lost_its_name_is_the_one_that_the_log_names() -> None:
    lost = Device(kind="cuda", nvml_index=3, state="lost")
    facts = logged(XidError(79, "0000:ff:00.0", "2026-01-31T11:59:58Z"), beside=node(lost))
    (found,) = [finding for finding in judge(facts) if finding.verdict != "pass"]
    assert (found.id, found.title) == ("devices.answers", "lost")
    assert "(probably 0000:ff:00.0); Xid 79: the GPU has fallen off the bus" in found.message
    assert found.fix == FIX["lost"]


# --- sisters ----------------------------------------------------------------------------------------------------------

RESTING: dict[str, Any] = {
    "utilization_percent": 0.0,
    "power_w": 70.0,
    "sm_clock_hz": 345e6,
    "memory_clock_hz": 2.6e9,
    "clock_reasons": ClockReasons(1, ("gpu_idle",)),
    "pcie": Link(1, 16, 5, 16, 0),
}


def resting(index: int, **changes: Any) -> Device:
    return card(index, **{**RESTING, **changes})


def told(*cards: Device) -> list[tuple[str, str, str]]:
    """What asks for something on a machine with these cards: id, verdict, title with the message's card."""
    facts = replace(node(), devices=(*cards, CPU))
    return [
        (finding.id, finding.verdict, finding.title)
        for finding in judge(facts)
        if finding.verdict in ("warn", "fail", "inconclusive")
    ]


@pytest.mark.parametrize(
    ("rest", "odd", "id", "title"),
    [
        (card, {"sm_clock_hz": 1.2e9}, "devices.low_clock", "clock 1200 of 1980 MHz"),
        (card, {"sm_clock_hz": 1.58e9}, "devices.low_clock", "clock 1580 of 1980 MHz"),
        # A saved report may say anything.
        (card, {"sm_clock_hz": 1.58e9, "compute_capability": "sm_90"}, "devices.low_clock", "clock 1580 of 1980 MHz"),
        (resting, {"nvlinks": tuple(NvLink(n) for n in range(18))}, "links.inactive", "18 NVLinks absent"),
        (card, {"power_limit_w": 600.0}, "devices.power_limit", "power limit 600 W"),
        (resting, {"power_limit_w": 500.0, "power_limit_default_w": None}, "devices.power_limit", "power limit 500 W"),
        (resting, {"ecc": Ecc(False)}, "devices.ecc_mode", "ECC is off"),
    ],
)
@pytest.mark.parametrize("size", [3, 4, 8])
def test_the_odd_one_of_sisters_is_told_in_one_line(
    rest: Any, odd: dict[str, Any], id: str, title: str, size: int
) -> None:
    cards = [rest(index, **(odd if index == 1 else {})) for index in range(size)]
    assert told(*cards) == [(id, "warn", title)]


T4 = {
    "name": "Tesla T4",
    "power_w": 69.5,
    "power_limit_w": 70.0,
    "power_limit_default_w": 70.0,
    "sm_clock_hz": 705e6,
    "max_sm_clock_hz": 1590e6,
    "clock_reasons": ClockReasons(4, ("sw_power_cap",)),
    "pcie": Link(3, 16, 3, 16),
    "nvlinks": None,
    "fabric": None,
}
CAPPED = {"clock_reasons": ClockReasons(4, ("sw_power_cap",)), "power_w": 699.0}
DESKTOP = {"name": "NVIDIA GeForce RTX 4090", "nvlinks": None, "fabric": None}
BRIDGED = {"name": "NVIDIA H100 PCIe", "fabric": None}
V100 = {
    "name": "Tesla V100-SXM2-16GB",
    "max_sm_clock_hz": 1530e6,
    "sm_clock_hz": 1290e6,
    "application_sm_clock_hz": 1290e6,
    "default_application_sm_clock_hz": 1290e6,
    "clock_reasons": ClockReasons(2, ("applications_clocks_setting",)),
    "nvlinks": None,
    "fabric": None,
}


@pytest.mark.parametrize(
    "cards",
    [
        [resting(index) for index in range(8)],
        [resting(index, pcie=Link(1, 8, 5, 16)) for index in range(8)],
        [resting(0, pcie=Link(1, 8, 5, 16)), *(card(index) for index in range(1, 8))],
        [card(index, **T4) for index in range(4)],
        [card(0, sm_clock_hz=1.41e9, **CAPPED), *(card(index) for index in range(1, 8))],
        [card(index, sm_clock_hz=(1.3 + index / 10) * 1e9, **CAPPED) for index in range(4)],
        [resting(0, **DESKTOP), resting(1, **DESKTOP, pcie=Link(1, 8, 4, 16))],
        [resting(0, **DESKTOP, pcie=Link(1, 8, 4, 16))],
        [resting(index, **DESKTOP, pcie=Link(1, 16 - 8 * (index % 2), 4, 16)) for index in range(4)],
        [card(0, **DESKTOP, utilization_percent=60.0, sm_clock_hz=1.3e9)],
        [resting(0, **BRIDGED), resting(1, **BRIDGED), resting(2, **BRIDGED, nvlinks=None)],
        [card(index, **V100) for index in range(4)],
        [card(index, ecc=Ecc(True, 90_000, 0)) for index in range(8)],
        [card(0), card(1, **DESKTOP, power_limit_w=450.0, power_limit_default_w=450.0, ecc=None)],
        [card(index, power_limit_w=650.0 + 10 * (index % 2), power_limit_default_w=None) for index in range(8)],
    ],
    ids=lambda cards: f"{len(cards)} × {cards[0].name}",
)
def test_a_normal_machine_is_not_accused(cards: list[Device]) -> None:
    assert told(*cards) == []


# --- the fabric's own state, and what a cold card's slowdown is -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fabric", "title", "fix"),
    [
        ("NVIDIA H100 80GB HBM3", Fabric("in progress"), "fabric registration in progress", "wait a minute"),
        ("NVIDIA H100 80GB HBM3", Fabric("not started"), "fabric not started", "sudo systemctl restart"),
        ("NVIDIA B200", Fabric("completed", None, ("degraded_bandwidth",)), "fabric degraded", "nvidia-smi nvlink"),
        ("NVIDIA B200", Fabric("completed", None, ("route_unhealthy",)), "fabric unhealthy", "nvidia-smi nvlink"),
    ],
)
@pytest.mark.parametrize("shown", [True, False])
def test_a_fabric_is_told_by_its_real_state(name: str, fabric: Fabric, title: str, fix: str, shown: bool) -> None:
    cards = [card(n, name=name, **({} if shown else {"cuda_index": None})) for n in range(3)]
    facts = replace(node(), devices=(*cards, card(3, name=name, fabric=fabric), CPU))
    (found,) = [finding for finding in judge(facts) if finding.verdict != "pass"]
    assert (found.id, found.verdict, found.title) == ("links.fabric", "warn", title)
    assert (found.fix or "").startswith(fix)
    assert "NVIDIA GB" not in name or "systemctl" not in (found.fix or "")


@pytest.mark.parametrize("mig", [None, Mig(False, False)])
def test_mig_is_not_blamed_where_no_card_is_in_that_mode(mig: Mig | None) -> None:
    driver = Driver(nvml_code=0, cuinit_code=100, cuinit_error="CUDA_ERROR_NO_DEVICE")
    cards = [card(n, mig=mig, id=None, cuda_index=None) for n in range(2)]
    (found,) = [
        finding
        for finding in judge(replace(node(), driver=driver, devices=(*cards, CPU)))
        if finding.id == "devices.libcuda"
    ]
    assert "MIG" not in found.message and "CUDA finds no device" in found.message


# --- judged where it is read ------------------------------------------------------------------------------------------

EXCLUSIVE = {"compute_mode": "exclusive_process"}
HELD_BY = Process(4711, "compute", "python3")
BUSY_ALONE: dict[str, Any] = {"processes": (), "changes": Changes(2.1, utilization_before_percent=100.0)}
NO_RPM = {"fan_percent": 0.0}


@pytest.mark.parametrize(
    ("id", "changes", "verdict"),
    [
        # The reading of a fan is the intended speed.
        ("devices.fan", {**NO_RPM, "temperature_celsius": 80.0}, "fail"),
        (
            "devices.fan",
            {**NO_RPM, "temperature_celsius": 60.0, "clock_reasons": ClockReasons(0, ("sw_thermal_slowdown",))},
            "fail",
        ),
        ("devices.fan", {**NO_RPM, "temperature_celsius": 75.0}, None),
        ("devices.fan", {**NO_RPM, "temperature_celsius": 75.0, "changes": Changes(5.0)}, "info"),
        ("devices.fan", {**NO_RPM, "temperature_celsius": 75.0, "changes": Changes(2.0)}, None),
        ("devices.fan", {"fan_percent": 30.0, "temperature_celsius": 83.0}, None),
        ("devices.compute_mode", {**EXCLUSIVE, "processes": ()}, None),
        ("devices.compute_mode", {**EXCLUSIVE, "processes": None}, None),
        (
            "devices.compute_mode",
            {**EXCLUSIVE, "processes": (HELD_BY, Process(12, "compute", "nvidia-cuda-mps-server"))},
            None,
        ),
        ("devices.compute_mode", {"processes": (HELD_BY,)}, None),
        ("devices.mig_pending", {"mig": Mig(True, False, ("MIG-1",))}, "warn"),
        ("devices.mig_pending", {"mig": Mig(False, False)}, None),
        ("devices.busy_alone", {**BUSY_ALONE, "processes": (HELD_BY,)}, None),
        ("devices.busy_alone", {**BUSY_ALONE, "processes": None}, None),
        ("devices.busy_alone", {**BUSY_ALONE, "changes": Changes(2.1, utilization_before_percent=40.0)}, None),
        ("devices.busy_alone", {**BUSY_ALONE, "changes": Changes(1.0, utilization_before_percent=100.0)}, None),
        ("devices.ecc", {"ecc": Ecc(True, 200_000, 0)}, "info"),
        ("devices.ecc", {"ecc": Ecc(True, 200_000, 1)}, "fail"),
    ],
)
def test_what_is_judged_where_it_is_read(id: str, changes: dict[str, Any], verdict: str | None) -> None:
    found = [finding for finding in judge(node(card(3, **changes))) if finding.id == id and "cuda:3" in finding.message]
    assert [finding.verdict for finding in found if finding.verdict != "pass"] == ([verdict] if verdict else [])


def test_a_fan_beside_one_that_turns_on_a_card_that_is_no_warmer() -> None:
    def fans(others: float) -> list[str]:
        still = card(3, fan_percent=0.0, temperature_celsius=72.0)
        facts = node(still, *(card(n, fan_percent=60.0, temperature_celsius=others) for n in range(3)))
        return [finding.verdict for finding in judge(facts) if finding.id == "devices.fan"]

    assert fans(70.0) == ["info"] and fans(79.0) == []
