"""What `fleet check` and `fleet judge` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.errors import UsageError
from gpucheck.fleet import hosts
from gpucheck.options import option

PARTS = ("devices", "doctor", "smoke", "bench")
# What takes longer, or measures what siblings seldom differ in.
MORE_PARTS = ("memory", "transfer", "overlap")
# Doctor and devices answer in seconds; a prolog has little more.
PROLOG_PARTS = ("devices", "doctor")


def _run(text: str, name: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise UsageError(f"{name} is not understood", "it has at most 200 characters that print", "like nightly-0412")
    return text


def _host(text: str, name: str) -> str:
    if not hosts.is_safe(text):
        raise UsageError(f"{name} {text[:80]!r} is no host name", "", "use letters, digits, dots, dashes, underscores")
    return text


@dataclass(frozen=True, slots=True)
class FleetCheckOptions:
    """What a node is checked for, within which time, and where its document goes."""

    gather: str | None = option("Leave the node's document in this folder; - prints it as one line.", metavar="DIR")
    within_s: float = option(
        "Time for all parts.", 300.0, name="--within", metavar="TIME", parse=units.parse_duration, shown="5m"
    )
    only: tuple[str, ...] = option(
        "Only these parts: devices, doctor, smoke, bench. Repeatable.",
        metavar="PART",
        choices=(*PARTS, *MORE_PARTS),
        repeat=True,
    )
    more: tuple[str, ...] = option(
        "Also: memory, transfer, overlap. Repeatable.", name="--with", metavar="PART", choices=MORE_PARTS, repeat=True
    )
    prolog: bool = option("For a prolog: devices and doctor alone, and exit 1 only if the node is bad.", False)
    run: str | None = option("The run's id; default the launcher's job id.", metavar="ID", parse=_run)
    host: str | None = option("The node's name; default its host name.", metavar="NAME", parse=_host)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts in their order."""
        usual = self.only or (PROLOG_PARTS if self.prolog else PARTS)
        return tuple(one for one in (*PARTS, *MORE_PARTS) if one in (*usual, *self.more))


@dataclass(frozen=True, slots=True)
class FleetJudgeOptions:
    """Which documents, which nodes are expected, and where the lists go."""

    paths: tuple[str, ...] = option(
        "Folders that --gather was given, documents, or logs with their lines (- is stdin).",
        metavar="DIR|FILE...",
        positional=True,
        repeat=True,
        commas=False,
        required=True,
    )
    run: str | None = option("Judge this run; default the newest.", metavar="ID", parse=_run)
    expect: tuple[str, ...] | int | None = option(
        "The nodes: a hostfile, a list like node[001-004,7], or how many.", metavar="NODES", parse=hosts.expected
    )
    wait_s: float | None = option(
        "Wait at most so long until all expected nodes have ended.",
        name="--wait",
        metavar="TIME",
        parse=units.parse_duration,
    )
    max_bad: float = option(
        "If more nodes are bad, suspect the check and list none.",
        0.05,
        metavar="PERCENT",
        parse=units.parse_percent,
        shown="5%",
    )
    into: str | None = option("Write good.txt, bad.txt, fleet.json and fleet.prom into this folder.", metavar="DIR")
