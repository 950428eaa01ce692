"""Regular expressions made fit for text that was wrapped anywhere. Pure.

A terminal wraps in the middle of a word and a mail program at a space, so neither text nor pattern keeps its spaces
here; quotes go too, which Markdown and JSON change. Both are in lower case.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

QUOTES = "'\"`´‘’“”"
# How much of a line a `.*` may skip: without line ends it would reach through the whole text.
_MOST = 200
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
# A text that was cut is recognised by this much of a pattern that is plain words, and by no fewer characters.
CUT_SHARE, CUT_CHARACTERS = 0.5, 14


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern ready to be tried.

    `by_word` says that it is for the text with its spaces. `needs` is in every text that matches; empty where that is
    not plain. `head` and `tail` are how it begins and ends, in plain letters, for texts that were cut; empty where they
    are not plain.
    """

    regex: re.Pattern[str]
    by_word: bool
    needs: str
    head: str
    tail: str


@functools.cache
def compiled(source: str) -> Pattern:
    """`source` ready to be tried. Raises re.error for what is no regular expression."""
    by_word = r"\b" in source or "^" in source.replace("[^", "") or "$" in source
    parts = list(_tokens(source, by_word=by_word))
    runs = _runs(parts)
    regex = re.compile("".join(f"{text}{repeated}" for text, repeated in parts))
    return Pattern(
        regex,
        by_word,
        needs=max((run for run, _, _ in runs), key=len, default=""),
        head=next((run for run, first, _ in runs if first), "") if not by_word else "",
        tail=next((run for run, _, last in runs if last), "") if not by_word else "",
    )


def _tokens(source: str, *, by_word: bool) -> list[tuple[str, str]]:
    """The pattern in parts, each with its quantifier; spaces and quotes left out."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(source):
        token = _token_at(source, at)
        at += len(token)
        repeated = _QUANTIFIER.match(source, at)
        at = repeated.end() if repeated else at
        if token in (" ", r"\ ", r"\s") or token.removeprefix("\\") in QUOTES:
            if by_word and token.removeprefix("\\") not in QUOTES:
                found.append((" ", "?"))
            continue
        found.append((_lower(token), _bounded(repeated.group()) if repeated else ""))
    return found


def _token_at(source: str, at: int) -> str:
    if source[at] == "\\":
        return source[at : at + 2]
    if source[at] == "[":
        end = source.index("]", at + (3 if source[at + 1] == "^" else 2))
        return source[at : end + 1]
    opened = re.compile(r"\((?:\?(?:<?[=!]|:|P<\w+>))?").match(source, at)
    return opened.group() if opened else source[at]


def _lower(token: str) -> str:
    """A letter in lower case; an escape such as \\S, and what opens a group, mean something else in lower case."""
    return token if token.startswith(("\\", "(")) else token.lower()


def _bounded(quantifier: str) -> str:
    """Repeated as often as before, but not without end."""
    if quantifier[0] in "*+":
        return f"{{{int(quantifier[0] == '+')},{_MOST}}}?"
    return quantifier


def _runs(parts: list[tuple[str, str]]) -> list[tuple[str, bool, bool]]:
    """The plain runs outside every group, each with whether it is the pattern's beginning and its end."""
    depth, run, began, runs = 0, "", True, []
    for number, (text, repeated) in enumerate(parts):
        plain = text[1:] if text[0] == "\\" and not text[1].isalnum() else text
        depth += text.startswith("(") - (text == ")")
        if text == "|" and depth == 0:
            return []
        if depth == 0 and not repeated and len(plain) == 1 and (text[0] == "\\" or text not in ".[]()|^$"):
            run, began = run + plain, began if run else number == 0
            continue
        runs.append((run, began, False))
        run = ""
    runs.append((run, began if run else False, True))
    return [one for one in runs if one[0]]


def is_cut(text: str, pattern: Pattern) -> bool:
    """Whether the text, without spaces, ends in the midst of the pattern or begins there."""
    ends, begins = text[-_MOST:].rstrip(".…"), text[:_MOST].lstrip(".…")
    return _overlaps(ends, pattern.head) or _overlaps(begins[::-1], pattern.tail[::-1])


def _overlaps(text: str, run: str) -> bool:
    """Whether the text ends with a long part of how `run` begins."""
    least = max(CUT_CHARACTERS, round(CUT_SHARE * len(run)))
    return any(text.endswith(run[:length]) for length in range(least, len(run) + 1))
