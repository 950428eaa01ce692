"""`--output FILE`: temporary files beside the targets, opened before anything is measured.

A bad path fails at once; the old file survives until the new one is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.report import Report


@dataclass(frozen=True, slots=True)
class Output:
    """One file to write: where, through which temporary file, and in which format."""

    target: Path
    temporary: Path
    suffix: str


def formats() -> dict[str, Callable[[Report], str]]:
    """Suffix → renderer. Imported late: a help page needs none of it."""
    from gpucheck.render import csv, json, junit, text

    return {".json": json.document, ".xml": junit.junit, ".md": text.markdown_page, ".csv": csv.rows}


def prepare(paths: Sequence[str]) -> list[Output]:
    """Temporary files for all targets. Raises UsageError for one that cannot be written; none is then left behind."""
    outputs: list[Output] = []
    try:
        for path in paths:
            outputs.append(_prepared(path))
    except BaseException:  # Ctrl-C too leaves nothing behind
        discard(outputs)
        raise
    return outputs


def _prepared(path: str) -> Output:
    target = Path(os.path.realpath(path))  # a link stays a link: what it points to is written
    known = formats()
    if Path(path).suffix.lower() not in known:
        raise UsageError(f"--output {path!r} has no known format", "", f"end it in {', '.join(known)}")
    if target.is_dir():
        raise UsageError(f"--output {path!r} is a folder", "", "name a file")
    if target.exists() and not os.access(target, os.W_OK):
        raise UsageError(f"--output {path!r} cannot be written", "the file is read-only", "name another file")
    try:
        # Beside the target, so that the rename at the end cannot cross file systems.
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UsageError(
            f"--output {path!r} cannot be written", os.strerror(error.errno or 0), "name a file in a folder of yours"
        ) from error
    return Output(target, Path(name), Path(path).suffix.lower())


def write(outputs: Sequence[Output], report: Report) -> None:
    """Write every output and put it in place. Raises CannotLook where there is no room or no right to.

    One that cannot be written does not cost the others.
    """
    known = formats()
    failed: list[CannotLook] = []
    for output in outputs:
        try:
            output.temporary.write_text(known[output.suffix](report), encoding="utf-8")
            output.temporary.chmod(0o666 & ~_umask())
            output.temporary.replace(output.target)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            fix = "make room and run it again" if error.errno == errno.ENOSPC else "see that the folder is writable"
            failed.append(CannotLook(f"--output {str(output.target)!r} could not be written", why, fix))
    discard(outputs)
    if failed:
        raise failed[0]


def discard(outputs: Sequence[Output]) -> None:
    """Remove temporary files that are still there."""
    for output in outputs:
        with contextlib.suppress(OSError):
            output.temporary.unlink(missing_ok=True)


def _umask() -> int:
    # There is no way to read it without setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
