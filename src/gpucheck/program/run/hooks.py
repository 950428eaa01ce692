"""Count the copies and waits of a program by line, and the times of its steps, in the program's own process.

A few functions of torch are replaced by ones that measure them. Nothing is printed, written, started or kept open: all
that is counted goes to the shared counters. A failure of gpucheck is noted there, and ends the counting but not the
program.
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
_DONE, _WAITS_NS, _COPIES_NS = counters.STEPS, counters.WAITS_NS, counters.COPIES_NS
_, _BYTES, _TIME, _PINNED, _PAGEABLE, _UNPINNED_ASYNC, _AGAIN, _STEPS, _LAST = range(_WIDTH)
# The first copies of a line are examined closely, up to this number, and later one copy in this many, because a line
# usually goes on as it began. If something was seen in them, all copies of the line are examined.
_CLOSELY = 32
# Other optimizers may step this often before the optimizer whose steps are counted is considered gone.
_MOST_OTHERS = 8

# The shared counters. A process that the program forks counts into its own memory, which nobody reads.
memory: counters.Shared = bytearray(counters.SIZE)
cells = counters.cells_of(memory)
lines: memory_peaks.Lines
_main_thread = threading.main_thread().ident
# Threads in which a counted call is running. Waits inside it do not count, because printing a tensor waits many times.
_silent: set[int] = set()

_sites: dict[tuple[str, int, int], int] = {}
# The tensor that was moved last at each site, with its version. A second copy of it is unnecessary.
_last_moved: dict[int, tuple[weakref.ref[Any], int]] = {}
_followed: set[int] = set()
_was_pinned: dict[int, bool | None] = {}


# -- sites ------------------------------------------------------------------------------------------------------------


def _site(kind: str, frame: FrameType, *, fills: bool = False) -> int:
    """Return the number of the site: the user's line at which `frame` was called, and the kind of call. Return -1 if
    there is no room.

    A call that `fills` an existing tensor has no result that could be discarded.
    """
    # The user's own code makes most calls, at lines that have a site already.
    number = _sites.get((kind, id(frame.f_code), frame.f_lasti))
    if number is not None:
        return number
    at = lines.caller(frame) or frame
    key = (kind, id(at.f_code), at.f_lasti)
    if key in _sites:
        return _sites[key]
    number = cells[counters.SITES]
    # The next instruction shows whether the statement discards the call's result. For an inlined call, `f_lasti` is at
    # the caches, and the next instruction follows them.
    following = (instruction for instruction in dis.get_instructions(at.f_code) if instruction.offset > at.f_lasti)
    discarded = at is frame and not fills and next((each.opname == "POP_TOP" for each in following), False)
    line = {"say": "site", "site": number, "kind": kind, "file": lines.path(at.f_code.co_filename), "line": at.f_lineno}
    if number >= counters.MOST_SITES or not counters.write(memory, cells, line | {"discarded": discarded}):
        cells[counters.SITES_LOST] += 1
        _sites[key] = -1
        return -1
    cells[counters.SITES] += 1
    # A loop with neither a backward pass nor an optimizer uses a device too, so its peak is read here.
    memory_peaks.read(cells, cells[counters.PHASE])
    _sites[key] = number
    _kept_codes.append(at.f_code)
    return number


_HAS_VERSIONS = torch_private.has("torch.Tensor._version")
# The keys of sites contain ids, so the objects must live as long as the keys.
_kept_codes: list[Any] = []


def _count(site: int, size: int, spent_ns: int) -> int:
    """Count one call at a site. Return the index of its row, or -1."""
    if site < 0:
        return -1
    at = SITES_AT + site * _WIDTH
    cells[at] += 1
    if size:
        cells[at + _BYTES] += size
    cells[at + _TIME] += spent_ns
    step = cells[_DONE] + 1
    if cells[at + _LAST] != step:
        cells[at + _LAST] = step
        cells[at + _STEPS] += 1
    return at


# -- waits ------------------------------------------------------------------------------------------------------------


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
        cells[_WAITS_NS] += spent


def _reader(kind: str, original: Callable[..., Any], *, sized: bool = True) -> Callable[..., Any]:
    """Return a function that reads a tensor's value and is measured if the value is on a device.

    All waits within the call count as one, because printing a tensor reads it many times. `sized` counts its bytes too.
    """

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
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        _waited(kind, began, self if sized else None, sys._getframe(1))
        return result

    return read


_scalar = functools.partial(_reader, sized=False)


def _warning(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a measured reader for a method that warns once. The warning names the program's line, and not a line of
    gpucheck."""
    quiet = _scalar(kind, original)
    warned = False

    @functools.wraps(original)
    def read(self: Any) -> Any:
        nonlocal warned
        try:
            if warned or not memory_peaks.is_plain(self) or not self.requires_grad:
                return quiet(self)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = original(self)
            frame = sys._getframe(1)
            for warning in caught:
                warned = True
                registry = frame.f_globals.setdefault("__warningregistry__", {})
                name = frame.f_globals.get("__name__", "<unknown>")
                warnings.warn_explicit(
                    warning.message, warning.category, frame.f_code.co_filename, frame.f_lineno, name, registry
                )
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        return result

    return read


def measured(
    note: Callable[[Any, tuple[Any, ...], dict[str, Any], int, FrameType], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the function, which now also passes each result to `note`, with the arguments, the start of the call and
    the caller."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            began = now()
            result = original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        note(result, args, kwargs, began, sys._getframe(1))
        return result

    return call


def _called(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Count a wait for a device, a stream or an event, which takes no tensor."""

    def note(result: Any, args: Any, kwargs: Any, began: int, frame: FrameType) -> None:
        if memory_peaks.is_used():
            _waited(kind, began, None, frame)

    return measured(note, original)


# -- copies -----------------------------------------------------------------------------------------------------------


def _moved_to(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], began: int, frame: FrameType) -> None:
    """Count a move, unless the tensor was returned as it is."""
    if result is not args[0]:
        _copied(args[0], result, args[1:], kwargs, began, frame)


def _filled(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], began: int, frame: FrameType) -> None:
    """Count `copy_`, which copies its second argument into the first."""
    moved = args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(moved, torch.Tensor):
        _copied(moved, result, args[2:], kwargs, began, frame, fills=True)


def _is_asynchronous(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return `non_blocking`: the first positional argument that is a bool, else the keyword."""
    return bool(next((value for value in args if isinstance(value, bool)), kwargs.get("non_blocking", False)))


def _copied(
    moved: Any, result: Any, rest: Any, kwargs: dict[str, Any], began: int, frame: FrameType, *, fills: bool = False
) -> None:
    source, target = device_of(moved), device_of(result)
    spent, thread = now() - began, threading.get_ident()
    if (source is None and target is None) or thread in _silent:
        return
    try:
        with memory_peaks.unseen():
            # A change of dtype or layout on one device is no copy.
            if source == target and moved.device == result.device:
                return
            kind = "to_device" if source is None else "to_host" if target is None else "between"
            site = _site(kind, frame, fills=fills)
            at = _count(site, memory_peaks.size(moved), spent)
            if thread == _main_thread:
                # A copy to the host returns after the earlier work of the device, so its time counts as waiting.
                cells[_WAITS_NS if target is None else _COPIES_NS] += spent
            if at >= 0:
                host = moved if source is None else result if target is None else None
                _look_at(moved, host, site, at, source is None and _is_asynchronous(rest, kwargs))
    except Exception as error:  # noqa: BLE001 (a tensor of the program's may be of any class)
        _failed(error)


def _look_at(moved: Any, host: Any, site: int, at: int, is_asynchronous: bool) -> None:
    """Count the kind of memory on the host's side, and unchanged tensors that are copied again."""
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
    """Count a tensor that is copied again and has not changed."""
    if not _HAS_VERSIONS:
        return
    try:
        version = moved._version
    except RuntimeError:  # tensors created in inference mode have no version
        return
    last = _last_moved.get(site)
    if last is not None and last[0]() is moved and last[1] == version:
        cells[at + _AGAIN] += 1
        _followed.add(site)
    _last_moved[site] = weakref.ref(moved), version


def is_pinned(tensor: Any) -> bool | None:
    """Return whether the host's side of a copy is page-locked, so that the device can read it while the host goes on.
    Return None for a class with its own `__torch_dispatch__`, which may refuse the call. The program's modes do not see
    the call."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    with memory_peaks.unseen_by_modes():
        return all(part.is_pinned() for part in memory_peaks.parts(tensor))


# -- data, phases and steps -------------------------------------------------------------------------------------------


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loader's `__next__`, measured. All of its time counts as waiting for data."""

    @functools.wraps(original)
    def following(self: Any) -> Any:
        began = now()
        copies, waits = cells[counters.COPIES_NS], cells[counters.WAITS_NS]
        frame = sys._getframe(1)
        site = _site("data", frame)
        forward_begins()
        try:
            batch = original(self)
            _count(site, 0, 0)
            return batch
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            spent = now() - began
            if site >= 0:  # a call without a batch counts too, because the program waits for the end of the data
                cells[SITES_AT + site * _WIDTH + _TIME] += spent
            if threading.get_ident() == _main_thread:
                cells[counters.DATA_NS] += spent
                # Copies inside the call are part of the wait for data, so that no time counts twice.
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
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            _enter(0)
            raise
        finally:
            if cells[counters.PHASE] == 1:
                _enter(2)
            cells[counters.BACKWARD_NS] += now() - began

    return backward


def _enter(phase: int) -> None:
    """Begin a phase. The peaks so far belong to the phase before."""
    memory_peaks.read(cells, cells[counters.PHASE])
    cells[counters.PHASE] = phase


def forward_begins(*_: Any) -> None:
    """Begin the forward phase when data is fetched or a module runs. A backward pass without a step only accumulates
    gradients."""
    if cells[counters.PHASE] == 2:
        _enter(0)


class _Steps:
    """The end of each step: an optimizer's step, or a call of `gpucheck.api.step`."""

    def __init__(self) -> None:
        self.began = now()
        self.cpu = time.process_time_ns()
        self.before = [0] * 5
        self.leader: weakref.ref[Any] | None = None
        self.others = 0
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.inside = 0
        # The listener gets each step's row, as it is in the shared counters.
        self.listener: Callable[[tuple[int, ...]], None] | None = None

    def stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle the beginning of an optimizer's step."""
        self.optimizers.add(optimizer)
        self.inside = now()
        _enter(2)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle the end of an optimizer's step. Only the steps of the first optimizer count if there are several."""
        if self.inside:
            cells[counters.OPTIMIZER_NS] += now() - self.inside
        if cells[counters.EXPLICIT_STEPS]:
            return
        leader = self.leader() if self.leader is not None else None
        if leader is not optimizer:
            self.others += 1
            if leader is not None and self.others <= _MOST_OTHERS:
                return
            self.leader = weakref.ref(optimizer)
        self.others = 0
        self.end()

    def end(self) -> None:
        """Write the step's row."""
        _enter(0)
        ended = now()
        totals = [cells[place] for place in _TOTALS]
        spent = [total - before for total, before in zip(totals, self.before, strict=True)]
        number = cells[counters.STEPS]
        memory_now = memory_peaks.now(cells)
        cpu = time.process_time_ns()
        row = (ended, ended - self.began, *spent, *memory_now, number, cpu - self.cpu)
        for place, value in enumerate(row, counters.step_at(number)):
            cells[place] = value
        cells[counters.STEPS] = number + 1
        if self.listener is not None:
            self.listener(row)
        if _tracing is not None:
            if _tracing.stepped(number + 1):
                _stop_trace()
            ended, totals, cpu = now(), [cells[place] for place in _TOTALS], time.process_time_ns()
        self.began, self.before, self.cpu = ended, totals, cpu


# The tracer, until it has written its counts.
_tracing: Any = None


def _stop_trace() -> None:
    global _tracing
    tracer, _tracing = _tracing, None
    tracer.stop()
    tracer.tell(lambda line: counters.write(memory, cells, line), cells[counters.STEPS])


_TOTALS = (counters.DATA_NS, counters.COPIES_NS, counters.WAITS_NS, counters.BACKWARD_NS, counters.OPTIMIZER_NS)
_steps = _Steps()


def step() -> None:
    """End a step at the program's request. From the first call on, only these calls end steps."""
    is_new = not cells[counters.EXPLICIT_STEPS]
    cells[counters.EXPLICIT_STEPS] = 1
    if is_new and cells[counters.STEPS]:
        # The optimizers' steps so far do not count. Otherwise the first step would be only a part of one.
        _steps.began, _steps.before = now(), [cells[place] for place in _TOTALS]
    else:
        _steps.end()


# -- beginning and end ------------------------------------------------------------------------------------------------

device_of = memory_peaks.device_of

_SCALARS = {"item": "item", "__bool__": "bool", "is_nonzero": "bool"}
_WARNING = {"__float__": "float", "__int__": "int", "__complex__": "complex", "__index__": "index"}
# Only methods are replaced. torch looks up methods by name, but TorchScript and subclasses compare functions such as
# torch.nonzero with the originals.
_READERS = {name: name for name in ("nonzero", "equal", "masked_select", "tolist")}
_READERS |= {"__repr__": "print", "__format__": "print"}
_MOVERS = ("to", "cuda", "cpu", "xpu")
_LISTED = ("to", "cuda", "cpu", "copy_")
_SYNCHRONISE = ("cuda", "xpu", "mps", "accelerator", "mtia")
LAZY = "torch.nn.parameter.UninitializedTensorMixin._allowed_methods"
LOADER = "torch.utils.data.dataloader._BaseDataLoaderIter"
# Attributes that were replaced: the holder, the name, and the original, or None for an inherited one.
_replaced: list[tuple[Any, str, Any]] = []


def _replace(holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(holder, name, None)
    if original is not None:
        _replaced.append((holder, name, vars(holder).get(name)))
        setattr(holder, name, make(original))


def _listed(known: Any) -> Any:
    return [*known, *(getattr(torch.Tensor, name) for name in _LISTED)]


def install() -> None:
    """Replace torch's functions by measured ones."""
    from torch.optim import optimizer

    tensor = torch.Tensor
    for kinds, make in ((_SCALARS, _scalar), (_WARNING, _warning), (_READERS, _reader)):
        for name, kind in kinds.items():
            _replace(tensor, name, functools.partial(make, kind))
    for name in _MOVERS:
        _replace(tensor, name, functools.partial(measured, _moved_to))
    _replace(tensor, "copy_", functools.partial(measured, _filled))
    # A lazy parameter accepts only listed methods.
    for owner, name, _ in torch_private.replacing(LAZY, _listed):
        _replace(owner, name, _listed)
    for name in _SYNCHRONISE:
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
    """Restore the original functions."""
    while _hooks:
        _hooks.pop().remove()
    while _replaced:
        holder, name, original = _replaced.pop()
        if original is None:
            delattr(holder, name)
        else:
            setattr(holder, name, original)


def begin(shared: counters.Shared, folder: str, trace: int = 0, use: torch_private.Use = "run") -> None:
    """Measure this process from now on, and write to the shared counters."""
    global memory, cells, lines, _tracing
    memory, cells = shared, counters.cells_of(shared)
    cells[counters.TORCH_NS], cells[counters.TORCH_CPU_NS] = now(), time.process_time_ns()
    main = sys.modules.get("__main__")
    # While a program starts, its main module does not have the file's name yet.
    file = getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else None)
    lines = memory_peaks.Lines(folder, file)
    counters.write(memory, cells, {"say": "torch", "version": torch.__version__})
    lost = torch_private.lost(use) + (torch_private.lost("trace") if trace else ())
    for text in dict.fromkeys(lost):
        counters.write(memory, cells, {"say": "not_followed", "text": text})
    install()
    if trace:
        _tracing = memory_peaks.Tracer(lines, lambda: cells[counters.PHASE], forward_begins, trace)
    memory_peaks.observe(lambda line: counters.write(memory, cells, line), lines)
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_end)


def _forked() -> None:
    """Count nothing in a process that the program forked."""
    global memory, cells
    memory = bytearray(counters.SIZE)
    cells = counters.cells_of(memory)
    _steps.listener = None
    atexit.unregister(_end)


def _end() -> None:
    """Record the error that ended the program, and the holders of memory if it ran out."""
    if _tracing is not None and _tracing.began_ns:
        _stop_trace()  # the program ended while steps were traced
    memory_peaks.read(cells, cells[counters.PHASE])
    error = getattr(sys, "last_value", None)
    if error is not None:
        memory_peaks.tell_error(error, _steps.optimizers, cells[counters.STEPS], cells[counters.PHASE])
    cells[counters.END_NS] = now()
