"""Which known texts are in what was pasted, the root cause first. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpucheck.health.doctor.condition import Certainty
from gpucheck.health.explain.normal import Kind, Line, Normal, normalise
from gpucheck.health.explain.pattern import Pattern, compiled, is_cut
from gpucheck.health.explain.text import Text

# A pattern that is in a log more often than this says nothing new: the first ones and the last ones are looked at.
_MOST_PLACES = 100
# A line that people read is not longer than this, without its spaces.
_SAME_LINE = 500
# From where to where a pattern is, by the number that it holds; everywhere under "".
_Spans = dict[str, list[tuple[int, int]]]
# The line that ends a traceback says more than a line of a log, and that more than a line of source in a frame.
_WEIGHT: dict[Kind, int] = {"exception": 0, "plain": 1, "frame": 2}


@dataclass(frozen=True, slots=True)
class Match:
    """A text that was found: on which line, which conditions it points to, and whether only a part of it was there."""

    text: Text
    line: int
    conditions: tuple[str, ...]
    cut: bool = False

    @property
    def certainty(self) -> Certainty:
        """How sure it is: less so for a part of a text."""
        return "hint" if self.cut else self.text.certainty


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands, in characters without spaces."""

    text: Text
    start: int
    end: int
    line: Line
    cut: bool = False

    def within(self, other: _Place) -> bool:
        """Whether a longer one covers it that says as much."""
        covered = other.start <= self.start and self.end <= other.end
        longer = other.end - other.start > self.end - self.start
        return covered and longer and (self.text.symptom or not other.text.symptom)

    def adds_nothing(self, other: _Place) -> bool:
        """Whether it is a symptom on a line that says more."""
        return self.text.symptom and not other.text.symptom and self.line == other.line

    def touches(self, other: _Place) -> bool:
        return self.start < other.end and other.start < self.end


class _Near:
    """Places by where they stand: of thousands in a long log, only those near one are held against it."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = sorted(places, key=lambda place: place.start)
        self._starts = [place.start for place in self._places]
        self._longest = max((place.end - place.start for place in places), default=0)

    def to(self, place: _Place) -> Sequence[_Place]:
        """Those that may touch `place` or stand on its line, as far as a text is long."""
        first = bisect.bisect_left(self._starts, place.start - self._longest - _SAME_LINE)
        return self._places[first : bisect.bisect_right(self._starts, place.end + _SAME_LINE)]


def find(pasted: str, texts: Sequence[Text], conditions: Sequence[Text] = ()) -> list[Match]:
    """The texts that `pasted` holds, the root cause first; none twice.

    `conditions` are those of `gpucheck doctor`: where one is in the same place as a text, the text tells and points to
    it. A symptom comes after what caused it. Of tracebacks the last group counts, and in a chained group the exception
    that came first; on other lines what was written first.
    """
    normal = normalise(pasted)
    told = list(_places(normal, texts))
    pointed = list(_places(normal, conditions))
    # What is there whole explains what is there in part: only where nothing is, parts are looked for.
    if not told and not pointed:
        told = list(_cut_places(normal, [*texts, *conditions]))
    mine, theirs = _Near(told), _Near(pointed)
    found = told + [place for place in pointed if not any(place.touches(one) for one in mine.to(place))]
    near = _Near(found)
    found = [
        place
        for place in found
        if not any(place.within(other) or place.adds_nothing(other) for other in near.to(place))
    ]
    matches: dict[str, Match] = {}
    for place in sorted(found, key=_order):
        beside = [one.text.id for one in theirs.to(place) if one.touches(place)]
        match = Match(place.text, place.line.number, (*place.text.conditions, *beside), place.cut)
        earlier = matches.setdefault(place.text.id, match)
        matches[place.text.id] = replace(
            earlier, conditions=tuple(dict.fromkeys((*earlier.conditions, *match.conditions)))
        )
    return list(matches.values())


def _order(place: _Place) -> tuple[bool, bool, int, int, int, int]:
    line = place.line
    # What stands in the source of a frame alone was perhaps never said.
    return (
        line.kind == "frame",
        place.text.symptom,
        _WEIGHT[line.kind],
        -line.group,
        line.number,
        place.start - place.end,
    )


def _places(normal: Normal, texts: Sequence[Text]) -> Iterator[_Place]:
    tried: dict[str, _Spans] = {}
    for text in texts:
        for source in text.patterns:
            pattern = compiled(source)
            if source not in tried:
                tried[source] = _spans(normal, pattern)
            spans = tried[source].get(text.number, [])
            spans = spans if len(spans) <= _MOST_PLACES else spans[: _MOST_PLACES // 2] + spans[-_MOST_PLACES // 2 :]
            if pattern.by_word:
                spans = [(normal.solid_offset(start), normal.solid_offset(end)) for start, end in spans]
            yield from (_Place(text, start, end, normal.line_at(start)) for start, end in spans)


def _spans(normal: Normal, pattern: Pattern) -> _Spans:
    """Where a pattern is, in characters of the form that it is for."""
    within = normal.spaced if pattern.by_word else normal.solid
    found: _Spans = {}
    if pattern.needs not in within:
        return found
    has_number = "number" in pattern.regex.groupindex
    for match in pattern.regex.finditer(within):
        if match.group():
            found.setdefault("", []).append(match.span())
            if has_number:
                found.setdefault(match["number"], []).append(match.span())
    return found


def _cut_places(normal: Normal, texts: Sequence[Text]) -> Iterator[_Place]:
    for text in texts:
        if any(is_cut(normal.solid, compiled(source)) for source in text.patterns):
            yield _Place(text, 0, 0, normal.lines[-1], cut=True)
