"""What `devices` says: proven faults, doors that do not answer, and why there is no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_recorder import Recorder
from fake_machine import FakeMachine
from shown import shown

from gpucheck.devices.command import command, judge, selected
from gpucheck.devices.options import DevicesOptions
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import inventory
from gpucheck.machine.driver_reads import NvmlReader
from gpucheck.render import text
from gpucheck.report.events import Judged, Progress, Started
from gpucheck.report.facts import (
    Device,
    Driver,
    Ecc,
    Fabric,
    Facts,
    Host,
    Mig,
    Process,
    RemappedRows,
    TorchBuild,
)
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, exit_code

Fake = Callable[..., Path]

CPU = Device(kind="cpu", id="cpu", name="a CPU")
CARD = Device(
    kind="cuda",
    id="cuda:0",
    name="H200",
    uuid="GPU-a",
    pci_address="0000:41:00.0",
    cuda_index=0,
    nvml_index=1,
    ecc=Ecc(enabled=True, volatile_uncorrected=0),
    remapped_rows=RemappedRows(0, 0, False, False),
    recovery_action="none",
)
DRIVER = Driver(version="580.95.05", nvml_code=0, cuinit_code=0, libcuda_path="/lib/libcuda.so.1")
HOST = Host(system="Linux", nvidia_pci_addresses=("0000:41:00.0",))
TORCH = TorchBuild(version="2.13.0+cu130", built_for="cuda")
HEALTHY = Facts(host=HOST, torch=TORCH, driver=DRIVER, devices=(CARD, CPU))


def with_card(**changes: object) -> Facts:
    return replace(HEALTHY, devices=(replace(CARD, **changes), CPU))  # type: ignore[arg-type]


def with_driver(**changes: object) -> Facts:
    return replace(HEALTHY, driver=replace(DRIVER, **changes))  # type: ignore[arg-type]


def not_passed(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.verdict not in ("pass", "skip")]


# --- at rest ----------------------------------------------------------------------------------------------------------


def test_a_link_and_a_clock_are_no_verdict_at_rest() -> None:
    assert not_passed(with_card(sm_clock_hz=345e6, max_sm_clock_hz=1980e6, temperature_celsius=95.0)) == []


@pytest.mark.parametrize(
    ("action", "title", "fix"),
    [
        ("gpu_reset", "reset needed", "end its processes, then sudo nvidia-smi --gpu-reset -i 0000:41:00.0"),
        ("node_reboot", "reboot needed", "drain the node, then sudo reboot"),
        ("action 9", "recovery action 9", "see nvmlDeviceGpuRecoveryAction_t of nvml.h"),
    ],
)
def test_a_recovery_action_fails(action: str, title: str, fix: str) -> None:
    facts = with_card(recovery_action=action)
    (found,) = not_passed(facts)
    assert (found.id, found.verdict, found.title, found.fix) == ("devices.recovery_action", "fail", title, fix)
    assert exit_code(tuple(judge(facts))) == 1


def test_a_lost_card_fails_and_its_address_is_found_by_elimination() -> None:
    host = replace(HOST, nvidia_pci_addresses=("0000:41:00.0", "0000:81:00.0"))
    lost = Device(kind="cuda", nvml_index=0, state="lost")
    (finding,) = not_passed(replace(HEALTHY, host=host, devices=(CARD, lost, CPU)))
    assert (finding.id, finding.verdict, finding.title) == ("devices.answers", "fail", "lost")
    assert finding.message == "NVML 0: off the PCI bus or not answering (probably 0000:81:00.0)"
    assert finding.evidence["nvml_index"] == 0


def test_a_card_that_needs_a_reset_fails() -> None:
    (finding,) = not_passed(with_card(state="reset required"))
    assert (finding.verdict, finding.title) == ("fail", "reset needed")


def test_a_card_that_does_not_answer_fails_and_one_never_reached_is_not_judged() -> None:
    late = "NVML did not answer within 5 s"
    asked = replace(CARD, state=f"not answering: {late}", ecc=None, remapped_rows=None, recovery_action=None)
    after = replace(asked, uuid="GPU-b", nvml_index=2, state="not read: NVML stopped at another device")
    facts = with_driver(nvml_error=late)
    findings = judge(replace(facts, devices=(asked, after, CPU)))
    assert [(finding.verdict, finding.title, finding.message, finding.evidence["uuid"]) for finding in findings] == [
        ("fail", "not answering", f"cuda:0: {late} (0000:41:00.0)", "GPU-a")
    ]


@pytest.mark.parametrize(
    ("state", "title", "fix"),
    [
        ("no power", "power cable not connected", "shut down the node and connect all power cables of the GPU"),
        ("no interrupts", "interrupts do not arrive", "sudo dmesg | grep -i nvrm"),
        ("NVML returns: unknown error", "not answering", "sudo dmesg | grep Xid; then drain the node"),
    ],
)
def test_a_card_that_cannot_be_used_has_its_own_cause_and_is_named_by_elimination(
    state: str, title: str, fix: str
) -> None:
    host = replace(HOST, nvidia_pci_addresses=("0000:41:00.0", "0000:81:00.0"))
    dead = Device(kind="cuda", nvml_index=0, state=state)
    unknown = {"/devices/1/ecc": state, "/devices/1/recovery_action": state}
    (finding,) = not_passed(replace(HEALTHY, host=host, devices=(CARD, dead, CPU), unknown=unknown))
    assert (finding.id, finding.verdict, finding.title) == ("devices.answers", "fail", title)
    assert finding.message.endswith("(probably 0000:81:00.0)")
    assert (finding.fix or "").startswith(fix)


def test_a_card_that_answers_an_error_to_every_question_does_not_answer() -> None:
    def told(reason: str, **kept: object) -> list[tuple[str, str]]:
        names = ("temperature_celsius", "power_w", "sm_clock_hz", "utilization_percent", "memory_used_bytes")
        unknown = {f"/devices/0/{name}": reason for name in names if name not in kept}
        return [(item.id, item.verdict) for item in not_passed(replace(with_card(**kept), unknown=unknown))]

    error, unsupported = "NVML returns: unknown error", "not supported by this device or driver"
    assert told(error) == [("devices.answers", "fail")]
    assert told(unsupported) == told("no permission") == []
    # One that still tells something is there; what it did not tell is said.
    assert told(error, power_w=80.0) == [("devices.unread", "inconclusive")]


def test_a_card_that_a_wish_for_power_never_reached_is_not_blamed_for_the_one_that_hangs() -> None:
    late = "NVML did not answer within 5 s"
    hung = replace(CARD, state=f"not answering: {late}")
    other = replace(CARD, uuid="GPU-b", nvml_index=2, id="cuda:1", cuda_index=1)
    facts = replace(with_driver(nvml_error=late), devices=(other, hung, CPU))
    facts = replace(facts, unknown={"/devices/0/nvlinks": late, "/devices/0/fabric": late})
    assert [(device.id, device.evidence["uuid"]) for device in not_passed(facts)] == [("devices.answers", "GPU-a")]


# --- nothing is left to use -------------------------------------------------------------------------------------------


def test_mig_mode_that_leaves_nothing_to_use_fails() -> None:
    empty = replace(CARD, mig=Mig(True, True))
    second = replace(empty, uuid="GPU-b", nvml_index=2, id=None, cuda_index=None)
    usable = replace(second, mig=Mig(True, True, ("MIG-1",)))

    def verdicts(*cards: Device) -> list[str]:
        return [card.verdict for card in not_passed(replace(HEALTHY, devices=(*cards, CPU)))]

    assert verdicts(empty, second) == ["fail", "fail"]
    assert verdicts(empty, usable) == ["warn"]
    assert verdicts(empty, replace(second, mig=None)) == ["warn"]
    assert verdicts(empty, replace(second, mig=None, state="lost")) == ["fail", "fail"]


@pytest.mark.parametrize(
    ("code", "error", "host", "verdict"),
    [
        # Only a loaded driver answers so, whatever the PCI bus shows.
        (18, "x", Host(system="Linux"), "fail"),
        (8, "x", Host(system="Linux"), "fail"),
        (999, "x", Host(system="Linux"), "fail"),
        # It started, and then does not count its devices.
        (0, "NVML cannot count its devices: x", Host(system="Linux"), "fail"),
        (None, "NVML did not answer within 5 s", Host(system="Linux"), "fail"),
        (None, "the process that asks NVML ended early (SIGSEGV)", Host(system="Linux"), "fail"),
        # A card on the bus that no driver brings up.
        (9, "x", HOST, "fail"),
        (12, "x", HOST, "fail"),
        (12, "x", replace(HOST, nvidia_pci_drivers={"0000:41:00.0": "nouveau"}), "fail"),
        # A container sees its host's bus; with a node it was given a GPU.
        (12, "x", replace(HOST, container="docker"), "warn"),
        (9, "x", replace(HOST, container="docker", nvidia_device_nodes=("/dev/nvidiactl",)), "warn"),
        (9, "x", replace(HOST, container="docker", nvidia_device_nodes=("/dev/nvidia0",)), "fail"),
        # Nothing was asked of the GPU.
        (None, "nvidia-ml-py is not installed", HOST, "warn"),
        (None, "the process that asks NVML cannot be started (x)", HOST, "warn"),
        (None, "the process that asks NVML ended early (SIGKILL)", HOST, "warn"),
        # No GPU at all, or a virtual machine's.
        (9, "x", Host(system="Linux"), "info"),
        (12, "x", replace(HOST, nvidia_pci_drivers={"0000:41:00.0": "vfio-pci"}), "info"),
    ],
)
def test_a_dead_driver_is_bad_where_a_gpu_is_meant_for_this_system(
    code: int | None, error: str, host: Host, verdict: str
) -> None:
    driver = Driver(nvml_code=code, nvml_error=error, cuinit_error="libcuda cannot be loaded (x)")
    (first, *_) = judge(Facts(host=host, torch=TORCH, driver=driver, devices=(CPU,)))
    assert (first.id, first.verdict) == ("devices.none" if verdict == "info" else "devices.nvml", verdict)


# --- the driver's doors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error", "verdict", "fix"),
    [
        (9, "Driver Not Loaded", "warn", "gpucheck doctor"),
        # Beside a CUDA that works: what a loaded driver refuses leaves the GPUs' health unknown.
        (18, "RM has detected an NVML/RM version mismatch", "inconclusive", "sudo reboot; or end all programs"),
        (12, "NVML cannot be loaded (x)", "warn", "install NVIDIA's driver"),
        (999, "Unknown Error", "inconclusive", "gpucheck doctor"),
        (20, "Insufficient Memory", "warn", "sudo dmesg | grep -i nvrm"),
        (None, "nvidia-ml-py is not installed", "warn", "install nvidia-ml-py"),
        (None, "NVML did not answer within 5 s", "inconclusive", "sudo dmesg | grep Xid; if it persists, reboot"),
    ],
)
def test_why_nvml_does_not_start(code: int | None, error: str, verdict: str, fix: str) -> None:
    facts = with_driver(
        nvml_code=code,
        nvml_error=error,
        nvml_path="/usr/lib/libnvidia-ml.so.580.95.05",
        kernel_module_version="575.51.03",
    )
    facts = replace(facts, devices=(replace(CARD, nvml_index=None), CPU))
    (found,) = not_passed(facts)
    assert (found.id, found.verdict, found.evidence["nvml_code"]) == ("devices.nvml", verdict, code)
    assert (found.fix or "").startswith(fix)
    assert exit_code(tuple(judge(facts))) == (4 if verdict == "inconclusive" else 0)
    assert exit_code(tuple(judge(facts)), strict=True) == (4 if verdict == "inconclusive" else 1)


def test_a_container_older_than_the_hosts_driver_is_to_be_recreated() -> None:
    (finding,) = not_passed(replace(with_driver(nvml_code=18, nvml_error="x"), host=replace(HOST, container="docker")))
    assert finding.fix == "recreate the container"


def test_a_container_without_the_drivers_libraries_is_told_how_to_get_them() -> None:
    facts = with_driver(nvml_code=12, nvml_error="NVML cannot be loaded (x)")
    (finding,) = not_passed(replace(facts, host=replace(HOST, container="docker")))
    assert finding.fix == "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"


@pytest.mark.parametrize(
    ("code", "verdict", "fix"),
    [
        (802, "fail", "sudo systemctl restart nvidia-fabricmanager, of exactly the driver's version"),
        # A stub tells of this environment, silence of this moment.
        (34, "inconclusive", "remove the stubs folder from LD_LIBRARY_PATH"),
        (1, "fail", None),
        (None, "inconclusive", "sudo dmesg | grep Xid; if it persists, reboot"),
    ],
)
def test_why_cuda_does_not_start(code: int | None, verdict: str, fix: str | None) -> None:
    (found,) = not_passed(with_driver(cuinit_code=code, cuinit_error="odd"))
    assert (found.id, found.verdict, found.fix) == ("devices.libcuda", verdict, fix)


@pytest.mark.parametrize(
    ("changes", "code", "verdict"),
    [
        ({}, 999, "fail"),
        ({}, 100, "fail"),
        ({"fabric": Fabric("in progress")}, 802, "inconclusive"),
        ({"fabric": Fabric("completed")}, 802, "fail"),
        ({}, 46, "inconclusive"),
        ({}, 803, "inconclusive"),
        # The card's own finding says why.
        ({"state": "lost"}, 999, None),
        ({"state": "lost"}, None, None),
        ({"mig": Mig(enabled=True, enabled_after_reset=True)}, 100, None),
        # Nobody is allowed to use it here.
        ({"state": "not accessible here (no permission)"}, 100, "warn"),
    ],
)
def test_a_cuda_that_does_not_start_on_cards_that_are_there_is_bad(
    changes: dict[str, Any], code: int | None, verdict: str | None
) -> None:
    facts = with_card(**{"cuda_index": None, "id": None, **changes})
    driver = replace(DRIVER, cuinit_code=code, cuinit_error="libcuda did not answer within 5 s")
    told = [device.verdict for device in not_passed(replace(facts, driver=driver)) if device.id == "devices.libcuda"]
    assert [value for value in told if value != "info"] == ([] if verdict is None else [verdict])


def test_an_nvml_and_a_cuda_that_do_not_start_have_one_cause_and_one_line() -> None:
    driver = Driver(nvml_code=18, nvml_error="x", cuinit_code=803, cuinit_error="y", libcuda_path="/lib/libcuda.so.1")
    found = judge(Facts(host=HOST, torch=TORCH, driver=driver, devices=(CPU,)))
    assert [(finding.id, finding.verdict) for finding in found] == [
        ("devices.nvml", "fail"),
        ("devices.libcuda", "info"),
    ]


@pytest.mark.parametrize(
    ("host", "environment", "verdict"),
    [
        (HOST, {}, "inconclusive"),
        (replace(HOST, container="docker"), {}, "skip"),
        (HOST, {"CUDA_VISIBLE_DEVICES": "0"}, "skip"),
    ],
)
def test_a_card_that_is_kept_from_a_container_or_a_job_is_no_doubt(
    host: Host, environment: dict[str, str], verdict: str
) -> None:
    kept = Device(kind="cuda", nvml_index=0, state="not accessible here (no permission)")
    facts = replace(HEALTHY, host=host, environment=environment, devices=(CARD, kept, CPU))
    (found,) = [finding for finding in judge(facts) if finding.title == "not accessible"]
    assert found.verdict == verdict
    (alone,) = [finding for finding in judge(replace(facts, devices=(kept, CPU))) if finding.title == "not accessible"]
    assert alone.verdict == "inconclusive"


def test_a_missing_libcuda_is_a_missing_driver() -> None:
    facts = with_driver(cuinit_code=None, cuinit_error="libcuda cannot be loaded (x)", libcuda_path=None)
    (finding,) = not_passed(facts)
    assert finding.message == (
        "libcuda cannot be loaded (x): NVIDIA's driver is not installed, or not on the loader's path"
    )


def test_a_mask_that_names_a_card_is_not_why_cuda_does_not_start() -> None:
    """In a job of Slurm's the mask is always set."""
    left_out = replace(CARD, id=None, cuda_index=None, state="not shown by CUDA")
    facts = replace(
        with_driver(cuinit_code=100, cuinit_error="CUDA_ERROR_NO_DEVICE"),
        devices=(left_out, CPU),
        environment={"CUDA_VISIBLE_DEVICES": "0"},
    )
    (found,) = not_passed(facts)
    assert (found.id, found.verdict, found.title) == ("devices.libcuda", "fail", "CUDA does not start")
    assert "CUDA_VISIBLE_DEVICES" not in (found.fix or "")
    # Without NVML's list a number may name one that is there, as on a Jetson.
    alone = replace(facts, devices=(CPU,), host=replace(HOST, nvidia_device_nodes=("/dev/nvidia0",)))
    assert [item.id for item in not_passed(alone)] == ["devices.libcuda", "devices.unlisted"]
    hidden = replace(alone, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert [item.id for item in not_passed(hidden)] == ["devices.unlisted"]


def test_a_card_on_the_bus_that_the_driver_does_not_list_warns_outside_containers() -> None:
    host = replace(HOST, nvidia_pci_addresses=("0000:41:00.0", "0000:81:00.0"))
    (finding,) = not_passed(replace(HEALTHY, host=host))
    assert (finding.id, finding.verdict) == ("devices.unlisted", "warn")
    assert finding.title == "1 NVIDIA device on the PCI bus missing from the driver"
    assert finding.evidence == {"pci_addresses": ["0000:81:00.0"]}
    assert not_passed(replace(HEALTHY, host=replace(host, container="docker"))) == []


# --- no GPU -----------------------------------------------------------------------------------------------------------

NO_DRIVER = Driver(nvml_code=12, nvml_error="NVML cannot be loaded (x)", cuinit_error="libcuda cannot be loaded (x)")
NOTHING = Facts(
    host=Host(system="Linux"),
    driver=NO_DRIVER,
    torch=TorchBuild(version="2.13.0+cpu", built_for="cpu"),
    devices=(CPU,),
)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            NOTHING,
            "no NVIDIA device on the PCI bus, no NVIDIA driver, torch 2.13.0+cpu is a CPU build",
        ),
        (
            replace(NOTHING, torch=TorchBuild()),
            "no NVIDIA device on the PCI bus, no NVIDIA driver, without torch, other accelerators are not visible",
        ),
        (
            replace(
                NOTHING, host=Host(system="Linux", container="docker"), environment={"NVIDIA_VISIBLE_DEVICES": "void"}
            ),
            "NVIDIA_VISIBLE_DEVICES=void hides GPUs from this container, no NVIDIA device on the PCI bus, no NVIDIA "
            "driver, torch 2.13.0+cpu is a CPU build",
        ),
        (
            replace(NOTHING, host=Host(system="Linux", wsl=True)),
            "WSL has no GPU device (/dev/dxg), no NVIDIA driver, torch 2.13.0+cpu is a CPU build",
        ),
        (
            replace(NOTHING, host=Host(system="Linux", wsl=True, nvidia_device_nodes=("/dev/dxg",))),
            "WSL has a GPU device, but NVIDIA's Windows driver is missing from it, "
            "no NVIDIA driver, torch 2.13.0+cpu is a CPU build",
        ),
        (
            Facts(host=Host(system="Darwin"), torch=TorchBuild(version="2.13.0", built_for="cpu"), devices=(CPU,)),
            "torch 2.13.0 sees no other accelerator",
        ),
        (
            replace(
                NOTHING,
                torch=TorchBuild(version="2.13.0+rocm", built_for="rocm"),
                unknown={"/torch_runtime": "torch did not answer within 60 s"},
            ),
            "no NVIDIA device on the PCI bus, no NVIDIA driver, torch did not answer within 60 s",
        ),
    ],
)
def test_no_gpu_is_a_plain_sentence_with_the_reason_as_far_as_it_is_known(facts: Facts, message: str) -> None:
    findings = judge(facts)
    assert [(finding.id, finding.verdict, finding.title, finding.message) for finding in findings] == [
        ("devices.none", "info", "no GPU found", message)
    ]
    assert exit_code(tuple(findings)) == 0


def test_another_accelerator_is_a_gpu() -> None:
    assert judge(replace(NOTHING, devices=(Device(kind="mps", id="mps", name="Apple GPU"), CPU))) == []


# --- choosing ---------------------------------------------------------------------------------------------------------

HIDDEN = replace(CARD, id=None, uuid="GPU-bb", cuda_index=None, nvml_index=0, state="lost")
TWO = replace(HEALTHY, devices=(CARD, HIDDEN, CPU))


@pytest.mark.parametrize(
    ("requested", "uuids"),
    [
        ("all", ["GPU-a", "GPU-bb", None]),
        ("auto", ["GPU-a"]),
        ("cuda", ["GPU-a", "GPU-bb"]),
        ("cuda:0", ["GPU-a"]),
        ("gpu-B", ["GPU-bb"]),
        ("cpu", [None]),
    ],
)
def test_which_devices_are_listed(requested: str, uuids: list[str | None]) -> None:
    assert [device.uuid for device in selected(requested, TWO).devices] == uuids


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(CannotLook, match="--device cuda:7 not found; torch sees cuda:0"):
        selected("cuda:7", TWO)
    with pytest.raises(UsageError, match="--device 'toaster' is not a device"):
        selected("toaster", TWO)


# --- the command ------------------------------------------------------------------------------------------------------


class Enough(Exception):
    """Ends a watch, as Ctrl-C does."""


@pytest.mark.slow
def test_watching_reads_again_and_replaces_a_wedged_child(fake_driver: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_driver("nvml.count=1\ncuda.order=0\ntemperature=40\n")
    monkeypatch.setattr(inventory, "NvmlReader", lambda timeout_s, **named: NvmlReader(2.0, **named))
    scripts = iter(["nvml.count=1\ncuda.order=0\ntemperature=hang\n", "nvml.count=1\ncuda.order=0\ntemperature=50\n"])

    def sleep(seconds: float) -> None:
        following = next(scripts, None)
        if following is None:
            raise Enough
        script.write_text(following)

    events = Recorder()
    with pytest.raises(Enough):
        command(DevicesOptions(watch_s=5.0), events, sleep=sleep)
    readings = [event.facts.devices[0] for event in events.events if isinstance(event, Started)]
    assert [device.temperature_celsius for device in readings] == [40.0, None, 50.0]
    assert [device.id for device in readings] == ["cuda:0"] * 3
    assert [event.step for event in events.events if isinstance(event, Progress)] == ["next reading in 5 s"] * 3


def test_what_grows_during_a_watch_is_judged(fake_driver: Fake) -> None:
    awake = "utilization=100\nclock_reasons=0\nsm_clock=1980\npcie.width=16\npcie.generation=4\n"
    busy = f"nvml.count=1\ncuda.order=0\n{awake}"
    script = fake_driver(busy + "violation.thermal=1000000\n")
    scripts = iter([busy + "violation.thermal=501000000\n"])

    def sleep(seconds: float) -> None:
        following = next(scripts, None)
        if following is None:
            raise Enough
        script.write_text(following)
        time.sleep(0.6)  # a counter over no time says nothing

    events = Recorder()
    with pytest.raises(Enough):
        command(DevicesOptions(watch_s=1.0), events, sleep=sleep)
    severe = [event.finding for event in events.events if isinstance(event, Judged) and event.finding.verdict == "warn"]
    assert [(item.id, item.title) for item in severe] == [("devices.violations", "clock limited")]


# --- memory that nobody is seen to hold -------------------------------------------------------------------------------

GIB = 2**30
HELD: dict[str, object] = {
    "memory_total_bytes": 80 * GIB,
    "memory_used_bytes": 60 * GIB,
    "memory_source": "nvml v2",
    "memory_of_processes_bytes": 0,
    "minor_number": 3,
    "node_holders": (),
}


def held(host: Host = HOST, **changes: object) -> list[Finding]:
    return not_passed(replace(with_card(**{**HELD, **changes}), host=host, unknown={}))


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"memory_of_processes_bytes": 57 * GIB}, HOST),
        ({"memory_of_processes_bytes": None}, HOST),
        ({"memory_used_bytes": GIB}, HOST),
        ({"memory_used_bytes": 4 * GIB}, HOST),
        ({"memory_source": "nvml v1"}, HOST),
        ({"integrated": True}, HOST),
        # Its own processes, which NVML does not list to a container.
        ({"node_holders": (Process(7, "node", "python3"),)}, replace(HOST, container="docker")),
        ({}, replace(HOST, wsl=True)),
        ({}, replace(HOST, system="Windows")),
    ],
)
def test_what_processes_hold_or_may_hold_unseen_is_no_orphan(changes: dict[str, Any], host: Host) -> None:
    assert held(host=host, **changes) == []


def test_the_reading_asks_who_holds_much_memory_and_keeps_their_names_to_itself(
    fake_driver: Fake, tmp_path: Path
) -> None:
    much = f"memory.total={80 * GIB}\nmemory.used={60 * GIB}\nmemory.reserved={GIB}\n"
    fake_driver(f"nvml.count=3\n{much}processes=\n1.processes=7:{59 * GIB}\n2.processes=7:-\n", cuda=False)
    (tmp_path / "root/proc/7/fd").mkdir(parents=True)
    (tmp_path / "root/proc/7/fd/5").symlink_to("/dev/nvidia0")
    (tmp_path / "root/proc/7/comm").write_text("python3\n")
    (tmp_path / "root/proc/7/status").write_text("Name:\tpython3\nState:\tS (sleeping)\n")
    # One that ended, one of which a thread is alive, and one that watches.
    for pid, thread in ((8, None), (9, 10)):
        (tmp_path / f"root/proc/{pid}").mkdir()
        (tmp_path / f"root/proc/{pid}/status").write_text("Name:\tx\nState:\tZ (zombie)\n")
        if thread is not None:
            (tmp_path / f"root/proc/{pid}/task/{thread}/fd").mkdir(parents=True)
            (tmp_path / f"root/proc/{pid}/task/{thread}/fd/3").symlink_to("/dev/nvidia0")
    (tmp_path / "root/proc/11/fd").mkdir(parents=True)
    (tmp_path / "root/proc/11/fd/3").symlink_to("/dev/nvidia0")
    (tmp_path / "root/proc/11/comm").write_text("nvidia-persiste\n")
    facts = inventory.read(root=tmp_path / "root")
    cards = facts.devices[:3]
    assert [card.memory_of_processes_bytes for card in cards] == [0, 59 * GIB, None]
    assert [card.processes for card in cards] == [None] * 3
    assert cards[0].node_holders == (Process(7, "node", "python3"), Process(9, "zombie"))
    assert "/devices/0/node_holders" not in facts.unknown
    assert [card.node_holders for card in cards[1:]] == [None, None]
    assert [
        device.id for device in not_passed(facts) if device.verdict == "warn" and device.id != "devices.libcuda"
    ] == ["devices.unclaimed_memory"]


# --- a GPU that sleeps ------------------------------------------------------------------------------------------------


def laptop(root: Path, *states: str) -> Path:
    machine = FakeMachine(root)
    for number, state in enumerate(states, 1):
        machine.card(number)
        machine.write({f"sys/bus/pci/devices/0000:{number:02x}:00.0/power/runtime_status": f"{state}\n"})
    return root


def test_gpus_that_sleep_are_said_to_and_not_asked(fake_driver: Fake, tmp_path: Path) -> None:
    # Whoever calls either library hangs.
    fake_driver("nvml.init=hang\ncuda.init=hang\n")
    with inventory.Inventory(wake=False, root=laptop(tmp_path / "root", "suspended", "suspended")) as reading:
        facts = reading.read()
    assert [(device.pci_address, device.state) for device in facts.devices[:-1]] == [
        ("0000:01:00.0", "asleep (not woken)"),
        ("0000:02:00.0", "asleep (not woken)"),
    ]
    assert not_passed(facts) == []
    collector = Collector()
    collector(Started(facts))
    report = collector.report(version="0", command="devices", argv=(), started="", elapsed_s=0.0)
    assert shown(text.blocks(report))[0] == "✓ 2 GPUs asleep, not woken: 0000:01:00.0, 0000:02:00.0"


def test_a_gpu_that_is_lost_is_told_once() -> None:
    """NVML lists it no longer, and another GPU has its index now."""
    gone = Device(kind="cuda", id="cuda:1", cuda_index=1, uuid="GPU-1", name="NVIDIA H200", state="lost")
    facts = Facts(devices=(gone,), driver=Driver(nvml_code=0, cuinit_code=0))
    found = [finding for finding in judge(facts) if "cuda:1" in finding.message or finding.id == "devices.unread"]
    assert [(finding.id, finding.verdict) for finding in found] == [("devices.answers", "fail")]
