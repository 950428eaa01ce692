"""The pure half of preparing: which Python, what is missing, which layer, and the sentences."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bootstrap import common, making, needs, sentences, start
from bootstrap.common import ENVIRONMENTS, Trouble
from bootstrap.interpreter import choose, python_of
from bootstrap.layers import is_ready, layer_folder, layer_python, read_stamp, write_stamp
from bootstrap.probe import probe
from gpucheck import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")

posix = pytest.mark.skipif(os.name == "nt", reason="lays an environment out as on POSIX")


# --- the project's own files ------------------------------------------------------------------------------------------


def test_requirements_are_read_as_toml_reads_them() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    assert needs.requirements(PYPROJECT, "dependencies") == project["dependencies"]
    for extra, names in project["optional-dependencies"].items():
        assert needs.requirements(PYPROJECT, extra) == names


def test_a_list_that_is_not_there_is_told() -> None:
    with pytest.raises(Trouble, match=r"^pyproject.toml has no list named docs\.$"):
        needs.requirements(PYPROJECT, "docs")


def test_what_the_project_says_and_what_the_scripts_say_agree() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    assert project["requires-python"] == ">={}.{}".format(*common.OLDEST_PYTHON)
    assert (common.USAGE, common.COULD_NOT_PREPARE) == (errors.USAGE, errors.COULD_NOT_LOOK)
    assert (common.INTERRUPTED, common.TERMINATED) == (errors.INTERRUPTED, errors.TERMINATED)
    wanted = {needs.name_of(requirement) for requirement in project["dependencies"]}
    assert wanted == {"torch", *making.MODULES}


def test_everything_that_is_installed_is_pinned() -> None:
    pins = needs.pins_of(CONSTRAINTS)
    for key in ("dependencies", "test", "dev"):
        for requirement in needs.requirements(PYPROJECT, key):
            if requirement == "gpucheck-cli[test]":  # the list above it
                continue
            assert needs.satisfied(requirement, pins, (3, 10), pins), requirement
    assert pins["torch"] == "2.13.0"


def test_every_line_of_the_constraints_is_a_pin() -> None:
    lines = [line for line in CONSTRAINTS.splitlines() if line and not line.startswith("#")]
    pin = re.compile(r"[A-Za-z0-9._-]+==[0-9][^\s;]*(; python_version (<|>=) \"3\.\d+\")?")
    assert [line for line in lines if not pin.fullmatch(line)] == []


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("2.13.0", (2, 13, 0)),
        ("2.6.0a0+ecf3bae40a.nv25.01", (2, 6, 0)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("13.615.71", (13, 615, 71)),
        ("2026.9.0", (2026, 9, 0)),
        ("1.0rc1", (1, 0)),
    ],
)
def test_release(version: str, numbers: tuple[int, ...]) -> None:
    assert needs.release(version) == numbers


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("nvidia-ml-py>=12.535", "nvidia-ml-py"),
        ("Jinja2>=3.1", "jinja2"),
        ("typing_extensions==4.16.0", "typing-extensions"),
        ('tomli>=2.0; python_version < "3.11"', "tomli"),
        ("ruff", "ruff"),
    ],
)
def test_name_of(requirement: str, name: str) -> None:
    assert needs.name_of(requirement) == name


@pytest.mark.parametrize(
    ("requirement", "installed", "python", "enough"),
    [
        ("rich>=13.8", {"rich": "13.8.0"}, (3, 11), True),
        ("rich>=13.8", {"rich": "13.10"}, (3, 11), True),
        ("rich>=13.8", {"rich": "13.7.1"}, (3, 11), False),
        ("rich>=13.8", {}, (3, 11), False),
        ('tomli>=2.0; python_version < "3.11"', {}, (3, 11), True),
        ('tomli>=2.0; python_version < "3.11"', {}, (3, 10), False),
        ("ruff", {"ruff": "0.17.5"}, (3, 11), True),
        ("ruff", {"ruff": "0.17.6"}, (3, 11), False),
        ("ruff", {}, (3, 11), False),
    ],
)
def test_satisfied(requirement: str, installed: dict[str, str], python: tuple[int, ...], enough: bool) -> None:
    assert needs.satisfied(requirement, installed, python, {"ruff": "0.17.5"}) is enough


def test_pins_of_what_is_there_are_left_out_unless_it_is_replaced() -> None:
    text = "# pins\ntorch==2.13.0\n\nrich==15.0.0\nPygments==2.21.0\ntyper==0.28.0\n"
    text += 'numpy==2.2.6; python_version < "3.11"\n'
    installed = {"torch": "2.4.0", "rich": "13.9", "pygments": "2.15", "typer": "0.9"}
    assert needs.constraints_beside(text, installed, ["typer>=0.26"]) == (
        'typer==0.28.0\nnumpy==2.2.6; python_version < "3.11"\n'
    )


def test_the_tools_settings_are_no_part_of_what_is_installed() -> None:
    text = '[project]\nname = "x"\n[tool.ruff]\nline-length = 1\n[[tool.mypy.overrides]]\nmodule = 2\n'
    text += "[build-system]\na = 3"
    assert needs.project_tables(text) == '[project]\nname = "x"\n[build-system]\na = 3'


# --- which Python -----------------------------------------------------------------------------------------------------


def environment(folder: Path) -> str:
    """An environment's folder with something in the place of its interpreter; returns the interpreter's path."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return str(python)


@posix
def test_which_python_is_chosen(tmp_path: Path) -> None:
    named, venv, conda = (environment(tmp_path / name) for name in ("named", "venv", "conda"))
    active = {"VIRTUAL_ENV": str(tmp_path / "venv"), "CONDA_PREFIX": str(tmp_path / "conda")}
    running = "/usr/bin/python3"
    assert choose({}, running) == running
    assert choose(active, running) == venv
    assert choose({**active, "VIRTUAL_ENV": ""}, running) == conda
    assert choose({**active, "VIRTUAL_ENV": str(tmp_path / "gone")}, running) == conda
    assert choose({"CONDA_PREFIX": str(tmp_path)}, running) == running  # a conda environment without Python
    assert choose({**active, "GPUCHECK_PYTHON": ""}, running) == venv
    for name in (named, str(tmp_path / "named")):
        assert choose({**active, "GPUCHECK_PYTHON": name}, running) == named
    assert choose({"GPUCHECK_PYTHON": "python", "PATH": str(tmp_path / "named" / "bin")}, running) == named


@posix
def test_the_interpreter_of_a_folder(tmp_path: Path) -> None:
    assert python_of(str(tmp_path)) is None
    assert python_of(environment(tmp_path / "there").removesuffix("/bin/python")) == str(tmp_path / "there/bin/python")


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(Trouble, match=r"^GPUCHECK_PYTHON=/no/such is no program") as caught:
        choose({"GPUCHECK_PYTHON": "/no/such", "PATH": ""}, sys.executable)
    assert caught.value.code == 2


# --- which layer, and whether it is ready -----------------------------------------------------------------------------


def test_the_layers_name_changes_with_what_it_holds() -> None:
    def name(python: str = "/opt/a/bin/python3", pyproject: str = "[project]\na", constraints: str = "c") -> str:
        return layer_folder(python, pyproject, constraints)

    assert name() == name(pyproject="[project]\na\n[tool.ruff]\nb")
    others = {name(python="/opt/b/bin/python3"), name(pyproject="[project]\nb"), name(constraints="d")}
    assert len({name(), *others}) == 4
    assert re.fullmatch(re.escape(ENVIRONMENTS + os.sep) + r"python3-[0-9a-f]{12}", name())
    assert layer_folder("/opt/a/bin/python3", "[project]\na", "c", dev=True) == name() + "-dev"


@posix
def test_ready_only_with_its_stamp_its_python_and_its_torch(tmp_path: Path) -> None:
    layer, torch = tmp_path / "layer", tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    environment(layer)
    stamp = {"interpreter": "/usr/bin/python3", "torch": str(torch), "folders": [str(tmp_path / "site")]}
    assert not is_ready(str(layer))
    write_stamp(str(layer), stamp)
    assert read_stamp(str(layer)) == stamp
    assert is_ready(str(layer))
    torch.rmdir()
    assert not is_ready(str(layer))
    write_stamp(str(layer), {**stamp, "torch": None})  # one with a torch of its own
    assert is_ready(str(layer))
    torch.mkdir()
    assert is_ready(str(layer))  # an empty folder is no torch
    (torch / "__init__.py").write_text("")
    assert not is_ready(str(layer))  # a torch has come to the Python at hand
    (torch / "__init__.py").unlink()
    (layer / "bin" / "python").unlink()
    assert not is_ready(str(layer))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_broken_stamp_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ready.json").write_text(text)
    assert read_stamp(str(tmp_path)) is None
    assert not is_ready(str(tmp_path))


def test_a_layers_python_on_this_system(tmp_path: Path) -> None:
    assert Path(layer_python(str(tmp_path))).parent.name == ("Scripts" if os.name == "nt" else "bin")


# --- what is written and said -----------------------------------------------------------------------------------------


def test_the_path_file_is_ascii_and_asks_first() -> None:
    lines = making.path_lines("/check out/é/src", ["/their/site-packages"]).splitlines()
    assert lines == [
        "import sys; '/check out/\\xe9/src' in sys.path or sys.path.append('/check out/\\xe9/src')",
        "import sys, site; '/their/site-packages' in sys.path or site.addsitedir('/their/site-packages')",
    ]


def test_what_pip_is_told_of_the_environment() -> None:
    around = {"PIP_INDEX_URL": "here", "PIP_TARGET": "there", "PYTHONPATH": "x", "PIP_CONSTRAINT": "y", "HOME": "/h"}
    assert making.pip_environment(around) == {"PIP_INDEX_URL": "here", "HOME": "/h", "PIP_USER": "0"}


def test_sentences() -> None:
    assert sentences.too_old("/usr/bin/python3", (3, 8, 18)) == (
        "/usr/bin/python3 is Python 3.8.18, and gpucheck needs 3.10 or newer; set GPUCHECK_PYTHON to a newer one."
    )
    assert sentences.torch_found("2.6.0", "/opt/x") == (
        "preparing an environment (only once) that uses torch 2.6.0 in /opt/x and does not change it"
    )
    assert "torch 2.13.0 is downloaded: about 3 GB with the CUDA libraries" in sentences.torch_wanted("2.13.0", "linux")
    assert "torch 2.13.0 is downloaded: about 200 MB." in sentences.torch_wanted("2.13.0", "darwin")
    assert sentences.pip_failed(["rich>=13.8", "psutil>=5.9"], 2).startswith(
        "pip could not install rich, psutil (exit 2, see its output above); the first start needs the network"
    )


@pytest.mark.parametrize(
    ("free", "sentence"),
    [
        (
            10 << 20,
            "the environment could not be made: the disk is full (10 MiB free); free disk space and start again.",
        ),
        (1 << 40, "pip said no"),
    ],
)
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, free: int, sentence: str) -> None:
    usage = shutil.disk_usage(".")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert str(making.failure("pip said no")) == sentence


def test_a_stray_module_in_the_current_folder_does_not_break_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "os", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('stray')")
    monkeypatch.chdir(tmp_path)
    assert probe(sys.executable, ["pytest"], os.environ).installed["pytest"]


# --- scripts/check ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="a tool that is a shell's script")
@pytest.mark.parametrize(
    ("fails", "tests", "code", "told"),
    [
        ("", "pass", 0, ""),
        ("ruff", "raise AssertionError('begun')", 1, "check: ruff check failed (exit 3)\n"),
        # What the tests would take is not waited for; but for that the first word would be theirs.
        ("mypy", "import time; time.sleep(50)", 1, "check: mypy --strict failed (exit 3)\n"),
        ("", "import sys; sys.exit(5)", 1, "check: scripts/test -x failed (exit 5)\n"),
    ],
)
def test_the_gate_names_what_fails_and_checks_types_beside_the_tests(
    fails: str,
    tests: str,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tool = tmp_path / "python"
    tool.write_text(f'#!/bin/sh\necho "$2 said"\ntest "$2" != "{fails}" || exit 3\n')
    tool.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test").write_text(tests)
    monkeypatch.setattr(start, "ROOT", str(tmp_path))
    assert start._check(str(tool), ["-x"]) == code
    said, failed = capfd.readouterr()
    assert failed.endswith(told)
    if fails != "ruff":
        assert said.endswith("== mypy --strict\nmypy said\n" + ("check: all passed\n" if code == 0 else ""))
        assert said.count("ruff said\n") == 2


@pytest.mark.skipif(os.name == "nt", reason="a tool that is a shell's script")
def test_a_gate_that_is_interrupted_leaves_neither_types_nor_tests_behind(tmp_path: Path) -> None:
    tool = tmp_path / "python"
    tool.write_text('#!/bin/sh\ntest "$2" != mypy || { echo $$ > mypy.pid; exec sleep 50; }\n')
    tool.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test").write_text(
        "import os, pathlib, time\npathlib.Path('test.pid').write_text(str(os.getpid()))\ntime.sleep(50)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(Path(start.__file__).parents[1])!r}); from bootstrap import start; "
        f"start.ROOT = {str(tmp_path)!r}; sys.exit(start._guarded(lambda: start._check({str(tool)!r}, [])))"
    )
    files = [tmp_path / "mypy.pid", tmp_path / "test.pid"]
    gate = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 20
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < until
        time.sleep(0.02)
    gate.send_signal(signal.SIGINT)
    assert gate.wait(20) == common.INTERRUPTED
    left = {int(file.read_text()) for file in files}
    while left := {pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"}:
        assert time.monotonic() < until, left
        time.sleep(0.02)
