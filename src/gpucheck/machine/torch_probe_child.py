"""Probe torch in the diagnosed interpreter, which gets this program as text (standard library of Python 3.8 or newer).

Without arguments the program probes torch. With two times in seconds and the names of devices it runs a load on these
devices. It prints a line of JSON at each step, so the lines of earlier steps survive a hang or crash.
"""

from __future__ import annotations

import sys

AT_START = frozenset(sys.modules)
# A stray json.py in the current folder may break torch, but must not break this program.
FOLDER = [sys.path.pop(0)] if __name__ == "__main__" and sys.path[:1] == [""] else []

import gc  # noqa: E402
import glob  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

ANSWER = 1  # the file descriptor for the lines of JSON

DISTRIBUTIONS = ("torch", "torchvision", "torchaudio", "triton")
CUDA_LIBRARIES = (
    *("libcudart", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink", "libcusparse", "libcusolver"),
    *("libcufft", "libcurand", "libnccl"),
)
# The libraries that libcudnn loads at the first convolution, by libcudnn's major version (cuDNN's "API Overview").
# Engines are left out, because NVIDIA's smaller packages lack some of them.
CUDNN_PARTS = {
    8: ("ops_infer", "ops_train", "cnn_infer", "cnn_train", "adv_infer", "adv_train"),
    9: ("graph", "ops", "cnn", "adv", "heuristic"),
}
# The metadata folders of pip's packages with torch's libraries.
PACKAGES = ("torch-*.dist-info", "nvidia_*.dist-info")
# A requirement of exactly one version, such as `nvidia-cudnn-cu12==9.10.2.21; …`. Older metadata has brackets.
PINNED = re.compile(r"(nvidia[\w.-]*|cuda-toolkit)\s*(?:\[[^]]*\])?\s*\(?==\s*([\w.+!]+)\)?\s*(?:;(.*))?$")


def say(**parts: Any) -> None:
    os.write(ANSWER, (json.dumps(dict(parts, gpucheck=1)) + "\n").encode())


def shadowing() -> list[str]:
    """Return the files of the current folder that hide torch or a module of the standard library."""
    stdlib = set(getattr(sys, "stdlib_module_names", ())) or set(sys.builtin_module_names) | {"json", "timeit", "types"}
    modules = stdlib | {"torch", "numpy", "typing_extensions"}
    return [
        name
        for name in sorted(os.listdir("."))
        if os.path.splitext(name)[0] in modules
        and (name.endswith(".py") or os.path.isfile(os.path.join(name, "__init__.py")))
    ]


def torch_folder() -> str | None:
    """Return the folder of the torch that `import torch` would load, without importing it."""
    from importlib import util

    try:
        spec = util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def torch_folders() -> tuple[list[str], list[str]]:
    """Return the folders of all torches on the import path, in order, and the entries of PYTHONPATH with a torch."""
    folders: dict[str, str] = {}
    for entry in sys.path:
        if entry and os.path.isfile(os.path.join(entry, "torch", "__init__.py")):
            folders.setdefault(os.path.realpath(entry), os.path.join(entry, "torch"))
    pythonpath = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return list(folders.values()), [entry for entry in pythonpath if os.path.realpath(entry) in folders]


def distributions() -> dict[str, list[str]]:
    """Return the installed versions of each relevant distribution, one for each metadata folder."""
    from importlib import metadata

    versions: dict[str, list[str]] = {}
    for name in DISTRIBUTIONS:
        # A folder may be on the import path twice.
        installed = {(str(record.locate_file("")), record.version) for record in metadata.distributions(name=name)}
        if installed:
            versions[name] = [version for _, version in sorted(installed)]
    return versions


def conda_torch() -> str | None:
    """Return the version of a torch that conda installed here and pip replaced, or None."""
    from importlib import metadata

    records = sorted(glob.glob(os.path.join(glob.escape(sys.prefix), "conda-meta", "pytorch-[0-9]*.json")))
    # Python imports the first torch on the path.
    first = next(iter(metadata.distributions(name="torch")), None)
    if not records or first is None or (first.read_text("INSTALLER") or "").strip() not in ("pip", "uv"):
        return None
    return os.path.basename(records[-1]).split("-")[1]


def content(path: str) -> str:
    """Return the content of a system file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stem(path: str) -> str:
    """Return a library's name without version, such as `libcudart` for `/x/libcudart.so.12.8.90`."""
    return os.path.basename(path).partition(".so")[0]


def library_path() -> dict[str, str]:
    """Return the folders of LD_LIBRARY_PATH: each real path mapped to the path in the variable."""
    entries = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    return {os.path.realpath(entry): entry for entry in reversed(entries)}


def loaded(folder: str, is_wheel: bool) -> dict[str, Any]:
    """Return libcuda, foreign CUDA libraries and missing parts of cuDNN. `folder` is torch's folder."""
    # A library from outside the environment is foreign if the environment contains the same library. A wheel of torch
    # (`is_wheel`) requires packages of all CUDA libraries, so every library from outside is foreign.
    folders = [os.path.join(entry, "nvidia", "*", "lib") for entry in sys.path] + [os.path.join(folder, "lib")]
    installed = [path for pattern in folders for path in glob.glob(os.path.join(pattern, "lib*"))]
    stems = {stem(path) for path in installed}
    inside = [os.path.realpath(os.path.dirname(folder))]
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # conda installs libraries beside Python's
        inside.append(os.path.realpath(sys.prefix))
    # An installer may use links to files in its cache.
    real_paths = {os.path.realpath(path) for path in installed}
    foreign: list[str] = []
    libcuda = None
    files = sorted({line.split(None, 5)[-1] for line in content("/proc/self/maps").splitlines() if "/" in line})
    for path in files:
        if os.path.basename(path).startswith("libcuda.so"):
            libcuda = path
        elif not os.path.basename(path).startswith(CUDA_LIBRARIES) or path in real_paths:
            continue
        elif not path.startswith(tuple(parent + os.sep for parent in inside)) and (stem(path) in stems or is_wheel):
            foreign.append(path)
    entries = library_path()
    by_variable = [entries[parent] for parent in map(os.path.dirname, foreign) if parent in entries]
    return {
        "foreign_libraries": foreign,
        "foreign_folders": list(dict.fromkeys(by_variable)),
        "libcuda": libcuda,
        "cudnn_missing": cudnn_missing(files),
    }


def cudnn_missing(files: list[str]) -> list[str]:
    """Return the parts of the loaded cuDNN that the loader will not find."""
    loaded_path = next((path for path in files if stem(path) == "libcudnn"), None)
    major = re.match(r"libcudnn\.so\.(\d+)", os.path.basename(loaded_path or ""))
    if loaded_path is None or major is None or os.environ.get("CUDNN_LIB_CONFIG"):
        return []
    folders = [os.path.dirname(loaded_path), *library_path()]
    cache = content("/etc/ld.so.cache")
    names = [f"libcudnn_{part}.so.{major[1]}" for part in CUDNN_PARTS.get(int(major[1]), ())]
    loaded_stems = {stem(path) for path in files}
    return [
        name
        for name in names
        if stem(name) not in loaded_stems
        and name not in cache
        and not any(os.path.exists(os.path.join(folder, name)) for folder in folders)
    ]


def requirements() -> list[tuple[str, str]]:
    """Return the packages of CUDA libraries that torch's metadata requires in exactly one version."""
    import platform
    from importlib import metadata

    try:
        required = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return []
    pinned = []
    for text in required:
        match = PINNED.match(text)
        marker = (match[3] or "") if match else ""
        machine = re.search(r"platform_machine\s*==\s*[\"'](\w+)", marker)
        is_elsewhere = machine is not None and machine[1] != platform.machine()
        # A requirement with another marker is skipped, because the marker may be false here.
        if match and not is_elsewhere and not re.search(r"extra|python_version|win32|Windows", marker):
            pinned.append((match[1], match[2]))
    return pinned


def missing_files() -> dict[str, list[str]]:
    """Return the libraries that packages of torch and NVIDIA have recorded and that do not exist, by package."""
    from importlib import metadata
    from pathlib import Path

    missing = {}
    records = [path for entry in sys.path for name in PACKAGES for path in glob.glob(os.path.join(entry, name))]
    for record in (metadata.Distribution.at(Path(path)) for path in records):
        # Conda moves the files that a wheel has recorded.
        if (record.read_text("INSTALLER") or "").strip() == "conda":
            continue
        # torch's record has ten thousand lines, so only libraries are checked.
        lines = (line.partition(",")[0] for line in (record.read_text("RECORD") or "").splitlines() if ".so" in line)
        libraries = (line for line in lines if re.search(r"(^|/)lib[^/]*\.so[.\d]*$", line))
        gone = [line for line in libraries if not os.path.exists(str(record.locate_file(line)))]
        if gone:
            missing[record.metadata["Name"] + "==" + record.version] = [str(record.locate_file(line)) for line in gone]
    return missing


def public(version: str) -> str:
    """Return a version without its local part and without final zeros: 13.0.3.0 becomes 13.0.3."""
    return re.sub(r"(\.0)+$", "", version.strip().lower().partition("+")[0])


def unmet(pinned: list[tuple[str, str]]) -> dict[str, str | None]:
    """Return the required packages that are missing or have another version: the installed version, or None."""
    from importlib import metadata

    installed: dict[str, str | None] = {}
    for name, required in pinned:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if version is None or public(version) != public(required):
            installed[name + "==" + required] = version
    return installed


def active() -> tuple[str, str] | None:
    """Return the variable of the active environment, and the environment's folder. The first on PATH counts."""
    folders = [os.path.realpath(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    environments = []
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(variable) or ""
        pythons = [os.path.join(folder, name) for name in ("bin/python", "Scripts/python.exe", "python.exe")]
        programs = next((os.path.realpath(os.path.dirname(path)) for path in pythons if os.path.isfile(path)), None)
        if folder and programs is not None:
            rank = folders.index(programs) if programs in folders else len(folders)
            environments.append((rank, variable, folder))
    return min(environments)[1:] if environments else None


def active_elsewhere(torch: str | None) -> str | None:
    """Return the variable of the active environment if its programs would not import the torch in this folder."""
    # An interpreter may import packages of another environment, so the location of torch decides, else `sys.path`.
    from importlib import metadata

    environment = active()
    if environment is None or os.path.realpath(environment[1]) == os.path.realpath(sys.prefix):
        return None
    settings = content(os.path.join(environment[1], "pyvenv.cfg"))
    if re.search(r"include-system-site-packages\s*=\s*true", settings, re.IGNORECASE):
        return None  # the environment also imports packages of its base Python
    patterns = ("lib/python*/site-packages", "lib64/python*/site-packages", "Lib/site-packages")
    sites = [path for pattern in patterns for path in glob.glob(os.path.join(glob.escape(environment[1]), pattern))]
    locations = [entry for entry in sys.path if entry]
    if torch is not None:
        # The environment's programs read the same PYTHONPATH.
        sites += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        locations = [os.path.dirname(torch)]
        locations += [str(record.locate_file("")) for record in metadata.distributions(name="torch")]
    return None if {*map(os.path.realpath, locations)} & {*map(os.path.realpath, sites)} else environment[0]


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def other_accelerator(torch: Any) -> tuple[str | None, int]:
    """Return the type of an accelerator without CUDA, and the number of its devices that torch can use."""
    if getattr(torch, "xpu", None) is not None and torch.xpu.is_available():
        return "xpu", torch.xpu.device_count()
    mps = getattr(torch.backends, "mps", None)
    return ("mps", 1) if mps is not None and mps.is_available() else (None, 0)


def run(torch: Any, device: str) -> str | None:
    """Run one kernel and one matrix product on a device. Return the error; None if both results are correct."""
    try:
        ones = torch.ones(64, device=device)
        if float((ones + ones).sum().item()) != 128.0:
            return "the result of a sum is wrong"
        eye = torch.eye(16, device=device)
        return None if float((eye @ eye).sum().item()) == 16.0 else "the result of a matrix product is wrong"
    except Exception as error:  # noqa: BLE001 - every exception of torch is a result
        return first_line(error)


def main() -> None:
    """Find torch, import torch, read its state, and run a kernel on each device."""
    import sysconfig
    from importlib import util
    from shutil import which

    # With this file a system forbids pip to change its Python (PEP 668).
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    stray = shadowing() if FOLDER else []
    folders, pythonpath = torch_folders()
    pinned = requirements()
    say(
        stage="find",
        executable=sys.executable,
        python="{}.{}.{}".format(*sys.version_info[:3]),
        prefix=os.path.realpath(sys.prefix),
        active_elsewhere=active_elsewhere(torch_folder()),
        shadowed_by=stray,
        versions=distributions(),
        externally_managed=sys.prefix == sys.base_prefix and os.path.exists(marker),
        has_pip=util.find_spec("pip") is not None,
        torch_folders=folders,
        pythonpath_torch=pythonpath,
        conda_torch=conda_torch(),
        # Triton searches for a compiler in the same way.
        has_compiler=bool(os.environ.get("CC") or which("gcc") or which("clang")),
        missing_files=missing_files(),
        unmet=unmet(pinned),
    )
    # From here on, Python finds modules as in the user's process. A file that hides a module hides it from torch too.
    sys.path[:0] = FOLDER
    hidden = {os.path.splitext(name)[0] for name in stray}
    for name in set(sys.modules) - AT_START:
        if name.partition(".")[0] in hidden:
            del sys.modules[name]
    imported = torch_folder()
    say(stage="import", path=imported)
    import warnings

    caught: list[str] = []
    warnings.showwarning = lambda message, *_, **__: caught.append(str(message))
    warnings.simplefilter("always")
    try:
        import torch
    except Exception:
        # The cause of a failed import is usually one of the libraries loaded so far.
        say(**loaded(imported or "", bool(pinned)))
        raise
    folder = os.path.dirname(getattr(torch, "__file__", None) or "")
    version = getattr(torch, "version", None)
    say(
        stage="ask",
        path=folder,
        version=str(torch.__version__) if getattr(torch, "__version__", None) else None,
        cuda=getattr(version, "cuda", None),
        hip=getattr(version, "hip", None),
        xpu=getattr(version, "xpu", None),
    )
    available, count = torch.cuda.is_available(), torch.cuda.device_count()
    other, others = other_accelerator(torch)
    say(
        stage="run",
        available=available,
        count=count,
        other=other,
        other_count=others,
        architectures=list(torch.cuda.get_arch_list()) if hasattr(torch.cuda, "get_arch_list") else None,
        warnings=caught,
        **loaded(folder, bool(pinned)),
    )
    kernels: list[dict[str, str | None]] = []
    names, capabilities = {}, {}
    for device in [f"cuda:{index}" for index in range(count)] if available else []:
        try:
            names[device] = torch.cuda.get_device_name(device)
            capabilities[device] = "{}.{}".format(*torch.cuda.get_device_capability(device))
        except Exception as error:  # noqa: BLE001 - every exception of torch is a result
            kernels.append({"device": device, "error": first_line(error)})
            continue
        say(names=names, capabilities=capabilities)
        kernels.append({"device": device, "error": run(torch, device)})
        say(kernels=kernels, warnings=caught)
    say(stage="end", warnings=caught, kernels=kernels, **loaded(folder, bool(pinned)))
    gc.freeze()  # a garbage collection of torch's objects would take a third of the program's time


# -- a short load ------------------------------------------------------------------------------------------------------

# A product of this size keeps the largest GPU busy for longer than the call takes (0.2 ms on an H200). It uses 96 MiB.
SIDE = 4096
PRODUCTS = 4  # between two readings of the clock
# Some links leave their idle state only for a copy.
COPIED_BYTES = 8 * 2**20


def prepared(torch: Any, device: str) -> tuple[Any, Any, Any]:
    """Return a matrix on the device, pinned host memory, and the copy's destination on the device."""
    matrix = torch.randn((SIDE, SIDE), dtype=torch.float16, device=device)
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    return matrix, source, torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)


def work_once(torch: Any, work: dict[str, tuple[Any, Any, Any]]) -> None:
    for matrix, source, destination in work.values():
        for _ in range(PRODUCTS):
            matrix @ matrix
        destination.copy_(source, non_blocking=True)
    for device in work:
        torch.cuda.synchronize(device)


def load(settle_s: float, load_s: float, devices: list[str]) -> None:
    """Load the devices for `settle_s`, then for `load_s`. Print the start and length of the second period."""
    sys.path[:0] = FOLDER
    say(stage="import")
    import torch

    say(stage="prepare")
    work = {device: prepared(torch, device) for device in devices}
    work_once(torch, work)  # the first call loads the libraries
    say(stage="load")
    settled_s = time.perf_counter() + settle_s
    while time.perf_counter() < settled_s:
        work_once(torch, work)
    began_s = now_s = time.perf_counter()
    while now_s < began_s + load_s:
        work_once(torch, work)
        now_s = time.perf_counter()
    say(stage="end", began_s=began_s, took_s=now_s - began_s)


if __name__ == "__main__":
    ANSWER = os.dup(1)
    os.dup2(2, 1)  # output of an import goes to stderr
    try:
        if sys.argv[1:]:
            load(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
        else:
            main()
    except KeyboardInterrupt:  # the user or a scheduler sent it, not torch
        raise
    except BaseException as error:  # every error that ends the diagnosed process is reported, SystemExit too
        say(error=first_line(error))
        if sys.argv[1:]:
            # Freeing pinned memory on a lost device would abort the process.
            sys.stderr.flush()
            os._exit(1)
        raise SystemExit(1) from error
