"""The links between GPUs, what a card retired, and what could not be read of it: judged by evidence made by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import (
    CARDS,
    HEALTHY,
    card,
    seen_by,
    with_cards,
    with_driver,
    with_torch,
    with_unknown,
    without_gpu,
)

from gpucheck.doctor import conditions_cards
from gpucheck.doctor.condition import Condition, Evidence, Seen
from gpucheck.machine.stack import KernelRun
from gpucheck.report.facts import Fabric, NvLink

CONDITIONS: dict[str, Condition] = {row.id: row for row in conditions_cards.CARDS}
QUIET = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
UP, DOWN = NvLink(0, True, QUIET), NvLink(1, False)


def judged(condition: str, evidence: Evidence) -> Seen | None:
    return seen_by(CONDITIONS[condition], evidence)


def told(condition: str, evidence: Evidence) -> tuple[str, str] | None:
    """The verdict and the message."""
    seen = judged(condition, evidence)
    return None if seen is None else (seen.verdict or CONDITIONS[condition].verdict, seen.message)


@pytest.mark.parametrize("condition", [name for name in CONDITIONS if name.startswith("links.")])
def test_it_is_not_seen_on_a_healthy_machine_nor_where_nothing_is_known(condition: str) -> None:
    well = [card(index, nvlinks=(UP, replace(UP, link=1)), fabric=Fabric("completed")) for index in (0, 1)]
    alone = with_cards(card(0, nvlinks=(DOWN, replace(DOWN, link=1))))
    for evidence in (HEALTHY, Evidence(), without_gpu(), with_cards(*well), alone, with_cards(card(0, nvlinks=()))):
        assert judged(condition, evidence) is None


# --- the fabric -------------------------------------------------------------------------------------------------------


def test_one_gpu_that_works_can_do_without_the_fabric() -> None:
    evidence = with_cards(card(0, fabric=Fabric("not started")))
    assert told("links.fabric", evidence) == ("info", "cuda:0: NVSwitch fabric registration is not completed")
    failed = with_cards(card(0, fabric=Fabric("completed", "NVML returns: unknown error")))
    assert (told("links.fabric", failed) or ("",))[0] == "warn"


def test_where_cuda_does_not_start_for_it_the_fabric_is_a_remark() -> None:
    waiting = [replace(row, cuda_index=None, fabric=Fabric("not started")) for row in CARDS]
    seen = judged("links.fabric", with_driver(with_cards(*waiting), cuinit_code=802))
    assert seen is not None and seen.verdict == "info"


# --- links ------------------------------------------------------------------------------------------------------------


# --- retired pages ----------------------------------------------------------------------------------------------------


# --- what could not be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "reason", "unread"),
    [
        ("/devices/0/ecc/volatile_uncorrected", "NVML returns: unknown error", True),
        ("/devices/0/nvlinks/3/active", "NVML's answer makes no sense: 3", True),
        ("/devices/0/clock_reasons", "no permission", True),
        ("/devices/0/processes", "NVML's list of processes is garbled", True),
        # As in a container that was given one instance of a card.
        ("/devices/0/processes", "no permission", False),
        ("/devices/0/memory_total_bytes", "no permission", False),
        ("/devices/0/memory_used_bytes", "no permission", False),
        ("/devices/0/memory_used_bytes", "NVML returns: unknown error", True),
        ("/devices/0/processes/0/name", "this system does not see a process with this PID", False),
        ("/devices/0/ecc", "not supported by this device or driver", False),
        ("/devices/0/fabric", "this nvidia-ml-py has no nvmlDeviceGetGpuFabricInfoV", False),
        ("/devices/0/recovery_action", "the driver's NVML has no such function", False),
        ("/devices/0/power_w", "NVML returns: unknown error", False),
        ("/devices/2/ecc", "NVML returns: unknown error", False),
    ],
)
def test_what_a_card_has_and_did_not_tell_is_not_healthy(pointer: str, reason: str, unread: bool) -> None:
    found = told("devices.unread", with_unknown(pointer, reason))
    name = "nvlinks" if "/nvlinks/" in pointer else pointer.removeprefix("/devices/0/")
    assert found == (("inconclusive", f"cuda:0: {name} ({reason})") if unread else None)


def test_a_card_that_is_lost_is_told_once() -> None:
    lost = with_cards(card(0, state="lost"), card(1))
    assert judged("devices.unread", with_unknown("/devices/0/ecc", "the device is lost", lost)) is None


def test_an_nvml_that_does_not_start_beside_a_torch_that_works_leaves_health_unknown() -> None:
    silent = [replace(row, nvml_index=None) for row in CARDS]
    evidence = with_driver(with_cards(*silent), nvml_code=18, nvml_error="Driver/library version mismatch")
    words = "NVML does not report cuda:0, cuda:1: Driver/library version mismatch"
    assert told("devices.unread", evidence) == ("inconclusive", words)
    many = with_driver(with_cards(*(card(index, nvml_index=None) for index in range(8))), nvml_error="x")
    assert told("devices.unread", many) == ("inconclusive", "NVML does not report cuda:0 to cuda:7: x")
    # Where torch does not work the rung that is broken is told.
    assert judged("devices.unread", with_torch(evidence, kernels=(KernelRun("cuda:0", "x"),))) is None
