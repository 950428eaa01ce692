"""The answer of `explain`: the meaning of a text, the page of an ID, or the list of IDs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.report.finding import Verdict

Certainty = Literal["proof", "strong", "hint"]


@dataclass(frozen=True, slots=True)
class KnownId:
    """An id that has a page; `of` is `text`, or the command whose finding it is."""

    id: str
    of: str
    title: str


@dataclass(frozen=True, slots=True)
class IdPage:
    """The page of an id: what it means and what to do `then`. `rung` (the stage) and `verdict` are those of a doctor
    condition, None for others, and `settle` says how to make sure of one; `texts` are the error texts that point to
    it."""

    id: str
    of: str
    title: str
    meaning: str
    then: str
    certainty: Certainty | None = None
    rung: str | None = None
    verdict: Verdict | None = None
    settle: str = ""
    texts: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class TextMatch:
    """One known text in what was pasted, and on which line.

    `says` is a sentence made of the text's own `numbers` (under keys with units), and `then` the next step: `specific`
    where that too is made of them. `conditions` are those of doctor that bring it about. A `symptom` says that
    something failed and not what; `cut` is a text of which a part is missing; `doubt` is what speaks against it.
    """

    id: str
    title: str
    meaning: str
    certainty: Certainty
    then: str
    says: str
    specific: bool
    numbers: dict[str, Any]
    conditions: tuple[str, ...]
    source: str
    line: int
    symptom: bool
    cut: bool
    doubt: str


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """The answer to what was asked; the rest is None.

    To a text: how many `characters` were read, of how many bytes their end is all that was read (`cut_from_bytes`, None
    where nothing was left out), and its `matches`, the root cause first. To an id its `page`; to neither, every id that
    is `known`.
    """

    characters: int | None = None
    cut_from_bytes: int | None = None
    matches: tuple[TextMatch, ...] | None = None
    page: IdPage | None = None
    known: tuple[KnownId, ...] | None = None
