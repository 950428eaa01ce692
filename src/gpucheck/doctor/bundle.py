"""What a bug report needs so that another can judge without the machine: texts for an archive, redacted. Pure."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from gpucheck.doctor import redact
from gpucheck.doctor.catalogue import CONDITIONS
from gpucheck.doctor.condition import RUNGS
from gpucheck.doctor.evidence import Evidence
from gpucheck.doctor.redact import Redactor
from gpucheck.machine.identity import Identity
from gpucheck.machine.inventory import VARIABLES
from gpucheck.machine.kernel_driver import DeviceNode, DriverState
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Report

# Of a log that one error fills: how it began and how it is now. What is longer takes seconds to redact.
FIRST_LINES, LAST_LINES = 500, 1500
# Names of variables that concern a GPU, a driver, a loader or Python; the names of others are nobody's business.
_CONCERNS = re.compile(
    r"(?:CUDA|CUDNN|NVIDIA|NV_|NVML|NCCL|CUBLAS|PYTORCH|TORCH|TRITON|HIP|HSA|ROCR|ROCM|ROCBLAS|ZE_|SYCL|ONEAPI|OMP_|MKL_"
    r"|LD_|DYLD_|PYTHON|VIRTUAL_ENV|CONDA|XLA|TF_|CC$|CXX$|GPUCHECK|KUBERNETES_SERVICE_HOST$|SLURM_JOB_GPUS$|WSL_)"
)
# Words that evidence is made of beside the names of its fields: a user may be called so.
_WORDS = """
admin administrator aarch64 accelerate amd64 anaconda apt bash bin bus cache card cards clang code compat conda
container core cores cuda cudnn darwin data daemon debian default dev device devices disk docker driver drivers
error etc fabric fedora file files generic gcc gnu gpu gpus graphics guest home host hybrid intel iommu kernel kmod
lib lib64 libcuda libraries library linux local localhost log login mac machine manager mask memory miniconda mode
module modules nccl network node nodes none nouveau null nvidia nvlink nvml nvswitch open opt package packages pci
persistence pip podman proc process processes program project pytest python python3 pytorch reset root run scratch
server service shell site source src srv state system temp test tester tests tmp tool tools torch torchaudio
torchvision triton true false ubuntu unknown user username users usr utf value var venv video version virtual
warning windows work worker workspace wsl x86_64 xid
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What was read for a bundle: the doctor's evidence, the driver's own files, and what must not be told of it.

    `evidence` is None where the doctor did not come so far. `environment` are all variables with their values, to be
    looked for and taken out.
    """

    evidence: Evidence | None = None
    state: DriverState = field(default_factory=DriverState)
    identity: Identity = field(default_factory=Identity)
    environment: Mapping[str, str] = field(default_factory=dict)


def members(report: Report, held: Held, shown: Callable[[Report], str]) -> dict[str, str]:
    """The files of the archive, names to texts. `shown` renders a report as plain text.

    The text is made of the redacted report: what is wrapped or cut in a table could not be found in it any more.
    """
    redactor = Redactor(held.identity, held.environment, keep=VARIABLES, common=vocabulary() | _of_this_machine(report))
    document = to_json(report)
    evidence = None if held.evidence is None else to_json(_concerning(held.evidence))
    state = to_json(held.state)
    for part in (document, evidence, state):
        redactor.learn(part)
    document, evidence, state = (redactor.tree(part) for part in (document, evidence, state))
    told = from_json(DriverState, state)
    texts = {
        "report.txt": shown(from_json(Report, document)),
        "report.json": _json(document),
        "evidence.json": _json(evidence),
        "driver-files.txt": _files(told),
        "device-nodes.txt": "".join(f"{_listed(node)}\n" for node in told.nodes) or "no device nodes of a GPU\n",
        "kernel-log.txt": _log(evidence),
        "processes.txt": _processes(document),
        "variables.txt": _variables(evidence),
    }
    texts = {name: redactor.text(text) if name.endswith(".txt") else text for name, text in texts.items()}
    return {"README.txt": _readme(document, texts), **texts}


def vocabulary() -> frozenset[str]:
    """Words that a report has anyway: of a user or a variable that is called so, it tells nothing."""
    found = set(_WORDS.split()) | set(RUNGS)
    for kind in (Report, Evidence):
        found |= _field_names(kind, set())
    for condition in CONDITIONS:
        found |= {condition.id, *re.findall(r"\w+", f"{condition.id} {condition.title} {condition.fix}")}
    parts = {part for name in found for part in re.split(r"[_.]", name)}
    return frozenset(word.lower() for word in found | parts if word)


def _of_this_machine(report: Report) -> frozenset[str]:
    """Words that its devices and its system are called by: a machine is often named after its GPU."""
    host = report.facts.host
    names = [device.name for device in report.facts.devices]
    names += [] if host is None else [host.system, host.release, host.architecture]
    return frozenset(word.lower() for name in names for word in re.findall(r"\w+", name or ""))


def _field_names(kind: Any, seen: set[Any]) -> set[str]:
    """Names of all fields of a dataclass and of those in it."""
    if kind in seen:
        return set()
    seen.add(kind)
    if not is_dataclass(kind):
        return {name for part in typing.get_args(kind) for name in _field_names(part, seen)}
    hints = typing.get_type_hints(kind)
    return {name for member in fields(kind) for name in (member.name, *_field_names(hints[member.name], seen))}


def _concerning(evidence: Evidence) -> Evidence:
    """The evidence without variables that concern no GPU, and without the middle of a very long log."""
    log = evidence.stack.log
    if log is not None and len(log) > FIRST_LINES + LAST_LINES:
        left_out = f"[{len(log) - FIRST_LINES - LAST_LINES} lines left out here]"
        log = (*log[:FIRST_LINES], left_out, *log[-LAST_LINES:])
    variables = frozenset(filter(_CONCERNS.match, evidence.variables))
    return replace(evidence, variables=variables, stack=replace(evidence.stack, log=log))


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _files(state: DriverState) -> str:
    """The driver's own files one after another, as `head` shows several."""
    parts = [f"==> {path} <==\n{text.rstrip()}\n" for path, text in state.files.items()]
    parts += [f"==> {path} <==\nnot readable: {why}\n" for path, why in state.refused.items()]
    return "\n".join(parts) or "no files of NVIDIA's driver in /proc and /sys\n"


def _listed(node: DeviceNode) -> str:
    numbers = "" if node.major is None else f" {node.major}, {node.minor}"
    return f"{node.mode} {node.uid}:{node.gid}{numbers} {node.path}"


def _log(evidence: Any) -> str:
    stack = (evidence or {}).get("stack") or {}
    if stack.get("log") is None:
        return f"not readable: {stack.get('log_error') or 'it was not read'}\n"
    return "".join(f"{line}\n" for line in stack["log"]) or "no line about NVIDIA's driver\n"


def _processes(document: Any) -> str:
    """Processes on the GPUs, a line for each; a device whose processes are not known says so."""
    lines = []
    for device in document["facts"]["devices"]:
        if device["kind"] == "cpu":
            continue
        name = device["id"] or device["uuid"] or device["name"]
        if not device["processes"]:
            lines.append(f"{name}: {'not known' if device['processes'] is None else 'none'}")
        for process in device["processes"] or ():
            memory = process["used_memory_bytes"]
            told = "memory not known" if memory is None else f"{memory} bytes"
            lines.append(
                f"{name}: PID {process['pid']} {process['kind']} {process['name'] or 'name not known'}, {told}"
            )
    return "".join(f"{line}\n" for line in lines) or "no GPU is seen\n"


def _variables(evidence: Any) -> str:
    """Variables that concern a GPU: of those on the list the value, of the others the name."""
    if evidence is None:
        return "not read\n"
    values = evidence["facts"]["environment"]
    lines = [f"{name}={value}" for name, value in values.items()]
    lines += [f"{name} is set" for name in evidence["variables"] if name not in values]
    return "".join(f"{line}\n" for line in lines) or "no variable that concerns a GPU is set\n"


_CONTENTS = {
    "report.txt": "the diagnosis, as gpucheck doctor shows it",
    "report.json": "the same as one document (gpucheck schema describes it)",
    "evidence.json": "what the diagnosis was made of: machine, driver, libraries found, torch's own answer",
    "driver-files.txt": "what NVIDIA's kernel modules show in /proc and /sys",
    "device-nodes.txt": "device nodes with their rights and owners",
    "kernel-log.txt": "the kernel's lines about the driver",
    "processes.txt": "processes on the GPUs",
    "variables.txt": "variables that concern a GPU; values of a fixed list alone",
}


def _readme(document: Any, texts: Mapping[str, str]) -> str:
    found = redact.counts(list(texts.values()))
    width = max(len(name) for name in _CONTENTS)
    lines = [
        f"A bug report by gpucheck {document['gpucheck']}, {document['started']}.",
        "",
        "Please look through these files before you send them: names, addresses and secrets were",
        "replaced as far as they can be told from other text, and that is not all that may be private.",
        "",
        "Inside:",
        *(f"  {name:<{width}}  {what}" for name, what in _CONTENTS.items()),
        "",
        "Replaced, always by the same placeholder for the same thing:",
        *(
            f"  {redact.KINDS[kind]}: {different} in {places} place{'' if places == 1 else 's'}"
            for kind, (different, places) in found.items()
        ),
        *([] if found else ["  nothing"]),
        "",
        "<$NAME> stands for the value of the variable NAME, ~ for the home folder.",
        "",
    ]
    return "\n".join(lines)
