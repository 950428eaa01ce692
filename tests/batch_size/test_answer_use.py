from __future__ import annotations

from typing import Any

import pytest
import torch

from gpucheck.batch_size.after import After
from gpucheck.batch_size.answer import Context
from gpucheck.batch_size.answer_use import Wishes, entry, findings
from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Search
from gpucheck.batch_size.trial_evaluate import evaluate
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import GIB
from gpucheck.work.target import Batch, Workload

CONTEXT = Context("mlp", "train", None, None, DeviceRef("cuda:0", "GPU-1", "a GPU"), Budget(GIB, 0, "", 0, 0), {}, 0, 0)
MEMORY = {"max_memory_reserved_bytes": GIB, "max_memory_allocated_bytes": GIB // 2}


def ended(*checks: Result, memory: dict[str, Any]) -> tuple[Search, list[Result], After]:
    after = After(Runner.__new__(Runner), lambda event: None, lambda size, steps: 0.0, 0.0)
    after.checks += checks
    search = Search()
    search.record(8, "fits", GIB, purpose="confirm")
    return search, [Result(8, "confirm", True, "fits", peak_bytes=GIB, memory=memory)], after


def test_memory_in_pieces_has_a_remedy_only_where_the_gap_is_large() -> None:
    search, results, after = ended(memory=MEMORY)
    (finding,) = findings(search, results, CONTEXT, after)
    assert (finding.id, finding.verdict) == ("batch_size.fragmentation", "info")
    assert finding.title == "512 MiB of what the allocator holds is in no tensor"
    assert finding.fix is not None and finding.fix == (
        "run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTORCH_ALLOC_CONF=expandable_segments:True"
    )
    search, results, after = ended(memory={**MEMORY, "max_memory_allocated_bytes": GIB - 1})
    assert findings(search, results, CONTEXT, after) == []
    found = entry(search, results, CONTEXT, "over-budget", after, Wishes(0.1))
    assert found["fragmentation"]["gap_bytes"] == 1
    assert to_json(found) == found


def test_without_a_size_to_recommend_the_largest_is_what_is_accumulated() -> None:
    search, results, after = ended(memory={})
    found = entry(search, results, CONTEXT, "over-budget", after, Wishes(0.1, 64))
    assert found["recommended"]["batch_size"] is None
    assert (found["accumulation"]["micro_batch"], found["accumulation"]["steps"]) == (8, 8)


def test_a_partial_batch_that_was_timed_is_a_speed_and_an_evaluation_is_none() -> None:
    one = Result(1, "partial batch", False, "fits", steps_s=(0.2, 0.1))
    short = Result(7, "partial batch", False, "fits", steps_s=(0.5,))
    forward = Result(8, "evaluation", False, "fits", steps_s=(0.1, 0.1))
    search, _, after = ended(one, short, forward, memory={})
    results = [Result(8, "confirm", True, "fits", peak_bytes=GIB, steps_s=(0.9, 0.4, 0.4))]
    found = entry(search, results, CONTEXT, "over-budget", after, Wishes(0.1))
    assert [(speed["batch_size"], speed["samples_per_s"]) for speed in found["speeds"]] == [(1, 10.0), (8, 20.0)]


def test_a_failing_evaluation_is_told_in_its_own_words() -> None:
    failed = Result(8, "evaluation", False, "out-of-memory", "OutOfMemoryError: CUDA out of memory.")
    (finding,) = findings(*ended(failed, memory={})[:2], CONTEXT, ended(failed, memory={})[2])
    assert (finding.id, finding.verdict) == ("batch_size.evaluation", "warn")
    assert finding.title == "an evaluation step with a batch of 8 fails"
    assert finding.message == "OutOfMemoryError: CUDA out of memory."
    assert finding.fix == "evaluate with a smaller batch"


class Mixed(torch.nn.Module):  # type: ignore[misc]
    """A model with a part that its user keeps in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
        self.seen: tuple[bool, bool] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = (self.training, torch.is_grad_enabled())
        out: torch.Tensor = self.frozen(self.norm(x))
        return out


@pytest.mark.parametrize("size", [1, 4])
def test_an_evaluation_step_leaves_the_model_as_it_was(size: int) -> None:
    model = Mixed()
    model.frozen.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    workload = Workload(model, lambda n: Batch((torch.randn(n, 3),)), "train", torch.device("cpu"))
    evaluate(workload, workload.make_batch(size))
    assert model.seen == (False, False)
    assert [module.training for module in (model, model.norm, model.frozen)] == [True, True, False]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
