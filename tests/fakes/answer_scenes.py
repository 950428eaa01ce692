"""Reports of find-batch-size, smoke, doctor, explain and compare, made by hand: what a reader may find on a screen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpucheck.batch_size.answer import accumulate
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device, Driver, Facts, Python, TorchBuild
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results
from gpucheck.report.results.short import Change, ComparedRow, Comparison
from gpucheck.units import GIB, MIB

H200 = {"id": "cuda:0", "name": "NVIDIA H200", "uuid": "GPU-1"}
L4 = {"id": "cuda:1", "name": "NVIDIA L4", "uuid": "GPU-2"}
XEON = {"id": "cpu", "name": "Intel(R) Xeon(R) Processor", "uuid": None}
FACTS = Facts(
    python=Python("3.12.3", "CPython", "python3"),
    torch=TorchBuild("2.11.0+cu130", None, "cuda", "13.0"),
    driver=Driver(version="580.159.04", cuda_version="13.0"),
    devices=(Device(kind="cuda", id="cuda:0", name="NVIDIA H200"),),
)
ON_CPU = Facts(
    python=FACTS.python,
    torch=TorchBuild("2.13.0+cpu", None, "cpu"),
    devices=(Device(kind="cpu", id="cpu", name="Intel(R) Xeon(R) Processor"),),
)


def report(command: str, verdict: Verdict, *findings: Finding, complete: bool = True, **parts: Any) -> Report:
    """A report of `command` with these findings; other parts by name."""
    empty: dict[str, Any] = {"facts": FACTS, "measurements": (), "results": {}, "notices": ()}
    held = {**empty, "findings": findings, **parts}
    summary = Summary(verdict, 0, complete)
    return Report("gpucheck.report/1", "0.1.0", command, (), "", 1.0, summary=summary, **held)


# --- find-batch-size --------------------------------------------------------------------------------------------------


def trial(size: int, outcome: str, peak: float, rate: float | None = 238.0, **more: Any) -> dict[str, Any]:
    """One trial; `peak` in GiB."""
    told = {"batch_size": size, "outcome": outcome, "purpose": "search", "samples_per_s": rate}
    return {**told, "peak_bytes": int(peak * GIB), **more}


def found(size: int | None, *trials: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A search's answer."""
    return {
        "target": "models.py:make_gpt",
        "mode": "train",
        "optimizer": "torch.optim.AdamW",
        "dtype": None,
        "device": H200,
        "budget_bytes": 138 * GIB,
        "budget_reason": "free memory minus the margin",
        "margin_bytes": 4 * GIB,
        "max_batch_size": size,
        "confirmed": True,
        "limiting_factor": "memory",
        "method": {},
        "peak_bytes": int(135.6 * GIB),
        "samples_per_s": 238.4,
        "loss": "cross-entropy against random classes",
        "trials": list(trials),
        **more,
    }


RECOMMENDED = {"batch_size": 104, "headroom": 0.118}
KNEE = {"batch_size": 24, "samples_per_s": 230.0, "noise": 0.01, "reason": None}
SPLIT = {
    "parameter_bytes": GIB // 2,
    "gradient_bytes": GIB // 2,
    "optimizer_bytes": GIB,
    "activation_bytes_per_sample": int(1.16 * GIB),
    "fixed_bytes": 0,
}
TRIALS = (
    trial(16, "fits", 19.3, 212.0),
    trial(104, "fits", 121.7, purpose="recommended"),
    trial(116, "fits", 135.6, purpose="confirm"),
    trial(118, "out-of-memory", 137.9, None, reason="CUDA out of memory"),
)


def search(answer: dict[str, Any], verdict: Verdict, *findings: Finding, **more: Any) -> Report:
    """A search on one device."""
    results = from_json(Results, {"find_batch_size": answer})
    return report("find-batch-size", verdict, *findings, results=results, **more)


def fits(verdict: Verdict, title: str, message: str = "", fix: str | None = None) -> Finding:
    """The finding that every search ends with."""
    return Finding("batch_size.fits", verdict, title, message, fix=fix)


HEALTHY = found(
    116,
    *TRIALS,
    first_failing=118,
    first_failing_outcome="out-of-memory",
    recommended=RECOMMENDED,
    knee=KNEE,
    memory_split=SPLIT,
    accumulation={"effective_batch": 512, "micro_batch": 64, "steps": 8, "smaller": 0, "limit": 104},
)
OPEN = found(
    None,
    trial(9773, "fits", 0.51, 4093.0),
    target="mlp",
    device=XEON,
    at_least=9773,
    predicted_batch_size=39027,
    limited_by="time",
    limiting_factor="time",
    budget_bytes=2 * GIB,
    margin_bytes=0,
    peak_bytes=int(0.51 * GIB),
)
NOTHING = found(None, trial(1, "over-budget", 150.0, None), peak_bytes=None, samples_per_s=None)
CUT = {**OPEN, "limited_by": "interrupted", "limiting_factor": "interrupted", "predicted_batch_size": None}


def several(*answers: dict[str, Any]) -> dict[str, Any]:
    """The answers of several devices."""
    least = min(answers, key=lambda one: one["max_batch_size"] or one.get("at_least") or 0)
    told = {"least": least["device"]["id"], "max_batch_size": least["max_batch_size"], "devices": list(answers)}
    return {"find_batch_size": least, "find_batch_size_devices": told}


SMALL = found(104, *TRIALS[:2], device=L4, budget_bytes=22 * GIB, recommended={**RECOMMENDED, "batch_size": 96})
SEQ: dict[str, Any] = {"axis": {"name": "seq", "batch_size": 8}, "limiting_factor": "max-batch-size"}
TAKES_NONE = {**NOTHING, "device": L4, "budget_bytes": 22 * GIB}
ESTIMATE = {
    "max_batch_size": 765,
    "peak_bytes": int(75.7 * GIB),
    "parameter_bytes": GIB // 2,
    "gradient_bytes": GIB // 2,
    "optimizer_bytes": GIB,
    "memory_bytes": 80 * GIB,
    "margin_bytes": int(2.4 * GIB),
    "context_bytes": 10**9,
    "workspace_bytes": 64 * MIB,
    "source": "context: about 1 GB a process (documentation)",
    "target": "models.py:make_gpt",
    "mode": "train",
    "dtype": None,
    "recipe": {"amp": "bfloat16"},
    "device": "cuda",
}

ON_HOST = {**dict.fromkeys(("margin_bytes", "context_bytes", "workspace_bytes", "gradient_bytes"), 0), "device": "cpu"}
ON_HOST |= {"optimizer_bytes": 0, "mode": "infer", "recipe": {}}


def estimated(verdict: Verdict, *findings: Finding, **more: Any) -> Report:
    """An estimate for a GPU that is not here."""
    results = from_json(Results, {"find_batch_size_estimate": {**ESTIMATE, **more}})
    return report("find-batch-size", verdict, *findings, results=results)


BATCH_SIZE = {
    "search_healthy": search(HEALTHY, "pass", fits("pass", "a batch of 116 fits")),
    "search_time": search(
        OPEN, "inconclusive", fits("inconclusive", "at least a batch of 9773 fits", "time ran out", "--time-budget 5m")
    ),
    "search_nothing": search(
        NOTHING,
        "fail",
        fits(
            "fail",
            "not even a batch of 1 fits",
            "needs 150 GiB, budget 138 GiB",
            "raise --memory-limit, or use a smaller model or input",
        ),
    ),
    "search_cut": search(
        CUT,
        "inconclusive",
        fits("inconclusive", "at least a batch of 9773 fits", "interrupted", "run the same command again"),
        complete=False,
    ),
    "search_once": search(
        {**HEALTHY, "confirmed": False, "recommended": None},
        "warn",
        fits("pass", "a batch of 116 fits"),
        Finding(
            "batch_size.confirmed",
            "warn",
            "a batch of 116 passed once",
            "its run in a fresh process was inconclusive",
            fix="run the same command again",
        ),
    ),
    "search_without_an_answer": search({**NOTHING, "trials": []}, "inconclusive", complete=False),
    "search_of_a_target_that_fails": search(
        {**NOTHING, "trials": []}, "fail", Finding("target", "fail", "make fails with a batch of 1: ValueError")
    ),
    "search_devices": report(
        "find-batch-size",
        "pass",
        Finding("batch_size.all_devices", "pass", "a batch of 104 fits every device", "least on cuda:1"),
        results=from_json(Results, several(HEALTHY, SMALL)),
    ),
    "search_devices_unlike": report(
        "find-batch-size",
        "pass",
        Finding("batch_size.all_devices", "pass", "a batch of 104 fits every device", "least on cuda:1"),
        results=from_json(Results, several(HEALTHY, {**SMALL, "limiting_factor": "time"})),
    ),
    "search_devices_open": report(
        "find-batch-size", "inconclusive", results=from_json(Results, several(HEALTHY, {**OPEN, "device": L4}))
    ),
    "search_devices_along_an_axis": report(
        "find-batch-size", "pass", results=from_json(Results, several(*({**one, **SEQ} for one in (HEALTHY, SMALL))))
    ),
    "search_one_device_bad": report(
        "find-batch-size",
        "fail",
        Finding(
            "batch_size.fits",
            "fail",
            "cuda:1: not even a batch of 1 fits",
            "needs 150 GiB, budget 22 GiB",
            fix="raise --memory-limit, or use a smaller model or input",
        ),
        Finding("batch_size.all_devices", "fail", "cuda:1 fits no batch at all"),
        results=from_json(Results, several(HEALTHY, TAKES_NONE)),
    ),
    "estimate": estimated("info", Finding("batch_size.estimate", "info", "estimate: a batch of 765 fits 80 GiB")),
    "estimate_on_a_cpu": estimated("info", **ON_HOST),
    "estimate_along_an_axis": estimated("info", recipe={"axis": "seq", "batch_size": 4}),
    "estimate_nothing": estimated(
        "fail",
        Finding("batch_size.estimate", "fail", "estimate: not even a batch of 1 fits 80 GiB", "tensors take 92 GiB"),
        max_batch_size=None,
        peak_bytes=None,
    ),
}


def accumulated(effective: int) -> dict[str, Any]:
    steps = accumulate(effective, 104)
    assert steps is not None
    return asdict(steps)


# Answers that differ in little from the first two, each with what it has in place of theirs.
LITTLE = {"parameter_bytes": 18 * MIB, "gradient_bytes": 0, "optimizer_bytes": 0, "fixed_bytes": 3 * MIB}
CAPPED = {"at_least": 8, "limiting_factor": "max-batch-size"}
OF_HEALTHY: dict[str, dict[str, Any]] = {
    "nothing is recommended": {
        "recommended": {**RECOMMENDED, "batch_size": None, "reason": "no time left to run it"},
        "knee": {**KNEE, "batch_size": None, "reason": "fewer than two sizes were timed"},
    },
    "it stayed below the limit": {"limited_by": "safety", "limiting_factor": "safety"},
    "nothing is known beside": dict.fromkeys(("recommended", "knee", "memory_split", "accumulation")),
    "a model of some MiB": {"memory_split": LITTLE},
    "an unknown split": {"memory_split": dict.fromkeys(("parameter_bytes", "gradient_bytes", "optimizer_bytes"))},
    "along an axis": SEQ,
    "an effective batch without a divisor": {"accumulation": accumulated(509)},
    "an effective batch that fits": {"accumulation": accumulated(64)},
    "the next size is predicted to fail": {"predicted_above": 117},
}
OF_OPEN: dict[str, dict[str, Any]] = {
    "a larger size fails": {
        "predicted_batch_size": None,
        "first_failing": 12_000,
        "first_failing_outcome": "over-budget",
    },
    # Three digits, as in the table: 134.7 was told as 130.
    "nearly all of the memory": {
        "predicted_batch_size": None,
        "peak_bytes": 144671571968,
        "budget_bytes": 145603176039,
    },
    "passed once": {"confirmed": False, "predicted_batch_size": None},
    "inference along an axis": {"axis": SEQ["axis"], "mode": "infer", "predicted_batch_size": 9773},
    "capped": CAPPED,
    "capped, passed once": {**CAPPED, "confirmed": False},
    "capped along an axis": {**CAPPED, **SEQ},
    "capped, and recommended": {**CAPPED, "recommended": {**RECOMMENDED, "batch_size": 8, "headroom": 0.9}},
    "capped by default": {**CAPPED, "limiting_factor": "default-cap"},
    **{
        f"ended by {factor}": {"limiting_factor": factor, "predicted_batch_size": None}
        for factor in ("trials", "killed", "interrupted", "disturbed", "device", "no-process")
    },
}

# --- smoke ------------------------------------------------------------------------------------------------------------

PASSED = tuple(
    Finding(f"tensors.n{n}", "pass", "tensors survive", "27 dtypes", {"elapsed_s": 0.002}, device="cuda:0")
    for n in range(16)
)
ON_A_CPU = tuple(Finding(one.id, "pass", one.title, one.message, one.evidence, device="cpu") for one in PASSED)
SKIPPED = tuple(
    Finding(f"streams.n{n}", "skip", "a stream waits for another", f"not on cpu: {why}", device="cpu")
    for n, why in enumerate(("no streams in torch", "no pinned memory in torch"))
)
AUTOCAST = Finding(
    "training.autocast",
    "fail",
    "autocast computes in low precision, weights stay float32",
    "autocast changed the weights to torch.bfloat16",
    device="cuda:0",
)
PINNED = Finding(
    "copies.pinned",
    "fail",
    "pinned copies are correct after a synchronise",
    "3 of 1048576 elements wrong on the device",
    fix="gpucheck bench transfer",
    device="cuda:0",
)
BROKEN = tuple(
    Finding(f"memory.n{n}", "skip", "memory", "device unusable: copies.pinned failed: CUDA error") for n in range(4)
)
UNUSABLE = Finding(
    "device.usable",
    "fail",
    "torch cannot use NVIDIA H200",
    "torch 2.13.0+cpu is a CPU-only build",
    fix="gpucheck doctor, or use the CPU with --device cpu",
)
SMOKE = {
    "smoke_healthy": report("smoke", "pass", *PASSED),
    "smoke_cpu": report("smoke", "pass", *ON_A_CPU, *SKIPPED, facts=ON_CPU),
    "smoke_failing": report("smoke", "fail", *PASSED, PINNED, AUTOCAST),
    "smoke_dead_card": report("smoke", "fail", *PASSED[:3], PINNED, *BROKEN),
    "smoke_cpu_build": report("smoke", "fail", UNUSABLE),
    "smoke_cut": report("smoke", "pass", *PASSED[:2], complete=False),
    "smoke_time": report(
        "smoke",
        "inconclusive",
        *PASSED[:2],
        Finding(
            "data.n0", "inconclusive", "t", "--time-budget ended", fix="use a longer --time-budget", device="cuda:0"
        ),
        *(Finding(f"data.n{n}", "skip", "t", "--time-budget ended", device="cuda:0") for n in (1, 2)),
    ),
    "smoke_no_memory": report(
        "smoke",
        "inconclusive",
        *PASSED[:2],
        Finding(
            "numerics.matmul",
            "inconclusive",
            "t",
            "OutOfMemoryError: CUDA out of memory",
            fix="gpucheck devices --processes shows which processes use memory; then run again",
            device="cuda:0",
        ),
    ),
}

# --- doctor -----------------------------------------------------------------------------------------------------------

RUNGS = ("hardware", "kernel", "nodes", "libraries", "nvml", "cuinit", "devices", "torch", "architecture", "run")


def standing(broken: str | None = None, why: str = "") -> list[dict[str, str]]:
    """The ladder: all rungs hold below the broken one."""
    at = RUNGS.index(broken) if broken else len(RUNGS)
    states = [(rung, "held" if n < at else "broken" if n == at else "unreached") for n, rung in enumerate(RUNGS)]
    return [{"rung": rung, "state": state, "shown_by": why if state == "broken" else ""} for rung, state in states]


def diagnosed(verdict: Verdict, *findings: Finding, first: str | None = None, **more: Any) -> Report:
    """A diagnosis; `first` is the id of the condition that breaks its rung."""
    broken = next((one.evidence["rung"] for one in findings if one.id == first), None)
    told = {"first": first, "broken": broken, "rungs": standing(broken), "consequences": [], "asked": 120}
    doctor = {**told, "torch_works": first is None, "load": None, **more.pop("doctor", {})}
    return report("doctor", verdict, *findings, results=from_json(Results, {"doctor": doctor}), **more)


def condition(name: str, rung: str | None, title: str, message: str, fix: str, **more: Any) -> Finding:
    """A condition that breaks its rung."""
    evidence = {"rung": rung, "certainty": "proof", "settle": None, **more.pop("evidence", {})}
    return Finding(name, more.pop("verdict", "fail"), title, message, evidence, fix)


WORKS = Finding("doctor.healthy", "pass", "torch can use 2 GPUs", "kernel and matrix product correct on cuda:0, cuda:1")
NO_GPU = Finding("doctor.no_gpu", "info", "no NVIDIA GPU here", "PCI bus, /dev and driver show none")
NO_GPU_RUNGS = [
    {"rung": rung, "state": "absent" if rung != "torch" else "held", "shown_by": "no NVIDIA GPU"} for rung in RUNGS
]
XID = condition(
    "log.xid", None, "Xid errors in the kernel log", "Xid 31", "sudo dmesg -T | grep -i xid", verdict="warn"
)
LOST = condition(
    "devices.answers", None, "a GPU does not answer its driver", "cuda:1: GPU is lost", "power-cycle the node"
)
CPU_BUILD = condition(
    "torch.cpu_build",
    "torch",
    "this torch is a CPU-only build and cannot use the GPU",
    "torch 2.13.0+cpu contains no CUDA",
    "python -m pip install --force-reinstall torch",
)
ABSENT = [{"rung": name, "state": "absent", "shown_by": "the driver is in Windows"} for name in ("kernel", "nodes")]


def doubted(certainty: str) -> Finding:
    """A condition that is not proven."""
    evidence = {"certainty": certainty, "settle": "the log tells"}
    return condition("x.y", "run", "a title", "a message", "a fix", evidence=evidence)


def telemetry(clock_hz: float | None, **more: Any) -> dict[str, Any]:
    unread = {"max_sm_clock_hz": None, "temperature_celsius": None, "pcie": {"generation": None, "width": None}}
    return {**unread, "sm_clock_hz": {"median": clock_hz} if clock_hz else None, **more}


UNDER_LOAD: dict[str, Any] = {
    "outcome": "ran",
    "reason": None,
    "left_out": {},
    "load_s": 1.0,
    "cards": [
        {"device": f"cuda:{place}", "telemetry": seen, "reason": None, "held_by": {}}
        for place, seen in enumerate(
            (
                telemetry(
                    1.755e9, max_sm_clock_hz=1.98e9, temperature_celsius=41.0, pcie={"generation": 5, "width": 16}
                ),
                None,
                telemetry(None),
                telemetry(345e6),
            )
        )
    ],
}
DOCTOR = {
    "doctor_healthy": diagnosed("pass", WORKS),
    "doctor_cpu_build": diagnosed(
        "fail",
        CPU_BUILD,
        first="torch.cpu_build",
    ),
    "doctor_mask": diagnosed(
        "fail",
        condition(
            "mask.hides_all",
            "devices",
            "CUDA_VISIBLE_DEVICES hides every GPU",
            "CUDA_VISIBLE_DEVICES='-1'",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        first="mask.hides_all",
    ),
    "doctor_no_driver": diagnosed(
        "fail",
        condition(
            "driver.not_installed",
            "kernel",
            "NVIDIA's driver is not installed",
            "1 NVIDIA GPU on the PCI bus, no kernel module",
            "sudo ubuntu-drivers install --gpgpu (Ubuntu), and reboot",
        ),
        first="driver.not_installed",
    ),
    "doctor_lost_card": diagnosed("fail", WORKS, LOST, XID),
    "doctor_throttled": diagnosed(
        "warn",
        WORKS,
        condition(
            "load.throttled",
            None,
            "the hardware lowers the clock under load",
            "cuda:0: 345 of 1980 MHz, 92 °C",
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
            verdict="warn",
        ),
    ),
    "doctor_no_gpu": diagnosed("info", NO_GPU, doctor={"rungs": NO_GPU_RUNGS}, facts=ON_CPU),
    "doctor_unknown": diagnosed(
        "inconclusive",
        XID,
        Finding(
            "doctor.unknown",
            "inconclusive",
            "no known cause found, and torch was not seen to use the GPU",
            "no known condition matches, or evidence was unreadable",
            fix="gpucheck smoke --device cuda",
        ),
    ),
    "doctor_follows": diagnosed(
        "fail",
        CPU_BUILD,
        Finding("run.x", "info", "a kernel fails", "x", {"certainty": "proof", "because_of": "torch.cpu_build"}),
        Finding("log.unreadable", "skip", "not known", "cannot be read", {"certainty": "proof"}),
        XID,
        LOST,
        first="torch.cpu_build",
        doctor={"rungs": [*ABSENT, *standing("torch")], "load": UNDER_LOAD},
    ),
    "doctor_nearly_certain": diagnosed("fail", doubted("strong"), first="x.y"),
    "doctor_likely": diagnosed("fail", doubted("hint"), first="x.y"),
    "doctor_cut": report("doctor", "skip", complete=False, facts=Facts()),
}

# --- explain ----------------------------------------------------------------------------------------------------------


def explained(*matches: dict[str, Any]) -> Report:
    """What a pasted text means."""
    base = {"meaning": "", "certainty": "proof", "line": 1, "source": "", "symptom": False, "cut": False, "doubt": ""}
    base |= {"says": "", "specific": False, "numbers": {}, "conditions": []}
    told = {"explain": {"characters": 400, "matches": [{**base, **one} for one in matches]}}
    return report("explain", "info", results=from_json(Results, told))


FULL = {
    "id": "oom.cuda",
    "title": "GPU memory is full",
    "says": "GPU 79.15 GiB, your tensors 4.04 GiB, torch's cache 5 GiB, process 1234 60 GiB",
    "then": "use another GPU, or end process 1234 if it is not part of your job",
    "specific": True,
}
FELL = {
    "id": "xid.79",
    "title": "Xid 79: the GPU has fallen off the bus",
    "says": "GPU 0000:3b:00",
    "meaning": "The likely cause is the GPU, its memory, its link or its firmware.",
    "then": "drain the node; power-cycle the machine",
    "conditions": ["gpu.fallen_off"],
}
EXPLAIN = {
    "explain_full": explained(FULL),
    "explain_xid": explained(FELL, {**FULL, "line": 7}),
    "explain_unknown": report(
        "explain",
        "inconclusive",
        Finding(
            "explain.unknown",
            "inconclusive",
            "unknown text",
            "it contains no known error; paste the whole traceback",
            fix="gpucheck doctor on the machine where it happened",
        ),
    ),
}

# --- compare ----------------------------------------------------------------------------------------------------------


def row(change: Change, ratio: float, size: int = MIB, **more: Any) -> ComparedRow:
    """One compared row of copies."""
    told: dict[str, Any] = {
        "name": "transfer",
        "case": {"direction": "host_to_device", "size_bytes": size},
        "old_device": "cuda:0",
        "new_device": "cuda:0",
        "old_runs": 7,
        "new_runs": 7,
        "old_s": 1e-3,
        "new_s": ratio * 1e-3,
        "old_rate": 55e9,
        "new_rate": 55e9 / ratio,
        "rate_unit": "B/s",
        "ci_low": ratio - 0.04,
        "ci_high": ratio + 0.04,
        "ci_level": 0.99,
    }
    return ComparedRow(change=change, ratio=ratio, **{**told, **more})


def compared(verdict: Verdict, rows: tuple[ComparedRow, ...], *findings: Finding) -> Report:
    """Two documents of `bench transfer` side by side."""
    told = Comparison(rows, (), (), (), (), 0.01, 0.05, "bench transfer", "bench transfer")
    return report("compare", verdict, *findings, results={"compare": told})


def label(one: ComparedRow) -> str:
    """A row as a gate's evidence names it."""
    return f"transfer host_to_device, {one.case['size_bytes'] // MIB} MiB"


SAME = tuple(row("same", 1.0, size * MIB) for size in range(2, 14))
SLOWER = (row("slower", 1.32), row("slower", 1.12, 16 * MIB))
FEW = row("cannot tell", 1.1, new_runs=1, ci_low=None, ci_high=None, why="7 and 1 runs, at least 3 per side needed")
CHANGES = Finding("compare.changes", "info", "compared", "12 same")
GATE = Finding(
    "compare.slower",
    "fail",
    "slower by more than 5.0 %",
    "t",
    {"limit": 1.05, "slower": [label(one) for one in SLOWER], "undecided": []},
)
COMPARE = {
    "compare_slower": compared("fail", (*SAME, *SLOWER), CHANGES, GATE),
    "compare_same": compared("info", SAME, CHANGES),
    "compare_few": compared(
        "warn", (FEW, *SAME), Finding("compare.changes", "warn", "compared", "t", fix="measure both with --runs 7")
    ),
    "compare_other_machine": compared(
        "warn",
        SAME,
        CHANGES,
        Finding("compare.machine", "warn", "the machines differ", "cuda:0 is NVIDIA H200 → NVIDIA L4"),
    ),
    "compare_devices": compared(
        "warn", (row("slower", 1.1, flags=("noisy",)), row("slower", 1.1, new_device="cuda:1"), FEW), CHANGES
    ),
    "compare_once": compared("inconclusive", (row("cannot tell", 1.1, old_runs=1, new_runs=1),), CHANGES),
    "compare_nothing": compared(
        "inconclusive",
        (),
        Finding(
            "compare.changes",
            "inconclusive",
            "no row in common",
            "old: gpucheck smoke",
            fix="compare documents of the same command",
        ),
    ),
}

SCENES = {**BATCH_SIZE, **SMOKE, **DOCTOR, **EXPLAIN, **COMPARE}
