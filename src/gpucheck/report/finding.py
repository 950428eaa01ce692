"""Findings: what a judge says, with its evidence and the fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from gpucheck import errors
from gpucheck.errors import GpucheckError

Verdict = Literal["pass", "info", "warn", "fail", "inconclusive", "skip"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# `skip` outranks `pass` because it is not one.
WORST_FIRST: tuple[Verdict, ...] = ("fail", "inconclusive", "warn", "skip", "pass", "info")
# Of these, what asks for something.
ASKING = WORST_FIRST[:3]


# What a finding adds to the last line of a benchmark's page: whether results are right, or that only where one is wrong
# or was not compared; or what is worth doing.
Role = Literal["", "verifies", "finds_wrong", "advises"]


@dataclass(frozen=True, slots=True)
class Id:
    """The meaning of a finding's ID: its command, its check, its meaning if it fails, and the fix."""

    id: str
    title: str
    meaning: str
    then: str = ""
    role: Role = ""
    command: str = ""


def of(command: str, *ids: Id) -> tuple[Id, ...]:
    """The ids of one command's findings."""
    return tuple(replace(row, command=command) for row in ids)


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement. `id` is dotted and never changes its meaning; `fix` is the next command to type, or None.

    `device` is what torch calls the device that it is about, None where it is about none or several.
    """

    id: str
    verdict: Verdict
    title: str
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    device: str | None = None

    @property
    def is_gate(self) -> bool:
        """Return whether it answers to a threshold that was set."""
        return "threshold" in self.evidence


def of_error(error: GpucheckError, device: str | None = None) -> Finding:
    """The finding for an error of gpucheck if other work continues or was measured before, by its exit status."""
    verdicts: dict[int, Verdict] = {errors.FAILED: "fail", errors.USAGE: "fail", errors.UNDECIDED: "inconclusive"}
    verdict = verdicts.get(error.exit_code, "skip")
    return Finding(error.finding, verdict, error.what, error.why, fix=error.fix or None, device=device)


# -- findings without repetition ---------------------------------------------------------------------------------------

_CARD = r"(?:cuda:\d+|NVML \d+)"
_OF_CARDS = re.compile(rf"({_CARD}(?:(?:, | to ){_CARD})*): (.+)", re.DOTALL)
_OF_OTHERS = re.compile(rf"; {_CARD}(?:, | to |: )")
# Two names are as short as a range of them.
SHORTENED_FROM = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one check with one verdict and title: `devices` are their cards, runs of them shortened.

    `messages` pairs each card's name (empty for a finding about no card) with what is said of it.
    """

    verdict: Verdict
    title: str
    devices: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]
    fixes: tuple[str, ...]

    @property
    def message(self) -> str:
        """The text with the names of the GPUs: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
        return told_once(self.messages)

    @property
    def line(self) -> str:
        """The cards first, then title and message: `cuda:0, cuda:1  reset needed: NVML's recovery action is …`."""
        devices, title = ", ".join(self.devices), self.title
        alike = len({message for _, message in self.messages}) == 1
        message = self.messages[0][1] if alike else self.message
        # What is said of all cards alike by one finding.
        if not devices and (shared := _OF_CARDS.fullmatch(message)) and not _OF_OTHERS.search(shared[2]):
            devices, message = shared[1], shared[2]
        return f"{f'{devices}  ' if devices else ''}{title}{f': {message}' if message else ''}"


def grouped(found: Sequence[Finding]) -> list[Group]:
    """The findings without repetition: cards of which the same is said share a line. In the order of the first of each.

    What is no card's stands alone.
    """
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for number, finding in enumerate(found):
        title, own = finding.title, f"{finding.device}: "
        key = "" if name_in(finding) else str(number)
        if key and title.startswith(own):
            title, key = title.removeprefix(own), f"{finding.message} "
        groups.setdefault((finding.id, finding.verdict, title, key), []).append(finding)
    return [_group(members, title) for (_, _, title, _), members in groups.items()]


def name_in(finding: Finding) -> str:
    """The card that the finding is about, as its message begins; empty where it is about no card."""
    if "nvml_index" not in finding.evidence:
        return ""
    if not finding.message:
        return str(finding.evidence.get("device") or f"NVML {finding.evidence['nvml_index']}")
    name, colon, _ = finding.message.partition(": ")
    return name if colon else ""


def _group(members: list[Finding], title: str) -> Group:
    first, names = members[0], [name_in(finding) for finding in members]
    messages = [finding.message.removeprefix(f"{name}: ") for name, finding in zip(names, members, strict=True)]
    if len(members) == 1:
        title = first.title
    elif not any(names):
        names, messages = [str(finding.device) for finding in members], [first.message]
    pairs = tuple(zip(names, messages, strict=True)) if len(messages) == len(names) else (("", first.message),)
    fixes = tuple(dict.fromkeys(finding.fix for finding in members if finding.fix))
    return Group(first.verdict, title, in_short([name for name in names if name]), pairs, fixes)


def told_once(pairs: Sequence[tuple[str, str]]) -> str:
    """The text for each name, once for all names that share it: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
    by_words: dict[str, list[str]] = {}
    for name, words in pairs:
        by_words.setdefault(words, []).append(name)
    return "; ".join(f"{', '.join(in_short(who))}: {words}" if who[0] else words for words, who in by_words.items())


def in_short(names: Sequence[str]) -> tuple[str, ...]:
    """The names with runs of three and more shortened: `cuda:0 to cuda:7`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _following(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return tuple(part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) >= SHORTENED_FROM else run))


def _following(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + 1}" if len(stem) < len(name) else ""
