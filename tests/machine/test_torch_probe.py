"""The probe of another interpreter's torch: what it says at each step, and what is left where it ends early."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gpucheck.machine import stack
from gpucheck.machine.stack import KernelRun, TorchProbe

TEXT = stack.TORCH_PROGRAM.read_text(encoding="utf-8")
LOADED = "/proc/self/maps"
# Torch's CUDA build brings them; beside a torch of a few lines they would be its own.
without_cuda = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is not None, reason="this environment has CUDA's libraries"
)

# A torch of a few lines: `{cuda}` is the body of its `torch.cuda`.
TORCH = """
import sys, types, warnings
print("printed by an import")
__version__ = "2.11.0+cu130"
version = types.SimpleNamespace(cuda="13.0", hip=None, xpu=None)
backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False))
{top}

class Result(float):
    def sum(self): return self
    def item(self): return float(self)
    def __add__(self, other): return Result(128.0)
    def __matmul__(self, other): return Result({product})

def ones(size, device): return Result(64.0)
def eye(size, device):
    if device == "cuda:1":
        raise RuntimeError("CUDA error: no kernel image\\nand a second line")
    return Result(16.0)

class cuda:
    @staticmethod
    def get_arch_list(): return ["sm_90"]
    @staticmethod
    def is_available():
        warnings.warn("CUDA initialization: a warning of torch's")
        return {available}
    @staticmethod
    def device_count(): return {count}
    @staticmethod
    def get_device_name(device): return "Fake " + device
    @staticmethod
    def get_device_capability(device):
        {capability}
        return (9, 0)
"""


def torch_of(
    folder: Path, *, top: str = "", available: bool = True, count: int = 2, product: float = 16.0, capability: str = ""
) -> Path:
    """A site-packages with this torch in it."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        TORCH.format(top=top, available=available, count=count, product=product, capability=capability or "pass")
    )
    return package.parent


def asked(site: Path | None, cwd: Path, *, timeout_s: float = 60.0, **variables: str) -> TorchProbe:
    """What the interpreter that runs the tests says with `site` on its path, started in `cwd`."""
    variables |= {"PYTHONPATH": str(site)} if site is not None else {}
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")} | variables
    before = os.getcwd()
    os.chdir(cwd)
    try:
        return stack.probe(env=env, timeout_s=timeout_s)
    finally:
        os.chdir(before)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder to start in."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_program_is_of_an_older_python_and_of_the_standard_library() -> None:
    tree = ast.parse(TEXT, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names) | {"torch"}
    # Names that came after 3.8 and that no parser knows of.
    assert "removeprefix" not in TEXT and "removesuffix" not in TEXT and "zip(strict" not in TEXT


# --- a torch that answers ---------------------------------------------------------------------------------------------


def test_every_step_of_a_torch_that_works_but_for_one_device(tmp_path: Path, empty: Path) -> None:
    site = torch_of(tmp_path)
    found = asked(site, empty)
    assert (found.stage, found.error, found.timed_out) == ("end", None, False)
    assert found.path == str(site / "torch")
    assert (found.version, found.cuda, found.hip, found.xpu) == ("2.11.0+cu130", "13.0", None, None)
    assert (found.available, found.count, found.architectures) == (True, 2, ("sm_90",))
    assert found.capabilities == {"cuda:0": "9.0", "cuda:1": "9.0"}
    assert found.names == {"cuda:0": "Fake cuda:0", "cuda:1": "Fake cuda:1"}
    assert found.kernels == (
        KernelRun("cuda:0"),
        KernelRun("cuda:1", "RuntimeError: CUDA error: no kernel image"),
    )
    assert "CUDA initialization: a warning of torch's" in found.warnings
    assert found.executable == sys.executable


# --- the active environment -------------------------------------------------------------------------------------------


def environment(folder: Path, *, has_torch: bool = False, reads: Path | None = None, is_system: bool = False) -> Path:
    """A real environment, with torch in it or not; `reads` is another one whose packages it reads too, by a .pth."""
    venv.create(folder, symlinks=True, system_site_packages=is_system)
    site = site_of(folder)
    if has_torch:
        torch_of(folder)
        (folder / "site" / "torch").rename(site / "torch")
    if reads is not None:
        (site / "layer.pth").write_text(f"import site; site.addsitedir({str(site_of(reads))!r})\n")
    return folder


def site_of(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))


def conda(folder: Path, *, has_torch: bool = False) -> Path:
    """The same without pyvenv.cfg, as conda makes it: enough to be the active one that is not started."""
    environment(folder, has_torch=has_torch)
    (folder / "pyvenv.cfg").unlink()
    (folder / "conda-meta").mkdir()
    return folder


def elsewhere(running: Path, cwd: Path, *first: Path, **variables: Path) -> str | None:
    """What the Python of `running` says; the folders named first are those of PATH, in this order."""
    named = ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    env = {name: value for name, value in os.environ.items() if name not in named}
    env |= {name: str(value) for name, value in variables.items()}
    env["PATH"] = os.pathsep.join([*(str(item / "bin") for item in first), os.environ["PATH"]])
    probe = stack.probe(str(running / "bin" / "python"), env=env, timeout_s=60.0)
    assert probe.executable is not None
    return probe.active_elsewhere


ON_POSIX = pytest.mark.skipif(os.name == "nt", reason="the folders of a venv have other names there")


@ON_POSIX
def test_the_environment_that_is_checked_is_the_active_one(tmp_path: Path, empty: Path) -> None:
    with_torch = environment(tmp_path / "a", has_torch=True)
    without = environment(tmp_path / "b")
    assert elsewhere(with_torch, empty, with_torch, VIRTUAL_ENV=with_torch) is None
    assert elsewhere(without, empty, without, VIRTUAL_ENV=without) is None
    assert elsewhere(with_torch, empty) is None


@ON_POSIX
@pytest.mark.parametrize("has_torch", [True, False])
@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_torch_of_another_environment_is_named(tmp_path: Path, empty: Path, variable: str, has_torch: bool) -> None:
    active = (environment if variable == "VIRTUAL_ENV" else conda)(tmp_path / "active", has_torch=has_torch)
    running = environment(tmp_path / "running", has_torch=True)
    assert elsewhere(running, empty, active, **{variable: active}) == variable
    without = environment(tmp_path / "without")
    assert elsewhere(without, empty, active, **{variable: active}) == variable


@ON_POSIX
def test_of_a_venv_and_a_conda_environment_the_first_on_the_path_is_active(tmp_path: Path, empty: Path) -> None:
    base, inner = conda(tmp_path / "base", has_torch=True), environment(tmp_path / "inner", has_torch=True)
    of_base = environment(tmp_path / "of_base", reads=base)
    both = {"VIRTUAL_ENV": inner, "CONDA_PREFIX": base}
    assert elsewhere(inner, empty, inner, base, **both) is None
    assert elsewhere(inner, empty, base, inner, **both) == "CONDA_PREFIX"
    assert elsewhere(of_base, empty, inner, base, **both) == "VIRTUAL_ENV"
    assert elsewhere(of_base, empty, base, inner, **both) is None
    # An environment below the folder of another one is none of its own.
    nested = environment(base / "envs" / "nested", has_torch=True)
    assert elsewhere(nested, empty, base, CONDA_PREFIX=base) == "CONDA_PREFIX"


# --- a torch that does not --------------------------------------------------------------------------------------------


def test_a_stray_file_is_named_and_breaks_torch_alone(tmp_path: Path) -> None:
    site = torch_of(tmp_path, top="import json; json.dumps")
    here = tmp_path / "here"
    (here / "glob").mkdir(parents=True)
    (here / "glob" / "__init__.py").write_text("raise SystemExit('stray')")
    (here / "json.py").write_text("")
    (here / "harmless.py").write_text("")
    found = asked(site, here)
    assert found.shadowed_by == ("glob", "json.py")
    # From Python 3.13 on it goes on: "(consider renaming …".
    assert found.stage == "import"
    assert (found.error or "").startswith("AttributeError: module 'json' has no attribute 'dumps'")


@pytest.mark.parametrize(
    ("top", "stage", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "import", "SIGSEGV"),
        (
            "raise ImportError('libx.so: undefined symbol: abc')",
            "import",
            "ImportError: libx.so: undefined symbol: abc",
        ),
        ("import sys; sys.exit('no torch for you')", "import", "SystemExit: no torch for you"),
        ("import os; os._exit(3)", "import", "exit status 3: printed by an import"),
        ("del version", "ask", None),
    ],
)
def test_what_ends_early_keeps_what_was_said_before(
    tmp_path: Path, empty: Path, top: str, stage: str, error: str | None
) -> None:
    site = torch_of(tmp_path, top=top)
    found = asked(site, empty)
    assert found.path == str(site / "torch") and not found.timed_out
    if error is None:
        assert (found.stage, found.cuda) == ("end", None)
    else:
        assert found.stage == stage and found.error is not None and found.error.startswith(error)


@pytest.mark.slow
def test_a_torch_that_hangs_is_ended(tmp_path: Path, empty: Path) -> None:
    site = torch_of(tmp_path, top="import time; time.sleep(600)")
    found = asked(site, empty, timeout_s=5.0)
    assert (found.stage, found.timed_out, found.error) == ("import", True, None)
    assert found.path == str(site / "torch")


def test_a_crash_in_a_kernel_keeps_the_devices(tmp_path: Path, empty: Path) -> None:
    crash = 'if device == "cuda:1": import os; os.abort()'
    found = asked(torch_of(tmp_path, capability=crash), empty)
    assert found.stage == "run" and (found.error or "").startswith("SIGABRT")
    assert found.kernels == (KernelRun("cuda:0"),) and found.count == 2


# --- what the parent makes of it --------------------------------------------------------------------------------------


# --- a child that somebody else ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "often"),
    [("SIGHUP", ""), ("SIGKILL", ", often by the kernel because memory ran out")],
)
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_signal_from_outside_says_nothing_of_torch(tmp_path: Path, empty: Path, name: str, often: str) -> None:
    top = f"import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})"
    found = asked(torch_of(tmp_path, top=top), empty)
    assert (found.error, found.timed_out, found.stage) == (None, False, "import")
    assert found.not_awaited == f"the process that asks torch was ended from outside ({name}{often})"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_signal_of_its_own_is_a_crash(tmp_path: Path, empty: Path, name: str) -> None:
    site = torch_of(tmp_path, top=f"import os, signal; os.kill(os.getpid(), signal.{name})")
    found = asked(site, empty)
    assert (found.not_awaited, (found.error or "").partition(":")[0]) == (None, name)


# --- CUDA's libraries in its process ----------------------------------------------------------------------------------

needs_maps = pytest.mark.skipif(not Path(LOADED).exists(), reason="needs /proc")


def library(folder: Path, name: str) -> Path:
    """A library of this name that can be loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.c").write_text("int nothing;\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / name, folder / "source.c"], check=True)
    return folder / name


def installed(
    site: Path, name: str, version: str, *, record: tuple[str, ...] = (), requires: tuple[str, ...] = ()
) -> None:
    """A distribution as an installer leaves it."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
    (folder / "METADATA").write_text("\n".join(("Metadata-Version: 2.1", *lines)) + "\n")
    (folder / "RECORD").write_text("".join(f"{path},sha256=x,1\n" for path in record))


@needs_maps
def test_a_foreign_runtime_is_seen_where_torch_asks_for_its_own(tmp_path: Path, empty: Path) -> None:
    """The environment has none of its own: the wheel's packages are not there, and the variable brought another."""
    real = library(tmp_path / "cuda-12.4" / "lib64", "libcudart.so.12.4.127")
    (real.parent / "libcudart.so.12").symlink_to(real.name)
    (tmp_path / "cuda").symlink_to("cuda-12.4")
    given = str(tmp_path / "cuda" / "lib64")
    site = torch_of(tmp_path, top="import ctypes; ctypes.CDLL('libcudart.so.12')")
    installed(site, "torch", "2.9.1", requires=('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',))
    found = asked(site, empty, LD_LIBRARY_PATH=f"/nowhere:{given}")
    assert found.foreign_libraries == (str(real),)
    assert found.foreign_folders == (given,)
    assert found.unmet == {"nvidia-cuda-runtime-cu12==12.8.90": None}


@needs_maps
def test_parts_of_cudnn_that_the_loader_will_not_find(tmp_path: Path, empty: Path) -> None:
    folder = library(tmp_path / "cudnn", "libcudnn.so.9").parent
    for part in ("graph", "ops", "adv"):
        (folder / f"libcudnn_{part}.so.9").write_bytes(b"")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "libcudnn_heuristic.so.9").write_bytes(b"")
    site = torch_of(tmp_path, top=f"import ctypes; ctypes.CDLL('{folder}/libcudnn.so.9')")
    found = asked(site, empty, LD_LIBRARY_PATH=str(tmp_path / "more"))
    assert found.cudnn_missing == ("libcudnn_cnn.so.9",)
    (folder / "libcudnn_cnn.so.9").write_bytes(b"")
    assert asked(site, empty, LD_LIBRARY_PATH=str(tmp_path / "more")).cudnn_missing == ()


def test_files_that_a_package_recorded_and_that_are_gone(tmp_path: Path, empty: Path) -> None:
    site = torch_of(tmp_path)
    here = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/libcudnn_cnn.so.9")
    installed(site, "nvidia-cudnn-cu12", "9.10.2.21", record=(*here, "nvidia/cudnn/include/cudnn.h", "x.so.txt"))
    installed(site, "other", "1.0", record=("libother.so",))
    (site / here[0]).parent.mkdir(parents=True)
    (site / here[0]).write_bytes(b"")
    missing = asked(site, empty).missing_files or {}
    assert {name: list(files) for name, files in missing.items()} == {
        "nvidia-cudnn-cu12==9.10.2.21": [str(site / here[1])]
    }
    # Conda moves what a wheel recorded.
    (site / "nvidia_cudnn_cu12-9.10.2.21.dist-info" / "INSTALLER").write_text("conda\n")
    assert asked(site, empty).missing_files == {}


@without_cuda
def test_packages_that_are_not_those_which_torch_asks_for(tmp_path: Path, empty: Path) -> None:
    site = torch_of(tmp_path)
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    installed(
        site,
        "torch",
        "2.9.1",
        requires=(
            "filelock",
            f'nvidia-cudnn-cu12==9.10.2.21; platform_system == "Linux" and platform_machine == "{platform.machine()}"',
            f'nvidia-nccl-cu12==2.27.5; platform_system == "Linux" and platform_machine == "{other}"',
            'nvidia-cublas-cu12 (==12.8.4.1) ; platform_system == "Linux"',
            'nvidia-curand-cu12==10.3.9.90; extra == "x"',
            "cuda-toolkit[nvrtc,cudart]==13.0.2",
        ),
    )
    installed(site, "nvidia-cudnn-cu12", "9.1.0.70")
    installed(site, "nvidia-cublas-cu12", "12.8.4.1")
    assert asked(site, empty).unmet == {"nvidia-cudnn-cu12==9.10.2.21": "9.1.0.70", "cuda-toolkit==13.0.2": None}


def test_condas_torch_beside_one_that_pip_installed(tmp_path: Path, empty: Path) -> None:
    """As a conda environment looks after `pip install torch` in it: conda's record is still there."""
    site = torch_of(tmp_path)
    installed(site, "torch", "2.9.1")
    environment = tmp_path / "conda"
    (environment / "conda-meta").mkdir(parents=True)
    (environment / "conda-meta" / "pytorch-2.5.1-cuda126_py312h1.json").write_text("{}")
    (site / "sitecustomize.py").write_text(f"import sys\nsys.prefix = {str(environment)!r}\n")
    assert asked(site, empty).conda_torch is None  # nobody says who installed it
    installer = site / "torch-2.9.1.dist-info" / "INSTALLER"
    installer.write_text("pip\n")
    assert asked(site, empty).conda_torch == "2.5.1"
    installer.write_text("conda\n")
    assert asked(site, empty).conda_torch is None


@needs_maps
def test_an_import_that_fails_tells_which_libraries_it_met(tmp_path: Path, empty: Path) -> None:
    real = library(tmp_path / "cuda", "libnvJitLink.so.12")
    top = f"import ctypes; ctypes.CDLL('{real}'); raise ImportError('undefined symbol: x')"
    site = torch_of(tmp_path, top=top)
    (site / "nvidia" / "nvjitlink" / "lib").mkdir(parents=True)
    (site / "nvidia" / "nvjitlink" / "lib" / "libnvJitLink.so.12").write_bytes(b"")
    found = asked(site, empty, LD_LIBRARY_PATH=str(real.parent))
    assert (found.error, found.stage) == ("ImportError: undefined symbol: x", "import")
    assert (found.foreign_libraries, found.foreign_folders) == ((str(real),), (str(real.parent),))
