"""What people copy: each file is valid, names what there is, and where it is shell it is run."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.nodes import node, slower

from gpucheck import errors
from gpucheck.cli import commands
from gpucheck.cli.parse import HelpCommand
from gpucheck.fleet.documents import write
from gpucheck.report.results.fleet import NodePart, NodeProblem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SHELL = sorted(EXAMPLES.rglob("*.sh"))
YAML = [ROOT / "action.yml", *sorted(EXAMPLES.rglob("*.yml")), *sorted(EXAMPLES.rglob("*.yaml"))]
BASH = shutil.which("bash") if os.name == "posix" else None
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")


def loaded(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads these files")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def accepts(words: list[str]) -> str:
    """Let the command's own parser read a command line behind `gpucheck`; the command's name."""
    name = next(name for size in (2, 1) if (name := " ".join(words[:size])) in commands.names())
    row = commands.find(name)
    assert row is not None
    HelpCommand(row).make_context(name, list(words[len(name.split()) :]))
    return name


def commands_in(text: str) -> list[list[str]]:
    """The command lines of gpucheck in a script or a page, without what is the shell's."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"\$\{?(\w+)[^}\s\"]*\}?", r"\1", text)
    known = "|".join(sorted({name.split()[0] for name in commands.names()}))
    found = re.findall(rf"(?:gpucheck|GPUCHECK\"?) ((?:{known}) [^\n`|;&)>]*)", text)
    return [shlex.split(re.sub(r"\s\d$", "", one.replace("\\", ""))) for one in found]  # `2` of `2>`


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_file_is_valid_yaml(path: Path) -> None:
    assert isinstance(loaded(path), dict)


@pytest.mark.parametrize("path", [path for path in EXAMPLES.rglob("*") if path.is_file()], ids=lambda path: path.name)
def test_the_commands_in_it_are_accepted(path: Path) -> None:
    known = commands_in(path.read_text(encoding="utf-8"))
    assert [accepts(words) for words in known] or path.name in ("gpucheck.timer", "github.yml")


@pytest.mark.parametrize("name", ["job.yaml", "daemonset.yaml"])
def test_a_pod_has_a_command_that_is_accepted(name: str) -> None:
    document = loaded(EXAMPLES / "kubernetes" / name)
    assert document["kind"] in ("Job", "DaemonSet") and document["metadata"]["name"]
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    if name == "job.yaml":
        assert accepts(container["args"]) == "fleet check"
        assert document["spec"]["completions"] == document["spec"]["parallelism"] == 64
    else:
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["volumes"]}
    assert container["image"] == "IMAGE"


@pytest.mark.parametrize("name", ["gpucheck.service", "gpucheck.timer"])
def test_a_unit_is_well_formed(name: str, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((EXAMPLES / "systemd" / name).read_text(encoding="utf-8"))
    assert "Unit" in unit
    if name.endswith(".service"):
        program, *words = shlex.split(unit["Service"]["ExecStart"])
        assert Path(program).is_absolute() and accepts(words) == "devices"
    if shutil.which("systemd-analyze"):
        for file in (EXAMPLES / "systemd").iterdir():
            text = file.read_text(encoding="utf-8").replace("/opt/gpucheck/bin/gpucheck", "/bin/true")
            (tmp_path / file.name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True
        )
        mine = [line for line in done.stderr.splitlines() if "gpucheck" in line]
        assert mine == []


# -- shell -------------------------------------------------------------------------------------------------------------


@needs_bash
@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_script_is_well_formed(path: Path) -> None:
    assert subprocess.run([str(BASH), "-n", str(path)], capture_output=True, text=True).stderr == ""
    assert os.access(path, os.X_OK)


def played(folder: Path, name: str, script: str) -> Path:
    """A program that stands in for another: it notes what it was called with, then runs the script."""
    path = folder / name
    path.write_text(f'#!{BASH}\nprintf "%s\\n" "$0 $*" >> "{folder}/calls"\n{script}\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def called(folder: Path, name: str) -> list[str]:
    path = folder / "calls"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{folder / name} ")]


def run(path: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), **variables}
    command = [str(BASH), str(path)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


@needs_bash
@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 0), (3, 0), (4, 0), (70, 0)])
def test_the_prolog_fails_for_a_bad_node_alone(code: int, ends: int, tmp_path: Path) -> None:
    gpucheck = played(tmp_path, "gpucheck", f"exit {code}")
    assert run(EXAMPLES / "slurm/prolog.sh", tmp_path, GPUCHECK=str(gpucheck)).returncode == ends
    assert called(tmp_path, "gpucheck") == ["fleet check --prolog --within 60s --quiet"]


@needs_bash
def test_a_node_without_gpucheck_is_no_bad_node(tmp_path: Path) -> None:
    played(tmp_path, "scontrol", "")
    for name in ("prolog.sh", "epilog.sh"):
        assert run(EXAMPLES / "slurm" / name, tmp_path, GPUCHECK=str(tmp_path / "none")).returncode == 0
    assert called(tmp_path, "scontrol") == []


@needs_bash
@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_epilog_drains_a_bad_node_with_its_reason(code: int, tmp_path: Path) -> None:
    gpucheck = played(tmp_path, "gpucheck", f"echo '✗ n1 is bad: GPU lost'; echo more; exit {code}")
    played(tmp_path, "scontrol", "")
    done = run(EXAMPLES / "slurm/epilog.sh", tmp_path, GPUCHECK=str(gpucheck), SLURMD_NODENAME="n1")
    assert done.returncode == 0
    drained = ["update NodeName=n1 State=DRAIN Reason=gpucheck: ✗ n1 is bad: GPU lost"]
    assert called(tmp_path, "scontrol") == (drained if code == 1 else [])


def nodes(folder: Path, *, bad: bool) -> None:
    """The documents that srun's tasks leave."""
    folder.mkdir(parents=True)
    problem = NodeProblem("smoke", "fail", "numerics.matmul", "a product is wrong")
    broken = node("n0", exit=1, run="7", parts=(NodePart("smoke", 1, 1.0),), problems=(problem,))
    slow = slower(node("n1", run="7"), "cuda:3", 0.2)
    sound = [node(f"n{number}", run="7") for number in range(0 if not bad else 2, 9)]
    for document in [*([broken, slow] if bad else []), *sound]:
        write(folder, document)


NIGHT = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-8]"}


def night(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    source = os.environ["PYTHONPATH"]
    gpucheck = played(folder, "gpucheck", f'PYTHONPATH="{source}" exec "{sys.executable}" -m gpucheck "$@"')
    played(folder, "srun", "exit 1")
    played(folder, "scontrol", "")
    variables = {"GPUCHECK": str(gpucheck), "SHARED": str(folder / "shared"), **NIGHT, **variables}
    return run(EXAMPLES / "slurm/nightly.sh", folder, **variables)


@pytest.mark.slow
@needs_bash
def test_the_nightly_job_drains_the_nodes_of_bad_txt(tmp_path: Path) -> None:
    nodes(tmp_path / "shared/7/nodes", bad=True)
    done = night(tmp_path)
    page = tmp_path / "shared/7/fleet.html"
    assert done.returncode == errors.FAILED, done.stderr
    assert called(tmp_path, "scontrol") == [
        f"update NodeName={host} State=DRAIN Reason=gpucheck job 7: see {page}" for host in ("n0", "n1")
    ]
    assert "<title>fail: " in page.read_text(encoding="utf-8")
    (task,) = called(tmp_path, "srun")
    assert f"fleet check --gather {tmp_path}/shared/7/nodes" in task


@pytest.mark.slow
@needs_bash
def test_the_nightly_job_drains_nobody_where_all_are_good_or_it_is_told_not_to(tmp_path: Path) -> None:
    nodes(tmp_path / "good/shared/7/nodes", bad=False)
    assert night(tmp_path / "good").returncode == 0
    nodes(tmp_path / "bad/shared/7/nodes", bad=True)
    done = night(tmp_path / "bad", DRAIN="no")
    assert (done.returncode, "bad: n0" in done.stdout) == (1, True)
    assert called(tmp_path / "good", "scontrol") == called(tmp_path / "bad", "scontrol") == []


@needs_bash
def test_the_nightly_job_drains_nobody_where_nothing_was_judged(tmp_path: Path) -> None:
    nodes(tmp_path / "shared/7/nodes", bad=True)
    lists = tmp_path / "shared/7/lists"
    lists.mkdir()
    (lists / "bad.txt").write_text("n5\n", encoding="utf-8")
    assert night(tmp_path, SLURM_JOB_NODELIST="n[").returncode == errors.USAGE
    assert called(tmp_path, "scontrol") == []


# -- the action --------------------------------------------------------------------------------------------------------

ECHO = 'for one in "$@"; do printf "<%s>" "$one"; done; echo; exit "${CODE:-0}"'


def acted(folder: Path, code: int = 0, /, **inputs: str) -> tuple[int, str, str]:
    """Run the action's step as a runner does: the exit code, the arguments, and the step's outputs."""
    action = loaded(ROOT / "action.yml")
    (step,) = action["runs"]["steps"]
    assert step["shell"] == "bash" and "${{" not in step["run"]
    given = {name: one["default"] for name, one in action["inputs"].items()} | inputs
    assert set(inputs) <= set(action["inputs"])
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], text)
        for name, text in step["env"].items()
    }
    played(folder, "python3", f'if [ "${{1##*/}}" = pyz ]; then touch built; exit "${{BUILD:-0}}"; fi; shift; {ECHO}')
    script, outputs = folder / "step.sh", folder / "outputs"
    script.write_text(step["run"], encoding="utf-8")
    variables = {"ACTION_PATH": str(folder), "GITHUB_OUTPUT": str(outputs), "CODE": str(code)}
    done = run(script, folder, **{**environment, **variables})
    return done.returncode, done.stdout.strip() + done.stderr, outputs.read_text(encoding="utf-8")


@needs_bash
def test_the_actions_inputs_are_options(tmp_path: Path) -> None:
    code, said, outputs = acted(
        tmp_path,
        1,
        command="bench matmul",
        device="cuda:1",
        config="a b.toml",
        output="x.xml y.html",
        strict="true",
        arguments="--size 64 --dtype 'float32'",
        **{"time-budget": "30s"},
    )
    assert code == 1 and outputs == "exit-code=1\n"
    assert said == (
        "<bench><matmul><--device><cuda:1><--time-budget><30s><--config><a b.toml><--output><x.xml><--output><y.html>"
        "<--strict><--size><64><--dtype><float32>"
    )


@needs_bash
def test_without_inputs_the_action_runs_smoke(tmp_path: Path) -> None:
    code, said, _ = acted(tmp_path)
    assert (code, said) == (0, "<smoke><--output><gpucheck.xml><--output><gpucheck.html>")
    assert called(tmp_path, "python3")[0] == f"{tmp_path}/scripts/pyz {tmp_path}/dist/gpucheck.pyz"


@needs_bash
def test_arguments_with_half_a_quote_are_wrong_usage(tmp_path: Path) -> None:
    """What stood behind it was left out, thresholds too, and the step passed."""
    code, said, outputs = acted(tmp_path, arguments="--label it's --min-tflops 300")
    assert (code, outputs) == (2, "exit-code=2\n") and "quote" in said and "<" not in said
    assert acted(tmp_path, arguments=" \n")[1] == "<smoke><--output><gpucheck.xml><--output><gpucheck.html>"


@needs_bash
def test_nothing_in_an_input_is_run(tmp_path: Path) -> None:
    evil = '$(touch owned) `touch owned`; touch owned & "; touch owned'
    for place, name in enumerate(("device", "config", "require", "command", "output")):
        folder = tmp_path / str(place)
        folder.mkdir()
        acted(folder, **{name: evil})
        assert not list(tmp_path.rglob("owned")), name
    folder = tmp_path / "arguments"
    folder.mkdir()
    _, said, _ = acted(folder, arguments="$(touch owned) ; `touch owned`")
    assert not list(tmp_path.rglob("owned")) and "<$(touch><owned)><;>" in said


# -- the wheel and the image -------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    whole: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return whole


def test_all_that_gpucheck_needs_but_torch_is_in_its_file() -> None:
    text = (ROOT / "scripts/pyz").read_text(encoding="utf-8")
    needs = project()["dependencies"]
    names = [re.split("[><=;]", one)[0] for one in needs]
    assert [name for name in names if f'"{name}"' not in text and f"{name}==" not in text] == ["torch"]


def shell(command: str, folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    # What is installed is started once or twice: compiling all of it takes longer than that. pip takes the variable of
    # an option that begins with `no` for what it switches off: 0 says that nothing is compiled.
    environment |= {"PIP_NO_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run([str(BASH), "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)


Fresh = Callable[[Path], Path]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Makes an environment with pip in a folder, and returns its interpreter. pip is a copy of the one beside pytest,
    which is compiled; where there is none, the one that comes with Python is unpacked, for the first alone: the others
    are copies, in which `python -m pip` and what it installs know their own folder."""
    first = tmp_path_factory.mktemp("environment") / "first"

    def make() -> None:
        files = [file for one in metadata.distributions(name="pip") for file in one.files or ()]
        venv.create(first, with_pip=not files)
        (packages,) = first.glob("lib/python*/site-packages")
        for file in files:
            if ".." not in file.parts:  # commands, which name the interpreter that they were made for
                place = packages / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), place)  # with its time, by which Python knows what is compiled

    def copy(folder: Path) -> Path:
        if not first.exists():
            make()
        shutil.copytree(first, folder, symlinks=True)
        return folder / "bin" / "python3"

    return copy


@pytest.fixture(scope="module")
def wheel(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as README makes it."""
    top = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, top)
    shutil.copytree(ROOT / "src", top / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = shell("python3 -m pip wheel --no-deps --wheel-dir wheels .", top, fresh(top / "python"))
    if done.returncode and "hatchling" in done.stdout + done.stderr:
        pytest.skip("no package index gives the build's backend")
    assert done.returncode == 0, done.stderr
    (made,) = (top / "wheels").iterdir()
    return made


def steps(number: int) -> list[list[str]]:
    """The lines of one stage of the Dockerfile, the first is 0, in words."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stage = re.split(r"^FROM ", text, flags=re.MULTILINE)[number + 1]
    return [line.split() for line in stage.splitlines() if line.split()[:1] in (["COPY"], ["RUN"])]


def test_the_image_is_built_of_what_is_there_and_what_docker_may_see() -> None:
    *copied, ran = steps(0)
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"}
    sources = {source for words in copied for source in words[1:-1]}
    assert sources == seen and all((ROOT / source).exists() for source in sources)
    # It reads nothing else.
    text = (ROOT / "scripts/pyz").read_text(encoding="utf-8")
    assert set(re.findall(r'ROOT / "([^"]+)"', text)) - {"dist"} == sources
    (copy, start) = steps(1)
    assert copy == ["COPY", "--from=build", ran[-1], "/usr/local/bin/"] and start[:3] == ["RUN", "gpucheck", "schema"]


@needs_bash
@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    files = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gpucheck/")}
    source = ROOT / "src"
    kept = (path for path in (source / "gpucheck").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert files == {path.relative_to(source).as_posix() for path in kept}


# -- pages -------------------------------------------------------------------------------------------------------------

AGENTS = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return AGENTS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_page_for_agents_has_every_exit_code() -> None:
    cells = re.findall(r"^\| ([\d, ]+) \|", section("Exit codes"), re.MULTILINE)
    assert [int(code) for cell in cells for code in cell.split(",")] == [row.code for row in errors.EXITS]


def test_the_page_for_agents_says_of_every_command_whether_it_is_safe() -> None:
    rows = re.findall(r"^\| (`.*?) \| ", section("What is safe to run unasked"), re.MULTILINE)
    named = {words.partition(" --")[0] for row in rows for words in re.findall(r"`([^`]+)`", row)}
    assert named == set(commands.names())


def test_what_the_pages_tell_to_run_is_accepted() -> None:
    found = commands_in(AGENTS)
    assert len(found) > 5
    for words in found:
        if words[0] != "schema" and "ID" not in words:
            accepts(words)


def test_the_fields_that_agents_are_told_to_read_are_there() -> None:
    import json

    whole = json.loads((ROOT / "src/gpucheck/report/schema.json").read_text(encoding="utf-8"))
    named = re.findall(r"`((?:summary|findings|facts|measurements|results)(?:\[\d?\])?(?:\.\w+(?:\[\d?\])?)*)`", AGENTS)
    assert len(named) > 15
    for path in named:
        place = whole
        for part in path.replace("[0]", "[]").split("."):
            name = part.removesuffix("[]")
            while name not in place.get("properties", {}):
                reference = place.get("$ref") or next(
                    (one["$ref"] for one in place.get("anyOf", ()) if "$ref" in one), None
                )
                assert reference, f"{path}: {name}"
                place = whole["$defs"][reference.rpartition("/")[2]]
            place = place["properties"][name]
            if part.endswith("[]"):
                place = next((one for one in place.get("anyOf", ()) if "items" in one), place)["items"]
