"""A condition: one thing that can be wrong, how it shows, what it means and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gpucheck.doctor.evidence import Evidence
from gpucheck.report.finding import Verdict

# The ladder, from the ground up: what stands on a rung needs every one below it.
Rung = Literal[
    "hardware",  # the card on the PCI bus
    "kernel",  # the driver's kernel module
    "nodes",  # its device nodes, and a container's right to them
    "libraries",  # libcuda and libnvidia-ml, found and of the module's version
    "nvml",  # NVML starts and lists the cards
    "cuinit",  # CUDA starts
    "devices",  # CUDA shows the devices that were asked for
    "torch",  # a torch that is built for them and can be imported
    "architecture",  # with code for their architecture
    "run",  # that runs
]
RUNGS: tuple[Rung, ...] = get_args(Rung)
# How much what is seen says: it can be nothing else; it is nearly always so; it is worth a look.
Certainty = Literal["proof", "strong", "hint"]
CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)


@dataclass(frozen=True, slots=True)
class Seen:
    """That a condition holds here: the sentence that says how it shows, and the evidence.

    What is None is the condition's own; a judge that knows more says it in its place.
    """

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    certainty: Certainty | None = None
    verdict: Verdict | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the catalogue.

    `rung` is the one that it breaks; None for what stands on its own, beside the ladder. `title` is the diagnosis in
    one sentence, `meaning` what it is about, for its page; `settle` is what would make sure of it, where that takes
    more than what is read; `fix` is what to type or do. `judge` reads the evidence and says whether it holds; it never
    raises for evidence that is missing, which is unknown and says nothing. `cuinit` and `nvml` are the answers of
    cuInit and nvmlInit of which it is a cause. `texts` are errors that point to it, as regular expressions, for
    `gpucheck explain`; `source` is where its threshold or its claim comes from.
    """

    id: str
    rung: Rung | None
    verdict: Verdict
    certainty: Certainty
    title: str
    meaning: str
    fix: str
    judge: Callable[[Evidence], Seen | None]
    settle: str = ""
    cuinit: tuple[int, ...] = ()
    nvml: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    source: str = ""


# -- what cuInit answered, as several rungs show it --------------------------------------------------------------------


def answers(*codes: int) -> Callable[[Evidence], Seen | None]:
    """A judge for what cuInit's answer alone proves."""

    def judge(evidence: Evidence) -> Seen | None:
        return answered(evidence) if evidence.driver.cuinit_code in codes else None

    return judge


def answered(
    evidence: Evidence,
    more: str = "",
    *,
    fix: str | None = None,
    certainty: Certainty | None = None,
    **seen: Any,
) -> Seen:
    """Return what cuInit answered, `more` that tells its causes apart, and further evidence."""
    driver = evidence.driver
    told = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    said = f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Seen(f"{said}; {more}" if more else said, {**told, **seen}, fix=fix, certainty=certainty)
