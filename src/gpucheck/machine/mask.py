"""CUDA_VISIBLE_DEVICES, read entry by entry by CUDA's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MASK = "CUDA_VISIBLE_DEVICES"
# What C calls a space: of Unicode's others CUDA reads none, nor of its other digits.
_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: the device that it shows, by its place in the order without a mask, else why it shows none."""

    text: str
    index: int | None = None
    problem: str | None = None
    is_odd: bool = False

    @property
    def asks(self) -> bool:
        """Return whether it asks for a GPU: an empty entry does not, nor the -1 that ends a list."""
        return self.text.strip(_SPACES)[:1] not in ("", "-")

    @property
    def told(self) -> str:
        if self.index is None:
            return f"{self.text!r} shows nothing: {self.problem}"
        return f"CUDA reads {self.text!r} as {self.index}" if self.is_odd else f"{self.text!r} shows GPU {self.index}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole mask: its text, its entries, and which devices it shows."""

    value: str
    entries: tuple[Entry, ...]
    shown: tuple[int, ...]


def read_mask(value: str, uuids: Sequence[str | None]) -> Reading:
    """The mask by CUDA's rules, on a machine with a GPU for each of `uuids`: cards, then MIG instances. Without any of
    them it is not known what is there, and every number names a GPU.

    The first entry that names no GPU ends the list, and one that is named twice empties it (CUDA C++ Programming Guide,
    CUDA_VISIBLE_DEVICES). A UUID may be cut short as long as it fits one GPU.
    """
    entries: list[Entry] = []
    shown: list[int] = []
    ended = False
    for text in value.split(","):
        entry = _entry(text, uuids)
        if ended:
            entries.append(Entry(text, None, "it is after the end of the list", entry.is_odd))
            continue
        if entry.index is not None and entry.index in shown:
            entries.append(Entry(text, None, "a GPU that is listed twice empties the list", entry.is_odd))
            shown, ended = [], True
            continue
        entries.append(entry)
        if entry.index is None:
            ended = True
        else:
            shown.append(entry.index)
    return Reading(value, tuple(entries), tuple(shown))


def _entry(text: str, uuids: Sequence[str | None]) -> Entry:
    word = text.strip(_SPACES)
    if not word:
        return Entry(text, None, "it is empty")
    if re.match(r"(GPU|MIG)-", word):
        fits = [place for place, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(word)]
        if len(fits) == 1:
            return Entry(text, fits[0])
        return Entry(text, None, "it matches several GPUs" if fits else "no GPU has this UUID")
    # As C's strtoul reads it: `0x1` is 0 and `1gpu` is 1.
    begins = re.match(r"[+-]?[0-9]+", word)
    # Python makes no int of more than 4300 digits.
    number = int(min(max(float(begins[0]), -1.0), 2.0**53)) if begins else None
    is_odd = re.fullmatch(r"-?[0-9]+", word) is None
    if number is None:
        return Entry(text, None, "it is neither a number nor a UUID", is_odd)
    if number < 0:
        return Entry(text, None, "a negative number ends the list", is_odd)
    # A number is a card's: MIG instances have UUIDs alone.
    count = sum(not (uuid or "").startswith("MIG-") for uuid in uuids)
    if uuids and number >= count:
        return Entry(text, None, f"{count} GPU{'s' * (count != 1)} exist{'s' * (count == 1)}, counted from 0", is_odd)
    return Entry(text, number, None, is_odd)
