"""torch's own report, read in a child of the interpreter that is diagnosed: a torch that hangs is the patient.

The child runs `torch_probe_child.py`, which needs nothing but the standard library and Python 3.8; this is the parent's
side and the data that comes of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpucheck.machine import child, talk
from gpucheck.machine.child import Cut
from gpucheck.machine.talk import Ending, Heard, Line
from gpucheck.report.codec import from_json

PROGRAM = Path(__file__).with_name("torch_probe_child.py")
# Importing torch takes two seconds from a warm disk and a minute from a cold network one.
TIMEOUT_S = 120.0
# An interpreter answers in well under a second; one on a cold network file system takes some.
_ANSWERS_S = 20.0


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel on one of torch's devices: what was raised, None where the result was right."""

    device: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TorchProbe:
    """The report of the diagnosed interpreter and its torch. None is not known, mostly because an earlier step failed.

    `stage` is the last step that began: `start`, `find`, `import`, `ask`, `run`, `end`; `error` what ended it early, or
    `timed_out`, after `limit_s` seconds for all steps together. `not_awaited` is why it was given up before that, which
    says nothing of torch: its answer had become pointless, or its process was ended from outside; `unstarted` why the
    interpreter cannot be started. `active_elsewhere` is the variable that names another active environment than this
    interpreter's. `versions` are those of installed distributions by name, several for one that is installed twice.
    `shadowed_by` are files in the current folder that hide torch or a module of the standard library. `other` is an
    accelerator that is none of CUDA's, `xpu` or `mps`. `warnings` are what torch printed while it was asked.
    `foreign_libraries` are CUDA's libraries that were loaded from elsewhere although the environment has its own, or
    should have, `foreign_folders` the entries of LD_LIBRARY_PATH by which they were found. `runtime` is the version of
    the libcudart that is loaded, `cudnn_missing` are parts of the loaded cuDNN that the loader will not find.
    `missing_files` are libraries that installed packages (`NAME==VERSION`) recorded and that are gone, `unmet` the
    packages that torch asks for in exactly one version, with the one that is there; None for none. `externally_managed`
    is whether the interpreter is the system's own, which pip may not change; `torch_folders` are all torches on its
    path, the one that is imported first, `pythonpath_torch` the entries of PYTHONPATH by which any is found;
    `conda_torch` is the version of a torch that conda has on record beside one that pip installed. `has_compiler` and
    `cache_has_libcuda` are what triton looks for.
    """

    stage: str = "start"
    error: str | None = None
    timed_out: bool = False
    not_awaited: str | None = None
    unstarted: str | None = None
    limit_s: float | None = None
    executable: str | None = None
    python: str | None = None
    prefix: str | None = None
    active_elsewhere: str | None = None
    versions: Mapping[str, tuple[str, ...]] | None = None
    path: str | None = None
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    shadowed_by: tuple[str, ...] = ()
    available: bool | None = None
    count: int | None = None
    other: str | None = None
    other_count: int | None = None
    warnings: tuple[str, ...] = ()
    architectures: tuple[str, ...] | None = None
    capabilities: Mapping[str, str] | None = None
    names: Mapping[str, str] | None = None
    foreign_libraries: tuple[str, ...] = ()
    foreign_folders: tuple[str, ...] = ()
    runtime: str | None = None
    cudnn_missing: tuple[str, ...] = ()
    missing_files: Mapping[str, tuple[str, ...]] | None = None
    unmet: Mapping[str, str | None] | None = None
    libcuda: str | None = None
    kernels: tuple[KernelRun, ...] = ()
    externally_managed: bool | None = None
    has_pip: bool | None = None
    torch_folders: tuple[str, ...] = ()
    pythonpath_torch: tuple[str, ...] = ()
    conda_torch: str | None = None
    has_compiler: bool | None = None
    cache_has_libcuda: bool | None = None
    import_s: float | None = None


# What any Python since 2.0 prints of itself, and no other program.
_WHICH = "import sys; sys.stdout.write('python %d %d' % sys.version_info[:2])"


def python_version(python: str) -> tuple[int, int] | None:
    """The version of an interpreter, for one that the probe did not come to a word in; None for no Python."""
    found = child.run([python, "-c", _WHICH], _ANSWERS_S)
    match = re.fullmatch(r"python (\d+) (\d+)", found.stdout.strip())
    return (int(match[1]), int(match[2])) if match else None


def probe(
    python: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    cut: Cut | None = None,
) -> TorchProbe:
    """Ask the torch of `python` (this interpreter without it), until `cut` if another thread sets it."""
    # As a user's own process starts it: with the current folder on the path, where a stray file may shadow torch.
    argv = [python or sys.executable, "-c", PROGRAM.read_text(encoding="utf-8")]
    return replace(read(talk.run(argv, timeout_s, env=env, cut=cut)), limit_s=timeout_s)


def said(lines: Sequence[Line]) -> Line:
    """Return what a program of ours says that runs in the diagnosed interpreter, the later lines over the earlier ones.

    Only its own, which have a mark: there a start-up file may print whatever it likes.
    """
    marked = [line for line in lines if line.get("gpucheck")]
    return {name: value for line in marked for name, value in line.items() if name != "gpucheck"}


def read(heard: Heard) -> TorchProbe:
    """The child's lines put together: each adds to those before, so that a crash costs only what follows it."""
    found, ending = from_json(TorchProbe, said(heard.lines)), heard.ending
    if found.stage == "end":
        return found
    match ending.how:
        case "unstarted":
            return replace(found, unstarted=ending.reason)
        case "late":
            return replace(found, timed_out=True)
        case "cut":
            return replace(found, not_awaited=ending.reason)
        case "killed" if found.error is None:
            often = ", often by the kernel for want of memory" if ending.signal == "SIGKILL" else ""
            why = f"the process that asks torch was ended from outside ({ending.signal}{often})"
            return replace(found, not_awaited=why)
    return replace(found, error=found.error or how_it_ended(ending))


def how_it_ended(ending: Ending) -> str:
    """A signal or an exit status, and the last line that was said on stderr."""
    how = ending.signal or f"exit status {ending.status}"
    return f"{how}: {ending.last_words}" if ending.last_words else how
