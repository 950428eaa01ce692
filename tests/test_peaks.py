from __future__ import annotations

import subprocess
import sys

import pytest

from gpucheck import peaks
from gpucheck.peaks import Part, Unknown

PARTS = peaks.parts()
GHZ, TERA = 1e9, 1e12


def found(*given: object, **clocks: float) -> Part:
    part = peaks.lookup(*given, **clocks)  # type: ignore[arg-type]
    assert isinstance(part, Part), part
    return part


def unknown(*given: object, **clocks: float) -> str:
    part = peaks.lookup(*given, **clocks)  # type: ignore[arg-type]
    assert isinstance(part, Unknown), part
    return part.reason


# the table


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_row_agrees_with_its_own_arithmetic(part: Part) -> None:
    assert part.source and part.date and part.kind == "data sheet"
    assert part.peak("float32") or part.name == "NVIDIA B200"
    assert len({(peak.dtype, peak.accumulator) for peak in part.peaks}) == len(part.peaks)
    for peak in part.peaks:
        computed = part.multiprocessors * peak.per_clock_per_sm * peak.clock_hz
        # Data sheets round: L4's TF32 "60" is 60.6.
        assert peak.flop_per_s == pytest.approx(computed, rel=0.011), peak
    computed_memory = peaks.bandwidth(part.bus_width_bits, part.memory_clock_hz)
    assert part.memory_bytes_per_s == pytest.approx(computed_memory, rel=0.03)


def test_names_are_unique_and_none_is_a_range() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS) == 20


# The arithmetic that is known from outside the table: SMs, dense operations per clock and SM, and the clock in GHz.
@pytest.mark.parametrize(
    ("name", "dtype", "multiprocessors", "per_clock", "ghz"),
    [
        ("Tesla V100-SXM2-32GB", "float16", 80, 512 * 2, 1.53),
        ("Tesla T4", "float16", 40, 512 * 2, 1.59),
        ("NVIDIA A10", "bfloat16", 72, 512 * 2, 1.695),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 108, 1024 * 2, 1.41),
        ("NVIDIA GeForce RTX 3090", "bfloat16", 82, 256 * 2, 1.695),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 128, 256 * 2, 2.52),
        ("NVIDIA L4", "bfloat16", 58, 512 * 2, 2.04),
        ("NVIDIA L40S", "bfloat16", 142, 512 * 2, 2.49),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 132, 2048 * 2, 1.83),
        ("NVIDIA H200", "bfloat16", 132, 2048 * 2, 1.83),
        ("NVIDIA H200", "float32", 132, 128 * 2, 1.98),
        ("AMD Instinct MI300X", "bfloat16", 304, 1024 * 2, 2.1),
        ("Tesla V100-SXM2-16GB", "float64", 80, 32 * 2, 1.53),
        ("NVIDIA A100-SXM4-40GB", "float64", 108, 64 * 2, 1.41),
        ("NVIDIA H100 80GB HBM3", "float64", 132, 128 * 2, 1.98),
        ("NVIDIA H200", "float8_e4m3fn", 132, 4096 * 2, 1.83),
        ("NVIDIA H200", "int8", 132, 4096 * 2, 1.83),
        ("NVIDIA A100-SXM4-80GB", "int8", 108, 2048 * 2, 1.41),
        ("NVIDIA L4", "float8_e4m3fn", 58, 1024 * 2, 2.04),
        ("NVIDIA GeForce RTX 4090", "int8", 128, 1024 * 2, 2.52),
        ("AMD Instinct MI300X", "float8_e4m3fnuz", 304, 2048 * 2, 2.1),
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
    part = found("NVIDIA H200", (9, 0), 132, 6144)
    assert part.kind == "data sheet"
    assert part.label == "NVIDIA H200 Tensor Core GPU data sheet, collected 2026-11"
    assert part.memory_bytes_per_s == 4.8e12
    bfloat16 = part.peak("bfloat16")
    assert bfloat16 is not None and (bfloat16.flop_per_s, bfloat16.clock_hz) == (989.4 * TERA, 1.83 * GHZ)
    assert found("NVIDIA H200", (9, 0), 132) == part


def test_the_accumulator_decides() -> None:
    part = found("NVIDIA GeForce RTX 4090", (8, 9), 128, 384)
    half, full = part.peak("float16"), part.peak("float16", "float16")
    assert half is not None and full is not None
    assert (half.flop_per_s, full.flop_per_s) == (165.2 * TERA, 330.3 * TERA)
    integers = part.peak("int8")
    assert integers is not None and integers.accumulator == "int32"
    assert part.peak("float64") is None


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "bus"),
    [
        ("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, 6144),
        ("NVIDIA H200", (9, 0), 60, 6144),
        ("NVIDIA H200", (9, 0), 132, 3072),
        ("NVIDIA H100 NVL", (9, 0), 132, 6144),
        ("NVIDIA L40", (8, 9), 142, 384),
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
        assert peak.flop_per_s == multiprocessors * peak.per_clock_per_sm * 1.98e9


# By capability: which of the newer dtypes its tensor cores multiply, and the rate of float64 as the guide gives it.
@pytest.mark.parametrize(
    ("capability", "float64", "float8", "int8"),
    [
        ((7, 0), 64, None, None),
        ((7, 5), 4, None, 2048),
        ((8, 0), 128, None, 4096),
        ((8, 6), 4, None, 2048),
        ((8, 9), 4, 2048, 2048),
        ((9, 0), 256, 8192, 8192),
        ((10, 0), None, 16384, 16384),
    ],
)
def test_estimates_know_the_dtypes_of_their_capability(
    capability: tuple[int, int], float64: int | None, float8: int | None, int8: int | None
) -> None:
    part = found("a GPU", capability, 10, clock_hz=1e9)
    rates = {peak.dtype: peak.per_clock_per_sm for peak in part.peaks}
    assert (rates.get("float64"), rates.get("float8_e4m3fn"), rates.get("int8")) == (float64, float8, int8)
    assert {peak.accumulator for peak in part.peaks if peak.dtype == "int8"} <= {"int32"}
    assert {peak.accumulator for peak in part.peaks if peak.dtype == "float64"} <= {"float64"}


def test_a_data_sheet_that_gives_float64_counts_its_tensor_cores() -> None:
    known = {part.name for part in PARTS if part.peak("float64") is not None}
    assert known == {part.name for part in PARTS if part.capability in ((7, 0), (8, 0), (9, 0), (9, 4))}


def test_an_estimate_of_a_slice_of_a_card_and_of_a_geforce() -> None:
    slice_of = found("NVIDIA H200", (9, 0), 16, 6144, clock_hz=1.98e9).peak("bfloat16")
    assert slice_of is not None and slice_of.flop_per_s == 16 * 4096 * 1.98e9
    geforce = found("NVIDIA GeForce RTX 4090 D", (8, 9), 114, clock_hz=2.52e9).peak("bfloat16")
    professional = found("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, clock_hz=2.52e9).peak("bfloat16")
    assert geforce is not None and professional is not None
    assert (geforce.per_clock_per_sm, professional.per_clock_per_sm) == (512, 1024)


def test_estimates_have_the_rates_of_the_parts_of_their_capability() -> None:
    for part in PARTS:
        if part.name in (
            "AMD Instinct MI300X",
            "NVIDIA A10G",
        ):  # no estimate of AMD's; A10G runs at half its chip's rate
            continue
        guess = found(f"{part.name} X", part.capability, part.multiprocessors, clock_hz=1e9)
        for peak in part.peaks:
            if peak.accumulator == peaks.ACCUMULATORS.get(peak.dtype, "float32"):
                guessed = guess.peak(peak.dtype)
                assert guessed is not None and guessed.per_clock_per_sm == peak.per_clock_per_sm, (part.name, peak)


def test_what_cannot_even_be_estimated_says_why() -> None:
    assert unknown("a GPU", None, 8) == "the device does not tell its compute capability and multiprocessors"
    assert unknown("a GPU", (9, 0), 8) == "a GPU is not in the table, and the device does not tell its clocks"
    assert unknown("a GPU", (6, 1), 8, clock_hz=1e9) == (
        "a GPU is not in the table, and compute capability 6.1 is not in the table"
    )
    only_memory = found("a GPU", (6, 1), 8, 256, memory_clock_hz=5e9)
    assert (only_memory.peaks, only_memory.memory_bytes_per_s) == ((), 3.2e11)


def test_the_table_is_read_only_when_it_is_asked_for() -> None:
    code = "import sys, gpucheck.peaks; print(sorted({'tomllib', 'tomli'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
