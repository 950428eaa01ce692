"""`gpucheck lint` as it is typed: paths, comments, what cannot be read, and each form of the answer."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli.app import main
from gpucheck.program.lint.options import RULES

MISTAKE = "import torch\nx = torch.ones(2)\nx.cuda()\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["lint", *arguments])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_a_mistake_is_shown_in_its_source(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.py").write_text(MISTAKE)
    code, out, _ = lint(capsys, "a.py")
    assert code == 1
    assert out.splitlines() == [
        "✗ 1 device mistake in 1 file",
        "",
        "a.py:3:1 lint.discarded_move `x` does not change: a tensor's .to() and .cuda() return a new tensor",
        "3 | x.cuda()",
        "→ assign the result: x = x.cuda()",
    ]


def test_no_mistake_passes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.py").write_text("import torch\n")
    assert lint(capsys, ".")[:2] == (0, "✓ no mistake that lint can see (11 rules) in 1 file\n")


def test_folders_are_searched_but_not_environments(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("src/deep", ".git", "node_modules/x", "build", "mine", "src/__pycache__"):
        (here / place).mkdir(parents=True)
        (here / place / "a.py").write_text(MISTAKE)
    (here / "mine" / "pyvenv.cfg").touch()
    (here / "src" / "notes.txt").write_text(MISTAKE)
    code, out, _ = lint(capsys, ".", "src/deep/a.py")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines() if "lint." in line] == ["src/deep/a.py:3:1"]


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MISTAKE.encode())))
    code, out, _ = lint(capsys, "-")
    assert code == 1 and out.splitlines()[2].startswith("<stdin>:3:1 lint.discarded_move")


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        ("# gpucheck: ignore", 0),
        ("# gpucheck: ignore[lint.discarded_move]", 0),
        ("# gpucheck:ignore[discarded_move]  # it warms up", 0),
        ("# noqa # gpucheck: ignore[lint.kept_graph, lint.discarded_move]", 0),
        ("# gpucheck: ignore[lint.kept_graph]", 1),
        ("# gpucheck: ignore[]", 1),
        ("; y = '# gpucheck: ignore'", 1),
        ("# gpucheck: ignored", 1),
    ],
)
def test_comments_ignore(here: Path, capsys: pytest.CaptureFixture[str], comment: str, code: int) -> None:
    (here / "a.py").write_text(MISTAKE.replace("x.cuda()", f"x.cuda()  {comment}"))
    assert lint(capsys, "a.py", "--json")[0] == code


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"def (:\n", "not valid Python: invalid syntax"),
        (b"x = 1\0\n", "not valid Python: source code string cannot contain null bytes"),
        (b"# coding: nonsense\n", "not valid Python: unknown encoding: nonsense"),
        (b"x = '\xff'\n", "codec can't decode byte 0xff"),
        (b"x = " + b"-" * 50_000 + b"1\n", "its expressions are nested too deeply"),
        (b"x = [" + b"1," * 3_000_000 + b"]\n", "it is larger than 4 MiB"),
    ],
    ids=["syntax", "null", "coding", "bytes", "deep", "large"],
)
def test_what_cannot_be_judged_is_undecided(
    here: Path, capsys: pytest.CaptureFixture[str], data: bytes, why: str
) -> None:
    (here / "a.py").write_bytes(data)
    code, out, _ = lint(capsys, "a.py", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (code, finding["id"], finding["verdict"]) == (4, "lint.unreadable", "inconclusive")
    assert why in finding["message"] and finding["evidence"]["file"] == "a.py"


def test_a_folder_that_may_not_be_read_is_no_pass(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "locked").mkdir()
    (here / "a.py").write_text("x = 1\n")
    real = os.scandir

    def scan(path: str) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "no", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    code, out, _ = lint(capsys, ".", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (code, finding["id"], finding["evidence"]["file"]) == (4, "lint.unreadable", "locked")


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + MISTAKE.encode(),
        MISTAKE.replace("\n", "\r\n").encode(),
        b"# -*- coding: latin-1 -*-\n# \xe9\n" + MISTAKE.encode(),
        MISTAKE.replace("\n", "\r").encode(),
    ],
    ids=["mark", "crlf", "latin-1", "cr"],
)
def test_encodings_and_line_ends(here: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    (here / "a.py").write_bytes(data)
    line = 5 if b"latin" in data else 3
    assert lint(capsys, "a.py")[1].splitlines()[2].startswith(f"a.py:{line}:1 lint.discarded_move")


def test_a_notebook_is_not_read_and_it_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "n.ipynb").write_text("{}")
    code, out, _ = lint(capsys, "n.ipynb")
    assert code == 3 and out.splitlines()[0] == "– 1 notebook not read"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "'none.py' does not exist"),
        (["--list", "."], "--list takes no path"),
        ([".", "--only", "lint.kept_grahp"], "gpucheck lint . --only lint.kept_graph"),
        ([".", "--output", "a.txt"], "--output 'a.txt' has an unknown format"),
    ],
)
def test_a_mistake_of_the_user(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code, out, err = lint(capsys, *arguments)
    assert (code, out) == (2, "") and words in sentence(err)


def test_a_folder_without_python_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, ".")[0] == 3


def test_rules_are_selected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.py").write_text(MISTAKE)
    assert lint(capsys, ".", "--skip", "lint.discarded")[0] == 0
    assert lint(capsys, ".", "--only", "lint.discarded")[0] == 1
    assert len(lint(capsys, "--list")[1].splitlines()) == len(RULES)
