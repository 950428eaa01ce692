"""Keep a lost device's memory from being freed, and end its process. Loads no torch.

Pinned memory that a non-blocking copy has used records an event when it is freed, and so does a device's memory that
another stream has used. The event fails on a lost device in a C++ destructor, where nothing can catch it: the process
is aborted, and the report with it. An error of a kernel may even come up there first. This module therefore owns such
memory from its allocation on and lets go of it only right after the device was waited for without an error. Nothing is
freed any more once the device is lost, and the process ends without the cleanup of Python and C++.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import NoReturn, Protocol, TypeVar

_T = TypeVar("_T")


class Waited(Protocol):
    """The part of a device that this module uses: an `Accel`."""

    @property
    def id(self) -> str: ...

    def synchronize(self) -> None:
        """Wait until it has done all that it was asked. Raises what torch raises."""
        ...


# The owned objects by device, and the errors that lost one, with all that their frames hold. "" is an unknown device.
_OWNED: dict[str, list[object]] = {}
_LOST: dict[str, list[BaseException]] = {}
_ANY = ""


def own(thing: _T, device: str = _ANY) -> _T:
    """Keep pinned memory, or a device's that another stream will use, until `settle`. Call it right after the
    allocation.

    Objects that are owned for no named device are let go with whichever device settles first: name none only where one
    device is at work at a time.
    """
    _OWNED.setdefault(device, []).append(thing)
    return thing


def settle(*devices: Waited, error: BaseException | None = None) -> None:
    """Wait for the devices, and let go of all that is owned for them and of all that the frames of `error` hold.

    An error of the wait is passed on, and nothing is let go.
    """
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


def begin(device: Waited) -> None:
    """Begin work on a device: let go of what an earlier command in this process has left, if that is possible."""
    if _OWNED or _LOST:
        settle(device)


def _clear(error: BaseException) -> None:
    """Let go of what the frames of an error, and of those that it came from, hold."""
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
            with contextlib.suppress(RuntimeError):  # a frame that is still running
                trace.tb_frame.clear()
            trace = trace.tb_next


def saw(error: BaseException, device: str | None = None) -> bool:
    """Take note of an error; return whether it may have cost this process its device, so that nothing is freed.

    An error that the device raised is enough, since not every one says that it is permanent: `settle` finds out.
    """
    from gpucheck import messages  # the user waits for children to start, and few meet an error

    cause, _ = messages.cause_in(messages.chain_of(error))
    is_of_device = cause is not None and cause.whose == "device"
    if is_of_device:
        lose(error, device)
    return is_of_device


def lose(error: BaseException, device: str | None = None) -> None:
    """A device is lost to this process: keep the error with its frames, and free nothing any more."""
    # Existing reference cycles are never searched again.
    gc.freeze()
    _immortal(_OWNED)
    _immortal(_LOST)
    _LOST.setdefault(device or _ANY, []).append(error)


def _immortal(thing: object) -> None:
    """Give an object one owner more, who never lets go: it outlives this module at the interpreter's end."""
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@contextlib.contextmanager
def loading(*, is_ours: bool = True) -> Iterator[None]:
    """Turn the cycle collector off while many lasting objects are made, as by an import of torch, so that it does not
    search them again and again. `is_ours` is for a process of gpucheck: it never searches these objects, not
    even at its end, where the search would take as long as the import."""
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
    """End this process with what it has printed, and without freeing anything: no clearing up, no atexit.

    Its children are ended first, with a bounded wait; one that cannot be is named on stderr.
    """
    children = sys.modules.get("gpucheck.machine.child")
    left = [] if children is None else children.end_all()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for pid, state in left:
            sys.stderr.write(f"gpucheck: process {pid} could not be ended (state {state}) and is left\n")
    for stream in (sys.stdout, sys.stderr):
        # Nobody may read it any more.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Wrap all that a process does, its `sys.exit` included: the process ends in the way that suits the state of its
    device."""
    try:
        yield
    except SystemExit as ended:
        if is_lost():
            leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except Exception as error:
        if not saw(error) and not is_lost():
            raise
        import traceback

        traceback.print_exception(error)
        leave(1)
