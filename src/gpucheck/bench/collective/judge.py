"""Judge collectives: correctness of the data, rate, share of the expected rate, and failures of ranks. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import messages, units
from gpucheck.bench import judging
from gpucheck.bench.collective import PEER_COPY
from gpucheck.bench.judging import Ceilings, DeviceRows, Figure, LimitFigures, Rules, headline, size
from gpucheck.machine import launcher
from gpucheck.machine.child_protocol import Message
from gpucheck.measure import runs
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import few
from gpucheck.report.results.bench import Headline

# -- a rank that failed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """The last `line` of a rank's answer; or `why` the rank failed, at which `step`, and `how` its process ended."""

    rank: int
    line: Message | None = None
    why: str = ""
    step: str = ""
    how: str = ""


# The steps of a rank, in order.
STEPS = ("", "joining", "starting", "calling", "timing")
_DIED = ("unstarted", "crashed", "killed", "failed", "closed")
# A backend's error has one of these texts if the backend does not have the collective.
_UNSUPPORTED = ("not support", "unsupported", "not implemented", "does not have")
_NCCL = "rerun with NCCL_DEBUG=INFO; `gpucheck doctor` shows the IOMMU; does NCCL_P2P_DISABLE=1 help?"


def failed(what: str, answers: Sequence[RankOutcome], ready: Sequence[Mapping[str, Any]], kind: str) -> Finding:
    """Return the finding for a collective (or the start) that some ranks did not finish, with the ranks at fault.

    Ranks whose process ended are blamed first, then stopped ranks, then ranks with an error, then ranks that never
    entered the collective. On a CPU, the verdict is inconclusive, because the hardware is not at fault.
    """
    failures = [answer for answer in answers if answer.line is None]
    on_cpu = kind == "cpu"
    blame: Verdict = "inconclusive" if on_cpu else "fail"
    evidence: dict[str, Any] = {
        "what": what,
        "ranks": [{name: getattr(answer, name) for name in ("rank", "why", "step", "how")} for answer in failures],
    }

    def blaming(finding: str, verdict: Verdict, ranks: Sequence[RankOutcome], fix: str, title: str = what) -> Finding:
        texts = [
            f"{few([_rank(answer.rank, ready) for answer in alike], ', ')}: {why}"
            for why, alike in runs.group_by(lambda answer: answer.why, ranks).items()
        ]
        blamed = [answer.rank for answer in ranks]
        title += f": {_ranks(blamed)} failed"
        return Finding(f"collective.{finding}", verdict, title, few(texts), {**evidence, "blamed": blamed}, fix)

    if dead := [answer for answer in failures if answer.how in _DIED]:
        # A signal from outside, as from the OOM killer, does not prove a hardware fault.
        verdict = blame if any(answer.how == "crashed" for answer in dead) else "inconclusive"
        return blaming("rank", verdict, dead, "look for the out-of-memory killer and Xid errors: sudo dmesg | tail -50")
    if stopped := [answer for answer in failures if answer.how == "stopped"]:
        fix = "rerun without a debugger; look for what sends SIGSTOP, as a scheduler that suspends jobs"
        return blaming("rank", "inconclusive", stopped, fix)
    raised = [answer for answer in failures if not answer.how]
    if raised := [answer for answer in raised if not launcher.LOST_PEER.search(answer.why)] or raised:
        text = raised[0].why
        if all(any(word in answer.why.lower() for word in _UNSUPPORTED) for answer in raised):
            return Finding("collective.unsupported", "skip", f"{what}: the backend does not have it", text, evidence)
        if any("not enough memory" in answer.why for answer in raised):
            return blaming("memory", "skip", raised[:1], "give a smaller --size")
        cause = messages.cause_of(text)
        return blaming("rank", blame, raised, cause.fix if cause else _NCCL)
    furthest = max((STEPS.index(answer.step) if answer.step in STEPS else 0 for answer in answers), default=0)
    behind = [answer for answer in failures if answer.step in STEPS[:furthest]]
    if behind and len(behind) < len(answers):
        fix = "rerun" if on_cpu else "gpucheck smoke on its GPU; look for Xid errors in the system log"
        return blaming("hang", blame, behind, fix, f"{what} hangs")
    message = f"every rank entered it, and none finished: {failures[0].why}"
    fix = "rerun on an idle machine, or with a longer --timeout" if on_cpu else _NCCL
    return Finding("collective.hang", blame, f"{what} hangs", message, evidence, fix)


def _ranks(ranks: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 0, 2` or `ranks 0, 2, and 5 more`."""
    return f"rank{'s' * (len(ranks) != 1)} {few([str(rank) for rank in ranks], ', ')}"


def _rank(rank: int, ready: Sequence[Mapping[str, Any]]) -> str:
    """Return `rank 3 (cuda:3, node2)`, or `rank 3` if the rank was never ready."""
    if rank >= len(ready):
        return f"rank {rank}"
    host = f", {ready[rank]['host']}" if len({line["host"] for line in ready}) > 1 else ""
    return f"rank {rank} ({ready[rank]['device']['id']}{host})"


# -- the rows ----------------------------------------------------------------------------------------------------------


# Bus bandwidth in bytes per second of an 8 GiB all-reduce among eight healthy GPUs of one machine: as a ring, and with
# the sum in the switch (NVLS), or None without NVLS. Keys are prefixes of the names of SXM boards. Source:
# ml-engineering, network/benchmarks. For the H100, Azure's sku_performance_baseline (a01b073) expects 450 GB/s and
# warns below 400.
EXPECTED: dict[str, tuple[float, float | None]] = {
    "A100-SXM": (234.9e9, None),
    "H100 80GB HBM3": (370e9, 480e9),
    "H200": (367.6e9, 482e9),
    "B200": (682e9, 839e9),
    "AMD Instinct MI300X": (313e9, None),
}
EXPECTED_RANKS = 8
# Smaller arrays do not saturate the links. Eight H200 reach 347 GB/s at 64 MiB, 464 at 1 GiB and 473 at 4 GiB.
LEAST_BYTES = 1 << 30
# Azure warns below 400 of 450 GB/s.
LEAST_OF_EXPECTED = 0.88
# The links of a ring carry about as much as simultaneous copies. A path through the host costs NCCL half or more.
LEAST_OF_COPIES = 0.5
_SLOW = "rerun with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING; look at `nvidia-smi topo -m` and nvlink -s"


def label(row: Measurement) -> str:
    return named(row.case["collective"], size(row))


def named(collective: str, size_bytes: int) -> str:
    return f"{collective}, {units.capacity(size_bytes)}"


def together(devices: Sequence[DeviceRows], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """Judge the rows of all ranks."""
    if not (rows := [row for device in devices for row in device.rows]):
        return []
    largest = largest_collectives(rows)
    is_whole = all(device.parts.get("collective") == "" for device in devices)
    return [_result(rows, is_whole=is_whole), *_speed(largest), *_expected(largest)]


def findings(device: DeviceRows) -> list[Finding]:
    """Return a finding if nothing was measured. `together` judges the rows."""
    return [] if device.rows else [Finding("collective.speed", "skip", "nothing was timed", "no row finished")]


def largest_collectives(rows: Sequence[Measurement]) -> dict[str, Measurement]:
    return judging.best(rows, "collective", "collective", size)


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return the rate of each collective's largest array."""
    return [headline("collective", label(row), row) for row in largest_collectives(device.rows).values()]


def _figures(rows: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    """Return the figure of all-reduce; if all-reduce was not measured, the figures of all collectives."""
    largest = largest_collectives(rows)
    figures = []
    for name, row in largest.items():
        if name == "all-reduce" or "all-reduce" not in largest:
            why = "the largest array is under 1 GiB" if size(row) < LEAST_BYTES else ""
            why = "it ran through the host, not between GPUs" if row.case["backend"] == "gloo" else why
            figures.append(Figure(name, why=why) if why else judging.figure(name, row))
    return figures


THRESHOLDS = {"collective.min_busbw": LimitFigures("collectives", " of bus bandwidth", _figures)}
JUDGE = Rules(findings, headlines, together=together, thresholds=THRESHOLDS)


def _result(rows: Sequence[Measurement], *, is_whole: bool) -> Finding:
    """Return whether the data of every rank is right in every run. A title for missing rows lists the collectives."""
    details = [(label(row), run["details"]) for row in rows for run in runs.each_run(row)]
    wrong: list[dict[str, Any]] = [
        {"row": label, **{name: rank[name] for name in ("rank", "host", "device", "wrong_elements")}}
        for label, run in details
        for rank in run["ranks"]
        if rank["wrong_elements"]
    ]
    if not wrong:
        measured = ", ".join(dict.fromkeys(row.case["collective"] for row in rows))
        title = "all results verified" if is_whole else f"verified: {measured}"
        comparisons = [judging.RunComparisons(f"in {label}", run["verified_elements"], 0) for label, run in details]
        return judging.verification("collective.result", comparisons, "", judging.RERUN, sound_title=title)
    case = rows[0].case
    texts = []
    for rank, (first, *_) in runs.group_by(lambda entry: entry["rank"], wrong).items():
        host = f", {first['host']}" if case["hosts"] > 1 else ""
        texts.append(f"rank {rank} ({first['device']}{host}): {first['wrong_elements']} elements in {first['row']}")
    ranks = list(dict.fromkeys(entry["rank"] for entry in wrong))
    fix = "drain the node; `gpucheck bench transfer --only peer` tests each pair, NCCL_P2P_DISABLE=1 avoids their link"
    if case["backend"] == "gloo":
        fix = "rerun; if it repeats, the memory or the network changes data: `gpucheck smoke`"
    return Finding("collective.result", "fail", f"wrong data on {_ranks(ranks)}", few(texts), {"wrong": wrong}, fix)


def _speed(largest: Mapping[str, Measurement]) -> list[Finding]:
    if not (rates := {name: row.rate.median for name, row in largest.items() if row.rate is not None}):
        return [Finding("collective.speed", "skip", "bus bandwidth unknown", "no row has a rate")]
    case = next(iter(largest.values())).case
    text = ", ".join(f"{name} {units.byte_rate(rate)}" for name, rate in rates.items())
    title = f"bus bandwidth of {case['ranks']} ranks" + (f" on {case['hosts']} hosts" if case["hosts"] > 1 else "")
    evidence: dict[str, Any] = {"bytes_per_s": rates, "transport": "device"}
    if case["backend"] == "gloo":
        title, evidence["transport"] = f"{title} through the host (gloo)", "host"
    return [Finding("collective.speed", "info", title, text, evidence)]


def _expected(largest: Mapping[str, Measurement]) -> list[Finding]:
    """Compare all-reduce in one machine with the known rate for its GPUs, else with copies. Needs at least 1 GiB."""
    row, copies = largest.get("all-reduce"), largest.get(PEER_COPY)
    if row is None or row.rate is None or size(row) < LEAST_BYTES:
        return []
    if row.case["backend"] != "nccl" or row.case["hosts"] > 1:
        return []
    if (known := expected(row)) is not None:
        return [_against_known(row, *known)]
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
    name = (row.device.name or "").removeprefix("NVIDIA ")
    # "H200 NVL" and "H100 NVL" are PCIe boards with NVLink bridges.
    if row.case["ranks"] != EXPECTED_RANKS or name.startswith(("H200 NVL", "H100 NVL")):
        return None
    return next((known for part, known in EXPECTED.items() if name.startswith(part)), None)


def _against_known(row: Measurement, ring: float, switch: float | None) -> Finding:
    rate, settings = judging.rate(row), row.method.details["settings"]
    # If the user disabled NVLS, the rate of the ring is expected.
    is_off = settings.get("NCCL_NVLS_ENABLE") == "0" or "NVLS" not in settings.get("NCCL_ALGO", "NVLS").upper()
    best = ring if switch is None or is_off else switch
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
