"""A pattern as the text that it finds, for people: the first of alternatives, … for anything, N for a number. Pure."""

from __future__ import annotations

import re

# Of a class of characters: what it stands for, by what is in it.
_ANYTHING = re.compile(r"^\^|\\w")
_SPACES = re.compile(r" {2,}| (?=[:.,])")


def readable(pattern: str, number: str = "") -> tuple[str, ...]:
    """The texts of a pattern's alternatives; `number` is what the group of that name holds."""
    reader = _Reader(pattern, number or "N")
    found = []
    for text in reader.alternatives():
        plain = _SPACES.sub(lambda gap: " " if gap.group().isspace() and len(gap.group()) > 1 else "", text)
        found.append(re.sub("…{2,}", "…", plain).strip())
    return tuple(dict.fromkeys(found))


class _Reader:
    """Reads what the tables of texts use of regular expressions, from left to right."""

    def __init__(self, pattern: str, number: str) -> None:
        self._rest, self._number = pattern, number

    def alternatives(self) -> list[str]:
        """Up to the end of the pattern, or of the group that was begun."""
        texts = [""]
        while self._rest and not self._takes(r"\)"):
            if self._takes(r"\|"):
                texts.append("")
            else:
                texts[-1] += self._next()
        return texts

    def _takes(self, expression: str) -> str | None:
        """Read on over what matches here; None where nothing does."""
        match = re.match(expression, self._rest)
        if match is None:
            return None
        self._rest = self._rest[match.end() :]
        return match.group()

    def _next(self) -> str:
        """One letter, class or group, with how often it comes."""
        is_group = False
        if self._takes(r"\\[bB]|[\^$]"):
            return ""
        if begun := self._takes(r"\((?:\?(?:[:=!]|<[=!]|P<\w+>))?"):
            is_group = True
            inner = self.alternatives()[0]
            text = "" if begun[-1] in "=!" else self._number if begun.startswith("(?P") else inner
        elif letters := self._takes(r"\[\^?\]?(?:\\.|[^\]\\])*\]"):
            text = self._of_class(letters[1:-1])
        else:
            one = self._takes(r"\\.|.") or ""
            text = {".": "…", r"\d": "N", r"\w": "…", r"\s": " ", r"\S": "…"}.get(one, one[-1:])
        often = self._takes(r"(?:[?*+]|\{[\d,]+\})\??") or ""
        # What may be left out is left out where it is more than a letter.
        return "" if is_group and often[:1] in ("?", "*") else text

    def _of_class(self, letters: str) -> str:
        if _ANYTHING.search(letters):
            return "…"
        return "N" if r"\d" in letters or "0-9" in letters else letters[-1]
