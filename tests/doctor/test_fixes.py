"""A fix is one that works where it is given: in a container, under WSL, on Windows, on a Jetson, on aarch64."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import CARDS, HEALTHY, seen_by, with_cards, with_driver, with_host, with_stack, with_torch

from gpucheck.doctor import fixes, ladder
from gpucheck.doctor.condition import Evidence
from gpucheck.machine.stack import DeviceNode
from gpucheck.report.facts import Host, Mig

HIDDEN = tuple(replace(row, id=None, cuda_index=None) for row in CARDS)
DOWN = with_torch(with_cards(*HIDDEN), available=False, count=0, kernels=(), capabilities=None, names=None)
JETSON_6, JETSON_7 = "# R36 (release), REVISION: 4.3", "# R38 (release), REVISION: 2.0"


def cuinit(code: int, evidence: Evidence = DOWN) -> Evidence:
    return with_driver(evidence, cuinit_code=code, cuinit_error="words")


def fix_of(condition: str, evidence: Evidence) -> str | None:
    found = ladder.findings(ladder.diagnose(evidence, [ladder.BY_ID[condition]]))
    assert [row.id for row in found] == [condition]
    return found[0].fix


@pytest.mark.parametrize(
    ("fix", "host", "text"),
    [
        ("sudo modprobe nvidia", Host(system="Linux"), "sudo modprobe nvidia"),
        ("sudo modprobe nvidia", Host(system="Linux", container="docker"), "on the host: sudo modprobe nvidia"),
        ("sudo nvidia-smi -c 0", Host(system="Linux", container="podman"), "on the host: sudo nvidia-smi -c 0"),
        (
            "sudo nvidia-smi -i GPU-1 --gpu-reset",
            Host(system="Linux", container="docker"),
            "on the host: sudo nvidia-smi -i GPU-1 --gpu-reset",
        ),
        (
            "start the container anew; outside, reboot",
            Host(container="docker"),
            "start the container anew; outside, reboot",
        ),
        ("unset LD_LIBRARY_PATH", Host(system="Linux", container="docker"), "unset LD_LIBRARY_PATH"),
        # The host may have neither gpucheck nor this container's nodes.
        (
            "gpucheck smoke; sudo dmesg | grep -i xid; reboot",
            Host(system="Linux", container="docker"),
            "gpucheck smoke; on the host: sudo dmesg | grep -i xid; reboot",
        ),
        ("sudo dmesg | grep -i nvrm", Host(system="Linux", wsl=True), fixes.FROM_WSL),
        ("sudo dmesg | grep -i nvrm", Host(system="Windows"), fixes.IN_WINDOWS),
        (
            "unset CUDA_VISIBLE_DEVICES",
            Host(system="Windows"),
            "Remove-Item Env:CUDA_VISIBLE_DEVICES",
        ),
        ("unset A B", Host(system="Windows"), "Remove-Item Env:A, Env:B"),
        (
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            Host(system="Windows"),
            '$env:CUDA_DEVICE_ORDER = "PCI_BUS_ID"',
        ),
        ("gpucheck devices --processes", Host(system="Windows"), "gpucheck devices --processes"),
        ("", Host(system="Windows"), ""),
    ],
)
def test_a_fix_is_given_as_it_works_here(fix: str, host: Host, text: str) -> None:
    assert fixes.adapted(fix, host) == text


def test_the_findings_carry_it() -> None:
    unexplained = cuinit(3)
    assert fix_of("driver.not_initialised", unexplained) == "sudo dmesg | grep -i -e nvrm -e nvidia"
    container = with_host(unexplained, container="docker")
    assert fix_of("driver.not_initialised", container) == "on the host: sudo dmesg | grep -i -e nvrm -e nvidia"
    assert fix_of("driver.unknown_error", with_host(cuinit(999), wsl=True)) == fixes.FROM_WSL
    assert fix_of("driver.no_device", with_host(cuinit(100), system="Windows")) == fixes.IN_WINDOWS


def test_a_group_joined_in_a_container_changes_nothing_there() -> None:
    denied = with_stack(DOWN, nodes=(DeviceNode("/dev/nvidiactl", True, False),))
    assert "usermod" in (fix_of("driver.nodes_denied", denied) or "")
    inside = fix_of("driver.nodes_denied", with_host(denied, container="docker")) or ""
    assert inside.startswith("ls -ln /dev/nvidiactl; ") and "--group-add" in inside and "usermod" not in inside


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        (None, "python"),
        ("/opt/my envs/bin/python", "'/opt/my envs/bin/python'"),
        (r"C:\envs\torch\python.exe", r"C:\envs\torch\python.exe"),
        (r"C:\My Envs\python.exe", r'& "C:\My Envs\python.exe"'),
    ],
)
def test_the_interpreter_is_written_as_its_systems_shells_take_it(path: str | None, typed: str) -> None:
    assert fixes.interpreter(path) == typed
    assert fixes.reinstall(fixes.Installer(path)) == f"{typed} -m pip install --force-reinstall torch"


def test_aarch64_has_wheels_of_its_own() -> None:
    assert fixes.tag_for(("11.0",), "13.0", "aarch64") == "cu130"  # Jetson Thor
    assert fixes.tag_for(("11.0",), "13.0", "x86_64") is None
    assert fixes.tag_for(("7.5",), "13.0", "aarch64") is None
    assert fixes.tag_for(("9.0",), "12.9", "aarch64", (2, 13)) == "cu129"
    assert fixes.tag_for((), "11.8", "aarch64", (2, 7)) is None


# --- the card that is meant, and no other -----------------------------------------------------------------------------

UUIDS = [row.uuid for row in CARDS]
CHANGES_A_CARD = re.compile(r"nvidia-smi (?!-i )[^;|`]*(?:--gpu-reset(?! -i )|-r\b|-c \d|-mig \d|-pl\b|mig (?!-i ))")


def test_no_command_of_a_condition_changes_a_card_that_is_not_named() -> None:
    details = {condition.id: f"{condition.fix} {condition.settle}" for condition in ladder.CONDITIONS}
    assert [name for name, text in details.items() if CHANGES_A_CARD.search(text)] == []


@pytest.mark.parametrize(
    ("condition", "evidence", "start"),
    [
        (
            "gpu.reset_required",
            with_cards(replace(HIDDEN[0], state="reset required"), HIDDEN[1], evidence=cuinit(999)),
            "end its processes, then sudo nvidia-smi --gpu-reset -i 0000:11:00.0",
        ),
        (
            "gpu.reset_required",
            with_driver(with_cards(evidence=cuinit(999)), nvml_code=16, nvml_error="words"),
            "end its processes, then sudo nvidia-smi --gpu-reset -i INDEX",
        ),
        (
            "gpu.unavailable",
            with_cards(replace(HIDDEN[0], compute_mode="prohibited"), HIDDEN[1], evidence=cuinit(46)),
            f"sudo nvidia-smi -i {UUIDS[0]} -c 0",
        ),
        (
            "gpu.mig_empty",
            with_cards(*(replace(row, mig=Mig(True, False, ())) for row in HIDDEN), evidence=cuinit(100)),
            f"sudo nvidia-smi mig -i {UUIDS[0]},{UUIDS[1]} -lgip to list profiles, ",
        ),
    ],
)
def test_a_command_on_a_card_names_it(condition: str, evidence: Evidence, start: str) -> None:
    fix = fix_of(condition, evidence) or ""
    assert fix.startswith(start) and not CHANGES_A_CARD.search(fix)


@pytest.mark.parametrize(
    ("container", "text"),
    [
        ("docker", "start the container with --gpus all"),
        ("podman", f"on the host: {fixes.CDI}; then start the container with --device nvidia.com/gpu=all"),
        ("kubernetes", "give the container a limit of nvidia.com/gpu (resources.limits)"),
        ("lxc", fixes.START_WITH_GPUS),
    ],
)
def test_a_container_is_given_gpus_by_what_runs_it(container: str, text: str) -> None:
    bare = with_stack(with_host(DOWN, container=container), nodes=())
    assert fix_of("container.no_gpu", with_driver(bare, nvml_code=9)) == text


# --- advice of several commands ---------------------------------------------------------------------------------------


def test_a_jetson_takes_nvidias_wheel_up_to_jetpack_6() -> None:
    missing = with_torch(
        DOWN, version=None, path=None, stage="import", error="ModuleNotFoundError: No module named 'torch'"
    )
    assert fix_of("torch.missing", with_stack(missing, jetson=JETSON_6)) == fixes.JETSON
    assert fixes.INDEX in (fix_of("torch.missing", with_stack(missing, jetson=JETSON_7)) or "")


def test_the_torchvision_of_a_vendors_image_is_its_own_matter() -> None:
    condition = ladder.BY_ID["torch.torchvision"]
    evidence = with_torch(HEALTHY, version="2.6.0a0+ecf3bae40a.nv25.01", versions={"torchvision": ("0.20.0a0",)})
    assert seen_by(condition, evidence) is None
    assert seen_by(condition, with_torch(HEALTHY, version="2.6.0", versions={"torchvision": ("0.20.0",)})) is not None


@pytest.mark.parametrize(
    ("torch", "torchvision"),
    [
        *(("1.1.0", "0.3.0"), ("1.2.0", "0.4.0"), ("1.3.0", "0.4.1"), ("1.3.1", "0.4.2"), ("1.4.0", "0.5.0")),
        *(("1.5.1", "0.6.1"), ("1.6.0", "0.7.0"), ("1.7.0", "0.8.1"), ("1.7.1", "0.8.2"), ("1.8.1", "0.9.1")),
        *(("1.9.1", "0.10.1"), ("1.10.0", "0.11.1"), ("1.10.2", "0.11.3"), ("1.11.0", "0.12.0")),
        *(("1.12.1", "0.13.1"), ("1.13.1", "0.14.1"), ("2.0.0", "0.15.1"), ("2.0.1", "0.15.2")),
        *(("2.1.2", "0.16.2"), ("2.4.1", "0.19.1"), ("2.9.1", "0.24.1"), ("2.13.0", "0.28.0")),
    ],
)
def test_the_torchvision_that_asks_for_a_torch(torch: str, torchvision: str) -> None:
    assert fixes.torchvision_of(torch) == torchvision
