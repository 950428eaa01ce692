"""Conditions of GPUs that break no stage: most are checks of `gpucheck devices`, at rest and under load."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpucheck import units
from gpucheck.doctor.condition import Condition, Evidence, Signs, found, hint, proof
from gpucheck.doctor.conditions_nvml import recovery
from gpucheck.health import checks, live
from gpucheck.health.nvidia import name_of
from gpucheck.links import ACS_FIX, IOMMU_FIX
from gpucheck.machine.nvml_fields import applies
from gpucheck.messages import FIX, fix_of
from gpucheck.report.facts import Changes, ClockReasons, Device, Facts, Link
from gpucheck.report.finding import Verdict
from gpucheck.report.report import few, joined_messages
from gpucheck.report.results.short import LoadResult

# The CUDA context of the probed torch uses a few hundred MiB.
FOREIGN_BYTES = 2**30


def _check(id: str, *, verdict: Verdict = "warn", **row: Any) -> Condition:
    """Return a check of `gpucheck devices` as a condition, unless a stage's condition already reports the fault."""

    def judge(evidence: Evidence) -> Signs | None:
        return None if _is_the_diagnosis(id, evidence) else found(id)(evidence)

    return Condition(id, judge=judge, verdict=verdict, **row)


_failure, _remark = partial(_check, verdict="fail"), partial(_check, verdict="info")

# The condition of a stage reports these states of a GPU.
_REPORTED_STATES = ("lost", "reset required", "no power", "not answering")


def _is_the_diagnosis(check: str, evidence: Evidence) -> bool:
    if check == "devices.answers":
        states = [str(row.evidence.get("state")) for row in evidence.findings.get(check, ()) if row.verdict == "fail"]
        return not evidence.cuda_works and all(state.startswith(_REPORTED_STATES) for state in states)
    if check == "devices.mig_empty":
        return not evidence.cuda_works
    if check == "devices.unread":
        return not evidence.torch_works
    return check == "devices.recovery_action" and recovery(evidence) is not None


def _foreign_memory(evidence: Evidence) -> Signs | None:
    """Report GPU memory that other processes use, unless another check reports that no visible process uses it."""
    unclaimed = {finding.evidence["uuid"] for finding in evidence.findings.get("devices.unclaimed_memory", ())}
    in_use = {
        name_of(gpu): gpu
        for gpu in evidence.gpus
        if (gpu.memory_used_bytes or 0) > FOREIGN_BYTES
        and not gpu.integrated
        and (gpu.processes or gpu.uuid not in unclaimed)
    }
    if not in_use:
        return None
    used = {name: gpu.memory_used_bytes or 0 for name, gpu in in_use.items()}
    text = joined_messages([(name, f"{units.capacity(used[name])} by {_holders(in_use[name])}") for name in in_use])
    if not all(map(_is_desktop, in_use.values())):
        return Signs(text, used)
    return Signs(text, used, verdict="info", title="the desktop uses GPU memory")


def _holders(gpu: Device) -> str:
    largest = sorted(gpu.processes or (), key=lambda process: process.used_memory_bytes or 0, reverse=True)
    names = [f"{process.name or 'not visible here'} ({process.pid})" for process in largest]
    return few(names, ", ") or "processes that are not listed"


def _is_desktop(gpu: Device) -> bool:
    """Return whether graphics programs use the GPU, and other processes use less than `FOREIGN_BYTES`."""
    sizes = [process.used_memory_bytes for process in gpu.processes or () if "graphics" not in process.kind]
    return None not in sizes and sum(filter(None, sizes)) < FOREIGN_BYTES and len(sizes) < len(gpu.processes or ())


GPUS: tuple[Condition, ...] = (
    _check(
        id="devices.persistence",
        title="persistence mode is off: the driver restarts for each program",
        meaning="NVML took more than 5 s to start: the driver releases the GPU when its last program ends.",
        fix="sudo systemctl enable --now nvidia-persistenced",
    ),
    Condition(
        id="devices.foreign_memory",
        verdict="warn",
        title="other processes use GPU memory",
        meaning="You cannot use this memory: batches that fitted before may run out of memory.",
        fix=FIX["memory held"],
        judge=_foreign_memory,
    ),
    _check(
        id="devices.unclaimed_memory",
        title="GPU memory is in use, but no visible process holds it",
        meaning="More than 1 GiB and 5 % of the memory is in use, but no process in NVML's list uses it.",
        fix="sudo fuser -v /dev/nvidia*",
    ),
    _failure(
        id="devices.answers",
        title="a GPU does not answer its driver",
        meaning="NVML lists the GPU, but reading it fails: the GPU fell off the bus, or it needs a reset.",
        fix=FIX["lost"],
        patterns=(r"GPU is lost", r"Unable to determine the device handle"),
    ),
    _failure(
        id="devices.recovery_action",
        title="the driver asks for a recovery action",
        meaning="The driver reports which action the GPU needs before its results can be trusted.",
        fix="follow the driver's recovery action",
    ),
    _failure(
        id="devices.remapped_rows",
        title="faulty memory rows",
        meaning="A row without a spare is a permanent fault. A row that waits for a reset is in use until then.",
        fix="drain the node and replace the GPU",
    ),
    _failure(
        id="devices.sram_ecc",
        title="errors of the on-chip memory (SRAM)",
        meaning="Caches have no spares. Any uncorrected error since the driver was loaded is a failure.",
        fix="drain the node and replace the GPU",
    ),
    _failure(
        id="devices.retired_pages",
        title="memory pages were retired",
        meaning="GPUs up to Turing retire at most 64 faulty memory pages. A pending page is in use until a reset.",
        fix="reset the GPU; at the limit, replace the GPU",
    ),
    _failure(
        id="devices.ecc",
        title="uncorrected memory errors",
        meaning="Results since the driver was loaded may be wrong. Corrected errors alone are a remark.",
        fix=fix_of("ecc"),
    ),
    _check(
        id="devices.unread",
        verdict="inconclusive",
        title="a GPU's health could not be read",
        meaning="NVML supports this value for the GPU but did not report it, or NVML does not list the GPU.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
    ),
    _check(
        id="devices.busy_alone",
        title="a GPU is fully busy, but no process is on it",
        meaning="Two readings with 2 s between them show 100 %. A process is hidden from this user, or the GPU hangs.",
        fix="sudo fuser -v /dev/nvidia*; if nobody uses the GPU, drain the node and reset the GPU",
    ),
    _failure(
        id="devices.fan",
        title="the fan of a hot GPU stands still",
        meaning="The GPU is near its slowdown temperature, or heat throttles it. NVML reports the intended fan speed.",
        fix=FIX["heat"],
    ),
    _check(
        id="devices.mig_pending",
        title="a change of MIG mode waits for a reset",
        meaning="MIG mode was switched, but the GPU was not reset because programs or monitors use it.",
        fix="stop its clients (sudo systemctl stop nvidia-dcgm), then sudo nvidia-smi --gpu-reset -i INDEX",
    ),
    _check(
        id="devices.odd_one",
        title="a GPU differs from the others of its name",
        meaning="The GPU has less memory or BAR1 than most, or its persistence mode is off. Another VBIOS is a remark.",
        fix="compare nvidia-smi -q -i INDEX with another GPU",
    ),
    _check(
        id="devices.throttled",
        title="a GPU throttles to protect itself",
        meaning="Heat, power or the driver lowers the clock. A hardware reason in two readings is a failure.",
        fix=f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; heat: {FIX['heat']}; power: {FIX['power']}",
    ),
    _remark(
        id="devices.violations",
        title="limits lowered the clock",
        meaning="The driver's counters of limits grew between two readings. Heat and reliability are a warning.",
        fix="no action needed; nvidia-smi -q -d PERFORMANCE shows what limits the clock now",
    ),
    _check(
        id="devices.hot",
        title="a GPU is at a temperature limit",
        meaning="Driver and hardware lower the clock at a limit. At the shutdown temperature the GPU switches off.",
        fix=FIX["heat"],
    ),
    _check(
        id="devices.low_clock",
        title="a busy GPU's clock is far too low for no reported reason",
        meaning="The clock is a fifth below its default or equal GPUs. NVML gives no reason and cannot read a lock.",
        fix="nvidia-smi -q -d CLOCK,PERFORMANCE; to unlock: `sudo nvidia-smi -i INDEX --reset-gpu-clocks`, or "
        "`--reset-memory-clocks` for the memory clock",
    ),
    _remark(
        id="devices.power_limited",
        title="the power limit lowers a busy GPU's clock",
        meaning="This is normal at full load. If the GPU draws less than half of the limit, it is a warning.",
        fix="no action needed",
    ),
    _remark(
        id="devices.clock_setting",
        title="a setting lowers a busy GPU's clock",
        meaning="Application clocks, a display clock or sync boost lower the speed. A loss of a fifth is a warning.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
    ),
    _check(
        id="devices.link_width",
        title="a busy GPU's PCIe link uses fewer lanes than it supports",
        meaning="Copies are slower in proportion. If the slot may have fewer lanes, this is a remark.",
        fix="reseat the GPU, remove risers, check the slot's firmware setting (bifurcation)",
    ),
    _check(
        id="devices.link_generation",
        title="a busy GPU's PCIe link is slower than GPU and slot allow",
        meaning="Each generation doubles the rate. Errors or a setting have lowered the generation.",
        fix="reseat the GPU, remove risers, check the slot's firmware setting",
    ),
    _check(
        id="devices.pcie_replays",
        title="the PCIe link resends packets (replays)",
        meaning="A link resends damaged packets. If the counter grows fast, a contact is bad.",
        fix="reseat the GPU and its riser; sudo dmesg | grep -i aer shows bus errors",
    ),
    _check(
        id="devices.mig_empty",
        title="a GPU is in MIG mode without an instance",
        meaning="In MIG mode programs can use only instances. This GPU has no instance, so no program can use it.",
        fix="sudo nvidia-smi mig -i INDEX -cgi 0 -C for an instance; or sudo nvidia-smi -i INDEX -mig 0",
    ),
    _remark(
        id="devices.ecc_mode",
        title="ECC is off now or after a reset",
        meaning="Memory errors are not corrected and not counted. If GPUs of the same model differ, it is a warning.",
        fix="sudo nvidia-smi --ecc-config=1, and reset the GPU",
    ),
    _remark(
        id="devices.power_limit",
        title="the power limit is below the GPU's default",
        meaning="The limit lowers the clock under load. A fifth below the default, or less than on GPUs of the same "
        "name, is a warning.",
        fix="unless the limit is intended: sudo nvidia-smi --power-limit=WATTS",
    ),
    _remark(
        id="devices.compute_mode",
        title="compute mode prohibited",
        meaning="Programs fail because the GPU is busy or unavailable. In exclusive mode one program can use the GPU.",
        fix="sudo nvidia-smi --compute-mode=0",
    ),
    _check(
        id="links.fabric",
        title="a GPU is not connected to the NVSwitch fabric",
        meaning="GPUs on NVSwitches copy to each other only after the fabric manager has registered them.",
        fix="sudo systemctl restart nvidia-fabricmanager; its version must match the driver's exactly",
    ),
    _check(
        id="links.inactive",
        title="NVLinks are down",
        meaning="It is a remark if no bridge needs the links, a failure if all links of one GPU on a board are down.",
        fix="look for Xid 74, 136 and 144 to 150 in `sudo dmesg`; reset the GPUs, then reseat the bridge or the board",
    ),
    _check(
        id="links.errors",
        title="NVLinks count errors",
        meaning="Corrected checksum errors (crc) are a remark. Replays, recoveries and lost packets cost time.",
        fix="if they grow, reset the GPUs, then reseat the bridge or the board",
    ),
)


# Conditions of copies between GPUs over PCIe. doctor cannot check them; `explain` recognises their error texts.
PEERS: tuple[Condition, ...] = (
    hint(
        id="peers.iommu",
        verdict="warn",
        title="an IOMMU is between GPUs that copy over PCIe",
        meaning="On bare metal CUDA does not support copies between GPUs over PCIe while the IOMMU translates "
        "addresses. The copies may hang, or deliver wrong data without an error.",
        fix=IOMMU_FIX,
        patterns=(
            "Missing .{0,3}iommu=pt.{0,3} from kernel command line|(nvidia|nvrm).{0,80}(AMD-Vi|DMAR).{0,80}fault|"
            "NCCL_P2P_DISABLE ?= ?1 (works|helps|fixes|solves|avoids|makes it work)",
            r"\bIO_PAGE_FAULT\b.{0,200}(nvidia|nvrm|xid)|\b(p2p|peer[- ]to[- ]peer) (copy|copies|transfers?|"
            r"memcpy)\b.{0,40}\b(wrong|incorrect|corrupt\w*|garbage) (values?|data|results?|numbers?)\b",
        ),
    ),
    hint(
        id="peers.acs",
        verdict="warn",
        title="PCIe ACS sends copies between GPUs up to the CPU",
        meaning="Access Control Services send each copy between GPUs up to the CPU. Copies are slower, or they hang.",
        fix=ACS_FIX,
        patterns=(r"\bPCIe? ACS\b.{0,80}\b(nccl|p2p|peer|gpudirect)", r"\bACSCtl ?: ?SrcValid\+"),
    ),
)


# -- under the load of doctor ------------------------------------------------------------------------------------------

# One reading with a protection reason is no proof: it may appear while the clock changes (DCGM's documentation).
LEAST_READINGS = 2
# A reason in this share of the readings is lasting.
SUSTAINED = 0.5
# The values that are read under load. Each is needed for a verdict.
READ = (
    *("sm_clock_hz", "clock_reasons", "temperature_celsius", "pcie/generation", "pcie/width"),
    *("pcie/max_generation", "pcie/max_width", "max_sm_clock_hz"),
)
# The checks need these facts, which do not change under load.
_FIXED = (
    *("kind", "id", "name", "uuid", "nvml_index", "pci_address", "integrated", "compute_capability"),
    *("application_sm_clock_hz", "default_application_sm_clock_hz", "gpu_max_celsius", "slowdown_celsius"),
    *("power_limit_w", "power_limit_default_w"),
)


def _as_loaded(evidence: Evidence) -> Facts:
    """Return the GPUs with their readings under load, for the checks of busy GPUs."""
    by_id, devices = {gpu.id: gpu for gpu in evidence.gpus}, []
    for loaded in evidence.load.cards if evidence.load is not None else ():
        gpu, telemetry = by_id.get(loaded.device) or Device("cuda", loaded.device), loaded.telemetry
        if telemetry is None:
            continue
        clock, link = telemetry["sm_clock_hz"], telemetry["pcie"]
        least = {name: LEAST_READINGS if name in live.PROTECTS else 1 for name in loaded.held_by}
        reasons = {name: count for name, count in loaded.held_by.items() if count >= least[name]}
        lasting = tuple(name for name, count in reasons.items() if count >= SUSTAINED * telemetry["readings"])
        is_read = bool(reasons) or "clock_reasons" not in telemetry["unknown"]
        on_pcie = telemetry.get("c2c_bytes_per_s") is None and not gpu.integrated
        ends = ("generation", "width", "max_generation", "max_width")
        devices.append(
            Device(
                **{name: getattr(gpu, name) for name in _FIXED},
                state=live.UNDER_LOAD,
                sm_clock_hz=clock["median"] if clock else None,
                max_sm_clock_hz=telemetry["max_sm_clock_hz"],
                temperature_celsius=telemetry["temperature_celsius"],
                clock_reasons=ClockReasons(0, tuple(reasons)) if is_read else None,
                pcie=Link(**{name: link.get(name) for name in ends}) if on_pcie else None,
                # The load is short, but it has many readings.
                changes=Changes(
                    max(telemetry.get("violations_span_s") or 0.0, live.LEAST_SPAN_S),
                    {"thermal": (telemetry.get("violations_s") or {}).get("thermal")},
                    lasting_clock_reasons=lasting,
                ),
            )
        )
    return Facts(devices=tuple(devices))


def _loaded(name: str) -> Condition:
    check = next(condition for condition in GPUS if condition.id == f"devices.{name}")
    judge_device = dict(checks.CHECKS)[check.id]

    def judge(evidence: Evidence) -> Signs | None:
        facts = _as_loaded(evidence)
        findings = [checks.finding_of(check.id, judge_device, device, facts) for device in facts.devices]
        return Signs.of([finding for finding in findings if finding is not None])

    return Condition(
        id=f"load.{name}",
        verdict=check.verdict,
        certainty=check.certainty,
        title=f"under load: {check.title}",
        meaning=f"gpucheck read this under one second of load. {check.meaning}",
        fix=check.fix,
        judge=judge,
    )


def _failed(evidence: Evidence) -> Signs | None:
    load = evidence.load
    return Signs(load.reason or "", {"error": load.reason}) if load is not None and load.outcome == "failed" else None


def _not_run(evidence: Evidence) -> Signs | None:
    if (load := evidence.load) is None:
        # If torch works, the user did not select the load.
        if evidence.torch_works or not any(gpu.nvml_index is not None for gpu in evidence.gpus):
            return None
        load = LoadResult("none", "torch did not run on a GPU, so no GPU was loaded", (), {})
    if load.outcome == "failed":
        return None
    reasons = dict(load.left_out)
    considered = {*reasons, *(loaded.device for loaded in load.cards)}
    # torch did not use the other GPUs: they are hidden, lost, or in MIG mode.
    for gpu in evidence.gpus:
        if gpu.nvml_index is not None and gpu.id not in considered:
            reasons[name_of(gpu)] = gpu.state or load.reason or "torch did not run on it"
    if not reasons and load.outcome == "ran":
        return None
    text = joined_messages(list(reasons.items()))
    return Signs(text or load.reason or "", {"left_out": dict(load.left_out), "reason": load.reason})


def _unread_load(evidence: Evidence) -> Signs | None:
    missing: dict[str, dict[str, str]] = {}
    for gpu in evidence.load.cards if evidence.load is not None else ():
        unknown = {"*": gpu.reason or ""} if gpu.telemetry is None else gpu.telemetry["unknown"]
        if unread := {name: why for name, why in unknown.items() if name == "*" or (name in READ and applies(why))}:
            missing[gpu.device] = unread
    text = [
        f"{gpu}: {', '.join(why if name == '*' else f'{name} ({why})' for name, why in names.items())}"
        for gpu, names in missing.items()
    ]
    return Signs("; ".join(text), {"unread": missing}) if missing else None


LOAD: tuple[Condition, ...] = (
    Condition(
        id="load.failed",
        title="the load test failed",
        meaning="One kernel ran, but 1 s of matrix products and copies failed: check the GPU, its power, the driver.",
        fix="sudo dmesg -T | grep -i xid",
        judge=_failed,
    ),
    *map(_loaded, ("throttled", "violations", "hot", "clock_setting", "low_clock", "link_width", "link_generation")),
    proof(
        id="load.not_run",
        verdict="skip",
        title="not every GPU was tested under load",
        meaning="gpucheck does not load a GPU that others use. If they keep it busy, it is judged under their load.",
        fix=f"{FIX['memory held']} shows which processes use it; run again when it is free",
        judge=_not_run,
    ),
    proof(
        id="load.unread",
        verdict="inconclusive",
        title="a GPU's state under load could not be read",
        meaning="The load ran, but NVML did not report all values that it supports for this GPU.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
        judge=_unread_load,
    ),
)
