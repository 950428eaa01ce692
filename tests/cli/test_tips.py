"""What is proposed in place of a wrong command line: a line that can be typed, or the help page."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from shown import sentence

from gpucheck import errors
from gpucheck.cli import app, commands, tips

# What was typed, and the tip; where it is empty, the usage alone says what to type.
LINES = [
    ("bench collective --nproc 4", "gpucheck bench collective --ranks 4"),
    ("doctor --bundle", "gpucheck doctor --bundle report.zip"),
    ("compare a.json b.json c.json", ""),
    ("schema foo", ""),
    ("devices page.html", "gpucheck devices --output page.html"),
    ("bench all --csv", "gpucheck bench all --json"),
    ("bench all --format=HTML", "gpucheck bench all --output result.HTML"),
    ("--list", "gpucheck devices"),
    # The value of an option that `run` does not have is no program.
    ("--device cpu run train.py", "gpucheck run train.py --device cpu"),
    ("status --device cuda:0", "gpucheck devices --device cuda:0"),
    ("run --devices 2 --dry cuda train.py", "give the number of GPUs with the device, as in --dry cuda:80GiBx2"),
    ("judge a.json --min-gbps 9", "set thresholds in a file and give it with --config FILE"),
    ("bench all transfer", "gpucheck bench transfer"),
    ("top", "gpucheck devices --watch 2s"),
    ("nvidia-smi", "gpucheck devices"),
    ("bench transfer 64MB", "gpucheck bench transfer --size 64MB"),
    ("stress 60", "gpucheck stress --duration 60"),
    ("smoke cuda:0", "gpucheck smoke --device cuda:0"),
    ("train.py", "gpucheck run train.py"),
    ("devices 2s", "gpucheck devices --watch 2s"),
    ("stress --time 60", "gpucheck stress --duration 60"),
    ("bench all --format csv", "gpucheck bench all --json"),
    ("doctor --fix", "gpucheck doctor"),
    ("bench matmul --size 1024x1024", "gpucheck bench matmul --shape 1024x1024x1024"),
    ("bench matmul --fp16", "gpucheck bench matmul --dtype float16"),
    ("transfer", "gpucheck bench transfer"),
    ("devcies", "gpucheck devices"),
    ("gpu0", "gpucheck devices --device cuda:0"),
    ("oom.cuda", "gpucheck explain oom.cuda"),
    ("'CUDA out of memory'", "gpucheck explain 'CUDA out of memory'"),
    ("--json devices", "gpucheck devices --json"),
    ("--gpu 0 devices", "gpucheck devices --device cuda:0"),
    ("--jsn", "gpucheck status --json"),
    ("devices -o", "gpucheck devices -o result.json"),
    ("devices --watch soon", "write it like 30s, 5m or 250ms"),
    ("find-batch-size --bs 32 mlp", "gpucheck find-batch-size --max-batch-size 32 mlp"),
    (
        "find-batch-size 32",
        "write package.module:factory, path/to/file.py:factory, or one of mlp, convnet, transformer",
    ),
    ("find-batch-size --mode trian", "gpucheck find-batch-size --mode train"),
    ("model", "gpucheck model transformer --depth 2"),
    ("devices --json=3", "gpucheck devices --json"),
    ("doctor --device cpu", "gpucheck doctor"),
    ("devices --version", "gpucheck --version"),
    ("--verison", "gpucheck --version"),
    ("bench-transfer", "gpucheck bench transfer"),
    ("find-batch-size mlp --memory-limit 0", "write it like 4GiB, 50% or leave:2GiB"),
    ("report a.json --output page.pdf", "end the name in .html"),
    ("memory --device cuda:0,cuda:1", "give auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID"),
    ("smoke help", "gpucheck smoke --help"),
    ("run -device cuda train.py", "gpucheck run train.py -device cuda"),
    ("env", "gpucheck doctor --bundle report.zip"),
    ("python3 -m pkg.train", "gpucheck run -m pkg.train"),
    ("run --gpu 0 train.py", "gpucheck run train.py --gpu 0"),
    ("bench transfer 64MB 1GiB", "gpucheck bench transfer --size 64MB --size 1GiB"),
    ("smoke --all", "gpucheck smoke --device all"),
    ("devices --query-gpu=name,memory.total --format=csv", "gpucheck devices --json"),
    ("bench list", "gpucheck bench --help"),
    ("find-batch-size mlp 32", "gpucheck find-batch-size mlp --time-budget 32"),
    ("devices --no-color", "gpucheck devices"),
    ("devices verbose", "gpucheck devices --verbose"),
    ("status --processes", "gpucheck devices --processes"),
    (
        "run train.py --dry cuda",
        "gpucheck run --dry cuda train.py, or if the program takes it: gpucheck run -- train.py --dry cuda",
    ),
    ("memory --pid 5", ""),
    ("devices --watch", "gpucheck devices --watch 30s"),
]


@pytest.mark.parametrize(("line", "tip"), LINES)
def test_a_wrong_line_gets_the_next_one(
    line: str, tip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = shlex.split(line)
    assert app.main(given) == errors.USAGE
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and [one.partition(":")[0].strip() for one in lines] == (
        ["error", "tip", "usage"] if tip else ["error", "usage"]
    )
    assert sentence(captured.err).endswith(tip)
    # There is a line that can be typed.
    *_, usage = lines
    if not commands.is_in(tip):
        assert usage.startswith("usage: gpucheck ") and usage.endswith(" --help")
        assert tips.is_accepted(shlex.split(usage)[2:])
    elif tip.startswith("gpucheck ") and " or " not in tip:
        assert tips.is_accepted(shlex.split(tip)[1:])


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("devices --watch 2s", True),
        ("devices --watch soon", False),
        ("devices --device gpu0", False),
        ("bench transfer --size 64MB --device cuda:1", True),
        ("bench matmul --search --size 4096", False),
        ("bench --help", True),
        ("bench", False),
        ("smoke --help", True),
        ("smoke --list --help", False),
        ("run train.py --any thing", True),
        ("run --any thing train.py", False),
        ("compare a.json", False),
        ("--version", True),
        ("--help-me", False),
    ],
)
def test_a_line_is_read_without_running_it(line: str, taken: bool) -> None:
    assert tips.is_accepted(line.split()) is taken


@pytest.mark.slow
@pytest.mark.parametrize("words", [tips.WORDS, tips.OF_BENCH])
def test_every_line_of_the_tables_is_one_that_is_taken(words: dict[str, str]) -> None:
    refused = {word: line for word, line in words.items() if not tips.is_accepted(line.split())}
    # A target's file has to be there.
    assert set(refused.values()) <= {"model net.py:make"}
    assert not set(words) & set(commands.commands_in("bench" if words is not tips.WORDS else ""))


@pytest.mark.parametrize("name", ["list", "monitor", "nope", "nodes", "run-all"])
def test_what_is_hardly_alike_is_not_guessed(name: str) -> None:
    assert tips.near(name, list(commands.commands_in())) is None


def test_short_names_of_common_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["-V"]) == errors.OK
    version = capsys.readouterr().out
    assert app.main(["--version"]) == errors.OK and capsys.readouterr().out == version
    file = tmp_path / "page.json"
    assert app.main(["explain", "-q", "-o", str(file), "oom.cuda"]) == errors.OK
    assert file.is_file()


# -- another program's command line ------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert app.main(line) == errors.USAGE
    return sentence(capsys.readouterr().err)


def test_a_dry_run_behind_the_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import pkg.options, sys\n")
    said = refused(capsys, "run", "--quiet", "pkg/train.py", "--lr", "1", "--dry", "cuda:80GiB", "x")
    assert said.startswith("--dry cuda:80GiB comes after pkg/train.py: ")
    assert "; gpucheck run --dry cuda:80GiB --quiet pkg/train.py --lr 1 x, or " in said
    assert said.endswith(": gpucheck run --quiet -- pkg/train.py --lr 1 --dry cuda:80GiB x")
    assert "; gpucheck run --dry cuda -m pkg.train, or" in refused(capsys, "run", "-m", "pkg.train", "--dry=cuda")


@pytest.mark.parametrize("line", ["-- train.py --dry cuda", "train.py --dry", "train.py --dry run", "train.py -n cuda"])
def test_what_is_the_programs_own_is_left_to_it(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys\n")
    assert tips.is_accepted(["run", *line.split()])


def test_a_program_that_knows_the_name_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('parser.add_argument("--dry")\n')
    assert tips.is_accepted(["run", "train.py", "--dry", "cuda"])


def test_a_folder_without_a_main_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert refused(capsys, "run", "folder") == "the folder 'folder' has no __main__.py; gpucheck run folder/PROGRAM.py"


def test_an_empty_folder_of_a_fleet_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["fleet", "judge", str(tmp_path)]) == errors.COULD_NOT_LOOK
    out, err = capsys.readouterr()
    assert out == "" and sentence(err).startswith(f"no node's document is in {tmp_path}; give the folder")
