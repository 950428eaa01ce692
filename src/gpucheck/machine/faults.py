"""Turn an exception into a fault (`device`, `memory` or `error`). No other module decides what an exception means.

If the exception's class and text do not decide, small kernels in a fresh process decide. A healthy GPU must not be
blamed for an invalid call of gpucheck, and a broken GPU must not look like a bug. This module does not import torch.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable
from pathlib import Path

import gpucheck
from gpucheck import messages
from gpucheck.errors import DeviceFailed, GpucheckError
from gpucheck.machine import child_protocol, device_lifetime
from gpucheck.machine.child import python_argv
from gpucheck.machine.child_protocol import ChildOutput
from gpucheck.machine.child_stdio import claim_stdout
from gpucheck.report.fault import Fault, FaultKind, first_line

# Importing torch from a cold disk takes up to a minute, and the first kernels load their libraries.
FRESH_TIMEOUT_S = 90.0
WORKS = "works"
# The side of a matrix of ones. Each element of the product of two of them equals the side, in any precision.
_SIDE = 64

# Packages in these folders are below Python's folder, but are no part of Python.
_OURS = Path(gpucheck.__file__).parent
_PYTHON, _INSTALLED = Path(os.__file__).parent, ("site-packages", "dist-packages")
# Bytecode instructions that raise an error of Python code or of Python itself. Other instructions call a library.
_RAISING = frozenset({"RAISE_VARARGS", "RERAISE", "FOR_ITER"})

# A function of the device's name. It returns WORKS, why the device fails, or None if unknown.
Ask = Callable[[str], str | None]


def of(error: BaseException, where: str, device: str | None, *, step: str = "", ask: Ask | None = None) -> Fault:
    """Return the fault of an exception in the command `where`. `ask` is called if the exception does not decide."""
    cause, raised, text = _cause_and_text(error)
    whose = cause and cause.whose
    kind: FaultKind
    fresh: str | None = None
    if isinstance(error, DeviceFailed):
        kind, device = "device", error.device or device
    elif whose in ("device", "setup"):
        kind = "device"
    elif whose == "memory":
        kind = "memory"
    else:
        # Only a RuntimeError can come from a device. The CPU is not broken, because it runs this program.
        if device not in (None, "cpu") and isinstance(error, RuntimeError):
            fresh = (ask or fresh_process)(device)
        kind = "error" if fresh in (None, WORKS) else "device"
        raised, text = type(error).__name__, str(error)
    if kind == "device" and not isinstance(error, GpucheckError):
        device_lifetime.lose(error, device)
    poisons = cause is not None and cause.poisons and kind == "device"
    return Fault(kind, where, device, raised, text, step, cause.id if cause else None, poisons, fresh)


def _cause_and_text(error: BaseException) -> tuple[messages.Cause | None, str, str]:
    """Return the cause of an exception, with the class and the text of the exception in its chain with this cause."""
    cause, link = messages.cause_in(messages.chain_of(error))
    if cause is None and isinstance(error, GpucheckError) and error.why:
        # A gpucheck error from another process has the original class and text only in its reason.
        name, _, text = error.why.partition(": ")
        is_class = text and name.replace(".", "").isidentifier()
        raised, text = (name, text) if is_class else ("", error.why)
        return messages.cause_of(error.why), raised.rpartition(".")[2], text
    shown = (type(error).__name__, str(error)) if cause is None else (link.classes[0].rpartition(".")[2], link.message)
    return cause, *shown


def is_device(error: GpucheckError) -> bool:
    """Return whether a gpucheck error came from a failed device. A device that cannot be used has not failed."""
    if isinstance(error, DeviceFailed):
        return True
    cause, _, _ = _cause_and_text(error)
    return cause is not None and cause.whose == "device"


def is_of_library(error: BaseException) -> bool:
    """Return whether torch or one of its libraries raised this error; otherwise it is a bug in gpucheck."""
    # torch's C++ raises RuntimeError without a frame, so the innermost frame is a call in gpucheck, not a `raise`. An
    # invalid call (`whose` is `program`) is a bug in gpucheck even if torch raises.
    trace = error.__traceback__
    if not isinstance(error, RuntimeError) or isinstance(error, RecursionError) or trace is None:
        return False
    cause, _, _ = _cause_and_text(error)
    if cause is not None and cause.whose == "program":
        return False
    if isinstance(error.__cause__, (StopIteration, StopAsyncIteration)):  # Python converts these in a generator
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code, at = trace.tb_frame.f_code, trace.tb_lasti
    file = Path(code.co_filename)
    if file.is_relative_to(_OURS):
        return next((step.opname for step in dis.get_instructions(code) if step.offset == at), "") not in _RAISING
    return not (file.is_relative_to(_PYTHON) and not any(name in file.parts for name in _INSTALLED))


def fresh_process(device: str) -> str | None:
    """Run small kernels in a fresh process. Return WORKS, why they fail, or None if the result proves nothing."""
    return read(child_protocol.run(python_argv("gpucheck.machine.faults", device), FRESH_TIMEOUT_S))


def read(output: ChildOutput) -> str | None:
    """Return the result of a fresh process. Full memory or a device in exclusive use proves nothing: None."""
    answer, ending = output.merged, output.ending
    if "ok" not in answer:
        # A process that ended before torch was loaded, or that was killed, proves nothing about the device.
        if not answer or ending.how == "killed":
            return None
        return f"no answer within {ending.limit_s:.0f} s" if ending.how == "late" else f"ended with {ending.status}"
    if answer["ok"]:
        return WORKS
    text = str(answer["text"])
    cause = messages.cause_of(text)
    return None if cause is not None and (cause.whose == "memory" or "busy or unavailable" in text) else text


def main() -> int:
    say = claim_stdout()
    import torch  # noqa: F401 - importing takes long and does not use the device

    say({"loaded": True})
    try:
        problem = _kernels(sys.argv[1])
    except Exception as error:  # noqa: BLE001 - every exception of torch and the driver is a result
        problem = first_line(error.why if isinstance(error, GpucheckError) else str(error)) or type(error).__name__
    say({"ok": problem is None, "text": problem})
    return 0


def _kernels(device_id: str) -> str | None:
    """Return the error of a sum, a product or a convolution of ones (each uses another library), or None."""
    import torch

    from gpucheck.machine import accel

    opened = accel.open_device(device_id)
    with opened.as_current():
        if (problem := opened.why_broken()) is not None:
            return problem
        square = torch.ones(_SIDE, _SIDE, device=opened.device)
        product = (square @ square).sum().item()
        image, kernel = torch.ones(1, 1, 8, 8, device=opened.device), torch.ones(1, 1, 3, 3, device=opened.device)
        convolved = torch.nn.functional.conv2d(image, kernel).sum().item()
        opened.synchronize()
    if product != _SIDE**3:
        return f"the sum of a product of ones is {product}, not {_SIDE**3}"
    # In an 8 × 8 image, a 3 × 3 kernel has 6 × 6 positions.
    return None if convolved == 36 * 9 else f"the sum of a convolution of ones is {convolved}, not {36 * 9}"
