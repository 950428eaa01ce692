"""What others use of the CPU, from counters built by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpucheck.measure.telemetry import OtherProcesses, ProcessorTime, is_busy, others, processor_time


def test_what_the_machine_did_and_this_process_did_not() -> None:
    assert others(ProcessorTime(10.0, 100.0, 5.0), ProcessorTime(12.0, 103.5, 6.5)) == OtherProcesses(1.0, 2.0)


def test_too_short_to_tell() -> None:
    assert others(ProcessorTime(10.0, 100.0, 5.0), ProcessorTime(10.05, 100.1, 5.0)).cores is None


@pytest.mark.parametrize(
    ("used", "threads", "cores", "span_s", "busy"),
    [
        (0.05, 2, 2, 1.0, False),
        (0.5, 2, 2, 1.0, True),
        (0.5, 2, 2, 0.1, True),
        (3.0, 8, 16, 1.0, False),
        (8.6, 8, 16, 1.0, True),
        # Bursts of 16 threads between the ticks: seen on a machine on which nothing else ran.
        (0.73, 16, 16, 0.11, False),
        (1.2, 16, 16, 0.08, False),
        (0.23, 16, 16, 0.91, False),
        (3.0, 16, 16, 0.11, True),
        (1.0, 16, 16, 0.91, True),
        # More threads than cores leave no more room for error.
        (1.6, 32, 2, 1.0, True),
        (1.0, 64, 8, 1.0, True),
        (None, 2, 2, 1.0, False),
        (9, 2, None, 1.0, False),
    ],
)
def test_busy(used: float | None, threads: int, cores: int | None, span_s: float, busy: bool) -> None:
    assert is_busy(OtherProcesses(used, span_s), threads, cores) is busy


@pytest.mark.slow
def test_a_child_that_runs_is_counted_as_ours() -> None:
    program = (
        "import time; e = time.process_time() + 0.2\nwhile time.process_time() < e: pass\nprint(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone, with_child = processor_time(), processor_time(child.pid)
        child.communicate("\n")
    assert with_child.own_s - alone.own_s >= 0.15
    # Once it has ended the kernel has added it.
    assert processor_time(child.pid).own_s - alone.own_s >= 0.15
