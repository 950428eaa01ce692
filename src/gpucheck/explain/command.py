"""`gpucheck explain`: from a pasted text, or an id, to what it means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpucheck import naming
from gpucheck.doctor.catalogue import CONDITIONS
from gpucheck.doctor.condition import Condition
from gpucheck.errors import UsageError
from gpucheck.explain import figures
from gpucheck.explain.match import Match, find
from gpucheck.explain.normal import readable
from gpucheck.explain.table import OF_CONDITIONS, PAGES, TEXTS
from gpucheck.explain.text import Text, step
from gpucheck.report.events import Answered, Emit, Judged, Notice
from gpucheck.report.finding import Finding, Id
from gpucheck.report.results.short import ExplainResult, IdPage, KnownId, TextMatch

# Every id is two or more words of small letters with dots between.
_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
# A log is explained by its end; more than this costs seconds and says no more.
MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Pasted:
    """The input: the text, and how many bytes it was cut from where it was cut."""

    text: str
    cut_from_bytes: int | None = None


def entries() -> dict[str, Text | Condition | Id]:
    """Everything that has a page, by id: conditions of doctor, findings of smoke and bench, and texts."""
    return {**PAGES, **{one.id: one for one in TEXTS}, **{one.id: one for one in CONDITIONS}}


def listing(emit: Emit) -> None:
    """Answer with every id and its title."""
    known = tuple(KnownId(name, _whose(one), one.title) for name, one in sorted(entries().items()))
    emit(Answered("explain", ExplainResult(known=known)))


def word(given: str, emit: Emit) -> None:
    """Answer to one word that is written like an id: with its page, else with what it means as a text.

    Raises UsageError for one that is neither, with the nearest id.
    """
    known = entries()
    if given not in known and find(given, TEXTS, OF_CONDITIONS):
        explain(Pasted(given), emit)
        return
    if given not in known:
        raise UsageError(f"unknown id {given!r}", "", naming.did_you_mean(given, known) or "--list shows all")
    page(given, emit)


def page(name: str, emit: Emit) -> None:
    """Answer with the page of an id. Raises KeyError for an unknown one."""
    answer = _page_of(entries()[name])
    emit(Answered("explain", ExplainResult(page=answer)))
    evidence = {"id": name, "of": answer.of}
    emit(Judged(Finding("explain.page", "info", answer.title, answer.meaning, evidence, answer.then or None)))


def is_id(text: str) -> bool:
    """Return whether it is written like an id, in small or capital letters."""
    return _ID.fullmatch(text.lower()) is not None


def explain(pasted: Pasted, emit: Emit) -> None:
    """Answer with what the text means, the root cause first. A text that is not known is undecided."""
    if pasted.cut_from_bytes is not None:
        emit(Notice(f"{_in_mib(pasted.cut_from_bytes)} given; only the last {_in_mib(MOST_BYTES)} read"))
    matches = find(pasted.text, TEXTS, OF_CONDITIONS)
    told = tuple(_told(match) for match in matches)
    emit(Answered("explain", ExplainResult(len(pasted.text), pasted.cut_from_bytes, told)))
    if not told:
        emit(Judged(_unknown(pasted.text)))
    for match in told[:1]:
        evidence = {
            "text": match.id,
            "certainty": match.certainty,
            "conditions": match.conditions,
            "numbers": match.numbers,
        }
        meaning = ". ".join(filter(None, (match.says, match.meaning)))
        emit(Judged(Finding("explain.text", "info", match.title, meaning, evidence, match.then)))


def _told(match: Match) -> TextMatch:
    text = match.text
    read = figures.read(text.id, match.said, match.around)
    then = read.then or _at_device(text.then, read.numbers)
    return TextMatch(
        id=text.id,
        title=text.title,
        meaning=text.meaning,
        certainty=match.certainty,
        then=step(match.platforms, text.id, then, specific=bool(read.then)),
        says=read.says,
        specific=bool(read.then),
        numbers=read.numbers,
        conditions=match.conditions,
        source=text.source,
        line=match.line,
        symptom=text.symptom,
        cut=match.cut,
        doubt=match.doubt,
    )


def _at_device(then: str, numbers: dict[str, Any]) -> str:
    """A step with the GPU's address in place of INDEX: nvidia-smi -i takes both, and this cannot hit another GPU."""
    return re.sub(r"-i INDEX(?![,\w])", f"-i {numbers['bus']}", then) if "bus" in numbers else then


def _unknown(text: str) -> Finding:
    lines = len(text.splitlines())
    told = "no known error text is in it" + ("" if lines > 1 else "; paste the whole traceback")
    return Finding(
        "explain.unknown",
        "inconclusive",
        "text not known",
        told,
        {"texts": len(TEXTS) + len(OF_CONDITIONS)},
        "gpucheck doctor on the machine where it happened checks driver and torch, gpucheck smoke what torch does",
    )


def _whose(one: Text | Condition | Id) -> str:
    if isinstance(one, Id):
        return one.command
    return "doctor" if isinstance(one, Condition) else "text"


def _page_of(one: Text | Condition | Id) -> IdPage:
    about = (one.id, _whose(one), one.title, one.meaning)
    if isinstance(one, Id):
        return IdPage(*about, then=one.then)
    if isinstance(one, Text):
        texts = _readable((*one.patterns, *one.common), one.number)
        return IdPage(*about, then=one.then, certainty=one.certainty, texts=texts, source=one.source)
    return IdPage(
        *about,
        then=one.fix,
        certainty=one.certainty,
        rung=one.rung,
        verdict=one.verdict,
        settle=one.settle,
        texts=_readable(one.texts),
        source=one.source,
    )


def _readable(patterns: Iterable[str], number: str = "") -> tuple[str, ...]:
    """The texts that patterns find, each once."""
    return tuple(dict.fromkeys(text for pattern in patterns for text in readable(pattern, number)))


def _in_mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
