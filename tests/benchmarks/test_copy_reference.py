"""The reference loop on a runtime of our own, and what counts as agreement."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def reference(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("copy_reference")


class Runtime:
    """The calls of the CUDA runtime on host memory: a copy of n bytes takes n nanoseconds of its own clock."""

    def __init__(self, refuses: str = "") -> None:
        self.now_ns = 0
        self.stamps: dict[int, int] = {}
        self.copies: list[tuple[int, int]] = []
        self.refuses = refuses

    def cudaEventCreate(self, mark: Any) -> int:
        mark._obj.value = len(self.stamps) + 1
        self.stamps[mark._obj.value] = -1
        return 0

    def cudaEventRecord(self, mark: Any, stream: Any) -> int:
        self.stamps[mark.value] = self.now_ns
        return 0

    def cudaEventSynchronize(self, mark: Any) -> int:
        return 0

    def cudaEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> int:
        milliseconds._obj.value = (self.stamps[end.value] - self.stamps[start.value]) / 1e6
        return 0

    def cudaMemcpyAsync(self, to: Any, origin: Any, size: Any, kind: Any, stream: Any) -> int:
        ctypes.memmove(to, origin, size.value)
        self.copies.append((kind.value, stream.value or 0))
        self.now_ns += size.value
        return 700 if self.refuses == "cudaMemcpyAsync" else 0


def test_the_reference_times_what_it_copies(reference: ModuleType) -> None:
    runtime = Runtime()
    source, destination = ctypes.create_string_buffer(b"x" * 1000, 1000), ctypes.create_string_buffer(1000)
    loop = reference.Reference(runtime)
    ends = ctypes.addressof(destination), ctypes.addressof(source)
    assert loop.seconds_per_copy(*ends, 1000, "device_to_host", 7) == pytest.approx(1e-6)
    assert destination.raw == source.raw
    assert runtime.copies == [(2, 7)] * 20


def test_a_refused_copy_is_an_error(reference: ModuleType) -> None:
    memory = ctypes.create_string_buffer(8)
    loop = reference.Reference(Runtime(refuses="cudaMemcpyAsync"))
    with pytest.raises(reference.CudaError, match="answered 700"):
        loop.seconds_per_copy(ctypes.addressof(memory), ctypes.addressof(memory), 8, "host_to_device", 0)


def test_what_agrees_lies_within_one_percent_with_its_whole_interval(reference: ModuleType) -> None:
    own = iter([1.0] * 15)
    same = reference.ratio_of("host_to_device", 10**9, lambda: next(own), lambda: 1.005, 15)
    assert (same.median, same.low, same.high, same.agrees) == (1.005, 1.005, 1.005, True)
    assert same.reference_bytes_per_s == pytest.approx(1e9 / 1.005)
    # Half of the pairs 3 % off: the median may be fine, its interval is not.
    uneven = iter([1.0, 1.03] * 8)
    assert not reference.ratio_of("host_to_device", 1, lambda: next(uneven), lambda: 1.0, 15).agrees


def test_the_sides_take_turns_to_go_first(reference: ModuleType) -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], float]:
        def seconds() -> float:
            order.append(name)
            return 1.0

        return seconds

    reference.ratio_of("host_to_device", 1, side("ours"), side("theirs"), 6)
    assert order == ["ours", "theirs", "theirs", "ours"] * 3


def test_the_interval_of_a_median(reference: ModuleType) -> None:
    # The fourth and the twelfth of fifteen enclose the median with 96.5 %.
    assert reference.interval_of_median(range(1, 16)) == (4, 12)
    assert reference.interval_of_median(range(1, 7)) == (1, 6)
    with pytest.raises(ValueError):
        reference.interval_of_median([1.0] * 5)
