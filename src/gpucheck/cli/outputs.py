"""Output files of a command, written through temporary files beside their targets.

The temporary files are created before the work starts, so that a bad path fails at once, and an old file survives until
the new file is complete. A command with several parts writes after each part, so that a kill loses at most one part.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck import errors
from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.report import Report, document

# Cause and fix if a file's text does not fit into memory, which is not a bug.
OUT_OF_MEMORY = "memory ran out on the host", "free memory and run it again"
Content = Callable[[Report], str | bytes]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A requested file. `formats` maps each suffix to a renderer. The umask applies to `mode`."""

    option: str
    path: str
    formats: Mapping[str, Content]
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write. `content` is the renderer for its suffix."""

    wanted: OutputFile
    target: Path
    temporary: Path
    content: Content

    def put(self, report: Report) -> None:
        """Write the temporary file and move it to the target. Raises OSError and MemoryError."""
        content = self.content(report)
        self.temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        # The umask cannot be read without setting it.
        os.umask(mask := os.umask(0o022))
        self.temporary.chmod(self.wanted.mode & ~mask)
        self.temporary.replace(self.target)


def formats() -> dict[str, Content]:
    """Return the renderer of each suffix."""
    from gpucheck.render import ci, html, prometheus, terminal, text

    return {
        ".json": document,
        ".html": html.document,
        ".xml": ci.junit,
        ".md": text.markdown_page,
        ".prom": prometheus.metrics,
        ".sarif": ci.sarif,
        ".svg": terminal.svg,
    }


class Outputs:
    """The files of `--output` and `extra_files`. Raises UsageError, and CannotLook for an unwritable file."""

    def __init__(self, paths: Sequence[str], extra_files: Sequence[OutputFile] = ()) -> None:
        self._files: list[Output] = []
        try:
            for wanted in (*(OutputFile("--output", path, formats()) for path in paths), *extra_files):
                self._files.append(_opened(wanted))
        except BaseException:  # even Ctrl-C must not leave temporary files behind
            self.discard()
            raise

    def update(self, report: Report) -> None:
        """Write the report so far. Ignore errors, which `write` reports at the end. Only `write` writes HTML pages and
        Prometheus files, because a monitor would take an unfinished run for a failed run."""
        for output in self._files:
            if output.target.suffix.lower() in (".prom", ".html"):
                continue
            with contextlib.suppress(OSError, MemoryError):
                output.put(report)
                # The next write needs the temporary file again.
                output.temporary.touch(mode=0o600, exist_ok=False)

    def write(self, report: Report) -> None:
        """Write every file to its target, even if another file fails. Raises CannotLook."""
        failed: list[CannotLook] = []
        for output in self._files:
            try:
                output.put(report)
            except (OSError, MemoryError) as error:
                what = f"{output.wanted.option} {str(output.target)!r} cannot be written"
                failed.append(CannotLook(what, *why(error)))
        self.discard()
        if failed:
            raise failed[0]

    def discard(self) -> None:
        for output in self._files:
            with contextlib.suppress(OSError):
                output.temporary.unlink()
            errors.temporary.discard(str(output.temporary))


def _opened(wanted: OutputFile) -> Output:
    target = Path(os.path.realpath(wanted.path))  # a symbolic link stays, and its target is written
    named, name = f"{wanted.option} {wanted.path!r}", Path(wanted.path).name.lower()
    suffix = next((end for end in wanted.formats if name.endswith(end) and name != end), None)
    if suffix is None:
        raise UsageError(f"{named} has an unknown format", "", f"end the name in {', '.join(wanted.formats)}")
    # Path.exists raises for unreadable folders and for long names, but os.path.exists does not.
    if os.path.exists(target) and not target.is_file():  # a rename would replace a device such as /dev/null
        raise UsageError(f"{named} is {'a folder' if target.is_dir() else 'not a regular file'}", "", "give a file")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise CannotLook(f"{named} cannot be written", "the file is read-only", "give another file")
    try:
        # In the target's folder, the final rename stays on one file system.
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        fix = "give a file in a folder that you can write to"
        raise CannotLook(f"{named} cannot be written", os.strerror(error.errno or 0), fix) from error
    errors.temporary.add(temporary)
    os.close(handle)
    return Output(wanted, target, Path(temporary), wanted.formats[suffix])


def why(error: OSError | MemoryError) -> tuple[str, str]:
    """Return the cause and the fix of a failed write."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    fix = "write to another folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free disk space and run it again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the folder writable"
    return os.strerror(error.errno) if error.errno else str(error), fix
