"""What `bench transfer` comes to: what the judges of its parts say of the rows of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpucheck import units
from gpucheck.bench import figures
from gpucheck.bench.figures import Ceiling, Ceilings
from gpucheck.bench.seen import Judge, Seen, headline
from gpucheck.bench.transfer import (
    both_ways_judge,
    copies_judge,
    idioms_judge,
    on_device_judge,
    peer_judge,
    together_judge,
)
from gpucheck.bench.transfer.link import limit_of, link_under_load
from gpucheck.directions import SHORT_WAYS, WAYS
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench_all import Headline
from gpucheck.report.results.transfer import TransferResult

NAME = "transfer"
_OfRows = Callable[[Sequence[Measurement], Facts], Sequence[Finding]]


def part(name: str) -> str:
    """A part of this benchmark, in a document's `parts`."""
    return f"{NAME}.{name}"


def _copies(rows: Sequence[Measurement], facts: Facts) -> list[Finding]:
    mine = [one for one in rows if one.name == copies_judge.NAME]
    return copies_judge.judge(mine, link_under_load(mine), facts)


# By the part: asked where it was begun, with every row of the device; of all devices where it concerns several.
OF_A_DEVICE: dict[str, _OfRows] = {
    "copies": _copies,
    "idioms": idioms_judge.judge,
    "both_ways": both_ways_judge.judge,
    "on_device": on_device_judge.judge,
}
OF_SEVERAL: dict[str, _OfRows] = {"together": together_judge.judge, "peer": peer_judge.judge}


def findings(seen: Seen) -> list[Finding]:
    """What the parts that were begun say of one device's rows."""
    begun = [judge for name, judge in OF_A_DEVICE.items() if part(name) in seen.parts]
    return [finding for judge in begun for finding in judge(seen.rows, seen.facts)]


def together(devices: Sequence[Seen], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """What the parts that concern several devices say of the rows of all."""
    rows = [one for seen in devices for one in seen.rows]
    return [finding for name, judge in OF_SEVERAL.items() if name in parts for finding in judge(rows, facts)]


def answer(seen: Seen) -> TransferResult:
    """What all parts derive from a device's rows: gains and latencies as called, fits, the link, and the idioms."""
    copies = [one for one in seen.rows if one.name == copies_judge.NAME]
    return TransferResult(
        seen.device,
        link=link_under_load(copies).told(),
        gains=copies_judge.speedups(copies),
        latencies=copies_judge.latencies(copies),
        fits=copies_judge.fits(copies),
        idioms=idioms_judge.times(seen.rows),
    )


def ceilings(seen: Seen) -> Ceilings:
    """What the link carries, where large pinned copies were timed by the device's clock."""
    copies = [one for one in seen.rows if one.name == copies_judge.NAME]
    rates = [row.rate.median for way in WAYS if (row := copies_judge.best(copies, way, "link")) and row.rate]
    if not rates:
        return {}
    limit, unknown_because = limit_of(link_under_load(copies), max(rates))
    return {"link": Ceiling(limit, "" if limit else f"link unknown: {unknown_because}")}


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The largest pinned copy of each direction; where nothing can be pinned, what was copied."""
    found = []
    for way, pinned in figures.largest_copies(seen.rows).items():
        one = pinned or max(figures.copies(seen.rows)[way], key=figures.size)
        case = f"{one.case['host_memory']} {SHORT_WAYS[way]}, {units.capacity(figures.size(one))}"
        found.append(headline(NAME, case, one, known.get("link"), "the link"))
    return found


JUDGE = Judge(findings, headlines, ceilings, "bench_transfer", lambda seen: (answer(seen),), together)
