"""What `gpucheck run` finds in real programs: each mistake with its line, and silence about its corrected twin."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloaded import Gpucheck
from shown import sentence

PROGRAMS = Path(__file__).parent.parent.parent / "programs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="memory is shared and limited as POSIX has it"),
]


# Most programs run in a process forked from one that has loaded torch; of each kind some go the whole way of a user's.
WHOLE = "small", "graphs"
Seen = Callable[..., dict[str, Any]]


@pytest.fixture
def seen(tmp_path: Path, gpucheck: Gpucheck) -> Seen:
    """`seen(program, …)`: the document of a run, with the findings by id in `by_id` and the screen in `screen`."""

    def document_of(*given: str, status: int = 0, whole: bool = False, **more: str) -> dict[str, Any]:
        file = tmp_path / "run.json"
        done = gpucheck("run", "--output", str(file), *given, cwd=PROGRAMS, whole=whole, **more)
        assert done.returncode == status, done.stderr
        text = (file if file.exists() else next(tmp_path.glob("run.*json"))).read_text()
        document: dict[str, Any] = json.loads(text)
        document["by_id"] = {one["id"]: one for one in document["findings"]}
        document["screen"] = done.stderr
        return document

    return document_of


def line_of(program: str, text: str) -> int:
    """The first line of a program that holds the text."""
    return next(n for n, line in enumerate((PROGRAMS / program).read_text().splitlines(), 1) if text in line)


ADVICE = "run.copies.", "run.empty_cache", "run.waits"
MISTAKES = {
    "clean": {},
    "discarded": {"run.copies.discarded": '        batch.to("cuda")'},
    "discarded_twin": {},
    "again": {"run.copies.again": 'held.to("cuda"))'},
    "again_twin": {},
    "small": {"run.copies.small": 'row.to("cuda") for row'},
    "small_twin": {},
    "unpinned": {"run.copies.unpinned": "non_blocking=True"},
    "unpinned_twin": {},
    "emptied": {"run.empty_cache": "        torch.cuda.empty_cache()"},
    "emptied_twin": {},
    "waits_twin": {},
    "printed": {"run.waits": "print(train"},
    "optimizer_counters": {},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_line_and_its_twin_is_silent(name: str, seen: Seen) -> None:
    document = seen("run_mistakes.py", name, whole=name in WHOLE)
    # Copies that take time are told where they are slow, which hangs on the machine: that is another test's.
    told = {
        (one["id"], one["evidence"]["line"])
        for one in document["findings"]
        if one["id"].startswith(ADVICE) and one["id"] != "run.copies.pageable"
    }
    assert told == {(id, line_of("run_mistakes.py", text)) for id, text in MISTAKES[name].items()}
    assert document["results"]["run"]["steps"]["count"] == 20


def test_slow_pageable_copies(seen: Seen) -> None:
    document = seen("run_mistakes.py", "pageable")
    assert document["results"]["run"]["waits_for"] == "copies"
    assert document["by_id"]["run.copies.pageable"]["verdict"] == "warn"


def test_waits_are_counted_by_the_users_line(seen: Seen) -> None:
    run = seen("run_mistakes.py", "waits")["results"]["run"]
    told = {(one["kind"], one["line"]): one["count"] for one in run["lines"] if one["kind"] != "to_device"}
    assert told == {
        ("item", line_of("run_mistakes.py", "losses.append(loss.item())")): 20,
        ("bool", line_of("run_mistakes.py", "if loss > 1e9")): 20,
        ("synchronize", line_of("run_mistakes.py", "torch.cuda.synchronize()")): 20,
    }
    assert run["waits_for"] == "device" and run["shares"]["waits"] > 0.5


def test_data_from_workers_is_waited_for(seen: Seen) -> None:
    document = seen("run_loader.py", whole=True)
    run = document["results"]["run"]
    assert run["waits_for"] == "data"
    assert document["screen"].strip().splitlines()[0].startswith("! the program waits for data: ")
    (line,) = run["lines"]
    assert (line["kind"], line["count"], line["line"]) == ("data", 12, line_of("run_loader.py", "for batch in"))
    assert run["device_used"] is False
    # Shares exclude each other.
    shares = run["shares"]
    assert shares["data"] + shares["copies"] + shares["waits"] + shares["rest"] == pytest.approx(1.0, abs=0.01)


def test_steps_by_the_programs_own_word(seen: Seen) -> None:
    steps = seen("run_own_steps.py")["results"]["run"]["steps"]
    assert (steps["count"], steps["by"]) == (9, "gpucheck.api.step")


@pytest.mark.parametrize("name", ["graphs", "outputs", "clean", "after_backward"])
def test_the_line_of_a_leak(name: str, seen: Seen) -> None:
    run = seen("--trace", "4", "run_leak.py", name, whole=name in WHOLE)["results"]["run"]
    kept = {one["line"]: one for one in run["traced"]["lines"] if one["kept_bytes_per_step"] > 1000}
    made = {
        "graphs": line_of("run_leak.py", "return model("),
        "outputs": line_of("run_leak.py", "output = model("),
    }
    assert set(kept) == ({made[name]} if name in made else set())
    assert run["traced"]["steps"] == 4
    if name in made:
        held = {one["held_by"] for one in run["traced"]["lines"] if one["kept_bytes_per_step"]}
        assert any(one is not None and one.startswith("list losses of ") for one in held)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of the address space is Linux's")
def test_memory_that_runs_out(seen: Seen) -> None:
    document = seen("run_out_of_memory.py", "hoard", status=1, whole=True)
    out = document["results"]["run"]["out_of_memory"]
    assert (out["device"], out["asked_bytes"], out["blame"]) == ("cpu", 32 * 2**20, "size")
    assert out["parameters_bytes"] == out["gradients_bytes"] == 4 * (1024 * 1024 + 1024)
    # Two moments for each parameter, and a counter for each of its two tensors.
    assert out["optimizer_bytes"] == 2 * out["parameters_bytes"] + 2 * 4
    most = out["holders"][0]
    assert (most["name"], most["kind"], most["bytes"]) == ("history", "list", most["tensors"] * 32 * 2**20)
    assert document["by_id"]["run.memory.full"]["verdict"] == "fail"
    assert document["screen"].count("history keeps") == 1


def test_a_killed_program_loses_nothing_that_was_counted(seen: Seen) -> None:
    document = seen("run_killed.py", status=-signal.SIGKILL)
    assert document["results"]["run"]["steps"]["count"] == 20
    assert document["summary"]["exit"] == 128 + signal.SIGKILL
    assert "SIGKILL" in document["by_id"]["run.ended"]["title"]


def test_an_exception_is_told_with_the_users_line(seen: Seen) -> None:
    document = seen("run_raise.py", status=1)
    error = document["results"]["run"]["error"]
    assert error["line"] == line_of("run_raise.py", "no such device") and error["kind"] == "RuntimeError"


def test_a_program_without_torch_is_run_all_the_same(seen: Seen) -> None:
    document = seen("-m", "this", whole=True)
    assert document["results"]["run"]["shares"] is None
    assert document["by_id"]["run.time"]["message"] == "the program did not load torch"


def test_a_program_that_is_not_there_is_the_users_mistake(gpucheck: Gpucheck) -> None:
    done = gpucheck("run", "no_such.py", cwd=PROGRAMS, whole=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence(done.stderr) == "the program 'no_such.py' does not exist; use the path of a Python program"
