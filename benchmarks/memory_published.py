"""How far the memory of a dry run is off torch's own MemTracker, over the programs of memory_models.py.

    python benchmarks/memory_published.py --reference   # with a torch that is built for CUDA: writes the reference
    python benchmarks/memory_published.py               # with any torch: dry runs without values, held against it

The reference is MemTracker over fake tensors on cuda:0, which take CUDA's operators. cuDNN's reserve for an RNN is 0
there, so that no RNN is among the programs; tests/program/test_kernels.py holds two that were published.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODELS = HERE / "memory_models.py"
REFERENCE = HERE / "results" / "memory-memtracker.json"
# The list as it was before the first comparison.
FIXED = "a6c0a3836062568cdc443f9221b0be2d7bf19296b197544a300ff3d946e0b0e3"


def tracked(name: str) -> int:
    """MemTracker's peak of two steps, in bytes."""
    import torch
    from memory_models import MODELS as models
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    make: Any
    batch: Any
    make, batch = models[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):  # fake tensors cannot swap every module's
            model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        x = batch()
        tracker: Any = MemTracker()
        tracker.track_external(model, optimizer, x)
        with tracker:
            for _ in range(2):
                optimizer.zero_grad()
                model(x).float().square().mean().backward()
                optimizer.step()
                tracker.reset_mod_stats()  # of modules alone; the peak stays
        peaks = tracker.get_tracker_snapshot("peak")
    return int(next(sizes["Total"] for device, sizes in peaks.items() if device.type == "cuda"))


def dry(name: str) -> int:
    """The peak of a dry run of the same two steps, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dry.json"
        argv = [sys.executable, "-m", "gpucheck", "run", "--dry", "cuda", "--no-values", "--output", str(file)]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        subprocess.run([*argv, str(MODELS), name], check=True, capture_output=True, env=environment)
        memory: dict[str, Any] = json.loads(file.read_text())["results"]["run_dry"]["memory"]
    return int(memory["peak"]["allocated_bytes"])


def main() -> int:
    """Write the reference, or compare with it: 1 where a program is off by more than 5 %."""
    if hashlib.sha256(MODELS.read_bytes()).hexdigest() != FIXED:
        print("the list has changed since it was fixed", file=sys.stderr)
        return 2
    if "--reference" in sys.argv:
        import torch
        from memory_models import MODELS as models

        peaks = {name: tracked(name) for name in models}
        REFERENCE.write_text(json.dumps({"torch": torch.__version__, "peaks": peaks}, indent=1) + "\n")
        return 0
    worst = 0.0
    for name, peak in json.loads(REFERENCE.read_text())["peaks"].items():
        seen = dry(name)
        worst = max(worst, abs(seen / peak - 1))
        print(
            f"{name:14} {peak / 2**20:9.1f} MiB   dry run {seen / 2**20:9.1f} MiB   {seen / peak - 1:+.1%}", flush=True
        )
    return int(worst > 0.05)


if __name__ == "__main__":
    sys.exit(main())
