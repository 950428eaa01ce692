"""A bug report that can be judged without the machine: listed fields, and nothing else. Pure.

It contains no free text: no messages of torch, lines of the kernel's log, paths, command lines, or names of people and
machines. Fields that are not listed here are left out.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from gpucheck.doctor.condition import Evidence
from gpucheck.report.codec import to_json
from gpucheck.report.report import Report

_ID = r"[a-z0-9_]+(\.[a-z0-9_]+)+"
_WORD = r"[A-Za-z0-9][\w.+~ -]{0,63}"
_VERSION = r"\d[\w.+-]{0,40}"
_NUMBERS = r"0x[0-9a-fA-F]+|[\d.,:;+-]{1,80}"
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.\d)?"
_NODE = r"/dev/(nvidia[\w-]*(/[\w-]+)?|dri/\w+|dxg|kfd|nvhost[\w-]*|nvmap)"
_MODULE = r"(nvidia|nouveau|nova|amdgpu|i915|xe|gdrdrv|vfio)[\w-]*"
_LIBRARY = r"lib[\w.+-]+"
_STATE = r"[a-z][a-z0-9 _-]{0,40}"

# Listed parts of the evidence, by path. Numbers and switches of a listed field are included, and texts that match its
# pattern. Lists are included item by item.
LISTED: dict[str, dict[str, str]] = {
    "host": {"system": _WORD, "release": _WORD, "architecture": _WORD, "container": _WORD, "nvidia_pci_addresses": _PCI,
             "nvidia_device_nodes": _NODE},
    "python": {"version": _VERSION, "implementation": _WORD},
    "torch": {"version": _VERSION, "built_for": _WORD, "toolkit_version": _VERSION, "git_version": r"[0-9a-f]{7,40}"},
    "driver": {"version": _VERSION, "cuda_version": _VERSION, "confidential_computing": _STATE,
               "kernel_module_version": _VERSION, "nvml_version": _VERSION, "libcuda_version": _VERSION},
    "driver/xids": {"pci_address": _PCI, "at": r"[\dT:.+Z-]+", "action": _STATE},
    "driver/sxids": {"pci_address": _PCI, "at": r"[\dT:.+Z-]+"},
    "devices": {"kind": _STATE, "id": r"[a-z]+(:\d+)?", "name": r"[\w .()/@+-]{1,80}", "pci_address": _PCI,
                "state": _STATE, "compute_capability": _NUMBERS, "vbios_version": _VERSION, "memory_source": _STATE,
                "gsp_firmware_version": _VERSION, "iommu": _STATE, "recovery_action": _STATE, "compute_mode": _STATE},
    **{f"devices/{name}": {} for name in ("pcie", "ecc", "sram_ecc", "remapped_rows", "remap_banks", "retired_pages",
                                          "mig", "nvlinks", "nvlinks/errors", "violations_s")},
    "devices/clock_reasons": {"names": _STATE},
    "devices/fabric": {"state": _STATE, "problems": _STATE},
    "devices/changes": {"lasting_clock_reasons": _STATE},
    "stack": {"modules": _MODULE, "built_for": _WORD, "running": _WORD},
    "stack/parameters": {"*": _NUMBERS},
    "stack/devices": {"address": _PCI, "device": r"[0-9a-fA-Fx:]+", "class_code": r"[0-9a-fA-Fx]+", "driver": _MODULE},
    "stack/nodes": {"path": _NODE},
    **{f"stack/{name}libraries": {"name": _LIBRARY, "version": _VERSION} for name in ("", "path_", "stray_")},
    "probe": {"stage": _STATE, "python": _VERSION, "version": _VERSION, "cuda": _VERSION, "hip": _VERSION,
              "xpu": _VERSION, "other": _STATE, "architectures": _WORD, "runtime": _VERSION, "cudnn_missing": _LIBRARY,
              "libcuda": _VERSION},
    "probe/capabilities": {"*": _NUMBERS},
    "probe/versions": {"*": _VERSION},
    "load": {"outcome": _STATE},
    "load/cards": {"device": r"[a-z]+(:\d+)?"},
    "findings": {"id": _ID, "verdict": _STATE, "device": r"[a-z]+(:\d+)?"},
    "ladder": {"first": _ID, "broken": _STATE, "consequences": _ID},
    "ladder/rungs": {"rung": _STATE, "state": _STATE},
    "variables": {"*": rf"{_NUMBERS}|true|false|all|none|void|PCI_BUS_ID|FASTEST_FIRST|LAZY|EAGER"},
}  # fmt: skip
# Numbers that identify people or processes. They say nothing about a GPU.
_NOT_TOLD = ("pid", "uid", "gid", "serial", "minor_number", "read_at_s")
# Names of variables about GPUs, drivers, the loader or Python. Other names are private.
_CONCERNS = re.compile(
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
    """Return the archive's files, names to texts. `evidence` is None if doctor failed before reading it."""
    document = to_json(report)
    parts: dict[str, Any] = {"findings": document["findings"], "ladder": (document["results"] or {}).get("doctor")}
    if evidence is not None:
        facts = to_json(evidence.facts)
        parts |= {name: facts[name] for name in ("host", "python", "torch", "driver", "devices")}
        parts |= {"stack": to_json(evidence.stack), "probe": to_json(evidence.torch), "load": to_json(evidence.load)}
        values = facts["environment"]
        parts["variables"] = {
            name: _DEVICE_UUID.sub("0", values[name]) if name in values else None
            for name in sorted(evidence.variables | set(values))
            if _CONCERNS.fullmatch(name)
        }
    details: dict[str, Any] = {"gpucheck": report.gpucheck, "started": report.started}
    details |= {name: _listed(value, name) for name, value in parts.items()}
    if evidence is not None:
        processes = [device.id or "hidden" for device in evidence.facts.devices for _ in device.processes or ()]
        details["processes"] = Counter(processes)
    return {
        "README.txt": _README.format(version=report.gpucheck, started=report.started),
        "diagnosis.json": json.dumps(details, indent=2, ensure_ascii=True, allow_nan=False) + "\n",
    }


def _listed(value: Any, path: str) -> Any:
    """Return the listed parts of `value`, which has the given path."""
    if isinstance(value, list):
        return [_listed(item, path) for item in value]
    if not isinstance(value, dict):
        return None
    texts, details = LISTED[path], {}
    for name, entry in value.items():
        below = f"{path}/{name}"
        if below in LISTED:
            details[name] = _listed(entry, below)
        elif name in texts or "*" in texts:
            details[name] = _text(entry, texts.get(name) or texts["*"])
        elif (entry is None or isinstance(entry, (bool, int, float))) and name not in _NOT_TOLD:
            details[name] = entry
    return details


def _text(value: Any, pattern: str) -> Any:
    if isinstance(value, list):
        return [row for row in (_text(each, pattern) for each in value) if row != "(left out)"]
    if isinstance(value, str):
        return value if re.fullmatch(pattern, value) else "(left out)"
    return value


# -- the file ----------------------------------------------------------------------------------------------------------


def packed(report: Report, evidence: Evidence | None) -> bytes:
    """Return the archive (.zip). It does not contain the user's name, the machine or the folder."""
    when = datetime.fromisoformat(report.started.replace("Z", "+00:00")).astimezone(timezone.utc)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members(report, evidence).items():
            entry = zipfile.ZipInfo(name, when.timetuple()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, text)
    return held.getvalue()
