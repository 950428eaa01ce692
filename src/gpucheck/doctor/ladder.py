"""The ladder: which rung breaks first, what fails only because of it, and what stands on its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucheck.doctor import fixes
from gpucheck.doctor.condition import CERTAINTIES, RUNGS, Certainty, Condition, Rung, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.report.finding import Finding, Verdict

# Only these break a rung; the rest is worth saying and lets one climb on.
BREAKING: frozenset[Verdict] = frozenset(("fail",))
# The rungs whose conditions speak of each device for itself, and leave out one that was seen to work.
BY_DEVICE: tuple[Rung, ...] = ("architecture", "run")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition that holds here, and how it shows."""

    condition: Condition
    seen: Seen

    @property
    def verdict(self) -> Verdict:
        """How bad it is here."""
        return self.seen.verdict or self.condition.verdict

    @property
    def certainty(self) -> Certainty:
        """How sure it is here."""
        return self.seen.certainty or self.condition.certainty

    @property
    def breaks(self) -> bool:
        """Whether nothing above its rung can work."""
        return self.condition.rung is not None and self.verdict in BREAKING


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`first` is the first broken rung's condition, `consequences` what fails above it, `aside` all else seen."""

    first: Sighting | None
    consequences: tuple[Sighting, ...]
    aside: tuple[Sighting, ...]

    @property
    def broken(self) -> Rung | None:
        """The first broken rung; None where all that is known holds."""
        return None if self.first is None else self.first.condition.rung


def diagnose(evidence: Evidence, conditions: Sequence[Condition]) -> Diagnosis:
    """Ask every condition, and put what holds in order.

    The lowest rung comes first, and on one rung what is most certain, then what stands first in the catalogue. Where
    torch has run a kernel nothing below it can be broken, whatever versions or permissions suggest: what says so all
    the same is left out, since success was seen. On the rungs that are judged by device another one may still fail.
    """
    seen = [Sighting(c, _fitted(c, found, evidence)) for c in conditions if (found := c.judge(evidence)) is not None]
    breaking = sorted((one for one in seen if one.breaks), key=_order)
    if evidence.torch_works:
        breaking = [one for one in breaking if one.condition.rung in BY_DEVICE]
    aside = tuple(one for one in seen if not one.breaks)
    if not breaking:
        return Diagnosis(None, (), aside)
    first, *others = breaking
    return Diagnosis(first, tuple(others), aside)


def _fitted(condition: Condition, seen: Seen, evidence: Evidence) -> Seen:
    """What was seen, with a fix that works on this system."""
    return replace(seen, fix=fixes.here(condition.fix if seen.fix is None else seen.fix, evidence.host))


def _order(one: Sighting) -> tuple[int, int]:
    assert one.condition.rung is not None
    return RUNGS.index(one.condition.rung), CERTAINTIES.index(one.certainty)


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """The diagnosis as findings: the first broken rung, its consequences as remarks, then what stands on its own."""
    found = [] if diagnosis.first is None else [_finding(diagnosis.first, diagnosis.first.verdict)]
    found += [
        _finding(one, "info", because=diagnosis.first.condition.id if diagnosis.first else None)
        for one in diagnosis.consequences
    ]
    return found + [_finding(one, one.verdict) for one in diagnosis.aside]


def _finding(one: Sighting, verdict: Verdict, *, because: str | None = None) -> Finding:
    condition, seen = one.condition, one.seen
    evidence = {
        **seen.evidence,
        "rung": condition.rung,
        "certainty": one.certainty,
        "settle": condition.settle or None,
        **({"because_of": because} if because else {}),
    }
    # What mends the first mends this too: a fix of its own would send its reader astray.
    fix = None if because else seen.fix or None
    return Finding(condition.id, verdict, seen.title or condition.title, seen.message, evidence, fix)
