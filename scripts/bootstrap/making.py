"""Make a layer: look at the Python it comes from, make a venv, let pip fill it, prove it, stamp it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import sentences
from .common import ENVIRONMENTS, ROOT, WINDOWS, Trouble, say
from .layers import layer_python, read_stamp, write_stamp
from .lock import in_use
from .needs import applies, constraints_beside, name_of, pins_of, requirements, satisfied
from .probe import last_line, probe

END_LIMIT_S = 5  # how long a stopped pip may tidy up before it is killed
FULL_DISK_BYTES = 1 << 28  # with less room than this after a step that failed, it had no place for its next file

# The module that shows a dependency to be there; torch's is looked for, never imported.
MODULES = {"typer": "typer", "rich": "rich", "nvidia-ml-py": "pynvml", "psutil": "psutil", "tomli": "tomli"}


@dataclass(frozen=True)
class Layer:
    """What a layer is made from."""

    folder: str  # where it goes
    python: str  # the interpreter it comes from
    version: Tuple[int, ...]
    has: Tuple[str, ...]  # which of venv, ensurepip and pip can be used
    needs: Tuple[str, ...]  # requirements that must be met in it
    installed: Dict[str, str]  # what is met already by the folders it looks into
    source: Optional[str]  # gpucheck's own source, in the first layer
    folders: Tuple[str, ...]  # the package folders it looks into
    stamp: Dict[str, Any]


@dataclass(frozen=True)
class World:
    """What making needs of the world around it."""

    constraints: str  # the text of constraints.txt
    environ: Dict[str, str]
    descriptors: Tuple[int, ...]  # the lock's, handed to every child that writes


def make_base(folder: str, python: str, pyproject: str, world: World) -> None:
    """The first layer: gpucheck and what it needs, beside the torch that is there, else with one of its own."""
    pins = pins_of(world.constraints)
    seen = probe(python, list(pins), world.environ)
    needs = requirements(pyproject, "dependencies")
    if seen.torch:
        needs = [requirement for requirement in needs if name_of(requirement) != "torch"]
        say(sentences.torch_found(seen.installed.get("torch", "(version unknown)"), os.path.dirname(seen.torch)))
    else:
        say(sentences.torch_wanted(pins["torch"], sys.platform))
    layer = Layer(
        folder=folder,
        python=python,
        version=seen.version,
        has=seen.has,
        needs=tuple(needs),
        installed=seen.installed if seen.torch else {},
        source=os.path.join(ROOT, "src"),
        folders=seen.folders if seen.torch else (),
        stamp={"interpreter": python, "torch": seen.torch, "folders": list(seen.folders)},
    )
    make(layer, world)


def make_dev(folder: str, base: str, python: str, pyproject: str, world: World) -> None:
    """The second layer: the tests' tools. It looks into the first, whose .pth file leads on to a torch outside."""
    say("preparing the tests' tools, once")
    seen = probe(layer_python(base), list(pins_of(world.constraints)), world.environ)
    layer = Layer(
        folder=folder,
        python=python,
        version=seen.version,
        has=seen.has,
        needs=tuple(requirements(pyproject, "test")),
        installed=seen.installed,
        source=None,
        folders=(site_packages(base),),
        stamp=read_stamp(base) or {},
    )
    make(layer, world)


def make(layer: Layer, world: World) -> None:
    """Make the layer from nothing. The stamp comes last, and where anything fails nothing of the layer stays."""
    shutil.rmtree(layer.folder, ignore_errors=True)
    try:
        pins = pins_of(world.constraints)
        missing = [need for need in layer.needs if not satisfied(need, layer.installed, layer.version, pins)]
        make_venv(layer, bool(missing), world)
        with open(os.path.join(site_packages(layer.folder), "000-gpucheck.pth"), "w", encoding="ascii") as file:
            file.write(path_lines(layer.source, layer.folders))
        if missing:
            install(layer, missing, world)
        prove(layer, world.environ)
        write_stamp(layer.folder, layer.stamp)
    except BaseException:
        shutil.rmtree(layer.folder, ignore_errors=True)
        raise


def make_venv(layer: Layer, with_pip: bool, world: World) -> None:
    """An empty venv. It gets a pip of its own only where pip is needed; where Python came without ensurepip, the pip
    in the folders looked into serves as well: started in the layer, it installs into the layer."""
    borrowed = bool(layer.folders) and "pip" in layer.has
    if "venv" not in layer.has or (with_pip and "ensurepip" not in layer.has and not borrowed):
        raise Trouble(sentences.no_venv(layer.python, layer.version))
    options = [] if with_pip and "ensurepip" in layer.has else ["--without-pip"]
    command = [layer.python, "-B", "-m", "venv", *options, layer.folder]
    if run_step(command, pip_environment(world.environ), ENVIRONMENTS, world.descriptors):
        raise failure(sentences.no_venv(layer.python, layer.version))


def install(layer: Layer, missing: Sequence[str], world: World) -> None:
    """Let pip install `missing` into the layer, at the pins, and what those need and is not met yet."""
    limits = os.path.join(layer.folder, "constraints.txt")
    with open(limits, "w", encoding="utf-8") as file:
        file.write(constraints_beside(world.constraints, layer.installed, missing))
    large = any(name_of(requirement) == "torch" for requirement in missing)
    # -B, because the pip that runs may be theirs: no bytecode beside it.
    command = [layer_python(layer.folder), "-B", "-m", "pip", "install", "--disable-pip-version-check", "-c", limits]
    command += missing if large else ["--quiet", *missing]
    # Started in the layer's folder: pip would import from the current one.
    code = run_step(command, pip_environment(world.environ), layer.folder, world.descriptors)
    if code:
        raise failure(sentences.pip_failed(missing, code))


def failure(otherwise: str) -> Trouble:
    """Why a step failed that writes: no room, where there is none, else the sentence given."""
    free = shutil.disk_usage(ENVIRONMENTS).free
    return Trouble(sentences.disk_full(free) if free < FULL_DISK_BYTES else otherwise)


def prove(layer: Layer, environ: Mapping[str, str]) -> None:
    """Import in the layer what it must offer, and look where torch comes from; what does not work gets no stamp."""
    names = [MODULES[name_of(r)] for r in layer.needs if name_of(r) in MODULES and applies(r, layer.version)]
    code = "import importlib.util, os\n" + "".join("import {}\n".format(name) for name in names)
    code += "spec = importlib.util.find_spec('torch')\nprint('<torch>' + os.path.dirname(spec.origin) + '</torch>')"
    ended = subprocess.run(
        [layer_python(layer.folder), "-B", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        cwd=layer.folder,
    )
    found = re.search(r"<torch>(.*)</torch>", ended.stdout.decode("utf-8", "replace"))
    if not found:
        raise Trouble("the environment that was prepared does not work: {}.".format(last_line(ended)))
    theirs = layer.stamp["torch"]
    if theirs and os.path.realpath(found.group(1)) != os.path.realpath(theirs):
        raise Trouble("torch was to come from {}, and comes from {}.".format(theirs, found.group(1)))


def run_step(command: Sequence[str], environ: Dict[str, str], cwd: str, descriptors: Tuple[int, ...]) -> int:
    """Run one step, its stdout on our stderr; its exit code. When we are stopped it is stopped too."""
    child = subprocess.Popen(
        command,
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        pass_fds=descriptors,
    )
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def pip_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment for pip: settings that name an index stay, those that send packages elsewhere go. So does
    PIP_CONSTRAINT: vendor containers set it to the versions of their own Python, and a layer is not that one."""
    dropped = ("PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIREMENT", "PIP_CONSTRAINT")
    kept = {name: value for name, value in environ.items() if name not in dropped}
    kept["PIP_USER"] = "0"
    return kept


def site_packages(folder: str) -> str:
    """A layer's own package folder."""
    if WINDOWS:
        return os.path.join(folder, "Lib", "site-packages")
    library = os.path.join(folder, "lib")
    versioned = next(name for name in sorted(os.listdir(library)) if name.startswith(("python", "pypy")))
    return os.path.join(library, versioned, "site-packages")


def path_lines(source: Optional[str], folders: Sequence[str]) -> str:
    """The text of the .pth file: gpucheck's source, then the folders looked into.

    Lines of code and not plain paths: they are ASCII whatever the path, and a folder's own .pth files are obeyed.
    Each asks first, because a venv's Python reads its .pth files twice."""
    lines: List[str] = []
    if source:
        lines.append("import sys; {0} in sys.path or sys.path.append({0})".format(ascii(source)))
    lines += ["import sys, site; {0} in sys.path or site.addsitedir({0})".format(ascii(path)) for path in folders]
    return "".join(line + "\n" for line in lines)


def remove_old(python: str, keep: Sequence[str]) -> None:
    """Remove layers that no start will use again: half-made ones, and those that an earlier pyproject.toml or
    constraints.txt made for this Python or that came from a Python that is gone. One that a command runs in stays."""
    for name in sorted(os.listdir(ENVIRONMENTS)):
        folder = os.path.join(ENVIRONMENTS, name)
        if folder in keep or not os.path.isdir(folder):
            continue
        stamp = read_stamp(folder)
        outdated = stamp is None or stamp["interpreter"] == python or not os.path.exists(stamp["interpreter"])
        if outdated and not in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)
