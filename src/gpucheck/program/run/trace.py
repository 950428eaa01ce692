"""In the program's own process: a few steps looked at with everything, for who makes memory and who keeps it.

Every operation is seen, and every storage that it makes is counted until it is freed: on any device, the CPU too. That
makes these steps several times slower, so that there are few.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpucheck.program.run import board, rule

# Steps before the first that is traced: in the first one caches are filled and states are made.
SKIPPED = 2
_MOST_LINES = 20
# Of so many tensors of a line that stayed it is asked who holds them.
_ASKED = 3

_Place = tuple[str, int, str, str, str]


class Tracer(TorchDispatchMode):  # type: ignore[misc]
    """Counts storages by the user's line, the module and the phase that made them."""

    def __init__(self, lines: rule.Lines, phase: Callable[[], int]) -> None:
        super().__init__()
        self.lines, self.phase = lines, phase
        # Live storages by id: their bytes, where they were made, and in which of the traced steps.
        self.live: dict[int, tuple[int, _Place, int]] = {}
        self.total = self.peak = 0
        self.by_place: dict[_Place, int] = {}
        self.at_peak: dict[_Place, int] = {}
        self.step = 0
        self.began_ns = self.spent_ns = 0
        self.modules: list[str] = []
        self.hooks: list[Any] = []
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        try:
            for one in _made_by(func, result):
                self._made(one, sys._getframe(1))
        except (RuntimeError, NotImplementedError):  # what has no storage is not counted
            pass
        return result

    def _made(self, tensor: Any, frame: FrameType) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or not size:
            return
        place = self._place(frame)
        self.live[key] = size, place, self.step
        self.total += size
        self.by_place[place] = self.by_place.get(place, 0) + size
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, {}
        weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        if not self.at_peak and self.total == self.peak:
            self.at_peak = dict(self.by_place)  # the first that is freed after a peak ends it
        size, place, _ = self.live.pop(key)
        self.total -= size
        self.by_place[place] -= size

    def _place(self, frame: FrameType) -> _Place:
        caller = self.lines.caller(frame)
        phase = board.PHASES[self.phase()]
        module = self.modules[-1] if self.modules else ""
        if caller is None:
            return "", 0, "", module, phase
        return self.lines.path(caller.f_code), caller.f_lineno, caller.f_code.co_name, module, phase

    # -- the window --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look, from the next operation on."""
        self.hooks = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._enters),
            torch.nn.modules.module.register_module_forward_hook(self._leaves, always_call=True),
        ]
        self.began_ns = time.perf_counter_ns()
        self.__enter__()

    def _enters(self, module: Any, inputs: Any) -> None:
        if not self.modules:
            for name, one in module.named_modules(prefix=type(module).__name__):
                self.names[one] = name
        self.modules.append(self.names.get(module, type(module).__name__))

    def _leaves(self, module: Any, inputs: Any, output: Any) -> None:
        if self.modules:
            self.modules.pop()

    def ended(self) -> None:
        """One of the steps is over."""
        self.step += 1

    def stop(self) -> None:
        """Look no more."""
        self.__exit__(None, None, None)
        for one in self.hooks:
            one.remove()
        self.spent_ns = time.perf_counter_ns() - self.began_ns

    def tell(self, say: Callable[[dict[str, Any]], bool], last_step: int) -> None:
        """Write down who made most, and what stayed of all steps but the last, whose results may still be in use."""
        if not self.at_peak:
            self.at_peak = dict(self.by_place)
        counted = max(self.step - 1, 1)
        kept: dict[_Place, list[int]] = {}
        for key, (_, place, step) in self.live.items():
            # What each step leaves behind grows; what the first leaves alone is a cache.
            if step < counted:
                kept.setdefault(place, []).append(key)
        kept = {place: keys for place, keys in kept.items() if len({self.live[key][2] for key in keys}) >= counted}
        say(
            {
                "say": "trace",
                "steps": self.step,
                "counted": counted,
                "last_step": last_step,
                "peak": self.peak,
                "step_ns": self.spent_ns // max(self.step, 1),
            }
        )
        sizes = {place: sum(self.live[key][0] for key in keys) for place, keys in kept.items()}
        told = sorted({*self.at_peak, *kept}, key=lambda place: -max(self.at_peak.get(place, 0), sizes.get(place, 0)))
        holders = _holders({key: place for place, keys in kept.items() for key in keys})
        for place in told[:_MOST_LINES]:
            file, line, function, module, phase = place
            row = {"file": file, "line": line, "function": function, "module": module or None, "phase": phase}
            row |= {"peak": self.at_peak.get(place, 0), "kept": sizes.get(place, 0)}
            say({"say": "traced", **row, "kept_tensors": len(kept.get(place, [])), "held_by": holders.get(place)})


def _holders(kept: dict[int, _Place]) -> dict[_Place, str]:
    """The list or dictionary that holds tensors of these storages, by the place that made them, named as a variable."""
    found: dict[_Place, str] = {}
    if not kept:
        return found
    asked: dict[_Place, int] = {}
    for one in gc.get_objects():
        if not issubclass(type(one), torch.Tensor):
            continue
        try:
            place = kept.get(one.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            continue
        if place is None or place in found or asked.get(place, 0) >= _ASKED:
            continue
        asked[place] = asked.get(place, 0) + 1
        for container in gc.get_referrers(one):
            if isinstance(container, (list, dict, set)) and (name := _name_of(container)) is not None:
                found[place] = f"{type(container).__name__} {name} of {len(container)}"
    return found


def _made_by(func: Any, result: Any) -> list[Any]:
    """The tensors that an operation made: what is a view, or was written in place, was there before."""
    results = result if isinstance(result, (list, tuple)) else [result]
    told = func._schema.returns
    new = [one.alias_info is None for one in told] if len(told) == len(results) else [True] * len(results)
    return [one for one, is_new in zip(results, new, strict=True) if is_new and isinstance(one, torch.Tensor)]


def _name_of(container: Any) -> str | None:
    """What the program calls it: a variable of its main module, or of a function that is at work."""
    places: list[dict[str, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "gpucheck" not in str(frame.f_globals.get("__name__", "")):
            places.append(frame.f_locals)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    places.append(vars(main) if main is not None else {})
    for names in places:
        if names is container:
            continue
        for name, value in list(names.items()):
            if value is container:
                return name
            # An attribute of an object that is a variable: self.history.
            inner = getattr(value, "__dict__", None)
            if isinstance(inner, dict):
                for attribute, member in list(inner.items()):
                    if member is container:
                        return f"{name}.{attribute}"
    return None
