"""The data of a benchmark on one device, and the interface of its judge. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucheck.bench.figures import Ceiling, Ceilings
from gpucheck.bench.share import part_in
from gpucheck.peaks import Part, Unknown
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results import Results
from gpucheck.report.results.bench import Headline


@dataclass(frozen=True, slots=True)
class Seen:
    """One benchmark on one device: its rows, and what stands beside them in the document.

    `parts` is how each of its parts that was begun here ended: empty for one that did all, None for one that did not
    come to an end. `recorded` are the document's results: among them what the work itself wrote down.
    """

    device: str
    rows: Sequence[Measurement]
    facts: Facts = field(default_factory=Facts)
    parts: Mapping[str, str | None] = field(default_factory=dict)
    recorded: Results = field(default_factory=Results)

    @property
    def part(self) -> Part | Unknown | None:
        """Return what the device can do at most; None for a CPU, which has no data sheet here."""
        known = next((one for one in self.facts.devices if one.id == self.device), None)
        return part_in(known or Device(self.device.partition(":")[0]))


@dataclass(frozen=True, slots=True)
class Judge:
    """The judge of a benchmark. Pure and without torch: a document of another machine is judged as well.

    `findings` is asked of each device with rows, and of one that was measured to the end and has none. `answers` are
    the entries of `results[result]`. `ceilings` is what shares are shares of, `headlines` the figures that stand for
    the benchmark in `bench all`. `together` is asked of all devices at once, with the parts that concern several.
    """

    findings: Callable[[Seen], list[Finding]]
    headlines: Callable[[Seen, Ceilings], list[Headline]]
    ceilings: Callable[[Seen], Ceilings] = lambda seen: {}
    result: str | None = None
    answers: Callable[[Seen], Sequence[Any]] = lambda seen: ()
    together: Callable[[Sequence[Seen], Facts, Sequence[str]], list[Finding]] = lambda seen, facts, parts: []


def headline(name: str, case: str, one: Measurement, ceiling: Ceiling | None = None, what: str = "") -> Headline:
    """A row's rate with its interval, and its share of a ceiling where that is known; `what` names the ceiling."""
    if one.rate is None or one.time_s is None:
        return Headline(name, one.device.id, case, None, "B/s", flags=one.flags)
    rate, time_s = one.rate.median, one.time_s
    share = rate / ceiling.value if ceiling is not None and ceiling.value else None
    return Headline(
        name,
        one.device.id,
        case,
        rate,
        one.rate.unit,
        rate * time_s.median / time_s.ci_high if time_s.ci_high else None,
        rate * time_s.median / time_s.ci_low if time_s.ci_low else None,
        share,
        None if share is None else f"{what}, estimated" if ceiling is not None and ceiling.doubt else what,
        one.flags,
    )
