"""Count the copies and waits of a program by line, and the times of its steps, in the program's own process.

Measured functions replace a few of torch's and count into shared counters. gpucheck's failures end only the counting.
"""

from __future__ import annotations

import atexit
import dis
import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gpucheck.machine import torch_private
from gpucheck.program.run import counters, memory_peaks
from gpucheck.program.run.counters import SITES_AT

now = time.perf_counter_ns
_WIDTH = len(counters.SITE)
_, _BYTES, _TIME, _PINNED, _PAGEABLE, _UNPINNED_ASYNC, _AGAIN, _STEPS, _LAST = range(_WIDTH)
# This many first copies of a line are examined, then one copy in this many, or all after an unchanged tensor.
_CLOSELY = 32
# After this many steps of other optimizers, the optimizer whose steps are counted is considered gone.
_MOST_OTHERS = 8

# The shared counters. A process that the program forks counts into its own memory, which nobody reads.
memory: counters.SharedMemory = bytearray(counters.SIZE)
cells = counters.cells_of(memory)
lines: memory_peaks.Lines
_main_thread = threading.main_thread().ident
# Threads that run a counted call. Waits inside the call do not count: printing a tensor waits many times.
_silent: set[int] = set()

_sites: dict[tuple[str, int, int], int] = {}
# The last moved tensor of each site, with its version. A second copy of the same version is unnecessary.
_last_moved: dict[int, tuple[weakref.ref[Any], int]] = {}
_followed: set[int] = set()
_was_pinned: dict[int, bool | None] = {}


def _site(kind: str, frame: FrameType, *, fills: bool = False) -> int:
    """Return the number of the site for the user's line and the kind of call, or -1 if the counters are full. A call
    that `fills` an existing tensor has no result to discard."""
    number = _sites.get((kind, id(frame.f_code), frame.f_lasti))
    if number is not None:  # most calls are at a line of the user that has a site
        return number
    at = lines.caller(frame) or frame
    key = (kind, id(at.f_code), at.f_lasti)
    if key in _sites:
        return _sites[key]
    number = cells[counters.SITES]
    # The next instruction, behind the caches of an inlined call, shows whether the statement discards the result.
    following = (instruction for instruction in dis.get_instructions(at.f_code) if instruction.offset > at.f_lasti)
    discarded = at is frame and not fills and next((each.opname == "POP_TOP" for each in following), False)
    line = {"say": "site", "site": number, "kind": kind, "file": lines.path(at.f_code.co_filename), "line": at.f_lineno}
    has_room = number < counters.MOST_SITES and counters.write(memory, cells, line | {"discarded": discarded})
    cells[counters.SITES if has_room else counters.SITES_LOST] += 1
    # The peak is read here too, for loops without a backward pass and an optimizer.
    memory_peaks.read(cells, cells[counters.PHASE])
    _sites[key] = number if has_room else -1
    _kept_codes.append(at.f_code)
    return _sites[key]


# The keys of sites contain ids, so the objects must live as long as the keys.
_kept_codes: list[Any] = []


def _count(site: int, size: int, spent_ns: int) -> int:
    """Count a call at a site. Return the index of the site's row, or -1 for the site -1."""
    if site < 0:
        return -1
    at = SITES_AT + site * _WIDTH
    cells[at] += 1
    if size:
        cells[at + _BYTES] += size
    cells[at + _TIME] += spent_ns
    step = cells[counters.STEPS] + 1
    if cells[at + _LAST] != step:
        cells[at + _LAST] = step
        cells[at + _STEPS] += 1
    return at


def _failed(error: Exception) -> None:
    """Stop measuring after a failure of gpucheck. The program goes on."""
    uninstall()
    memory[1] = 1
    text = repr(error).encode("ascii", "replace")[:1000]
    memory[counters.SIZE - len(text) : counters.SIZE] = text


def _waited(kind: str, began: int, tensor: Any, frame: FrameType) -> None:
    spent, thread = now() - began, threading.get_ident()
    if thread in _silent:
        return
    try:
        with memory_peaks.unseen():
            _count(_site(kind, frame), 0 if tensor is None else memory_peaks.size(tensor), spent)
    except Exception as error:  # noqa: BLE001 (a tensor of the program's may be of any class)
        _failed(error)
    if thread == _main_thread:
        cells[counters.WAITS_NS] += spent


def _reader(kind: str, original: Callable[..., Any], *, sized: bool) -> Callable[..., Any]:
    """Return the function, which now counts as one wait if it reads a tensor on a device."""

    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if device_of(self) is None or (thread := threading.get_ident()) in _silent:
                return original(self, *args, **kwargs)
            began = now()
            _silent.add(thread)
            try:
                result = original(self, *args, **kwargs)
            finally:
                _silent.discard(thread)
        except BaseException as error:
            _without_ours(error)
            raise
        _waited(kind, began, self if sized else None, sys._getframe(1))
        return result

    return read


def _without_ours(error: BaseException) -> None:
    """Remove gpucheck's frame, which is the outermost, from an exception."""
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None


def _at_their_line(shown: Any) -> Any:
    """Return the function that prints a warning, with the program's line instead of a line of gpucheck."""

    def show(message: Any, category: Any, filename: str, lineno: int, *args: Any) -> None:
        frame = sys._getframe(1)
        caller = lines.caller(frame) or lines.caller(frame, most=1)
        if memory_peaks.is_ours(filename) and caller is not None:
            filename, lineno = caller.f_code.co_filename, caller.f_lineno
        shown(message, category, filename, lineno, *args)

    return show


def measured(note: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which now passes the result, arguments, start time and caller of each call to `note`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            began = now()
            result = original(*args, **kwargs)
        except BaseException as error:
            _without_ours(error)
            raise
        note(result, args, kwargs, began, sys._getframe(1))
        return result

    return call


def _called(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which now counts as a wait for a device, a stream or an event."""

    def note(result: Any, args: Any, kwargs: Any, began: int, frame: FrameType) -> None:
        if memory_peaks.is_used():
            _waited(kind, began, None, frame)

    return measured(note, original)


def _moved_to(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], began: int, frame: FrameType) -> None:
    if result is not args[0]:
        _copied(args[0], result, args[1:], kwargs, began, frame)


def _filled(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], began: int, frame: FrameType) -> None:
    """Count `copy_`, which copies its second argument into the first."""
    moved = args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(moved, torch.Tensor):
        _copied(moved, result, args[2:], kwargs, began, frame, fills=True)


def _copied(
    moved: Any, result: Any, rest: Any, kwargs: dict[str, Any], began: int, frame: FrameType, *, fills: bool = False
) -> None:
    source, target = device_of(moved), device_of(result)
    spent, thread = now() - began, threading.get_ident()
    if (source is None and target is None) or thread in _silent:
        return
    try:
        with memory_peaks.unseen():
            if source == target and moved.device == result.device:  # a change of dtype or layout
                return
            kind = "to_device" if source is None else "to_host" if target is None else "between"
            site = _site(kind, frame, fills=fills)
            at = _count(site, memory_peaks.size(moved), spent)
            if thread == _main_thread:
                # A copy to the host first waits for the device's earlier work, so its time counts as a wait.
                cells[counters.WAITS_NS if target is None else counters.COPIES_NS] += spent
            if at >= 0:
                host = moved if source is None else result if target is None else None
                flags = (value for value in rest if isinstance(value, bool))
                is_asynchronous = source is None and bool(next(flags, kwargs.get("non_blocking", False)))
                _look_at(moved, host, site, at, is_asynchronous)
    except Exception as error:  # noqa: BLE001 (a tensor of the program's may be of any class)
        _failed(error)


def _look_at(moved: Any, host: Any, site: int, at: int, is_asynchronous: bool) -> None:
    """Count pinned and pageable memory on the host's side, and repeated copies of an unchanged tensor."""
    looks = cells[at] <= _CLOSELY or not cells[at] % _CLOSELY
    if host is not None:
        pinned = _was_pinned[site] = is_pinned(host) if looks else _was_pinned[site]
        if pinned is not None:
            cells[at + (_PINNED if pinned else _PAGEABLE)] += 1
        if is_asynchronous and pinned is False:
            cells[at + _UNPINNED_ASYNC] += 1
    if looks or site in _followed:
        _follow(moved, site, at)


def _follow(moved: Any, site: int, at: int) -> None:
    if not torch_private.has("torch.Tensor._version"):
        return
    try:
        version = moved._version
    except RuntimeError:  # tensors created in inference mode have no version
        return
    if (last := _last_moved.get(site)) is not None and last[0]() is moved and last[1] == version:
        cells[at + _AGAIN] += 1
        _followed.add(site)
    _last_moved[site] = weakref.ref(moved), version


def is_pinned(tensor: Any) -> bool | None:
    """Return whether a host tensor is pinned; None for a class that may refuse the call."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    with memory_peaks.unseen_by_modes():
        return all(part.is_pinned() for part in memory_peaks.parts(tensor))


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loader's `__next__`, whose whole time now counts as waiting for data."""

    @functools.wraps(original)
    def following(self: Any) -> Any:
        began = now()
        copies, waits = cells[counters.COPIES_NS], cells[counters.WAITS_NS]
        site = _site("data", sys._getframe(1))
        forward_begins()
        try:
            batch = original(self)
            _count(site, 0, 0)
            return batch
        except BaseException as error:
            _without_ours(error)
            raise
        finally:
            spent = now() - began
            if site >= 0:  # the program also waits for the end of the data
                cells[SITES_AT + site * _WIDTH + _TIME] += spent
            if threading.get_ident() == _main_thread:
                cells[counters.DATA_NS] += spent
                # The wait for data includes the copies inside the call. No time may count twice.
                cells[counters.COPIES_NS], cells[counters.WAITS_NS] = copies, waits

    return following


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        began = now()
        _enter(1)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            _without_ours(error)
            _enter(0)
            raise
        finally:
            if cells[counters.PHASE] == 1:
                _enter(2)
            cells[counters.BACKWARD_NS] += now() - began

    return backward


def _enter(phase: int) -> None:
    memory_peaks.read(cells, cells[counters.PHASE])  # the peaks so far belong to the previous phase
    cells[counters.PHASE] = phase


def forward_begins(*_: Any) -> None:
    """Begin the forward phase, when the program fetches data or runs a module after a backward pass."""
    if cells[counters.PHASE] == 2:
        _enter(0)


class _Steps:
    """Ends steps: at an optimizer's step, or at a call of `gpucheck.api.step`."""

    def __init__(self) -> None:
        self.began = now()
        self.cpu = time.process_time_ns()
        self.before = [0] * 5
        self.leader: Callable[[], Any] = lambda: None
        self.others = 0
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.inside = 0
        self.listener: Callable[[tuple[int, ...]], None] = lambda row: None  # it gets the counters' row of each step

    def stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.optimizers.add(optimizer)
        self.inside = now()
        _enter(2)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """End a step, if the optimizer is the first of the program's optimizers."""
        if self.inside:
            cells[counters.OPTIMIZER_NS] += now() - self.inside
        if cells[counters.EXPLICIT_STEPS]:
            return
        if (leader := self.leader()) is not optimizer:
            self.others += 1
            if leader is not None and self.others <= _MOST_OTHERS:
                return
            self.leader = weakref.ref(optimizer)
        self.others = 0
        self.end()

    def end(self) -> None:
        _enter(0)
        ended = now()
        totals = [cells[place] for place in _TOTALS]
        spent = [total - before for total, before in zip(totals, self.before, strict=True)]
        number = cells[counters.STEPS]
        memory_now = memory_peaks.current_memory(cells)
        cpu = time.process_time_ns()
        row = (ended, ended - self.began, *spent, *memory_now, number, cpu - self.cpu)
        for place, value in enumerate(row, counters.step_at(number)):
            cells[place] = value
        cells[counters.STEPS] = number + 1
        self.listener(row)
        if _tracing is not None:
            if _tracing.stepped(number + 1):
                _stop_trace()
            ended, totals, cpu = now(), [cells[place] for place in _TOTALS], time.process_time_ns()
        self.began, self.before, self.cpu = ended, totals, cpu


_tracing: Any = None  # the tracer, until it has written its counts


def _stop_trace() -> None:
    global _tracing
    tracer, _tracing = _tracing, None
    tracer.stop()
    tracer.tell(functools.partial(counters.write, memory, cells), cells[counters.STEPS])


_TOTALS = (counters.DATA_NS, counters.COPIES_NS, counters.WAITS_NS, counters.BACKWARD_NS, counters.OPTIMIZER_NS)
_steps = _Steps()


def step() -> None:
    """End a step at the program's request. After the first call, optimizers no longer end steps."""
    is_new = not cells[counters.EXPLICIT_STEPS]
    cells[counters.EXPLICIT_STEPS] = 1
    if is_new and cells[counters.STEPS]:
        # The time since the optimizer's last step is only a part of a step, and is left out.
        _steps.began, _steps.before = now(), [cells[place] for place in _TOTALS]
    else:
        _steps.end()


device_of = memory_peaks.device_of

_NUMBERS = ("bool", "float", "int", "complex", "index")
_SCALARS = {"item": "item", "is_nonzero": "bool", **{f"__{name}__": name for name in _NUMBERS}}
# Functions such as torch.nonzero are not replaced: TorchScript and subclasses compare them with the originals.
_READERS = {name: name for name in ("nonzero", "equal", "masked_select", "tolist")}
_READERS |= dict.fromkeys(("__repr__", "__format__"), "print")
LAZY = "torch.nn.parameter.UninitializedTensorMixin._allowed_methods"
LOADER = "torch.utils.data.dataloader._BaseDataLoaderIter"
# The replaced attributes: the holder, the name, and the original, which is None if the holder inherited it.
_replaced: list[tuple[Any, str, Any]] = []


def _replace(holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if (original := getattr(holder, name, None)) is not None:
        _replaced.append((holder, name, vars(holder).get(name)))
        setattr(holder, name, make(original))


def install() -> None:
    from torch.optim import optimizer

    tensor = torch.Tensor
    for name, kind in {**_SCALARS, **_READERS}.items():
        _replace(tensor, name, functools.partial(_reader, kind, sized=name in _READERS))
    for name in ("to", "cuda", "cpu", "xpu"):
        _replace(tensor, name, functools.partial(measured, _moved_to))
    _replace(tensor, "copy_", functools.partial(measured, _filled))

    def listed(known: Any) -> Any:
        return [*known, *(getattr(tensor, name) for name in ("to", "cuda", "cpu", "copy_"))]

    for owner, name, _ in torch_private.replacing(LAZY, listed):  # a lazy parameter accepts only listed methods
        _replace(owner, name, listed)
    for name in ("cuda", "xpu", "mps", "accelerator", "mtia"):
        for method in ("synchronize", "empty_cache"):
            _replace(getattr(torch, name, None), method, functools.partial(_called, method))
    for holder in (torch.cuda.Stream, torch.cuda.Event):
        _replace(holder, "synchronize", functools.partial(_called, "synchronize"))
    _replace(torch.autograd, "backward", _backward)
    _replace(torch_private.find(LOADER), "__next__", _next)
    _hooks.append(optimizer.register_optimizer_step_pre_hook(_steps.stepping))
    _hooks.append(optimizer.register_optimizer_step_post_hook(_steps.stepped))


_hooks: list[Any] = []


def uninstall() -> None:
    while _hooks:
        _hooks.pop().remove()
    while _replaced:
        holder, name, original = _replaced.pop()
        if original is None:
            delattr(holder, name)
        else:
            setattr(holder, name, original)


def begin(shared: counters.SharedMemory, folder: str, trace: int = 0, use: torch_private.Use = "run") -> None:
    global memory, cells, lines, _tracing
    memory, cells = shared, counters.cells_of(shared)
    cells[counters.TORCH_NS], cells[counters.TORCH_CPU_NS] = now(), time.process_time_ns()
    # While a program starts, its main module does not have the file's name yet.
    file = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else None)
    lines = memory_peaks.Lines(folder, file)
    counters.write(memory, cells, {"say": "torch", "version": torch.__version__})
    for text in dict.fromkeys(torch_private.lost(use) + (torch_private.lost("trace") if trace else ())):
        counters.write(memory, cells, {"say": "not_followed", "text": text})
    install()
    if trace:
        _tracing = memory_peaks.Tracer(lines, lambda: cells[counters.PHASE], forward_begins, trace)
    memory_peaks.observe(lambda line: counters.write(memory, cells, line), lines)
    warnings.showwarning = _at_their_line(warnings.showwarning)
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_end)


def _forked() -> None:
    global memory, cells
    memory = bytearray(counters.SIZE)
    cells = counters.cells_of(memory)
    _steps.listener = lambda row: None
    atexit.unregister(_end)


def _end() -> None:
    if _tracing is not None and _tracing.began_ns:
        _stop_trace()  # the program ended while steps were traced
    memory_peaks.read(cells, cells[counters.PHASE])
    if (error := getattr(sys, "last_value", None)) is not None:
        memory_peaks.tell_error(error, _steps.optimizers, cells[counters.STEPS], cells[counters.PHASE])
    cells[counters.END_NS] = now()
