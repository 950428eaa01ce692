"""A pattern as the texts that it finds, for people: … stands for anything and N for a number. Pure."""

from __future__ import annotations

import re

# Of a class of characters: what it stands for, by what is in it.
_ANYTHING = re.compile(r"^\^|\\w")
# Alternatives that are told one by one; of more, the first stands for all.
MOST = 8
# A number, until the whole text is there. Right behind a letter an N would read as a part of the word.
_NUMBER = "\0"
_IN_WORD = re.compile(rf"(?<=[A-Za-z]){_NUMBER}")
_SPACES = re.compile(r" {2,}| (?=[:.,])")


def readable(pattern: str, number: str = "") -> tuple[str, ...]:
    """The texts of a pattern's alternatives, a few at most; `number` is what the group of that name holds."""
    found = []
    for text in _Reader(pattern, number or _NUMBER).alternatives():
        plain = _SPACES.sub(lambda gap: " " if len(gap.group()) > 1 else "", text)
        plain = _IN_WORD.sub("0", plain).replace(_NUMBER, "N")
        found.append(re.sub("…{2,}", "…", plain).strip())
    return tuple(dict.fromkeys(found))


class _Reader:
    """Reads what the tables of texts use of regular expressions, from left to right."""

    def __init__(self, pattern: str, number: str) -> None:
        self._rest, self._number = pattern, number

    def alternatives(self) -> list[str]:
        """Up to the end of the pattern, or of the group that was begun."""
        texts, ended = [""], list[str]()
        while self._rest and not self._takes(r"\)"):
            if self._takes(r"\|"):
                ended, texts = ended + texts, [""]
            else:
                texts = _joined(texts, self._next())
        return ended + texts

    def _takes(self, expression: str) -> str | None:
        """Read on over what matches here; None where nothing does."""
        match = re.match(expression, self._rest, re.DOTALL)
        if match is None:
            return None
        self._rest = self._rest[match.end() :]
        return match.group()

    def _next(self) -> list[str]:
        """What one letter, class or group may be, with how often it comes."""
        is_group = False
        if self._takes(r"\\[bBAZ]|[\^$]"):
            return [""]
        if begun := self._takes(r"\((?:\?(?:[:=!]|<[=!]|P<\w+>))?"):
            is_group = True
            inner = self.alternatives()
            texts = [""] if begun[-1] in "=!" else [self._number] if begun.startswith("(?P") else inner
        elif letters := self._takes(r"\[\^?\]?(?:\\.|[^\]\\])*\]"):
            texts = [self._of_class(letters[1:-1])]
        else:
            one = self._takes(r"\\.|.") or ""
            texts = [{".": "…", r"\d": _NUMBER, r"\w": "…", r"\s": " ", r"\W": " ", r"\S": "…"}.get(one, one[-1:])]
        often = self._takes(r"(?:[?*+]|\{[\d,]+\})\??") or ""
        # What may be left out is left out where it is more than a letter.
        return [""] if is_group and often[:1] in ("?", "*") else texts

    def _of_class(self, letters: str) -> str:
        if _ANYTHING.search(letters):
            return "…"
        if r"\d" in letters or "0-9" in letters:
            return "…" if "." in letters else _NUMBER
        return "'" if "'" in letters else letters[0]


def _joined(texts: list[str], more: list[str]) -> list[str]:
    """Every text with each that may follow it, as long as these are few; else with the first of them."""
    more = more if len(texts) * len(more) <= MOST else more[:1]
    return [text + one for text in texts for one in more]
