"""Peers over a trial function of our own, and what a comparison comes to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MIB = 2**20
FOLDER = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return loaded("batch_peers")


@pytest.fixture(scope="module")
def figures(peers: ModuleType) -> ModuleType:
    return loaded("batch_size")


class Session:
    """A child's session: a MiB for each sample, and nothing to be had beyond 150 MiB."""

    def __init__(self, raised: str = "DefaultCPUAllocator: can't allocate memory: you tried to allocate") -> None:
        self.raised = raised

    def trial(self, size: int, steps: int) -> dict[str, Any]:
        if size > 150:
            return {"ok": False, "chain": [{"classes": ["builtins.RuntimeError"], "message": self.raised}]}
        return {"ok": True, "peak_bytes": size * MIB}


def test_a_trial_passes_up_to_the_budget(peers: ModuleType) -> None:
    trials = peers.Trials(Session(), 100 * MIB)
    assert trials(100) == 100
    with pytest.raises(RuntimeError, match=r"^DefaultCPUAllocator: can't allocate memory: a peak of 101 MiB is above"):
        trials(101)
    assert (trials.sizes, trials.failures) == ([100, 101], 1)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("could not create a primitive", "DefaultCPUAllocator: can't allocate memory: could not create a primitive"),
        ("mat1 and mat2 shapes cannot be multiplied", "no want of memory: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_want_of_memory_is_told_in_words_that_peers_know(peers: ModuleType, raised: str, told: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        peers.Trials(Session(raised), 100 * MIB)(151)
    assert caught.value.args == (told,)


@pytest.mark.parametrize(("limit", "answer"), [("50MiB", "no answer after 2 s; 1 trials, 1 failed"), ("150MiB", None)])
def test_a_peer_that_gives_up_has_no_answer(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, limit: str, answer: str | None
) -> None:
    def gives_up(trials: Callable[[int], int], first: int) -> int:
        trials(first)
        raise RuntimeError("No executable batch size found, reached zero.")

    monkeypatch.setattr(peers, "opened", lambda workload, budget: peers.Trials(Session(), budget))
    monkeypatch.setitem(peers.PEERS, "accelerate", gives_up)
    if answer is None:  # a size passed, so it is something else that went wrong
        with pytest.raises(RuntimeError, match="reached zero"):
            peers.peer("accelerate", "mlp", limit, 100)
        return
    told = peers.peer("accelerate", "mlp", limit, 100)
    taken = peers.Taken("accelerate", told["answer"], told["trials"], told["failures"], 2.0, 2.0)
    assert taken.line.split(maxsplit=1)[1] == answer


@pytest.mark.parametrize(("name", "first", "answer"), [("lightning", 2, 100), ("accelerate", 400, 99)])
def test_a_peer_searches_over_the_trials(peers: ModuleType, name: str, first: int, answer: int) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed")
    trials = peers.Trials(Session(), 100 * MIB)
    assert peers.PEERS[name](trials, first) == answer
    # Lightning ends at the largest, accelerate at the first that fits on its way down.
    sizes = {
        "lightning": [2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 102, 101],
        "accelerate": [400, 360, 324, 291, 261, 234, 210, 189, 170, 153, 137, 123, 110, 99],
    }
    assert trials.sizes == sizes[name]


def test_every_side_is_first_in_turn(peers: ModuleType) -> None:
    sides = ["gpucheck", "lightning", "accelerate"]
    assert [peers.order(number, sides)[0] for number in range(4)] == [*sides, "gpucheck"]
    assert peers.order(1, sides) == ["lightning", "accelerate", "gpucheck"]
    assert (peers.first_size("lightning", 250), peers.first_size("accelerate", 250)) == (2, 1000)


def test_a_comparison_is_the_median_of_the_rounds(peers: ModuleType, figures: ModuleType) -> None:
    def round_of(ours: float, theirs: float) -> dict[str, Any]:
        return {
            "gpucheck": peers.Taken("gpucheck", 100, 3, 1, ours, ours + 5),
            "lightning": peers.Taken("lightning", 100, 13, 5, theirs, theirs),
        }

    (one,) = peers.against([round_of(10, 20), round_of(10, 50), round_of(10, 25)], "mlp", "1GiB")
    assert one == peers.Against("lightning", "mlp", "1GiB", 0.4, 0.6, 3)
    assert figures.against_peer(one).line == (
        "pass  time to the answer over lightning's, mlp under 1GiB, median of 3 (with what follows 0.60): 0.40, "
        "at most 0.5 wanted"
    )
    slower = figures.against_peer(peers.Against("accelerate", "mlp", "1GiB", 1.01, 2.0, 3))
    assert (slower.reached, slower.line[:4]) == (False, "MISS")


def test_without_peers_the_figures_are_not_reached(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(workload: str, limit: str, rounds: int, say: Callable[[str], None]) -> list[Any]:
        return []

    monkeypatch.setattr(figures, "compare", nothing)
    monkeypatch.setattr(figures, "installed", lambda name: name == "accelerate")
    assert figures.beside_peers(["mlp"], ["1GiB"], 1) is False
    assert capsys.readouterr().out == (
        '\nnone  lightning is not installed: pip install -e ".[dev]" -c constraints.txt\n'
    )


def test_a_side_as_it_is_printed(peers: ModuleType) -> None:
    assert peers.Taken("gpucheck", 96, 3, 1, 12.3, 20.4).line == (
        "    gpucheck     96 after 12 s, 20 s with what follows; 3 trials, 1 failed"
    )
    assert peers.Taken("lightning", 96, 13, 5, 40.0, 41.0).line == (
        "    lightning    96 after 40 s; 13 trials, 5 failed"
    )
    assert peers.Taken("lightning", None, 0, 0, 41.0, 41.0, ended=True).line == (
        "    lightning    no answer within 41 s, and ended there"
    )


def test_a_peer_that_takes_too_long_is_ended(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, float]] = []

    def measured(side: str, workload: str, limit: str, first: int, patience_s: float) -> Any:
        calls.append((side, patience_s))
        return peers.Taken(side, 100, 3, 0, 7.0, 9.0)

    monkeypatch.setattr(peers, "measured", measured)
    monkeypatch.setattr(peers, "installed", lambda name: True)
    peers.compare("mlp", "1GiB", 2, lambda text: None)
    assert calls[1:] == [
        ("lightning", 28.0), ("accelerate", 28.0), ("lightning", 28.0), ("accelerate", 28.0), ("gpucheck", 28.0)
    ]  # fmt: skip
    monkeypatch.undo()
    command = subprocess.run

    def asleep(arguments: list[str], **options: Any) -> Any:
        return command(["sleep", "60"], **options)

    monkeypatch.setattr(peers.subprocess, "run", asleep)
    taken = peers.measured("lightning", "mlp", "1GiB", 2, 0.1)
    assert (taken.ended, taken.answer) == (True, None)
