"""Memory that a lost device must not free: a finalizer that ends the process once the device is lost stands for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucheck.machine import device_lifetime

ABORTED = -6

# A device whose loss is known to the finalizers of what was pinned for it, as it is to CUDA's.
STAND_INS = """
import os, sys
from gpucheck.machine import device_lifetime

class Device:
    id = "cuda:0"
    lost = False
    def synchronize(self):
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

device = Device()

class Pinned:
    def __del__(self):
        if Device.lost:
            os.abort()
        os.write(2, b"released\\n")
"""


class Well:
    """A device that answers."""

    id = "cuda:0"
    is_cpu = False

    def synchronize(self) -> None: ...


class Gone(Well):
    """A device that was lost."""

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Memory:
    """What is owned."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    device_lifetime.settle(Well())
    gc.unfreeze()


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """A process that runs `program` after the stand-ins."""
    root = str(Path(device_lifetime.__file__).resolve().parents[2])
    text = f"import sys; sys.path.insert(0, {root!r})\n{STAND_INS}{textwrap.dedent(program)}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=env)


def test_a_lost_device_frees_nothing_up_to_the_end() -> None:
    found = ended("""
        import atexit
        atexit.register(lambda: os.write(2, b"atexit\\n"))

        def work():
            pinned = device_lifetime.own(Pinned(), device.id)
            temporary = Pinned()  # nobody owns it: the frame that the error keeps does
            Device.lost = True
            device.synchronize()

        with device_lifetime.ending():
            try:
                work()
            except RuntimeError as error:
                assert device_lifetime.record_error(error, device.id)
            print("the report")
            sys.exit(7)
    """)
    assert (found.returncode, found.stdout, found.stderr) == (7, "the report\n", "")


def test_an_error_that_nobody_caught_is_told_and_frees_nothing() -> None:
    found = ended("""
        def work():
            pinned = Pinned()
            Device.lost = True
            device.synchronize()

        with device_lifetime.ending():
            sys.exit(work())
    """)
    assert found.returncode == 1
    assert found.stderr.endswith("RuntimeError: CUDA error: an illegal memory access was encountered\n")


def test_python_ends_as_ever_where_the_program_is_not_ours() -> None:
    found = ended("""
        pinned = device_lifetime.own(Pinned(), device.id)
        Device.lost = True
        try:
            device.synchronize()
        except RuntimeError as error:
            device_lifetime.lose(error, device.id)
        del pinned
        print("the report")
    """)
    assert (found.returncode, found.stdout, found.stderr) == (0, "the report\n", "")


def test_after_a_good_wait_all_is_released() -> None:
    found = ended("""
        def work():
            device_lifetime.own(Pinned(), device.id)
            device_lifetime.own(Pinned())

        work()
        os.write(2, b"waits\\n")
        device_lifetime.settle(device)
        os.write(2, b"waited\\n")
    """)
    assert (found.returncode, found.stderr) == (0, "waits\nreleased\nreleased\nwaited\n")


def test_a_closed_stdout_does_not_change_the_exit_status() -> None:
    found = ended("""
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
        print("nobody reads this")
        device_lifetime.leave(1)
    """)
    assert (found.returncode, found.stderr) == (1, "")


def test_children_are_ended_before_the_process() -> None:
    found = ended("""
        from gpucheck.machine.child import LineChild
        child = LineChild([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        device_lifetime.leave(1)
    """)
    assert found.returncode == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.stdout), 0)


def test_nothing_is_released_where_waiting_fails() -> None:
    memory = Memory()
    seen = weakref.ref(device_lifetime.own(memory, "cuda:0"))
    del memory
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device_lifetime.settle(Gone())
    assert seen() is not None and device_lifetime.is_lost()


def test_one_device_does_not_release_what_another_owns() -> None:
    memory = Memory()
    seen = weakref.ref(device_lifetime.own(memory, "cuda:1"))
    del memory
    device_lifetime.settle(Well())
    assert seen() is not None
    other = Well()
    other.id = "cuda:1"
    device_lifetime.settle(other)
    assert seen() is None


@pytest.mark.slow
def test_an_error_that_is_over_lets_go_of_what_its_frames_hold() -> None:
    def fails() -> None:
        memory = Memory()
        device_lifetime.own(memory, "cuda:0")
        seen.append(weakref.ref(memory))
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError from error

    seen: list[weakref.ref[Memory]] = []
    with pytest.raises(ValueError) as caught:
        fails()
    assert seen[0]() is not None
    device_lifetime.settle(Well(), error=caught.value)
    assert seen[0]() is None


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("CUDA error: unknown error"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: invalid argument"), False),
        (ValueError("CUDA error: unspecified launch failure"), False),
    ],
)
def test_what_a_device_raised_is_told_from_the_rest(error: Exception, lost: bool) -> None:
    assert (device_lifetime.record_error(error), device_lifetime.is_lost()) == (lost, lost)


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_is_loaded_is_never_collected_in_a_process_of_ours_alone(is_ours: bool) -> None:
    gc.enable()  # a command that ran in this process before may have left it off
    before = gc.get_freeze_count()
    with device_lifetime.loading(is_ours=is_ours):
        assert not gc.isenabled()
        with device_lifetime.loading(is_ours=is_ours):
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    assert (gc.get_freeze_count() > before) is is_ours
