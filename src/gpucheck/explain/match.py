"""Which known texts are in what was pasted, the root cause first. Pure."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpucheck.doctor.condition import CERTAINTIES, Certainty
from gpucheck.explain.normal import Kind, Line, Normal, Pattern, compiled, is_cut, normalise
from gpucheck.explain.text import Platform, Text, marked

# A pattern that is in a log more often than this says nothing new: the first ones and the last ones are looked at.
_MOST_PLACES = 100
# A line that people read is not longer than this, without its spaces.
_SAME_LINE = 500
# From where to where a pattern is, by the number that it holds; everywhere under "".
_Spans = dict[str, list[tuple[int, int]]]
# The line that ends a traceback says more than a line of a log, and that more than a line of source in a frame.
_WEIGHT: dict[Kind, int] = {"exception": 0, "plain": 1, "frame": 2, "quiet": 3}
# What a paste speaks of that is ours. What any program prints counts beside one of these.
_OURS = re.compile(
    r"torch|cuda|cudnn|nvidia|nvrm|nvlink|\bgsp\b|nccl|\bgpus?\b(?! ?process)|\btriton|dataloader|deepspeed|vllm|"
    r"sglang|\brocm|amdgpu|"
    r"xformers|diffusers|transformers|safetensors|huggingface|lightning[._]|megatron|tensorflow|\bjax|(?<!\bo)llama|"
    r"checkpoint shards|\bepoch\b.{0,9}\d|\b([hb][123]00|a100|gb10|gb[23]00|l40s?|mi[23]\d\dx?)\b|"
    r"\brtx ?(pro ?)?\d{4}|"
    r"\bgfx\d{3,4}|\bblackwell\b|\bsm_?1[012]\d\b|flash[-_]?infer|flash[-_]?att|llama\.cpp|"
    r"\bollama\b(?! *\| )|\bggml|comfyui|"
    r"python[\d.]*,? (-u,? )?[\w./-]*(train|infer|finetun|pretrain|eval)\w*\.py"
)
# What programs say as they go on without a GPU or a package: no error, where the paste has another one.
_GOES_ON = re.compile(
    r"will not be used|(default(ing|s)?|fall(ing|s)? ?back|switching|reverting) to (the )?(cpu|eager|slow|python|"
    r"native|math)|"
    r"(using|running on|use) (the )?(cpu|slow)|on (the )?cpu instead|skipping registering|much faster with|deprecat|"
    r"not compiled to use|to enable the following instructions|failed to load image python extension|rebuild "
    r"tensorflow|"
    r"could not load dynamic library|ignore above cudart|cannot dlopen some|was not compiled with flash|"
    r"without specifying a torch dtype|unable to register (cudnn|cublas|cufft)|proceeding without",
    re.IGNORECASE,
)
# The kernel's log has one writer, so that its lines stand in the order of what happened.
_KERNEL = re.compile(r"\bNVRM:|\bS?Xid \(|\bnvidia-nvswitch|\bamdgpu [0-9a-f]{4}:")
# The lines before and after the one where a text stands that its numbers are read from, and no more letters than that.
_LINES_BEFORE, _LINES_AFTER, _MOST_LETTERS = 3, 12, 4000


@dataclass(frozen=True, slots=True)
class Match:
    """A text that was found: on which line, which conditions it points to, and whether only a part of it was there.

    `said` are its line and those after it, `around` also those before, for who reads the numbers in them. `doubt` says
    what in the paste speaks against it, where something does. `platforms` are those whose marks the paste has.
    """

    text: Text
    line: int
    conditions: tuple[str, ...]
    cut: bool = False
    said: str = ""
    around: str = ""
    doubt: str = ""
    platforms: frozenset[Platform] = frozenset()

    @property
    def certainty(self) -> Certainty:
        """Return how sure it is: less so for a part of a text, for what names no cause, and beside what speaks against
        it."""
        return "hint" if self.cut or self.doubt or self.text.symptom else self.text.certainty


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands, in characters without spaces."""

    text: Text
    start: int
    end: int
    line: Line
    cut: bool = False

    def within(self, other: _Place) -> bool:
        """Return whether a longer one covers it that says as much, and that is not what follows from it."""
        covered = other.start <= self.start and self.end <= other.end
        longer = other.end - other.start > self.end - self.start
        brought_about = self.text.id.startswith(other.text.follows)
        return covered and longer and not brought_about and (self.text.symptom or not other.text.symptom)

    def adds_nothing(self, other: _Place) -> bool:
        """Return whether it is a symptom on a line that says more, or covers what brings it about."""
        covers = self.touches(other) and other.text.id.startswith(self.text.follows) and self.text.id != other.text.id
        return covers or (self.text.symptom and not other.text.symptom and self.line == other.line)

    def touches(self, other: _Place) -> bool:
        return self.start < other.end and other.start < self.end


class _Near:
    """Places by where they stand: of thousands in a long log, only those near one are held against it."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = sorted(places, key=lambda place: place.start)
        self._starts = [place.start for place in self._places]
        self._longest = max((place.end - place.start for place in places), default=0)

    def to(self, place: _Place) -> Sequence[_Place]:
        """Return those that may touch `place` or stand on its line, as far as a text is long."""
        first = bisect.bisect_left(self._starts, place.start - self._longest - _SAME_LINE)
        return self._places[first : bisect.bisect_right(self._starts, place.end + _SAME_LINE)]


def find(pasted: str, texts: Sequence[Text], conditions: Sequence[Text] = ()) -> list[Match]:
    """The texts that `pasted` holds, the root cause first; none twice.

    `conditions` are those of `gpucheck doctor`: where one is in the same place as a text, the text tells and points to
    it. A symptom comes after what caused it. Of tracebacks the last group counts, and in a chained group the exception
    that came first; on other lines what was written first.
    """
    normal = normalise(pasted)
    told = [place for place in _places(normal, texts) if place.line.kind != "quiet" or place.text.logged]
    # A condition in the place of a text is pointed to; one that stands alone has to be ours as a text has.
    pointed = [place for place in _places(normal, conditions, ours=True) if place.line.kind != "quiet"]
    ours = _OURS.search(normal.spaced) is not None
    # What is there whole explains what is there in part: only where nothing is, parts are looked for.
    if not told and not (pointed and ours):
        told = _cut_places(normal, texts) or _cut_places(normal, conditions) or _weak_places(normal, texts)
    mine, theirs = _Near(told), _Near(pointed)
    found = told + [place for place in pointed if ours and not any(place.touches(one) for one in mine.to(place))]
    errors = _unknown_errors(normal, found)
    if errors == "all":
        found = [place for place in found if place.line.kind != "frame" and not _GOES_ON.search(place.line.text)]
    near = _Near(found)
    found = [
        place
        for place in found
        if not any(place.within(other) or place.adds_nothing(other) for other in near.to(place))
    ]
    where = marked(normal.spaced)
    first: dict[str, Line] = {}
    for place in found:
        if place.line.kind not in _LATE:
            first.setdefault(place.text.id, place.line)
    matches: dict[str, Match] = {}
    for place in sorted(found, key=lambda place: _order(place, first)):
        beside = [one.text.id for one in theirs.to(place) if one.touches(place)]
        said, around = _excerpts(normal, place.line)
        points = (*place.text.conditions, *beside)
        match = Match(place.text, place.line.number, points, place.cut, said, around, "", where)
        earlier = matches.setdefault(place.text.id, match)
        matches[place.text.id] = replace(
            earlier, conditions=tuple(dict.fromkeys((*earlier.conditions, *match.conditions)))
        )
    return _doubted(list(matches.values()), found, errors)


def _unknown_errors(normal: Normal, found: Sequence[_Place]) -> Literal["none", "some", "all"]:
    """Return how many of the exceptions in the paste are not known."""
    raised = [line for line in normal.lines if line.kind == "exception"]
    # A message goes on below the line that begins it, up to the next frame or traceback.
    known = {line.number for place in found for line in normal.lines_of(place.start, place.end)}
    unknown = [line for line in raised if not known & set(_message(normal, line))]
    return "none" if not unknown else "all" if len(unknown) == len(raised) else "some"


def _message(normal: Normal, line: Line) -> range:
    """The numbers of the lines of an exception's message: its own, and the plain ones right below it."""
    end = line.number
    while end < min(len(normal.lines), line.number + _LINES_AFTER) and normal.lines[end].kind == "plain":
        end += 1
    return range(line.number, end + 1)


def _doubted(matches: list[Match], found: Sequence[_Place], errors: str) -> list[Match]:
    """The same, the first with what speaks against it: an error that is not known, or another cause beside it."""
    if not matches:
        return matches
    first = matches[0]
    place = next(one for one in found if one.text.id == first.text.id and one.line.number == first.line)
    others = {
        one.text.id
        for one in found
        if one.line.kind not in _LATE
        and not one.text.symptom
        and one.text.id != first.text.id
        and not one.text.id.startswith(first.text.follows)
        and not first.text.id.startswith(one.text.follows)
        and (one.line.kind == "exception" or place.line.kind != "exception")
        and one.line.group == place.line.group
    }
    unknown = errors == "all" or (errors == "some" and first.text.symptom)
    doubt = "the paste has an error that is not known" if unknown else ""
    doubt = doubt or ("the paste has other causes too" if others else "")
    doubt = doubt or ("it is in a line of source code" if place.line.kind in _LATE else "")
    # A deprecation says what it is.
    goes_on = _GOES_ON.search(place.line.text) is not None and "deprecat" not in place.line.text.lower()
    doubt = doubt or ("the program says it continues without it" if goes_on else "")
    return [replace(first, doubt=doubt), *matches[1:]]


# What stands in the source of a frame was perhaps never said.
_LATE: tuple[Kind, ...] = ("frame",)


def _order(place: _Place, found: Mapping[str, Line]) -> tuple[bool | int, ...]:
    """Return what comes first: what was said as an error, what brings the rest about, what is surer, and what came
    earlier.

    `found` is the first line of each id. What is only deprecated comes after what failed.
    """
    line = place.line
    sure = CERTAINTIES.index(place.text.certainty)
    if line.kind != "exception" and "deprecat" in line.text.lower():
        sure = len(CERTAINTIES)
    return (
        line.kind in _LATE,
        any(
            name.startswith(place.text.follows) and not _is_effect(name, one, place)
            for name, one in found.items()
            if name != place.text.id
        ),
        place.text.symptom,
        0 if _KERNEL.search(line.text) else sure,
        _WEIGHT[line.kind],
        -line.group,
        line.number,
        sure,
        place.start - place.end,
    )


def _is_effect(name: str, one: Line, place: _Place) -> bool:
    """Return whether a line of the kernel's log was written after a text's and is not what brought that about.

    Among Xids the line does not decide: the driver ends programs by 43 and 45 before it names the fault.
    """
    is_xid = name.startswith("xid.") and place.text.id.startswith("xid.")
    return one.number > place.line.number and not is_xid and all(_KERNEL.search(x.text) for x in (one, place.line))


def _excerpts(normal: Normal, line: Line) -> tuple[str, str]:
    """The line with those after it, and the same with those before it too."""
    lines = [one.text for one in normal.lines[max(line.number - 1 - _LINES_BEFORE, 0) : line.number + _LINES_AFTER]]
    before = min(line.number - 1, _LINES_BEFORE)
    return " ".join(lines[before:])[:_MOST_LETTERS], " ".join(lines)[:_MOST_LETTERS]


def _places(normal: Normal, texts: Sequence[Text], *, ours: bool = False) -> Iterator[_Place]:
    tried: dict[str, _Spans] = {}
    ours = ours or _OURS.search(normal.spaced) is not None
    for text in texts:
        if text.unless and _holds(normal, text.unless):
            continue
        known = _holds(normal, text.beside) if text.beside else ours
        for source in (*text.patterns, *(text.common if known else ())):
            pattern = compiled(source)
            if source not in tried:
                tried[source] = _spans(normal, pattern)
            spans = tried[source].get(text.number if "number" in pattern.regex.groupindex else "", [])
            spans = spans if len(spans) <= _MOST_PLACES else spans[: _MOST_PLACES // 2] + spans[-_MOST_PLACES // 2 :]
            if pattern.by_word:
                spans = [(normal.solid_offset(start), normal.solid_offset(end)) for start, end in spans]
            yield from (_Place(text, start, end, normal.line_at(start)) for start, end in spans)


def _weak_places(normal: Normal, texts: Sequence[Text]) -> list[_Place]:
    """Where a text's weak patterns are, as hints."""
    weak = [replace(text, patterns=(), common=text.weak, beside="", certainty="hint") for text in texts if text.weak]
    return [place for place in _places(normal, weak) if place.line.kind != "quiet" or place.text.logged]


def _holds(normal: Normal, source: str) -> bool:
    """Return whether a pattern is anywhere in the text, in the form that it is for."""
    pattern = compiled(source)
    return pattern.regex.search(normal.spaced if pattern.by_word else normal.solid) is not None


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


def _cut_places(normal: Normal, texts: Sequence[Text]) -> list[_Place]:
    """The text of which a part stands at the end or the beginning; what may be a part of several is none of them."""
    found = [text for text in texts if any(is_cut(normal.solid, compiled(source)) for source in text.patterns)]
    return [_Place(text, 0, 0, normal.lines[-1], cut=True) for text in found] if len(found) == 1 else []
