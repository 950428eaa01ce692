"""Findings: the judges' results, each with a verdict, the evidence and the fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from gpucheck import errors
from gpucheck.errors import GpucheckError

Verdict = Literal["pass", "info", "warn", "fail", "inconclusive", "skip"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# `skip` is worse than `pass`, because a skipped check has not passed.
WORST_FIRST: tuple[Verdict, ...] = ("fail", "inconclusive", "warn", "skip", "pass", "info")
# Verdicts that need action.
ASKING = WORST_FIRST[:3]


# The role of a finding on a benchmark's page. `verifies` checks that results are right. `finds_wrong` appears only if a
# result is wrong or was not compared. `advises` suggests an action.
Role = Literal["", "verifies", "finds_wrong", "advises"]


@dataclass(frozen=True, slots=True)
class Id:
    """The page of a finding's ID: its command, its check, its meaning if it fails, and the fix."""

    id: str
    title: str
    meaning: str
    then: str = ""
    role: Role = ""
    command: str = ""


def of(command: str, *ids: Id) -> tuple[Id, ...]:
    """Return the IDs of a command's findings, with the command filled in."""
    return tuple(replace(row, command=command) for row in ids)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `id` is dotted and never changes its meaning. `fix` is the next command to type, or None. `device`
    is torch's name for the device that the finding is about, or None for no device or several."""

    id: str
    verdict: Verdict
    title: str
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    device: str | None = None

    @property
    def text(self) -> str:
        """Return the title and the message."""
        return f"{self.title}: {self.message}" if self.message else self.title

    @property
    def is_gate(self) -> bool:
        """Return whether the finding checks a threshold that the user set."""
        return "threshold" in self.evidence


def of_error(error: GpucheckError, device: str | None = None) -> Finding:
    """Return the finding for an error of gpucheck that does not end the command. Its exit status sets the verdict."""
    verdicts: dict[int, Verdict] = {errors.FAILED: "fail", errors.USAGE: "fail", errors.UNDECIDED: "inconclusive"}
    verdict = verdicts.get(error.exit_code, "skip")
    return Finding(error.finding, verdict, error.what, error.why, fix=error.fix or None, device=device)


# -- findings without repetition ---------------------------------------------------------------------------------------

_CARD = r"(?:cuda:\d+|NVML \d+)"
_OF_CARDS = re.compile(rf"({_CARD}(?:(?:, | to ){_CARD})*): (.+)", re.DOTALL)
_OF_OTHERS = re.compile(rf"; {_CARD}(?:, | to |: )")


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one check with the same verdict and title. `devices` are their GPUs, with ranges shortened.
    `messages` pairs each GPU's name with its message. The name is empty for a finding that is not about a GPU."""

    verdict: Verdict
    title: str
    devices: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]
    fixes: tuple[str, ...]

    @property
    def message(self) -> str:
        return told_once(self.messages)

    @property
    def line(self) -> str:
        """Return GPUs, title and message in a line: `cuda:0, cuda:1  reset needed: NVML's recovery action is …`."""
        devices = ", ".join(self.devices)
        alike = len({message for _, message in self.messages}) == 1
        message = self.messages[0][1] if alike else self.message
        # A single finding may say the same of several GPUs.
        if not devices and (shared := _OF_CARDS.fullmatch(message)) and not _OF_OTHERS.search(shared[2]):
            devices, message = shared[1], shared[2]
        return f"{f'{devices}  ' if devices else ''}{self.title}{f': {message}' if message else ''}"


def grouped(found: Sequence[Finding]) -> list[Group]:
    """Return the findings in groups, in order. GPUs with the same finding share a group. Others have their own."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for number, finding in enumerate(found):
        title, own = finding.title, f"{finding.device}: "
        key = "" if name_in(finding) else str(number)
        if key and title.startswith(own):
            title, key = title.removeprefix(own), f"{finding.message} "
        groups.setdefault((finding.id, finding.verdict, title, key), []).append(finding)
    return [_group(members, title) for (_, _, title, _), members in groups.items()]


def name_in(finding: Finding) -> str:
    """Return the name of the finding's GPU, with which its message begins, or an empty text if it is not about one."""
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
    """Return each text once, after all names that share it: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
    by_words: dict[str, list[str]] = {}
    for name, words in pairs:
        by_words.setdefault(words, []).append(name)
    return "; ".join(f"{', '.join(in_short(who))}: {words}" if who[0] else words for words, who in by_words.items())


def in_short(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with ranges of three or more shortened: `cuda:0 to cuda:7`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _following(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return tuple(part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run))


def _following(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + 1}" if len(stem) < len(name) else ""


def few(texts: Sequence[str], between: str = "; ") -> str:
    """Return the first two texts and the number of the others: `a; b; and 3 more`."""
    more = len(texts) - 2
    return between.join([*texts[:2], *([f"and {more} more"] if more > 0 else [])])
