"""scripts/gpucheck and scripts/test as processes, on a checkout, a Python with packages and a pip that are all made by
hand: nothing is fetched, torch is never real, and what happens at once is decided by files, not by time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# What stands in for gpucheck: it tells what it was started with, and ends with an exit code of its own.
STAND_IN = """
import importlib.util, json, os, sys

def main() -> int:
    print(json.dumps({
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "python": sys.prefix,
        "torch": importlib.util.find_spec("torch").origin,
        "typer": importlib.util.find_spec("typer").origin,
        "path": sys.path,
        "stdin": sys.stdin.read(),
    }))
    return 7
"""

# What stands in for pip: it notes that it was called, waits while a file named `hold` stands beside the notes, then
# puts an empty module and its metadata for each requirement into the environment that it runs in, like pip.
FAKE_PIP = """
import json, os, pathlib, sys, sysconfig, time

notes = pathlib.Path({notes!r})
with open(notes / "calls", "a") as file:
    file.write(json.dumps({{"arguments": sys.argv[1:], "environ": dict(os.environ)}}) + "\\n")
print("pip speaks", flush=True)
for _ in range(1500):
    if not (notes / "hold").exists():
        break
    time.sleep(0.02)
if (notes / "fail").exists():
    sys.exit("pip: no route to host")
limits = sys.argv[sys.argv.index("-c") + 1]
for line in open(limits):
    name, version = line.split(";")[0].strip().split("==")
    if not any(a.lower().startswith(name.lower()) for a in sys.argv[4:]):
        continue
    folder = pathlib.Path(sysconfig.get_path("purelib"))
    module = {{"nvidia-ml-py": "pynvml"}}.get(name, name)
    (folder / (module + ".py")).write_text("")
    metadata = folder / (name.replace("-", "_") + "-" + version + ".dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: " + name + "\\nVersion: " + version + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Python:
    """A venv made by hand, with the packages it is given."""

    folder: Path
    notes: Path

    @property
    def executable(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next((self.folder / "lib").glob("python*")) / "site-packages"

    def add(self, name: str, version: str, module: str = "", text: str = "") -> None:
        """A package: a module with its metadata, as pip leaves it."""
        (self.packages / (module or name)).mkdir()
        (self.packages / (module or name) / "__init__.py").write_text(text)
        metadata = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    def add_torch(self) -> None:
        self.add("torch", "2.4.0a0+vendor.1", text="raise AssertionError('torch was imported')")

    def add_small(self, *but: str) -> None:
        """All that gpucheck needs besides torch, new enough, except for the names in `but`."""
        rows = (("typer", ""), ("rich", ""), ("nvidia-ml-py", "pynvml"), ("psutil", ""), ("tomli", ""))
        for name, module in rows:
            if name not in but:
                self.add(name, "99.0", module)

    def add_tools(self) -> None:
        """All that the tests need, where no exact version is asked for."""
        for name in ("pytest", "jsonschema", "numpy"):
            self.add(name, "99.0")

    def add_pip(self) -> None:
        (self.packages / "pip").mkdir()
        (self.packages / "pip" / "__init__.py").write_text("")
        (self.packages / "pip" / "__main__.py").write_text(FAKE_PIP.format(notes=str(self.notes)))

    def remove_ensurepip(self) -> None:
        """Like Debian's Python without python3-venv."""
        (self.packages / "no_ensurepip.pth").write_text("import sys; sys.modules['ensurepip'] = None\n")

    def pip_calls(self) -> list[dict[str, object]]:
        calls = self.notes / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def snapshot(self) -> dict[str, tuple[int, int, int]]:
        """Every file and folder with its size and times; the time of change moves also when a mode or owner does."""
        found = {}
        for path in [self.folder, *self.folder.rglob("*")]:
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return found


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the project's frame, with the stand-in for gpucheck."""

    folder: Path

    @property
    def environments(self) -> Path:
        return self.folder / ".gpucheck-env"

    def layers(self) -> list[Path]:
        return sorted(path for path in self.environments.iterdir() if path.is_dir())

    def environ(self, python: Python | None, **more: str) -> dict[str, str]:
        """A person's environment: nothing active, and no index that pip could reach."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "SYSTEMROOT") if name in os.environ}
        named = {"GPUCHECK_PYTHON": str(python.executable)} if python else {}
        return {**kept, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **named, **more}

    def start(self, python: Python | None, *arguments: str, script: str = "gpucheck", **environ: str) -> Started:
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "scripts" / script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ(python, **environ),
        )
        return Started(process)

    def run(self, python: Python | None, *arguments: str, script: str = "gpucheck", **environ: str) -> Ended:
        return self.start(python, *arguments, script=script, **environ).end()


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, object]:
        """What the stand-in printed: stdout holds that alone."""
        answer: dict[str, object] = json.loads(self.out)
        return answer


@dataclass(frozen=True, slots=True)
class Started:
    process: subprocess.Popen[str]

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=60)
        return Ended(self.process.returncode, out, err)


def wait_for(path: Path) -> None:
    """Until the file is there; a minute is far more than any of this takes, even on a busy machine."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "a check-out é"  # a space and a letter outside ASCII: paths must be quoted and encoded right
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=ignored)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    package = folder / "src" / "gpucheck" / "cli"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(textwrap.dedent(STAND_IN))
    (package.parent / "__main__.py").write_text("from gpucheck.cli.app import main\n")
    return Checkout(folder)


@pytest.fixture
def python(tmp_path: Path) -> Python:
    folder, notes = tmp_path / "their python", tmp_path / "notes"
    notes.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return Python(folder, notes)


needs_links = pytest.mark.skipif(os.name == "nt", reason="the made-up Python is laid out as on POSIX")
pytestmark = [needs_links, pytest.mark.slow]


# --- a torch that is there --------------------------------------------------------------------------------------------


def test_a_torch_that_is_there_is_used_and_nothing_there_changes(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    before = python.snapshot()
    ended = checkout.run(python, "smoke", "--only", "a b")
    assert ended.code == 7
    assert ended.told["arguments"] == ["smoke", "--only", "a b"]
    assert ended.told["torch"] == str(python.packages / "torch" / "__init__.py")
    (layer,) = checkout.layers()
    assert ended.told["python"] == str(layer)
    assert ended.err == (
        "gpucheck: preparing an environment (only once) that uses torch 2.4.0a0+vendor.1 in "
        f"{python.packages} and does not change it\n"
    )
    assert python.snapshot() == before


def test_the_second_start_prepares_nothing(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    checkout.run(python)
    (layer,) = checkout.layers()
    made = (layer / "ready.json").stat().st_mtime_ns
    ended = checkout.run(python, "devices", "--json")
    assert (ended.code, ended.err) == (7, "")
    assert ended.told["arguments"] == ["devices", "--json"]
    assert (layer / "ready.json").stat().st_mtime_ns == made


def test_only_what_is_missing_is_installed_and_at_the_pins(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small("psutil", "typer")
    python.add("typer", "0.1.0")  # too old: ours stands beside it
    python.add_pip()
    python.remove_ensurepip()
    before = python.snapshot()
    ended = checkout.run(python, PIP_TARGET="/elsewhere", PIP_CONSTRAINT="/vendor.txt", PIP_USER="1")
    (call,) = python.pip_calls()
    (layer,) = checkout.layers()
    assert ended.code == 7, ended.err
    assert call["arguments"] == [
        *("install", "--disable-pip-version-check", "-c", str(layer / "constraints.txt")),
        *("--quiet", "typer>=0.26", "psutil>=5.9"),
    ]
    limits = (layer / "constraints.txt").read_text()
    assert "typer==" in limits and "psutil==" in limits
    assert "torch==" not in limits and "rich==" not in limits
    told = call["environ"]
    assert isinstance(told, dict)
    assert {"PIP_TARGET", "PIP_CONSTRAINT"} & told.keys() == set()
    assert (told["PIP_USER"], told["PIP_NO_INDEX"]) == ("0", "1")
    assert "pip speaks" in ended.err  # and not on stdout, which `told` reads whole
    assert str(ended.told["typer"]).startswith(str(layer))
    assert python.snapshot() == before


def test_the_callers_folder_and_a_link_to_the_script(checkout: Checkout, python: Python, tmp_path: Path) -> None:
    python.add_torch()
    python.add_small()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "torch").mkdir()  # a folder of this name is not torch
    (elsewhere / "torch" / "__init__.py").write_text("")
    link = tmp_path / "gc"
    link.symlink_to(checkout.folder / "scripts" / "gpucheck")
    ended = subprocess.run(
        [sys.executable, str(link), "x"],
        cwd=elsewhere,
        env=checkout.environ(python),
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = json.loads(ended.stdout)
    assert (told["folder"], told["stdin"]) == (str(elsewhere), "typed")
    assert told["torch"] == str(python.packages / "torch" / "__init__.py")
    assert str(checkout.folder / "src") in told["path"]
    assert str(checkout.folder / "scripts") not in told["path"][0]


def test_the_active_environment_is_the_python_at_hand(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    ended = checkout.run(None, VIRTUAL_ENV=str(python.folder))
    assert ended.told["torch"] == str(python.packages / "torch" / "__init__.py")
    conda = checkout.run(None, CONDA_PREFIX=str(python.folder), VIRTUAL_ENV="/gone")
    assert conda.told["python"] == ended.told["python"]
    assert conda.err == ""


def test_an_activated_layer_stands_for_the_python_behind_it(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    checkout.run(python)
    (layer,) = checkout.layers()
    ended = checkout.run(None, VIRTUAL_ENV=str(layer))
    assert (ended.code, ended.err, ended.told["python"]) == (7, "", str(layer))


def test_a_torch_known_through_pythonpath_alone(checkout: Checkout, python: Python, tmp_path: Path) -> None:
    module = tmp_path / "module"
    (module / "torch").mkdir(parents=True)
    (module / "torch" / "__init__.py").write_text("")
    python.add_small()
    ended = checkout.run(python, PYTHONPATH=str(module))
    assert ended.told["torch"] == str(module / "torch" / "__init__.py")
    assert checkout.run(python).told["torch"] == str(module / "torch" / "__init__.py")


# --- no torch ---------------------------------------------------------------------------------------------------------


def test_without_torch_it_says_what_is_fetched_and_how_large_and_fails_in_a_sentence(
    checkout: Checkout, python: Python
) -> None:
    python.add_small()  # of a Python without torch nothing is used
    ended = checkout.run(python)
    assert ended.code == 3
    assert ended.out == ""
    first, *_, last = ended.err.splitlines()
    assert "has no torch, so torch 2.13.0 is downloaded: " in first
    assert "200 MB" in first and "GPUCHECK_PYTHON" in first
    assert last.startswith("gpucheck: pip could not install torch, typer, rich, nvidia-ml-py, psutil")
    assert "ERROR: " in ended.err  # pip's own words
    assert checkout.layers() == []


def test_a_python_without_ensurepip_names_the_package_to_install(checkout: Checkout, python: Python) -> None:
    python.remove_ensurepip()
    ended = checkout.run(python)
    assert ended.code == 3
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"`sudo apt install python{version}-venv`" in ended.err
    assert checkout.layers() == []


# --- what is no Python for this ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (None, "is no program that can be started; give the path of a Python 3.10 or newer."),
        ("exit 1", "is no working Python (exit 1); set GPUCHECK_PYTHON to another one."),
        ("echo 'no such module' >&2", "is no working Python (no such module); set GPUCHECK_PYTHON to another one."),
        (
            """echo '<probe>{"version": [3, 9, 18]}</probe>'""",
            "is Python 3.9.18, and gpucheck needs 3.10 or newer; set GPUCHECK_PYTHON to a newer one.",
        ),
    ],
)
def test_what_is_no_python_for_this(checkout: Checkout, tmp_path: Path, program: str | None, sentence: str) -> None:
    path = tmp_path / "snake"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    ended = checkout.run(None, GPUCHECK_PYTHON=str(path))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("gpucheck: ") and ended.err.endswith(f"{path} {sentence}\n")
    assert ended.err.count("\n") == 1


# --- two at once, and stopped half-way --------------------------------------------------------------------------------


@pytest.fixture
def slow(python: Python) -> Python:
    """A Python whose pip stops half-way until the file `hold` is gone."""
    python.add_torch()
    python.add_small("psutil")
    python.add_pip()
    python.remove_ensurepip()
    (python.notes / "hold").touch()
    return python


def test_two_starts_at_once_prepare_once(checkout: Checkout, slow: Python) -> None:
    first = checkout.start(slow, "first")
    wait_for(slow.notes / "calls")
    second = checkout.start(slow, "second")
    assert second.process.stderr is not None
    assert second.process.stderr.readline() == "gpucheck: waiting: another start is preparing the environment\n"
    (slow.notes / "hold").unlink()
    ended = [first.end(), second.end()]
    assert [(e.code, e.told["arguments"]) for e in ended] == [(7, ["first"]), (7, ["second"])]
    assert ended[1].err == ""
    assert len(slow.pip_calls()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_half_way_leaves_nothing(checkout: Checkout, slow: Python, number: int, code: int) -> None:
    first = checkout.start(slow)
    wait_for(slow.notes / "calls")
    first.process.send_signal(number)
    ended = first.end()
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.endswith("gpucheck: stopped while preparing; the next start begins anew\n")
    assert checkout.layers() == []


def test_killed_half_way_is_not_trusted_and_its_pip_is_waited_for(checkout: Checkout, slow: Python) -> None:
    first = checkout.start(slow)
    wait_for(slow.notes / "calls")
    first.process.kill()
    first.process.wait(60)
    assert len(checkout.layers()) == 1  # half-made, and its pip still runs
    second = checkout.start(slow)
    assert second.process.stderr is not None
    assert second.process.stderr.readline() == "gpucheck: waiting: another start is preparing the environment\n"
    (slow.notes / "hold").unlink()
    assert second.end().code == 7
    assert len(slow.pip_calls()) == 2
    first.end()


def test_a_pip_that_fails_leaves_nothing_and_the_next_start_mends_it(checkout: Checkout, slow: Python) -> None:
    (slow.notes / "hold").unlink()
    (slow.notes / "fail").touch()
    ended = checkout.run(slow)
    assert ended.code == 3
    assert "pip: no route to host\ngpucheck: pip could not install psutil (exit 1, see its output above)" in ended.err
    assert checkout.layers() == []
    (slow.notes / "fail").unlink()
    assert checkout.run(slow).code == 7


# --- layers that are true no more -------------------------------------------------------------------------------------


def test_new_pins_make_a_new_layer_and_remove_the_old(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    checkout.run(python)
    (old,) = checkout.layers()
    with open(checkout.folder / "constraints.txt", "a") as file:
        file.write("six==1.17.0\n")
    assert checkout.run(python).code == 7
    (new,) = checkout.layers()
    assert new != old


def test_a_layer_that_a_command_runs_in_stays(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    checkout.run(python)
    (old,) = checkout.layers()
    running = subprocess.Popen(
        [sys.executable, str(checkout.folder / "scripts" / "gpucheck")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=checkout.environ(python),
    )
    assert running.stdin is not None
    try:
        wait_for_use(old)
        with open(checkout.folder / "constraints.txt", "a") as file:
            file.write("six==1.17.0\n")
        checkout.run(python)
        assert old in checkout.layers()
    finally:
        running.communicate(b"", timeout=60)
    with open(checkout.folder / "constraints.txt", "a") as file:
        file.write("toml==0.10.2\n")
    checkout.run(python)
    assert len(checkout.layers()) == 1


def wait_for_use(layer: Path) -> None:
    from bootstrap.lock import in_use

    deadline = time.monotonic() + 60
    while not in_use(str(layer)):
        assert time.monotonic() < deadline, "nothing took the layer into use"
        time.sleep(0.01)


def test_a_torch_that_goes_or_comes_is_noticed(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    python.remove_ensurepip()
    checkout.run(python)
    shutil.rmtree(python.packages / "torch")
    gone = checkout.run(python)
    assert gone.code == 3  # it is to be fetched now, and this Python can make no environment for that
    assert "has no torch" in gone.err
    (python.packages / "torch").mkdir()
    (python.packages / "torch" / "__init__.py").write_text("")
    assert checkout.run(python).code == 7


# --- the tests' tools -------------------------------------------------------------------------------------------------


def test_the_tools_get_a_layer_of_their_own_at_exact_pins(checkout: Checkout, python: Python) -> None:
    python.add_torch()
    python.add_small()
    python.add_tools()
    (python.packages / "pytest" / "__main__.py").write_text(
        "import json, os, sys\n"
        "told = {'arguments': sys.argv[1:], 'folder': os.getcwd(), 'python': sys.prefix, 'path': sys.path}\n"
        "print(json.dumps(told))\n"
    )
    python.add_pip()
    python.remove_ensurepip()
    ended = checkout.run(python, "-k", "a b", script="test")
    assert ended.code == 0, ended.err
    assert ended.told["arguments"] == [
        *("--durations=10", "-n", str(min((os.cpu_count() or 1) + 1, 4)), "--dist", "loadfile"),
        "--max-worker-restart=0",
        *("-k", "a b"),
    ]
    assert ended.told["folder"] == str(checkout.folder)
    assert "minutes" not in ended.err  # of a few tests nobody knows it
    assert "gpucheck: the quick set of tests takes about 5 minutes" in checkout.run(python, script="test").err
    assert "gpucheck: all tests take about 13 minutes" in checkout.run(python, "--all", script="test").err
    first, tools = checkout.layers()
    assert ended.told["python"] == str(tools)
    path = ended.told["path"]
    assert isinstance(path, list)
    assert path.index(str(checkout.folder / "src")) < path.index(str(python.packages))
    (call,) = python.pip_calls()
    arguments = call["arguments"]
    assert isinstance(arguments, list)
    assert arguments[-2:] == ["ruff", "mypy"]
    assert checkout.run(python).told["python"] == str(first)
