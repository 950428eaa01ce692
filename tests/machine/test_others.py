"""What others use of the CPU, from counters built by hand."""

from __future__ import annotations

import pytest

from gpucheck.machine import others
from gpucheck.machine.others import Reading, cores_used, is_busy


def test_what_the_machine_did_and_this_process_did_not() -> None:
    assert cores_used(Reading(10.0, 100.0, 5.0), Reading(12.0, 103.5, 6.5)) == pytest.approx(1.0)


def test_nobody_uses_less_than_nothing() -> None:
    """Both counters are rounded on their own."""
    assert cores_used(Reading(10.0, 100.0, 5.0), Reading(11.0, 100.9, 6.0)) == 0.0


def test_too_short_to_tell() -> None:
    assert cores_used(Reading(10.0, 100.0, 5.0), Reading(10.05, 100.1, 5.0)) is None


@pytest.mark.parametrize(
    ("used", "threads", "cores", "busy"),
    [
        (0.05, 2, 2, False),
        (0.5, 2, 2, True),
        (3.0, 8, 16, False),
        (8.5, 8, 16, True),
        (None, 2, 2, False),
        (9, 2, None, False),
    ],
)
def test_busy(used: float | None, threads: int, cores: int | None, busy: bool) -> None:
    assert is_busy(used, threads, cores) is busy


def test_the_counters_only_grow() -> None:
    before, after = others.read(), others.read()
    assert after.machine_s >= before.machine_s and after.own_s >= before.own_s > 0
