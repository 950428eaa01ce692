"""Talking to a child that copies on its own: JSON objects, one a line, and why it was lost where it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gpucheck import messages
from gpucheck.errors import DeviceFailed
from gpucheck.machine.child import ChildEnded, LineChild, python_argv

# A module whose main() speaks lines → the child.
Start = Callable[[str], LineChild]


class Lost(Exception):
    """A child that died, hung or could not do what it was told; `who` it was for, and `reason`, in words."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason

    def raise_for_device(self, device: str) -> None:
        """Raise DeviceFailed where the child's last word is that the device has failed."""
        cause = messages.cause_of(self.reason)
        if cause is not None and cause.whose == "device":
            raise DeviceFailed(f"{self.who}: {cause.title}", self.reason, cause.fix, device=device) from self


def start(module: str) -> LineChild:
    """A fresh interpreter that runs `module.main()`. Raises OSError."""
    return LineChild(python_argv(module))


class Talk:
    """The child that copies for `who`. Everything raises Lost where it is gone, late, or says that it failed."""

    def __init__(self, who: str, module: str, start_child: Start = start) -> None:
        self.who = who
        try:
            self._child = start_child(module)
        except OSError as error:
            raise Lost(who, f"its process cannot be started ({error.strerror or error})") from error

    def say(self, told: dict[str, Any]) -> None:
        """Send one line."""
        try:
            self._child.send(json.dumps(told))
        except ChildEnded as ended:
            raise Lost(self.who, _how(ended)) from ended

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line."""
        try:
            text = self._child.receive(timeout_s)
        except ChildEnded as ended:
            raise Lost(self.who, _how(ended)) from ended
        if text is None:
            raise Lost(self.who, f"its process did not answer within {timeout_s:.0f} s")
        try:
            line = json.loads(text)
        except ValueError:  # cut off by its death
            line = None
        if not isinstance(line, dict):
            raise Lost(self.who, "its process did not end its line")
        if "error" in line:
            raise Lost(self.who, str(line["error"]))
        return line

    def end(self) -> None:
        """End it now; it holds nothing that needs an orderly end."""
        self._child.kill()

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _how(ended: ChildEnded) -> str:
    words = ended.stderr.strip().splitlines()
    last = f": {words[-1]}" if words else ""
    code = ended.returncode
    if code is not None and code < 0 and -code in set(signal.Signals):
        return f"its process was ended by {signal.Signals(-code).name}{last}"
    return f"its process ended with {code}{last}"
