"""Run by the interpreter that is diagnosed, from its text: the standard library alone, Python 3.8 or newer.

Says a line of JSON at each step, so that whatever hangs or crashes afterwards does not take the earlier ones along.
"""

from __future__ import annotations

import sys

AT_START = frozenset(sys.modules)
# A stray json.py in the current folder must break torch, if anything: not this program.
FOLDER = [sys.path.pop(0)] if __name__ == "__main__" and sys.path[:1] == [""] else []

import glob  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

CLAIMED = 1  # where the answer goes

DISTRIBUTIONS = ("torch", "torchvision", "torchaudio", "triton", "pynvml", "nvidia-ml-py")
CUDA_LIBRARIES = ("libcudart", "libcublas", "libcudnn", "libnvJitLink", "libcusparse", "libcufft", "libnccl")


def say(**parts: Any) -> None:
    """A line of the answer."""
    os.write(CLAIMED, (json.dumps(dict(parts, gpucheck=1)) + "\n").encode())


def shadowing() -> list[str]:
    """Files of the current folder that hide torch or a module of the standard library from what is started there."""
    known = set(getattr(sys, "stdlib_module_names", ())) or set(sys.builtin_module_names) | {"json", "timeit", "types"}
    known |= {"torch", "numpy", "typing_extensions"}
    found = []
    for name in sorted(os.listdir(".")):
        stem, suffix = os.path.splitext(name)
        is_package = os.path.isfile(os.path.join(name, "__init__.py"))
        if stem in known and (suffix == ".py" or is_package):
            found.append(name)
    return found


def torch_folder() -> str | None:
    """The folder of the torch that `import torch` would take, found without importing it."""
    from importlib import util

    try:
        spec = util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def distributions() -> dict[str, list[str]]:
    """Versions of what is installed under the names that matter; more than one where metadata stands twice."""
    from importlib import metadata

    found: dict[str, list[str]] = {}
    for name in DISTRIBUTIONS:
        # A folder that stands twice on the path is still one installation.
        places = {(str(one.locate_file("")), one.version) for one in metadata.distributions(name=name)}
        if places:
            found[name] = [version for _, version in sorted(places)]
    return found


def tools() -> tuple[bool, bool | None]:
    """Whether there is a compiler, and whether the loader's cache has libcuda: as triton looks for them."""
    from shutil import which

    compiler = bool(os.environ.get("CC") or which("gcc") or which("clang"))
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            return compiler, b"libcuda.so.1" in file.read()
    except OSError:
        return compiler, None


def mapped(folder: str) -> tuple[list[str], str | None]:
    """CUDA's libraries in this process from elsewhere although the environment has its own, and the libcuda in use."""
    foreign: list[str] = []
    libcuda = None
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(None, 5)[-1].strip() for line in file if "/" in line}
    except OSError:
        return foreign, libcuda
    site = os.path.dirname(folder)
    own = glob.glob(os.path.join(site, "nvidia", "*", "lib", "lib*")) + glob.glob(os.path.join(folder, "lib", "lib*"))
    stems = {os.path.basename(path).partition(".so")[0] for path in own}
    inside = os.path.realpath(site) + os.sep
    for path in sorted(paths):
        name = os.path.basename(path)
        if name.startswith("libcuda.so"):
            libcuda = path
        elif name.startswith(CUDA_LIBRARIES) and not path.startswith(inside) and name.partition(".so")[0] in stems:
            foreign.append(path)
    return foreign, libcuda


def active_elsewhere() -> str | None:
    """The variable that names another active environment than this interpreter's: its name, not its value."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(variable)
        if folder:
            return None if os.path.realpath(folder) == os.path.realpath(sys.prefix) else variable
    return None


def told(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def other_accelerator(torch: Any) -> tuple[str | None, int]:
    """The accelerator that is none of CUDA's, and how many of it torch can use."""
    if getattr(torch, "xpu", None) is not None and torch.xpu.is_available():
        return "xpu", torch.xpu.device_count()
    mps = getattr(torch.backends, "mps", None)
    return ("mps", 1) if mps is not None and mps.is_available() else (None, 0)


def run(torch: Any, device: str) -> str | None:
    """One kernel and one product on a device; what was raised, or None where the results were right."""
    try:
        ones = torch.ones(64, device=device)
        if float((ones + ones).sum().item()) != 128.0:
            return "a sum came out wrong"
        eye = torch.eye(16, device=device)
        if float((eye @ eye).sum().item()) != 16.0:
            return "a product came out wrong"
        return None
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer
        return told(error)


def main() -> None:
    """Look for torch, import it, ask it, and run a kernel on each of its devices."""
    stray = shadowing() if FOLDER else []
    compiler, cached = tools()
    versions = distributions()
    # From here on as in a process of the user's: what hides a module hides it from torch.
    sys.path[:0] = FOLDER
    hidden = {os.path.splitext(name)[0] for name in stray}
    for name in set(sys.modules) - AT_START:
        if name.partition(".")[0] in hidden:
            del sys.modules[name]
    say(
        stage="find",
        executable=sys.executable,
        python="{}.{}.{}".format(*sys.version_info[:3]),
        prefix=os.path.realpath(sys.prefix),
        active_elsewhere=active_elsewhere(),
        shadowed_by=stray,
        versions=versions,
        has_compiler=compiler,
        cache_has_libcuda=cached,
        path=torch_folder(),
    )
    say(stage="import")
    began = time.monotonic()
    import warnings

    caught: list[str] = []
    warnings.showwarning = lambda message, *_, **__: caught.append(str(message))
    warnings.simplefilter("always")
    import torch

    folder = os.path.dirname(getattr(torch, "__file__", None) or "")
    version = getattr(torch, "version", None)
    say(
        stage="ask",
        import_s=time.monotonic() - began,
        path=folder,
        version=str(torch.__version__) if getattr(torch, "__version__", None) else None,
        cuda=getattr(version, "cuda", None),
        hip=getattr(version, "hip", None),
        xpu=getattr(version, "xpu", None),
    )
    architectures = list(torch.cuda.get_arch_list()) if hasattr(torch.cuda, "get_arch_list") else None
    available, count = torch.cuda.is_available(), torch.cuda.device_count()
    other, others = other_accelerator(torch)
    foreign, libcuda = mapped(folder)
    say(
        stage="run",
        available=available,
        count=count,
        other=other,
        other_count=others,
        architectures=architectures,
        warnings=caught,
        foreign_libraries=foreign,
        libcuda=libcuda,
    )
    kernels: list[dict[str, str | None]] = []
    names, capabilities = {}, {}
    for device in [f"cuda:{index}" for index in range(count)] if available else []:
        try:
            names[device] = torch.cuda.get_device_name(device)
            capabilities[device] = "{}.{}".format(*torch.cuda.get_device_capability(device))
        except Exception as error:  # noqa: BLE001 - as above
            kernels.append({"device": device, "error": told(error)})
            continue
        say(names=names, capabilities=capabilities)
        kernels.append({"device": device, "error": run(torch, device)})
        say(kernels=kernels, warnings=caught)
    foreign, libcuda = mapped(folder)
    say(stage="end", warnings=caught, kernels=kernels, foreign_libraries=foreign, libcuda=libcuda)


if __name__ == "__main__":
    CLAIMED = os.dup(1)
    os.dup2(2, 1)  # what an import prints belongs to stderr
    try:
        main()
    except KeyboardInterrupt:  # a signal from outside is no word of torch's
        raise
    except BaseException as error:  # the last words of a patient, SystemExit too
        say(error=told(error))
        raise SystemExit(1) from error
