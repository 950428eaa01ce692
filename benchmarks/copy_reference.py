"""How near gpucheck's copies come to a loop of cudaMemcpyAsync, as ratios of rates measured in turn.

    python benchmarks/copy_reference.py [--device cuda:0] [--size 512MiB] [--pairs 15] [--json]

The reference calls the CUDA runtime that torch has loaded, through ctypes: no code of gpucheck or torch lies between
the clock and the copy. Both sides copy between the same pointers, one after the other in each pair. A direction agrees
where the whole 95 % interval of the median ratio lies within 1 %. Bytes are counted once, as nvbandwidth counts them:
its `host_to_device_memcpy_ce` is the figure to hold the first row against. Exit status 1 where one does not agree.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src"), str(Path(__file__).resolve().parent)]

from intervals import Ratio, in_turns  # noqa: E402  (found beside this file)

WITHIN = 0.01
FEWEST_PAIRS = 15
# Of one side of a pair: ten windows of gpucheck's, 512 MiB at 50 GB/s take 11 ms.
SIDE_S = 0.3


# -- the reference: ctypes and the CUDA runtime alone ------------------------------------------------------------------

# driver_types.h, cudaMemcpyKind.
KINDS = {"host_to_device": 1, "device_to_host": 2, "device_to_device": 3}
# nvbandwidth's loop: so many copies between two events, after so many that are not timed.
COPIES, UNTIMED = 16, 4


class CudaError(Exception):
    """The runtime refused."""


class Reference:
    """cudaMemcpyAsync between two events, as a program without gpucheck would write it."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._marks = ctypes.c_void_p(), ctypes.c_void_p()
        for mark in self._marks:
            self._must(runtime.cudaEventCreate(ctypes.byref(mark)))

    def seconds_per_copy(self, destination: int, source: int, size: int, kind: str, stream: int) -> float:
        """Seconds that one of the copies takes on `stream`, on the device's clock. Raises CudaError."""
        start, end = self._marks
        on = ctypes.c_void_p(stream)
        self._copy(destination, source, size, kind, on, UNTIMED)
        self._must(self._runtime.cudaEventRecord(start, on))
        self._copy(destination, source, size, kind, on, COPIES)
        self._must(self._runtime.cudaEventRecord(end, on))
        self._must(self._runtime.cudaEventSynchronize(end))
        milliseconds = ctypes.c_float()
        self._must(self._runtime.cudaEventElapsedTime(ctypes.byref(milliseconds), start, end))
        return milliseconds.value / 1e3 / COPIES

    def _copy(self, destination: int, source: int, size: int, kind: str, on: ctypes.c_void_p, times: int) -> None:
        to, origin, length = ctypes.c_void_p(destination), ctypes.c_void_p(source), ctypes.c_size_t(size)
        for _ in range(times):
            self._must(self._runtime.cudaMemcpyAsync(to, origin, length, ctypes.c_int(KINDS[kind]), on))

    def _must(self, code: int) -> None:
        if code:
            raise CudaError(f"the CUDA runtime answered {code}")


def loaded_runtime() -> Any:
    """The libcudart that this process has loaded. Raises CudaError where there is none."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "libcudart" in line}
    if not paths:
        raise CudaError("this process has loaded no libcudart: torch is no CUDA build, or has it built in")
    return ctypes.CDLL(sorted(paths)[0])


# -- both sides in turn ------------------------------------------------------------------------------------------------


def agrees(ratio: Ratio) -> bool:
    """Return whether the whole interval lies within 1 %."""
    return ratio.low >= 1 - WITHIN and ratio.high <= 1 + WITHIN


def measured(device: str, size: int, pairs: int) -> list[Ratio]:
    """The three directions on this device, each between one pair of pointers."""
    import torch

    from gpucheck.bench.buffers import Copies, allocate
    from gpucheck.machine import accel
    from gpucheck.measure import timing

    opened = accel.open_device(device)
    torch.cuda.set_device(opened.device)
    reference = Reference(loaded_runtime())
    stream = torch.cuda.current_stream().cuda_stream
    host = allocate(size, torch.device("cpu"), pinned=True)
    first, second = allocate(size, opened.device), allocate(size, opened.device)
    ends = {
        "host_to_device": (host, first),
        "device_to_host": (first, host),
        "device_to_device": (first, second),
    }
    found = []
    for direction, (source, destination) in ends.items():
        copies = Copies(source, destination, size, size, True, opened.synchronize, allowance_s=0.0)
        copies.prepare(0, 1)

        def ours(copies: Copies = copies) -> float:
            work = timing.Work(copies.call, empty=copies.work.empty)
            timed = timing.measure(opened, work, clock="device events", limits=timing.Limits(SIDE_S, 0.02))
            return statistics.median(timed.run.samples_s) / timed.run.calls_per_sample

        def theirs(direction: str = direction, source: Any = source, destination: Any = destination) -> float:
            ends = destination.words.data_ptr(), source.words.data_ptr()
            return reference.seconds_per_copy(*ends, size, direction, stream)

        found.append(in_turns(direction, size, ours, theirs, pairs))
        if copies.finish()["wrong_bytes"]:
            raise CudaError(f"copies {direction} arrived changed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="512MiB")
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from gpucheck import units
    from gpucheck.errors import GpucheckError

    if given.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs {given.pairs}: fewer than {FEWEST_PAIRS} prove nothing")
    try:
        found = measured(given.device, units.parse_size(given.size), given.pairs)
    except (GpucheckError, CudaError) as error:
        print(f"copy_reference: {error}", file=sys.stderr)
        return 3
    if given.json:
        print(json.dumps([{**vars(ratio), "agrees": agrees(ratio)} for ratio in found], indent=1))
    for ratio in found if not given.json else ():
        rate = f"{ratio.text} of {ratio.peer_rate / 1e9:.2f} GB/s"
        print(f"{ratio.what:17} {rate}, {ratio.pairs} pairs: {'agrees' if agrees(ratio) else 'DOES NOT AGREE'}")
    return 0 if all(agrees(ratio) for ratio in found) else 1


if __name__ == "__main__":
    sys.exit(main())
