"""What the Python at hand sees: asked of it in a child, because it is another Python than the one that runs this."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence, Tuple

from . import sentences
from .common import OLDEST_PYTHON, USAGE, Trouble

PROBE_LIMIT_S = 60  # a cold Python on a network disk answers in seconds; one that takes a minute is not usable

# Runs in the chosen Python, whatever its version, so in words that Python 2 knows. The current folder is not looked
# into: a folder named torch there is not torch, and a stray json.py is not json.
PROBE = r"""
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os
seen = {"version": list(sys.version_info[:3])}
if sys.version_info >= (3, 10):
    import importlib.metadata, importlib.util, site, sysconfig
    folders = site.getsitepackages() if hasattr(site, "getsitepackages") else []
    folders += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if getattr(site, "ENABLE_USER_SITE", False):
        folders.append(site.getusersitepackages())
    spec = importlib.util.find_spec("torch")
    seen["torch"] = os.path.dirname(spec.origin) if spec and spec.origin else None
    if seen["torch"]:
        folders.append(os.path.dirname(seen["torch"]))
    seen["folders"] = [f for f in dict.fromkeys(folders) if f in sys.path and os.path.isdir(f)]
    seen["installed"] = {}
    for name in json.loads(sys.argv[1]):
        try:
            seen["installed"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    seen["has"] = [m for m in ("venv", "ensurepip", "pip") if importlib.util.find_spec(m)]
sys.stdout.write("\n<probe>" + json.dumps(seen) + "</probe>\n")
"""


@dataclass(frozen=True)
class Seen:
    """What a Python sees, found without importing torch."""

    version: Tuple[int, ...]
    folders: Tuple[str, ...]  # its package folders, in its order
    torch: Optional[str]  # the folder of its torch
    installed: Dict[str, str]  # versions of the names asked for
    has: Tuple[str, ...]  # which of venv, ensurepip and pip


def probe(python: str, names: Sequence[str], environ: Mapping[str, str]) -> Seen:
    """Ask `python` what it sees. Writes nothing, not even bytecode. USAGE where it is no Python, or too old a one."""
    try:
        ended = subprocess.run(
            [python, "-B", "-c", PROBE, json.dumps(sorted(names))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PROBE_LIMIT_S,
            env=dict(environ),
        )
    except OSError as error:
        raise Trouble(
            "{} cannot be started ({}); set GPUCHECK_PYTHON to a Python.".format(python, error.strerror), USAGE
        ) from None
    except subprocess.TimeoutExpired:
        raise Trouble(
            "{} did not answer within {} s; set GPUCHECK_PYTHON to another Python.".format(python, PROBE_LIMIT_S), USAGE
        ) from None
    found = re.search(r"<probe>(.*)</probe>", ended.stdout.decode("utf-8", "replace"))
    if not found:
        raise Trouble(
            "{} is no working Python ({}); set GPUCHECK_PYTHON to another one.".format(python, last_line(ended)), USAGE
        )
    answer = json.loads(found.group(1))
    if tuple(answer["version"]) < OLDEST_PYTHON:
        raise Trouble(sentences.too_old(python, answer["version"]), USAGE)
    return Seen(
        version=tuple(answer["version"]),
        folders=tuple(answer["folders"]),
        torch=answer["torch"],
        installed=answer["installed"],
        has=tuple(answer["has"]),
    )


def last_line(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The last thing a process said on stderr, or its exit code where it said nothing."""
    lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else "exit {}".format(ended.returncode)
