"""Record the program's memory in its own process: peaks, the holders after an out-of-memory error, and traced steps."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch

import gpucheck
from gpucheck import messages
from gpucheck.machine import torch_private
from gpucheck.program.run import counters
from gpucheck.work.storages import Key, Memory

# Hides gpucheck's own calls from the program's overrides of torch functions.
unseen = torch_private.need("torch._C.DisableTorchFunction")
_modes = torch_private.find("torch._C._len_torch_function_stack", lambda: 1)
unseen_by_modes = torch_private.find("torch._C._DisableTorchDispatch", contextlib.nullcontext)
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def device_of(tensor: Any) -> str | None:
    """Return the type of accelerator that holds the tensor; None for the host, and for a subclass without a device."""
    if type(tensor) in _PLAIN and not _modes():  # reading a property calls no override of the program
        if tensor.is_cpu:  # the most frequent case, and the fastest check
            return None
        kind = tensor.device.type
    else:
        with unseen():
            kind = getattr(getattr(tensor, "device", None), "type", None)
    return None if kind in ("cpu", "meta", None) else kind


def is_used() -> bool:
    """Return whether this process uses an accelerator, so that a call can wait for it."""
    return bool(
        torch.cuda.is_initialized()
        or torch.xpu.is_initialized()
        or (torch.backends.mps.is_available() and torch.mps.current_allocated_memory())
    )


_OURS = os.path.join(os.path.dirname(os.path.abspath(gpucheck.__file__)), "")


def is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_OURS)


# Folders of installed packages. Debian's is `dist-packages`.
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


class Lines:
    """The owners of code. `distance(file)` is 0 for the user's code and the program's own package, 1 for an installed
    package, and 2 for torch, Python, gpucheck and generated code. Files have the names that code objects give them."""

    def __init__(self, folder: str, main_file: str | None) -> None:
        self.folder = folder
        places = sysconfig.get_paths()
        torch_folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
        torchgen = os.path.join(os.path.dirname(torch_folder), "torchgen")
        known = dict.fromkeys((places["stdlib"], places["platstdlib"], _OURS, torch_folder, torchgen), 2)
        known |= dict.fromkeys((places["purelib"], places["platlib"]), 1)
        self._distances = {os.path.join(os.path.realpath(place), ""): distance for place, distance in known.items()}
        package = None if main_file is None else os.path.realpath(os.path.dirname(os.path.join(folder, main_file)))
        while package is not None and os.path.exists(os.path.join(package, "__init__.py")):
            self._distances[os.path.join(package, "")] = 0
            package = os.path.dirname(package)
        self.distance = functools.cache(self._distance)

    def caller(self, frame: FrameType | None, most: int = 0) -> FrameType | None:
        """Return the innermost frame, from `frame` outwards, at a `distance` of at most `most`, or None."""
        while frame is not None and self.distance(frame.f_code.co_filename) > most:
            frame = frame.f_back
        return frame

    def path(self, file: str) -> str:
        """Return the absolute path of a code object's file. A name such as `<stdin>` is returned unchanged."""
        return file if file.startswith("<") else os.path.normpath(os.path.join(self.folder, file))

    def _distance(self, file: str) -> int:
        if file.startswith("<"):
            return 0 if file == "<stdin>" else 2
        # A linked file belongs to the folder with the link, because some installers link every file.
        folder, name = os.path.split(self.path(file))
        real = os.path.join(os.path.realpath(folder), name)
        within = [(len(place), rank) for place, rank in self._distances.items() if real.startswith(place)]
        within += [(match.end(), 1) for match in _INSTALLED.finditer(real)]
        return max(within, default=(0, 0))[1]  # the innermost folder decides


_WIDTH = len(counters.DEVICE)
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# gpucheck searches for new devices once in this many readings: a search takes about 10 µs for each device.
_LOOK_AGAIN = 256
# The most holders, levels of nested containers, and members of a container.
_MOST_HOLDERS, _DEPTH, _MOST_MEMBERS = 12, 3, 10_000
_TEXT = 2000

_say: Callable[[dict[str, Any]], bool]
_lines: Lines
_devices: list[int] = []
_readings = 0


def observe(say: Callable[[dict[str, Any]], bool], lines: Lines) -> None:
    global _say, _lines
    _say, _lines = say, lines


def read(cells: memoryview, phase: int) -> None:
    """Record each device's memory. A new peak gets the current step and this phase."""
    global _readings
    stats_of = torch_private.find("torch._C._cuda_memoryStats")
    if stats_of is None or not torch.cuda.is_initialized():
        return
    if _readings % _LOOK_AGAIN == 0:
        _find_devices(stats_of)
    _readings += 1
    for index in _devices:
        stats = stats_of(index)
        at = counters.DEVICES_AT + index * _WIDTH
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        if allocated["peak"] > cells[at + 3]:
            cells[at + 5], cells[at + 6] = cells[counters.STEPS], phase
            cells[at + 8] = reserved["current"]
        row = (1, allocated["current"], reserved["current"], max(allocated["peak"], cells[at + 3]))
        for place, value in enumerate((*row, max(reserved["peak"], cells[at + 4]))):
            cells[at + place] = value
        cells[at + 7] = stats["num_alloc_retries"]


def _find_devices(stats_of: Callable[[int], dict[str, Any]]) -> None:
    for index in range(min(torch.cuda.device_count(), counters.MOST_DEVICES)):
        if index not in _devices and stats_of(index)["reserved_bytes"]["all"]["peak"]:
            if not _devices:
                attach = "torch._C._cuda_attach_out_of_memory_observer"
                torch_private.find(attach, lambda observer: None)(_out_of_memory)
            _devices.append(index)
            properties = torch.cuda.get_device_properties(index)
            uuid = getattr(properties, "uuid", None)
            name = None if uuid is None else f"GPU-{uuid}"
            total = properties.total_memory
            _say({"say": "device", "index": index, "name": properties.name, "uuid": name, "total": total})


def current_memory(cells: memoryview) -> tuple[int, int, int]:
    """Return the allocated and reserved bytes of all devices, and the resident set in bytes. Unknown values are -1."""
    rows = [counters.DEVICES_AT + index * _WIDTH for index in _devices]
    allocated, reserved = (sum(cells[at + place] for at in rows) if rows else -1 for place in (1, 2))
    return allocated, reserved, resident()


def resident() -> int:
    """Return the process's resident set in bytes, or -1 if the system does not report it."""
    try:  # no file stays open: a program that closes all descriptors would reuse the number
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * _PAGE
    except OSError:
        return -1


def _out_of_memory(device: int, asked: int, allocated: int, free: int) -> None:
    """Record a failed allocation. torch's allocator calls this before it raises the error."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    row = {name: stats[f"{name}_bytes"]["all"]["current"] for name in ("allocated", "reserved")}
    _say({"say": "oom", "device": device, "asked": asked, **row})


def tell_error(error: BaseException, optimizers: Iterable[Any], step: int, phase: int) -> None:
    """Record the error that ended the program, and the holders of memory if memory ran out."""
    cause, link = messages.cause_in(messages.chain_of(error))
    is_host = cause is not None and cause.id in ("oom.cpu", "oom.host")  # pinned memory fills no device
    # Metal shares the host's memory, so tensors do not explain what fills the memory.
    is_memory = cause is not None and cause.whose == "memory" and (is_host or not torch.backends.mps.is_available())
    trace = traceback.walk_tb(error.__traceback__)  # outermost first
    frames = [(frame, line) for frame, line in trace if _lines.distance(frame.f_code.co_filename) == 0]
    file, line = (_lines.path(frames[-1][0].f_code.co_filename), frames[-1][1]) if frames else (None, None)
    row = {"kind": type(error).__name__, "text": link.message[:_TEXT], "cause": cause.id if cause else None}
    _say({"say": "error", **row, "file": file, "line": line, "step": step, "phase": phase, "memory": is_memory})
    if is_memory:
        counts = lambda tensor: (device_of(tensor) is None) == is_host  # noqa: E731
        _say({"say": "held", **sums(optimizers, counts)})
        for holder in _holders([frame for frame, _ in frames], counts):
            _say({"say": "holder", **holder})


def sums(optimizers: Iterable[Any], counts: Callable[[Any], bool]) -> dict[str, int]:
    """Return the bytes of the tensors that `counts` accepts. A storage counts once, in its first category."""
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
    parameters = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    states = [value for each in optimizers for state in each.state.values() for value in _tensors(state, _DEPTH)]
    counted: set[int] = set()
    named = {"parameters": parameters, "gradients": gradients, "optimizer": states, "others": tensors}
    return {name: sum(_once(tensor, counted) for tensor in each if counts(tensor)) for name, each in named.items()}


# The methods or attributes of the plain tensors inside a sparse or jagged tensor.
_PARTS = {
    torch.sparse_coo: ("_values", "_indices"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("values", "crow_indices", "col_indices")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("values", "ccol_indices", "row_indices")),
    torch.jagged: ("_values", "_offsets"),
}


def parts(tensor: Any) -> list[Any]:
    """Return the plain tensors that hold a tensor's elements and indices, elements first."""
    methods = _PARTS.get(tensor.layout)
    with unseen_by_modes():
        holders = [tensor] if methods is None else [getattr(tensor, name, None) for name in methods]
        return [part() if callable(part) else part for part in holders if part is not None]


def size(tensor: Any) -> int:
    """Return the bytes of a tensor's elements and sparse indices, or 0 if its layout does not report them."""
    try:
        return sum(int(part.nbytes) for part in parts(tensor))
    except (RuntimeError, NotImplementedError):  # an opaque layout such as MKL-DNN's
        return 0


def _once(tensor: Any, counted: set[int]) -> int:
    """Return the bytes of a tensor's storages that are not in `counted`, and add the storages to `counted`."""
    try:
        storages = [part.untyped_storage() for part in parts(tensor)]
        sizes = {storage._cdata: int(storage.nbytes()) for storage in storages if storage._cdata not in counted}
    except (RuntimeError, NotImplementedError):  # fake and wrapped tensors have no storage
        return 0
    counted.update(sizes)
    return sum(sizes.values())


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if issubclass(type(value), torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set, dict)):
        for member in list(value.values() if isinstance(value, dict) else value)[:_MOST_MEMBERS]:
            yield from _tensors(member, depth - 1)


def _holders(frames: list[FrameType], counts: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """Return the user's variables that hold the most bytes. Each byte counts for the larger holder only."""
    rows: list[tuple[dict[str, Any], list[Any]]] = []
    for frame in reversed(frames):
        for name, value in list(frame.f_locals.items()):
            if members := [held for held in _tensors(value, _DEPTH) if counts(held)]:
                row = {"name": name, "kind": type(value).__name__, "tensors": len(members)}
                row |= {"file": _lines.path(frame.f_code.co_filename), "line": frame.f_lineno}
                rows.append((row, members))
    rows.sort(key=lambda held: -sum(_once(member, set()) for member in held[1]))
    counted: set[int] = set()
    holders = [row | {"bytes": sum(_once(member, counted) for member in members)} for row, members in rows]
    return [row for row in sorted(holders, key=lambda row: -int(row["bytes"])) if row["bytes"]][:_MOST_HOLDERS]


SKIPPED = 2  # these first steps fill caches and create optimizer states, and are not traced
_MOST_LINES = 20
# For each line, gpucheck searches the containers of at most this many remaining tensors.
_ASKED = 3

_SourceLine = tuple[str, int, str]  # file, line and module


class Tracer(torch_private.find("torch.utils._python_dispatch.TorchDispatchMode", object)):  # type: ignore[misc]
    """A dispatch mode that counts storages by the user's line, the module and the phase that created them."""

    def __init__(
        self, lines: Lines, phase: Callable[[], int], forward: Callable[[], None] = lambda: None, most: int = 0
    ) -> None:
        """Trace `most` steps. `forward` is called before each module runs."""
        super().__init__()
        self.lines, self.step, self.forward, self.most = lines, 0, forward, most
        self.memory = Memory(block_bytes=1, where=self._place, moment=lambda: (counters.PHASES[phase()], self.step))
        self.began_ns = self.spent_ns = 0
        self.thread = 0  # the traced thread; its backward passes may run in other threads
        self.modules: list[str] = []
        self.hooks: list[Any] = []
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (list, tuple)) else [result]
        returns = func._schema.returns if len(func._schema.returns) == len(results) else [None] * len(results)
        with contextlib.suppress(RuntimeError, NotImplementedError):  # tensors without storage are not counted
            for made, returned in zip(results, returns, strict=True):
                # A view and an in-place result have a storage that existed before.
                if isinstance(made, torch.Tensor) and (returned is None or returned.alias_info is None):
                    self.memory.put(made.untyped_storage(), is_held=True)
        return result

    def _place(self) -> _SourceLine:
        # A GPU's backward pass runs in a thread of autograd's: the place is the user's line that waits for the pass.
        # A variable with the frames would be a reference cycle, and would keep tensors alive.
        caller = self.lines.caller(sys._getframe()) or self.lines.caller(sys._current_frames().get(self.thread))
        module = self.modules[-1] if self.modules else ""
        if caller is None:
            return "", 0, module
        return self.lines.path(caller.f_code.co_filename), caller.f_lineno, module

    def stepped(self, done: int) -> bool:
        """Start the tracing or count a traced step, after `done` steps. Return whether the last step is traced."""
        if done == SKIPPED:
            hooks = torch.nn.modules.module
            self.hooks.append(hooks.register_module_forward_pre_hook(self._enters))
            self.hooks.append(hooks.register_module_forward_hook(self._leaves, always_call=True))
            self.began_ns, self.thread = time.perf_counter_ns(), threading.get_ident()
            self.__enter__()
        self.step += done > SKIPPED
        return done == SKIPPED + self.most

    def _enters(self, module: Any, inputs: Any) -> None:
        self.forward()
        if not self.modules:
            for name, part in module.named_modules(prefix=type(module).__name__):
                self.names[part] = name
        self.modules.append(self.names.get(module, type(module).__name__))

    def _leaves(self, module: Any, inputs: Any, output: Any) -> None:
        if self.modules:
            self.modules.pop()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        for hook in self.hooks:
            hook.remove()
        self.spent_ns = time.perf_counter_ns() - self.began_ns

    def tell(self, say: Callable[[dict[str, Any]], bool], last_step: int) -> None:
        """Record the lines that created the most bytes, and the bytes that remain from each step before the last."""
        top, rows = self.memory.top(), self.memory.storages
        rows.sweep()
        live = {key: row.held for key, row in rows.rows.items() if row.held is not None}
        counted = max(self.step - 1, 1)
        kept: dict[Key[_SourceLine], list[int]] = {}
        for key, (_, owner, step) in live.items():
            if step < counted:
                kept.setdefault(owner, []).append(key)
        # Storages that remain from every step are growth. Storages of the first step only are a cache.
        kept = {owner: keys for owner, keys in kept.items() if len({live[key][2] for key in keys}) >= counted}
        times = {"last_step": last_step, "step_ns": self.spent_ns // max(self.step, 1)}
        say({"say": "trace", "peak": top.allocated_bytes, "steps": self.step, **times})
        at_peak = dict(top.held)
        sizes = {owner: sum(live[key][0] for key in keys) for owner, keys in kept.items()}
        owners = sorted({**at_peak, **sizes}, key=lambda owner: -max(at_peak.get(owner, 0), sizes.get(owner, 0)))
        holders = _containers_of({key: owner for owner, keys in kept.items() for key in keys})
        for owner in owners[:_MOST_LINES]:
            place, phase = owner
            file, line, module = place or ("", 0, "")
            row = {"say": "traced", "file": file, "line": line, "module": module or None, "phase": phase}
            kept_bytes = sizes.get(owner, 0) / counted
            row |= {"peak_bytes": at_peak.get(owner, 0), "kept_bytes_per_step": kept_bytes}
            say({**row, "held_by": holders.get(owner)})


def _containers_of(kept: dict[int, Key[_SourceLine]]) -> dict[Key[_SourceLine], str]:
    """Return the containers that hold tensors of these storages, by the line that created the tensors."""
    names: dict[Key[_SourceLine], str] = {}
    asked: Counter[Key[_SourceLine]] = Counter()
    for tensor in gc.get_objects() if kept else ():
        if not issubclass(type(tensor), torch.Tensor):
            continue
        owner = None
        with contextlib.suppress(RuntimeError, NotImplementedError):  # the tensor has no storage
            owner = kept.get(tensor.untyped_storage()._cdata)
        if owner is None or owner in names or asked[owner] >= _ASKED:
            continue
        asked[owner] += 1
        for container in gc.get_referrers(tensor):
            if isinstance(container, (list, dict, set)) and (name := _name_of(container)) is not None:
                names[owner] = f"{type(container).__name__} {name} of {len(container)}"
    return names


def _name_of(container: Any) -> str | None:
    """Return the program's name for a container: a variable of the main module or of a running function."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    places = [frame.f_locals for frame in frames if "gpucheck" not in str(frame.f_globals.get("__name__", ""))]
    places.append(getattr(sys.modules.get("__main__"), "__dict__", {}))
    for names in places:
        for name, value in list(names.items()) if names is not container else ():
            if value is container:
                return name
            inner = getattr(value, "__dict__", None)
            for attribute, member in list(inner.items()) if isinstance(inner, dict) else ():
                if member is container:
                    return f"{name}.{attribute}"
    return None
