"""`gpucheck report`: one page of saved results, and every command's `--output page.html`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from tests.fleet.nodes import node, slower

from gpucheck.cli import app as app_module
from gpucheck.fleet.documents import write
from gpucheck.render import html
from gpucheck.report.codec import to_json
from gpucheck.report.finding import WORST_FIRST
from gpucheck.report.report import Report

REPORTS = pages.everything()
NAMED = ("smoke", "devices", "run")


def saved(folder: Path, name: str, report: Report | str) -> str:
    path = folder / name
    found = REPORTS[report] if isinstance(report, str) else report
    path.write_text(json.dumps(to_json(found)), encoding="utf-8")
    return str(path)


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = app_module.main(["report", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def said(err: str) -> str:
    """An error in one line, without how the command is used."""
    lines = [line.strip() for line in err.splitlines()]
    return "; ".join(line.partition(": ")[2] for line in lines if not line.startswith("usage: "))


def test_one_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    path = saved(tmp_path, "a.json", "doctor")
    code, out, err = reported(capsys, path, "--output", str(page))
    # The result failed; the page was made.
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"· 1 result on {page}: 1 fail"
    assert "<title>fail: gpucheck doctor</title>" in page.read_text(encoding="utf-8")


def test_several_results_the_worst_first_and_json_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, document = tmp_path / "page.html", tmp_path / "page.json"
    paths = [saved(tmp_path, f"{name}.json", name) for name in NAMED]
    code, _, _ = reported(capsys, *paths, "--output", str(page), "--output", str(document))
    text = page.read_text(encoding="utf-8")
    worst_first = sorted(NAMED, key=lambda name: WORST_FIRST.index(html.answer_of(REPORTS[name])[0]))
    places = [text.index(f"<h2>{place}. gpucheck {name}: ") for place, name in enumerate(worst_first, 1)]
    assert code == 0 and places == sorted(places)
    (finding,) = json.loads(document.read_text(encoding="utf-8"))["findings"]
    assert finding["id"] == "report.page"


def test_the_folder_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = tmp_path / "nodes", tmp_path / "page.html"
    folder.mkdir()
    for document in (slower(node("n0"), "cuda:3", 0.2), *(node(f"n{number}") for number in range(1, 9))):
        write(folder, document)
    code, out, _ = reported(capsys, str(folder), "--output", str(page))
    text = page.read_text(encoding="utf-8")
    assert (code, out.splitlines()[0]) == (0, f"· 1 result on {page}: 1 fail")
    assert "cuda:3 reaches 0." in text


@pytest.mark.parametrize("is_link", [False, True])
def test_the_folder_of_a_jobs_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_link: bool) -> None:
    """`fleet judge` reads it: it was a bug of ours."""
    folder, page, file = tmp_path / "job", tmp_path / "page.html", tmp_path / "job" / "rank0.jsonl"
    folder.mkdir()
    if is_link:
        file.symlink_to("/dev/null")
    else:
        file.write_text('{"say":"rank","world":2,"hosts":false,"at_ns":0,"host":"n","local_rank":"0"}\n')
    code, out, _ = reported(capsys, str(folder), "--output", str(page))
    answer = f"· 1 result on {page}: 1 {'skip' if is_link else 'inconclusive'}"
    assert (code, out.splitlines()[0]) == (0, answer)
    assert ("1 of 2 ranks wrote here" in page.read_text(encoding="utf-8")) is not is_link


ODD = "the results cannot be shown: gpucheck does not write results with these details (KeyError"


def test_a_fleet_that_could_not_look_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = tmp_path / "nodes", tmp_path / "page.html"
    folder.mkdir()
    for number in range(3):
        write(folder, node(f"n{number}", exit=3, devices=0, figures=()))
    code, out, _ = reported(capsys, str(folder), "--output", str(page))
    assert (code, out.splitlines()[0]) == (0, f"· 1 result on {page}: 1 skip")
    assert "<title>skip: gpucheck fleet judge</title>" in page.read_text(encoding="utf-8")


REFUSED = {
    "no file": ("none.json", "cannot be read: No such file or directory"),
    "no JSON": ("text.json", "is not a JSON document"),
    "not ours": ("other.json", "is not a gpucheck document"),
    "another command": (
        "unknown.json",
        ODD,
    ),
    "no case": ("case.json", ODD),
    "no nodes": ("empty", "cannot be shown: the folder has no node's document"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_wrong_usage(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("{", encoding="utf-8")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    document = to_json(REPORTS["bench copies that reach the link"])
    (tmp_path / "unknown.json").write_text(json.dumps({**document, "command": "later"}), encoding="utf-8")
    document["measurements"][0]["case"] = {}
    (tmp_path / "case.json").write_text(json.dumps(document), encoding="utf-8")
    file, sentence = REFUSED[name]
    code, out, err = reported(capsys, file, "--output", "page.html")
    assert (code, out) == (2, "")
    assert sentence in said(err)
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "a.json", "smoke")
    code, out, err = reported(capsys, path, "--output", str(tmp_path / "none" / "page.html"))
    assert (code, out) == (3, "")
    assert "cannot be written; No such file or directory" in said(err)


def test_a_page_that_memory_does_not_suffice_for_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = saved(tmp_path, "a.json", "smoke"), tmp_path / "page.html"

    def full(*_: object, **__: object) -> str:
        raise MemoryError

    monkeypatch.setattr(html, "sheet", full)
    code, out, err = reported(capsys, path, "--output", str(page))
    assert (code, out) == (3, "")
    assert said(err) == "the page cannot be created; memory ran out on the host; free memory and run it again"
    code = app_module.main(["explain", "CUDA out of memory", "--output", str(page)])
    captured = capsys.readouterr()
    assert code == 3 and captured.out.startswith("GPU memory is full\n")
    sentence = f"--output {str(page)!r} cannot be written; memory ran out on the host; free memory and run it again"
    assert said(captured.err) == sentence
    assert os.listdir(tmp_path) == ["a.json"]


def test_every_command_writes_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, document, again = (tmp_path / name for name in ("a.html", "a.json", "b.html"))
    assert app_module.main(["explain", "CUDA out of memory", "--output", str(page), "--output", str(document)]) == 0
    assert reported(capsys, str(document), "--output", str(again))[0] == 0
    # It alone knows the name of the file.
    file = f"{document.name} · "
    told = again.read_text(encoding="utf-8")
    assert file in told and told.replace(file, "") == page.read_text(encoding="utf-8")


# Python of a head node has gpucheck's own dependencies, and no torch.
STUB = """
import importlib.machinery

finds = importlib.machinery.PathFinder.find_spec

def find(name, *rest):
    return None if name.partition(".")[0] in %r else finds(name, *rest)

importlib.machinery.PathFinder.find_spec = find
"""


def on_a_node(folder: Path, missing: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(STUB % (missing,), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "gpucheck", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_head_node_without_torch_makes_pages(tmp_path: Path) -> None:
    for number, name in enumerate(REPORTS):
        saved(tmp_path, f"{number}.json", name)
    names = [f"{number}.json" for number in range(len(REPORTS))]
    done = on_a_node(tmp_path, ("torch", "numpy"), "report", *names, "--output", "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").stat().st_size > 100_000
