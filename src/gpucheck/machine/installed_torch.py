"""Read the build of the installed torch, list the devices that only torch shows, and import torch."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck import errors
from gpucheck.errors import CannotLook
from gpucheck.machine import child, child_protocol, device_lifetime, watchdog
from gpucheck.machine.child_stdio import claim_stdout
from gpucheck.machine.host import text_of
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device, TorchBuild
from gpucheck.report.fault import first_line

# Importing torch from a cold disk or a network file system takes up to a minute.
TIMEOUT_S = 60.0
# An assignment of a string or None in `version.py`, such as `cuda: Optional[str] = '12.8'`.
_ASSIGNED = re.compile(r"""^(\w+)(?: *:[^=\n]*)? *= *(?:(['"])(.*)\2|None)\s*(?:#.*)?$""", re.MULTILINE)


def read() -> TorchBuild:
    """Return the build of the torch that `import torch` would load here; all fields are None without torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a broken path hook, or a `torch` without a spec already in sys.modules
        spec = None
    return TorchBuild() if spec is None or spec.origin is None else from_folder(Path(spec.origin).parent)


def from_folder(folder: Path) -> TorchBuild:
    """Return the build of the torch in this package folder. Fields that `version.py` does not define are None."""
    values = {match[1]: match[3] for match in _ASSIGNED.finditer(text_of(folder / "version.py"))}
    if not {"__version__", "cuda"} <= values.keys():
        return TorchBuild(path=str(folder))
    toolkits = {"cuda": values.get("cuda"), "rocm": values.get("hip"), "xpu": values.get("xpu")}
    built_for = next((name for name, version in toolkits.items() if version), "cpu")
    return TorchBuild(
        version=values.get("__version__"),
        path=str(folder),
        built_for=built_for,
        toolkit_version=toolkits.get(built_for),
        git_version=values.get("git_version"),
    )


def load(budget_s: float | None = None) -> None:
    """Import torch into this process, within the command's time budget. Raises CannotLook if that is impossible."""
    # A KeyboardInterrupt in torch's compiled code aborts the process or becomes an ImportError, so signals wait until
    # the import ends. The second signal, or the first one after `patience_s`, ends the process at once.
    if "torch" in sys.modules:
        return
    if budget_s is not None:
        watchdog.ends_by(budget_s, time.monotonic())
    try:
        signals = child.signals_held(second_ends=True, patience_s=errors.patience_s)
        with watchdog.unbroken(), signals, device_lifetime.loading(is_ours=errors.began_s is not None):
            import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: ctypes cannot load one of torch's libraries
        raise CannotLook("torch cannot be imported", first_line(str(error)), "see `gpucheck doctor`") from error


class TorchDevices(NamedTuple):
    """The devices that torch lists, or the reason why they are unknown."""

    devices: tuple[Device, ...] = ()
    error: str | None = None


def could_see_another(build: TorchBuild) -> bool:
    return build.built_for in ("rocm", "xpu") or (sys.platform == "darwin" and build.version is not None)


def devices(timeout_s: float = TIMEOUT_S) -> TorchDevices:
    """Return the accelerators that only torch shows (ROCm, XPU, MPS). A child loads torch."""
    output = child_protocol.run(child.python_argv("gpucheck.machine.installed_torch"), timeout_s)
    if "devices" in output.merged:
        return TorchDevices(tuple(from_json(Device, row) for row in output.merged["devices"]))
    return TorchDevices(error=f"torch cannot be asked for its devices: {output.ending.in_words}")


def listed(torch: Any) -> list[dict[str, Any]]:
    """Return torch's accelerators as fields of Device."""
    # is_available() comes first, because torch 2.6's current_accelerator() raises without an accelerator.
    if not torch.accelerator.is_available():
        return []
    if (kind := torch.accelerator.current_accelerator().type) == "mps":
        source = "torch.mps (recommended maximum)"
        memory = {"memory_total_bytes": torch.mps.recommended_max_memory(), "memory_source": source}
        return [{"kind": kind, "id": kind, "name": "Apple GPU", "integrated": True, **memory}]
    module = torch.get_device_module(kind)
    rows = [(index, module.get_device_properties(index)) for index in range(module.device_count())]
    return [
        {
            "kind": kind,
            "id": f"{kind}:{index}",
            "name": getattr(properties, "name", None),
            "integrated": bool(getattr(properties, "is_integrated", False)),
            "multiprocessors": getattr(properties, "multi_processor_count", None),
            "memory_total_bytes": getattr(properties, "total_memory", None),
            "memory_source": f"torch.{kind}",
        }
        for index, properties in rows
    ]


def main() -> int:
    say = claim_stdout()
    import torch

    say({"devices": listed(torch)})
    return 0
