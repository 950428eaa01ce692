# mypy: ignore-errors
"""A device that is not there: tensors that say so, for programs that are run on a machine without one.

Imported first by a program. Copies to "cuda" are tensors of a class of their own, whose values lie on the host; the
rule that says which tensors count is pointed at that class, and reading one takes a millisecond.
"""

import sys
import time

import torch


class Pretend(torch.Tensor):
    """What is computed from one of these is one again."""


def _device(args, kwargs):
    named = [one for one in (*args, *kwargs.values()) if isinstance(one, (str, torch.device))]
    return str(named[0]) if named else None


hooks = sys.modules.get("gpucheck.program.run.hooks")
if hooks is not None:
    hooks.uninstall()
_to, _item = torch.Tensor.to, torch.Tensor.item
COPY_S = 0.0


def to(self, *args, **kwargs):
    wanted = _device(args, kwargs)
    if wanted is None:
        return _to(self, *args, **kwargs)
    if wanted.startswith("cuda"):
        time.sleep(COPY_S)
        return self if isinstance(self, Pretend) else self.clone().as_subclass(Pretend)
    return self.clone().as_subclass(torch.Tensor) if isinstance(self, Pretend) else self


def item(self):
    if isinstance(self, Pretend):
        time.sleep(0.001)
    return _item(self)


def start():
    """Point everything at the pretended device, where the program is looked at."""
    torch.Tensor.to = to
    torch.Tensor.cuda = lambda self, *args, **kwargs: to(self, "cuda")
    torch.Tensor.cpu = lambda self: to(self, "cpu")
    torch.Tensor.item = item
    torch.cuda.synchronize = lambda device=None: time.sleep(0.001)
    torch.cuda.empty_cache = lambda: None
    if hooks is not None:
        hooks.memory_peaks.device_of = hooks.device_of = lambda tensor: "cuda" if isinstance(tensor, Pretend) else None
        hooks.memory_peaks.is_used = lambda: True
        hooks.install()


start()
