"""Keep a lost device's memory from being freed, and end its process. This module does not load torch.

torch records an event when it frees pinned memory after a non-blocking copy, or device memory that another stream has
used. On a lost device the event fails in a C++ destructor, which aborts the process with its report.

This module therefore owns such memory. It releases the memory only directly after a wait for the device without an
error. If the device is lost, nothing is freed, and the process ends without the cleanup of Python and C++.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import NoReturn, Protocol, TypeVar

_T = TypeVar("_T")


class Waitable(Protocol):
    """The members of an `Accel` that this module and `watchdog` use."""

    @property
    def id(self) -> str: ...
    @property
    def is_cpu(self) -> bool: ...
    def synchronize(self) -> None: ...


# The owned objects by device, and the errors of lost devices, whose frames refer to more objects. "" is any device.
_OWNED: dict[str, list[object]] = {}
_LOST: dict[str, list[BaseException]] = {}
_ANY = ""


def own(memory: _T, device: str = _ANY) -> _T:
    """Own pinned memory, or device memory that another stream will use, until `settle` has waited for `device`.

    Without `device`, a wait for any device is enough.
    """
    _OWNED.setdefault(device, []).append(memory)
    return memory


def settle(*devices: Waitable, error: BaseException | None = None) -> None:
    """Wait for the devices. After a wait without error, release their objects and those in the frames of `error`."""
    for device in devices:
        try:
            device.synchronize()
        except RuntimeError as failed:
            lose(failed, device.id)
            raise
    if error is not None:
        _clear(error)
        # Without a collection, reference cycles of frames and errors would be freed at an arbitrary later time.
        gc.collect()
    was_lost = is_lost()
    for name in (*(device.id for device in devices), _ANY):
        # A device that answers is not lost, even if a library reported an error.
        _LOST.pop(name, None)
        _OWNED.pop(name, None)
    if was_lost and not is_lost():
        gc.unfreeze()


def begin(device: Waitable) -> None:
    """Release the objects of earlier commands in this process, before work on the device begins."""
    if _OWNED or _LOST:
        settle(device)


def _clear(error: BaseException) -> None:
    cleared: set[int] = set()
    remaining: list[BaseException | None] = [error]
    while remaining:
        if (link := remaining.pop()) is None or id(link) in cleared:
            continue
        cleared.add(id(link))
        remaining += [link.__cause__, link.__context__]
        trace = link.__traceback__
        while trace is not None:
            with contextlib.suppress(RuntimeError):  # the frame is still running
                trace.tb_frame.clear()
            trace = trace.tb_next


def record_error(error: BaseException, device: str | None = None) -> bool:
    """Return whether this is an error of the device. If so, the device counts as lost until `settle`."""
    from gpucheck import messages  # imported late, because children must start fast and few children have an error

    cause, _ = messages.cause_in(messages.chain_of(error))
    is_of_device = cause is not None and cause.whose == "device"
    if is_of_device:
        lose(error, device)
    return is_of_device


def lose(error: BaseException, device: str | None = None) -> None:
    """Record a lost device with the error that shows the loss. From now on nothing is freed."""
    # The garbage collector never searches the existing objects again.
    gc.freeze()
    _LOST.setdefault(device or _ANY, []).append(error)
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        # With another reference these objects outlive this module at the interpreter's end.
        for objects in (_OWNED, _LOST):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


@contextlib.contextmanager
def loading(*, is_ours: bool = True) -> Iterator[None]:
    """Turn the garbage collector off while the block creates many permanent objects."""
    # In a process of gpucheck (`is_ours`) they are never scanned. A scan would take as long as an import of torch.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_ours:
            gc.freeze()
        if was_enabled:
            gc.enable()


def is_lost() -> bool:
    return bool(_LOST)


def leave(code: int) -> NoReturn:
    """End the children, then this process. The streams are flushed, but no memory is freed and no `atexit` runs."""
    children = sys.modules.get("gpucheck.machine.child")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for pid, state in [] if children is None else children.end_all():
            sys.stderr.write(f"gpucheck: process {pid} could not be ended and still runs (state {state})\n")
    for stream in (sys.stdout, sys.stderr):
        # The process that reads the stream may have ended.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Wrap all work of a process and its `sys.exit`. After the loss of a device, the process frees nothing."""
    try:
        yield
    except SystemExit as ended:
        if is_lost():
            leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except Exception as error:
        if not record_error(error) and not is_lost():
            raise
        import traceback

        traceback.print_exception(error)
        leave(1)
