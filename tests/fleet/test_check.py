"""What a node's check makes of its parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shown import sentence
from tests.fleet.nodes import node

from gpucheck import options
from gpucheck.cli.app import main
from gpucheck.errors import Terminated
from gpucheck.fleet import check, documents
from gpucheck.fleet.options import FleetCheckOptions
from gpucheck.machine import child, driver_reads
from gpucheck.machine.child import ChildResult
from gpucheck.render.text import ADVICE
from gpucheck.report.facts import Device, Driver, Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats

EMPTY = node(devices=0, parts=(), exit=None, step="smoke")


def ended(stdout: str = "", returncode: int | None = 0, *, timed_out: bool = False, stderr: str = "") -> ChildResult:
    return ChildResult(returncode, stdout, stderr, timed_out, False, 2.0)


def said(verdict: str, code: int) -> str:
    """The document of a part with one finding."""
    finding = {"id": "a.b", "verdict": verdict, "title": "a\x1btitle", "message": "text"}
    summary = {"verdict": verdict, "exit": code, "complete": True}
    whole = {"schema": "gpucheck.report/1", "gpucheck": "1", "command": "smoke", "argv": ["--token", "secret"]}
    facts = {"environment": {"HF_TOKEN": "secret"}, "devices": [{"kind": "cuda", "id": "cuda:0", "name": "GPU"}]}
    rest = {"started": "", "elapsed_s": 1.0, "facts": facts, "measurements": [], "results": {}, "notices": []}
    return json.dumps({**whole, **rest, "findings": [finding], "summary": summary})


@pytest.mark.parametrize(
    ("result", "exit", "problem"),
    [
        (ended(said("pass", 0)), 0, None),
        (ended(said("skip", 0)), 0, None),
        (ended(said("fail", 1), 1), 1, "a\\x1btitle"),
        (ended(said("skip", 3), 3), 3, "a\\x1btitle"),
        (ended(said("inconclusive", 4), 4), 4, "a\\x1btitle"),
        (ended("", None, timed_out=True), 4, "did not finish within 10.0 s"),
        (ended("", -11), 4, "its process was ended by SIGSEGV"),
        (ended("", -9, stderr="x\nKilled"), 4, "its process was ended by SIGKILL: Killed"),
        (ended('{"half', 0), 4, "its process ended with 0"),
        (ended("[]", 1), 4, "its process ended with 1"),
    ],
)
def test_parts(result: ChildResult, exit: int, problem: str | None) -> None:
    made = check.with_part(EMPTY, "smoke", result, 10.0)
    assert check.exit_of(made.parts) == exit
    told = [f"{one.title}" if one.id == "a.b" else one.message for one in made.problems]
    assert told == ([] if problem is None else [problem])
    assert b"secret" not in documents.packed(made)


def test_a_part_that_had_no_time_says_so_and_one_with_little_says_how_much() -> None:
    """`fleet check --within 1s` said that a part did not finish within 0 s."""
    late = ended("", None, timed_out=True)
    assert check.with_part(EMPTY, "smoke", late, 0.3).parts[-1].ended == "not started: no time was left (--within)"
    assert check.with_part(EMPTY, "smoke", late, 0.62).parts[-1].ended == "did not finish within 620 ms"


@pytest.mark.parametrize(("verdict", "code", "exit"), [("fail", 1, 1), ("fail", 143, 1), ("warn", 0, 4)])
def test_what_a_part_had_proven_when_its_time_was_up_stays(verdict: str, code: int, exit: int) -> None:
    """A GPU computes wrongly and the next one hangs: the node is bad, whatever ended the part."""
    made = check.with_part(EMPTY, "smoke", ended(said(verdict, code), None, timed_out=True), 10.0)
    assert check.exit_of(made.parts) == exit
    assert sorted(one.verdict for one in made.problems) == sorted([verdict, "inconclusive"])


def test_a_row_is_a_figure_where_it_was_timed() -> None:
    time_s = TimeStats(1.0, 9)
    case = {"dtype": "bfloat16", "m": 8, "n": 8, "k": 4, "support": "native"}
    rest = (MemoryFigures(), Method("host", "host", "warm"), None, ("noisy",))
    row = Measurement("matmul", DeviceRef("cuda:0"), case, (), time_s, {}, Rate(5.0, "FLOP/s"), *rest)
    figure = check.figure_of(row)
    assert figure is not None
    assert (figure.case, figure.rate, figure.flags) == ("bfloat16 8x8x4", 5.0, ("noisy",))
    unknown = Measurement("matmul", DeviceRef("cuda:0"), case, (), None, {}, None, *rest)
    assert check.figure_of(unknown) is None


def planted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Every part is this Python program instead."""
    usual = child.python_argv

    def argv(module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", text, *arguments] if module == "gpucheck.cli.app" else usual(module, *arguments)

    monkeypatch.setattr(child, "python_argv", argv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "usual", "prolog"), [(0, 0, 0), (1, 1, 1), (3, 3, 0), (4, 4, 0)]
)  # fmt: skip
def test_exit_codes_and_those_of_a_prolog(
    code: int, usual: int, prolog: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict = {0: "pass", 1: "fail", 3: "skip", 4: "inconclusive"}[code]
    planted(monkeypatch, f"print({said(verdict, code)!r})")
    given = ["fleet", "check", "--quiet", "--host", "n1", "--run", "r", "--gather", str(tmp_path)]
    assert main([*given, "--only", "smoke"]) == usual
    (left,) = documents.read([str(tmp_path)]).documents
    assert (left.exit, left.step) == (code, "")
    assert main([*given, "--prolog"]) == prolog


DEAD = (
    ("nvml.init=!18", (), 1, "driver version mismatch"),
    ("nvml.init=!8", (), 1, "NVML does not start"),
    ("nvml.init=!9", (), 1, "no GPU found"),
    ("nvml.init=!9", ("--devices", "0"), 0, "n1 is good"),
    ("nvml.count=0", (), 1, "no GPU found"),
    ("0.handle=!8", (), 1, "power cable not connected"),
    ("1.handle=!11", (), 1, "interrupts do not arrive"),
    ("1.handle=!999", (), 1, "not answering"),
    ("mig=1", (), 1, "MIG mode without instances"),
    ("1.mig=1", (), 0, "n1 is good"),
    ("1.remap.pending=!999", (), 0, "n1 is good"),
    ("", (), 0, "n1 is good"),
    ("", ("--devices", "2"), 0, "n1 is good"),
    ("", ("--devices", "8"), 1, "2 GPUs, must have 8"),
    ("", ("--devices", "0"), 1, "2 GPUs, must have 0"),
)


@pytest.mark.parametrize(("script", "more", "code", "words"), DEAD)
def test_a_dead_node_is_never_good(
    script: str,
    more: tuple[str, ...],
    code: int,
    words: str,
    fake_driver: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_driver(f"{script}\n", cuda=False)
    given = ["fleet", "check", "--prolog", "--only", "devices", "--quiet", "--host", "n1", "--run", "r", *more]
    assert main(given) == code
    first = capsys.readouterr().out.splitlines()[0]
    assert words in first and ("is good" in first) == (code == 0)


@pytest.mark.parametrize(("more", "word"), [((), "✗ fail"), (("--devices", "0"), "– skip")])
def test_no_part_passes_that_found_no_gpu_to_check(
    more: tuple[str, ...], word: str, fake_driver: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake_driver("nvml.count=0\n", cuda=False)
    main(["fleet", "check", "--only", "devices", "--quiet", "--host", "n1", "--run", "r", *more])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" devices ")]
    assert word in row and ("no GPU to check" in row) == bool(more)


SXID = "nvidia-nvswitch1: SXid (PCI:0000:c3:00.0):"
KMSG = """
import sys
from pathlib import Path
from gpucheck.machine import kernel_driver
real = kernel_driver.log_from_device
kernel_driver.log_from_device = lambda path: real(Path({path!r}))
from gpucheck.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "more", "code", "words"),
    [
        (f"{SXID} 22003, Fatal, Link 04 Minion Halt", (), 1, "SXid 22003"),
        (f"{SXID} 10003, Non-fatal, Host_unhandled_interrupt", ("--only", "devices"), 1, "SXid 10003"),
        (f"{SXID} 24007, Non-fatal, Link 30 timeout", ("--only", "devices"), 0, "n1 is good"),
    ],
)
def test_the_kernels_log_fails_a_prolog_with_its_reason(
    line: str,
    more: tuple[str, ...],
    code: int,
    words: str,
    fake_driver: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_driver("nvml.count=2\ncuda.order=0,1\n")
    (tmp_path / "kmsg").write_text(f"4,1,1000000,-;{line}\n")
    planted(monkeypatch, KMSG.format(path=str(tmp_path / "kmsg")))
    assert main(["fleet", "check", "--prolog", "--quiet", "--host", "n1", "--run", "r", *more]) == code
    assert words in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("rungs", "exit", "verdicts"),
    [
        (("torch",), 4, ["inconclusive"]),
        (("architecture",), 4, ["inconclusive"]),
        (("cuinit", "torch"), 1, ["fail", "inconclusive"]),
        (("run",), 1, ["fail"]),
    ],
)
def test_a_torch_that_cannot_be_used_says_nothing_of_the_node(
    rungs: tuple[str, ...], exit: int, verdicts: list[str]
) -> None:
    document = json.loads(said("fail", 1))
    document["findings"] = [{**document["findings"][0], "id": rung, "evidence": {"rung": rung}} for rung in rungs]
    made = check.with_part(EMPTY, "doctor", ended(json.dumps(document), 1), 10.0)
    assert check.exit_of(made.parts) == exit
    assert [one.verdict for one in made.problems] == verdicts


def test_a_card_with_its_instances_is_one_gpu_and_what_was_not_read_is_no_number() -> None:
    card = Device(kind="cuda", uuid="GPU-a", nvml_index=0)
    instances = tuple(Device(kind="cuda", uuid=f"MIG-{n}", parent_uuid="GPU-a", cuda_index=n) for n in range(2))
    nameless = (Device(kind="cuda", nvml_index=1, state="lost"), Device(kind="cuda", nvml_index=2, state="lost"))
    cpu = Device(kind="cpu", id="cpu")
    assert check.gpus_of(Facts(devices=(card, *instances, *nameless, cpu))) == 3
    assert check.gpus_of(Facts()) is None
    assert check.gpus_of(Facts(devices=(cpu,), driver=Driver(nvml_error="nvidia-ml-py is not installed"))) is None
    assert check.gpus_of(Facts(devices=(cpu,), driver=Driver(nvml_code=12, nvml_error="x"))) == 0


def test_devices_has_the_time_in_which_a_hung_driver_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []

    def run(part: str, limit_s: float) -> object:
        given.append((part, limit_s))
        return ended(said("pass", 0))

    monkeypatch.setattr(driver_reads, "nvml_timeout_s", lambda: 29.0)
    monkeypatch.setattr(check, "_run", run)
    assert main(["fleet", "check", "--prolog", "--within", "60s", "--quiet", "--host", "n1", "--run", "r"]) == 0
    assert [part for part, _ in given] == ["devices", "doctor"]
    assert given[0][1] == pytest.approx(32.0, abs=0.1)


@pytest.mark.slow
def test_a_part_that_never_returns_is_ended_in_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted(monkeypatch, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    given = ["fleet", "check", "--quiet", "--host", "n1", "--only", "devices", "--within", "2s"]
    assert main([*given, "--run", "r", "--gather", str(tmp_path)]) == 4
    (left,) = documents.read([str(tmp_path)]).documents
    assert (left.parts[0].ended or "").startswith("did not finish within")  # what was left of 2 s as it began


def test_a_host_name_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "check", "--host", "n1;rm -rf /"]) == 2
    assert "is not a host name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, "devices doctor smoke bench"),
        ({"only": ["bench"]}, "bench"),
        ({"only": ["bench"], "with": ["memory"]}, "bench memory"),
        ({"skip": ["smoke,bench"]}, "devices doctor"),
        ({"prolog": True}, "devices doctor"),
        ({"prolog": True, "skip": ["smoke"]}, "devices doctor"),
        ({"prolog": True, "with": ["transfer"]}, "devices doctor transfer"),
        ({"only": ["mem", "dev"]}, "devices memory"),
    ],
)
def test_the_parts_that_are_chosen(given: dict[str, Any], parts: str) -> None:
    typed = {"with_" if name == "with" else name: value for name, value in given.items()}
    assert " ".join(options.read(FleetCheckOptions, typed).parts) == parts


@pytest.mark.parametrize("given", [("--only", "nothing"), ("--prolog", "--skip", "d"), ("--with", "bench2")])
def test_parts_that_are_none_are_usage_errors(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "check", *given]) == 2
    assert sentence(capsys.readouterr().err)


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    given = ["fleet", "check", "--quiet", "--run", "r", "--only", "devices", "--gather", str(tmp_path / "file")]
    assert main(given) == 3
    assert "cannot be written; Not a directory" in sentence(capsys.readouterr().err)


@pytest.mark.skipif(sys.platform != "linux", reason="a file system that does not answer")
def test_a_file_system_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "WRITE_S", 1.0)
    monkeypatch.setattr(child, "python_argv", lambda *given: [sys.executable, "-c", "import time; time.sleep(600)"])
    given = ["fleet", "check", "--quiet", "--run", "r", "--only", "devices", "--gather", str(tmp_path)]
    assert main(given) == 3
    assert "did not answer within 1 s" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "ended_by"), [(Terminated(), "SIGTERM"), (KeyboardInterrupt(), "SIGINT"),
                                              (RuntimeError("planted"), "RuntimeError: planted")])  # fmt: skip
def test_a_check_that_is_ended_writes_what_ended_it_and_where(
    error: BaseException, ended_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(part: str, limit_s: float) -> ChildResult:
        raise error

    monkeypatch.setattr(check, "_run", broken_off)
    options = FleetCheckOptions(only=("doctor",), gather=str(tmp_path), run="r", host="n1")
    with pytest.raises(type(error)):
        check.command(options, lambda event: None)
    (left,) = documents.read([str(tmp_path)]).documents
    assert (left.step, left.exit, left.ended) == ("doctor", None, ended_by)


@pytest.mark.parametrize(
    ("error", "code", "name"), [(Terminated(), 143, "SIGTERM"), (KeyboardInterrupt(), 130, "SIGINT")]
)
def test_a_check_that_is_cut_off_says_what_the_finished_parts_came_to(
    error: BaseException, code: int, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_off(part: str, limit_s: float) -> ChildResult:
        if part == "bench":
            raise error
        return ended(said("warn" if part == "smoke" else "pass", 0))

    monkeypatch.setattr(check, "_run", broken_off)
    given = ["fleet", "check", "--quiet", "--host", "n1", "--run", "r", "--within", "90s"]
    assert main([*given, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["summary"] == {"verdict": "inconclusive", "exit": code, "complete": False}
    told = document["results"]["fleet_check"]
    assert [part["id"] for part in told["parts"]] == ["devices", "doctor", "smoke"]
    assert (told["step"], told["exit"], told["ended"]) == ("bench", None, name)
    assert [device["id"] for device in told["devices"]] == ["cuda:0"]
    assert [(one["id"], one["verdict"]) for one in document["findings"]] == [
        ("a.b", "warn"),
        ("fleet.part", "inconclusive"),
    ]

    assert main(given) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"? n1 is not done: bench did not finish: {name} after 0 s of at most 1 min 30 s (--within)",
        f"{ADVICE}allow the check 1 min 30 s, or set a shorter --within",
    ]
    assert [line.split()[0] for line in lines if line.endswith("2.00 s")] == ["devices", "doctor", "smoke"]


@pytest.mark.parametrize("part", check.PARTS)
def test_the_command_in_an_advice_is_whole(part: str) -> None:
    made = check.with_part(EMPTY, part, ended("", None, timed_out=True), 1.0)
    (problem,) = made.problems
    assert problem.fix is not None
    # Every option that takes a value has it: the command line is the part's own.
    assert problem.fix == f"on n1: gpucheck {' '.join(check.arguments(part, 30.0))}"
    longer = check.with_part(EMPTY, part, ended("", None, timed_out=True), 40.0)
    assert longer.problems[0].fix == f"on n1: gpucheck {' '.join(check.arguments(part, 80.0))}"
    assert not problem.fix.endswith(("--time-budget", "--device", "--duration", "--only"))
