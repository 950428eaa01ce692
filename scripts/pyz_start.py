"""The start of gpucheck.pyz: it unpacks itself once, for this user and this system, and runs what it has unpacked."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import IO

ARCHIVE = os.path.dirname(os.path.abspath(__file__))
# The last file that is written; what lacks it was cleared up in part, as by a cleaner of /tmp.
MARK = "complete"
# How long a start waits for another one that unpacks, in seconds. Then it does so as well: the first may be stopped.
WAIT_S = 30.0
# Remains of a killed start on another machine, of which nothing else is known, are removed after so many seconds.
ABANDONED_S = 3600.0
# gpucheck's packages are compiled as they are unpacked; what few commands need, at its first import.
COMPILED = ("app/", "lib/typer/", "lib/rich/", "lib/psutil/")


def start(name: str) -> int:
    """Run the command line. `name` is the version and the hash of what is in the file."""
    try:
        if sys.argv[1:] == ["--version"]:
            import hashlib

            with open(ARCHIVE, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            print(f"gpucheck {name.partition('-')[0]} ({ARCHIVE}, sha256 {digest})")
            return 0
        folder = _folder(f"{name}-{system()}")
    except KeyboardInterrupt:
        return 130
    if folder is None:
        return 3
    sys.path[:] = [os.path.join(folder, "app"), *(one for one in sys.path if os.path.abspath(one) != ARCHIVE)]
    from gpucheck.__main__ import main

    return main()


def system() -> str:
    """The name of this system, by which compiled code is chosen: `linux-x86_64-glibc`."""
    if sys.platform == "win32":
        machine = "arm64" if "arm64" in sys.version.lower() else "amd64" if sys.maxsize > 2**32 else "x86"
        return f"win32-{machine}"
    machine = os.uname().machine if sys.maxsize > 2**32 else f"{os.uname().machine}-32"
    if sys.platform != "linux":
        return f"{sys.platform}-{machine}"
    libc = "musl"
    with contextlib.suppress(ValueError, OSError):  # another C library knows no such name
        libc = "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else libc
    return f"linux-{machine}-{libc}"


def _folder(name: str) -> str | None:
    """The folder with all that is in the file; None where it cannot be made, which is told."""
    places = list(dict.fromkeys(map(os.path.normpath, _places())))
    for place in places:
        folder = os.path.join(place, name)
        if _refusal(place) is None and _refusal(folder) is None and os.path.exists(os.path.join(folder, MARK)):
            _hold(folder)
            return folder
    reasons = []
    for place in places:
        try:
            with contextlib.suppress(FileExistsError):
                os.makedirs(place, 0o700)
            why = _refusal(place) or _unpacked(place, name)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
        except (EOFError, ValueError, _damage()) as error:
            sys.stderr.write(f"error: {ARCHIVE} is damaged\ncause: {error}\n  fix: copy the file again\n")
            return None
        if why is None:
            return os.path.join(place, name)
        reasons.append(f"{place}: {why}")
    fix = "set TMPDIR to a folder of yours that is not mounted noexec, with 30 MB free"
    sys.stderr.write(f"error: {ARCHIVE} cannot unpack itself\ncause: {'; '.join(reasons)}\n  fix: {fix}\n")
    return None


def _damage() -> type[Exception]:
    import zipfile  # late: it takes longer to load than the rest of a start

    return zipfile.BadZipFile


def _places() -> Iterator[str]:
    """The folders to unpack into, the best first: the user's cache, then private ones beside temporary files."""
    user = str(os.geteuid()) if hasattr(os, "geteuid") else "user"
    for variable in ("LOCALAPPDATA",) if os.name == "nt" else ("XDG_CACHE_HOME",):
        if os.path.isabs(os.environ.get(variable, "")):
            yield os.path.join(os.environ[variable], "gpucheck")
    # Without HOME it is what the system's list of users says; an empty one would be the root of all files.
    home = "" if os.environ.get("HOME") == "" else os.path.expanduser("~")
    with contextlib.suppress(OSError):
        # sudo may leave HOME as it was: what root writes there is in the user's way.
        if os.path.isabs(home) and (os.name == "nt" or os.stat(home).st_uid == os.geteuid()):
            yield os.path.join(home, *(("Library", "Caches") if sys.platform == "darwin" else (".cache",)), "gpucheck")
    variables = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    for folder in (*variables, *(("/tmp", "/var/tmp", "/dev/shm") if os.name == "posix" else ())):
        if os.path.isdir(folder) and os.path.isabs(folder):
            yield os.path.join(folder, f"gpucheck-{user}")


def _refusal(folder: str) -> str | None:
    """Why nothing is run from a folder: somebody else may write to it, or nothing in it may be run."""
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode):
            return "it is a link or a file"
        if os.name == "posix":
            if found.st_uid != os.geteuid():
                return "it belongs to another user"
            if found.st_mode & 0o022:
                return "other users may write to it"
            if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
                return "its file system is mounted noexec"
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None


def _unpacked(place: str, name: str) -> str | None:
    """Unpack into a folder beside, and give it its name once it is whole; why not. Raises OSError."""
    final, mine = os.path.join(place, name), f"{_host()}.{os.getpid()}.part"
    part = os.path.join(place, f".{name}.{mine}")
    umask = os.umask(0o077)
    try:
        with open(os.path.join(place, ".lock"), "ab") as file:
            if not _locked(file, os.path.join(final, MARK)):
                _hold(final)
                return _refusal(final)  # another start has unpacked meanwhile
            _write(part, final)
            if os.path.lexists(final):  # parts of it were cleared up, or it is no folder
                os.rename(final, f"{part}.old")
            os.rename(part, final)
            _hold(final)
            _tidy(place, name)
    except FileExistsError:  # without a lock, another start has come first
        pass
    finally:
        os.umask(umask)
        _remove(part)
    return _refusal(final)


def _locked(file: IO[bytes], mark: str) -> bool:
    """Wait until no other start unpacks here; False where one has done all of it."""
    until = time.monotonic() + WAIT_S
    while True:
        locked = _flock(file.fileno(), exclusive=True)
        if os.path.exists(mark):
            return False
        if locked or time.monotonic() > until:
            return True
        time.sleep(0.05)


def _flock(number: int, *, exclusive: bool) -> bool:
    """Lock an open file; True also where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(number, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _write(part: str, final: str) -> None:
    """Write the files of this system, compiled for this Python as they will lie in `final`. Raises OSError."""
    import py_compile
    import zipfile

    with zipfile.ZipFile(ARCHIVE) as outer:
        payload = zipfile.ZipFile(io.BytesIO(outer.read("payload.zip")))
    native = f"native/{system()}/"
    for name in payload.namelist():
        if name.startswith("native/") and not name.startswith(native):
            continue
        inside = f"lib/{name.removeprefix(native)}" if name.startswith(native) else name
        path = os.path.join(part, inside)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(payload.read(name))
        if inside.endswith(".py") and inside.startswith(COMPILED):
            mode = py_compile.PycInvalidationMode.TIMESTAMP
            py_compile.compile(path, dfile=os.path.join(final, inside), invalidation_mode=mode, quiet=2)
    if not any(name.startswith(native) for name in payload.namelist()):
        import shutil

        # The environment's own is used, else the sentence says that it is missing.
        shutil.rmtree(os.path.join(part, "lib", "psutil"))
    with open(os.path.join(part, MARK), "wb"):
        pass


def _hold(folder: str) -> None:
    """Keep a folder in use until this process ends: a later version does not remove it meanwhile."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        first = os.open(os.path.join(folder, MARK), os.O_RDONLY)
        # Standard streams that are closed keep their numbers.
        _flock(fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 10), exclusive=False)
        os.close(first)


def _tidy(place: str, name: str) -> None:
    """Remove other versions for this system that nobody runs, and remains of starts that were killed."""
    for other in os.listdir(place):
        path = os.path.join(place, other)
        if other.startswith(".") and ".part" in other:
            with contextlib.suppress(OSError):
                if f".{_host()}." in other or time.time() - os.stat(path).st_mtime > ABANDONED_S:
                    _remove(path)
        elif other != name and other.count("-") >= 2 and other.endswith(f"-{system()}"):
            with contextlib.suppress(OSError), open(os.path.join(path, MARK), "rb") as mark:
                if _flock(mark.fileno(), exclusive=True):
                    # At once no start finds it any more.
                    os.rename(path, os.path.join(place, f".{other}.{_host()}.{os.getpid()}.part"))
                    _remove(os.path.join(place, f".{other}.{_host()}.{os.getpid()}.part"))


def _host() -> str:
    import socket

    return socket.gethostname()


def _remove(path: str) -> None:
    if os.path.lexists(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
