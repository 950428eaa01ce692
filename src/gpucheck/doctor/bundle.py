"""Write a bug report that can be judged without the machine. It contains only listed fields. No I/O.

The report has no free text: no messages, lines of the log, paths, command lines, or names of people and machines.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from typing import Any

from gpucheck.doctor.condition import Evidence
from gpucheck.report.codec import to_json
from gpucheck.report.report import Report

# The listed texts of the evidence, by path. `*` is any name. All numbers and booleans of a listed path are included.
LISTED = {
    "host": "system release architecture container nvidia_pci_addresses nvidia_device_nodes",
    "python": "version implementation",
    "torch": "version built_for toolkit_version git_version",
    "driver": "version cuda_version kernel_module_version nvml_version libcuda_version",
    **dict.fromkeys(("driver/xids", "driver/sxids"), "pci_address at action"),
    "devices": "kind id name pci_address state compute_capability vbios_version memory_source gsp_firmware_version "
    "recovery_action compute_mode",
    **dict.fromkeys((f"devices/{name}" for name in ("pcie", "ecc", "sram_ecc", "remapped_rows", "retired_pages")), ""),
    **dict.fromkeys((f"devices/{name}" for name in ("mig", "nvlinks", "nvlinks/errors", "violations_s")), ""),
    "devices/clock_reasons": "names",
    "devices/fabric": "state problems",
    "devices/changes": "lasting_clock_reasons",
    "stack": "modules built_for running",
    "stack/devices": "address device class_code driver",
    "stack/nodes": "path",
    **dict.fromkeys(("stack/libraries", "stack/path_libraries", "stack/stray_libraries"), "name version"),
    "probe": "stage python version cuda hip xpu other architectures cudnn_missing libcuda",
    "probe/capabilities": "*",
    "probe/versions": "*",
    "load": "outcome",
    "load/cards": "device",
    "findings": "id verdict device",
    "ladder": "first broken consequences",
    "ladder/rungs": "rung state",
}
# The form of a version, a name, a state, an address or a device node. No path, sentence or e-mail address matches.
_TEXT = re.compile(r"/dev/[a-z]+[\w-]*|[A-Za-z0-9][\w.:()+~-]*( [\w.()+-]+){0,7}")
# A variable's value is included if it is a number or a switch.
_SWITCH = re.compile(r"0x[0-9a-fA-F]+|[\d.,:;+-]{1,80}|true|false|all|none|void|PCI_BUS_ID|FASTEST_FIRST|LAZY|EAGER")
MOST_TEXT = 80
LEFT_OUT = "(left out)"
# Numbers that could identify a person, a machine or a process.
_PERSONAL = ("pid", "uid", "gid", "serial", "minor_number", "read_at_s")
# Names of variables about GPUs, drivers, the loader or Python. Other names are private.
_PUBLIC_NAME = re.compile(
    r"(?:CUDA|CUDNN|NVIDIA|NV_|NVML|NCCL|CUBLAS|PYTORCH|TORCH|TRITON|HIP|HSA|ROCR|ROCM|ROCBLAS|ZE_|SYCL|ONEAPI|OMP_|MKL_"
    r"|LD_|DYLD_|PYTHON|VIRTUAL_ENV|CONDA|XLA|TF_|CC$|CXX$|GPUCHECK|KUBERNETES_SERVICE_HOST$|SLURM_JOB_GPUS$|WSL_)\w*"
)
_DEVICE_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9A-Fa-f-]{4,36}\b")
_README = """Bug report by gpucheck {version}, {started}.

diagnosis.json contains the findings of `gpucheck doctor` and their evidence: versions, states and numbers of this
machine, its driver, its GPUs and its torch. It contains only listed fields: no messages, no paths, no names of people,
machines or processes, and no UUIDs or serial numbers. GPU variables are listed by name, with the value only if it is a
number or a switch. A text that is left out is "(left out)".

Please review it before you share it.
"""


def members(report: Report, evidence: Evidence | None) -> dict[str, str]:
    """Return the text of each file of the archive, by name. `evidence` is None if doctor failed while reading."""
    document = to_json(report)
    parts: dict[str, Any] = {"findings": document["findings"], "ladder": (document["results"] or {}).get("doctor")}
    if evidence is not None:
        facts = to_json(evidence.facts)
        parts |= {
            **{name: facts[name] for name in ("host", "python", "torch", "driver", "devices")},
            "stack": to_json(evidence.stack),
            "probe": to_json(evidence.torch),
            "load": to_json(evidence.load),
        }
    details: dict[str, Any] = {
        "gpucheck": report.gpucheck,
        "started": report.started,
        **{name: _listed(value, name) for name, value in parts.items()},
    }
    if evidence is not None:
        values = {name: _DEVICE_UUID.sub("0", value) for name, value in facts["environment"].items()}
        details["variables"] = {
            name: _text(values.get(name), _SWITCH)
            for name in sorted(evidence.variables | set(values))
            if _PUBLIC_NAME.fullmatch(name)
        }
        processes = [device.id or "hidden" for device in evidence.facts.devices for _ in device.processes or ()]
        details["processes"] = Counter(processes)
    return {
        "README.txt": _README.format(version=report.gpucheck, started=report.started),
        "diagnosis.json": json.dumps(details, indent=2, ensure_ascii=True, allow_nan=False) + "\n",
    }


def _listed(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_listed(item, path) for item in value]
    if not isinstance(value, dict):
        return None
    texts, details = LISTED[path].split(), {}
    for name, entry in value.items():
        if (below := f"{path}/{name}") in LISTED:
            details[name] = _listed(entry, below)
        elif name in texts or "*" in texts:
            details[name] = _text(entry)
        elif (entry is None or isinstance(entry, (bool, int, float))) and name not in _PERSONAL:
            details[name] = entry
    return details


def _text(value: Any, pattern: re.Pattern[str] = _TEXT) -> Any:
    if isinstance(value, list):
        return [text for text in (_text(item, pattern) for item in value) if text != LEFT_OUT]
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT and pattern.fullmatch(value) else LEFT_OUT
    return value


def packed(report: Report, evidence: Evidence | None) -> bytes:
    """Return the archive (.zip) without the names of the user, the machine and the folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members(report, evidence).items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, text)
    return buffer.getvalue()
