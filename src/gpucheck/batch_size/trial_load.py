"""The workload of a child, from what its parent told it."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gpucheck.work.spec import Recipe, parse_inputs, parse_target
from gpucheck.work.target import Workload, load


def load_for(setup: dict[str, Any], device: torch.device) -> Workload:
    """Build the workload of a `Setup`, as JSON has it, on a device. Raises what the user's factory raises."""
    sys.path += [folder for folder in setup.get("import_path", ()) if folder not in sys.path]
    return load(
        parse_target(setup["target"]),
        parse_inputs(tuple(setup["inputs"])),
        mode=setup["mode"],
        optimizer=setup["optimizer"],
        dtype=setup["dtype"],
        device=device,
        recipe=Recipe(**setup.get("recipe", {})),
    )
