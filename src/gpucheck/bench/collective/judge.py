"""Judge collectives: whether the data is right, their rate, the share of what the part reaches, and the rank that
failed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import messages, naming, units
from gpucheck.bench import judging
from gpucheck.bench.collective import PEER_COPY
from gpucheck.bench.judging import Ceilings, Figure, Judge, Seen, Threshold, headline, size
from gpucheck.machine import launcher
from gpucheck.machine.child_protocol import Line
from gpucheck.measure import runs
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline

# -- a rank that failed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a rank: the line that ended its answer, or None and `why`; `step` is the last that it reached.

    `how` is what ended its process, as `talk.How` has it; empty where it still runs or its parent did not say.
    """

    rank: int
    line: Line | None = None
    why: str = ""
    step: str = ""
    how: str = ""


# The steps of a rank, in the order in which it reaches them.
STEPS = ("", "joining", "starting", "calling", "timing")
_DIED = ("unstarted", "crashed", "killed", "failed", "closed")
# What a backend answers to a call that it does not have.
_UNSUPPORTED = ("not support", "unsupported", "not implemented", "does not have")
_NCCL = "rerun with NCCL_DEBUG=INFO; `gpucheck doctor` shows IOMMU and ACS; does NCCL_P2P_DISABLE=1 help?"


def failed(what: str, answers: Sequence[Answer], ready: Sequence[Mapping[str, Any]], kind: str) -> Finding:
    """The finding for a collective (or the start) that not all ranks brought to an end: which rank is the cause.

    One whose process ended comes first, then one that is stopped, then what a rank said, then those that never
    entered. Where all entered and none finished, none is named. On a CPU nothing of this is the hardware's.
    """
    bad = [one for one in answers if one.line is None]
    evidence = {
        "what": what,
        "ranks": [{"rank": one.rank, "why": one.why, "step": one.step, "how": one.how} for one in bad],
    }
    died = [one for one in bad if one.how in _DIED] or [one for one in bad if one.how == "stopped"]
    spoke = [one for one in bad if not one.how]
    spoke = [one for one in spoke if not launcher.LOST_PEER.search(one.why)] or spoke
    blame: Verdict = "inconclusive" if kind == "cpu" else "fail"
    if died:
        # A signal from outside, as the kernel's for want of memory, is no fault of what was measured.
        crashed = any(one.how == "crashed" for one in died)
        fix = (
            "rerun without a debugger; look for what sends SIGSTOP, as a scheduler that suspends jobs"
            if died[0].how == "stopped"
            else "look for the out-of-memory killer and Xid errors: sudo dmesg | tail -50"
        )
        return _named("collective.rank", blame if crashed else "inconclusive", what, died, ready, evidence, fix)
    if spoke:
        text = spoke[0].why
        if all(any(word in one.why.lower() for word in _UNSUPPORTED) for one in spoke):
            return Finding("collective.unsupported", "skip", f"{what}: the backend does not have it", text, evidence)
        if any("not enough memory" in one.why for one in spoke):
            fix = "give a smaller --size"
            return _named("collective.memory", "skip", what, spoke[:1], ready, evidence, fix)
        cause = messages.cause_of(text)
        return _named("collective.rank", blame, what, spoke, ready, evidence, cause.fix if cause else _NCCL)
    furthest = max((STEPS.index(one.step) if one.step in STEPS else 0 for one in answers), default=0)
    behind = [one for one in bad if one.step in STEPS[:furthest]]
    if behind and len(behind) < len(answers):
        fix = "gpucheck smoke on its GPU; look for Xid errors in the system log" if kind != "cpu" else "rerun"
        return _named("collective.hang", blame, f"{what} hangs", behind, ready, evidence, fix)
    return Finding(
        "collective.hang",
        blame,
        f"{what} hangs",
        f"every rank entered it, and none finished: {bad[0].why}",
        evidence,
        _NCCL if kind != "cpu" else "rerun on an idle machine, or with a longer --timeout",
    )


def _named(
    finding_id: str,
    verdict: Verdict,
    what: str,
    bad: Sequence[Answer],
    ready: Sequence[Mapping[str, Any]],
    evidence: dict[str, Any],
    fix: str,
) -> Finding:
    alike = judging.by(lambda one: one.why, bad)
    told = [f"{naming.few([_rank(one.rank, ready) for one in mine])}: {why}" for why, mine in alike.items()]
    title = f"{what}: rank {', '.join(str(one.rank) for one in bad[:4])} failed"
    evidence = {**evidence, "blamed": [one.rank for one in bad]}
    return Finding(finding_id, verdict, title, naming.few(told), evidence, fix)


def _rank(rank: int, ready: Sequence[Mapping[str, Any]]) -> str:
    """`rank 3 (cuda:3, node2)`; where it never was ready, only its number."""
    if rank >= len(ready):
        return f"rank {rank}"
    host = f", {ready[rank]['host']}" if len({one["host"] for one in ready}) > 1 else ""
    return f"rank {rank} ({ready[rank]['device']['id']}{host})"


# -- the rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expected:
    """The bus bandwidth in bytes per second that a sound machine with `ranks` GPUs of this part reaches.

    `switch` is with the sum made in the switch (NVLS), None where there is none. `ring` is without. `least` is a bound
    of the source's own. The part's name does not tell the network between several hosts, so their figures are told and
    nothing is judged by them.
    """

    part: str
    ranks: int
    ring: float
    switch: float | None = None
    collectives: tuple[str, ...] = ("all-reduce",)
    source: str = "ml-engineering, network/benchmarks (744d01e)"
    hosts: int = 1
    least: float | None = None


_AZURE = "ml-engineering (744d01e); Azure's sku_performance_baseline (a01b073) expects 450, warns below 400"
_PAIRS = "the bound of cluster-health-scanner (81c525d) for two nodes of "
_GATHERS = ("all-gather", "reduce-scatter")
# By the beginning of the part's name behind its maker's. All of 8 GiB or more; PCIe boards have no public figure that
# can be trusted, and are held against their own copies. NVLink alone: the SXM boards.
EXPECTED = (
    Expected("A100-SXM", 8, 234.9e9),
    Expected("H100 80GB HBM3", 8, 370e9, 480e9, source=_AZURE),
    Expected("H200", 4, 363e9, 363e9),
    Expected("H200", 5, 363e9, 414e9),
    Expected("H200", 6, 363e9, 436e9),
    Expected("H200", 7, 363e9, 460e9),
    Expected("H200", 8, 367.6e9, 482e9),
    Expected("H200", 8, 361e9, collectives=_GATHERS),
    Expected("B200", 8, 682e9, 846e9),
    Expected("AMD Instinct MI300X", 8, 313e9),
    Expected("AMD Instinct MI300X", 2, 47.7e9),
    Expected("GH200", 4, 250e9, least=250e9, source="the bound of CSCS vetnode (5dd9d25)"),
    # A rack of 18 hosts is one NVLink domain; over InfiniBand alone it is 200.
    Expected("GB300", 72, 937e9, hosts=18, least=800e9, source="Azure's sku_performance_baseline (a01b073)"),
    Expected("B200", 32, 382e9, hosts=4, source="ml-engineering (744d01e), 8 × 400 Gb/s of EFA in each node"),
    Expected("H100 80GB HBM3", 16, 60e9, hosts=2, least=60e9, source=f"{_PAIRS}A3 (A3 Mega: 150)"),
    Expected("H200", 16, 250e9, hosts=2, least=250e9, source=f"{_PAIRS}A3 Ultra"),
    Expected("B200", 16, 250e9, hosts=2, least=250e9, source=f"{_PAIRS}A4"),
    Expected("GB200", 8, 160e9, hosts=2, least=160e9, source=f"{_PAIRS}A4X"),
    Expected("GH200", 8, 15e9, hosts=2, least=15e9, source="the bound of CSCS vetnode (5dd9d25)"),
)
# H200 with 8 GPUs: 347 GB/s at 64 MiB, 464 at 1 GiB, 473 at 4 GiB: smaller arrays say nothing of the links.
LEAST_BYTES = 1 << 30
# Azure warns at 400 of 450.
LEAST_OF_EXPECTED = 0.88
# A ring's wire carries what copies from each GPU to the next carry at once. NCCL's own copies take part of it; a way
# through the host where the copies are direct takes half and more.
LEAST_OF_COPIES = 0.5
_SLOW = "rerun with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING; look at `nvidia-smi topo -m` and nvlink -s"


def label(one: Measurement) -> str:
    """A row in words: `all-reduce, 1 GiB`."""
    return f"{one.case['collective']}, {units.capacity(one.case['size_bytes'])}"


def together(seen: Sequence[Seen], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """Judge the rows of all ranks."""
    rows = [row for one in seen for row in one.rows]
    if not rows:
        return []
    largest = largest_collectives(rows)
    is_whole = all(one.parts.get("collective") == "" for one in seen)
    return [_result(rows, is_whole=is_whole), *_speed(largest), *_expected(largest)]


def findings(seen: Seen) -> list[Finding]:
    """Nothing of a device by itself, but that nothing was measured."""
    return [] if seen.rows else [Finding("collective.speed", "skip", "nothing was timed", "no row finished")]


def largest_collectives(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The largest array of each collective."""
    return judging.best(measurements, "collective", "collective", size)


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The largest array of each collective."""
    return [headline("collective", label(one), one) for one in largest_collectives(seen.rows).values()]


def _collectives(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    """All-reduce where it was measured, else every collective; nothing that says little of the links."""
    found = largest_collectives(measurements)
    mine = {name: one for name, one in found.items() if name == "all-reduce"} or found
    return [
        Figure(name, why="it ran through the host, not between GPUs")
        if one.case["backend"] == "gloo"
        else Figure(name, why="the largest array is under 1 GiB")
        if size(one) < LEAST_BYTES
        else judging.figure(name, one)
        for name, one in mine.items()
    ]


THRESHOLDS = {"collective.min_busbw": Threshold("collectives", " of bus bandwidth", _collectives)}
JUDGE = Judge(findings, headlines, together=together, thresholds=THRESHOLDS)


def _result(rows: Sequence[Measurement], *, is_whole: bool) -> Finding:
    """Return whether every rank's data is right, in every run; the ranks that got wrong data, and whom it came from.

    Where the benchmark was cut short only what was measured is verified.
    """
    comparisons = []
    wrong: list[dict[str, Any]] = []
    for row in rows:
        for run in runs.each(row):
            bad = [one for one in run["details"]["ranks"] if one["wrong_elements"]]
            where = f"in {label(row)}"
            comparisons.append(judging.Compared(where, where, run["details"]["verified_elements"], 0))
            wrong += [{"row": label(row), **{key: one[key] for key in _TOLD}} for one in bad]
    if not wrong:
        fix = judging.RERUN
        measured = ", ".join(dict.fromkeys(row.case["collective"] for row in rows))
        title = "all results verified" if is_whole else f"verified: {measured}"
        return judging.verification("collective.result", comparisons, "", fix, sound_title=title)
    several = len({one["host"] for one in wrong}) > 1 or rows[0].case["hosts"] > 1
    by_rank: dict[int, list[dict[str, Any]]] = judging.by(lambda one: one["rank"], wrong)
    told = []
    for rank, mine in by_rank.items():
        host = f", {mine[0]['host']}" if several else ""
        told.append(
            f"rank {rank} ({mine[0]['device']}{host}): {mine[0]['wrong_elements']} elements in {mine[0]['row']}"
        )
    sources = {source for one in wrong for source in one["wrong_from"]}
    if len(sources) == 1 and rows[0].case["ranks"] > 2:
        told.insert(0, f"what has one sender came from rank {sources.pop()}")
    ranks = naming.few([str(rank) for rank in by_rank], ", ")
    fix = "drain the node; `gpucheck bench transfer --only peer` tests each pair, NCCL_P2P_DISABLE=1 avoids their link"
    if rows[0].case["backend"] == "gloo":
        fix = "rerun; if it repeats, the memory or the network changes data: `gpucheck smoke`"
    return Finding("collective.result", "fail", f"wrong data on rank {ranks}", naming.few(told), {"wrong": wrong}, fix)


_TOLD = ("rank", "host", "device", "wrong_elements", "wrong_from")


def _speed(largest: Mapping[str, Measurement]) -> list[Finding]:
    rates = {name: one.rate.median for name, one in largest.items() if one.rate is not None}
    if not rates:
        return [Finding("collective.speed", "skip", "bus bandwidth unknown", "no row has a rate")]
    case = next(iter(largest.values())).case
    where = f" on {case['hosts']} hosts" if case["hosts"] > 1 else ""
    told = ", ".join(f"{name} {units.byte_rate(rate)}" for name, rate in rates.items())
    title = f"bus bandwidth of {case['ranks']} ranks{where}"
    evidence: dict[str, Any] = {"bytes_per_s": rates, "transport": "device"}
    if case["backend"] == "gloo":
        title, evidence["transport"] = f"{title} through the host (gloo)", "host"
    elif case["hosts"] > 1:
        # The share of an accelerator in what passes between nodes, where the algorithm is hierarchical.
        of_wire = (case["hosts"] - 1) / (case["ranks"] - 1)
        evidence["least_between_hosts_bytes_per_s"] = {name: rate * of_wire for name, rate in rates.items()}
    return [Finding("collective.speed", "info", title, told, evidence)]


def _expected(largest: Mapping[str, Measurement]) -> Iterator[Finding]:
    """Each collective against what its part reaches; where no figure is known, against the box's own copies.

    Nothing under 1 GiB or through the host's memory.
    """
    large = {
        name: one
        for name, one in largest.items()
        if one.rate is not None and size(one) >= LEAST_BYTES and one.case["backend"] == "nccl"
    }
    copies = large.pop(PEER_COPY, None)
    for name, one in large.items():
        if (known := expected(one)) is not None:
            yield _of_table(name, one, known)
        elif name == "all-reduce" and copies is not None:  # of one host
            yield _of_copies(one, copies)


def expected(one: Measurement) -> Expected | None:
    """The figure of this row's part, number of ranks and collective; None where there is none."""
    name = (one.device.name or "").removeprefix("NVIDIA ")
    return next(
        (
            known
            for known in EXPECTED
            # "H200 NVL" is a PCIe board with bridges.
            if name.startswith(known.part)
            and not name.startswith(("H200 NVL", "H100 NVL"))
            and (known.ranks, known.hosts) == (one.case["ranks"], one.case["hosts"])
            and one.case["collective"] in known.collectives
        ),
        None,
    )


def _of_table(name: str, one: Measurement, known: Expected) -> Finding:
    rate = judging.rate(one)
    settings = one.method.details["settings"]
    # Who has switched it off gets the ring's rate, and wants it.
    no_switch = settings.get("NCCL_NVLS_ENABLE") == "0" or "NVLS" not in settings.get("NCCL_ALGO", "NVLS").upper()
    best = known.ring if known.switch is None or no_switch else known.switch
    least = known.least or LEAST_OF_EXPECTED * best
    evidence = {
        "bytes_per_s": rate,
        "expected_bytes_per_s": best,
        "ring_bytes_per_s": known.ring,
        "source": known.source,
    }
    told = f"{units.byte_rate(rate)} of {units.byte_rate(best)} that {known.ranks} {known.part} reach"
    if known.hosts > 1:
        told = f"{units.byte_rate(rate)}; {units.byte_rate(least)} and more is usual ({known.source})"
        title = f"{name} between {known.hosts} hosts against a published rate"
        return Finding("collective.expected", "info", title, told, evidence)
    if rate >= least:
        return Finding("collective.expected", "pass", f"{name} is as fast as it should be", told, evidence)
    title, fix = f"{name} is slower than it should be", _SLOW
    if best != known.ring and rate >= LEAST_OF_EXPECTED * known.ring:
        told += f"; {units.byte_rate(known.ring)} is usual without NVLS, the sum in the switch"
        fix = "NCCL_DEBUG=INFO says why NVLS is off; look at Fabric Manager, NCCL's version, virtualisation"
        title = f"{name} does without NVLS"
    return Finding("collective.expected", "warn", title, told, evidence, fix)


def _of_copies(one: Measurement, copies: Measurement) -> Finding:
    share = judging.rate(one) / judging.rate(copies)
    told = " against ".join(units.byte_rate(judging.rate(row)) for row in (one, copies))
    told += " of torch's copies from each GPU to the next"
    evidence = {"bytes_per_s": judging.rate(one), "copies_bytes_per_s": judging.rate(copies), "share": share}
    if share >= LEAST_OF_COPIES:
        return Finding("collective.expected", "pass", "all-reduce uses the links as copies do", told, evidence)
    title = f"all-reduce reaches {units.percent(share)} of copies"
    return Finding("collective.expected", "warn", title, told, evidence, _SLOW)
