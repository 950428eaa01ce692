"""torch's import into this process: whole, or not at all.

What a handler of Ctrl-C or SIGTERM raises in the middle of it passes through torch's compiled code, which ends the
process by SIGABRT (`terminate called after throwing … KeyboardInterrupt`) or turns it into an ImportError.
"""

from __future__ import annotations

import sys

from gpucheck.errors import CannotLook
from gpucheck.machine import child


def load() -> None:
    """Import torch. What Ctrl-C or SIGTERM raises meanwhile is raised once it is imported; a second one ends at once.

    Raises CannotLook where it cannot be imported.
    """
    if "torch" in sys.modules:
        return
    try:
        with child.signals_held(second_ends=True):
            import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: a library that ctypes loads for torch is not there
        lines = str(error).strip().splitlines()
        raise CannotLook("torch cannot be imported", lines[0] if lines else "", "see `gpucheck doctor`") from error
