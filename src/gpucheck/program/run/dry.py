"""Simulate a device in the program's own process, and record the errors that a real device would raise."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import dis
import functools
import importlib
import io
import mmap
import os
import re
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from multiprocessing import spawn
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

from gpucheck.machine import torch_private
from gpucheck.messages import message_of
from gpucheck.program import engine, kernels, placement, rules, simulated_cuda, simulated_devices
from gpucheck.program.options import SimulatedGpu
from gpucheck.program.run import counters, hooks, memory_peaks
from gpucheck.program.simulated_devices import COUNTED, CPU, Place, Placements, device_of, here, rank, text_of
from gpucheck.report.codec import to_json
from gpucheck.work.storages import Memory, Moment
from gpucheck.work.target import import_compiler

_MOST_LINES = 12  # lines that hold memory
_MOST_ROWS, _MOST_TEXT = 50, 500
# The first line of an error from a DataLoader's worker, and Python's text for a frame.
_OF_A_WORKER = "Original Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ', re.MULTILINE)

_sim: engine.Simulation
_simulated = contextlib.ExitStack()
_steps = _began_ns = 0
_trains = False
# These modules keep references to parts of torch, so they are loaded before the simulation replaces the parts.
_EARLY = (
    *("torch.distributions", "torch.distributed", "torch.distributed.tensor", "torch.nn.parallel"),
    *("torch.utils.checkpoint", "torch.amp"),
)


def begin(shared: mmap.mmap | memoryview | bytearray, folder: str, asked: dict[str, Any]) -> None:
    """Start the simulation and the counting. `asked` has the steps, and the fields of an `options.SimulatedGpu`."""
    global _sim, _steps, _began_ns
    _began_ns = time.time_ns()
    for name in _EARLY:
        importlib.import_module(name)
    import_compiler(is_ours=False)
    _steps = asked["steps"]
    device = SimulatedGpu(**{**asked["device"], "capability": tuple(asked["device"]["capability"])})
    memory = Memory[Place](
        total_bytes=device.total_bytes,
        moment=lambda: (counters.PHASES[hooks.cells[counters.PHASE]], hooks.cells[counters.STEPS]),
        where=here,
    )
    # Under torchrun, each process has its own GPU.
    count = max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), device.count)
    _sim = engine.Simulation(placements=Placements(memory), gpu=device, has_values=asked["values"], count=count)
    if not _sim.has_values:
        # torch must swap the objects, because a CPU parameter cannot take the data of a tensor without values.
        torch.__future__.set_swap_module_params_on_conversion(True)
        # An assumed value would fail the validation.
        torch.distributions.Distribution.set_default_validate_args(False)
    cells = counters.cells_of(shared)
    _sim.in_fork = lambda place, text: counters.write_of_fork(shared, cells, str(place or "an unknown line"), text)
    torch_calls = _simulated.enter_context(simulated_cuda.simulated(_sim))
    if threading.current_thread() is not threading.main_thread():
        _enter_in_main(torch_calls)
    _simulated.enter_context(engine.replaced(_substitutes()))
    hooks.begin(shared, folder, use="simulation")
    simulated_devices.lines = hooks.lines
    atexit.unregister(hooks._end)
    for holder, name, _ in hooks._replaced:
        counting = vars(holder)[name]
        if callable(counting):
            torch_calls.originals[counting] = counting.__wrapped__
    hooks.device_of = memory_peaks.device_of = _device_of
    hooks.is_pinned = _sim.placements.is_pinned
    memory_peaks.is_used = lambda: True
    memory_peaks.read = lambda cells, phase: None
    if not _sim.has_values:
        hooks._follow = lambda *args: None  # references to moved tensors would prevent the swap
    hooks._replace(torch_private.find(hooks.LOADER), "__next__", _following)
    hooks._replace(DataLoader, "__iter__", functools.partial(hooks.measured, _note_iterator))
    hooks._replace(simulated_cuda.TorchCalls, "__torch_function__", _reaching)
    hooks._replace(optimizers.Optimizer, "__init__", functools.partial(hooks.measured, _note_training))
    torch.nn.modules.module.register_module_forward_pre_hook(hooks.forward_begins)
    optimizers.register_optimizer_step_pre_hook(_stepping)
    optimizers.register_optimizer_step_post_hook(_stepped)
    sys.excepthook = _without_ours(sys.excepthook)
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_end))
    atexit.register(_end)


def _enter_in_main(torch_calls: simulated_cuda.TorchCalls) -> None:
    """Enter the modes in the main thread, before its next line."""

    def enter(_: Any) -> int:
        for mode in (kernels.autocast_here(), torch_calls, engine.Dispatch(torch_calls.sim)):
            _kept.append(mode)
            mode.__enter__()
        return 0

    _kept.append(ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(enter))
    ctypes.pythonapi.Py_AddPendingCall(_kept[0], None)


_kept: list[Any] = []  # objects that must stay alive


def _without_ours(shown: Any) -> Any:
    """Return the hook that prints a traceback, without gpucheck's frames."""

    def hook(kind: Any, error: Any, trace: Any) -> None:
        link: BaseException | None = error
        while link is not None:
            link.__traceback__ = _theirs(link.__traceback__)
            link = link.__cause__ or link.__context__
        shown(kind, error, error.__traceback__)

    return hook


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    following = _theirs(trace.tb_next)
    if memory_peaks.is_ours(trace.tb_frame.f_code.co_filename):
        return following
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _device_of(tensor: Any) -> str | None:
    """Return the type of a tensor's simulated device; None for the host."""
    with memory_peaks.unseen():
        device = None if _sim.here.inside else _sim.placements.device(tensor)
    return None if device is None or device.type in ("cpu", "meta") else device.type


def _substitutes() -> list[tuple[Any, str, Any]]:
    """Return the replacements of functions that run differently here. Each reports its first use."""
    distributed = torch.distributed
    patches: list[tuple[Any, str, Any]] = []
    if distributed.is_available() and all(map(torch_private.has, _OF_GROUPS)):
        c10d = distributed.distributed_c10d
        init, (whole, device, world) = c10d.init_process_group, map(torch_private.need, _OF_GROUPS)

        def initial(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            if backend is None:  # gloo for the CPU and NCCL for the GPUs
                _remark(_OF_NCCL)
            kwargs.pop("device_id", None)
            return init(backend or "gloo", *args, **kwargs)

        def group(size: Any, rank: Any, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
            requested = str(backend).lower()
            if "nccl" in requested:
                _remark(_OF_NCCL)
                backend, kwargs = "gloo", {**kwargs, "backend_options": None}
            created, store = whole(size, rank, ranks, backend, *args, **kwargs)
            if "nccl" in requested and "cpu" not in requested and created in world.pg_map:
                world.pg_map[created] = (distributed.Backend("nccl"), store)
            return created, store

        for owner in (distributed, c10d):
            patches += [(owner, "init_process_group", initial), (owner, "is_nccl_available", lambda: True)]
        # The group must accept the device of the tensors that torch creates for collectives of objects.
        of_objects = lambda group=None: "cuda" if _is_of_nccl(group) else device(group)  # noqa: E731
        patches += [
            *torch_private.replacing(_OF_GROUPS[0], lambda _: group),
            *torch_private.replacing(_OF_GROUPS[1], lambda _: of_objects),
            (c10d, "default_pg_nccl_timeout", c10d.default_pg_timeout),
            *(
                (c10d.ProcessGroup, name, _sending(original))
                for name, original in vars(c10d.ProcessGroup).items()
                if type(original).__name__ == "instancemethod" and (name[0] != "_" or name.endswith("_base"))
            ),
        ]
    prepared = spawn.get_preparation_data

    def unjudged(name: str) -> Any:
        _remark("processes started by spawn or forkserver are not judged: errors that they catch are not seen")
        return prepared(name)

    return [*patches, (torch, "compile", _uncompiled), (spawn, "get_preparation_data", unjudged)]


_OF_NCCL = "NCCL is replaced by gloo"
_OF_GROUPS = (
    "torch.distributed.distributed_c10d._new_process_group_helper",
    "torch.distributed.distributed_c10d._get_object_coll_device",
    "torch.distributed.distributed_c10d._world",
)


def _is_of_nccl(group: Any) -> bool:
    """Return whether the program requested NCCL alone for a group. NCCL accepts no CPU tensor."""
    return str(torch.distributed.get_backend(group)) == "nccl"


def _sending(original: Any) -> Any:
    """Return the method of a process group, which now refuses CPU tensors as NCCL does."""

    @functools.wraps(original)
    def called(group: Any, *args: Any, **kwargs: Any) -> Any:
        with memory_peaks.unseen():
            on_host = [x for x in engine.tensors_in([*args, kwargs]) if _sim.placements.device(x) == CPU]
            if on_host and group in torch_private.need(_OF_GROUPS[2]).pg_map and _is_of_nccl(group):
                name, text = f"NCCL's {original.__name__}", rules.NO_BACKEND.format("cpu")
                _sim.raise_if_elsewhere("tensor", on_host[0], device_of("cuda"), name, text)
        return original(group, *args, **kwargs)

    return called


_compile = torch.compile


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """Return the model itself instead of compiled code, whose operations the simulation cannot see."""
    _compile(**options)  # raises torch's errors for an unknown keyword and an unsupported Python
    _remark("torch.compile is skipped: the program runs eagerly, which may use more memory")
    return (lambda function: function) if model is None else model


@functools.cache
def _remark(text: str) -> None:
    """Report a difference from a run on a device, once, with the first line."""
    _say("remark", text=text, place=text_of(here()))


def _end_here() -> None:
    _say("steps_done")
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        _say_left(frame.f_code, line)
    raise SystemExit(0)


# By iterator of a loader: its rounds so far, and the steps and the time in backward passes at its first round.
_rounds: weakref.WeakKeyDictionary[Any, tuple[int, int, int]] = weakref.WeakKeyDictionary()
# Whether a loop has got a batch from a loader. The loop ends after the requested rounds; other programs end at a step.
_is_fed = False
_MOST_EPOCHS = 3  # a program may repeat its loops over loaders until it has made this many times the requested steps


def _following(original: Any) -> Any:
    """Return a loader's `__next__` that ends after the requested rounds, or steps if gradients accumulate."""

    def following(self: Any) -> Any:
        global _is_fed
        done, backward = hooks.cells[counters.STEPS], hooks.cells[counters.BACKWARD_NS]
        frame = sys._getframe(1)
        if _is_by_hand(frame):
            if done >= _steps:
                _end_here()
            return original(self)
        batch = original(self)  # raises StopIteration if the loader has fewer rounds
        rounds, done_before, backward_before = _rounds.get(self, (0, done, backward))
        is_accumulating = _trains and backward != backward_before and done - done_before < _steps
        if rounds >= _steps and not is_accumulating:
            _end_loop(frame)
            raise StopIteration
        _rounds[self] = rounds + 1, done_before, backward_before
        _is_fed = True
        return batch

    return following


def _note_iterator(iterator: Any, *_: Any) -> None:
    _rounds.pop(iterator, None)  # a loader with persistent workers restarts its iterator


def _is_by_hand(frame: FrameType) -> bool:
    """Return whether the user's code calls `next()` and does not handle StopIteration."""
    code = frame.f_code
    is_called = not {"next", "__next__"}.isdisjoint(code.co_names) and "StopIteration" not in code.co_names
    return is_called and not _is_loop(frame) and rank(code.co_filename) == 0


def _is_loop(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "FOR_ITER"


def _end_loop(frame: FrameType) -> None:
    """Record that a loop over a loader is ended early, and protect the program's older files."""
    _spare()
    outward = (outer for outer, _ in traceback.walk_stack(frame) if rank(outer.f_code.co_filename) == 0)
    for number, outer in enumerate(outward):
        if not number or _is_loop(outer):  # the loop, and outer loops over generators that use this loop
            _say_left(outer.f_code, outer.f_lineno, is_loop=True)


@functools.cache
def _spare() -> None:
    _simulated.enter_context(engine.replaced(_sparing(_began_ns)))


@functools.cache
def _say_left(code: CodeType, line: int, *, is_loop: bool = False) -> None:
    """Record a user's line at which a function ended early."""
    if rank(code.co_filename) == 0:
        function = 0 if code.co_name == "<module>" else code.co_firstlineno
        _say("left", file=hooks.lines.path(code.co_filename), function=function, line=line, is_loop=is_loop)


_ran: set[CodeType] = set()  # the code objects that called torch


def _reaching(original: Any) -> Any:
    """Return a `TorchCalls.__torch_function__` that records which code calls torch."""

    def reached(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            _ran.add(frame.f_code)
            frame = frame.f_back
        return original(self, func, types, args, kwargs)

    return reached


def _say_ran() -> None:
    ran: dict[str, list[int]] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and rank(file) == 0:
            ran[hooks.lines.path(file)] = []
    for code in _ran:
        if rank(code.co_filename) == 0:
            ran.setdefault(hooks.lines.path(code.co_filename), []).append(code.co_firstlineno)
    for file, begins in ran.items():
        _say("ran", file=file, begins=begins)


def _note_training(*_: Any) -> None:
    global _trains
    _trains = True


_sums: dict[str, int] = {}  # the bytes of parameters, gradients and optimizer states after the last step


def _stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
    if hooks._steps.leader() is optimizer and hooks.cells[counters.STEPS] >= _steps * (_MOST_EPOCHS if _is_fed else 1):
        _end_here()


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if hooks.cells[counters.STEPS] <= _steps:
        with memory_peaks.unseen():
            _sums.update(memory_peaks.sums(hooks._steps.optimizers, lambda x: _sim.placements.device(x) == COUNTED))


def _sparing(began_ns: int) -> list[tuple[Any, str, Any]]:
    """Return replacements of calls that overwrite files. They do not overwrite files from before `began_ns`."""

    def is_older(path: Any) -> bool:
        is_file = isinstance(path, (str, bytes, os.PathLike)) and os.path.isfile(path)
        try:
            was_before = is_file and os.stat(path).st_ctime_ns < began_ns
        except OSError:  # the file was removed since
            return False
        if was_before:
            _remark(f"not overwritten, because loops were ended early: {os.fsdecode(path)}")
        return was_before

    def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return opened(os.devnull if "w" in mode and is_older(file) else file, mode, *args, **kwargs)

    def sparing(owner: Any, name: str, place: int, keyword: str = "") -> tuple[Any, str, Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[place] if len(args) > place else kwargs.get(keyword)
            return None if "dir_fd" not in kwargs and is_older(path) else original(*args, **kwargs)

        return owner, name, call

    opened = io.open
    patches = [
        (builtins, "open", opening),
        (io, "open", opening),
        *(sparing(owner, "save", 1, "f") for owner in (torch, torch.jit, torch.serialization)),
        *(sparing(os, name, 1) for name in ("replace", "rename")),
        *(sparing(os, name, 0) for name in ("remove", "unlink")),
    ]
    if (safetensors := sys.modules.get("safetensors.torch")) is not None:
        patches.append(sparing(safetensors, "serialize_file", 1, "filename"))
    return patches


def _end() -> None:
    error = getattr(sys, "last_value", None)
    memory = _sim.placements.memory
    with memory_peaks.unseen():
        ended_by = None if error is None else placement.mismatch_in(_sim, error)
        for mismatch in sorted(_sim.refused.values(), key=lambda mismatch: mismatch is not ended_by)[:_MOST_ROWS]:
            row = {"mismatch": to_json(mismatch.entry), "ended": mismatch is ended_by}
            _say("mismatch", **row, assumed=mismatch.assumed, times=mismatch.times)
        if error is not None and ended_by is None:
            _say_error(error)
        for frame, line in traceback.walk_tb(None if error is None else error.__traceback__):
            _say_left(frame.f_code, line)
        if _say_left.cache_info().currsize:
            _say_ran()
        for (place, text), times in _sim.mixed.most_common(_MOST_ROWS):
            _say("mixed", text=text[:_MOST_TEXT], place=text_of(place), times=times)
        for value in _sim.assumed[:_MOST_ROWS]:
            _say("assumed", **to_json(value))
        for name, place in _sim.unjudged.items():
            _say("unjudged", operation=name, place=text_of(place))
        exceeded = None if memory.exceeded is None else _row_of(memory.exceeded)
        row = {"total_bytes": memory.total_bytes, "peak": _row_of(memory.top()), "exceeded": exceeded}
        row |= {f"{name}_bytes": _sums.get(name) for name in ("parameters", "gradients", "optimizer")}
        _say("end", memory=row, assumed=len(_sim.assumed), trains=_trains)
    hooks.cells[counters.END_NS] = hooks.now()
    _simulated.close()


def _say(say: str, **row: Any) -> None:
    counters.write(hooks.memory, hooks.cells, {"say": say, **row})


def _say_error(error: BaseException) -> None:
    place, whole = placement.innermost(error.__traceback__), message_of(error)
    if _OF_A_WORKER in whole:
        frames = [Place(file, int(line)) for file, line in _FRAME.findall(whole)]
        place = next((frame for frame in reversed(frames) if rank(frame.file) == 0), place)
        whole = whole.strip().rpartition("\n")[2]
    text = " ".join(whole.split())[:_MOST_TEXT]
    of_device = placement.is_of_device(error, text)
    _say("stopped", kind=type(error).__name__, text=text, place=text_of(place), of_device=of_device)


def _row_of(moment: Moment[Place]) -> dict[str, Any]:
    held = [{"place": text_of(place), "phase": phase, "bytes": size} for (place, phase), size in moment.held]
    made_in: Counter[str] = Counter()
    for (_, phase), size in moment.held:
        made_in[phase] += size
    row: dict[str, Any] = {name: getattr(moment, name) for name in ("phase", "step", "asked_bytes", "allocated_bytes")}
    return {**row, "place": text_of(moment.place), "held": held[:_MOST_LINES], "made_in": made_in}
