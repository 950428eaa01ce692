"""A text that is known: how it reads, what it means and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.health.doctor.condition import Certainty


@dataclass(frozen=True, slots=True)
class Text:
    """One row of the table.

    `patterns` are regular expressions, read without regard to case, spaces and quotes; one with `\\b` in it is read by
    words. `meaning` says what happened, `certainty` how sure the text alone makes that, `then` what to type or do next.
    `conditions` are those of `gpucheck doctor` that bring it about. A `symptom` says that something failed and not
    what: it yields to every text that says more. `source` is where the claim comes from. Rows that differ by a number
    alone share their patterns, which are tried once for all of them: `number` is what the group of that name must hold.
    """

    id: str
    title: str
    patterns: tuple[str, ...]
    meaning: str
    then: str
    certainty: Certainty = "strong"
    conditions: tuple[str, ...] = ()
    symptom: bool = False
    source: str = ""
    number: str = ""
