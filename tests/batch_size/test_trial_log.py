from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.history import plan
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.batch_size.trial_log import Entry, TrialLog, identity_of, judged_anew
from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.facts import Facts, TorchBuild

FACTS = Facts(torch=TorchBuild(version="2.13.0"))

TRIAL = TrialResult(batch_size=8, purpose="search", fresh_process=True, outcome="fits", peak_bytes=7)
# A trial as a log has it.
SOUND = {
    "batch_size": 8,
    "purpose": "search",
    "fresh_process": True,
    "outcome": "fits",
    "peak_bytes": 7,
    "steps_s": [0.5],
}
# What somebody may have made of it.
EDITS: list[dict[str, Any]] = [
    {"batch_size": "8"},
    {"batch_size": 0},
    {"batch_size": 8.5},
    {"batch_size": True},
    {"outcome": "fit"},
    {"peak_bytes": "7"},
    {"peak_bytes": -7},
    {"compute_peak_bytes": []},
    {"steps_s": ["0.5"]},
    {"steps_s": 0.5},
    {"seconds": None},
    {"memory": []},
    {"reason": None},
]


def identity(**options: Any) -> dict[str, Any]:
    return identity_of(plan(FindBatchSizeOptions(**{"target": "mlp", **options})), FACTS)


def entry(outcome: Any, peak: int | None, budget: int = 100, **parts: Any) -> Entry:
    return Entry(
        "cpu",
        budget,
        TrialResult(batch_size=8, purpose="search", fresh_process=False, outcome=outcome, peak_bytes=peak, **parts),
    )


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    trial = replace(TRIAL, steps_s=(0.5, 0.25), memory={"x": 1})
    with closing(TrialLog(path, identity())) as log:
        assert log.known("cpu", 100) == []
        log.write("cpu", 100, trial)
        log.write("cuda:0 a GPU", 100, trial)
    with closing(TrialLog(path, identity())) as log:
        (known,) = log.known("cpu", 100)
    assert known.resumed
    assert (known.batch_size, known.steps_s, known.memory) == (8, (0.5, 0.25), {"x": 1})


@pytest.mark.parametrize(
    ("logged", "budget", "outcome"),
    [
        (entry("fits", 90), 100, "fits"),
        (entry("fits", 90), 80, "over-budget"),  # there is less than there was
        (entry("fits", None), 80, "fits"),
        (entry("over-budget", 120), 110, "over-budget"),
        (entry("over-budget", 120), 130, None),  # it may fit, or have been cut off below its peak
        (entry("out-of-memory", None), 100, "out-of-memory"),
        (entry("out-of-memory", None), 99, "out-of-memory"),
        (entry("out-of-memory", None), 101, None),
        (entry("size-limit", None), 500, "size-limit"),  # whatever the memory
        (entry("timeout", None), 100, None),
        (entry("killed", None), 100, None),
        (entry("over-budget", 120, cut=True), 100, None),
        (entry("inconclusive", 50), 100, None),
        (entry("user-error", None), 100, None),
        (entry("device-broken", None), 100, None),
    ],
)
def test_a_trial_is_held_against_the_budget_of_today(logged: Entry, budget: int, outcome: str | None) -> None:
    found = judged_anew(logged, budget)
    assert (found and found.outcome) == outcome


def test_a_confirmation_is_made_again() -> None:
    confirmed = Entry("cpu", 100, replace(TRIAL, purpose="confirm", peak_bytes=90))
    found = judged_anew(confirmed, 100)
    assert found is not None
    assert found.purpose == "search"


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_cut_off_is_taken_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    with closing(TrialLog(str(path), identity())) as log:
        log.write("cpu", 100, TRIAL)
        log.write("cpu", 100, TRIAL)
    path.write_bytes(path.read_bytes()[:-cut])
    with closing(TrialLog(str(path), identity())) as log:
        assert len(log.known("cpu", 100)) == 1
        log.write("cpu", 100, TRIAL)
    with closing(TrialLog(str(path), identity())) as log:
        assert len(log.known("cpu", 100)) == 2


def test_a_header_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    TrialLog(str(path), identity()).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    TrialLog(str(path), identity()).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "infer"}, "its mode is 'train', this search has 'infer'"),
        ({"target": "convnet"}, "its target is 'mlp', this search has 'convnet'"),
        ({"inputs": ("x:64:float32",)}, "its inputs is [], this search has ['x:64:float32']"),
        ({"amp": "bfloat16"}, "its amp is None, this search has 'bfloat16'"),
    ],
)
def test_the_trials_of_another_search_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    path = str(tmp_path / "log")
    TrialLog(path, identity()).close()
    with pytest.raises(UsageError) as caught:
        TrialLog(path, identity(**options))
    assert caught.value.what == f"--resume {path!r} holds trials of another search"
    assert caught.value.why == said


def test_a_target_whose_file_changed_is_another(tmp_path: Path) -> None:
    path, model = str(tmp_path / "log"), tmp_path / "model.py"
    model.write_text("def build(): ...\n")
    TrialLog(path, identity(target=f"{model}:build")).close()
    model.write_text("def build(): ...  # otherwise\n")
    with pytest.raises(UsageError, match="another search; the target's file has changed"):
        TrialLog(path, identity(target=f"{model}:build"))


def test_a_module_that_changed_is_another_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "nets_of_a_log"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('only a trial may run this')\n")
    (package / "small.py").write_text("def build(): ...\n")
    path = str(tmp_path / "log")
    named = identity(target="nets_of_a_log.small:build")
    assert named["target_sha256"] == identity(target="nets_of_a_log/small.py:build")["target_sha256"]
    TrialLog(path, named).close()
    (package / "small.py").write_text("def build(): ...  # otherwise\n")
    with pytest.raises(UsageError, match="another search; the target's file has changed"):
        TrialLog(path, identity(target="nets_of_a_log.small:build"))
    for missing in ("nets_of_a_log.large:build", "nets_of_a_log.small.part:build", "nowhere.at.all:build"):
        assert identity(target=missing)["target_sha256"] is None


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "hello\n",
        "\n",
        "{}\n",
        '{"schema": "gpucheck.report/1"}\n',
        "[1]\n",
        "\x00\xff\n",
        # The end of a file that is none of ours stays too.
        "the first line\nand the last, without its end",
        "\x80checkpoint\n\n\x00\x01",
    ],
)
def test_another_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a log of trials"):
        TrialLog(str(path), identity())
    assert path.read_text() == text


def test_a_log_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"schema": "gpucheck.trials/1"}\n')
    with pytest.raises(UsageError, match=r"is a log of another version of gpucheck; its format is gpucheck\.trials/1"):
        TrialLog(str(path), identity())
    assert path.read_text() == '{"schema": "gpucheck.trials/1"}\n'


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "",
        "[]",
        '{"device": "cpu"}',
        '{"device": 1, "budget_bytes": 1, "trial": 2}',
        *(json.dumps({"device": "cpu", "budget_bytes": 100, "trial": {**SOUND, **edit}}) for edit in EDITS),
    ],
)
def test_a_line_that_is_no_trial_is_refused_and_kept(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    TrialLog(str(path), identity()).close()
    text = path.read_text() + line + "\n" + "torn"
    path.write_text(text)
    with pytest.raises(UsageError, match="line 2 of --resume"):
        TrialLog(str(path), identity())
    assert path.read_text() == text


def test_a_log_belongs_to_one_search_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with closing(TrialLog(path, identity())) as log:
        with pytest.raises(UsageError, match="is in use; another search is writing it"):
            TrialLog(path, identity())
        log.write(
            "cpu", 100, TrialResult(batch_size=8, purpose="search", fresh_process=True, outcome="fits", peak_bytes=7)
        )
    with closing(TrialLog(path, identity())) as log:
        assert len(log.known("cpu", 100)) == 1


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a log of trials"):
        TrialLog("/dev/null", identity())
    for path in (tmp_path, tmp_path / "no" / "log"):
        with pytest.raises(CannotLook, match="cannot be written; "):
            TrialLog(str(path), identity())


# In a separate process: the limit is the whole process's, and what the tests print goes to a file as well.
FULL = """
import resource, signal, sys
from contextlib import closing
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.history import plan
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.batch_size.trial_log import TrialLog, identity_of
from gpucheck.report.facts import Facts, TorchBuild

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
TRIAL = TrialResult(batch_size=8, purpose="search", fresh_process=True, outcome="fits", peak_bytes=7)
identity = identity_of(plan(FindBatchSizeOptions(target="mlp")), Facts(torch=TorchBuild(version="2.13.0")))
with closing(TrialLog(sys.argv[1], identity)) as log:
    for _ in range(5):
        log.write("cpu", 100, TRIAL)
    sys.exit(log.error)
"""


def test_a_full_disk_is_told_once_and_the_log_can_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ended = subprocess.run([sys.executable, "-c", FULL, str(path)], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == "File too large\n"
    whole = [json.loads(line) for line in path.read_text().split("\n")[1:-1]]
    with closing(TrialLog(str(path), identity())) as log:
        assert len(log.known("cpu", 100)) == len(whole) >= 1
