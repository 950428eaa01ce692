"""The commands devices, doctor, smoke, stress and explain. Each prepares its input and starts a session."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from gpucheck import options
from gpucheck.cli.commands import Common
from gpucheck.errors import UsageError
from gpucheck.options import words

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.devices.options import DevicesOptions
    from gpucheck.doctor.condition import Evidence
    from gpucheck.doctor.options import DoctorOptions
    from gpucheck.report.events import Emit
    from gpucheck.smoke.options import SmokeOptions
    from gpucheck.stress.options import StressOptions

_FIX = 'give an error message in quotes, an ID or a file: gpucheck explain "CUDA out of memory"'
# PowerShell redirects output as UTF-16 with a byte order mark at the start.
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    text: tuple[str, ...] = words(
        "An error message, a traceback, an ID, or a log file. Without TEXT, read standard input from a pipe or "
        "file; with -, also from a terminal.",
        name="TEXT",
        metavar="[TEXT | ID | FILE | -]",
    )
    list_all: bool = options.list_all("IDs with their titles")


def devices(common: Common, options: DevicesOptions) -> int:
    if options.watch_s is not None and (common.json or common.output):
        why = "--json and --output write one result"
        raise UsageError("--watch refreshes the screen", why, "omit one of them")
    from gpucheck.machine.child import LIBCUDA_READER, NVML_READER, PreloadedChildren
    from gpucheck.machine.host import sleeping

    # The readers start first, because loading them takes as long as loading the rest. macOS has no NVIDIA driver.
    readers = (NVML_READER, LIBCUDA_READER) if sys.platform != "darwin" and not sleeping() else ()
    with PreloadedChildren(*readers) as ahead:
        from gpucheck.cli import session
        from gpucheck.devices.command import command

        def read(emit: Emit) -> None:
            command(options, emit, ahead=ahead)

        return session.run(common, read) if options.watch_s is None else session.watch(common, read, options.watch_s)


def doctor(common: Common, options: DoctorOptions) -> int:
    from gpucheck.cli import session

    evidence: list[Evidence] = []  # empty if the command ends before it has read the machine
    files = []
    if options.bundle:
        from gpucheck.cli.outputs import OutputFile
        from gpucheck.doctor import bundle

        formats = {".zip": lambda report: bundle.packed(report, evidence[0] if evidence else None)}
        files = [OutputFile("--bundle", options.bundle, formats, mode=0o600)]

    def diagnose(emit: Emit) -> None:
        from gpucheck.doctor.command import command
        from gpucheck.report.events import Notice

        evidence.append(command(options, emit))
        if files:
            emit(Notice(f"{options.bundle} contains only listed fields; review it before you share it"))

    return session.run(common, diagnose, files)


def smoke(common: Common, options: SmokeOptions) -> int:
    from gpucheck.cli import session

    def check(emit: Emit) -> None:
        from gpucheck.machine import installed_torch

        installed_torch.load(options.time_budget_s)  # after this import, Ctrl-C gives a report
        from gpucheck.smoke.command import command

        command(options, emit)

    return session.run(common, check)


def stress(common: Common, options: StressOptions) -> int:
    from gpucheck.cli import session
    from gpucheck.stress.judge import judge

    def load(emit: Emit) -> None:
        from gpucheck.stress.command import command  # imports torch

        command(options, emit)

    return session.run(common, load, judge=judge)


def explain(common: Common, options: ExplainOptions) -> int:
    from gpucheck.cli import session

    argument = " ".join(options.text)
    if options.list_all and argument:
        raise UsageError("--list takes no TEXT", "", "omit one of them")
    # Empty arguments are an error. Without arguments, the text comes from the pipe.
    has_pipe = sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    if not options.list_all and not argument.strip() and (options.text or not has_pipe):
        raise UsageError("no text to explain", "", _FIX)

    def answer(emit: Emit) -> None:
        from gpucheck.explain import command

        if options.list_all:
            command.listing(emit)
        elif argument in ("", "-") or (argument.lower() not in command.entries() and os.path.isfile(argument)):
            text, cut_from_bytes = _end_of(argument if argument != "-" else "")
            command.explain(text, emit, cut_from_bytes)
        elif argument.lower() in command.entries():
            command.page(argument.lower(), emit)
        elif os.path.isdir(argument):
            raise UsageError(f"{argument!r} is a folder", "", _FIX)
        elif command.is_missing_file(argument):
            raise UsageError(f"the file {argument!r} does not exist", "", _FIX)
        elif command.is_id(argument):
            command.word(argument.lower(), emit)
        else:
            command.explain(argument, emit)

    return session.run(common, answer)


def _end_of(path: str) -> tuple[str, int | None]:
    """Return the end of a text, and its size in bytes if it was cut, else None. An empty `path` is standard input."""
    from gpucheck.explain.command import MOST_BYTES

    name = repr(path) if path else "standard input"
    if not path and sys.stdin is None:
        raise UsageError("standard input is closed", "", _FIX)
    if not path and sys.stdin.isatty():
        print("paste the text, then press Ctrl-D on an empty line (Windows: Ctrl-Z, Enter)", file=sys.stderr)
    try:
        with open(path, "rb") if path else contextlib.nullcontext(sys.stdin.buffer) as stream:
            first, last, total = read_end(stream, MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{name} cannot be read", os.strerror(error.errno or 0), _FIX) from error
    text = decoded(last, first)
    if not text.strip():
        raise UsageError(f"{name} is empty", "", _FIX)
    return text, total if total > len(last) else None


def read_end(stream: IO[bytes], most: int) -> tuple[bytes, bytes, int]:
    """Return the first bytes, the last `most` bytes and the total size. Keep at most about `2 * most` in memory."""
    first, last, total = b"", bytearray(), 0
    while chunk := stream.read(2**16):
        first = first or chunk[:4]
        total += len(chunk)
        last += chunk
        if len(last) > 2 * most:
            del last[:-most]
    return first, bytes(last[-most:]), total


def decoded(data: bytes, first: bytes = b"") -> str:
    """Decode bytes: UTF-16 after a byte order mark, else UTF-8. Invalid bytes become U+FFFD."""
    encoding = next((name for mark, name in _MARKS.items() if first.startswith(mark)), "utf-8")
    return data.decode(encoding, "replace").removeprefix("\ufeff")
