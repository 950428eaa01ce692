"""Keep a lost device's memory from being freed, and end its process. Loads no torch.

Pinned memory that a non-blocking copy has used records an event when it is freed, as does device memory that another
stream has used. On a lost device the event fails in a C++ destructor: the process is aborted, and the report is lost.

This module therefore owns such memory, and releases it only right after a wait for the device that raised no error.
Once the device is lost nothing is freed, and the process ends without the cleanup of Python and C++.
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


# The owned objects by device, and the errors of lost devices with the objects in their frames. "" is any device.
_OWNED: dict[str, list[object]] = {}
_LOST: dict[str, list[BaseException]] = {}
_ANY = ""


def own(thing: _T, device: str = _ANY) -> _T:
    """Keep pinned memory, or device memory that another stream will use.

    It is kept until `settle` has waited for `device`; without a device, until it has waited for any devices.
    """
    _OWNED.setdefault(device, []).append(thing)
    return thing


def settle(*devices: Waitable, error: BaseException | None = None) -> None:
    """Wait for the devices. Unless that raises, release the objects owned for them, and those in frames of `error`."""
    for device in devices:
        try:
            device.synchronize()
        except RuntimeError as failed:
            lose(failed, device.id)
            raise
    if error is not None:
        _clear(error)
        # Reference cycles of frames and errors would be freed at an arbitrary later time.
        gc.collect()
    was_lost = is_lost()
    for name in (*(device.id for device in devices), _ANY):
        # A device that answers is not lost, whatever error a library reported.
        _LOST.pop(name, None)
        _OWNED.pop(name, None)
    if was_lost and not is_lost():
        gc.unfreeze()


def begin(device: Waitable) -> None:
    """Begin work on a device: release the objects that an earlier command in this process has left."""
    if _OWNED or _LOST:
        settle(device)


def _clear(error: BaseException) -> None:
    cleared: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in cleared:
            continue
        cleared.add(id(link))
        waiting += [link.__cause__, link.__context__]
        trace = link.__traceback__
        while trace is not None:
            with contextlib.suppress(RuntimeError):  # the frame is still running
                trace.tb_frame.clear()
            trace = trace.tb_next


def record_error(error: BaseException, device: str | None = None) -> bool:
    """Record an error. Return whether the device may be lost by it: any error of the device counts until `settle`."""
    from gpucheck import messages  # imported late, because children must start fast and few have an error

    cause, _ = messages.cause_in(messages.chain_of(error))
    is_of_device = cause is not None and cause.whose == "device"
    if is_of_device:
        lose(error, device)
    return is_of_device


def lose(error: BaseException, device: str | None = None) -> None:
    """Record that this process has lost a device: keep the error with its frames, and free nothing any more."""
    # Existing reference cycles are never searched again.
    gc.freeze()
    _LOST.setdefault(device or _ANY, []).append(error)
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        # Another reference lets these objects outlive this module at the interpreter's end.
        for kept in (_OWNED, _LOST):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@contextlib.contextmanager
def loading(*, is_ours: bool = True) -> Iterator[None]:
    """Turn the garbage collector off while an import creates many lasting objects."""
    # A process of gpucheck (`is_ours`) never scans these objects: a scan at its end would take as long as the import.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_ours:
            gc.freeze()
        if was_on:
            gc.enable()


def is_lost() -> bool:
    return bool(_LOST)


def leave(code: int) -> NoReturn:
    """End the children, then this process: flush its streams, but free nothing and run no `atexit` function."""
    children = sys.modules.get("gpucheck.machine.child")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for pid, state in [] if children is None else children.end_all():
            sys.stderr.write(f"gpucheck: process {pid} could not be ended (state {state}) and is left\n")
    for stream in (sys.stdout, sys.stderr):
        # The reader of the stream may be gone.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Wrap all work of a process and its `sys.exit`. Once it has lost its device, it ends without freeing anything."""
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
