"""Options of `fleet check` and `fleet judge`. They are parsed before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.bench.benchmarks import Selecting
from gpucheck.errors import UsageError
from gpucheck.fleet import hosts
from gpucheck.options import LIMITS, SELECTION, TIME, option, words

TITLES = {
    "devices": "devices and the driver's view of them",
    "doctor": "why torch cannot use a GPU",
    "smoke": "whether everything works",
    "bench": "memory bandwidth and matrix products, for `fleet judge`",
    "memory": "processes that use GPU memory; needs --with or --only",
    "transfer": "copies between host and device; needs --with or --only",
    "overlap": "copies during matrix products; needs --with or --only",
    "collective": "data exchanged among all GPUs of the node; needs --with or --only",
    "stress": "correct results under load; needs --with or --only",
}
# The other parts take longer, or their figures rarely differ between devices of one model.
PARTS = ("devices", "doctor", "smoke", "bench")


def _run(text: str, name: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise UsageError(f"{name} must be at most 200 printable characters", "", "write it like nightly-0412")
    return text


def _host(text: str, name: str) -> str:
    if not hosts.is_safe(text):
        fix = "use letters, digits, dots, dashes, underscores"
        raise UsageError(f"{name} {text[:80]!r} is not a host name", "", fix)
    return text


@dataclass(frozen=True, slots=True)
class FleetCheckOptions(Selecting):
    """Options of the check: its parts, its time limit and the folder for its document."""

    noun, titles, nothing = "part", TITLES, "nothing would be checked"
    only: tuple[str, ...] = options.only("parts", metavar="PART")
    skip: tuple[str, ...] = options.skip("parts", metavar="PART")
    more: tuple[str, ...] = option(
        "Also run memory, transfer, overlap, collective or stress. Repeatable.",
        name="--with",
        metavar="PART",
        choices=tuple(part for part in TITLES if part not in PARTS),
        repeat=True,
        group=SELECTION,
    )
    list_all: bool = options.list_all("parts")
    prolog: bool = option(
        "Run devices and doctor only; exit with 1 for a bad node, else 0 (also undecided).", False, group=SELECTION
    )
    devices: int | None = option(
        "GPUs that the node must have; 0 for a node without any.",
        metavar="N",
        parse=units.Integer(0),
        shown="at least 1",
    )
    within_s: float = option(
        "Time limit for the whole check.",
        300.0,
        name="--within",
        metavar="TIME",
        parse=units.parse_duration,
        shown="5m",
        group=TIME,
    )
    gather: str | None = option(
        "Write this node's document into the shared folder DIR; - prints it as one line.",
        metavar="DIR",
        group="Document",
    )
    run: str | None = option(
        "ID of this run.", metavar="ID", parse=_run, shown="the launcher's job ID", group="Document"
    )
    host: str | None = option("Name of this node.", metavar="NAME", parse=_host, shown="host name", group="Document")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts in their order. Raises UsageError for an unknown part, or if none is left."""
        # The check in a Slurm prolog must be short. These two parts take seconds.
        usual = TITLES if self.only else ("devices", "doctor") if self.prolog else PARTS
        if not (chosen := {*self.more, *(part for part in self.selected if part in usual)}):
            raise UsageError("--skip leaves no part", self.nothing, "skip fewer")
        return tuple(part for part in TITLES if part in chosen)

    def check(self) -> None:
        self.parts  # noqa: B018


@dataclass(frozen=True, slots=True)
class FleetJudgeOptions:
    """Options of the judge: the documents, the expected nodes and the folder for the lists."""

    paths: tuple[str, ...] = words(
        "Folders that --gather wrote to, single documents, or logs of `--gather -`; `-` reads stdin.",
        metavar="DIR|FILE...",
        required=True,
    )
    run: str | None = option("Judge the run with this ID.", metavar="ID", parse=_run, shown="newest", group=SELECTION)
    expect: tuple[str, ...] | int | None = option(
        "Nodes to expect: a hostfile, a list such as node[001-004,7], or a number.",
        metavar="NODES",
        parse=hosts.expected,
        group=SELECTION,
    )
    wait_s: float | None = option(
        "Wait until all expected nodes are done, at most TIME.",
        name="--wait",
        metavar="TIME",
        parse=units.parse_duration,
        group=TIME,
    )
    devices: int | None = option("GPUs that every node must have.", metavar="N", parse=units.Integer(0), group=LIMITS)
    max_bad: float = option(
        "If more nodes than this are only slow or silent, suspect the check and do not list them.",
        0.05,
        metavar="PERCENT",
        parse=units.Percent(1.0),
        shown="5%",
        group=LIMITS,
    )
    into: str | None = option(
        "Write good.txt, bad.txt, fleet.json and fleet.prom into DIR.", metavar="DIR", group="Lists"
    )
