"""Which tensors count, and which lines are the user's: the two rules that all counting keeps to."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

# What lies there is read and written without a device.
_HOST = frozenset(("cpu", "meta"))


# Whoever overrides or watches torch's functions would be told of ours: they are asked nothing of what we ask.
unseen = torch._C.DisableTorchFunction
_modes = torch._C._len_torch_function_stack
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def is_plain(tensor: Any) -> bool:
    """Return whether nobody is told of a look at the tensor's properties."""
    return type(tensor) in _PLAIN and not _modes()


def device_of(tensor: Any) -> str | None:
    """The kind of accelerator that the tensor lies on; None for the host's, which cost no copy and no wait."""
    if type(tensor) in _PLAIN and not _modes():
        if tensor.is_cpu:  # most are, and this is the quickest to ask
            return None
        kind: str = tensor.device.type
    else:
        with unseen():
            kind = tensor.device.type
    return None if kind in _HOST else kind


def is_used() -> bool:
    """Return whether this process uses an accelerator: only then a call that waits for it waits."""
    return any(
        (module := getattr(torch, name, None)) is not None and module.is_initialized() for name in ("cuda", "xpu")
    ) or (torch.backends.mps.is_available() and torch.mps.current_allocated_memory() > 0)


class Lines:
    """Tells the user's code from that of libraries. `folder` is where the program was started.

    The program's own package is the user's wherever it is installed.
    """

    def __init__(self, folder: str, main_file: str | None) -> None:
        self.folder = folder
        places = sysconfig.get_paths()
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        torch_folder = os.path.dirname(str(torch.__file__))
        named = {places[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {ours, torch_folder}
        self._libraries = tuple(os.path.join(os.path.realpath(one), "") for one in named)
        self._own = self._own_package(main_file)
        # By id, since the hash of a code object reads all of it; the objects are kept so that no id is used again.
        self._known: dict[int, bool] = {}
        self._kept: list[CodeType] = []

    def caller(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's, from `frame` outwards; None where libraries alone are at work."""
        known = self._known
        while frame is not None:
            is_users = known.get(id(frame.f_code))
            if is_users is None:
                is_users = self._learn(frame.f_code)
            if is_users:
                return frame
            frame = frame.f_back
        return None

    def path(self, code: CodeType) -> str:
        """The absolute path of a code object's file; what is in no file keeps its name."""
        name = code.co_filename
        return name if name.startswith("<") else os.path.normpath(os.path.join(self.folder, name))

    def is_users(self, path: str) -> bool:
        """Return whether a file is the user's: neither of a library nor made up by one as it runs."""
        if path.startswith("<"):
            return path == "<stdin>"
        real = os.path.realpath(path)
        if self._own is not None and real.startswith(self._own):
            return True
        installed = f"{os.sep}site-packages{os.sep}" in real or f"{os.sep}dist-packages{os.sep}" in real
        return not installed and not real.startswith(self._libraries)

    def _learn(self, code: CodeType) -> bool:
        self._kept.append(code)
        found = self._known[id(code)] = self.is_users(self.path(code))
        return found

    def _own_package(self, main_file: str | None) -> str | None:
        if main_file is None:
            return None
        folder = os.path.dirname(os.path.realpath(os.path.join(self.folder, main_file)))
        own = None
        while os.path.exists(os.path.join(folder, "__init__.py")):
            own, folder = folder, os.path.dirname(folder)
        return None if own is None else os.path.join(own, "")
