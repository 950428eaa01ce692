"""Adapt torch's devices: only this module distinguishes cuda, mps, xpu and cpu. It imports torch.

Every accelerator that torch supports can be used. A method returns None or False if the device lacks a feature.
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
# More time between two time stamps means a broken clock. CUDA reports 0 for less time than its resolution (0.5 µs).
MOST_ELAPSED_S, LEAST_ELAPSED_S = 86400.0, 1e-9
# The errors that torch raises for an unusable device. AssertionError: torch was built without the backend.
# DeferredCudaCallError: CUDA failed to start.
UNUSABLE: tuple[type[Exception], ...] = (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError)
# The wait before the second attempt to open a device: an estimate of the time in which other processes start or end.
_REOPEN_WAIT_S = 0.5
# A kernel that works computes these numbers: integers that float32 represents exactly.
_ANSWERS = itertools.cycle(range(2, 2**20))


def feature(path: str) -> Any:
    """Return the torch API at the dotted `path`; None if this version of torch does not have the API."""
    return functools.reduce(lambda value, name: getattr(value, name, None), path.split(".")[1:], torch)


@dataclass(frozen=True, slots=True)
class Allocator:
    """torch's allocator on the device. `backend` is `native` or another; `settings` are from the environment."""

    backend: str | None
    settings: str | None

    @property
    def is_default(self) -> bool:
        """Return whether this is torch's own allocator with default settings. Its behaviour is known exactly."""
        return self.backend == "native" and not self.settings


@dataclass(frozen=True)
class Accel:
    """A torch device and its features, created by `open_device`."""

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
    # The error of the first attempt to open the device; empty if the first attempt succeeded.
    transient: str = ""

    @property
    def kind(self) -> str:
        """Return torch's device type: `cuda` (ROCm too), `mps`, `xpu`, `cpu` or another."""
        return str(self.device.type)

    @property
    def id(self) -> str:
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
        """Return the seconds (above 0) between two reached time stamps. Raises DeviceFailed for a broken clock."""
        seconds = float(start.elapsed_time(end)) / 1e3
        if not 0 <= seconds <= MOST_ELAPSED_S:
            why = f"it counts {seconds:g} s from one time stamp to the next"
            raise DeviceFailed(f"the clock of {self.id} is broken", why, "run `gpucheck smoke`", device=self.id)
        return max(seconds, LEAST_ELAPSED_S)

    def hold(self, seconds: float) -> bool:
        """Delay the next enqueued work by about this time. Return False if the device does not support delays."""
        # The delay is a number of cycles at the rated clock, so a lower clock makes the delay longer.
        if (sleep := torch_private.find("torch.cuda._sleep")) is None or self.kind != "cuda":
            return False
        sleep(int(seconds * (self.max_clock_hz or FALLBACK_CLOCK_HZ)))
        return True

    # -- memory -------------------------------------------------------------------------------------------------

    @property
    def can_pin(self) -> bool:
        return self.kind in ("cuda", "xpu")

    def memory_info(self) -> tuple[int, int] | None:
        """Return the driver's free and total memory in bytes; None if the driver does not report them."""
        # If device and host share memory, the driver counts cached files as used. The host's available memory is used.
        if (get := getattr(self.module, "mem_get_info", None)) is None or self.is_cpu:
            return None
        try:
            free, total = get(self.device)
        except RuntimeError:
            if self.kind == "cuda":  # on CUDA this error means that the device is broken
                raise
            return None  # XPU raises "doesn't support querying the available free memory"
        is_shared = self.kind == "cuda" and self.integrated
        return min(host.memory().usable, int(total)) if is_shared else int(free), int(total)

    def memory(self) -> MemoryFigures:
        """Return torch's memory use on this device; for the CPU, the resident set of this process."""
        if self.is_cpu:
            return resident()
        if self.kind == "mps":
            current, driver = self.module.current_allocated_memory(), self.module.driver_allocated_memory()
            return MemoryFigures(current, None, driver, None, source="torch.mps (keeps no peaks)")
        names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
        if not hasattr(self.module, names[-1]):  # a backend unknown to gpucheck
            return MemoryFigures()
        sizes = {f"{name}_bytes": int(getattr(self.module, name)(self.device)) for name in names}
        return MemoryFigures(**sizes, source=self.module.__name__)

    def reset_peak(self) -> None:
        if self.is_cpu:
            reset_resident_peak()
        elif hasattr(self.module, "reset_peak_memory_stats"):
            self.module.reset_peak_memory_stats(self.device)

    def memory_stats(self) -> dict[str, int]:
        """Return the allocator's counters (`num_alloc_retries`, `num_ooms`, …); empty without counters."""
        get = getattr(self.module, "memory_stats", None)
        return {} if get is None or self.is_cpu else dict(get(self.device))

    def memory_layout(self) -> list[Any] | None:
        """Return the blocks of torch's allocator, which can be compared with a later layout; None except on CUDA."""
        if self.kind != "cuda":
            return None
        return [
            (segment["address"], [(b["size"], b["state"]) for b in segment["blocks"]])
            for segment in torch.cuda.memory_snapshot()
        ]

    def empty_cache(self) -> None:
        """Release unused blocks of device memory, and of pinned host memory."""
        if hasattr(self.module, "empty_cache") and not self.is_cpu:
            self.module.empty_cache()
        # torch caches pinned blocks until the process ends. Before torch 2.12 only a private function releases them.
        empty = feature("torch.accelerator.empty_host_cache") or torch_private.find("torch._C._host_emptyCache")
        if self.can_pin and empty is not None and torch.accelerator.is_available():
            empty()

    @property
    def set_memory_fraction(self) -> Callable[[float], None] | None:
        """Return a function that limits torch's memory to a fraction of the device's memory; None if unsupported."""
        if (limit := getattr(self.module, "set_per_process_memory_fraction", None)) is None or self.is_cpu:
            return None
        return lambda fraction: limit(fraction, self.device) if self.kind != "mps" else limit(fraction)

    def allocator(self) -> Allocator:
        names = [f"PYTORCH_{part}ALLOC_CONF" for part in ("", "CUDA_", "HIP_")] + ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
        settings = ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
        get = getattr(self.module, "get_allocator_backend", None)
        return Allocator(backend=get() if get else None, settings=settings or None)

    # -- errors, streams ----------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether the class or the message of `error` proves that memory ran out."""
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
            problem = _wrong_answer(self.device)
            self.synchronize()
        except RuntimeError as error:
            device_lifetime.record_error(error, self.id)
            return first_line_of(error)
        return problem

    def why_no_kernel(self, error: BaseException) -> str | None:
        """Return why a library has no kernel for this shape or dtype; None for any other error."""
        # If the error broke the device, the kernel is not missing, even if the message says so.
        if not isinstance(error, RuntimeError) or _is_of_device(error):
            return None
        is_missing = any(re.search(pattern, str(error), re.IGNORECASE) for pattern in messages.NO_KERNEL)
        return first_line_of(error) if is_missing and self.why_broken() is None else None

    def side_stream(self) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
        """Return a context that makes a second, independent stream current; None if the device has only one."""
        if self.is_cpu or not hasattr(self.module, "Stream") or not hasattr(self.module, "stream"):
            return None
        side = self.module.Stream(self.device)
        return lambda: self.module.stream(side)

    def wait(self, mark: Any) -> None:
        """Make the current stream's next work wait for a time stamp of any stream."""
        mark.wait()

    def peer_access(self, other: Accel) -> bool | None:
        """Return whether this device can access the memory of `other` without the host; None if unknown."""
        get = getattr(self.module, "can_device_access_peer", None)
        return None if get is None or other.kind != self.kind else bool(get(self.device, other.device))

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        can_switch = not self.is_cpu and hasattr(self.module, "device")
        with self.module.device(self.device) if can_switch else contextlib.nullcontext():
            yield

    def make_current(self) -> None:
        """Make this device torch's current device for the rest of the process."""
        if not self.is_cpu and hasattr(self.module, "set_device"):
            self.module.set_device(self.device)


def has_context(accel: Any) -> bool:
    """Return whether this process can pin memory and has a device context, so that freeing pinned memory may fail."""
    started = getattr(getattr(accel, "module", None), "is_initialized", lambda: False)
    return bool(accel.can_pin and accel.device.type != "cpu" and started())


class _PageLocked(mmap.mmap):
    """Page-locked host memory. CUDA unlocks it when it is freed."""

    # At exit Python clears this module's names before it frees the last buffer, so the object has the function.
    unlock: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.unlock is not None:
            self.unlock()


def pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return pinned host memory for `count` elements, for a long-lived buffer. Raises torch's errors."""
    # torch records an event when it frees its pinned memory, and a failure there aborts the process. A failing
    # `cudaHostUnregister` only returns an error, so CUDA locks memory of this process if a CUDA context exists.
    locked = _page_locked(count, dtype) if torch.cuda.is_initialized() else None
    return device_lifetime.own(torch.empty(count, dtype=dtype, pin_memory=True) if locked is None else locked)


def _page_locked(count: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Return memory of this process that CUDA has locked; None if CUDA refuses."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = _PageLocked(-1, max(count * dtype.itemsize, 1), **private)
    buffer = torch.frombuffer(memory, dtype=dtype, count=count)
    # The flag 1 is cudaHostRegisterPortable: the memory is pinned for every context.
    if int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 1)) == 0:
        memory.unlock = functools.partial(torch.cuda.cudart().cudaHostUnregister, buffer.data_ptr())
        return buffer
    # CUDA reports the error again at the next call. The next call is this small allocation, not a kernel launch.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return None


def resident() -> MemoryFigures:
    info = psutil.Process().memory_info()
    # Windows has the peak in the same structure, Linux in a file.
    peak = getattr(info, "peak_wset", None)
    with contextlib.suppress(OSError):
        match = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8", "replace"), re.MULTILINE)
        peak = int(match[1]) * 1024 if match else peak
    return MemoryFigures(resident_bytes=info.rss, max_resident_bytes=peak, source="resident set of the process")


def reset_resident_peak() -> bool:
    """Reset the peak of the resident set (Linux). Return False if the system does not allow a reset."""
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
    """Open a device by torch's name (`cuda:1`, `cpu`), and run a kernel on it. Raises CannotLook."""
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return Accel(device=torch.device("cpu"), module=torch.cpu, name=name or "CPU")
    if chosen.index is None:
        chosen = torch.device(chosen.type, 0)
    transient = ""
    try:
        module = torch.get_device_module(chosen.type)
        # An allocation would not be enough: it succeeds even if torch has no kernels for the device.
        try:
            problem = _wrong_answer(chosen)
        except UNUSABLE as error:
            transient = first_line_of(error)
            time.sleep(_REOPEN_WAIT_S)
            problem = _wrong_answer(chosen)
    except UNUSABLE as error:
        why = first_line_of(error)
        who = f"{messages.FIX['memory held']} shows which processes use memory; then run again, or "
        fix = f"{who if messages.is_of_memory(why) else ''}try --device cpu"
        raise CannotLook(f"torch cannot use {chosen}", why, fix, finding="device.usable") from error
    if problem is not None:
        fix = "see `gpucheck doctor`, or try --device cpu"
        raise CannotLook(f"torch cannot use {chosen}", problem, fix, finding="device.usable")
    properties = module.get_device_properties(chosen) if hasattr(module, "get_device_properties") else None

    def read(attribute: str) -> Any:  # each attribute is missing on some backend
        return getattr(properties, attribute, None)

    clock_khz, memory_khz = read("clock_rate"), read("memory_clock_rate")
    has_capability = chosen.type == "cuda" and read("major") is not None
    # The driver's `uuid` is preferred, because torch's lacks the prefix that marks a MIG instance.
    if not uuid and read("uuid") is not None:
        uuid = f"GPU-{str(read('uuid')).removeprefix('GPU-')}"
    return Accel(
        device=chosen,
        module=module,
        name=read("name") or name or str(chosen),
        uuid=uuid,
        compute_capability=(read("major"), read("minor")) if has_capability else None,
        multiprocessors=read("multi_processor_count"),
        memory_total_bytes=read("total_memory"),
        l2_cache_bytes=read("L2_cache_size"),
        max_clock_hz=clock_khz * 1e3 if clock_khz else None,
        memory_bus_width_bits=read("memory_bus_width") or None,
        max_memory_clock_hz=memory_khz * 1e3 if memory_khz else None,
        integrated=bool(read("is_integrated")),
        transient=transient,
    )


def _wrong_answer(device: torch.device) -> str | None:
    """Return how a small kernel's result is wrong; None if it is right. Raises torch's errors."""
    # If a kernel has no effect, memory may contain the last call's number, so each call expects another number.
    expected = float(next(_ANSWERS))
    answer = torch.ones(1, device=device).mul_(expected).item()
    return None if answer == expected else f"its kernels compute wrongly: 1 times {expected:g} is {answer:g}"


def _is_of_device(error: BaseException) -> bool:
    accelerator_error = feature("torch.AcceleratorError")
    return accelerator_error is not None and isinstance(error, accelerator_error)
