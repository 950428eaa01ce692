"""One question to NVML and what becomes of it: a value that can be true, or the reason why there is none.

For the children that read NVML; `pynvml` is handed to everything here.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any

from gpucheck.machine.nvml import fields

# nvmlReturn_t of nvml.h: why a field is not told. A code that is not here is told in nvidia-ml-py's words.
REASONS = {
    2: "NVML does not take this question for this device (invalid argument)",
    3: "not supported by this device or driver",
    4: "no permission",
    8: "the GPU's power cable is not connected",
    11: "the GPU's interrupts do not arrive",
    13: "the driver's NVML has no such function",
    15: "the device is lost",
    16: "the device needs a reset",
    999: "NVML returns: unknown error",
}
STATES = {8: "no power", 11: "no interrupts", 15: "lost", 16: "reset required"}
# The state of a card that a container's or a scheduler's rules keep from us.
NOT_ACCESSIBLE = "not accessible here (no permission)"
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 7, 12, 13, 25
# What a converter raises for an answer of another shape than NVML's.
MISSHAPEN = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
NO_SUCH_CALL = "this nvidia-ml-py has no "
SENSELESS = "NVML's answer makes no sense"
ECC_OFF = "ECC is off: nothing is counted"
OTHER_STRUCT = "the driver's NVML has another version of this structure"


def applies(reason: str) -> bool:
    """Return whether a question that was refused for this reason has an answer on this device: it is then not known."""
    codes = (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    told = (*(REASONS[code] for code in codes), ECC_OFF, OTHER_STRUCT)
    return reason not in told and not reason.startswith(NO_SUCH_CALL)


class Refused(Exception):
    """A question that got no value: NVML's return code (None where it was not NVML that refused) and the reason."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def refusal(pynvml: Any, code: int) -> Refused:
    """Return what NVML's return code says."""
    return Refused(REASONS.get(code) or f"NVML returns: {pynvml.NVMLError(code)}", code)


def call(pynvml: Any, function: str, *arguments: object, **named: object) -> Any:
    """Call a function of nvidia-ml-py. Raises Refused for everything that is no answer."""
    function_of = getattr(pynvml, function, None)
    if function_of is None:
        raise Refused(f"{NO_SUCH_CALL}{function}", FUNCTION_NOT_FOUND)
    try:
        return function_of(*arguments, **named)
    except pynvml.NVMLError as error:
        raise refusal(pynvml, error.value) from error
    except UnicodeDecodeError as error:
        raise Refused("NVML's text cannot be read") from error


def filled(pynvml: Any, handle: Any, struct: str, function: str) -> Any:
    """A struct of nvidia-ml-py, filled by one of its functions. Raises Refused."""
    made = getattr(pynvml, struct, None)
    if made is None:
        raise Refused(f"{NO_SUCH_CALL}{struct}", FUNCTION_NOT_FOUND)
    info = made()
    call(pynvml, function, handle, byref(info))
    return info


def ask(pynvml: Any, handle: Any, field: fields.Field) -> Any:
    """The field's value in SI units. Raises Refused, also for a value that cannot be."""
    last = None
    for one in field.calls:
        try:
            answer = call(pynvml, one.function, handle, *one.arguments)
            return checked(field.sound, field.convert(answer))
        except fields.NotTold as error:
            raise Refused(str(error)) from error
        except fields.CodeAnswered as error:
            raise refusal(pynvml, error.code) from error
        except MISSHAPEN as error:
            raise Refused(SENSELESS) from error
        except Refused as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            last = error
    assert last is not None
    raise last


def checked(sound: fields.Sound, value: Any) -> Any:
    """The value where it can be true. Raises Refused."""
    if not sound(value):
        raise Refused(f"{SENSELESS}: {str(value)[:40]!a}")
    return value


class Row:
    """The known values of one device so far: its fields, why others are not known, and the state that the reasons
    show."""

    def __init__(self, **known: object) -> None:
        self.device: dict[str, Any] = {"kind": "cuda", **known}
        self.unknown: dict[str, str] = {}

    def refuse(self, name: str, refused: Refused) -> None:
        """The field has no value; a lost device also gets its state."""
        self.unknown[name] = refused.reason
        state = STATES.get(refused.code or 0)
        # Lost outweighs everything: what it answers later does not bring it back.
        if state and self.device.get("state") != "lost":
            self.device["state"] = state

    def put(self, name: str, value: object) -> None:
        """Set the field `name`, or `group/name`."""
        group, _, member = name.rpartition("/")
        (self.device.setdefault(group, {}) if group else self.device)[member] = value

    def read(self, pynvml: Any, handle: Any, table: tuple[fields.Field, ...]) -> None:
        """Ask for each field on its own."""
        for field in table:
            try:
                self.put(field.name, ask(pynvml, handle, field))
            except Refused as refused:
                self.refuse(field.name, refused)
