"""In the program's own process: how much memory it holds, and who holds it where that ran out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from gpucheck import messages
from gpucheck.program.run import board, rule

_WIDTH = len(board.DEVICE)
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Which devices hold anything is asked again after so many readings: a reading of one takes some ten microseconds.
_LOOK_AGAIN = 256
# Holders that are named, and how deep their lists and dictionaries are followed.
_MOST_HOLDERS, _DEPTH, _MOST_MEMBERS = 12, 3, 10_000
_TEXT = 2000
# A dump with the stacks of Python takes some seconds for so many; with those of C++ minutes (torchtitan issue 3628).
_MOST_ENTRIES = 100_000

_say: Callable[[dict[str, Any]], bool]
_lines: rule.Lines
_snapshot = ""
_devices: list[int] = []
_readings = 0
_statm: int | None = None


def observe(say: Callable[[dict[str, Any]], bool], lines: rule.Lines, snapshot: str = "") -> None:
    """Tell `say` of memory that runs out, from now on; with `snapshot` CUDA's history of memory goes to that file."""
    global _say, _lines, _snapshot
    _say, _lines, _snapshot = say, lines, snapshot


def dump() -> None:
    """Write the history of CUDA's memory, where one was recorded: torch.org's memory_viz shows it."""
    if _snapshot and _devices:
        torch.cuda.memory._dump_snapshot(_snapshot)


def read(cells: memoryview, phase: int) -> None:
    """Note each device's memory, and a new peak as the work of this phase of the step that is at work."""
    global _readings
    stats_of = getattr(torch._C, "_cuda_memoryStats", None)
    if stats_of is None or not torch.cuda.is_initialized():
        return
    if _readings % _LOOK_AGAIN == 0:
        _find_devices(stats_of)
    _readings += 1
    for index in _devices:
        stats = stats_of(index)
        at = board.DEVICES_AT + index * _WIDTH
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        if allocated["peak"] > cells[at + 3]:
            cells[at + 5], cells[at + 6] = cells[board.STEPS], phase
            cells[at + 11] = reserved["current"]
        row = (1, allocated["current"], reserved["current"], max(allocated["peak"], cells[at + 3]))
        for place, value in enumerate((*row, max(reserved["peak"], cells[at + 4]))):
            cells[at + place] = value
        cells[at + 7], cells[at + 8] = stats["num_alloc_retries"], stats["num_ooms"]
        cells[at + 9] = stats["inactive_split_bytes"]["all"]["current"]


def _find_devices(stats_of: Callable[[int], dict[str, Any]]) -> None:
    for index in range(min(torch.cuda.device_count(), board.MOST_DEVICES)):
        if index not in _devices and stats_of(index)["reserved_bytes"]["all"]["peak"]:
            if not _devices:
                attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None) or getattr(
                    torch._C, "_cuda_attachOutOfMemoryObserver", None
                )
                if attach is not None:
                    attach(_out_of_memory)
                if _snapshot:
                    torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES, stacks="python")
            _devices.append(index)
            properties = torch.cuda.get_device_properties(index)
            uuid = getattr(properties, "uuid", None)
            name = None if uuid is None else f"GPU-{uuid}"
            total = properties.total_memory
            _say({"say": "device", "index": index, "name": properties.name, "uuid": name, "total": total})


def now(cells: memoryview) -> tuple[int, int, int]:
    """Bytes allocated and reserved on the devices together, and the resident set; -1 for what is not known."""
    if not _devices:
        return -1, -1, resident()
    rows = [board.DEVICES_AT + index * _WIDTH for index in _devices]
    return sum(cells[at + 1] for at in rows), sum(cells[at + 2] for at in rows), resident()


def resident() -> int:
    """The process's resident set in bytes; -1 where the system does not tell."""
    global _statm
    try:
        if _statm is None:
            _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(_statm, 64, 0).split()[1]) * _PAGE
    except OSError:
        _statm = None
        return -1


# -- memory ran out ---------------------------------------------------------------------------------------------------


def _out_of_memory(device: int, asked: int, allocated: int, free: int) -> None:
    """torch's allocator has found no room; it raises after this."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    segments = torch.cuda.memory_snapshot()
    dump()
    blocks = [one["size"] for part in segments for one in part["blocks"] if one["state"] == "inactive"]
    _say(
        {
            "say": "oom",
            "device": device,
            "asked": asked,
            "free": free,
            "allocated": stats["allocated_bytes"]["all"]["current"],
            "reserved": stats["reserved_bytes"]["all"]["current"],
            "largest_free_block": max(blocks, default=0),
        }
    )


def tell_error(error: BaseException, optimizers: Iterable[Any], step: int, phase: int) -> None:
    """Write down what ended the program: its class and text, the user's line, and for memory who held it."""
    chain = messages.chain_of(error)
    cause, link = messages.cause_in(chain)
    is_memory = cause is not None and cause.whose == "memory"
    frames = [frame for frame, _ in _frames(error)]
    told = next(((frame, line) for frame, line in reversed(list(_frames(error)))), None)
    where = None if told is None else {"file": _lines.path(told[0].f_code), "line": told[1]}
    _say(
        {
            "say": "error",
            "class": type(error).__name__,
            "text": link.message[:_TEXT],
            "cause": cause.id if cause is not None else None,
            "memory": is_memory,
            "where": where,
            "step": step,
            "phase": phase,
        }
    )
    if is_memory:
        _say({"say": "held", **_sums(optimizers)})
        for one in _holders(frames):
            _say({"say": "holder", **one})


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The user's frames of an exception's traceback, outermost first, with the line in each."""
    trace = error.__traceback__
    while trace is not None:
        if _lines.is_users(_lines.path(trace.tb_frame.f_code)):
            yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _sums(optimizers: Iterable[Any]) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer states, and of other tensors that Python knows; no byte twice."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    parameters = [one for one in tensors if isinstance(one, torch.nn.Parameter)]
    gradients = [one.grad for one in parameters if one.grad is not None]
    states = [value for each in optimizers for state in each.state.values() for value in _tensors(state, _DEPTH)]
    seen: set[int] = set()
    sums = {}
    named = {"parameters": parameters, "gradients": gradients, "optimizer": states, "others": tensors}
    for name, members in named.items():
        sums[name] = sum(_once(one, seen) for one in members)
    return sums


def _once(tensor: Any, seen: set[int]) -> int:
    """The bytes of a tensor's storage, 0 for one that was seen."""
    try:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse, fake and wrapped tensors have none
        return 0
    if key in seen:
        return 0
    seen.add(key)
    return int(size)


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    """The tensors in a value: itself, or those of its list, dictionary or module, as deep as `depth`."""
    if issubclass(type(value), torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set, dict)):
        members = value.values() if isinstance(value, dict) else value
        for one in list(members)[:_MOST_MEMBERS]:
            yield from _tensors(one, depth - 1)


def _holders(frames: list[FrameType]) -> list[dict[str, Any]]:
    """The user's variables that hold most, each by the bytes that no larger one holds already."""
    rows: list[tuple[dict[str, Any], list[Any]]] = []
    for frame in reversed(frames):
        for name, value in list(frame.f_locals.items()):
            members = list(_tensors(value, _DEPTH))
            if members:
                where = {"file": _lines.path(frame.f_code), "line": frame.f_lineno, "function": frame.f_code.co_name}
                rows.append(({"name": name, "kind": type(value).__name__, "tensors": len(members)} | where, members))
    seen: set[int] = set()
    told: list[dict[str, Any]] = []
    for row, members in sorted(rows, key=lambda one: -sum(_once(member, set()) for member in one[1])):
        size = sum(_once(member, seen) for member in members)
        if size:
            told.append(row | {"bytes": size})
    return sorted(told, key=lambda row: -int(row["bytes"]))[:_MOST_HOLDERS]
