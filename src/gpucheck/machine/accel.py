"""The abilities of a torch device: the only place that distinguishes cuda, mps, xpu and cpu.

Any accelerator that torch knows works. An ability that the device lacks is None (or False). Imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import torch

from gpucheck import messages
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import device_lifetime, host, torch_private, watchdog
from gpucheck.report.fault import first_line_of
from gpucheck.report.measurement import DeviceRef, MemoryFigures

# cudaErrorMemoryAllocation of driver_types.h.
CUDA_OUT_OF_MEMORY = 2
# Current GPUs stay near or below 3 GHz, so a delay (`hold`) computed with this clock is at least as long as requested.
FALLBACK_CLOCK_HZ = 3e9
# Limits of a time between two time stamps: more than a day means a broken clock; CUDA reports 0 for a time below its
# resolution (0.5 µs).
MOST_ELAPSED_S, LEAST_ELAPSED_S = 86400.0, 1e-9
# The errors that torch raises for an unusable device. AssertionError: torch was built without the backend.
# DeferredCudaCallError: CUDA failed to start.
UNUSABLE: tuple[type[Exception], ...] = (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError)
# The wait before the second attempt to open a device. By then (an estimate) other processes have finished starting or
# ending on it, and the driver has initialised it.
_SETTLES_S = 0.5
# The numbers that a kernel has to compute as a proof that it works: integers that float32 represents exactly.
_ANSWERS = itertools.cycle(range(2, 2**20))


def feature(path: str) -> Any:
    """Return the torch API at the dotted `path`; None if this torch, such as 2.6, has none."""
    return functools.reduce(lambda value, name: getattr(value, name, None), path.split(".")[1:], torch)


@dataclass(frozen=True, slots=True)
class Allocator:
    """torch's allocator on the device: `native` or another backend, and its settings from the environment."""

    backend: str | None
    settings: str | None

    @property
    def is_default(self) -> bool:
        """Return whether this is torch's own allocator with default settings, whose behaviour is known exactly."""
        return self.backend == "native" and not self.settings


@dataclass(frozen=True)
class Accel:
    """One torch device and its abilities. `open_device` makes it."""

    device: torch.device
    module: ModuleType
    name: str
    uuid: str | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    memory_total_bytes: int | None = None
    l2_cache_bytes: int | None = None
    max_clock_hz: float | None = None
    memory_bus_width_bits: int | None = None
    max_memory_clock_hz: float | None = None
    integrated: bool = False
    # The error of the first attempt to open the device; empty if that succeeded.
    transient: str = ""

    @property
    def kind(self) -> str:
        """Return torch's device type: `cuda` (ROCm too), `mps`, `xpu`, `cpu` or another."""
        return str(self.device.type)

    @property
    def id(self) -> str:
        """Return torch's name for the device: `cuda:0`, `cpu`."""
        return str(self.device)

    @property
    def ref(self) -> DeviceRef:
        return DeviceRef(id=self.id, uuid=self.uuid, name=self.name)

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def has_events(self) -> bool:
        """Return whether the device records time stamps with its own clock."""
        return not self.is_cpu and hasattr(self.module, "Event")

    def host_now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        if not self.is_cpu:
            self.module.synchronize(self.device) if self.kind != "mps" else self.module.synchronize()
            watchdog.WATCHDOG.waited = True

    def record(self) -> Any:
        """Enqueue a time stamp on the device's current stream."""
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def done(self, mark: Any) -> bool:
        return bool(mark.query())

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Return the seconds between two past time stamps, more than 0. Raises DeviceFailed for a broken clock."""
        seconds = float(start.elapsed_time(end)) / 1e3
        if not 0 <= seconds <= MOST_ELAPSED_S:
            why = f"it counts {seconds:g} s from one time stamp to the next"
            raise DeviceFailed(f"the clock of {self.id} is broken", why, "run `gpucheck smoke`", device=self.id)
        return max(seconds, LEAST_ELAPSED_S)

    def hold(self, seconds: float) -> bool:
        """Delay the work enqueued next by about this long; return False if the device cannot."""
        # The delay is counted in cycles at the rated clock. It is longer at a lower clock and shorter at a boosted one.
        sleep = torch_private.find("torch.cuda._sleep")
        if sleep is None or self.kind != "cuda":
            return False
        sleep(int(seconds * (self.max_clock_hz or FALLBACK_CLOCK_HZ)))
        return True

    # -- memory -------------------------------------------------------------------------------------------------

    @property
    def can_pin(self) -> bool:
        return self.kind in ("cuda", "xpu")

    def memory_info(self) -> tuple[int, int] | None:
        """Return free and total memory in bytes by the driver; None if it does not report them."""
        # For memory shared with the host, the system's available memory counts: the driver counts cached files as used.
        get = getattr(self.module, "mem_get_info", None)
        if get is None or self.is_cpu:
            return None
        try:
            free, total = get(self.device)
        except RuntimeError:
            if self.kind == "cuda":  # on CUDA this means that the device is broken
                raise
            return None  # XPU raises "doesn't support querying the available free memory"
        is_shared = self.kind == "cuda" and self.integrated
        return min(host.memory().usable, int(total)) if is_shared else int(free), int(total)

    def memory(self) -> MemoryFigures:
        """Return torch's memory figures of this device; on the CPU, where torch keeps none, the resident set."""
        if self.is_cpu:
            return resident()
        if self.kind == "mps":
            current, driver = self.module.current_allocated_memory(), self.module.driver_allocated_memory()
            return MemoryFigures(current, None, driver, None, source="torch.mps (keeps no peaks)")
        names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
        if not hasattr(self.module, names[-1]):  # a backend unknown to gpucheck
            return MemoryFigures()
        figures = {f"{name}_bytes": int(getattr(self.module, name)(self.device)) for name in names}
        return MemoryFigures(**figures, source=self.module.__name__)

    def reset_peak(self) -> None:
        if self.is_cpu:
            reset_resident_peak()
        elif hasattr(self.module, "reset_peak_memory_stats"):
            self.module.reset_peak_memory_stats(self.device)

    def memory_stats(self) -> dict[str, int]:
        """Return the allocator's own counters (`num_alloc_retries`, `num_ooms`, …); empty if it keeps none."""
        get = getattr(self.module, "memory_stats", None)
        return {} if get is None or self.is_cpu else dict(get(self.device))

    def memory_layout(self) -> list[Any] | None:
        """Return the blocks of torch's allocator, to compare with a later moment; None if it reports none."""
        if self.kind != "cuda":
            return None
        return [
            (segment["address"], [(b["size"], b["state"]) for b in segment["blocks"]])
            for segment in torch.cuda.memory_snapshot()
        ]

    def empty_cache(self) -> None:
        """Release the unused blocks of the allocators: device memory, and pinned memory of the host."""
        if hasattr(self.module, "empty_cache") and not self.is_cpu:
            self.module.empty_cache()
        # torch keeps pinned blocks until the process ends. Before torch 2.12 only a private function releases them.
        empty = feature("torch.accelerator.empty_host_cache") or torch_private.find("torch._C._host_emptyCache")
        if self.can_pin and empty is not None and torch.accelerator.is_available():
            empty()

    @property
    def set_memory_fraction(self) -> Callable[[float], None] | None:
        """Return a function that limits torch's reserved memory to a fraction of the device's memory, or None."""
        limit = getattr(self.module, "set_per_process_memory_fraction", None)
        if limit is None or self.is_cpu:
            return None
        return lambda fraction: limit(fraction, self.device) if self.kind != "mps" else limit(fraction)

    def allocator(self) -> Allocator:
        names = [f"PYTORCH_{part}ALLOC_CONF" for part in ("", "CUDA_", "HIP_")] + ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
        settings = ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
        get = getattr(self.module, "get_allocator_backend", None)
        return Allocator(backend=get() if get else None, settings=settings or None)

    # -- errors, streams ----------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether `error` certainly means out of memory, by its class or by the allocator's message."""
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        if _is_of_device(error):
            return getattr(error, "error_code", None) == CUDA_OUT_OF_MEMORY
        text = str(error)
        return isinstance(error, RuntimeError) and (
            "out of memory" in text or "DefaultCPUAllocator: can't allocate" in text or "not enough memory" in text
        )

    def why_broken(self) -> str | None:
        """Return why the device fails; None if it works. A CUDA error persists until its process ends."""
        try:
            wrong = _wrong_answer(self.device)
            self.synchronize()
        except RuntimeError as error:
            device_lifetime.record_error(error, self.id)
            return first_line_of(error)
        return wrong

    def why_no_kernel(self, error: BaseException) -> str | None:
        """Return why a library has no kernel for this shape or dtype; None for any other error."""
        # An error that breaks the device is not a missing kernel, whatever the library's message says.
        if not isinstance(error, RuntimeError) or _is_of_device(error):
            return None
        has_none = any(re.search(pattern, str(error), re.IGNORECASE) for pattern in messages.NO_KERNEL)
        return first_line_of(error) if has_none and self.why_broken() is None else None

    def side_stream(self) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
        """Return a context that makes a second, independent stream current; None if the device has only one."""
        if self.is_cpu or not hasattr(self.module, "Stream") or not hasattr(self.module, "stream"):
            return None
        side = self.module.Stream(self.device)
        return lambda: self.module.stream(side)

    def wait(self, mark: Any) -> None:
        """Make work enqueued next on the current stream wait for a time stamp of any stream."""
        mark.wait()

    def peer_access(self, other: Accel) -> bool | None:
        """Return whether this device can access the other's memory without the host; None if unknown."""
        get = getattr(self.module, "can_device_access_peer", None)
        return None if get is None or other.kind != self.kind else bool(get(self.device, other.device))

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        has_others = not self.is_cpu and hasattr(self.module, "device")
        with self.module.device(self.device) if has_others else contextlib.nullcontext():
            yield

    def make_current(self) -> None:
        """Make this torch's current device permanently, in a process that uses no other device."""
        if not self.is_cpu and hasattr(self.module, "set_device"):
            self.module.set_device(self.device)


def has_context(accel: Any) -> bool:
    """Return whether this process has a context on the device and can pin memory: freeing such memory may then fail."""
    started = getattr(getattr(accel, "module", None), "is_initialized", lambda: False)
    return bool(accel.can_pin and accel.device.type != "cpu" and started())


class _PageLocked(mmap.mmap):
    """Page-locked host memory, which CUDA unlocks once nothing uses it."""

    # The function is kept here: at exit Python clears this module's names before it frees the last buffer.
    unlock: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.unlock is not None:
            self.unlock()


def pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return pinned host memory for `count` elements, for a long-lived buffer. Raises torch's errors."""
    # torch's own pinned memory records an event when it is freed, and a failure there aborts the process.
    # `cudaHostUnregister` only returns an error, so memory of this process is locked where possible.
    # Without a context no device would copy from it faster.
    locked = _page_locked(count, dtype) if torch.cuda.is_initialized() else None
    return device_lifetime.own(torch.empty(count, dtype=dtype, pin_memory=True) if locked is None else locked)


def _page_locked(count: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Return memory of this process that CUDA has locked; None if CUDA refuses."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = _PageLocked(-1, max(count * dtype.itemsize, 1), **private)
    words = torch.frombuffer(memory, dtype=dtype, count=count)
    # The flag 1 is cudaHostRegisterPortable: memory is pinned for every context.
    if int(torch.cuda.cudart().cudaHostRegister(words.data_ptr(), words.nbytes, 1)) == 0:
        memory.unlock = functools.partial(torch.cuda.cudart().cudaHostUnregister, words.data_ptr())
        return words
    # CUDA repeats the error at the next call. This call takes it, so that no kernel launch fails because of it.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return None


def resident() -> MemoryFigures:
    """Return this process's resident set and its peak, in bytes."""
    info = psutil.Process().memory_info()
    # The peak is in a file on Linux, and beside the resident set on Windows.
    peak = getattr(info, "peak_wset", None)
    with contextlib.suppress(OSError):
        known = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8", "replace"), re.MULTILINE)
        peak = int(known[1]) * 1024 if known else peak
    return MemoryFigures(resident_bytes=info.rss, max_resident_bytes=peak, source="resident set of the process")


def reset_resident_peak() -> bool:
    """Restart the peak of the resident set (Linux); return False if that is impossible."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def default_accelerator() -> str | None:
    """Return the type of the accelerator that torch can use now (`cuda`, `mps`, …); None if it can use none."""
    # `is_available()` comes first, because torch 2.6's `current_accelerator()` raises without an accelerator.
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if current is None else current.type


def device_count(kind: str) -> int:
    if kind == "cpu":
        return 1
    try:
        return int(torch.get_device_module(kind).device_count())
    except (RuntimeError, AttributeError):
        return 0


def open_device(device: str, *, name: str | None = None, uuid: str | None = None) -> Accel:
    """Open the device that torch calls `device` (`cuda:1`, `cpu`), and run a kernel. Raises CannotLook."""
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return Accel(device=torch.device("cpu"), module=torch.cpu, name=name or "CPU")
    if chosen.index is None:
        chosen = torch.device(chosen.type, 0)
    transient = ""
    try:
        module = torch.get_device_module(chosen.type)
        # Allocation succeeds even if torch has no kernels for the device, and a kernel may run without any effect.
        try:
            wrong = _wrong_answer(chosen)
        except UNUSABLE as error:
            transient = first_line_of(error)
            time.sleep(_SETTLES_S)
            wrong = _wrong_answer(chosen)
    except UNUSABLE as error:
        why = first_line_of(error)
        who = f"{messages.FIX['memory held']} shows which processes use memory; then run again, or "
        fix = f"{who if messages.is_of_memory(why) else ''}try --device cpu"
        raise CannotLook(f"torch cannot use {chosen}", why, fix, finding="device.usable") from error
    if wrong is not None:
        raise CannotLook(
            f"torch cannot use {chosen}", wrong, "see `gpucheck doctor`, or try --device cpu", finding="device.usable"
        )
    properties = module.get_device_properties(chosen) if hasattr(module, "get_device_properties") else None

    def figure(attribute: str) -> Any:  # every attribute is missing on some backend
        return getattr(properties, attribute, None)

    clock_khz, memory_khz = figure("clock_rate"), figure("memory_clock_rate")
    has_capability = chosen.type == "cuda" and figure("major") is not None
    # The driver's `uuid` is preferred: torch's own lacks the prefix that marks a MIG instance.
    if not uuid and figure("uuid") is not None:
        uuid = f"GPU-{str(figure('uuid')).removeprefix('GPU-')}"
    return Accel(
        device=chosen,
        module=module,
        name=figure("name") or name or str(chosen),
        uuid=uuid,
        compute_capability=(figure("major"), figure("minor")) if has_capability else None,
        multiprocessors=figure("multi_processor_count"),
        memory_total_bytes=figure("total_memory"),
        l2_cache_bytes=figure("L2_cache_size"),
        max_clock_hz=clock_khz * 1e3 if clock_khz else None,
        memory_bus_width_bits=figure("memory_bus_width") or None,
        max_memory_clock_hz=memory_khz * 1e3 if memory_khz else None,
        integrated=bool(figure("is_integrated")),
        transient=transient,
    )


def _wrong_answer(device: torch.device) -> str | None:
    """Return how a small kernel's result is wrong; None if it is right. Raises torch's errors."""
    # Each call wants another number, because memory that no kernel writes may still hold the last one.
    wanted = float(next(_ANSWERS))
    answer = torch.ones(1, device=device).mul_(wanted).item()
    return None if answer == wanted else f"its kernels compute wrongly: 1 times {wanted:g} is {answer:g}"


def _is_of_device(error: BaseException) -> bool:
    kind = feature("torch.AcceleratorError")
    return kind is not None and isinstance(error, kind)
