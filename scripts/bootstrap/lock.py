"""One at a time: the lock on preparing, and the mark that a layer is in use."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from typing import Iterator, Tuple

from .common import Trouble, say

WAITING = "waiting: another start is preparing the environment"
RETRY_S = 0.2  # Windows alone, which has no lock that waits for long; nobody notices a fifth of a second here


@contextmanager
def locked(folder: str) -> Iterator[Tuple[int, ...]]:
    """Hold the lock in `folder`, waiting for whoever has it. Yields the descriptors to hand to children.

    The system frees the lock when all who hold it are gone, so none is ever left behind. Children that write into a
    layer inherit it: when a start is killed, the next one waits until the pip it left running has ended too."""
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise Trouble(
            "{} cannot be written ({}); move the checkout to a folder that can.".format(folder, error.strerror)
        ) from None
    try:
        if sys.platform == "win32":
            _lock_windows(lock)
            yield ()
        else:
            _lock_posix(lock)
            yield (lock,)
    finally:
        os.close(lock)


def _lock_posix(lock: int) -> None:
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(WAITING)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        say("this file system has no locks: let one start at a time prepare the environment")


def _lock_windows(lock: int) -> None:
    import msvcrt
    import time

    told = False
    while True:
        try:
            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            return
        except OSError:
            if not told:
                say(WAITING)
                told = True
            time.sleep(RETRY_S)


def mark_in_use(folder: str) -> None:
    """Keep the layer from being removed for as long as this process lives, also after it has become the command: a
    shared lock on its stamp. On Windows the system refuses to remove a running program as it is."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        stamp = os.open(os.path.join(folder, "ready.json"), os.O_RDONLY)
        fcntl.flock(stamp, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # no locks on this file system, or being removed this moment: the command may still work
        return
    os.set_inheritable(stamp, True)


def in_use(folder: str) -> bool:
    """Whether a command runs in this layer."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        stamp = os.open(os.path.join(folder, "ready.json"), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(stamp)
    return False
