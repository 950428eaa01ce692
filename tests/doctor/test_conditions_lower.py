"""The conditions of the lower rungs: seen where they hold, and neither on a healthy machine nor where nothing is known;
and what tells those apart that look alike."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import (
    CARDS,
    HEALTHY,
    seen_by,
    with_cards,
    with_driver,
    with_host,
    with_stack,
    with_torch,
    with_variables,
    without_gpu,
)

from gpucheck.doctor import conditions_kernel, conditions_nodes, conditions_nvml, ladder
from gpucheck.doctor.condition import CERTAINTIES, STAGES, Condition, Evidence, Signs
from gpucheck.health.nvidia import unlisted
from gpucheck.machine.host import PciDevice
from gpucheck.machine.stack import DeviceNode, KernelRun, Library
from gpucheck.report.facts import Mig, Process

TABLES = (
    conditions_kernel.KERNEL,
    conditions_nodes.NODES,
    conditions_nodes.LIBRARY,
    conditions_nvml.NVML,
    conditions_nvml.CUINIT,
)
CONDITIONS: dict[str, Condition] = {row.id: row for table in TABLES for row in table}

GIB = 2**30
HIDDEN = tuple(replace(row, id=None, cuda_index=None) for row in CARDS)
# The same machine, where CUDA was not seen to work.
DOWN = with_torch(with_cards(*HIDDEN), available=False, count=0, kernels=(), capabilities=None, names=None)
NOT_FOUND = "libcuda cannot be loaded (libcuda.so.1: cannot open shared object file: No such file or directory)"
CONTAINER = with_host(DOWN, container="docker")
WSL = with_stack(
    with_host(DOWN, wsl=True, nvidia_pci_addresses=(), nvidia_device_nodes=("/dev/dxg",)),
    devices=(),
    nodes=(DeviceNode("/dev/dxg", True, True),),
    libraries=(),
    wsl_driver=True,
)
CONTROL, UVM, FIRST = (
    DeviceNode(path, True, True, 0) for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
)


def cuinit(code: int, evidence: Evidence = DOWN) -> Evidence:
    """The machine where cuInit answers this."""
    return with_driver(evidence, cuinit_code=code, cuinit_error="words")


def nvml(code: int, evidence: Evidence | None = None) -> Evidence:
    """The machine where NVML does not start, nor does CUDA."""
    start = cuinit(999) if evidence is None else evidence
    return with_driver(with_cards(evidence=start), nvml_code=code, nvml_error="words")


def unloaded(evidence: Evidence = DOWN, error: str = NOT_FOUND, **changes: Any) -> Evidence:
    """The machine whose loader has no libcuda."""
    changed = with_stack(evidence, **{"libraries": evidence.stack.libraries[1:], **changes})
    return with_driver(changed, cuinit_code=None, cuinit_error=error, libcuda_path=None, libcuda_version=None)


def bus(*drivers: str | None, device: str = "0x2335") -> tuple[PciDevice, ...]:
    return tuple(PciDevice(f"0000:{n}1:00.0", device, "0x030200", driver) for n, driver in enumerate(drivers, 1))


def no_module(evidence: Evidence = DOWN, *drivers: str | None, **changes: Any) -> Evidence:
    """The machine without NVIDIA's module, whose cards these drivers hold."""
    bare = {"devices": bus(*drivers or (None,)), "nodes": (), "modules": frozenset(), "libraries": (), **changes}
    evidence = with_driver(with_stack(evidence, **bare), kernel_module_loaded=False, kernel_module_version=None)
    return nvml(9, cuinit(100, evidence))


def no_card_up(*lines: str, is_open: bool = True, device: str = "0x2335") -> Evidence:
    """The module is loaded, and NVML lists no card; the kernel's log has these lines."""
    evidence = with_stack(with_cards(evidence=cuinit(100)), devices=bus("nvidia", device=device), log=lines)
    return with_driver(evidence, kernel_module_open=is_open)


def in_state(state: str, code: int = 100) -> Evidence:
    return with_cards(*(replace(row, state=state) for row in HIDDEN), evidence=cuinit(code))


def library(path: str, version: str | None = None) -> Library:
    return Library("libcuda.so.1", path, path, version)


FALLEN = "NVRM: GPU 0000:11:00.0: GPU has fallen off the bus."
SEEN: dict[str, Evidence] = {
    "gpu.fallen_off": no_card_up(FALLEN),
    "gpu.no_power": no_card_up("NVRM: GPU does not have the necessary power cables connected."),
    "gpu.no_address_space": no_card_up("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:"),
    "driver.nouveau": no_module(DOWN, "nouveau"),
    "driver.passed_through": no_module(DOWN, "vfio-pci"),
    "driver.not_installed": no_module(built_for=()),
    "driver.other_kernel": no_module(built_for=("6.8.0-40-generic",)),
    "driver.signature_rejected": no_module(log=("Loading of unsigned module is rejected",)),
    "driver.not_loaded": no_module(),
    "container.host_driver": no_module(CONTAINER),
    "driver.unsupported_card": no_card_up("NVRM: installed in this system is not supported by the"),
    "driver.open_module_needed": no_card_up(is_open=False, device="0x2b85"),
    "driver.card_not_started": no_card_up("NVRM: GPU 0000:11:00.0: RmInitAdapter failed! (0x62:0x65:1792)"),
    "container.no_gpu": with_stack(CONTAINER, nodes=()),
    "driver.nodes_missing": with_stack(cuinit(999), nodes=()),
    "driver.node_hangs": with_stack(DOWN, nodes=(replace(CONTROL, error=errno.ETIMEDOUT),)),
    "container.devices_lost": with_stack(nvml(999, CONTAINER), nodes=(replace(CONTROL, error=errno.EPERM), UVM, FIRST)),
    "driver.nodes_denied": with_stack(DOWN, nodes=(DeviceNode("/dev/nvidiactl", True, False), UVM, FIRST)),
    "driver.nodes_stale": with_stack(cuinit(999), nodes=(CONTROL, replace(UVM, error=errno.ENXIO), FIRST)),
    "wsl.no_gpu": with_stack(WSL, nodes=()),
    "wsl.shadowed": cuinit(100, WSL),
    "container.no_compute": unloaded(with_variables(CONTAINER, NVIDIA_DRIVER_CAPABILITIES="utility,video")),
    "library.broken": unloaded(error="libcuda cannot be loaded (/lib/libcuda.so.1: file too short)"),
    "library.cuda_not_searched": unloaded(stray_libraries=(library("/usr/local/nvidia/lib64/libcuda.so.1"),)),
    "library.cuda_missing": unloaded(),
    "library.stub": cuinit(34),
    "library.compat_driver": with_driver(cuinit(803), libcuda_path="/usr/local/cuda/compat/libcuda.so.590.1"),
    "library.other_version": with_driver(cuinit(999), libcuda_path="/opt/libcuda.so.570.124.06"),
    "driver.mismatch": with_driver(nvml(18), nvml_path="/lib/libnvidia-ml.so.580.105.08"),
    "library.nvml_missing": with_driver(HEALTHY, nvml_code=12, nvml_error="NVML Shared Library Not Found"),
    "gpu.lost": in_state("lost"),
    "gpu.reset_required": in_state("reset required"),
    "gpu.recovery": with_cards(replace(HIDDEN[0], recovery_action="node_reboot"), HIDDEN[1], evidence=cuinit(999)),
    "driver.nvml_hung": with_driver(cuinit(999), nvml_code=None, nvml_error="NVML did not answer within 5 s"),
    "driver.no_devices_found": no_card_up(),
    "wsl.blocked": nvml(17, with_driver(cuinit(100, WSL), libcuda_path="/usr/lib/wsl/lib/libcuda.so.1.1")),
    "driver.nvml_refused": nvml(20),
    "gpu.exclusive": with_torch(
        with_cards(
            replace(CARDS[0], compute_mode="exclusive_process", processes=(Process(4242, "compute"),)), CARDS[1]
        ),
        kernels=(KernelRun("cuda:0", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),),
    ),
    "driver.hung": with_driver(DOWN, cuinit_code=None, cuinit_error="libcuda did not answer within 5 s"),
    "gpu.mig_empty": with_cards(*(replace(c, mig=Mig(True, True)) for c in HIDDEN), evidence=cuinit(100)),
    "driver.no_device": cuinit(100),
    "driver.out_of_memory": cuinit(2),
    "driver.uvm_missing": with_stack(cuinit(999), nodes=(CONTROL, FIRST)),
    "driver.unknown_error": cuinit(999),
    "driver.not_initialised": cuinit(3),
    "gpu.unavailable": cuinit(46),
    "driver.toolchain": cuinit(222),
    "driver.not_supported": cuinit(801),
    "driver.fabric": cuinit(802),
    "mps.unreachable": cuinit(805),
    "mps.not_ready": cuinit(807),
    "driver.refused": cuinit(1),
}
# Worth saying, and no cause: they stand beside the ladder.
BESIDE = ("library.nvml_missing",)


def seen(identity: str, evidence: Evidence) -> Signs | None:
    return seen_by(CONDITIONS[identity], evidence)


def first(evidence: Evidence) -> str | None:
    found = ladder.diagnose(evidence, list(CONDITIONS.values())).first
    return found.condition.id if found else None


def message(identity: str, evidence: Evidence) -> str:
    found = seen(identity, evidence)
    assert found is not None
    return found.message


def test_every_condition_has_its_evidence_here() -> None:
    assert set(SEEN) == set(CONDITIONS)


@pytest.mark.parametrize("identity", CONDITIONS)
def test_it_is_seen_where_it_holds(identity: str) -> None:
    found = seen(identity, SEEN[identity])
    assert found is not None and found.message
    assert found.certainty in (None, *CERTAINTIES)


@pytest.mark.parametrize("identity", [condition for condition in CONDITIONS if condition not in BESIDE])
def test_it_is_the_first_broken_rung_and_alone_on_it(identity: str) -> None:
    diagnosis = ladder.diagnose(SEEN[identity], list(CONDITIONS.values()))
    assert diagnosis.first is not None and diagnosis.first.condition.id == identity
    rung = diagnosis.first.condition.stage
    assert [sighting.condition.id for sighting in diagnosis.consequences if sighting.condition.stage == rung] == []


@pytest.mark.parametrize("identity", BESIDE)
def test_what_breaks_nothing_stands_beside_the_ladder(identity: str) -> None:
    diagnosis = ladder.diagnose(SEEN[identity], [CONDITIONS[identity]])
    assert diagnosis.first is None
    assert [sighting.condition.id for sighting in diagnosis.aside] == [identity]


@pytest.mark.parametrize("identity", CONDITIONS)
@pytest.mark.parametrize(
    "evidence",
    [
        HEALTHY,
        Evidence(),
        without_gpu(),
        with_host(HEALTHY, container="docker"),
        with_stack(HEALTHY, log=(FALLEN,)),
        with_stack(with_variables(cuinit(100), CUDA_VISIBLE_DEVICES=""), log=(FALLEN,)),
    ],
    ids=[
        "healthy",
        "nothing is known",
        "no GPU",
        "a container with its GPUs",
        "a fault before a reset",
        "hidden by a mask",
    ],
)
def test_it_is_not_seen_where_nothing_is_wrong(identity: str, evidence: Evidence) -> None:
    assert seen(identity, evidence) is None


# --- what tells those apart that look alike ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "identity"),
    [
        # 999: a node, a group, a version, or none of them
        (cuinit(999), "driver.unknown_error"),
        (with_stack(cuinit(999), nodes=(CONTROL, FIRST)), "driver.uvm_missing"),
        (with_stack(nvml(999, CONTAINER), nodes=(CONTROL, UVM, FIRST)), "driver.nvml_refused"),
        # 100: a mask is not the driver's fault
        (with_variables(cuinit(100), CUDA_VISIBLE_DEVICES="-1"), None),
        (with_variables(cuinit(100), CUDA_VISIBLE_DEVICES="0"), "driver.no_device"),
        # 803: a package for compatibility, another libcuda, or an update under a running module
        (with_driver(cuinit(803), libcuda_path="/opt/libcuda.so.570.1"), "library.other_version"),
        (cuinit(803), "driver.mismatch"),
        # a module that is not loaded
        (no_module(secure_boot=True, built_for=()), "driver.not_installed"),
        (no_module(secure_boot=True, built_for=("6.8.0-40-generic",)), "driver.other_kernel"),
        (no_module(built_for=None, libraries=HEALTHY.stack.libraries), "driver.not_loaded"),
        (no_module(DOWN, "nouveau", "vfio-pci"), "driver.not_loaded"),
        (with_driver(no_module(), kernel_module_loaded=None), "driver.not_loaded"),
        # a card that does not come up: the line that says why counts, not the one that it failed
        (no_card_up("NVRM: RmInitAdapter failed", FALLEN), "gpu.fallen_off"),
        (no_card_up(is_open=True, device="0x2b85"), "driver.no_devices_found"),
        (no_card_up(is_open=False, device="0x2335"), "driver.no_devices_found"),
        # no libcuda: what the container was given
        (unloaded(with_host(DOWN, container="docker")), "container.no_compute"),
        (unloaded(with_stack(cuinit(100), nodes=())), "driver.nodes_missing"),
        (unloaded(stray_libraries=(library("/cuda/stubs/libcuda.so.1"),)), "library.cuda_missing"),
        # rights
        (
            with_stack(cuinit(46), nodes=(CONTROL, UVM, FIRST, DeviceNode("/dev/nvidia1", False, False))),
            "gpu.unavailable",
        ),
        (
            with_stack(cuinit(999), nodes=(CONTROL, UVM, DeviceNode("/dev/nvidia0", False, False))),
            "driver.nodes_denied",
        ),
        # a library that is none, and one that ends its process
        (with_driver(DOWN, cuinit_code=None, cuinit_error="this libcuda has no cuInit"), "library.broken"),
        # blocked by the operating system is WSL's answer
        (nvml(17), "driver.nvml_refused"),
        # a sandbox that hides the module and passes on its calls
        (with_driver(no_module(), nvml_code=0, nvml_error=None), "driver.no_devices_found"),
        # WSL has its own way to the card
        (with_driver(cuinit(100, WSL), libcuda_path="/usr/lib/wsl/drivers/nv/libcuda.so.1.1"), "driver.no_device"),
        (with_host(cuinit(100, WSL), container="docker"), "driver.no_device"),
    ],
)  # fmt: skip
def test_one_answer_has_several_causes(evidence: Evidence, identity: str | None) -> None:
    assert first(evidence) == identity


@pytest.mark.parametrize(
    "condition", [value for value in CONDITIONS.values() if value.cuinit or value.nvml], ids=lambda c: c.id
)
def test_a_condition_holds_at_each_answer_that_it_names(condition: Condition) -> None:
    evidence = SEEN[condition.id]
    for code in condition.cuinit:
        assert seen_by(condition, with_driver(evidence, cuinit_code=code, cuinit_error="words")) is not None
    for code in condition.nvml:
        assert seen_by(condition, with_driver(evidence, nvml_code=code, nvml_error="words")) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("refused", "answers"), [("driver.refused", "cuinit"), ("driver.nvml_refused", "nvml")])
def test_an_answer_that_no_condition_names_is_told_as_it_is(refused: str, answers: str) -> None:
    named = {code for value in CONDITIONS.values() for code in getattr(value, answers)}
    answer = {code for code in range(1000) if seen(refused, with_driver(DOWN, **{f"{answers}_code": code}))}
    assert (seen(refused, nvml(11)) or Signs("")).title == (
        "GPU interrupts do not arrive" if answers == "nvml" else None
    )
    # These have a usual cause, and none that is visible here.
    unexplained = {4, 9, 17, 999} if answers == "nvml" else set()
    assert answer == set(range(1, 1000)) - named | unexplained


def test_a_card_that_fell_off_beside_others_that_work_is_a_warning() -> None:
    one_left = with_stack(with_cards(CARDS[0]), log=(FALLEN,))
    diagnosis = ladder.diagnose(one_left, list(CONDITIONS.values()))
    assert diagnosis.first is None
    assert [(sighting.condition.id, sighting.condition.verdict) for sighting in diagnosis.aside] == [
        ("gpu.fallen_off", "warn")
    ]
    assert diagnosis.aside[0].signs.evidence["pci_addresses_not_listed"] == ["0000:21:00.0"]


def test_the_host_of_a_container_may_have_more_cards() -> None:
    inside = with_host(with_stack(with_cards(CARDS[0]), log=(FALLEN,)), container="docker")
    assert unlisted(inside.facts) is None
    found = unlisted(with_cards(CARDS[0]).facts)
    assert found is not None and found.evidence["pci_addresses"] == ["0000:21:00.0"]
    kept = with_host(with_cards(CARDS[0]), nvidia_pci_drivers={"0000:21:00.0": "vfio-pci"})
    assert unlisted(kept.facts) is None


# --- evidence of any kind ---------------------------------------------------------------------------------------------


def shaken(random: Random) -> Evidence:
    """Parts of several faults at once, of which any field may be unknown."""

    def part(read: Callable[[Evidence], Any]) -> Any:
        whole = read(random.choice(list(SEEN.values())))
        if whole is None:
            return None
        blank = {field.name: field.default for field in fields(whole) if field.default is not MISSING}
        return replace(whole, **{name: value for name, value in blank.items() if random.random() < 0.2})

    cards = [part(lambda evidence: random.choice(evidence.facts.devices)) for _ in range(random.randrange(4))]
    facts = replace(
        random.choice(list(SEEN.values())).facts,
        host=part(lambda evidence: evidence.facts.host),
        driver=part(lambda evidence: evidence.facts.driver),
        torch=part(lambda evidence: evidence.facts.torch),
        devices=tuple(cards),
        environment={"CUDA_VISIBLE_DEVICES": random.choice(("", "0", "-1", "x"))} if random.random() < 0.3 else {},
    )
    return Evidence(facts, part(lambda evidence: evidence.stack), part(lambda evidence: evidence.torch))


@pytest.mark.parametrize("seed", range(20))
def test_no_evidence_ends_in_a_traceback_and_success_seen_is_not_denied(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        evidence = shaken(random)
        diagnosis = ladder.diagnose(evidence, ladder.CONDITIONS)
        assert len(ladder.findings(diagnosis)) == (diagnosis.first is not None) + len(diagnosis.consequences) + len(
            diagnosis.aside
        )
        assert [standing.rung for standing in ladder.standings(evidence, diagnosis)] == list(STAGES)
        if evidence.torch_works and diagnosis.broken is not None:
            assert STAGES.index(diagnosis.broken) >= STAGES.index("architecture")


# --- the catalogue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", ladder.CONDITIONS, ids=lambda row: row.id)
def test_every_condition_has_a_page(condition: Condition) -> None:
    assert condition.title and condition.meaning and condition.fix
    assert condition.stage in (None, *STAGES) and condition.certainty in CERTAINTIES
    # What is not certain says what would make it so.
    assert condition.settle or condition.certainty == "proof" or condition.id not in CONDITIONS
    # A page is about every machine: no value of this one's, and nothing left to fill in.
    assert not re.search(r"[{}]", condition.title + condition.meaning + condition.settle + condition.fix)
    assert not condition.title.endswith(".") and condition.meaning.endswith((".", "?"))
    for text in condition.patterns:
        re.compile(text)


# --- a libcuda that LD_LIBRARY_PATH brings ----------------------------------------------------------------------------

GIVEN = "/opt/old/libcuda.so.1"


def given(evidence: Evidence, path: str = GIVEN, name: str = "libcuda.so.1", **changes: Any) -> Evidence:
    """The machine whose library of this name came through LD_LIBRARY_PATH."""
    return with_stack(evidence, path_libraries=(Library(name, path, path),), **changes)


@pytest.mark.parametrize("container", [None, "docker"])
@pytest.mark.parametrize("module", ["580.95.05", None])
def test_803_of_a_libcuda_through_the_variable_names_it_and_blames_no_update(
    container: str | None, module: str | None
) -> None:
    evidence = with_driver(cuinit(803), libcuda_path=GIVEN, kernel_module_version=module)
    diagnosis = ladder.diagnose(with_host(given(evidence), container=container), ladder.CONDITIONS)
    assert diagnosis.first is not None and diagnosis.first.condition.id == "library.other_version"
    seen = diagnosis.first.signs
    assert seen.message == ("cuInit returns 803 (words); LD_LIBRARY_PATH brought libcuda from /opt/old")
    assert seen.fix == "remove /opt/old from LD_LIBRARY_PATH"
    assert "driver.mismatch" not in [sighting.condition.id for sighting in diagnosis.consequences]


def test_an_nvml_through_the_variable_is_no_update_either() -> None:
    path = "/opt/old/libnvidia-ml.so.1"
    evidence = with_driver(cuinit(803, CONTAINER), nvml_code=18, nvml_error="words", nvml_path=path)
    mismatch = seen("driver.mismatch", given(evidence, path, "libnvidia-ml.so.1"))
    assert mismatch is not None and "LD_LIBRARY_PATH brought the libraries from /opt/old" in mismatch.message
    assert (mismatch.fix or "").startswith("remove /opt/old from LD_LIBRARY_PATH")
    aged = seen("driver.mismatch", evidence)
    assert aged is not None and (aged.fix or "").startswith("recreate the container")


def test_versions_that_do_not_differ_are_not_said_to() -> None:
    evidence = with_driver(cuinit(803), nvml_code=18, nvml_error="words")
    alike = seen("driver.mismatch", evidence)
    assert alike is not None and alike.message == (
        "NVML returns 18: the versions of its library and the kernel module differ"
    )
    other = seen("driver.mismatch", with_driver(evidence, kernel_module_version="570.1"))
    assert other is not None and other.message == (
        "NVML returns 18; the libraries are 580.95.05, the loaded module is 570.1"
    )


def test_a_folder_that_the_loader_searches_anyway_is_no_cause() -> None:
    own = HEALTHY.stack.libraries[0]
    evidence = given(with_driver(cuinit(803, CONTAINER), libcuda_path=own.real_path), own.path)
    evidence = with_stack(evidence, path_folders={"/lib": "/lib"})
    assert seen("library.other_version", evidence) is None
    aged = seen("driver.mismatch", evidence)
    assert aged is not None and (aged.fix or "").startswith("recreate the container")


def test_a_library_through_the_variable_is_known_by_its_folder_alone() -> None:
    """As the child that loaded it tells, wherever this process looks for files."""
    loaded = with_driver(cuinit(803), libcuda_path="/data/old/libcuda.so.1")
    other = seen("library.other_version", with_stack(loaded, path_folders={"/data/old": "/opt/x/"}))
    assert other is not None and "LD_LIBRARY_PATH brought libcuda from /opt/x" in other.message
    assert other.fix == "remove /opt/x from LD_LIBRARY_PATH"


def test_a_stub_and_a_compat_package_through_the_variable_stay_what_they_are() -> None:
    stub = given(with_driver(cuinit(803), libcuda_path="/x/stubs/libcuda.so.1"), "/x/stubs/libcuda.so.1")
    assert seen("library.other_version", stub) is None and seen("library.stub", stub) is not None
    compat = given(with_driver(cuinit(803), libcuda_path="/x/compat/libcuda.so.1"), "/x/compat/libcuda.so.1")
    assert seen("library.other_version", compat) is None
    package = seen("library.compat_driver", compat)
    assert package is not None and package.message.endswith(", through LD_LIBRARY_PATH (/x/compat)")


@pytest.mark.parametrize("cuinit_code", [0, None])
@pytest.mark.parametrize("error", ["libcuda did not answer within 5 s", "the process that asks libcuda ended early"])
def test_libcuda_may_fail_before_its_path_is_known_and_after_it_started(cuinit_code: int | None, error: str) -> None:
    path = "/lib/libcuda.so.1" if cuinit_code == 0 else None
    evidence = with_driver(DOWN, cuinit_code=cuinit_code, cuinit_error=error, libcuda_path=path)
    found = seen("driver.hung", evidence)
    assert found is not None and found.message == ("cuInit returned; then " if cuinit_code == 0 else "") + error


def test_who_holds_a_gpu_in_exclusive_mode_is_on_that_gpu() -> None:
    other = replace(HIDDEN[0], processes=(Process(7, "compute", "python"),))
    exclusive = replace(HIDDEN[1], compute_mode="exclusive_process")
    for processes, said in (((), "is exclusive_process"), ((Process(8, "compute"),), "with PID 8 on it")):
        cards = (other, replace(exclusive, processes=processes))
        seen = seen_by(CONDITIONS["gpu.unavailable"], with_driver(with_cards(*cards, evidence=DOWN), cuinit_code=46))
        assert seen is not None and seen.message.endswith(said) and "PID 7" not in f"{seen.message}{seen.fix}"
