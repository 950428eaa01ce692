"""Keep a lost device's memory from being freed, and end its process. Loads no torch.

Pinned memory that a non-blocking copy has used records an event when it is freed, and so does a device's memory that
another stream has used. On a device that is lost this fails in a C++ destructor, where nothing can catch it: the
process is aborted, and the report with it. An error of a kernel may even come up there first. Therefore such memory is
owned here from its allocation on and let go only right after the device was waited for without an error. Once the
device is lost nothing is freed any more, and the process ends without Python's and C++'s own clearing up.
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
    """A device, as far as it is asked here: an `Accel`."""

    @property
    def id(self) -> str: ...

    def synchronize(self) -> None:
        """Wait until it has done all that it was asked. Raises what torch raises."""
        ...


# By devices: what is owned, and the errors that lost one, with all that their frames hold. "" is one that is not known.
_OWNED: dict[str, list[object]] = {}
_LOST: dict[str, list[BaseException]] = {}
_ANY = ""


def own(thing: _T, device: str = _ANY) -> _T:
    """Keep pinned memory, or a device's that another stream will use, until `settle`. Called as it is allocated.

    What is owned for no device by name is let go with whichever settles first: where one is at work at a time.
    """
    _OWNED.setdefault(device, []).append(thing)
    return thing


def settle(*devices: Waited, error: BaseException | None = None) -> None:
    """Wait for the devices, and let go of all that is owned for them; of what the frames of `error` hold as well.

    Where waiting raises, that is raised on, and nothing is let go.
    """
    for device in devices:
        try:
            device.synchronize()
        except RuntimeError as failed:
            lose(failed, device.id)
            raise
    if error is not None:
        _clear(error)
        # What frames and errors hold in a circle would be freed at any later time.
        gc.collect()
    was_lost = is_lost()
    for name in (*(device.id for device in devices), _ANY):
        # One that answers is not lost, whatever a library called its error.
        _LOST.pop(name, None)
        _OWNED.pop(name, None)
    if was_lost and not is_lost():
        gc.unfreeze()


def begin(device: Waited) -> None:
    """Work on a device begins: what an earlier command in this process has left is let go, if it can be."""
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
    """Take note of an error; whether it may have left this process without its device: nothing is freed then.

    It is enough that the device raised it, since not every one says that it stays: `settle` finds out.
    """
    from gpucheck import messages  # children start on the user's clock, and few meet an error

    cause, _ = messages.cause_in(messages.chain_of(error))
    is_of_device = cause is not None and cause.whose == "device"
    if is_of_device:
        lose(error, device)
    return is_of_device


def lose(error: BaseException, device: str | None = None) -> None:
    """A device is lost to this process: keep the error with its frames, and free nothing any more."""
    # What lies in circles is not looked for again.
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
    """While much is made that stays, as by an import of torch: the collector of cycles does not walk over it again and
    again. With `is_ours`, for a process of gpucheck's own, it never does, nor as that ends, which would take as long as
    the import."""
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
    """Around all that a process does, its `sys.exit` included: it ends as is right for what became of its device."""
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
