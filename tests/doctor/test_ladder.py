"""Which rung breaks first, what follows from it, and what stands on its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import (
    CARDS,
    HEALTHY,
    card,
    ended_at,
    with_cards,
    with_driver,
    with_host,
    with_torch,
    with_variables,
    without_gpu,
)

from gpucheck.doctor import ladder
from gpucheck.doctor.condition import STAGES, Certainty, Condition, Evidence, Signs, Stage
from gpucheck.machine.stack import KernelRun
from gpucheck.report.finding import Verdict

IDLE = with_torch(kernels=())  # no kernel ran: nothing is seen to work
Judge = Callable[[Evidence], Signs | None]


def made(
    name: str, stage: Stage | None, verdict: Verdict = "fail", certainty: Certainty = "proof", seen: Signs | None = None
) -> Condition:
    """A condition that holds everywhere."""
    title, fix = f"title of {name}", f"mend {name}"
    return Condition(
        name, title, "", fix, judge=lambda _: seen or Signs(name), stage=stage, verdict=verdict, certainty=certainty
    )


def test_the_lowest_rung_is_named_and_the_others_are_its_consequences() -> None:
    conditions = [
        made("run.x", "run"),
        made("kernel.x", "kernel"),
        made("torch.x", "torch"),
        made("env.x", None, "warn"),
    ]
    diagnosis = ladder.diagnose(IDLE, conditions)
    assert diagnosis.broken == "kernel"
    first, *rest = ladder.findings(diagnosis)
    assert (first.id, first.verdict, first.fix) == ("kernel.x", "fail", "mend kernel.x")
    assert first.evidence == {"rung": "kernel", "certainty": "proof", "settle": None}
    assert [(gpu.id, gpu.verdict, gpu.fix) for gpu in rest] == [
        ("torch.x", "info", None),
        ("run.x", "info", None),
        ("env.x", "warn", "mend env.x"),
    ]
    assert [gpu.evidence.get("because_of") for gpu in rest] == ["kernel.x", "kernel.x", None]


def test_on_one_rung_the_most_certain_comes_first() -> None:
    conditions = [made("a", "nodes", certainty="hint"), made("b", "nodes", certainty="proof"), made("c", "nodes")]
    diagnosis = ladder.diagnose(IDLE, conditions)
    assert diagnosis.first is not None and diagnosis.first.condition.id == "b"
    assert [sighting.condition.id for sighting in diagnosis.consequences] == ["c", "a"]
    surer = [
        made("a", "nodes", certainty="hint", seen=Signs("sure", certainty="proof")),
        made("b", "nodes", certainty="strong"),
    ]
    diagnosis = ladder.diagnose(IDLE, surer)
    assert diagnosis.first is not None and diagnosis.first.condition.id == "a"


def test_what_is_no_failure_breaks_nothing() -> None:
    conditions = [made("a", "nodes", "warn"), made("b", "torch", seen=Signs("milder here", verdict="info"))]
    diagnosis = ladder.diagnose(IDLE, conditions)
    assert (diagnosis.first, diagnosis.consequences) == (None, ())
    assert [finding.verdict for finding in ladder.findings(diagnosis)] == ["warn", "info"]


def test_success_is_above_what_versions_suggest() -> None:
    conditions = [made("libraries.x", "libraries"), made("torch.x", "torch"), made("env.x", None, "warn")]
    diagnosis = ladder.diagnose(HEALTHY, conditions)
    assert diagnosis.first is None
    assert [finding.id for finding in ladder.findings(diagnosis)] == ["env.x"]


@pytest.mark.parametrize("stage", ladder.BY_DEVICE)
def test_one_card_that_works_does_not_excuse_another(stage: Stage) -> None:
    diagnosis = ladder.diagnose(HEALTHY, [made("x", stage), made("torch.x", "torch")])
    assert diagnosis.broken == stage and diagnosis.consequences == ()


def test_a_judge_that_knows_more_says_it_in_the_conditions_place() -> None:
    seen = Signs("message", {"a": 1}, "do this", "hint", "warn", "another title")
    (finding,) = ladder.findings(ladder.diagnose(IDLE, [made("x", None, seen=seen)]))
    assert (finding.title, finding.message, finding.fix, finding.verdict) == (
        "another title",
        "message",
        "do this",
        "warn",
    )
    assert finding.evidence["certainty"] == "hint" and finding.evidence["a"] == 1
    (without,) = ladder.findings(ladder.diagnose(IDLE, [made("x", None, seen=Signs("message", fix=""))]))
    assert without.fix is None


# --- every condition --------------------------------------------------------------------------------------------------


def test_a_healthy_machine_has_no_finding_at_all() -> None:
    diagnosis = ladder.diagnose(HEALTHY, ladder.CONDITIONS)
    assert ladder.findings(diagnosis) == []
    assert {standing.state for standing in ladder.standings(HEALTHY, diagnosis)} == {"held"}


def test_nothing_known_is_nothing_found() -> None:
    diagnosis = ladder.diagnose(Evidence(), ladder.CONDITIONS)
    assert ladder.findings(diagnosis) == []
    assert not {standing.state for standing in ladder.standings(Evidence(), diagnosis)} & {"held", "broken"}


@pytest.mark.parametrize(
    ("evidence", "first", "follows"),
    [
        # A driver that does not start, and a torch for the CPU on top of it.
        (
            with_driver(
                with_torch(version="2.13.0+cpu", cuda=None, available=False, count=0, architectures=(), kernels=()),
                cuinit_code=34,
                cuinit_error="a stub",
            ),
            "library.stub",
            ["torch.cpu_build"],
        ),
        # A mask that hides all, and a torch that is too new.
        (
            with_variables(
                with_driver(
                    with_cards(card(0, cuda_index=None), evidence=with_torch(count=0, available=False, kernels=())),
                    cuinit_code=100,
                    libcuda_version="12.4",
                ),
                CUDA_VISIBLE_DEVICES="",
            ),
            "mask.hides_all",
            ["torch.driver_too_old"],
        ),
        # No torch at all says nothing of architectures.
        (ended_at("import", "ModuleNotFoundError: No module named 'torch'", path=None), "torch.missing", []),
        # No code for the card, and a crash on the way.
        (
            with_torch(
                ended_at("run", "SIGSEGV", capabilities={"cuda:0": "6.1"}),
                names={"cuda:0": "NVIDIA GTX 1080"},
            ),
            "architecture.missing",
            ["run.kernel_failed"],
        ),
    ],
)  # fmt: skip
def test_of_two_faults_the_lower_is_named(evidence: Evidence, first: str, follows: list[str]) -> None:
    diagnosis = ladder.diagnose(evidence, ladder.CONDITIONS)
    assert diagnosis.first is not None and diagnosis.first.condition.id == first
    assert [sighting.condition.id for sighting in diagnosis.consequences] == follows


# --- the rungs as they are shown --------------------------------------------------------------------------------------


def states(evidence: Evidence) -> dict[str, str]:
    return {
        standing.rung: standing.state
        for standing in ladder.standings(evidence, ladder.diagnose(evidence, ladder.CONDITIONS))
    }


def reasons(evidence: Evidence) -> dict[str, str]:
    standing = ladder.standings(evidence, ladder.diagnose(evidence, ladder.CONDITIONS))
    return {row.rung: row.shown_by for row in standing}


NO_LIBCUDA = with_torch(
    with_driver(
        with_cards(*(replace(row, id=None, cuda_index=None) for row in CARDS)),
        cuinit_code=None,
        cuinit_error="libcuda cannot be loaded (libcuda.so.1: file too short)",
        libcuda_path=None,
    ),
    available=False,
    count=0,
    kernels=(),
    capabilities=None,
)


def test_a_rung_above_the_broken_one_that_was_seen_to_hold_holds() -> None:
    """NVML answers without libcuda."""
    found = states(NO_LIBCUDA)
    assert (found["libraries"], found["nvml"], found["cuinit"]) == ("broken", "held", "unreached")
    assert reasons(NO_LIBCUDA)["nvml"] == "lists 2, driver 580.95.05"
    assert reasons(NO_LIBCUDA)["torch"] == "torch 2.11.0+cu130 imports, but sees no GPU"
    assert reasons(NO_LIBCUDA)["run"] == "not checked: torch has no GPU"


@pytest.mark.parametrize(
    "evidence",
    [
        NO_LIBCUDA,
        replace(NO_LIBCUDA, torch=None),
        with_torch(NO_LIBCUDA, available=None, not_awaited="libcuda did not answer within 5 s"),
        with_driver(NO_LIBCUDA, nvml_code=9, nvml_error="Driver Not Loaded"),
        with_driver(NO_LIBCUDA, kernel_module_version=None),
        with_driver(HEALTHY, nvml_code=None, nvml_error="NVML did not answer within 5 s"),
        replace(HEALTHY, torch=None),
        with_driver(without_gpu(), cuinit_error=None),
        with_host(replace(HEALTHY, torch=None), wsl=True),
        Evidence(),
    ],
)
def test_no_rung_that_was_not_seen_to_hold_is_without_its_reason(evidence: Evidence) -> None:
    assert [rung for rung, why in reasons(evidence).items() if not why] == []


def test_above_a_broken_rung_nothing_is_reached() -> None:
    broken = with_torch(version="2.13.0+cpu", cuda=None, available=False, count=0, architectures=(), kernels=())
    assert states(broken) == {
        **dict.fromkeys(("hardware", "kernel", "nodes", "libraries", "nvml", "cuinit", "devices"), "held"),
        "torch": "broken",
        "architecture": "unreached",
        "run": "unreached",
    }


def test_without_a_gpu_the_rungs_do_not_apply() -> None:
    assert states(without_gpu()) == {**dict.fromkeys(STAGES, "absent"), "torch": "held"}


def test_what_cannot_be_read_is_unknown_and_not_absent() -> None:
    blind = replace(HEALTHY, torch=None)
    assert states(blind)["torch"] == states(blind)["run"] == "unknown"


def test_one_kernel_that_failed_is_not_a_rung_that_holds() -> None:
    partly = with_torch(kernels=(KernelRun("cuda:0"), KernelRun("cuda:1", "RuntimeError: x")))
    assert states(partly)["run"] == "broken"
