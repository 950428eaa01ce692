"""When an answer is refuted, which runs are kept, and that every model trains."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

MIB = 2**20


@pytest.fixture(scope="module")
def models(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("batch_models")


def made(models: ModuleType, **changes: Any) -> Any:
    run = models.Run(
        model="lstm",
        limit="256MiB",
        load=0,
        budget_bytes=256 * MIB,
        search_s=12.4,
        exit=0,
        answer=100,
        at_least=None,
        predicted=101,
        limited_by="over-budget",
        trials=5,
        trained=models.Trained(100, (True,), (250 * MIB,)),
        beyond=models.Trained(105, (False,), (260 * MIB,)),
    )
    return replace(run, **changes)


def test_the_largest_is_refuted_by_its_failure_or_by_a_larger_size_that_trains(models: ModuleType) -> None:
    fails, trains = models.Trained(100, (False, False), (None, None)), models.Trained(105, (True, True), (1, 1))
    assert not made(models).refuted
    assert made(models, trained=fails).refuted
    assert made(models, beyond=trains).refuted
    # Once is noise, and what ended otherwise shows nothing.
    assert not made(models, trained=models.Trained(100, (False, True), (1, 1))).refuted
    assert not made(models, beyond=models.Trained(105, (True, None), (1, None))).refuted


def test_what_fits_at_least_is_refuted_by_its_failure_alone(models: ModuleType) -> None:
    short = made(models, answer=None, at_least=100, beyond=None)
    assert not short.refuted
    assert replace(short, trained=models.Trained(100, (False, False), (None, None))).refuted
    assert not made(models, answer=None, trained=None, beyond=None).refuted


def test_the_size_that_must_not_train_is_more_than_two_tolerances_above(models: ModuleType) -> None:
    assert [models.beyond(size) for size in (1, 24, 25, 100)] == [2, 25, 27, 105]


def test_a_line_of_the_file_is_the_run(models: ModuleType) -> None:
    for run in (made(models), made(models, trained=None, beyond=None)):
        assert models.from_json(json.loads(json.dumps(asdict(run)))) == run


def test_a_run_in_one_line(models: ModuleType) -> None:
    assert made(models).line == (
        "        lstm                         256MiB; largest 100; 100 trains (250 MiB); 105 does not train (260 MiB); "
        "limited by over-budget, 5 trials, 12 s, exit 0"
    )
    assert models.verdicts([made(models), made(models, beyond=models.Trained(105, (True, True), (1, 1)))]) == [
        "2 answers: 2 largest",
        "refuted: 1: lstm",
    ]


def test_there_are_thirty_of_them(models: ModuleType) -> None:
    names = [model.name for model in models.MODELS]
    assert len(set(names)) == len(names) >= 30


def names() -> list[str]:
    """The models of the file, without importing torch to collect tests."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "benchmarks" / "batch_models.py").read_text(encoding="utf-8")
    return [line.split("(")[0][4:] for line in text.splitlines() if line.endswith("() -> SimpleNamespace:")]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc, which is Linux's")
@pytest.mark.parametrize("name", sorted(names()))
def test_it_trains(models: ModuleType, name: str) -> None:
    (model,) = [one for one in models.MODELS if one.name == name]
    if model.needs is not None and find_spec(model.needs) is None:
        pytest.skip(f"{model.needs} is not installed")
    steps: list[int] = []

    def batch(workload: Any) -> Any:
        steps.append(2)
        return workload.make_batch(2, **({model.axis: 16} if model.axis else {}))

    models._loop(getattr(models, name)(), batch, 2)
    assert steps == [2, 2]
