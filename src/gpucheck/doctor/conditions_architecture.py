"""torch has no code for this hardware, or its code does not run on it."""

from __future__ import annotations

import re

from gpucheck.doctor import wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_torch import build_line
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.torch_probe import KernelRun, TorchProbe

_NO_IMAGE = re.compile(r"no kernel image is available|not compatible with the current PyTorch|device kernel image is")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_SIGNAL = re.compile(r"SIG[A-Z0-9]+|signal \d+")


def _capabilities(evidence: Evidence) -> dict[str, str]:
    """Each device's capability by torch's name, as torch says it, else as the driver does."""
    told = dict(evidence.torch.capabilities or {}) if evidence.torch else {}
    for card in evidence.cards:
        if card.cuda_index is not None and card.compute_capability:
            told.setdefault(f"cuda:{card.cuda_index}", card.compute_capability)
    return told


def _ran(probe: TorchProbe) -> set[str]:
    """The devices on which a kernel ran: seen, and so above the arithmetic."""
    return {run.device for run in probe.kernels if run.error is None}


def _without_code(evidence: Evidence) -> dict[str, int]:
    """The devices that none of torch's code runs on, with their capability as a number."""
    probe = evidence.torch
    if probe is None or not probe.architectures or probe.cuda is None:
        return {}
    found = {}
    for device, capability in _capabilities(evidence).items():
        value = wheels.number(capability)
        if value is None or device in _ran(probe):
            continue
        if not any(wheels.runs_on(name, value) for name in probe.architectures):
            found[device] = value
    return found


def _oldest(probe: TorchProbe) -> int:
    return min((int(digits) for name in probe.architectures or () for digits in re.findall(r"_(\d+)", name)), default=0)


def _judged(evidence: Evidence, *, is_old: bool) -> Seen | None:
    probe = evidence.torch
    without = _without_code(evidence)
    if probe is None or not without:
        return None
    oldest = _oldest(probe)
    mine = {device: value for device, value in without.items() if (value < oldest) is is_old}
    if not mine:
        return None
    said = ", ".join(f"{_name(probe, device)} is sm_{value}" for device, value in mine.items())
    refused = any(run.device in mine and _NO_IMAGE.search(run.error or "") for run in probe.kernels)
    return Seen(
        f"{said}; torch {probe.version} has code for {', '.join(probe.architectures or ())}",
        {"capabilities": _capabilities(evidence), "architectures": list(probe.architectures or ())},
        build_line(evidence, _capabilities(evidence).values()),
        "proof" if refused else None,
    )


def _name(probe: TorchProbe, device: str) -> str:
    name = (probe.names or {}).get(device)
    return f"{device} ({name})" if name else device


def _missing(evidence: Evidence) -> Seen | None:
    return _judged(evidence, is_old=False)


def _dropped(evidence: Evidence) -> Seen | None:
    return _judged(evidence, is_old=True)


def _ptx_only(evidence: Evidence) -> Seen | None:
    probe = evidence.torch
    if probe is None or not probe.architectures or probe.cuda is None:
        return None
    machine_code = [name for name in probe.architectures if name.startswith("sm_")]
    compiled = []
    for device, capability in _capabilities(evidence).items():
        value = wheels.number(capability)
        if value is None or device in _without_code(evidence):
            continue
        if not any(wheels.runs_on(name, value) for name in machine_code):
            compiled.append(f"{_name(probe, device)} is sm_{value}")
    if not compiled:
        return None
    return Seen(
        f"{', '.join(compiled)}; torch {probe.version} has {', '.join(probe.architectures)}",
        {"architectures": list(probe.architectures)},
    )


def _failing(evidence: Evidence) -> list[KernelRun]:
    """Kernels that failed, on devices that are there and that torch has code for."""
    if evidence.torch is None:
        return []
    shown = sum(card.cuda_index is not None for card in evidence.cards)
    without = _without_code(evidence)
    return [
        run
        for run in evidence.torch.kernels
        if run.error is not None and run.device not in without and (not shown or _index(run.device) < shown)
    ]


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _told(failed: list[KernelRun]) -> Seen | None:
    if not failed:
        return None
    said = "; ".join(f"{run.device}: {run.error}" for run in failed)
    return Seen(said, {"errors": {run.device: run.error for run in failed}})


def _out_of_memory(evidence: Evidence) -> Seen | None:
    return _told([run for run in _failing(evidence) if _OUT_OF_MEMORY.search(run.error or "")])


def _kernel_failed(evidence: Evidence) -> Seen | None:
    return _told([run for run in _failing(evidence) if not _OUT_OF_MEMORY.search(run.error or "")])


def _ended(evidence: Evidence) -> TorchProbe | None:
    """The probe, where it did not come to its end while kernels ran."""
    probe = evidence.torch
    return probe if probe is not None and probe.stage == "run" else None


def _crashed(evidence: Evidence) -> Seen | None:
    probe = _ended(evidence)
    if probe is None or probe.error is None:
        return None
    how = "ended its process by" if _SIGNAL.match(probe.error) else "raised"
    return Seen(f"a kernel {how} {probe.error}", {"kernels_that_ended": len(probe.kernels)})


def _hung(evidence: Evidence) -> Seen | None:
    probe = _ended(evidence)
    if probe is None or not probe.timed_out:
        return None
    told = f"a kernel did not end within {evidence.torch_limit}"
    return Seen(told, {"kernels_that_ended": len(probe.kernels), "limit_s": probe.limit_s})


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="architecture.missing",
        rung="architecture",
        verdict="fail",
        certainty="strong",
        title="this torch has no code for this GPU",
        meaning="A wheel has machine code for the architectures that it was built for. This GPU is another one: "
        "torch.cuda.is_available() is True and the first kernel fails.",
        fix="install a torch that is built for this architecture",
        judge=_missing,
        texts=(
            r"no kernel image is available for execution on the device",
            r"with CUDA capability sm_\d+ is not compatible with the current PyTorch installation",
            r"does not include kernels for this GPU",
        ),
        source="torch/cuda/__init__.py, DEVICE_REQUIREMENT; pytorch issue 167244",
    ),
    Condition(
        id="architecture.dropped",
        rung="architecture",
        verdict="fail",
        certainty="strong",
        title="this torch dropped support for this GPU",
        meaning="Each CUDA drops the oldest architectures: wheels for CUDA 13 begin at sm_75, those for CUDA 12.6 at "
        "sm_50.",
        fix="install a torch for an older CUDA",
        judge=_dropped,
        texts=(r"PyTorch no longer supports this GPU because it is too old",),
        source="torch/cuda/__init__.py, PYTORCH_RELEASES_CODE_CC",
    ),
    Condition(
        id="architecture.ptx_only",
        rung="architecture",
        verdict="warn",
        certainty="strong",
        title="torch has only PTX for this GPU: first use compiles kernels",
        meaning="The wheel has no machine code for this architecture, only PTX, which the driver compiles: the first "
        "use takes minutes, and code that was written for the architecture is missing.",
        fix="install a torch that is built for this architecture",
        judge=_ptx_only,
        source="pytorch issue 537",
    ),
    Condition(
        id="run.out_of_memory",
        rung="run",
        verdict="fail",
        certainty="strong",
        title="no GPU memory is left, not even for a tiny kernel",
        meaning="The device's memory is taken: by another process, or by one that has ended badly and still holds it.",
        settle="`nvidia-smi` shows how much is used, and by whom",
        fix="gpucheck devices --processes",
        judge=_out_of_memory,
    ),
    Condition(
        id="run.kernel_failed",
        rung="run",
        verdict="fail",
        certainty="proof",
        title="a kernel fails on this GPU",
        meaning="torch sees the device, and a sum of 64 numbers or a product of 16 by 16 raises or comes out wrong.",
        settle="`sudo dmesg` shows Xid messages where the hardware is at fault",
        fix="CUDA_LAUNCH_BLOCKING=1 gpucheck smoke --device cuda; sudo dmesg | grep -i xid",
        judge=_kernel_failed,
    ),
    Condition(
        id="run.crashed",
        rung="run",
        verdict="fail",
        certainty="proof",
        title="torch's first kernel crashes the process",
        meaning="torch sees the device and dies as it uses it.",
        settle="`sudo dmesg` shows Xid messages where the hardware is at fault",
        fix="sudo dmesg | grep -i -e xid -e segfault",
        judge=_crashed,
    ),
    Condition(
        id="run.hung",
        rung="run",
        verdict="fail",
        certainty="proof",
        title="torch's first kernel does not end",
        meaning="torch sees the device and waits for ever as it uses it. A driver that is stuck looks so, and, for "
        "minutes, one that compiles every kernel from PTX.",
        settle="`sudo dmesg` shows Xid messages, `ps` processes in state D",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then end what uses the GPU, and reboot",
        judge=_hung,
    ),
)
