"""What a benchmark says in its first three lines at 80×24: verdict, figure, device, cause and the next command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench_scenes import (
    BUSY,
    CPU_ONLY,
    GIB,
    H200,
    ONE,
    PCIE,
    SECOND,
    SIZES,
    XEON,
    at_once,
    beside_compute,
    card,
    copies,
    document,
    host_copies,
    idioms,
    machine,
    memory,
    pairs,
    product,
    products,
    races,
    row,
    shown,
    throttled,
)

from gpucheck import config, errors
from gpucheck.render import html
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Part, Report

KEPT = Path(__file__).with_name("kept")
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
    return (config.limit(rule, text, rule.option or name),)


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


SCENES: dict[str, tuple[Callable[[], Report], tuple[str, ...]]] = {
    "copies that reach the link": (
        lambda: document("bench transfer", [*copies(), *idioms(), *at_once()]),
        (
            "✓ pinned copies reach 87 % of the link: 54.8 GB/s · H200 (cuda:0), PCIe 5 x16",
            "→ pin_memory=True and non_blocking=True copy 4.5× faster to the device",
        ),
    ),
    "a link slower than it should be": (
        lambda: document("bench transfer", copies(link=27.9e9)),
        (
            "! pinned copies reach 44 % of the link: 27.6 GB/s · H200 (cuda:0), PCIe 5 x16",
            "! pinned copies are slow for this link: healthy is at least 65 %",
            "→ gpucheck devices --processes; if idle, bind to its CPU socket (numactl -N)",
        ),
    ),
    "half the lanes": (
        lambda: document("bench transfer", copies(link=27e9, pcie={**PCIE, "width": 8})),
        (
            "✓ pinned copies reach 85 % of the link: 26.7 GB/s · H200 (cuda:0), PCIe 5 x8/16",
            "→ pin_memory=True and non_blocking=True copy 2.2× faster to the device",
        ),
    ),
    "a link that stepped down": (
        lambda: document("bench transfer", copies(link=3.3e9, pcie={**PCIE, "generation": 1})),
        (
            "! pinned copies reach 82 % of the link: 3.27 GB/s · H200 (cuda:0), PCIe 1 x16",
            "! link at PCIe generation 1 of 5 under load: lane errors, or a firmware setting",
            "→ `journalctl -k | grep -i AER`; check firmware slot speed, riser, seat",
        ),
    ),
    "one of two links is slow": (
        lambda: document("bench transfer", [*copies(), *copies(SECOND, 27e9)], TWO),
        (
            "! pinned copies reach 42 % of the link: 26.7 GB/s · H200 (cuda:1), PCIe 5 x16",
            "! cuda:1: pinned copies are slow for this link: healthy is at least 65 %",
            "→ gpucheck devices --processes; if idle, bind to its CPU socket (numactl -N)",
        ),
    ),
    "copies on the host": (
        lambda: document("bench transfer", host_copies(), CPU_ONLY),
        ("✓ copies in host memory reach 13.7 GB/s · Xeon Platinum 8480C (cpu)",),
    ),
    "copies on a busy cpu": (
        lambda: document("bench transfer", host_copies(**BUSY), CPU_ONLY),
        (
            "! copies in host memory reach 13.7 GB/s · Xeon Platinum 8480C (cpu)",
            "! machine busy (1.9 of 2 cores): figures are too low",
            "→ rerun on an idle machine (`top` shows what runs)",
        ),
    ),
    "only small copies": (
        lambda: document("bench transfer", copies(sizes=SIZES[:1], flags=("call-bound",))),
        (
            "✓ a copy of 64 KiB takes 25.4 µs: all of it latency · H200 (cuda:0)",
            "→ pin_memory=True and non_blocking=True copy 2.3× faster to the device",
        ),
    ),
    "a card lost at once": (
        lambda: document("bench transfer", [], parts=begun("transfer"), faults=(ECC,), code=errors.FAILED),
        (
            "✗ cuda:0 failed in bench transfer: its memory had an uncorrectable error (ECC)",
            "✗ AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "→ drain the node, then sudo nvidia-smi --gpu-reset -i INDEX; if errors return,",
        ),
    ),
    "a card lost midway": (
        lambda: document("bench transfer", copies(), ended="fault", faults=(ECC,), code=errors.FAILED),
        (
            "✗ cuda:0 failed in bench transfer: its memory had an uncorrectable error (ECC)",
            "✗ AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "→ drain the node, then sudo nvidia-smi --gpu-reset -i INDEX; if errors return,",
        ),
    ),
    "one of two cards lost": (
        lambda: document(
            "bench transfer", copies(SECOND), TWO, parts=begun("transfer"), faults=(ECC,), code=errors.FAILED
        ),
        (
            "✗ cuda:0 failed in bench transfer: its memory had an uncorrectable error (ECC)",
            "✗ AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "→ drain the node, then sudo nvidia-smi --gpu-reset -i INDEX; if errors return,",
        ),
    ),
    "corrupted copies": (
        corrupted,
        (
            "✗ copies arrived corrupted · H200 (cuda:0)",
            "✗ 12 wrong bytes in pinned copies to the host, 1 GiB, the first at byte 4096",
            "→ take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then",
        ),
    ),
    "slower than a threshold": (
        lambda: document(
            "bench transfer", copies(link=44e9), limits=least("transfer.min_gbps", "50"), code=errors.FAILED
        ),
        (
            "✗ pinned copies reach 69 % of the link: 43.6 GB/s · H200 (cuda:0), PCIe 5 x16",
            "✗ copies below 50.0 GB/s (--min-gbps): to host 43.6 GB/s; to device 44.0 GB/s",
            "→ gpucheck devices --processes shows clocks, heat and other programs on the",
        ),
    ),
    "noise about a threshold": (
        lambda: document(
            "bench transfer",
            copies(link=44e9, flags=("noisy",)),
            limits=least("transfer.min_gbps", "45"),
            code=errors.UNDECIDED,
        ),
        (
            "? pinned copies reach 69 % of the link: 43.6 GB/s (! noisy) · H200 (cuda:0)",
            "? inconclusive: copies vs. 45.0 GB/s (--min-gbps): to host 43.6 GB/s, but noisy;",
            "to device 44.0 GB/s, but noisy",
        ),
    ),
    "one slow pair of four": (
        lambda: document(
            "bench transfer", pairs(FOUR), machine(*map(card, FOUR)), parts=begun("transfer.peer", None, "")
        ),
        (
            "! some pairs of devices are much slower than the others",
            "! below 60 % of the median: cuda:1 to cuda:3 (40.0 GB/s)",
            "→ nvidia-smi topo -m shows the links, gpucheck devices the state of each",
        ),
    ),
    "common idioms alone": (
        lambda: document("bench transfer", idioms()),
        (
            "✓ `x.pin_memory().to(device, non_blocking=True)` takes 12× the raw copy · cuda:0",
            "→ use DataLoader(…, pin_memory=True) and x.to(device, non_blocking=True)",
        ),
    ),
    "sound memory": (
        lambda: document("bench bandwidth", memory()),
        ("✓ memory reaches 88 % of its peak: 4.20 TB/s (copy) · H200 (cuda:0)",),
    ),
    "a card that others use": (
        lambda: document("bench bandwidth", memory(flags=("device-shared",)), USED),
        (
            "! memory reaches 88 % of its peak: 4.20 TB/s (copy) · H200 (cuda:0)",
            "! cuda:0 in use: other processes hold 60 GiB: figures may be too low",
            "→ `gpucheck devices --processes` shows them; rerun once the device is free",
        ),
    ),
    "wrong reads": (
        lambda: document("bench bandwidth", memory(wrong_elements=3), code=errors.FAILED),
        (
            "✗ a result is wrong · H200 (cuda:0)",
            "✗ 3 wrong elements in read, 1 GiB; 3 wrong elements in write, 1 GiB; and 2 more",
            "→ take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then",
        ),
    ),
    "arrays in a cache": (
        lambda: document("bench bandwidth", memory(cache="warm")),
        (
            "! memory reaches 4.20 TB/s (copy; ! in cache) · H200 (cuda:0)",
            "→ rerun with a larger --size",
        ),
    ),
    "noisy memory": (
        lambda: document("bench bandwidth", memory(flags=("noisy", "few-samples"))),
        ("! memory reaches 88 % of its peak: 4.20 TB/s (copy; ! noisy) · H200 (cuda:0)",),
    ),
    "cut off by ctrl-c": (
        lambda: document("bench bandwidth", memory()[:2], ended=None, code=errors.INTERRUPTED),
        (
            "? memory reaches 89 % of its peak: 4.28 TB/s (read) · H200 (cuda:0)",
            "! not complete: the command was cut off",
        ),
    ),
    "cut off before anything": (
        lambda: document(
            "bench bandwidth", [], parts=begun("bandwidth", ended=None), ended=None, code=errors.INTERRUPTED
        ),
        (
            "? nothing was measured",
            "! not complete: the command was cut off",
        ),
    ),
    "sound products": (
        lambda: document("bench matmul", products()),
        (
            "✓ bfloat16 reaches 79 % of its peak: 781 TFLOP/s · H200 (cuda:0)",
            '→ torch.set_float32_matmul_precision("high"): TF32, 7.7× faster',
        ),
    ),
    "a throttled card": (
        lambda: document("bench matmul", products(scale=0.6, **throttled())),
        (
            "! bfloat16 reaches 47 % of its peak: 469 TFLOP/s · H200 (cuda:0)",
            "! GPU throttled: hw thermal slowdown, clock 1200 of 1980 MHz, 89 °C",
            "→ check fans, air flow and room temperature",
        ),
    ),
    "an override of the precision": (
        overridden,
        (
            "✗ a product does not have the requested precision · H200 (cuda:0)",
            "✗ float32 8192x8192x8192 computed in tf32",
            "→ unset NVIDIA_TF32_OVERRIDE",
        ),
    ),
    "a wrong product": (
        lambda: document(
            "bench matmul", [product("bfloat16", 8192, 780e12, worst_error_of_bound=12.0)], code=errors.FAILED
        ),
        (
            "✗ a result is wrong · H200 (cuda:0)",
            "✗ bfloat16 8192x8192x8192: error 12.0 times its bound",
            "→ take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then",
        ),
    ),
    "copies that hide": (
        lambda: document("bench overlap", beside_compute()),
        (
            "✓ 97 % of a pinned copy hides behind compute · H200 (cuda:0)",
            "→ use pin_memory=True and non_blocking=True on a second CUDA stream",
        ),
    ),
    "launches that block": (
        blocked,
        (
            "! 3.0 % of a pinned copy hides behind compute · H200 (cuda:0)",
            "! pinned copies do not hide behind compute: 3.0 % to device, 3.0 % to host",
            "→ unset CUDA_LAUNCH_BLOCKING: it synchronizes every launch",
        ),
    ),
    "overlap in noise": (
        lambda: document("bench overlap", beside_compute(pinned=0.63, flags=("noisy",))),
        (
            "! 63 % of a pinned copy hides behind compute (! noisy) · H200 (cuda:0)",
            "→ rerun on an idle machine, with a longer --time-budget",
        ),
    ),
    "a card that pays": (
        lambda: document("bench crossover", races()),
        ("✓ GPU pays from matmul 512×512, training 32; not elementwise · H200 (cuda:0)",),
    ),
    "a card that never pays": (
        lambda: document("bench crossover", races(never=("matmul", "elementwise", "training"))),
        ("✓ GPU does not pay for matmul, elementwise, training · H200 (cuda:0)",),
    ),
    "wrong results at every size": (
        lambda: document("bench crossover", races(result_is_right=False), code=errors.FAILED),
        (
            "✗ the GPU computed wrong results · H200 (cuda:0)",
            "✗ matmul, 128×128; matmul, 256×256; and 9 more",
            "→ take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then",
        ),
    ),
    "all is sound": (everything, ("✓ 5 benchmarks passed · H200 (cuda:0)",)),
    "all on a busy cpu": (
        everything_on_a_busy_cpu,
        (
            "! 3 benchmarks with warnings, 1 skipped · Xeon Platinum 8480C (cpu)",
            "! machine busy (1.9 of 2 cores): figures are too low",
            "→ rerun on an idle machine (`top` shows what runs)",
        ),
    ),
    "all and a lost card": (
        everything_and_a_lost_card,
        (
            "✗ matmul failed, 2 passed, 2 skipped · H200 (cuda:0)",
            "✗ cuda:0 failed in bench matmul: its memory had an uncorrectable error (ECC):",
            "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ),
    ),
    "all and two are bad": (
        everything_of_which_two_are_bad,
        (
            "✗ matmul failed, 1 with warnings, 1 passed · H200 (cuda:0)",
            "✗ matmul: a result is wrong: bfloat16 8192x8192x8192: error 12.0 times its bound",
            "→ take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then",
        ),
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_first_three_lines_are_the_answer(name: str) -> None:
    made, expected = SCENES[name]
    lines = shown(made(), 80)
    # A blank line ends the answer.
    told = lines[: lines.index("")] if "" in lines else lines
    assert tuple(told[:3]) == expected


# The whole screens, at the widths that a person has.
WHOLE = {
    "transfer": SCENES["copies that reach the link"][0],
    "transfer on a busy cpu": SCENES["copies on a busy cpu"][0],
    "transfer with one of two slow": SCENES["one of two links is slow"][0],
    "transfer between four": SCENES["one slow pair of four"][0],
    "bandwidth cut off": SCENES["cut off by ctrl-c"][0],
    "matmul": SCENES["sound products"][0],
    "matmul throttled": SCENES["a throttled card"][0],
    "overlap blocked": blocked,
    "crossover": SCENES["a card that pays"][0],
    "all": everything,
    "all with a lost card": everything_and_a_lost_card,
    "all on a busy cpu": everything_on_a_busy_cpu,
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_screen_is_kept(name: str, request: pytest.FixtureRequest) -> None:
    report = WHOLE[name]()
    sections = [(f"{width} columns", shown(report, width)) for width in (120, 80, 60, 40)]
    sections += [("a pipe", shown(report, None)), ("a pipe, -v", shown(report, None, verbose=True))]
    text = "".join(f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections)
    path = KEPT / f"{name.replace(' ', '_')}.txt"
    if request.config.getoption("--write-record", False):
        KEPT.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    for verbose in (False, True):
        assert max(map(len, shown(SCENES[name][0](), width, verbose=verbose))) <= width


@pytest.mark.parametrize("name", ["copies that reach the link", "all is sound", "sound products", "a card that pays"])
def test_a_healthy_card_fits_a_screen_of_24_lines(name: str) -> None:
    assert len(shown(SCENES[name][0](), 80)) < 24


def test_an_array_in_a_cache_has_no_share_of_the_memorys_peak() -> None:
    """Its rate is the cache's, which may be above any memory's."""
    cold, warm = memory()[2], memory(rate=9e12, cache="warm")[2]
    small = replace(warm, case={**warm.case, "size_bytes": 1 << 20})
    lines = shown(document("bench bandwidth", [cold, small]), 120)
    by_size = {size: next(line for line in lines if f" {size} " in line) for size in ("1 GiB", "1 MiB")}
    assert "88 %" in by_size["1 GiB"] and "%" not in by_size["1 MiB"]


@pytest.mark.parametrize(
    ("name", "mark"),
    [("noisy memory", "! noisy"), ("arrays in a cache", "! in cache"), ("overlap in noise", "! noisy")],
)
def test_a_doubtful_figure_is_no_plain_pass_on_screen_and_page_though_nothing_failed(name: str, mark: str) -> None:
    make, (first, *_) = SCENES[name]
    report = make()
    assert (report.summary.verdict, report.summary.exit) == ("pass", errors.OK)
    assert first.startswith("! ") and mark in first
    assert "<title>warn: " in html.document(report)
