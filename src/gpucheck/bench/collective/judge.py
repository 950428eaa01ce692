"""Judge collectives: whether the data is right, the rate and its share of the expected one, failed ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import messages, naming, units
from gpucheck.bench import figures, judging
from gpucheck.bench.collective import PEER_COPY
from gpucheck.bench.figures import Ceilings, DeviceRows, Figure, Judge, Threshold, headline
from gpucheck.bench.judging import size
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

    `how` its process ended, as in `child_protocol`; empty where it still runs or its parent did not say.
    """

    rank: int
    line: Line | None = None
    why: str = ""
    step: str = ""
    how: str = ""


# The steps of a rank, in the order in which it reaches them.
STEPS = ("", "joining", "starting", "calling", "timing")
_DIED = ("unstarted", "crashed", "killed", "failed", "closed")
# A backend's answers to a call that it does not have.
_UNSUPPORTED = ("not support", "unsupported", "not implemented", "does not have")
_NCCL = "rerun with NCCL_DEBUG=INFO; `gpucheck doctor` shows the IOMMU; does NCCL_P2P_DISABLE=1 help?"


def failed(what: str, answers: Sequence[Answer], ready: Sequence[Mapping[str, Any]], kind: str) -> Finding:
    """Return the finding for a collective (or the start) that not all ranks finished: it names the ranks at fault.

    Those whose process ended come first, then stopped ones, then those with an error, then those that never entered.
    Where all entered and none finished, none is named. On a CPU the hardware is not at fault.
    """
    bad = [answer for answer in answers if answer.line is None]
    on_cpu = kind == "cpu"
    blame: Verdict = "inconclusive" if on_cpu else "fail"
    evidence: dict[str, Any] = {
        "what": what,
        "ranks": [{name: getattr(answer, name) for name in ("rank", "why", "step", "how")} for answer in bad],
    }

    def named(finding: str, verdict: Verdict, ranks: Sequence[Answer], fix: str, title: str = what) -> Finding:
        alike = runs.by(lambda answer: answer.why, ranks)
        texts = [f"{naming.few([_rank(answer.rank, ready) for answer in mine])}: {why}" for why, mine in alike.items()]
        title += f": rank {', '.join(str(answer.rank) for answer in ranks[:4])} failed"
        blamed = {"blamed": [answer.rank for answer in ranks]}
        return Finding(f"collective.{finding}", verdict, title, naming.few(texts), {**evidence, **blamed}, fix)

    if died := [answer for answer in bad if answer.how in _DIED]:
        # A signal from outside, as of the out-of-memory killer, is no fault of the hardware.
        has_crashed = any(answer.how == "crashed" for answer in died)
        fix = "look for the out-of-memory killer and Xid errors: sudo dmesg | tail -50"
        return named("rank", blame if has_crashed else "inconclusive", died, fix)
    if stopped := [answer for answer in bad if answer.how == "stopped"]:
        fix = "rerun without a debugger; look for what sends SIGSTOP, as a scheduler that suspends jobs"
        return named("rank", "inconclusive", stopped, fix)
    spoke = [answer for answer in bad if not answer.how]
    if spoke := [answer for answer in spoke if not launcher.LOST_PEER.search(answer.why)] or spoke:
        text = spoke[0].why
        if all(any(word in answer.why.lower() for word in _UNSUPPORTED) for answer in spoke):
            return Finding("collective.unsupported", "skip", f"{what}: the backend does not have it", text, evidence)
        if any("not enough memory" in answer.why for answer in spoke):
            return named("memory", "skip", spoke[:1], "give a smaller --size")
        cause = messages.cause_of(text)
        return named("rank", blame, spoke, cause.fix if cause else _NCCL)
    furthest = max((STEPS.index(answer.step) if answer.step in STEPS else 0 for answer in answers), default=0)
    behind = [answer for answer in bad if answer.step in STEPS[:furthest]]
    if behind and len(behind) < len(answers):
        fix = "rerun" if on_cpu else "gpucheck smoke on its GPU; look for Xid errors in the system log"
        return named("hang", blame, behind, fix, f"{what} hangs")
    message = f"every rank entered it, and none finished: {bad[0].why}"
    fix = "rerun on an idle machine, or with a longer --timeout" if on_cpu else _NCCL
    return Finding("collective.hang", blame, f"{what} hangs", message, evidence, fix)


def _rank(rank: int, ready: Sequence[Mapping[str, Any]]) -> str:
    """`rank 3 (cuda:3, node2)`; only the number of a rank that never was ready."""
    if rank >= len(ready):
        return f"rank {rank}"
    host = f", {ready[rank]['host']}" if len({line["host"] for line in ready}) > 1 else ""
    return f"rank {rank} ({ready[rank]['device']['id']}{host})"


# -- the rows ----------------------------------------------------------------------------------------------------------


# Bus bandwidth in bytes per second of all-reduce of 8 GiB among eight sound GPUs of a machine: as a ring, and with the
# sum made in the switch (NVLS), None where there is none. By the beginning of the part's name, SXM boards alone.
# Source: ml-engineering, network/benchmarks; of the H100 also Azure's sku_performance_baseline (a01b073), which expects
# 450 and warns below 400.
EXPECTED: dict[str, tuple[float, float | None]] = {
    "A100-SXM": (234.9e9, None),
    "H100 80GB HBM3": (370e9, 480e9),
    "H200": (367.6e9, 482e9),
    "B200": (682e9, 839e9),
    "AMD Instinct MI300X": (313e9, None),
}
EXPECTED_RANKS = 8
# H200 with 8 GPUs: 347 GB/s at 64 MiB, 464 at 1 GiB, 473 at 4 GiB: smaller arrays say nothing of the links.
LEAST_BYTES = 1 << 30
# Azure warns at 400 of 450.
LEAST_OF_EXPECTED = 0.88
# A ring's links carry as much as simultaneous copies from each GPU to the next. NCCL's own copies take part of it, and
# a way through the host, where the copies are direct, half and more.
LEAST_OF_COPIES = 0.5
_SLOW = "rerun with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING; look at `nvidia-smi topo -m` and nvlink -s"


def label(row: Measurement) -> str:
    """A row in words."""
    return named(row.case["collective"], size(row))


def named(collective: str, size_bytes: int) -> str:
    """`all-reduce, 1 GiB`."""
    return f"{collective}, {units.capacity(size_bytes)}"


def together(devices: Sequence[DeviceRows], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """Judge the rows of all ranks."""
    rows = [row for device in devices for row in device.rows]
    if not rows:
        return []
    largest = largest_collectives(rows)
    is_whole = all(device.parts.get("collective") == "" for device in devices)
    return [_result(rows, is_whole=is_whole), *_speed(largest), *_expected(largest)]


def findings(device: DeviceRows) -> list[Finding]:
    """Nothing of one device, but that nothing was measured."""
    return [] if device.rows else [Finding("collective.speed", "skip", "nothing was timed", "no row finished")]


def largest_collectives(rows: Sequence[Measurement]) -> dict[str, Measurement]:
    """The largest array of each collective."""
    return judging.best(rows, "collective", "collective", size)


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """The largest array of each collective."""
    return [headline("collective", label(row), row) for row in largest_collectives(device.rows).values()]


def _figures(rows: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    """The figures of all-reduce where it was measured, else of every collective."""
    largest = largest_collectives(rows)
    return [
        Figure(name, why="it ran through the host, not between GPUs")
        if row.case["backend"] == "gloo"
        else Figure(name, why="the largest array is under 1 GiB")
        if size(row) < LEAST_BYTES
        else figures.figure(name, row)
        for name, row in largest.items()
        if name == "all-reduce" or "all-reduce" not in largest
    ]


THRESHOLDS = {"collective.min_busbw": Threshold("collectives", " of bus bandwidth", _figures)}
JUDGE = Judge(findings, headlines, together=together, thresholds=THRESHOLDS)


def _result(rows: Sequence[Measurement], *, is_whole: bool) -> Finding:
    """Return whether every rank's data is right, in every run; of a benchmark that was cut short, in its rows."""
    comparisons = []
    wrong: list[dict[str, Any]] = []
    for row in rows:
        for run in runs.each(row):
            comparisons.append(judging.Compared(label(row), f"in {label(row)}", run["details"]["verified_elements"], 0))
            bad = [rank for rank in run["details"]["ranks"] if rank["wrong_elements"]]
            named = ("rank", "host", "device", "wrong_elements")
            wrong += [{"row": label(row), **{name: rank[name] for name in named}} for rank in bad]
    if not wrong:
        measured = ", ".join(dict.fromkeys(row.case["collective"] for row in rows))
        title = "all results verified" if is_whole else f"verified: {measured}"
        return judging.verification("collective.result", comparisons, "", judging.RERUN, sound_title=title)
    case = rows[0].case
    by_rank: dict[int, dict[str, Any]] = {}
    for entry in wrong:
        by_rank.setdefault(entry["rank"], entry)
    texts = []
    for rank, first in by_rank.items():
        host = f", {first['host']}" if case["hosts"] > 1 else ""
        texts.append(f"rank {rank} ({first['device']}{host}): {first['wrong_elements']} elements in {first['row']}")
    ranks = naming.few([str(rank) for rank in by_rank], ", ")
    fix = "drain the node; `gpucheck bench transfer --only peer` tests each pair, NCCL_P2P_DISABLE=1 avoids their link"
    if case["backend"] == "gloo":
        fix = "rerun; if it repeats, the memory or the network changes data: `gpucheck smoke`"
    return Finding("collective.result", "fail", f"wrong data on rank {ranks}", naming.few(texts), {"wrong": wrong}, fix)


def _speed(largest: Mapping[str, Measurement]) -> list[Finding]:
    rates = {name: row.rate.median for name, row in largest.items() if row.rate is not None}
    if not rates:
        return [Finding("collective.speed", "skip", "bus bandwidth unknown", "no row has a rate")]
    case = next(iter(largest.values())).case
    text = ", ".join(f"{name} {units.byte_rate(rate)}" for name, rate in rates.items())
    title = f"bus bandwidth of {case['ranks']} ranks" + (f" on {case['hosts']} hosts" if case["hosts"] > 1 else "")
    evidence: dict[str, Any] = {"bytes_per_s": rates, "transport": "device"}
    if case["backend"] == "gloo":
        title, evidence["transport"] = f"{title} through the host (gloo)", "host"
    return [Finding("collective.speed", "info", title, text, evidence)]


def _expected(largest: Mapping[str, Measurement]) -> list[Finding]:
    """Judge all-reduce from 1 GiB on in one machine by the known figure of its part, else by the machine's copies."""
    row, copies = largest.get("all-reduce"), largest.get(PEER_COPY)
    if row is None or row.rate is None or size(row) < LEAST_BYTES:
        return []
    if row.case["backend"] != "nccl" or row.case["hosts"] > 1:
        return []
    if (known := expected(row)) is not None:
        return [_of_table(row, *known)]
    if copies is None or copies.rate is None or size(copies) < LEAST_BYTES:
        return []
    rate, of_copies = judging.rate(row), judging.rate(copies)
    share = rate / of_copies
    text = f"{units.byte_rate(rate)} against {units.byte_rate(of_copies)} of torch's copies from each GPU to the next"
    evidence = {"bytes_per_s": rate, "copies_bytes_per_s": of_copies, "share": share}
    if share >= LEAST_OF_COPIES:
        return [Finding("collective.expected", "pass", "all-reduce uses the links as copies do", text, evidence)]
    title = f"all-reduce reaches {units.percent(share)} of copies"
    return [Finding("collective.expected", "warn", title, text, evidence, _SLOW)]


def expected(row: Measurement) -> tuple[float, float | None] | None:
    """The figures of this row's part and number of ranks; None where there are none."""
    name = (row.device.name or "").removeprefix("NVIDIA ")
    # "H200 NVL" is a PCIe board with bridges.
    if row.case["ranks"] != EXPECTED_RANKS or name.startswith(("H200 NVL", "H100 NVL")):
        return None
    return next((known for part, known in EXPECTED.items() if name.startswith(part)), None)


def _of_table(row: Measurement, ring: float, switch: float | None) -> Finding:
    rate, settings = judging.rate(row), row.method.details["settings"]
    # With NVLS switched off on purpose, the ring's rate counts.
    no_switch = settings.get("NCCL_NVLS_ENABLE") == "0" or "NVLS" not in settings.get("NCCL_ALGO", "NVLS").upper()
    best = ring if switch is None or no_switch else switch
    evidence = {"bytes_per_s": rate, "expected_bytes_per_s": best, "ring_bytes_per_s": ring}
    text = f"{units.byte_rate(rate)} of {units.byte_rate(best)} that {EXPECTED_RANKS} {row.device.name} reach"
    if rate >= LEAST_OF_EXPECTED * best:
        return Finding("collective.expected", "pass", "all-reduce is as fast as it should be", text, evidence)
    title, fix = "all-reduce is slower than it should be", _SLOW
    if best != ring and rate >= LEAST_OF_EXPECTED * ring:
        title = "all-reduce does without NVLS"
        text += f"; {units.byte_rate(ring)} is usual without NVLS, the sum in the switch"
        fix = "NCCL_DEBUG=INFO says why NVLS is off; look at Fabric Manager, NCCL's version, virtualisation"
    return Finding("collective.expected", "warn", title, text, evidence, fix)
