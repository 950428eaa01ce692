"""Which of Python's warnings stop a command: the user's own, not those of what gpucheck stands on."""

from __future__ import annotations

import warnings

# torch's C++ warns at its first import without NumPy, which gpucheck does not need (torch/csrc/utils/tensor_numpy.cpp).
WITHOUT_NUMPY = "Failed to initialize NumPy"
# Where `-W error` or PYTHONWARNINGS=error makes an exception of every warning, a deprecation inside these would end a
# command as a bug of gpucheck. They are shown instead.
NOT_THE_USERS = r"(gpucheck|torch|numpy|pynvml|psutil|typer|click|rich)(\.|$)"


def settle() -> None:
    """Set this process's filters: for the command line and its children, never for who imports gpucheck."""
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("default", module=NOT_THE_USERS)
    warnings.filterwarnings("ignore", message=WITHOUT_NUMPY)
