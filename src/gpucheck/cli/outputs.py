"""`--output FILE` and what else a command writes: temporary files beside the targets, opened before all else.

A bad path fails at once; the old file survives until the new one is whole. A command of several parts writes after
each, so that a kill costs the last one at most.
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
from gpucheck.report.report import Report

# Why, and what to do, where the text of a file does not fit into memory: the machine's want, and no bug.
OUT_OF_MEMORY = "memory ran out on the host", "free memory and run it again"
Content = Callable[[Report], str | bytes]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that an option asks for: its formats by suffix, each a function of the report, and its rights.

    What the umask takes away it takes from `mode` too.
    """

    option: str
    path: str
    formats: Mapping[str, Content]
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class Output:
    """One file to write: where, through which temporary file, and how its content is made."""

    wanted: Wanted
    target: Path
    temporary: Path
    content: Content

    def put(self, report: Report) -> None:
        """Write the file whole and put it in the place of the old one. Raises OSError and MemoryError."""
        made = self.content(report)
        if isinstance(made, bytes):
            self.temporary.write_bytes(made)
        else:
            self.temporary.write_text(made, encoding="utf-8")
        # There is no way to read the mask without setting it.
        os.umask(mask := os.umask(0o022))
        self.temporary.chmod(self.wanted.mode & ~mask)
        self.temporary.replace(self.target)


def formats() -> dict[str, Callable[[Report], str]]:
    """Suffix → renderer. Imported late: a help page needs none of it."""
    from gpucheck.render import ci, csv, html, prometheus, terminal, text
    from gpucheck.report.report import document

    return {
        ".json": document,
        ".html": html.document,
        ".xml": ci.junit,
        ".md": text.markdown_page,
        ".csv": csv.rows,
        ".prom": prometheus.metrics,
        ".sarif": ci.sarif,
        ".svg": terminal.svg,
    }


class Outputs:
    """The files of a command: those of `--output`, and those that stand `beside` them.

    Raises UsageError for an unknown format or what is not a file, CannotLook for a file that cannot be written; none is
    then left behind.
    """

    def __init__(self, paths: Sequence[str], beside: Sequence[Wanted] = ()) -> None:
        self._files: list[Output] = []
        try:
            for wanted in (*(Wanted("--output", path, formats()) for path in paths), *beside):
                self._files.append(_opened(wanted))
        except BaseException:  # Ctrl-C too leaves nothing behind
            self.discard()
            raise

    def update(self, report: Report) -> None:
        """Write what there is so far. What cannot be written now is tried again, and told, at the end.

        A monitor's file waits for the end: it would take half a run for one that failed. So does a page.
        """
        for output in self._files:
            if output.target.suffix.lower() in (".prom", ".html"):
                continue
            with contextlib.suppress(OSError, MemoryError):
                output.put(report)
                # The next one goes the same way: the name is taken again at once, and from nobody.
                output.temporary.touch(mode=0o600, exist_ok=False)

    def write(self, report: Report) -> None:
        """Write every file and put it in place. Raises CannotLook where there is no room, no right to or no memory.

        One that cannot be written does not cost the others.
        """
        failed: list[CannotLook] = []
        for output in self._files:
            try:
                output.put(report)
            except (OSError, MemoryError) as error:
                name = f"{output.wanted.option} {str(output.target)!r}"
                failed.append(CannotLook(f"{name} cannot be written", *why(error)))
        self.discard()
        if failed:
            raise failed[0]

    def discard(self) -> None:
        """Remove temporary files that are still there."""
        for output in self._files:
            with contextlib.suppress(OSError):
                output.temporary.unlink(missing_ok=True)
            errors.temporary.discard(str(output.temporary))


def _opened(wanted: Wanted) -> Output:
    target = Path(os.path.realpath(wanted.path))  # a link stays a link: what it points to is written
    named, name = f"{wanted.option} {wanted.path!r}", Path(wanted.path).name.lower()
    suffix = next((end for end in wanted.formats if name.endswith(end) and name != end), None)
    if suffix is None:
        raise UsageError(f"{named} has an unknown format", "", f"end the name in {', '.join(wanted.formats)}")
    # A Path raises where it may not look, and for a name that is too long.
    if os.path.exists(target) and not target.is_file():  # the rename would take the place of a device as /dev/null
        raise UsageError(f"{named} is {'a folder' if target.is_dir() else 'no file'}", "", "give a file")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise CannotLook(f"{named} cannot be written", "the file is read-only", "give another file")
    try:
        # Beside the target, so that the rename at the end cannot cross file systems.
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        fix = "give a file in a folder that you can write to"
        raise CannotLook(f"{named} cannot be written", os.strerror(error.errno or 0), fix) from error
    errors.temporary.add(temporary)
    os.close(handle)
    return Output(wanted, target, Path(temporary), wanted.formats[suffix])


def why(error: OSError | MemoryError) -> tuple[str, str]:
    """Return what kept a file from being written, and what to do."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    fix = "write it to another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free disk space and run it again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the folder writable"
    return os.strerror(error.errno) if error.errno else str(error), fix
