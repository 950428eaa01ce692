"""NVML that fails, hangs, crashes or answers with nonsense, through `doctor` and `devices`: hundreds of seeded cases.

In this process, with the children's own code and the parser of their lines; what only processes can show stands at the
end, with the compiled library.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzzed_nvml import BUSES, UUIDS, Cut, Fault, FuzzedNvml, case
from healthy import CPU, PROBE, STACK
from whole import TWO_GPUS, interpreter, root, torch_of

import document_schema as schema
from gpucheck import errors
from gpucheck.cli.app import main
from gpucheck.devices import command as devices
from gpucheck.devices.options import DevicesOptions
from gpucheck.doctor import command
from gpucheck.doctor import command as doctor
from gpucheck.doctor.options import DoctorOptions
from gpucheck.machine import inventory, nvml_sampler, stack
from gpucheck.machine import nvml_read as nvml
from gpucheck.machine.driver_reads import DeviceReading, DriverReading, nvml_reading
from gpucheck.machine.inventory import MachineReading
from gpucheck.machine.nvml_fields import QueryRefused
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Driver, Facts, Host, Python, TorchBuild
from gpucheck.report.report import Collector
from gpucheck.report.results.short import LoadResult

pytestmark = pytest.mark.slow

__all__ = ["root"]
Fake = Callable[..., Path]

CASES = 400
BATCH = 50
DOCUMENTED = {errors.OK, errors.FAILED, errors.UNDECIDED, errors.COULD_NOT_LOOK}
# "Not supported", "invalid argument" and "no such function": what is asked does not apply, and health stays healthy.
DOES_NOT_APPLY = (2, 3, 13)
OTHER_STRUCT = 25  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH
# A failure of these leaves nothing to go by, whatever the code.
WHOLE = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
# What verdicts depend on at rest. Others have a second source: a UUID is CUDA's too, memory and processes are asked for
# by an older call as well.
AT_REST = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetSramEccErrorStatus",
)
OF_LINKS = ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetGpuFabricInfoV")
UNDER_LOAD = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMaxClockInfo",
)
AROUND = MachineReading(
    host=Host(system="Linux", nvidia_pci_addresses=tuple(f"0000:{bus:02x}:00.0" for bus in BUSES)),
    cpu=CPU,
    python=Python("3.12.3", "CPython", "/env/bin/python"),
    torch=TorchBuild("2.11.0+cu130", "/env/lib/torch", "cuda", "13.0"),
    kernel=Driver(kernel_module_version="580.95.05", kernel_module_open=True, kernel_module_loaded=True),
)
CUDA = DriverReading(
    code=0,
    version="13.0",
    devices=tuple(
        DeviceReading(
            Device(
                kind="cuda",
                cuda_index=index,
                name="NVIDIA H200",
                uuid=uuid,
                pci_address=f"0000:{bus:02x}:00.0",
                compute_capability="9.0",
            )
        )
        for index, (uuid, bus) in enumerate(zip(UUIDS, BUSES, strict=True))
    ),
)


def nvml_read(module: FuzzedNvml, *, links: bool) -> DriverReading:
    """What the parent makes of what the child says."""
    lines: list[dict[str, Any]] = []
    broken = None
    try:
        started = nvml.start(module)
        if started["code"] == 0:
            nvml.answer(module, started, lambda line: lines.append(wired(line)), processes=True, links=links)
        else:
            lines.append(wired({"driver": started, "devices": []}))
    except Cut as cut:
        broken = "NVML did not answer within 5 s" if cut.args == ("hang",) else "the process that asks NVML ended early"
    return nvml_reading(lines, broken)


def wired(line: Any) -> Any:
    """As it comes through the pipe."""
    return json.loads(json.dumps(line, allow_nan=False))


def read(module: FuzzedNvml, *, links: bool) -> Facts:
    return inventory.join(nvml_read(module, links=links), CUDA, AROUND, {})


def sampler_of(module: FuzzedNvml, uuid: str) -> nvml_sampler.Sampler:
    handle, of_card = nvml_sampler.find(module, uuid)
    return nvml_sampler.Sampler(module, handle, is_instance=of_card)


def loaded(module: FuzzedNvml, facts: Facts) -> LoadResult:
    """A few readings of each card, as its sampling child takes them."""
    samples: dict[str, list[dict[str, Any]]] = {}
    unseen: dict[str, str] = {}
    for name, uuid in zip(("cuda:0", "cuda:1"), UUIDS, strict=True):
        samples[name] = []
        try:
            if nvml.start(module)["code"]:
                raise QueryRefused("NVML does not start")
            sampler = sampler_of(module, uuid)
            samples[name] = [wired({**sampler.sample(), "at_s": 10.0 + number / 4}) for number in range(4)]
        except Cut:
            unseen[name] = "the process that samples NVML ended early"
        except QueryRefused as refused:
            unseen[name] = refused.reason
    return command.load_result({"stage": "end", "began_s": 10.0, "took_s": 1.0}, "", samples, unseen, {})


class Once:
    """Stands for the inventory that `devices` and `doctor` open."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def read(self) -> Facts:
        return self._facts

    def again(self, facts: Facts) -> Facts:
        return facts

    def __enter__(self) -> Once:
        return self

    def __exit__(self, *_: object) -> None:
        return


def is_failure(fault: Fault, name: str) -> bool:
    """Whether this fault left a question without an answer that it has on this card."""
    if not fault.met or fault.kind in ("garbage", "missing"):
        return False  # nonsense may be a value, and what is missing does not apply
    filled = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetSramEccErrorStatus")
    if fault.kind == "nothing" and name in ("nvmlInit", *filled):
        return False  # that is how the one succeeds, and the other belongs to no fabric
    if name == "nvmlDeviceGetSramEccErrorStatus" and fault.code == OTHER_STRUCT and fault.kind == "code":
        return False  # this driver is older than the struct
    return fault.kind != "code" or name in WHOLE or fault.code not in DOES_NOT_APPLY


def must_not_be_healthy(faults: dict[str, Fault], asked: tuple[str, ...]) -> list[str]:
    return [name for name in (*WHOLE, *asked) if name in faults and is_failure(faults[name], name)]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The adapters around NVML's: a machine that is healthy in all else."""
    monkeypatch.setattr(nvml, "_why_not_loaded", lambda: "no such file")
    monkeypatch.setattr(nvml, "mapped_library", lambda name: f"/lib/{name}.1")
    monkeypatch.setattr(stack, "read", lambda *_, **__: STACK)
    monkeypatch.setattr(stack, "probe", lambda *_, **__: PROBE)
    yield monkeypatch


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command line prints with --json; without it nothing breaks either."""
    code = main([*arguments, "--json"])
    out = capsys.readouterr()
    read: dict[str, Any] = json.loads(out.out)
    assert code == read["summary"]["exit"] and code in DOCUMENTED
    schema.validator().validate(read)
    assert main(arguments) == code
    out = capsys.readouterr()
    assert "Traceback" not in out.out + out.err
    return read


def collected(run: Callable[[Collector], object]) -> str:
    """The verdict of a command without its command line, which takes longer than the command."""
    collector = Collector()
    run(collector)
    report = collector.report(version="0", command="", argv=(), started="", elapsed_s=0.0)
    assert report.summary.exit in DOCUMENTED
    json.dumps(to_json(report), allow_nan=False)
    return report.summary.verdict


def verdict(read: dict[str, Any]) -> str:
    return str(read["summary"]["verdict"])


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_no_answer_of_nvmls_ends_in_a_traceback_nor_is_taken_for_health(
    first: int, patched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(first, first + BATCH):
        faults = case(seed)
        module = FuzzedNvml(faults)
        facts = read(module, links=True)
        patched.setattr(inventory, "Inventory", lambda facts=facts, **_: Once(facts))
        seen = loaded(module, facts)
        patched.setattr(command, "run_load", lambda *_, seen=seen: seen)
        answer = collected(lambda collector: doctor.command(DoctorOptions(), collector))
        unanswered = must_not_be_healthy(faults, (*AT_REST, *OF_LINKS, *UNDER_LOAD))
        assert not unanswered or answer != "pass", (seed, unanswered)

        module = FuzzedNvml({name: replace(fault, met=False) for name, fault in faults.items()})
        facts = read(module, links=True)
        patched.setattr(devices, "Inventory", lambda facts=facts, **_: Once(facts))
        listed = collected(lambda collector: devices.command(DevicesOptions(processes=True), collector))
        unanswered = must_not_be_healthy(module.faults, (*AT_REST, *OF_LINKS))
        assert not unanswered or listed != "pass", (seed, unanswered)
        # One case in twenty through the command line and the schema, which take the most time.
        if seed % 20 == first // BATCH % 20:
            assert verdict(document(["doctor"], capsys)) == answer
            assert verdict(document(["devices", "--processes"], capsys)) == listed


def test_without_a_fault_all_is_healthy(patched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Else no case could be taken for health, and the test above would say nothing."""
    module = FuzzedNvml()
    facts = read(module, links=True)
    patched.setattr(inventory, "Inventory", lambda **_: Once(facts))
    patched.setattr(command, "run_load", lambda *_: loaded(module, facts))
    patched.setattr(devices, "Inventory", lambda **_: Once(facts))
    for arguments in (["doctor"], ["devices"]):
        answer = document(arguments, capsys)
        assert verdict(answer) == "pass"
        assert {row["verdict"] for row in answer["findings"]} <= {"pass", "info", "skip"}
    assert [len(device.nvlinks or ()) for device in facts.devices[:2]] == [3, 3]


def test_the_cases_reach_every_function_and_kind_of_fault() -> None:
    kinds = collections.Counter(fault.kind for seed in range(CASES) for fault in case(seed).values())
    names = {name for seed in range(CASES) for name in case(seed)}
    assert min(kinds.values()) > CASES / 10 and set(AT_REST) | set(OF_LINKS) | set(UNDER_LOAD) | set(WHOLE) <= names


# --- what only processes show -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "1.nvlink.state=crash\nnvlinks=2\n",
        "0.pcie.width=crash\n",
        "1.uuid=\xff\xfe\n",
        "fields=!999\nfabric=4294967295\nretired.corrected=!16\n",
        "nvml.count=-1\n",
        "energy=crash\n",
    ],
)
def test_a_driver_that_is_broken_through_the_processes(
    fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    path = fake_driver()
    path.write_bytes(script.encode("latin-1") + TWO_GPUS.encode())
    python = interpreter(tmp_path, torch_of(tmp_path))
    for arguments in (["doctor", "--python", python], ["devices", "--processes"]):
        answer = document(arguments, capsys)
        # Energy is no business of `devices`.
        assert verdict(answer) != "pass" or (arguments[0] == "devices" and "energy" in script)
