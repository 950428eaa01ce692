from __future__ import annotations

import pytest

from gpucheck.batch_size.outcome import (
    Budget,
    MemoryLimit,
    guard_bytes,
    on_cpu,
    on_device,
    parse_limit,
)
from gpucheck.errors import CannotLook, UsageError
from gpucheck.units import GIB, MIB


def test_three_ways_to_limit() -> None:
    assert parse_limit("4GiB") == MemoryLimit("size", 4 * GIB, "4GiB")
    assert parse_limit("50%") == MemoryLimit("share", 0.5, "50%")
    assert parse_limit("leave:2GiB") == MemoryLimit("leave", 2 * GIB, "leave:2GiB")


@pytest.mark.parametrize("text", ["", "abc", "-1GiB", "0", "0%", "101%", "leave:", "leave:x", "4GiB%", "1e30", "nan"])
def test_no_limits(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(text)
    assert "--memory-limit" in str(caught.value)


def test_a_cpu_takes_two_gib_or_half() -> None:
    reason = "the smaller of 2 GiB and half the available memory"
    assert on_cpu(None, 64 * GIB, 64 * GIB) == Budget(2 * GIB, 0, reason)
    assert on_cpu(None, 3 * GIB, 64 * GIB).bytes == GIB * 3 // 2


def test_limits_on_a_cpu() -> None:
    free, total = 10 * GIB, 16 * GIB
    assert on_cpu(parse_limit("4GiB"), free, total).bytes == 4 * GIB
    assert on_cpu(parse_limit("25%"), free, total).bytes == 4 * GIB
    assert on_cpu(parse_limit("leave:1GiB"), free, total).bytes == 9 * GIB
    more = on_cpu(parse_limit("12GiB"), free, total)
    assert more.bytes == free
    assert more.reason == "available memory, less than --memory-limit 12GiB"
    with pytest.raises(UsageError, match="--memory-limit leave:10GiB leaves nothing; 10 GiB are free"):
        on_cpu(parse_limit("leave:10GiB"), free, total)


def test_the_margin_of_a_device() -> None:
    small = on_device(None, 8 * GIB, 8 * GIB, shared=False)
    assert (small.margin_bytes, small.bytes) == (512 * MIB, 8 * GIB - 512 * MIB)
    large = on_device(None, 140 * GIB, 141 * GIB, shared=False)
    assert large.margin_bytes == int(0.03 * 141 * GIB)
    shared = on_device(None, 6 * GIB, 8 * GIB, shared=True)
    assert (shared.margin_bytes, shared.bytes) == (GIB, 5 * GIB)


def test_a_limit_below_what_is_free_needs_no_more_margin() -> None:
    limited = on_device(parse_limit("4GiB"), 8 * GIB, 8 * GIB, shared=False)
    assert (limited.bytes, limited.margin_bytes) == (4 * GIB, 0)  # nothing was left out of it
    assert on_device(parse_limit("100%"), 8 * GIB, 8 * GIB, shared=False).bytes == 8 * GIB - 512 * MIB
    assert on_device(parse_limit("leave:2GiB"), 8 * GIB, 8 * GIB, shared=False).bytes == 6 * GIB


def test_a_full_device() -> None:
    with pytest.raises(CannotLook, match="only 256 MiB of the device's 8 GiB is free; a margin of 512 MiB stays free"):
        on_device(None, 256 * MIB, 8 * GIB, shared=False)


def test_the_guard_stands_a_quarter_above_and_64_mib_at_least() -> None:
    assert guard_bytes(4 * GIB) == 5 * GIB
    assert guard_bytes(100 * MIB) == 164 * MIB
