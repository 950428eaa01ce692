"""How a step is run, beyond the model: mixed precision, activation checkpointing, torch.compile."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn

from gpucheck.errors import TargetError, UsageError
from gpucheck.work.spec import Target

T = TypeVar("T")
# Where gradients are scaled, as torch.amp.GradScaler knows the device.
SCALED = ("cuda", "xpu", "cpu")
# What a model calls its own activation checkpointing, and with which arguments it is switched on: transformers' names,
# the newer one first, then timm's.
CHECKPOINTING: tuple[tuple[str, tuple[bool, ...]], ...] = (
    ("activation_checkpointing_enable", ()),
    ("gradient_checkpointing_enable", ()),
    ("set_grad_checkpointing", (True,)),
)
# Failures of torch.compile itself are raised by these, each with the reason of a step below it as its cause.
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")
NO_ROOM = ("out of memory", "can't allocate memory", "cannot allocate memory")


def checkpoint(model: nn.Module, target: Target) -> None:
    """Switch on the checkpointing of activations that the model, or else each outermost part of it, brings along.

    Raises UsageError where there is none, or where the model refuses.
    """
    done: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or not outer for outer in done):
            continue
        name, arguments = next(
            ((name, given) for name, given in CHECKPOINTING if callable(getattr(module, name, None))), ("", ())
        )
        if not name:
            continue
        try:
            getattr(module, name)(*arguments)
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise UsageError(f"{target.text} refuses --grad-checkpointing", str(error), "leave it out") from error
        done.append(path)
    if not done:
        names = " nor ".join(name for name, _ in CHECKPOINTING[1:])
        raise UsageError(
            f"{target.text} has no checkpointing of its own to switch on",
            f"its model has neither {names}",
            "call torch.utils.checkpoint in the model, and leave --grad-checkpointing out",
        )


def check_amp(amp: str | None, device: torch.device) -> None:
    """Raises UsageError where torch has no autocast for the device."""
    if amp is not None and device.type != "meta" and not torch.amp.is_autocast_available(device.type):
        raise UsageError(f"torch has no autocast for {device}", "", "leave --amp out")


def scaler(amp: str | None, device: torch.device) -> torch.amp.GradScaler | None:
    """What scales the gradients of float16. The scale is 1: it costs no memory, and random data need none."""
    if amp != "float16" or device.type not in SCALED:
        return None
    return torch.amp.GradScaler(device.type, init_scale=1.0)


def autocast(amp: str | None, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The region in which operations run in the dtype of `amp`; nothing where that is None."""
    if amp is None or device.type == "meta":
        return contextlib.nullcontext()
    region: contextlib.AbstractContextManager[object] = torch.autocast(device.type, dtype=getattr(torch, amp))
    return region


def compiled(model: nn.Module, make_batch: Callable[[int], T]) -> Callable[[int], T]:
    """Compile the model in place, for one shape at a time; returns `make_batch` that starts anew with each size.

    Without that, torch gives compiling up after some sizes and runs the model as it is, which takes other memory.
    """
    model.compile(dynamic=False)
    last: list[int] = []

    def make(size: int) -> T:
        if last and last[0] != size:
            torch.compiler.reset()
        last[:] = [size]
        return make_batch(size)

    return make


@contextlib.contextmanager
def compiler_errors(target: str) -> Iterator[None]:
    """Tell a failure of torch.compile as the target's, with its reason; memory that ran out is passed on."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(COMPILERS) or _no_room(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # "backend='inductor' raised:" has its reason in the line below.
        said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
        raise TargetError(
            f"torch.compile cannot compile {target}",
            f"{type(error).__name__}: {said}",
            "leave --compile out, or see the traceback with --debug",
            trace="".join(traceback.format_exception(error)),
        ) from error


def _no_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if any(words in str(error).lower() for words in NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False
