"""gpucheck in one file: what it needs, where it unpacks itself, and what it hides from nobody."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyz_start

ROOT = Path(__file__).parents[2]
PYTHONS = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
# Each unpacks what it starts, some in ten processes.
pytestmark = pytest.mark.slow
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has neither these rights nor these signals")


def built(path: Path, version: str = "") -> Path:
    """Build the file, of a copy with another version where one is given; skips the test where there is no index."""
    root = ROOT
    if version:
        root = path.parent / version
        for name in ("src", "scripts"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("constraints.txt", "LICENSE"):
            shutil.copy(ROOT / name, root)
        init = root / "src/gpucheck/__init__.py"
        init.write_text(re.sub(r'__version__ = ".+"', f'__version__ = "{version}"', init.read_text()))
    done = subprocess.run([sys.executable, root / "scripts/pyz", path], capture_output=True, text=True, timeout=300)
    if "cannot download" in done.stderr:
        pytest.skip(f"no wheels: {' '.join(done.stderr.split())[:200]}")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file: the one that CI has built of this source, else a new one."""
    if os.environ.get("GPUCHECK_PYZ"):
        return Path(os.environ["GPUCHECK_PYZ"])
    return built(tmp_path_factory.mktemp("pyz") / "gpucheck.pyz")


def python_of(version: str) -> str:
    """An interpreter of this version without any package, by the path of its folder; skips where there is none."""
    found = sorted(PYTHONS.glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"Python {version} is not in {PYTHONS}")
    return str(found[0])


def bare() -> list[str]:
    """This Python without its packages."""
    return [sys.executable, "-S"]


def environment(home: Path, **more: str) -> dict[str, str]:
    names = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "HOME": str(home), "LOCALAPPDATA": str(home), "TMPDIR": str(home), **more}


def run(
    argv: list[str], home: Path, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    given = environment(home) if env is None else dict(env)
    return subprocess.run(argv, env=given, capture_output=True, text=True, timeout=300, cwd=home, **more)


def unpacked(home: Path) -> list[str]:
    """The folders in the cache, hidden ones too."""
    return sorted(path.name for path in (home / ".cache/gpucheck").iterdir() if path.is_dir())


def devices_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The kinds of devices that `devices --json` names."""
    return [device["kind"] for device in json.loads(done.stdout)["facts"]["devices"]]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_two_builds_are_the_same_bytes(pyz: Path, tmp_path: Path) -> None:
    assert built(tmp_path / "again").read_bytes() == pyz.read_bytes()


def test_it_brings_what_gpucheck_needs_for_each_platform_and_neither_torch_nor_what_it_needs(
    pyz: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(pyz) as outer:
        (tmp_path / "payload.zip").write_bytes(outer.read("payload.zip"))
    names = zipfile.ZipFile(tmp_path / "payload.zip").namelist()
    packages = {name.split("/")[1].removesuffix(".py") for name in names if name.startswith("lib/")}
    brought = {name for name in packages if not name.endswith(".dist-info")}
    assert brought == {
        *("typer", "annotated_doc", "shellingham", "colorama", "rich", "markdown_it", "mdurl", "pygments"),
        *("pynvml", "psutil", "tomli"),
    }
    assert sorted(name for name in names if name.startswith("native/")) == [
        "native/darwin-arm64/psutil/_psutil_osx.abi3.so",
        "native/darwin-x86_64/psutil/_psutil_osx.abi3.so",
        "native/linux-aarch64-glibc/psutil/_psutil_linux.abi3.so",
        "native/linux-aarch64-musl/psutil/_psutil_linux.abi3.so",
        "native/linux-x86_64-glibc/psutil/_psutil_linux.abi3.so",
        "native/linux-x86_64-musl/psutil/_psutil_linux.abi3.so",
        "native/win32-amd64/psutil/_psutil_windows.pyd",
        "native/win32-arm64/psutil/_psutil_windows.pyd",
    ]
    assert not [name for name in names if name.endswith((".so", ".pyd")) and not name.startswith("native/")]
    # A package without its licence must not be handed on.
    licensed = {name.split("/")[1].split("-")[0] for name in names if ".dist-info/" in name}
    assert {"typer", "rich", "psutil", "pygments", "markdown_it_py"} <= licensed


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_an_old_python_is_told_in_one_sentence(version: str, pyz: Path, tmp_path: Path) -> None:
    python = python_of(version)
    done = run([python, str(pyz), "devices"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"error: gpucheck needs Python 3\.10 or newer, and \S+ is Python {re.escape(version)}\.\d+\n", done.stderr
    )


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_it_runs_without_torch_or_any_package(version: str, pyz: Path, tmp_path: Path) -> None:
    python = python_of(version)
    done = run([python, "-S", str(pyz), "devices", "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "") or done.returncode in (1, 4), done.stderr
    assert devices_of(done)[-1] == "cpu"
    doctor = run([python, "-S", str(pyz), "doctor", "--only", "torch.missing"], tmp_path)
    assert doctor.returncode in (0, 1) and "Traceback" not in doctor.stderr
    page = run([python, "-S", str(pyz), "explain", "oom.cuda", "--output", "page.html"], tmp_path)
    assert page.returncode == 0 and (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@posix
def test_it_has_any_name_and_says_its_hash(pyz: Path, tmp_path: Path) -> None:
    link = tmp_path / "gpucheck"
    shutil.copy(pyz, link)
    digest = hashlib.sha256(pyz.read_bytes()).hexdigest()
    done = run([str(link), "--version"], tmp_path, {**environment(tmp_path), "PATH": os.path.dirname(sys.executable)})
    assert re.fullmatch(rf"gpucheck \S+ \({re.escape(str(link))}, sha256 {digest}\)\n", done.stdout), done.stderr
    assert not (tmp_path / ".cache").exists()


@pytest.mark.parametrize("byte", [0.1, 0.5, 0.9])
def test_a_damaged_file_is_one_sentence(byte: float, pyz: Path, tmp_path: Path) -> None:
    data = bytearray(pyz.read_bytes())
    place = int(len(data) * byte)
    data[place : place + 64] = bytes(64)
    broken = tmp_path / "broken"
    broken.write_bytes(data)
    done = run([*bare(), str(broken), "devices"], tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == f"error: {broken} is damaged"
    assert done.stderr.splitlines()[-1] == "  fix: copy the file again"
    assert unpacked(tmp_path) == []


# -- what the environment lacks ----------------------------------------------------------------------------------------


@pytest.fixture
def app(pyz: Path, tmp_path: Path) -> Path:
    """The folder of gpucheck that was unpacked."""
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    return next((tmp_path / ".cache/gpucheck").glob("*-*/app"))


@posix
def test_what_is_bundled_is_there_for_gpucheck_alone(app: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(app)!r})
from gpucheck.render import html, terminal
from gpucheck.machine import host
for name in ("pynvml", "typer", "tomli", "typing_extensions", "torch"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    print(name)
"""
    done = run([*bare(), "-c", program], tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


@posix
def test_psutil_of_the_environment_comes_first_and_a_typer_that_is_too_old_breaks_nothing(
    pyz: Path, app: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    for name in ("psutil", "typer"):
        (mine / name).mkdir(parents=True)
        (mine / name / "__init__.py").write_text(f"mine = {name!r}\n")
    env = environment(tmp_path, PYTHONPATH=str(mine))
    program = (
        f"import sys; sys.path.insert(0, {str(app)!r}); from gpucheck.machine import host; print(host.psutil.mine)"
    )
    assert run([*bare(), "-c", program], tmp_path, env).stdout == "psutil\n"
    assert run([*bare(), str(pyz), "lint", str(app / "gpucheck/errors.py")], tmp_path, env).returncode == 0


@posix
def test_a_program_sees_its_own_environment(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "for name in ('typer', 'rich', 'psutil', 'gpucheck'):\n"
        "    try:\n        __import__(name)\n"
        "    except ModuleNotFoundError:\n        print('no', name)\n"
        "print([one for one in sys.path if 'gpucheck' in one.rpartition('.cache')[2]])\n"
    )
    python = python_of("3.12")
    done = run([python, str(pyz), "run", "train.py"], tmp_path)
    assert done.stdout.splitlines() == ["no typer", "no rich", "no psutil", "no gpucheck", "[]"]


def test_a_torch_that_lacks_what_it_needs_is_not_helped(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import typing_extensions\n")
    done = run([*bare(), str(pyz), "smoke"], tmp_path, environment(tmp_path, PYTHONPATH=str(tmp_path)))
    assert (done.returncode, done.stdout) == (3, "")
    assert "cause: No module named 'typing_extensions'" in done.stderr


@posix
def test_a_dependency_for_another_machine_is_the_sentence_for_a_missing_one(
    pyz: Path, app: Path, tmp_path: Path
) -> None:
    (library,) = (app.parent / "lib/psutil").glob("*.so")
    library.write_bytes(b"for another machine")
    done = run([*bare(), str(pyz), "devices"], tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    what, why, fix = done.stderr.splitlines()
    assert what == "error: psutil, which gpucheck needs, cannot be imported"
    assert why.startswith("cause: ") and fix == f"  fix: {sys.executable} -m pip install --force-reinstall psutil"


@posix
def test_on_an_unknown_platform_psutil_of_the_environment_is_needed(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(
        "import os, runpy, sys\n"
        "named = os.uname()\n"
        "class Other:\n    machine = 'riscv64'\n    def __getattr__(self, name): return getattr(named, name)\n"
        "    def __iter__(self): return iter((*named[:4], self.machine))\n"
        f"os.uname = Other\nsys.argv = sys.argv[1:]\nrunpy.run_path({str(pyz)!r}, run_name='__main__')\n"
    )
    done = run([*bare(), "start.py", "gpucheck", "devices"], tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "error: psutil, which gpucheck needs, cannot be imported",
        "cause: No module named 'psutil'",
        f"  fix: {sys.executable} -m pip install --force-reinstall psutil",
    ]


# -- where it unpacks --------------------------------------------------------------------------------------------------


@posix
def test_ten_first_starts_at_once(pyz: Path, tmp_path: Path) -> None:
    argv = [*bare(), str(pyz), "schema"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": environment(tmp_path)}
    started = [subprocess.Popen(argv, **quiet) for _ in range(10)]
    assert [(one.communicate(timeout=300)[1], one.returncode) for one in started] == [(b"", 0)] * 10
    (name,) = unpacked(tmp_path)
    assert re.fullmatch(rf"[\d.]+-[0-9a-f]{{16}}-{re.escape(pyz_start.system())}", name)
    # Compiled as it was unpacked, under the path that it has now.
    assert list((tmp_path / ".cache/gpucheck" / name).glob("app/gpucheck/stress/__pycache__/judge.*.pyc"))


@posix
def test_a_start_that_is_killed_leaves_nothing_for_the_next(pyz: Path, tmp_path: Path) -> None:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment(tmp_path)}
    killed = subprocess.Popen([*bare(), str(pyz), "schema"], **quiet)
    cache = tmp_path / ".cache/gpucheck"
    until = time.monotonic() + 60
    while not list(cache.glob(".*.part/app")):
        assert time.monotonic() < until and killed.poll() is None
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(unpacked(tmp_path)) == 1
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    assert [name[0] for name in unpacked(tmp_path)] == ["0"]


@posix
def test_an_older_version_goes_unless_it_runs(pyz: Path, tmp_path: Path) -> None:
    older = built(tmp_path / "older.pyz", "0.0.9")
    text = subprocess.Popen(
        [*bare(), str(older), "explain", "-"], env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    cache, until = tmp_path / ".cache/gpucheck", time.monotonic() + 60
    while not list(cache.glob("0.0.9-*/complete")):
        assert time.monotonic() < until and text.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    assert len(unpacked(tmp_path)) == 2
    assert b"GPU memory is full" in text.communicate(b"CUDA out of memory", timeout=60)[0]
    shutil.rmtree(next(cache.glob("0.1.0-*")))
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    assert [name[:5] for name in unpacked(tmp_path)] == ["0.1.0"]


@posix
@pytest.mark.parametrize("home", ["", "relative", "/proc/1/fdinfo", "/dev/null"])
def test_without_a_home_it_unpacks_beside_temporary_files(home: str, pyz: Path, tmp_path: Path) -> None:
    env = {**environment(tmp_path), "HOME": home}
    assert run([*bare(), str(pyz), "schema"], tmp_path, env).returncode == 0
    folder = tmp_path / f"gpucheck-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700 and list(folder.glob("*/complete"))


@posix
@pytest.mark.parametrize("fault", ["world", "link", "foreign"])
def test_a_folder_that_others_can_change_is_refused(fault: str, pyz: Path, tmp_path: Path) -> None:
    cache = tmp_path / ".cache"
    cache.mkdir()
    if fault == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (cache / "gpucheck").symlink_to(tmp_path / "elsewhere")
    else:
        (cache / "gpucheck").mkdir(mode=0o700)
    if fault == "world":
        (cache / "gpucheck").chmod(0o777)
    elif fault == "foreign":
        if os.geteuid():
            pytest.skip("only root can give a folder away")
        os.chown(cache / "gpucheck", 12345, -1)
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    assert list((cache / "gpucheck").iterdir()) == []
    assert list((tmp_path / f"gpucheck-{os.geteuid()}").glob("*/complete"))


@posix
def test_a_file_system_mounted_noexec_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    assert pyz_start._refusal(str(tmp_path)) is None
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=getattr(os, "ST_NOEXEC", 0)))
    wanted = "its file system is mounted noexec" if hasattr(os, "ST_NOEXEC") else None
    assert pyz_start._refusal(str(tmp_path)) == wanted


@posix
def test_a_full_disk_is_one_sentence(pyz: Path, tmp_path: Path) -> None:
    import resource

    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    done = run([*bare(), str(pyz), "devices"], tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (3, "")
    what, why, fix = done.stderr.splitlines()
    assert what == f"error: {pyz} cannot unpack itself" and "File too large" in why
    assert fix.startswith("  fix: set TMPDIR to a folder of yours")
    assert unpacked(tmp_path) == []


@posix
def test_a_folder_that_was_cleared_up_in_part_is_unpacked_again(pyz: Path, app: Path, tmp_path: Path) -> None:
    (app.parent / pyz_start.MARK).unlink()
    (app / "gpucheck/errors.py").unlink()
    assert run([*bare(), str(pyz), "schema"], tmp_path).returncode == 0
    assert (app / "gpucheck/errors.py").exists() and len(unpacked(tmp_path)) == 1


# -- with torch --------------------------------------------------------------------------------------------------------


def test_a_python_without_torch_judges_the_torch_of_another(pyz: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    argv = [*bare(), str(pyz), "smoke", "--device", "cpu", "--only", "tensors", "--python", sys.executable, "--json"]
    done = run(argv, tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["facts"]["torch"]["version"] and "--python" not in document["argv"]


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (("doctor", "--quiet"), (0, 1)),
        (("smoke", "--device", "cpu", "--quiet"), (0,)),
        (("run", "--dry", "cuda:80GiB", "train.py"), (0,)),
        (("fleet", "check", "--only", "devices,smoke", "--devices", "0", "--gather", "nodes", "--quiet"), (0,)),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_commands_from_the_file(command: tuple[str, ...], codes: tuple[int, ...], pyz: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(8, 8).to('cuda')\nnet(torch.ones(4, 8, device='cuda')).sum().backward()\n"
    )
    (tmp_path / "nodes").mkdir()
    done = run([sys.executable, str(pyz), *command], tmp_path)
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@posix
def test_torchrun_starts_it(pyz: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text("import os, torch\nprint('rank', os.environ['RANK'], flush=True)\n")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([sys.executable, *launch, str(pyz), "run", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d", done.stdout)) == ["rank 0", "rank 1"]
