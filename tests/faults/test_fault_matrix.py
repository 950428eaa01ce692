"""Every command × where × when × what: the right exit status, one cause, no measured row lost, a whole document."""

from __future__ import annotations

import functools
import gc
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from failing_card import Plan
from matrix import (
    COMMANDS,
    ERRORS,
    GATES,
    MOMENTS,
    PLACES,
    UNMET,
    VALUES,
    WRITES,
    Case,
    Miscounting,
    Wrong,
    cases,
    on,
    settle,
    values,
)

import document_schema as schema
from gpucheck import errors
from gpucheck.cli.app import main
from gpucheck.machine import faults
from gpucheck.report.measurement import Measurement

# Rows that are compared with each other are told together: those of a case that was not ended are not told.
TOGETHER = {"bench overlap": 3, "bench crossover": 3, "bench all": 3}


# Looking for garbage walks over all of torch and of the tests: longer than a case takes. What cases leave is small.
COLLECTED_AFTER = 32
_since = itertools.count(1)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give torch back the threads that a planned machine has not, and now and then what frames held in cycles."""
    before = torch.get_num_threads()
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda *given: 0)
    yield
    torch.set_num_threads(before)
    if next(_since) % COLLECTED_AFTER == 0:
        collect()


@functools.cache
def met(command: str) -> Counter[str]:
    """How often each place is met in a run without a fault."""
    plan = Plan(events=True)
    with pytest.MonkeyPatch.context() as patches, on(plan, patches):
        # A threshold is left open by rows of two windows.
        assert main(arguments(command)) == (errors.UNDECIDED if command in GATES else errors.OK)
    return Counter(plan.calls)


def arguments(command: str) -> list[str]:
    gate = GATES[command][1] if command in GATES else ""
    return f"{command} {COMMANDS[command]} {gate} --device cuda:0 --json --quiet".split()


def row_of(row: dict[str, Any]) -> str:
    return f"{row['name']} {row['device']['id']} {json.dumps(row['case'], sort_keys=True)}"


def broken(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, Any, set[str]]:
    """Run a case: the exit status, the document, and every row that was made, whatever became of it."""
    error = ERRORS[case.error]
    after = int(MOMENTS[case.moment] * (met(case.command)[case.place] - 1))
    made: set[str] = set()
    real = Measurement.__init__

    def make(self: Measurement, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        made.add(row_of({"name": self.name, "device": {"id": self.device.id}, "case": self.case}))

    capsys.readouterr()
    with monkeypatch.context() as patches:
        patches.setattr(Measurement, "__init__", make)
        patches.setattr(faults, "fresh_process", lambda device: error.fresh)
        with on(Plan(case.place, after, error.raised, error.poisons, events=True), patches):
            code = main(arguments(case.command))
    document = json.loads(capsys.readouterr().out)
    return code, document, made


def told(document: dict[str, Any], *verdicts: str) -> list[str]:
    return [one["id"] for one in document["findings"] if not verdicts or one["verdict"] in verdicts]


def names(command: str) -> tuple[str, ...]:
    """The benchmarks that a command runs: their names begin the ids of findings."""
    if command == "bench all":
        return "bandwidth", "crossover"
    return (command.partition(" ")[2],)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_fault(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, document, made = broken(case, capsys, monkeypatch)
    schema.validator().validate(document)
    assert document["summary"]["exit"] == code
    kept = {row_of(row) for row in document["measurements"]}
    assert len(made - kept) < TOGETHER.get(case.command, 1)
    # What was taken before a fault meets no threshold.
    gate = GATES.get(case.command, ("", ""))[0]
    assert {one["verdict"] for one in document["findings"] if one["id"] == gate} <= {"inconclusive", "skip"}
    check = smoke if case.command == "smoke" else opening if case.place == "open" else working
    check(case, code, document)


def opening(case: Case, code: int, document: dict[str, Any]) -> None:
    """A device that does not open failed where the error says so; any other cannot be used here (exit 3)."""
    error = ERRORS[case.error]
    if error.kind == "error":
        assert (code, document["summary"]["complete"]) == (errors.BUG, False)
    elif error.poisons:
        assert (code, document["summary"]["complete"]) == (errors.FAILED, False)
        assert told(document, "fail") == ["device.error"]
    else:
        assert code == errors.COULD_NOT_LOOK
        assert set(told(document, "fail", "skip")) == {"device.usable"}


def working(case: Case, code: int, document: dict[str, Any]) -> None:
    """At work a device's error is the device's, memory that is taken is nobody's fault, and the rest is ours."""
    kind = ERRORS[case.error].kind
    areas = names(case.command)
    if kind == "device":
        # Of all benchmarks each that meets it says so, unless the first has poisoned the process.
        most = 1 if ERRORS[case.error].poisons else len(areas)
        assert code == errors.FAILED
        assert set(told(document, "fail")) == {"device.error"}
        assert 1 <= told(document).count("device.error") <= most
        assert document["summary"]["complete"] is False
    elif kind == "memory":
        # On the way it is undecided (4). Where there is no room to begin with, that was not looked at (3), and of all
        # benchmarks this one is left out (0).
        left_out = {errors.COULD_NOT_LOOK} | ({errors.OK} if case.command == "bench all" else set())
        assert code in {errors.UNDECIDED} | left_out
        assert told(document, "fail") == []
        assert [one for one in told(document, "inconclusive", "skip") if one.endswith(".memory")]
        # What had no room to begin with may be followed by a wait that ends so too, which is broken off.
        assert document["summary"]["complete"] is (code in left_out and not document["faults"])
    else:
        assert code == errors.BUG
        own = {"gpucheck.error"} if case.command == "memory" else {f"{area}.error" for area in areas}
        assert set(told(document, "fail")) <= own and told(document, "fail")
        assert document["summary"]["complete"] is False


def smoke(case: Case, code: int, document: dict[str, Any]) -> None:
    """What a check meets is its verdict; only what comes between two checks can be anything else."""
    kind = ERRORS[case.error].kind
    failed = told(document, "fail")
    if kind == "error" and code == errors.BUG:
        assert failed[-1] == "gpucheck.error" and document["summary"]["complete"] is False
        return
    if case.place in ("enter", "open") and kind == "memory":
        assert (code, failed) == (errors.UNDECIDED, [])
        return
    if kind == "memory":
        # Whoever holds it: that is no fault of the device's.
        assert code in (errors.UNDECIDED, errors.FAILED) and "device.error" not in failed
        return
    assert code == errors.FAILED
    assert failed.count("device.error") <= 1
    if case.place == "open":
        assert failed == ["device.usable"]
    elif ERRORS[case.error].poisons:
        assert failed[-1] == "device.error" and document["summary"]["complete"] is False


def miscounted(wrong: Wrong, after: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Run a command on a device that writes wrong values: the exit status, and how often it wrote at all."""
    with monkeypatch.context() as patches:
        settle(Plan(events=True), patches)
        with Miscounting(wrong, after) as writing:
            return main(arguments(wrong.command)), writing.calls


written: dict[tuple[str, str], int] = {}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", values(), ids=str)
def test_a_wrong_value(wrong: Wrong, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found, and what is found is the verification's finding: no bug of ours, no error of the device."""
    key = wrong.command, wrong.operator
    if key not in written:
        written[key] = miscounted(wrong, float("inf"), monkeypatch)[1]
    capsys.readouterr()
    code, _ = miscounted(wrong, int(MOMENTS[wrong.moment] * (written[key] - 1)), monkeypatch)
    document = json.loads(capsys.readouterr().out)
    schema.validator().validate(document)
    assert code == document["summary"]["exit"] == errors.FAILED
    failed = set(told(document, "fail"))
    assert failed and failed <= set(WRITES[wrong.command][wrong.operator])
    assert (document["summary"]["complete"], document["faults"]) == (True, [])
    gate = GATES.get(wrong.command, ("", ""))[0]
    assert "pass" not in [one["verdict"] for one in document["findings"] if one["id"] == gate]


def test_every_wrong_value_is_tried_on_every_command_that_looks_at_one() -> None:
    assert {(one.command, one.operator, one.value) for one in values()} >= {
        (command, operator, value)
        for command, operators in WRITES.items()
        for operator in operators
        for value in VALUES[:3]
    }


def test_the_matrix_is_as_large_as_it_says() -> None:
    assert len(cases()) >= 500
    assert len(set(map(str, cases()))) == len(cases())


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_left_out_is_never_met(command: str) -> None:
    unmet = {place for places in UNMET[command].values() for place in places}
    assert {place for place in PLACES if not met(command)[place]} == unmet
