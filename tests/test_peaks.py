from __future__ import annotations

import pytest

from gpucheck import peaks
from gpucheck.peaks import GpuPeaks, Unknown

PARTS = peaks.parts()
GHZ, TERA = 1e9, 1e12


def found(*given: object, **clocks: float) -> GpuPeaks:
    part = peaks.lookup(*given, **clocks)  # type: ignore[arg-type]
    assert isinstance(part, GpuPeaks), part
    return part


def unknown(*given: object, **clocks: float) -> str:
    part = peaks.lookup(*given, **clocks)  # type: ignore[arg-type]
    assert isinstance(part, Unknown), part
    return part.reason


# the table


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_row_agrees_with_its_own_arithmetic(part: GpuPeaks) -> None:
    assert part.source and part.date and part.kind == "data sheet"
    assert part.peak("float32") or part.name in ("NVIDIA B200", "NVIDIA H20", "NVIDIA GB300")
    assert len({(peak.dtype, peak.accumulator) for peak in part.peaks}) == len(part.peaks)
    for peak in part.peaks:
        if peak.per_clock_per_sm is None or peak.clock_hz is None:
            assert part.name in ROUND_FIGURES or (part.name, peak.dtype) in WITHOUT_ARITHMETIC
            assert peak.per_clock_per_sm is peak.clock_hz is None
            continue
        computed = part.multiprocessors * peak.per_clock_per_sm * peak.clock_hz
        # Data sheets round: L4's TF32 "60" is 60.6.
        assert peak.flop_per_s == pytest.approx(computed, rel=0.011), peak
    if part.memory_clock_hz is None:
        assert part.name in WITHOUT_MEMORY_CLOCK
        return
    computed_memory = [width / 8 * part.memory_clock_hz * 2 for width in part.bus_widths]
    assert any(part.memory_bytes_per_s == pytest.approx(one, rel=0.03) for one in computed_memory)


# float64 that was cut to a round figure: no rate and clock of its SMs come to it.
WITHOUT_ARITHMETIC = {("NVIDIA H20", "float64"), ("NVIDIA H800", "float64"), ("NVIDIA B300 SXM6 AC", "float64")}


# A rack's figures, and those of a talk.
ROUND_FIGURES = {"NVIDIA GB300", "NVIDIA GB10"}
# No source gives it.
WITHOUT_MEMORY_CLOCK = {
    "NVIDIA B300 SXM6 AC",
    "NVIDIA GB300",
    "NVIDIA GB10",
    "AMD Instinct MI325X",
    "AMD Instinct MI355X",
}


# The arithmetic that is known from outside the table: SMs, dense operations per clock and SM, and the clock in GHz.
@pytest.mark.parametrize(
    ("name", "dtype", "multiprocessors", "per_clock", "ghz"),
    [
        ("Tesla V100-SXM2-32GB", "float16", 80, 512 * 2, 1.53),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 108, 1024 * 2, 1.41),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 128, 256 * 2, 2.52),
        ("NVIDIA L4", "bfloat16", 58, 512 * 2, 2.04),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 132, 2048 * 2, 1.83),
        ("NVIDIA H200", "bfloat16", 132, 2048 * 2, 1.83),
        ("NVIDIA H200", "float32", 132, 128 * 2, 1.98),
        ("AMD Instinct MI300X", "bfloat16", 304, 1024 * 2, 2.1),
        ("NVIDIA H100 80GB HBM3", "float64", 132, 128 * 2, 1.98),
        ("NVIDIA H200", "float8_e4m3fn_fast", 132, 4096 * 2, 1.83),
        ("NVIDIA H200", "int8", 132, 4096 * 2, 1.83),
        ("NVIDIA A100-SXM4-80GB", "int8", 108, 2048 * 2, 1.41),
        ("NVIDIA GeForce RTX 4090", "int8", 128, 1024 * 2, 2.52),
        ("AMD Instinct MI300X", "float8_e4m3fnuz", 304, 2048 * 2, 2.1),
        ("NVIDIA L40", "bfloat16", 142, 256 * 2, 2.49),
        ("NVIDIA H20", "bfloat16", 78, 512 * 2, 1.853),
        ("NVIDIA GeForce RTX 5090", "bfloat16", 170, 256 * 2, 2.407),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "bfloat16", 188, 512 * 2, 2.617),
        ("NVIDIA B300 SXM6 AC", "bfloat16", 148, 4096 * 2, 1.856),
        ("Orin", "int8", 16, 2048 * 2, 1.3),
        ("NVIDIA RTX 6000 Ada Generation", "float8_e4m3fn_fast", 142, 1024 * 2, 2.505),
        ("NVIDIA GH200 480GB", "bfloat16", 132, 2048 * 2, 1.83),
        ("NVIDIA H100 NVL", "bfloat16", 132, 2048 * 2, 1.545),
        ("AMD Instinct MI355X", "bfloat16", 256, 2048 * 2, 2.4),
    ],
)
def test_the_peaks_that_are_known_from_elsewhere(
    name: str, dtype: str, multiprocessors: int, per_clock: int, ghz: float
) -> None:
    peak = next(part for part in PARTS if part.name == name).peak(dtype)
    assert peak is not None
    assert (peak.per_clock_per_sm, peak.clock_hz) == (per_clock, ghz * GHZ)
    assert peak.flop_per_s == pytest.approx(multiprocessors * per_clock * ghz * GHZ, rel=0.01)


# looking up


def test_a_part_is_found_by_everything_that_is_known_of_it() -> None:
    part = found("NVIDIA H200", (9, 0), 132, 6016)
    assert part.kind == "data sheet"
    assert part.label == "NVIDIA H200 Tensor Core GPU data sheet, collected 2026-11"
    assert part.memory_bytes_per_s == 4.8e12
    bfloat16 = part.peak("bfloat16")
    assert bfloat16 is not None and (bfloat16.flop_per_s, bfloat16.clock_hz) == (989.4 * TERA, 1.83 * GHZ)
    assert found("NVIDIA H200", (9, 0), 132) == part


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA L4", "NVIDIA GeForce RTX 4090"])
def test_float8_has_a_peak_with_fast_accumulation_alone_where_cublas_has_two_modes(name: str) -> None:
    part = next(part for part in PARTS if part.name == name)
    assert part.peak("float8_e4m3fn_fast") is not None
    assert part.peak("float8_e4m3fn") is None
    guess = found(f"{name} X", part.capability, part.multiprocessors, clock_hz=1e9)
    assert guess.peak("float8_e4m3fn_fast") is not None and guess.peak("float8_e4m3fn") is None


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "bus"),
    [
        ("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, 6144),
        ("NVIDIA H200", (9, 0), 60, 6144),
        ("NVIDIA H200", (9, 0), 132, 3072),
        ("NVIDIA GH200 144G HBM3e", (9, 0), 132, 6144),
        ("NVIDIA L40", (8, 9), 140, 384),
        ("NVIDIA GeForce RTX 4090 D", (8, 9), 114, 384),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, 256),
        ("nvidia h200", (9, 0), 132, 6144),
    ],
)
def test_what_is_only_similar_is_an_estimate(
    name: str, capability: tuple[int, int], multiprocessors: int, bus: int
) -> None:
    part = found(name, capability, multiprocessors, bus, clock_hz=1.98e9, memory_clock_hz=3.2e9)
    assert part.kind == "estimate" and part.label.startswith(f"an estimate: {name} ")
    assert part.memory_bytes_per_s == bus / 8 * 3.2e9 * 2
    for peak in part.peaks:
        assert peak.per_clock_per_sm is not None
        assert peak.flop_per_s == multiprocessors * peak.per_clock_per_sm * 1.98e9


def test_estimates_have_the_rates_of_the_parts_of_their_capability() -> None:
    for part in PARTS:
        # There is no estimate of AMD's, and of these parts some rates are cut.
        less = ("NVIDIA GB10", "NVIDIA A10G", "NVIDIA L40", "NVIDIA H20", "NVIDIA H800")
        if part.name.startswith("AMD ") or part.name in less:
            continue
        guess = found(f"{part.name} X", part.capability, part.multiprocessors, clock_hz=1e9)
        for peak in part.peaks:
            usual = peak.accumulator == peaks.ACCUMULATORS.get(peak.dtype, "float32")
            if usual and peak.per_clock_per_sm is not None:
                guessed = guess.peak(peak.dtype)
                assert guessed is not None and guessed.per_clock_per_sm == peak.per_clock_per_sm, (part.name, peak)


@pytest.mark.parametrize(
    ("name", "capability", "kept"),
    [
        ("NVIDIA L20", (8, 9), {"float64", "float32"}),
        ("NVIDIA L2", (8, 9), {"float64", "float32"}),
        ("NVIDIA L40G", (8, 9), {"float64", "float32"}),
        ("NVIDIA L40 MIG 1g", (8, 9), {"float64", "float32"}),
        ("NVIDIA H20-3e", (9, 0), {"float32"}),
        ("NVIDIA H20 MIG 1g.12gb", (9, 0), {"float32"}),
        ("NVIDIA H800 PCIe", (9, 0), {"float32"}),
        ("NVIDIA A10M", (8, 6), {"float64", "float32"}),
        ("NVIDIA A16", (8, 6), {"float64", "float32"}),
        ("NVIDIA B30A", (10, 3), {"float32"}),
        ("NVIDIA B20", (10, 0), set()),
        ("NVIDIA GeForce RTX 5090 D", (12, 0), {"float64", "float32"}),
        ("NVIDIA GeForce RTX 5090 D v2", (12, 0), {"float64", "float32"}),
        ("NVIDIA RTX PRO 6000D", (12, 0), {"float64", "float32"}),
    ],
)
def test_a_part_whose_siblings_were_cut_gets_no_tensor_estimate(
    name: str, capability: tuple[int, int], kept: set[str]
) -> None:
    part = found(name, capability, 64, 384, clock_hz=2e9, memory_clock_hz=1e9)
    assert {peak.dtype for peak in part.peaks} == kept
    assert (
        part.missing
        == "similar GPUs lack units that this compute capability usually has, and this GPU is not in the table"
    )
    assert part.memory_bytes_per_s == 96e9


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA H100 NVL", (9, 0)),
        ("NVIDIA H200 MIG 1g.18gb", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA L40S MIG 1g", (8, 9)),
        ("NVIDIA L4 X", (8, 9)),
        ("NVIDIA A40", (8, 6)),
        ("NVIDIA A10-24Q", (8, 6)),
        ("NVIDIA RTX A6000", (8, 6)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA A30", (8, 0)),
        ("NVIDIA A800-SXM4-80GB", (8, 0)),
        ("NVIDIA GB200", (10, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA GeForce RTX 5080", (12, 0)),
        ("Quadro RTX 6000", (7, 5)),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5)),
        ("Tesla T4G", (7, 5)),
        ("", (9, 0)),
    ],
)
def test_a_part_of_a_line_that_was_not_cut_keeps_its_estimate(name: str, capability: tuple[int, int]) -> None:
    part = found(name, capability, 10, clock_hz=1e9)
    assert part.peak("float16") is not None and part.missing == ""


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce GTX 1650",
        "NVIDIA GeForce GTX 1660 Ti",
        "NVIDIA GeForce GTX 1650 with Max-Q Design",
        "NVIDIA GeForce MX450",
        "NVIDIA T400 4GB",
        "NVIDIA T500",
        "NVIDIA T600 Laptop GPU",
        "NVIDIA T1000 8GB",
        "NVIDIA T1200 Laptop GPU",
        "Quadro T1000",
        "Quadro T2000 with Max-Q Design",
    ],
)
def test_turing_without_tensor_cores_has_no_tensor_estimate(name: str) -> None:
    part = found(name, (7, 5), 14, clock_hz=1.665e9)
    assert {peak.dtype for peak in part.peaks} == {"float64", "float32"}
    assert part.missing == peaks.CUT


def test_a_mining_card_has_no_rate() -> None:
    part = found("NVIDIA CMP 170HX", (8, 0), 70, 4096, clock_hz=1.41e9, memory_clock_hz=1.458e9)
    assert part.peaks == () and part.missing == peaks.CUT


def test_what_cannot_even_be_estimated_says_why() -> None:
    assert unknown("a GPU", None, 8) == "the device does not report its compute capability and multiprocessors"
    assert unknown("a GPU", (9, 0), 8) == "a GPU is not in the table, and the device does not report its clocks"
    assert unknown("a GPU", (6, 1), 8, clock_hz=1e9) == (
        "a GPU is not in the table, and compute capability 6.1 is not in the table"
    )
    only_memory = found("a GPU", (6, 1), 8, 256, memory_clock_hz=5e9)
    assert (only_memory.peaks, only_memory.memory_bytes_per_s) == ((), 3.2e11)
