"""Check that data reaches the device unchanged and complete: round trips, pinned and non-blocking copies, a DataLoader.
Check that an out-of-memory error can be caught and leaves no memory allocated."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from gpucheck.errors import CannotLook
from gpucheck.machine import child_protocol, device_lifetime
from gpucheck.machine.accel import Accel, has_context, open_device
from gpucheck.machine.child import python_argv
from gpucheck.machine.child_stdio import claim_stdout
from gpucheck.messages import FIX
from gpucheck.report.codec import to_json
from gpucheck.report.fault import first_line_of
from gpucheck.smoke.check import PassedCheck, Unavailable, WrongResult, expect, name_of
from gpucheck.units import MIB, PIB, capacity
from gpucheck.work import reference

COPY_ELEMENTS = 4 * MIB // 4
SAMPLES = 3
# The items of a batch: the number of each, the worker that made it, and the worker's process.
BatchItems = dict[str, list[int]]


def pattern(sample: int) -> torch.Tensor:
    """Return index xor sample number, so that every element differs from its neighbours and from the last sample."""
    return torch.arange(COPY_ELEMENTS, dtype=torch.int32) ^ sample


def without_pinning(accel: Accel) -> str | None:
    """Return the reason for a skip; None if the device can copy from pinned memory."""
    return None if accel.can_pin else f"not on {accel.kind}: no pinned memory in torch"


def pinned(accel: Accel) -> PassedCheck:
    """Check that non-blocking copies from and to pinned memory are right after a synchronization."""
    return _in_child(accel, "pinned") if has_context(accel) else _pinned(accel)


def _pinned(accel: Accel) -> PassedCheck:
    host, back = (device_lifetime.own(torch.empty(COPY_ELEMENTS, dtype=torch.int32, pin_memory=True)) for _ in range(2))
    expect(host.is_pinned() and back.is_pinned(), "pin_memory=True returned memory that is not pinned")
    is_pinned = device_lifetime.own(torch.zeros(8).pin_memory()).is_pinned()
    expect(is_pinned, "pin_memory() returned memory that is not pinned")
    return _copies(accel, host, back)


def non_blocking(accel: Accel) -> PassedCheck:
    """Check that non-blocking copies from and to pageable memory are right after a synchronization."""
    return _copies(accel, torch.empty(COPY_ELEMENTS, dtype=torch.int32), torch.empty(COPY_ELEMENTS, dtype=torch.int32))


def _copies(accel: Accel, host: torch.Tensor, back: torch.Tensor) -> PassedCheck:
    moved = torch.empty(COPY_ELEMENTS, dtype=torch.int32, device=accel.device)
    for sample in range(SAMPLES):
        wanted = pattern(sample)
        host.copy_(wanted)
        moved.fill_(-1)  # so that a missing copy is detected
        back.fill_(-1)
        accel.synchronize()
        moved.copy_(host, non_blocking=True)
        accel.synchronize()
        # The device compares, so that an error of the copy back cannot hide or cause a difference.
        differ = moved != wanted.to(accel.device)
        _expect_none(differ, f"of {COPY_ELEMENTS} elements wrong on the device", sample=sample)
        back.copy_(moved, non_blocking=True)
        accel.synchronize()
        _expect_none(back != wanted, f"of {COPY_ELEMENTS} elements wrong back on the host", sample=sample)
    return PassedCheck(f"{SAMPLES} × {capacity(4 * COPY_ELEMENTS)} each way")


def _expect_none(differ: torch.Tensor, what: str, /, **evidence: Any) -> None:
    """Raise WrongResult, with the count and `what`, if any element of `differ` is true."""
    count = reference.counted(differ)
    expect(count is not None, f"{reference.GARBAGE}: whether elements are wrong is unknown", **evidence)
    expect(count == 0, f"{count} {what}", **evidence)


# -- in a separate process ---------------------------------------------------------------------------------------------
#
# Torch aborts the process when it frees pinned memory of a lost device, as a DataLoader's pinning thread does.

# The time to load torch and open the device, plus a timeout of the DataLoader for a batch that never arrives.
CHILD_TIMEOUT_S = 90.0 + 30.0


def _in_child(accel: Accel, check: str) -> PassedCheck:
    """Run a check of this module in a child. Raises the check's error, and WrongResult for a child without a result."""
    output = child_protocol.run(python_argv("gpucheck.smoke.data", accel.id, check), CHILD_TIMEOUT_S)
    answer = output.merged
    if "passed" in answer:
        return PassedCheck(**answer["passed"])
    if "wrong" in answer:
        raise WrongResult(answer["wrong"], answer["fix"], **answer["evidence"])
    if "busy or unavailable" in answer.get("error", ""):
        raise Unavailable("another process cannot open the device (compute mode EXCLUSIVE_PROCESS)")
    if "error" in answer:
        raise RuntimeError(answer["error"])
    raise WrongResult(output.ending.in_words, stderr=output.ending.stderr[-2000:])


def main() -> int:
    """Run a check and print its result as a line of JSON. The arguments are the names of the device and the check."""
    say = claim_stdout()
    try:
        accel = open_device(sys.argv[1])
        accel.make_current()
        passed = {"pinned": _pinned, "data_loader": _data_loader}[sys.argv[2]](accel)
        device_lifetime.settle(accel)
        say({"passed": to_json(passed)})
    except CannotLook as error:
        say({"error": error.why})
    except WrongResult as wrong:
        say({"wrong": str(wrong), "fix": wrong.fix, "evidence": to_json(wrong.evidence)})
    except Exception as error:  # noqa: BLE001 - torch and its driver are under test, so any error is the finding
        device_lifetime.record_error(error)
        say({"error": str(error)})
    return 0


# -- DataLoader --------------------------------------------------------------------------------------------------------

WORKERS, BATCH, ITEMS, ITEM_SHAPE = 2, 8, 64, (16, 16)
# Workers that import torch again (spawn, forkserver) take seconds. A worker that hangs must not hang the check.
LOADER_TIMEOUT_S = 30
# The shared memory that batches in flight may need, rounded up: workers × prefetched batches × bytes.
SHM_NEEDED = 8 * MIB
# Docker's default size. It is too small for real batches: torch's workers die of a bus error.
SHM_SMALL = 64 * MIB
SHM_FIX = "start the container with --shm-size=1g or --ipc=host"
SHM = "/dev/shm"


class NumberedItems(Dataset[dict[str, Any]]):  # type: ignore[misc] # torch counts as untyped
    """Items with their number, the worker that made them, and data derived from the number."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> dict[str, Any]:
        info, values = get_worker_info(), torch.full(ITEM_SHAPE, float(index))
        return {"index": index, "pid": os.getpid(), "worker": -1 if info is None else info.id, "values": values}


def shared_memory() -> tuple[int, int] | None:
    """Return total and free bytes of the shared memory for batches; None without /dev/shm."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(SHM)
        return usage.total, usage.free
    return None


def data_loader(accel: Accel) -> PassedCheck:
    """Check that a DataLoader with workers and pinned memory delivers every item once, complete and in order."""
    return _in_child(accel, "data_loader") if has_context(accel) else _data_loader(accel)


def _data_loader(accel: Accel) -> PassedCheck:
    if (shm := shared_memory()) is not None and shm[1] < SHM_NEEDED:
        text = f"{SHM} has only {capacity(shm[1])} free, too little for DataLoader workers"
        raise WrongResult(text, SHM_FIX, free_bytes=shm[1])
    pin = accel.can_pin
    batches = _in_a_thread(lambda: list(_batches(accel, pin)), accel)
    items = [index for batch in batches for index in batch["index"]]
    expect(items == list(range(ITEMS)), "items missing, doubled or out of order", items=items)
    workers = sorted({worker for batch in batches for worker in batch["worker"]})
    expect(workers == list(range(WORKERS)), f"workers {workers} made the items, not {list(range(WORKERS))}")
    expect(os.getpid() not in {pid for batch in batches for pid in batch["pid"]}, "the items were made in this process")
    method = torch.multiprocessing.get_start_method()
    evidence = {"workers": WORKERS, "start_method": method, "pin_memory": pin, "shared_memory_bytes": shm and shm[0]}
    memory = "pinned" if pin else f"not pinned ({accel.kind} has no pinned memory in torch)"
    if shm is not None and shm[0] <= SHM_SMALL:
        return PassedCheck(f"works, but {SHM} has only {capacity(shm[0])}", evidence, doubt=True, fix=SHM_FIX)
    return PassedCheck(f"{ITEMS} items from {WORKERS} workers, {memory}", evidence)


def _in_a_thread(work: Callable[[], list[BatchItems]], accel: Accel) -> list[BatchItems]:
    """Do the work in a thread, in which `accel` is torch's current device, and return its result or raise its error.

    Signal handlers, such as torch's for a worker that died, raise only in the main thread. An error that is raised
    during a fork is lost, and an error during a queue's `put` leaves the queue locked, so a main thread would hang.
    """
    done: Future[list[BatchItems]] = Future()

    def run() -> None:
        try:
            with accel.as_current():
                done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - passed to the waiting thread
            done.set_exception(error)

    # The thread is a daemon, so Ctrl-C ends the program without waiting for the work.
    threading.Thread(target=run, name="gpucheck loads", daemon=True).start()
    return done.result()


def _batches(accel: Accel, pin: bool) -> Iterator[BatchItems]:
    """Yield every batch after comparing its values on the device."""
    loader = DataLoader(NumberedItems(), BATCH, num_workers=WORKERS, pin_memory=pin, timeout=LOADER_TIMEOUT_S)
    for batch in loader:
        values = batch["values"]
        expect(not pin or values.is_pinned(), "pin_memory=True gave a batch that is not pinned")
        moved = values.to(accel.device, non_blocking=True)
        wanted = batch["index"].to(torch.float32).reshape(-1, 1, 1).expand(-1, *ITEM_SHAPE)
        differ = moved != wanted.to(accel.device)
        # Too little shared memory ends a worker, but changes no value.
        what = "values of a batch are wrong on the device"
        _expect_none(differ, what, fix=FIX["wrong data"], items=batch["index"].tolist())
        yield {name: batch[name].tolist() for name in ("index", "worker", "pid")}


# -- tensors move without losing a bit ---------------------------------------------------------------------------------

# This size covers every vector width of a copy kernel. A copy takes microseconds.
PAYLOAD_BYTES = 64 * 1024
# Training needs these dtypes, so a device that lacks any of these fails. Other dtypes are tried and reported.
COMMON = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.complex64),
)
OTHERS = (torch.float64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
# A signalling NaN with a payload, and a negative quiet NaN, as bits (IEEE 754). Arithmetic would change these bits.
NAN_PATTERNS = {
    torch.float16: (torch.int16, (0x7D55, -0x0155)),
    torch.bfloat16: (torch.int16, (0x7FA5, -0x0035)),
    torch.float32: (torch.int32, (0x7FA55555, -0x00355555)),
    torch.float64: (torch.int64, (0x7FF5555555555555, -0x0005555555555555)),
}


def usable(accel: Accel) -> PassedCheck:
    """Check that the device can compute, and report its identity."""
    if reason := accel.why_broken():
        raise WrongResult(f"{accel.id} does not compute: {reason}")
    capability = accel.compute_capability
    evidence = {"name": accel.name, "uuid": accel.uuid, "compute_capability": list(capability) if capability else None}
    return PassedCheck(f"{accel.name} ({accel.id}), torch {torch.__version__}", evidence)


def payload(dtype: torch.dtype) -> torch.Tensor:
    """Return fixed pseudo-random bits as a 1-d tensor on the CPU, and NaNs with payloads."""
    generator = torch.Generator().manual_seed(20240229)
    raw = torch.randint(0, 256, (PAYLOAD_BYTES,), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return raw > 127  # a bool has only the bytes 0 and 1
    tensor = raw.view(dtype)
    if dtype in NAN_PATTERNS:
        integer, patterns = NAN_PATTERNS[dtype]
        tensor.view(integer)[1 : 1 + len(patterns)] = torch.tensor(patterns, dtype=integer)
    return tensor


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes in the order of its elements."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def round_trip(accel: Accel) -> PassedCheck:
    """Check that tensors of each dtype return from the device unchanged, after a copy on the device."""
    moved, unsupported = [], {}
    for dtype in (*COMMON, *OTHERS):
        original = payload(dtype)
        try:
            # copy=True: on the CPU `.to` would return the same tensor, and nothing would have moved.
            back = original.to(accel.device, copy=True).clone().to("cpu", copy=True)
        except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError; MPS raises TypeError
            if dtype in COMMON:
                raise
            unsupported[name_of(dtype)] = first_line_of(error)
            continue
        if not torch.equal(bits(original), bits(back)):
            differing = reference.counted(bits(original) != bits(back))
            changed = reference.GARBAGE if differing is None else f"{differing} of {PAYLOAD_BYTES} bytes changed"
            raise WrongResult(f"{name_of(dtype)} came back with {changed}")
        moved.append(name_of(dtype))
    text = f"{len(moved)} dtypes bit for bit, NaN payloads too"
    text += f", {len(unsupported)} unsupported on the device" if unsupported else ""
    return PassedCheck(text, {"dtypes": moved, "not_taken": unsupported})


def one_pebibyte(accel: Accel) -> PassedCheck:
    """Check that an allocation of 1 PiB raises out-of-memory and leaves no memory allocated, and the device works."""
    before = _allocated(accel)
    try:
        torch.empty(PIB, dtype=torch.uint8, device=accel.device)
    except (RuntimeError, MemoryError) as error:
        text = first_line_of(error)
        if not accel.is_out_of_memory(error) or not (accel.is_cpu or isinstance(error, torch.OutOfMemoryError)):
            raise WrongResult(f"raised {type(error).__name__}, not torch.OutOfMemoryError: {text}") from error
    else:
        raise WrongResult("an allocation of 1 PiB raised no error")
    total = float(torch.arange(1000.0, device=accel.device).sum())
    expect(total == 499500.0, f"after out-of-memory a sum is {total}, not 499500", fix=FIX["wrong data"])
    grown = _allocated(accel) - before
    expect(grown <= 0, f"after out-of-memory {capacity(grown)} more than before are allocated")
    return PassedCheck("raised out-of-memory; the device still works", {"error": text})


def _allocated(accel: Accel) -> int:
    """Return torch's allocated bytes once the device is idle; 0 on a CPU, where torch does not count."""
    # Reference cycles of an earlier check must not be freed between two readings.
    gc.collect()
    accel.synchronize()
    return accel.memory().memory_allocated_bytes or 0
