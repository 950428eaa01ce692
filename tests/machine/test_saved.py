"""Files that anybody may have written: what is read of them, within which bounds, and what is refused."""

from __future__ import annotations

import codecs
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli import app
from gpucheck.machine import saved

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

BOUND = saved.Bound(2**18, 8, 2**17)
posix = pytest.mark.skipif(os.name != "posix", reason="pipes and devices")


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        lambda text: text.encode("utf-16-le"),
    ],
)
def test_encodings_that_shells_write(encode: Any, tmp_path: Path) -> None:
    assert saved.parsed(encode('{"a": "ü", "b": [1]}'), BOUND) == {"a": "ü", "b": [1]}
    (tmp_path / "x.json").write_bytes(encode(json.dumps(report())))
    assert saved.load(str(tmp_path / "x.json")).command == "bench bandwidth"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 9 + b"]" * 9, "nested too deeply"),
        (b'{"a":"\\\\","b":' + b"[" * 9 + b"]" * 9 + b"}", "nested too deeply"),
        (b'["\\"",' + b"[" * 9 + b"]" * 9 + b"]", "nested too deeply"),
        (b"[" + b"9" * 401 + b"]", "a number of 100 digits or more"),
        (b"[1." + b"0" * 401 + b"]", "a number of 100 digits or more"),
        (b"[" + b"1," * 2**17 + b"1]", "larger than 256 KiB"),
        (b"[" + b"," * 2**17 + b"]", "more than 131072 values"),
        (b'"' * 2**18, "not JSON"),
        (b"\\" * 2**18, "not JSON"),
        (b'{"a":1,"a":1}', "duplicate key"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'["\xed\xa0\x80"]', "no text"),
        (b"", "not JSON"),
    ],
)
def test_what_is_out_of_bounds(data: bytes, why: str) -> None:
    with pytest.raises(saved.InvalidFile, match=why):
        saved.parsed(data, BOUND)


def report(**changes: Any) -> dict[str, Any]:
    """A document of a benchmark with one row."""
    samples = [0.5 + place / 1e4 for place in range(20)]
    return {
        "schema": "gpucheck.report/1",
        "gpucheck": "0.1.0",
        "command": "bench bandwidth",
        "argv": [],
        "started": "2026-11-22T12:00:00Z",
        "elapsed_s": 1.0,
        "facts": {"devices": [{"kind": "cuda", "id": "cuda:0", "uuid": "GPU-1", "name": "a GPU"}]},
        "measurements": [
            {
                "name": "bandwidth",
                "device": {"id": "cuda:0", "uuid": "GPU-1", "name": "a GPU"},
                "case": {"operation": "copy", "size_bytes": 2**30},
                "runs": [{"started": "1", "calls_per_sample": 1, "samples_s": samples, "started_monotonic_s": samples}],
                "time_s": {"median": 0.5, "n": 20},
                "work": {"bytes": 2.0**31},
                "rate": {"median": 2.0**32, "unit": "B/s"},
                "memory": {},
                "method": {
                    "clock": "device events",
                    "launch": "held",
                    "cache": "cold",
                    "details": {"verified_slices": 4, "wrong_elements": 0},
                },
            }
        ],
        "findings": [],
        "results": {},
        "notices": [],
        "summary": {"verdict": "pass", "exit": 0, "complete": True},
        "parts": [{"id": "bandwidth", "device": "cuda:0", "begun": True, "ended": ""}],
        **changes,
    }


def _row(**changes: Any) -> dict[str, Any]:
    return report(measurements=[{**report()["measurements"][0], **changes}])


HOSTILE = {
    "nested": json.dumps(report(x=1))[:-1].encode() + b',"y":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "a float of 401 digits": json.dumps(report(elapsed_s="?")).replace('"?"', "9" * 401).encode(),
    "a whole number beyond a float": json.dumps(_row(work={"bytes": 10**60})).encode(),
    "a list for a number": json.dumps(_row(rate={"median": [1], "unit": "B/s"})).encode(),
    "text for a number": json.dumps(_row(time_s={"median": "1", "n": 20})).encode(),
    "true for a number": json.dumps(_row(time_s={"median": True, "n": 20})).encode(),
    "text for a list": json.dumps(report(notices="abc")).encode(),
    "a number for text": json.dumps(report(command=3)).encode(),
    "infinity": json.dumps(report(elapsed_s="?")).replace('"?"', "1e999").encode(),
    "an unknown verdict": json.dumps(report(summary={"verdict": "fine", "exit": 0, "complete": True})).encode(),
    "a list for a row": json.dumps(report(measurements=[[]])).encode(),
    "a directory": None,
}


@pytest.mark.parametrize("which", HOSTILE)
@pytest.mark.parametrize("command", ["judge", "compare", "--baseline"])
def test_a_hostile_file_is_one_sentence(
    which: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, sound = tmp_path / "x.json", tmp_path / "sound.json"
    sound.write_text(json.dumps(report()))
    data = HOSTILE[which]
    path.mkdir() if data is None else path.write_bytes(data)
    given = {
        "judge": ["judge", str(path)],
        "compare": ["compare", str(sound), str(path)],
        "--baseline": ["bench", "bandwidth", "--device", "cpu", "--runs", "1", "--baseline", str(path)],
    }
    assert app.main(given[command]) == 2
    captured = capsys.readouterr()
    assert str(path) in sentence(captured.err) and captured.out == ""


@posix
@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/null"])
@pytest.mark.parametrize("command", ["judge", "fleet judge"])
def test_what_is_no_regular_file_is_not_waited_for(
    path: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert app.main([*command.split(), path]) == 2
    assert "no regular file" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="files of the kernel")
@pytest.mark.parametrize("path", ["/proc/kmsg", "/proc/self/status"])
@pytest.mark.parametrize("command", ["judge", "compare", "fleet judge"])
def test_a_file_of_the_kernel_is_not_read(path: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """/proc/kmsg gives nothing at once, which is no bytes either: exit 70."""
    assert app.main([*command.split(), *([path] * (1 + (command == "compare")))]) == 2
    assert "empty, or a file of the kernel" in capsys.readouterr().err


def test_a_detail_that_no_benchmark_writes_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = report()["measurements"][0]["method"]
    for number, changes in enumerate(
        (
            {"case": {"operation": "copy"}},
            {"case": {"operation": "copy", "size_bytes": "much"}},
            {"method": {**method, "details": {"verified_slices": [], "wrong_elements": "0"}}},
        )
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(_row(**changes)))
        assert app.main(["judge", str(path)]) == 2
        said = capsys.readouterr().err
        assert "cannot be judged: `gpucheck bench bandwidth` does not write rows with these details" in said


def test_text_of_a_document_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    name = "GPU \x1b[2J\x9b31m\u202e\ud800"
    row = _row(device={"id": "cuda:0", "uuid": "GPU-1", "name": name})
    path.write_text(json.dumps({**row, "notices": [name]}))
    app.main(["judge", str(path), "--verbose"])
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.slow
@posix
def test_seeded_hostile_files(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's files, few of them and without their times: each is refused in a sentence, or judged."""
    import hostile_files

    monkeypatch.setattr(sys, "argv", ["hostile_files.py", "--files", "20", "--seed", "7"])
    monkeypatch.setattr(hostile_files, "LONGEST_S", float("inf"))
    monkeypatch.setattr(hostile_files, "quotes_beside_numbers", lambda: 0.0)
    assert hostile_files.main() == 0, capsys.readouterr().out
