"""Benchmarks of machines made by hand, judged as the command line judges them: what the screens are tested with."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpucheck import config, errors
from gpucheck.bench import judge
from gpucheck.config import Limit, Settings
from gpucheck.render import terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Part, Report, Summary
from gpucheck.report.results import Results

KIB, MIB, GIB = 2**10, 2**20, 2**30
H200, SECOND = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200"), DeviceRef("cuda:1", "GPU-2", "NVIDIA H200")
XEON = DeviceRef("cpu", None, "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz")
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
PCIE = {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16}
BUSY: dict[str, Any] = {"flags": ("cpu-busy",), "cores_used_by_others": 1.9}


def card(ref: DeviceRef, **more: Any) -> Device:
    return Device(
        kind="cuda",
        id=ref.id,
        name=ref.name,
        uuid=ref.uuid,
        pci_address="0000:17:00.0",
        compute_capability="9.0",
        multiprocessors=132,
        memory_bus_width_bits=6144,
        memory_total_bytes=141 * GIB,
        max_sm_clock_hz=1.98e9,
        max_memory_clock_hz=3.201e9,
        **more,
    )


def machine(*cards: Device, cores: int = 16) -> Facts:
    return Facts(devices=(*cards, Device(kind="cpu", id="cpu", name=XEON.name, cores_allowed=cores)))


ONE = machine(card(H200))
CPU_ONLY = machine(cores=2)


def row(
    name: str, device: DeviceRef, case: dict[str, Any], seconds: float, work: tuple[str, float], unit: str, **more: Any
) -> Measurement:
    """A row of 30 samples that spread by one percent; `call-bound` ones have no rate. What is not named is a detail."""
    flags, telemetry = more.pop("flags", ()), more.pop("telemetry", None)
    method = Method(
        "device events" if more.pop("by_device", device.id != "cpu") else "host",
        "held",
        more.pop("cache", "cold"),
        more.pop("requested", None),
        more.pop("observed", None),
        details={"wrong_bytes": 0, "verified_slices": 4, **more},
    )
    rate = work[1] / seconds
    return Measurement(
        name=name,
        device=device,
        case=case,
        runs=(Run("", 1, (seconds,) * 30, tuple(seconds * place for place in range(30))),),
        time_s=TimeStats(seconds, 30, seconds * 0.995, seconds * 1.005, seconds * 0.999, seconds * 1.001, 0.95),
        work={work[0]: work[1]},
        rate=None if "call-bound" in flags else Rate(rate, unit, rate * 0.995, rate * 1.005),
        memory=MemoryFigures(),
        method=method,
        telemetry=telemetry,
        flags=flags,
    )


def throttled(**more: Any) -> dict[str, Any]:
    seen = {"clock_reasons": ["hw_thermal_slowdown"], "sm_clock_hz": {"median": 1.2e9}, "max_sm_clock_hz": 1.98e9}
    return {"flags": ("throttled",), "telemetry": {**seen, "temperature_celsius": 89.0, "pcie": PCIE, **more}}


# -- rows --------------------------------------------------------------------------------------------------------------


def copies(
    device: DeviceRef = H200,
    link: float = 55.4e9,
    pcie: dict[str, Any] | None = None,
    sizes: Sequence[int] = SIZES,
    **more: Any,
) -> list[Measurement]:
    """Copies of these sizes in both directions."""
    telemetry = {"telemetry": {"clock_reasons": [], "pcie": pcie or PCIE}} | more
    rows = []
    for way, factor in (("host_to_device", 1.0), ("device_to_host", 0.99)):
        for memory, timed, start_s, rate in (
            ("pageable", "as_called", 20e-6, 12.2e9),
            ("pinned", "as_called", 10e-6, link * 0.99),
            ("pinned", "link", 2e-6, link),
        ):
            for size in sizes:
                case = {"direction": way, "host_memory": memory, "size_bytes": size, "timed": timed}
                small = size == 64 * KIB and timed == "as_called"
                given = {**telemetry, "flags": (*telemetry.get("flags", ()), *(("call-bound",) if small else ()))}
                seconds = start_s + size / (rate * factor)
                rows.append(row("transfer", device, case, seconds, ("bytes", float(size)), "B/s", **given))
    return rows


def host_copies(rate: float = 13.7e9, **more: Any) -> list[Measurement]:
    cases: list[dict[str, Any]] = [
        {"direction": "host_to_host", "host_memory": "pageable", "size_bytes": size, "timed": "as_called"}
        for size in SIZES[:4]
    ]
    return [
        row("transfer", XEON, case, case["size_bytes"] / rate, ("bytes", float(case["size_bytes"])), "B/s", **more)
        for case in cases
    ]


# Identifier, line of code, direction and seconds at 64 MiB.
_IDIOMS = (
    ("raw", "y.copy_(x)", "host_to_device", 5.5e-3),
    ("raw", "y.copy_(x_pinned, non_blocking=True)", "host_to_device", 1.22e-3),
    ("to", "x.to(device)", "host_to_device", 5.6e-3),
    ("to_non_blocking", "x_pinned.to(device, non_blocking=True)", "host_to_device", 1.23e-3),
    ("pin_then_to", "x.pin_memory().to(device, non_blocking=True)", "host_to_device", 14.1e-3),
    ("raw", "x.copy_(y)", "device_to_host", 5.6e-3),
    ("cpu", "y.cpu()", "device_to_host", 9.8e-3),
)


def idioms(device: DeviceRef = H200, **more: Any) -> list[Measurement]:
    return [
        row(
            "transfer.idiom",
            device,
            {"idiom": name, "direction": way, "host_memory": "pageable", "size_bytes": 64 * MIB},
            seconds,
            ("bytes", float(64 * MIB)),
            "B/s",
            call=call,
            **more,
        )
        for name, call, way, seconds in _IDIOMS
    ]


def at_once(device: DeviceRef = H200) -> list[Measurement]:
    ways, rows = ("host_to_device", "device_to_host"), []
    for way, other, rate in zip(ways, reversed(ways), (48e9, 46e9), strict=True):
        case = {"direction": way, "host_memory": "pinned", "size_bytes": 128 * MIB, "other": other}
        work = ("bytes", 128.0 * MIB)
        rows.append(row("transfer.both_ways", device, case, 128 * MIB / rate, work, "B/s", alone_s=2.4e-3))
    return rows


def pairs(devices: Sequence[DeviceRef]) -> list[Measurement]:
    """Each to each other directly, of which one way is slow."""
    found = []
    for source in devices:
        for to in devices:
            case = {"source": source.id, "destination": to.id, "size_bytes": 256 * MIB, "what": "rate"}
            rate = 40e9 if (source, to) == (devices[1], devices[3]) else 390e9
            made = row("transfer.peer", source, case, 256 * MIB / rate, ("bytes", 256.0 * MIB), "B/s", path="peer")
            found += [made] if source != to else []
    return found


def memory(device: DeviceRef = H200, rate: float = 4.2e12, **more: Any) -> list[Measurement]:
    found = []
    for operation, moves, factor in (("read", 1, 1.02), ("write", 1, 0.97), ("copy", 2, 1.0), ("triad", 3, 1.01)):
        work = float(moves * GIB)
        case = {"operation": operation, "size_bytes": GIB}
        found.append(row("bandwidth", device, case, work / (rate * factor), ("bytes", work), "B/s", **more))
    return found


def product(
    dtype: str, side: int, rate: float, device: DeviceRef = H200, observed: str = "", **more: Any
) -> Measurement:
    work, case = 2.0 * side**3, {"dtype": dtype, "m": side, "n": side, "k": side, "support": "native"}
    checked = {"worst_error_of_bound": 0.1, "not_finite": 0, "smallest_detectable_error": 1e-3, "operands_spread": 1.0}
    given = {"cache": "warm", **checked, **more, "requested": dtype, "observed": observed or dtype}
    unit = "OP/s" if dtype == "int8" else "FLOP/s"
    return row("matmul", device, case, work / rate, ("flop", work), unit, **given)


def products(device: DeviceRef = H200, scale: float = 1.0, **more: Any) -> list[Measurement]:
    rates = (("float64", 58e12), ("float32", 51e12), ("tf32", 395e12), ("float16", 770e12), ("bfloat16", 781e12))
    return [
        product(dtype, side, rate * scale * (0.9 if side == 4096 else 1.0), device, **more)
        for dtype, rate in rates
        for side in (4096, 8192)
    ]


def two_rates(*flags: str) -> list[Measurement]:
    """Products of which the largest has the rates of a chip at its power limit."""
    rows = [product("bfloat16", 4096, 710e12)]
    for kind, rate, raised in (("sustained", 699e12, (*flags, "power-limited")), ("burst", 799e12, ())):
        measured = product("bfloat16", 8192, rate, flags=raised)
        rows.append(replace(measured, case={**measured.case, "rate": kind}))
    return rows


def beside_compute(device: DeviceRef = H200, pinned: float = 0.97, **more: Any) -> list[Measurement]:
    """Copies, compute and both of as many seconds; the share of a copy that hides comes out as given."""
    found = []
    for way in ("host_to_device", "device_to_host"):
        for what, seconds in (("copy", 2.4e-3), ("compute", 2.5e-3), ("both", 4.9e-3 - pinned * 2.4e-3)):
            case = {"direction": way, "host_memory": "pinned", "streams": 2, "size_bytes": 128 * MIB, "what": what}
            made = row("overlap", device, case, seconds, ("bytes", 128.0 * MIB), "B/s", cache="warm", **more)
            found.append(replace(made, method=replace(made.method, precision_requested="bfloat16")))
    return found


def races(device: DeviceRef = H200, never: Sequence[str] = ("elementwise",), **more: Any) -> list[Measurement]:
    """Sizes that double, each operation on the CPU, on the device, and there with its copies."""
    found = []
    for operation, sizes, per_s in (
        ("matmul", (128, 256, 512, 1024), 1e8),
        ("elementwise", (1 << 16, 1 << 20, 1 << 24), 1e9),
        ("training", (8, 16, 32, 64), 1e4),
    ):
        for size in sizes:
            cpu_s = size / per_s
            place = sizes.index(size)
            times = {("cpu", False): cpu_s, ("device", False): cpu_s / (0.5 * 4**place)}
            times["device", True] = cpu_s * 3 if operation in never else cpu_s / (0.25 * 4**place)
            for (side, transfers), seconds in times.items():
                case = {"operation": operation, "size": size, "side": side, "transfers": transfers}
                details = {"result_is_right": True, "cpu": "EPYC", "threads": 16, "cache": "warm", **more}
                made = row("crossover", device, case, seconds, ("calls", 1.0), "1/s", observed="float32", **details)
                found.append(replace(made, rate=None))
    return found


# -- documents and screens ---------------------------------------------------------------------------------------------


def document(command: str, rows: Sequence[Measurement], facts: Facts = ONE, **more: Any) -> Report:
    """The document of these rows, judged: every benchmark that has rows was begun on its devices and `ended` so."""
    ended, code = more.pop("ended", ""), more.pop("code", errors.OK)
    parts = dict.fromkeys((part, row.device.id) for row in rows for part in _parts(row.name))
    begun = [Part(name, device, True, ended) for name, device in parts]
    limits: tuple[Limit, ...] = more.pop("limits", ())
    faults: tuple[Fault, ...] = more.pop("faults", ())
    skips: tuple[Finding, ...] = more.pop("skips", ())
    made = Report(
        "gpucheck.report/1", "0.1.0", command, (), "", 1.0, facts, tuple(rows), (),
        more.pop("results", Results()), (), Summary("pass", 0, not faults and ended is not None),
        settings=Settings(thresholds=limits), faults=faults, skips=skips,
        parts=(*begun, *more.pop("parts", ())),
    )  # fmt: skip
    return made.concluded(judge.judge(made), code)


def _parts(name: str) -> Iterator[str]:
    benchmark, _, part = name.partition(".")
    yield benchmark
    if benchmark == "transfer":
        yield f"transfer.{ {'': 'copies', 'idiom': 'idioms'}.get(part, part) }"


@contextmanager
def columns(width: int | None) -> Iterator[None]:
    """A terminal's width as the environment tells it; None is a pipe."""
    before = os.environ.pop("COLUMNS", None)
    try:
        if width is not None:
            os.environ["COLUMNS"] = str(width)
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


def shown(report: Report, width: int | None = 80, *, verbose: bool = False) -> list[str]:
    """The lines of the screen; a head's rule is as wide as its table, which the other lines show."""
    stream = io.StringIO()
    with columns(width):
        terminal.show(terminal.console(stream), text.blocks(report, verbose=verbose))
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()


# -- scenes ------------------------------------------------------------------------------------------------------------

TWO = machine(card(H200), card(SECOND))
USED = machine(card(H200, memory_used_bytes=60 * GIB, memory_reserved_bytes=600 * 2**20))
FOUR = [DeviceRef(f"cuda:{place}", f"GPU-{place}", "NVIDIA H200") for place in range(4)]
ECC = Fault(
    "device",
    "bench transfer",
    "cuda:0",
    "AcceleratorError",
    "CUDA error: uncorrectable ECC error encountered",
    cause="cuda.ecc",
    poisons=True,
)
NO_COPIES = Finding("overlap.device", "skip", "a CPU has no copies to hide")


def begun(name: str, device: str | None = "cuda:0", ended: str | None = "fault") -> tuple[Part, ...]:
    return (Part(name, device, True, ended),)


def least(name: str, text: str) -> tuple[config.Limit, ...]:
    rule = config.BY_ID[name]
    return (config.limit(rule, text, rule.option),)


def corrupted() -> Report:
    *sound, last = copies()
    wrong = row("transfer", H200, last.case, 0.02, ("bytes", float(GIB)), "B/s", wrong_bytes=12, first_wrong_byte=4096)
    return document("bench transfer", [*sound, wrong], code=errors.FAILED)


def blocked() -> Report:
    facts = replace(ONE, environment={"CUDA_LAUNCH_BLOCKING": "1"})
    return document("bench overlap", beside_compute(pinned=0.03), facts)


def overridden() -> Report:
    rows = [product("float32", 8192, 300e12, observed="tf32"), product("bfloat16", 8192, 780e12)]
    facts = replace(ONE, environment={"NVIDIA_TF32_OVERRIDE": "1"})
    return document("bench matmul", rows, facts, code=errors.FAILED)


def everything_on_a_busy_cpu() -> Report:
    memory_rows = memory(XEON, 13e9, **BUSY)
    rows = [*host_copies(**BUSY), *memory_rows, product("float32", 2048, 90e9, XEON, **BUSY)]
    return document("bench all", rows, CPU_ONLY, parts=(Part("overlap", "cpu"),), skips=(NO_COPIES,))


def everything_and_a_lost_card() -> Report:
    faults = (replace(ECC, where="bench matmul"),)
    parts = (*begun("matmul"), Part("overlap", "cuda:0"), Part("crossover", "cuda:0"))
    return document("bench all", [*copies(), *memory()], parts=parts, faults=faults, code=errors.FAILED)


def everything_of_which_two_are_bad() -> Report:
    rows = [*copies(link=27e9), *memory(), product("bfloat16", 8192, 780e12, worst_error_of_bound=12.0)]
    return document("bench all", rows, code=errors.FAILED)


def everything() -> Report:
    return document("bench all", [*copies(), *memory(), *products(), *beside_compute(), *races()])


def several_pairs() -> Report:
    """Three devices of which two reach each other through the host alone; one pair has no rate."""
    third = DeviceRef("cuda:2", "GPU-2", "NVIDIA H200")
    found = []
    for source, to, rate, path, flags in (
        (H200, SECOND, 390.4e9, "peer", ()),
        (SECOND, H200, 391e9, "peer", ("noisy",)),
        (H200, third, 20.12e9, "staged", ()),
        (third, H200, 20e9, "staged", ("call-bound",)),
    ):
        case = {"source": source.id, "destination": to.id, "size_bytes": 256 * MIB, "what": "rate"}
        work = ("bytes", 256.0 * MIB)
        found.append(row("transfer.peer", source, case, work[1] / rate, work, "B/s", flags=flags, path=path))
    facts = machine(card(H200), card(SECOND), card(third))
    return document("bench transfer", found, facts, parts=begun("transfer.peer", None, ""))


def searched() -> Report:
    """A search of shapes that was cut off after its final."""

    def figures(m: int, rate: float, **more: Any) -> dict[str, Any]:
        return {"m": m, "n": 8, "k": 8, "flop_per_s": rate, "ci_low": None, "ci_high": None, "rounds": 3, **more}

    entry = {
        "device": "cuda:0",
        "dtype": "bfloat16",
        "unit": "FLOP/s",
        "best": figures(16, 801e12),
        "finalists": [figures(16, 801e12, ci_low=799e12, ci_high=803e12, rounds=12), figures(24, 790e12)],
        "range": {"m": "8:64:8", "n": "8:8:1", "k": "8:8:1"},
        "shapes_in_range": 8,
        "shapes_tried": 7,
        "tries": 9,
        "time_s": 2.5,
        "complete": False,
    }
    results = from_json(Results, {"bench_matmul_search": [entry]})
    return document("bench matmul", [product("bfloat16", 8192, 780e12)], results=results)


SCENES: dict[str, Callable[[], Report]] = {
    "copies that reach the link": lambda: document("bench transfer", [*copies(), *idioms(), *at_once()]),
    "a link slower than it should be": lambda: document("bench transfer", copies(link=27.9e9)),
    "half the lanes": lambda: document("bench transfer", copies(link=27e9, pcie={**PCIE, "width": 8})),
    "a link that stepped down": lambda: document("bench transfer", copies(link=3.3e9, pcie={**PCIE, "generation": 1})),
    "one of two links is slow": lambda: document("bench transfer", [*copies(), *copies(SECOND, 27e9)], TWO),
    "copies on the host": lambda: document("bench transfer", host_copies(), CPU_ONLY),
    "copies on a busy cpu": lambda: document("bench transfer", host_copies(**BUSY), CPU_ONLY),
    "only small copies": lambda: document("bench transfer", copies(sizes=SIZES[:1], flags=("call-bound",))),
    "a card lost at once": lambda: document(
        "bench transfer", [], parts=begun("transfer"), faults=(ECC,), code=errors.FAILED
    ),
    "a card lost midway": lambda: document(
        "bench transfer", copies(), ended="fault", faults=(ECC,), code=errors.FAILED
    ),
    "one of two cards lost": lambda: document(
        "bench transfer", copies(SECOND), TWO, parts=begun("transfer"), faults=(ECC,), code=errors.FAILED
    ),
    "corrupted copies": corrupted,
    "slower than a threshold": lambda: document(
        "bench transfer", copies(link=44e9), limits=least("transfer.min_gbps", "50"), code=errors.FAILED
    ),
    "noise about a threshold": lambda: document(
        "bench transfer",
        copies(link=44e9, flags=("noisy",)),
        limits=least("transfer.min_gbps", "45"),
        code=errors.UNDECIDED,
    ),
    "one slow pair of four": lambda: document(
        "bench transfer", pairs(FOUR), machine(*map(card, FOUR)), parts=begun("transfer.peer", None, "")
    ),
    "pairs of three devices": several_pairs,
    "common idioms alone": lambda: document("bench transfer", idioms()),
    "sound memory": lambda: document("bench bandwidth", memory()),
    "a card that others use": lambda: document("bench bandwidth", memory(flags=("device-shared",)), USED),
    "wrong reads": lambda: document("bench bandwidth", memory(wrong_elements=3), code=errors.FAILED),
    "arrays in a cache": lambda: document("bench bandwidth", memory(cache="warm")),
    "noisy memory": lambda: document("bench bandwidth", memory(flags=("noisy", "few-samples"))),
    "cut off by ctrl-c": lambda: document("bench bandwidth", memory()[:2], ended=None, code=errors.INTERRUPTED),
    "cut off before anything": lambda: document(
        "bench bandwidth", [], parts=begun("bandwidth", ended=None), ended=None, code=errors.INTERRUPTED
    ),
    "sound products": lambda: document("bench matmul", products()),
    "two rates at the power limit": lambda: document("bench matmul", two_rates()),
    "a rate that does not settle": lambda: document("bench matmul", two_rates("not-settled")),
    "a throttled card": lambda: document("bench matmul", products(scale=0.6, **throttled())),
    "an override of the precision": overridden,
    "a wrong product": lambda: document(
        "bench matmul", [product("bfloat16", 8192, 780e12, worst_error_of_bound=12.0)], code=errors.FAILED
    ),
    "a search of shapes": searched,
    "copies that hide": lambda: document("bench overlap", beside_compute()),
    "launches that block": blocked,
    "overlap in noise": lambda: document("bench overlap", beside_compute(pinned=0.63, flags=("noisy",))),
    "a card that pays": lambda: document("bench crossover", races()),
    "a card that never pays": lambda: document("bench crossover", races(never=("matmul", "elementwise", "training"))),
    "wrong results at every size": lambda: document(
        "bench crossover", races(result_is_right=False), code=errors.FAILED
    ),
    "all is sound": everything,
    "all on a busy cpu": everything_on_a_busy_cpu,
    "all and a lost card": everything_and_a_lost_card,
    "all and two are bad": everything_of_which_two_are_bad,
}
